"""The Python client itself: positions, asyncio, callbacks, the mirror of the mempool, histories, tools."""
import asyncio
import base64
import datetime
import http.server
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest.mock

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
CLIENT = os.path.join(ROOT, "clients", "python")
sys.path[:0] = [os.path.join(HERE, "..", "lib"), HERE, CLIENT]
import coretap
from coretap import p2p
import harness
from harness import PATIENCE, Subscriber, TestCase, free_port, main, wait_connected, wait_until
from publisher import RUN, Publisher, made_up

ENVIRONMENT = {**os.environ, "PYTHONPATH": CLIENT}
# A node of our own: a bridge follows any process of its binary, also that of another test.
DIRECTORY = tempfile.TemporaryDirectory()
NODE = os.path.join(DIRECTORY.name, "fake_node")
ADDED, REMOVED, REPLACED = "mempool.added", "mempool.removed", "mempool.replaced"


def setUpModule():
    shutil.copy(harness.FAKE_NODE, NODE)


def Bridge(*args, **options):
    return harness.Bridge(*args, binary=NODE, **options)


def FakeNode(*args):
    return harness.FakeNode(*args, binary=NODE)


def address(port):
    return f"tcp://127.0.0.1:{port}"


def collect(stream, until, seconds=20):
    """Items until one of them satisfies a condition, that one included."""
    items, end = [], time.monotonic() + PATIENCE * seconds
    while time.monotonic() < end:
        item = stream.next(0.1)
        if item is not None:
            items.append(item)
            if until(item):
                return items
    raise AssertionError(f"not within {PATIENCE * seconds} s; the last of {len(items)}: {items[-3:]}")


def events(items):
    return [item for item in items if item.kind == "event"]


