/* Every form of operand, and what must not be taken for one. Each specification stands in memory of
 * exactly its length, so that the sanitizers see a byte read too many. */
#include "../../bridge/operands.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SITE 0x401000

static int failures;

static void check(int ok, const char *what, const char *spec)
{
	if (ok)
		return;
	printf("FAIL %s: \"%s\"\n", what, spec);
	failures++;
}

static int resolve(void *arg, const char *symbol, size_t len, uint64_t *address)
{
	(void)arg;
	if (len == 7 && memcmp(symbol, "counter", len) == 0)
		*address = 0x404010;
	else if (len == 9 && memcmp(symbol, "_ZL1a.0$x", len) == 0)
		*address = 0x300008;
	else
		return -ENOENT;
	return 0;
}

/* clang-format off */
#define NONE {.kind = OPERAND_NONE}
#define CONSTANT(n, sign, v)                                                                       \
	{.kind = OPERAND_CONST, .size = n, .is_signed = sign, .value = (__s64)(v)}
#define REG(n, sign, at) {.kind = OPERAND_REG, .size = n, .is_signed = sign, .base = at}
#define HIGH(at) {.kind = OPERAND_REG, .size = 1, .base = at, .shift = 8}
#define MEM(n, sign, at, v)                                                                        \
	{.kind = OPERAND_MEM, .size = n, .is_signed = sign, .has_base = 1, .base = at, .value = v}
#define INDEXED(n, sign, at, idx, scl, v)                                                          \
	{.kind = OPERAND_MEM, .size = n, .is_signed = sign, .has_base = 1, .base = at,             \
	 .has_index = 1, .index = idx, .scale = scl, .value = v}
#define INDEX_ONLY(n, sign, idx, scl, v)                                                           \
	{.kind = OPERAND_MEM, .size = n, .is_signed = sign, .has_index = 1, .index = idx,          \
	 .scale = scl, .value = v}
#define ABSOLUTE(n, sign, v)                                                                       \
	{.kind = OPERAND_MEM, .size = n, .is_signed = sign, .value = (__s64)(v)}

struct form {
	const char *spec;
	struct operand operand;
};

