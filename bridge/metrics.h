/* --metrics: a small HTTP server for Prometheus. Only metrics.c knows libmicrohttpd; it has no
 * thread, the bridge's loop serves it. */
#ifndef CORETAP_METRICS_H
#define CORETAP_METRICS_H

#include <stdbool.h>

struct bridge;
struct metrics;

/* Whether "ADDR:PORT" ("127.0.0.1:9332", "[::1]:9332", "*:9332") can be understood; *loopback:
 * nobody beyond this machine reaches it. */
bool metrics_address(const char *address, bool *loopback);

/* Binds address. Returns 0, -EADDRINUSE or another -errno, said in the log. */
int metrics_open(struct metrics **metrics, const char *address, struct bridge *bridge);
void metrics_close(struct metrics *metrics); /* NULL is fine */

/* Readable when metrics_serve should be called. */
int metrics_fd(const struct metrics *metrics);

/* Does what can be done without waiting, for at most 32 connections. Returns whether more can be
 * done at once. To be called once a second too: connections that say nothing, or too little, are
 * dropped. */
bool metrics_serve(struct metrics *metrics);

#endif
