/* The command line of the simulated node; see options.h. */
#define _GNU_SOURCE
#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ledger.h"

static const char usage[] =
	"usage: fake_node MODE [ARGS] [OPTIONS]\n"
	"\n"
	"Modes:\n"
	"  burst COUNT        COUNT firings of one probe back to back\n"
	"  blocks N TXS       N blocks of TXS transactions (without the coinbase)\n"
	"  run                a believable node, until --seconds or a signal\n"
	"  walk N             N random mempool actions at full speed\n"
	"  faults             unreadable and paged-out pointers among good ones\n"
	"  operands           every operand form, provider \"operands\" (x86-64)\n"
	"  sites [ROUNDS]     mempool:removed from three sites with different operands\n"
	"  custom [ROUNDS]    tracepoints of patched nodes: net:block_header, addrman, ...\n"
	"  ledger FILE        print what a killed node left in --ledger FILE\n"
	"\n"
	"burst:   --probe removed|added|spent|utxo|message   --reason R   --threads N\n"
	"         --size BYTES   --message-type T|random\n"
	"blocks:  --unseen K   --conflicts K   --replacements K   --reorg DEPTH   --repeat\n"
	"         --empty-blocks   --flush   --flush-ms MS   --pause-at I   --pause-ms MS\n"
	"run:     --block-interval S   --seconds S\n"
	"blocks, run, walk:  --seed N   --start-height H   --coins   --truth FILE\n"
	"         --mempool-out FILE\n"
	"always:  --abi v23|v24|v25|v26|v29   --wait   --wait-signal   --start-delay MS\n"
	"         --rate PER_SECOND   --linger MS   --hold   --daemon   --flood THREADS\n"
	"         --ledger FILE\n"
	"         --wait: until somebody traces the first probe, and 300 ms more if it had to\n"
	"\n"
	"Values of burst, for index i (counted per thread) of thread t:\n"
	"  txid         display hex: 1f1e1d…0d0c, then t as 8 and i as 16 hex digits\n"
	"  removed      reason R, vsize 110 + i mod 5000, fee 1000 + 1000003 i,\n"
	"               entry_time 1700000000 + i;  added: the same vsize and fee\n"
	"  spent, utxo  vout i mod 4096, height 700000 + i mod 100000, value 546 + 7 i,\n"
	"               coinbase i mod 16 = 0; utxo: spent spent add add spent spent …\n"
	"  message      inbound, peer_id i, addr 203.0.113.7:8333, connection_type inbound,\n"
	"               data: i as 8 bytes and t as 4, little endian, then byte k is\n"
	"               (7 k + pid) mod 256; cut to --size; NULL when that is 0\n"
	"Blocks of n transactions without the coinbase: n_tx n + 1, n_inputs 2n + 1, sigops\n"
	"4n + 100, duration 1000000 + 12345n ns. Their coins: one added by the coinbase, then\n"
	"two spent and two added per transaction.\n"
	"Block hashes: display hex 00000000 bbbbbbbbbbbbbbbb SEED(16) BRANCH(8) HEIGHT(16);\n"
	"branch 1 is the one that --reorg connects, DEPTH + 2 blocks: what only the old branch\n"
	"had returns to the pool before the last of them.\n"
	"\n"
	"SIGTERM or SIGINT ends any mode in order; run then flushes twice, as a node that\n"
	"stops. The last line of stdout is the ledger:\n"
	"the firings of every probe while somebody traced it (before v29: all firings).\n";

enum kind { FLAG, NUMBER, TEXT };

struct option_row {
	const char *name;
	enum kind kind;
	size_t offset;
};

#define ROW(name, kind, member)                              \
	{                                                    \
		name, kind, offsetof(struct options, member) \
	}

