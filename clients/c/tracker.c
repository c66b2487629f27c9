/* The one rule, next = seq + lost + number of events, kept for each node, run and topic.
 *
 * An address normally carries one node. A forwarder may merge several, so everything is kept for
 * each label; runs of different labels have nothing to do with each other. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tracker.h"

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

struct tracker {
	enum socket_id socket;
	const struct filter *filter;
	uint64_t *counters;
	struct node *nodes;
	unsigned int n_nodes;

	unsigned int pending; /* enum pending */
	struct node *node;    /* of the message taken */
	struct topic *topic;  /* the same */
	uint64_t old_run, gap_first, gap_last;
	struct message_body message;
	uint64_t index;
	struct status_body status;
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

		if (prefix ? length > n && !memcmp(name, topic, n)
			   : length == n && !memcmp(name, topic, n))
			return true;
	}
	return false;
}

struct tracker *tracker_new(enum socket_id socket, const struct filter *filter, uint64_t *counters)
{
	struct tracker *tracker = calloc(1, sizeof(*tracker));

	if (!tracker)
		return NULL;
	tracker->socket = socket;
	tracker->filter = filter;
	tracker->counters = counters;
	return tracker;
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

void tracker_free(struct tracker *tracker)
{
	if (!tracker)
		return;
	while (tracker->nodes) {
		struct node *node = tracker->nodes;

		tracker->nodes = node->after;
		free_topics(node);
		free(node);
	}
	free(tracker);
}

void tracker_malformed(struct tracker *tracker, const char *topic, size_t topic_length,
		       const char *reason)
{
	tracker->pending |= PENDING_MALFORMED;
	tracker->message.events.left = 0;
	tracker->heads.left = 0;
	tracker->bad_topic[0] = '\0';
	if (topic_valid(topic, topic_length)) {
		memcpy(tracker->bad_topic, topic, topic_length);
		tracker->bad_topic[topic_length] = '\0';
	}
	if (reason != tracker->reason)
		strncpy(tracker->reason, reason, sizeof(tracker->reason) - 1);
	tracker->counters[CORETAP_COUNT_MALFORMED]++;
}

/* Finds or adds. NULL with 0 in *err: there are too many. */
static struct node *find_node(struct tracker *tracker, const char *label, size_t length, int *err)
{
	struct node *node;

