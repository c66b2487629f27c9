/*
 * One probe back to back, from one thread or several: the load for loss tests, and the measure of
 * what a firing costs. The loops do nothing that a node would not do; values are cheap functions of
 * the index (--help has the formulas).
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "node.h"
#include "random.h"

#define PAYLOAD_HEAD 12 /* index and thread */

struct burst_thread {
	pthread_t id;
	const struct options *options;
	struct ledger *ledger;
	pthread_barrier_t *begin;
	enum probe probe;
	uint32_t number;
	uint64_t count;
	uint8_t *payload;

	uint64_t rounds;
	uint64_t ns;
};

static const struct {
	const char *option;
	const char *probe;
} burst_probes[] = {
	{ "removed", "mempool:removed" },     { "added", "mempool:added" },
	{ "spent", "utxocache:spent" },	      { "utxo", "utxocache:spent" },
	{ "message", "net:inbound_message" },
};

enum probe burst_probe(const struct options *options)
{
	enum probe probe;
	size_t i;

	for (i = 0; i < sizeof(burst_probes) / sizeof(burst_probes[0]); i++) {
		if (strcmp(burst_probes[i].option, options->probe))
			continue;
		probe = probe_find(burst_probes[i].probe);
		if (probe == PROBE_COUNT)
			fprintf(stderr, "fake_node: v%d has no tracepoint %s\n", FAKE_NODE_ABI,
				burst_probes[i].probe);
		return probe;
	}
	fprintf(stderr, "fake_node: --probe: one of removed added spent utxo message, not %s\n",
		options->probe);
	return PROBE_COUNT;
}

static void txid_prepare(uint8_t txid[32], uint32_t thread)
{
	uint8_t i;

	memset(txid, 0, 8);
	memcpy(txid + 8, &thread, sizeof(thread));
	for (i = 12; i < 32; i++)
		txid[i] = i;
}

static int32_t vsize_of(uint64_t i)
{
	return (int32_t)(110 + i % 5000);
}

static int64_t fee_of(uint64_t i)
{
	return (int64_t)(1000 + 1000003 * i);
}

/* The loops are apart, so that none of them carries the decision about the others. */

static uint64_t burst_removed(struct burst_thread *thread, struct pacer *pacer)
{
	const char *reason = thread->options->reason;
	uint8_t txid[32];
	uint64_t i;

	txid_prepare(txid, thread->number);
	for (i = 0; i < thread->count && !node_stop; i++) {
		memcpy(txid, &i, sizeof(i));
		probe_removed(thread->ledger, txid, reason, vsize_of(i), fee_of(i), 1700000000 + i);
		pacer_wait(pacer);
	}
	return i;
}

static uint64_t burst_added(struct burst_thread *thread, struct pacer *pacer)
{
	uint8_t txid[32];
	uint64_t i;

	txid_prepare(txid, thread->number);
	for (i = 0; i < thread->count && !node_stop; i++) {
		memcpy(txid, &i, sizeof(i));
		probe_added(thread->ledger, txid, vsize_of(i), fee_of(i));
		pacer_wait(pacer);
	}
	return i;
}

static uint64_t burst_coins(struct burst_thread *thread, struct pacer *pacer)
{
	bool runs = !strcmp(thread->options->probe, "utxo");
	uint8_t txid[32];
	uint64_t i;

	txid_prepare(txid, thread->number);
	for (i = 0; i < thread->count && !node_stop; i++) {
		uint32_t vout = (uint32_t)(i % 4096), height = (uint32_t)(700000 + i % 100000);
		int64_t value = (int64_t)(546 + 7 * i);

		memcpy(txid, &i, sizeof(i));
		if (runs && i / 2 % 2)
			probe_add(thread->ledger, txid, vout, height, value, i % 16 == 0);
		else
			probe_spent(thread->ledger, txid, vout, height, value, i % 16 == 0);
		pacer_wait(pacer);
	}
	return i;
}

