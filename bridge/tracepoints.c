/* See tracepoints.h. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "log.h"
#include "tracepoints.h"

static uint32_t record_size(uint32_t need)
{
#define CLASS(SIZE)         \
	if (need <= (SIZE)) \
		return (SIZE);
	RECORD_SIZES(CLASS)
#undef CLASS
	return 0;
}

static enum argument_type argument_type(enum field_type type)
{
	switch (type) {
	case TYPE_HASH:
		return ARGUMENT_HASH;
	case TYPE_TEXT:
		return ARGUMENT_TEXT;
	case TYPE_PAYLOAD:
		return ARGUMENT_PAYLOAD;
	default:
		return ARGUMENT_INTEGER;
	}
}

/* Slots follow the catalogue, not the binary, so a record reads the same whichever version made it.
 */
static int tracepoint_lay_out(struct tracepoint *tp)
{
	uint32_t at = 0;

	for (unsigned int i = 0; i < tp->event->n_fields; i++) {
		const struct field_desc *field = &tp->event->fields[i];

		tp->argument[i] = -1;
		if (!field->argument)
			continue;
		if (tp->n_arguments == MAX_ARGS)
			return -E2BIG;
		tp->argument[i] = (int8_t)tp->n_arguments++;
		tp->offset[i] = (uint16_t)at;
		if (field->type != TYPE_PAYLOAD)
			at += field->slot;
		else
			tp->payload_arg = (uint8_t)tp->n_arguments;
		if (!strcmp(field->name, "msg_type"))
			tp->rule_arg = (uint8_t)tp->n_arguments;
	}
	tp->record_size = record_size((uint32_t)sizeof(struct record) + at);
	if (tp->payload_arg && tp->record_size > PAYLOAD_OFFSET)
		return -E2BIG;
	return tp->record_size ? 0 : -E2BIG;
}

/* Lists of evictions, and the heights of removals, follow from the order of these. */
static bool serves_evictions(const struct event_desc *event)
{
	if (event->flags & EVENT_DECLARED)
		return false;
	return !strcmp(event->provider, "mempool") || !strcmp(event->provider, "validation");
}

int tracepoints_init(struct tracepoints *tps, const struct declarations *declarations,
		     bool (*selected)(const void *arg, const struct event_desc *event),
		     const void *arg)
{
	const struct event_desc *events = declarations->events;
	size_t n = declarations->n;
	bool evictions = false;

	memset(tps, 0, sizeof(*tps));
	if (n + 1 > MAX_PROBES)
		return -E2BIG;
	for (size_t i = 0; i < n; i++) {
		int err;

		if (events[i].n_fields > MAX_FIELDS)
			return -E2BIG;
		tps->table[i].event = &events[i];
		tps->table[i].declared = declarations_of(declarations, i);
		tps->table[i].selected = selected(arg, &events[i]);
		evictions |=
			tps->table[i].selected && (!strcmp(events[i].topic, "block.evictions") ||
						   !strcmp(events[i].topic, "mempool.removed"));
		err = tracepoint_lay_out(&tps->table[i]);
		if (err)
			return err;
	}
	for (size_t i = 0; i < n; i++)
		tps->table[i].wanted =
			tps->table[i].selected || (evictions && serves_evictions(&events[i]));
	tps->n = n;
	tps->start = n;
	tps->core[0] = tps->core[1] = "unknown";
	return 0;
}

bool tracepoints_want_functions(const struct tracepoints *tps)
{
	for (size_t i = 0; i < tps->n; i++)
		if (tps->table[i].wanted && tps->table[i].declared &&
		    tps->table[i].declared->is_function)
			return true;
	return false;
}

/* The operands of one site, put where the catalogue wants them. Returns how many cannot be read. */
static unsigned int site_fill(const struct tracepoints *tps, struct site *site,
			      struct site_info *info, const struct tracepoint *tp,
			      const struct operand *operands, unsigned int n_operands)
{
	unsigned int unreadable = 0;

	for (unsigned int i = 0; i < tp->event->n_fields; i++) {
		int a = tp->argument[i];
		unsigned int operand = tp->declared ? tp->declared->operand[i] : (unsigned int)a;
		const struct field_desc *field = &tp->event->fields[i];

		if (a < 0 || operand >= n_operands)
			continue;
		site->args[a] = (struct argument){
			.operand = operands[operand],
			.type = argument_type(field->type),
			.offset = tp->offset[i],
			.slot = field->slot,
		};
		site->n_args = (__u8)(a + 1);
		unreadable += operands[operand].kind == OPERAND_NONE;
	}
	site->size = tp->record_size;
	site->ring = tp->event->socket;
	if (tp->payload_arg && tp->payload_arg <= site->n_args) {
		site->payload_arg = tp->payload_arg;
		/* The rules of --payload and --message-types are about P2P messages. */
		site->payload_limit =
			tp->declared ? tp->declared->payload_limit : tps->payload_limit;
		site->rule_arg = tp->declared ? 0 : tp->rule_arg;
	}
	info->n_args = site->n_args;
	return unreadable;
}

