/* The numbering of one socket: turns events and losses into whole messages, in order.
 *
 * A message is a run of consecutive events of one topic and one process; another topic, a loss or
 * the end of the drain ends it. Finished messages are kept until the caller has sent them. */
#ifndef CORETAP_STREAM_H
#define CORETAP_STREAM_H

#include "../protocol/encode.h"

#define MESSAGE_MAX_EVENTS 256
#define MESSAGE_MAX_BYTES 16384 /* unless a single event is larger */

struct message {
	unsigned int topic; /* index in the table of topics */
	unsigned int events;
	uint64_t n;	  /* position of its first event */
	uint32_t notices; /* messages before it with the same n: loss notices, which take no
			     position */
	uint64_t time_us; /* of its last event, 0 for a loss notice */
	char *data;	  /* body; malloc'ed, whoever takes it sets it to NULL */
	size_t len;
};

struct stream {
	const char *node;
	uint64_t run;
	uint64_t next_n;
	uint64_t last_n;     /* of the last finished message */
	uint32_t notices;    /* finished messages with that n, but the last one */
	uint64_t *next_seq;  /* per topic */
	uint64_t *told_lost; /* per topic: of the kernel's count, what was told already */
	size_t n_topics;
	struct message *messages;
	size_t n_messages;
	size_t capacity;
	/* the message that is still open */
	msgpack_sbuffer open;
	bool is_open;
	unsigned int open_topic;
	uint32_t open_pid;
	unsigned int open_events;
	size_t open_place;
	uint64_t open_n;
	uint64_t open_time_us;
};

/* Starts a numbering at 1. node must outlive the stream. Returns 0 or -ENOMEM. */
int stream_init(struct stream *stream, const char *node, uint64_t run, size_t n_topics);
void stream_free(struct stream *stream);

/* Appends one event and returns its position n. lost is the kernel's count of losses of this topic
 * before this event; what was not told yet is told in front of it. */
uint64_t stream_event(struct stream *stream, unsigned int topic, const struct event_desc *event,
		      uint32_t pid, uint64_t lost, uint64_t time_us, const struct value *values);

/* Tells losses of a topic that no event followed. */
void stream_loss(struct stream *stream, unsigned int topic, uint32_t pid, uint64_t lost);

/* Finishes the open message: nothing waits for the next drain. */
void stream_flush(struct stream *stream);

/* The position of the last event that is not in the open message, which nobody can have yet. */
uint64_t stream_finished(const struct stream *stream);

/* Forgets the finished messages and frees the bodies that nobody took. */
void stream_clear(struct stream *stream);

#endif
