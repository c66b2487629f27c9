/* The decoder against tables of bytes. Each input stands right before a page that cannot be read,
 * is cut at each length, and is damaged at each byte; msgpack-c is the independent witness. */
#include "../../protocol/json.h"

#include <errno.h>
#include <inttypes.h>
#include <msgpack.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int failures;

__attribute__((format(printf, 1, 2))) static void fail(const char *fmt, ...)
{
	va_list args;

	printf("FAIL ");
	va_start(args, fmt);
	vprintf(fmt, args);
	va_end(args);
	putchar('\n');
	failures++;
}

/* Memory that ends where reading faults. */
static const size_t guarded_size = 1 << 20;
static uint8_t *guarded_end;

static void guard_open(void)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	uint8_t *at = mmap(NULL, guarded_size + page, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED || mprotect(at + guarded_size, page, PROT_NONE))
		exit(77);
	guarded_end = at + guarded_size;
}

static const uint8_t *guarded(const void *data, size_t length)
{
	return memcpy(guarded_end - length, data, length);
}

static const struct event_desc *removed_desc(void)
{
	return catalogue_find("mempool.removed", 15);
}

/* Reads everything that an accepted message has. */
static void read_all(const struct message_body *message)
{
	struct cursor events = message->events;
	struct item event, field;
	struct json json = { 0 };

	for (uint64_t i = 0; cursor_element(&events, &event); i++) {
		struct cursor hint = item_elements(&event);

		decode_field(&event, &hint, "txid", 4, &field);
		decode_field(&event, &hint, "absent", 6, &field);
		json_event(&json, "t.t", 3, message, i, &event);
	}
	json_free(&json);
}

/* What is accepted must be readable, what is refused must say why; neither may fault. */
static int try_message(const void *data, size_t length, const struct event_desc *desc)
{
	char reason[DECODE_REASON] = "";
	struct message_body message;
	const uint8_t *at = guarded(data, length);
	int err = decode_message(at, length, desc, &message, reason);

	if (!err)
		read_all(&message);
	else if (err != -EBADMSG || !*reason)
		fail("decode_message: %d \"%s\"", err, reason);
	return err;
}

static void cut_and_damage(const void *data, size_t length, const struct event_desc *desc)
{
	static const uint8_t bytes[] = { 0x00, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0,
					 0xc1, 0xc4, 0xc6, 0xc9, 0xca, 0xcb, 0xcf, 0xd3, 0xd4,
					 0xd8, 0xd9, 0xdb, 0xdc, 0xdd, 0xde, 0xdf, 0xe0, 0xff };
	uint8_t *copy = malloc(length);

	for (size_t cut = 0; cut < length; cut++)
		if (!try_message(data, cut, desc))
			fail("accepted although cut to %zu of %zu bytes", cut, length);
	for (size_t i = 0; i < length; i++)
		for (size_t j = 0; j < sizeof(bytes); j++) {
			memcpy(copy, data, length);
			copy[i] = bytes[j];
			try_message(copy, length, desc);
		}
	free(copy);
}

/* JSON by way of msgpack-c. */
static void witness(struct json *json, const msgpack_object *object)
{
	static const char hex[] = "0123456789abcdef";
	char text[64];

	switch (object->type) {
	case MSGPACK_OBJECT_BOOLEAN:
		json_raw(json, object->via.boolean ? "true" : "false");
		return;
	case MSGPACK_OBJECT_POSITIVE_INTEGER:
		snprintf(text, sizeof(text), "%" PRIu64, object->via.u64);
		json_raw(json, text);
		return;
	case MSGPACK_OBJECT_NEGATIVE_INTEGER:
		snprintf(text, sizeof(text), "%" PRId64, object->via.i64);
		json_raw(json, text);
		return;
	case MSGPACK_OBJECT_FLOAT32:
	case MSGPACK_OBJECT_FLOAT64:
		snprintf(text, sizeof(text), "%.17g", object->via.f64);
		json_raw(json, text);
		return;
	case MSGPACK_OBJECT_STR:
		json_text(json, object->via.str.ptr, object->via.str.size);
		return;
	case MSGPACK_OBJECT_BIN:
		json_raw(json, "\"");
		for (uint32_t i = 0; i < object->via.bin.size; i++) {
			json_append(json, &hex[(uint8_t)object->via.bin.ptr[i] >> 4], 1);
			json_append(json, &hex[object->via.bin.ptr[i] & 15], 1);
		}
		json_raw(json, "\"");
		return;
	case MSGPACK_OBJECT_ARRAY:
		json_raw(json, "[");
		for (uint32_t i = 0; i < object->via.array.size; i++) {
			json_raw(json, i ? "," : "");
			witness(json, &object->via.array.ptr[i]);
		}
		json_raw(json, "]");
		return;
	case MSGPACK_OBJECT_MAP:
		json_raw(json, "{");
		for (uint32_t i = 0; i < object->via.map.size; i++) {
			json_raw(json, i ? "," : "");
			witness(json, &object->via.map.ptr[i].key);
			json_raw(json, ":");
			witness(json, &object->via.map.ptr[i].val);
		}
		json_raw(json, "}");
		return;
	default:
		json_raw(json, "null");
	}
}

