/* coretap probes: the tracepoints of a binary, and what coretap makes of each. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../../bridge/operands.h"
#include "../../../bridge/probes.h"
#include "command.h"

struct report {
	struct output out;
	struct probes probes;
	struct json problems; /* texts, each ended by a NUL */
};

static void add_problem(struct report *report, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

static void add_problem(struct report *report, const char *fmt, ...)
{
	char text[256];
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	json_append(&report->problems, text, strlen(text) + 1);
}

static bool is_site_of(const struct probe_site *site, const char *provider, const char *name)
{
	return !strcmp(site->provider, provider) && !strcmp(site->name, name);
}

/* Compares the operands of one site with what the catalogue expects. */
static void check_site(struct report *report, const struct event_desc *event,
		       const struct probe_site *site)
{
	struct operand_context context = {
		.arch = report->probes.arch,
		.address = site->address,
		.resolve = probes_resolve,
		.arg = &report->probes,
	};
	struct operand operands[MAX_ARGS];
	unsigned int unsupported = 0, argument = 0;
	int n = operands_parse(site->args, &context, operands, MAX_ARGS, &unsupported);

	if (n < 0) {
		add_problem(report, "more than %d arguments: not attached", MAX_ARGS);
		return;
	}
	for (unsigned int i = 0; i < event->n_fields; i++) {
		const struct field_desc *field = &event->fields[i];
		size_t length;

		if (!field->argument)
			continue;
		if (argument >= (unsigned int)n) {
			/* What later versions added is no fault of an older one. */
			if (field->since <= event->since)
				add_problem(report, "%s is absent: only %d arguments", field->name,
					    n);
		} else if (operands[argument].kind == OPERAND_NONE) {
			const char *text = operands_text(site->args, argument, &length);

			add_problem(report, "%s is nil: operand %.*s cannot be read", field->name,
				    (int)length, length ? text : "");
		}
		argument++;
	}
}

static void print_column(struct report *report, const char *text, int width)
{
	output_text(&report->out, text, strlen(text));
	for (int n = (int)strlen(text); n < width; n++)
		putchar(' ');
}

/* One tracepoint. event is NULL when the catalogue does not know it; there may be no site. */
static void print_tracepoint(struct report *report, const struct event_desc *event,
			     const char *provider, const char *name)
{
	const struct probes *probes = &report->probes;
	struct json *json = &report->out.text;
	const char *state, *problem;
	char label[256];
	enum colour colour;
	size_t n_sites = 0;
	bool semaphore = false;

	report->problems.length = 0;
	for (size_t i = 0; i < probes->n_sites; i++) {
		if (!is_site_of(&probes->sites[i], provider, name))
			continue;
		n_sites++;
		semaphore |= probes->sites[i].semaphore != 0;
		if (event)
			check_site(report, event, &probes->sites[i]);
	}
	if (!event)
		state = "unknown", colour = YELLOW;
	else if (!n_sites)
		state = "missing", colour = RED;
	else if (report->problems.length)
		state = "degraded", colour = YELLOW;
	else
		state = "ok", colour = GREEN;
	snprintf(label, sizeof(label), "%s:%s", provider, name);

	if (report->out.json) {
		json->length = 0;
		json_raw(json, "{\"tracepoint\":");
		json_text(json, label, strlen(label));
		json_raw(json, ",\"known\":");
		json_raw(json, event ? "true" : "false");
		json_raw(json, ",\"state\":\"");
		json_raw(json, state);
		json_raw(json, "\",\"sites\":");
		json_uint(json, n_sites);
		json_raw(json, ",\"semaphore\":");
		json_raw(json, semaphore ? "true" : "false");
		json_raw(json, ",\"arguments\":[");
	} else {
		print_column(report, label, 41);
		putchar(' ');
		output_colour(&report->out, colour);
		printf("%-9s", state);
		output_colour(&report->out, PLAIN);
		printf(" %5zu %-9s", n_sites, n_sites ? semaphore ? "yes" : "no" : "");
		if (!n_sites)
			printf(" since v%u", event ? event->since : 0);
	}

	const char *separator = "";

	for (size_t i = 0; i < probes->n_sites; i++) {
		const char *args = probes->sites[i].args;

		if (!is_site_of(&probes->sites[i], provider, name))
			continue;
		if (report->out.json) {
			json_raw(json, separator);
			json_text(json, args, strlen(args));
			separator = ",";
			continue;
		}
		printf("%s ", separator);
		for (size_t j = 0; args[j]; j++)
			putchar(args[j] >= ' ' && args[j] < 0x7f ? args[j] : '?');
		separator = "\n                                                                   ";
	}
	separator = "";
	if (report->out.json)
		json_raw(json, "],\"problems\":[");
	else
		putchar('\n');
	for (size_t at = 0; at < report->problems.length; at += strlen(problem) + 1) {
		problem = report->problems.data + at;
		if (report->out.json) {
			json_raw(json, separator);
			json_text(json, problem, strlen(problem));
			separator = ",";
		} else {
			printf("    ");
			for (size_t j = 0; problem[j]; j++)
				putchar(problem[j] >= ' ' && problem[j] < 0x7f ? problem[j] : '?');
			putchar('\n');
		}
	}
	if (report->out.json) {
		json_raw(json, "]}\n");
		output_made(&report->out);
	}
}

static void print_head(struct report *report, const char *path)
{
	static const char *const arches[] = {
		[ARCH_X86_64] = "x86-64", [ARCH_AARCH64] = "aarch64"
	};
	const struct probes *probes = &report->probes;
	struct json *json = &report->out.text;

	if (!report->out.json) {
		printf("Bitcoin Core %s, %s, build id %s\n\n", probes_core(probes),
		       arches[probes->arch], *probes->build_id ? probes->build_id : "none");
		output_colour(&report->out, BOLD);
		printf("%-41s %-9s %5s %-9s %s\n", "TRACEPOINT", "STATE", "SITES", "SEMAPHORE",
		       "ARGUMENTS");
		output_colour(&report->out, PLAIN);
		return;
	}
	json->length = 0;
	json_raw(json, "{\"binary\":");
	json_text(json, path, strlen(path));
	json_raw(json, ",\"arch\":\"");
	json_raw(json, arches[probes->arch]);
	json_raw(json, "\",\"build_id\":\"");
	json_raw(json, probes->build_id);
	json_raw(json, "\",\"core\":\"");
	json_raw(json, probes_core(probes));
	json_raw(json, "\",\"unusable\":");
	json_uint(json, probes->n_unusable);
	json_raw(json, "}\n");
	output_made(&report->out);
}

/* Returns how many tracepoints of the catalogue there are. */
static size_t print_report(struct report *report, const char *path)
{
	const struct probes *probes = &report->probes;
	size_t n_events, n_known = 0;
	const struct event_desc *events = catalogue(&n_events);

	for (size_t i = 0; i < n_events; i++)
		for (size_t j = 0; j < probes->n_sites; j++)
			if (is_site_of(&probes->sites[j], events[i].provider, events[i].name)) {
				n_known++;
				break;
			}
	if (!n_known && !probes->n_sites)
		return 0;

	print_head(report, path);
	for (size_t i = 0; i < n_events; i++)
		if (!(events[i].flags & EVENT_DERIVED))
			print_tracepoint(report, &events[i], events[i].provider, events[i].name);
	for (size_t i = 0; i < probes->n_sites; i++) {
		const struct probe_site *site = &probes->sites[i];
		bool told = false;

		for (size_t j = 0; j < n_events && !told; j++)
			told = is_site_of(site, events[j].provider, events[j].name);
		for (size_t j = 0; j < i && !told; j++)
			told = is_site_of(site, probes->sites[j].provider, probes->sites[j].name);
		if (!told)
			print_tracepoint(report, NULL, site->provider, site->name);
	}
	if (probes->n_unusable && !report->out.json)
		printf("\n%zu notes cannot be used: malformed, or what they point to is not in the "
		       "file.\n",
		       probes->n_unusable);
	return n_known;
}

static int run(const struct subcommand *self, int argc, char **argv)
{
	static const struct option options[] = {
		{ "json", no_argument, NULL, 'j' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	struct report report = { 0 };
	char error[256] = "";
	bool json = false;
	int option, fd, err, closed, code = EXIT_DONE;

	while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1)
		switch (option) {
		case 'j':
			json = true;
			break;
		case 'h':
			return print_help(self);
		default:
			return usage_error(self);
		}
	if (optind + 1 != argc) {
		complain("probes takes the path of one binary");
		return usage_error(self);
	}

	const char *path = argv[optind];

	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0) {
		complain("%s: %s", path, strerror(errno));
		return errno == EACCES || errno == EPERM ? EXIT_NO_PRIVILEGE : EXIT_OTHER;
	}
	err = probes_read(fd, path, &report.probes, error, sizeof(error));
	close(fd);
	if (err) {
		complain("%s", *error ? error : strerror(-err));
		return EXIT_OTHER;
	}

	output_open(&report.out, json, !json);
	if (!print_report(&report, path)) {
		code = EXIT_NO_TRACEPOINTS;
		complain("%s: no tracepoints of Bitcoin Core. Check with `readelf -n %s` (owner "
			 "stapsdt). "
			 "Official releases for Linux have them, distribution builds often do not; "
			 "a build "
			 "of your own needs cmake -DWITH_USDT=ON.",
			 path, path);
	}
	probes_free(&report.probes);
	json_free(&report.problems);
	closed = output_close(&report.out);
	return code ? code : closed;
}

const struct subcommand command_probes = {
	.name = "probes",
	.arguments = "BINARY [--json]",
	.summary = "Lists the tracepoints of a binary and what coretap makes of them",
	.help = "States:\n"
		"  ok         every argument can be read\n"
		"  degraded   some cannot: those fields are nil or absent, the rest works\n"
		"  missing    this binary does not have it (the first version that has is shown)\n"
		"  unknown    not in coretap's catalogue; `coretapd --tracepoints` can add it\n\n"
		"  --json     a line for the binary, then one for each tracepoint\n\n"
		"Exits with 3 when there is none.\n",
	.run = run,
};
