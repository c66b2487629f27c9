/* evictions.c: from sequences of records to lists. Each row is a story of the low ring, told in
 * letters, and what is published for it. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../bridge/evictions.h"

/* Records:
 *   C<hash>:<height>:<n_tx>  block_connected; ? = could not be read
 *   b c   removed(block), removed(conflict)       u   removed, reason unreadable
 *   B     removed(block) without a txid           r   removed(replaced)
 *   a j p added, rejected, replaced               m f s  connection, flush, coin selection
 * Around them:
 *   L     the ring lost something before the next record
 *   l     the loss is found by its counter, no record follows (the next status)
 *   o     the next record carries an older count of losses
 *   D     the ring is drained and has been quiet for long, d: for a short time
 *   S     the clock is set back by an hour
 *   X     the process has exited        K  the bridge is killed, a successor goes on
 *
 * Expected: for each list <height>:<block>/<conflicts>/<unseen>/<reorg>/<flags>, where the flags
 * are R repeat, C complete, F final; then "|" and the height of each removal by a block, ? = nil.
 */
static const struct {
	const char *name, *records, *expected;
} rows[] = {
	{ "whole by count", "CA:100:4 b b b", "100:3/0/0/0/CF|100 100 100" },
	{ "a coinbase alone", "CA:100:1", "100:0/0/0/0/CF|" },
	{ "ended by added", "CA:100:4 b b a", "100:2/0/1/0/CF|100 100" },
	{ "ended by rejected", "CA:100:4 b j", "100:1/0/2/0/CF|100" },
	{ "ended by replaced", "CA:100:4 b p", "100:1/0/2/0/CF|100" },
	{ "ended by another removal", "CA:100:4 b r", "100:1/0/2/0/CF|100" },
	{ "ended by the next block", "CA:100:4 b CB:101:1", "100:1/0/2/0/CF 101:0/0/0/0/CF|100" },
	{ "neutral events prove nothing", "CA:100:3 m f s b m f s b", "100:2/0/0/0/CF|100 100" },
	{ "conflicts", "CA:100:3 b c c a", "100:1/2/1/0/CF|100 100 100" },
	{ "conflicts do not count", "CA:100:3 c c b b", "100:2/2/0/0/CF|100 100 100 100" },
	{ "unseen alone", "CA:100:3 a", "100:0/0/2/0/CF|" },
	{ "no more than the block has", "CA:100:2 b b", "100:1/0/0/0/CF|100 ?" },
	{ "removals before any block", "b c a", "|? ?" },
	{ "removals after the end", "CA:100:3 b a b", "100:1/0/1/0/CF|100 ?" },

	{ "a loss ends it", "CA:100:4 b L b b", "100:1/0/2/0/F|100 ? ?" },
	{ "a loss before the end marker", "CA:100:4 b b L a", "100:2/0/1/0/F|100 100" },
	{ "a loss between blocks", "CA:100:2 b L CB:101:2 b",
	  "100:1/0/0/0/CF 101:1/0/0/0/CF|100 101" },
	{ "a loss with the next block", "CA:100:3 b L CB:101:2 b",
	  "100:1/0/1/0/F 101:1/0/0/0/CF|100 101" },
	{ "a loss that no record told yet", "CA:100:4 b l b b", "100:1/0/2/0/F|100 ? ?" },
	{ "an older count is no loss", "L CA:100:3 b o b", "100:2/0/0/0/CF|100 100" },
	{ "a loss before it", "L b CA:100:2 b", "100:1/0/0/0/CF|? 100" },

	{ "an unreadable txid", "CA:100:3 B b", "100:2/0/0/0/F|100 100" },
	{ "an unreadable reason may be anything", "CA:100:3 b u b", "100:2/0/0/0/F|100 100" },
	{ "an unreadable hash", "C?:100:2 b", "100:1/0/0/0/F|100" },
	{ "an unreadable height", "CA:?:2 b", "?:1/0/0/0/F|?" },
	{ "an unreadable count", "CA:100:? b b a", "100:2/0/?/0/F|100 100" },

	{ "early and final", "CA:100:4 b D b b", "100:1/0/2/0/ 100:3/0/0/0/CF|100 100 100" },
	{ "early once", "CA:100:4 b D D D a", "100:1/0/2/0/ 100:1/0/2/0/CF|100" },
	{ "early twice", "CA:100:5 b D b D a", "100:1/0/3/0/ 100:2/0/2/0/ 100:2/0/2/0/CF|100 100" },
	{ "not so early", "CA:100:4 b d a", "100:1/0/2/0/CF|100" },
	{ "early, the clock set back", "CA:100:4 b S d b b",
	  "100:1/0/2/0/ 100:3/0/0/0/CF|100 100 100" },
	{ "early, then a loss", "CA:100:4 b D L b", "100:1/0/2/0/ 100:1/0/2/0/F|100 ?" },
	{ "early before the first", "CA:100:2 D b", "100:0/0/1/0/ 100:1/0/0/0/CF|100" },
	{ "nothing open, nothing early", "CA:100:2 b D a D", "100:1/0/0/0/CF|100" },
	{ "exit ends it", "CA:100:4 b X", "100:1/0/2/0/CF|100" },
	{ "exit after an unreadable one", "CA:100:4 B X", "100:1/0/2/0/F|100" },

	{ "reorg", "CA:100:1 CB:101:1 CC:102:1 CD:101:1 CE:102:1 CF:103:1",
	  "100:0/0/0/0/CF 101:0/0/0/0/CF 102:0/0/0/0/CF 101:0/0/0/2/CF 102:0/0/0/0/CF "
	  "103:0/0/0/0/CF|" },
	{ "reorg of the tip", "CA:100:1 CB:100:1", "100:0/0/0/0/CF 100:0/0/0/1/CF|" },
	{ "as deep as reorgs go", "CA:1100:1 CB:101:1", "1100:0/0/0/0/CF 101:0/0/0/1000/CF|" },
	{ "another chain, validated in the background",
	  "CA:9000:1 CB:50:1 CC:51:1 CD:9001:1 CE:52:1 "
	  "CF:53:1 CG:9002:1 CH:9002:1 CI:9003:1 CJ:54:1 CK:55:1",
	  "9000:0/0/0/0/CF 50:0/0/0/0/CF 51:0/0/0/0/CF 9001:0/0/0/0/CF 52:0/0/0/0/CF "
	  "53:0/0/0/0/CF 9002:0/0/0/0/CF 9002:0/0/0/1/CF 9003:0/0/0/0/CF 54:0/0/0/0/CF "
	  "55:0/0/0/0/CF|" },
	{ "a reindex", "CA:9000:1 X CB:1:1 CC:2:1 CD:3:1",
	  "9000:0/0/0/0/CF 1:0/0/0/0/CF 2:0/0/0/0/CF 3:0/0/0/0/CF|" },
	{ "reorg where a reindex has caught up", "CA:9000:1 X CB:1:1 CC:9000:1 CD:9001:1 CE:9001:1",
	  "9000:0/0/0/0/CF 1:0/0/0/0/CF 9000:0/0/0/0/CF 9001:0/0/0/0/CF 9001:0/0/0/1/CF|" },
	{ "repeat", "CA:100:1 CB:101:1 CA:100:1 CB:101:1 CC:102:1",
	  "100:0/0/0/0/CF 101:0/0/0/0/CF 100:0/0/0/0/RCF 101:0/0/0/0/RCF 102:0/0/0/0/CF|" },
	{ "back to the old branch", "CA:100:1 CB:100:1 CA:100:1",
	  "100:0/0/0/0/CF 100:0/0/0/1/CF 100:0/0/0/0/RCF|" },
	{ "unreadable heights do not move the tip", "CA:100:1 CB:?:1 CC:101:1",
	  "100:0/0/0/0/CF ?:0/0/0/0/F 101:0/0/0/0/CF|" },
	{ "remembered over the node's restart", "CA:100:1 X CA:100:1",
	  "100:0/0/0/0/CF 100:0/0/0/0/RCF|" },

	{ "killed in the middle", "CA:100:4 b K b b", "100:3/0/0/0/CF|100 100 100" },
	{ "killed twice in one block", "CA:100:5 b K b K b b", "100:4/0/0/0/CF|100 100 100 100" },
	{ "killed again at once", "CA:100:4 b b K K b", "100:3/0/0/0/CF|100 100 100" },
	{ "killed before the first", "CA:100:2 K b", "100:1/0/0/0/CF|100" },
	{ "killed with conflicts", "CA:100:4 b c K c b K a", "100:2/2/1/0/CF|100 100 100 100" },
	{ "killed after an unreadable one", "CA:100:3 B K b", "100:2/0/0/0/F|100 100" },
	{ "killed after the early list", "CA:100:4 b D K D b b",
	  "100:1/0/2/0/ 100:3/0/0/0/CF|100 100 100" },
	{ "killed between blocks", "CA:100:2 b K CB:101:2 b K CA:100:1",
	  "100:1/0/0/0/CF 101:1/0/0/0/CF 100:0/0/0/0/RCF|100 101" },
	{ "killed, then a loss", "CA:100:4 b K L b b", "100:1/0/2/0/F|100 ? ?" },
	{ "an old list does not come back", "CA:100:3 b a K CB:101:3 K b b",
	  "100:1/0/1/0/CF 101:2/0/0/0/CF|100 101 101" },
};

