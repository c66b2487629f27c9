/* log.c: levels, the limit for each cause, and nothing raw from strangers. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../bridge/log.h"
#include "check.h"

static char text[1 << 20];

/* What stderr got since the last call, and how often word is in it. */
static int count(const char *word)
{
	static off_t at;
	off_t end = lseek(STDERR_FILENO, 0, SEEK_END);
	ssize_t n = pread(STDERR_FILENO, text, sizeof(text) - 1, at);
	int found = 0;

	text[n > 0 ? n : 0] = '\0';
	at = end;
	for (const char *s = text; (s = strstr(s, word)); s++)
		found++;
	return found;
}

static void say(int i)
{
	log_warning("refused number %d", i);
}

int main(void)
{
	FILE *file = tmpfile();

	test_name = "log";
	if (!file || dup2(fileno(file), STDERR_FILENO) < 0)
		return 1;
	/* At a start nothing is withheld. */
	for (int i = 0; i < 100; i++)
		log_info("listed %d", i);
	CHECK(count("listed") == 100);
	log_tick();
	/* One cause of many lines: ten are told, the rest counted. Others are not touched. */
	for (int i = 0; i < 1000; i++)
		say(i);
	log_error("something else");
	CHECK(count("refused number") == 10 &&
	      strstr(text, "coretapd: warning: refused number 9\n"));
	CHECK(strstr(text, "coretapd: error: something else\n"));
	log_tick();
	CHECK(count("refused") == 0); /* its time is not over */
	log_flush();
	CHECK(count("coretapd: warning: 990 more like this: refused number 999\n") == 1);
	say(5);
	CHECK(count("refused number 5\n") == 1);
	/* Levels. */
	log_debug("d1");
	log_level(LOG_LEVEL_ERROR);
	log_warning("w1");
	log_info("i1");
	log_error("e1");
	CHECK(count("1\n") == 1 && strstr(text, "error: e1"));
	log_level(LOG_LEVEL_DEBUG);
	log_debug("d2");
	CHECK(count("debug: d2\n") == 1);
	/* Strangers' bytes. */
	log_info("%s", "a\x1b[2Jb\nc\xff\xc2\x9b"
		       "d");
	CHECK(count("a\\x1b[2Jb\\x0ac\\xff\\xc2\\x9bd\n") == 1);
	/* Where a line belongs to. */
	log_prefix("file:3: ");
	log_error("wrong");
	log_prefix(NULL);
	log_error("right");
	CHECK(count("error: file:3: wrong\n") == 1 && strstr(text, "error: right\n"));
	/* A line too long is cut, and stays one line. */
	memset(text, 'x', 5000);
	text[5000] = '\0';
	log_error("%s", text);
	CHECK(count("\n") == 1 && strstr(text, "[...]"));
	/* More causes than are remembered: each is told. */
	log_flush();
	count("cause");
	for (int i = 0; i < 3; i++) {
#define ONE(n) log_info("cause " #n);
#define TEN(n) ONE(n##0) ONE(n##1) ONE(n##2) ONE(n##3) ONE(n##4) ONE(n##5) ONE(n##6) ONE(n##7)
		TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7)
	}
	CHECK(count("cause ") == 168);
	return failures ? 1 : 0;
}
