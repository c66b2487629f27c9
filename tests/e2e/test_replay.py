"""The replay socket: what it gives is what was published, and no request or reader harms it."""
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time

import msgpack
import zmq

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import FAKE_NODE, Bridge, FakeNode, Subscriber, TestCase, free_port, main, wait_until
from replay import Refused, Replay

NOW_US = 1000000


def rss_kib(pid):
    """Anonymous memory: neither the rings nor the journal, which are mapped files."""
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("RssAnon"))


class ReplayCase(TestCase):
    def setUp(self):
        self.context = zmq.Context()
        self.addCleanup(self.context.destroy, 0)

    def replay(self, bridge, timeout_ms=8000):
        return Replay(self.context, f"tcp://127.0.0.1:{bridge.port + 2}", timeout_ms)

    def dealer(self, bridge, receive=1000):
        s = self.context.socket(zmq.DEALER)
        s.setsockopt(zmq.RCVHWM, receive)
        s.setsockopt(zmq.LINGER, 0)
        s.connect(f"tcp://127.0.0.1:{bridge.port + 2}")
        return s

    def pages(self, replay, limit=10000, **request):
        """All pages from a cursor or a time on: (headers, messages)."""
        headers, messages = [], []
        while len(headers) < limit:
            header, page = replay.ask(op="replay", **request)
            self.assertLessEqual(sum(len(t) + len(b) for t, b in page[:-1]),
                                 min(1 << 20, request.get("max", 1 << 20)))
            headers.append(header)
            messages += page
            if header["next"] is None:
                break
            self.assertGreaterEqual(header["next"], request.get("after", 0))
            request.pop("since", None)
            request.update(run=header["run"], after=header["next"])
        return headers, messages

    def run_blocks(self, sub, *args):
        with FakeNode("blocks", 5, 1500, "--unseen", 2, "--conflicts", 2, "--coins", "--wait",
                      *args) as node:
            fired = node.finish()
        sub.wait_ledger(fired)
        wait_until(lambda: sub.of("node.exited"), 5, "node.exited")
        return fired