static int failures;

/* What the journal has of it. */
struct saved {
	struct evictions_state state;
	struct evictions_entry entries[64];
	size_t n;
	uint8_t remembered[EVICTIONS_REMEMBERED][32];
};

struct story {
	struct evictions e;
	struct saved saved;
	char lists[1024], heights[256];
	uint64_t n, now_ns, ring_lost;
	int n_removals;
};

static const struct value nil = { .state = VALUE_NIL };

static struct value text(const char *string)
{
	return (struct value){ .state = VALUE_SET, .bytes = { string, strlen(string) } };
}

static struct value number(const char *string)
{
	if (*string == '?')
		return nil;
	return (struct value){ .state = VALUE_SET, .u = strtoull(string, NULL, 10) };
}

static void tell(struct story *s, bool complete, bool final)
{
	struct value v[MAX_FIELDS];
	char height[24] = "?", unseen[24] = "?";
	const struct removals *conflicts;

	evictions_values(&s->e, complete, final, v);
	conflicts = v[8].conflicts;
	if (v[1].state == VALUE_SET)
		snprintf(height, sizeof(height), "%lu", v[1].u);
	if (v[9].state == VALUE_SET)
		snprintf(unseen, sizeof(unseen), "%lu", v[9].u);
	snprintf(s->lists + strlen(s->lists), sizeof(s->lists) - strlen(s->lists),
		 "%s%s:%zu/%zu/%s/%lu/%s%s%s", *s->lists ? " " : "", height, v[4].list.count,
		 conflicts->n, unseen, v[10].u, v[11].b ? "R" : "", v[12].b ? "C" : "",
		 v[13].b ? "F" : "");
	s->e.state.told = true;
	if (final)
		evictions_close(&s->e);
}

