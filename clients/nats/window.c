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

/* A message that waits, and what it takes to send it again. */
struct entry {
	int64_t sent_at;
	struct message message; /* its texts and body are in data */
	char *data;
};

struct window {
	natsConnection *connection; /* NULL = detached */
	natsSubscription *acks;
	struct window_options options;
	natsInbox *inbox;
	uint64_t base;	  /* last sequence of the stream when it was attached */
	uint64_t settled; /* last sequence that was handed over */
	uint64_t pushed;  /* last sequence that was sent over this connection */
	uint64_t sent;	  /* last sequence that was taken */
	size_t bytes;	  /* of those that wait */
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
	uint64_t expected = strtoull(natsMsg_GetSubject(msg) + strlen(window->inbox) + 1, NULL, 10);
	const char *json = natsMsg_GetData(msg);
	bool before;

	(void)connection;
	(void)acks;
	if (natsMsg_IsNoResponders(msg)) {
		fail(window, 0,
		     "no stream takes the subject, or it has no leader now (see `coretap-nats "
		     "setup`)");
	} else if (!json || strstr(json, "\"error\":")) {
		take_error(window, json);
	} else if (find_number(json, "\"seq\":") == expected) {
		pthread_mutex_lock(&window->lock);
		before = window->stored >= expected;
		if (!before)
			window->stored = expected;
		pthread_mutex_unlock(&window->lock);
		if (!before)
			wake(window);
	} else {
		fail(window, WINDOW_ELSEWHERE, "an acknowledgement of something else");
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
	natsStatus status = natsInbox_Create(&window->inbox);

	if (status == NATS_OK) {
		snprintf(subject, sizeof(subject), "%s.*", window->inbox);
		status = natsConnection_Subscribe(&window->acks, window->connection, subject,
						  take_ack, window);
	}
	if (status == NATS_OK)
		status = natsSubscription_SetPendingLimits(window->acks, -1, -1);
	if (status == NATS_OK)
		status = natsSubscription_SetOnCompleteCB(window->acks, take_end, window);
	if (status == NATS_OK)
		return true;
	window->ended = true; /* nobody would tell */
	fail(window, 0, server_error(status, 0));
	return false;
}

static struct entry *entry_of(const struct window *window, uint64_t sequence)
{
	return &window->entries[sequence % window->options.messages];
}

struct window *window_open(const struct window_options *options, uint64_t last)
{
	struct window *window = calloc(1, sizeof(*window));

