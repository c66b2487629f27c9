/* Records of the rings, as the BPF program may submit them: what they become is what subscribers
 * read, whole and numbered without a hole.
 *
 * What the program itself guarantees holds here too: a site that exists, the size that goes with
 * it, a payload within the record. All else, what the node puts there, is the input's. */
#include "fuzz.h"

#include "../../bridge/bridge.h"
#include "../../bridge/counters.h"
#include "../../bridge/log.h"
#include "../../protocol/json.h"

#include <linux/bpf.h>

#define RING_BYTES ((size_t)1 << 17)
#define FIRST_PID 0x7ff00000 /* beyond what the kernel gives */

static struct bridge bridge;
static struct declarations declarations;
static struct options options;
static uint64_t expected_seq[MAX_PROBES];

/* The kernel and the loop are not here. */
int bridge_watch(struct bridge *b, int fd)
{
	(void)b;
	(void)fd;
	return 0;
}

void tracer_forget_calls(struct tracer *tracer, pid_t pid)
{
	(void)tracer;
	(void)pid;
}

uint64_t tracer_lost(const struct tracer *tracer, enum socket_id socket)
{
	(void)tracer;
	(void)socket;
	return 0;
}

static bool select_all(const void *arg, const struct event_desc *event)
{
	(void)arg;
	(void)event;
	return true;
}

static const struct event_desc *event_of(const void *arg, size_t i)
{
	(void)arg;
	return bridge.tps.table[i].event;
}

/* Two binaries: one passes every argument; the other, as old ones do, all but the last, and counts
 * in microseconds. */
static void bind_binary(unsigned int group)
{
	static char args[MAX_ARGS + 1][MAX_ARGS * 16];
	struct probes probes = { .arch = ARCH_X86_64, .entry = 64 };
	struct probe_site sites[MAX_PROBES];

	for (size_t i = 0; i < bridge.tps.n; i++) {
		const struct tracepoint *tp = &bridge.tps.table[i];
		unsigned int n = tp->n_arguments;

		if (tp->event->flags & EVENT_DERIVED)
			continue;
		if (group && (!strcmp(tp->event->provider, "mempool") || n < 2))
			continue; /* v23 */
		n -= group;
		args[n][0] = '\0';
		for (unsigned int a = 0; a < n; a++)
			strcat(args[n], "-8@8(%rsp) ");
		sites[probes.n_sites++] = (struct probe_site){
			.provider = (char *)tp->event->provider,
			.name = (char *)tp->event->name,
			.args = args[n],
			.offset = 1 + i,
		};
	}
	probes.sites = sites;
	MUST(tracepoints_bind(&bridge.tps, group, &probes, -1, "fuzz") > 0);
	bridge.tps.core[group] = "fuzz";
}

static unsigned int topic_of(const char *name)
{
	for (unsigned int i = 0; i < bridge.tps.n; i++)
		if (!strcmp(bridge.tps.table[i].event->topic, name))
			return i;
	abort();
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	log_level((enum log_level)0);
	declarations_init(&declarations);
	MUST(!tracepoints_init(&bridge.tps, &declarations, select_all, NULL));
	bind_binary(1);
	bind_binary(0);
	bridge.options = &options;
	bridge.evictions_topic = topic_of("block.evictions");
	bridge.started_topic = topic_of("node.started");
	bridge.exited_topic = topic_of("node.exited");
	bridge.removed_topic = topic_of("mempool.removed");
	for (size_t i = 0; i < bridge.tps.n; i++)
		bridge.kinds[i] = (uint8_t)evictions_event_kind(bridge.tps.table[i].event);
	for (enum socket_id id = 0; id < N_SOCKETS; id++) {
		struct ring *ring = &bridge.rings[id];

		ring->consumer = calloc(1, sizeof(*ring->consumer));
		ring->producer = calloc(1, sizeof(*ring->producer));
		ring->data = malloc(RING_BYTES);
		ring->size = RING_BYTES;
		MUST(ring->consumer && ring->producer && ring->data);
	}
	return 0;
}

