"""The processes of a measurement: tracers, the simulated node, receivers; and what they cost."""
import contextlib
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import FAKE_NODE, PLAIN, Bridge

# coretapd lets reconnecting subscribers in for 250 ms before it looks at its rings.
SETTLE_S = 0.5

_directory = tempfile.TemporaryDirectory(prefix="coretap-bench-")
# Breakpoints belong to an inode: an own copy is traced by nobody else, another one by nobody.
NODE = shutil.copy(FAKE_NODE, os.path.join(_directory.name, "fake_node"))
UNTRACED = shutil.copy(FAKE_NODE, os.path.join(_directory.name, "untraced"))


def program(name):
    return os.path.join(PLAIN, "bench", name)


@functools.lru_cache(maxsize=None)
def _startup_ns(args):
    """Processor time of a node that fires nothing, the least of five: its start, its end."""
    return min(fire(1, *args, wait=False, startup=0, binary=UNTRACED)["cpu_ns"] for _ in range(5))


def fire(count, *args, wait=True, mode="burst", startup=None, binary=NODE):
    """Lets the node fire: ns is wall time a firing as its thread sees it, cpu_ns the process's time a
    firing, without its start; fired has what every tracepoint fired."""
    if startup is None:
        startup = _startup_ns(args) if mode == "burst" else 0
    command = [binary, mode, *map(str, count if isinstance(count, tuple) else (count,)), *map(str, args)]
    process = subprocess.Popen([*command, *(["--wait"] if wait else [])], stdout=subprocess.PIPE,
                               text=True)
    out = process.stdout.read()
    process.stdout.close()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}: ended with {process.returncode}")
    ledger = json.loads(out.splitlines()[-1])
    fired = {name.replace(":", "."): n for name, n in ledger["fired"].items() if n}
    firings = sum(fired.values()) or (count if isinstance(count, int) else 1)
    return {"ns": ledger.get("ns_per_firing", ledger["elapsed_ns"] / firings),
            "cpu_ns": max(0, (usage.ru_utime + usage.ru_stime) * 1e9 - startup) / firings,
            "elapsed_s": ledger["elapsed_ns"] / 1e9, "fired": fired, "firings": firings}


class _Child:
    """A program that prints a line when it is ready and JSON at its end."""

    def __init__(self, *command):
        self.process = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True)

    def wait_ready(self):
        line = self.process.stdout.readline().strip()
        if line not in ("ready", "attached"):
            self.process.kill()
            self.process.wait()
            raise RuntimeError(f"{self.process.args[0]}: not ready: {line!r}")
        return self

    def finish(self, seconds=600, stop=False):
        if stop:
            self.process.send_signal(signal.SIGTERM)
        try:
            out, _ = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGTERM)
            out, _ = self.process.communicate(timeout=10)
        return json.loads(out.splitlines()[-1])

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


class Receiver(_Child):
    """tests/bench/receiver: ends after count events, or 3 s after the last one."""

    def __init__(self, bridge, count, latency=False, sockets=("low", "high"), tcp=False):
        super().__init__(program("receiver"), "--count", count, "--idle", 3000,
                         *(["--latency"] if latency else []),
                         *(endpoint(bridge, name, tcp) for name in sockets))


class Client(_Child):
    """tests/bench/client: an application on libcoretap."""

    def __init__(self, bridge, count, topic):
        super().__init__(program("client"), count, f"ipc:///run/coretap/{bridge.name}", topic)


def endpoint(bridge, socket, tcp=False):
    if tcp:
        return f"tcp://127.0.0.1:{bridge.port + (socket == 'high')}"
    return f"ipc:///run/coretap/{bridge.name}/{socket}.sock"


# ---- tracers: context managers that are attached inside ----

@contextlib.contextmanager
def detached(_probes):
    yield {}


def baseline(mode):
    @contextlib.contextmanager
    def attached(probes):
        child = _Child(program("baseline"), mode, NODE, *probes).wait_ready()
        result = {}
        try:
            yield result
            result.update(child.finish(stop=True))
        finally:
            child.kill()
    return attached


BPFTRACE = shutil.which("bpftrace")


@contextlib.contextmanager
def bpftrace(_probes):
    """Prints the fields of mempool:removed into a file."""
    text = (f'usdt:{NODE}:mempool:removed {{ printf("%r %s %d %d %d\\n", buf(arg0, 32), str(arg1), '
            '(int32)arg2, arg3, arg4); } BEGIN { printf("attached\\n"); }')
    result, path = {}, os.path.join(_directory.name, "bpftrace.out")
    with open(path, "w+") as out:
        process = subprocess.Popen([BPFTRACE, "-e", text], stdout=out, stderr=subprocess.STDOUT)
        try:
            end = time.monotonic() + 30
            while os.path.getsize(path) == 0 and time.monotonic() < end:
                time.sleep(0.05)
            time.sleep(1)
            yield result
            process.send_signal(signal.SIGINT)
            process.wait(60)
            out.seek(0)
            result["received"] = result["lost"] = 0
            for line in out:
                lost = re.match(r"Lost (\d+) events", line)
                result["lost"] += int(lost.group(1)) if lost else 0
                result["received"] += line.startswith(("\\x", "x")) or " block " in line
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


