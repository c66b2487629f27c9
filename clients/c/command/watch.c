/* coretap watch: what becomes of transactions. */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "command.h"

enum fate { WAITING, IN_MEMPOOL, CONFIRMED, REPLACED, CONFLICT, EVICTED, UNKNOWN };

/* The exit code is the largest of all. */
static const struct {
	const char *word;
	int code;
	enum colour colour;
} fates[] = {
	[WAITING] = { "waiting", 14, PLAIN },	 [IN_MEMPOOL] = { "in the mempool", 14, CYAN },
	[CONFIRMED] = { "confirmed", 0, GREEN }, [REPLACED] = { "replaced", 10, YELLOW },
	[CONFLICT] = { "conflict", 11, RED },	 [EVICTED] = { "evicted", 12, MAGENTA },
	[UNKNOWN] = { "unknown", 13, RED },
};

struct watched {
	unsigned char txid[32];
	enum fate fate;
};

struct watch {
	struct watched *watched;
	size_t n;
	bool forever;
	bool present; /* what --since asks for was told: what was decided is so now */
};

static bool is_decided(enum fate fate)
{
	return fate != WAITING && fate != IN_MEMPOOL;
}

static bool all_decided(const struct watch *watch)
{
	for (size_t i = 0; i < watch->n; i++)
		if (!is_decided(watch->watched[i].fate))
			return false;
	return watch->present && !watch->forever;
}

/* One line about a transaction: what happened, details as they stand in JSON, text for people. */
static void tell(struct output *out, const struct watched *watched, uint64_t time_us,
		 const char *what, enum colour colour, const char *details, const char *text)
{
	time_t seconds = (time_t)(time_us / 1000000);
	char hex[65], when[32] = "--:--:--";
	struct tm tm;

	coretap_hash_hex(watched->txid, hex);
	if (out->json) {
		printf("{\"txid\":\"%s\",\"what\":\"%s\"", hex, what);
		if (time_us)
			printf(",\"time_us\":%llu", (unsigned long long)time_us);
		printf("%s}\n", details);
		return;
	}
	if (time_us && localtime_r(&seconds, &tm))
		strftime(when, sizeof(when), "%H:%M:%S", &tm);
	output_colour(out, DIM);
	printf("%s ", when);
	output_colour(out, PLAIN);
	printf("%s ", hex);
	output_colour(out, colour);
	printf("%s", what);
	output_colour(out, PLAIN);
	printf("%s\n", text);
}

static struct watched *find(struct watch *watch, const unsigned char *txid)
{
	for (size_t i = 0; i < watch->n; i++)
		if (!memcmp(watch->watched[i].txid, txid, 32))
			return &watch->watched[i];
	return NULL;
}

static void tell_unknown(struct output *out, const struct watched *watched, uint64_t time_us,
			 const char *why)
{
	char details[128], text[128];

	snprintf(details, sizeof(details), ",\"why\":\"%s\"", why);
	snprintf(text, sizeof(text), ": %s", why);
	tell(out, watched, time_us, "unknown", fates[UNKNOWN].colour, details, text);
}

/* empties: of a mempool that was left behind, in the past, only what was seen in it is unknown. */
static void set_unknown(struct follow *follow, uint64_t time_us, bool empties, const char *why)
{
	struct watch *watch = follow->arg;

	for (size_t i = 0; i < watch->n; i++) {
		if (is_decided(watch->watched[i].fate) ||
		    (empties && !watch->present && watch->watched[i].fate == WAITING))
			continue;
		watch->watched[i].fate = UNKNOWN;
		tell_unknown(follow->out, &watch->watched[i], time_us, why);
	}
}

static bool reason_is(const struct coretap_event *event, const char *word)
{
	const char *text;
	size_t length;

	return coretap_get_text(event, "reason", &text, &length) == CORETAP_SET &&
	       length == strlen(word) && !memcmp(text, word, length);
}

/* Adds the reason, escaped: texts come from strangers. */
static void add_reason(struct output *out, const struct coretap_event *event, char *details,
		       char *text, size_t size)
{
	const char *reason;
	size_t length;

	if (coretap_get_text(event, "reason", &reason, &length) != CORETAP_SET)
		return;
	out->text.length = 0;
	json_text(&out->text, reason, length);
	if (out->text.failed)
		out->error = ENOMEM;
	if (out->text.failed || out->text.length > size - 16)
		return;
	snprintf(details, size, ",\"reason\":%.*s", (int)out->text.length, out->text.data);
	snprintf(text, size, ": %.*s", (int)out->text.length - 2, out->text.data + 1);
}

