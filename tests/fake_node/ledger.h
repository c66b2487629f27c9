/* The outside ledger: how often each probe really fired, per thread, summed at the end. */
#ifndef FAKE_NODE_LEDGER_H
#define FAKE_NODE_LEDGER_H

#include "probes.h"

#define LEDGER_SLOTS 129

struct ledger_book {
	uint32_t abi; /* names the columns for the reader of a file left behind */
	int32_t pid;
	struct ledger slots[LEDGER_SLOTS]; /* slot 0 is the main thread's */
};

/*
 * A book in memory, or mapped from the new file PATH, where it outlives kill -9 (it can then be
 * short by the one firing per thread that was under way). NULL: errno tells why.
 */
struct ledger_book *ledger_open(const char *path);

/* The book that another process left in PATH, read-only. NULL: errno tells why. */
struct ledger_book *ledger_read(const char *path);

/* Prints {"pid":…,"fired":{…} without the closing brace, so that the caller can add to it. */
void ledger_print(const struct ledger_book *book);

#endif
