/* See options.h. */
#include <errno.h>
#include <fnmatch.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "log.h"
#include "options.h"
#include "tracer.h"

#define DEFAULT_RING_BYTES ((size_t)64 << 20)
#define DEFAULT_SUBSCRIBER_MEMORY ((size_t)256 << 20)
#define DEFAULT_JOURNAL_LOW ((size_t)384 << 20)
#define DEFAULT_JOURNAL_HIGH ((size_t)128 << 20)
#define MIN_JOURNAL_BYTES ((size_t)1 << 20)
#define MAX_RING_BYTES ((size_t)1 << 30)

enum {
	OPT_BINARY = 256,
	OPT_PID,
	OPT_PID_FILE,
	OPT_DATADIR,
	OPT_NAME,
	OPT_ONLY,
	OPT_EXCLUDE,
	OPT_MESSAGE_TYPES,
	OPT_PAYLOAD,
	OPT_TRACEPOINTS,
	OPT_PORT,
	OPT_LOW,
	OPT_HIGH,
	OPT_SUBSCRIBER_MEMORY,
	OPT_RING_LOW,
	OPT_RING_HIGH,
	OPT_REPLAY,
	OPT_JOURNAL,
	OPT_JOURNAL_LOW,
	OPT_JOURNAL_HIGH,
	OPT_KEEP_ATTACHED,
	OPT_DETACH,
	OPT_WITHOUT,
	OPT_CHECK,
	OPT_VERSION,
	OPT_HELP,
	OPT_VERBOSE,
};

/* One table for getopt and for --help, so that neither can lack what the other has. */
static const struct {
	const char *name;
	const char *argument; /* NULL: takes none */
	int value;
	const char *help;
} table[] = {
	{ "binary", "PATH", OPT_BINARY, "trace this executable, whether it runs already or not" },
	{ "pid", "PID", OPT_PID, "trace this process only" },
	{ "pid-file", "FILE", OPT_PID_FILE, "trace the process that this file names" },
	{ "datadir", "DIR", OPT_DATADIR, "trace the node that uses this data directory" },
	{ "name", "NAME", OPT_NAME,
	  "label of the node in every message (default: host name and chain)" },
	{ "only", "GLOB", OPT_ONLY, "publish only topics that match; may be repeated" },
	{ "exclude", "GLOB", OPT_EXCLUDE, "do not publish topics that match; may be repeated" },
	{ "message-types", "LIST", OPT_MESSAGE_TYPES,
	  "record only P2P messages of these types: inv,tx" },
	{ "payload", "SPEC", OPT_PAYLOAD,
	  "copy payloads of P2P messages: a size, full, or by type: tx=full,block=0" },
	{ "tracepoints", "FILE", OPT_TRACEPOINTS,
	  "publish what this YAML file declares, too; may be repeated" },
	{ "port", "N", OPT_PORT,
	  "low socket on loopback at N, high at N+1, replay at N+2 (default 28370)" },
	{ "low", "ENDPOINT", OPT_LOW, "bind the low socket here instead; may be repeated" },
	{ "high", "ENDPOINT", OPT_HIGH, "bind the high socket here instead; may be repeated" },
	{ "replay", "ENDPOINT", OPT_REPLAY,
	  "bind the replay socket here instead; may be repeated" },
	{ "subscriber-memory", "SIZE", OPT_SUBSCRIBER_MEMORY,
	  "what may wait for one subscriber on one socket (default 256M)" },
	{ "ring-low", "SIZE", OPT_RING_LOW, "kernel ring of the low socket (default 64M)" },
	{ "ring-high", "SIZE", OPT_RING_HIGH, "kernel ring of the high socket (default 64M)" },
	{ "journal", "DIR", OPT_JOURNAL,
	  "keep what replay serves here (default under /run/coretap), or none" },
	{ "journal-low", "SIZE", OPT_JOURNAL_LOW, "for the low socket (default 384M)" },
	{ "journal-high", "SIZE", OPT_JOURNAL_HIGH, "for the high socket (default 128M)" },
	{ "keep-attached", NULL, OPT_KEEP_ATTACHED,
	  "stay attached when ending, even when killed: the next start goes on" },
	{ "detach", NULL, OPT_DETACH,
	  "remove what --keep-attached left for this --name, then end" },
	{ "without", "LIST", OPT_WITHOUT,
	  "do without kernel features: multi, sleepable, tai, dynptr (to look for faults)" },
	{ "check", NULL, OPT_CHECK, "say what would be traced, then end" },
	{ "verbose", NULL, OPT_VERBOSE, "say more" },
	{ "version", NULL, OPT_VERSION, "print the version" },
	{ "help", NULL, OPT_HELP, "print this" },
};
#define N_OPTIONS (sizeof(table) / sizeof(table[0]))

