/* See tracer.h. */
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "log.h"
#include "privilege.h"
#include "tracer.h"

#include "coretap.skel.h" /* generated from bpf/; wants record.h first */

/* Linux 6.6, include/uapi/linux/bpf.h; Debian 12's headers and libbpf are older. */
#define ATTACH_TRACE_UPROBE_MULTI 48

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

struct tracer {
	struct coretap_bpf *skeleton;
	struct bpf_program *program;
	unsigned int features; /* in use */
	bool attached;
	int multi_link; /* -1 = none */
	struct bpf_link *links[MAX_SITES];
	char description[64];
};

static int libbpf_log(enum libbpf_print_level level, const char *format, va_list args)
{
	char line[512];

	if (level == LIBBPF_DEBUG)
		return 0;
	vsnprintf(line, sizeof(line), format, args);
	line[strcspn(line, "\n")] = '\0';
	log_debug("%s", line);
	return 0;
}

static int uprobe_multi_create(int program_fd, const char *path, const __u64 *offsets,
			       const __u64 *semaphores, const __u64 *cookies, __u32 count,
			       pid_t pid)
{
	struct uprobe_multi_attr attr = {
		.prog_fd = (__u32)program_fd,
		.attach_type = ATTACH_TRACE_UPROBE_MULTI,
		.path = (__u64)(uintptr_t)path,
		.offsets = (__u64)(uintptr_t)offsets,
		.ref_ctr_offsets = (__u64)(uintptr_t)semaphores,
		.cookies = (__u64)(uintptr_t)cookies,
		.cnt = count,
		.pid = pid > 0 ? (__u32)pid : 0,
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
	__u64 offset = 0;
	int fd = bpf_prog_load(BPF_PROG_TYPE_KPROBE, NULL, "GPL", instructions, 2, &load);
	int link;

	if (fd < 0)
		return false;
	link = uprobe_multi_create(fd, "/", &offset, NULL, NULL, 1, 0);
	close(fd);
	if (link >= 0)
		close(link);
	return link == -EBADF;
}

static int tracer_load(struct tracer *t, const struct tracer_options *options)
{
	bool sleepable = t->features & FEATURE_SLEEPABLE;
	struct coretap_bpf *s = coretap_bpf__open();
	int err;

	if (!s)
		return -errno;
	t->program = sleepable ? s->progs.capture_sleepable : s->progs.capture_plain;
	bpf_program__set_autoload(s->progs.capture_sleepable, sleepable);
	bpf_program__set_autoload(s->progs.capture_plain, !sleepable);
	if (t->features & FEATURE_MULTI)
		bpf_program__set_expected_attach_type(
			t->program, (enum bpf_attach_type)ATTACH_TRACE_UPROBE_MULTI);
	bpf_map__set_max_entries(s->maps.ring_low, (__u32)options->ring_bytes[SOCKET_LOW]);
	bpf_map__set_max_entries(s->maps.ring_high, (__u32)options->ring_bytes[SOCKET_HIGH]);
	s->rodata->have_tai = t->features & FEATURE_TAI;
	err = coretap_bpf__load(s);
	if (err) {
		coretap_bpf__destroy(s);
		return err;
	}
	t->skeleton = s;
	return 0;
}

int tracer_open(struct tracer **tracer, const struct tracer_options *options)
{
	struct tracer *t = calloc(1, sizeof(*t));
	int err;

	if (!t)
		return -ENOMEM;
	t->multi_link = -1;
	libbpf_set_print(libbpf_log);
	err = privilege_check();
	if (err)
		goto out;
	if (!(options->without & FEATURE_MULTI) && uprobe_multi_supported())
		t->features |= FEATURE_MULTI;
	if (!(options->without & FEATURE_TAI) &&
	    libbpf_probe_bpf_helper(BPF_PROG_TYPE_KPROBE, BPF_FUNC_ktime_get_tai_ns, NULL) == 1)
		t->features |= FEATURE_TAI;
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
			  "missing",
			  strerror(-err));
		goto out;
	}
	snprintf(t->description, sizeof(t->description), "%s, %s, %s clock",
		 t->features & FEATURE_MULTI ? "uprobe_multi" : "perf links",
		 t->features & FEATURE_SLEEPABLE ? "sleepable" : "plain",
		 t->features & FEATURE_TAI ? "TAI" : "boot");
	*tracer = t;
	return 0;
