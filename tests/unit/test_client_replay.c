/* libcoretap and replay: a scripted publisher, and a ROUTER that answers from a scripted journal.
 */
#include "client.h"

#include <pthread.h>
#include <sys/stat.h>

#define MAX_JOURNAL 4096

/* What replay has. Runs are RUN, RUN + 1, RUN + 2. */
struct journal {
	pthread_mutex_t lock;
	struct message messages[MAX_JOURNAL];
	int n;
	int page;	   /* messages in an answer */
	bool mute, off;	   /* gives no answer; says that it is off */
	const char *rogue; /* answers with these bytes */
	size_t rogue_length;
	uint64_t last_run; /* the current one */
	uint64_t heads[3]; /* of mempool.added, where the runs ended; 0 = unknown */
	unsigned int requests, hellos;
	char topics[256]; /* of the last request */
	void *socket;
	volatile bool ending;
	pthread_t thread;
};

static struct journal journal;

static void pack_body(msgpack_sbuffer *buffer, const struct message *message)
{
	msgpack_packer packer;

	msgpack_sbuffer_init(buffer);
	msgpack_packer_init(&packer, buffer, msgpack_sbuffer_write);
	msgpack_pack_map(&packer, message->lost ? 8 : 7);
	pack_uint(&packer, "v", 1);
	pack_text(&packer, "node");
	pack_text(&packer, message->node ? message->node : "host");
	pack_uint(&packer, "run", message->run ? message->run : RUN);
	pack_uint(&packer, "pid", 42);
	pack_uint(&packer, "n", message->n);
	pack_uint(&packer, "seq", message->seq);
	if (message->lost)
		pack_uint(&packer, "lost", message->lost);
	pack_text(&packer, "events");
	msgpack_pack_array(&packer, message->events);
	for (unsigned int i = 0; i < message->events; i++) {
		msgpack_pack_map(&packer, 1);
		pack_uint(&packer, "time_us", 1000 + message->n + i);
	}
}

static const msgpack_object *lookup(const msgpack_object *map, const char *name)
{
	for (uint32_t i = 0; i < map->via.map.size; i++) {
		const msgpack_object *key = &map->via.map.ptr[i].key;

		if (key->via.str.size == strlen(name) &&
		    !memcmp(key->via.str.ptr, name, strlen(name)))
			return &map->via.map.ptr[i].val;
	}
	return NULL;
}

static bool is(const msgpack_object *text, const char *word)
{
	return text && text->type == MSGPACK_OBJECT_STR && text->via.str.size == strlen(word) &&
	       !memcmp(text->via.str.ptr, word, strlen(word));
}

static bool asked_for(const msgpack_object *topics, const char *topic)
{
	if (!topics)
		return true;
	for (uint32_t i = 0; i < topics->via.array.size; i++) {
		const msgpack_object *name = &topics->via.array.ptr[i];

		if (!strncmp(topic, name->via.str.ptr, name->via.str.size))
			return true;
	}
	return false;
}

static void pack_hello(msgpack_packer *packer)
{
	pack_uint(packer, "run", journal.last_run);
	pack_text(packer, "runs");
	msgpack_pack_array(packer, journal.last_run - RUN + 1);
	for (uint64_t run = RUN; run <= journal.last_run; run++) {
		uint64_t head = journal.heads[run - RUN];

		msgpack_pack_map(packer, 2);
		pack_uint(packer, "run", run);
		pack_text(packer, "topics");
		msgpack_pack_map(packer, head ? 2 : 0);
		if (head) {
			pack_uint(packer, ADDED, head);
			pack_uint(packer, "utxocache.add", 99);
		}
	}
}

/* The header of a replay; the messages of the page get their numbers into chosen. */
static int pack_page(msgpack_packer *packer, const msgpack_object *request, int *chosen)
{
	const msgpack_object *run = lookup(request, "run"), *after = lookup(request, "after");
	const msgpack_object *since = lookup(request, "since"), *topics = lookup(request, "topics");
	uint64_t wanted = run ? run->via.u64 : RUN, position = after ? after->via.u64 : 0, head = 0;
	uint64_t next = 0;
	int n = 0;

	for (int i = 0; i < journal.n; i++) {
		const struct message *message = &journal.messages[i];
		uint64_t last = message->n + message->events - 1;

		if ((message->run ? message->run : RUN) != wanted)
			continue;
		head = last > head ? last : head;
		if (next || (since && 1000 + message->n < since->via.u64) ||
		    (!since && last <= position && !(!message->events && message->n > position)) ||
		    !asked_for(topics, message->topic))
			continue;
		if (n == journal.page) {
			next = message->n - 1;
			continue;
		}
		chosen[n++] = i;
	}
	pack_uint(packer, "run", wanted);
	pack_text(packer, "next");
	if (next)
		msgpack_pack_uint64(packer, next);
	else
		msgpack_pack_nil(packer);
	pack_uint(packer, "head", head);
	pack_uint(packer, "gone", 0);
	return n;
}

