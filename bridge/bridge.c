/* Opening, the loop, closing. See bridge.h. */
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

#include "access.h"
#include "bridge.h"
#include "counters.h"
#include "descriptors.h"
#include "log.h"
#include "metrics.h"
#include "notify.h"
#include "privilege.h"
#include "replay.h"

#define RUN_DIRECTORY "/run/coretap"

/* Records read from one ring before the other has its turn: a flood in one delays the other by no
 * more than this takes, about 2 ms. */
#define RECORDS_PER_TURN 4096

/* The kernel wakes the reader only when it has caught up, and the traced thread pays for that. A
 * reader that naps between two looks is woken at most once a nap. The first nap is short; while
 * events keep coming the naps grow, since each drain has its own cost whatever it finds. */
#define NAP_NS 200000
#define LONG_NAP_NS 1000000

/* Of the journal's file. The rest is for pages that one transaction frees and the next one takes;
 * large values fragment, so they need more of it. */
#define LIVE_PERCENT 80
#define LIVE_PERCENT_PAYLOADS 50

#define STATUS_PERIOD_NS 1000000000ULL

/* With a record that is being written and does not get done. */
#define PATIENCE_NS 500000000ULL

/* Subscribers that reconnect need this long after the bind; meanwhile the rings hold. */
#define SETTLE_NS 250000000ULL

uint64_t clock_ns(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000ULL + (uint64_t)t.tv_nsec;
}

uint64_t now_us(void)
{
	return clock_ns(CLOCK_REALTIME) / 1000;
}

/* Follows steps of the wall clock against the clock that records carry. */
static void clock_update(struct bridge *b)
{
	clockid_t clock = tracer_clock(b->tracer);
	const int64_t second = 1000000000;
	uint64_t before;
	int64_t offset;

	/* Again when held up, or stepped, between the two. */
	do {
		before = clock_ns(clock);
		offset = (int64_t)(clock_ns(CLOCK_REALTIME) - before);
	} while (clock_ns(clock) - before > second / 10);
	/* TAI is ahead by whole seconds; the rest is the time between the two calls. */
	if (clock == CLOCK_TAI)
		offset = (offset + (offset < 0 ? -second / 2 : second / 2)) / second * second;
	b->clock_offset_ns = (uint64_t)offset;
}

const char *bridge_topic(const void *arg, unsigned int topic)
{
	const struct bridge *b = arg;

	return b->tps.table[topic].event->topic;
}

int bridge_watch(struct bridge *b, int fd)
{
	struct epoll_event event = { .events = EPOLLIN, .data.fd = fd };
	int err = fd < 0 ? fd : 0;

	if (fd == -1 ||
	    (!err && (!epoll_ctl(b->epoll, EPOLL_CTL_ADD, fd, &event) || errno == EEXIST)))
		return 0;
	if (!err)
		err = -errno;
	log_error("event loop: a descriptor cannot be watched: %s", strerror(-err));
	return err;
}

/* ---- opening ---- */

static int exit_code(int err)
{
	return err == -EPERM || err == -EACCES ? EXIT_PRIVILEGE : EXIT_OTHER;
}

/* Of an executable that cannot be read. One that is being written, or whose process has just ended,
 * is worth another try, which a service manager makes for a node that is not found. */
static int binary_code(int err)
{
	switch (err) {
	case -ETXTBSY:
	case -ENOENT:
	case -ESRCH:
		return EXIT_NO_NODE;
	case -EMFILE:
	case -ENFILE:
	case -ENOMEM:
		return EXIT_OTHER;
	default:
		return EXIT_NO_TRACEPOINTS;
	}
}

/* What is above may be a service's user's: no link of his leads root elsewhere. */
static bool is_directory(const char *path)
{
	struct stat st;

	if (lstat(path, &st))
		log_error("%s: %s", path, strerror(errno));
	else if (S_ISDIR(st.st_mode))
		return true;
	else
		log_error("%s: is no directory; remove it, or choose another label with --name",
			  path);
	return false;
}

