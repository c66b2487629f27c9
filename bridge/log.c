/* Log lines on stderr. Under systemd the level is told in the journal's way, "<3>text". */
#include "log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum level { ERROR = 3, WARNING = 4, INFO = 6, DEBUG = 7 }; /* syslog's numbers */

/* Escaped, a line still fits in the 4,096 bytes that a pipe takes as one. */
#define MAX_TEXT 1000

static atomic_bool verbose;

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

static void write_line(enum level level, const char *fmt, va_list args)
	__attribute__((format(printf, 2, 0)));

static void write_line(enum level level, const char *fmt, va_list args)
{
	static const char *const names[] = {
		[ERROR] = "error: ", [WARNING] = "warning: ", [INFO] = "", [DEBUG] = "debug: "
	};
	static const char cut[] = " [...]";
	char text[MAX_TEXT], line[64 + 4 * MAX_TEXT];
	int saved = errno, len;
	size_t n;

	if (to_journal())
		n = (size_t)snprintf(line, sizeof(line), "<%d>", level);
	else
		n = (size_t)snprintf(line, sizeof(line), "coretapd: %s", names[level]);
	errno = saved; /* for %m */
	len = vsnprintf(text, sizeof(text), fmt, args);
	if (len > 0)
		n += escape(text, strlen(text), line + n);
	if (len >= (int)sizeof(text)) {
		memcpy(line + n, cut, sizeof(cut) - 1);
		n += sizeof(cut) - 1;
	}
	line[n++] = '\n';
	/* One write, so that lines of several threads do not mix. If it fails there is nobody left
	 * to tell. */
	while (write(STDERR_FILENO, line, n) < 0 && errno == EINTR)
		;
	errno = saved;
}

void log_verbose(void)
{
	atomic_store(&verbose, true);
}

void log_error(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	write_line(ERROR, fmt, args);
	va_end(args);
}

void log_warning(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	write_line(WARNING, fmt, args);
	va_end(args);
}

void log_info(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	write_line(INFO, fmt, args);
	va_end(args);
}

void log_debug(const char *fmt, ...)
{
	va_list args;

	if (!atomic_load(&verbose))
		return;
	va_start(args, fmt);
	write_line(DEBUG, fmt, args);
	va_end(args);
}

_Noreturn void log_out_of_memory(void)
{
	log_error("out of memory");
	exit(1);
}
