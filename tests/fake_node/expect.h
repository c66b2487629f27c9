/*
 * What a subscriber must see of one firing, as a JSON line on stdout:
 * {"probe":"mempool:removed","expect":{"txid":"…","reason":null,…}}
 * Hashes are hex in display order, data is hex as it lies in memory, null is what cannot be read.
 */
#ifndef FAKE_NODE_EXPECT_H
#define FAKE_NODE_EXPECT_H

#include <stdbool.h>
#include <stdint.h>

struct expect {
	unsigned int fields; /* printed so far */
};

struct expect expect_begin(const char *probe);
void expect_null(struct expect *expect, const char *field);
void expect_int(struct expect *expect, const char *field, int64_t value);
void expect_uint(struct expect *expect, const char *field, uint64_t value);
void expect_bool(struct expect *expect, const char *field, bool value);

/* A NULL pointer stands for null; text must be valid UTF-8. */
void expect_hash(struct expect *expect, const char *field, const uint8_t *hash);
void expect_text(struct expect *expect, const char *field, const char *text);
void expect_data(struct expect *expect, const char *field, const uint8_t *data, uint64_t size);

/* paged_out: what was read had really been evicted from memory. */
void expect_end(bool paged_out);

#endif
