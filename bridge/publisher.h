/* The two PUB sockets. Only publisher.c (and replay.c) know libzmq. */
#ifndef CORETAP_PUBLISHER_H
#define CORETAP_PUBLISHER_H

#include <stddef.h>

#include "../protocol/catalogue.h"

struct publisher;

#define MAX_ENDPOINTS 8

/* Three places to bind: those of enum socket_id, and replay. */
enum { ENDPOINT_REPLAY = N_SOCKETS, N_ENDPOINTS };

struct publisher_options {
	const char *endpoints[N_ENDPOINTS][MAX_ENDPOINTS]; /* "tcp://...", "ipc://..."; NULL ends */
	size_t subscriber_memory; /* bytes that may wait for one subscriber on one socket */
};

/* Binds the two sockets. Refuses an address in use (-EADDRINUSE) and a path that is no socket
 * (-EEXIST), replaces a stale ipc socket. Returns 0 or -errno, said in the log. */
int publisher_open(struct publisher **publisher, const struct publisher_options *options);

/* Sends what is queued to subscribers that read, for at most a second, then closes. NULL is fine.
 */
void publisher_close(struct publisher *publisher);

/* Sends one message to every subscriber that wants it and has room; never blocks. Takes body, which
 * must be malloc'ed. topic must live forever. */
void publisher_send(struct publisher *publisher, enum socket_id socket, const char *topic,
		    char *body, size_t len);

/* For replay.c: the libzmq context, and bind with the same care for addresses in use. */
void *publisher_context(struct publisher *publisher);
int publisher_bind(struct publisher *publisher, void *socket, const char *endpoint);

/* Keepalive, IPv6, bounds and what else every socket of ours should have. */
void publisher_configure(void *socket);

#endif
