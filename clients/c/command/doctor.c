/* coretap doctor: whether coretapd could run here, and what to do if not. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/capability.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "../../../bridge/probes.h"
#include "doctor.h"

#define BPF_FS_MAGIC 0xcafe4a11
#define INITIAL_PID_NAMESPACE 0xeffffffc

void doctor_tell(struct doctor *doctor, enum verdict verdict, const char *check, const char *remedy,
		 const char *fmt, ...)
{
	static const char *const words[] = { "ok", "warn", "fail", "fail" };
	static const enum colour colours[] = { GREEN, YELLOW, RED, RED };
	struct json *json = &doctor->out.text;
	char text[512];
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	doctor->failed |= verdict == FAIL;
	doctor->forbidden |= verdict == FORBIDDEN;

	if (!doctor->out.json) {
		output_colour(&doctor->out, colours[verdict]);
		printf("%-5s", words[verdict]);
		output_colour(&doctor->out, PLAIN);
		printf("%-11s %s", check, text);
		if (remedy && verdict != OK)
			printf("\n                 -> %s", remedy);
		putchar('\n');
		return;
	}
	json->length = 0;
	json_raw(json, "{\"check\":");
	json_text(json, check, strlen(check));
	json_raw(json, ",\"state\":");
	json_text(json, words[verdict], strlen(words[verdict]));
	json_raw(json, ",\"text\":");
	json_text(json, text, strlen(text));
	json_raw(json, ",\"privilege\":");
	json_raw(json, verdict == FORBIDDEN ? "true" : "false");
	json_raw(json, ",\"remedy\":");
	if (remedy && verdict != OK)
		json_text(json, remedy, strlen(remedy));
	else
		json_raw(json, "null");
	json_raw(json, "}\n");
	output_made(&doctor->out);
}

bool doctor_read(const char *path, char *text, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return false;
	n = read(fd, text, size - 1);
	close(fd);
	if (n < 0)
		return false;
	text[n] = '\0';
	return true;
}

static unsigned int check_kernel(struct doctor *doctor)
{
	struct utsname name;
	unsigned int major = 0, minor = 0, version;

	uname(&name);
	sscanf(name.release, "%u.%u", &major, &minor);
	version = major * 1000 + minor;
	doctor->perf_links = version < 6006;
	if (version < 5015) {
		doctor_tell(doctor, FAIL, "kernel", "run Linux 5.15 or later",
			    "Linux %s is older than 5.15: uprobes cannot carry a cookie",
			    name.release);
	} else if (version < 6000) {
		doctor_tell(
			doctor, WARN, "kernel", "Linux 6.0 or later reads paged-out memory too",
			"Linux %s: no sleepable uprobes (6.0), no TAI clock (6.1), no uprobe_multi "
			"(6.6)",
			name.release);
	} else if (version < 6001) {
		doctor_tell(
			doctor, WARN, "kernel",
			"Linux 6.1 or later keeps the time right across clock steps",
			"Linux %s: sleepable uprobes; no TAI clock (6.1), no uprobe_multi (6.6)",
			name.release);
	} else if (version < 6006) {
		doctor_tell(doctor, OK, "kernel", NULL,
			    "Linux %s: sleepable uprobes, TAI clock; no uprobe_multi (6.6), "
			    "detaching is slower",
			    name.release);
	} else {
		doctor_tell(doctor, OK, "kernel", NULL,
			    "Linux %s: sleepable uprobes, TAI clock, uprobe_multi", name.release);
	}
#if !defined(__x86_64__) && !defined(__aarch64__)
	doctor_tell(doctor, FAIL, "machine", "coretapd runs on x86-64 and aarch64", "%s",
		    name.machine);
#endif
	return version;
}

static void check_uprobes(struct doctor *doctor)
{
	if (!access("/sys/bus/event_source/devices/uprobe/type", F_OK))
		doctor_tell(doctor, OK, "uprobes", NULL, "the kernel has them");
	else
		doctor_tell(doctor, FAIL, "uprobes",
			    access("/sys/bus/event_source", F_OK)
				    ? "mount sysfs at /sys"
				    : "use a kernel built with CONFIG_UPROBE_EVENTS=y and "
				      "CONFIG_BPF_SYSCALL=y",
			    "no /sys/bus/event_source/devices/uprobe");
}

uint64_t doctor_capabilities(const char *set)
{
	char status[8192], *line;
	size_t len = strlen(set);

	if (!doctor_read("/proc/self/status", status, sizeof(status)))
		return 0;
	for (line = strchr(status, '\n'); line; line = strchr(line, '\n'))
		if (!strncmp(++line, set, len) && line[len] == ':')
			return strtoull(line + len + 1, NULL, 16);
	return 0;
}

static void check_capabilities(struct doctor *doctor)
{
	const char *remedy = "start coretapd as root, or through its systemd unit";
	uint64_t effective = doctor_capabilities("CapEff");

	/* What CAP_BPF and CAP_PERFMON were split from still stands for both. */
	bool admin = effective >> CAP_SYS_ADMIN & 1;
	bool bpf = admin || effective >> CAP_BPF & 1;
	bool perfmon = admin || effective >> CAP_PERFMON & 1;
	bool ptrace = effective >> CAP_SYS_PTRACE & 1;
	bool lease = effective >> CAP_LEASE & 1;

	if (!bpf || !perfmon)
		doctor_tell(doctor, FORBIDDEN, "privileges", remedy, "missing %s%s%s",
			    bpf ? "" : "CAP_BPF (to load the program)", bpf || perfmon ? "" : ", ",
			    perfmon ? "" : "CAP_PERFMON (to attach it)");
	else if (doctor->perf_links && !admin)
		doctor_tell(doctor, WARN, "privileges", remedy,
			    "missing CAP_SYS_ADMIN, which attaching takes before Linux 6.6");
	else if (!ptrace)
		doctor_tell(
			doctor, WARN, "privileges", remedy,
			"missing CAP_SYS_PTRACE: only nodes of the same user can be looked into");
	else if (!lease)
		doctor_tell(doctor, WARN, "privileges", remedy,
			    "missing CAP_LEASE: nothing holds back who writes over the node's "
			    "executable in place");
	else
		doctor_tell(doctor, OK, "privileges", NULL,
			    "CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE and CAP_LEASE");
}

