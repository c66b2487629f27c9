/* The loop of the subcommands that follow the stream: signals, notices, the end. */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "command.h"

static bool parse_count(const char *text, uint64_t *count)
{
	char *end;

	errno = 0;
	*count = strtoull(text, &end, 10);
	if (*text >= '0' && *text <= '9' && !*end && !errno && *count)
		return true;
	complain("--count %s: not a number above 0", text);
	return false;
}

bool follow_option(struct follow *follow, int option)
{
	switch (option) {
	case 'a':
		follow->address = optarg;
		return true;
	case 'S':
		follow->curve_server = optarg;
		return true;
	case 'K':
		follow->curve_secret = optarg;
		return true;
	case 's':
		follow->since = optarg;
		return true;
	case 'p':
		follow->position = optarg;
		return true;
	case 'n':
		return parse_count(optarg, &follow->count);
	case 'j':
		follow->json = true;
		return true;
	case 't':
		follow->text = true;
		return true;
	default:
		return false;
	}
}

int follow_keys(const struct follow *follow, char server[KEY_TEXT + 1], char secret[KEY_TEXT + 1])
{
	*server = '\0';
	if (!follow->curve_server && !follow->curve_secret)
		return EXIT_DONE;
	if (!follow->curve_server || !follow->curve_secret) {
		complain(
			"--curve-server and --curve-secret belong together: coretapd's public key, "
			"and a secret one of your own");
		return EXIT_USAGE;
	}
	return key_read(follow->curve_server, KEY_PUBLIC, server) &&
			       key_read(follow->curve_secret, KEY_SECRET, secret)
		       ? EXIT_DONE
		       : EXIT_USAGE;
}

static int follow_encrypt(struct follow *follow)
{
	char server[KEY_TEXT + 1], secret[KEY_TEXT + 1];
	int code = follow_keys(follow, server, secret), err;

	if (code || !*server)
		return code;
	err = coretap_set_curve(follow->tap, server, secret);
	explicit_bzero(secret, sizeof(secret));
	if (!err)
		return EXIT_DONE;
	complain("%s, %s: %s", follow->curve_server, follow->curve_secret, coretap_strerror(err));
	return EXIT_USAGE;
}

static void signals_block(sigset_t *signals)
{
	sigemptyset(signals);
	sigaddset(signals, SIGINT);
	sigaddset(signals, SIGTERM);
	sigprocmask(SIG_BLOCK, signals, NULL);
}

int follow_open(struct follow *follow)
{
	sigset_t signals;
	int err;

	/* Before libzmq starts threads: one that has not come to block them would let them end us.
	 */
	signals_block(&signals);
	if (!follow->address)
		follow->address = CORETAP_DEFAULT_ADDRESS;
	err = coretap_open(follow->address, &follow->tap);
	if (err == -EINVAL || err == -ENAMETOOLONG) {
		complain("%s: %s; give tcp://HOST:PORT or ipc:///run/coretap/NAME", follow->address,
			 err == -EINVAL ? "not an address" : "too long");
		return EXIT_USAGE;
	}
	if (err) {
		complain("%s: %s", follow->address, coretap_strerror(err));
		return EXIT_OTHER;
	}
	return follow_encrypt(follow);
}

/* Of a file or a connection: the library's own word for ENOENT speaks of fields. */
static const char *reason_of(int err)
{
	return err == -ENOENT ? strerror(ENOENT) : coretap_strerror(err);
}

/* Only a coretapd with --tracepoints has others: most likely it is a slip, and nothing would ever
 * come. */
static bool is_known(const char *name)
{
	size_t n, length = strlen(name);
	const struct event_desc *events = catalogue(&n);

	if (!length || !strncmp(name, TOPIC_STATUS, length) ||
	    !strncmp(name, TOPIC_STOPPING, length))
		return true;
	if (name[length - 1] != '.')
		return catalogue_find(name, length);
	for (size_t i = 0; i < n; i++)
		if (!strncmp(events[i].topic, name, length))
			return true;
	return false;
}

