/* The whole logging policy: lines on stderr, `coretapd: level: text`. */
#ifndef CORETAP_LOG_H
#define CORETAP_LOG_H

enum log_level {
	LOG_LEVEL_ERROR = 3,
	LOG_LEVEL_WARNING = 4,
	LOG_LEVEL_INFO = 6,
	LOG_LEVEL_DEBUG = 7
};

/* Shows lines of this level and graver ones; info unless told otherwise. */
void log_level(enum log_level level);

/* Stands in front of every line until it is called again; NULL = nothing. */
void log_prefix(const char *prefix);

/* A cause (a format) that is told more than ten times in ten seconds is told no more until they are
 * over, then in one line how often. Whoever has a loop calls log_tick about once a second: the
 * limit holds from the first call on, so that what is listed at a start is listed whole. log_flush
 * at the end tells what is left. */
void log_tick(void);
void log_flush(void);

void log_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void log_warning(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void log_info(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void log_debug(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Ends the process: without memory there is nothing to publish with. What the rings hold is not yet
 * released, so a successor finds it. */
_Noreturn void log_out_of_memory(void);

/* At the start, where everything can still be closed in order: says it and returns -ENOMEM. */
int log_no_memory(void);

#endif
