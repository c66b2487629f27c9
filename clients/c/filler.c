/* See filler.h. Answers come from a stranger: each frame is checked before it means anything. */
#include <errno.h>
#include <msgpack.h>
#include <stdlib.h>
#include <string.h>

#include "filler.h"

/* Without an answer: a new connection, then later each time, for a long answer on a slow way. A
 * connection that breaks shows by itself. */
#define FIRST_RETRY_MS 1000
#define LAST_RETRY_MS 2500
#define BROKEN_MS 50	/* until a new connection, after one broke */
#define AWAY_MS 1000	/* this process itself was stopped, or busy elsewhere */
#define GIVE_UP_MS 5000 /* without any answer: what is missing is told */
#define MAX_REQUEST 3500
#define NO_ANSWER "replay does not answer"
/* Bytes of messages in one answer. Over a slow way it must be in time all the same: after a retry
 * less is asked for, and after each answer more again. */
#define MOST_BYTES ((uint64_t)1 << 20)
#define LEAST_BYTES ((uint64_t)16 << 10)
#define MAX_TOPICS 64 /* that one request may name */

enum phase {
	IDLE,
	ASK,   /* a request is to be sent */
	WAIT,  /* for the header of its answer */
	PARTS, /* topic and body in turn */
	PAGE_ENDED,
	RUN_ENDED,
	NEXT_RUN,
	GIVE_UP,
	DONE,
};

enum question { SINCE, AFTER, HELLO };

struct filler {
	struct transport *transport;
	enum socket_id socket;
	struct tracker *tracker;
	const struct filter *filter;

	enum phase phase;
	enum question question;
	struct missing missing;
	uint64_t run, after; /* where the walk is */
	uint64_t since;
	bool want_since;
	bool page_next; /* there is another page, after `after` */
	uint64_t head;
	uint64_t max;	/* bytes of messages to ask for */
	uint8_t *hello; /* copy of the answer, with the runs */
	size_t hello_length;

	uint64_t id;
	int64_t retry_at, retry_ms;
	int64_t waiting_since; /* for any answer */
	int64_t looked_at;
	bool down; /* it does not answer */
	char reason[DECODE_REASON];
};

struct filler *filler_new(struct transport *transport, enum socket_id socket,
			  struct tracker *tracker, const struct filter *filter)
{
	struct filler *filler = calloc(1, sizeof(*filler));

	if (!filler)
		return NULL;
	filler->transport = transport;
	filler->socket = socket;
	filler->tracker = tracker;
	filler->filter = filter;
	filler->max = MOST_BYTES;
	return filler;
}

void filler_free(struct filler *filler)
{
	if (!filler)
		return;
	free(filler->hello);
	free(filler);
}

void filler_want_since(struct filler *filler, uint64_t time_us)
{
	filler->want_since = true;
	filler->since = time_us;
	tracker_want_past(filler->tracker);
}

bool filler_down(const struct filler *filler)
{
	return filler->down;
}

int64_t filler_deadline(const struct filler *filler)
{
	if (filler->phase == WAIT || filler->down)
		return filler->retry_at;
	return filler->phase == IDLE ? INT64_MAX : 0;
}

/* ---- questions ---- */

static void pack_text(msgpack_packer *packer, const char *text)
{
	msgpack_pack_str_with_body(packer, text, strlen(text));
}

static void pack_uint(msgpack_packer *packer, const char *key, uint64_t number)
{
	pack_text(packer, key);
	msgpack_pack_uint64(packer, number);
}

/* Whether one request can name all that is subscribed to. If not, everything is asked for, and the
 * tracker passes over the rest. */
static bool names_fit(const struct filter *filter)
{
	size_t bytes = 0;

	for (size_t i = 0; i < filter->n_names; i++) {
		bytes += strlen(filter->names[i]) + 2;
		if (!*filter->names[i])
			return false;
	}
	return filter->n_names <= MAX_TOPICS && bytes <= MAX_REQUEST;
}

