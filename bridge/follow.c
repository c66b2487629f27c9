/* Which executable is attached, while the node is restarted, upgraded and overwritten.
 *
 * Breakpoints belong to an inode. A new file under the old name is a second binary: it is attached
 * as soon as it has the name, with its own operands, while the old one goes on being traced as long
 * as its process runs. A file that is written in place is let go at once and taken again
 * afterwards. */
#include <errno.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bridge.h"
#include "log.h"

static struct binary *current(struct bridge *b)
{
	return &b->binaries[b->current];
}

static void describe(const struct bridge *b)
{
	unsigned int missing = 0, degraded = 0, attached = 0;
	char list[800] = "";

	for (size_t i = 0; i < b->tps.n; i++) {
		enum tracepoint_state state = b->tps.table[i].state;
		size_t used = strlen(list);

		degraded += state == TRACEPOINT_DEGRADED;
		attached += state >= TRACEPOINT_DEGRADED;
		if (state != TRACEPOINT_MISSING)
			continue;
		snprintf(list + used, sizeof(list) - used, "%s%s", missing++ ? ", " : "",
			 b->tps.table[i].event->topic);
	}
	log_info("%s: Bitcoin Core %s, %u tracepoints%s", b->binaries[b->current].path,
		 b->tps.core[b->current], attached, degraded ? ", some degraded" : "");
	for (size_t i = 0; i < b->tps.n && b->options->check; i++) {
		const struct tracepoint *tp = &b->tps.table[i];

		if (tp->declared)
			log_info("%s: %s, declared at %s:%u", tp->event->topic,
				 tracepoint_state_name(tp->state), tp->declared->file,
				 tp->declared->line);
	}
	if (missing)
		log_info("missing in this binary: %s", list);
}

int follow_bind(struct bridge *b)
{
	struct binary *binary = current(b);
	int n = tracepoints_bind(&b->tps, b->current, &binary->probes, binary->fd, binary->path);

	if (binary->probes.n_unusable)
		log_warning("%s: %zu tracepoints have a note that cannot be used", binary->path,
			    binary->probes.n_unusable);
	if (n > 0) {
		describe(b);
		return 0;
	}
	/* What a file declares does not fit, and that was said. */
	if (!n && b->tps.refused)
		return EXIT_NO_TRACEPOINTS;
	if (n < 0)
		log_error("%s: more than %d tracepoint sites", binary->path, GROUP_SITES);
	else
		log_error("%s: has none of the tracepoints that are wanted%s", binary->path,
			  b->options->tracepoints[0]
				  ? "; `coretap probes` shows those that it has"
				  : ". Official Linux releases have them, many distribution builds "
				    "do not, own builds want WITH_USDT=ON; `coretap probes` shows "
				    "those that it has");
	return EXIT_NO_TRACEPOINTS;
}

static void names_unwatched(const char *path)
{
	log_warning("%s: its directory cannot be watched: %s: who replaces the executable should "
		    "wait a second before it is started",
		    path, strerror(errno));
}

static void watch_directory(struct bridge *b, const char *path)
{
	char copy[PATH_MAX];

	snprintf(copy, sizeof(copy), "%s", path);
	if (inotify_add_watch(b->names, dirname(copy),
			      IN_MOVED_TO | IN_CLOSE_WRITE | IN_CREATE | IN_ONLYDIR) < 0)
		names_unwatched(path);
}

/* The name that the operator gave, and what it leads to. A process in another mount namespace has a
 * name that means another file here, or none: it is found again through /proc instead. */
static void watch_names(struct bridge *b)
{
	struct binary_identity *identity = &current(b)->identity;
	char real[PATH_MAX];
	struct stat st;

	if (stat(b->node.path, &st)) {
		if (errno != ENOENT)
			names_unwatched(b->node.path);
		return;
	}
	if (!b->options->binary && (st.st_dev != identity->dev || st.st_ino != identity->ino))
		return;
	if (b->names < 0)
		b->names = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	if (b->names < 0) {
		names_unwatched(b->node.path);
		return;
	}
	/* Each time: the name, or what it leads to, may stand in another directory by now. */
	watch_directory(b, b->node.path);
	if (realpath(b->node.path, real))
		watch_directory(b, real);
	else
		names_unwatched(b->node.path);
	bridge_watch(b, b->names);
}

