/* One coretapd: its stream of messages from where the log ends, and how far that is behind. */
#ifndef CORETAP_NATS_SOURCE_H
#define CORETAP_NATS_SOURCE_H

#include "../c/event.h"
#include "place.h"
#include "window.h"

struct source_options {
	const char *address;
	const char *curve_server, *curve_secret; /* keys, NULL = not encrypted */
	char *const *topics;			 /* what is wanted, as coretap_subscribe takes it */
	size_t n_topics;			 /* 0 = everything */
	uint64_t memory;			 /* bytes that may wait in each socket */
	uint64_t status_us; /* a status is passed on when the last one is older */
};

/* How much of what is not published yet the journal still has; see source_watch. */
struct outlook {
	uint64_t run, head;
	uint64_t held, held_before, at_us, before_us;
	int level; /* what was told: 0 nothing, 1 it is about to lose, 2 it has lost */
};

struct source {
	struct source_options options;
	char label[DECODE_MAX_LABEL + 1]; /* "" = not heard yet */
	unsigned int labels;		  /* how many there were */
	struct coretap *watch;		  /* bridge.status only, always open */
	struct coretap *tap;		  /* everything that is wanted, while it can be published */
	int64_t begin_at;		  /* when tap is to be opened, 0 = not */
	unsigned int doubts;		  /* how often replay did not answer */
	uint64_t last_sent;		  /* sequence of the last message sent, 0 = none */
	bool hungry;			  /* tap may have something at hand */
	const struct coretap_message *frame; /* received, not published yet */
	struct position stored;		     /* what the log has, as far as this process knows */
	struct outlook outlook[N_SOCKETS];
	uint64_t status_us[N_SOCKETS];	/* time of the last status passed on, */
	uint64_t status_seq[N_SOCKETS]; /* and its sequence; since the tap is open */
	bool told_absent, told_off;
};

/* Returns 0 or a negative errno value, after saying why. */
int source_open(struct source *source, const struct source_options *options);
void source_close(struct source *source);

/* Begins to read after source->stored. The same. */
int source_begin(struct source *source);
void source_end(struct source *source);

/* Reads statuses: learns the label, and says when the journal is about to lose what is not
 * published yet. Returns whether the label has become known or another one. */
bool source_watch(struct source *source);

/* Takes what is next. *message is filled when there is something to publish; it lives until the
 * next call. Returns 1; 2: taken, nothing to publish; 0: nothing at hand; -ESTALE: the label has
 * changed; -EAGAIN: replay does not answer, read again from what is stored; or another negative
 * errno value. limit: bytes of the largest body that can be published; a larger one becomes a gap.
 */
struct draft {
	struct message message;
	char subject[192], id[192];
	char body[512];	       /* of a notice */
	enum socket_id status; /* the socket whose status it is, else N_SOCKETS */
	uint64_t time_us;      /* of that status */
};

int source_next(struct source *source, size_t limit, struct draft *draft);

/* Takes note that a draft was sent as a sequence. */
void source_sent(struct source *source, const struct draft *draft, uint64_t sequence);

/* Takes note that a message is in the log. */
void source_stored(const struct mark *mark);

/* Events of a socket that are not in the log yet. */
uint64_t source_behind(const struct source *source, enum socket_id socket);

#endif
