/* The one rule, next = seq + lost + number of events, kept for each node, run and topic.
 *
 * An address normally carries one node. A forwarder may merge several, so everything is kept for each
 * label; runs of different labels have nothing to do with each other. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "stream.h"

/* A publisher that invents labels or topics must not make this process grow. */
#define MAX_NODES 16
#define MAX_TOPICS 1024

struct topic {
	struct topic *after;
	uint64_t next; /* number of the next firing; 0 = not known yet, the first message tells */
	const struct event_desc *desc;
	size_t length;
	char name[];
};

struct node {
	struct node *after;
	uint64_t run;
	uint64_t told_old_run; /* OLD_RUN was told for this one */
	struct topic *topics;
	unsigned int n_topics;
	size_t length;
	char label[DECODE_MAX_LABEL + 1];
};

/* What the message taken still has to tell, in this order. */
enum pending {
	PENDING_MALFORMED = 1,
	PENDING_OLD_RUN = 2,
	PENDING_NEW_RUN = 4,
	PENDING_GAP = 8,
	PENDING_LOST = 16,
	PENDING_STATUS = 32,
	PENDING_STOPPING = 64,
};

struct stream {
	enum socket_id socket;
	const struct filter *filter;
	uint64_t *counters;
	struct node *nodes;
	unsigned int n_nodes;

	unsigned int pending; /* enum pending */
	struct node *node;    /* of the message taken */
	struct topic *topic;  /* the same */
	uint64_t old_run, gap_first, gap_last;
	struct message message;
	uint64_t index;
	struct status status;
	struct cursor heads;
	char reason[DECODE_REASON];
	char bad_topic[MAX_TOPIC + 1];
};

bool filter_matches(const struct filter *filter, const char *topic, size_t length)
{
	for (size_t i = 0; i < filter->n_names; i++) {
		const char *name = filter->names[i];
		size_t n = strlen(name);
		bool prefix = !n || name[n - 1] == '.';

		if (prefix ? length > n && !memcmp(name, topic, n) :
			     length == n && !memcmp(name, topic, n))
			return true;
	}
	return false;
}

struct stream *stream_new(enum socket_id socket, const struct filter *filter, uint64_t *counters)
{
	struct stream *stream = calloc(1, sizeof(*stream));

	if (!stream)
		return NULL;
	stream->socket = socket;
	stream->filter = filter;
	stream->counters = counters;
	return stream;
}

static void free_topics(struct node *node)
{
	while (node->topics) {
		struct topic *topic = node->topics;

		node->topics = topic->after;
		free(topic);
	}
	node->n_topics = 0;
}

void stream_free(struct stream *stream)
{
	if (!stream)
		return;
	while (stream->nodes) {
		struct node *node = stream->nodes;

		stream->nodes = node->after;
		free_topics(node);
		free(node);
	}
	free(stream);
}

void stream_malformed(struct stream *stream, const char *topic, size_t topic_length,
		      const char *reason)
{
	stream->pending |= PENDING_MALFORMED;
	stream->message.events.left = 0;
	stream->heads.left = 0;
	stream->bad_topic[0] = '\0';
	if (topic_valid(topic, topic_length)) {
		memcpy(stream->bad_topic, topic, topic_length);
		stream->bad_topic[topic_length] = '\0';
	}
	if (reason != stream->reason)
		strncpy(stream->reason, reason, sizeof(stream->reason) - 1);
	stream->counters[CORETAP_COUNT_MALFORMED]++;
}

/* Finds or adds. NULL with 0 in *err: there are too many. */
static struct node *find_node(struct stream *stream, const char *label, size_t length, int *err)
{
	struct node *node;

	*err = 0;
	for (node = stream->nodes; node; node = node->after)
		if (node->length == length && !memcmp(node->label, label, length))
			return node;
	if (stream->n_nodes == MAX_NODES)
		return NULL;
	node = calloc(1, sizeof(*node));
	if (!node) {
		*err = -ENOMEM;
		return NULL;
	}
	memcpy(node->label, label, length);
	node->length = length;
	node->after = stream->nodes;
	stream->nodes = node;
	stream->n_nodes++;
	return node;
}

static struct topic *find_topic(struct node *node, const char *name, size_t length, int *err)
{
	struct topic **link = &node->topics, *topic;

	*err = 0;
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
	if (node->n_topics == MAX_TOPICS)
		return NULL;
	topic = calloc(1, sizeof(*topic) + length + 1);
	if (!topic) {
		*err = -ENOMEM;
		return NULL;
	}
	memcpy(topic->name, name, length);
	topic->length = length;
	topic->desc = catalogue_find(name, length);
	topic->after = node->topics;
	node->topics = topic;
	node->n_topics++;
	return topic;
}

