/* journal.c: what is appended is read back byte by byte, within bounds, across opening and closing.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../bridge/journal.h"
#include "check.h"

#define MIB ((size_t)1 << 20)

static char directory[64];

struct state {
	uint64_t number;
	char rest[40000]; /* as coretapd's */
};

/* Two streams with one topic each, and a state that counts the transactions. */
struct writer {
	struct stream streams[N_SOCKETS];
	struct evictions evictions;
	struct state state;
	struct journal *journal;
	uint64_t time_us;
};

static const struct field_desc text_field[] = { { .name = "text", .type = TYPE_TEXT } };
static const struct event_desc event = { .topic = "a.b", .fields = text_field, .n_fields = 1 };

static const char *topic_name(const void *arg, unsigned int topic)
{
	(void)arg;
	return topic ? "second.topic" : "first.topic";
}

static void remove_all(void)
{
	char command[96];

	snprintf(command, sizeof(command), "rm -rf %s", directory);
	assert(!system(command));
}

static struct journal *open_journal(size_t low, size_t high)
{
	const size_t bytes[N_SOCKETS] = { low, high };
	struct journal *journal = NULL;
	bool halved = true;
	int err = journal_open(&journal, directory, bytes, 80, &halved);

	CHECK(!err && !halved);
	if (err)
		exit(1);
	return journal;
}

static struct writer *writer_open(const char *name, uint64_t run, size_t low, size_t high)
{
	struct writer *w = calloc(1, sizeof(*w));

	assert(w);
	test_name = name;
	for (enum socket_id id = 0; id < N_SOCKETS; id++)
		assert(!stream_init(&w->streams[id], "label", run, 2));
	evictions_init(&w->evictions, true);
	w->journal = open_journal(low, high);
	w->time_us = 1000;
	return w;
}

static void writer_close(struct writer *w)
{
	for (enum socket_id id = 0; id < N_SOCKETS; id++)
		stream_free(&w->streams[id]);
	evictions_free(&w->evictions);
	journal_close(w->journal);
	free(w);
}

static void add(struct writer *w, enum socket_id id, unsigned int topic, size_t len)
{
	char *text = malloc(len);
	struct value value = { .state = VALUE_SET, .bytes = { text, len } };

	assert(text);
	memset(text, 'a' + (int)(w->streams[id].next_n % 26), len);
	stream_event(&w->streams[id], topic, &event, 5, 0, w->time_us++, &value);
	free(text);
}

static int commit_state(struct writer *w, size_t state_size)
{
	struct journal_entry entry = {
		.run = w->streams[SOCKET_LOW].run,
		.streams = { &w->streams[SOCKET_LOW], &w->streams[SOCKET_HIGH] },
		.topic = topic_name,
		.state = &w->state,
		.state_size = state_size,
		.evictions = &w->evictions,
	};
	int err;

	for (enum socket_id id = 0; id < N_SOCKETS; id++)
		stream_flush(&w->streams[id]);
	w->state.number++;
	err = journal_write(w->journal, &entry);
	for (enum socket_id id = 0; id < N_SOCKETS; id++)
		stream_clear(&w->streams[id]);
	return err;
}

static int commit(struct writer *w)
{
	return commit_state(w, sizeof(w->state));
}

/* ---- reading ---- */

struct reading {
	size_t messages, bytes, max;
	uint64_t first, next; /* positions */
	char topics[256];
	bool broken; /* positions do not follow one another */
};

static bool found(void *arg, const struct journal_message *m)
{
	struct reading *r = arg;

	if (!r->messages++)
		r->first = m->n;
	else
		r->broken |= m->n != r->next;
	r->next = m->n + m->events;
	r->bytes += m->len;
	if (strlen(r->topics) + 2 < sizeof(r->topics))
		strncat(r->topics, m->topic, 1);
	return !r->max || r->messages < r->max;
}

static struct reading read_from(struct writer *w, enum socket_id id, uint64_t run, uint64_t n)
{
	struct reading r = { 0 };

	CHECK(!journal_read(w->journal, id, run, n, found, &r));
	CHECK(!r.broken);
	return r;
}

static uint64_t first_of(struct writer *w, enum socket_id id, uint64_t run)
{
	uint64_t first = 0, last = 0;

	CHECK(!journal_bounds(w->journal, id, run, &first, &last));
	CHECK(last == w->streams[id].next_n - 1 || w->streams[id].run != run);
	return first;
}