static void answer(const msgpack_object *request, void *socket)
{
	int chosen[MAX_JOURNAL], n = 0;
	msgpack_sbuffer header;
	msgpack_packer packer;

	msgpack_sbuffer_init(&header);
	msgpack_packer_init(&packer, &header, msgpack_sbuffer_write);
	if (is(lookup(request, "op"), "hello")) {
		journal.hellos++;
		msgpack_pack_map(&packer, 4);
	} else {
		const msgpack_object *topics = lookup(request, "topics");

		*journal.topics = '\0';
		for (uint32_t i = 0; topics && i < topics->via.array.size; i++) {
			const msgpack_object *name = &topics->via.array.ptr[i];

			strncat(journal.topics, name->via.str.ptr, name->via.str.size);
			strcat(journal.topics, " ");
		}
		journal.requests++;
		msgpack_pack_map(&packer, journal.off ? 3 : 6);
	}
	pack_uint(&packer, "v", 1);
	pack_uint(&packer, "id", lookup(request, "id")->via.u64);
	if (is(lookup(request, "op"), "hello")) {
		pack_hello(&packer);
	} else if (journal.off) {
		pack_text(&packer, "error");
		pack_text(&packer, "replay is off");
	} else {
		n = pack_page(&packer, request, chosen);
	}
	if (journal.rogue)
		zmq_send(socket, journal.rogue, journal.rogue_length, 0);
	else
		zmq_send(socket, header.data, header.size, n ? ZMQ_SNDMORE : 0);
	for (int i = 0; i < n && !journal.rogue; i++) {
		const struct message *message = &journal.messages[chosen[i]];
		msgpack_sbuffer body;

		pack_body(&body, message);
		zmq_send(socket, message->topic, strlen(message->topic), ZMQ_SNDMORE);
		zmq_send(socket, body.data, body.size, i + 1 < n ? ZMQ_SNDMORE : 0);
		msgpack_sbuffer_destroy(&body);
	}
	msgpack_sbuffer_destroy(&header);
}

static void *serve(void *arg)
{
	void *socket = journal.socket;

	(void)arg;
	while (!journal.ending) {
		zmq_pollitem_t item = { .socket = socket, .events = ZMQ_POLLIN };
		msgpack_unpacked request;
		char identity[64], frame[4096];
		int length, n;

		if (zmq_poll(&item, 1, 10) <= 0)
			continue;
		length = zmq_recv(socket, identity, sizeof(identity), 0);
		zmq_recv(socket, frame, sizeof(frame), 0);
		n = zmq_recv(socket, frame, sizeof(frame), 0);
		pthread_mutex_lock(&journal.lock);
		msgpack_unpacked_init(&request);
		if (!journal.mute && msgpack_unpack_next(&request, frame, (size_t)n, NULL) ==
					     MSGPACK_UNPACK_SUCCESS) {
			zmq_send(socket, identity, (size_t)length, ZMQ_SNDMORE);
			zmq_send(socket, "", 0, ZMQ_SNDMORE);
			answer(&request.data, socket);
		}
		msgpack_unpacked_destroy(&request);
		pthread_mutex_unlock(&journal.lock);
	}
	return NULL;
}

static void journal_open(const struct publisher *publisher)
{
	char endpoint[128];
	int zero = 0;

	pthread_mutex_init(&journal.lock, NULL);
	journal.socket = zmq_socket(publisher->context, ZMQ_ROUTER);
	zmq_setsockopt(journal.socket, ZMQ_LINGER, &zero, sizeof(zero));
	snprintf(endpoint, sizeof(endpoint), "ipc://%s/replay.sock", publisher->directory);
	if (zmq_bind(journal.socket, endpoint)) {
		perror(endpoint);
		exit(77);
	}
	pthread_create(&journal.thread, NULL, serve, NULL);
}

static void journal_close(const struct publisher *publisher)
{
	char path[96];

	journal.ending = true;
	pthread_join(journal.thread, NULL);
	zmq_close(journal.socket);
	snprintf(path, sizeof(path), "%s/replay.sock", publisher->directory);
	unlink(path);
}

/* Starts a test: replay has these messages, and answers with `page` of them at a time. */
static void begin(const char *name, int page)
{
	pthread_mutex_lock(&journal.lock);
	test_name = name;
	journal.n = 0;
	journal.page = page;
	journal.mute = journal.off = false;
	journal.rogue = NULL;
	journal.last_run = RUN;
	memset(journal.heads, 0, sizeof(journal.heads));
	journal.requests = journal.hellos = 0;
	pthread_mutex_unlock(&journal.lock);
}

static void keep(struct message message)
{
	pthread_mutex_lock(&journal.lock);
	journal.messages[journal.n++] = message;
	pthread_mutex_unlock(&journal.lock);
}

static void set_mute(bool mute)
{
	pthread_mutex_lock(&journal.lock);
	journal.mute = mute;
	pthread_mutex_unlock(&journal.lock);
}

/* Published, and in the journal, as everything is. */
static void publish(struct publisher *publisher, struct message message)
{
	keep(message);
	send_message(publisher, LOW, message);
}

