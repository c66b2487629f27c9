/* Reading the wire: message bodies as values that point into the frame.
 *
 * Pure functions over (pointer, length): no allocation, no state, nothing copied. decode_message
 * and decode_status first walk over all bytes, so that a frame which lies about its counts costs
 * nothing; what they accept, the other functions may read without looking at the length again. */
#ifndef CORETAP_DECODE_H
#define CORETAP_DECODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "catalogue.h"

#define DECODE_MAX_LENGTH (64u << 20) /* bytes of a body */
#define DECODE_MAX_DEPTH 16	      /* containers inside each other */
#define DECODE_MAX_LABEL 32	      /* bytes of a node label */
#define DECODE_REASON 128	      /* bytes for the text that says why a frame is malformed */

enum item_kind {
	ITEM_ABSENT, /* no such key */
	ITEM_NIL,    /* could not be read */
	ITEM_BOOL,
	ITEM_UINT,     /* integer >= 0, whatever its width on the wire */
	ITEM_NEGATIVE, /* integer < 0 */
	ITEM_FLOAT,
	ITEM_TEXT, /* valid UTF-8, may contain NUL */
	ITEM_BYTES,
	ITEM_EXT,
	ITEM_ARRAY,
	ITEM_MAP,
};

/* One value. Points into the frame it was read from. */
struct item {
	enum item_kind kind;
	uint32_t length; /* bytes of TEXT, BYTES and EXT, elements of ARRAY, pairs of MAP */
	union {
		bool truth;
		uint64_t number;
		int64_t negative;
		double real;
		const uint8_t *data; /* content; of a container its first element */
	};
};

/* A position in a container: item_elements or value_pairs starts it. */
struct cursor {
	const uint8_t *at;
	uint32_t left;
};

/* A message body that was found to be well-formed. */
struct message_body {
	const char *node; /* not NUL-terminated */
	uint32_t node_length;
	uint64_t run, pid, n, seq, lost;
	uint64_t next; /* seq + lost + number of events: what the topic continues with */
	struct cursor events;
};

/* A body of bridge.status or bridge.stopping. */
struct status_body {
	const char *node; /* not NUL-terminated */
	uint32_t node_length;
	enum socket_id socket;
	uint64_t run, time_us, n;
	struct cursor heads; /* pairs: topic, ITEM_UINT */
	struct item map;     /* the whole body */
};

/* Decodes the body of an event message. The keys may stand in any order, unknown ones are ignored,
 * the types of known ones are checked: those of the message itself, and, when desc is not NULL,
 * those of the event's fields (each may be nil). Returns 0, or -EBADMSG with one line in reason,
 * out being undefined then. out points into data. */
int decode_message(const void *data, size_t length, const struct event_desc *desc,
		   struct message_body *out, char reason[DECODE_REASON]);

/* The same for bridge.status and bridge.stopping. */
int decode_status(const void *data, size_t length, struct status_body *out,
		  char reason[DECODE_REASON]);

/* Walks over one msgpack value that takes exactly length bytes: counts against the bytes that
 * remain, nesting, keys that are texts, UTF-8. Returns 0 or -EBADMSG with reason. */
int decode_check(const void *data, size_t length, char reason[DECODE_REASON]);

/* Everything below reads only what one of the functions above has accepted. */

/* The value at a position. Returns the position after it, for a container that of its first
 * element. */
const uint8_t *decode_item(const uint8_t *at, struct item *out);

/* The position after the value at a position, containers with all they hold. */
const uint8_t *decode_skip(const uint8_t *at);

struct cursor item_elements(const struct item *array_or_map);

/* The next element of an array, or the next pair of a map; false at the end. */
bool cursor_element(struct cursor *cursor, struct item *out);
bool cursor_pair(struct cursor *cursor, struct item *key, struct item *out);

bool item_is(const struct item *text, const char *string);

/* The value of a key. Its kind is ITEM_ABSENT when there is none. *hint is where to begin: readers
 * who ask for keys in the order of the wire find each at once. Start it with item_elements(map).
 */
void decode_field(const struct item *map, struct cursor *hint, const char *name, size_t length,
		  struct item *out);

/* Length of the UTF-8 sequence at a position, 0 when it is not one. *point gets the code point. */
unsigned int decode_utf8(const uint8_t *at, const uint8_t *end, uint32_t *point);

#endif
