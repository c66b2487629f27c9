#!/bin/sh
# The version stands in the Makefile; what must repeat it, says the same.
version=$(sed -n 's/^VERSION = //p' Makefile)
fail=0
for file in clients/python/pyproject.toml clients/python/coretap/__init__.py clients/js/package.json clients/explorer/package.json \
	clients/alerts/pyproject.toml clients/alerts/coretap_alerts/__init__.py; do
	found=$(sed -n 's/^ *"\{0,1\}\(__\)\{0,1\}version\(__\)\{0,1\}"\{0,1\} *[=:] *"\([^"]*\)".*/\3/p' "$file" | head -n 1)
	if [ "$found" != "$version" ]; then
		echo "$file: has version \"$found\", the Makefile $version"
		fail=1
	fi
done
grep -q "^## $version" CHANGELOG.md || { echo "CHANGELOG.md: nothing about $version"; fail=1; }
exit $fail
