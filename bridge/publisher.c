/* See publisher.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <zmq.h>

#include "log.h"
#include "publisher.h"
#include "stream.h"

struct publisher {
	void *context;
	void *sockets[N_SOCKETS];
	char *paths[N_ENDPOINTS * MAX_ENDPOINTS]; /* ipc sockets to remove at the end */
	size_t n_paths;
};

/* How long the last messages may take to reach subscribers once the bridge stops. */
#define LINGER_MS 1000

/* Of one frame that a peer sends us. */
#define MAX_RECEIVED_BYTES 4096

static int set_int(void *socket, int option, int value)
{
	return zmq_setsockopt(socket, option, &value, sizeof(value)) ? -errno : 0;
}

/* libzmq unlinks whatever stands at an ipc path before it binds, so look first. */
static int ipc_path_check(const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct stat st;
	int fd, err = 0;

	if (strlen(path) >= sizeof(address.sun_path)) {
		log_error("ipc://%s: the path is longer than %zu bytes", path,
			  sizeof(address.sun_path) - 1);
		return -ENAMETOOLONG;
	}
	if (lstat(path, &st))
		return 0;
	if (!S_ISSOCK(st.st_mode)) {
		log_error("%s: exists and is no socket: left alone; remove it, or choose another "
			  "path with --name, --low or --high",
			  path);
		return -EEXIST;
	}
	memcpy(address.sun_path, path, strlen(path) + 1);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	if (!connect(fd, (struct sockaddr *)&address, sizeof(address)) || errno != ECONNREFUSED) {
		log_error("ipc://%s: in use by another process", path);
		err = -EADDRINUSE;
	}
	close(fd);
	return err;
}

int publisher_bind(struct publisher *p, void *socket, const char *endpoint)
{
	const char *path = strncmp(endpoint, "ipc://", 6) ? NULL : endpoint + 6;
	int err = path ? ipc_path_check(path) : 0;

	if (err)
		return err;
	if (zmq_bind(socket, endpoint)) {
		err = -errno;
		log_error("%s: cannot bind: %s%s", endpoint, zmq_strerror(errno),
			  err == -EADDRINUSE ? "; choose other ports with --port" : "");
		return err;
	}
	if (path) {
		/* As open as loopback tcp is. */
		chmod(path, 0666);
		p->paths[p->n_paths] = strdup(path);
		if (p->paths[p->n_paths])
			p->n_paths++;
	}
	return 0;
}

void *publisher_context(struct publisher *p)
{
	return p->context;
}

void publisher_configure(void *s)
{
	/* Subscriptions and requests are short; a frame that claims more is not waited for. */
	int64_t largest = MAX_RECEIVED_BYTES;

	zmq_setsockopt(s, ZMQ_MAXMSGSIZE, &largest, sizeof(largest));
	set_int(s, ZMQ_LINGER, LINGER_MS);
	set_int(s, ZMQ_IPV6, 1);
	set_int(s, ZMQ_TCP_KEEPALIVE, 1);
	set_int(s, ZMQ_TCP_KEEPALIVE_IDLE, 30);
	set_int(s, ZMQ_TCP_KEEPALIVE_INTVL, 10);
	set_int(s, ZMQ_TCP_KEEPALIVE_CNT, 3);
	set_int(s, ZMQ_HEARTBEAT_IVL, 5000);
	set_int(s, ZMQ_HEARTBEAT_TIMEOUT, 30000);
	set_int(s, ZMQ_HEARTBEAT_TTL, 30000);
}

static int socket_open(struct publisher *p, enum socket_id id,
		       const struct publisher_options *options)
{
	void *s = zmq_socket(p->context, ZMQ_PUB);
	/* libzmq counts messages, not bytes; most are far smaller than the largest. */
	size_t messages = options->subscriber_memory / MESSAGE_MAX_BYTES;
	int err = 0;

	if (!s)
		return -errno;
	p->sockets[id] = s;
	if (messages < 1)
		messages = 1;
	set_int(s, ZMQ_SNDHWM, messages > INT32_MAX ? INT32_MAX : (int)messages);
	publisher_configure(s);
	for (int i = 0; i < MAX_ENDPOINTS && options->endpoints[id][i] && !err; i++)
		err = publisher_bind(p, s, options->endpoints[id][i]);
	return err;
}

int publisher_open(struct publisher **publisher, const struct publisher_options *options)
{
	struct publisher *p = calloc(1, sizeof(*p));
	int err = -ENOMEM;

	if (!p)
		return err;
	p->context = zmq_ctx_new();
	if (!p->context)
		goto out;
	for (enum socket_id id = 0; id < N_SOCKETS; id++) {
		err = socket_open(p, id, options);
		if (err)
			goto out;
	}
	*publisher = p;
	return 0;
out:
	publisher_close(p);
	return err;
}

void publisher_close(struct publisher *p)
{
	if (!p)
		return;
	for (enum socket_id id = 0; id < N_SOCKETS; id++)
		if (p->sockets[id])
			zmq_close(p->sockets[id]);
	if (p->context)
		zmq_ctx_term(p->context);
	for (size_t i = 0; i < p->n_paths; i++) {
		unlink(p->paths[i]);
		free(p->paths[i]);
	}
	free(p);
}

static void body_free(void *data, void *hint)
{
	(void)hint;
	free(data);
}

void publisher_send(struct publisher *p, enum socket_id id, const char *topic, char *body,
		    size_t len)
{
	zmq_msg_t message;

	/* A PUB socket drops whole messages for a subscriber without room; it never blocks. */
	while (zmq_send_const(p->sockets[id], topic, strlen(topic), ZMQ_SNDMORE) < 0 &&
	       errno == EINTR)
		;
	zmq_msg_init_data(&message, body, len, body_free, NULL);
	while (zmq_msg_send(&message, p->sockets[id], 0) < 0 && errno == EINTR)
		;
}
