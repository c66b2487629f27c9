/* The baseline of coretap-nats: libnats' own asynchronous publishing into JetStream, of messages of
 * one size and without headers.
 *
 *	nats URL SUBJECT COUNT SIZE PENDING
 *
 * Prints the seconds until the last one is acknowledged. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <nats/nats.h>

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void fail(jsCtx *js, jsPubAckErr *error, void *closure)
{
	(void)js;
	(void)closure;
	fprintf(stderr, "nats: %s\n", error->ErrText ? error->ErrText : "not acknowledged");
	exit(1);
}

static void check(natsStatus status, const char *what)
{
	if (status == NATS_OK)
		return;
	fprintf(stderr, "nats: %s: %s\n", what, nats_GetLastError(NULL));
	exit(1);
}

int main(int argc, char **argv)
{
	natsConnection *connection = NULL;
	jsCtx *js = NULL;
	jsOptions options;
	long count;
	int size;
	char *body;
	double start;

	if (argc != 6)
		return 2;
	count = atol(argv[3]);
	size = atoi(argv[4]);
	body = calloc(1, (size_t)size + 1);
	check(natsConnection_ConnectTo(&connection, argv[1]), argv[1]);
	jsOptions_Init(&options);
	options.PublishAsync.MaxPending = atol(argv[5]);
	options.PublishAsync.StallWait = 60000;
	options.PublishAsync.ErrHandler = fail;
	check(natsConnection_JetStream(&js, connection, &options), "JetStream");
	start = seconds();
	for (long i = 0; i < count; i++)
		check(js_PublishAsync(js, argv[2], body, size, NULL), argv[2]);
	check(js_PublishAsyncComplete(js, NULL), "waiting");
	printf("%.6f\n", seconds() - start);
	jsCtx_Destroy(js);
	natsConnection_Destroy(connection);
	nats_Close();
	free(body);
	return 0;
}
