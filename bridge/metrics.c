/* See metrics.h. Requests come from strangers: nothing of them is used but method and path, both
 * compared with constants. */
#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bridge.h"
#include "exposition.h"
#include "log.h"
#include "metrics.h"

#define MAX_CONNECTIONS 32
#define MAX_REQUEST_BYTES 8192
#define TIMEOUT_S 5 /* of a connection where nothing moves */

/* Of a connection since it was made, or since its last request: who says a byte now and then, or
 * reads one, would keep a place for ever. */
#define LIFE_NS 10000000000ULL

/* A page is made at most so often, whoever asks: that bounds what a flood of scrapes costs. */
#define PAGE_LIFE_NS 100000000ULL

struct client {
	int fd;
	uint64_t since_ns; /* 0: free */
};

struct metrics {
	struct bridge *bridge;
	struct client clients[MAX_CONNECTIONS];
	struct MHD_Daemon *daemon;
	struct MHD_Response *page; /* the last one, with its time */
	uint64_t page_ns;
	int epoll;
};

static bool address_parse(const char *text, struct sockaddr_storage *out, socklen_t *len,
			  bool *loopback)
{
	struct sockaddr_in *v4 = (struct sockaddr_in *)out;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;
	const char *colon = strrchr(text, ':'), *digits;
	unsigned long port = 0;
	char host[64];

	if (!colon || (size_t)(colon - text) >= sizeof(host))
		return false;
	snprintf(host, sizeof(host), "%.*s", (int)(colon - text), text);
	for (digits = colon + 1; *digits >= '0' && *digits <= '9' && port <= 65535; digits++)
		port = port * 10 + (unsigned long)(*digits - '0');
	if (*digits || digits == colon + 1 || port < 1 || port > 65535)
		return false;
	memset(out, 0, sizeof(*out));
	if (!strcmp(host, "localhost"))
		strcpy(host, "127.0.0.1");
	if (!strcmp(host, "*"))
		strcpy(host, "0.0.0.0");
	if (inet_pton(AF_INET, host, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons((uint16_t)port);
		*len = sizeof(*v4);
		*loopback = ntohl(v4->sin_addr.s_addr) >> 24 == 127;
		return true;
	}
	if (host[0] != '[' || host[strlen(host) - 1] != ']')
		return false;
	host[strlen(host) - 1] = '\0';
	if (inet_pton(AF_INET6, host + 1, &v6->sin6_addr) != 1)
		return false;
	v6->sin6_family = AF_INET6;
	v6->sin6_port = htons((uint16_t)port);
	*len = sizeof(*v6);
	*loopback = IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
	return true;
}

bool metrics_address(const char *address, bool *loopback)
{
	struct sockaddr_storage out;
	socklen_t len;

	return address_parse(address, &out, &len, loopback);
}

static enum MHD_Result answer(struct MHD_Connection *connection, unsigned int status,
			      const char *text)
{
	struct MHD_Response *response =
		MHD_create_response_from_buffer(strlen(text), (void *)text, MHD_RESPMEM_MUST_COPY);
	enum MHD_Result result;

	if (!response)
		return MHD_NO;
	result = MHD_add_response_header(response, "Content-Type", "text/plain; charset=utf-8");
	if (result == MHD_YES)
		result = MHD_add_response_header(response, "Cache-Control", "no-store");
	if (result == MHD_YES && status == MHD_HTTP_METHOD_NOT_ALLOWED)
		result = MHD_add_response_header(response, "Allow", "GET, HEAD");
	if (result == MHD_YES)
		result = MHD_queue_response(connection, status, response);
	MHD_destroy_response(response);
	return result;
}

/* libmicrohttpd counts references: connections that still send an older page keep it. */
static enum MHD_Result answer_metrics(struct metrics *m, struct MHD_Connection *connection)
{
	uint64_t now = clock_ns(CLOCK_MONOTONIC);

	if (!m->page || now - m->page_ns >= PAGE_LIFE_NS) {
		size_t len;
		char *text = exposition_make(m->bridge, &len);
		struct MHD_Response *page =
			text ? MHD_create_response_from_buffer(len, text, MHD_RESPMEM_MUST_FREE)
			     : NULL;

		if (!page) {
			free(text);
			return MHD_NO;
		}
		if (MHD_add_response_header(page, "Content-Type",
					    "text/plain; version=0.0.4; charset=utf-8") !=
			    MHD_YES ||
		    MHD_add_response_header(page, "Cache-Control", "no-store") != MHD_YES) {
			MHD_destroy_response(page);
			return MHD_NO;
		}
		if (m->page)
			MHD_destroy_response(m->page);
		m->page = page;
		m->page_ns = now;
	}
	return MHD_queue_response(connection, MHD_HTTP_OK, m->page);
}

static enum MHD_Result answer_health(struct metrics *m, struct MHD_Connection *connection)
{
	const char *problem = exposition_problem(m->bridge);
	char text[128];

	snprintf(text, sizeof(text), "%s\n", problem ? problem : "ok");
	return answer(connection, problem ? MHD_HTTP_SERVICE_UNAVAILABLE : MHD_HTTP_OK, text);
}

/* A connection was made, or ends: its descriptor is still its own. */
static void client_notice(void *arg, struct MHD_Connection *connection, void **context,
			  enum MHD_ConnectionNotificationCode code)
{
	struct metrics *m = arg;
	struct client *c = *context;

	if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
		if (c)
			c->since_ns = 0;
		return;
	}
	for (c = m->clients; c < m->clients + MAX_CONNECTIONS; c++)
		if (!c->since_ns) {
			c->fd = MHD_get_connection_info(connection,
							MHD_CONNECTION_INFO_CONNECTION_FD)
					->connect_fd;
			c->since_ns = clock_ns(CLOCK_MONOTONIC);
			*context = c;
			return;
		}
}

