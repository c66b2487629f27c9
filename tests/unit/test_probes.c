/* Reads binaries built here with gcc and <sys/sdt.h>, and whatever else can be given as a binary.
 * Witness of addresses and arguments: readelf. Exits 77 where the tools are missing. */
#define _GNU_SOURCE 1 /* memfd_create */
#include "../../bridge/probes.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int failures;
static int n_symbols; /* binaries whose symbols were checked */

static void check(bool ok, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void check(bool ok, const char *fmt, ...)
{
	va_list args;

	if (ok)
		return;
	va_start(args, fmt);
	printf("FAIL ");
	vprintf(fmt, args);
	printf("\n");
	va_end(args);
	failures++;
}

/* Several sites, semaphores, operands in every place; two files with a static variable of one name.
 */
static const char main_source[] =
	"#define _SDT_HAS_SEMAPHORES 1\n"
	"#include <sys/sdt.h>\n"
	"#define SEMAPHORE(p, n) \\\n"
	"	unsigned short p##_##n##_semaphore __attribute__((section(\".probes\")))\n"
	"SEMAPHORE(mempool, added); SEMAPHORE(net, misbehaving_connection);\n"
	"SEMAPHORE(net, twin);\n"
	"static volatile int counter; static volatile long table[4]; static volatile int twin;\n"
	"void other(void);\n"
	"__attribute__((noinline)) void f(void *id, int vsize, long fee)\n"
	"{ STAP_PROBE3(mempool, added, id, vsize, fee); }\n"
	"__attribute__((noinline)) void g(long fee, void *id, int vsize)\n"
	"{ STAP_PROBE3(mempool, added, id, vsize, fee); }\n"
	"__attribute__((noinline)) void h(long i)\n"
	"{ counter++; table[2]++; STAP_PROBE4(net, misbehaving_connection, counter, table[2], "
	"table[i & 3], (unsigned char)1); }\n"
	"__attribute__((noinline)) void t(void) { twin++; STAP_PROBE1(net, twin, twin); }\n"
	"int main(int argc, char **argv)\n"
	"{ f(argv, argc, argc); g(argc, argv, argc); h(argc); t(); other(); return 0; }\n";

static const char other_source[] =
	"#include <sys/sdt.h>\n"
	"static volatile int twin;\n"
	"void other(void);\n"
	"void other(void) { twin++; STAP_PROBE1(net, twin2, twin); STAP_PROBE(net, nothing); }\n";

/* Notes that a compiler does not write, in a section that is loaded. */
static const char odd_source[] =
	".macro NOTE address, base, semaphore, strings:vararg\n"
	".pushsection .note.stapsdt, \"a\", \"note\"\n"
	".balign 4\n"
	".4byte 8, 994f-993f, 3\n"
	".asciz \"stapsdt\"\n"
	"993: .8byte \\address, \\base, \\semaphore\n"
	".ascii \\strings\n"
	"994: .balign 4\n"
	".popsection\n"
	".endm\n"
	".section .stapsdt.base, \"a\"\n"
	"base: .space 1\n"
	".section .probes, \"aw\"\n"
	".balign 2\n"
	"semaphore: .space 4\n"
	".bss\n"
	"late: .space 70000\n"
	".section .rodata, \"a\"\n"
	".balign 2\n"
	"constant: .space 2\n"
	".text\n"
	".globl _start\n"
	"_start:\n"
	"code: nop\n"
	"nop\n"
	"nop\n"
	"NOTE code, base, 0, \"p\\0plain\\0%eax 8@$-1\\0\"\n"
	"NOTE code+1, base, semaphore+2, \"p\\0counted\\0\\0\"\n"
	/* prelinked: all moved by the same distance */
	"NOTE code+2-0x1000, base-0x1000, semaphore-0x1000, \"p\\0prelinked\\0 4@%eax\\0more\"\n"
	"NOTE code, 0, 0, \"p\\0baseless\\0004@missing(%rip) 4@code+1(%rip)\\0\"\n"
	/* dropped by the linker: not even counted */
	"NOTE 0, base, 0, \"p\\0dropped\\0\\0\"\n"
	/* eleven unusable ones */
	"NOTE 0x10, base, 0, \"p\\0nowhere\\0\\0\"\n"
	"NOTE semaphore, base, 0, \"p\\0data\\0\\0\"\n"
	"NOTE code, base, late+65536, \"p\\0bss\\0\\0\"\n"
	"NOTE code, base, constant, \"p\\0readonly\\0\\0\"\n"
	"NOTE code, base, semaphore+1, \"p\\0misaligned\\0\\0\"\n"
	"NOTE code, base, 0xffffffffffffffff, \"p\\0high\\0\\0\"\n"
	"NOTE code, base, 0, \"p\\0unterminated\\0 8@%rax\"\n"
	"NOTE code, base, 0, \"p\\0short\"\n"
	"NOTE code, base, 0, \"\\0anonymous\\0\\0\"\n"
	"NOTE code, base, 0, \"p\\0\\0\\0\"\n"
	".section .note.stapsdt, \"a\", \"note\"\n"
	".balign 4\n"
	".4byte 8, 16, 3\n"
	".asciz \"stapsdt\"\n"
	".8byte code, base\n"
	/* others' notes */
	".4byte 8, 0, 4\n"
	".asciz \"stapsdt\"\n"
	".4byte 0, 0, 0\n"
	".4byte 4, 4, 3\n"
	".asciz \"abc\"\n"
	".4byte 0\n"
	".section .note.GNU-stack, \"\", %progbits\n";
#define ODD_SITES 4
#define ODD_UNUSABLE 11

static bool run(const char *command)
{
	return system(command) == 0;
}

static void must(const char *command)
{
	if (!run(command)) {
		printf("FAIL cannot prepare: %s\n", command);
		exit(1);
	}
}

static void write_file(const char *path, const void *bytes, size_t len)
{
	FILE *f = fopen(path, "w");

	if (!f || fwrite(bytes, 1, len, f) != len || fclose(f) != 0) {
		perror(path);
		exit(1);
	}
}

static unsigned char *load_file(const char *path, size_t *len)
{
	unsigned char *bytes;
	struct stat st;
	FILE *f = fopen(path, "r");

	if (!f || fstat(fileno(f), &st) < 0) {
		perror(path);
		exit(1);
	}
	*len = (size_t)st.st_size;
	bytes = malloc(*len);
	if (!bytes || fread(bytes, 1, *len, f) != *len)
		abort();
	fclose(f);
	return bytes;
}

/* Reads a file that must be readable. */
static void read_good(const char *path, struct probes *probes)
{
	char error[256] = "unset";
	int fd = open(path, O_RDONLY | O_CLOEXEC), err;

	check(fd >= 0, "%s: open: %s", path, strerror(errno));
	check(lseek(fd, 100, SEEK_SET) == 100, "%s: lseek", path);
	err = probes_read(fd, path, probes, error, sizeof(error));
	check(err == 0, "%s: %d, %s", path, err, error);
	check(error[0] == '\0', "%s: error text without error: %s", path, error);
	check(lseek(fd, 0, SEEK_CUR) == 100, "%s: the offset of the descriptor moved", path);
	close(fd);
}

static void check_failure(int err, const char *error, const struct probes *probes, const char *path,
			  int expected, const char *part)
{
	check(err == expected, "%s: %d (%s), expected %d", path, err, error, expected);
	check(strstr(error, part) != NULL, "%s: \"%s\" does not say \"%s\"", path, error, part);
	check(strncmp(error, path, strlen(path)) == 0 && !strchr(error, '\n'),
	      "%s: \"%s\" is not one line that begins with the name", path, error);
	check(probes->n_sites == 0 && !probes->sites && !probes->symbols, "%s: leftovers", path);
}

static void read_bad(const char *path, int expected, const char *part)
{
	char error[256] = "";
	struct probes probes;
	int fd = open(path, O_RDONLY | O_CLOEXEC), err;

	check(fd >= 0, "%s: open: %s", path, strerror(errno));
	err = probes_read(fd, path, &probes, error, sizeof(error));
	check_failure(err, error, &probes, path, expected, part);
	close(fd);
}

static int read_bytes(const void *bytes, size_t len, struct probes *probes, char *error,
		      size_t error_size)
{
	int fd = memfd_create("probes", MFD_CLOEXEC), err;

	if (fd < 0 || write(fd, bytes, len) != (ssize_t)len)
		abort();
	err = probes_read(fd, "memfd", probes, error, error_size);
	close(fd);
	return err;
}

static void bytes_bad(const void *bytes, size_t len, int expected, const char *part)
{
	char error[256] = "";
	struct probes probes;
	int err = read_bytes(bytes, len, &probes, error, sizeof(error));

	check_failure(err, error, &probes, "memfd", expected, part);
}

/* File offset of an address by readelf's list of segments. */
static unsigned long long offset_by_readelf(const char *path, unsigned long long address)
{
	unsigned long long offset, vaddr, paddr, filesz, memsz, found = 0;
	char command[256], line[512];
	FILE *f;

	snprintf(command, sizeof(command), "readelf -lW %s 2>&1", path);
	f = popen(command, "r");
	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, " LOAD %llx %llx %llx %llx %llx", &offset, &vaddr, &paddr, &filesz,
			   &memsz) == 5 &&
		    address >= vaddr && address < vaddr + filesz)
			found = address - vaddr + offset;
	if (f)
		pclose(f);
	return found;
}