static void test_values(void)
{
#define BYTES(...) (const uint8_t[]){ __VA_ARGS__ }, sizeof((const uint8_t[]){ __VA_ARGS__ })
	const struct {
		const uint8_t *bytes;
		size_t length;
		const char *json;
	} table[] = {
		{ BYTES(0x00), "0" },
		{ BYTES(0x7f), "127" },
		{ BYTES(0xcc, 0x05), "5" },
		{ BYTES(0xcc, 0xff), "255" },
		{ BYTES(0xcd, 0x00, 0x05), "5" },
		{ BYTES(0xcd, 0xff, 0xff), "65535" },
		{ BYTES(0xce, 0, 0, 0, 5), "5" },
		{ BYTES(0xce, 0xff, 0xff, 0xff, 0xff), "4294967295" },
		{ BYTES(0xcf, 0, 0, 0, 0, 0, 0, 0, 5), "5" },
		{ BYTES(0xcf, 0, 0x1f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff), "9007199254740991" },
		{ BYTES(0xcf, 0, 0x20, 0, 0, 0, 0, 0, 0), "9007199254740992" },
		{ BYTES(0xcf, 0, 0x20, 0, 0, 0, 0, 0, 1), "9007199254740993" },
		{ BYTES(0xcf, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff),
		  "9223372036854775807" },
		{ BYTES(0xcf, 0x80, 0, 0, 0, 0, 0, 0, 0), "9223372036854775808" },
		{ BYTES(0xcf, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff),
		  "18446744073709551615" },
		{ BYTES(0xff), "-1" },
		{ BYTES(0xe0), "-32" },
		{ BYTES(0xd0, 0x05), "5" },
		{ BYTES(0xd0, 0x80), "-128" },
		{ BYTES(0xd0, 0xff), "-1" },
		{ BYTES(0xd1, 0x80, 0x00), "-32768" },
		{ BYTES(0xd1, 0x00, 0x07), "7" },
		{ BYTES(0xd2, 0x80, 0, 0, 0), "-2147483648" },
		{ BYTES(0xd3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff), "-1" },
		{ BYTES(0xd3, 0xff, 0xdf, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff),
		  "-9007199254740993" },
		{ BYTES(0xd3, 0x80, 0, 0, 0, 0, 0, 0, 0), "-9223372036854775808" },
		{ BYTES(0xd3, 0, 0, 0, 0, 0, 0, 0, 9), "9" },
		{ BYTES(0xc0), "null" },
		{ BYTES(0xc2), "false" },
		{ BYTES(0xc3), "true" },
		{ BYTES(0xca, 0x3f, 0x80, 0, 0), "1" },
		{ BYTES(0xcb, 0x3f, 0xe0, 0, 0, 0, 0, 0, 0), "0.5" },
		{ BYTES(0xa0), "\"\"" },
		{ BYTES(0xa3, 'a', 'b', 'c'), "\"abc\"" },
		{ BYTES(0xd9, 3, 'a', '"', '\\'), "\"a\\\"\\\\\"" },
		{ BYTES(0xda, 0, 3, '\n', '\r', '\t'), "\"\\n\\r\\t\"" },
		{ BYTES(0xdb, 0, 0, 0, 3, 0, 0x1b, 0x7f), "\"\\u0000\\u001b\\u007f\"" },
		/* an accent, a sign of three bytes, one of four */
		{ BYTES(0xa2, 0xc3, 0xa9), "\"\xc3\xa9\"" },
		{ BYTES(0xa3, 0xe2, 0x82, 0xbf), "\"\xe2\x82\xbf\"" },
		{ BYTES(0xa4, 0xf0, 0x9f, 0x98, 0x80), "\"\xf0\x9f\x98\x80\"" },
		/* the other CSI, and marks that turn text around */
		{ BYTES(0xa2, 0xc2, 0x9b), "\"\\u009b\"" },
		{ BYTES(0xa3, 0xe2, 0x80, 0xae), "\"\\u202e\"" },
		{ BYTES(0xa3, 0xe2, 0x81, 0xa6), "\"\\u2066\"" },
		{ BYTES(0xc4, 0), "\"\"" },
		{ BYTES(0xc4, 3, 0x00, 0xab, 0xff), "\"00abff\"" },
		{ BYTES(0xc5, 0, 1, 0x0f), "\"0f\"" },
		{ BYTES(0xc6, 0, 0, 0, 1, 0xf0), "\"f0\"" },
		{ BYTES(0x90), "[]" },
		{ BYTES(0x93, 1, 0xff, 0xc0), "[1,-1,null]" },
		{ BYTES(0xdc, 0, 1, 0x91, 0x02), "[[2]]" },
		{ BYTES(0xdd, 0, 0, 0, 1, 0x90), "[[]]" },
		{ BYTES(0x80), "{}" },
		{ BYTES(0x82, 0xa1, 'a', 1, 0xa1, 'b', 0x91, 0x80), "{\"a\":1,\"b\":[{}]}" },
		{ BYTES(0xde, 0, 1, 0xa1, 'a', 1), "{\"a\":1}" },
		{ BYTES(0xdf, 0, 0, 0, 1, 0xa1, 'a', 1), "{\"a\":1}" },
	};

	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		char reason[DECODE_REASON] = "";
		const uint8_t *at = guarded(table[i].bytes, table[i].length);
		struct json json = { 0 }, other = { 0 };
		struct item item;
		msgpack_unpacked unpacked;
		size_t offset = 0;

		if (decode_check(at, table[i].length, reason)) {
			fail("%s: %s", table[i].json, reason);
			continue;
		}
		decode_item(at, &item);
		if (decode_skip(at) != at + table[i].length)
			fail("%s: decode_skip", table[i].json);
		json_item(&json, &item);
		if (json.length != strlen(table[i].json) ||
		    memcmp(json.data, table[i].json, json.length))
			fail("%s: got %.*s", table[i].json, (int)json.length, json.data);

		msgpack_unpacked_init(&unpacked);
		msgpack_unpack_next(&unpacked, (const char *)at, table[i].length, &offset);
		witness(&other, &unpacked.data);
		if (json.length != other.length || memcmp(json.data, other.data, json.length))
			fail("%s: msgpack-c has %.*s", table[i].json, (int)other.length,
			     other.data);
		msgpack_unpacked_destroy(&unpacked);

		for (size_t cut = 0; cut < table[i].length; cut++)
			if (!decode_check(guarded(table[i].bytes, cut), cut, reason))
				fail("%s: accepted although cut to %zu", table[i].json, cut);
		json_free(&json);
		json_free(&other);
	}
}

