/* coretapd: publishes the tracepoints of a Bitcoin Core node on ZeroMQ. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "bridge.h"
#include "descriptors.h"
#include "log.h"
#include "options.h"

int main(int argc, char **argv)
{
	static struct bridge bridge; /* 150 kB: not for the stack */
	struct options options;
	int code;

	descriptors_prepare();
	if (!options_parse(&options, argc, argv, &code)) {
		options_free(&options);
		errno = EIO;
		if (!code && (fflush(stdout) || ferror(stdout))) {
			log_error("standard output: %s", strerror(errno));
			return EXIT_OTHER;
		}
		return code;
	}
	code = bridge_open(&bridge, &options);
	if (!code && !options.check && !options.detach)
		bridge_run(&bridge);
	bridge_close(&bridge);
	options_free(&options);
	log_flush();
	return code;
}
