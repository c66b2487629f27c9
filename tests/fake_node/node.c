/* Time and signals of the simulated node; see node.h. */
#define _GNU_SOURCE
#include "node.h"

#include <time.h>

#define MS_NS UINT64_C(1000000)

volatile sig_atomic_t node_stop;
static volatile sig_atomic_t node_go;

static void on_signal(int signal)
{
	if (signal == SIGUSR1)
		node_go = 1;
	else
		node_stop = 1;
}

void node_catch_signals(void)
{
	struct sigaction action = { .sa_handler = on_signal };

	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGUSR1, &action, NULL);
}

uint64_t node_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 * MS_NS + (uint64_t)now.tv_nsec;
}

/* In slices: the signal may have interrupted another thread than this one. */
static void sleep_until(uint64_t end_ns)
{
	uint64_t now;

	while (!node_stop && (now = node_now_ns()) < end_ns) {
		uint64_t rest = end_ns - now;
		struct timespec nap = { .tv_nsec = (long)(rest < 10 * MS_NS ? rest : 10 * MS_NS) };

		nanosleep(&nap, NULL);
	}
}

void node_sleep_ms(uint64_t ms)
{
	if (ms)
		sleep_until(node_now_ns() + ms * MS_NS);
}

#define ATTACH_MS 1000

void node_wait(const struct node *node, enum probe probe)
{
	bool by_signal = node->options->wait_signal || !PROBES_HAVE_SEMAPHORES, waited = false;

	if (probe == PROBE_COUNT)
		by_signal = true; /* this ABI or machine lacks the probe */
	if (node->options->wait || node->options->wait_signal)
		while (!node_stop && !(by_signal ? node_go : probe_active(probe))) {
			node_sleep_ms(1);
			waited = true;
		}
	/* A semaphore rises a moment before coretapd counts what fires. */
	if (waited && !by_signal && !node->options->start_delay)
		node_sleep_ms(ATTACH_MS);
	node_sleep_ms(node->options->start_delay);
}

struct pacer pacer_open(uint64_t per_second)
{
	struct pacer pacer = { 0 };

	if (per_second) {
		pacer.interval_ns = 1000 * MS_NS / per_second;
		pacer.next_ns = node_now_ns();
	}
	return pacer;
}

void pacer_sleep(struct pacer *pacer)
{
	pacer->next_ns += pacer->interval_ns;
	/* A nap costs about 60 µs; at high rates the debt is slept off in one piece. */
	if (pacer->next_ns > node_now_ns() + MS_NS / 10)
		sleep_until(pacer->next_ns);
}
