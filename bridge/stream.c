/* See stream.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "stream.h"

int stream_init(struct stream *s, const char *node, uint64_t run, size_t n_topics)
{
	memset(s, 0, sizeof(*s));
	s->node = node;
	s->run = run;
	s->next_n = 1;
	s->n_topics = n_topics;
	s->next_seq = calloc(n_topics, sizeof(*s->next_seq));
	s->told_lost = calloc(n_topics, sizeof(*s->told_lost));
	if (!s->next_seq || !s->told_lost) {
		stream_free(s);
		return log_no_memory();
	}
	for (size_t i = 0; i < n_topics; i++)
		s->next_seq[i] = 1;
	return 0;
}

void stream_free(struct stream *s)
{
	stream_clear(s);
	msgpack_sbuffer_destroy(&s->open);
	free(s->messages);
	free(s->next_seq);
	free(s->told_lost);
	memset(s, 0, sizeof(*s));
}

static void message_open(struct stream *s, unsigned int topic, uint32_t pid, uint64_t lost)
{
	msgpack_sbuffer_init(&s->open);
	s->is_open = true;
	s->open_topic = topic;
	s->open_pid = pid;
	s->open_events = 0;
	s->open_n = s->next_n;
	s->open_time_us = 0;
	s->open_place = encode_message_begin(&s->open, s->node, s->run, pid, s->next_n,
					     s->next_seq[topic], lost);
	if (!encode_whole(&s->open))
		log_out_of_memory();
	s->next_seq[topic] += lost;
	s->told_lost[topic] += lost;
}

void stream_flush(struct stream *s)
{
	struct message *m;

	if (!s->is_open)
		return;
	if (s->n_messages == s->capacity) {
		size_t capacity = s->capacity ? 2 * s->capacity : 64;

		m = realloc(s->messages, capacity * sizeof(*m));
		if (!m)
			log_out_of_memory();
		s->messages = m;
		s->capacity = capacity;
	}
	encode_message_end(&s->open, s->open_place, s->open_events);
	m = &s->messages[s->n_messages++];
	s->notices = s->open_n == s->last_n ? s->notices + 1 : 0;
	s->last_n = s->open_n;
	m->topic = s->open_topic;
	m->events = s->open_events;
	m->n = s->open_n;
	m->notices = s->notices;
	m->time_us = s->open_time_us;
	m->len = s->open.size;
	m->data = msgpack_sbuffer_release(&s->open);
	s->is_open = false;
}

uint64_t stream_event(struct stream *s, unsigned int topic, const struct event_desc *event,
		      uint32_t pid, uint64_t lost, uint64_t time_us, const struct value *values)
{
	/* Counts read by different threads arrive out of order: never an unsigned difference. */
	uint64_t new_lost = lost > s->told_lost[topic] ? lost - s->told_lost[topic] : 0;
	size_t before;

	if (s->is_open && (s->open_topic != topic || s->open_pid != pid || new_lost ||
			   s->open_events == MESSAGE_MAX_EVENTS))
		stream_flush(s);
	if (!s->is_open)
		message_open(s, topic, pid, new_lost);
	before = s->open.size;
	if (!encode_event(&s->open, event, time_us, values))
		log_out_of_memory();
	if (s->open.size > MESSAGE_MAX_BYTES && s->open_events) {
		s->open.size = before;
		stream_flush(s);
		message_open(s, topic, pid, 0);
		if (!encode_event(&s->open, event, time_us, values))
			log_out_of_memory();
	}
	s->open_events++;
	if (time_us > s->open_time_us)
		s->open_time_us = time_us;
	s->next_seq[topic]++;
	return s->next_n++;
}

void stream_loss(struct stream *s, unsigned int topic, uint32_t pid, uint64_t lost)
{
	if (lost <= s->told_lost[topic])
		return;
	stream_flush(s);
	message_open(s, topic, pid, lost - s->told_lost[topic]);
	stream_flush(s);
}

uint64_t stream_finished(const struct stream *s)
{
	return (s->is_open ? s->open_n : s->next_n) - 1;
}

void stream_clear(struct stream *s)
{
	for (size_t i = 0; i < s->n_messages; i++)
		free(s->messages[i].data);
	s->n_messages = 0;
}
