/* What a stranger may send to a subscriber: messages on a PUB socket, and answers of replay. The
 * account that the subscriber keeps must add up: each firing of a topic is told once, as an event,
 * a loss or a gap, in order. */
#include "fuzz.h"

#include "../../clients/c/filler.h"

#include <errno.h>

#define MAX_ACCOUNTS 4096
#define MAX_STEPS 100000

static struct input input; /* of the live stream and of replay alike */
static uint8_t *answers[2];
static bool answering; /* more frames of an answer follow */

/* Where a topic of a node's run is. */
static struct account {
	char node[DECODE_MAX_LABEL + 1];
	char topic[MAX_TOPIC + 1];
	uint64_t next;
} accounts[MAX_ACCOUNTS];
static size_t n_accounts;

/* ---- in the place of transport.c ---- */

int transport_ask(struct transport *transport, enum socket_id socket, const void *request,
		  size_t length)
{
	(void)transport;
	(void)socket;
	answering = false; /* an answer that was not taken whole is given up */
	MUST(length <= 4096 && is_msgpack(request, length));
	return 0;
}

/* Two bytes: the frame's length; the highest bits: others follow, nothing yet, broken. Of an answer
 * that has begun every frame is there: libzmq hands messages on as a whole. */
int transport_answer(struct transport *transport, enum socket_id socket, unsigned int place,
		     struct frame *frame, bool *more)
{
	size_t head = take_number(&input, 2);

	(void)transport;
	(void)socket;
	MUST(place < 2);
	if (!answering && head & 0x2000)
		return -ECONNRESET;
	if (!answering && (head & 0x4000 || !input.left))
		return 0;
	free(answers[place]);
	frame->length = head & 0x1fff;
	answers[place] = take_block(&input, &frame->length);
	frame->data = answers[place];
	*more = answering = head & 0x8000;
	return 1;
}

void transport_hang_up(struct transport *transport, enum socket_id socket)
{
	(void)transport;
	(void)socket;
	answering = false;
}

/* ---- the account ---- */

static struct account *account_of(const struct coretap_event *event)
{
	struct account *account;

	for (size_t i = 0; i < n_accounts; i++)
		if (!strcmp(accounts[i].node, event->node) &&
		    !strcmp(accounts[i].topic, event->topic))
			return &accounts[i];
	MUST(n_accounts < MAX_ACCOUNTS);
	account = &accounts[n_accounts++];
	strcpy(account->node, event->node);
	strcpy(account->topic, event->topic);
	account->next = 0;
	return account;
}

static void accounts_drop(const char *node)
{
	size_t kept = 0;

	for (size_t i = 0; i < n_accounts; i++)
		if (strcmp(accounts[i].node, node))
			accounts[kept++] = accounts[i];
	n_accounts = kept;
}

static void tell(const struct coretap_event *event, uint64_t first, uint64_t last)
{
	struct account *account = account_of(event);

	MUST(first && first <= last);
	MUST(!account->next || account->next == first);
	account->next = last + 1;
}

/* ---- what a reader does with an event ---- */

static void read_fields(const struct coretap_event *event)
{
	static const char *const names[] = { "time_us",
					     "txid",
					     "reason",
					     "txids",
					     "vsizes",
					     "conflicts",
					     "conflicts.fees",
					     "heads",
					     "heads.mempool.added",
					     "payload",
					     "final",
					     "v",
					     "",
					     "." };
	struct coretap_array array;
	const unsigned char *bytes;
	const char *text;
	uint64_t number;
	int64_t integer;
	size_t length;
	int flag;

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		coretap_get_uint(event, names[i], &number);
		coretap_get_int(event, names[i], &integer);
		coretap_get_bool(event, names[i], &flag);
		if (coretap_get_text(event, names[i], &text, &length) == CORETAP_SET && length)
			flag += text[0] + text[length - 1];
		if (coretap_get_hash(event, names[i], &bytes) == CORETAP_SET)
			flag += bytes[0] + bytes[31];
		if (coretap_get_bytes(event, names[i], &bytes, &length) == CORETAP_SET && length)
			flag += bytes[0] + bytes[length - 1];
		if (coretap_get_array(event, names[i], &array) != CORETAP_SET)
			continue;
		while (coretap_array_hash(&array, &bytes) != -ENOENT)
			;
	}
}