static void test_malformed_values(void)
{
	const struct {
		const uint8_t *bytes;
		size_t length;
		const char *reason;
	} table[] = {
		{ BYTES(0xc1), "byte c1" },
		{ BYTES(0x91, 0xc1), "byte c1" },
		{ BYTES(0x00, 0x00), "bytes after" },
		{ BYTES(0x91, 0x00, 0x00), "bytes after" },
		/* bombs: five bytes that claim gigabytes */
		{ BYTES(0xdd, 0xff, 0xff, 0xff, 0xff), "a count exceeds" },
		{ BYTES(0xdf, 0xff, 0xff, 0xff, 0xff), "a count exceeds" },
		{ BYTES(0xdf, 0x80, 0, 0, 0, 0, 0), "a count exceeds" },
		{ BYTES(0xdb, 0xff, 0xff, 0xff, 0xff), "truncated" },
		{ BYTES(0xc6, 0xff, 0xff, 0xff, 0xff), "truncated" },
		{ BYTES(0xc9, 0xff, 0xff, 0xff, 0xff, 1), "truncated" },
		{ BYTES(0xdc, 0xff, 0xff, 0, 0), "a count exceeds" },
		{ BYTES(0x82, 0xa1, 'a', 1), "a count exceeds" },
		{ BYTES(0x81, 0xa1, 'a', 0xcd, 0), "truncated" },
		{ BYTES(0x81, 1, 1), "a key is not a text" },
		{ BYTES(0x81, 0xc4, 1, 'a', 1), "a key is not a text" },
		{ BYTES(0x81, 0xc0, 1), "a key is not a text" },
		{ BYTES(0x81, 0x90, 1), "a key is not a text" },
		{ BYTES(0xa1, 0xff), "a text is not UTF-8" },
		{ BYTES(0xa1, 0xc3), "a text is not UTF-8" },
		{ BYTES(0xa2, 0xc0, 0x80), "a text is not UTF-8" },	  /* NUL in two bytes */
		{ BYTES(0xa3, 0xed, 0xa0, 0x80), "a text is not UTF-8" }, /* half a pair */
		{ BYTES(0xa3, 0xe0, 0x80, 0x80), "a text is not UTF-8" }, /* too long a form */
		{ BYTES(0xa4, 0xf4, 0x90, 0x80, 0x80), "a text is not UTF-8" }, /* too high */
		{ BYTES(0xa9, 'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 0x80),
		  "a text is not UTF-8" },
	};
	uint8_t deep[DECODE_MAX_DEPTH + 2];
	char reason[DECODE_REASON];

	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		const uint8_t *at = guarded(table[i].bytes, table[i].length);
		int err = decode_check(at, table[i].length, reason);

		if (err != -EBADMSG || strncmp(reason, table[i].reason, strlen(table[i].reason)))
			fail("malformed value %zu: %d \"%s\", not \"%s\"", i, err,
			     err ? reason : "", table[i].reason);
	}
	if (decode_check(guarded("", 0), 0, reason) != -EBADMSG || strcmp(reason, "truncated"))
		fail("empty body");

	/* Sixteen containers inside each other, then seventeen. */
	memset(deep, 0x91, sizeof(deep));
	deep[DECODE_MAX_DEPTH - 1] = 0x90;
	if (decode_check(guarded(deep, DECODE_MAX_DEPTH), DECODE_MAX_DEPTH, reason))
		fail("nesting of %d: %s", DECODE_MAX_DEPTH, reason);
	deep[DECODE_MAX_DEPTH - 1] = 0x91;
	deep[DECODE_MAX_DEPTH] = 0x90;
	if (decode_check(guarded(deep, DECODE_MAX_DEPTH + 1), DECODE_MAX_DEPTH + 1, reason) !=
		    -EBADMSG ||
	    strncmp(reason, "nested", 6))
		fail("nesting of %d accepted", DECODE_MAX_DEPTH + 1);

	/* A megabyte of nothing but openings. */
	memset(guarded_end - guarded_size, 0x91, guarded_size);
	if (decode_check(guarded_end - guarded_size, guarded_size, reason) != -EBADMSG)
		fail("endless nesting accepted");
	if (decode_check(guarded_end - 1, DECODE_MAX_LENGTH + 1, reason) != -EBADMSG ||
	    strncmp(reason, "longer", 6))
		fail("too long a body is walked");
}

