/* Publishing in a chain: each message says which sequence, and which message of this window, the
 * stream must end with before it.
 *
 * So the server stores exactly what was sent, in the order in which it was sent, or stops at the
 * first message that did not come through: what follows does not fit any more. The same holds
 * against another writer, and against messages of a connection that was given up. The sequence alone
 * would not do: a late message can find a stream of the length that it expects, but with other
 * messages in it. Hence ids that no other window has. An acknowledgement speaks of all messages
 * before it as well. After any failure the window is done for: ask the stream what it has, and open a
 * new one there.
 *
 * Acknowledgements arrive in a thread of libnats; all functions here are called from one other. */
#ifndef CORETAP_NATS_WINDOW_H
#define CORETAP_NATS_WINDOW_H

#include <nats/nats.h>

#include "../../protocol/catalogue.h"

struct window;

struct window_options {
	const char *stream;
	const char *writer;   /* names this process, in each message */
	const char *link;     /* names this window among all that ever were */
	size_t messages, bytes; /* that may wait for their acknowledgement */
	int64_t timeout_ms;   /* for the oldest of them */
	int wake;	      /* an eventfd that is written to when something has changed */
};

/* What a message moves on once it is stored. */
struct mark {
	void *owner;
	enum socket_id socket;
	uint64_t run, n, next;
	bool status; /* n is one of a status; else next is one of topic */
	char topic[100];
};

#define MAX_ID 256

struct message {
	const char *subject, *id; /* the id is made unique by that of the window */
	const void *body;
	size_t length;
	uint64_t other_status; /* of a status */
	struct mark mark;
};

/* last: the sequence that the stream ends with. NULL when memory is lacking. */
struct window *window_open(natsConnection *connection, const struct window_options *options,
			   uint64_t last);
void window_close(struct window *window);

/* Whether another message may be published. */
bool window_has_room(const struct window *window);

/* Sends a message and returns its sequence, 0 when it could not be sent: the window has failed. */
uint64_t window_publish(struct window *window, const struct message *message);

/* Hands over what was stored since the last call, in order. */
void window_settle(struct window *window, void (*stored)(const struct mark *mark));

/* Why nothing more can be stored, NULL as long as it can. *code is JetStream's, 0 = none. */
const char *window_failure(struct window *window, int *code);

/* Last sequence that was stored, last one that was sent, and how many messages wait. */
uint64_t window_stored(const struct window *window);
uint64_t window_sent(const struct window *window);
size_t window_waiting(const struct window *window);

#endif