/* Offsets in struct pt_regs, written out again on purpose. */
static const struct form x86[] = {
	/* registers: all, in all widths */
	{"8@%rax", REG(8, 0, 80)}, {"-4@%eax", REG(4, 1, 80)}, {"2@%ax", REG(2, 0, 80)},
	{"1@%al", REG(1, 0, 80)}, {"1@%ah", HIGH(80)},
	{"8@%rbx", REG(8, 0, 40)}, {"4@%ebx", REG(4, 0, 40)}, {"-2@%bx", REG(2, 1, 40)},
	{"1@%bl", REG(1, 0, 40)}, {"1@%bh", HIGH(40)},
	{"8@%rcx", REG(8, 0, 88)}, {"4@%ecx", REG(4, 0, 88)}, {"2@%cx", REG(2, 0, 88)},
	{"1@%cl", REG(1, 0, 88)}, {"1@%ch", HIGH(88)},
	{"8@%rdx", REG(8, 0, 96)}, {"-4@%edx", REG(4, 1, 96)}, {"2@%dx", REG(2, 0, 96)},
	{"-1@%dl", REG(1, 1, 96)}, {"1@%dh", HIGH(96)},
	{"8@%rsi", REG(8, 0, 104)}, {"4@%esi", REG(4, 0, 104)}, {"2@%si", REG(2, 0, 104)},
	{"1@%sil", REG(1, 0, 104)},
	{"8@%rdi", REG(8, 0, 112)}, {"4@%edi", REG(4, 0, 112)}, {"2@%di", REG(2, 0, 112)},
	{"1@%dil", REG(1, 0, 112)},
	{"8@%rbp", REG(8, 0, 32)}, {"4@%ebp", REG(4, 0, 32)}, {"2@%bp", REG(2, 0, 32)},
	{"1@%bpl", REG(1, 0, 32)},
	{"8@%rsp", REG(8, 0, 152)}, {"4@%esp", REG(4, 0, 152)}, {"2@%sp", REG(2, 0, 152)},
	{"1@%spl", REG(1, 0, 152)},
	{"8@%r8", REG(8, 0, 72)}, {"4@%r8d", REG(4, 0, 72)}, {"2@%r8w", REG(2, 0, 72)},
	{"1@%r8b", REG(1, 0, 72)},
	{"8@%r9", REG(8, 0, 64)}, {"-4@%r9d", REG(4, 1, 64)},
	{"8@%r10", REG(8, 0, 56)}, {"2@%r10w", REG(2, 0, 56)},
	{"8@%r11", REG(8, 0, 48)}, {"1@%r11b", REG(1, 0, 48)},
	{"8@%r12", REG(8, 0, 24)}, {"-8@%r13", REG(8, 1, 16)}, {"8@%r14", REG(8, 0, 8)},
	{"8@%r15", REG(8, 0, 0)}, {"4@%r15d", REG(4, 0, 0)}, {"1@%r15b", REG(1, 0, 0)},
	{"8@%rip", REG(8, 0, 128)},
	/* the size before the @ governs */
	{"-4@%rax", REG(4, 1, 80)}, {"8@%eax", REG(8, 0, 80)}, {"1@%r8", REG(1, 0, 72)},
	/* no size, as in old assembly */
	{"%rax", REG(8, 0, 80)}, {"%eax", REG(4, 0, 80)}, {"%r9w", REG(2, 0, 64)},
	{"%al", REG(1, 0, 80)}, {"%ah", HIGH(80)}, {"$5", CONSTANT(8, 1, 5)},
	{"$-5", CONSTANT(8, 1, -5)}, {"(%rax)", NONE}, {"8(%rax)", NONE}, {"4660", NONE},
	/* memory */
	{"8@(%rsp)", MEM(8, 0, 152, 0)}, {"-8@40(%r15)", MEM(8, 1, 0, 40)},
	{"8@-1064(%rbp)", MEM(8, 0, 32, -1064)}, {"-4@-1676(%rbp)", MEM(4, 1, 32, -1676)},
	{"8@0x10(%rax)", MEM(8, 0, 80, 16)}, {"8@-0x10(%rax)", MEM(8, 0, 80, -16)},
	{"8@0xfffffffffffffff0(%rax)", MEM(8, 0, 80, -16)}, {"8@0(%rax)", MEM(8, 0, 80, 0)},
	{"1@7(%r8)", MEM(1, 0, 72, 7)},
	{"8@(%rax,%rbx,8)", INDEXED(8, 0, 80, 40, 3, 0)},
	{"4@-24(%rax,%r12,4)", INDEXED(4, 0, 80, 24, 2, -24)},
	{"2@(%rsp,%rbp,2)", INDEXED(2, 0, 152, 32, 1, 0)},
	{"1@(%rsi,%rdx)", INDEXED(1, 0, 104, 96, 0, 0)},
	{"1@(%rsi,%rdx,1)", INDEXED(1, 0, 104, 96, 0, 0)},
	{"8@0x20(,%rcx,8)", INDEX_ONLY(8, 0, 88, 3, 32)},
	{"8@(,%rcx,4)", INDEX_ONLY(8, 0, 88, 2, 0)},
	{"4@4660", ABSOLUTE(4, 0, 4660)}, {"-4@0x1234", ABSOLUTE(4, 1, 0x1234)},
	{"8@-4096", ABSOLUTE(8, 0, -4096)},
	/* symbols */
	{"4@counter(%rip)", MEM(4, 0, 128, 0x404010 - SITE)},
	{"-8@counter+8(%rip)", MEM(8, 1, 128, 0x404018 - SITE)},
	{"8@counter-16(%rip)", MEM(8, 0, 128, 0x404000 - SITE)},
	{"8@8+counter(%rip)", MEM(8, 0, 128, 0x404018 - SITE)},
	{"8@-8+counter(%rip)", MEM(8, 0, 128, 0x404008 - SITE)},
	{"8@counter+0x10(%rip)", MEM(8, 0, 128, 0x404020 - SITE)},
	{"1@_ZL1a.0$x(%rip)", MEM(1, 0, 128, 0x300008 - SITE)},
	{"8@counter(,%rcx,8)", INDEX_ONLY(8, 0, 88, 3, 0x404010)},
	{"1@counter(%rdx)", MEM(1, 0, 96, 0x404010)},
	{"1@counter+1(%rdx,%rax,2)", INDEXED(1, 0, 96, 80, 1, 0x404011)},
	{"4@counter", ABSOLUTE(4, 0, 0x404010)},
	{"4@nobody(%rip)", NONE}, {"4@counter2(%rip)", NONE}, {"4@counte(%rip)", NONE},
	{"4@.LC0(%rip)", NONE}, {"8@counter@GOTPCREL(%rip)", NONE}, {"counter(%rip)", NONE},
	{"4@counter+(%rip)", NONE}, {"4@+counter(%rip)", NONE}, {"4@counter(%rip,%rax)", NONE},
	{"8@8(%rip)", NONE}, {"8@(%rip)", NONE},
	/* constants: cut to size, then extended */
	{"8@$-1", CONSTANT(8, 0, UINT64_MAX)}, {"-8@$-1", CONSTANT(8, 1, -1)},
	{"4@$-1", CONSTANT(4, 0, 0xffffffff)}, {"-4@$-1", CONSTANT(4, 1, -1)},
	{"2@$-1", CONSTANT(2, 0, 0xffff)}, {"1@$-1", CONSTANT(1, 0, 0xff)},
	{"-1@$255", CONSTANT(1, 1, -1)}, {"-1@$128", CONSTANT(1, 1, -128)},
	{"-1@$127", CONSTANT(1, 1, 127)}, {"1@$1", CONSTANT(1, 0, 1)}, {"1@$0", CONSTANT(1, 0, 0)},
	{"4@$0x10", CONSTANT(4, 0, 16)}, {"4@$0XfF", CONSTANT(4, 0, 255)},
	{"4@$4294967295", CONSTANT(4, 0, 0xffffffff)}, {"-4@$4294967295", CONSTANT(4, 1, -1)},
	{"8@$4294967295", CONSTANT(8, 0, 0xffffffff)}, {"-8@$4294967295", CONSTANT(8, 1, 0xffffffff)},
	{"8@$18446744073709551615", CONSTANT(8, 0, UINT64_MAX)},
	{"-8@$-9223372036854775808", CONSTANT(8, 1, INT64_MIN)},
	{"8@$18446744073709551616", NONE}, {"8@$-9223372036854775809", NONE},
	{"8@$0x10000000000000000", NONE}, {"8@$", NONE}, {"8@$-", NONE}, {"8@$0x", NONE},
	{"8@$010", NONE}, {"8@$1x", NONE}, {"8@$+1", NONE}, {"8@$counter", NONE}, {"8@$ff", NONE},
	/* not ours */
	{"8@%xmm0", NONE}, {"8f@%xmm0", NONE}, {"-8f@%xmm15", NONE}, {"4f@(%rax)", NONE},
	{"8@%st(0)", NONE}, {"8@%fs:0x10", NONE}, {"8@%fs:16(%rax)", NONE}, {"8@%gs:(%rax)", NONE},
	{"8@%r7", NONE}, {"8@%r16", NONE}, {"8@%r08", NONE}, {"8@%r8q", NONE}, {"8@%r8bw", NONE},
	{"8@%r", NONE}, {"8@%", NONE}, {"8@%zax", NONE}, {"8@%raxx", NONE}, {"8@%RAX", NONE},
	{"2@%ah", NONE}, {"8@%bh", NONE}, {"8@rax", NONE}, {"8@*%rax", NONE}, {"8@%rax)", NONE},
	{"8@(%eax)", NONE}, {"8@(%rax,%ebx,2)", NONE}, {"8@(%rax,%rsp,2)", NONE},
	{"8@(%rax,%rbx,3)", NONE}, {"8@(%rax,%rbx,16)", NONE}, {"8@(%rax,%rbx,-1)", NONE},
	{"8@(%rax,%rbx,)", NONE}, {"8@(%rax,)", NONE}, {"8@(%rax", NONE}, {"8@(", NONE},
	{"8@()", NONE}, {"8@(,)", NONE}, {"8@8(", NONE}, {"8@8", ABSOLUTE(8, 0, 8)},
	{"8@8(%rax)x", NONE}, {"8@1-(%rax)", NONE}, {"8@--1(%rax)", NONE}, {"8@(%rax,%rip)", NONE},
	{"3@%rax", NONE}, {"16@%rax", NONE}, {"0@%rax", NONE}, {"-@%rax", NONE}, {"@%rax", NONE},
	{"--8@%rax", NONE}, {"+8@%rax", NONE}, {"8@@%rax", NONE}, {"8@", NONE}, {"8", NONE},
	{"@", NONE}, {"-", NONE}, {"[", NONE}, {"8@x0", NONE}, {"8@[sp, 24]", NONE},
};

