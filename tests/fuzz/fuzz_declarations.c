/* libFuzzer: any file of declarations. Seeds: bridge/tracepoints/. */
#include "../../bridge/declarations.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct declarations d;
	char error[1200] = "";
	int err;

	declarations_init(&d);
	err = declarations_parse(&d, "dir/fuzz.yaml", (const char *)data, size, error,
				 sizeof(error));
	if (err > 0 || (err < 0) != (error[0] != '\0') || (err < 0 && d.n != d.n_built_in))
		abort();
	for (size_t i = d.n_built_in; i < d.n; i++) {
		const struct declaration *one = declarations_of(&d, i);
		uint32_t bytes = sizeof(struct record);
		unsigned int arguments = 0;

		if (!d.events[i].topic || !d.events[i].name || one->event.n_fields > MAX_FIELDS)
			abort();
		for (unsigned int f = 0; f < one->event.n_fields; f++) {
			const struct field_desc *field = &one->event.fields[f];

			if (!field->name || strlen(field->name) != field->name_len ||
			    !field->unit || !field->doc || one->operand[f] >= MAX_ARGS)
				abort();
			arguments += field->argument;
			if (field->argument && field->type != TYPE_PAYLOAD)
				bytes += field->slot;
		}
		if (arguments > MAX_ARGS || bytes > MAX_RECORD_SIZE || d.n > MAX_PROBES - 1)
			abort();
	}
	declarations_free(&d);
	return 0;
}
