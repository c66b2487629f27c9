#!/bin/sh
# Linters over everything. What a finding is suppressed for stands beside it, or in .clang-tidy and
# .shellcheckrc. `make lint` (LINT=full) adds clang's analyzer, which takes minutes.
build=${BUILD:-build}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
fail=0

# What git knows; a tarball has nothing else.
files() {
	if [ -e .git ]; then git ls-files; else find . -type f -name '[!.]*' ! -path './build/*' | cut -c3-; fi |
		grep -v -e '^clients/[a-z]*/node_modules/'
}

# Those that begin with a line which names the interpreter.
scripts() {
	files | while read -r file; do
		if head -c 64 "$file" 2>/dev/null | head -n 1 | grep -q "^#!.*[/ ]$1"; then
			echo "$file"
		fi
	done
}

c_files() {
	# python.c wants headers that only fuzzing installs.
	files | grep '\.c$' | grep -v -e '^tests/fake_node/' -e '^tests/bench/' -e '\.bpf\.c$' \
		-e '^tests/fuzz/python\.c$'
}

# lint NAME TOOL COMMAND...: silence and exit code 0 are wanted. The files come on standard input.
lint() {
	name=$1 tool=$2
	shift 2
	if ! command -v "$tool" >/dev/null; then
		echo "SKIP test_lint.$name: no $tool here"
	elif xargs -P2 -n "$chunk" "$@" >"$work/out" 2>"$work/err" && ! [ -s "$work/out" ]; then
		echo "PASS test_lint.$name"
	else
		echo "FAIL test_lint.$name"
		cat "$work/out" "$work/err"
		fail=1
	fi
}

chunk=1000
files | grep '\.[ch]$' | lint format clang-format clang-format --dry-run -Werror

# The simulated node is inline assembly, which cppcheck takes for expressions without effect.
files | grep -e '^bridge/.*\.c$' -e '^protocol/.*\.c$' -e '^clients/.*\.c$' -e '^tests/unit/.*\.c$' \
	-e '^tests/fuzz/.*\.c$' |
	lint cppcheck cppcheck cppcheck -q --std=c11 --enable=warning,portability,performance \
		--inline-suppr --suppress=missingIncludeSystem --error-exitcode=1 \
		-D__x86_64__ -D_GNU_SOURCE '-DCORETAP_VERSION="0"' \
		'-DLIBBPF_OPTS(T,N,...)=struct T N = { __VA_ARGS__ }'

# What clang-tidy finds stands in its output, how many it left out in its errors.
chunk=3
export build checks
tidy() {
	# shellcheck disable=SC2016 # expands in the inner shell
	lint "$1" clang-tidy sh -c 'clang-tidy --quiet $checks "$@" -- -std=gnu11 -D_GNU_SOURCE \
		-DCORETAP_VERSION=\"0\" -isystem "$build" -isystem "$build/bench" 2>/dev/null' --
}
checks='--checks=-clang-analyzer-*'
c_files | tidy clang_tidy
# Tests run under sanitizers, and may end without giving everything back.
checks=
[ "$LINT" != full ] || c_files | grep -v '^tests/' | tidy analyzer

chunk=1000
{ scripts sh; scripts bash; files | grep -e '\.bash$' -e '^\.ci/run$'; } | sort -u |
	lint shellcheck shellcheck shellcheck -x
{ files | grep '\.py$'; scripts python3; } | sort -u |
	lint flake8 flake8 flake8 --select=F,E9,W6
files | grep '\.js$' |
	lint eslint tests/lint/node_modules/.bin/eslint tests/lint/node_modules/.bin/eslint \
		--no-config-lookup -c tests/lint/eslint.config.js
exit $fail
