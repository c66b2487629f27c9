/* Files that declare tracepoints and functions: what becomes of good ones, and that each mistake is
 * told with its line and name. Each text stands in memory of exactly its length, so that the
 * sanitizers see a byte read too many. */
#include "../../bridge/declarations.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int failures;

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

static int parse(struct declarations *d, const char *text, char *error, size_t size)
{
	size_t len = strlen(text);
	char *copy = malloc(len ? len : 1);
	int err;

	if (!copy)
		abort();
	memcpy(copy, text, len);
	error[0] = '\0';
	err = declarations_parse(d, "dir/f.yaml", copy, len, error, size);
	free(copy);
	return err;
}

/* What a text is refused with, behind "dir/f.yaml:"; a word at the end is enough where the rest is
 * libyaml's. */
struct refusal {
	const char *text;
	const char *error;
};

#define TP "tracepoints:\n- tracepoint: a:b\n"
#define FN "functions:\n- function: f\n"

static const struct refusal refusals[] = {
	/* no declarations at all */
	{ "", "1: is empty: wants lists of tracepoints or functions" },
	{ "# nothing\n", "1: is empty: wants lists of tracepoints or functions" },
	{ "word", "1: wants keys with values" },
	{ "\n\n- a\n", "3: wants keys with values" },
	{ "{}", "1: wants lists of tracepoints or functions" },
	{ "tracepoints:\n\tx", "2: no valid YAML: found character that cannot start any token" },
	{ "tracepoints: [\n", "2: no valid YAML: did not find expected node content" },
	{ "tracepoints: [] \n---\ntracepoints: []", "3: a second document: wants one" },
	{ "probes: []", "1: unknown key \"probes\"; known are tracepoints, functions" },
	{ "functions: []\ntracepoints: []\nfunctions: []", "3: functions: given twice" },
	{ "tracepoints: 5", "1: tracepoints: wants a list" },
	{ "tracepoints:\n- a:b", "2: tracepoint \"\": wants keys with values" },
	{ "? [a]\n: b\n", "1: unknown key \"\"; known are tracepoints, functions" },
	/* tracepoints */
	{ "tracepoints:\n- topic: a.b\n", "2: tracepoint \"\": tracepoint: missing" },
	{ "tracepoints:\n- tracepoint: ab\n",
	  "2: tracepoint \"ab\": tracepoint: wants provider:name" },
	{ "tracepoints:\n- tracepoint: 'a:'\n",
	  "2: tracepoint \"a:\": tracepoint: wants provider:name" },
	{ "tracepoints:\n- tracepoint: [a]\n",
	  "2: tracepoint \"\": tracepoint: wants provider:name" },
	{ TP "  probe: x\n", "3: tracepoint \"a:b\": unknown key \"probe\"; known are tracepoint, "
			     "topic, socket, doc, fields" },
	{ TP "  topic: c.d\n  topic: c.e\n", "4: tracepoint \"a:b\": topic: given twice" },
	{ TP "  socket: middle\n", "3: tracepoint \"a:b\": socket: wants low or high" },
	{ TP "  doc: \"a\\nb\"\n", "3: tracepoint \"a:b\": doc: wants a single line" },
	{ TP "  doc: [a]\n", "3: tracepoint \"a:b\": doc: wants a text" },
	{ TP "  fields: {}\n", "3: tracepoint \"a:b\": fields: wants a list" },
	/* topics */
	{ TP "  topic: ab\n", "3: tracepoint \"a:b\": topic: \"ab\": wants two words of a-z, 0-9 "
			      "and _ with a dot between" },
	{ TP "  topic: A.b\n", "3: tracepoint \"a:b\": topic: \"A.b\": wants two words of a-z, 0-9 "
			       "and _ with a dot between" },
	{ TP "  topic: a.b.c\n", "3: tracepoint \"a:b\": topic: \"a.b.c\": wants two words of a-z, "
				 "0-9 and _ with a dot between" },
	{ "tracepoints:\n\n- tracepoint: A:b\n",
	  "3: tracepoint \"A:b\": topic: \"A.b\": wants two words of a-z, 0-9 and _ with a dot "
	  "between" },
	{ TP "  topic: mempool.removed\n",
	  "3: tracepoint \"a:b\": topic: \"mempool.removed\" exists already" },
	{ "tracepoints:\n- tracepoint: mempool:removed\n",
	  "2: tracepoint \"mempool:removed\": topic: \"mempool.removed\" exists already" },
	{ TP "- tracepoint: c:d\n  topic: a.b\n",
	  "4: tracepoint \"c:d\": topic: \"a.b\" exists already" },
	{ TP "  topic: mempool.remove\n", "3: tracepoint \"a:b\": topic: \"mempool.remove\" is a "
					  "prefix of \"mempool.removed\"" },
	{ TP "  topic: utxocache.address\n", "3: tracepoint \"a:b\": topic: \"utxocache.add\" is a "
					     "prefix of \"utxocache.address\"" },
	{ TP "- tracepoint: a:bc\n",
	  "3: tracepoint \"a:bc\": topic: \"a.b\" is a prefix of \"a.bc\"" },
	{ TP "  topic: bridge.x\n",
	  "3: tracepoint \"a:b\": topic: \"bridge.x\": bridge. topics are coretap's own" },
	{ TP "  topic: node.x\n",
	  "3: tracepoint \"a:b\": topic: \"node.x\": node. topics are coretap's own" },
	{ "tracepoints:\n- tracepoint: block:x\n",
	  "2: tracepoint \"block:x\": topic: \"block.x\": block. topics are coretap's own" },
	/* fields */
	{ TP "  fields:\n  - x\n", "4: field \"\": wants keys with values" },
	{ TP "  fields:\n  - type: uint\n", "4: field \"\": name: missing" },
	{ TP "  fields:\n  - name: x\n", "4: field \"x\": type: missing" },
	{ TP "  fields:\n  - name: x\n    type: blob\n",
	  "5: field \"x\": type: \"blob\" is none of uint, int, bool, hash, text, network, "
	  "duration_us, payload, skip" },
	{ TP "  fields:\n  - name: x\n    type:\n",
	  "5: field \"x\": type: \"\" is none of uint, int, "
	  "bool, hash, text, network, duration_us, "
	  "payload, skip" },
	{ TP "  fields:\n  - name: x\n    typ: int\n",
	  "5: field \"x\": unknown key \"typ\"; known are name, type, max, unit, doc" },
	{ TP "  fields:\n  - {name: x, type: int}\n  - {name: x, type: int}\n",
	  "5: field \"x\": name: given twice" },
	{ TP "  fields:\n  - {name: X, type: int}\n",
	  "4: field \"X\": name: wants a-z, 0-9 and _, a letter first" },
	{ TP "  fields:\n  - {name: 1x, type: int}\n",
	  "4: field \"1x\": name: wants a-z, 0-9 and _, a letter first" },
	{ TP "  fields:\n  - type: int\n    name: seq\n",
	  "5: field \"seq\": name: is reserved for the message itself" },
	{ TP "  fields:\n  - {name: notice, type: int}\n",
	  "4: field \"notice\": name: is reserved for the message itself" },
	{ TP "  fields:\n  - {name: x, type: int, max: 5}\n",
	  "4: field \"x\": max: is for types text and payload" },
	{ TP "  fields:\n  - name: x\n    type: text\n    max: 512\n",
	  "6: field \"x\": max: wants a number from 1 to 511" },
	{ TP "  fields:\n  - name: x\n    type: text\n    max: -1\n",
	  "6: field \"x\": max: wants a number from 1 to 511" },
	{ TP "  fields:\n  - name: x\n    type: text\n    max: 99999999999999999999\n",
	  "6: field \"x\": max: wants a number from 1 to 511" },
	{ TP "  fields:\n  - {name: x, type: duration_us, unit: s}\n",
	  "4: field \"x\": unit: duration_us is published in ns" },
	{ TP "  fields:\n  - {name: x, type: int, unit: abcdefghijklmnopq}\n",
	  "4: field \"x\": unit: longer than 16 characters" },
	{ TP "  fields:\n  - {name: x, type: payload}\n",
	  "4: field \"x\": the argument before a payload must be its size, an uint" },
	{ TP "  fields:\n  - {name: n1, type: bool}\n  - {name: x, type: payload}\n",
	  "5: field \"x\": the argument before a payload must be its size, an uint" },
	{ TP "  fields:\n  - {name: n1, type: uint}\n  - {type: skip}\n  - {name: x, type: "
	     "payload}\n",
	  "6: field \"x\": the argument before a payload must be its size, an uint" },
	{ TP "  fields:\n  - {name: n1, type: uint}\n  - {name: x, type: payload}\n"
	     "  - {name: n2, type: uint}\n  - {name: y, type: payload}\n",
	  "7: field \"y\": a second payload: there can be one" },
	{ TP "  fields:\n  - {name: truncated, type: bool}\n  - {name: n1, type: uint}\n"
	     "  - {name: x, type: payload}\n",
	  "6: field \"x\": a field truncated follows a payload: call that of line 4 otherwise" },
	{ TP "  fields:\n  - {name: n1, type: uint}\n  - {name: x, type: payload}\n"
	     "  - {name: truncated, type: bool}\n",
	  "6: field \"truncated\": name: given twice" },
	{ TP "  fields:\n  - {name: n1, type: uint}\n  - {name: x, type: payload, max: 0}\n",
	  "5: field \"x\": max: wants a number from 1 to 4194304" },
	{ TP "  fields:\n  - {name: t, type: text, max: 400}\n  - {name: n1, type: uint}\n"
	     "  - {name: x, type: payload}\n",
	  "6: field \"x\": the fields up to this one take 520 bytes, 408 are there beside a "
	  "payload: give texts a smaller max" },
	{ TP "  fields:\n  - {name: t, type: text, max: 511}\n  - {name: u, type: text, max: "
	     "511}\n  - {name: w, type: text}\n  - {name: x, type: text, max: 15}\n",
	  "7: field \"x\": the fields up to this one take 1184 bytes, 1176 are there: give texts "
	  "a smaller max" },
	{ TP "  fields:\n  - {name: a1, type: int}\n  - {name: a2, type: int}\n  - {type: skip}\n"
	     "  - {name: a4, type: int}\n  - {name: a5, type: int}\n  - {name: a6, type: int}\n"
	     "  - {name: a7, type: int}\n  - {name: a8, type: int}\n  - {name: a9, type: int}\n"
	     "  - {name: a10, type: int}\n  - {name: a11, type: int}\n  - {name: a12, type: int}\n"
	     "  - {name: a13, type: int}\n",
	  "16: field \"a13\": too many arguments: at most 12" },
	/* functions */
	{ "functions:\n- topic: a.b\n", "2: function \"\": function: missing" },
	{ "functions:\n- function: _Zx\n",
	  "2: function \"_Zx\": topic: missing: the name cannot serve as one" },
	{ FN "  return: int\n", "3: function \"f\": unknown key \"return\"; known are function, "
				"topic, socket, doc, arguments, returns, debug, throws" },
	{ FN "  throws: maybe\n", "3: function \"f\": throws: wants true or false" },
	{ FN "  arguments:\n  - {name: x, type: int}\n", "4: field \"x\": index: missing" },
	{ FN "  arguments:\n  - {type: int, index: 1}\n", "4: field \"\": name: missing" },
	{ FN "  arguments:\n  - name: x\n    type: int\n    index: 7\n",
	  "6: field \"x\": index: wants a number from 1 to 6" },
	{ FN "  arguments:\n  - {name: x, type: text, index: 1}\n",
	  "4: field \"x\": type: \"text\" is none of uint, int, bool" },
	{ FN "  arguments:\n  - {name: x, type: int, index: 1, size: 3}\n",
	  "4: field \"x\": size: wants 1, 2, 4 or 8" },
	{ FN "  arguments:\n  - {name: duration_ns, type: int, index: 1}\n",
	  "4: field \"duration_ns\": name: given twice" },
	{ FN "  returns:\n    type: hash\n",
	  "4: field \"result\": type: \"hash\" is none of uint, int, bool" },
	{ FN "  returns: int\n", "3: field \"result\": wants keys with values" },
	{ FN "  returns: {type: int, index: 1}\n",
	  "3: field \"result\": unknown key \"index\"; known are name, type, size, unit, doc" },
	{ "tracepoints:\n- tracepoint: function:f\n" FN,
	  "4: function \"f\": topic: \"function.f\" exists already" },
};

