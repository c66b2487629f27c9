/* Preloaded into coretapd: kills it, or fails its journal, at an exact place.
 *
 *   KILLER=commit:K     before the K-th commit        (encoded, not committed)
 *   KILLER=committed:K  right after the K-th commit   (committed, ring not advanced)
 *   KILLER=send:K       before the first event that is sent after a commit, the K-th time
 *                       (ring advanced, not sent)
 *   KILLER=fail-commit:K:RC or fail-put:K:RC  from the K-th call on it returns RC and does nothing;
 *                       K = 0: from when the file KILLER_WHEN exists
 *
 * Commits and puts are counted from the first one after the first bridge.status: those before only
 * set the journal up. */
#include <dlfcn.h>
#include <lmdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

enum place { NOWHERE, COMMIT, COMMITTED, SEND, FAIL_COMMIT, FAIL_PUT };

static enum place place;
static long target, result;
static long commits, writes, sends;
static int ready, sent_since;

__attribute__((constructor)) static void killer_open(void)
{
	static const char *const names[] = { "",     "commit",	    "committed",
					     "send", "fail-commit", "fail-put" };
	const char *text = getenv("KILLER");
	char name[32] = "";

	if (!text || sscanf(text, "%31[a-z-]:%ld:%ld", name, &target, &result) < 2)
		return;
	for (size_t i = 1; i < sizeof(names) / sizeof(names[0]); i++)
		if (!strcmp(name, names[i]))
			place = (enum place)i;
	if (place == NOWHERE) {
		fprintf(stderr, "KILLER=%s: unknown\n", text);
		_exit(99);
	}
}

static int failing(long count)
{
	const char *when = getenv("KILLER_WHEN");

	if (target)
		return count >= target;
	return when && !access(when, F_OK);
}

static void die(void)
{
	raise(SIGKILL);
}

int mdb_txn_commit(MDB_txn *txn)
{
	static int (*real)(MDB_txn *);
	int rc;

	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "mdb_txn_commit");
	commits += ready;
	if (place == COMMIT && commits == target)
		die();
	if (place == FAIL_COMMIT && ready && failing(commits)) {
		mdb_txn_abort(txn);
		return (int)result;
	}
	rc = real(txn);
	if (place == COMMITTED && commits == target)
		die();
	sent_since = 0;
	return rc;
}

int mdb_put(MDB_txn *txn, MDB_dbi dbi, MDB_val *key, MDB_val *value, unsigned int flags)
{
	static int (*real)(MDB_txn *, MDB_dbi, MDB_val *, MDB_val *, unsigned int);

	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "mdb_put");
	writes += ready;
	if (place == FAIL_PUT && ready && failing(writes))
		return (int)result;
	return real(txn, dbi, key, value, flags);
}

int zmq_send_const(void *socket, const void *data, size_t len, int flags)
{
	static int (*real)(void *, const void *, size_t, int);

	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "zmq_send_const");
	if (len > 7 && !memcmp(data, "bridge.", 7)) {
		ready = 1;
	} else if (!sent_since++) {
		sends += ready;
		if (place == SEND && sends == target)
			die();
	}
	return real(socket, data, len, flags);
}
