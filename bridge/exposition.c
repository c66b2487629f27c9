/* See exposition.h. Labels are names of closed sets, topics of the catalogue, and a few texts that
 * the operator chose; the last are escaped. Nothing that a peer says gets here. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "bridge.h"
#include "counters.h"
#include "exposition.h"
#include "publisher.h"
#include "replay.h"

#define P "coretap_"

static void family(FILE *f, const char *name, const char *type, const char *help)
{
	fprintf(f, "# HELP " P "%s %s\n# TYPE " P "%s %s\n", name, help, name, type);
}

static void single(FILE *f, const char *name, const char *type, uint64_t value, const char *help)
{
	family(f, name, type, help);
	fprintf(f, P "%s %" PRIu64 "\n", name, value);
}

/* What is not known yet has no sample. */
static void known(FILE *f, const char *name, int64_t value, const char *help)
{
	family(f, name, "gauge", help);
	if (value >= 0)
		fprintf(f, P "%s %" PRId64 "\n", name, value);
}

static void seconds(FILE *f, const char *name, uint64_t us, const char *help)
{
	family(f, name, "gauge", help);
	if (us)
		fprintf(f, P "%s %" PRIu64 ".%06" PRIu64 "\n", name, us / 1000000, us % 1000000);
}

static void one(FILE *f, const char *name, const char *label, const char *text, uint64_t value)
{
	fprintf(f, P "%s{%s=\"%s\"} %" PRIu64 "\n", name, label, text, value);
}

static void two(FILE *f, const char *name, const char *label1, const char *text1,
		const char *label2, const char *text2, uint64_t value)
{
	fprintf(f, P "%s{%s=\"%s\",%s=\"%s\"} %" PRIu64 "\n", name, label1, text1, label2, text2,
		value);
}

/* A text of the operator's: escaped, and nothing that is no printable ASCII. */
static void label(FILE *f, const char *name, const char *text, const char *after)
{
	fprintf(f, "%s=\"", name);
	for (; *text; text++) {
		if (*text == '"' || *text == '\\')
			fputc('\\', f);
		fputc(*text >= 0x20 && *text < 0x7f ? *text : '?', f);
	}
	fprintf(f, "\"%s", after);
}

/* ---- histograms ---- */

static void bucket(FILE *f, const char *name, uint64_t bound_ns, uint64_t count)
{
	fprintf(f, P "%s_bucket{le=\"%g\"} %" PRIu64 "\n", name, (double)bound_ns / 1e9, count);
}

static void histogram_end(FILE *f, const char *name, uint64_t count, uint64_t sum_ns)
{
	fprintf(f, P "%s_bucket{le=\"+Inf\"} %" PRIu64 "\n", name, count);
	fprintf(f, P "%s_sum %" PRIu64 ".%09" PRIu64 "\n", name, sum_ns / 1000000000,
		sum_ns % 1000000000);
	fprintf(f, P "%s_count %" PRIu64 "\n", name, count);
}

static void durations(FILE *f, const char *name, const struct durations *d, const char *help)
{
	uint64_t count = 0;

	family(f, name, "histogram", help);
	for (int i = 0; i < N_BOUNDS; i++) {
		count += d->buckets[i];
		bucket(f, name, duration_bounds[i], count);
	}
	histogram_end(f, name, count + d->buckets[N_BOUNDS], d->sum_ns);
}

static void latency(FILE *f, const struct counters *c)
{
	static const char name[] = "latency_seconds";
	uint64_t count = 0;

	family(f, name, "histogram",
	       "From an event's firing in the node to its hand-over to the sockets");
	for (int i = 0; i < N_LATENCIES; i++) {
		count += c->latency[i];
		bucket(f, name, (uint64_t)LATENCY_FIRST_NS << i, count);
	}
	histogram_end(f, name, count + c->latency[N_LATENCIES], c->latency_sum_us * 1000);
}

/* ---- the bridge's own ---- */