	*err = 0;
	for (node = tracker->nodes; node; node = node->after)
		if (node->length == length && !memcmp(node->label, label, length))
			return node;
	if (tracker->n_nodes == MAX_NODES)
		return NULL;
	node = calloc(1, sizeof(*node));
	if (!node) {
		*err = -ENOMEM;
		return NULL;
	}
	memcpy(node->label, label, length);
	node->length = length;
	node->after = tracker->nodes;
	tracker->nodes = node;
	tracker->n_nodes++;
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
static bool enter_run(struct tracker *tracker, struct node *node, uint64_t run)
{
	if (run == node->run)
		return true;
	tracker->old_run = run;
	if (run < node->run) {
		tracker->counters[CORETAP_COUNT_OLD_RUN]++;
		if (node->told_old_run != run)
			tracker->pending |= PENDING_OLD_RUN;
		node->told_old_run = run;
		return false;
	}
	if (node->run) {
		tracker->old_run = node->run;
		tracker->pending |= PENDING_NEW_RUN;
	}
	node->run = run;
	free_topics(node);
	return true;
}

/* Whether a key of heads is a topic that is subscribed to. */
static bool is_tracked(const struct tracker *tracker, const struct item *key)
{
	const char *topic = (const char *)key->data;

	return topic_valid(topic, key->length) &&
	       filter_matches(tracker->filter, topic, key->length);
}

/* The status itself is told only to those who name it: it comes every second. */
static bool wants_status(const struct filter *filter)
{
	for (size_t i = 0; i < filter->n_names; i++)
		if (!strcmp(filter->names[i], TOPIC_STATUS) || !strcmp(filter->names[i], "bridge."))
			return true;
	return false;
}

static int take_status(struct tracker *tracker, const char *name, size_t length, const void *body,
		       size_t body_length, unsigned int last)
{
	struct status_body *status = &tracker->status;
	struct node *node;
	struct item key;
	int err = decode_status(body, body_length, status, tracker->reason);

	if (err) {
		tracker_malformed(tracker, name, length, tracker->reason);
		return 0;
	}
	if (status->socket != tracker->socket) {
		tracker_malformed(tracker, name, length,
				  tracker->socket == SOCKET_LOW
					  ? "socket: this address is not that of the low socket"
					  : "socket: this address is not that of the high socket");
		return 0;
	}
	node = find_node(tracker, status->node, status->node_length, &err);
	if (!node) {
		if (!err)
			tracker_malformed(tracker, name, length, "node: too many labels");
		return err;
	}
	tracker->node = node;
	if (!enter_run(tracker, node, status->run))
		return 0;

	struct cursor heads = status->heads;
	struct item head;

	while (cursor_pair(&heads, &key, &head))
		if (is_tracked(tracker, &key) &&
		    !find_topic(node, (const char *)key.data, key.length, &err)) {
			if (!err)
				tracker_malformed(tracker, name, length, "heads: too many topics");
			return err;
		}
	tracker->heads = status->heads;
	tracker->pending |= last;
	return 0;
}

int tracker_take(struct tracker *tracker, const char *name, size_t length, const void *body,
		 size_t body_length)
{
	struct message_body *message = &tracker->message;
	struct topic *topic;
	struct node *node;
	int err;

	tracker->pending = 0;
	tracker->index = 0;
	message->events.left = 0;
	tracker->heads.left = 0;

	if (!topic_valid(name, length)) {
		tracker_malformed(tracker, name, length, "topic: not a topic");
		return 0;
	}
	if (length == strlen(TOPIC_STATUS) && !memcmp(name, TOPIC_STATUS, length))
		return take_status(tracker, name, length, body, body_length,
				   wants_status(tracker->filter) ? PENDING_STATUS : 0);
	if (length == strlen(TOPIC_STOPPING) && !memcmp(name, TOPIC_STOPPING, length))
		return take_status(tracker, name, length, body, body_length, PENDING_STOPPING);
	/* A topic that begins like one of ours: libzmq compares prefixes only. */
	if (!filter_matches(tracker->filter, name, length))
		return 0;

	err = decode_message(body, body_length, catalogue_find(name, length), message,
			     tracker->reason);
	if (err) {
		tracker_malformed(tracker, name, length, tracker->reason);
		return 0;
	}

	struct cursor events = message->events;

	message->events.left = 0;
	node = find_node(tracker, message->node, message->node_length, &err);
	if (!node) {
		if (!err)
			tracker_malformed(tracker, name, length, "node: too many labels");
		return err;
	}
	tracker->node = node;
	if (!enter_run(tracker, node, message->run))
		return 0;
	topic = find_topic(node, name, length, &err);
	if (!topic) {
		if (!err)
			tracker_malformed(tracker, name, length, "topic: too many topics");
		return err;
	}
	tracker->topic = topic;

	if (topic->next && message->seq < topic->next) {
		tracker->counters[CORETAP_COUNT_DUPLICATES]++;
		return 0;
	}
	if (topic->next && message->seq > topic->next) {
		tracker->pending |= PENDING_GAP;
		tracker->gap_first = topic->next;
		tracker->gap_last = message->seq - 1;
		tracker->counters[CORETAP_COUNT_GAP] += message->seq - topic->next;
	}
	if (message->lost) {
		tracker->pending |= PENDING_LOST;
		tracker->counters[CORETAP_COUNT_LOST] += message->lost;
	}
	tracker->counters[CORETAP_COUNT_MESSAGES]++;
	topic->next = message->next;
	message->events = events;
	return 0;
}

static void start_event(const struct tracker *tracker, struct coretap_event *event,
			enum coretap_kind kind)
{
	struct json *json = event->json;

