/* Expected values as JSON lines; see expect.h. */
#include "expect.h"

#include <inttypes.h>
#include <stdio.h>

#include "mempool.h"

static void expect_key(struct expect *expect, const char *field)
{
	printf("%s\"%s\":", expect->fields++ ? "," : "", field);
}

struct expect expect_begin(const char *probe)
{
	printf("{\"probe\":\"%s\",\"expect\":{", probe);
	return (struct expect){ 0 };
}

void expect_null(struct expect *expect, const char *field)
{
	expect_key(expect, field);
	fputs("null", stdout);
}

void expect_int(struct expect *expect, const char *field, int64_t value)
{
	expect_key(expect, field);
	printf("%" PRId64, value);
}

void expect_uint(struct expect *expect, const char *field, uint64_t value)
{
	expect_key(expect, field);
	printf("%" PRIu64, value);
}

void expect_bool(struct expect *expect, const char *field, bool value)
{
	expect_key(expect, field);
	fputs(value ? "true" : "false", stdout);
}

void expect_hash(struct expect *expect, const char *field, const uint8_t *hash)
{
	char hex[65];

	if (!hash) {
		expect_null(expect, field);
		return;
	}
	hash_to_hex(hash, hex);
	expect_key(expect, field);
	printf("\"%s\"", hex);
}

void expect_text(struct expect *expect, const char *field, const char *text)
{
	if (!text) {
		expect_null(expect, field);
		return;
	}
	expect_key(expect, field);
	putchar('"');
	for (; *text; text++) {
		unsigned char c = (unsigned char)*text;

		if (c == '"' || c == '\\')
			printf("\\%c", c);
		else if (c < ' ' || c == 127)
			printf("\\u%04x", c);
		else
			putchar(c);
	}
	putchar('"');
}

void expect_data(struct expect *expect, const char *field, const uint8_t *data, uint64_t size)
{
	uint64_t i;

	if (!data) {
		expect_null(expect, field);
		return;
	}
	expect_key(expect, field);
	putchar('"');
	for (i = 0; i < size; i++)
		printf("%02x", data[i]);
	putchar('"');
}

void expect_end(bool paged_out)
{
	puts(paged_out ? "},\"paged_out\":true}" : "},\"paged_out\":false}");
}
