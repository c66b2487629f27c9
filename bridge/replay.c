/* See replay.h. Requests come from strangers: every byte is checked before it means anything. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "../protocol/decode.h"
#include "log.h"
#include "replay.h"

#define MAX_ANSWER_BYTES ((size_t)1 << 20)
#define MAX_SCANNED 20000 /* messages looked at for one answer, whether they match or not */
#define MAX_ENVELOPE 4	  /* frames before the request: identity, and the empty one of a REQ */
#define MAX_TOPICS 64

struct replay {
	void *socket;
	size_t n_parts;
	zmq_msg_t *parts; /* topics and bodies of the answer being made */
	size_t capacity;
	struct replay_counters counters;
};

struct request {
	zmq_msg_t envelope[MAX_ENVELOPE];
	size_t n_envelope;
	const uint8_t *id; /* as it came */
	size_t id_len;
	struct item op, socket, run, after, since, topics, max;
};

int replay_open(struct replay **replay, struct publisher *publisher,
		const char *const endpoints[MAX_ENDPOINTS])
{
	struct replay *r = calloc(1, sizeof(*r));
	int one = 1, send_limit = 2, receive_limit = 16, linger = 0;
	int err;

	if (!r)
		return log_no_memory();
	err = publisher_socket(publisher, ZMQ_ROUTER, &r->socket);
	if (err) {
		free(r);
		return err;
	}
	/* A client that never reads costs two answers; one that is gone costs none. */
	if (zmq_setsockopt(r->socket, ZMQ_ROUTER_MANDATORY, &one, sizeof(one)) ||
	    zmq_setsockopt(r->socket, ZMQ_SNDHWM, &send_limit, sizeof(send_limit)) ||
	    zmq_setsockopt(r->socket, ZMQ_RCVHWM, &receive_limit, sizeof(receive_limit)) ||
	    zmq_setsockopt(r->socket, ZMQ_LINGER, &linger, sizeof(linger))) {
		err = -errno;
		log_error("replay: cannot be set up: %s", zmq_strerror(-err));
	}
	if (!err)
		err = publisher_bind(publisher, r->socket, endpoints);
	if (err) {
		replay_close(r);
		return err;
	}
	*replay = r;
	return 0;
}

void replay_close(struct replay *r)
{
	if (!r)
		return;
	zmq_close(r->socket);
	free(r->parts);
	free(r);
}

const struct replay_counters *replay_counters(const struct replay *r)
{
	return &r->counters;
}

int replay_fd(struct replay *r)
{
	int fd;
	size_t len = sizeof(fd);

	return zmq_getsockopt(r->socket, ZMQ_FD, &fd, &len) ? -errno : fd;
}

/* ---- requests ---- */

/* Takes all frames of one message. Returns 1 with the last one in body, 0 when nothing is there, -1
 * also with body, for one that has too many frames. */
static int request_receive(struct replay *r, struct request *request, zmq_msg_t *body)
{
	bool too_many = false;

	request->n_envelope = 0;
	for (;;) {
		zmq_msg_t frame;

		zmq_msg_init(&frame);
		while (zmq_msg_recv(&frame, r->socket, ZMQ_DONTWAIT) < 0) {
			if (errno == EINTR)
				continue;
			zmq_msg_close(&frame);
			return 0; /* whole messages come at once, so only the first frame can lack
				   */
		}
		if (!zmq_msg_more(&frame)) {
			zmq_msg_init(body);
			zmq_msg_move(body, &frame);
			zmq_msg_close(&frame);
			return too_many ? -1 : 1;
		}
		if (request->n_envelope == MAX_ENVELOPE) {
			too_many = true;
			zmq_msg_close(&frame);
			continue;
		}
		zmq_msg_init(&request->envelope[request->n_envelope]);
		zmq_msg_move(&request->envelope[request->n_envelope++], &frame);
		zmq_msg_close(&frame);
	}
}