void topic_doubt(const char *topic, const char *name)
{
	if (!is_known(name))
		complain("%s: no topic of Bitcoin Core's: nothing comes unless coretapd declares "
			 "it; `coretap topics` lists them",
			 topic);
}

int follow_subscribe(struct follow *follow, const char *topic)
{
	size_t length = strlen(topic);
	char name[128];
	int err = -EINVAL;

	/* mempool, mempool.*, * */
	if (length && topic[length - 1] == '*')
		length--;
	if (length < sizeof(name) - 1) {
		memcpy(name, topic, length);
		name[length] = '\0';
		if (length && !strchr(name, '.'))
			strcpy(name + length, ".");
		err = coretap_subscribe(follow->tap, name);
	}
	if (err == -EINVAL) {
		complain("%s: not a topic; `coretap topics` lists them", topic);
		return EXIT_USAGE;
	}
	if (err) {
		complain("%s: %s", follow->address, coretap_strerror(err));
		return EXIT_OTHER;
	}
	topic_doubt(topic, name);
	return EXIT_DONE;
}

static void tell_range(const char *what, const struct coretap_event *event)
{
	uint64_t first = coretap_event_first(event), last = coretap_event_last(event);

	complain("%s: %" PRIu64 " %s, numbers %" PRIu64 " to %" PRIu64, coretap_event_topic(event),
		 last - first + 1, what, first, last);
}

static void tell_notice(struct follow *follow, const struct coretap_event *event)
{
	const char *socket = coretap_event_socket(event), *node = coretap_event_node(event);
	uint64_t run = coretap_event_run(event), old_run = coretap_event_old_run(event);

	switch (coretap_event_kind(event)) {
	case CORETAP_GAP:
		tell_range("missing for good", event);
		break;
	case CORETAP_LOST:
		tell_range("lost in the kernel, its ring was full", event);
		break;
	case CORETAP_NEW_RUN:
		complain("%s socket: coretapd of %s began a new run %" PRIu64 " (was %" PRIu64
			 "); what happened between is unknown",
			 socket, node, run, old_run);
		break;
	case CORETAP_OLD_RUN:
		complain("%s socket: dropped messages of the old run %" PRIu64 " of %s", socket,
			 old_run, node);
		break;
	case CORETAP_STALE:
		if (run)
			complain("%s socket: nothing from coretapd of %s for 3 s; waiting", socket,
				 node);
		else if (!follow->waiting)
			complain("no coretapd at %s yet%s; waiting", follow->address,
				 strncmp(follow->address, "tcp:", 4)
					 ? ""
					 : ", or it knows no key of ours");
		follow->waiting = true;
		break;
	case CORETAP_ALIVE:
		if (follow->waiting)
			complain("connected to coretapd at %s", follow->address);
		follow->waiting = false;
		break;
	case CORETAP_STOPPING:
		complain("%s socket: coretapd of %s stopped; waiting for it to come back", socket,
			 node);
		follow->waiting = true;
		break;
	case CORETAP_MALFORMED:
		complain("%s socket: dropped a malformed message%s%s: %s", socket,
			 *coretap_event_topic(event) ? " of " : "", coretap_event_topic(event),
			 coretap_event_reason(event));
		break;
	case CORETAP_NO_REPLAY:
		complain("%s socket: nothing from before now: %s", socket,
			 coretap_event_reason(event));
		break;
	case CORETAP_EVENT:
	case CORETAP_STATUS:
		break;
	}
	if (follow->out->json && !follow->quiet)
		output_json(follow->out, event);
}

/* Returns whether the stream is to be followed further. */
static bool take(struct follow *follow, const struct coretap_event *event)
{
	enum coretap_kind kind = coretap_event_kind(event);

	if (kind != CORETAP_EVENT && kind != CORETAP_STATUS) {
		tell_notice(follow, event);
		if (follow->notice && !follow->notice(follow, event))
			follow->ended = true;
	} else if (follow->handle(follow, event) && follow->count && !--follow->count) {
		follow->ended = true;
	}
	if (ferror(stdout) && !follow->out->error)
		follow->out->error = errno;
	return !follow->ended && !follow->out->error;
}

