/* The simulated mempool; see mempool.h. */
#include "mempool.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPIRY_S (14 * 24 * 3600)
#define MEMPOOL_HEIGHT 2147483647 /* of a coin whose transaction is not in a block */

static void *must(void *memory)
{
	if (!memory) {
		fprintf(stderr, "fake_node: mempool: out of memory\n");
		exit(1);
	}
	return memory;
}

void mempool_open(struct mempool *pool, const struct node *node)
{
	*pool = (struct mempool){
		.ledger = node->ledger,
		.random.state = node->options->seed,
		.seed = node->options->seed,
	};
}

void mempool_close(struct mempool *pool)
{
	while (pool->count)
		free(pool->txs[--pool->count]);
	free(pool->txs);
}

static void txid_next(struct mempool *pool, uint8_t txid[32])
{
	struct random random = { pool->seed * UINT64_C(0xd1342543de82ef95) + pool->created++ };

	random.state = random_next(&random);
	random_hash(&random, txid);
}

static struct tx tx_new(struct mempool *pool)
{
	struct tx tx = { .entry_time = (uint64_t)time(NULL) };

	txid_next(pool, tx.txid);
	tx.vsize = (int32_t)(random_percent(&pool->random, 80)
				     ? random_between(&pool->random, 110, 420)
				     : random_between(&pool->random, 420, 40000));
	tx.fee = (int64_t)random_between(&pool->random, 1, 60) * tx.vsize;
	/* Some were in the pool before the node started, or they could never expire. */
	if (random_percent(&pool->random, 10))
		tx.entry_time -= random_below(&pool->random, EXPIRY_S + 3600);
	return tx;
}

static struct tx *pool_insert(struct mempool *pool, const struct tx *values)
{
	struct tx *tx = must(malloc(sizeof(*tx)));

	*tx = *values;
	if (pool->count == pool->capacity) {
		pool->capacity = pool->capacity ? 2 * pool->capacity : 1024;
		pool->txs = must(realloc(pool->txs, pool->capacity * sizeof(pool->txs[0])));
	}
	tx->slot = pool->count;
	pool->txs[pool->count++] = tx;
	probe_added(pool->ledger, tx->txid, tx->vsize, tx->fee);
	pacer_wait(&pool->pacer);
	return tx;
}

/* Fires the removal and forgets the transaction. */
static void pool_erase(struct mempool *pool, struct tx *tx, const char *reason)
{
	if (tx->parent)
		tx->parent->child = NULL;
	if (tx->child)
		tx->child->parent = NULL;
	pool->txs[tx->slot] = pool->txs[--pool->count];
	pool->txs[tx->slot]->slot = tx->slot;

	probe_removed(pool->ledger, tx->txid, reason, tx->vsize, tx->fee, tx->entry_time);
	pacer_wait(&pool->pacer);
	if (pool->on_removed)
		pool->on_removed(pool->argument, tx);
	free(tx);
}

struct tx *mempool_accept(struct mempool *pool)
{
	struct tx *parent = random_percent(&pool->random, 25) ? mempool_pick(pool) : NULL;
	struct tx values = tx_new(pool);
	struct tx *tx;

	if (parent && !parent->child)
		values.parent = parent;
	tx = pool_insert(pool, &values);
	if (tx->parent)
		tx->parent->child = tx;
	return tx;
}

void mempool_return(struct mempool *pool, const struct tx *tx)
{
	struct tx values = *tx;

	values.parent = values.child = NULL;
	values.taken = values.confirmed = false;
	pool_insert(pool, &values);
}

struct tx *mempool_pick(struct mempool *pool)
{
	size_t i, start;

	if (!pool->count)
		return NULL;
	start = random_below(&pool->random, pool->count);
	for (i = 0; i < pool->count; i++) {
		struct tx *tx = pool->txs[(start + i) % pool->count];

		if (!tx->taken)
			return tx;
	}
	return NULL;
}

void mempool_remove(struct mempool *pool, struct tx *tx, const char *reason)
{
	struct tx *child;

	for (; tx && !node_stop; tx = child) {
		child = tx->child;
		pool_erase(pool, tx, reason);
	}
}

void mempool_confirm(struct mempool *pool, struct tx *tx)
{
	tx->confirmed = true;
	pool_erase(pool, tx, "block");
}

