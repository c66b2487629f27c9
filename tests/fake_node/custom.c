/*
 * The tracepoints of a patched node, which coretap knows only when a file declares them.
 *
 * net:block_header and net:compact_block_reconstructed: Bitcoin Core pull request 35368 (open in
 * 2026), arguments as its functional test reads them. addrman:attempt_add and move_to_good: a patch
 * that the peer-observer project ran, arguments as its BPF program reads them. The others are
 * examples: nobody has proposed them in this form.
 */
#include <inttypes.h>
#include <stdio.h>

#include "expect.h"
#include "node.h"

static void hash_fill(uint8_t *hash, uint64_t i, uint8_t salt)
{
	for (unsigned int k = 0; k < 32; k++)
		hash[k] = (uint8_t)(salt + k + 3 * i);
}

static void headers(struct ledger *ledger, uint64_t i)
{
	uint8_t hash[32];
	int32_t height = (int32_t)(900000 + i);
	int64_t peer = (int64_t)i - 1;
	struct expect expect;

	hash_fill(hash, i, 1);
	if (probe_block_header(ledger, height, peer, i % 2, hash)) {
		expect = expect_begin("net:block_header");
		expect_int(&expect, "height", height);
		expect_int(&expect, "peer_id", peer);
		expect_bool(&expect, "via_compact_block", i % 2);
		expect_hash(&expect, "hash", hash);
		expect_end(false);
	}
	if (probe_compact_block_reconstructed(ledger, peer, 1, (uint32_t)(3000 + i), (uint32_t)i,
					      UINT32_MAX, (uint32_t)(250 * i), hash)) {
		expect = expect_begin("net:compact_block_reconstructed");
		expect_int(&expect, "peer_id", peer);
		expect_uint(&expect, "prefilled", 1);
		expect_uint(&expect, "from_mempool", 3000 + i);
		expect_uint(&expect, "from_extra_pool", i);
		expect_uint(&expect, "requested", UINT32_MAX);
		expect_uint(&expect, "requested_bytes", 250 * i);
		expect_hash(&expect, "hash", hash);
		expect_end(false);
	}
}

static void addresses(struct ledger *ledger, uint64_t i)
{
	int32_t bucket = (int32_t)(i % 1024), position = (int32_t)(i % 64);
	char addr[64], source[64];
	struct expect expect;

	snprintf(addr, sizeof(addr), "203.0.113.%" PRIu64 ":8333", i % 256);
	snprintf(source, sizeof(source), "[2001:db8::%" PRIx64 "]:8333", i);
	if (probe_attempt_add(ledger, i % 3 != 0, i % 3 ? bucket : -1, position, addr, 64496,
			      source, 4200000000U)) {
		expect = expect_begin("addrman:attempt_add");
		expect_bool(&expect, "inserted", i % 3 != 0);
		expect_int(&expect, "bucket", i % 3 ? bucket : -1);
		expect_int(&expect, "position", position);
		expect_text(&expect, "addr", addr);
		expect_uint(&expect, "addr_as", 64496);
		expect_text(&expect, "source", source);
		expect_uint(&expect, "source_as", 4200000000U);
		expect_end(false);
	}
	if (probe_move_to_good(ledger, bucket, position, addr, 0, source, 64511)) {
		expect = expect_begin("addrman:move_to_good");
		expect_int(&expect, "bucket", bucket);
		expect_int(&expect, "position", position);
		expect_text(&expect, "addr", addr);
		expect_uint(&expect, "addr_as", 0);
		expect_text(&expect, "source", source);
		expect_uint(&expect, "source_as", 64511);
		expect_end(false);
	}
}

static void examples(struct ledger *ledger, uint64_t i)
{
	int64_t until = (int64_t)(1900000000 + i);
	uint8_t hash[32];
	struct expect expect;

	if (probe_ban(ledger, "203.0.113.0/24", until, 1)) {
		expect = expect_begin("banman:ban");
		expect_text(&expect, "subnet", "203.0.113.0/24");
		expect_int(&expect, "until", until);
		expect_text(&expect, "network", "ipv4");
		expect_end(false);
	}
	if (probe_init_step(ledger, "Loading block index\xe2\x80\xa6", (int64_t)(1500 * i))) {
		expect = expect_begin("init:step");
		expect_text(&expect, "step", "Loading block index\xe2\x80\xa6");
		expect_int(&expect, "duration_ns", (int64_t)(1500000 * i));
		expect_end(false);
	}
	hash_fill(hash, i, 0x80);
	if (probe_ibd_left(ledger, hash, (int32_t)i, until)) {
		expect = expect_begin("validation:ibd_left");
		expect_hash(&expect, "hash", hash);
		expect_int(&expect, "height", (int64_t)i);
		expect_int(&expect, "block_time", until);
		expect_end(false);
	}
}

int custom(struct node *node)
{
	uint64_t rounds = node->options->numbers[0] ? node->options->numbers[0] : 1;
	struct pacer pacer = pacer_open(node->options->rate);

	for (uint64_t i = 0; i < rounds && !node_stop; i++) {
		headers(node->ledger, i);
		addresses(node->ledger, i);
		examples(node->ledger, i);
		pacer_wait(&pacer);
	}
	return 0;
}