static void status(struct publisher *publisher, uint64_t run, uint64_t n, uint64_t added,
		   uint64_t removed, const char *replay)
{
	msgpack_sbuffer buffer;
	msgpack_packer packer;

	msgpack_sbuffer_init(&buffer);
	msgpack_packer_init(&packer, &buffer, msgpack_sbuffer_write);
	msgpack_pack_map(&packer, 8);
	pack_uint(&packer, "v", 1);
	pack_text(&packer, "node");
	pack_text(&packer, "host");
	pack_uint(&packer, "run", run);
	pack_text(&packer, "socket");
	pack_text(&packer, "low");
	pack_uint(&packer, "time_us", 77);
	pack_uint(&packer, "n", n);
	pack_text(&packer, "heads");
	msgpack_pack_map(&packer, 2);
	pack_uint(&packer, ADDED, added);
	pack_uint(&packer, REMOVED, removed);
	pack_text(&packer, "replay");
	pack_text(&packer, replay);
	send_frames(publisher, LOW, "bridge.status", buffer.data, buffer.size);
	msgpack_sbuffer_destroy(&buffer);
}

#define M(topic_, n_, seq_, events_) \
	((struct message){ topic_, .n = n_, .seq = seq_, .events = events_ })

/* One topic: a gap between messages, over several pages, with messages that come meanwhile. */
static void test_gap(struct publisher *publisher)
{
	struct coretap *tap;

	begin("gap", 2);
	tap = SUBSCRIBE(publisher, ADDED);
	connect_to(tap, publisher, LOW);
	publish(publisher, M(ADDED, 10, 5, 1));
	expect_event(tap, ADDED, 5, 10);
	for (uint64_t i = 0; i < 7; i++)
		keep(M(ADDED, 12 + 3 * i, 6 + 2 * i, 2));
	keep(M(REMOVED, 14, 1, 1));
	publish(publisher, M(ADDED, 40, 20, 1));
	publish(publisher, M(ADDED, 41, 21, 1));
	for (uint64_t i = 0; i < 14; i++)
		expect_event(tap, ADDED, 6 + i, 12 + 3 * (i / 2) + i % 2);
	expect_event(tap, ADDED, 20, 40);
	expect_event(tap, ADDED, 21, 41);
	expect_nothing(tap);
	if (journal.requests != 4 || strcmp(journal.topics, ADDED " "))
		fail("%u requests for %s", journal.requests, journal.topics);
	/* The last page brought one that came live as well. */
	expect_count(tap, CORETAP_COUNT_GAP, 0);
	expect_count(tap, CORETAP_COUNT_EVENTS, 17);
	coretap_close(tap);
}

/* Part of it is no longer held: told at its place, as an exact range. */
static void test_gone(struct publisher *publisher)
{
	struct coretap *tap;

	begin("gone", 100);
	tap = SUBSCRIBE(publisher, ADDED);
	connect_to(tap, publisher, LOW);
	send_message(publisher, LOW, M(ADDED, 10, 5, 1));
	expect_event(tap, ADDED, 5, 10);
	keep(M(ADDED, 20, 9, 2));
	keep((struct message){ ADDED, .n = 22, .seq = 11, .lost = 3, .events = 1 });
	keep(M(ADDED, 25, 20, 1));
	send_message(publisher, LOW, M(ADDED, 40, 23, 1));
	expect(tap, RANGE("gap", ADDED, "6", "8"));
	expect_event(tap, ADDED, 9, 20);
	expect_event(tap, ADDED, 10, 21);
	expect(tap, RANGE("lost", ADDED, "11", "13"));
	expect_event(tap, ADDED, 14, 22);
	expect(tap, RANGE("gap", ADDED, "15", "19"));
	expect_event(tap, ADDED, 20, 25);
	expect(tap, RANGE("gap", ADDED, "21", "22"));
	expect_event(tap, ADDED, 23, 40);
	expect_count(tap, CORETAP_COUNT_GAP, 10);
	expect_count(tap, CORETAP_COUNT_REPLAYED, 4);
	coretap_close(tap);
}

/* Several topics: the position shows what is missing before another topic goes on, so order holds.
 */
static void test_order(struct publisher *publisher)
{
	struct coretap *tap;

	begin("order", 100);
	tap = SUBSCRIBE(publisher, ADDED, REMOVED);
	connect_to(tap, publisher, LOW);
	status(publisher, RUN, 9, 4, 0, "ok");
	publish(publisher, M(ADDED, 10, 5, 1));
	expect_event(tap, ADDED, 5, 10);
	keep(M(REMOVED, 11, 1, 1));
	keep(M("node.started", 12, 1, 1));
	/* Of this topic nothing is missing. */
	publish(publisher, M(ADDED, 13, 6, 1));
	expect_event(tap, REMOVED, 1, 11);
	expect_event(tap, ADDED, 6, 13);
	/* What was not subscribed to moves the position on, and may itself show a gap. */
	publish(publisher, M("node.started", 14, 2, 1));
	publish(publisher, M(ADDED, 15, 7, 1));
	expect_event(tap, ADDED, 7, 15);
	keep(M(REMOVED, 16, 2, 1));
	publish(publisher, M("node.exited", 17, 2, 1));
	expect_event(tap, REMOVED, 2, 16);
	expect_nothing(tap);
	if (journal.requests != 2 || strcmp(journal.topics, ADDED " " REMOVED " "))
		fail("%u requests for %s", journal.requests, journal.topics);
	coretap_close(tap);
}

