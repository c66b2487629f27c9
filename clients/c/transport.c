/* SUB sockets towards one coretapd. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/un.h>
#include <unistd.h>
#include <zmq.h>

#include "../../protocol/decode.h"
#include "transport.h"

#define MAX_ENDPOINT 300

struct transport {
	void *context;
	void *sockets[N_SOCKETS];
	char endpoints[N_SOCKETS][MAX_ENDPOINT];
	zmq_msg_t topic, body;
	int backlog;
	int epoll;
};

/* Splits host:port from the right: a host may be a bracketed IPv6 address. */
static int parse_tcp(struct transport *transport, const char *host)
{
	const char *colon = strrchr(host, ':'), *digit;
	unsigned long port = 0;
	size_t length;

	if (!colon || colon == host)
		return -EINVAL;
	length = (size_t)(colon - host);
	if (length > 255)
		return -ENAMETOOLONG;
	if (memchr(host, ':', length) && (*host != '[' || host[length - 1] != ']'))
		return -EINVAL;
	for (size_t i = 0; i < length; i++)
		if ((unsigned char)host[i] <= ' ' || host[i] == '/' || host[i] == ';')
			return -EINVAL;
	for (digit = colon + 1; *digit; digit++) {
		if (*digit < '0' || *digit > '9' || port > 65535)
			return -EINVAL;
		port = port * 10 + (unsigned long)(*digit - '0');
	}
	/* Replay has the second port after this one. */
	if (digit == colon + 1 || port < 1 || port > 65533)
		return -EINVAL;
	for (int i = 0; i < N_SOCKETS; i++)
		snprintf(transport->endpoints[i], MAX_ENDPOINT, "tcp://%.*s:%lu", (int)length, host,
			 port + (unsigned long)i);
	return 0;
}

static int parse_ipc(struct transport *transport, const char *directory)
{
	size_t length = strlen(directory);

	while (length > 1 && directory[length - 1] == '/')
		length--;
	if (*directory != '/')
		return -EINVAL;
	/* replay.sock is the longest of the names. */
	if (length + strlen("/replay.sock") >= sizeof(((struct sockaddr_un *)0)->sun_path))
		return -ENAMETOOLONG;
	for (int i = 0; i < N_SOCKETS; i++)
		snprintf(transport->endpoints[i], MAX_ENDPOINT, "ipc://%.*s/%s.sock", (int)length,
			 directory, socket_name((enum socket_id)i));
	return 0;
}

static int parse_address(struct transport *transport, const char *address)
{
	if (!strncmp(address, "tcp://", 6))
		return parse_tcp(transport, address + 6);
	if (!strncmp(address, "ipc://", 6))
		return parse_ipc(transport, address + 6);
	return -EINVAL;
}

int transport_open(const char *address, struct transport **out)
{
	struct transport *transport = calloc(1, sizeof(*transport));
	int err;

	if (!transport)
		return -ENOMEM;
	transport->epoll = -1;
	zmq_msg_init(&transport->topic);
	zmq_msg_init(&transport->body);
	err = parse_address(transport, address);
	if (err)
		goto fail;
	transport->context = zmq_ctx_new();
	if (!transport->context) {
		err = -errno;
		goto fail;
	}
	*out = transport;
	return 0;

fail:
	transport_close(transport);
	return err;
}

void transport_close(struct transport *transport)
{
	if (!transport)
		return;
	zmq_msg_close(&transport->topic);
	zmq_msg_close(&transport->body);
	if (transport->epoll >= 0)
		close(transport->epoll);
	for (int i = 0; i < N_SOCKETS; i++)
		if (transport->sockets[i])
			zmq_close(transport->sockets[i]);
	if (transport->context)
		while (zmq_ctx_term(transport->context) && errno == EINTR)
			;
	free(transport);
}

void transport_set_backlog(struct transport *transport, int messages)
{
	transport->backlog = messages;
}

