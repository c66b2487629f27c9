/* See counters.h. */
#include <stdlib.h>
#include <string.h>

#include "counters.h"

#define PEAK_PERIOD_NS 15000000000ULL

/* A node that started so long ago, in seconds, may have peers; a new one is told sooner. */
#define NEW_NODE_S 2

const char *const removal_reasons[] = { "expiry",   "sizelimit", "reorg", "block",
					"conflict", "replaced",	 "other" };
_Static_assert(sizeof(removal_reasons) / sizeof(char *) == N_REMOVAL_REASONS, "names");

const char *const connection_types[] = { "inbound",	      "outbound-full-relay",
					 "block-relay-only",  "manual",
					 "addr-fetch",	      "feeler",
					 "private-broadcast", "other" };
_Static_assert(sizeof(connection_types) / sizeof(char *) == N_CONNECTION_TYPES, "names");

const char *const network_names[] = {
	"not_publicly_routable", "ipv4", "ipv6", "onion", "i2p", "cjdns", "internal", "other"
};
_Static_assert(sizeof(network_names) / sizeof(char *) == N_NETWORKS, "names");

/* The node's FlushStateMode. */
const char *const flush_modes[] = { "none",   "if_needed",   "periodic",
				    "always", "forced_sync", "other" };
_Static_assert(sizeof(flush_modes) / sizeof(char *) == N_FLUSH_MODES, "names");

/* Every message of the P2P protocol that Bitcoin Core knows or knew. */
const char *const message_types[] = {
	"version",    "verack",	      "addr",	     "addrv2",	    "sendaddrv2",  "inv",
	"getdata",    "merkleblock",  "getblocks",   "getheaders",  "tx",	   "headers",
	"block",      "getaddr",      "mempool",     "ping",	    "pong",	   "notfound",
	"filterload", "filteradd",    "filterclear", "sendheaders", "feefilter",   "sendcmpct",
	"cmpctblock", "getblocktxn",  "blocktxn",    "getcfilters", "cfilter",	   "getcfheaders",
	"cfheaders",  "getcfcheckpt", "cfcheckpt",   "wtxidrelay",  "sendtxrcncl", "reject",
	"alert",      "other",
};
#define N_MESSAGE_TYPES (sizeof(message_types) / sizeof(char *))
_Static_assert(N_MESSAGE_TYPES <= MAX_MESSAGE_TYPES, "room");

unsigned int message_types_count(void)
{
	return N_MESSAGE_TYPES;
}

enum rejection {
	REJECTED_MISSING_INPUTS,
	REJECTED_KNOWN,
	REJECTED_FEE,
	REJECTED_REPLACEMENT,
	REJECTED_CHAIN,
	REJECTED_NONFINAL,
	REJECTED_STANDARD,
	REJECTED_SCRIPT,
	REJECTED_INVALID,
	REJECTED_PACKAGE,
	REJECTED_OTHER,
};

const char *const rejection_classes[] = {
	[REJECTED_MISSING_INPUTS] = "missing_inputs",
	[REJECTED_KNOWN] = "known",
	[REJECTED_FEE] = "fee",
	[REJECTED_REPLACEMENT] = "replacement",
	[REJECTED_CHAIN] = "chain_limit",
	[REJECTED_NONFINAL] = "non_final",
	[REJECTED_STANDARD] = "nonstandard",
	[REJECTED_SCRIPT] = "script",
	[REJECTED_INVALID] = "invalid",
	[REJECTED_PACKAGE] = "package",
	[REJECTED_OTHER] = "other",
};
_Static_assert(sizeof(rejection_classes) / sizeof(char *) == N_REJECTION_CLASSES, "names");

/* Beginnings of reasons, Core v25 to v31; the first that fits counts, so the longer one of two with
 * the same beginning comes first. */
