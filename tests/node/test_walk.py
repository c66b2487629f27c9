"""A long random walk of a real node: what a small subscriber keeps is what the node has."""
import contextlib
import os
import random
import sys
import threading
import time

import msgpack
import zmq

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import main, wait_until
from regtest import Node, RPCError, Tx, free_ports, spend
from tap import NodeTestCase, Tap, marker

ACTIONS, CHECKPOINTS = 2000, 50
DAY = 24 * 3600


class Mirror:
    """The mempool's txids from the low socket. Twenty-five lines, and nothing else of coretap."""

    def __init__(self, address):
        self.socket = zmq.Context.instance().socket(zmq.SUB)
        self.socket.set_hwm(0)
        for topic in (b"mempool.", b"bridge.status"):
            self.socket.subscribe(topic)
        self.socket.connect(address)
        self.next, self.snapshot, self.last = {}, set(), {}
        while self.read()[0] != b"bridge.status":
            pass  # from here on nothing is missed

    def read(self):
        topic, body = self.socket.recv_multipart()[:2]
        body = msgpack.unpackb(body)
        if topic != b"bridge.status":
            assert body["seq"] == self.next.get(topic, body["seq"]) and "lost" not in body
            self.next[topic] = body["seq"] + len(body["events"])
        if topic in (b"mempool.added", b"mempool.removed"):
            self.last.update({e["txid"].hex(): topic == b"mempool.added" for e in body["events"]})
        return topic, body.get("events")

    def mempool(self):
        return {t for t in {*self.snapshot, *self.last} if self.last.get(t, True)}


