/* See journal.h. */
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <lmdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "journal.h"
#include "log.h"
#include "pieces.h"

#define FLOOR_BYTES ((size_t)1 << 20)

struct journal {
	MDB_env *env;
	MDB_dbi messages[N_SOCKETS];
	MDB_dbi meta, runs, evictions;
	size_t limit[N_SOCKETS];       /* live bytes */
	uint64_t last_run[N_SOCKETS];  /* of the last message */
	uint64_t latest_us[N_SOCKETS]; /* of that run's events */
	size_t page;
	struct gathered gathered;
	int lock; /* the directory, -1 = not open */
	char directory[4096];
};

/* Messages of one drain stand together, so that small ones do not cost a put each. */
#define CHUNK_BYTES (8 * PIECE_BYTES)

/* What a transaction may free of each socket. LMDB writes the numbers of all pages that a
 * transaction frees into one value, which is to fit into a page as well. */
#define STEP_PAGES 64

/* In front of a chunk. Then head, topic, body, head … */
struct chunk {
	uint64_t time_us; /* the latest of the run up to here, though clocks step back; 0 = none */
	uint64_t end;	  /* position behind its last event */
};

struct head {
	uint64_t n;
	uint64_t time_us; /* of its last event, 0 for a loss notice */
	uint32_t events;
	uint32_t topic_len;
	uint32_t body_len;
	uint32_t unused;
};

/* Of the values in meta. */
enum { META_STATE, META_REMEMBERED };

/* Of what is in the file; another one is not read. */
#define FORMAT "3"

static int to_errno(int rc)
{
	if (rc == MDB_SUCCESS)
		return 0;
	if (rc == MDB_NOTFOUND)
		return -ENOENT;
	if (rc == MDB_MAP_FULL || rc == MDB_TXN_FULL)
		return -ENOSPC;
	return rc > 0 ? -rc : -EIO;
}

/* ---- opening ---- */

static int file_remove(const char *directory)
{
	char path[4200];

	snprintf(path, sizeof(path), "%s/data.mdb", directory);
	if (!unlink(path) || errno == ENOENT)
		return 0;
	/* Of what journal_open() returns, -EBUSY means another coretapd. */
	return errno == EBUSY ? -EIO : -errno;
}

/* Of one that must not be used again. */
static void file_give_up(const char *directory)
{
	int err = file_remove(directory);

	if (err)
		log_error("journal %s: delete its data.mdb before the next start, coretapd cannot: "
			  "%s",
			  directory, strerror(-err));
}

static off_t file_size(const char *directory)
{
	char path[4200];
	struct stat st;

	snprintf(path, sizeof(path), "%s/data.mdb", directory);
	return stat(path, &st) ? 0 : st.st_size;
}

/* This boot and what this program writes. */
static int origin(char *id, size_t size)
{
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, id, size - 1);
	int err = n < 0 ? -errno : 0;

	if (fd >= 0)
		close(fd);
	id[n > 0 ? n : 0] = '\0';
	id[strcspn(id, "\n")] = '\0';
	strncat(id, " " FORMAT, size - strlen(id) - 1);
	return err;
}

/* What another boot left may be anything after a power cut, and LMDB trusts what is in its pages: a
 * journal of another one, or of another format, is removed unopened. What it is of stands beside
 * it, in a link that leads nowhere: made in one step, and it takes no block. A file without it is
 * somebody else's. */
static int origin_check(const char *directory)
{
	char path[4200], id[64], written[64];
	int err = origin(id, sizeof(id));
	ssize_t n;

	if (err)
		return err;
	snprintf(path, sizeof(path), "%s/boot", directory);
	n = readlink(path, written, sizeof(written) - 1);
	if (n < 0 && errno != ENOENT)
		return -errno;
	written[n > 0 ? n : 0] = '\0';
	if (!strcmp(id, written))
		return 0;
	if (n < 0 && file_size(directory))
		return -EEXIST;
	err = file_remove(directory);
	if (err)
		return err;
	if (n >= 0 && unlink(path))
		return -errno;
	return symlink(id, path) ? -errno : 0;
}

/* Every block of the file must exist before the map is written to: a page that the disk has no room
 * for would be a SIGBUS. */
static int preallocate(const char *directory, size_t bytes)
{
	char path[4200];
	int fd, err;

	snprintf(path, sizeof(path), "%s/data.mdb", directory);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	err = -posix_fallocate(fd, 0, (off_t)bytes);
	close(fd);
	return err;
}

