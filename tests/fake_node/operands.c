/*
 * Every form of operand that compilers emit for x86-64, with values that tell signed from unsigned
 * and short from long. The provider "operands" is not Core's. Each field is named arg1, arg2, …
 */
#include <stddef.h>

#include "expect.h"
#include "node.h"
#include "note.h"

#ifdef __x86_64__

/* Around the value that a register's low bytes hold: must never be seen. */
#define GARBAGE UINT64_C(0xdeadbeef5a5a5a00)

/* Named in notes by their symbols, hence no locals. */
__attribute__((used)) static int32_t operands_counter = -1;
__attribute__((used)) static uint64_t operands_table[4] = { 11, UINT64_MAX - 1, 33, 44 };

#define COUNT(ledger, name) ((ledger)->fired[PROBE_operands_##name]++)

static void fire_registers(struct ledger *ledger)
{
	uint64_t a = GARBAGE | 0xff, c = (GARBAGE & ~UINT64_C(0xffff)) | 0xfffe;
	uint64_t d = UINT64_C(0x12345678ffffffff);
	struct expect expect;

	if (!PROBE_ACTIVE(operands, registers))
		return;
	__asm__ volatile(
		"movq %[d], %%r15\n"
		"movq $-1, %%rbx\n" PROBE_NOTE(operands, registers,
					       "8@%%rbx -8@%%rbx 4@%%r15d -4@%%r15d 2@%%cx -2@%%cx "
					       "1@%%al -1@%%al")
		:
		: "a"(a), "c"(c), [d] "d"(d)
		: "rbx", "r15");
	COUNT(ledger, registers);
	expect = expect_begin("operands:registers");
	expect_uint(&expect, "arg1", UINT64_MAX);
	expect_int(&expect, "arg2", -1);
	expect_uint(&expect, "arg3", UINT32_MAX);
	expect_int(&expect, "arg4", -1);
	expect_uint(&expect, "arg5", 0xfffe);
	expect_int(&expect, "arg6", -2);
	expect_uint(&expect, "arg7", 0xff);
	expect_int(&expect, "arg8", -1);
	expect_end(false);
}

static void fire_subregisters(struct ledger *ledger)
{
	uint64_t a = UINT64_C(0x1111111122228055); /* %ah is 0x80 */
	uint64_t s = UINT64_C(0xaaaaaaaaaaaaaa07);
	struct expect expect;

	if (!PROBE_ACTIVE(operands, subregisters))
		return;
	__asm__ volatile("movabsq $0x9999999980000001, %%r8\n"
			 "movabsq $0x9999999999998002, %%r9\n"
			 "movabsq $0x9999999999999983, %%r10\n"
			 "movabsq $0x8000000000000004, %%r11\n"
			 "movabsq $0x9999999999998005, %%rdx\n" PROBE_NOTE(
				 operands, subregisters,
				 "1@%%ah -1@%%ah 4@%%r8d 2@%%r9w 1@%%r10b 8@%%r11 -2@%%dx 1@%%sil")
			 :
			 : "a"(a), "S"(s)
			 : "r8", "r9", "r10", "r11", "rdx");
	COUNT(ledger, subregisters);
	expect = expect_begin("operands:subregisters");
	expect_uint(&expect, "arg1", 0x80);
	expect_int(&expect, "arg2", -128);
	expect_uint(&expect, "arg3", 0x80000001);
	expect_uint(&expect, "arg4", 0x8002);
	expect_uint(&expect, "arg5", 0x83);
	expect_uint(&expect, "arg6", UINT64_C(0x8000000000000004));
	expect_int(&expect, "arg7", -32763);
	expect_uint(&expect, "arg8", 7);
	expect_end(false);
}