/* A tail that only a status reveals: events, a loss notice, and what nobody has. */
static void test_tail(struct publisher *publisher)
{
	struct coretap *tap;

	begin("tail", 100);
	tap = SUBSCRIBE(publisher, ADDED);
	connect_to(tap, publisher, LOW);
	status(publisher, RUN, 10, 5, 0, "ok");
	keep(M(ADDED, 11, 6, 2));
	status(publisher, RUN, 12, 7, 0, "ok");
	expect_event(tap, ADDED, 6, 11);
	expect_event(tap, ADDED, 7, 12);
	keep((struct message){ ADDED, .n = 13, .seq = 8, .lost = 5 });
	status(publisher, RUN, 12, 12, 0, "ok");
	expect(tap, RANGE("lost", ADDED, "8", "12"));
	status(publisher, RUN, 20, 14, 0, "ok");
	expect(tap, RANGE("gap", ADDED, "13", "14"));
	status(publisher, RUN, 20, 14, 0, "ok");
	expect_nothing(tap);
	if (journal.requests != 3)
		fail("%u requests", journal.requests);
	coretap_close(tap);
}

/* A new run: the old one's tail, what of it is gone, a run that came and went, then the new one. */
static void test_runs(struct publisher *publisher)
{
	struct coretap *tap;

	begin("runs", 2);
	tap = SUBSCRIBE(publisher, ADDED);
	connect_to(tap, publisher, LOW);
	publish(publisher, M(ADDED, 10, 5, 1));
	expect_event(tap, ADDED, 5, 10);
	keep(M(ADDED, 11, 6, 1));
	keep(M(ADDED, 12, 7, 1));
	keep(M(ADDED, 13, 8, 1));
	journal.heads[0] = 10;
	keep((struct message){ ADDED, .run = RUN + 1, .n = 1, .seq = 1, .events = 2 });
	keep((struct message){ ADDED, .run = RUN + 1, .n = 5, .seq = 4, .events = 1 });
	journal.heads[1] = 6;
	keep((struct message){ ADDED, .run = RUN + 2, .n = 1, .seq = 1, .events = 1 });
	journal.last_run = RUN + 2;
	publish(publisher,
		(struct message){ ADDED, .run = RUN + 2, .n = 3, .seq = 3, .events = 1 });
	for (uint64_t i = 6; i <= 8; i++)
		expect_event(tap, ADDED, i, i + 5);
	expect(tap, RANGE("gap", ADDED, "9", "10"));
	expect(tap, "{\"notice\":\"new_run\",\"socket\":\"low\",\"node\":\"host\","
		    "\"run\":1700000000000001,\"old_run\":1700000000000000}");
	expect_event(tap, ADDED, 1, 1);
	expect_event(tap, ADDED, 2, 2);
	expect(tap, "{\"notice\":\"gap\",\"socket\":\"low\",\"topic\":\"mempool.added\","
		    "\"node\":\"host\",\"run\":1700000000000001,\"first\":3,\"last\":3}");
	expect_event(tap, ADDED, 4, 5);
	expect(tap, "{\"notice\":\"gap\",\"socket\":\"low\",\"topic\":\"mempool.added\","
		    "\"node\":\"host\",\"run\":1700000000000001,\"first\":5,\"last\":6}");
	expect(tap, "{\"notice\":\"new_run\",\"socket\":\"low\",\"node\":\"host\","
		    "\"run\":1700000000000002,\"old_run\":1700000000000001}");
	expect_event(tap, ADDED, 1, 1);
	expect(tap, "{\"notice\":\"gap\",\"socket\":\"low\",\"topic\":\"mempool.added\","
		    "\"node\":\"host\",\"run\":1700000000000002,\"first\":2,\"last\":2}");
	expect_event(tap, ADDED, 3, 3);
	expect_nothing(tap);
	coretap_close(tap);
}

/* Replay off, said by itself or by the status: told at once. */
static void test_off(struct publisher *publisher)
{
	struct coretap *tap;
	int64_t start;

	begin("off", 1);
	journal.off = true;
	tap = SUBSCRIBE(publisher, ADDED);
	connect_to(tap, publisher, LOW);
	send_message(publisher, LOW, M(ADDED, 10, 5, 1));
	expect_event(tap, ADDED, 5, 10);
	start = now_ms();
	send_message(publisher, LOW, M(ADDED, 20, 7, 1));
	expect(tap, RANGE("gap", ADDED, "6", "6"));
	expect_event(tap, ADDED, 7, 20);
	status(publisher, RUN, 20, 7, 0, "off");
	send_message(publisher, LOW, M(ADDED, 30, 9, 1));
	expect(tap, RANGE("gap", ADDED, "8", "8"));
	expect_event(tap, ADDED, 9, 30);
	if (journal.requests != 1)
		fail("%u requests", journal.requests);
	if (now_ms() - start > AT_ONCE_MS)
		fail("took %" PRId64 " ms", now_ms() - start);
	coretap_close(tap);

	/* Who wants the past is told that there is none, also who does not want it from replay. */
	replaying = false;
	tap = SUBSCRIBE(publisher, ADDED);
	replaying = true;
	coretap_since(tap, 0);
	connect_to(tap, publisher, LOW);
	send_message(publisher, LOW, M(ADDED, 20, 7, 1));
	expect(tap, "{\"notice\":\"no_replay\",\"socket\":\"low\",\"node\":\"host\","
		    "\"reason\":\"not asked\",\"run\":1700000000000000}");
	expect_event(tap, ADDED, 7, 20);
	coretap_close(tap);
	tap = SUBSCRIBE(publisher, ADDED);
	coretap_since(tap, 0);
	connect_to(tap, publisher, LOW);
	status(publisher, RUN, 20, 7, 0, "off");
	expect(tap, "{\"notice\":\"no_replay\",\"socket\":\"low\",\"node\":\"host\","
		    "\"reason\":\"replay is off\"}");
	send_message(publisher, LOW, M(ADDED, 30, 8, 1));
	expect_event(tap, ADDED, 8, 30);
	coretap_close(tap);
}

