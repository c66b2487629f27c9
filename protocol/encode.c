/* See encode.h. Key names stand here and nowhere else on the writing side. */
#include <stdlib.h>
#include <string.h>

#include "encode.h"

static void encode_fail(msgpack_sbuffer *out)
{
	free(out->data);
	*out = (msgpack_sbuffer){ .size = SIZE_MAX };
}

int encode_write(void *buffer, const char *data, size_t len)
{
	msgpack_sbuffer *out = buffer;

	if (encode_whole(out) && !msgpack_sbuffer_write(out, data, len))
		return 0;
	encode_fail(out);
	return -1;
}

bool encode_whole(const msgpack_sbuffer *out)
{
	return out->size != SIZE_MAX;
}

static void pack_key(msgpack_packer *pk, const char *key)
{
	msgpack_pack_str_with_body(pk, key, strlen(key));
}

static void pack_text(msgpack_packer *pk, const char *text)
{
	msgpack_pack_str_with_body(pk, text, strlen(text));
}

/* Length of the well-formed UTF-8 sequence at p (RFC 3629: no overlong forms, no surrogates), or 0.
 */
static size_t utf8_length(const uint8_t *p, size_t left)
{
	static const struct {
		uint8_t first, last, min, max, length;
	} forms[] = {
		{ 0x00, 0x7f, 0x80, 0xbf, 1 }, { 0xc2, 0xdf, 0x80, 0xbf, 2 },
		{ 0xe0, 0xe0, 0xa0, 0xbf, 3 }, { 0xe1, 0xec, 0x80, 0xbf, 3 },
		{ 0xed, 0xed, 0x80, 0x9f, 3 }, { 0xee, 0xef, 0x80, 0xbf, 3 },
		{ 0xf0, 0xf0, 0x90, 0xbf, 4 }, { 0xf1, 0xf3, 0x80, 0xbf, 4 },
		{ 0xf4, 0xf4, 0x80, 0x8f, 4 },
	};

	for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
		if (p[0] < forms[i].first || p[0] > forms[i].last)
			continue;
		if (forms[i].length > left)
			return 0;
		if (forms[i].length > 1 && (p[1] < forms[i].min || p[1] > forms[i].max))
			return 0;
		for (size_t k = 2; k < forms[i].length; k++)
			if (p[k] < 0x80 || p[k] > 0xbf)
				return 0;
		return forms[i].length;
	}
	return 0;
}

/* ---- events: the hot path, so bytes are put where they belong without a call for each ---- */

struct writer {
	uint8_t *at;
};

/* What a header, or an integer, takes at most. */
#define MAX_HEAD 9

static void put_be(struct writer *w, uint8_t type, uint64_t value, unsigned int bytes)
{
	*w->at++ = type;
	for (unsigned int i = bytes; i-- > 0;)
		*w->at++ = (uint8_t)(value >> (8 * i));
}

static void put_unsigned(struct writer *w, uint64_t u)
{
	if (u < 0x80)
		*w->at++ = (uint8_t)u;
	else if (u <= 0xff)
		put_be(w, 0xcc, u, 1);
	else if (u <= 0xffff)
		put_be(w, 0xcd, u, 2);
	else if (u <= 0xffffffff)
		put_be(w, 0xce, u, 4);
	else
		put_be(w, 0xcf, u, 8);
}

static void put_int(struct writer *w, int64_t i)
{
	if (i >= 0)
		put_unsigned(w, (uint64_t)i);
	else if (i >= -32)
		*w->at++ = (uint8_t)i;
	else if (i >= INT8_MIN)
		put_be(w, 0xd0, (uint64_t)i, 1);
	else if (i >= INT16_MIN)
		put_be(w, 0xd1, (uint64_t)i, 2);
	else if (i >= INT32_MIN)
		put_be(w, 0xd2, (uint64_t)i, 4);
	else
		put_be(w, 0xd3, (uint64_t)i, 8);
}

static void put_bytes(struct writer *w, const void *data, size_t len)
{
	memcpy(w->at, data, len);
	w->at += len;
}

static void put_str_head(struct writer *w, size_t len)
{
	if (len < 32)
		*w->at++ = (uint8_t)(0xa0 | len);
	else if (len <= 0xff)
		put_be(w, 0xd9, len, 1);
	else if (len <= 0xffff)
		put_be(w, 0xda, len, 2);
	else
		put_be(w, 0xdb, len, 4);
}

static void put_str(struct writer *w, const char *text, size_t len)
{
	put_str_head(w, len);
	put_bytes(w, text, len);
}

