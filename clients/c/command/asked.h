/* The catalogue of a coretapd that runs, with the tracepoints that its operator declared. */
#ifndef CORETAP_ASKED_H
#define CORETAP_ASKED_H

#include "../../../protocol/catalogue.h"
#include "command.h"

/* Asks the replay socket at follow->address, with its keys. *events lives until the program ends.
 * Returns EXIT_DONE or an exit code, after saying why. */
int catalogue_ask(const struct follow *follow, const struct event_desc **events, size_t *n);

#endif
