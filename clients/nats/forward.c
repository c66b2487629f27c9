/* coretap-nats forward: from bridges into a stream, each message once and in order.
 *
 * A connection and a window of messages under way. Whatever fails ends the connection; over the
 * next one the window goes on where the stream ends. Where it cannot, and at the start, the stream
 * itself tells where to go on: nothing is remembered on a disk. */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "../c/command/command.h"
#include "server.h"
#include "source.h"
#include "stream.h"
#include "window.h"

#define RETRY_MS 1000
#define RETRY_MOST_MS                                                                      \
	16000	      /* while a stream takes nothing: each attempt sends the window again \
		       */
#define ACK_MS 5000   /* a message without an acknowledgement for so long is not coming through */
#define QUIET_MS 2000 /* more than WINDOW_LEASE_MS, and than a second between statuses */
#define DRAIN_MS 5000 /* at the end, for what is under way */
#define TURN 256      /* events of one source before the next one has its turn */
#define NOTICE_BYTES 1024 /* what a notice takes at the server at most */

struct forward {
	struct server server;
	const char *stream_name;
	struct source *sources;
	size_t n_sources;
	size_t window_messages, window_bytes;
	int64_t takeover_ms;
	uint64_t report_us;

	char writer[9];
	int wake;
	natsConnection *connection;
	struct stream stream;
	struct window *window; /* NULL = none yet, or it came to nothing */
	bool linked;	       /* it is attached to a connection */
	size_t max_message;    /* when it was opened */
	uint64_t stored;       /* highest sequence that this process knows to be stored */
	bool quiet, standby;   /* waiting for silence; somebody else was seen to write */
	uint64_t quiet_last;
	int64_t quiet_since, retry_at, retry_ms, down_since;
	uint64_t linked_after; /* where the stream ended when the connection was made */
	bool waiting;	       /* the last one left something, and none of it is stored yet */
	char said[300];	       /* why there is no link, as it was told last */
	bool hopeless;	       /* end with an error */

	uint64_t messages, bytes, reported_at, reported_messages, reported_bytes;
};

static int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Says it unless it was the last thing said. */
static void say(struct forward *forward, const char *reason)
{
	if (!strcmp(forward->said, reason))
		return;
	snprintf(forward->said, sizeof(forward->said), "%s", reason);
	complain("%s", reason);
}

static bool has_progress(const struct forward *forward)
{
	return window_stored(forward->window) > forward->linked_after;
}

static void unlink_server(struct forward *forward)
{
	if (forward->linked) {
		forward->waiting = forward->window && window_waiting(forward->window);
		forward->retry_ms = forward->waiting && !has_progress(forward)
					    ? 2 * forward->retry_ms
					    : RETRY_MS;
		if (forward->retry_ms > RETRY_MOST_MS)
			forward->retry_ms = RETRY_MOST_MS;
	}
	if (forward->window)
		window_detach(forward->window);
	if (forward->connection)
		natsConnection_Close(forward->connection);
	stream_close(&forward->stream);
	natsConnection_Destroy(forward->connection);
	forward->connection = NULL;
	forward->linked = false;
	forward->retry_at = now_ms() + forward->retry_ms;
	if (!forward->down_since)
		forward->down_since = now_ms();
}

/* What waits in the window is read again from the bridges. */
static void drop_window(struct forward *forward)
{
	for (size_t i = 0; i < forward->n_sources; i++) {
		source_end(&forward->sources[i]);
		forward->sources[i].last_sent = 0;
	}
	if (forward->window && window_stored(forward->window) > forward->stored)
		forward->stored = window_stored(forward->window);
	window_close(forward->window);
	forward->window = NULL;
}

/* Reads on where the stream ends. Returns 0 or a negative errno value, after saying why; -ESTALE:
 * the window is not the stream's. */
static int begin(struct forward *forward, struct source *source)
{
	int err = stream_position(&forward->stream, source->label, &source->stored);
	uint64_t last;

	if (!err)
		err = stream_ends(&forward->stream, &last);
	if (err)
		say(forward, forward->stream.reason);
	/* What was read while somebody else wrote does not fit together. */
	if (!err && last > window_sent(forward->window)) {
		position_clear(&source->stored);
		err = -ESTALE;
	}
	return err ? err : source_begin(source);
}

/* One forwarder writes to a stream. Who finds the messages of another begins when nothing was
 * written for a while: a short one after a start, when the other has most likely ended; a longer
 * one when it was seen to write. Returns whether this one is to write. */
