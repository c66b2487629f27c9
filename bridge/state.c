/* What a successor needs to go on where this process stops: saved with each drain's messages, in
 * the same transaction, and compared in every point before it is used. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bridge.h"
#include "log.h"

#define STATE_VERSION 2

struct saved_stream {
	uint64_t next_n, last_n;
	uint32_t notices, unused;
};

struct saved_state {
	uint32_t version, size;
	/* what must match */
	struct tracer_identity tracer;
	struct binary_identity binary;
	uint32_t group;	    /* of the binary */
	uint32_t other;	    /* another binary was attached too, which nothing here describes */
	uint32_t fixed;	    /* an option named the process: the kernel records no other one */
	uint32_t told;	    /* that the process has started */
	uint64_t catalogue; /* fingerprint of topics and selection: what the numbers below stand for
			     */
	char label[40];
	/* what goes on */
	uint64_t run;
	uint64_t ring_position[N_SOCKETS];
	struct saved_stream streams[N_SOCKETS];
	uint64_t next_seq[MAX_PROBES];
	uint64_t told_lost[MAX_PROBES];
	uint64_t skipped[MAX_PROBES];
	struct process process;
	uint32_t ignored[NODE_MAX_IGNORED];
	uint64_t n_ignored;
	struct evictions_state evictions;
};

static uint64_t fingerprint_add(uint64_t hash, const void *data, size_t len)
{
	const uint8_t *bytes = data;

	for (size_t i = 0; i < len; i++)
		hash = (hash ^ bytes[i]) * 1099511628211ULL;
	return hash;
}

/* Where the values of a declared event come from; what the catalogue says of it is added by the
 * caller. */
static uint64_t declaration_add(uint64_t hash, const struct declaration *d)
{
	hash = fingerprint_add(hash, d->event.provider, strlen(d->event.provider) + 1);
	hash = fingerprint_add(hash, d->event.name, strlen(d->event.name) + 1);
	hash = fingerprint_add(hash, &d->event.socket, sizeof(d->event.socket));
	hash = fingerprint_add(hash, d->operand, sizeof(d->operand));
	hash = fingerprint_add(hash, d->operands, sizeof(d->operands));
	hash = fingerprint_add(hash, &d->payload_limit, sizeof(d->payload_limit));
	if (d->debug)
		hash = fingerprint_add(hash, d->debug, strlen(d->debug) + 1);
	for (unsigned int f = 0; f < d->event.n_fields; f++) {
		hash = fingerprint_add(hash, &d->fields[f].type, sizeof(d->fields[f].type));
		hash = fingerprint_add(hash, d->fields[f].unit, strlen(d->fields[f].unit) + 1);
	}
	return hash;
}

/* Everything that gives topic numbers and record fields their meaning, and what the kernel was
 * told. */
static uint64_t catalogue_fingerprint(const struct bridge *b)
{
	const struct options *o = b->options;
	uint64_t hash = 14695981039346656037ULL;

	hash = fingerprint_add(hash, o->rules, o->n_rules * sizeof(o->rules[0]));
	hash = fingerprint_add(hash, &o->payload_limit, sizeof(o->payload_limit));
	hash = fingerprint_add(hash, o->ring_bytes, sizeof(o->ring_bytes));
	hash = fingerprint_add(hash, &o->without, sizeof(o->without));
	for (size_t i = 0; i < b->tps.n; i++) {
		const struct tracepoint *tp = &b->tps.table[i];
		uint8_t flags = (uint8_t)(tp->selected | tp->wanted << 1);

		hash = fingerprint_add(hash, tp->event->topic, strlen(tp->event->topic) + 1);
		hash = fingerprint_add(hash, &flags, 1);
		hash = fingerprint_add(hash, tp->offset, sizeof(tp->offset));
		for (unsigned int f = 0; f < tp->event->n_fields; f++)
			hash = fingerprint_add(hash, tp->event->fields[f].name,
					       strlen(tp->event->fields[f].name) + 1);
		if (tp->declared)
			hash = declaration_add(hash, tp->declared);
	}
	return hash;
}

static void state_identify(const struct bridge *b, struct saved_state *s)
{
	s->version = STATE_VERSION;
	s->size = sizeof(*s);
	tracer_identify(b->tracer, &s->tracer);
	s->binary = b->binaries[b->current].identity;
	s->catalogue = catalogue_fingerprint(b);
	memcpy(s->label, b->label, sizeof(b->label));
}