class Sequence(threading.Thread):
    """Core's own notifications, topic sequence: (label, hash) in order."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.socket = zmq.Context.instance().socket(zmq.SUB)
        self.socket.set_hwm(0)
        self.socket.subscribe(b"sequence")
        self.socket.setsockopt(zmq.RCVTIMEO, 100)
        self.socket.connect(f"tcp://127.0.0.1:{port}")
        self.told, self.ending = [], False
        self.start()

    def run(self):
        while not self.ending:
            try:
                _, body, _ = self.socket.recv_multipart()
                self.told.append((chr(body[32]), body[:32].hex()))
            except zmq.Again:
                pass
        self.socket.close()

    def close(self):
        self.ending = True
        self.join()


class Walker:
    def __init__(self, node, seed):
        self.node, self.random = node, random.Random(seed)
        self.coins = node.make_coins(400, value=3_000_000)
        self.sent, self.invalid = {}, []
        self.now = int(time.time())
        node.rpc.setmocktime(self.now)

    def usable(self, count):
        """Some coins that exist now, confirmed or not."""
        sample = self.random.sample(self.coins, min(10, len(self.coins)))
        outs = self.node.rpc.batch("gettxout", [(c.txid, c.vout, True) for c in sample])
        return [c for c, out in zip(sample, outs) if out and c.value > 60_000][:count]

    def submit(self, tx):
        self.sent[tx.txid] = tx
        self.node.send(tx)
        self.coins += tx.coins
        self.coins = self.coins[-2000:]

    def send(self):
        coins = self.usable(self.random.choice((1, 1, 1, 2, 3)))
        padding = self.random.randrange(20_000, 90_000) if self.random.random() < 0.3 else 0
        fee = self.random.randrange(200, 20_000) + padding * self.random.randrange(1, 8) // 10
        if coins and sum(c.value for c in coins) > fee + 50_000:
            self.submit(spend(coins, fee, self.random.choice((1, 2, 5)), padding))

    def in_pool(self):
        pool = [t for t in self.node.rpc.getrawmempool() if t in self.sent]
        return self.sent[self.random.choice(pool)] if pool else None

    def replace(self):
        victims = [t for t in (self.in_pool() for _ in range(self.random.choice((1, 1, 2)))) if t]
        known = {(c.txid, c.vout): c for c in self.coins}
        coins = {known[i[:2]] for v in victims for i in v.inputs if i[:2] in known}
        fee = self.random.randrange(1000, 200_000)
        if coins and sum(c.value for c in coins) > fee + 1000:
            self.submit(spend(sorted(coins), fee))

    def package(self):
        coins = self.usable(1)
        if coins:
            parent = spend(coins, self.random.choice((0, 50, 5000)), 1, version=3)
            child = spend(parent.coins[0], self.random.randrange(2000, 30_000), version=3)
            self.sent.update({parent.txid: parent, child.txid: child})
            self.node.rpc.submitpackage([parent.hex, child.hex])
            self.coins += child.coins

    def refused(self):
        pooled = self.in_pool()
        if pooled:
            (value, script), *others = pooled.outputs
            self.node.send(Tx(pooled.inputs, [(value + 1, script), *others]))

    def prioritise(self):
        pooled = self.in_pool()
        if pooled:
            self.node.rpc.prioritisetransaction(pooled.txid, 0, self.random.randrange(-2000, 9000))

    def mine(self):
        self.node.mine(self.random.choice((1, 1, 1, 2)))

    def mine_some(self):
        """A block with a few of the pool and one that nobody has seen, perhaps in conflict."""
        txs = [c for c in self.node.rpc.getrawmempool(True).items() if not c[1]["depends"]]
        chosen = [txid for txid, _ in self.random.sample(txs, min(3, len(txs)))]
        victim = self.in_pool() if self.random.random() < 0.5 else None
        known = {(c.txid, c.vout): c for c in self.coins}
        coins = [known[i[:2]] for i in victim.inputs[:1] if i[:2] in known] if victim \
            else self.usable(1)
        hidden = spend(coins, 4000) if coins else None
        chosen = [t for t in chosen if not victim or t != victim.txid]
        self.node.mine_exactly(chosen + ([hidden.hex] if hidden else []))

    def invalidate(self):
        height = self.node.rpc.getblockcount()
        depth = 12 if self.random.random() < 0.1 else self.random.randrange(1, 4)
        if height - depth > 110:
            block = self.node.rpc.getblockhash(height - depth + 1)
            self.invalid.append(block)
            self.node.rpc.invalidateblock(block)

    def reconsider(self):
        if self.invalid:
            chosen = self.random.randrange(len(self.invalid))
            self.node.rpc.reconsiderblock(self.invalid.pop(chosen))

    def wait(self):
        days = 15 * DAY if self.random.random() < 0.15 else self.random.randrange(1, 7200)
        self.now += days
        self.node.rpc.setmocktime(self.now)

    def young(self):
        """A spend of a coinbase that is only just mature, which the next reorganisation ends."""
        height = self.node.rpc.getblockcount() - 99
        self.submit(spend(self.node.coinbase(height), 5000))

    def flood(self):
        """More than the pool may hold."""
        coins = [c for c in self.coins if c.value > 150_000][-80:]
        self.node.rpc.batch("sendrawtransaction", [
            (spend(c, self.random.randrange(60_000, 140_000), padding=99_000).hex, 0)
            for c in coins], strict=False)

    def step(self, number=0):
        action = self.random.choices(
            (self.send, self.replace, self.package, self.refused, self.prioritise, self.mine,
             self.mine_some, self.invalidate, self.reconsider, self.wait, self.young),
            (60, 12, 6, 3, 4, 4, 3, 2, 2, 3, 1))[0]
        # What chance might leave out altogether.
        action = {500: self.flood, 1000: self.young, 1001: self.invalidate, 1500: self.flood,
                  1600: self.young, 1601: self.invalidate}.get(number, action)
        with contextlib.suppress(RPCError):  # refusals are part of it
            action()


class Walk(NodeTestCase):
    def test_2000_actions(self):
        port, = free_ports(1)
        with Node(f"-zmqpubsequence=tcp://127.0.0.1:{port}", "-zmqpubsequencehwm=0",
                  "-maxmempool=5") as node:
            walker = Walker(node, seed=int(os.environ.get("SEED", "37")))
            for _ in range(30):
                walker.step()
            with Tap(node) as tap:
                mirror = Mirror(f"tcp://127.0.0.1:{tap.bridge.port}")
                core = Sequence(port)
                # Core's socket has no greeting: wait until it is known to be heard.
                while not core.told:
                    walker.step()
                self.read_up(node, mirror)
                mirror.snapshot = set(node.rpc.getrawmempool())
                node.rpc.syncwithvalidationinterfacequeue()
                time.sleep(0.3)
                tap.take()
                del core.told[:]
                for action in range(1, ACTIONS + 1):
                    walker.step(action)
                    if action % (ACTIONS // CHECKPOINTS) == 0:
                        self.read_up(node, mirror)
                        self.assertEqual(mirror.mempool(), set(node.rpc.getrawmempool()))
                self.compare(node, tap, core)
                core.close()

    def read_up(self, node, mirror):
        mark = marker()
        node.rpc.testmempoolaccept([mark.hex])
        topic, events = None, []
        while topic != b"mempool.rejected" or mark.txid not in [e["txid"].hex() for e in events]:
            topic, events = mirror.read()

    def compare(self, node, tap, core):
        """Core's own notifications tell every removal but those by blocks, in the same order.
        (Its additions are no measure: what is trimmed in its own submission is not told.)"""
        events = tap.take("mempool.removed")
        reasons = {e["reason"] for e in events}
        self.assertEqual(reasons, {"block", "conflict", "replaced", "expiry", "sizelimit", "reorg"})
        others = [e["txid"].hex() for e in events if e["reason"] != "block"]

        def told():
            return [txid for label, txid in core.told if label == "R"]
        wait_until(lambda: len(told()) >= len(others), 10, "Core's own notifications")
        time.sleep(0.2)  # for one too many
        self.assertEqual(told(), others)


if __name__ == "__main__":
    main()