/* Capabilities inside a user namespace mean nothing to bpf(2). */
static void check_namespace(struct doctor *doctor)
{
	char map[128];
	unsigned long inside = 0, outside = 0, count = 0;

	if (!doctor_read("/proc/self/uid_map", map, sizeof(map)) ||
	    sscanf(map, "%lu %lu %lu", &inside, &outside, &count) != 3)
		return;
	if (inside || outside || count != UINT32_MAX)
		doctor_tell(doctor, FORBIDDEN, "namespace", "start coretapd outside the container",
			    "inside a user namespace, where the kernel refuses BPF whatever the "
			    "capabilities");
}

/* The kernel tells coretapd of processes by their numbers in the initial namespace. */
static void check_processes(struct doctor *doctor)
{
	struct stat st;

	if (!stat("/proc/self/ns/pid", &st) && st.st_ino != INITIAL_PID_NAMESPACE)
		doctor_tell(doctor, FAIL, "processes",
			    "run coretapd in the host's pid namespace (docker run --pid=host)",
			    "in a pid namespace of its own, where no event of the host's arrives");
}

static void check_lockdown(struct doctor *doctor)
{
	char text[128];

	if (!doctor_read("/sys/kernel/security/lockdown", text, sizeof(text)))
		doctor_tell(doctor, OK, "lockdown", NULL, "none, or not to be seen");
	else if (strstr(text, "[confidentiality]"))
		doctor_tell(doctor, WARN, "lockdown",
			    "boot with lockdown=integrity if attaching fails",
			    "confidentiality: the kernel may refuse what BPF programs read");
	else
		doctor_tell(doctor, OK, "lockdown", NULL, "%s",
			    strstr(text, "[integrity]") ? "integrity, which allows tracing"
							: "none");
}

static void check_bpffs(struct doctor *doctor)
{
	struct statfs fs;

	if (statfs("/sys/fs/bpf", &fs))
		doctor_tell(doctor, WARN, "bpffs",
			    "mount -t bpf bpf /sys/fs/bpf (needed by --keep-attached only)",
			    "/sys/fs/bpf: %s", strerror(errno));
	else if ((unsigned long)fs.f_type != BPF_FS_MAGIC)
		doctor_tell(doctor, WARN, "bpffs",
			    "mount -t bpf bpf /sys/fs/bpf (needed by --keep-attached only)",
			    "not mounted at /sys/fs/bpf");
	else
		doctor_tell(doctor, OK, "bpffs", NULL, "mounted at /sys/fs/bpf");
}

static void check_limits(struct doctor *doctor, unsigned int kernel)
{
	struct rlimit limit;
	char text[32];

	/* From 5.11 on BPF memory counts for the control group, not for this limit. */
	if (kernel < 5011 && !getrlimit(RLIMIT_MEMLOCK, &limit) && limit.rlim_cur != RLIM_INFINITY)
		doctor_tell(doctor, FAIL, "memlock", "ulimit -l unlimited",
			    "%ju bytes of locked memory", (uintmax_t)limit.rlim_cur);
	if (!doctor_read("/proc/sys/kernel/perf_event_paranoid", text, sizeof(text)))
		doctor_tell(doctor, WARN, "perf", "use a kernel built with CONFIG_PERF_EVENTS=y",
			    "no /proc/sys/kernel/perf_event_paranoid");
	else
		doctor_tell(doctor, OK, "perf", NULL,
			    "perf_event_paranoid is %d, which does not matter with CAP_PERFMON",
			    atoi(text));
}