static void test_append_and_read(void)
{
	struct writer *w = writer_open("append and read", 7, 4 * MIB, 4 * MIB);
	uint64_t first, last;
	struct reading r;

	CHECK(journal_bounds(w->journal, SOCKET_LOW, 7, &first, &last) == -ENOENT);
	add(w, SOCKET_LOW, 0, 3); /* 1 */
	add(w, SOCKET_LOW, 0, 3); /* 2 */
	add(w, SOCKET_LOW, 1, 3); /* 3 */
	stream_loss(&w->streams[SOCKET_LOW], 0, 5, 10);
	stream_loss(&w->streams[SOCKET_LOW], 1, 5, 10);
	add(w, SOCKET_LOW, 0, 20000); /* 4, overflow pages */
	add(w, SOCKET_HIGH, 1, 3);
	stream_flush(&w->streams[SOCKET_LOW]);
	CHECK(w->streams[SOCKET_LOW].n_messages == 5);
	CHECK(!commit(w));
	CHECK(first_of(w, SOCKET_LOW, 7) == 1 && first_of(w, SOCKET_HIGH, 7) == 1);

	r = read_from(w, SOCKET_LOW, 7, 1);
	CHECK(r.messages == 5 && r.first == 1 && r.next == 5 && !strcmp(r.topics, "fsfsf"));
	r = read_from(w, SOCKET_LOW, 7, 2); /* inside the first message */
	CHECK(r.messages == 5 && r.first == 1);
	r = read_from(w, SOCKET_LOW, 7, 3);
	CHECK(r.messages == 4 && r.first == 3);
	r = read_from(w, SOCKET_LOW, 7, 4); /* the notices at this position come with it */
	CHECK(r.messages == 3 && r.first == 4 && !strcmp(r.topics, "fsf"));
	r = read_from(w, SOCKET_LOW, 7, 5);
	CHECK(!r.messages);
	r = read_from(w, SOCKET_LOW, 7, UINT64_MAX);
	CHECK(!r.messages);
	r = read_from(w, SOCKET_LOW, 6, 1);
	CHECK(!r.messages);
	r = read_from(w, SOCKET_LOW, 8, 1);
	CHECK(!r.messages);
	r = read_from(w, SOCKET_HIGH, 7, 1);
	CHECK(r.messages == 1 && !strcmp(r.topics, "s"));
	r = (struct reading){ .max = 2 };
	CHECK(!journal_read(w->journal, SOCKET_LOW, 7, 1, found, &r));
	CHECK(r.messages == 2);

	/* A loss at the very end is held, though it has no position. */
	stream_loss(&w->streams[SOCKET_LOW], 0, 5, 11);
	CHECK(!commit(w));
	r = read_from(w, SOCKET_LOW, 7, 5);
	CHECK(r.messages == 1 && r.next == 5);
	writer_close(w);
	remove_all();
}

struct expectation {
	const char *data;
	size_t len;
	bool same;
};

static bool compare(void *arg, const struct journal_message *m)
{
	struct expectation *e = arg;

	e->same = m->len == e->len && !memcmp(m->body, e->data, e->len) && m->topic_len == 11 &&
		  !memcmp(m->topic, "first.topic", 11);
	return false;
}

static void test_bytes(void)
{
	struct writer *w = writer_open("byte by byte", 7, 8 * MIB, 4 * MIB);

	for (size_t len = 1; len < 3000000; len = len * 3 + 7) {
		struct stream *s = &w->streams[SOCKET_LOW];
		struct expectation e = { 0 };
		uint64_t n = s->next_n;

		add(w, SOCKET_LOW, 0, len);
		stream_flush(s);
		e.len = s->messages[0].len;
		e.data = memcpy(malloc(e.len), s->messages[0].data, e.len);
		CHECK(!commit(w));
		CHECK(!journal_read(w->journal, SOCKET_LOW, 7, n, compare, &e));
		CHECK(e.same);
		free((void *)e.data);
	}
	writer_close(w);
	remove_all();
}

