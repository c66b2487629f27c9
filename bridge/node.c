/* See node.h. */
#include <ctype.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "log.h"
#include "node.h"
#include "privilege.h"

#define MAX_LISTED 4

/* Processes that match, for the one that is meant or for the message that there are several. */
struct candidates {
	struct process first;
	size_t n;
	char list[MAX_LISTED * 220 + 16];
};

static bool candidate_add(void *arg, const struct process *process)
{
	struct candidates *c = arg;
	size_t used = strlen(c->list);
	char datadir[PATH_MAX];

	if (!c->n++)
		c->first = *process;
	if (c->n > MAX_LISTED) {
		snprintf(c->list + used, sizeof(c->list) - used, "%s",
			 c->n == MAX_LISTED + 1 ? ", ..." : "");
		return true;
	}
	process_datadir(process->pid, datadir, sizeof(datadir));
	snprintf(c->list + used, sizeof(c->list) - used, "%s%d (%.100s, %.100s)", used ? ", " : "",
		 process->pid, process->binary, datadir);
	return true;
}

/* Whoever is followed is no other process any more. */
static void heed(struct node *node, pid_t pid)
{
	size_t kept = 0;

	for (size_t i = 0; i < node->n_ignored; i++)
		if (node->ignored[i] != (uint32_t)pid)
			node->ignored[kept++] = node->ignored[i];
	node->n_ignored = kept;
}

static void node_set(struct node *node, const struct process *process)
{
	static const char deleted[] = " (deleted)";
	size_t len;

	heed(node, process->pid);
	node->process = *process;
	node->told = false;
	node->pidfd = (int)syscall(SYS_pidfd_open, process->pid, 0);
	snprintf(node->path, sizeof(node->path), "%s", process->binary);
	len = strlen(node->path);
	if (len > strlen(deleted) && !strcmp(node->path + len - strlen(deleted), deleted))
		node->path[len - strlen(deleted)] = '\0';
	snprintf(node->attach, sizeof(node->attach), "/proc/%d/exe", process->pid);
}

static int node_find_pid(struct node *node, pid_t pid, const char *why)
{
	struct process process;
	int err = process_read(&process, pid);

	if (err) {
		bool forbidden = err == -EACCES || err == -EPERM;

		log_error("%s: process %d: %s", why, pid,
			  err == -ENOENT || err == -ESRCH ? "does not run"
			  : forbidden && !privilege_sees_others()
				  ? "is another user's, and CAP_SYS_PTRACE is missing"
				  : strerror(-err));
		return forbidden ? -EPERM : -ESRCH;
	}
	node->fixed = true;
	node_set(node, &process);
	return 0;
}

static int node_find_file(struct node *node, const struct options *options, const char *path)
{
	struct process process;
	pid_t pid = process_from_file(&node->seen, path);

	if (pid < 0) {
		log_error("%s: %s", path,
			  pid == -EINVAL ? "holds no process number" : strerror(-pid));
		return pid == -EACCES ? -EPERM : -ESRCH;
	}
	/* The binary of a node that was built without tracepoints is told of later. */
	if (!process_read(&process, pid) && !options->tracepoints[0] &&
	    !process_has_tracepoints(&node->seen, &process) &&
	    !process_wrote_file(&process, path)) {
		log_error("%s: names process %d, which is %s and did not write it: an old file, or "
			  "one from a container, where processes have other numbers; name the node "
			  "with --pid",
			  path, pid, process.binary);
		return -ESRCH;
	}
	return node_find_pid(node, pid, path);
}

static int node_find_datadir(struct node *node, const struct options *options, const char *datadir)
{
	char path[PATH_MAX];
	int err = process_pid_file(datadir, path, sizeof(path));

	if (err) {
		log_error("%s: %s", datadir,
			  err == -EACCES
				  ? "may not be looked into by this user"
				  : "no PID file of a node in it: is it running, and is this "
				    "its data directory? To wait for it add --binary");
		return err == -EACCES ? -EPERM : -ESRCH;
	}
	return node_find_file(node, options, path);
}

