/* See asked.h. */
#include <errno.h>
#include <msgpack.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../../protocol/decode.h"
#include "../transport.h"

#include "asked.h"

#define PATIENCE_MS 5000

static uint64_t number_of(const struct item *map, const char *name)
{
	struct cursor hint = item_elements(map);
	struct item number;

	decode_field(map, &hint, name, strlen(name), &number);
	if (number.kind == ITEM_BOOL)
		return number.truth;
	return number.kind == ITEM_UINT ? number.number : 0;
}

/* The value of a key, empty where it has another kind. */
static struct item member(const struct item *map, const char *name, enum item_kind kind)
{
	struct cursor hint = item_elements(map);
	struct item found;

	decode_field(map, &hint, name, strlen(name), &found);
	if (found.kind != kind)
		found = (struct item){ .kind = kind };
	return found;
}

/* A stranger's text, with `?` for what a terminal would act on. NULL when memory is lacking. */
static char *plain(const struct item *text)
{
	const uint8_t *at = text->data, *end = text->length ? at + text->length : at;
	char *copy = malloc(text->length + 1), *to = copy;

	while (copy && at < end) {
		uint32_t point;
		unsigned int bytes = decode_utf8(at, end, &point);

		if (!bytes || json_is_unsafe(point))
			*to++ = '?';
		else
			to = (char *)memcpy(to, at, bytes) + bytes;
		at += bytes ? bytes : 1;
	}
	if (copy)
		*to = '\0';
	return copy;
}

/* A descriptor's texts end with NUL, those of the answer do not. */
static const char *text_copy(const struct item *map, const char *name)
{
	struct item text = member(map, name, ITEM_TEXT);

	return plain(&text);
}

static enum field_type type_named(const char *name)
{
	for (int type = TYPE_UINT; type <= TYPE_CONFLICTS; type++)
		if (!strcmp(field_type_name((enum field_type)type), name))
			return (enum field_type)type;
	return TYPE_SELECT; /* unknown here: not shown */
}

static bool field_read(const struct item *map, struct field_desc *field)
{
	const char *type = text_copy(map, "type");
	const bool typed = type;

	if (typed)
		field->type = type_named(type);
	free((char *)type);
	field->name = text_copy(map, "name");
	field->unit = text_copy(map, "unit");
	field->doc = text_copy(map, "doc");
	field->since = (uint16_t)number_of(map, "since");
	return typed && field->name && field->unit && field->doc;
}

static bool event_read(const struct item *map, struct event_desc *event)
{
	struct item fields = member(map, "fields", ITEM_ARRAY), each;
	struct cursor elements = item_elements(&fields);
	struct field_desc *descs = calloc(fields.length ? fields.length : 1, sizeof(*descs));
	const char *socket = text_copy(map, "socket");
	const bool placed = socket;

	if (placed)
		event->socket = strcmp(socket, socket_name(SOCKET_HIGH)) ? SOCKET_LOW : SOCKET_HIGH;
	free((char *)socket);
	event->provider = text_copy(map, "provider");
	event->name = text_copy(map, "name");
	event->topic = text_copy(map, "topic");
	event->doc = text_copy(map, "doc");
	event->fields = descs;
	if (!descs || !placed || !event->provider || !event->name || !event->topic || !event->doc)
		return false;
	event->since = (unsigned int)number_of(map, "since");
	event->flags = (number_of(map, "derived") ? EVENT_DERIVED : 0) |
		       (number_of(map, "opt_in") ? EVENT_OPT_IN : 0);
	while (cursor_element(&elements, &each))
		if (each.kind == ITEM_MAP && !field_read(&each, &descs[event->n_fields++]))
			return false;
	return true;
}

static int answer_read(const char *address, const struct frame *frame,
		       const struct event_desc **events, size_t *n)
{
	char reason[DECODE_REASON];
	static struct event_desc *descs; /* until the program ends */
	struct item map, error, array, each;
	struct cursor elements;
	bool good;

	if (decode_check(frame->data, frame->length, reason)) {
		complain("%s: its answer is malformed: %s", address, reason);
		return EXIT_OTHER;
	}
	decode_item(frame->data, &map);
	if (map.kind != ITEM_MAP)
		map = (struct item){ .kind = ITEM_MAP };
	error = member(&map, "error", ITEM_TEXT);
	array = member(&map, "events", ITEM_ARRAY);
	if (!array.length) {
		char *why = plain(&error);

		complain("%s: it has no catalogue%s%s", address, error.length ? ": " : "",
			 why ? why : "");
		free(why);
		return EXIT_OTHER;
	}
	descs = calloc(array.length, sizeof(*descs));
	elements = item_elements(&array);
	*n = 0;
	good = descs;
	while (good && cursor_element(&elements, &each))
		if (each.kind == ITEM_MAP)
			good = event_read(&each, &descs[(*n)++]);
	*events = descs;
	if (!good)
		complain("out of memory");
	return good ? EXIT_DONE : EXIT_OTHER;
}

static int64_t clock_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static int question_send(struct transport *transport)
{
	msgpack_sbuffer question;
	msgpack_packer packer;
	int err;

	msgpack_sbuffer_init(&question);
	msgpack_packer_init(&packer, &question, msgpack_sbuffer_write);
	msgpack_pack_map(&packer, 3);
	msgpack_pack_str_with_body(&packer, "v", 1);
	msgpack_pack_uint64(&packer, WIRE_VERSION);
	msgpack_pack_str_with_body(&packer, "id", 2);
	msgpack_pack_uint64(&packer, 1);
	msgpack_pack_str_with_body(&packer, "op", 2);
	msgpack_pack_str_with_body(&packer, "catalogue", 9);
	err = transport_ask(transport, SOCKET_LOW, question.data, question.size);
	msgpack_sbuffer_destroy(&question);
	return err;
}

int catalogue_ask(const struct follow *follow, const struct event_desc **events, size_t *n)
{
	static const bool quiet[N_SOCKETS] = { true, true };
	const int64_t end = clock_ms() + PATIENCE_MS;
	char server[KEY_TEXT + 1], secret[KEY_TEXT + 1];
	struct transport *transport;
	struct frame frame = { 0 };
	bool more;
	int err = transport_open(follow->address, &transport), code = EXIT_OTHER;

	if (err) {
		complain("%s: not an address; give tcp://HOST:PORT or ipc:///run/coretap/NAME",
			 follow->address);
		return EXIT_USAGE;
	}
	code = follow_keys(follow, server, secret);
	if (!code && *server)
		err = transport_set_curve(transport, server, secret);
	explicit_bzero(secret, sizeof(secret));
	if (code) {
		transport_close(transport);
		return code;
	}
	if (!err)
		err = question_send(transport);
	while (!err && clock_ms() < end) {
		err = transport_answer(transport, SOCKET_LOW, 0, &frame, &more);
		if (err == -ECONNRESET)
			err = question_send(transport);
		else if (!err)
			transport_wait(transport, quiet, 100);
	}
	if (err == 1)
		code = answer_read(follow->address, &frame, events, n);
	else
		complain("%s: %s", follow->address,
			 err ? coretap_strerror(err) : "no answer; is coretapd running there?");
	transport_close(transport);
	return err == 1 ? code : EXIT_OTHER;
}
