/*
 * Pointers that cannot be read, and pointers that can only be read by faulting pages in, among good
 * ones. Every kind of pointer is given to every kind of argument; a JSON line per firing tells what
 * a subscriber must see.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "expect.h"
#include "node.h"
#include "note.h"

#define HASH 32
#define EDGES 8 /* writable pages, each followed by a page that is not there */

/* Two pages of a file, read-only; the mapping goes on for a page that the file does not have. */
struct paged {
	uint8_t *map;
	uint8_t *copy; /* to tell expected values without faulting anything in */
	int fd;
};

struct faults {
	struct ledger *ledger;
	struct pacer pacer;
	size_t page;
	uint64_t index; /* of the firing; the other values follow from it */
	bool paged_out; /* the next firing reads memory that was evicted */

	uint8_t *edges; /* page, hole, page, hole, … */
	unsigned int edges_used;
	uint8_t *guarded; /* a page followed by one of PROT_NONE */
	struct paged file, text_file;
	uint8_t good[HASH];
};

/* A pointer, what it must be read as (NULL: not at all), and the file to evict before. */
struct place {
	const void *pointer;
	const void *expect;
	struct paged *paged;
};

static void *must(void *memory)
{
	if (!memory || memory == MAP_FAILED) {
		fprintf(stderr, "fake_node: faults: %s\n", strerror(errno));
		exit(1);
	}
	return memory;
}

static void paged_open(struct faults *faults, struct paged *paged, const uint8_t *content)
{
	const char *directory = getenv("TMPDIR");
	char path[4096];

	snprintf(path, sizeof(path), "%s/fake_node.XXXXXX", directory ? directory : "/tmp");
	paged->fd = mkstemp(path);
	if (paged->fd < 0 || unlink(path) ||
	    write(paged->fd, content, 2 * faults->page) != (ssize_t)(2 * faults->page) ||
	    fsync(paged->fd)) {
		fprintf(stderr, "fake_node: faults: %s: %s\n", path, strerror(errno));
		exit(1);
	}
	paged->copy = must(malloc(2 * faults->page));
	memcpy(paged->copy, content, 2 * faults->page);
	paged->map = must(mmap(NULL, 3 * faults->page, PROT_READ, MAP_PRIVATE, paged->fd, 0));
}

/* Out of this process and out of the page cache; where that cannot be, it is still right. */
static void paged_evict(struct faults *faults, struct paged *paged)
{
	unsigned char resident[2] = { 1, 1 };

	if (!paged)
		return;
	madvise(paged->map, 2 * faults->page, MADV_PAGEOUT);
	madvise(paged->map, 2 * faults->page, MADV_DONTNEED);
	posix_fadvise(paged->fd, 0, 0, POSIX_FADV_DONTNEED);
	mincore(paged->map, 2 * faults->page, resident);
	faults->paged_out = !(resident[0] & 1) && !(resident[1] & 1);
}

/* The hole behind the next edge: the page before it can be written. */
static uint8_t *edge_next(struct faults *faults)
{
	return faults->edges + (2 * faults->edges_used++ + 1) * faults->page;
}

static void *edge_put(uint8_t *hole, const void *content, size_t size)
{
	return memcpy(hole - size, content, size);
}

/* The holes are punched last: no later mapping may fall into them. */
static void edges_punch(struct faults *faults)
{
	unsigned int i;

	for (i = 0; i < EDGES; i++)
		munmap(faults->edges + (2 * i + 1) * faults->page, faults->page);
}

