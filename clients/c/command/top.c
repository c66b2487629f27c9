/* coretap top: a live view for a terminal.
 *
 * Rates come from bridge.status, which tells each topic's counters once a second: so the view costs
 * little however much the high socket carries, and is exact even when this process is slow. Only
 * the low socket is listened to, for what happens to the mempool, blocks and peers. */
#include <curses.h>
#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "../event.h"
#include "command.h"

#define MAX_TOPICS \
	128 /* more than the catalogue and what may be added: a bound against strangers */
#define MAX_ROWS 200
#define MAX_COLUMNS 400
#define BLOCKS_SHOWN 3
#define ONCE_SECONDS 10

enum {
	OUT_BLOCK,
	OUT_CONFLICT,
	OUT_REPLACED,
	OUT_SIZELIMIT,
	OUT_EXPIRY,
	OUT_REORG,
	OUT_OTHER,
	N_OUT
};

static const char *const out_names[N_OUT] = { "block",	"conflict", "replaced", "sizelimit",
					      "expiry", "reorg",    "other" };

struct topic_view {
	char name[MAX_TOPIC + 1];
	uint64_t fired, lost, faults;
	double rate;
	bool known; /* fired is of an earlier status of this run */
};

struct block_view {
	uint64_t height, n_tx, evicted, conflicts, unseen, time_us;
	int64_t duration_ns;
	bool listed, complete; /* block.evictions came */
};

struct flow {
	uint64_t added, replaced, rejected, removed[N_OUT];
};

struct peers {
	uint64_t inbound, outbound, opened, closed, evicted, misbehaving;
	bool inbound_known, outbound_known;
	char last[96]; /* what the last one that misbehaved did */
};

struct top {
	struct coretap *tap;
	const char *address;
	char node[40], core[48], notice[160], replay[N_SOCKETS][16];
	uint64_t run[N_SOCKETS], status_us[N_SOCKETS], pid;
	unsigned int statuses[N_SOCKETS];
	bool silent[N_SOCKETS];
	struct topic_view topics[MAX_TOPICS];
	size_t n_topics;
	struct flow flow, flow_before;
	double flow_seconds;
	uint64_t flow_us; /* when flow_before was taken */
	struct flow rates;
	struct block_view blocks[BLOCKS_SHOWN]; /* the newest first */
	uint64_t n_blocks;
	struct peers peers;
	bool held; /* the picture */
};

/* A picture: lines of text, and which of them stand out. */
struct picture {
	int rows, columns, used;
	char lines[MAX_ROWS][MAX_COLUMNS + 1];
	enum { LINE_PLAIN, LINE_TITLE, LINE_HEAD, LINE_ALARM } kinds[MAX_ROWS];
};

/* ---- what comes in ---- */

/* A stranger's text, as far as a terminal may see it. */
static void keep_text(char *to, size_t size, const char *text, size_t length)
{
	size_t n = 0;

	for (size_t i = 0; i < length && n + 1 < size; i++)
		to[n++] = (char)((unsigned char)text[i] < 32 || (unsigned char)text[i] > 126
					 ? '?'
					 : text[i]);
	to[n] = '\0';
}

static void keep_field(char *to, size_t size, const struct coretap_event *event, const char *field)
{
	const char *text;
	size_t length;

	if (coretap_get_text(event, field, &text, &length) == CORETAP_SET)
		keep_text(to, size, text, length);
}

static uint64_t number(const struct coretap_event *event, const char *field)
{
	uint64_t value = 0;

	return coretap_get_uint(event, field, &value) == CORETAP_SET ? value : 0;
}

static struct topic_view *topic_view(struct top *top, const struct item *name)
{
	char text[MAX_TOPIC + 1];

	if (name->length > MAX_TOPIC)
		return NULL;
	keep_text(text, sizeof(text), (const char *)name->data, name->length);
	for (size_t i = 0; i < top->n_topics; i++)
		if (!strcmp(top->topics[i].name, text))
			return &top->topics[i];
	if (top->n_topics == MAX_TOPICS)
		return NULL;
	strcpy(top->topics[top->n_topics].name, text);
	return &top->topics[top->n_topics++];
}

