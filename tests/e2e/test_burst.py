"""Bursts of removals: everything arrives, in order, with right values."""
# Runs alone: on two processors nothing keeps this pace beside others.
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import Bridge, FakeNode, Subscriber, TestCase, main


class Burst(TestCase):
    def burst(self, count, keep, **keywords):
        with Bridge(**keywords) as bridge, Subscriber(bridge, keep=keep) as sub:
            sub.wait_status()
            with FakeNode("burst", count, "--wait") as node:
                fired = node.finish()
            sub.wait_ledger(fired)
            self.assertEqual(fired, {"mempool.removed": count})
            self.check_account(sub, fired)
            self.assertEqual(sub.lost, {})
            return sub

    def test_328416_removals(self):
        """The number of events at which the first public attempt at this lost some."""
        sub = self.burst(328416, keep=True)
        events = sub.of("mempool.removed")
        self.assertEqual([e.seq for e in events], list(range(1, 328417)))
        self.assertEqual(len({e["txid"] for e in events}), 328416)

    def test_5000000_removals(self):
        """As fast as the node fires: the plain one."""
        self.burst(5000000, keep=False, sanitized=False)


if __name__ == "__main__":
    main()
