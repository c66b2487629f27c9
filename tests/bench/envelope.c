/* See envelope.h. Msgpack by hand: a general decoder would cost more than what is measured. */
#include <string.h>

#include "envelope.h"

struct token {
	enum { TOKEN_BAD, TOKEN_UINT, TOKEN_BYTES, TOKEN_ARRAY, TOKEN_MAP, TOKEN_OTHER } type;
	uint64_t value; /* the number, or how many bytes or elements follow */
};

static uint64_t big_endian(const uint8_t *at, unsigned int n)
{
	uint64_t value = 0;

	while (n--)
		value = value << 8 | *at++;
	return value;
}

/* Steps over one head, and over the bytes of what has a fixed length. */
static struct token token_read(const uint8_t **at, const uint8_t *end)
{
	static const struct {
		uint8_t type, width, extra; /* bytes of the number or length; bytes beside it */
	} heads[32] = {
		[0x00] = { TOKEN_OTHER, 0, 0 }, [0x02] = { TOKEN_OTHER, 0, 0 },
		[0x03] = { TOKEN_OTHER, 0, 0 }, [0x04] = { TOKEN_BYTES, 1, 0 },
		[0x05] = { TOKEN_BYTES, 2, 0 }, [0x06] = { TOKEN_BYTES, 4, 0 },
		[0x0a] = { TOKEN_OTHER, 0, 4 }, [0x0b] = { TOKEN_OTHER, 0, 8 },
		[0x0c] = { TOKEN_UINT, 1, 0 },	[0x0d] = { TOKEN_UINT, 2, 0 },
		[0x0e] = { TOKEN_UINT, 4, 0 },	[0x0f] = { TOKEN_UINT, 8, 0 },
		[0x10] = { TOKEN_OTHER, 0, 1 }, [0x11] = { TOKEN_OTHER, 0, 2 },
		[0x12] = { TOKEN_OTHER, 0, 4 }, [0x13] = { TOKEN_OTHER, 0, 8 },
		[0x19] = { TOKEN_BYTES, 1, 0 }, [0x1a] = { TOKEN_BYTES, 2, 0 },
		[0x1b] = { TOKEN_BYTES, 4, 0 }, [0x1c] = { TOKEN_ARRAY, 2, 0 },
		[0x1d] = { TOKEN_ARRAY, 4, 0 }, [0x1e] = { TOKEN_MAP, 2, 0 },
		[0x1f] = { TOKEN_MAP, 4, 0 },
	};
	struct token token = { TOKEN_BAD, 0 };
	uint8_t head;

	if (*at >= end)
		return token;
	head = *(*at)++;
	if (head < 0x80)
		return (struct token){ TOKEN_UINT, head };
	if (head >= 0xe0)
		return (struct token){ TOKEN_OTHER, 0 };
	if (head < 0x90)
		return (struct token){ TOKEN_MAP, head & 15 };
	if (head < 0xa0)
		return (struct token){ TOKEN_ARRAY, head & 15 };
	if (head < 0xc0) {
		token = (struct token){ TOKEN_BYTES, head & 31 };
	} else {
		uint8_t width = heads[head & 31].width, extra = heads[head & 31].extra;

		if (end - *at < width + extra)
			return token;
		token.type = heads[head & 31].type;
		token.value = big_endian(*at, width);
		*at += width + extra;
	}
	if (token.type == TOKEN_BYTES && token.value > (uint64_t)(end - *at))
		token.type = TOKEN_BAD;
	return token;
}

static bool skip(const uint8_t **at, const uint8_t *end)
{
	for (uint64_t left = 1; left; left--) {
		struct token token = token_read(at, end);

		if (token.type == TOKEN_BAD)
			return false;
		if (token.type == TOKEN_BYTES)
			*at += token.value;
		else if (token.type == TOKEN_ARRAY)
			left += token.value;
		else if (token.type == TOKEN_MAP)
			left += 2 * token.value;
	}
	return true;
}

bool envelope_read(const void *body, size_t length, struct envelope *envelope)
{
	const uint8_t *at = body, *end = at + length;
	struct token map = token_read(&at, end);

	memset(envelope, 0, sizeof(*envelope));
	if (map.type != TOKEN_MAP)
		return false;
	while (map.value--) {
		struct token key = token_read(&at, end), value;
		const uint8_t *name = at;
		uint64_t *number = NULL;

		if (key.type != TOKEN_BYTES)
			return false;
		at += key.value;
		if (key.value == 6 && !memcmp(name, "events", 6)) {
			value = token_read(&at, end);
			envelope->n_events = value.value;
			envelope->events = at;
			envelope->end = end;
			return value.type == TOKEN_ARRAY;
		}
		if (key.value == 3 && !memcmp(name, "run", 3))
			number = &envelope->run;
		else if (key.value == 3 && !memcmp(name, "seq", 3))
			number = &envelope->seq;
		else if (key.value == 4 && !memcmp(name, "lost", 4))
			number = &envelope->lost;
		if (!number) {
			if (!skip(&at, end))
				return false;
			continue;
		}
		value = token_read(&at, end);
		if (value.type != TOKEN_UINT)
			return false;
		*number = value.value;
	}
	return false;
}

bool envelope_next(struct envelope *envelope, uint64_t *time_us)
{
	const uint8_t **at = &envelope->events, *end = envelope->end;
	struct token map, key, value;

	if (!envelope->n_events)
		return false;
	map = token_read(at, end);
	key = token_read(at, end);
	if (map.type != TOKEN_MAP || !map.value || key.type != TOKEN_BYTES || key.value != 7 ||
	    memcmp(*at, "time_us", 7))
		return false;
	*at += key.value;
	value = token_read(at, end);
	if (value.type != TOKEN_UINT)
		return false;
	*time_us = value.value;
	for (uint64_t left = 2 * (map.value - 1); left; left--)
		if (!skip(at, end))
			return false;
	envelope->n_events--;
	return true;
}
