/* Golden frames: what the encoder makes of each event is byte for byte what protocol/golden/ holds,
 * and the decoder makes of that file exactly the JSON beside it. Other clients read the same files.
 * With UPDATE=1 in the environment the files are written instead: look at the difference. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../protocol/json.h"
#include "../../protocol/encode.h"

#define GOLDEN "protocol/golden"

static int failures;

#define FAIL(...) (failures++, printf(__VA_ARGS__), putchar('\n'))

/* Texts that a stranger can choose: quotes, escapes, markup, bytes that are no UTF-8. */
static const char *const texts[] = {
	"block",    "", "quote\" back\\slash", "\x1b[31mred\n", "caf\xc3\xa9 \xff\xc0\xaf end",
	"<b>&amp;",
};

static uint8_t hashes[8][32];
static int64_t ints[2] = { -1, 9007199254740991 };
static uint64_t uints[2] = { 0, 4294967296 };
static uint8_t missing[2] = { 0, MISSING_TXID | MISSING_FEE };
static const struct removals conflicts = {
	.n = 2,
	.txids = (uint8_t(*)[32])hashes,
	.fees = ints,
	.vsizes = uints,
	.entry_times = uints,
	.after = uints,
	.missing = missing,
};

static struct value make(enum field_type type, unsigned int i)
{
	static const uint8_t payload[5] = { 0, 1, 0x7f, 0x80, 0xff };
	const char *text = texts[i % (sizeof(texts) / sizeof(texts[0]))];
	struct value v = { .state = VALUE_SET };

	switch (type) {
	case TYPE_UINT:
		v.u = i == 0 ? 0 : 1ULL << (7 * i % 53);
		break;
	case TYPE_NETWORK:
		v.u = i;
		break;
	case TYPE_INT:
	case TYPE_US_TO_NS:
		v.i = i % 2 ? -(1LL << (9 * i % 53)) : 2100000000000000LL;
		break;
	case TYPE_BOOL:
	case TYPE_SELECT:
		v.b = i % 2;
		break;
	case TYPE_HASH:
	case TYPE_ALIAS:
		v.bytes.data = hashes[i % 8];
		v.bytes.len = 32;
		break;
	case TYPE_TEXT:
		v.bytes.data = text;
		v.bytes.len = strlen(text);
		break;
	case TYPE_PAYLOAD:
		v.bytes.data = payload;
		v.bytes.len = sizeof(payload);
		break;
	case TYPE_HASHES:
		v.list = (struct value_list){ hashes, 2, missing, MISSING_TXID };
		break;
	case TYPE_UINTS:
		v.list = (struct value_list){ uints, 2, NULL, 0 };
		break;
	case TYPE_INTS:
		v.list = (struct value_list){ ints, 2, missing, MISSING_FEE };
		break;
	case TYPE_CONFLICTS:
		v.conflicts = &conflicts;
		break;
	}
	return v;
}

/* Two events: everything set, then everything that a tracepoint passes nil and the rest absent. */
static void event_body(msgpack_sbuffer *out, const struct event_desc *event)
{
	struct value values[MAX_FIELDS];
	size_t place = encode_message_begin(out, "golden-regtest", 1790000000000000, 4194304,
					    9007199254740000, 4294967295, event->since % 2);

	for (unsigned int i = 0; i < event->n_fields; i++) {
		values[i] = make(event->fields[i].type, i);
		if (event->fields[i].type == TYPE_ALIAS || event->fields[i].type == TYPE_SELECT)
			values[i].state = VALUE_ABSENT;
	}
	encode_event(out, event, 1790000000123456, values);
	for (unsigned int i = 0; i < event->n_fields; i++)
		values[i].state = event->fields[i].argument && event->fields[i].type != TYPE_SELECT
					  ? VALUE_NIL
					  : VALUE_ABSENT;
	encode_event(out, event, 0, values);
	encode_message_end(out, place, 2);
}

