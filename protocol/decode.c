/* Decodes message bodies without copying or allocating, and prints them as JSON. */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decode.h"

static int malformed(char reason[DECODE_REASON], const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

static int malformed(char reason[DECODE_REASON], const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vsnprintf(reason, DECODE_REASON, fmt, args);
	va_end(args);
	return -EBADMSG;
}

static inline uint64_t big_endian(const uint8_t *at, unsigned int bytes)
{
	uint64_t number = 0;

	for (unsigned int i = 0; i < bytes; i++)
		number = number << 8 | at[i];
	return number;
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

/* Length of the UTF-8 sequence at `at`, 0 when it is not one. *point gets the code point. */
static unsigned int utf8_sequence(const uint8_t *at, const uint8_t *end, uint32_t *point)
{
	static const uint32_t smallest[] = { 0, 0, 0x80, 0x800, 0x10000 };
	unsigned int bytes;

	if (*at < 0x80) {
		*point = *at;
		return 1;
	}
	if (*at >= 0xc2 && *at < 0xe0)
		bytes = 2, *point = *at & 31;
	else if (*at >= 0xe0 && *at < 0xf0)
		bytes = 3, *point = *at & 15;
	else if (*at >= 0xf0 && *at < 0xf5)
		bytes = 4, *point = *at & 7;
	else
		return 0;
	if ((size_t)(end - at) < bytes)
		return 0;
	for (unsigned int i = 1; i < bytes; i++) {
		if ((at[i] & 0xc0) != 0x80)
			return 0;
		*point = *point << 6 | (at[i] & 63);
	}
	if (*point < smallest[bytes] || *point > 0x10ffff || (*point >= 0xd800 && *point < 0xe000))
		return 0;
	return bytes;
}

static bool utf8_valid(const uint8_t *at, size_t length)
{
	const uint8_t *end = at + length;
	uint64_t eight, bits = 0;
	uint32_t point;

	/* Nearly all texts are ASCII, and most are short. */
	if (length >= 8) {
		for (size_t i = 0; i + 8 <= length; i += 8) {
			memcpy(&eight, at + i, 8);
			bits |= eight;
		}
		memcpy(&eight, end - 8, 8);
		bits |= eight;
	} else {
		for (size_t i = 0; i < length; i++)
			bits |= at[i];
	}
	if (!(bits & 0x8080808080808080))
		return true;
	while (at < end) {
		unsigned int bytes = utf8_sequence(at, end, &point);

		if (!bytes)
			return false;
		at += bytes;
	}
	return true;
}

/* Reads the head of a value with all that can be checked there: the bytes of a text, bin or ext,
 * and that a count does not exceed what remains. *at moves on as with decode_item. */
static inline int check_item(const uint8_t **at, const uint8_t *end, struct item *out,
			     char reason[DECODE_REASON])
{
	unsigned int head;

	if (*at == end)
		return malformed(reason, "truncated");
	head = head_bytes(**at);
	if (!head)
		return malformed(reason, "byte c1 is no msgpack type");
	if ((size_t)(end - *at) < head)
		return malformed(reason, "truncated");
	*at = read_head(*at, out);
	if (has_content(out)) {
		if (out->length > (size_t)(end - *at))
			return malformed(reason, "truncated");
		if (out->kind == ITEM_TEXT && !utf8_valid(*at, out->length))
			return malformed(reason, "a text is not UTF-8");
		*at += out->length;
	} else if (children(out) > (size_t)(end - *at)) {
		return malformed(reason, "a count exceeds the bytes that remain");
	}
	return 0;
}

static inline int check_key(const uint8_t **at, const uint8_t *end, struct item *out,
			    char reason[DECODE_REASON])
{
	int err = check_item(at, end, out, reason);

	return !err && out->kind != ITEM_TEXT ? malformed(reason, "a key is not a text") : err;
}

/* Walks over what a container holds; depth containers are around it. */
static int check_content(const uint8_t **at, const uint8_t *end, const struct item *container,
			 unsigned int depth, char reason[DECODE_REASON])
{
	struct {
		uint64_t left;
		bool map;
	} levels[DECODE_MAX_DEPTH + 1];
	const unsigned int outside = depth;
	struct item item = *container;
	int err;

	for (;;) {
		if (is_container(&item)) {
			if (depth == DECODE_MAX_DEPTH)
				return malformed(reason, "nested deeper than %d", DECODE_MAX_DEPTH);
			levels[++depth].left = children(&item);
			levels[depth].map = item.kind == ITEM_MAP;
		}
		while (depth > outside && !levels[depth].left)
			depth--;
		if (depth == outside)
			return 0;
		if (levels[depth].map && !(levels[depth].left & 1))
			err = check_key(at, end, &item, reason);
		else
			err = check_item(at, end, &item, reason);
		if (err)
			return err;
		levels[depth].left--;
	}
}

/* Reads a value and walks over all of it. */
static inline int check_whole(const uint8_t **at, const uint8_t *end, struct item *out,
			      unsigned int depth, char reason[DECODE_REASON])
{
	int err = check_item(at, end, out, reason);

	return !err && is_container(out) ? check_content(at, end, out, depth, reason) : err;
}

static int check_length(size_t length, char reason[DECODE_REASON])
{
	return length > DECODE_MAX_LENGTH
		       ? malformed(reason, "longer than %u bytes", DECODE_MAX_LENGTH)
		       : 0;
}

int decode_check(const void *data, size_t length, char reason[DECODE_REASON])
{
	const uint8_t *at = data, *end = at + length;
	struct item item;
	int err = check_length(length, reason);

	if (!err)
		err = check_whole(&at, end, &item, 0, reason);
	if (!err && at != end)
		err = malformed(reason, "bytes after its end");
	return err;
}

const uint8_t *decode_item(const uint8_t *at, struct item *out)
{
	return read_item(at, out);
}

const uint8_t *decode_skip(const uint8_t *at)
{
	/* Bytes of a whole value with a type byte from c0 on; 0 = not fixed. */
	static const uint8_t bytes[32] = {
		1, 0, 1, 1, 0, 0, 0, 0,	 0,  0, 5, 9, 2, 3, 5, 9,
		2, 3, 5, 9, 3, 4, 6, 10, 18, 0, 0, 0, 0, 0, 0, 0,
	};
	struct item item;

	for (uint64_t left = 1; left; left--) {
		uint8_t type = *at;

		if (type < 0x80 || type >= 0xe0) {
			at++;
		} else if (type >= 0xa0 && type < 0xc0) {
			at += 1 + (type & 31);
		} else if (type >= 0xc0 && bytes[type - 0xc0]) {
			at += bytes[type - 0xc0];
		} else {
			at = read_item(at, &item);
			left += children(&item);
		}
	}
	return at;
}

struct cursor item_elements(const struct item *array_or_map)
{
	return (struct cursor){ array_or_map->data, array_or_map->length };
}

bool cursor_element(struct cursor *cursor, struct item *out)
{
	if (!cursor->left)
		return false;
	cursor->left--;

	const uint8_t *after = read_item(cursor->at, out);

	cursor->at = children(out) ? decode_skip(cursor->at) : after;
	return true;
}

bool cursor_pair(struct cursor *cursor, struct item *key, struct item *out)
{
	if (!cursor->left)
		return false;
	cursor->left--;

	const uint8_t *at = read_item(cursor->at, key);
	const uint8_t *after = read_item(at, out);

	cursor->at = children(out) ? decode_skip(at) : after;
	return true;
}

static inline bool text_is(const struct item *text, const char *string, size_t length)
{
	return text->length == length && (!length || *text->data == (uint8_t)*string) &&
	       !memcmp(text->data, string, length);
}

bool item_is(const struct item *text, const char *string)
{
	return text->kind == ITEM_TEXT && text_is(text, string, strlen(string));
}

void decode_field(const struct item *map, struct cursor *hint, const char *name, size_t length,
		  struct item *out)
{
	struct item key;

	for (uint32_t tries = map->length; tries; tries--) {
		if (!hint->left)
			*hint = item_elements(map);
		cursor_pair(hint, &key, out);
		if (text_is(&key, name, length))
			return;
	}
	out->kind = ITEM_ABSENT;
	out->length = 0;
}

/* Types */

static bool is_signed(const struct item *value)
{
	return value->kind == ITEM_NEGATIVE ||
	       (value->kind == ITEM_UINT && value->number <= INT64_MAX);
}

static bool elements_have_type(const struct item *array, enum field_type type);

static bool has_type(const struct item *value, enum field_type type)
{
	static const struct {
		const char *name;
		enum field_type type;
	} conflicts[] = {
		{ "txids", TYPE_HASHES },      { "fees", TYPE_INTS },	{ "vsizes", TYPE_UINTS },
		{ "entry_times", TYPE_UINTS }, { "after", TYPE_UINTS },
	};
	struct cursor pairs;
	struct item key, inner;

	if (value->kind == ITEM_NIL)
		return true;
	switch (type) {
	case TYPE_UINT:
		return value->kind == ITEM_UINT;
	case TYPE_INT:
	case TYPE_US_TO_NS:
		return is_signed(value);
	case TYPE_BOOL:
		return value->kind == ITEM_BOOL;
	case TYPE_HASH:
	case TYPE_ALIAS:
		return value->kind == ITEM_BYTES && value->length == 32;
	case TYPE_TEXT:
	case TYPE_NETWORK:
		return value->kind == ITEM_TEXT;
	case TYPE_PAYLOAD:
		return value->kind == ITEM_BYTES;
	case TYPE_SELECT: /* not published: like a key that nobody knows */
		return true;
	case TYPE_HASHES:
		return elements_have_type(value, TYPE_HASH);
	case TYPE_UINTS:
		return elements_have_type(value, TYPE_UINT);
	case TYPE_INTS:
		return elements_have_type(value, TYPE_INT);
	case TYPE_CONFLICTS:
		if (value->kind != ITEM_MAP)
			return false;
		pairs = item_elements(value);
		while (cursor_pair(&pairs, &key, &inner))
			for (size_t i = 0; i < sizeof(conflicts) / sizeof(conflicts[0]); i++)
				if (item_is(&key, conflicts[i].name) &&
				    !has_type(&inner, conflicts[i].type))
					return false;
		return true;
	}
	return true;
}

static bool elements_have_type(const struct item *array, enum field_type type)
{
	struct cursor elements;
	struct item element;

	if (array->kind != ITEM_ARRAY)
		return false;
	elements = item_elements(array);
	while (cursor_element(&elements, &element))
		if (!has_type(&element, type))
			return false;
	return true;
}

/* text_is without a call: names are short, and mostly the first one tried is the right one. */
static inline bool is_named(const struct item *key, const char *name)
{
	uint32_t i = 0;

	while (i < key->length && name[i] && (uint8_t)name[i] == key->data[i])
		i++;
	return i == key->length && !name[i];
}

/* Keys come in the catalogue's order, so the search begins after the last one found. */
static unsigned int find_field(const struct event_desc *desc, unsigned int start,
			       const struct item *key)
{
	for (unsigned int tries = 0; tries < desc->n_fields; tries++) {
		unsigned int i = start + tries;

		if (i >= desc->n_fields)
			i -= desc->n_fields;

		if (is_named(key, desc->fields[i].name))
			return i;
	}
	return desc->n_fields;
}

/* Walks over one event, two containers deep in its body. */
static int check_event(const uint8_t **at, const uint8_t *end, const struct event_desc *desc,
		       char reason[DECODE_REASON])
{
	struct item event, key, value;
	unsigned int expected = 0, seen = 0;
	bool timed = false;
	int err = check_item(at, end, &event, reason);

	_Static_assert(MAX_FIELDS <= 8 * sizeof(seen), "a bit for each field");
	if (err)
		return err;
	if (event.kind != ITEM_MAP)
		return malformed(reason, "events: an element is not a map");
	for (uint32_t left = event.length; left; left--) {
		err = check_key(at, end, &key, reason);
		if (!err)
			err = check_whole(at, end, &value, 3, reason);
		if (err)
			return err;
		if (text_is(&key, "time_us", 7)) {
			if (value.kind != ITEM_UINT || timed)
				return malformed(reason, "time_us: not one unsigned integer");
			timed = true;
			continue;
		}
		if (!desc)
			continue;

		unsigned int i = find_field(desc, expected, &key);

		if (i == desc->n_fields)
			continue;
		if (!has_type(&value, desc->fields[i].type))
			return malformed(reason, "%s: not of type %s", desc->fields[i].name,
					 field_type_name(desc->fields[i].type));
		if (seen & 1u << i)
			return malformed(reason, "%s: told twice", desc->fields[i].name);
		seen |= 1u << i;
		expected = i + 1;
	}
	return timed ? 0 : malformed(reason, "time_us: missing");
}

static int check_events(const uint8_t **at, const uint8_t *end, const struct item *events,
			const struct event_desc *desc, char reason[DECODE_REASON])
{
	int err = 0;

	for (uint32_t left = events->length; left && !err; left--)
		err = check_event(at, end, desc, reason);
	return err;
}

/* Bodies */

#define KEY(name, kind, optional)                      \
	{                                              \
		name, sizeof(name) - 1, kind, optional \
	}

struct body_key {
	const char *name;
	size_t length;
	enum item_kind kind;
	bool optional;
};

/* Walks over a body. The values of known keys get into values, in the order of the table; absent
 * ones have ITEM_ABSENT. The elements of the array at events_key are checked as events. */
static int read_body(const void *data, size_t length, const struct body_key *keys, size_t n_keys,
		     size_t events_key, const struct event_desc *desc, struct item *values,
		     struct item *map, char reason[DECODE_REASON])
{
	static const char *const kinds[] = {
		[ITEM_UINT] = "an unsigned integer",
		[ITEM_TEXT] = "a text",
		[ITEM_ARRAY] = "an array",
		[ITEM_MAP] = "a map",
	};
	const uint8_t *at = data, *end = at + length;
	struct item key, value;
	int err = check_length(length, reason);

	if (!err)
		err = check_item(&at, end, map, reason);
	if (err)
		return err;
	if (map->kind != ITEM_MAP)
		return malformed(reason, "not a map");
	for (size_t i = 0; i < n_keys; i++)
		values[i].kind = ITEM_ABSENT;

	for (uint32_t left = map->length; left; left--) {
		size_t i = 0;

		err = check_key(&at, end, &key, reason);
		if (!err)
			err = check_item(&at, end, &value, reason);
		if (err)
			return err;
		while (i < n_keys && !text_is(&key, keys[i].name, keys[i].length))
			i++;
		if (i < n_keys) {
			if (values[i].kind != ITEM_ABSENT)
				return malformed(reason, "%s: told twice", keys[i].name);
			if (value.kind != keys[i].kind)
				return malformed(reason, "%s: not %s", keys[i].name,
						 kinds[keys[i].kind]);
			values[i] = value;
			/* Of another version nothing else is certain. */
			if (!i && value.number != WIRE_VERSION)
				return malformed(reason, "v: version %llu is not understood",
						 (unsigned long long)value.number);
		}
		if (i < n_keys && i == events_key)
			err = check_events(&at, end, &value, desc, reason);
		else if (is_container(&value))
			err = check_content(&at, end, &value, 1, reason);
		if (err)
			return err;
	}
	if (at != end)
		return malformed(reason, "bytes after its end");
	for (size_t i = 0; i < n_keys; i++)
		if (values[i].kind == ITEM_ABSENT && !keys[i].optional)
			return malformed(reason, "%s: missing", keys[i].name);
	return 0;
}

static bool is_label(const struct item *text)
{
	if (!text->length || text->length > DECODE_MAX_LABEL)
		return false;
	for (uint32_t i = 0; i < text->length; i++) {
		uint8_t c = text->data[i];

		if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
		      c == '_' || c == '-'))
			return false;
	}
	return true;
}

