/* The file that `coretap record` writes and `coretap play` reads.
 *
 * It begins with the 20 bytes "coretap recording 1\n"; the number is the version. Then come records
 * until the end of the file, numbers little endian:
 *
 *	4 bytes   length of what follows of this record
 *	8 bytes   when the message was received, Unix microseconds
 *	1 byte    socket: 0 low, 1 high
 *	1 byte    length of the topic
 *	          the topic
 *	          the body, byte for byte as it was published
 *
 * A record that the file's end cuts off was being written when the recorder was killed or the disk
 * was full: it does not count. */
#ifndef CORETAP_RECORDING_H
#define CORETAP_RECORDING_H

#include "command.h"

#define RECORDING_HEADING "coretap recording 1\n"
#define RECORDING_HEAD 10 /* bytes of a record between its length and its topic */

/* Writing: records gather in memory until recording_flush. */
struct recorder {
	int fd;
	char *buffer;
	size_t used, size;
	uint64_t bytes; /* of the file */
	int error;	/* errno, 0 = none; nothing is written any more */
};

/* Makes the file, which must not exist. Returns 0 or -errno. */
int recorder_open(struct recorder *recorder, const char *path);
void recorder_add(struct recorder *recorder, enum socket_id socket, uint64_t received_us,
		  const char *topic, size_t topic_length, const void *body, size_t body_length);
/* False, with recorder->error set, when writing has failed. */
bool recorder_flush(struct recorder *recorder);
/* Flushes and closes. The same. */
bool recorder_close(struct recorder *recorder);

/* Reading: the whole file is mapped. */
struct recording {
	const uint8_t *data;
	size_t length;
};

struct record {
	uint64_t received_us;
	enum socket_id socket;
	const char *topic;
	size_t topic_length;
	const uint8_t *body;
	size_t body_length;
};

/* Returns 0, -errno, or -EBADMSG when it is no recording of this version. */
int recording_open(struct recording *recording, const char *path);
void recording_close(struct recording *recording);

/* Reads the record at *offset (0 = the first) and moves on. False at the end. *torn: bytes at the
 * end that are no whole record. */
bool recording_next(const struct recording *recording, size_t *offset, struct record *record,
		    size_t *torn);

#endif
