/* coretap doctor, of a service: its user, its keys, the door that it opens. */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <netdb.h>
#include <poll.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "doctor.h"

#define PIN_ROOT "/sys/fs/bpf/coretap"
#define PATIENCE_MS 3000

/* ---- the user ---- */

static const struct {
	int number;
	const char *name, *why;
	bool needed;
} capabilities[] = {
	{ CAP_BPF, "CAP_BPF", "to load the program", true },
	{ CAP_PERFMON, "CAP_PERFMON", "to attach it", true },
	{ CAP_SYS_PTRACE, "CAP_SYS_PTRACE", "to see what processes of other users run", false },
	{ CAP_LEASE, "CAP_LEASE", "to keep writers off the node's executable", false },
};

/* Whether a user may do something with a path. Only root can ask for another. */
static bool may(const struct passwd *user, const char *path, int mode)
{
	int status = 0;
	pid_t pid;

	if (geteuid() == user->pw_uid)
		return !faccessat(AT_FDCWD, path, mode, AT_EACCESS);
	pid = fork();
	if (!pid)
		_exit(initgroups(user->pw_name, user->pw_gid) || setgid(user->pw_gid) ||
		      setuid(user->pw_uid) || faccessat(AT_FDCWD, path, mode, AT_EACCESS));
	return pid > 0 && waitpid(pid, &status, 0) == pid && !status;
}

static const char *owner_name(const struct stat *st)
{
	const struct passwd *owner = getpwuid(st->st_uid);

	return owner ? owner->pw_name : "an unknown user";
}

/* Written by coretapd-generator where the kernel wants it. */
#define GENERATED "/run/systemd/generator/coretapd.service.d/perf-links.conf"

/* What a unit can grant is bounded by what this process could have. */
static void check_grants(struct doctor *doctor)
{
	uint64_t bounding = doctor_capabilities("CapBnd");
	char missing[512] = "";
	bool needed = false;

	for (size_t i = 0; i < sizeof(capabilities) / sizeof(capabilities[0]); i++) {
		size_t used = strlen(missing);

		if (bounding >> capabilities[i].number & 1)
			continue;
		needed |= capabilities[i].needed;
		snprintf(missing + used, sizeof(missing) - used, "%s%s (%s)", used ? ", " : "",
			 capabilities[i].name, capabilities[i].why);
	}
	if (*missing)
		doctor_tell(doctor, needed ? FORBIDDEN : WARN, "service",
			    "grant it: AmbientCapabilities= of a unit, cap_add of a container",
			    "cannot be given %s", missing);
	else if (doctor->perf_links && access(GENERATED, F_OK))
		doctor_tell(doctor, WARN, "service",
			    "add it to AmbientCapabilities= and CapabilityBoundingSet= of the unit "
			    "(systemctl edit coretapd), or start coretapd as root with --user",
			    "attaching takes CAP_SYS_ADMIN before Linux 6.6; it is given up then");
	else
		doctor_tell(doctor, OK, "service", NULL,
			    "can be given CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE and CAP_LEASE%s",
			    doctor->perf_links ? ", and CAP_SYS_ADMIN until it is attached" : "");
}

static void check_directory(struct doctor *doctor, const char *check, const char *path,
			    const struct passwd *user, const char *remedy)
{
	struct stat st;

	if (stat(path, &st))
		doctor_tell(doctor, WARN, check, remedy, "%s: %s", path, strerror(errno));
	else if (!may(user, path, W_OK | X_OK))
		doctor_tell(doctor, WARN, check, remedy,
			    "%s belongs to %s, and %s may not write it", path, owner_name(&st),
			    user->pw_name);
	else
		doctor_tell(doctor, OK, check, NULL, "%s can be written by %s", path,
			    user->pw_name);
}

void doctor_user(struct doctor *doctor)
{
	const struct passwd *found;
	struct passwd user;
	char remedy[256];

	if (!doctor->user)
		return;
	found = getpwnam(doctor->user);
	if (!found) {
		doctor_tell(doctor, FAIL, "user",
			    "the packages make one; by hand: useradd --system --home /run/coretap "
			    "--shell /usr/sbin/nologin NAME",
			    "%s: there is no such user", doctor->user);
		return;
	}
	user = *found;
	user.pw_name = strdup(found->pw_name);
	if (!user.pw_name)
		return;
	if (geteuid() && geteuid() != user.pw_uid) {
		doctor_tell(doctor, FORBIDDEN, "user", "run doctor as root",
			    "only root can look for %s", user.pw_name);
	} else {
		doctor_tell(doctor, OK, "user", NULL, "%s, number %u", user.pw_name, user.pw_uid);
		check_grants(doctor);
		snprintf(remedy, sizeof(remedy),
			 "start coretapd as root with --user, or: install -d -o %s %s",
			 user.pw_name, "/run/coretap");
		check_directory(doctor, "sockets", "/run/coretap", &user, remedy);
		snprintf(remedy, sizeof(remedy),
			 "for --keep-attached start coretapd as root with --user, or: chmod o+x "
			 "/sys/fs/bpf && install -d -o %s -m 700 " PIN_ROOT,
			 user.pw_name);
		check_directory(doctor, "pins", PIN_ROOT, &user, remedy);
	}
	free(user.pw_name);
}