static void status_body(msgpack_sbuffer *out, enum socket_id socket)
{
	static const uint32_t ignored[] = { 7, 4194304 };
	const struct topic_status topics[] = {
		{ "mempool.removed", 328416, 328416, 328400, 16, 1, 2 },
		{ "block.evictions", 0, 0, 0, 0, 0, 0 },
	};
	const struct bridge_status status = {
		.node = "golden-regtest",
		.run = 1790000000000000,
		.socket = socket,
		.time_us = 1790000000123456,
		.n = 328400,
		.held = 1,
		.replay = "ok",
		.pid = socket == SOCKET_LOW ? 4194304 : 0,
		.ignored = ignored,
		.n_ignored = socket == SOCKET_LOW ? 2 : 0,
		.topics = topics,
		.n_topics = socket == SOCKET_LOW ? 2 : 0,
	};

	encode_status(out, &status);
}

static void to_hex(struct json *out, const void *data, size_t len)
{
	for (size_t i = 0; i < len; i++) {
		char byte[4];

		snprintf(byte, sizeof(byte), "%02x%s", ((const uint8_t *)data)[i],
			 i % 40 == 39 || i + 1 == len ? "\n" : "");
		json_raw(out, byte);
	}
}

static void to_json(struct json *out, const char *topic, const msgpack_sbuffer *body)
{
	const struct event_desc *event = catalogue_find(topic, strlen(topic));
	char reason[DECODE_REASON];
	struct message_body message;
	struct status_body status;
	struct item item;
	uint64_t i = 0;

	if (!event) {
		if (decode_status(body->data, body->size, &status, reason)) {
			FAIL("%s: does not decode: %s", topic, reason);
			return;
		}
		json_map(out, topic, strlen(topic), &status.map);
		json_raw(out, "\n");
		return;
	}
	if (decode_message(body->data, body->size, event, &message, reason)) {
		FAIL("%s: does not decode: %s", topic, reason);
		return;
	}
	while (cursor_element(&message.events, &item)) {
		json_event(out, topic, strlen(topic), &message, i++, &item);
		json_raw(out, "\n");
	}
}

static void compare(const char *topic, const char *ending, const struct json *made)
{
	char path[256], *held = NULL;
	size_t len = 0, size = 0;
	FILE *f;

	snprintf(path, sizeof(path), GOLDEN "/%s.%s", topic, ending);
	if (getenv("UPDATE")) {
		f = fopen(path, "w");
		if (!f || fwrite(made->data, 1, made->length, f) != made->length || fclose(f))
			FAIL("%s: cannot be written", path);
		return;
	}
	f = fopen(path, "r");
	if (!f) {
		FAIL("%s: missing; UPDATE=1 writes it", path);
		return;
	}
	held = malloc(size = 1 << 20);
	len = fread(held, 1, size, f);
	fclose(f);
	if (len != made->length || memcmp(held, made->data, len))
		FAIL("%s: differs; made now:\n%.*s", path, (int)made->length, made->data);
	free(held);
}

static void check(const char *topic, const msgpack_sbuffer *body)
{
	struct json hex = { 0 }, json = { 0 };

	to_hex(&hex, body->data, body->size);
	to_json(&json, topic, body);
	compare(topic, "hex", &hex);
	compare(topic, "json", &json);
	json_free(&hex);
	json_free(&json);
}

int main(void)
{
	size_t n, files = 0;
	const struct event_desc *events = catalogue(&n);
	struct dirent *entry;
	DIR *dir;

	for (size_t i = 0; i < sizeof(hashes); i++)
		hashes[i / 32][i % 32] = (uint8_t)i;
	for (size_t i = 0; i < n; i++) {
		msgpack_sbuffer body;

		msgpack_sbuffer_init(&body);
		event_body(&body, &events[i]);
		check(events[i].topic, &body);
		msgpack_sbuffer_destroy(&body);
	}
	for (enum socket_id id = 0; id < N_SOCKETS; id++) {
		msgpack_sbuffer body;

		msgpack_sbuffer_init(&body);
		status_body(&body, id);
		check(id == SOCKET_LOW ? TOPIC_STATUS : TOPIC_STOPPING, &body);
		msgpack_sbuffer_destroy(&body);
	}
	/* A frame whose event is gone from the catalogue would be kept for ever. */
	dir = opendir(GOLDEN);
	while (dir && (entry = readdir(dir)))
		files += entry->d_name[0] != '.';
	if (dir)
		closedir(dir);
	if (files != 2 * (n + 2))
		FAIL(GOLDEN ": %zu files for %zu topics", files, n + 2);
	return failures ? 1 : 0;
}
