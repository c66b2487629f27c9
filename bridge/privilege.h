/* What the kernel demands of who attaches, what is missing, and giving up the rest. */
#ifndef CORETAP_PRIVILEGE_H
#define CORETAP_PRIVILEGE_H

#include <stdbool.h>
#include <sys/types.h>

/* Returns 0, -ENOSYS for a kernel below Linux 5.15, or -EPERM when a capability is missing;
 * one line in the log names it. others: processes of other users are to be looked at. */
int privilege_check(bool others);

/* Whether the processes of other users can be looked at. */
bool privilege_sees_others(void);

/* Ends a message about a refused attach: what to look at. */
const char *privilege_hint(bool perf_links);

/* ---- --user ---- */

struct user {
	const char *name; /* NULL: the one that started us */
	uid_t uid;
	gid_t gid;
};

/* Looks a user up. Returns 0, or -ENOENT or -EPERM (only root can become another one), said in the
 * log. */
int privilege_user(struct user *user, const char *name);

/* Nothing that this process executes gets more than it has. To be called before any thread starts.
 */
void privilege_seal(void);

/* Calls start in a thread of the user's without any capability, and waits until it returns: threads
 * that are started there have none either, as is fit for those that read what strangers send.
 * Returns 0 or -errno. */
int privilege_bare(const struct user *user, void (*start)(void *arg), void *arg);

/* Does what follows to files as the user, until privilege_self: what it may not do, and where
 * somebody has laid a link for root to follow, fails. */
void privilege_as(const struct user *user);
void privilege_self(void);

/* Gives a file or directory that root made, or somebody made earlier, to the user, or to root, who
 * may not write what is another's once the rest is given up; a link, or a file with a second name,
 * is left alone. Entries of the list are names inside; NULL ends it. */
void privilege_give(const struct user *user, const char *path, const char *const *names);

/* Whether a file could be read, or a directory searched, after privilege_drop without closed. */
bool privilege_reaches(const struct user *user, const char *path);

/* Becomes the user for good and keeps only what going on needs; see privilege.c for each
 * capability. others: processes of other users are looked at. closed: something that must be read
 * is not reached. perf_links: there is nothing better to attach with. Returns 0 or -errno, said in
 * the log. */
int privilege_drop(const struct user *user, bool others, bool closed, bool perf_links);

#endif
