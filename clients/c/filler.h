/* Fetches from replay what is missing before a message that is held back meanwhile.
 *
 * A walk in pages: the rest of the run that the stream is in; where the message is of a later run,
 * what the old one ended with, and each run that came and went meanwhile; then that run up to the
 * message. A question without an answer is asked again from a new connection, for five seconds;
 * from then on gaps are told at once, until replay answers again. */
#ifndef CORETAP_FILLER_H
#define CORETAP_FILLER_H

#include "tracker.h"
#include "transport.h"

struct filler;

/* Both pointers must outlive the filler. NULL when memory is lacking. */
struct filler *filler_new(struct transport *transport, enum socket_id socket,
			  struct tracker *tracker, const struct filter *filter);
void filler_free(struct filler *filler);

/* Everything from a time on (Unix microseconds, 0 = the oldest held) is wanted, before the first
 * live message. */
void filler_want_since(struct filler *filler, uint64_t time_us);

/* Begins after tracker_take has returned TRACKER_MISSING. */
void filler_begin(struct filler *filler, int64_t now_ms);

enum filled {
	FILLER_WAITS, /* nothing has arrived */
	FILLER_TELLS, /* the tracker has something; call again when tracker_next has returned false
		       */
	FILLER_DONE,  /* take the message that is held, with ORIGIN_FINAL */
};

/* Makes the next step. Returns enum filled or -ENOMEM. */
int filler_step(struct filler *filler, int64_t now_ms);

/* While nothing is to be filled: finds out whether a replay that did not answer does again. */
void filler_idle(struct filler *filler, int64_t now_ms);

/* When to call one of the two again although nothing arrived; INT64_MAX = not before it does. */
int64_t filler_deadline(const struct filler *filler);

/* Whether replay does not answer. */
bool filler_down(const struct filler *filler);

#endif
