"""Binaries of older Core versions: what they lack is listed, the rest arrives with right values,
and tracepoints without semaphores are traced too."""
import contextlib
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "lib"))
from harness import (FAKE_NODE, ROOT, Bridge, FakeNode, Subscriber, TestCase, main, need_root,
                     wait_until)

sys.path.insert(0, HERE)
from test_faults import HIGH, expectations
from test_mempool import Mirror

CONNECTIONS = {"net.inbound_connection", "net.outbound_connection",
               "net.evicted_inbound_connection", "net.closed_connection",
               "net.misbehaving_connection"}
MEMPOOL = {"mempool.added", "mempool.removed", "mempool.replaced", "mempool.rejected"}
MISSING = {23: CONNECTIONS | MEMPOOL, 24: CONNECTIONS | MEMPOOL, 25: CONNECTIONS, 26: CONNECTIONS}


class Versions(TestCase):
    @classmethod
    def setUpClass(cls):
        need_root()
        cls.directory = tempfile.TemporaryDirectory()
        sources = glob.glob(os.path.join(ROOT, "tests", "fake_node", "*.c"))
        builds = [subprocess.Popen([os.environ.get("CC", "gcc"), "-std=gnu11", "-O2",
                                    f"-DFAKE_NODE_ABI={abi}", *sources, "-o", cls.path(abi),
                                    "-lpthread", "-lm"]) for abi in MISSING]
        for build in builds:
            if build.wait():
                raise AssertionError("the simulated node does not compile")

    @classmethod
    def tearDownClass(cls):
        cls.directory.cleanup()

    @classmethod
    def path(cls, abi):
        return os.path.join(cls.directory.name, f"node-v{abi}")

    def fire(self, sub, abi, *args):
        """Without semaphores a node cannot see that it is traced: it waits for a signal."""
        with FakeNode(*args, "--wait-signal", "--linger", 200, binary=self.path(abi)) as node:
            wait_until(lambda: node.pid in [e.pid for e in sub.of("node.started")], 5, "its start")
            node.go()
            fired = node.finish()
        wait_until(lambda: node.pid in [e.pid for e in sub.of("node.exited")], 10, "its end")
        return fired

    def test_what_is_missing_is_listed(self):
        for abi, missing in MISSING.items():
            with self.subTest(abi=abi), Bridge(binary=self.path(abi)) as bridge:
                lines = [line.split(": ")[-1] for line in bridge.log().splitlines() if "missing" in line]
                self.assertEqual({topic for line in lines for topic in line.split(", ")}, missing)
                self.assertLessEqual(len(lines), 1)

    def test_blocks(self):
        """Durations are ns whatever the version measures in; lists and heights as ever."""
        for abi, missing in MISSING.items():
            with self.subTest(abi=abi), tempfile.NamedTemporaryFile() as truth, \
                    Bridge(binary=self.path(abi)) as bridge, Subscriber(bridge) as sub:
                sub.wait_status()
                fired = self.fire(sub, abi, "blocks", 3, 200, "--unseen", 2, "--conflicts", 2,
                                  "--replacements", 4, "--truth", truth.name)
                sub.wait_ledger(fired)
                self.check_account(sub, fired)
                self.check_stream(sub)
                self.assertEqual(set(fired) & missing, set())
                unit = 1000 if abi < 25 else 1
                expected = (1000000 + 12345 * 200) // unit * unit
                self.assertEqual([e["duration_ns"] for e in sub.of("validation.block_connected")],
                                 [expected] * 3)
                blocks = [json.loads(line) for line in truth]
                finals = [e for e in sub.of("block.evictions") if e["final"]]
                if abi < 25:
                    continue
                self.assertEqual([[t.hex() for t in e["txids"]] for e in finals],
                                 [b["txids"] for b in blocks])
                self.assertEqual([e["vsizes"] for e in finals], [b["vsizes"] for b in blocks])
                self.assertEqual([e["complete"] for e in finals], [True] * 3)
                for event in sub.of("mempool.replaced"):
                    self.assertIn("replacement_txid", event)
                    self.assertNotIn("replacement_package", event)
                for event in sub.of("mempool.added"):
                    self.assertTrue(110 <= event["vsize"] <= 40000)

    def test_without_mempool_no_list_claims_to_be_complete(self):
        """v23 and v24 do not tell what leaves the mempool."""
        for abi in (23, 24):
            with self.subTest(abi=abi), Bridge(binary=self.path(abi)) as bridge, \
                    Subscriber(bridge) as sub:
                sub.wait_status()
                self.fire(sub, abi, "blocks", 3, 50)
                self.assertEqual([e for e in sub.of("block.evictions") if e["complete"]], [])

    def test_lists_are_those_of_the_node_that_runs(self):
        """Whatever version has been put in its executable's place meanwhile."""
        programs = {24: self.path(24), 29: FAKE_NODE}
        for runs, comes, lists in ((24, 29, []), (29, 24, [True] * 3)):
            path = os.path.join(self.directory.name, f"replaced-v{runs}")
            shutil.copy(programs[runs], path)
            with self.subTest(runs=runs), Bridge(binary=path) as bridge, Subscriber(bridge) as sub, \
                    FakeNode("blocks", 3, 50, "--wait-signal", "--linger", 200, binary=path) as node:
                sub.wait_status()
                wait_until(lambda: sub.of("node.started"), 5, "its start")
                os.rename(shutil.copy(programs[comes], path + ".new"), path)
                wait_until(lambda: ": attached\n" in bridge.log(), 10, "the new file")
                node.go()
                node.finish()
                wait_until(lambda: sub.of("node.exited"), 10, "its end")
                self.assertEqual(len(sub.of("validation.block_connected")), 3)
                self.assertEqual([e["complete"] for e in sub.of("block.evictions") if e["final"]], lists)

    def test_all_removals(self):
        for abi in (25, 26):
            with self.subTest(abi=abi), Bridge(binary=self.path(abi)) as bridge, \
                    Subscriber(bridge) as sub:
                sub.wait_status()
                fired = self.fire(sub, abi, "burst", 6000, "--reason", "expiry")
                sub.wait_ledger(fired)
                self.check_account(sub, fired)
                for i, event in enumerate(sub.of("mempool.removed")):
                    self.assertEqual((event["vsize"], event["fee"], event["entry_time"],
                                      event["reason"]),
                                     (110 + i % 5000, 1000 + 1000003 * i, 1700000000 + i, "expiry"))

    def test_core_range_is_told(self):
        for abi, core in ((23, "v23"), (24, "v24"), (25, "v25"), (26, "v26")):
            with self.subTest(abi=abi), Bridge(binary=self.path(abi)) as bridge, \
                    Subscriber(bridge) as sub:
                sub.wait_status()
                self.fire(sub, abi, "blocks", 1, 1)
                self.assertIn(core, sub.of("node.started")[0]["core"])


