/* See bridge.h. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "binary.h"
#include "bridge.h"
#include "evictions.h"
#include "log.h"
#include "node.h"
#include "ring.h"
#include "stream.h"
#include "tracer.h"

#define RUN_DIRECTORY "/run/coretap"

/* Records read from one ring before the other has its turn: a flood in one delays the other by no
 * more than this takes, about 2 ms. */
#define RECORDS_PER_TURN 4096

/* The kernel wakes the reader only when it has caught up, and the traced thread pays for that. A
 * reader that naps between two looks is woken at most once a nap. */
#define NAP_NS 200000

#define STATUS_PERIOD_NS 1000000000ULL

/* Subscribers that reconnect need this long after the bind; meanwhile the rings hold. */
#define SETTLE_NS 250000000ULL

struct bridge {
	const struct options *options;
	char label[33];
	uint64_t run;
	struct node node;
	struct binary binary;
	struct tracepoints tps;
	struct tracer *tracer;
	struct publisher *publisher;
	struct ring rings[N_SOCKETS];
	struct stream streams[N_SOCKETS];
	struct evictions evictions;
	unsigned int evictions_topic, started_topic, exited_topic; /* numbers of derived events */
	uint64_t skipped[MAX_PROBES]; /* firings of processes that are not the node */
	uint64_t clock_offset_ns;     /* of record.time_ns from Unix time */
	uint64_t next_status_ns, settled_ns;
	char directory[128];
	int lock, epoll, signals;
	bool node_exited; /* to be told once the rings are drained */
	bool stopping;
};

static uint64_t clock_ns(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000ULL + (uint64_t)t.tv_nsec;
}

static uint64_t now_us(void)
{
	return clock_ns(CLOCK_REALTIME) / 1000;
}

/* Follows steps of the wall clock against the clock that records carry. */
static void clock_update(struct bridge *b)
{
	clockid_t clock = tracer_clock(b->tracer);
	int64_t offset = (int64_t)(clock_ns(CLOCK_REALTIME) - clock_ns(clock));
	const int64_t second = 1000000000;

	/* TAI is ahead by whole seconds; the rest is the time between the two calls. */
	if (clock == CLOCK_TAI)
		offset = (offset + (offset < 0 ? -second / 2 : second / 2)) / second * second;
	b->clock_offset_ns = (uint64_t)offset;
}

static uint64_t record_time_us(const struct bridge *b, uint64_t time_ns)
{
	return (time_ns + b->clock_offset_ns) / 1000;
}

/* ---- opening ---- */

static int lock_take(struct bridge *b)
{
	char path[160];

	snprintf(b->directory, sizeof(b->directory), RUN_DIRECTORY "/%s", b->label);
	if ((mkdir(RUN_DIRECTORY, 0755) && errno != EEXIST) ||
	    (mkdir(b->directory, 0755) && errno != EEXIST)) {
		log_error("%s: cannot be made: %s", b->directory, strerror(errno));
		return errno == EACCES || errno == EPERM ? EXIT_PRIVILEGE : EXIT_OTHER;
	}
	snprintf(path, sizeof(path), "%s/lock", b->directory);
	b->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
	if (b->lock < 0) {
		log_error("%s: %s", path, strerror(errno));
		return errno == EACCES || errno == EPERM ? EXIT_PRIVILEGE : EXIT_OTHER;
	}
	if (flock(b->lock, LOCK_EX | LOCK_NB)) {
		log_error("another coretapd runs under the label %s; choose another with --name",
			  b->label);
		return EXIT_ADDRESS;
	}
	return 0;
}

