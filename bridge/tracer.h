/* The BPF object: load, attach, detach, and the memory it shares. Only tracer.c knows libbpf. */
#ifndef CORETAP_TRACER_H
#define CORETAP_TRACER_H

#include <sys/types.h>
#include <time.h>

#include "../protocol/catalogue.h"
#include "tracepoints.h"

struct tracer;

/* Kernel features that can be left unused, to test what stands in for them (--without). */
enum tracer_feature {
	FEATURE_MULTI = 1,	/* one uprobe_multi link for all sites, Linux 6.6 */
	FEATURE_SLEEPABLE = 2,	/* programs that can fault pages in, Linux 6.0 */
	FEATURE_DYNPTR = 8,	/* payloads of any size, Linux 5.19 */
	FEATURE_TAI = 4,	/* a clock that follows steps of the wall clock, Linux 6.1 */
	FEATURE_FUNCTIONS = 16, /* the programs that time functions are loaded: when asked for */
};

/* What is done with P2P messages of one type. */
struct rule {
	char type[RULE_KEY]; /* padded with zeros */
	uint32_t limit;	     /* payload bytes to copy, or RULE_DROP */
};

struct tracer_options {
	size_t ring_bytes[N_SOCKETS]; /* powers of two, multiples of the page size */
	unsigned int without;	      /* enum tracer_feature */
	bool payloads;		      /* some event may want its payload */
	bool functions;		      /* some function is to be timed */
	const struct rule *rules;
	size_t n_rules;
};

/* Loads the programs, attached to nothing, gate closed. Returns 0 or -errno, said in the log.
 * The caller has asked privilege_check() before. */
int tracer_open(struct tracer **tracer, const struct tracer_options *options);

/* Detaches what is attached and frees everything; what is pinned stays attached. NULL is fine. */
void tracer_close(struct tracer *tracer);

/* ---- staying attached without a process ---- */

#define TRACER_PIN_ROOT "/sys/fs/bpf/coretap"

/* What must be the same for a process to take over another one's rings. */
struct tracer_identity {
	uint32_t layout;
	uint32_t features;	      /* enum tracer_feature, in use */
	uint32_t ring_ids[N_SOCKETS]; /* of the kernel's maps */
	uint64_t program;	      /* fingerprint of the BPF object */
};

void tracer_identify(const struct tracer *tracer, struct tracer_identity *identity);

/* Pins everything under TRACER_PIN_ROOT/label, so that it outlives this process. To be called after
 * each attach: what is pinned already stays. The directory is locked as long as this process lives.
 * Returns 0 or -errno, said in the log; nothing is pinned then. */
int tracer_pin(struct tracer *tracer, const char *label);

/* Takes over what is pinned under label, and its lock. Returns 0; -ENOENT when nothing is pinned;
 * -EBUSY when another process has it or it cannot be locked, said in the log; or -ESTALE when
 * something is missing or another coretapd made it: call tracer_unpin. */
int tracer_resume(struct tracer **tracer, const char *label);

/* Gives what is pinned to a user, and keeps a way to it that works whatever that user may see of
 * /sys/fs/bpf. Returns 0 or -errno, said in the log. */
int tracer_give(struct tracer *tracer, uid_t uid, gid_t gid);

/* Removes the pins of label: the kernel detaches soon after. Returns how many there were or -errno;
 * -EBUSY is said in the log. */
int tracer_unpin(const char *label);

/* Attaches the sites of one group to the executable at path; pid > 0 limits it to that process.
 * Returns 0 or -errno, said in the log; then nothing of the group is attached. */
int tracer_attach(struct tracer *tracer, const struct tracepoints *tps, unsigned int group,
		  const char *path, pid_t pid);
bool tracer_attached(const struct tracer *tracer, unsigned int group);
bool tracer_pinned(const struct tracer *tracer);

/* Detaches one group; the gate stays as it is. */
void tracer_detach_group(struct tracer *tracer, unsigned int group);

/* Closes the gate, detaches everything, removes the pins. */
void tracer_detach(struct tracer *tracer);

/* Forgets the calls of functions that a process which is gone did not return from. */
void tracer_forget_calls(struct tracer *tracer, pid_t pid);

/* The gate opens after the last attach and closes before the first detach, so that all tracepoints
 * begin and end at one instant. tracer_detach closes it itself. */
void tracer_gate(struct tracer *tracer, bool open);

/* Records only this process; 0 = every process of the binary. */
void tracer_only(struct tracer *tracer, pid_t pid);

int tracer_ring_fd(const struct tracer *tracer, enum socket_id socket);
size_t tracer_ring_bytes(const struct tracer *tracer, enum socket_id socket);
const struct shared *tracer_shared(const struct tracer *tracer);

/* What a ring has lost so far. */
uint64_t tracer_lost(const struct tracer *tracer, enum socket_id socket);

/* The clock of record.time_ns. */
clockid_t tracer_clock(const struct tracer *tracer);

/* Whether attaching takes CAP_SYS_ADMIN, as that of perf links does. */
bool tracer_wants_admin(const struct tracer *tracer);

/* What is in use, for the log: "uprobe_multi, sleepable, TAI clock". */
const char *tracer_describe(const struct tracer *tracer);

#endif
