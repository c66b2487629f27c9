/*
 * A believable node: everything happens now and then, in Core's order, on a mempool that is really
 * kept. `run` paces itself for demos and soak tests; `walk` does a number of mempool actions as
 * fast as it can, so that a test can rebuild the mempool from the stream and compare.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "chain.h"
#include "peers.h"

#define RUN_RATE 50	/* actions per second unless --rate */
#define FIRST_BLOCK_S 3 /* a demo should not wait for its first block */
#define DEFAULT_WALLET "demo"

/* Core's FlushStateMode; 3 was ALWAYS before v31, for gettxoutsetinfo too. */
enum flush_mode {
	FLUSH_NONE,
	FLUSH_PERIODIC = 2,
	FLUSH_FORCE = 3,
	FLUSH_SYNC = FAKE_NODE_ABI >= 29 ? 4 : 3,
};

struct simulation {
	struct mempool pool;
	struct chain chain;
	struct peers peers;
	struct random random;
	bool with_peers;
};

static int simulation_open(struct simulation *sim, const struct node *node, bool with_peers)
{
	*sim = (struct simulation){ .with_peers = with_peers };
	sim->random.state = node->options->seed + 3;
	mempool_open(&sim->pool, node);
	if (chain_open(&sim->chain, node, &sim->pool))
		return -1;
	if (with_peers && peers_open(&sim->peers, node)) {
		chain_close(&sim->chain);
		return -1;
	}
	return 0;
}

static int simulation_close(struct simulation *sim, const struct options *options)
{
	int code = 0;

	if (options->mempool_out && mempool_write(&sim->pool, options->mempool_out)) {
		fprintf(stderr, "fake_node: %s: %s\n", options->mempool_out, strerror(errno));
		code = 1;
	}
	if (sim->with_peers)
		peers_close(&sim->peers);
	chain_close(&sim->chain);
	mempool_close(&sim->pool);
	return code;
}

static void mine(struct simulation *sim)
{
	struct random *random = &sim->random;
	size_t txs = sim->pool.count * random_between(random, 50, 85) / 100;
	size_t unseen = random_below(random, 4), conflicts = unseen ? random_below(random, 4) : 0;

	if (sim->with_peers)
		peers_relay_block(&sim->peers, txs);
	sim->chain.flush = random_percent(random, 25);
	if (sim->chain.recent_count > 3 && random_percent(random, 5))
		chain_reorganise(&sim->chain, 1 + random_percent(random, 20));
	else
		chain_extend(&sim->chain, txs + unseen, unseen, conflicts);
}

/* What happens in the mempool besides blocks. */
static void mempool_action(struct simulation *sim)
{
	struct mempool *pool = &sim->pool;
	uint64_t dice = random_below(&sim->random, 1000);
	struct tx *tx;

	if (dice < 740) {
		tx = mempool_accept(pool);
		if (sim->with_peers)
			peers_relay_tx(&sim->peers, (uint64_t)tx->vsize + 40);
	} else if (dice < 840) {
		mempool_replace(pool, false);
	} else if (dice < 865) {
		mempool_replace(pool, true);
	} else if (dice < 945) {
		mempool_reject(pool);
	} else if (dice < 965) {
		mempool_trim(pool, false);
	} else if (dice < 975) {
		mempool_trim(pool, true);
	} else if (dice < 990) {
		mempool_expire(pool);
	} else if ((tx = mempool_pick(pool))) {
		/* A cluster too large after a reorganisation, or a lock that no longer holds. */
		mempool_remove(pool, tx, dice < 995 ? "sizelimit" : "reorg");
	}
}