/* The next free site of a group, or NULL. */
static struct site *site_new(struct tracepoints *tps, unsigned int group, struct site_info **info)
{
	size_t at = group * GROUP_SITES + tps->n_sites[group];

	if (tps->n_sites[group] == GROUP_SITES)
		return NULL;
	memset(&tps->sites[at], 0, sizeof(tps->sites[at]));
	*info = &tps->info[at];
	return &tps->sites[at];
}

/* ---- what a file declares, against this binary ---- */

static int refuse(struct tracepoints *tps, const struct declaration *d, unsigned int line,
		  const char *fmt, ...) __attribute__((format(printf, 4, 5)));

static int refuse(struct tracepoints *tps, const struct declaration *d, unsigned int line,
		  const char *fmt, ...)
{
	char reason[800];
	va_list args;

	va_start(args, fmt);
	vsnprintf(reason, sizeof(reason), fmt, args);
	va_end(args);
	log_error("%s:%u: %s", d->file, line, reason);
	tps->refused++;
	return -EINVAL;
}

/* Whether the fields fit the arguments of one site; the first that does not is told. */
static int declaration_check(struct tracepoints *tps, const struct declaration *d,
			     const struct operand *operands, unsigned int n,
			     const struct probe_site *note, const char *path)
{
	for (unsigned int i = 0; i < d->event.n_fields; i++) {
		const struct field_desc *field = &d->fields[i];
		bool pointer = field->type == TYPE_HASH || field->type == TYPE_TEXT ||
			       field->type == TYPE_PAYLOAD;
		const struct operand *operand = &operands[d->operand[i]];

		if (!field->argument)
			continue;
		if (d->operand[i] >= n)
			return refuse(tps, d, d->field_lines[i],
				      "field \"%s\": is argument %u, but %s:%s has %u in %s "
				      "(\"%s\")",
				      field->name, d->operand[i] + 1, note->provider, note->name, n,
				      path, note->args);
		if (pointer && operand->kind != OPERAND_NONE && operand->size != 8)
			return refuse(tps, d, d->field_lines[i],
				      "field \"%s\": wants a pointer, but argument %u of %s:%s has "
				      "%u bytes in %s (\"%s\")",
				      field->name, d->operand[i] + 1, note->provider, note->name,
				      operand->size, path, note->args);
	}
	return 0;
}

/* A function's two sites. Returns 1, 0 when this binary does not have it, or -errno. */
static int function_bind(struct tracepoints *tps, unsigned int group, size_t number,
			 const struct probes *probes, int fd, const char *path)
{
	struct tracepoint *tp = &tps->table[number];
	const struct declaration *d = tp->declared;
	struct probe_function function;
	struct site *entry, *site;
	struct site_info *entry_info, *info;
	char error[900];
	int err = probes_function(probes, fd, path, d->event.name, d->debug, &function, error,
				  sizeof(error));

	if (err == -ENOENT) {
		log_warning("%s:%u: function \"%s\": %s", d->file, d->line, d->event.name, error);
		return 0;
	}
	if (err) {
		refuse(tps, d, d->line, "function \"%s\": %s", d->event.name, error);
		return 0;
	}
	/* To see the return, the kernel puts another return address on the stack. The C++ runtime
	 * finds no way past it: std::terminate. */
	if (!strncmp(function.symbol, "_Z", 2) && !d->throws_nothing) {
		refuse(tps, d, d->line,
		       "function \"%s\": is C++ (%.200s): an exception that passes through it "
		       "while it is timed ends the process; if none can, say so: throws: false",
		       d->event.name, function.symbol);
		return 0;
	}
	entry = site_new(tps, group, &entry_info);
	if (!entry)
		return -E2BIG;
	tps->n_sites[group]++;
	site = site_new(tps, group, &info);
	if (!site)
		return -E2BIG;
	tps->n_sites[group]++;
	entry->probe = site->probe = (__u16)number;
	*entry_info = (struct site_info){
		.tracepoint = NO_TRACEPOINT,
		.kind = SITE_ENTRY,
		.offset = function.offset,
		.args = "",
	};
	*info = (struct site_info){
		.tracepoint = (uint16_t)number,
		.kind = SITE_RETURN,
		.offset = function.offset,
		.args = d->args,
	};
	site_fill(tps, site, info, tp, d->operands, tp->n_arguments);
	tp->state = TRACEPOINT_OK;
	return 1;
}

