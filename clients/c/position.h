/* The file in which a stopped subscriber finds where it was.
 *
 *	coretap position 1
 *	low LABEL RUN POSITION
 *	TOPIC NUMBER [POSITION]
 *	...
 *	high LABEL RUN POSITION
 *	TOPIC NUMBER
 *	...
 *
 * For each socket and node the last position taken, and for each topic the number that comes next:
 * with it a message that was taken in part, or a loss told twice, is recognised. A topic that was
 * not asked for last has a position of its own: there it goes on. */
#ifndef CORETAP_POSITION_H
#define CORETAP_POSITION_H

#include "tracker.h"

/* Puts the streams to where the file says; those that are NULL, or that it does not know, stay as
 * they are. A file that does not exist is none of an error. Returns 0, -EBADMSG when it is no
 * position, or -errno. */
int position_load(const char *path, struct tracker *const trackers[N_SOCKETS]);

/* Replaces the file as a whole: whoever reads it finds the old or the new one. text is a buffer.
 * Returns 0 or -errno. */
int position_save(const char *path, struct tracker *const trackers[N_SOCKETS], struct json *text);

#endif
