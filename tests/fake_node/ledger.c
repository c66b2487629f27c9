/* The outside ledger; see ledger.h. */
#include "ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static struct ledger_book *ledger_map(int fd, int protection)
{
	int flags = fd < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED;
	void *book = mmap(NULL, sizeof(struct ledger_book), protection, flags, fd, 0);

	return book == MAP_FAILED ? NULL : book;
}

struct ledger_book *ledger_open(const char *path)
{
	struct ledger_book *book = NULL;
	int fd = -1;

	if (path) {
		fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
		if (fd < 0)
			return NULL;
		/* Allocated now: a full disk would otherwise kill the node at a write. */
		errno = posix_fallocate(fd, 0, sizeof(*book));
		if (errno)
			goto out;
	}
	book = ledger_map(fd, PROT_READ | PROT_WRITE);
	if (!book)
		goto out;
	book->abi = FAKE_NODE_ABI;
	book->pid = getpid();
out:
	if (fd >= 0)
		close(fd);
	return book;
}

struct ledger_book *ledger_read(const char *path)
{
	struct ledger_book *book = NULL;
	struct stat st;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return NULL;
	if (!fstat(fd, &st) && st.st_size == (off_t)sizeof(*book))
		book = ledger_map(fd, PROT_READ);
	else
		errno = EINVAL;
	if (book && book->abi != FAKE_NODE_ABI) {
		munmap(book, sizeof(*book));
		book = NULL;
		errno = EINVAL;
	}
	close(fd);
	return book;
}

void ledger_print(const struct ledger_book *book)
{
	unsigned int i, slot;

	printf("{\"pid\":%" PRId32 ",\"fired\":{", book->pid);
	for (i = 0; i < PROBE_COUNT; i++) {
		uint64_t fired = 0;

		for (slot = 0; slot < LEDGER_SLOTS; slot++)
			fired += book->slots[slot].fired[i];
		printf("%s\"%s\":%" PRIu64, i ? "," : "", probe_name((enum probe)i), fired);
	}
	putchar('}');
}