static void test_bounds(void)
{
	struct writer *w = writer_open("bounds", 7, 4 * MIB, 2 * MIB);
	struct reading low, high;
	uint64_t first;

	for (int i = 0; i < 400; i++)
		add(w, SOCKET_LOW, (unsigned int)i % 2, 1000);
	CHECK(!commit(w));
	/* A flood in one does not age the other. */
	for (int turn = 0; turn < 300; turn++) {
		for (int i = 0; i < 100; i++)
			add(w, SOCKET_HIGH, (unsigned int)i % 2, 400);
		CHECK(!commit(w));
	}
	CHECK(first_of(w, SOCKET_LOW, 7) == 1);
	low = read_from(w, SOCKET_LOW, 7, 1);
	CHECK(low.next == 401);
	first = first_of(w, SOCKET_HIGH, 7);
	high = read_from(w, SOCKET_HIGH, 7, first);
	/* Oldest out first, and the room is used. */
	CHECK(first > 1 && high.first == first && high.next == 30001);
	CHECK(high.bytes < 2 * MIB && high.bytes > MIB / 2);
	for (int turn = 0; turn < 2000; turn++) {
		add(w, SOCKET_LOW, 0, 16000);
		CHECK(!commit(w));
	}
	first = first_of(w, SOCKET_LOW, 7);
	low = read_from(w, SOCKET_LOW, 7, first);
	CHECK(low.bytes < 4 * MIB && low.bytes > MIB && low.next == 2401);
	CHECK(first_of(w, SOCKET_HIGH, 7) == high.first);
	writer_close(w);
	remove_all();
}

/* Large lists among small messages leave the map without room in one piece. */
static void test_map_full(void)
{
	struct writer *w = writer_open("map full", 7, 2 * MIB, MIB);
	uint64_t first;

	srand(3);
	for (int turn = 0; turn < 1500; turn++) {
		for (int i = rand() % 30; i >= 0; i--)
			add(w, SOCKET_LOW, (unsigned int)i % 2, (size_t)(rand() % 900));
		if (turn % 3 == 0)
			add(w, SOCKET_LOW, 0, (size_t)(rand() % 400000));
		if (turn % 5 == 0)
			add(w, SOCKET_HIGH, 0, (size_t)(rand() % 200000));
		CHECK(!commit(w));
		if (failures)
			break;
		CHECK(read_from(w, SOCKET_LOW, 7, w->streams[SOCKET_LOW].next_n - 1).messages == 1);
	}
	first = first_of(w, SOCKET_LOW, 7);
	CHECK(read_from(w, SOCKET_LOW, 7, first).next == w->streams[SOCKET_LOW].next_n);
	writer_close(w);
	remove_all();
}

/* What stays of one socket stands between what goes of the other, until every page of the map was
 * used and those that are free do not follow each other: each transaction must find its room in
 * single pages, and nothing is dropped but for age. */
static void test_fragmented(void)
{
	const size_t size = 96 * MIB, filling = 2 * (size / 4096), rest = 30000;
	struct writer *w = writer_open("fragmented", 7, size, size);

	srand(1);
	for (size_t i = 0; i < filling + rest && !failures; i++) {
		enum socket_id id = i < filling ? (enum socket_id)(i & 1) : SOCKET_LOW;

		add(w, id, 0, i < filling ? 3000 : (size_t)(rand() % 30000));
		w->evictions.save_remembered = i % 7 == 0;
		CHECK(!commit(w));
		if (i % 1000 == 999) {
			if (i > filling)
				CHECK(w->streams[SOCKET_LOW].next_n - first_of(w, SOCKET_LOW, 7) >
				      4500);
			journal_close(w->journal);
			w->journal = open_journal(size, size);
		}
	}
	CHECK(w->streams[SOCKET_HIGH].next_n - first_of(w, SOCKET_HIGH, 7) > filling / 2 - 10000);
	writer_close(w);
	remove_all();
}

/* ---- whatever comes in whatever order ---- */

struct held {
	uint64_t n, events, sum;
	size_t len;
};

struct model {
	struct held messages[20000];
	size_t n, at; /* the next one that is to be read */
	bool same;
};

static uint64_t sum_of(const char *data, size_t len)
{
	uint64_t sum = 14695981039346656037ULL;

	for (size_t i = 0; i < len; i++)
		sum = (sum ^ (uint8_t)data[i]) * 1099511628211ULL;
	return sum;
}

static bool as_in_model(void *arg, const struct journal_message *m)
{
	struct model *model = arg;
	const struct held *held = &model->messages[model->at++];

	model->same &= model->at <= model->n && held->n == m->n && held->events == m->events &&
		       held->len == m->len && held->sum == sum_of(m->body, m->len);
	return model->same;
}