out:
	free(t);
	return err;
}

void tracer_close(struct tracer *t)
{
	if (!t)
		return;
	tracer_detach(t);
	coretap_bpf__destroy(t->skeleton);
	free(t);
}

static int tracer_attach_multi(struct tracer *t, const struct tracepoints *tps, const char *path,
			       pid_t pid)
{
	__u64 offsets[MAX_SITES], semaphores[MAX_SITES], cookies[MAX_SITES];
	int link;

	for (size_t i = 0; i < tps->n_sites; i++) {
		offsets[i] = tps->info[i].offset;
		semaphores[i] = tps->info[i].semaphore;
		cookies[i] = i;
	}
	link = uprobe_multi_create(bpf_program__fd(t->program), path, offsets, semaphores, cookies,
				   (__u32)tps->n_sites, pid);
	if (link < 0)
		return link;
	t->multi_link = link;
	return 0;
}

static int tracer_attach_perf(struct tracer *t, const struct tracepoints *tps, const char *path,
			      pid_t pid)
{
	for (size_t i = 0; i < tps->n_sites; i++) {
		LIBBPF_OPTS(bpf_uprobe_opts, opts, .ref_ctr_offset = tps->info[i].semaphore,
			    .bpf_cookie = i);

		t->links[i] = bpf_program__attach_uprobe_opts(t->program, pid > 0 ? pid : -1, path,
							      tps->info[i].offset, &opts);
		if (!t->links[i])
			return -errno;
	}
	return 0;
}

int tracer_attach(struct tracer *t, const struct tracepoints *tps, const char *path, pid_t pid)
{
	int map = bpf_map__fd(t->skeleton->maps.sites);
	int err = 0;

	for (__u32 i = 0; i < tps->n_sites && !err; i++)
		err = bpf_map_update_elem(map, &i, &tps->sites[i], BPF_ANY);
	if (!err)
		err = t->features & FEATURE_MULTI ? tracer_attach_multi(t, tps, path, pid)
						  : tracer_attach_perf(t, tps, path, pid);
	t->attached = true;
	if (err) {
		tracer_detach(t);
		log_error("%s: cannot attach: %s%s", path, strerror(-err),
			  err == -EPERM || err == -EACCES ? privilege_hint() : "");
		return err;
	}
	tracer_gate(t, true);
	return 0;
}

static void *link_destroy(void *link)
{
	bpf_link__destroy(link);
	return NULL;
}

void tracer_detach(struct tracer *t)
{
	pthread_t threads[MAX_SITES];
	bool started[MAX_SITES] = { false };

	if (!t->attached)
		return;
	tracer_gate(t, false);
	if (t->multi_link >= 0)
		close(t->multi_link);
	t->multi_link = -1;
	/* Each perf link waits about 100 ms for the kernel; all at once they wait together. */
	for (size_t i = 0; i < MAX_SITES; i++)
		if (t->links[i])
			started[i] = !pthread_create(&threads[i], NULL, link_destroy, t->links[i]);
	for (size_t i = 0; i < MAX_SITES; i++) {
		if (started[i])
			pthread_join(threads[i], NULL);
		else if (t->links[i])
			bpf_link__destroy(t->links[i]);
		t->links[i] = NULL;
	}
	t->attached = false;
}

bool tracer_attached(const struct tracer *t)
{
	return t->attached;
}

void tracer_gate(struct tracer *t, bool open)
{
	__atomic_store_n(&t->skeleton->bss->shared.gate, open, __ATOMIC_SEQ_CST);
}

void tracer_only(struct tracer *t, pid_t pid)
{
	__atomic_store_n(&t->skeleton->bss->shared.only_pid, (__u32)pid, __ATOMIC_SEQ_CST);
}

int tracer_ring_fd(const struct tracer *t, enum socket_id socket)
{
	return bpf_map__fd(socket == SOCKET_LOW ? t->skeleton->maps.ring_low
						: t->skeleton->maps.ring_high);
}

const struct shared *tracer_shared(const struct tracer *t)
{
	return &t->skeleton->bss->shared;
}

clockid_t tracer_clock(const struct tracer *t)
{
	return t->features & FEATURE_TAI ? CLOCK_TAI : CLOCK_BOOTTIME;
}

const char *tracer_describe(const struct tracer *t)
{
	return t->description;
}
