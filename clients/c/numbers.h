/* What comes next of each topic, for each node.
 *
 * An address normally carries one node. A forwarder may merge several, so everything is kept for
 * each label; runs of different labels have nothing to do with each other. */
#ifndef CORETAP_NUMBERS_H
#define CORETAP_NUMBERS_H

#include "event.h"

struct topic {
	struct topic *after;
	/* Number of the next firing that is to be told; 0 = not known yet, the first message tells.
	 */
	uint64_t next;
	uint64_t at;  /* position up to which this topic was taken */
	bool partial; /* next may stand within a message: it comes from a saved position */
	const struct event_desc *desc;
	size_t length;
	char name[];
};

struct node {
	struct node *after;
	uint64_t run;
	uint64_t n;	       /* last position taken */
	uint64_t sure;	       /* position up to which everything wanted was taken for sure */
	bool fresh;	       /* the run is known from its beginning: topics start with 1 */
	bool settled;	       /* of topics not known yet nothing was taken beyond `sure` */
	bool heard;	       /* else it comes from a saved position only */
	uint64_t told_old_run; /* OLD_RUN was told for this one */
	struct topic *topics;
	unsigned int n_topics;
	size_t length;
	char label[DECODE_MAX_LABEL + 1];
};

/* All zeros is an empty one. */
struct numbers {
	struct node *nodes;
	unsigned int n_nodes;
};

void numbers_free(struct numbers *numbers);

/* Both find or add. NULL with 0 in *err: there are too many. A node that nobody heard of since its
 * position was saved gives its place to a new one. */
struct node *numbers_node(struct numbers *numbers, const char *label, size_t length, int *err);
struct topic *numbers_topic(struct node *node, const char *name, size_t length, int *err);

/* The topic, or NULL. */
struct topic *numbers_lookup(struct node *node, const char *name, size_t length);

/* Forgets the topics of a node. */
void numbers_clear(struct node *node);

#endif
