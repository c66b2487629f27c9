/* Checks message bodies and reads them, without copying or allocating. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "decode.h"
#include "item.h"

static void give_reason(char reason[DECODE_REASON], const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

static void give_reason(char reason[DECODE_REASON], const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vsnprintf(reason, DECODE_REASON, fmt, args);
	va_end(args);
}

/* So that whoever reads the code, an analyzer too, sees that it is never 0. */
#define malformed(...) (give_reason(__VA_ARGS__), -EBADMSG)

unsigned int decode_utf8(const uint8_t *at, const uint8_t *end, uint32_t *point)
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
		unsigned int bytes = decode_utf8(at, end, &point);

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
	if (*at == end)
		return malformed(reason, "truncated");
	if (**at == 0xc1)
		return malformed(reason, "byte c1 is no msgpack type");
	if (end - *at < MAX_HEAD_BYTES && (unsigned int)(end - *at) < head_bytes(**at))
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
		/* Those from outside + 1 to depth are set. */
		/* cppcheck-suppress uninitvar */
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
		if (cursor_pair(hint, &key, out) && text_is(&key, name, length))
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

/* Steps over a key when it is this one. */
static inline bool step_key(const uint8_t **at, const uint8_t *end, const char *name)
{
	const uint8_t *key = *at;
	uint32_t length = key < end ? *key - 0xa0u : 32, i = 0;

	if (length >= 32 || length >= (size_t)(end - key))
		return false;
	key++;
	while (i < length && name[i] && (uint8_t)name[i] == key[i])
		i++;
	if (i < length || name[i])
		return false;
	*at = key + length;
	return true;
}

static inline int check_field(const struct item *value, const struct event_desc *desc,
			      unsigned int i, unsigned int *seen, char reason[DECODE_REASON])
{
	if (!has_type(value, desc->fields[i].type))
		return malformed(reason, "%s: not of type %s", desc->fields[i].name,
				 field_type_name(desc->fields[i].type));
	if (*seen & 1u << i)
		return malformed(reason, "%s: told twice", desc->fields[i].name);
	*seen |= 1u << i;
	return 0;
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
		/* Nearly always the keys come in the catalogue's order: then there is nothing to
		 * search, and nothing to check of a key that is byte for byte the expected one. */
		bool known = timed && desc && expected < desc->n_fields &&
			     step_key(at, end, desc->fields[expected].name);

		err = known ? 0 : check_key(at, end, &key, reason);
		if (!err)
			err = check_whole(at, end, &value, 3, reason);
		if (err)
			return err;
		if (!known && text_is(&key, "time_us", 7)) {
			if (value.kind != ITEM_UINT || timed)
				return malformed(reason, "time_us: not one unsigned integer");
			timed = true;
			continue;
		}
		if (!desc)
			continue;

		unsigned int i = known ? expected : find_field(desc, expected, &key);

		if (i == desc->n_fields)
			continue;
		err = check_field(&value, desc, i, &seen, reason);
		if (err)
			return err;
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
	if (!out->run)
		return malformed(reason, "run: 0 names none");
	if (!out->seq)
		return malformed(reason, "seq: 0, the first number is 1");
	if (!out->n)
		return malformed(reason, "n: 0, the first position is 1");
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
	if (!out->run)
		return malformed(reason, "run: 0 names none");
	heads = out->heads;
	while (cursor_pair(&heads, &key, &head))
		if (head.kind != ITEM_UINT || head.number == UINT64_MAX)
			return malformed(reason, "heads: not all are unsigned integers");
	return 0;
}
