/* What the BPF program and the bridge share: site descriptors, ring records, counters.
 *
 * The program is generic: it knows no tracepoint. The attach cookie selects a site, the site tells
 * where each argument stands and where it goes in the record. */
#ifndef CORETAP_RECORD_H
#define CORETAP_RECORD_H

#include <linux/types.h>

/* Raise when any structure here changes: a resuming bridge must not read another layout. */
#define RECORD_LAYOUT 2

#define MAX_ARGS 12
#define MAX_PROBES 64
#define MAX_SITES 256

/* Two binaries can be traced at once: the one that runs and the one that will run next. */
#define MAX_GROUPS 2
#define GROUP_SITES (MAX_SITES / MAX_GROUPS)

enum operand_kind {
	OPERAND_NONE,  /* a form that cannot be read; the argument is nil */
	OPERAND_CONST, /* value */
	OPERAND_REG,   /* register at base, shifted right by shift bits */
	OPERAND_MEM,   /* user memory at base + (index << scale) + value */
};

/* Where one argument stands when the tracepoint fires. */
struct operand {
	__u8 kind;	/* enum operand_kind */
	__u8 size;	/* 1, 2, 4 or 8 bytes */
	__u8 is_signed; /* extend the sign to 64 bits */
	__u8 scale;	/* MEM: the index counts in units of 1 << scale */
	__u8 shift;	/* REG: 8 for %ah and its like, else 0 */
	__u8 has_index; /* MEM: index is valid */
	__u8 has_base;	/* MEM: base is valid */
	__u8 unused;
	__u16 base;  /* byte offset in the registers that a BPF uprobe sees, a multiple of 8 */
	__u16 index; /* the same */
	__u32 unused2;
	__s64 value; /* CONST: the constant; MEM: displacement */
};
_Static_assert(sizeof(struct operand) == 24, "layout");

enum argument_type {
	ARGUMENT_INTEGER, /* the operand's value, 8 bytes */
	ARGUMENT_HASH,	  /* the operand points to 32 bytes */
	ARGUMENT_TEXT,	  /* the operand points to a NUL-terminated string */
	ARGUMENT_PAYLOAD, /* the operand points to as many bytes as the argument before it says */
};

struct argument {
	struct operand operand;
	__u8 type; /* enum argument_type */
	__u8 unused[3];
	__u16 offset; /* of its slot, from the end of the record head, a multiple of 8 */
	__u16 slot;   /* bytes of its slot, a multiple of 8 */
};
_Static_assert(sizeof(struct argument) == 32, "layout");

struct site {
	__u16 probe; /* index of its counters */
	__u8 ring;   /* enum socket_id */
	__u8 n_args;
	__u32 size;	     /* record bytes, head included: one of RECORD_SIZES */
	__u32 payload_limit; /* bytes of the payload to copy, 0 = none */
	__u8 payload_arg;    /* 1 + index of the payload's argument, 0 = none */
	__u8 rule_arg;	     /* 1 + index of the text that selects a rule, 0 = none */
	__u16 unused;
	struct argument args[MAX_ARGS];
};
_Static_assert(sizeof(struct site) == 16 + 32 * MAX_ARGS, "layout");

/* What is done with events whose text (a message type) is the key. */
#define RULE_KEY 16
#define MAX_RULES 256
#define RULE_DROP 0xffffffffu /* not recorded; any other value: payload_limit */

/* A function is timed by two programs: one at its entry, one at its return, which makes the record.
 * Its sites stand one behind the other: that of the entry, whose own operands are not used, and
 * that of the return. The operands of the latter are read as if these registers had been saved: */
#define FUNCTION_ARGUMENTS 6 /* that are passed in registers on every architecture */
#define REGISTER_ARGUMENT(number) (8 * (number)) /* 1 to FUNCTION_ARGUMENTS, at the entry */
#define REGISTER_DURATION (8 * 7)		 /* nanoseconds */
#define REGISTER_RETURN (8 * 8)

/* A call that has not returned yet: the stack pointer tells the levels of a recursion apart. */
struct call_key {
	__u64 thread; /* process and thread, as bpf_get_current_pid_tgid() has them */
	__u64 stack;  /* stack pointer in the caller */
	__u64 site;   /* of the return */
};

struct call {
	__u64 time_ns; /* of the monotonic clock */
	__u64 arguments[FUNCTION_ARGUMENTS];
};

#define MAX_CALLS 16384

/* Ring space is reserved in constant sizes, as the verifier demands. */
#define RECORD_SIZES(X) X(64) X(128) X(256) X(448) X(640) X(1216)
#define MAX_RECORD_SIZE 1216

/* Record bytes in front of a payload. */
#define PAYLOAD_OFFSET 448
#define MAX_PAYLOAD (4u << 20)

/* Without dynptr (before Linux 5.19): constant sizes for payloads, powers of two, each a byte too
 * large; what is longer is cut. */
#define PAYLOAD_CLASSES(X) X(512) X(4096) X(32768)

/* The sizes that a text's slot can have, its final NUL included. */
#define TEXT_SLOTS(X) X(16) X(32) X(144) X(272) X(512)

struct record {
	__u64 time_ns;	  /* clock of the firing: TAI, or boot time where TAI is missing */
	__u64 probe_lost; /* the probe's losses before this firing */
	__u64 ring_lost;  /* the ring's losses before this firing */
	__u32 pid;	  /* the process, in the initial namespace */
	__u32 missing;	  /* bit i: argument i could not be read */
	__u16 site;
	__u16 cut;     /* bit i: text i was longer than its slot; and RECORD_PAYLOAD */
	__u32 payload; /* bytes at PAYLOAD_OFFSET */
	__u8 slots[];
};
_Static_assert(sizeof(struct record) == 40, "layout");

/* In cut: the payload was asked for, be it empty. */
#define RECORD_PAYLOAD 0x8000

/* All only ever grow, and outlive the bridge when pinned. */
struct probe_counters {
	__u64 fired;
	__u64 submitted;
	__u64 lost;	 /* no room in the ring */
	__u64 faults;	 /* arguments that could not be read */
	__u64 truncated; /* texts or payloads that were cut */
	__u64 unused[3]; /* a cache line each: firing threads do not share one */
};
_Static_assert(sizeof(struct probe_counters) == 64, "layout");

/* Memory that the programs and the bridge have in common. */
struct shared {
	__u32 gate; /* 0: nothing is recorded. Opens after the last attach, closes before the first
		       detach */
	__u32 only_pid; /* 0: every process of the binary is recorded */
	__u64 ring_lost[2];
	__u32 features; /* of the tracer that loaded the program, for one that takes over */
	__u32 unused[9];
	struct probe_counters counters[MAX_PROBES];
};

#endif