/* No answer: asked again each second; after five the gap is told, and then at once, until it
 * answers again. */
static void test_mute(struct publisher *publisher)
{
	struct coretap *tap;
	const struct coretap_event *event;
	int64_t start;

	begin("mute", 100);
	set_mute(true);
	tap = SUBSCRIBE(publisher, ADDED);
	connect_to(tap, publisher, LOW);
	publish(publisher, M(ADDED, 10, 5, 1));
	expect_event(tap, ADDED, 5, 10);
	/* An answer after two seconds is in time. */
	keep(M(ADDED, 11, 6, 1));
	publish(publisher, M(ADDED, 12, 7, 1));
	expect_quiet(tap, 1500);
	set_mute(false);
	expect_event(tap, ADDED, 6, 11);
	expect_event(tap, ADDED, 7, 12);

	set_mute(true);
	start = now_ms();
	keep(M(ADDED, 13, 8, 1));
	publish(publisher, M(ADDED, 14, 9, 1));
	while (coretap_next(tap, &event, 100) == 0 && now_ms() - start < 8000)
		;
	if (coretap_event_kind(event) != CORETAP_GAP || now_ms() - start < 4900 ||
	    now_ms() - start > 5000 + AT_ONCE_MS)
		fail("%s after %" PRId64 " ms", coretap_event_json(event, NULL), now_ms() - start);
	expect_event(tap, ADDED, 9, 14);
	start = now_ms();
	keep(M(ADDED, 15, 10, 1));
	publish(publisher, M(ADDED, 16, 11, 1));
	expect(tap, RANGE("gap", ADDED, "10", "10"));
	expect_event(tap, ADDED, 11, 16);
	if (now_ms() - start > AT_ONCE_MS)
		fail("took %" PRId64 " ms", now_ms() - start);

	set_mute(false);
	status(publisher, RUN, 16, 11, 0, "ok");
	start = now_ms();
	while (now_ms() - start < 1500)
		if (coretap_next(tap, &event, 100) == 1)
			fail("%s", coretap_event_json(event, NULL));
	keep(M(ADDED, 17, 12, 1));
	publish(publisher, M(ADDED, 18, 13, 1));
	expect_event(tap, ADDED, 12, 17);
	expect_event(tap, ADDED, 13, 18);

	/* Also who looks only now and then does not wait for ever. */
	set_mute(true);
	start = now_ms();
	keep(M(ADDED, 19, 14, 1));
	publish(publisher, M(ADDED, 20, 15, 1));
	while (coretap_next(tap, &event, 0) == 0 && now_ms() - start < 12000)
		usleep(1250 * 1000);
	if (coretap_event_kind(event) != CORETAP_GAP)
		fail("nothing told after %" PRId64 " ms", now_ms() - start);
	coretap_close(tap);
}

/* Answers that are none: an error at once, then the gap, and the stream goes on. */
static void test_rogue(struct publisher *publisher)
{
#define BYTES(text) text, sizeof(text) - 1
	static const struct {
		const char *bytes;
		size_t length;
		const char *reason;
	} table[] = {
		{ BYTES(""), "truncated" },
		{ BYTES("\xdd\xff\xff\xff\xff"), "a count exceeds the bytes that remain" },
		{ BYTES("\xc6\xff\xff\xff\xff"), "truncated" },
		{ BYTES("\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x90"),
		  "nested deeper than 16" },
		{ BYTES("\x90"), "replay: not an answer" },
		{ BYTES("\x80"), "replay: not an answer" },
		{ BYTES("\x81\xa2id\xc0"), "replay: not an answer" },
		{ BYTES("\x84\xa2id\x01\xa3run\x01\xa4next\xc0\xa4head\x01"),
		  "replay: not an answer" },
	};
	char text[256];
	int64_t start;

	begin("rogue", 100);
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		struct coretap *tap = SUBSCRIBE(publisher, ADDED);

		connect_to(tap, publisher, LOW);
		send_message(publisher, LOW, M(ADDED, 10, 5, 1));
		expect_event(tap, ADDED, 5, 10);
		pthread_mutex_lock(&journal.lock);
		journal.rogue = table[i].bytes;
		journal.rogue_length = table[i].length;
		pthread_mutex_unlock(&journal.lock);
		start = now_ms();
		send_message(publisher, LOW, M(ADDED, 20, 7, 1));
		snprintf(text, sizeof(text),
			 "{\"notice\":\"malformed\",\"socket\":\"low\","
			 "\"reason\":\"%s\"}",
			 table[i].reason);
		expect(tap, text);
		expect(tap, RANGE("gap", ADDED, "6", "6"));
		expect_event(tap, ADDED, 7, 20);
		if (now_ms() - start > AT_ONCE_MS)
			fail("took %" PRId64 " ms", now_ms() - start);
		coretap_close(tap);
	}
}

