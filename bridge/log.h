/* The whole logging policy: lines on stderr, `coretapd: level: text`. */
#ifndef CORETAP_LOG_H
#define CORETAP_LOG_H

/* Shows debug lines too (-v). */
void log_verbose(void);

void log_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void log_warning(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void log_info(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void log_debug(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