static void help(void)
{
	printf("Usage: coretapd [OPTION]...\n\n"
	       "Publishes the tracepoints of a running Bitcoin Core node on ZeroMQ.\n"
	       "Names none: the one running process that has them is traced.\n\n");
	for (size_t i = 0; i < N_OPTIONS; i++) {
		char left[64];

		snprintf(left, sizeof(left), "--%s%s%s", table[i].name,
			 table[i].argument ? " " : "", table[i].argument ? table[i].argument : "");
		printf("  %-26s %s\n", left, table[i].help);
	}
	printf("\nSIZE is a number of bytes, or one with K, M or G behind it.\n"
	       "Exit codes: 1 other, 2 usage, 3 no tracepoints, 4 missing privilege, 5 address or "
	       "lock in use, 6 node not found.\n");
}

static bool parse_number(const char *text, unsigned long long max, unsigned long long *out)
{
	char *end;

	if (*text < '0' || *text > '9')
		return false;
	errno = 0;
	*out = strtoull(text, &end, 10);
	return !errno && !*end && *out <= max;
}

static bool parse_size(const char *text, size_t *out)
{
	static const char units[] = "KMG";
	unsigned long long number;
	char *end;
	const char *unit;

	if (*text < '0' || *text > '9')
		return false;
	errno = 0;
	number = strtoull(text, &end, 10);
	if (errno)
		return false;
	if (*end) {
		unit = strchr(units, *end);
		if (!unit || end[1])
			return false;
		for (const char *u = units; u <= unit; u++) {
			if (number > SIZE_MAX / 1024)
				return false;
			number *= 1024;
		}
	}
	*out = number;
	return true;
}

/* The kernel takes powers of two that are whole pages: rounded up, and told. */
static bool parse_ring(const char *option, const char *text, size_t *out)
{
	size_t wanted, size = (size_t)sysconf(_SC_PAGESIZE);

	if (!parse_size(text, &wanted) || wanted == 0 || wanted > MAX_RING_BYTES) {
		log_error("--%s %s: wants a size from 1 byte to 1G", option, text);
		return false;
	}
	while (size < wanted)
		size *= 2;
	if (size != wanted)
		log_warning("--%s %s: rounded up to %zu bytes, a power of two of whole pages",
			    option, text, size);
	*out = size;
	return true;
}

static bool parse_without(const char *text, unsigned int *out)
{
	static const struct {
		const char *name;
		unsigned int feature;
	} features[] = { { "multi", FEATURE_MULTI },
			 { "sleepable", FEATURE_SLEEPABLE },
			 { "tai", FEATURE_TAI },
			 { "dynptr", FEATURE_DYNPTR } };
	char *copy = strdup(text), *save = NULL;
	bool known = copy != NULL;

	for (char *word = strtok_r(copy, ",", &save); word && known;
	     word = strtok_r(NULL, ",", &save)) {
		known = false;
		for (size_t i = 0; i < sizeof(features) / sizeof(features[0]); i++) {
			if (!strcmp(word, features[i].name)) {
				*out |= features[i].feature;
				known = true;
			}
		}
	}
	free(copy);
	return known;
}

/* The rule of a message type, made when there is none; NULL when there are too many. */
static struct rule *rule_of(struct options *o, const char *type)
{
	for (size_t i = 0; i < o->n_rules; i++)
		if (!strcmp(o->rules[i].type, type))
			return &o->rules[i];
	if (o->n_rules == MAX_RULES)
		return NULL;
	strcpy(o->rules[o->n_rules].type, type);
	return &o->rules[o->n_rules++];
}

static bool is_message_type(const char *type)
{
	size_t len = strlen(type);

	/* Bitcoin's message header has 12 bytes for it. */
	return len >= 1 && len <= 12;
}

static bool parse_limit(const char *text, uint32_t *limit)
{
	size_t size;

	if (!strcmp(text, "full"))
		size = MAX_PAYLOAD;
	else if (!parse_size(text, &size) || size > MAX_PAYLOAD)
		return false;
	*limit = (uint32_t)size;
	return true;
}

static bool parse_payload(struct options *o, char *text)
{
	char *save = NULL;

	if (!text[strspn(text, ",")])
		return false;

	for (char *word = strtok_r(text, ",", &save); word; word = strtok_r(NULL, ",", &save)) {
		char *value = strchr(word, '=');
		struct rule *rule;
		uint32_t limit;

		if (value)
			*value++ = '\0';
		if (!parse_limit(value ? value : word, &limit))
			return false;
		o->payloads |= limit > 0;
		if (!value) {
			o->payload_limit = limit;
			continue;
		}
		rule = is_message_type(word) ? rule_of(o, word) : NULL;
		if (!rule)
			return false;
		rule->limit = limit;
	}
	return true;
}

