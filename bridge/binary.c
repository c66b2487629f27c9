/* See binary.h. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "binary.h"
#include "log.h"

#ifdef __aarch64__
#define NATIVE_ARCH ARCH_AARCH64
#else
#define NATIVE_ARCH ARCH_X86_64
#endif

static void binary_watch(struct binary *b)
{
	char self[64];

	b->inotify = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	/* By descriptor: the inode is watched, whatever name it has or namespace it is in. */
	snprintf(self, sizeof(self), "/proc/self/fd/%d", b->fd);
	if (b->inotify < 0 || inotify_add_watch(b->inotify, self, IN_MODIFY | IN_CLOSE_WRITE) < 0)
		log_warning("%s: cannot be watched for writes: %s", b->path, strerror(errno));
}

/* The signal that tells of a broken lease is SIGIO; the bridge reads it from its signalfd. */
static int binary_guard(struct binary *b)
{
	binary_watch(b);
	/* The notice that a writer closed the file comes a moment before the kernel counts it out.
	 */
	for (int tries = 0; tries < 20; tries++) {
		if (!fcntl(b->fd, F_SETLEASE, F_RDLCK)) {
			b->leased = true;
			/* Whoever wrote it is done: what was told of that is no news of what is
			 * read from here on. */
			binary_changed(b);
			return 0;
		}
		if (errno != EAGAIN)
			break;
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	}
	if (errno == EAGAIN)
		return -ETXTBSY;
	log_warning("%s: cannot be leased (%s): who overwrites it in place is not held back until "
		    "coretapd has detached, so wait a second before you start it again",
		    b->path, errno == EACCES ? "missing CAP_LEASE" : strerror(errno));
	return 0;
}

int binary_open(struct binary *b, const char *path, const char *attach)
{
	char error[256];
	struct stat st;
	int err;

	memset(b, 0, sizeof(*b));
	b->inotify = -1;
	snprintf(b->path, sizeof(b->path), "%s", path);
	snprintf(b->attach, sizeof(b->attach), "%s", attach);
	b->fd = open(attach, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (b->fd < 0 || fstat(b->fd, &st)) {
		err = -errno;
		log_error("%s: cannot be opened: %s", path, strerror(-err));
		goto out;
	}
	b->identity = (struct binary_identity){
		.dev = st.st_dev,
		.ino = st.st_ino,
		.size = (uint64_t)st.st_size,
		.ctime_ns = st.st_ctim.tv_sec * 1000000000LL + st.st_ctim.tv_nsec,
	};
	if (S_ISREG(st.st_mode)) {
		err = binary_guard(b);
		if (err)
			goto out;
	}
	err = probes_read(b->fd, path, &b->probes, error, sizeof(error));
	if (err) {
		log_error("%s", error);
		goto out;
	}
	if (b->probes.arch != NATIVE_ARCH) {
		log_error("%s: built for another machine than this one", path);
		err = -ENOTSUP;
		goto out;
	}
	memcpy(b->identity.build_id, b->probes.build_id, sizeof(b->identity.build_id));
	return 0;
out:
	binary_close(b);
	return err;
}

void binary_close(struct binary *b)
{
	if (b->inotify >= 0)
		close(b->inotify);
	if (b->fd >= 0)
		close(b->fd);
	probes_free(&b->probes);
	b->inotify = -1;
	b->fd = -1;
	b->leased = false;
}

void binary_release(struct binary *b)
{
	if (b->leased)
		fcntl(b->fd, F_SETLEASE, F_UNLCK);
	b->leased = false;
}

bool binary_lease_broken(const struct binary *b)
{
	return b->leased && fcntl(b->fd, F_GETLEASE) != F_RDLCK;
}

enum binary_change binary_changed(struct binary *b)
{
	char buffer[4096] __attribute__((aligned(__alignof__(struct inotify_event))));
	enum binary_change change = BINARY_SAME;
	ssize_t n = read(b->inotify, buffer, sizeof(buffer));

	/* Once: a writer that does not stop must not hold the loop. The rest is read next time. */
	for (char *at = buffer; n > 0 && at < buffer + n;) {
		const struct inotify_event *event = (const void *)at;

		if (event->mask & IN_CLOSE_WRITE)
			change = BINARY_CLOSED;
		else if (event->mask & (IN_MODIFY | IN_Q_OVERFLOW) && change == BINARY_SAME)
			change = BINARY_WRITTEN;
		at += sizeof(*event) + event->len;
	}
	return change;
}
