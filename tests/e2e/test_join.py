"""Joining: late is no loss, early misses nothing."""
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import Bridge, FakeNode, Subscriber, TestCase, free_port, main, wait_until


class Port:
    """Where a bridge will be."""

    def __init__(self):
        self.port = free_port()


class Join(TestCase):
    def test_joining_a_running_stream(self):
        """Subscribers that come one by one see neither gap nor loss, and from there on everything."""
        with Bridge() as bridge, Subscriber(bridge) as first:
            first.wait_status()
            with FakeNode("burst", 20000, "--rate", 8000, "--wait") as node:
                late = []
                for _ in range(8):
                    time.sleep(0.2)
                    late.append(Subscriber(bridge))
                fired = node.finish()
            first.wait_ledger(fired)
            self.check_account(first, fired)
            wait_until(lambda: all(s.status("low") and s.status("low")["heads"]["mempool.removed"]
                                   == 20000 for s in late), 5, "the end at everybody")
            seen = []
            for sub in late:
                self.check_stream(sub)
                self.assertEqual(sub.lost, {})
                events = sub.of("mempool.removed")
                seen.append(len(events))
                self.assertEqual([e.seq for e in events], list(range(20001 - len(events), 20001)))
                self.assertEqual([int.from_bytes(e["txid"][24:], "big") for e in events],
                                 list(range(20000 - len(events), 20000)))
                sub.close()
            self.assertEqual(seen, sorted(seen, reverse=True))
            self.assertLess(seen[0], 20000)

    def test_joining_during_losses(self):
        """What was lost before one joined is not counted as its loss."""
        with Bridge("--ring-low", 4096) as bridge, Subscriber(bridge) as first:
            first.wait_status()
            with FakeNode("burst", 50000, "--wait") as node:
                fired = node.finish()
            first.wait_ledger(fired)
            self.assertGreater(first.lost["mempool.removed"], 0)
            with Subscriber(bridge) as late:
                late.wait_status()
                with FakeNode("burst", 10, "--wait") as node:
                    node.finish()
                late.wait_count("mempool.removed", 10)
                self.check_stream(late)
                self.assertEqual(late.lost, {})
                self.assertEqual(late.of("mempool.removed")[0].seq, 50001)

    def early(self, reconnect_ms):
        """The subscriber is there before the bridge, and so is the node. It sees its semaphore some
        milliseconds before the gate opens, hence the delay."""
        place = Port()
        with Subscriber(place, reconnect_ms=reconnect_ms) as sub:
            time.sleep(0.5)
            with FakeNode("burst", 5000, "--rate", 5000, "--wait", "--start-delay", 1000,
                          "--hold") as node, \
                    Bridge(port=place.port):
                sub.wait_count("mempool.removed", 5000, 20)
                fired = node.stop()
                sub.wait_ledger(fired)
                self.assertEqual(fired, {"mempool.removed": 5000})
                self.check_account(sub, fired)
                self.check_stream(sub)
                events = sub.of("mempool.removed")
                self.assertEqual([e.seq for e in events], list(range(1, 5001)))
                self.assertEqual(sub.of("node.started")[0].n, 1)

    def test_subscriber_before_the_bridge(self):
        """One that tries to connect ten times a second, as libzmq does, and one that sees the very
        first status."""
        for reconnect_ms in (100, 1):
            with self.subTest(reconnect_ms=reconnect_ms):
                self.early(reconnect_ms)

    def test_first_status_accounts_for_nothing(self):
        """Told at once after the bind, before any event, even where the node runs already."""
        place = Port()
        with Subscriber(place, raw=True, reconnect_ms=1) as sub:
            time.sleep(0.3)
            with FakeNode("burst", 3000, "--wait", "--start-delay", 1000, "--hold"), \
                    Bridge(port=place.port):
                sub.wait_count("mempool.removed", 3000)
            wait_until(lambda: len(sub.stopped) == 2, what="bridge.stopping")
            for name in ("low", "high"):
                messages = [(topic, body) for socket, topic, body in sub.messages if socket == name]
                self.assertEqual(messages[-1][0], "bridge.stopping")
                # Whoever connects a moment later has not seen it; who has, can rely on it.
                if messages[0][0] == "bridge.status":
                    first = messages[0][1]
                    self.assertEqual((first["n"], set(first["heads"].values())), (0, {0}))

    def test_bridge_that_comes_back(self):
        """A subscriber that stays connected while the bridge restarts: a new run, seen from its
        first event, and nothing that looks like a loss."""
        place = Port()
        with Subscriber(place) as sub:
            for k in range(3):
                with Bridge(port=place.port), FakeNode("burst", 1000, "--wait") as node:
                    node.finish()
                    sub.wait_count("mempool.removed", 1000 * (k + 1))
            self.check_stream(sub)
            self.assertEqual(sub.lost, {})
            runs = sub.runs
            self.assertEqual(len(runs), 3)
            self.assertEqual(runs, sorted(runs))
            for run in runs:
                events = [e for e in sub.of("mempool.removed") if e.run == run]
                self.assertEqual([e.seq for e in events], list(range(1, 1001)))


if __name__ == "__main__":
    main()
