/*
 * Every tracepoint that the simulated node fires: one thin function per probe, and the ledger that
 * counts what really fired.
 *
 * Order, width and sign of the arguments are written here by hand from Bitcoin Core's
 * doc/tracing.md and sources. Nothing here may be generated from coretap's own catalogue: this is
 * the independent witness that the catalogue is tested against.
 */
#ifndef FAKE_NODE_PROBES_H
#define FAKE_NODE_PROBES_H

#include <stdbool.h>
#include <stdint.h>

/* Whose tracepoints: 23 (v23), 24, 25, 26 (v26 to v28), 29 (v29 to master). */
#ifndef FAKE_NODE_ABI
#define FAKE_NODE_ABI 29
#endif

/* Up to v28 Core's tracepoints had no semaphores: the nop always "fires". */
#define PROBES_HAVE_SEMAPHORES (FAKE_NODE_ABI >= 29)

#define PROBES_OF_V23(X)               \
	X(net, inbound_message)        \
	X(net, outbound_message)       \
	X(validation, block_connected) \
	X(utxocache, flush)            \
	X(utxocache, add)              \
	X(utxocache, spent)            \
	X(utxocache, uncache)

#if FAKE_NODE_ABI >= 24
#define PROBES_OF_V24(X)                             \
	X(coin_selection, selected_coins)            \
	X(coin_selection, normal_create_tx_internal) \
	X(coin_selection, attempting_aps_create_tx)  \
	X(coin_selection, aps_create_tx_internal)
#else
#define PROBES_OF_V24(X)
#endif

#if FAKE_NODE_ABI >= 25
#define PROBES_OF_V25(X)     \
	X(mempool, added)    \
	X(mempool, removed)  \
	X(mempool, replaced) \
	X(mempool, rejected)
#else
#define PROBES_OF_V25(X)
#endif

#if FAKE_NODE_ABI >= 29
#define PROBES_OF_V29(X)                   \
	X(net, inbound_connection)         \
	X(net, outbound_connection)        \
	X(net, evicted_inbound_connection) \
	X(net, closed_connection)          \
	X(net, misbehaving_connection)
#else
#define PROBES_OF_V29(X)
#endif

/* Not Core's, or not yet: what a patched node has, fired by custom.c. */
#if FAKE_NODE_ABI >= 29
#define PROBES_OF_PATCHES(X)                \
	X(net, block_header)                \
	X(net, compact_block_reconstructed) \
	X(addrman, attempt_add)             \
	X(addrman, move_to_good)            \
	X(banman, ban)                      \
	X(init, step)                       \
	X(validation, ibd_left)
#else
#define PROBES_OF_PATCHES(X)
#endif

/* Not Core's: one probe per family of operand forms, fired by operands.c. */
#ifdef __x86_64__
#define PROBES_OF_OPERANDS(X)     \
	X(operands, registers)    \
	X(operands, subregisters) \
	X(operands, bools)        \
	X(operands, memory)       \
	X(operands, stack)        \
	X(operands, index)        \
	X(operands, constant)     \
	X(operands, symbol)       \
	X(operands, unsupported)
#else
#define PROBES_OF_OPERANDS(X)
#endif

#define PROBES(X)            \
	PROBES_OF_V23(X)     \
	PROBES_OF_V24(X)     \
	PROBES_OF_V25(X)     \
	PROBES_OF_V29(X)     \
	PROBES_OF_PATCHES(X) \
	PROBES_OF_OPERANDS(X)

enum probe {
#define X(provider, name) PROBE_##provider##_##name,
	PROBES(X)
#undef X
		PROBE_COUNT
};

#if PROBES_HAVE_SEMAPHORES
/* Volatile: the kernel writes it behind the compiler's back. */
#define X(provider, name) extern volatile unsigned short provider##_##name##_semaphore;
PROBES(X)
#undef X
#define PROBE_ACTIVE(provider, name) (provider##_##name##_semaphore > 0)
#else
#define PROBE_ACTIVE(provider, name) (1)
#endif

/* The firings of one thread; only that thread writes it, so counting needs no atomics. */
struct ledger {
	uint64_t fired[PROBE_COUNT];
} __attribute__((aligned(64)));

/* "mempool:removed", or NULL past the end. */
const char *probe_name(enum probe probe);

/* The probe of that "provider:name", or PROBE_COUNT where this ABI has none. */
enum probe probe_find(const char *name);