static bool may_write(struct forward *forward)
{
	int64_t now = now_ms();
	int other = stream_has_other_writer(&forward->stream, forward->writer);

	if (other < 0) {
		say(forward, forward->stream.reason);
		return false;
	}
	if (!other) {
		forward->quiet = forward->standby = false;
		return true;
	}
	if (!forward->quiet || forward->stream.last != forward->quiet_last) {
		if (forward->quiet && !forward->standby) {
			complain("stream %s: another forwarder writes to it; standing by until it "
				 "has been silent for %" PRId64
				 " s (forwarders of different nodes need a stream each)",
				 forward->stream_name, forward->takeover_ms / 1000);
			forward->standby = true;
		}
		forward->quiet = true;
		forward->quiet_last = forward->stream.last;
		forward->quiet_since = now;
	}
	if (now - forward->quiet_since < (forward->standby ? forward->takeover_ms : QUIET_MS))
		return false;
	if (forward->standby)
		complain("stream %s: the other forwarder is silent, taking over",
			 forward->stream_name);
	forward->quiet = forward->standby = false;
	return true;
}

/* Numbers that went back: another stream of that name, or a server that lost what it had
 * acknowledged. What this process remembers of it is void. */
static void compare_last(struct forward *forward)
{
	if (forward->stream.last >= forward->stored)
		return;
	complain("stream %s: ends with %" PRIu64 " although %" PRIu64
		 " was stored: it was made anew, or has lost messages; publishing again what the "
		 "journals hold",
		 forward->stream_name, forward->stream.last, forward->stored);
	forward->stored = 0;
	for (size_t i = 0; i < forward->n_sources; i++)
		position_clear(&forward->sources[i].stored);
}

static int connect_stream(struct forward *forward)
{
	int err;

	forward->connection = server_connect(&forward->server);
	if (!forward->connection) {
		say(forward, forward->server.reason);
		forward->hopeless = forward->server.denied && !forward->stored && !forward->window;
		return -EAGAIN;
	}
	err = stream_open(&forward->stream, forward->connection, forward->stream_name);
	if (!err)
		return 0;
	say(forward, forward->stream.reason);
	forward->hopeless = err == -EINVAL;
	return err;
}

/* Whether what the stream ends with was stored out of the window, or a negative errno value. The
 * writer alone does not tell: a copy of a window that was dropped since may have arrived in this
 * one's place. */
static int is_of_window(struct forward *forward)
{
	char id[WINDOW_ID];

	/* Acknowledged: the window may have let go of it, and a server have lost some of it. */
	if (forward->stream.last <= window_stored(forward->window))
		return 1;
	window_id(forward->window, forward->stream.last, id);
	return stream_ends_with(&forward->stream, id);
}

/* Goes on with the window that was under way when the last connection ended, if the stream is as
 * this one left it; else there is none any more. Returns 0, or -EAGAIN after saying why. */
static int resume_window(struct forward *forward)
{
	int is_ours = 0;

	if (forward->window && window_holds(forward->window, forward->stream.last) &&
	    forward->stream.max_message >= forward->max_message)
		is_ours = is_of_window(forward);
	if (is_ours < 0) {
		say(forward, forward->stream.reason);
		return -EAGAIN;
	}
	if (forward->window && !is_ours)
		drop_window(forward);
	return 0;
}

static int open_window(struct forward *forward)
{
	struct window_options options = { .stream = forward->stream_name,
					  .writer = forward->writer,
					  .messages = forward->window_messages,
					  .bytes = forward->window_bytes,
					  .timeout_ms = ACK_MS,
					  .wake = forward->wake };

	if (!may_write(forward))
		return -EAGAIN;
	compare_last(forward);
	forward->window = window_open(&options, forward->stream.last);
	if (!forward->window) {
		say(forward, "out of memory");
		return -ENOMEM;
	}
	forward->max_message = forward->stream.max_message;
	for (size_t i = 0; i < forward->n_sources; i++) {
		int err = *forward->sources[i].label ? begin(forward, &forward->sources[i]) : 0;

		if (err) {
			drop_window(forward);
			return err == -ESTALE ? -EAGAIN : err;
		}
	}
	return 0;
}

/* Where something waits a connection alone is worth no word: a full stream can be connected to. */
static void tell_linked(struct forward *forward)
{
	complain("stream %s at %s: publishing after sequence %" PRIu64, forward->stream_name,
		 forward->server.at, forward->linked_after);
	if (forward->messages && now_ms() - forward->down_since > RETRY_MS)
		complain("nothing was published for %.1f s; the journals have what happened "
			 "meanwhile, unless told otherwise",
			 (double)(now_ms() - forward->down_since) / 1000);
	forward->down_since = 0;
	forward->waiting = false;
	*forward->said = '\0';
}