static int sockets_bind(struct bridge *b)
{
	struct publisher_options options = { .subscriber_memory = b->options->subscriber_memory };
	char defaults[N_SOCKETS][2][192];
	int err;

	for (enum socket_id id = 0; id < N_SOCKETS; id++) {
		if (b->options->endpoints[id][0]) {
			memcpy(options.endpoints[id], b->options->endpoints[id],
			       sizeof(options.endpoints[id]));
			continue;
		}
		snprintf(defaults[id][0], sizeof(defaults[id][0]), "tcp://127.0.0.1:%u",
			 b->options->port + id);
		snprintf(defaults[id][1], sizeof(defaults[id][1]), "ipc://%s/%s.sock", b->directory,
			 socket_name(id));
		options.endpoints[id][0] = defaults[id][0];
		options.endpoints[id][1] = defaults[id][1];
	}
	err = publisher_open(&b->publisher, &options);
	if (!err)
		return 0;
	return err == -EADDRINUSE || err == -EEXIST ? EXIT_ADDRESS : EXIT_OTHER;
}

static int binary_bind(struct bridge *b)
{
	int n = tracepoints_bind(&b->tps, &b->binary.probes);

	if (n > 0)
		return 0;
	if (n < 0)
		log_error("%s: more than %d tracepoint sites", b->binary.path, MAX_SITES);
	else
		log_error("%s: has none of the tracepoints that are wanted. Check with `readelf -n "
			  "%s | grep stapsdt`; official Linux releases have them, many "
			  "distribution builds do not, own builds want WITH_USDT=ON",
			  b->binary.path, b->binary.path);
	return EXIT_NO_TRACEPOINTS;
}

static void describe(const struct bridge *b)
{
	unsigned int missing = 0, degraded = 0, attached = 0;

	for (size_t i = 0; i < b->tps.n; i++) {
		enum tracepoint_state state = b->tps.table[i].state;

		missing += state == TRACEPOINT_MISSING;
		degraded += state == TRACEPOINT_DEGRADED;
		attached += state >= TRACEPOINT_DEGRADED;
	}
	log_info("%s: Bitcoin Core %s, %u tracepoints%s", b->binary.path, b->tps.core, attached,
		 degraded ? ", some degraded" : "");
	for (size_t i = 0; i < b->tps.n && (missing || degraded); i++)
		if (b->tps.table[i].state == TRACEPOINT_MISSING)
			log_info("%s: missing in this binary", b->tps.table[i].event->topic);
}

static int attach(struct bridge *b)
{
	const char *path = b->binary.attach;
	pid_t pid = b->node.fixed ? b->node.process.pid : 0;
	int err;

	tracer_only(b->tracer, pid);
	err = tracer_attach(b->tracer, &b->tps, path, pid);
	if (err == -EPERM || err == -EACCES)
		return EXIT_PRIVILEGE;
	return err ? EXIT_OTHER : 0;
}

static int watch(struct bridge *b, int fd)
{
	struct epoll_event event = { .events = EPOLLIN, .data.fd = fd };

	return fd >= 0 && epoll_ctl(b->epoll, EPOLL_CTL_ADD, fd, &event) && errno != EEXIST ? -errno
											    : 0;
}

static int loop_open(struct bridge *b)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	sigaddset(&set, SIGIO); /* a lease on the binary is being broken */
	sigprocmask(SIG_BLOCK, &set, NULL);
	signal(SIGPIPE, SIG_IGN);
	/* The default slack of 50 us would make naps a quarter longer than they should be. */
	prctl(PR_SET_TIMERSLACK, 1000UL, 0, 0, 0);
	b->signals = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
	b->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (b->signals < 0 || b->epoll < 0)
		return -errno;
	return watch(b, b->signals);
}

static unsigned int topic_number(const struct bridge *b, const char *topic)
{
	for (size_t i = 0; i < b->tps.n; i++)
		if (!strcmp(b->tps.table[i].event->topic, topic))
			return (unsigned int)i;
	return 0;
}

static int catalogue_bind(struct bridge *b)
{
	size_t n;
	const struct event_desc *events = catalogue(&n);
	int code;

	if (tracepoints_init(&b->tps, events, n, options_select, b->options)) {
		log_error("the catalogue does not fit the record layout");
		return EXIT_OTHER;
	}
	b->evictions_topic = topic_number(b, "block.evictions");
	b->started_topic = topic_number(b, "node.started");
	b->exited_topic = topic_number(b, "node.exited");
	code = binary_bind(b);
	if (!code)
		describe(b);
	return code;
}

