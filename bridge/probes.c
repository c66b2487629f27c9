/* Reads the USDT notes of an ELF file, whatever the file is: nothing in it is trusted. */
#include "probes.h"

#include <elf.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <gelf.h>
#include <libelf.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NOTES_SECTION ".note.stapsdt"
#define NOTES_NAME "stapsdt"
#define NOTES_TYPE 3
#define BASE_SECTION ".stapsdt.base"

/* More than any real file has: a section is read into memory as a whole. */
#define MAX_NOTES ((uint64_t)64 << 20)
#define MAX_SYMBOLS ((uint64_t)512 << 20)
#define MAX_NAMES 256

/* A symbol that the args of some site name. */
struct symbol {
	char *name;
	uint64_t address;
	enum { UNKNOWN, UNIQUE, AMBIGUOUS } state;
};

struct symbols {
	struct symbol names[MAX_NAMES];
	size_t n;
	bool lacking; /* memory for one of them */
};

struct reader {
	Elf *elf;
	const char *name;
	char *error;
	size_t error_size;
	uint64_t file_size;
	const Elf64_Ehdr *header;
	const Elf64_Phdr *segments;
	size_t n_segments;
	size_t n_sections;
	size_t section_names; /* index of the section with their names */
	uint64_t base;	      /* address of .stapsdt.base, 0 = none */
	struct probes *out;
	size_t capacity;
};

