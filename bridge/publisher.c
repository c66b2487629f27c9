/* See publisher.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <zmq.h>

#include "access.h"
#include "log.h"
#include "privilege.h"
#include "publisher.h"
#include "stream.h"

struct publisher {
	void *context;
	void *sockets[N_SOCKETS];
	char *paths[N_ENDPOINTS * MAX_ENDPOINTS]; /* ipc sockets to remove at the end */
	size_t n_paths;
	mode_t ipc_mode;
	uid_t ipc_owner;
	gid_t ipc_group;
	struct access *access;
};

/* How long the last messages may take to reach subscribers once the bridge stops. */
#define LINGER_MS 1000

/* Of one frame that a peer sends us, and what CURVE adds to it on its way. */
#define MAX_RECEIVED_BYTES 4096
#define CURVE_BYTES 33

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
	if (lstat(path, &st)) {
		err = errno == ENOENT ? 0 : -errno;
		if (err)
			log_error("%s: %s", path, strerror(-err));
		return err;
	}
	if (!S_ISSOCK(st.st_mode)) {
		log_error("%s: exists and is no socket: left alone; remove it, or choose another "
			  "path with --name, --low or --high",
			  path);
		return -EEXIST;
	}
	memcpy(address.sun_path, path, strlen(path) + 1);
	/* Whoever listens there and accepts nothing must not hold us up. */
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0) {
		err = -errno;
		log_error("ipc://%s: %s", path, strerror(-err));
		return err;
	}
	if (!connect(fd, (struct sockaddr *)&address, sizeof(address)) || errno != ECONNREFUSED) {
		log_error("ipc://%s: in use by another process", path);
		err = -EADDRINUSE;
	}
	close(fd);
	return err;
}

enum endpoint_kind endpoint_kind(const char *endpoint)
{
	const char *host = endpoint + 6;

	if (!strncmp(endpoint, "ipc://", 6) && *host)
		return *host == '@' ? ENDPOINT_ABSTRACT : ENDPOINT_IPC;
	if (strncmp(endpoint, "tcp://", 6) || !strchr(host, ':'))
		return ENDPOINT_UNKNOWN;
	/* Names of interfaces and hosts lead who knows where. */
	if ((!strncmp(host, "127.", 4) && host[strspn(host, "0123456789.")] == ':') ||
	    !strncmp(host, "localhost:", 10) || !strncmp(host, "lo:", 3) ||
	    !strncmp(host, "[::1]:", 6))
		return ENDPOINT_LOOPBACK;
	return ENDPOINT_PUBLIC;
}

static int bind_ipc(struct publisher *p, void *socket, const char *endpoint)
{
	const char *path = endpoint + 6;
	bool file = endpoint_kind(endpoint) == ENDPOINT_IPC;
	mode_t before;
	int err = file ? ipc_path_check(path) : 0;

	if (err)
		return err;
	if (file) {
		p->paths[p->n_paths] = strdup(path);
		if (!p->paths[p->n_paths])
			return log_no_memory();
	}
	/* Made with its mode: it is never more open for a moment, and no link is followed. */
	before = umask(0777 & ~p->ipc_mode);
	err = zmq_bind(socket, endpoint) ? -errno : 0;
	umask(before);
	if (err) {
		log_error("%s: cannot bind: %s", endpoint, zmq_strerror(-err));
		if (file)
			free(p->paths[p->n_paths]);
		return err;
	}
	if (!file)
		return 0;
	p->n_paths++;
	if ((p->ipc_owner == (uid_t)-1 && p->ipc_group == (gid_t)-1) ||
	    !lchown(path, p->ipc_owner, p->ipc_group))
		return 0;
	err = -errno;
	log_error("%s: cannot be given to its owner and group: %s", path, strerror(-err));
	return err;
}

static int bind_tcp(void *socket, const char *endpoint)
{
	int err;

	if (!zmq_bind(socket, endpoint))
		return 0;
	err = -errno;
	log_error("%s: cannot bind: %s%s", endpoint, zmq_strerror(-err),
		  err == -EADDRINUSE ? "; choose other ports with --port" : "");
	return err;
}

/* What is set on a socket holds for what is bound later: so ipc comes first, which file modes
 * guard, and then tcp, for which a key is demanded. */
int publisher_bind(struct publisher *p, void *socket, const char *const endpoints[MAX_ENDPOINTS])
{
	int err = 0;

	for (int i = 0; i < MAX_ENDPOINTS && endpoints[i] && !err; i++)
		if (endpoint_kind(endpoints[i]) <= ENDPOINT_ABSTRACT)
			err = bind_ipc(p, socket, endpoints[i]);
	if (!err && p->access) {
		int64_t largest = MAX_RECEIVED_BYTES + CURVE_BYTES;

		err = zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &largest, sizeof(largest)) ? -errno
											: 0;
		if (!err)
			err = access_demand(p->access, p->context, socket);
		if (err)
			log_error("CURVE: %s", zmq_strerror(-err));
	}
	for (int i = 0; i < MAX_ENDPOINTS && endpoints[i] && !err; i++)
		if (endpoint_kind(endpoints[i]) > ENDPOINT_ABSTRACT)
			err = bind_tcp(socket, endpoints[i]);
	return err;
}

