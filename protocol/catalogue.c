/* Includes events.def once, as data. */
#include <string.h>

#include "catalogue.h"

#define FLAG_0 0
#define FLAG_OPT_IN EVENT_OPT_IN
#define FLAG_DERIVED EVENT_DERIVED

/* clang-format off */
#define FIELD(name, type, slot, unit, since, doc) { #name, sizeof(#name) - 1, TYPE_##type, true, slot, since, unit, doc },
#define EXTRA(name, type, unit, doc) { #name, sizeof(#name) - 1, TYPE_##type, false, 0, 0, unit, doc },
#define EVENT(provider, name, socket, since, flags, doc, ...)                                      \
	{ #provider, #name, #provider "." #name, SOCKET_##socket, since, FLAG_##flags, doc,        \
	  (const struct field_desc[]){ __VA_ARGS__ },                                              \
	  sizeof((const struct field_desc[]){ __VA_ARGS__ }) / sizeof(struct field_desc) },
/* clang-format on */

static const struct event_desc events[] = {
#include "events.def"
};

const struct event_desc *catalogue(size_t *count)
{
	*count = sizeof(events) / sizeof(events[0]);
	return events;
}

const struct event_desc *catalogue_find(const char *topic, size_t len)
{
	for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++)
		if (strlen(events[i].topic) == len && !memcmp(events[i].topic, topic, len))
			return &events[i];
	return NULL;
}

const char *field_type_name(enum field_type type)
{
	static const char *const names[] = {
		[TYPE_UINT] = "uint",	  [TYPE_INT] = "int",
		[TYPE_US_TO_NS] = "int",  [TYPE_BOOL] = "bool",
		[TYPE_HASH] = "hash",	  [TYPE_TEXT] = "text",
		[TYPE_NETWORK] = "text",  [TYPE_PAYLOAD] = "bin",
		[TYPE_ALIAS] = "hash",	  [TYPE_SELECT] = "bool",
		[TYPE_HASHES] = "hashes", [TYPE_UINTS] = "uints",
		[TYPE_INTS] = "ints",	  [TYPE_CONFLICTS] = "conflicts",
	};
	return names[type];
}

const char *field_wire_type(enum field_type type)
{
	static const char *const names[] = {
		[TYPE_UINT] = "uint",
		[TYPE_INT] = "int",
		[TYPE_US_TO_NS] = "int",
		[TYPE_BOOL] = "bool",
		[TYPE_HASH] = "bin",
		[TYPE_TEXT] = "str",
		[TYPE_NETWORK] = "str",
		[TYPE_PAYLOAD] = "bin",
		[TYPE_ALIAS] = "bin",
		[TYPE_SELECT] = "bool",
		[TYPE_HASHES] = "array of bin",
		[TYPE_UINTS] = "array of uint",
		[TYPE_INTS] = "array of int",
		[TYPE_CONFLICTS] = "map",
	};
	return names[type];
}

const char *socket_name(enum socket_id socket)
{
	return socket == SOCKET_LOW ? "low" : "high";
}

const char *network_name(uint64_t number)
{
	/* Bitcoin Core, GetNetworkName() over enum Network. */
	static const char *const names[] = {
		"not_publicly_routable", "ipv4", "ipv6", "onion", "i2p", "cjdns", "internal",
	};
	return number < sizeof(names) / sizeof(names[0]) ? names[number] : "unknown";
}