static int set_options(struct transport *transport, void *socket)
{
	const struct {
		int option, value;
	} options[] = {
		{ ZMQ_RCVHWM, transport->backlog },
		{ ZMQ_LINGER, 0 },
		{ ZMQ_IPV6, 1 },
		/* A restarted coretapd waits 250 ms before its first event: be back by then. Libzmq
		 * adds up to as much again at random. */
		{ ZMQ_RECONNECT_IVL, 50 },
		{ ZMQ_HANDSHAKE_IVL, 3000 },
		{ ZMQ_HEARTBEAT_IVL, 1000 },
		{ ZMQ_HEARTBEAT_TIMEOUT, 5000 },
		{ ZMQ_HEARTBEAT_TTL, 10000 },
		{ ZMQ_TCP_KEEPALIVE, 1 },
		{ ZMQ_TCP_KEEPALIVE_IDLE, 10 },
		{ ZMQ_TCP_KEEPALIVE_INTVL, 5 },
		{ ZMQ_TCP_KEEPALIVE_CNT, 3 },
	};
	int64_t max_length = DECODE_MAX_LENGTH;

	for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
		if (zmq_setsockopt(socket, options[i].option, &options[i].value, sizeof(int)))
			return -errno;
	if (zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &max_length, sizeof(max_length)))
		return -errno;
	return 0;
}

static int connect_socket(struct transport *transport, enum socket_id id)
{
	void *socket = zmq_socket(transport->context, ZMQ_SUB);
	int err;

	if (!socket)
		return -errno;
	err = set_options(transport, socket);
	if (!err && zmq_connect(socket, transport->endpoints[id]))
		err = -errno;
	if (err)
		zmq_close(socket);
	else
		transport->sockets[id] = socket;
	return err;
}

int transport_subscribe(struct transport *transport, enum socket_id socket, const char *prefix)
{
	if (!transport->sockets[socket]) {
		int err = connect_socket(transport, socket);

		if (err)
			return err;
	}
	if (zmq_setsockopt(transport->sockets[socket], ZMQ_SUBSCRIBE, prefix, strlen(prefix)))
		return -errno;
	return 0;
}

bool transport_connected(const struct transport *transport, enum socket_id socket)
{
	return transport->sockets[socket] != NULL;
}

int transport_receive(struct transport *transport, enum socket_id id, struct frame *topic,
		      struct frame *body, unsigned int *n_frames)
{
	void *socket = transport->sockets[id];

	if (zmq_msg_recv(&transport->topic, socket, ZMQ_DONTWAIT) < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -errno;
	*n_frames = 1;
	topic->data = zmq_msg_data(&transport->topic);
	topic->length = zmq_msg_size(&transport->topic);
	if (!zmq_msg_more(&transport->topic))
		return 1;

	/* Libzmq hands a message over whole: the other frames are here, and no signal may divide
	 * them. */
	while (zmq_msg_recv(&transport->body, socket, 0) < 0)
		if (errno != EINTR)
			return -errno;
	*n_frames = 2;
	body->data = zmq_msg_data(&transport->body);
	body->length = zmq_msg_size(&transport->body);

	bool more = zmq_msg_more(&transport->body);

	while (more) {
		zmq_msg_t rest;

		zmq_msg_init(&rest);
		while (zmq_msg_recv(&rest, socket, 0) < 0)
			if (errno != EINTR)
				return -errno;
		more = zmq_msg_more(&rest);
		zmq_msg_close(&rest);
	}
	return 1;
}

int transport_wait(struct transport *transport, int timeout_ms)
{
	zmq_pollitem_t items[N_SOCKETS];
	int n = 0;

	for (int i = 0; i < N_SOCKETS; i++)
		if (transport->sockets[i])
			items[n++] = (zmq_pollitem_t){ .socket = transport->sockets[i],
						       .events = ZMQ_POLLIN };
	return zmq_poll(items, n, timeout_ms) < 0 && errno == EINTR ? -EINTR : 0;
}

int transport_fd(struct transport *transport)
{
	int epoll, err;

	if (transport->epoll >= 0)
		return transport->epoll;
	epoll = epoll_create1(EPOLL_CLOEXEC);
	if (epoll < 0)
		return -errno;
	for (int i = 0; i < N_SOCKETS; i++) {
		struct epoll_event event = { .events = EPOLLIN };
		int fd;
		size_t size = sizeof(fd);

		if (!transport->sockets[i])
			continue;
		if (zmq_getsockopt(transport->sockets[i], ZMQ_FD, &fd, &size) ||
		    epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event)) {
			err = -errno;
			close(epoll);
			return err;
		}
	}
	transport->epoll = epoll;
	return epoll;
}
