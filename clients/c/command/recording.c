/* See recording.h. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "recording.h"

#define HEADING_BYTES (sizeof(RECORDING_HEADING) - 1)
#define FLUSH_BYTES ((size_t)1 << 20)

static void put(char *at, uint64_t number, unsigned int bytes)
{
	for (unsigned int i = 0; i < bytes; i++)
		at[i] = (char)(number >> 8 * i);
}

static uint64_t number_at(const uint8_t *at, unsigned int bytes)
{
	uint64_t number = 0;

	while (bytes--)
		number = number << 8 | at[bytes];
	return number;
}

static bool reserve(struct recorder *recorder, size_t bytes)
{
	size_t size = recorder->size ? recorder->size : 2 * FLUSH_BYTES;
	char *buffer;

	while (size - recorder->used < bytes)
		size *= 2;
	if (size == recorder->size)
		return true;
	buffer = realloc(recorder->buffer, size);
	if (!buffer) {
		recorder->error = ENOMEM;
		return false;
	}
	recorder->buffer = buffer;
	recorder->size = size;
	return true;
}

int recorder_open(struct recorder *recorder, const char *path)
{
	*recorder = (struct recorder){ .fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
						  0644) };
	if (recorder->fd < 0)
		return -errno;
	if (reserve(recorder, HEADING_BYTES)) {
		memcpy(recorder->buffer, RECORDING_HEADING, HEADING_BYTES);
		recorder->used = HEADING_BYTES;
	}
	if (recorder_flush(recorder))
		return 0;

	int err = -recorder->error;

	recorder_close(recorder);
	return err;
}

void recorder_add(struct recorder *recorder, enum socket_id socket, uint64_t received_us,
		  const char *topic, size_t topic_length, const void *body, size_t body_length)
{
	size_t length = RECORDING_HEAD + topic_length + body_length;
	char *at;

	if (recorder->error || !reserve(recorder, 4 + length))
		return;
	at = recorder->buffer + recorder->used;
	put(at, length, 4);
	put(at + 4, received_us, 8);
	at[12] = (char)socket;
	at[13] = (char)topic_length;
	memcpy(at + 14, topic, topic_length);
	memcpy(at + 14 + topic_length, body, body_length);
	recorder->used += 4 + length;
	if (recorder->used >= FLUSH_BYTES)
		recorder_flush(recorder);
}

bool recorder_flush(struct recorder *recorder)
{
	size_t written = 0;

	while (!recorder->error && written < recorder->used) {
		ssize_t n =
			write(recorder->fd, recorder->buffer + written, recorder->used - written);

		if (n < 0 && errno != EINTR)
			recorder->error = errno;
		if (n > 0)
			written += (size_t)n;
	}
	recorder->bytes += written;
	recorder->used = 0;
	return !recorder->error;
}

bool recorder_close(struct recorder *recorder)
{
	recorder_flush(recorder);
	if (close(recorder->fd) && !recorder->error)
		recorder->error = errno;
	free(recorder->buffer);
	recorder->buffer = NULL;
	return !recorder->error;
}

int recording_open(struct recording *recording, const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC), err = 0;
	struct stat stat;
	void *data;

	if (fd < 0)
		return -errno;
	if (fstat(fd, &stat))
		err = -errno;
	else if (S_ISDIR(stat.st_mode))
		err = -EISDIR;
	else if (!S_ISREG(stat.st_mode) || (size_t)stat.st_size < HEADING_BYTES)
		err = -EBADMSG;
	if (!err) {
		recording->length = (size_t)stat.st_size;
		data = mmap(NULL, recording->length, PROT_READ, MAP_PRIVATE, fd, 0);
		recording->data = data;
		if (data == MAP_FAILED)
			err = -errno;
		else if (memcmp(data, RECORDING_HEADING, HEADING_BYTES))
			err = -EBADMSG;
		if (err == -EBADMSG)
			recording_close(recording);
	}
	close(fd);
	return err;
}

void recording_close(struct recording *recording)
{
	munmap((void *)recording->data, recording->length);
}

bool recording_next(const struct recording *recording, size_t *offset, struct record *record,
		    size_t *torn)
{
	const uint8_t *at;
	size_t left, length;

	if (!*offset)
		*offset = HEADING_BYTES;
	at = recording->data + *offset;
	left = recording->length - *offset;
	*torn = left;
	if (left < 4 + RECORDING_HEAD)
		return false;
	length = number_at(at, 4);
	if (length > left - 4 || length < RECORDING_HEAD + (size_t)at[13] || at[12] >= N_SOCKETS)
		return false;
	record->received_us = number_at(at + 4, 8);
	record->socket = (enum socket_id)at[12];
	record->topic_length = at[13];
	record->topic = (const char *)at + 14;
	record->body = at + 14 + record->topic_length;
	record->body_length = length - RECORDING_HEAD - record->topic_length;
	*offset += 4 + length;
	*torn = 0;
	return true;
}
