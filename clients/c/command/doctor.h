/* What the checks of coretap doctor share. */
#ifndef CORETAP_DOCTOR_H
#define CORETAP_DOCTOR_H

#include "command.h"

enum verdict {
	OK,
	WARN,	   /* coretapd can run, something will be less */
	FAIL,	   /* it cannot, or what was asked about is not so */
	FORBIDDEN, /* it cannot, for want of a privilege */
};

struct doctor {
	struct output out;
	bool failed, forbidden;
	bool keys_usable; /* found by doctor_keys: a pair to try at the door */
	bool perf_links;  /* Linux before 6.6: attaching takes CAP_SYS_ADMIN as well */
	/* what was asked for, NULL = not */
	const char *user, *address;
	const char *curve_secret, *curve_server, *curve_clients;
};

/* One line: what was found, and what to do about it. */
void doctor_tell(struct doctor *doctor, enum verdict verdict, const char *check, const char *remedy,
		 const char *fmt, ...) __attribute__((format(printf, 5, 6)));

/* The beginning of a small file as text; false when it cannot be read. */
bool doctor_read(const char *path, char *text, size_t size);

/* A set of capabilities from /proc/self/status, CapEff or CapBnd; 0 when it cannot be read. */
uint64_t doctor_capabilities(const char *set);

/* A service of its own user: the account, what it may be granted, its directories. */
void doctor_user(struct doctor *doctor);

/* Files of keys, and whether what listens at the address wants them. */
void doctor_keys(struct doctor *doctor);
void doctor_endpoint(struct doctor *doctor);

#endif
