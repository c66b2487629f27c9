/* The simulated peers; see peers.h. */
#include "peers.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PAYLOAD_SIZE (4 * 1000 * 1000) /* Core's limit for a message */

/* Core's numbers for networks, as in the connection probes. */
enum network { NETWORK_IPV4 = 1, NETWORK_IPV6, NETWORK_ONION, NETWORK_I2P, NETWORK_CJDNS };

int peers_open(struct peers *peers, const struct node *node)
{
	size_t k;

	*peers = (struct peers){
		.ledger = node->ledger,
		.random.state = node->options->seed + 2,
		.payload = malloc(PAYLOAD_SIZE),
	};
	if (!peers->payload) {
		fprintf(stderr, "fake_node: peers: out of memory\n");
		return -1;
	}
	for (k = 0; k < PAYLOAD_SIZE; k++)
		peers->payload[k] = (uint8_t)(7 * k);
	return 0;
}

void peers_close(struct peers *peers)
{
	free(peers->payload);
}

static void base32(struct random *random, char *text, size_t length)
{
	size_t i;

	for (i = 0; i < length; i++)
		text[i] = "abcdefghijklmnopqrstuvwxyz234567"[random_below(random, 32)];
	text[length] = '\0';
}

static void peer_address(struct peer *peer, struct random *random)
{
	unsigned int a = (unsigned int)random_below(random, 256);
	unsigned int b = (unsigned int)random_below(random, 65536);
	char name[57];

	switch (peer->network) {
	case NETWORK_IPV6:
		snprintf(peer->addr, sizeof(peer->addr), "[2001:db8:%x::%x]:8333", b, a + 1);
		break;
	case NETWORK_ONION:
		base32(random, name, 56);
		snprintf(peer->addr, sizeof(peer->addr), "%s.onion:8333", name);
		break;
	case NETWORK_I2P:
		base32(random, name, 52);
		snprintf(peer->addr, sizeof(peer->addr), "%s.b32.i2p:0", name);
		break;
	case NETWORK_CJDNS:
		snprintf(peer->addr, sizeof(peer->addr), "[fc%02x:%x::%x]:8333", a, b, a + 1);
		break;
	default:
		snprintf(peer->addr, sizeof(peer->addr), "203.0.%u.%u:%u", a, b % 256,
			 peer->inbound ? 32768 + b / 2 : 8333);
	}
}

static struct peer peer_new(struct peers *peers)
{
	static const char *const outbound[] = {
		"outbound-full-relay",
		"outbound-full-relay",
		"outbound-full-relay",
		"block-relay-only",
		"manual",
		"feeler",
		"addr-fetch",
	};
	static const uint32_t networks[] = { NETWORK_IPV4, NETWORK_IPV4,  NETWORK_IPV4,
					     NETWORK_IPV6, NETWORK_ONION, NETWORK_ONION,
					     NETWORK_I2P,  NETWORK_CJDNS };
	struct peer peer = { .established = (int64_t)time(NULL) };

	peer.network = networks[random_below(&peers->random, 8)];
	peer.inbound = random_percent(&peers->random, 60);
	peer.connection = peer.inbound ? "inbound" : outbound[random_below(&peers->random, 7)];
	peer_address(&peer, &peers->random);
	return peer;
}

static void message(struct peers *peers, const struct peer *peer, bool inbound, const char *type,
		    uint64_t size)
{
	uint8_t *data = size ? peers->payload : NULL; /* an empty message has no data */

	if (size > PAYLOAD_SIZE)
		size = PAYLOAD_SIZE;
	if (inbound)
		probe_inbound_message(peers->ledger, peer->id, peer->addr, peer->connection, type,
				      size, data);
	else
		probe_outbound_message(peers->ledger, peer->id, peer->addr, peer->connection, type,
				       size, data);
}

static struct peer *pick(struct peers *peers)
{
	return peers->count ? &peers->peers[random_below(&peers->random, peers->count)] : NULL;
}

static void close_peer(struct peers *peers, struct peer *peer)
{
	probe_closed_connection(peers->ledger, peer->id, peer->addr, peer->connection,
				peer->network, peer->established);
	*peer = peers->peers[--peers->count];
}

/* Tells an inbound peer to go; NULL when there is none. */
static struct peer *evict(struct peers *peers)
{
	size_t i;

	for (i = 0; i < peers->count; i++) {
		struct peer *peer = &peers->peers[i];

		if (!peer->inbound)
			continue;
		probe_evicted_inbound_connection(peers->ledger, peer->id, peer->addr,
						 peer->connection, peer->network,
						 peer->established);
		return peer;
	}
	return NULL;
}

