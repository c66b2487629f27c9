/* libcoretap against a scripted publisher over ipc: each notice, at its place, with its numbers. */
#include "client.h"

#include <poll.h>
#include <sys/wait.h>

/* Joining is no loss; what follows is counted. */
static void test_rule(struct publisher *publisher)
{
	struct coretap *tap = SUBSCRIBE(publisher, "mempool.");

	test_name = "rule";
	connect_to(tap, publisher, LOW);
	send_message(publisher, LOW, (struct message){ ADDED, .n = 50, .seq = 100, .events = 2 });
	expect(tap, "{\"topic\":\"mempool.added\",\"node\":\"host\",\"run\":1700000000000000,"
		    "\"seq\":100,\"n\":50,\"pid\":42,\"time_us\":1000,\"vsize\":141}");
	expect(tap, "{\"topic\":\"mempool.added\",\"node\":\"host\",\"run\":1700000000000000,"
		    "\"seq\":101,\"n\":51,\"pid\":42,\"time_us\":1001,\"vsize\":142}");

	/* Another topic joins by itself. */
	send_message(publisher, LOW, (struct message){ REMOVED, .n = 52, .seq = 7, .events = 1 });
	expect_event(tap, REMOVED, 7, 52);
	send_message(publisher, LOW, (struct message){ ADDED, .n = 53, .seq = 102, .events = 1 });
	expect_event(tap, ADDED, 102, 53);

	/* A gap, and a gap of one. */
	send_message(publisher, LOW, (struct message){ ADDED, .n = 60, .seq = 110, .events = 1 });
	expect(tap, RANGE("gap", ADDED, "103", "109"));
	expect_event(tap, ADDED, 110, 60);
	send_message(publisher, LOW, (struct message){ REMOVED, .n = 62, .seq = 9, .events = 1 });
	expect(tap, RANGE("gap", REMOVED, "8", "8"));
	expect_event(tap, REMOVED, 9, 62);
	expect_count(tap, CORETAP_COUNT_GAP, 8);

	/* Losses come first; both at once; a loss without events. */
	send_message(publisher, LOW,
		     (struct message){ ADDED, .n = 70, .seq = 111, .lost = 3, .events = 2 });
	expect(tap, RANGE("lost", ADDED, "111", "113"));
	expect_event(tap, ADDED, 114, 70);
	expect_event(tap, ADDED, 115, 71);
	send_message(publisher, LOW,
		     (struct message){ ADDED, .n = 80, .seq = 120, .lost = 1, .events = 1 });
	expect(tap, RANGE("gap", ADDED, "116", "119"));
	expect(tap, RANGE("lost", ADDED, "120", "120"));
	expect_event(tap, ADDED, 121, 80);
	send_message(publisher, LOW, (struct message){ ADDED, .n = 81, .seq = 122, .lost = 10 });
	expect(tap, RANGE("lost", ADDED, "122", "131"));
	expect_count(tap, CORETAP_COUNT_LOST, 14);

	/* Duplicates vanish, losses in them too; so does what overlaps, and the rest is missing
	 * then. */
	send_message(publisher, LOW, (struct message){ ADDED, .n = 81, .seq = 122, .lost = 10 });
	send_message(publisher, LOW, (struct message){ ADDED, .n = 50, .seq = 100, .events = 2 });
	send_message(publisher, LOW, (struct message){ ADDED, .n = 80, .seq = 131, .events = 3 });
	send_message(publisher, LOW, (struct message){ ADDED, .n = 84, .seq = 134, .events = 1 });
	expect(tap, RANGE("gap", ADDED, "132", "133"));
	expect_event(tap, ADDED, 134, 84);
	expect_count(tap, CORETAP_COUNT_DUPLICATES, 3);
	expect_count(tap, CORETAP_COUNT_EVENTS, 10);
	expect_nothing(tap);
	coretap_close(tap);
}