/* The rest of a line behind a label, if the label is there. */
static void after(const char *line, const char *label, char *out, size_t size)
{
	const char *found = strstr(line, label);

	if (!found)
		return;
	found += strlen(label);
	snprintf(out, size, "%.*s", (int)strcspn(found, "\n"), found);
}

/* Compares every site, the build id and the entry point with what readelf says. */
static void compare(const char *path, const struct probes *probes, size_t at_least)
{
	unsigned long long location = 0, base, semaphore = 0, entry = 0;
	char command[256], line[1024], provider[128] = "", name[128] = "", id[160] = "";
	size_t n = 0;
	FILE *f;

	snprintf(command, sizeof(command), "readelf -nhW %s 2>&1", path);
	f = popen(command, "r");
	while (f && fgets(line, sizeof(line), f)) {
		const struct probe_site *site;
		char *args;

		sscanf(line, " Entry point address: %llx", &entry);
		after(line, "Build ID: ", id, sizeof(id));
		after(line, "Provider: ", provider, sizeof(provider));
		after(line, " Name: ", name, sizeof(name));
		sscanf(line, " Location: %llx, Base: %llx, Semaphore: %llx", &location, &base,
		       &semaphore);
		args = strstr(line, "Arguments: ");
		if (!args)
			continue;
		args += strlen("Arguments: ");
		args[strcspn(args, "\n")] = '\0';
		if (n++ >= probes->n_sites)
			continue;
		site = &probes->sites[n - 1];
		check(strcmp(site->provider, provider) == 0 && strcmp(site->name, name) == 0,
		      "%s: site %zu is %s:%s, readelf: %s:%s", path, n, site->provider, site->name,
		      provider, name);
		check(strcmp(site->args, args) == 0, "%s %s: args \"%s\", readelf: \"%s\"", path,
		      name, site->args, args);
		check(site->address == location, "%s %s: address", path, name);
		check(site->offset == offset_by_readelf(path, location) && site->offset != 0,
		      "%s %s: offset", path, name);
		check(site->semaphore == (semaphore ? offset_by_readelf(path, semaphore) : 0),
		      "%s %s: semaphore", path, name);
	}
	if (f)
		pclose(f);
	check(n == probes->n_sites, "%s: %zu sites, readelf: %zu", path, probes->n_sites, n);
	check(n >= at_least, "%s: %zu sites, expected %zu or more", path, n, at_least);
	check(probes->n_unusable == 0, "%s: %zu unusable notes", path, probes->n_unusable);
	check(strcmp(probes->build_id, id) == 0, "%s: build id %s, readelf: %s", path,
	      probes->build_id, id);
	check(probes->entry == (entry ? offset_by_readelf(path, entry) : 0), "%s: entry", path);
}

