/* coretap-nats setup: makes the stream that `coretap-nats forward` publishes into, or changes it.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../c/command/command.h"
#include "server.h"
#include "stream.h"

#define MAX_LIST 1000
/* The largest P2P message has 4,000,000 bytes; its fields, the envelope and our headers come on
 * top.
 */
#define LARGEST_MESSAGE (4000000 + 8192)

#define SECOND_NS INT64_C(1000000000)
#define HOUR_NS (3600 * SECOND_NS)

#define NOT_NAMED INT64_MIN

struct setup {
	struct server server;
	const char *name;
	/* NOT_NAMED: as the stream has it */
	int64_t replicas, max_bytes, max_message, max_age_ns, duplicates_ns, discard, storage;
	char *subjects[MAX_LIST];
	int n_subjects;
	jsStreamSource sources[MAX_LIST];
	int n_sources;
};

static void say_stream(const char *verb, const jsStreamInfo *info)
{
	const jsStreamConfig *config = info->Config;

	printf("%s stream %s: ", verb, config->Name);
	for (int i = 0; i < config->SubjectsLen; i++)
		printf("%s%s", i ? " " : "", config->Subjects[i]);
	for (int i = 0; i < config->SourcesLen; i++)
		printf("%sfrom %s", i ? ", " : "", config->Sources[i]->Name);
	printf("; %" PRId64 " replica%s, %s", config->Replicas, config->Replicas > 1 ? "s" : "",
	       config->Storage == js_FileStorage ? "on disk" : "in memory");
	if (config->MaxAge > 0)
		printf(config->MaxAge < HOUR_NS ? ", kept for %.6g s" : ", kept for %.6g h",
		       (double)config->MaxAge / (config->MaxAge < HOUR_NS ? 1e9 : 3600e9));
	if (config->MaxBytes > 0)
		printf(", at most %s bytes", grouped((uint64_t)config->MaxBytes));
	printf(", when full %s",
	       config->Discard == js_DiscardOld ? "the oldest go" : "nothing more is taken");
	printf(", repeats known for %.6g s\n", (double)config->Duplicates / 1e9);
}

/* Payloads are off unless coretapd is asked for them, so this need not stop anybody. */
static void check_payload(const struct setup *setup, natsConnection *connection,
			  const jsStreamConfig *config)
{
	int64_t max_payload = natsConnection_GetMaxPayload(connection);

	if (max_payload < LARGEST_MESSAGE)
		complain("%s: max_payload is %" PRId64
			 ": P2P payloads of up to 4 MB do not fit and would be told as gaps; set "
			 "`max_payload: 5MB` in the configuration of each nats-server, or keep "
			 "coretapd --payload below",
			 setup->server.at, max_payload);
	if (config->MaxMsgSize >= 0 && config->MaxMsgSize < LARGEST_MESSAGE)
		complain("--max-message %" PRId32
			 ": P2P payloads of up to 4 MB do not fit and would be told as gaps",
			 config->MaxMsgSize);
}

/* A stream of this name that cannot become what is wanted. */
static bool check_existing(const struct setup *setup, const jsStreamInfo *info)
{
	const char *what = NULL;

	if (info->Config->Retention != js_LimitsPolicy)
		what = "retention";
	else if (setup->storage != NOT_NAMED && info->Config->Storage != setup->storage)
		what = "storage";
	if (what)
		complain("stream %s: exists with another %s, which cannot be changed; choose "
			 "another name, or delete it",
			 setup->name, what);
	return !what;
}

static int64_t named_or(int64_t named, int64_t otherwise)
{
	return named == NOT_NAMED ? otherwise : named;
}

/* What the command line names, over what the stream has, or over the defaults of a new one. */
static void configure(struct setup *setup, const jsStreamConfig *old, jsStreamConfig *config,
		      jsStreamSource *sources[MAX_LIST])
{
	static const char *everything = SUBJECT_PREFIX ">";

	if (old) {
		*config = *old;
	} else {
		jsStreamConfig_Init(config);
		config->Name = setup->name;
		config->Subjects = &everything;
		config->SubjectsLen = 1;
		config->Replicas = 1;
		config->MaxAge = 7 * 24 * HOUR_NS;
		config->MaxBytes = -1;
		config->MaxMsgSize = -1;
		config->Discard = js_DiscardOld;
		config->Storage = js_FileStorage;
		config->Duplicates = 120 * SECOND_NS;
	}
	config->Replicas = named_or(setup->replicas, config->Replicas);
	config->MaxAge = named_or(setup->max_age_ns, config->MaxAge);
	config->MaxBytes = named_or(setup->max_bytes, config->MaxBytes);
	config->MaxMsgSize = (int32_t)named_or(setup->max_message, config->MaxMsgSize);
	config->Discard = (jsDiscardPolicy)named_or(setup->discard, config->Discard);
	config->Storage = (jsStorageType)named_or(setup->storage, config->Storage);
	config->Duplicates = named_or(setup->duplicates_ns, config->Duplicates);
	if (config->MaxAge && config->Duplicates > config->MaxAge)
		config->Duplicates = config->MaxAge;
	if (!setup->n_subjects && !setup->n_sources)
		return;
	for (int i = 0; i < setup->n_sources; i++)
		sources[i] = &setup->sources[i];
	config->Subjects = (const char **)setup->subjects;
	config->SubjectsLen = setup->n_subjects;
	config->Sources = sources;
	config->SourcesLen = setup->n_sources;
}