	*event = (struct coretap_event){ .kind = kind,
					 .socket = tracker->socket,
					 .topic = "",
					 .node = "",
					 .reason = "",
					 .json = json };
	if (kind != CORETAP_MALFORMED) {
		event->node = tracker->node->label;
		event->run = tracker->node->run;
	}
}

/* The next topic of a status that is ahead of what was seen. */
static bool next_lost_tail(struct tracker *tracker, struct coretap_event *event)
{
	struct item key, head;
	int err;

	while (cursor_pair(&tracker->heads, &key, &head)) {
		struct topic *topic;

		if (!is_tracked(tracker, &key))
			continue;
		/* take_status has added those that were missing. */
		topic = find_topic(tracker->node, (const char *)key.data, key.length, &err);

		uint64_t expected = topic->next, next = head.number + 1;

		if (next <= expected)
			continue;
		topic->next = next;
		if (!expected)
			continue;
		start_event(tracker, event, CORETAP_GAP);
		event->topic = topic->name;
		event->first = expected;
		event->last = head.number;
		tracker->counters[CORETAP_COUNT_GAP] += next - expected;
		return true;
	}
	return false;
}

static bool next_event(struct tracker *tracker, struct coretap_event *event)
{
	const struct message_body *message = &tracker->message;
	struct item map, time_us;

	if (!cursor_element(&tracker->message.events, &map))
		return false;
	start_event(tracker, event, CORETAP_EVENT);
	event->topic = tracker->topic->name;
	event->index = tracker->index++;
	event->seq = message->seq + message->lost + event->index;
	event->n = message->n + event->index;
	event->pid = message->pid;
	event->message = message;
	event->map = map;
	event->hint = item_elements(&map);
	decode_field(&map, &event->hint, "time_us", 7, &time_us);
	event->time_us = time_us.number;
	tracker->counters[CORETAP_COUNT_EVENTS]++;
	return true;
}

static bool take_pending(struct tracker *tracker, enum pending which)
{
	bool pending = tracker->pending & which;

	tracker->pending &= ~(unsigned int)which;
	return pending;
}

bool tracker_next(struct tracker *tracker, struct coretap_event *event)
{
	if (take_pending(tracker, PENDING_OLD_RUN)) {
		start_event(tracker, event, CORETAP_OLD_RUN);
		event->old_run = tracker->old_run;
		return true;
	}
	if (take_pending(tracker, PENDING_NEW_RUN)) {
		start_event(tracker, event, CORETAP_NEW_RUN);
		event->old_run = tracker->old_run;
		return true;
	}
	if (take_pending(tracker, PENDING_MALFORMED)) {
		start_event(tracker, event, CORETAP_MALFORMED);
		event->topic = tracker->bad_topic;
		event->reason = tracker->reason;
		return true;
	}
	if (take_pending(tracker, PENDING_GAP)) {
		start_event(tracker, event, CORETAP_GAP);
		event->topic = tracker->topic->name;
		event->first = tracker->gap_first;
		event->last = tracker->gap_last;
		return true;
	}
	if (take_pending(tracker, PENDING_LOST)) {
		start_event(tracker, event, CORETAP_LOST);
		event->topic = tracker->topic->name;
		event->first = tracker->message.seq;
		event->last = tracker->message.seq + tracker->message.lost - 1;
		return true;
	}
	if (next_event(tracker, event) || next_lost_tail(tracker, event))
		return true;
	if (tracker->pending) {
		bool stopping = tracker->pending & PENDING_STOPPING;

		tracker->pending = 0;
		start_event(tracker, event, stopping ? CORETAP_STOPPING : CORETAP_STATUS);
		event->topic = stopping ? TOPIC_STOPPING : TOPIC_STATUS;
		event->n = tracker->status.n;
		event->time_us = tracker->status.time_us;
		event->map = tracker->status.map;
		event->hint = item_elements(&event->map);
		return true;
	}
	return false;
}

void tracker_last(const struct tracker *tracker, const char **node, uint64_t *run)
{
	*node = tracker->node ? tracker->node->label : "";
	*run = tracker->node ? tracker->node->run : 0;
}