static const struct {
	const char *prefix;
	enum rejection class;
} rejections[] = {
	{ "bad-txns-inputs-missingorspent", REJECTED_MISSING_INPUTS },
	{ "missing-inputs", REJECTED_MISSING_INPUTS },
	{ "txn-already", REJECTED_KNOWN },
	{ "txn-same-nonwitness", REJECTED_KNOWN },
	{ "min relay fee", REJECTED_FEE },
	{ "mempool min fee", REJECTED_FEE },
	{ "mempool full", REJECTED_FEE },
	{ "max-fee", REJECTED_FEE },
	{ "max feerate", REJECTED_FEE },
	{ "insufficient fee", REJECTED_REPLACEMENT },
	{ "replacement", REJECTED_REPLACEMENT },
	{ "too many potential replacements", REJECTED_REPLACEMENT },
	{ "bip125", REJECTED_REPLACEMENT },
	{ "txn-mempool-conflict", REJECTED_REPLACEMENT },
	{ "bad-txns-spends-conflicting-tx", REJECTED_REPLACEMENT },
	{ "too-long-mempool-chain", REJECTED_CHAIN },
	{ "too-large-cluster", REJECTED_CHAIN },
	{ "TRUC-violation", REJECTED_CHAIN },
	{ "non-final", REJECTED_NONFINAL },
	{ "non-BIP68-final", REJECTED_NONFINAL },
	{ "bad-txns-nonfinal", REJECTED_NONFINAL },
	{ "bad-txns-premature-spend", REJECTED_NONFINAL },
	{ "version", REJECTED_STANDARD },
	{ "tx-size", REJECTED_STANDARD },
	{ "scriptsig-", REJECTED_STANDARD },
	{ "scriptpubkey", REJECTED_STANDARD },
	{ "datacarrier", REJECTED_STANDARD },
	{ "bare-multisig", REJECTED_STANDARD },
	{ "multi-op-return", REJECTED_STANDARD },
	{ "dust", REJECTED_STANDARD },
	{ "unspent-dust", REJECTED_STANDARD },
	{ "missing-ephemeral-spends", REJECTED_STANDARD },
	{ "bad-witness-nonstandard", REJECTED_STANDARD },
	{ "bad-txns-nonstandard-inputs", REJECTED_STANDARD },
	{ "bad-txns-too-many-sigops", REJECTED_STANDARD },
	{ "non-mandatory-script-verify-flag", REJECTED_SCRIPT },
	{ "mandatory-script-verify-flag", REJECTED_SCRIPT },
	{ "mempool-script-verify-flag", REJECTED_SCRIPT },
	{ "block-script-verify-flag", REJECTED_SCRIPT },
	{ "package", REJECTED_PACKAGE },
	{ "conflict-in-package", REJECTED_PACKAGE },
	{ "transaction failed", REJECTED_PACKAGE },
	{ "bad-", REJECTED_INVALID },
	{ "coinbase", REJECTED_INVALID },
};

unsigned int rejection_class(const char *reason, size_t len)
{
	for (size_t i = 0; i < sizeof(rejections) / sizeof(rejections[0]); i++) {
		size_t n = strlen(rejections[i].prefix);

		if (len >= n && !memcmp(reason, rejections[i].prefix, n))
			return rejections[i].class;
	}
	return REJECTED_OTHER;
}

/* The number of a text in a set of n names, the last of which stands for all others. */
static unsigned int set_find(const char *const *names, unsigned int n, const char *text, size_t len)
{
	for (unsigned int i = 0; i + 1 < n; i++)
		if (!strncmp(names[i], text, len) && !names[i][len])
			return i;
	return n - 1;
}

unsigned int message_type_number(const char *type, size_t len)
{
	/* Most messages are of a few types; a look at the first character passes over the rest. */
	for (unsigned int i = 0; len && i < N_MESSAGE_TYPES - 1; i++)
		if (*message_types[i] == *type && !strncmp(message_types[i], type, len) &&
		    !message_types[i][len])
			return i;
	return N_MESSAGE_TYPES - 1;
}