static int tables_open(struct journal *j)
{
	static const char *const names[N_SOCKETS] = { "low", "high" };
	MDB_txn *txn;
	int rc = mdb_txn_begin(j->env, NULL, 0, &txn);

	if (rc)
		return rc;
	for (enum socket_id id = 0; id < N_SOCKETS && !rc; id++)
		rc = mdb_dbi_open(txn, names[id], MDB_CREATE, &j->messages[id]);
	if (!rc)
		rc = mdb_dbi_open(txn, "meta", MDB_CREATE, &j->meta);
	if (!rc)
		rc = mdb_dbi_open(txn, "runs", MDB_CREATE, &j->runs);
	if (!rc)
		rc = mdb_dbi_open(txn, "evictions", MDB_CREATE, &j->evictions);
	if (rc) {
		mdb_txn_abort(txn);
		return rc;
	}
	return mdb_txn_commit(txn);
}

/* LMDB aborts where it finds its pages damaged, and would at each start. */
static void damaged(MDB_env *env, const char *what)
{
	const struct journal *j = mdb_env_get_userctx(env);

	log_error("journal %s: damaged, so it is removed and coretapd ends: %s", j->directory,
		  what);
	file_give_up(j->directory);
}

/* A file of another size is taken as it is: LMDB makes it larger or smaller, but never smaller than
 * what was ever in it. */
static int env_open(struct journal *j, size_t bytes)
{
	off_t before = file_size(j->directory);
	MDB_envinfo info = { .me_mapsize = bytes };
	MDB_stat stat = { 0 }; /* its page is not the system's where that is above 32 KiB */
	int rc = mdb_env_create(&j->env);
	int err;

	if (rc)
		return to_errno(rc);
	rc = mdb_env_set_userctx(j->env, j);
	if (!rc)
		rc = mdb_env_set_assert(j->env, damaged);
	if (!rc)
		rc = mdb_env_set_maxdbs(j->env, 8);
	if (!rc)
		rc = mdb_env_set_mapsize(j->env, bytes);
	/* One thread, one process (the directory's lock): LMDB needs no lock of its own. */
	if (!rc)
		rc = mdb_env_open(j->env, j->directory, MDB_WRITEMAP | MDB_NOSYNC | MDB_NOLOCK,
				  0640);
	if (!rc)
		rc = mdb_env_info(j->env, &info);
	if (!rc)
		rc = mdb_env_stat(j->env, &stat);
	err = to_errno(rc);
	/* Torn: pages that it says it has are beyond its end. */
	if (!err && before && (size_t)before < (info.me_last_pgno + 1) * stat.ms_psize)
		err = -EIO;
	if (!err)
		err = preallocate(j->directory, info.me_mapsize);
	if (!err)
		err = to_errno(tables_open(j));
	if (!err)
		return 0;
	mdb_env_close(j->env);
	j->env = NULL;
	return err;
}

/* How much a journal may take: what is free, and a quarter of it where the file system is memory
 * that others need too. What an old journal occupies counts as free. */
static size_t room(const char *directory)
{
	struct statvfs fs;
	struct stat st;
	char path[4200];
	size_t own = 0;

	snprintf(path, sizeof(path), "%s/data.mdb", directory);
	if (!stat(path, &st))
		own = (size_t)st.st_blocks * 512;
	if (statvfs(directory, &fs))
		return SIZE_MAX;
	return (fs.f_bavail * fs.f_frsize + own) / (strncmp(directory, "/run/", 5) ? 1 : 4);
}

