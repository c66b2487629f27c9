/* See player.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "../../../protocol/encode.h"
#include "player.h"

#define MAX_REQUEST 4096
#define MAX_ANSWER ((size_t)1 << 20)
#define MAX_TOPICS 64

struct player {
	struct playlist *list;
	void *context;
	void *sockets[N_SOCKETS + 1]; /* the last is replay */
	unsigned int port;
};

int player_open(struct player **out, struct playlist *list, unsigned int port)
{
	struct player *player = calloc(1, sizeof(*player));
	int backlog = 16384, linger = 1000, answers = 2;
	int64_t max_request = MAX_REQUEST;
	int err = 0;

	if (!player)
		return -ENOMEM;
	player->list = list;
	player->port = port;
	player->context = zmq_ctx_new();
	for (unsigned int i = 0; i <= N_SOCKETS && !err; i++) {
		bool replay = i == N_SOCKETS;
		char endpoint[64];
		void *socket = zmq_socket(player->context, replay ? ZMQ_ROUTER : ZMQ_PUB);

		if (!socket) {
			err = -errno;
			break;
		}
		player->sockets[i] = socket;
		snprintf(endpoint, sizeof(endpoint), "tcp://127.0.0.1:%u", port + i);
		if (zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof(linger)) ||
		    zmq_setsockopt(socket, ZMQ_SNDHWM, replay ? &answers : &backlog, sizeof(int)) ||
		    (replay &&
		     zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &max_request, sizeof(max_request))) ||
		    zmq_bind(socket, endpoint))
			err = -errno;
	}
	if (err) {
		player_close(player);
		return err;
	}
	*out = player;
	return 0;
}

void player_close(struct player *player)
{
	for (int i = 0; i <= N_SOCKETS; i++)
		if (player->sockets[i])
			zmq_close(player->sockets[i]);
	while (zmq_ctx_term(player->context) && errno == EINTR)
		;
	free(player);
}

/* A signal must not divide a message. */
static void send_part(void *socket, const void *data, size_t length, int flags)
{
	while (zmq_send(socket, data, length, flags) < 0 && errno == EINTR)
		;
}

static bool receive_part(zmq_msg_t *frame, void *socket, int flags)
{
	int got;

	while ((got = zmq_msg_recv(frame, socket, flags)) < 0 && errno == EINTR)
		;
	return got >= 0;
}

static void pass_part(zmq_msg_t *frame, void *socket, int flags)
{
	while (zmq_msg_send(frame, socket, flags) < 0 && errno == EINTR)
		;
}

/* Without memory there is nothing to play with. */
static void demand(bool memory)
{
	if (memory)
		return;
	complain("out of memory");
	exit(EXIT_OTHER);
}

void player_publish(struct player *player, enum socket_id socket)
{
	struct playlist *list = player->list;
	const struct played *played = &list->played[socket][list->n_played[socket]];
	struct played_topic *topic = &list->topics[played->topic];
	msgpack_sbuffer body;

	playlist_encode(list, played, &body);
	demand(body.data);
	send_part(player->sockets[socket], topic->name, topic->length, ZMQ_SNDMORE);
	send_part(player->sockets[socket], body.data, body.size, 0);
	msgpack_sbuffer_destroy(&body);
	topic->head = played->seq + played->lost + played->events - 1;
	topic->lost += played->lost;
	list->n_played[socket]++;
}

/* Last position that was published, 0 = none. */
static uint64_t last_position(const struct playlist *list, enum socket_id socket)
{
	const struct played *last;

	if (!list->n_played[socket])
		return 0;
	last = &list->played[socket][list->n_played[socket] - 1];
	return last->n + last->events - 1;
}

