/* See access.h. */
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <zmq.h>

#include "access.h"
#include "descriptors.h"
#include "key.h"
#include "log.h"

#define MAX_CLIENTS 10000
#define MAX_MONITORS 4
#define QUESTIONS_PER_TURN 16

/* Of a ZAP request: version, request id, domain, address, identity, mechanism, key. A REP socket
 * takes the envelope away. */
enum {
	ZAP_VERSION,
	ZAP_ID,
	ZAP_DOMAIN,
	ZAP_ADDRESS,
	ZAP_IDENTITY,
	ZAP_MECHANISM,
	ZAP_KEY,
	ZAP_FRAMES
};

struct access {
	uint8_t secret[KEY_BYTES];
	char *clients_file;
	FILE *clients_stream; /* as root may have opened it */
	uint8_t (*clients)[KEY_BYTES];
	size_t n_clients;
	void *answers; /* the socket that libzmq asks */
	void *monitors[MAX_MONITORS];
	size_t n_monitors;
	uint64_t rejected;
};

/* Calls found for each key of a file, as long as it returns 0. Returns 0 or -errno, said in the
 * log. */
static int keys_read(const char *path, FILE *file, bool secret,
		     int (*found)(void *arg, const uint8_t *key), void *arg)
{
	uint8_t key[KEY_BYTES];
	unsigned int number = 0;
	char line[1024];
	int err = 0;

	while (!err && fgets(line, sizeof(line), file)) {
		number++;
		if (key_is_other(line, secret ? KEY_SECRET : KEY_PUBLIC)) {
			err = -EINVAL;
			log_error("%s:%u: holds a %s key, a %s one is wanted", path, number,
				  secret ? "public" : "secret", secret ? "secret" : "public");
			break;
		}
		err = key_in_line(line, key);
		if (err < 0)
			log_error("%s:%u: wants a key of 40 characters, as `coretap keygen` makes "
				  "them",
				  path, number);
		else if (err > 0)
			err = found(arg, key);
	}
	if (!err && ferror(file)) {
		err = -EIO;
		log_error("%s: %s", path, strerror(EIO));
	}
	explicit_bzero(line, sizeof(line));
	explicit_bzero(key, sizeof(key));
	return err < 0 ? err : 0;
}

static int secret_found(void *arg, const uint8_t *key)
{
	memcpy(((struct access *)arg)->secret, key, KEY_BYTES);
	return 1; /* the first one counts */
}

static int secret_read(struct access *a, const char *path)
{
	static const uint8_t none[KEY_BYTES];
	FILE *file = fopen(path, "re");
	struct stat st;
	int err;

	if (!file || fstat(fileno(file), &st)) {
		err = -errno;
		log_error("--curve-secret %s: %s", path, strerror(-err));
		if (file)
			fclose(file);
		return err;
	}
	setvbuf(file, NULL, _IONBF, 0); /* no copy of the key is left behind in a buffer */
	err = keys_read(path, file, true, secret_found, a);
	fclose(file);
	if (!err && S_ISREG(st.st_mode) && (st.st_mode & 027)) {
		log_error("--curve-secret %s: others may read or write it: chmod 600 it, and make "
			  "a new key if somebody may have",
			  path);
		return -EPERM;
	}
	if (!err && !memcmp(a->secret, none, KEY_BYTES)) {
		log_error("--curve-secret %s: has no key in it", path);
		err = -EINVAL;
	}
	return err;
}

struct client_list {
	uint8_t (*keys)[KEY_BYTES];
	size_t n;
};

static int client_found(void *arg, const uint8_t *key)
{
	struct client_list *list = arg;
	void *more;

	if (list->n == MAX_CLIENTS) {
		log_error("--curve-clients: more than %d keys", MAX_CLIENTS);
		return -E2BIG;
	}
	if (!(list->n & (list->n - 1))) {
		more = realloc(list->keys, (list->n ? 2 * list->n : 1) * KEY_BYTES);
		if (!more)
			return log_no_memory();
		list->keys = more;
	}
	memcpy(list->keys[list->n++], key, KEY_BYTES);
	return 0;
}

/* A file that only root may read stays open for later, when we are not root any more: what is
 * written into it can be read again then, though not another file that takes its place. */