/* Numbers at and beyond 2^53 and 2^63. */
static void test_large_numbers(struct publisher *publisher)
{
	struct coretap *tap = SUBSCRIBE(publisher, ADDED);

	test_name = "large numbers";
	connect_to(tap, publisher, LOW);
	send_message(publisher, LOW, (struct message){ ADDED, .n = 1, .seq = 1, .events = 1 });
	expect_event(tap, ADDED, 1, 1);
	send_message(
		publisher, LOW,
		(struct message){ ADDED, .n = 1ull << 53, .seq = (1ull << 53) + 1, .events = 1 });
	expect(tap, RANGE("gap", ADDED, "2", "9007199254740992"));
	expect_event(tap, ADDED, (1ull << 53) + 1, 1ull << 53);
	send_message(
		publisher, LOW,
		(struct message){ ADDED, .n = 1ull << 63, .seq = UINT64_MAX - 1, .events = 1 });
	expect(tap, RANGE("gap", ADDED, "9007199254740994", "18446744073709551613"));
	expect_event(tap, ADDED, UINT64_MAX - 1, 1ull << 63);
	send_message(publisher, LOW, (struct message){ ADDED, .n = 1, .seq = 2, .events = 1 });
	send_message(publisher, LOW,
		     (struct message){ ADDED, .n = 1, .seq = UINT64_MAX, .events = 1 });
	expect(tap, "{\"notice\":\"malformed\",\"socket\":\"low\",\"topic\":\"mempool.added\","
		    "\"reason\":\"seq: numbers end beyond 64 bits\"}");
	send_message(publisher, LOW,
		     (struct message){ ADDED, .n = UINT64_MAX, .seq = 1, .lost = 1, .events = 1 });
	expect(tap, "{\"notice\":\"malformed\",\"socket\":\"low\",\"topic\":\"mempool.added\","
		    "\"reason\":\"n: positions end beyond 64 bits\"}");
	expect_nothing(tap);
	expect_count(tap, CORETAP_COUNT_DUPLICATES, 1);
	coretap_close(tap);
}

/* A status before the first message tells where to begin; later ones reveal a lost tail. */
static void test_status(struct publisher *publisher)
{
	static const struct head first[] = {
		{ ADDED, 5 }, { REMOVED, 0 }, { "node.started", 1 }, { 0 }
	};
	static const struct head tail[] = {
		{ ADDED, 12 }, { REMOVED, 2 }, { "node.started", 9 }, { 0 }
	};
	static const struct head lower[] = { { ADDED, 3 }, { REMOVED, 0 }, { 0 } };
	static const struct head wild[] = { { ADDED, UINT64_MAX }, { 0 } };
	struct coretap *tap = SUBSCRIBE(publisher, ADDED, REMOVED);

	test_name = "status";
	connect_to(tap, publisher, LOW);
	send_status(publisher, LOW, "bridge.status", 0, first);
	send_message(publisher, LOW, (struct message){ ADDED, .n = 50, .seq = 8, .events = 1 });
	expect(tap, RANGE("gap", ADDED, "6", "7"));
	expect_event(tap, ADDED, 8, 50);
	send_message(publisher, LOW, (struct message){ REMOVED, .n = 51, .seq = 1, .events = 1 });
	expect_event(tap, REMOVED, 1, 51);

	send_status(publisher, LOW, "bridge.status", 0, tail);
	expect(tap, RANGE("gap", ADDED, "9", "12"));
	expect(tap, RANGE("gap", REMOVED, "2", "2"));
	send_status(publisher, LOW, "bridge.status", 0, tail);
	send_status(publisher, LOW, "bridge.status", 0, lower);
	send_message(publisher, LOW, (struct message){ ADDED, .n = 60, .seq = 13, .events = 1 });
	expect_event(tap, ADDED, 13, 60);

	send_status(publisher, LOW, "bridge.status", 0, wild);
	expect(tap, "{\"notice\":\"malformed\",\"socket\":\"low\",\"topic\":\"bridge.status\","
		    "\"reason\":\"heads: not all are unsigned integers\"}");
	expect_nothing(tap);
	expect_count(tap, CORETAP_COUNT_GAP, 7);
	coretap_close(tap);

	/* After the first message of a topic, a status adds what it did not know. */
	tap = SUBSCRIBE(publisher, ADDED, REMOVED);
	connect_to(tap, publisher, LOW);
	send_message(publisher, LOW, (struct message){ ADDED, .n = 50, .seq = 6, .events = 1 });
	expect_event(tap, ADDED, 6, 50);
	send_status(publisher, LOW, "bridge.status", 0, first);
	send_message(publisher, LOW, (struct message){ REMOVED, .n = 51, .seq = 3, .events = 1 });
	expect(tap, RANGE("gap", REMOVED, "1", "2"));
	expect_event(tap, REMOVED, 3, 51);
	expect_nothing(tap);
	coretap_close(tap);
}

