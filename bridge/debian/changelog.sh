#!/bin/sh
# Debian's changelog for a version: its text is in CHANGELOG.md, its date that of the last change.
set -e
date=$(date -R -u -d "@${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}")
cat <<END
coretap ($1) unstable; urgency=medium

  * See CHANGELOG.md.

 -- The coretap developers <coretap@example.org>  $date
END
