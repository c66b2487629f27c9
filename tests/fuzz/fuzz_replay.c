/* Requests to the replay socket, from strangers: each gets one answer that is of the contract.
 * First byte: frames in front of the request; the rest is the request. */
#include "fuzz.h"

#include "../../bridge/log.h"
#include "../../bridge/replay.h"
#include "../../protocol/decode.h"

#include <errno.h>
#include <zmq.h>

#define RUN 1700000000000000

static struct bridge bridge;
static struct declarations declarations;
static void *client, *asked;

static bool select_all(const void *arg, const struct event_desc *event)
{
	(void)arg;
	(void)event;
	return true;
}

/* A few messages of two runs, each second one with a loss. */
static void journal_fill(uint64_t run, bool ended)
{
	static const uint8_t hash[32] = { 1, 2, 3 };
	const struct journal_entry entry = {
		.run = run,
		.streams = { &bridge.streams[SOCKET_LOW], &bridge.streams[SOCKET_HIGH] },
		.topic = bridge_topic,
		.arg = &bridge,
		.state = hash,
		.state_size = sizeof(hash),
	};
	msgpack_sbuffer heads;

	for (enum socket_id id = 0; id < N_SOCKETS; id++)
		MUST(!stream_init(&bridge.streams[id], "fuzz", run, bridge.tps.n));
	for (unsigned int i = 0; i < 3 * bridge.tps.n; i++) {
		unsigned int topic = i % (unsigned int)bridge.tps.n;
		const struct event_desc *event = bridge.tps.table[topic].event;
		struct value values[MAX_FIELDS] = { { 0 } };

		for (unsigned int f = 0; f < event->n_fields; f++)
			values[f].state = f % 3 ? VALUE_NIL : VALUE_ABSENT;
		for (unsigned int k = 0; k <= i % 4; k++)
			stream_event(&bridge.streams[event->socket], topic, event, 42, i / 20 * 3,
				     1000000 + i, values);
	}
	for (enum socket_id id = 0; id < N_SOCKETS; id++)
		stream_flush(&bridge.streams[id]);
	MUST(!journal_write(bridge.journal, &entry));
	msgpack_sbuffer_init(&heads);
	state_pack_heads(&bridge, &heads);
	MUST(!journal_run(bridge.journal, run, heads.data, heads.size));
	msgpack_sbuffer_destroy(&heads);
	for (enum socket_id id = 0; id < N_SOCKETS; id++) {
		stream_clear(&bridge.streams[id]);
		if (ended)
			stream_free(&bridge.streams[id]);
	}
}

static void journal_make(void)
{
	const size_t bytes[N_SOCKETS] = { (size_t)1 << 20, (size_t)1 << 20 };
	char directory[] = "/tmp/coretap-fuzz-XXXXXX", command[64];
	bool halved;

	MUST(mkdtemp(directory));
	MUST(!journal_open(&bridge.journal, directory, bytes, 80, &halved));
	journal_fill(RUN, true);
	bridge.run = RUN + 5;
	journal_fill(RUN + 5, false);
	/* The map stays; nothing is left behind however this ends. */
	snprintf(command, sizeof(command), "rm -r %s", directory);
	MUST(!system(command));
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	static char endpoint[3][64];
	char directory[] = "/tmp/coretap-fuzz-XXXXXX";
	int timeout = 30000, linger = 0;
	struct publisher_options *o = &bridge.endpoints;

	(void)argc;
	(void)argv;
	log_level((enum log_level)0);
	declarations_init(&declarations);
	MUST(!tracepoints_init(&bridge.tps, &declarations, select_all, NULL));
	strcpy(bridge.label, "fuzz");
	journal_make();
	MUST(mkdtemp(directory));
	for (int e = 0; e < N_ENDPOINTS; e++) {
		snprintf(endpoint[e], sizeof(endpoint[e]), "ipc://%s/%d", directory, e);
		o->endpoints[e][0] = endpoint[e];
	}
	o->ipc_mode = 0600;
	o->user = &bridge.user;
	o->ipc_owner = (uid_t)-1;
	o->ipc_group = (gid_t)-1;
	o->subscriber_memory = 1 << 20;
	MUST(!publisher_open(&bridge.publisher, o));
	MUST(!replay_open(&bridge.replay, bridge.publisher, o->endpoints[ENDPOINT_REPLAY]));
	asked = zmq_ctx_new();
	client = zmq_socket(asked, ZMQ_DEALER);
	zmq_setsockopt(client, ZMQ_RCVTIMEO, &timeout, sizeof(timeout));
	zmq_setsockopt(client, ZMQ_LINGER, &linger, sizeof(linger));
	MUST(!zmq_connect(client, endpoint[ENDPOINT_REPLAY]));
	LLVMFuzzerTestOneInput((const uint8_t *)"", 1); /* so it is connected */
	for (int e = 0; e < N_ENDPOINTS; e++)
		unlink(endpoint[e] + strlen("ipc://"));
	rmdir(directory);
	return 0;
}