int decode_message(const void *data, size_t length, const struct event_desc *desc,
		   struct message_body *out, char reason[DECODE_REASON])
{
	enum { V, NODE, RUN, PID, N, SEQ, LOST, EVENTS, N_KEYS };
	static const struct body_key keys[N_KEYS] = {
		[V] = KEY("v", ITEM_UINT, false),      [NODE] = KEY("node", ITEM_TEXT, false),
		[RUN] = KEY("run", ITEM_UINT, false),  [PID] = KEY("pid", ITEM_UINT, false),
		[N] = KEY("n", ITEM_UINT, false),      [SEQ] = KEY("seq", ITEM_UINT, false),
		[LOST] = KEY("lost", ITEM_UINT, true), [EVENTS] = KEY("events", ITEM_ARRAY, false),
	};
	struct item values[N_KEYS], map;
	uint64_t end;
	int err = read_body(data, length, keys, N_KEYS, EVENTS, desc, values, &map, reason);

	if (err)
		return err;
	if (!is_label(&values[NODE]))
		return malformed(reason, "node: not a label");
	out->node = (const char *)values[NODE].data;
	out->node_length = values[NODE].length;
	out->run = values[RUN].number;
	out->pid = values[PID].number;
	out->n = values[N].number;
	out->seq = values[SEQ].number;
	out->lost = values[LOST].kind == ITEM_ABSENT ? 0 : values[LOST].number;
	out->events = item_elements(&values[EVENTS]);
	if (!out->seq)
		return malformed(reason, "seq: 0, the first number is 1");
	if (!out->lost && !out->events.left)
		return malformed(reason, "neither events nor a loss");
	if (__builtin_add_overflow(out->seq, out->lost, &out->next) ||
	    __builtin_add_overflow(out->next, out->events.left, &out->next))
		return malformed(reason, "seq: numbers end beyond 64 bits");
	if (__builtin_add_overflow(out->n, out->events.left, &end))
		return malformed(reason, "n: positions end beyond 64 bits");
	return 0;
}

