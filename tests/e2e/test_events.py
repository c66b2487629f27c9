"""Every tracepoint arrives: with its fields by name and in order, of the right type, with the values
that the simulated node passed, in the order in which they fired."""
import json
import os
import sys
import tempfile
import time

import msgpack
import zmq

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import Bridge, FakeNode, Subscriber, TestCase, main, wait_until

HASH, TEXT, UINT, INT, BOOL, NETWORK = "hash", "text", "uint", "int", "bool", "network"
NETWORKS = {"unroutable", "ipv4", "ipv6", "onion", "i2p", "cjdns"}

MESSAGE = [("peer_id", INT), ("addr", TEXT), ("connection_type", TEXT), ("msg_type", TEXT),
           ("size", UINT)]
PEER = [("peer_id", INT), ("addr", TEXT), ("connection_type", TEXT), ("network", NETWORK)]
COIN = [("txid", HASH), ("vout", UINT), ("height", UINT), ("value", INT), ("coinbase", BOOL)]

# By hand from Core's doc/tracing.md and the wire contract, never from coretap's catalogue.
HIGH = {
    "net.inbound_message": MESSAGE,
    "net.outbound_message": MESSAGE,
    "utxocache.add": COIN,
    "utxocache.spent": COIN,
    "utxocache.uncache": COIN,
}
LOW = {
    "net.inbound_connection": [*PEER, ("count", UINT)],
    "net.outbound_connection": [*PEER, ("count", UINT)],
    "net.evicted_inbound_connection": [*PEER, ("established", INT)],
    "net.closed_connection": [*PEER, ("established", INT)],
    "net.misbehaving_connection": [("peer_id", INT), ("reason", TEXT)],
    "validation.block_connected": [("hash", HASH), ("height", UINT), ("n_tx", UINT),
                                   ("n_inputs", UINT), ("sigops", UINT), ("duration_ns", INT)],
    "utxocache.flush": [("duration_ns", INT), ("mode", UINT), ("coins", UINT), ("memory", UINT),
                        ("prune", BOOL)],
    "mempool.added": [("txid", HASH), ("vsize", UINT), ("fee", INT)],
    "mempool.removed": [("txid", HASH), ("reason", TEXT), ("vsize", UINT), ("fee", INT),
                        ("entry_time", UINT)],
    "mempool.replaced": [("txid", HASH), ("vsize", UINT), ("fee", INT), ("entry_time", UINT),
                         ("replacement_txid", HASH), ("replacement_vsize", UINT),
                         ("replacement_fee", INT)],
    "mempool.rejected": [("txid", HASH), ("reason", TEXT)],
}
WALLET = {
    "coin_selection.selected_coins": [("wallet", TEXT), ("algorithm", TEXT), ("target", INT),
                                      ("waste", INT), ("selected", INT)],
    "coin_selection.normal_create_tx_internal": [("wallet", TEXT), ("success", BOOL), ("fee", INT),
                                                 ("change_pos", INT)],
    "coin_selection.attempting_aps_create_tx": [("wallet", TEXT)],
    "coin_selection.aps_create_tx_internal": [("wallet", TEXT), ("use_aps", BOOL),
                                              ("success", BOOL), ("fee", INT),
                                              ("change_pos", INT)],
}
NODE = [("binary", TEXT), ("build_id", TEXT), ("started_at", UINT), ("core", TEXT)]
DERIVED = {
    "block.evictions": None,  # test_evictions.py
    "node.started": NODE,
    "node.exited": NODE,
}
TRACEPOINTS = {**LOW, **HIGH, **WALLET}


def fields_of(topic, event):
    """What the fields of this event must be: two topics have more than one form."""
    fields = list({**TRACEPOINTS, **DERIVED}[topic])
    if topic == "mempool.removed" and event["reason"] in ("block", "conflict"):
        fields.append(("height", UINT))
    if topic == "mempool.replaced" and "replacement_package" in event:
        fields[4] = ("replacement_package", HASH)
    return fields


def burst_txid(thread, i):
    return bytes(range(31, 11, -1)) + thread.to_bytes(4, "big") + i.to_bytes(8, "big")


