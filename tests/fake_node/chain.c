/* The simulated chain; see chain.h. */
#include "chain.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define KEEP_AT_LEAST 8 /* blocks, for run's reorganisations and --repeat */
#define INPUTS 2	/* of each transaction but the coinbase, which has one */

static void *must(void *memory)
{
	if (!memory) {
		fprintf(stderr, "fake_node: chain: out of memory\n");
		exit(1);
	}
	return memory;
}

static void block_free(struct block *block)
{
	size_t i;

	for (i = 0; i < block->count; i++)
		free(block->txs[i].conflicts);
	free(block->txs);
}

int chain_open(struct chain *chain, const struct node *node, struct mempool *pool)
{
	const struct options *options = node->options;

	*chain = (struct chain){
		.options = options,
		.ledger = node->ledger,
		.pool = pool,
		.random.state = options->seed + 1,
		.height = (int32_t)options->start_height - 1,
		.coins = options->coins,
		.flush = options->flush || options->flush_ms,
		.recent_capacity =
			options->reorg + 1 > KEEP_AT_LEAST ? options->reorg + 1 : KEEP_AT_LEAST,
	};
	chain->recent = must(calloc(chain->recent_capacity, sizeof(chain->recent[0])));
	if (options->truth && !(chain->truth = fopen(options->truth, "w"))) {
		fprintf(stderr, "fake_node: %s: %s\n", options->truth, strerror(errno));
		free(chain->recent);
		return -1;
	}
	return 0;
}

void chain_close(struct chain *chain)
{
	while (chain->recent_count)
		block_free(&chain->recent[--chain->recent_count]);
	free(chain->recent);
	free(chain->left);
	if (chain->truth)
		fclose(chain->truth);
}

/* The chain owns the block from here. */
static void chain_keep(struct chain *chain, const struct block *block)
{
	if (chain->recent_count == chain->recent_capacity) {
		block_free(&chain->recent[0]);
		memmove(chain->recent, chain->recent + 1,
			--chain->recent_count * sizeof(chain->recent[0]));
	}
	chain->recent[chain->recent_count++] = *block;
	chain->height = block->height;
}

static void block_hash(const struct chain *chain, struct block *block)
{
	uint64_t height = (uint64_t)block->height;

	memset(block->hash, 0xbb, sizeof(block->hash));
	memcpy(block->hash, &height, 8);
	memcpy(block->hash + 8, &chain->branch, 4);
	memcpy(block->hash + 12, &chain->options->seed, 8);
	memset(block->hash + 28, 0, 4);
}

static void on_removed(void *argument, const struct tx *tx)
{
	struct chain *chain = argument;

	if (chain->left_count == chain->left_capacity) {
		chain->left_capacity = chain->left_capacity ? 2 * chain->left_capacity : 4096;
		chain->left =
			must(realloc(chain->left, chain->left_capacity * sizeof(chain->left[0])));
	}
	chain->left[chain->left_count++] = *tx;
	if (chain->left_count == chain->options->pause_at)
		node_sleep_ms(chain->options->pause_ms);
}

static void truth_hashes(const struct chain *chain, const char *key, bool confirmed)
{
	const char *comma = "";
	char hex[65];
	size_t i;

	fprintf(chain->truth, ",\"%s\":[", key);
	for (i = 0; i < chain->left_count; i++) {
		if (chain->left[i].confirmed != confirmed)
			continue;
		hash_to_hex(chain->left[i].txid, hex);
		fprintf(chain->truth, "%s\"%s\"", comma, hex);
		comma = ",";
	}
	fputc(']', chain->truth);
}

enum column { FEE, VSIZE, ENTRY_TIME, AFTER };

static void truth_numbers(const struct chain *chain, const char *key, bool confirmed,
			  enum column column)
{
	const char *comma = "";
	int64_t evicted = 0;
	size_t i;

	fprintf(chain->truth, ",\"%s\":[", key);
	for (i = 0; i < chain->left_count; i++) {
		const struct tx *tx = &chain->left[i];
		int64_t values[] = { tx->fee, tx->vsize, (int64_t)tx->entry_time, evicted };

		evicted += tx->confirmed;
		if (tx->confirmed != confirmed)
			continue;
		fprintf(chain->truth, "%s%" PRId64, comma, values[column]);
		comma = ",";
	}
	fputc(']', chain->truth);
}

