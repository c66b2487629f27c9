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
/* rdi, rsi, rdx, rcx, r8, r9; rax; the stack pointer is below the return address at an entry */
#define ARGUMENT_REGISTERS           \
	{                            \
		14, 13, 12, 11, 9, 8 \
	}
#define RETURN_REGISTER 10
#define STACK_REGISTER 19
#define ENTRY_STACK 8
#elif defined(TARGET_aarch64)
#define N_REGISTERS 34 /* struct user_pt_regs */
#define ARGUMENT_REGISTERS       \
	{                        \
		0, 1, 2, 3, 4, 5 \
	}
#define RETURN_REGISTER 0
#define STACK_REGISTER 31
#define ENTRY_STACK 0
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

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_RULES);
	__type(key, char[RULE_KEY]);
	__type(value, __u32);
} rules SEC(".maps");

/* Made only when functions are timed. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_CALLS);
	__type(key, struct call_key);
	__type(value, struct call);
} calls SEC(".maps");

/* Frozen before load, so the verifier drops the branches that this kernel cannot have. */
const volatile bool have_tai = false;
const volatile bool have_rules = false;	   /* of message types */
const volatile bool have_payloads = false; /* wanted at all */
const volatile bool have_dynptr = false;   /* records of any size, Linux 5.19 */
const volatile bool never = false;

/* Mapped by the bridge. */
struct shared shared = {};