static int fail(const struct reader *r, int error, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

static int fail(const struct reader *r, int error, const char *fmt, ...)
{
	char reason[256];
	va_list args;

	va_start(args, fmt);
	vsnprintf(reason, sizeof(reason), fmt, args);
	va_end(args);
	snprintf(r->error, r->error_size, "%s: %s", r->name, reason);
	return error;
}

static int fail_memory(const struct reader *r)
{
	return fail(r, -ENOMEM, "not enough memory");
}

static int fail_truncated(const struct reader *r)
{
	return fail(r, -EBADMSG, "truncated or damaged ELF file");
}

static bool is_text(const unsigned char *bytes, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (bytes[i] == 0x7f || (bytes[i] < 0x20 && !strchr("\t\n\v\f\r\033", bytes[i])) ||
		    bytes[i] == 0)
			return false;
	return true;
}

/* Says what the file is if it cannot be a binary of ours. libelf alone would not say it, and it
 * believes a header's sizes of entries. */
static int identify(struct reader *r, int fd)
{
	union {
		unsigned char bytes[sizeof(Elf64_Ehdr)];
		Elf64_Ehdr header;
	} start = { 0 };
	const unsigned char *ident = start.bytes;
	struct stat st;
	ssize_t n;

	if (fstat(fd, &st) < 0)
		return fail(r, -errno, "%s", strerror(errno));
	if (S_ISDIR(st.st_mode))
		return fail(r, -EISDIR, "a directory, not an executable");
	if (!S_ISREG(st.st_mode))
		return fail(r, -ENOEXEC, "not a regular file");
	if (st.st_size == 0)
		return fail(r, -ENOEXEC, "an empty file, not an ELF executable");
	r->file_size = (uint64_t)st.st_size;

	do
		n = pread(fd, start.bytes, sizeof(start.bytes), 0);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return fail(r, -errno, "%s", strerror(errno));

	if (n < SELFMAG || memcmp(ident, ELFMAG, SELFMAG) != 0) {
		if (n >= 2 && ident[0] == '#' && ident[1] == '!')
			return fail(r, -ENOEXEC,
				    "a script, not an ELF executable: name the binary it starts");
		if (is_text(start.bytes, (size_t)n))
			return fail(r, -ENOEXEC, "a text file, not an ELF executable");
		return fail(r, -ENOEXEC, "not an ELF executable");
	}
	if (n <= EI_DATA)
		return fail_truncated(r);
	if (ident[EI_CLASS] == ELFCLASS32)
		return fail(r, -ENOTSUP, "a 32-bit binary: only 64-bit ones can be traced");
	if (ident[EI_DATA] == ELFDATA2MSB)
		return fail(r, -ENOTSUP,
			    "for a big-endian processor: only x86-64 and aarch64 can be traced");
	if (ident[EI_CLASS] != ELFCLASS64 || ident[EI_DATA] != ELFDATA2LSB ||
	    (size_t)n < sizeof(start.bytes))
		return fail_truncated(r);

	switch (le16toh(start.header.e_type)) {
	case ET_EXEC:
	case ET_DYN:
		break;
	case ET_REL:
		return fail(r, -ENOEXEC, "an object file, not a linked executable");
	case ET_CORE:
		return fail(r, -ENOEXEC, "a core dump, not an executable");
	default:
		return fail(r, -ENOEXEC, "an ELF file, but not an executable");
	}
	switch (le16toh(start.header.e_machine)) {
	case EM_X86_64:
		r->out->arch = ARCH_X86_64;
		break;
	case EM_AARCH64:
		r->out->arch = ARCH_AARCH64;
		break;
	default:
		return fail(r, -ENOTSUP,
			    "for another processor (ELF machine %u): only x86-64 and aarch64 can "
			    "be traced",
			    le16toh(start.header.e_machine));
	}
	return 0;
}

static bool in_file(const struct reader *r, uint64_t offset, uint64_t size)
{
	return offset <= r->file_size && size <= r->file_size - offset;
}

/* Headers, segments and the table of sections. */
static int read_headers(struct reader *r)
{
	bool code = false;

	r->header = elf64_getehdr(r->elf);
	if (!r->header)
		return fail_truncated(r);
	if (r->header->e_shoff != 0 &&
	    (r->header->e_shentsize != sizeof(Elf64_Shdr) ||
	     !in_file(r, r->header->e_shoff,
		      (r->header->e_shnum ? r->header->e_shnum : 1) * sizeof(Elf64_Shdr))))
		return fail_truncated(r);
	if (r->header->e_phentsize != sizeof(Elf64_Phdr) ||
	    elf_getphdrnum(r->elf, &r->n_segments) != 0 || r->n_segments == 0 ||
	    !in_file(r, r->header->e_phoff, r->n_segments * sizeof(Elf64_Phdr)))
		return fail_truncated(r);
	r->segments = elf64_getphdr(r->elf);
	if (!r->segments)
		return fail_truncated(r);

	for (size_t i = 0; i < r->n_segments; i++) {
		const Elf64_Phdr *s = &r->segments[i];

		if (s->p_type != PT_LOAD)
			continue;
		if (!in_file(r, s->p_offset, s->p_filesz))
			return fail_truncated(r);
		code |= (s->p_flags & PF_X) && s->p_filesz > 0;
	}
	if (!code)
		return fail(r, -ENOEXEC,
			    "an ELF file without code (separate debug information?), not an "
			    "executable");

	if (r->header->e_shoff != 0 &&
	    (elf_getshdrnum(r->elf, &r->n_sections) != 0 ||
	     r->n_sections > r->file_size / sizeof(Elf64_Shdr) ||
	     !in_file(r, r->header->e_shoff, r->n_sections * sizeof(Elf64_Shdr)) ||
	     elf_getshdrstrndx(r->elf, &r->section_names) != 0))
		return fail_truncated(r);
	return 0;
}

/* File offset of size bytes at an address that is loaded with these flags; 0 = none (there the file
 * has its ELF header). */
static uint64_t offset_of(const struct reader *r, uint64_t address, uint64_t size, uint32_t flags)
{
	for (size_t i = 0; i < r->n_segments; i++) {
		const Elf64_Phdr *s = &r->segments[i];

		if (s->p_type == PT_LOAD && (s->p_flags & flags) == flags &&
		    address >= s->p_vaddr && size <= s->p_filesz &&
		    address - s->p_vaddr <= s->p_filesz - size)
			return address - s->p_vaddr + s->p_offset;
	}
	return 0;
}

/* The string at *at, which advances behind its NUL; NULL if there is none. */
static const char *take_string(const char **at, const char *end)
{
	const char *s = *at, *nul = memchr(s, '\0', (size_t)(end - s));

	if (!nul)
		return NULL;
	*at = nul + 1;
	return s;
}

/* One note: three addresses (code, .stapsdt.base at link time, semaphore), then three strings. */
static int add_site(struct reader *r, const char *desc, size_t len)
{
	const char *at, *end = desc + len, *provider, *name, *args;
	struct probe_site *site;
	uint64_t address[3];

	if (len < sizeof(address)) {
		r->out->n_unusable++;
		return 0;
	}
	memcpy(address, desc, sizeof(address));
	for (int i = 0; i < 3; i++)
		address[i] = le64toh(address[i]);
	if (address[0] == 0) /* the linker has dropped the code */
		return 0;
	if (r->base != 0 && address[1] != 0) { /* prelink moves the code, but not what notes say */
		address[0] += r->base - address[1];
		if (address[2] != 0)
			address[2] += r->base - address[1];
	}

	at = desc + sizeof(address);
	provider = take_string(&at, end);
	name = provider ? take_string(&at, end) : NULL;
	args = name ? take_string(&at, end) : NULL;
	if (!args || !*provider || !*name) {
		r->out->n_unusable++;
		return 0;
	}

	if (r->out->n_sites == r->capacity) {
		size_t capacity = r->capacity ? 2 * r->capacity : 32;

		site = reallocarray(r->out->sites, capacity, sizeof(*site));
		if (!site)
			return fail_memory(r);
		r->out->sites = site;
		r->capacity = capacity;
	}
	site = &r->out->sites[r->out->n_sites];
	*site = (struct probe_site){ .address = address[0] };
	site->offset = offset_of(r, address[0], 1, PF_X);
	/* The kernel wants to write a semaphore, 2 bytes, aligned. Without a usable one the probe
	 * would be attached and never fire: better that it is missing. */
	if (address[2] != 0)
		site->semaphore = offset_of(r, address[2], 2, PF_W);
	if (site->offset == 0 || site->semaphore % 2 != 0 ||
	    (address[2] != 0 && site->semaphore == 0)) {
		r->out->n_unusable++;
		return 0;
	}

	r->out->n_sites++;
	site->provider = strdup(provider);
	site->name = strdup(name);
	site->args = strdup(args);
	return site->provider && site->name && site->args ? 0 : fail_memory(r);
}

static void set_build_id(struct probes *out, const unsigned char *id, size_t len)
{
	if (out->build_id[0] || len > (sizeof(out->build_id) - 1) / 2)
		return;
	for (size_t i = 0; i < len; i++)
		snprintf(out->build_id + 2 * i, 3, "%02x", id[i]);
}

/* All notes of a section or segment. Not by gelf_getnote: it rejects a last note without padding.
 */
static int read_notes(struct reader *r, const Elf_Data *data, uint64_t align)
{
	const size_t mask = align == 8 ? 7 : 3;
	const char *bytes = data->d_buf;
	size_t at = 0;

	/* less than a note's header may be left: padding */
	while (data->d_size - at >= sizeof(Elf64_Nhdr)) {
		size_t name, desc, left = data->d_size - at;
		Elf64_Nhdr note;

		memcpy(&note, bytes + at, sizeof(note));
		name = sizeof(note);
		desc = (name + note.n_namesz + mask) & ~mask;
		if (desc > left || note.n_descsz > left - desc)
			return -EBADMSG;
		name += at;
		desc += at;
		if (note.n_type == NOTES_TYPE && note.n_namesz == sizeof(NOTES_NAME) &&
		    memcmp(bytes + name, NOTES_NAME, sizeof(NOTES_NAME)) == 0) {
			int err = add_site(r, bytes + desc, note.n_descsz);

			if (err)
				return err;
		} else if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == sizeof("GNU") &&
			   memcmp(bytes + name, "GNU", sizeof("GNU")) == 0) {
			set_build_id(r->out, (const unsigned char *)bytes + desc, note.n_descsz);
		}
		at = (desc + note.n_descsz + mask) & ~mask;
		if (at >= data->d_size)
			break;
	}
	return 0;
}

