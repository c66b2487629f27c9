/* A subscriber that costs little, for rates and latencies.
 *
 *	receiver [--count N] [--idle MS] [--latency] [--topics A,B] ENDPOINT...
 *
 * Prints "ready" when a status has come on every socket: from then on nothing can be missed. Ends
 *when N events have come or were told as lost, MS after the last one (0 = never), or at SIGTERM,
 *and prints what it saw as JSON. Derived events are not counted. */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <zmq.h>

#include "envelope.h"

#define MAX_SOCKETS 4
#define MAX_TOPICS 64

/* Microseconds, exact below 64, then 64 steps for each doubling: 1.6 % */
#define STEPS 64
#define BUCKETS (STEPS * 40)

struct topic {
	char name[64];
	size_t length;
	uint64_t run, next;
};

struct receiver {
	void *context;
	zmq_pollitem_t sockets[MAX_SOCKETS];
	bool heard[MAX_SOCKETS];
	int n_sockets, n_heard;
	struct topic topics[MAX_TOPICS], *last;
	int n_topics;

	uint64_t wanted, idle_us;
	bool latency;

	uint64_t count, lost, missed, gaps, messages, bytes, malformed;
	uint64_t first_us, last_us;	      /* receipts */
	uint64_t first_time_us, last_time_us; /* firings; the last only with --latency */
	uint64_t max_latency;
	uint64_t buckets[BUCKETS];
};

static volatile sig_atomic_t stop;

static void on_signal(int number)
{
	(void)number;
	stop = 1;
}

static uint64_t now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static uint64_t cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* ---- histogram ---- */

static unsigned int bucket_of(uint64_t us)
{
	int shift = us < STEPS ? 0 : 64 - __builtin_clzll(us) - 6;
	unsigned int bucket = (unsigned int)(shift * STEPS) + (unsigned int)(us >> shift);

	return bucket < BUCKETS ? bucket : BUCKETS - 1;
}

/* A bucket's upper end. */
static uint64_t bucket_us(unsigned int bucket)
{
	return bucket < STEPS ? bucket : (uint64_t)(bucket % STEPS + 1) << bucket / STEPS;
}

static uint64_t percentile(const struct receiver *r, double share)
{
	uint64_t total = 0, seen = 0;
	unsigned int i;

	for (i = 0; i < BUCKETS; i++)
		total += r->buckets[i];
	for (i = 0; i < BUCKETS; i++) {
		seen += r->buckets[i];
		if (seen && (double)seen >= share * (double)total)
			return bucket_us(i) < r->max_latency ? bucket_us(i) : r->max_latency;
	}
	return 0;
}

/* ---- messages ---- */

static struct topic *topic_find(struct receiver *r, const char *name, size_t length)
{
	struct topic *topic = r->last;

	if (topic && topic->length == length && !memcmp(topic->name, name, length))
		return topic;
	for (topic = r->topics; topic < r->topics + r->n_topics; topic++)
		if (topic->length == length && !memcmp(topic->name, name, length))
			return r->last = topic;
	if (r->n_topics == MAX_TOPICS || length >= sizeof(topic->name))
		return NULL;
	memcpy(topic->name, name, length);
	topic->length = length;
	r->n_topics++;
	return r->last = topic;
}

static void times_take(struct receiver *r, struct envelope *envelope, uint64_t now)
{
	uint64_t time_us;

	if (r->first_time_us && !r->latency)
		return;
	while (envelope_next(envelope, &time_us)) {
		uint64_t latency = now > time_us ? now - time_us : 0;

		if (!r->first_time_us)
			r->first_time_us = time_us;
		if (!r->latency)
			return;
		r->last_time_us = time_us;
		r->buckets[bucket_of(latency)]++;
		if (latency > r->max_latency)
			r->max_latency = latency;
	}
}

static void message_take(struct receiver *r, int socket, const char *name, size_t length,
			 zmq_msg_t *body)
{
	struct envelope envelope;
	struct topic *topic;
	uint64_t now;

	if (length > 7 && !memcmp(name, "bridge.", 7)) {
		r->n_heard += !r->heard[socket];
		r->heard[socket] = true;
		return;
	}
	if ((length > 5 && !memcmp(name, "node.", 5)) || (length > 6 && !memcmp(name, "block.", 6)))
		return;
	now = now_us();
	topic = topic_find(r, name, length);
	if (!topic || !envelope_read(zmq_msg_data(body), zmq_msg_size(body), &envelope)) {
		r->malformed++;
		return;
	}
	if (topic->run == envelope.run && envelope.seq != topic->next) {
		r->gaps++;
		r->missed += envelope.seq - topic->next;
	}
	topic->run = envelope.run;
	topic->next = envelope.seq + envelope.lost + envelope.n_events;
	r->messages++;
	r->bytes += zmq_msg_size(body);
	r->count += envelope.n_events;
	r->lost += envelope.lost;
	r->last_us = now;
	if (!r->first_us)
		r->first_us = now;
	times_take(r, &envelope, now);
}

