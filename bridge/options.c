/* See options.h. */
#include <errno.h>
#include <fnmatch.h>
#include <getopt.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config.h"
#include "log.h"
#include "metrics.h"
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
	OPT_METRICS,
	OPT_USER,
	OPT_CURVE_SECRET,
	OPT_CURVE_CLIENTS,
	OPT_ALLOW_PUBLIC,
	OPT_IPC_MODE,
	OPT_IPC_GROUP,
	OPT_CONFIG,
	OPT_LOG_LEVEL,
	OPT_CHECK,
	OPT_VERSION,
	OPT_HELP,
	OPT_VERBOSE,
};

/* One table for getopt, the configuration file and --help, so that none can lack what the others
 * have. */
static const struct {
	const char *name;
	const char *argument; /* NULL: takes none */
	int value;
	const char *help;
} table[] = {
	{ "binary", "PATH", OPT_BINARY, "trace this executable, whether it runs already or not" },
	{ "pid", "PID", OPT_PID, "trace this process only, and end with it" },
	{ "pid-file", "FILE", OPT_PID_FILE, "trace the process that this file names" },
	{ "datadir", "DIR", OPT_DATADIR, "trace the node that uses this data directory" },
	{ "name", "NAME", OPT_NAME,
	  "label of the node in every message (default: from the host name)" },
	{ "only", "GLOB", OPT_ONLY, "publish only topics that match; may be repeated" },
	{ "exclude", "GLOB", OPT_EXCLUDE, "do not publish topics that match; may be repeated" },
	{ "message-types", "LIST", OPT_MESSAGE_TYPES,
	  "record only P2P messages of these types: inv,tx" },
	{ "payload", "SPEC", OPT_PAYLOAD,
	  "copy payloads of P2P messages: a size, full, or by type: tx=full,block=0" },
	{ "tracepoints", "FILE", OPT_TRACEPOINTS,
	  "publish what this YAML file declares, too; may be repeated" },
	{ "port", "N", OPT_PORT,
	  "low socket on loopback at N, high at N+1, replay at N+2 (default 28370); none: no tcp" },
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
	  "remove what --keep-attached left for this --name, and its journal, then end" },
	{ "without", "LIST", OPT_WITHOUT,
	  "do without kernel features: multi, sleepable, tai, dynptr (to look for faults)" },
	{ "metrics", "ADDR:PORT", OPT_METRICS,
	  "serve /metrics (Prometheus) and /healthz over HTTP" },
	{ "user", "NAME", OPT_USER,
	  "once started, become this user and keep only the privileges that are needed" },
	{ "curve-secret", "FILE", OPT_CURVE_SECRET,
	  "encrypt tcp with this secret key; see coretap keygen" },
	{ "curve-clients", "FILE", OPT_CURVE_CLIENTS,
	  "public keys of those who may connect over tcp; read again at SIGHUP" },
	{ "allow-public", NULL, OPT_ALLOW_PUBLIC,
	  "bind addresses beyond loopback without encryption" },
	{ "ipc-mode", "MODE", OPT_IPC_MODE, "permissions of ipc sockets (default 0666)" },
	{ "ipc-group", "GROUP", OPT_IPC_GROUP, "group of ipc sockets" },
	{ "config", "FILE", OPT_CONFIG,
	  "read options from this YAML file; those given here count more" },
	{ "log-level", "LEVEL", OPT_LOG_LEVEL, "error, warning, info (default) or debug" },
	{ "check", NULL, OPT_CHECK, "check all options, say what would be traced, then end" },
	{ "verbose", NULL, OPT_VERBOSE, "the same as --log-level debug" },
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

