/* See privilege.h. */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <pthread.h>
#include <pwd.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "log.h"
#include "privilege.h"

static uint64_t effective_capabilities(void)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[2] = { { 0 } };

	if (syscall(SYS_capget, &header, data))
		return 0;
	return data[0].effective | (uint64_t)data[1].effective << 32;
}

/* Of this thread. Without forever the others can be had back. */
static int capabilities_limit(uint64_t wanted, bool forever)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[2] = { { 0 } };

	if (syscall(SYS_capget, &header, data))
		return -errno;
	for (int i = 0; i < 2; i++) {
		uint32_t word = (uint32_t)(wanted >> 32 * i);

		data[i].effective = data[i].permitted & word;
		if (forever) {
			data[i].permitted &= word;
			data[i].inheritable = 0;
		}
	}
	return syscall(SYS_capset, &header, data) ? -errno : 0;
}

/* Needs CAP_SETPCAP; without it there is nothing to be gained by execve either. */
static void bounding_limit(uint64_t wanted)
{
	prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
	for (int cap = 0; cap < 64; cap++)
		if (!(wanted >> cap & 1))
			prctl(PR_CAPBSET_DROP, cap, 0, 0, 0);
}

bool privilege_sees_others(void)
{
	return effective_capabilities() >> CAP_SYS_PTRACE & 1;
}

int privilege_check(bool others)
{
	uint64_t has = effective_capabilities();
	bool admin = has >> CAP_SYS_ADMIN & 1;
	bool bpf = admin || has >> CAP_BPF & 1;
	bool perfmon = admin || has >> CAP_PERFMON & 1;
	struct utsname system;
	unsigned int major = 0, minor = 0;

	if (!uname(&system) && sscanf(system.release, "%u.%u", &major, &minor) == 2 &&
	    (major < 5 || (major == 5 && minor < 15))) {
		log_error("Linux %s: too old, coretap needs 5.15 or later", system.release);
		return -ENOSYS;
	}
	if (others && !privilege_sees_others() && bpf && perfmon)
		log_warning("missing CAP_SYS_PTRACE: processes of other users cannot be looked "
			    "at, and a node among them is not found by itself");
	if (bpf && perfmon)
		return 0;
	log_error("missing %s%s%s: run coretapd as root, or give it CAP_BPF and CAP_PERFMON",
		  bpf ? "" : "CAP_BPF", !bpf && !perfmon ? " and " : "",
		  perfmon ? "" : "CAP_PERFMON");
	return -EPERM;
}

const char *privilege_hint(bool perf_links)
{
	if (perf_links && !(effective_capabilities() >> CAP_SYS_ADMIN & 1))
		return "; without uprobe_multi links (Linux 6.6) this takes CAP_SYS_ADMIN: start "
		       "coretapd again, as root";
	return "; kernel lockdown, a container or kernel.perf_event_paranoid may forbid it: "
	       "`coretap doctor` tells";
}

/* ---- --user ---- */

int privilege_user(struct user *user, const char *name)
{
	const struct passwd *entry = getpwnam(name);

	if (!entry) {
		log_error("--user %s: there is no such user", name);
		return -ENOENT;
	}
	if (geteuid() && geteuid() != entry->pw_uid) {
		log_error("--user %s: only root can become another user", name);
		return -EPERM;
	}
	*user = (struct user){ name, entry->pw_uid, entry->pw_gid };
	return 0;
}

void privilege_seal(void)
{
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		log_warning("what coretapd executes could gain privileges: %s", strerror(errno));
}

/* glibc's setresuid and its like change all threads and end the process when one of them may not.
 * Here each thread changes itself. */
static int become(const struct user *user)
{
	gid_t groups[256];
	int n = sizeof(groups) / sizeof(groups[0]);

	if (geteuid() || !user->name)
		return 0;
	if (getgrouplist(user->name, user->gid, groups, &n) < 0)
		n = sizeof(groups) / sizeof(groups[0]);
	if (syscall(SYS_setgroups, n, groups) ||
	    syscall(SYS_setresgid, user->gid, user->gid, user->gid) ||
	    syscall(SYS_setresuid, user->uid, user->uid, user->uid))
		return -errno;
	return 0;
}

struct bare {
	const struct user *user;
	void (*start)(void *arg);
	void *arg;
	int err;
};

static void *bare_run(void *arg)
{
	struct bare *bare = arg;

	bounding_limit(0);
	bare->err = become(bare->user);
	if (!bare->err)
		bare->err = capabilities_limit(0, true);
	if (!bare->err)
		bare->start(bare->arg);
	return NULL;
}

int privilege_bare(const struct user *user, void (*start)(void *arg), void *arg)
{
	struct bare bare = { user, start, arg, 0 };
	pthread_t thread;
	int err = -pthread_create(&thread, NULL, bare_run, &bare);

	if (!err)
		err = -pthread_join(thread, NULL);
	return err ? err : bare.err;
}

/* The effective capabilities go with the effective user, and come back with it. */
void privilege_as(const struct user *user)
{
	if (!user->name || geteuid())
		return;
	if (syscall(SYS_setresgid, -1, user->gid, -1) || syscall(SYS_setresuid, -1, user->uid, -1))
		log_warning("--user %s: %s", user->name, strerror(errno));
}