static const struct form aarch64[] = {
	{"8@x0", REG(8, 0, 0)}, {"-4@w1", REG(4, 1, 8)}, {"8@x30", REG(8, 0, 240)},
	{"1@w29", REG(1, 0, 232)}, {"8@sp", REG(8, 0, 248)}, {"-8@x19", REG(8, 1, 152)},
	{"x3", REG(8, 0, 24)}, {"w3", REG(4, 0, 24)}, {"sp", REG(8, 0, 248)},
	{"8@xzr", CONSTANT(8, 0, 0)}, {"-4@wzr", CONSTANT(4, 1, 0)}, {"xzr", CONSTANT(8, 0, 0)},
	{"8@12", CONSTANT(8, 0, 12)}, {"8@-1", CONSTANT(8, 0, UINT64_MAX)},
	{"-4@-1", CONSTANT(4, 1, -1)}, {"4@-1", CONSTANT(4, 0, 0xffffffff)},
	{"1@0xff", CONSTANT(1, 0, 255)}, {"-4@4294967295", CONSTANT(4, 1, -1)},
	{"8@#7", CONSTANT(8, 0, 7)}, {"8@#-7", CONSTANT(8, 0, -7)}, {"12", CONSTANT(8, 1, 12)},
	{"8@[x0]", MEM(8, 0, 0, 0)}, {"8@[sp]", MEM(8, 0, 248, 0)},
	{"8@[sp, 24]", MEM(8, 0, 248, 24)}, {"8@[sp,24]", MEM(8, 0, 248, 24)},
	{"-4@[x29, -20]", MEM(4, 1, 232, -20)}, {"8@[sp, #24]", MEM(8, 0, 248, 24)},
	{"8@[x1, #0x10]", MEM(8, 0, 8, 16)}, {"8@[ x1 , 8 ]", MEM(8, 0, 8, 8)},
	{"8@[x0, x1]", INDEXED(8, 0, 0, 8, 0, 0)},
	{"8@[x0, x1, lsl 3]", INDEXED(8, 0, 0, 8, 3, 0)},
	{"4@[sp, x30, lsl #2]", INDEXED(4, 0, 248, 240, 2, 0)},
	{"8@[x0,x1,lsl 0]", INDEXED(8, 0, 0, 8, 0, 0)},
	{"4@[x0, #:lo12:counter]", MEM(4, 0, 0, 0x10)},
	{"4@[x2, #:lo12:counter+8]", MEM(4, 0, 16, 0x18)},
	{"4@[x2, :lo12:counter-32]", MEM(4, 0, 16, 0xff0)},
	{"4@[x0, #:lo12:nobody]", NONE}, {"4@[x0, #:hi12:counter]", NONE}, {"4@[x0, counter]", NONE},
	{"8@[x0, w1, sxtw 2]", NONE}, {"8@[x0, w1, uxtw]", NONE}, {"8@[x0, w1]", NONE},
	{"8@[x0, x1, sxtx 3]", NONE}, {"8@[x0, x1, lsl]", NONE}, {"8@[x0, x1, lsl 4]", NONE},
	{"8@[x0, x1, lsl -1]", NONE}, {"8@[x0, xzr]", NONE}, {"8@[xzr]", NONE}, {"8@[w0]", NONE},
	{"8@[x0, sp]", NONE}, {"8@[x0, 8]!", NONE}, {"8@[x0],8", NONE}, {"8@[x0", NONE},
	{"8@[x0,", NONE}, {"8@[x0,]", NONE}, {"8@[x0 8]", NONE}, {"8@[]", NONE}, {"8@[", NONE},
	{"[x0]", NONE}, {"8@x31", NONE}, {"8@x01", NONE}, {"8@x", NONE}, {"8@w", NONE},
	{"8@x0x", NONE}, {"8@spx", NONE}, {"8@wsp", NONE}, {"8@xz", NONE}, {"8@X0", NONE},
	{"8@d0", NONE}, {"8@v0", NONE}, {"8f@d0", NONE}, {"-8f@d8", NONE}, {"8@s1", NONE},
	{"8@%rax", NONE}, {"8@$1", NONE}, {"8@", NONE}, {"8@#", NONE}, {"8@0x", NONE}, {"8@1]", NONE},
};
/* clang-format on */