static void note_height(struct story *s, struct value height)
{
	char *at = s->heights + strlen(s->heights);
	size_t left = sizeof(s->heights) - strlen(s->heights);

	if (height.state == VALUE_SET)
		snprintf(at, left, "%s%lu", *s->heights ? " " : "", height.u);
	else
		snprintf(at, left, "%s?", *s->heights ? " " : "");
}

/* As the bridge does it with each record of the low ring. */
static void record(struct story *s, const char *topic, struct value *values, uint64_t ring_lost)
{
	const struct event_desc *event = catalogue_find(topic, strlen(topic));
	enum eviction_kind kind = evictions_event_kind(event);
	bool complete;

	if (kind == EVICTION_UNKNOWN)
		kind = evictions_removed_kind(values);

	if (evictions_ended(&s->e, kind, ring_lost, &complete))
		tell(s, complete, true);
	if (kind == EVICTION_BLOCK || kind == EVICTION_CONFLICT)
		note_height(s, evictions_height(&s->e, kind));
	if (evictions_add(&s->e, kind, values, ++s->n, 5, s->now_ns))
		tell(s, evictions_sound(&s->e), true);
}

static void connected(struct story *s, const char *word, uint64_t ring_lost)
{
	uint8_t hash[32];
	char height[16], n_tx[16];
	struct value values[MAX_FIELDS] = { nil, nil, nil, nil, nil, nil };

	assert(sscanf(word + 2, ":%15[^:]:%15s", height, n_tx) == 2);
	memset(hash, word[1], sizeof(hash));
	if (word[1] != '?')
		values[0] = (struct value){ .state = VALUE_SET, .bytes = { hash, 32 } };
	values[1] = number(height);
	values[2] = number(n_tx);
	record(s, "validation.block_connected", values, ring_lost);
}

