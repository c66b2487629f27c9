/* A check that fails is told with the name of the test, and counted: main() returns it. */
#ifndef CORETAP_TEST_CHECK_H
#define CORETAP_TEST_CHECK_H

#include <stdio.h>

static int failures;
static const char *test_name;

#define CHECK(condition)                                                                   \
	do {                                                                               \
		if (!(condition)) {                                                        \
			printf("FAIL %s: line %d: %s\n", test_name, __LINE__, #condition); \
			failures++;                                                        \
		}                                                                          \
	} while (0)

#endif