/* Two processes in one file would destroy it. */
static int directory_take(struct journal *j)
{
	if (mkdir(j->directory, 0750) && errno != EEXIST)
		return -errno;
	j->lock = open(j->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (j->lock < 0)
		return -errno;
	if (!flock(j->lock, LOCK_EX | LOCK_NB))
		return 0;
	return errno == EWOULDBLOCK ? -EBUSY : -errno;
}

static size_t sizes_total(const struct journal *j, const size_t bytes[N_SOCKETS])
{
	return (bytes[SOCKET_LOW] + bytes[SOCKET_HIGH]) / j->page * j->page;
}

static struct chunk chunk_of(const MDB_val *value)
{
	struct chunk chunk = { 0 };

	if (value->mv_size >= sizeof(chunk))
		memcpy(&chunk, value->mv_data, sizeof(chunk));
	return chunk;
}

static int last_times(struct journal *j)
{
	MDB_cursor *cursor;
	struct key key;
	MDB_val value;
	MDB_txn *txn;
	int rc = mdb_txn_begin(j->env, NULL, MDB_RDONLY, &txn);

	if (rc)
		return rc;
	for (enum socket_id id = 0; id < N_SOCKETS && (!rc || rc == MDB_NOTFOUND); id++) {
		rc = mdb_cursor_open(txn, j->messages[id], &cursor);
		if (rc)
			break;
		rc = pieces_back(cursor, MDB_LAST, &key, &value);
		if (!rc) {
			j->last_run[id] = be64toh(key.run);
			j->latest_us[id] = chunk_of(&value).time_us;
		}
		mdb_cursor_close(cursor);
	}
	mdb_txn_abort(txn);
	return rc == MDB_NOTFOUND ? 0 : rc;
}

/* ---- room ---- */

static size_t live_bytes(struct journal *j, MDB_txn *txn, enum socket_id id)
{
	MDB_stat stat;

	if (mdb_stat(txn, j->messages[id], &stat))
		return 0;
	return (stat.ms_branch_pages + stat.ms_leaf_pages + stat.ms_overflow_pages) * stat.ms_psize;
}

/* Drops the oldest messages of a socket until at most limit bytes are left, at most a step of them.
 */
static int prune(struct journal *j, MDB_txn *txn, enum socket_id id, size_t limit)
{
	size_t before = live_bytes(j, txn, id), live = before;
	MDB_cursor *cursor = NULL;
	MDB_val key, value;
	int rc;

	if (live <= limit)
		return 0;
	rc = mdb_cursor_open(txn, j->messages[id], &cursor);
	while (!rc && live > limit && before - live < STEP_PAGES * j->page) {
		rc = mdb_cursor_get(cursor, &key, &value, MDB_FIRST);
		if (!rc)
			rc = mdb_cursor_del(cursor, 0);
		live = live_bytes(j, txn, id);
	}
	if (cursor)
		mdb_cursor_close(cursor);
	/* It has pages and nothing in them. */
	return rc == MDB_NOTFOUND ? MDB_CORRUPTED : rc;
}

static size_t share(const struct journal *j, enum socket_id id, size_t tenths)
{
	return j->limit[id] / 10 * tenths;
}

static int over(struct journal *j, size_t tenths, bool *is)
{
	MDB_txn *txn;
	int rc = mdb_txn_begin(j->env, NULL, MDB_RDONLY, &txn);

	*is = false;
	if (rc)
		return rc;
	for (enum socket_id id = 0; id < N_SOCKETS; id++)
		*is |= live_bytes(j, txn, id) > share(j, id, tenths);
	mdb_txn_abort(txn);
	return 0;
}

static int make_room_step(struct journal *j, size_t tenths)
{
	MDB_txn *txn;
	int rc = mdb_txn_begin(j->env, NULL, 0, &txn);

	if (rc)
		return rc;
	for (enum socket_id id = 0; id < N_SOCKETS && !rc; id++)
		rc = prune(j, txn, id, share(j, id, tenths));
	if (!rc)
		return mdb_txn_commit(txn);
	mdb_txn_abort(txn);
	return rc;
}

/* Keeps so many tenths of what each socket may hold. */
static int make_room(struct journal *j, size_t tenths)
{
	bool more;
	int rc = over(j, tenths, &more);

	while (!rc && more) {
		rc = make_room_step(j, tenths);
		if (!rc)
			rc = over(j, tenths, &more);
	}
	return rc;
}

static int bounds_keep(struct journal *j)
{
	int rc = make_room(j, 10);

	/* What does not go now goes when something comes. */
	return rc == MDB_MAP_FULL ? 0 : to_errno(rc);
}

static int take(struct journal *j, const size_t bytes[N_SOCKETS], unsigned int live_percent)
{
	int err = env_open(j, sizes_total(j, bytes));

	if (!err)
		err = to_errno(last_times(j));
	for (enum socket_id id = 0; id < N_SOCKETS; id++)
		j->limit[id] = bytes[id] / 100 * live_percent;
	/* An earlier one may have held more. */
	if (!err)
		err = bounds_keep(j);
	if (err && j->env) {
		mdb_env_close(j->env);
		j->env = NULL;
	}
	return err;
}

static int try_sizes(struct journal *j, const size_t bytes[N_SOCKETS], unsigned int live_percent)
{
	int err = origin_check(j->directory);

	if (err)
		return err;
	err = take(j, bytes, live_percent);
	/* What cannot be read is made anew: it only ever served replay. */
	if (err == -EIO || err == -EINVAL) {
		log_warning("journal %s: cannot be read, so a new one is made", j->directory);
		err = file_remove(j->directory);
		if (!err)
			err = take(j, bytes, live_percent);
	}
	return err;
}

int journal_open(struct journal **journal, const char *directory, const size_t bytes[N_SOCKETS],
		 unsigned int live_percent, bool *halved)
{
	struct journal *j = calloc(1, sizeof(*j));
	size_t sizes[N_SOCKETS] = { bytes[SOCKET_LOW], bytes[SOCKET_HIGH] };
	size_t available, held, total;
	int err = -ENOMEM;

	*halved = false;
	if (!j) {
		log_warning("journal %s: out of memory: going on without one, so nothing can be "
			    "replayed",
			    directory);
		return err;
	}
	j->page = (size_t)sysconf(_SC_PAGESIZE);
	snprintf(j->directory, sizeof(j->directory), "%s", directory);
	j->lock = -1;
	err = directory_take(j);
	if (err)
		goto out;
	available = room(directory);
	held = (size_t)file_size(directory);
	err = -ENOSPC;
	while ((total = sizes_total(j, sizes)) >= FLOOR_BYTES) {
		/* One that was made smaller stays as it is, with all that it holds, though others
		 * have taken of the room since. */
		if (total <= available || total <= held)
			err = try_sizes(j, sizes, live_percent);
		if (err != -ENOSPC)
			break;
		*halved = true;
		sizes[SOCKET_LOW] /= 2;
		sizes[SOCKET_HIGH] /= 2;
	}
	/* It may have grown in vain. */
	if (err == -ENOSPC)
		file_remove(directory);
	if (err)
		goto out;
	if (*halved)
		log_warning("journal %s: no room for the sizes asked for, made with %zu MiB for "
			    "low and %zu MiB for high",
			    directory, sizes[SOCKET_LOW] >> 20, sizes[SOCKET_HIGH] >> 20);
	if ((size_t)file_size(directory) > total)
		log_info("journal %s: holds less from here on, but its file stays at %zu MiB; to "
			 "give them back delete it while coretapd is stopped",
			 directory, (size_t)file_size(directory) >> 20);
	*journal = j;
	return 0;
out:
	if (err == -EBUSY)
		log_error("journal %s: another coretapd uses it; each wants one of its own",
			  directory);
	else if (err == -EEXIST)
		log_warning("journal %s: its data.mdb is not coretapd's: going on without one, so "
			    "nothing can be replayed; choose another place with --journal",
			    directory);
	else
		log_warning("journal %s: %s: going on without one, so nothing can be replayed; "
			    "%schoose another place with --journal",
			    directory, strerror(-err), err == -ENOSPC ? "free some room, or " : "");
	journal_close(j);
	return err;
}

void journal_close(struct journal *j)
{
	if (!j)
		return;
	if (j->env)
		mdb_env_close(j->env);
	if (j->lock >= 0)
		close(j->lock);
	free(j->gathered.bytes);
	free(j);
}

void journal_discard(struct journal *j)
{
	file_give_up(j->directory);
	journal_close(j);
}

/* ---- writing ---- */

/* Appends messages first to end as one value. Runs and positions only grow, so each key is the
 * greatest so far. */
static int chunk_append(struct journal *j, MDB_txn *txn, enum socket_id id,
			const struct journal_entry *entry, size_t first, size_t end, size_t bytes)
{
	const struct message *messages = entry->streams[id]->messages;
	struct chunk chunk = { .end = messages[end - 1].n + messages[end - 1].events };
	struct pieces p = { .txn = txn,
			    .table = j->messages[id],
			    .flags = MDB_APPEND,
			    .key = key_make(entry->run, messages[first].n, messages[first].notices),
			    .left = bytes };
	int rc;

	if (j->last_run[id] != entry->run)
		j->latest_us[id] = 0;
	j->last_run[id] = entry->run;
	for (size_t i = first; i < end; i++)
		if (messages[i].time_us > j->latest_us[id])
			j->latest_us[id] = messages[i].time_us;
	chunk.time_us = j->latest_us[id];
	rc = pieces_put(&p, &chunk, sizeof(chunk));
	for (size_t i = first; i < end && !rc; i++) {
		const struct message *m = &messages[i];
		const char *topic = entry->topic(entry->arg, m->topic);
		struct head head = { .n = m->n,
				     .time_us = m->time_us,
				     .events = m->events,
				     .topic_len = (uint32_t)strlen(topic),
				     .body_len = (uint32_t)m->len };

		rc = pieces_put(&p, &head, sizeof(head));
		if (!rc)
			rc = pieces_put(&p, topic, head.topic_len);
		if (!rc)
			rc = pieces_put(&p, m->data, m->len);
	}
	return rc;
}

static int messages_append(struct journal *j, MDB_txn *txn, enum socket_id id,
			   const struct journal_entry *entry)
{
	const struct stream *s = entry->streams[id];
	size_t first = 0;

	while (first < s->n_messages) {
		size_t bytes = sizeof(struct chunk), end = first;
		int rc;

		do {
			const struct message *m = &s->messages[end];

			bytes += sizeof(struct head) + strlen(entry->topic(entry->arg, m->topic)) +
				 m->len;
			end++;
		} while (end < s->n_messages && bytes + s->messages[end].len < CHUNK_BYTES);
		rc = chunk_append(j, txn, id, entry, first, end, bytes);
		if (rc)
			return rc;
		first = end;
	}
	return s->n_messages ? prune(j, txn, id, j->limit[id]) : 0;
}

/* Only what came since the last transaction: a list of thousands is not written again each time. */
static int evictions_append(struct journal *j, MDB_txn *txn, const struct evictions *e)
{
	enum { AT_ONCE = PIECE_BYTES / sizeof(*e->unsaved) };
	uint64_t before = e->block.n + e->conflict.n - e->n_unsaved;
	int rc = e->restart ? mdb_drop(txn, j->evictions, 0) : 0;

	for (size_t i = 0; i < e->n_unsaved && !rc; i += AT_ONCE) {
		size_t n = e->n_unsaved - i < AT_ONCE ? e->n_unsaved - i : AT_ONCE;

		rc = pieces_replace(txn, j->evictions, key_make(0, before + i, 0), &e->unsaved[i],
				    n * sizeof(*e->unsaved));
	}
	if (!rc && e->save_remembered)
		rc = pieces_replace(txn, j->meta, key_make(META_REMEMBERED, 0, 0), e->remembered,
				    sizeof(e->remembered));
	return rc;
}

/* whole: with the messages. */
static int entry_write(struct journal *j, MDB_txn *txn, const struct journal_entry *entry,
		       bool whole)
{
	int rc = 0;

	for (enum socket_id id = 0; id < N_SOCKETS && !rc && whole; id++)
		rc = messages_append(j, txn, id, entry);
	if (!rc && entry->evictions)
		rc = evictions_append(j, txn, entry->evictions);
	if (!rc)
		rc = pieces_replace(txn, j->meta, key_make(META_STATE, 0, 0), entry->state,
				    entry->state_size);
	return rc;
}

static int entry_commit(struct journal *j, const struct journal_entry *entry, bool whole)
{
	MDB_txn *txn;
	int rc = mdb_txn_begin(j->env, NULL, 0, &txn);

	if (rc)
		return rc;
	rc = entry_write(j, txn, entry, whole);
	if (!rc)
		return mdb_txn_commit(txn);
	mdb_txn_abort(txn);
	return rc;
}

int journal_write(struct journal *j, const struct journal_entry *entry)
{
	int rc = entry_commit(j, entry, true);

	for (size_t tenths = 10; tenths-- && rc == MDB_MAP_FULL;) {
		rc = make_room(j, tenths);
		/* What cannot go would have a hole behind it. */
		if (rc)
			return to_errno(rc);
		rc = entry_commit(j, entry, true);
	}
	/* Nothing is held now, so history may begin after these. */
	if (rc == MDB_MAP_FULL) {
		log_warning("journal: too small for what came at once: what can be replayed begins "
			    "after it; make it larger with --journal-low and --journal-high");
		rc = entry_commit(j, entry, false);
	}
	if (rc)
		return to_errno(rc);
	if (entry->evictions)
		evictions_saved(entry->evictions);
	/* More may have come than a step takes away. */
	return bounds_keep(j);
}

/* ---- reading ---- */

static int read_begin(struct journal *j, MDB_txn **txn)
{
	return to_errno(mdb_txn_begin(j->env, NULL, MDB_RDONLY, txn));
}

int journal_state(struct journal *j, void *state, size_t size)
{
	MDB_val value;
	MDB_txn *txn;
	int err = read_begin(j, &txn);

	if (err)
		return err;
	err = to_errno(pieces_get(&j->gathered, txn, j->meta, key_make(META_STATE, 0, 0), &value));
	if (!err && value.mv_size != size)
		err = -ENOENT;
	if (!err)
		memcpy(state, value.mv_data, size);
	mdb_txn_abort(txn);
	return err;
}

int journal_restore(struct journal *j, struct evictions *e)
{
	MDB_cursor *cursor;
	MDB_val key, value;
	MDB_txn *txn;
	int rc = read_begin(j, &txn);

	if (rc)
		return rc;
	rc = pieces_get(&j->gathered, txn, j->meta, key_make(META_REMEMBERED, 0, 0), &value);
	if (!rc && value.mv_size == sizeof(e->remembered))
		memcpy(e->remembered, value.mv_data, value.mv_size);
	if (!rc || rc == MDB_NOTFOUND)
		rc = mdb_cursor_open(txn, j->evictions, &cursor);
	if (rc)
		goto out;
	while (!rc && !(rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT))) {
		for (size_t at = 0; at + sizeof(struct evictions_entry) <= value.mv_size;
		     at += sizeof(struct evictions_entry)) {
			struct evictions_entry entry;

			memcpy(&entry, (uint8_t *)value.mv_data + at, sizeof(entry));
			evictions_restore_entry(e, &entry);
		}
	}
	mdb_cursor_close(cursor);
out:
	mdb_txn_abort(txn);
	return rc == MDB_NOTFOUND ? 0 : to_errno(rc);
}