/* Core says first what replaces each victim, then that it left, then what came. */
void mempool_replace(struct mempool *pool, bool package)
{
	struct tx *heads[2] = { mempool_pick(pool), NULL };
	struct tx newcomer, second, *tx;
	int32_t vsize;
	int64_t fee;
	uint8_t package_hash[32];
	const uint8_t *id;
	size_t i;

	if (!heads[0])
		return;
	if (random_percent(&pool->random, 30))
		heads[1] = mempool_pick(pool);
	/* Two victims only if neither descends from the other. */
	for (i = 0; i < 2; i++)
		for (tx = heads[i]; tx; tx = tx->child)
			if (tx == heads[1 - i])
				heads[1] = NULL;

#if FAKE_NODE_ABI < 29
	package = false;
#endif
	newcomer = tx_new(pool);
	second = tx_new(pool);
	newcomer.entry_time = second.entry_time = (uint64_t)time(NULL);
	random_hash(&pool->random, package_hash);
	id = package ? package_hash : newcomer.txid;
	vsize = newcomer.vsize + (package ? second.vsize : 0);
	fee = newcomer.fee + (package ? second.fee : 0);

	for (i = 0; i < 2; i++)
		for (tx = heads[i]; tx && !node_stop; tx = tx->child) {
			probe_replaced(pool->ledger, tx->txid, tx->vsize, tx->fee, tx->entry_time,
				       id, vsize, fee, !package);
			pacer_wait(&pool->pacer);
		}
	for (i = 0; i < 2; i++)
		mempool_remove(pool, heads[i], "replaced");
	if (node_stop)
		return;
	tx = pool_insert(pool, &newcomer);
	if (package) {
		second.parent = tx;
		tx->child = pool_insert(pool, &second);
	}
}

void mempool_reject(struct mempool *pool)
{
	static const char *const reasons[] = {
		"bad-txns-inputs-missingorspent",
		"txn-mempool-conflict",
		"txn-already-in-mempool",
		"txn-already-known",
		"insufficient fee",
		"min relay fee not met",
		"mempool min fee not met",
		"too-long-mempool-chain",
		"too many potential replacements",
		"replacement-adds-unconfirmed",
		"dust",
		"scriptpubkey",
		"non-final",
		"non-BIP68-final",
		"bad-txns-in-belowout",
		"bad-witness-nonstandard",
		"tx-size",
		"mempool-script-verify-flag-failed (Witness program hash mismatch)",
		"mempool-script-verify-flag-failed "
		"(Signature must be zero for failed CHECK(MULTI)SIG operation)",
		"mempool-script-verify-flag-failed "
		"(Script evaluated without error "
		"but finished with a false/empty top stack element)",
	};
	size_t reason = random_below(&pool->random, sizeof(reasons) / sizeof(reasons[0]));
	uint8_t txid[32], coin[32];

	txid_next(pool, txid);
	probe_rejected(pool->ledger, txid, reasons[reason]);
	random_hash(&pool->random, coin);
	if (random_percent(&pool->random, 50))
		probe_uncache(pool->ledger, coin, 0,
			      random_percent(&pool->random, 30) ? MEMPOOL_HEIGHT : 840000,
			      (int64_t)random_between(&pool->random, 546, 5000000), false);
	pacer_wait(&pool->pacer);
}

void mempool_trim(struct mempool *pool, bool newcomer)
{
	struct tx *tx = mempool_accept(pool), *victim;
	uint8_t txid[32];

	if (newcomer) {
		memcpy(txid, tx->txid, sizeof(txid));
		mempool_remove(pool, tx, "sizelimit");
		probe_rejected(pool->ledger, txid, "mempool full");
		return;
	}
	victim = mempool_pick(pool);
	if (victim != tx && victim != tx->parent)
		mempool_remove(pool, victim, "sizelimit");
}

void mempool_expire(struct mempool *pool)
{
	struct tx *oldest = NULL;
	size_t i;

	for (i = 0; i < pool->count; i++)
		if (!pool->txs[i]->taken &&
		    (!oldest || pool->txs[i]->entry_time < oldest->entry_time))
			oldest = pool->txs[i];
	if (oldest)
		mempool_remove(pool, oldest, "expiry");
}

void hash_to_hex(const uint8_t hash[32], char hex[65])
{
	int i;

	for (i = 0; i < 32; i++)
		snprintf(hex + 2 * i, 3, "%02x", hash[31 - i]);
}

static int compare_lines(const void *a, const void *b)
{
	return strcmp(a, b);
}

int mempool_write(const struct mempool *pool, const char *path)
{
	char(*lines)[65] = must(malloc((pool->count + 1) * sizeof(*lines)));
	FILE *file = fopen(path, "w");
	int saved;
	size_t i;

	if (!file) {
		free(lines);
		return -1;
	}
	for (i = 0; i < pool->count; i++)
		hash_to_hex(pool->txs[i]->txid, lines[i]);
	qsort(lines, pool->count, sizeof(*lines), compare_lines);
	for (i = 0; i < pool->count; i++)
		fprintf(file, "%s\n", lines[i]);
	free(lines);
	saved = ferror(file) ? EIO : 0;
	if (fclose(file))
		saved = errno;
	errno = saved;
	return saved ? -1 : 0;
}