static const struct probe_site *site_of(const struct probes *probes, const char *name)
{
	for (size_t i = 0; i < probes->n_sites; i++)
		if (strcmp(probes->sites[i].name, name) == 0)
			return &probes->sites[i];
	printf("FAIL no site of %s\n", name);
	exit(1);
}

static int parse_site(const struct probes *probes, const char *name, struct operand *out,
		      unsigned int *unsupported)
{
	const struct probe_site *site = site_of(probes, name);
	const struct operand_context context = { probes->arch, site->address, probes_resolve,
						 (void *)probes };

	return operands_parse(site->args, &context, out, MAX_ARGS, unsupported);
}

static uint64_t address_by_nm(const char *path, const char *symbol)
{
	unsigned long long address = 0;
	char command[256], name[128], type;
	FILE *f;

	snprintf(command, sizeof(command), "nm %s | grep ' %s$'", path, symbol);
	f = popen(command, "r");
	if (!f || fscanf(f, "%llx %c %127s", &address, &type, name) != 3)
		check(false, "%s: nm has no %s", path, symbol);
	if (f)
		pclose(f);
	return address;
}

/* Static variables by sym(%rip); gcc's choice of operands, hence asked for first. */
static void check_symbols(const char *path, const struct probes *probes, bool stripped)
{
	const struct probe_site *site = site_of(probes, "misbehaving_connection");
	struct operand out[MAX_ARGS];
	unsigned int unsupported;
	uint64_t address;
	int n;

	if (probes->arch != ARCH_X86_64)
		return;
	if (!strstr(site->args, "counter(%rip)"))
		return;
	n_symbols++;
	n = parse_site(probes, "misbehaving_connection", out, &unsupported);
	check(n == 4, "%s: %d operands", path, n);
	if (stripped) {
		check(out[0].kind == OPERAND_NONE && unsupported >= 1,
		      "%s: a symbol without a table of symbols", path);
		return;
	}
	check(unsupported == 0, "%s: unsupported in \"%s\"", path, site->args);
	check(out[0].kind == OPERAND_MEM && out[0].has_base && out[0].base == 128 &&
		      out[0].size == 4 && out[0].is_signed &&
		      (uint64_t)out[0].value == address_by_nm(path, "counter") - site->address,
	      "%s: counter(%%rip)", path);
	if (strstr(site->args, "table+16(%rip)") || strstr(site->args, "16+table(%rip)"))
		check((uint64_t)out[1].value == address_by_nm(path, "table") + 16 - site->address,
		      "%s: table+16(%%rip)", path);
	check(out[3].kind == OPERAND_CONST && out[3].value == 1, "%s: constant", path);
	check(probes_resolve((void *)probes, "counter", 6, &address) == -ENOENT &&
		      probes_resolve((void *)probes, "counter1", 8, &address) == -ENOENT &&
		      probes_resolve((void *)probes, "counter1", 7, &address) == 0,
	      "%s: length of a symbol", path);

	/* Two static variables have this name: no way to know which one is meant. */
	n = parse_site(probes, "twin", out, &unsupported);
	if (strstr(site_of(probes, "twin")->args, "twin(%rip)"))
		check(n == 1 && unsupported == 1, "%s: an ambiguous symbol was taken", path);
}