static void removed(struct story *s, char letter, uint64_t ring_lost)
{
	uint8_t txid[32] = { 0 };
	struct value values[MAX_FIELDS] = { { 0 } };

	txid[0] = (uint8_t)++s->n_removals;
	values[0] =
		letter == 'B' ? nil : (struct value){ .state = VALUE_SET, .bytes = { txid, 32 } };
	values[1] = text(letter == 'c' ? "conflict" : letter == 'r' ? "replaced" : "block");
	if (letter == 'u')
		values[1] = nil;
	values[2] = (struct value){ .state = VALUE_SET, .u = 200 + txid[0] };
	values[3] = (struct value){ .state = VALUE_SET, .i = -5 * txid[0] };
	values[4] = (struct value){ .state = VALUE_SET, .u = 1000 + txid[0] };
	record(s, "mempool.removed", values, ring_lost);
}

static const char *topic_of(char letter)
{
	switch (letter) {
	case 'a':
		return "mempool.added";
	case 'j':
		return "mempool.rejected";
	case 'p':
		return "mempool.replaced";
	case 'm':
		return "net.inbound_connection";
	case 'f':
		return "utxocache.flush";
	case 's':
		return "coin_selection.selected_coins";
	}
	printf("FAIL: no such letter: %c\n", letter);
	exit(1);
}

static void save(struct story *s)
{
	struct saved *saved = &s->saved;

	saved->state = s->e.state;
	if (s->e.restart)
		saved->n = 0;
	assert(saved->n + s->e.n_unsaved <= 64);
	for (size_t i = 0; i < s->e.n_unsaved; i++)
		saved->entries[saved->n++] = s->e.unsaved[i];
	if (s->e.save_remembered)
		memcpy(saved->remembered, s->e.remembered, sizeof(saved->remembered));
	evictions_saved(&s->e);
}

static void killed(struct story *s)
{
	evictions_free(&s->e);
	evictions_init(&s->e, true);
	evictions_restore(&s->e, &s->saved.state);
	memcpy(s->e.remembered, s->saved.remembered, sizeof(s->e.remembered));
	for (size_t i = 0; i < s->saved.n; i++)
		evictions_restore_entry(&s->e, &s->saved.entries[i]);
}

static void step(struct story *s, const char *word, uint64_t ring_lost)
{
	struct value values[MAX_FIELDS] = { { 0 } };
	bool complete;

	switch (*word) {
	case 'C':
		connected(s, word, ring_lost);
		break;
	case 'b':
	case 'B':
	case 'c':
	case 'u':
	case 'r':
		removed(s, *word, ring_lost);
		break;
	case 'l':
		s->ring_lost++;
		if (evictions_ended(&s->e, EVICTION_NEUTRAL, s->ring_lost, &complete))
			tell(s, complete, true);
		break;
	case 'D':
	case 'd':
		s->now_ns += *word == 'D' ? EVICTIONS_QUIET_NS + 1 : EVICTIONS_QUIET_NS / 2;
		if (evictions_due(&s->e, s->now_ns))
			tell(s, false, false);
		break;
	case 'S':
		s->now_ns -= 3600 * 1000000000ULL;
		break;
	case 'X':
		if (s->e.state.open)
			tell(s, evictions_sound(&s->e), true);
		break;
	case 'K':
		killed(s);
		break;
	default:
		record(s, topic_of(*word), values, ring_lost);
	}
}