/* The message at *at of a chunk; *at moves on. False at the end, where *at is the chunk's size, or
 * where no message can be. time_us may be NULL. */
static bool chunk_next(const MDB_val *value, size_t *at, struct journal_message *message,
		       uint64_t *time_us)
{
	const uint8_t *data = value->mv_data;
	struct head head;

	if (*at == 0)
		*at = sizeof(struct chunk);
	if (*at + sizeof(head) > value->mv_size)
		return false;
	memcpy(&head, data + *at, sizeof(head));
	if ((size_t)head.topic_len + head.body_len > value->mv_size - *at - sizeof(head))
		return false;
	*at += sizeof(head);
	*message = (struct journal_message){
		.topic = (const char *)data + *at,
		.topic_len = head.topic_len,
		.body = data + *at + head.topic_len,
		.len = head.body_len,
		.n = head.n,
		.events = head.events,
	};
	if (time_us)
		*time_us = head.time_us;
	*at += (size_t)head.topic_len + head.body_len;
	return true;
}

/* The first chunk at or after (run, n), of another run when at its end. */
static int seek(MDB_cursor *cursor, uint64_t run, uint64_t n, struct key *found, MDB_val *value)
{
	return pieces_seek(cursor, key_make(run, n, 0), found, value);
}

/* The last chunk of a run. */
static int seek_last(MDB_cursor *cursor, uint64_t run, struct key *found, MDB_val *value)
{
	int rc = seek(cursor, run + 1, 0, found, value);

	if (!rc || rc == MDB_NOTFOUND)
		rc = pieces_back(cursor, rc ? MDB_LAST : MDB_PREV, found, value);
	return !rc && be64toh(found->run) != run ? MDB_NOTFOUND : rc;
}