# Tests make do with small journals; here they are what a user gets.
JOURNAL = ("--journal-low", "384M", "--journal-high", "128M")


def file_system(path):
    return subprocess.run(["stat", "-f", "-c", "%T", path], capture_output=True, text=True).stdout.strip()


# On a usual system /run is in memory; where it is not, the journal gets a place that is.
RUN_IS_A_DISK = file_system("/run") != "tmpfs"


@contextlib.contextmanager
def in_memory():
    """A directory in memory, for one journal."""
    with tempfile.TemporaryDirectory(prefix="coretap-bench-") as directory:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1G", "tmpfs", directory], check=True)
        try:
            yield directory
        finally:
            subprocess.run(["umount", directory], check=True)


@contextlib.contextmanager
def coretapd(*args):
    with contextlib.ExitStack() as stack:
        if not any(a.startswith("--journal") for a in args):
            place = ("--journal", stack.enter_context(in_memory())) if RUN_IS_A_DISK else ()
            args = (*place, *JOURNAL, *args)
        with Bridge(*args, binary=NODE, sanitized=False) as bridge:
            time.sleep(SETTLE_S)
            yield bridge


def bare(rate, count):
    """tests/bench/bare and a receiver: what the receiver saw of messages of one event."""
    endpoint = f"ipc://{_directory.name}/bare.sock"
    sender = subprocess.Popen([program("bare"), str(rate), str(count), endpoint])
    receiver = subprocess.run([program("receiver"), "--count", str(count), "--latency", endpoint],
                              capture_output=True, text=True, check=True)
    sender.wait()
    return json.loads(receiver.stdout.splitlines()[-1])


# ---- what a process costs ----

def cpu_ns(pid):
    """Time on a CPU of all threads that still run."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(FileNotFoundError), open(f"/proc/{pid}/task/{task}/schedstat") as f:
            total += int(f.read().split()[0])
    return total


def switches(pid):
    """How often a thread of it went to sleep."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/status") as f:
            total += int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", f.read(), re.M).group(1))
    return total


def resident(pid):
    """Resident bytes: all, and by kind of mapping."""
    with open(f"/proc/{pid}/status") as f:
        text = f.read()
    return {name: int(re.search(rf"^{name}:\s*(\d+)", text, re.M).group(1)) * 1024
            for name in ("VmRSS", "VmHWM", "RssAnon", "RssFile", "RssShmem")}


def load(node, daemon=(), receivers=1, clients=(), count=None, mode="burst", numbers=None,
         latency=False, tcp=False):
    """One load from the node to the last receipt. node: arguments of fake_node; count: firings to
    expect (those of a burst); clients: topics that libcoretap clients take."""
    with coretapd(*daemon) as bridge:
        children = [Receiver(bridge, count or 0, latency, tcp=tcp) for _ in range(receivers)]
        apps = [Client(bridge, count, topic) for topic in clients]
        try:
            for child in (*children, *apps):
                child.wait_ready()
            time.sleep(0.2)
            before = cpu_ns(bridge.pid)
            fired = fire(numbers or count, *node, mode=mode)
            results = [child.finish() for child in children]
            app_results = [app.finish() for app in apps]
            if not children and not apps:
                time.sleep(1)
            cost = (cpu_ns(bridge.pid) - before) / fired["firings"]
            memory = resident(bridge.pid)
        finally:
            for child in (*children, *apps):
                child.kill()
        return {"node": fired, "daemon_ns": cost, "memory": memory, "receivers": results,
                "clients": app_results}


def missed(result):
    """What a receiver did not get and was not told as lost, of the worst: PUB drops for the slow."""
    return max(result["node"]["firings"] - r["count"] - r["lost"]
               for r in (*result["receivers"], *result["clients"]))


def unaccounted(result, losses=False, drops=False):
    """Why a load's account does not close, or "". losses, drops: what was told as lost, and what was
    dropped for a slow subscriber, is allowed."""
    for r in (*result["receivers"], *result["clients"]):
        if r["missed"] and not drops or r["lost"] and not losses or r.get("malformed") or (
                missed(result) and not drops):
            return (f"{result['node']['firings']} fired, {r['count']} received, {r['lost']} lost, "
                    f"{r['missed']} missed")
    return ""