static bool is_named(const struct reader *r, const Elf64_Shdr *section, const char *name)
{
	const char *s = elf_strptr(r->elf, r->section_names, section->sh_name);

	return s && strcmp(s, name) == 0;
}

/* Reads the notes of all note sections: a linker script may have merged them. */
static int read_sections(struct reader *r)
{
	const Elf64_Shdr *section;
	Elf_Scn *scn = NULL;

	while ((scn = elf_nextscn(r->elf, scn)) != NULL) {
		section = elf64_getshdr(scn);
		if (section && section->sh_type == SHT_PROGBITS &&
		    is_named(r, section, BASE_SECTION)) {
			r->base = section->sh_addr;
			break;
		}
	}
	scn = NULL;
	while ((scn = elf_nextscn(r->elf, scn)) != NULL) {
		Elf_Data *data = NULL;
		int err = -EBADMSG;

		section = elf64_getshdr(scn);
		if (!section || section->sh_type != SHT_NOTE)
			continue;
		if (section->sh_size == 0)
			continue;
		if (section->sh_size <= MAX_NOTES)
			data = elf_getdata(scn, NULL);
		if (data && data->d_buf)
			err = read_notes(r, data, section->sh_addralign);
		/* Broken notes matter only where they could be ours. */
		if (err == -EBADMSG && is_named(r, section, NOTES_SECTION))
			return fail(r, err, "damaged ELF file: " NOTES_SECTION " cannot be read");
		if (err && err != -EBADMSG)
			return err;
	}
	return 0;
}

