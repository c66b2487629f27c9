/* bridge.status and bridge.stopping: the bridge's own account of each socket. */
#include <errno.h>

#include "bridge.h"
#include "log.h"
#include "publisher.h"

size_t status_topics(const struct bridge *b, enum socket_id id, struct topic_status *out)
{
	const struct shared *shared = tracer_shared(b->tracer);
	size_t n = 0;

	for (size_t i = 0; i < b->tps.n; i++) {
		const struct tracepoint *tp = &b->tps.table[i];
		uint64_t head = b->streams[id].next_seq[i] - 1;

		if (tp->event->socket != id || !tp->selected)
			continue;
		out[n++] = (struct topic_status){
			.topic = tp->event->topic,
			.head = head,
			.fired = shared->counters[i].fired - b->skipped[i],
			.submitted = shared->counters[i].submitted - b->skipped[i],
			.lost = shared->counters[i].lost,
			.faults = shared->counters[i].faults,
			.truncated = shared->counters[i].truncated,
		};
		if (tp->event->flags & EVENT_DERIVED)
			out[n - 1].fired = out[n - 1].submitted = head;
	}
	return n;
}

int status_held(const struct bridge *b, enum socket_id id, uint64_t *held)
{
	uint64_t last;
	int err = b->journal ? journal_bounds(b->journal, id, b->run, held, &last) : -ENOENT;

	if (err)
		*held = b->streams[id].next_n;
	return err == -ENOENT ? 0 : err;
}

const char *status_replay(const struct bridge *b)
{
	if (!b->options->journal)
		return "off";
	return b->journal && !b->journal_halved ? "ok" : "degraded";
}

void status_send(struct bridge *b, const char *topic)
{
	struct topic_status topics[MAX_PROBES];

	for (enum socket_id id = 0; id < N_SOCKETS; id++) {
		msgpack_sbuffer buffer;
		struct bridge_status status = {
			.node = b->label,
			.run = b->run,
			.socket = id,
			.time_us = now_us(),
			.n = b->streams[id].next_n - 1,
			.pid = (uint32_t)b->node.process.pid,
			.ignored = b->node.ignored,
			.n_ignored = b->node.n_ignored,
			.guarded = b->options->curve_secret != NULL,
			.rejected = publisher_rejected(b->publisher),
			.topics = topics,
			.n_topics = status_topics(b, id, topics),
		};
		int err = status_held(b, id, &status.held);
		size_t len;

		if (err)
			state_give_up(b, err);
		status.replay = status_replay(b);
		msgpack_sbuffer_init(&buffer);
		encode_status(&buffer, &status);
		if (!encode_whole(&buffer))
			log_out_of_memory();
		len = buffer.size;
		publisher_send(b->publisher, id, topic, msgpack_sbuffer_release(&buffer), len);
	}
}
