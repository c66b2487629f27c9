/* The two PUB sockets. Only publisher.c, replay.c and access.c know libzmq. */
#ifndef CORETAP_PUBLISHER_H
#define CORETAP_PUBLISHER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "../protocol/catalogue.h"

struct access;
struct publisher;
struct user;

#define MAX_ENDPOINTS 8

/* Three places to bind: those of enum socket_id, and replay. */
enum { ENDPOINT_REPLAY = N_SOCKETS, N_ENDPOINTS };

struct publisher_options {
	const char *endpoints[N_ENDPOINTS][MAX_ENDPOINTS]; /* "tcp://...", "ipc://..."; NULL ends */
	size_t subscriber_memory; /* bytes that may wait for one subscriber on one socket */
	mode_t ipc_mode;	  /* of ipc sockets */
	uid_t ipc_owner;	  /* -1: as made */
	const struct user *user;  /* whose the threads are */
	gid_t ipc_group;	  /* -1: as made */
	struct access *access;	  /* who may connect over tcp; NULL: everybody. The publisher's */
};

/* What an endpoint is: anything but tcp and ipc is not bound. */
enum endpoint_kind {
	ENDPOINT_UNKNOWN,
	ENDPOINT_IPC,
	ENDPOINT_ABSTRACT, /* ipc without a file: no mode can guard it */
	ENDPOINT_LOOPBACK, /* tcp on an address that only this machine reaches */
	ENDPOINT_PUBLIC,   /* any other tcp */
};
enum endpoint_kind endpoint_kind(const char *endpoint);

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

/* For replay.c: a socket with keepalive, IPv6, bounds and what else every socket of ours should
 * have (returns 0 or -errno, said in the log), and bind with the same care for addresses in use and
 * for who may connect. */
int publisher_socket(struct publisher *publisher, int kind, void **socket);
int publisher_bind(struct publisher *publisher, void *socket,
		   const char *const endpoints[MAX_ENDPOINTS]);

/* Lets in, or refuses, who knocked meanwhile. Returns whether more wait. */
bool publisher_admit(struct publisher *publisher);

/* Takes in what subscribers ask for. libzmq does that with each send too, which may be a second
 * away; the descriptor of a socket is readable when there is something. */
void publisher_attend(struct publisher *publisher);
int publisher_fd(struct publisher *publisher, enum socket_id socket); /* or -errno */
int publisher_admit_fd(struct publisher *publisher); /* -1: everybody may connect */

/* Reads the list of those who may connect again. */
void publisher_reload(struct publisher *publisher);

/* Connections that were refused. */
uint64_t publisher_rejected(const struct publisher *publisher);

#endif