static void say_failure(struct forward *forward, const char *why)
{
	char text[300];

	snprintf(text, sizeof(text), "%s: %s; asking the stream where to go on", forward->server.at,
		 why);
	say(forward, text);
}

static int link_server(struct forward *forward)
{
	int err = connect_stream(forward), code;

	if (!err)
		err = resume_window(forward);
	if (!err && !forward->window)
		err = open_window(forward);
	if (err)
		return err;
	err = window_attach(forward->window, forward->connection, forward->stream.last);
	if (err) {
		say_failure(forward, window_failure(forward->window, &code));
		return err;
	}
	forward->linked = true;
	forward->linked_after = forward->stream.last;
	if (!forward->waiting)
		tell_linked(forward);
	return 0;
}

/* Ends the connection when nothing more can be stored over it. */
static void check_window(struct forward *forward)
{
	const char *why;
	int code;

	window_settle(forward->window, source_stored);
	if (forward->waiting && has_progress(forward))
		tell_linked(forward);
	why = window_failure(forward->window, &code);
	if (!why)
		return;
	window_settle(forward->window, source_stored);
	/* Which of several it was, the stream tells. */
	if (code != JSStreamWrongLastSequenceErr)
		say_failure(forward, why);
	unlink_server(forward);
	if (code == JSStreamMessageExceedsMaximumErr || code == WINDOW_ELSEWHERE)
		drop_window(forward);
	if (code == JSStreamWrongLastSequenceErr)
		forward->retry_at = now_ms(); /* the servers answer */
}

static int publish(struct forward *forward, struct source *source, const struct draft *draft)
{
	uint64_t sequence = window_publish(forward->window, &draft->message);

	if (!sequence)
		return -ENOMEM;
	source_sent(source, draft, sequence);
	forward->messages++;
	forward->bytes += draft->message.length;
	return 0;
}

/* Publishes what a source has, for a turn. */
static int pump(struct forward *forward, struct source *source)
{
	static struct draft draft;
	size_t limit = forward->stream.max_message - NOTICE_BYTES;

	for (int i = 0; i < TURN && source->hungry && window_has_room(forward->window); i++) {
		int got = source_next(source, limit, &draft);

		if (got == 1)
			got = publish(forward, source, &draft);
		if (got == -ESTALE || got == -EAGAIN) {
			source_end(source);
			if (got == -ESTALE)
				*source->label = '\0'; /* the next status tells */
			else
				source->begin_at = now_ms() + RETRY_MS;
			return 0;
		}
		if (got < 0) {
			complain("%s: %s", source->options.address, coretap_strerror(got));
			return got;
		}
	}
	return 0;
}

static void report(struct forward *forward, uint64_t now)
{
	double seconds = (double)(now - forward->reported_at) / 1e6;

	complain("%.0f messages and %.0f bytes a second, %zu under way",
		 (double)(forward->messages - forward->reported_messages) / seconds,
		 (double)(forward->bytes - forward->reported_bytes) / seconds,
		 forward->window ? window_waiting(forward->window) : 0);
	if (forward->down_since)
		complain("nothing was stored for %.0f s%s%s",
			 (double)(now_ms() - forward->down_since) / 1000,
			 *forward->said ? ": " : "", forward->said);
	for (size_t i = 0; i < forward->n_sources; i++)
		complain("%s: %s events behind on low, %s on high", forward->sources[i].label,
			 grouped(source_behind(&forward->sources[i], SOCKET_LOW)),
			 grouped(source_behind(&forward->sources[i], SOCKET_HIGH)));
	forward->reported_at = now;
	forward->reported_messages = forward->messages;
	forward->reported_bytes = forward->bytes;
}