static void put_array_head(struct writer *w, size_t n)
{
	if (n < 16)
		*w->at++ = (uint8_t)(0x90 | n);
	else if (n <= 0xffff)
		put_be(w, 0xdc, n, 2);
	else
		put_be(w, 0xdd, n, 4);
}

static void put_bin(struct writer *w, const void *data, size_t len)
{
	if (len <= 0xff)
		put_be(w, 0xc4, len, 1);
	else if (len <= 0xffff)
		put_be(w, 0xc5, len, 2);
	else
		put_be(w, 0xc6, len, 4);
	put_bytes(w, data, len);
}

static void put_hash(struct writer *w, const uint8_t *internal)
{
	uint64_t words[4];

	put_be(w, 0xc4, 32, 1);
	memcpy(words, internal, 32);
	for (int i = 3; i >= 0; i--) {
		uint64_t swapped = __builtin_bswap64(words[i]);

		put_bytes(w, &swapped, 8);
	}
}

/* Text from the node or its peers: str must be valid UTF-8, or other languages' decoders throw. */
static void put_text(struct writer *w, const uint8_t *text, size_t len)
{
	static const char replacement[] = "\xef\xbf\xbd";
	size_t ascii = 0, size = 0;

	while (ascii < len && text[ascii] < 0x80)
		ascii++;
	if (ascii == len) {
		put_str(w, (const char *)text, len);
		return;
	}
	for (size_t i = 0, step; i < len; i += step ? step : 1) {
		step = utf8_length(text + i, len - i);
		size += step ? step : 3;
	}
	put_str_head(w, size);
	for (size_t i = 0, step; i < len; i += step ? step : 1) {
		step = utf8_length(text + i, len - i);
		put_bytes(w, step ? (const char *)text + i : replacement, step ? step : 3);
	}
}

static void put_list(struct writer *w, enum field_type type, const struct value_list *list)
{
	put_array_head(w, list->count);
	for (size_t i = 0; i < list->count; i++) {
		if (list->missing && (list->missing[i] & list->bit))
			*w->at++ = 0xc0;
		else if (type == TYPE_HASHES)
			put_hash(w, (const uint8_t *)list->items + 32 * i);
		else if (type == TYPE_INTS)
			put_int(w, ((const int64_t *)list->items)[i]);
		else
			put_unsigned(w, ((const uint64_t *)list->items)[i]);
	}
}

static void put_named_list(struct writer *w, const char *name, enum field_type type,
			   struct value_list list)
{
	put_str(w, name, strlen(name));
	put_list(w, type, &list);
}

static void put_conflicts(struct writer *w, const struct removals *c)
{
	*w->at++ = 0x85; /* a map of 5 */
	put_named_list(w, "txids", TYPE_HASHES,
		       (struct value_list){ c->txids, c->n, c->missing, MISSING_TXID });
	put_named_list(w, "fees", TYPE_INTS,
		       (struct value_list){ c->fees, c->n, c->missing, MISSING_FEE });
	put_named_list(w, "vsizes", TYPE_UINTS,
		       (struct value_list){ c->vsizes, c->n, c->missing, MISSING_VSIZE });
	put_named_list(w, "entry_times", TYPE_UINTS,
		       (struct value_list){ c->entry_times, c->n, c->missing, MISSING_ENTRY_TIME });
	put_named_list(w, "after", TYPE_UINTS, (struct value_list){ c->after, c->n, NULL, 0 });
}

static void put_value(struct writer *w, enum field_type type, const struct value *value)
{
	if (value->state == VALUE_NIL) {
		*w->at++ = 0xc0;
		return;
	}
	switch (type) {
	case TYPE_UINT:
		put_unsigned(w, value->u);
		break;
	case TYPE_INT:
	case TYPE_US_TO_NS:
		put_int(w, value->i);
		break;
	case TYPE_BOOL:
	case TYPE_SELECT:
		*w->at++ = value->b ? 0xc3 : 0xc2;
		break;
	case TYPE_HASH:
	case TYPE_ALIAS:
		put_hash(w, value->bytes.data);
		break;
	case TYPE_TEXT:
		put_text(w, value->bytes.data, value->bytes.len);
		break;
	case TYPE_NETWORK:
		put_str(w, network_name(value->u), strlen(network_name(value->u)));
		break;
	case TYPE_PAYLOAD:
		put_bin(w, value->bytes.data, value->bytes.len);
		break;
	case TYPE_HASHES:
	case TYPE_UINTS:
	case TYPE_INTS:
		put_list(w, type, &value->list);
		break;
	case TYPE_CONFLICTS:
		put_conflicts(w, value->conflicts);
		break;
	}
}

