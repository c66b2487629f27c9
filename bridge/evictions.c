/* See evictions.h. */
#include <stdlib.h>
#include <string.h>

#include "evictions.h"
#include "log.h"

/* Field numbers of the events that a list is made of, in the catalogue's order. */
enum { CONNECTED_HASH, CONNECTED_HEIGHT, CONNECTED_N_TX };
enum { REMOVED_TXID, REMOVED_REASON, REMOVED_VSIZE, REMOVED_FEE, REMOVED_ENTRY_TIME };

void evictions_init(struct evictions *e, bool keep)
{
	memset(e, 0, sizeof(*e));
	e->save = e->restart = e->save_remembered = keep;
}

static void removals_free(struct removals *r)
{
	free(r->txids);
	free(r->fees);
	free(r->vsizes);
	free(r->entry_times);
	free(r->after);
	free(r->missing);
}

void evictions_free(struct evictions *e)
{
	removals_free(&e->block);
	removals_free(&e->conflict);
	free(e->unsaved);
	memset(e, 0, sizeof(*e));
}

static bool text_is(const struct value *value, const char *text)
{
	return value->state == VALUE_SET && value->bytes.len == strlen(text) &&
	       !memcmp(value->bytes.data, text, value->bytes.len);
}

enum eviction_kind evictions_event_kind(const struct event_desc *event)
{
	/* Where a declared tracepoint stands in the node's order nobody has told. */
	if (event->flags & EVENT_DECLARED)
		return EVICTION_NEUTRAL;
	if (!strcmp(event->topic, "validation.block_connected"))
		return EVICTION_CONNECTED;
	if (!strcmp(event->topic, "mempool.removed"))
		return EVICTION_UNKNOWN;
	if (!strcmp(event->provider, "mempool") || !strcmp(event->provider, "validation"))
		return EVICTION_END;
	return EVICTION_NEUTRAL;
}

enum eviction_kind evictions_removed_kind(const struct value *values)
{
	if (text_is(&values[REMOVED_REASON], "block"))
		return EVICTION_BLOCK;
	if (text_is(&values[REMOVED_REASON], "conflict"))
		return EVICTION_CONFLICT;
	return values[REMOVED_REASON].state == VALUE_SET ? EVICTION_END : EVICTION_UNKNOWN;
}

bool evictions_ended(struct evictions *e, enum eviction_kind kind, uint64_t ring_lost,
		     bool *complete)
{
	bool lost = ring_lost > e->state.ring_lost;
	bool ended;

	/* Counts arrive out of order from several threads: the greatest one is what is known. */
	if (lost) {
		e->state.ring_lost = ring_lost;
		e->state.attribution = false;
	}
	if (!e->state.open)
		return false;
	ended = kind == EVICTION_END || kind == EVICTION_CONNECTED;
	*complete = ended && !lost && !e->state.faulty;
	return ended || lost;
}

struct value evictions_height(const struct evictions *e, enum eviction_kind kind)
{
	struct value height = { .state = VALUE_ABSENT };

	if (kind == EVICTION_BLOCK || kind == EVICTION_CONFLICT) {
		height.state = e->state.open && e->state.attribution && e->state.height_known
				       ? VALUE_SET
				       : VALUE_NIL;
		height.u = e->state.height;
	}
	return height;
}

static void *grow(void *array, size_t n, size_t size)
{
	void *bigger = realloc(array, n * size);

	if (!bigger)
		log_out_of_memory();
	return bigger;
}

static void removals_add(struct removals *r, size_t *capacity, const struct evictions_entry *entry)
{
	size_t i = r->n++;

	if (i == *capacity) {
		*capacity = *capacity ? 2 * *capacity : 4096;
		r->txids = grow(r->txids, *capacity, sizeof(*r->txids));
		r->fees = grow(r->fees, *capacity, sizeof(*r->fees));
		r->vsizes = grow(r->vsizes, *capacity, sizeof(*r->vsizes));
		r->entry_times = grow(r->entry_times, *capacity, sizeof(*r->entry_times));
		r->after = grow(r->after, *capacity, sizeof(*r->after));
		r->missing = grow(r->missing, *capacity, sizeof(*r->missing));
	}
	memcpy(r->txids[i], entry->txid, 32);
	r->fees[i] = entry->fee;
	r->vsizes[i] = entry->vsize;
	r->entry_times[i] = entry->entry_time;
	r->after[i] = entry->after;
	r->missing[i] = entry->missing;
}

