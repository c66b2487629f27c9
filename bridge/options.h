/* The command line of coretapd. */
#ifndef CORETAP_OPTIONS_H
#define CORETAP_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "declarations.h"
#include "publisher.h"
#include "tracer.h"

struct config;

#define MAX_GLOBS 64
#define DEFAULT_IPC_MODE 0666
#define MAX_DECLARATION_FILES 16

enum exit_code {
	EXIT_OTHER = 1,
	EXIT_USAGE = 2, /* usage or configuration */
	EXIT_NO_TRACEPOINTS = 3,
	EXIT_PRIVILEGE = 4,
	EXIT_ADDRESS = 5, /* address or lock in use */
	EXIT_NO_NODE = 6,
};

struct options {
	/* which node */
	const char *binary;
	pid_t pid;
	const char *pid_file;
	const char *datadir;
	const char *name; /* NULL: see node_label */
	/* which events */
	const char *only[MAX_GLOBS];
	size_t n_only;
	const char *exclude[MAX_GLOBS];
	size_t n_exclude;
	const char *tracepoints[MAX_DECLARATION_FILES];
	struct declarations declarations; /* the catalogue with what files add to it */
	char *message_types;
	struct rule rules[MAX_RULES]; /* of --payload and --message-types */
	size_t n_rules;
	uint32_t payload_limit; /* of types without a rule; RULE_DROP: they are not wanted */
	bool payloads;		/* some type wants its payload */
	/* where to */
	unsigned int port;				   /* 0: no tcp */
	const char *endpoints[N_ENDPOINTS][MAX_ENDPOINTS]; /* none: loopback tcp and ipc */
	size_t subscriber_memory;
	/* how */
	size_t ring_bytes[N_SOCKETS];
	bool journal;		       /* false: --journal none */
	const char *journal_directory; /* NULL: under the run directory */
	size_t journal_bytes[N_SOCKETS];
	bool keep_attached;
	bool detach;
	unsigned int without; /* enum tracer_feature */
	bool check;
	/* in production */
	const char *metrics; /* ADDR:PORT, NULL = none */
	const char *user;    /* NULL: the one that started us */
	const char *curve_secret, *curve_clients;
	bool allow_public;
	mode_t ipc_mode;
	gid_t ipc_group;       /* -1: the group of who runs us */
	struct config *config; /* texts of options may be its */
};

/* Fills options; to be freed with options_free in any case. Returns true to go on; false to end
 * with *exit_code (help, version, or an error that was said in one line). */
bool options_parse(struct options *options, int argc, char **argv, int *exit_code);

void options_free(struct options *options);

/* Whether an event is wanted (arg is a struct options): --only and --exclude are globs over topics;
 * events that are opt-in want an --only that matches. */
bool options_select(const void *arg, const struct event_desc *event);

#endif