static void fire_bools(struct ledger *ledger)
{
	uint64_t yes = GARBAGE | 1, no = GARBAGE;
	uint64_t high = (GARBAGE & ~UINT64_C(0xff00)) | 0x0100; /* true in %bh, garbage around */
	struct expect expect;

	if (!PROBE_ACTIVE(operands, bools))
		return;
	__asm__ volatile("movq %%rsi, %%r12\n"
			 "movq %%rdi, %%r13\n" PROBE_NOTE(
				 operands, bools, "1@%%al 1@%%cl 1@%%r12b 1@%%r13b 1@%%bh 1@%%bl")
			 :
			 : "a"(yes), "c"(no), "S"(yes), "D"(no), "b"(high)
			 : "r12", "r13");
	COUNT(ledger, bools);
	expect = expect_begin("operands:bools");
	expect_uint(&expect, "arg1", 1);
	expect_uint(&expect, "arg2", 0);
	expect_uint(&expect, "arg3", 1);
	expect_uint(&expect, "arg4", 0);
	expect_uint(&expect, "arg5", 1);
	expect_uint(&expect, "arg6", 0);
	expect_end(false);
}

static void fire_memory(struct ledger *ledger)
{
	/* Little endian: the lower bytes of each word are the smaller operands at its address. */
	const uint64_t words[] = { UINT64_MAX, (uint64_t)-2, UINT64_C(0x80ff8003fffffffc) };
	struct expect expect;

	if (!PROBE_ACTIVE(operands, memory))
		return;
	__asm__ volatile(PROBE_NOTE(operands, memory,
				    "8@(%%rax) -8@8(%%rax) 4@16(%%rax) -4@16(%%rax) "
				    "2@20(%%rax) -2@20(%%rax) 1@22(%%rax) -1@-1(%%rdx)")
			 :
			 : "a"(words), "d"(words + 3)
			 : "memory");
	COUNT(ledger, memory);
	expect = expect_begin("operands:memory");
	expect_uint(&expect, "arg1", UINT64_MAX);
	expect_int(&expect, "arg2", -2);
	expect_uint(&expect, "arg3", 0xfffffffc);
	expect_int(&expect, "arg4", -4);
	expect_uint(&expect, "arg5", 0x8003);
	expect_int(&expect, "arg6", -32765);
	expect_uint(&expect, "arg7", 0xff);
	expect_int(&expect, "arg8", -128);
	expect_end(false);
}

static void fire_stack(struct ledger *ledger)
{
	uint64_t a = UINT64_C(0x8000000000000021), c = UINT64_C(0x77777777fffffff0);
	struct expect expect;

	if (!PROBE_ACTIVE(operands, stack))
		return;
	/* A frame of its own, below the 128 bytes that leaf functions use without asking. */
	__asm__ volatile("movq %%rbp, %%r12\n"
			 "subq $512, %%rsp\n"
			 "leaq 256(%%rsp), %%rbp\n"
			 "movq %%rax, -8(%%rbp)\n"
			 "movq %%rcx, -16(%%rbp)\n"
			 "movq %%rax, (%%rsp)\n"
			 "movq %%rcx, 8(%%rsp)\n" PROBE_NOTE(
				 operands, stack,
				 "8@-8(%%rbp) -4@-16(%%rbp) 8@(%%rsp) -8@(%%rsp) "
				 "4@8(%%rsp) 1@8(%%rsp)") "addq $512, %%rsp\n"
							  "movq %%r12, %%rbp\n"
			 :
			 : "a"(a), "c"(c)
			 : "r12", "memory", "cc");
	COUNT(ledger, stack);
	expect = expect_begin("operands:stack");
	expect_uint(&expect, "arg1", a);
	expect_int(&expect, "arg2", -16);
	expect_uint(&expect, "arg3", a);
	expect_int(&expect, "arg4", (int64_t)a);
	expect_uint(&expect, "arg5", 0xfffffff0);
	expect_uint(&expect, "arg6", 0xf0);
	expect_end(false);
}

