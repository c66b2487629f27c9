"""Payloads of P2P messages: whole and exact up to the largest that Bitcoin has, cut where asked,
chosen and filtered by message type in the kernel, and never a byte of another message."""
import json
import os
import signal
import struct
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import FAKE_NODE, Bridge, FakeNode, Subscriber, TestCase, main, tool, wait_until
from replay import CompleteSubscriber

MESSAGE = "net.inbound_message"
SIZES = (0, 1, 255, 256, 257, 4095, 4096, 4097, 32767, 32768, 32769, 65535, 65536, 65537, 1_000_000,
         3_999_900)
ROOMY = ("--journal-high", "128M", "--journal-low", "16M")


def payload(pid, thread, index, size):
    """What fake_node's burst sends."""
    tail = bytes((7 * k + pid) & 255 for k in range(256)) * (size // 256 + 1)
    return (struct.pack("<QI", index, thread) + tail[12:])[:size]


class Case(TestCase):
    def bridge(self, *args, **keywords):
        journal = () if any(str(a).startswith("--journal") for a in args) else ROOMY
        return Bridge(*args, *journal, **keywords)

    def fire(self, sub, count, size, *args, kind="tx", arrive=None):
        """Messages of a node of their own, once all that should arrive are there: its number and
        its ledger."""
        before = sub.count.get(MESSAGE, 0) + sub.lost.get(MESSAGE, 0)
        with FakeNode("burst", count, "--probe", "message", "--size", size, "--message-type", kind,
                      "--wait", "--linger", 50, *args) as node:
            fired = node.finish()
        wait_until(lambda: node.pid in [e.pid for e in sub.of("node.exited")], 20, "node.exited")
        sub.wait_count(MESSAGE, before + (count if arrive is None else arrive))
        return node.pid, fired

    def messages(self, sub, pid):
        return [e for e in sub.of(MESSAGE) if e.pid == pid]

    def check_event(self, event, pid, index, size, limit, thread=0, kind="tx"):
        """All of it. limit: the bytes that are copied at most, or None for no payload."""
        self.assertEqual((event["peer_id"], event["addr"], event["connection_type"],
                          event["msg_type"], event["size"]),
                         (index, "203.0.113.7:8333", "inbound", kind, size))
        names = ["time_us", "peer_id", "addr", "connection_type", "msg_type", "size"]
        if limit is not None:
            names.append("data")
            # Not by assertEqual, which would print megabytes.
            expected = payload(pid, thread, index, size)[:limit]
            self.assertEqual(len(event["data"]), len(expected))
            self.assertTrue(event["data"] == expected, f"{size}: other bytes")
            if size > limit:
                names.append("truncated")
                self.assertIs(event["truncated"], True)
        self.assertEqual(list(event), names)

    def check(self, args, sizes, limit_of, truncated=None):
        with self.bridge(*args) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            cut = 0
            for size in sizes:
                pid, fired = self.fire(sub, 2, size)
                got = self.messages(sub, pid)
                self.assertEqual(len(got), fired[MESSAGE])
                for index, event in enumerate(got):
                    limit = limit_of(size)
                    self.check_event(event, pid, index, size, limit)
                    cut += limit is not None and size > limit
            self.check_account(sub, {MESSAGE: 2 * len(sizes)})
            self.check_stream(sub)
            self.assertEqual(sub.lost, {})
            bridge.stop()
            wait_until(lambda: len(sub.stopped) == 2, what="bridge.stopping")
            counters = next(s for s in sub.stopped if s["socket"] == "high")["counters"][MESSAGE]
            self.assertEqual(counters["truncated"], cut)
            self.assertEqual((counters["fired"], counters["submitted"], counters["faults"]),
                             (2 * len(sizes), 2 * len(sizes), 0))


class Sizes(Case):
    def test_off(self):
        """As long as nobody asks for them, neither data nor truncated is there."""
        self.check((), (0, 1, 4096, 1_000_000), lambda size: None)
        self.check(("--payload", "0"), (0, 1, 4096), lambda size: None)
        self.check(("--payload", "block=full"), (0, 1, 4096), lambda size: None)

    def test_full(self):
        self.check(("--payload", "full"), SIZES, lambda size: 4 << 20)

    def test_full_without_sleepable(self):
        self.check(("--payload", "full", "--without", "sleepable"), SIZES[::3] + SIZES[-1:],
                   lambda size: 4 << 20)

    def test_full_with_perf_links(self):
        self.check(("--payload", "full", "--without", "multi"), SIZES[::3] + SIZES[-1:],
                   lambda size: 4 << 20)

    def test_larger_than_any(self):
        """What no node sends is cut at 4 MiB."""
        self.check(("--payload", "full"), ((4 << 20) - 1, 4 << 20, (4 << 20) + 1, 5_000_000),
                   lambda size: 4 << 20)

    def test_cut(self):
        for limit in (1, 63, 64, 65, 511, 512, 513, 4095, 4096, 4097, 100_000):
            with self.subTest(limit=limit):
                self.check(("--payload", limit),
                           sorted({0, 1, limit - 1, limit, limit + 1, 3_999_900}),
                           lambda size: limit)

    def test_without_dynptr(self):
        """The largest record of constant size is 32 KiB, less a byte."""
        self.check(("--payload", "full", "--without", "dynptr"),
                   (0, 1, 510, 511, 512, 513, 4094, 4095, 4096, 4097, 32766, 32767, 32768, 32769,
                    65536, 3_999_900), lambda size: 32767)
        self.check(("--payload", 1000, "--without", "dynptr"), (0, 999, 1000, 1001, 40000),
                   lambda size: 1000)


class Types(Case):
    def check_types(self, args, limits, size=5000):
        """limits: what is copied of each type, None for no payload, or False for no event."""
        with self.bridge(*args) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            arrived = truncated = 0
            for kind, limit in limits.items():
                pid, fired = self.fire(sub, 3, size, kind=kind, arrive=0 if limit is False else 3)
                self.assertEqual(fired, {MESSAGE: 3})
                got = self.messages(sub, pid)
                self.assertEqual(len(got), 0 if limit is False else 3, kind)
                arrived += len(got)
                for index, event in enumerate(got):
                    self.check_event(event, pid, index, size, limit, kind=kind)
                    truncated += limit is not None and limit < size
            self.check_account(sub, {MESSAGE: arrived} if arrived else {})
            self.check_stream(sub)
            bridge.stop()
            wait_until(lambda: len(sub.stopped) == 2, what="bridge.stopping")
            counters = next(s for s in sub.stopped if s["socket"] == "high")["counters"][MESSAGE]
            self.assertEqual(counters, {"fired": arrived, "submitted": arrived, "lost": 0,
                                        "faults": 0, "truncated": truncated})

    def test_payload_by_type(self):
        self.check_types(("--payload", "tx=full,block=0"),
                         {"tx": 4 << 20, "block": None, "inv": None, "txx": None, "t": None})
        self.check_types(("--payload", "100,tx=full,block=0,inv=7"),
                         {"tx": 4 << 20, "block": None, "inv": 7, "headers": 100})
        self.check_types(("--payload", "block=0,full"),
                         {"block": None, "tx": 4 << 20, "": 4 << 20, "sendtxrcncl!": 4 << 20})

    def test_message_types(self):
        self.check_types(("--message-types", "inv,tx"),
                         {"inv": None, "tx": None, "block": False, "": False, "inventory": False,
                          "in": False, "INV": False, "tx ": False})
        self.check_types(("--message-types", "sendtxrcncl!"), {"sendtxrcncl!": None,
                                                               "sendtxrcncl": False})

    def test_both(self):
        self.check_types(("--message-types", "inv,tx", "--payload", "1000,tx=full,block=full"),
                         {"inv": 1000, "tx": 4 << 20, "block": False, "headers": False})
        self.check_types(("--payload", "tx=full", "--message-types", "inv,tx"),
                         {"inv": None, "tx": 4 << 20, "block": False})

    def test_without_dynptr(self):
        self.check_types(("--message-types", "inv,tx", "--payload", "tx=full", "--without",
                          "dynptr"), {"inv": None, "tx": 32767, "block": False}, size=40000)

    def test_other_topics_are_not_concerned(self):
        """Rules are for messages; what else happens is told as ever."""
        with self.bridge("--payload", "full", "--message-types", "inv") as bridge, \
                Subscriber(bridge) as sub:
            sub.wait_status()
            with FakeNode("blocks", 3, 200, "--coins", "--wait") as node:
                fired = node.finish()
            sub.wait_ledger(fired)
            self.check_account(sub, fired)
            self.check_stream(sub)
            self.assertEqual(len([e for e in sub.of("block.evictions") if e["complete"]]), 3)


class Trouble(Case):
    def expected(self, node):
        for line in node.lines()[:-1]:
            entry = json.loads(line)
            if entry["probe"] == "net:inbound_message":
                yield entry["expect"]

    def check_faults(self, *args, exact=True):
        """Payloads that cannot be read, in part or at all, are nil and counted; good ones among
        them are whole."""
        with self.bridge("--payload", "full", *args) as bridge, \
                Subscriber(bridge) as sub:
            sub.wait_status()
            with FakeNode("faults", "--wait-signal", "--linger", 50) as node:
                wait_until(lambda: sub.of("node.started"), 5, "node.started")
                node.go()
                fired = node.finish()
                expected = list(self.expected(node))
            sub.wait_count(MESSAGE, fired[MESSAGE])
            bridge.stop()
            wait_until(lambda: len(sub.stopped) == 2, what="bridge.stopping")
            counters = next(s for s in sub.stopped if s["socket"] == "high")["counters"][MESSAGE]
            events = sub.of(MESSAGE)
            self.assertEqual(len(events), len(expected))
            unreadable = 0
            for k, (event, fields) in enumerate(zip(events, expected)):
                data = fields["data"]
                unreadable += None in event.values()
                self.assertNotIn("truncated", event)
                if event["data"] is None and not exact:
                    continue
                self.assertEqual(event["data"], None if data is None else bytes.fromhex(data),
                                 f"{k}: {fields}")
                if exact:
                    del event["time_us"]
                    self.assertEqual(list(event), list(fields))
            self.assertGreaterEqual(sum(e["data"] is None for e in events), 5)
            self.assertEqual(counters["faults"], unreadable)
            self.assertEqual(counters["truncated"], 0)

    def test_unreadable(self):
        self.check_faults()

    def test_unreadable_without_dynptr(self):
        self.check_faults("--without", "dynptr")

    def test_unreadable_without_sleepable(self):
        """Paged-out memory stays unread."""
        self.check_faults("--without", "sleepable", exact=False)

    def test_ring_too_small(self):
        """A payload for which the ring has no place is lost, and told; those that fit arrive."""
        for extra in ([], ["--without", "dynptr"]):
            with self.subTest(extra=extra), \
                    self.bridge("--payload", "full", "--ring-high", "32K" if extra else "64K",
                                *extra) as bridge, Subscriber(bridge) as sub:
                sub.wait_status()
                large = 32000 if extra else 100_000
                for size, fits in ((3000, True), (large, False), (3000, True), (large, False)):
                    before = sub.lost.get(MESSAGE, 0)
                    pid, fired = self.fire(sub, 4, size, "--rate", 100)
                    got = self.messages(sub, pid)
                    if fits:
                        for index, event in enumerate(got):
                            self.check_event(event, pid, index, size, 4 << 20)
                    self.assertEqual(len(got), 4 if fits else 0)
                    wait_until(lambda: sub.lost.get(MESSAGE, 0) - before == (0 if fits else 4), 5,
                               "the loss")
                self.check_account(sub, {MESSAGE: 16})
                self.check_stream(sub)
                self.assertEqual(sub.lost, {MESSAGE: 8})

    def test_ring_space(self):
        """24 bytes of payload take no more of the ring than the rest of their record, or the smallest of three
        sizes; never what the largest would."""
        size = 1 << 20
        for extra, most in (([], 600), (["--without", "dynptr"], 1100)):
            with self.subTest(extra=extra), \
                    self.bridge("--payload", "full", "--ring-high", size, *extra) as bridge, \
                    Subscriber(bridge) as sub:
                sub.wait_status()
                bridge.send(signal.SIGSTOP)
                with FakeNode("burst", 10000, "--probe", "message", "--size", 24, "--wait") as node:
                    fired = node.finish()
                bridge.send(signal.SIGCONT)
                sub.wait_ledger(fired)
                self.check_account(sub, fired)
                self.assertGreater(sub.lost[MESSAGE], 0)
                self.assertLessEqual(size / sub.count[MESSAGE], most)

    def test_ring_full(self):
        """The bridge stands still while more comes than the ring holds: what arrives is exact."""
        with self.bridge("--payload", "full", "--ring-high", "1M") as bridge, \
                Subscriber(bridge) as sub:
            sub.wait_status()
            bridge.send(signal.SIGSTOP)
            with FakeNode("burst", 500, "--probe", "message", "--size", 10_000, "--wait",
                          "--threads", 4) as node:
                fired = node.finish()
            bridge.send(signal.SIGCONT)
            sub.wait_ledger(fired)
            self.check_account(sub, fired)
            self.check_stream(sub)
            self.assertGreater(sub.lost[MESSAGE], 300)
            got = self.messages(sub, node.pid)
            self.assertGreater(len(got), 90)
            for event in got:
                index, thread = struct.unpack("<QI", event["data"][:12])
                self.check_event(event, node.pid, index, 10_000, 4 << 20, thread=thread)
                self.assertEqual(event["peer_id"], index)

    def test_never_another_message(self):
        """Four threads, sizes that end anywhere in a slice, long ones after short ones."""
        for extra in ([], ["--without", "dynptr"]):
            limit = 32767 if extra else 4 << 20
            with self.subTest(extra=extra), \
                    self.bridge("--payload", "full", *extra) as bridge, Subscriber(bridge) as sub:
                sub.wait_status()
                total = 0
                for size, count in ((20_000, 1200), (13, 4000), (777, 4000), (70_001, 200),
                                    (4159, 2000)):
                    total += count
                    pid, fired = self.fire(sub, count, size, "--threads", 4)
                    got = self.messages(sub, pid)
                    self.assertEqual(len(got), count)
                    seen = set()
                    tails = [payload(pid, t, 0, size)[8:limit] for t in range(4)]
                    for event in got:
                        index, thread = struct.unpack("<QI", (event["data"] + bytes(12))[:12])
                        self.assertEqual(event["peer_id"], index)
                        self.assertTrue(event["data"][8:] == tails[thread], (size, thread, index))
                        seen.add((thread, index))
                    self.assertEqual(len(seen), count)
                self.check_account(sub, {MESSAGE: total})
                self.check_stream(sub)
                self.assertEqual(sub.lost, {})


class Journal(Case):
    def test_replay_of_the_largest(self):
        """Byte for byte what was published, whatever its size; a later subscriber has it all."""
        with self.bridge("--payload", "full") as bridge, \
                Subscriber(bridge, raw=True) as sub:
            sub.wait_status()
            lives = [(size, *self.fire(sub, 2, size)) for size in (3_999_900, 10, 1_000_000, 65_537,
                                                                   3_999_900, 0)]
            events = []

            def deliver(_socket, topic, message):
                if topic == MESSAGE:
                    events.extend((message["pid"], e) for e in message["events"])
            late = CompleteSubscriber(bridge.port, since=0, deliver=deliver)
            with late:
                wait_until(lambda: len(events) >= 12 or late.errors, 20, "all of them from replay")
            self.assertEqual((late.errors, late.gone), ([], []))
            self.assertEqual(len(events), 12)
            for k, (pid, event) in enumerate(events):
                size, own, _ = lives[k // 2]
                self.assertEqual(pid, own)
                self.check_event(event, pid, k % 2, size, 4 << 20)
            published = [e for e in sub.of(MESSAGE)]
            self.assertTrue([dict(e) for e in published] == [e for _, e in events])

    def test_replay_beyond_a_loss_notice(self):
        """One that stands at the place of a message larger than an answer: asking again leads beyond both."""
        with self.bridge("--payload", "full", "--ring-high", "2M") as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            for count, size in ((1, 100), (1, 3_000_000), (1, 1_500_000), (3, 100)):
                self.fire(sub, count, size)  # the second one has no place in the ring
            self.assertEqual((sub.count[MESSAGE], sub.lost), (5, {MESSAGE: 1}))
            late = CompleteSubscriber(bridge.port, since=0)
            with late:
                wait_until(lambda: late.count.get(MESSAGE) == 5 or late.errors, 20, "all of them from replay")
            self.assertEqual((late.errors, late.gone, late.lost[MESSAGE]), ([], [], 1))

    def test_journal_smaller_than_a_message(self):
        """Published all the same, and what replay cannot have it does not claim."""
        with self.bridge("--payload", "full", "--journal-high", "4M", "--journal-low", "4M") \
                as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            pid, _ = self.fire(sub, 3, 3_999_900)
            for index, event in enumerate(self.messages(sub, pid)):
                self.check_event(event, pid, index, 3_999_900, 4 << 20)
            pid, _ = self.fire(sub, 3, 100)
            for index, event in enumerate(self.messages(sub, pid)):
                self.check_event(event, pid, index, 100, 4 << 20)
            self.check_account(sub, {MESSAGE: 6})
            self.check_stream(sub)
            time.sleep(1.2)
            status = sub.status("high")
            self.assertIn(status["replay"], ("ok", "degraded", "off"))
            self.assertIsNone(bridge.process.poll())

    def test_journal_goes_round(self):
        """More than it holds: the oldest go, publishing goes on, nothing is lost. Plain, to keep pace:
        what waits in the ring must not be more than the journal holds."""
        with self.bridge("--payload", "full", "--journal-high", "32M", "--journal-low", "16M", sanitized=False) \
                as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            pid, _ = self.fire(sub, 40, 3_999_900, "--rate", 15)
            got = self.messages(sub, pid)
            self.assertEqual(len(got), 40)
            for index, event in enumerate(got):
                self.check_event(event, pid, index, 3_999_900, 4 << 20)
            self.check_account(sub, {MESSAGE: 40})
            wait_until(lambda: sub.status("high")["n"] == 40, 3, "a status after it")
            status = sub.status("high")
            self.assertEqual(status["replay"], "ok")
            self.assertTrue(1 < status["held"] <= 40, status)


class Usage(Case):
    def test_refused(self):
        """Exit code 2 and one line that names the option and the value."""
        for option, values in (
                ("--payload", ("", ",", "x", "-1", "4194305", "1e6", "tx", "tx=", "=5", "tx=x",
                               "tx=4194305", "tx=-1", "toolongatype1=5", "tx=full=0", "tx=1,,x",
                               "full,none", "18446744073709551616", "tx=5 x")),
                ("--message-types", ("", ",", "toolongatype1", "inv,toolongatype1",
                                     ",".join(f"t{i}" for i in range(1000))))):
            for value in values:
                with self.subTest(option=option, value=value[:40]):
                    done = subprocess.run(
                        [tool("coretapd"), "--check", "--binary", FAKE_NODE, option, value],
                        stderr=subprocess.PIPE, text=True, timeout=80)
                    self.assertEqual(done.returncode, 2, done.stderr)
                    self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
                    self.assertIn(option[2:], done.stderr)

    def test_taken(self):
        for args in (("--payload", "0"), ("--payload", "full"), ("--payload", "4M"),
                     ("--payload", "4194304"), ("--payload", "tx=full,block=0,100"),
                     ("--payload", "64K,tx=full"), ("--message-types", "inv"),
                     ("--message-types", "abcdefghijkl,tx")):
            with self.subTest(args=args):
                code = subprocess.run([tool("coretapd"), "--check", "--binary", FAKE_NODE, *args],
                                      stderr=subprocess.DEVNULL, timeout=80).returncode
                self.assertEqual(code, 0)


if __name__ == "__main__":
    main()