static int site_bind(struct tracepoints *tps, unsigned int group, size_t number,
		     struct probes *probes, const struct probe_site *note, const char *path)
{
	struct tracepoint *tp = &tps->table[number];
	struct operand operands[MAX_ARGS];
	struct operand_context context = {
		.arch = probes->arch,
		.address = note->address,
		.resolve = probes_resolve,
		.arg = probes,
	};
	unsigned int unsupported;
	struct site_info *info;
	struct site *site = site_new(tps, group, &info);
	int n;

	if (!site)
		return -E2BIG;
	site->probe = number;
	*info = (struct site_info){
		.tracepoint = number,
		.offset = note->offset,
		.semaphore = note->semaphore,
		.args = note->args,
		.duration_us = !strcmp(tps->core[group], "v23-v24") &&
			       !strcmp(tp->event->topic, "validation.block_connected"),
	};
	n = operands_parse(note->args, &context, operands, MAX_ARGS, &unsupported);
	if (n < 0) {
		log_warning("%s: more than %d arguments (\"%s\"): not attached", tp->event->topic,
			    MAX_ARGS, note->args);
		return 0;
	}
	if (tp->declared &&
	    declaration_check(tps, tp->declared, operands, (unsigned int)n, note, path))
		return 0;
	tp->state = TRACEPOINT_OK;
	if (site_fill(tps, site, info, tp, operands, (unsigned int)n)) {
		for (int i = 0; i < n; i++) {
			size_t len;
			const char *text = operands_text(note->args, (unsigned int)i, &len);

			if (operands[i].kind == OPERAND_NONE)
				log_warning("%s: argument %d (\"%.*s\") is in a form that cannot "
					    "be read: its field will be nil",
					    tp->event->topic, i + 1, (int)len, text);
		}
		tp->state = TRACEPOINT_DEGRADED;
	}
	tps->n_sites[group]++;
	return 1;
}

/* The ELF entry point stands for the start of the process, in the exact order of the low ring. */
static int start_bind(struct tracepoints *tps, unsigned int group, const struct probes *probes)
{
	struct site_info *info;
	struct site *site = site_new(tps, group, &info);

	if (!probes->entry)
		return 0;
	if (!site)
		return -E2BIG;
	*site = (struct site){
		.probe = (__u16)tps->start,
		.ring = SOCKET_LOW,
		.size = record_size(sizeof(struct record)),
	};
	*info = (struct site_info){
		.tracepoint = (uint16_t)tps->start,
		.offset = probes->entry,
		.args = "",
	};
	tps->n_sites[group]++;
	return 0;
}

int tracepoints_bind(struct tracepoints *tps, unsigned int group, struct probes *probes, int fd,
		     const char *path)
{
	int attached = 0;

	tps->n_sites[group] = 0;
	tps->refused = 0;
	tps->core[group] = probes_core(probes);
	for (size_t t = 0; t < tps->n; t++) {
		struct tracepoint *tp = &tps->table[t];
		enum tracepoint_state state = TRACEPOINT_MISSING;
		unsigned int refused = tps->refused;

		tp->state = TRACEPOINT_OFF;
		if (!tp->wanted || (tp->event->flags & EVENT_DERIVED))
			continue;
		if (tp->declared && tp->declared->is_function) {
			int n = function_bind(tps, group, t, probes, fd, path);

			if (n < 0)
				return n;
			state = n ? TRACEPOINT_OK : TRACEPOINT_MISSING;
		}
		for (size_t i = 0; i < probes->n_sites && tps->refused == refused; i++) {
			const struct probe_site *note = &probes->sites[i];
			int n;

			if ((tp->declared && tp->declared->is_function) ||
			    strcmp(note->provider, tp->event->provider) ||
			    strcmp(note->name, tp->event->name))
				continue;
			n = site_bind(tps, group, t, probes, note, path);
			if (n < 0)
				return n;
			/* Of several sites the worst one speaks for the tracepoint. */
			if (n && (state == TRACEPOINT_MISSING || tp->state < state))
				state = tp->state;
		}
		tp->state = state;
		if (state == TRACEPOINT_MISSING)
			log_debug("%s: this binary does not have it", tp->event->topic);
		else
			attached++;
	}
	if (attached) {
		int err = start_bind(tps, group, probes);

		if (err)
			return err;
	}
	return attached;
}

bool tracepoints_has(const struct tracepoints *tps, unsigned int group, size_t number)
{
	const struct site_info *info = &tps->info[group * GROUP_SITES];

	for (size_t i = 0; i < tps->n_sites[group]; i++)
		if (info[i].tracepoint == number)
			return true;
	return false;
}