static void pack_replay(msgpack_packer *packer, const struct filler *filler)
{
	const struct filter *filter = filler->filter;

	pack_text(packer, "replay");
	pack_text(packer, "socket");
	pack_text(packer, socket_name(filler->socket));
	if (filler->question == SINCE) {
		pack_uint(packer, "since", filler->since);
	} else {
		pack_uint(packer, "run", filler->run);
		pack_uint(packer, "after", filler->after);
	}
	if (filler->max < MOST_BYTES)
		pack_uint(packer, "max", filler->max);
	if (!names_fit(filter))
		return;
	pack_text(packer, "topics");
	msgpack_pack_array(packer, filter->n_names);
	for (size_t i = 0; i < filter->n_names; i++)
		pack_text(packer, filter->names[i]);
}

/* What cannot be added for want of memory leaves no half of a request behind. */
static int request_write(void *arg, const char *data, size_t len)
{
	msgpack_sbuffer *buffer = arg;

	if (buffer->size != SIZE_MAX && !msgpack_sbuffer_write(buffer, data, len))
		return 0;
	free(buffer->data);
	*buffer = (msgpack_sbuffer){ .size = SIZE_MAX };
	return -1;
}

static int ask(struct filler *filler, int64_t now)
{
	bool hello = filler->question == HELLO;
	msgpack_sbuffer buffer;
	msgpack_packer packer;
	size_t keys = 3;
	int err;

	if (!hello)
		keys += (filler->question == SINCE ? 2 : 3) + names_fit(filler->filter) +
			(filler->max < MOST_BYTES);
	msgpack_sbuffer_init(&buffer);
	msgpack_packer_init(&packer, &buffer, request_write);
	msgpack_pack_map(&packer, keys);
	pack_uint(&packer, "v", WIRE_VERSION);
	pack_uint(&packer, "id", ++filler->id);
	pack_text(&packer, "op");
	if (hello)
		pack_text(&packer, "hello");
	else
		pack_replay(&packer, filler);
	err = buffer.size == SIZE_MAX
		      ? -ENOMEM
		      : transport_ask(filler->transport, filler->socket, buffer.data, buffer.size);
	msgpack_sbuffer_destroy(&buffer);
	filler->retry_at = now + filler->retry_ms;
	filler->retry_ms *= 2;
	if (filler->retry_ms > LAST_RETRY_MS)
		filler->retry_ms = LAST_RETRY_MS;
	filler->phase = WAIT;
	return err;
}

/* ---- answers ---- */

static void get(const struct item *map, const char *name, struct item *out)
{
	struct cursor hint = item_elements(map);

	decode_field(map, &hint, name, strlen(name), out);
}

/* A stranger's text, as far as a terminal may see it. */
static void copy_error(char reason[DECODE_REASON], const struct item *text)
{
	uint32_t length = text->length < DECODE_REASON ? text->length : DECODE_REASON - 1;

	memcpy(reason, text->data, length);
	reason[length] = '\0';
	for (uint32_t i = 0; i < length; i++)
		if (reason[i] < ' ' || reason[i] > '~')
			reason[i] = '?';
}

/* Reads the header of an answer; false when it is none, with a reason. */
static bool read_header(struct filler *filler, const struct frame *frame)
{
	struct item map, id, next, head, run, error, runs;

	if (decode_check(frame->data, frame->length, filler->reason))
		return false;
	decode_item(frame->data, &map);
	strcpy(filler->reason, "replay: not an answer");
	if (map.kind != ITEM_MAP)
		return false;
	get(&map, "id", &id);
	if (id.kind != ITEM_UINT || id.number != filler->id)
		return false;
	get(&map, "error", &error);
	filler->page_next = false;
	if (error.kind == ITEM_TEXT) {
		copy_error(filler->reason, &error);
		filler->head = 0;
		if (filler->question == SINCE)
			filler->phase = GIVE_UP;
		return true;
	}
	if (filler->question == HELLO) {
		get(&map, "runs", &runs);
		free(filler->hello);
		filler->hello = malloc(frame->length);
		filler->hello_length = frame->length;
		if (filler->hello)
			memcpy(filler->hello, frame->data, frame->length);
		return runs.kind == ITEM_ARRAY && filler->hello;
	}
	get(&map, "run", &run);
	get(&map, "next", &next);
	get(&map, "head", &head);
	if (run.kind != ITEM_UINT || head.kind != ITEM_UINT ||
	    (next.kind != ITEM_UINT && next.kind != ITEM_NIL))
		return false;
	filler->head = head.number;
	if (filler->question == SINCE) {
		filler->run = run.number;
		filler->after = 0;
		if (run.number)
			tracker_enter(filler->tracker, run.number, false);
	} else if (run.number != filler->run) {
		return false;
	}
	/* A cursor that stands still would never end. */
	filler->page_next = next.kind == ITEM_UINT && next.number > filler->after;
	if (filler->page_next)
		filler->after = next.number;
	return true;
}