/* Messages are packed by msgpack-c. */
struct packer {
	msgpack_sbuffer buffer;
	msgpack_packer packer;
};

static struct packer *pack_open(void)
{
	struct packer *p = calloc(1, sizeof(*p));

	msgpack_sbuffer_init(&p->buffer);
	msgpack_packer_init(&p->packer, &p->buffer, msgpack_sbuffer_write);
	return p;
}

static void pack_close(struct packer *p)
{
	msgpack_sbuffer_destroy(&p->buffer);
	free(p);
}

static void pack_text(struct packer *p, const char *text)
{
	msgpack_pack_str_with_body(&p->packer, text, strlen(text));
}

static void pack_uint(struct packer *p, const char *key, uint64_t number)
{
	pack_text(p, key);
	msgpack_pack_uint64(&p->packer, number);
}

static void pack_hash(struct packer *p, uint8_t first)
{
	uint8_t hash[32];

	for (int i = 0; i < 32; i++)
		hash[i] = (uint8_t)(first + i);
	msgpack_pack_bin_with_body(&p->packer, hash, 32);
}

static void pack_removed(struct packer *p, uint64_t time_us, int64_t fee)
{
	msgpack_pack_map(&p->packer, 7);
	pack_uint(p, "time_us", time_us);
	pack_text(p, "txid");
	pack_hash(p, 0);
	pack_text(p, "reason");
	pack_text(p, "block");
	pack_uint(p, "vsize", 141);
	pack_text(p, "fee");
	msgpack_pack_int64(&p->packer, fee);
	pack_text(p, "entry_time");
	msgpack_pack_nil(&p->packer);
	pack_uint(p, "height", 850000);
}

enum { KEY_V, KEY_NODE, KEY_RUN, KEY_PID, KEY_N, KEY_SEQ, KEY_LOST, KEY_EVENTS, N_KEYS };

static const char *const key_names[N_KEYS] = { "v", "node", "run",  "pid",
					       "n", "seq",  "lost", "events" };

static void pack_key(struct packer *p, int key)
{
	static const uint64_t numbers[] = { 1, 0, 1700000000000000, 4711, 100, 7, 2 };

	pack_text(p, key_names[key]);
	if (key == KEY_NODE) {
		pack_text(p, "host-1");
	} else if (key == KEY_EVENTS) {
		msgpack_pack_array(&p->packer, 2);
		pack_removed(p, 1700000000123456, -5);
		pack_removed(p, 1700000000123457, 9007199254740993);
	} else {
		msgpack_pack_uint64(&p->packer, numbers[key]);
	}
}

#define HASH "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"