/* Returns NULL, or what is wrong with the request. */
static const char *request_decode(struct request *q, const zmq_msg_t *body)
{
	static char reason[DECODE_REASON];
	const uint8_t *at = zmq_msg_data((zmq_msg_t *)body);
	struct item map, key, value;
	struct {
		const char *name;
		struct item *item;
	} keys[] = { { "op", &q->op },	     { "socket", &q->socket }, { "run", &q->run },
		     { "after", &q->after }, { "since", &q->since },   { "topics", &q->topics },
		     { "max", &q->max } };
	uint64_t version = 0;

	q->id = (const uint8_t *)"\xc0";
	q->id_len = 1;
	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
		keys[i].item->kind = ITEM_ABSENT;
	if (decode_check(at, zmq_msg_size((zmq_msg_t *)body), reason))
		return reason;
	at = decode_item(at, &map);
	if (map.kind != ITEM_MAP)
		return "not a map";
	for (uint32_t i = 0; i < map.length; i++) {
		const uint8_t *value_at = decode_item(at, &key);

		decode_item(value_at, &value);
		at = decode_skip(value_at);
		if (item_is(&key, "id")) {
			q->id = value_at;
			q->id_len = (size_t)(at - value_at);
		}
		if (item_is(&key, "v") && value.kind == ITEM_UINT)
			version = value.number;
		for (size_t k = 0; k < sizeof(keys) / sizeof(keys[0]); k++)
			if (item_is(&key, keys[k].name))
				*keys[k].item = value;
	}
	if (version != WIRE_VERSION)
		return "v must be 1";
	return q->op.kind == ITEM_TEXT ? NULL : "op must be a text";
}

/* ---- answers ---- */

static void pack_text(msgpack_packer *pk, const char *text)
{
	encode_text(pk->data, text, strlen(text));
}

/* Starts {v, id, ...} with further keys to come. */
static void answer_begin(msgpack_packer *pk, msgpack_sbuffer *out, const struct request *q,
			 size_t keys)
{
	msgpack_sbuffer_init(out);
	msgpack_packer_init(pk, out, encode_write);
	msgpack_pack_map(pk, keys + 2);
	pack_text(pk, "v");
	msgpack_pack_uint64(pk, WIRE_VERSION);
	pack_text(pk, "id");
	encode_write(out, (const char *)q->id, q->id_len);
}

/* A signal that no handler of ours is for may still interrupt: nothing was sent then. */
static bool part_send(struct replay *r, zmq_msg_t *part, int flags)
{
	while (zmq_msg_send(part, r->socket, flags | ZMQ_DONTWAIT) < 0)
		if (errno != EINTR)
			return false;
	return true;
}

/* Lets libzmq notice what clients have read since: it looks for that only now and then, and would
 * take a client that asks fast for one that does not read. */
static void reads_notice(struct replay *r)
{
	int events;
	size_t len = sizeof(events);

	zmq_getsockopt(r->socket, ZMQ_EVENTS, &events, &len);
}

/* Sends envelope, header and the parts that were collected. A client without room for it, or that
 * is gone, gets nothing: it asks again. */
static void answer_send(struct replay *r, struct request *q, const msgpack_sbuffer *header)
{
	bool sent = true;
	zmq_msg_t head;

	reads_notice(r);
	if (!encode_whole(header) || zmq_msg_init_size(&head, header->size))
		log_out_of_memory();
	memcpy(zmq_msg_data(&head), header->data, header->size);
	for (size_t i = 0; i < q->n_envelope && sent; i++)
		sent = part_send(r, &q->envelope[i], ZMQ_SNDMORE);
	if (sent)
		sent = part_send(r, &head, r->n_parts ? ZMQ_SNDMORE : 0);
	zmq_msg_close(&head);
	for (size_t i = 0; i < r->n_parts; i++) {
		if (sent)
			sent = part_send(r, &r->parts[i], i + 1 < r->n_parts ? ZMQ_SNDMORE : 0);
		zmq_msg_close(&r->parts[i]);
	}
	r->n_parts = 0;
}

static void answer_error(struct replay *r, struct request *q, const char *error)
{
	msgpack_sbuffer out;
	msgpack_packer pk;

	answer_begin(&pk, &out, q, 1);
	pack_text(&pk, "error");
	pack_text(&pk, error);
	answer_send(r, q, &out);
	msgpack_sbuffer_destroy(&out);
}

/* ---- hello ---- */

struct runs_pack {
	msgpack_sbuffer out;
	const struct bridge *bridge;
	size_t n;
	bool current_seen;
};