static void test_since(struct publisher *publisher)
{
	struct coretap *tap;

	begin("since", 2);
	for (uint64_t i = 1; i <= 5; i++)
		keep(M(ADDED, i, i, 1));
	keep((struct message){ ADDED, .run = RUN + 1, .n = 1, .seq = 1, .events = 1 });
	journal.last_run = RUN + 1;
	journal.heads[0] = 5;
	tap = SUBSCRIBE(publisher, ADDED);
	coretap_since(tap, 1003);
	connect_to(tap, publisher, LOW);
	status(publisher, RUN + 1, 1, 1, 0, "ok");
	for (uint64_t i = 3; i <= 5; i++)
		expect_event(tap, ADDED, i, i);
	expect(tap, "{\"notice\":\"new_run\",\"socket\":\"low\",\"node\":\"host\","
		    "\"run\":1700000000000001,\"old_run\":1700000000000000}");
	expect_event(tap, ADDED, 1, 1);
	publish(publisher,
		(struct message){ ADDED, .run = RUN + 1, .n = 2, .seq = 2, .events = 1 });
	expect_event(tap, ADDED, 2, 2);
	expect_nothing(tap);
	if (coretap_since(tap, 0) != -EBUSY)
		fail("since while running");
	coretap_close(tap);
}

static struct coretap *resume(const struct publisher *publisher, const char *path)
{
	struct coretap *tap = SUBSCRIBE(publisher, ADDED, REMOVED);

	if (coretap_set_position(tap, path))
		fail("coretap_set_position");
	return tap;
}

/* Saved when a run was entered and nothing of it taken yet: it begins with number 1. */
static void test_position_of_new_run(struct publisher *publisher)
{
	struct coretap *tap;
	char path[96];

	begin("position of a new run", 100);
	snprintf(path, sizeof(path), "%s/new-run", publisher->directory);
	for (int killed = 0; killed < 2; killed++) {
		tap = SUBSCRIBE(publisher, ADDED);
		coretap_set_position(tap, path);
		coretap_commit(tap);
		connect_to(tap, publisher, LOW);
		if (!killed) {
			publish(publisher, M(ADDED, 10, 5, 1));
			expect_event(tap, ADDED, 5, 10);
			journal.heads[0] = 5;
			journal.last_run = RUN + 1;
			keep((struct message){ ADDED, .run = RUN + 1, .n = 1, .seq = 1,
					       .events = 2 });
		}
		status(publisher, RUN + 1, 2, 2, 0, "ok");
		if (!killed)
			expect(tap, "{\"notice\":\"new_run\",\"socket\":\"low\",\"node\":\"host\","
				    "\"run\":1700000000000001,\"old_run\":1700000000000000}");
		if (!killed && coretap_commit(tap))
			fail("coretap_commit");
		expect_event(tap, ADDED, 1, 1);
		expect_event(tap, ADDED, 2, 2);
		coretap_close(tap);
	}
	unlink(path);
}

/* The same where replay is not asked, and a message of the new run is in hand: its other topics
 * begin with 1 too. */
static void test_position_of_silent_topics(struct publisher *publisher)
{
	struct coretap *tap;
	char path[96];

	begin("position of silent topics", 100);
	snprintf(path, sizeof(path), "%s/silent", publisher->directory);
	replaying = false;
	tap = resume(publisher, path);
	coretap_commit(tap);
	connect_to(tap, publisher, LOW);
	send_message(publisher, LOW, M(ADDED, 10, 5, 1));
	expect_event(tap, ADDED, 5, 10);
	send_message(publisher, LOW,
		     (struct message){ ADDED, .run = RUN + 1, .n = 1, .seq = 1, .events = 1 });
	expect(tap, "{\"notice\":\"new_run\",\"socket\":\"low\",\"node\":\"host\","
		    "\"run\":1700000000000001,\"old_run\":1700000000000000}");
	if (coretap_commit(tap))
		fail("coretap_commit");
	coretap_close(tap);

	tap = resume(publisher, path);
	connect_to(tap, publisher, LOW);
	send_message(publisher, LOW,
		     (struct message){ REMOVED, .run = RUN + 1, .n = 12, .seq = 6, .events = 1 });
	expect(tap, "{\"notice\":\"gap\",\"socket\":\"low\",\"topic\":\"mempool.removed\","
		    "\"node\":\"host\",\"run\":1700000000000001,\"first\":1,\"last\":5}");
	expect_event(tap, REMOVED, 6, 12);
	expect_nothing(tap);
	coretap_close(tap);
	replaying = true;
	unlink(path);
}

/* Keeps all for replay, and sends them on the high socket but for those whose bit is set: these are
 * dropped on the way. */
static void send_all_but(struct publisher *publisher, unsigned int dropped,
			 const struct message *messages, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		keep(messages[i]);
		if (!(dropped >> i & 1))
			send_message(publisher, HIGH, messages[i]);
	}
}

