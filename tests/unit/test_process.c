/* process.c: the chain that a node was told to use, by its arguments or its configuration file, and
 * the label that is made of it; which executables have tracepoints. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sdt.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../bridge/node.h"
#include "../../bridge/process.h"
#include "check.h"

/* A process with these arguments, which does nothing. */
static pid_t start(const char *const args[3])
{
	int ready[2];
	pid_t pid;
	char c;

	if (pipe(ready))
		abort();
	pid = fork();
	if (!pid) {
		dup2(ready[1], 1);
		close(ready[0]);
		execl("/bin/sh", "sh", "-c", "echo; kill -STOP $$", "bitcoind", args[0], args[1],
		      args[2], NULL);
		_exit(127);
	}
	close(ready[1]);
	if (read(ready[0], &c, 1) != 1)
		abort();
	close(ready[0]);
	return pid;
}

static void stop(pid_t pid)
{
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

static void test_chain(const char *directory)
{
	char datadir[128], conf[128], elsewhere[128];
	const struct {
		const char *args[3], *file, *chain;
	} cases[] = {
		{ { "-regtest", datadir }, "", "regtest" },
		{ { "--signet=1", datadir }, "", "signet" },
		{ { "-testnet", datadir }, "", "test" },
		{ { "-chain=testnet4", datadir }, "regtest=1\n", "testnet4" },
		{ { "-chain=main", datadir }, "regtest=1\n", "main" },
		{ { "-regtest=0", datadir }, "", "main" },
		{ { "-regtestish", "regtest", datadir }, "", "main" },
		{ { datadir }, "", "main" },
		{ { datadir }, "# regtest=1\nserver=1\n  testnet4 = 1 # yes\n", "testnet4" },
		{ { datadir }, "chain=signet\n", "signet" },
		{ { datadir }, "regtest=0\n", "main" },
		{ { datadir }, "[regtest]\nregtest=1\n", "main" },
		{ { datadir, "-conf=bitcoin.conf" }, "signet=1\n", "signet" },
		{ { conf }, "regtest=1\n", "regtest" },
		{ { datadir, elsewhere }, "regtest=1\n", "main" },
		{ { "-datadir=/nonexistent" }, "", "main" },
	};
	char path[128];

	snprintf(datadir, sizeof(datadir), "-datadir=%s", directory);
	snprintf(conf, sizeof(conf), "-conf=%s/bitcoin.conf", directory);
	snprintf(elsewhere, sizeof(elsewhere), "-conf=/nonexistent");
	snprintf(path, sizeof(path), "%s/bitcoin.conf", directory);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		FILE *f = fopen(path, "w");
		struct node node = { .pidfd = -1 };
		struct options options = { .name = NULL };
		char label[33], waiting[33], text[64];
		const char *chain;
		pid_t pid;

		if (!f || fputs(cases[i].file, f) < 0 || fclose(f))
			abort();
		pid = start(cases[i].args);
		chain = process_chain(pid);
		snprintf(text, sizeof(text), "case %zu, %s", i, chain);
		test_name = text;
		CHECK(!strcmp(chain, cases[i].chain));
		node.process.pid = pid;
		node_label(&node, &options, label, sizeof(label));
		snprintf(path, sizeof(path), "-%s", chain);
		CHECK(!strcmp(chain, "main") == !strstr(label, path));
		/* Whether it runs already must not matter to what is named after it. */
		options.binary = "/usr/bin/bitcoind";
		node_label(&node, &options, label, sizeof(label));
		node.process.pid = 0;
		node_label(&node, &options, waiting, sizeof(waiting));
		CHECK(!strcmp(label, waiting));
		snprintf(path, sizeof(path), "%s/bitcoin.conf", directory);
		stop(pid);
	}
	unlink(path);
}

static void test_pid_file(const char *directory)
{
	static const char *const chains[] = { "signet", "." };
	char path[160], found[160], expected[160];

	test_name = "PID file";
	CHECK(process_pid_file(directory, found, sizeof(found)) == -ENOENT);
	for (size_t i = 0; i < sizeof(chains) / sizeof(chains[0]); i++) {
		FILE *f;

		snprintf(path, sizeof(path), "%s/%s", directory, chains[i]);
		mkdir(path, 0755);
		snprintf(path, sizeof(path), "%s/%s/bitcoin-node.pid", directory, chains[i]);
		f = fopen(path, "w");
		CHECK(f && !fclose(f));
		snprintf(expected, sizeof(expected),
			 i ? "%s/bitcoin-node.pid" : "%s/signet/bitcoin-node.pid", directory);
		CHECK(!process_pid_file(directory, found, sizeof(found)) &&
		      !strcmp(found, expected));
	}
	unlink(path);
	snprintf(path, sizeof(path), "%s/signet/bitcoin-node.pid", directory);
	unlink(path);
	*strrchr(path, '/') = '\0';
	rmdir(path);
}

/* What a look at a process that is gone, or runs another executable by now, finds is not remembered
 * of the executable. */
static void test_seen(void)
{
	static const char *const nothing[3];
	struct seen_binaries seen = { .n = 0 };
	struct process self, other;
	pid_t pid;

	test_name = "executables that were looked at";
	/* This one has a tracepoint of the catalogue. */
	STAP_PROBE(mempool, added);
	CHECK(!process_read(&self, getpid()));
	pid = fork();
	if (!pid)
		_exit(0);
	waitpid(pid, NULL, 0);
	other = self;
	other.pid = pid;
	CHECK(!process_has_tracepoints(&seen, &other));
	CHECK(process_has_tracepoints(&seen, &self));
	seen.n = 0;
	pid = start(nothing);
	other.pid = pid;
	CHECK(!process_has_tracepoints(&seen, &other));
	CHECK(process_has_tracepoints(&seen, &self));
	CHECK(!process_read(&other, pid));
	other.pid = getpid();
	CHECK(!process_has_tracepoints(&seen, &other));
	other.pid = pid;
	CHECK(!process_has_tracepoints(&seen, &other));
	CHECK(process_same(&self, &self) && !process_same(&self, &other));
	stop(pid);
}

int main(void)
{
	char directory[] = "/tmp/coretap-process-XXXXXX";

	if (!mkdtemp(directory))
		return 1;
	test_chain(directory);
	test_pid_file(directory);
	test_seen();
	rmdir(directory);
	return failures != 0;
}
