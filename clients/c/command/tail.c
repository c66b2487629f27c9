/* coretap tail: events as they happen. */
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../event.h"
#include "command.h"

static bool handle(struct follow *follow, const struct coretap_event *event)
{
	if (follow->out->json)
		output_json(follow->out, event);
	else
		output_event(follow->out, event);
	return true;
}

/* NATS is another program's business: whoever does not want it needs no libnats. It stands beside
 * this one, or on the PATH. */
static int run_nats(char **argv)
{
	char path[PATH_MAX];
	ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - sizeof("-nats"));

	if (length > 0) {
		strcpy(path + length, "-nats");
		execv(path, argv);
	}
	execvp("coretap-nats", argv);
	complain("coretap-nats: %s; `coretap tail --nats` needs it", strerror(errno));
	return EXIT_OTHER;
}

static int run(const struct subcommand *self, int argc, char **argv)
{
	static const struct option options[] = {
		FOLLOW_OUTPUT_OPTIONS,
		FOLLOW_OPTIONS,
		{ "count", required_argument, NULL, 'n' },
		{ "since", required_argument, NULL, 's' },
		{ "position", required_argument, NULL, 'p' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	struct output out;
	struct follow follow = { .out = &out, .handle = handle };
	int option, code, closed;

	for (int i = 1; i < argc && strcmp(argv[i], "--"); i++)
		if (!strncmp(argv[i], "--nats", 6) && (!argv[i][6] || argv[i][6] == '=')) {
			argv[0] = (char *)self->name;
			return run_nats(argv - 1); /* the whole command line */
		}
	while ((option = getopt_long(argc, argv, "a:n:h", options, NULL)) != -1)
		switch (option) {
		case 'h':
			return print_help(self);
		default:
			if (!follow_option(&follow, option))
				return usage_error(self);
		}
	output_open(&out, follow.json, follow.text);
	code = follow_open(&follow);
	if (!code && optind == argc)
		code = follow_subscribe(&follow, "*");
	for (int i = optind; !code && i < argc; i++)
		code = follow_subscribe(&follow, argv[i]);
	if (!code)
		code = follow_run(&follow);
	coretap_close(follow.tap);
	closed = output_close(&out);
	return code ? code : closed;
}

const struct subcommand command_tail = {
	.name = "tail",
	.arguments =
		"[TOPIC...] [--since WHEN] [--position FILE] [--json] [--count N] [--address A]",
	.summary = "Shows events as they happen",
	.help = "TOPIC is mempool.removed, or mempool for all of a provider; none means "
		"everything.\n"
		"bridge.status shows the bridge's own account, once a second.\n\n"
		"  --json         JSON lines; so it is anyway when standard output is no terminal\n"
		"  --text         text for people, also when it is no terminal\n"
		"  --address A    tcp://HOST:PORT or ipc:///run/coretap/NAME\n"
		"                 (" CORETAP_DEFAULT_ADDRESS ")\n"
		"  --curve-server FILE, --curve-secret FILE\n"
		"                 public key of coretapd, secret key of your own: see coretap "
		"keygen\n"
		"  --count N      end after N events\n\n"
		"  --since WHEN   begin earlier: 10m, 2h or 1d ago, oldest, or a time like\n"
		"                 2009-01-03T18:15:05Z\n"
		"  --position FILE\n"
		"                 keep the place in FILE, and go on from there the next time\n"
		"  --nats URL     out of a stream of NATS JetStream instead, with the options of\n"
		"                 `coretap-nats tail`\n\n"
		"What did not arrive is fetched from coretapd's replay and shown at its place. "
		"Events "
		"that are\n"
		"missing for good, a new run, silence and the like are told on standard error, and "
		"in "
		"JSON also\n"
		"as objects with the key `notice`, at their place in the stream.\n"
		"In text, ? is a value that could not be read. Ends on Ctrl-C.\n",
	.run = run,
};
