/* Reader of a BPF ring buffer (kernel ABI, Documentation/bpf/ringbuf.rst) whose position advances
 * only when the caller says so: what was read stays in the kernel until it is safe elsewhere. */
#ifndef CORETAP_RING_H
#define CORETAP_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ring {
	unsigned long *consumer; /* shared with the kernel */
	unsigned long *producer;
	uint8_t *data;
	size_t size;
	unsigned long position; /* read up to here; the kernel's consumer position follows later */
};

/* Maps the ring behind map_fd, whose size in bytes is size. Returns 0 or -errno. */
int ring_open(struct ring *ring, int map_fd, size_t size);
void ring_close(struct ring *ring);

/* The next record and its length, or NULL: nothing there (*busy false), or the record at the head
 * is still being written (*busy true: nap, never spin). It stays valid until ring_advance. */
const void *ring_next(struct ring *ring, uint32_t *len, bool *busy);

/* Gives everything that was read back to the kernel. */
void ring_advance(struct ring *ring);

/* Where producers are: everything submitted before this call lies before it. */
unsigned long ring_produced(const struct ring *ring);

#endif