/* All that is held from position n on. */
static void compare_from(struct writer *w, struct model *model, uint64_t n)
{
	const struct held *messages = model->messages;

	model->at = 0;
	while (model->at < model->n && messages[model->at].n < n &&
	       messages[model->at].n + messages[model->at].events <= n)
		model->at++;
	model->same = true;
	CHECK(!journal_read(w->journal, SOCKET_LOW, 7, n, as_in_model, model));
	CHECK(model->same && model->at == model->n);
}

static void test_model(void)
{
	struct writer *w = writer_open("model", 7, 2 * MIB, MIB);
	struct model *model = calloc(1, sizeof(*model));
	struct stream *s = &w->streams[SOCKET_LOW];

	assert(model);
	srand(5);
	for (int turn = 0; turn < 1500 && !failures; turn++) {
		uint64_t first;

		for (int i = rand() % 12; i >= 0; i--) {
			/* A length in each octave, around the size of a page too. */
			add(w, SOCKET_LOW, (unsigned int)(rand() % 2),
			    1 + (size_t)rand() % ((size_t)1 << (rand() % 17)));
			if (rand() % 20 == 0)
				stream_loss(s, 0, 5, s->next_n);
		}
		stream_flush(s);
		for (size_t i = 0; i < s->n_messages; i++) {
			const struct message *m = &s->messages[i];

			assert(model->n < sizeof(model->messages) / sizeof(model->messages[0]));
			model->messages[model->n++] =
				(struct held){ m->n, m->events, sum_of(m->data, m->len), m->len };
		}
		CHECK(!commit(w));
		if (turn % 50 == 49) {
			journal_close(w->journal);
			w->journal = open_journal(2 * MIB, MIB);
		}
		first = first_of(w, SOCKET_LOW, 7);
		CHECK(turn < 300 || first > 1);
		compare_from(w, model, first + 1 + (uint64_t)rand() % (s->next_n - first));
		if (turn % 10 == 0)
			compare_from(w, model, first + 1);
	}
	free(model);
	writer_close(w);
	remove_all();
}

/* The same time is not twice in a stream here: message i is of time 1000 + i. */
static void test_since(void)
{
	struct writer *w = writer_open("since", 7, 4 * MIB, 4 * MIB);
	uint64_t run = 0, n = 0;

	CHECK(journal_since(w->journal, SOCKET_LOW, 0, &run, &n) == -ENOENT);
	for (int i = 0; i < 1000; i++) {
		add(w, SOCKET_LOW, 0, 3); /* position 1 + i, time 1000 + i */
		if (i % 2)
			CHECK(!commit(w));
		/* Losses have no time of their own; they must not lead the search astray. */
		if (i % 3 == 0)
			stream_loss(&w->streams[SOCKET_LOW], 0, 5, (uint64_t)i + 1);
		if (i % 5)
			CHECK(!commit(w));
	}
	CHECK(!commit(w));
	stream_loss(&w->streams[SOCKET_LOW], 0, 5, 5000); /* the last message is one */
	CHECK(!commit(w));
	for (uint64_t time = 990; time < 2000; time++) {
		uint64_t expected = time < 1000 ? 1 : time - 999;

		run = time % 2 ? 7 : 0;
		n = 0;
		CHECK(!journal_since(w->journal, SOCKET_LOW, time, &run, &n));
		CHECK(run == 7);
		/* A few messages more are no harm, one less is. */
		CHECK(n <= expected && n + 3 >= expected);
		if (failures)
			break;
	}
	run = 7;
	CHECK(journal_since(w->journal, SOCKET_LOW, 100000, &run, &n) == -ENOENT);
	run = 0;
	CHECK(journal_since(w->journal, SOCKET_LOW, 100000, &run, &n) == -ENOENT);
	CHECK(run == 0); /* nothing is claimed */
	writer_close(w);
	remove_all();
}

/* Clocks are set, and threads do not come in the order of their times: the answer leaves out
 * nothing that is late enough. */
