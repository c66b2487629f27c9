/* Reading one msgpack value, inline: the innermost part of decode.c and json.c. */
#ifndef CORETAP_ITEM_H
#define CORETAP_ITEM_H

#include <endian.h>
#include <string.h>

#include "decode.h"

/* Loads of constant size: the compiler makes one instruction of each, not of a loop over bytes. */
static inline uint64_t big_endian(const uint8_t *at, unsigned int bytes)
{
	uint64_t eight;
	uint32_t four;
	uint16_t two;

	if (bytes == 8) {
		memcpy(&eight, at, 8);
		return be64toh(eight);
	}
	if (bytes == 4) {
		memcpy(&four, at, 4);
		return be32toh(four);
	}
	memcpy(&two, at, 2);
	return be16toh(two);
}

static inline void set_signed(struct item *out, int64_t number)
{
	if (number < 0) {
		out->kind = ITEM_NEGATIVE;
		out->negative = number;
	} else {
		out->kind = ITEM_UINT;
		out->number = (uint64_t)number;
	}
}

static inline const uint8_t *set_block(struct item *out, enum item_kind kind, const uint8_t *at,
				       uint64_t length)
{
	out->kind = kind;
	out->length = (uint32_t)length;
	out->data = at;
	return at;
}

/* Bytes that stand before the content: the type byte, and the number or length after it. For ext
 * also its type. 0 for the one byte that msgpack does not use. */
#define MAX_HEAD_BYTES 9
static inline unsigned int head_bytes(uint8_t type)
{
	static const uint8_t bytes[32] = {
		1, 0, 1, 1, 2, 3, 5, 3, 4, 6, 5, 9, 2, 3, 5, 9, /* c0 nil to cf uint 64 */
		2, 3, 5, 9, 2, 2, 2, 2, 2, 2, 3, 5, 3, 5, 3, 5, /* d0 int 8 to df map 32 */
	};

	return type < 0xc0 || type >= 0xe0 ? 1 : bytes[type - 0xc0];
}

/* Reads the head only; returns where the content begins. */
static inline const uint8_t *read_head(const uint8_t *at, struct item *out)
{
	uint8_t type = *at++;
	float single;
	uint32_t bits;
	uint64_t wide;

	if (type < 0x80) {
		out->kind = ITEM_UINT;
		out->number = type;
		return at;
	}
	if (type < 0x90)
		return set_block(out, ITEM_MAP, at, type & 15);
	if (type < 0xa0)
		return set_block(out, ITEM_ARRAY, at, type & 15);
	if (type < 0xc0)
		return set_block(out, ITEM_TEXT, at, type & 31);
	if (type >= 0xe0) {
		set_signed(out, (int8_t)type);
		return at;
	}
	switch (type) {
	case 0xc2:
	case 0xc3:
		out->kind = ITEM_BOOL;
		out->truth = type & 1;
		return at;
	case 0xc4:
		return set_block(out, ITEM_BYTES, at + 1, at[0]);
	case 0xc5:
		return set_block(out, ITEM_BYTES, at + 2, big_endian(at, 2));
	case 0xc6:
		return set_block(out, ITEM_BYTES, at + 4, big_endian(at, 4));
	case 0xc7:
		return set_block(out, ITEM_EXT, at + 2, at[0]);
	case 0xc8:
		return set_block(out, ITEM_EXT, at + 3, big_endian(at, 2));
	case 0xc9:
		return set_block(out, ITEM_EXT, at + 5, big_endian(at, 4));
	case 0xca:
		bits = (uint32_t)big_endian(at, 4);
		memcpy(&single, &bits, sizeof(single));
		out->kind = ITEM_FLOAT;
		out->real = (double)single;
		return at + 4;
	case 0xcb:
		wide = big_endian(at, 8);
		out->kind = ITEM_FLOAT;
		memcpy(&out->real, &wide, sizeof(out->real));
		return at + 8;
	case 0xcc:
		out->kind = ITEM_UINT;
		out->number = at[0];
		return at + 1;
	case 0xcd:
		out->kind = ITEM_UINT;
		out->number = big_endian(at, 2);
		return at + 2;
	case 0xce:
		out->kind = ITEM_UINT;
		out->number = big_endian(at, 4);
		return at + 4;
	case 0xcf:
		out->kind = ITEM_UINT;
		out->number = big_endian(at, 8);
		return at + 8;
	case 0xd0:
		set_signed(out, (int8_t)at[0]);
		return at + 1;
	case 0xd1:
		set_signed(out, (int16_t)big_endian(at, 2));
		return at + 2;
	case 0xd2:
		set_signed(out, (int32_t)big_endian(at, 4));
		return at + 4;
	case 0xd3:
		set_signed(out, (int64_t)big_endian(at, 8));
		return at + 8;
	case 0xd4:
	case 0xd5:
	case 0xd6:
	case 0xd7:
	case 0xd8:
		return set_block(out, ITEM_EXT, at + 1, 1u << (type - 0xd4));
	case 0xd9:
		return set_block(out, ITEM_TEXT, at + 1, at[0]);
	case 0xda:
		return set_block(out, ITEM_TEXT, at + 2, big_endian(at, 2));
	case 0xdb:
		return set_block(out, ITEM_TEXT, at + 4, big_endian(at, 4));
	case 0xdc:
		return set_block(out, ITEM_ARRAY, at + 2, big_endian(at, 2));
	case 0xdd:
		return set_block(out, ITEM_ARRAY, at + 4, big_endian(at, 4));
	case 0xde:
		return set_block(out, ITEM_MAP, at + 2, big_endian(at, 2));
	case 0xdf:
		return set_block(out, ITEM_MAP, at + 4, big_endian(at, 4));
	default: /* nil, and c1, which the walk has refused */
		out->kind = ITEM_NIL;
		return at;
	}
}

static inline bool has_content(const struct item *value)
{
	return value->kind == ITEM_TEXT || value->kind == ITEM_BYTES || value->kind == ITEM_EXT;
}

static inline const uint8_t *read_item(const uint8_t *at, struct item *out)
{
	at = read_head(at, out);
	return has_content(out) ? at + out->length : at;
}

static inline bool is_container(const struct item *item)
{
	return item->kind == ITEM_ARRAY || item->kind == ITEM_MAP;
}

static inline uint64_t children(const struct item *value)
{
	if (value->kind == ITEM_MAP)
		return 2 * (uint64_t)value->length;
	return value->kind == ITEM_ARRAY ? value->length : 0;
}

#endif
