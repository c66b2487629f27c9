/* The executable that is traced: its identity, its notes, and a guard against being written in
 * place.
 *
 * Breakpoints belong to an inode, and the kernel keeps the instructions that they replace. Whoever
 * writes new code into the same inode (cp over it) while it is attached makes the next process run
 * a mixture of both. So while it is attached the file carries a read lease: the kernel then holds
 * back a writer until the lease is given up, which is after the detach. Where a file system has no
 * leases, inotify tells of the write as soon as it happens. */
#ifndef CORETAP_BINARY_H
#define CORETAP_BINARY_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "probes.h"

/* What tells one content of a file from another. */
struct binary_identity {
	uint64_t dev, ino, size;
	int64_t ctime_ns;
	char build_id[129];
	char unused[7];
};

struct binary {
	char path[PATH_MAX];   /* as the operator knows it */
	char attach[PATH_MAX]; /* what the kernel resolves: path, or /proc/PID/exe */
	int fd;
	struct binary_identity identity;
	struct probes probes;
	bool leased;
	int inotify; /* -1 = none */
};

/* Opens attach, takes the guard, then reads the notes. path is for people. Sets up nothing else.
 * Returns 0 or -errno, said in the log; -ETXTBSY, not said: somebody is writing it just now. */
int binary_open(struct binary *binary, const char *path, const char *attach);
void binary_close(struct binary *binary);

/* Gives up the lease: the writer that waits for it goes on. Call after the detach. */
void binary_release(struct binary *binary);

/* Whether somebody waits for the lease to be given up. */
bool binary_lease_broken(const struct binary *binary);

enum binary_change {
	BINARY_SAME,
	BINARY_WRITTEN, /* its content changes or has changed: detach at once */
	BINARY_CLOSED,	/* a writer has closed it: the notes can be read again */
};

/* Reads what inotify has to tell; the strongest change of all. */
enum binary_change binary_changed(struct binary *binary);

#endif
