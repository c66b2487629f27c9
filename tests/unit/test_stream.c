/* stream.c: what goes into one message, and the numbers that it carries. */
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../bridge/stream.h"
#include "check.h"

enum { ADDED, REMOVED, TOPICS };

static const struct field_desc text_field[] = { { .name = "text", .type = TYPE_TEXT } };
static const struct event_desc event = { .topic = "a.b", .fields = text_field, .n_fields = 1 };

static char text[100000];

static uint64_t add(struct stream *s, unsigned int topic, uint32_t pid, uint64_t lost, size_t len)
{
	struct value value = { .state = VALUE_SET, .bytes = { text, len } };

	return stream_event(s, topic, &event, pid, lost, 1000 + s->next_n, &value);
}

/* What the body of a finished message says. */
struct body {
	uint64_t v, run, pid, n, seq, lost, events;
	bool has_lost;
	char node[33];
};

static struct body decode(const struct message *m)
{
	struct body b = { 0 };
	msgpack_unpacked result;
	size_t at = 0;

	msgpack_unpacked_init(&result);
	CHECK(msgpack_unpack_next(&result, m->data, m->len, &at) == MSGPACK_UNPACK_SUCCESS);
	CHECK(at == m->len);
	CHECK(result.data.type == MSGPACK_OBJECT_MAP);
	for (uint32_t i = 0; i < result.data.via.map.size; i++) {
		const msgpack_object_kv *kv = &result.data.via.map.ptr[i];
		const struct {
			const char *name;
			uint64_t *number;
		} keys[] = { { "v", &b.v }, { "run", &b.run }, { "pid", &b.pid },
			     { "n", &b.n }, { "seq", &b.seq }, { "lost", &b.lost } };

		for (size_t k = 0; k < sizeof(keys) / sizeof(keys[0]); k++)
			if (kv->key.via.str.size == strlen(keys[k].name) &&
			    !memcmp(kv->key.via.str.ptr, keys[k].name, kv->key.via.str.size))
				*keys[k].number = kv->val.via.u64;
		b.has_lost |= kv->key.via.str.size == 4 && !memcmp(kv->key.via.str.ptr, "lost", 4);
		if (kv->val.type == MSGPACK_OBJECT_ARRAY)
			b.events = kv->val.via.array.size;
		if (kv->val.type == MSGPACK_OBJECT_STR && kv->val.via.str.size < sizeof(b.node))
			memcpy(b.node, kv->val.via.str.ptr, kv->val.via.str.size);
	}
	msgpack_unpacked_destroy(&result);
	return b;
}

static void expect(const struct stream *s, size_t index, unsigned int topic, uint64_t n,
		   uint32_t notices, uint64_t seq, uint64_t lost, uint64_t events)
{
	const struct message *m = &s->messages[index];
	struct body b;

	if (index >= s->n_messages) {
		printf("FAIL %s: message %zu is missing\n", test_name, index);
		failures++;
		return;
	}
	b = decode(m);
	if (m->topic != topic || m->n != n || m->notices != notices || m->events != events ||
	    b.n != n || b.seq != seq || b.lost != lost || b.events != events ||
	    b.has_lost != (lost > 0) || b.v != 1 || b.run != 77 || strcmp(b.node, "label")) {
		printf("FAIL %s: message %zu is topic %u, n %lu (%u notices), seq %lu, lost %lu, "
		       "%u events\n",
		       test_name, index, m->topic, m->n, m->notices, b.seq, b.lost, m->events);
		failures++;
	}
}

static struct stream open_stream(const char *name)
{
	struct stream s;

	test_name = name;
	assert(!stream_init(&s, "label", 77, TOPICS));
	return s;
}

