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

/* What an event can mean, whatever its values: NEUTRAL, END, CONNECTED, or UNKNOWN for
 * mempool.removed, whose reason decides. */
enum eviction_kind evictions_event_kind(const struct event_desc *event);

/* What a mempool.removed means. */
enum eviction_kind evictions_removed_kind(const struct value *values);

/* How long a ring must be quiet before a list is told early. */
#define EVICTIONS_QUIET_NS 250000000ULL

#define EVICTIONS_REMEMBERED 1000 /* hashes, to tell a repeat from a new block */

/* Numbers only: it is saved byte by byte when the bridge must survive being killed. */
struct evictions_state {
	bool open;	  /* a list is being put together */
	bool attribution; /* removals can be ascribed to height */
	bool told;	  /* told early, and nothing came since */
	bool faulty;	  /* something could not be read */
	bool repeat;
	bool hash_known, height_known, n_tx_known, last_height_known, other_height_known;
	uint8_t hash[32];
	uint64_t height, n_tx;
	uint64_t n_block;
	uint64_t reorg;
	uint64_t last_time_ns; /* of the list's last record */
	uint64_t ring_lost;    /* the greatest count seen so far */
	uint64_t last_height;  /* of the chain so far; outlives lists and node processes, as do
				  these: */
	uint64_t other_height; /* of the one that another one left behind, which may go on */
	uint64_t n_remembered, next_remembered;
	uint32_t pid;
	uint32_t unused;
};

/* One transaction of the list, as it is saved. */
struct evictions_entry {
	uint8_t txid[32];
	int64_t fee;
	uint64_t vsize, entry_time, after;
	uint8_t conflict; /* else it left with the block */
	uint8_t missing;  /* MISSING_ bits */
	uint8_t unused[6];
};

struct evictions {
	struct evictions_state state;
	struct removals block, conflict;
	size_t block_capacity, conflict_capacity;
	uint8_t remembered[EVICTIONS_REMEMBERED][32];
	/* what is not saved yet */
	struct evictions_entry *unsaved;
	size_t n_unsaved, unsaved_capacity;
	bool save, restart, save_remembered;
};

/* keep: collect what must be saved (see below). */
void evictions_init(struct evictions *e, bool keep);
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

/* Saving: entries are collected in unsaved until evictions_saved; restart says that a new list
 * began and those saved before belong to no list any more. evictions_restore takes up a saved
 * state; then evictions_restore_entry for each saved entry in order. */
void evictions_saved(struct evictions *e);
void evictions_restore(struct evictions *e, const struct evictions_state *state);
void evictions_restore_entry(struct evictions *e, const struct evictions_entry *entry);

#endif
