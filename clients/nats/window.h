/* Publishing in a chain: each message says which sequence the stream must end with before it, and
 * stays the message of that sequence until it is stored.
 *
 * So the server stores exactly what was sent, in the order in which it was sent, or stops at the
 * first message that did not come through: what follows does not fit any more. After a failure the
 * stream is asked where it ends, and what it does not have is sent again as it was, over another
 * connection: whether a copy of before arrives after all makes no difference. An acknowledgement
 * speaks of all messages before it as well.
 *
 * Two writers must not be under way at once: a message can find a stream of the length that it
 * expects although it was the other who filled it. Hence nothing is sent while the oldest message
 * has waited for longer than WINDOW_LEASE_MS, and nobody takes over before a stream has been silent
 * for longer than that.
 *
 * Acknowledgements arrive in a thread of libnats; all functions here are called from one other. */
#ifndef CORETAP_NATS_WINDOW_H
#define CORETAP_NATS_WINDOW_H

#include <nats/nats.h>

#include "../../protocol/catalogue.h"

#define WINDOW_LEASE_MS 1500
#define WINDOW_ID 256

struct window;

struct window_options {
	const char *stream;
	const char *writer;	/* names this process, in each message */
	size_t messages, bytes; /* that may wait for their acknowledgement */
	int64_t timeout_ms;	/* for the oldest of them */
	int wake;		/* an eventfd that is written to when something has changed */
};

/* What a message moves on once it is stored. */
struct mark {
	void *owner;
	unsigned int label; /* of the owner's, which may have another one when it is stored */
	enum socket_id socket;
	uint64_t run, n, next;
	bool status; /* n is one of a status; else next is one of topic */
	char topic[100];
};

struct message {
	const char *subject, *id; /* the id is made unique by that of the writer */
	const void *body;
	size_t length;
	uint64_t other_status; /* of a status */
	struct mark mark;
};

/* last: the sequence that the stream ends with. NULL when memory is lacking. */
struct window *window_open(const struct window_options *options, uint64_t last);
void window_close(struct window *window);

/* Whether the stream can end with this sequence: what is stored of this window and what waits are
 * known. */
bool window_holds(const struct window *window, uint64_t last);

/* What a message that is not stored yet, as far as the window knows, is called in the stream. */
void window_id(const struct window *window, uint64_t sequence, char id[WINDOW_ID]);

/* Goes on over a connection, with a stream that ends with last, which the window must hold. Returns
 * 0, or -EAGAIN with window_failure. */
int window_attach(struct window *window, natsConnection *connection, uint64_t last);

/* Closes the connection, which is the caller's to destroy. */
void window_detach(struct window *window);

/* Whether another message may be published. */
bool window_has_room(const struct window *window);

/* Takes and sends a message. Returns its sequence, 0 when memory is lacking. */
uint64_t window_publish(struct window *window, const struct message *message);

/* Hands over what was stored since the last call, in order. */
void window_settle(struct window *window, void (*stored)(const struct mark *mark));

/* Why nothing more can be stored over this connection, NULL as long as it can. *code is
 * JetStream's, 0 = none, or this: the message is in the stream at another place already. */
#define WINDOW_ELSEWHERE (-1)
const char *window_failure(struct window *window, int *code);

/* Last sequence that was stored, last one that was sent, and how many messages wait. */
uint64_t window_stored(const struct window *window);
uint64_t window_sent(const struct window *window);
size_t window_waiting(const struct window *window);

#endif