/* Reads the notes that are loaded, for a file whose table of sections was removed. */
static int read_segments(struct reader *r)
{
	for (size_t i = 0; i < r->n_segments; i++) {
		const Elf64_Phdr *s = &r->segments[i];
		Elf_Data *data;
		int err;

		if (s->p_type != PT_NOTE || s->p_filesz == 0)
			continue;
		if (s->p_filesz > MAX_NOTES || !in_file(r, s->p_offset, s->p_filesz))
			return fail_truncated(r);
		data = elf_getdata_rawchunk(r->elf, (int64_t)s->p_offset, s->p_filesz,
					    s->p_align == 8 ? ELF_T_NHDR8 : ELF_T_NHDR);
		if (!data || !data->d_buf)
			return fail_truncated(r);
		err = read_notes(r, data, s->p_align);
		if (err && err != -EBADMSG)
			return err;
	}
	return 0;
}

static struct symbol *find_symbol(struct symbols *symbols, const char *name, size_t len)
{
	for (size_t i = 0; symbols && i < symbols->n; i++) {
		struct symbol *s = &symbols->names[i];

		if (strlen(s->name) == len && memcmp(s->name, name, len) == 0)
			return s;
	}
	return NULL;
}

/* As operand_context.resolve: notes the names that are asked for. */
static int collect(void *arg, const char *name, size_t len, uint64_t *address)
{
	struct symbols *symbols = arg;

	(void)address;
	if (!find_symbol(symbols, name, len) && symbols->n < MAX_NAMES) {
		char *copy = strndup(name, len);

		if (copy)
			symbols->names[symbols->n++].name = copy;
		else
			symbols->lacking = true;
	}
	return -ENOENT;
}

/* Looks the collected names up in one table of symbols. */
static void look_up(struct symbols *symbols, const Elf_Data *table, const Elf_Data *strings)
{
	const Elf64_Sym *symbol = table->d_buf;

	for (size_t i = 0; i < table->d_size / sizeof(*symbol); i++, symbol++) {
		int type = ELF64_ST_TYPE(symbol->st_info);
		const char *name;
		size_t room;

		if ((type != STT_NOTYPE && type != STT_OBJECT && type != STT_FUNC) ||
		    symbol->st_shndx == SHN_UNDEF || symbol->st_shndx == SHN_ABS ||
		    symbol->st_name >= strings->d_size)
			continue;
		name = (const char *)strings->d_buf + symbol->st_name;
		room = strings->d_size - symbol->st_name;
		for (size_t k = 0; k < symbols->n; k++) {
			struct symbol *wanted = &symbols->names[k];
			size_t size = strlen(wanted->name) + 1;

			if (size > room || memcmp(name, wanted->name, size) != 0)
				continue;
			/* Static variables of several files may share a name, and a note does not
			 * say which file it came from. */
			if (wanted->state == UNIQUE && wanted->address != symbol->st_value)
				wanted->state = AMBIGUOUS;
			else if (wanted->state == UNKNOWN)
				wanted->state = UNIQUE;
			wanted->address = symbol->st_value;
		}
	}
}

