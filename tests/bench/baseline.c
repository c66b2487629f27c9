/* Attaches one of the baselines to a binary until SIGTERM, then prints what it saw as JSON.
 *
 *	baseline MODE BINARY PROVIDER:NAME...
 *
 * empty            a program that returns at once: what any uprobe costs
 * empty-sleepable  the same, of the sleepable kind
 * clock            the latter, and the time is read
 * record           and a record goes through a ring
 * hash             and 32 bytes of the node's memory are read
 * text             and 16 bytes elsewhere
 * textbook         the arguments of mempool:removed through libbpf's USDT support, read with
 *                  ring_buffer__poll */
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../../bridge/probes.h"

#include "baseline.h"
#include "baseline.skel.h"

/* Linux 6.6, include/uapi/linux/bpf.h; Debian 12's headers and libbpf are older. */
#define ATTACH_TRACE_UPROBE_MULTI 48

struct uprobe_multi_attr {
	__u32 prog_fd, target_fd, attach_type, flags;
	__u64 path, offsets, ref_ctr_offsets, cookies;
	__u32 cnt, multi_flags, pid, unused;
};

struct target {
	const char *binary;
	__u64 offsets[MAX_SITES], semaphores[MAX_SITES];
	__u32 n;
};

static volatile sig_atomic_t stop;
static unsigned long long received, checksum;

static void on_signal(int number)
{
	(void)number;
	stop = 1;
}

/* The programs of each mode but textbook, which libbpf attaches. */
static const struct mode {
	const char *name, *program;
} modes[] = {
	{ "empty", "empty" },	    { "empty-sleepable", "empty_sleepable" },
	{ "clock", "step_clock" },  { "record", "step_record" },
	{ "hash", "step_hash" },    { "text", "step_text" },
	{ "textbook", "textbook" },
};

static const struct mode *mode_find(const char *name)
{
	for (size_t i = 0; i < sizeof(modes) / sizeof(*modes); i++)
		if (!strcmp(modes[i].name, name))
			return &modes[i];
	return NULL;
}

static int silent(enum libbpf_print_level level, const char *format, va_list args)
{
	return level == LIBBPF_WARN ? vfprintf(stderr, format, args) : 0;
}

/* Touches every field, as a reader that prints them would. */
static int on_removal(void *context, void *data, size_t size)
{
	const struct removal *removal = data;

	(void)context;
	(void)size;
	received++;
	checksum += removal->txid[0] + (unsigned char)removal->reason[0] +
		    (unsigned long long)(removal->vsize + removal->fee) + removal->entry_time;
	return 0;
}

static bool wanted(const struct probe_site *site, char **names)
{
	size_t length = strlen(site->provider);

	for (; *names; names++)
		if (!strncmp(*names, site->provider, length) && (*names)[length] == ':' &&
		    !strcmp(*names + length + 1, site->name))
			return true;
	return false;
}

static int target_find(struct target *target, char **names)
{
	struct probes probes = { 0 };
	char error[256] = "";
	int fd = open(target->binary, O_RDONLY | O_CLOEXEC);
	int err = fd < 0 ? -errno : probes_read(fd, target->binary, &probes, error, sizeof(error));

	if (fd >= 0)
		close(fd);
	if (err) {
		fprintf(stderr, "baseline: %s: %s\n", target->binary,
			*error ? error : strerror(-err));
		return err;
	}
	for (size_t i = 0; i < probes.n_sites && target->n < MAX_SITES; i++) {
		if (!wanted(&probes.sites[i], names))
			continue;
		target->offsets[target->n] = probes.sites[i].offset;
		target->semaphores[target->n++] = probes.sites[i].semaphore;
	}
	probes_free(&probes);
	if (!target->n)
		fprintf(stderr, "baseline: %s: no such tracepoint\n", target->binary);
	return target->n ? 0 : -ENOENT;
}

static int attach_multi(struct bpf_program *program, const struct target *target)
{
	struct uprobe_multi_attr attr = {
		.prog_fd = (__u32)bpf_program__fd(program),
		.attach_type = ATTACH_TRACE_UPROBE_MULTI,
		.path = (__u64)(uintptr_t)target->binary,
		.offsets = (__u64)(uintptr_t)target->offsets,
		.ref_ctr_offsets = (__u64)(uintptr_t)target->semaphores,
		.cnt = target->n,
	};

	return syscall(SYS_bpf, BPF_LINK_CREATE, &attr, sizeof(attr)) < 0 ? -errno : 0;
}

