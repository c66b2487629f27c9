/* libcoretap: a subscriber to coretapd, the tap on the tracepoints of a Bitcoin Core node.
 *
 *	struct coretap *tap;
 *	const struct coretap_event *event;
 *	const unsigned char *txid;
 *
 *	if (coretap_open(NULL, &tap) || coretap_subscribe(tap, "mempool.removed"))
 *		return 1;
 *	while (coretap_next(tap, &event, -1) >= 0)
 *		if (coretap_event_kind(event) == CORETAP_EVENT &&
 *		    coretap_get_hash(event, "txid", &txid) == CORETAP_SET)
 *			...
 *	coretap_close(tap);
 *
 * Events come one at a time and in the publisher's order. What did not arrive, because this process
 * was too slow, a connection broke or coretapd was restarted, is fetched from coretapd's replay and
 * comes at its place, without duplicates. What nobody has any more is told in the same sequence, at
 * the place where it is missing, as a notice: an event of another kind than CORETAP_EVENT. A stream
 * without CORETAP_GAP, CORETAP_LOST and CORETAP_NEW_RUN is complete.
 *
 * Functions that can fail return 0 or more for success and a negative errno value for an error; the
 * values stand with each function, coretap_strerror says them in words.
 *
 * An address normally carries one node. Where a forwarder merges several, each label is counted for
 * itself (up to 16; messages of more are refused as malformed).
 *
 * A handle belongs to one thread at a time, and to the process that opened it: a child after fork()
 *may give it to coretap_close, which leaves the parent's alone, and to nothing else. Different
 *handles are independent. */
#ifndef CORETAP_H
#define CORETAP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CORETAP_EXPORT __attribute__((visibility("default")))

/* Where coretapd listens unless told otherwise. */
#define CORETAP_DEFAULT_ADDRESS "tcp://127.0.0.1:28370"

struct coretap;
struct coretap_event;

enum coretap_kind {
	/* Something the node did: topic, node, run, seq, n, pid, time_us and the topic's fields. */
	CORETAP_EVENT,

	/* Messages of a topic did not arrive, and replay does not have them: topic, node, run, and
	 * the numbers first to last of the firings that they accounted for. They are missing for
	 * good. Where replay is off this is told at once; where it does not answer, after five
	 * seconds, and then at once until it does. */
	CORETAP_GAP,
	/* Firings that coretapd itself could not get, because the kernel's ring was full: topic,
	 * node, run, first to last. No replay has them. */
	CORETAP_LOST,
	/* The numbering began anew, so continuity was lost: node, run (the new one), old_run. What
	 * replay has of the old run came before this. What follows begins with number 1, and what
	 * of that did not arrive is a gap. Each socket tells its own. */
	CORETAP_NEW_RUN,
	/* A message of a run that has ended was dropped: node, run (the current one), old_run. Told
	 * once for each old run. */
	CORETAP_OLD_RUN,
	/* Nothing came on this socket for three status periods (3 s): the publisher is dead,
	 * stopped or out of reach, or, if run is 0, never was there. Told once; reconnecting goes
	 * on by itself. node and run as last heard. */
	CORETAP_STALE,
	/* Messages come again after CORETAP_STALE or CORETAP_STOPPING. */
	CORETAP_ALIVE,
	/* coretapd ended in good order: node, run, time_us. No CORETAP_STALE follows. */
	CORETAP_STOPPING,
	/* A frame that breaks the wire protocol was dropped: reason, and topic as far as it is one.
	 * The stream goes on with the next good frame, which tells the gap. */
	CORETAP_MALFORMED,
	/* What coretap_since asks for could not be had: node, reason. The stream begins with what
	 * comes next. */
	CORETAP_NO_REPLAY,

	/* The bridge's own account, once a second from each socket: node, run, time_us, n, and as
	 * fields everything in it. Only for those who subscribe to "bridge.status". */
	CORETAP_STATUS
};

/* What a field is in one event. */
enum coretap_state {
	CORETAP_NIL = 0, /* the node passed it, but it could not be read: unknown, not zero */
	CORETAP_SET = 1
};

enum coretap_counter {
	CORETAP_COUNT_MESSAGES,	  /* well-formed event messages that were taken */
	CORETAP_COUNT_EVENTS,	  /* events returned */
	CORETAP_COUNT_GAP,	  /* firings missing through gaps */
	CORETAP_COUNT_LOST,	  /* firings that the bridge told as lost */
	CORETAP_COUNT_DUPLICATES, /* messages dropped because they had come before */
	CORETAP_COUNT_OLD_RUN,	  /* messages dropped because their run had ended */
	CORETAP_COUNT_MALFORMED,  /* messages dropped because they break the protocol */
	CORETAP_COUNT_REPLAYED	  /* events that replay brought */
};

/* Version of the library, "1.2.3". */
CORETAP_EXPORT const char *coretap_version(void);

/* Words for a negative value that one of these functions returned; never NULL. */
CORETAP_EXPORT const char *coretap_strerror(int error);

