/* One socket's stream: what is expected next of each topic, and what of it did not come.
 *
 * Knows neither sockets nor clocks. A message goes in with tracker_take; its events, and the
 * notices that belong before them, come out with tracker_next. */
#ifndef CORETAP_TRACKER_H
#define CORETAP_TRACKER_H

#include "event.h"

struct tracker;

/* What is subscribed to: topics, and prefixes that end with a dot or are empty. */
struct filter {
	char **names;
	size_t n_names;
};

bool filter_matches(const struct filter *filter, const char *topic, size_t length);

/* counters has a place for each enum coretap_counter. Both arguments must outlive the stream.
 * NULL when memory is lacking. */
struct tracker *tracker_new(enum socket_id socket, const struct filter *filter, uint64_t *counters);

void tracker_free(struct tracker *tracker);

/* How much of a socket is received. */
enum coverage {
	COVERS_TOPIC, /* one topic: its numbers show what is missing */
	COVERS_PART,  /* several: what is missing of one may show only after others went on */
	COVERS_WHOLE, /* everything: positions have no holes, and show at once what is missing */
};

void tracker_set_coverage(struct tracker *tracker, enum coverage coverage);

/* Where a message comes from, and so what is known about what precedes it. */
enum origin {
	ORIGIN_LIVE,   /* what is missing before it may be had from replay */
	ORIGIN_FINAL,  /* what is missing before it is gone for good */
	ORIGIN_REPLAY, /* the same; only of the run that the stream is in */
};

/* What tracker_take returns when something is missing before a live message. Nothing was taken:
 * fill the gap, then take it again with ORIGIN_FINAL. */
#define TRACKER_MISSING 1

/* The same for a message from replay that is not of the run that was asked for: told as malformed.
 */
#define TRACKER_FOREIGN 2

/* Takes a message. The body must stay in place until tracker_next has returned false; only then may
 * the next message be taken. Returns 0, TRACKER_MISSING, TRACKER_FOREIGN or -ENOMEM. */
int tracker_take(struct tracker *tracker, enum origin origin, const char *topic,
		 size_t topic_length, const void *body, size_t body_length);

/* The same for a message that has no second frame, or otherwise is none. */
void tracker_malformed(struct tracker *tracker, const char *topic, size_t topic_length,
		       const char *reason);

/* The next event or notice of the message taken; false when there is none left. */
bool tracker_next(struct tracker *tracker, struct coretap_event *event);

/* The message taken, when it is one with events or a loss that is passed on; else NULL. */
const struct coretap_message *tracker_message(const struct tracker *tracker);

/* Counts the events that the message taken still has as told. */
void tracker_skip(struct tracker *tracker);

/* Label and run of the last good message; "" and 0 when there was none yet. */
void tracker_last(const struct tracker *tracker, const char **node, uint64_t *run);

/* ---- filling gaps ---- */

/* After TRACKER_MISSING: where to begin and where it ends. */
struct missing {
	uint64_t run;	      /* of the stream; 0 = it had none yet */
	uint64_t after;	      /* its position there: everything wanted up to it was taken */
	uint64_t message_run; /* of the message */
	uint64_t before;      /* the last position before the message */
	bool replay_off;      /* the last status said so */
};

void tracker_missing(const struct tracker *tracker, struct missing *missing);

/* Whether the first live message is to be treated as if something were missing before it. */
void tracker_want_past(struct tracker *tracker);

/* Enters a run of the node that the missing message is of. fresh: from its beginning, so each topic
 * starts with 1; else as after joining. When another run came before, tracker_next tells the new
 * one. Returns 0 or -ENOMEM. */
void tracker_enter(struct tracker *tracker, uint64_t run, bool fresh);

/* Replay has been asked for everything up to a position of the present run. */
void tracker_reach(struct tracker *tracker, uint64_t n);

/* heads is what a run ended with: tracker_next tells what did not come up to there. It may name
 * topics of other sockets. It must stay in place until tracker_next has returned false. */
void tracker_tell_heads(struct tracker *tracker, const struct cursor *heads);

/* Lets tracker_next tell that the past could not be had. */
void tracker_no_replay(struct tracker *tracker, const char *reason);

/* ---- positions ---- */

/* Adds the position to a text, see position.h; nothing when there is none yet. What was returned by
 * tracker_next counts as taken. */
void tracker_save(const struct tracker *tracker, struct json *text);

/* Puts a stream that is still empty to a position; then each topic's next number, and where it
 * stood if that is before (else UINT64_MAX). Returns 0 or -ENOMEM. */
int tracker_restore(struct tracker *tracker, const char *label, size_t length, uint64_t run,
		    uint64_t n);
int tracker_restore_topic(struct tracker *tracker, const char *name, size_t length, uint64_t next,
			  uint64_t at);

#endif