/* 1 to 12 printable characters, quotes, braces and backslashes among them. */
static void message_type_make(struct random *random, char type[13])
{
	/* What would leave a label, or look like something of coretap's. */
	static const char *const nasty[] = { "node.exited", "node.started", "\"} 1", "\\",
					     "\\\"",	    "{a=\"b\"}",    "other", "" };
	uint64_t len = random_between(random, 1, 12);
	uint64_t i;

	if (random_between(random, 0, 63) == 0) {
		strcpy(type, nasty[random_between(random, 0, 7)]);
		return;
	}
	for (i = 0; i < len; i++)
		type[i] = (char)random_between(random, ' ', '~');
	type[len] = '\0';
}

static uint64_t burst_message(struct burst_thread *thread, struct pacer *pacer)
{
	const char *type = thread->options->message_type;
	bool any = !strcmp(type, "random");
	struct random random = { thread->options->seed };
	char made[13];
	uint64_t size = thread->options->size;
	uint8_t *data = size ? thread->payload : NULL; /* Core passes NULL for an empty one */
	uint64_t i;

	for (i = 0; i < thread->count && !node_stop; i++) {
		memcpy(thread->payload, &i, sizeof(i));
		if (any)
			message_type_make(&random, made);
		probe_inbound_message(thread->ledger, (int64_t)i, "203.0.113.7:8333", "inbound",
				      any ? made : type, size, data);
		pacer_wait(pacer);
	}
	return i;
}

static void *burst_work(void *argument)
{
	struct burst_thread *thread = argument;
	const struct options *options = thread->options;
	uint64_t rate = (options->rate + options->threads - 1) / options->threads;
	struct pacer pacer = pacer_open(rate);
	uint64_t start;

	pthread_barrier_wait(thread->begin);
	start = node_now_ns();
	if (!strcmp(thread->options->probe, "removed"))
		thread->rounds = burst_removed(thread, &pacer);
	else if (!strcmp(thread->options->probe, "added"))
		thread->rounds = burst_added(thread, &pacer);
	else if (!strcmp(thread->options->probe, "message"))
		thread->rounds = burst_message(thread, &pacer);
	else
		thread->rounds = burst_coins(thread, &pacer);
	thread->ns = node_now_ns() - start;
	return NULL;
}

static uint8_t *payload_new(uint64_t size, uint32_t thread)
{
	uint8_t *payload = malloc(size < PAYLOAD_HEAD ? PAYLOAD_HEAD : size);
	uint64_t k;

	if (!payload)
		return NULL;
	memcpy(payload + 8, &thread, sizeof(thread));
	for (k = PAYLOAD_HEAD; k < size; k++)
		payload[k] = (uint8_t)(7 * k + (uint64_t)getpid());
	return payload;
}

int burst(struct node *node)
{
	const struct options *options = node->options;
	uint32_t i, count = (uint32_t)options->threads, started = 0;
	struct burst_thread *threads = calloc(count, sizeof(*threads));
	pthread_barrier_t begin;
	int code = 1;

	if (!threads || pthread_barrier_init(&begin, NULL, count))
		goto out;
	for (i = 0; i < count; i++) {
		struct burst_thread *thread = &threads[i];

		thread->options = options;
		thread->ledger = &node->book->slots[i];
		thread->begin = &begin;
		thread->number = i;
		thread->count = options->numbers[0] / count + (i < options->numbers[0] % count);
		thread->payload = payload_new(options->size, i);
		if (!thread->payload)
			goto out;
	}
	/* Thread 0 is the main thread: a single burst runs where a node's validation would. */
	for (started = 1; started < count; started++)
		if (pthread_create(&threads[started].id, NULL, burst_work, &threads[started])) {
			fprintf(stderr, "fake_node: cannot start thread %u\n", started);
			exit(1); /* the others already wait at the barrier */
		}
	burst_work(&threads[0]);
	for (i = 0; i < count; i++) {
		if (i)
			pthread_join(threads[i].id, NULL);
		node->rounds += threads[i].rounds;
		node->rounds_ns += threads[i].ns;
	}
	pthread_barrier_destroy(&begin);
	code = 0;
out:
	if (code)
		fprintf(stderr, "fake_node: burst: out of memory\n");
	for (i = 0; threads && i < count; i++)
		free(threads[i].payload);
	free(threads);
	return code;
}
