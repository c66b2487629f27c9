#!/bin/sh
# `make install` keeps to its places, `make uninstall` leaves none of ours behind, and `make dist` makes
# one and the same tarball wherever the sources stand.
build=${BUILD:-build}
unset MAKEFLAGS MAKELEVEL MFLAGS
top=$(mktemp -d) || exit 1
trap 'rm -rf "$top"' EXIT
fail=0
complain() { echo "$*"; fail=1; }

root="$top/a root"
places="BUILD=$build PREFIX=/opt/coretap"
# shellcheck disable=SC2086
make $places DESTDIR="$root" install >"$top/log" 2>&1 || complain "install: $(tail -n 3 "$top/log")"
[ -n "$(find "$root/opt/coretap" -name coretap.conf -path '*/etc/coretap/*')" ] || complain "no configuration below PREFIX"
[ -L "$root/opt/coretap/lib/libcoretap.so" ] || complain "no link for the linker"
[ "$(ls "$root")" = opt ] || complain "outside of PREFIX: $(ls "$root")"
[ "$(ls "$top")" = "$(printf 'a root\nlog')" ] || complain "outside of DESTDIR: $(ls "$top")"
grep -q 'ExecStart=/opt/coretap/sbin/coretapd --config /opt/coretap/etc/coretap/' "$root"/opt/coretap/lib/systemd/system/coretapd.service ||
	complain "the unit names other places"
# shellcheck disable=SC2086
make $places DESTDIR="$root" uninstall >"$top/log" 2>&1 || complain "uninstall: $(tail -n 3 "$top/log")"
left=$(find "$root" ! -type d -o -name 'coretap*' ! -path "$root/opt/coretap")
[ -z "$left" ] || complain "left behind: $left"

# From git, and from what that made, inside of a repository that is not ours.
sha() { sha256sum <"$1/$build/coretap-$version.tar.gz"; }
version=$(sed -n 's/^VERSION = //p' Makefile)
if [ -e .git ] && command -v git >/dev/null; then
	git -c safe.directory='*' clone -q --no-hardlinks . "$top/clone" 2>/dev/null || complain "git clone failed"
	(umask 077 && chmod -R go= "$top/clone" && make -C "$top/clone" BUILD=build dist) >"$top/log" 2>&1 || complain "dist: $(cat "$top/log")"
	mkdir "$top/other" && git init -q "$top/other"
	build=build
	tar -C "$top/other" -xzf "$top/clone/build/coretap-$version.tar.gz"
	make -C "$top/other/coretap-$version" BUILD=build dist >"$top/log" 2>&1 || complain "dist: $(cat "$top/log")"
	[ "$(sha "$top/clone")" = "$(sha "$top/other/coretap-$version")" ] || complain "the tarball of a tarball is another one"
	tar -tvzf "$top/clone/build/coretap-$version.tar.gz" | grep -v '^-rw-r--r--\|^-rwxr-xr-x\|^drwxr-xr-x' && complain "modes"
fi
exit $fail