/* One round over everything. Returns 0 or a negative errno value, after saying why. */
static int turn(struct forward *forward)
{
	int err = 0;

	if (!forward->linked && now_ms() >= forward->retry_at) {
		err = link_server(forward);
		if (err) {
			unlink_server(forward);
			if (forward->quiet && !forward->standby)
				forward->retry_at = now_ms() + QUIET_MS / 8;
			if (err == -EAGAIN && !forward->hopeless)
				err = 0;
		}
	}
	for (size_t i = 0; i < forward->n_sources && !err; i++) {
		struct source *source = &forward->sources[i];

		if (source_watch(source))
			source->begin_at = now_ms();
		/* What is under way is not in the stream yet: that comes first. */
		if (forward->linked && source->begin_at && now_ms() >= source->begin_at &&
		    window_stored(forward->window) >= source->last_sent) {
			err = begin(forward, source);
			if (err == -EAGAIN || err == -ESTALE)
				unlink_server(forward);
			/* Where servers only did not answer, what is under way stays what is sent
			 * next: a copy of it may yet arrive. */
			if (err == -ESTALE)
				drop_window(forward);
			if (err == -EAGAIN || err == -ESTALE)
				err = 0;
		}
		if (forward->linked && source->tap)
			err = pump(forward, source);
	}
	if (forward->linked)
		check_window(forward);
	if (!err && forward->report_us && steady_us() - forward->reported_at >= forward->report_us)
		report(forward, steady_us());
	return err;
}

/* Waits until something is there to do. */
static void await(struct forward *forward, struct pollfd *fds)
{
	bool room = forward->linked && window_has_room(forward->window);
	int timeout = 250;
	nfds_t n = 2;
	uint64_t drop;

	for (size_t i = 0; i < forward->n_sources; i++) {
		struct source *source = &forward->sources[i];

		fds[n++] = (struct pollfd){ .fd = coretap_fd(source->watch), .events = POLLIN };
		if (!source->tap || !room)
			continue;
		if (source->hungry)
			timeout = 0;
		fds[n++] = (struct pollfd){ .fd = coretap_fd(source->tap), .events = POLLIN };
	}
	if (!forward->linked && forward->retry_at - now_ms() < timeout)
		timeout = forward->retry_at > now_ms() ? (int)(forward->retry_at - now_ms()) : 0;
	poll(fds, n, timeout);
	if (fds[1].revents && read(forward->wake, &drop, sizeof(drop)) < 0)
		return;
	for (size_t i = 0; i < forward->n_sources; i++)
		forward->sources[i].hungry = forward->sources[i].tap;
}

/* What is under way is waited for: whoever starts again finds it in the stream in any case. */
static void drain(struct forward *forward)
{
	int64_t end = now_ms() + DRAIN_MS;

	while (forward->linked && window_waiting(forward->window) && now_ms() < end) {
		struct pollfd fd = { .fd = forward->wake, .events = POLLIN };
		uint64_t drop;

		if (poll(&fd, 1, 100) > 0 && read(forward->wake, &drop, sizeof(drop)) < 0)
			continue;
		check_window(forward);
	}
}

static int forward_run(struct forward *forward)
{
	struct pollfd *fds = calloc(2 + 2 * forward->n_sources, sizeof(*fds));
	sigset_t signals;
	int err = 0;

	if (!fds) {
		complain("out of memory");
		return EXIT_OTHER;
	}
	sigemptyset(&signals);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGTERM);
	fds[0] = (struct pollfd){ .fd = signalfd(-1, &signals, SFD_CLOEXEC), .events = POLLIN };
	if (fds[0].fd < 0) {
		complain("%s", strerror(errno));
		free(fds);
		return EXIT_OTHER;
	}
	fds[1] = (struct pollfd){ .fd = forward->wake, .events = POLLIN };
	forward->reported_at = steady_us();
	while (!err) {
		err = turn(forward);
		if (err)
			break;
		await(forward, fds);
		if (fds[0].revents)
			break;
	}
	if (!err)
		drain(forward);
	close(fds[0].fd);
	free(fds);
	return err ? EXIT_OTHER : EXIT_DONE;
}

/* ---- the command line ---- */

#define MAX_TOPICS 64

/* mempool, mempool.*, mempool.removed, as with `coretap tail`. */
static char *topic_name(const char *text)
{
	size_t length = strlen(text);
	char *name;

	if (length && text[length - 1] == '*')
		length--;
	if (asprintf(&name, "%.*s%s", (int)length, text,
		     length && !memchr(text, '.', length) ? "." : "") < 0) {
		complain("out of memory");
		return NULL;
	}
	return name;
}

static bool parse_number(const char *what, const char *text, uint64_t max, uint64_t *number)
{
	char *end;

	errno = 0;
	*number = strtoull(text, &end, 10);
	if (*end && strchr("kKMG", *end) && !end[1])
		*number <<= *end == 'G' ? 30 : *end == 'M' ? 20 : 10;
	else if (*end)
		*number = 0;
	if (*text >= '0' && *text <= '9' && !errno && *number && *number <= max)
		return true;
	complain("%s %s: not a number from 1 to %" PRIu64, what, text, max);
	return false;
}

