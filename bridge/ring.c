/* See ring.h. */
#include <errno.h>
#include <linux/bpf.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ring.h"

int ring_open(struct ring *ring, int map_fd, size_t size)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	void *map;

	memset(ring, 0, sizeof(*ring));
	if (!size) /* the kernel did not tell */
		return -EIO;
	ring->size = size;
	map = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, map_fd, 0);
	if (map == MAP_FAILED)
		return -errno;
	ring->consumer = map;
	/* Producer page and data, which the kernel maps twice so that no record wraps. */
	map = mmap(NULL, page + 2 * size, PROT_READ, MAP_SHARED, map_fd, (off_t)page);
	if (map == MAP_FAILED) {
		int err = -errno;

		ring_close(ring);
		return err;
	}
	ring->producer = map;
	ring->data = (uint8_t *)map + page;
	ring->position = __atomic_load_n(ring->consumer, __ATOMIC_RELAXED);
	return 0;
}

void ring_close(struct ring *ring)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	if (ring->consumer)
		munmap(ring->consumer, page);
	if (ring->producer)
		munmap(ring->producer, page + 2 * ring->size);
	memset(ring, 0, sizeof(*ring));
}

const void *ring_next(struct ring *ring, uint32_t *len, bool *busy)
{
	*busy = false;
	while (ring->position < __atomic_load_n(ring->producer, __ATOMIC_ACQUIRE)) {
		uint8_t *at = ring->data + (ring->position & (ring->size - 1));
		uint32_t head = __atomic_load_n((uint32_t *)at, __ATOMIC_ACQUIRE);

		if (head & BPF_RINGBUF_BUSY_BIT) {
			*busy = true;
			return NULL;
		}
		*len = head & ~(BPF_RINGBUF_BUSY_BIT | BPF_RINGBUF_DISCARD_BIT);
		ring->position += (*len + BPF_RINGBUF_HDR_SZ + 7) / 8 * 8;
		if (!(head & BPF_RINGBUF_DISCARD_BIT))
			return at + BPF_RINGBUF_HDR_SZ;
	}
	return NULL;
}

void ring_advance(struct ring *ring)
{
	/* Sequentially consistent: a producer that commits after this store and still sees the old
	 * position would not wake us, so the caller's next look at the producer must come after it.
	 */
	__atomic_store_n(ring->consumer, ring->position, __ATOMIC_SEQ_CST);
}

unsigned long ring_produced(const struct ring *ring)
{
	return __atomic_load_n(ring->producer, __ATOMIC_SEQ_CST);
}