static int bounds(MDB_cursor *cursor, uint64_t run, uint64_t *first, uint64_t *last)
{
	struct key key;
	MDB_val value;
	int rc = seek(cursor, run, 0, &key, &value);

	if (!rc && be64toh(key.run) != run)
		rc = MDB_NOTFOUND;
	if (rc)
		return rc;
	*first = be64toh(key.n);
	rc = seek_last(cursor, run, &key, &value);
	if (!rc && chunk_of(&value).end < be64toh(key.n))
		rc = MDB_CORRUPTED;
	if (!rc)
		*last = chunk_of(&value).end - 1;
	return rc;
}

void journal_usage(struct journal *j, enum socket_id id, uint64_t *used, uint64_t *limit)
{
	MDB_txn *txn;

	*used = 0;
	*limit = j->limit[id];
	if (read_begin(j, &txn))
		return;
	*used = live_bytes(j, txn, id);
	mdb_txn_abort(txn);
}

/* What is known of runs whose last message has aged out. */
static int runs_prune(struct journal *j, MDB_txn *txn)
{
	MDB_cursor *runs, *messages[N_SOCKETS] = { NULL };
	struct key key;
	MDB_val value;
	int rc = mdb_cursor_open(txn, j->runs, &runs);

	for (enum socket_id id = 0; id < N_SOCKETS && !rc; id++)
		rc = mdb_cursor_open(txn, j->messages[id], &messages[id]);
	while (!rc && !(rc = pieces_step(runs, MDB_NEXT, &key, &value))) {
		uint64_t run = be64toh(key.run), first, last;

		rc = bounds(messages[SOCKET_LOW], run, &first, &last);
		if (rc == MDB_NOTFOUND)
			rc = bounds(messages[SOCKET_HIGH], run, &first, &last);
		if (rc == MDB_NOTFOUND)
			rc = mdb_cursor_del(runs, 0);
	}
	/* A transaction that writes closes its own cursors. */
	return rc == MDB_NOTFOUND ? 0 : rc;
}

