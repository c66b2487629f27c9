/* SUB and REQ sockets towards one coretapd. */
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
#define KEY_BYTES 32
#define KEY_TEXT 40
#define REPLAY N_SOCKETS /* its place among the endpoints */

struct transport {
	void *context;
	void *sockets[N_SOCKETS];
	void *askers[N_SOCKETS];
	void *monitors[N_SOCKETS]; /* tell when an asker's connection breaks */
	bool asked[N_SOCKETS];	   /* an answer is due, or not taken whole */
	char endpoints[N_SOCKETS + 1][MAX_ENDPOINT];
	zmq_msg_t topic, body; /* received last, or parts of an answer */
	zmq_msg_t held[N_SOCKETS][2];
	int backlog;
	int epoll;
	uint8_t curve[3][KEY_BYTES]; /* the server's key, ours, our secret one */
	bool encrypted;
	pid_t owner; /* a child after fork() has the sockets, but not libzmq's threads */
};

/* What libzmq lets a host consist of, but for the wildcard of a bind. */
static bool is_host(const char *host, size_t length)
{
	static const char alnum[] =
		"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

	if (!strchr(alnum, *host) && *host != '[')
		return false;
	for (size_t i = 0; i < length; i++)
		if (!strchr(alnum, host[i]) && !strchr("[]:.%_-", host[i]))
			return false;
	return true;
}

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
	if (!is_host(host, length))
		return -EINVAL;
	for (digit = colon + 1; *digit; digit++) {
		if (*digit < '0' || *digit > '9' || port > 65535)
			return -EINVAL;
		port = port * 10 + (unsigned long)(*digit - '0');
	}
	/* Replay has the second port after this one. */
	if (digit == colon + 1 || port < 1 || port > 65533)
		return -EINVAL;
	for (int i = 0; i <= REPLAY; i++)
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
	for (int i = 0; i <= REPLAY; i++)
		snprintf(transport->endpoints[i], MAX_ENDPOINT, "ipc://%.*s/%s.sock", (int)length,
			 directory, i == REPLAY ? "replay" : socket_name((enum socket_id)i));
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
	transport->owner = getpid();
	zmq_msg_init(&transport->topic);
	zmq_msg_init(&transport->body);
	for (int i = 0; i < N_SOCKETS; i++)
		for (int j = 0; j < 2; j++)
			zmq_msg_init(&transport->held[i][j]);
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
	bool owned;

	if (!transport)
		return;
	/* A child after fork() would wait for threads that only its parent has. */
	owned = transport->owner == getpid();
	zmq_msg_close(&transport->topic);
	zmq_msg_close(&transport->body);
	for (int i = 0; i < N_SOCKETS; i++) {
		for (int j = 0; j < 2; j++)
			zmq_msg_close(&transport->held[i][j]);
		if (!owned)
			continue;
		transport_hang_up(transport, (enum socket_id)i);
		if (transport->sockets[i])
			zmq_close(transport->sockets[i]);
	}
	if (transport->epoll >= 0)
		close(transport->epoll);
	explicit_bzero(transport->curve, sizeof(transport->curve));
	if (transport->context && owned)
		while (zmq_ctx_term(transport->context) && errno == EINTR)
			;
	free(transport);
}

void transport_set_backlog(struct transport *transport, int messages)
{
	transport->backlog = messages;
}

static bool key_decode(uint8_t key[KEY_BYTES], const char *text)
{
	return strlen(text) == KEY_TEXT && zmq_z85_decode(key, text);
}

int transport_set_curve(struct transport *transport, const char *server_key, const char *secret_key)
{
	char public_key[KEY_TEXT + 1];

	if (!zmq_has("curve"))
		return -ENOTSUP;
	if (!key_decode(transport->curve[0], server_key) ||
	    !key_decode(transport->curve[2], secret_key) ||
	    zmq_curve_public(public_key, secret_key) ||
	    !key_decode(transport->curve[1], public_key))
		return -EKEYREJECTED;
	transport->encrypted = true;
	return 0;
}