static void test_runs(struct publisher *publisher)
{
	static const struct head heads[] = { { ADDED, 40 }, { 0 } };
	struct coretap *tap = SUBSCRIBE(publisher, ADDED);

	test_name = "runs";
	connect_to(tap, publisher, LOW);
	send_message(publisher, LOW, (struct message){ ADDED, .n = 50, .seq = 100, .events = 1 });
	expect_event(tap, ADDED, 100, 50);
	send_message(publisher, LOW,
		     (struct message){ ADDED, .run = RUN + 5, .n = 1, .seq = 1, .events = 1 });
	expect(tap, "{\"notice\":\"new_run\",\"socket\":\"low\",\"node\":\"host\","
		    "\"run\":1700000000000005,\"old_run\":1700000000000000}");
	expect_event(tap, ADDED, 1, 1);

	/* Old messages and statuses: told once, dropped always. */
	send_message(publisher, LOW, (struct message){ ADDED, .n = 51, .seq = 101, .events = 1 });
	send_status(publisher, LOW, "bridge.status", 0, heads);
	send_message(publisher, LOW,
		     (struct message){ ADDED, .run = RUN + 5, .n = 2, .seq = 2, .events = 1 });
	expect(tap, "{\"notice\":\"old_run\",\"socket\":\"low\",\"node\":\"host\","
		    "\"run\":1700000000000005,\"old_run\":1700000000000000}");
	expect_event(tap, ADDED, 2, 2);
	expect_count(tap, CORETAP_COUNT_OLD_RUN, 2);

	/* A status begins a run too, and tells what of it did not arrive. */
	send_status(publisher, LOW, "bridge.status", UINT64_MAX, heads);
	expect(tap, "{\"notice\":\"new_run\",\"socket\":\"low\",\"node\":\"host\","
		    "\"run\":18446744073709551615,\"old_run\":1700000000000005}");
	expect(tap, "{\"notice\":\"gap\",\"socket\":\"low\",\"topic\":\"mempool.added\","
		    "\"node\":\"host\",\"run\":18446744073709551615,\"first\":1,\"last\":40}");
	send_message(publisher, LOW,
		     (struct message){ ADDED, .run = UINT64_MAX, .n = 9, .seq = 42, .events = 1 });
	expect(tap, "{\"notice\":\"gap\",\"socket\":\"low\",\"topic\":\"mempool.added\","
		    "\"node\":\"host\",\"run\":18446744073709551615,\"first\":41,\"last\":41}");
	expect_event(tap, ADDED, 42, 9);

	/* Another label has its own runs and numbers. */
	send_message(publisher, LOW,
		     (struct message){ ADDED, "other", .n = 3, .seq = 3, .events = 1 });
	expect_event(tap, ADDED, 3, 3);
	send_message(publisher, LOW,
		     (struct message){ ADDED, .run = UINT64_MAX, .n = 10, .seq = 43, .events = 1 });
	expect_event(tap, ADDED, 43, 10);
	send_message(publisher, LOW,
		     (struct message){ ADDED, "other", .n = 4, .seq = 4, .events = 1 });
	expect_event(tap, ADDED, 4, 4);

	/* A publisher that invents labels is refused, not remembered. */
	for (int i = 0; i < 15; i++) {
		char label[24];

		snprintf(label, sizeof(label), "label-%d", i);
		send_message(publisher, LOW,
			     (struct message){ ADDED, label, .n = 1, .seq = 1, .events = 1 });
		if (i < 14)
			expect_event(tap, ADDED, 1, 1);
	}
	expect(tap, "{\"notice\":\"malformed\",\"socket\":\"low\",\"topic\":\"mempool.added\","
		    "\"reason\":\"node: too many labels\"}");
	expect_nothing(tap);
	coretap_close(tap);
}

