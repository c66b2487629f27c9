/* Values of any size in LMDB, none of which takes more than a page: what is larger is stored as
 * several, its pieces.
 *
 * LMDB gives a large value pages that follow each other. A map that has been full for long has
 * none left, and LMDB calls it full although a fifth of it is free. */
#ifndef CORETAP_PIECES_H
#define CORETAP_PIECES_H

#include <lmdb.h>
#include <stddef.h>
#include <stdint.h>

/* The largest piece: a page of 4096 bytes without LMDB's header. */
#define PIECE_BYTES 4080

/* Of a piece. Big-endian, so that byte order is numeric order. What run, n and notices are is the
 * table's affair; together they name a value. */
struct key {
	uint64_t run, n;
	uint32_t notices;
	uint32_t piece; /* of the value, from 0 */
} __attribute__((packed));

/* Of a value's first piece. */
struct key key_make(uint64_t run, uint64_t n, uint32_t notices);

/* All of the following return what LMDB returns, 0 or an error. */

/* ---- writing, within a transaction ---- */

/* A value that is written part by part: table, flags of mdb_put, key, and its length in left. */
struct pieces {
	MDB_txn *txn;
	MDB_dbi table;
	unsigned int flags;
	struct key key;
	size_t left; /* for which there is no piece yet */
	uint32_t n;
	uint8_t *at; /* into the last piece */
	size_t room;
};

int pieces_put(struct pieces *pieces, const void *data, size_t len);

/* To be called after the last part where an earlier value of this key may have had more pieces. */
int pieces_end(struct pieces *pieces);

/* Both for a value that is there at once. */
int pieces_replace(MDB_txn *txn, MDB_dbi table, struct key key, const void *data, size_t len);

/* ---- reading ---- */

/* Puts the cursor on the first value at or after key; fills its key and its first piece. A value
 * whose first pieces were deleted is none. */
int pieces_seek(MDB_cursor *cursor, struct key key, struct key *found, MDB_val *value);

/* Moves it by pieces: MDB_FIRST, MDB_NEXT. */
int pieces_step(MDB_cursor *cursor, MDB_cursor_op op, struct key *found, MDB_val *value);

/* Puts it on the value before (MDB_PREV) or the last one (MDB_LAST). */
int pieces_back(MDB_cursor *cursor, MDB_cursor_op op, struct key *found, MDB_val *value);

/* Where values of several pieces are put together. Owned by the caller, who frees bytes. */
struct gathered {
	uint8_t *bytes;
	size_t capacity;
};

/* Makes of the first piece, which the cursor is on, the whole value; the cursor moves to its last
 * one. It lives until the next call with the same gathered. ENOMEM: no memory. */
int pieces_gather(struct gathered *gathered, MDB_cursor *cursor, MDB_val *value);

/* The whole value of a key. */
int pieces_get(struct gathered *gathered, MDB_txn *txn, MDB_dbi table, struct key key,
	       MDB_val *value);

#endif
