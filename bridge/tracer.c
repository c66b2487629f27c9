/* See tracer.h. */
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/perf_event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "log.h"
#include "privilege.h"
#include "tracer.h"

#include "coretap.skel.h" /* generated from bpf/; wants record.h first */

/* Linux 6.6, include/uapi/linux/bpf.h; Debian 12's headers and libbpf are older. */
#define ATTACH_TRACE_UPROBE_MULTI 48
#define UPROBE_MULTI_RETURN 1

struct uprobe_multi_attr {
	__u32 prog_fd;
	__u32 target_fd;
	__u32 attach_type;
	__u32 flags;
	__u64 path;
	__u64 offsets;
	__u64 ref_ctr_offsets;
	__u64 cookies;
	__u32 cnt;
	__u32 multi_flags;
	__u32 pid;
	__u32 unused;
};

/* Everything is used by descriptor, so that what was loaded here and what was pinned by an earlier
 * process are the same to the rest of the file. */
struct tracer {
	struct coretap_bpf *skeleton; /* NULL: taken over */
	unsigned int features;	      /* in use */
	int program, sites, shared_map, rings[N_SOCKETS];
	int entry, ret, calls; /* of functions; -1 = not used */
	struct shared *shared;
	bool attached[MAX_GROUPS];
	int links[MAX_SITES]; /* -1 = none */
	char pins[128];	      /* directory, "" = not pinned */
	char label[64];	      /* its name */
	int held;	      /* descriptor of the directory, locked; -1 = none */
	char description[64];
};

/* The verifier's log is one text of many lines. */
static int libbpf_log(enum libbpf_print_level level, const char *format, va_list args)
{
	char *text, *rest;

	if (level == LIBBPF_DEBUG || vasprintf(&text, format, args) < 0)
		return 0;
	for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
		log_debug("%s", line);
	free(text);
	return 0;
}

/* Where one program is to be attached. */
struct places {
	__u64 offsets[GROUP_SITES], semaphores[GROUP_SITES], cookies[GROUP_SITES];
	__u32 n;
};

static int uprobe_multi_create(int program_fd, const char *path, const struct places *places,
			       __u32 flags, pid_t pid)
{
	struct uprobe_multi_attr attr = {
		.prog_fd = (__u32)program_fd,
		.attach_type = ATTACH_TRACE_UPROBE_MULTI,
		.path = (__u64)(uintptr_t)path,
		.offsets = (__u64)(uintptr_t)places->offsets,
		.ref_ctr_offsets = (__u64)(uintptr_t)places->semaphores,
		.cookies = (__u64)(uintptr_t)places->cookies,
		.cnt = places->n,
		.multi_flags = flags,
		.pid = (__u32)pid,
	};
	long fd = syscall(SYS_bpf, BPF_LINK_CREATE, &attr, sizeof(attr));

	return fd < 0 ? -errno : (int)fd;
}

/* A kernel that knows uprobe_multi gets as far as the path, which is no file. */
static bool uprobe_multi_supported(void)
{
	struct bpf_insn instructions[] = {
		{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0 },
		{ .code = BPF_JMP | BPF_EXIT },
	};
	LIBBPF_OPTS(bpf_prog_load_opts, load,
		    .expected_attach_type = (enum bpf_attach_type)ATTACH_TRACE_UPROBE_MULTI);
	struct places nowhere = { .n = 1 };
	int fd = bpf_prog_load(BPF_PROG_TYPE_KPROBE, NULL, "GPL", instructions, 2, &load);
	int link;

	if (fd < 0)
		return false;
	link = uprobe_multi_create(fd, "/", &nowhere, 0, 0);
	close(fd);
	if (link >= 0)
		close(link);
	return link == -EBADF;
}

/* Up to Linux 6.9 a link that is limited to a process runs the program for its first thread alone.
 * Kernels that were mended, distributions' older ones too, refuse a negative number before they
 * look at the path. */
static bool uprobe_multi_knows_processes(int program_fd)
{
	struct places nowhere = { .n = 1 };
	int link = uprobe_multi_create(program_fd, "/", &nowhere, 0, -1);

	if (link >= 0)
		close(link);
	return link == -EINVAL;
}

static struct tracer *tracer_new(void)
{
	struct tracer *t = calloc(1, sizeof(*t));