static void test_since_a_clock_that_steps_back(void)
{
	struct writer *w = writer_open("a clock that steps back", 7, 4 * MIB, 4 * MIB);
	const uint64_t steps[] = { 40, 3000, 150, 20000, 290, 1 }; /* at message, so far */
	uint64_t times[300], run, n;

	for (uint64_t i = 0, back = 0; i < 300; i++) {
		for (size_t s = 0; s < 6; s += 2)
			back += i == steps[s] ? steps[s + 1] : 0;
		w->time_us = times[i] = 100000 + i * 100 - back;
		add(w, SOCKET_LOW, 0, 3);
		if (i % 5 == 0)
			CHECK(!commit(w));
		if (i % 100 == 99) {
			CHECK(!commit(w));
			journal_close(w->journal);
			w->journal = open_journal(4 * MIB, 4 * MIB);
		}
	}
	for (uint64_t time = 99000; time < 115000 && !failures; time += 50) {
		uint64_t first = 0;

		while (first < 300 && times[first] < time)
			first++;
		run = 7;
		n = 0;
		CHECK(journal_since(w->journal, SOCKET_LOW, time, &run, &n) ==
		      (first < 300 ? 0 : -ENOENT));
		/* All of a message, and nothing before it. */
		CHECK(first == 300 || (n <= first + 1 && n + 5 > first + 1));
	}
	/* What an earlier run's clock said is nothing to the next one. */
	for (enum socket_id id = 0; id < N_SOCKETS; id++)
		w->streams[id].run = 8;
	w->streams[SOCKET_LOW].next_n = 1;
	w->time_us = 5000;
	add(w, SOCKET_LOW, 0, 3);
	CHECK(!commit(w));
	run = 8;
	CHECK(journal_since(w->journal, SOCKET_LOW, 5001, &run, &n) == -ENOENT);
	CHECK(!journal_since(w->journal, SOCKET_LOW, 5000, &run, &n) && n == 1);
	writer_close(w);
	remove_all();
}

struct runs {
	size_t n;
	struct journal_run_info info[8];
	char heads[8][16];
};

static void run_found(void *arg, const struct journal_run_info *info)
{
	struct runs *runs = arg;

	assert(runs->n < 8);
	if (info->heads)
		memcpy(runs->heads[runs->n], info->heads,
		       info->heads_len < 16 ? info->heads_len : 16);
	runs->info[runs->n++] = *info;
}

static struct runs runs_of(struct writer *w)
{
	struct runs runs = { 0 };

	CHECK(!journal_runs(w->journal, run_found, &runs));
	return runs;
}

static void test_runs(void)
{
	struct writer *w = writer_open("runs", 100, 2 * MIB, 2 * MIB);
	char heads[20001];
	struct runs runs;
	uint64_t run = 0, n;

	CHECK(!runs_of(w).n && !journal_last_run(w->journal));
	for (int i = 0; i < 5; i++)
		add(w, SOCKET_LOW, 0, 100);
	CHECK(!commit(w));
	writer_close(w);

	w = writer_open("runs", 200, 2 * MIB, 2 * MIB);
	w->time_us = 5000;
	CHECK(journal_last_run(w->journal) == 100);
	CHECK(!journal_run(w->journal, 100, "heads", 6));
	add(w, SOCKET_HIGH, 0, 100);
	CHECK(!commit(w));
	runs = runs_of(w);
	CHECK(runs.n == 2 && runs.info[0].run == 100 && runs.info[1].run == 200);
	CHECK(!strcmp(runs.heads[0], "heads") && journal_last_run(w->journal) == 200);
	/* Longer than a page, and short again. */
	memset(heads, 'h', sizeof(heads));
	for (size_t len = sizeof(heads); len; len /= 3) {
		CHECK(!journal_run(w->journal, 100, heads, len));
		runs = runs_of(w);
		CHECK(runs.n == 2 && runs.info[0].heads_len == len);
		CHECK(!runs.info[1].heads_len);
		CHECK(runs.heads[0][0] == 'h' && runs.heads[0][(len < 16 ? len : 16) - 1] == 'h');
	}
	CHECK(runs.info[0].first[SOCKET_LOW] == 1 && runs.info[0].last[SOCKET_LOW] == 5);
	CHECK(!runs.info[0].first[SOCKET_HIGH] && !runs.info[0].last[SOCKET_HIGH]);
	CHECK(runs.info[1].first[SOCKET_HIGH] == 1 && runs.info[1].last[SOCKET_HIGH] == 1);
	/* The numbers of one run are not those of another. */
	CHECK(read_from(w, SOCKET_LOW, 100, 1).messages == 1);
	CHECK(!read_from(w, SOCKET_LOW, 100, 6).messages);
	CHECK(!read_from(w, SOCKET_LOW, 200, 1).messages);
	CHECK(!journal_since(w->journal, SOCKET_LOW, 0, &run, &n) && run == 100 && n == 1);
	run = 0;
	CHECK(journal_since(w->journal, SOCKET_LOW, 5000, &run, &n) == -ENOENT && run == 0);
	run = 0;
	CHECK(!journal_since(w->journal, SOCKET_HIGH, 0, &run, &n) && run == 200);
	for (int i = 0; i < 5; i++)
		add(w, SOCKET_LOW, 0, 100);
	CHECK(!commit(w));
	CHECK(read_from(w, SOCKET_LOW, 100, 5).next == 6);
	CHECK(read_from(w, SOCKET_LOW, 200, 1).messages == 1);
	CHECK(!read_from(w, SOCKET_LOW, 100, 6).messages); /* the next run's do not follow */

	/* The old run ages out with the new one's messages. */
	for (int turn = 0; turn < 300; turn++) {
		add(w, SOCKET_LOW, 0, 16000);
		CHECK(!commit(w));
	}
	runs = runs_of(w);
	CHECK(runs.n == 1 && runs.info[0].run == 200 && runs.info[0].first[SOCKET_LOW] > 1);
	writer_close(w);
	remove_all();
}