static void run_pack(void *arg, const struct journal_run_info *info)
{
	struct runs_pack *pack = arg;
	msgpack_packer packer, *pk = &packer;
	bool current = info->run == pack->bridge->run;

	pack->n++;
	pack->current_seen |= current;
	msgpack_packer_init(pk, &pack->out, encode_write);
	msgpack_pack_map(pk, 5);
	pack_text(pk, "run");
	msgpack_pack_uint64(pk, info->run);
	pack_text(pk, "ended");
	if (current)
		msgpack_pack_false(pk);
	else
		msgpack_pack_true(pk);
	for (enum socket_id id = 0; id < N_SOCKETS; id++) {
		pack_text(pk, socket_name(id));
		msgpack_pack_map(pk, 2);
		pack_text(pk, "first");
		msgpack_pack_uint64(pk, info->first[id]);
		pack_text(pk, "last");
		msgpack_pack_uint64(pk, info->last[id]);
	}
	pack_text(pk, "topics");
	if (current) {
		msgpack_sbuffer heads;

		msgpack_sbuffer_init(&heads);
		state_pack_heads(pack->bridge, &heads);
		if (!encode_whole(&heads))
			log_out_of_memory();
		encode_write(&pack->out, heads.data, heads.size);
		msgpack_sbuffer_destroy(&heads);
	} else if (info->heads) {
		encode_write(&pack->out, info->heads, info->heads_len);
	} else {
		msgpack_pack_map(pk, 0);
	}
}

static void pack_runs(msgpack_packer *pk, struct bridge *b)
{
	struct runs_pack pack = { .bridge = b };
	int err = b->journal ? journal_runs(b->journal, run_pack, &pack) : 0;

	if (err) {
		state_give_up(b, err);
		msgpack_sbuffer_clear(&pack.out);
		pack.n = 0;
		pack.current_seen = false;
	}
	/* The current run is told even when nothing of it is held. */
	if (!pack.current_seen)
		run_pack(&pack, &(struct journal_run_info){ .run = b->run });
	if (!encode_whole(&pack.out))
		log_out_of_memory();
	msgpack_pack_array(pk, pack.n);
	pk->callback(pk->data, pack.out.data, pack.out.size);
	msgpack_sbuffer_destroy(&pack.out);
}

static void pack_endpoints(msgpack_packer *pk, const struct bridge *b)
{
	static const char *const names[N_ENDPOINTS] = { "low", "high", "replay" };

	msgpack_pack_map(pk, N_ENDPOINTS);
	for (int e = 0; e < N_ENDPOINTS; e++) {
		size_t n = 0;

		while (n < MAX_ENDPOINTS && b->endpoints.endpoints[e][n])
			n++;
		pack_text(pk, names[e]);
		msgpack_pack_array(pk, n);
		for (size_t i = 0; i < n; i++)
			pack_text(pk, b->endpoints.endpoints[e][i]);
	}
}

static void pack_probes(msgpack_packer *pk, const struct bridge *b)
{
	const struct site_info *info = &b->tps.info[b->current * GROUP_SITES];
	size_t n_sites = b->tps.n_sites[b->current], n = 0;

	for (size_t i = 0; i < b->tps.n; i++)
		n += !(b->tps.table[i].event->flags & EVENT_DERIVED);
	msgpack_pack_map(pk, n);
	for (size_t i = 0; i < b->tps.n; i++) {
		const struct tracepoint *tp = &b->tps.table[i];
		size_t sites = 0;

		if (tp->event->flags & EVENT_DERIVED)
			continue;
		for (size_t s = 0; s < n_sites; s++)
			sites += info[s].tracepoint == i;
		pack_text(pk, tp->event->topic);
		msgpack_pack_map(pk, 2);
		pack_text(pk, "state");
		pack_text(pk, tracepoint_state_name(tp->state));
		pack_text(pk, "sites");
		msgpack_pack_array(pk, sites);
		for (size_t s = 0; s < n_sites; s++)
			if (info[s].tracepoint == i)
				pack_text(pk, info[s].args);
	}
}