static int lock_refused(const struct bridge *b)
{
	log_error("another coretapd runs under the label %s; %s", b->label,
		  b->options->detach ? "stop it first" : "choose another with --name");
	return EXIT_ADDRESS;
}

static int lock_unreadable(const char *path)
{
	log_error("%s: %s", path, strerror(errno));
	return errno == EACCES || errno == EPERM ? EXIT_PRIVILEGE : EXIT_OTHER;
}

/* What another coretapd has under the label is not to be given to anybody. */
static int lock_look(const struct bridge *b, const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK), code = 0;

	if (fd < 0)
		return errno == ENOENT ? 0 : lock_unreadable(path);
	if (flock(fd, LOCK_EX | LOCK_NB))
		code = lock_refused(b);
	close(fd);
	return code;
}

/* With --detach nothing is made, and nothing given: whose it is may start again under the label. */
static int lock_take(struct bridge *b)
{
	static const char *const names[] = { "lock", NULL };
	bool detach = b->options->detach;
	char path[160];
	int code;

	snprintf(b->directory, sizeof(b->directory), RUN_DIRECTORY "/%s", b->label);
	snprintf(path, sizeof(path), "%s/lock", b->directory);
	if (detach && access(path, F_OK) && errno == ENOENT)
		return 0;
	if ((mkdir(RUN_DIRECTORY, 0755) && errno != EEXIST) ||
	    (mkdir(b->directory, 0755) && errno != EEXIST)) {
		log_error("%s: cannot be made: %s", b->directory, strerror(errno));
		return errno == EACCES || errno == EPERM ? EXIT_PRIVILEGE : EXIT_OTHER;
	}
	if (!is_directory(b->directory))
		return EXIT_OTHER;
	code = lock_look(b, path);
	if (code)
		return code;
	if (!detach)
		privilege_give(&b->user, b->directory, names);
	privilege_as(&b->user);
	b->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
	privilege_self();
	if (b->lock < 0)
		return lock_unreadable(path);
	return flock(b->lock, LOCK_EX | LOCK_NB) ? lock_refused(b) : 0;
}

/* Greater than every earlier run of this label, though the clock may have gone back and the journal
 * may be gone: the lock file remembers the last one. The journal may be another label's. */
static uint64_t run_new(const struct bridge *b)
{
	uint64_t run = now_us(), last = 0;
	char text[32] = "";
	ssize_t n = pread(b->lock, text, sizeof(text) - 1, 0);

	if (n < 0)
		log_warning("%s/lock: the last run cannot be read: %s", b->directory,
			    strerror(errno));
	if (n > 0)
		last = strtoull(text, NULL, 10);
	if (b->journal && journal_last_run(b->journal) > last)
		last = journal_last_run(b->journal);
	if (run <= last)
		run = last + 1;
	n = snprintf(text, sizeof(text), "%lu\n", run);
	if (pwrite(b->lock, text, (size_t)n, 0) != n)
		log_warning("%s/lock: cannot be written: %s", b->directory, strerror(errno));
	return run;
}