/* Takes the run of a message: false when the message is of an old one. */
static bool enter_run(struct stream *stream, struct node *node, uint64_t run)
{
	if (run == node->run)
		return true;
	stream->old_run = run;
	if (run < node->run) {
		stream->counters[CORETAP_COUNT_OLD_RUN]++;
		if (node->told_old_run != run)
			stream->pending |= PENDING_OLD_RUN;
		node->told_old_run = run;
		return false;
	}
	if (node->run) {
		stream->old_run = node->run;
		stream->pending |= PENDING_NEW_RUN;
	}
	node->run = run;
	free_topics(node);
	return true;
}

/* Whether a key of heads is a topic that is subscribed to. */
static bool is_tracked(const struct stream *stream, const struct value *key)
{
	const char *topic = (const char *)key->data;

	return topic_valid(topic, key->length) &&
	       filter_matches(stream->filter, topic, key->length);
}

/* The status itself is told only to those who name it: it comes every second. */
static bool wants_status(const struct filter *filter)
{
	for (size_t i = 0; i < filter->n_names; i++)
		if (!strcmp(filter->names[i], TOPIC_STATUS) || !strcmp(filter->names[i], "bridge."))
			return true;
	return false;
}

static int take_status(struct stream *stream, const char *name, size_t length, const void *body,
		       size_t body_length, unsigned int last)
{
	struct status *status = &stream->status;
	struct node *node;
	struct value key;
	int err = decode_status(body, body_length, status, stream->reason);

	if (err) {
		stream_malformed(stream, name, length, stream->reason);
		return 0;
	}
	if (status->socket != stream->socket) {
		stream_malformed(stream, name, length,
				 stream->socket == SOCKET_LOW ?
					 "socket: this address is not that of the low socket" :
					 "socket: this address is not that of the high socket");
		return 0;
	}
	node = find_node(stream, status->node, status->node_length, &err);
	if (!node) {
		if (!err)
			stream_malformed(stream, name, length, "node: too many labels");
		return err;
	}
	stream->node = node;
	if (!enter_run(stream, node, status->run))
		return 0;

	struct cursor heads = status->heads;
	struct value head;

	while (cursor_pair(&heads, &key, &head))
		if (is_tracked(stream, &key) &&
		    !find_topic(node, (const char *)key.data, key.length, &err)) {
			if (!err)
				stream_malformed(stream, name, length, "heads: too many topics");
			return err;
		}
	stream->heads = status->heads;
	stream->pending |= last;
	return 0;
}

int stream_take(struct stream *stream, const char *name, size_t length, const void *body,
		size_t body_length)
{
	struct message *message = &stream->message;
	struct topic *topic;
	struct node *node;
	int err;

	stream->pending = 0;
	stream->index = 0;
	message->events.left = 0;
	stream->heads.left = 0;

	if (!topic_valid(name, length)) {
		stream_malformed(stream, name, length, "topic: not a topic");
		return 0;
	}
	if (length == strlen(TOPIC_STATUS) && !memcmp(name, TOPIC_STATUS, length))
		return take_status(stream, name, length, body, body_length,
				   wants_status(stream->filter) ? PENDING_STATUS : 0);
	if (length == strlen(TOPIC_STOPPING) && !memcmp(name, TOPIC_STOPPING, length))
		return take_status(stream, name, length, body, body_length, PENDING_STOPPING);
	/* A topic that begins like one of ours: libzmq compares prefixes only. */
	if (!filter_matches(stream->filter, name, length))
		return 0;

	err = decode_message(body, body_length, catalogue_find(name, length), message,
			     stream->reason);
	if (err) {
		stream_malformed(stream, name, length, stream->reason);
		return 0;
	}

	struct cursor events = message->events;

	message->events.left = 0;
	node = find_node(stream, message->node, message->node_length, &err);
	if (!node) {
		if (!err)
			stream_malformed(stream, name, length, "node: too many labels");
		return err;
	}
	stream->node = node;
	if (!enter_run(stream, node, message->run))
		return 0;
	topic = find_topic(node, name, length, &err);
	if (!topic) {
		if (!err)
			stream_malformed(stream, name, length, "topic: too many topics");
		return err;
	}
	stream->topic = topic;

	if (topic->next && message->seq < topic->next) {
		stream->counters[CORETAP_COUNT_DUPLICATES]++;
		return 0;
	}
	if (topic->next && message->seq > topic->next) {
		stream->pending |= PENDING_GAP;
		stream->gap_first = topic->next;
		stream->gap_last = message->seq - 1;
		stream->counters[CORETAP_COUNT_GAP] += message->seq - topic->next;
	}
	if (message->lost) {
		stream->pending |= PENDING_LOST;
		stream->counters[CORETAP_COUNT_LOST] += message->lost;
	}
	stream->counters[CORETAP_COUNT_MESSAGES]++;
	topic->next = message->next;
	message->events = events;
	return 0;
}

