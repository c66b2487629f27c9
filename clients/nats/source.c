/* See source.h. */
#include <errno.h>
#include <inttypes.h>
#include <msgpack.h>
#include <stdio.h>
#include <string.h>

#include "../c/command/command.h"
#include "source.h"
#include "stream.h"

#define SOON_US 3e6
#define MAX_DOUBTS 10 /* each takes five seconds and a bit */

static struct coretap *open_tap(const struct source_options *options, int *err)
{
	struct coretap *tap = NULL;

	*err = coretap_open(options->address, &tap);
	if (!*err && options->curve_server)
		*err = coretap_set_curve(tap, options->curve_server, options->curve_secret);
	if (!*err)
		*err = coretap_set_memory(tap, options->memory);
	if (!*err)
		return tap;
	complain("%s: %s", options->address, coretap_strerror(*err));
	coretap_close(tap);
	return NULL;
}

int source_open(struct source *source, const struct source_options *options)
{
	int err;

	*source = (struct source){ .options = *options };
	source->watch = open_tap(options, &err);
	if (!source->watch)
		return err;
	err = coretap_set_replay(source->watch, 0);
	if (!err)
		err = coretap_subscribe(source->watch, TOPIC_STATUS);
	if (!err && coretap_fd(source->watch) < 0)
		err = coretap_fd(source->watch);
	if (err)
		complain("%s: %s", options->address, coretap_strerror(err));
	return err;
}

void source_end(struct source *source)
{
	coretap_close(source->tap);
	source->tap = NULL;
	source->frame = NULL;
}

void source_close(struct source *source)
{
	source_end(source);
	coretap_close(source->watch);
	position_clear(&source->stored);
}

/* ---- reading ---- */

static int subscribe(struct source *source)
{
	const struct source_options *options = &source->options;
	int err = coretap_subscribe(source->tap, TOPIC_STATUS);

	if (!err && !options->n_topics)
		err = coretap_subscribe(source->tap, "");
	for (size_t i = 0; i < options->n_topics && !err; i++)
		err = coretap_subscribe(source->tap, options->topics[i]);
	return err;
}

/* Of the high socket a part only may be received, and then out of order between topics: what a
 * status vouches for is complete. Numbers tell what comes twice. */
static int restore(struct source *source, enum socket_id socket)
{
	const struct place *place = &source->stored.sockets[socket];
	bool whole = !source->options.n_topics || socket == SOCKET_LOW;
	int err;

	if (!place->run)
		return 0;
	err = coretap_restore(source->tap, socket, source->label, place->run,
			      whole ? place->n : place->sure);
	for (const struct place_topic *topic = place->topics; topic && !err; topic = topic->after)
		err = coretap_restore_topic(source->tap, socket, topic->name, topic->next);
	return err == -EINVAL ? 0 : err; /* a socket that is not wanted any more */
}

int source_begin(struct source *source)
{
	int err;

	source_end(source);
	source->tap = open_tap(&source->options, &err);
	if (!source->tap)
		return err;
	err = subscribe(source);
	if (!err)
		err = coretap_since(source->tap, 0);
	for (int i = 0; i < N_SOCKETS && !err; i++)
		err = restore(source, (enum socket_id)i);
	if (!err && coretap_fd(source->tap) < 0)
		err = coretap_fd(source->tap);
	source->hungry = true;
	source->begin_at = 0;
	memset(source->status_us, 0, sizeof(source->status_us));
	memset(source->status_seq, 0, sizeof(source->status_seq));
	if (err)
		complain("%s: %s", source->options.address, coretap_strerror(err));
	return err;
}

/* ---- what is published ---- */

/* "a.b": each part of a subject must have at least one character. */
static bool is_subject(const char *topic)
{
	size_t length = strlen(topic);

	return length && topic[0] != '.' && topic[length - 1] != '.' && !strstr(topic, "..");
}

static void start_draft(struct source *source, const struct coretap_event *event,
			struct draft *draft, const char *topic, uint64_t number)
{
	*draft = (struct draft){ .status = N_SOCKETS };
	snprintf(draft->subject, sizeof(draft->subject), SUBJECT_PREFIX "%s.%s", source->label,
		 topic);
	snprintf(draft->id, sizeof(draft->id), "%s.%" PRIu64 ".%s.%" PRIu64, source->label,
		 event->run, topic, number);
	draft->message.subject = draft->subject;
	draft->message.id = draft->id;
	draft->message.mark = (struct mark){
		.owner = source, .label = source->labels, .socket = event->socket, .run = event->run
	};
}