/* A copy without a byte of room behind it. */
static char *exact(const char *spec)
{
	char *copy = strdup(spec);

	if (!copy)
		abort();
	return copy;
}

static void test_forms(enum arch arch, const struct form *forms, size_t n)
{
	const struct operand_context context = { arch, SITE, resolve, NULL };

	for (size_t i = 0; i < n; i++) {
		char *spec = exact(forms[i].spec);
		struct operand out;
		unsigned int unsupported = 77;
		int count;

		memset(&out, 0xee, sizeof(out));
		count = operands_parse(spec, &context, &out, 1, &unsupported);
		check(count == 1, "one operand", spec);
		check(unsupported == (forms[i].operand.kind == OPERAND_NONE), "supported", spec);
		check(memcmp(&out, &forms[i].operand, sizeof(out)) == 0, "operand", spec);
		if (memcmp(&out, &forms[i].operand, sizeof(out)) != 0)
			printf("  kind %u size %u signed %u scale %u shift %u base %u/%u index "
			       "%u/%u value %lld\n",
			       out.kind, out.size, out.is_signed, out.scale, out.shift,
			       out.has_base, out.base, out.has_index, out.index,
			       (long long)out.value);
		free(spec);
	}
}

static void check_text(const char *spec, unsigned int i, const char *expected)
{
	size_t len = 77;
	const char *text = operands_text(spec, i, &len);

	check(len == strlen(expected) && memcmp(text, expected, len) == 0, "text", spec);
}

