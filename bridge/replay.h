/* The ROUTER socket that answers subscribers' questions: what there is, and what they missed. */
#ifndef CORETAP_REPLAY_H
#define CORETAP_REPLAY_H

#include "bridge.h"

/* Binds the endpoints. Returns 0 or -errno, said in the log. */
int replay_open(struct replay **replay, struct publisher *publisher,
		const char *const endpoints[MAX_ENDPOINTS]);
void replay_close(struct replay *replay); /* NULL is fine */

/* Readable when there may be a request. Edge-triggered: replay_serve until it returns false. */
int replay_fd(struct replay *replay);

/* What was asked and answered so far. */
struct replay_counters {
	uint64_t hello, catalogue, replay, error; /* answers */
	uint64_t bytes;				  /* of messages in them */
	uint64_t gone;				  /* positions asked for that were no longer held */
};
const struct replay_counters *replay_counters(const struct replay *replay);

/* Answers at most one request, with at most 1 MiB: the live stream has its turn in between.
 * Returns whether one was there. */
bool replay_serve(struct replay *replay, struct bridge *bridge);

#endif