static void test_malformed(struct publisher *publisher)
{
#define NOTICE(topic, reason) \
	"{\"notice\":\"malformed\",\"socket\":\"low\"" topic ",\"reason\":\"" reason "\"}"
#define TOPIC ",\"topic\":\"mempool.added\""
	static const struct {
		const char *topic, *body;
		size_t length;
		const char *json;
	} table[] = {
		{ ADDED, NULL, 0, NOTICE(TOPIC, "message of one frame") },
		{ ADDED, "", 0, NOTICE(TOPIC, "truncated") },
		{ ADDED, "\xdd\xff\xff\xff\xff", 5,
		  NOTICE(TOPIC, "a count exceeds the bytes that remain") },
		{ ADDED, "\xdf\x7f\xff\xff\xff", 5,
		  NOTICE(TOPIC, "a count exceeds the bytes that remain") },
		{ ADDED, "\xc6\xff\xff\xff\xff", 5, NOTICE(TOPIC, "truncated") },
		{ ADDED,
		  "\x81\xa1x\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x90", 19,
		  NOTICE(TOPIC, "nested deeper than 16") },
		{ ADDED, "\x90", 1, NOTICE(TOPIC, "not a map") },
		{ ADDED, "\x81\xa1v\x02", 4, NOTICE(TOPIC, "v: version 2 is not understood") },
		{ "mempool.added\x1b[31m", "\x80", 1, NOTICE("", "topic: not a topic") },
		{ "bridge.status", "\x80", 1,
		  NOTICE(",\"topic\":\"bridge.status\"", "v: missing") },
	};
	struct coretap *tap = SUBSCRIBE(publisher, "mempool.");
	int64_t start;

	test_name = "malformed";
	connect_to(tap, publisher, LOW);
	send_message(publisher, LOW, (struct message){ ADDED, .n = 1, .seq = 1, .events = 1 });
	expect_event(tap, ADDED, 1, 1);
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		start = now_ms();
		send_frames(publisher, LOW, table[i].topic, table[i].body, table[i].length);
		send_message(publisher, LOW,
			     (struct message){ ADDED, .n = 2, .seq = 2 + i, .events = 1 });
		expect(tap, table[i].json);
		expect_event(tap, ADDED, 2 + i, 2);
		if (now_ms() - start > AT_ONCE_MS)
			fail("took %" PRId64 " ms", now_ms() - start);
	}
	expect_count(tap, CORETAP_COUNT_MALFORMED, sizeof(table) / sizeof(table[0]));

	/* The status of the wrong socket: someone mixed up the ports. */
	send_status(publisher, LOW, "bridge.status", 0, (const struct head[]){ { 0 } });
	expect_nothing(tap);

	/* Frames after the second are reserved. */
	zmq_send(publisher->sockets[LOW], ADDED, strlen(ADDED), ZMQ_SNDMORE);
	zmq_send(publisher->sockets[LOW], "\x90", 1, ZMQ_SNDMORE);
	zmq_send(publisher->sockets[LOW], "later", 5, ZMQ_SNDMORE);
	zmq_send(publisher->sockets[LOW], "", 0, 0);
	expect(tap, NOTICE(TOPIC, "not a map"));
	expect_nothing(tap);
	coretap_close(tap);
}

/* Which sockets are connected, and what comes through. */
static void test_subscriptions(struct publisher *publisher)
{
	static const struct {
		const char *topic;
		bool low, high;
	} table[] = {
		{ "mempool.removed", true, false },
		{ "mempool.", true, false },
		{ "net.inbound_message", false, true },
		{ "net.", true, true },
		{ "utxocache.add", false, true },
		{ "custom.probe", true, true },
		{ "mempool.custom", true, true },
		{ "bridge.status", true, true },
		{ "", true, true },
	};
	static const char *const wrong[] = { "mempool",	     "mempool.added ", ".", ".added",
					     "mempool.\x1b", "mempool/added",  "*" };
	struct coretap *tap;
	const struct coretap_event *event;

	test_name = "subscriptions";
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		bool low, high;

		tap = SUBSCRIBE(publisher, table[i].topic);
		expect_nothing(tap);
		low = wait_for(publisher, LOW, "bridge.stopping", table[i].low ? TIMEOUT_MS : 100);
		high = wait_for(publisher, HIGH, "bridge.stopping",
				table[i].high ? TIMEOUT_MS : 100);
		if (low != table[i].low || high != table[i].high)
			fail("\"%s\" connects low %d high %d", table[i].topic, low, high);
		coretap_close(tap);
	}

	/* Libzmq matches prefixes; a topic that merely begins alike is not asked for. */
	tap = SUBSCRIBE(publisher, ADDED);
	connect_to(tap, publisher, LOW);
	send_message(publisher, LOW,
		     (struct message){ ADDED "_twice", .n = 1, .seq = 1, .events = 1 });
	send_message(publisher, LOW, (struct message){ ADDED ".x", .n = 1, .seq = 1, .events = 1 });
	send_message(publisher, LOW, (struct message){ ADDED, .n = 2, .seq = 1, .events = 1 });
	expect_event(tap, ADDED, 1, 2);
	expect_nothing(tap);
	if (coretap_subscribe(tap, REMOVED) != -EBUSY)
		fail("subscribed too late");
	coretap_close(tap);

	if (coretap_open(publisher->address, &tap))
		exit(1);
	if (coretap_next(tap, &event, 0) != -EINVAL || coretap_fd(tap) != -EINVAL)
		fail("no subscription is no error");
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		if (coretap_subscribe(tap, wrong[i]) != -EINVAL)
			fail("\"%s\" is taken for a topic", wrong[i]);
	if (coretap_subscribe(tap, NULL) != -EINVAL || coretap_set_position(tap, NULL) != -EINVAL ||
	    coretap_set_position(tap, "") != -EINVAL)
		fail("nothing is taken for a topic or a path");
	coretap_close(tap);
}

