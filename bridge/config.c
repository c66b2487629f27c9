/* See config.h. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yaml.h>

#include "config.h"
#include "log.h"

#define MAX_FILE ((off_t)1 << 20)
#define MAX_ENTRIES 1024

struct config {
	char *path;
	yaml_document_t document; /* texts of the entries are its */
	bool loaded;
	struct config_entry *entries;
	size_t n;
	char where[300];
};

static unsigned int line_of(const yaml_node_t *node)
{
	return (unsigned int)node->start_mark.line + 1;
}

/* The text of a scalar; NULL for anything else, and for one with a NUL inside. */
static char *scalar(const yaml_node_t *node)
{
	char *text;

	if (!node || node->type != YAML_SCALAR_NODE)
		return NULL;
	text = (char *)node->data.scalar.value;
	return strlen(text) == node->data.scalar.length ? text : NULL;
}

static int entry_add(struct config *c, const char *key, const yaml_node_t *value, bool listed,
		     unsigned int line)
{
	char *text = scalar(value);

	if (!text || !*text) {
		log_error("%s:%u: %s: wants a value%s", c->path, value ? line_of(value) : line, key,
			  listed || !value || value->type == YAML_SCALAR_NODE
				  ? ""
				  : ", or a list of them");
		return -EINVAL;
	}
	if (c->n == MAX_ENTRIES) {
		log_error("%s:%u: more than %d values", c->path, line_of(value), MAX_ENTRIES);
		return -E2BIG;
	}
	c->entries[c->n++] = (struct config_entry){ key, text, listed, line_of(value) };
	return 0;
}

static int pair_add(struct config *c, const yaml_node_pair_t *pair)
{
	const yaml_node_t *name = yaml_document_get_node(&c->document, pair->key);
	const yaml_node_t *value = yaml_document_get_node(&c->document, pair->value);
	const char *key = scalar(name);
	int err = 0;

	if (!key) {
		log_error("%s:%u: wants the name of an option", c->path, line_of(name));
		return -EINVAL;
	}
	for (size_t i = 0; i < c->n; i++)
		if (!strcmp(c->entries[i].key, key)) {
			log_error("%s:%u: %s: was given in line %u already", c->path, line_of(name),
				  key, c->entries[i].line);
			return -EINVAL;
		}
	if (!value || value->type != YAML_SEQUENCE_NODE)
		return entry_add(c, key, value, false, line_of(name));
	for (const yaml_node_item_t *item = value->data.sequence.items.start;
	     item < value->data.sequence.items.top && !err; item++)
		err = entry_add(c, key, yaml_document_get_node(&c->document, *item), true,
				line_of(name));
	return err;
}

static int document_load(struct config *c, FILE *file)
{
	yaml_parser_t parser;
	bool second = false;

	if (!yaml_parser_initialize(&parser))
		return log_no_memory();
	yaml_parser_set_input_file(&parser, file);
	c->loaded = yaml_parser_load(&parser, &c->document);
	if (c->loaded && yaml_document_get_root_node(&c->document)) {
		yaml_document_t next;

		if (yaml_parser_load(&parser, &next)) {
			second = yaml_document_get_root_node(&next) != NULL;
			yaml_document_delete(&next);
		} else {
			second = true;
		}
	}
	if (!c->loaded || (second && parser.problem))
		log_error("%s:%zu: %s%s%s%s", c->path,
			  (parser.problem_mark.line ? parser.problem_mark.line
						    : parser.context_mark.line) +
				  1,
			  parser.context ? parser.context : "", parser.context ? ": " : "",
			  parser.problem ? parser.problem : "cannot be read",
			  parser.problem && strstr(parser.problem, "alias")
				  ? ": a value that begins with * wants quotes"
				  : "");
	else if (second)
		log_error("%s: wants one document, without ---", c->path);
	yaml_parser_delete(&parser);
	return c->loaded && !second ? 0 : -EINVAL;
}

static int config_load(struct config *c, FILE *file)
{
	const yaml_node_t *root;
	int err = document_load(c, file);

	if (err)
		return err;
	root = yaml_document_get_root_node(&c->document);
	if (!root)
		return 0; /* an empty file */
	if (root->type != YAML_MAPPING_NODE) {
		log_error("%s:%u: wants lines of the form OPTION: VALUE", c->path, line_of(root));
		return -EINVAL;
	}
	c->entries = calloc(MAX_ENTRIES, sizeof(*c->entries));
	if (!c->entries)
		return log_no_memory();
	for (const yaml_node_pair_t *pair = root->data.mapping.pairs.start;
	     pair < root->data.mapping.pairs.top && !err; pair++)
		err = pair_add(c, pair);
	return err;
}

int config_read(struct config **config, const char *path)
{
	struct config *c = calloc(1, sizeof(*c));
	struct stat st;
	FILE *file = NULL;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), err = 0;

	if (fd < 0 || fstat(fd, &st) || !(file = fdopen(fd, "r")))
		err = -errno;
	else if (!S_ISREG(st.st_mode) || st.st_size > MAX_FILE)
		err = S_ISREG(st.st_mode) ? -EFBIG : S_ISDIR(st.st_mode) ? -EISDIR : -EINVAL;
	if (err) {
		log_error("--config %s: %s", path,
			  err == -EINVAL ? "is no regular file" : strerror(-err));
		if (file)
			fclose(file);
		else if (fd >= 0)
			close(fd);
		free(c);
		return err;
	}
	err = c && (c->path = strdup(path)) ? config_load(c, file) : log_no_memory();
	fclose(file);
	if (err)
		config_free(c);
	else
		*config = c;
	return err;
}

void config_free(struct config *c)
{
	if (!c)
		return;
	if (c->loaded)
		yaml_document_delete(&c->document);
	free(c->entries);
	free(c->path);
	free(c);
}

const struct config_entry *config_entries(const struct config *c, size_t *n)
{
	*n = c->n;
	return c->entries;
}

const char *config_where(struct config *c, const char *value)
{
	for (size_t i = 0; c && i < c->n; i++)
		if (c->entries[i].value == value) {
			snprintf(c->where, sizeof(c->where), "%s:%u: ", c->path,
				 c->entries[i].line);
			return c->where;
		}
	return "";
}
