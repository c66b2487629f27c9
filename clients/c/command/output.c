/* Standard output, for people and for programs. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../event.h"
#include "command.h"

void output_open(struct output *out, bool json, bool text)
{
	/* Of our own, as glibc takes a size only with a buffer. A write as large as the buffer
	 * passes by it, and its failure would be known here without its reason. */
	static char buffer[1 << 16];
	const char *no_colour = getenv("NO_COLOR"), *term = getenv("TERM");
	bool terminal = isatty(STDOUT_FILENO);

	*out = (struct output){ .json = json || (!text && !terminal) };
	out->colour = terminal && !(no_colour && *no_colour) && !(term && !strcmp(term, "dumb"));
	/* Whoever writes flushes when nothing more is at hand; a reader that went away is EPIPE. */
	setvbuf(stdout, buffer, _IOFBF, sizeof(buffer));
	signal(SIGPIPE, SIG_IGN);
}

bool output_flush(struct output *out)
{
	errno = EIO;
	if (!out->error && (fflush(stdout) || ferror(stdout)))
		out->error = errno;
	return !out->error;
}

int output_close(struct output *out)
{
	json_free(&out->text);
	output_flush(out);
	clearerr(stdout); /* this is told here */
	if (!out->error || out->error == EPIPE)
		return EXIT_DONE;
	complain("standard output: %s", strerror(out->error));
	return EXIT_OTHER;
}

void output_colour(const struct output *out, enum colour colour)
{
	static const char *const codes[] = {
		[PLAIN] = "0",	 [DIM] = "2",	[BOLD] = "1",	  [RED] = "31",	 [GREEN] = "32",
		[YELLOW] = "33", [BLUE] = "34", [MAGENTA] = "35", [CYAN] = "36",
	};

	if (out->colour)
		printf("\033[%sm", codes[colour]);
}

void output_text(struct output *out, const char *text, size_t length)
{
	bool plain = length > 0;

	out->text.length = 0;
	json_text(&out->text, text, length);
	if (out->text.failed) {
		out->error = ENOMEM;
		return;
	}
	/* Quotes only where a reader would wonder where the text ends. */
	for (size_t i = 1; i + 1 < out->text.length; i++)
		if (strchr(" \"\\=", out->text.data[i]))
			plain = false;
	if (plain)
		fwrite(out->text.data + 1, 1, out->text.length - 2, stdout);
	else
		fwrite(out->text.data, 1, out->text.length, stdout);
}

void output_made(struct output *out)
{
	if (out->text.failed)
		out->error = ENOMEM;
	else
		fwrite(out->text.data, 1, out->text.length, stdout);
}

void output_item(struct output *out, const struct item *value)
{
	const uint32_t shown = 40;

	switch (value->kind) {
	case ITEM_TEXT:
		output_text(out, (const char *)value->data, value->length);
		return;
	case ITEM_BYTES:
		for (uint32_t i = 0; i < value->length && i < shown; i++)
			printf("%02x", value->data[i]);
		if (value->length > shown)
			printf("...(%u bytes)", value->length);
		return;
	case ITEM_ARRAY:
	case ITEM_MAP:
		if (value->length > 4) {
			printf("(%u)", value->length);
			return;
		}
		break;
	default:
		break;
	}
	out->text.length = 0;
	json_item(&out->text, value);
	output_made(out);
}

const char *grouped(uint64_t number)
{
	static char texts[4][32];
	static unsigned int turn;
	char *text = texts[turn++ % 4], digits[24];
	int n = snprintf(digits, sizeof(digits), "%llu", (unsigned long long)number), to = 0;

	for (int i = 0; i < n; i++) {
		if (i && (n - i) % 3 == 0)
			text[to++] = ',';
		text[to++] = digits[i];
	}
	text[to] = '\0';
	return text;
}

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

void output_event(struct output *out, const struct coretap_event *event)
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

void output_json(struct output *out, const struct coretap_event *event)
{
	const char *line = coretap_event_json(event, NULL);

	if (line)
		puts(line);
	else
		out->error = ENOMEM;
}