/* An entry of hello's runs: false at the end, or when the list is not one. */
static bool next_run(struct cursor *runs, uint64_t *number, struct item *entry)
{
	struct item run;

	while (cursor_element(runs, entry)) {
		if (entry->kind != ITEM_MAP)
			continue;
		get(entry, "run", &run);
		if (run.kind != ITEM_UINT)
			continue;
		*number = run.number;
		return true;
	}
	return false;
}

static struct cursor hello_runs(const struct filler *filler)
{
	struct item map, runs;

	decode_item(filler->hello, &map);
	get(&map, "runs", &runs);
	return item_elements(&runs);
}

/* ---- the walk ---- */

void filler_begin(struct filler *filler, int64_t now)
{
	struct missing *missing = &filler->missing;

	tracker_missing(filler->tracker, missing);
	filler->waiting_since = filler->looked_at = now;
	filler->retry_ms = FIRST_RETRY_MS;
	filler->run = missing->run;
	filler->after = missing->after;
	filler->question = filler->want_since && !missing->run ? SINCE : AFTER;
	free(filler->hello);
	filler->hello = NULL;
	filler->phase = ASK;
	if (filler->down || missing->replay_off) {
		strcpy(filler->reason, filler->down ? NO_ANSWER : "replay is off");
		filler->phase = GIVE_UP;
	}
}

/* What the present run ended with, once hello has told. */
static int tell_end(struct filler *filler)
{
	struct cursor runs = hello_runs(filler), heads;
	struct item entry, topics;
	uint64_t number;

	filler->phase = NEXT_RUN;
	while (next_run(&runs, &number, &entry)) {
		if (number != filler->run)
			continue;
		get(&entry, "topics", &topics);
		if (topics.kind != ITEM_MAP)
			break;
		heads = item_elements(&topics);
		tracker_tell_heads(filler->tracker, &heads);
		return FILLER_TELLS;
	}
	return -EAGAIN;
}

/* Goes on with the next run that replay has, up to the message's. */
static int enter_next(struct filler *filler)
{
	struct cursor runs = hello_runs(filler);
	uint64_t number, best = 0;
	struct item entry;

	while (next_run(&runs, &number, &entry))
		if (number > filler->run && number <= filler->missing.message_run &&
		    (!best || number < best))
			best = number;
	if (!best) {
		filler->phase = DONE; /* it is entered as if joining */
		return -EAGAIN;
	}
	filler->run = best;
	filler->after = 0;
	filler->question = AFTER;
	filler->phase = ASK;
	tracker_enter(filler->tracker, best, true);
	return FILLER_TELLS;
}

static int end_of_page(struct filler *filler)
{
	if (filler->question == HELLO) {
		filler->phase = filler->hello ? RUN_ENDED : DONE;
		return -EAGAIN;
	}
	if (filler->page_next) {
		filler->question = AFTER;
		tracker_reach(filler->tracker, filler->after);
		if (filler->run != filler->missing.message_run ||
		    filler->after < filler->missing.before) {
			filler->phase = ASK;
			return -EAGAIN;
		}
	} else if (filler->head) {
		tracker_reach(filler->tracker, filler->head);
	}
	if (!filler->run || filler->run >= filler->missing.message_run) {
		filler->phase = DONE;
	} else if (filler->hello) {
		filler->phase = RUN_ENDED;
	} else {
		filler->question = HELLO;
		filler->phase = ASK;
	}
	return -EAGAIN;
}

/* A peer that does not speak this protocol is told, and not asked again for now. */
static int refuse(struct filler *filler)
{
	transport_hang_up(filler->transport, filler->socket);
	tracker_malformed(filler->tracker, "", 0, filler->reason);
	filler->phase = GIVE_UP;
	return FILLER_TELLS;
}

