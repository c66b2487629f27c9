/* The ZeroMQ side: two SUB sockets and a REQ socket for each, connected when needed. Only
 * transport.c knows libzmq. */
#ifndef CORETAP_TRANSPORT_H
#define CORETAP_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../protocol/catalogue.h"

struct transport;

/* Bytes in a frame; they live until the next transport_receive, transport_answer or
 * transport_release. */
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

/* Keys for tcp, see coretap_set_curve. Has no effect on a connected socket. Returns 0,
 * -EKEYREJECTED or -ENOTSUP. */
int transport_set_curve(struct transport *transport, const char *server_key,
			const char *secret_key);

/* Connects the socket if need be and subscribes to all topics that begin with prefix.
 * Returns 0 or -errno. */
int transport_subscribe(struct transport *transport, enum socket_id socket, const char *prefix);

/* Takes a message without waiting; frames after the second are dropped. *n_frames tells how many of
 * topic and body there are. Returns 1, 0 when there is none, or -errno. */
int transport_receive(struct transport *transport, enum socket_id socket, struct frame *topic,
		      struct frame *body, unsigned int *n_frames);

/* Keeps the message received last aside, one for each socket, and gives it back. */
void transport_hold(struct transport *transport, enum socket_id socket);
void transport_release(struct transport *transport, enum socket_id socket, struct frame *topic,
		       struct frame *body);

/* Sends a request for one of the streams to the replay socket. An answer that was not taken whole
 * is given up, with its connection. Returns 0 or -errno. */
int transport_ask(struct transport *transport, enum socket_id socket, const void *request,
		  size_t length);

/* Takes the next frame of the answer: into place 0 or 1, where it lives until the next one there.
 * *more: others follow. Returns 1; 0 when there is none yet; -ECONNRESET when the connection broke
 * since the request was sent: it is to be sent again; or -errno. */
int transport_answer(struct transport *transport, enum socket_id socket, unsigned int place,
		     struct frame *frame, bool *more);

/* Closes the connection to the replay socket. */
void transport_hang_up(struct transport *transport, enum socket_id socket);

/* Waits until something can be received, for at most timeout_ms (-1: for ever). A stream in quiet
 * has messages that are left waiting; only its answer counts. Returns 0 or -EINTR. */
int transport_wait(struct transport *transport, const bool quiet[N_SOCKETS], int timeout_ms);

/* Makes a new connection, where the old one may be dead without having broken. */
void transport_reconnect(struct transport *transport, enum socket_id socket);

/* Lets libzmq do what is due on a socket that is not read for a while. */
void transport_touch(struct transport *transport, enum socket_id socket);

/* One file descriptor for all connected sockets, or -errno. Connect them first. */
int transport_fd(struct transport *transport);

#endif