class Scripted(TestCase):
    """Against the scripted publisher: needs no privileges."""

    def publisher(self):
        publisher = Publisher(free_port())
        self.addCleanup(publisher.close)
        return publisher

    def subscribe(self, publisher, *topics, used=("low",), **options):
        stream = coretap.subscribe(*(topics or ("mempool.",)), address=address(publisher.port),
                                   **options)
        self.addCleanup(lambda: stream._links and stream.close())
        publisher.wait_client(list(used))
        publisher.status("low", "bridge.status", {"n": 0, "heads": {ADDED: 0, REMOVED: 0}})
        return stream

    def send(self, publisher, first, count, op="send"):
        """Messages of one to three events, numbered and positioned alike."""
        number = first
        while number < first + count:
            size = min(1 + number % 3, first + count - number)
            publisher.step({op: ADDED, "seq": number, "n": number, "events": size})
            number += size

    def test_event(self):
        publisher = self.publisher()
        stream = self.subscribe(publisher)
        publisher.step({"send": REMOVED, "seq": 1, "n": 1, "events": [
            {"time_us": 5_000_000, "txid": b"\1" * 32, "reason": "block", "vsize": None, "fee": -5}]})
        event = stream.next(20)
        self.assertIsInstance(event, coretap.MempoolRemoved)
        self.assertEqual((event.topic, event.node, event.run, event.seq, event.n, event.pid,
                          event.time_us, event.time, event.socket, event.kind),
                         (REMOVED, "conform", RUN, 1, 1, 4242, 5_000_000, 5.0, "low", "event"))
        self.assertEqual((event.txid.hex(), event.reason, event.vsize, event.fee),
                         ("01" * 32, "block", None, -5))
        self.assertNotIn("height", event.fields)
        self.assertIsNone(event.height)  # as its type says
        with self.assertRaises(AttributeError):
            event.hight
        self.assertEqual(json.loads(event.json())["txid"], "01" * 32)
        self.assertIsNone(stream.next(0.05))

    def test_callback_exception_reaches_the_caller(self):
        """It ends run(); calling again goes on behind the event that failed."""
        publisher = self.publisher()
        stream = self.subscribe(publisher)
        self.send(publisher, 1, 5)
        seen = []

        class Ours(Exception):
            pass

        def callback(item):
            seen.append(item.seq)
            if item.seq in (2, 3):
                raise Ours(item.seq)
            if item.seq == 5:
                raise StopIteration
        for expected in (2, 3):
            with self.assertRaises(Ours) as caught:
                stream.run(callback)
            self.assertEqual(caught.exception.args, (expected,))
        with self.assertRaises(StopIteration):
            stream.run(callback)
        self.assertEqual(seen, [1, 2, 3, 4, 5])

    def test_position_is_written_when_the_next_one_is_asked_for(self):
        publisher = self.publisher()
        with tempfile.TemporaryDirectory() as d:
            path = f"{d}/position"

            def next_of(take, finish):
                stream = self.subscribe(publisher, position=path)
                publisher.status("low", "bridge.status", {"n": 30, "heads": {ADDED: 30}})
                taken = [stream.next(20).seq for _ in range(take)]
                finish(stream)
                publisher.wait_client([])
                return taken
            stream = self.subscribe(publisher, position=path)
            self.send(publisher, 1, 10)
            self.assertEqual([stream.next(20).seq for _ in range(4)], [1, 2, 3, 4])
            stream.close()  # without asking for the next one: 4 may not have been done
            publisher.wait_client([])
            self.send(publisher, 11, 20)

            def fail(stream):
                with self.assertRaises(KeyError), stream:
                    raise KeyError

            def leave(stream):
                with stream:
                    pass
            self.assertEqual(next_of(3, fail), [4, 5, 6])
            self.assertEqual(next_of(3, leave), [6, 7, 8])  # left in order: 8 is done
            self.assertEqual(next_of(22, leave), list(range(9, 31)))

    def test_position_damaged(self):
        with tempfile.TemporaryDirectory() as d:
            for text in ("", "{}", "[1]", '{"version":2,"sockets":{}}', "x" * 9000,
                         '{"version":1,"sockets":{"low":{"a":{"run":"1"}}}}'):
                with open(f"{d}/p", "w") as file:
                    file.write(text)
                with self.assertRaisesRegex(ValueError, "not a position"):
                    coretap.subscribe(position=f"{d}/p")
            os.truncate(f"{d}/p", 1 << 40)
            with self.assertRaisesRegex(ValueError, "not a position"):
                coretap.subscribe(position=f"{d}/p")
            os.mkfifo(f"{d}/pipe")
            for path in (f"{d}/pipe", "/dev/zero", d):  # without an end, or any beginning
                with self.assertRaisesRegex(ValueError, f"^{path}: not a regular file"):
                    coretap.subscribe(position=path)

    def test_position_with_many_topics(self):
        """More than fits in a page: written by a new file then, also when it is less again."""
        publisher = self.publisher()
        with tempfile.TemporaryDirectory() as d:
            stream = self.subscribe(publisher, "custom.", position=f"{d}/p", used=("low", "high"))
            topics = [f"custom.{'long_name_' * 4}{i}" for i in range(300)]
            for n, topic in enumerate(topics, 1):
                publisher.step({"send": topic, "seq": 1, "n": n, "events": [{"time_us": n}]})
            collect(stream, lambda e: e.n == 300)
            stream.commit()

            def saved():
                with open(f"{d}/p") as file:
                    node = json.loads(file.read())["sockets"]["low"]["conform"]
                return node["n"], len(node["topics"])
            self.assertEqual(saved(), (300, 300))
            publisher.step({"run": RUN + 10})
            publisher.step({"send": topics[0], "seq": 1, "n": 1, "events": [{"time_us": 1}], "run": RUN + 10})
            collect(stream, lambda e: e.run == RUN + 10 and e.kind == "event")
            stream.commit()
            stream.close()
            self.assertEqual(saved(), (1, 1))

    def test_position_that_cannot_be_written(self):
        """It is told, and costs no event."""
        publisher = self.publisher()
        with tempfile.TemporaryDirectory() as d:
            stream = self.subscribe(publisher, position=f"{d}/later/p")
            self.send(publisher, 1, 3)
            for _ in ("the status", "the first event"):
                with self.assertRaisesRegex(FileNotFoundError, "later/p"):
                    stream.next(20)
            os.mkdir(f"{d}/later")
            self.assertEqual([stream.next(20).seq for _ in range(3)], [1, 2, 3])
            stream.commit()
            with open(f"{d}/later/p") as file:
                self.assertEqual(json.loads(file.read())["sockets"]["low"]["conform"]["n"], 3)

    def test_commit_that_failed(self):
        """The next one writes the position, though there is nothing new to take."""
        publisher = self.publisher()
        with tempfile.TemporaryDirectory() as d:
            os.mkdir(f"{d}/later")
            stream = self.subscribe(publisher, position=f"{d}/later/p")
            self.send(publisher, 1, 2)
            self.assertEqual(stream.next(20).seq, 1)
            os.rename(f"{d}/later", f"{d}/away")
            stream._position.close()  # what is open could still be written
            with self.assertRaises(FileNotFoundError):
                stream.commit()
            os.rename(f"{d}/away", f"{d}/later")
            stream.commit()
            with open(f"{d}/later/p") as file:
                self.assertEqual(json.loads(file.read())["sockets"]["low"]["conform"]["n"], 1)
            self.assertEqual(stream.next(20).seq, 2)

    def test_first_of_a_topic(self):
        """What a status does not list had told nothing until then, in a position too."""
        block = "validation.block_connected"
        for topics, socket, ours in (((block,), "low", block), ((block, "node."), "low", block),
                                     (("utxocache.add", "utxocache.spent"), "high", "utxocache.spent")):
            for live in (False, True):
                with self.subTest(topics, live=live), tempfile.TemporaryDirectory() as d, \
                        Publisher(free_port()) as publisher:
                    def tell(n, heads):
                        publisher.status(socket, "bridge.status", {"n": n, "heads": heads})

                    def start():
                        stream = coretap.subscribe(*topics, address=address(publisher.port), position=f"{d}/p")
                        self.addCleanup(stream.close)
                        publisher.wait_client([socket])
                        return stream
                    stream = start()
                    tell(50, {})
                    wait_until(lambda: (stream.next(0.1), os.path.exists(f"{d}/p"))[1], 10, "the status to be taken")
                    stream.close()
                    publisher.wait_client([])
                    publisher.step({"drop": ours, "seq": 1, "n": 51, "events": [{"time_us": 1}]})
                    stream = start()
                    if live:
                        publisher.step({"send": ours, "seq": 2, "n": 52, "events": [{"time_us": 1}]})
                    else:
                        tell(51, {ours: 1})
                        publisher.step({"send": ours, "seq": 2, "n": 52, "events": [{"time_us": 1}]})
                    items = collect(stream, lambda item: item.topic == ours and item.seq == 2)
                    self.assertEqual([(i.kind, i.seq) for i in items], [("event", 1), ("event", 2)])

    def test_position_and_more_topics(self):
        """A topic that is asked for later is joined at the present: what came before was not missed."""
        publisher = self.publisher()
        run = {"run": RUN + 10}
        with tempfile.TemporaryDirectory() as d:
            stream = self.subscribe(publisher, REMOVED, "node.", position=f"{d}/p")
            publisher.step(run)
            publisher.step({"send": REMOVED, "seq": 1, "n": 1, "events": 1, **run})
            publisher.step({"send": ADDED, "seq": 1, "n": 2, "events": 2, **run})
            publisher.status("low", "bridge.status", {"n": 3, "heads": {ADDED: 2, REMOVED: 1}, **run})
            publisher.step({"send": REMOVED, "seq": 2, "n": 4, "events": 1, **run})
            collect(stream, lambda item: item.kind == "event" and item.seq == 2)
            with stream:
                pass
            publisher.wait_client([])
            stream = coretap.subscribe(REMOVED, ADDED, "node.", address=address(publisher.port), position=f"{d}/p")
            self.addCleanup(stream.close)
            publisher.wait_client(["low"])
            publisher.status("low", "bridge.status", {"n": 4, "heads": {ADDED: 2, REMOVED: 2}, **run})
            publisher.step({"send": ADDED, "seq": 3, "n": 5, "events": 1, **run})
            items = collect(stream, lambda item: item.topic == ADDED)
            self.assertEqual([(item.kind, getattr(item, "seq", 0)) for item in items], [("event", 3)])

    def test_killed_and_resumed(self):
        """kill -9 at any moment: nothing is missed, and only what was in hand may come again."""
        publisher = self.publisher()
        script = ("import coretap, os, sys\n"
                  "for e in coretap.subscribe('mempool.', address=sys.argv[1], position=sys.argv[2]):\n"
                  "    if e.kind not in ('alive', 'stale'): os.write(1, (e.json() + '\\n').encode())\n")
        total = 20000
        with tempfile.TemporaryDirectory() as d, open(f"{d}/out", "ab") as out, \
                open(f"{d}/out", "rb") as written:
            lives, stop = [], threading.Event()

            def send():
                wait_until(lambda: publisher.used() == ["low"], 10)
                publisher.status("low", "bridge.status", {"n": 0, "heads": {ADDED: 0}})
                for first in range(1, total, 100):
                    self.send(publisher, first, 100)
                    time.sleep(0.02)
                while not stop.is_set():
                    publisher.status("low", "bridge.status", {"n": total, "heads": {ADDED: total}})
                    stop.wait(0.2)
            thread = threading.Thread(target=send)
            thread.start()
            try:
                for life in range(12):
                    begin = os.path.getsize(f"{d}/out")
                    process = subprocess.Popen([sys.executable, "-c", script, address(publisher.port),
                                                f"{d}/position"], stdout=out, env=ENVIRONMENT)

                    def text():
                        written.seek(begin)
                        return written.read()
                    if life == 11:
                        wait_until(lambda: f'"seq":{total},'.encode() in text(), 60, "the last event")
                    else:
                        wait_until(text, 20, "an event")
                        time.sleep(random.uniform(0, 0.4))
                    process.kill()
                    process.wait()
                    lives.append([json.loads(line) for line in text().splitlines()])
            finally:
                stop.set()
                thread.join()
            self.assertEqual([e for life in lives for e in life if "notice" in e], [])
            numbers = [[e["seq"] for e in life] for life in lives]
            expected, repeated = 1, 0
            for life in numbers:
                if life[0] == expected - 1:
                    repeated += 1
                    life = life[1:]
                self.assertEqual(life, list(range(expected, expected + len(life))))
                expected += len(life)
            self.assertEqual(expected, total + 1)
            self.assertLessEqual(repeated, 11)

    def test_memory_is_bounded(self):
        for bomb in (b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\x91" * (1 << 20),
                     b"\xdd\x00\xff\xff\xff" * (1 << 17), b"\xc6\xff\xff\xff\xff", b"\x81\xa1a" * 5000):
            with self.assertRaises(coretap.WireError):
                coretap.wire.decode_message(ADDED, bomb)

    def test_addresses_and_topics(self):
        for bad in ("tcp://localhost", "tcp://:1", "tcp://h:65534", "tcp://h:0", "tcp://a b:1",
                    "udp://h:1", "ipc://relative", "", "tcp://::1:5", "tcp://*:1", "tcp://é:1",
                    "tcp://eth0;10.0.0.1:1"):
            with self.assertRaisesRegex(ValueError, "not an address"):
                coretap.subscriber.endpoints(bad)
        self.assertEqual(coretap.subscriber.endpoints("tcp://[::1]:10")["replay"], "tcp://[::1]:12")
        self.assertEqual(coretap.subscriber.endpoints("ipc:///run/coretap/x/")["high"],
                         "ipc:///run/coretap/x/high.sock")
        coretap.subscriber.endpoints("ipc:///" + "a" * 94)
        with self.assertRaisesRegex(ValueError, "too long"):
            coretap.subscriber.endpoints("ipc:///" + "a" * 95)
        for bad in ("mempool", ".x", "mem pool.", "mempool.é", "x" * 100 + ".", b"mempool.", None,
                    ["mempool."]):
            with self.assertRaisesRegex(ValueError, "not a topic"):
                coretap.subscribe(bad)
        for bad in ({"address": ""}, {"memory": -1}, {"memory": "256M"}, {"memory": 1.5},
                    {"position": ""}):
            with self.assertRaisesRegex(ValueError, "address|memory|position"):
                coretap.subscribe(**bad)

    def test_since(self):
        publisher = self.publisher()
        for bad in ("yesterday", -1, float("nan"), True, b"10m", datetime.timedelta(1)):
            with self.assertRaisesRegex(ValueError, "give 30s"):
                coretap.subscribe(since=bad)
        parse = coretap.subscriber.parse_since
        moment = datetime.datetime(2009, 1, 3, 18, 15, 5, tzinfo=datetime.timezone.utc)
        self.assertEqual((parse(moment), parse("9999999d"), parse(1.5), parse("oldest")),
                         (1231006505000000, 0, 1500000, 0))
        self.send(publisher, 1, 30, "drop")
        answer, asked = publisher.answer, []

        def with_since(request):
            if "since" in request:
                asked.append(request["since"])
                request = {**request, "run": RUN, "after": 4}
            return answer(request)
        publisher.answer = with_since
        stream = self.subscribe(publisher, since="oldest")
        publisher.status("low", "bridge.status", {"n": 30, "heads": {ADDED: 30}})
        self.send(publisher, 31, 2)
        items = collect(stream, lambda e: e.n == 32)
        self.assertEqual(asked, [0])
        first = items[0].seq  # whole messages: the one that reaches over the place comes whole
        self.assertLessEqual(first, 5)
        self.assertEqual([e.seq for e in items], list(range(first, 33)))

    def test_since_without_replay(self):
        publisher = self.publisher()
        publisher.mode = "off"
        stream = self.subscribe(publisher, since="1h")
        notice = stream.next(20)
        self.assertIsInstance(notice, coretap.NoReplay)
        self.assertEqual(notice.json(), '{"notice":"no_replay","socket":"low","node":"conform",'
                                        '"reason":"replay is off"}')
        self.assertEqual(str(coretap.NoReplay("low", node="n", reason="\x1b[2J\n\u202e")),
                         r"low socket: n has no replay: \u001b[2J\n\u202e")

    def test_rpc_credentials(self):
        rpc = coretap.RPC("http://al%40ice:p%3Ass@localhost")
        self.assertEqual((rpc.user, rpc.password), ("al@ice", "p:ss"))

    def test_tools_and_what_could_not_be_read(self):
        publisher = self.publisher()
        nil = {"time_us": 1, **dict.fromkeys(("hash", "n_tx", "n_inputs", "sigops", "size", "peer_id", "msg_type"))}
        for tool, topic, more, line in (
                ("connectblock_benchmark.py 0 0 1", "validation.block_connected", {"height": 7, "duration_ns": 9_000_000},
                 "Block 7 (?)  None tx   None ins   None sigops  took    9 ms\n"),
                ("raw_p2p_logger.py", "net.inbound_message", {"data": b"x"},
                 "inbound msg '?' from peer None (?, ?) with None bytes: 78\n")):
            name, *arguments = tool.split()
            with subprocess.Popen([sys.executable, os.path.join(CLIENT, "tools", name), *arguments, "--address",
                                   address(publisher.port)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True, env={**ENVIRONMENT, "PYTHONUNBUFFERED": "1"}) as process:
                socket = "high" if topic.startswith("net.") else "low"
                wait_until(lambda: publisher.used() == [socket], 20, tool)
                publisher.step({"send": topic, "seq": 1, "n": 1, "events": [{**nil, **more}]})
                self.assertIn(line, iter(process.stdout.readline, ""))
                process.send_signal(signal.SIGINT)
                process.stdout.read()
            publisher.wait_client([])

    def test_catalogue_is_current(self):
        subprocess.run([os.path.join(CLIENT, "generate.py"), "--check"], check=True)


class Asyncio(TestCase):
    def test_cancellations(self):
        """Cancelled every 10 ms, with timeouts of 1 ms, events lost on the way: none lost, none twice."""
        publisher, total = Publisher(free_port()), 10000
        self.addCleanup(publisher.close)

        def send():
            for n in range(1, total + 1):
                # Every tenth is dropped and has to be fetched.
                publisher.step({"drop" if n % 10 == 0 and n != total else "send": ADDED,
                                "seq": n, "n": n})
                if n % 100 == 0:
                    time.sleep(0.005)

        async def consume():
            seen, cancelled, timeouts = [], 0, 0
            async with coretap.asubscribe("mempool.", address=address(publisher.port)) as stream:
                first = asyncio.ensure_future(stream.__anext__())
                while publisher.used() != ["low"]:
                    await asyncio.sleep(0.01)
                publisher.status("low", "bridge.status", {"n": 0, "heads": {ADDED: 0}})
                thread = threading.Thread(target=send)
                thread.start()
                seen.append(await first)

                async def reader():
                    nonlocal timeouts
                    while seen[-1].seq < total:
                        try:
                            seen.append(await asyncio.wait_for(stream.__anext__(), 0.001))
                        except asyncio.TimeoutError:
                            timeouts += 1
                while seen[-1].seq < total:
                    task = asyncio.ensure_future(reader())
                    await asyncio.sleep(0.01)
                    while not task.done():
                        task.cancel()
                        await asyncio.wait([task], timeout=0.001)  # wait_for may swallow it
                    cancelled += task.cancelled()
                thread.join()
            return seen, cancelled, timeouts
        seen, cancelled, timeouts = asyncio.run(asyncio.wait_for(consume(), 60 * PATIENCE))
        self.assertEqual([e.seq for e in seen], list(range(1, total + 1)))
        self.assertGreater(cancelled, 30)
        self.assertGreater(timeouts, 0)

    def test_others_get_their_turn(self):
        """A backlog does not keep the loop from others."""
        publisher = Publisher(free_port())
        self.addCleanup(publisher.close)

        async def consume():
            ticks, events = 0, 0

            async def tick():
                nonlocal ticks
                while True:
                    await asyncio.sleep(0)
                    ticks += 1
            async with coretap.asubscribe("mempool.", address=address(publisher.port)) as stream:
                self.assertIsNone(await stream.next(0.2))
                publisher.wait_client(["low"])
                publisher.step({"send": ADDED, "seq": 1, "n": 1, "events": 5000})
                await asyncio.sleep(0.1)
                task = asyncio.ensure_future(tick())
                async for event in stream:
                    events += 1
                    if event.seq == 5000:
                        break
                task.cancel()
            return ticks
        self.assertGreater(asyncio.run(consume()), 50)


class FakeRPC:
    """The node's RPC as far as Mempool uses it: pool() tells txid → (vsize, fee, time)."""

    def __init__(self, pool):
        outer = self
        self.calls, self.failing, self.password = 0, False, "secret"

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.calls += 1
                wanted = "Basic " + base64.b64encode(f"user:{outer.password}".encode()).decode()
                code, answer = 200, {"error": None, "id": request["id"]}
                if self.headers["Authorization"] != wanted:
                    code, answer = 401, {}
                elif outer.failing:
                    code, answer = 500, {"error": {"message": "Loading block index..."}, "result": None}
                else:
                    found = pool()
                    answer["result"] = list(found) if not request["params"][0] else {
                        txid: {"vsize": v, "fees": {"base": f}, "time": t}
                        for txid, (v, f, t) in found.items()}
                # As Core prints amounts: eight decimals, no quotes.
                text = re.sub(r'"base": (\d+)', lambda m: f'"base": {int(m[1]) / 1e8:.8f}',
                              json.dumps(answer)).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_):
                pass
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://user:secret@127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


