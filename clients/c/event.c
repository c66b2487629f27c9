/* Access to the parts and fields of an event. */
#include <errno.h>
#include <string.h>

#include "event.h"

bool topic_valid(const char *topic, size_t length)
{
	if (!length || length > MAX_TOPIC)
		return false;
	for (size_t i = 0; i < length; i++) {
		char c = topic[i];

		if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
		      c == '_' || c == '-' || c == '.'))
			return false;
	}
	return true;
}

enum coretap_kind coretap_event_kind(const struct coretap_event *event)
{
	return event->kind;
}

const char *coretap_event_socket(const struct coretap_event *event)
{
	return socket_name(event->socket);
}

const char *coretap_event_topic(const struct coretap_event *event)
{
	return event->topic;
}

const char *coretap_event_node(const struct coretap_event *event)
{
	return event->node;
}

const char *coretap_event_reason(const struct coretap_event *event)
{
	return event->reason;
}

uint64_t coretap_event_run(const struct coretap_event *event)
{
	return event->run;
}

uint64_t coretap_event_old_run(const struct coretap_event *event)
{
	return event->old_run;
}

uint64_t coretap_event_seq(const struct coretap_event *event)
{
	return event->seq;
}

uint64_t coretap_event_n(const struct coretap_event *event)
{
	return event->n;
}

uint64_t coretap_event_pid(const struct coretap_event *event)
{
	return event->pid;
}

uint64_t coretap_event_time_us(const struct coretap_event *event)
{
	return event->time_us;
}

uint64_t coretap_event_first(const struct coretap_event *event)
{
	return event->first;
}

uint64_t coretap_event_last(const struct coretap_event *event)
{
	return event->last;
}

/* Looks a key up; where there is none, takes what stands before a dot as the name of a map. Keys
 * may contain dots themselves (heads.mempool.removed), hence each dot is tried. */
static void find(const struct item *map, struct cursor *hint, const char *name, size_t length,
		 struct item *out)
{
	struct item inner;
	const char *dot = name;

	decode_field(map, hint, name, length, out);
	while (out->kind == ITEM_ABSENT &&
	       (dot = memchr(dot, '.', length - (size_t)(dot - name)))) {
		decode_field(map, hint, name, (size_t)(dot - name), &inner);
		dot++;
		if (inner.kind == ITEM_MAP) {
			struct cursor start = item_elements(&inner);

			find(&inner, &start, dot, length - (size_t)(dot - name), out);
		}
	}
}

/* Returns what a getter returns when the value is not there to be read, else CORETAP_SET. */
static int get(const struct coretap_event *event, const char *field, struct item *out)
{
	/* The hint only remembers where the last search ended; the event itself does not change. */
	struct cursor *hint = &((struct coretap_event *)event)->hint;

	if (event->map.kind != ITEM_MAP)
		return -ENOENT;
	find(&event->map, hint, field, strlen(field), out);
	if (out->kind == ITEM_ABSENT)
		return -ENOENT;
	return out->kind == ITEM_NIL ? CORETAP_NIL : CORETAP_SET;
}

static int take(struct coretap_array *array, struct item *out)
{
	struct cursor cursor = { array->position, array->left };

	if (!cursor_element(&cursor, out))
		return -ENOENT;
	array->position = cursor.at;
	array->left = cursor.left;
	return out->kind == ITEM_NIL ? CORETAP_NIL : CORETAP_SET;
}

static int as_uint(const struct item *value, uint64_t *out)
{
	if (value->kind == ITEM_NEGATIVE)
		return -ERANGE;
	if (value->kind != ITEM_UINT)
		return -EPROTOTYPE;
	*out = value->number;
	return CORETAP_SET;
}

static int as_int(const struct item *value, int64_t *out)
{
	if (value->kind == ITEM_NEGATIVE) {
		*out = value->negative;
		return CORETAP_SET;
	}
	if (value->kind != ITEM_UINT)
		return -EPROTOTYPE;
	if (value->number > INT64_MAX)
		return -ERANGE;
	*out = (int64_t)value->number;
	return CORETAP_SET;
}

static int as_text(const struct item *value, const char **text, size_t *length)
{
	if (value->kind != ITEM_TEXT)
		return -EPROTOTYPE;
	*text = (const char *)value->data;
	*length = value->length;
	return CORETAP_SET;
}

static int as_hash(const struct item *value, const unsigned char **hash)
{
	if (value->kind != ITEM_BYTES || value->length != 32)
		return -EPROTOTYPE;
	*hash = value->data;
	return CORETAP_SET;
}

int coretap_get_uint(const struct coretap_event *event, const char *field, uint64_t *value)
{
	struct item found;
	int state = get(event, field, &found);

	return state == CORETAP_SET ? as_uint(&found, value) : state;
}

int coretap_get_int(const struct coretap_event *event, const char *field, int64_t *value)
{
	struct item found;
	int state = get(event, field, &found);

	return state == CORETAP_SET ? as_int(&found, value) : state;
}