static int apply(struct setup *setup, natsConnection *connection)
{
	jsStreamSource *sources[MAX_LIST];
	jsStreamInfo *info = NULL, *old = NULL;
	jsStreamConfig config;
	jsOptions options;
	jsErrCode code = 0;
	jsCtx *js = NULL;
	natsStatus status;
	int exit_code = EXIT_OTHER;

	jsOptions_Init(&options);
	status = natsConnection_JetStream(&js, connection, &options);
	if (status == NATS_OK)
		status = js_GetStreamInfo(&old, js, setup->name, NULL, &code);
	if (status == NATS_OK && !check_existing(setup, old))
		goto out;
	configure(setup, old ? old->Config : NULL, &config, sources);
	if (status == NATS_OK)
		status = js_UpdateStream(&info, js, &config, NULL, &code);
	else if (code == JSStreamNotFoundErr)
		status = js_AddStream(&info, js, &config, NULL, &code);
	if (status == NATS_OK) {
		say_stream(old ? "changed" : "made", info);
		check_payload(setup, connection, info->Config);
		exit_code = EXIT_DONE;
	} else {
		complain("stream %s: %s", setup->name, server_error(status, code));
	}
out:
	jsStreamInfo_Destroy(info);
	jsStreamInfo_Destroy(old);
	jsCtx_Destroy(js);
	return exit_code;
}

/* ---- the command line ---- */

static bool is_label(const char *text)
{
	size_t length = strlen(text);

	return length && length <= 32 &&
	       strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-") ==
		       length;
}

static bool add_node(struct setup *setup, const char *label)
{
	if (!is_label(label)) {
		complain("--node %s: not a label, which has letters, digits, _ and -, at most 32",
			 label);
		return false;
	}
	if (setup->n_subjects == MAX_LIST) {
		complain("--node: at most %d", MAX_LIST);
		return false;
	}
	if (asprintf(&setup->subjects[setup->n_subjects], SUBJECT_PREFIX "%s.>", label) < 0) {
		complain("out of memory");
		return false;
	}
	setup->n_subjects++;
	return true;
}

static bool parse_size(const char *what, const char *text, int64_t min, int64_t max, int64_t *size)
{
	static const char units[] = "KMGT";
	char *end;
	double number;
	const char *unit;

	if (!strcmp(text, "unlimited")) {
		*size = -1;
		return true;
	}
	number = strtod(text, &end);
	unit = *end ? strchr(units, *end) : NULL;
	for (const char *at = units; unit && at <= unit; at++)
		number *= 1024;
	if (*text >= '0' && *text <= '9' && (!*end || (unit && !end[1])) && number >= (double)min &&
	    number <= (double)max) {
		*size = (int64_t)number;
		return true;
	}
	complain("%s %s: not a size of at least %" PRId64 ", like 500M, 100G or unlimited", what,
		 text, min);
	return false;
}

static bool parse_time(const char *what, const char *text, int64_t *ns)
{
	uint64_t us;

	if (!parse_duration(what, text, &us))
		return false;
	*ns = (int64_t)(us * 1000);
	return true;
}

static bool choose(const char *what, const char *text, const char *one, const char *other,
		   bool *is_other)
{
	*is_other = !strcmp(text, other);
	if (*is_other || !strcmp(text, one))
		return true;
	complain("%s %s: neither %s nor %s", what, text, one, other);
	return false;
}

