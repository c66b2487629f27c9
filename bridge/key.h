/* The lines of a file with CURVE keys, as `coretap keygen` writes and coretapd reads them. */
#ifndef CORETAP_KEY_H
#define CORETAP_KEY_H

#include <stdbool.h>
#include <stdint.h>

#define KEY_TEXT 40
#define KEY_BYTES 32

enum key_kind { KEY_PUBLIC, KEY_SECRET };

/* The comment that stands above a key. */
const char *key_comment(enum key_kind kind);

/* Whether a line says that the key below it is the other one of the pair. */
bool key_is_other(const char *line, enum key_kind wanted);

/* The key that a line holds: 1, 0 for an empty line or a comment, -EINVAL for what is neither. */
int key_in_line(const char *line, uint8_t key[KEY_BYTES]);

#endif
