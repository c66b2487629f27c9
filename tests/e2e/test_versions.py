"""Binaries of older Core versions: what they lack is listed, the rest arrives with right values, and
tracepoints without semaphores are traced too."""
import glob
import json
import os
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import ROOT, Bridge, FakeNode, Subscriber, TestCase, main, need_root, wait_until

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
            node.process.send_signal(signal.SIGUSR1)
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


if __name__ == "__main__":
    main()