	if (!t)
		return NULL;
	t->program = t->sites = t->shared_map = t->rings[SOCKET_LOW] = t->rings[SOCKET_HIGH] = -1;
	t->held = -1;
	t->entry = t->ret = t->calls = -1;
	for (size_t i = 0; i < MAX_SITES; i++)
		t->links[i] = -1;
	return t;
}

/* Descriptors of our own: those of the skeleton end with it. */
static int keep_fd(int fd)
{
	return fcntl(fd, F_DUPFD_CLOEXEC, 3);
}

static void fd_close(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

/* The first descriptor that could not be had says why. */
static int fds_check(struct tracer *t)
{
	bool functions = t->features & FEATURE_FUNCTIONS;

	return t->program < 0 || t->sites < 0 || t->shared_map < 0 || t->rings[SOCKET_LOW] < 0 ||
			       t->rings[SOCKET_HIGH] < 0 ||
			       (functions && (t->entry < 0 || t->ret < 0 || t->calls < 0))
		       ? -EMFILE
		       : 0;
}

static void unload(struct tracer *t)
{
	if (t->shared)
		munmap(t->shared, sizeof(*t->shared));
	t->shared = NULL;
	fd_close(&t->program);
	fd_close(&t->entry);
	fd_close(&t->ret);
	fd_close(&t->calls);
	fd_close(&t->sites);
	fd_close(&t->shared_map);
	fd_close(&t->rings[SOCKET_LOW]);
	fd_close(&t->rings[SOCKET_HIGH]);
	coretap_bpf__destroy(t->skeleton);
	t->skeleton = NULL;
}

static int shared_map(struct tracer *t)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	size_t size = (sizeof(struct shared) + page - 1) / page * page;
	void *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, t->shared_map, 0);

	if (map == MAP_FAILED)
		return -errno;
	t->shared = map;
	return 0;
}

/* Functions are timed by two programs that never fault a page in. */
static void functions_choose(struct tracer *t, struct coretap_bpf *s)
{
	bool used = t->features & FEATURE_FUNCTIONS;

	bpf_program__set_autoload(s->progs.function_entry, used);
	bpf_program__set_autoload(s->progs.function_return, used);
	bpf_map__set_autocreate(s->maps.calls, used);
	if (!used || !(t->features & FEATURE_MULTI))
		return;
	bpf_program__set_expected_attach_type(s->progs.function_entry,
					      (enum bpf_attach_type)ATTACH_TRACE_UPROBE_MULTI);
	bpf_program__set_expected_attach_type(s->progs.function_return,
					      (enum bpf_attach_type)ATTACH_TRACE_UPROBE_MULTI);
}

static int tracer_load(struct tracer *t, const struct tracer_options *options)
{
	bool sleepable = t->features & FEATURE_SLEEPABLE;
	struct coretap_bpf *s = coretap_bpf__open();
	struct bpf_program *program;
	int err;

	if (!s)
		return -errno;
	program = sleepable ? s->progs.capture_sleepable : s->progs.capture_plain;
	bpf_program__set_autoload(s->progs.capture_sleepable, sleepable);
	bpf_program__set_autoload(s->progs.capture_plain, !sleepable);
	if (t->features & FEATURE_MULTI)
		bpf_program__set_expected_attach_type(
			program, (enum bpf_attach_type)ATTACH_TRACE_UPROBE_MULTI);
	functions_choose(t, s);
	bpf_map__set_max_entries(s->maps.ring_low, (__u32)options->ring_bytes[SOCKET_LOW]);
	bpf_map__set_max_entries(s->maps.ring_high, (__u32)options->ring_bytes[SOCKET_HIGH]);
	s->rodata->have_tai = t->features & FEATURE_TAI;
	s->rodata->have_dynptr = t->features & FEATURE_DYNPTR;
	s->rodata->have_payloads = options->payloads;
	s->rodata->have_rules = options->n_rules > 0;
	err = coretap_bpf__load(s);
	if (err) {
		coretap_bpf__destroy(s);
		return err;
	}
	t->skeleton = s;
	for (size_t i = 0; i < options->n_rules && !err; i++)
		err = bpf_map_update_elem(bpf_map__fd(s->maps.rules), options->rules[i].type,
					  &options->rules[i].limit, BPF_ANY);
	t->program = keep_fd(bpf_program__fd(program));
	t->sites = keep_fd(bpf_map__fd(s->maps.sites));
	t->shared_map = keep_fd(bpf_map__fd(s->maps.bss));
	t->rings[SOCKET_LOW] = keep_fd(bpf_map__fd(s->maps.ring_low));
	t->rings[SOCKET_HIGH] = keep_fd(bpf_map__fd(s->maps.ring_high));
	if (t->features & FEATURE_FUNCTIONS) {
		t->entry = keep_fd(bpf_program__fd(s->progs.function_entry));
		t->ret = keep_fd(bpf_program__fd(s->progs.function_return));
		t->calls = keep_fd(bpf_map__fd(s->maps.calls));
	}
	if (!err)
		err = fds_check(t);
	if (!err)
		err = shared_map(t);
	if (!err)
		t->shared->features = t->features;
	else
		unload(t);
	return err;
}