/* ---- keys ---- */

struct keys {
	unsigned int n, wrong; /* wrong: the first line for which coretapd refuses it, 0 = none */
	bool other;
};

/* Of a single key the first one counts, and what is behind it does not. */
static bool keys_count(const char *path, enum key_kind wanted, bool single, struct keys *keys)
{
	FILE *file = fopen(path, "re");
	uint8_t key[KEY_BYTES];
	char line[1024];

	*keys = (struct keys){ 0 };
	if (!file)
		return false;
	setvbuf(file, NULL, _IONBF, 0);
	for (unsigned int number = 1; !(single && keys->n) && fgets(line, sizeof(line), file);
	     number++) {
		int found = key_in_line(line, key);

		keys->n += found > 0;
		if (found < 0 && !keys->wrong && (wanted == KEY_SECRET || !single))
			keys->wrong = number;
		keys->other |= key_is_other(line, wanted);
	}
	explicit_bzero(line, sizeof(line));
	explicit_bzero(key, sizeof(key));
	fclose(file);
	return true;
}

/* Returns whether there is a key to try. */
static bool check_keys(struct doctor *doctor, const char *option, const char *path,
		       enum key_kind wanted, bool single)
{
	const struct passwd *user = doctor->user ? getpwnam(doctor->user) : NULL;
	struct keys keys;
	struct stat st;

	if (!path)
		return false;
	if (stat(path, &st) || !keys_count(path, wanted, single, &keys)) {
		doctor_tell(doctor, errno == EACCES ? FORBIDDEN : FAIL, "keys",
			    errno == ENOENT ? "`coretap keygen NAME` makes a pair"
					    : "let this user read it: chgrp, chmod 640",
			    "%s %s: %s", option, path, strerror(errno));
		return false;
	}
	if (keys.other) {
		doctor_tell(doctor, FAIL, "keys",
			    wanted == KEY_PUBLIC ? "name the .pub file of the pair"
						 : "name the .key file of the pair",
			    "%s %s: %s", option, path, key_other_text(wanted));
		return false;
	}
	if (keys.wrong) {
		doctor_tell(doctor, FAIL, "keys",
			    "let the line be a key of 40 characters, or begin with #",
			    "%s %s: line %u holds no key", option, path, keys.wrong);
		return false;
	}
	if (!keys.n) {
		doctor_tell(doctor, FAIL, "keys", "`coretap keygen NAME` makes a pair",
			    "%s %s: has no key in it", option, path);
		return false;
	}
	if (wanted == KEY_SECRET && S_ISREG(st.st_mode) && st.st_mode & 027)
		doctor_tell(doctor, FAIL, "keys",
			    "chmod 600 it, and make a new key if somebody may have read this one",
			    "%s %s: mode %04o, others may read or write it", option, path,
			    st.st_mode & 07777);
	else if (user && !geteuid() && !may(user, path, R_OK))
		doctor_tell(doctor, WARN, "keys",
			    "start coretapd as root with --user, or: chgrp it, chmod 640",
			    "%s %s: %s may not read it", option, path, doctor->user);
	else
		doctor_tell(doctor, OK, "keys", NULL, "%s %s: %u key%s", option, path, keys.n,
			    keys.n == 1 ? "" : "s");
	return true;
}

void doctor_keys(struct doctor *doctor)
{
	bool secret = check_keys(doctor, "--curve-secret", doctor->curve_secret, KEY_SECRET, true);
	bool server = check_keys(doctor, "--curve-server", doctor->curve_server, KEY_PUBLIC, true);

	doctor->keys_usable = secret && server;
	check_keys(doctor, "--curve-clients", doctor->curve_clients, KEY_PUBLIC, false);
}

/* ---- the door ---- */

/* A socket connected to tcp://HOST:PORT, or -errno. */
static int reach(const char *address)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV };
	struct addrinfo *list = NULL;
	struct timeval patience = { .tv_sec = PATIENCE_MS / 1000 };
	char host[256];
	const char *begin = address + strlen("tcp://"), *colon = strrchr(begin, ':');
	size_t len = colon ? (size_t)(colon - begin) : 0;
	int fd = -EHOSTUNREACH;

	if (len > 2 && *begin == '[') {
		begin++;
		len -= 2;
	}
	if (!len || len >= sizeof(host))
		return -EINVAL;
	memcpy(host, begin, len);
	host[len] = '\0';
	if (getaddrinfo(host, colon + 1, &hints, &list))
		return -EHOSTUNREACH;
	for (struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
		fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, 0);
		if (fd < 0) {
			fd = -errno;
			continue;
		}
		setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
		if (connect(fd, a->ai_addr, a->ai_addrlen)) {
			int err = errno;

			close(fd);
			fd = -err;
		}
	}
	freeaddrinfo(list);
	return fd;
}