int decode_status(const void *data, size_t length, struct status_body *out,
		  char reason[DECODE_REASON])
{
	enum { V, NODE, RUN, SOCKET, TIME_US, N, HEADS, HELD, COUNTERS, REPLAY, N_KEYS };
	static const struct body_key keys[N_KEYS] = {
		[V] = KEY("v", ITEM_UINT, false),
		[NODE] = KEY("node", ITEM_TEXT, false),
		[RUN] = KEY("run", ITEM_UINT, false),
		[SOCKET] = KEY("socket", ITEM_TEXT, false),
		[TIME_US] = KEY("time_us", ITEM_UINT, false),
		[N] = KEY("n", ITEM_UINT, false),
		[HEADS] = KEY("heads", ITEM_MAP, false),
		[HELD] = KEY("held", ITEM_UINT, true),
		[COUNTERS] = KEY("counters", ITEM_MAP, true),
		[REPLAY] = KEY("replay", ITEM_TEXT, true),
	};
	struct item values[N_KEYS], key, head;
	struct cursor heads;
	int err = read_body(data, length, keys, N_KEYS, N_KEYS, NULL, values, &out->map, reason);

	if (err)
		return err;
	if (!is_label(&values[NODE]))
		return malformed(reason, "node: not a label");
	if (item_is(&values[SOCKET], socket_name(SOCKET_LOW)))
		out->socket = SOCKET_LOW;
	else if (item_is(&values[SOCKET], socket_name(SOCKET_HIGH)))
		out->socket = SOCKET_HIGH;
	else
		return malformed(reason, "socket: neither low nor high");
	out->node = (const char *)values[NODE].data;
	out->node_length = values[NODE].length;
	out->run = values[RUN].number;
	out->time_us = values[TIME_US].number;
	out->n = values[N].number;
	out->heads = item_elements(&values[HEADS]);
	heads = out->heads;
	while (cursor_pair(&heads, &key, &head))
		if (head.kind != ITEM_UINT || head.number == UINT64_MAX)
			return malformed(reason, "heads: not all are unsigned integers");
	return 0;
}

