/* Background load on the high-frequency probes while a mode does its own work; see node.h. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "node.h"
#include "random.h"

struct flood_thread {
	pthread_t id;
	struct flood *flood;
	struct ledger *ledger;
	struct random random;
};

struct flood {
	volatile bool stop;
	uint64_t count;
	struct flood_thread threads[LEDGER_SLOTS];
};

static void *flood_work(void *argument)
{
	struct flood_thread *thread = argument;
	uint8_t txid[32];
	uint32_t i;

	random_hash(&thread->random, txid);
	for (i = 0; !thread->flood->stop && !node_stop; i++)
		probe_add(thread->ledger, txid, i % 100, 850000, 546 + (int64_t)i, false);
	return NULL;
}

struct flood *flood_open(const struct node *node)
{
	struct flood *flood;

	if (!node->options->flood)
		return NULL;
	flood = calloc(1, sizeof(*flood));
	for (; flood && flood->count < node->options->flood; flood->count++) {
		struct flood_thread *thread = &flood->threads[flood->count];

		thread->flood = flood;
		/* The slots below belong to the threads of burst. */
		thread->ledger = &node->book->slots[node->options->threads + flood->count];
		thread->random.state = flood->count;
		if (pthread_create(&thread->id, NULL, flood_work, thread))
			break;
	}
	if (!flood || flood->count < node->options->flood) {
		fprintf(stderr, "fake_node: --flood: cannot start the threads\n");
		exit(1);
	}
	return flood;
}

void flood_close(struct flood *flood)
{
	uint64_t i;

	if (!flood)
		return;
	flood->stop = true;
	for (i = 0; i < flood->count; i++)
		pthread_join(flood->threads[i].id, NULL);
	free(flood);
}
