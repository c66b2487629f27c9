/* Log lines on stderr. Under systemd the level is told in the journal's way, "<3>text". */
#include "log.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Escaped, a line still fits in the 4,096 bytes that a pipe takes as one. */
#define MAX_TEXT 1000

/* Causes that are counted at once; the one that was new the longest ago makes room. */
#define MAX_CAUSES 32
#define MAX_LINES 10
#define WINDOW_S 10

struct cause {
	const char *fmt; /* NULL: free */
	time_t since;	 /* begin of its window, monotonic seconds */
	unsigned int told, withheld;
	enum log_level level;
	char last[200]; /* text of the last one withheld */
};

static struct {
	pthread_mutex_t lock; /* for causes and prefix: libraries may log from threads of theirs */
	struct cause causes[MAX_CAUSES];
	char prefix[300];
	atomic_int level;
	bool limited; /* a loop runs */
} state = { .lock = PTHREAD_MUTEX_INITIALIZER, .level = LOG_LEVEL_INFO };

/* Whether stderr is a stream to the journal. The variables alone do not tell: children of a service
 * and whole desktop sessions inherit them. */
static bool to_journal(void)
{
	const char *stream = getenv("JOURNAL_STREAM");
	unsigned long long device, inode;
	struct stat st;

	return stream && sscanf(stream, "%llu:%llu", &device, &inode) == 2 &&
	       fstat(STDERR_FILENO, &st) == 0 && st.st_dev == device && st.st_ino == inode;
}

/* Length of the UTF-8 character at s, 0 if there is none that a terminal may be shown as it is:
 * control characters (C1 ones too), and whatever is not UTF-8. */
static size_t printable(const unsigned char *s, size_t len)
{
	size_t n = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;

	if (n == 0 || s[0] > 0xf4 || n > len || s[0] < 0x20 || s[0] == 0x7f)
		return 0;
	for (size_t i = 1; i < n; i++)
		if ((s[i] & 0xc0) != 0x80)
			return 0;
	if ((s[0] == 0xc2 && s[1] < 0xa0) ||  /* C1 */
	    (s[0] == 0xe0 && s[1] < 0xa0) ||  /* overlong */
	    (s[0] == 0xed && s[1] >= 0xa0) || /* surrogates */
	    (s[0] == 0xf0 && s[1] < 0x90) ||  /* overlong */
	    (s[0] == 0xf4 && s[1] >= 0x90))   /* above U+10FFFF */
		return 0;
	return n;
}

/* Copies text with \xNN for what is not printable; out has four bytes for each of text. */
static size_t escape(const char *text, size_t len, char *out)
{
	static const char hex[] = "0123456789abcdef";
	size_t n = 0;

	for (size_t i = 0; i < len;) {
		const unsigned char *s = (const unsigned char *)text + i;
		size_t width = printable(s, len - i);

		if (width > 0) {
			memcpy(out + n, s, width);
			n += width;
			i += width;
			continue;
		}
		out[n++] = '\\';
		out[n++] = 'x';
		out[n++] = hex[*s >> 4];
		out[n++] = hex[*s & 15];
		i++;
	}
	return n;
}

static void line_put(enum log_level level, const char *prefix, const char *text, bool cut_off)
{
	static const char *const names[] = { [LOG_LEVEL_ERROR] = "error: ",
					     [LOG_LEVEL_WARNING] = "warning: ",
					     [LOG_LEVEL_INFO] = "",
					     [LOG_LEVEL_DEBUG] = "debug: " };
	static const char cut[] = " [...]";
	char line[64 + 4 * (MAX_TEXT + sizeof(state.prefix))];
	size_t n;

	if (to_journal())
		n = (size_t)snprintf(line, sizeof(line), "<%d>", level);
	else
		n = (size_t)snprintf(line, sizeof(line), "coretapd: %s", names[level]);
	n += escape(prefix, strlen(prefix), line + n);
	n += escape(text, strlen(text), line + n);
	if (cut_off) {
		memcpy(line + n, cut, sizeof(cut) - 1);
		n += sizeof(cut) - 1;
	}
	line[n++] = '\n';
	/* One write, so that lines of several threads do not mix. If it fails there is nobody left
	 * to tell. */
	while (write(STDERR_FILENO, line, n) < 0 && errno == EINTR)
		;
}

static time_t now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec;
}

/* Tells what was withheld and lets the cause go. */
static void cause_end(struct cause *c)
{
	char text[64 + sizeof(c->last)];

	if (c->withheld) {
		snprintf(text, sizeof(text), "%u more like this: %s", c->withheld, c->last);
		line_put(c->level, "", text, false);
	}
	*c = (struct cause){ .fmt = NULL };
}

static void causes_end(bool all)
{
	time_t now = now_s();

	pthread_mutex_lock(&state.lock);
	for (size_t i = 0; i < MAX_CAUSES; i++)
		if (state.causes[i].fmt && (all || now - state.causes[i].since >= WINDOW_S))
			cause_end(&state.causes[i]);
	pthread_mutex_unlock(&state.lock);
}

void log_tick(void)
{
	state.limited = true;
	causes_end(false);
}

void log_flush(void)
{
	causes_end(true);
}

/* Whether a line of this cause is told now; else it is counted. */
static bool cause_take(enum log_level level, const char *fmt, const char *text)
{
	struct cause *c = &state.causes[0];
	time_t now = now_s();

	for (size_t i = 0; i < MAX_CAUSES; i++) {
		struct cause *other = &state.causes[i];

		if (other->fmt == fmt) {
			c = other;
			break;
		}
		if (c->fmt && (!other->fmt || other->since < c->since))
			c = other;
	}
	if (c->fmt && (c->fmt != fmt || now - c->since >= WINDOW_S))
		cause_end(c);
	if (!c->fmt)
		*c = (struct cause){ .fmt = fmt, .since = now, .level = level };
	if (c->told < MAX_LINES || !state.limited) {
		c->told++;
		return true;
	}
	c->withheld++;
	snprintf(c->last, sizeof(c->last), "%.*s", (int)sizeof(c->last) - 1, text);
	return false;
}

static void write_line(enum log_level level, const char *fmt, va_list args)
	__attribute__((format(printf, 2, 0)));

static void write_line(enum log_level level, const char *fmt, va_list args)
{
	char text[MAX_TEXT] = "";
	int saved = errno, len;

	if ((int)level > atomic_load(&state.level))
		return;
	len = vsnprintf(text, sizeof(text), fmt, args);
	pthread_mutex_lock(&state.lock);
	if (cause_take(level, fmt, text))
		line_put(level, state.prefix, text, len >= (int)sizeof(text));
	pthread_mutex_unlock(&state.lock);
	errno = saved;
}

void log_level(enum log_level level)
{
	atomic_store(&state.level, (int)level);
}

void log_prefix(const char *prefix)
{
	pthread_mutex_lock(&state.lock);
	snprintf(state.prefix, sizeof(state.prefix), "%s", prefix ? prefix : "");
	pthread_mutex_unlock(&state.lock);
}

void log_error(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	write_line(LOG_LEVEL_ERROR, fmt, args);
	va_end(args);
}

void log_warning(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	write_line(LOG_LEVEL_WARNING, fmt, args);
	va_end(args);
}

void log_info(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	write_line(LOG_LEVEL_INFO, fmt, args);
	va_end(args);
}

void log_debug(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	write_line(LOG_LEVEL_DEBUG, fmt, args);
	va_end(args);
}

int log_no_memory(void)
{
	log_error("out of memory");
	return -ENOMEM;
}

_Noreturn void log_out_of_memory(void)
{
	log_no_memory();
	exit(1);
}