void follow_watch(struct bridge *b)
{
	bridge_watch(b, current(b)->inotify);
	watch_names(b);
}

bool follow_waits(const struct bridge *b)
{
	return b->node.fixed && !b->node.process.pid;
}

/* The gate opens last: when everything is attached, pinned, and told to a successor. */
int follow_attach(struct bridge *b)
{
	pid_t pid = b->node.fixed ? b->node.process.pid : 0;
	int err = 0;

	tracer_only(b->tracer, pid);
	if (!follow_waits(b))
		err = tracer_attach(b->tracer, &b->tps, b->current, current(b)->attach, pid);
	if (!err && !follow_waits(b) && b->options->keep_attached) {
		err = tracer_pin(b->tracer, b->label);
		/* At the start somebody is there who can help. Later a node is better traced
		 * without. */
		if (err && b->ready)
			err = 0;
	}
	if (err == -EBUSY)
		return EXIT_ADDRESS;
	if (err)
		return err == -EPERM || err == -EACCES ? EXIT_PRIVILEGE : EXIT_OTHER;
	state_save(b);
	tracer_gate(b->tracer, true);
	follow_watch(b);
	return 0;
}

/* Lets a binary go. Records of it that are still in the rings are read while its sites mean what
 * they meant. */
static void release(struct bridge *b, unsigned int group)
{
	if (tracer_attached(b->tracer, group)) {
		tracer_detach_group(b->tracer, group);
		bridge_drain(b);
	}
	binary_release(&b->binaries[group]);
}

/* Whether the file of the binary that is not the current one is this one, and attached. */
static bool is_other(const struct bridge *b, const struct binary *binary)
{
	const struct binary_identity *identity = &b->binaries[!b->current].identity;

	return tracer_attached(b->tracer, !b->current) && identity->dev == binary->identity.dev &&
	       identity->ino == binary->identity.ino;
}

/* Attaches what stands at node.attach: in the place of the binary that does not run. */
static void take(struct bridge *b)
{
	unsigned int group = b->current, free_group;
	struct binary fresh;
	bool runs, back;
	int err;

	err = binary_open(&fresh, b->node.path, b->node.attach);
	if (err == -ETXTBSY)
		log_info("%s: is being written: attached when the writer is done", b->node.path);
	if (err)
		return;
	/* The node's own binary keeps its place, also that of one whose start is in the ring by
	 * now: reading a large file takes a while. */
	bridge_drain(b);
	runs = b->node.process.pid && b->node.group == group;
	/* The name leads back to the file that the node runs: attached once more, each of its
	 * firings would be told twice. */
	back = is_other(b, &fresh);
	free_group = back || runs ? !group : group;
	if (!back)
		release(b, free_group);
	else if (!runs)
		release(b, group);
	binary_close(&b->binaries[free_group]);
	b->binaries[free_group] = fresh;
	b->current = free_group;
	if (follow_bind(b))
		return;
	/* Unless the node has ended meanwhile. */
	if (tracer_attached(b->tracer, free_group)) {
		state_save(b);
		follow_watch(b);
	} else if (follow_attach(b)) {
		return;
	}
	log_info("%s: attached", current(b)->path);
}

/* Not through a process: its file is the old one, or it is gone. */
static void attach_by_path(struct bridge *b)
{
	snprintf(b->node.attach, sizeof(b->node.attach), "%s", b->node.path);
}

/* Somebody writes new code into a traced file: whoever starts from it next must find no
 * breakpoints of ours in it. The writer is held back by the lease until they are gone. */
static void written(struct bridge *b, unsigned int group)
{
	log_warning("%s: is being written in place: detached; replace a binary by rename (install, "
		    "mv), never by cp over it",
		    b->binaries[group].path);
	release(b, group);
}

