"""nats-servers of the tests' own, and what a stream has, read by the example's plain NATS client."""
import base64
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

import msgpack

from harness import PATIENCE, ROOT, tool, wait_until

EXAMPLES = os.path.join(ROOT, "clients", "nats", "examples")
sys.path.insert(0, EXAMPLES)
from jetstream import Connection, Pull  # noqa: E402

SERVER = shutil.which("nats-server", path=os.environ["PATH"] + ":/usr/sbin")


def need_nats():
    if not SERVER:
        raise unittest.SkipTest("no nats-server here (make deps-tests)")
    if not os.path.exists(tool("coretap-nats", False)):
        raise unittest.SkipTest("coretap-nats was not built: no libnats here (make deps)")


def free_ports(count):
    ports = []
    while len(ports) < count:
        port = random.randrange(28500, 32000)
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in ports:
            ports.append(port)
    return ports


class Cluster:
    """nats-servers on loopback with JetStream, each to be killed and started again."""

    def __init__(self, count=1, extra=""):
        need_nats()
        self.directory = tempfile.mkdtemp(prefix="coretap-nats-")
        ports = free_ports(3 * count)
        self.clients, self.routes, self.monitors = ports[:count], ports[count:2 * count], ports[2 * count:]
        self.processes = [None] * count
        for i in range(count):
            cluster = "" if count == 1 else (
                f"cluster {{ name: c, listen: '127.0.0.1:{self.routes[i]}', routes: ["
                + ", ".join(f"'nats://127.0.0.1:{r}'" for r in self.routes) + "] }\n")
            with open(self.path(i, "conf"), "w") as file:
                file.write(f"server_name: s{i}\nlisten: '127.0.0.1:{self.clients[i]}'\n"
                           f"http: '127.0.0.1:{self.monitors[i]}'\n{cluster}"
                           f"jetstream {{ store_dir: '{self.path(i, 'store')}', max_file: 8G, max_mem: 256M }}\n"
                           f"{extra}\n")
        for i in range(count):
            self.start(i)
        self.url = ",".join(f"nats://127.0.0.1:{port}" for port in self.clients)

    def path(self, i, what):
        return os.path.join(self.directory, f"{i}.{what}")

    def start(self, i):
        with open(self.path(i, "log"), "a") as log:
            self.processes[i] = subprocess.Popen([SERVER, "-c", self.path(i, "conf")], stdout=log, stderr=log)

    def kill(self, i, number=signal.SIGKILL):
        self.processes[i].send_signal(number)
        self.processes[i].wait()

    def log(self, i):
        with open(self.path(i, "log")) as file:
            return file.read()

    def wait_ready(self, seconds=60):
        """Until JetStream has a leader: each server of a cluster says so."""
        def ready():
            try:
                connection = Connection(self.url, 1)
                connection.request("$JS.API.INFO", timeout=1)
                connection.close()
                return True
            except OSError:
                return False
        wait_until(ready, seconds, "JetStream")
        return self

    def connect(self):
        return Connection(self.url)

    def stream(self, name="coretap"):
        """What each server has of the stream, as {server: (messages, last sequence)}."""
        states = {}
        for i, port in enumerate(self.monitors):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/jsz?streams=1", timeout=5) as answer:
                for account in json.load(answer).get("account_details", []):
                    for stream in account.get("stream_detail", []):
                        if stream["name"] == name:
                            states[i] = (stream["state"]["messages"], stream["state"]["last_seq"])
        return states

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            if process and process.poll() is None:
                process.kill()
                process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


class Forwarder:
    """A running `coretap-nats forward`."""

    def __init__(self, cluster, *bridges, args=(), sanitized=True, url=None, env=None):
        self.errors = tempfile.TemporaryFile()
        command = [tool("coretap-nats", sanitized), "forward", "--server", url or cluster.url, *map(str, args)]
        for bridge in bridges:
            command += ["--address", f"tcp://127.0.0.1:{bridge.port}"]
        self.process = subprocess.Popen(command, stderr=self.errors, env={**os.environ, **(env or {})})

    def log(self):
        return os.pread(self.errors.fileno(), 1 << 24, 0).decode(errors="replace")

    def wait_log(self, text, seconds=30):
        try:
            wait_until(lambda: text in self.log(), seconds, text)
        except AssertionError:
            raise AssertionError(f"{text!r} not said: {self.log()}")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(30 * PATIENCE)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if kind:
            print(f"--- coretap-nats:\n{self.log()}", file=sys.stderr)
        self.errors.close()


