/* See position.h. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "position.h"

#define HEADING "coretap position 1\n"
#define MAX_LINE 256

static bool parse_number(const char *text, uint64_t *number)
{
	char *end;

	errno = 0;
	*number = strtoull(text, &end, 10);
	return *text >= '0' && *text <= '9' && !*end && !errno;
}

/* Splits a line at its spaces. Returns the number of words, at most four. */
static int split(char *line, char *words[4])
{
	int n = 0;

	for (char *word = strtok(line, " \n"); word; word = strtok(NULL, " \n")) {
		if (n == 4)
			return 0;
		words[n++] = word;
	}
	return n;
}

static bool is_label(const char *label)
{
	return topic_valid(label, strlen(label)) && strlen(label) <= DECODE_MAX_LABEL &&
	       !strchr(label, '.');
}

/* *current is the stream that the lines of topics belong to; NULL = one that is not needed. */
static int load_line(char *line, struct tracker *const trackers[N_SOCKETS],
		     struct tracker **current, bool *begun)
{
	char *words[4];
	uint64_t run, n, next, at = UINT64_MAX;
	int n_words = split(line, words);

	switch (n_words) {
	case 4:
		if (!is_label(words[1]) || !parse_number(words[2], &run) || !run ||
		    !parse_number(words[3], &n))
			return -EBADMSG;
		*begun = true;
		for (int i = 0; i < N_SOCKETS; i++)
			if (!strcmp(words[0], socket_name((enum socket_id)i))) {
				*current = trackers[i];
				return *current ? tracker_restore(*current, words[1],
								  strlen(words[1]), run, n)
						: 0;
			}
		return -EBADMSG;
	case 2:
	case 3: /* of a topic that was not asked for last: where it stood */
		if (!*begun || !topic_valid(words[0], strlen(words[0])) ||
		    !parse_number(words[1], &next) || !next ||
		    (n_words == 3 && !parse_number(words[2], &at)))
			return -EBADMSG;
		return *current ? tracker_restore_topic(*current, words[0], strlen(words[0]), next,
							at)
				: 0;
	default:
		return -EBADMSG;
	}
}

int position_load(const char *path, struct tracker *const trackers[N_SOCKETS])
{
	struct tracker *current = NULL;
	struct stat file_stat;
	FILE *file;
	char line[MAX_LINE];
	bool begun = false;
	int err = 0;

	/* A device or a pipe may have no end, or never open. */
	if (!stat(path, &file_stat) && !S_ISREG(file_stat.st_mode))
		return S_ISDIR(file_stat.st_mode) ? -EISDIR : -EBADMSG;
	file = fopen(path, "re");
	if (!file)
		return errno == ENOENT ? 0 : -errno;
	if (!fgets(line, sizeof(line), file))
		err = ferror(file) ? -errno : -EBADMSG;
	else if (strcmp(line, HEADING))
		err = -EBADMSG;
	while (!err && fgets(line, sizeof(line), file))
		err = strchr(line, '\n') ? load_line(line, trackers, &current, &begun) : -EBADMSG;
	fclose(file);
	return err;
}

static int write_whole(int fd, const char *data, size_t length)
{
	while (length) {
		ssize_t n = write(fd, data, length);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		data += n;
		length -= (size_t)n;
	}
	return 0;
}

int position_save(const char *path, struct tracker *const trackers[N_SOCKETS], struct json *text)
{
	char temporary[PATH_MAX];
	int fd, err;

	text->length = 0;
	json_raw(text, HEADING);
	for (int i = 0; i < N_SOCKETS; i++)
		if (trackers[i])
			tracker_save(trackers[i], text);
	if (text->failed)
		return -ENOMEM;
	if (snprintf(temporary, sizeof(temporary), "%s.new", path) >= (int)sizeof(temporary))
		return -ENAMETOOLONG;
	fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (fd < 0)
		return -errno;
	err = write_whole(fd, text->data, text->length);
	if (close(fd) && !err)
		err = -errno;
	if (!err && rename(temporary, path))
		err = -errno;
	if (err)
		unlink(temporary);
	return err;
}
