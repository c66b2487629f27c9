/* One socket's stream: what is expected next of each topic, and what of it did not come.
 *
 * Knows neither sockets nor clocks. A message goes in with stream_take; its events, and the notices
 * that belong before them, come out with stream_next. */
#ifndef CORETAP_STREAM_H
#define CORETAP_STREAM_H

#include "event.h"

struct stream;

/* What is subscribed to: topics, and prefixes that end with a dot or are empty. */
struct filter {
	char **names;
	size_t n_names;
};

bool filter_matches(const struct filter *filter, const char *topic, size_t length);

/* counters has a place for each enum coretap_counter. Both arguments must outlive the stream.
 * NULL when memory is lacking. */
struct stream *stream_new(enum socket_id socket, const struct filter *filter, uint64_t *counters);

void stream_free(struct stream *stream);

/* Takes a message. The body must stay in place until stream_next has returned false; only then may
 * the next message be taken. Returns 0 or -ENOMEM. */
int stream_take(struct stream *stream, const char *topic, size_t topic_length, const void *body,
		size_t body_length);

/* The same for a message that has no second frame, or otherwise is none. */
void stream_malformed(struct stream *stream, const char *topic, size_t topic_length,
		      const char *reason);

/* The next event or notice of the message taken; false when there is none left. */
bool stream_next(struct stream *stream, struct coretap_event *event);

/* Label and run of the last good message; "" and 0 when there was none yet. */
void stream_last(const struct stream *stream, const char **node, uint64_t *run);

#endif