const uint64_t duration_bounds[N_BOUNDS] = {
	1000000,     2500000,	  5000000,     10000000,     25000000,	 50000000,
	100000000,   250000000,	  500000000,   1000000000,   2500000000, 5000000000,
	10000000000, 30000000000, 60000000000, 300000000000,
};

static void durations_add(struct durations *d, int64_t ns)
{
	uint64_t length = ns > 0 ? (uint64_t)ns : 0;
	unsigned int i = 0;

	while (i < N_BOUNDS && length > duration_bounds[i])
		i++;
	d->buckets[i]++;
	d->sum_ns += length;
}

/* ---- which event counts how ---- */

enum kind {
	KIND_NONE,
	KIND_ADDED,
	KIND_REMOVED,
	KIND_REPLACED,
	KIND_REJECTED,
	KIND_MESSAGE_IN,
	KIND_MESSAGE_OUT,
	KIND_OPENED_IN,
	KIND_OPENED_OUT,
	KIND_CLOSED,
	KIND_EVICTED,
	KIND_MISBEHAVING,
	KIND_BLOCK,
	KIND_LIST,
	KIND_FLUSH,
	KIND_COIN_ADDED,
	KIND_COIN_SPENT,
	KIND_COIN_UNCACHED,
	KIND_STARTED,
	KIND_EXITED,
};

static const struct {
	const char *topic;
	enum kind kind;
	const char *fields[4];
} rows[] = {
	{ "mempool.added", KIND_ADDED, { "vsize", "fee" } },
	{ "mempool.removed", KIND_REMOVED, { "vsize", "fee", "reason" } },
	{ "mempool.replaced", KIND_REPLACED, { "vsize", "fee", "replacement_package" } },
	{ "mempool.rejected", KIND_REJECTED, { "reason" } },
	{ "net.inbound_message", KIND_MESSAGE_IN, { "msg_type", "size" } },
	{ "net.outbound_message", KIND_MESSAGE_OUT, { "msg_type", "size" } },
	{ "net.inbound_connection", KIND_OPENED_IN, { "connection_type", "network", "count" } },
	{ "net.outbound_connection", KIND_OPENED_OUT, { "connection_type", "network", "count" } },
	{ "net.closed_connection", KIND_CLOSED, { "connection_type", "network" } },
	{ "net.evicted_inbound_connection", KIND_EVICTED, { "network" } },
	{ "net.misbehaving_connection", KIND_MISBEHAVING, { NULL } },
	{ "validation.block_connected",
	  KIND_BLOCK,
	  { "duration_ns", "height", "n_tx", "n_inputs" } }, /* sigops follow n_inputs */
	{ "block.evictions", KIND_LIST, { "unseen", "reorg", "complete", "final" } },
	{ "utxocache.flush", KIND_FLUSH, { "duration_ns", "mode", "coins", "memory" } },
	{ "utxocache.add", KIND_COIN_ADDED, { NULL } },
	{ "utxocache.spent", KIND_COIN_SPENT, { NULL } },
	{ "utxocache.uncache", KIND_COIN_UNCACHED, { NULL } },
	{ "node.started", KIND_STARTED, { "started_at" } },
	{ "node.exited", KIND_EXITED, { NULL } },
};

static int8_t field_place(const struct event_desc *event, const char *name)
{
	for (unsigned int f = 0; f < event->n_fields && name; f++)
		if (!strcmp(event->fields[f].name, name))
			return (int8_t)f;
	return -1;
}

struct counters *counters_new(size_t n,
			      const struct event_desc *(*event)(const void *arg, size_t i),
			      const void *arg)
{
	struct counters *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	c->connections[0] = c->connections[1] = c->height = c->cache_coins = c->cache_memory = -1;
	for (size_t i = 0; i < n; i++) {
		const struct event_desc *e = event(arg, i);

		for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
			if (strcmp(e->topic, rows[r].topic))
				continue;
			c->kind[i] = rows[r].kind;
			for (int f = 0; f < 4; f++)
				c->field[i][f] = field_place(e, rows[r].fields[f]);
		}
	}
	return c;
}

