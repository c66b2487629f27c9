/* The handle: which sockets are needed, whose turn it is, and whether they are alive. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "coretap.h"
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

struct link {
	struct tracker *tracker; /* NULL = this socket is not needed */
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
	uint64_t counters[CORETAP_COUNT_MALFORMED + 1];
};

const char *coretap_version(void)
{
	return CORETAP_VERSION;
}

const char *coretap_strerror(int error)
{
	switch (-error) {
	case EINVAL:
		return "not an address, not a topic, or nothing subscribed to";
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
		return "no such field, or end of the array";
	case EPROTOTYPE:
		return "the field has another type";
	case ERANGE:
		return "the number does not fit";
	default:
		return error < 0 ? "system error" : "no error";
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
	coretap_set_memory(tap, DEFAULT_MEMORY);
	*out = tap;
	return 0;
}

void coretap_close(struct coretap *tap)
{
	if (!tap)
		return;
	transport_close(tap->transport);
	for (int i = 0; i < N_SOCKETS; i++)
		tracker_free(tap->links[i].tracker);
	for (size_t i = 0; i < tap->filter.n_names; i++)
		free(tap->filter.names[i]);
	free(tap->filter.names);
	json_free(&tap->json);
	free(tap);
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
	if (*topic && (!topic_valid(topic, strlen(topic)) || !strchr(topic, '.') || *topic == '.'))
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
		err = transport_subscribe(tap->transport, (enum socket_id)i, topic);
		if (err)
			return err;
	}
	return 0;
}

/* Asks for the status last: a publisher takes subscriptions in order, so when the first status
 * comes, everything after it comes too, and its heads are the place to count from. */
static int start(struct coretap *tap)
{
	if (!tap->filter.n_names)
		return -EINVAL;
	tap->looked_at = now_ms();
	for (int i = 0; i < N_SOCKETS; i++) {
		int err;

		if (!tap->links[i].tracker)
			continue;
		err = transport_subscribe(tap->transport, (enum socket_id)i, TOPIC_STATUS);
		if (!err)
			err = transport_subscribe(tap->transport, (enum socket_id)i,
						  TOPIC_STOPPING);
		if (err)
			return err;
		tap->links[i].stale_at = tap->looked_at + STALE_MS;
	}
	tap->started = true;
	return 0;
}

/* Looks at each socket once, in turn. Returns 1 with tap->current set when a message was taken. */
static int take_message(struct coretap *tap)
{
	for (unsigned int i = 0; i < N_SOCKETS; i++) {
		enum socket_id id = (tap->turn + i) % N_SOCKETS;
		struct link *link = &tap->links[id];
		struct frame topic, body;
		unsigned int n_frames;
		int got;

		if (!link->tracker)
			continue;
		got = transport_receive(tap->transport, id, &topic, &body, &n_frames);
		if (got < 0)
			return got;
		if (!got)
			continue;
		tap->turn = id + 1;
		tap->looked_at = now_ms();
		link->stale_at = tap->looked_at + STALE_MS;
		if (link->told)
			link->alive = true;
		link->told = false;
		link->graced = false;
		tap->current = link;
		if (n_frames < 2) {
			tracker_malformed(link->tracker, topic.data, topic.length,
					  "message of one frame");
			return 1;
		}
		got = tracker_take(link->tracker, topic.data, topic.length, body.data, body.length);
		return got < 0 ? got : 1;
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

/* Whether a socket has just become stale. *wait_ms is cut down to when the next one may. */
static bool next_stale(struct coretap *tap, int64_t now, int *wait_ms)
{
	for (int i = 0; i < N_SOCKETS; i++) {
		struct link *link = &tap->links[i];

		if (!link->tracker || link->told)
			continue;
		if (now >= link->stale_at && now - tap->looked_at > AWAY_MS && !link->graced) {
			link->graced = true;
			link->stale_at = now + GRACE_MS;
		}
		if (now >= link->stale_at) {
			link->told = true;
			set_notice(tap, CORETAP_STALE, link);
			tracker_last(link->tracker, &tap->event.node, &tap->event.run);
			return true;
		}
		if (*wait_ms < 0 || *wait_ms > link->stale_at - now)
			*wait_ms = (int)(link->stale_at - now);
	}
	return false;
}

int coretap_next(struct coretap *tap, const struct coretap_event **event, int timeout_ms)
{
	int64_t deadline = -1;
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
		if (now >= deadline)
			return 0;
		err = transport_wait(tap->transport, wait_ms);
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
	return which <= CORETAP_COUNT_MALFORMED ? tap->counters[which] : 0;
}
