/* The list of transactions that left the mempool with a block, put together from the order of the
 * low ring.
 *
 * Core's ConnectTip fires block_connected, perhaps utxocache:flush (which can take minutes), then
 * removed(block) or removed(conflict) for each transaction of the block, on one thread and under
 * the mempool's lock throughout. So the list has ended for certain with its (n_tx - 1)th eviction,
 * or with the next mempool.* or validation.* event of that process from whichever thread. Silence
 * proves nothing, nor does any other event: neither takes that lock. */
#ifndef CORETAP_EVICTIONS_H
#define CORETAP_EVICTIONS_H

#include "../protocol/encode.h"

/* What a record of the low ring means to a list. */
enum eviction_kind {
	EVICTION_NEUTRAL,   /* proves nothing */
	EVICTION_END,	    /* another mempool or validation event: the list has ended before it */
	EVICTION_CONNECTED, /* validation.block_connected */
	EVICTION_BLOCK,	    /* mempool.removed, reason block */
	EVICTION_CONFLICT,  /* mempool.removed, reason conflict */
	EVICTION_UNKNOWN,   /* mempool.removed whose reason could not be read: may be any of them */
};

enum eviction_kind evictions_kind(const struct event_desc *event, const struct value *values);

/* How long a ring must be quiet before a list is told early. */
#define EVICTIONS_QUIET_NS 250000000ULL

#define EVICTIONS_REMEMBERED 1000 /* hashes, to tell a repeat from a new block */

struct evictions {
	bool open;	  /* a list is being put together */
	bool attribution; /* removals can be ascribed to height */
	bool told;	  /* told early, and nothing came since */
	bool faulty;	  /* something could not be read */
	bool repeat;
	uint8_t hash[32];
	bool hash_known;
	struct value height, n_tx;
	uint64_t n_block;
	uint64_t reorg;
	uint64_t last_time_ns; /* of the list's last record */
	uint32_t pid;
	uint64_t ring_lost; /* the greatest count seen so far */
	struct removals block, conflict;
	size_t block_capacity, conflict_capacity;
	/* the chain so far; outlives lists and node processes */
	bool last_height_known;
	uint64_t last_height;
	uint8_t remembered[EVICTIONS_REMEMBERED][32];
	size_t n_remembered, next_remembered;
};

void evictions_init(struct evictions *e);
void evictions_free(struct evictions *e);

/* To be asked before each record of the low ring is published: true when the open list ended
 * before it, by proof or because a loss in the ring ended what can be proven. *complete then says
 * whether it lacks nothing. The caller publishes the list and calls evictions_close. */
bool evictions_ended(struct evictions *e, enum eviction_kind kind, uint64_t ring_lost,
		     bool *complete);

/* The height that a removal of kind BLOCK or CONFLICT belongs to; nil when it is not proven. */
struct value evictions_height(const struct evictions *e, enum eviction_kind kind);

/* To be told each record after evictions_ended. n is the event's position. Returns true when the
 * list is whole with this record: publish it, then evictions_close. */
bool evictions_add(struct evictions *e, enum eviction_kind kind, const struct value *values,
		   uint64_t n, uint32_t pid, uint64_t time_ns);

/* Whether the open list should be told early, the low ring being drained at now_ns. */
bool evictions_due(const struct evictions *e, uint64_t now_ns);

/* The fields of block.evictions; they point into e. */
void evictions_values(const struct evictions *e, bool complete, bool final, struct value *values);

/* Whether nothing was unreadable. */
bool evictions_sound(const struct evictions *e);

void evictions_close(struct evictions *e);

#endif
