/* The catalogue in memory: what events there are and what their fields mean. */
#ifndef CORETAP_CATALOGUE_H
#define CORETAP_CATALOGUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The type of a field never changes with its value. On the wire each may also be nil. */
enum field_type {
	TYPE_UINT,     /* msgpack integer, >= 0 */
	TYPE_INT,      /* msgpack integer */
	TYPE_US_TO_NS, /* an INT whose argument counts microseconds, published in nanoseconds */
	TYPE_BOOL,     /* msgpack bool */
	TYPE_HASH,     /* bin, 32 bytes, in the order that RPC prints; the argument points to the
			  reverse */
	TYPE_TEXT,     /* str, valid UTF-8; the argument points to a NUL-terminated string */
	TYPE_NETWORK,  /* str; the argument is a number */
	TYPE_PAYLOAD,  /* bin; the argument points to as many bytes as the field before it says */
	TYPE_ALIAS,  /* HASH: name of the field before it when the event's SELECT argument is false
		      */
	TYPE_SELECT, /* bool argument, not published */
	TYPE_HASHES, /* array of HASH */
	TYPE_UINTS,  /* array of UINT */
	TYPE_INTS,   /* array of INT */
	TYPE_CONFLICTS, /* map of arrays: txids, fees, vsizes, entry_times, after */
};

enum socket_id { SOCKET_LOW, SOCKET_HIGH, N_SOCKETS };

enum event_flags {
	EVENT_OPT_IN = 1,   /* published only when --only names it */
	EVENT_DERIVED = 2,  /* made by the bridge, no tracepoint */
	EVENT_DECLARED = 4, /* not built in: from a file of the operator */
};

#define MAX_FIELDS 16

struct field_desc {
	const char *name;
	uint8_t name_len;
	enum field_type type;
	bool argument;	/* takes the tracepoint's next argument; false: added by the bridge */
	uint16_t slot;	/* bytes in the kernel's record */
	uint16_t since; /* first Core version that passes it, 0 = with the tracepoint */
	const char *unit;
	const char *doc;
};

struct event_desc {
	const char *provider;
	const char *name;
	const char *topic; /* "provider.name"; a declared event may have another one */
	enum socket_id socket;
	unsigned int since; /* first Core version, 0 when derived */
	unsigned int flags; /* enum event_flags */
	const char *doc;
	const struct field_desc *fields;
	unsigned int n_fields;
};

/* The built-in events; never NULL, never changes. */
const struct event_desc *catalogue(size_t *count);

/* The event with this topic, or NULL. */
const struct event_desc *catalogue_find(const char *topic, size_t len);

/* Names as documents and JSON print them. */
const char *field_type_name(enum field_type type);
const char *socket_name(enum socket_id socket);

/* The msgpack type that carries a field: "uint", "int", "bool", "bin", "str", "array of bin",
 * "array of uint", "array of int" or "map". */
const char *field_wire_type(enum field_type type);

/* Text of TYPE_NETWORK, as RPC prints it; "unknown" for a number that no version defines. */
const char *network_name(uint64_t number);

/* Topics outside the catalogue: they carry the bridge's own state, have no number and are never
 * replayed. */
#define TOPIC_STATUS "bridge.status"
#define TOPIC_STOPPING "bridge.stopping"

#define WIRE_VERSION 1
#define DEFAULT_PORT 28370

#endif