static int attach_perf(struct bpf_program *program, const struct target *target)
{
	for (__u32 i = 0; i < target->n; i++) {
		LIBBPF_OPTS(bpf_uprobe_opts, opts, .ref_ctr_offset = target->semaphores[i]);

		if (!bpf_program__attach_uprobe_opts(program, -1, target->binary,
						     target->offsets[i], &opts))
			return -errno;
	}
	return 0;
}

/* Loads program alone, with the way of attaching that it was asked to have. */
static struct baseline *baseline_load(const struct mode *mode, bool multi,
				      struct bpf_program **program)
{
	struct baseline *skeleton = baseline__open();
	struct bpf_program *each;

	if (!skeleton)
		return NULL;
	bpf_object__for_each_program(each, skeleton->obj)
	{
		bool wanted = !strcmp(bpf_program__name(each), mode->program);

		bpf_program__set_autoload(each, wanted);
		if (wanted)
			*program = each;
	}
	if (multi)
		bpf_program__set_expected_attach_type(
			*program, (enum bpf_attach_type)ATTACH_TRACE_UPROBE_MULTI);
	if (!baseline__load(skeleton))
		return skeleton;
	baseline__destroy(skeleton);
	return NULL;
}

/* Takes the records as coretapd does: it looks once in a while. */
static void read_until_stopped(const struct baseline *skeleton)
{
	const struct timespec nap = { .tv_nsec = 1000000 };
	struct ring_buffer *reader =
		ring_buffer__new(bpf_map__fd(skeleton->maps.ring), on_removal, NULL, NULL);

	while (reader && !stop) {
		ring_buffer__poll(reader, 100);
		nanosleep(&nap, NULL);
	}
	ring_buffer__consume(reader);
	ring_buffer__free(reader);
}

static int run_step(const struct mode *mode, const struct target *target)
{
	struct bpf_program *program = NULL;
	struct baseline *skeleton = baseline_load(mode, true, &program);
	const char *way = "uprobe_multi";
	int err = skeleton ? attach_multi(program, target) : -EINVAL;

	if (err) {
		baseline__destroy(skeleton);
		skeleton = baseline_load(mode, false, &program);
		way = "perf links";
		err = skeleton ? attach_perf(program, target) : -errno;
	}
	if (err) {
		fprintf(stderr, "baseline: %s: %s\n", mode->name, strerror(-err));
		return 1;
	}
	printf("attached\n");
	fflush(stdout);
	read_until_stopped(skeleton);
	printf("{\"attach\":\"%s\",\"lost\":%llu}\n", way, (unsigned long long)skeleton->bss->lost);
	return 0; /* the kernel detaches */
}

static int run_textbook(const struct target *target, const char *name)
{
	struct bpf_program *program;
	struct baseline *skeleton = baseline_load(mode_find("textbook"), false, &program);
	struct ring_buffer *reader;
	char provider[64];

	snprintf(provider, sizeof(provider), "%.*s", (int)strcspn(name, ":"), name);
	if (!skeleton || !bpf_program__attach_usdt(program, -1, target->binary, provider,
						   strchr(name, ':') + 1, NULL)) {
		fprintf(stderr, "baseline: textbook: %s\n", strerror(errno));
		return 1;
	}
	reader = ring_buffer__new(bpf_map__fd(skeleton->maps.ring), on_removal, NULL, NULL);
	if (!reader)
		return 1;
	printf("attached\n");
	fflush(stdout);
	while (!stop)
		ring_buffer__poll(reader, 100);
	ring_buffer__consume(reader);
	printf("{\"received\":%llu,\"lost\":%llu,\"checksum\":%llu}\n", received,
	       (unsigned long long)skeleton->bss->lost, checksum);
	return 0;
}

int main(int argc, char **argv)
{
	struct sigaction action = { .sa_handler = on_signal };
	struct target target = { 0 };
	const struct mode *mode = argc > 1 ? mode_find(argv[1]) : NULL;

	if (argc < 4 || !strchr(argv[3], ':') || !mode) {
		fprintf(stderr, "usage: baseline MODE BINARY PROVIDER:NAME...\n");
		return 2;
	}
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	libbpf_set_print(silent);
	target.binary = argv[2];
	if (target_find(&target, argv + 3))
		return 1;
	return strcmp(mode->name, "textbook") ? run_step(mode, &target)
					      : run_textbook(&target, argv[3]);
}