static void start_event(const struct stream *stream, struct coretap_event *event,
			enum coretap_kind kind)
{
	struct json *json = event->json;

	*event = (struct coretap_event){ .kind = kind,
					 .socket = stream->socket,
					 .topic = "",
					 .node = "",
					 .reason = "",
					 .json = json };
	if (kind != CORETAP_MALFORMED) {
		event->node = stream->node->label;
		event->run = stream->node->run;
	}
}

/* The next topic of a status that is ahead of what was seen. */
static bool next_lost_tail(struct stream *stream, struct coretap_event *event)
{
	struct value key, head;
	int err;

	while (cursor_pair(&stream->heads, &key, &head)) {
		struct topic *topic;

		if (!is_tracked(stream, &key))
			continue;
		/* take_status has added those that were missing. */
		topic = find_topic(stream->node, (const char *)key.data, key.length, &err);

		uint64_t expected = topic->next, next = head.number + 1;

		if (next <= expected)
			continue;
		topic->next = next;
		if (!expected)
			continue;
		start_event(stream, event, CORETAP_GAP);
		event->topic = topic->name;
		event->first = expected;
		event->last = head.number;
		stream->counters[CORETAP_COUNT_GAP] += next - expected;
		return true;
	}
	return false;
}

static bool next_event(struct stream *stream, struct coretap_event *event)
{
	const struct message *message = &stream->message;
	struct value map, time_us;

	if (!cursor_element(&stream->message.events, &map))
		return false;
	start_event(stream, event, CORETAP_EVENT);
	event->topic = stream->topic->name;
	event->index = stream->index++;
	event->seq = message->seq + message->lost + event->index;
	event->n = message->n + event->index;
	event->pid = message->pid;
	event->message = message;
	event->map = map;
	event->hint = value_elements(&map);
	decode_field(&map, &event->hint, "time_us", 7, &time_us);
	event->time_us = time_us.number;
	stream->counters[CORETAP_COUNT_EVENTS]++;
	return true;
}

static bool take_pending(struct stream *stream, enum pending which)
{
	bool pending = stream->pending & which;

	stream->pending &= ~(unsigned int)which;
	return pending;
}

bool stream_next(struct stream *stream, struct coretap_event *event)
{
	if (take_pending(stream, PENDING_OLD_RUN)) {
		start_event(stream, event, CORETAP_OLD_RUN);
		event->old_run = stream->old_run;
		return true;
	}
	if (take_pending(stream, PENDING_NEW_RUN)) {
		start_event(stream, event, CORETAP_NEW_RUN);
		event->old_run = stream->old_run;
		return true;
	}
	if (take_pending(stream, PENDING_MALFORMED)) {
		start_event(stream, event, CORETAP_MALFORMED);
		event->topic = stream->bad_topic;
		event->reason = stream->reason;
		return true;
	}
	if (take_pending(stream, PENDING_GAP)) {
		start_event(stream, event, CORETAP_GAP);
		event->topic = stream->topic->name;
		event->first = stream->gap_first;
		event->last = stream->gap_last;
		return true;
	}
	if (take_pending(stream, PENDING_LOST)) {
		start_event(stream, event, CORETAP_LOST);
		event->topic = stream->topic->name;
		event->first = stream->message.seq;
		event->last = stream->message.seq + stream->message.lost - 1;
		return true;
	}
	if (next_event(stream, event) || next_lost_tail(stream, event))
		return true;
	if (stream->pending) {
		bool stopping = stream->pending & PENDING_STOPPING;

		stream->pending = 0;
		start_event(stream, event, stopping ? CORETAP_STOPPING : CORETAP_STATUS);
		event->topic = stopping ? TOPIC_STOPPING : TOPIC_STATUS;
		event->n = stream->status.n;
		event->time_us = stream->status.time_us;
		event->map = stream->status.map;
		event->hint = value_elements(&event->map);
		return true;
	}
	return false;
}

void stream_last(const struct stream *stream, const char **node, uint64_t *run)
{
	*node = stream->node ? stream->node->label : "";
	*run = stream->node ? stream->node->run : 0;
}
