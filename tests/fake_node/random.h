/* A small seeded generator (splitmix64): the same seed gives the same node, on every machine. */
#ifndef FAKE_NODE_RANDOM_H
#define FAKE_NODE_RANDOM_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

struct random {
	uint64_t state;
};

static inline uint64_t random_next(struct random *random)
{
	uint64_t z = random->state += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

/* 0 to below − 1; below must not be 0. */
static inline uint64_t random_below(struct random *random, uint64_t below)
{
	return random_next(random) % below;
}

static inline uint64_t random_between(struct random *random, uint64_t low, uint64_t high)
{
	return low + random_below(random, high - low + 1);
}

static inline bool random_percent(struct random *random, unsigned int percent)
{
	return random_below(random, 100) < percent;
}

static inline void random_hash(struct random *random, uint8_t hash[32])
{
	int i;

	for (i = 0; i < 32; i += 8) {
		uint64_t word = random_next(random);

		memcpy(hash + i, &word, sizeof(word));
	}
}

#endif