/* Between the words of a list. */
#define SEPARATORS ", "

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

	for (char *word = copy ? strtok_r(copy, SEPARATORS, &save) : NULL; word && known;
	     word = strtok_r(NULL, SEPARATORS, &save)) {
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

	if (!text[strspn(text, SEPARATORS)])
		return false;

	for (char *word = strtok_r(text, SEPARATORS, &save); word;
	     word = strtok_r(NULL, SEPARATORS, &save)) {
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
	const char *where;
	size_t n = 0;
	char *save = NULL;

	if (!types)
		return true;
	where = config_where(o->config, types);
	for (char *word = strtok_r(types, SEPARATORS, &save); word;
	     word = strtok_r(NULL, SEPARATORS, &save)) {
		struct rule *rule;

		if (!is_message_type(word)) {
			log_error("%s--message-types: \"%s\" is no message type (1 to 12 "
				  "characters)",
				  where, word);
			return false;
		}
		if (n == MAX_RULES) {
			log_error("%s--message-types: more than %d types", where, MAX_RULES);
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
		log_error("%s--message-types: names no message type", where);
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

/* An option without a value may be given one all the same, which takes back what a configuration
 * file says: --keep-attached=no. */
static bool parse_flag(const char *text, bool *out)
{
	bool yes = !text || !strcmp(text, "yes") || !strcmp(text, "true") || !strcmp(text, "on");
	bool no = text && (!strcmp(text, "no") || !strcmp(text, "false") || !strcmp(text, "off"));

	*out = yes;
	return yes || no;
}

static bool parse_mode(const char *text, mode_t *out)
{
	char *end;
	unsigned long mode = strtoul(text, &end, 8);

	*out = (mode_t)mode;
	return *text >= '0' && *text <= '7' && !*end && mode <= 0777;
}

static bool parse_group(const char *text, gid_t *out)
{
	const struct group *group = getgrnam(text);
	unsigned long long number;

	if (!group && parse_number(text, INT32_MAX, &number)) {
		*out = (gid_t)number;
		return true;
	}
	if (!group) {
		log_error("--ipc-group %s: there is no such group", text);
		return false;
	}
	*out = group->gr_gid;
	return true;
}

static bool parse_level(const char *text, enum log_level *out)
{
	static const struct {
		const char *name;
		enum log_level level;
	} levels[] = { { "error", LOG_LEVEL_ERROR },
		       { "warning", LOG_LEVEL_WARNING },
		       { "info", LOG_LEVEL_INFO },
		       { "debug", LOG_LEVEL_DEBUG } };

	for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++)
		if (!strcmp(text, levels[i].name)) {
			*out = levels[i].level;
			return true;
		}
	return false;
}

static bool append_endpoint(const char *option, const char **list, const char *text)
{
	if (endpoint_kind(text) == ENDPOINT_UNKNOWN) {
		log_error("--%s %s: wants tcp://ADDRESS:PORT or ipc://PATH", option, text);
		return false;
	}
	return append(option, list, MAX_ENDPOINTS, text);
}

/* What is good for an option that refused a value. */
static const char *wanted(int option)
{
	switch (option) {
	case OPT_PID:
		return "the number of a process";
	case OPT_PAYLOAD:
		return "a size up to 4M, full, or TYPE=SIZE, separated by commas";
	case OPT_PORT:
		return "1 to 65533, or none";
	case OPT_SUBSCRIBER_MEMORY:
		return "a size";
	case OPT_JOURNAL_LOW:
	case OPT_JOURNAL_HIGH:
		return "a size from 1M";
	case OPT_WITHOUT:
		return "multi, sleepable, tai or dynptr, separated by commas";
	case OPT_METRICS:
		return "ADDRESS:PORT, like 127.0.0.1:9332";
	case OPT_IPC_MODE:
		return "an octal number, like 0660";
	case OPT_LOG_LEVEL:
		return "error, warning, info or debug";
	default:
		return "yes or no";
	}
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
		if (!strcmp(argument, "none")) {
			o->port = 0;
			return true;
		}
		if (!parse_number(argument, 65533, &number) || number == 0)
			break;
		o->port = (unsigned int)number;
		return true;
	case OPT_LOW:
		return append_endpoint(name, o->endpoints[SOCKET_LOW], argument);
	case OPT_HIGH:
		return append_endpoint(name, o->endpoints[SOCKET_HIGH], argument);
	case OPT_REPLAY:
		return append_endpoint(name, o->endpoints[ENDPOINT_REPLAY], argument);
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
		if (!parse_flag(argument, &o->keep_attached))
			break;
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
	case OPT_VERBOSE: {
		bool verbose;

		if (!parse_flag(argument, &verbose))
			break;
		log_level(verbose ? LOG_LEVEL_DEBUG : LOG_LEVEL_INFO);
		return true;
	}
	case OPT_LOG_LEVEL: {
		enum log_level level;

		if (!parse_level(argument, &level))
			break;
		log_level(level);
		return true;
	}
	case OPT_METRICS: {
		bool loopback;

		if (!metrics_address(argument, &loopback))
			break;
		o->metrics = argument;
		return true;
	}
	case OPT_USER:
		o->user = argument;
		return true;
	case OPT_CURVE_SECRET:
		o->curve_secret = argument;
		return true;
	case OPT_CURVE_CLIENTS:
		o->curve_clients = argument;
		return true;
	case OPT_ALLOW_PUBLIC:
		if (!parse_flag(argument, &o->allow_public))
			break;
		return true;
	case OPT_IPC_MODE:
		if (!parse_mode(argument, &o->ipc_mode))
			break;
		return true;
	case OPT_IPC_GROUP:
		return parse_group(argument, &o->ipc_group);
	}
	log_error("--%s %s: wants %s", name, argument ? argument : "", wanted(option));
	return false;
}

/* A glob that matches no topic is a slip of the pen, and would publish nothing without a word. */
static bool globs_check(const struct options *o, const char *option, const char *const *globs,
			size_t n)
{
	const struct event_desc *events = o->declarations.events;
	size_t n_events = o->declarations.n;

	for (size_t i = 0; i < n; i++) {
		size_t e;

		for (e = 0; e < n_events; e++)
			if (!fnmatch(globs[i], events[e].topic, 0))
				break;
		if (e == n_events) {
			log_error("%s--%s %s: matches no topic; `coretap topics` lists them",
				  config_where(o->config, globs[i]), option, globs[i]);
			return false;
		}
	}
	return true;
}

static bool selection_check(const struct options *o)
{
	for (size_t i = 0; i < o->declarations.n; i++)
		if (options_select(o, &o->declarations.events[i]))
			return true;
	log_error("--exclude: leaves no topic to publish");
	return false;
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

/* ---- who may connect ---- */

/* Loopback and ipc are for this machine. Whatever reaches further is encrypted, or asked for
 * twice. */
static bool endpoints_check(const struct options *o)
{
	static const char *const names[N_ENDPOINTS] = { "low", "high", "replay" };
	bool open_tcp = false;

	for (int e = 0; e < N_ENDPOINTS; e++) {
		/* Where none is named, --port is bound. */
		open_tcp |= !o->endpoints[e][0] && o->port && !o->curve_secret;
		for (int i = 0; i < MAX_ENDPOINTS && o->endpoints[e][i]; i++) {
			const char *endpoint = o->endpoints[e][i];
			enum endpoint_kind kind = endpoint_kind(endpoint);
			const char *where = config_where(o->config, endpoint);

			if (kind == ENDPOINT_ABSTRACT && (o->ipc_mode & 06) != 06) {
				log_error("%s--%s %s: has no file that --ipc-mode could guard; "
					  "give it a path",
					  where, names[e], endpoint);
				return false;
			}
			open_tcp |= kind > ENDPOINT_ABSTRACT && !o->curve_secret;
			if (kind != ENDPOINT_PUBLIC || o->curve_secret)
				continue;
			if (!o->allow_public) {
				log_error("%s--%s %s: is open to others than this machine: encrypt "
					  "it with --curve-secret and --curve-clients, or say "
					  "--allow-public",
					  where, names[e], endpoint);
				return false;
			}
			log_warning("--%s %s: everybody who reaches this address can read what the "
				    "node does (--allow-public)",
				    names[e], endpoint);
		}
	}
	if ((o->ipc_mode & 06) != 06 && open_tcp)
		log_warning("--ipc-mode %04o guards ipc only, tcp is open to every user of this "
			    "machine: bind none (--port none), or add --curve-secret",
			    (unsigned int)o->ipc_mode);
	return true;
}

static bool access_check(const struct options *o)
{
	bool loopback = true;

	if (!o->curve_secret != !o->curve_clients) {
		log_error("%s--curve-secret and --curve-clients belong together: the server's key, "
			  "and the list of those who may connect",
			  config_where(o->config,
				       o->curve_secret ? o->curve_secret : o->curve_clients));
		return false;
	}
	if (o->metrics)
		metrics_address(o->metrics, &loopback);
	if (!loopback && !o->allow_public) {
		log_error("%s--metrics %s: is open to others than this machine, and HTTP is not "
			  "encrypted: put a proxy before it, or say --allow-public",
			  config_where(o->config, o->metrics), o->metrics);
		return false;
	}
	if (!loopback)
		log_warning("--metrics %s: everybody who reaches this address can read it "
			    "(--allow-public)",
			    o->metrics);
	return endpoints_check(o);
}

/* ---- the configuration file ---- */

static bool is_list(int option)
{
	return option == OPT_ONLY || option == OPT_EXCLUDE || option == OPT_LOW ||
	       option == OPT_HIGH || option == OPT_REPLAY || option == OPT_PAYLOAD ||
	       option == OPT_TRACEPOINTS;
}

/* What one does, rather than how it is to be. */
static bool is_command(int option)
{
	return option == OPT_CONFIG || option == OPT_CHECK || option == OPT_DETACH ||
	       option == OPT_VERSION || option == OPT_HELP;
}

/* Takes back what the file said of an option that the command line has too: lists are replaced, and
 * a node is named in one way. */
static void option_forget(struct options *o, int option)
{
	switch (option) {
	case OPT_PID:
	case OPT_PID_FILE:
	case OPT_DATADIR:
		o->pid = 0;
		o->pid_file = o->datadir = NULL;
		break;
	case OPT_ONLY:
		memset(o->only, 0, sizeof(o->only));
		o->n_only = 0;
		break;
	case OPT_EXCLUDE:
		memset(o->exclude, 0, sizeof(o->exclude));
		o->n_exclude = 0;
		break;
	case OPT_LOW:
		memset(o->endpoints[SOCKET_LOW], 0, sizeof(o->endpoints[0]));
		break;
	case OPT_HIGH:
		memset(o->endpoints[SOCKET_HIGH], 0, sizeof(o->endpoints[0]));
		break;
	case OPT_REPLAY:
		memset(o->endpoints[ENDPOINT_REPLAY], 0, sizeof(o->endpoints[0]));
		break;
	case OPT_TRACEPOINTS:
		memset(o->tracepoints, 0, sizeof(o->tracepoints));
		break;
	case OPT_PAYLOAD:
		memset(o->rules, 0, sizeof(o->rules));
		o->n_rules = 0;
		o->payload_limit = 0;
		o->payloads = false;
		break;
	}
}

static bool names_node(int option)
{
	return option == OPT_PID || option == OPT_PID_FILE || option == OPT_DATADIR;
}

static bool config_apply(struct options *o, const char *path, bool given[N_OPTIONS])
{
	size_t n;
	const struct config_entry *entries;

	if (config_read(&o->config, path))
		return false;
	entries = config_entries(o->config, &n);
	for (size_t e = 0; e < n; e++) { /* an empty file has none, not even an address of them */
		const struct config_entry *entry = &entries[e];
		const char *where = config_where(o->config, entry->value);
		size_t i = 0;
		bool good;

		while (i < N_OPTIONS && strcmp(table[i].name, entry->key))
			i++;
		if (i == N_OPTIONS || is_command(table[i].value)) {
			log_error("%s%s: %s", where, entry->key,
				  i == N_OPTIONS ? "unknown option; see coretapd --help"
						 : "is for the command line only");
			return false;
		}
		if (entry->listed && !is_list(table[i].value)) {
			log_error("%s%s: takes one value, not a list", where, entry->key);
			return false;
		}
		log_prefix(where);
		good = options_set(o, table[i].value, table[i].name, entry->value);
		log_prefix(NULL);
		if (!good)
			return false;
		given[i] = true;
	}
	return true;
}

/* Options of the command line count more than those of the file, wherever --config stands. */
static const char *config_named(int argc, char **argv, const struct option *longs)
{
	const char *path = NULL;
	int option;

	while ((option = getopt_long(argc, argv, ":vh", longs, NULL)) != -1) {
		if (option == OPT_HELP || option == OPT_VERSION || option == 'h')
			return NULL;
		if (option == OPT_CONFIG)
			path = optarg;
	}
	return path;
}

static void override(struct options *o, int option, bool given[N_OPTIONS])
{
	bool forget = false;

	for (size_t i = 0; i < N_OPTIONS; i++)
		if (given[i] && (table[i].value == option ||
				 (names_node(option) && names_node(table[i].value)))) {
			given[i] = false;
			forget = true;
		}
	if (forget)
		option_forget(o, option);
}

/* What getopt could not take. Of letters that stand together it passes the word with the last one
 * only; in optopt stands the letter, or the option that was given a value and takes none. */
static void option_refused(const char *word, int option)
{
	if (option == '?' && optopt > 0 && optopt < OPT_BINARY)
		log_error("-%c: unknown option; see coretapd --help", optopt);
	else
		log_error("%s: %s; see coretapd --help", word,
			  option == ':' ? "wants a value"
			  : optopt	? "takes no value"
					: "unknown option");
}

void options_free(struct options *o)
{
	config_free(o->config);
	o->config = NULL;
	declarations_free(&o->declarations);
}

bool options_parse(struct options *o, int argc, char **argv, int *exit_code)
{
	struct option longs[N_OPTIONS + 1] = { { 0 } };
	bool given[N_OPTIONS] = { false }; /* in the file */
	const char *config;
	int option, index;

	*o = (struct options){
		.port = DEFAULT_PORT,
		.subscriber_memory = DEFAULT_SUBSCRIBER_MEMORY,
		.ring_bytes = { DEFAULT_RING_BYTES, DEFAULT_RING_BYTES },
		.journal = true,
		.journal_bytes = { DEFAULT_JOURNAL_LOW, DEFAULT_JOURNAL_HIGH },
		.ipc_mode = DEFAULT_IPC_MODE,
		.ipc_group = (gid_t)-1,
	};
	declarations_init(&o->declarations);
	*exit_code = EXIT_USAGE;
	for (size_t i = 0; i < N_OPTIONS; i++)
		longs[i] = (struct option){ table[i].name,
					    table[i].argument		 ? required_argument
					    : is_command(table[i].value) ? no_argument
									 : optional_argument,
					    NULL, table[i].value };
	opterr = 0;
	config = config_named(argc, argv, longs);
	optind = 0; /* again from the start */
	if (config && !config_apply(o, config, given))
		return false;
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
			option_refused(argv[optind - 1], option);
			return false;
		}
		if (option == OPT_CONFIG)
			continue;
		override(o, option, given);
		if (!options_set(o, option, name, optarg))
			return false;
	}
	if (optind < argc) {
		log_error("%s: unexpected; see coretapd --help", argv[optind]);
		return false;
	}
	if ((o->pid != 0) + (o->pid_file != NULL) + (o->datadir != NULL) > 1) {
		log_error("%s--pid, --pid-file and --datadir exclude each other",
			  config_where(o->config, o->datadir ? o->datadir : o->pid_file));
		return false;
	}
	if (o->keep_attached && !o->journal) {
		log_error("--keep-attached wants a journal: the next start goes on from what it "
			  "says");
		return false;
	}
	return rules_finish(o, o->message_types) && declarations_load(o) &&
	       globs_check(o, "only", o->only, o->n_only) &&
	       globs_check(o, "exclude", o->exclude, o->n_exclude) && selection_check(o) &&
	       access_check(o);
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
