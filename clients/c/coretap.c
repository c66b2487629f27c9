/* The handle: which sockets are needed, whose turn it is, and whether they are alive. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "coretap.h"
#include "filler.h"
#include "position.h"
#include "tracker.h"
#include "transport.h"

#ifndef CORETAP_VERSION
#define CORETAP_VERSION "0.0.0"
#endif

#define DEFAULT_MEMORY (256ull << 20)
#define MESSAGE_BYTES (16u << 10) /* no message is larger, unless one event is */

#define STALE_MS 3000 /* three status periods */
/* Silence counts only while someone listens. After this process itself was stopped or busy for
 * longer than AWAY_MS, what came meanwhile gets GRACE_MS to be handed over. */
#define AWAY_MS 1250
#define GRACE_MS 250

#define POSITION_MS 100	       /* how often the position is written while events come */
#define POSITION_RETRY_MS 1000 /* how often when that fails */

struct link {
	struct tracker *tracker; /* NULL = this socket is not needed */
	struct filler *filler;	 /* NULL = gaps are not filled */
	bool filling;		 /* a message is held until what precedes it is here */
	bool anchored;		 /* the position file has a place for this socket */
	int64_t stale_at;	 /* when silence becomes CORETAP_STALE */
	bool told;		 /* STALE or STOPPING was the last that was told */
	bool graced;		 /* this silence was given its grace */
	bool alive;		 /* ALIVE is to be told first */
};

struct coretap {
	struct transport *transport;
	struct link links[N_SOCKETS];
	struct link *current; /* its stream may have more of the message taken */
	unsigned int turn;    /* socket to look at first */
	bool started;
	int64_t looked_at; /* when a socket was last looked at, or waited for */
	struct filter filter;
	struct coretap_event event;
	struct json json;
	uint64_t counters[CORETAP_COUNT_REPLAYED + 1];

	bool replay; /* gaps are to be filled */
	bool since_wanted;
	uint64_t since;

	char *position; /* path, NULL = none is kept */
	bool by_hand;	/* only coretap_commit writes it */
	bool moved;	/* since it was written */
	int64_t written_at;
	struct json position_text;

	void (*observe)(void *arg, const struct coretap_message *message);
	void *observe_arg;
};

const char *coretap_version(void)
{
	return CORETAP_VERSION;
}

const char *coretap_strerror(int error)
{
	switch (-error) {
	case EINVAL:
		return "not an address, a topic or a path, or nothing subscribed to";
	case ENAMETOOLONG:
		return "address too long";
	case EBUSY:
		return "too late: events are already being received";
	case ENOMEM:
		return "out of memory";
	case EMFILE:
		return "too many open files";
	case EINTR:
		return "interrupted by a signal";
	case ENOENT:
		return "no such field, end of the array, or (of a position) no such directory";
	case EPROTOTYPE:
		return "the field has another type";
	case ERANGE:
		return "the number does not fit";
	case EBADMSG:
		return "not a position file";
	case EKEYREJECTED:
		return "not a key: a key has 40 characters, as `coretap keygen` makes them";
	default:
		return error < 0 ? strerror(-error) : "no error";
	}
}

static int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int coretap_open(const char *address, struct coretap **out)
{
	struct coretap *tap = calloc(1, sizeof(*tap));
	int err;

	if (!tap)
		return -ENOMEM;
	err = transport_open(address ? address : CORETAP_DEFAULT_ADDRESS, &tap->transport);
	if (err) {
		coretap_close(tap);
		return err;
	}
	tap->event.json = &tap->json;
	tap->replay = true;
	coretap_set_memory(tap, DEFAULT_MEMORY);
	*out = tap;
	return 0;
}

void coretap_close(struct coretap *tap)
{
	if (!tap)
		return;
	transport_close(tap->transport);
	for (int i = 0; i < N_SOCKETS; i++) {
		filler_free(tap->links[i].filler);
		tracker_free(tap->links[i].tracker);
	}
	for (size_t i = 0; i < tap->filter.n_names; i++)
		free(tap->filter.names[i]);
	free(tap->filter.names);
	json_free(&tap->json);
	json_free(&tap->position_text);
	free(tap->position);
	free(tap);
}