/* The mechanism that a ZeroMQ socket names in its greeting (rfc.zeromq.org/spec/23); empty when
 * what listens is something else. */
static void greeting(int fd, char mechanism[21])
{
	/* As much of a greeting as makes the other side send all of its own. */
	static const uint8_t ours[] = { 0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3 };
	uint8_t theirs[64];
	size_t got = 0;

	mechanism[0] = '\0';
	if (send(fd, ours, sizeof(ours), MSG_NOSIGNAL) != sizeof(ours))
		return;
	while (got < sizeof(theirs)) {
		struct pollfd ready = { .fd = fd, .events = POLLIN };
		ssize_t n = poll(&ready, 1, PATIENCE_MS) == 1
				    ? recv(fd, theirs + got, sizeof(theirs) - got, 0)
				    : 0;

		if (n <= 0)
			return;
		got += (size_t)n;
	}
	if (theirs[0] != 0xff || theirs[9] != 0x7f)
		return;
	memcpy(mechanism, theirs + 12, 20);
	mechanism[20] = '\0';
}

/* Whether coretapd lets us in: with these keys over tcp, without any over ipc. */
static bool let_in(const struct doctor *doctor, bool keys)
{
	char server[KEY_TEXT + 1] = "", secret[KEY_TEXT + 1] = "";
	const struct coretap_event *event;
	struct coretap *tap;
	bool heard = false;

	if (coretap_open(doctor->address, &tap))
		return false;
	if ((!keys || (key_read(doctor->curve_server, KEY_PUBLIC, server) &&
		       key_read(doctor->curve_secret, KEY_SECRET, secret) &&
		       !coretap_set_curve(tap, server, secret))) &&
	    !coretap_subscribe(tap, "bridge.status"))
		heard = coretap_next(tap, &event, PATIENCE_MS) > 0 &&
			coretap_event_kind(event) == CORETAP_STATUS;
	explicit_bzero(secret, sizeof(secret));
	coretap_close(tap);
	return heard;
}

static bool is_tcp(const char *address)
{
	return !strncmp(address, "tcp://", 6);
}

static void check_other_door(struct doctor *doctor)
{
	const char *address = doctor->address;

	if (strncmp(address, "ipc://", 6))
		doctor_tell(doctor, FAIL, "endpoint",
			    "give tcp://HOST:PORT or ipc:///run/coretap/NAME", "%s: not an address",
			    address);
	else if (let_in(doctor, false))
		doctor_tell(doctor, OK, "endpoint", NULL, "%s: lets this user in", address);
	else
		doctor_tell(doctor, FAIL, "endpoint",
			    "is coretapd running there, and this user in its --ipc-group?",
			    "%s: nobody answers", address);
}

void doctor_endpoint(struct doctor *doctor)
{
	const char *address = doctor->address;
	/* Who names a door asks about it. At the usual one there may be none yet. */
	enum verdict closed = address ? FAIL : WARN;
	char mechanism[21];
	int fd;

	if (!address)
		address = doctor->address = CORETAP_DEFAULT_ADDRESS;
	if (!is_tcp(address)) {
		check_other_door(doctor);
		return;
	}
	fd = reach(address);
	if (fd < 0) {
		if (closed == FAIL)
			doctor_tell(doctor, closed, "endpoint",
				    "is coretapd running there, and bound to this address?",
				    "%s: %s", address, strerror(-fd));
		return;
	}
	greeting(fd, mechanism);
	close(fd);
	if (!*mechanism)
		doctor_tell(doctor, closed, "endpoint", "choose another port with --port",
			    "%s: something listens that is no coretapd", address);
	else if (strcmp(mechanism, "CURVE"))
		doctor_tell(doctor, OK, "endpoint", NULL, "%s: open, without keys", address);
	else if (!doctor->curve_server || !doctor->curve_secret)
		doctor_tell(doctor, OK, "endpoint", NULL,
			    "%s: demands keys: --curve-server and --curve-secret", address);
	else if (!doctor->keys_usable)
		doctor_tell(doctor, WARN, "endpoint", "first the keys, see above",
			    "%s: demands keys; these were not tried", address);
	else if (let_in(doctor, true))
		doctor_tell(doctor, OK, "endpoint", NULL, "%s: lets this key in", address);
	else
		doctor_tell(
			doctor, closed, "endpoint",
			"put the line of the key's .pub file into coretapd's --curve-clients and "
			"send coretapd SIGHUP; compare --curve-server with the one of coretapd",
			"%s: refuses this key, or has another one itself", address);
}