class Events(TestCase):
    def check_type(self, value, kind, what):
        if kind == HASH:
            self.assertIs(type(value), bytes, what)
            self.assertEqual(len(value), 32, what)
            self.assertNotEqual(value, bytes(32), what)
        elif kind == TEXT:
            self.assertIs(type(value), str, what)
        elif kind == BOOL:
            self.assertIs(type(value), bool, what)
        elif kind == NETWORK:
            self.assertIn(value, NETWORKS, what)
        else:
            self.assertIs(type(value), int, what)
            if kind == UINT:
                self.assertGreaterEqual(value, 0, what)

    def check_shape(self, event):
        fields = fields_of(event.topic, event)
        self.assertEqual(list(event), ["time_us", *(name for name, _ in fields)], event.topic)
        self.assertIs(type(event["time_us"]), int)
        for name, kind in fields:
            self.check_type(event[name], kind, f"{event.topic}.{name}: {event[name]!r}")

    def check_messages(self, sub, bridge, pid, started_us):
        """The envelope: keys in order, limits, the right socket."""
        low = {*LOW, *WALLET, *DERIVED}
        for socket_name, topic, body in sub.messages:
            if topic == "bridge.status":
                self.assertEqual(list(body)[:10], ["v", "node", "run", "socket", "time_us", "n",
                                                   "heads", "held", "counters", "replay"])
                self.assertEqual((body["v"], body["node"], body["socket"]),
                                 (1, bridge.name, socket_name))
                for counters in body["counters"].values():
                    self.assertEqual(list(counters), ["fired", "submitted", "lost", "faults",
                                                      "truncated"])
                continue
            if topic == "bridge.stopping":
                continue
            self.assertEqual(list(body), ["v", "node", "run", "pid", "n", "seq", "events"])
            self.assertEqual((body["v"], body["node"], body["pid"]), (1, bridge.name, pid))
            self.assertTrue(started_us - 60_000_000 < body["run"] <= time.time() * 1e6)
            self.assertTrue(1 <= len(body["events"]) <= 256)
            self.assertIn(topic, low if socket_name == "low" else HIGH)
            if len(body["events"]) > 1:
                self.assertLessEqual(len(msgpack.packb(body)), 16384)

    def run_node(self, *args, seconds=6):
        """A believable node, seen by a subscriber to everything."""
        with Bridge(*args) as bridge, Subscriber(bridge, raw=True) as sub:
            sub.wait_status()
            start = time.time() * 1e6
            with FakeNode("run", "--wait", "--seconds", seconds, "--rate", 2000, "--block-interval",
                          1, "--seed", 11) as node:
                fired = node.finish()
            sub.wait_ledger(fired)
            wait_until(lambda: sub.of("node.exited"), what="node.exited")
            bridge.stop()
            wait_until(lambda: len(sub.stopped) == 2, what="bridge.stopping")
            self.check_stream(sub)
            self.assertEqual(sub.lost, {})
            self.check_messages(sub, bridge, node.pid, start)
            return sub, fired

    def test_all_twenty(self):
        """Shape, type and order of all 20; and the order in which Core fires them is kept."""
        sub, fired = self.run_node("--only", "*")
        self.assertEqual(set(fired), set(TRACEPOINTS))
        self.check_account(sub, fired)
        for event in sub.events:
            if event.topic != "block.evictions":
                self.check_shape(event)
        self.check_mempool_order([e for e in sub.events if e.topic in LOW])
        self.check_peers([e for e in sub.events if e.topic.startswith("net.")])
        self.check_values(sub)
        for status in sub.stopped:
            for topic, counters in status["counters"].items():
                count = sub.count.get(topic, 0)
                self.assertEqual(counters, {"fired": count, "submitted": count, "lost": 0,
                                            "faults": 0, "truncated": 0}, topic)
                self.assertEqual(status["heads"][topic], count)

    def check_mempool_order(self, events):
        """All replaced, then their removals in the same order, then the newcomer; a removal of what
        is there only; the height of the block before."""
        pool, victims, going, newcomer, height = set(), [], [], None, None
        for event in events:
            if event.topic == "mempool.replaced":
                by = event.get("replacement_txid") or event["replacement_package"]
                if victims:
                    self.assertEqual(by, newcomer)
                newcomer, package = by, "replacement_package" in event
                self.assertIn(event["txid"], pool)
                victims.append(event["txid"])
            elif event.topic == "mempool.removed":
                self.assertIn(event["txid"], pool)
                pool.discard(event["txid"])
                if event["reason"] == "replaced":
                    going = going or list(victims)
                    self.assertEqual(event["txid"], going.pop(0))
                elif event["reason"] in ("block", "conflict"):
                    self.assertEqual(event["height"], height)
                self.assertIn(event["reason"], ("expiry", "sizelimit", "reorg", "block", "conflict",
                                                "replaced"))
            elif event.topic == "mempool.added":
                if victims:
                    self.assertEqual(going, [])
                    if not package:
                        self.assertEqual(event["txid"], newcomer)
                    victims = []
                self.assertNotIn(event["txid"], pool)
                pool.add(event["txid"])
            elif event.topic == "validation.block_connected":
                self.assertEqual(victims, [])
                height = event["height"]

    def check_peers(self, events):
        """Two sockets are not ordered with each other, so connections by themselves."""
        peers = {}
        for event in events:
            if event.topic.endswith("bound_connection") and "count" in event:
                self.assertNotIn(event["peer_id"], peers)
                peers[event["peer_id"]] = {k: event[k] for k in
                                           ("addr", "connection_type", "network")}
                self.assertEqual(event["connection_type"] == "inbound",
                                 event.topic == "net.inbound_connection")
                host = event["addr"].rsplit(":", 1)[0]
                self.assertEqual(event["network"], "onion" if host.endswith(".onion") else
                                 "i2p" if host.endswith(".i2p") else
                                 "cjdns" if host.startswith("[fc") else
                                 "ipv6" if host.startswith("[") else "ipv4")
            elif "established" in event:
                self.assertEqual({k: event[k] for k in ("addr", "connection_type", "network")},
                                 peers[event["peer_id"]])
                self.assertLess(abs(event["established"] - time.time()), 120)
                if event.topic == "net.closed_connection":
                    del peers[event["peer_id"]]
        # Messages come on the other socket: every one is of a peer that was there once.
        known = {(e["peer_id"], e["addr"], e["connection_type"]) for e in events if "network" in e}
        for event in events:
            if event.topic.endswith("_message"):
                self.assertIn((event["peer_id"], event["addr"], event["connection_type"]), known)
                if event["msg_type"] in ("verack", "wtxidrelay", "sendaddrv2"):
                    self.assertEqual(event["size"], 0)
                elif event["msg_type"] in ("ping", "pong", "feefilter"):
                    self.assertEqual(event["size"], 8)

    def check_values(self, sub):
        """What follows from the simulated node's own source."""
        for event in sub.of("coin_selection.selected_coins"):
            self.assertEqual(event["wallet"], "demo")
            self.assertIn(event["algorithm"], ("bnb", "knapsack", "srd", "cg"))
            self.assertIn(event["waste"], (0, -372, 151))
            self.assertLess(event["target"], event["selected"])
        failed = [e for e in sub.of("coin_selection.normal_create_tx_internal") if not e["success"]]
        self.assertTrue(failed)
        for event in failed:
            self.assertEqual((event["fee"], event["change_pos"]), (0, -1))
        for event in sub.of("coin_selection.aps_create_tx_internal"):
            self.assertTrue(event["success"])
            self.assertIn(event["change_pos"], (-1, 0, 1))
        self.assertIn("", {e["reason"] for e in sub.of("net.misbehaving_connection")})
        for event in sub.of("validation.block_connected"):
            k = event["n_tx"] - 1
            self.assertEqual((event["n_inputs"], event["sigops"], event["duration_ns"]),
                             (2 * k + 1, 4 * k + 100, 1000000 + 12345 * k))
        self.assertIn(2147483647, {e["height"] for e in sub.of("utxocache.uncache")})
        for event in sub.events:
            if event.topic == "mempool.removed":
                self.assertLess(event["entry_time"], time.time() + 1)

    def test_wallet_is_private_by_default(self):
        """coin_selection is published only when --only names it."""
        sub, fired = self.run_node(seconds=2)
        self.assertEqual({t for t in fired if t.startswith("coin_selection.")}, set())
        self.assertEqual({t for t in sub.count if t.startswith("coin_selection.")}, set())
        for status in sub.statuses:
            self.assertEqual({t for t in status["heads"] if t.startswith("coin_")}, set())
        self.check_account(sub, fired)

    def test_topics_alone(self):
        """Each topic subscribed alone receives only itself, and all of itself."""
        topics = [*TRACEPOINTS, *DERIVED]
        for a in topics:
            for b in topics:
                self.assertFalse(a != b and b.startswith(a), f"{a} is a prefix of {b}")
        context = zmq.Context()
        alone, poller = {}, zmq.Poller()
        with Bridge("--only", "*") as bridge, Subscriber(bridge) as sub:
            for topic in topics:
                socket = context.socket(zmq.SUB)
                socket.setsockopt(zmq.LINGER, 0)
                socket.setsockopt(zmq.RCVHWM, 0)
                socket.subscribe(topic.encode())
                socket.connect(f"tcp://127.0.0.1:{bridge.port + (topic in HIGH)}")
                alone[topic] = socket
                poller.register(socket, zmq.POLLIN)
            sub.wait_status()
            time.sleep(0.5)
            with FakeNode("run", "--wait", "--seconds", 3, "--rate", 2000, "--block-interval", 1,
                          "--seed", 12) as node:
                fired = node.finish()
            sub.wait_ledger(fired)
            wait_until(lambda: sub.of("node.exited"), what="node.exited")
            time.sleep(0.2)
            count = {}
            while poller.poll(200):
                for topic, socket in alone.items():
                    while socket.poll(0):
                        parts = socket.recv_multipart()
                        self.assertEqual(len(parts), 2)
                        self.assertEqual(parts[0].decode(), topic)
                        count[topic] = count.get(topic, 0) + len(msgpack.unpackb(parts[1])["events"])
            self.assertEqual(count, sub.count)
        context.destroy(linger=0)

    def burst(self, bridge, sub, *args):
        """The events of a burst, by topic."""
        before = dict(sub.count)
        with FakeNode("burst", *args, "--wait") as node:
            fired = node.finish()
        for topic, count in fired.items():
            sub.wait_count(topic, before.get(topic, 0) + count)
        self.assertEqual(sub.lost, {})
        return {topic: sub.of(topic)[before.get(topic, 0):] for topic in fired}, node

    def test_exact_values(self):
        """Every value of the bursts, against the formulas of fake_node --help."""
        count = 2000
        with Bridge() as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            for probe in ("removed", "added"):
                events, _ = self.burst(bridge, sub, count, "--probe", probe, "--threads", 4,
                                       "--reason", "expiry")
                self.assertEqual(list(events), [f"mempool.{probe}"])
                index = [0] * 4
                for event in events[f"mempool.{probe}"]:
                    thread = int.from_bytes(event["txid"][20:24], "big")
                    i = index[thread]
                    index[thread] += 1
                    expected = {"txid": burst_txid(thread, i), "reason": "expiry",
                                "vsize": 110 + i % 5000, "fee": 1000 + 1000003 * i,
                                "entry_time": 1700000000 + i}
                    if probe == "added":
                        del expected["reason"], expected["entry_time"]
                    event.pop("time_us")
                    self.assertEqual(event, expected)
                self.assertEqual(index, [count // 4] * 4)

            events, _ = self.burst(bridge, sub, count, "--probe", "utxo")
            merged = sorted([*events["utxocache.add"], *events["utxocache.spent"]],
                            key=lambda e: e.n)
            self.assertEqual(len(merged), count)
            for i, event in enumerate(merged):
                self.assertEqual(event.topic, ("utxocache.spent", "utxocache.add")[i // 2 % 2])
                event.pop("time_us")
                self.assertEqual(event, {"txid": burst_txid(0, i), "vout": i % 4096,
                                         "height": 700000 + i % 100000, "value": 546 + 7 * i,
                                         "coinbase": i % 16 == 0})

            events, _ = self.burst(bridge, sub, count, "--probe", "message", "--size", 300,
                                   "--message-type", "tx")
            for i, event in enumerate(events["net.inbound_message"]):
                event.pop("time_us")
                self.assertEqual(event, {"peer_id": i, "addr": "203.0.113.7:8333",
                                         "connection_type": "inbound", "msg_type": "tx",
                                         "size": 300})
            self.check_stream(sub)

    def test_blocks_with_coins(self):
        """Coins, block and flush of a connected block, exactly."""
        with Bridge() as bridge, Subscriber(bridge) as sub, tempfile.TemporaryDirectory() as d:
            sub.wait_status()
            with FakeNode("blocks", 3, 600, "--coins", "--flush", "--start-height", 900000, "--seed",
                          5, "--truth", f"{d}/truth", "--wait") as node:
                fired = node.finish()
            sub.wait_ledger(fired)
            self.check_account(sub, fired)
            self.check_stream(sub)
            with open(f"{d}/truth") as truth:
                blocks = [json.loads(line) for line in truth]
            coins = [e for e in sub.events if e.topic in ("utxocache.add", "utxocache.spent")]
            connected, flushed = sub.of("validation.block_connected"), sub.of("utxocache.flush")
            self.assertEqual(len(connected), 3)
            for k, block in enumerate(blocks):
                height = 900000 + k
                self.assertEqual(block["height"], height)
                connected[k].pop("time_us")
                self.assertEqual(connected[k], {
                    "hash": bytes.fromhex(block["hash"]), "height": height, "n_tx": 601,
                    "n_inputs": 1201, "sigops": 2500, "duration_ns": 1000000 + 12345 * 600})
                flushed[k].pop("time_us")
                self.assertEqual(flushed[k], {"duration_ns": 1234000, "mode": 1,
                                              "coins": 3 * height, "memory": 300 * height,
                                              "prune": False})
                self.assertEqual(flushed[k].n, connected[k].n + 1)
                subsidy = coins.pop(0)
                self.assertEqual(subsidy.topic, "utxocache.add")
                self.assertEqual([subsidy[f] for f in ("vout", "height", "value", "coinbase")],
                                 [0, height, 312500000, True])
                for i, txid in enumerate(block["txids"]):
                    *spent, first, second = coins[:4]
                    del coins[:4]
                    self.assertEqual([e.topic for e in (*spent, first, second)],
                                     ["utxocache.spent"] * 2 + ["utxocache.add"] * 2)
                    for j, value in enumerate((block["fees"][i] + 60000, 40000)):
                        self.assertEqual([spent[j][f] for f in ("vout", "height", "value",
                                                                "coinbase")],
                                         [(i + j) % 3, height - 1 - i % 999, value, i % 500 == 499])
                    for event, vout, value in ((first, 0, 60000), (second, 1, 40000)):
                        event.pop("time_us")
                        self.assertEqual(event, {"txid": bytes.fromhex(txid), "vout": vout,
                                                 "height": height, "value": value,
                                                 "coinbase": False})
            self.assertEqual(coins, [])

    def test_hostile_text(self):
        """What peers choose decodes with the defaults, as text, whatever they choose."""
        hostile = [b"\xff\xfe\xfd", b"\x80", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80",
                   b"\xe2\x82", b"\"\\\n\x01\x7f", "\u20bf\u00e9".encode(), b"%s%n%x",
                   b"..\xff/etc", b"", b"twelve-bytes", b"sixteen-bytes-xx", b"a" * 200,
                   b"fourteen-bytes\xe2\x82\xac"]
        with Bridge() as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            for k, text in enumerate(hostile):
                events, _ = self.burst(bridge, sub, 1, "--probe", "message", "--message-type",
                                       os.fsdecode(text))
                event = events["net.inbound_message"][0]
                self.assertEqual(list(event), ["time_us", *(name for name, _ in MESSAGE)])
                got = event["msg_type"]
                self.assertIs(type(got), str)
                if len(text) <= 15:
                    # How many replacements a malformed sequence gives is the encoder's choice.
                    self.assertEqual("".join(c for c in got if c != "\ufffd"),
                                     text.decode(errors="ignore"))
                    try:
                        self.assertEqual(got, text.decode())
                    except UnicodeDecodeError:
                        self.assertIn("\ufffd", got)
                else:
                    self.assertEqual(got[:14], text[:14].decode())
            cut = sum(len(text) > 15 for text in hostile)
            wait_until(lambda: sub.status("high")["counters"]["net.inbound_message"]["truncated"]
                       == cut, what="truncated counted in status")
            self.check_stream(sub)


if __name__ == "__main__":
    main()