static void pack_text(msgpack_packer *packer, const char *key, const char *text)
{
	msgpack_pack_str_with_body(packer, key, strlen(key));
	msgpack_pack_str_with_body(packer, text, strlen(text));
}

static void pack_uint(msgpack_packer *packer, const char *key, uint64_t number)
{
	msgpack_pack_str_with_body(packer, key, strlen(key));
	msgpack_pack_uint64(packer, number);
}

static int add_bytes(void *arg, const char *data, size_t length)
{
	struct draft *draft = arg;
	size_t used = draft->message.length;

	draft->message.length += length;
	if (draft->message.length > sizeof(draft->body))
		return -1;
	memcpy(draft->body + used, data, length);
	return 0;
}

/* A notice has no body of the bridge: one is made. Returns whether it fits. */
static int draft_notice(struct source *source, const struct coretap_event *event,
			struct draft *draft, const char *kind, uint64_t first, uint64_t last,
			const char *reason)
{
	bool gap = !strcmp(kind, TOPIC_GAP);
	uint64_t now = clock_us();
	msgpack_packer packer;
	char topic[160];

	snprintf(topic, sizeof(topic), "%s%s", kind,
		 gap ? event->topic : socket_name(event->socket));
	start_draft(source, event, draft, topic, gap ? first : now);
	if (gap) {
		draft->message.mark.next = last + 1;
		snprintf(draft->message.mark.topic, sizeof(draft->message.mark.topic), "%s",
			 event->topic);
	}
	msgpack_packer_init(&packer, draft, add_bytes);
	msgpack_pack_map(&packer, gap ? 9 : 5);
	pack_uint(&packer, "v", WIRE_VERSION);
	pack_text(&packer, "node", source->label);
	pack_uint(&packer, "run", event->run);
	pack_text(&packer, "socket", socket_name(event->socket));
	pack_uint(&packer, "time_us", now);
	if (gap) {
		pack_text(&packer, "topic", event->topic);
		pack_uint(&packer, "first", first);
		pack_uint(&packer, "last", last);
		pack_text(&packer, "reason", reason);
	}
	draft->message.body = draft->body;
	return draft->message.length <= sizeof(draft->body) ? 1 : -ENOMEM;
}

static int draft_frame(struct source *source, const struct coretap_event *event, size_t limit,
		       struct draft *draft)
{
	const struct coretap_message *frame = source->frame;
	const struct message_body *body = frame->decoded;
	struct mark *mark = &draft->message.mark;

	source->frame = NULL;
	coretap_skip(source->tap);
	if (frame->body_length > limit) {
		complain("%s: a message of %s with %s bytes is larger than the server or the "
			 "stream takes: published as a gap; raise max_payload, or have coretapd "
			 "cut payloads (--payload)",
			 source->label, event->topic, grouped(frame->body_length));
		return draft_notice(source, event, draft, TOPIC_GAP, body->seq, body->next - 1,
				    "too large");
	}
	start_draft(source, event, draft, event->topic, body->seq);
	draft->message.body = frame->body;
	draft->message.length = frame->body_length;
	mark->n = body->n + (body->next - body->seq - body->lost) - 1;
	mark->next = body->next;
	snprintf(mark->topic, sizeof(mark->topic), "%s", event->topic);
	return 1;
}

/* Passes a status on, unless one has just been. */
static int draft_status(struct source *source, const struct coretap_event *event,
			struct draft *draft)
{
	const struct coretap_message *frame = event->frames;
	uint64_t last_us = source->status_us[event->socket];
	char topic[64];

	/* An earlier one comes from a clock that was set back. */
	if (event->kind == CORETAP_STATUS && event->time_us >= last_us &&
	    event->time_us - last_us < source->options.status_us)
		return 2;
	snprintf(topic, sizeof(topic), "%s.%s", event->topic, socket_name(event->socket));
	start_draft(source, event, draft, topic, event->time_us);
	/* The socket is part of the id only: the subject is the topic. */
	snprintf(draft->subject, sizeof(draft->subject), SUBJECT_PREFIX "%s.%s", source->label,
		 event->topic);
	draft->message.body = frame->body;
	draft->message.length = frame->body_length;
	draft->message.other_status = source->status_seq[!event->socket];
	draft->message.mark.n = event->n;
	draft->message.mark.status = true;
	draft->status = event->socket;
	draft->time_us = event->time_us;
	return 1;
}