class Witness:
    """The node's mempool as a stranger sees it, with plain pyzmq, from before the node started."""

    def __init__(self, sub):
        self.sub = sub

    def pool(self, settled=True):
        if settled:  # everything fired before the call has arrived with the second status from now
            count = len(self.sub.statuses)
            wait_until(lambda: len(self.sub.statuses) >= count + 3, 10, "bridge.status")
        with self.sub.lock:
            found = {}
            for e in self.sub.events:
                if e.topic == ADDED:
                    found[e["txid"].hex()] = (e["vsize"], e["fee"], e["time_us"] // 1_000_000)
                elif e.topic == REMOVED:
                    found.pop(e["txid"].hex(), None)
                elif e.topic == "node.exited":
                    found.clear()
        return found


class MirrorOfTheMempool(TestCase):
    def check_same(self, pool):
        found = pool.verify(10 * PATIENCE)
        self.assertEqual((len(found.missing), len(found.surplus)), (0, 0))

    def test_walks(self):
        """Joined in the middle of a random walk: equal to the node's own list at its end."""
        for seed in (1, 2, 3):
            with self.subTest(seed=seed), Bridge() as bridge, \
                    Subscriber(bridge, sockets=("low",)) as sub, tempfile.TemporaryDirectory() as d:
                sub.wait_status()
                witness = Witness(sub)
                path = f"{d}/pool"
                with FakeRPC(witness.pool) as rpc, \
                        FakeNode("walk", 8000, "--seed", seed, "--rate", 8000, "--mempool-out", path,
                                 "--wait", "--hold") as node:
                    sub.wait_count(ADDED, 3000)
                    with coretap.Mempool(coretap.RPC(rpc.url), address=address(bridge.port)) as pool:
                        pool.wait_synced(20)
                        self.assertGreater(len(pool), 20)
                        if seed == 1:
                            self.check_same(pool)
                        while not os.path.exists(path):
                            pool.update(0.1)
                        with open(path) as file:
                            expected = file.read().split()

                        def agrees():
                            pool.update(0.1)
                            return sorted(t.hex() for t in pool.transactions) == expected
                        wait_until(agrees, 20, "the pool of the node")
                        while pool.update(0.5):
                            pass
                        self.assertEqual(sorted(t.hex() for t in pool.transactions), expected)
                        self.assertEqual(pool.syncs, 1)
                        if seed != 1:
                            continue
                        self.check_same(pool)
                        now = witness.pool()
                        self.assertEqual(pool.vsize, sum(v for v, _, _ in now.values()))
                        for txid, (vsize, fee, _) in now.items():
                            self.assertEqual((pool.get(txid).vsize, pool.get(txid).fee), (vsize, fee))
                        buckets = pool.histogram()
                        self.assertEqual(sum(b.transactions for b in buckets), len(pool))
                        self.assertEqual(sum(b.vsize for b in buckets), pool.vsize)
                        # A transaction that it lacks, and one too many.
                        gone = pool.transactions.pop(next(iter(pool.transactions)))
                        pool.transactions[b"\0" * 32] = coretap.Transaction(b"\0" * 32)
                        self.assertEqual(pool.verify(10 * PATIENCE), ({gone.txid}, {b"\0" * 32}))
                        node.stop()
                        wait_until(lambda: not (pool.update(0.1) or pool.transactions), 10, "the node's end")
                        self.assertEqual((len(pool), pool.vsize, pool.synced), (0, 0, True))

    def test_history(self):
        """Why each transaction left, with which block, and after how long."""
        with Bridge() as bridge, Subscriber(bridge, sockets=("low",)) as sub:
            sub.wait_status()
            with FakeRPC(dict) as rpc, \
                    coretap.Mempool(coretap.RPC(rpc.url), address=address(bridge.port)) as pool:
                pool.wait_synced()
                with FakeNode("walk", 5000, "--seed", 9, "--wait") as node:
                    fired = node.finish()
                sub.wait_ledger({t: n for t, n in fired.items() if t.startswith("mempool.")})

                def ended():
                    while (item := pool.next(0.1)) is not None:
                        if item.topic == "node.exited":
                            return True
                    return False
                wait_until(ended, 20, "the node's end")
            last, block, by = {}, None, {}
            for e in sub.events:
                if e.topic == "validation.block_connected":
                    block = e
                elif e.topic == REPLACED:
                    by[e["txid"]] = (e.get("replacement_txid"), e.get("replacement_package"))
                elif e.topic == ADDED:
                    last[e["txid"]] = e
                elif e.topic == REMOVED:
                    tx, added = pool.left.get(e["txid"]), last.get(e["txid"])
                    if tx is None or tx.left_us != e["time_us"]:
                        continue  # it came back
                    self.assertEqual(tx.reason, e["reason"])
                    if e["reason"] in ("block", "conflict"):
                        self.assertEqual((tx.height, tx.block), (block["height"], block["hash"]))
                    if e["reason"] == "replaced":
                        self.assertEqual((tx.replaced_by, tx.replaced_by_package), by[e["txid"]])
                    if added:
                        self.assertAlmostEqual(tx.waited, (e["time_us"] - added["time_us"]) / 1e6)
            reasons = {tx.reason for tx in pool.left.values()}
            self.assertGreaterEqual(reasons, {"block", "conflict", "replaced", "expiry", "sizelimit"})
            self.assertTrue(any(tx.replaced_by_package for tx in pool.left.values()))

    def test_resync(self):
        """Continuity lost, and the RPC out of order meanwhile: told, then exact again."""
        publisher = Publisher(free_port())
        self.addCleanup(publisher.close)
        pool_now = {}

        def tx(n):
            return made_up(ADDED, n)["txid"].hex()
        with FakeRPC(lambda: dict(pool_now)) as rpc, \
                coretap.Mempool(coretap.RPC(rpc.url), address=address(publisher.port)) as pool:
            publisher.wait_client(["low"])
            pool_now[tx(1000)] = (150, 3000, 1600000000)
            publisher.status("low", "bridge.status", {"n": 0, "heads": {ADDED: 0, REMOVED: 0}})
            pool.wait_synced()
            self.assertEqual((pool.get(tx(1000)).fee, pool.get(tx(1000)).entry_time),
                             (3000, 1600000000))
            publisher.step({"send": ADDED, "seq": 1, "n": 1, "events": 3})
            publisher.status("low", "bridge.status", {"n": 3, "heads": {ADDED: 3}})
            wait_until(lambda: (pool.update(0.1), len(pool))[1] >= 4, 10, "what was added")
            self.assertEqual(len(pool), 4)
            # Lost in the kernel: one was added, one was removed.
            rpc.failing = True
            publisher.step({"send": ADDED, "seq": 4, "n": 4, "lost": 1, "events": 1})
            publisher.status("low", "bridge.status", {"n": 4, "heads": {ADDED: 5}})
            told = []
            wait_until(lambda: told.append(pool.next(0.1)) or not pool.synced, 5, "resyncing")
            self.assertFalse(pool.synced)
            with self.assertRaises(RuntimeError):
                pool.verify()
            # What the stream tells while there is no snapshot wins over the snapshot.
            publisher.step({"send": REMOVED, "seq": 1, "n": 5, "events": [
                {**made_up(REMOVED, 2), "txid": bytes.fromhex(tx(2))}]})
            publisher.status("low", "bridge.status", {"n": 5, "heads": {ADDED: 5, REMOVED: 1}})
            wait_until(lambda: (pool.update(0.1), pool.get(tx(2)).left_us)[1], 10, "the removal")
            pool_now = {tx(n): (1, 1, 1) for n in (1, 2, 4, 77)}
            rpc.failing = False
            pool.wait_synced()
            self.assertEqual({t.hex() for t in pool.transactions}, {tx(1), tx(4), tx(77)})
            # A wrong password is an error of the caller's to see.
            rpc.password = "changed"
            publisher.step({"send": ADDED, "seq": 6, "n": 6, "lost": 1, "events": 1})
            reasons = []

            def refused():
                item = pool.next(0.1)
                reasons.append(getattr(item, "reason", ""))
                return any("password" in (r or "") for r in reasons)
            wait_until(refused, 5, "the refusal")
            # The node exits: certain again without any snapshot.
            publisher.step({"send": "node.exited", "seq": 1, "n": 7, "events": [
                {"time_us": 1, "binary": "b", "build_id": "", "started_at": 1, "core": ""}]})
            pool.wait_synced()
            self.assertEqual(len(pool), 0)

    def test_new_run_is_told_by_both_sockets(self):
        with coretap.Mempool(lambda *_: {}, address="tcp://127.0.0.1:1", topics=("net.",)) as pool:
            pool._become_synced()
            pool._apply(coretap.NewRun("high", node="node", run=RUN + 1, old_run=RUN))
            self.assertTrue(pool.synced)
            pool._apply(coretap.NewRun("low", node="node", run=RUN + 1, old_run=RUN))
            self.assertFalse(pool.synced)

    def test_memory_while_there_is_no_rpc(self):
        """It may be away for weeks; what the stream told meanwhile is in what it says in the end."""
        rpc, listed = unittest.mock.Mock(side_effect=coretap.RPCError("away")), bytes([3] * 32)
        with coretap.Mempool(rpc, address="tcp://127.0.0.1:1", verbose=False, history=0) as pool, \
                unittest.mock.patch("coretap.mempool.MAX_TOUCHED", 100):
            for n in range(1, 1001):
                txid = n.to_bytes(32, "big")
                pool._apply(mempool_event("added", n, txid=txid, vsize=1, fee=1))
                pool._apply(mempool_event("removed", n, txid=txid, reason="expiry"))
                pool._snapshot()
                self.assertLessEqual((len(pool._touched), len(pool)), (101, 0))
            rpc.side_effect = lambda *_: [listed.hex()]
            pool._snapshot()
            self.assertEqual((set(pool.transactions), pool.synced), ({listed}, True))

    def test_verify_that_fails(self):
        """The node that ends meanwhile is no difference; and nothing is kept on for it."""
        publisher = Publisher(free_port())
        self.addCleanup(publisher.close)
        exited = {"send": "node.exited", "seq": 1, "n": 1, "events": [
            {"time_us": 1, "binary": "b", "build_id": "", "started_at": 1, "core": ""}]}

        def beat():
            while not done.wait(0.1):
                publisher.status("low", "bridge.status", {"n": 1, "heads": {ADDED: 0}})

        def ends(*_):
            publisher.step(exited)
            thread.start()
            return ["aa" * 32]

        def fails(*_):
            raise coretap.RPCError("no")
        done, answers = threading.Event(), [lambda *_: ["aa" * 32], fails, ends]
        thread = threading.Thread(target=beat)
        with coretap.Mempool(lambda *call: answers.pop(0)(*call), address=address(publisher.port), verbose=False) as pool:
            publisher.wait_client(["low"])
            publisher.status("low", "bridge.status", {"n": 0, "heads": {ADDED: 0, REMOVED: 0}})
            pool.wait_synced()
            with self.assertRaisesRegex(coretap.RPCError, "no"):
                pool.verify()
            self.assertIsNone(pool._touched)
            with self.assertRaisesRegex(RuntimeError, "the node ended"):
                pool.verify(60)
            done.set()
            thread.join()

    def test_block_of_ten_thousand(self):
        """All of them reach the mirror."""
        with Bridge() as bridge, FakeRPC(dict) as rpc, \
                coretap.Mempool(coretap.RPC(rpc.url), address=address(bridge.port)) as pool:
            pool.wait_synced()
            taken = []
            with FakeNode("blocks", 1, 10000, "--wait", "--hold") as node:
                end = time.monotonic() + 60
                while len(taken) < 10000 and time.monotonic() < end:
                    item = pool.next(0.1)
                    if item is None:
                        continue
                    if item.topic == "validation.block_connected":
                        began, fired = time.monotonic(), item.time
                    elif item.topic == REMOVED:
                        taken.append(item)
                seconds, late = time.monotonic() - began, time.time() - fired
                node.stop()
            self.assertEqual(len(taken), 10000)
            print(f"# 10,000 evictions: {seconds:.3f} s from the block's arrival, "
                  f"{late:.3f} s from its connection")


class Live(TestCase):
    """With the bridge and the simulated node."""

    def test_stopped_subscriber_ends_complete(self):
        """Stopped while far more comes than may wait for it: the rest is fetched."""
        count = 300000
        script = ("import coretap, sys\n"
                  "n = 0\n"
                  "for e in coretap.subscribe('mempool.', address=sys.argv[1], memory=1 << 20):\n"
                  "    if e.kind != 'event': print(e.json(), flush=True); continue\n"
                  "    assert e.seq == n + 1, (e, n)\n"
                  "    n += 1\n"
                  "    if n == 1 or n == int(sys.argv[2]): print(n, flush=True)\n")
        with Bridge("--subscriber-memory", "1M", "--journal-low", "128M", "--journal-high", "16M") as bridge, \
                Subscriber(bridge, sockets=("low",), keep=False) as sub, \
                tempfile.TemporaryFile() as out:
            sub.wait_status()
            process = subprocess.Popen([sys.executable, "-c", script, address(bridge.port), str(count)],
                                       stdout=out, env=ENVIRONMENT)

            def told():
                return os.pread(out.fileno(), 1 << 16, 0).decode().split("\n")[:-1]
            wait_connected(process, bridge.port)
            with FakeNode("burst", 1, "--probe", "removed", "--wait") as node:
                node.finish()
            wait_until(lambda: told() == ["1"], 10, "the first event")
            process.send_signal(signal.SIGSTOP)
            with FakeNode("burst", count - 1, "--probe", "removed", "--wait", "--rate", 150000) as node:
                node.finish()
            time.sleep(1)
            process.send_signal(signal.SIGCONT)
            began = time.monotonic()
            try:
                wait_until(lambda: str(count) in told() or process.poll() is not None, 60, "the end")
                self.assertIsNone(process.poll())
            finally:
                process.kill()
                process.wait()
            print(f"# {count} events after a stop: {time.monotonic() - began:.1f} s")
            self.assertEqual([line for line in told() if "gap" in line or "lost" in line], [])

    def test_asyncio_under_load(self):
        with Bridge() as bridge:
            async def consume():
                seen = []
                async with coretap.asubscribe("mempool.", address=address(bridge.port)) as stream:
                    await stream.next(2.5)  # by then it has joined
                    node = FakeNode("burst", 50000, "--probe", "added", "--wait", "--rate", 20000)

                    async def reader():
                        while len(seen) < 50000:
                            item = await stream.__anext__()
                            if item.kind == "event":
                                seen.append(item.seq)
                    while len(seen) < 50000:
                        task = asyncio.ensure_future(reader())
                        await asyncio.wait([task], timeout=0.01)
                        task.cancel()
                        await asyncio.gather(task, return_exceptions=True)
                    node.finish()
                    node.out.close()
                return seen
            seen = asyncio.run(asyncio.wait_for(consume(), 60 * PATIENCE))
            self.assertEqual(seen, list(range(1, 50001)))

    def test_new_run(self):
        """A bridge without --keep-attached is killed: the old run's tail, then the new run, whole."""
        with Bridge(keep=True) as first, Subscriber(first, sockets=("low",), keep=False) as sub:
            stream = coretap.subscribe("mempool.", address=address(first.port))
            self.addCleanup(stream.close)
            self.assertIsNone(stream.next(2.5))
            with FakeNode("burst", 500, "--probe", "added", "--wait") as node:
                node.finish()
            wait_until(lambda: getattr(stream.next(0.2), "seq", 0) >= 100, 10, "the first events")
            sub.wait_count(ADDED, 500)
            first.kill()
        with Bridge(name=first.name, port=first.port):
            with FakeNode("burst", 700, "--probe", "added", "--wait") as node:
                node.finish()
            items = self.until_new_run(stream, 700)
        kinds = [i.kind for i in items if i.kind not in ("stale", "alive", "stopping")]
        at = kinds.index("new_run")
        self.assertEqual(set(kinds), {"event", "new_run"})
        told = events(items)
        self.assertEqual([e.seq for e in told][-700:], list(range(1, 701)))
        self.assertEqual(told[at - 1].seq, 500)

    def test_bridge_killed_again_and_again(self):
        """With --keep-attached: every firing once and in order, across kill -9 of the bridge."""
        name, port = f"p{os.getpid()}", free_port()

        def bridge():
            return Bridge("--keep-attached", name=name, port=port, keep=True)

        def detach():
            subprocess.run([harness.tool("coretapd"), "--detach", "--name", name, "--binary",
                            NODE], stderr=subprocess.DEVNULL)
            shutil.rmtree(f"/run/coretap/{name}", ignore_errors=True)
        self.addCleanup(detach)
        running, seen, notices, stop = bridge(), [], [], threading.Event()

        def take():
            with coretap.subscribe(REMOVED, address=address(port)) as stream:
                while not stop.is_set():
                    item = stream.next(0.1)
                    if item is not None:
                        (seen if item.kind == "event" else notices).append(item)
        thread = threading.Thread(target=take)
        thread.start()
        try:
            time.sleep(1.5)
            with FakeNode("burst", 10000000, "--probe", "removed", "--wait", "--rate", 20000) as node:
                for _ in range(5):
                    time.sleep(random.uniform(0.1, 0.6))
                    running.kill()
                    time.sleep(random.uniform(0, 0.3))
                    running = bridge()
                time.sleep(0.3)
                fired = node.stop()[REMOVED]
            wait_until(lambda: len(seen) >= fired, 20, f"{fired} events")
            time.sleep(0.3)
        finally:
            stop.set()
            thread.join()
            running.stop()
        self.assertEqual([n.kind for n in notices if n.kind not in ("stale", "alive", "stopping")], [])
        self.assertEqual([e.seq for e in seen], list(range(1, fired + 1)))
        self.assertEqual({int.from_bytes(e.txid[24:], "big") + 1 - e.seq for e in seen}, {0})

    def until_new_run(self, stream, last):
        items = []

        def done(item):
            items.append(item)
            return item.kind == "event" and item.seq == last and \
                any(i.kind == "new_run" for i in items)
        return collect(stream, done, 30)

    def test_tools(self):
        """Each prints what it promises."""
        tools = {
            "mempool_monitor.py": [r"^\d\d:\d\d:\d\dZ added [0-9a-f]{64} with feerate [\d.]+ sat/vB "
                                   r"\(\d+ sat, \d+ vbytes\)$",
                                   r"^\S+ removed .* received -?[\d.]+ seconds ago: \w+$",
                                   r"^\S+ replaced .* with [0-9a-f]{64} with feerate",
                                   r"^\S+ rejected [0-9a-f]{64}: \S"],
            "p2p_monitor.py": [r"^from peer \d+ \S+ \(\S+\): \w+, \d+ byte$", r"^to   peer"],
            "raw_p2p_logger.py --decode": [r"^inbound msg '\w+' from peer \d+ \(\S+, \S+\) with 8 bytes: "
                                           r"[0-9a-f]{16}$", r"^outbound msg"],
            "utxo_logger.py": [r"^Added   [0-9a-f]{64}:\d+ +\d+ +\d+ (Yes|No)$", r"^Spent ", r"^Uncache "],
            "utxo_flush_logger.py": [r"^\d+ +(PERIODIC|IF_NEEDED) +\d+ +[\d.]+ kB +(True|False)"],
            "connectblock_benchmark.py 0 0 0": [r"^BENCH +\d+ blk/s", r"Histogram"],
        }
        with Bridge("--payload", "full") as bridge, tempfile.TemporaryDirectory() as d:
            running = {}
            for tool in tools:
                name, *arguments = tool.split()
                out = open(f"{d}/{name}", "wb+")
                running[tool] = out, subprocess.Popen(
                    [sys.executable, os.path.join(CLIENT, "tools", name), *arguments, "--address",
                     address(bridge.port)], stdout=out, stderr=subprocess.STDOUT)
                self.addCleanup(running[tool][1].kill)  # of none that has ended in good order
            time.sleep(2.5)
            with FakeNode("run", "--wait", "--seconds", 5, "--rate", 1000, "--block-interval", 1,
                          "--coins", "--seed", 5) as node:
                node.finish()
            time.sleep(1)
            for tool, (out, process) in running.items():
                process.send_signal(signal.SIGINT)
                self.assertEqual(process.wait(40), 0, tool)
                out.seek(0)
                text = out.read().decode()
                out.close()
                for pattern in tools[tool]:
                    with self.subTest(tool=tool, pattern=pattern):
                        self.assertTrue(re.search(pattern, text, re.MULTILINE), text[:2000])
                self.assertNotIn("Traceback", text)

    def test_readme(self):
        """Its example runs as it stands."""
        with open(os.path.join(CLIENT, "README.md")) as file:
            text = file.read()
        self.assertLess(len(text.splitlines()), 120)
        example = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
        self.assertLessEqual(len(example.splitlines()), 12)
        with Bridge(port=28370), tempfile.TemporaryDirectory() as d, \
                tempfile.TemporaryFile() as out:
            process = subprocess.Popen([sys.executable, "-u", "-c", example], cwd=d, stdout=out,
                                       stderr=subprocess.STDOUT, env=ENVIRONMENT)
            try:
                wait_connected(process, 28370)
                with FakeNode("walk", 500, "--wait") as node:
                    node.finish()
                wait_until(lambda: re.search(r"^[0-9a-f]{64} ", os.pread(
                    out.fileno(), 1 << 20, 0).decode(), re.MULTILINE), 10, "a line")
                self.assertIsNone(process.poll())
            finally:
                process.kill()
                process.wait()

    def test_replacement_history(self):
        """The command, against an account kept by hand."""
        with Bridge() as bridge, Subscriber(bridge, sockets=("low",)) as sub, \
                tempfile.TemporaryFile() as out:
            sub.wait_status()
            process = subprocess.Popen([sys.executable, "-u", "-m", "coretap", "replacement_history",
                                        "--address", address(bridge.port)], stdout=out,
                                       stderr=subprocess.STDOUT, env=ENVIRONMENT)
            wait_connected(process, bridge.port)
            with FakeNode("walk", 8000, "--seed", 21, "--wait") as node:
                fired = node.finish()
            sub.wait_ledger({t: n for t, n in fired.items() if t.startswith("mempool.")})
            expected, lines = self.replaced(sub.events)
            wait_until(lambda: os.pread(out.fileno(), 1 << 26, 0).count(b"\n") >= lines, 20, "all lines")
            time.sleep(1)  # and no more
            process.terminate()
            process.wait(40)
            told = [json.loads(line) for line in os.pread(out.fileno(), 1 << 26, 0).splitlines()]
        got = {t["txid"]: ({o["txid"] for s in t["steps"] for o in s["victims"]}, t["vsize_relayed"])
               for t in told}
        self.assertGreater(len(expected), 50)
        self.assertTrue(any(len(t["steps"]) > 2 for t in told))
        self.assertTrue(any(s["package"] and len(s["txids"]) == 2 for t in told for s in t["steps"]))
        self.assertEqual(got, expected)

    def replaced(self, seen):
        """Who replaced whom, kept as a relation: victims of each confirmed transaction, transitively. And how
        often one was confirmed."""
        by, expected, packages, arriving, confirmed = {}, {}, {}, None, 0
        for e in seen:
            if e.topic == REPLACED:
                package = e.get("replacement_package")
                by.setdefault(package or e["replacement_txid"], {})[e["txid"]] = e["vsize"]
                arriving = (package, e["replacement_vsize"]) if package else None
            elif e.topic == ADDED and arriving and arriving[1] > 0:
                packages[e["txid"]] = arriving[0]
                arriving = (arriving[0], arriving[1] - e["vsize"])
            elif e.topic == REMOVED and e["reason"] == "block":
                victims, ahead = {}, [e["txid"]]
                while ahead:
                    txid = ahead.pop()
                    for victim, vsize in {**by.get(txid, {}), **by.get(packages.get(txid), {})}.items():
                        if victim not in victims:
                            victims[victim] = vsize
                            ahead.append(victim)
                if victims:
                    confirmed += 1
                    expected[e["txid"].hex()] = ({v.hex() for v in victims},
                                                 sum(victims.values()) + e["vsize"])
        return expected, confirmed


def mempool_event(name, n, **fields):
    make = coretap.CATALOGUE[f"mempool.{name}"][0]
    fields = {k: v * 32 if isinstance(v, bytes) and len(v) == 1 else v for k, v in fields.items()}
    return make(f"mempool.{name}", "node", RUN, n, n, 1, n, fields)


class Replacements(TestCase):
    """Trees that others got wrong."""

    def feed(self, *rows):
        self.history, done = coretap.ReplacementHistory(), []
        for n, (name, fields) in enumerate(rows, 1):
            confirmed = self.history.feed(mempool_event(name, n, **fields))
            if confirmed:
                done.append(confirmed)
        return done

    def replaced(self, victim, by, vsize=100, fee=1000, package=False, by_vsize=100):
        key = "replacement_package" if package else "replacement_txid"
        return ("replaced", {"txid": victim, "vsize": vsize, "fee": fee, "entry_time": 1, key: by,
                             "replacement_vsize": by_vsize, "replacement_fee": 5000})

    def removed(self, txid, reason="replaced", vsize=100):
        return ("removed", {"txid": txid, "reason": reason, "vsize": vsize, "fee": 9000,
                            "entry_time": 1, "height": 7})

    def added(self, txid, vsize=100):
        return ("added", {"txid": txid, "vsize": vsize, "fee": 9000})

    def test_chain(self):
        """A is replaced by B, B by C, and C is confirmed: twice, not once."""
        done = self.feed(self.added(b"A"), self.replaced(b"A", b"B", 100, 1000), self.removed(b"A"),
                         self.added(b"B", 110), self.replaced(b"B", b"C", 110, 2000),
                         self.removed(b"B"), self.added(b"C", 120), self.removed(b"C", "block", 120))
        self.assertEqual(len(done), 1)
        c = done[0]
        self.assertEqual((c.replacements, c.vsize_replaced, c.vsize_relayed, c.height), (2, 210, 330, 7))
        self.assertEqual([[v.txid[:1] for v in s.victims] for s in c.steps], [[b"A"], [b"B"]])
        self.assertEqual([s.victims[0].fee for s in c.steps], [1000, 2000])
        self.assertIs(self.history.of(b"C" * 32), c)
        self.assertIsNone(self.history.of(b"A" * 32))

    def test_two_parents_with_children(self):
        """One transaction replaces two parents and their children: one step, each victim once."""
        done = self.feed(*(self.added(t) for t in (b"P", b"Q", b"p", b"q")),
                         *(self.replaced(t, b"X") for t in (b"P", b"p", b"Q", b"q")),
                         *(self.removed(t) for t in (b"P", b"p", b"Q", b"q")),
                         self.added(b"X"), self.removed(b"X", "block"))
        self.assertEqual((done[0].replacements, len(done[0].steps[0].victims),
                          done[0].vsize_relayed), (1, 4, 500))

    def test_package(self):
        """A package's hash is no txid: what is added right after it are its transactions."""
        done = self.feed(self.added(b"A"), self.replaced(b"A", b"H", package=True, by_vsize=300),
                         self.removed(b"A"), self.added(b"B", 100), self.added(b"C", 200),
                         self.added(b"D", 50), self.removed(b"B", "block"),
                         self.removed(b"C", "block", 200), self.removed(b"D", "block"))
        self.assertEqual([(c.txid[:1], c.replacements) for c in done],
                         [(b"B", 1), (b"C", 1), (b"D", 0)])
        step = done[0].steps[0]
        self.assertEqual((step.package, step.txids), (b"H" * 32, (b"B" * 32, b"C" * 32)))
        self.assertNotIn(b"H" * 32, step.txids)

    def test_package_that_was_lost(self):
        """What is added after a loss came in nobody's place."""
        self.feed(self.added(b"A"), self.replaced(b"A", b"H", package=True, by_vsize=300), self.removed(b"A"))
        self.history.feed(coretap.Gap("low", "mempool.added", "node", run=RUN, first=2, last=3))
        self.assertIsNone(self.history.feed(mempool_event("added", 9, txid=b"X", vsize=200, fee=1)))
        found = self.history.feed(mempool_event("removed", 10, txid=b"X", reason="block", vsize=200, fee=1))
        self.assertEqual((found.replacements, found.vsize_relayed, self.history.incomplete), (0, 200, True))


class P2P(TestCase):
    TX = ("01000000000102fff7f7881a8099afa6940d42d1e7f6362bec38171ea3edf433541db4e4ad969f000000004948"
          "30450221008b9d1dc26ba6a9cb62127b02742fa9d754cd3bebf337f7a55d114c8e5cdd30be022040529b194ba3"
          "f9281a99f2b1c0a19c0489bc22ede944ccf4ecbab4cc618ef3ed01eeffffffef51e1b804cc89d182d279655c3a"
          "a89e815b1b309fe287d9b2b55d57b90ec68a0100000000ffffffff02202cb206000000001976a9148280b37df3"
          "78db99f66f85c95a783a76ac7a6d5988ac9093510d000000001976a9143bde42dbee7e4dbe6a21b2d50ce2f016"
          "7faa815988ac000247304402203609e17b84f6a7d30c80bfa610b5b4542f32a8a0d5447a12fb1366d7f01cc44a"
          "0220573a954c4518331561406f90300e8f3358f51928d43c212a8caed02de67eebee0121025476c2e83188368d"
          "a1ff3e292e7acafcdb3566bb0ad253f62fc70f07aeee635711000000")  # BIP 143's example
    HEADER = ("0100000000000000000000000000000000000000000000000000000000000000000000003ba3edfd7a7b12"
              "b27ac72c3e67768f617fc81bc3888a51323a9fb8aa4b1e5e4a29ab5f49ffff001d1dac2b7c")  # genesis
    TXID = "e8151a2af31c368a35053ddd4bdb285a8595c769a3ad83e0fa02314a602d4609"

    def setUp(self):
        try:
            import bitcoin.core  # noqa: F401
        except ImportError:
            self.skipTest("wants python3-bitcoinlib")

    def test_transaction(self):
        tx = p2p.decode("tx", bytes.fromhex(self.TX))
        self.assertEqual((tx.txid.hex(), tx.size, tx.vsize, tx.lock_time), (self.TXID, 343, 261, 17))
        self.assertEqual([(i.txid.hex()[:8], i.vout) for i in tx.inputs],
                         [("9f96ade4", 0), ("8ac60eb9", 1)])
        self.assertEqual([o.value for o in tx.outputs], [112340000, 223450000])

    def test_block_and_headers(self):
        header, tx = bytes.fromhex(self.HEADER), bytes.fromhex(self.TX)
        genesis = "000000000019d6689c085ae165831e934ff763ae46a2a6c172b3f1b60a8ce26f"
        block = p2p.decode("block", header + b"\2" + tx + tx)
        self.assertEqual((block.header.hash.hex(), [t.txid.hex() for t in block.transactions]),
                         (genesis, [self.TXID] * 2))
        self.assertEqual([h.hash.hex() for h in p2p.decode("headers", b"\2" + 2 * (header + b"\0"))],
                         [genesis] * 2)
        compact = p2p.decode("cmpctblock", header + b"\5" + bytes(7) + b"\2" + b"abcdef" + b"ghijkl" +
                             b"\2" + b"\0" + tx + b"\1" + tx)
        self.assertEqual((compact.nonce, compact.short_ids), (5, (b"abcdef", b"ghijkl")))
        self.assertEqual([i for i, _ in compact.prefilled], [0, 2])

    def test_small_messages(self):
        self.assertEqual(p2p.decode("ping", b"\1" + bytes(7)), 1)
        self.assertIsNone(p2p.decode("ping", b""))
        self.assertEqual(p2p.decode("feefilter", (1000).to_bytes(8, "little")), 1000)
        self.assertEqual(p2p.decode("inv", b"\1\1\0\0\0" + bytes(range(32))),
                         ((1, bytes(range(31, -1, -1))),))
        one = (5).to_bytes(4, "little") + (9).to_bytes(8, "little")
        self.assertEqual([a[2:] for a in p2p.decode(
            "addr", b"\2" + one + bytes(10) + b"\xff\xff\x7f\0\0\1" + b"\x20\x8d" +
            one + b"\x20\1\x0d\xb8" + bytes(11) + b"\1" + b"\x20\x8d")],
            [("ipv4", "127.0.0.1", 8333), ("ipv6", "2001:db8::1", 8333)])
        # BIP 155's own example of a Tor v3 address.
        onion = "pg6mmjiyjmcrsslvykfwnntlaru7p5svn6y2ymmju6nubxndf4pscryd.onion"
        key = bytes.fromhex("79bcc625184b05194975c28b66b66b0469f7f6556fb1ac3189a79b40dda32f1f")
        self.assertEqual([a[2:] for a in p2p.decode(
            "addrv2", b"\2" + b"\5\0\0\0" + b"\x09" + b"\4\x20" + key + b"\x20\x8d" +
            b"\5\0\0\0" + b"\x09" + b"\x63\3abc" + b"\0\1")],
            [("onion", onion, 8333), ("99", b"abc".hex(), 1)])

    def test_hostile_payloads(self):
        """Cut, prolonged, random: DecodeError, quickly."""
        payloads = {"tx": bytes.fromhex(self.TX),
                    "block": bytes.fromhex(self.HEADER) + b"\1" + bytes.fromhex(self.TX),
                    "inv": b"\1\1\0\0\0" + bytes(32), "feefilter": bytes(8), "ping": bytes(8)}
        for kind, payload in payloads.items():
            for cut in range(1, len(payload)):
                with self.assertRaises(p2p.DecodeError):
                    p2p.decode(kind, payload[:cut])
            with self.assertRaises(p2p.DecodeError):
                p2p.decode(kind, payload + b"\0")
        generator = random.Random(1)
        for _ in range(3000):
            kind = generator.choice(list(p2p.DECODERS))
            data = generator.randbytes(generator.randrange(200))
            if generator.random() < 0.3:
                data = b"\xff" * 9 + data
            try:
                p2p.decode(kind, data)
            except p2p.DecodeError:
                pass
        with self.assertRaises(KeyError):
            p2p.decode("nonsense", b"")

    def test_origin(self):
        """Who sent it first, what it spends, which of its parents are in the pool."""
        tx = p2p.decode("tx", bytes.fromhex(self.TX))
        origins = p2p.Origins()

        def message(peer, time_us):
            return coretap.NetInboundMessage("net.inbound_message", "node", RUN, 1, 1, 1, time_us, {
                "peer_id": peer, "addr": f"peer{peer}", "connection_type": "inbound",
                "msg_type": "tx", "size": 343, "data": bytes.fromhex(self.TX)})
        parent = mempool_event("added", 1, txid=tx.inputs[1].txid, vsize=1, fee=1)
        self.assertIsNone(origins.feed(parent))
        self.assertIsNone(origins.feed(message(7, 100)))
        self.assertIsNone(origins.feed(message(8, 150)))
        added = mempool_event("added", 300, txid=tx.txid, vsize=1, fee=1)
        origin = origins.feed(added)
        self.assertEqual((origin.peer_id, origin.addr, origin.delay_us, origin.parents),
                         (7, "peer7", 200, (tx.inputs[1].txid,)))
        # The node's own: a peer that sends it afterwards is not where it came from.
        for first, second in ((added, message(9, 400)), (message(9, 400), added)):
            origins = p2p.Origins()
            self.assertEqual((origins.feed(first), origins.feed(second)), (None, None))


if __name__ == "__main__":
    main()
