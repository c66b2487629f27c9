/* coretap-nats tail: events out of a stream, as `coretap tail` shows them. */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "../c/command/command.h"
#include "../c/tracker.h"
#include "server.h"
#include "stream.h"

#define WAIT_MS 200
#define MAX_TOPICS 64

/* What a node said on a socket: its numbers are counted for themselves. */
struct channel {
	struct channel *after;
	struct tracker *tracker;
	enum socket_id socket;
	char node[33];
};

struct tail {
	struct server server;
	const char *stream_name, *node, *since;
	struct output out;
	uint64_t count;
	char *topics[MAX_TOPICS];
	struct filter filter;
	struct channel *channels;
	uint64_t counters[CORETAP_COUNT_REPLAYED + 1];
	struct json json;
	bool ended;
};

static struct channel *find_channel(struct tail *tail, const char *node, size_t length,
				    enum socket_id socket)
{
	struct channel *channel = tail->channels;

	while (channel && (channel->socket != socket || strlen(channel->node) != length ||
			   memcmp(channel->node, node, length)))
		channel = channel->after;
	if (channel)
		return channel;
	channel = calloc(1, sizeof(*channel));
	if (!channel)
		return NULL;
	channel->tracker = tracker_new(socket, &tail->filter, tail->counters);
	if (!channel->tracker) {
		free(channel);
		return NULL;
	}
	memcpy(channel->node, node, length);
	channel->socket = socket;
	channel->after = tail->channels;
	tail->channels = channel;
	return channel;
}

static void show_notice(struct tail *tail, struct coretap_event *event)
{
	switch (event->kind) {
	case CORETAP_GAP:
	case CORETAP_LOST:
		complain("%s: %s: %s %s, numbers %" PRIu64 " to %" PRIu64, event->node,
			 event->topic, grouped(event->last - event->first + 1),
			 event->kind == CORETAP_GAP ? "not in the stream" : "lost in the kernel",
			 event->first, event->last);
		break;
	case CORETAP_NEW_RUN:
		complain("%s: coretapd began a new run %" PRIu64 " (was %" PRIu64 ")", event->node,
			 event->run, event->old_run);
		break;
	case CORETAP_STOPPING:
		complain("%s: coretapd stopped", event->node);
		break;
	case CORETAP_MALFORMED:
		complain("a malformed message of %s: %s", event->topic, event->reason);
		break;
	default:
		return;
	}
	if (tail->out.json)
		output_json(&tail->out, event);
}

static void show(struct tail *tail, struct tracker *tracker)
{
	struct coretap_event event = { .json = &tail->json };

	while (!tail->ended && tracker_next(tracker, &event)) {
		if (event.kind != CORETAP_EVENT && event.kind != CORETAP_STATUS) {
			show_notice(tail, &event);
			continue;
		}
		if (tail->out.json)
			output_json(&tail->out, &event);
		else
			output_event(&tail->out, &event);
		if (tail->count && !--tail->count)
			tail->ended = true;
		if (ferror(stdout) && !tail->out.error)
			tail->out.error = errno;
		if (tail->out.error)
			tail->ended = true;
	}
}

/* coretap.NODE.TOPIC, and in a header the socket. */
static bool take(struct tail *tail, natsMsg *msg)
{
	const char *subject = natsMsg_GetSubject(msg) + strlen(SUBJECT_PREFIX);
	const char *topic = strchr(subject, '.'), *origin = NULL;
	struct channel *channel;
	size_t length;
	int err;

	if (!topic || topic - subject > DECODE_MAX_LABEL)
		return true;
	length = (size_t)(topic - subject);
	topic++;
	/* The rule of the numbers tells a gap by itself, and where it is. */
	if (!strncmp(topic, TOPIC_GAP, strlen(TOPIC_GAP)) ||
	    !strncmp(topic, TOPIC_STALE, strlen(TOPIC_STALE)))
		return true;
	if (natsMsgHeader_Get(msg, HEADER_ORIGIN, &origin) == NATS_NO_MEMORY)
		return false;
	/* Who may publish there may have none. */
	channel = find_channel(tail, subject, length,
			       origin && !strncmp(origin, "high", 4) ? SOCKET_HIGH : SOCKET_LOW);
	if (!channel)
		return false;
	err = tracker_take(channel->tracker, ORIGIN_FINAL, topic, strlen(topic),
			   natsMsg_GetData(msg), (size_t)natsMsg_GetDataLength(msg));
	if (!err)
		show(tail, channel->tracker);
	return !err;
}