static int sockets_bind(struct bridge *b)
{
	static const char *const names[N_ENDPOINTS] = { "low", "high", "replay" };
	int err;

	b->endpoints.subscriber_memory = b->options->subscriber_memory;
	b->endpoints.ipc_mode = b->options->ipc_mode;
	b->endpoints.ipc_owner = b->user.name && !geteuid() ? b->user.uid : (uid_t)-1;
	b->endpoints.user = &b->user;
	b->endpoints.ipc_group = b->options->ipc_group;
	for (unsigned int e = 0; e < N_ENDPOINTS; e++) {
		unsigned int n = 0;

		if (b->options->endpoints[e][0]) {
			memcpy(b->endpoints.endpoints[e], b->options->endpoints[e],
			       sizeof(b->endpoints.endpoints[e]));
			continue;
		}
		snprintf(b->default_endpoints[e][0], sizeof(b->default_endpoints[e][0]),
			 "tcp://127.0.0.1:%u", b->options->port + e);
		snprintf(b->default_endpoints[e][1], sizeof(b->default_endpoints[e][1]),
			 "ipc://%s/%s.sock", b->directory, names[e]);
		if (b->options->port)
			b->endpoints.endpoints[e][n++] = b->default_endpoints[e][0];
		b->endpoints.endpoints[e][n] = b->default_endpoints[e][1];
	}
	b->endpoints.access = b->access;
	b->access = NULL; /* the publisher's from here on */
	err = publisher_open(&b->publisher, &b->endpoints);
	if (!err)
		err = replay_open(&b->replay, b->publisher,
				  b->endpoints.endpoints[ENDPOINT_REPLAY]);
	if (!err && b->options->metrics)
		err = metrics_open(&b->metrics, b->options->metrics, b);
	if (!err)
		return bridge_watch(b, replay_fd(b->replay)) ||
				       bridge_watch(b, publisher_fd(b->publisher, SOCKET_LOW)) ||
				       bridge_watch(b, publisher_fd(b->publisher, SOCKET_HIGH)) ||
				       bridge_watch(b, publisher_admit_fd(b->publisher)) ||
				       bridge_watch(b, b->metrics ? metrics_fd(b->metrics) : -1)
			       ? EXIT_OTHER
			       : 0;
	return err == -EADDRINUSE || err == -EEXIST ? EXIT_ADDRESS : EXIT_OTHER;
}

static int loop_open(struct bridge *b)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	sigaddset(&set, SIGIO); /* a lease on the binary is being broken */
	if (sigprocmask(SIG_BLOCK, &set, NULL))
		goto out;
	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN); /* a journal beyond the limit is an error like others */
	/* The default slack of 50 us would make naps a quarter longer than they should be. */
	prctl(PR_SET_TIMERSLACK, 1000UL, 0, 0, 0);
	b->signals = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
	b->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (b->signals >= 0 && b->epoll >= 0)
		return bridge_watch(b, b->signals);
out:
	log_error("event loop: %s", strerror(errno));
	return -errno;
}

static const struct event_desc *event_of(const void *arg, size_t i)
{
	return ((const struct tracepoints *)arg)->table[i].event;
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
	int code;

	if (tracepoints_init(&b->tps, &b->options->declarations, options_select, b->options)) {
		log_error("the catalogue does not fit the record layout");
		return EXIT_OTHER;
	}
	b->tps.payload_limit = b->options->payload_limit;
	for (size_t i = 0; i < b->tps.n; i++)
		b->kinds[i] = (uint8_t)evictions_event_kind(b->tps.table[i].event);
	b->evictions_topic = topic_number(b, "block.evictions");
	b->started_topic = topic_number(b, "node.started");
	b->exited_topic = topic_number(b, "node.exited");
	b->removed_topic = topic_number(b, "mempool.removed");
	if (b->options->metrics) {
		b->counters = counters_new(b->tps.n, event_of, &b->tps);
		if (!b->counters)
			log_out_of_memory();
	}
	code = follow_bind(b);
	/* At the start somebody is there who can correct the file. A binary that comes later is
	 * traced as far as it fits. */
	return b->tps.refused ? EXIT_USAGE : code;
}

/* The rings of this process: loaded anew, or taken over. */
static int pipeline_open(struct bridge *b)
{
	struct tracer_options options = {
		.without = b->options->without,
		.payloads = b->options->payloads,
		.functions = tracepoints_want_functions(&b->tps),
		.rules = b->options->rules,
		.n_rules = b->options->n_rules,
	};
	int code, err;

	evictions_init(&b->evictions, b->options->keep_attached);
	for (enum socket_id id = 0; id < N_SOCKETS; id++)
		if (stream_init(&b->streams[id], b->label, 0, b->tps.n))
			return EXIT_OTHER;
	code = state_resume(b);
	if (code)
		return code;
	if (!b->resumed) {
		if (state_end_run(b))
			return EXIT_OTHER;
		b->run = run_new(b);
		memcpy(options.ring_bytes, b->options->ring_bytes, sizeof(options.ring_bytes));
		err = tracer_open(&b->tracer, &options);
		if (err)
			return exit_code(err);
	}
	for (enum socket_id id = 0; id < N_SOCKETS; id++) {
		int fd = tracer_ring_fd(b->tracer, id);

		b->streams[id].run = b->run;
		err = b->resumed ? 0
				 : ring_open(&b->rings[id], fd, tracer_ring_bytes(b->tracer, id));
		if (err)
			log_error("%s ring: cannot be set up: %s", socket_name(id), strerror(-err));
		if (err || bridge_watch(b, fd))
			return EXIT_OTHER;
	}
	return 0;
}

