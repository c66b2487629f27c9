"""Payloads of a real node's messages, in both directions, byte for byte what the peer wrote and
read."""
import os
import random
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import Bridge, Subscriber, main, wait_until
from regtest import Node, Peer, bitcoind, compact, spend
from tap import NodeTestCase

SIZES = (0, 1, 255, 256, 257, 4095, 4096, 4097, 32767, 32768, 32769, 65535, 65536, 65537, 1_000_000,
         3_999_900, 4_000_000)
INBOUND, OUTBOUND = "net.inbound_message", "net.outbound_message"
MSG_TX, MSG_BLOCK, WITNESS_FLAG = 1, 2, 1 << 30


class Payload(NodeTestCase):
    def setUp(self):
        bitcoind()

    def tap(self, node, *args):
        bridge = Bridge("--pid", node.pid, *args, "--journal-high", "128M", "--journal-low", "16M",
                        binary=None)
        self.addCleanup(bridge.__exit__, None)
        sub = Subscriber(bridge)
        self.addCleanup(sub.close)
        return sub.wait_status()

    def events(self, sub, peer, topic):
        with sub.lock:
            return [e for e in sub.events if e.topic == topic and e["addr"] == peer.address]

    def compare(self, sub, peer, topic, messages, limit_of=lambda kind: 4 << 20):
        """Each event has all of the message that it stands for, or its beginning."""
        wait_until(lambda: len(self.events(sub, peer, topic)) >= len(messages), 20,
                   f"{len(messages)} of {topic}")
        events = self.events(sub, peer, topic)
        self.assertEqual([(e["msg_type"], e["size"]) for e in events],
                         [(kind, len(data)) for kind, data in messages])
        for event, (kind, data) in zip(events, messages):
            limit = limit_of(kind)
            if limit is None:
                self.assertNotIn("data", event)
                self.assertNotIn("truncated", event)
                continue
            # Not by assertEqual, which would print megabytes.
            self.assertTrue(event["data"] == data[:limit], (topic, kind, len(data)))
            self.assertEqual(event.get("truncated"), True if len(data) > limit else None)
        self.assertEqual((sub.errors, sub.gaps, sub.n_gaps, sub.lost), ([], [], [], {}))

    def talk(self, peer):
        """Of every size, with content of its own; the node ignores types that it does not know."""
        source = random.Random(4)
        for size in SIZES:
            for kind in ("coretap", "twelve~chars"):
                peer.send(kind, source.randbytes(size))
        peer.send("", b"empty type")
        peer.ping()

    def test_every_size_inbound(self):
        with Node() as node:
            sub = self.tap(node, "--payload", "full")
            with Peer.connect(node) as inside:
                self.talk(inside)
                self.compare(sub, inside, INBOUND, inside.sent)
                self.compare(sub, inside, OUTBOUND, inside.received)
            with Peer.accept(node) as outside:
                self.talk(outside)
                self.compare(sub, outside, INBOUND, outside.sent)
                self.compare(sub, outside, OUTBOUND, outside.received)

    def test_cut(self):
        with Node() as node:
            sub = self.tap(node, "--payload", "1000,ping=full,pong=0,coretap=32768")
            limits = {"ping": 4 << 20, "pong": None, "coretap": 32768}
            with Peer.connect(node) as peer:
                self.talk(peer)
                for topic, messages in ((INBOUND, peer.sent), (OUTBOUND, peer.received)):
                    self.compare(sub, peer, topic, messages, lambda kind: limits.get(kind, 1000))

    def test_chosen_types(self):
        with Node() as node:
            sub = self.tap(node, "--payload", "full", "--message-types", "ping,pong,twelve~chars")
            chosen = ("ping", "pong", "twelve~chars")
            with Peer.connect(node) as peer:
                self.talk(peer)
                for topic, messages in ((INBOUND, peer.sent), (OUTBOUND, peer.received)):
                    self.compare(sub, peer, topic, [m for m in messages if m[0] in chosen])
            wait_until(lambda: sub.status("high")["counters"][INBOUND]["fired"] ==
                       sub.count[INBOUND], 3, "only those counted")

    def test_what_the_node_sends(self):
        """Blocks and transactions that a peer asks for, as RPC has them."""
        with Node() as node:
            coins = node.make_coins(600)
            node.send_all([spend(coin, 2000 + i, 20) for i, coin in enumerate(coins[:500])])
            block = node.mine()[0]
            waiting = spend(coins[500], 10_000)
            sub = self.tap(node, "--payload", "full")
            with Peer.connect(node) as peer:
                tip = node.rpc.getblockheader(block)["previousblockhash"]
                for block_hash in (block, tip):
                    peer.send("getdata", compact(1) + struct.pack("<I", MSG_BLOCK | WITNESS_FLAG) +
                              bytes.fromhex(block_hash)[::-1])
                    self.assertTrue(peer.wait_for("block").hex() ==
                                    node.rpc.getblock(block_hash, 0))
                # One of ours, which the node then has to send back to another.
                peer.send("tx", waiting.raw)
                peer.ping()
                self.assertIn(waiting.txid, node.mempool())
                self.compare(sub, peer, INBOUND, peer.sent)
                self.compare(sub, peer, OUTBOUND, peer.received)
                sent = [e for e in self.events(sub, peer, OUTBOUND) if e["msg_type"] == "block"]
                self.assertTrue([e["data"].hex() for e in sent] ==
                                [node.rpc.getblock(h, 0) for h in (block, tip)])
                self.assertGreater(sent[0]["size"], 100_000)
                got, = [e for e in self.events(sub, peer, INBOUND) if e["msg_type"] == "tx"]
                self.assertEqual(got["data"].hex(), node.rpc.getrawtransaction(waiting.txid))

    def test_without_dynptr(self):
        with Node() as node:
            sub = self.tap(node, "--payload", "full", "--without", "dynptr")
            with Peer.connect(node) as peer:
                self.talk(peer)
                for topic, messages in ((INBOUND, peer.sent), (OUTBOUND, peer.received)):
                    self.compare(sub, peer, topic, messages, lambda kind: 32767)


if __name__ == "__main__":
    main()
