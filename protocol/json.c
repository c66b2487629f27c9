/* Prints what decode.c reads as JSON. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"

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

bool json_is_unsafe(uint32_t point)
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
		bytes = decode_utf8(at, end, &point);
		if (!bytes) {
			memcpy(to, "\xef\xbf\xbd", 3);
			to += 3;
			at++;
			continue;
		}
		if (point == '"' || point == '\\') {
			*to++ = '\\';
			*to++ = (char)point;
		} else if (json_is_unsafe(point)) {
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
