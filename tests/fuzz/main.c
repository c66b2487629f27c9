/* Runs a fuzz target once over each file of its corpus, where there is no fuzzer: in `make check`.
 * A name on the command line is run alone. */
#include "fuzz.h"

#include <dirent.h>

__attribute__((weak)) int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	return 0;
}

static void run_file(const char *path)
{
	FILE *file = fopen(path, "re");
	uint8_t *data = NULL;
	long size;

	/* The last line that was printed names the file that a crash is due to. */
	printf("%s\n", path);
	fflush(stdout);
	MUST(file && !fseek(file, 0, SEEK_END) && (size = ftell(file)) >= 0);
	rewind(file);
	data = malloc((size_t)size);
	MUST(data && fread(data, 1, (size_t)size, file) == (size_t)size);
	fclose(file);
	LLVMFuzzerTestOneInput(data, (size_t)size);
	free(data);
}

int main(int argc, char **argv)
{
	const char *name = strrchr(argv[0], '/');
	char corpus[128], path[512];
	struct dirent *entry;
	size_t n = 0;
	DIR *dir;

	LLVMFuzzerInitialize(&argc, &argv);
	for (int i = 1; i < argc; i++)
		run_file(argv[i]);
	if (argc > 1)
		return 0;
	name = name ? name + 1 : argv[0];
	snprintf(corpus, sizeof(corpus), "tests/fuzz/corpus/%s", name + strcspn(name, "_") + 1);
	dir = opendir(corpus);
	if (!dir) {
		perror(corpus);
		return 1;
	}
	while ((entry = readdir(dir))) {
		if (entry->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "%s/%s", corpus, entry->d_name);
		run_file(path);
		n++;
	}
	closedir(dir);
	if (!n)
		fprintf(stderr, "%s: is empty\n", corpus);
	return n ? 0 : 1;
}
