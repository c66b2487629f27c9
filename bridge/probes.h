/* The USDT notes of an ELF binary (.note.stapsdt). The only file that knows libelf is probes.c. */
#ifndef CORETAP_PROBES_H
#define CORETAP_PROBES_H

#include <stddef.h>
#include <stdint.h>

#include "operands.h"

/* One place in the code where a tracepoint fires; a tracepoint may have several. */
struct probe_site {
	char *provider;
	char *name;
	char *args;	    /* argument specification, as the note has it */
	uint64_t address;   /* link-time address */
	uint64_t offset;    /* the same as an offset in the file: what uprobes want */
	uint64_t semaphore; /* file offset of its semaphore, 0 = none */
};

struct probes {
	enum arch arch;
	uint64_t entry;	    /* file offset of the ELF entry point, 0 = none */
	char build_id[129]; /* hexadecimal, "" = none */
	struct probe_site *sites;
	size_t n_sites;
	size_t n_unusable; /* notes left out: malformed, or code or semaphore not in the file */
	void *symbols;	   /* for probes_resolve */
};

/* Reads the notes of the file behind fd (from its start; the offset of fd is not used); name is
 * for messages only. A binary without notes is no error: n_sites is 0.
 * On failure returns -errno and puts one line in error that says what the file is instead:
 * -ENOEXEC for what is not an ELF executable or shared object, -ENOTSUP for another architecture or
 * 32 bits, -EISDIR, -EBADMSG for a broken ELF file. The caller frees with probes_free. */
int probes_read(int fd, const char *name, struct probes *out, char *error, size_t error_size);

void probes_free(struct probes *probes);

#define MAX_SYMBOL_NAME 1024

struct probe_function {
	uint64_t offset; /* in the file: what uprobes want */
	char symbol[MAX_SYMBOL_NAME];
};

/* Finds a function of the file behind fd (binary is its name for messages), whose notes were read
 * into probes: by the name of its
 * symbol, or by its C++ name without arguments ("ConnectBlock", "Chainstate::ConnectBlock") when
 * there is one such function. debug: a file with the symbols of a stripped binary, or NULL.
 * Returns 0; -ENOENT when there is none; -ENODATA when there are no symbols at all; -ENOTUNIQ when
 * there are several; -ESTALE when debug belongs to another binary; or another -errno. What is wrong
 * is then said in error. */
int probes_function(const struct probes *probes, int fd, const char *binary, const char *name,
		    const char *debug, struct probe_function *out, char *error, size_t error_size);

/* operand_context.resolve for these probes (arg = struct probes *). Knows the symbols that their
 * own args name; -ENOENT also when a name stands for several places. */
int probes_resolve(void *arg, const char *symbol, size_t len, uint64_t *address);

/* The range of Bitcoin Core versions that these tracepoints fit: "v23-v24", "v25", "v26-v28",
 * "v29 or later", "unknown" (told apart by notes alone). */
const char *probes_core(const struct probes *probes);

#endif