/* Opens a handle for the coretapd at an address; nothing is connected yet.
 *
 *	tcp://HOST:PORT             PORT is the base port, as coretapd --port has it:
 *	                            low-frequency topics there, high-frequency ones at PORT + 1,
 *	                            replay at PORT + 2
 *	ipc:///run/coretap/NAME     the directory that holds low.sock, high.sock and replay.sock
 *
 * NULL stands for CORETAP_DEFAULT_ADDRESS. The caller closes *tap with coretap_close.
 * Errors: -EINVAL (not an address), -ENAMETOOLONG, -ENOMEM, -EMFILE. */
CORETAP_EXPORT int coretap_open(const char *address, struct coretap **tap);

/* Releases everything, events and texts included. NULL is allowed. */
CORETAP_EXPORT void coretap_close(struct coretap *tap);

/* Bounds the memory of messages that wait in this process because the application is slow, in bytes
 * for each socket; default 256 MiB. Libzmq counts messages, so the bound is one message for each 16
 * KiB (only a single event that is larger exceeds them: a payload, the list of a huge block). What
 * does not fit waits at the publisher, and what does not fit there is dropped and told as a gap. 0
 * takes the bound away. Before the first coretap_subscribe, else -EBUSY. */
CORETAP_EXPORT int coretap_set_memory(struct coretap *tap, uint64_t bytes);

/* Whether gaps are filled from replay: 1, the default, or 0. Before the first coretap_subscribe,
 * else -EBUSY. */
CORETAP_EXPORT int coretap_set_replay(struct coretap *tap, int on);

/* Encrypts tcp connections with CURVE, for a coretapd that has --curve-secret: server_key is its
 * public key, secret_key this client's own, each 40 characters of Z85 as `coretap keygen` makes
 * them. The public key that belongs to secret_key must be in coretapd's --curve-clients: who is
 * refused hears nothing (CORETAP_STALE). Ipc is left as it is. Before the first coretap_subscribe,
 * else -EBUSY; -EKEYREJECTED: not a key; -ENOTSUP: this libzmq has no CURVE. */
CORETAP_EXPORT int coretap_set_curve(struct coretap *tap, const char *server_key,
				     const char *secret_key);

/* Asks for events, and connects the socket that has them if it is not connected yet. topic is
 *
 *	"mempool.removed"   one topic
 *	"mempool."          all topics that begin so (it ends with a dot)
 *	""                  everything that this coretapd publishes
 *	"bridge.status"     CORETAP_STATUS events too (they are watched in any case)
 *
 * Order holds among all topics of a socket. So that it does when something was fetched from replay,
 * the low socket is received whole when several of its topics are asked for, and the rest passed
 * over. Of the high socket only what is asked for is received: with several topics there, but not
 * "", what one of them missed may come after later events of another.
 *
 * A topic that the library does not know is asked for on both sockets: coretapd can be given more
 * tracepoints than the built-in ones. What exists but is not published (--only, --exclude) stays
 * silent. Call it as often as needed before the first coretap_next or coretap_fd.
 * Errors: -EINVAL (not a topic), -EBUSY (too late), -ENOMEM, -EMFILE. */
CORETAP_EXPORT int coretap_subscribe(struct coretap *tap, const char *topic);

/* Where to begin, instead of with what happens next: with everything that replay still has from a
 * time on (Unix microseconds, 0 = the oldest), and then go on. Order holds in each socket. Before
 * the first coretap_next, else -EBUSY. */
CORETAP_EXPORT int coretap_since(struct coretap *tap, uint64_t time_us);

/* Keeps the place in a file, and begins where the file says: with everything after the last event
 * that was taken. A file that does not exist yet is made; then coretap_since holds, if given.
 *
 * An event counts as taken with the next call of coretap_next. The file is written when nothing
 * more is at hand, and at least every 100 ms; a process that is killed in between gets up to that
 * much again. Who needs more calls coretap_commit after each event or batch that is safe, and once
 * before the first coretap_next: from then on only coretap_commit writes the file (but for the
 * place where a new one begins), and nothing is missed, whenever the process is killed; nothing
 * comes twice if taking events and coretap_commit cannot be divided, and else at most what came
 * since the last one.
 *
 * Several processes need a file each. Before the first coretap_next, else -EBUSY; -EINVAL (an empty
 * path), -ENOMEM, -ENAMETOOLONG. A file that is no position is told by the first coretap_next:
 * -EBADMSG. */
CORETAP_EXPORT int coretap_set_position(struct coretap *tap, const char *path);

/* Writes the position now, the last event returned included. Returns 0 or -errno of the file. Not
 * synced to the disk: it outlives this process and coretapd's journal, which does not outlive a
 * reboot. */
CORETAP_EXPORT int coretap_commit(struct coretap *tap);

/* Gets the next event or notice, waiting up to timeout_ms (0: not at all, -1: for ever).
 * Returns 1 with *event set, which lives until the next call with this handle; 0 when nothing came
 * in time; -EINTR when a signal arrived, call again; -EINVAL when nothing was subscribed to;
 * -ENOMEM; errors of the position's file. Connections are made and repaired in the background: a
 * publisher that is not there is no error, it is told as CORETAP_STALE. But only inside this
 * function is silence noticed, and are subscriptions renewed after the publisher was away: do not
 * stay out of it for long. */
