/* What libzmq alone takes: one event a message, sent by a process that does nothing else.
 *
 *	bare RATE COUNT ENDPOINT
 *
 * The receiver (receiver.c) reads it like coretapd: statuses first, then the events. */
#include <errno.h>
#include <msgpack.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <zmq.h>

#define TOPIC "mempool.removed"
#define STATUS "bridge.status"

static uint64_t now_us(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static void nap_us(uint64_t us)
{
	nanosleep(&(struct timespec){ .tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000 },
		  NULL);
}

static void pack_key(msgpack_packer *packer, const char *key, uint64_t value)
{
	msgpack_pack_str_with_body(packer, key, strlen(key));
	msgpack_pack_uint64(packer, value);
}

/* The body of a message with one event, which is as long as a removal. */
static void pack(msgpack_packer *packer, uint64_t seq)
{
	char filler[80] = { 0 };

	msgpack_pack_map(packer, 4);
	pack_key(packer, "run", 1);
	pack_key(packer, "seq", seq);
	pack_key(packer, "n", seq);
	msgpack_pack_str_with_body(packer, "events", 6);
	msgpack_pack_array(packer, 1);
	msgpack_pack_map(packer, 2);
	pack_key(packer, "time_us", now_us(CLOCK_REALTIME));
	msgpack_pack_str_with_body(packer, "filler", 6);
	msgpack_pack_bin_with_body(packer, filler, sizeof(filler));
}

int main(int argc, char **argv)
{
	void *context = zmq_ctx_new(), *socket = zmq_socket(context, ZMQ_PUB);
	uint64_t rate = argc == 4 ? strtoull(argv[1], NULL, 10) : 0, count, next;
	msgpack_sbuffer body;
	msgpack_packer packer;

	if (!rate) {
		fprintf(stderr, "usage: bare RATE COUNT ENDPOINT\n");
		return 2;
	}
	count = strtoull(argv[2], NULL, 10);
	if (zmq_bind(socket, argv[3])) {
		fprintf(stderr, "bare: %s: %s\n", argv[3], zmq_strerror(errno));
		return 1;
	}
	prctl(PR_SET_TIMERSLACK, 1UL);
	msgpack_sbuffer_init(&body);
	msgpack_packer_init(&packer, &body, msgpack_sbuffer_write);
	for (int i = 0; i < 20; i++) {
		zmq_send(socket, STATUS, strlen(STATUS), ZMQ_SNDMORE);
		zmq_send(socket, "\x80", 1, 0);
		nap_us(50000);
	}
	next = now_us(CLOCK_MONOTONIC);
	for (uint64_t seq = 1; seq <= count; seq++) {
		uint64_t now = now_us(CLOCK_MONOTONIC);

		if (next > now)
			nap_us(next - now);
		next += 1000000 / rate;
		msgpack_sbuffer_clear(&body);
		pack(&packer, seq);
		zmq_send(socket, TOPIC, strlen(TOPIC), ZMQ_SNDMORE);
		zmq_send(socket, body.data, body.size, 0);
	}
	msgpack_sbuffer_destroy(&body);
	zmq_close(socket);
	zmq_ctx_term(context);
	return 0;
}