/* Takes what is there, but not for ever: the other sockets have their turn. */
static void socket_drain(struct receiver *r, int socket)
{
	zmq_msg_t name, body;

	zmq_msg_init(&name);
	zmq_msg_init(&body);
	for (int i = 0; i < 1000; i++) {
		void *s = r->sockets[socket].socket;

		if (zmq_msg_recv(&name, s, ZMQ_DONTWAIT) < 0 || !zmq_msg_more(&name) ||
		    zmq_msg_recv(&body, s, 0) < 0)
			break;
		message_take(r, socket, zmq_msg_data(&name), zmq_msg_size(&name), &body);
		while (zmq_msg_more(&body) && zmq_msg_recv(&body, s, 0) >= 0)
			;
	}
	zmq_msg_close(&name);
	zmq_msg_close(&body);
}

static bool done(const struct receiver *r)
{
	return stop || (r->wanted && r->count + r->lost + r->missed >= r->wanted) ||
	       (r->idle_us && r->last_us && now_us() - r->last_us > r->idle_us);
}

static bool receiver_connect(struct receiver *r, const char *endpoint, const char *topics)
{
	zmq_pollitem_t *item = &r->sockets[r->n_sockets++];
	char *copy = strdup(topics), *save = NULL;
	int unlimited = 0;

	*item = (zmq_pollitem_t){ .socket = zmq_socket(r->context, ZMQ_SUB), .events = ZMQ_POLLIN };
	if (!copy || !item->socket)
		return false;
	zmq_setsockopt(item->socket, ZMQ_RCVHWM, &unlimited, sizeof(unlimited));
	zmq_setsockopt(item->socket, ZMQ_SUBSCRIBE, "bridge.", 7);
	if (!*topics)
		zmq_setsockopt(item->socket, ZMQ_SUBSCRIBE, "", 0);
	for (char *t = strtok_r(copy, ",", &save); t; t = strtok_r(NULL, ",", &save))
		zmq_setsockopt(item->socket, ZMQ_SUBSCRIBE, t, strlen(t));
	free(copy);
	return !zmq_connect(item->socket, endpoint);
}

static void receiver_print(const struct receiver *r, uint64_t cpu)
{
	printf("{\"count\":%" PRIu64 ",\"lost\":%" PRIu64 ",\"missed\":%" PRIu64
	       ",\"gaps\":%" PRIu64 ",\"malformed\":%" PRIu64 ",\"messages\":%" PRIu64
	       ",\"bytes\":%" PRIu64 ",\"first_us\":%" PRIu64 ",\"last_us\":%" PRIu64
	       ",\"first_time_us\":%" PRIu64 ",\"last_time_us\":%" PRIu64 ",\"cpu_ns\":%" PRIu64,
	       r->count, r->lost, r->missed, r->gaps, r->malformed, r->messages, r->bytes,
	       r->first_us, r->last_us, r->first_time_us, r->last_time_us, cpu);
	if (r->latency)
		printf(",\"latency_us\":{\"50\":%" PRIu64 ",\"99\":%" PRIu64 ",\"99.9\":%" PRIu64
		       ",\"max\":%" PRIu64 "}",
		       percentile(r, 0.5), percentile(r, 0.99), percentile(r, 0.999),
		       r->max_latency);
	printf("}\n");
}

static int options_parse(struct receiver *r, int argc, char **argv, const char **topics)
{
	static const struct option options[] = {
		{ "count", required_argument, NULL, 'c' },
		{ "idle", required_argument, NULL, 'i' },
		{ "latency", no_argument, NULL, 'l' },
		{ "topics", required_argument, NULL, 't' },
		{ 0 },
	};
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (option == 'c')
			r->wanted = strtoull(optarg, NULL, 10);
		else if (option == 'i')
			r->idle_us = strtoull(optarg, NULL, 10) * 1000;
		else if (option == 'l')
			r->latency = true;
		else if (option == 't')
			*topics = optarg;
		else
			return -1;
	}
	return argc - optind < 1 || argc - optind > MAX_SOCKETS ? -1 : 0;
}

int main(int argc, char **argv)
{
	static struct receiver receiver;
	struct receiver *r = &receiver;
	struct sigaction action = { .sa_handler = on_signal };
	const char *topics = "";
	bool ready = false;
	uint64_t cpu = 0;

	if (options_parse(r, argc, argv, &topics)) {
		fprintf(stderr, "usage: receiver [--count N] [--idle MS] [--latency] [--topics "
				"A,B] ENDPOINT...\n");
		return 2;
	}
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	r->context = zmq_ctx_new();
	for (int i = optind; i < argc; i++) {
		if (!receiver_connect(r, argv[i], topics)) {
			fprintf(stderr, "receiver: %s: %s\n", argv[i], zmq_strerror(errno));
			return 1;
		}
	}
	while (!done(r)) {
		zmq_poll(r->sockets, r->n_sockets, 100);
		for (int i = 0; i < r->n_sockets; i++)
			socket_drain(r, i);
		if (!ready && r->n_heard == r->n_sockets) {
			ready = true;
			cpu = cpu_ns();
			printf("ready\n");
			fflush(stdout);
		}
	}
	receiver_print(r, cpu_ns() - cpu);
	for (int i = 0; i < r->n_sockets; i++)
		zmq_close(r->sockets[i].socket);
	zmq_ctx_term(r->context);
	return 0;
}