static int journal_begin(struct bridge *b)
{
	static const char *const names[] = { "data.mdb", NULL };
	const char *directory = b->options->journal_directory;
	char own[160];
	int err;

	if (!b->options->journal)
		return 0;
	snprintf(own, sizeof(own), "%s/journal", b->directory);
	if (!directory)
		directory = own;
	/* A directory of the operator's that is there already is not ours to give away. */
	if (!mkdir(directory, 0750) || (directory == own && errno == EEXIST)) {
		if (!is_directory(directory))
			return EXIT_OTHER;
		privilege_give(&b->user, directory, names);
	}
	privilege_as(&b->user);
	err = journal_open(&b->journal, directory, b->options->journal_bytes,
			   b->options->payloads ? LIVE_PERCENT_PAYLOADS : LIVE_PERCENT,
			   &b->journal_halved);
	privilege_self();
	b->journal_failed = err != 0;
	return err == -EBUSY ? EXIT_ADDRESS : 0;
}

static int label_choose(struct bridge *b)
{
	if (b->options->name)
		snprintf(b->label, sizeof(b->label), "%s", b->options->name);
	else
		node_label(&b->node, b->options, b->label, sizeof(b->label));
	return lock_take(b);
}

/* What stands in the directory of a label that nobody uses: memory, in /run. The lock stays, since
 * it knows the last run. The directory may belong to a service's user, and no link of his is
 * followed. */