CORETAP_EXPORT int coretap_next(struct coretap *tap, const struct coretap_event **event,
				int timeout_ms);

/* A file descriptor for poll, epoll or an event loop, readable when something may have come; or
 * -errno. It stays the handle's. It tells of arrivals only once: when it is readable, and once
 * before the first poll, call coretap_next with timeout 0 until it returns 0. Call it at least once
 * a second too, if CORETAP_STALE matters. */
CORETAP_EXPORT int coretap_fd(struct coretap *tap);

CORETAP_EXPORT uint64_t coretap_count(const struct coretap *tap, enum coretap_counter which);

/* The parts of an event or notice. What a kind does not have (see enum coretap_kind) is 0 or "".
 * Texts are NUL-terminated, of printable ASCII, and live as long as the event. */
CORETAP_EXPORT enum coretap_kind coretap_event_kind(const struct coretap_event *event);
CORETAP_EXPORT const char *coretap_event_socket(const struct coretap_event *event); /* low, high */
CORETAP_EXPORT const char *coretap_event_topic(const struct coretap_event *event);
CORETAP_EXPORT const char *coretap_event_node(const struct coretap_event *event);
CORETAP_EXPORT const char *coretap_event_reason(const struct coretap_event *event);
CORETAP_EXPORT uint64_t coretap_event_run(const struct coretap_event *event);
CORETAP_EXPORT uint64_t coretap_event_old_run(const struct coretap_event *event);
CORETAP_EXPORT uint64_t coretap_event_seq(const struct coretap_event *event);
CORETAP_EXPORT uint64_t coretap_event_n(const struct coretap_event *event);
CORETAP_EXPORT uint64_t coretap_event_pid(const struct coretap_event *event);
CORETAP_EXPORT uint64_t coretap_event_time_us(const struct coretap_event *event);
CORETAP_EXPORT uint64_t coretap_event_first(const struct coretap_event *event);
CORETAP_EXPORT uint64_t coretap_event_last(const struct coretap_event *event);

/* Fields by name. "conflicts.txids" is the field txids of the map conflicts.
 * Return CORETAP_SET with the value; CORETAP_NIL; -ENOENT when the event has no such field;
 * -EPROTOTYPE when it has another type; -ERANGE when the number does not fit. The value is touched
 * only when set. Asking in the order in which the fields are documented is fastest. Bytes and texts
 * live as long as the event. A text is valid UTF-8, not NUL-terminated, and may be anything a peer
 * cares to send. */
CORETAP_EXPORT int coretap_get_uint(const struct coretap_event *event, const char *field,
				    uint64_t *value);
CORETAP_EXPORT int coretap_get_int(const struct coretap_event *event, const char *field,
				   int64_t *value);
CORETAP_EXPORT int coretap_get_bool(const struct coretap_event *event, const char *field,
				    int *value);
CORETAP_EXPORT int coretap_get_text(const struct coretap_event *event, const char *field,
				    const char **text, size_t *length);
CORETAP_EXPORT int coretap_get_bytes(const struct coretap_event *event, const char *field,
				     const unsigned char **bytes, size_t *length);
/* 32 bytes in the order in which RPC prints them: their hex is the txid or block hash. */
CORETAP_EXPORT int coretap_get_hash(const struct coretap_event *event, const char *field,
				    const unsigned char **hash);

/* A place in an array: coretap_get_array puts it before the first element. It can be copied, and
 * lives as long as the event. Read `left`, the number of elements not taken yet; the rest is
 * internal. */
struct coretap_array {
	const unsigned char *position;
	uint32_t left;
};

CORETAP_EXPORT int coretap_get_array(const struct coretap_event *event, const char *field,
				     struct coretap_array *array);

/* Takes the next element. Returns as the functions above do; -ENOENT is the end. An element of
 * another type is passed over. */
CORETAP_EXPORT int coretap_array_uint(struct coretap_array *array, uint64_t *value);
CORETAP_EXPORT int coretap_array_int(struct coretap_array *array, int64_t *value);
CORETAP_EXPORT int coretap_array_text(struct coretap_array *array, const char **text,
				      size_t *length);
CORETAP_EXPORT int coretap_array_hash(struct coretap_array *array, const unsigned char **hash);

/* Writes 64 lowercase hex digits and a NUL. */
CORETAP_EXPORT void coretap_hash_hex(const unsigned char hash[32], char hex[65]);

/* The event as one flat JSON object, without a newline: topic, node, run, seq, n, pid, time_us,
 * then the fields; bytes as lowercase hex, nil as null, integers exact. A notice is an object with
 * the key "notice". Control characters are escaped, a terminal can show it. *length (may be NULL)
 * gets the length of the NUL-terminated text, which lives until the next call with this event or
 * its handle. NULL when memory is lacking. */
CORETAP_EXPORT const char *coretap_event_json(const struct coretap_event *event, size_t *length);

#ifdef __cplusplus
}
#endif

#endif