/* A child that closes what it inherited does not wait for threads that it has not, and its parent
 * goes on. */
static void test_fork(struct publisher *publisher)
{
	struct coretap *tap;
	int status;
	pid_t pid;

	test_name = "fork";
	tap = SUBSCRIBE(publisher, ADDED);
	connect_to(tap, publisher, LOW);
	send_message(publisher, LOW, (struct message){ ADDED, .n = 1, .seq = 1, .events = 1 });
	expect_event(tap, ADDED, 1, 1);
	pid = fork();
	if (!pid) {
		alarm(60);
		coretap_close(tap);
		/* Another program's end: what is the parent's is no leak of the child's. */
		execl("/bin/true", "true", NULL);
		_exit(1);
	}
	if (waitpid(pid, &status, 0) != pid || status)
		fail("the child ended with %x", (unsigned int)status);
	send_message(publisher, LOW, (struct message){ ADDED, .n = 2, .seq = 2, .events = 1 });
	expect_event(tap, ADDED, 2, 2);
	coretap_close(tap);
}

static void test_addresses(void)
{
	static const struct {
		const char *address;
		int result;
	} table[] = {
		{ NULL, 0 },
		{ "tcp://127.0.0.1:28370", 0 },
		{ "tcp://[::1]:1", 0 },
		{ "tcp://node.example:65533", 0 },
		{ "tcp://node.example:65534", -EINVAL },
		{ "tcp://node.example:0", -EINVAL },
		{ "tcp://node.example:", -EINVAL },
		{ "tcp://node.example", -EINVAL },
		{ "tcp://:28370", -EINVAL },
		{ "tcp://::1:28370", -EINVAL },
		{ "tcp://a:99999999999999999999", -EINVAL },
		{ "tcp://a:-1", -EINVAL },
		{ "tcp://a b:1", -EINVAL },
		{ "tcp://*:1", -EINVAL },
		{ "tcp://eth0;10.0.0.1:1", -EINVAL },
		{ "tcp://\xc3\xa9:1", -EINVAL },
		{ "tcp://[fe80::1%eth0]:1", 0 },
		{ "ipc:///run/coretap/node/", 0 },
		{ "ipc://run/coretap", -EINVAL },
		{ "inproc://x", -EINVAL },
		{ "", -EINVAL },
	};

	test_name = "addresses";
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		struct coretap *tap = NULL;
		int result = coretap_open(table[i].address, &tap);

		if (result != table[i].result)
			fail("%s: %d", table[i].address ? table[i].address : "NULL", result);
		coretap_close(tap);
	}

	/* The longest directory in which replay.sock still fits an address of 107 bytes. */
	for (size_t length = 95; length <= 96; length++) {
		struct coretap *tap = NULL;
		char address[128] = "ipc:///";
		int result;

		memset(address + 7, 'a', length - 1);
		result = coretap_open(address, &tap);
		if (result != (length == 95 ? 0 : -ENAMETOOLONG))
			fail("directory of %zu bytes: %d", length, result);
		coretap_close(tap);
	}
}

