/* The one node that is followed: finding it, telling its processes from others of the same binary,
 * noticing its end. */
#ifndef CORETAP_NODE_H
#define CORETAP_NODE_H

#include "options.h"
#include "process.h"

#define NODE_MAX_IGNORED 16

struct node {
	struct process process; /* pid 0: none runs */
	int pidfd;		/* -1: none; readable once the process is gone */
	unsigned int group;	/* of the executable that it runs */
	bool fixed; /* an option names the process: no other of the binary is the node */
	bool told;  /* that the process has started; intake.c's */
	uint32_t ignored[NODE_MAX_IGNORED]; /* other processes of the binary */
	size_t n_ignored;
	struct seen_binaries seen;
	/* how to attach */
	char path[PATH_MAX];   /* for people */
	char attach[PATH_MAX]; /* for the kernel: through /proc/PID/exe where a process runs */
};

/* Finds the node that the options mean. Returns 0 (process.pid is 0 where a binary is named and
 * does not run yet, or not as the process that is named), -ESRCH, -EMLINK (several), or -EPERM,
 * said in the log. */
int node_find(struct node *node, const struct options *options);

/* Looks again, without a word, when no process runs: for the one that a PID file names by now; for
 * one of the binary (dev, ino) that is attached, started so long ago that no record of its start is
 * still to come; or, when nothing was named, for the only one with tracepoints. Returns true when
 * one was found; node->path and attach then lead to its executable. */
bool node_find_again(struct node *node, const struct options *options, dev_t dev, ino_t ino);
void node_close(struct node *node);

enum node_verdict {
	NODE_KNOWN, /* the process that is followed */
	NODE_OTHER, /* another one of the same binary: ignored */
	NODE_NEW,   /* the node's next process: tell the end of the last one, then node_follow */
};

/* Whether pid is another process of the binary, as node_judge found. */
bool node_is_ignored(const struct node *node, pid_t pid);

/* Judges the process that a record comes from; starting: the record is its start. */
enum node_verdict node_judge(struct node *node, pid_t pid, bool starting);

/* Follows pid from here on. Returns false when it is gone already; what /proc no longer tells is
 * then filled in from the binary's path and now, Unix seconds. */
bool node_follow(struct node *node, pid_t pid, uint64_t now);

/* Follows the process that an earlier coretapd followed, as it knew it. Returns false when that
 * process is gone by now. */
bool node_take_over(struct node *node, const struct process *process);

/* Forgets the process, which is gone. */
void node_gone(struct node *node);

/* Whether the followed process still runs. */
bool node_alive(const struct node *node);

/* The default label: host name, and the chain unless it is main. Of a binary that is named the host
 * name alone: it need not run yet, and a restart must find what it left whether it runs or not. */
void node_label(const struct node *node, const struct options *options, char *label, size_t size);

#endif
