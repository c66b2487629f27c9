"""Everything at once, for as long as one likes: 20,000 events a second; subscribers that join, leave,
stall and lie; the node and one coretapd killed at random; the clock stepped by an hour; the journal's
disk full. In the end every firing is accounted for, and the coretapd that was not killed holds neither
more memory nor more descriptors than after its first seconds.

SOAK_SECONDS (default 300) says how long, SOAK_PLOT=FILE.svg draws memory and descriptors."""
import collections
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "lib"))
sys.path.insert(0, os.path.join(HERE, "..", "bench"))
from harness import (FAKE_NODE, Bridge, FakeNode, TestCase, compile_inject, free_port, inject_env, main, need_root,
                     tool, wait_until)
from plot import plot
from replay import CompleteSubscriber

SECONDS = float(os.environ.get("SOAK_SECONDS", "300"))
PLOT = os.environ.get("SOAK_PLOT")
# What each life of the node fires, at 20,000 events a second: a step of the walk has two.
LIVES = (("burst", 10 ** 12, "--rate", 20000), ("burst", 10 ** 12, "--rate", 20000, "--probe", "spent"),
         ("walk", 10 ** 12, "--coins", "--rate", 10000))
HISTORY = ("--journal-low", "192M", "--journal-high", "192M")


def fired_by_node(topic):
    """The others are made by coretapd: no node counts them."""
    return not topic.startswith(("block.", "node."))


class Account:
    """Of each process: how many events of each topic came, once and in order of their numbers."""

    def __init__(self):
        self.count, self.lost, self.runs = collections.Counter(), 0, []
        self.next, self.wrong = {}, []

    def total(self):
        return sum(self.count.values()) + self.lost

    def __call__(self, _socket, topic, message):
        run, events = message["run"], message["events"]
        if run not in self.runs:
            self.runs.append(run)
        if message["seq"] != self.next.get((run, topic), message["seq"]):
            self.wrong.append((run, topic, message["seq"]))
        self.next[run, topic] = message["seq"] + message.get("lost", 0) + len(events)
        self.lost += message.get("lost", 0)
        if fired_by_node(topic):
            self.count[message["pid"]] += len(events)