/* ---- counting ---- */

/* A number that could not be read, or is negative where none should be, adds nothing: a counter
 * never goes back. */
static uint64_t amount(const struct value *v)
{
	return v && v->state == VALUE_SET && v->i > 0 ? v->u : 0;
}

static int64_t gauge(const struct value *v, int64_t before)
{
	return v && v->state == VALUE_SET && v->i >= 0 ? v->i : before;
}

static unsigned int text_in(const char *const *names, unsigned int n, const struct value *v)
{
	return v && v->state == VALUE_SET ? set_find(names, n, v->bytes.data, v->bytes.len) : n - 1;
}

static unsigned int network_in(const struct value *v)
{
	return v && v->state == VALUE_SET && v->u < N_NETWORKS - 1 ? (unsigned int)v->u
								   : N_NETWORKS - 1;
}

static void sum_add(struct sum *s, const struct value *vsize, const struct value *fee)
{
	s->count++;
	s->vsize += amount(vsize);
	s->fees += amount(fee);
}

static void message_count(struct traffic *types, const struct value *type, const struct value *size)
{
	struct traffic *t = &types[N_MESSAGE_TYPES - 1];

	if (type && type->state == VALUE_SET)
		t = &types[message_type_number(type->bytes.data, type->bytes.len)];
	t->count++;
	t->bytes += amount(size);
}

static void block_count(struct counters *c, uint64_t time_us, const struct value *const at[4])
{
	durations_add(&c->block_connect, at[0] && at[0]->state == VALUE_SET ? at[0]->i : 0);
	c->height = gauge(at[1], c->height);
	c->transactions += amount(at[2]);
	c->inputs += amount(at[3]);
	c->sigops += at[3] ? amount(at[3] + 1) : 0;
	c->last_block_us = time_us;
}

/* A list that is told early comes again. */
static void list_count(struct counters *c, const struct value *const at[4])
{
	if (!at[3]->b)
		return;
	c->lists[at[2]->b]++;
	c->unseen += amount(at[0]);
	c->reorganised += amount(at[1]);
}

static void flush_count(struct counters *c, const struct value *const at[4])
{
	unsigned int mode = N_FLUSH_MODES - 1;

	if (at[1] && at[1]->state == VALUE_SET && at[1]->u < N_FLUSH_MODES - 1)
		mode = (unsigned int)at[1]->u;
	durations_add(&c->flush, at[0] && at[0]->state == VALUE_SET ? at[0]->i : 0);
	c->flushes[mode]++;
	c->cache_coins = gauge(at[2], c->cache_coins);
	c->cache_memory = gauge(at[3], c->cache_memory);
}

static void opened_count(struct counters *c, int direction, const struct value *const at[4])
{
	c->opened[text_in(connection_types, N_CONNECTION_TYPES, at[0])][network_in(at[1])]++;
	c->connections[direction] = gauge(at[2], c->connections[direction]);
}

static void closed_count(struct counters *c, const struct value *const at[4])
{
	unsigned int type = text_in(connection_types, N_CONNECTION_TYPES, at[0]);
	int64_t *open = &c->connections[type != 0];

	c->closed[type][network_in(at[1])]++;
	if (*open > 0)
		(*open)--;
}

/* The node begins with no peers and an empty cache. Who was found running has peers that nobody has
 * counted here. */
static void node_count(struct counters *c, uint64_t time_us, const struct value *started_at)
{
	bool found = !started_at || started_at->state != VALUE_SET ||
		     time_us / 1000000 > started_at->u + NEW_NODE_S;

	c->started++;
	c->connections[0] = c->connections[1] = found ? -1 : 0;
	c->cache_coins = c->cache_memory = -1;
}

/* The bridge makes these itself, some time after what they tell. */
static bool is_derived(uint8_t kind)
{
	return kind == KIND_LIST || kind == KIND_STARTED || kind == KIND_EXITED;
}

