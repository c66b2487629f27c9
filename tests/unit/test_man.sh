#!/bin/sh
# The manuals name what the programs and the header have, no more and no less; shell completions
# offer the same.
build=${BUILD:-build}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
fail=0

# same NAME WHAT: what the manual has (in $work/man) is what the source of truth has (in $work/real).
same() {
	sort -u "$work/man" >"$work/man.sorted"
	sort -u "$work/real" >"$work/real.sorted"
	if ! [ -s "$work/real.sorted" ]; then
		echo "FAIL $1: $2 has none"
		fail=1
	elif diff "$work/man.sorted" "$work/real.sorted" >"$work/diff"; then
		echo "PASS $1"
	else
		echo "FAIL $1: < in the manual only, > in $2 only"
		cat "$work/diff"
		fail=1
	fi
}

# Options in the tagged lists of the manual's text on standard input, without --help and --version.
man_options() {
	grep '^\.It ' | grep -o 'Fl Fl [a-z-]*' | sed 's/Fl Fl //' | grep -vx -e help -e version
}

# A line may have two: "--curve-server FILE, --curve-secret FILE".
help_options() {
	sed 's/^\( *\)\(--[^,]*\), \(--.*\)/\1\2\n\1\3/' | grep -o '^ *--[a-z-]*' | sed 's/.*--//' | grep -vx -e help -e version
}

if command -v mandoc >/dev/null; then
	# A warning about the sections that a system's own manuals may not have is none of ours.
	if mandoc -T lint -W warning bridge/man/*.[1-8] clients/*/man/*.[1-8] \
		clients/alerts/*.1 >"$work/lint" 2>&1; then
		echo "PASS test_man.lint"
	else
		echo "FAIL test_man.lint"
		cat "$work/lint"
		fail=1
	fi
else
	echo "SKIP test_man.lint: no mandoc here (make deps)"
fi

man_options <bridge/man/coretapd.8 >"$work/man"
"$build/coretapd" --help | help_options >"$work/real"
same test_man.coretapd "coretapd --help"

sed -n 's/^\([a-z][a-z-]*\):.*/\1/p' bridge/man/coretap.conf.5 >"$work/keys"
if [ -s "$work/keys" ] && ! grep -vxFf "$work/real" "$work/keys"; then
	echo "PASS test_man.coretap.conf"
else
	echo "FAIL test_man.coretap.conf: keys that are no options"
	fail=1
fi

man_options <clients/alerts/coretap-alerts.1 >"$work/man"
clients/alerts/coretap-alerts --help | help_options >"$work/real"
same test_man.coretap-alerts "coretap-alerts --help"

# PROGRAM MANUAL: its commands, and the options of each.
compare_commands() {
	commands=$("$build/$1" --help | sed -n 's/^  \([a-z]*\)  .*/\1/p')
	sed -n "s/^\.Ss $1 \([a-z]*\)\$/\1/p" "$2" >"$work/man"
	echo "$commands" | tr ' ' '\n' >"$work/real"
	same "test_man.$1" "$1 --help"
	for command in $commands; do
		sed -n "/^\.Ss $1 $command\$/,/^\.S[sh] [^c]/p" "$2" |
			awk -v want="$command" '/^\.Ss/ { on = $3 == want } on' | man_options >"$work/man"
		"$build/$1" "$command" --help | help_options >"$work/real"
		# The few that the usage line alone explains.
		"$build/$1" "$command" --help | head -n 1 | grep -o -- '--[a-z-]*' | sed 's/--//' >>"$work/real"
		[ -s "$work/real" ] || [ -s "$work/man" ] || continue
		same "test_man.$1_$command" "$1 $command --help"
	done
}
if [ -x "$build/coretap-nats" ]; then
	compare_commands coretap-nats clients/nats/man/coretap-nats.1
else
	echo "SKIP test_man.coretap-nats: no libnats here (make deps)"
fi
compare_commands coretap clients/c/man/coretap.1