static void check_run(struct doctor *doctor)
{
	const char *directory = access("/run/coretap", F_OK) ? "/run" : "/run/coretap";

	if (!access(directory, W_OK))
		doctor_tell(doctor, OK, "sockets", NULL, "%s can be written", directory);
	else
		doctor_tell(doctor, geteuid() && errno == EACCES ? FORBIDDEN : FAIL, "sockets",
			    errno == EROFS ? "mount a tmpfs at /run"
					   : "start coretapd as root, or through its systemd unit",
			    "%s: %s", directory, strerror(errno));
}

/* Nodes */

static bool has_tracepoints(const struct probes *probes)
{
	char topic[256];

	for (size_t i = 0; i < probes->n_sites; i++) {
		int n = snprintf(topic, sizeof(topic), "%s.%s", probes->sites[i].provider,
				 probes->sites[i].name);

		if (n > 0 && n < (int)sizeof(topic) && catalogue_find(topic, (size_t)n))
			return true;
	}
	return false;
}

struct nodes {
	unsigned int found, hidden, without;
	unsigned long hidden_pid, without_pid;
	struct {
		dev_t device;
		ino_t inode;
		bool tapped;
	} seen[256]; /* one program may run in many processes */
	unsigned int n_seen;
};

static bool looks_like_node(const char *pid)
{
	char path[64], comm[64];

	snprintf(path, sizeof(path), "/proc/%.20s/comm", pid);
	return doctor_read(path, comm, sizeof(comm)) &&
	       (!strncmp(comm, "bitcoin", 7) || !strncmp(comm, "b-", 2));
}

static void printable(char *text)
{
	for (; *text; text++)
		if ((unsigned char)*text < ' ' || *text == 0x7f)
			*text = '?';
}

/* What tells nodes of one binary apart; empty where its arguments do not name it. */
static void datadir_read(const char *pid, char *datadir, size_t size)
{
	char path[64], arguments[16384];
	int fd;
	ssize_t n;

	*datadir = '\0';
	snprintf(path, sizeof(path), "/proc/%.20s/cmdline", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	n = read(fd, arguments, sizeof(arguments) - 1);
	close(fd);
	arguments[n > 0 ? n : 0] = '\0';
	for (const char *at = arguments; at < arguments + n; at += strlen(at) + 1) {
		const char *word = at + (*at == '-') + (at[0] == '-' && at[1] == '-');

		if (word > at && !strncmp(word, "datadir=", 8))
			snprintf(datadir, size, "%s", word + 8);
	}
	printable(datadir);
}

static void look_at_process(struct doctor *doctor, const char *pid, struct nodes *nodes)
{
	char path[64], target[PATH_MAX], datadir[PATH_MAX], error[256];
	struct probes probes = { 0 };
	struct stat file;
	ssize_t length;
	bool tapped = false;
	int fd;

	snprintf(path, sizeof(path), "/proc/%.20s/exe", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &file)) {
		if (fd >= 0)
			close(fd);
		else if ((errno == EACCES || errno == EPERM) && looks_like_node(pid)) {
			nodes->hidden++;
			nodes->hidden_pid = strtoul(pid, NULL, 10);
		}
		return;
	}
	for (unsigned int i = 0; i < nodes->n_seen; i++)
		if (nodes->seen[i].device == file.st_dev && nodes->seen[i].inode == file.st_ino) {
			tapped = nodes->seen[i].tapped;
			close(fd);
			goto seen;
		}
	if (!probes_read(fd, path, &probes, error, sizeof(error))) {
		tapped = has_tracepoints(&probes);
		if (tapped)
			doctor_tell(doctor, OK, "binary", NULL, "tracepoints of Bitcoin Core %s",
				    probes_core(&probes));
		probes_free(&probes);
	}
	close(fd);
	if (nodes->n_seen < sizeof(nodes->seen) / sizeof(nodes->seen[0])) {
		nodes->seen[nodes->n_seen].device = file.st_dev;
		nodes->seen[nodes->n_seen].inode = file.st_ino;
		nodes->seen[nodes->n_seen++].tapped = tapped;
	}

seen:
	if (!tapped) {
		if (looks_like_node(pid)) {
			nodes->without++;
			nodes->without_pid = strtoul(pid, NULL, 10);
		}
		return;
	}
	nodes->found++;
	length = readlink(path, target, sizeof(target) - 1);
	target[length > 0 ? length : 0] = '\0';
	printable(target);
	datadir_read(pid, datadir, sizeof(datadir));
	doctor_tell(doctor, OK, "node", NULL, "process %.20s, %.400s%s%.400s", pid, target,
		    *datadir ? ", data directory " : "", datadir);
}