class Answers(ReplayCase):
    def test_byte_for_byte(self):
        """What replay gives from the very beginning is what a subscriber got."""
        with Bridge() as bridge, Subscriber(bridge, raw=True) as sub:
            sub.wait_status()
            self.run_blocks(sub)
            replay = self.replay(bridge)
            run = sub.runs[0]
            for name in ("low", "high"):
                published = [(t, b) for s, t, b in sub.messages if s == name and "bridge." not in t]
                headers, messages = self.pages(replay, socket=name, run=run, after=0)
                self.assertEqual(len(messages), len(published))
                for (topic, body), (topic_then, body_then) in zip(messages, published):
                    self.assertEqual(topic, topic_then)
                    self.assertEqual(msgpack.unpackb(body), body_then)
                self.assertEqual({h["gone"] for h in headers}, {0})
                self.assertEqual({h["run"] for h in headers}, {run})
                self.assertEqual(headers[-1]["head"], sub.next_n[(run, name)] - 1)
                for most in (20_000, 1 << 40):
                    smaller, same = self.pages(replay, socket=name, run=run, after=0, max=most)
                    self.assertTrue(same == messages, most)
                    self.assertEqual(len(smaller) > len(headers), most < 1 << 20)
                one = self.pages(replay, limit=100, socket=name, run=run, after=0, max=0)[1]
                self.assertEqual(one, messages[:100])

    def test_the_very_bytes(self):
        with Bridge() as bridge:
            subs = {}
            for offset, name in enumerate(("low", "high")):
                subs[name] = self.context.socket(zmq.SUB)
                subs[name].setsockopt(zmq.RCVHWM, 0)
                subs[name].subscribe(b"")
                subs[name].connect(f"tcp://127.0.0.1:{bridge.port + offset}")
            with Subscriber(bridge) as sub:
                sub.wait_status()
                for s in subs.values():
                    s.recv_multipart()
                self.run_blocks(sub)
                replay, run = self.replay(bridge), sub.runs[0]
                for name, s in subs.items():
                    frames = []
                    while s.poll(100):
                        parts = s.recv_multipart()
                        if not parts[0].startswith(b"bridge."):
                            frames.append((parts[0].decode(), parts[1]))
                    self.assertEqual(self.pages(replay, socket=name, run=run, after=0)[1], frames)

    def test_from_any_cursor(self):
        """The first message reaches over the cursor or begins right after it; nothing lacks."""
        with Bridge() as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            self.run_blocks(sub)
            replay, run = self.replay(bridge), sub.runs[0]
            head = sub.next_n[(run, "low")] - 1
            chance = random.Random(5)
            for after in [0, 1, head - 1, head, head + 1, 2 ** 64 - 1] + \
                    [chance.randrange(head) for _ in range(300)]:
                header, messages = replay.ask(op="replay", socket="low", run=run, after=after)
                self.assertEqual((header["head"], header["gone"]), (head, 0))
                if after >= head:
                    self.assertEqual((messages, header["next"]), ([], None))
                    continue
                at = after + 1
                for i, (_, body) in enumerate(messages):
                    body = msgpack.unpackb(body)
                    if i:
                        self.assertEqual(body["n"], at)
                    else:
                        self.assertTrue(body["n"] <= at < body["n"] + len(body["events"]), after)
                    at = body["n"] + len(body["events"])
                self.assertEqual(at - 1, header["next"] or head)

    def test_since(self):
        with Bridge() as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            times = []
            for _ in range(4):
                with FakeNode("burst", 3000, "--wait") as node:
                    times.append(time.time_ns() // 1000)
                    node.finish()
                time.sleep(0.05)
            sub.wait_count("mempool.removed", 12000)
            replay = self.replay(bridge)
            events = sub.of("mempool.removed")
            chance = random.Random(6)
            for since in [0, *times, *(chance.choice(events)["time_us"] for _ in range(30))]:
                _, messages = self.pages(replay, socket="low", since=since)
                got = [(body["seq"] + i, e["time_us"]) for topic, raw in messages
                       for body in [msgpack.unpackb(raw)] if topic == "mempool.removed"
                       for i, e in enumerate(body["events"])]
                wanted = [e.seq for e in events if e["time_us"] >= since]
                self.assertEqual([n for n, t in got if t >= since], wanted)
                self.assertLessEqual(len(got), len(wanted) + 256)  # the message it falls into
            late = time.time_ns() // 1000 + 10 * NOW_US
            header, messages = replay.ask(op="replay", socket="low", since=late)
            self.assertEqual((messages, header["next"], header["run"]), ([], None, sub.runs[0]))

    def test_since_with_losses(self):
        """Loss notices have no time: they must not hide what came before them."""
        with Bridge("--ring-low", "8K") as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            for _ in range(4):
                with FakeNode("burst", 20000, "--wait") as node:
                    node.finish()
                time.sleep(1.1)  # the tail loss is told
            wait_until(lambda: sub.count["mempool.removed"] + sub.lost.get("mempool.removed", 0) ==
                       80000, 5, "all accounted for")
            self.assertTrue(sub.lost["mempool.removed"])
            replay = self.replay(bridge)
            events = sub.of("mempool.removed")
            for event in events[::max(1, len(events) // 40)] + [events[-1]]:
                _, messages = self.pages(replay, socket="low", since=event["time_us"])
                numbers = {msgpack.unpackb(raw)["n"] + i for _, raw in messages
                           for i in range(len(msgpack.unpackb(raw)["events"]))}
                wanted = {e.n for e in events if e["time_us"] >= event["time_us"]}
                self.assertEqual(len(wanted - numbers), 0, f"of {len(wanted)}")

    def test_topics(self):
        with Bridge() as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            self.run_blocks(sub)
            replay, run = self.replay(bridge), sub.runs[0]

            def topics(*prefixes, name="low"):
                _, messages = self.pages(replay, socket=name, run=run, after=0,
                                         topics=list(prefixes))
                counts = {}
                for topic, raw in messages:
                    counts[topic] = counts.get(topic, 0) + len(msgpack.unpackb(raw)["events"])
                return counts
            every = {t: n for t, n in sub.count.items() if not t.startswith("utxocache.")}
            self.assertEqual(topics(), every)
            self.assertEqual(topics(""), every)
            self.assertEqual(topics("mempool."), {t: n for t, n in every.items()
                                                  if t.startswith("mempool.")})
            self.assertEqual(topics("mempool.added", "block."),
                             {t: every[t] for t in ("mempool.added", "block.evictions")})
            self.assertEqual(topics("nothing."), {})
            self.assertEqual(topics("utxocache.spent", name="high"),
                             {"utxocache.spent": sub.count["utxocache.spent"]})

    def test_gone_is_exact(self):
        with Bridge("--journal-low", "1M", "--journal-high", "1M") as bridge, \
                Subscriber(bridge, keep=False) as sub:
            sub.wait_status()
            with FakeNode("burst", 200000, "--wait") as node:
                sub.wait_ledger(node.finish())
            wait_until(lambda: sub.count.get("node.exited"), 5)
            replay, run = self.replay(bridge), sub.runs[0]
            wait_until(lambda: sub.status("low")["n"] == 200002, 3)
            held = sub.status("low")["held"]
            self.assertGreater(held, 1000)
            for after in (0, 1, 1000, held - 2, held - 1, held):
                headers, messages = self.pages(replay, socket="low", run=run, after=after)
                gone = max(0, held - 1 - after)
                self.assertEqual(headers[0]["gone"], gone)
                first = msgpack.unpackb(messages[0][1])
                self.assertTrue(first["n"] <= after + gone + 1 < first["n"] + len(first["events"]))
                if gone:
                    self.assertEqual(first["n"], held)
            info = replay.ask(op="hello")[0]["runs"][-1]
            self.assertEqual((info["run"], info["low"]), (run, {"first": held, "last": 200002}))
            self.assertEqual(info["topics"]["mempool.removed"], 200000)

    def test_hello_and_catalogue(self):
        with Bridge() as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            with FakeNode("burst", 1000, "--wait") as node:
                node.finish()
            sub.wait_count("node.exited", 1)
            replay = self.replay(bridge)
            hello, parts = replay.ask(op="hello")
            self.assertEqual(parts, [])
            self.assertEqual((hello["v"], hello["node"], hello["run"]),
                             (1, bridge.name, sub.runs[0]))
            self.assertEqual(hello["runs"], [{
                "run": sub.runs[0], "ended": False, "low": {"first": 1, "last": 1002},
                "high": {"first": 0, "last": 0},
                "topics": {"mempool.removed": 1000, "node.started": 1, "node.exited": 1}}])
            self.assertIn(f"tcp://127.0.0.1:{bridge.port + 2}", hello["endpoints"]["replay"])
            self.assertEqual(hello["probes"]["mempool.removed"]["state"], "ok")
            self.assertTrue(hello["probes"]["mempool.removed"]["sites"])
            self.assertEqual(hello["probes"]["coin_selection.selected_coins"]["state"], "off")
            catalogue = {e["topic"]: e for e in replay.ask(op="catalogue")[0]["events"]}
            self.assertLessEqual(set(hello["probes"]), set(catalogue))
            names = [f["name"] for f in catalogue["mempool.removed"]["fields"]]
            self.assertEqual(names, [k for k in sub.of("mempool.removed")[0] if k != "time_us"] +
                             ([] if "height" in sub.of("mempool.removed")[0] else ["height"]))

    def test_hello_is_utf8(self):
        """Whatever the path of the binary is: else no client in another language could read it."""
        with tempfile.TemporaryDirectory(prefix="coretap ") as directory:
            binary = shutil.copy(FAKE_NODE.encode(), os.fsencode(directory) + b"/caf\xe9")
            with Bridge(binary=os.fsdecode(binary)) as bridge, Subscriber(bridge) as sub:
                sub.wait_status()
                self.assertEqual(self.replay(bridge).ask(op="hello")[0]["binary"], f"{directory}/caf\ufffd")

    def test_loss_notices(self):
        """Losses are replayed where they were told, the tail's too."""
        with Bridge("--ring-low", "4K") as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            with FakeNode("burst", 20000, "--wait") as node:
                node.finish()
            wait_until(lambda: sub.count.get("mempool.removed", 0) +
                       sub.lost.get("mempool.removed", 0) == 20000, 5)
            self.assertTrue(sub.lost["mempool.removed"])
            _, messages = self.pages(self.replay(bridge), socket="low", run=sub.runs[0], after=0,
                                     topics=["mempool.removed"])
            following = 1
            for _, raw in messages:
                body = msgpack.unpackb(raw)
                self.assertEqual(body["seq"], following)
                following = body["seq"] + body.get("lost", 0) + len(body["events"])
            self.assertEqual(following, 20001)

    def test_without_a_journal(self):
        with Bridge("--journal", "none") as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            with FakeNode("burst", 1000, "--wait") as node:
                sub.wait_ledger(node.finish())
            sub.wait_count("node.exited", 1)
            replay, run = self.replay(bridge), sub.runs[0]
            with self.assertRaisesRegex(Refused, "off"):
                replay.ask(op="replay", socket="low", run=run, after=0)
            hello = replay.ask(op="hello")[0]
            self.assertEqual([r["run"] for r in hello["runs"]], [run])
            wait_until(lambda: sub.status("low")["n"] == 1002, 3)
            status = sub.status("low")
            self.assertEqual((status["replay"], status["held"]), ("off", 1003))


class Settling(ReplayCase):
    def test_what_is_about_to_come(self):
        """Asked while coretapd still waits for its subscribers: the start of the node that runs is not gone, nor is
        a reader that counts positions told to go on behind it."""
        port = free_port()
        asked = self.context.socket(zmq.DEALER)
        asked.setsockopt(zmq.RECONNECT_IVL, 5)
        asked.setsockopt(zmq.RCVTIMEO, 60000)
        asked.connect(f"tcp://127.0.0.1:{port + 2}")

        def ask(**request):
            asked.send(msgpack.packb({"v": 1, "id": 1, **request}))
            header, *parts = asked.recv_multipart()
            return msgpack.unpackb(header), parts[1::2]
        with FakeNode("burst", 1, "--wait-signal", "--hold"), Bridge(port=port, ready=False) as bridge:
            hello, _ = ask(op="hello")
            header, bodies = ask(op="replay", socket="low", run=hello["run"], after=0)
            since, later = ask(op="replay", socket="low", since=0)
            self.assertEqual((header["gone"], header["head"]), (0, len(bodies)))
            self.assertEqual((since["gone"], since["head"]), (0, len(later)))
            self.assertEqual(hello["runs"][-1]["topics"].get("node.started", 0), hello["runs"][-1]["low"]["last"])
            bridge.wait_ready()


class Requests(ReplayCase):
    def test_errors(self):
        with Bridge() as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            run = sub.statuses[0]["run"]
            replay = self.replay(bridge)
            good = {"op": "replay", "socket": "low", "run": run, "after": 0}
            self.assertEqual(replay.ask(**good)[0]["next"], None)
            for wrong in ({"op": "other"}, {"op": 1}, {"op": None}, {"op": ""}, {},
                          {**good, "socket": "middle"}, {**good, "socket": 3},
                          {**good, "run": run - 1}, {**good, "run": 2 ** 64 - 1}, {**good, "run": -1},
                          {**good, "run": "1"}, {**good, "run": None}, {**good, "run": 1.5},
                          {**good, "after": "0"}, {**good, "after": -1}, {**good, "after": None},
                          {**good, "topics": "mempool."}, {**good, "topics": [1]},
                          {**good, "topics": {"a": 1}}, {**good, "topics": ["a."] * 65},
                          {"op": "replay", "socket": "low", "since": "now"},
                          {"op": "replay", "socket": "low", "run": run},
                          {"op": "replay", "socket": "low"}, {"op": "replay"}):
                with self.assertRaises(Refused, msg=wrong):
                    replay.ask(**wrong)
            s = self.dealer(bridge)
            for raw in (b"", b"\xc0", b"\x01", b"\x90", b"\x80", b"\x81\xa1v\x02",
                        msgpack.packb({"v": 2, "op": "hello"}), msgpack.packb({"op": "hello"}),
                        msgpack.packb({"v": "1", "op": "hello"}), msgpack.packb([1, 2]),
                        msgpack.packb({"v": 1, "op": "hello"}) + b"\x00",
                        b"\xdf\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff",
                        b"\xdb\xff\xff\xff\xff", b"\x91" * 4000, b"\x81\xa1v" * 1300, b"\xc1"):
                s.send(raw)
                self.assertTrue(s.poll(5000), raw[:20])
                parts = s.recv_multipart()
                self.assertEqual(len(parts), 1)
                self.assertIn("error", msgpack.unpackb(parts[0]), raw[:20])
            self.assertEqual(replay.ask(**good)[0]["next"], None)

    def test_ids_come_back(self):
        with Bridge() as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            s = self.dealer(bridge)
            for value in (0, -1, 2 ** 64 - 1, "text", b"bytes", None, True, 1.5, [1, [2, {"a": b"c"}]],
                          {"k": [1]}, "x" * 3900, list(range(1000))):
                s.send(msgpack.packb({"id": value, "v": 1, "op": "hello"}))
                self.assertTrue(s.poll(5000))
                self.assertEqual(msgpack.unpackb(s.recv_multipart()[0])["id"], value)
            s.send(msgpack.packb({"v": 1, "op": "hello"}))
            self.assertIsNone(msgpack.unpackb(s.recv_multipart()[0])["id"])

    def test_frames(self):
        """REQ, DEALER with and without the empty frame, several frames in front, and too many."""
        with Bridge() as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            question = msgpack.packb({"v": 1, "op": "hello"})
            s = self.dealer(bridge)
            for envelope in ([], [b""], [b"a", b""], [b"a", b"b", b"c"], [question]):
                s.send_multipart([*envelope, question])
                self.assertTrue(s.poll(5000), envelope)
                answer = s.recv_multipart()
                self.assertEqual(answer[:-1], envelope)
                self.assertIn("run", msgpack.unpackb(answer[-1]))
            many = msgpack.packb({"v": 1, "id": 7, "op": "hello"})
            for wrong, envelope, id_, why in (
                    ([b"x"] * 4 + [many], [b"x"] * 3, 7, "at most three frames"),
                    ([b"x"] * 2000, [b"x"] * 3, None, "at most three frames"),
                    ([b""] * 2, [b""], None, "")):
                s.send_multipart(wrong)
                self.assertTrue(s.poll(5000), why)
                answer = s.recv_multipart()
                self.assertEqual(answer[:-1], envelope)
                error = msgpack.unpackb(answer[-1])
                self.assertEqual(error["id"], id_)
                self.assertIn(why, error["error"])

    def test_longest(self):
        """4,096 bytes are answered. One more costs that connection, and nobody else notices."""
        with Bridge() as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            question = {"v": 1, "op": "hello", "id": ""}
            room = 4096 - len(msgpack.packb(question)) - 2  # of a text16's length
            s = self.dealer(bridge)
            monitor = s.get_monitor_socket(zmq.EVENT_DISCONNECTED)
            for length in (room, room + 1):
                request = msgpack.packb({**question, "id": "x" * length})
                self.assertEqual(len(request), 4096 + length - room)
                s.send(request)
                if length == room:
                    self.assertTrue(s.poll(5000))
                    self.assertEqual(msgpack.unpackb(s.recv())["id"], "x" * room)
                    self.assertFalse(monitor.poll(0))
            self.assertTrue(monitor.poll(10000))
            self.assertFalse(s.poll(0))
            s.disable_monitor()
            self.assertIn("run", self.replay(bridge).ask(op="hello")[0])

    def test_random_bytes(self):
        """10,000 requests of noise and of damaged good requests."""
        with Bridge() as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            run = sub.statuses[0]["run"]
            good = [msgpack.packb(q) for q in (
                {"v": 1, "id": 7, "op": "hello"}, {"v": 1, "id": [1], "op": "catalogue"},
                {"v": 1, "id": "a", "op": "replay", "socket": "low", "run": run, "after": 3,
                 "topics": ["mempool.", "node."]},
                {"v": 1, "id": None, "op": "replay", "socket": "high", "since": 1700000000000000})]
            chance = random.Random(7)
            s = self.dealer(bridge, receive=0)
            s.setsockopt(zmq.SNDHWM, 0)
            for i in range(10000):
                if i % 2:
                    request = chance.randbytes(chance.randrange(200))
                else:
                    request = bytearray(chance.choice(good))
                    for _ in range(chance.randrange(1, 4)):
                        request[chance.randrange(len(request))] = chance.randrange(256)
                s.send(bytes(request))
                while s.poll(0):
                    msgpack.unpackb(s.recv_multipart()[0], strict_map_key=False)
            self.assertIn("run", self.replay(bridge).ask(op="hello")[0])


class Readers(ReplayCase):
    def fill(self, bridge, sub, count=200000):
        with FakeNode("burst", count, "--wait") as node:
            sub.wait_ledger(node.finish())
        return sub.runs[0]

    def test_one_that_never_reads(self):
        """It costs less than 10 MiB, which is of the plain one, and others are served."""
        with Bridge("--journal-low", "64M", sanitized=False) as bridge, \
                Subscriber(bridge, keep=False) as sub:
            sub.wait_status()
            run = self.fill(bridge, sub)
            replay = self.replay(bridge)
            self.pages(replay, limit=3, socket="low", run=run, after=0)
            before = rss_kib(bridge.pid)
            silent = self.dealer(bridge, receive=1)
            silent.setsockopt(zmq.RCVBUF, 4096)
            question = msgpack.packb({"v": 1, "op": "replay", "socket": "low", "run": run, "after": 0})
            most = 0
            for _ in range(1000):
                try:
                    silent.send(question, zmq.NOBLOCK)
                except zmq.Again:
                    pass
                time.sleep(0.001)
                most = max(most, rss_kib(bridge.pid))
            self.assertEqual(replay.ask(op="replay", socket="low", run=run, after=0)[0]["run"], run)
            print(f"# a client that never reads: {(most - before) / 1024:.1f} MiB", file=sys.stderr)
            self.assertLess(most - before, 10 * 1024)

    def test_many_clients(self):
        """Fifty at once, all the way through; each gets all of it."""
        with Bridge("--journal-low", "64M") as bridge, \
                Subscriber(bridge, keep=False) as sub:
            sub.wait_status()
            run = self.fill(bridge, sub, 50000)
            results = []

            def client():
                replay = Replay(zmq.Context(), f"tcp://127.0.0.1:{bridge.port + 2}", 10000)
                _, messages = self.pages(replay, socket="low", run=run, after=0,
                                         topics=["mempool."])
                results.append(sum(len(msgpack.unpackb(b)["events"]) for _, b in messages))
                replay.close()
            threads = [threading.Thread(target=client) for _ in range(50)]
            for t in threads:
                t.start()
            for t in threads:
                t.join(240)
            self.assertEqual(results, [50000] * 50)

    def test_the_live_stream_goes_on(self):
        """Clients read history without a pause while 50,000 events a second pass, and reach a
        subscriber all the same, in time that is measured, so the plain one."""
        with Bridge("--journal-low", "64M", "--journal-high", "64M", sanitized=False) as bridge, \
                Subscriber(bridge, keep=False) as sub:
            sub.wait_status()
            run = self.fill(bridge, sub)
            code = ("import sys, zmq, msgpack\n"
                    "s = zmq.Context().socket(zmq.REQ)\n"
                    f"s.connect('tcp://127.0.0.1:{bridge.port + 2}')\n"
                    "after = 0\n"
                    "while True:\n"
                    f"    s.send(msgpack.packb({{'v': 1, 'op': 'replay', 'socket': 'low', 'run': {run}, 'after': after}}))\n"
                    "    after = msgpack.unpackb(s.recv_multipart()[0])['next'] or 0\n"
                    "    print(after, flush=True)\n")
            readers = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
                       for _ in range(2)]
            delays = []
            s = self.context.socket(zmq.SUB)
            s.setsockopt(zmq.RCVHWM, 0)
            s.subscribe(b"mempool.removed")
            s.connect(f"tcp://127.0.0.1:{bridge.port}")
            try:
                with FakeNode("burst", 150000, "--rate", 50000, "--wait") as node:
                    end = time.monotonic() + 3
                    while time.monotonic() < end:
                        if not s.poll(100):
                            continue
                        body = msgpack.unpackb(s.recv_multipart()[1])
                        delays.append(time.time() - body["events"][-1]["time_us"] / 1e6)
                    sub.wait_count("mempool.removed", 200000 + node.finish()["mempool.removed"])
            finally:
                for reader in readers:
                    reader.kill()
                pages = [len(reader.stdout.read().split()) for reader in readers]
            delays.sort()
            self.assertGreater(min(pages), 10)
            print(f"# {pages} pages meanwhile, live delay median {delays[len(delays) // 2] * 1e3:.1f} ms, "
                  f"99 % {delays[len(delays) * 99 // 100] * 1e3:.1f} ms, most {delays[-1] * 1e3:.1f} ms",
                  file=sys.stderr)
            self.assertLess(delays[len(delays) // 2], 1, "it waits for the readers")
            self.check_stream(sub)


if __name__ == "__main__":
    main()