static void test_runs_of_one_topic(void)
{
	struct stream s = open_stream("runs of one topic");

	CHECK(add(&s, ADDED, 5, 0, 3) == 1);
	CHECK(add(&s, ADDED, 5, 0, 3) == 2);
	CHECK(add(&s, REMOVED, 5, 0, 3) == 3); /* another topic */
	CHECK(add(&s, ADDED, 5, 0, 3) == 4);
	CHECK(add(&s, ADDED, 6, 0, 3) == 5); /* another process */
	CHECK(s.n_messages == 3);
	stream_flush(&s);
	stream_flush(&s); /* nothing is open */
	CHECK(s.n_messages == 4);
	expect(&s, 0, ADDED, 1, 0, 1, 0, 2);
	expect(&s, 1, REMOVED, 3, 0, 1, 0, 1);
	expect(&s, 2, ADDED, 4, 0, 3, 0, 1);
	expect(&s, 3, ADDED, 5, 0, 4, 0, 1);
	CHECK(decode(&s.messages[2]).pid == 5 && decode(&s.messages[3]).pid == 6);
	CHECK(s.messages[0].time_us == 1002 && s.messages[3].time_us == 1005);
	stream_clear(&s);
	CHECK(!s.n_messages);
	add(&s, REMOVED, 6, 0, 3);
	stream_flush(&s);
	expect(&s, 0, REMOVED, 6, 0, 2, 0, 1);
	stream_free(&s);
}

static void test_256_events(void)
{
	struct stream s = open_stream("256 events");

	for (int i = 0; i < 600; i++)
		add(&s, ADDED, 5, 0, 1);
	stream_flush(&s);
	CHECK(s.n_messages == 3);
	expect(&s, 0, ADDED, 1, 0, 1, 0, 256);
	expect(&s, 1, ADDED, 257, 0, 257, 0, 256);
	expect(&s, 2, ADDED, 513, 0, 513, 0, 88);
	stream_free(&s);
}

static void test_16_kib(void)
{
	struct stream s = open_stream("16 KiB");
	uint64_t events = 0;

	for (int i = 0; i < 100; i++)
		add(&s, ADDED, 5, 0, 1000);
	add(&s, ADDED, 5, 0, 50000); /* alone larger than a message may be */
	add(&s, ADDED, 5, 0, 16384);
	add(&s, ADDED, 5, 0, 10);
	add(&s, ADDED, 5, 0, 10);
	stream_flush(&s);
	for (size_t i = 0; i < s.n_messages; i++) {
		expect(&s, i, ADDED, events + 1, 0, events + 1, 0, s.messages[i].events);
		CHECK(s.messages[i].len <= MESSAGE_MAX_BYTES || s.messages[i].events == 1);
		/* None is cut shorter than it must be. */
		CHECK(i + 1 == s.n_messages || s.messages[i].events == 1 ||
		      s.messages[i].len + 1100 > MESSAGE_MAX_BYTES ||
		      s.messages[i + 1].len > 16000);
		events += s.messages[i].events;
	}
	CHECK(events == 104 && s.next_n == 105 && s.next_seq[ADDED] == 105);
	CHECK(s.messages[s.n_messages - 1].events == 2);
	CHECK(s.messages[s.n_messages - 2].events == 1 && s.messages[s.n_messages - 3].events == 1);
	stream_free(&s);
}

static void test_losses(void)
{
	struct stream s = open_stream("losses");

	add(&s, ADDED, 5, 0, 3);
	add(&s, ADDED, 5, 7, 3); /* 7 lost before it */
	add(&s, ADDED, 5, 5, 3); /* an older count, from another thread */
	add(&s, ADDED, 5, 7, 3);
	add(&s, REMOVED, 5, 2, 3); /* each topic has its own */
	add(&s, ADDED, 5, 8, 3);
	stream_flush(&s);
	CHECK(s.n_messages == 4);
	expect(&s, 0, ADDED, 1, 0, 1, 0, 1);
	expect(&s, 1, ADDED, 2, 0, 2, 7, 3);
	expect(&s, 2, REMOVED, 5, 0, 1, 2, 1);
	expect(&s, 3, ADDED, 6, 0, 12, 1, 1);
	CHECK(s.next_seq[ADDED] == 14 && s.next_seq[REMOVED] == 4 && s.next_n == 7);
	stream_free(&s);
}

