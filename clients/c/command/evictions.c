/* coretap evictions: the transactions that left the mempool with each block. */
#include <getopt.h>
#include <stdio.h>

#include "command.h"

/* One transaction of a list. The arrays run in step. */
struct lists {
	struct coretap_array txids, fees, vsizes;
};

static void get_lists(const struct coretap_event *event, const char *const names[3],
		      struct lists *lists)
{
	*lists = (struct lists){ { 0 }, { 0 }, { 0 } };
	coretap_get_array(event, names[0], &lists->txids);
	coretap_get_array(event, names[1], &lists->fees);
	coretap_get_array(event, names[2], &lists->vsizes);
}

static void print_number(int state, long long number, const char *unit)
{
	if (state == CORETAP_SET)
		printf("  %9lld %s", number, unit);
	else
		printf("  %9s %s", "?", unit);
}

static void print_transaction(const struct output *out, struct lists *lists, const char *conflict)
{
	const unsigned char *txid;
	char hex[65] = "unknown: could not be read";
	int64_t fee = 0, vsize = 0;
	int state;

	if (coretap_array_hash(&lists->txids, &txid) == CORETAP_SET)
		coretap_hash_hex(txid, hex);
	printf("  %-64s", hex);
	output_colour(out, DIM);
	state = coretap_array_int(&lists->vsizes, &vsize);
	print_number(state, vsize, "vB");
	state = coretap_array_int(&lists->fees, &fee);
	print_number(state, fee, "sat");
	output_colour(out, PLAIN);
	if (*conflict) {
		output_colour(out, YELLOW);
		printf("  %s", conflict);
		output_colour(out, PLAIN);
	}
	putchar('\n');
}

static void print_summary(const struct output *out, const struct coretap_event *event,
			  uint32_t evicted, uint32_t conflicts)
{
	const unsigned char *hash;
	char hex[65] = "(hash could not be read)";
	uint64_t height, unseen, reorg;
	int complete = 0, final = 0, repeat = 0;

	coretap_get_bool(event, "complete", &complete);
	coretap_get_bool(event, "final", &final);
	coretap_get_bool(event, "repeat", &repeat);
	if (coretap_get_hash(event, "hash", &hash) == CORETAP_SET)
		coretap_hash_hex(hash, hex);

	output_colour(out, BOLD);
	if (coretap_get_uint(event, "height", &height) == CORETAP_SET)
		printf("block %llu", (unsigned long long)height);
	else
		printf("block ?");
	output_colour(out, PLAIN);
	printf(" %s  %s evicted", hex, grouped(evicted));
	if (conflicts)
		printf(", %s in conflict", grouped(conflicts));
	if (coretap_get_uint(event, "unseen", &unseen) == CORETAP_SET)
		printf(", %s unseen", grouped(unseen));
	if (coretap_get_uint(event, "reorg", &reorg) == CORETAP_SET && reorg)
		printf(", reorg of %s", grouped(reorg));
	if (repeat)
		printf(", connected before");
	printf(", ");
	output_colour(out, complete ? GREEN : final ? RED : YELLOW);
	printf("%s", complete ? "complete" : final ? "not complete" : "not final yet");
	output_colour(out, PLAIN);
	putchar('\n');
}

static void print_block(const struct output *out, const struct coretap_event *event)
{
	static const char *const evicted_names[] = { "txids", "fees", "vsizes" };
	static const char *const conflict_names[] = { "conflicts.txids", "conflicts.fees",
						      "conflicts.vsizes" };
	struct lists evicted, conflicts;
	struct coretap_array after = { 0 };
	uint64_t told = 0, place = 0;

	get_lists(event, evicted_names, &evicted);
	get_lists(event, conflict_names, &conflicts);
	coretap_get_array(event, "conflicts.after", &after);
	print_summary(out, event, evicted.txids.left, conflicts.txids.left);

	coretap_array_uint(&after, &place);
	while (evicted.txids.left || conflicts.txids.left) {
		if (conflicts.txids.left && (place <= told || !evicted.txids.left)) {
			print_transaction(out, &conflicts, "conflict");
			coretap_array_uint(&after, &place);
		} else {
			print_transaction(out, &evicted, "");
			told++;
		}
	}
}

static bool handle(struct follow *follow, const struct coretap_event *event)
{
	int final = 0;

	coretap_get_bool(event, "final", &final);
	if (!final && !follow->early)
		return false;
	if (follow->out->json)
		output_json(follow->out, event);
	else
		print_block(follow->out, event);
	return true;
}

static int run(const struct subcommand *self, int argc, char **argv)
{
	static const struct option options[] = {
		FOLLOW_OUTPUT_OPTIONS,
		FOLLOW_OPTIONS,
		{ "count", required_argument, NULL, 'n' },
		{ "early", no_argument, NULL, 'e' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	struct output out;
	struct follow follow = { .out = &out, .handle = handle };
	int option, code, closed;

	while ((option = getopt_long(argc, argv, "a:n:h", options, NULL)) != -1)
		switch (option) {
		case 'e':
			follow.early = true;
			break;
		case 'h':
			return print_help(self);
		default:
			if (!follow_option(&follow, option))
				return usage_error(self);
		}
	if (optind < argc) {
		complain("%s: evictions takes no arguments", argv[optind]);
		return usage_error(self);
	}
	output_open(&out, follow.json, follow.text);
	code = follow_open(&follow);
	if (!code)
		code = follow_subscribe(&follow, "block.evictions");
	if (!code)
		code = follow_run(&follow);
	coretap_close(follow.tap);
	closed = output_close(&out);
	return code ? code : closed;
}

const struct subcommand command_evictions = {
	.name = "evictions",
	.arguments = "[--early] [--json] [--address A] [--count N]",
	.summary =
		"Shows the complete list of transactions that each block takes out of the mempool",
	.help = "For each block one line, then its transactions in block order. `unseen` are "
		"transactions of\n"
		"the block that were not in the mempool; `in conflict` those that the block made "
		"invalid,\n"
		"shown where the block transaction that conflicts with them stands.\n\n"
		"  --early        also lists that are not final; the whole list follows again\n"
		"  --json         JSON lines; so it is anyway when standard output is no terminal\n"
		"  --text         text for people, also when it is no terminal\n"
		"  --address A    tcp://HOST:PORT or ipc:///run/coretap/NAME\n"
		"                 (" CORETAP_DEFAULT_ADDRESS ")\n"
		"  --curve-server FILE, --curve-secret FILE\n"
		"                 public key of coretapd, secret key of your own: see coretap "
		"keygen\n"
		"  --count N      end after N lists\n\n"
		"A list is `complete` when it is proven that nothing is missing. Ends on Ctrl-C.\n",
	.run = run,
};