static void test_state(void)
{
	struct writer *w = writer_open("state", 7, 2 * MIB, 2 * MIB);
	struct evictions_entry entry = { .vsize = 1 };
	struct state state;
	char other[sizeof(state) + 8];

	CHECK(journal_state(w->journal, &state, sizeof(state)) == -ENOENT);
	for (int i = 1; i <= 50; i++) {
		memset(w->state.rest, i, sizeof(w->state.rest));
		add(w, SOCKET_LOW, 0, 100);
		CHECK(!commit(w));
		CHECK(!w->evictions.restart && !w->evictions.save_remembered);
	}
	CHECK(!journal_state(w->journal, &state, sizeof(state)));
	CHECK(state.number == 50 && state.rest[3999] == 50);
	CHECK(journal_state(w->journal, other, sizeof(other)) == -ENOENT);
	/* A shorter one takes the place of all of it. */
	CHECK(!commit_state(w, 5000));
	CHECK(journal_state(w->journal, &state, sizeof(state)) == -ENOENT);
	CHECK(!journal_state(w->journal, other, 5000) && !memcmp(other, &w->state, 5000));
	CHECK(!commit(w));
	writer_close(w);

	/* The successor finds it, and the list of evictions in order. */
	w = writer_open("state", 7, 2 * MIB, 2 * MIB);
	CHECK(!journal_state(w->journal, &w->state, sizeof(w->state)) && w->state.number == 52);
	w->streams[SOCKET_LOW].next_n = 51;
	w->streams[SOCKET_LOW].last_n = 50;
	w->evictions.unsaved = malloc(1000 * sizeof(entry));
	w->evictions.unsaved_capacity = 1000;
	assert(w->evictions.unsaved);
	for (uint64_t i = 0; i < 1000; i++) {
		entry.entry_time = i;
		entry.conflict = i % 7 == 0;
		w->evictions.unsaved[w->evictions.n_unsaved++] = entry;
		/* Where the journal finds how many went before. */
		if (entry.conflict)
			w->evictions.conflict.n++;
		else
			w->evictions.block.n++;
		/* One, then some, then more than a page of them. */
		if (i < 100 || (i < 300 && i % 10 == 0) || i == 999) {
			CHECK(!commit(w));
			CHECK(!w->evictions.n_unsaved);
		}
	}
	w->evictions.block.n = w->evictions.conflict.n = 0;
	writer_close(w);

	w = writer_open("state", 7, 2 * MIB, 2 * MIB);
	CHECK(!journal_restore(w->journal, &w->evictions));
	CHECK(w->evictions.block.n == 857 && w->evictions.conflict.n == 143);
	for (size_t i = 1; i < w->evictions.block.n; i++)
		CHECK(w->evictions.block.entry_times[i] > w->evictions.block.entry_times[i - 1]);
	writer_close(w);
	remove_all();
}

