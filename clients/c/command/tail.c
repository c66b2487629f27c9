/* coretap tail: events as they happen. */
#include <getopt.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "../event.h"
#include "command.h"

static void print_time(const struct output *out, uint64_t time_us)
{
	time_t seconds = (time_t)(time_us / 1000000);
	struct tm tm;
	char text[32] = "--:--:--";

	if (localtime_r(&seconds, &tm))
		strftime(text, sizeof(text), "%H:%M:%S", &tm);
	output_colour(out, DIM);
	printf("%s.%06u", text, (unsigned int)(time_us % 1000000));
	output_colour(out, PLAIN);
}

static void print_event(struct output *out, const struct coretap_event *event)
{
	static const struct {
		const char *provider;
		enum colour colour;
	} colours[] = {
		{ "mempool.", CYAN }, { "validation.", GREEN },	 { "block.", GREEN },
		{ "net.", BLUE },     { "utxocache.", MAGENTA }, { "coin_selection.", YELLOW },
		{ "node.", BOLD },
	};
	struct cursor pairs = item_elements(&event->map);
	struct item key, value;
	enum colour colour = PLAIN;

	for (size_t i = 0; i < sizeof(colours) / sizeof(colours[0]); i++)
		if (!strncmp(event->topic, colours[i].provider, strlen(colours[i].provider)))
			colour = colours[i].colour;
	print_time(out, event->time_us);
	putchar(' ');
	output_colour(out, colour);
	printf("%-26s", event->topic);
	output_colour(out, PLAIN);
	while (cursor_pair(&pairs, &key, &value)) {
		if (item_is(&key, "time_us"))
			continue;
		putchar(' ');
		output_colour(out, DIM);
		output_text(out, (const char *)key.data, key.length);
		putchar('=');
		output_colour(out, PLAIN);
		if (value.kind == ITEM_NIL)
			putchar('?');
		else
			output_item(out, &value);
	}
	putchar('\n');
}

static bool handle(struct follow *follow, const struct coretap_event *event)
{
	const char *line;

	if (!follow->out->json) {
		print_event(follow->out, event);
		return true;
	}
	line = coretap_event_json(event, NULL);
	if (line)
		puts(line);
	else
		complain("%s: event %llu not shown: out of memory", event->topic,
			 (unsigned long long)event->seq);
	return true;
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
		"                 keep the place in FILE, and go on from there the next time\n\n"
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
