/* Any file as a saved position: what was loaded is saved as the same again. */
#include "fuzz.h"

#include "../../clients/c/position.h"

#include <errno.h>

static int load(const char *path, struct json *saved)
{
	static char *names[] = { "mempool." }; /* others keep a position of their own */
	static const struct filter filter = { names, 1 };
	uint64_t counters[CORETAP_COUNT_REPLAYED + 1] = { 0 };
	struct tracker *trackers[N_SOCKETS];
	int err;

	for (int i = 0; i < N_SOCKETS; i++) {
		trackers[i] = tracker_new((enum socket_id)i, &filter, counters);
		MUST(trackers[i]);
	}
	err = position_load(path, trackers);
	MUST(!err || err == -EBADMSG);
	json_raw(saved, "coretap position 1\n");
	for (int i = 0; i < N_SOCKETS; i++) {
		tracker_save(trackers[i], saved);
		tracker_free(trackers[i]);
	}
	return err;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct json first = { 0 }, second = { 0 };
	char path[32];
	int fd = input_file(data, size, path), err = load(path, &first);

	close(fd);
	if (!err) {
		fd = input_file((const uint8_t *)first.data, first.length, path);
		MUST(!load(path, &second));
		MUST(first.length == second.length);
		close(fd);
	}
	json_free(&first);
	json_free(&second);
	return 0;
}
