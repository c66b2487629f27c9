/* The ZeroMQ side: two SUB sockets, connected when needed. Only transport.c knows libzmq. */
#ifndef CORETAP_TRANSPORT_H
#define CORETAP_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../protocol/catalogue.h"

struct transport;

/* Bytes in a frame; they live until the next transport_receive. */
struct frame {
	const void *data;
	size_t length;
};

/* See coretap_open for the form of an address. Nothing is connected yet.
 * Returns 0, -EINVAL, -ENAMETOOLONG, -ENOMEM or -EMFILE. */
int transport_open(const char *address, struct transport **out);

void transport_close(struct transport *transport);

/* Messages that wait in each socket, 0 = any number. Has no effect on a connected socket. */
void transport_set_backlog(struct transport *transport, int messages);

/* Connects the socket if need be and subscribes to all topics that begin with prefix.
 * Returns 0 or -errno. */
int transport_subscribe(struct transport *transport, enum socket_id socket, const char *prefix);

bool transport_connected(const struct transport *transport, enum socket_id socket);

/* Takes a message without waiting; frames after the second are dropped. *n_frames tells how many of
 * topic and body there are. Returns 1, 0 when there is none, or -errno. */
int transport_receive(struct transport *transport, enum socket_id socket, struct frame *topic,
		      struct frame *body, unsigned int *n_frames);

/* Waits until a message can be received, for at most timeout_ms (-1: for ever).
 * Returns 0 or -EINTR. */
int transport_wait(struct transport *transport, int timeout_ms);

/* One file descriptor for all connected sockets, or -errno. Connect them first. */
int transport_fd(struct transport *transport);

#endif
