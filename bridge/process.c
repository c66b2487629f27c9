/* See process.h. */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "../protocol/catalogue.h"
#include "probes.h"
#include "process.h"

/* Reads a small file of /proc whole; returns its length or -errno. The text is NUL-terminated. */
static ssize_t file_read(const char *path, char *buffer, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return -errno;
	n = read(fd, buffer, size - 1);
	if (n < 0)
		n = -errno;
	close(fd);
	if (n >= 0)
		buffer[n] = '\0';
	return n;
}

#define SECOND_NS 1000000000LL

static int64_t clock_now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec * SECOND_NS + t.tv_nsec;
}

/* Of a time since the boot. Asked anew each time: with each step of the clock the boot has another
 * time. */
static uint64_t unix_seconds(uint64_t since_boot_ns)
{
	int64_t ns = clock_now(CLOCK_REALTIME) - clock_now(CLOCK_BOOTTIME) + (int64_t)since_boot_ns;

	return ns > 0 ? (uint64_t)(ns / SECOND_NS) : 0;
}

int process_read(struct process *p, pid_t pid)
{
	char path[64], text[1024];
	unsigned long long start;
	const char *after;
	struct stat st;
	ssize_t n;

	memset(p, 0, sizeof(*p));
	p->pid = pid;
	snprintf(path, sizeof(path), "/proc/%d/exe", pid);
	if (stat(path, &st))
		return -errno;
	p->dev = st.st_dev;
	p->ino = st.st_ino;
	p->ctime_ns = st.st_ctim.tv_sec * 1000000000LL + st.st_ctim.tv_nsec;
	n = readlink(path, p->binary, sizeof(p->binary) - 1);
	if (n < 0)
		return -errno;
	p->binary[n] = '\0';
	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	n = file_read(path, text, sizeof(text));
	if (n < 0)
		return (int)n;
	/* The name in parentheses may itself hold blanks and parentheses. */
	after = strrchr(text, ')');
	if (!after || sscanf(after + 1,
			     " %*c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d "
			     "%*d %*d %llu",
			     &p->parent, &start) != 2)
		return -EBADMSG;
	p->started_ns = start * (SECOND_NS / (unsigned long long)sysconf(_SC_CLK_TCK));
	p->started_at = unix_seconds(p->started_ns);
	return 0;
}

bool process_same(const struct process *one, const struct process *two)
{
	return one->pid == two->pid && one->started_ns == two->started_ns && one->dev == two->dev &&
	       one->ino == two->ino;
}

/* Whether its executable has tracepoints that the catalogue knows, or -errno when it cannot be
 * looked at now: the process is gone or runs something else by now, or there is no file or memory
 * to be had.
 */
static int has_tracepoints(const struct process *p)
{
	struct probes probes;
	char path[64], error[256];
	bool found = false;
	struct stat st;
	int fd, err;

	snprintf(path, sizeof(path), "/proc/%d/exe", p->pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (fstat(fd, &st) || st.st_dev != p->dev || st.st_ino != p->ino) {
		close(fd);
		return -ESTALE;
	}
	err = probes_read(fd, path, &probes, error, sizeof(error));
	if (!err) {
		for (size_t i = 0; i < probes.n_sites && !found; i++) {
			char topic[128];
			int len = snprintf(topic, sizeof(topic), "%s.%s", probes.sites[i].provider,
					   probes.sites[i].name);

			found = len > 0 && (size_t)len < sizeof(topic) &&
				catalogue_find(topic, (size_t)len);
		}
		probes_free(&probes);
	}
	close(fd);
	return err == -ENOMEM ? err : found;
}

bool process_has_tracepoints(struct seen_binaries *seen, const struct process *p)
{
	int has;
	size_t i;

	for (i = 0; i < seen->n; i++)
		if (seen->list[i].dev == p->dev && seen->list[i].ino == p->ino &&
		    seen->list[i].ctime_ns == p->ctime_ns)
			return seen->list[i].has;
	has = has_tracepoints(p);
	if (has < 0)
		return false; /* this time: it would be remembered of every process of the file */
	if (i == sizeof(seen->list) / sizeof(seen->list[0]))
		i = seen->n = 0;
	seen->list[i].dev = p->dev;
	seen->list[i].ino = p->ino;
	seen->list[i].ctime_ns = p->ctime_ns;
	seen->list[i].has = has;
	seen->n++;
	return has;
}

int processes_scan(struct seen_binaries *seen, dev_t dev, ino_t ino,
		   bool (*found)(void *arg, const struct process *process), void *arg)
{
	struct dirent *entry;
	struct process p;
	DIR *proc = opendir("/proc");
	int n = 0;

	if (!proc)
		return -errno;
	while ((entry = readdir(proc))) {
		pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);

		if (pid <= 0 || pid == getpid() || process_read(&p, pid))
			continue;
		if (ino ? p.dev != dev || p.ino != ino : !process_has_tracepoints(seen, &p))
			continue;
		n++;
		if (!found(arg, &p))
			break;
	}
	closedir(proc);
	return n;
}

