/* See place.h. */
#include <stdlib.h>
#include <string.h>

#include "place.h"

static void place_clear(struct place *place)
{
	while (place->topics) {
		struct place_topic *topic = place->topics;

		place->topics = topic->after;
		free(topic);
	}
	*place = (struct place){ 0 };
}

void position_clear(struct position *position)
{
	for (int i = 0; i < N_SOCKETS; i++)
		place_clear(&position->sockets[i]);
}

bool place_enter(struct place *place, uint64_t run)
{
	if (run > place->run) {
		place_clear(place);
		place->run = run;
	}
	return run == place->run;
}

void place_reach(struct place *place, uint64_t n)
{
	if (n > place->n)
		place->n = n;
}

bool place_topic(struct place *place, const char *name, size_t length, uint64_t next)
{
	struct place_topic *topic = place->topics;

	while (topic && (strlen(topic->name) != length || memcmp(topic->name, name, length)))
		topic = topic->after;
	if (!topic) {
		topic = calloc(1, sizeof(*topic) + length + 1);
		if (!topic)
			return false;
		memcpy(topic->name, name, length);
		topic->after = place->topics;
		place->topics = topic;
	}
	if (next > topic->next)
		topic->next = next;
	return true;
}