int coretap_set_curve(struct coretap *tap, const char *server_key, const char *secret_key)
{
	return tap->filter.n_names ? -EBUSY
				   : transport_set_curve(tap->transport, server_key, secret_key);
}

int coretap_set_memory(struct coretap *tap, uint64_t bytes)
{
	uint64_t messages = bytes / MESSAGE_BYTES;

	if (tap->filter.n_names)
		return -EBUSY;
	if (bytes && !messages)
		messages = 1;
	transport_set_backlog(tap->transport, messages > INT_MAX ? INT_MAX : (int)messages);
	return 0;
}

int coretap_set_replay(struct coretap *tap, int on)
{
	if (tap->filter.n_names)
		return -EBUSY;
	tap->replay = on;
	return 0;
}

int coretap_since(struct coretap *tap, uint64_t time_us)
{
	if (tap->started)
		return -EBUSY;
	tap->since_wanted = true;
	tap->since = time_us;
	return 0;
}

int coretap_set_position(struct coretap *tap, const char *path)
{
	char *copy;

	if (tap->started)
		return -EBUSY;
	if (!path || !*path)
		return -EINVAL;
	if (strlen(path) + sizeof(".new") > PATH_MAX)
		return -ENAMETOOLONG;
	copy = strdup(path);
	if (!copy)
		return -ENOMEM;
	free(tap->position);
	tap->position = copy;
	return 0;
}

void coretap_observe(struct coretap *tap,
		     void (*observe)(void *arg, const struct coretap_message *message), void *arg)
{
	tap->observe = observe;
	tap->observe_arg = arg;
}

int coretap_restore(struct coretap *tap, enum socket_id socket, const char *label, uint64_t run,
		    uint64_t n)
{
	struct tracker *tracker = tap->links[socket].tracker;

	if (tap->started)
		return -EBUSY;
	if (!tracker || !run || strchr(label, '.') || strlen(label) > DECODE_MAX_LABEL ||
	    !topic_valid(label, strlen(label)))
		return -EINVAL;
	return tracker_restore(tracker, label, strlen(label), run, n);
}

int coretap_restore_topic(struct coretap *tap, enum socket_id socket, const char *topic,
			  uint64_t next)
{
	struct tracker *tracker = tap->links[socket].tracker;
	const char *node;
	uint64_t run;

	if (tap->started)
		return -EBUSY;
	if (!tracker || !topic_valid(topic, strlen(topic)))
		return -EINVAL;
	tracker_last(tracker, &node, &run);
	return run ? tracker_restore_topic(tracker, topic, strlen(topic), next, UINT64_MAX)
		   : -EINVAL;
}

void coretap_skip(struct coretap *tap)
{
	if (tap->current)
		tracker_skip(tap->current->tracker);
}

bool coretap_replay_down(const struct coretap *tap, enum socket_id socket)
{
	return tap->links[socket].filler && filler_down(tap->links[socket].filler);
}

/* The sockets that can carry what a topic or prefix stands for. */
static void needed_sockets(const char *topic, bool needed[N_SOCKETS])
{
	size_t n_events, length = strlen(topic);
	const struct event_desc *events = catalogue(&n_events);
	bool prefix = !length || topic[length - 1] == '.', known = false;

	for (size_t i = 0; i < n_events; i++)
		if (prefix ? !strncmp(events[i].topic, topic, length)
			   : !strcmp(events[i].topic, topic)) {
			needed[events[i].socket] = true;
			known = true;
		}
	for (int i = 0; i < N_SOCKETS; i++)
		if (!known)
			needed[i] = true;
}

static int filter_add(struct filter *filter, const char *name)
{
	char **names = realloc(filter->names, (filter->n_names + 1) * sizeof(*names));

	if (!names)
		return -ENOMEM;
	filter->names = names;
	names[filter->n_names] = strdup(name);
	if (!names[filter->n_names])
		return -ENOMEM;
	filter->n_names++;
	return 0;
}

