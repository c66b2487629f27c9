/* The one rule, next = seq + lost + number of events, kept for each node, run and topic. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "numbers.h"
#include "tracker.h"

/* What the message taken still has to tell, in this order. */
enum pending {
	PENDING_MALFORMED = 1,
	PENDING_OLD_RUN = 2,
	PENDING_NEW_RUN = 4,
	PENDING_GAP = 8,
	PENDING_LOST = 16,
	PENDING_STATUS = 32,
	PENDING_STOPPING = 64,
	PENDING_NO_REPLAY = 128,
};

struct tracker {
	enum socket_id socket;
	const struct filter *filter;
	uint64_t *counters;
	struct numbers numbers;
	enum coverage coverage;
	bool want_past;
	bool replay_off; /* the last status said so */
	struct missing missing;

	unsigned int pending; /* enum pending */
	struct node *node;    /* of the message taken */
	struct topic *topic;  /* the same */
	uint64_t old_run, gap_first, gap_last;
	struct message_body message;
	uint64_t index;
	bool taken; /* message is passed on */
	struct coretap_message frames;
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

void tracker_set_coverage(struct tracker *tracker, enum coverage coverage)
{
	tracker->coverage = coverage;
}

void tracker_want_past(struct tracker *tracker)
{
	tracker->want_past = true;
}

void tracker_free(struct tracker *tracker)
{
	if (!tracker)
		return;
	numbers_free(&tracker->numbers);
	free(tracker);
}

void tracker_malformed(struct tracker *tracker, const char *topic, size_t topic_length,
		       const char *reason)
{
	tracker->pending |= PENDING_MALFORMED;
	tracker->taken = false;
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

static void start_run(struct tracker *tracker, struct node *node, uint64_t run, uint64_t n,
		      bool fresh)
{
	if (node->run) {
		tracker->old_run = node->run;
		tracker->pending |= PENDING_NEW_RUN;
	}
	node->run = run;
	node->n = node->sure = n;
	node->fresh = fresh;
	node->settled = false;
	numbers_clear(node);
}

/* Everything wanted up to here was taken. */
static uint64_t position(const struct tracker *tracker, const struct node *node)
{
	return tracker->coverage == COVERS_PART ? node->sure : node->n;
}

/* Says what is missing before a message of a run, the last position before it being `before`. */
static int set_missing(struct tracker *tracker, const struct node *node, uint64_t run,
		       uint64_t before, uint64_t after)
{
	tracker->missing = (struct missing){
		.run = node->run, .after = after, .message_run = run, .before = before
	};
	tracker->want_past = false;
	return TRACKER_MISSING;
}

/* Takes the run of a message; n is the last position before it. Returns 0, TRACKER_MISSING, or -1
 * when the message is not to be taken. */
static int enter_run(struct tracker *tracker, struct node *node, enum origin origin, uint64_t run,
		     uint64_t n)
{
	if (run == node->run)
		return 0;
	if (run < node->run) {
		tracker->old_run = run;
		tracker->counters[CORETAP_COUNT_OLD_RUN]++;
		if (node->told_old_run != run)
			tracker->pending |= PENDING_OLD_RUN;
		node->told_old_run = run;
		return -1;
	}
	if (origin == ORIGIN_LIVE && (node->run || tracker->want_past))
		return set_missing(tracker, node, run, n, position(tracker, node));
	if (tracker->want_past)
		tracker_no_replay(tracker, "not asked");
	tracker->want_past = false;
	start_run(tracker, node, run, node->run ? 0 : n, node->run != 0);
	return 0;
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

/* From where the topics that are behind a status have to be asked for; UINT64_MAX = none is. */
static uint64_t behind_heads(const struct tracker *tracker, struct node *node,
			     const struct status_body *status)
{
	struct cursor heads = status->heads;
	struct item key, head;
	uint64_t after = UINT64_MAX;

	while (cursor_pair(&heads, &key, &head)) {
		struct topic *topic;

		if (!is_tracked(tracker, &key))
			continue;
		topic = numbers_lookup(node, (const char *)key.data, key.length);
		if (topic && topic->next && topic->next <= head.number && topic->at < after)
			after = topic->at;
		if (!topic && node->fresh && head.number)
			after = 0;
		if (!topic && node->settled && tracker->coverage != COVERS_WHOLE && head.number &&
		    node->sure < status->n && node->sure < after)
			after = node->sure;
	}
	return tracker->coverage == COVERS_WHOLE && status->n > node->n && node->n < after ? node->n
											   : after;
}

static void note_replay(struct tracker *tracker, const struct status_body *status)
{
	struct cursor hint = item_elements(&status->map);
	struct item replay;

	decode_field(&status->map, &hint, "replay", 6, &replay);
	tracker->replay_off = item_is(&replay, "off");
}

static int take_status(struct tracker *tracker, enum origin origin, const char *name, size_t length,
		       const void *body, size_t body_length, unsigned int last)
{
	struct status_body *status = &tracker->status;
	struct node *node;
	struct item key;
	uint64_t after;
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
	node = numbers_node(&tracker->numbers, status->node, status->node_length, &err);
	if (!node) {
		if (!err)
			tracker_malformed(tracker, name, length, "node: too many labels");
		return err;
	}
	tracker->node = node;
	node->heard = true;
	note_replay(tracker, status);
	err = enter_run(tracker, node, origin, status->run, status->n);
	if (!err && origin == ORIGIN_LIVE) {
		after = behind_heads(tracker, node, status);
		if (after < UINT64_MAX)
			err = set_missing(tracker, node, status->run, status->n, after);
	}
	if (err)
		return err == TRACKER_MISSING ? err : 0;

	struct cursor heads = status->heads;
	struct item head;

	while (cursor_pair(&heads, &key, &head)) {
		struct topic *topic;

		if (!is_tracked(tracker, &key))
			continue;
		topic = numbers_topic(node, (const char *)key.data, key.length, &err);
		if (!topic) {
			if (!err)
				tracker_malformed(tracker, name, length, "heads: too many topics");
			return err;
		}
		if (!topic->next)
			topic->next = head.number + 1;
		topic->at = status->n;
	}
	if (status->n > node->n)
		node->n = status->n;
	node->sure = node->n;
	node->settled = true;
	tracker->heads = status->heads;
	tracker->pending |= last;
	tracker->frames =
		(struct coretap_message){ tracker->socket, name, length, body, body_length, NULL };
	return 0;
}

/* A message of a topic that nobody asked for only moves the position on. */
static int pass_over(struct tracker *tracker, enum origin origin, struct node *node,
		     const struct message_body *message, uint64_t count)
{
	if (message->n + count <= node->n + 1)
		return 0;
	if (origin == ORIGIN_LIVE && message->n > node->n + 1)
		return set_missing(tracker, node, message->run, message->n - 1, node->n);
	node->n = message->n + count - 1;
	return 0;
}

/* What is left of a message that a saved position divides. */
static void cut(struct topic *topic, struct message_body *message, struct cursor *events,
		uint64_t *index)
{
	uint64_t known = topic->next - message->seq;
	struct item event;

	if (known < message->lost) {
		message->seq += known;
		message->lost -= known;
		return;
	}
	for (*index = 0; *index < known - message->lost; ++*index)
		cursor_element(events, &event);
	message->seq += message->lost;
	message->lost = 0;
}

int tracker_take(struct tracker *tracker, enum origin origin, const char *name, size_t length,
		 const void *body, size_t body_length)
{
	struct message_body *message = &tracker->message;
	const struct event_desc *desc = NULL;
	struct topic *topic;
	struct node *node;
	bool wanted;
	int err;

	tracker->pending = 0;
	tracker->index = 0;
	tracker->taken = false;
	message->events.left = 0;
	tracker->heads.left = 0;

	if (!topic_valid(name, length)) {
		tracker_malformed(tracker, name, length, "topic: not a topic");
		return 0;
	}
	if (length == strlen(TOPIC_STATUS) && !memcmp(name, TOPIC_STATUS, length))
		return take_status(tracker, origin, name, length, body, body_length,
				   wants_status(tracker->filter) ? PENDING_STATUS : 0);
	if (length == strlen(TOPIC_STOPPING) && !memcmp(name, TOPIC_STOPPING, length))
		return take_status(tracker, origin, name, length, body, body_length,
				   PENDING_STOPPING);
	/* A topic that begins like one of ours: libzmq compares prefixes only. */
	wanted = filter_matches(tracker->filter, name, length);
	if (!wanted && tracker->coverage != COVERS_WHOLE)
		return 0;
	if (wanted)
		desc = catalogue_find(name, length);

	err = decode_message(body, body_length, desc, message, tracker->reason);
	if (err) {
		message->events.left = 0;
		if (wanted)
			tracker_malformed(tracker, name, length, tracker->reason);
		return 0;
	}

	struct cursor events = message->events;

	message->events.left = 0;
	node = numbers_node(&tracker->numbers, message->node, message->node_length, &err);
	if (!node) {
		if (!err)
			tracker_malformed(tracker, name, length, "node: too many labels");
		return err;
	}
	if (origin == ORIGIN_REPLAY && (node != tracker->node || message->run != node->run)) {
		tracker_malformed(tracker, name, length, "run: replay was asked for another one");
		return TRACKER_FOREIGN;
	}
	tracker->node = node;
	node->heard = true;
	if (node->run && message->run > node->run)
		tracker->replay_off = false; /* so it was in the run before */
	err = enter_run(tracker, node, origin, message->run, message->n - 1);
	if (err)
		return err == TRACKER_MISSING ? err : 0;
	if (!wanted)
		return pass_over(tracker, origin, node, message, events.left);
	topic = numbers_topic(node, name, length, &err);
	if (!topic) {
		if (!err)
			tracker_malformed(tracker, name, length, "topic: too many topics");
		return err;
	}
	tracker->topic = topic;

	if (!topic->next && node->settled && message->seq > 1 && origin == ORIGIN_LIVE &&
	    tracker->coverage != COVERS_WHOLE)
		return set_missing(tracker, node, message->run, message->n - 1, node->sure);
	if (topic->next && message->seq < topic->next) {
		if (!topic->partial || message->next <= topic->next) {
			tracker->counters[CORETAP_COUNT_DUPLICATES]++;
			return 0;
		}
		cut(topic, message, &events, &tracker->index);
	} else if (topic->next && message->seq > topic->next) {
		/* Replay gives the other topics too: of none more may be missing before. */
		if (origin == ORIGIN_LIVE) {
			uint64_t after = position(tracker, node);

			return set_missing(tracker, node, message->run, message->n - 1,
					   topic->at < after ? topic->at : after);
		}
		tracker->pending |= PENDING_GAP;
		tracker->gap_first = topic->next;
		tracker->gap_last = message->seq - 1;
		tracker->counters[CORETAP_COUNT_GAP] += message->seq - topic->next;
	}
	if (origin == ORIGIN_LIVE && tracker->coverage == COVERS_WHOLE && message->n > node->n + 1)
		return set_missing(tracker, node, message->run, message->n - 1, node->n);
	if (message->lost) {
		tracker->pending |= PENDING_LOST;
		tracker->counters[CORETAP_COUNT_LOST] += message->lost;
	}
	tracker->counters[CORETAP_COUNT_MESSAGES]++;
	if (origin == ORIGIN_REPLAY)
		tracker->counters[CORETAP_COUNT_REPLAYED] += events.left;
	topic->partial = false;
	topic->next = message->seq;
	topic->at = message->n + tracker->index + events.left - 1;
	if (message->n + tracker->index > node->n)
		node->n = message->n + tracker->index - 1;
	message->events = events;
	tracker->frames = (struct coretap_message){ tracker->socket, name,   length, body,
						    body_length,     message };
	tracker->taken = true;
	return 0;
}

const struct coretap_message *tracker_message(const struct tracker *tracker)
{
	return tracker->taken ? &tracker->frames : NULL;
}

void tracker_missing(const struct tracker *tracker, struct missing *missing)
{
	*missing = tracker->missing;
	missing->replay_off = tracker->replay_off;
}

void tracker_enter(struct tracker *tracker, uint64_t run, bool fresh)
{
	tracker->pending = 0;
	tracker->taken = false;
	tracker->heads.left = 0;
	start_run(tracker, tracker->node, run, 0, fresh);
}

void tracker_reach(struct tracker *tracker, uint64_t n)
{
	struct node *node = tracker->node;

	if (n > node->n)
		node->n = n;
	/* Of several topics one may miss more: a walk that began later does not vouch for it. */
	if (n > node->sure &&
	    (tracker->missing.run != node->run || tracker->missing.after <= node->sure))
		node->sure = n;
}

void tracker_tell_heads(struct tracker *tracker, const struct cursor *heads)
{
	tracker->pending = 0;
	tracker->taken = false;
	tracker->heads = *heads;
}

void tracker_no_replay(struct tracker *tracker, const char *reason)
{
	tracker->pending = PENDING_NO_REPLAY;
	tracker->taken = false;
	tracker->heads.left = 0;
	if (reason != tracker->reason)
		snprintf(tracker->reason, sizeof(tracker->reason), "%s", reason);
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

/* A topic of this socket that did not tell anything in a run known from its beginning. */
static struct topic *silent_topic(struct tracker *tracker, const char *name, size_t length)
{
	const struct event_desc *desc = catalogue_find(name, length);
	int err;

	if (!tracker->node->fresh || !desc || desc->socket != tracker->socket)
		return NULL;
	return numbers_topic(tracker->node, name, length, &err);
}

/* The next topic that is behind the numbers of a status, or of a run's end. */
static bool next_lost_tail(struct tracker *tracker, struct coretap_event *event)
{
	struct item key, head;

	while (cursor_pair(&tracker->heads, &key, &head)) {
		const char *name = (const char *)key.data;
		struct topic *topic;

		if (!is_tracked(tracker, &key) || head.kind != ITEM_UINT ||
		    head.number == UINT64_MAX)
			continue;
		topic = numbers_lookup(tracker->node, name, key.length);
		if (!topic)
			topic = silent_topic(tracker, name, key.length);
		if (!topic || !topic->next || topic->next > head.number)
			continue;
		start_event(tracker, event, CORETAP_GAP);
		event->topic = topic->name;
		event->first = topic->next;
		event->last = head.number;
		tracker->counters[CORETAP_COUNT_GAP] += head.number + 1 - topic->next;
		topic->next = head.number + 1;
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
	tracker->topic->next = event->seq + 1;
	if (event->n > tracker->node->n)
		tracker->node->n = event->n;
	tracker->counters[CORETAP_COUNT_EVENTS]++;
	return true;
}

void tracker_skip(struct tracker *tracker)
{
	struct message_body *message = &tracker->message;
	uint64_t left = message->events.left;

	if (!tracker->taken || !left)
		return;
	tracker->index += left;
	tracker->topic->next = message->next;
	if (message->n + tracker->index - 1 > tracker->node->n)
		tracker->node->n = message->n + tracker->index - 1;
	tracker->counters[CORETAP_COUNT_EVENTS] += left;
	message->events.left = 0;
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
	if (take_pending(tracker, PENDING_NO_REPLAY)) {
		start_event(tracker, event, CORETAP_NO_REPLAY);
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
		tracker->topic->next = event->last + 1;
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
		event->frames = &tracker->frames;
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

static void save_topic(struct json *text, const char *name, uint64_t next)
{
	json_raw(text, name);
	json_raw(text, " ");
	json_uint(text, next);
}

/* What a run that was entered at its beginning has not told yet begins with 1. */
static void save_silent(const struct tracker *tracker, struct node *node, struct json *text)
{
	size_t n_events;
	const struct event_desc *events = catalogue(&n_events);

	/* Where nothing else is said, position 0 says it of all. */
	if (!node->fresh || (!node->n && !node->topics))
		return;
	for (size_t i = 0; i < n_events; i++) {
		const char *name = events[i].topic;

		if (events[i].socket == tracker->socket &&
		    filter_matches(tracker->filter, name, strlen(name)) &&
		    !numbers_lookup(node, name, strlen(name))) {
			save_topic(text, name, 1);
			json_raw(text, "\n");
		}
	}
}

static void save_node(const struct tracker *tracker, struct node *node, struct json *text)
{
	if (!node->run)
		return;
	json_raw(text, socket_name(tracker->socket));
	json_raw(text, " ");
	json_raw(text, node->label);
	json_raw(text, " ");
	json_uint(text, node->run);
	json_raw(text, " ");
	json_uint(text, position(tracker, node));
	json_raw(text, "\n");
	for (const struct topic *topic = node->topics; topic; topic = topic->after) {
		if (!topic->next)
			continue;
		save_topic(text, topic->name, topic->next);
		/* Not asked for now: it stays where it was. */
		if (!filter_matches(tracker->filter, topic->name, topic->length)) {
			json_raw(text, " ");
			json_uint(text, topic->at);
		}
		json_raw(text, "\n");
	}
	save_silent(tracker, node, text);
}

void tracker_save(const struct tracker *tracker, struct json *text)
{
	for (struct node *node = tracker->numbers.nodes; node; node = node->after)
		if (node != tracker->node)
			save_node(tracker, node, text);
	/* The last one heard of comes last, in the file too. */
	if (tracker->node)
		save_node(tracker, tracker->node, text);
}

int tracker_restore(struct tracker *tracker, const char *label, size_t length, uint64_t run,
		    uint64_t n)
{
	struct node *node;
	int err;

	node = numbers_node(&tracker->numbers, label, length, &err);
	if (!node)
		return err;
	numbers_clear(node);
	node->run = run;
	node->n = node->sure = n;
	/* Saved when the run had just been entered. */
	node->fresh = !n;
	node->settled = true;
	tracker->node = node;
	return 0;
}

int tracker_restore_topic(struct tracker *tracker, const char *name, size_t length, uint64_t next,
			  uint64_t at)
{
	struct topic *topic;
	int err;

	topic = numbers_topic(tracker->node, name, length, &err);
	if (!topic)
		return err;
	topic->next = next;
	topic->at = at < tracker->node->n ? at : tracker->node->n;
	topic->partial = true;
	tracker->node->fresh = false;
	return 0;
}