/* JSON */

static bool json_room(struct json *json, size_t bytes)
{
	if (json->failed)
		return false;
	if (json->size - json->length >= bytes)
		return true;

	size_t size = json->size ? json->size : 1024;

	while (size - json->length < bytes)
		size *= 2;

	char *data = realloc(json->data, size);

	if (!data) {
		json->failed = true;
		return false;
	}
	json->data = data;
	json->size = size;
	return true;
}

void json_append(struct json *json, const char *text, size_t length)
{
	if (!length || !json_room(json, length))
		return;
	memcpy(json->data + json->length, text, length);
	json->length += length;
}

void json_free(struct json *json)
{
	free(json->data);
	*json = (struct json){ 0 };
}

void json_raw(struct json *json, const char *text)
{
	json_append(json, text, strlen(text));
}

/* Control characters, line and paragraph separators, and marks that reorder text on a screen. */
static bool is_unsafe(uint32_t point)
{
	return point < 0x20 || (point >= 0x7f && point < 0xa0) || point == 0x200e ||
	       point == 0x200f || (point >= 0x2028 && point <= 0x202e) ||
	       (point >= 0x2066 && point <= 0x2069);
}

void json_text(struct json *json, const char *text, size_t length)
{
	static const char hex[] = "0123456789abcdef";
	const uint8_t *at = (const uint8_t *)(length ? text : ""), *end = at + length;

	/* No byte grows to more than the six of an escape. */
	if (length > (SIZE_MAX - 2) / 6 || !json_room(json, 6 * length + 2))
		return;

	char *to = json->data + json->length;

	*to++ = '"';
	while (at < end) {
		uint32_t point;
		unsigned int bytes;

		while (at < end && *at >= 0x20 && *at < 0x7f && *at != '"' && *at != '\\')
			*to++ = (char)*at++;
		if (at == end)
			break;
		bytes = utf8_sequence(at, end, &point);
		if (!bytes) {
			memcpy(to, "\xef\xbf\xbd", 3);
			to += 3;
			at++;
			continue;
		}
		if (point == '"' || point == '\\') {
			*to++ = '\\';
			*to++ = (char)point;
		} else if (is_unsafe(point)) {
			*to++ = '\\';
			if (point == '\n') {
				*to++ = 'n';
			} else if (point == '\r') {
				*to++ = 'r';
			} else if (point == '\t') {
				*to++ = 't';
			} else {
				*to++ = 'u';
				for (int shift = 12; shift >= 0; shift -= 4)
					*to++ = hex[point >> shift & 15];
			}
		} else {
			memcpy(to, at, bytes);
			to += bytes;
		}
		at += bytes;
	}
	*to++ = '"';
	json->length = (size_t)(to - json->data);
}