struct arguments {
	struct forward *forward;
	struct source_options source; /* of the addresses that follow */
	struct source_options *sources;
	char *topics[MAX_TOPICS];
	char server_key[KEY_TEXT + 1], secret_key[KEY_TEXT + 1];
};

static bool add_source(struct arguments *arguments, const char *address)
{
	size_t n = arguments->forward->n_sources;
	struct source_options *sources = reallocarray(arguments->sources, n + 1, sizeof(*sources));

	if (sources) {
		arguments->sources = sources;
		sources[n] = arguments->source;
		sources[n].address = address;
	}
	if (sources && arguments->source.curve_server)
		sources[n].curve_server = strdup(arguments->server_key);
	if (sources && arguments->source.curve_secret)
		sources[n].curve_secret = strdup(arguments->secret_key);
	if (!sources || !sources[n].curve_server != !arguments->source.curve_server ||
	    !sources[n].curve_secret != !arguments->source.curve_secret) {
		complain("out of memory");
		return false;
	}
	arguments->forward->n_sources++;
	return true;
}

static bool take_option(struct arguments *arguments, int option, const char *value)
{
	struct forward *forward = arguments->forward;
	struct source_options *source = &arguments->source;
	uint64_t number;

	switch (option) {
	case 's':
		forward->stream_name = value;
		return stream_name_check("--stream", value);
	case 'a':
		return add_source(arguments, value);
	case 'S':
		source->curve_server = arguments->server_key;
		return key_read(value, KEY_PUBLIC, arguments->server_key);
	case 'K':
		source->curve_secret = arguments->secret_key;
		return key_read(value, KEY_SECRET, arguments->secret_key);
	case 't':
		if (source->n_topics == MAX_TOPICS) {
			complain("--topic: at most %d", MAX_TOPICS);
			return false;
		}
		arguments->topics[source->n_topics] = topic_name(value);
		return arguments->topics[source->n_topics] && ++source->n_topics;
	case 'i':
		return parse_duration("--status", value, &source->status_us);
	case 'm':
		return parse_number("--memory", value, 1ull << 40, &source->memory);
	case 'w':
		if (!parse_number("--window", value, 1 << 20, &number))
			return false;
		forward->window_messages = (size_t)number;
		return true;
	case 'T':
		if (!parse_duration("--takeover", value, &number))
			return false;
		forward->takeover_ms = (int64_t)(number / 1000);
		return true;
	case 'r':
		return parse_duration("--report", value, &forward->report_us);
	}
	return server_option(&forward->server, option, value);
}

static int open_sources(struct arguments *arguments)
{
	struct forward *forward = arguments->forward;

	if (!forward->n_sources && !add_source(arguments, CORETAP_DEFAULT_ADDRESS))
		return EXIT_OTHER;
	forward->sources = calloc(forward->n_sources, sizeof(*forward->sources));
	if (!forward->sources) {
		complain("out of memory");
		return EXIT_OTHER;
	}
	for (size_t i = 0; arguments->sources && i < forward->n_sources; i++) {
		struct source_options *options = &arguments->sources[i];
		int err;

		if (!options->curve_server != !options->curve_secret) {
			complain("--curve-server and --curve-secret belong together, before the "
				 "--address that they are for");
			return EXIT_USAGE;
		}
		/* These hold for all, wherever they stand. */
		options->topics = arguments->topics;
		options->n_topics = arguments->source.n_topics;
		options->status_us = arguments->source.status_us;
		options->memory = arguments->source.memory;
		err = source_open(&forward->sources[i], options);
		if (err)
			return err == -EINVAL ? EXIT_USAGE : EXIT_OTHER;
	}
	for (size_t i = 0; i < arguments->source.n_topics; i++)
		topic_doubt(arguments->topics[i], arguments->topics[i]);
	return EXIT_DONE;
}