static void answer_hello(struct replay *r, struct request *q, struct bridge *b)
{
	msgpack_sbuffer out;
	msgpack_packer pk;

	answer_begin(&pk, &out, q, 9);
	pack_text(&pk, "version");
	pack_text(&pk, CORETAP_VERSION);
	pack_text(&pk, "node");
	pack_text(&pk, b->label);
	pack_text(&pk, "run");
	msgpack_pack_uint64(&pk, b->run);
	pack_text(&pk, "runs");
	pack_runs(&pk, b);
	pack_text(&pk, "endpoints");
	pack_endpoints(&pk, b);
	pack_text(&pk, "probes");
	pack_probes(&pk, b);
	pack_text(&pk, "core");
	pack_text(&pk, b->tps.core[b->current]);
	pack_text(&pk, "binary");
	pack_text(&pk, b->binaries[b->current].path);
	pack_text(&pk, "build_id");
	pack_text(&pk, b->binaries[b->current].probes.build_id);
	answer_send(r, q, &out);
	msgpack_sbuffer_destroy(&out);
}

static void answer_catalogue(struct replay *r, struct request *q, struct bridge *b)
{
	const struct event_desc *events[MAX_PROBES];
	msgpack_sbuffer out;
	msgpack_packer pk;

	for (size_t i = 0; i < b->tps.n; i++)
		events[i] = b->tps.table[i].event;
	answer_begin(&pk, &out, q, 1);
	pack_text(&pk, "events");
	encode_catalogue(&out, events, b->tps.n);
	answer_send(r, q, &out);
	msgpack_sbuffer_destroy(&out);
}

/* ---- replay ---- */

struct collection {
	struct replay *replay;
	struct item topics[MAX_TOPICS];
	size_t n_topics;
	size_t bytes, limit, scanned;
	uint64_t after; /* where the client stands */
	uint64_t next;	/* the last position looked at */
	bool stopped;	/* before the end */
};

/* Whether the answer may end here. Loss notices take no position: an answer of nothing else leaves
 * the client where it stands, and the next one would be the same. */
static bool may_stop(const struct collection *c)
{
	return c->next > c->after;
}

static bool topic_wanted(const struct collection *c, const struct journal_message *m)
{
	for (size_t i = 0; i < c->n_topics; i++)
		if (m->topic_len >= c->topics[i].length &&
		    !memcmp(m->topic, c->topics[i].data, c->topics[i].length))
			return true;
	return !c->n_topics;
}

static bool part_add(struct replay *r, const void *data, size_t len)
{
	if (r->n_parts == r->capacity) {
		size_t capacity = r->capacity ? 2 * r->capacity : 256;
		zmq_msg_t *parts = realloc(r->parts, capacity * sizeof(*parts));

		if (!parts)
			return false;
		r->parts = parts;
		r->capacity = capacity;
	}
	if (zmq_msg_init_size(&r->parts[r->n_parts], len))
		return false;
	memcpy(zmq_msg_data(&r->parts[r->n_parts++]), data, len);
	return true;
}

static void parts_drop(struct replay *r)
{
	while (r->n_parts)
		zmq_msg_close(&r->parts[--r->n_parts]);
}

static bool collect(void *arg, const struct journal_message *m)
{
	struct collection *c = arg;
	struct replay *r = c->replay;

	if (topic_wanted(c, m)) {
		if ((r->n_parts && c->bytes + m->len > c->limit && may_stop(c)) ||
		    !part_add(r, m->topic, m->topic_len)) {
			c->stopped = true;
			return false;
		}
		if (!part_add(r, m->body, m->len)) {
			zmq_msg_close(&r->parts[--r->n_parts]);
			c->stopped = true;
			return false;
		}
		c->bytes += m->topic_len + m->len;
	}
	c->next = m->n + m->events - 1;
	if (++c->scanned >= MAX_SCANNED && may_stop(c)) {
		c->stopped = true;
		return false;
	}
	return true;
}

static const char *topics_decode(const struct request *q, struct collection *c)
{
	struct cursor cursor;
	struct item topic;

	if (q->topics.kind == ITEM_ABSENT || q->topics.kind == ITEM_NIL)
		return NULL;
	if (q->topics.kind != ITEM_ARRAY || q->topics.length > MAX_TOPICS)
		return "topics must be an array of at most 64 texts";
	cursor = item_elements(&q->topics);
	while (cursor_element(&cursor, &topic)) {
		if (topic.kind != ITEM_TEXT)
			return "topics must be an array of at most 64 texts";
		c->topics[c->n_topics++] = topic;
	}
	return NULL;
}

