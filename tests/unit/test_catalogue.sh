#!/bin/sh
# Adding a tracepoint takes an entry in events.def, a probe in the simulated node and a golden frame
# (test_golden.c looks for that); and the generated documents must be fresh.
build=${BUILD:-build}
fail=0
"$build/coretap" topics --json | cmp - protocol/events.json || fail=1
"$build/coretap" topics --markdown | cmp - protocol/EVENTS.md || fail=1
[ $fail = 0 ] || echo "generated files are stale: make docs"

# Every tracepoint of the catalogue has a probe in the simulated node, with as many arguments.
readelf -n "$build/fake_node" | awk '/Provider:/ { p = $2 } /Name:/ { n = $2 } /Arguments:/ { print p ":" n, NF - 1 }' |
	sort -u >"${TMPDIR:-/tmp}/probes.$$"
"$build/coretap" topics --json | tr -d '\n' | sed 's/{ *"topic"/\n&/g' | grep '"derived": false' |
	sed 's/.*"provider": "\([^"]*\)", *"name": "\([^"]*\)".*/\1:\2/' | while read -r probe; do
	grep -q "^$probe " "${TMPDIR:-/tmp}/probes.$$" || echo "$probe: not in the simulated node"
done | grep . && fail=1
rm -f "${TMPDIR:-/tmp}/probes.$$"
exit $fail
