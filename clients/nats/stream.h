/* The stream as its leader knows it: where it ends, and what it has of a node. */
#ifndef CORETAP_NATS_STREAM_H
#define CORETAP_NATS_STREAM_H

#include <nats/nats.h>

#include "place.h"

#define SUBJECT_PREFIX "coretap."
#define TOPIC_GAP "bridge.gap."	    /* then the topic that it is about */
#define TOPIC_STALE "bridge.stale." /* then the socket */

/* Headers of a message, beside those of JetStream. */
#define HEADER_ORIGIN "Coretap"	       /* SOCKET FORWARDER */
#define HEADER_STATUS "Coretap-Status" /* of a status: sequence of the other socket's last one */

/* coretap. label . topic; the longest topic that the library lets pass has 96 bytes. */
#define MAX_SUBJECT 192

/* Statuses and notices have room in it, and all messages of coretapd's but for single large events.
 */
#define STREAM_LEAST_MESSAGE (32 << 10)

struct stream {
	jsCtx *js;
	const char *name;
	uint64_t last;	    /* sequence of the last message, when it was opened */
	size_t max_message; /* bytes of headers and body that server and stream take */
	char reason[256];   /* why something failed */
};

/* Whether a stream can have this name. False after saying why not; what names the option. */
bool stream_name_check(const char *what, const char *name);

/* Asks the leader. Returns 0; -EAGAIN: it cannot tell now; -EINVAL: the stream is not one that this
 * can use. */
int stream_open(struct stream *stream, natsConnection *connection, const char *name);
void stream_close(struct stream *stream);

/* Moves the position to what the stream has of a node. Returns 0, -EAGAIN or -ENOMEM. */
int stream_position(struct stream *stream, const char *label, struct position *position);

/* Asks for the sequence that the stream ends with now. Returns 0, -EAGAIN or -ENOMEM. */
int stream_ends(struct stream *stream, uint64_t *last);

/* Whether the last message was, or may have been, published by somebody else, or a negative errno
 * value with stream->reason. */
int stream_has_other_writer(struct stream *stream, const char *writer);

/* Whether the last message has this id, or a negative errno value with stream->reason. */
int stream_ends_with(struct stream *stream, const char *id);

#endif
