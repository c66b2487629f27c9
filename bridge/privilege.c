/* See privilege.h. */
#include <errno.h>
#include <linux/capability.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "log.h"
#include "privilege.h"

static uint64_t effective_capabilities(void)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[2] = { { 0 } };

	if (syscall(SYS_capget, &header, data))
		return 0;
	return data[0].effective | (uint64_t)data[1].effective << 32;
}

int privilege_check(void)
{
	uint64_t has = effective_capabilities();
	bool admin = has >> CAP_SYS_ADMIN & 1;
	bool bpf = admin || has >> CAP_BPF & 1;
	bool perfmon = admin || has >> CAP_PERFMON & 1;
	struct utsname system;
	unsigned int major = 0, minor = 0;

	if (!uname(&system) && sscanf(system.release, "%u.%u", &major, &minor) == 2 &&
	    (major < 5 || (major == 5 && minor < 15))) {
		log_error("Linux %s: too old, coretap needs 5.15 or later", system.release);
		return -ENOSYS;
	}
	if (bpf && perfmon)
		return 0;
	log_error("missing %s%s%s: run coretapd as root, or give it CAP_BPF and CAP_PERFMON",
		  bpf ? "" : "CAP_BPF", !bpf && !perfmon ? " and " : "",
		  perfmon ? "" : "CAP_PERFMON");
	return -EPERM;
}

const char *privilege_hint(void)
{
	return "; kernel lockdown, a container or kernel.perf_event_paranoid may forbid it: "
	       "`coretap doctor` tells";
}
