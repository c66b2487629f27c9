/* Recordings: what is written is read again, and played it is a stream without a fault. Cut at each
 * length and damaged at each byte, it is still only ever that. */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The command's own objects are not linked with unit tests. */
#include "../../clients/c/command/playlist.c"
#include "../../clients/c/command/recording.c"
#include "../../clients/c/command/times.c"

static int failures;

__attribute__((format(printf, 1, 2))) static void fail(const char *fmt, ...)
{
	va_list args;

	printf("FAIL ");
	va_start(args, fmt);
	vprintf(fmt, args);
	va_end(args);
	putchar('\n');
	failures++;
}

void complain(const char *fmt, ...)
{
	(void)fmt;
}

struct source {
	const char *topic;
	uint64_t run, n, seq, lost;
	unsigned int events;
	uint64_t n_block;
};

static void add_source(struct recorder *recorder, const struct source *source)
{
	msgpack_sbuffer body;
	msgpack_packer packer;
	size_t place;

	msgpack_sbuffer_init(&body);
	place = encode_message_begin(&body, "host", source->run, 42, source->n, source->seq,
				     source->lost);
	msgpack_packer_init(&packer, &body, msgpack_sbuffer_write);
	for (unsigned int i = 0; i < source->events; i++) {
		msgpack_pack_map(&packer, source->n_block ? 2 : 1);
		msgpack_pack_str_with_body(&packer, "time_us", 7);
		msgpack_pack_uint64(&packer, 1000 + source->n + i);
		if (source->n_block) {
			msgpack_pack_str_with_body(&packer, "n_block", 7);
			msgpack_pack_uint64(&packer, source->n_block);
		}
	}
	encode_message_end(&body, place, source->events);
	recorder_add(recorder, SOCKET_LOW, 5000000, source->topic, strlen(source->topic), body.data,
		     body.size);
	msgpack_sbuffer_destroy(&body);
}

/* Every message is well-formed, and positions and numbers count on. Returns the events. */
static uint64_t check_stream(const struct playlist *list)
{
	uint64_t next[MAX_TOPICS], n = 1, events = 0;
	char reason[DECODE_REASON];

	for (size_t i = 0; i < list->n_topics; i++)
		next[i] = 1;
	for (size_t i = 0; i < list->n[SOCKET_LOW]; i++) {
		const struct played *played = &list->played[SOCKET_LOW][i];
		struct message_body message;
		msgpack_sbuffer body;

		playlist_encode(list, played, &body);
		if (decode_message(body.data, body.size, NULL, &message, reason))
			fail("message %zu: %s", i, reason);
		else if (message.n != n || message.seq != next[played->topic])
			fail("message %zu: n %" PRIu64 " seq %" PRIu64, i, message.n, message.seq);
		n += message.events.left;
		events += message.events.left;
		next[played->topic] = message.next;
		msgpack_sbuffer_destroy(&body);
	}
	return events;
}

static void write_file(const char *path, const char *data, size_t length)
{
	FILE *file = fopen(path, "w");

	fwrite(data, 1, length, file);
	fclose(file);
}

/* Opens it; what opens is a stream without a fault. */
static int try(const char *path, uint64_t *events)
{
	struct playlist list;
	int err = playlist_open(&list, path);

	if (err)
		return err;
	*events = check_stream(&list);
	playlist_close(&list);
	return 0;
}

static uint64_t n_block_of(const struct playlist *list, size_t i)
{
	char reason[DECODE_REASON];
	struct message_body message;
	msgpack_sbuffer body;
	struct item event;
	uint64_t n_block = 0;

	playlist_encode(list, &list->played[SOCKET_LOW][i], &body);
	if (!decode_message(body.data, body.size, NULL, &message, reason) &&
	    cursor_element(&message.events, &event))
		n_block = get_uint(&event, "n_block");
	msgpack_sbuffer_destroy(&body);
	return n_block;
}

int main(void)
{
	/* Joined late, a gap, a loss, a loss notice, a duplicate, another run. */
	static const struct source sources[] = {
		{ "mempool.added", 7, 100, 50, 0, 2, 0 },
		{ "mempool.removed", 7, 102, 9, 0, 1, 0 },
		{ "mempool.added", 7, 110, 60, 0, 1, 0 },
		{ "mempool.added", 7, 110, 60, 0, 1, 0 },
		{ "validation.block_connected", 7, 111, 3, 0, 1, 0 },
		{ "block.evictions", 7, 112, 3, 0, 1, 111 },
		{ "block.evictions", 7, 113, 4, 0, 1, 55 },
		{ "mempool.added", 7, 114, 61, 4, 1, 0 },
		{ "mempool.added", 7, 115, 66, 2, 0, 0 },
		{ "mempool.added", 8, 1, 1, 0, 3, 0 },
		{ "bridge.status", 8, 4, 1, 0, 3, 0 },
	};
	char path[] = "/tmp/coretap-test-XXXXXX", data[8192];
	struct recorder recorder;
	struct playlist list;
	uint64_t events = 0;
	size_t length;
	FILE *file;
	int err;

	close(mkstemp(path));
	if (recorder_open(&recorder, path) != -EEXIST)
		fail("a file is overwritten");
	unlink(path);
	if (recorder_open(&recorder, path))
		return 77;
	for (size_t i = 0; i < sizeof(sources) / sizeof(sources[0]); i++)
		add_source(&recorder, &sources[i]);
	if (!recorder_close(&recorder))
		fail("recorder_close: %d", recorder.error);

	err = playlist_open(&list, path);
	if (err) {
		fail("playlist_open: %d", err);
		return 1;
	}
	if (check_stream(&list) != 11 || list.n[SOCKET_LOW] != 9 || list.malformed != 2 ||
	    strcmp(list.label, "host-play"))
		fail("%zu messages, %zu malformed, %s", list.n[SOCKET_LOW], list.malformed,
		     list.label);
	/* 50, 51; 52 to 59 missing, 60; 61 to 64 lost, 65; 66, 67 lost; then 1 to 3. */
	if (list.played[SOCKET_LOW][2].lost != 8 || list.played[SOCKET_LOW][6].lost != 4 ||
	    list.topics[0].next != 22)
		fail("what is missing is not told");
	if (n_block_of(&list, 4) != list.played[SOCKET_LOW][3].n || n_block_of(&list, 5))
		fail("n_block %" PRIu64 ", %" PRIu64, n_block_of(&list, 4), n_block_of(&list, 5));
	playlist_close(&list);

	file = fopen(path, "r");
	length = fread(data, 1, sizeof(data), file);
	fclose(file);
	for (size_t cut = 0; cut < length; cut++) {
		write_file(path, data, cut);
		err = try(path, &events);
		if (cut < 20 ? err != -EBADMSG : err || events > 11)
			fail("cut to %zu bytes: %d, %" PRIu64 " events", cut, err, events);
	}
	for (size_t i = 0; i < length; i++) {
		static const char bytes[] = { 0,	  1,	      0x7f,	 (char)0x80,
					      (char)0xcf, (char)0xdd, (char)0xff };

		for (size_t j = 0; j < sizeof(bytes); j++) {
			char before = data[i];

			data[i] = bytes[j];
			write_file(path, data, length);
			try(path, &events);
			data[i] = before;
		}
	}
	unlink(path);
	return failures ? 1 : 0;
}