static void removed(struct follow *follow, struct watched *watched,
		    const struct coretap_event *event)
{
	uint64_t time_us = coretap_event_time_us(event), height;
	char details[512] = "", text[512] = "";
	bool placed = coretap_get_uint(event, "height", &height) == CORETAP_SET;
	enum fate fate = EVICTED;
	const char *reason;
	size_t length;

	if (coretap_get_text(event, "reason", &reason, &length) != CORETAP_SET) {
		if (watched->fate == REPLACED)
			return;
		watched->fate = UNKNOWN;
		tell_unknown(follow->out, watched, time_us,
			     "the reason of its removal could not be read");
		return;
	}
	if (reason_is(event, "block"))
		fate = CONFIRMED;
	else if (reason_is(event, "conflict"))
		fate = CONFLICT;
	else if (reason_is(event, "replaced"))
		fate = REPLACED;
	if (fate == EVICTED) {
		add_reason(follow->out, event, details, text, sizeof(details));
	} else if (placed) {
		snprintf(details, sizeof(details), ",\"height\":%llu", (unsigned long long)height);
		snprintf(text, sizeof(text),
			 fate == CONFLICT ? " with block %llu" : " in block %llu",
			 (unsigned long long)height);
	} else if (fate != REPLACED) {
		snprintf(details, sizeof(details), ",\"height\":null");
		snprintf(text, sizeof(text), " in a block whose height is not certain");
	}
	/* Told with its replacement already. */
	if (fate != REPLACED || watched->fate != REPLACED)
		tell(follow->out, watched, time_us, fates[fate].word, fates[fate].colour, details,
		     text);
	watched->fate = fate;
}

static void replaced(struct follow *follow, struct watched *watched,
		     const struct coretap_event *event)
{
	const char *key = "replacement_txid";
	char details[128] = "", text[128] = "", hex[65];
	const unsigned char *hash;

	if (coretap_get_hash(event, key, &hash) != CORETAP_SET) {
		key = "replacement_package";
		if (coretap_get_hash(event, key, &hash) != CORETAP_SET)
			key = NULL;
	}
	if (key) {
		coretap_hash_hex(hash, hex);
		snprintf(details, sizeof(details), ",\"%s\":\"%s\"", key, hex);
		snprintf(text, sizeof(text), " by %s%s",
			 strcmp(key, "replacement_txid") ? "package " : "", hex);
	}
	watched->fate = REPLACED;
	tell(follow->out, watched, coretap_event_time_us(event), "replaced", fates[REPLACED].colour,
	     details, text);
}

static bool handle(struct follow *follow, const struct coretap_event *event)
{
	const char *topic = coretap_event_topic(event);
	uint64_t time_us = coretap_event_time_us(event);
	char details[512] = "", text[512] = "";
	struct watch *watch = follow->arg;
	const unsigned char *txid;
	struct watched *watched;
	int state;

	if (coretap_event_kind(event) == CORETAP_STATUS)
		watch->present |= !strcmp(coretap_event_socket(event), "low");
	if (!strcmp(topic, "node.exited"))
		set_unknown(follow, time_us, true, "the node ended");
	if (!strncmp(topic, "mempool.", 8)) {
		state = coretap_get_hash(event, "txid", &txid);
		watched = state == CORETAP_SET ? find(watch, txid) : NULL;
		if (state == CORETAP_NIL && strcmp(topic, "mempool.rejected"))
			set_unknown(follow, time_us, false,
				    "the txid of an event could not be read");
		if (watched && !strcmp(topic, "mempool.added")) {
			watched->fate = IN_MEMPOOL;
			tell(follow->out, watched, time_us, "added", CYAN, "", " to the mempool");
		} else if (watched && !strcmp(topic, "mempool.rejected")) {
			add_reason(follow->out, event, details, text, sizeof(details));
			tell(follow->out, watched, time_us, "rejected", YELLOW, details, text);
		} else if (watched && !strcmp(topic, "mempool.replaced")) {
			replaced(follow, watched, event);
		} else if (watched && !strcmp(topic, "mempool.removed")) {
			removed(follow, watched, event);
		}
	}
	follow->ended = all_decided(watch);
	return false;
}

static bool notice(struct follow *follow, const struct coretap_event *event)
{
	const char *topic = coretap_event_topic(event);
	enum coretap_kind kind = coretap_event_kind(event);

	if (kind == CORETAP_NEW_RUN && !strcmp(coretap_event_socket(event), "low"))
		set_unknown(follow, 0, true, "coretapd began anew");
	else if ((kind == CORETAP_GAP || kind == CORETAP_LOST) &&
		 (!strncmp(topic, "mempool.", 8) || !strcmp(topic, "node.exited")) &&
		 strcmp(topic, "mempool.rejected"))
		set_unknown(follow, 0, false,
			    kind == CORETAP_GAP ? "events are missing" : "events were lost");
	return !all_decided(follow->arg);
}

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static bool parse_txid(const char *text, unsigned char txid[32])
{
	if (strlen(text) == 64)
		for (int i = 0; i < 32; i++) {
			int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);

			if (high < 0 || low < 0)
				break;
			txid[i] = (unsigned char)(high << 4 | low);
			if (i == 31)
				return true;
		}
	complain("%s: not a txid, which is 64 hex digits", text);
	return false;
}