static bool take_option(struct setup *setup, int option, const char *value)
{
	bool other;
	char *end;

	switch (option) {
	case 's':
		setup->name = value;
		return stream_name_check("--stream", value);
	case 'n':
		return add_node(setup, value);
	case 'f':
		if (setup->n_sources == MAX_LIST) {
			complain("--from: at most %d", MAX_LIST);
			return false;
		}
		setup->sources[setup->n_sources++].Name = value;
		return stream_name_check("--from", value);
	case 'r':
		setup->replicas = strtol(value, &end, 10);
		if (!*end && setup->replicas >= 1 && setup->replicas <= 5)
			return true;
		complain("--replicas %s: from 1 to 5; 3 survive the loss of one server", value);
		return false;
	case 'A':
		if (!strcmp(value, "unlimited")) {
			setup->max_age_ns = 0;
			return true;
		}
		return parse_time("--max-age", value, &setup->max_age_ns);
	case 'b':
		return parse_size("--max-bytes", value, 1, INT64_C(1) << 60, &setup->max_bytes);
	case 'm':
		return parse_size("--max-message", value, STREAM_LEAST_MESSAGE, INT32_MAX,
				  &setup->max_message);
	case 'd':
		if (!choose("--discard", value, "old", "new", &other))
			return false;
		setup->discard = other ? js_DiscardNew : js_DiscardOld;
		return true;
	case 'g':
		if (!choose("--storage", value, "file", "memory", &other))
			return false;
		setup->storage = other ? js_MemoryStorage : js_FileStorage;
		return true;
	case 'D':
		return parse_time("--duplicate-window", value, &setup->duplicates_ns);
	}
	return server_option(&setup->server, option, value);
}

static int start(struct setup *setup)
{
	natsConnection *connection;
	int code;

	if (setup->n_subjects && setup->n_sources) {
		complain("--node and --from exclude each other: a stream of streams is only read");
		return EXIT_USAGE;
	}
	connection = server_connect(&setup->server);
	if (!connection) {
		complain("%s", setup->server.reason);
		return EXIT_OTHER;
	}
	code = apply(setup, connection);
	natsConnection_Close(connection);
	natsConnection_Destroy(connection);
	nats_Close();
	return code;
}

static int run(const struct subcommand *self, int argc, char **argv)
{
	static const struct option options[] = {
		{ "stream", required_argument, NULL, 's' },
		{ "node", required_argument, NULL, 'n' },
		{ "from", required_argument, NULL, 'f' },
		{ "replicas", required_argument, NULL, 'r' },
		{ "max-age", required_argument, NULL, 'A' },
		{ "max-bytes", required_argument, NULL, 'b' },
		{ "max-message", required_argument, NULL, 'm' },
		{ "discard", required_argument, NULL, 'd' },
		{ "storage", required_argument, NULL, 'g' },
		{ "duplicate-window", required_argument, NULL, 'D' },
		SERVER_OPTIONS,
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	static struct setup setup = { .name = "coretap",
				      .replicas = NOT_NAMED,
				      .max_bytes = NOT_NAMED,
				      .max_message = NOT_NAMED,
				      .max_age_ns = NOT_NAMED,
				      .duplicates_ns = NOT_NAMED,
				      .discard = NOT_NAMED,
				      .storage = NOT_NAMED };
	int option, code = EXIT_DONE;

	while (!code && (option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		if (option == 'h')
			return print_help(self);
		errno = 0;
		if (option == '?' || !take_option(&setup, option, optarg))
			code = errno == ENOMEM ? EXIT_OTHER : usage_error(self);
	}
	if (!code && optind < argc) {
		complain("%s: not an option", argv[optind]);
		code = usage_error(self);
	}
	if (!code)
		code = start(&setup);
	for (int i = 0; i < setup.n_subjects; i++)
		free(setup.subjects[i]);
	return code;
}

const struct subcommand command_setup = {
	.name = "setup",
	.arguments = "[--stream NAME] [--server URL] [--replicas N] [OPTION...]",
	.summary = "Makes the stream, or changes what is named of one that exists",
	.help = "What is not named stays; of a new stream it is what stands in parentheses.\n\n"
		"  --stream NAME  (coretap)\n" SERVER_HELP "\n"
		"  --node LABEL   only this node's subjects, may be repeated (those of all). Each "
		"forwarder\n"
		"                 needs a stream of its own, and no two may share a subject\n"
		"  --from STREAM  instead: a stream to read from, that the servers fill from this "
		"one, may be\n"
		"                 repeated: many forwarders' streams in one\n"
		"  --replicas N   copies, on as many servers (1; 3 survive the loss of one)\n"
		"  --max-age TIME how long messages are kept (7d), or unlimited\n"
		"  --max-bytes N  how many bytes, like 100G (unlimited)\n"
		"  --max-message N\n"
		"                 bytes of one message, at least 32K (unlimited; the server's "
		"max_payload\n"
		"                 holds too)\n"
		"  --discard old|new\n"
		"                 when it is full: the oldest go (old), or nothing is taken and "
		"the "
		"journals\n"
		"                 of the coretapds must hold (new)\n"
		"  --storage file|memory\n"
		"                 (file)\n"
		"  --duplicate-window TIME\n"
		"                 how long the servers know a repeat by its id (2m); the forwarder "
		"does not\n"
		"                 depend on it\n",
	.run = run,
};