/* As sendtoaddress does it: plain, then grouped to avoid partial spends, unless funds lack. */
static void spend(struct simulation *sim)
{
	static const char *const algorithms[] = { "bnb", "knapsack", "srd", "cg" };
	struct ledger *ledger = sim->pool.ledger;
	struct random *random = &sim->random;
	int64_t target = (int64_t)random_between(random, 10000, 50000000);
	int64_t fee = (int64_t)random_between(random, 141, 9000);
	const char *algorithm = algorithms[random_below(random, 4)];
	int32_t change = (int32_t)random_below(random, 3) - 1;

	if (random_percent(random, 10)) {
		probe_normal_create_tx(ledger, DEFAULT_WALLET, false, 0,
				       FAKE_NODE_ABI >= 29 ? -1 : 0);
		return;
	}
	probe_selected_coins(ledger, DEFAULT_WALLET, algorithm, target, change < 0 ? 0 : -372,
			     target + fee + (change < 0 ? 0 : 54321));
	probe_normal_create_tx(ledger, DEFAULT_WALLET, true, fee, change);
	probe_attempting_aps(ledger, DEFAULT_WALLET);
	probe_selected_coins(ledger, DEFAULT_WALLET, algorithm, target, 151, target + fee + 54321);
	probe_aps_create_tx(ledger, DEFAULT_WALLET, random_percent(random, 50), true, fee + 12,
			    change);
}

/* Now and then on its own, for gettxoutsetinfo, or when the operator prunes by hand. */
static void flush(struct simulation *sim)
{
	static const uint32_t modes[] = { FLUSH_PERIODIC, FLUSH_SYNC, FLUSH_NONE };
	uint32_t mode = modes[random_below(&sim->random, 3)];

	probe_flush(sim->pool.ledger, (int64_t)random_between(&sim->random, 900, 250000), mode,
		    90000 + sim->pool.count, 9000000, mode == FLUSH_NONE);
}

/* A node that stops in order writes its coins, and finds none the second time. */
static void flush_last(struct simulation *sim)
{
	probe_flush(sim->pool.ledger, 54321, FLUSH_FORCE, 90000 + sim->pool.count, 9000000, false);
	probe_flush(sim->pool.ledger, 321, FLUSH_FORCE, 0, 300000, false);
}

static void node_action(struct simulation *sim)
{
	uint64_t dice = random_below(&sim->random, 1000);

	if (dice < 480)
		mempool_action(sim);
	else if (dice < 945)
		peers_chatter(&sim->peers);
	else if (dice < 965)
		peers_connect(&sim->peers);
	else if (dice < 976)
		peers_disconnect(&sim->peers);
	else if (dice < 980)
		peers_misbehave(&sim->peers);
	else if (dice < 997)
		spend(sim);
	else
		flush(sim);
}

int run(struct node *node)
{
	const struct options *options = node->options;
	uint64_t interval = options->block_interval ? options->block_interval : 1;
	uint64_t now = node_now_ns(), second = UINT64_C(1000000000), end, next_block;
	struct simulation sim;
	struct pacer pacer;
	int i;

	if (simulation_open(&sim, node, true))
		return 1;
	sim.chain.coins = true;
	end = options->seconds ? now + options->seconds * second : UINT64_MAX;
	next_block = now + (interval < FIRST_BLOCK_S ? interval : FIRST_BLOCK_S) * second;

	/* Peers connect and mempool.dat is read. */
	for (i = 0; i < 10 && !node_stop; i++)
		peers_connect(&sim.peers);
	for (i = 0; i < 300 && !node_stop; i++)
		mempool_accept(&sim.pool);

	pacer = pacer_open(options->rate ? options->rate : RUN_RATE);
	while (!node_stop && (now = node_now_ns()) < end) {
		if (now >= next_block) {
			mine(&sim);
			next_block += interval * second;
		}
		node_action(&sim);
		pacer_wait(&pacer);
	}
	flush_last(&sim);
	return simulation_close(&sim, options);
}

int walk(struct node *node)
{
	const struct options *options = node->options;
	struct simulation sim;
	uint64_t i;

	if (simulation_open(&sim, node, false))
		return 1;
	sim.pool.pacer = pacer_open(options->rate);
	for (i = 0; i < options->numbers[0] && !node_stop; i++) {
		if (random_below(&sim.random, 300) == 0)
			mine(&sim);
		else
			mempool_action(&sim);
	}
	return simulation_close(&sim, options);
}