static void test_builds(void)
{
	static const struct {
		const char *path, *build;
	} builds[] = {
		{ "pie", "gcc -O2 -fpie -pie a.c b.c -o pie" },
		{ "plain", "gcc -O2 -fno-pie -no-pie a.c b.c -o plain" },
		{ "shared.so", "gcc -O2 -fPIC -shared a.c b.c -o shared.so" },
		{ "compact", "gcc -O2 -Wl,-z,noseparate-code a.c b.c -o compact" },
		{ "debug", "gcc -O0 -g a.c b.c -o debug" },
		{ "gc", "gcc -O2 -ffunction-sections -Wl,--gc-sections a.c b.c -o gc" },
		{ "stripped", "strip -o stripped pie" },
		/* last: they need a static libc */
		{ "static-pie", "gcc -O2 -fpie -static-pie a.c b.c -o static-pie" },
		{ "static", "gcc -O2 -fno-pie -no-pie -static a.c b.c -o static" },
		{ "stripped-static", "strip -o stripped-static static" },
	};
	bool x86 = false;

	for (size_t i = 0; i < sizeof(builds) / sizeof(builds[0]); i++) {
		bool stripped = strncmp(builds[i].path, "stripped", 8) == 0;
		struct probes probes;

		if (strcmp(builds[i].path, "static-pie") == 0 &&
		    !run("gcc -static a.c b.c -o static > /dev/null 2>&1")) {
			printf("not tested: static binaries (no static libc)\n");
			break;
		}
		must(builds[i].build);
		read_good(builds[i].path, &probes);
		compare(builds[i].path, &probes, 6);
		check(site_of(&probes, "added")->semaphore != 0, "%s: added's semaphore",
		      builds[i].path);
		check(site_of(&probes, "twin2")->semaphore == 0, "%s: twin2's semaphore",
		      builds[i].path);
		x86 = probes.arch == ARCH_X86_64;
		check_symbols(builds[i].path, &probes, stripped);
		check(strcmp(probes_core(&probes), "unknown") == 0, "%s: core", builds[i].path);
		probes_free(&probes);
		check(probes.n_sites == 0 && !probes.sites, "%s: free", builds[i].path);
		probes_free(&probes);
	}
	check(!x86 || n_symbols >= 4, "symbols were checked in %d binaries only", n_symbols);
}