/* What is not decided at the end, and the exit code. */
static int conclude(struct follow *follow, const struct watch *watch)
{
	int code = 0;

	for (size_t i = 0; i < watch->n; i++) {
		const struct watched *watched = &watch->watched[i];

		if (!is_decided(watched->fate) && !follow->out->error)
			tell(follow->out, watched, 0, "undecided", PLAIN,
			     watched->fate == WAITING ? ",\"seen\":false" : ",\"seen\":true",
			     watched->fate == WAITING ? ": nothing happened to it"
						      : ": still in the mempool");
		if (fates[watched->fate].code > code)
			code = fates[watched->fate].code;
	}
	return code;
}

static int run(const struct subcommand *self, int argc, char **argv)
{
	static const struct option options[] = {
		FOLLOW_OUTPUT_OPTIONS,
		FOLLOW_OPTIONS,
		{ "since", required_argument, NULL, 's' },
		{ "timeout", required_argument, NULL, 'T' },
		{ "follow", no_argument, NULL, 'f' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	/* The first status comes when all that was before it is told. */
	static const char *const topics[] = { "mempool", "node", "bridge.status" };
	struct output out;
	struct watch watch = { 0 };
	struct follow follow = {
		.out = &out, .handle = handle, .notice = notice, .quiet = true, .arg = &watch
	};
	uint64_t timeout = 0;
	int option, code = 0, closed;

	while ((option = getopt_long(argc, argv, "a:fh", options, NULL)) != -1)
		switch (option) {
		case 'T':
			if (!parse_duration("--timeout", optarg, &timeout))
				return usage_error(self);
			break;
		case 'f':
			watch.forever = true;
			break;
		case 'h':
			return print_help(self);
		default:
			if (!follow_option(&follow, option))
				return usage_error(self);
		}
	if (optind == argc) {
		complain("name the txids to watch");
		return usage_error(self);
	}
	watch.watched = calloc((size_t)(argc - optind), sizeof(*watch.watched));
	if (!watch.watched) {
		complain("out of memory");
		return EXIT_OTHER;
	}
	for (int i = optind; i < argc; i++) {
		unsigned char txid[32];

		if (!parse_txid(argv[i], txid)) {
			free(watch.watched);
			return usage_error(self);
		}
		if (!find(&watch, txid))
			memcpy(watch.watched[watch.n++].txid, txid, 32);
	}
	output_open(&out, follow.json, follow.text);
	code = follow_open(&follow);
	for (size_t i = 0; !code && i < sizeof(topics) / sizeof(topics[0]); i++)
		code = follow_subscribe(&follow, topics[i]);
	if (timeout)
		follow.end_us = steady_us() + timeout;
	if (!code)
		code = follow_run(&follow);
	if (!code)
		code = conclude(&follow, &watch);
	coretap_close(follow.tap);
	closed = output_close(&out);
	free(watch.watched);
	return closed ? closed : code;
}

const struct subcommand command_watch = {
	.name = "watch",
	.arguments =
		"TXID... [--since WHEN] [--timeout DURATION] [--follow] [--json] [--address A]",
	.summary = "Tells what becomes of transactions: confirmed, replaced, in conflict, evicted",
	.help = "A line for each thing that happens to one of them. Ends when all have left the "
		"mempool.\n\n"
		"  --since WHEN   look back too: 10m, 2h or 1d ago, oldest, or a time like\n"
		"                 2009-01-03T18:15:05Z\n"
		"  --timeout DURATION\n"
		"                 end after 90s, 10m, 2h, ... in any case\n"
		"  --follow       go on when all have left: a transaction can come back\n"
		"  --json         JSON lines; so it is anyway when standard output is no terminal\n"
		"  --text         text for people, also when it is no terminal\n"
		"  --address A    tcp://HOST:PORT or ipc:///run/coretap/NAME\n"
		"                 (" CORETAP_DEFAULT_ADDRESS ")\n"
		"  --curve-server FILE, --curve-secret FILE\n"
		"                 public key of coretapd, secret key of your own: see coretap "
		"keygen\n\n"
		"Where events are missing for good or the node ends, what was not decided is "
		"unknown.\n"
		"A transaction that a block confirms although the mempool never had it is not "
		"seen.\n\n"
		"Exit codes, the largest of all transactions:\n"
		"   0  confirmed        10  replaced     11  in conflict with a block\n"
		"  12  evicted: expiry, sizelimit, reorg 13  unknown\n"
		"  14  undecided when --timeout or Ctrl-C ended it\n"
		"   1  another failure   2  usage\n",
	.run = run,
};
