/* A subscriber with libcoretap, for test_client_c.py: a line "joined" with the first status, and a
 * JSON account when --until ends it, or SIGTERM, after as many firings as stdin then says. The
 * hashes of fake_node's burst carry the number of the firing, which must count on by one. */
#include "../../clients/c/coretap.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static volatile sig_atomic_t stop;

static void on_signal(int number)
{
	(void)number;
	stop = 1;
}

static double cpu(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

int main(int argc, char **argv)
{
	uint64_t until = 0, count = 0, gap = 0, lost = 0, wrong = 0, runs = 0, others = 0,
		 expected = 0;
	uint64_t wrong_at = 0, first = 0, memory = 0, last = UINT64_MAX;
	const char *position = NULL, *since = NULL, *out = NULL;
	const struct coretap_event *event;
	bool joined = false;
	struct coretap *tap;
	FILE *file = NULL;
	double begin = 0;
	int got, first_topic = 2, replay = 1;

	for (; first_topic < argc && !strncmp(argv[first_topic], "--", 2); first_topic += 2) {
		const char *value = argv[first_topic + 1];

		if (!strcmp(argv[first_topic], "--until"))
			until = strtoull(value, NULL, 10);
		else if (!strcmp(argv[first_topic], "--position"))
			position = value;
		else if (!strcmp(argv[first_topic], "--since"))
			since = value;
		else if (!strcmp(argv[first_topic], "--out"))
			out = value;
		else if (!strcmp(argv[first_topic], "--replay"))
			replay = atoi(value);
		else if (!strcmp(argv[first_topic], "--memory"))
			memory = strtoull(value, NULL, 10);
	}
	signal(SIGTERM, on_signal);
	if (coretap_open(argv[1], &tap))
		return 1;
	coretap_set_replay(tap, replay);
	if (memory)
		coretap_set_memory(tap, memory);
	for (int i = first_topic; i < argc; i++)
		if (coretap_subscribe(tap, argv[i]))
			return 1;
	if (coretap_subscribe(tap, "bridge.status"))
		return 1;
	if (since)
		coretap_since(tap, strtoull(since, NULL, 10));
	if (position && coretap_set_position(tap, position))
		return 1;
	if (position)
		coretap_commit(tap);
	if (out)
		file = fopen(out, "a");
	while (expected < last && (!until || count + gap + lost < until)) {
		const unsigned char *txid;
		uint64_t index = 0;

		if (stop) {
			stop = 0;
			if (scanf("%" SCNu64, &last) != 1)
				last = 0;
			continue;
		}
		got = coretap_next(tap, &event, 100);
		if (got == -EINTR)
			continue;
		if (got < 0) {
			fprintf(stderr, "%s\n", coretap_strerror(got));
			return 1;
		}
		if (got == 0) {
			if (file)
				fflush(file);
			if (position)
				coretap_commit(tap);
			continue;
		}
		switch (coretap_event_kind(event)) {
		case CORETAP_STATUS:
			if (!joined)
				puts("joined");
			fflush(stdout);
			joined = true;
			continue;
		case CORETAP_GAP:
			gap += coretap_event_last(event) - coretap_event_first(event) + 1;
			fprintf(stderr, "%s\n", coretap_event_json(event, NULL));
			continue;
		case CORETAP_LOST:
			lost += coretap_event_last(event) - coretap_event_first(event) + 1;
			fprintf(stderr, "%s\n", coretap_event_json(event, NULL));
			continue;
		case CORETAP_NEW_RUN:
			runs++;
			expected = 0;
			fprintf(stderr, "%s\n", coretap_event_json(event, NULL));
			continue;
		case CORETAP_EVENT:
			break;
		default:
			fprintf(stderr, "%s\n", coretap_event_json(event, NULL));
			others++;
			continue;
		}
		if (!count)
			begin = cpu();
		count++;
		if (strncmp(coretap_event_topic(event), "mempool.", 8) ||
		    coretap_get_hash(event, "txid", &txid) != CORETAP_SET)
			continue;
		for (int i = 24; i < 32; i++)
			index = index << 8 | txid[i];
		if (!first)
			first = index + 1;
		if (index != expected) {
			if (!wrong++)
				wrong_at = expected;
		}
		expected = index + 1;
		if (file)
			fprintf(file, "%" PRIu64 "\n", index);
	}
	if (file)
		fclose(file);
	if (position)
		coretap_commit(tap);
	printf("{\"count\": %" PRIu64 ", \"gap\": %" PRIu64 ", \"lost\": %" PRIu64
	       ", \"wrong\": %" PRIu64 ", \"wrong_at\": %" PRIu64 ", \"first\": %" PRIu64
	       ", \"runs\": %" PRIu64 ", \"replayed\": %" PRIu64 ", \"duplicates\": %" PRIu64
	       ", \"cpu\": %.0f}\n",
	       count, gap, lost, wrong, wrong_at, first, runs,
	       coretap_count(tap, CORETAP_COUNT_REPLAYED),
	       coretap_count(tap, CORETAP_COUNT_DUPLICATES),
	       count ? (cpu() - begin) / (double)count : 0);
	coretap_close(tap);
	return 0;
}
