/* libFuzzer: any argument specification, on both architectures. */
#include "../../bridge/operands.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int resolve(void *arg, const char *symbol, size_t len, uint64_t *address)
{
	uint64_t sum = 0;

	(void)arg;
	if (len == 0)
		abort();
	for (size_t i = 0; i < len; i++)
		sum = sum * 31 + (unsigned char)symbol[i];
	*address = sum;
	return sum % 4 ? 0 : -ENOENT;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	for (int arch = ARCH_X86_64; arch <= ARCH_AARCH64; arch++) {
		const struct operand_context context = { (enum arch)arch, 0x1234, resolve, NULL };
		struct operand out[MAX_ARGS];
		unsigned int unsupported, none = 0;
		char *spec = malloc(size + 1);
		size_t len;
		int n;

		if (!spec)
			abort();
		memcpy(spec, data, size);
		spec[size] = '\0';
		memset(out, 0xee, sizeof(out));
		n = operands_parse(spec, &context, out, MAX_ARGS, &unsupported);
		if (n != -E2BIG && (n < 0 || n > MAX_ARGS))
			abort();
		for (int i = 0; i < n; i++) {
			const struct operand *op = &out[i];
			unsigned int limit = arch == ARCH_X86_64 ? 168 : 272;

			none += op->kind == OPERAND_NONE;
			if (op->kind > OPERAND_MEM || op->is_signed > 1 || op->scale > 3 ||
			    (op->shift != 0 && op->shift != 8) || op->base % 8 || op->index % 8 ||
			    op->base >= limit || op->index >= limit ||
			    (op->kind != OPERAND_NONE && op->size != 1 && op->size != 2 &&
			     op->size != 4 && op->size != 8))
				abort();
			if (operands_text(spec, (unsigned int)i, &len) < spec || len == 0)
				abort();
		}
		if (n >= 0 && none != unsupported)
			abort();
		if (n >= 0 && (operands_text(spec, (unsigned int)n, &len), len != 0))
			abort();
		free(spec);
	}
	return 0;
}