static void faults_open(struct faults *faults, const struct node *node)
{
	uint8_t *content, k;
	size_t i;

	*faults = (struct faults){
		.ledger = node->ledger,
		.pacer = pacer_open(node->options->rate),
		.page = (size_t)sysconf(_SC_PAGESIZE),
	};
	for (k = 0; k < HASH; k++)
		faults->good[k] = (uint8_t)(0xa0 + k);
	faults->edges = must(mmap(NULL, 2 * EDGES * faults->page, PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	faults->guarded = must(mmap(NULL, 2 * faults->page, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	memset(faults->guarded, 'g', faults->page);
	must(mprotect(faults->guarded + faults->page, faults->page, PROT_NONE) ? NULL : faults);

	content = must(malloc(2 * faults->page));
	for (i = 0; i < 2 * faults->page; i++)
		content[i] = (uint8_t)(1 + i % 251);
	paged_open(faults, &faults->file, content);

	memset(content, 0, 2 * faults->page);
	strcpy((char *)content + 100, "paged-out");
	strcpy((char *)content + faults->page - 5, "crossing-pgs");
	paged_open(faults, &faults->text_file, content);
	free(content);
}

static void faults_close(struct faults *faults)
{
	munmap(faults->file.map, 3 * faults->page);
	munmap(faults->text_file.map, 3 * faults->page);
	free(faults->file.copy);
	free(faults->text_file.copy);
	close(faults->file.fd);
	close(faults->text_file.fd);
}

static void fired(struct faults *faults)
{
	expect_end(faults->paged_out);
	faults->paged_out = false;
	pacer_wait(&faults->pacer);
}

/* The numbers that go with firing i. */

static int32_t vsize_of(uint64_t i)
{
	return (int32_t)(200 + i);
}

static int64_t fee_of(uint64_t i)
{
	return (int64_t)(5000 + 3 * i);
}

static uint64_t time_of(uint64_t i)
{
	return 1700000000 + i;
}

static void expect_removed(const uint8_t *txid, const char *reason, uint64_t i)
{
	struct expect expect = expect_begin("mempool:removed");

	expect_hash(&expect, "txid", txid);
	expect_text(&expect, "reason", reason);
	expect_int(&expect, "vsize", vsize_of(i));
	expect_int(&expect, "fee", fee_of(i));
	expect_uint(&expect, "entry_time", time_of(i));
}

static void fire_removed(struct faults *faults, const struct place *txid,
			 const struct place *reason)
{
	uint64_t i = faults->index++;

	paged_evict(faults, txid->paged ? txid->paged : reason->paged);
	if (!probe_removed(faults->ledger, txid->pointer, reason->pointer, vsize_of(i), fee_of(i),
			   time_of(i)))
		return;
	expect_removed(txid->expect, reason->expect, i);
	fired(faults);
}

static void fire_good(struct faults *faults)
{
	struct place txid = { faults->good, faults->good, NULL };
	struct place reason = { "sizelimit", "sizelimit", NULL };

	fire_removed(faults, &txid, &reason);
}

static void fire_added(struct faults *faults, const struct place *txid)
{
	uint64_t i = faults->index++;
	struct expect expect;

	paged_evict(faults, txid->paged);
	if (!probe_added(faults->ledger, txid->pointer, vsize_of(i), fee_of(i)))
		return;
	expect = expect_begin("mempool:added");
	expect_hash(&expect, "txid", txid->expect);
	expect_int(&expect, "vsize", vsize_of(i));
	expect_int(&expect, "fee", fee_of(i));
	fired(faults);
}

static void fire_replaced(struct faults *faults, const struct place *txid,
			  const struct place *replacement, bool is_txid)
{
	uint64_t i = faults->index++;
	struct expect expect;

	if (FAKE_NODE_ABI < 29)
		is_txid = true;
	paged_evict(faults, txid->paged ? txid->paged : replacement->paged);
	if (!probe_replaced(faults->ledger, txid->pointer, vsize_of(i), fee_of(i), time_of(i),
			    replacement->pointer, vsize_of(i) + 1, -fee_of(i), is_txid))
		return;
	expect = expect_begin("mempool:replaced");
	expect_hash(&expect, "txid", txid->expect);
	expect_int(&expect, "vsize", vsize_of(i));
	expect_int(&expect, "fee", fee_of(i));
	expect_uint(&expect, "entry_time", time_of(i));
	expect_hash(&expect, is_txid ? "replacement_txid" : "replacement_package",
		    replacement->expect);
	expect_int(&expect, "replacement_vsize", vsize_of(i) + 1);
	expect_int(&expect, "replacement_fee", -fee_of(i));
	fired(faults);
}

static void fire_rejected(struct faults *faults, const struct place *txid,
			  const struct place *reason)
{
	struct expect expect;

	paged_evict(faults, txid->paged ? txid->paged : reason->paged);
	if (!probe_rejected(faults->ledger, txid->pointer, reason->pointer))
		return;
	expect = expect_begin("mempool:rejected");
	expect_hash(&expect, "txid", txid->expect);
	expect_text(&expect, "reason", reason->expect);
	fired(faults);
}

static void fire_coin(struct faults *faults, const struct place *txid)
{
	uint64_t i = faults->index++;
	struct expect expect;

	paged_evict(faults, txid->paged);
	if (!probe_add(faults->ledger, txid->pointer, UINT32_MAX, 2147483647, fee_of(i), i % 2))
		return;
	expect = expect_begin("utxocache:add");
	expect_hash(&expect, "txid", txid->expect);
	expect_uint(&expect, "vout", UINT32_MAX);
	expect_uint(&expect, "height", 2147483647);
	expect_int(&expect, "value", fee_of(i));
	expect_bool(&expect, "coinbase", i % 2);
	fired(faults);
}

static void fire_block(struct faults *faults, const struct place *hash)
{
	int32_t height = (int32_t)(850000 + faults->index++);
	struct expect expect;

	paged_evict(faults, hash->paged);
	if (!probe_block_connected(faults->ledger, hash->pointer, height, 1, 1, 4, 1000000))
		return;
	expect = expect_begin("validation:block_connected");
	expect_hash(&expect, "hash", hash->expect);
	expect_int(&expect, "height", height);
	expect_uint(&expect, "n_tx", 1);
	expect_int(&expect, "n_inputs", 1);
	expect_int(&expect, "sigops", 4);
	expect_int(&expect, "duration_ns", 1000000);
	fired(faults);
}

static void fire_misbehaving(struct faults *faults, const struct place *reason)
{
	int64_t peer = (int64_t)faults->index++;
	struct expect expect;

	paged_evict(faults, reason->paged);
	if (!probe_misbehaving_connection(faults->ledger, peer, reason->pointer))
		return;
	expect = expect_begin("net:misbehaving_connection");
	expect_int(&expect, "peer_id", peer);
	expect_text(&expect, "reason", reason->expect);
	fired(faults);
}

static void fire_message(struct faults *faults, const struct place *addr,
			 const struct place *connection, const struct place *type,
			 const struct place *data, uint64_t size)
{
	int64_t peer = (int64_t)faults->index++;
	struct expect expect;

	paged_evict(faults, addr->paged);
	paged_evict(faults, connection->paged);
	paged_evict(faults, type->paged);
	paged_evict(faults, data->paged);
	if (!probe_inbound_message(faults->ledger, peer, addr->pointer, connection->pointer,
				   type->pointer, size, data->pointer))
		return;
	expect = expect_begin("net:inbound_message");
	expect_int(&expect, "peer_id", peer);
	expect_text(&expect, "addr", addr->expect);
	expect_text(&expect, "connection_type", connection->expect);
	expect_text(&expect, "msg_type", type->expect);
	expect_uint(&expect, "size", size);
	expect_data(&expect, "data", data->expect, size);
	fired(faults);
}

static void fire_wallet(struct faults *faults, const struct place *wallet,
			const struct place *algorithm)
{
	struct expect expect;

	paged_evict(faults, wallet->paged);
	paged_evict(faults, algorithm->paged);
	if (!probe_selected_coins(faults->ledger, wallet->pointer, algorithm->pointer, 7, -8, 9))
		return;
	expect = expect_begin("coin_selection:selected_coins");
	expect_text(&expect, "wallet", wallet->expect);
	expect_text(&expect, "algorithm", algorithm->expect);
	expect_int(&expect, "target", 7);
	expect_int(&expect, "waste", -8);
	expect_int(&expect, "selected", 9);
	fired(faults);
}

#define BAD_POINTERS 4

/* Addresses that no process can have: zero, low, not canonical, the kernel's. */
static const uintptr_t bad_pointers[BAD_POINTERS] = { 0, 1, UINT64_C(0xdead000000000000),
						      UINT64_C(0xffff888000000000) };

static size_t bad_places(const struct faults *faults, const uint8_t *hole, struct place *places)
{
	size_t i;

	for (i = 0; i < BAD_POINTERS; i++)
		places[i] = (struct place){ (const void *)bad_pointers[i], NULL, NULL };
	places[i++] = (struct place){ hole, NULL, NULL };
	places[i++] = (struct place){ faults->guarded + faults->page, NULL, NULL };
	places[i++] = (struct place){ faults->file.map + 2 * faults->page, NULL, NULL };
	return i;
}

static size_t hash_places(struct faults *faults, struct place *places)
{
	uint8_t *hole = edge_next(faults), *end = edge_put(hole, faults->good, HASH);
	struct paged *file = &faults->file;
	size_t n = bad_places(faults, hole, places), cross = faults->page - 16;

	places[n++] = (struct place){ end, faults->good, NULL };
	places[n++] = (struct place){ end + 1, NULL, NULL };
	places[n++] = (struct place){ hole - 1, NULL, NULL };
	places[n++] = (struct place){ faults->guarded + faults->page - 31, NULL, NULL };
	places[n++] = (struct place){ file->map + 2 * faults->page - 31, NULL, NULL };
	places[n++] = (struct place){ file->map + 64, file->copy + 64, file };
	places[n++] = (struct place){ file->map + cross, file->copy + cross, file };
	places[n++] = (struct place){ file->map + 2 * faults->page - HASH,
				      file->copy + 2 * faults->page - HASH, file };
	return n;
}

/* All at most 12 bytes, so that they fit any text argument. */
static size_t text_places(struct faults *faults, struct place *places)
{
	uint8_t *hole = edge_next(faults), *endless = edge_next(faults), *empty = edge_next(faults);
	struct paged *file = &faults->text_file;
	size_t n = bad_places(faults, hole, places), cross = faults->page - 5;

	places[n++] = (struct place){ edge_put(hole, "to-the-end", 11), "to-the-end", NULL };
	places[n++] = (struct place){ edge_put(endless, "endless", 7), NULL, NULL };
	places[n++] = (struct place){ edge_put(empty, "", 1), "", NULL };
	places[n++] = (struct place){ faults->guarded + faults->page - 3, NULL, NULL };
	places[n++] = (struct place){ "", "", NULL };
	places[n++] = (struct place){ "a\"b\\c\n\xc3\xa9", "a\"b\\c\n\xc3\xa9", NULL };
	places[n++] = (struct place){ "bad\xff"
				      "byte",
				      "bad\xef\xbf\xbd"
				      "byte",
				      NULL };
	places[n++] = (struct place){ file->map + 100, file->copy + 100, file };
	places[n++] = (struct place){ file->map + cross, file->copy + cross, file };
	return n;
}

static void every_hash(struct faults *faults, const struct place *places, size_t count)
{
	const struct place good = { faults->good, faults->good, NULL };
	const struct place text = { "expiry", "expiry", NULL };
	size_t i;

	for (i = 0; i < count && !node_stop; i++) {
		const struct place *place = &places[i];

		fire_removed(faults, place, &text);
		fire_good(faults);
		fire_added(faults, place);
		fire_replaced(faults, place, &good, true);
		fire_replaced(faults, &good, place, true);
		fire_replaced(faults, &good, place, false);
		fire_rejected(faults, place, &text);
		fire_coin(faults, place);
		fire_coin(faults, &good);
		fire_block(faults, place);
	}
}

static void every_text(struct faults *faults, const struct place *places, size_t count)
{
	const struct place good = { faults->good, faults->good, NULL };
	const struct place text = { "inv", "inv", NULL };
	const struct place none = { NULL, "", NULL };
	size_t i;

	for (i = 0; i < count && !node_stop; i++) {
		const struct place *place = &places[i];

		fire_removed(faults, &good, place);
		fire_good(faults);
		fire_rejected(faults, &good, place);
		fire_misbehaving(faults, place);
		fire_message(faults, place, &text, &text, &none, 0);
		fire_message(faults, &text, place, &text, &none, 0);
		fire_message(faults, &text, &text, place, &none, 0);
		fire_message(faults, &text, &text, &text, &none, 0);
		fire_wallet(faults, place, &text);
		fire_wallet(faults, &text, place);
	}
}

/* The longest that each argument can be on a real node. */
static void long_texts(struct faults *faults)
{
	const struct place good = { faults->good, faults->good, NULL };
	const struct place text = { "manual", "manual", NULL }, none = { NULL, "", NULL };
	char reason[119], host[262], wallet[201];
	struct place place;

	memset(reason, 'r', sizeof(reason) - 1);
	memset(host, 'h', sizeof(host) - 1);
	memset(wallet, 'w', sizeof(wallet) - 1);
	memcpy(wallet, "\"quoted\\ \xe2\x82\xbf ", 13);
	reason[118] = host[261] = wallet[200] = '\0';
	place = (struct place){ reason, reason, NULL };
	fire_rejected(faults, &good, &place);
	fire_misbehaving(faults, &place);
	place = (struct place){ host, host, NULL };
	fire_message(faults, &place, &text, &text, &none, 0);
	place = (struct place){ wallet, wallet, NULL };
	fire_wallet(faults, &place, &text);
}

static void payloads(struct faults *faults)
{
	const struct place text = { "tx", "tx", NULL };
	uint8_t *hole = edge_next(faults);
	struct paged *file = &faults->file;
	const uint8_t *map = file->map, *copy = file->copy;
	const struct {
		struct place place;
		uint64_t size;
	} cases[] = {
		{ { NULL, "", NULL }, 0 },
		{ { copy, "", NULL }, 0 },
		{ { hole, "", NULL }, 0 },
		{ { copy, copy, NULL }, 1 },
		{ { copy, copy, NULL }, 100 },
		{ { copy, copy, NULL }, 5000 },
		{ { NULL, NULL, NULL }, 10 },
		{ { hole, NULL, NULL }, 10 },
		{ { edge_put(hole, copy, 100), copy, NULL }, 100 },
		{ { hole - 100, NULL, NULL }, 101 },
		{ { faults->guarded + faults->page - 8, NULL, NULL }, 16 },
		{ { map + 10, copy + 10, file }, 100 },
		{ { map + 10, copy + 10, file }, 5000 },
		{ { map, copy, file }, 2 * faults->page },
		{ { map, NULL, file }, 2 * faults->page + 1 },
	};
	size_t i;

	for (i = 0; i < sizeof(cases) / sizeof(cases[0]) && !node_stop; i++)
		fire_message(faults, &text, &text, &text, &cases[i].place, cases[i].size);
}

#if FAKE_NODE_ABI >= 26
/* Operands in memory: in the very last bytes before a hole, and in the hole. */
static void operands_at_edges(struct faults *faults)
{
	uint8_t *hole = edge_next(faults);
	uint64_t i = faults->index++;
	int32_t vsize = vsize_of(i);
	struct expect expect;

	if (!PROBE_ACTIVE(mempool, removed))
		return;
	edge_put(hole, &vsize, sizeof(vsize));
	__asm__ volatile(
		PROBE_NOTE(mempool, removed,
			   "8@%[txid] 8@%[reason] -4@" NOTE_AT(vsize) " -8@%[fee] 8@%[entry_time]")
		:
		: [txid] "r"(faults->good), [reason] "r"("reorg"), [vsize] "r"(hole - 4),
		  [fee] "r"(fee_of(i)), [entry_time] "r"(time_of(i))
		: "memory");
	faults->ledger->fired[PROBE_mempool_removed]++;
	expect_removed(faults->good, "reorg", i);
	fired(faults);

	/* The txid's pointer and the fee lie where nothing is, the vsize half so. */
	i = faults->index++;
	__asm__ volatile(PROBE_NOTE(mempool, removed,
				    "8@" NOTE_AT(hole) " 8@%[reason] -4@" NOTE_AT(
					    half) " -8@" NOTE_AT(hole) " 8@%[entry_time]")
			 :
			 : [hole] "r"(hole), [reason] "r"("expiry"), [half] "r"(hole - 2),
			   [entry_time] "r"(time_of(i))
			 : "memory");
	faults->ledger->fired[PROBE_mempool_removed]++;
	expect = expect_begin("mempool:removed");
	expect_null(&expect, "txid");
	expect_text(&expect, "reason", "expiry");
	expect_null(&expect, "vsize");
	expect_null(&expect, "fee");
	expect_uint(&expect, "entry_time", time_of(i));
	fired(faults);
}
#endif

int faults(struct node *node)
{
	static char buffer[65536]; /* no mapping may be made once the holes are punched */
	struct place hashes[24], texts[24];
	size_t hash_count, text_count;
	struct faults faults;

	setvbuf(stdout, buffer, _IOFBF, sizeof(buffer));
	faults_open(&faults, node);
	hash_count = hash_places(&faults, hashes);
	text_count = text_places(&faults, texts);
	edges_punch(&faults);

	fire_good(&faults);
	every_hash(&faults, hashes, hash_count);
	every_text(&faults, texts, text_count);
	long_texts(&faults);
	payloads(&faults);
#if FAKE_NODE_ABI >= 26
	operands_at_edges(&faults);
#endif
	fire_good(&faults);
	fflush(stdout);
	faults_close(&faults);
	return 0;
}