static void test_sizes(void)
{
	struct writer *w = writer_open("sizes", 7, 2 * MIB, 2 * MIB);
	const size_t bytes[N_SOCKETS] = { MIB, MIB };
	struct journal *other = NULL;
	uint64_t used, limit;
	char path[96];
	struct stat st;
	bool halved;

	add(w, SOCKET_LOW, 0, 100);
	CHECK(!commit(w));
	writer_close(w);
	w = writer_open("sizes", 7, 2 * MIB, 2 * MIB);
	CHECK(runs_of(w).n == 1);
	writer_close(w);
	/* Larger: what it holds stays, and every block of it exists. */
	w = writer_open("sizes", 8, 3 * MIB, 2 * MIB);
	CHECK(runs_of(w).n == 1);
	snprintf(path, sizeof(path), "%s/data.mdb", directory);
	CHECK(!stat(path, &st));
	CHECK((size_t)st.st_blocks * 512 >= 5 * MIB && st.st_size == 5 * (off_t)MIB);
	/* Nobody else may have it meanwhile. */
	CHECK(journal_open(&other, directory, bytes, 80, &halved) == -EBUSY && !other);
	for (int i = 0; i < 40; i++) {
		add(w, SOCKET_LOW, 0, 100000);
		CHECK(!commit(w));
	}
	writer_close(w);
	/* Smaller: the latest stay, within the new limits. */
	w = writer_open("sizes", 9, MIB, MIB);
	CHECK(runs_of(w).n == 1);
	journal_usage(w->journal, SOCKET_LOW, &used, &limit);
	CHECK(used && used <= limit && limit < MIB);
	writer_close(w);
	/* Torn: made anew. */
	CHECK(!truncate(path, 3 * 4096));
	w = writer_open("sizes", 7, MIB, MIB);
	CHECK(!runs_of(w).n);
	writer_close(w);
	remove_all();
}

/* ---- damage ---- */

static const char *data_path(void)
{
	static char path[96];

	snprintf(path, sizeof(path), "%s/data.mdb", directory);
	return path;
}

/* Sixty messages in each socket, small enough to stand beside their keys. */
static void fill(const char *name)
{
	struct writer *w = writer_open(name, 7, MIB, MIB);

	for (int i = 0; i < 60; i++) {
		w->time_us = 1001 + (uint64_t)i;
		add(w, SOCKET_LOW, 0, 1000);
		add(w, SOCKET_HIGH, 0, 1000);
		CHECK(!commit(w));
	}
	writer_close(w);
}

/* Changes in each page what damage() wants. */
static void damage_pages(size_t (*damage)(uint8_t *page))
{
	uint8_t page[4096];
	int fd = open(data_path(), O_RDWR);
	size_t changed = 0;

	assert(fd >= 0);
	for (off_t at = 8192; pread(fd, page, sizeof(page), at) == sizeof(page);
	     at += sizeof(page)) {
		size_t n = damage(page);

		if (n)
			CHECK(pwrite(fd, page, sizeof(page), at) == sizeof(page));
		changed += n;
	}
	CHECK(changed);
	close(fd);
}

/* Where the topic of a message stands in a page, behind its head; NULL: it has none. */
static uint8_t *topic_at(uint8_t *page, uint64_t n)
{
	uint8_t *at = page;
	uint64_t its = 0;

	while (its != n && (at = memmem(at, (size_t)(page + 4096 - at), "first.topic", 11))) {
		memcpy(&its, at - 32, sizeof(its));
		at += 11;
	}
	return at ? at - 11 : NULL;
}

static size_t longer(uint8_t *page)
{
	uint8_t *topic = topic_at(page, 30);

	if (topic)
		topic[-8 + 3] ^= 1; /* 16 MiB */
	return topic != NULL;
}

static size_t shorter(uint8_t *page)
{
	uint8_t *topic = topic_at(page, 30);

	if (topic)
		topic[-8 + 1] ^= 2;
	return topic != NULL;
}

static size_t out_of_order(uint8_t *page)
{
	uint8_t *topic = topic_at(page, 30);

	if (topic)
		topic[-32] = 40;
	return topic != NULL;
}

/* The key too. */
static size_t hole(uint8_t *page)
{
	uint8_t *topic = topic_at(page, 30), *key;

	if (!topic)
		return 0;
	topic[-32] = 31;
	key = memmem(page, 4096, "\0\0\0\0\0\0\0\7\0\0\0\0\0\0\0\36", 16);
	assert(key);
	key[15] = 31;
	return 1;
}

/* LMDB's record of a table in the main one: the root is its last number. */
static size_t root_beyond_the_file(uint8_t *page)
{
	static const uint64_t beyond = 1 << 20;
	size_t n = 0;

	for (size_t i = 24; i < 4096 - 52; i++)
		if (!memcmp(page + i, "high", 4) && page[i - 2] == 4 && page[i - 8] == 48) {
			memcpy(page + i + 44, &beyond, sizeof(beyond));
			n++;
		}
	return n;
}