int coretap_subscribe(struct coretap *tap, const char *topic)
{
	bool needed[N_SOCKETS] = { false };
	int err;

	if (tap->started)
		return -EBUSY;
	/* A word without a dot would match topics that merely begin with it. */
	if (!topic || (*topic && (!topic_valid(topic, strlen(topic)) || !strchr(topic, '.') ||
				  *topic == '.')))
		return -EINVAL;
	err = filter_add(&tap->filter, topic);
	if (err)
		return err;
	needed_sockets(topic, needed);
	for (int i = 0; i < N_SOCKETS; i++) {
		struct link *link = &tap->links[i];

		if (!needed[i])
			continue;
		if (!link->tracker)
			link->tracker = tracker_new((enum socket_id)i, &tap->filter, tap->counters);
		if (!link->tracker)
			return -ENOMEM;
		if (tap->replay && !link->filler)
			link->filler = filler_new(tap->transport, (enum socket_id)i, link->tracker,
						  &tap->filter);
		if (tap->replay && !link->filler)
			return -ENOMEM;
		err = transport_subscribe(tap->transport, (enum socket_id)i, topic);
		if (err)
			return err;
	}
	return 0;
}

/* How much of a socket is to be received. So that order holds among all topics, low is received
 * whole where several are wanted; high is not, it may carry a hundred times as much as is wanted.
 */
static enum coverage coverage(const struct filter *filter, enum socket_id id)
{
	const char *only = NULL;
	bool several = false;

	for (size_t i = 0; i < filter->n_names; i++) {
		const char *name = filter->names[i];
		size_t length = strlen(name);
		bool needed[N_SOCKETS] = { false };

		needed_sockets(name, needed);
		if (!needed[id] || !strncmp(name, "bridge.", 7))
			continue;
		if (!length)
			return COVERS_WHOLE;
		several |= name[length - 1] == '.' || (only && strcmp(only, name));
		only = name;
	}
	if (!several)
		return COVERS_TOPIC;
	return id == SOCKET_LOW ? COVERS_WHOLE : COVERS_PART;
}

static void collect_trackers(const struct coretap *tap, struct tracker *trackers[N_SOCKETS])
{
	for (int i = 0; i < N_SOCKETS; i++)
		trackers[i] = tap->links[i].tracker;
}

static int start_link(struct coretap *tap, enum socket_id id)
{
	struct link *link = &tap->links[id];
	const char *node;
	uint64_t run;
	int err = 0;

	if (link->filler) {
		enum coverage covers = coverage(&tap->filter, id);

		tracker_set_coverage(link->tracker, covers);
		if (covers == COVERS_WHOLE)
			err = transport_subscribe(tap->transport, id, "");
	}
	tracker_last(link->tracker, &node, &run);
	link->anchored = run;
	if (tap->since_wanted && link->filler && !run)
		filler_want_since(link->filler, tap->since);
	else if (tap->since_wanted && !run)
		tracker_want_past(link->tracker);
	/* The status last: a publisher takes subscriptions in order, so when the first status
	 * comes, everything after it comes too, and its heads are the place to count from. */
	if (!err)
		err = transport_subscribe(tap->transport, id, TOPIC_STATUS);
	if (!err)
		err = transport_subscribe(tap->transport, id, TOPIC_STOPPING);
	link->stale_at = tap->looked_at + STALE_MS;
	return err;
}

static int start(struct coretap *tap)
{
	struct tracker *trackers[N_SOCKETS];
	int err = 0;

	if (!tap->filter.n_names)
		return -EINVAL;
	tap->looked_at = now_ms();
	collect_trackers(tap, trackers);
	if (tap->position)
		err = position_load(tap->position, trackers);
	for (int i = 0; i < N_SOCKETS && !err; i++)
		if (tap->links[i].tracker)
			err = start_link(tap, (enum socket_id)i);
	tap->started = !err;
	return err;
}

static int write_position(struct coretap *tap)
{
	struct tracker *trackers[N_SOCKETS];
	int err;

	collect_trackers(tap, trackers);
	err = position_save(tap->position, trackers, &tap->position_text);
	tap->position_text.failed = false;
	tap->written_at = now_ms() + (err ? POSITION_RETRY_MS : 0);
	tap->moved = err;
	return err;
}

