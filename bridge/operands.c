/* Argument specifications of USDT notes, as gcc, clang and hand-written assembly spell them. */
#include "operands.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

/* What is left to read of one operand. */
struct text {
	const char *at;
	const char *end;
};

struct reg {
	uint16_t offset; /* in the registers that a BPF uprobe program sees */
	uint8_t size;
	uint8_t shift;
	bool zero; /* reads as zero: %xzr */
};

/* struct pt_regs of x86-64 and struct user_pt_regs of aarch64. Own numbers, not the system's
 * headers: both architectures are read on either host. */
enum {
	X86_R15 = 0,
	X86_R14 = 8,
	X86_R13 = 16,
	X86_R12 = 24,
	X86_BP = 32,
	X86_BX = 40,
	X86_R11 = 48,
	X86_R10 = 56,
	X86_R9 = 64,
	X86_R8 = 72,
	X86_AX = 80,
	X86_CX = 88,
	X86_DX = 96,
	X86_SI = 104,
	X86_DI = 112,
	X86_IP = 128,
	X86_SP = 152,
	AARCH64_SP = 31 * 8,
};

/* clang-format off */
#define LEGACY(offset, name64, name32, name16, name8)                                              \
	{name64, {offset, 8, 0, false}}, {name32, {offset, 4, 0, false}},                          \
	{name16, {offset, 2, 0, false}}, {name8, {offset, 1, 0, false}}
#define HIGH(offset, name) {name, {offset, 1, 8, false}}

static const struct {
	char name[4];
	struct reg reg;
} x86_registers[] = {
	LEGACY(X86_AX, "rax", "eax", "ax", "al"),  HIGH(X86_AX, "ah"),
	LEGACY(X86_BX, "rbx", "ebx", "bx", "bl"),  HIGH(X86_BX, "bh"),
	LEGACY(X86_CX, "rcx", "ecx", "cx", "cl"),  HIGH(X86_CX, "ch"),
	LEGACY(X86_DX, "rdx", "edx", "dx", "dl"),  HIGH(X86_DX, "dh"),
	LEGACY(X86_SI, "rsi", "esi", "si", "sil"),
	LEGACY(X86_DI, "rdi", "edi", "di", "dil"),
	LEGACY(X86_BP, "rbp", "ebp", "bp", "bpl"),
	LEGACY(X86_SP, "rsp", "esp", "sp", "spl"),
	{"rip", {X86_IP, 8, 0, false}},
};
/* clang-format on */

static const uint16_t x86_numbered[] = { X86_R8,  X86_R9,  X86_R10, X86_R11,
					 X86_R12, X86_R13, X86_R14, X86_R15 };

