/* N blocks in a row with everything that makes attribution hard between and inside them. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "chain.h"

#define REPEATED 3

static void fill(struct mempool *pool, size_t target)
{
	while (pool->count < target && !node_stop)
		mempool_accept(pool);
}

/* Replacements and fresh arrivals mixed, as they come between two blocks. */
static void between_blocks(struct mempool *pool, uint64_t replacements, size_t target)
{
	uint64_t i;

	for (i = 0; i < replacements && !node_stop; i++) {
		fill(pool, pool->count + (pool->count < target));
		mempool_replace(pool, i % 4 == 3);
	}
	fill(pool, target);
}

int blocks(struct node *node)
{
	const struct options *options = node->options;
	size_t txs = options->numbers[1];
	/* Enough for the block, its conflicts, and some that stay. */
	size_t target = txs + options->conflicts + 3 * options->replacements + 16;
	struct mempool pool;
	struct chain chain;
	uint64_t i;
	int code = 0;

	if (options->unseen > txs || options->reorg > options->numbers[0]) {
		fprintf(stderr, "fake_node: blocks: %s\n",
			options->unseen > txs ? "--unseen is more than the block has"
					      : "--reorg is deeper than the chain");
		return 2;
	}
	mempool_open(&pool, node);
	if (chain_open(&chain, node, &pool))
		return 1;
	pool.pacer = pacer_open(options->rate);

	fill(&pool, target);
	for (i = 0; i < options->numbers[0] && !node_stop; i++) {
		if (i)
			between_blocks(&pool, options->replacements, target);
		chain_extend(&chain, txs, options->unseen, options->conflicts);
		if (options->empty_blocks)
			chain_extend(&chain, 0, 0, 0);
	}
	if (options->reorg)
		chain_reorganise(&chain, options->reorg);
	if (options->repeat)
		chain_repeat(&chain, REPEATED);

	if (options->mempool_out && mempool_write(&pool, options->mempool_out)) {
		fprintf(stderr, "fake_node: %s: %s\n", options->mempool_out, strerror(errno));
		code = 1;
	}
	chain_close(&chain);
	mempool_close(&pool);
	return code;
}
