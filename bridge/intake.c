/* From records to events: which process counts, what derives from the order of records, and the
 * numbers that each event gets. */
#include <string.h>

#include "bridge.h"
#include "counters.h"
#include "log.h"

static uint64_t record_time_us(const struct bridge *b, uint64_t time_ns)
{
	return (time_ns + b->clock_offset_ns) / 1000;
}

/* ---- derived events ---- */

static void derived(struct bridge *b, unsigned int topic, uint32_t pid, uint64_t time_us,
		    const struct value *values)
{
	const struct tracepoint *tp = &b->tps.table[topic];

	if (b->counters)
		counters_event(b->counters, topic, time_us, values);
	if (tp->selected)
		stream_event(&b->streams[tp->event->socket], topic, tp->event, pid, 0, time_us,
			     values);
}

static struct value text_value(const char *text)
{
	return (struct value){ .state = VALUE_SET, .bytes = { text, strlen(text) } };
}

static void node_tell(struct bridge *b, unsigned int topic, uint64_t time_us)
{
	const struct process *p = &b->node.process;
	const struct value values[] = {
		text_value(p->binary),
		text_value(b->binaries[b->node.group].probes.build_id),
		{ .state = p->started_at ? VALUE_SET : VALUE_NIL, .u = p->started_at },
		text_value(b->tps.core[b->node.group]),
	};

	derived(b, topic, (uint32_t)p->pid, time_us, values);
}

void intake_node_started(struct bridge *b, uint64_t time_us)
{
	log_info("node: process %d (%s)", b->node.process.pid, b->node.process.binary);
	node_tell(b, b->started_topic, time_us);
	b->node.told = true;
}

void intake_evictions(struct bridge *b, bool complete, bool final)
{
	struct value values[MAX_FIELDS];

	/* A binary that does not tell what leaves (up to v24) has no lists, whatever has been put
	 * in its place while it runs. */
	if (!tracepoints_has(&b->tps, b->node.group, b->removed_topic)) {
		evictions_close(&b->evictions);
		return;
	}
	evictions_values(&b->evictions, complete, final, values);
	derived(b, b->evictions_topic, b->evictions.state.pid,
		record_time_us(b, b->evictions.state.last_time_ns), values);
	b->evictions.state.told = true;
	if (final)
		evictions_close(&b->evictions);
}

/* Nothing of the process is left in the rings. */
void intake_node_ended(struct bridge *b, uint64_t time_us, uint64_t low_lost)
{
	bool complete;

	if (!b->node.told)
		intake_node_started(b, time_us);
	/* What the end of its list lost in the ring, no later record of it tells. */
	if (evictions_ended(&b->evictions, EVICTION_END, low_lost, &complete))
		intake_evictions(b, complete, true);
	node_tell(b, b->exited_topic, time_us);
	log_info("node: process %d is gone", b->node.process.pid);
	tracer_forget_calls(b->tracer, b->node.process.pid);
	node_gone(&b->node);
	b->node_exited = false;
	b->node_ended = true;
	if (b->options->pid) {
		log_info("--pid names no other: ends; --datadir follows a node through restarts");
		b->stopping = true;
	}
}

/* ---- records ---- */

static void record_handle(struct bridge *b, const struct record *record, enum socket_id id);

/* What a process that is gone left in the high ring: all of it stands before the first record of
 * its successor. */
static void high_finish(struct bridge *b)
{
	struct ring *ring = &b->rings[SOCKET_HIGH];
	const struct record *record;
	unsigned long before = ring->position;
	uint32_t len;
	bool busy;

	while ((record = ring_next(ring, &len, &busy))) {
		if ((pid_t)record->pid != b->node.process.pid &&
		    !node_is_ignored(&b->node, (pid_t)record->pid)) {
			ring->position = before;
			return;
		}
		record_handle(b, record, SOCKET_HIGH);
		before = ring->position;
	}
}