static int clients_open(struct access *a)
{
	FILE *file = fopen(a->clients_file, "re");
	struct stat st, now;

	if (!file && errno == EACCES && a->clients_stream &&
	    !fstat(fileno(a->clients_stream), &st) && !stat(a->clients_file, &now) &&
	    st.st_dev == now.st_dev && st.st_ino == now.st_ino) {
		/* Else what was read of a broken list would be read again out of the buffer. */
		fflush(a->clients_stream);
		rewind(a->clients_stream);
		return 0;
	}
	if (!file)
		return -errno;
	if (a->clients_stream)
		fclose(a->clients_stream);
	a->clients_stream = file;
	return 0;
}

static int clients_read(struct access *a)
{
	struct client_list list = { .n = 0 };
	int err = clients_open(a);

	if (err) {
		log_error("--curve-clients %s: %s", a->clients_file, strerror(-err));
		return err;
	}
	err = keys_read(a->clients_file, a->clients_stream, false, client_found, &list);
	if (err) {
		free(list.keys);
		return err;
	}
	free(a->clients);
	a->clients = list.keys;
	a->n_clients = list.n;
	if (!list.n)
		log_warning("--curve-clients %s: has no key in it: nobody can connect over tcp",
			    a->clients_file);
	return 0;
}

int access_open(struct access **access, const char *secret_file, const char *clients_file)
{
	struct access *a = calloc(1, sizeof(*a));
	int err;

	if (!a)
		return log_no_memory();
	a->clients_file = strdup(clients_file);
	err = a->clients_file ? secret_read(a, secret_file) : log_no_memory();
	if (!err)
		err = clients_read(a);
	if (!err && !zmq_has("curve")) {
		log_error("this libzmq was built without CURVE");
		err = -ENOTSUP;
	}
	if (err) {
		access_close(a);
		return err;
	}
	*access = a;
	return 0;
}

void access_close(struct access *a)
{
	if (!a)
		return;
	for (size_t i = 0; i < a->n_monitors; i++)
		zmq_close(a->monitors[i]);
	if (a->answers)
		zmq_close(a->answers);
	explicit_bzero(a->secret, sizeof(a->secret));
	if (a->clients_stream)
		fclose(a->clients_stream);
	free(a->clients_file);
	free(a->clients);
	free(a);
}

int access_start(struct access *a, void *context)
{
	int linger = 0;

	a->answers = zmq_socket(context, ZMQ_REP);
	if (!a->answers || zmq_setsockopt(a->answers, ZMQ_LINGER, &linger, sizeof(linger)))
		return -errno;
	return zmq_bind(a->answers, "inproc://zeromq.zap.01") ? -errno : 0;
}

/* Those who do not even get as far as showing a key (none at all, or one for another server) are
 * told by the socket's monitor only. Its queue has no bound, since libzmq's I/O thread would wait
 * for room; it is emptied every turn. */
static int monitor(struct access *a, void *context, void *socket)
{
	int linger = 0, unlimited = 0;
	char name[48];
	void *pair;

	if (a->n_monitors == MAX_MONITORS)
		return -E2BIG;
	snprintf(name, sizeof(name), "inproc://refused-%zu", a->n_monitors);
	if (zmq_socket_monitor(socket, name,
			       ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
				       ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL))
		return -errno;
	pair = zmq_socket(context, ZMQ_PAIR);
	if (!pair)
		return -errno;
	a->monitors[a->n_monitors++] = pair;
	if (zmq_setsockopt(pair, ZMQ_LINGER, &linger, sizeof(linger)) ||
	    zmq_setsockopt(pair, ZMQ_RCVHWM, &unlimited, sizeof(unlimited)))
		return -errno;
	return zmq_connect(pair, name) ? -errno : 0;
}

int access_demand(struct access *a, void *context, void *socket)
{
	static const char domain[] = "coretap";
	int one = 1;

	if (zmq_setsockopt(socket, ZMQ_CURVE_SERVER, &one, sizeof(one)) ||
	    zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, a->secret, sizeof(a->secret)) ||
	    zmq_setsockopt(socket, ZMQ_ZAP_DOMAIN, domain, sizeof(domain) - 1))
		return -errno;
	return monitor(a, context, socket);
}

int access_fd(struct access *a)
{
	int fd;
	size_t len = sizeof(fd);

	return zmq_getsockopt(a->answers, ZMQ_FD, &fd, &len) ? -errno : fd;
}

static bool client_known(const struct access *a, const uint8_t *key)
{
	for (size_t i = 0; i < a->n_clients; i++)
		if (!memcmp(a->clients[i], key, KEY_BYTES))
			return true;
	return false;
}

