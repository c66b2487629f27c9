// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* What coretapd is measured against: the least that a uprobe can do, and what a tool written after
 * the libbpf examples does. */
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/usdt.bpf.h>

#include "baseline.h"

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 64 << 20); /* what coretapd has by default */
} ring SEC(".maps");

__u64 lost = 0;

SEC("uprobe")
int empty(struct pt_regs *ctx)
{
	return 0;
}

SEC("uprobe.s")
int empty_sleepable(struct pt_regs *ctx)
{
	return 0;
}

/* What has to be done for a removal at the least, a step more in each program, without operands to
 * decode: what these leave to coretapd's own program is what it could save. The texts that they
 * read stand on the caller's stack, where a read costs what it costs elsewhere. */
enum { STEP_CLOCK, STEP_RECORD, STEP_HASH, STEP_TEXT };

static __always_inline int step(struct pt_regs *ctx, int last)
{
	__u64 time = bpf_ktime_get_tai_ns();
	struct removal *removal;

	if (last < STEP_RECORD)
		return 0;
	removal = bpf_ringbuf_reserve(&ring, RECORD_BYTES, 0);
	if (!removal) {
		__sync_fetch_and_add(&lost, 1);
		return 0;
	}
	removal->entry_time = time;
	removal->fee = PT_REGS_PARM4(ctx);
	removal->vsize = PT_REGS_PARM3(ctx);
	if (last >= STEP_HASH)
		bpf_probe_read_user(removal->txid, sizeof(removal->txid), (void *)PT_REGS_SP(ctx));
	if (last >= STEP_TEXT)
		bpf_probe_read_user(removal->reason, sizeof(removal->reason),
				    (void *)PT_REGS_SP(ctx) + 64);
	bpf_ringbuf_submit(removal, 0);
	return 0;
}

SEC("uprobe.s")
int step_clock(struct pt_regs *ctx)
{
	return step(ctx, STEP_CLOCK);
}

SEC("uprobe.s")
int step_record(struct pt_regs *ctx)
{
	return step(ctx, STEP_RECORD);
}

SEC("uprobe.s")
int step_hash(struct pt_regs *ctx)
{
	return step(ctx, STEP_HASH);
}

SEC("uprobe.s")
int step_text(struct pt_regs *ctx)
{
	return step(ctx, STEP_TEXT);
}

SEC("usdt")
int textbook(struct pt_regs *ctx)
{
	struct removal *removal = bpf_ringbuf_reserve(&ring, sizeof(*removal), 0);
	long txid = 0, reason = 0, vsize = 0, fee = 0, entry_time = 0;

	if (!removal) {
		__sync_fetch_and_add(&lost, 1);
		return 0;
	}
	bpf_usdt_arg(ctx, 0, &txid);
	bpf_usdt_arg(ctx, 1, &reason);
	bpf_usdt_arg(ctx, 2, &vsize);
	bpf_usdt_arg(ctx, 3, &fee);
	bpf_usdt_arg(ctx, 4, &entry_time);
	bpf_probe_read_user(removal->txid, sizeof(removal->txid), (void *)txid);
	bpf_probe_read_user_str(removal->reason, sizeof(removal->reason), (void *)reason);
	removal->vsize = vsize;
	removal->fee = fee;
	removal->entry_time = entry_time;
	bpf_ringbuf_submit(removal, 0);
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
