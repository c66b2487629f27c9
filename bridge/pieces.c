/* See pieces.h. */
#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "pieces.h"

struct key key_make(uint64_t run, uint64_t n, uint32_t notices)
{
	return (struct key){ htobe64(run), htobe64(n), htobe32(notices), 0 };
}

int pieces_put(struct pieces *p, const void *data, size_t len)
{
	const uint8_t *from = data;

	while (len) {
		size_t part;

		if (!p->room) {
			MDB_val key = { sizeof(p->key), &p->key };
			MDB_val value = { p->left < PIECE_BYTES ? p->left : PIECE_BYTES, NULL };
			int rc;

			p->key.piece = htobe32(p->n++);
			rc = mdb_put(p->txn, p->table, &key, &value, p->flags | MDB_RESERVE);
			if (rc)
				return rc;
			p->left -= value.mv_size;
			p->at = value.mv_data;
			p->room = value.mv_size;
		}
		part = len < p->room ? len : p->room;
		memcpy(p->at, from, part);
		p->at += part;
		p->room -= part;
		from += part;
		len -= part;
	}
	return 0;
}

int pieces_end(struct pieces *p)
{
	MDB_val key = { sizeof(p->key), &p->key };
	int rc = 0;

	while (!rc) {
		p->key.piece = htobe32(p->n++);
		rc = mdb_del(p->txn, p->table, &key, NULL);
	}
	return rc == MDB_NOTFOUND ? 0 : rc;
}

int pieces_replace(MDB_txn *txn, MDB_dbi table, struct key key, const void *data, size_t len)
{
	struct pieces p = { .txn = txn, .table = table, .key = key, .left = len };
	int rc = pieces_put(&p, data, len);

	return rc ? rc : pieces_end(&p);
}

/* LMDB trusts its pages; what comes out of a damaged one is not trusted here. */
static int found_take(int rc, const MDB_val *k, struct key *found, const MDB_val *value)
{
	if (rc)
		return rc;
	if (k->mv_size != sizeof(*found) || !value->mv_size || value->mv_size > PIECE_BYTES)
		return MDB_CORRUPTED;
	memcpy(found, k->mv_data, sizeof(*found));
	return 0;
}

int pieces_step(MDB_cursor *cursor, MDB_cursor_op op, struct key *found, MDB_val *value)
{
	MDB_val k;

	return found_take(mdb_cursor_get(cursor, &k, value, op), &k, found, value);
}

int pieces_seek(MDB_cursor *cursor, struct key key, struct key *found, MDB_val *value)
{
	MDB_val k = { sizeof(key), &key };
	int rc = found_take(mdb_cursor_get(cursor, &k, value, MDB_SET_RANGE), &k, found, value);

	while (!rc && found->piece)
		rc = pieces_step(cursor, MDB_NEXT, found, value);
	return rc;
}

int pieces_back(MDB_cursor *cursor, MDB_cursor_op op, struct key *found, MDB_val *value)
{
	struct key last;
	int rc = pieces_step(cursor, op, &last, value);

	if (rc)
		return rc;
	*found = last;
	if (!last.piece)
		return 0;
	last.piece = 0;
	rc = pieces_seek(cursor, last, found, value);
	return !rc && memcmp(&last, found, sizeof(last)) ? MDB_NOTFOUND : rc;
}

int pieces_gather(struct gathered *gathered, MDB_cursor *cursor, MDB_val *value)
{
	size_t size = 0;
	uint32_t n = 0;
	struct key key;
	MDB_val piece = *value;
	int rc;

	/* Only the last piece is smaller. */
	if (value->mv_size < PIECE_BYTES)
		return 0;
	do {
		if (size + piece.mv_size > gathered->capacity) {
			size_t capacity = 2 * (size + piece.mv_size);
			uint8_t *bigger = realloc(gathered->bytes, capacity);

			if (!bigger)
				return ENOMEM;
			gathered->bytes = bigger;
			gathered->capacity = capacity;
		}
		memcpy(gathered->bytes + size, piece.mv_data, piece.mv_size);
		size += piece.mv_size;
		rc = pieces_step(cursor, MDB_NEXT, &key, &piece);
		if (!rc && key.piece && be32toh(key.piece) != ++n)
			return MDB_CORRUPTED;
	} while (!rc && key.piece);
	/* At the end of the table the cursor stays on the last piece. */
	if (!rc)
		rc = pieces_step(cursor, MDB_PREV, &key, &piece);
	*value = (MDB_val){ size, gathered->bytes };
	return rc == MDB_NOTFOUND ? 0 : rc;
}

int pieces_get(struct gathered *gathered, MDB_txn *txn, MDB_dbi table, struct key key,
	       MDB_val *value)
{
	MDB_cursor *cursor;
	struct key found;
	int rc = mdb_cursor_open(txn, table, &cursor);

	if (rc)
		return rc;
	rc = pieces_seek(cursor, key, &found, value);
	if (!rc && memcmp(&key, &found, sizeof(key)))
		rc = MDB_NOTFOUND;
	if (!rc)
		rc = pieces_gather(gathered, cursor, value);
	mdb_cursor_close(cursor);
	return rc;
}