static void take_counters(struct topic_view *view, const struct item *map, double seconds)
{
	struct cursor pairs = item_elements(map);
	struct item key, value;
	uint64_t before = view->fired;

	while (cursor_pair(&pairs, &key, &value)) {
		if (value.kind != ITEM_UINT)
			continue;
		if (item_is(&key, "fired"))
			view->fired = value.number;
		else if (item_is(&key, "lost"))
			view->lost = value.number;
		else if (item_is(&key, "faults"))
			view->faults = value.number;
	}
	view->rate = view->known && seconds > 0 && view->fired >= before
			     ? (double)(view->fired - before) / seconds
			     : 0;
	view->known = true;
}

static void take_status(struct top *top, const struct coretap_event *event)
{
	unsigned int s = event->socket;
	uint64_t run = coretap_event_run(event), time_us = coretap_event_time_us(event);
	double seconds = top->run[s] == run && time_us > top->status_us[s]
				 ? (double)(time_us - top->status_us[s]) / 1e6
				 : 0;
	struct cursor hint = event->hint, pairs;
	struct item counters, key, value;

	keep_text(top->node, sizeof(top->node), coretap_event_node(event),
		  strlen(coretap_event_node(event)));
	keep_field(top->replay[s], sizeof(top->replay[s]), event, "replay");
	top->pid = number(event, "pid");
	top->run[s] = run;
	top->status_us[s] = time_us;
	top->statuses[s] += top->statuses[s] < 2;
	top->silent[s] = false;
	decode_field(&event->map, &hint, "counters", strlen("counters"), &counters);
	if (counters.kind != ITEM_MAP)
		return;
	pairs = item_elements(&counters);
	while (cursor_pair(&pairs, &key, &value)) {
		struct topic_view *view = value.kind == ITEM_MAP ? topic_view(top, &key) : NULL;

		if (view)
			take_counters(view, &value, seconds);
	}
}

static void take_block(struct top *top, const struct coretap_event *event)
{
	struct block_view *block = &top->blocks[0];

	memmove(&top->blocks[1], &top->blocks[0], sizeof(top->blocks) - sizeof(top->blocks[0]));
	memset(block, 0, sizeof(*block));
	block->height = number(event, "height");
	block->n_tx = number(event, "n_tx");
	block->time_us = coretap_event_time_us(event);
	coretap_get_int(event, "duration_ns", &block->duration_ns);
	top->n_blocks++;
}

static void take_evictions(struct top *top, const struct coretap_event *event)
{
	struct coretap_array array;
	uint64_t height = number(event, "height");
	int complete = 0;

	for (size_t i = 0; i < BLOCKS_SHOWN; i++) {
		struct block_view *block = &top->blocks[i];

		if (!block->time_us || block->height != height)
			continue;
		if (coretap_get_array(event, "txids", &array) == CORETAP_SET)
			block->evicted = array.left;
		if (coretap_get_array(event, "conflicts.txids", &array) == CORETAP_SET)
			block->conflicts = array.left;
		block->unseen = number(event, "unseen");
		coretap_get_bool(event, "complete", &complete);
		block->complete = complete;
		block->listed = true;
		return;
	}
}

static void take_removal(struct top *top, const struct coretap_event *event)
{
	char reason[16] = "";
	int i;

	keep_field(reason, sizeof(reason), event, "reason");
	for (i = 0; i < OUT_OTHER; i++)
		if (!strcmp(reason, out_names[i]))
			break;
	top->flow.removed[i]++;
}

static void take_peer(struct peers *peers, const struct coretap_event *event, const char *what)
{
	bool inbound;
	char type[32] = "";

	if (!strcmp(what, "inbound_connection")) {
		peers->inbound = number(event, "count");
		peers->inbound_known = true;
		peers->opened++;
	} else if (!strcmp(what, "outbound_connection")) {
		peers->outbound = number(event, "count");
		peers->outbound_known = true;
		peers->opened++;
	} else if (!strcmp(what, "closed_connection")) {
		keep_field(type, sizeof(type), event, "connection_type");
		inbound = !strcmp(type, "inbound");
		peers->closed++;
		if (inbound && peers->inbound)
			peers->inbound--;
		if (!inbound && peers->outbound)
			peers->outbound--;
	} else if (!strcmp(what, "evicted_inbound_connection")) {
		peers->evicted++;
	} else if (!strcmp(what, "misbehaving_connection")) {
		peers->misbehaving++;
		keep_field(peers->last, sizeof(peers->last), event, "reason");
	}
}