static size_t no_leaf(uint8_t *page)
{
	if (!topic_at(page, 30))
		return 0;
	page[10] = 0;
	return 1;
}

/* What shows is told before it is served, and what was before it is. */
static void test_damaged(void)
{
	size_t (*const damages[])(uint8_t * page) = { longer, shorter, out_of_order, hole };

	for (size_t i = 0; i < sizeof(damages) / sizeof(damages[0]); i++) {
		struct reading r = { 0 }, later = { 0 };
		uint64_t run = 7, n = 0;
		struct writer *w;
		int err;

		fill("damaged");
		damage_pages(damages[i]);
		w = writer_open("damaged", 7, MIB, MIB);
		CHECK(journal_read(w->journal, SOCKET_LOW, 7, 1, found, &r) == -EIO);
		CHECK(!r.broken && r.first == 1 && r.next >= 30 && r.next <= 31);
		/* Who asks by time does not get what lies behind it, as if that were all. */
		err = journal_since(w->journal, SOCKET_LOW, 1030, &run, &n);
		if (!err)
			err = journal_read(w->journal, SOCKET_LOW, 7, n, found, &later);
		CHECK(err == -EIO);
		writer_close(w);
		remove_all();
	}

	/* What cannot be opened is made anew, once. */
	fill("a damaged root");
	damage_pages(root_beyond_the_file);
	for (int i = 0; i < 2; i++) {
		struct writer *w = writer_open("a damaged root", 8 + (uint64_t)i, MIB, MIB);

		CHECK(runs_of(w).n == (size_t)i);
		add(w, SOCKET_HIGH, 0, 100);
		CHECK(!commit(w));
		writer_close(w);
	}
	remove_all();
}

/* LMDB ends the process; the next one must not end the same way. */
static void test_damaged_so_that_lmdb_aborts(void)
{
	const struct rlimit no_core = { 0 };
	struct writer *w;
	int status;
	pid_t pid;

	fill("no leaf");
	damage_pages(no_leaf);
	fflush(stdout);
	pid = fork();
	assert(pid >= 0);
	if (!pid) {
		struct reading r = { 0 };

		setrlimit(RLIMIT_CORE, &no_core);
		w = writer_open("no leaf", 7, MIB, MIB);
		journal_read(w->journal, SOCKET_LOW, 7, 1, found, &r);
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	CHECK(access(data_path(), F_OK) && errno == ENOENT);
	w = writer_open("no leaf", 8, MIB, MIB);
	CHECK(!runs_of(w).n);
	writer_close(w);
	remove_all();
}

static void test_somebody_elses(void)
{
	const size_t bytes[N_SOCKETS] = { MIB, MIB };
	struct journal *journal = NULL;
	char content[16] = "";
	bool halved;
	int fd;

	test_name = "somebody else's";
	CHECK(!mkdir(directory, 0700));
	fd = open(data_path(), O_CREAT | O_RDWR, 0600);
	CHECK(fd >= 0 && write(fd, "precious", 8) == 8);
	CHECK(journal_open(&journal, directory, bytes, 80, &halved) == -EEXIST && !journal);
	CHECK(pread(fd, content, sizeof(content), 0) == 8 && !strcmp(content, "precious"));
	close(fd);
	CHECK(!access(data_path(), F_OK));
	remove_all();
}

static void test_not_possible(void)
{
	const size_t bytes[N_SOCKETS] = { MIB, MIB };
	struct journal *journal = NULL;
	bool halved;
	int fd;

	test_name = "not possible";
	fd = open(directory, O_CREAT | O_WRONLY, 0600);
	CHECK(fd >= 0 && !close(fd));
	CHECK(journal_open(&journal, directory, bytes, 80, &halved) == -ENOTDIR && !journal);
	CHECK(!unlink(directory));
	CHECK(journal_open(&journal, "/proc/nowhere/journal", bytes, 80, &halved) < 0 && !journal);
	journal_close(NULL);
}

int main(void)
{
	strcpy(directory, "/tmp/coretap-journal-XXXXXX");
	if (!mkdtemp(directory))
		return 77;
	rmdir(directory);
	test_append_and_read();
	test_bytes();
	test_bounds();
	test_map_full();
	test_fragmented();
	test_model();
	test_since();
	test_since_a_clock_that_steps_back();
	test_runs();
	test_state();
	test_sizes();
	test_damaged();
	test_damaged_so_that_lmdb_aborts();
	test_somebody_elses();
	test_not_possible();
	return failures ? 1 : 0;
}
