/* The little of a message body that a measurement needs. */
#ifndef BENCH_ENVELOPE_H
#define BENCH_ENVELOPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct envelope {
	uint64_t run, seq, lost, n_events;
	const uint8_t *events, *end; /* the first event, the end of the body */
};

/* Returns false when the body is not one of an event message. */
bool envelope_read(const void *body, size_t length, struct envelope *envelope);

/* Takes the next event: gives its time_us and steps over it. False when there is none. */
bool envelope_next(struct envelope *envelope, uint64_t *time_us);

#endif
