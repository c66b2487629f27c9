/* The configuration file: YAML, a map of long option names to values. Knows no option itself. */
#ifndef CORETAP_CONFIG_H
#define CORETAP_CONFIG_H

#include <stdbool.h>
#include <stddef.h>

struct config;

struct config_entry {
	const char *key;   /* name of an option */
	char *value;	   /* its text, or one of its list */
	bool listed;	   /* came in a list */
	unsigned int line; /* of the value */
};

/* Reads path. Returns 0 or -errno, said in the log with file and line. */
int config_read(struct config **config, const char *path);
void config_free(struct config *config); /* NULL is fine */

/* In the order of the file. They live as long as config. */
const struct config_entry *config_entries(const struct config *config, size_t *n);

/* "FILE:LINE: " of a value that came from the file, by its address; "" for any other. */
const char *config_where(struct config *config, const char *value);

#endif
