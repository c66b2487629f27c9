/* JavaScript under libFuzzer: node runs the function of targets.mjs that the program is named
 * after, in a process of its own, and tells after each input how often V8 saw which ranges of our
 * code run. They count as the edges of C do. The C decoder is here, for targets.mjs to compare. */
#include "../conformance/verdict.h"
#include "fuzz.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define EDGES (1u << 16)

__attribute__((section("__libfuzzer_extra_counters"))) static uint8_t edges[EDGES];
static FILE *to, *from;
static pid_t node;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	int there[2], back[2];

	(void)argc;
	MUST(!pipe(there) && !pipe(back) && (node = fork()) >= 0);
	if (!node) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(there[0], 0);
		dup2(back[1], 1);
		for (int i = 0; i < 2; i++) {
			close(there[i]);
			close(back[i]);
		}
		execlp("node", "node", "--max-old-space-size=1024", "tests/fuzz/targets.mjs",
		       strrchr((*argv)[0], '_') + 1, NULL);
		perror("node");
		_exit(127);
	}
	close(there[0]);
	close(back[1]);
	to = fdopen(there[1], "we");
	from = fdopen(back[0], "re");
	MUST(to && from);
	return 0;
}

/* "TOPIC HEX": what the C decoder says of it is sent back. */
static void answer(char *line)
{
	struct json out = { 0 };
	char *hex = strchr(line, ' ');
	size_t length;
	uint8_t *body;

	MUST(hex);
	*hex++ = '\0';
	length = strcspn(hex, "\n") / 2;
	body = malloc(length);
	MUST(body);
	for (size_t i = 0; i < length; i++)
		MUST(sscanf(hex + 2 * i, "%2hhx", &body[i]) == 1);
	add_verdict(&out, line, body, length);
	fprintf(to, "%.*s\n", (int)out.length, out.length ? out.data : "");
	fflush(to);
	json_free(&out);
	free(body);
}

/* "=RANGE COUNT RANGE COUNT ..." */
static void count(char *line)
{
	char *at = line + 1;

	while (*at != '\n') {
		unsigned long range = strtoul(at, &at, 10), times = strtoul(at, &at, 10);
		unsigned long sum = edges[range % EDGES] + times;

		edges[range % EDGES] = (uint8_t)(sum < 255 ? sum : 255);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static char *line;
	static size_t room;
	uint32_t length = (uint32_t)size;
	struct sigaction clock;
	int status;

	/* The fuzzer's clock must not cut the pipe. */
	sigaction(SIGALRM, NULL, &clock);
	clock.sa_flags |= SA_RESTART;
	sigaction(SIGALRM, &clock, NULL);
	fwrite(&length, sizeof(length), 1, to);
	fwrite(data, 1, size, to);
	fflush(to);
	do {
		if (getline(&line, &room, from) <= 0) {
			/* What it could not bear stands above. */
			MUST(waitpid(node, &status, 0) == node);
			fprintf(stderr, "node ended with status %x\n", (unsigned int)status);
			abort();
		}
		if (*line == '=')
			count(line);
		else
			answer(line);
	} while (*line != '=');
	return 0;
}
