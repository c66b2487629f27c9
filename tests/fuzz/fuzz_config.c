/* Any configuration file, through all options: either the options are sound, or the file is
 * refused. Seeds: bridge/debian, bridge/systemd and what the tests write. */
#include "fuzz.h"

#include "../../bridge/log.h"
#include "../../bridge/options.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct options o;
	char path[32], option[] = "--config", name[] = "coretapd";
	char *argv[] = { name, option, path, NULL };
	int fd = input_file(data, size, path), exit_code = -1;

	log_level((enum log_level)0);
	optind = 1; /* as in a new process */
	if (options_parse(&o, 3, argv, &exit_code)) {
		MUST(o.n_only <= MAX_GLOBS && o.n_exclude <= MAX_GLOBS && o.n_rules <= MAX_RULES);
		for (size_t i = 0; i < o.n_rules; i++)
			MUST(memchr(o.rules[i].type, '\0', RULE_KEY) && o.rules[i].type[0] &&
			     (o.rules[i].limit <= MAX_PAYLOAD));
		for (int i = 0; i < N_SOCKETS; i++)
			MUST(o.ring_bytes[i] >= 4096 && !(o.ring_bytes[i] & (o.ring_bytes[i] - 1)));
		MUST((o.pid != 0) + (o.pid_file != NULL) + (o.datadir != NULL) <= 1);
		MUST(!o.name || (*o.name && strlen(o.name) <= 32));
	} else {
		MUST(exit_code > 0);
	}
	options_free(&o);
	log_level((enum log_level)0); /* the file may have raised it */
	close(fd);
	return 0;
}