static void describe(struct tracer *t)
{
	snprintf(t->description, sizeof(t->description), "%s, %s, %s clock%s",
		 t->features & FEATURE_MULTI ? "uprobe_multi" : "perf links",
		 t->features & FEATURE_SLEEPABLE ? "sleepable" : "plain",
		 t->features & FEATURE_TAI ? "TAI" : "boot",
		 t->features & FEATURE_FUNCTIONS ? ", functions" : "");
}

int tracer_open(struct tracer **tracer, const struct tracer_options *options)
{
	struct tracer *t = tracer_new();
	int err;

	if (!t)
		return log_no_memory();
	libbpf_set_print(libbpf_log);
	if (!(options->without & FEATURE_MULTI) && uprobe_multi_supported())
		t->features |= FEATURE_MULTI;
	if (!(options->without & FEATURE_TAI) &&
	    libbpf_probe_bpf_helper(BPF_PROG_TYPE_KPROBE, BPF_FUNC_ktime_get_tai_ns, NULL) == 1)
		t->features |= FEATURE_TAI;
	if (!(options->without & FEATURE_DYNPTR) &&
	    libbpf_probe_bpf_helper(BPF_PROG_TYPE_KPROBE, BPF_FUNC_ringbuf_reserve_dynptr, NULL) ==
		    1)
		t->features |= FEATURE_DYNPTR;
	if (options->functions)
		t->features |= FEATURE_FUNCTIONS;
	err = -EINVAL;
	if (!(options->without & FEATURE_SLEEPABLE)) {
		t->features |= FEATURE_SLEEPABLE;
		err = tracer_load(t, options);
	}
	if (err) {
		t->features &= ~(unsigned int)FEATURE_SLEEPABLE;
		err = tracer_load(t, options);
	}
	if (err == -ENOMEM) {
		log_error("rings of %zu and %zu bytes: the kernel has no memory for them; choose "
			  "smaller ones with --ring-low and --ring-high",
			  options->ring_bytes[SOCKET_LOW], options->ring_bytes[SOCKET_HIGH]);
		goto out;
	}
	if (err) {
		log_error("BPF program: the kernel refuses it (%s); `coretap doctor` tells what is "
			  "missing, --verbose what its verifier says",
			  strerror(-err));
		goto out;
	}
	describe(t);
	*tracer = t;
	return 0;
out:
	tracer_close(t);
	return err;
}

void tracer_close(struct tracer *t)
{
	if (!t)
		return;
	if (!t->pins[0])
		tracer_detach(t);
	for (size_t i = 0; i < MAX_SITES; i++)
		fd_close(&t->links[i]);
	unload(t);
	fd_close(&t->held);
	free(t);
}

/* The sites of one kind. A function's record is that of its return, whose site both programs are
 * told. */
static void places_collect(const struct tracepoints *tps, unsigned int group, enum site_kind kind,
			   struct places *places)
{
	size_t first = group * GROUP_SITES;

	memset(places, 0, sizeof(*places));
	for (size_t i = first; i < first + tps->n_sites[group]; i++) {
		if (tps->info[i].kind != kind)
			continue;
		places->offsets[places->n] = tps->info[i].offset;
		places->semaphores[places->n] = tps->info[i].semaphore;
		places->cookies[places->n++] = kind == SITE_ENTRY ? i + 1 : i;
	}
}