/* The next table of symbols of a file after *scn (NULL: the first) and their names. False: no more.
 */
static bool next_table(Elf *elf, Elf_Scn **scn, const Elf_Data **table, const Elf_Data **strings)
{
	while ((*scn = elf_nextscn(elf, *scn)) != NULL) {
		const Elf64_Shdr *section = elf64_getshdr(*scn), *names;
		Elf_Scn *names_scn;

		if (!section || (section->sh_type != SHT_SYMTAB && section->sh_type != SHT_DYNSYM))
			continue;
		names_scn = elf_getscn(elf, section->sh_link);
		names = names_scn ? elf64_getshdr(names_scn) : NULL;
		if (!names || names->sh_type != SHT_STRTAB || section->sh_size > MAX_SYMBOLS ||
		    names->sh_size > MAX_SYMBOLS)
			continue;
		*table = elf_getdata(*scn, NULL);
		*strings = elf_getdata(names_scn, NULL);
		if (*table && (*table)->d_buf && *strings && (*strings)->d_buf)
			return true;
	}
	return false;
}

/* Finds the symbols that the sites name. Most binaries need none, and large tables stay unread. */
static int read_symbols(struct reader *r)
{
	struct operand operands[MAX_ARGS];
	const Elf_Data *table, *strings;
	struct symbols *symbols;
	Elf_Scn *scn = NULL;
	unsigned int unused;

	symbols = calloc(1, sizeof(*symbols));
	if (!symbols)
		return fail_memory(r);
	r->out->symbols = symbols;
	for (size_t i = 0; i < r->out->n_sites; i++) {
		const struct probe_site *site = &r->out->sites[i];
		const struct operand_context context = { r->out->arch, site->address, collect,
							 symbols };

		operands_parse(site->args, &context, operands, MAX_ARGS, &unused);
	}
	if (symbols->lacking)
		return fail_memory(r);

	while (symbols->n > 0 && next_table(r->elf, &scn, &table, &strings))
		look_up(symbols, table, strings);
	return 0;
}

int probes_read(int fd, const char *name, struct probes *out, char *error, size_t error_size)
{
	struct reader r = { .name = name, .error = error, .error_size = error_size, .out = out };
	int err;

	memset(out, 0, sizeof(*out));
	if (error_size > 0)
		error[0] = '\0';
	err = identify(&r, fd);
	if (err)
		return err;

	/* Not ELF_C_READ_MMAP: a file that shrinks while it is mapped would kill the process. */
	elf_version(EV_CURRENT);
	r.elf = elf_begin(fd, ELF_C_READ, NULL);
	if (!r.elf || elf_kind(r.elf) != ELF_K_ELF || gelf_getclass(r.elf) != ELFCLASS64)
		err = fail_truncated(&r);
	if (!err)
		err = read_headers(&r);
	if (!err)
		err = r.n_sections > 0 ? read_sections(&r) : read_segments(&r);
	if (!err)
		err = read_symbols(&r);
	if (!err)
		out->entry = offset_of(&r, r.header->e_entry, 1, PF_X);
	if (err)
		probes_free(out);
	elf_end(r.elf);
	return err;
}

static void probes_free_sites(struct probes *probes)
{
	for (size_t i = 0; i < probes->n_sites; i++) {
		free(probes->sites[i].provider);
		free(probes->sites[i].name);
		free(probes->sites[i].args);
	}
	free(probes->sites);
}

void probes_free(struct probes *probes)
{
	struct symbols *symbols = probes->symbols;

	probes_free_sites(probes);
	for (size_t i = 0; symbols && i < symbols->n; i++)
		free(symbols->names[i].name);
	free(symbols);
	memset(probes, 0, sizeof(*probes));
}

