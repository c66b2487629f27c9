"""What end-to-end tests share: starting coretapd, nodes and subscribers, and accounting.

Nothing here uses coretap's own clients or catalogue: frames are read with plain pyzmq and msgpack,
as a stranger would read them, so the tests witness the wire contract independently.
"""
import atexit
import itertools
import json
import os
import platform
import random
import re
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
import zmq

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PLAIN = os.path.join(ROOT, os.environ.get("BUILD", "build"))
SANITIZED = os.path.join(ROOT, os.environ.get("SANITIZED", "build/sanitized"))


def private_copy():
    """A simulated node that no other test's bridge follows: breakpoints belong to a file."""
    directory = tempfile.mkdtemp(prefix="coretap-node-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    for name in os.listdir(PLAIN):
        if name.startswith("fake_node"):
            shutil.copy2(os.path.join(PLAIN, name), directory)
    return os.path.join(directory, "fake_node")


def reports_directory():
    """Where sanitizers write, whoever starts the program, whoever runs it and however it ends."""
    directory = tempfile.mkdtemp(prefix="coretap-reports-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    os.chmod(directory, 0o777)
    races, leaks = (shutil.copy(f"{ROOT}/tests/{kind}.supp", f"{directory}/.{kind}") for kind in ("tsan", "lsan"))
    for name, options in (("ASAN", ""), ("UBSAN", "print_stacktrace=1"),
                          ("LSAN", f"suppressions={leaks} print_suppressions=0"),
                          ("TSAN", f"suppressions={races} ignore_noninstrumented_modules=1")):
        os.environ.setdefault(f"{name}_OPTIONS", f"{options} log_path={directory}/{name.lower()}".strip())
    return directory


def take_reports():
    """What sanitizers wrote since the last time."""
    text = ""
    for name in os.listdir(REPORTS):
        if name.startswith("."):
            continue
        path = os.path.join(REPORTS, name)
        with open(path, errors="replace") as f:
            text += f.read()
        os.unlink(path)
    return text


REPORTS = reports_directory()
FAKE_NODE = private_copy()
BPFTOOL = shutil.which("bpftool", path=os.environ["PATH"] + ":/usr/sbin:/sbin") or "bpftool"


def tool(name, sanitized=True):
    """Path of a program of ours: the sanitized one, or the plain one where a comment says why."""
    if sanitized and os.path.exists(os.path.join(SANITIZED, name)):
        return os.path.join(SANITIZED, name)
    return os.path.join(PLAIN, name)


def library(sanitized=True):
    """libcoretap.a, and what else a program that uses it is linked with."""
    path = tool("libcoretap.a", sanitized)
    with open(path[:-1] + "flags") as f:
        return [path, *f.read().split(), "-lzmq"]


def not_under_tsan(why):
    """Skips a test that cannot work there."""
    if "thread" in " ".join(library()):
        raise unittest.SkipTest(f"not under ThreadSanitizer: {why}")


# Deadlines only end what would wait for ever: a busy machine gets several times what a quiet one needs.
PATIENCE = 4


def wait_until(condition, seconds=10, what="condition"):
    """Polls until condition() is true and returns its value. seconds: of a quiet machine."""
    seconds *= PATIENCE
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {seconds} s")
        time.sleep(0.01)


def wait_connected(process, *ports):
    """Until a subscriber of its own, that says nothing of it, is connected to these; what it subscribes to is sent
    with the connection."""
    def connected():
        if process.poll() is not None:
            raise AssertionError(f"ended with {process.returncode}")
        own = set()
        for fd in os.listdir(f"/proc/{process.pid}/fd"):
            try:
                own.add(os.readlink(f"/proc/{process.pid}/fd/{fd}"))
            except OSError:
                pass  # closed in between
        rows = []
        for path in ("/proc/net/tcp", "/proc/net/tcp6"):
            with open(path) as table:
                rows += [line.split() for line in table][1:]
        return {int(row[2].split(":")[1], 16) for row in rows
                if row[3] == "01" and f"socket:[{row[9]}]" in own} >= set(ports)
    wait_until(connected, 20, f"a connection to {ports}")
    time.sleep(1)


PORTS = itertools.cycle(range(10000 + os.getpid() % 20 * 900, 10900 + os.getpid() % 20 * 900, 4))
for _ in range(random.randrange(225)):
    next(PORTS)


def free_port():
    """The first of four consecutive free ports, below those that the kernel gives to connections and below
    coretapd's own. Other processes' tests have others, and here none comes twice soon: who looks for a port while
    a coretapd is down that will want its own again must not find it."""
    while True:
        port = next(PORTS)
        try:
            for i in range(4):
                with socket.socket() as s:
                    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as who binds it; connections linger
                    s.bind(("127.0.0.1", port + i))
            return port
        except OSError:
            continue


def need_root():
    if os.geteuid() != 0:
        raise unittest.SkipTest("wants root")


def need_node(package="js", module="zeromq"):
    """Node.js, and what a package of ours under clients/ depends on."""
    if not shutil.which("node"):
        raise unittest.SkipTest("wants node")
    version = subprocess.run(["node", "--version"], capture_output=True, text=True).stdout
    if int(version.strip().lstrip("v").split(".")[0] or 0) < 20:
        raise unittest.SkipTest(f"wants node 20 or later, has {version.strip()}")
    if not os.path.exists(os.path.join(ROOT, "clients", package, "node_modules", module)):
        raise unittest.SkipTest("wants its dependencies: make deps-js")


def compile_inject(directory):
    """tests/lib/inject.c, to be preloaded: what it can do stands there. x86-64 only."""
    if platform.machine() != "x86_64":
        raise unittest.SkipTest("the stubs of tests/lib/inject.c are for x86-64")
    path = os.path.join(directory, "inject.so")
    subprocess.run(["gcc", "-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", "-fno-omit-frame-pointer", "-fPIC",
                    "-shared", os.path.join(ROOT, "tests", "lib", "inject.c"), "-o", path, "-ldl", "-llmdb"],
                   check=True)
    return path


def inject_env(shim, **variables):
    """The environment for it; a sanitized program need not have its own library in front."""
    asan = os.environ.get("ASAN_OPTIONS", "")
    return {"LD_PRELOAD": shim, "ASAN_OPTIONS": f"{asan}:verify_asan_link_order=0:log_path=stderr".lstrip(":"),
            "UBSAN_OPTIONS": "log_path=stderr", **variables}


def compile_text(directory, text, name, *flags, compiler="gcc"):
    """A program, or with -shared and -fPIC a library to be preloaded."""
    source = os.path.join(directory, name + (".cc" if compiler == "g++" else ".c"))
    with open(source, "w") as file:
        file.write(text)
    path = os.path.join(directory, name)
    subprocess.run([compiler, "-O2", "-fno-optimize-sibling-calls", *flags, source, "-o", path,
                    "-lpthread"], check=True)
    return path


def callers(program, offsets):
    """The functions of ours that hold the call before each offset, inlined ones first."""
    offsets = offsets or ["1"]
    out = subprocess.run(["addr2line", "-f", "-i", "-a", "-e", program,
                          *(hex(int(o, 16) - 1) for o in offsets)],
                         capture_output=True, text=True, check=True).stdout
    chains = []
    for line in out.splitlines():
        if line.startswith("0x"):
            chains.append([])
            function = True
        else:
            if function:
                chains[-1].append(line)
            function = not function
    return dict(zip(offsets, chains))


class Bridge:
    """A running coretapd. Its stderr is in .log().
    Small journals unless args say otherwise; keep leaves its directory for a successor."""

    def __init__(self, *args, binary=FAKE_NODE, name=None, sanitized=True, ready=True, port=None,
                 prefix=(), env=None, keep=False, program=None):
        need_root()
        self.keep = keep
        self.port = port or free_port()
        self.name = name or f"t{os.getpid()}-{self.port}"
        self.errors = tempfile.TemporaryFile()
        command = [*prefix, program or tool("coretapd", sanitized), "--name", self.name, "--port", str(self.port)]
        if binary:
            command += ["--binary", binary]
        if not any(str(a).startswith("--journal") for a in args):
            command += ["--journal-low", "16M", "--journal-high", "16M"]
        if "--subscriber-memory" not in args:
            # libzmq counts messages, which may hold two events: a slow machine's Subscriber keeps up.
            command += ["--subscriber-memory", "4G"]
        self.process = subprocess.Popen([*command, *map(str, args)], stderr=self.errors,
                                        env={**os.environ, **(env or {})})
        self.pid = self.process.pid
        if not keep:
            atexit.register(shutil.rmtree, f"/run/coretap/{self.name}", ignore_errors=True)
        if ready:
            self.wait_ready()

    def wait_ready(self, seconds=20):
        def attached():
            if self.process.poll() is not None:
                raise AssertionError(f"coretapd ended with {self.process.returncode}: {self.log()}")
            return ", publishing as " in self.log()
        wait_until(attached, seconds, "coretapd attached")

    def log(self):
        # pread: the child shares the file's offset and writes at it.
        size = os.fstat(self.errors.fileno()).st_size
        return os.pread(self.errors.fileno(), size, 0).decode(errors="replace")

    def send(self, number):
        os.kill(self.pid, number)

    def stop(self, number=signal.SIGTERM, seconds=20):
        """Ends it in order and returns its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            code = self.process.wait(PATIENCE * seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"coretapd did not end within {seconds} s: {self.log()}")
        return code

    def kill(self):
        self.process.kill()
        self.process.wait()

    def bpf_ids(self):
        """The BPF programs, links and maps that it holds, as {("prog", 12), ("link", 3), …}."""
        return bpf_ids(self.pid)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if self.process.poll() is None:
            if kind:
                self.kill()
            else:
                self.stop()
        if kind:
            print(f"--- coretapd {self.name}:\n{self.log()}", file=sys.stderr)
        if not self.keep:
            shutil.rmtree(f"/run/coretap/{self.name}", ignore_errors=True)
        self.errors.close()


def go(pid):
    """Tells a node that waits for the signal to begin, once it knows that signal."""
    def caught():
        with open(f"/proc/{pid}/status") as status:
            mask = int(re.search(r"SigCgt:\s*(\w+)", status.read()).group(1), 16)
        return mask >> signal.SIGUSR1 - 1 & 1
    wait_until(caught, what="the node's handler")
    os.kill(pid, signal.SIGUSR1)


class FakeNode:
    """A running simulated node. finish() returns its ledger: the firings that it counted itself."""

    def __init__(self, *args, binary=FAKE_NODE, prefix=()):
        self.out = tempfile.TemporaryFile()
        self.process = subprocess.Popen([*prefix, binary, *map(str, args)], stdout=self.out)
        self.pid = self.process.pid

    def go(self):
        go(self.pid)

    def lines(self):
        size = os.fstat(self.out.fileno()).st_size
        return os.pread(self.out.fileno(), size, 0).decode().splitlines()

    def finish(self, seconds=120):
        code = self.process.wait(PATIENCE * seconds)
        if code != 0:
            raise AssertionError(f"fake_node ended with {code}")
        self.ledger = json.loads(self.lines()[-1])
        self.fired = {k.replace(":", "."): v for k, v in self.ledger["fired"].items() if v}
        return self.fired

    def stop(self):
        self.process.terminate()
        return self.finish()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.kill()
        self.out.close()


class Event(dict):
    """The fields of one event; topic, n, seq, pid and run as attributes. received: the wall clock
    in seconds when its message was read."""
    __slots__ = ("topic", "n", "seq", "pid", "run", "received")


class Subscriber:
    """Reads both sockets in a thread from its construction on and keeps the account of section
    "numbering" of protocol/README.md. keep: remember events (else only count them). raw: remember
    whole messages too, in .messages, as (socket, topic, body)."""

    def __init__(self, bridge, topics=("",), sockets=("low", "high"), keep=True, hwm=0, address=None,
                 raw=False, reconnect_ms=100):
        self.events, self.count, self.lost, self.gaps, self.errors = [], {}, {}, [], []
        self.statuses, self.stopped, self.frames, self.runs = [], [], 0, []
        self.keep, self.next, self.next_n = keep, {}, {}
        self.n_gaps = []
        self.losses = []  # (socket, topic, n of the next event, lost)
        self.lost_pids = set()
        self.status_faults = []  # a status that claims what was not sent before it, or less
        self.raw, self.messages = raw, []
        self.topics = tuple(topics)
        self.lock = threading.Lock()
        self.ending = False
        self.context = zmq.Context()
        self.sockets = {}
        for i, name in enumerate(("low", "high")):
            if name not in sockets:
                continue
            s = self.context.socket(zmq.SUB)
            s.setsockopt(zmq.RCVHWM, hwm)
            s.setsockopt(zmq.LINGER, 0)
            s.setsockopt(zmq.RECONNECT_IVL, reconnect_ms)
            for topic in (*topics, "bridge."):
                s.subscribe(topic.encode())
            s.connect((address or "tcp://127.0.0.1:{}").format(bridge.port + i))
            self.sockets[s] = name
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        poller = zmq.Poller()
        for s in self.sockets:
            poller.register(s, zmq.POLLIN)
        while not self.ending:
            for s, _ in poller.poll(50):
                for _ in range(1000):
                    try:
                        parts = s.recv_multipart(zmq.NOBLOCK)
                    except zmq.Again:
                        break
                    try:
                        self.take(parts, self.sockets[s])
                    except Exception as error:  # told by check()
                        self.errors.append(f"{error!r} in {parts[:2]!r:.500}")
        for s in self.sockets:
            s.close()
        self.context.term()

    def take(self, parts, socket_name):
        topic, body = parts[0].decode(), msgpack.unpackb(parts[1])
        with self.lock:
            self.frames += 1
            if self.raw:
                self.messages.append((socket_name, topic, body))
            if topic == "bridge.status":
                self.compare_status(body)
                self.statuses.append(body)
                return
            if topic == "bridge.stopping":
                self.compare_status(body)
                self.stopped.append(body)
                return
            self.account(topic, body, socket_name)

    def compare_status(self, status):
        """What a status says was sent must be what came since the status before it."""
        run, socket_name = status["run"], status["socket"]
        for topic, head in status["heads"].items():
            if not topic.startswith(self.topics):
                continue
            known = self.next.setdefault((run, topic), head + 1) - 1
            if known != head:
                self.status_faults.append((topic, "head", head, "received", known))
        if "" in self.topics:
            known = self.next_n.setdefault((run, socket_name), status["n"] + 1) - 1
            if known != status["n"]:
                self.status_faults.append((socket_name, "n", status["n"], "received", known))

    def account(self, topic, body, socket_name):
        run, seq, lost, events = body["run"], body["seq"], body.get("lost", 0), body["events"]
        if run not in self.runs:
            self.runs.append(run)
        key = (run, topic)
        if key in self.next and seq != self.next[key]:
            self.gaps.append((topic, self.next[key], seq - 1))
        self.next[key] = seq + lost + len(events)
        if lost:
            self.lost[topic] = self.lost.get(topic, 0) + lost
            self.losses.append((socket_name, topic, body["n"], lost))
            self.lost_pids.add(body["pid"])
        n_key = (run, socket_name)
        if len(events) == 0 and not lost:
            self.errors.append(f"{topic}: empty message without a loss")
        expected = self.next_n.get(n_key)
        if expected is not None and body["n"] != expected:
            self.n_gaps.append((socket_name, expected, body["n"]))
        self.next_n[n_key] = body["n"] + len(events)
        self.count[topic] = self.count.get(topic, 0) + len(events)
        if not self.keep:
            return
        now = time.time()
        for i, fields in enumerate(events):
            event = Event(fields)
            event.received = now
            event.topic, event.n, event.seq = topic, body["n"] + i, seq + lost + i
            event.pid, event.run = body["pid"], run
            self.events.append(event)

    def of(self, topic):
        with self.lock:
            return [e for e in self.events if e.topic == topic]

    def status(self, socket_name):
        with self.lock:
            return next((s for s in reversed(self.statuses) if s["socket"] == socket_name), None)

    def wait_status(self, seconds=10):
        """Waits until a status came on every socket: from then on nothing is missed."""
        wait_until(lambda: all(self.status(name) for name in self.sockets.values()), seconds,
                   "bridge.status")
        return self

    def wait_count(self, topic, count, seconds=30):
        wait_until(lambda: self.count.get(topic, 0) + self.lost.get(topic, 0) >= count, seconds,
                   f"{count} of {topic} (has {self.count.get(topic, 0)})")

    def wait_ledger(self, fired, seconds=30):
        """Waits until everything that the node counted has arrived or was told as lost."""
        for topic, count in fired.items():
            self.wait_count(topic, count, seconds)

    def close(self):
        self.ending = True
        self.thread.join()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class TestCase(unittest.TestCase):
    def check_account(self, subscriber, fired):
        """fired = received + lost for every tracepoint, without gaps, errors or surplus."""
        self.assertEqual(subscriber.errors, [])
        self.assertEqual(subscriber.gaps, [])
        told = {t: subscriber.count.get(t, 0) + subscriber.lost.get(t, 0)
                for t in {*subscriber.count, *subscriber.lost}
                if not t.startswith(("block.", "node."))}
        self.assertEqual(told, fired)

    def check_stream(self, subscriber):
        """Of a subscriber to everything: positions count on, and no status claims anything else."""
        self.assertEqual(subscriber.errors, [])
        self.assertEqual(subscriber.gaps, [])
        self.assertEqual(subscriber.n_gaps, [])
        self.assertEqual(subscriber.status_faults, [])


def semaphore(pid, binary, provider, name):
    """The value of a tracepoint's semaphore in a running process (position-independent or not)."""
    notes = subprocess.run(["readelf", "-n", binary], capture_output=True, text=True).stdout
    match = re.search(rf"Provider: {provider}\s+Name: {name}\s+Location: \S+, Base: \S+, Semaphore: (0x[0-9a-f]+)",
                      notes)
    address = int(match.group(1), 16)
    headers = subprocess.run(["readelf", "-lW", binary], capture_output=True, text=True).stdout
    if "DYN (" in headers:
        real = os.path.realpath(binary)
        with open(f"/proc/{pid}/maps") as maps:
            base = min(int(line.split("-")[0], 16) for line in maps if line.rstrip().endswith(real))
        address += base
    with open(f"/proc/{pid}/mem", "rb") as memory:
        memory.seek(address)
        return int.from_bytes(memory.read(2), "little")


def semaphores(pid, binary):
    """All of them in a running process, as {"mempool.removed": 1, …}."""
    notes = subprocess.run(["readelf", "-n", binary], capture_output=True, text=True).stdout
    found = re.findall(r"Provider: (\S+)\s+Name: (\S+)\s+Location: \S+, Base: \S+, "
                       r"Semaphore: (0x[0-9a-f]+)", notes)
    headers = subprocess.run(["readelf", "-hW", binary], capture_output=True, text=True).stdout
    base = 0
    if "DYN (" in headers:
        inode = os.stat(f"/proc/{pid}/exe").st_ino
        with open(f"/proc/{pid}/maps") as maps:
            base = min(int(line.split("-")[0], 16) for line in maps if int(line.split()[4]) == inode)
    values = {}
    with open(f"/proc/{pid}/mem", "rb") as memory:
        for provider, name, address in found:
            memory.seek(int(address, 16) + base)
            values[f"{provider}.{name}"] = int.from_bytes(memory.read(2), "little")
    return values


def bpf_ids(pid):
    """What a process holds of the kernel's BPF objects, as {("prog", 12), ("link", 3), …}."""
    ids = set()
    for fd in os.listdir(f"/proc/{pid}/fdinfo"):
        try:
            with open(f"/proc/{pid}/fdinfo/{fd}") as info:
                ids |= {(kind, int(number)) for kind, number in
                        re.findall(r"^(prog|link|map)_id:\s*(\d+)", info.read(), re.MULTILINE)}
        except OSError:
            pass  # closed in between
    return ids


def bpf_alive(ids):
    """Those of bpf_ids() that the kernel still has."""
    alive = set()
    for kind in ("prog", "link", "map"):
        out = subprocess.run([BPFTOOL, kind, "show", "-j"], capture_output=True, text=True).stdout
        entries = json.loads(out or "[]")
        if not all("id" in entry for entry in entries):
            return ids  # one went away while it was listed: who waits looks again
        alive |= {(kind, entry["id"]) for entry in entries}
    return ids & alive


def bpf_objects():
    """Ids of the kernel's programs and links that are ours."""
    out = subprocess.run(["bpftool", "prog", "show", "-j"], capture_output=True, text=True,
                         env={**os.environ, "PATH": os.environ["PATH"] + ":/usr/sbin"}).stdout
    return {p["id"] for p in json.loads(out or "[]") if p.get("name", "").startswith("capture_")}


class _Result(unittest.TestResult):
    def __init__(self):
        super().__init__()
        self.started = 0.0

    def startTest(self, test):
        super().startTest(test)
        self.started = time.monotonic()

    def tell(self, word, test, why=""):
        seconds, reports = time.monotonic() - self.started, take_reports()
        if reports and word != "FAIL":
            self.failures.append((test, reports))
            word = "FAIL"
        name = f"{os.path.basename(sys.argv[0])[:-3]}.{test.id().split('.', 1)[-1]}"
        print(f"{word} {name} ({seconds:.1f} s){': ' + why if why else ''}", flush=True)
        if reports:
            print(reports, flush=True)

    def addSuccess(self, test):
        self.tell("PASS", test)

    def addSkip(self, test, reason):
        self.tell("SKIP", test, reason)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.tell("FAIL", test)
        print(self.failures[-1][1], flush=True)

    def addError(self, test, err):
        super().addError(test, err)
        self.tell("FAIL", test)
        print(self.errors[-1][1], flush=True)

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err:
            self.tell("FAIL", subtest)
            print((self.failures or self.errors)[-1][1], flush=True)


def main():
    """Runs the calling module's tests, a line each; arguments choose by substring of the name."""
    suite = unittest.defaultTestLoader.loadTestsFromModule(sys.modules["__main__"])
    chosen = [t for group in suite for t in group
              if not sys.argv[1:] or any(word in t.id() for word in sys.argv[1:])]
    result = _Result()
    unittest.TestSuite(chosen).run(result)
    sys.exit(0 if result.wasSuccessful() else 1)