/* Binaries without probes are no error. */
static void test_none(void)
{
	struct probes probes;

	must("echo 'int main(void) { return 0; }' > none.c && gcc none.c -o none");
	read_good("none", &probes);
	compare("none", &probes, 0);
	check(probes.n_sites == 0 && probes.entry != 0, "none: sites or no entry point");
	probes_free(&probes);

	must("objcopy --remove-section=.note.stapsdt pie removed");
	read_good("removed", &probes);
	check(probes.n_sites == 0 && probes.n_unusable == 0, "removed: sites");
	check(probes.entry != 0 && probes.build_id[0], "removed: entry point or build id");
	probes_free(&probes);

	must("gcc -Wl,--build-id=none none.c -o no-id");
	read_good("no-id", &probes);
	check(probes.build_id[0] == '\0', "no-id: build id");
	probes_free(&probes);

	must("gcc -Wl,--build-id=0x0102ff none.c -o short-id");
	read_good("short-id", &probes);
	check(strcmp(probes.build_id, "0102ff") == 0, "short-id: build id %s", probes.build_id);
	probes_free(&probes);
}

static void check_odd(const char *path, uint64_t moved, bool prelinked)
{
	static const char *const names[ODD_SITES] = { "plain", "counted", "prelinked", "baseless" };
	static const char *const args[ODD_SITES] = { "%eax 8@$-1", "", " 4@%eax",
						     "4@missing(%rip) 4@code+1(%rip)" };
	uint64_t code = address_by_nm("odd", "code"), semaphore = address_by_nm("odd", "semaphore");
	size_t expected = prelinked ? ODD_SITES : ODD_SITES - 1;
	struct probes probes;

	read_good(path, &probes);
	check(probes.n_sites == expected, "%s: %zu sites, expected %zu", path, probes.n_sites,
	      expected);
	check(probes.n_unusable == ODD_UNUSABLE + ODD_SITES - expected, "%s: %zu unusable", path,
	      probes.n_unusable);
	for (size_t i = 0, k = 0; i < ODD_SITES && k < probes.n_sites; i++) {
		const struct probe_site *site = &probes.sites[k];

		if (!prelinked && i == 2)
			continue;
		k++;
		check(strcmp(site->name, names[i]) == 0, "%s: %s, expected %s", path, site->name,
		      names[i]);
		check(strcmp(site->args, args[i]) == 0, "%s: %s args \"%s\"", path, names[i],
		      site->args);
		check(site->address == code + i % 3 + moved, "%s: %s address", path, names[i]);
		check(site->offset == offset_by_readelf("odd", code + i % 3), "%s: %s offset", path,
		      names[i]);
		check(site->semaphore == (i == 1   ? offset_by_readelf("odd", semaphore + 2)
					  : i == 2 ? offset_by_readelf("odd", semaphore)
						   : 0),
		      "%s: %s semaphore", path, names[i]);
	}
	probes_free(&probes);
}

/* Notes by hand; then the same without the table of sections, where only segments are left. */
static void test_odd(void)
{
	unsigned char *bytes;
	Elf64_Ehdr *header;
	Elf64_Shdr *sections;
	struct operand out[MAX_ARGS];
	unsigned int unsupported;
	struct probes probes;
	char error[256];
	size_t len;
	int n;

	must("gcc -nostdlib -static -no-pie odd.S -o odd");
	check_odd("odd", 0, true);
	read_good("odd", &probes);
	n = parse_site(&probes, "baseless", out, &unsupported);
	if (probes.arch == ARCH_X86_64)
		check(n == 2 && unsupported == 1 && out[0].kind == OPERAND_NONE &&
			      out[1].kind == OPERAND_MEM && out[1].value == 1,
		      "odd: a missing and a present symbol");
	probes_free(&probes);

	bytes = load_file("odd", &len);
	header = (Elf64_Ehdr *)bytes;
	sections = (Elf64_Shdr *)(bytes + header->e_shoff);
	for (size_t i = 0; i < header->e_shnum; i++)
		for (size_t at = 0; sections[i].sh_type == SHT_SYMTAB && at < sections[i].sh_size;
		     at += sizeof(Elf64_Sym))
			((Elf64_Sym *)(bytes + sections[i].sh_offset + at))->st_shndx = SHN_UNDEF;
	check(read_bytes(bytes, len, &probes, error, sizeof(error)) == 0, "undefined: %s", error);
	n = parse_site(&probes, "baseless", out, &unsupported);
	check(n == 2 && (probes.arch != ARCH_X86_64 || unsupported == 2),
	      "odd: an undefined symbol was taken");
	probes_free(&probes);

	header->e_shoff = 0;
	header->e_shnum = header->e_shstrndx = 0;
	write_file("sectionless", bytes, len);
	/* no .stapsdt.base there, hence no correction: the moved address is nowhere */
	check_odd("sectionless", 0, false);
	free(bytes);

	/* as usual: the notes are not loaded, and only the build id is left */
	bytes = load_file("pie", &len);
	header = (Elf64_Ehdr *)bytes;
	header->e_shoff = 0;
	header->e_shnum = header->e_shstrndx = 0;
	check(read_bytes(bytes, len, &probes, error, sizeof(error)) == 0, "pie: %s", error);
	check(probes.n_sites == 0 && probes.build_id[0], "pie without sections");
	probes_free(&probes);
	free(bytes);
}