static void write_process(FILE *f)
{
	struct rusage usage;
	unsigned long pages = 0;
	FILE *statm = fopen("/proc/self/statm", "re");

	if (statm) {
		if (fscanf(statm, "%*u %lu", &pages) != 1)
			pages = 0;
		fclose(statm);
	}
	getrusage(RUSAGE_SELF, &usage);
	fprintf(f,
		"# HELP process_cpu_seconds_total CPU time of coretapd\n"
		"# TYPE process_cpu_seconds_total counter\n"
		"process_cpu_seconds_total %.6f\n"
		"# HELP process_resident_memory_bytes Memory of coretapd\n"
		"# TYPE process_resident_memory_bytes gauge\n"
		"process_resident_memory_bytes %lu\n",
		(double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
			(double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6,
		pages * (unsigned long)sysconf(_SC_PAGESIZE));
}

static void write_node(FILE *f, const struct bridge *b)
{
	const struct counters *c = b->counters;

	family(f, "build_info", "gauge", "Version and the kernel features in use");
	fprintf(f, P "build_info{version=\"" CORETAP_VERSION "\",");
	label(f, "kernel", tracer_describe(b->tracer), "} 1\n");
	family(f, "node_info", "gauge", "The node and its executable");
	fprintf(f, P "node_info{");
	label(f, "node", b->label, ",");
	label(f, "core", b->tps.core[b->current] ? b->tps.core[b->current] : "", ",");
	label(f, "build_id", b->binaries[b->current].probes.build_id, ",");
	label(f, "binary", b->binaries[b->current].path, "} 1\n");
	single(f, "attached", "gauge", tracer_attached(b->tracer, b->current),
	       "1 while the tracepoints of the executable are attached");
	single(f, "node_up", "gauge", b->node.process.pid != 0,
	       "1 while a process of the node runs");
	seconds(f, "node_start_time_seconds",
		b->node.process.pid ? b->node.process.started_at * 1000000 : 0,
		"When the node's process started, Unix time");
	single(f, "node_starts_total", "counter", c->started,
	       "Processes of the node that were followed");
	single(f, "node_exits_total", "counter", c->exited, "Processes of the node that ended");
	single(f, "run", "gauge", b->run,
	       "Number of the unbroken numbering; greater = continuity was lost");
	seconds(f, "start_time_seconds", b->attached_us, "When this coretapd attached, Unix time");
	seconds(f, "last_event_timestamp_seconds", c->last_event_us,
		"When the last event fired, Unix time");
}

/* What another process of the executable fired counts until its record is read. */
static void never_back(uint64_t *most, uint64_t *value)
{
	if (*value > *most)
		*most = *value;
	*value = *most;
}

static void write_probes(FILE *f, const struct bridge *b)
{
	static const struct {
		const char *name, *help;
		size_t offset;
	} columns[] = {
		{ "probe_fired_total", "Firings in the node",
		  offsetof(struct topic_status, fired) },
		{ "probe_submitted_total", "Firings that got into the ring",
		  offsetof(struct topic_status, submitted) },
		{ "probe_lost_total", "Firings lost because the ring was full",
		  offsetof(struct topic_status, lost) },
		{ "probe_faults_total", "Events with something that could not be read",
		  offsetof(struct topic_status, faults) },
		{ "probe_truncated_total", "Events with a text or payload that was cut",
		  offsetof(struct topic_status, truncated) },
		{ "probe_head", "Last number accounted for in this run: published or lost",
		  offsetof(struct topic_status, head) },
	};
	struct topic_status topics[MAX_PROBES];
	size_t n = 0;

	for (enum socket_id id = 0; id < N_SOCKETS; id++)
		n += status_topics(b, id, topics + n);
	for (size_t t = 0; t < n; t++) {
		never_back(&b->counters->fired[t], &topics[t].fired);
		never_back(&b->counters->submitted[t], &topics[t].submitted);
	}
	for (size_t i = 0; i < sizeof(columns) / sizeof(columns[0]); i++) {
		family(f, columns[i].name, strstr(columns[i].name, "_total") ? "counter" : "gauge",
		       columns[i].help);
		for (size_t t = 0; t < n; t++)
			one(f, columns[i].name, "topic", topics[t].topic,
			    *(const uint64_t *)((const char *)&topics[t] + columns[i].offset));
	}
	family(f, "probe_state", "gauge", "1 for the state that the tracepoint is in");
	for (size_t i = 0; i < b->tps.n; i++)
		for (enum tracepoint_state s = TRACEPOINT_OFF; s <= TRACEPOINT_OK; s++)
			if (!(b->tps.table[i].event->flags & EVENT_DERIVED))
				two(f, "probe_state", "topic", b->tps.table[i].event->topic,
				    "state", tracepoint_state_name(s), b->tps.table[i].state == s);
}

static void write_sockets(FILE *f, const struct bridge *b)
{
	const struct counters *c = b->counters;
	const struct shared *shared = tracer_shared(b->tracer);
	uint64_t used[N_SOCKETS] = { 0 }, limit[N_SOCKETS] = { 0 }, held[N_SOCKETS];

#define PER_SOCKET(name, type, help, value)                             \
	do {                                                            \
		family(f, name, type, help);                            \
		for (enum socket_id id = 0; id < N_SOCKETS; id++)       \
			one(f, name, "socket", socket_name(id), value); \
	} while (0)
	for (enum socket_id id = 0; id < N_SOCKETS; id++)
		status_held(b, id, &held[id]);
	for (enum socket_id id = 0; id < N_SOCKETS && b->journal; id++)
		journal_usage(b->journal, id, &used[id], &limit[id]);
	PER_SOCKET("published_messages_total", "counter", "Messages sent", c->published[id].count);
	PER_SOCKET("published_bytes_total", "counter", "Bytes of their bodies",
		   c->published[id].bytes);
	PER_SOCKET("position", "gauge", "Last position of this run", b->streams[id].next_n - 1);
	PER_SOCKET("ring_size_bytes", "gauge", "Size of the kernel's ring", b->rings[id].size);
	PER_SOCKET("ring_used_bytes", "gauge", "What waits in it now",
		   ring_produced(&b->rings[id]) - b->rings[id].position);
	PER_SOCKET("ring_peak_bytes", "gauge",
		   "What waited in it at the worst moment of the last 15 to 30 seconds",
		   counters_ring_peak(c, id));
	PER_SOCKET("ring_lost_total", "counter", "Firings that found it full",
		   shared->ring_lost[id]);
	PER_SOCKET("journal_used_bytes", "gauge", "What the journal's messages take", used[id]);
	PER_SOCKET("journal_limit_bytes", "gauge", "What they may take", limit[id]);
	PER_SOCKET("journal_first_position", "gauge",
		   "First position that replay has; one after the last = none", held[id]);
#undef PER_SOCKET
}

static void write_replay(FILE *f, const struct bridge *b)
{
	static const char *const states[] = { "ok", "degraded", "off" };
	const struct replay_counters *r = replay_counters(b->replay);

	family(f, "replay_state", "gauge", "1 for the state that replay is in");
	for (size_t i = 0; i < 3; i++)
		one(f, "replay_state", "state", states[i], !strcmp(status_replay(b), states[i]));
	family(f, "replay_requests_total", "counter", "Requests answered, by kind");
	one(f, "replay_requests_total", "op", "hello", r->hello);
	one(f, "replay_requests_total", "op", "catalogue", r->catalogue);
	one(f, "replay_requests_total", "op", "replay", r->replay);
	one(f, "replay_requests_total", "op", "error", r->error);
	single(f, "replay_bytes_total", "counter", r->bytes, "Bytes of messages in answers");
	single(f, "replay_gone_total", "counter", r->gone,
	       "Positions that were asked for and were no longer held");
	single(f, "rejected_connections_total", "counter", publisher_rejected(b->publisher),
	       "Connections refused for want of a known key");
}

/* ---- from the events ---- */

static void sums(FILE *f, const struct sum *s, const char *name, const char *const *names, size_t n,
		 const char *what)
{
	static const struct {
		const char *suffix, *of;
		size_t offset;
	} columns[] = {
		{ "total", "Transactions", offsetof(struct sum, count) },
		{ "vbytes_total", "Virtual bytes of transactions", offsetof(struct sum, vsize) },
		{ "fees_satoshi_total", "Fees of transactions", offsetof(struct sum, fees) }
	};
	char family_name[80], help[160];

	for (int i = 0; i < 3; i++) {
		snprintf(family_name, sizeof(family_name), "%s_%s", name, columns[i].suffix);
		snprintf(help, sizeof(help), "%s %s", columns[i].of, what);
		family(f, family_name, "counter", help);
		for (size_t r = 0; r < n; r++) {
			uint64_t value =
				*(const uint64_t *)((const char *)&s[r] + columns[i].offset);

			if (names)
				one(f, family_name, "reason", names[r], value);
			else
				fprintf(f, P "%s %" PRIu64 "\n", family_name, value);
		}
	}
}

static void write_mempool(FILE *f, const struct counters *c)
{
	sums(f, &c->added, "mempool_added", NULL, 1, "that were added to the mempool");
	sums(f, c->removed, "mempool_removed", removal_reasons, N_REMOVAL_REASONS,
	     "that left the mempool");
	sums(f, &c->replaced, "mempool_replaced", NULL, 1, "that were replaced");
	family(f, "mempool_replacements_total", "counter",
	       "Transactions that were replaced, by what replaced them");
	one(f, "mempool_replacements_total", "by", "transaction", c->replaced_by[0]);
	one(f, "mempool_replacements_total", "by", "package", c->replaced_by[1]);
	family(f, "mempool_rejected_total", "counter", "Transactions that were not accepted");
	for (size_t i = 0; i < N_REJECTION_CLASSES; i++)
		one(f, "mempool_rejected_total", "class", rejection_classes[i], c->rejected[i]);
}

static void connections(FILE *f, const char *name, const char *help,
			const uint64_t counts[N_CONNECTION_TYPES][N_NETWORKS])
{
	family(f, name, "counter", help);
	for (size_t t = 0; t < N_CONNECTION_TYPES; t++)
		for (size_t n = 0; n < N_NETWORKS; n++)
			two(f, name, "type", connection_types[t], "network", network_names[n],
			    counts[t][n]);
}

static void write_net(FILE *f, const struct counters *c)
{
	static const char *const directions[] = { "inbound", "outbound" };

	family(f, "messages_total", "counter", "P2P messages");
	for (int d = 0; d < 2; d++)
		for (unsigned int t = 0; t < message_types_count(); t++)
			two(f, "messages_total", "direction", directions[d], "type",
			    message_types[t], c->messages[d][t].count);
	family(f, "message_bytes_total", "counter", "Bytes of their payloads");
	for (int d = 0; d < 2; d++)
		for (unsigned int t = 0; t < message_types_count(); t++)
			two(f, "message_bytes_total", "direction", directions[d], "type",
			    message_types[t], c->messages[d][t].bytes);
	connections(f, "connections_opened_total", "Connections that were made", c->opened);
	connections(f, "connections_closed_total", "Connections that ended", c->closed);
	family(f, "connections", "gauge", "Open connections, as the node counted last");
	for (int d = 0; d < 2; d++)
		if (c->connections[d] >= 0)
			one(f, "connections", "direction", directions[d],
			    (uint64_t)c->connections[d]);
	family(f, "peers_evicted_total", "counter", "Inbound peers told to go, to make room");
	for (size_t n = 0; n < N_NETWORKS; n++)
		one(f, "peers_evicted_total", "network", network_names[n], c->evicted[n]);
	single(f, "peers_misbehaving_total", "counter", c->misbehaving,
	       "Peers that broke the protocol");
}

static void write_blocks(FILE *f, const struct counters *c)
{
	durations(f, "block_connect_seconds", &c->block_connect, "Time to connect a block");
	known(f, "block_height", c->height, "Height of the last block that was connected");
	seconds(f, "block_timestamp_seconds", c->last_block_us,
		"When the last block was connected, Unix time");
	single(f, "block_transactions_total", "counter", c->transactions,
	       "Transactions in connected blocks");
	single(f, "block_inputs_total", "counter", c->inputs, "Their inputs");
	single(f, "block_sigops_total", "counter", c->sigops, "Their signature operation cost");
	single(f, "block_unseen_total", "counter", c->unseen,
	       "Block transactions that the mempool did not have");
	single(f, "block_reorganised_total", "counter", c->reorganised,
	       "Blocks that others superseded");
	family(f, "block_lists_total", "counter",
	       "Lists of what left with a block, by whether they are proven complete");
	one(f, "block_lists_total", "complete", "true", c->lists[1]);
	one(f, "block_lists_total", "complete", "false", c->lists[0]);
}

static void write_coins(FILE *f, const struct counters *c)
{
	family(f, "utxocache_changes_total", "counter",
	       "Changes of coins caches, temporary ones included");
	one(f, "utxocache_changes_total", "change", "add", c->coins_added);
	one(f, "utxocache_changes_total", "change", "spend", c->coins_spent);
	one(f, "utxocache_changes_total", "change", "uncache", c->coins_uncached);
	durations(f, "utxocache_flush_seconds", &c->flush, "Time to write the cache to disk");
	family(f, "utxocache_flushes_total", "counter", "Flushes, by the node's mode");
	for (size_t i = 0; i < N_FLUSH_MODES; i++)
		one(f, "utxocache_flushes_total", "mode", flush_modes[i], c->flushes[i]);
	known(f, "utxocache_coins", c->cache_coins, "Coins in the cache before the last flush");
	known(f, "utxocache_memory_bytes", c->cache_memory,
	      "Memory of the cache before the last flush");
}

char *exposition_make(const struct bridge *b, size_t *len)
{
	char *text = NULL;
	FILE *f = open_memstream(&text, len);
	bool failed;

	if (!f)
		return NULL;
	write_node(f, b);
	write_probes(f, b);
	write_sockets(f, b);
	latency(f, b->counters);
	write_replay(f, b);
	write_mempool(f, b->counters);
	write_net(f, b->counters);
	write_blocks(f, b->counters);
	write_coins(f, b->counters);
	write_process(f);
	failed = ferror(f);
	if (fclose(f) || failed) {
		free(text);
		return NULL;
	}
	return text;
}

const char *exposition_problem(const struct bridge *b)
{
	if (b->stopping)
		return "stopping";
	if (!tracer_attached(b->tracer, b->current))
		return "not attached: the executable is being replaced, or its process is gone";
	if (!b->node.process.pid)
		return "attached, but no process of the node runs";
	return NULL;
}