/* One JSON line per block, of what its connection fired. */
static void truth_write(const struct chain *chain, const struct block *block)
{
	size_t i, evicted = 0;
	char hex[65];

	for (i = 0; i < chain->left_count; i++)
		evicted += chain->left[i].confirmed;
	hash_to_hex(block->hash, hex);
	fprintf(chain->truth, "{\"hash\":\"%s\",\"height\":%" PRId32, hex, block->height);
	fprintf(chain->truth, ",\"n_tx\":%zu,\"unseen\":%zu", block->count + 1,
		block->count - evicted);
	truth_hashes(chain, "txids", true);
	truth_numbers(chain, "fees", true, FEE);
	truth_numbers(chain, "vsizes", true, VSIZE);
	truth_numbers(chain, "entry_times", true, ENTRY_TIME);
	truth_hashes(chain, "conflict_txids", false);
	truth_numbers(chain, "conflict_fees", false, FEE);
	truth_numbers(chain, "conflict_vsizes", false, VSIZE);
	truth_numbers(chain, "conflict_entry_times", false, ENTRY_TIME);
	truth_numbers(chain, "conflict_after", false, AFTER);
	fputs("}\n", chain->truth);
	fflush(chain->truth);
}

/*
 * What ConnectBlock does to the coins, before the block counts as connected. The coinbase is the
 * first transaction; its witness commitment is an OP_RETURN, which never becomes a coin.
 */
static void fire_coins(struct chain *chain, const struct block *block)
{
	uint8_t coin[32] = { 0 };
	uint32_t height = (uint32_t)block->height;
	size_t i, j;

	random_hash(&chain->random, coin);
	probe_add(chain->ledger, coin, 0, height, 312500000, true);
	for (i = 0; i < block->count && !node_stop; i++) {
		const struct tx *tx = &block->txs[i].tx;

		for (j = 0; j < INPUTS; j++) {
			random_hash(&chain->random, coin);
			probe_spent(chain->ledger, coin, (uint32_t)((i + j) % 3),
				    height - 1 - (uint32_t)(i % 999), j ? 40000 : tx->fee + 60000,
				    i % 500 == 499);
		}
		probe_add(chain->ledger, tx->txid, 0, height, 60000, false);
		probe_add(chain->ledger, tx->txid, 1, height, 40000, false);
	}
}

static void fire_flush(struct chain *chain, const struct block *block)
{
	const struct options *options = chain->options;

	if (!chain->flush)
		return;
	node_sleep_ms(options->flush_ms / 2);
	probe_flush(chain->ledger, options->flush_ms ? (int64_t)options->flush_ms * 1000 : 1234, 1,
		    (uint64_t)block->height * 3, (uint64_t)block->height * 300, false);
	node_sleep_ms(options->flush_ms - options->flush_ms / 2);
}

static void chain_connect(struct chain *chain, const struct block *block)
{
	size_t i, j;

	if (node_stop)
		return;
	chain->left_count = 0;
	chain->pool->on_removed = on_removed;
	chain->pool->argument = chain;

	if (chain->coins)
		fire_coins(chain, block);
	probe_block_connected(chain->ledger, block->hash, block->height, block->count + 1,
			      (int32_t)(INPUTS * block->count + 1),
			      (int64_t)(4 * block->count + 100),
			      (int64_t)(1000000 + 12345 * block->count));
	fire_flush(chain, block);
	for (i = 0; i < block->count && !node_stop; i++) {
		struct block_tx *tx = &block->txs[i];

		if (tx->in_pool)
			mempool_confirm(chain->pool, tx->in_pool);
		for (j = 0; j < tx->conflict_count && !node_stop; j++)
			mempool_remove(chain->pool, tx->conflicts[j], "conflict");
		/* Freed by now: a repeated connection must not find them. */
		tx->in_pool = NULL;
		tx->conflict_count = 0;
	}
	chain->pool->on_removed = NULL;
	if (chain->truth)
		truth_write(chain, block);
}

/* The transaction with its descendants; 0 when some of them are taken already. */
static size_t family_size(const struct tx *tx)
{
	size_t count = 0;

	for (; tx; tx = tx->child, count++)
		if (tx->taken)
			return 0;
	return count;
}

/* Gives the conflicts, in families, to the first half of the unseen transactions. */
static void plan_conflicts(struct chain *chain, struct block *block, size_t unseen,
			   size_t conflicts)
{
	size_t holders = (unseen + 1) / 2, holder = 0, attempts = 20 * conflicts + 1000;

	while (conflicts && attempts--) {
		struct block_tx *holding = &block->txs[holder];
		struct tx *victim = mempool_pick(chain->pool), *tx;

		while (victim && family_size(victim) > conflicts)
			victim = victim->child;
		if (!victim || !family_size(victim))
			continue;
		conflicts -= family_size(victim);
		for (tx = victim; tx; tx = tx->child)
			tx->taken = true;
		holding->conflicts = must(realloc(
			holding->conflicts, (holding->conflict_count + 1) * sizeof(struct tx *)));
		holding->conflicts[holding->conflict_count++] = victim;
		holder = (holder + 1) % holders;
	}
}