static int node_find_running(struct node *node, const char *binary)
{
	struct candidates c = { .n = 0 };
	struct stat st = { .st_ino = 0 };
	int n;

	if (binary && stat(binary, &st)) {
		log_error("%s: %s", binary, strerror(errno));
		return -ESRCH;
	}
	n = processes_scan(&node->seen, st.st_dev, st.st_ino, candidate_add, &c);
	if (n < 0) {
		log_error("/proc: %s", strerror(-n));
		return n;
	}
	if (c.n > 1) {
		log_error("several processes have the tracepoints, choose one with --datadir: %s",
			  c.list);
		return -EMLINK;
	}
	if (c.n == 1) {
		node_set(node, &c.first);
		if (binary)
			snprintf(node->path, sizeof(node->path), "%s", binary);
		return 0;
	}
	if (binary) {
		/* Links stay as they are: they may lead elsewhere tomorrow. */
		snprintf(node->path, sizeof(node->path), "%s", binary);
		snprintf(node->attach, sizeof(node->attach), "%s", binary);
		return 0;
	}
	if (!privilege_sees_others()) {
		log_error(
			"no process of this user has Bitcoin Core's tracepoints, and others cannot "
			"be looked at: missing CAP_SYS_PTRACE; or name the node's executable with "
			"--binary");
		return -EPERM;
	}
	log_error(
		"no running process has Bitcoin Core's tracepoints: start the node first, or name "
		"its executable with --binary; `coretap probes BINARY` tells whether it has them");
	return -ESRCH;
}

/* The process that a file names, now or later. */
static int node_await(struct node *node, const struct options *options)
{
	struct stat st;

	if (stat(options->binary, &st)) {
		log_error("%s: %s", options->binary, strerror(errno));
		return -ESRCH;
	}
	node->fixed = true;
	if (!node_find_again(node, options, st.st_dev, st.st_ino)) {
		snprintf(node->path, sizeof(node->path), "%s", options->binary);
		snprintf(node->attach, sizeof(node->attach), "%s", options->binary);
	}
	return 0;
}

int node_find(struct node *node, const struct options *options)
{
	memset(node, 0, sizeof(*node));
	node->pidfd = -1;
	if (options->pid)
		return node_find_pid(node, options->pid, "--pid");
	if (options->binary && (options->pid_file || options->datadir))
		return node_await(node, options);
	if (options->pid_file)
		return node_find_file(node, options, options->pid_file);
	if (options->datadir)
		return node_find_datadir(node, options, options->datadir);
	return node_find_running(node, options->binary);
}

/* A start that is younger may still have its record in the ring. */
#define SETTLED_SECONDS 2

static bool is_settled(const struct process *process)
{
	struct timespec since_boot;

	clock_gettime(CLOCK_BOOTTIME, &since_boot);
	return (uint64_t)since_boot.tv_sec >= process->started_ns / 1000000000 + SETTLED_SECONDS;
}

bool node_find_again(struct node *node, const struct options *options, dev_t dev, ino_t ino)
{
	struct process process;
	struct candidates same = { .n = 0 }, any = { .n = 0 };
	char path[PATH_MAX];
	pid_t pid = 0;

	if (options->pid_file) {
		pid = process_from_file(&node->seen, options->pid_file);
	} else if (options->datadir) {
		if (!process_pid_file(options->datadir, path, sizeof(path)))
			pid = process_from_file(&node->seen, path);
	} else if (!options->pid) {
		if (processes_scan(&node->seen, dev, ino, candidate_add, &same) == 1 &&
		    is_settled(&same.first))
			pid = same.first.pid;
		else if (!same.n && !options->binary &&
			 processes_scan(&node->seen, 0, 0, candidate_add, &any) == 1)
			pid = any.first.pid;
	}
	if (pid <= 0 || process_read(&process, pid))
		return false;
	/* The number in a file that a killed node left may be another program's by now, or that of
	 * a process that has yet to become the node. */
	if ((process.dev != dev || process.ino != ino) &&
	    !process_has_tracepoints(&node->seen, &process))
		return false;
	node_close(node);
	node_set(node, &process);
	if (node_alive(node))
		return true;
	node_gone(node);
	return false;
}