int coretap_commit(struct coretap *tap)
{
	tap->by_hand = true;
	return tap->position && tap->started && tap->moved ? write_position(tap) : 0;
}

/* Writes the position when it is time: between messages, or when nothing more is at hand. */
static int keep_position(struct coretap *tap, bool idle)
{
	int64_t now;

	if (!tap->position || tap->by_hand || !tap->moved)
		return 0;
	now = now_ms();
	if (now - tap->written_at < (idle ? 0 : POSITION_MS))
		return 0;
	return write_position(tap);
}

/* The first position of a socket is written before its first event is told: whoever is killed
 * before he has saved another one begins there again. */
static int anchor(struct coretap *tap, struct link *link)
{
	const char *node;
	uint64_t run;
	int err;

	if (link->anchored || !tap->position)
		return 0;
	tracker_last(link->tracker, &node, &run);
	if (!run)
		return 0;
	link->anchored = true;
	err = write_position(tap);
	tap->moved = true; /* by that event */
	return err;
}

static void heard(struct coretap *tap, struct link *link)
{
	tap->looked_at = now_ms();
	link->stale_at = tap->looked_at + STALE_MS;
	if (link->told)
		link->alive = true;
	link->told = false;
	link->graced = false;
}

/* Gives a message to the stream. Returns 1 when it was taken, or is held until what precedes it is
 * here. */
static int give(struct coretap *tap, struct link *link, enum origin origin,
		const struct frame *topic, const struct frame *body)
{
	int got = tracker_take(link->tracker, origin, topic->data, topic->length, body->data,
			       body->length);

	if (got < 0)
		return got;
	tap->moved = true;
	if (got == TRACKER_MISSING) {
		transport_hold(tap->transport, (enum socket_id)(link - tap->links));
		filler_begin(link->filler, tap->looked_at);
		link->filling = true;
	}
	return 1;
}

static int take_live(struct coretap *tap, struct link *link, enum socket_id id)
{
	struct frame topic, body;
	unsigned int n_frames;
	int got = transport_receive(tap->transport, id, &topic, &body, &n_frames);

	if (got <= 0)
		return got;
	heard(tap, link);
	tap->current = link;
	if (n_frames < 2) {
		tracker_malformed(link->tracker, topic.data, topic.length, "message of one frame");
		return 1;
	}
	return give(tap, link, link->filler ? ORIGIN_LIVE : ORIGIN_FINAL, &topic, &body);
}

static int fill(struct coretap *tap, struct link *link, enum socket_id id)
{
	struct frame topic, body;
	int64_t now = now_ms();
	int got = filler_step(link->filler, now);

	if (got < 0 || got == FILLER_WAITS) {
		transport_touch(tap->transport, id);
		return got < 0 ? got : 0;
	}
	tap->looked_at = now;
	tap->moved = true;
	tap->current = link;
	if (got == FILLER_TELLS)
		return 1;
	link->filling = false;
	/* Whether the publisher is alive, what waits in the socket shows. */
	link->stale_at = now + (filler_down(link->filler) ? GRACE_MS : STALE_MS);
	transport_release(tap->transport, id, &topic, &body);
	return give(tap, link, ORIGIN_FINAL, &topic, &body);
}

/* Looks at each socket once, in turn. Returns 1 with tap->current set when a message was taken. */
static int take_message(struct coretap *tap)
{
	for (unsigned int i = 0; i < N_SOCKETS; i++) {
		enum socket_id id = (tap->turn + i) % N_SOCKETS;
		struct link *link = &tap->links[id];
		int got;

		if (!link->tracker)
			continue;
		got = link->filling ? fill(tap, link, id) : take_live(tap, link, id);
		if (got < 0)
			return got;
		if (!got)
			continue;
		tap->turn = id + 1;
		if (tap->observe && tracker_message(link->tracker))
			tap->observe(tap->observe_arg, tracker_message(link->tracker));
		got = anchor(tap, link);
		return got ? got : 1;
	}
	return 0;
}

static void set_notice(struct coretap *tap, enum coretap_kind kind, const struct link *link)
{
	tap->event = (struct coretap_event){ .kind = kind,
					     .socket = (enum socket_id)(link - tap->links),
					     .topic = "",
					     .node = "",
					     .reason = "",
					     .json = &tap->json };
}

