/* What `coretap play` publishes: the messages of a recording under numbers of their own.
 *
 * A recording may begin anywhere, span several runs and lack topics. Played, everything is one run
 * in which each socket's positions and each topic's numbers count on from 1. Firings that the
 * recording lacks become `lost`, so subscribers learn of them. */
#ifndef CORETAP_PLAYLIST_H
#define CORETAP_PLAYLIST_H

#include <msgpack.h>

#include "recording.h"

struct played {
	size_t offset;	  /* of the record, for recording_next */
	uint64_t time_us; /* of its first event */
	uint64_t n, seq, lost;
	uint32_t events;
	uint32_t topic;
	uint64_t n_block; /* block.evictions: where its block_connected stands now, 0 = nowhere */
};

struct played_topic {
	const char *name;
	size_t length;
	enum socket_id socket;
	uint64_t next; /* number after the last one of all */
	uint64_t head; /* last number that was published */
	uint64_t lost; /* of that, lost */
	/* While the list is made: */
	uint64_t run, recorded_next;
};

struct playlist {
	struct recording recording;
	char label[DECODE_MAX_LABEL + 1];
	uint64_t run;
	struct played *played[N_SOCKETS];
	size_t n[N_SOCKETS];	    /* all */
	size_t n_played[N_SOCKETS]; /* published so far */
	struct played_topic *topics;
	size_t n_topics;
	size_t torn, malformed; /* bytes at the end; records that are no messages */
};

/* Reads the whole recording. Returns 0, -EBADMSG when it is none, or -errno. */
int playlist_open(struct playlist *list, const char *path);
void playlist_close(struct playlist *list);

/* The message as it is published. body is initialised here; the caller destroys it. */
void playlist_encode(const struct playlist *list, const struct played *played,
		     msgpack_sbuffer *body);

#endif