static void check_refusals(void)
{
	for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
		const struct refusal *r = &refusals[i];
		struct declarations d;
		char error[1200], wanted[1200];
		int err;

		declarations_init(&d);
		err = parse(&d, r->text, error, sizeof(error));
		snprintf(wanted, sizeof(wanted), "dir/f.yaml:%s", r->error);
		check(err < 0 && !strcmp(error, wanted),
		      "%s\n  is refused with: %s\n  and not:  %s", r->text, error, wanted);
		check(d.n == d.n_built_in, "%s: something of it is left", r->text);
		declarations_free(&d);
	}
}

/* Nothing of a file counts when something of it is wrong; files before it stay. */
static void check_several(void)
{
	struct declarations d;
	char error[1200];

	declarations_init(&d);
	check(!parse(&d, "tracepoints: [{tracepoint: 'a:b'}]", error, sizeof(error)), "%s", error);
	check(parse(&d, "tracepoints: [{tracepoint: 'c:d'}, {tracepoint: 'a:b'}]", error,
		    sizeof(error)) < 0 &&
		      strstr(error, "\"a.b\" exists already"),
	      "%s", error);
	check(d.n == d.n_built_in + 1, "%zu events", d.n);
	check(!parse(&d, "functions: [{function: g}]", error, sizeof(error)), "%s", error);
	check(d.n == d.n_built_in + 2, "%zu events", d.n);
	declarations_free(&d);
}

