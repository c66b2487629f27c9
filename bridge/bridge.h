/* The pipeline: rings -> events -> messages -> sockets. One thread, one loop. */
#ifndef CORETAP_BRIDGE_H
#define CORETAP_BRIDGE_H

#include "options.h"

struct bridge;

/* Finds the node, binds the sockets, loads and attaches. Returns 0 or an exit_code; the reason was
 * said in the log. */
int bridge_open(struct bridge **bridge, const struct options *options);

/* Runs until SIGTERM or SIGINT, or until the one process that was asked for is gone. Returns 0 or
 * an exit_code. */
int bridge_run(struct bridge *bridge);

/* Detaches, tells what is left, says goodbye to subscribers. NULL is fine. */
void bridge_close(struct bridge *bridge);

#endif