static const struct option_row rows[] = {
	ROW("abi", TEXT, abi),
	ROW("probe", TEXT, probe),
	ROW("reason", TEXT, reason),
	ROW("message-type", TEXT, message_type),
	ROW("size", NUMBER, size),
	ROW("threads", NUMBER, threads),
	ROW("seed", NUMBER, seed),
	ROW("start-height", NUMBER, start_height),
	ROW("unseen", NUMBER, unseen),
	ROW("conflicts", NUMBER, conflicts),
	ROW("replacements", NUMBER, replacements),
	ROW("reorg", NUMBER, reorg),
	ROW("flush", FLAG, flush),
	ROW("flush-ms", NUMBER, flush_ms),
	ROW("pause-at", NUMBER, pause_at),
	ROW("pause-ms", NUMBER, pause_ms),
	ROW("empty-blocks", FLAG, empty_blocks),
	ROW("repeat", FLAG, repeat),
	ROW("coins", FLAG, coins),
	ROW("block-interval", NUMBER, block_interval),
	ROW("seconds", NUMBER, seconds),
	ROW("truth", TEXT, truth),
	ROW("mempool-out", TEXT, mempool_out),
	ROW("rate", NUMBER, rate),
	ROW("start-delay", NUMBER, start_delay),
	ROW("linger", NUMBER, linger),
	ROW("flood", NUMBER, flood),
	ROW("wait", FLAG, wait),
	ROW("wait-signal", FLAG, wait_signal),
	ROW("hold", FLAG, hold),
	ROW("daemon", FLAG, daemonize),
	ROW("ledger", TEXT, ledger),
};

#define ROWS (sizeof(rows) / sizeof(rows[0]))
#define HELP ROWS

static int parse_number(const char *text, const char *what, uint64_t *number)
{
	char *end;

	errno = 0;
	*number = strtoull(text, &end, 10);
	if (*text >= '0' && *text <= '9' && !*end && !errno)
		return 0;
	fprintf(stderr, "fake_node: %s: not a number: %s\n", what, text);
	return -1;
}

static int set_option(struct options *options, const struct option_row *row, const char *value)
{
	char *member = (char *)options + row->offset;

	switch (row->kind) {
	case FLAG:
		*(bool *)member = true;
		return 0;
	case TEXT:
		*(const char **)member = value;
		return 0;
	case NUMBER:
		break;
	}
	return parse_number(value, row->name, (uint64_t *)member);
}

static int parse_words(struct options *options, int count, char **words)
{
	int i;

	if (!count) {
		fprintf(stderr, "fake_node: no mode given (--help lists them)\n");
		return -1;
	}
	options->mode = words[0];
	if (!strcmp(options->mode, "ledger") && count == 2) {
		options->file = words[1];
		return 0;
	}
	if (count > 3) {
		fprintf(stderr, "fake_node: too many arguments: %s\n", words[3]);
		return -1;
	}
	for (i = 1; i < count; i++)
		if (parse_number(words[i], options->mode, &options->numbers[i - 1]))
			return -1;
	return 0;
}

static int check(const struct options *options)
{
	const char *wrong = NULL;

	if (options->threads < 1 || options->threads + options->flood >= LEDGER_SLOTS)
		wrong = "--threads and --flood: at least 1 and at most 128 threads together";
	else if (options->threads > 1 && strcmp(options->mode, "burst"))
		wrong = "--threads: only burst has several threads (see --flood)";
	else if (options->conflicts && !options->unseen)
		wrong = "--conflicts needs --unseen: what was in the pool conflicts with nothing";
	else if (options->size > 64 * 1024 * 1024)
		wrong = "--size: at most 64 MiB";
	else if (options->rate > 1000000000)
		wrong = "--rate: at most 1000000000";
	if (wrong)
		fprintf(stderr, "fake_node: %s\n", wrong);
	return wrong ? -1 : 0;
}

int options_parse(struct options *options, int argc, char **argv)
{
	struct option table[ROWS + 2] = { 0 };
	int index;
	size_t i;

	*options = (struct options){
		.probe = "removed",
		.reason = "block",
		.message_type = "tx",
		.size = 250,
		.threads = 1,
		.seed = 1,
		.start_height = 850000,
		.block_interval = 10,
	};
	for (i = 0; i < ROWS; i++) {
		table[i].name = rows[i].name;
		table[i].has_arg = rows[i].kind == FLAG ? no_argument : required_argument;
		table[i].val = (int)i;
	}
	table[HELP].name = "help";
	table[HELP].val = (int)HELP;

	opterr = 0;
	while ((index = getopt_long(argc, argv, ":", table, NULL)) != -1) {
		if (index == (int)HELP) {
			fputs(usage, stdout);
			return 1;
		}
		if (index == '?' || index == ':') {
			fprintf(stderr, "fake_node: %s: %s\n", argv[optind - 1],
				index == ':' ? "value missing" : "unknown option (see --help)");
			return -1;
		}
		if (set_option(options, &rows[index], optarg))
			return -1;
	}
	if (parse_words(options, argc - optind, argv + optind))
		return -1;
	return check(options);
}