/* Bytes that a value takes at most, its key apart. */
static size_t value_bound(enum field_type type, const struct value *value)
{
	if (value->state != VALUE_SET)
		return MAX_HEAD;
	switch (type) {
	case TYPE_HASH:
	case TYPE_ALIAS:
	case TYPE_NETWORK:
		return MAX_HEAD + 32;
	case TYPE_TEXT:
		return MAX_HEAD + 3 * value->bytes.len; /* each byte may become U+FFFD */
	case TYPE_PAYLOAD:
		return MAX_HEAD + value->bytes.len;
	case TYPE_HASHES:
		return MAX_HEAD + 34 * value->list.count;
	case TYPE_UINTS:
	case TYPE_INTS:
		return MAX_HEAD + MAX_HEAD * value->list.count;
	case TYPE_CONFLICTS:
		return 64 + 5 * MAX_HEAD + (34 + 4 * MAX_HEAD) * value->conflicts->n;
	default:
		return MAX_HEAD;
	}
}

/* Room for bytes more at the end of a buffer, or NULL. */
static uint8_t *reserve(msgpack_sbuffer *out, size_t bytes)
{
	size_t size = out->alloc ? out->alloc : 1024;
	char *data;

	if (!encode_whole(out))
		return NULL;
	if (out->size + bytes > out->alloc) {
		while (size < out->size + bytes)
			size *= 2;
		data = realloc(out->data, size);
		if (!data)
			return NULL;
		out->data = data;
		out->alloc = size;
	}
	return (uint8_t *)out->data + out->size;
}

void encode_text(msgpack_sbuffer *out, const char *text, size_t len)
{
	struct writer w = { reserve(out, MAX_HEAD + 3 * len) };

	if (w.at) {
		put_text(&w, (const uint8_t *)text, len);
		out->size = (size_t)(w.at - (uint8_t *)out->data);
	} else {
		encode_fail(out);
	}
}

bool encode_event(msgpack_sbuffer *out, const struct event_desc *event, uint64_t time_us,
		  const struct value *values)
{
	size_t bound = 32;
	unsigned int present = 1;
	struct writer w;

	for (unsigned int i = 0; i < event->n_fields; i++) {
		if (values[i].state == VALUE_ABSENT)
			continue;
		present++;
		bound += MAX_HEAD + event->fields[i].name_len +
			 value_bound(event->fields[i].type, &values[i]);
	}
	w.at = reserve(out, bound);
	if (!w.at)
		return false;
	if (present < 16)
		*w.at++ = (uint8_t)(0x80 | present);
	else
		put_be(&w, 0xde, present, 2);
	put_str(&w, "time_us", 7);
	put_unsigned(&w, time_us);
	for (unsigned int i = 0; i < event->n_fields; i++) {
		if (values[i].state == VALUE_ABSENT)
			continue;
		put_str(&w, event->fields[i].name, event->fields[i].name_len);
		put_value(&w, event->fields[i].type, &values[i]);
	}
	out->size = (size_t)(w.at - (uint8_t *)out->data);
	return true;
}

size_t encode_message_begin(msgpack_sbuffer *out, const char *node, uint64_t run, uint32_t pid,
			    uint64_t n, uint64_t seq, uint64_t lost)
{
	msgpack_packer pk;

	msgpack_packer_init(&pk, out, encode_write);
	msgpack_pack_map(&pk, lost ? 8 : 7);
	pack_key(&pk, "v");
	msgpack_pack_uint64(&pk, WIRE_VERSION);
	pack_key(&pk, "node");
	pack_text(&pk, node);
	pack_key(&pk, "run");
	msgpack_pack_uint64(&pk, run);
	pack_key(&pk, "pid");
	msgpack_pack_uint64(&pk, pid);
	pack_key(&pk, "n");
	msgpack_pack_uint64(&pk, n);
	pack_key(&pk, "seq");
	msgpack_pack_uint64(&pk, seq);
	if (lost) {
		pack_key(&pk, "lost");
		msgpack_pack_uint64(&pk, lost);
	}
	pack_key(&pk, "events");
	/* array 16, its length to be filled in */
	encode_write(out, "\xdc\0", 3);
	return out->size - 2;
}

void encode_message_end(msgpack_sbuffer *out, size_t place, unsigned int events)
{
	if (!encode_whole(out))
		return;
	out->data[place] = (char)(events >> 8);
	out->data[place + 1] = (char)events;
}