static void entry_add(struct evictions *e, const struct evictions_entry *entry)
{
	if (entry->conflict)
		removals_add(&e->conflict, &e->conflict_capacity, entry);
	else
		removals_add(&e->block, &e->block_capacity, entry);
	e->state.faulty |= entry->missing != 0;
}

static void entry_keep(struct evictions *e, const struct evictions_entry *entry)
{
	if (e->n_unsaved == e->unsaved_capacity) {
		e->unsaved_capacity = e->unsaved_capacity ? 2 * e->unsaved_capacity : 4096;
		e->unsaved = grow(e->unsaved, e->unsaved_capacity, sizeof(*e->unsaved));
	}
	e->unsaved[e->n_unsaved++] = *entry;
}

static void removal_add(struct evictions *e, bool conflict, const struct value *values)
{
	struct evictions_entry entry = {
		.fee = values[REMOVED_FEE].i,
		.vsize = values[REMOVED_VSIZE].u,
		.entry_time = values[REMOVED_ENTRY_TIME].u,
		.after = e->block.n,
		.conflict = conflict,
	};

	if (values[REMOVED_TXID].state == VALUE_SET)
		memcpy(entry.txid, values[REMOVED_TXID].bytes.data, 32);
	else
		entry.missing |= MISSING_TXID;
	entry.missing |= values[REMOVED_FEE].state == VALUE_SET ? 0 : MISSING_FEE;
	entry.missing |= values[REMOVED_VSIZE].state == VALUE_SET ? 0 : MISSING_VSIZE;
	entry.missing |= values[REMOVED_ENTRY_TIME].state == VALUE_SET ? 0 : MISSING_ENTRY_TIME;
	entry_add(e, &entry);
	if (e->save)
		entry_keep(e, &entry);
}

/* A height that is not above the last one supersedes what stood there. One that is lower than any
 * reorganisation reaches belongs to another chain: a reindex begins again, and the blocks that
 * assumeutxo validates in the background come between those of the tip. */
static uint64_t height_place(struct evictions_state *s)
{
	uint64_t last = s->last_height, back = 0;

	if (s->last_height_known && !s->repeat && s->height <= last)
		back = last - s->height + 1;
	/* A reindex that has caught up: there is one chain again. */
	if (s->other_height_known && s->height == s->other_height + 1 && s->height == last + 1)
		s->other_height_known = false;
	if (s->other_height_known && s->height == s->other_height + 1) {
		s->other_height = last;
		back = 0;
	} else if (back > EVICTIONS_REMEMBERED) {
		s->other_height = last;
		s->other_height_known = true;
		back = 0;
	}
	s->last_height = s->height;
	s->last_height_known = true;
	return back;
}

/* Places the block in the chain: a hash seen before is a repeat (verifychain, reconsiderblock). */
static void chain_place(struct evictions *e)
{
	struct evictions_state *s = &e->state;

	s->repeat = false;
	s->reorg = 0;
	for (size_t i = 0; s->hash_known && i < s->n_remembered; i++)
		if (!memcmp(e->remembered[i], s->hash, 32))
			s->repeat = true;
	if (s->height_known)
		s->reorg = height_place(s);
	if (s->hash_known && !s->repeat) {
		memcpy(e->remembered[s->next_remembered], s->hash, 32);
		s->next_remembered = (s->next_remembered + 1) % EVICTIONS_REMEMBERED;
		if (s->n_remembered < EVICTIONS_REMEMBERED)
			s->n_remembered++;
		e->save_remembered = true;
	}
}

static void list_open(struct evictions *e, const struct value *values, uint64_t n, uint32_t pid)
{
	struct evictions_state *s = &e->state;

	s->open = true;
	s->attribution = true;
	s->pid = pid;
	s->n_block = n;
	s->hash_known = values[CONNECTED_HASH].state == VALUE_SET;
	if (s->hash_known)
		memcpy(s->hash, values[CONNECTED_HASH].bytes.data, 32);
	s->height_known = values[CONNECTED_HEIGHT].state == VALUE_SET;
	s->height = s->height_known ? values[CONNECTED_HEIGHT].u : 0;
	s->n_tx_known = values[CONNECTED_N_TX].state == VALUE_SET;
	s->n_tx = s->n_tx_known ? values[CONNECTED_N_TX].u : 0;
	s->faulty = !s->hash_known || !s->height_known || !s->n_tx_known;
	e->block.n = 0;
	e->conflict.n = 0;
	e->n_unsaved = 0;
	e->restart = true;
	chain_place(e);
}