static int pipeline_open(struct bridge *b)
{
	struct tracer_options options = { .without = b->options->without };
	int err;

	evictions_init(&b->evictions);
	memcpy(options.ring_bytes, b->options->ring_bytes, sizeof(options.ring_bytes));
	err = tracer_open(&b->tracer, &options);
	if (err)
		return err == -EPERM ? EXIT_PRIVILEGE : EXIT_OTHER;
	for (enum socket_id id = 0; id < N_SOCKETS; id++) {
		int fd = tracer_ring_fd(b->tracer, id);

		if (stream_init(&b->streams[id], b->label, b->run, b->tps.n) ||
		    ring_open(&b->rings[id], fd, options.ring_bytes[id]) || watch(b, fd)) {
			log_error("%s ring: cannot be set up: %s", socket_name(id),
				  strerror(errno));
			return EXIT_OTHER;
		}
	}
	return 0;
}

static void node_started(struct bridge *b, uint64_t time_us);

int bridge_open(struct bridge **bridge, const struct options *options)
{
	struct bridge *b = calloc(1, sizeof(*b));
	int code = EXIT_OTHER;

	if (!b)
		return EXIT_OTHER;
	*bridge = b;
	b->options = options;
	b->lock = b->epoll = b->signals = b->binary.fd = b->binary.inotify = b->node.pidfd = -1;
	if (loop_open(b)) {
		log_error("event loop: %s", strerror(errno));
		return EXIT_OTHER;
	}
	if (node_find(&b->node, options))
		return EXIT_NO_NODE;
	if (options->name)
		snprintf(b->label, sizeof(b->label), "%s", options->name);
	else
		node_label(&b->node, b->label, sizeof(b->label));
	if (binary_open(&b->binary, b->node.path, b->node.attach))
		return EXIT_NO_TRACEPOINTS;
	b->run = now_us();
	code = catalogue_bind(b);
	if (code || options->check)
		return code;
	code = pipeline_open(b);
	if (code)
		return code;
	code = lock_take(b);
	if (code)
		return code;
	code = sockets_bind(b);
	if (code)
		return code;
	b->settled_ns = clock_ns(CLOCK_MONOTONIC) + SETTLE_NS;
	code = attach(b);
	if (code)
		return code;
	clock_update(b);
	watch(b, b->binary.inotify);
	if (b->node.process.pid) {
		watch(b, b->node.pidfd);
		node_started(b, now_us());
	}
	log_info("%s: attached (%s), publishing as %s", b->binary.path, tracer_describe(b->tracer),
		 b->label);
	return 0;
}

/* ---- derived events ---- */

static void derived(struct bridge *b, unsigned int topic, uint32_t pid, uint64_t time_us,
		    const struct value *values)
{
	const struct tracepoint *tp = &b->tps.table[topic];

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
		text_value(b->binary.probes.build_id),
		{ .state = p->started_at ? VALUE_SET : VALUE_NIL, .u = p->started_at },
		text_value(b->tps.core),
	};

	derived(b, topic, (uint32_t)p->pid, time_us, values);
}

static void node_started(struct bridge *b, uint64_t time_us)
{
	log_info("node: process %d (%s)", b->node.process.pid, b->node.process.binary);
	node_tell(b, b->started_topic, time_us);
}

static void evictions_tell(struct bridge *b, bool complete, bool final)
{
	struct value values[MAX_FIELDS];

	evictions_values(&b->evictions, complete, final, values);
	derived(b, b->evictions_topic, b->evictions.pid,
		record_time_us(b, b->evictions.last_time_ns), values);
	b->evictions.told = true;
	if (final)
		evictions_close(&b->evictions);
}

