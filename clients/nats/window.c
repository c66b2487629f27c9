/* See window.h. */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../c/command/command.h"
#include "server.h"
#include "stream.h"
#include "window.h"

struct entry {
	int64_t sent_at;
	size_t size;
	struct mark mark;
};

struct window {
	natsConnection *connection;
	natsSubscription *acks;
	struct window_options options;
	natsInbox *inbox;
	char id[MAX_ID]; /* of the last message sent */
	uint64_t last;	 /* of the stream, when this began */
	uint64_t settled; /* last sequence that was handed over */
	uint64_t sent;	 /* last sequence that was sent */
	size_t bytes;	 /* of those that wait */
	struct entry *entries;

	pthread_mutex_t lock; /* guards what follows */
	pthread_cond_t done;
	bool ended; /* no acknowledgement comes any more */
	uint64_t stored;
	bool failed;
	int code;
	char reason[256];
};

static int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void wake(const struct window *window)
{
	uint64_t one = 1;

	if (write(window->options.wake, &one, sizeof(one)) < 0)
		return; /* it is full: then it wakes anyway */
}

/* The first failure is the cause of all that follow. */
static void fail(struct window *window, int code, const char *reason)
{
	pthread_mutex_lock(&window->lock);
	if (!window->failed) {
		window->failed = true;
		window->code = code;
		snprintf(window->reason, sizeof(window->reason), "%s", reason);
	}
	pthread_mutex_unlock(&window->lock);
	wake(window);
}

/* A number of the acknowledgement, which a server wrote: {"stream":"S","seq":7} or
 * {"error":{"code":400,"err_code":10071,"description":"..."},...}. */
static uint64_t find_number(const char *json, const char *key)
{
	const char *at = strstr(json, key);

	return at ? strtoull(at + strlen(key) + strspn(at + strlen(key), " "), NULL, 10) : 0;
}

static void take_error(struct window *window, const char *json)
{
	static const char key[] = "\"description\":";
	const char *at = json ? strstr(json, key) : NULL;
	char reason[200] = "refused";

	if (at)
		at = strchr(at + strlen(key), '"');
	if (at)
		snprintf(reason, sizeof(reason), "%.*s", (int)strcspn(at + 1, "\""), at + 1);
	fail(window, at ? (int)find_number(json, "\"err_code\":") : 0, reason);
}

static void take_ack(natsConnection *connection, natsSubscription *acks, natsMsg *msg, void *arg)
{
	struct window *window = arg;
	uint64_t expected =
		strtoull(natsMsg_GetSubject(msg) + strlen(window->inbox) + 1, NULL, 10);
	const char *json = natsMsg_GetData(msg);
	uint64_t seq;
	bool before;

	(void)connection;
	(void)acks;
	if (natsMsg_IsNoResponders(msg)) {
		fail(window, 0,
		     "no stream takes the subject, or it has no leader now (see `coretap-nats "
		     "setup`)");
	} else if (!json || strstr(json, "\"error\":")) {
		take_error(window, json);
	} else if ((seq = find_number(json, "\"seq\":")) == expected) {
		pthread_mutex_lock(&window->lock);
		before = window->stored >= expected;
		if (!before)
			window->stored = expected;
		pthread_mutex_unlock(&window->lock);
		if (!before)
			wake(window);
	} else {
		fail(window, 0, "an acknowledgement of something else");
	}
	natsMsg_Destroy(msg);
}

static void take_end(void *arg)
{
	struct window *window = arg;

	pthread_mutex_lock(&window->lock);
	window->ended = true;
	pthread_cond_signal(&window->done);
	pthread_mutex_unlock(&window->lock);
}

static bool subscribe(struct window *window)
{
	char subject[128];

	if (natsInbox_Create(&window->inbox) != NATS_OK)
		return false;
	snprintf(subject, sizeof(subject), "%s.*", window->inbox);
	if (natsConnection_Subscribe(&window->acks, window->connection, subject, take_ack,
				     window) != NATS_OK)
		return false;
	natsSubscription_SetPendingLimits(window->acks, -1, -1);
	if (natsSubscription_SetOnCompleteCB(window->acks, take_end, window) == NATS_OK)
		return true;
	window->ended = true; /* the connection broke already */
	return false;
}

struct window *window_open(natsConnection *connection, const struct window_options *options,
			   uint64_t last)
{
	struct window *window = calloc(1, sizeof(*window));

	if (!window)
		return NULL;
	window->connection = connection;
	window->options = *options;
	window->last = window->settled = window->sent = window->stored = last;
	pthread_mutex_init(&window->lock, NULL);
	pthread_cond_init(&window->done, NULL);
	window->entries = calloc(options->messages, sizeof(*window->entries));
	if (!window->entries || !subscribe(window)) {
		window_close(window);
		return NULL;
	}
	return window;
}