static void take_event(struct top *top, const struct coretap_event *event)
{
	const char *topic = coretap_event_topic(event);

	if (!strcmp(topic, "mempool.added"))
		top->flow.added++;
	else if (!strcmp(topic, "mempool.removed"))
		take_removal(top, event);
	else if (!strcmp(topic, "mempool.replaced"))
		top->flow.replaced++;
	else if (!strcmp(topic, "mempool.rejected"))
		top->flow.rejected++;
	else if (!strcmp(topic, "validation.block_connected"))
		take_block(top, event);
	else if (!strcmp(topic, "block.evictions"))
		take_evictions(top, event);
	else if (!strcmp(topic, "node.started"))
		keep_field(top->core, sizeof(top->core), event, "core");
	else if (!strcmp(topic, "node.exited"))
		memset(&top->peers, 0, sizeof(top->peers));
	else if (!strncmp(topic, "net.", 4))
		take_peer(&top->peers, event, topic + 4);
}

static void take_notice(struct top *top, const struct coretap_event *event)
{
	const char *topic = coretap_event_topic(event), *socket = coretap_event_socket(event);
	uint64_t n = coretap_event_last(event) - coretap_event_first(event) + 1;
	char *to = top->notice;
	const size_t size = sizeof(top->notice);

	switch (coretap_event_kind(event)) {
	case CORETAP_GAP:
		snprintf(to, size, "%s: %s events missing here for good", topic, grouped(n));
		break;
	case CORETAP_LOST:
		snprintf(to, size, "%s: %s events lost in the kernel, its ring was full", topic,
			 grouped(n));
		break;
	case CORETAP_NEW_RUN:
		snprintf(to, size, "%s socket: coretapd began a new run", socket);
		for (size_t i = 0; i < top->n_topics; i++)
			top->topics[i].known = false;
		break;
	case CORETAP_STALE:
	case CORETAP_STOPPING:
		top->silent[event->socket] = true;
		snprintf(to, size, "%s socket: %s", socket,
			 coretap_event_kind(event) == CORETAP_STALE ? "nothing for 3 s; waiting"
								    : "coretapd stopped; waiting");
		break;
	case CORETAP_ALIVE:
		top->silent[event->socket] = false;
		to[0] = '\0';
		break;
	case CORETAP_MALFORMED:
		snprintf(to, size, "%s socket: a malformed message: %s", socket,
			 coretap_event_reason(event));
		break;
	default:
		break;
	}
}

/* ---- the picture ---- */