/* Nothing of the process is left in the rings. */
static void node_ended(struct bridge *b, uint64_t time_us)
{
	if (b->evictions.open)
		evictions_tell(b, evictions_sound(&b->evictions), true);
	node_tell(b, b->exited_topic, time_us);
	log_info("node: process %d is gone", b->node.process.pid);
	node_gone(&b->node);
	b->node_exited = false;
	if (b->node.fixed)
		b->stopping = true;
}

/* ---- records ---- */

/* Whether a record counts: it comes from the node, or from the node's next process. */
static bool record_accept(struct bridge *b, const struct record *record)
{
	bool starting = record->probe == b->tps.start;
	uint64_t time_us = record_time_us(b, record->time_ns);

	switch (node_judge(&b->node, (pid_t)record->pid, starting)) {
	case NODE_KNOWN:
		return !starting;
	case NODE_OTHER:
		b->skipped[record->probe % MAX_PROBES]++;
		return false;
	case NODE_NEW:
		break;
	}
	if (b->node.process.pid)
		node_ended(b, time_us);
	node_follow(&b->node, (pid_t)record->pid, time_us / 1000000);
	watch(b, b->node.pidfd);
	node_started(b, time_us);
	return !starting;
}

static void record_low(struct bridge *b, const struct record *record, const struct tracepoint *tp,
		       struct value *values, uint64_t time_us)
{
	struct evictions *e = &b->evictions;
	enum eviction_kind kind = evictions_kind(tp->event, values);
	bool complete;
	uint64_t n = 0;

	if (evictions_ended(e, kind, record->ring_lost, &complete))
		evictions_tell(b, complete, true);
	if (kind == EVICTION_BLOCK || kind == EVICTION_CONFLICT)
		values[tp->event->n_fields - 1] = evictions_height(e, kind);
	if (tp->selected)
		n = stream_event(&b->streams[SOCKET_LOW], record->probe, tp->event, record->pid,
				 record->probe_lost, time_us, values);
	if (evictions_add(e, kind, values, n, record->pid, record->time_ns))
		evictions_tell(b, evictions_sound(e), true);
}

static void record_handle(struct bridge *b, const struct record *record)
{
	const struct tracepoint *tp;
	struct value values[MAX_FIELDS];
	uint64_t time_us = record_time_us(b, record->time_ns);

	if (!record_accept(b, record))
		return;
	tp = tracepoints_of(&b->tps, record);
	if (!tp)
		return;
	tracepoints_values(&b->tps, record, values);
	if (tp->event->socket == SOCKET_LOW)
		record_low(b, record, tp, values, time_us);
	else
		stream_event(&b->streams[SOCKET_HIGH], record->probe, tp->event, record->pid,
			     record->probe_lost, time_us, values);
}

/* Reads at most max records of one ring. Returns how many; *drained: nothing was left, not even a
 * record that is still being written. */
static unsigned int ring_read(struct bridge *b, enum socket_id id, unsigned int max, bool *drained)
{
	unsigned int n = 0;
	uint32_t len;
	bool busy = false;
	const struct record *record;

	while (n < max && (record = ring_next(&b->rings[id], &len, &busy))) {
		if (len >= sizeof(*record))
			record_handle(b, record);
		n++;
	}
	*drained = n < max && !busy;
	return n;
}

/* ---- the turn ---- */

static void send_messages(struct bridge *b)
{
	for (enum socket_id id = 0; id < N_SOCKETS; id++) {
		struct stream *s = &b->streams[id];

		for (size_t i = 0; i < s->n_messages; i++) {
			struct message *m = &s->messages[i];

			publisher_send(b->publisher, id, b->tps.table[m->topic].event->topic,
				       m->data, m->len);
			m->data = NULL;
		}
		stream_clear(s);
	}
}

/* Encodes what the rings hold, then gives it back to the kernel, then sends: in this order, so that
 * whatever leaves the kernel is safe before it does. Returns whether there may be more right now.
 */
