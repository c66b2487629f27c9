/* The catalogue against one binary's notes: which tracepoints are there, where their arguments
 * stand, and how a record of the ring becomes values. */
#ifndef CORETAP_TRACEPOINTS_H
#define CORETAP_TRACEPOINTS_H

#include "../bpf/record.h"
#include "../protocol/encode.h"
#include "declarations.h"
#include "probes.h"

enum tracepoint_state {
	TRACEPOINT_OFF,	     /* not wanted */
	TRACEPOINT_MISSING,  /* this binary does not have it */
	TRACEPOINT_DEGRADED, /* some argument cannot be read; that field is nil */
	TRACEPOINT_OK,
};

/* One event of the catalogue. Its index in the table is its number for kernel and streams. */
struct tracepoint {
	const struct event_desc *event;
	const struct declaration *declared; /* NULL: built in */
	bool selected;			    /* is published */
	bool wanted; /* is attached: selected, or something selected derives from it */
	enum tracepoint_state state;
	uint16_t offset[MAX_FIELDS];   /* of each field's slot, from record.slots */
	int8_t argument[MAX_FIELDS];   /* number of each field's argument, -1 = none */
	unsigned int n_arguments;      /* that the catalogue knows */
	uint8_t payload_arg, rule_arg; /* as in struct site */
	uint32_t record_size;
};

/* A site is a tracepoint's, or one of the two that belong to a function. */
enum site_kind { SITE_TRACEPOINT, SITE_ENTRY, SITE_RETURN };

#define NO_TRACEPOINT UINT16_MAX /* makes no records */

/* What the bridge must know of a site beyond what the kernel is told. */
struct site_info {
	uint16_t tracepoint;
	uint8_t kind;	  /* enum site_kind */
	uint8_t n_args;	  /* that this binary passes, of those that the catalogue knows */
	bool duration_us; /* block_connected of v23 and v24 counts microseconds */
	uint64_t offset;
	uint64_t semaphore;
	const char *args; /* the note's text; belongs to the probes that were bound */
};

struct tracepoints {
	struct tracepoint table[MAX_PROBES];
	size_t n;
	size_t start; /* number of the process start, which is no event of the catalogue */
	struct site sites[MAX_SITES];
	struct site_info info[MAX_SITES];
	size_t n_sites[MAX_GROUPS];   /* those of group g begin at g * GROUP_SITES */
	uint32_t payload_limit;	      /* for events with a payload: bytes to copy unless a rule says
					 otherwise */
	const char *core[MAX_GROUPS]; /* detected range of versions */
	unsigned int refused; /* declarations that do not fit the binary that was bound last */
};

/* Fills the table from the catalogue and what was declared. selected(arg, event) tells which are
 * wanted. Returns 0, or -E2BIG when the catalogue has outgrown record.h. */
int tracepoints_init(struct tracepoints *tps, const struct declarations *declarations,
		     bool (*selected)(const void *arg, const struct event_desc *event),
		     const void *arg);

/* Binds the table to one binary, which fd and path lead to: fills the sites and infos of a group,
 * and the states; logs what is degraded. A declaration that the binary contradicts is an error that
 * is logged and counted in tps->refused, and its event is missing. No record of the group's earlier
 * sites may be left in the rings. Returns the number of tracepoints that can be attached, or -E2BIG
 * for too many sites. */
int tracepoints_bind(struct tracepoints *tps, unsigned int group, struct probes *probes, int fd,
		     const char *path);

/* Whether the binary that was bound as a group has sites of a tracepoint; the states are those of
 * the one that was bound last. */
bool tracepoints_has(const struct tracepoints *tps, unsigned int group, size_t number);

/* Whether a function is to be timed. */
bool tracepoints_want_functions(const struct tracepoints *tps);

/* The tracepoint that a record belongs to, or NULL for a record of the process start. */
const struct tracepoint *tracepoints_of(const struct tracepoints *tps, const struct record *record);

/* The number of the tracepoint that a record belongs to: tps->start for a process start. */
size_t tracepoints_number(const struct tracepoints *tps, const struct record *record);

/* The fields of a record: values must have room for MAX_FIELDS; they point into the record.
 * Fields that the bridge adds are absent. */
void tracepoints_values(const struct tracepoints *tps, const struct record *record,
			struct value *values);

const char *tracepoint_state_name(enum tracepoint_state state);

#endif