void counters_event(struct counters *c, unsigned int topic, uint64_t time_us,
		    const struct value *values)
{
	const struct value *at[4];

	for (int f = 0; f < 4; f++)
		at[f] = c->field[topic][f] < 0 ? NULL : &values[c->field[topic][f]];
	if (!is_derived(c->kind[topic])) {
		c->last_event_us = time_us;
		if (c->n_pending == MAX_PENDING)
			counters_sent(c, time_us);
		c->pending[c->n_pending++] = time_us;
	}
	switch ((enum kind)c->kind[topic]) {
	case KIND_NONE:
		return;
	case KIND_ADDED:
		sum_add(&c->added, at[0], at[1]);
		return;
	case KIND_REMOVED:
		sum_add(&c->removed[text_in(removal_reasons, N_REMOVAL_REASONS, at[2])], at[0],
			at[1]);
		return;
	case KIND_REPLACED:
		sum_add(&c->replaced, at[0], at[1]);
		c->replaced_by[at[2] && at[2]->state == VALUE_SET]++;
		return;
	case KIND_REJECTED:
		c->rejected[at[0]->state == VALUE_SET
				    ? rejection_class(at[0]->bytes.data, at[0]->bytes.len)
				    : REJECTED_OTHER]++;
		return;
	case KIND_MESSAGE_IN:
		message_count(c->messages[0], at[0], at[1]);
		return;
	case KIND_MESSAGE_OUT:
		message_count(c->messages[1], at[0], at[1]);
		return;
	case KIND_OPENED_IN:
		opened_count(c, 0, at);
		return;
	case KIND_OPENED_OUT:
		opened_count(c, 1, at);
		return;
	case KIND_CLOSED:
		closed_count(c, at);
		return;
	case KIND_EVICTED:
		c->evicted[network_in(at[0])]++;
		return;
	case KIND_MISBEHAVING:
		c->misbehaving++;
		return;
	case KIND_BLOCK:
		block_count(c, time_us, at);
		return;
	case KIND_LIST:
		list_count(c, at);
		return;
	case KIND_FLUSH:
		flush_count(c, at);
		return;
	case KIND_COIN_ADDED:
		c->coins_added++;
		return;
	case KIND_COIN_SPENT:
		c->coins_spent++;
		return;
	case KIND_COIN_UNCACHED:
		c->coins_uncached++;
		return;
	case KIND_STARTED:
		node_count(c, time_us, at[0]);
		return;
	case KIND_EXITED:
		c->exited++;
		c->connections[0] = c->connections[1] = 0;
		return;
	}
}

void counters_sent(struct counters *c, uint64_t now)
{
	for (size_t i = 0; i < c->n_pending; i++) {
		uint64_t us = now > c->pending[i] ? now - c->pending[i] : 0;
		uint64_t units = us ? (us * 1000 - 1) / LATENCY_FIRST_NS : 0;
		unsigned int bucket = units ? 64 - (unsigned int)__builtin_clzll(units) : 0;

		c->latency[bucket < N_LATENCIES ? bucket : N_LATENCIES]++;
		c->latency_sum_us += us;
	}
	c->n_pending = 0;
}

void counters_ring(struct counters *c, enum socket_id socket, uint64_t bytes, uint64_t now_ns)
{
	if (now_ns - c->peak_since_ns >= PEAK_PERIOD_NS) {
		bool stale = now_ns - c->peak_since_ns >= 2 * PEAK_PERIOD_NS;

		for (enum socket_id id = 0; id < N_SOCKETS; id++) {
			c->ring_peaks[id][1] = stale ? 0 : c->ring_peaks[id][0];
			c->ring_peaks[id][0] = 0;
		}
		c->peak_since_ns = now_ns;
	}
	if (bytes > c->ring_peaks[socket][0])
		c->ring_peaks[socket][0] = bytes;
}

uint64_t counters_ring_peak(const struct counters *c, enum socket_id socket)
{
	const uint64_t *p = c->ring_peaks[socket];

	return p[0] > p[1] ? p[0] : p[1];
}