static void directory_clear(const struct bridge *b)
{
	static const char *const sockets[] = { "low.sock", "high.sock", "replay.sock" };
	int own = open(b->directory, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	int journal =
		own < 0 ? -1
			: openat(own, "journal", O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	if (journal >= 0) {
		unlinkat(journal, "data.mdb", 0);
		unlinkat(journal, "boot", 0);
		close(journal);
		unlinkat(own, "journal", AT_REMOVEDIR);
	}
	for (size_t i = 0; own >= 0 && i < sizeof(sockets) / sizeof(sockets[0]); i++)
		unlinkat(own, sockets[i], 0);
	if (own >= 0)
		close(own);
}

static int detach(struct bridge *b)
{
	int code = label_choose(b);
	int n = code ? 0 : tracer_unpin(b->label);

	if (n == -EBUSY)
		return EXIT_ADDRESS;
	if (n < 0) {
		log_error("%s/%s: %s", TRACER_PIN_ROOT, b->label, strerror(-n));
		return exit_code(n);
	}
	if (!code) {
		directory_clear(b);
		log_info(n ? "%s: detached" : "%s: nothing was left attached", b->label);
	}
	return code;
}

/* Who we will be, and who may connect: read while root may. */
static int security_open(struct bridge *b)
{
	const struct options *o = b->options;

	if (o->user && privilege_user(&b->user, o->user))
		return geteuid() ? EXIT_PRIVILEGE : EXIT_USAGE;
	if (o->curve_secret && access_open(&b->access, o->curve_secret, o->curve_clients))
		return EXIT_USAGE;
	return 0;
}

/* Whether the node is, or may be, another user's. */
static bool of_others(const struct bridge *b)
{
	struct stat st;
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d", b->node.process.pid);
	return !b->node.process.pid || stat(path, &st) ||
	       st.st_uid != (b->user.name ? b->user.uid : geteuid());
}

/* Whether the node's next process and its next executable can be found with what is left. */
static bool node_reached(const struct bridge *b)
{
	char pid_file[PATH_MAX];
	const char *paths[] = { b->options->pid_file, b->options->datadir, NULL, b->node.path };
	bool all = true;

	if (b->options->datadir &&
	    !process_pid_file(b->options->datadir, pid_file, sizeof(pid_file)))
		paths[2] = pid_file;
	for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
		if (!paths[i] || privilege_reaches(&b->user, paths[i]))
			continue;
		all = false;
		if (b->user.name || geteuid())
			log_warning("%s: cannot be read by this user: %s", paths[i],
				    i < 3 ? "the node will not be found again when it restarts"
					  : "another version of it there will not be traced");
	}
	return all;
}

/* From here on this process is what it will be: everything is open, and the node is attached. */
static int privileges_drop(struct bridge *b)
{
	if (!geteuid() && tracer_give(b->tracer, b->user.uid, b->user.gid))
		return EXIT_OTHER;
	return privilege_drop(&b->user, of_others(b), !node_reached(b),
			      tracer_wants_admin(b->tracer))
		       ? EXIT_PRIVILEGE
		       : 0;
}

int bridge_open(struct bridge *b, const struct options *options)
{
	int code, err;

	memset(b, 0, sizeof(*b));
	b->options = options;
	b->lock = b->epoll = b->signals = b->names = b->node.pidfd = -1;
	for (unsigned int g = 0; g < MAX_GROUPS; g++)
		b->binaries[g].fd = b->binaries[g].inotify = -1;
	privilege_seal();
	if (options->detach)
		return detach(b);
	code = security_open(b);
	if (code)
		return code;
	if (options->check)
		log_info("options: nothing wrong with them");
	if (loop_open(b))
		return EXIT_OTHER;
	code = node_find(&b->node, options);
	if (code)
		return code == -EPERM ? EXIT_PRIVILEGE : EXIT_NO_NODE;
	err = binary_open(&b->binaries[0], b->node.path, b->node.attach);
	if (err == -ETXTBSY)
		log_error("%s: somebody is writing it: try again when the writer is done",
			  b->node.path);
	if (err)
		return binary_code(err);
	code = catalogue_bind(b);
	if (code || options->check)
		return code;
	if (privilege_check(of_others(b)))
		return EXIT_PRIVILEGE;
	if (process_namespace_is_own())
		log_warning(
			"runs in a pid namespace of its own, so that no event will be told from "
			"another process's: run it in the host's (docker run --pid=host)");
	code = label_choose(b);
	if (code)
		return code;
	code = journal_begin(b);
	if (!code)
		code = pipeline_open(b);
	if (code)
		return code;
	/* Before anything that may fail: what is in the rings is told at the end of this process,
	 * however soon it comes. */
	clock_update(b);
	code = sockets_bind(b);
	if (code)
		return code;
	b->settled_ns = clock_ns(CLOCK_MONOTONIC) + SETTLE_NS;
	if (b->resumed)
		follow_watch(b);
	else
		code = follow_attach(b);
	if (!code)
		code = privileges_drop(b);
	if (code)
		return code;
	if (bridge_watch(b, b->node.pidfd))
		return EXIT_OTHER;
	b->attached_us = now_us();
	log_info("%s: %s (%s), publishing as %s%s", b->binaries[b->current].path,
		 follow_waits(b) ? "waiting for the node" : "attached", tracer_describe(b->tracer),
		 b->label, b->resumed ? ", going on where the last coretapd stopped" : "");
	return 0;
}

/* ---- the turn ---- */

/* Everything that goes through a bridge goes through here, in this order: encode, commit, advance,
 * send. What leaves the kernel is in the journal by then; what a subscriber sees, a successor
 * knows. Killed at any point, the next process finds either the record in the ring or its message
 * in the journal, and never uses a number twice. */
static void deliver(struct bridge *b)
{
	for (enum socket_id id = 0; id < N_SOCKETS; id++)
		stream_flush(&b->streams[id]);
	state_save(b);
	for (enum socket_id id = 0; id < N_SOCKETS; id++)
		ring_advance(&b->rings[id]);
	for (enum socket_id id = 0; id < N_SOCKETS; id++) {
		struct stream *s = &b->streams[id];

		for (size_t i = 0; i < s->n_messages; i++) {
			struct message *m = &s->messages[i];

			if (b->counters) {
				b->counters->published[id].count++;
				b->counters->published[id].bytes += m->len;
			}
			publisher_send(b->publisher, id, bridge_topic(b, m->topic), m->data,
				       m->len);
			m->data = NULL;
		}
		stream_clear(s);
	}
	if (b->counters && b->counters->n_pending)
		counters_sent(b->counters, now_us());
}

/* What was lost up to these counts, all of which lies before what was read. */
static void losses_publish(struct bridge *b, const uint64_t lost[MAX_PROBES], uint64_t low_lost)
{
	bool complete;

	if (evictions_ended(&b->evictions, EVICTION_NEUTRAL, low_lost, &complete))
		intake_evictions(b, complete, true);
	for (size_t i = 0; i < b->tps.n; i++)
		if (b->tps.table[i].selected)
			/* losses_read fills as many as there are.
			 * NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage) */
			stream_loss(&b->streams[b->tps.table[i].event->socket], (unsigned int)i,
				    (uint32_t)b->node.process.pid, lost[i]);
}

/* Whether anything was lost that is not told yet. */
static bool losses_read(const struct bridge *b, uint64_t lost[MAX_PROBES], uint64_t *low_lost)
{
	const struct shared *shared = tracer_shared(b->tracer);
	bool news;

	*low_lost = tracer_lost(b->tracer, SOCKET_LOW);
	news = *low_lost > b->evictions.state.ring_lost;
	for (size_t i = 0; i < b->tps.n; i++) {
		const struct tracepoint *tp = &b->tps.table[i];

		lost[i] = __atomic_load_n(&shared->counters[i].lost, __ATOMIC_SEQ_CST);
		news |= tp->selected && lost[i] > b->streams[tp->event->socket].told_lost[i];
	}
	return news;
}

static void rings_measure(struct bridge *b)
{
	uint64_t now = clock_ns(CLOCK_MONOTONIC);

	for (enum socket_id id = 0; id < N_SOCKETS; id++)
		counters_ring(b->counters, id, ring_produced(&b->rings[id]) - b->rings[id].position,
			      now);
}

/* Reads a bounded part of both rings and delivers it. Returns whether there may be more right now;
 * *idle: there was nothing, and nothing is being written. */
static bool bridge_turn(struct bridge *b, bool *idle)
{
	bool drained[N_SOCKETS];
	unsigned int n = 0;

	if (b->counters)
		rings_measure(b);
	/* TAI jumps when somebody tells the kernel how far it is ahead, once after each boot. */
	if (tracer_clock(b->tracer) == CLOCK_TAI)
		clock_update(b);
	for (enum socket_id id = 0; id < N_SOCKETS; id++)
		n += intake_read(b, id, RECORDS_PER_TURN, &drained[id]);
	if (drained[SOCKET_LOW] && evictions_due(&b->evictions, clock_ns(tracer_clock(b->tracer))))
		intake_evictions(b, false, false);
	if (b->node_exited && drained[SOCKET_LOW] && drained[SOCKET_HIGH]) {
		uint64_t lost[MAX_PROBES], low_lost;

		/* It fires no more: what it lost at the end is told while it is known whose it was.
		 */
		if (losses_read(b, lost, &low_lost))
			losses_publish(b, lost, low_lost);
		intake_node_ended(b, now_us(), low_lost);
	}
	*idle = n == 0 && drained[SOCKET_LOW] && drained[SOCKET_HIGH];
	if (!*idle || b->streams[SOCKET_LOW].is_open || b->streams[SOCKET_LOW].n_messages ||
	    b->streams[SOCKET_HIGH].n_messages)
		deliver(b);
	if (b->node_ended) {
		b->node_ended = false;
		follow_ended(b);
	}
	return n >= RECORDS_PER_TURN;
}

bool bridge_drain(struct bridge *b)
{
	uint64_t since = clock_ns(CLOCK_MONOTONIC);
	unsigned long until[N_SOCKETS], before = 0;
	bool idle;

	for (enum socket_id id = 0; id < N_SOCKETS; id++)
		until[id] = ring_produced(&b->rings[id]);
	/* At least once: what is still open goes out too. */
	while (true) {
		bool more = bridge_turn(b, &idle);
		unsigned long left = 0;

		for (enum socket_id id = 0; id < N_SOCKETS; id++)
			if (b->rings[id].position < until[id])
				left += until[id] - b->rings[id].position;
		if (!left)
			return true;
		/* A thread of the node that waits for its memory holds a record up, and what is
		 * behind it, but not the rest of us. Nor does what comes in the other ring. */
		if (left != before)
			since = clock_ns(CLOCK_MONOTONIC);
		else if (clock_ns(CLOCK_MONOTONIC) - since > PATIENCE_NS)
			return false;
		before = left;
		if (!more)
			nanosleep(&(struct timespec){ .tv_nsec = NAP_NS }, NULL);
	}
}

/* Losses at the end of a burst, which no later event tells. The counts are read before the
 * producer's position: what is lost up to them lies before what is then drained. */
static void losses_tell(struct bridge *b)
{
	uint64_t lost[MAX_PROBES], low_lost;

	if (!losses_read(b, lost, &low_lost))
		return;
	/* What cannot be drained now: it is told later. */
	if (!bridge_drain(b))
		return;
	losses_publish(b, lost, low_lost);
	deliver(b);
}

/* ---- the loop ---- */

static void signals_read(struct bridge *b)
{
	struct signalfd_siginfo info;

	while (read(b->signals, &info, sizeof(info)) == sizeof(info)) {
		if (info.ssi_signo == SIGTERM || info.ssi_signo == SIGINT)
			b->stopping = true;
		else if (info.ssi_signo == SIGIO)
			follow_changed(b, -1);
		else if (info.ssi_signo == SIGHUP)
			publisher_reload(b->publisher);
	}
}

static int wait_ms(const struct bridge *b)
{
	uint64_t now = clock_ns(CLOCK_MONOTONIC);
	int ms = b->next_status_ns > now ? (int)((b->next_status_ns - now) / 1000000) + 1 : 0;

	/* A list that is open may have to be told early. */
	if (b->evictions.state.open && !b->evictions.state.told && ms > 50)
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
		else if (b->metrics && fd == metrics_fd(b->metrics))
			b->metrics_due = true;
		else if (fd == b->node.pidfd) {
			/* What was handled before it may have closed the descriptor, and the next
			 * node has its number. */
			if (node_alive(&b->node))
				continue;
			b->node_exited = true;
			epoll_ctl(b->epoll, EPOLL_CTL_DEL, fd, NULL);
		} else if (fd == b->names || fd == b->binaries[0].inotify ||
			   fd == b->binaries[1].inotify) {
			follow_changed(b, fd);
		}
	}
}