void privilege_self(void)
{
	if (getuid() || !geteuid())
		return;
	if (syscall(SYS_setresuid, -1, 0, -1) || syscall(SYS_setresgid, -1, getgid(), -1))
		log_warning("root: %s", strerror(errno));
}

static void not_given(const struct user *user, const char *name)
{
	log_warning("%s: cannot be given to %s: %s", name, user->name ? user->name : "root",
		    strerror(errno));
}

/* The directory is the user's already, so names in it may be anything by now. */
static void give(const struct user *user, int directory, const char *name)
{
	int fd = openat(directory, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	struct stat st;

	if (fd < 0) {
		if (errno != ENOENT)
			not_given(user, name);
		return;
	}
	if (fstat(fd, &st) || ((S_ISDIR(st.st_mode) || (S_ISREG(st.st_mode) && st.st_nlink == 1)) &&
			       fchown(fd, user->uid, user->gid)))
		not_given(user, name);
	close(fd);
}

void privilege_give(const struct user *user, const char *path, const char *const *names)
{
	int fd;

	if (geteuid())
		return;
	fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0) {
		not_given(user, path);
		return;
	}
	if (fchown(fd, user->uid, user->gid))
		not_given(user, path);
	for (; *names; names++)
		give(user, fd, *names);
	close(fd);
}

/* What a running coretapd needs, because nodes are restarted and upgraded while it runs:
 *
 * CAP_BPF         bpf(2) at all: before Linux 5.19 every command wants it where
 *                 kernel.unprivileged_bpf_disabled is set, as it is by default; later only maps and
 *                 programs do, which are loaded by then.
 * CAP_PERFMON     breakpoints in an executable that is attached later: perf_event_open(2) and
 *                 links of uprobes.
 * CAP_LEASE       the lease on the node's executable, which belongs to another user: it holds a
 *                 writer back until coretapd has detached. Without it, who overwrites the file in
 *                 place would not be.
 * CAP_SYS_PTRACE  /proc/PID/exe of a process of another user, which tells the node from others and
 *                 leads to its executable. It is the strongest of the four (its owner may read and
 *                 change any process), so it is kept only where the node runs as another user, or
 *                 is not known yet. Who runs coretapd as the node's user does without. Root does
 *                 not: a node of root's has more capabilities than are left here, and the kernel
 *                 does not let one look at a process that has.
 *
 * And of root only, where --user does not name another one:
 *
 * CAP_SYS_ADMIN   with perf links, that is before Linux 6.6: attaching them takes it, whatever
 *                 CAP_PERFMON stands for elsewhere, and a node that is upgraded is attached anew.
 *                 A user does without, and is attached to what ran at the start until a restart.
 *
 * CAP_DAC_READ_SEARCH  where the PID file, or the path of the binary, is closed to others, as a
 * data directory is by default. A user does without, since with it he could read every wallet; root
 * could anyway.
 *
 * Not kept: CAP_DAC_OVERRIDE and CAP_CHOWN (the files are the user's by then), CAP_NET_BIND_SERVICE
 * (everything is bound), CAP_SYS_RESOURCE (memory for maps is counted by cgroup since 5.11). */
static uint64_t needed(const struct user *user, bool others, bool closed, bool perf_links)
{
	uint64_t set = 1ULL << CAP_BPF | 1ULL << CAP_PERFMON | 1ULL << CAP_LEASE;
	bool root = !user->name && !geteuid();

	if (others || root)
		set |= 1ULL << CAP_SYS_PTRACE;
	if (closed && root)
		set |= 1ULL << CAP_DAC_READ_SEARCH;
	if (perf_links && root)
		set |= 1ULL << CAP_SYS_ADMIN;
	return set;
}

/* For a look at what will be possible, or back from it. */
static void capabilities_try(uint64_t wanted)
{
	int err = capabilities_limit(wanted, false);

	if (err)
		log_warning("capabilities: %s", strerror(-err));
}

struct look {
	const char *path;
	int access;
	bool closed;
};

static void look_at(void *arg)
{
	struct look *look = arg;

	look->closed = faccessat(AT_FDCWD, look->path, look->access, AT_EACCESS) && errno == EACCES;
}

bool privilege_reaches(const struct user *user, const char *path)
{
	struct look look = { .path = path };
	struct stat st;
	int err = 0;

	/* One that is not there may come, but where is not known. */
	if (stat(path, &st))
		return errno != EACCES;
	look.access = S_ISDIR(st.st_mode) ? X_OK : R_OK;
	if (user->name) {
		/* With the user's groups, not root's: one may be the node's. What is kept of
		 * capabilities opens no file. */
		err = privilege_bare(user, look_at, &look);
	} else {
		capabilities_try(needed(user, true, false, false));
		look_at(&look);
		capabilities_try(UINT64_MAX);
	}
	if (err)
		log_warning("--user %s: %s", user->name, strerror(-err));
	return !look.closed;
}

int privilege_drop(const struct user *user, bool others, bool closed, bool perf_links)
{
	uint64_t wanted = needed(user, others, closed, perf_links);
	int err;

	bounding_limit(wanted);
	prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0);
	err = become(user);
	prctl(PR_SET_KEEPCAPS, 0, 0, 0, 0);
	if (!err)
		err = capabilities_limit(wanted, true);
	if (err)
		log_error("privileges cannot be given up: %s", strerror(-err));
	return err;
}