void player_status(struct player *player, const char *topic)
{
	const struct playlist *list = player->list;
	struct topic_status *topics = calloc(list->n_topics + 1, sizeof(*topics));
	char(*names)[256] = calloc(list->n_topics + 1, sizeof(*names));

	demand(topics && names);
	for (int id = 0; id < N_SOCKETS; id++) {
		struct bridge_status status = { .node = list->label,
						.run = list->run,
						.socket = (enum socket_id)id,
						.time_us = clock_us(),
						.n = last_position(list, (enum socket_id)id),
						.held = 1,
						.replay = "ok",
						.topics = topics };
		msgpack_sbuffer body;

		for (size_t i = 0; i < list->n_topics; i++) {
			const struct played_topic *t = &list->topics[i];

			if (t->socket != (enum socket_id)id)
				continue;
			snprintf(names[i], sizeof(names[i]), "%.*s", (int)t->length, t->name);
			topics[status.n_topics++] =
				(struct topic_status){ .topic = names[i],
						       .head = t->head,
						       .fired = t->head,
						       .submitted = t->head - t->lost,
						       .lost = t->lost };
		}
		msgpack_sbuffer_init(&body);
		encode_status(&body, &status);
		demand(encode_whole(&body));
		send_part(player->sockets[id], topic, strlen(topic), ZMQ_SNDMORE);
		send_part(player->sockets[id], body.data, body.size, 0);
		msgpack_sbuffer_destroy(&body);
	}
	free(topics);
	free(names);
}

/* ---- replay ---- */

struct request {
	struct item map;
	const uint8_t *id;
	size_t id_length;
};

static void get(const struct request *request, const char *name, struct item *out)
{
	struct cursor hint = item_elements(&request->map);

	decode_field(&request->map, &hint, name, strlen(name), out);
}

static void pack_text(msgpack_packer *packer, const char *text)
{
	msgpack_pack_str_with_body(packer, text, strlen(text));
}

static void pack_uint(msgpack_packer *packer, const char *key, uint64_t number)
{
	pack_text(packer, key);
	msgpack_pack_uint64(packer, number);
}

static void pack_pair(msgpack_packer *packer, const char *key, const char *text)
{
	pack_text(packer, key);
	pack_text(packer, text);
}

static void begin(msgpack_packer *packer, msgpack_sbuffer *out, const struct request *request,
		  size_t keys)
{
	msgpack_packer_init(packer, out, encode_write);
	msgpack_pack_map(packer, keys + 2);
	pack_uint(packer, "v", WIRE_VERSION);
	pack_text(packer, "id");
	encode_write(out, (const char *)request->id, request->id_length);
}

static void answer_hello(const struct player *player, const struct request *request,
			 msgpack_sbuffer *out)
{
	static const char *const names[] = { "low", "high", "replay" };
	const struct playlist *list = player->list;
	msgpack_packer packer;

	begin(&packer, out, request, 9);
	pack_pair(&packer, "version", CORETAP_VERSION);
	pack_pair(&packer, "node", list->label);
	pack_uint(&packer, "run", list->run);
	pack_text(&packer, "runs");
	msgpack_pack_array(&packer, 1);
	msgpack_pack_map(&packer, 5);
	pack_uint(&packer, "run", list->run);
	pack_text(&packer, "ended");
	msgpack_pack_false(&packer);
	for (int i = 0; i < N_SOCKETS; i++) {
		uint64_t last = last_position(list, (enum socket_id)i);

		pack_text(&packer, socket_name((enum socket_id)i));
		msgpack_pack_map(&packer, 2);
		pack_uint(&packer, "first", last > 0);
		pack_uint(&packer, "last", last);
	}
	pack_text(&packer, "topics");
	msgpack_pack_map(&packer, list->n_topics);
	for (size_t i = 0; i < list->n_topics; i++) {
		msgpack_pack_str_with_body(&packer, list->topics[i].name, list->topics[i].length);
		msgpack_pack_uint64(&packer, list->topics[i].head);
	}
	pack_text(&packer, "endpoints");
	msgpack_pack_map(&packer, 3);
	for (unsigned int i = 0; i < 3; i++) {
		char endpoint[64];

		snprintf(endpoint, sizeof(endpoint), "tcp://127.0.0.1:%u", player->port + i);
		pack_text(&packer, names[i]);
		msgpack_pack_array(&packer, 1);
		pack_text(&packer, endpoint);
	}
	pack_text(&packer, "probes");
	msgpack_pack_map(&packer, 0);
	pack_pair(&packer, "core", "");
	pack_pair(&packer, "binary", "");
	pack_pair(&packer, "build_id", "");
}

