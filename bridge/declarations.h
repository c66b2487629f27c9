/* Tracepoints and functions that an operator declares in a file (--tracepoints), read with libyaml
 * and appended to the built-in catalogue. bridge/tracepoints/example.yaml explains the format. */
#ifndef CORETAP_DECLARATIONS_H
#define CORETAP_DECLARATIONS_H

#include "../bpf/record.h"
#include "../protocol/catalogue.h"

/* What the catalogue does not say of a declared event. */
struct declaration {
	struct event_desc event;
	struct field_desc fields[MAX_FIELDS];
	const char *file;
	unsigned int line;
	unsigned int field_lines[MAX_FIELDS];
	/* Of a tracepoint: the number of the argument in the note. Arguments that are skipped cost
	 * nothing: the kernel is not told of them. */
	uint8_t operand[MAX_FIELDS];
	unsigned int n_operands; /* that the list has, skipped ones included */
	uint32_t payload_limit;
	/* Of a function. event.name is its symbol. */
	bool is_function;
	bool throws_nothing;
	const char *debug;		   /* file with its symbol, NULL = the binary itself */
	const char *args;		   /* the operands as text, for people */
	struct operand operands[MAX_ARGS]; /* of its record, from record.h's REGISTER_ places */
};

struct declarations {
	struct event_desc events[MAX_PROBES]; /* the built-in ones, then the declared ones */
	size_t n, n_built_in;
	struct declaration *table[MAX_PROBES]; /* of event n_built_in + i */
	struct kept *kept;		       /* texts */
};

/* The built-in catalogue alone. */
void declarations_init(struct declarations *declarations);
void declarations_free(struct declarations *declarations);

/* Appends what a file declares. Returns 0, or -errno with one line in error that names file, line
 * and field: nothing of the file is appended then. */
int declarations_read(struct declarations *declarations, const char *path, char *error,
		      size_t error_size);

/* The same for text in memory; path is for messages, and for what debug files are relative to. */
int declarations_parse(struct declarations *declarations, const char *path, const char *text,
		       size_t len, char *error, size_t error_size);

/* The declaration of an event of the table, NULL for a built-in one. */
const struct declaration *declarations_of(const struct declarations *declarations, size_t event);

#endif