void json_uint(struct json *json, uint64_t number)
{
	char digits[20];
	size_t first = sizeof(digits);

	do {
		digits[--first] = (char)('0' + number % 10);
		number /= 10;
	} while (number);
	json_append(json, digits + first, sizeof(digits) - first);
}

static void json_hex(struct json *json, const uint8_t *bytes, size_t length)
{
	static const char hex[] = "0123456789abcdef";

	if (!json_room(json, 2 * length + 2))
		return;

	char *to = json->data + json->length;

	*to++ = '"';
	for (size_t i = 0; i < length; i++) {
		*to++ = hex[bytes[i] >> 4];
		*to++ = hex[bytes[i] & 15];
	}
	*to++ = '"';
	json->length = (size_t)(to - json->data);
}

static void json_real(struct json *json, double real)
{
	char digits[32];

	if (!isfinite(real)) {
		json_raw(json, "null");
		return;
	}
	snprintf(digits, sizeof(digits), "%.17g", real);
	json_raw(json, digits);
}

void json_item(struct json *json, const struct item *value)
{
	struct cursor cursor;
	struct item key, inner;
	const char *separator = "";

	switch (value->kind) {
	case ITEM_BOOL:
		json_raw(json, value->truth ? "true" : "false");
		return;
	case ITEM_UINT:
		json_uint(json, value->number);
		return;
	case ITEM_NEGATIVE:
		json_append(json, "-", 1);
		json_uint(json, -(uint64_t)value->negative);
		return;
	case ITEM_FLOAT:
		json_real(json, value->real);
		return;
	case ITEM_TEXT:
		json_text(json, (const char *)value->data, value->length);
		return;
	case ITEM_BYTES:
	case ITEM_EXT:
		json_hex(json, value->data, value->length);
		return;
	case ITEM_ARRAY:
		json_append(json, "[", 1);
		cursor = item_elements(value);
		while (cursor_element(&cursor, &inner)) {
			json_raw(json, separator);
			json_item(json, &inner);
			separator = ",";
		}
		json_append(json, "]", 1);
		return;
	case ITEM_MAP:
		json_append(json, "{", 1);
		cursor = item_elements(value);
		while (cursor_pair(&cursor, &key, &inner)) {
			json_raw(json, separator);
			json_item(json, &key);
			json_append(json, ":", 1);
			json_item(json, &inner);
			separator = ",";
		}
		json_append(json, "}", 1);
		return;
	case ITEM_ABSENT:
	case ITEM_NIL:
		json_raw(json, "null");
		return;
	}
}