static void check_message(const char *what, const void *data, size_t length)
{
	static const char *const expected[] = {
		"{\"topic\":\"mempool.removed\",\"node\":\"host-1\",\"run\":1700000000000000,"
		"\"seq\":9,\"n\":100,\"pid\":4711,\"time_us\":1700000000123456,\"txid\":\"" HASH
		"\","
		"\"reason\":\"block\",\"vsize\":141,\"fee\":-5,\"entry_time\":null,\"height\":"
		"850000}",
		"{\"topic\":\"mempool.removed\",\"node\":\"host-1\",\"run\":1700000000000000,"
		"\"seq\":10,\"n\":101,\"pid\":4711,\"time_us\":1700000000123457,\"txid\":\"" HASH
		"\","
		"\"reason\":\"block\",\"vsize\":141,\"fee\":9007199254740993,\"entry_time\":null,"
		"\"height\":850000}",
	};
	char reason[DECODE_REASON] = "";
	struct message_body message;
	struct json json = { 0 };
	struct cursor events;
	struct item event;
	uint64_t index = 0;

	if (decode_message(guarded(data, length), length, removed_desc(), &message, reason)) {
		fail("%s: %s", what, reason);
		return;
	}
	if (message.node_length != 6 || memcmp(message.node, "host-1", 6) ||
	    message.run != 1700000000000000 || message.pid != 4711 || message.n != 100 ||
	    message.seq != 7 || message.lost != 2 || message.next != 11)
		fail("%s: wrong envelope", what);
	events = message.events;
	for (; cursor_element(&events, &event); index++) {
		json.length = 0;
		json_event(&json, "mempool.removed", 15, &message, index, &event);
		if (index > 1 || json.length != strlen(expected[index]) ||
		    memcmp(json.data, expected[index], json.length))
			fail("%s: event %" PRIu64 " is %.*s", what, index, (int)json.length,
			     json.data);
	}
	if (index != 2)
		fail("%s: %" PRIu64 " events", what, index);
	json_free(&json);
}

static void test_messages(void)
{
	struct packer *p = pack_open();

	msgpack_pack_map(&p->packer, N_KEYS);
	for (int key = 0; key < N_KEYS; key++)
		pack_key(p, key);
	check_message("keys in order", p->buffer.data, p->buffer.size);
	cut_and_damage(p->buffer.data, p->buffer.size, removed_desc());
	cut_and_damage(p->buffer.data, p->buffer.size, NULL);
	pack_close(p);

	p = pack_open();
	msgpack_pack_map(&p->packer, N_KEYS);
	for (int key = N_KEYS - 1; key >= 0; key--)
		pack_key(p, key);
	check_message("keys reversed", p->buffer.data, p->buffer.size);
	pack_close(p);

	/* Unknown keys, simple and nested, before, between and after. */
	p = pack_open();
	msgpack_pack_map(&p->packer, N_KEYS + 3);
	pack_text(p, "");
	msgpack_pack_double(&p->packer, 1.5);
	for (int key = 0; key < N_KEYS; key++) {
		pack_key(p, key);
		if (key == KEY_RUN) {
			pack_text(p, "later");
			msgpack_pack_array(&p->packer, 2);
			msgpack_pack_map(&p->packer, 1);
			pack_uint(p, "seq", 99);
			msgpack_pack_ext(&p->packer, 3, 7);
			msgpack_pack_ext_body(&p->packer, "abc", 3);
		}
	}
	pack_uint(p, "seqx", 5);
	check_message("unknown keys", p->buffer.data, p->buffer.size);
	cut_and_damage(p->buffer.data, p->buffer.size, removed_desc());
	pack_close(p);
}

/* A message with one key's value replaced, or, with NULL, the key left out. */
static void expect_refused(int key, void (*pack)(struct packer *p), const char *expected)
{
	struct packer *p = pack_open();
	char reason[DECODE_REASON] = "";
	struct message_body message;
	int err;

	msgpack_pack_map(&p->packer, pack ? N_KEYS : N_KEYS - 1);
	for (int i = 0; i < N_KEYS; i++) {
		if (i != key) {
			pack_key(p, i);
		} else if (pack) {
			pack_text(p, key_names[i]);
			pack(p);
		}
	}
	err = decode_message(guarded(p->buffer.data, p->buffer.size), p->buffer.size,
			     removed_desc(), &message, reason);
	if (err != -EBADMSG || strcmp(reason, expected))
		fail("%s: %d \"%s\", not \"%s\"", key_names[key], err, err ? reason : "", expected);
	pack_close(p);
}

static void pack_nil(struct packer *p)
{
	msgpack_pack_nil(&p->packer);
}

static void pack_minus(struct packer *p)
{
	msgpack_pack_int64(&p->packer, -1);
}

static void pack_real(struct packer *p)
{
	msgpack_pack_double(&p->packer, 1.0);
}

static void pack_two(struct packer *p)
{
	msgpack_pack_uint64(&p->packer, 2);
}

static void pack_zero(struct packer *p)
{
	msgpack_pack_uint64(&p->packer, 0);
}

static void pack_most(struct packer *p)
{
	msgpack_pack_uint64(&p->packer, UINT64_MAX);
}

static void pack_space(struct packer *p)
{
	pack_text(p, "two words");
}

static void pack_empty(struct packer *p)
{
	pack_text(p, "");
}

static void pack_33(struct packer *p)
{
	pack_text(p, "abcdefghijabcdefghijabcdefghijabc");
}

static void pack_bytes(struct packer *p)
{
	msgpack_pack_bin_with_body(&p->packer, "abc", 3);
}

static void pack_map(struct packer *p)
{
	msgpack_pack_map(&p->packer, 0);
}

static void pack_array_of_one(struct packer *p)
{
	msgpack_pack_array(&p->packer, 1);
	msgpack_pack_uint64(&p->packer, 1);
}