def setup(cluster, *args, stream="coretap"):
    """Runs `coretap-nats setup`, again as long as a cluster has no leader."""
    def attempt():
        result = subprocess.run([tool("coretap-nats"), "setup", "--server", cluster.url, "--stream", stream,
                                 *args], capture_output=True, text=True)
        attempt.result = result
        return result.returncode == 0
    cluster.wait_ready()
    try:
        wait_until(attempt, 60, "setup")
    except AssertionError:
        raise AssertionError(attempt.result.stderr)
    return attempt.result


class Account:
    """A stream's messages, and the rule of the numbers over them: what is there, in which order."""

    def __init__(self):
        self.count, self.lost, self.told, self.wrong, self.statuses = {}, {}, [], [], []
        self.next, self.next_n, self.runs, self.sequence = {}, {}, {}, 0
        self.subjects, self.redelivered = {}, 0

    def take(self, message):
        sequence = int(message.reply.split(".")[5])
        if sequence <= self.sequence:
            self.redelivered += 1
            return
        self.sequence = sequence
        if int(message.headers["Nats-Expected-Last-Sequence"]) != sequence - 1:
            self.wrong.append(("stored at", sequence, message.headers))
        _, node, topic = message.subject.split(".", 2)
        self.subjects[message.subject] = self.subjects.get(message.subject, 0) + 1
        body = msgpack.unpackb(message.data)
        if topic == "bridge.status":
            self.statuses.append(body)
            return
        if topic.startswith("bridge."):
            self.told.append(body)
            return
        run, seq, lost, events = body["run"], body["seq"], body.get("lost", 0), body["events"]
        if message.headers["Nats-Msg-Id"].split("/")[0] != f"{node}.{run}.{topic}.{seq}" or body["node"] != node:
            self.wrong.append(("id", message.headers, message.subject))
        known = self.runs.setdefault(node, run)
        if run != known:
            self.wrong.append(("run", node, known, run))
        expected = self.next.get((node, topic), 1)
        if seq != expected:
            self.wrong.append((message.subject, "expected", expected, "got", seq))
        self.next[node, topic] = seq + lost + len(events)
        channel = (node, message.headers["Coretap"].split()[0])
        if body["n"] != self.next_n.get(channel, 1):
            self.wrong.append((channel, "expected n", self.next_n.get(channel, 1), "got", body["n"]))
        self.next_n[channel] = body["n"] + len(events)
        self.count[node, topic] = self.count.get((node, topic), 0) + len(events)
        if lost:
            self.lost[node, topic] = self.lost.get((node, topic), 0) + lost

    def of(self, node):
        """As a ledger: what the node's own topics have."""
        return {t: c + self.lost.get((n, t), 0) for (n, t), c in self.count.items()
                if n == node and not t.startswith(("block.", "node."))}


def read(cluster, stream="coretap", name="witness"):
    """The account of the whole stream, up to its present end."""
    account = Account()
    connection = cluster.connect()
    info = connection.request(f"$JS.API.STREAM.INFO.{stream}")
    end = info["state"]["last_seq"]
    account.sequence = info["state"]["first_seq"] - 1
    consumer = Pull(connection, stream, name)
    deadline = time.monotonic() + 120 * PATIENCE
    while account.sequence < end and time.monotonic() < deadline:
        for message in consumer.fetch(2000, 2):
            account.take(message)
            message.ack()
    connection.close()
    return account


def heads(cluster, node, stream="coretap"):
    """What the last statuses in the stream say was forwarded of a node: both sockets have the same
    subject, a header of the one leads to the other."""
    connection, found = cluster.connect(), {}
    question = {"last_by_subj": f"coretap.{node}.bridge.status"}
    try:
        while question:
            message = connection.request(f"$JS.API.STREAM.MSG.GET.{stream}", question)["message"]
            found.update(msgpack.unpackb(base64.b64decode(message["data"]))["heads"])
            other = re.search(r"Coretap-Status: (\d+)", base64.b64decode(message["hdrs"]).decode())
            question = {"seq": int(other.group(1))} if other and "last_by_subj" in question else None
    except OSError:
        pass
    finally:
        connection.close()
    return found


def wait_forwarded(cluster, node, fired, seconds=120, stream="coretap"):
    """Until statuses in the stream vouch for everything that a node has counted."""
    wanted, seen = dict(fired), {}

    def done():
        try:
            seen.update({t: max(n, seen.get(t, 0)) for t, n in heads(cluster, node, stream).items()})
        except OSError:
            return False
        return all(seen.get(t, 0) >= n for t, n in wanted.items())
    try:
        wait_until(done, seconds, f"{node} forwarded")
    except AssertionError:
        raise AssertionError(f"{node}: " + str({t: (seen.get(t), n) for t, n in wanted.items() if seen.get(t, 0) < n}))
