/* The simulated peers: they connect, talk, misbehave, are evicted and leave. */
#ifndef FAKE_NODE_PEERS_H
#define FAKE_NODE_PEERS_H

#include "node.h"
#include "random.h"

#define PEERS_MAX 24

struct peer {
	int64_t id;
	char addr[80];
	const char *connection;
	uint32_t network;
	int64_t established;
	bool inbound;
};

struct peers {
	struct ledger *ledger;
	struct random random;
	struct peer peers[PEERS_MAX + 1]; /* one more while an evicted one is told to go */
	size_t count;
	int64_t next_id;
	uint8_t *payload;
};

/* 0 or −1 after one line on stderr. */
int peers_open(struct peers *peers, const struct node *node);
void peers_close(struct peers *peers);

/*
 * A new peer. When all slots are taken an inbound one evicts another inbound one, which is still
 * there when the new one is counted: evicted, inbound_connection, closed. Otherwise nothing fires:
 * it is refused, or not called.
 */
void peers_connect(struct peers *peers);
void peers_disconnect(struct peers *peers);
void peers_misbehave(struct peers *peers);

/* Any of the usual messages, in or out. */
void peers_chatter(struct peers *peers);

/* The messages around a transaction that arrives, and around a block of so many transactions. */
void peers_relay_tx(struct peers *peers, uint64_t size);
void peers_relay_block(struct peers *peers, uint64_t transactions);

#endif