/* Takes transactions of the pool, each after its ancestors; returns how many. */
static size_t plan_from_pool(struct chain *chain, struct block_tx *txs, size_t count)
{
	size_t done = 0, i, start;
	struct mempool *pool = chain->pool;

	start = pool->count ? random_below(&chain->random, pool->count) : 0;
	for (i = 0; i < pool->count && done < count; i++) {
		struct tx *tx = pool->txs[(start + i) % pool->count];

		if (tx->taken)
			continue;
		while (tx->parent && !tx->parent->taken)
			tx = tx->parent;
		for (; tx && !tx->taken && done < count; tx = tx->child) {
			tx->taken = true;
			txs[done].tx = *tx;
			txs[done++].in_pool = tx;
		}
	}
	return done;
}

/* Spreads the unseen ones, which stand in front, over the block; the others keep their order. */
static void spread_unseen(struct chain *chain, struct block *block, size_t unseen)
{
	struct block_tx *mixed = must(calloc(block->count + 1, sizeof(*mixed)));
	size_t i, next_unseen = 0, next_seen = unseen;

	for (i = 0; i < block->count; i++) {
		size_t unseen_left = unseen - next_unseen, left = block->count - i;

		if (random_below(&chain->random, left) < unseen_left)
			mixed[i] = block->txs[next_unseen++];
		else
			mixed[i] = block->txs[next_seen++];
	}
	free(block->txs);
	block->txs = mixed;
}

static void plan_unseen(struct chain *chain, struct block_tx *tx)
{
	random_hash(&chain->random, tx->tx.txid);
	tx->tx.vsize = 200;
	tx->tx.fee = 2000;
}

static struct block plan_block(struct chain *chain, size_t count, size_t unseen, size_t conflicts)
{
	struct block block = { .height = chain->height + 1 };
	size_t i;

	if (unseen > count)
		unseen = count;
	block_hash(chain, &block);
	block.txs = must(calloc(count + 1, sizeof(block.txs[0])));
	for (i = 0; i < unseen; i++)
		plan_unseen(chain, &block.txs[i]);
	if (unseen)
		plan_conflicts(chain, &block, unseen, conflicts);
	block.count = unseen + plan_from_pool(chain, block.txs + unseen, count - unseen);
	spread_unseen(chain, &block, unseen);
	return block;
}

void chain_extend(struct chain *chain, size_t count, size_t unseen, size_t conflicts)
{
	struct block block = plan_block(chain, count, unseen, conflicts);

	chain_connect(chain, &block);
	chain_keep(chain, &block);
}

/* The new branch's block at the place of an old one: all but one of its transactions, and more. */
static struct block plan_branch_block(struct chain *chain, const struct block *old,
				      struct tx *left_out, size_t *left_out_count)
{
	struct block block = { .height = old->height };
	size_t i;

	block_hash(chain, &block);
	block.txs = must(calloc(old->count + 4, sizeof(block.txs[0])));
	for (i = 0; i + 1 < old->count; i++)
		block.txs[i].tx = old->txs[i].tx;
	block.count = i;
	if (old->count)
		left_out[(*left_out_count)++] = old->txs[i].tx;
	block.count += plan_from_pool(chain, block.txs + block.count, 3);
	return block;
}

/* The old branch's transactions, then what of the pool does not hold on the new one. */
static void return_to_pool(struct chain *chain, const struct tx *left_out, size_t count)
{
	struct tx *victim;
	size_t i;

	for (i = 0; i < count && !node_stop; i++) {
		if (i % 2)
			probe_rejected(chain->ledger, left_out[i].txid,
				       "bad-txns-inputs-missingorspent");
		else
			mempool_return(chain->pool, &left_out[i]);
	}
	victim = mempool_pick(chain->pool);
	if (victim && !node_stop)
		mempool_remove(chain->pool, victim, "reorg");
}

void chain_reorganise(struct chain *chain, size_t depth)
{
	struct block *olds = must(calloc(depth + 1, sizeof(*olds)));
	struct tx *left_out = must(calloc(depth + 1, sizeof(*left_out)));
	size_t i, left_out_count = 0;

	if (depth > chain->recent_count)
		depth = chain->recent_count;
	chain->recent_count -= depth;
	memcpy(olds, chain->recent + chain->recent_count, depth * sizeof(*olds));
	chain->height -= (int32_t)depth;
	chain->branch++;
	for (i = 0; i < depth; i++) {
		struct block block = plan_branch_block(chain, &olds[i], left_out, &left_out_count);

		chain_connect(chain, &block);
		chain_keep(chain, &block);
	}
	chain_extend(chain, depth ? olds[depth - 1].count / 2 + 1 : 1, 0, 0);
	return_to_pool(chain, left_out, left_out_count);
	chain_extend(chain, depth ? olds[depth - 1].count / 2 + 1 : 1, 0, 0);

	for (i = 0; i < depth; i++)
		block_free(&olds[i]);
	free(olds);
	free(left_out);
}

void chain_repeat(struct chain *chain, size_t blocks)
{
	size_t i, first = chain->recent_count > blocks ? chain->recent_count - blocks : 0;

	for (i = first; i < chain->recent_count; i++)
		chain_connect(chain, &chain->recent[i]);
}
