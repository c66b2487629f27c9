/* What the tests of libcoretap share: a scripted publisher over ipc, and expectations. */
#ifndef CORETAP_TEST_CLIENT_H
#define CORETAP_TEST_CLIENT_H

#include "../../clients/c/coretap.h"

#include <errno.h>
#include <inttypes.h>
#include <msgpack.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#define RUN 1700000000000000
#define TIMEOUT_MS 20000
#define AT_ONCE_MS 900 /* sooner than anything is asked for again; a busy machine takes long */

static int failures;
static const char *test_name;
static bool replaying; /* gaps are filled from replay */

__attribute__((format(printf, 1, 2))) static inline void fail(const char *fmt, ...)
{
	va_list args;

	printf("FAIL %s: ", test_name);
	va_start(args, fmt);
	vprintf(fmt, args);
	va_end(args);
	putchar('\n');
	failures++;
}

static inline int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* The publisher: XPUB, since it sees the subscriptions. */
enum { LOW, HIGH };

struct publisher {
	void *context;
	void *sockets[2];
	char directory[64];
	char address[80];
};

static inline void publisher_bind(struct publisher *publisher)
{
	static const char *const names[] = { "low", "high" };

	for (int i = 0; i < 2; i++) {
		char endpoint[128];
		int zero = 0, one = 1;

		publisher->sockets[i] = zmq_socket(publisher->context, ZMQ_XPUB);
		zmq_setsockopt(publisher->sockets[i], ZMQ_LINGER, &zero, sizeof(zero));
		zmq_setsockopt(publisher->sockets[i], ZMQ_XPUB_VERBOSE, &one, sizeof(one));
		snprintf(endpoint, sizeof(endpoint), "ipc://%s/%s.sock", publisher->directory,
			 names[i]);
		if (zmq_bind(publisher->sockets[i], endpoint)) {
			perror(endpoint);
			exit(77);
		}
	}
}

static inline void publisher_unbind(struct publisher *publisher)
{
	for (int i = 0; i < 2; i++)
		zmq_close(publisher->sockets[i]);
}

static inline void publisher_open(struct publisher *publisher)
{
	strcpy(publisher->directory, "/tmp/coretap-test-XXXXXX");
	if (!mkdtemp(publisher->directory))
		exit(77);
	snprintf(publisher->address, sizeof(publisher->address), "ipc://%s", publisher->directory);
	publisher->context = zmq_ctx_new();
	publisher_bind(publisher);
}

static inline void publisher_close(struct publisher *publisher)
{
	char path[96];

	publisher_unbind(publisher);
	zmq_ctx_term(publisher->context);
	snprintf(path, sizeof(path), "%s/low.sock", publisher->directory);
	unlink(path);
	snprintf(path, sizeof(path), "%s/high.sock", publisher->directory);
	unlink(path);
	rmdir(publisher->directory);
}

/* Waits until this subscription has arrived. False when it does not within the time. */
static inline bool wait_for(struct publisher *publisher, int socket, const char *prefix,
			    int timeout_ms)
{
	int64_t deadline = now_ms() + timeout_ms;
	char frame[256];

	while (now_ms() < deadline) {
		zmq_pollitem_t item = { .socket = publisher->sockets[socket],
					.events = ZMQ_POLLIN };
		int n;

		zmq_poll(&item, 1, 10);
		n = zmq_recv(publisher->sockets[socket], frame, sizeof(frame), ZMQ_DONTWAIT);
		if (n == (int)strlen(prefix) + 1 && frame[0] == 1 &&
		    !memcmp(frame + 1, prefix, strlen(prefix)))
			return true;
	}
	return false;
}

static inline void send_frames(struct publisher *publisher, int socket, const char *topic,
			       const void *body, size_t length)
{
	zmq_send(publisher->sockets[socket], topic, strlen(topic), body ? ZMQ_SNDMORE : 0);
	if (body)
		zmq_send(publisher->sockets[socket], body, length, 0);
}

/* Bodies */

static inline void pack_text(msgpack_packer *packer, const char *text)
{
	msgpack_pack_str_with_body(packer, text, strlen(text));
}

static inline void pack_uint(msgpack_packer *packer, const char *key, uint64_t number)
{
	pack_text(packer, key);
	msgpack_pack_uint64(packer, number);
}

struct message {
	const char *topic;
	const char *node; /* NULL: host */
	uint64_t run;	  /* 0: RUN */
	uint64_t n, seq, lost;
	unsigned int events;
	const char *other; /* mempool.rejected: the reason */
};