int probes_resolve(void *arg, const char *symbol, size_t len, uint64_t *address)
{
	const struct probes *probes = arg;
	const struct symbol *found = find_symbol(probes->symbols, symbol, len);

	if (!found || found->state != UNIQUE)
		return -ENOENT;
	*address = found->address;
	return 0;
}

/* ---- functions ---- */

/* The source name at *at, "7Connect" in a mangled name; NULL when there is none. */
static const char *source_name(const char **at, size_t *len)
{
	const char *name;

	*len = 0;
	while (**at >= '0' && **at <= '9' && *len < MAX_SYMBOL_NAME)
		*len = *len * 10 + (size_t)(*(*at)++ - '0');
	name = *at;
	if (*len == 0 || strnlen(name, *len) < *len)
		return NULL;
	*at += *len;
	return name;
}

/* Passes over template arguments, behind their I up to their E. False when that is beyond us. */
static bool skip_template(const char **at)
{
	unsigned int depth = 1;
	size_t len;

	while (depth > 0) {
		char c = **at;

		if (c == '\0')
			return false;
		if (c >= '0' && c <= '9') {
			if (!source_name(at, &len))
				return false;
			continue;
		}
		(*at)++;
		if (c == 'L' && **at != '_') { /* a literal: its value may look like a length */
			*at = strchr(*at, 'E');
			if (!*at)
				return false;
			(*at)++;
		} else if (c == 'I' || c == 'N' || c == 'X' || c == 'J' || c == 'F' || c == 'L') {
			depth++;
		} else if (c == 'S' || c == 'T') {
			(*at) += strspn(*at, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ");
			if (**at == '\0')
				return false;
			(*at)++;
		} else if (c == 'E') {
			depth--;
		}
	}
	return true;
}

/* The qualified name in a mangled one (Itanium C++ ABI), without arguments and templates:
 * "Chainstate::ConnectBlock". Operators and what is local to a function are not named. */
static bool demangle(const char *symbol, char *out, size_t size)
{
	bool nested, more = true;
	size_t used = 0, len;
	const char *name;

	if (strncmp(symbol, "_Z", 2))
		return false;
	symbol += 2;
	nested = *symbol == 'N';
	if (nested)
		symbol += 1 + strspn(symbol + 1, "rVKRO");
	out[0] = '\0';
	while (more) {
		name = NULL;
		len = 0;
		if (*symbol == 'L') /* static */
			symbol++;
		if (symbol[0] == 'S' && symbol[1] == 't') {
			name = "std";
			len = 3;
			symbol += 2;
		} else if (*symbol >= '0' && *symbol <= '9') {
			name = source_name(&symbol, &len);
			if (!name)
				return false;
		} else if ((*symbol == 'C' || *symbol == 'D') && used) {
			/* a constructor is named like its class, which stands before it */
			const char *last = strrchr(out, ':');

			name = last ? last + 1 : out;
			len = strlen(name);
			if (*symbol == 'D' || !symbol[1])
				return false;
			symbol += 2;
		} else {
			return false;
		}
		if (used + len + 3 > size)
			return false;
		if (used) {
			memcpy(out + used, "::", 2);
			used += 2;
		}
		memmove(out + used, name, len);
		used += len;
		out[used] = '\0';
		while (*symbol == 'B') { /* ABI tags */
			symbol++;
			if (!source_name(&symbol, &len))
				return false;
		}
		if (*symbol == 'I') {
			symbol++;
			if (!skip_template(&symbol))
				return false;
		}
		more = nested ? *symbol != 'E' && *symbol != '\0' : !strcmp(out, "std");
	}
	return true;
}

#define MAX_CANDIDATES 4

struct search {
	const char *name;
	bool exact; /* the symbol itself; else what it means in C++ */
	bool any;   /* there are functions at all */
	size_t n;   /* different addresses */
	uint64_t addresses[MAX_CANDIDATES];
	char symbols[MAX_CANDIDATES][MAX_SYMBOL_NAME];
};

static bool symbol_fits(const struct search *search, const char *symbol)
{
	char qualified[MAX_SYMBOL_NAME];
	size_t len, name_len = strlen(search->name);

	if (search->exact)
		return !strcmp(symbol, search->name);
	/* Clones of the compiler (.cold, .part.0, .isra.0) begin elsewhere or are called otherwise.
	 */
	if (strchr(symbol, '.') || !demangle(symbol, qualified, sizeof(qualified)))
		return false;
	len = strlen(qualified);
	if (len < name_len || strcmp(qualified + len - name_len, search->name))
		return false;
	return len == name_len ||
	       (len > name_len + 1 && !strncmp(qualified + len - name_len - 2, "::", 2));
}

static void search_table(struct search *search, const Elf_Data *table, const Elf_Data *strings)
{
	const Elf64_Sym *symbol = table->d_buf;

	for (size_t i = 0; i < table->d_size / sizeof(*symbol); i++, symbol++) {
		const char *name;
		size_t k, room;

		if (ELF64_ST_TYPE(symbol->st_info) != STT_FUNC || symbol->st_shndx == SHN_UNDEF ||
		    symbol->st_name >= strings->d_size)
			continue;
		search->any = true;
		name = (const char *)strings->d_buf + symbol->st_name;
		room = strings->d_size - symbol->st_name;
		if (strnlen(name, room) == room || strlen(name) >= MAX_SYMBOL_NAME ||
		    !symbol_fits(search, name))
			continue;
		/* Several names of one place, and both tables, are no doubt. */
		for (k = 0; k < search->n && k < MAX_CANDIDATES; k++)
			if (search->addresses[k] == symbol->st_value)
				break;
		if (k < search->n && k < MAX_CANDIDATES)
			continue;
		if (search->n < MAX_CANDIDATES) {
			search->addresses[search->n] = symbol->st_value;
			strcpy(search->symbols[search->n], name);
		}
		search->n++;
	}
}

/* Reads one after the other the tables of symbols of a file. */
static void search_file(struct search *search, Elf *elf)
{
	const Elf_Data *table, *strings;
	Elf_Scn *scn = NULL;

	while (next_table(elf, &scn, &table, &strings))
		search_table(search, table, strings);
}

static int search_end(const struct reader *r, const struct search *search, const char *debug,
		      struct probe_function *out)
{
	char list[4 * 160] = "";

	if (!search->any && debug)
		return fail(r, -ENODATA, "%s has no symbols of functions", debug);
	if (!search->any)
		return fail(r, -ENODATA,
			    "stripped: has no symbols of functions; name the file that has them "
			    "with debug:");
	if (!search->n)
		return fail(r, -ENOENT,
			    "has no function \"%s\" (inlined, static and renamed by the compiler, "
			    "or of another version?)",
			    search->name);
	if (search->n > 1) {
		for (size_t i = 0; i < search->n && i < MAX_CANDIDATES; i++)
			snprintf(list + strlen(list), sizeof(list) - strlen(list),
				 "%s%.120s at 0x%llx", i ? ", " : "", search->symbols[i],
				 (unsigned long long)search->addresses[i]);
		return fail(r, -ENOTUNIQ, "has %zu functions \"%s\": %s%s", search->n, search->name,
			    list, search->n > MAX_CANDIDATES ? ", ..." : "");
	}
	out->offset = offset_of(r, search->addresses[0], 1, PF_X);
	strcpy(out->symbol, search->symbols[0]);
	return out->offset ? 0
			   : fail(r, -EBADMSG, "function \"%s\": its code is not in the file",
				  search->name);
}

/* The separate file is that of this binary: both carry the same build id, where they have one. */
static int debug_open(const struct reader *r, const char *debug, const char *build_id, int *fd,
		      Elf **elf)
{
	struct probes probes = { .build_id = "" };
	struct reader d = {
		.name = debug, .error = r->error, .error_size = r->error_size, .out = &probes
	};
	Elf_Scn *scn = NULL;
	struct stat st;

	*fd = open(debug, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (*fd < 0 || fstat(*fd, &st))
		return fail(&d, -ENODATA, "%s", strerror(errno));
	*elf = elf_begin(*fd, ELF_C_READ, NULL);
	if (!S_ISREG(st.st_mode) || !*elf || elf_kind(*elf) != ELF_K_ELF ||
	    gelf_getclass(*elf) != ELFCLASS64)
		return fail(&d, -ENOEXEC, "no 64-bit ELF file with symbols");
	d.elf = *elf;
	while ((scn = elf_nextscn(*elf, scn)) != NULL) {
		const Elf64_Shdr *section = elf64_getshdr(scn);
		Elf_Data *data;

		if (!section || section->sh_type != SHT_NOTE || section->sh_size > 4096)
			continue;
		data = elf_getdata(scn, NULL);
		/* This file's tracepoints are of no interest, only its build id. */
		if (data && data->d_buf && data->d_size >= sizeof(Elf64_Nhdr))
			read_notes(&d, data, section->sh_addralign);
	}
	probes_free_sites(&probes);
	if (build_id[0] && probes.build_id[0] && strcmp(build_id, probes.build_id))
		return fail(&d, -ESTALE, "belongs to another binary (build id %s, not %s)",
			    probes.build_id, build_id);
	return 0;
}

int probes_function(const struct probes *probes, int fd, const char *binary, const char *name,
		    const char *debug, struct probe_function *out, char *error, size_t error_size)
{
	struct probes unused = { .sites = NULL };
	struct reader r = {
		.name = binary, .error = error, .error_size = error_size, .out = &unused
	};
	struct search *search = calloc(1, sizeof(*search));
	Elf *debug_elf = NULL;
	int debug_fd = -1, err;

	if (!search)
		return fail_memory(&r);
	search->name = name;
	search->exact = true;
	elf_version(EV_CURRENT);
	err = identify(&r, fd);
	if (!err) {
		r.elf = elf_begin(fd, ELF_C_READ, NULL);
		err = r.elf ? read_headers(&r) : fail_truncated(&r);
	}
	if (!err && debug)
		err = debug_open(&r, debug, probes->build_id, &debug_fd, &debug_elf);
	for (int pass = 0; pass < 2 && !err && !search->n; pass++) {
		search->exact = pass == 0;
		search_file(search, debug ? debug_elf : r.elf);
	}
	if (!err)
		err = search_end(&r, search, debug, out);
	elf_end(debug_elf);
	if (debug_fd >= 0)
		close(debug_fd);
	elf_end(r.elf);
	free(search);
	return err;
}

static const struct probe_site *find_site(const struct probes *probes, const char *provider,
					  const char *name)
{
	for (size_t i = 0; i < probes->n_sites; i++)
		if (strcmp(probes->sites[i].provider, provider) == 0 &&
		    (!name || strcmp(probes->sites[i].name, name) == 0))
			return &probes->sites[i];
	return NULL;
}

static unsigned int count_operands(const char *args)
{
	unsigned int n = 0;
	size_t len;

	while (n <= MAX_ARGS && (operands_text(args, n, &len), len > 0))
		n++;
	return n;
}

static bool has_size(const struct probe_site *site, unsigned int i, const char *size)
{
	size_t len, size_len = strlen(size);
	const char *text = operands_text(site->args, i, &len);

	return len > size_len && memcmp(text, size, size_len) == 0;
}

const char *probes_core(const struct probes *probes)
{
	const struct probe_site *replaced = find_site(probes, "mempool", "replaced");
	const struct probe_site *added = find_site(probes, "mempool", "added");
	unsigned int n;

	if (!find_site(probes, "mempool", NULL))
		return find_site(probes, "net", NULL) && find_site(probes, "validation", NULL) &&
				       find_site(probes, "utxocache", NULL)
			       ? "v23-v24"
			       : "unknown";
	if (!replaced || !added)
		return "unknown";
	n = count_operands(replaced->args);
	if (n == 8 && replaced->semaphore)
		return "v29 or later";
	if (n == 7 && has_size(added, 1, "8@"))
		return "v25";
	if (n == 7 && has_size(added, 1, "-4@"))
		return "v26-v28";
	return "unknown";
}