/* The fuzzer has signals. */
static int receive(zmq_msg_t *frame)
{
	int n;

	do
		n = zmq_msg_recv(frame, client, 0);
	while (n < 0 && errno == EINTR);
	return n;
}

/* The value of a key, as its bytes stand; false when there is none. */
static bool find(const uint8_t *at, const char *name, const uint8_t **value, size_t *len)
{
	struct item map, key;
	bool found = false;

	at = decode_item(at, &map);
	for (uint32_t i = 0; map.kind == ITEM_MAP && i < map.length; i++) {
		const uint8_t *from = decode_item(at, &key);

		at = decode_skip(from);
		if (item_is(&key, name)) {
			*value = from;
			*len = (size_t)(at - from);
			found = true;
		}
	}
	return found;
}

static uint64_t number_of(const uint8_t *header, const char *name)
{
	const uint8_t *value;
	struct item item;
	size_t len;

	MUST(find(header, name, &value, &len));
	decode_item(value, &item);
	return item.kind == ITEM_UINT ? item.number : UINT64_MAX;
}

static void check_header(const uint8_t *header, size_t len, const uint8_t *request,
			 size_t request_len)
{
	const uint8_t *id = (const uint8_t *)"\xc0", *asked_id, *told;
	size_t id_len = 1, asked_len, told_len;
	char reason[DECODE_REASON];

	MUST(is_msgpack(header, len) && !decode_check(header, len, reason));
	MUST(number_of(header, "v") == 1);
	if (!decode_check(request, request_len, reason) &&
	    find(request, "id", &asked_id, &asked_len)) {
		id = asked_id;
		id_len = asked_len;
	}
	MUST(find(header, "id", &told, &told_len));
	MUST(told_len == id_len && !memcmp(told, id, id_len));
}

static void check_part(const zmq_msg_t *topic, const zmq_msg_t *body, uint64_t run, uint64_t *n)
{
	char reason[DECODE_REASON];
	struct message_body message;
	const struct event_desc *event =
		catalogue_find(zmq_msg_data((zmq_msg_t *)topic), zmq_msg_size(topic));

	MUST(event);
	MUST(!decode_message(zmq_msg_data((zmq_msg_t *)body), zmq_msg_size(body), event, &message,
			     reason));
	MUST(message.run == run && message.n >= *n);
	*n = message.n + message.events.left;
}

static void check_answer(const uint8_t *request, size_t request_len, unsigned int envelope)
{
	zmq_msg_t header, topic, body;
	const uint8_t *unused;
	uint64_t run, n = 0;
	size_t len;

	/* What stood in front of the request comes back. */
	for (unsigned int i = 0; i <= envelope; i++) {
		zmq_msg_init(&header);
		MUST(receive(&header) >= 0);
		MUST((i == envelope) || zmq_msg_more(&header));
		if (i < envelope) {
			MUST(zmq_msg_size(&header) == i);
			zmq_msg_close(&header);
		}
	}
	check_header(zmq_msg_data(&header), zmq_msg_size(&header), request, request_len);
	if (zmq_msg_more(&header)) {
		MUST(!find(zmq_msg_data(&header), "error", &unused, &len));
		run = number_of(zmq_msg_data(&header), "run");
		do {
			zmq_msg_init(&topic);
			zmq_msg_init(&body);
			MUST(receive(&topic) >= 0 && zmq_msg_more(&topic));
			MUST(receive(&body) >= 0);
			check_part(&topic, &body, run, &n);
			zmq_msg_close(&topic);
		} while (zmq_msg_more(&body) && !zmq_msg_close(&body));
		zmq_msg_close(&body);
	}
	zmq_msg_close(&header);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };
	unsigned int envelope = (unsigned int)take_number(&in, 1) % 6;
	zmq_pollitem_t arrived = { .fd = replay_fd(bridge.replay), .events = ZMQ_POLLIN };

	/* libzmq closes the connection of who sends more. */
	if (in.left > 4096)
		return 0;
	for (unsigned int i = 0; i < envelope; i++)
		MUST(zmq_send(client, "envelope", i, ZMQ_SNDMORE) >= 0);
	MUST(zmq_send(client, in.at, in.left, 0) >= 0);
	while (!replay_serve(bridge.replay, &bridge))
		zmq_poll(&arrived, 1, 2000);
	/* Of more than three frames in front three come back, before an error. */
	check_answer(in.at, in.left, envelope < 3 ? envelope : 3);
	return 0;
}
