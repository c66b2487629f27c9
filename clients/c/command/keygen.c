/* coretap keygen: a pair of keys for encrypted connections. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h> /* only for the keys: connections are transport.c's */

#include "command.h"

const char *key_other_text(enum key_kind wanted)
{
	return wanted == KEY_PUBLIC ? "holds a secret key, a public one is wanted"
				    : "holds a public key, a secret one is wanted";
}

bool key_read(const char *path, enum key_kind wanted, char key[KEY_TEXT + 1])
{
	FILE *file = fopen(path, "re");
	char line[1024] = "";
	bool found = false, other = false;

	if (!file) {
		complain("%s: %s", path, strerror(errno));
		return false;
	}
	setvbuf(file, NULL, _IONBF, 0);
	while (!found && !other && fgets(line, sizeof(line), file)) {
		size_t blank = strspn(line, " \t");

		other = key_is_other(line, wanted);
		found = !other && strcspn(line + blank, " \t\r\n") == KEY_TEXT;
		if (found)
			memcpy(key, line + blank, KEY_TEXT);
	}
	key[KEY_TEXT] = '\0';
	explicit_bzero(line, sizeof(line));
	fclose(file);
	if (other)
		complain("%s: %s", path, key_other_text(wanted));
	else if (!found)
		complain("%s: has no key of 40 characters; `coretap keygen` makes one", path);
	return found;
}

/* Never over a file that is there: it may be the only copy of a key. */
static bool key_write(const char *path, mode_t mode, const char *comment, const char *more,
		      const char *key)
{
	char text[200];
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode), len;
	bool good;

	if (fd < 0) {
		complain("%s: %s", path,
			 errno == EEXIST ? "exists already: left alone" : strerror(errno));
		return false;
	}
	len = snprintf(text, sizeof(text), "%s%s\n%s\n", comment, more, key);
	good = write(fd, text, (size_t)len) == len && !fsync(fd);
	if (close(fd))
		good = false;
	explicit_bzero(text, sizeof(text));
	if (!good) {
		complain("%s: %s", path, strerror(errno));
		unlink(path);
	}
	return good;
}

static int run(const struct subcommand *self, int argc, char **argv)
{
	static const struct option options[] = { { "help", no_argument, NULL, 'h' }, { 0 } };
	char public_key[KEY_TEXT + 1], secret_key[KEY_TEXT + 1], path[2][4096];
	bool good;
	int option;

	while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		if (option == 'h')
			return print_help(self);
		return usage_error(self);
	}
	if (optind + 1 != argc || strlen(argv[optind]) > sizeof(path[0]) - 8) {
		complain("keygen: wants one name");
		return usage_error(self);
	}
	snprintf(path[0], sizeof(path[0]), "%s.key", argv[optind]);
	snprintf(path[1], sizeof(path[1]), "%s.pub", argv[optind]);
	if (!access(path[1], F_OK)) {
		complain("%s: exists already: left alone", path[1]);
		return EXIT_OTHER;
	}
	if (zmq_curve_keypair(public_key, secret_key)) {
		complain("this libzmq was built without CURVE");
		return EXIT_OTHER;
	}
	good = key_write(path[0], 0600, key_comment(KEY_SECRET), ": show it to nobody", secret_key);
	explicit_bzero(secret_key, sizeof(secret_key));
	if (good && !key_write(path[1], 0644, key_comment(KEY_PUBLIC), "", public_key)) {
		unlink(path[0]);
		good = false;
	}
	if (!good)
		return EXIT_OTHER;
	printf("%s\n%s\n", path[0], path[1]);
	return EXIT_DONE;
}

const struct subcommand command_keygen = {
	.name = "keygen",
	.arguments = "NAME",
	.summary = "Makes a pair of keys for encrypted connections",
	.help = "Writes NAME.key, the secret key, and NAME.pub, the public one. Make one pair for "
		"coretapd\n"
		"(coretapd --curve-secret NAME.key) and one for each subscriber, and put the line "
		"of the\n"
		"subscriber's NAME.pub into the file that coretapd --curve-clients names. A "
		"subscriber\n"
		"needs its own NAME.key and coretapd's NAME.pub.\n",
	.run = run,
};