static void pack_untimed(struct packer *p)
{
	msgpack_pack_array(&p->packer, 1);
	msgpack_pack_map(&p->packer, 1);
	pack_uint(p, "vsize", 1);
}

/* An event with time_us and one more key. */
static void pack_event_with(struct packer *p, const char *key)
{
	msgpack_pack_array(&p->packer, 1);
	msgpack_pack_map(&p->packer, 2);
	pack_uint(p, "time_us", 1);
	pack_text(p, key);
}

static void pack_time_twice(struct packer *p)
{
	pack_event_with(p, "time_us");
	pack_two(p);
}

static void pack_short_hash(struct packer *p)
{
	pack_event_with(p, "txid");
	pack_bytes(p);
}

static void pack_text_hash(struct packer *p)
{
	pack_event_with(p, "txid");
	pack_33(p);
}

static void pack_bytes_text(struct packer *p)
{
	pack_event_with(p, "reason");
	pack_bytes(p);
}

static void pack_negative_vsize(struct packer *p)
{
	pack_event_with(p, "vsize");
	pack_minus(p);
}

static void pack_huge_fee(struct packer *p)
{
	pack_event_with(p, "fee");
	msgpack_pack_uint64(&p->packer, (uint64_t)INT64_MAX + 1);
}

static void pack_fee_twice(struct packer *p)
{
	msgpack_pack_array(&p->packer, 1);
	msgpack_pack_map(&p->packer, 3);
	pack_uint(p, "time_us", 1);
	pack_uint(p, "fee", 1);
	pack_uint(p, "fee", 2);
}

static void test_wrong_types(void)
{
	expect_refused(KEY_V, NULL, "v: missing");
	expect_refused(KEY_V, pack_two, "v: version 2 is not understood");
	expect_refused(KEY_V, pack_empty, "v: not an unsigned integer");
	expect_refused(KEY_NODE, NULL, "node: missing");
	expect_refused(KEY_NODE, pack_bytes, "node: not a text");
	expect_refused(KEY_NODE, pack_space, "node: not a label");
	expect_refused(KEY_NODE, pack_empty, "node: not a label");
	expect_refused(KEY_NODE, pack_33, "node: not a label");
	expect_refused(KEY_RUN, pack_real, "run: not an unsigned integer");
	expect_refused(KEY_RUN, pack_nil, "run: not an unsigned integer");
	expect_refused(KEY_RUN, pack_zero, "run: 0 names none");
	expect_refused(KEY_PID, pack_minus, "pid: not an unsigned integer");
	expect_refused(KEY_N, NULL, "n: missing");
	expect_refused(KEY_N, pack_most, "n: positions end beyond 64 bits");
	expect_refused(KEY_SEQ, NULL, "seq: missing");
	expect_refused(KEY_SEQ, pack_zero, "seq: 0, the first number is 1");
	expect_refused(KEY_SEQ, pack_most, "seq: numbers end beyond 64 bits");
	expect_refused(KEY_LOST, pack_most, "seq: numbers end beyond 64 bits");
	expect_refused(KEY_LOST, pack_nil, "lost: not an unsigned integer");
	expect_refused(KEY_EVENTS, NULL, "events: missing");
	expect_refused(KEY_EVENTS, pack_map, "events: not an array");
	expect_refused(KEY_EVENTS, pack_array_of_one, "events: an element is not a map");
	expect_refused(KEY_EVENTS, pack_untimed, "time_us: missing");
	expect_refused(KEY_EVENTS, pack_time_twice, "time_us: not one unsigned integer");
	expect_refused(KEY_EVENTS, pack_short_hash, "txid: not of type hash");
	expect_refused(KEY_EVENTS, pack_text_hash, "txid: not of type hash");
	expect_refused(KEY_EVENTS, pack_bytes_text, "reason: not of type text");
	expect_refused(KEY_EVENTS, pack_negative_vsize, "vsize: not of type uint");
	expect_refused(KEY_EVENTS, pack_huge_fee, "fee: not of type int");
	expect_refused(KEY_EVENTS, pack_fee_twice, "fee: told twice");
}

