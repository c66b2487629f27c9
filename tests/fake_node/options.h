/* The command line of the simulated node. */
#ifndef FAKE_NODE_OPTIONS_H
#define FAKE_NODE_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

struct options {
	const char *mode;
	uint64_t numbers[2]; /* COUNT, or N and TXS; 0 where not given */
	const char *file;    /* of the mode "ledger" */
	const char *abi;     /* as asked for, e.g. "v25"; NULL: this binary's own */

	/* burst */
	const char *probe;
	const char *reason;
	const char *message_type;
	uint64_t size;
	uint64_t threads;

	/* blocks, run, walk */
	uint64_t seed;
	uint64_t start_height;
	uint64_t unseen, conflicts, replacements, reorg;
	uint64_t flush_ms, pause_at, pause_ms;
	uint64_t block_interval, seconds;
	bool flush, coins, empty_blocks, repeat;
	const char *truth;
	const char *mempool_out;

	/* every mode */
	uint64_t rate;
	uint64_t start_delay, linger;
	uint64_t flood;
	bool wait, wait_signal, hold, daemonize;
	const char *ledger;
};

/*
 * Fills options from the command line. Returns 0, 1 when help was printed, or −1 when one line on
 * stderr said what is wrong.
 */
int options_parse(struct options *options, int argc, char **argv);

#endif