static bool bridge_turn(struct bridge *b, bool *idle)
{
	bool drained[N_SOCKETS];
	unsigned int n = 0;

	for (enum socket_id id = 0; id < N_SOCKETS; id++)
		n += ring_read(b, id, RECORDS_PER_TURN, &drained[id]);
	if (drained[SOCKET_LOW] && evictions_due(&b->evictions, clock_ns(tracer_clock(b->tracer))))
		evictions_tell(b, false, false);
	if (b->node_exited && drained[SOCKET_LOW] && drained[SOCKET_HIGH])
		node_ended(b, now_us());
	for (enum socket_id id = 0; id < N_SOCKETS; id++) {
		stream_flush(&b->streams[id]);
		ring_advance(&b->rings[id]);
	}
	send_messages(b);
	*idle = n == 0 && drained[SOCKET_LOW] && drained[SOCKET_HIGH];
	return n >= RECORDS_PER_TURN;
}

/* Reads everything that was submitted before the call. */
static void drain(struct bridge *b)
{
	unsigned long until[N_SOCKETS];
	bool idle;

	for (enum socket_id id = 0; id < N_SOCKETS; id++)
		until[id] = ring_produced(&b->rings[id]);
	while (b->rings[SOCKET_LOW].position < until[SOCKET_LOW] ||
	       b->rings[SOCKET_HIGH].position < until[SOCKET_HIGH])
		if (!bridge_turn(b, &idle))
			nanosleep(&(struct timespec){ .tv_nsec = NAP_NS }, NULL);
}

/* Losses at the end of a burst, which no later event tells. The counts are read before the
 * producer's position: what is lost up to them lies before what is then drained. */
static void losses_tell(struct bridge *b)
{
	const struct shared *shared = tracer_shared(b->tracer);
	uint64_t lost[MAX_PROBES], low_lost;
	bool news = false, complete;

	low_lost = __atomic_load_n(&shared->ring_lost[SOCKET_LOW], __ATOMIC_SEQ_CST);
	for (size_t i = 0; i < b->tps.n; i++) {
		const struct event_desc *event = b->tps.table[i].event;

		lost[i] = __atomic_load_n(&shared->counters[i].lost, __ATOMIC_SEQ_CST);
		news |= lost[i] > b->streams[event->socket].told_lost[i];
	}
	if (!news && low_lost <= b->evictions.ring_lost)
		return;
	drain(b);
	if (evictions_ended(&b->evictions, EVICTION_NEUTRAL, low_lost, &complete))
		evictions_tell(b, complete, true);
	for (size_t i = 0; i < b->tps.n; i++)
		if (b->tps.table[i].selected)
			stream_loss(&b->streams[b->tps.table[i].event->socket], (unsigned int)i,
				    (uint32_t)b->node.process.pid, lost[i]);
	send_messages(b);
}

/* ---- status ---- */

static size_t status_topics(const struct bridge *b, enum socket_id id, struct topic_status *out)
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

static void status_send(struct bridge *b, const char *topic)
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
			.held = b->streams[id].next_n,
			.replay = "off",
			.pid = (uint32_t)b->node.process.pid,
			.ignored = b->node.ignored,
			.n_ignored = b->node.n_ignored,
			.topics = topics,
			.n_topics = status_topics(b, id, topics),
		};
		size_t len;

		msgpack_sbuffer_init(&buffer);
		encode_status(&buffer, &status);
		len = buffer.size;
		publisher_send(b->publisher, id, topic, msgpack_sbuffer_release(&buffer), len);
	}
}

/* ---- the loop ---- */

/* Somebody writes new code into the traced file: whoever starts from it next must find no
 * breakpoints of ours in it. */
static void binary_written(struct bridge *b)
{
	log_warning("%s: is being written in place: detached; replace a binary by rename (install, "
		    "mv), never by cp over it",
		    b->binary.path);
	tracer_detach(b->tracer);
	binary_release(&b->binary);
	drain(b);
}