/* One link for each kind of site, kept where the group's first sites have theirs. */
static int tracer_attach_multi(struct tracer *t, const struct tracepoints *tps, unsigned int group,
			       const char *path, pid_t pid)
{
	const int programs[] = { t->program, t->entry, t->ret };
	struct places places;

	/* Then other processes of the binary run the program too, which lets them pass. */
	if (pid > 0 && !uprobe_multi_knows_processes(t->program))
		pid = 0;
	for (enum site_kind kind = SITE_TRACEPOINT; kind <= SITE_RETURN; kind++) {
		int *link = &t->links[group * GROUP_SITES + kind];

		places_collect(tps, group, kind, &places);
		if (!places.n)
			continue;
		*link = uprobe_multi_create(programs[kind], path, &places,
					    kind == SITE_RETURN ? UPROBE_MULTI_RETURN : 0, pid);
		if (*link < 0)
			return *link;
	}
	return 0;
}

/* The number in what the kernel tells of its uprobe events ("8", "config:0"), or -errno. */
static int uprobe_number(const char *name)
{
	char path[80], text[32] = "";
	FILE *file;
	int number;

	snprintf(path, sizeof(path), "/sys/bus/event_source/devices/uprobe/%s", name);
	file = fopen(path, "re");
	if (!file)
		return -errno;
	if (!fgets(text, sizeof(text), file))
		text[0] = '\0';
	fclose(file);
	return sscanf(text + strcspn(text, "0123456789"), "%d", &number) == 1 ? number : -EIO;
}

/* One site: a perf event, which lives as long as the link that runs the program for it. type and
 * bit: the kernel's numbers of uprobe events and of their flag for returns. Not by libbpf, whose
 * call wants its own object of a program, which a successor does not have. */
static int perf_link_create(int program_fd, const char *path, const struct site_info *info,
			    __u64 cookie, pid_t pid, int type, int bit)
{
	LIBBPF_OPTS(bpf_link_create_opts, opts, .perf_event.bpf_cookie = cookie);
	struct perf_event_attr attr = {
		.size = sizeof(attr),
		.type = (__u32)type,
		.config = info->semaphore << 32,
		.config1 = (__u64)(uintptr_t)path,
		.config2 = info->offset,
	};
	int event, link;

	if (bit > 31 || info->semaphore >> 32)
		return -EINVAL;
	if (info->kind == SITE_RETURN)
		attr.config |= 1ULL << bit;
	event = (int)syscall(SYS_perf_event_open, &attr, pid > 0 ? pid : -1, pid > 0 ? -1 : 0, -1,
			     PERF_FLAG_FD_CLOEXEC);
	if (event < 0)
		return -errno;
	link = bpf_link_create(program_fd, event, BPF_PERF_EVENT, &opts);
	close(event);
	return link;
}

static int tracer_attach_perf(struct tracer *t, const struct tracepoints *tps, unsigned int group,
			      const char *path, pid_t pid)
{
	const int programs[] = { t->program, t->entry, t->ret };
	int type = uprobe_number("type"), bit = uprobe_number("format/retprobe");

	if (type < 0 || bit < 0)
		return type < 0 ? type : bit;
	for (size_t i = group * GROUP_SITES; i < group * GROUP_SITES + tps->n_sites[group]; i++) {
		const struct site_info *info = &tps->info[i];

		t->links[i] =
			perf_link_create(programs[info->kind], path, info,
					 info->kind == SITE_ENTRY ? i + 1 : i, pid, type, bit);
		if (t->links[i] < 0)
			return t->links[i];
	}
	return 0;
}

int tracer_attach(struct tracer *t, const struct tracepoints *tps, unsigned int group,
		  const char *path, pid_t pid)
{
	__u32 first = group * GROUP_SITES;
	int err = 0;

	for (__u32 i = first; i < first + tps->n_sites[group] && !err; i++)
		err = bpf_map_update_elem(t->sites, &i, &tps->sites[i], BPF_ANY);
	t->attached[group] = true;
	if (!err)
		err = t->features & FEATURE_MULTI ? tracer_attach_multi(t, tps, group, path, pid)
						  : tracer_attach_perf(t, tps, group, path, pid);
	if (err) {
		tracer_detach_group(t, group);
		log_error("%s: cannot attach: %s%s", path, strerror(-err),
			  err == -EPERM || err == -EACCES ? privilege_hint(tracer_wants_admin(t))
							  : "");
	}
	return err;
}

