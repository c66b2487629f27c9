/*
 * The simulated chain: plans blocks from the mempool and connects them as Core's ConnectTip does,
 * on one thread: coins, block_connected, perhaps a flush, then the removals in block order.
 */
#ifndef FAKE_NODE_CHAIN_H
#define FAKE_NODE_CHAIN_H

#include <stdio.h>

#include "mempool.h"

struct block_tx {
	struct tx tx;	       /* as it was when the block was planned */
	struct tx *in_pool;    /* NULL: the pool does not have it */
	struct tx **conflicts; /* then: what it conflicts with, without the descendants */
	size_t conflict_count;
};

struct block {
	uint8_t hash[32];
	int32_t height;
	struct block_tx *txs; /* without the coinbase */
	size_t count;
};

struct chain {
	const struct options *options;
	struct ledger *ledger;
	struct mempool *pool;
	struct random random;
	int32_t height; /* of the tip */
	uint32_t branch;
	bool coins; /* blocks fire the events of their coins */
	bool flush; /* the next block is followed by a flush */

	struct block *recent; /* the last blocks, the tip last */
	size_t recent_count, recent_capacity;

	FILE *truth;
	struct tx *left; /* what the block that is being connected removed so far */
	size_t left_count, left_capacity;
};

/* 0 or −1 after one line on stderr. */
int chain_open(struct chain *chain, const struct node *node, struct mempool *pool);
void chain_close(struct chain *chain);

/*
 * Connects a block of count transactions on the tip: those of the pool, parents first, and unseen
 * ones that the pool does not have, about half of which conflict with `conflicts` transactions of
 * the pool (descendants counted) in all.
 */
void chain_extend(struct chain *chain, size_t count, size_t unseen, size_t conflicts);

/*
 * A branch of depth + 2 blocks replaces the last depth blocks. What was in both branches fires
 * nothing; of each old block one transaction is left out and comes back by `added`, or is rejected
 * because the new branch spent its inputs, as soon as the new branch is the longer one: before its
 * last block.
 */
void chain_reorganise(struct chain *chain, size_t depth);

/* The last blocks are connected once more, as verifychain does. */
void chain_repeat(struct chain *chain, size_t blocks);

#endif