/* The writer is done: read what the file holds now and attach again. */
static void binary_reopen(struct bridge *b)
{
	struct binary fresh;

	if (binary_open(&fresh, b->node.path, b->node.attach))
		return;
	binary_close(&b->binary);
	b->binary = fresh;
	watch(b, b->binary.inotify);
	if (binary_bind(b) || attach(b))
		return;
	describe(b);
}

static void binary_check(struct bridge *b, bool lease_broken)
{
	enum binary_change change = binary_changed(&b->binary);

	if (tracer_attached(b->tracer) && (lease_broken || change != BINARY_SAME))
		binary_written(b);
	if (change == BINARY_CLOSED)
		binary_reopen(b);
}

static void signals_read(struct bridge *b)
{
	struct signalfd_siginfo info;

	while (read(b->signals, &info, sizeof(info)) == sizeof(info)) {
		if (info.ssi_signo == SIGTERM || info.ssi_signo == SIGINT)
			b->stopping = true;
		else if (info.ssi_signo == SIGIO)
			binary_check(b, true);
	}
}

static int wait_ms(const struct bridge *b)
{
	uint64_t now = clock_ns(CLOCK_MONOTONIC);
	int ms = b->next_status_ns > now ? (int)((b->next_status_ns - now) / 1000000) + 1 : 0;

	/* A list that is open may have to be told early. */
	if (b->evictions.open && !b->evictions.told && ms > 50)
		ms = 50;
	return ms;
}

static void events_wait(struct bridge *b, int timeout_ms)
{
	struct epoll_event events[8];
	int n = epoll_wait(b->epoll, events, 8, timeout_ms);

	for (int i = 0; i < n; i++) {
		int fd = events[i].data.fd;

		if (fd == b->signals)
			signals_read(b);
		else if (fd == b->binary.inotify)
			binary_check(b, false);
		else if (fd == b->node.pidfd && !b->node_exited) {
			b->node_exited = true;
			epoll_ctl(b->epoll, EPOLL_CTL_DEL, fd, NULL);
		}
	}
}

static void settle(struct bridge *b)
{
	while (!b->stopping && clock_ns(CLOCK_MONOTONIC) < b->settled_ns)
		events_wait(b, 0), nanosleep(&(struct timespec){ .tv_nsec = 5000000 }, NULL);
}

int bridge_run(struct bridge *b)
{
	bool idle = true, more;

	status_send(b, TOPIC_STATUS);
	settle(b);
	while (!b->stopping) {
		uint64_t now = clock_ns(CLOCK_MONOTONIC);

		more = bridge_turn(b, &idle);
		if (now >= b->next_status_ns) {
			clock_update(b);
			losses_tell(b);
			status_send(b, TOPIC_STATUS);
			b->next_status_ns = now + STATUS_PERIOD_NS;
		}
		if (!idle && !more)
			nanosleep(&(struct timespec){ .tv_nsec = NAP_NS }, NULL);
		events_wait(b, idle ? wait_ms(b) : 0);
	}
	return 0;
}

void bridge_close(struct bridge *b)
{
	if (!b)
		return;
	if (b->tracer && b->publisher) {
		tracer_detach(b->tracer);
		drain(b);
		losses_tell(b);
		if (b->evictions.open)
			evictions_tell(b, false, true);
		stream_flush(&b->streams[SOCKET_LOW]);
		send_messages(b);
		status_send(b, TOPIC_STOPPING);
	}
	tracer_close(b->tracer);
	publisher_close(b->publisher);
	for (enum socket_id id = 0; id < N_SOCKETS; id++) {
		ring_close(&b->rings[id]);
		stream_free(&b->streams[id]);
	}
	evictions_free(&b->evictions);
	binary_close(&b->binary);
	node_close(&b->node);
	if (b->signals >= 0)
		close(b->signals);
	if (b->epoll >= 0)
		close(b->epoll);
	if (b->lock >= 0)
		close(b->lock);
	free(b);
}