/* Counts the peers of the direction, this one included. */
static void fire_connection(struct peers *peers, const struct peer *peer)
{
	uint64_t count = 0;
	size_t i;

	for (i = 0; i < peers->count; i++)
		count += peers->peers[i].inbound == peer->inbound;
	if (peer->inbound)
		probe_inbound_connection(peers->ledger, peer->id, peer->addr, peer->connection,
					 peer->network, count);
	else
		probe_outbound_connection(peers->ledger, peer->id, peer->addr, peer->connection,
					  peer->network, count);
}

/* Who calls says its version first. */
static void handshake(struct peers *peers, const struct peer *peer)
{
	message(peers, peer, peer->inbound, "version", 102);
	message(peers, peer, !peer->inbound, "version", 102);
	message(peers, peer, false, "wtxidrelay", 0);
	message(peers, peer, false, "sendaddrv2", 0);
	message(peers, peer, false, "verack", 0);
	message(peers, peer, true, "verack", 0);
	message(peers, peer, false, "sendcmpct", 9);
	message(peers, peer, false, "ping", 8);
	message(peers, peer, false, "getheaders", 1029);
	message(peers, peer, false, "feefilter", 8);
}

void peers_connect(struct peers *peers)
{
	struct peer peer = peer_new(peers), *evicted = NULL;

	if (peers->count == PEERS_MAX) {
		evicted = peer.inbound ? evict(peers) : NULL;
		if (!evicted)
			return;
	}
	peer.id = peers->next_id++;
	peers->peers[peers->count++] = peer;
	fire_connection(peers, &peer);
	if (evicted)
		close_peer(peers, evicted);
	handshake(peers, &peer);
}

void peers_disconnect(struct peers *peers)
{
	if (peers->count)
		close_peer(peers, pick(peers));
}

void peers_misbehave(struct peers *peers)
{
	static const char *const reasons[] = {
		"addr message size = 1001",
		"inv message size = 50001",
		"headers message size = 2001",
		"header with invalid proof of work",
		"non-continuous headers sequence",
		"getdata message size = 50003",
		"", /* an invalid block gives none */
	};
	struct peer *peer = pick(peers);

	if (!peer)
		return;
	probe_misbehaving_connection(peers->ledger, peer->id,
				     reasons[random_below(&peers->random, 7)]);
	close_peer(peers, peer);
}

void peers_chatter(struct peers *peers)
{
	struct random *random = &peers->random;
	const struct peer *peer = pick(peers);

	if (!peer)
		return;
	switch (random_below(random, 8)) {
	case 0:
		message(peers, peer, false, "ping", 8);
		message(peers, peer, true, "pong", 8);
		break;
	case 1:
		message(peers, peer, true, "ping", 8);
		message(peers, peer, false, "pong", 8);
		break;
	case 2:
		message(peers, peer, true, "addrv2", 1 + 23 * random_between(random, 1, 40));
		break;
	case 3:
		message(peers, peer, false, "feefilter", 8);
		break;
	case 4:
		message(peers, peer, true, "getdata", 37);
		message(peers, peer, false, "tx", random_between(random, 190, 900));
		break;
	case 5:
		message(peers, peer, true, "getheaders", 1029);
		message(peers, peer, false, "headers", 1 + 81 * random_below(random, 9));
		break;
	case 6:
		message(peers, peer, true, "inv", 1 + 36 * random_between(random, 1, 35));
		break;
	default:
		message(peers, peer, false, "inv", 1 + 36 * random_between(random, 1, 35));
	}
}

void peers_relay_tx(struct peers *peers, uint64_t size)
{
	const struct peer *peer = pick(peers);

	if (!peer)
		return;
	message(peers, peer, true, "inv", 37);
	message(peers, peer, false, "getdata", 37);
	message(peers, peer, true, "tx", size);
}

void peers_relay_block(struct peers *peers, uint64_t transactions)
{
	const struct peer *peer = pick(peers);
	size_t i;

	if (!peer)
		return;
	message(peers, peer, true, "cmpctblock", 400 + 6 * transactions);
	message(peers, peer, false, "getblocktxn", 35);
	message(peers, peer, true, "blocktxn", 33 + 300 * (transactions % 7));
	for (i = 0; i < peers->count; i++)
		message(peers, &peers->peers[i], false, i % 3 ? "headers" : "cmpctblock",
			i % 3 ? 82 : 400 + 6 * transactions);
	/* Now and then somebody still wants the whole block. */
	if (random_percent(&peers->random, 20)) {
		message(peers, peer, true, "getdata", 37);
		message(peers, peer, false, "block", 81 + 400 * transactions);
	}
}