/* One record: flags, site, process, counts of losses, what could not be read, payload, content. */
static void submit(struct input *in)
{
	unsigned int flags = (unsigned int)take_number(in, 1), group = flags >> 7;
	size_t n_sites = bridge.tps.n_sites[group];
	size_t number = group * GROUP_SITES + take_number(in, 1) % n_sites;
	const struct site *site = &bridge.tps.sites[number];
	struct ring *ring = &bridge.rings[site->ring];
	size_t payload = 0, len = site->size, content;
	uint8_t *at = ring->data + *ring->producer;
	struct record *record = (struct record *)(at + BPF_RINGBUF_HDR_SZ);
	uint32_t head;

	if (site->payload_arg && flags & 1) {
		payload = take_number(in, 2) % 2048;
		len = PAYLOAD_OFFSET + (payload + 63) / 64 * 64;
	}
	if (*ring->producer + BPF_RINGBUF_HDR_SZ + len + 8 > RING_BYTES)
		return;
	/* What was not written is what the ring held before. */
	memset(record, 0xee, len);
	*record = (struct record){
		.time_ns = take_number(in, flags & 2 ? 8 : 4),
		.probe_lost = take_number(in, flags & 4 ? 2 : 0),
		.ring_lost = take_number(in, flags & 4 ? 2 : 0),
		.pid = FIRST_PID + (flags >> 3 & 3),
		.missing = (__u32)take_number(in, 2) & ((1U << MAX_ARGS) - 1),
		.site = (__u16)number,
		.cut = (__u16)(flags & 32 ? take_number(in, 2) & ~RECORD_PAYLOAD : 0),
		.payload = (__u32)payload,
	};
	if (site->payload_arg && flags & 1)
		record->cut |= RECORD_PAYLOAD;
	content = site->size - sizeof(*record);
	if (content > in->left)
		content = in->left;
	memcpy(record->slots, in->at, content);
	in->at += content;
	in->left -= content;
	head = (uint32_t)len | (flags & 64 ? BPF_RINGBUF_DISCARD_BIT : 0);
	memcpy(at, &head, sizeof(head));
	*ring->producer += (BPF_RINGBUF_HDR_SZ + len + 7) / 8 * 8;
}

/* A subscriber reads it, and what its JSON has no terminal acts upon. */
static void check_message(const struct message *m, uint64_t *expected_n)
{
	const struct event_desc *event = bridge.tps.table[m->topic].event;
	struct message_body body;
	char reason[DECODE_REASON];
	struct cursor events;
	struct json json = { 0 };
	struct item item;

	MUST(is_msgpack(m->data, m->len));
	if (decode_message(m->data, m->len, event, &body, reason)) {
		fprintf(stderr, "%s: %s\n", event->topic, reason);
		abort();
	}
	MUST(body.n == *expected_n && body.n == m->n && body.events.left == m->events);
	MUST(body.seq == expected_seq[m->topic] && body.run == 77);
	MUST(m->events <= MESSAGE_MAX_EVENTS && (m->len <= MESSAGE_MAX_BYTES || m->events == 1));
	expected_seq[m->topic] = body.next;
	*expected_n += m->events;
	events = body.events;
	for (unsigned int i = 0; cursor_element(&events, &item); i++)
		json_event(&json, event->topic, strlen(event->topic), &body, i, &item);
	for (size_t i = 0; i < json.length; i++)
		MUST((uint8_t)json.data[i] >= 0x20 && json.data[i] != 0x7f);
	json_free(&json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };
	struct bridge *b = &bridge;
	unsigned int flags = (unsigned int)take_number(&in, 1);

	b->counters = flags & 1 ? counters_new(b->tps.n, event_of, NULL) : NULL;
	evictions_init(&b->evictions, flags & 2);
	b->node = (struct node){ .pidfd = -1, .fixed = flags & 4 };
	if (flags & 4)
		b->node.process.pid = FIRST_PID;
	for (size_t i = 0; i < b->tps.n; i++)
		expected_seq[i] = 1;
	for (enum socket_id id = 0; id < N_SOCKETS; id++)
		MUST(!stream_init(&b->streams[id], "fuzz", 77, b->tps.n));
	while (in.left) {
		bool drained;

		for (enum socket_id id = 0; id < N_SOCKETS; id++)
			b->rings[id].position = *b->rings[id].producer = 0;
		for (unsigned int n = 1 + take_number(&in, 1) % 16; n && in.left; n--)
			submit(&in);
		do {
			drained = true;
			for (enum socket_id id = 0; id < N_SOCKETS; id++) {
				bool empty;

				intake_read(b, id, 8, &empty);
				drained &= empty;
			}
		} while (!drained);
		if (evictions_due(&b->evictions, take_number(&in, 4)))
			intake_evictions(b, false, false);
		if (b->node_exited)
			intake_node_ended(b, 1, take_number(&in, 1));
	}
	for (unsigned int i = 0; i < b->tps.n; i++)
		stream_loss(&b->streams[b->tps.table[i].event->socket], i, 5, i % 3);
	for (enum socket_id id = 0; id < N_SOCKETS; id++) {
		uint64_t n = 1;

		stream_flush(&b->streams[id]);
		for (size_t i = 0; i < b->streams[id].n_messages; i++)
			check_message(&b->streams[id].messages[i], &n);
		MUST(n == b->streams[id].next_n);
		stream_free(&b->streams[id]);
	}
	node_close(&b->node);
	evictions_free(&b->evictions);
	free(b->counters);
	return 0;
}
