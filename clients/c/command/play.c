/* coretap play: a recording, published as coretapd would. */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "player.h"

#define PLAY_PORT (DEFAULT_PORT + 100)
#define SETTLE_US 250000 /* for subscribers that come back after the bind */
#define STATUS_US 1000000
#define TAIL_US 2000000 /* after the last message: two statuses, so that a lost tail is filled */

struct play {
	struct playlist list;
	struct player *player;
	unsigned long port;
	double speed; /* 0 = as fast as it goes */
	bool stay, progress;
	int stop_fd;
	uint64_t next_status, shown_at;
};

/* The socket whose next message is the earlier one; N_SOCKETS at the end. */
static enum socket_id next_socket(const struct playlist *list)
{
	enum socket_id best = N_SOCKETS;
	uint64_t earliest = UINT64_MAX;

	for (int i = 0; i < N_SOCKETS; i++) {
		if (list->n_played[i] == list->n[i])
			continue;
		if (list->played[i][list->n_played[i]].time_us < earliest || best == N_SOCKETS) {
			earliest = list->played[i][list->n_played[i]].time_us;
			best = (enum socket_id)i;
		}
	}
	return best;
}

static void show_progress(struct play *play, bool last)
{
	uint64_t done = play->list.n_played[0] + play->list.n_played[1];
	uint64_t all = play->list.n[0] + play->list.n[1], now = steady_us();

	if (!play->progress || (!last && now - play->shown_at < 200000))
		return;
	play->shown_at = now;
	fprintf(stderr, "\r%3u %%  %s of %s messages%s", (unsigned int)(done * 100 / all),
		grouped(done), grouped(all), last ? "\n" : "");
}

/* Serves until a time, with a status each second. False when a signal asks to end. */
static bool serve_until(struct play *play, uint64_t until)
{
	for (;;) {
		uint64_t now = steady_us();

		if (now >= play->next_status) {
			player_status(play->player, TOPIC_STATUS);
			play->next_status = now + STATUS_US;
		}
		show_progress(play, false);
		if (!player_serve(play->player,
				  until < play->next_status ? until : play->next_status,
				  play->stop_fd))
			return false;
		if (steady_us() >= until)
			return true;
	}
}

/* Everything in its time. False when a signal asks to end. */
static bool publish(struct play *play)
{
	struct playlist *list = &play->list;
	uint64_t begun, first = 0, latest = 0, due = 0, checked = 0;
	enum socket_id socket;

	if (!serve_until(play, steady_us() + SETTLE_US))
		return false;
	begun = steady_us();
	while ((socket = next_socket(list)) != N_SOCKETS) {
		uint64_t time_us = list->played[socket][list->n_played[socket]].time_us;

		if (!first)
			first = latest = time_us;
		if (time_us > latest)
			latest = time_us;
		if (play->speed > 0)
			due = begun + (uint64_t)((double)(latest - first) / play->speed);
		/* Requests are looked for now and then also when there is no time to wait. */
		if (steady_us() < due || ++checked % 64 == 0)
			if (!serve_until(play, due))
				return false;
		player_publish(play->player, socket);
	}
	return true;
}

static int play_all(struct play *play)
{
	sigset_t signals;
	bool whole;
	int err;

	sigemptyset(&signals);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGTERM);
	sigprocmask(SIG_BLOCK, &signals, NULL);
	play->stop_fd = signalfd(-1, &signals, SFD_CLOEXEC);
	if (play->stop_fd < 0) {
		complain("%s", strerror(errno));
		return EXIT_OTHER;
	}
	err = player_open(&play->player, &play->list, (unsigned int)play->port);
	if (err) {
		complain("port %lu to %lu: %s", play->port, play->port + 2, strerror(-err));
		return err == -EADDRINUSE ? EXIT_IN_USE : EXIT_OTHER;
	}
	fprintf(stderr, "coretap: playing %s messages of %s at tcp://127.0.0.1:%lu\n",
		grouped(play->list.n[0] + play->list.n[1]), play->list.label, play->port);
	whole = publish(play);
	if (whole) {
		show_progress(play, true);
		serve_until(play, play->stay ? UINT64_MAX : steady_us() + TAIL_US);
	}
	player_status(play->player, TOPIC_STOPPING);
	player_close(play->player);
	close(play->stop_fd);
	return EXIT_DONE;
}

static bool parse_options(struct play *play, int argc, char **argv, int *code,
			  const struct subcommand *self)
{
	static const struct option options[] = {
		{ "port", required_argument, NULL, 'p' },  { "fast", no_argument, NULL, 'f' },
		{ "speed", required_argument, NULL, 's' }, { "stay", no_argument, NULL, 'y' },
		{ "help", no_argument, NULL, 'h' },	   { 0 },
	};
	char *end;
	int option;

	*code = EXIT_USAGE;
	while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1)
		switch (option) {
		case 'p':
			play->port = strtoul(optarg, &end, 10);
			if (*optarg < '0' || *optarg > '9' || *end || !play->port ||
			    play->port > 65533) {
				complain("--port %s: not a port below 65534", optarg);
				return false;
			}
			break;
		case 'f':
			play->speed = 0;
			break;
		case 's':
			play->speed = strtod(optarg, &end);
			if (*optarg < '0' || *optarg > '9' || *end || !(play->speed > 0) ||
			    play->speed > 1e6) {
				complain("--speed %s: not a factor above 0", optarg);
				return false;
			}
			break;
		case 'y':
			play->stay = true;
			break;
		case 'h':
			*code = print_help(self);
			return false;
		default:
			return false;
		}
	if (optind + 1 == argc)
		return true;
	complain(optind == argc ? "name the recording" : "one recording at a time");
	return false;
}

static int run(const struct subcommand *self, int argc, char **argv)
{
	struct play play = { .port = PLAY_PORT, .speed = 1, .progress = isatty(STDERR_FILENO) };
	const char *path;
	int code, err;

	if (!parse_options(&play, argc, argv, &code, self))
		return code == EXIT_USAGE ? usage_error(self) : code;
	path = argv[optind];
	err = playlist_open(&play.list, path);
	if (err) {
		complain("%s: %s", path,
			 err == -EBADMSG ? "not a recording of coretap" : strerror(-err));
		return EXIT_OTHER;
	}
	if (play.list.malformed)
		complain("%s: %zu records are passed over, they are no messages", path,
			 play.list.malformed);
	if (play.list.torn)
		complain("%s: ends in the middle of a record", path);
	if (!play.list.n[0] && !play.list.n[1]) {
		complain("%s: no messages in it", path);
		code = EXIT_OTHER;
	} else {
		code = play_all(&play);
	}
	playlist_close(&play.list);
	return code;
}

const struct subcommand command_play = {
	.name = "play",
	.arguments = "FILE [--port N] [--fast | --speed X] [--stay]",
	.summary = "Publishes a recording, as coretapd would",
	.help = "For developing subscribers without a node or root: the events of a recording "
		"with their\n"
		"original pauses, from a node whose label ends with -play, as a run of its own "
		"with "
		"numbers\n"
		"from 1. What the recording lacks is told as lost. Replay is answered too.\n\n"
		"  --port N       low socket on loopback at N, high at N + 1, replay at N + 2 "
		"(28470)\n"
		"  --fast         without pauses\n"
		"  --speed X      pauses divided by X\n"
		"  --stay         go on answering replay after the last event, until Ctrl-C\n",
	.run = run,
};