static void binary_check(struct bridge *b, unsigned int group, bool lease_broken)
{
	struct binary *binary = &b->binaries[group];
	enum binary_change change = binary_changed(binary);

	if (tracer_attached(b->tracer, group) &&
	    (change != BINARY_SAME || (lease_broken && binary_lease_broken(binary))))
		written(b, group);
	else if (lease_broken && !tracer_attached(b->tracer, group))
		/* For one reason or another: nobody needs to wait for us. */
		binary_release(binary);
	/* The writer is done: read what the file holds now. */
	if (change == BINARY_CLOSED && group == b->current && !follow_waits(b)) {
		attach_by_path(b);
		take(b);
	}
}

/* A name has changed: does the path lead to another file now? */
static void names_check(struct bridge *b)
{
	char buffer[4096];
	const struct binary_identity *identity = &current(b)->identity;
	struct stat st;

	/* Once: in a directory where files come and go all the time, reading until nothing is left
	 * might never end. The descriptor stays readable. */
	if (read(b->names, buffer, sizeof(buffer)) < 0 && errno != EAGAIN && errno != EINTR)
		log_warning("%s: its directory is watched no more: %s", b->node.path,
			    strerror(errno));
	if (follow_waits(b) || stat(b->node.path, &st) || !S_ISREG(st.st_mode))
		return;
	if (st.st_dev == identity->dev && st.st_ino == identity->ino &&
	    tracer_attached(b->tracer, b->current))
		return;
	attach_by_path(b);
	/* Before it is looked at: one that is still being written is looked at again after that. */
	watch_names(b);
	take(b);
}

/* The operator's path may lead elsewhere without a change in any directory that is watched: by a
 * symbolic link further up. Each file that it leads to is looked at once. */
static void path_check(struct bridge *b)
{
	struct stat st;

	if (!b->options->binary || stat(b->node.path, &st) ||
	    (st.st_dev == b->named_dev && st.st_ino == b->named_ino))
		return;
	b->named_dev = st.st_dev;
	b->named_ino = st.st_ino;
	names_check(b);
}

void follow_changed(struct bridge *b, int fd)
{
	for (unsigned int g = 0; g < MAX_GROUPS; g++)
		if (b->binaries[g].fd >= 0 && (fd < 0 || fd == b->binaries[g].inotify))
			binary_check(b, g, fd < 0);
	if (fd >= 0 && fd == b->names)
		names_check(b);
}

void follow_ended(struct bridge *b)
{
	unsigned int other = !b->current;

	/* Its successor may have started already, and may run either. */
	if (tracer_attached(b->tracer, other) && !(b->node.process.pid && b->node.group == other)) {
		release(b, other);
		/* A successor would find two binaries in the journal until the next event. */
		state_save(b);
		log_info("%s: detached", b->binaries[other].path);
	}
	/* Limited to a process that is gone: nothing can come from it any more. */
	if (b->node.fixed && !b->node.process.pid)
		release(b, b->current);
}

void follow_tick(struct bridge *b)
{
	const struct binary_identity *identity = &current(b)->identity;
	const struct process *process = &b->node.process;
	char path[PATH_MAX];

	if (b->stopping)
		return;
	path_check(b);
	/* The loop wakes for a node that ends, unless there was no descriptor for that. */
	if (process->pid && !node_alive(&b->node))
		b->node_exited = true;
	if (process->pid)
		return;
	memcpy(path, b->node.path, sizeof(path));
	if (!node_find_again(&b->node, b->options, identity->dev, identity->ino))
		return;
	bridge_watch(b, b->node.pidfd);
	/* The attached file again, under whatever name; else (or limited to a process that is gone)
	 * it must be attached first. */
	if (process->dev == identity->dev && process->ino == identity->ino && !b->node.fixed &&
	    tracer_attached(b->tracer, b->current)) {
		memcpy(b->node.path, path, sizeof(path));
	} else {
		/* It runs neither of those that are attached: the new one comes in their place. */
		b->node.group = !b->current;
		take(b);
	}
	/* What was in the rings may have brought another one. */
	if (!b->node.process.pid || b->node.told)
		return;
	b->node.group = b->current;
	intake_node_started(b, now_us());
}
