/* Processes as /proc shows them: finding the node, and what is known of one process. */
#ifndef CORETAP_PROCESS_H
#define CORETAP_PROCESS_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct process {
	pid_t pid;
	dev_t dev; /* of its executable */
	ino_t ino;
	int64_t ctime_ns;      /* of its executable */
	char binary[PATH_MAX]; /* path of its executable, as /proc/PID/exe has it */
	uint64_t started_at;   /* Unix seconds, by the clock as it was when this was read */
	uint64_t started_ns;   /* since the machine's boot: no step of the clock changes it */
	pid_t parent;
};

/* Fills process for pid. Returns 0, or -errno when it is gone or may not be looked at. */
int process_read(struct process *process, pid_t pid);

/* Whether both are the same process, and not one that got the other's number later. */
bool process_same(const struct process *one, const struct process *two);

/* Executables that were looked at, so that looking for the node again and again costs little. */
struct seen_binaries {
	struct {
		dev_t dev;
		ino_t ino;
		int64_t ctime_ns;
		bool has; /* tracepoints of the catalogue */
	} list[256];
	size_t n;
};

/* Whether its executable has tracepoints that the catalogue knows. */
bool process_has_tracepoints(struct seen_binaries *seen, const struct process *process);

/* Calls found for every process whose executable matches: the one with this dev and ino, or, with
 * ino 0, any that has tracepoints of the catalogue. found returns false to stop. Processes that may
 * not be looked at are passed over. Returns their number, or -errno without /proc. */
int processes_scan(struct seen_binaries *seen, dev_t dev, ino_t ino,
		   bool (*found)(void *arg, const struct process *process), void *arg);

/* The process that a PID file names, or -errno. A node in a container has written the number by
 * which it is known there: where that of ours has no tracepoints, it is the one process with
 * tracepoints that counts so in a pid namespace of its own, and was started just before the file
 * was written. */
pid_t process_from_file(struct seen_binaries *seen, const char *path);

/* Whether it may be the one that wrote a PID file when it started. */
bool process_wrote_file(const struct process *process, const char *path);

/* Whether this process counts processes otherwise than the kernel does in what it tells of them. */
bool process_namespace_is_own(void);

/* The PID file of the node that uses a data directory, for whichever chain: fills path.
 * Returns 0, -ENOENT, or -EACCES when it cannot be told. */
int process_pid_file(const char *datadir, char *path, size_t size);

/* The data directory that a node was told by its arguments, else its user's. */
void process_datadir(pid_t pid, char *path, size_t size);

/* The chain that a node was told to use by its arguments or bitcoin.conf: "main", "test",
 * "testnet4", "signet", "regtest"; "main" when nothing tells. */
const char *process_chain(pid_t pid);

#endif
