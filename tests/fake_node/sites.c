/*
 * One probe at three places of the code with different operands, as an inlined function gives: two
 * sets of registers, and memory. Each place has its own values.
 */
#include <stddef.h>

#include "expect.h"
#include "node.h"
#include "note.h"

#if FAKE_NODE_ABI >= 25

#ifdef __x86_64__
#define A1 "rbx"
#define A2 "r13"
#define A3 "rax"
#define A4 "r12"
#define A5 "rdx"
#define B1 "rsi"
#define B2 "rcx"
#define B3 "r9"
#define B4 "r14"
#define B5 "r15"
#else
#define A1 "x19"
#define A2 "x20"
#define A3 "x21"
#define A4 "x1"
#define A5 "x2"
#define B1 "x3"
#define B2 "x22"
#define B3 "x4"
#define B4 "x23"
#define B5 "x0"
#endif

/* The size was a size_t up to v25. */
#if FAKE_NODE_ABI >= 26
#define VSIZE_TYPE int32_t
#define VSIZE_REGISTER "-4@" NOTE_LOW32(vsize)
#define VSIZE_MEMORY "-4@" NOTE_AT_OFFSET(at, 16)
#else
#define VSIZE_TYPE uint64_t
#define VSIZE_REGISTER "8@%[vsize]"
#define VSIZE_MEMORY "8@" NOTE_AT_OFFSET(at, 16)
#endif

struct removal {
	const uint8_t *txid;
	const char *reason;
	VSIZE_TYPE vsize;
	int64_t fee __attribute__((aligned(8)));
	uint64_t entry_time;
};

static __attribute__((noinline)) void site_a(const struct removal *removal)
{
	register const uint8_t *txid __asm__(A1) = removal->txid;
	register const char *reason __asm__(A2) = removal->reason;
	register VSIZE_TYPE vsize __asm__(A3) = removal->vsize;
	register int64_t fee __asm__(A4) = removal->fee;
	register uint64_t entry_time __asm__(A5) = removal->entry_time;

	__asm__ volatile(PROBE_NOTE(mempool, removed,
				    "8@%[txid] 8@%[reason] " VSIZE_REGISTER
				    " -8@%[fee] 8@%[entry_time]")
			 :
			 : [txid] "r"(txid), [reason] "r"(reason), [vsize] "r"(vsize),
			   [fee] "r"(fee), [entry_time] "r"(entry_time)
			 : "memory");
}

static __attribute__((noinline)) void site_b(const struct removal *removal)
{
	register const uint8_t *txid __asm__(B1) = removal->txid;
	register const char *reason __asm__(B2) = removal->reason;
	register VSIZE_TYPE vsize __asm__(B3) = removal->vsize;
	register int64_t fee __asm__(B4) = removal->fee;
	register uint64_t entry_time __asm__(B5) = removal->entry_time;

	__asm__ volatile(PROBE_NOTE(mempool, removed,
				    "8@%[txid] 8@%[reason] " VSIZE_REGISTER
				    " -8@%[fee] 8@%[entry_time]")
			 :
			 : [txid] "r"(txid), [reason] "r"(reason), [vsize] "r"(vsize),
			   [fee] "r"(fee), [entry_time] "r"(entry_time)
			 : "memory");
}

static __attribute__((noinline)) void site_c(const struct removal *removal)
{
	_Static_assert(offsetof(struct removal, vsize) == 16, "the note says so");
	_Static_assert(offsetof(struct removal, fee) == 24, "the note says so");
	_Static_assert(offsetof(struct removal, entry_time) == 32, "the note says so");

	__asm__ volatile(PROBE_NOTE(mempool, removed,
				    "8@" NOTE_AT(at) " 8@" NOTE_AT_OFFSET(
					    at, 8) " " VSIZE_MEMORY
						   " -8@" NOTE_AT_OFFSET(
							   at, 24) " 8@" NOTE_AT_OFFSET(at, 32))
			 :
			 : [at] "r"(removal)
			 : "memory");
}

int sites(struct node *node)
{
	static void (*const places[])(const struct removal *) = { site_a, site_b, site_c };
	static const char *const reasons[] = { "expiry", "sizelimit", "reorg" };
	uint64_t i, rounds = node->options->numbers[0] ? node->options->numbers[0] : 1;
	struct pacer pacer = pacer_open(node->options->rate);

	for (i = 0; i < 3 * rounds && !node_stop; i++) {
		uint8_t txid[32], k;
		struct removal removal = { txid, reasons[i % 3], (VSIZE_TYPE)(200 + i),
					   (int64_t)(1000 + 7 * i), 1700000000 + i };
		struct expect expect;

		for (k = 0; k < 32; k++)
			txid[k] = (uint8_t)(k + 0x40 * (i % 3 + 1) + i / 3);
		if (!PROBE_ACTIVE(mempool, removed))
			continue;
		places[i % 3](&removal);
		node->ledger->fired[PROBE_mempool_removed]++;
		expect = expect_begin("mempool:removed");
		expect_hash(&expect, "txid", removal.txid);
		expect_text(&expect, "reason", removal.reason);
		expect_int(&expect, "vsize", (int64_t)removal.vsize);
		expect_int(&expect, "fee", removal.fee);
		expect_uint(&expect, "entry_time", removal.entry_time);
		expect_end(false);
		pacer_wait(&pacer);
	}
	return 0;
}

#else

int sites(struct node *node)
{
	(void)node; /* no mempool probes before v25 */
	return 0;
}

#endif