void encode_status(msgpack_sbuffer *out, const struct bridge_status *s)
{
	msgpack_packer pk;

	msgpack_packer_init(&pk, out, encode_write);
	msgpack_pack_map(&pk, 12 + s->guarded);
	pack_key(&pk, "v");
	msgpack_pack_uint64(&pk, WIRE_VERSION);
	pack_key(&pk, "node");
	pack_text(&pk, s->node);
	pack_key(&pk, "run");
	msgpack_pack_uint64(&pk, s->run);
	pack_key(&pk, "socket");
	pack_text(&pk, socket_name(s->socket));
	pack_key(&pk, "time_us");
	msgpack_pack_uint64(&pk, s->time_us);
	pack_key(&pk, "n");
	msgpack_pack_uint64(&pk, s->n);
	pack_key(&pk, "heads");
	msgpack_pack_map(&pk, s->n_topics);
	for (size_t i = 0; i < s->n_topics; i++) {
		pack_key(&pk, s->topics[i].topic);
		msgpack_pack_uint64(&pk, s->topics[i].head);
	}
	pack_key(&pk, "held");
	msgpack_pack_uint64(&pk, s->held);
	pack_key(&pk, "counters");
	msgpack_pack_map(&pk, s->n_topics);
	for (size_t i = 0; i < s->n_topics; i++) {
		const struct topic_status *t = &s->topics[i];

		pack_key(&pk, t->topic);
		msgpack_pack_map(&pk, 5);
		pack_key(&pk, "fired");
		msgpack_pack_uint64(&pk, t->fired);
		pack_key(&pk, "submitted");
		msgpack_pack_uint64(&pk, t->submitted);
		pack_key(&pk, "lost");
		msgpack_pack_uint64(&pk, t->lost);
		pack_key(&pk, "faults");
		msgpack_pack_uint64(&pk, t->faults);
		pack_key(&pk, "truncated");
		msgpack_pack_uint64(&pk, t->truncated);
	}
	pack_key(&pk, "replay");
	pack_text(&pk, s->replay);
	pack_key(&pk, "pid");
	if (s->pid)
		msgpack_pack_uint64(&pk, s->pid);
	else
		msgpack_pack_nil(&pk);
	pack_key(&pk, "ignored");
	msgpack_pack_array(&pk, s->n_ignored);
	for (size_t i = 0; i < s->n_ignored; i++)
		msgpack_pack_uint64(&pk, s->ignored[i]);
	if (s->guarded) {
		pack_key(&pk, "rejected");
		msgpack_pack_uint64(&pk, s->rejected);
	}
}

static void pack_pair(msgpack_packer *pk, const char *key, const char *text)
{
	pack_key(pk, key);
	pack_text(pk, text);
}

static void pack_flag(msgpack_packer *pk, const char *key, bool flag)
{
	pack_key(pk, key);
	if (flag)
		msgpack_pack_true(pk);
	else
		msgpack_pack_false(pk);
}

static void pack_field(msgpack_packer *pk, const struct event_desc *event,
		       const struct field_desc *field)
{
	msgpack_pack_map(pk, 6);
	pack_pair(pk, "name", field->name);
	pack_pair(pk, "type", field_type_name(field->type));
	pack_pair(pk, "wire", field_wire_type(field->type));
	pack_pair(pk, "unit", field->unit);
	pack_key(pk, "since");
	msgpack_pack_uint64(pk, field->since ? field->since : event->since);
	pack_pair(pk, "doc", field->doc);
}

void encode_catalogue(msgpack_sbuffer *out, const struct event_desc *const *events, size_t n)
{
	msgpack_packer pk;

	msgpack_packer_init(&pk, out, encode_write);
	msgpack_pack_array(&pk, n);
	for (size_t i = 0; i < n; i++) {
		const struct event_desc *event = events[i];
		size_t published = 0;

		for (unsigned int f = 0; f < event->n_fields; f++)
			published += event->fields[f].type != TYPE_SELECT;
		msgpack_pack_map(&pk, 9);
		pack_pair(&pk, "topic", event->topic);
		pack_pair(&pk, "provider", event->provider);
		pack_pair(&pk, "name", event->name);
		pack_pair(&pk, "socket", socket_name(event->socket));
		pack_key(&pk, "since");
		msgpack_pack_uint64(&pk, event->since);
		pack_flag(&pk, "derived", event->flags & EVENT_DERIVED);
		pack_flag(&pk, "opt_in", event->flags & EVENT_OPT_IN);
		pack_pair(&pk, "doc", event->doc);
		pack_key(&pk, "fields");
		msgpack_pack_array(&pk, published);
		for (unsigned int f = 0; f < event->n_fields; f++)
			if (event->fields[f].type != TYPE_SELECT)
				pack_field(&pk, event, &event->fields[f]);
	}
}