/* Readers see what was written, and then it counts as taken. */
static bool settle(struct follow *follow, int *err)
{
	if (!output_flush(follow->out))
		return false;
	if (follow->idle && !follow->idle(follow))
		return false;
	*err = coretap_commit(follow->tap);
	if (*err)
		complain("%s: %s", follow->position, reason_of(*err));
	return !*err;
}

static bool time_is_up(struct follow *follow)
{
	follow->ended_by_time = follow->end_us && steady_us() >= follow->end_us;
	return follow->ended_by_time;
}

/* Waits for what comes, or for the end. Returns whether to go on. */
static bool await(struct follow *follow, struct pollfd fds[3], int timeout_ms)
{
	if (follow->end_us && timeout_ms) {
		uint64_t now = steady_us();
		uint64_t left = follow->end_us > now ? (follow->end_us - now) / 1000 + 1 : 0;

		if (left < (uint64_t)timeout_ms)
			timeout_ms = (int)left;
	}
	if (poll(fds, 3, timeout_ms) > 0) {
		follow->ended_by_signal = fds[0].revents;
		if (fds[0].revents || fds[2].revents & (POLLERR | POLLHUP))
			return false;
	}
	return !time_is_up(follow);
}

/* Told now, and not when the first event comes. */
static bool position_possible(const char *path)
{
	char copy[PATH_MAX];

	snprintf(copy, sizeof(copy), "%s", path);
	if (!access(dirname(copy), W_OK | X_OK))
		return true;
	complain("%s: %s", path, strerror(errno));
	return false;
}

static int begin(struct follow *follow, struct pollfd fds[3])
{
	sigset_t signals;
	uint64_t time_us;

	if (follow->since) {
		if (!parse_since(follow->since, &time_us))
			return EXIT_USAGE;
		coretap_since(follow->tap, time_us);
	}
	if (follow->position && !position_possible(follow->position))
		return EXIT_OTHER;
	if (follow->position) {
		int err = coretap_set_position(follow->tap, follow->position);

		if (err) {
			complain("--position %s: %s", follow->position,
				 err == -EINVAL ? "give the path of a file" : reason_of(err));
			return err == -EINVAL ? EXIT_USAGE : EXIT_OTHER;
		}
		coretap_commit(follow->tap);
	}
	signals_block(&signals);
	fds[0] = (struct pollfd){ .fd = signalfd(-1, &signals, SFD_CLOEXEC), .events = POLLIN };
	fds[1] = (struct pollfd){ .fd = coretap_fd(follow->tap), .events = POLLIN };
	fds[2] = (struct pollfd){ .fd = STDOUT_FILENO };
	if (fds[0].fd < 0 || fds[1].fd < 0) {
		int err = fds[0].fd < 0 ? errno : -fds[1].fd;

		complain("%s: %s",
			 follow->position && err != ENOMEM && err != EMFILE ? follow->position
									    : follow->address,
			 reason_of(-err));
		return EXIT_OTHER;
	}
	return EXIT_DONE;
}

int follow_run(struct follow *follow)
{
	const struct coretap_event *event;
	struct pollfd fds[3];
	unsigned int taken = 0;
	int code = begin(follow, fds), got = 0, err = 0;

	if (code)
		return code;
	for (;;) {
		got = coretap_next(follow->tap, &event, 0);
		if (got < 0 && got != -EINTR)
			break;
		if (got == 1 && !take(follow, event))
			break;
		if (got == 1 && ++taken % 1024)
			continue;
		/* Nothing more at hand, or enough for now. */
		if (!settle(follow, &err) || !await(follow, fds, got == 1 ? 0 : 500))
			break;
	}
	close(fds[0].fd);
	if (!err && !follow->out->error && (got >= 0 || got == -EINTR))
		settle(follow, &err);
	if (got < 0 && got != -EINTR)
		complain("%s: %s",
			 follow->position && got != -ENOMEM ? follow->position : follow->address,
			 reason_of(got));
	return err || (got < 0 && got != -EINTR) ? EXIT_OTHER : EXIT_DONE;
}