/* lost as 0 and as absent are the same; empty events need a loss; a key told twice is refused. */
static void test_envelopes(void)
{
	static const struct {
		int lost; /* -1: absent */
		unsigned int n_events;
		const char *twice;
		const char *reason; /* NULL: accepted */
		uint64_t next;
	} table[] = {
		{ -1, 1, NULL, NULL, 8 },
		{ 0, 1, NULL, NULL, 8 },
		{ 5, 0, NULL, NULL, 12 },
		{ 5, 1, NULL, NULL, 13 },
		{ -1, 0, NULL, "neither events nor a loss", 0 },
		{ 0, 0, NULL, "neither events nor a loss", 0 },
		{ -1, 1, "seq", "seq: told twice", 0 },
		{ -1, 1, "run", "run: told twice", 0 },
	};

	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		struct packer *p = pack_open();
		char reason[DECODE_REASON] = "";
		struct message_body message;
		int err;

		msgpack_pack_map(&p->packer, 7u + (table[i].lost >= 0) + (table[i].twice != NULL));
		for (int key = 0; key < KEY_LOST; key++)
			pack_key(p, key);
		if (table[i].lost >= 0)
			pack_uint(p, "lost", (uint64_t)table[i].lost);
		pack_text(p, "events");
		msgpack_pack_array(&p->packer, table[i].n_events);
		for (unsigned int j = 0; j < table[i].n_events; j++)
			pack_removed(p, 1, 1);
		if (table[i].twice)
			pack_uint(p, table[i].twice, 7);
		err = decode_message(guarded(p->buffer.data, p->buffer.size), p->buffer.size,
				     removed_desc(), &message, reason);
		if (table[i].reason ? err != -EBADMSG || strcmp(reason, table[i].reason)
				    : err || message.next != table[i].next)
			fail("envelope %zu: %d \"%s\"", i, err, reason);
		pack_close(p);
	}
}

static void test_fields(void)
{
	static const char *const names[] = { "time_us", "txid",	      "reason", "vsize",
					     "fee",	"entry_time", "height", "nothing",
					     "",	"tx",	      "txidx" };
	static const enum item_kind kinds[] = { ITEM_UINT,     ITEM_BYTES,  ITEM_TEXT,	ITEM_UINT,
						ITEM_NEGATIVE, ITEM_NIL,    ITEM_UINT,	ITEM_ABSENT,
						ITEM_ABSENT,   ITEM_ABSENT, ITEM_ABSENT };
	struct packer *p = pack_open();
	struct item event, field;
	struct cursor hint;

	pack_removed(p, 1, -5);
	decode_item(guarded(p->buffer.data, p->buffer.size), &event);
	hint = item_elements(&event);
	/* Forwards, backwards, and each twice: the hint may stand anywhere. */
	for (int turn = 0; turn < 3; turn++)
		for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
			size_t j = turn == 1 ? sizeof(names) / sizeof(names[0]) - 1 - i : i;

			for (int twice = 0; twice < 2; twice++) {
				decode_field(&event, &hint, names[j], strlen(names[j]), &field);
				if (field.kind != kinds[j])
					fail("field %s: kind %d", names[j], field.kind);
			}
		}
	decode_field(&event, &hint, "fee", 3, &field);
	if (field.negative != -5)
		fail("fee");
	pack_close(p);
}

/* block.evictions: arrays, the map of conflicts, and what must not be in them. */
static void pack_evictions(struct packer *p, const char *wrong)
{
	static const char *const uints[] = { "vsizes", "entry_times" };

	msgpack_pack_map(&p->packer, 8);
	for (int key = 0; key < KEY_LOST; key++)
		pack_key(p, key);
	pack_uint(p, "lost", 0);
	pack_text(p, "events");
	msgpack_pack_array(&p->packer, 1);
	msgpack_pack_map(&p->packer, 6);
	pack_uint(p, "time_us", 1);
	pack_text(p, "txids");
	msgpack_pack_array(&p->packer, 2);
	pack_hash(p, 0);
	if (!strcmp(wrong, "txids"))
		pack_text(p, HASH);
	else
		msgpack_pack_nil(&p->packer);
	pack_text(p, "fees");
	msgpack_pack_array(&p->packer, 1);
	if (!strcmp(wrong, "fees"))
		pack_real(p);
	else
		msgpack_pack_int64(&p->packer, -7);
	for (int i = 0; i < 2; i++) {
		pack_text(p, uints[i]);
		msgpack_pack_array(&p->packer, 1);
		msgpack_pack_int64(&p->packer, strcmp(wrong, uints[i]) ? 8 : -8);
	}
	pack_text(p, "conflicts");
	msgpack_pack_map(&p->packer, 2);
	pack_text(p, "txids");
	msgpack_pack_array(&p->packer, 1);
	pack_hash(p, 1);
	pack_text(p, "after");
	if (!strcmp(wrong, "conflicts"))
		pack_two(p);
	else
		pack_array_of_one(p);
}