int journal_run(struct journal *j, uint64_t run, const void *heads, size_t len)
{
	MDB_txn *txn;
	int rc = mdb_txn_begin(j->env, NULL, 0, &txn);

	if (rc)
		return to_errno(rc);
	rc = runs_prune(j, txn);
	if (!rc)
		rc = pieces_replace(txn, j->runs, key_make(run, 0, 0), heads, len);
	if (!rc)
		return to_errno(mdb_txn_commit(txn));
	mdb_txn_abort(txn);
	return to_errno(rc);
}

uint64_t journal_last_run(const struct journal *j)
{
	uint64_t low = j->last_run[SOCKET_LOW], high = j->last_run[SOCKET_HIGH];

	return low > high ? low : high;
}

int journal_bounds(struct journal *j, enum socket_id id, uint64_t run, uint64_t *first,
		   uint64_t *last)
{
	MDB_cursor *cursor;
	MDB_txn *txn;
	int rc = read_begin(j, &txn);

	if (rc)
		return rc;
	rc = mdb_cursor_open(txn, j->messages[id], &cursor);
	if (!rc) {
		rc = bounds(cursor, run, first, last);
		mdb_cursor_close(cursor);
	}
	mdb_txn_abort(txn);
	return to_errno(rc);
}

/* The first position of a chunk that is late enough; next: where the chunk begins. */
static int since_in_chunk(const MDB_val *value, uint64_t next, uint64_t time_us, uint64_t *n)
{
	struct journal_message m;
	uint64_t its = 0;
	size_t at = 0;

	*n = next;
	while (its < time_us && chunk_next(value, &at, &m, &its)) {
		/* A position from what is damaged would leave out what is not. */
		if (m.n != next)
			return MDB_CORRUPTED;
		*n = m.n;
		next = m.n + m.events;
	}
	return 0;
}

