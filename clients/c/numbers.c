/* See numbers.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "numbers.h"

/* A publisher that invents labels or topics must not make this process grow. */
#define MAX_NODES 16
#define MAX_TOPICS 1024

void numbers_clear(struct node *node)
{
	while (node->topics) {
		struct topic *topic = node->topics;

		node->topics = topic->after;
		free(topic);
	}
	node->n_topics = 0;
}

void numbers_free(struct numbers *numbers)
{
	while (numbers->nodes) {
		struct node *node = numbers->nodes;

		numbers->nodes = node->after;
		numbers_clear(node);
		free(node);
	}
}

struct node *numbers_node(struct numbers *numbers, const char *label, size_t length, int *err)
{
	struct node **link = &numbers->nodes, **unheard = NULL, *node;

	*err = 0;
	for (; *link; link = &(*link)->after) {
		node = *link;
		if (node->length == length && !memcmp(node->label, label, length))
			return node;
		if (!node->heard && !unheard)
			unheard = link;
	}
	if (numbers->n_nodes == MAX_NODES && !unheard)
		return NULL;
	node = calloc(1, sizeof(*node));
	if (!node) {
		*err = -ENOMEM;
		return NULL;
	}
	memcpy(node->label, label, length);
	node->length = length;
	*link = node;
	if (numbers->n_nodes == MAX_NODES) {
		struct node *old = *unheard;

		*unheard = old->after;
		numbers_clear(old);
		free(old);
	} else {
		numbers->n_nodes++;
	}
	return node;
}

struct topic *numbers_lookup(struct node *node, const char *name, size_t length)
{
	struct topic **link = &node->topics, *topic;

	for (; *link; link = &(*link)->after) {
		topic = *link;
		if (topic->length != length || memcmp(topic->name, name, length))
			continue;
		/* To the front: traffic is dominated by a few topics. */
		*link = topic->after;
		topic->after = node->topics;
		node->topics = topic;
		return topic;
	}
	return NULL;
}

struct topic *numbers_topic(struct node *node, const char *name, size_t length, int *err)
{
	struct topic *topic = numbers_lookup(node, name, length);

	*err = 0;
	if (topic || node->n_topics == MAX_TOPICS)
		return topic;
	topic = calloc(1, sizeof(*topic) + length + 1);
	if (!topic) {
		*err = -ENOMEM;
		return NULL;
	}
	memcpy(topic->name, name, length);
	topic->length = length;
	topic->desc = catalogue_find(name, length);
	topic->next = node->fresh;
	topic->after = node->topics;
	node->topics = topic;
	node->n_topics++;
	return topic;
}
