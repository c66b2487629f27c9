/* coretap record: messages into a file. */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../event.h"
#include "recording.h"

struct job {
	struct recorder recorder;
	uint64_t events, messages, shown_at;
	bool progress;
};

static void add(void *arg, const struct coretap_message *message)
{
	struct job *job = arg;

	recorder_add(&job->recorder, message->socket, clock_us(), message->topic,
		     message->topic_length, message->body, message->body_length);
	job->messages++;
}

static void show_progress(struct job *job)
{
	uint64_t now = steady_us();

	if (!job->progress || now - job->shown_at < 500000)
		return;
	job->shown_at = now;
	fprintf(stderr, "\r%s events, %s bytes ", grouped(job->events),
		grouped(job->recorder.bytes));
}

static bool handle(struct follow *follow, const struct coretap_event *event)
{
	struct job *job = follow->arg;

	(void)event;
	job->events++;
	follow->ended = job->recorder.error;
	return true;
}

static bool idle(struct follow *follow)
{
	struct job *job = follow->arg;

	show_progress(job);
	return recorder_flush(&job->recorder);
}

static int record(struct follow *follow, struct job *job, const char *path)
{
	int err = recorder_open(&job->recorder, path), code;

	if (err) {
		complain("%s: %s%s", path, strerror(-err),
			 err == -EEXIST ? "; a recording is not overwritten" : "");
		return EXIT_OTHER;
	}
	coretap_observe(follow->tap, add, job);
	code = follow_run(follow);
	if (!recorder_close(&job->recorder)) {
		complain("%s: %s; what was written until then can be played", path,
			 strerror(job->recorder.error));
		return EXIT_OTHER;
	}
	if (job->progress)
		fprintf(stderr, "\r");
	if (!code)
		fprintf(stderr, "coretap: %s: %s events in %s messages, %s bytes\n", path,
			grouped(job->events), grouped(job->messages), grouped(job->recorder.bytes));
	return code;
}

static int run(const struct subcommand *self, int argc, char **argv)
{
	static const struct option options[] = {
		FOLLOW_OPTIONS,
		{ "count", required_argument, NULL, 'n' },
		{ "since", required_argument, NULL, 's' },
		{ "for", required_argument, NULL, 'f' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	struct output out;
	struct job job = { .progress = isatty(STDERR_FILENO) };
	struct follow follow = {
		.out = &out, .handle = handle, .idle = idle, .quiet = true, .arg = &job
	};
	uint64_t duration = 0;
	int option, code, closed;

	while ((option = getopt_long(argc, argv, "a:n:h", options, NULL)) != -1)
		switch (option) {
		case 'f':
			if (!parse_duration("--for", optarg, &duration))
				return usage_error(self);
			break;
		case 'h':
			return print_help(self);
		default:
			if (!follow_option(&follow, option))
				return usage_error(self);
		}
	if (optind == argc) {
		complain("name a file to record into");
		return usage_error(self);
	}
	output_open(&out, false, true);
	code = follow_open(&follow);
	if (!code && optind + 1 == argc)
		code = follow_subscribe(&follow, "*");
	for (int i = optind + 1; !code && i < argc; i++)
		code = follow_subscribe(&follow, argv[i]);
	if (duration)
		follow.end_us = steady_us() + duration;
	if (!code)
		code = record(&follow, &job, argv[optind]);
	coretap_close(follow.tap);
	closed = output_close(&out);
	return code ? code : closed;
}

const struct subcommand command_record = {
	.name = "record",
	.arguments = "FILE [TOPIC...] [--since WHEN] [--for DURATION] [--count N] [--address A]",
	.summary = "Records messages, for `coretap play`",
	.help = "FILE must not exist yet. TOPIC as with `coretap tail`; none means everything. "
		"Messages are\n"
		"kept byte for byte and in order; what did not arrive is fetched from replay "
		"first.\n\n"
		"  --since WHEN   begin earlier: 10m, 2h or 1d ago, oldest, or a time like\n"
		"                 2009-01-03T18:15:05Z\n"
		"  --for DURATION end after 90s, 10m, 2h, ...\n"
		"  --count N      end after N events\n"
		"  --address A    tcp://HOST:PORT or ipc:///run/coretap/NAME\n"
		"                 (" CORETAP_DEFAULT_ADDRESS ")\n"
		"  --curve-server FILE, --curve-secret FILE\n"
		"                 public key of coretapd, secret key of your own: see coretap "
		"keygen\n\n"
		"Ends on Ctrl-C as well. When the disk is full it says so and ends with 1; what "
		"was "
		"written\n"
		"until then can be played.\n",
	.run = run,
};