static void test_wrong_files(void)
{
	unsigned char garbage[256];

	must("mkdir -p directory && : > empty && printf '#!/bin/sh\\nexec bitcoind\\n' > script && "
	     "echo hello > text && mkfifo fifo && gcc -c -O2 a.c -o object.o && "
	     "ar rc archive.a object.o && objcopy --only-keep-debug debug debug.debug");
	read_bad("directory", -EISDIR, "directory");
	read_bad("empty", -ENOEXEC, "empty");
	read_bad("script", -ENOEXEC, "script");
	read_bad("text", -ENOEXEC, "text file");
	read_bad("object.o", -ENOEXEC, "object file");
	read_bad("archive.a", -ENOEXEC, "not an ELF executable");
	read_bad("debug.debug", -ENOEXEC, "debug information");
	read_bad("/dev/null", -ENOEXEC, "not a regular file");
	for (size_t i = 0; i < sizeof(garbage); i++)
		garbage[i] = (unsigned char)(i * 7);
	bytes_bad(garbage, sizeof(garbage), -ENOEXEC, "not an ELF executable");
	bytes_bad("\177EL", 3, -ENOEXEC, "not an ELF executable");
	bytes_bad("#", 1, -ENOEXEC, "text file");
	bytes_bad("\0", 1, -ENOEXEC, "not an ELF executable");
}

static void test_wrong_headers(void)
{
	size_t len;
	unsigned char *bytes = load_file("pie", &len);
	Elf64_Ehdr *header = (Elf64_Ehdr *)bytes;
	const Elf64_Ehdr good = *header;
	struct probes probes;
	char error[256], tiny[8];

	header->e_machine = EM_RISCV;
	bytes_bad(bytes, len, -ENOTSUP, "ELF machine 243");
	header->e_machine = EM_PPC64;
	bytes_bad(bytes, len, -ENOTSUP, "processor");
	header->e_machine = good.e_machine == EM_X86_64 ? EM_AARCH64 : EM_X86_64;
	check(read_bytes(bytes, len, &probes, error, sizeof(error)) == 0, "other machine: %s",
	      error);
	check(probes.arch == (good.e_machine == EM_X86_64 ? ARCH_AARCH64 : ARCH_X86_64) &&
		      probes.n_sites >= 6,
	      "the other architecture");
	probes_free(&probes);
	*header = good;

	header->e_ident[EI_CLASS] = ELFCLASS32;
	bytes_bad(bytes, len, -ENOTSUP, "32-bit");
	header->e_ident[EI_CLASS] = 3;
	bytes_bad(bytes, len, -EBADMSG, "damaged");
	*header = good;
	header->e_ident[EI_DATA] = ELFDATA2MSB;
	bytes_bad(bytes, len, -ENOTSUP, "big-endian");
	*header = good;
	header->e_type = ET_CORE;
	bytes_bad(bytes, len, -ENOEXEC, "core dump");
	header->e_type = 77;
	bytes_bad(bytes, len, -ENOEXEC, "not an executable");
	*header = good;
	header->e_phentsize = 32;
	bytes_bad(bytes, len, -EBADMSG, "damaged");
	*header = good;
	header->e_shentsize = 1;
	bytes_bad(bytes, len, -EBADMSG, "damaged");
	*header = good;
	header->e_phoff = UINT64_MAX - 8;
	bytes_bad(bytes, len, -EBADMSG, "damaged");
	*header = good;
	header->e_phnum = 0;
	bytes_bad(bytes, len, -EBADMSG, "damaged");
	*header = good;
	header->e_shoff = UINT64_MAX - 8;
	bytes_bad(bytes, len, -EBADMSG, "damaged");
	*header = good;
	header->e_shnum = 0xfeff;
	bytes_bad(bytes, len, -EBADMSG, "damaged");
	*header = good;

	/* a short buffer for the message is no reason to write behind it */
	header->e_type = ET_CORE;
	check(read_bytes(bytes, len, &probes, tiny, sizeof(tiny)) == -ENOEXEC &&
		      strcmp(tiny, "memfd: ") == 0,
	      "short buffer for the message");
	free(bytes);
}

