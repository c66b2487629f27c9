/*
 * A simulated mempool that fires Core's mempool:* probes in Core's order. Every removal concerns a
 * transaction that was added, so that who follows the stream has exactly this set.
 */
#ifndef FAKE_NODE_MEMPOOL_H
#define FAKE_NODE_MEMPOOL_H

#include <stddef.h>

#include "node.h"
#include "random.h"

struct tx {
	uint8_t txid[32];
	int32_t vsize;
	int64_t fee;
	uint64_t entry_time;

	/* Chains only: at most one parent and one child in the pool. */
	struct tx *parent;
	struct tx *child;

	size_t slot;	/* in mempool.txs */
	bool taken;	/* by a block that is being planned, or as its conflict */
	bool confirmed; /* left by a block */
};

struct mempool {
	struct ledger *ledger;
	struct pacer pacer; /* of the mempool events */
	struct random random;
	uint64_t seed;
	uint64_t created; /* transactions so far: the next one's txid follows from it */

	struct tx **txs;
	size_t count, capacity;

	/* What leaves together, in the order in which it does. */
	struct tx **leaving;
	size_t leaving_count, leaving_capacity;

	/* Told of each removal after its firing, while the pool is still locked by a block. */
	void (*on_removed)(void *argument, const struct tx *tx);
	void *argument;
};

void mempool_open(struct mempool *pool, const struct node *node);
void mempool_close(struct mempool *pool);

/*
 * A new transaction; fires added. Now and then it is a child of one in the pool, whose coin then
 * leaves the cache again: uncache.
 */
struct tx *mempool_accept(struct mempool *pool);

/* One that a reorganisation brought back; fires added. */
void mempool_return(struct mempool *pool, const struct tx *tx);

/* Any transaction of the pool that no block has taken; NULL when there is none. */
struct tx *mempool_pick(struct mempool *pool);

/*
 * The transaction and its descendants leave for this reason, in any order: Core keeps such a family
 * in a set, so that children may precede their parents.
 */
void mempool_remove(struct mempool *pool, struct tx *tx, const char *reason);

/* A block confirmed it: removed(block); its child stays. */
void mempool_confirm(struct mempool *pool, struct tx *tx);

/*
 * One or two transactions and their descendants are replaced, by one transaction or (from v29) by
 * a package: all replaced in any order, all removed(replaced) in the same one, then added.
 */
void mempool_replace(struct mempool *pool, bool package);

/* A transaction is refused for one of Core's reasons: uncache of the coins it wanted, rejected. */
void mempool_reject(struct mempool *pool);

/* The pool was full: added, then removed(sizelimit) of others, or of the newcomer: rejected. */
void mempool_trim(struct mempool *pool, bool newcomer);

/* The oldest transaction expires, which Core only does when one arrives: added, removed(expiry). */
void mempool_expire(struct mempool *pool);

/* Writes the txids, display hex, sorted, one a line. 0 or −1 with errno. */
int mempool_write(const struct mempool *pool, const char *path);

/* 64 digits in display order, the reverse of the bytes in memory, and a NUL. */
void hash_to_hex(const uint8_t hash[32], char hex[65]);

#endif
