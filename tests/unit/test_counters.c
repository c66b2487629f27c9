/* counters.c: closed sets stay closed whatever comes, and sums are exact. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../bridge/counters.h"
#include "check.h"

static const struct event_desc *event_of(const void *arg, size_t i)
{
	return &((const struct event_desc *)arg)[i];
}

static struct counters *make(void)
{
	size_t n;
	const struct event_desc *events = catalogue(&n);

	return counters_new(n, event_of, events);
}

static unsigned int topic(const char *name)
{
	size_t n;

	return (unsigned int)(catalogue_find(name, strlen(name)) - catalogue(&n));
}

static struct value text(const char *s)
{
	return (struct value){ .state = VALUE_SET, .bytes = { s, strlen(s) } };
}

static struct value number(int64_t i)
{
	return (struct value){ .state = VALUE_SET, .i = i };
}

static const struct value nil = { .state = VALUE_NIL };

static void test_message_types(void)
{
	unsigned int other = message_types_count() - 1;

	test_name = "message_types";
	CHECK(!strcmp(message_types[other], "other"));
	for (unsigned int i = 0; i < other; i++) {
		size_t len = strlen(message_types[i]);

		CHECK(len <= 12);
		CHECK(message_type_number(message_types[i], len) == i);
		CHECK(message_type_number(message_types[i], len - 1) != i);
		for (unsigned int j = 0; j < i; j++)
			CHECK(strcmp(message_types[i], message_types[j]));
	}
	CHECK(message_type_number("", 0) == other);
	CHECK(message_type_number("txx", 3) == other);
	CHECK(message_type_number("TX", 2) == other);
	CHECK(message_type_number("\"} 1\n", 5) == other);
	CHECK(message_type_number("other", 5) == other);
}

static void test_rejections(void)
{
	static const struct {
		const char *reason, *class;
	} rows[] = {
		{ "bad-txns-inputs-missingorspent", "missing_inputs" },
		{ "txn-already-in-mempool", "known" },
		{ "txn-already-known", "known" },
		{ "txn-same-nonwitness-data-in-mempool", "known" },
		{ "min relay fee not met", "fee" },
		{ "mempool min fee not met", "fee" },
		{ "mempool full", "fee" },
		{ "insufficient fee", "replacement" },
		{ "replacement-failed", "replacement" },
		{ "bip125-replacement-disallowed", "replacement" },
		{ "too-long-mempool-chain", "chain_limit" },
		{ "too-large-cluster", "chain_limit" },
		{ "TRUC-violation", "chain_limit" },
		{ "non-final", "non_final" },
		{ "non-BIP68-final", "non_final" },
		{ "bad-txns-premature-spend-of-coinbase", "non_final" },
		{ "dust", "nonstandard" },
		{ "datacarrier", "nonstandard" },
		{ "tx-size-small", "nonstandard" },
		{ "bad-witness-nonstandard", "nonstandard" },
		{ "mempool-script-verify-flag-failed (Signature must be zero)", "script" },
		{ "mandatory-script-verify-flag-failed (x)", "script" },
		{ "bad-txns-in-belowout", "invalid" },
		{ "coinbase", "invalid" },
		{ "package-not-sorted", "package" },
		{ "", "other" },
		{ "something new", "other" },
		{ "\"\\\n{}", "other" },
	};

	test_name = "rejections";
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		const char *class =
			rejection_classes[rejection_class(rows[i].reason, strlen(rows[i].reason))];

		if (strcmp(class, rows[i].class))
			printf("FAIL rejections: %s: %s\n", rows[i].reason, class), failures++;
	}
}

static void test_mempool(void)
{
	struct counters *c = make();
	struct value added[] = { nil, number(200), number(1000) };
	struct value removed[] = { nil, text("sizelimit"), number(150), number(-7), nil, nil };

	test_name = "mempool";
	counters_event(c, topic("mempool.added"), 1, added);
	added[1] = nil;
	counters_event(c, topic("mempool.added"), 2, added);
	CHECK(c->added.count == 2 && c->added.vsize == 200 && c->added.fees == 2000);
	counters_event(c, topic("mempool.removed"), 3, removed);
	CHECK(c->removed[1].count == 1 && c->removed[1].vsize == 150);
	CHECK(c->removed[1].fees == 0); /* a counter never goes back */
	removed[1] = text("sizelimi");
	counters_event(c, topic("mempool.removed"), 3, removed);
	removed[1] = nil;
	counters_event(c, topic("mempool.removed"), 3, removed);
	CHECK(c->removed[N_REMOVAL_REASONS - 1].count == 2);
	CHECK(c->last_event_us == 3);
	free(c);
}

