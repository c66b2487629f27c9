"""Arguments that cannot be read, or only by faulting pages in: right, or nil and counted; never a
hash of zeros or an empty text that nobody passed. Probes at several sites."""
import json
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import Bridge, FakeNode, Subscriber, TestCase, main, wait_until

HIGH = ("net.inbound_message", "net.outbound_message", "utxocache.add", "utxocache.spent",
        "utxocache.uncache")
HASHES = ("txid", "hash", "replacement_txid", "replacement_package")


def expectations(node):
    """One per firing: topic, fields as they must be published, and whether memory was paged out."""
    for line in node.lines()[:-1]:
        entry = json.loads(line)
        fields = entry["expect"]
        fields.pop("data", None)  # payloads are off
        for name in HASHES:
            if fields.get(name) is not None:
                fields[name] = bytes.fromhex(fields[name])
        yield entry["probe"].replace(":", "."), fields, entry["paged_out"]


class Faults(TestCase):
    def fire(self, mode, *bridge_args):
        """Pairs of what must be published and what is, in the order of each socket."""
        with Bridge("--only", "*", *bridge_args) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            with FakeNode(*mode, "--wait") as node:
                self.fired = node.finish()
                expected = list(expectations(node))
            sub.wait_ledger(self.fired)
            wait_until(lambda: sub.of("node.exited"), what="node.exited")
            bridge.stop()
            wait_until(lambda: len(sub.stopped) == 2, what="bridge.stopping")
            self.check_account(sub, self.fired)
            self.check_stream(sub)
            self.assertEqual(sub.lost, {})
        self.counters = {t: c for s in sub.stopped for t, c in s["counters"].items()}
        got = [e for e in sub.events if not e.topic.startswith(("block.", "node."))]
        pairs = []
        for high in (False, True):
            side = [e for e in expected if (e[0] in HIGH) == high]
            events = [e for e in got if (e.topic in HIGH) == high]
            self.assertEqual(len(side), len(events))
            pairs += zip(side, events)
        self.assertGreater(len(pairs), 0)
        for (topic, fields, _), event in pairs:
            self.assertEqual(event.topic, topic)
            self.assertEqual(list(event), ["time_us", *fields], topic)
            del event["time_us"]
        return pairs

    def check_counted(self, pairs):
        """Each event with something nil is a fault in status, and only those."""
        counted = {}
        for _, event in pairs:
            if None in event.values():
                counted[event.topic] = counted.get(event.topic, 0) + 1
        for topic, count in counted.items():
            self.assertGreaterEqual(self.counters[topic]["faults"], count, topic)
        self.assertEqual({t for t, c in self.counters.items() if c["faults"]}, set(counted))
        return sum(counted.values())

    def test_everything_that_can_be_read_is_right(self):
        pairs = self.fire(["faults"])
        for k, ((topic, fields, paged_out), event) in enumerate(pairs):
            self.assertEqual(dict(event), fields, f"{k}: {topic}, paged out: {paged_out}")
        self.assertGreater(self.check_counted(pairs), 100)
        self.assertIn(None, [e["txid"] for _, e in pairs if "txid" in e])
        if not any(paged_out for (_, _, paged_out), _ in pairs):
            self.skipTest("nothing could be paged out here; the rest is right")

    def check_right_or_nil(self, pairs):
        """Whatever could not be read is nil; numbers in registers are never in danger."""
        unread = 0
        for k, ((topic, fields, paged_out), event) in enumerate(pairs):
            for name, value in fields.items():
                what = f"{k}: {topic}.{name}, paged out: {paged_out}"
                if event[name] is None and value is not None:
                    self.assertIsInstance(value, (bytes, str), what)
                    unread += 1
                else:
                    self.assertEqual(event[name], value, what)
        return unread

    def test_without_sleepable(self):
        """Pages that are not there now stay unread, and are told as such."""
        pairs = self.fire(["faults"], "--without", "sleepable")
        self.check_right_or_nil(pairs)
        self.assertGreater(self.check_counted(pairs), 100)

    def test_type_that_cannot_be_read(self):
        """It may be one of those that --message-types names: it is published, its type nil."""
        for args in ((), ("--payload", "inv=full")):
            with self.subTest(args), Bridge("--message-types", "inv", *args) as bridge, Subscriber(bridge) as sub:
                sub.wait_status()
                with FakeNode("faults", "--wait") as node:
                    node.finish()
                    wanted = [fields for topic, fields, _ in expectations(node)
                              if topic == "net.inbound_message" and fields["msg_type"] in (None, "inv")]
                wait_until(lambda: sub.of("node.exited"), what="node.exited")
                sub.wait_count("net.inbound_message", len(wanted))
                events = sub.of("net.inbound_message")
                self.assertIn(None, [e["msg_type"] for e in events])
                for event, fields in zip(events, wanted):
                    self.assertEqual({name: event[name] for name in fields}, fields)
                self.assertEqual(len(events), len(wanted))
                self.check_stream(sub)

    def test_without_anything(self):
        pairs = self.fire(["faults"], "--without", "sleepable,multi,tai")
        self.check_right_or_nil(pairs)

    def test_each_fallback(self):
        """What an older kernel lacks, one by one and all: the program loads, and says what it does
        with; every firing arrives, at the time when it was."""
        used = {"multi": "perf links, sleepable, TAI clock", "sleepable": "uprobe_multi, plain, TAI clock",
                "tai": "uprobe_multi, sleepable, boot clock", "dynptr": "uprobe_multi, sleepable, TAI clock",
                "multi,sleepable,tai,dynptr": "perf links, plain, boot clock"}
        for without, description in used.items():
            with self.subTest(without), \
                    Bridge("--only", "mempool.removed", "--without", without) as bridge, \
                    Subscriber(bridge) as sub:
                sub.wait_status()
                self.assertIn(f"attached ({description})", bridge.log())
                since = time.time_ns() // 1000
                with FakeNode("burst", 300, "--reason", "expiry", "--wait", "--start-delay", 300) as node:
                    fired = node.finish()
                sub.wait_ledger(fired)
                until = time.time_ns() // 1000
                self.check_account(sub, {"mempool.removed": 300})
                times = [e["time_us"] for e in sub.of("mempool.removed")]
                self.assertEqual([t for t in times if not since <= t <= until], [])
                self.assertEqual(times, sorted(times))

    def test_perf_links(self):
        pairs = self.fire(["faults"], "--without", "multi")
        for (topic, fields, paged_out), event in pairs:
            self.assertEqual(dict(event), fields, f"{topic}, paged out: {paged_out}")

    def test_unreadable_reason_proves_nothing(self):
        """A removal whose reason is nil may be of a block: no height is claimed for it."""
        for _, event in self.fire(["faults"]):
            if event.topic == "mempool.removed" and event["reason"] is None:
                self.assertNotIn("height", event)

    def test_sites(self):
        """One probe at three places with different operands: each firing once, with its values."""
        for without in ([], ["--without", "multi"]):
            with self.subTest(without=without):
                rounds = 500
                pairs = self.fire(["sites", rounds], *without)
                self.assertEqual(self.fired, {"mempool.removed": 3 * rounds})
                for k, ((_, fields, _), event) in enumerate(pairs):
                    self.assertEqual(dict(event), fields, k)
                self.assertEqual(self.check_counted(pairs), 0)


if __name__ == "__main__":
    main()