static void fire_index(struct ledger *ledger)
{
	const uint64_t words[] = { 100, 101, 102, 103, 104, (uint64_t)-105, 106, 107 };
	struct expect expect;

	if (!PROBE_ACTIVE(operands, index))
		return;
	/* %rbx 2, %rcx the address of words[4] in eighths, %rdx minus 16. */
	__asm__ volatile(PROBE_NOTE(operands, index,
				    "8@(%%rax,%%rbx,8) -4@32(%%rax,%%rbx,4) 2@-4(%%rax,%%rbx,2) "
				    "1@6(%%rax,%%rbx) 8@(,%%rcx,8) -8@8(,%%rcx,8) "
				    "8@(%%rsi,%%rdx,1) -8@56(%%rax,%%rdx)")
			 :
			 : "a"(words), "b"(UINT64_C(2)), "c"((uint64_t)(words + 4) / 8),
			   "d"((int64_t)-16), "S"(words + 3)
			 : "memory");
	COUNT(ledger, index);
	expect = expect_begin("operands:index");
	expect_uint(&expect, "arg1", 102);
	expect_int(&expect, "arg2", -105);
	expect_uint(&expect, "arg3", 100);
	expect_uint(&expect, "arg4", 101);
	expect_uint(&expect, "arg5", 104);
	expect_int(&expect, "arg6", -105);
	expect_uint(&expect, "arg7", 101);
	expect_int(&expect, "arg8", -105);
	expect_end(false);
}

static void fire_constant(struct ledger *ledger)
{
	struct expect expect;

	if (!PROBE_ACTIVE(operands, constant))
		return;
	__asm__ volatile(PROBE_NOTE(operands, constant,
				    "8@$-1 -8@$-1 -4@$5 4@$-1 1@$1 -4@$-2147483648 -1@$-1 "
				    "8@$9223372036854775807")
			 :
			 :
			 : "memory");
	COUNT(ledger, constant);
	expect = expect_begin("operands:constant");
	expect_uint(&expect, "arg1", UINT64_MAX);
	expect_int(&expect, "arg2", -1);
	expect_int(&expect, "arg3", 5);
	expect_uint(&expect, "arg4", UINT32_MAX);
	expect_uint(&expect, "arg5", 1);
	expect_int(&expect, "arg6", INT32_MIN);
	expect_int(&expect, "arg7", -1);
	expect_uint(&expect, "arg8", INT64_MAX);
	expect_end(false);
}

static void fire_symbol(struct ledger *ledger)
{
	struct expect expect;

	if (!PROBE_ACTIVE(operands, symbol))
		return;
	__asm__ volatile(PROBE_NOTE(operands, symbol,
				    "4@operands_counter(%%rip) -4@operands_counter(%%rip) "
				    "8@operands_table(%%rip) -8@operands_table+8(%%rip) "
				    "8@16+operands_table(%%rip)")
			 :
			 :
			 : "memory");
	COUNT(ledger, symbol);
	expect = expect_begin("operands:symbol");
	expect_uint(&expect, "arg1", UINT32_MAX);
	expect_int(&expect, "arg2", -1);
	expect_uint(&expect, "arg3", 11);
	expect_int(&expect, "arg4", -2);
	expect_uint(&expect, "arg5", 33);
	expect_end(false);
}

/* Vector registers and thread-local storage cannot be read: null, and the constant is right. */
static void fire_unsupported(struct ledger *ledger)
{
	struct expect expect;

	if (!PROBE_ACTIVE(operands, unsupported))
		return;
	__asm__ volatile(PROBE_NOTE(operands, unsupported, "8@%%xmm0 8f@%%xmm1 8@%%fs:-8 -4@$5")
			 :
			 :
			 : "memory");
	COUNT(ledger, unsupported);
	expect = expect_begin("operands:unsupported");
	expect_null(&expect, "arg1");
	expect_null(&expect, "arg2");
	expect_null(&expect, "arg3");
	expect_int(&expect, "arg4", 5);
	expect_end(false);
}

int operands(struct node *node)
{
	static void (*const forms[])(struct ledger *) = {
		fire_registers, fire_subregisters, fire_bools,	fire_memory,	  fire_stack,
		fire_index,	fire_constant,	   fire_symbol, fire_unsupported,
	};
	size_t i;

	for (i = 0; i < sizeof(forms) / sizeof(forms[0]) && !node_stop; i++)
		forms[i](node->ledger);
	return 0;
}

#else

int operands(struct node *node)
{
	(void)node;
	return 77; /* skipped: the forms are written for x86-64 */
}

#endif
