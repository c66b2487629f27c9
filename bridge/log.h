/* The whole logging policy: lines on stderr, `coretapd: level: text`. */
#ifndef CORETAP_LOG_H
#define CORETAP_LOG_H

/* Shows debug lines too (-v). */
void log_verbose(void);

void log_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void log_warning(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void log_info(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void log_debug(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Ends the process: without memory there is nothing to publish with. What the rings hold is not yet
 * released, so a successor finds it. */
_Noreturn void log_out_of_memory(void);

#endif