static void test_fields(struct publisher *publisher)
{
	static const struct head heads[] = { { ADDED, 5 }, { "custom.a.b", 6 }, { 0 } };
	struct coretap *tap = SUBSCRIBE(publisher, "mempool.", "bridge.status");
	const struct coretap_event *event;
	const unsigned char *hash;
	const char *text;
	uint64_t number = 0;
	int64_t number_signed = 0;
	size_t length;
	int truth;

	test_name = "fields";
	connect_to(tap, publisher, LOW);
	connect_to(tap, publisher, HIGH);
	send_message(publisher, LOW,
		     (struct message){ "mempool.rejected", .n = 1, .seq = 1, .events = 1,
				       .other = "\x1b[2Jgone\n" });
	if (coretap_next(tap, &event, TIMEOUT_MS) != 1) {
		fail("no event");
		return;
	}
	if (coretap_get_uint(event, "vsize", &number) != CORETAP_SET || number != 141)
		fail("vsize");
	if (coretap_get_int(event, "vsize", &number_signed) != CORETAP_SET || number_signed != 141)
		fail("vsize, signed");
	if (coretap_get_text(event, "reason", &text, &length) != CORETAP_SET || length != 9 ||
	    memcmp(text, "\x1b[2Jgone\n", 9))
		fail("reason");
	if (coretap_get_bool(event, "vsize", &truth) != -EPROTOTYPE ||
	    coretap_get_hash(event, "reason", &hash) != -EPROTOTYPE)
		fail("type of another field");
	if (coretap_get_hash(event, "txid", &hash) != -ENOENT ||
	    coretap_get_uint(event, "vsize.x", &number) != -ENOENT)
		fail("a field that is absent");
	if (!strstr(coretap_event_json(event, &length), "\"reason\":\"\\u001b[2Jgone\\n\"") ||
	    length != strlen(coretap_event_json(event, NULL)))
		fail("json: %s", coretap_event_json(event, NULL));

	send_status(publisher, LOW, "bridge.status", 0, heads);
	if (coretap_next(tap, &event, TIMEOUT_MS) != 1 ||
	    coretap_event_kind(event) != CORETAP_STATUS || coretap_event_n(event) != 500 ||
	    coretap_event_time_us(event) != 77) {
		fail("no status");
		return;
	}
	if (coretap_get_uint(event, "heads.mempool.added", &number) != CORETAP_SET || number != 5 ||
	    coretap_get_uint(event, "heads.custom.a.b", &number) != CORETAP_SET || number != 6 ||
	    coretap_get_uint(event, "heads.custom.a", &number) != -ENOENT ||
	    coretap_get_uint(event, "heads.", &number) != -ENOENT)
		fail("heads by name");
	coretap_close(tap);
}

/* Stopping ends a stream in good order; a publisher that comes back is found by itself. */
static void test_stopping(struct publisher *publisher)
{
	static const struct head heads[] = { { ADDED, 9 }, { 0 } };
	struct coretap *tap = SUBSCRIBE(publisher, ADDED);
	unsigned int late = 0;
	int64_t start;

	test_name = "stopping";
	connect_to(tap, publisher, LOW);
	send_message(publisher, LOW, (struct message){ ADDED, .n = 1, .seq = 7, .events = 1 });
	expect_event(tap, ADDED, 7, 1);
	send_status(publisher, LOW, "bridge.stopping", 0, heads);
	expect(tap, RANGE("gap", ADDED, "8", "9"));
	expect(tap, "{\"notice\":\"stopping\",\"socket\":\"low\",\"topic\":\"bridge.stopping\","
		    "\"node\":\"host\",\"run\":1700000000000000,\"time_us\":77}");

	/* A busy machine may keep it from that once. */
	for (unsigned int i = 0; i < 3; i++) {
		publisher_unbind(publisher);
		usleep(300 * 1000);
		publisher_bind(publisher);
		start = now_ms();
		/* Libzmq subscribes anew inside of coretap_next. */
		do
			expect_quiet(tap, 1);
		while (!wait_for(publisher, LOW, "bridge.stopping", 1) &&
		       now_ms() - start < TIMEOUT_MS);
		late += now_ms() - start > 250;
	}
	if (late > 1)
		fail("came back late, %u times of three", late);
	send_message(publisher, LOW, (struct message){ ADDED, .n = 3, .seq = 10, .events = 1 });
	expect(tap, "{\"notice\":\"alive\",\"socket\":\"low\"}");
	expect_event(tap, ADDED, 10, 3);
	expect_nothing(tap);
	coretap_close(tap);
}