static void link_pin_path(const struct tracer *t, size_t site, char *path, size_t size)
{
	snprintf(path, size, "%s/link_%03zu", t->pins, site);
}

/* The kernel takes about 100 ms for each perf link, one after another: doing it in threads gains
 * nothing (measured on Linux 6.18). */
static void links_release(struct tracer *t, size_t first, size_t end)
{
	for (size_t i = first; i < end; i++) {
		char path[192];

		link_pin_path(t, i, path, sizeof(path));
		if (t->pins[0] && t->links[i] >= 0 && unlink(path) && errno != ENOENT)
			log_error("%s: cannot be removed, so it stays attached: %s", path,
				  strerror(errno));
		fd_close(&t->links[i]);
	}
}

void tracer_detach_group(struct tracer *t, unsigned int group)
{
	if (t->attached[group])
		links_release(t, group * GROUP_SITES, (group + 1) * GROUP_SITES);
	t->attached[group] = false;
}

/* Removes what is pinned in a directory. Returns how much it was, or -errno. */
static int pins_remove(const char *directory)
{
	DIR *dir = opendir(directory);
	struct dirent *entry;
	int n = 0, err = 0;

	if (!dir)
		return errno == ENOENT ? 0 : -errno;
	while ((errno = 0, entry = readdir(dir)))
		if (entry->d_name[0] != '.' && !unlinkat(dirfd(dir), entry->d_name, 0))
			n++;
		else if (entry->d_name[0] != '.')
			err = -errno;
	if (errno)
		err = -errno;
	closedir(dir);
	return err ? err : n;
}

/* To be called by who holds the directory. */
static int unpin(const char *label)
{
	char directory[128];
	struct stat st;
	int n;

	snprintf(directory, sizeof(directory), TRACER_PIN_ROOT "/%s", label);
	n = pins_remove(directory);
	rmdir(directory);
	/* A service's was made for it, and it cannot make it anew: it may run, and pin later. */
	if (!lstat(TRACER_PIN_ROOT, &st) && st.st_uid == geteuid())
		rmdir(TRACER_PIN_ROOT);
	return n;
}

/* The lock in /run/coretap goes when somebody removes that directory. This one stands where what it
 * guards does, as long as the descriptor is open that is returned. Else -errno; -EBUSY is said in
 * the log. */
