/* See playlist.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../../../protocol/encode.h"
#include "../event.h"
#include "playlist.h"

#define BLOCK_CONNECTED "validation.block_connected"
#define BLOCK_EVICTIONS "block.evictions"
#define MAX_TOPICS 1024

/* Where block_connected events stood and stand, for the n_block of block.evictions. */
struct blocks {
	struct {
		uint64_t run, recorded, played;
	} last[1024];
	size_t n;
};

static bool topic_is(const struct record *record, const char *name)
{
	return record->topic_length == strlen(name) &&
	       !memcmp(record->topic, name, record->topic_length);
}

static struct played_topic *find_topic(struct playlist *list, const struct record *record)
{
	struct played_topic *topics, *topic;

	for (size_t i = 0; i < list->n_topics; i++) {
		topic = &list->topics[i];
		if (topic->length == record->topic_length &&
		    !memcmp(topic->name, record->topic, topic->length))
			return topic;
	}
	if (list->n_topics == MAX_TOPICS)
		return NULL;
	topics = realloc(list->topics, (list->n_topics + 1) * sizeof(*topics));
	if (!topics)
		return NULL;
	list->topics = topics;
	topic = &topics[list->n_topics++];
	*topic = (struct played_topic){ .name = record->topic,
					.length = record->topic_length,
					.socket = record->socket,
					.next = 1 };
	return topic;
}

static struct played *add(struct playlist *list, enum socket_id socket)
{
	size_t n = list->n[socket];

	if (!(n & (n - 1))) {
		struct played *played =
			realloc(list->played[socket], (n ? 2 * n : 1) * sizeof(*played));

		if (!played)
			return NULL;
		list->played[socket] = played;
	}
	list->n[socket]++;
	return &list->played[socket][n];
}

static uint64_t get_uint(const struct item *map, const char *name)
{
	struct cursor hint = item_elements(map);
	struct item value;

	decode_field(map, &hint, name, strlen(name), &value);
	return value.kind == ITEM_UINT ? value.number : 0;
}

static void follow_blocks(struct blocks *blocks, const struct record *record,
			  const struct message_body *message, struct played *played)
{
	struct cursor events = message->events;
	struct item event;
	uint64_t n_block;

	if (topic_is(record, BLOCK_CONNECTED))
		for (uint64_t i = 0; i < message->events.left; i++) {
			size_t place = blocks->n++ % 1024;

			blocks->last[place].run = message->run;
			blocks->last[place].recorded = message->n + i;
			blocks->last[place].played = played->n + i;
		}
	if (!topic_is(record, BLOCK_EVICTIONS) || !cursor_element(&events, &event))
		return;
	n_block = get_uint(&event, "n_block");
	for (size_t i = 0; i < 1024 && i < blocks->n; i++)
		if (blocks->last[i].run == message->run && blocks->last[i].recorded == n_block)
			played->n_block = blocks->last[i].played;
}

/* Recordings may come from strangers. */
static bool can_be_played(const struct record *record, const struct message_body *message,
			  const struct played_topic *topic)
{
	uint64_t missing = 0, after;

	if (topic->run == message->run) {
		if (message->seq < topic->recorded_next)
			return false; /* a duplicate */
		missing = message->seq - topic->recorded_next;
	}
	return topic->socket == record->socket && message->events.left <= UINT16_MAX &&
	       !__builtin_add_overflow(missing, message->lost, &missing) &&
	       !__builtin_add_overflow(missing, topic->next, &after) && after < UINT64_MAX / 2;
}