static bool is_space(char c)
{
	return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static bool is_letter(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool done(const struct text *t)
{
	return t->at == t->end;
}

static char peek(const struct text *t)
{
	return (char)(done(t) ? '\0' : *t->at);
}

static bool take(struct text *t, char c)
{
	if (peek(t) != c || done(t))
		return false;
	t->at++;
	return true;
}

static bool take_word(struct text *t, const char *word)
{
	size_t len = strlen(word);

	if ((size_t)(t->end - t->at) < len || memcmp(t->at, word, len) != 0)
		return false;
	t->at += len;
	return true;
}

static void skip_spaces(struct text *t)
{
	while (!done(t) && is_space(*t->at))
		t->at++;
}

/* Letters and digits: the name of a register. */
static struct text take_name(struct text *t)
{
	struct text name = { t->at, t->at };

	while (!done(t) && (is_letter(*t->at) || is_digit(*t->at)))
		t->at++;
	name.end = t->at;
	return name;
}

static int digit_value(char c)
{
	if (is_digit(c))
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return 16;
}

/* A decimal or hexadecimal number of at most 64 bits, perhaps negative, as two's complement. A
 * leading zero would mean octal to an assembler and something else to others: not read. */
static bool take_number(struct text *t, uint64_t *value)
{
	struct text s = *t;
	bool negative = take(&s, '-');
	int radix = take_word(&s, "0x") || take_word(&s, "0X") ? 16 : 10;
	const char *first = s.at;
	uint64_t v = 0;

	for (; !done(&s); s.at++) {
		int digit = digit_value(*s.at);

		if (digit >= radix)
			break;
		if (__builtin_mul_overflow(v, (uint64_t)radix, &v) ||
		    __builtin_add_overflow(v, (uint64_t)digit, &v))
			return false;
	}
	if (s.at == first || (radix == 10 && *first == '0' && s.at - first > 1))
		return false;
	if (negative && v > (uint64_t)1 << 63)
		return false;
	*value = negative ? -v : v;
	*t = s;
	return true;
}

/* "sym", "sym+8", "sym-8", and gcc's order for position-independent code, "8+sym". */
static bool take_symbol(struct text *t, const struct operand_context *context, uint64_t *address)
{
	struct text s = *t, name;
	uint64_t addend = 0, symbol;

	if (take_number(&s, &addend) && !take(&s, '+'))
		return false;
	name = s;
	if (!is_letter(peek(&s)) && peek(&s) != '_' && peek(&s) != '.')
		return false;
	while (!done(&s) && (is_letter(*s.at) || is_digit(*s.at) || strchr("_.$", *s.at)))
		s.at++;
	name.end = s.at;
	if (peek(&s) == '+' || peek(&s) == '-') {
		uint64_t more;

		take(&s, '+');
		if (!take_number(&s, &more))
			return false;
		addend += more;
	}
	if (!context->resolve ||
	    context->resolve(context->arg, name.at, (size_t)(name.end - name.at), &symbol) != 0)
		return false;
	*address = symbol + addend;
	*t = s;
	return true;
}

static bool take_x86_register(struct text *t, struct reg *reg)
{
	struct text name;
	uint64_t number;

	if (!take(t, '%'))
		return false;
	name = take_name(t);
	for (size_t i = 0; i < sizeof(x86_registers) / sizeof(x86_registers[0]); i++) {
		size_t len = strnlen(x86_registers[i].name, sizeof(x86_registers[i].name));

		if ((size_t)(name.end - name.at) == len &&
		    memcmp(name.at, x86_registers[i].name, len) == 0) {
			*reg = x86_registers[i].reg;
			return true;
		}
	}

	/* %r8 to %r15, with b, w, d for the lower parts */
	if (!take(&name, 'r') || !is_digit(peek(&name)) || !take_number(&name, &number) ||
	    number < 8 || number > 15)
		return false;
	*reg = (struct reg){ x86_numbered[number - 8], 8, 0, false };
	if (take(&name, 'b'))
		reg->size = 1;
	else if (take(&name, 'w'))
		reg->size = 2;
	else if (take(&name, 'd'))
		reg->size = 4;
	return done(&name);
}

/* A register that can stand in an address. */
static bool take_x86_address_register(struct text *t, struct reg *reg)
{
	return take_x86_register(t, reg) && reg->size == 8;
}

static bool x86_memory(struct text *t, const struct operand_context *context, struct operand *op)
{
	bool has_symbol = false, has_number = false;
	uint64_t value = 0, scale;
	struct reg reg;

	has_symbol = take_symbol(t, context, &value);
	if (!has_symbol)
		has_number = take_number(t, &value);
	op->kind = OPERAND_MEM;
	op->value = (int64_t)value;
	if (done(t)) /* an absolute address */
		return has_symbol || has_number;

	if (!take(t, '('))
		return false;
	if (peek(t) == '%') {
		if (!take_x86_address_register(t, &reg))
			return false;
		op->has_base = 1;
		op->base = reg.offset;
	}
	if (op->has_base && op->base == X86_IP) {
		/* A number relative to the next instruction means nothing in a note: only a
		 * symbol says which place is meant. */
		op->value = (int64_t)(value - context->address);
		return has_symbol && take(t, ')') && done(t);
	}
	if (take(t, ',')) {
		if (!take_x86_address_register(t, &reg) || reg.offset == X86_SP ||
		    reg.offset == X86_IP)
			return false;
		op->has_index = 1;
		op->index = reg.offset;
		if (take(t, ',')) {
			if (!take_number(t, &scale) ||
			    (scale != 1 && scale != 2 && scale != 4 && scale != 8))
				return false;
			op->scale = (uint8_t)__builtin_ctzll(scale);
		}
	}
	return (op->has_base || op->has_index) && take(t, ')') && done(t);
}

static bool x86_operand(struct text *t, const struct operand_context *context, struct operand *op)
{
	struct reg reg;
	uint64_t value;

	if (take(t, '$')) {
		if (!take_number(t, &value))
			return false;
		op->kind = OPERAND_CONST;
		op->value = (int64_t)value;
		return done(t);
	}
	if (peek(t) != '%')
		return x86_memory(t, context, op);

	/* The size before the @ governs, whatever the register is called (sys/sdt.h). */
	if (!take_x86_register(t, &reg) || !done(t))
		return false; /* also vector registers and segment prefixes */
	if (op->size == 0)
		op->size = reg.size;
	op->kind = OPERAND_REG;
	op->base = reg.offset;
	op->shift = reg.shift;
	return reg.shift == 0 || op->size == 1;
}

static bool take_aarch64_register(struct text *t, struct reg *reg)
{
	struct text name = take_name(t), rest = name;
	uint64_t number;
	uint8_t size;

	if (take_word(&rest, "sp") && done(&rest)) {
		*reg = (struct reg){ AARCH64_SP, 8, 0, false };
		return true;
	}
	rest = name;
	if (take(&rest, 'x'))
		size = 8;
	else if (take(&rest, 'w'))
		size = 4;
	else
		return false;
	*reg = (struct reg){ 0, size, 0, false };
	if (take_word(&rest, "zr"))
		reg->zero = true;
	else if (is_digit(peek(&rest)) && take_number(&rest, &number) && number <= 30)
		reg->offset = (uint16_t)(number * 8);
	else
		return false;
	return done(&rest);
}

/* Base, then a displacement, an index, or the low bits of a symbol. Indices that are extended from
 * 32 bits (sxtw, uxtw) have no place in struct operand. */
static bool aarch64_memory(struct text *t, const struct operand_context *context,
			   struct operand *op)
{
	struct reg reg;
	uint64_t value;

	skip_spaces(t);
	if (!take_aarch64_register(t, &reg) || reg.size != 8 || reg.zero)
		return false;
	op->kind = OPERAND_MEM;
	op->has_base = 1;
	op->base = reg.offset;
	skip_spaces(t);
	if (take(t, ']'))
		return done(t);

	if (!take(t, ','))
		return false;
	skip_spaces(t);
	if (peek(t) == 'x') {
		if (!take_aarch64_register(t, &reg) || reg.zero)
			return false;
		op->has_index = 1;
		op->index = reg.offset;
		skip_spaces(t);
		if (take(t, ',')) {
			skip_spaces(t);
			if (!take_word(t, "lsl"))
				return false;
			skip_spaces(t);
			take(t, '#');
			if (!take_number(t, &value) || value > 3)
				return false;
			op->scale = (uint8_t)value;
		}
	} else {
		take(t, '#');
		if (take_word(t, ":lo12:")) {
			/* The base holds the symbol's page; a process moves by whole pages. */
			if (!take_symbol(t, context, &value))
				return false;
			value &= 0xfff;
		} else if (!take_number(t, &value)) {
			return false;
		}
		op->value = (int64_t)value;
	}
	skip_spaces(t);
	return take(t, ']') && done(t); /* "!" or more: the access would change the base */
}

static bool aarch64_operand(struct text *t, const struct operand_context *context,
			    struct operand *op)
{
	struct reg reg;
	uint64_t value = 0;

	if (take(t, '['))
		return aarch64_memory(t, context, op);
	if (is_letter(peek(t))) {
		if (!take_aarch64_register(t, &reg) || !done(t))
			return false;
		if (op->size == 0)
			op->size = reg.size;
		op->kind = reg.zero ? OPERAND_CONST : OPERAND_REG;
		op->base = reg.offset;
		return true;
	}
	take(t, '#');
	if (!take_number(t, &value))
		return false;
	op->kind = OPERAND_CONST;
	op->value = (int64_t)value;
	return done(t);
}

/* Size and sign before the @: "8", "-4". Not "8f": a floating-point number is none of ours. */
static bool take_size(struct text *t, struct operand *op)
{
	op->is_signed = take(t, '-');
	if (done(t) || !strchr("1248", *t->at))
		return false;
	op->size = (uint8_t)(*t->at++ - '0');
	return take(t, '@');
}

static int64_t extend(uint64_t value, unsigned int size, bool is_signed)
{
	unsigned int unused = 64 - 8 * size;

	return is_signed ? (int64_t)(value << unused) >> unused
			 : (int64_t)(value << unused >> unused);
}

static bool parse(struct text t, const struct operand_context *context, struct operand *op)
{
	bool has_size = memchr(t.at, '@', (size_t)(t.end - t.at)) != NULL;

	if (has_size && !take_size(&t, op))
		return false;
	if (context->arch == ARCH_X86_64 ? !x86_operand(&t, context, op)
					 : !aarch64_operand(&t, context, op))
		return false;

	/* Notes of old assembly without sizes: a register shows its own, a number is itself, but of
	 * memory nobody knows how much to read. */
	if (op->kind == OPERAND_MEM)
		return has_size;
	if (op->kind == OPERAND_CONST) {
		if (op->size == 0) {
			op->size = 8;
			op->is_signed = 1;
		}
		op->value = extend((uint64_t)op->value, op->size, op->is_signed);
	}
	return true;
}

/* The next operand, up to white space outside of brackets ("8@[sp, 24]"). */
static bool next_operand(const char **spec, struct text *operand)
{
	const char *at = *spec;
	bool inside = false;

	while (is_space(*at))
		at++;
	operand->at = at;
	for (; *at && (inside || !is_space(*at)); at++) {
		if (*at == '[')
			inside = true;
		else if (*at == ']')
			inside = false;
	}
	operand->end = at;
	*spec = at;
	return operand->end != operand->at;
}

int operands_parse(const char *spec, const struct operand_context *context, struct operand *out,
		   size_t max, unsigned int *unsupported)
{
	struct text text;
	size_t n;

	*unsupported = 0;
	for (n = 0; next_operand(&spec, &text); n++) {
		if (n == max)
			return -E2BIG;
		memset(&out[n], 0, sizeof(out[n]));
		if (!parse(text, context, &out[n])) {
			memset(&out[n], 0, sizeof(out[n]));
			(*unsupported)++;
		}
	}
	return (int)n;
}

const char *operands_text(const char *spec, unsigned int i, size_t *len)
{
	struct text text;

	do {
		if (!next_operand(&spec, &text))
			break;
	} while (i-- > 0);
	*len = (size_t)(text.end - text.at);
	return text.at;
}