void node_close(struct node *node)
{
	if (node->pidfd >= 0)
		close(node->pidfd);
	node->pidfd = -1;
}

bool node_alive(const struct node *node)
{
	struct pollfd poll_fd = { .fd = node->pidfd, .events = POLLIN };

	if (!node->process.pid)
		return false;
	/* No descriptor: the process was gone before one could be had, or there was none to be had.
	 */
	if (node->pidfd < 0)
		return !kill(node->process.pid, 0) || errno == EPERM;
	return poll(&poll_fd, 1, 0) <= 0;
}

bool node_is_ignored(const struct node *node, pid_t pid)
{
	for (size_t i = 0; i < node->n_ignored; i++)
		if (node->ignored[i] == (uint32_t)pid)
			return true;
	return false;
}

/* The list is small: those that are gone make room, then the oldest does. */
static void ignore(struct node *node, pid_t pid)
{
	size_t kept = 0;

	if (node_is_ignored(node, pid))
		return;
	for (size_t i = 0; i < node->n_ignored; i++)
		if (!kill((pid_t)node->ignored[i], 0) || errno == EPERM)
			node->ignored[kept++] = node->ignored[i];
	if (kept == NODE_MAX_IGNORED)
		memmove(node->ignored, node->ignored + 1, --kept * sizeof(node->ignored[0]));
	node->ignored[kept++] = (uint32_t)pid;
	node->n_ignored = kept;
	log_warning("process %d runs the same binary as the node (%d): ignored", pid,
		    node->process.pid);
}

enum node_verdict node_judge(struct node *node, pid_t pid, bool starting)
{
	struct process process;

	if (pid == node->process.pid && !starting)
		return NODE_KNOWN;
	if (node->fixed || (!starting && node_is_ignored(node, pid)))
		return pid == node->process.pid ? NODE_KNOWN : NODE_OTHER;
	/* A number that starts again is a new process, even under the old number. */
	if (pid == node->process.pid || !node_alive(node))
		return NODE_NEW;
	/* -daemon: the node goes on in a child, while its parent may wait until it is up. */
	if (!starting && !process_read(&process, pid) && process.parent == node->process.pid)
		return NODE_NEW;
	/* The parent may have ended just now, between the two looks. */
	if (!node_alive(node))
		return NODE_NEW;
	ignore(node, pid);
	return NODE_OTHER;
}

bool node_follow(struct node *node, pid_t pid, uint64_t now)
{
	struct process process;

	node_close(node);
	heed(node, pid);
	if (process_read(&process, pid)) {
		process = (struct process){ .pid = pid, .started_at = now };
		snprintf(process.binary, sizeof(process.binary), "%s", node->path);
	}
	node->process = process;
	node->told = false;
	node->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	return node_alive(node);
}

bool node_take_over(struct node *node, const struct process *process)
{
	struct process now;

	node_close(node);
	node->process = *process;
	/* The number may be another process's by now. */
	if (process_read(&now, process->pid) || !process_same(&now, process))
		return false;
	node->pidfd = (int)syscall(SYS_pidfd_open, process->pid, 0);
	return true;
}

void node_gone(struct node *node)
{
	node_close(node);
	node->process.pid = 0;
}

void node_label(const struct node *node, const struct options *options, char *label, size_t size)
{
	const char *chain =
		node->process.pid && !options->binary ? process_chain(node->process.pid) : "main";
	char host[33] = "";

	gethostname(host, sizeof(host) - 1);
	host[strcspn(host, ".")] = '\0';
	for (char *c = host; *c; c++)
		if (!isalnum((unsigned char)*c) && *c != '-' && *c != '_')
			*c = '_';
	if (!host[0])
		strcpy(host, "node");
	if (!strcmp(chain, "main"))
		snprintf(label, size, "%s", host);
	else
		snprintf(label, size, "%.*s-%s", (int)(32 - 1 - strlen(chain)), host, chain);
}
