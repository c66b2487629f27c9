"""Every client, against the same scripted publisher and the same golden frames, prints the same lines.

Scripts are in scripts/NAME.json (see publisher.py), what a client must print in scripts/NAME.jsonl.
The wording of a malformed message's reason is each client's own and not compared. With UPDATE=1 in
the environment the Python client's lines are written instead: look at the difference.
"""
import contextlib
import glob
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import msgpack

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "lib"))
sys.path.insert(0, HERE)
from harness import ROOT, TestCase, free_port, main, need_node, tool, wait_until
from publisher import HIGH, RUN, Publisher

PYTHON = os.path.join(ROOT, "clients", "python")
MEMORY = 200 << 20  # bytes that no client needs, whatever it is sent
JAVASCRIPT = os.path.join(ROOT, "clients", "js", "tail.js")


class Client:
    """A command that prints JSON lines: tail [TOPIC...] --json --address A."""

    def __init__(self, name, command, environment=()):
        self.name = name
        self.command = command
        self.environment = {**os.environ, **dict(environment)}

    def missing(self):
        """Why this client cannot run here, or None."""
        if not shutil.which(self.command[0]) or \
                any("/" in word and not os.path.exists(word) for word in self.command):
            return f"{' '.join(self.command)}: not built"
        if self.name == "javascript":
            try:
                need_node()
            except unittest.SkipTest as skip:
                return str(skip)
        return None


C = Client("c", [tool("coretap"), "tail"])
CLIENTS = [C, Client("python", ["/usr/bin/python3", "-m", "coretap", "tail"],
                     {"PYTHONPATH": PYTHON}.items()),
           Client("javascript", ["node", JAVASCRIPT])]


class Tail:
    """A running client. lines() is what it has printed, as JSON texts."""

    def __init__(self, client, port, topics, *options):
        self.out, self.errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [*client.command, *topics, "--json", "--address", f"tcp://127.0.0.1:{port}", *options],
            stdin=subprocess.DEVNULL, stdout=self.out, stderr=self.errors, env=client.environment)

    def lines(self):
        size = os.fstat(self.out.fileno()).st_size
        return os.pread(self.out.fileno(), size, 0).decode().split("\n")[:-1]

    def log(self):
        return os.pread(self.errors.fileno(), 1 << 20, 0).decode(errors="replace")

    def memory(self):
        """The most that it ever had resident, in bytes."""
        with open(f"/proc/{self.process.pid}/status") as status:
            return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(80)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if kind:
            print(f"--- {self.log()[-3000:]}", file=sys.stderr)
        self.out.close()
        self.errors.close()


def throttle(port, to, rate):
    """Passes connections to a port on to another, what comes back at so many bytes a second (0: all)."""
    listener = socket.create_server(("127.0.0.1", port))

    def pump(source, sink, rate):
        passed, begin = 0, time.monotonic()
        with contextlib.suppress(OSError):
            while data := source.recv(8192):
                # Of the time that it was idle nothing is made up for.
                begin = max(begin, time.monotonic() - passed / rate - 0.2) if rate else begin
                sink.sendall(data)
                passed += len(data)
                time.sleep(max(0, begin + passed / rate - time.monotonic()) if rate else 0)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def accept():
        with contextlib.suppress(OSError):
            while True:
                near, far = listener.accept()[0], socket.socket()
                far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
                far.connect(("127.0.0.1", to))
                for ends in ((near, far, 0), (far, near, rate)):
                    threading.Thread(target=pump, args=ends, daemon=True).start()
    threading.Thread(target=accept, daemon=True).start()
    return listener


def stops(lines):
    return [json.loads(line)["socket"] for line in lines if line.startswith('{"notice":"stopping"')]


def without_reason(line):
    notice = json.loads(line)
    if notice.get("notice") != "malformed":
        return line
    notice.pop("reason")
    return json.dumps(notice, separators=(",", ":"))


def by_socket(lines):
    """Order holds within a socket, not between them."""
    def socket_of(line):
        fields = json.loads(line)
        return fields.get("socket") or ("high" if fields.get("topic") in HIGH else "low")
    return sorted(map(without_reason, lines), key=socket_of)