class Core(TestCase):
    """The core of the suite, for each simulated node that is built (v29 is the rest of it)."""
    ABIS = (23, 25, 26)

    def setUp(self):
        need_root()

    def path(self, abi):
        path = f"{FAKE_NODE}-v{abi}"
        if not os.path.exists(path):
            self.skipTest(f"{path} is not built")
        return path

    @contextlib.contextmanager
    def traced(self, abi, *args, **keywords):
        with Bridge(*args, binary=self.path(abi), **keywords) as bridge, \
                Subscriber(bridge) as sub:
            sub.wait_status()
            yield bridge, sub

    def node(self, abi, *args, **keywords):
        """As an operator's script would start it: the program for v29 becomes the right one."""
        return FakeNode(*args, "--abi", f"v{abi}", "--wait-signal", "--linger", 200, **keywords)

    def go(self, sub, node):
        wait_until(lambda: node.pid in [e.pid for e in sub.of("node.started")], 5, "its start")
        node.go()

    def finish(self, sub, node):
        fired = node.finish()
        wait_until(lambda: node.pid in [e.pid for e in sub.of("node.exited")], 20, "its end")
        sub.wait_ledger(fired)
        self.check_account(sub, fired)
        self.check_stream(sub)
        self.assertEqual(sub.lost, {})
        return fired

    def test_five_restarts(self):
        """Events flow after each, of the right process, between its start and its end."""
        for abi in self.ABIS:
            with self.subTest(abi=abi), self.traced(abi) as (_, sub):
                topic = "validation.block_connected"
                lives, count = [], 0
                for k in range(5):
                    with self.node(abi, "blocks", 20, 0, "--hold") as node:
                        self.go(sub, node)
                        count += 20
                        sub.wait_count(topic, count)
                        node.kill()
                    lives.append(node.pid)
                    wait_until(lambda: len(sub.of("node.exited")) == k + 1, 5, "its end")
                told = [(e.topic, e.pid) for e in sub.events
                        if e.topic in (topic, "node.started", "node.exited")]
                self.assertEqual(told, [pair for pid in lives for pair in (
                    ("node.started", pid), *[(topic, pid)] * 20, ("node.exited", pid))])
                self.check_stream(sub)

    def test_mirror_after_a_walk(self):
        """A subscriber of a few lines has the mempool exactly, from v25 on."""
        for abi in (25, 26):
            with self.subTest(abi=abi), tempfile.TemporaryDirectory() as directory, \
                    self.traced(abi) as (bridge, sub), Mirror(bridge.port) as mirror:
                mirror.wait_statuses(1)
                path = os.path.join(directory, "pool")
                with self.node(abi, "walk", 20000, "--seed", abi, "--mempool-out", path,
                               "--hold") as node:
                    self.go(sub, node)
                    wait_until(lambda: os.path.exists(path), 60, "the end of the walk")
                    time.sleep(0.1)
                    mirror.wait_statuses(2)
                    self.assertEqual(bridge.stop(), 0)
                    got = mirror.finish()
                    with open(path) as f:
                        expected = f.read().split()
                    node.stop()
                self.assertGreater(len(expected), 50)
                self.assertEqual(got, expected)

    def test_burst(self):
        """More at once than a slow reader takes: everything arrives."""
        for abi, topic, probe in ((23, "utxocache.spent", "spent"),
                                  (25, "mempool.removed", "removed"),
                                  (26, "mempool.removed", "removed")):
            with self.subTest(abi=abi), self.traced(abi) as (_, sub):
                with self.node(abi, "burst", 100_000, "--probe", probe) as node:
                    self.go(sub, node)
                    fired = self.finish(sub, node)
                self.assertEqual(fired, {topic: 100_000})
                indexes = [int.from_bytes(e["txid"][24:], "big") for e in sub.of(topic)]
                self.assertEqual(indexes, list(range(100_000)))

    def test_coins(self):
        for abi in self.ABIS:
            with self.subTest(abi=abi), self.traced(abi) as (_, sub):
                with self.node(abi, "burst", 5000, "--probe", "utxo") as node:
                    self.go(sub, node)
                    fired = self.finish(sub, node)
                self.assertEqual(sum(fired.values()), 5000)
                for topic in fired:
                    for event in sub.of(topic):
                        i = int.from_bytes(event["txid"][24:], "big")
                        self.assertEqual((event["vout"], event["height"], event["value"],
                                          event["coinbase"]),
                                         (i % 4096, 700000 + i % 100000, 546 + 7 * i, i % 16 == 0))

    def test_messages(self):
        """With payloads, and chosen by type."""
        for abi in self.ABIS:
            for args, limit in (((), None), (("--payload", "full"), 70_000),
                                (("--payload", "tx=1000", "--message-types", "tx"), 1000)):
                with self.subTest(abi=abi, args=args), self.traced(abi, *args) as (_, sub):
                    with self.node(abi, "burst", 50, "--probe", "message", "--size",
                                   70_000) as node:
                        self.go(sub, node)
                        self.finish(sub, node)
                    pattern = bytes((7 * k + node.pid) & 255 for k in range(70_000))
                    for i, event in enumerate(sub.of("net.inbound_message")):
                        self.assertEqual((event["peer_id"], event["addr"], event["msg_type"],
                                          event["size"]), (i, "203.0.113.7:8333", "tx", 70_000))
                        self.assertEqual("data" in event, limit is not None)
                        if limit:
                            expected = i.to_bytes(12, "little") + pattern[12:]
                            self.assertTrue(event["data"] == expected[:limit])
                            self.assertEqual(event.get("truncated"),
                                             True if limit < 70_000 else None)

    def test_values_and_faults(self):
        """Every field of every tracepoint that it has, as the node says; nil where unreadable."""
        for abi in self.ABIS:
            with self.subTest(abi=abi), self.traced(abi, "--only", "*") as (_, sub):
                with self.node(abi, "faults") as node:
                    self.go(sub, node)
                    self.finish(sub, node)
                    expected = list(expectations(node))
                got = [e for e in sub.events if not e.topic.startswith(("block.", "node."))]
                for high in (False, True):
                    side = [e for e in expected if (e[0] in HIGH) == high]
                    events = [e for e in got if (e.topic in HIGH) == high]
                    self.assertEqual(len(side), len(events))
                    for (topic, fields, _), event in zip(side, events):
                        del event["time_us"]
                        event.pop("height", None) if topic == "mempool.removed" else None
                        self.assertEqual((event.topic, dict(event)), (topic, fields))

    def test_a_believable_node(self):
        """All its tracepoints at once, to its orderly end."""
        for abi in self.ABIS:
            with self.subTest(abi=abi), self.traced(abi, "--only", "*") as (_, sub):
                with self.node(abi, "run", "--seconds", 3, "--block-interval", 1, "--coins",
                               "--rate", 2000) as node:
                    self.go(sub, node)
                    fired = self.finish(sub, node)
                self.assertGreater(len(fired), 4)
                self.assertEqual(set(fired) & MISSING[abi], set())

    def test_upgrade(self):
        """From version to version by rename, without an operator; each by its own notes."""
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "bitcoind")
            shutil.copy(self.path(23), path)
            with Bridge(binary=path) as bridge, Subscriber(bridge) as sub:
                sub.wait_status()
                cores, total = [], {}
                for version in (23, 25, 26, 29):
                    new = self.path(version) if version < 29 else FAKE_NODE
                    shutil.copy(new, path + ".new")
                    os.rename(path + ".new", path)
                    time.sleep(1.5)
                    with FakeNode("blocks", 2, 50, "--wait-signal", "--linger", 200,
                                  binary=path) as node:
                        self.go(sub, node)
                        fired = node.finish()
                    wait_until(lambda: node.pid in [e.pid for e in sub.of("node.exited")], 10,
                               "its end")
                    for topic, count in fired.items():
                        total[topic] = total.get(topic, 0) + count
                    cores.append(sub.of("node.exited")[-1]["core"])
                    unit = 1000 if version < 25 else 1
                    self.assertEqual(sub.of("validation.block_connected")[-1]["duration_ns"],
                                     (1000000 + 12345 * 50) // unit * unit)
                sub.wait_ledger(total)
                self.check_account(sub, total)
                self.check_stream(sub)
                for core, word in zip(cores, ("v23", "v25", "v26", "v29")):
                    self.assertIn(word, core)


if __name__ == "__main__":
    main()