static void nap(long ns)
{
	nanosleep(&(struct timespec){ .tv_nsec = ns }, NULL);
}

static void settle(struct bridge *b)
{
	while (!b->stopping && clock_ns(CLOCK_MONOTONIC) < b->settled_ns) {
		bool more = publisher_admit(b->publisher);

		publisher_attend(b->publisher);
		more |= replay_serve(b->replay, b);
		if (!more)
			nap(5000000);
		events_wait(b, 0);
	}
}

/* What a service manager sees. */
static void manager_tell(struct bridge *b)
{
	char state[128];

	notify_alive();
	if (b->ready && b->notified == b->node.process.pid)
		return;
	if (b->node.process.pid)
		snprintf(state, sizeof(state), "%sSTATUS=%s: publishing process %d",
			 b->ready ? "" : "READY=1\n", b->label, b->node.process.pid);
	else
		snprintf(state, sizeof(state), "%sSTATUS=%s: waiting for the node",
			 b->ready ? "" : "READY=1\n", b->label);
	notify_send(state);
	b->ready = true;
	b->notified = b->node.process.pid;
}

/* Whoever removes the directory takes away ipc sockets and journal, and the lock that keeps a
 * second coretapd of the label away where nothing is pinned. */
static void directory_check(struct bridge *b)
{
	struct stat st;

	if (b->directory_gone || (!fstat(b->lock, &st) && st.st_nlink))
		return;
	log_error("%s: was removed: its sockets cannot be reached and its journal ends with this "
		  "process; restart coretapd",
		  b->directory);
	b->directory_gone = true;
}