class Conformance(TestCase):
    maxDiff = 4000

    def tail(self, client, script):
        used = script.get("sockets", ["low"])
        stopped = sum(next(iter(step)) == "stopping" for step in script["steps"])
        with Publisher(free_port()) as publisher, \
                Tail(client, publisher.port, script["topics"]) as tail:
            publisher.printed = lambda: len(tail.lines())
            publisher.play(script["steps"], used)
            publisher.end(used)
            wait_until(lambda: len(stops(tail.lines())) >= stopped + len(used),
                       script.get("seconds", 5), "the end of the script")
            memory = tail.memory()
            tail.stop()
            self.assertEqual(tail.process.returncode, 0, tail.log())
            return tail.lines(), memory

    def scripts(self, client):
        missing = client.missing()
        if missing:
            self.skipTest(missing)
        update = os.environ.get("UPDATE") and client.name == "python"
        for path in sorted(glob.glob(os.path.join(HERE, "scripts", "*.json"))):
            with open(path) as file:
                script = json.load(file)
            name = os.path.basename(path)[:-5]
            if os.environ.get("SCRIPT", name) != name:
                continue
            with self.subTest(script=name, client=client.name):
                lines, memory = self.tail(client, script)
                got = by_socket(lines)
                if update:
                    with open(f"{path}l", "w") as file:
                        file.write("".join(f"{line}\n" for line in got))
                with open(f"{path}l") as file:
                    self.assertEqual(got, file.read().splitlines())
                if "sanitized" not in client.command[0]:
                    self.assertLess(memory, MEMORY, "memory")

    def test_scripts_c(self):
        self.scripts(C)

    def test_scripts_python(self):
        self.scripts(CLIENTS[1])

    def test_scripts_javascript(self):
        self.scripts(CLIENTS[2])

    def sessions(self, *sessions):
        """What each client tells in each of several lives with one position, as short texts: a life is
        the topics asked for, the steps, and how many lines come."""
        for client in CLIENTS:
            if client.missing():
                continue
            with Publisher(free_port()) as publisher, tempfile.TemporaryDirectory() as d:
                lives = []
                for topics, steps, count in sessions:
                    used = ["high" if topics[0] in HIGH else "low"]
                    with Tail(client, publisher.port, topics, "--position", f"{d}/p") as tail:
                        publisher.play([s for s in steps if "drop" not in s], used)
                        wait_until(lambda: len(tail.lines()) >= count, 15, f"{count} lines")
                        tail.process.send_signal(signal.SIGTERM)
                        tail.process.wait(30)
                        lives.append([self.short(line) for line in tail.lines()])
                    wait_until(lambda: not publisher.used(), 10, "the client's end")
                    for step in steps:
                        if "drop" in step:
                            publisher.step(step)
                yield client.name, lives

    @staticmethod
    def short(line):
        item = json.loads(line)
        if item.get("notice") in ("gap", "lost"):
            return f"{item['notice']} {item['node']} {item['topic']} {item['first']}-{item['last']}"
        return item.get("notice") or f"{item['node']} {item['topic']} {item['seq']}"

    def test_position_of_two_nodes(self):
        """Of a merged stream each node goes on where it was."""
        added, two = "mempool.added", {"node": "two", "run": RUN - 99}
        begin = {"status": "low", "n": 0, "heads": {added: 0}, "replay": "off"}
        for client, lives in self.sessions(
                (["mempool"], [{**begin, "node": "one"}, {**begin, **two}, {"replay": "off"},
                               {"send": added, "seq": 1, "n": 1, "node": "one"},
                               {"send": added, "seq": 1, "n": 1, **two}], 2),
                (["mempool"], [{"send": added, "seq": 3, "n": 3, "node": "one"},
                               {"send": added, "seq": 3, "n": 3, **two}], 4)):
            with self.subTest(client=client):
                self.assertEqual(lives[1], [text for node in ("one", "two") for text in
                                            (f"gap {node} {added} 2-2", f"{node} {added} 3")])

    def test_position_of_many_nodes(self):
        """Of a node that is called otherwise each time it is started, its container's host name being another."""
        added = "mempool.added"

        def said(seq, n, *numbers):
            return [{"send": added, "seq": seq, "n": n, "node": f"n{i}", "run": RUN + i} for i in numbers]
        for client, lives in self.sessions((["mempool"], said(1, 1, *range(16)), 16),
                                           (["mempool"], said(5, 9, 15, 16), 3)):
            with self.subTest(client=client):
                self.assertEqual(lives[1], [f"gap n15 {added} 2-4", f"n15 {added} 5", f"n16 {added} 5"])

    def test_position_in_a_run_whose_beginning_is_gone(self):
        """Each topic of a new run begins with 1, also for who was killed before the first status."""
        added, removed = "mempool.added", "mempool.removed"
        for client, lives in self.sessions(
                (["mempool"], [{"status": "low", "n": 0, "heads": {added: 0, removed: 0}},
                               {"send": added, "seq": 1, "n": 1}], 1),
                (["mempool"], [{"run": RUN + 1}, {"send": added, "seq": 6, "n": 11},
                               {"drop": removed, "seq": 6, "n": 12}], 3),
                (["mempool"], [{"send": added, "seq": 7, "n": 13}], 3)):
            with self.subTest(client=client):
                self.assertEqual(lives[1:], [
                    ["new_run", f"gap conform {added} 1-5", f"conform {added} 6"],
                    [f"gap conform {removed} 1-5", f"conform {removed} 6", f"conform {added} 7"]])

    def test_position_without_a_topic_for_a_while(self):
        """What replay has of a topic is no gap because it was not asked for in between."""
        for one, other in (("mempool.added", "mempool.removed"), ("utxocache.add", "utxocache.spent")):
            name = "high" if one in HIGH else "low"

            def status(n, of_one, of_other):
                return {"status": name, "n": n, "heads": {one: of_one, other: of_other}}
            for client, lives in self.sessions(
                    ([one, other], [status(0, 0, 0), {"send": one, "seq": 1, "n": 1},
                                    {"send": other, "seq": 1, "n": 2}], 2),
                    ([one], [status(2, 1, 1), {"send": other, "seq": 2, "n": 3},
                             {"send": one, "seq": 2, "n": 4}], 1),
                    ([one, other], [status(4, 2, 2), {"send": other, "seq": 3, "n": 5},
                                    {"send": one, "seq": 3, "n": 6}], 3)):
                with self.subTest(client=client, socket=name):
                    self.assertEqual(lives[2], [f"conform {other} 2", f"conform {other} 3",
                                                f"conform {one} 3"])

    def test_a_thousand_runs(self):
        """The tail of the last run is fetched, however many earlier ones replay holds."""
        added = "mempool.added"
        for client in CLIENTS:
            if client.missing():
                continue
            with self.subTest(client=client.name), Publisher(free_port()) as publisher, \
                    Tail(client, publisher.port, ["mempool"]) as tail:
                for run in range(RUN - 1100, RUN):
                    publisher.journal.append(("low", run, 1, 1, added.encode(), b""))
                    publisher.heads[run] = {added: 1}
                publisher.play([{"status": "low", "n": 0, "heads": {added: 0}},
                                {"send": added, "seq": 1, "n": 1}, {"drop": added, "seq": 2, "n": 2},
                                {"run": RUN + 1}, {"send": added, "seq": 1, "n": 1}], ["low"])
                wait_until(lambda: len(tail.lines()) >= 4, 15, "four lines")
                self.assertEqual(list(map(self.short, tail.lines())),
                                 [f"conform {added} 1", f"conform {added} 2", "new_run", f"conform {added} 1"])

    def test_many_long_topics(self):
        """A request has at most 4,096 bytes, else it costs the connection."""
        names = [f"decl.{'x' * 80}{i:02}" for i in range(60)]
        for client in CLIENTS:
            if client.missing():
                continue
            with self.subTest(client=client.name), Publisher(free_port()) as publisher, \
                    Tail(client, publisher.port, names) as tail:
                publisher.play([{"status": "low", "n": 0, "heads": {names[0]: 0}}] +
                               [{op: names[0], "seq": i, "n": i, "events": [{"time_us": 1}]}
                                for i, op in ((1, "send"), (2, "drop"), (3, "send"))], ["low", "high"])
                wait_until(lambda: len(tail.lines()) >= 3, 15, "three lines")
                self.assertLessEqual(max(len(msgpack.packb(q)) for q in publisher.requests), 4096)
                self.assertEqual(list(map(self.short, tail.lines())),
                                 [f"conform {names[0]} {i}" for i in (1, 2, 3)])

    def test_slow_way(self):
        """An answer that takes longer than an attempt is asked for in smaller parts."""
        topic, rate = "net.inbound_message", 400_000
        for client in CLIENTS:
            if client.missing():
                continue
            with self.subTest(client=client.name), Publisher(free_port()) as publisher, \
                    contextlib.ExitStack() as stack:
                port = free_port()
                for i in range(3):
                    stack.callback(throttle(port + i, publisher.port + i, rate if i == 2 else 0).close)
                with Tail(client, port, [topic]) as tail:
                    publisher.play([{"status": "high", "n": 0, "heads": {topic: 0}}] + [
                        {op: topic, "seq": i, "n": i, "events": [{"time_us": 1, "data": {"hex": "00" * size}}]}
                        for i, (op, size) in enumerate((("send", 1), *[("drop", 300_000)] * 3, ("send", 1)), 1)],
                        ["high"])
                    wait_until(lambda: len(tail.lines()) >= 5, 20, "five lines")
                    self.assertEqual([self.short(line) for line in tail.lines() if '"stale"' not in line and
                                      '"alive"' not in line], [f"conform {topic} {i}" for i in range(1, 6)])

    def test_unknown_topic_is_told(self):
        """A slip in a topic would be silence for ever."""
        for client in CLIENTS:
            for topics, slips in ((["mempool.remov", "mempool.removed"], ["mempool.remov"]),
                                  (["Mempool.", "bridge.status", "mempool"], ["Mempool."]), ([], [])):
                with self.subTest(client=client.name, topics=topics):
                    if client.missing():
                        self.skipTest(client.missing())
                    with Publisher(free_port()) as publisher, \
                            Tail(client, publisher.port, topics) as tail:
                        wait_until(publisher.used, 30, "a subscriber")
                        wait_until(lambda: tail.log().count("no topic of") >= len(slips), 30, "a word")
                        tail.stop()
                        told = [line for line in tail.log().splitlines() if "no topic of" in line]
                        self.assertEqual([line.split(": ")[1].rstrip(".") for line in told],
                                         [slip.rstrip(".") for slip in slips])

    def golden(self, client):
        if client.missing():
            self.skipTest(client.missing())
        frames, expected = [], []
        for path in sorted(glob.glob(os.path.join(ROOT, "protocol", "golden", "*.hex"))):
            topic = os.path.basename(path)[:-4]
            if topic.startswith("bridge."):
                continue  # their form is that of a notice here
            with open(path) as file:
                frames.append(("high" if topic in HIGH else "low", topic, file.read()))
            with open(f"{path[:-3]}json") as file:
                expected += file.read().splitlines()
        self.assertGreater(len(frames), 20)
        steps = [{"raw": socket, "frames": [topic.encode().hex(), "".join(body.split())]}
                 for socket, topic, body in frames]
        lines, _ = self.tail(client, {"topics": [], "sockets": ["low", "high"], "steps": steps})
        events = [line for line in lines if not line.startswith('{"notice"')]
        self.assertEqual(by_socket(events), by_socket(expected))

    def test_golden_c(self):
        self.golden(C)

    def test_golden_python(self):
        self.golden(CLIENTS[1])

    def test_golden_javascript(self):
        self.golden(CLIENTS[2])


if __name__ == "__main__":
    main()