/* Types that are named keep their payload rule or get the default one; all others are dropped. To
 * be called when all options are known. */
static bool rules_finish(struct options *o, char *types)
{
	struct rule wanted[MAX_RULES];
	size_t n = 0;
	char *save = NULL;

	if (!types)
		return true;
	for (char *word = strtok_r(types, ",", &save); word; word = strtok_r(NULL, ",", &save)) {
		struct rule *rule;

		if (!is_message_type(word) || n == MAX_RULES) {
			log_error("--message-types: \"%s\" is no message type (1 to 12 characters)",
				  word);
			return false;
		}
		rule = NULL;
		for (size_t i = 0; i < o->n_rules; i++)
			if (!strcmp(o->rules[i].type, word))
				rule = &o->rules[i];
		memset(&wanted[n], 0, sizeof(wanted[n]));
		strcpy(wanted[n].type, word);
		wanted[n++].limit = rule ? rule->limit : o->payload_limit;
	}
	if (!n) {
		log_error("--message-types: names no message type");
		return false;
	}
	memcpy(o->rules, wanted, n * sizeof(wanted[0]));
	o->n_rules = n;
	o->payload_limit = RULE_DROP;
	return true;
}

static bool is_label(const char *text)
{
	size_t len =
		strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-");

	return len >= 1 && len <= 32 && !text[len];
}

static bool append(const char *option, const char **list, size_t max, const char *text)
{
	for (size_t i = 0; i < max; i++) {
		if (!list[i]) {
			list[i] = text;
			return true;
		}
	}
	log_error("--%s: given more than %zu times", option, max);
	return false;
}

static bool append_glob(const char *option, const char **list, size_t *n, const char *text)
{
	if (!append(option, list, MAX_GLOBS, text))
		return false;
	(*n)++;
	return true;
}

static bool options_set(struct options *o, int option, const char *name, char *argument)
{
	unsigned long long number;

	switch (option) {
	case OPT_BINARY:
		o->binary = argument;
		return true;
	case OPT_PID:
		if (!parse_number(argument, INT32_MAX, &number) || number == 0)
			break;
		o->pid = (pid_t)number;
		return true;
	case OPT_PID_FILE:
		o->pid_file = argument;
		return true;
	case OPT_DATADIR:
		o->datadir = argument;
		return true;
	case OPT_NAME:
		if (!is_label(argument)) {
			log_error("--name %s: wants 1 to 32 of A-Z a-z 0-9 _ -", argument);
			return false;
		}
		o->name = argument;
		return true;
	case OPT_ONLY:
		return append_glob(name, o->only, &o->n_only, argument);
	case OPT_EXCLUDE:
		return append_glob(name, o->exclude, &o->n_exclude, argument);
	case OPT_MESSAGE_TYPES:
		o->message_types = argument;
		return true;
	case OPT_PAYLOAD: {
		char *copy = strdup(argument);
		bool good = copy && parse_payload(o, copy);

		free(copy);
		if (!good)
			break;
		return true;
	}
	case OPT_TRACEPOINTS:
		return append(name, o->tracepoints, MAX_DECLARATION_FILES, argument);
	case OPT_PORT:
		if (!parse_number(argument, 65533, &number) || number == 0)
			break;
		o->port = (unsigned int)number;
		return true;
	case OPT_LOW:
		return append(name, o->endpoints[SOCKET_LOW], MAX_ENDPOINTS, argument);
	case OPT_HIGH:
		return append(name, o->endpoints[SOCKET_HIGH], MAX_ENDPOINTS, argument);
	case OPT_REPLAY:
		return append(name, o->endpoints[ENDPOINT_REPLAY], MAX_ENDPOINTS, argument);
	case OPT_JOURNAL:
		o->journal = strcmp(argument, "none") != 0;
		o->journal_directory = o->journal ? argument : NULL;
		return true;
	case OPT_JOURNAL_LOW:
	case OPT_JOURNAL_HIGH:
		if (!parse_size(argument, &o->journal_bytes[option == OPT_JOURNAL_HIGH]) ||
		    o->journal_bytes[option == OPT_JOURNAL_HIGH] < MIN_JOURNAL_BYTES)
			break;
		return true;
	case OPT_KEEP_ATTACHED:
		o->keep_attached = true;
		return true;
	case OPT_DETACH:
		o->detach = true;
		return true;
	case OPT_SUBSCRIBER_MEMORY:
		if (!parse_size(argument, &o->subscriber_memory) || o->subscriber_memory == 0)
			break;
		return true;
	case OPT_RING_LOW:
		return parse_ring(name, argument, &o->ring_bytes[SOCKET_LOW]);
	case OPT_RING_HIGH:
		return parse_ring(name, argument, &o->ring_bytes[SOCKET_HIGH]);
	case OPT_WITHOUT:
		if (!parse_without(argument, &o->without))
			break;
		return true;
	case OPT_CHECK:
		o->check = true;
		return true;
	case OPT_VERBOSE:
		log_verbose();
		o->verbose = true;
		return true;
	}
	log_error("--%s %s: not a value for this option; see coretapd --help", name, argument);
	return false;
}

