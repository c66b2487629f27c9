/* The last messages of each socket on disk, and what a resuming bridge must know. Only journal.c
 * and pieces.c know LMDB.
 *
 * The journal survives kill -9 of the bridge, not the machine's power: nothing is synced, and a
 * journal of another boot is deleted unread. Its file is preallocated (a full disk would kill the
 * process through the memory map), its content bounded for each socket, oldest out first.
 * Damage that shows in pages, lengths or the order of messages is noticed before it is served; a
 * changed byte within a message is not. */
#ifndef CORETAP_JOURNAL_H
#define CORETAP_JOURNAL_H

#include "evictions.h"
#include "stream.h"

struct journal;

/* Opens or creates the journal in directory, which is made. bytes: what each socket may take;
 * live_percent: how much of it messages may fill, the rest being room to work in. Where
 * the disk has no room for that the sizes are halved until it has (*halved), down to 1 MiB. A
 * journal that is there already is kept, whatever its size.
 * Returns 0 or -errno, said in the log: the caller goes on without a journal. -EBUSY: another
 * process has it, which is no reason to go on. */
int journal_open(struct journal **journal, const char *directory, const size_t bytes[N_SOCKETS],
		 unsigned int live_percent, bool *halved);
void journal_close(struct journal *journal); /* NULL is fine */

/* Closes a journal that failed and deletes it: more was published than it knows of, so a successor
 * that believed it would use numbers twice. */
void journal_discard(struct journal *journal);

/* ---- writing: one transaction for each drain ---- */

/* What one transaction holds. */
struct journal_entry {
	uint64_t run;
	const struct stream *streams[N_SOCKETS]; /* whose finished messages are appended */
	const char *(*topic)(const void *arg, unsigned int topic); /* name of a topic number */
	const void *arg;
	const void *state; /* replaces the one before */
	size_t state_size;
	struct evictions *evictions; /* NULL: not kept */
};

/* Appends and commits; makes room by dropping the oldest messages. Returns 0, or -errno: the
 * journal is of no use from then on. */
int journal_write(struct journal *journal, const struct journal_entry *entry);

/* ---- resuming ---- */

/* Copies the last state. Returns 0, or -ENOENT when there is none of this size. */
int journal_state(struct journal *journal, void *state, size_t size);

/* Restores what belongs to the evictions' state. Returns 0 or -errno. */
int journal_restore(struct journal *journal, struct evictions *evictions);

/* ---- reading ---- */

/* Remembers the last numbers of a run's topics for those who ask for its tail, when another run
 * takes over: heads is a msgpack map. */
int journal_run(struct journal *journal, uint64_t run, const void *heads, size_t len);

/* The run of the last message that is held, or was since journal_open(); 0 = none. A new one must
 * be greater. */
uint64_t journal_last_run(const struct journal *journal);

/* Calls found for each run that has messages, oldest first. first and last are positions, 0 = none.
 */
struct journal_run_info {
	uint64_t run;
	uint64_t first[N_SOCKETS], last[N_SOCKETS];
	const void *heads; /* msgpack map of topics to numbers, as journal_run was told; NULL =
			      unknown */
	size_t heads_len;
};
int journal_runs(struct journal *journal,
		 void (*found)(void *arg, const struct journal_run_info *info), void *arg);

/* First and last position held of a run; first is last + 1 when nothing is. -ENOENT: unknown run.
 */
int journal_bounds(struct journal *journal, enum socket_id socket, uint64_t run, uint64_t *first,
		   uint64_t *last);

/* The first position of a time or later: fills run and n. Looks in *run only, or, when it is 0, in
 * all. -ENOENT: nothing so late is held. */
int journal_since(struct journal *journal, enum socket_id socket, uint64_t time_us, uint64_t *run,
		  uint64_t *n);

/* What the messages of one socket take, and may take, in bytes. */
void journal_usage(struct journal *journal, enum socket_id socket, uint64_t *used, uint64_t *limit);

struct journal_message {
	const char *topic;
	size_t topic_len;
	const void *body;
	size_t len;
	uint64_t n; /* position of its first event */
	uint64_t events;
};

/* Calls found for each message of a run that has events at position n or later, or that tells a
 * loss there, in order, until found returns false. Returns 0 or -errno. The pointers live only
 * during the call. */
int journal_read(struct journal *journal, enum socket_id socket, uint64_t run, uint64_t n,
		 bool (*found)(void *arg, const struct journal_message *message), void *arg);

#endif