static void test_evictions(void)
{
	static const char *const wrongs[] = { "",	"txids",       "fees",
					      "vsizes", "entry_times", "conflicts" };
	static const char expected[] =
		"{\"topic\":\"block.evictions\",\"node\":\"host-1\",\"run\":1700000000000000,"
		"\"seq\":7,"
		"\"n\":100,\"pid\":4711,\"time_us\":1,\"txids\":[\"" HASH "\",null],\"fees\":[-7],"
		"\"vsizes\":[8],\"entry_times\":[8],\"conflicts\":{\"txids\":["
		"\"0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20\"],\"after\":["
		"1]}}";
	const struct event_desc *desc = catalogue_find("block.evictions", 15);

	for (size_t i = 0; i < sizeof(wrongs) / sizeof(wrongs[0]); i++) {
		struct packer *p = pack_open();
		char reason[DECODE_REASON] = "";
		struct message_body message;
		struct json json = { 0 };
		struct item event;
		int err;

		pack_evictions(p, wrongs[i]);
		err = decode_message(guarded(p->buffer.data, p->buffer.size), p->buffer.size, desc,
				     &message, reason);
		if (*wrongs[i]) {
			if (err != -EBADMSG || strncmp(reason, wrongs[i], strlen(wrongs[i])))
				fail("evictions with wrong %s: %d \"%s\"", wrongs[i], err, reason);
		} else if (err) {
			fail("evictions: %s", reason);
		} else {
			cursor_element(&message.events, &event);
			json_event(&json, "block.evictions", 15, &message, 0, &event);
			if (json.length != strlen(expected) ||
			    memcmp(json.data, expected, json.length))
				fail("evictions: %.*s", (int)json.length, json.data);
			cut_and_damage(p->buffer.data, p->buffer.size, desc);
		}
		json_free(&json);
		pack_close(p);
	}
}

static void pack_status(struct packer *p, const char *socket, int held, int head)
{
	msgpack_pack_map(&p->packer, 10);
	pack_key(p, KEY_V);
	pack_key(p, KEY_NODE);
	pack_key(p, KEY_RUN);
	pack_text(p, "socket");
	pack_text(p, socket);
	pack_uint(p, "time_us", 5);
	pack_uint(p, "n", 6);
	pack_text(p, "heads");
	msgpack_pack_map(&p->packer, 2);
	pack_uint(p, "mempool.added", 3);
	pack_text(p, "mempool.removed");
	msgpack_pack_int64(&p->packer, head);
	pack_text(p, "held");
	msgpack_pack_int64(&p->packer, held);
	pack_text(p, "replay");
	pack_text(p, "off");
	pack_text(p, "ignored");
	msgpack_pack_array(&p->packer, 0);
}

static void test_status(void)
{
	static const struct {
		const char *socket;
		int held, head;
		const char *reason;
	} table[] = {
		{ "low", 1, 0, NULL },
		{ "high", 1, 0, NULL },
		{ "middle", 1, 0, "socket: neither low nor high" },
		{ "low", -1, 0, "held: not an unsigned integer" },
		{ "low", 1, -1, "heads: not all are unsigned integers" },
	};
	static const char expected[] =
		"{\"topic\":\"bridge.status\",\"v\":1,\"node\":\"host-1\",\"run\":1700000000000000,"
		"\"socket\":\"low\",\"time_us\":5,\"n\":6,\"heads\":{\"mempool.added\":3,"
		"\"mempool.removed\":0},\"held\":1,\"replay\":\"off\",\"ignored\":[]}";

	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		struct packer *p = pack_open();
		char reason[DECODE_REASON] = "";
		struct status_body status;
		struct json json = { 0 };
		int err;

		pack_status(p, table[i].socket, table[i].held, table[i].head);
		err = decode_status(guarded(p->buffer.data, p->buffer.size), p->buffer.size,
				    &status, reason);
		if (table[i].reason ? err != -EBADMSG || strcmp(reason, table[i].reason) : err)
			fail("status %zu: %d \"%s\"", i, err, reason);
		if (!i && !err) {
			json_map(&json, "bridge.status", 13, &status.map);
			if (json.length != strlen(expected) ||
			    memcmp(json.data, expected, json.length))
				fail("status: %.*s", (int)json.length, json.data);
			if (status.n != 6 || status.time_us != 5 || status.heads.left != 2)
				fail("status: wrong values");
			for (size_t cut = 0; cut < p->buffer.size; cut++)
				if (!decode_status(guarded(p->buffer.data, cut), cut, &status,
						   reason))
					fail("status: accepted although cut to %zu", cut);
		}
		json_free(&json);
		pack_close(p);
	}
}

static void test_json_text(void)
{
	static const struct {
		const char *text, *json;
	} table[] = {
		{ "\xff", "\"\xef\xbf\xbd\"" },
		{ "a\xc3", "\"a\xef\xbf\xbd\"" },
		{ "\xed\xa0\x80", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"" },
		{ "\x1b[31mred", "\"\\u001b[31mred\"" },
	};

	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		struct json json = { 0 };
		size_t length = strlen(table[i].text);

		json_text(&json, (const char *)guarded(table[i].text, length), length);
		if (json.length != strlen(table[i].json) ||
		    memcmp(json.data, table[i].json, json.length))
			fail("json_text %zu: %.*s", i, (int)json.length, json.data);
		json_free(&json);
	}
}

int main(void)
{
	guard_open();
	test_values();
	test_malformed_values();
	test_messages();
	test_wrong_types();
	test_envelopes();
	test_fields();
	test_evictions();
	test_status();
	test_json_text();
	return failures ? 1 : 0;
}