static void answer_catalogue(const struct request *request, msgpack_sbuffer *out)
{
	const struct event_desc *events[128];
	size_t n;
	const struct event_desc *all = catalogue(&n);
	msgpack_packer packer;

	for (size_t i = 0; i < n && i < 128; i++)
		events[i] = &all[i];
	begin(&packer, out, request, 1);
	pack_text(&packer, "events");
	encode_catalogue(out, events, n);
}

static bool wanted(const struct item *topics, const struct played_topic *topic)
{
	struct cursor names = item_elements(topics);
	struct item name;

	if (topics->kind != ITEM_ARRAY)
		return true;
	while (cursor_element(&names, &name))
		if (name.kind == ITEM_TEXT && name.length <= topic->length &&
		    !memcmp(name.data, topic->name, name.length))
			return true;
	return false;
}

/* The first published message with events after a position, or that tells a loss there. */
static size_t find_after(const struct playlist *list, enum socket_id socket, uint64_t after)
{
	size_t low = 0, high = list->n_played[socket];

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		const struct played *played = &list->played[socket][middle];

		if (played->n + played->events - 1 > after ||
		    (!played->events && played->n > after))
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

static size_t find_since(const struct playlist *list, enum socket_id socket, uint64_t time_us)
{
	size_t i = 0;

	while (i < list->n_played[socket] && list->played[socket][i].time_us < time_us)
		i++;
	return i;
}

struct answer {
	msgpack_sbuffer header;
	zmq_msg_t *parts;
	size_t n_parts, bytes;
};

static void add_message(struct answer *answer, const struct playlist *list,
			const struct played *played)
{
	const struct played_topic *topic = &list->topics[played->topic];
	zmq_msg_t *parts = realloc(answer->parts, (answer->n_parts + 2) * sizeof(*parts));
	msgpack_sbuffer body;

	demand(parts);
	answer->parts = parts;
	playlist_encode(list, played, &body);
	demand(body.data && !zmq_msg_init_size(&parts[answer->n_parts], topic->length) &&
	       !zmq_msg_init_size(&parts[answer->n_parts + 1], body.size));
	memcpy(zmq_msg_data(&parts[answer->n_parts++]), topic->name, topic->length);
	memcpy(zmq_msg_data(&parts[answer->n_parts++]), body.data, body.size);
	answer->bytes += topic->length + body.size;
	msgpack_sbuffer_destroy(&body);
}

static const char *answer_replay(const struct player *player, const struct request *request,
				 struct answer *answer)
{
	const struct playlist *list = player->list;
	struct item name, run, after, since, topics;
	enum socket_id socket = SOCKET_LOW;
	msgpack_packer packer;
	size_t i;

	get(request, "socket", &name);
	get(request, "run", &run);
	get(request, "after", &after);
	get(request, "since", &since);
	get(request, "topics", &topics);
	if (item_is(&name, "high"))
		socket = SOCKET_HIGH;
	else if (!item_is(&name, "low"))
		return "socket must be low or high";
	if (topics.kind == ITEM_ARRAY && topics.length > MAX_TOPICS)
		return "topics must be an array of at most 64 texts";
	if (run.kind == ITEM_UINT && run.number != list->run)
		return "run is not held";
	if (after.kind == ITEM_UINT)
		i = find_after(list, socket, after.number);
	else if (since.kind == ITEM_UINT)
		i = find_since(list, socket, since.number);
	else
		return "after or since must be a number";
	for (; i < list->n_played[socket]; i++) {
		const struct played *played = &list->played[socket][i];

		if (!wanted(&topics, &list->topics[played->topic]))
			continue;
		if (answer->bytes >= MAX_ANSWER)
			break;
		add_message(answer, list, played);
	}
	begin(&packer, &answer->header, request, 4);
	pack_uint(&packer, "run", list->run);
	pack_text(&packer, "next");
	if (i < list->n_played[socket] && i)
		msgpack_pack_uint64(&packer, list->played[socket][i].n - 1);
	else
		msgpack_pack_nil(&packer);
	pack_uint(&packer, "head", last_position(list, socket));
	pack_uint(&packer, "gone", 0);
	return NULL;
}

static const char *make_answer(const struct player *player, struct request *request,
			       const zmq_msg_t *frame, struct answer *answer)
{
	static char reason[DECODE_REASON];
	const uint8_t *at = zmq_msg_data((zmq_msg_t *)frame);
	struct item key, op, version;

	request->id = (const uint8_t *)"\xc0";
	request->id_length = 1;
	if (decode_check(at, zmq_msg_size((zmq_msg_t *)frame), reason))
		return reason;
	at = decode_item(at, &request->map);
	if (request->map.kind != ITEM_MAP)
		return "not a map";
	for (uint32_t i = 0; i < request->map.length; i++) {
		const uint8_t *value = decode_item(at, &key);

		at = decode_skip(value);
		if (item_is(&key, "id")) {
			request->id = value;
			request->id_length = (size_t)(at - value);
		}
	}
	get(request, "v", &version);
	get(request, "op", &op);
	if (version.kind != ITEM_UINT || version.number != WIRE_VERSION)
		return "v must be 1";
	if (item_is(&op, "hello"))
		answer_hello(player, request, &answer->header);
	else if (item_is(&op, "catalogue"))
		answer_catalogue(request, &answer->header);
	else if (item_is(&op, "replay"))
		return answer_replay(player, request, answer);
	else
		return "unknown op";
	return NULL;
}

/* One request. False when there is none. */
static bool serve(struct player *player)
{
	void *socket = player->sockets[N_SOCKETS];
	struct answer answer = { 0 };
	struct request request;
	zmq_msg_t frame;
	const char *error;

	zmq_msg_init(&frame);
	if (!receive_part(&frame, socket, ZMQ_DONTWAIT)) {
		zmq_msg_close(&frame);
		return false;
	}
	/* The envelope goes back as it came. */
	while (zmq_msg_more(&frame)) {
		pass_part(&frame, socket, ZMQ_SNDMORE | ZMQ_DONTWAIT);
		receive_part(&frame, socket, 0);
	}
	msgpack_sbuffer_init(&answer.header);
	error = make_answer(player, &request, &frame, &answer);
	if (error) {
		msgpack_packer packer;

		begin(&packer, &answer.header, &request, 1);
		pack_pair(&packer, "error", error);
	}
	demand(encode_whole(&answer.header));
	send_part(socket, answer.header.data, answer.header.size,
		  ZMQ_DONTWAIT | (answer.n_parts ? ZMQ_SNDMORE : 0));
	for (size_t i = 0; i < answer.n_parts; i++) {
		pass_part(&answer.parts[i], socket,
			  ZMQ_DONTWAIT | (i + 1 < answer.n_parts ? ZMQ_SNDMORE : 0));
		zmq_msg_close(&answer.parts[i]);
	}
	free(answer.parts);
	msgpack_sbuffer_destroy(&answer.header);
	zmq_msg_close(&frame);
	return true;
}

bool player_serve(struct player *player, uint64_t until_us, int stop_fd)
{
	for (;;) {
		zmq_pollitem_t items[] = {
			{ .socket = player->sockets[N_SOCKETS], .events = ZMQ_POLLIN },
			{ .fd = stop_fd, .events = ZMQ_POLLIN },
		};
		uint64_t now = steady_us();

		zmq_poll(items, 2, until_us > now ? (long)((until_us - now + 999) / 1000) : 0);
		if (items[1].revents)
			return false;
		if (!serve(player) && steady_us() >= until_us)
			return true;
	}
}