/* Whether a record counts: it comes from the node, or from the node's next process. */
static bool record_accept(struct bridge *b, const struct record *record, enum socket_id id)
{
	size_t number = tracepoints_number(&b->tps, record);
	bool starting = number == b->tps.start;
	uint64_t time_us = record_time_us(b, record->time_ns);

	switch (node_judge(&b->node, (pid_t)record->pid, starting)) {
	case NODE_KNOWN:
		return !starting;
	case NODE_OTHER:
		b->skipped[number]++;
		return false;
	case NODE_NEW:
		break;
	}
	if (b->node.process.pid) {
		if (id == SOCKET_LOW)
			high_finish(b);
		/* A record of the high ring knows nothing of what the low one lost meanwhile: the
		 * end of a list, and the start of this process. */
		intake_node_ended(b, time_us,
				  id == SOCKET_LOW ? record->ring_lost
						   : tracer_lost(b->tracer, SOCKET_LOW));
	}
	b->node.group = record->site / GROUP_SITES;
	/* One that is gone by now is told so once its records are read. */
	b->node_exited = !node_follow(&b->node, (pid_t)record->pid, time_us / 1000000);
	bridge_watch(b, b->node.pidfd);
	intake_node_started(b, time_us);
	return !starting;
}

static void record_low(struct bridge *b, const struct record *record, const struct tracepoint *tp,
		       struct value *values, uint64_t time_us)
{
	struct evictions *e = &b->evictions;
	unsigned int topic = (unsigned int)(tp - b->tps.table);
	enum eviction_kind kind = b->kinds[topic];
	bool complete;
	uint64_t n = 0;

	if (kind == EVICTION_UNKNOWN)
		kind = evictions_removed_kind(values);
	if (evictions_ended(e, kind, record->ring_lost, &complete))
		intake_evictions(b, complete, true);
	if (kind == EVICTION_BLOCK || kind == EVICTION_CONFLICT)
		values[tp->event->n_fields - 1] = evictions_height(e, kind);
	if (tp->selected)
		n = stream_event(&b->streams[SOCKET_LOW], topic, tp->event, record->pid,
				 record->probe_lost, time_us, values);
	if (evictions_add(e, kind, values, n, record->pid, record->time_ns))
		intake_evictions(b, evictions_sound(e), true);
}

static void record_handle(struct bridge *b, const struct record *record, enum socket_id id)
{
	const struct tracepoint *tp;
	struct value values[MAX_FIELDS];
	uint64_t time_us = record_time_us(b, record->time_ns);

	if (!record_accept(b, record, id))
		return;
	tp = tracepoints_of(&b->tps, record);
	if (!tp)
		return;
	tracepoints_values(&b->tps, record, values);
	if (b->counters)
		counters_event(b->counters, (unsigned int)(tp - b->tps.table), time_us, values);
	if (tp->event->socket == SOCKET_LOW)
		record_low(b, record, tp, values, time_us);
	else if (tp->selected)
		stream_event(&b->streams[SOCKET_HIGH], (unsigned int)(tp - b->tps.table), tp->event,
			     record->pid, record->probe_lost, time_us, values);
}

unsigned int intake_read(struct bridge *b, enum socket_id id, unsigned int max, bool *drained)
{
	unsigned int n = 0;
	uint32_t len;
	bool busy = false;
	const struct record *record;

	unsigned long before = b->rings[id].position;
	bool waits = false;

	while (n < max && (record = ring_next(&b->rings[id], &len, &busy))) {
		/* The start of a process stands in the low ring, and was submitted before. */
		waits = id == SOCKET_HIGH && (pid_t)record->pid != b->node.process.pid &&
			!node_is_ignored(&b->node, (pid_t)record->pid) &&
			b->rings[SOCKET_LOW].position < ring_produced(&b->rings[SOCKET_LOW]);
		if (waits) {
			b->rings[id].position = before;
			break;
		}
		if (len >= sizeof(*record))
			record_handle(b, record, id);
		before = b->rings[id].position;
		n++;
	}
	*drained = n < max && !busy && !waits;
	return n;
}
