/* The bridge's account in Prometheus' text format, and whether it is in good health. */
#ifndef CORETAP_EXPOSITION_H
#define CORETAP_EXPOSITION_H

#include <stddef.h>

struct bridge;

/* A whole page, malloc'ed, and its length; NULL without memory. */
char *exposition_make(const struct bridge *bridge, size_t *len);

/* NULL while the node's events are being published, else what is in the way. */
const char *exposition_problem(const struct bridge *bridge);

#endif
