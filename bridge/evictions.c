/* See evictions.h. */
#include <stdlib.h>
#include <string.h>

#include "evictions.h"
#include "log.h"

/* Field numbers of the events that a list is made of, in the catalogue's order. */
enum { CONNECTED_HASH, CONNECTED_HEIGHT, CONNECTED_N_TX };
enum { REMOVED_TXID, REMOVED_REASON, REMOVED_VSIZE, REMOVED_FEE, REMOVED_ENTRY_TIME };

void evictions_init(struct evictions *e)
{
	memset(e, 0, sizeof(*e));
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
	memset(e, 0, sizeof(*e));
}

static bool text_is(const struct value *value, const char *text)
{
	return value->state == VALUE_SET && value->bytes.len == strlen(text) &&
	       !memcmp(value->bytes.data, text, value->bytes.len);
}

enum eviction_kind evictions_kind(const struct event_desc *event, const struct value *values)
{
	if (!strcmp(event->topic, "validation.block_connected"))
		return EVICTION_CONNECTED;
	if (!strcmp(event->topic, "mempool.removed")) {
		if (text_is(&values[REMOVED_REASON], "block"))
			return EVICTION_BLOCK;
		if (text_is(&values[REMOVED_REASON], "conflict"))
			return EVICTION_CONFLICT;
		return values[REMOVED_REASON].state == VALUE_SET ? EVICTION_END : EVICTION_UNKNOWN;
	}
	if (!strcmp(event->provider, "mempool") || !strcmp(event->provider, "validation"))
		return EVICTION_END;
	return EVICTION_NEUTRAL;
}

bool evictions_ended(struct evictions *e, enum eviction_kind kind, uint64_t ring_lost,
		     bool *complete)
{
	bool lost = ring_lost > e->ring_lost;
	bool ended;

	/* Counts arrive out of order from several threads: the greatest one is what is known. */
	if (lost) {
		e->ring_lost = ring_lost;
		e->attribution = false;
	}
	if (!e->open)
		return false;
	ended = kind == EVICTION_END || kind == EVICTION_CONNECTED;
	*complete = ended && !lost && !e->faulty;
	return ended || lost;
}

struct value evictions_height(const struct evictions *e, enum eviction_kind kind)
{
	struct value height = { .state = VALUE_ABSENT };

	if (kind == EVICTION_BLOCK || kind == EVICTION_CONFLICT) {
		height = e->height;
		if (!e->open || !e->attribution || height.state != VALUE_SET)
			height.state = VALUE_NIL;
	}
	return height;
}

static void *grow(void *array, size_t n, size_t size)
{
	void *bigger = realloc(array, n * size);

	if (!bigger) {
		log_error("out of memory");
		exit(1);
	}
	return bigger;
}

static void removals_add(struct evictions *e, struct removals *r, size_t *capacity,
			 const struct value *values)
{
	uint8_t missing = 0;
	size_t i = r->n;

	if (i == *capacity) {
		*capacity = *capacity ? 2 * *capacity : 4096;
		r->txids = grow(r->txids, *capacity, sizeof(*r->txids));
		r->fees = grow(r->fees, *capacity, sizeof(*r->fees));
		r->vsizes = grow(r->vsizes, *capacity, sizeof(*r->vsizes));
		r->entry_times = grow(r->entry_times, *capacity, sizeof(*r->entry_times));
		r->after = grow(r->after, *capacity, sizeof(*r->after));
		r->missing = grow(r->missing, *capacity, sizeof(*r->missing));
	}
	if (values[REMOVED_TXID].state == VALUE_SET)
		memcpy(r->txids[i], values[REMOVED_TXID].bytes.data, 32);
	else
		missing |= MISSING_TXID;
	r->fees[i] = values[REMOVED_FEE].i;
	r->vsizes[i] = values[REMOVED_VSIZE].u;
	r->entry_times[i] = values[REMOVED_ENTRY_TIME].u;
	r->after[i] = e->block.n;
	missing |= values[REMOVED_FEE].state == VALUE_SET ? 0 : MISSING_FEE;
	missing |= values[REMOVED_VSIZE].state == VALUE_SET ? 0 : MISSING_VSIZE;
	missing |= values[REMOVED_ENTRY_TIME].state == VALUE_SET ? 0 : MISSING_ENTRY_TIME;
	r->missing[i] = missing;
	e->faulty |= missing != 0;
	r->n++;
}

/* Places the block in the chain: a hash seen before is a repeat (verifychain, reconsiderblock);
 * a height that is not above the last one, with another hash, supersedes what stood there. */