static void line(struct picture *p, int kind, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

static void line(struct picture *p, int kind, const char *fmt, ...)
{
	va_list args;

	if (p->used == p->rows)
		return;
	va_start(args, fmt);
	vsnprintf(p->lines[p->used], (size_t)p->columns + 1, fmt, args);
	va_end(args);
	p->kinds[p->used++] = kind;
}

/* 0.3, 12.5, 1,234 */
static const char *rate(double per_second)
{
	static char texts[4][32];
	static unsigned int turn;
	char *text = texts[turn++ % 4];

	if (per_second >= 100)
		return grouped((uint64_t)(per_second + 0.5));
	snprintf(text, sizeof(texts[0]), "%.1f", per_second);
	return text;
}

static int by_total(const void *a, const void *b)
{
	const struct topic_view *const *x = a, *const *y = b;

	if ((*x)->fired != (*y)->fired)
		return (*x)->fired < (*y)->fired ? 1 : -1;
	return strcmp((*x)->name, (*y)->name);
}

static void draw_head(const struct top *top, struct picture *p)
{
	time_t now = time(NULL), began = (time_t)(top->run[SOCKET_LOW] / 1000000);
	char clock[16], run[32] = "?", node[32] = "no node";
	uint64_t lost = 0, faults = 0;
	struct tm tm;

	strftime(clock, sizeof(clock), "%H:%M:%S", localtime_r(&now, &tm));
	if (began)
		strftime(run, sizeof(run), "%Y-%m-%d %H:%M:%S", localtime_r(&began, &tm));
	for (size_t i = 0; i < top->n_topics; i++) {
		lost += top->topics[i].lost;
		faults += top->topics[i].faults;
	}
	if (top->pid)
		snprintf(node, sizeof(node), "node %llu", (unsigned long long)top->pid);
	line(p, LINE_TITLE, "coretap top  %-33s %s%18s ", *top->node ? top->node : top->address,
	     top->held ? "HELD  " : "      ", clock);
	if (!top->statuses[SOCKET_LOW]) {
		line(p, LINE_PLAIN, "no coretapd at %s yet", top->address);
		return;
	}
	line(p, lost || top->silent[SOCKET_LOW] ? LINE_ALARM : LINE_PLAIN,
	     "%s%s  run since %s  replay %s  lost %s  faults %s", node,
	     top->silent[SOCKET_LOW] ? "  SILENT" : "", run, top->replay[SOCKET_LOW], grouped(lost),
	     grouped(faults));
}

static void draw_topics(const struct top *top, struct picture *p, int rows)
{
	const struct topic_view *sorted[MAX_TOPICS];
	size_t n = 0, shown;

	for (size_t i = 0; i < top->n_topics; i++)
		if (top->topics[i].fired || top->topics[i].lost)
			sorted[n++] = &top->topics[i];
	/* Pointers are sorted, the first n of which are set: both linters err. */
	/* cppcheck-suppress uninitvar */
	qsort(sorted, n, sizeof(sorted[0]), /* NOLINT(bugprone-sizeof-expression) */
	      by_total);		    /* NOLINT(bugprone-sizeof-expression) */
	line(p, LINE_HEAD, "%-36s %10s %14s %8s %7s", "TOPIC", "PER SECOND", "FIRED", "LOST",
	     "FAULTS");
	shown = n;
	if ((int)n > rows)
		shown = rows > 1 ? (size_t)rows - 1 : 0;
	for (size_t i = 0; i < shown; i++)
		line(p, sorted[i]->lost ? LINE_ALARM : LINE_PLAIN, "%-36.36s %10s %14s %8s %7s",
		     sorted[i]->name, rate(sorted[i]->rate), grouped(sorted[i]->fired),
		     grouped(sorted[i]->lost), grouped(sorted[i]->faults));
	if (shown < n)
		line(p, LINE_PLAIN, "and %zu more", n - shown);
	for (int i = (int)(shown + (shown < n)); i < rows; i++)
		line(p, LINE_PLAIN, "%s", "");
}

static void draw_mempool(const struct top *top, struct picture *p)
{
	double seconds = top->flow_seconds > 0 ? top->flow_seconds : 1;
	char out[160] = "";
	uint64_t removed = 0, removed_now = 0;
	size_t at = 0;

	for (int i = 0; i < N_OUT; i++) {
		removed += top->flow.removed[i];
		removed_now += top->rates.removed[i];
		if (i < OUT_OTHER || top->flow.removed[i])
			at += (size_t)snprintf(out + at, sizeof(out) - at, "%s%s %s", i ? "  " : "",
					       out_names[i], grouped(top->flow.removed[i]));
		if (at >= sizeof(out))
			break;
	}
	line(p, LINE_HEAD, "MEMPOOL  in %s/s  out %s/s  replaced %s/s  rejected %s/s",
	     rate((double)top->rates.added / seconds), rate((double)removed_now / seconds),
	     rate((double)top->rates.replaced / seconds),
	     rate((double)top->rates.rejected / seconds));
	line(p, LINE_PLAIN, "  since top began: in %s  out %s  rejected %s",
	     grouped(top->flow.added), grouped(removed), grouped(top->flow.rejected));
	line(p, LINE_PLAIN, "  out by %s", out);
}

static void draw_blocks(const struct top *top, struct picture *p)
{
	uint64_t now = clock_us();

	line(p, LINE_HEAD, "BLOCKS   %s since top began", grouped(top->n_blocks));
	for (size_t i = 0; i < BLOCKS_SHOWN; i++) {
		const struct block_view *b = &top->blocks[i];
		char evicted[96] = "list not known yet";

		if (!b->time_us) {
			line(p, LINE_PLAIN, "%s", "");
			continue;
		}
		if (b->listed)
			snprintf(evicted, sizeof(evicted), "out %s  conflict %s  unseen %s%s",
				 grouped(b->evicted), grouped(b->conflicts), grouped(b->unseen),
				 b->complete ? "" : "  incomplete");
		line(p, LINE_PLAIN, "  %-8llu %6s tx  %s  %lld ms  %llus ago",
		     (unsigned long long)b->height, grouped(b->n_tx), evicted,
		     (long long)(b->duration_ns / 1000000),
		     (unsigned long long)(now > b->time_us ? (now - b->time_us) / 1000000 : 0));
	}
}

static void draw_peers(const struct top *top, struct picture *p)
{
	const struct peers *peers = &top->peers;

	line(p, LINE_HEAD, "PEERS    inbound %s  outbound %s  opened %s  closed %s  evicted %s",
	     peers->inbound_known ? grouped(peers->inbound) : "?",
	     peers->outbound_known ? grouped(peers->outbound) : "?", grouped(peers->opened),
	     grouped(peers->closed), grouped(peers->evicted));
	if (peers->misbehaving)
		line(p, LINE_PLAIN, "  misbehaving %s, the last: %s", grouped(peers->misbehaving),
		     peers->last);
	else
		line(p, LINE_PLAIN, "  misbehaving 0");
}

/* Everything has its place; the list of topics takes what is left. */
static void draw(const struct top *top, struct picture *p)
{
	const int others = 2 + 1 + 3 + 1 + BLOCKS_SHOWN + 2 + 1;
	int rows = p->rows - others;

	p->used = 0;
	draw_head(top, p);
	draw_topics(top, p, rows < 1 ? 1 : rows);
	draw_mempool(top, p);
	draw_blocks(top, p);
	draw_peers(top, p);
	if (*top->notice)
		line(p, LINE_ALARM, "%s", top->notice);
}

/* ---- the terminal ---- */

static void show(const struct top *top, struct picture *p)
{
	static const attr_t attributes[] = { [LINE_PLAIN] = A_NORMAL,
					     [LINE_TITLE] = A_REVERSE,
					     [LINE_HEAD] = A_BOLD,
					     [LINE_ALARM] = A_BOLD };

	p->rows = LINES < MAX_ROWS ? LINES : MAX_ROWS;
	p->columns = COLS < MAX_COLUMNS ? COLS : MAX_COLUMNS;
	draw(top, p);
	erase();
	for (int i = 0; i < p->used; i++) {
		attr_t attribute = attributes[p->kinds[i]];

		if (p->kinds[i] == LINE_ALARM && has_colors())
			attribute |= (attr_t)COLOR_PAIR(1);
		attrset(attribute);
		mvaddnstr(i, 0, p->lines[i], p->columns);
	}
	attrset(A_NORMAL);
	refresh();
}

static bool terminal_open(void)
{
	const char *no_colour = getenv("NO_COLOR");

	/* initscr would end the process where the terminal is not known. */
	if (!newterm(NULL, stdout, stdin))
		return false;
	cbreak();
	noecho();
	keypad(stdscr, TRUE);
	nodelay(stdscr, TRUE);
	curs_set(0);
	if (!(no_colour && *no_colour) && start_color() == OK) {
		use_default_colors();
		init_pair(1, COLOR_RED, -1);
	}
	return true;
}

/* Returns whether to go on. */
static bool keys(struct top *top)
{
	int key;

	while ((key = getch()) != ERR) {
		if (key == 'q' || key == 'Q')
			return false;
		if (key == ' ')
			top->held = !top->held;
		if (key == 12) /* Ctrl-L */
			clearok(stdscr, TRUE);
	}
	return true;
}

/* ---- the loop ---- */

static int subscribe(struct top *top, struct follow *follow)
{
	size_t n;
	const struct event_desc *events = catalogue(&n);
	int code = follow_open(follow), err;

	top->tap = follow->tap;
	top->address = follow->address;
	if (code)
		return code;
	err = coretap_subscribe(top->tap, "bridge.status");
	for (size_t i = 0; i < n && !err; i++)
		if (events[i].socket == SOCKET_LOW)
			err = coretap_subscribe(top->tap, events[i].topic);
	if (err)
		complain("%s: %s", top->address, coretap_strerror(err));
	return err ? EXIT_OTHER : EXIT_DONE;
}

/* Once a second what flowed since the last time becomes a rate. */
static bool tick(struct top *top)
{
	uint64_t now = steady_us();

	if (now - top->flow_us < 1000000)
		return false;
	top->flow_seconds = top->flow_us ? (double)(now - top->flow_us) / 1e6 : 1;
	top->rates = (struct flow){ .added = top->flow.added - top->flow_before.added,
				    .replaced = top->flow.replaced - top->flow_before.replaced,
				    .rejected = top->flow.rejected - top->flow_before.rejected };
	for (int i = 0; i < N_OUT; i++)
		top->rates.removed[i] = top->flow.removed[i] - top->flow_before.removed[i];
	top->flow_before = top->flow;
	top->flow_us = now;
	return true;
}

/* Takes what is at hand, but not for ever. Returns 0 or -errno. */
static int take(struct top *top)
{
	const struct coretap_event *event;
	int got = 0;

	for (unsigned int i = 0; i < 10000; i++) {
		got = coretap_next(top->tap, &event, 0);
		if (got != 1)
			break;
		if (coretap_event_kind(event) == CORETAP_EVENT)
			take_event(top, event);
		else if (coretap_event_kind(event) == CORETAP_STATUS)
			take_status(top, event);
		else
			take_notice(top, event);
	}
	return got < 0 && got != -EINTR ? got : 0;
}

static int loop(struct top *top, struct picture *picture, bool once)
{
	uint64_t end = steady_us() + ONCE_SECONDS * 1000000ULL;
	sigset_t signals;
	struct pollfd fds[3];
	int err;

	sigemptyset(&signals);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGHUP);
	sigprocmask(SIG_BLOCK, &signals, NULL);
	fds[0] = (struct pollfd){ .fd = signalfd(-1, &signals, SFD_CLOEXEC), .events = POLLIN };
	err = fds[0].fd < 0 ? -errno : coretap_fd(top->tap);
	if (err < 0)
		return err;
	fds[1] = (struct pollfd){ .fd = err, .events = POLLIN };
	fds[2] = (struct pollfd){ .fd = once ? -1 : STDIN_FILENO, .events = POLLIN };
	tick(top);
	for (;;) {
		bool more, ticked;

		err = take(top);
		if (err)
			break;
		ticked = tick(top);
		/* Two statuses of a socket make a rate. */
		if (once && ((top->statuses[SOCKET_LOW] == 2 && top->statuses[SOCKET_HIGH] == 2) ||
			     steady_us() > end))
			break;
		if (!once && !keys(top))
			break;
		more = fds[1].revents;
		if (!once && !top->held && (ticked || !more))
			show(top, picture);
		if (poll(fds, 3, 250) < 0 && errno != EINTR)
			break;
		if (fds[0].revents || fds[2].revents & (POLLHUP | POLLERR))
			break;
	}
	close(fds[0].fd);
	return err;
}

