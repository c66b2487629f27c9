/* coretap-nats: what coretapd publishes, in NATS JetStream. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "../c/command/command.h"

extern const struct subcommand command_forward, command_setup, command_nats_tail;

static const struct subcommand *const subcommands[] = { &command_setup, &command_forward,
							&command_nats_tail };

#define N_SUBCOMMANDS (sizeof(subcommands) / sizeof(subcommands[0]))

void complain(const char *fmt, ...)
{
	va_list args;

	fputs("coretap-nats: ", stderr);
	va_start(args, fmt);
	vfprintf(stderr, fmt, args);
	va_end(args);
	fputc('\n', stderr);
}

int print_help(const struct subcommand *self)
{
	printf("usage: coretap-nats %s %s\n\n%s.\n\n%s", self->name, self->arguments, self->summary,
	       self->help);
	return EXIT_DONE;
}

int usage_error(const struct subcommand *self)
{
	fprintf(stderr, "Try `coretap-nats %s --help`.\n", self->name);
	return EXIT_USAGE;
}

static void print_usage(FILE *to)
{
	fputs("usage: coretap-nats COMMAND [ARGUMENT...]\n\n", to);
	for (size_t i = 0; i < N_SUBCOMMANDS; i++)
		fprintf(to, "  %-10s %s\n", subcommands[i]->name, subcommands[i]->summary);
	fputs("\n`coretap-nats COMMAND --help` tells more, `coretap-nats --version` the version.\n",
	      to);
}

int main(int argc, char **argv)
{
	if (argc < 2) {
		print_usage(stderr);
		return EXIT_USAGE;
	}
	if (!strcmp(argv[1], "--version")) {
		printf("coretap-nats %s\n", coretap_version());
		return EXIT_DONE;
	}
	if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
		print_usage(stdout);
		return EXIT_DONE;
	}
	for (size_t i = 0; i < N_SUBCOMMANDS; i++)
		if (!strcmp(argv[1], subcommands[i]->name))
			return subcommands[i]->run(subcommands[i], argc - 1, argv + 1);
	complain("no command %s", argv[1]);
	print_usage(stderr);
	return EXIT_USAGE;
}
