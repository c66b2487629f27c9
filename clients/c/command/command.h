/* What the subcommands of coretap share. */
#ifndef CORETAP_COMMAND_H
#define CORETAP_COMMAND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../../bridge/key.h"
#include "../../../protocol/json.h"
#include "../coretap.h"

enum exit_code {
	EXIT_DONE = 0,
	EXIT_OTHER = 1,
	EXIT_USAGE = 2,
	EXIT_NO_TRACEPOINTS = 3,
	EXIT_NO_PRIVILEGE = 4,
	EXIT_IN_USE = 5,
};

struct subcommand {
	const char *name;
	const char *arguments; /* as the usage shows them */
	const char *summary;   /* one line, without a dot */
	const char *help;      /* the rest of --help */
	/* argv[0] is the subcommand's name. Returns an exit code. */
	int (*run)(const struct subcommand *self, int argc, char **argv);
};

extern const struct subcommand command_tail, command_evictions, command_watch, command_record,
	command_play, command_top, command_topics, command_probes, command_doctor, command_keygen;

/* Finds and runs the subcommand that argv[1] names. subcommands end with NULL. Returns an exit
 * code. */
int program_run(const char *name, const struct subcommand *const *subcommands, int argc,
		char **argv);

/* `NAME: text` on stderr. */
void complain(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Usage of one subcommand on stdout; returns EXIT_DONE. */
int print_help(const struct subcommand *self);

/* Says on stderr where help is; returns EXIT_USAGE. */
int usage_error(const struct subcommand *self);

/* Standard output: text for people on a terminal, JSON lines otherwise. */
struct output {
	bool json;   /* lines of JSON */
	bool colour; /* escape sequences are welcome */
	int error;   /* errno of the write that failed, 0 = none */
	struct json text;
};

enum colour { PLAIN, DIM, BOLD, RED, GREEN, YELLOW, BLUE, MAGENTA, CYAN };

/* json and text: what the command line asks for; neither: what standard output is decides. */
void output_open(struct output *out, bool json, bool text);

/* Shows what was written. False, with out->error set, when writing has failed. */
bool output_flush(struct output *out);

/* Flushes. Returns EXIT_DONE, also when the reader went away, or EXIT_OTHER after saying why. */
int output_close(struct output *out);

/* Switches to a colour, PLAIN switches back. Only where colours are welcome. */
void output_colour(const struct output *out, enum colour colour);

/* What was made in out->text. */
void output_made(struct output *out);

/* A value for people: texts escaped where needed, long bytes and arrays abridged. */
void output_item(struct output *out, const struct item *value);

/* A text for people, control characters escaped. */
void output_text(struct output *out, const char *text, size_t length);

/* An event as a line of text: time, topic, fields; or of JSON. */
void output_event(struct output *out, const struct coretap_event *event);
void output_json(struct output *out, const struct coretap_event *event);

/* 1234567 as 1,234,567. The text lives until the fourth call after this one. */
const char *grouped(uint64_t number);

/* Subscriptions of a subcommand that follows the stream. */
struct follow {
	struct coretap *tap;
	const char *address;
	struct output *out;
	uint64_t count; /* events until the end, 0 = no end */
	bool waiting;	/* the user was told that nobody is there */
	/* Called for events and statuses. Returns whether the event counts. */
	bool (*handle)(struct follow *follow, const struct coretap_event *event);
	bool early;	 /* evictions: lists that are not final too */
	bool json, text; /* what the command line wants on standard output, for output_open */

	const char *curve_server, *curve_secret; /* files of keys, NULL = not encrypted */

	const char *since;    /* as the command line has it, NULL = from now on */
	const char *position; /* file, NULL = none */
	uint64_t end_us;      /* when to end, as steady_us has it, 0 = never */
	bool ended_by_time;
	bool ended_by_signal;
	/* Called for notices, after they were told. Returns whether to go on. */
	bool (*notice)(struct follow *follow, const struct coretap_event *event);
	/* Called when nothing more is at hand. Returns whether to go on. */
	bool (*idle)(struct follow *follow);
	bool ended; /* one of the three has asked to end */
	bool quiet; /* notices are not repeated on standard output */
	void *arg;
};

/* Reads the key that a file of `coretap keygen` holds. Returns whether it could; said if not. */
bool key_read(const char *path, enum key_kind wanted, char key[KEY_TEXT + 1]);

/* How to say of such a file that its key is the other one of the pair. */
const char *key_other_text(enum key_kind wanted);

/* The keys of both sides, where the command line has them; else *server is '\0'. Returns EXIT_DONE
 * or an exit code, after saying why. */
int follow_keys(const struct follow *follow, char server[KEY_TEXT + 1], char secret[KEY_TEXT + 1]);

/* Of getopt's table: what every subcommand that follows the stream has, and what those with output
 * have. The letters n, s and p are --count, --since and --position where there are such. */
#define FOLLOW_OPTIONS                                            \
	{ "address", required_argument, NULL, 'a' },              \
		{ "curve-server", required_argument, NULL, 'S' }, \
	{                                                         \
		"curve-secret", required_argument, NULL, 'K'      \
	}
#define FOLLOW_OUTPUT_OPTIONS                  \
	{ "json", no_argument, NULL, 'j' },    \
	{                                      \
		"text", no_argument, NULL, 't' \
	}

/* Takes such an option, with its argument in optarg. False when it is another one, or after saying
 * what is wrong with its argument. */
bool follow_option(struct follow *follow, int option);

/* Opens follow->tap. Returns EXIT_DONE or an exit code, after saying why. */
int follow_open(struct follow *follow);

/* Adds a subscription, in the forms that people write. The same. */
int follow_subscribe(struct follow *follow, const char *topic);

/* Says so where name, a topic or a prefix that ends with a dot, is none that the catalogue has;
 * topic is what was written. */
void topic_doubt(const char *topic, const char *name);

/* Runs until the count is reached, a signal asks to end, or the reader of standard output went
 * away. Notices go to stderr as lines, and in JSON also to stdout, where programs see them at their
 * place. */
int follow_run(struct follow *follow);

/* Parses "90s", "10m", "2h", "1d", "500ms" or a number of seconds. False, after saying why, when it
 * is none. what names the option. */
bool parse_duration(const char *what, const char *text, uint64_t *microseconds);

/* Parses the argument of --since: a duration back from now, "oldest", or a time. The same. */
bool parse_since(const char *text, uint64_t *time_us);

uint64_t clock_us(void);  /* Unix microseconds */
uint64_t steady_us(void); /* for intervals: no setting of the clock changes it */

#endif
