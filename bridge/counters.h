/* What is counted for --metrics: plain numbers, added up as events pass by. Every label is an index
 * into a closed set whose last name is "other", so that nobody outside can make a new series. */
#ifndef CORETAP_COUNTERS_H
#define CORETAP_COUNTERS_H

#include "../bpf/record.h"
#include "../protocol/encode.h"

/* ---- the closed sets ---- */

#define MAX_MESSAGE_TYPES 48

extern const char *const removal_reasons[];
extern const char *const rejection_classes[];
extern const char *const message_types[];
extern const char *const connection_types[];
extern const char *const network_names[];
extern const char *const flush_modes[];

enum {
	N_REMOVAL_REASONS = 7,
	N_REJECTION_CLASSES = 11,
	N_CONNECTION_TYPES = 8,
	N_NETWORKS = 8,
	N_FLUSH_MODES = 6,
};
unsigned int message_types_count(void);

/* The class of a rejection's reason, whose wording is the node's. */
unsigned int rejection_class(const char *reason, size_t len);

/* The number of a message type; that of "other" for one that the protocol does not know. */
unsigned int message_type_number(const char *type, size_t len);

/* ---- histograms ---- */

/* Bounds of buckets in nanoseconds; the one after the last has no bound. */
#define N_BOUNDS 16
#define N_LATENCIES 21
#define LATENCY_FIRST_NS 64000u /* the first bucket's bound; each next one is twice as large */
extern const uint64_t duration_bounds[N_BOUNDS];

struct durations {
	uint64_t buckets[N_BOUNDS + 1];
	uint64_t sum_ns;
};

/* ---- the numbers ---- */

struct sum {
	uint64_t count, vsize, fees;
};

struct traffic {
	uint64_t count, bytes;
};

/* Times of events that were taken in and are not sent yet. */
#define MAX_PENDING 8192

struct counters {
	uint8_t kind[MAX_PROBES];    /* of each event; counters.c's */
	int8_t field[MAX_PROBES][4]; /* the places of the fields that count; -1 = none */
	/* from the mempool */
	struct sum added, removed[N_REMOVAL_REASONS], replaced;
	uint64_t replaced_by[2]; /* a transaction, a package */
	uint64_t rejected[N_REJECTION_CLASSES];
	/* from peers: inbound, outbound */
	struct traffic messages[2][MAX_MESSAGE_TYPES];
	uint64_t opened[N_CONNECTION_TYPES][N_NETWORKS], closed[N_CONNECTION_TYPES][N_NETWORKS];
	uint64_t evicted[N_NETWORKS];
	uint64_t misbehaving;
	int64_t connections[2]; /* as the node counted last; -1 = unknown yet */
	/* from blocks */
	struct durations block_connect;
	uint64_t transactions, inputs, sigops, last_block_us;
	int64_t height;				/* -1 = unknown yet */
	uint64_t reorganised, lists[2], unseen; /* lists: not complete, complete */
	/* from the UTXO cache */
	uint64_t coins_added, coins_spent, coins_uncached;
	struct durations flush;
	uint64_t flushes[N_FLUSH_MODES];
	int64_t cache_coins, cache_memory; /* before the last flush; -1 = unknown yet */
	/* from the node */
	uint64_t started, exited, last_event_us;
	/* of the bridge */
	struct traffic published[N_SOCKETS];
	uint64_t fired[MAX_PROBES], submitted[MAX_PROBES]; /* at most so far; exposition.c's */
	uint64_t latency[N_LATENCIES + 1], latency_sum_us;
	uint64_t pending[MAX_PENDING];
	size_t n_pending;
	uint64_t peak_since_ns;
	uint64_t ring_peaks[N_SOCKETS][2]; /* bytes waiting at worst, in this period and the last */
};

/* All zero, for a catalogue of n events; event(arg, i) is the i-th. Returns NULL without memory. */
struct counters *counters_new(size_t n,
			      const struct event_desc *(*event)(const void *arg, size_t i),
			      const void *arg);

/* Counts one event; values as for encode_event. */
void counters_event(struct counters *counters, unsigned int topic, uint64_t time_us,
		    const struct value *values);

/* What came in since the last call is with the sockets now. */
void counters_sent(struct counters *counters, uint64_t now_us);

/* Bytes waiting in a ring. The worst of the last 15 to 30 seconds is kept, so that a scrape sees
 * what happened between two of them. */
void counters_ring(struct counters *counters, enum socket_id socket, uint64_t bytes,
		   uint64_t now_ns);
uint64_t counters_ring_peak(const struct counters *counters, enum socket_id socket);

#endif