size_t tracepoints_number(const struct tracepoints *tps, const struct record *record)
{
	return tps->info[record->site % MAX_SITES].tracepoint;
}

const struct tracepoint *tracepoints_of(const struct tracepoints *tps, const struct record *record)
{
	size_t number = tracepoints_number(tps, record);

	return number < tps->n ? &tps->table[number] : NULL;
}

static uint64_t slot_integer(const uint8_t *slot)
{
	uint64_t u;

	memcpy(&u, slot, sizeof(u));
	return u;
}

static void to_nanoseconds(struct value *value)
{
	if (__builtin_mul_overflow(value->i, 1000, &value->i))
		value->state = VALUE_NIL;
}

/* declared: the operand behind a field of a declared event, NULL for a built-in one. */
static void value_read(struct value *value, const struct field_desc *field, const uint8_t *slot,
		       bool duration_us, const struct operand *declared)
{
	value->state = VALUE_SET;
	switch (field->type) {
	case TYPE_HASH:
		value->bytes.data = slot;
		value->bytes.len = 32;
		break;
	case TYPE_TEXT:
		value->bytes.data = slot;
		value->bytes.len = strnlen((const char *)slot, field->slot);
		break;
	case TYPE_BOOL:
	case TYPE_SELECT:
		value->b = slot_integer(slot) != 0;
		break;
	default:
		value->u = slot_integer(slot);
		if (field->type == TYPE_US_TO_NS || (duration_us && !strcmp(field->unit, "ns")))
			to_nanoseconds(value);
		/* A negative number is none that a UINT can be, and would cost subscribers the
		 * whole message. What a file declares may be anything: an identifier of 64 bits is
		 * no negative number. */
		if (field->type == TYPE_UINT && value->u >> 63 &&
		    (!declared || declared->is_signed))
			value->state = VALUE_NIL;
		break;
	}
}

/* The field before a payload is its size, the one behind it tells that it was cut. */
static void payload_read(struct value *payload, const struct value *size,
			 const struct record *record)
{
	payload->state = VALUE_SET;
	payload->bytes.data = (const uint8_t *)record + PAYLOAD_OFFSET;
	payload->bytes.len = record->payload;
	if (size->state == VALUE_SET && record->payload < size->u)
		payload[1] = (struct value){ .state = VALUE_SET, .b = true };
}

/* A replacement is a transaction or a package; the SELECT argument, where the binary passes it,
 * decides under which name the hash is published. One that cannot be read leaves the hash nil. */
static void values_select(struct value *values, unsigned int alias, const struct value *is_txid)
{
	struct value *hash = &values[alias - 1];

	if (is_txid->state == VALUE_NIL)
		hash->state = VALUE_NIL;
	else if (is_txid->state == VALUE_SET && !is_txid->b) {
		values[alias] = *hash;
		hash->state = VALUE_ABSENT;
	}
}

void tracepoints_values(const struct tracepoints *tps, const struct record *record,
			struct value *values)
{
	const struct tracepoint *tp = &tps->table[tracepoints_number(tps, record)];
	const struct site_info *info = &tps->info[record->site % MAX_SITES];
	unsigned int alias = 0, payload = 0;

	for (unsigned int i = 0; i < tp->event->n_fields; i++) {
		const struct field_desc *field = &tp->event->fields[i];
		int a = tp->argument[i];

		values[i].state = VALUE_ABSENT;
		if (field->type == TYPE_ALIAS)
			alias = i;
		if (a < 0 || a >= info->n_args)
			continue;
		if (field->type == TYPE_PAYLOAD && !(record->cut & RECORD_PAYLOAD))
			continue;
		if (record->missing >> a & 1) {
			values[i].state = VALUE_NIL;
			continue;
		}
		if (field->type == TYPE_PAYLOAD) {
			payload = i;
			continue;
		}
		value_read(&values[i], field, record->slots + tp->offset[i], info->duration_us,
			   tp->declared ? &tps->sites[record->site % MAX_SITES].args[a].operand
					: NULL);
	}
	if (payload)
		payload_read(&values[payload], &values[payload - 1], record);
	for (unsigned int i = 0; alias && i < tp->event->n_fields; i++) {
		if (tp->event->fields[i].type != TYPE_SELECT)
			continue;
		values_select(values, alias, &values[i]);
		values[i].state = VALUE_ABSENT;
	}
}

const char *tracepoint_state_name(enum tracepoint_state state)
{
	static const char *const names[] = { "off", "missing", "degraded", "ok" };

	return names[state];
}