/* The operands of real notes, and how they keep their places. */
static void test_lists(void)
{
	const struct operand_context context = { ARCH_X86_64, SITE, resolve, NULL };
	const struct operand_context without = { ARCH_X86_64, SITE, NULL, NULL };
	const struct operand_context arm = { ARCH_AARCH64, SITE, resolve, NULL };
	static const struct operand replaced[] = {
		REG(8, 0, 16), REG(4, 1, 80),	    MEM(8, 1, 40, 40),	 MEM(8, 0, 40, 64),
		REG(8, 0, 96), MEM(4, 1, 152, 168), MEM(8, 1, 152, 160), REG(1, 0, 88),
	};
	static const struct operand mixed[] = { REG(8, 0, 80), NONE, REG(4, 1, 104), NONE,
						CONSTANT(1, 0, 1) };
	static const struct operand arm_list[] = { MEM(8, 0, 248, 24), REG(4, 1, 8),
						   INDEXED(8, 0, 0, 8, 0, 0), CONSTANT(8, 0, 12) };
	struct operand out[12];
	unsigned int unsupported;
	const char *spec;
	int n;

	spec = "8@%r13 -4@%eax -8@40(%rbx) 8@64(%rbx) 8@%rdx -4@168(%rsp) -8@160(%rsp) 1@%cl";
	n = operands_parse(spec, &context, out, 12, &unsupported);
	check(n == 8 && unsupported == 0, "count", spec);
	check(memcmp(out, replaced, sizeof(replaced)) == 0, "operands", spec);
	check(operands_parse(spec, &context, out, 8, &unsupported) == 8, "exactly max", spec);
	check(operands_parse(spec, &context, out, 7, &unsupported) == -E2BIG, "above max", spec);
	check_text(spec, 0, "8@%r13");
	check_text(spec, 5, "-4@168(%rsp)");
	check_text(spec, 7, "1@%cl");
	check_text(spec, 8, "");
	check_text(spec, 4000000000U, "");

	spec = " \t8@%rax  8@%xmm0\n-4@%esi 4@%fs:0\t1@$1  ";
	n = operands_parse(spec, &context, out, 12, &unsupported);
	check(n == 5 && unsupported == 2, "count", spec);
	check(memcmp(out, mixed, sizeof(mixed)) == 0, "operands", spec);
	check_text(spec, 1, "8@%xmm0");
	check_text(spec, 4, "1@$1");
	check_text(spec, 5, "");

	spec = "8@[sp, 24] -4@w1 8@[x0, x1] 8@12";
	n = operands_parse(spec, &arm, out, 12, &unsupported);
	check(n == 4 && unsupported == 0, "count", spec);
	check(memcmp(out, arm_list, sizeof(arm_list)) == 0, "operands", spec);
	check_text(spec, 0, "8@[sp, 24]");
	check_text(spec, 2, "8@[x0, x1]");

	check(operands_parse("", &context, out, 12, &unsupported) == 0, "none", "");
	check(operands_parse(" \t ", &context, out, 12, &unsupported) == 0, "none", " \\t ");
	check(operands_parse("", &context, out, 0, &unsupported) == 0, "none of none", "");
	check(operands_parse("8@%rax", &context, out, 0, &unsupported) == -E2BIG, "one of none",
	      "");
	check_text("", 0, "");
	check_text("  ", 0, "");

	n = operands_parse("4@counter(%rip)", &without, out, 12, &unsupported);
	check(n == 1 && unsupported == 1, "no resolver", "4@counter(%rip)");
}

int main(void)
{
	test_forms(ARCH_X86_64, x86, sizeof(x86) / sizeof(x86[0]));
	test_forms(ARCH_AARCH64, aarch64, sizeof(aarch64) / sizeof(aarch64[0]));
	test_lists();
	return failures ? 1 : 0;
}