/* Segments that the file does not contain. */
static void test_wrong_segments(void)
{
	size_t len;
	unsigned char *bytes = load_file("pie", &len);
	const Elf64_Ehdr *header = (Elf64_Ehdr *)bytes;

	for (size_t i = 0; i < header->e_phnum; i++) {
		Elf64_Phdr *segment = (Elf64_Phdr *)(bytes + header->e_phoff) + i;
		const Elf64_Phdr good = *segment;

		if (segment->p_type != PT_LOAD)
			continue;
		segment->p_filesz = len - segment->p_offset + 1;
		bytes_bad(bytes, len, -EBADMSG, "truncated");
		segment->p_filesz = UINT64_MAX;
		bytes_bad(bytes, len, -EBADMSG, "truncated");
		*segment = good;
		segment->p_offset = UINT64_MAX;
		bytes_bad(bytes, len, -EBADMSG, "truncated");
		*segment = good;
	}
	free(bytes);
}

/* Truncated anywhere, a binary is told from a good one: its table of sections is at the end. */
static void test_truncated(const char *path)
{
	size_t len;
	unsigned char *bytes = load_file(path, &len);

	for (size_t n = 4; n < len; n += n < 1200 ? 1 : 61)
		bytes_bad(bytes, n, -EBADMSG, "truncated");
	bytes_bad(bytes, len - 1, -EBADMSG, "truncated");
	free(bytes);
}

/* Damage in headers and notes: any answer, no crash. */
static void test_damaged(const char *path)
{
	static const unsigned char values[] = { 0x00, 0x01, 0x7f, 0x80, 0xff };
	size_t len, n_survived = 0;
	unsigned char *bytes = load_file(path, &len);
	const Elf64_Ehdr header = *(Elf64_Ehdr *)bytes;
	struct probes probes;
	char error[256];

	for (size_t i = 0; i < len; i += i < 1100 || i >= header.e_shoff ? 1 : 13)
		for (size_t k = 0; k < sizeof(values); k++) {
			unsigned char saved = bytes[i];

			bytes[i] = values[k];
			if (read_bytes(bytes, len, &probes, error, sizeof(error)) == 0) {
				n_survived++;
				probes_free(&probes);
			}
			bytes[i] = saved;
		}
	check(n_survived > 0, "%s: no damage survived", path);
	free(bytes);
}

static void check_core(const char *expected, const struct probe_site *sites, size_t n)
{
	const struct probes probes = { .sites = (struct probe_site *)sites, .n_sites = n };
	const char *core = probes_core(&probes);

	check(strcmp(core, expected) == 0, "core: %s, expected %s", core, expected);
}

#define SITE(p, n, a, s)                                                                    \
	{                                                                                   \
		.provider = (char *)p, .name = (char *)n, .args = (char *)a, .semaphore = s \
	}
#define OLD                                                                                   \
	SITE("net", "inbound_message", "8@%rax", 0), SITE("utxocache", "flush", "8@%rax", 0), \
		SITE("validation", "block_connected", "8@%rax", 0)
#define SEVEN "8@%r13 -4@%eax -8@40(%rbx) 8@64(%rbx) 8@%rdx -4@168(%rsp) -8@160(%rsp)"

/* A mangled name that breaks off stands where the file's symbols end: nothing behind it is read,
 * which the sanitizer would tell. */
