/* An event or notice as the library holds it. */
#ifndef CORETAP_EVENT_H
#define CORETAP_EVENT_H

#include "../../protocol/json.h"
#include "coretap.h"

#define MAX_TOPIC 96 /* bytes of a topic, a limit of this library against rogue publishers */

/* A message as it came. */
struct coretap_message {
	enum socket_id socket;
	const char *topic;
	size_t topic_length;
	const void *body;
	size_t body_length;
	const struct message_body *decoded; /* NULL: a status */
};

struct coretap_event {
	enum coretap_kind kind;
	enum socket_id socket;
	const char *topic; /* NUL-terminated, "" = none */
	const char *node;  /* the same */
	const char *reason;
	uint64_t run, old_run, seq, n, pid, time_us, first, last;

	struct item map; /* fields, of kind ITEM_MAP where there are any */
	struct cursor hint;
	const struct message_body *message;   /* CORETAP_EVENT: the message it stands in */
	const struct coretap_message *frames; /* STATUS and STOPPING: as they came */
	uint64_t index;			      /* CORETAP_EVENT: its place there */
	struct json *json;		      /* the handle's buffer */
};

/* Has a function called with each message that is passed on, once and in order, before its events
 * are. For the command only: not exported. */
void coretap_observe(struct coretap *tap,
		     void (*observe)(void *arg, const struct coretap_message *message), void *arg);

/* Passes over the events that the present message still has: who takes messages whole needs them no
 * more. For the forwarder only: not exported. */
void coretap_skip(struct coretap *tap);

/* Puts a socket that is subscribed to where a message of this position was the last one taken, and
 * then its topics to their next numbers; for who keeps the place elsewhere than in a file. Where
 * coretap_since was called, it holds for the sockets that were not put anywhere. Before the first
 * coretap_next, else -EBUSY; -EINVAL: not subscribed to, or not a label or topic; -ENOMEM. For the
 * forwarder only: not exported. */
int coretap_restore(struct coretap *tap, enum socket_id socket, const char *label, uint64_t run,
		    uint64_t n);
int coretap_restore_topic(struct coretap *tap, enum socket_id socket, const char *topic,
			  uint64_t next);

/* Whether gaps of a socket are told because replay does not answer, not because it has nothing. */
bool coretap_replay_down(const struct coretap *tap, enum socket_id socket);

/* Whether a topic has only letters, digits, '_', '-' and '.', and is neither empty nor too long. */
bool topic_valid(const char *topic, size_t length);

#endif