/* Of the high socket a part is received: what a gap of one topic is filled with is whole for the
 * others, and so is the position. */
static void test_position_of_a_part(struct publisher *publisher)
{
	static const char add[] = "utxocache.add", spent[] = "utxocache.spent";
	static const struct message messages[] = {
		{ add, .n = 1, .seq = 1, .events = 1 },	  { spent, .n = 2, .seq = 1, .events = 1 },
		{ spent, .n = 3, .seq = 2, .events = 1 }, { add, .n = 4, .seq = 2, .events = 1 },
		{ add, .n = 5, .seq = 3, .events = 1 },	  { add, .n = 6, .seq = 4, .events = 1 },
	};
	struct coretap *tap;
	char path[96];

	begin("position of a part", 100);
	snprintf(path, sizeof(path), "%s/part", publisher->directory);
	tap = SUBSCRIBE(publisher, add, spent);
	coretap_set_position(tap, path);
	coretap_commit(tap);
	connect_to(tap, publisher, HIGH);
	send_all_but(publisher, 1 << 2 | 1 << 4, messages, 6);
	expect_event(tap, add, 1, 1);
	expect_event(tap, spent, 1, 2);
	expect_event(tap, add, 2, 4);
	expect_event(tap, spent, 2, 3);
	expect_event(tap, add, 3, 5);
	expect_event(tap, add, 4, 6);
	expect_nothing(tap);
	if (coretap_commit(tap))
		fail("coretap_commit");
	coretap_close(tap);

	tap = SUBSCRIBE(publisher, add, spent);
	coretap_set_position(tap, path);
	connect_to(tap, publisher, HIGH);
	keep(M(spent, 7, 3, 1));
	send_message(publisher, HIGH, M(spent, 7, 3, 1));
	expect_event(tap, spent, 3, 7);
	expect_nothing(tap);
	coretap_close(tap);
	unlink(path);
}

/* What a gap of one topic is filled with goes over another's: that one is not told as a gap. */
static void test_gaps_of_two_topics(struct publisher *publisher)
{
	static const char add[] = "utxocache.add", spent[] = "utxocache.spent";
	static const struct message messages[] = {
		{ add, .n = 1, .seq = 1, .events = 1 },	  { spent, .n = 2, .seq = 1, .events = 1 },
		{ spent, .n = 3, .seq = 2, .events = 1 }, { add, .n = 4, .seq = 2, .events = 1 },
		{ add, .n = 5, .seq = 3, .events = 1 },	  { spent, .n = 6, .seq = 3, .events = 1 },
		{ add, .n = 7, .seq = 4, .events = 1 },
	};
	struct coretap *tap;

	begin("gaps of two topics", 100);
	tap = SUBSCRIBE(publisher, add, spent);
	connect_to(tap, publisher, HIGH);
	send_all_but(publisher, 1 << 2 | 1 << 4 | 1 << 5, messages, 7);
	expect_event(tap, add, 1, 1);
	expect_event(tap, spent, 1, 2);
	expect_event(tap, add, 2, 4);
	expect_event(tap, spent, 2, 3);
	expect_event(tap, add, 3, 5);
	expect_event(tap, spent, 3, 6);
	expect_event(tap, add, 4, 7);
	expect_nothing(tap);
	coretap_close(tap);
}

/* Of a topic that a status does not list nothing had been told until then. */
static void test_first_of_a_topic(struct publisher *publisher)
{
	struct coretap *tap;

	begin("first of a topic", 100);
	tap = SUBSCRIBE(publisher, "mempool.rejected");
	connect_to(tap, publisher, LOW);
	status(publisher, RUN, 3, 1, 2, "ok");
	expect_nothing(tap);
	keep(M("mempool.rejected", 4, 1, 1));
	keep(M("mempool.rejected", 5, 2, 1));
	publish(publisher, M("mempool.rejected", 5, 2, 1));
	expect_event(tap, "mempool.rejected", 1, 4);
	expect_event(tap, "mempool.rejected", 2, 5);
	expect_nothing(tap);
	coretap_close(tap);
}