static void check_nodes(struct doctor *doctor)
{
	struct nodes nodes = { 0 };
	struct dirent *entry;
	DIR *proc = opendir("/proc");

	if (!proc) {
		doctor_tell(doctor, WARN, "node", "mount proc at /proc", "/proc: %s",
			    strerror(errno));
		return;
	}
	while ((entry = readdir(proc)))
		if (*entry->d_name >= '1' && *entry->d_name <= '9')
			look_at_process(doctor, entry->d_name, &nodes);
	closedir(proc);

	if (nodes.found > 1)
		doctor_tell(doctor, WARN, "node", "name one with --datadir, or --pid-file",
			    "%u processes have Bitcoin Core's tracepoints", nodes.found);
	if (nodes.found)
		return;
	if (nodes.hidden)
		doctor_tell(doctor, WARN, "node", "run doctor as root to look into it",
			    "process %lu looks like a node, but belongs to another user",
			    nodes.hidden_pid);
	else if (nodes.without)
		doctor_tell(doctor, WARN, "node",
			    "use an official release, or build with cmake -DWITH_USDT=ON; "
			    "`coretap probes BINARY` shows what a binary has",
			    "process %lu looks like a node, but its binary has no tracepoints",
			    nodes.without_pid);
	else
		doctor_tell(doctor, WARN, "node",
			    "start the node, or name its binary with --binary",
			    "no running process has Bitcoin Core's tracepoints");
}

static int run(const struct subcommand *self, int argc, char **argv)
{
	static const struct option options[] = {
		{ "json", no_argument, NULL, 'j' },
		{ "user", required_argument, NULL, 'u' },
		{ "address", required_argument, NULL, 'a' },
		{ "curve-secret", required_argument, NULL, 'K' },
		{ "curve-server", required_argument, NULL, 'S' },
		{ "curve-clients", required_argument, NULL, 'C' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	struct doctor doctor = { 0 };
	bool json = false;
	unsigned int kernel;
	int option, closed;

	while ((option = getopt_long(argc, argv, "a:h", options, NULL)) != -1)
		switch (option) {
		case 'j':
			json = true;
			break;
		case 'u':
			doctor.user = optarg;
			break;
		case 'a':
			doctor.address = optarg;
			break;
		case 'K':
			doctor.curve_secret = optarg;
			break;
		case 'S':
			doctor.curve_server = optarg;
			break;
		case 'C':
			doctor.curve_clients = optarg;
			break;
		case 'h':
			return print_help(self);
		default:
			return usage_error(self);
		}
	if (optind < argc) {
		complain("%s: doctor takes no arguments", argv[optind]);
		return usage_error(self);
	}

	output_open(&doctor.out, json, !json);
	kernel = check_kernel(&doctor);
	check_uprobes(&doctor);
	check_capabilities(&doctor);
	check_namespace(&doctor);
	check_processes(&doctor);
	check_lockdown(&doctor);
	check_bpffs(&doctor);
	check_limits(&doctor, kernel);
	if (doctor.user)
		doctor_user(&doctor);
	else
		check_run(&doctor);
	doctor_keys(&doctor);
	doctor_endpoint(&doctor);
	check_nodes(&doctor);
	closed = output_close(&doctor.out);
	if (doctor.failed)
		return EXIT_OTHER;
	return doctor.forbidden ? EXIT_NO_PRIVILEGE : closed;
}

const struct subcommand command_doctor = {
	.name = "doctor",
	.arguments = "[--user NAME] [--json]",
	.summary = "Checks whether coretapd could run here, as the user who asks",
	.help = "Looks at the kernel, privileges, file systems and running nodes; changes "
		"nothing.\n\n"
		"  --user NAME           of a service that runs as this user\n"
		"  --curve-secret FILE   the secret key, coretapd's or one's own\n"
		"  --curve-clients FILE  the keys that coretapd lets in\n"
		"  --curve-server FILE   coretapd's public key\n"
		"  --address ADDRESS     whether coretapd there wants a key, and takes this one\n"
		"  --json                a line for each check\n\n"
		"Exits with 0 when coretapd could run, 4 when a privilege is missing, 1 "
		"otherwise; 1 too\n"
		"when nobody answers at --address, or the key is refused.\n",
	.run = run,
};