static inline void send_message(struct publisher *publisher, int socket, struct message message)
{
	msgpack_sbuffer buffer;
	msgpack_packer packer;

	msgpack_sbuffer_init(&buffer);
	msgpack_packer_init(&packer, &buffer, msgpack_sbuffer_write);
	msgpack_pack_map(&packer, message.lost ? 8 : 7);
	pack_uint(&packer, "v", 1);
	pack_text(&packer, "node");
	pack_text(&packer, message.node ? message.node : "host");
	pack_uint(&packer, "run", message.run ? message.run : RUN);
	pack_uint(&packer, "pid", 42);
	pack_uint(&packer, "n", message.n);
	pack_uint(&packer, "seq", message.seq);
	if (message.lost)
		pack_uint(&packer, "lost", message.lost);
	pack_text(&packer, "events");
	msgpack_pack_array(&packer, message.events);
	for (unsigned int i = 0; i < message.events; i++) {
		msgpack_pack_map(&packer, message.other ? 3 : 2);
		pack_uint(&packer, "time_us", 1000 + i);
		pack_uint(&packer, "vsize", 141 + i);
		if (message.other) {
			pack_text(&packer, "reason");
			pack_text(&packer, message.other);
		}
	}
	send_frames(publisher, socket, message.topic, buffer.data, buffer.size);
	msgpack_sbuffer_destroy(&buffer);
}

struct head {
	const char *topic;
	uint64_t head;
};

static inline void send_status(struct publisher *publisher, int socket, const char *topic,
			       uint64_t run, const struct head *heads)
{
	msgpack_sbuffer buffer;
	msgpack_packer packer;
	unsigned int n_heads = 0;

	while (heads[n_heads].topic)
		n_heads++;
	msgpack_sbuffer_init(&buffer);
	msgpack_packer_init(&packer, &buffer, msgpack_sbuffer_write);
	msgpack_pack_map(&packer, 7);
	pack_uint(&packer, "v", 1);
	pack_text(&packer, "node");
	pack_text(&packer, "host");
	pack_uint(&packer, "run", run ? run : RUN);
	pack_text(&packer, "socket");
	pack_text(&packer, socket == LOW ? "low" : "high");
	pack_uint(&packer, "time_us", 77);
	pack_uint(&packer, "n", 500);
	pack_text(&packer, "heads");
	msgpack_pack_map(&packer, n_heads);
	for (unsigned int i = 0; i < n_heads; i++)
		pack_uint(&packer, heads[i].topic, heads[i].head);
	send_frames(publisher, socket, topic, buffer.data, buffer.size);
	msgpack_sbuffer_destroy(&buffer);
}

/* The subscriber */

static inline struct coretap *subscribe(const struct publisher *publisher,
					const char *const *topics)
{
	struct coretap *tap = NULL;
	int err = coretap_open(publisher->address, &tap);

	if (err) {
		fail("coretap_open: %d", err);
		exit(1);
	}
	coretap_set_replay(tap, replaying);
	for (; *topics; topics++) {
		err = coretap_subscribe(tap, *topics);
		if (err)
			fail("coretap_subscribe %s: %d", *topics, err);
	}
	return tap;
}

#define SUBSCRIBE(publisher, ...) subscribe(publisher, (const char *const[]){ __VA_ARGS__, NULL })

static inline void expect_quiet(struct coretap *tap, int timeout_ms)
{
	const struct coretap_event *event;
	int got = coretap_next(tap, &event, timeout_ms);

	if (got)
		fail("%d: unexpected %s", got, got > 0 ? coretap_event_json(event, NULL) : "");
}

static inline void expect_nothing(struct coretap *tap)
{
	expect_quiet(tap, 60);
}

/* Makes the connection: the last subscription to arrive is that to bridge.stopping. */
static inline void connect_to(struct coretap *tap, struct publisher *publisher, int socket)
{
	expect_nothing(tap);
	if (!wait_for(publisher, socket, "bridge.stopping", TIMEOUT_MS))
		fail("no subscription arrived");
}

static inline void expect(struct coretap *tap, const char *json)
{
	const struct coretap_event *event;
	int got = coretap_next(tap, &event, TIMEOUT_MS);
	const char *text = got == 1 ? coretap_event_json(event, NULL) : "";

	if (got != 1 || strcmp(text, json))
		fail("got %d %s\n  not %s", got, text, json);
}

static inline void expect_event(struct coretap *tap, const char *topic, uint64_t seq, uint64_t n)
{
	const struct coretap_event *event;
	int got = coretap_next(tap, &event, TIMEOUT_MS);

	if (got != 1 || coretap_event_kind(event) != CORETAP_EVENT ||
	    strcmp(coretap_event_topic(event), topic) || coretap_event_seq(event) != seq ||
	    coretap_event_n(event) != n)
		fail("got %d %s, not event %s %" PRIu64 " at %" PRIu64, got,
		     got == 1 ? coretap_event_json(event, NULL) : "", topic, seq, n);
}

static inline void expect_count(const struct coretap *tap, enum coretap_counter which,
				uint64_t count)
{
	if (coretap_count(tap, which) != count)
		fail("counter %d is %" PRIu64 ", not %" PRIu64, which, coretap_count(tap, which),
		     count);
}

#define ADDED "mempool.added"
#define REMOVED "mempool.removed"
#define RANGE(notice, topic, first, last)                                  \
	"{\"notice\":\"" notice "\",\"socket\":\"low\",\"topic\":\"" topic \
	"\",\"node\":\"host\",\"run\":1700000000000000,\"first\":" first ",\"last\":" last "}"

#endif
