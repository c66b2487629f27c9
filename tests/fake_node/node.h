/* What every mode works with: the options, this thread's ledger, time, and the stop signal. */
#ifndef FAKE_NODE_NODE_H
#define FAKE_NODE_NODE_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "ledger.h"
#include "options.h"

/* Set by SIGTERM and SIGINT: stop firing (but for run's last flushes), print the ledger, exit 0. */
extern volatile sig_atomic_t node_stop;

/* Spreads events evenly at a rate; interval 0 is flat out. */
struct pacer {
	uint64_t interval_ns;
	uint64_t next_ns;
};

struct node {
	const struct options *options;
	struct ledger_book *book;
	struct ledger *ledger; /* the main thread's */

	/* What burst measured, for the last line: rounds of its loop, traced or not. */
	uint64_t rounds;
	uint64_t rounds_ns;
};

void node_catch_signals(void);

/* Until the probe is traced or, where there are no semaphores or by option, until SIGUSR1. */
void node_wait(const struct node *node, enum probe probe);

uint64_t node_now_ns(void);
void node_sleep_ms(uint64_t ms); /* ends early at the stop signal */

struct pacer pacer_open(uint64_t per_second);
void pacer_sleep(struct pacer *pacer);

/* Inline: the loops of burst measure what a firing costs. */
static inline void pacer_wait(struct pacer *pacer)
{
	if (pacer->interval_ns)
		pacer_sleep(pacer);
}

/* The modes: 0 or an exit code. */
int burst(struct node *node);
int blocks(struct node *node);
int run(struct node *node);
int walk(struct node *node);
int faults(struct node *node);
int operands(struct node *node);
int sites(struct node *node);
int custom(struct node *node);

/* The probe that burst was asked for, or PROBE_COUNT after one line on stderr. */
enum probe burst_probe(const struct options *options);

/* Background threads that fire utxocache:add without pause, to load the node. */
struct flood;
struct flood *flood_open(const struct node *node);
void flood_close(struct flood *flood);

#endif
