/* What the C decoder says of frames: for each line "TOPIC HEX" of standard input its events as JSON
 * in one line, or "refused: REASON". */
#include "../../protocol/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void add_events(struct json *out, const char *topic, const uint8_t *body, size_t length)
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

int main(void)
{
	char *line = NULL, *hex;
	size_t size = 0;

	while (getline(&line, &size, stdin) > 0) {
		struct json out = { 0 };
		size_t length = 0;
		uint8_t *body;

		hex = strchr(line, ' ');
		if (!hex)
			return 2;
		*hex++ = '\0';
		body = malloc(strlen(hex) / 2); /* as long as the frame: a sanitizer sees more */
		if (!body)
			return 2;
		for (unsigned int byte; sscanf(hex, "%2x", &byte) == 1; hex += 2)
			body[length++] = (uint8_t)byte;
		add_events(&out, line, body, length);
		printf("%.*s\n", (int)out.length, out.length ? out.data : "");
		json_free(&out);
		free(body);
	}
	free(line);
	return 0;
}