static void chain_place(struct evictions *e)
{
	e->repeat = false;
	e->reorg = 0;
	for (size_t i = 0; e->hash_known && i < e->n_remembered; i++)
		if (!memcmp(e->remembered[i], e->hash, 32))
			e->repeat = true;
	if (e->height.state == VALUE_SET) {
		if (!e->repeat && e->last_height_known && e->height.u <= e->last_height)
			e->reorg = e->last_height - e->height.u + 1;
		e->last_height = e->height.u;
		e->last_height_known = true;
	}
	if (e->hash_known && !e->repeat) {
		memcpy(e->remembered[e->next_remembered], e->hash, 32);
		e->next_remembered = (e->next_remembered + 1) % EVICTIONS_REMEMBERED;
		if (e->n_remembered < EVICTIONS_REMEMBERED)
			e->n_remembered++;
	}
}

static bool is_whole(const struct evictions *e)
{
	return e->n_tx.state == VALUE_SET && e->block.n + 1 >= e->n_tx.u;
}

bool evictions_add(struct evictions *e, enum eviction_kind kind, const struct value *values,
		   uint64_t n, uint32_t pid, uint64_t time_ns)
{
	switch (kind) {
	case EVICTION_CONNECTED:
		e->open = true;
		e->attribution = true;
		e->told = false;
		e->block.n = 0;
		e->conflict.n = 0;
		e->pid = pid;
		e->n_block = n;
		e->hash_known = values[CONNECTED_HASH].state == VALUE_SET;
		if (e->hash_known)
			memcpy(e->hash, values[CONNECTED_HASH].bytes.data, 32);
		e->height = values[CONNECTED_HEIGHT];
		e->n_tx = values[CONNECTED_N_TX];
		e->faulty = !e->hash_known || e->height.state != VALUE_SET ||
			    e->n_tx.state != VALUE_SET;
		chain_place(e);
		break;
	case EVICTION_BLOCK:
		if (!e->open)
			return false;
		removals_add(e, &e->block, &e->block_capacity, values);
		break;
	case EVICTION_CONFLICT:
		if (!e->open)
			return false;
		removals_add(e, &e->conflict, &e->conflict_capacity, values);
		break;
	case EVICTION_UNKNOWN:
		e->faulty = true;
		return false;
	default:
		return false;
	}
	e->told = false;
	e->last_time_ns = time_ns;
	return is_whole(e);
}

bool evictions_due(const struct evictions *e, uint64_t now_ns)
{
	return e->open && !e->told && now_ns > e->last_time_ns + EVICTIONS_QUIET_NS;
}

bool evictions_sound(const struct evictions *e)
{
	return !e->faulty;
}

void evictions_values(const struct evictions *e, bool complete, bool final, struct value *v)
{
	const struct removals *b = &e->block;
	bool count_known = e->n_tx.state == VALUE_SET && e->n_tx.u > b->n;

	*v++ = (struct value){ .state = e->hash_known ? VALUE_SET : VALUE_NIL,
			       .bytes = { e->hash, 32 } };
	*v++ = e->height;
	*v++ = e->n_tx;
	*v++ = (struct value){ .state = VALUE_SET, .u = e->n_block };
	*v++ = (struct value){ .state = VALUE_SET,
			       .list = { b->txids, b->n, b->missing, MISSING_TXID } };
	*v++ = (struct value){ .state = VALUE_SET,
			       .list = { b->fees, b->n, b->missing, MISSING_FEE } };
	*v++ = (struct value){ .state = VALUE_SET,
			       .list = { b->vsizes, b->n, b->missing, MISSING_VSIZE } };
	*v++ = (struct value){ .state = VALUE_SET,
			       .list = { b->entry_times, b->n, b->missing, MISSING_ENTRY_TIME } };
	*v++ = (struct value){ .state = VALUE_SET, .conflicts = &e->conflict };
	*v++ = (struct value){ .state = count_known ? VALUE_SET : VALUE_NIL,
			       .u = e->n_tx.u - 1 - b->n };
	*v++ = (struct value){ .state = VALUE_SET, .u = e->reorg };
	*v++ = (struct value){ .state = VALUE_SET, .b = e->repeat };
	*v++ = (struct value){ .state = VALUE_SET, .b = complete && final };
	*v++ = (struct value){ .state = VALUE_SET, .b = final };
}

void evictions_close(struct evictions *e)
{
	e->open = false;
}