static void check_too_many(void)
{
	struct declarations d;
	char error[1200], text[8192] = "tracepoints:\n", wanted[200];
	size_t room;

	declarations_init(&d);
	room = MAX_PROBES - 1 - d.n_built_in;
	for (size_t i = 0; i <= room; i++)
		sprintf(text + strlen(text), "- tracepoint: p:x%02zu\n", i);
	snprintf(wanted, sizeof(wanted),
		 "dir/f.yaml:%zu: too many events: at most %zu can be declared", room + 2, room);
	check(parse(&d, text, error, sizeof(error)) < 0 && !strcmp(error, wanted), "%s", error);
	*strstr(text, "- tracepoint") = '#';
	check(!parse(&d, text, error, sizeof(error)) && d.n == MAX_PROBES - 1, "%s", error);
	declarations_free(&d);
}

static const char good[] = "tracepoints:\n"
			   "- tracepoint: p:n\n"
			   "  topic: other.name\n"
			   "  socket: high\n"
			   "  doc: One line\n"
			   "  fields:\n"
			   "  - {name: id, type: uint, unit: byte, doc: first}\n"
			   "  - {type: skip}\n"
			   "  - {name: h, type: hash}\n"
			   "  - {name: short_text, type: text, max: 15}\n"
			   "  - {name: some_text, type: text}\n"
			   "  - {name: t, type: duration_us}\n"
			   "  - {type: skip, name: whatever}\n"
			   "  - {name: size, type: int}\n"
			   "  - {name: data, type: payload, max: 100}\n"
			   "  - {name: net, type: network}\n"
			   "functions:\n"
			   "- function: f\n"
			   "  debug: f.debug\n"
			   "  arguments:\n"
			   "  - {name: a, type: int, index: 2, size: 4}\n"
			   "  - {name: b, type: bool, index: 6}\n"
			   "  returns: {type: uint, size: 2}\n";

