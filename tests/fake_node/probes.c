/* The tracepoints of Bitcoin Core, fired by hand; see probes.h. */
#include "probes.h"

#include <stddef.h>
#include <string.h>

#define SDT_USE_VARIADIC 1
#if PROBES_HAVE_SEMAPHORES
#define _SDT_HAS_SEMAPHORES 1
#endif
#include <sys/sdt.h>

#if PROBES_HAVE_SEMAPHORES
#define X(provider, name) \
	volatile unsigned short provider##_##name##_semaphore __attribute__((section(".probes")));
PROBES(X)
#undef X
#endif

/* Counted after the firing, so that a ledger that outlives kill -9 never claims too much. */
#define FIRE(ledger, provider, name, ...)                     \
	do {                                                  \
		if (!PROBE_ACTIVE(provider, name))            \
			return false;                         \
		STAP_PROBEV(provider, name, __VA_ARGS__);     \
		(ledger)->fired[PROBE_##provider##_##name]++; \
		return true;                                  \
	} while (0)

/* Up to v25 the transaction size was a size_t, since v26 it is an int32_t. */
#if FAKE_NODE_ABI >= 26
#define VSIZE(vsize) (vsize)
#else
#define VSIZE(vsize) ((uint64_t)(vsize))
#endif

const char *probe_name(enum probe probe)
{
	static const char *const names[] = {
#define X(provider, name) #provider ":" #name,
		PROBES(X)
#undef X
	};

	return probe < PROBE_COUNT ? names[probe] : NULL;
}

enum probe probe_find(const char *name)
{
	unsigned int i;

	for (i = 0; i < PROBE_COUNT; i++)
		if (!strcmp(probe_name((enum probe)i), name))
			break;
	return (enum probe)i;
}

bool probe_active(enum probe probe)
{
#if PROBES_HAVE_SEMAPHORES
	static volatile unsigned short *const semaphores[] = {
#define X(provider, name) &provider##_##name##_semaphore,
		PROBES(X)
#undef X
	};

	return *semaphores[probe] > 0;
#else
	(void)probe;
	return true;
#endif
}

bool probe_inbound_message(struct ledger *ledger, int64_t peer, const char *addr,
			   const char *connection, const char *type, uint64_t size,
			   const uint8_t *data)
{
	FIRE(ledger, net, inbound_message, peer, addr, connection, type, size, data);
}

bool probe_outbound_message(struct ledger *ledger, int64_t peer, const char *addr,
			    const char *connection, const char *type, uint64_t size,
			    const uint8_t *data)
{
	FIRE(ledger, net, outbound_message, peer, addr, connection, type, size, data);
}

bool probe_block_connected(struct ledger *ledger, const uint8_t *hash, int32_t height,
			   uint64_t transactions, int32_t inputs, int64_t sigops,
			   int64_t duration_ns)
{
#if FAKE_NODE_ABI >= 25
	int64_t duration = duration_ns;
#else
	int64_t duration = duration_ns / 1000;
#endif

	FIRE(ledger, validation, block_connected, hash, height, transactions, inputs, sigops,
	     duration);
}

bool probe_flush(struct ledger *ledger, int64_t duration_us, uint32_t mode, uint64_t coins,
		 uint64_t memory, bool prune)
{
	FIRE(ledger, utxocache, flush, duration_us, mode, coins, memory, prune);
}

bool probe_add(struct ledger *ledger, const uint8_t *txid, uint32_t vout, uint32_t height,
	       int64_t value, bool coinbase)
{
	FIRE(ledger, utxocache, add, txid, vout, height, value, coinbase);
}

bool probe_spent(struct ledger *ledger, const uint8_t *txid, uint32_t vout, uint32_t height,
		 int64_t value, bool coinbase)
{
	FIRE(ledger, utxocache, spent, txid, vout, height, value, coinbase);
}

bool probe_uncache(struct ledger *ledger, const uint8_t *txid, uint32_t vout, uint32_t height,
		   int64_t value, bool coinbase)
{
	FIRE(ledger, utxocache, uncache, txid, vout, height, value, coinbase);
}

#if FAKE_NODE_ABI < 29
/* Stands for a probe that this ABI does not have; the arguments go nowhere. */
static bool no_probe(const void *first, ...)
{
	(void)first;
	return false;
}
#endif

#if FAKE_NODE_ABI < 24
#define FIRE_V24(ledger, provider, name, ...) return no_probe(ledger, __VA_ARGS__)
#else
#define FIRE_V24 FIRE
#endif
#if FAKE_NODE_ABI < 25
#define FIRE_V25(ledger, provider, name, ...) return no_probe(ledger, __VA_ARGS__)
#else
#define FIRE_V25 FIRE
#endif
#if FAKE_NODE_ABI < 29
#define FIRE_V29(ledger, provider, name, ...) return no_probe(ledger, __VA_ARGS__)
#else
#define FIRE_V29 FIRE
#endif

bool probe_selected_coins(struct ledger *ledger, const char *wallet, const char *algorithm,
			  int64_t target, int64_t waste, int64_t selected)
{
	FIRE_V24(ledger, coin_selection, selected_coins, wallet, algorithm, target, waste,
		 selected);
}

bool probe_normal_create_tx(struct ledger *ledger, const char *wallet, bool success, int64_t fee,
			    int32_t change_pos)
{
	FIRE_V24(ledger, coin_selection, normal_create_tx_internal, wallet, success, fee,
		 change_pos);
}

bool probe_attempting_aps(struct ledger *ledger, const char *wallet)
{
	FIRE_V24(ledger, coin_selection, attempting_aps_create_tx, wallet);
}

bool probe_aps_create_tx(struct ledger *ledger, const char *wallet, bool use_aps, bool success,
			 int64_t fee, int32_t change_pos)
{
	FIRE_V24(ledger, coin_selection, aps_create_tx_internal, wallet, use_aps, success, fee,
		 change_pos);
}

bool probe_added(struct ledger *ledger, const uint8_t *txid, int32_t vsize, int64_t fee)
{
	FIRE_V25(ledger, mempool, added, txid, VSIZE(vsize), fee);
}

bool probe_removed(struct ledger *ledger, const uint8_t *txid, const char *reason, int32_t vsize,
		   int64_t fee, uint64_t entry_time)
{
	FIRE_V25(ledger, mempool, removed, txid, reason, VSIZE(vsize), fee, entry_time);
}

bool probe_replaced(struct ledger *ledger, const uint8_t *txid, int32_t vsize, int64_t fee,
		    uint64_t entry_time, const uint8_t *replacement, int32_t replacement_vsize,
		    int64_t replacement_fee, bool is_txid)
{
#if FAKE_NODE_ABI >= 29
	FIRE(ledger, mempool, replaced, txid, vsize, fee, entry_time, replacement,
	     replacement_vsize, replacement_fee, is_txid);
#else
	(void)is_txid;
	FIRE_V25(ledger, mempool, replaced, txid, VSIZE(vsize), fee, entry_time, replacement,
		 VSIZE(replacement_vsize), replacement_fee);
#endif
}

bool probe_rejected(struct ledger *ledger, const uint8_t *txid, const char *reason)
{
	FIRE_V25(ledger, mempool, rejected, txid, reason);
}

bool probe_inbound_connection(struct ledger *ledger, int64_t peer, const char *addr,
			      const char *connection, uint32_t network, uint64_t count)
{
	FIRE_V29(ledger, net, inbound_connection, peer, addr, connection, network, count);
}

bool probe_outbound_connection(struct ledger *ledger, int64_t peer, const char *addr,
			       const char *connection, uint32_t network, uint64_t count)
{
	FIRE_V29(ledger, net, outbound_connection, peer, addr, connection, network, count);
}

bool probe_evicted_inbound_connection(struct ledger *ledger, int64_t peer, const char *addr,
				      const char *connection, uint32_t network, int64_t established)
{
	FIRE_V29(ledger, net, evicted_inbound_connection, peer, addr, connection, network,
		 established);
}

bool probe_closed_connection(struct ledger *ledger, int64_t peer, const char *addr,
			     const char *connection, uint32_t network, int64_t established)
{
	FIRE_V29(ledger, net, closed_connection, peer, addr, connection, network, established);
}

bool probe_misbehaving_connection(struct ledger *ledger, int64_t peer, const char *reason)
{
	FIRE_V29(ledger, net, misbehaving_connection, peer, reason);
}

bool probe_block_header(struct ledger *ledger, int32_t height, int64_t peer, bool via_compact_block,
			const uint8_t *hash)
{
	FIRE_V29(ledger, net, block_header, height, peer, via_compact_block, hash);
}

bool probe_compact_block_reconstructed(struct ledger *ledger, int64_t peer, uint32_t prefilled,
				       uint32_t mempool, uint32_t extra, uint32_t requested,
				       uint32_t requested_bytes, const uint8_t *hash)
{
	FIRE_V29(ledger, net, compact_block_reconstructed, peer, prefilled, mempool, extra,
		 requested, requested_bytes, hash);
}

bool probe_attempt_add(struct ledger *ledger, bool inserted, int32_t bucket, int32_t position,
		       const char *addr, uint32_t addr_as, const char *source, uint32_t source_as)
{
	FIRE_V29(ledger, addrman, attempt_add, inserted, bucket, position, addr, addr_as, source,
		 source_as);
}

bool probe_move_to_good(struct ledger *ledger, int32_t bucket, int32_t position, const char *addr,
			uint32_t addr_as, const char *source, uint32_t source_as)
{
	FIRE_V29(ledger, addrman, move_to_good, bucket, position, addr, addr_as, source, source_as);
}

bool probe_ban(struct ledger *ledger, const char *subnet, int64_t until, uint32_t network)
{
	FIRE_V29(ledger, banman, ban, subnet, until, network);
}

bool probe_init_step(struct ledger *ledger, const char *step, int64_t duration_us)
{
	FIRE_V29(ledger, init, step, step, duration_us);
}

bool probe_ibd_left(struct ledger *ledger, const uint8_t *hash, int32_t height, int64_t time)
{
	FIRE_V29(ledger, validation, ibd_left, hash, height, time);
}