static void state_fill(const struct bridge *b, struct saved_state *s)
{
	s->group = b->current;
	s->fixed = b->node.fixed;
	s->told = b->node.told;
	s->other = tracer_attached(b->tracer, !b->current);
	s->run = b->run;
	for (enum socket_id id = 0; id < N_SOCKETS; id++) {
		const struct stream *stream = &b->streams[id];

		s->ring_position[id] = b->rings[id].position;
		s->streams[id] =
			(struct saved_stream){ stream->next_n, stream->last_n, stream->notices, 0 };
	}
	for (size_t i = 0; i < b->tps.n; i++) {
		const struct stream *stream = &b->streams[b->tps.table[i].event->socket];

		s->next_seq[i] = stream->next_seq[i];
		s->told_lost[i] = stream->told_lost[i];
		s->skipped[i] = b->skipped[i];
	}
	s->process = b->node.process;
	memcpy(s->ignored, b->node.ignored, sizeof(s->ignored));
	s->n_ignored = b->node.n_ignored;
	s->evictions = b->evictions.state;
}

void state_give_up(struct bridge *b, int err)
{
	log_error("journal: %s: given up, so nothing can be replayed from here on; restart "
		  "coretapd%s",
		  strerror(-err), err == -ENOSPC ? " when there is room" : " for a new one");
	journal_discard(b->journal);
	b->journal = NULL;
	b->journal_failed = true;
}

void state_save(struct bridge *b)
{
	struct journal_entry entry = {
		.run = b->run,
		.streams = { &b->streams[SOCKET_LOW], &b->streams[SOCKET_HIGH] },
		.topic = bridge_topic,
		.arg = b,
		.state_size = sizeof(*b->saved),
		.evictions = b->options->keep_attached ? &b->evictions : NULL,
	};
	int err;

	if (!b->journal)
		return;
	if (!b->saved)
		b->saved = calloc(1, sizeof(*b->saved));
	if (!b->saved)
		log_out_of_memory();
	entry.state = b->saved;
	/* Asking the kernel for identities is not cheap, and they seldom change. */
	/* Without memory there was no return: cppcheck does not know. */
	/* cppcheck-suppress nullPointerRedundantCheck */
	if (b->saved->run != b->run ||
	    memcmp(&b->saved->binary, &b->binaries[b->current].identity, sizeof(b->saved->binary)))
		state_identify(b, b->saved);
	state_fill(b, b->saved);
	err = journal_write(b->journal, &entry);
	if (err)
		state_give_up(b, err);
}

static void tell_new_run(const struct bridge *b, const char *why)
{
	log_warning("%s: cannot go on where the last coretapd stopped: %s: a new run begins",
		    b->label, why);
}

static bool state_matches(const struct bridge *b, const struct saved_state *s)
{
	struct saved_state mine = { 0 };
	const char *why = NULL;

	state_identify(b, &mine);
	if (s->version != mine.version || s->size != mine.size)
		why = "another version of coretapd made the journal";
	/* The user that coretapd becomes may write it, and this is still root. */
	else if (s->group >= MAX_GROUPS || s->n_ignored > NODE_MAX_IGNORED)
		why = "the journal is damaged";
	else if (memcmp(&s->tracer, &mine.tracer, sizeof(mine.tracer)))
		why = "the journal belongs to other rings or another version of the program";
	else if (memcmp(&s->binary, &mine.binary, sizeof(mine.binary)))
		why = "the binary is another one now";
	else if (s->fixed != b->node.fixed ||
		 (s->fixed && !process_same(&s->process, &b->node.process)))
		why = "another process is named now";
	/* The kernel knows of one that was attached and never got as far as the journal. */
	else if (s->other || tracer_attached(b->tracer, !s->group))
		why = "two binaries were attached";
	else if (s->catalogue != mine.catalogue)
		why = "other events, payloads, ring sizes or features are asked for now";
	else if (strcmp(s->label, mine.label))
		why = "the journal has another label";
	for (enum socket_id id = 0; id < N_SOCKETS && !why; id++)
		/* The kernel's position runs behind the journal's: messages are committed first. */
		if (b->rings[id].position > s->ring_position[id] ||
		    s->ring_position[id] > ring_produced(&b->rings[id]))
			why = "the journal does not reach to where the ring was read";
	if (why)
		tell_new_run(b, why);
	return !why;
}

static void state_take(struct bridge *b, const struct saved_state *s)
{
	b->run = s->run;
	b->node.group = s->group;
	for (enum socket_id id = 0; id < N_SOCKETS; id++) {
		struct stream *stream = &b->streams[id];

		b->rings[id].position = s->ring_position[id];
		stream->run = s->run;
		stream->next_n = s->streams[id].next_n;
		stream->last_n = s->streams[id].last_n;
		stream->notices = s->streams[id].notices;
	}
	for (size_t i = 0; i < b->tps.n; i++) {
		struct stream *stream = &b->streams[b->tps.table[i].event->socket];

		stream->next_seq[i] = s->next_seq[i];
		stream->told_lost[i] = s->told_lost[i];
		b->skipped[i] = s->skipped[i];
	}
	memcpy(b->node.ignored, s->ignored, sizeof(s->ignored));
	b->node.n_ignored = s->n_ignored;
	if (s->process.pid && !node_take_over(&b->node, &s->process))
		b->node_exited = true;
	b->node.told = s->told;
	if (!s->process.pid)
		node_gone(&b->node);
}

