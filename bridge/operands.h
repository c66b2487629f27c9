/* Argument specifications of USDT notes ("8@%rbx -4@40(%r15)") for x86-64 and aarch64. */
#ifndef CORETAP_OPERANDS_H
#define CORETAP_OPERANDS_H

#include <stddef.h>
#include <stdint.h>

#include "../bpf/record.h"

enum arch { ARCH_X86_64, ARCH_AARCH64 };

struct operand_context {
	enum arch arch;
	uint64_t address; /* link-time address of the site: what the program counter holds there */
	/* Link-time address of a symbol, for sym(%rip); 0 or -ENOENT. May be NULL. */
	int (*resolve)(void *arg, const char *symbol, size_t len, uint64_t *address);
	void *arg;
};

/* Parses the specification of one site. An operand in a form that cannot be read becomes
 * OPERAND_NONE and is counted in *unsupported; the others keep their place.
 * Returns the number of operands, or -E2BIG when there are more than max. */
int operands_parse(const char *spec, const struct operand_context *context, struct operand *out,
		   size_t max, unsigned int *unsupported);

/* The text of operand number i of a specification, for messages; *len is 0 when there is none. */
const char *operands_text(const char *spec, unsigned int i, size_t *len);

#endif