/* The value of an operand, or false when its memory cannot be read. */
static __always_inline bool operand_read(const struct operand *operand, const __u64 *registers,
					 bool may_sleep, __u64 *value)
{
	__u64 word = 0, size = operand->size;

	if (operand->kind == OPERAND_CONST) {
		*value = operand->value;
		return true;
	}

	__u32 base = operand->base / 8;

	if (base >= N_REGISTERS || size < 1)
		return false;
	/* The verifier only knows the bound of a register that is itself compared, and LLVM 19
	 * would make one comparison of the two, with size - 1. */
	asm volatile("" : "+r"(size));
	if (size > 8)
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

	__u64 shift = 64 - size * 8;

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

/* Whether a byte of the word is 0. */
#define HAS_NUL(w) (((w)-0x0101010101010101ULL) & ~(w)&0x8080808080808080ULL)

/* A text that ends within 16 bytes, read whole; what follows its NUL is of no meaning. False when
 * that much cannot be read: the text may still end before the page does. */
static __always_inline bool word_text_read(__u64 *slot, __u64 address, bool *whole)
{
	__u64 words[2];

	if (bpf_probe_read_user(words, sizeof(words), (void *)address))
		return false;
	*whole = HAS_NUL(words[0]) || HAS_NUL(words[1]);
	slot[0] = words[0];
	slot[1] = *whole ? words[1] : words[1] & 0x00ffffffffffffffULL;
	return true;
}

/* Whether n bytes at offset stay inside the record; n and size are constants, so the verifier
 * follows. */
#define FITS(offset, n, size) \
	((n) + sizeof(struct record) <= (size) && (offset) <= (size) - sizeof(struct record) - (n))

/* size is a constant in each caller: the ring reserves only constant sizes. */
static __always_inline void fields_fill(struct record *record, const struct site *site,
					const __u64 *registers, __u32 size, bool may_sleep)
{
	for (__u32 i = 0; i < MAX_ARGS; i++) {
		if (i >= site->n_args)
			break;

		const struct argument *argument = &site->args[i];
		__u32 offset = argument->offset;
		__u64 value = 0;
		bool read;

		if (argument->type == ARGUMENT_PAYLOAD)
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

			if (slot == 16 && FITS(offset, 16, size)) {
				bool whole;

				/* Most texts are short: one fixed read costs half of a string's. */
				if (word_text_read((__u64 *)(record->slots + offset), value,
						   &whole)) {
					if (!whole)
						record->cut |= 1U << i;
					continue;
				}
			}

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
}

/* Read before a record is reserved: losses that came before it. */
struct losses {
	__u64 probe, ring;
};

static __always_inline struct losses losses_read(const struct site *site)
{
	struct losses lost = {
		.probe = *(volatile __u64 *)&shared.counters[site->probe % MAX_PROBES].lost,
		.ring = *(volatile __u64 *)&shared.ring_lost[site->ring & 1],
	};
	return lost;
}

static __always_inline void count_lost(const struct site *site)
{
	__sync_fetch_and_add(&shared.counters[site->probe % MAX_PROBES].lost, 1);
	__sync_fetch_and_add(&shared.ring_lost[site->ring & 1], 1);
}

/* Before it is: the bridge counts those that it leaves out, and must not be ahead. */
static __always_inline void count_submitted(const struct site *site, bool faulty, bool cut)
{
	struct probe_counters *counters = &shared.counters[site->probe % MAX_PROBES];

	__sync_fetch_and_add(&counters->submitted, 1);
	if (faulty)
		__sync_fetch_and_add(&counters->faults, 1);
	if (cut)
		__sync_fetch_and_add(&counters->truncated, 1);
}

static __always_inline void head_fill(struct record *record, __u32 key, struct losses lost)
{
	record->time_ns = have_tai ? bpf_ktime_get_tai_ns() : bpf_ktime_get_boot_ns();
	record->probe_lost = lost.probe;
	record->ring_lost = lost.ring;
	record->pid = bpf_get_current_pid_tgid() >> 32;
	record->site = key;
	record->payload = 0;
	/* Kept in the record, not in registers: there the verifier would follow every combination.
	 */
	record->missing = 0;
	record->cut = 0;
}

static __always_inline int record_make(const struct site *site, __u32 key, const __u64 *registers,
				       __u32 size, bool may_sleep)
{
	struct losses lost = losses_read(site);
	struct record *record;
	bool faulty, cut;

	if (site->ring)
		record = bpf_ringbuf_reserve(&ring_high, size, 0);
	else
		record = bpf_ringbuf_reserve(&ring_low, size, 0);
	if (!record) {
		count_lost(site);
		return 0;
	}
	head_fill(record, key, lost);
	fields_fill(record, site, registers, size, may_sleep);
	faulty = record->missing;
	cut = record->cut;
	count_submitted(site, faulty, cut);
	bpf_ringbuf_submit(record, 0);
	return 0;
}

/* ---- payloads ---- */

static __always_inline bool payload_read(void *to, __u32 len, __u64 from, bool may_sleep)
{
	if (!bpf_probe_read_user(to, len, (void *)from))
		return true;
	return may_sleep && !bpf_copy_from_user(to, len, (void *)from);
}

/* Whole slices of one size. Each offset follows from the index, or the verifier gives up. Returns
 * false when something could not be read. */
static __always_inline bool slices_read(struct bpf_dynptr *ring, __u32 start, __u32 end, __u64 from,
					__u32 slice, __u32 count, bool may_sleep)
{
	for (__u32 i = 0; i < count; i++) {
		__u32 offset = start + i * slice;
		void *to;

		if (offset >= end)
			break;
		to = bpf_dynptr_data(ring, PAYLOAD_OFFSET + offset, slice);
		if (!to || !payload_read(to, slice, from + offset, may_sleep))
			return false;
	}
	return true;
}

/* The last bytes, fewer than 64: there is room for 64. */
static __always_inline bool rest_read(struct bpf_dynptr *ring, __u32 start, __u32 len, __u64 from,
				      bool may_sleep)
{
	void *to;

	if (!len)
		return true;
	to = bpf_dynptr_data(ring, PAYLOAD_OFFSET + start, 64);
	/* The compiler knows that len is small and drops the mask that tells the verifier. */
	asm volatile("%0 &= 63" : "+r"(len));
	return to && payload_read(to, len, from + start, may_sleep);
}

/* A record as long as the payload needs, rounded up to 64 bytes: slices of 4096, then 512, then 64.
 */
static __always_inline int payload_make(const struct site *site, __u32 key, const __u64 *registers,
					__u64 from, __u32 len, bool whole, bool readable,
					bool may_sleep)
{
	struct losses lost = losses_read(site);
	struct bpf_dynptr ring;
	struct record *record;
	__u32 pages = len & ~4095U, blocks = len & ~511U, lines = len & ~63U;
	bool faulty, cut;
	long err;

	if (site->ring)
		err = bpf_ringbuf_reserve_dynptr(&ring_high, PAYLOAD_OFFSET + ((len + 63) & ~63U),
						 0, &ring);
	else
		err = bpf_ringbuf_reserve_dynptr(&ring_low, PAYLOAD_OFFSET + ((len + 63) & ~63U), 0,
						 &ring);
	record = err ? NULL : bpf_dynptr_data(&ring, 0, PAYLOAD_OFFSET);
	if (!record) {
		bpf_ringbuf_discard_dynptr(&ring, 0);
		count_lost(site);
		return 0;
	}
	head_fill(record, key, lost);
	fields_fill(record, site, registers, PAYLOAD_OFFSET, may_sleep);
	record->payload = len;
	record->cut |= RECORD_PAYLOAD;
	if (readable)
		readable =
			slices_read(&ring, 0, pages, from, 4096, MAX_PAYLOAD / 4096, may_sleep) &&
			slices_read(&ring, pages, blocks, from, 512, 8, may_sleep) &&
			slices_read(&ring, blocks, lines, from, 64, 8, may_sleep) &&
			rest_read(&ring, lines, len & 63, from, may_sleep);
	if (!readable)
		record->missing |= 1U << ((site->payload_arg - 1) & 31);
	faulty = record->missing;
	cut = (record->cut & ~RECORD_PAYLOAD) || !whole;
	count_submitted(site, faulty, cut);
	bpf_ringbuf_submit_dynptr(&ring, 0);
	return 0;
}

/* The same for kernels whose records have constant sizes. */
static __always_inline int payload_make_class(const struct site *site, __u32 key,
					      const __u64 *registers, __u64 from, __u32 len,
					      bool whole, bool readable, __u32 class,
					      bool may_sleep)
{
	struct losses lost = losses_read(site);
	struct record *record;
	bool faulty, cut;

	if (site->ring)
		record = bpf_ringbuf_reserve(&ring_high, PAYLOAD_OFFSET + class, 0);
	else
		record = bpf_ringbuf_reserve(&ring_low, PAYLOAD_OFFSET + class, 0);
	if (!record) {
		count_lost(site);
		return 0;
	}
	head_fill(record, key, lost);
	fields_fill(record, site, registers, PAYLOAD_OFFSET, may_sleep);
	if (len > class - 1) {
		len = class - 1;
		whole = false;
	}
	record->payload = len;
	record->cut |= RECORD_PAYLOAD;
	/* The compiler knows that len is small and drops the mask that tells the verifier. */
	asm volatile("%0 &= %1" : "+r"(len) : "i"(class - 1));
	if (!readable ||
	    (len && !payload_read((char *)record + PAYLOAD_OFFSET, len, from, may_sleep)))
		record->missing |= 1U << ((site->payload_arg - 1) & 31);
	faulty = record->missing;
	cut = (record->cut & ~RECORD_PAYLOAD) || !whole;
	count_submitted(site, faulty, cut);
	bpf_ringbuf_submit(record, 0);
	return 0;
}

static __always_inline int payload_capture(const struct site *site, __u32 key,
					   const __u64 *registers, __u32 limit, bool may_sleep)
{
	__u32 argument = site->payload_arg - 1;
	__u64 from = 0, total = 0;
	bool readable, whole;
	__u32 len;

	if (argument < 1 || argument >= MAX_ARGS)
		return 0;
	/* The argument before a payload is its size. */
	readable = operand_read(&site->args[argument].operand, registers, may_sleep, &from) &&
		   operand_read(&site->args[argument - 1].operand, registers, may_sleep, &total) &&
		   !(total >> 63); /* less than nothing: what stands there is not the payload */
	if (limit > MAX_PAYLOAD)
		limit = MAX_PAYLOAD;
	whole = total <= limit;
	len = whole ? total : limit;
	if (!readable)
		len = 0;
	if (have_dynptr)
		return payload_make(site, key, registers, from, len, whole, readable, may_sleep);
#define CLASS(SIZE)                                                                               \
	if (len < SIZE || SIZE == 32768)                                                          \
		return payload_make_class(site, key, registers, from, len, whole, readable, SIZE, \
					  may_sleep);
	PAYLOAD_CLASSES(CLASS)
#undef CLASS
	return 0;
}

/* How much payload an event wants; RULE_DROP: the event is not wanted. */
static __always_inline __u32 limit_find(const struct site *site, const __u64 *registers,
					bool may_sleep)
{
	__u32 argument = site->rule_arg - 1;
	char text[RULE_KEY] = {};
	__u64 address;
	__u32 *rule;

	if (!have_rules || argument >= MAX_ARGS)
		return site->payload_limit;
	/* It may be one that is wanted: nobody can tell, and so it is told. */
	if (!operand_read(&site->args[argument].operand, registers, may_sleep, &address) ||
	    text_read(text, sizeof(text), address, may_sleep) < 0)
		return site->payload_limit == RULE_DROP ? 0 : site->payload_limit;
	rule = bpf_map_lookup_elem(&rules, text);
	return rule ? *rule : site->payload_limit;
}

/* Whether anything is recorded of this process now. */
static __always_inline bool is_open(void)
{
	__u32 only = *(volatile __u32 *)&shared.only_pid;

	return *(volatile __u32 *)&shared.gate &&
	       (!only || only == (__u32)(bpf_get_current_pid_tgid() >> 32));
}

/* From 6.13 on (aarch64: 6.17) the kernel gives a program of 64 bytes of stack or more one for each
 * processor, not for each thread. A uprobe may be preempted, and a sleepable one waits for pages:
 * whoever fires on that processor meanwhile would overwrite what it stands on, and a record that is
 * never submitted holds up all that follow. Programs that contain a tail call are given the
 * thread's stack; this one is never made, and the verifier drops it. */
static __always_inline void stack_of_thread(void *ctx)
{
	if (never)
		bpf_tail_call(ctx, 0, 0);
}

static __always_inline int capture(void *ctx, bool may_sleep)
{
	__u32 key = bpf_get_attach_cookie(ctx);
	__u64 registers[N_REGISTERS];

	stack_of_thread(ctx);
	if (!is_open())
		return 0;

	const struct site *site = bpf_map_lookup_elem(&sites, &key);

	if (!site)
		return 0;
		/* ctx cannot be indexed by a variable; a copy on the stack can. Loads cost less
		 * than the helper that would copy it. */
#pragma unroll
	for (__u32 i = 0; i < N_REGISTERS; i++)
		registers[i] = ((const volatile __u64 *)ctx)[i];
	if (have_payloads || have_rules) {
		__u32 limit = limit_find(site, registers, may_sleep);

		if (limit == RULE_DROP)
			return 0;
		__sync_fetch_and_add(&shared.counters[site->probe % MAX_PROBES].fired, 1);
		if (have_payloads && limit && site->payload_arg)
			return payload_capture(site, key, registers, limit, may_sleep);
	} else {
		__sync_fetch_and_add(&shared.counters[site->probe % MAX_PROBES].fired, 1);
	}
#define CLASS(SIZE)             \
	if (site->size == SIZE) \
		return record_make(site, key, registers, SIZE, may_sleep);
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

/* ---- functions ---- */

/* The stack pointer as it is in the caller, before the call and after the return. */
static __always_inline struct call_key call_find(const __u64 *registers, __u32 site, __u32 pushed)
{
	struct call_key key = {
		.thread = bpf_get_current_pid_tgid(),
		.stack = registers[STACK_REGISTER] + pushed,
		.site = site,
	};
	return key;
}

SEC("uprobe")
int function_entry(struct pt_regs *ctx)
{
	static const __u8 places[FUNCTION_ARGUMENTS] = ARGUMENT_REGISTERS;
	const __u64 *registers = (const __u64 *)ctx;
	__u32 number = bpf_get_attach_cookie(ctx);
	struct call_key key = call_find(registers, number, ENTRY_STACK);
	const struct site *site;
	struct call call = {};

	stack_of_thread(ctx);
	if (!is_open())
		return 0;
#pragma unroll
	for (__u32 i = 0; i < FUNCTION_ARGUMENTS; i++)
		call.arguments[i] = registers[places[i]];
	call.time_ns = bpf_ktime_get_ns();
	/* What an earlier call left here (an exception passed through, a thread was killed) goes.
	 */
	if (!bpf_map_update_elem(&calls, &key, &call, BPF_ANY))
		return 0;
	/* Its return will not be known as one: this firing is lost, and counted here. */
	site = bpf_map_lookup_elem(&sites, &number);
	if (site) {
		__sync_fetch_and_add(&shared.counters[site->probe % MAX_PROBES].fired, 1);
		count_lost(site);
	}
	return 0;
}

SEC("uprobe")
int function_return(struct pt_regs *ctx)
{
	const __u64 *now = (const __u64 *)ctx;
	__u32 number = bpf_get_attach_cookie(ctx);
	struct call_key key = call_find(now, number, 0);
	const struct call *call = bpf_map_lookup_elem(&calls, &key);
	__u64 registers[N_REGISTERS] = {};
	const struct site *site;

	stack_of_thread(ctx);
	/* Entered before the gate opened. */
	if (!call)
		return 0;
#pragma unroll
	for (__u32 i = 0; i < FUNCTION_ARGUMENTS; i++)
		registers[REGISTER_ARGUMENT(1 + i) / 8] = call->arguments[i];
	registers[REGISTER_DURATION / 8] = bpf_ktime_get_ns() - call->time_ns;
	registers[REGISTER_RETURN / 8] = now[RETURN_REGISTER];
	bpf_map_delete_elem(&calls, &key);
	site = bpf_map_lookup_elem(&sites, &number);
	if (!site || !is_open())
		return 0;
	__sync_fetch_and_add(&shared.counters[site->probe % MAX_PROBES].fired, 1);
	/* Integers alone: more than these sizes are not needed. */
	_Static_assert(sizeof(struct record) + 8 * MAX_ARGS <= 256, "sizes");
	if (site->size == 64)
		return record_make(site, number, registers, 64, false);
	if (site->size == 128)
		return record_make(site, number, registers, 128, false);
	if (site->size == 256)
		return record_make(site, number, registers, 256, false);
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