/* How a process counts in the innermost pid namespace that it is in; 0 when that is ours. */
static pid_t own_number(pid_t pid)
{
	char path[64], text[8192], *line, *end;
	pid_t number = 0;
	int depth = 0;

	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	if (file_read(path, text, sizeof(text)) < 0 || !(line = strstr(text, "\nNSpid:")))
		return 0;
	line += strlen("\nNSpid:");
	end = strchr(line, '\n');
	while (end && line < end) {
		number = (pid_t)strtol(line, &line, 10);
		depth++;
	}
	return depth > 1 ? number : 0;
}

/* From its start until it writes its PID file. */
#define PID_FILE_SECONDS 60

bool process_wrote_file(const struct process *p, const char *path)
{
	struct stat st;

	return !stat(path, &st) && p->started_at <= (uint64_t)st.st_mtime + 1 &&
	       (uint64_t)st.st_mtime <= p->started_at + PID_FILE_SECONDS;
}

struct contained {
	const char *path;
	pid_t number, found;
	int n;
};

static bool contained_look(void *arg, const struct process *p)
{
	struct contained *c = arg;

	if (own_number(p->pid) == c->number && process_wrote_file(p, c->path)) {
		c->found = p->pid;
		c->n++;
	}
	return true;
}

static pid_t pid_read(const char *path)
{
	char text[32];
	ssize_t n = file_read(path, text, sizeof(text));
	char *end;
	long pid;

	if (n < 0)
		return (pid_t)n;
	pid = strtol(text, &end, 10);
	if (end == text || pid <= 0 || pid > INT_MAX || (*end && !isspace((unsigned char)*end)))
		return -EINVAL;
	return (pid_t)pid;
}

pid_t process_from_file(struct seen_binaries *seen, const char *path)
{
	struct contained c = { .path = path, .number = pid_read(path) };
	struct process p;

	if (c.number <= 0 || (!process_read(&p, c.number) && process_has_tracepoints(seen, &p)))
		return c.number;
	processes_scan(seen, 0, 0, contained_look, &c);
	return c.n == 1 ? c.found : c.number;
}

/* The number of the initial namespace never changes. */
#define INITIAL_PID_NAMESPACE 0xeffffffc

bool process_namespace_is_own(void)
{
	struct stat st;

	return !stat("/proc/self/ns/pid", &st) && st.st_ino != INITIAL_PID_NAMESPACE;
}

int process_pid_file(const char *datadir, char *path, size_t size)
{
	static const char *const chains[] = { "", "/regtest", "/signet", "/testnet4", "/testnet3" };
	static const char *const names[] = { "bitcoind.pid", "bitcoin-node.pid" };

	for (size_t c = 0; c < sizeof(chains) / sizeof(chains[0]); c++) {
		for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
			snprintf(path, size, "%s%s/%s", datadir, chains[c], names[i]);
			if (!faccessat(AT_FDCWD, path, F_OK, AT_EACCESS))
				return 0;
			if (errno == EACCES)
				return -EACCES;
		}
	}
	return -ENOENT;
}

