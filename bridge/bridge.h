/* The pipeline: rings -> events -> messages -> journal -> sockets. One thread, one loop.
 *
 * bridge.c opens, loops and closes; intake.c turns records into events; follow.c keeps the right
 * executable attached; state.c saves and restores what a successor needs; status.c and replay.c
 * tell subscribers about it all. */
#ifndef CORETAP_BRIDGE_H
#define CORETAP_BRIDGE_H

#include "binary.h"
#include "evictions.h"
#include "journal.h"
#include "node.h"
#include "options.h"
#include "privilege.h"
#include "ring.h"
#include "stream.h"
#include "tracer.h"

struct access;
struct counters;
struct metrics;
struct replay;
struct saved_state;

struct bridge {
	const struct options *options;
	char label[33];
	char directory[128]; /* /run/coretap/LABEL */
	uint64_t run;
	struct node node;
	struct binary binaries[MAX_GROUPS];
	unsigned int current; /* the one that runs next; the other one may still be running */
	int names; /* inotify on the directories where the executable's name stands; -1 = none */
	dev_t named_dev; /* the file that --binary led to when it was last looked at */
	ino_t named_ino;
	struct tracepoints tps;
	unsigned int evictions_topic, started_topic, exited_topic, removed_topic;
	uint8_t kinds[MAX_PROBES]; /* enum eviction_kind of each event */
	struct tracer *tracer;
	struct ring rings[N_SOCKETS];
	struct stream streams[N_SOCKETS];
	struct evictions evictions;
	struct journal *journal;
	bool directory_gone; /* and that was said */
	bool journal_halved, journal_failed;
	struct saved_state *saved; /* what the next transaction writes; state.c's */
	struct publisher_options endpoints;
	char default_endpoints[N_ENDPOINTS][2][192];
	struct publisher *publisher;
	struct replay *replay;
	struct access *access;	   /* until the publisher has it */
	struct counters *counters; /* NULL: nobody asked for metrics */
	struct metrics *metrics;
	bool metrics_due;	      /* it has something to do */
	struct user user;	      /* to become once everything is open */
	bool ready;		      /* the service manager was told */
	pid_t notified;		      /* the node that it was told of */
	uint64_t skipped[MAX_PROBES]; /* firings of processes that are not the node */
	uint64_t clock_offset_ns;     /* of record.time_ns from Unix time */
	uint64_t next_status_ns, settled_ns;
	int lock, epoll, signals;
	uint64_t attached_us; /* when the node that ran was attached */
	bool resumed;	      /* took over from an earlier process */
	bool node_exited;     /* to be told once the rings are drained */
	bool node_ended;      /* was told: follow_ended is due */
	bool stopping;
};

/* Finds the node, binds the sockets, loads and attaches, or takes over what an earlier process left
 * attached. Returns 0 or an exit_code; the reason was said in the log. */
int bridge_open(struct bridge *bridge, const struct options *options);

/* Runs until SIGTERM or SIGINT, or until the one process that was asked for is gone. */
void bridge_run(struct bridge *bridge);

/* Tells what is left, detaches (unless --keep-attached), says goodbye to subscribers. */
void bridge_close(struct bridge *bridge);

uint64_t clock_ns(clockid_t clock);
uint64_t now_us(void);

/* Name of a topic number (arg is a struct bridge). It lives as long as the catalogue. */
const char *bridge_topic(const void *arg, unsigned int topic);

/* Lets the loop wake when fd is readable. Returns 0 or -errno, said in the log; fd -1 is fine, and
 * any other negative one is an error. */
int bridge_watch(struct bridge *bridge, int fd);

/* Reads and delivers everything that was submitted before the call; nothing is left open. False: a
 * record is being written and does not get done. */
bool bridge_drain(struct bridge *bridge);

/* ---- follow.c ---- */

/* Binds the tracepoints to the current binary. Returns 0 or an exit_code, said in the log. */
int follow_bind(struct bridge *bridge);

/* Whether it is not known yet what --pid-file or --datadir names: attaching now would be to every
 * process of the binary. */
bool follow_waits(const struct bridge *bridge);

/* Attaches the current binary, lets a successor know, opens the gate, watches the file and its
 * name. Returns 0 or an exit_code, said in the log. */
int follow_attach(struct bridge *bridge);

/* Only watches: what is attached was taken over. */
void follow_watch(struct bridge *bridge);

/* Something happened to a file or its name, or (fd -1) a lease is being broken. */
void follow_changed(struct bridge *bridge, int fd);

/* Once in a while: looks for the node when none runs. */
void follow_tick(struct bridge *bridge);

/* A process of the node is gone and told: an executable that was replaced meanwhile is let go. */
void follow_ended(struct bridge *bridge);

/* ---- intake.c ---- */

/* Reads at most max records of one ring into the streams. Returns how many; *drained: nothing was
 * left, not even a record that is still being written. */
unsigned int intake_read(struct bridge *bridge, enum socket_id socket, unsigned int max,
			 bool *drained);

/* The node's process, told in the low stream. */
void intake_node_started(struct bridge *bridge, uint64_t time_us);
void intake_node_ended(struct bridge *bridge, uint64_t time_us, uint64_t low_lost);

/* The open list of evictions, as it is. */
void intake_evictions(struct bridge *bridge, bool complete, bool final);

/* ---- state.c ---- */

/* Writes the finished messages of both streams and what a successor needs in one transaction. A
 * journal that fails is given up: publishing goes on without. */
void state_save(struct bridge *bridge);

/* A journal that cannot be written, or read, is worth nothing from then on, and status says so. */
void state_give_up(struct bridge *bridge, int err);

/* Takes over the rings and the numbering of an earlier process with this label: bridge.resumed when
 * everything matched. Otherwise nothing of it is attached any more and a new run begins. Returns 0,
 * or an exit code when that process still runs, said in the log. */
int state_resume(struct bridge *bridge);

/* Ends the run that the journal's state speaks of. Returns 0 or -ENOMEM, said in the log. */
int state_end_run(struct bridge *bridge);

/* msgpack map of topics to the last number accounted for, as journal_run wants it. */
void state_pack_heads(const struct bridge *bridge, msgpack_sbuffer *out);

/* ---- status.c ---- */

/* Sends bridge.status or bridge.stopping on both sockets. */
void status_send(struct bridge *bridge, const char *topic);

/* The account of a socket's topics; out has room for MAX_PROBES. Returns their number. */
size_t status_topics(const struct bridge *bridge, enum socket_id socket, struct topic_status *out);

/* First position that replay has; one past the last when it has none. Returns 0, or -errno for a
 * journal that cannot be read. */
int status_held(const struct bridge *bridge, enum socket_id socket, uint64_t *held);

/* "ok", "degraded" or "off". */
const char *status_replay(const struct bridge *bridge);

#endif
