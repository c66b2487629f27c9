/* What a program of subcommands does before one of them runs, and how it speaks. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "command.h"

/* Set once, before anything else: whoever complains does not know in which program it stands. */
static const char *program;

void complain(const char *fmt, ...)
{
	va_list args;

	fprintf(stderr, "%s: ", program);
	va_start(args, fmt);
	vfprintf(stderr, fmt, args);
	va_end(args);
	fputc('\n', stderr);
}

int print_help(const struct subcommand *self)
{
	printf("usage: %s %s %s\n\n%s.\n\n%s", program, self->name, self->arguments, self->summary,
	       self->help);
	return EXIT_DONE;
}

int usage_error(const struct subcommand *self)
{
	fprintf(stderr, "Try `%s %s --help`.\n", program, self->name);
	return EXIT_USAGE;
}

static void print_usage(FILE *to, const struct subcommand *const *subcommands)
{
	fprintf(to, "usage: %s COMMAND [ARGUMENT...]\n\n", program);
	for (; *subcommands; subcommands++)
		fprintf(to, "  %-10s %s\n", (*subcommands)->name, (*subcommands)->summary);
	fprintf(to, "\n`%s COMMAND --help` tells more, `%s --version` the version.\n", program,
		program);
}

/* Takes the numbers 0 to 2 where they are closed, so that no file of ours gets what is printed. */
static void standard_files(void)
{
	int fd;

	do
		fd = open("/dev/null", O_RDWR);
	while (fd >= 0 && fd <= STDERR_FILENO);
	if (fd >= 0)
		close(fd);
}

static int dispatch(const struct subcommand *const *subcommands, int argc, char **argv)
{
	static char name[64];

	if (argc < 2) {
		print_usage(stderr, subcommands);
		return EXIT_USAGE;
	}
	if (!strcmp(argv[1], "--version")) {
		printf("%s %s\n", program, coretap_version());
		return EXIT_DONE;
	}
	if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
		print_usage(stdout, subcommands);
		return EXIT_DONE;
	}
	for (const struct subcommand *const *each = subcommands; *each; each++)
		if (!strcmp(argv[1], (*each)->name)) {
			/* As which getopt complains. */
			snprintf(name, sizeof(name), "%s %s", program, (*each)->name);
			argv[1] = name;
			return (*each)->run(*each, argc - 1, argv + 1);
		}
	complain("no command %s", argv[1]);
	print_usage(stderr, subcommands);
	return EXIT_USAGE;
}

int program_run(const char *name, const struct subcommand *const *subcommands, int argc,
		char **argv)
{
	int code;

	standard_files();
	program = name;
	code = dispatch(subcommands, argc, argv);
	/* What nobody has flushed yet: help, the version, a single picture. */
	errno = EIO;
	if (code || (!fflush(stdout) && !ferror(stdout)) || errno == EPIPE)
		return code;
	complain("standard output: %s", strerror(errno));
	return EXIT_OTHER;
}