static void second_pass(struct bridge *b)
{
	directory_check(b);

	clock_update(b);
	losses_tell(b);
	status_send(b, TOPIC_STATUS);
	follow_tick(b);
	manager_tell(b);
	descriptors_tell();
	log_tick();
	b->metrics_due = b->metrics != NULL;
}

void bridge_run(struct bridge *b)
{
	bool idle = true, more;
	long nap_ns = NAP_NS;

	manager_tell(b);
	status_send(b, TOPIC_STATUS);
	/* Not before the first status, which says that nothing was told yet. One that was killed
	 * while it settled has told its successor of the node, but nobody else. */
	if (b->node.process.pid && !b->node.told)
		intake_node_started(b, b->attached_us);
	settle(b);
	while (!b->stopping) {
		uint64_t now = clock_ns(CLOCK_MONOTONIC);

		more = bridge_turn(b, &idle);
		if (now >= b->next_status_ns) {
			second_pass(b);
			b->next_status_ns = now + STATUS_PERIOD_NS;
		}
		more |= replay_serve(b->replay, b);
		publisher_attend(b->publisher);
		more |= publisher_admit(b->publisher);
		if (b->metrics_due)
			more |= b->metrics_due = metrics_serve(b->metrics);
		if (idle) {
			nap_ns = NAP_NS;
		} else if (!more) {
			nap(nap_ns);
			nap_ns = nap_ns * 2 < LONG_NAP_NS ? nap_ns * 2 : LONG_NAP_NS;
		}
		events_wait(b, idle && !more ? wait_ms(b) : 0);
	}
}