/* Chunks of one run are in the order of their times. */
static int since_in_run(struct journal *j, MDB_cursor *cursor, uint64_t run, uint64_t time_us,
			uint64_t *n)
{
	uint64_t low = 0, high;
	struct key key;
	MDB_val value;
	int rc = seek_last(cursor, run, &key, &value);

	if (rc)
		return rc;
	if (chunk_of(&value).time_us < time_us)
		return MDB_NOTFOUND;
	/* The first chunk with an event that is late enough begins in [low, high]. */
	high = be64toh(key.n);
	while (low < high) {
		uint64_t middle = low + (high - low) / 2;

		rc = seek(cursor, run, middle, &key, &value);
		if (rc && rc != MDB_NOTFOUND)
			return rc;
		if (rc || be64toh(key.run) != run || chunk_of(&value).time_us >= time_us)
			high = middle;
		else
			low = be64toh(key.n) + 1;
	}
	/* Chunks that begin with loss notices share their position with the next one. */
	rc = seek(cursor, run, low, &key, &value);
	while (!rc) {
		struct key found = key;

		rc = pieces_back(cursor, MDB_PREV, &key, &value);
		if (rc == MDB_NOTFOUND ||
		    (!rc && (be64toh(key.run) != run || chunk_of(&value).time_us < time_us))) {
			rc = pieces_seek(cursor, found, &key, &value);
			break;
		}
	}
	if (!rc)
		rc = pieces_gather(&j->gathered, cursor, &value);
	if (!rc)
		rc = since_in_chunk(&value, be64toh(key.n), time_us, n);
	return rc;
}

int journal_since(struct journal *j, enum socket_id id, uint64_t time_us, uint64_t *run,
		  uint64_t *n)
{
	uint64_t at = *run;
	MDB_cursor *cursor;
	struct key key;
	MDB_val value;
	MDB_txn *txn;
	int rc = read_begin(j, &txn);

	if (rc)
		return rc;
	rc = mdb_cursor_open(txn, j->messages[id], &cursor);
	if (rc)
		goto out;
	if (*run) {
		rc = since_in_run(j, cursor, *run, time_us, n);
	} else {
		/* The oldest run that reaches so far. */
		while (!(rc = seek(cursor, at, 0, &key, &value))) {
			at = be64toh(key.run);
			rc = since_in_run(j, cursor, at, time_us, n);
			if (!rc)
				*run = at;
			if (rc != MDB_NOTFOUND)
				break;
			at++;
		}
	}
	mdb_cursor_close(cursor);
out:
	mdb_txn_abort(txn);
	return to_errno(rc);
}