static bool is_whole(const struct evictions *e)
{
	return e->state.n_tx_known && e->block.n + 1 >= e->state.n_tx;
}

bool evictions_add(struct evictions *e, enum eviction_kind kind, const struct value *values,
		   uint64_t n, uint32_t pid, uint64_t time_ns)
{
	switch (kind) {
	case EVICTION_CONNECTED:
		list_open(e, values, n, pid);
		break;
	case EVICTION_BLOCK:
	case EVICTION_CONFLICT:
		if (!e->state.open)
			return false;
		removal_add(e, kind == EVICTION_CONFLICT, values);
		break;
	case EVICTION_UNKNOWN:
		e->state.faulty = true;
		return false;
	default:
		return false;
	}
	e->state.told = false;
	e->state.last_time_ns = time_ns;
	return is_whole(e);
}

bool evictions_due(const struct evictions *e, uint64_t now_ns)
{
	uint64_t last_ns = e->state.last_time_ns;
	/* A clock that was set back since then tells nothing of how long it has been quiet, and
	 * will not for as long as it was set back. */
	uint64_t apart_ns = now_ns > last_ns ? now_ns - last_ns : last_ns - now_ns;

	return e->state.open && !e->state.told && apart_ns > EVICTIONS_QUIET_NS;
}

bool evictions_sound(const struct evictions *e)
{
	return !e->state.faulty;
}

void evictions_values(const struct evictions *e, bool complete, bool final, struct value *v)
{
	const struct removals *b = &e->block;
	const struct evictions_state *s = &e->state;
	bool unseen_known = s->n_tx_known && s->n_tx > b->n;

	*v++ = (struct value){ .state = s->hash_known ? VALUE_SET : VALUE_NIL,
			       .bytes = { s->hash, 32 } };
	*v++ = (struct value){ .state = s->height_known ? VALUE_SET : VALUE_NIL, .u = s->height };
	*v++ = (struct value){ .state = s->n_tx_known ? VALUE_SET : VALUE_NIL, .u = s->n_tx };
	*v++ = (struct value){ .state = VALUE_SET, .u = s->n_block };
	*v++ = (struct value){ .state = VALUE_SET,
			       .list = { b->txids, b->n, b->missing, MISSING_TXID } };
	*v++ = (struct value){ .state = VALUE_SET,
			       .list = { b->fees, b->n, b->missing, MISSING_FEE } };
	*v++ = (struct value){ .state = VALUE_SET,
			       .list = { b->vsizes, b->n, b->missing, MISSING_VSIZE } };
	*v++ = (struct value){ .state = VALUE_SET,
			       .list = { b->entry_times, b->n, b->missing, MISSING_ENTRY_TIME } };
	*v++ = (struct value){ .state = VALUE_SET, .conflicts = &e->conflict };
	*v++ = (struct value){ .state = unseen_known ? VALUE_SET : VALUE_NIL,
			       .u = s->n_tx - 1 - b->n };
	*v++ = (struct value){ .state = VALUE_SET, .u = s->reorg };
	*v++ = (struct value){ .state = VALUE_SET, .b = s->repeat };
	*v++ = (struct value){ .state = VALUE_SET, .b = complete && final };
	*v++ = (struct value){ .state = VALUE_SET, .b = final };
}

void evictions_close(struct evictions *e)
{
	e->state.open = false;
}

void evictions_saved(struct evictions *e)
{
	e->n_unsaved = 0;
	e->restart = false;
	e->save_remembered = false;
}

void evictions_restore(struct evictions *e, const struct evictions_state *state)
{
	e->state = *state;
	e->restart = false;
	e->save_remembered = false;
}

void evictions_restore_entry(struct evictions *e, const struct evictions_entry *entry)
{
	entry_add(e, entry);
}
