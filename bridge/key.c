/* See key.h. */
#include <errno.h>
#include <string.h>
#include <zmq.h>

#include "key.h"

const char *key_comment(enum key_kind kind)
{
	return kind == KEY_PUBLIC ? "# public key of coretap" : "# secret key of coretap";
}

bool key_is_other(const char *line, enum key_kind wanted)
{
	const char *other = key_comment(wanted == KEY_PUBLIC ? KEY_SECRET : KEY_PUBLIC);

	return !strncmp(line, other, strlen(other));
}

int key_in_line(const char *line, uint8_t key[KEY_BYTES])
{
	char word[KEY_TEXT + 1];
	size_t len;
	int found;

	line += strspn(line, " \t");
	len = strcspn(line, " \t\r\n");
	/* A key may begin with # as well, but has its length. */
	if (len != KEY_TEXT)
		return !len || *line == '#' ? 0 : -EINVAL;
	memcpy(word, line, KEY_TEXT);
	word[KEY_TEXT] = '\0';
	found = zmq_z85_decode(key, word) ? 1 : -EINVAL;
	explicit_bzero(word, sizeof(word));
	return found;
}