int journal_read(struct journal *j, enum socket_id id, uint64_t run, uint64_t n,
		 bool (*found)(void *arg, const struct journal_message *message), void *arg)
{
	MDB_cursor *cursor;
	uint64_t next = 0;
	struct key key;
	bool go_on = true;
	MDB_val value;
	MDB_txn *txn;
	int rc = read_begin(j, &txn);

	if (rc)
		return rc;
	rc = mdb_cursor_open(txn, j->messages[id], &cursor);
	if (rc)
		goto out;
	/* The chunk before the first one that begins at n or later may still reach to n. */
	rc = seek(cursor, run, n, &key, &value);
	if (!rc || rc == MDB_NOTFOUND)
		rc = pieces_back(cursor, rc ? MDB_LAST : MDB_PREV, &key, &value);
	if (rc == MDB_NOTFOUND || (!rc && be64toh(key.run) != run))
		rc = seek(cursor, run, n, &key, &value);
	while (!rc && be64toh(key.run) == run && go_on) {
		struct journal_message message;
		size_t at = 0;

		/* What does not follow on what was before is damaged. */
		rc = next && be64toh(key.n) != next ? MDB_CORRUPTED
						    : pieces_gather(&j->gathered, cursor, &value);
		next = be64toh(key.n);
		while (!rc && go_on && chunk_next(&value, &at, &message, NULL)) {
			if (message.n != next)
				rc = MDB_CORRUPTED;
			else if (message.n >= n || message.n + message.events > n)
				go_on = found(arg, &message);
			next = message.n + message.events;
		}
		if (!rc && go_on && (at != value.mv_size || next != chunk_of(&value).end))
			rc = MDB_CORRUPTED;
		if (!rc)
			rc = pieces_step(cursor, MDB_NEXT, &key, &value);
	}
	mdb_cursor_close(cursor);
out:
	mdb_txn_abort(txn);
	return rc == MDB_NOTFOUND ? 0 : to_errno(rc);
}

/* The smallest run at or after at that any socket holds messages of; MDB_NOTFOUND: none. */
static int next_run(MDB_cursor *cursors[N_SOCKETS], uint64_t at, uint64_t *run)
{
	uint64_t next = 0;

	for (enum socket_id id = 0; id < N_SOCKETS; id++) {
		struct key key;
		MDB_val value;
		int rc = seek(cursors[id], at, 0, &key, &value);

		if (rc && rc != MDB_NOTFOUND)
			return rc;
		if (!rc && (!next || be64toh(key.run) < next))
			next = be64toh(key.run);
	}
	*run = next;
	return next ? 0 : MDB_NOTFOUND;
}

static int run_info(struct journal *j, MDB_txn *txn, MDB_cursor *cursors[N_SOCKETS],
		    struct journal_run_info *info)
{
	MDB_val value;
	int rc;

	for (enum socket_id id = 0; id < N_SOCKETS; id++) {
		rc = bounds(cursors[id], info->run, &info->first[id], &info->last[id]);
		if (rc && rc != MDB_NOTFOUND)
			return rc;
		if (rc)
			info->first[id] = info->last[id] = 0;
	}
	rc = pieces_get(&j->gathered, txn, j->runs, key_make(info->run, 0, 0), &value);
	if (!rc) {
		info->heads = value.mv_data;
		info->heads_len = value.mv_size;
	}
	return rc == MDB_NOTFOUND ? 0 : rc;
}

int journal_runs(struct journal *j, void (*found)(void *arg, const struct journal_run_info *info),
		 void *arg)
{
	MDB_cursor *cursors[N_SOCKETS] = { NULL };
	MDB_txn *txn;
	int rc = read_begin(j, &txn);

	if (rc)
		return rc;
	for (enum socket_id id = 0; id < N_SOCKETS && !rc; id++)
		rc = mdb_cursor_open(txn, j->messages[id], &cursors[id]);
	for (uint64_t run = 0; !rc && !(rc = next_run(cursors, run, &run)); run++) {
		struct journal_run_info info = { .run = run };

		rc = run_info(j, txn, cursors, &info);
		if (!rc)
			found(arg, &info);
	}
	for (enum socket_id id = 0; id < N_SOCKETS; id++)
		if (cursors[id])
			mdb_cursor_close(cursors[id]);
	mdb_txn_abort(txn);
	return rc == MDB_NOTFOUND ? 0 : to_errno(rc);
}