sed -n '/^\.Sh SYNOPSIS/,/^\.Sh DESCRIPTION/s/^\.Fn \([a-z_0-9]*\).*/\1/p' clients/c/man/libcoretap.3 >"$work/man"
tr '\n' ' ' <clients/c/coretap.h | grep -o 'CORETAP_EXPORT [^;]*;' |
	grep -o 'coretap_[a-z_0-9]*(' | tr -d '(' >"$work/real"
same test_man.libcoretap coretap.h
grep -o 'CORETAP_[A-Z_]*' clients/c/man/libcoretap.3 | grep -v DEFAULT_ADDRESS |
	grep -v -e _SET -e _NIL >"$work/man"
sed -n '/^enum coretap_kind/,/^}/s/^\t\(CORETAP_[A-Z_]*\).*/\1/p' clients/c/coretap.h >"$work/real"
same test_man.kinds coretap.h

# Completions ask the programs: run the shells' own machinery on them.
PATH="$(cd "$build" && pwd):$PATH"
export PATH
coretapd --help | help_options | sed 's/^/--/' >"$work/options"
echo "$commands" | tr ' ' '\n' >"$work/commands"
coretap record --help | help_options | sed 's/^/--/' >"$work/record"

# completes SHELL: $work/got-{options,commands,record} is what the shell offered.
completes() {
	for list in options commands record; do
		if ! grep -v -e '^--help$' -e '^--version$' -e '^-[a-z]$' "$work/got-$list" | sort -u |
			diff - "$work/$list" >"$work/diff"; then
			echo "FAIL test_man.completion_$1: $list: < offered, > to be offered"
			cat "$work/diff"
			fail=1
			return
		fi
	done
	echo "PASS test_man.completion_$1"
}
for list in options commands record; do
	sort -u -o "$work/$list" "$work/$list"
done

ask_bash() {
	bash --norc -c '
		. bridge/completions/coretapd.bash
		. clients/c/completions/coretap.bash
		COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
		_$1 "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
		printf "%s\n" "${COMPREPLY[@]}"' bash "$@"
}
ask_bash coretapd -- >"$work/got-options"
ask_bash coretap '' >"$work/got-commands"
ask_bash coretap record -- >"$work/got-record"
completes bash

if command -v fish >/dev/null; then
	# shellcheck disable=SC2016 # fish expands it
	ask_fish() {
		HOME=$work XDG_CONFIG_HOME=$work XDG_DATA_HOME=$work fish --no-config -c '
			source bridge/completions/coretapd.fish
			source clients/c/completions/coretap.fish
			complete -C "$argv[1]"' "$1" 2>>"$work/fish" | cut -f 1
	}
	ask_fish 'coretapd --' >"$work/got-options"
	ask_fish 'coretap ' >"$work/got-commands"
	ask_fish 'coretap record --' >"$work/got-record"
	completes fish
	# Where coretap-nats is not installed either.
	mkdir "$work/bin"
	for program in coretap coretapd; do ln -s "$(command -v "$program")" "$work/bin"; done
	(PATH="$work/bin:/usr/bin:/bin" ask_fish 'coretap ') >"$work/got-commands"
	if [ -s "$work/fish" ]; then
		echo "FAIL test_man.completion_fish: it says"
		cat "$work/fish"
		fail=1
	fi
else
	echo "SKIP test_man.completion_fish: no fish here"
fi

if command -v zsh >/dev/null; then
	# compadd and _describe as the completion system would call them, printing what they get.
	ask_zsh() {
		zsh -f -c '
			_describe() { local -a offered; offered=("${(@P)argv[-1]}"); print -l -- "${offered[@]%%:*}" }
			_files() { :; }
			_message() { :; }
			compdef() { :; }
			words=("$@") CURRENT=$#
			source "$FILE"' zsh "$@"
	}
	FILE=bridge/completions/_coretapd
	export FILE
	ask_zsh coretapd -- >"$work/got-options"
	FILE=clients/c/completions/_coretap
	ask_zsh coretap '' >"$work/got-commands"
	ask_zsh coretap record -- >"$work/got-record"
	completes zsh
else
	echo "SKIP test_man.completion_zsh: no zsh here"
fi
exit $fail