static void test_peers(void)
{
	struct counters *c = make();
	struct value opened[] = { number(1), nil, text("inbound"), number(3), number(9) };
	struct value closed[] = { number(1), nil, text("inbound"), number(3), nil };
	struct value message[] = { number(1), nil, nil, text("inv"), number(61), nil, nil };

	test_name = "peers";
	CHECK(c->connections[0] == -1);
	counters_event(c, topic("net.inbound_connection"), 1, opened);
	CHECK(c->opened[0][3] == 1 && c->connections[0] == 9);
	counters_event(c, topic("net.closed_connection"), 1, closed);
	CHECK(c->closed[0][3] == 1 && c->connections[0] == 8);
	opened[2] = text("a new type");
	opened[3] = number(1 << 30);
	counters_event(c, topic("net.inbound_connection"), 1, opened);
	CHECK(c->opened[N_CONNECTION_TYPES - 1][N_NETWORKS - 1] == 1);
	opened[3] = number(-1);
	counters_event(c, topic("net.inbound_connection"), 1, opened);
	CHECK(c->opened[N_CONNECTION_TYPES - 1][N_NETWORKS - 1] == 2);
	counters_event(c, topic("net.inbound_message"), 1, message);
	counters_event(c, topic("net.outbound_message"), 1, message);
	CHECK(c->messages[0][5].count == 1 && c->messages[0][5].bytes == 61);
	CHECK(c->messages[1][5].count == 1);
	message[3] = nil;
	message[4] = nil;
	counters_event(c, topic("net.inbound_message"), 1, message);
	CHECK(c->messages[0][message_types_count() - 1].count == 1);
	free(c);
}

static void test_node(void)
{
	const uint64_t second = 1000000;
	struct counters *c = make();
	struct value opened[] = { number(1), nil, text("inbound"), number(3), number(9) };
	struct value started[] = { text("/node"), text("00"), number(100), text("v29") };

	test_name = "node";
	counters_event(c, topic("node.started"), 101 * second, started);
	CHECK(c->started == 1 && c->connections[0] == 0 && c->connections[1] == 0);
	/* One that ran before there was anybody to count. */
	counters_event(c, topic("node.started"), 500 * second, started);
	CHECK(c->connections[0] == -1 && c->connections[1] == -1);
	counters_event(c, topic("net.inbound_connection"), 501 * second, opened);
	CHECK(c->connections[0] == 9 && c->connections[1] == -1);
	counters_event(c, topic("node.exited"), 502 * second, started);
	CHECK(c->exited == 1 && c->connections[0] == 0 && c->connections[1] == 0);
	started[2] = nil;
	counters_event(c, topic("node.started"), 503 * second, started);
	CHECK(c->connections[0] == -1);
	free(c);
}

static void test_blocks(void)
{
	struct counters *c = make();
	struct value block[] = { nil,	       number(850000), number(3000),
				 number(7000), number(9),      number(2000000001) };

	test_name = "blocks";
	counters_event(c, topic("validation.block_connected"), 5, block);
	CHECK(c->height == 850000 && c->transactions == 3000 && c->inputs == 7000 &&
	      c->sigops == 9);
	CHECK(c->last_block_us == 5);
	CHECK(c->block_connect.buckets[10] == 1 && c->block_connect.sum_ns == 2000000001);
	block[5] = number(-5);
	block[1] = nil;
	counters_event(c, topic("validation.block_connected"), 6, block);
	CHECK(c->block_connect.buckets[0] == 1 && c->height == 850000);
	block[5] = number(INT64_MAX);
	counters_event(c, topic("validation.block_connected"), 6, block);
	CHECK(c->block_connect.buckets[N_BOUNDS] == 1);
	free(c);
}

static void test_latency(void)
{
	struct counters *c = make();
	struct value none[8] = { { 0 } };
	uint64_t total = 0;

	test_name = "latency";
	/* At each bound, and a microsecond above it. */
	for (int i = 0; i < N_LATENCIES; i++)
		for (uint64_t over = 0; over < 2; over++) {
			counters_event(c, topic("utxocache.add"), 1000000000 - (64ULL << i) - over,
				       none);
			total += (64ULL << i) + over;
		}
	CHECK(c->n_pending == 2 * N_LATENCIES);
	counters_sent(c, 1000000000);
	CHECK(c->n_pending == 0 && c->latency_sum_us == total);
	CHECK(c->latency[0] == 1);
	for (int i = 1; i < N_LATENCIES; i++)
		CHECK(c->latency[i] == 2);
	CHECK(c->latency[N_LATENCIES] == 1);
	/* More than fit; and one from the future. */
	for (int i = 0; i < 3 * MAX_PENDING; i++)
		counters_event(c, topic("utxocache.add"), 2000000000, none);
	counters_sent(c, 1000000000);
	CHECK(c->latency[0] == 1 + 3 * MAX_PENDING);
	free(c);
}

static void test_ring(void)
{
	struct counters *c = make();
	const uint64_t second = 1000000000;

	test_name = "ring";
	counters_ring(c, SOCKET_LOW, 500, 100 * second);
	counters_ring(c, SOCKET_LOW, 100, 105 * second);
	CHECK(counters_ring_peak(c, SOCKET_LOW) == 500);
	CHECK(counters_ring_peak(c, SOCKET_HIGH) == 0);
	counters_ring(c, SOCKET_HIGH, 7, 116 * second);
	CHECK(counters_ring_peak(c, SOCKET_LOW) == 500);
	counters_ring(c, SOCKET_LOW, 20, 132 * second);
	CHECK(counters_ring_peak(c, SOCKET_LOW) == 20);
	counters_ring(c, SOCKET_LOW, 1, 200 * second);
	CHECK(counters_ring_peak(c, SOCKET_LOW) == 1);
	free(c);
}

int main(void)
{
	test_message_types();
	test_rejections();
	test_mempool();
	test_peers();
	test_node();
	test_blocks();
	test_latency();
	test_ring();
	return failures ? 1 : 0;
}