/* No answer yet: asks again, or gives up, when it is time. */
static int wait_on(struct filler *filler, int64_t now)
{
	/* Some of it counts: who looks but now and then does not wait for ever. */
	if (now - filler->looked_at > AWAY_MS)
		filler->waiting_since += now - filler->looked_at - AWAY_MS;
	filler->looked_at = now;
	if (now - filler->waiting_since >= GIVE_UP_MS) {
		transport_hang_up(filler->transport, filler->socket);
		strcpy(filler->reason, NO_ANSWER);
		filler->down = true;
		filler->retry_at = now;
		filler->phase = GIVE_UP;
		return -EAGAIN;
	}
	if (now < filler->retry_at)
		return FILLER_WAITS;
	filler->max = filler->max / 16 > LEAST_BYTES ? filler->max / 16 : LEAST_BYTES;
	filler->phase = ASK;
	return -EAGAIN;
}

/* The connection broke: soon a new one. */
static void reconnect(struct filler *filler, int64_t now)
{
	transport_hang_up(filler->transport, filler->socket);
	filler->retry_ms = FIRST_RETRY_MS;
	filler->retry_at = now + BROKEN_MS;
}

static int take_header(struct filler *filler, int64_t now)
{
	struct frame frame;
	bool more;
	int got = transport_answer(filler->transport, filler->socket, 0, &frame, &more);

	if (got == -ECONNRESET) {
		reconnect(filler, now);
		got = 0;
	}
	if (got <= 0)
		return got < 0 ? got : wait_on(filler, now);
	filler->waiting_since = filler->looked_at = now;
	filler->retry_ms = FIRST_RETRY_MS;
	if (filler->max < MOST_BYTES)
		filler->max *= 2;
	filler->phase = PARTS;
	if (!read_header(filler, &frame))
		return refuse(filler);
	if (!more && filler->phase == PARTS)
		return end_of_page(filler);
	return -EAGAIN;
}

/* The next message of a page. */
static int take_part(struct filler *filler)
{
	struct frame topic, body;
	bool more;
	int got = transport_answer(filler->transport, filler->socket, 0, &topic, &more);

	if (got <= 0)
		return got < 0 ? got : end_of_page(filler);
	if (!more) {
		strcpy(filler->reason, "replay: a topic without a body");
		return refuse(filler);
	}
	got = transport_answer(filler->transport, filler->socket, 1, &body, &more);
	if (got <= 0)
		return got < 0 ? got : end_of_page(filler);
	if (!more)
		filler->phase = PAGE_ENDED;
	got = tracker_take(filler->tracker, ORIGIN_REPLAY, topic.data, topic.length, body.data,
			   body.length);
	if (got == TRACKER_FOREIGN) {
		transport_hang_up(filler->transport, filler->socket);
		filler->phase = GIVE_UP;
	}
	return got < 0 ? got : FILLER_TELLS;
}

int filler_step(struct filler *filler, int64_t now)
{
	int step = -EAGAIN;

	while (step == -EAGAIN)
		switch (filler->phase) {
		case ASK:
			step = ask(filler, now) ? -ENOMEM : -EAGAIN;
			break;
		case WAIT:
			step = take_header(filler, now);
			break;
		case PARTS:
			step = take_part(filler);
			break;
		case PAGE_ENDED:
			step = end_of_page(filler);
			break;
		case RUN_ENDED:
			step = tell_end(filler);
			break;
		case NEXT_RUN:
			step = enter_next(filler);
			break;
		case GIVE_UP:
			filler->phase = DONE;
			if (filler->question == SINCE) {
				tracker_no_replay(filler->tracker, filler->reason);
				step = FILLER_TELLS;
			}
			break;
		case IDLE:
		case DONE:
			filler->phase = IDLE;
			filler->want_since = false;
			return FILLER_DONE;
		}
	return step;
}

void filler_idle(struct filler *filler, int64_t now)
{
	struct frame frame;
	bool more;
	int got;

	if (!filler->down)
		return;
	got = transport_answer(filler->transport, filler->socket, 0, &frame, &more);
	if (got == 1) {
		transport_hang_up(filler->transport, filler->socket);
		filler->down = false;
	} else if (got == -ECONNRESET) {
		reconnect(filler, now);
	} else if (now >= filler->retry_at) {
		filler->question = HELLO;
		filler->retry_ms = FIRST_RETRY_MS;
		ask(filler, now);
		filler->phase = IDLE;
	}
}
