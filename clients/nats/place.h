/* A place in what a node publishes: of each socket the last position, of each topic the next
 * number. Two places of one node are merged by moving to the later one. */
#ifndef CORETAP_NATS_PLACE_H
#define CORETAP_NATS_PLACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../protocol/catalogue.h"

struct place_topic {
	struct place_topic *after;
	uint64_t next;
	char name[];
};

struct place {
	uint64_t run;  /* 0 = nowhere yet */
	uint64_t n;    /* the last position of any message */
	uint64_t sure; /* the last position of a status: all topics were complete up to here */
	struct place_topic *topics;
};

/* All zeros is a new one. */
struct position {
	struct place sockets[N_SOCKETS];
};

void position_clear(struct position *position);

/* Enters the run if it is a later one, forgetting the earlier. Returns whether the place is in this
 * run: what is of an earlier one is passed over. */
bool place_enter(struct place *place, uint64_t run);

/* In the run entered, each moves forwards only. False when memory is lacking. */
void place_reach(struct place *place, uint64_t n);
bool place_topic(struct place *place, const char *topic, size_t length, uint64_t next);

#endif
