// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* The kernel side: one generic program that reads a tracepoint's arguments as its site tells and
 * puts them into a ring. It knows nothing of Bitcoin Core. */
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>

#include "record.h"

#define PAGE_SIZE 4096

#if defined(TARGET_x86_64)
#define N_REGISTERS 21 /* struct pt_regs */
#elif defined(TARGET_aarch64)
#define N_REGISTERS 34 /* struct user_pt_regs */
#else
#error "define TARGET_x86_64 or TARGET_aarch64"
#endif

/* The bridge sets the sizes before load. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, PAGE_SIZE);
} ring_low SEC(".maps"), ring_high SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_SITES);
	__type(key, __u32);
	__type(value, struct site);
} sites SEC(".maps");

/* Frozen before load, so the verifier drops the branches that this kernel cannot have. */
const volatile bool have_tai = false;

/* Mapped by the bridge. */
struct shared shared = {};

/* The value of an operand, or false when its memory cannot be read. */
static __always_inline bool operand_read(const struct operand *operand, const __u64 *registers,
					 bool may_sleep, __u64 *value)
{
	__u64 word = 0;
	__u32 size = operand->size;

	if (operand->kind == OPERAND_CONST) {
		*value = operand->value;
		return true;
	}

	__u32 base = operand->base / 8;

	if (base >= N_REGISTERS || size < 1 || size > 8)
		return false;
	if (operand->kind == OPERAND_REG) {
		word = registers[base] >> (operand->shift & 63);
	} else if (operand->kind == OPERAND_MEM) {
		__u32 index = operand->index / 8;
		__u64 address = operand->value;

		if (index >= N_REGISTERS)
			return false;
		if (operand->has_base)
			address += registers[base];
		if (operand->has_index)
			address += registers[index] << (operand->scale & 63);
		if (bpf_probe_read_user(&word, size, (void *)address)) {
			if (!may_sleep || bpf_copy_from_user(&word, size, (void *)address))
				return false;
		}
	} else {
		return false;
	}

	__u32 shift = 64 - size * 8;

	word <<= shift & 63;
	*value = operand->is_signed ? (__u64)((__s64)word >> (shift & 63)) : word >> (shift & 63);
	return true;
}

/* A string that stands in pages which are not in memory: fault in what it can reach, then read. The
 * second page may not exist when the string ends before it, so only the read itself can fail. */
static __always_inline long text_read(char *slot, __u32 size, __u64 address, bool may_sleep)
{
	long n = bpf_probe_read_user_str(slot, size, (void *)address);

	if (n >= 0 || !may_sleep)
		return n;

	__u64 last_page = (address + size - 1) & ~(__u64)(PAGE_SIZE - 1);
	char byte;

	bpf_copy_from_user(&byte, 1, (void *)address);
	if (last_page > address)
		bpf_copy_from_user(&byte, 1, (void *)last_page);
	return bpf_probe_read_user_str(slot, size, (void *)address);
}

/* Whether n bytes at offset stay inside the record; n and size are constants, so the verifier
 * follows. */
#define FITS(offset, n, size) \
	((n) + sizeof(struct record) <= (size) && (offset) <= (size) - sizeof(struct record) - (n))

/* size is a constant in each caller: the ring reserves only constant sizes. */
static __always_inline int record_fill(void *ctx, const struct site *site, __u32 key, __u32 pid,
				       __u32 size, bool may_sleep)
{
	struct probe_counters *counters = &shared.counters[site->probe % MAX_PROBES];
	__u64 *ring_lost = &shared.ring_lost[site->ring & 1];
	__u64 probe_lost_before = *(volatile __u64 *)&counters->lost;
	__u64 ring_lost_before = *(volatile __u64 *)ring_lost;
	struct record *record;
	__u64 registers[N_REGISTERS];

	if (site->ring)
		record = bpf_ringbuf_reserve(&ring_high, size, 0);
	else
		record = bpf_ringbuf_reserve(&ring_low, size, 0);
	if (!record) {
		__sync_fetch_and_add(&counters->lost, 1);
		__sync_fetch_and_add(ring_lost, 1);
		return 0;
	}
	record->time_ns = have_tai ? bpf_ktime_get_tai_ns() : bpf_ktime_get_boot_ns();
	record->probe_lost = probe_lost_before;
	record->ring_lost = ring_lost_before;
	record->pid = pid;
	record->probe = site->probe;
	record->site = key;
	/* Kept in the record, not in registers: there the verifier would follow every combination.
	 */
	record->missing = 0;
	record->cut = 0;

	/* ctx cannot be indexed by a variable; a copy on the stack can. */
	bpf_probe_read_kernel(registers, sizeof(registers), ctx);

	for (__u32 i = 0; i < MAX_ARGS; i++) {
		if (i >= site->n_args)
			break;

		const struct argument *argument = &site->args[i];
		__u32 offset = argument->offset;
		__u64 value = 0;
		bool read;

		if (argument->type == ARGUMENT_SKIP)
			continue;
		read = operand_read(&argument->operand, registers, may_sleep, &value);
		if (read && argument->type == ARGUMENT_INTEGER) {
			if (!FITS(offset, 8, size))
				continue;
			*(__u64 *)(record->slots + offset) = value;
		} else if (read && argument->type == ARGUMENT_HASH) {
			if (!FITS(offset, 32, size))
				continue;
			read = !bpf_probe_read_user(record->slots + offset, 32, (void *)value);
			if (!read && may_sleep)
				read = !bpf_copy_from_user(record->slots + offset, 32,
							   (void *)value);
		} else if (read) {
			__u32 slot = argument->slot;
			long n = -1;
			char next;

			/* One branch for each size: of a sum of two variables the verifier knows
			 * too little. */
#define SLOT(SIZE)                                    \
	if (slot == SIZE && FITS(offset, SIZE, size)) \
		n = text_read((char *)record->slots + offset, SIZE, value, may_sleep);
			TEXT_SLOTS(SLOT)
#undef SLOT
			read = n >= 0;
			if (n == slot &&
			    !bpf_probe_read_user(&next, 1, (void *)(value + slot - 1)) && next)
				record->cut |= 1U << i;
		}
		if (!read)
			record->missing |= 1U << i;
	}

	bool faulty = record->missing, truncated = record->cut;

	bpf_ringbuf_submit(record, 0);
	__sync_fetch_and_add(&counters->submitted, 1);
	if (faulty)
		__sync_fetch_and_add(&counters->faults, 1);
	if (truncated)
		__sync_fetch_and_add(&counters->truncated, 1);
	return 0;
}

static __always_inline int capture(void *ctx, bool may_sleep)
{
	__u32 key = bpf_get_attach_cookie(ctx);
	__u32 pid = bpf_get_current_pid_tgid() >> 32;
	__u32 only = *(volatile __u32 *)&shared.only_pid;

	if (!*(volatile __u32 *)&shared.gate || (only && only != pid))
		return 0;

	const struct site *site = bpf_map_lookup_elem(&sites, &key);

	if (!site)
		return 0;
	__sync_fetch_and_add(&shared.counters[site->probe % MAX_PROBES].fired, 1);

#define CLASS(SIZE)             \
	if (site->size == SIZE) \
		return record_fill(ctx, site, key, pid, SIZE, may_sleep);
	RECORD_SIZES(CLASS)
#undef CLASS
	return 0;
}

SEC("uprobe.s")
int capture_sleepable(struct pt_regs *ctx)
{
	return capture(ctx, true);
}

SEC("uprobe")
int capture_plain(struct pt_regs *ctx)
{
	return capture(ctx, false);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
