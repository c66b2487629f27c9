/* What the kernel demands of who attaches, and what is missing. */
#ifndef CORETAP_PRIVILEGE_H
#define CORETAP_PRIVILEGE_H

/* Returns 0, -ENOSYS for a kernel below Linux 5.15, or -EPERM when a capability is missing;
 * one line in the log names it. */
int privilege_check(void);

/* Ends a message about a refused attach: what to look at. */
const char *privilege_hint(void);

#endif