/* One topic can be selected by the server; of several what is not wanted is passed over here. */
static void make_subject(const struct tail *tail, char subject[MAX_SUBJECT])
{
	const char *topic = tail->filter.n_names == 1 ? tail->topics[0] : "";
	bool prefix = !*topic || topic[strlen(topic) - 1] == '.';

	snprintf(subject, MAX_SUBJECT, SUBJECT_PREFIX "%s.%s%s", tail->node ? tail->node : "*",
		 topic, prefix ? ">" : "");
}

static int subscribe(struct tail *tail, jsCtx *js, natsSubscription **subscription)
{
	char subject[MAX_SUBJECT];
	jsSubOptions options;
	jsErrCode code = 0;
	natsStatus status;
	uint64_t time_us;

	make_subject(tail, subject);
	jsSubOptions_Init(&options);
	options.Stream = tail->stream_name;
	options.Ordered = true;
	options.Config.DeliverPolicy = js_DeliverNew;
	if (tail->since) {
		if (!parse_since(tail->since, &time_us))
			return EXIT_USAGE;
		options.Config.DeliverPolicy = time_us ? js_DeliverByStartTime : js_DeliverAll;
		options.Config.OptStartTime = (int64_t)time_us * 1000;
	}
	status = js_SubscribeSync(subscription, js, subject, NULL, &options, &code);
	/* The servers bound what waits here, for who reads slowly, in bytes. */
	if (status == NATS_OK)
		status = natsSubscription_SetPendingLimits(*subscription, -1, -1);
	if (status == NATS_OK)
		return EXIT_DONE;
	complain("stream %s: %s", tail->stream_name,
		 code == JSStreamNotFoundErr ? "there is none of that name"
					     : server_error(status, code));
	return EXIT_OTHER;
}

static int follow(struct tail *tail, natsSubscription *subscription)
{
	struct pollfd fds[2] = { { .events = POLLIN }, { .fd = STDOUT_FILENO } };
	sigset_t signals;
	int code = EXIT_DONE;

	sigemptyset(&signals);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGTERM);
	fds[0].fd = signalfd(-1, &signals, SFD_CLOEXEC);
	if (fds[0].fd < 0) {
		complain("%s", strerror(errno));
		return EXIT_OTHER;
	}
	while (!tail->ended) {
		natsMsg *msg = NULL;
		natsStatus status = natsSubscription_NextMsg(&msg, subscription, 0);

		if (status == NATS_TIMEOUT) {
			if (!output_flush(&tail->out) ||
			    (poll(fds, 2, 0) > 0 &&
			     (fds[0].revents || fds[1].revents & (POLLERR | POLLHUP))))
				break;
			status = natsSubscription_NextMsg(&msg, subscription, WAIT_MS);
		}
		if (status == NATS_TIMEOUT || status == NATS_MISSED_HEARTBEAT)
			continue;
		if (status != NATS_OK) {
			complain("%s: %s", tail->server.at, server_error(status, 0));
			code = EXIT_OTHER;
			break;
		}
		if (!take(tail, msg)) {
			complain("out of memory");
			code = EXIT_OTHER;
			tail->ended = true;
		}
		natsMsg_Destroy(msg);
	}
	close(fds[0].fd);
	return code;
}

static int start(struct tail *tail)
{
	natsSubscription *subscription = NULL;
	natsConnection *connection;
	jsOptions options;
	sigset_t signals;
	jsCtx *js = NULL;
	int code = EXIT_OTHER;

	sigemptyset(&signals);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGTERM);
	sigprocmask(SIG_BLOCK, &signals, NULL);
	connection = server_connect(&tail->server);
	if (!connection) {
		complain("%s", tail->server.reason);
		return EXIT_OTHER;
	}
	jsOptions_Init(&options);
	if (natsConnection_JetStream(&js, connection, &options) == NATS_OK)
		code = subscribe(tail, js, &subscription);
	else
		complain("out of memory");
	if (!code)
		code = follow(tail, subscription);
	/* First, since messages still come for the subscription; it ends the thread that reads
	 * them. */
	natsConnection_Close(connection);
	natsSubscription_Destroy(subscription);
	jsCtx_Destroy(js);
	natsConnection_Destroy(connection);
	nats_Close();
	return code;
}