	if (!window)
		return NULL;
	window->options = *options;
	window->base = window->settled = window->pushed = window->sent = window->stored = last;
	pthread_mutex_init(&window->lock, NULL);
	pthread_cond_init(&window->done, NULL);
	window->entries = calloc(options->messages, sizeof(*window->entries));
	if (window->entries)
		return window;
	window_close(window);
	return NULL;
}

void window_close(struct window *window)
{
	if (!window)
		return;
	window_detach(window);
	while (window->settled < window->sent)
		free(entry_of(window, ++window->settled)->data);
	pthread_cond_destroy(&window->done);
	pthread_mutex_destroy(&window->lock);
	free(window->entries);
	free(window);
}

bool window_holds(const struct window *window, uint64_t last)
{
	return last >= window->settled && last <= window->sent;
}

void window_id(const struct window *window, uint64_t sequence, char id[WINDOW_ID])
{
	snprintf(id, WINDOW_ID, "%s/%s", entry_of(window, sequence)->message.id,
		 window->options.writer);
}

static natsStatus set_headers(const struct window *window, natsMsg *msg, uint64_t sequence,
			      const struct message *message)
{
	char text[WINDOW_ID];
	natsStatus status;

	window_id(window, sequence, text);
	status = natsMsgHeader_Set(msg, "Nats-Msg-Id", text);
	snprintf(text, sizeof(text), "%" PRIu64, sequence - 1);
	if (status == NATS_OK)
		status = natsMsgHeader_Set(msg, "Nats-Expected-Last-Sequence", text);
	if (status == NATS_OK && sequence == window->base + 1)
		status = natsMsgHeader_Set(msg, "Nats-Expected-Stream", window->options.stream);
	snprintf(text, sizeof(text), "%s %s", socket_name(message->mark.socket),
		 window->options.writer);
	if (status == NATS_OK)
		status = natsMsgHeader_Set(msg, HEADER_ORIGIN, text);
	snprintf(text, sizeof(text), "%" PRIu64, message->other_status);
	if (status == NATS_OK && message->other_status)
		status = natsMsgHeader_Set(msg, HEADER_STATUS, text);
	return status;
}

static void send_entry(struct window *window, uint64_t sequence)
{
	struct entry *entry = entry_of(window, sequence);
	const struct message *message = &entry->message;
	natsMsg *msg = NULL;
	char reply[128];
	natsStatus status;

	snprintf(reply, sizeof(reply), "%s.%" PRIu64, window->inbox, sequence);
	entry->sent_at = now_ms();
	status = natsMsg_Create(&msg, message->subject, reply, message->body, (int)message->length);
	if (status == NATS_OK)
		status = set_headers(window, msg, sequence, message);
	if (status == NATS_OK)
		status = natsConnection_PublishMsg(window->connection, msg);
	natsMsg_Destroy(msg);
	if (status != NATS_OK)
		fail(window, 0, server_error(status, 0));
}

static bool has_failed(struct window *window)
{
	bool failed;

	pthread_mutex_lock(&window->lock);
	failed = window->failed;
	pthread_mutex_unlock(&window->lock);
	return failed;
}

/* The first one alone shows whether there is room, and whether somebody else writes. */
static void push(struct window *window)
{
	while (window->pushed < window->sent && !has_failed(window) &&
	       (window->pushed == window->base || window_stored(window) > window->base))
		send_entry(window, ++window->pushed);
}

int window_attach(struct window *window, natsConnection *connection, uint64_t last)
{
	window->connection = connection;
	window->ended = window->failed = false;
	if (window->stored < last)
		window->stored = last;
	if (!subscribe(window)) {
		window_detach(window);
		return -EAGAIN;
	}
	window->base = window->pushed = last;
	push(window);
	return 0;
}

void window_detach(struct window *window)
{
	if (window->acks) {
		/* That ends the thread that reads messages for the subscription, and the
		 * subscription. */
		natsConnection_Close(window->connection);
		pthread_mutex_lock(&window->lock);
		while (!window->ended)
			pthread_cond_wait(&window->done, &window->lock);
		pthread_mutex_unlock(&window->lock);
		natsSubscription_Destroy(window->acks);
	}
	natsInbox_Destroy(window->inbox);
	window->acks = NULL;
	window->inbox = NULL;
	window->connection = NULL;
}

bool window_has_room(const struct window *window)
{
	size_t most = window->settled == window->base ? 1 : window->options.messages;
	size_t waiting = window_waiting(window);

	if (window->settled < window->pushed &&
	    now_ms() - entry_of(window, window->settled + 1)->sent_at > WINDOW_LEASE_MS)
		return false;
	return waiting < most && window->bytes < window->options.bytes;
}

uint64_t window_publish(struct window *window, const struct message *message)
{
	struct entry *entry = entry_of(window, window->sent + 1);
	size_t subject = strlen(message->subject) + 1, id = strlen(message->id) + 1;
	char *data = malloc(subject + id + message->length);

	if (!data)
		return 0;
	memcpy(data, message->subject, subject);
	memcpy(data + subject, message->id, id);
	memcpy(data + subject + id, message->body, message->length);
	entry->data = data;
	entry->message = *message;
	entry->message.subject = data;
	entry->message.id = data + subject;
	entry->message.body = data + subject + id;
	window->bytes += message->length;
	window->sent++;
	push(window);
	return window->sent;
}

void window_settle(struct window *window, void (*stored)(const struct mark *mark))
{
	uint64_t up_to = window_stored(window);

	while (window->settled < up_to) {
		struct entry *entry = entry_of(window, ++window->settled);

		window->bytes -= entry->message.length;
		stored(&entry->message.mark);
		free(entry->data);
	}
	push(window);
	if (window->settled < window->pushed &&
	    now_ms() - entry_of(window, window->settled + 1)->sent_at > window->options.timeout_ms)
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