/* The next thing that the current message has to tell. */
static bool next_of_current(struct coretap *tap)
{
	struct link *link = tap->current;

	if (!link)
		return false;
	if (link->alive) {
		link->alive = false;
		set_notice(tap, CORETAP_ALIVE, link);
		return true;
	}
	if (tracker_next(link->tracker, &tap->event)) {
		if (tap->event.kind == CORETAP_STOPPING)
			link->told = true;
		return true;
	}
	tap->current = NULL;
	return false;
}

static void wait_until(int *wait_ms, int64_t now, int64_t when)
{
	int64_t left = when > now ? when - now : 0;

	if (*wait_ms < 0 || *wait_ms > left)
		*wait_ms = left > INT_MAX ? INT_MAX : (int)left;
}

/* *wait_ms is cut down to when a filler has something to do although nothing arrives. */
static void tend_fillers(struct coretap *tap, int64_t now, int *wait_ms)
{
	for (int i = 0; i < N_SOCKETS; i++) {
		struct link *link = &tap->links[i];

		if (!link->filler)
			continue;
		if (!link->filling)
			filler_idle(link->filler, now);
		if (filler_deadline(link->filler) < INT64_MAX)
			wait_until(wait_ms, now, filler_deadline(link->filler));
	}
}

/* Whether a socket has just become stale. *wait_ms is cut down to when the next one may. */
static bool next_stale(struct coretap *tap, int64_t now, int *wait_ms)
{
	for (int i = 0; i < N_SOCKETS; i++) {
		struct link *link = &tap->links[i];

		/* What came meanwhile is not looked at while a gap is filled. */
		if (!link->tracker || link->told || link->filling)
			continue;
		if (now >= link->stale_at && now - tap->looked_at > AWAY_MS && !link->graced) {
			link->graced = true;
			link->stale_at = now + GRACE_MS;
		}
		if (now >= link->stale_at) {
			link->told = true;
			set_notice(tap, CORETAP_STALE, link);
			transport_reconnect(tap->transport, (enum socket_id)i);
			tracker_last(link->tracker, &tap->event.node, &tap->event.run);
			return true;
		}
		wait_until(wait_ms, now, link->stale_at);
	}
	return false;
}

int coretap_next(struct coretap *tap, const struct coretap_event **event, int timeout_ms)
{
	int64_t deadline = -1;
	bool quiet[N_SOCKETS];
	int err;

	*event = &tap->event;
	if (!tap->started) {
		err = start(tap);
		if (err)
			return err;
	}
	for (;;) {
		int64_t now;
		int wait_ms, got;

		if (next_of_current(tap))
			return 1;
		got = keep_position(tap, false);
		if (!got)
			got = take_message(tap);
		if (got < 0)
			return got;
		if (got)
			continue;

		now = now_ms();
		if (deadline < 0)
			deadline = timeout_ms < 0 ? INT64_MAX : now + timeout_ms;
		wait_ms = deadline - now > INT_MAX ? -1 : (int)(deadline - now);
		if (next_stale(tap, now, &wait_ms))
			return 1;
		tap->looked_at = now;
		tend_fillers(tap, now, &wait_ms);
		err = keep_position(tap, true);
		if (err)
			return err;
		if (now >= deadline)
			return 0;
		for (int i = 0; i < N_SOCKETS; i++)
			quiet[i] = tap->links[i].filling;
		err = transport_wait(tap->transport, quiet, wait_ms);
		if (err)
			return err;
		/* Time that was spent waiting as long as asked for was spent looking. */
		now = now_ms();
		if (wait_ms >= 0)
			tap->looked_at +=
				wait_ms < now - tap->looked_at ? wait_ms : now - tap->looked_at;
	}
}

int coretap_fd(struct coretap *tap)
{
	if (!tap->started) {
		int err = start(tap);

		if (err)
			return err;
	}
	return transport_fd(tap->transport);
}

uint64_t coretap_count(const struct coretap *tap, enum coretap_counter which)
{
	return which <= CORETAP_COUNT_REPLAYED ? tap->counters[which] : 0;
}