void window_close(struct window *window)
{
	if (!window)
		return;
	if (window->acks) {
		natsSubscription_Unsubscribe(window->acks);
		pthread_mutex_lock(&window->lock);
		while (!window->ended)
			pthread_cond_wait(&window->done, &window->lock);
		pthread_mutex_unlock(&window->lock);
		natsSubscription_Destroy(window->acks);
	}
	natsInbox_Destroy(window->inbox);
	pthread_cond_destroy(&window->done);
	pthread_mutex_destroy(&window->lock);
	free(window->entries);
	free(window);
}

bool window_has_room(const struct window *window)
{
	return window_waiting(window) < window->options.messages &&
	       window->bytes < window->options.bytes;
}

static natsStatus set_headers(struct window *window, natsMsg *msg,
			      const struct message *message)
{
	char text[64];
	natsStatus status = NATS_OK;

	if (window->sent > window->last)
		status = natsMsgHeader_Set(msg, "Nats-Expected-Last-Msg-Id", window->id);
	else
		status = natsMsgHeader_Set(msg, "Nats-Expected-Stream", window->options.stream);
	snprintf(window->id, sizeof(window->id), "%s/%s", message->id, window->options.link);
	if (status == NATS_OK)
		status = natsMsgHeader_Set(msg, "Nats-Msg-Id", window->id);
	snprintf(text, sizeof(text), "%" PRIu64, window->sent);
	if (status == NATS_OK)
		status = natsMsgHeader_Set(msg, "Nats-Expected-Last-Sequence", text);
	snprintf(text, sizeof(text), "%s %s", socket_name(message->mark.socket),
		 window->options.writer);
	if (status == NATS_OK)
		status = natsMsgHeader_Set(msg, HEADER_ORIGIN, text);
	snprintf(text, sizeof(text), "%" PRIu64, message->other_status);
	if (status == NATS_OK && message->other_status)
		status = natsMsgHeader_Set(msg, HEADER_STATUS, text);
	return status;
}

uint64_t window_publish(struct window *window, const struct message *message)
{
	struct entry *entry = &window->entries[(window->sent + 1) % window->options.messages];
	natsMsg *msg = NULL;
	char reply[128];
	natsStatus status;

	entry->sent_at = now_ms();
	entry->size = message->length;
	entry->mark = message->mark;
	snprintf(reply, sizeof(reply), "%s.%" PRIu64, window->inbox, window->sent + 1);
	status = natsMsg_Create(&msg, message->subject, reply, message->body, (int)message->length);
	if (status == NATS_OK)
		status = set_headers(window, msg, message);
	if (status == NATS_OK)
		status = natsConnection_PublishMsg(window->connection, msg);
	natsMsg_Destroy(msg);
	if (status != NATS_OK) {
		fail(window, 0, server_error(status, 0));
		return 0;
	}
	window->bytes += message->length;
	return ++window->sent;
}

void window_settle(struct window *window, void (*stored)(const struct mark *mark))
{
	uint64_t up_to = window_stored(window);
	const struct entry *oldest;

	while (window->settled < up_to) {
		const struct entry *entry =
			&window->entries[++window->settled % window->options.messages];

		window->bytes -= entry->size;
		stored(&entry->mark);
	}
	if (window->settled == window->sent)
		return;
	oldest = &window->entries[(window->settled + 1) % window->options.messages];
	if (now_ms() - oldest->sent_at > window->options.timeout_ms)
		fail(window, 0, "no acknowledgement in time");
}

const char *window_failure(struct window *window, int *code)
{
	bool failed;

	if (natsConnection_Status(window->connection) != NATS_CONN_STATUS_CONNECTED)
		fail(window, 0, "the connection broke");
	pthread_mutex_lock(&window->lock);
	failed = window->failed;
	*code = window->code;
	pthread_mutex_unlock(&window->lock);
	return failed ? window->reason : NULL;
}

uint64_t window_stored(const struct window *window)
{
	struct window *mutable = (struct window *)window;
	uint64_t stored;

	pthread_mutex_lock(&mutable->lock);
	stored = mutable->stored;
	pthread_mutex_unlock(&mutable->lock);
	return stored;
}

uint64_t window_sent(const struct window *window)
{
	return window->sent;
}

size_t window_waiting(const struct window *window)
{
	return (size_t)(window->sent - window->settled);
}
