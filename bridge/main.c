/* coretapd: publishes the tracepoints of a Bitcoin Core node on ZeroMQ. */
#include "bridge.h"
#include "options.h"

int main(int argc, char **argv)
{
	struct options options;
	struct bridge *bridge = NULL;
	int code;

	if (!options_parse(&options, argc, argv, &code))
		return code;
	code = bridge_open(&bridge, &options);
	if (!code && !options.check)
		code = bridge_run(bridge);
	bridge_close(bridge);
	return code;
}
