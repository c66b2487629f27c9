/* What an application pays: takes events through libcoretap and reads the fields of each.
 *
 *	client COUNT ADDRESS TOPIC...
 *
 * Prints "ready" when a status has come, and after COUNT events, or at SIGTERM, what it saw as
 *JSON. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "../../clients/c/coretap.h"

static volatile sig_atomic_t stop;

static void on_signal(int number)
{
	(void)number;
	stop = 1;
}

static uint64_t cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* Reads what both mempool and utxocache events have. */
static uint64_t event_use(const struct coretap_event *event)
{
	const unsigned char *txid;
	uint64_t sum = coretap_event_time_us(event);
	int64_t number;

	if (coretap_get_hash(event, "txid", &txid) == CORETAP_SET)
		sum += txid[31];
	if (coretap_get_int(event, "fee", &number) == CORETAP_SET ||
	    coretap_get_int(event, "value", &number) == CORETAP_SET)
		sum += (uint64_t)number;
	return sum;
}

int main(int argc, char **argv)
{
	struct sigaction action = { .sa_handler = on_signal };
	const struct coretap_event *event;
	struct coretap *tap;
	uint64_t wanted, count = 0, sum = 0, cpu = 0;
	bool ready = false;
	int err;

	if (argc < 4) {
		fprintf(stderr, "usage: client COUNT ADDRESS TOPIC...\n");
		return 2;
	}
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	wanted = strtoull(argv[1], NULL, 10);
	err = coretap_open(argv[2], &tap);
	for (int i = 3; i < argc && !err; i++)
		err = coretap_subscribe(tap, argv[i]);
	if (!err)
		err = coretap_subscribe(tap, "bridge.status");
	if (err) {
		fprintf(stderr, "client: %s: %s\n", argv[2], coretap_strerror(err));
		return 1;
	}
	while (!stop && count + coretap_count(tap, CORETAP_COUNT_LOST) +
					coretap_count(tap, CORETAP_COUNT_GAP) <
				wanted) {
		err = coretap_next(tap, &event, 1000);
		if (err == 0 || err == -EINTR)
			continue;
		if (err < 0)
			break;
		if (coretap_event_kind(event) == CORETAP_EVENT) {
			count++;
			sum += event_use(event);
		} else if (!ready && coretap_event_kind(event) == CORETAP_STATUS) {
			ready = true;
			cpu = cpu_ns();
			printf("ready\n");
			fflush(stdout);
		}
	}
	printf("{\"count\":%" PRIu64 ",\"lost\":%" PRIu64 ",\"missed\":%" PRIu64
	       ",\"cpu_ns\":%" PRIu64 ",\"checksum\":%" PRIu64 "}\n",
	       count, coretap_count(tap, CORETAP_COUNT_LOST), coretap_count(tap, CORETAP_COUNT_GAP),
	       cpu_ns() - cpu, sum);
	coretap_close(tap);
	return 0;
}
