/* Any file as a recording: what `coretap play` makes of it is a stream without a fault. */
#include "fuzz.h"

#include "../../clients/c/command/playlist.h"

void complain(const char *fmt, ...)
{
	(void)fmt;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct playlist list;
	char path[32], reason[DECODE_REASON];
	int fd = input_file(data, size, path);
	uint64_t *next;

	if (playlist_open(&list, path)) {
		close(fd);
		return 0;
	}
	MUST(strlen(list.label) <= DECODE_MAX_LABEL && list.torn <= size);
	next = calloc(list.n_topics + 1, sizeof(*next));
	MUST(next);
	for (enum socket_id id = 0; id < N_SOCKETS; id++) {
		uint64_t n = 1;

		for (size_t i = 0; i < list.n[id]; i++) {
			const struct played *played = &list.played[id][i];
			const struct played_topic *topic = &list.topics[played->topic];
			struct message_body message;
			msgpack_sbuffer body;

			playlist_encode(&list, played, &body);
			MUST(is_msgpack(body.data, body.size));
			MUST(!decode_message(body.data, body.size,
					     catalogue_find(topic->name, topic->length), &message,
					     reason));
			MUST(topic->socket == id && message.n == n && message.run == list.run);
			MUST(message.seq == next[played->topic] + 1);
			n += message.events.left;
			next[played->topic] = message.next - 1;
			msgpack_sbuffer_destroy(&body);
		}
	}
	free(next);
	playlist_close(&list);
	close(fd);
	return 0;
}