static void check_good(void)
{
	static const struct {
		const char *name, *unit;
		enum field_type type;
		unsigned int slot, operand, line;
		bool argument;
	} fields[] = {
		{ "id", "byte", TYPE_UINT, 8, 0, 7, true },
		{ "h", "", TYPE_HASH, 32, 2, 9, true },
		{ "short_text", "", TYPE_TEXT, 16, 3, 10, true },
		{ "some_text", "", TYPE_TEXT, 144, 4, 11, true },
		{ "t", "ns", TYPE_US_TO_NS, 8, 5, 12, true },
		{ "size", "", TYPE_INT, 8, 7, 14, true },
		{ "data", "", TYPE_PAYLOAD, 8, 8, 15, true },
		{ "truncated", "", TYPE_BOOL, 0, 0, 15, false },
		{ "net", "", TYPE_NETWORK, 8, 9, 16, true },
	};
	struct declarations d;
	const struct declaration *tp, *fn;
	char error[1200];

	declarations_init(&d);
	check(!parse(&d, good, error, sizeof(error)), "%s", error);
	check(d.n == d.n_built_in + 2, "%zu events", d.n);
	if (d.n != d.n_built_in + 2)
		return;
	tp = declarations_of(&d, d.n_built_in);
	fn = declarations_of(&d, d.n_built_in + 1);
	check(!declarations_of(&d, 0), "a built-in event has no declaration");
	check(!strcmp(d.events[d.n_built_in].topic, "other.name") &&
		      !strcmp(tp->event.provider, "p") && !strcmp(tp->event.name, "n") &&
		      tp->event.socket == SOCKET_HIGH && !strcmp(tp->event.doc, "One line") &&
		      tp->event.flags == EVENT_DECLARED && tp->line == 2 &&
		      tp->payload_limit == 100 && !tp->is_function,
	      "the tracepoint");
	check(tp->event.n_fields == sizeof(fields) / sizeof(fields[0]), "%u fields",
	      tp->event.n_fields);
	for (unsigned int i = 0; i < tp->event.n_fields; i++) {
		const struct field_desc *f = &tp->event.fields[i];

		check(!strcmp(f->name, fields[i].name) && !strcmp(f->unit, fields[i].unit) &&
			      f->type == fields[i].type && f->slot == fields[i].slot &&
			      tp->operand[i] == fields[i].operand &&
			      tp->field_lines[i] == fields[i].line &&
			      f->argument == fields[i].argument,
		      "field %s", fields[i].name);
	}
	check(fn->is_function && !strcmp(fn->event.topic, "function.f") &&
		      !strcmp(fn->debug, "dir/f.debug") && fn->event.n_fields == 4 &&
		      !strcmp(fn->event.fields[0].name, "duration_ns") &&
		      !strcmp(fn->event.fields[3].name, "result") &&
		      !strcmp(fn->args, "-8@duration -4@arg2 1@arg6 2@return"),
	      "the function: %s", fn->args);
	declarations_free(&d);
}

/* What no text in memory has. */
static void check_files(void)
{
	struct declarations d;
	char error[1200];

	declarations_init(&d);
	check(declarations_read(&d, "/does/not/exist", error, sizeof(error)) < 0 &&
		      !strcmp(error, "/does/not/exist: No such file or directory"),
	      "%s", error);
	check(declarations_read(&d, "/tmp", error, sizeof(error)) < 0 &&
		      !strcmp(error, "/tmp: Is a directory"),
	      "%s", error);
	check(declarations_read(&d, "/dev/zero", error, sizeof(error)) < 0, "a device is read");
	check(d.n == d.n_built_in, "something was declared");
	declarations_free(&d);
}

int main(void)
{
	check_refusals();
	check_several();
	check_too_many();
	check_good();
	check_files();
	return failures ? 1 : 0;
}