/* Whether somebody traces it; always true in an ABI without semaphores. */
bool probe_active(enum probe probe);

/*
 * Each function fires its probe if it is traced, counts it, and says whether it fired. In an ABI
 * that lacks the probe it does nothing. Hashes are 32 bytes in internal order.
 */
bool probe_inbound_message(struct ledger *ledger, int64_t peer, const char *addr,
			   const char *connection, const char *type, uint64_t size,
			   const uint8_t *data);
bool probe_outbound_message(struct ledger *ledger, int64_t peer, const char *addr,
			    const char *connection, const char *type, uint64_t size,
			    const uint8_t *data);
bool probe_inbound_connection(struct ledger *ledger, int64_t peer, const char *addr,
			      const char *connection, uint32_t network, uint64_t count);
bool probe_outbound_connection(struct ledger *ledger, int64_t peer, const char *addr,
			       const char *connection, uint32_t network, uint64_t count);
bool probe_evicted_inbound_connection(struct ledger *ledger, int64_t peer, const char *addr,
				      const char *connection, uint32_t network,
				      int64_t established);
bool probe_closed_connection(struct ledger *ledger, int64_t peer, const char *addr,
			     const char *connection, uint32_t network, int64_t established);
bool probe_misbehaving_connection(struct ledger *ledger, int64_t peer, const char *reason);

/* The duration is in ns; v23 and v24 hand it on in µs, as Core did. */
bool probe_block_connected(struct ledger *ledger, const uint8_t *hash, int32_t height,
			   uint64_t transactions, int32_t inputs, int64_t sigops,
			   int64_t duration_ns);

bool probe_flush(struct ledger *ledger, int64_t duration_us, uint32_t mode, uint64_t coins,
		 uint64_t memory, bool prune);
bool probe_add(struct ledger *ledger, const uint8_t *txid, uint32_t vout, uint32_t height,
	       int64_t value, bool coinbase);
bool probe_spent(struct ledger *ledger, const uint8_t *txid, uint32_t vout, uint32_t height,
		 int64_t value, bool coinbase);
bool probe_uncache(struct ledger *ledger, const uint8_t *txid, uint32_t vout, uint32_t height,
		   int64_t value, bool coinbase);

bool probe_selected_coins(struct ledger *ledger, const char *wallet, const char *algorithm,
			  int64_t target, int64_t waste, int64_t selected);
bool probe_normal_create_tx(struct ledger *ledger, const char *wallet, bool success, int64_t fee,
			    int32_t change_pos);
bool probe_attempting_aps(struct ledger *ledger, const char *wallet);
bool probe_aps_create_tx(struct ledger *ledger, const char *wallet, bool use_aps, bool success,
			 int64_t fee, int32_t change_pos);

bool probe_added(struct ledger *ledger, const uint8_t *txid, int32_t vsize, int64_t fee);
bool probe_removed(struct ledger *ledger, const uint8_t *txid, const char *reason, int32_t vsize,
		   int64_t fee, uint64_t entry_time);

/* is_txid exists from v29; before, the replacement was always one transaction. */
bool probe_replaced(struct ledger *ledger, const uint8_t *txid, int32_t vsize, int64_t fee,
		    uint64_t entry_time, const uint8_t *replacement, int32_t replacement_vsize,
		    int64_t replacement_fee, bool is_txid);
bool probe_rejected(struct ledger *ledger, const uint8_t *txid, const char *reason);

/* Of patches; see custom.c for where they come from. */
bool probe_block_header(struct ledger *ledger, int32_t height, int64_t peer, bool via_compact_block,
			const uint8_t *hash);
bool probe_compact_block_reconstructed(struct ledger *ledger, int64_t peer, uint32_t prefilled,
				       uint32_t mempool, uint32_t extra, uint32_t requested,
				       uint32_t requested_bytes, const uint8_t *hash);
bool probe_attempt_add(struct ledger *ledger, bool inserted, int32_t bucket, int32_t position,
		       const char *addr, uint32_t addr_as, const char *source, uint32_t source_as);
bool probe_move_to_good(struct ledger *ledger, int32_t bucket, int32_t position, const char *addr,
			uint32_t addr_as, const char *source, uint32_t source_as);
bool probe_ban(struct ledger *ledger, const char *subnet, int64_t until, uint32_t network);
bool probe_init_step(struct ledger *ledger, const char *step, int64_t duration_us);
bool probe_ibd_left(struct ledger *ledger, const uint8_t *hash, int32_t height, int64_t time);

#endif