static void client_asked(struct MHD_Connection *connection)
{
	struct client *c = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)
				   ->socket_context;

	if (c)
		c->since_ns = clock_ns(CLOCK_MONOTONIC);
}

/* libmicrohttpd notices that such a connection has ended, and closes it. */
static void clients_end(const struct metrics *m)
{
	uint64_t now = clock_ns(CLOCK_MONOTONIC);

	for (size_t i = 0; i < MAX_CONNECTIONS; i++)
		if (m->clients[i].since_ns && now - m->clients[i].since_ns >= LIFE_NS)
			shutdown(m->clients[i].fd, SHUT_RDWR);
}

/* Called with the head of a request, then with what a body it has, then to be answered. A body is
 * read and forgotten; other methods are answered at once, which ends the connection. */
static enum MHD_Result handle(void *arg, struct MHD_Connection *connection, const char *path,
			      const char *method, const char *version, const char *body,
			      size_t *body_len, void **state)
{
	struct metrics *m = arg;

	(void)version, (void)body;
	if (strcmp(method, MHD_HTTP_METHOD_GET) && strcmp(method, MHD_HTTP_METHOD_HEAD))
		return answer(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "GET or HEAD only\n");
	if (!*state || *body_len) {
		*state = m;
		*body_len = 0;
		return MHD_YES;
	}
	client_asked(connection);
	if (!strcmp(path, "/metrics"))
		return answer_metrics(m, connection);
	if (!strcmp(path, "/healthz"))
		return answer_health(m, connection);
	return answer(connection, MHD_HTTP_NOT_FOUND, "coretapd: /metrics and /healthz\n");
}

static void daemon_log(void *arg, const char *format, va_list args)
{
	char line[256];

	(void)arg;
	vsnprintf(line, sizeof(line), format, args);
	line[strcspn(line, "\n")] = '\0';
	log_debug("http: %s", line);
}

static int listener_open(const char *address)
{
	struct sockaddr_storage at;
	socklen_t len;
	bool loopback;
	int one = 1, fd, err;

	if (!address_parse(address, &at, &len, &loopback))
		return -EINVAL;
	fd = socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (!bind(fd, (struct sockaddr *)&at, len) && !listen(fd, 64))
		return fd;
	err = -errno;
	close(fd);
	return err;
}

int metrics_open(struct metrics **metrics, const char *address, struct bridge *bridge)
{
	struct metrics *m = calloc(1, sizeof(*m));
	const union MHD_DaemonInfo *info;
	int fd, err = -ENOMEM;

	if (!m)
		return log_no_memory();
	m->bridge = bridge;
	fd = err = listener_open(address);
	if (fd < 0)
		goto out;
	m->daemon = MHD_start_daemon(MHD_USE_EPOLL | MHD_USE_ERROR_LOG, 0, NULL, NULL, handle, m,
				     MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT,
				     (unsigned int)MAX_CONNECTIONS, MHD_OPTION_CONNECTION_TIMEOUT,
				     (unsigned int)TIMEOUT_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
				     (size_t)MAX_REQUEST_BYTES, MHD_OPTION_EXTERNAL_LOGGER,
				     daemon_log, NULL, MHD_OPTION_NOTIFY_CONNECTION, client_notice,
				     m, MHD_OPTION_END);
	err = -ENOMEM;
	if (!m->daemon) {
		close(fd);
		goto out;
	}
	info = MHD_get_daemon_info(m->daemon, MHD_DAEMON_INFO_EPOLL_FD);
	if (!info)
		goto out;
	m->epoll = info->epoll_fd;
	*metrics = m;
	return 0;
out:
	log_error("--metrics %s: cannot be served: %s%s", address, strerror(-err),
		  err == -EADDRINUSE ? "; choose another port" : "");
	metrics_close(m);
	return err;
}

void metrics_close(struct metrics *m)
{
	if (!m)
		return;
	if (m->daemon)
		MHD_stop_daemon(m->daemon);
	if (m->page)
		MHD_destroy_response(m->page);
	free(m);
}

int metrics_fd(const struct metrics *m)
{
	return m->epoll;
}

bool metrics_serve(struct metrics *m)
{
	MHD_UNSIGNED_LONG_LONG timeout;

	clients_end(m);
	MHD_run(m->daemon);
	return MHD_get_timeout(m->daemon, &timeout) == MHD_YES && timeout == 0;
}