static int run(const struct subcommand *self, int argc, char **argv)
{
	static const struct option options[] = {
		FOLLOW_OPTIONS,
		{ "once", no_argument, NULL, 'o' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	static struct picture picture; /* 80 kB: not for the stack */
	static struct top top;
	struct follow follow = { 0 };
	bool once = false;
	int option, code, err;

	while ((option = getopt_long(argc, argv, "a:h", options, NULL)) != -1)
		switch (option) {
		case 'o':
			once = true;
			break;
		case 'h':
			return print_help(self);
		default:
			if (!follow_option(&follow, option))
				return usage_error(self);
		}
	if (optind < argc) {
		complain("%s: top takes no arguments", argv[optind]);
		return usage_error(self);
	}
	if (!once && (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO))) {
		complain("no terminal; --once prints a single picture");
		return EXIT_USAGE;
	}
	code = subscribe(&top, &follow);
	if (!code && !once && !terminal_open()) {
		complain("the terminal %s is not known here; --once needs none",
			 getenv("TERM") ? getenv("TERM") : "(TERM is not set)");
		code = EXIT_OTHER;
	}
	if (code) {
		coretap_close(top.tap);
		return code;
	}
	err = loop(&top, &picture, once);
	if (!once) {
		endwin();
	} else {
		picture.rows = MAX_ROWS / 2;
		picture.columns = 100;
		draw(&top, &picture);
		for (int i = 0; i < picture.used; i++)
			if (*picture.lines[i])
				puts(picture.lines[i]);
		if (!err && !top.statuses[SOCKET_LOW])
			code = EXIT_OTHER;
	}
	coretap_close(top.tap);
	if (err) {
		complain("%s: %s", top.address, coretap_strerror(err));
		code = EXIT_OTHER;
	}
	return code;
}

const struct subcommand command_top = {
	.name = "top",
	.arguments = "[--once] [--address A]",
	.summary = "Shows rates, the mempool's flow, blocks, losses and peers, live",
	.help = "Rates are the bridge's own counters, told once a second; of the events only those "
		"of "
		"the low\n"
		"socket are received, so the view is cheap over a slow line. Keys: q ends, space "
		"holds "
		"the\n"
		"picture, Ctrl-L draws it anew.\n\n"
		"  --once         print one picture, as text, and end\n"
		"  --address A    tcp://HOST:PORT or ipc:///run/coretap/NAME\n"
		"                 (" CORETAP_DEFAULT_ADDRESS ")\n"
		"  --curve-server FILE, --curve-secret FILE\n"
		"                 coretapd's public key and one's own secret key, for encrypted "
		"connections\n\n"
		"With --once it ends with 1 when no coretapd is heard within 10 s.\n",
	.run = run,
};