void source_sent(struct source *source, const struct draft *draft, uint64_t sequence)
{
	source->last_sent = sequence;
	if (draft->status == N_SOCKETS)
		return;
	source->status_seq[draft->status] = sequence;
	source->status_us[draft->status] = draft->time_us;
}

static void tell_range(const struct source *source, const char *what,
		       const struct coretap_event *event)
{
	complain("%s: %s: %s %s, numbers %" PRIu64 " to %" PRIu64, source->label, event->topic,
		 grouped(event->last - event->first + 1), what, event->first, event->last);
}

/* Whether what is told as missing may still be in the journal: then it is asked for again, for a
 * minute, before the log is told that it is gone. */
static bool is_doubtful(struct source *source, const struct coretap_event *event)
{
	if (!coretap_replay_down(source->tap, event->socket) || source->doubts >= MAX_DOUBTS)
		return false;
	if (!source->doubts++)
		complain("%s: %s socket: replay does not answer; asking again", source->label,
			 socket_name(event->socket));
	return true;
}

static int draft_event(struct source *source, const struct coretap_event *event, size_t limit,
		       struct draft *draft)
{
	const char *socket = socket_name(event->socket);

	switch (event->kind) {
	case CORETAP_LOST:
		tell_range(source, "lost in the kernel, its ring was full", event);
		/* fall through */
	case CORETAP_EVENT:
		return source->frame ? draft_frame(source, event, limit, draft) : 2;
	case CORETAP_STATUS:
	case CORETAP_STOPPING:
		return draft_status(source, event, draft);
	case CORETAP_GAP:
		if (is_doubtful(source, event))
			return -EAGAIN;
		tell_range(source, "missing for good, the journal has them no more", event);
		return draft_notice(source, event, draft, TOPIC_GAP, event->first, event->last,
				    "not in the journal");
	case CORETAP_STALE:
		complain("%s: %s socket: nothing from coretapd for 3 s; waiting", source->label,
			 socket);
		return event->run ? draft_notice(source, event, draft, TOPIC_STALE, 0, 0, NULL) : 2;
	case CORETAP_ALIVE:
		complain("%s: %s socket: coretapd is back", source->label, socket);
		return 2;
	case CORETAP_NEW_RUN:
		if (is_doubtful(source, event))
			return -EAGAIN;
		complain("%s: %s socket: coretapd began a new run %" PRIu64 " (was %" PRIu64
			 "); what happened between is unknown",
			 source->label, socket, event->run, event->old_run);
		return 2;
	case CORETAP_OLD_RUN:
		complain("%s: %s socket: dropped messages of the old run %" PRIu64, source->label,
			 socket, event->old_run);
		return 2;
	case CORETAP_MALFORMED:
		complain("%s: %s socket: dropped a malformed message%s%s: %s", source->label,
			 socket, *event->topic ? " of " : "", event->topic, event->reason);
		return 2;
	case CORETAP_NO_REPLAY:
		if (is_doubtful(source, event))
			return -EAGAIN;
		complain("%s: %s socket: nothing from before now: %s", source->label, socket,
			 event->reason);
		return 2;
	}
	return 2;
}

static void observe(void *arg, const struct coretap_message *frame)
{
	struct source *source = arg;

	source->frame = frame;
}

int source_next(struct source *source, size_t limit, struct draft *draft)
{
	const struct coretap_event *event;
	int got;

	coretap_observe(source->tap, observe, source);
	got = coretap_next(source->tap, &event, 0);
	if (got <= 0) {
		source->hungry = got < 0;
		return got == -EINTR ? 2 : got;
	}
	if (*event->node && strcmp(event->node, source->label))
		return -ESTALE;
	/* A stranger at the address may call a topic what he likes. */
	if (event->kind <= CORETAP_LOST && !is_subject(event->topic)) {
		source->frame = NULL;
		complain("%s: %s: not a topic that a subject can have: passed over", source->label,
			 event->topic);
		return 2;
	}
	return draft_event(source, event, limit, draft);
}

