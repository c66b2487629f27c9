/* The verdicts of the C decoder: for each line "TOPIC HEX" of standard input one of standard
 * output. */
#include "verdict.h"

#include <stdio.h>
#include <stdlib.h>

int main(void)
{
	char *line = NULL, *hex;
	size_t size = 0;

	setlinebuf(stdout); /* who asks waits for it */
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
		add_verdict(&out, line, body, length);
		printf("%.*s\n", (int)out.length, out.length ? out.data : "");
		json_free(&out);
		free(body);
	}
	free(line);
	return 0;
}
