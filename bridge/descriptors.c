/* See descriptors.h. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "descriptors.h"
#include "log.h"

static int ceiling = INT_MAX; /* no connection has a greater number */
static atomic_uint refused;

void descriptors_prepare(void)
{
	struct rlimit files;
	rlim_t usable = MAX_FILES;
	int fd;

	do
		fd = open("/dev/null", O_RDWR);
	while (fd >= 0 && fd <= STDERR_FILENO);
	if (fd >= 0)
		close(fd);

	if (getrlimit(RLIMIT_NOFILE, &files))
		return;
	if (files.rlim_cur < MAX_FILES) {
		usable = files.rlim_max < MAX_FILES ? files.rlim_max : MAX_FILES;
		files.rlim_cur = usable;
		if (setrlimit(RLIMIT_NOFILE, &files))
			return;
	}
	ceiling = (int)(usable / 4 * 3);
}

void descriptors_tell(void)
{
	unsigned int n = atomic_exchange(&refused, 0);

	if (n)
		log_warning("%u connections refused: about %d are open, as many as are served", n,
			    ceiling);
}

/* In the place of libc's, for the libraries that accept connections in their own threads. The
 * kernel gives the lowest free number, so it tells how many files are open. */
__attribute__((visibility("default"))) int accept4(int fd, __SOCKADDR_ARG address,
						   socklen_t *restrict len, int flags)
{
	int connection = (int)syscall(SYS_accept4, fd, address.__sockaddr__, len, flags);

	if (connection < 0 && errno == EMFILE)
		errno = ENFILE; /* which libzmq outlives everywhere */
	if (connection < ceiling)
		return connection;
	close(connection);
	atomic_fetch_add(&refused, 1);
	errno = ECONNABORTED;
	return -1;
}

__attribute__((visibility("default"))) int accept(int fd, __SOCKADDR_ARG address,
						  socklen_t *restrict len)
{
	return accept4(fd, address, len, 0);
}