static const char *const chain_names[] = { "main", "test", "testnet4", "signet", "regtest" };
#define N_CHAINS (sizeof(chain_names) / sizeof(chain_names[0]))

/* "regtest", "regtest=1" or "chain=regtest"; NULL when the setting names no chain. */
static const char *setting_chain(const char *setting)
{
	static const char *const flags[N_CHAINS] = { NULL, "testnet", "testnet4", "signet",
						     "regtest" };

	for (size_t i = 0; i < N_CHAINS; i++) {
		size_t len;

		if (!strncmp(setting, "chain=", 6) && !strcmp(setting + 6, chain_names[i]))
			return chain_names[i];
		if (!flags[i])
			continue;
		len = strlen(flags[i]);
		if (!strncmp(setting, flags[i], len) &&
		    (!setting[len] || !strcmp(setting + len, "=1")))
			return chain_names[i];
	}
	return NULL;
}

/* The chain in bitcoin.conf's first part: sections in brackets speak of one chain each. */
static const char *config_chain(pid_t pid, const char *path)
{
	char line[1024], rooted[PATH_MAX + 64];
	const char *chain = NULL;
	FILE *f;

	/* As the process sees it: it may live in another mount namespace. */
	snprintf(rooted, sizeof(rooted), "/proc/%d/root%s", pid, path);
	f = fopen(rooted, "re");
	if (!f)
		return NULL;
	while (!chain && fgets(line, sizeof(line), f) && line[0] != '[') {
		char setting[64];

		if (sscanf(line, " %63[^ \t\n#=] = %*s", setting) == 1) {
			char *value = strchr(line, '=');
			size_t len = strlen(setting);
			char word[32] = "";

			if (value && sscanf(value + 1, " %31[^ \t\n#]", word) == 1)
				snprintf(setting + len, sizeof(setting) - len, "=%s", word);
			chain = setting_chain(setting);
		}
	}
	fclose(f);
	return chain;
}

/* What a node was told by its arguments; with empty texts where it was not. */
struct arguments {
	char config[PATH_MAX], datadir[PATH_MAX];
	const char *chain;
};

static void arguments_read(struct arguments *a, pid_t pid)
{
	char path[64], args[65536];
	struct passwd *owner;
	struct stat st;
	ssize_t n;

	*a = (struct arguments){ .chain = NULL };
	snprintf(path, sizeof(path), "/proc/%d/cmdline", pid);
	n = file_read(path, args, sizeof(args));
	for (char *arg = args; n > 0 && arg < args + n; arg += strlen(arg) + 1) {
		const char *word = arg;

		/* n > 0 bytes were read.
		 * NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult) */
		if (*word != '-')
			continue;
		word += word[1] == '-' ? 2 : 1;
		if (!strncmp(word, "datadir=", 8))
			snprintf(a->datadir, sizeof(a->datadir), "%s", word + 8);
		else if (!strncmp(word, "conf=", 5))
			snprintf(a->config, sizeof(a->config), "%s", word + 5);
		else if (setting_chain(word))
			a->chain = setting_chain(word);
	}
	if (a->datadir[0])
		return;
	snprintf(path, sizeof(path), "/proc/%d", pid);
	owner = stat(path, &st) ? NULL : getpwuid(st.st_uid);
	snprintf(a->datadir, sizeof(a->datadir), "%s/.bitcoin", owner ? owner->pw_dir : "/root");
}

void process_datadir(pid_t pid, char *path, size_t size)
{
	struct arguments a;

	arguments_read(&a, pid);
	snprintf(path, size, "%s", a.datadir);
}

const char *process_chain(pid_t pid)
{
	struct arguments a;

	arguments_read(&a, pid);
	if (a.chain)
		return a.chain;
	if (a.config[0] != '/') {
		char name[PATH_MAX];

		snprintf(name, sizeof(name), "%s", a.config[0] ? a.config : "bitcoin.conf");
		snprintf(a.config, sizeof(a.config), "%.2000s/%.2000s", a.datadir, name);
	}
	a.chain = config_chain(pid, a.config);
	return a.chain ? a.chain : "main";
}
