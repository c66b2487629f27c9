"""As test_injection.py, of the programs that subscribe: every call that can fail fails, one in each run.
coretap and coretap-nats end with one line that says why, or bring the whole result; `coretap-nats forward`
goes on, and says so, or a successor does: each firing is in the stream, once.

A sample by default, that of SEED; INJECT=all makes every call fail, INJECT=NAME those of one command,
INJECT=NAME:CLASS:N a single one. PRINT=1 tells every run."""
import concurrent.futures
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import (FAKE_NODE, Bridge, FakeNode, Subscriber, TestCase, callers, compile_inject, free_port, inject_env,
                     library, main, need_root, private_copy, tool, wait_until)
from nats import Cluster, Forwarder, heads, need_nats, read, setup, wait_forwarded

CHOSEN, _, SINGLE = os.environ.get("INJECT", "").partition(":")
SAMPLE_SECONDS = 0.3  # for each command
SEED = int(os.environ.get("SEED", "1"))
WORKERS = 4

# Calls whose failure needs no word, and why. By function, and function of ours that calls it.
ABSORBED = {
    # made again at once, or by the next turn, in a quarter of a second at most
    ("zmq_msg_recv", "transport_receive"), ("poll", "await"), ("read", "await"), ("write", "wake"),
    # the next status, in a second, says the same
    ("calloc", "source_watch"),
    # the first three descriptors are there, as most often
    ("open", "standard_files"),
}

# What a forwarder says by itself, and of a server that is killed and starts again.
USUAL = re.compile(r"messages and .* bytes a second|events behind on|larger than the server|"
                   r"publishing after sequence|nothing was published for|the connection broke; asking|"
                   r"(Connection Closed|IO Error); asking|The server could not be reached|no answer in time|"
                   r"has no leader now|nothing was stored for")


class Injection(TestCase):
    def prepare(self, name):
        if CHOSEN not in ("", "all", name):
            self.skipTest("not chosen")
        need_root()
        if "--coverage" in library():
            self.skipTest("a coverage build: calls of libgcov would fail too")
        directory = tempfile.TemporaryDirectory(prefix="coretap-inject-")
        self.addCleanup(directory.cleanup)
        self.directory = directory.name
        self.shim = compile_inject(self.directory)

    def path(self, name):
        return os.path.join(self.directory, name)

    def environment(self, what, log):
        return inject_env(self.shim, INJECT=what, INJECT_LOG=log.name)

    @staticmethod
    def tasks(told):
        """Of a run in which no call failed: the first and the last call of each place, by whatever way it
        was reached. What libelf cannot read of an executable is shown as what it has not."""
        places = {}
        for line in told:
            _, kind, number, where = line.split(" ", 3)
            places.setdefault((kind, where), []).append(int(number))
        if SINGLE:
            return [SINGLE]
        tasks = sorted(f"{kind}:{n}" for (kind, _), numbers in places.items() for n in {numbers[0], numbers[-1]}
                       if kind != "elf")
        random.Random(SEED).shuffle(tasks)
        return tasks

    def break_all(self, name, program, tasks, one, seconds=SAMPLE_SECONDS):
        """one(task) returns what failed, whether the program ended with an error, whether it went on
        without a word, and what is wrong."""
        deadline = time.monotonic() + (1e9 if CHOSEN else seconds)
        with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
            outcomes = list(pool.map(lambda task: (task, *one(task)) if time.monotonic() < deadline else None, tasks))
        outcomes = [o for o in outcomes if o and (o[1] or o[4])]
        offsets = {offset for o in outcomes if o[1] for offset in o[1].split()[2:]}
        chains = callers(tool(program), sorted(offsets))
        problems, ended = [], 0
        for task, failed, error, silent, problem in outcomes:
            ended += error
            if failed:
                _, function, *offsets = failed.split()
                chain = [f for offset in offsets for f in chains[offset]]
                failed = f"{function} in {' < '.join(chain)}"
                if silent and not any((function, f) in ABSORBED for f in chain):
                    problem = problem or "silent"
            if problem:
                problems.append(f"{task} {failed}: {problem}")
            if os.environ.get("PRINT"):
                print(name, task, failed, problem or ("ended" if error else "went on"), flush=True)
        print(f"# {program} {name}: {len(outcomes)} calls failed, of {len(tasks)} that differ; {ended} of them "
              f"ended it with an error, {len(outcomes) - ended} did not", file=sys.stderr, flush=True)
        self.assertEqual(problems, [], "\n" + "\n".join(problems))
        self.assertGreater(len(outcomes), 0)


def judge(code, said):
    """What is wrong with how it ended, None = nothing. said: lines that it does not say usually."""
    text = "\n".join(said)
    if "Sanitizer" in text or "runtime error" in text:
        return text
    if code not in range(7):
        return f"exit code {code}: {text}"
    if code and len(said) != 1:
        return f"exit code {code}, with {len(said)} lines: {text}"
    return None