static int add_message(struct playlist *list, struct blocks *blocks, const struct record *record,
		       size_t offset, const struct message_body *message)
{
	struct cursor events = message->events;
	enum socket_id socket = record->socket;
	struct played *played, *before;
	struct played_topic *topic;
	struct item event;

	if (!topic_valid(record->topic, record->topic_length) ||
	    (record->topic_length >= 7 && !memcmp(record->topic, "bridge.", 7)))
		return -EBADMSG;
	topic = find_topic(list, record);
	if (!topic)
		return list->n_topics == MAX_TOPICS ? -EBADMSG : -ENOMEM;
	if (!can_be_played(record, message, topic))
		return -EBADMSG;
	played = add(list, socket);
	if (!played)
		return -ENOMEM;
	before = list->n[socket] > 1 ? played - 1 : NULL;
	*played = (struct played){ .offset = offset,
				   .events = message->events.left,
				   .lost = message->lost,
				   .seq = topic->next,
				   .n = before ? before->n + before->events : 1,
				   .time_us = before ? before->time_us : record->received_us,
				   .topic = (uint32_t)(topic - list->topics) };
	if (topic->run == message->run)
		played->lost += message->seq - topic->recorded_next;
	topic->run = message->run;
	topic->recorded_next = message->next;
	topic->next += played->lost + played->events;
	if (cursor_element(&events, &event))
		played->time_us = get_uint(&event, "time_us");
	follow_blocks(blocks, record, message, played);
	return 0;
}

static void set_label(struct playlist *list, const struct message_body *message)
{
	static const char suffix[] = "-play";
	size_t length = message->node_length, most = DECODE_MAX_LABEL - strlen(suffix);

	if (length > most)
		length = most;
	memcpy(list->label, message->node, length);
	strcpy(list->label + length, suffix);
}

int playlist_open(struct playlist *list, const char *path)
{
	struct blocks *blocks = calloc(1, sizeof(*blocks));
	size_t offset = 0, at = 0;
	char reason[DECODE_REASON];
	struct message_body message;
	struct record record;
	int err;

	*list = (struct playlist){ .run = clock_us() };
	if (!blocks)
		return -ENOMEM;
	err = recording_open(&list->recording, path);
	if (err) {
		free(blocks);
		return err;
	}
	while (!err && recording_next(&list->recording, &offset, &record, &list->torn)) {
		err = decode_message(record.body, record.body_length,
				     catalogue_find(record.topic, record.topic_length), &message,
				     reason);
		if (!err && !list->label[0])
			set_label(list, &message);
		if (!err)
			err = add_message(list, blocks, &record, at, &message);
		if (err == -EBADMSG) {
			list->malformed++;
			err = 0;
		}
		at = offset;
	}
	free(blocks);
	if (err)
		playlist_close(list);
	return err;
}

void playlist_close(struct playlist *list)
{
	recording_close(&list->recording);
	for (int i = 0; i < N_SOCKETS; i++)
		free(list->played[i]);
	free(list->topics);
}

static const uint8_t *skip(const uint8_t *at, uint32_t n)
{
	while (n--)
		at = decode_skip(at);
	return at;
}

/* block.evictions with another n_block. */
static void write_evictions(msgpack_sbuffer *body, const struct item *event, uint64_t n_block)
{
	const uint8_t *at = event->data;
	msgpack_packer packer;
	struct item key;

	msgpack_packer_init(&packer, body, encode_write);
	msgpack_pack_map(&packer, event->length);
	for (uint32_t i = 0; i < event->length; i++) {
		const uint8_t *value = decode_item(at, &key), *end = decode_skip(value);

		encode_write(body, (const char *)at, (size_t)(value - at));
		if (!item_is(&key, "n_block"))
			encode_write(body, (const char *)value, (size_t)(end - value));
		else if (n_block)
			msgpack_pack_uint64(&packer, n_block);
		else
			msgpack_pack_nil(&packer);
		at = end;
	}
}

void playlist_encode(const struct playlist *list, const struct played *played,
		     msgpack_sbuffer *body)
{
	size_t offset = played->offset, torn, place;
	char reason[DECODE_REASON];
	struct message_body message;
	struct record record;
	struct item event;

	msgpack_sbuffer_init(body);
	/* Both have succeeded before. */
	if (!recording_next(&list->recording, &offset, &record, &torn) ||
	    decode_message(record.body, record.body_length, NULL, &message, reason))
		return;
	place = encode_message_begin(body, list->label, list->run, (uint32_t)message.pid, played->n,
				     played->seq, played->lost);
	if (topic_is(&record, BLOCK_EVICTIONS)) {
		while (cursor_element(&message.events, &event))
			write_evictions(body, &event, played->n_block);
	} else {
		const uint8_t *end = skip(message.events.at, message.events.left);

		encode_write(body, (const char *)message.events.at,
			     (size_t)(end - message.events.at));
	}
	encode_message_end(body, place, played->events);
}
