/* What the C decoder says of a frame: its events as JSON in one line, or "refused: REASON". */
#ifndef CORETAP_VERDICT_H
#define CORETAP_VERDICT_H

#include "../../protocol/json.h"

#include <string.h>

static inline void add_verdict(struct json *out, const char *topic, const uint8_t *body,
			       size_t length)
{
	char reason[DECODE_REASON];
	struct message_body message;
	struct status_body status;
	struct cursor events;
	struct item event;
	int err;

	if (!strncmp(topic, "bridge.", 7)) {
		err = decode_status(body, length, &status, reason);
		if (!err)
			json_map(out, topic, strlen(topic), &status.map);
	} else {
		err = decode_message(body, length, catalogue_find(topic, strlen(topic)), &message,
				     reason);
		events = message.events;
		for (unsigned int i = 0; !err && cursor_element(&events, &event); i++)
			json_event(out, topic, strlen(topic), &message, i, &event);
	}
	if (err) {
		json_raw(out, "refused: ");
		json_raw(out, reason);
	}
}

#endif
