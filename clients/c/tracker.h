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

/* Takes a message. The body must stay in place until tracker_next has returned false; only then may
 * the next message be taken. Returns 0 or -ENOMEM. */
int tracker_take(struct tracker *tracker, const char *topic, size_t topic_length, const void *body,
		 size_t body_length);

/* The same for a message that has no second frame, or otherwise is none. */
void tracker_malformed(struct tracker *tracker, const char *topic, size_t topic_length,
		       const char *reason);

/* The next event or notice of the message taken; false when there is none left. */
bool tracker_next(struct tracker *tracker, struct coretap_event *event);

/* Label and run of the last good message; "" and 0 when there was none yet. */
void tracker_last(const struct tracker *tracker, const char **node, uint64_t *run);

#endif