static int rings_open(struct bridge *b)
{
	for (enum socket_id id = 0; id < N_SOCKETS; id++) {
		int fd = tracer_ring_fd(b->tracer, id);
		int err = ring_open(&b->rings[id], fd, tracer_ring_bytes(b->tracer, id));

		if (err)
			return err;
	}
	return 0;
}

static void rings_close(struct bridge *b)
{
	for (enum socket_id id = 0; id < N_SOCKETS; id++)
		ring_close(&b->rings[id]);
}

/* The binary that was opened as the first one is known to the kernel as another group. */
static int group_move(struct bridge *b, unsigned int group)
{
	if (group == b->current)
		return 0;
	b->binaries[group] = b->binaries[b->current];
	b->binaries[b->current].fd = b->binaries[b->current].inotify = -1;
	memset(&b->binaries[b->current].probes, 0, sizeof(struct probes));
	b->current = b->node.group = group;
	return follow_bind(b);
}

int state_resume(struct bridge *b)
{
	int err = tracer_resume(&b->tracer, b->label);
	struct saved_state *s;
	bool resumed = false;

	if (err == -ENOENT)
		return 0;
	if (err == -EBUSY)
		return EXIT_ADDRESS;
	if (err) {
		log_warning("%s: what an earlier coretapd left attached is not whole: detached",
			    b->label);
		err = tracer_unpin(b->label);
		if (err == -EBUSY)
			return EXIT_ADDRESS;
		if (err < 0)
			log_error("%s/%s: cannot be removed: %s", TRACER_PIN_ROOT, b->label,
				  strerror(-err));
		return 0;
	}
	s = calloc(1, sizeof(*s));
	if (!b->options->keep_attached) {
		log_info("%s: an earlier coretapd was left attached; without --keep-attached it "
			 "ends here",
			 b->label);
	} else if (!s || !b->journal || journal_state(b->journal, s, sizeof(*s))) {
		tell_new_run(b, "the journal has nothing of it");
	} else {
		err = rings_open(b);
		if (!err && state_matches(b, s) && !group_move(b, s->group)) {
			evictions_restore(&b->evictions, &s->evictions);
			err = journal_restore(b->journal, &b->evictions);
			resumed = !err;
		}
		if (resumed)
			state_take(b, s);
		if (err)
			tell_new_run(b, strerror(-err));
	}
	if (!resumed) {
		evictions_free(&b->evictions);
		evictions_init(&b->evictions, b->options->keep_attached);
		rings_close(b);
		tracer_detach(b->tracer);
		tracer_close(b->tracer);
		b->tracer = NULL;
	}
	free(s);
	b->resumed = resumed;
	return 0;
}

static void pack_heads(msgpack_sbuffer *out, const struct bridge *b, const uint64_t *next_seq)
{
	msgpack_packer pk;
	unsigned int n = 0;

	msgpack_packer_init(&pk, out, encode_write);
	for (size_t i = 0; i < b->tps.n; i++)
		n += next_seq[i] > 1;
	msgpack_pack_map(&pk, n);
	for (size_t i = 0; i < b->tps.n; i++) {
		const char *topic = b->tps.table[i].event->topic;

		if (next_seq[i] <= 1)
			continue;
		msgpack_pack_str_with_body(&pk, topic, strlen(topic));
		msgpack_pack_uint64(&pk, next_seq[i] - 1);
	}
}

void state_pack_heads(const struct bridge *b, msgpack_sbuffer *out)
{
	uint64_t next_seq[MAX_PROBES];

	for (size_t i = 0; i < b->tps.n; i++) {
		const struct stream *s = &b->streams[b->tps.table[i].event->socket];

		next_seq[i] = s->next_seq[i];
		if (s->is_open && s->open_topic == i)
			next_seq[i] -= s->open_events;
	}
	pack_heads(out, b, next_seq);
}

int state_end_run(struct bridge *b)
{
	struct saved_state *s;
	msgpack_sbuffer heads;
	int err;

	if (!b->journal)
		return 0;
	s = calloc(1, sizeof(*s));
	if (!s)
		return log_no_memory();
	err = journal_state(b->journal, s, sizeof(*s));
	if (!err && s->version == STATE_VERSION) {
		msgpack_sbuffer_init(&heads);
		/* Numbers of another catalogue would stand for other topics. */
		if (s->catalogue == catalogue_fingerprint(b))
			pack_heads(&heads, b, s->next_seq);
		if (!encode_whole(&heads))
			log_out_of_memory();
		err = journal_run(b->journal, s->run, heads.data ? heads.data : "\x80",
				  heads.data ? heads.size : 1);
		msgpack_sbuffer_destroy(&heads);
	}
	if (err && err != -ENOENT)
		log_warning("journal: how the last run ended is not known: %s", strerror(-err));
	free(s);
	return 0;
}