/* A saved position: exactly what comes after it, also within a message, also a loss. */
static void test_position(struct publisher *publisher)
{
	static const char *const damaged[] = {
		"",
		"coretap position 2\n",
		"coretap position 1\nlow host x 1\n",
		"coretap position 1\nmempool.added 3\n",
		"coretap position 1\nlow host 5 5\nmempool.added 0\n",
		"coretap position 1\nlow host 5 5"
	};
	const struct coretap_event *event;
	struct coretap *tap;
	struct stat stat_;
	char path[96];

	begin("position", 3);
	snprintf(path, sizeof(path), "%s/position", publisher->directory);
	tap = resume(publisher, path);
	coretap_commit(tap); /* from here on only when asked to */
	connect_to(tap, publisher, LOW);
	publish(publisher, M(REMOVED, 9, 1, 1));
	publish(publisher, M(ADDED, 10, 5, 4));
	expect_event(tap, REMOVED, 1, 9);
	expect_event(tap, ADDED, 5, 10);
	expect_event(tap, ADDED, 6, 11);
	/* Until it is saved, the beginning holds. */
	if (stat(path, &stat_))
		fail("the beginning is not kept");
	coretap_close(tap);
	tap = resume(publisher, path);
	coretap_commit(tap);
	connect_to(tap, publisher, LOW);
	status(publisher, RUN, 13, 8, 1, "ok");
	expect_event(tap, REMOVED, 1, 9);
	expect_event(tap, ADDED, 5, 10);
	expect_event(tap, ADDED, 6, 11);
	if (coretap_commit(tap))
		fail("coretap_commit");
	expect_event(tap, ADDED, 7, 12);
	coretap_close(tap);

	/* Within a message; and a loss after it. */
	publish(publisher, (struct message){ ADDED, .n = 14, .seq = 9, .lost = 2 });
	tap = resume(publisher, path);
	coretap_commit(tap);
	connect_to(tap, publisher, LOW);
	status(publisher, RUN, 13, 10, 1, "ok");
	expect_event(tap, ADDED, 7, 12);
	expect_event(tap, ADDED, 8, 13);
	expect(tap, RANGE("lost", ADDED, "9", "10"));
	coretap_commit(tap);
	coretap_close(tap);

	/* The loss stands at the very position: it does not come again. Saved by itself. */
	tap = resume(publisher, path);
	connect_to(tap, publisher, LOW);
	publish(publisher, M(REMOVED, 14, 2, 1));
	publish(publisher, M(ADDED, 15, 11, 1));
	expect_event(tap, REMOVED, 2, 14);
	expect_event(tap, ADDED, 11, 15);
	expect_nothing(tap);
	coretap_close(tap);
	keep(M(ADDED, 16, 12, 1));
	tap = resume(publisher, path);
	connect_to(tap, publisher, LOW);
	publish(publisher, M(ADDED, 17, 13, 1));
	expect_event(tap, ADDED, 12, 16);
	expect_event(tap, ADDED, 13, 17);
	expect_nothing(tap);
	coretap_close(tap);

	/* What replay does not have any more is told exactly. */
	journal.n = 0;
	tap = resume(publisher, path);
	connect_to(tap, publisher, LOW);
	status(publisher, RUN, 30, 20, 2, "ok");
	expect(tap, RANGE("gap", ADDED, "14", "20"));
	expect_nothing(tap);
	coretap_close(tap);

	for (size_t i = 0; i < sizeof(damaged) / sizeof(damaged[0]); i++) {
		FILE *file = fopen(path, "w");

		fputs(damaged[i], file);
		fclose(file);
		tap = resume(publisher, path);
		if (coretap_next(tap, &event, 0) != -EBADMSG)
			fail("position \"%s\" is accepted", damaged[i]);
		coretap_close(tap);
	}
	unlink(path);
	tap = resume(publisher, "/nowhere/position");
	connect_to(tap, publisher, LOW);
	status(publisher, RUN, 30, 20, 2, "ok");
	if (coretap_next(tap, &event, TIMEOUT_MS) != -ENOENT)
		fail("a position that cannot be written");
	coretap_close(tap);
}

/* More than fits into the queue while a gap is filled: what was dropped is asked for again. */
static void test_flood(struct publisher *publisher)
{
	const struct coretap_event *event;
	struct coretap *tap = NULL;
	uint64_t expected = 6;
	int64_t deadline;

	begin("flood", 50);
	if (coretap_open(publisher->address, &tap) || coretap_set_memory(tap, 10 * 16384) ||
	    coretap_subscribe(tap, ADDED))
		fail("open");
	connect_to(tap, publisher, LOW);
	publish(publisher, M(ADDED, 5, 5, 1));
	expect_event(tap, ADDED, 5, 5);
	for (uint64_t i = 6; i < 3000; i++)
		if (i < 100)
			keep(M(ADDED, i, i, 1));
		else
			publish(publisher, M(ADDED, i, i, 1));
	deadline = now_ms() + TIMEOUT_MS;
	while (expected < 3000 && now_ms() < deadline) {
		if (coretap_next(tap, &event, 100) != 1) {
			status(publisher, RUN, 2999, 2999, 0, "ok");
			continue;
		}
		if (coretap_event_kind(event) != CORETAP_EVENT ||
		    coretap_event_seq(event) != expected) {
			fail("%s, not %" PRIu64, coretap_event_json(event, NULL), expected);
			break;
		}
		expected++;
	}
	if (expected != 3000)
		fail("ends at %" PRIu64, expected);
	coretap_close(tap);
}

int main(void)
{
	struct publisher publisher;

	setvbuf(stdout, NULL, _IOLBF, 0);
	replaying = true;
	publisher_open(&publisher);
	journal_open(&publisher);
	test_gap(&publisher);
	test_gone(&publisher);
	test_order(&publisher);
	test_tail(&publisher);
	test_runs(&publisher);
	test_off(&publisher);
	test_rogue(&publisher);
	test_since(&publisher);
	test_position_of_new_run(&publisher);
	test_position_of_silent_topics(&publisher);
	test_position_of_a_part(&publisher);
	test_gaps_of_two_topics(&publisher);
	test_first_of_a_topic(&publisher);
	test_position(&publisher);
	test_flood(&publisher);
	test_mute(&publisher);
	journal_close(&publisher);
	publisher_close(&publisher);
	return failures ? 1 : 0;
}