class Soak(TestCase):
    def setUp(self):
        need_root()
        self.chance = random.Random(int(os.environ.get("SOAK_SEED", "1")))
        self.directory = tempfile.mkdtemp(prefix="coretap-soak-")
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        self.binary = shutil.copy(FAKE_NODE, os.path.join(self.directory, "node"))
        # A build meanwhile must not be an upgrade: another version begins a new run.
        self.coretapd = shutil.copy(tool("coretapd", False), os.path.join(self.directory, "coretapd"))
        self.disk = os.path.join(self.directory, "disk")
        os.mkdir(self.disk)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=420M", "tmpfs", self.disk], check=True)
        self.addCleanup(subprocess.run, ["umount", "-l", self.disk])
        self.clock = os.path.join(self.directory, "clock")
        self.clock_set(0)
        self.shim = compile_inject(self.directory)
        self.ports = {"steady": free_port(), "killed": free_port()}
        self.labels = {kind: f"{kind}{os.getpid()}" for kind in self.ports}
        for label in self.labels.values():
            self.addCleanup(shutil.rmtree, f"/run/coretap/{label}", ignore_errors=True)
            self.addCleanup(subprocess.run, [self.coretapd, "--detach", "--name", label],
                            stderr=subprocess.DEVNULL)
        self.lives, self.did, self.samples, self.said = [], collections.Counter(), [], []

    def clock_set(self, seconds):
        with open(self.clock + ".new", "w") as f:
            f.write(str(seconds))
        os.rename(self.clock + ".new", self.clock)

    # -- those that take part --

    def start(self, kind):
        metrics = f"127.0.0.1:{self.metrics[kind]}"
        journal = os.path.join(self.disk if kind == "steady" else self.directory, f"journal-{kind}")
        more = ("--keep-attached",) if kind == "killed" else ("--without", "tai")
        # Its memory and its rates are measured: the plain one.
        return Bridge("--metrics", metrics, "--journal", journal, *HISTORY, "--subscriber-memory", "8M", *more,
                      port=self.ports[kind], name=self.labels[kind], binary=self.binary, program=self.coretapd,
                      keep=True, ready=False, env=inject_env(self.shim, INJECT_CLOCK=self.clock))

    def node_start(self):
        book = os.path.join(self.directory, f"ledger{len(self.lives)}")
        node = FakeNode(*LIVES[len(self.lives) % len(LIVES)], "--wait", "--ledger", book, "--seed", len(self.lives),
                        binary=self.binary)
        self.lives.append((node, book))
        return node

    def crowd(self, kind):
        return subprocess.Popen([sys.executable, os.path.join(HERE, "..", "lib", "crowd.py"),
                                 str(self.ports[kind]), str(self.metrics[kind]), str(self.chance.randrange(2 ** 31))],
                                stdout=subprocess.PIPE, text=True)

    # -- what happens --

    def kill_bridge(self):
        self.bridge.kill()
        for line in self.bridge.log().splitlines():
            if "warning" in line or "error" in line:
                self.said.append(f"{time.monotonic() - self.begin:.0f} s: {line}")
        self.bridge.errors.close()
        time.sleep(self.chance.uniform(0, 0.3))
        self.bridge = self.start("killed")
        self.did["coretapd killed"] += 1

    def kill_node(self):
        self.lives[-1][0].kill()
        time.sleep(self.chance.uniform(0, 0.5))
        self.node_start()
        self.did["node killed"] += 1

    def step_clock(self):
        self.clock_set(self.chance.choice((-3600, 0, 3600)))
        self.did["clock stepped"] += 1

    def fill_disk(self):
        path = os.path.join(self.disk, "filler")
        if os.path.exists(path):
            os.unlink(path)
            return
        with open(path, "wb") as f:
            try:
                while True:
                    f.write(bytes(1 << 20))
                    f.flush()
            except OSError:
                pass
        self.did["disk filled"] += 1

    def sample(self):
        with open(f"/proc/{self.steady.pid}/status") as f:
            rss = int(re.search(r"RssAnon:\s+(\d+) kB", f.read()).group(1)) / 1024
        self.samples.append((time.monotonic() - self.begin, rss, len(os.listdir(f"/proc/{self.steady.pid}/fd"))))

    # -- the end --

    def fired(self, book):
        out = subprocess.run([self.binary, "ledger", book], capture_output=True, text=True, check=True).stdout
        return sum(json.loads(out.splitlines()[-1])["fired"].values())

    def check(self, name, sub, account):
        """fired = received + lost; a node that was killed may have fired once more than it could count."""
        # In an hour the kernel gives a number twice.
        fired, killed = collections.Counter(), collections.Counter(node.pid for node, _ in self.lives[:-1])
        for node, book in self.lives:
            fired[node.pid] += self.fired(book)
        last = self.lives[-1][0].pid

        before = -1
        while account.count[last] < fired[last] and account.total() > before:  # as long as some come
            before, end = account.total(), time.monotonic() + 30
            while time.monotonic() < end and account.count[last] < fired[last] and account.total() == before:
                time.sleep(0.05)
        self.assertEqual(sub.errors, [])
        # A witness that the machine let fall behind by more than the journal holds is told so, exactly.
        gone = {(run, topic, end + 1): end - begin + 1 for run, topic, begin, end in sub.gone}
        self.assertEqual([w for w in account.wrong if w not in gone][:5], [], name)
        self.assertEqual((sub.unknown, len(account.runs), account.lost), ([], 1, 0), f"{name}: {self.said}")
        self.assertLessEqual(set(account.count), set(fired), name)
        n_gone = sum(n for (_, topic, _), n in gone.items() if fired_by_node(topic))
        self.did["events gone for a witness"] += n_gone
        if gone:
            self.assertIn(account.total() + n_gone - fired.total(), range(len(self.lives)), name)
            return
        self.assertEqual(sub.skipped, [], name)
        for pid in fired:
            self.assertIn(account.count[pid] - fired[pid], range(killed[pid] + 1), f"{name}: {pid}")

    def plot(self):
        step = max(1, len(self.samples) // 60)
        chosen = self.samples[::step]
        labels = [f"{at:.0f}" if i % 10 == 0 else "" for i, (at, _, _) in enumerate(chosen)]
        with open(PLOT, "w") as f:
            f.write(plot("coretapd in a crowd, killed neighbours, steps of the clock, a full disk", "seconds", "",
                         labels, {"MiB of anonymous memory": [s[1] for s in chosen],
                                  "descriptors": [s[2] for s in chosen]}))

    def report(self, events, pages):
        memory = [rss for _, rss, _ in self.samples]
        third = len(memory) // 3
        print(f"# {SECONDS:.0f} s: {events} events, {events / SECONDS:.0f}/s; " +
              ", ".join(f"{n} {what}" for what, n in sorted(self.did.items())) +
              f"; {pages} pages of replay; MiB {statistics.median(memory[:third]):.1f} in the first "
              f"third, {statistics.median(memory[-third:]):.1f} in the last, at most {max(memory):.1f}; descriptors "
              f"{self.samples[0][2]} at first, {self.samples[-1][2]} in the end, at most "
              f"{max(s[2] for s in self.samples)}", file=sys.stderr, flush=True)
        if PLOT:
            self.plot()

    def test_everything_at_once(self):
        self.metrics = {kind: free_port() for kind in self.ports}
        self.begin = time.monotonic()
        self.steady, self.bridge = self.start("steady"), self.start("killed")
        self.steady.wait_ready()
        self.bridge.wait_ready()
        accounts = {kind: Account() for kind in self.ports}
        subs = {kind: CompleteSubscriber(port, deliver=accounts[kind]) for kind, port in self.ports.items()}
        crowds = []
        try:
            for sub in subs.values():
                wait_until(sub.joined, 20, "first status")
            self.node_start()
            crowds = [self.crowd(kind) for kind in self.ports]
            due = {self.kill_bridge: 2, self.kill_node: 5, self.step_clock: 1, self.fill_disk: 3}
            at = {what: time.monotonic() + every for what, every in due.items()}
            next_sample = 0
            while time.monotonic() < self.begin + SECONDS:
                for what, every in due.items():
                    if time.monotonic() >= at[what]:
                        what()
                        at[what] = time.monotonic() + self.chance.uniform(0.5, 2) * every
                if time.monotonic() >= next_sample:
                    self.sample()
                    next_sample = time.monotonic() + 1
                self.assertIsNone(self.steady.process.poll(), self.steady.log())
                time.sleep(0.02)
            for crowd in crowds:
                crowd.terminate()
                self.did.update(json.loads(crowd.communicate(timeout=240)[0]))
            self.bridge.wait_ready()
            self.lives[-1][0].stop()
            for kind, sub in subs.items():
                self.check(kind, sub, accounts[kind])
            time.sleep(6)  # HTTP connections of liars are dropped after five seconds
            self.sample()
            for bridge in (self.bridge, self.steady):
                self.assertEqual(bridge.stop(), 0, bridge.log())
        finally:
            for sub in subs.values():
                sub.close()
            for process in (*crowds, self.bridge.process, self.steady.process, *(n.process for n, _ in self.lives)):
                if process.poll() is None:
                    process.kill()
                process.wait()
            self.report(accounts["steady"].total(), subs["killed"].pages)
        memory = [rss for _, rss, _ in self.samples]
        third = len(memory) // 3
        # What subscribers wait for is bounded for each of them, and theirs; it is given back.
        self.assertLess(statistics.median(memory[-third:]), statistics.median(memory[:third]) * 1.3 + 16)
        self.assertLessEqual(self.samples[-1][2], self.samples[0][2] + 2)


if __name__ == "__main__":
    main()
