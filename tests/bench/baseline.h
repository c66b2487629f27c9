/* What the textbook program hands to its reader. */
#ifndef BENCH_BASELINE_H
#define BENCH_BASELINE_H

#include <linux/types.h>

struct removal {
	__u8 txid[32];
	char reason[16];
	__s64 fee;
	__u64 entry_time;
	__s32 vsize;
};

#define RECORD_BYTES 128 /* of coretapd's record of a removal */

#endif