def messages(recording):
    """Of a recording: what came, without when."""
    found, at = [], recording.index(b"\n") + 1
    while at < len(recording):
        length, _, channel, topic = struct.unpack_from("<IQBB", recording, at)
        found.append((channel, recording[at + 14:at + 14 + topic], recording[at + 14 + topic:at + 4 + length]))
        at += 4 + length
    return sorted(m for m in found if not m[1].startswith(b"bridge."))


class Commands(Injection):
    """The same result as ever, or an error that says why."""

    @classmethod
    def setUpClass(cls):
        cls.bridge = Bridge()
        cls.addClassCleanup(cls.bridge.__exit__, None)
        with Subscriber(cls.bridge) as sub:
            sub.wait_status()
            with FakeNode("blocks", 1, 10, "--coins", "--wait") as node:
                cls.fired = node.finish()
            wait_until(lambda: sub.of("node.exited"), what="node.exited")
            cls.events = [e for e in sub.events if e.topic.startswith("mempool.")]
        cls.address = f"tcp://127.0.0.1:{cls.bridge.port}"
        cls.source = ("--since", "oldest", "--count", str(len(cls.events)))

    def run_command(self, program, what, args):
        """Returns what failed, and what came of it; exit code None: it hung. In args, {} is a new name, {port}
        a new port, at which somebody listens."""
        log = tempfile.NamedTemporaryFile(dir=self.directory)
        fresh, port, listener = log.name + ".out", free_port(), None
        if "{port}" in args:
            listener = subprocess.Popen([tool("coretap"), "tail", "mempool", "--json", *self.source, "--address",
                                         f"tcp://127.0.0.1:{port}"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        process = subprocess.Popen([tool(program), *(a.format(fresh, port=port) for a in args)], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, env={
                                       **os.environ, **self.environment(what, log),
                                       # with a thread of libzmq that is not done, it may not end
                                       "ASAN_OPTIONS": "verify_asan_link_order=0:detect_leaks=0"})
        code, out, said = None, b"", b"hangs"
        try:
            out, said = process.communicate(timeout=120)
            code = process.returncode
            if listener and not code:
                # The run is a new one each time.
                out = re.sub(rb'"run":\d+', b"", listener.communicate(timeout=80)[0])
        except subprocess.TimeoutExpired:
            pass
        for each in (process, listener):
            if each and each.poll() is None:
                each.kill()
                each.communicate()
        if "{}" in args and not code:
            with open(fresh, "rb") as file:
                out = messages(file.read()) if args[0] == "record" else out + file.read()
        return log.read().decode().splitlines(), code, out, said.decode().splitlines()

    def break_command(self, name, *args, program="coretap"):
        told, code, out, usual = self.run_command(program, "all:0", args)
        self.assertIn(code, (0, 14), usual)
        self.assertTrue(out)
        usual = {re.sub(r"[\d,]+|/[^ ]*", "", line) for line in usual}

        def one(what):
            failed, ended, made, said = self.run_command(program, what, args)
            said = [line for line in said if re.sub(r"[\d,]+|/[^ ]*", "", line) not in usual]
            problem = judge(0 if ended == code else ended, said)
            if ended == code and made != out:
                problem = f"exit code {code}, and not the same result: {said}"
            return next(iter(failed), None), ended != code, False, problem
        self.break_all(name, program, self.tasks(told), one)

    def test_tail(self):
        self.prepare("tail")
        self.break_command("tail", "tail", "mempool", *self.source, "--json", "--address", self.address)

    def test_tail_position(self):
        self.prepare("position")
        self.break_command("position", "tail", "mempool", *self.source, "--text", "--address", self.address,
                           "--position", "{}")

    def test_record(self):
        self.prepare("record")
        self.break_command("record", "record", "{}", "mempool", *self.source, "--address", self.address)

    def test_play(self):
        self.prepare("play")
        subprocess.run([tool("coretap"), "record", self.path("recording"), "mempool", *self.source, "--address",
                        self.address], check=True)
        self.break_command("play", "play", self.path("recording"), "--fast", "--port", "{port}")

    def test_watch(self):
        self.prepare("watch")
        confirmed = next(e for e in self.events if e.get("reason") == "block")
        self.break_command("watch", "watch", confirmed["txid"].hex(), "--since", "oldest", "--json", "--address",
                           self.address)

    def test_probes(self):
        self.prepare("probes")
        self.break_command("probes", "probes", FAKE_NODE)
        self.break_command("probes --json", "probes", "--json", FAKE_NODE)

    def test_nats(self):
        """Set-up of a stream that exists, and what is in it."""
        need_nats()
        self.prepare("nats")
        with Cluster() as cluster:
            setup(cluster)
            with Forwarder(cluster, self.bridge):
                wait_forwarded(cluster, self.bridge.name, self.fired)
            self.break_command("setup", "setup", "--server", cluster.url, "--node", self.bridge.name,
                               program="coretap-nats")
            self.break_command("nats", "tail", "*", "--since", "oldest", "--count", str(sum(self.fired.values())),
                               "--json", "--server", cluster.url, program="coretap-nats")


class Forwarding:
    """A stream that has something, a forwarder with one call that fails, a server that is killed once, and
    messages that are too large."""

    def __init__(self, environment):
        self.environment = environment
        self.fired, self.code, self.log = {}, None, ""

    def go(self):
        self.binary = private_copy()
        with (Cluster(extra="max_payload: 200K") as self.cluster,
              Bridge("--payload", "full", binary=self.binary) as self.bridge):
            setup(self.cluster)
            with Forwarder(self.cluster, self.bridge) as forwarder:
                self.fire("blocks", 1, 20, "--coins")
                wait_forwarded(self.cluster, self.bridge.name, self.fired)
                forwarder.stop()
            with Forwarder(self.cluster, self.bridge, args=("--topic", "*", "--report", "1s"),
                           env=self.environment) as forwarder:
                try:
                    self.work(forwarder)
                    self.code = forwarder.stop()
                finally:
                    self.log = forwarder.log()
            if self.code:
                with Forwarder(self.cluster, self.bridge):
                    wait_forwarded(self.cluster, self.bridge.name, self.fired)
            self.check()
        shutil.rmtree(os.path.dirname(self.binary))

    def add(self, node):
        for topic, count in node.finish().items():
            self.fired[topic] = self.fired.get(topic, 0) + count

    def fire(self, *mode):
        with FakeNode(*mode, "--wait", binary=self.binary) as node:
            self.add(node)

    def stored(self):
        try:
            return self.cluster.stream()[0][1]
        except (OSError, KeyError):
            return 0

    def forwarded(self):
        try:
            seen = heads(self.cluster, self.bridge.name)
        except OSError:
            return False
        return all(seen.get(topic, 0) >= count for topic, count in self.fired.items())

    def work(self, forwarder):
        def ended():
            return forwarder.process.poll() is not None
        wait_until(lambda: ended() or "publishing after" in forwarder.log(), 30, "a link, or the end")
        before = self.stored()
        with FakeNode("walk", 3000, "--rate", 3000, "--coins", "--wait", binary=self.binary) as node:
            wait_until(lambda: node.process.poll() is not None or self.stored() > before + 200, 30)
            self.cluster.kill(0)
            self.cluster.start(0)
            self.add(node)
        # What follows its last message would not fit: a gap has no position.
        self.fire("burst", 2, "--probe", "message", "--size", 300000)
        wait_until(lambda: ended() or self.forwarded(), 60, "all forwarded, or the end")

    def check(self):
        account = read(self.cluster)
        got = account.of(self.bridge.name)
        for gap in account.told:
            if gap.get("reason") != "too large":
                raise AssertionError(f"told: {gap}")
            got[gap["topic"]] = got.get(gap["topic"], 0) + gap["last"] - gap["first"] + 1
        if account.wrong or account.lost or got != self.fired:
            raise AssertionError(f"wrong {account.wrong[:3]}, lost {account.lost}, fired {self.fired}, stored {got}")

    def lines(self):
        return {line for line in self.log.splitlines() if not USUAL.search(line)}


class Forward(Injection):
    """All is forwarded whatever fails, by this one or by its successor."""

    def run_once(self, what):
        """Returns what failed, the run, and what is wrong."""
        with tempfile.NamedTemporaryFile(dir=self.directory) as log:
            run, problem = Forwarding(self.environment(what, log)), None
            try:
                run.go()
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"
            told = log.read().decode().splitlines()
        return told, run, problem

    def test_forward(self):
        need_nats()
        self.prepare("forward")
        if CHOSEN:
            told, run, problem = self.run_once("all:0")
            self.assertEqual((run.code, problem, run.lines()), (0, None, set()), run.log)
            tasks = self.tasks(told)
        else:  # a run takes long, and these are reached by each
            chosen = random.Random(SEED)
            tasks = [f"{kind}:{chosen.randint(1, most)}"
                     for kind, most in (("nats", 130), ("zmq", 100), ("alloc", 30), ("loop", 8))]

        def one(what):
            failed, run, problem = self.run_once(what)
            if problem and not failed:  # a port was taken meanwhile
                failed, run, problem = self.run_once(what)
            said = run.lines()
            problem = problem or judge(run.code, sorted(said))
            if problem:
                problem += f"\n{run.log}"
            return next(iter(failed), None), run.code != 0, not said, problem
        self.break_all("forward", "coretap-nats", tasks, one)


if __name__ == "__main__":
    main()