static void pack_optional(msgpack_packer *pk, const char *key, bool known, uint64_t number)
{
	pack_text(pk, key);
	if (known)
		msgpack_pack_uint64(pk, number);
	else
		msgpack_pack_nil(pk);
}

static const char *answer_replay(struct replay *r, struct request *q, struct bridge *b)
{
	struct collection c = { .replay = r, .limit = MAX_ANSWER_BYTES };
	uint64_t run = q->run.kind == ITEM_UINT ? q->run.number : 0;
	uint64_t after = 0, first, last, gone = 0;
	enum socket_id socket = SOCKET_LOW;
	const char *error = topics_decode(q, &c);
	msgpack_sbuffer out;
	msgpack_packer pk;
	int err;

	if (error)
		return error;
	if (q->max.kind == ITEM_UINT && q->max.number < c.limit)
		c.limit = (size_t)q->max.number;
	if (item_is(&q->socket, "high"))
		socket = SOCKET_HIGH;
	else if (!item_is(&q->socket, "low"))
		return "socket must be low or high";
	if (!b->journal)
		return "replay is off";
	if (q->after.kind == ITEM_UINT) {
		if (!run)
			return "after wants run";
		after = q->after.number;
	} else if (q->since.kind == ITEM_UINT) {
		/* Nothing so late yet: what comes next is the answer. */
		err = journal_since(b->journal, socket, q->since.number, &run, &first);
		if (err && err != -ENOENT)
			goto unreadable;
		if (err) {
			run = run ? run : b->run;
			after = run == b->run ? stream_finished(&b->streams[socket]) : UINT64_MAX;
		} else {
			after = first - 1;
		}
	} else {
		return "after or since must be a number";
	}
	err = journal_bounds(b->journal, socket, run, &first, &last);
	if (err && err != -ENOENT)
		goto unreadable;
	if (err) {
		if (run != b->run)
			return "run is not held";
		last = stream_finished(&b->streams[socket]);
		first = last + 1;
	}
	if (after > last)
		after = last;
	if (first > after + 1)
		gone = first - after - 1;
	c.next = c.after = after;
	err = journal_read(b->journal, socket, run, after + 1, collect, &c);
	if (err)
		goto unreadable;
	/* Without memory for a single message: the client asks again, as when it has no room. */
	if (c.stopped && !may_stop(&c)) {
		parts_drop(r);
		return NULL;
	}
	answer_begin(&pk, &out, q, 4);
	pack_text(&pk, "run");
	msgpack_pack_uint64(&pk, run);
	pack_optional(&pk, "next", c.stopped, c.next);
	pack_text(&pk, "head");
	msgpack_pack_uint64(&pk, last);
	pack_text(&pk, "gone");
	msgpack_pack_uint64(&pk, gone);
	answer_send(r, q, &out);
	msgpack_sbuffer_destroy(&out);
	r->counters.bytes += c.bytes;
	r->counters.gone += gone;
	return NULL;
unreadable:
	state_give_up(b, err);
	parts_drop(r);
	return "replay is off";
}

bool replay_serve(struct replay *r, struct bridge *b)
{
	struct request request;
	const char *error;
	zmq_msg_t body;
	int got = request_receive(r, &request, &body);

	if (got) {
		uint64_t *counter = &r->counters.error;

		error = request_decode(&request, &body);
		if (got < 0)
			error = "at most three frames before the request";
		if (!error && item_is(&request.op, "hello")) {
			answer_hello(r, &request, b);
			counter = &r->counters.hello;
		} else if (!error && item_is(&request.op, "catalogue")) {
			answer_catalogue(r, &request, b);
			counter = &r->counters.catalogue;
		} else if (!error && item_is(&request.op, "replay")) {
			error = answer_replay(r, &request, b);
			counter = error ? counter : &r->counters.replay;
		} else if (!error) {
			error = "unknown op";
		}
		(*counter)++;
		if (error)
			answer_error(r, &request, error);
	}
	if (got)
		zmq_msg_close(&body);
	for (size_t i = 0; i < request.n_envelope; i++)
		zmq_msg_close(&request.envelope[i]);
	return got != 0;
}
