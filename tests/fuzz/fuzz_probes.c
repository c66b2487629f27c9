/* libFuzzer: any file as a binary with probes. Seeds: small ELF files. */
#include "../../bridge/probes.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	int fd = memfd_create("fuzz", MFD_CLOEXEC);
	struct operand out[MAX_ARGS];
	struct probes probes;
	unsigned int unused;
	char error[128];
	int err;

	if (fd < 0 || write(fd, data, size) != (ssize_t)size)
		abort();
	err = probes_read(fd, "fuzz", &probes, error, sizeof(error));
	if (err > 0 || (err < 0) != (error[0] != '\0') || (err < 0 && probes.n_sites > 0))
		abort();
	for (size_t i = 0; i < probes.n_sites; i++) {
		const struct probe_site *site = &probes.sites[i];
		const struct operand_context context = { probes.arch, site->address, probes_resolve,
							 &probes };

		if (!*site->provider || !*site->name || site->offset == 0 || site->offset >= size ||
		    site->semaphore >= size)
			abort();
		operands_parse(site->args, &context, out, MAX_ARGS, &unused);
	}
	if (!err) {
		static const char *const names[] = { "main", "f", "Chain::Connect", "" };
		struct probe_function function;

		for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
			error[0] = '\0';
			if (!probes_function(&probes, fd, "fuzz", names[i], NULL, &function, error,
					     sizeof(error)) != (error[0] == '\0'))
				abort();
		}
	}
	if (!*probes_core(&probes) || strlen(probes.build_id) >= sizeof(probes.build_id))
		abort();
	probes_free(&probes);
	close(fd);
	return 0;
}
