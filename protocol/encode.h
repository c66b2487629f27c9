/* Values and envelopes as msgpack: the writing half of the wire contract (README.md here).
 *
 * Every function appends to an msgpack_sbuffer. Running out of memory is the only failure there is:
 * the buffer then lacks bytes. */
#ifndef CORETAP_ENCODE_H
#define CORETAP_ENCODE_H

#include <msgpack.h>

#include "catalogue.h"

enum value_state {
	VALUE_ABSENT, /* this binary has no such argument: the key is left out */
	VALUE_NIL,    /* could not be read */
	VALUE_SET,
};

/* One element of value.list is nil when its bit is set in missing[index]. */
struct value_list {
	const void *items; /* HASHES: 32 bytes each, else 8 */
	size_t count;
	const uint8_t *missing;
	uint8_t bit;
};

/* Transactions that left with a block; arrays of n elements. missing holds MISSING_ bits. */
struct removals {
	size_t n;
	uint8_t (*txids)[32]; /* internal order */
	int64_t *fees;
	uint64_t *vsizes;
	uint64_t *entry_times;
	uint64_t *after; /* conflicts only */
	uint8_t *missing;
};

enum { MISSING_TXID = 1, MISSING_FEE = 2, MISSING_VSIZE = 4, MISSING_ENTRY_TIME = 8 };

/* The value of one field; which member counts follows from the field's type. */
struct value {
	enum value_state state;
	union {
		uint64_t u; /* UINT, NETWORK */
		int64_t i;  /* INT, US_TO_NS (in nanoseconds already) */
		bool b;
		struct {
			const void
				*data; /* HASH and ALIAS: 32 bytes, internal order; TEXT; PAYLOAD */
			size_t len;
		} bytes;
		struct value_list list;
		const struct removals *conflicts;
	};
};

/* For msgpack's packers, in the place of msgpack_sbuffer_write: memory that lacks once makes the
 * whole buffer void, so that no half of a message is ever taken for a whole one. Who uses what was
 * packed asks encode_whole first. */
int encode_write(void *buffer, const char *data, size_t len);
bool encode_whole(const msgpack_sbuffer *out);

/* Text of whatever origin, as valid UTF-8: what is not becomes U+FFFD. */
void encode_text(msgpack_sbuffer *out, const char *text, size_t len);

/* One event: a map of time_us and the event's fields (values[i] belongs to event->fields[i]).
 * Returns false, having added nothing, when memory is lacking. */
bool encode_event(msgpack_sbuffer *out, const struct event_desc *event, uint64_t time_us,
		  const struct value *values);

/* The envelope up to its events. lost = 0 leaves the key out. Returns the place that
 * encode_message_end fills in when the number of events (at most 65,535) is known. */
size_t encode_message_begin(msgpack_sbuffer *out, const char *node, uint64_t run, uint32_t pid,
			    uint64_t n, uint64_t seq, uint64_t lost);
void encode_message_end(msgpack_sbuffer *out, size_t place, unsigned int events);

/* bridge.status and bridge.stopping: one topic of the socket that the message is for. */
struct topic_status {
	const char *topic;
	uint64_t head; /* last number accounted for, 0 = none */
	uint64_t fired, submitted, lost, faults, truncated;
};

struct bridge_status {
	const char *node;
	uint64_t run;
	enum socket_id socket;
	uint64_t time_us;
	uint64_t n;		 /* last position sent, 0 = none */
	uint64_t held;		 /* first position that replay has; n + 1 = none */
	const char *replay;	 /* "ok", "degraded", "off" */
	uint32_t pid;		 /* the process that is traced, 0 = none (nil) */
	const uint32_t *ignored; /* other processes of the binary */
	size_t n_ignored;
	bool guarded;	   /* connections are refused for want of a key */
	uint64_t rejected; /* so many were */
	const struct topic_status *topics;
	size_t n_topics;
};

void encode_status(msgpack_sbuffer *out, const struct bridge_status *status);

/* Events of the catalogue as an array of maps: what events.json has under "events". */
void encode_catalogue(msgpack_sbuffer *out, const struct event_desc *const *events, size_t n);

#endif