static void json_pairs(struct json *json, const struct item *map, const char *except)
{
	struct cursor pairs = item_elements(map);
	struct item key, value;

	while (cursor_pair(&pairs, &key, &value)) {
		if (except && item_is(&key, except))
			continue;
		json_append(json, ",", 1);
		json_item(json, &key);
		json_append(json, ":", 1);
		json_item(json, &value);
	}
}

void json_event(struct json *json, const char *topic, size_t topic_length,
		const struct message_body *message, uint64_t index, const struct item *event)
{
	struct cursor hint = item_elements(event);
	struct item time_us;

	decode_field(event, &hint, "time_us", 7, &time_us);
	json_raw(json, "{\"topic\":");
	json_text(json, topic, topic_length);
	json_raw(json, ",\"node\":");
	json_text(json, message->node, message->node_length);
	json_raw(json, ",\"run\":");
	json_uint(json, message->run);
	json_raw(json, ",\"seq\":");
	json_uint(json, message->seq + message->lost + index);
	json_raw(json, ",\"n\":");
	json_uint(json, message->n + index);
	json_raw(json, ",\"pid\":");
	json_uint(json, message->pid);
	json_raw(json, ",\"time_us\":");
	json_item(json, &time_us);
	json_pairs(json, event, "time_us");
	json_append(json, "}", 1);
}

void json_map(struct json *json, const char *topic, size_t topic_length, const struct item *map)
{
	json_raw(json, "{\"topic\":");
	json_text(json, topic, topic_length);
	json_pairs(json, map, NULL);
	json_append(json, "}", 1);
}