void publisher_attend(struct publisher *p)
{
	for (enum socket_id id = 0; id < N_SOCKETS; id++) {
		int events;
		size_t len = sizeof(events);

		zmq_getsockopt(p->sockets[id], ZMQ_EVENTS, &events, &len);
	}
}

int publisher_fd(struct publisher *p, enum socket_id id)
{
	int fd;
	size_t len = sizeof(fd);

	return zmq_getsockopt(p->sockets[id], ZMQ_FD, &fd, &len) ? -errno : fd;
}

bool publisher_admit(struct publisher *p)
{
	return p->access && access_serve(p->access);
}

int publisher_admit_fd(struct publisher *p)
{
	return p->access ? access_fd(p->access) : -1;
}

void publisher_reload(struct publisher *p)
{
	if (p->access)
		access_reload(p->access);
}

uint64_t publisher_rejected(const struct publisher *p)
{
	return p->access ? access_rejected(p->access) : 0;
}

/* No ZMQ_HEARTBEAT_IVL: libzmq 4.3.4 can abort the process when a heartbeat falls due on a
 * connection that has stopped reading (zeromq/libzmq issue 3937). Keepalive finds dead peers. */
int publisher_socket(struct publisher *p, int kind, void **socket)
{
	/* Subscriptions and requests are short; a frame that claims more is not waited for. */
	int64_t largest = MAX_RECEIVED_BYTES;
	void *s = zmq_socket(p->context, kind);
	int err = 0;

	if (!s || zmq_setsockopt(s, ZMQ_MAXMSGSIZE, &largest, sizeof(largest)) ||
	    set_int(s, ZMQ_LINGER, LINGER_MS) || set_int(s, ZMQ_IPV6, 1) ||
	    set_int(s, ZMQ_TCP_KEEPALIVE, 1) || set_int(s, ZMQ_TCP_KEEPALIVE_IDLE, 30) ||
	    set_int(s, ZMQ_TCP_KEEPALIVE_INTVL, 10) || set_int(s, ZMQ_TCP_KEEPALIVE_CNT, 3)) {
		err = -errno;
		log_error("socket: cannot be made: %s", zmq_strerror(-err));
		if (s)
			zmq_close(s);
		s = NULL;
	}
	*socket = s;
	return err;
}

static int socket_open(struct publisher *p, enum socket_id id,
		       const struct publisher_options *options)
{
	/* libzmq counts messages, not bytes; most are far smaller than the largest. */
	size_t messages = options->subscriber_memory / MESSAGE_MAX_BYTES;
	int err = publisher_socket(p, ZMQ_PUB, &p->sockets[id]);

	if (err)
		return err;
	if (messages < 1)
		messages = 1;
	err = set_int(p->sockets[id], ZMQ_SNDHWM, messages > INT32_MAX ? INT32_MAX : (int)messages);
	if (err) {
		log_error("%s: cannot be bounded: %s", socket_name(id), zmq_strerror(-err));
		return err;
	}
	return publisher_bind(p, p->sockets[id], options->endpoints[id]);
}

/* libzmq starts its threads with the first socket. */
static void threads_start(void *context)
{
	void *s = zmq_socket(context, ZMQ_PAIR);

	if (s)
		zmq_close(s);
	else
		log_warning("libzmq: %s: its threads keep what capabilities there are",
			    zmq_strerror(errno));
}

int publisher_open(struct publisher **publisher, const struct publisher_options *options)
{
	struct publisher *p = calloc(1, sizeof(*p));
	int err;

	if (!p) {
		access_close(options->access);
		return log_no_memory();
	}
	p->ipc_mode = options->ipc_mode;
	p->ipc_owner = options->ipc_owner;
	p->ipc_group = options->ipc_group;
	p->access = options->access;
	p->context = zmq_ctx_new();
	if (!p->context) {
		err = -errno;
		log_error("libzmq: %s", zmq_strerror(-err));
		goto out;
	}
	err = privilege_bare(options->user, threads_start, p->context);
	if (err) {
		log_error("threads: %s", strerror(-err));
		goto out;
	}
	err = p->access ? access_start(p->access, p->context) : 0;
	if (err) {
		log_error("CURVE: %s", zmq_strerror(-err));
		goto out;
	}
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
	access_close(p->access);
	while (p->context && zmq_ctx_term(p->context) && errno == EINTR)
		;
	for (size_t i = 0; i < p->n_paths; i++) {
		if (unlink(p->paths[i]) && errno != ENOENT)
			log_warning("%s: cannot be removed: %s", p->paths[i], strerror(errno));
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

	if (zmq_msg_init_data(&message, body, len, body_free, NULL))
		log_out_of_memory();
	/* A PUB socket drops whole messages for a subscriber without room; it never blocks. */
	while (zmq_send_const(p->sockets[id], topic, strlen(topic), ZMQ_SNDMORE) < 0 &&
	       errno == EINTR)
		;
	while (zmq_msg_send(&message, p->sockets[id], 0) < 0 && errno == EINTR)
		;
}