static int start(struct arguments *arguments)
{
	struct forward *forward = arguments->forward;
	unsigned int id;
	sigset_t signals;
	int code;

	/* Before libnats has threads, which inherit the mask. */
	sigemptyset(&signals);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGTERM);
	signal(SIGPIPE, SIG_IGN);
	forward->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (sigprocmask(SIG_BLOCK, &signals, NULL) || forward->wake < 0 ||
	    getrandom(&id, sizeof(id), 0) != sizeof(id)) {
		complain("%s", strerror(errno));
		return EXIT_OTHER;
	}
	snprintf(forward->writer, sizeof(forward->writer), "%08x", id);
	/* Not while the other one may still write: see window.h. */
	if (forward->takeover_ms < QUIET_MS)
		forward->takeover_ms = QUIET_MS;
	/* Statuses are what a forwarder writes at least. */
	if (forward->takeover_ms < (int64_t)(3 * arguments->source.status_us / 1000))
		forward->takeover_ms = (int64_t)(3 * arguments->source.status_us / 1000);
	code = open_sources(arguments);
	if (!code)
		code = forward_run(forward);
	unlink_server(forward);
	if (forward->sources)
		drop_window(forward);
	for (size_t i = 0; forward->sources && i < forward->n_sources; i++)
		source_close(&forward->sources[i]);
	close(forward->wake);
	nats_Close();
	return code;
}

static int run(const struct subcommand *self, int argc, char **argv)
{
	static const struct option options[] = {
		{ "stream", required_argument, NULL, 's' },
		{ "address", required_argument, NULL, 'a' },
		{ "curve-server", required_argument, NULL, 'S' },
		{ "curve-secret", required_argument, NULL, 'K' },
		{ "topic", required_argument, NULL, 't' },
		{ "status", required_argument, NULL, 'i' },
		{ "memory", required_argument, NULL, 'm' },
		{ "window", required_argument, NULL, 'w' },
		{ "takeover", required_argument, NULL, 'T' },
		{ "report", required_argument, NULL, 'r' },
		SERVER_OPTIONS,
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	struct forward forward = { .stream_name = "coretap",
				   .window_messages = 4096,
				   .window_bytes = 16 << 20,
				   .takeover_ms = 5000,
				   .retry_ms = RETRY_MS };
	struct arguments arguments = { .forward = &forward, .source = { .memory = 64 << 20 } };
	int option, code = EXIT_DONE;

	while (!code && (option = getopt_long(argc, argv, "a:h", options, NULL)) != -1) {
		if (option == 'h')
			return print_help(self);
		errno = 0;
		if (option == '?' || !take_option(&arguments, option, optarg))
			code = errno == ENOMEM ? EXIT_OTHER : usage_error(self);
	}
	if (!code && optind < argc) {
		complain("%s: not an option", argv[optind]);
		code = usage_error(self);
	}
	if (!code)
		code = start(&arguments);
	for (size_t i = 0; arguments.sources && i < forward.n_sources; i++) {
		free((char *)arguments.sources[i].curve_server);
		free((char *)arguments.sources[i].curve_secret);
	}
	for (size_t i = 0; i < arguments.source.n_topics; i++)
		free(arguments.topics[i]);
	explicit_bzero(arguments.secret_key, sizeof(arguments.secret_key));
	free(arguments.sources);
	free(forward.sources);
	return code;
}

const struct subcommand command_forward = {
	.name = "forward",
	.arguments = "[--stream NAME] [--server URL] [--address A]... [OPTION...]",
	.summary = "Publishes what coretapd publishes into a stream",
	.help = "Each message goes to the subject coretap.NODE.TOPIC, byte for byte, once and in "
		"order.\n"
		"Where to go on the stream itself tells, after any interruption on either side.\n\n"
		"  --stream NAME  as `coretap-nats setup` made it (coretap)\n" SERVER_HELP "\n"
		"  --address A    tcp://HOST:PORT or ipc:///run/coretap/NAME of a coretapd, once "
		"for "
		"each\n"
		"                 (" CORETAP_DEFAULT_ADDRESS ")\n"
		"  --curve-server FILE, --curve-secret FILE\n"
		"                 public key of coretapd, secret key of our own, for the addresses "
		"that\n"
		"                 follow: see coretap keygen\n"
		"  --topic TOPIC  only this topic or provider, may be repeated (everything)\n"
		"  --status TIME  pass bridge.status on so often (each, which is every second)\n"
		"  --memory N     bytes that may wait in each socket (64M)\n"
		"  --window N     messages under way at most (4096; 16 MiB of them in any case)\n"
		"  --takeover TIME\n"
		"                 when another forwarder writes, stand by until it is silent for "
		"so "
		"long (5s, 2s at least)\n"
		"  --report TIME  tell rates, and how far behind, so often\n\n"
		"While nothing can be published the journals of the coretapds hold what happens. "
		"When one is\n"
		"about to lose, that is said; what is lost is told in the stream, as "
		"coretap.NODE.bridge.gap.TOPIC.\n"
		"Ends on Ctrl-C or SIGTERM.\n",
	.run = run,
};