static void test_name_that_breaks_off(void)
{
	static const char name[] = "_ZN1aC";
	size_t len;
	unsigned char *bytes = load_file("pie", &len);
	const Elf64_Ehdr *header = (const Elf64_Ehdr *)bytes;
	const Elf64_Shdr *sections = (const Elf64_Shdr *)(bytes + header->e_shoff);
	int fd = memfd_create("probes", MFD_CLOEXEC);
	struct probe_function function;
	struct probes probes;
	char error[256];

	for (size_t i = 0; i < header->e_shnum; i++) {
		const Elf64_Shdr *names = &sections[sections[i].sh_link];
		Elf64_Sym *symbols = (Elf64_Sym *)(bytes + sections[i].sh_offset);

		if (sections[i].sh_type != SHT_SYMTAB)
			continue;
		memcpy(bytes + names->sh_offset + names->sh_size - sizeof(name), name,
		       sizeof(name));
		for (size_t k = 0; k < sections[i].sh_size / sizeof(*symbols); k++)
			if (ELF64_ST_TYPE(symbols[k].st_info) == STT_FUNC)
				symbols[k].st_name = (Elf64_Word)(names->sh_size - sizeof(name));
	}
	if (fd < 0 || write(fd, bytes, len) != (ssize_t)len)
		abort();
	check(!probes_read(fd, "memfd", &probes, error, sizeof(error)), "breaks off: %s", error);
	check(probes_function(&probes, fd, "memfd", "a::a", NULL, &function, error,
			      sizeof(error)) == -ENOENT,
	      "breaks off: \"%s\"", error);
	probes_free(&probes);
	close(fd);
	free(bytes);
}

static void test_core(void)
{
	static const struct probe_site v23[] = { OLD };
	static const struct probe_site v25[] = {
		OLD, SITE("mempool", "added", "8@%rax 8@%rdx -8@%rcx", 0),
		SITE("mempool", "replaced", SEVEN, 0)
	};
	static const struct probe_site v26[] = {
		OLD, SITE("mempool", "added", "8@%rax -4@%edx -8@%rcx", 0),
		SITE("mempool", "replaced", SEVEN, 0)
	};
	static const struct probe_site v29[] = {
		OLD, SITE("mempool", "added", "8@%rax -4@%edx -8@%rcx", 16),
		SITE("mempool", "replaced", SEVEN " 1@%cl", 18)
	};
	static const struct probe_site plain_eight[] = {
		OLD, SITE("mempool", "added", "8@%rax -4@%edx -8@%rcx", 0),
		SITE("mempool", "replaced", SEVEN " 1@%cl", 0)
	};
	static const struct probe_site odd_size[] = {
		OLD, SITE("mempool", "added", "8@%rax 4@%edx -8@%rcx", 0),
		SITE("mempool", "replaced", SEVEN, 0)
	};
	static const struct probe_site no_size[] = { OLD, SITE("mempool", "added", "8@%rax", 0),
						     SITE("mempool", "replaced", SEVEN, 0) };
	static const struct probe_site half[] = { OLD, SITE("mempool", "added", "8@%rax", 0) };

	check_core("v23-v24", v23, 3);
	check_core("unknown", v23, 2);
	check_core("unknown", NULL, 0);
	check_core("v25", v25, 5);
	check_core("v26-v28", v26, 5);
	check_core("v29 or later", v29, 5);
	check_core("unknown", plain_eight, 5);
	check_core("unknown", odd_size, 5);
	check_core("unknown", no_size, 5);
	check_core("unknown", half, 4);
}

int main(void)
{
	char directory[] = "/tmp/test_probes.XXXXXX", command[64];

	test_core();
	if (!run("gcc --version > /dev/null 2>&1 && readelf --version > /dev/null 2>&1 && "
		 "objcopy --version > /dev/null 2>&1") ||
	    !run("echo '#include <sys/sdt.h>' | gcc -E -x c - > /dev/null 2>&1")) {
		printf("skipped: needs gcc, binutils and <sys/sdt.h> (systemtap-sdt-dev)\n");
		return failures ? 1 : 77;
	}
	if (!mkdtemp(directory) || chdir(directory) < 0) {
		perror(directory);
		return 1;
	}
	setenv("LC_ALL", "C", 1);
	/* fixtures are not built for the sanitizers of this test */
	unsetenv("CFLAGS");
	write_file("a.c", main_source, strlen(main_source));
	write_file("b.c", other_source, strlen(other_source));
	write_file("odd.S", odd_source, strlen(odd_source));

	test_builds();
	test_none();
	test_odd();
	test_wrong_files();
	test_wrong_headers();
	test_wrong_segments();
	test_truncated("pie");
	test_truncated("stripped");
	test_damaged("odd");
	test_damaged("stripped");
	test_name_that_breaks_off();

	snprintf(command, sizeof(command), "rm -rf %s", directory);
	if (failures)
		printf("fixtures are left in %s\n", directory);
	else if (chdir("/") < 0 || !run(command))
		return 1;
	return failures ? 1 : 0;
}
