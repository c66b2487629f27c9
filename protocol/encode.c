/* See encode.h. Key names stand here and nowhere else on the writing side. */
#include <string.h>

#include "encode.h"

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

/* Text from the node or its peers: str must be valid UTF-8, or decoders in other languages throw.
 */
static void pack_foreign_text(msgpack_packer *pk, const uint8_t *text, size_t len)
{
	static const char replacement[] = "\xef\xbf\xbd";
	size_t valid = 0, invalid = 0;

	for (size_t i = 0, step; i < len; i += step ? step : 1) {
		step = text[i] < 0x80 ? 1 : utf8_length(text + i, len - i);
		if (step)
			valid += step;
		else
			invalid++;
	}
	msgpack_pack_str(pk, valid + 3 * invalid);
	if (!invalid) {
		msgpack_pack_str_body(pk, text, len);
		return;
	}
	for (size_t i = 0, step; i < len; i += step ? step : 1) {
		step = utf8_length(text + i, len - i);
		if (step)
			msgpack_pack_str_body(pk, text + i, step);
		else
			msgpack_pack_str_body(pk, replacement, 3);
	}
}

static void pack_hash(msgpack_packer *pk, const uint8_t *internal)
{
	uint8_t display[32];

	for (int i = 0; i < 32; i++)
		display[i] = internal[31 - i];
	msgpack_pack_bin_with_body(pk, display, 32);
}

/* No field that is defined as unsigned reaches 2^63. Where a node passes it as a signed argument
 * and it is negative after all, it stays the number that it was. */
static void pack_uint(msgpack_packer *pk, uint64_t u)
{
	if (u >> 63)
		msgpack_pack_int64(pk, (int64_t)u);
	else
		msgpack_pack_uint64(pk, u);
}

static void pack_list(msgpack_packer *pk, enum field_type type, const struct value_list *list)
{
	msgpack_pack_array(pk, list->count);
	for (size_t i = 0; i < list->count; i++) {
		if (list->missing && (list->missing[i] & list->bit))
			msgpack_pack_nil(pk);
		else if (type == TYPE_HASHES)
			pack_hash(pk, (const uint8_t *)list->items + 32 * i);
		else if (type == TYPE_INTS)
			msgpack_pack_int64(pk, ((const int64_t *)list->items)[i]);
		else
			pack_uint(pk, ((const uint64_t *)list->items)[i]);
	}
}

static void pack_conflicts(msgpack_packer *pk, const struct removals *c)
{
	msgpack_pack_map(pk, 5);
	pack_key(pk, "txids");
	pack_list(pk, TYPE_HASHES,
		  &(struct value_list){ c->txids, c->n, c->missing, MISSING_TXID });
	pack_key(pk, "fees");
	pack_list(pk, TYPE_INTS, &(struct value_list){ c->fees, c->n, c->missing, MISSING_FEE });
	pack_key(pk, "vsizes");
	pack_list(pk, TYPE_UINTS,
		  &(struct value_list){ c->vsizes, c->n, c->missing, MISSING_VSIZE });
	pack_key(pk, "entry_times");
	pack_list(pk, TYPE_UINTS,
		  &(struct value_list){ c->entry_times, c->n, c->missing, MISSING_ENTRY_TIME });
	pack_key(pk, "after");
	pack_list(pk, TYPE_UINTS, &(struct value_list){ c->after, c->n, NULL, 0 });
}

static void pack_value(msgpack_packer *pk, enum field_type type, const struct value *value)
{
	if (value->state == VALUE_NIL) {
		msgpack_pack_nil(pk);
		return;
	}
	switch (type) {
	case TYPE_UINT:
		if (value->state == VALUE_WIDE)
			msgpack_pack_uint64(pk, value->u);
		else
			pack_uint(pk, value->u);
		break;
	case TYPE_INT:
	case TYPE_US_TO_NS:
		msgpack_pack_int64(pk, value->i);
		break;
	case TYPE_BOOL:
	case TYPE_SELECT:
		if (value->b)
			msgpack_pack_true(pk);
		else
			msgpack_pack_false(pk);
		break;
	case TYPE_HASH:
	case TYPE_ALIAS:
		pack_hash(pk, value->bytes.data);
		break;
	case TYPE_TEXT:
		pack_foreign_text(pk, value->bytes.data, value->bytes.len);
		break;
	case TYPE_NETWORK:
		pack_text(pk, network_name(value->u));
		break;
	case TYPE_PAYLOAD:
		msgpack_pack_bin_with_body(pk, value->bytes.data, value->bytes.len);
		break;
	case TYPE_HASHES:
	case TYPE_UINTS:
	case TYPE_INTS:
		pack_list(pk, type, &value->list);
		break;
	case TYPE_CONFLICTS:
		pack_conflicts(pk, value->conflicts);
		break;
	}
}

void encode_event(msgpack_sbuffer *out, const struct event_desc *event, uint64_t time_us,
		  const struct value *values)
{
	msgpack_packer pk;
	unsigned int present = 0;

	msgpack_packer_init(&pk, out, msgpack_sbuffer_write);
	for (unsigned int i = 0; i < event->n_fields; i++)
		present += values[i].state != VALUE_ABSENT;
	msgpack_pack_map(&pk, present + 1);
	pack_key(&pk, "time_us");
	msgpack_pack_uint64(&pk, time_us);
	for (unsigned int i = 0; i < event->n_fields; i++) {
		if (values[i].state == VALUE_ABSENT)
			continue;
		pack_key(&pk, event->fields[i].name);
		pack_value(&pk, event->fields[i].type, &values[i]);
	}
}

size_t encode_message_begin(msgpack_sbuffer *out, const char *node, uint64_t run, uint32_t pid,
			    uint64_t n, uint64_t seq, uint64_t lost)
{
	msgpack_packer pk;

	msgpack_packer_init(&pk, out, msgpack_sbuffer_write);
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
	msgpack_sbuffer_write(out, "\xdc\0", 3);
	return out->size - 2;
}

void encode_message_end(msgpack_sbuffer *out, size_t place, unsigned int events)
{
	out->data[place] = (char)(events >> 8);
	out->data[place + 1] = (char)events;
}

void encode_status(msgpack_sbuffer *out, const struct bridge_status *s)
{
	msgpack_packer pk;

	msgpack_packer_init(&pk, out, msgpack_sbuffer_write);
	msgpack_pack_map(&pk, 12);
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

	msgpack_packer_init(&pk, out, msgpack_sbuffer_write);
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