static void read_json(const struct coretap_event *event)
{
	size_t length;
	const uint8_t *at = (const uint8_t *)coretap_event_json(event, &length), *end;
	uint32_t point;

	MUST(at && length >= 2 && at[0] == '{' && at[length - 1] == '}');
	for (end = at + length; at < end;) {
		unsigned int bytes = decode_utf8(at, end, &point);

		MUST(bytes && point >= 0x20 && (point < 0x7f || point > 0x9f));
		at += bytes;
	}
}

static void drain(struct tracker *tracker, struct coretap_event *event)
{
	for (size_t steps = 0; tracker_next(tracker, event); steps++) {
		MUST(steps < MAX_STEPS);
		read_json(event);
		read_fields(event);
		switch (event->kind) {
		case CORETAP_EVENT:
			tell(event, event->seq, event->seq);
			break;
		case CORETAP_GAP:
		case CORETAP_LOST:
			tell(event, event->first, event->last);
			break;
		case CORETAP_NEW_RUN:
			MUST(event->old_run < event->run);
			accounts_drop(event->node);
			break;
		default:
			break;
		}
	}
}

static void fill(struct filler *filler, struct tracker *tracker, struct coretap_event *event)
{
	int64_t now = 0;
	int step;

	filler_begin(filler, now);
	for (size_t steps = 0; (step = filler_step(filler, now)) != FILLER_DONE; steps++) {
		MUST(step == FILLER_TELLS || step == FILLER_WAITS);
		MUST(steps < MAX_STEPS);
		if (step == FILLER_TELLS)
			drain(tracker, event);
		else
			now += 250;
	}
}

/* ---- messages ---- */

static const char *take_topic(void)
{
	static const char *const others[] = { TOPIC_STATUS, TOPIC_STOPPING, "mine.own", "", "a b" };
	size_t n, number = take_number(&input, 1);
	const struct event_desc *events = catalogue(&n);

	number %= n + sizeof(others) / sizeof(others[0]);
	return number < n ? events[number].topic : others[number - n];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static char *whole[] = { "" };
	static char *some[] = { "mempool.", "bridge.status", "block.evictions" };
	static char *one[] = { "mempool.removed" };
	static const struct filter filters[] = { { one, 1 }, { some, 3 }, { whole, 1 } };
	uint64_t counters[CORETAP_COUNT_REPLAYED + 1] = { 0 };
	struct json json = { 0 };
	struct coretap_event event = { .json = &json };
	struct tracker *tracker;
	struct filler *filler;
	unsigned int flags;

	input = (struct input){ data, size };
	n_accounts = 0;
	answering = false;
	flags = (unsigned int)take_number(&input, 1);
	tracker = tracker_new(flags & 4 ? SOCKET_HIGH : SOCKET_LOW, &filters[flags % 3], counters);
	MUST(tracker);
	tracker_set_coverage(tracker, (enum coverage)(flags % 3));
	filler = filler_new(NULL, SOCKET_LOW, tracker, &filters[flags % 3]);
	MUST(filler);
	if (flags & 8)
		filler_want_since(filler, 5);
	while (input.left) {
		const char *topic = take_topic();
		size_t length = take_number(&input, 2);
		uint8_t *body = take_block(&input, &length);
		int err = tracker_take(tracker, ORIGIN_LIVE, topic, strlen(topic), body, length);

		if (err == TRACKER_MISSING) {
			if (!(flags & 16))
				fill(filler, tracker, &event);
			err = tracker_take(tracker, ORIGIN_FINAL, topic, strlen(topic), body,
					   length);
		}
		MUST(!err);
		drain(tracker, &event);
		free(body);
	}
	MUST(counters[CORETAP_COUNT_EVENTS] >= counters[CORETAP_COUNT_REPLAYED]);
	json.length = 0;
	tracker_save(tracker, &json);
	filler_free(filler);
	tracker_free(tracker);
	json_free(&json);
	for (int i = 0; i < 2; i++) {
		free(answers[i]);
		answers[i] = NULL;
	}
	return 0;
}