/* What was fired before the end is told before it. A list of evictions that is still open is ended
 * too, unless a successor will go on with it. */
static void farewell(struct bridge *b)
{
	/* Pins of what is not attached any more would keep memory for nobody. */
	bool stays = tracer_pinned(b->tracer) &&
		     (tracer_attached(b->tracer, 0) || tracer_attached(b->tracer, 1));

	notify_send("STOPPING=1");
	if (!stays)
		tracer_detach(b->tracer);
	bridge_drain(b);
	losses_tell(b);
	if (b->evictions.state.open && !stays)
		intake_evictions(b, false, true);
	deliver(b);
	status_send(b, TOPIC_STOPPING);
	if (stays && tracer_attached(b->tracer, b->current))
		log_info("%s: left attached; replace %s only by rename (install, mv), never by cp "
			 "over it; `coretapd --detach --name %s` ends it",
			 b->label, b->binaries[b->current].path, b->label);
}

void bridge_close(struct bridge *b)
{
	if (b->replay)
		farewell(b);
	metrics_close(b->metrics);
	replay_close(b->replay);
	access_close(b->access);
	publisher_close(b->publisher);
	tracer_close(b->tracer);
	for (enum socket_id id = 0; id < N_SOCKETS; id++) {
		ring_close(&b->rings[id]);
		stream_free(&b->streams[id]);
	}
	journal_close(b->journal);
	free(b->saved);
	free(b->counters);
	evictions_free(&b->evictions);
	for (unsigned int g = 0; g < MAX_GROUPS; g++)
		binary_close(&b->binaries[g]);
	if (b->names >= 0)
		close(b->names);
	node_close(&b->node);
	if (b->signals >= 0)
		close(b->signals);
	if (b->epoll >= 0)
		close(b->epoll);
	if (b->lock >= 0)
		close(b->lock);
}
