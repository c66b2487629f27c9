/*
 * A simulated Bitcoin Core node: it fires Core's tracepoints with known values and tells at exit
 * how often each one fired. `fake_node --help` lists modes, options and the formulas.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "node.h"

struct mode {
	const char *name;
	int (*work)(struct node *node);
	const char *probe; /* --wait waits for it; NULL: burst's own */
	bool number;	   /* the first number must be given */
};

static const struct mode modes[] = {
	{ "burst", burst, NULL, true },
	{ "blocks", blocks, "validation:block_connected", true },
	{ "run", run, "mempool:added", false },
	{ "walk", walk, "mempool:added", true },
	{ "faults", faults, "mempool:removed", false },
	{ "operands", operands, "operands:registers", false },
	{ "sites", sites, "mempool:removed", false },
	{ "custom", custom, "net:block_header", false },
};

static const struct mode *mode_find(const struct options *options)
{
	size_t i;

	for (i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
		if (strcmp(modes[i].name, options->mode))
			continue;
		if (!modes[i].number || options->numbers[0])
			return &modes[i];
		fprintf(stderr, "fake_node: %s: number missing or 0 (see --help)\n", options->mode);
		return NULL;
	}
	fprintf(stderr, "fake_node: unknown mode: %s (see --help)\n", options->mode);
	return NULL;
}

/* Becomes the sibling binary of that ABI; returns only if this one is it already, or on error. */
static int abi_exec(const char *abi, char **argv)
{
	static const char *const names[] = { "v23", "v24", "v25", "v26", "v29" };
	char self[PATH_MAX + 16] = "", path[PATH_MAX + 16];
	char *base;
	size_t i;

	for (i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (!strcmp(abi, names[i]))
			break;
	if (i == sizeof(names) / sizeof(names[0])) {
		fprintf(stderr, "fake_node: --abi: one of v23 v24 v25 v26 v29, not %s\n", abi);
		return -1;
	}
	if (atoi(abi + 1) == FAKE_NODE_ABI)
		return 0;
	if (readlink("/proc/self/exe", self, PATH_MAX) < 0)
		self[0] = '\0';
	strcpy(path, self);
	base = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
	snprintf(base, 16, "fake_node%s%s", strcmp(abi, "v29") ? "-" : "",
		 strcmp(abi, "v29") ? abi : "");
	errno = ENOEXEC; /* this very file, built with another ABI than its name says */
	if (strcmp(path, self))
		execv(path, argv);
	fprintf(stderr, "fake_node: --abi %s: %s: %s\n", abi, path, strerror(errno));
	return -1;
}

/* Like bitcoind -daemon: the parent leaves at once, the child is the node. */
static void become_daemon(void)
{
	pid_t pid = fork();

	if (pid < 0) {
		fprintf(stderr, "fake_node: fork: %s\n", strerror(errno));
		exit(1);
	}
	if (pid) {
		printf("{\"daemon\":%d}\n", (int)pid);
		exit(0);
	}
	setsid();
}

static int print_ledger_file(const char *path)
{
	struct ledger_book *book = path ? ledger_read(path) : NULL;

	if (!book) {
		fprintf(stderr, "fake_node: %s: %s\n", path ? path : "ledger",
			path ? strerror(errno) : "file missing (see --help)");
		return 2;
	}
	ledger_print(book);
	puts("}");
	return 0;
}

static void print_last_line(const struct node *node, uint64_t elapsed_ns)
{
	ledger_print(node->book);
	printf(",\"elapsed_ns\":%" PRIu64, elapsed_ns);
	if (node->rounds)
		printf(",\"ns_per_firing\":%.2f", (double)node->rounds_ns / (double)node->rounds);
	puts("}");
}

int main(int argc, char **argv)
{
	const struct mode *mode;
	struct options options;
	struct node node = { .options = &options };
	struct flood *flood;
	enum probe probe;
	uint64_t start;
	int code;

	node_catch_signals();
	code = options_parse(&options, argc, argv);
	if (code)
		return code > 0 ? 0 : 2;
	if (options.abi && abi_exec(options.abi, argv))
		return 2;
	if (!strcmp(options.mode, "ledger"))
		return print_ledger_file(options.file);
	mode = mode_find(&options);
	if (!mode)
		return 2;
	probe = mode->probe ? probe_find(mode->probe) : burst_probe(&options);
	if (!mode->probe && probe == PROBE_COUNT)
		return 2;

	if (options.daemonize)
		become_daemon();
	node.book = ledger_open(options.ledger);
	if (!node.book) {
		fprintf(stderr, "fake_node: %s: %s\n", options.ledger ? options.ledger : "ledger",
			strerror(errno));
		return 1;
	}
	node.ledger = &node.book->slots[0];

	node_wait(&node, probe);
	flood = flood_open(&node);
	start = node_now_ns();
	code = mode->work(&node);
	start = node_now_ns() - start;
	flood_close(flood);
	fflush(stdout);
	node_sleep_ms(options.linger);
	while (options.hold && !code && !node_stop)
		node_sleep_ms(1000);
	print_last_line(&node, start);
	return code;
}