/* A descriptor in a poll loop: whatever arrives wakes it, when it is drained each time. */
static void test_descriptor(struct publisher *publisher)
{
	struct coretap *tap = SUBSCRIBE(publisher, ADDED, "utxocache.add");
	struct pollfd fd = { .events = POLLIN };
	const struct coretap_event *event;
	unsigned int events = 0;
	int64_t deadline;

	test_name = "descriptor";
	fd.fd = coretap_fd(tap);
	if (fd.fd < 0)
		fail("coretap_fd: %d", fd.fd);
	if (coretap_next(tap, &event, 0))
		fail("something came");
	if (!wait_for(publisher, LOW, "bridge.stopping", TIMEOUT_MS) ||
	    !wait_for(publisher, HIGH, "bridge.stopping", TIMEOUT_MS))
		fail("no subscription arrived");
	deadline = now_ms() + TIMEOUT_MS;
	for (unsigned int i = 1; i <= 200 && now_ms() < deadline; i++) {
		send_message(publisher, LOW,
			     (struct message){ ADDED, .n = i, .seq = i, .events = 1 });
		send_message(publisher, HIGH,
			     (struct message){ "utxocache.add", .n = i, .seq = i, .events = 1 });
		while (events < 2 * i && now_ms() < deadline) {
			if (poll(&fd, 1, 1000) != 1)
				fail("not woken for %u", i);
			while (coretap_next(tap, &event, 0) == 1)
				if (coretap_event_kind(event) == CORETAP_EVENT)
					events++;
				else
					fail("%s", coretap_event_json(event, NULL));
		}
	}
	if (events != 400)
		fail("%u events", events);
	coretap_close(tap);
}

/* Silence: of one who spoke before, of one who never did. Both within the same four seconds. */
static void test_stale(struct publisher *publisher)
{
	struct publisher nobody = { .address = "ipc:///tmp/coretap-test-nobody" };
	struct coretap *tap = SUBSCRIBE(publisher, ADDED), *lonely;
	int64_t start;

	test_name = "stale";
	connect_to(tap, publisher, LOW);
	send_message(publisher, LOW, (struct message){ ADDED, .n = 1, .seq = 1, .events = 1 });
	expect_event(tap, ADDED, 1, 1);
	start = now_ms();
	lonely = SUBSCRIBE(&nobody, ADDED);
	expect_nothing(lonely);
	expect(tap, "{\"notice\":\"stale\",\"socket\":\"low\",\"node\":\"host\","
		    "\"run\":1700000000000000}");
	if (now_ms() - start < 2900 || now_ms() - start > 3000 + AT_ONCE_MS)
		fail("after %" PRId64 " ms", now_ms() - start);
	expect(lonely, "{\"notice\":\"stale\",\"socket\":\"low\"}");
	expect_nothing(tap);
	expect_nothing(lonely);
	send_message(publisher, LOW, (struct message){ ADDED, .n = 3, .seq = 3, .events = 1 });
	expect(tap, "{\"notice\":\"alive\",\"socket\":\"low\"}");
	expect(tap, RANGE("gap", ADDED, "2", "2"));
	expect_event(tap, ADDED, 3, 3);
	coretap_close(lonely);

	/* Whoever was away himself finds what came meanwhile, and no silence. */
	usleep(3500 * 1000);
	send_message(publisher, LOW, (struct message){ ADDED, .n = 4, .seq = 4, .events = 1 });
	expect_event(tap, ADDED, 4, 4);
	coretap_close(tap);
}

int main(void)
{
	struct publisher publisher;

	setvbuf(stdout, NULL, _IOLBF, 0);
	publisher_open(&publisher);
	test_addresses();
	test_fork(&publisher);
	test_rule(&publisher);
	test_large_numbers(&publisher);
	test_status(&publisher);
	test_runs(&publisher);
	test_malformed(&publisher);
	test_subscriptions(&publisher);
	test_fields(&publisher);
	test_descriptor(&publisher);
	test_stopping(&publisher);
	test_stale(&publisher);
	publisher_close(&publisher);
	return failures ? 1 : 0;
}
