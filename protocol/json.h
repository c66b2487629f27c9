/* What was decoded as JSON text. */
#ifndef CORETAP_JSON_H
#define CORETAP_JSON_H

#include "decode.h"

/* JSON text that grows. Start it with zeros, release it with json_free. When memory is lacking,
 * `failed` is set and stays set, and nothing more is added. */
struct json {
	char *data; /* not NUL-terminated */
	size_t length, size;
	bool failed;
};

void json_free(struct json *json);
/* Adds text as it is. */
void json_append(struct json *json, const char *text, size_t length);
void json_raw(struct json *json, const char *text);
/* A string with its quotes. Control characters, also those above ASCII, and those that change the
 * direction of text are written as \u escapes: a terminal never acts on what a peer sent.
 * Bytes that are not UTF-8 become U+FFFD. */
void json_text(struct json *json, const char *text, size_t length);
/* Control characters, line and paragraph separators, and marks that reorder text on a screen. */
bool json_is_unsafe(uint32_t point);
void json_uint(struct json *json, uint64_t number);
/* Bytes as lowercase hex, integers exact, nil and what JSON cannot say (NaN) as null. */
void json_item(struct json *json, const struct item *value);

/* One event as a flat object: topic, node, run, seq, n, pid, time_us, then its fields.
 * index is its place among the message's events. */
void json_event(struct json *json, const char *topic, size_t topic_length,
		const struct message_body *message, uint64_t index, const struct item *event);

/* A status as a flat object: topic, then all keys as they come. */
void json_map(struct json *json, const char *topic, size_t topic_length, const struct item *map);

#endif
