/* Durations and times as people write them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "command.h"

static uint64_t read_clock(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

uint64_t clock_us(void)
{
	return read_clock(CLOCK_REALTIME);
}

uint64_t steady_us(void)
{
	return read_clock(CLOCK_MONOTONIC);
}

static bool read_duration(const char *text, uint64_t *microseconds)
{
	static const struct {
		const char *unit;
		double us;
	} units[] = {
		{ "", 1e6 },   { "us", 1 },	{ "ms", 1e3 },	  { "s", 1e6 },
		{ "m", 60e6 }, { "h", 3600e6 }, { "d", 86400e6 },
	};
	double number, us;
	char *end;

	if (*text < '0' || *text > '9' || strspn(text, "0123456789.") > 15)
		return false;
	number = strtod(text, &end);
	for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
		if (strcmp(end, units[i].unit))
			continue;
		us = number * units[i].us;
		if (!(us < 9e15))
			return false;
		*microseconds = (uint64_t)us;
		return true;
	}
	return false;
}

bool parse_duration(const char *what, const char *text, uint64_t *microseconds)
{
	if (read_duration(text, microseconds) && *microseconds)
		return true;
	complain("%s %s: not a duration, like 90s, 10m or 2h", what, text);
	return false;
}

/* 2009-01-03, 2009-01-03T18:15:05, with Z, +01:00 or, for local time, nothing behind. */
static bool read_time(const char *text, uint64_t *time_us)
{
	struct tm tm = { .tm_isdst = -1 };
	const char *end = strptime(text, "%Y-%m-%d", &tm);
	time_t seconds;
	long zone = 0;

	if (!end)
		return false;
	if (*end == 'T' || *end == ' ') {
		const char *minutes = strptime(end + 1, "%H:%M", &tm);

		if (!minutes)
			return false;
		end = *minutes == ':' ? strptime(minutes, ":%S", &tm) : minutes;
		if (!end)
			return false;
	}
	if (*end) {
		struct tm offset = { 0 };
		const char *rest = end + 1;

		if (*end == '+' || *end == '-') {
			rest = strptime(end + 1, "%H:%M", &offset);
			zone = (offset.tm_hour * 60 + offset.tm_min) * (*end == '+' ? 60 : -60);
		} else if (*end != 'Z') {
			return false;
		}
		if (!rest || *rest)
			return false;
		tm.tm_isdst = 0;
		seconds = timegm(&tm) - zone;
	} else {
		seconds = mktime(&tm);
	}
	if (seconds < 0)
		return false;
	*time_us = (uint64_t)seconds * 1000000;
	return true;
}

bool parse_since(const char *text, uint64_t *time_us)
{
	uint64_t back, now = clock_us();

	if (!strcmp(text, "oldest")) {
		*time_us = 0;
		return true;
	}
	if (read_duration(text, &back)) {
		*time_us = back < now ? now - back : 0;
		return true;
	}
	if (read_time(text, time_us))
		return true;
	complain("--since %s: neither a duration (10m, 2h), nor oldest, nor a time "
		 "(2009-01-03T18:15:05Z)",
		 text);
	return false;
}