int coretap_get_bool(const struct coretap_event *event, const char *field, int *value)
{
	struct item found;
	int state = get(event, field, &found);

	if (state != CORETAP_SET)
		return state;
	if (found.kind != ITEM_BOOL)
		return -EPROTOTYPE;
	*value = found.truth;
	return CORETAP_SET;
}

int coretap_get_text(const struct coretap_event *event, const char *field, const char **text,
		     size_t *length)
{
	struct item found;
	int state = get(event, field, &found);

	return state == CORETAP_SET ? as_text(&found, text, length) : state;
}

int coretap_get_bytes(const struct coretap_event *event, const char *field,
		      const unsigned char **bytes, size_t *length)
{
	struct item found;
	int state = get(event, field, &found);

	if (state != CORETAP_SET)
		return state;
	if (found.kind != ITEM_BYTES)
		return -EPROTOTYPE;
	*bytes = found.data;
	*length = found.length;
	return CORETAP_SET;
}

int coretap_get_hash(const struct coretap_event *event, const char *field,
		     const unsigned char **hash)
{
	struct item found;
	int state = get(event, field, &found);

	return state == CORETAP_SET ? as_hash(&found, hash) : state;
}

int coretap_get_array(const struct coretap_event *event, const char *field,
		      struct coretap_array *array)
{
	struct item found;
	int state = get(event, field, &found);

	if (state != CORETAP_SET)
		return state;
	if (found.kind != ITEM_ARRAY)
		return -EPROTOTYPE;
	array->position = found.data;
	array->left = found.length;
	return CORETAP_SET;
}

int coretap_array_uint(struct coretap_array *array, uint64_t *value)
{
	struct item found;
	int state = take(array, &found);

	return state == CORETAP_SET ? as_uint(&found, value) : state;
}

int coretap_array_int(struct coretap_array *array, int64_t *value)
{
	struct item found;
	int state = take(array, &found);

	return state == CORETAP_SET ? as_int(&found, value) : state;
}

int coretap_array_text(struct coretap_array *array, const char **text, size_t *length)
{
	struct item found;
	int state = take(array, &found);

	return state == CORETAP_SET ? as_text(&found, text, length) : state;
}

int coretap_array_hash(struct coretap_array *array, const unsigned char **hash)
{
	struct item found;
	int state = take(array, &found);

	return state == CORETAP_SET ? as_hash(&found, hash) : state;
}

void coretap_hash_hex(const unsigned char hash[32], char hex[65])
{
	static const char digits[] = "0123456789abcdef";

	for (int i = 0; i < 32; i++) {
		hex[2 * i] = digits[hash[i] >> 4];
		hex[2 * i + 1] = digits[hash[i] & 15];
	}
	hex[64] = '\0';
}

static void json_notice(struct json *json, const struct coretap_event *event)
{
	static const char *const names[] = {
		[CORETAP_GAP] = "gap",
		[CORETAP_LOST] = "lost",
		[CORETAP_NEW_RUN] = "new_run",
		[CORETAP_OLD_RUN] = "old_run",
		[CORETAP_STALE] = "stale",
		[CORETAP_ALIVE] = "alive",
		[CORETAP_STOPPING] = "stopping",
		[CORETAP_MALFORMED] = "malformed",
		[CORETAP_NO_REPLAY] = "no_replay",
	};
	const struct {
		const char *name, *text;
	} texts[] = {
		{ "topic", event->topic },
		{ "node", event->node },
		{ "reason", event->reason },
	};
	const struct {
		const char *name;
		uint64_t number;
	} numbers[] = {
		{ "run", event->run },	       { "old_run", event->old_run },
		{ "time_us", event->time_us }, { "first", event->first },
		{ "last", event->last },
	};

	json_raw(json, "{\"notice\":\"");
	json_raw(json, names[event->kind]);
	json_raw(json, "\",\"socket\":\"");
	json_raw(json, socket_name(event->socket));
	json_raw(json, "\"");
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		if (*texts[i].text) {
			json_raw(json, ",\"");
			json_raw(json, texts[i].name);
			json_raw(json, "\":");
			json_text(json, texts[i].text, strlen(texts[i].text));
		}
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		if (numbers[i].number) {
			json_raw(json, ",\"");
			json_raw(json, numbers[i].name);
			json_raw(json, "\":");
			json_uint(json, numbers[i].number);
		}
	json_raw(json, "}");
}

const char *coretap_event_json(const struct coretap_event *event, size_t *length)
{
	struct json *json = event->json;

	/* A want of memory now says nothing about the next event. */
	json->length = 0;
	json->failed = false;
	if (event->kind == CORETAP_EVENT)
		json_event(json, event->topic, strlen(event->topic), event->message, event->index,
			   &event->map);
	else if (event->kind == CORETAP_STATUS)
		json_map(json, event->topic, strlen(event->topic), &event->map);
	else
		json_notice(json, event);
	if (length)
		*length = json->length;
	json_append(json, "", 1);
	return json->failed ? NULL : json->data;
}
