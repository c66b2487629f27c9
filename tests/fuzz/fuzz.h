/* What the fuzz targets share: taking bytes of the input, and what must never be false. */
#ifndef CORETAP_FUZZ_H
#define CORETAP_FUZZ_H

#include <msgpack.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

#define MUST(condition)                                                                           \
	do {                                                                                      \
		if (!(condition)) {                                                               \
			fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
			abort();                                                                  \
		}                                                                                 \
	} while (0)

/* What is left of the input. At its end every number is 0. */
struct input {
	const uint8_t *at;
	size_t left;
};

static inline uint64_t take_number(struct input *in, unsigned int bytes)
{
	uint64_t number = 0;

	for (unsigned int i = 0; i < bytes && in->left; i++, in->left--)
		number |= (uint64_t)*in->at++ << (8 * i);
	return number;
}

/* A copy that ends where its allocation does, so that the sanitizer sees whoever reads past it. The
 * caller frees it. */
static inline uint8_t *take_block(struct input *in, size_t *len)
{
	uint8_t *copy;

	if (*len > in->left)
		*len = in->left;
	copy = malloc(*len);
	MUST(copy);
	memcpy(copy, in->at, *len);
	in->at += *len;
	in->left -= *len;
	return copy;
}

/* Whether another implementation reads exactly one value in these bytes. */
static inline bool is_msgpack(const void *data, size_t len)
{
	msgpack_unpacked result;
	size_t at = 0;
	bool good;

	msgpack_unpacked_init(&result);
	good = msgpack_unpack_next(&result, data, len, &at) == MSGPACK_UNPACK_SUCCESS && at == len;
	msgpack_unpacked_destroy(&result);
	return good;
}

/* The input as a file that has a path. The caller closes it. */
static inline int input_file(const uint8_t *data, size_t size, char path[32])
{
	int fd = memfd_create("fuzz", MFD_CLOEXEC);

	MUST(fd >= 0 && write(fd, data, size) == (ssize_t)size);
	snprintf(path, 32, "/proc/self/fd/%d", fd);
	return fd;
}

#endif
