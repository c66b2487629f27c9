"""Every client, against the same scripted publisher and the same golden frames, prints the same lines.

Scripts are in scripts/NAME.json (see publisher.py), what a client must print in scripts/NAME.jsonl.
The wording of a malformed message's reason is each client's own and not compared. With UPDATE=1 in
the environment the Python client's lines are written instead: look at the difference.
"""
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "lib"))
sys.path.insert(0, HERE)
from harness import ROOT, TestCase, free_port, main, need_node, tool, wait_until
from publisher import HIGH, Publisher

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
    def socket(line):
        fields = json.loads(line)
        return fields.get("socket") or ("high" if fields.get("topic") in HIGH else "low")
    return sorted(map(without_reason, lines), key=socket)


class Conformance(TestCase):
    maxDiff = 4000

    def tail(self, client, script):
        used = script.get("sockets", ["low"])
        stopped = sum(next(iter(step)) == "stopping" for step in script["steps"])
        with Publisher(free_port()) as publisher, \
                Tail(client, publisher.port, script["topics"]) as tail:
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