static void test_notices(void)
{
	struct stream s = open_stream("loss notices");

	stream_loss(&s, ADDED, 5, 0); /* nothing to tell */
	CHECK(!s.n_messages);
	stream_loss(&s, ADDED, 5, 3);
	stream_loss(&s, ADDED, 5, 3);
	stream_loss(&s, ADDED, 5, 2);
	CHECK(s.n_messages == 1);
	add(&s, REMOVED, 5, 0, 3);
	add(&s, REMOVED, 5, 0, 3);
	stream_loss(&s, REMOVED, 5, 4); /* ends the open message */
	stream_loss(&s, ADDED, 5, 10);
	stream_clear(&s); /* the count of notices at one position outlives the drain */
	stream_loss(&s, ADDED, 5, 11);
	add(&s, ADDED, 5, 11, 3);
	add(&s, ADDED, 5, 10, 3);
	stream_flush(&s);
	CHECK(s.n_messages == 2);
	expect(&s, 0, ADDED, 3, 2, 11, 1, 0);
	/* Positions and notices are one key: it only grows. */
	expect(&s, 1, ADDED, 3, 3, 12, 0, 2);
	CHECK(s.next_n == 5 && s.next_seq[ADDED] == 14 && s.next_seq[REMOVED] == 7);
	stream_free(&s);

	s = open_stream("loss notices in order");
	add(&s, REMOVED, 5, 0, 3);
	stream_loss(&s, REMOVED, 5, 4);
	stream_loss(&s, ADDED, 5, 10);
	add(&s, REMOVED, 5, 4, 3);
	stream_flush(&s);
	expect(&s, 0, REMOVED, 1, 0, 1, 0, 1);
	expect(&s, 1, REMOVED, 2, 0, 2, 4, 0);
	expect(&s, 2, ADDED, 2, 1, 1, 10, 0);
	expect(&s, 3, REMOVED, 2, 2, 6, 0, 1);
	stream_free(&s);
}

/* Any sequence of events and losses obeys the one rule. */
static void test_random(void)
{
	struct stream s = open_stream("random sequences");
	uint64_t next[TOPICS] = { 1, 1 }, count[TOPICS] = { 0 }, told[TOPICS] = { 0 }, n = 1,
		 key = 0;
	uint64_t lost[TOPICS] = { 0 };

	srand(1);
	for (int i = 0; i < 20000; i++) {
		unsigned int topic = (unsigned int)rand() % TOPICS;

		if (rand() % 50 == 0)
			lost[topic] += (uint64_t)(rand() % 5);
		if (rand() % 30 == 0) {
			stream_loss(&s, topic, 5, lost[topic]);
		} else {
			add(&s, topic, 5 + (uint32_t)(rand() % 40 == 0),
			    lost[topic] - (lost[topic] ? (uint64_t)(rand() % 2) : 0),
			    (size_t)(rand() % 600));
			count[topic]++;
		}
		if (rand() % 100)
			continue;
		stream_flush(&s);
		for (size_t m = 0; m < s.n_messages; m++) {
			const struct message *message = &s.messages[m];
			struct body b = decode(message);
			uint64_t this_key = message->n << 20 | message->notices;

			CHECK(b.seq == next[message->topic] && b.n == n && message->n == n);
			CHECK(b.events || b.lost);
			CHECK(this_key > key);
			key = this_key;
			next[message->topic] = b.seq + b.lost + b.events;
			n += b.events;
			told[message->topic] += b.lost;
		}
		stream_clear(&s);
		for (int t = 0; t < TOPICS; t++) {
			CHECK(next[t] == s.next_seq[t]);
			CHECK(next[t] - 1 == count[t] + told[t]);
			CHECK(told[t] <= lost[t]);
		}
		CHECK(n == s.next_n);
	}
	stream_free(&s);
}

int main(void)
{
	memset(text, 'x', sizeof(text));
	test_runs_of_one_topic();
	test_256_events();
	test_16_kib();
	test_losses();
	test_notices();
	test_random();
	return failures ? 1 : 0;
}
