/* See declarations.h. The file is the operator's, so it is not hostile, but it is wrong now and
 * then: every mistake is told with the line and the name that it is about. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yaml.h>

#include "declarations.h"

#define MAX_FILE ((off_t)1 << 20)
#define MAX_NAME 48
#define MAX_TOPIC 64
#define MAX_DOC 300
#define MAX_SYMBOL 1024
#define DEFAULT_TEXT 143

/* Texts that live as long as the declarations. */
struct kept {
	struct kept *next;
	char text[];
};

struct reader {
	struct declarations *out;
	yaml_document_t *document;
	const char *path;
	char *error;
	size_t error_size;
	struct declaration *now;
	char about[MAX_SYMBOL + 32]; /* field "x", tracepoint "y": what is being read */
};

static int fail(struct reader *r, unsigned int line, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

static int fail(struct reader *r, unsigned int line, const char *fmt, ...)
{
	char reason[512];
	va_list args;

	va_start(args, fmt);
	vsnprintf(reason, sizeof(reason), fmt, args);
	va_end(args);
	snprintf(r->error, r->error_size, "%s:%u: %s%s%s", r->path, line, r->about,
		 r->about[0] ? ": " : "", reason);
	return -EINVAL;
}

static int fail_memory(struct reader *r)
{
	snprintf(r->error, r->error_size, "%s: out of memory", r->path);
	return -ENOMEM;
}

static const char *keep(struct reader *r, const char *text)
{
	size_t size = strlen(text) + 1;
	struct kept *kept = malloc(sizeof(*kept) + size);

	if (!kept)
		return NULL;
	memcpy(kept->text, text, size);
	kept->next = r->out->kept;
	r->out->kept = kept;
	return kept->text;
}

/* ---- YAML ---- */

static unsigned int line_of(const yaml_node_t *node)
{
	/* Only ever of a key that is there. NOLINTNEXTLINE(clang-analyzer-core.NullDereference) */
	return (unsigned int)node->start_mark.line + 1;
}

/* A key that a map may have, and what it had. */
struct key {
	const char *name;
	const yaml_node_t *value; /* NULL: absent */
};

/* The text of a scalar, NULL for anything else and for one that is empty. */
static const char *scalar(const yaml_node_t *node)
{
	const char *text;

	if (!node || node->type != YAML_SCALAR_NODE)
		return NULL;
	text = (const char *)node->data.scalar.value;
	return *text && strlen(text) == node->data.scalar.length ? text : NULL;
}

static const yaml_node_t *map_find(struct reader *r, const yaml_node_t *map, const char *name)
{
	if (map->type != YAML_MAPPING_NODE)
		return NULL;
	for (const yaml_node_pair_t *pair = map->data.mapping.pairs.start;
	     pair < map->data.mapping.pairs.top; pair++) {
		const char *text = scalar(yaml_document_get_node(r->document, pair->key));

		if (text && !strcmp(text, name))
			return yaml_document_get_node(r->document, pair->value);
	}
	return NULL;
}

static int unknown_key(struct reader *r, const yaml_node_t *node, const struct key *keys, size_t n)
{
	char list[256] = "";

	for (size_t i = 0; i < n; i++)
		snprintf(list + strlen(list), sizeof(list) - strlen(list), "%s%s", i ? ", " : "",
			 keys[i].name);
	return fail(r, line_of(node), "unknown key \"%s\"; known are %s",
		    scalar(node) ? scalar(node) : "", list);
}

/* Fills in the values of the keys; any other key is an error. */
static int map_read(struct reader *r, const yaml_node_t *map, struct key *keys, size_t n)
{
	if (map->type != YAML_MAPPING_NODE)
		return fail(r, line_of(map), "wants keys with values");
	for (const yaml_node_pair_t *pair = map->data.mapping.pairs.start;
	     pair < map->data.mapping.pairs.top; pair++) {
		const yaml_node_t *key = yaml_document_get_node(r->document, pair->key);
		const char *text = scalar(key);
		size_t i;

		for (i = 0; i < n; i++)
			if (text && !strcmp(text, keys[i].name))
				break;
		if (i == n)
			return unknown_key(r, key, keys, n);
		if (keys[i].value)
			return fail(r, line_of(key), "%s: given twice", text);
		keys[i].value = yaml_document_get_node(r->document, pair->value);
	}
	return 0;
}

/* The text of a key that may be absent: *out keeps its value then. */
static int text_read(struct reader *r, const struct key *key, size_t max, const char **out)
{
	const char *text = scalar(key->value);

	if (!key->value)
		return 0;
	if (!text)
		return fail(r, line_of(key->value), "%s: wants a text", key->name);
	if (strlen(text) > max)
		return fail(r, line_of(key->value), "%s: longer than %zu characters", key->name,
			    max);
	for (const char *c = text; *c; c++)
		if ((unsigned char)*c < ' ' || *c == 0x7f)
			return fail(r, line_of(key->value), "%s: wants a single line", key->name);
	*out = keep(r, text);
	return *out ? 0 : fail_memory(r);
}

static int number_read(struct reader *r, const struct key *key, unsigned long min,
		       unsigned long max, unsigned long *out)
{
	const char *text = scalar(key->value);
	char *end;

	if (!key->value)
		return 0;
	errno = 0;
	*out = text && *text >= '0' && *text <= '9' ? strtoul(text, &end, 10) : ULONG_MAX;
	if (errno || *out == ULONG_MAX || *end || *out < min || *out > max)
		return fail(r, line_of(key->value), "%s: wants a number from %lu to %lu", key->name,
			    min, max);
	return 0;
}

static int bool_read(struct reader *r, const struct key *key, bool *out)
{
	const char *text = scalar(key->value);

	if (!key->value)
		return 0;
	if (!text || (strcmp(text, "true") && strcmp(text, "false")))
		return fail(r, line_of(key->value), "%s: wants true or false", key->name);
	*out = !strcmp(text, "true");
	return 0;
}

/* Calls each for every element of a list; an absent list is an empty one. */
static int list_read(struct reader *r, const struct key *key,
		     int (*each)(struct reader *r, const yaml_node_t *node))
{
	int err = 0;

	if (!key->value)
		return 0;
	if (key->value->type != YAML_SEQUENCE_NODE)
		return fail(r, line_of(key->value), "%s: wants a list", key->name);
	for (const yaml_node_item_t *item = key->value->data.sequence.items.start;
	     item < key->value->data.sequence.items.top && !err; item++)
		err = each(r, yaml_document_get_node(r->document, *item));
	return err;
}

/* ---- names ---- */

#define LOWER "abcdefghijklmnopqrstuvwxyz"
#define WORD LOWER "0123456789_"

static bool is_word(const char *text, size_t len)
{
	return len > 0 && strspn(text, WORD) >= len;
}

/* Keys of the message, and of a JSON line made of it, besides the fields; and the one by which a
 * line tells that it is a notice. */
static bool is_reserved(const char *name)
{
	static const char *const reserved[] = { "v",	 "node",    "run",   "pid",
						"n",	 "seq",	    "lost",  "events",
						"topic", "time_us", "notice" };

	for (size_t i = 0; i < sizeof(reserved) / sizeof(reserved[0]); i++)
		if (!strcmp(name, reserved[i]))
			return true;
	return false;
}

static int field_name_check(struct reader *r, unsigned int line, const char *name)
{
	const struct event_desc *event = &r->now->event;

	if (!is_word(name, strlen(name)) || !strchr(LOWER, name[0]))
		return fail(r, line, "name: wants a-z, 0-9 and _, a letter first");
	if (is_reserved(name))
		return fail(r, line, "name: is reserved for the message itself");
	for (unsigned int i = 0; i < event->n_fields; i++)
		if (!strcmp(event->fields[i].name, name))
			return fail(r, line, "name: given twice");
	return 0;
}

static int topic_check(struct reader *r, unsigned int line, const char *topic)
{
	static const char *const reserved[] = { "bridge.", "node.", "block." };
	const char *dot = strchr(topic, '.');
	size_t len = strlen(topic);

	if (!dot || !is_word(topic, (size_t)(dot - topic)) || !is_word(dot + 1, strlen(dot + 1)))
		return fail(r, line,
			    "topic: \"%s\": wants two words of a-z, 0-9 and _ with a dot between",
			    topic);
	if (len > MAX_TOPIC)
		return fail(r, line, "topic: longer than %d characters", MAX_TOPIC);
	for (size_t i = 0; i < sizeof(reserved) / sizeof(reserved[0]); i++)
		if (!strncmp(topic, reserved[i], strlen(reserved[i])))
			return fail(r, line, "topic: \"%s\": %s topics are coretap's own", topic,
				    reserved[i]);
	for (size_t i = 0; i < r->out->n; i++) {
		const char *other = r->out->events[i].topic;
		size_t other_len = strlen(other);

		if (!strcmp(topic, other))
			return fail(r, line, "topic: \"%s\" exists already", topic);
		/* Who subscribes to the shorter one would get the longer one too. */
		if (!strncmp(topic, other, len < other_len ? len : other_len))
			return fail(r, line, "topic: \"%s\" is a prefix of \"%s\"",
				    len < other_len ? topic : other,
				    len < other_len ? other : topic);
	}
	return 0;
}

/* ---- events ---- */

enum { KEY_SUBJECT, KEY_TOPIC, KEY_SOCKET, KEY_DOC, KEY_OWN };

static int socket_read(struct reader *r, const struct key *key)
{
	const char *text = scalar(key->value);

	r->now->event.socket = SOCKET_LOW;
	if (!key->value)
		return 0;
	for (enum socket_id id = 0; id < N_SOCKETS; id++)
		if (text && !strcmp(text, socket_name(id))) {
			r->now->event.socket = id;
			return 0;
		}
	return fail(r, line_of(key->value), "socket: wants low or high");
}

/* What tracepoints and functions have in common; the default topic stands in event.topic. */
static int event_read(struct reader *r, const struct key *keys)
{
	struct event_desc *event = &r->now->event;
	int err = text_read(r, &keys[KEY_TOPIC], MAX_TOPIC, &event->topic);

	event->doc = "";
	event->flags = EVENT_DECLARED;
	event->fields = r->now->fields;
	if (!err)
		err = topic_check(r,
				  line_of(keys[KEY_TOPIC].value ? keys[KEY_TOPIC].value
								: keys[KEY_SUBJECT].value),
				  event->topic);
	if (!err)
		err = socket_read(r, &keys[KEY_SOCKET]);
	if (!err)
		err = text_read(r, &keys[KEY_DOC], MAX_DOC, &event->doc);
	return err;
}

static int event_begin(struct reader *r, const yaml_node_t *node)
{
	r->about[0] = '\0';
	/* One number is the process start's. */
	if (r->out->n + 1 >= MAX_PROBES)
		return fail(r, line_of(node), "too many events: at most %zu can be declared",
			    MAX_PROBES - 1 - r->out->n_built_in);
	r->now = calloc(1, sizeof(*r->now));
	if (!r->now)
		return fail_memory(r);
	r->now->file = r->path;
	r->now->line = line_of(node);
	return 0;
}

static int event_end(struct reader *r, int err)
{
	struct declarations *d = r->out;

	if (err) {
		free(r->now);
		r->now = NULL;
		return err;
	}
	d->table[d->n - d->n_built_in] = r->now;
	d->events[d->n++] = r->now->event;
	r->now = NULL;
	return 0;
}

static struct field_desc *field_new(struct reader *r, unsigned int line)
{
	unsigned int i = r->now->event.n_fields++;

	r->now->field_lines[i] = line;
	r->now->fields[i].argument = true;
	r->now->fields[i].unit = r->now->fields[i].doc = "";
	return &r->now->fields[i];
}

/* ---- fields of a tracepoint ---- */

enum type_kind { KIND_PLAIN, KIND_TEXT, KIND_PAYLOAD, KIND_SKIP };

static const struct {
	const char *name;
	enum field_type type;
	uint16_t slot;
	enum type_kind kind;
} types[] = {
	{ "uint", TYPE_UINT, 8, KIND_PLAIN },
	{ "int", TYPE_INT, 8, KIND_PLAIN },
	{ "bool", TYPE_BOOL, 8, KIND_PLAIN },
	{ "hash", TYPE_HASH, 32, KIND_PLAIN },
	{ "text", TYPE_TEXT, 0, KIND_TEXT },
	{ "network", TYPE_NETWORK, 8, KIND_PLAIN },
	{ "duration_us", TYPE_US_TO_NS, 8, KIND_PLAIN },
	{ "payload", TYPE_PAYLOAD, 8, KIND_PAYLOAD },
	{ "skip", TYPE_UINT, 0, KIND_SKIP },
};
#define N_TYPES (sizeof(types) / sizeof(types[0]))

static int type_find(struct reader *r, const struct key *key, size_t n, unsigned int line,
		     size_t *out)
{
	char list[128] = "";
	const char *text = scalar(key->value);

	if (!key->value)
		return fail(r, line, "%s: missing", key->name);
	for (*out = 0; *out < n; (*out)++) {
		if (text && !strcmp(text, types[*out].name))
			return 0;
		snprintf(list + strlen(list), sizeof(list) - strlen(list), "%s%s", *out ? ", " : "",
			 types[*out].name);
	}
	return fail(r, line_of(key->value), "type: \"%s\" is none of %s", text ? text : "", list);
}

/* A text's slot holds the longest text that is asked for and its final NUL. */
static uint16_t text_slot(unsigned long max)
{
#define SLOT(SIZE)        \
	if (max < (SIZE)) \
		return SIZE;
	TEXT_SLOTS(SLOT)
#undef SLOT
	return 0;
}

static uint32_t record_bytes(const struct declaration *d)
{
	uint32_t bytes = sizeof(struct record);

	for (unsigned int i = 0; i < d->event.n_fields; i++)
		if (d->fields[i].argument && d->fields[i].type != TYPE_PAYLOAD)
			bytes += d->fields[i].slot;
	return bytes;
}

static int record_check(struct reader *r, unsigned int line)
{
	const struct declaration *d = r->now;
	uint32_t bytes = record_bytes(d), room = MAX_RECORD_SIZE;

	for (unsigned int i = 0; i < d->event.n_fields; i++)
		if (d->fields[i].type == TYPE_PAYLOAD)
			room = PAYLOAD_OFFSET;
	if (bytes > room)
		return fail(r, line,
			    "the fields up to this one take %u bytes, %u are there%s: "
			    "give texts a smaller max",
			    bytes - (uint32_t)sizeof(struct record),
			    room - (uint32_t)sizeof(struct record),
			    room == PAYLOAD_OFFSET ? " beside a payload" : "");
	return 0;
}

/* The argument before a payload is its size; behind it comes what tells that it was cut. */
static int payload_check(struct reader *r, unsigned int line)
{
	struct declaration *d = r->now;
	unsigned int at = d->event.n_fields - 1;
	const struct field_desc *size = at ? &d->fields[at - 1] : NULL;
	struct field_desc *cut;

	if (!size || (size->type != TYPE_UINT && size->type != TYPE_INT) || !size->argument ||
	    d->operand[at - 1] + 1 != d->operand[at])
		return fail(r, line, "the argument before a payload must be its size, an uint");
	for (unsigned int i = 0; i < at; i++) {
		if (d->fields[i].type == TYPE_PAYLOAD)
			return fail(r, line, "a second payload: there can be one");
		if (!strcmp(d->fields[i].name, "truncated"))
			return fail(r, line,
				    "a field truncated follows a payload: call that of line %u "
				    "otherwise",
				    d->field_lines[i]);
	}
	cut = field_new(r, line);
	*cut = (struct field_desc){
		.name = "truncated",
		.name_len = sizeof("truncated") - 1,
		.type = TYPE_BOOL,
		.unit = "",
		.doc = "present and true when it was cut",
	};
	return 0;
}

enum { FIELD_NAME, FIELD_TYPE, FIELD_MAX, FIELD_UNIT, FIELD_DOC, N_FIELD_KEYS };

static int field_finish(struct reader *r, const struct key *keys, size_t type, unsigned int line)
{
	struct declaration *d = r->now;
	struct field_desc *field = &d->fields[d->event.n_fields - 1];
	unsigned long max = DEFAULT_TEXT;
	int err = 0;

	field->type = types[type].type;
	field->slot = types[type].slot;
	if (types[type].kind == KIND_TEXT) {
		err = number_read(r, &keys[FIELD_MAX], 1, 511, &max);
		field->slot = text_slot(max);
	} else if (types[type].kind == KIND_PAYLOAD) {
		max = MAX_PAYLOAD;
		err = number_read(r, &keys[FIELD_MAX], 1, MAX_PAYLOAD, &max);
		d->payload_limit = (uint32_t)max;
	} else if (keys[FIELD_MAX].value) {
		return fail(r, line_of(keys[FIELD_MAX].value),
			    "max: is for types text and payload");
	}
	if (field->type == TYPE_US_TO_NS) {
		if (*field->unit && strcmp(field->unit, "ns"))
			return fail(r, line_of(keys[FIELD_UNIT].value),
				    "unit: duration_us is published in ns");
		field->unit = "ns";
	}
	if (!err && types[type].kind == KIND_PAYLOAD)
		err = payload_check(r, line);
	return err ? err : record_check(r, line);
}

/* Numbers the arguments while the list is read: those that are skipped count too. */
static int tracepoint_field(struct reader *r, const yaml_node_t *node)
{
	struct key keys[N_FIELD_KEYS] = { { "name", NULL },
					  { "type", NULL },
					  { "max", NULL },
					  { "unit", NULL },
					  { "doc", NULL } };
	const char *name = scalar(map_find(r, node, "name"));
	struct declaration *d = r->now;
	unsigned int line = line_of(node);
	struct field_desc *field;
	size_t type;
	int err;

	snprintf(r->about, sizeof(r->about), "field \"%.*s\"", MAX_NAME, name ? name : "");
	err = map_read(r, node, keys, N_FIELD_KEYS);
	if (!err && d->n_operands == MAX_ARGS)
		err = fail(r, line, "too many arguments: at most %d", MAX_ARGS);
	if (!err)
		err = type_find(r, &keys[FIELD_TYPE], N_TYPES, line, &type);
	if (err)
		return err;
	d->n_operands++;
	if (types[type].kind == KIND_SKIP)
		return 0;
	if (!keys[FIELD_NAME].value)
		return fail(r, line, "name: missing");
	if (!name || strlen(name) > MAX_NAME)
		return fail(r, line_of(keys[FIELD_NAME].value), "name: wants 1 to %d characters",
			    MAX_NAME);
	err = field_name_check(r, line_of(keys[FIELD_NAME].value), name);
	if (err)
		return err;
	field = field_new(r, line);
	d->operand[d->event.n_fields - 1] = (uint8_t)(d->n_operands - 1);
	field->name = keep(r, name);
	field->name_len = (uint8_t)strlen(name);
	if (!field->name)
		return fail_memory(r);
	err = text_read(r, &keys[FIELD_UNIT], 16, &field->unit);
	if (!err)
		err = text_read(r, &keys[FIELD_DOC], MAX_DOC, &field->doc);
	return err ? err : field_finish(r, keys, type, line);
}

/* "provider:name", also put into topic as "provider.name". */
static int probe_split(struct reader *r, const struct key *key)
{
	struct event_desc *event = &r->now->event;
	const char *text = scalar(key->value), *colon = text ? strchr(text, ':') : NULL;
	char copy[2 * MAX_NAME + 2];

	if (!colon || colon == text || !colon[1] || strchr(colon + 1, ':') ||
	    strpbrk(text, " \t\"") || strlen(text) >= sizeof(copy))
		return fail(r, line_of(key->value), "tracepoint: wants provider:name");
	strcpy(copy, text);
	copy[colon - text] = '.';
	event->topic = keep(r, copy);
	copy[colon - text] = '\0';
	event->provider = keep(r, copy);
	event->name = keep(r, copy + (colon - text) + 1);
	return event->topic && event->provider && event->name ? 0 : fail_memory(r);
}

static int tracepoint_read(struct reader *r, const yaml_node_t *node)
{
	struct key keys[] = { { "tracepoint", NULL },
			      { "topic", NULL },
			      { "socket", NULL },
			      { "doc", NULL },
			      { "fields", NULL } };
	const char *name = scalar(map_find(r, node, "tracepoint"));
	int err = event_begin(r, node);

	if (err)
		return err;
	snprintf(r->about, sizeof(r->about), "tracepoint \"%.*s\"", 2 * MAX_NAME, name ? name : "");
	err = map_read(r, node, keys, sizeof(keys) / sizeof(keys[0]));
	if (!err && !keys[KEY_SUBJECT].value)
		err = fail(r, line_of(node), "tracepoint: missing");
	if (!err)
		err = probe_split(r, &keys[KEY_SUBJECT]);
	if (!err)
		err = event_read(r, keys);
	if (!err)
		err = list_read(r, &keys[KEY_OWN], tracepoint_field);
	return event_end(r, err);
}

/* ---- functions ---- */

/* Where the program puts a value of a call: see record.h. */
static void place_add(struct reader *r, unsigned int place, unsigned int size, bool is_signed)
{
	struct declaration *d = r->now;
	unsigned int at = d->event.n_fields - 1;

	d->operand[at] = (uint8_t)at;
	d->operands[at] = (struct operand){
		.kind = OPERAND_REG,
		.size = (__u8)size,
		.is_signed = is_signed,
		.base = (__u16)place,
	};
}

enum { VALUE_NAME, VALUE_TYPE, VALUE_SIZE, VALUE_UNIT, VALUE_DOC, VALUE_INDEX };

/* An argument or the result: an integer of which size bytes count. */
static int call_value(struct reader *r, const yaml_node_t *node, struct key *keys, size_t n_keys,
		      const char *default_name)
{
	const char *name = scalar(map_find(r, node, "name"));
	unsigned int line = line_of(node);
	unsigned long size, index = 0;
	struct field_desc *field;
	size_t type = 0;
	int err;

	name = name ? name : default_name;
	snprintf(r->about, sizeof(r->about), "field \"%.*s\"", MAX_NAME, name ? name : "");
	err = map_read(r, node, keys, n_keys);
	if (err)
		return err;
	if (!name)
		return fail(r, line, "name: missing");
	if (strlen(name) > MAX_NAME)
		return fail(r, line, "name: longer than %d characters", MAX_NAME);
	err = field_name_check(r, keys[VALUE_NAME].value ? line_of(keys[VALUE_NAME].value) : line,
			       name);
	if (!err)
		err = type_find(r, &keys[VALUE_TYPE], 3, line, &type);
	if (err)
		return err;
	/* Of a bool the calling conventions define one byte. */
	size = types[type].type == TYPE_BOOL ? 1 : 8;
	err = number_read(r, &keys[VALUE_SIZE], 1, 8, &size);
	if (!err && (size & (size - 1)))
		err = fail(r, line_of(keys[VALUE_SIZE].value), "size: wants 1, 2, 4 or 8");
	if (!err && n_keys > VALUE_INDEX) {
		if (!keys[VALUE_INDEX].value)
			return fail(r, line, "index: missing");
		err = number_read(r, &keys[VALUE_INDEX], 1, FUNCTION_ARGUMENTS, &index);
	}
	if (err)
		return err;
	if (r->now->event.n_fields == MAX_ARGS)
		return fail(r, line, "too many arguments: at most %d", MAX_ARGS - 1);
	field = field_new(r, line);
	field->name = keep(r, name);
	field->name_len = (uint8_t)strlen(name);
	field->type = types[type].type;
	field->slot = 8;
	place_add(r, n_keys > VALUE_INDEX ? REGISTER_ARGUMENT(index) : REGISTER_RETURN,
		  (unsigned int)size, field->type == TYPE_INT);
	if (!field->name)
		return fail_memory(r);
	err = text_read(r, &keys[VALUE_UNIT], 16, &field->unit);
	return err ? err : text_read(r, &keys[VALUE_DOC], MAX_DOC, &field->doc);
}

static int function_argument(struct reader *r, const yaml_node_t *node)
{
	struct key keys[] = { { "name", NULL }, { "type", NULL }, { "size", NULL },
			      { "unit", NULL }, { "doc", NULL },  { "index", NULL } };

	return call_value(r, node, keys, sizeof(keys) / sizeof(keys[0]), NULL);
}

static int function_result(struct reader *r, const struct key *key)
{
	struct key keys[] = { { "name", NULL },
			      { "type", NULL },
			      { "size", NULL },
			      { "unit", NULL },
			      { "doc", NULL } };

	if (!key->value)
		return 0;
	return call_value(r, key->value, keys, sizeof(keys) / sizeof(keys[0]), "result");
}

static void duration_add(struct reader *r, unsigned int line)
{
	struct field_desc *field = field_new(r, line);

	field->name = "duration_ns";
	field->name_len = sizeof("duration_ns") - 1;
	field->type = TYPE_INT;
	field->slot = 8;
	field->unit = "ns";
	field->doc = "time from its entry to its return";
	place_add(r, REGISTER_DURATION, 8, true);
}

/* What hello shows of its site. */
static int args_write(struct reader *r)
{
	struct declaration *d = r->now;
	char text[256] = "";

	for (unsigned int i = 0; i < d->event.n_fields; i++) {
		const struct operand *o = &d->operands[i];
		size_t used = strlen(text);

		snprintf(text + used, sizeof(text) - used, "%s%s%u@", i ? " " : "",
			 o->is_signed ? "-" : "", o->size);
		used = strlen(text);
		if (o->base == REGISTER_DURATION)
			snprintf(text + used, sizeof(text) - used, "duration");
		else if (o->base == REGISTER_RETURN)
			snprintf(text + used, sizeof(text) - used, "return");
		else
			snprintf(text + used, sizeof(text) - used, "arg%u",
				 (o->base - REGISTER_ARGUMENT(1)) / 8 + 1);
	}
	d->args = keep(r, text);
	return d->args ? 0 : fail_memory(r);
}

/* A debug file that is not named from the root stands beside the file that names it. */
static int debug_read(struct reader *r, const struct key *key)
{
	const char *slash = strrchr(r->path, '/');
	char path[4096];
	int err = text_read(r, key, 2000, &r->now->debug);

	if (err || !r->now->debug || r->now->debug[0] == '/' || !slash)
		return err;
	snprintf(path, sizeof(path), "%.*s/%s", (int)(slash - r->path), r->path, r->now->debug);
	r->now->debug = keep(r, path);
	return r->now->debug ? 0 : fail_memory(r);
}

static int function_head(struct reader *r, const struct key *key, bool has_topic)
{
	struct event_desc *event = &r->now->event;
	char topic[sizeof("function.") + MAX_SYMBOL];
	int err = text_read(r, key, MAX_SYMBOL, &event->name);

	if (err)
		return err;
	event->provider = "function";
	snprintf(topic, sizeof(topic), "function.%s", event->name);
	event->topic = keep(r, topic);
	if (!event->topic)
		return fail_memory(r);
	if (!has_topic && !is_word(event->name, strlen(event->name)))
		return fail(r, line_of(key->value), "topic: missing: the name cannot serve as one");
	return 0;
}

enum { KEY_ARGUMENTS = KEY_OWN, KEY_RETURNS, KEY_DEBUG, KEY_THROWS };

static int function_read(struct reader *r, const yaml_node_t *node)
{
	struct key keys[] = { { "function", NULL }, { "topic", NULL },	   { "socket", NULL },
			      { "doc", NULL },	    { "arguments", NULL }, { "returns", NULL },
			      { "debug", NULL },    { "throws", NULL } };
	const char *name = scalar(map_find(r, node, "function"));
	bool throws = true;
	int err = event_begin(r, node);

	if (err)
		return err;
	r->now->is_function = true;
	snprintf(r->about, sizeof(r->about), "function \"%.*s\"", MAX_SYMBOL, name ? name : "");
	err = map_read(r, node, keys, sizeof(keys) / sizeof(keys[0]));
	if (!err && !keys[KEY_SUBJECT].value)
		err = fail(r, line_of(node), "function: missing");
	if (!err)
		err = function_head(r, &keys[KEY_SUBJECT], keys[KEY_TOPIC].value);
	if (!err)
		err = event_read(r, keys);
	if (!err)
		err = debug_read(r, &keys[KEY_DEBUG]);
	if (!err)
		err = bool_read(r, &keys[KEY_THROWS], &throws);
	r->now->throws_nothing = !throws;
	duration_add(r, line_of(node));
	if (!err)
		err = list_read(r, &keys[KEY_ARGUMENTS], function_argument);
	if (!err)
		err = function_result(r, &keys[KEY_RETURNS]);
	if (!err)
		err = args_write(r);
	return event_end(r, err);
}

/* ---- the file ---- */

static int document_read(struct reader *r)
{
	struct key keys[] = { { "tracepoints", NULL }, { "functions", NULL } };
	const yaml_node_t *root = yaml_document_get_root_node(r->document);
	int err;

	if (!root)
		return fail(r, 1, "is empty: wants lists of tracepoints or functions");
	err = map_read(r, root, keys, 2);
	if (!err && !keys[0].value && !keys[1].value)
		err = fail(r, line_of(root), "wants lists of tracepoints or functions");
	if (!err)
		err = list_read(r, &keys[0], tracepoint_read);
	r->about[0] = '\0';
	if (!err)
		err = list_read(r, &keys[1], function_read);
	return err;
}

static void forget(struct declarations *d, size_t n)
{
	while (d->n > n) {
		d->n--;
		free(d->table[d->n - d->n_built_in]);
		d->table[d->n - d->n_built_in] = NULL;
	}
}

static int parser_fail(struct reader *r, const yaml_parser_t *parser)
{
	if (parser->error == YAML_MEMORY_ERROR)
		return fail_memory(r);
	return fail(r, (unsigned int)parser->problem_mark.line + 1, "no valid YAML: %s",
		    parser->problem ? parser->problem : "cannot be read");
}

int declarations_parse(struct declarations *d, const char *path, const char *text, size_t len,
		       char *error, size_t error_size)
{
	struct reader r = { .out = d, .error = error, .error_size = error_size };
	yaml_document_t document;
	yaml_parser_t parser;
	size_t before = d->n;
	int err;

	r.path = path;
	r.path = keep(&r, path);
	if (!r.path || !yaml_parser_initialize(&parser)) {
		snprintf(error, error_size, "%s: out of memory", path);
		return -ENOMEM;
	}
	yaml_parser_set_input_string(&parser, (const unsigned char *)text, len);
	if (yaml_parser_load(&parser, &document)) {
		r.document = &document;
		err = document_read(&r);
		yaml_document_delete(&document);
	} else {
		err = parser_fail(&r, &parser);
	}
	/* What stands behind the first document would be read by nobody. */
	if (!err && !yaml_parser_load(&parser, &document)) {
		r.about[0] = '\0';
		err = parser_fail(&r, &parser);
	} else if (!err) {
		const yaml_node_t *more = yaml_document_get_root_node(&document);

		r.about[0] = '\0';
		if (more)
			err = fail(&r, line_of(more), "a second document: wants one");
		yaml_document_delete(&document);
	}
	yaml_parser_delete(&parser);
	if (err)
		forget(d, before);
	return err;
}

int declarations_read(struct declarations *d, const char *path, char *error, size_t error_size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO is refused */
	char *text = NULL;
	size_t len = 0;
	struct stat st = { .st_mode = 0 };
	int err;

	err = fd < 0 || fstat(fd, &st) ? -errno : 0;
	if (!err && !S_ISREG(st.st_mode))
		err = S_ISDIR(st.st_mode) ? -EISDIR : -EINVAL;
	if (!err && st.st_size > MAX_FILE)
		err = -EFBIG;
	if (!err) {
		text = malloc((size_t)st.st_size + 1);
		err = text ? 0 : -ENOMEM;
	}
	while (!err && len < (size_t)st.st_size) {
		ssize_t n = read(fd, text + len, (size_t)st.st_size - len);

		if (n < 0)
			err = -errno;
		if (n <= 0)
			break;
		len += (size_t)n;
	}
	if (err)
		snprintf(error, error_size, "%s: %s", path, strerror(-err));
	else
		err = declarations_parse(d, path, text, len, error, error_size);
	free(text);
	if (fd >= 0)
		close(fd);
	return err;
}

void declarations_init(struct declarations *d)
{
	const struct event_desc *events;

	memset(d, 0, sizeof(*d));
	events = catalogue(&d->n_built_in);
	d->n = d->n_built_in;
	memcpy(d->events, events, d->n * sizeof(events[0]));
}

void declarations_free(struct declarations *d)
{
	struct kept *next;

	forget(d, d->n_built_in);
	for (struct kept *kept = d->kept; kept; kept = next) {
		next = kept->next;
		free(kept);
	}
	d->kept = NULL;
}

const struct declaration *declarations_of(const struct declarations *d, size_t event)
{
	return event < d->n_built_in ? NULL : d->table[event - d->n_built_in];
}
