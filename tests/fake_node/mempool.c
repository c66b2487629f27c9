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
	free(pool->leaving);
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

static void leaving_add(struct mempool *pool, struct tx *tx)
{
	for (; tx; tx = tx->child) {
		if (pool->leaving_count == pool->leaving_capacity) {
			pool->leaving_capacity =
				pool->leaving_capacity ? 2 * pool->leaving_capacity : 64;
			pool->leaving = must(realloc(
				pool->leaving, pool->leaving_capacity * sizeof(pool->leaving[0])));
		}
		pool->leaving[pool->leaving_count++] = tx;
	}
}

static void leaving_shuffle(struct mempool *pool)
{
	size_t i, j;

	for (i = pool->leaving_count; i > 1; i--) {
		struct tx *tx = pool->leaving[i - 1];

		j = random_below(&pool->random, i);
		pool->leaving[i - 1] = pool->leaving[j];
		pool->leaving[j] = tx;
	}
}

static void leaving_erase(struct mempool *pool, const char *reason)
{
	size_t i;

	for (i = 0; i < pool->leaving_count && !node_stop; i++)
		pool_erase(pool, pool->leaving[i], reason);
	pool->leaving_count = 0;
}

/* An accepted transaction may not keep in the cache what only the pool has. */
static void uncache_parent(struct mempool *pool, const uint8_t parent[32])
{
	probe_uncache(pool->ledger, parent, 0, MEMPOOL_HEIGHT, 60000, false);
}

static struct tx *pick_parent(struct mempool *pool)
{
	struct tx *parent = random_percent(&pool->random, 25) ? mempool_pick(pool) : NULL;

	return parent && !parent->child ? parent : NULL;
}

/* Fires added; what the parent's coin does comes after what the arrival drives out. */
static struct tx *pool_enter(struct mempool *pool, struct tx *parent)
{
	struct tx values = tx_new(pool), *tx;

	values.parent = parent;
	tx = pool_insert(pool, &values);
	if (parent)
		parent->child = tx;
	return tx;
}

struct tx *mempool_accept(struct mempool *pool)
{
	struct tx *parent = pick_parent(pool), *tx = pool_enter(pool, parent);

	if (parent)
		uncache_parent(pool, parent->txid);
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
	leaving_add(pool, tx);
	leaving_shuffle(pool);
	leaving_erase(pool, reason);
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

	leaving_add(pool, heads[0]);
	leaving_add(pool, heads[1]);
	leaving_shuffle(pool);
	for (i = 0; i < pool->leaving_count && !node_stop; i++) {
		tx = pool->leaving[i];
		probe_replaced(pool->ledger, tx->txid, tx->vsize, tx->fee, tx->entry_time, id,
			       vsize, fee, !package);
		pacer_wait(&pool->pacer);
	}
	leaving_erase(pool, "replaced");
	if (node_stop)
		return;
	tx = pool_insert(pool, &newcomer);
	if (package) {
		second.parent = tx;
		tx->child = pool_insert(pool, &second);
		uncache_parent(pool, tx->txid);
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
	size_t coins = random_below(&pool->random, 3);
	uint8_t txid[32], coin[32];

	txid_next(pool, txid);
	while (coins--) {
		random_hash(&pool->random, coin);
		probe_uncache(pool->ledger, coin, 0,
			      random_percent(&pool->random, 30) ? MEMPOOL_HEIGHT : 840000,
			      (int64_t)random_between(&pool->random, 546, 5000000), false);
	}
	probe_rejected(pool->ledger, txid, reasons[reason]);
	pacer_wait(&pool->pacer);
}

static bool descends(const struct tx *tx, const struct tx *ancestor)
{
	while (tx && tx != ancestor)
		tx = tx->parent;
	return tx;
}

void mempool_trim(struct mempool *pool, bool newcomer)
{
	struct tx *parent = pick_parent(pool), *tx = pool_enter(pool, parent);
	struct tx *victim = newcomer ? tx : mempool_pick(pool);
	uint8_t txid[32], parent_txid[32];

	memcpy(txid, tx->txid, sizeof(txid));
	if (parent)
		memcpy(parent_txid, parent->txid, sizeof(parent_txid));
	if (newcomer || !descends(tx, victim))
		mempool_remove(pool, victim, "sizelimit");
	if (parent)
		uncache_parent(pool, parent_txid);
	if (newcomer)
		probe_rejected(pool->ledger, txid, "mempool full");
}

void mempool_expire(struct mempool *pool)
{
	struct tx *oldest = NULL;
	size_t i;

	/* The newcomer has no parent, or it might go with it. */
	for (i = 0; i < pool->count; i++)
		if (!pool->txs[i]->taken &&
		    (!oldest || pool->txs[i]->entry_time < oldest->entry_time))
			oldest = pool->txs[i];
	pool_enter(pool, NULL);
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
	char *fresh = must(malloc(strlen(path) + sizeof(".new")));
	FILE *file;
	int saved;
	size_t i;

	/* Who waits for the file finds all of it. */
	strcat(strcpy(fresh, path), ".new");
	file = fopen(fresh, "w");
	if (!file) {
		free(lines);
		free(fresh);
		return -1;
	}
	for (i = 0; i < pool->count; i++)
		hash_to_hex(pool->txs[i]->txid, lines[i]);
	qsort(lines, pool->count, sizeof(*lines), compare_lines);
	for (i = 0; i < pool->count; i++)
		fprintf(file, "%s\n", lines[i]);
	free(lines);
	saved = ferror(file) ? EIO : 0;
	if (fclose(file) || rename(fresh, path))
		saved = errno;
	free(fresh);
	errno = saved;
	return saved ? -1 : 0;
}