/* One question and its answer. Returns false when there was none. */
static bool answer(struct access *a)
{
	zmq_msg_t frames[ZAP_FRAMES];
	const char *status = "400";
	size_t n = 0;
	bool known = false, more = true;

	while (more) {
		zmq_msg_t frame;

		zmq_msg_init(&frame);
		if (zmq_msg_recv(&frame, a->answers, ZMQ_DONTWAIT) < 0) {
			zmq_msg_close(&frame);
			break;
		}
		more = zmq_msg_more(&frame);
		if (n < ZAP_FRAMES) {
			zmq_msg_init(&frames[n]);
			zmq_msg_move(&frames[n++], &frame);
		}
		zmq_msg_close(&frame);
	}
	if (!n)
		return false;
	known = n == ZAP_FRAMES && zmq_msg_size(&frames[ZAP_KEY]) == KEY_BYTES &&
		zmq_msg_size(&frames[ZAP_MECHANISM]) == 5 &&
		!memcmp(zmq_msg_data(&frames[ZAP_MECHANISM]), "CURVE", 5) &&
		client_known(a, zmq_msg_data(&frames[ZAP_KEY]));
	if (known)
		status = "200";
	else
		a->rejected++;
	zmq_send(a->answers, "1.0", 3, ZMQ_SNDMORE);
	zmq_send(a->answers, n > ZAP_ID ? zmq_msg_data(&frames[ZAP_ID]) : "",
		 n > ZAP_ID ? zmq_msg_size(&frames[ZAP_ID]) : 0, ZMQ_SNDMORE);
	zmq_send(a->answers, status, 3, ZMQ_SNDMORE);
	zmq_send(a->answers, known ? "OK" : "unknown key", known ? 2 : 11, ZMQ_SNDMORE);
	zmq_send(a->answers, "", 0, ZMQ_SNDMORE);
	zmq_send(a->answers, "", 0, 0);
	if (!known && n > ZAP_ADDRESS)
		log_warning("%.*s: refused: its key is not in %s",
			    (int)zmq_msg_size(&frames[ZAP_ADDRESS]),
			    (const char *)zmq_msg_data(&frames[ZAP_ADDRESS]), a->clients_file);
	for (size_t i = 0; i < n; i++)
		zmq_msg_close(&frames[i]);
	return true;
}

/* Each refusal has two frames: the event and our address. Over ipc nobody needs a key. */
static void refusals_count(struct access *a)
{
	char frame[512] = "";

	for (size_t i = 0; i < a->n_monitors; i++) {
		while (zmq_recv(a->monitors[i], frame, sizeof(frame), ZMQ_DONTWAIT) >= 0) {
			int more = 0;
			size_t len = sizeof(more);

			zmq_getsockopt(a->monitors[i], ZMQ_RCVMORE, &more, &len);
			a->rejected += !more && memcmp(frame, "ipc:", 4) != 0;
		}
	}
}

bool access_serve(struct access *a)
{
	int n = 0;

	while (n < QUESTIONS_PER_TURN && answer(a))
		n++;
	refusals_count(a);
	return n == QUESTIONS_PER_TURN;
}

/* libzmq asks about a key when it connects and never again, and cannot end one connection. So all
 * tcp connections of this process are ended, by their descriptors: clients come back by themselves,
 * and are asked for their key. Returns how many. */
static unsigned int connections_end(void)
{
	unsigned int n = 0;

	/* No connection has a greater number, see descriptors.h. */
	for (int fd = 0; fd < MAX_FILES; fd++) {
		int protocol = 0, listens = 0;
		socklen_t len = sizeof(int);

		if (getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &len))
			continue;
		len = sizeof(int);
		if (protocol == IPPROTO_TCP &&
		    !getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len) && !listens &&
		    !shutdown(fd, SHUT_RDWR))
			n++;
	}
	return n;
}

void access_reload(struct access *a)
{
	size_t n = a->n_clients, gone = 0;
	uint8_t(*old)[KEY_BYTES] = malloc((n ? n : 1) * KEY_BYTES);

	if (!old) {
		log_no_memory();
		return;
	}
	if (n)
		memcpy(old, a->clients, n * KEY_BYTES);
	if (!clients_read(a)) {
		log_info("%s: %zu key%s", a->clients_file, a->n_clients,
			 a->n_clients == 1 ? "" : "s");
		for (size_t i = 0; i < n; i++)
			gone += !client_known(a, old[i]);
		if (gone)
			log_info("%s: %zu of before not in it any more: %u connections ended, "
				 "which known clients make again",
				 a->clients_file, gone, connections_end());
	}
	free(old);
}

uint64_t access_rejected(const struct access *a)
{
	return a->rejected;
}
