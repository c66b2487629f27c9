"""block.evictions: the complete list of what left the mempool with each block, and never one that
claims to be complete and is not; the height on removals."""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import FAKE_NODE, Bridge, FakeNode, Subscriber, TestCase, main, wait_until

FIELDS = ["time_us", "hash", "height", "n_tx", "n_block", "txids", "fees", "vsizes", "entry_times",
          "conflicts", "unseen", "reorg", "repeat", "complete", "final"]
COLUMNS = ("txids", "fees", "vsizes", "entry_times")
BY_BLOCK = ("block", "conflict")


def read_truth(path):
    """What each connection of a block fired, as the simulated node tells it; hashes as bytes."""
    blocks = []
    with open(path) as f:
        for line in f:
            block = json.loads(line)
            block["hash"] = bytes.fromhex(block["hash"])
            for key in ("txids", "conflict_txids"):
                block[key] = [bytes.fromhex(txid) for txid in block[key]]
            blocks.append(block)
    return blocks


class Evictions(TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.truth = os.path.join(self.directory.name, "truth")

    def blocks(self, *args, bridge_args=(), during=None, **keywords):
        """A bridge, a subscriber to everything and a node that connects blocks; during(bridge, sub,
        node) may disturb them. Returns the subscriber and the truth once everything has arrived."""
        with Bridge(*bridge_args, **keywords) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            with FakeNode("blocks", *args, "--truth", self.truth, "--wait") as node:
                if during:
                    during(bridge, sub, node)
                self.fired = node.finish()
            sub.wait_ledger(self.fired)
            wait_until(lambda: sub.of("node.exited"), what="node.exited")
            bridge.stop()
            wait_until(lambda: len(sub.stopped) == 2, what="bridge.stopping")
            self.check_stream(sub)
            self.check_account(sub, self.fired)
            return sub, read_truth(self.truth)

    def lists(self, sub):
        """By connection (n_block): the early lists and the final one."""
        connections = {}
        for event in sub.of("block.evictions"):
            self.assertEqual(list(event), FIELDS)
            self.assertEqual(list(event["conflicts"]), [*COLUMNS, "after"])
            lengths = {len(event[c]) for c in COLUMNS}
            self.assertEqual(len(lengths), 1)
            self.assertEqual({len(c) for c in event["conflicts"].values()},
                             {len(event["conflicts"]["after"])})
            if event["complete"]:
                self.assertIs(event["final"], True)
            self.assertEqual(event["unseen"], event["n_tx"] - 1 - len(event["txids"]))
            told = connections.setdefault(event["n_block"], [])
            for early in told:
                self.assertIs(early["final"], False)
                self.assertIs(early["complete"], False)
                for key in ("hash", "height", "n_tx", "reorg", "repeat"):
                    self.assertEqual(early[key], event[key])
                for column in COLUMNS:
                    self.assertEqual(early[column], event[column][:len(early[column])])
            told.append(event)
        return connections

    def check_list(self, event, block):
        """A complete list is what the node did, whole."""
        self.assertEqual((event["hash"], event["height"], event["n_tx"], event["unseen"]),
                         (block["hash"], block["height"], block["n_tx"], block["unseen"]))
        for column in COLUMNS:
            self.assertEqual(event[column], block[column], column)
            self.assertEqual(event["conflicts"][column], block[f"conflict_{column}"], column)
        self.assertEqual(event["conflicts"]["after"], block["conflict_after"])
        self.assertEqual((event["complete"], event["final"]), (True, True))

    def check_wire(self, sub, connections):
        """block_connected, its removals in the list's order, then the list."""
        events = {e.n: e for e in sub.events if e.topic not in ("net.inbound_message",
                  "net.outbound_message", "utxocache.add", "utxocache.spent", "utxocache.uncache")}
        for n_block, told in connections.items():
            connected, final = events[n_block], told[-1]
            self.assertEqual(connected.topic, "validation.block_connected")
            self.assertEqual((connected["hash"], connected["height"], connected["n_tx"]),
                             (final["hash"], final["height"], final["n_tx"]))
            block, conflict, after = [], [], []
            for n in range(n_block + 1, final.n):
                event = events[n]
                if event.topic in ("utxocache.flush", "block.evictions", "node.exited"):
                    continue
                self.assertEqual(event.topic, "mempool.removed")
                self.assertIn(event["reason"], BY_BLOCK)
                self.assertEqual(event["height"], final["height"])
                if event["reason"] == "block":
                    block.append(event)
                else:
                    conflict.append(event)
                    after.append(len(block))
            self.assertEqual([e["txid"] for e in block], final["txids"])
            self.assertEqual([e["fee"] for e in block], final["fees"])
            self.assertEqual([e["vsize"] for e in block], final["vsizes"])
            self.assertEqual([e["entry_time"] for e in block], final["entry_times"])
            self.assertEqual([e["txid"] for e in conflict], final["conflicts"]["txids"])
            self.assertEqual(after, final["conflicts"]["after"])

    def check_height(self, sub):
        """On removals by a block only, and then it is not nil unless something was lost."""
        removed = sub.of("mempool.removed")
        for event in removed:
            self.assertEqual("height" in event, event["reason"] in BY_BLOCK)
            if not sub.lost and "height" in event:
                self.assertIs(type(event["height"]), int)
        return removed

    def check_all(self, sub, truth):
        """The whole thing where nothing was lost. Returns the early lists."""
        connections = self.lists(sub)
        self.assertEqual(len(connections), len(truth))
        for told, block in zip(connections.values(), truth):
            self.check_list(told[-1], block)
        self.check_wire(sub, connections)
        removed = self.check_height(sub)
        self.assertEqual(sum(e["reason"] == "block" for e in removed),
                         sum(len(b["txids"]) for b in truth))
        return [e for told in connections.values() for e in told[:-1]]

    def test_exact(self):
        """Unseen transactions, their conflicts, and replacements between the blocks."""
        sub, truth = self.blocks(6, 1500, "--unseen", 9, "--conflicts", 11, "--replacements", 25,
                                 "--start-height", 800000)
        self.assertEqual([b["height"] for b in truth], list(range(800000, 800006)))
        self.assertTrue(all(b["unseen"] == 9 and len(b["conflict_txids"]) == 11 for b in truth))
        self.check_all(sub, truth)
        for event in sub.of("block.evictions"):
            self.assertEqual((event["reorg"], event["repeat"]), (0, False))
        reasons = {e["reason"] for e in sub.of("mempool.removed")}
        self.assertEqual(reasons, {"block", "conflict", "replaced"})

    def test_whole_at_once(self):
        """Every transaction was known: the list ends with the last eviction, not with what follows."""
        sub, truth = self.blocks(1, 300, "--hold", during=self.wait_final)
        self.check_all(sub, truth)
        event = sub.of("block.evictions")[0]
        self.assertEqual((event["unseen"], event["complete"], event["final"]), (0, True, True))

    def wait_final(self, bridge, sub, node):
        wait_until(lambda: sub.of("block.evictions"), 5, "the list while the node is silent")
        node.process.terminate()

    def test_early_then_final(self):
        """One unseen transaction: nothing proves the end, so the list is told early, once, and again
        when the node exits."""
        def during(bridge, sub, node):
            wait_until(lambda: sub.of("block.evictions"), 5, "an early list")
            time.sleep(1.5)
            told = sub.of("block.evictions")
            self.assertEqual(len(told), 1)
            self.assertEqual((told[0]["final"], told[0]["complete"]), (False, False))
            self.assertEqual(len(told[0]["txids"]), 299)
            # By that record's own time, and not before 250 ms have passed.
            last = max(e["time_us"] for e in sub.of("mempool.removed"))
            self.assertGreater(told[0].received * 1e6 - last, 250_000)
            node.process.terminate()
        sub, truth = self.blocks(1, 300, "--unseen", 1, "--hold", during=during)
        self.assertEqual(len(self.check_all(sub, truth)), 1)
        self.assertLess(sub.of("block.evictions")[-1].n, sub.of("node.exited")[0].n)

    def test_empty_blocks(self):
        sub, truth = self.blocks(4, 20, "--empty-blocks")
        self.assertEqual([b["n_tx"] for b in truth], [21, 1] * 4)
        self.assertEqual(self.check_all(sub, truth), [])

    def test_only_unseen(self):
        sub, truth = self.blocks(3, 50, "--unseen", 50, "--conflicts", 7)
        self.assertEqual([b["txids"] for b in truth], [[]] * 3)
        self.check_all(sub, truth)

    def test_flush_before_the_removals(self):
        """300 ms between block_connected and the first removal prove nothing."""
        for milliseconds in (300, 900):
            with self.subTest(milliseconds=milliseconds):
                sub, truth = self.blocks(3, 2000, "--unseen", 2, "--flush-ms", milliseconds)
                early = self.check_all(sub, truth)
                self.assertTrue(early)
                self.assertEqual({len(e["txids"]) for e in early} - {1998}, {0})
                self.assertEqual(len(sub.of("utxocache.flush")), 3)

    def test_node_stopped_in_the_middle(self):
        """SIGSTOP for 350 ms in the middle of 2,000 removals."""
        def during(bridge, sub, node):
            wait_until(lambda: sub.of("validation.block_connected"), 20, "the block")
            wait_until(lambda: self.evicted(sub) > 700, 10, "700 evictions")
            os.kill(node.pid, signal.SIGSTOP)
            time.sleep(0.35)
            os.kill(node.pid, signal.SIGCONT)
        for unseen in (0, 3):
            with self.subTest(unseen=unseen):
                sub, truth = self.blocks(2, 2000, "--rate", 4000, "--unseen", unseen, during=during)
                early = [e for e in self.check_all(sub, truth) if len(e["txids"]) < 1900]
                self.assertTrue(early)
                self.assertTrue(all(600 < len(e["txids"]) < 1900 for e in early))

    def evicted(self, sub):
        return sum(e["reason"] == "block" for e in sub.of("mempool.removed"))

    def test_pauses(self):
        """The thread itself pauses, again and again, for longer than the quiet that tells early."""
        sub, truth = self.blocks(5, 400, "--unseen", 1, "--pause-at", 200, "--pause-ms", 600)
        early = self.check_all(sub, truth)
        self.assertEqual([len(e["txids"]) for e in early if len(e["txids"]) < 390], [200] * 5)

    def test_flood_does_not_hold_up_the_list(self):
        sub, truth = self.blocks(3, 1000, "--unseen", 1, "--flood", 1, "--pause-at", 500,
                                 "--pause-ms", 700, bridge_args=("--ring-high", "256M"))
        self.assertTrue(self.check_all(sub, truth))

    def test_reorganisation_and_repeat(self):
        sub, truth = self.blocks(6, 40, "--reorg", 3, "--repeat", "--start-height", 500)
        self.check_all(sub, truth)
        finals = [e for e in sub.of("block.evictions") if e["final"]]
        last, seen, reorgs, repeats = None, set(), [], []
        for block in truth:
            repeats.append(block["hash"] in seen)
            above = last is None or block["height"] > last
            reorgs.append(0 if above or repeats[-1] else last - block["height"] + 1)
            last = block["height"]
            seen.add(block["hash"])
        self.assertEqual([e["reorg"] for e in finals], reorgs)
        self.assertEqual([e["repeat"] for e in finals], repeats)
        self.assertEqual([r for r in reorgs if r], [3])
        self.assertEqual(sum(repeats), 3)

    def test_repeat_across_a_restart_of_the_node(self):
        """A block that connects again after kill -9 is known by its hash."""
        with Bridge() as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            for _ in range(2):
                with FakeNode("blocks", 3, 10, "--seed", 77, "--wait", "--linger", 300) as node:
                    node.finish()
            wait_until(lambda: len(sub.of("node.exited")) == 2, what="both nodes")
            finals = [e for e in sub.of("block.evictions") if e["final"]]
            self.assertEqual([e["repeat"] for e in finals], [False] * 3 + [True] * 3)
            self.assertEqual([e["reorg"] for e in finals], [0] * 6)

    def test_node_killed_in_the_middle(self):
        """The list ends by node.exited and holds what the block removed until then."""
        book = os.path.join(self.directory.name, "book")
        with Bridge() as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            with FakeNode("blocks", 1, 2000, "--rate", 4000, "--ledger", book, "--wait") as node:
                wait_until(lambda: self.evicted(sub) > 700, 20, "700 evictions")
                node.kill()
            wait_until(lambda: sub.of("node.exited"), what="node.exited")
            out = subprocess.run([FAKE_NODE, "ledger", book], capture_output=True, text=True)
            counted = json.loads(out.stdout)["fired"]["mempool:removed"]
            removed = sub.of("mempool.removed")
            # The node counts after the firing, so it may owe one.
            self.assertIn(len(removed), (counted, counted + 1))
            told = sub.of("block.evictions")
            final = told[-1]
            self.assertEqual([e["txid"] for e in removed], final["txids"])
            self.assertTrue(700 < len(final["txids"]) < 2000)
            self.assertEqual((final["complete"], final["final"]), (True, True))
            self.assertEqual(final["unseen"], 2000 - len(final["txids"]))
            self.assertLess(removed[-1].n, final.n)
            self.assertEqual(final.n + 1, sub.of("node.exited")[0].n)
            self.assertEqual([e["final"] for e in told[:-1]], [False] * (len(told) - 1))
            self.check_stream(sub)

    def check_lossy(self, sub, truth):
        """After losses: a complete list is whole, and a height that is told is right."""
        blocks = {(b["hash"], b["height"]): b for b in truth}
        home = {txid: b["height"] for b in truth for txid in (*b["txids"], *b["conflict_txids"])}
        complete = 0
        for told in self.lists(sub).values():
            final = told[-1]
            self.assertIs(final["final"], True)
            if final["complete"]:
                complete += 1
                self.check_list(final, blocks[final["hash"], final["height"]])
        told_height = untold = 0
        lost_before = {n for _, topic, n, _ in sub.losses if topic == "mempool.removed"}
        connected = removed = None  # positions of the last ones
        broken = False
        for event in sub.events:
            if event.topic == "validation.block_connected":
                connected, broken = event.n, False
            if event.topic != "mempool.removed":
                continue
            # A loss of removals between two of them, with no block between: both are of one block.
            broken |= event.n in lost_before and None not in (connected, removed) \
                and connected < removed
            removed = event.n
            if "height" not in event:
                continue
            if event["height"] is None:
                untold += 1
                continue
            told_height += 1
            self.assertEqual(event["height"], home[event["txid"]])
            self.assertFalse(broken, "a height although removals were lost since the block")
        return complete, told_height, untold

    def test_losses(self):
        """A ring of one page and a bridge that is stopped now and then while blocks connect."""
        def during(bridge, sub, node):
            while node.process.poll() is None:
                os.kill(bridge.pid, signal.SIGSTOP)
                time.sleep(0.05)
                os.kill(bridge.pid, signal.SIGCONT)
                time.sleep(0.15)
        sub, truth = self.blocks(40, 60, "--unseen", 2, "--conflicts", 2, "--replacements", 3,
                                 "--rate", 3000, during=during,
                                 bridge_args=("--ring-low", 4096))
        self.assertTrue(sub.lost)
        complete, told_height, untold = self.check_lossy(sub, truth)
        self.assertGreater(complete, 0)
        self.assertGreater(told_height, 0)
        self.assertGreater(untold, 0)

    def test_losses_in_a_burst(self):
        """Nothing is spared: full speed on a ring of one page."""
        sub, truth = self.blocks(30, 400, "--unseen", 1, "--conflicts", 1,
                                 bridge_args=("--ring-low", 4096))
        self.assertTrue(sub.lost)
        self.check_lossy(sub, truth)

    def test_only_the_lists(self):
        """The list does not need its parts to be published; a loss among them is its loss."""
        with Bridge("--only", "block.evictions", "--ring-low", 4096) as bridge, \
                Subscriber(bridge) as sub:
            sub.wait_status()
            bridge.send(signal.SIGSTOP)
            with FakeNode("blocks", 1, 300, "--unseen", 1, "--wait", "--hold") as node:
                time.sleep(0.3)
                bridge.send(signal.SIGCONT)
                time.sleep(2.5)
                node.stop()
            time.sleep(0.3)
            self.assertEqual(bridge.stop(), 0)
            wait_until(lambda: len(sub.stopped) == 2, what="bridge.stopping")
            self.assertEqual([e for e in sub.of("block.evictions") if e["complete"]], [])
            self.check_stream(sub)

    def test_tail_lost_and_node_killed(self):
        """The end of the block is lost in a full ring, and then the node dies: node.exited ends the
        list, and it is not complete. The ring holds what comes in a quarter of a second."""
        for _ in range(3):
            with Bridge("--ring-low", 4096) as bridge, Subscriber(bridge) as sub:
                sub.wait_status()
                with FakeNode("blocks", 1, 100, "--unseen", 1, "--rate", 100, "--truth", self.truth,
                              "--wait", "--hold") as node:
                    # Right after a status the bridge does not look at its counters for a second.
                    wait_until(lambda: self.evicted(sub) > 20, 20, "20 evictions")
                    count = len(sub.statuses)
                    os.kill(node.pid, signal.SIGSTOP)
                    wait_until(lambda: len(sub.statuses) >= count + 2, what="the next status")
                    bridge.send(signal.SIGSTOP)
                    os.kill(node.pid, signal.SIGCONT)
                    wait_until(lambda: os.path.getsize(self.truth), 5, "the end of the block")
                    node.kill()
                    bridge.send(signal.SIGCONT)
                wait_until(lambda: sub.of("node.exited"), what="node.exited")
                time.sleep(1.2)
                self.assertGreater(sub.lost.get("mempool.removed", 0), 10)
                final = sub.of("block.evictions")[-1]
                self.assertIs(final["final"], True)
                self.assertLess(len(final["txids"]), 99)
                self.assertIs(final["complete"], False)
                self.assertEqual(sub.lost_pids, {node.pid})
                os.unlink(self.truth)

    def test_tail_lost_and_told_of_by_the_next_process(self):
        """The same, but what is read first of what came after is a record of the next process in the
        other ring, where nobody counts what this one lost; its start was lost too."""
        with Bridge("--ring-low", 4096) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            with FakeNode("blocks", 1, 100, "--rate", 100, "--pause-at", 50, "--pause-ms", 5000,
                          "--wait") as node:
                wait_until(lambda: self.evicted(sub) == 50, 20, "50 evictions")
                bridge.send(signal.SIGSTOP)
                self.assertEqual(node.finish()["mempool.removed"], 100)
            with FakeNode("burst", 20, "--probe", "utxo", "--wait") as successor:
                successor.finish()
            bridge.send(signal.SIGCONT)
            sub.wait_count("utxocache.add", 10)
            wait_until(lambda: len(sub.of("node.exited")) == 2, what="node.exited of both")
            self.assertEqual([e.pid for e in sub.of("node.started")], [node.pid, successor.pid])
            final = sub.of("block.evictions")[-1]
            self.assertEqual((final["final"], final["complete"]), (True, False))
            self.assertEqual(len(final["txids"]) + sub.lost["mempool.removed"], 100)
            self.check_stream(sub)

    def test_bridge_stopped_while_a_list_is_open(self):
        """Told as the last word, and not complete: nothing will prove its end."""
        with Bridge() as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            with FakeNode("blocks", 1, 2000, "--rate", 4000, "--wait") as node:
                wait_until(lambda: self.evicted(sub) > 700, 20, "700 evictions")
                self.assertEqual(bridge.stop(), 0)
                wait_until(lambda: len(sub.stopped) == 2, what="bridge.stopping")
                final = sub.of("block.evictions")[-1]
                self.assertEqual((final["final"], final["complete"]), (True, False))
                self.assertEqual(final["txids"], [e["txid"] for e in sub.of("mempool.removed")])
                self.check_stream(sub)
                node.kill()


if __name__ == "__main__":
    main()