static void play(struct story *s, const char *records)
{
	char copy[512], *at = NULL;
	bool older = false;

	snprintf(copy, sizeof(copy), "%s", records);
	memset(s, 0, sizeof(*s));
	evictions_init(&s->e, true);
	s->now_ns = 7200 * 1000000000ULL;
	for (char *word = strtok_r(copy, " ", &at); word; word = strtok_r(NULL, " ", &at)) {
		s->now_ns += 1000;
		if (*word == 'L') {
			s->ring_lost++;
		} else if (*word == 'o') {
			older = true;
		} else {
			step(s, word, older ? s->ring_lost - 1 : s->ring_lost);
			older = false;
			save(s);
		}
	}
}

/* The content of the lists, and that missing values are marked where they belong. */
static void test_content(void)
{
	static struct story s;
	struct value v[MAX_FIELDS];
	const uint8_t(*txids)[32];
	const struct removals *conflicts;

	play(&s, "CA:100:9 b c B c K b");
	evictions_values(&s.e, true, false, v);
	txids = v[4].list.items;
	conflicts = v[8].conflicts;
	if (v[4].list.count != 3 || txids[0][0] != 1 || txids[2][0] != 5 ||
	    ((const int64_t *)v[5].list.items)[2] != -25 ||
	    ((const uint64_t *)v[6].list.items)[2] != 205 ||
	    ((const uint64_t *)v[7].list.items)[0] != 1001 || v[4].list.missing[0] ||
	    v[4].list.missing[1] != MISSING_TXID || v[4].list.missing[2]) {
		printf("FAIL content: the block's transactions\n");
		failures++;
	}
	if (conflicts->n != 2 || conflicts->txids[0][0] != 2 || conflicts->txids[1][0] != 4 ||
	    conflicts->after[0] != 1 || conflicts->after[1] != 2 || conflicts->fees[1] != -20) {
		printf("FAIL content: the conflicts\n");
		failures++;
	}
	if (v[3].u != 1 || v[12].b || v[13].b) {
		printf("FAIL content: an early list claims to be complete\n");
		failures++;
	}
	evictions_free(&s.e);
}

/* The memory of hashes is bounded: the oldest is forgotten first. */
static void test_memory(void)
{
	static struct story s;
	char word[32];

	play(&s, "CA:1:1");
	for (int i = 0; i < EVICTIONS_REMEMBERED + 1; i++) {
		uint8_t hash[32] = { 1 };
		struct value values[MAX_FIELDS] = { { .state = VALUE_SET, .bytes = { hash, 32 } } };

		snprintf(word, sizeof(word), "%d", 2 + i);
		memcpy(hash + 1, &i, sizeof(i));
		values[1] = number(word);
		values[2] = number("1");
		s.lists[0] = '\0';
		record(&s, "validation.block_connected", values, 0);
	}
	s.lists[0] = '\0';
	step(&s, "CA:900:1", 0);
	if (strcmp(s.lists, "900:0/0/0/103/CF")) {
		printf("FAIL memory: %s\n", s.lists);
		failures++;
	}
	evictions_free(&s.e);
}

int main(void)
{
	static struct story story;

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		char got[1300];

		play(&story, rows[i].records);
		snprintf(got, sizeof(got), "%s|%s", story.lists, story.heights);
		if (strcmp(got, rows[i].expected)) {
			printf("FAIL %s: %s\n  is        %s\n  should be %s\n", rows[i].name,
			       rows[i].records, got, rows[i].expected);
			failures++;
		}
		evictions_free(&story.e);
	}
	test_content();
	test_memory();
	return failures ? 1 : 0;
}