/* mempool, mempool.*, mempool.removed, *. */
static bool add_topic(struct tail *tail, const char *text)
{
	size_t length = strlen(text);
	char **name = &tail->topics[tail->filter.n_names];

	if (length && text[length - 1] == '*')
		length--;
	errno = 0;
	if (tail->filter.n_names == MAX_TOPICS || length > 90 ||
	    (length && !topic_valid(text, length))) {
		complain("%s: not a topic; `coretap topics` lists them", text);
		return false;
	}
	if (asprintf(name, "%.*s%s", (int)length, text,
		     length && !memchr(text, '.', length) ? "." : "") < 0) {
		complain("out of memory");
		return false;
	}
	tail->filter.n_names++;
	topic_doubt(text, *name);
	return true;
}

static void release(struct tail *tail)
{
	while (tail->channels) {
		struct channel *channel = tail->channels;

		tail->channels = channel->after;
		tracker_free(channel->tracker);
		free(channel);
	}
	for (size_t i = 0; i < tail->filter.n_names; i++)
		free(tail->topics[i]);
	json_free(&tail->json);
}

static int run(const struct subcommand *self, int argc, char **argv)
{
	static const struct option options[] = {
		FOLLOW_OUTPUT_OPTIONS,
		{ "stream", required_argument, NULL, 'm' },
		{ "node", required_argument, NULL, 'N' },
		{ "since", required_argument, NULL, 's' },
		{ "count", required_argument, NULL, 'n' },
		/* As `coretap tail` has it. */
		{ "nats", required_argument, NULL, OPTION_SERVER },
		SERVER_OPTIONS,
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	struct tail tail = { .stream_name = "coretap" };
	struct follow shared = { 0 };
	int option, code = EXIT_DONE, closed;

	tail.filter.names = tail.topics;
	while (!code && (option = getopt_long(argc, argv, "n:h", options, NULL)) != -1)
		switch (option) {
		case 'm':
			tail.stream_name = optarg;
			if (!stream_name_check("--stream", optarg))
				code = usage_error(self);
			break;
		case 'N':
			tail.node = optarg;
			break;
		case 'h':
			return print_help(self);
		default:
			if (!server_option(&tail.server, option, optarg) &&
			    !follow_option(&shared, option))
				code = usage_error(self);
		}
	tail.since = shared.since;
	tail.count = shared.count;
	if (!code && optind == argc && !add_topic(&tail, "*"))
		code = EXIT_OTHER;
	for (int i = optind; !code && i < argc; i++)
		if (!add_topic(&tail, argv[i]))
			code = errno == ENOMEM ? EXIT_OTHER : usage_error(self);
	output_open(&tail.out, shared.json, shared.text);
	if (!code)
		code = start(&tail);
	release(&tail);
	closed = output_close(&tail.out);
	return code ? code : closed;
}

const struct subcommand command_nats_tail = {
	.name = "tail",
	.arguments = "[TOPIC...] [--stream NAME] [--server URL] [--since WHEN] [OPTION...]",
	.summary = "Shows events out of a stream",
	.help = "As `coretap tail` shows them; `coretap tail --nats URL` is the same.\n"
		"TOPIC is mempool.removed, or mempool for all of a provider; none means "
		"everything.\n\n"
		"  --stream NAME  (coretap)\n" SERVER_HELP "\n"
		"  --node LABEL   of this node only (all)\n"
		"  --since WHEN   begin earlier: 10m, 2h or 1d ago, oldest, or a time like\n"
		"                 2009-01-03T18:15:05Z, as the servers stored messages\n"
		"  --count N      end after N events\n"
		"  --json         JSON lines; so it is anyway when standard output is no terminal\n"
		"  --text         text for people, also when it is no terminal\n\n"
		"What the stream lacks is told on standard error, and in JSON also at its place. "
		"Ends on Ctrl-C.\n",
	.run = run,
};