static int pins_hold(const char *label)
{
	char directory[128];
	struct stat st;
	int fd;

	snprintf(directory, sizeof(directory), TRACER_PIN_ROOT "/%s", label);
	for (;;) {
		fd = open(directory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (fd < 0)
			return -errno;
		if (flock(fd, LOCK_EX | LOCK_NB) || fstat(fd, &st)) {
			if (errno == EWOULDBLOCK)
				log_error("another coretapd runs under the label %s, though not in "
					  "/run/coretap/%s; stop it first",
					  label, label);
			else
				log_error("%s: cannot be locked: %s", directory, strerror(errno));
			close(fd);
			return -EBUSY;
		}
		if (st.st_nlink)
			return fd;
		/* Its last holder removed it before we had it. */
		close(fd);
	}
}

void tracer_detach(struct tracer *t)
{
	if (t->shared)
		tracer_gate(t, false);
	links_release(t, 0, MAX_SITES);
	memset(t->attached, 0, sizeof(t->attached));
	if (t->pins[0]) {
		int n = pins_remove(t->pins);

		if (n >= 0)
			unpin(t->label);
		else
			log_error("%s: cannot be removed, so it stays attached: %s", t->pins,
				  strerror(-n));
	}
	t->pins[0] = '\0';
	fd_close(&t->held);
}

bool tracer_attached(const struct tracer *t, unsigned int group)
{
	return t->attached[group];
}

bool tracer_pinned(const struct tracer *t)
{
	return t->pins[0];
}

void tracer_gate(struct tracer *t, bool open)
{
	__atomic_store_n(&t->shared->gate, open, __ATOMIC_SEQ_CST);
}

void tracer_only(struct tracer *t, pid_t pid)
{
	__atomic_store_n(&t->shared->only_pid, (__u32)pid, __ATOMIC_SEQ_CST);
}

void tracer_forget_calls(struct tracer *t, pid_t pid)
{
	struct call_key key, next;
	int err;

	if (t->calls < 0)
		return;
	err = bpf_map_get_next_key(t->calls, NULL, &next);
	while (!err) {
		key = next;
		/* Looked up before the entry goes: without it the walk would begin anew. */
		err = bpf_map_get_next_key(t->calls, &key, &next);
		if (key.thread >> 32 == (__u64)pid)
			bpf_map_delete_elem(t->calls, &key);
	}
}

int tracer_ring_fd(const struct tracer *t, enum socket_id socket)
{
	return t->rings[socket];
}

size_t tracer_ring_bytes(const struct tracer *t, enum socket_id socket)
{
	struct bpf_map_info info = { 0 };
	__u32 len = sizeof(info);

	return bpf_obj_get_info_by_fd(t->rings[socket], &info, &len) ? 0 : info.max_entries;
}

const struct shared *tracer_shared(const struct tracer *t)
{
	return t->shared;
}

uint64_t tracer_lost(const struct tracer *t, enum socket_id socket)
{
	return __atomic_load_n(&t->shared->ring_lost[socket], __ATOMIC_SEQ_CST);
}

clockid_t tracer_clock(const struct tracer *t)
{
	return t->features & FEATURE_TAI ? CLOCK_TAI : CLOCK_BOOTTIME;
}

bool tracer_wants_admin(const struct tracer *t)
{
	return !(t->features & FEATURE_MULTI);
}

const char *tracer_describe(const struct tracer *t)
{
	return t->description;
}

/* ---- staying attached without a process ---- */

/* FNV-1a. Not a secret: it tells one build of the program from another. */
static uint64_t program_fingerprint(void)
{
	size_t size;
	const uint8_t *bytes = coretap_bpf__elf_bytes(&size);
	uint64_t hash = 14695981039346656037ULL;

	for (size_t i = 0; i < size; i++)
		hash = (hash ^ bytes[i]) * 1099511628211ULL;
	return hash;
}

static uint32_t map_id(int fd)
{
	struct bpf_map_info info = { 0 };
	__u32 len = sizeof(info);

	return bpf_obj_get_info_by_fd(fd, &info, &len) ? 0 : info.id;
}

void tracer_identify(const struct tracer *t, struct tracer_identity *identity)
{
	memset(identity, 0, sizeof(*identity));
	identity->layout = RECORD_LAYOUT;
	identity->features = t->features;
	for (enum socket_id id = 0; id < N_SOCKETS; id++)
		identity->ring_ids[id] = map_id(t->rings[id]);
	identity->program = program_fingerprint();
}

#define N_PINS 8
#define N_ALWAYS 5 /* of them; the others are there when functions are timed */

static const char *const pin_names[N_PINS] = { "program",   "sites", "shared", "ring_low",
					       "ring_high", "entry", "return", "calls" };

static void pin_fds(struct tracer *t, int *fds[N_PINS])
{
	fds[0] = &t->program;
	fds[1] = &t->sites;
	fds[2] = &t->shared_map;
	fds[3] = &t->rings[SOCKET_LOW];
	fds[4] = &t->rings[SOCKET_HIGH];
	fds[5] = &t->entry;
	fds[6] = &t->ret;
	fds[7] = &t->calls;
}

static void pins_name(struct tracer *t, const char *label)
{
	snprintf(t->label, sizeof(t->label), "%s", label);
	snprintf(t->pins, sizeof(t->pins), TRACER_PIN_ROOT "/%s", label);
}

static int pin_one(const char *path, int fd)
{
	return fd >= 0 && bpf_obj_pin(fd, path) && errno != EEXIST ? -errno : 0;
}

/* Another coretapd that leaves nothing attached takes the root away, perhaps between our two steps.
 */
static int pins_make(const char *directory)
{
	int made;

	do {
		if (mkdir(TRACER_PIN_ROOT, 0700) && errno != EEXIST)
			return -errno;
		made = mkdir(directory, 0700);
	} while (made && errno == ENOENT);
	return made && errno != EEXIST ? -errno : 0;
}

int tracer_pin(struct tracer *t, const char *label)
{
	char path[192];
	int *fds[N_PINS];
	int err = 0;

	pin_fds(t, fds);
	while (t->held < 0 && !err) {
		pins_name(t, label);
		err = pins_make(t->pins);
		if (err)
			break;
		t->held = pins_hold(label);
		/* Whoever held it last may have taken it away again. */
		if (t->held < 0 && t->held != -ENOENT)
			err = t->held;
	}
	if (err == -EBUSY) {
		t->pins[0] = '\0';
		return err;
	}
	for (int i = 0; i < N_PINS && !err; i++) {
		snprintf(path, sizeof(path), "%s/%s", t->pins, pin_names[i]);
		err = pin_one(path, *fds[i]);
	}
	/* Links come last: a process that finds them finds the rest. */
	for (size_t i = 0; i < MAX_SITES && !err; i++) {
		link_pin_path(t, i, path, sizeof(path));
		err = pin_one(path, t->links[i]);
	}
	if (err) {
		log_error("%s: cannot pin: %s; --keep-attached wants a BPF file system there "
			  "(mount -t bpf bpf /sys/fs/bpf)",
			  t->pins, strerror(-err));
		if (t->held >= 0) {
			pins_remove(t->pins);
			unpin(label);
		}
		t->pins[0] = '\0';
		fd_close(&t->held);
	}
	return err;
}

static int pinned_get(const char *directory, const char *name)
{
	char path[192];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", directory, name);
	fd = bpf_obj_get(path);
	return fd < 0 ? -errno : fd;
}

int tracer_resume(struct tracer **tracer, const char *label)
{
	struct tracer *t = tracer_new();
	bool links = false;
	int *fds[N_PINS];
	int err = 0;

	if (!t)
		return -ENOMEM;
	libbpf_set_print(libbpf_log);
	pins_name(t, label);
	t->held = pins_hold(label);
	err = t->held < 0 ? t->held : 0;
	/* What may not be looked at is not ours; pinning, where it is wanted, says so. */
	if (err && err != -ENOENT && err != -EBUSY)
		err = access(t->pins, F_OK) ? -ENOENT : -ESTALE;
	/* A user that may not write to the directory above leaves its own behind, empty. */
	if (!err && !rmdir(t->pins))
		err = -ENOENT;
	if (err) {
		t->pins[0] = '\0';
		tracer_close(t);
		return err;
	}
	pin_fds(t, fds);
	for (int i = 0; i < N_PINS && !err; i++) {
		int fd = pinned_get(t->pins, pin_names[i]);

		*fds[i] = fd;
		err = fd < 0 && (fd != -ENOENT || i < N_ALWAYS) ? -ESTALE : 0;
	}
	for (int i = 0; i < MAX_SITES && !err; i++) {
		char path[192];

		link_pin_path(t, (size_t)i, path, sizeof(path));
		t->links[i] = bpf_obj_get(path);
		err = t->links[i] < 0 && errno != ENOENT ? -ESTALE : 0;
		links |= t->links[i] >= 0;
		t->attached[i / GROUP_SITES] |= t->links[i] >= 0;
	}
	if (!err && (!links || shared_map(t) || !t->shared->gate))
		err = -ESTALE;
	if (err) {
		tracer_close(t);
		return err;
	}
	t->features = t->shared->features;
	if (t->features & FEATURE_FUNCTIONS && (t->entry < 0 || t->ret < 0 || t->calls < 0)) {
		tracer_close(t);
		return -ESTALE;
	}
	describe(t);
	*tracer = t;
	return 0;
}

int tracer_give(struct tracer *t, uid_t uid, gid_t gid)
{
	struct dirent *entry;
	DIR *dir;
	int err = 0;

	if (!t->pins[0])
		return 0;
	dir = opendir(t->pins);
	if (!dir) {
		err = -errno;
		log_error("%s: cannot be given to the user: %s", t->pins, strerror(-err));
		return err;
	}
	while ((errno = 0, entry = readdir(dir)))
		if (strcmp(entry->d_name, "..") &&
		    fchownat(dirfd(dir), entry->d_name, uid, gid, AT_SYMLINK_NOFOLLOW))
			err = -errno;
	if (errno)
		err = -errno;
	closedir(dir);
	if (err) {
		log_error("%s: cannot be given to the user: %s", t->pins, strerror(-err));
		return err;
	}
	snprintf(t->pins, sizeof(t->pins), "/proc/self/fd/%d", t->held);
	return err;
}

int tracer_unpin(const char *label)
{
	int held = pins_hold(label), n;

	if (held < 0 && held != -ENOENT)
		return held;
	n = unpin(label);
	fd_close(&held);
	return n;
}