/* A glob that matches no topic is a slip of the pen, and would publish nothing without a word. */
static bool globs_check(const struct declarations *catalogue, const char *option,
			const char *const *globs, size_t n)
{
	const struct event_desc *events = catalogue->events;
	size_t n_events = catalogue->n;

	for (size_t i = 0; i < n; i++) {
		size_t e;

		for (e = 0; e < n_events; e++)
			if (!fnmatch(globs[i], events[e].topic, 0))
				break;
		if (e == n_events) {
			log_error("--%s %s: matches no topic; `coretap topics` lists them", option,
				  globs[i]);
			return false;
		}
	}
	return true;
}

static bool declarations_load(struct options *o)
{
	char error[1200];

	for (size_t i = 0; i < MAX_DECLARATION_FILES && o->tracepoints[i]; i++)
		if (declarations_read(&o->declarations, o->tracepoints[i], error, sizeof(error))) {
			log_error("%s", error);
			return false;
		}
	for (size_t i = o->declarations.n_built_in; i < o->declarations.n; i++)
		o->payloads |= declarations_of(&o->declarations, i)->payload_limit > 0;
	return true;
}

void options_free(struct options *o)
{
	declarations_free(&o->declarations);
}

bool options_parse(struct options *o, int argc, char **argv, int *exit_code)
{
	struct option longs[N_OPTIONS + 1] = { { 0 } };
	int option, index;

	*o = (struct options){
		.port = DEFAULT_PORT,
		.subscriber_memory = DEFAULT_SUBSCRIBER_MEMORY,
		.ring_bytes = { DEFAULT_RING_BYTES, DEFAULT_RING_BYTES },
		.journal = true,
		.journal_bytes = { DEFAULT_JOURNAL_LOW, DEFAULT_JOURNAL_HIGH },
	};
	declarations_init(&o->declarations);
	*exit_code = EXIT_USAGE;
	for (size_t i = 0; i < N_OPTIONS; i++)
		longs[i] = (struct option){ table[i].name,
					    table[i].argument ? required_argument : no_argument,
					    NULL, table[i].value };
	opterr = 0;
	while ((option = getopt_long(argc, argv, ":vh", longs, &index)) != -1) {
		const char *name = NULL;

		if (option == 'v')
			option = OPT_VERBOSE;
		if (option == 'h' || option == OPT_HELP) {
			help();
			*exit_code = 0;
			return false;
		}
		if (option == OPT_VERSION) {
			printf("coretapd %s\n", CORETAP_VERSION);
			*exit_code = 0;
			return false;
		}
		for (size_t i = 0; i < N_OPTIONS; i++)
			if (table[i].value == option)
				name = table[i].name;
		if (option == '?' || option == ':' || !name) {
			log_error("%s: %s; see coretapd --help", argv[optind - 1],
				  option == ':' ? "wants a value" : "unknown option");
			return false;
		}
		if (!options_set(o, option, name, optarg))
			return false;
	}
	if (optind < argc) {
		log_error("%s: unexpected; see coretapd --help", argv[optind]);
		return false;
	}
	if ((o->pid != 0) + (o->pid_file != NULL) + (o->datadir != NULL) > 1) {
		log_error("--pid, --pid-file and --datadir exclude each other");
		return false;
	}
	if (o->keep_attached && !o->journal) {
		log_error("--keep-attached wants a journal: the next start goes on from what it "
			  "says");
		return false;
	}
	return rules_finish(o, o->message_types) && declarations_load(o) &&
	       globs_check(&o->declarations, "only", o->only, o->n_only) &&
	       globs_check(&o->declarations, "exclude", o->exclude, o->n_exclude);
}

bool options_select(const void *arg, const struct event_desc *event)
{
	const struct options *o = arg;
	bool named = false;

	for (size_t i = 0; i < o->n_exclude; i++)
		if (!fnmatch(o->exclude[i], event->topic, 0))
			return false;
	for (size_t i = 0; i < o->n_only; i++)
		named |= !fnmatch(o->only[i], event->topic, 0);
	return named || (!o->n_only && !(event->flags & EVENT_OPT_IN));
}