void source_stored(const struct mark *mark)
{
	struct source *source = mark->owner;
	struct place *place = &source->stored.sockets[mark->socket];

	/* Of the node that was at the address before: nothing that this one's place depends on. */
	if (mark->label != source->labels || !place_enter(place, mark->run))
		return;
	if (mark->n > place->n)
		source->doubts = 0;
	place_reach(place, mark->n);
	if (mark->status && mark->n > place->sure)
		place->sure = mark->n;
	if (*mark->topic)
		place_topic(place, mark->topic, strlen(mark->topic), mark->next);
}

/* ---- how far behind ---- */

uint64_t source_behind(const struct source *source, enum socket_id socket)
{
	const struct outlook *outlook = &source->outlook[socket];
	const struct place *place = &source->stored.sockets[socket];

	return outlook->run == place->run && outlook->head > place->n ? outlook->head - place->n
								      : 0;
}

static bool is_wanted(const struct source *source, enum socket_id socket)
{
	return !source->options.n_topics || source->stored.sockets[socket].run;
}

/* The journal goes round: what it holds from `held` on shrinks towards what is not published yet.
 */
static void foresee(struct source *source, enum socket_id socket)
{
	struct outlook *outlook = &source->outlook[socket];
	const struct place *place = &source->stored.sockets[socket];
	uint64_t next = place->n + 1, span, left;
	double rate;

	if (place->run != outlook->run || outlook->held <= 1 || !is_wanted(source, socket) ||
	    outlook->head <= place->n) {
		outlook->level = 0;
		return;
	}
	if (next < outlook->held) {
		if (outlook->level < 2)
			complain("%s: %s socket: the journal is overrun: it has %s events no more "
				 "that "
				 "are not published, and more each second; those that do not wait "
				 "in memory are lost, and will be told in the stream",
				 source->label, socket_name(socket), grouped(outlook->held - next));
		outlook->level = 2;
		return;
	}
	span = outlook->head - outlook->held + 1;
	left = next - outlook->held;
	if (left > span / 4 * 3)
		outlook->level = 0;
	rate = outlook->at_us > outlook->before_us && outlook->held > outlook->held_before
		       ? (double)(outlook->held - outlook->held_before) /
				 (double)(outlook->at_us - outlook->before_us)
		       : 0;
	/* A quarter is left, or little time: statuses are a second apart. */
	if (outlook->level || left > span * 3 / 4 ||
	    (left > span / 4 && (rate <= 0 || (double)left / rate > SOON_US)))
		return;
	outlook->level = 1;
	complain("%s: %s socket: %s events are not published yet; the journal begins to lose them "
		 "in about %.0f s (a larger one: coretapd --journal-%s)",
		 source->label, socket_name(socket), grouped(outlook->head - place->n),
		 rate > 0 ? (double)left / rate / 1e6 : 60.0, socket_name(socket));
}

static bool take_status(struct source *source, const struct coretap_event *event)
{
	struct outlook *outlook = &source->outlook[event->socket];
	const char *replay;
	size_t length;
	bool other = strcmp(source->label, event->node);

	if (other) {
		position_clear(&source->stored);
		memset(source->outlook, 0, sizeof(source->outlook));
		source->labels++;
		snprintf(source->label, sizeof(source->label), "%s", event->node);
	}
	if (outlook->run != event->run)
		*outlook = (struct outlook){ .run = event->run };
	outlook->head = event->n;
	outlook->held_before = outlook->held;
	outlook->before_us = outlook->at_us;
	outlook->at_us = event->time_us;
	coretap_get_uint(event, "held", &outlook->held);
	if (coretap_get_text(event, "replay", &replay, &length) == CORETAP_SET && length == 3 &&
	    !memcmp(replay, "off", 3) && !source->told_off) {
		source->told_off = true;
		complain("%s: its coretapd keeps no journal: what passes while nothing can be "
			 "published is lost (coretapd --journal)",
			 source->label);
	}
	foresee(source, event->socket);
	return other;
}

bool source_watch(struct source *source)
{
	const struct coretap_event *event;
	bool other = false;

	while (coretap_next(source->watch, &event, 0) == 1) {
		if (event->kind == CORETAP_STATUS)
			other |= take_status(source, event);
		if (event->kind == CORETAP_STALE && !event->run && !source->told_absent) {
			source->told_absent = true;
			complain("no coretapd at %s yet, waiting", source->options.address);
		}
	}
	return other;
}