/* The file's mode guards ipc. */
static int set_curve(const struct transport *transport, void *socket)
{
	static const int names[] = { ZMQ_CURVE_SERVERKEY, ZMQ_CURVE_PUBLICKEY,
				     ZMQ_CURVE_SECRETKEY };

	if (!transport->encrypted || strncmp(transport->endpoints[0], "tcp:", 4))
		return 0;
	for (int i = 0; i < 3; i++)
		if (zmq_setsockopt(socket, names[i], transport->curve[i], KEY_BYTES))
			return -errno;
	return 0;
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
		/* No ZMQ_HEARTBEAT_IVL: where a full queue has stopped the reading and the peer
		 * goes away, libzmq 4.3.4 aborts the process at the next heartbeat (it asserts
		 * !_io_error). The status is the heartbeat here, see transport_reconnect. */
		{ ZMQ_CONNECT_TIMEOUT, 5000 },
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
	return set_curve(transport, socket);
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

void transport_hold(struct transport *transport, enum socket_id id)
{
	zmq_msg_move(&transport->held[id][0], &transport->topic);
	zmq_msg_move(&transport->held[id][1], &transport->body);
}

void transport_release(struct transport *transport, enum socket_id id, struct frame *topic,
		       struct frame *body)
{
	zmq_msg_move(&transport->topic, &transport->held[id][0]);
	zmq_msg_move(&transport->body, &transport->held[id][1]);
	*topic = (struct frame){ zmq_msg_data(&transport->topic), zmq_msg_size(&transport->topic) };
	*body = (struct frame){ zmq_msg_data(&transport->body), zmq_msg_size(&transport->body) };
}

static int watch(struct transport *transport, void *socket, int operation)
{
	struct epoll_event event = { .events = EPOLLIN };
	int fd;
	size_t size = sizeof(fd);

	if (zmq_getsockopt(socket, ZMQ_FD, &fd, &size) ||
	    epoll_ctl(transport->epoll, operation, fd, &event))
		return -errno;
	return 0;
}

void transport_hang_up(struct transport *transport, enum socket_id id)
{
	transport->asked[id] = false;
	if (!transport->askers[id])
		return;
	if (transport->epoll >= 0) {
		watch(transport, transport->askers[id], EPOLL_CTL_DEL);
		watch(transport, transport->monitors[id], EPOLL_CTL_DEL);
	}
	zmq_socket_monitor(transport->askers[id], NULL, 0);
	zmq_close(transport->monitors[id]);
	zmq_close(transport->askers[id]);
	transport->askers[id] = transport->monitors[id] = NULL;
}

/* A question that went to a bridge that then died is not sent again by libzmq. */
static int open_monitor(struct transport *transport, void *asker, void **monitor)
{
	char endpoint[64];
	int linger = 0;

	snprintf(endpoint, sizeof(endpoint), "inproc://asker-%p", asker);
	if (zmq_socket_monitor(asker, endpoint, ZMQ_EVENT_DISCONNECTED))
		return -errno;
	*monitor = zmq_socket(transport->context, ZMQ_PAIR);
	if (!*monitor)
		return -errno;
	zmq_setsockopt(*monitor, ZMQ_LINGER, &linger, sizeof(linger));
	return zmq_connect(*monitor, endpoint) ? -errno : 0;
}

static int open_asker(struct transport *transport, enum socket_id id)
{
	void *socket = zmq_socket(transport->context, ZMQ_REQ), *monitor = NULL;
	int err;

	if (!socket)
		return -errno;
	err = set_options(transport, socket);
	if (!err)
		err = open_monitor(transport, socket, &monitor);
	if (!err && zmq_connect(socket, transport->endpoints[REPLAY]))
		err = -errno;
	if (!err && transport->epoll >= 0)
		err = watch(transport, socket, EPOLL_CTL_ADD);
	if (!err && transport->epoll >= 0)
		err = watch(transport, monitor, EPOLL_CTL_ADD);
	if (err) {
		if (monitor)
			zmq_close(monitor);
		zmq_close(socket);
		return err;
	}
	transport->askers[id] = socket;
	transport->monitors[id] = monitor;
	return 0;
}

static bool is_broken(struct transport *transport, enum socket_id id)
{
	bool broken = false;
	char frame[256];

	while (zmq_recv(transport->monitors[id], frame, sizeof(frame), ZMQ_DONTWAIT) >= 0)
		broken = true;
	return broken;
}

int transport_ask(struct transport *transport, enum socket_id id, const void *request,
		  size_t length)
{
	int err = 0;

	if (transport->asked[id])
		transport_hang_up(transport, id);
	if (!transport->askers[id])
		err = open_asker(transport, id);
	if (err)
		return err;
	transport->asked[id] = true;
	/* Waits in the socket until the connection stands. */
	if (zmq_send(transport->askers[id], request, length, ZMQ_DONTWAIT) < 0) {
		err = -errno;
		transport_hang_up(transport, id);
	}
	return err == -EAGAIN || err == -EINTR ? 0 : err;
}

int transport_answer(struct transport *transport, enum socket_id id, unsigned int place,
		     struct frame *frame, bool *more)
{
	zmq_msg_t *part = place ? &transport->body : &transport->topic;

	if (!transport->askers[id])
		return 0;
	/* Again at once after a signal: the descriptor tells of an answer only once. */
	while (zmq_msg_recv(part, transport->askers[id], ZMQ_DONTWAIT) < 0) {
		if (errno == EINTR)
			continue;
		if (errno != EAGAIN)
			return -errno;
		return is_broken(transport, id) ? -ECONNRESET : 0;
	}
	*frame = (struct frame){ zmq_msg_data(part), zmq_msg_size(part) };
	*more = zmq_msg_more(part);
	transport->asked[id] = *more;
	return 1;
}

int transport_wait(struct transport *transport, const bool quiet[N_SOCKETS], int timeout_ms)
{
	zmq_pollitem_t items[3 * N_SOCKETS];
	int n = 0;

	for (int i = 0; i < N_SOCKETS; i++) {
		if (transport->sockets[i] && !quiet[i])
			items[n++] = (zmq_pollitem_t){ .socket = transport->sockets[i],
						       .events = ZMQ_POLLIN };
		if (!transport->askers[i])
			continue;
		items[n++] =
			(zmq_pollitem_t){ .socket = transport->askers[i], .events = ZMQ_POLLIN };
		items[n++] =
			(zmq_pollitem_t){ .socket = transport->monitors[i], .events = ZMQ_POLLIN };
	}
	return zmq_poll(items, n, timeout_ms) < 0 && errno == EINTR ? -EINTR : 0;
}

void transport_reconnect(struct transport *transport, enum socket_id id)
{
	if (!zmq_disconnect(transport->sockets[id], transport->endpoints[id]))
		zmq_connect(transport->sockets[id], transport->endpoints[id]);
}

void transport_touch(struct transport *transport, enum socket_id id)
{
	int events;
	size_t size = sizeof(events);

	while (zmq_getsockopt(transport->sockets[id], ZMQ_EVENTS, &events, &size) && errno == EINTR)
		;
}

int transport_fd(struct transport *transport)
{
	int err = 0;

	if (transport->epoll >= 0)
		return transport->epoll;
	transport->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (transport->epoll < 0)
		return -errno;
	for (int i = 0; i < N_SOCKETS && !err; i++) {
		if (transport->sockets[i])
			err = watch(transport, transport->sockets[i], EPOLL_CTL_ADD);
		if (!err && transport->askers[i])
			err = watch(transport, transport->askers[i], EPOLL_CTL_ADD);
		if (!err && transport->monitors[i])
			err = watch(transport, transport->monitors[i], EPOLL_CTL_ADD);
	}
	if (err) {
		close(transport->epoll);
		transport->epoll = -1;
		return err;
	}
	return transport->epoll;
}
