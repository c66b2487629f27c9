"""The bridge killed, restarted and replaced: what a subscriber that uses replay gets is whole, or it
is told exactly what is not."""
import collections
import fcntl
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

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import (FAKE_NODE, ROOT, Bridge, FakeNode, TestCase, bpf_alive, compile_inject,
                     compile_text, free_port, inject_env, main, need_root, semaphores, tool, wait_until)
from replay import CompleteSubscriber

PINS = "/sys/fs/bpf/coretap"
KILLS = int(os.environ.get("KILLS", "100"))
ROUNDS = int(os.environ.get("ROUNDS", "10"))


def compile_killer(directory):
    """The shim that kills coretapd, or fails its journal, at an exact call."""
    path = os.path.join(directory, "killer.so")
    subprocess.run([os.environ.get("CC", "gcc"), "-shared", "-fPIC", "-O1",
                    os.path.join(ROOT, "tests", "lib", "killer.c"), "-o", path, "-ldl"], check=True)
    return path


class Account:
    """What a complete subscriber was given. With pool, also the mempool that the stream amounts to;
    without, the events are fake_node's bursts, whose hashes carry the index of the firing."""

    def __init__(self, pool=False):
        self.count, self.lost = collections.Counter(), collections.Counter()
        self.runs = []
        self.numbers = {}  # (run, topic): next number
        self.indices = {}  # (topic, pid): run and next index of a burst
        self.wrong = []
        self.pool = {} if pool else None
        self.lists, self.lives = [], []

    def __call__(self, _socket, topic, message):
        events, lost, run = message["events"], message.get("lost", 0), message["run"]
        if run not in self.runs:
            self.runs.append(run)
        if message["seq"] != self.numbers.get((run, topic), message["seq"]):
            self.wrong.append(("number", topic, run, message["seq"]))
        self.numbers[run, topic] = message["seq"] + lost + len(events)
        self.count[topic] += len(events)
        self.lost[topic] += lost
        if topic == "block.evictions":
            self.lists += events
        if topic.startswith("node."):
            self.lives += [(topic, message["pid"])] * len(events)
        if topic in ("mempool.added", "mempool.removed"):
            if self.pool is None:
                self.indices_check(topic, message, lost)
            else:
                self.mirror(topic, events)

    def indices_check(self, topic, message, lost):
        """In order, none twice, and none missing but where a run ended or a loss is told."""
        run, expected = self.indices.get((topic, message["pid"]), (message["run"], 0))
        expected += lost
        for event in message["events"]:
            index = int.from_bytes(event["txid"][24:], "big")
            if index < expected or (index > expected and run == message["run"]):
                self.wrong.append(("index", topic, index, expected))
            expected, run = index + 1, message["run"]
        self.indices[topic, message["pid"]] = run, expected

    def mirror(self, topic, events):
        """An event twice, or out of order, does not fit."""
        for event in events:
            txid = event["txid"]
            if topic == "mempool.added":
                if txid in self.pool:
                    self.wrong.append(("added twice", txid.hex()))
                self.pool[txid] = True
            elif not self.pool.pop(txid, None):
                self.wrong.append(("removed without being there", txid.hex()))


class ResumeCase(TestCase):
    # True: how many kills there are in some time matters; not sanitized then, nor with a killer, who counts
    # commits, nor with a library preloaded.
    plain = False

    def setUp(self):
        need_root()
        self.directory = tempfile.mkdtemp(prefix="coretap-test-")
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        self.port = free_port()
        self.label = f"r{os.getpid()}-{self.port}"
        # A file of its own: nobody else's breakpoints, and it may be replaced.
        self.binary = os.path.join(self.directory, "node")
        shutil.copy(FAKE_NODE, self.binary)
        self.addCleanup(self.detach)
        self.when = os.path.join(self.directory, "fail-now")
        self.bridges = []

    def detach(self):
        for bridge in self.bridges:
            if bridge.process.poll() is None:
                bridge.kill()
            bridge.errors.close()
        subprocess.run([tool("coretapd"), "--detach", "--name", self.label,
                        "--binary", self.binary], stderr=subprocess.DEVNULL)
        shutil.rmtree(f"/run/coretap/{self.label}", ignore_errors=True)

    def start(self, *args, ready=True, keep=True, killer=None, binary=None, prefix=()):
        env = {"LD_PRELOAD": self.shim, "KILLER": killer, "KILLER_WHEN": self.when} if killer else {}
        # Killed this often, a bridge seldom lives long enough to answer: history for half a minute.
        if not any(str(a).startswith("--journal") for a in args):
            args = ("--journal-low", "128M", "--journal-high", "128M", *args)
        # Half a minute of firings, for a machine that has no time to start the next one.
        if not any(str(a).startswith("--ring") for a in args):
            args = ("--ring-low", "256M", "--ring-high", "256M", *args)
        bridge = Bridge(*(["--keep-attached"] if keep else []), *args, port=self.port, name=self.label,
                        binary=self.binary if binary is None else binary, sanitized=not (self.plain or killer or prefix),
                        ready=ready, env=env, keep=True, prefix=prefix)
        self.bridges.append(bridge)
        return bridge

    @property
    def shim(self):
        path = os.path.join(self.directory, "killer.so")
        return path if os.path.exists(path) else compile_killer(self.directory)

    def subscribe(self, account, **keywords):
        sub = CompleteSubscriber(self.port, deliver=account, **keywords)
        self.addCleanup(sub.close)
        wait_until(sub.joined, 10, "first status")
        return sub

    def check_whole(self, sub, account, fired, seconds=30):
        """Every firing exactly once, in order, in one run, and nothing else."""
        def arrived():
            self.assertEqual(sub.errors, [])
            return all(account.count[t] + account.lost[t] >= n for t, n in fired.items())
        try:
            wait_until(arrived, seconds)
        except AssertionError:
            self.fail(f"fired {fired}, has {dict(account.count)}, gone {sub.gone}, stands at "
                      f"{ {name: s.n for name, s in sub.streams.items()} }")
        self.assertEqual(account.wrong[:5], [])
        self.assertEqual(sub.gone, [])
        self.assertEqual(sub.skipped, [])
        self.assertEqual(len(account.runs), 1, account.runs)
        told = {t: n for t, n in account.count.items()
                if n and not t.startswith(("block.", "node."))}
        self.assertEqual(told, fired)
        self.assertEqual(sum(account.lost.values()), 0)

    def resumed(self, bridge):
        return "going on where the last" in bridge.log()

    def until(self, condition, bridge=None, seconds=20, what="condition"):
        def check():
            if bridge and bridge.process.poll() is not None:
                raise AssertionError(f"coretapd ended: {bridge.log()}")
            return condition()
        return wait_until(check, seconds, what)


class KillAtRandom(ResumeCase):
    plain = True

    def kill_and_restart(self, bridge, kills, chance):
        """Kills at any moment, the start included, and restarts at once."""
        resumed = 0
        for _ in range(kills):
            time.sleep(chance.uniform(0, 0.4))
            bridge.kill()
            resumed += self.resumed(bridge)
            bridge = self.start(ready=False)
        bridge.wait_ready()
        return bridge, resumed

    def test_burst_of_50000_a_second(self):
        account, chance = Account(), random.Random(1)
        kills = KILLS * 6 // 10
        bridge = self.start()
        sub = self.subscribe(account)
        with FakeNode("burst", 100000000, "--rate", 50000, "--wait", binary=self.binary) as node:
            begin = time.monotonic()
            bridge, resumed = self.kill_and_restart(bridge, kills, chance)
            fired = node.stop()
            rate = fired["mempool.removed"] / (time.monotonic() - begin)
        self.check_whole(sub, account, fired)
        print(f"# {kills} kills, {resumed} of them after a resume, {fired['mempool.removed']} firings, "
              f"{rate:.0f}/s, {sub.pages} pages of replay", file=sys.stderr)

    def test_both_sockets(self):
        """A mempool and its coins: the mirror built from the stream equals the node's mempool."""
        account, chance = Account(pool=True), random.Random(2)
        pool = os.path.join(self.directory, "pool")
        bridge = self.start()
        sub = self.subscribe(account)
        with FakeNode("walk", 100000000, "--rate", 25000, "--coins", "--mempool-out", pool, "--wait",
                      binary=self.binary) as node:
            bridge, resumed = self.kill_and_restart(bridge, KILLS - KILLS * 6 // 10, chance)
            fired = node.stop()
        self.check_whole(sub, account, fired)
        with open(pool) as f:
            self.assertEqual(sorted(line.split()[0] for line in f),
                             sorted(txid.hex() for txid in account.pool))
        self.assertGreater(fired["utxocache.add"], 1000)
        print(f"# {resumed} kills after a resume, {sum(fired.values())} firings", file=sys.stderr)


class KillAtAPlace(ResumeCase):
    plain = True

    def kill_at(self, place, rounds=ROUNDS):
        account, chance = Account(), random.Random(3)
        bridge = self.start()
        sub = self.subscribe(account)
        with FakeNode("burst", 100000000, "--rate", 50000, "--wait", binary=self.binary) as node:
            bridge.kill()
            for _ in range(rounds):
                bridge = self.start(ready=False, killer=f"{place}:{chance.randint(1, 40)}")
                self.assertEqual(bridge.process.wait(80), -signal.SIGKILL, bridge.log())
                self.assertTrue(self.resumed(bridge), bridge.log())
            bridge = self.start()
            self.assertTrue(self.resumed(bridge), bridge.log())
            fired = node.stop()
        self.check_whole(sub, account, fired)

    def test_between_encode_and_commit(self):
        self.kill_at("commit")

    def test_between_commit_and_advance(self):
        self.kill_at("committed")

    def test_between_advance_and_send(self):
        self.kill_at("send")


class KillInABlock(ResumeCase):
    plain = True
    TXS = 3000

    def test_block_evictions_are_complete(self):
        """Killed several times within one block: its list is still whole, and says so."""
        account = Account(pool=True)
        bridge = self.start()
        sub = self.subscribe(account)
        killed = [0, 0]
        # The pool fills up first; then a block takes 1.5 s.
        with FakeNode("blocks", 2, self.TXS, "--rate", 2000, "--wait", "--hold",
                      binary=self.binary) as node:
            for block in range(2):
                wait_until(lambda: account.count["validation.block_connected"] > block, 20, "block")
                for _ in range(3):
                    # Where starting takes long the block is over sooner than it was killed three times.
                    if account.count["mempool.removed"] > (block + 1) * self.TXS - 500:
                        break
                    bridge.kill()
                    killed[block] += 1
                    before = account.count["mempool.removed"]
                    bridge = self.start()
                    self.assertTrue(self.resumed(bridge), bridge.log())
                    wait_until(lambda: account.count["mempool.removed"] > before or
                               account.count["mempool.removed"] == (block + 1) * self.TXS, 5, "an event")
            wait_until(lambda: account.count["mempool.removed"] == 2 * self.TXS, 20, "both blocks")
            fired = node.stop()
        self.assertGreater(min(killed), 0)
        self.check_whole(sub, account, fired)
        wait_until(lambda: sum(e["final"] for e in account.lists) >= 2, 10, "the lists")
        final = [e for e in account.lists if e["final"]]
        self.assertEqual([(len(e["txids"]), e["unseen"], e["complete"]) for e in final],
                         [(self.TXS, 0, True)] * 2)
        self.assertEqual(len({txid for e in final for txid in e["txids"]}), 2 * self.TXS)

    def test_unseen_transactions(self):
        """The end of this list is only proven by what comes next."""
        account = Account(pool=True)
        bridge = self.start()
        sub = self.subscribe(account)
        with FakeNode("blocks", 2, 1000, "--unseen", 10, "--conflicts", 5, "--pause-at", 500,
                      "--pause-ms", 1500, "--wait", "--hold", binary=self.binary) as node:
            for _ in range(2):
                wait_until(lambda: account.count["mempool.removed"] % 995 >= 490, 20, "the pause")
                for _ in range(2):
                    bridge.kill()
                    bridge = self.start()
                    self.assertTrue(self.resumed(bridge), bridge.log())
                now = account.count["mempool.removed"] // 995
                wait_until(lambda: account.count["mempool.removed"] >= (now + 1) * 995, 10, "block")
            fired = node.stop()
        self.check_whole(sub, account, fired)
        wait_until(lambda: sum(e["final"] for e in account.lists) >= 2, 10, "the lists")
        final = [e for e in account.lists if e["final"]]
        self.assertEqual([(len(e["txids"]), len(e["conflicts"]["txids"]), e["unseen"], e["complete"])
                          for e in final], [(990, 5, 10, True)] * 2)


class KillAndChange(ResumeCase):
    """What changes between the kill and the restart."""

    def burst(self, count, *args, **keywords):
        return FakeNode("burst", count, "--rate", 50000, "--wait", *args, binary=self.binary,
                        **keywords)

    def test_node_restarted_meanwhile(self):
        account = Account()
        bridge = self.start()
        sub = self.subscribe(account)
        total, pids = collections.Counter(), []
        for i in range(ROUNDS):
            with self.burst(20000, "--start-delay", 50, "--linger", 100) as node:
                wait_until(lambda: account.count["mempool.removed"] > sum(total.values()), 10, "events")
                bridge.kill()
                if i % 2:
                    time.sleep(0.1)
                total.update(node.finish())
                pids.append(node.pid)
            with self.burst(1000) as node:  # lives and dies while nobody looks
                total.update(node.finish())
                pids.append(node.pid)
            bridge = self.start()
            self.assertTrue(self.resumed(bridge), bridge.log())
            wait_until(lambda: account.count["mempool.removed"] >= sum(total.values()), 10, "the rest")
        self.check_whole(sub, account, dict(total))
        wait_until(lambda: len(account.lives) == 2 * len(pids), 10,
                   f"starts and exits {account.lives}")
        self.assertEqual(account.lives, [life for pid in pids for life in
                                         (("node.started", pid), ("node.exited", pid))])

    def test_killed_while_it_settles(self):
        """Attached, but nothing was told yet: the successor tells of the node."""
        account = Account()
        with self.burst(500, "--wait-signal", "--hold") as node:
            self.start().kill()
            self.assertTrue(self.resumed(self.start()))
            self.subscribe(account, since=0)
            node.go()
            wait_until(lambda: account.count["mempool.removed"] == 500, 10, "events")
            node.kill()
            wait_until(lambda: ("node.exited", node.pid) in account.lives, 5, "node.exited")
        self.assertEqual(account.lives, [("node.started", node.pid), ("node.exited", node.pid)])

    def test_clock_stepped_meanwhile(self):
        """The boot, and the start of each process, have another time then: the node is the same all the same."""
        stat, clock = (os.path.join(self.directory, name) for name in ("stat", "clock"))
        with open("/proc/stat") as f, open(stat, "w") as stepped:
            stepped.write(re.sub(r"^btime (\d+)$", lambda m: f"btime {int(m[1]) + 3600}", f.read(), flags=re.MULTILINE))
        with open(clock, "w") as f:
            f.write("3600")
        env = inject_env(compile_inject(self.directory), INJECT_CLOCK=clock)
        prefix = ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" /proc/stat && exec "$@"', stat,
                  "env", *(f"{k}={v}" for k, v in env.items()))
        for named in (False, True):
            account = Account()
            with self.subTest(named=named), self.burst(600, "--wait-signal", "--rate", 300, "--hold") as node:
                args = ("--pid", node.pid) if named else ()
                bridge = self.start(*args, binary="" if named else None)
                sub = self.subscribe(account)
                node.go()
                wait_until(lambda: account.count["mempool.removed"] > 100, 10, "events")
                bridge.kill()
                bridge = self.start(*args, binary="" if named else None, prefix=prefix)
                self.assertTrue(self.resumed(bridge), bridge.log())
                self.check_whole(sub, account, {"mempool.removed": 600})
                time.sleep(1.2)
                self.assertNotIn(("node.exited", node.pid), account.lives)
                bridge.stop()
                sub.close()
            self.detach()

    def test_node_named_by_pid_restarted_meanwhile(self):
        """What is left attached belongs to the process that was named: another one is attached anew."""
        account = Account()
        with self.burst(1000, "--wait-signal", "--hold") as first:
            bridge = self.start("--pid", first.pid, binary="")
            self.subscribe(account)
            first.go()
            wait_until(lambda: account.count["mempool.removed"] == 1000, 10, "events")
            bridge.kill()
        for _ in range(2):  # whatever the first start makes of it, the second must do
            with self.burst(1000, "--wait-signal", "--hold") as second:
                before = account.count["mempool.removed"]
                bridge = self.start("--pid", second.pid, binary="", ready=False)
                wait_until(lambda: "attached (" in bridge.log() or bridge.process.poll() is not None, 20)
                time.sleep(0.5)
                self.assertIsNone(bridge.process.poll(), bridge.log())
                second.go()
                wait_until(lambda: account.count["mempool.removed"] == before + 1000, 5,
                           "the second node's events")
                bridge.kill()

    def test_binary_replaced_meanwhile(self):
        """A new run, and never a number of the old one for another event. What the old ring still
        held is not published; where the run ended is told."""
        account = Account()
        bridge = self.start()
        sub = self.subscribe(account)
        for _ in range(ROUNDS):
            run, before = sub.streams["low"].run, account.count["mempool.removed"]
            with self.burst(10000) as node:
                wait_until(lambda: account.count["mempool.removed"] > before, 10, "events")
                bridge.kill()
                node.finish()
            self.assertTrue(os.listdir(f"{PINS}/{self.label}"))
            shutil.copy(FAKE_NODE, self.binary + ".new")
            os.rename(self.binary + ".new", self.binary)
            bridge = self.start()
            self.assertFalse(self.resumed(bridge), bridge.log())
            self.assertIn("the binary is another one now", bridge.log())
            wait_until(lambda: all(s.run > run for s in sub.streams.values()), 20, "a new run")
        self.assertEqual(sub.errors, [])
        self.assertEqual(account.wrong, [])
        self.assertEqual(sub.unknown, [])
        self.assertEqual(sub.gone, [])

    def test_killed_while_the_next_binary_is_attached(self):
        """Pinned, and not in the journal yet: nothing tells a successor what that one's records mean."""
        account, first, second = Account(), self.binary, os.path.join(self.directory, "second")
        self.binary = os.path.join(self.directory, "current")

        def switch(target):
            os.symlink(target, self.binary + ".new")
            os.rename(self.binary + ".new", self.binary)
        shutil.copy(first, second)
        switch(first)
        self.start()
        sub = self.subscribe(account)
        with FakeNode("burst", 200, "--wait-signal", "--hold", binary=first) as node:
            wait_until(lambda: account.lives, 10, "node.started")
            self.bridges[-1].kill()
            bridge = self.start(killer="commit:1")
            self.assertTrue(self.resumed(bridge), bridge.log())
            switch(second)
            self.assertEqual(bridge.process.wait(80), -signal.SIGKILL, bridge.log())
            switch(first)
            run = sub.streams["low"].run
            bridge = self.start()
            self.assertIn("two binaries were attached", bridge.log())
            wait_until(lambda: sub.streams["low"].run > run, 20, "a new run")
            node.go()
            wait_until(lambda: account.count["mempool.removed"] == 200, 10, "events")
            self.assertEqual(node.stop(), {"mempool.removed": 200})
        self.assertEqual(account.wrong, [])

    def upgraded(self, *, stalled):
        account, following = Account(), os.path.join(self.directory, "next")
        bridge = self.start()
        sub = self.subscribe(account)
        with self.burst(1000, "--hold") as old:
            wait_until(lambda: account.count["mempool.removed"] == 1000, 10, "events")
            shutil.copy(FAKE_NODE, following)
            os.rename(following, self.binary)
            wait_until(lambda: ": attached\n" in bridge.log(), 10, "the new file")
            if stalled:
                bridge.send(signal.SIGSTOP)
            old.stop()
            with self.burst(1000, "--hold") as node:
                if stalled:
                    time.sleep(0.5)
                    bridge.send(signal.SIGCONT)
                wait_until(lambda: ": detached\n" in bridge.log(), 10, "the old file let go")
                time.sleep(0.2)
                bridge.kill()
                bridge = self.start()
                self.assertTrue(self.resumed(bridge), bridge.log())
                wait_until(lambda: account.count["mempool.removed"] == 2000, 10, "events of the next")
                node.stop()
        self.check_whole(sub, account, {"mempool.removed": 2000})

    def test_killed_after_an_upgrade(self):
        """The old binary is let go with its process: the next coretapd goes on with the new one."""
        self.upgraded(stalled=False)

    def test_killed_after_an_upgrade_that_was_noticed_late(self):
        """By the start of the new process, which stands in the ring."""
        self.upgraded(stalled=True)

    def test_start_that_fails_late(self):
        """What it took from the rings until then has its times all the same."""
        account, times = Account(), []

        def deliver(name, topic, message):
            account(name, topic, message)
            times.extend(event["time_us"] for event in message["events"])
        bridge = self.start("--without", "tai")
        sub = self.subscribe(deliver)
        bridge.kill()
        with self.burst(1000) as node:
            fired = node.finish()
        with socket.create_server(("127.0.0.1", 0)) as taken:
            bridge = self.start("--without", "tai", "--metrics",
                                f"127.0.0.1:{taken.getsockname()[1]}", ready=False)
            self.assertEqual(bridge.process.wait(80), 5, bridge.log())
        bridge = self.start("--without", "tai")
        self.assertTrue(self.resumed(bridge), bridge.log())
        self.check_whole(sub, account, fired)
        self.assertGreater(min(times), (time.time() - 600) * 1e6)

    def failing(self, how):
        """The journal fails, publishing goes on, then a kill or a stop: a new run."""
        account, chance = Account(), random.Random(4)
        for i in range(ROUNDS // 2):  # twice: commits and puts
            bridge = self.start(killer=how.format(chance.randint(2, 60)))
            if not i:
                sub = self.subscribe(account)
            else:
                wait_until(lambda: all(s.run > run for s in sub.streams.values()), 20, "a new run")
            run, before = sub.streams["low"].run, account.count["mempool.removed"]
            with self.burst(10000, "--start-delay", 260) as node:
                fired = node.finish()["mempool.removed"]
            # Who listens misses nothing.
            wait_until(lambda: account.count["mempool.removed"] >= before + fired, 10,
                       "events without a journal")
            self.assertEqual(account.count["mempool.removed"], before + fired)
            wait_until(lambda: sub.statuses[-1][1]["replay"] == "degraded", 3, "degraded")
            if i % 2:
                bridge.kill()
            else:
                self.assertEqual(bridge.stop(), 0)
            self.assertIn("journal:", bridge.log())
        bridge = self.start()
        self.assertFalse(self.resumed(bridge), bridge.log())
        wait_until(lambda: all(s.run > run for s in sub.streams.values()), 20, "a new run")
        self.assertEqual(sub.errors, [])
        self.assertEqual(account.wrong, [])

    def test_failing_commit(self):
        self.failing("fail-commit:{}:28")  # ENOSPC

    def test_failing_put(self):
        self.failing("fail-put:{}:-30792")  # MDB_MAP_FULL

    def test_failing_journal_while_the_ring_is_quiet(self):
        """A list told early, by a timer, once the journal has failed: its number was published though
        the ring did not move. The successor must not use it for another event."""
        account = Account(pool=True)
        bridge = self.start(killer="fail-commit:0:28")
        sub = self.subscribe(account)
        with FakeNode("blocks", 1, 100, "--unseen", 1, "--pause-at", 50, "--pause-ms", 2500, "--hold",
                      "--wait", binary=self.binary) as node:
            wait_until(lambda: account.count["mempool.removed"] >= 50, 10, "the pause")
            with open(self.when, "w"):
                pass
            wait_until(lambda: account.lists, 5, "the early list")
            self.assertFalse(account.lists[0]["final"])
            self.assertIn("journal:", bridge.log())
            bridge.kill()
            bridge = self.start()
            # The subscriber drops what has a number that it knows already.
            wait_until(lambda: len(account.runs) > 1 or any(e["final"] for e in account.lists), 5,
                       "a new run, or the final list")
            node.stop()
        self.assertEqual(sub.errors, [])

    def test_end_of_a_run_whose_journal_failed(self):
        """The journal stopped in the middle of the run: nobody may be told that the run ended there."""
        account = Account()
        bridge = self.start(killer="fail-commit:20:28")
        sub = self.subscribe(account)
        with self.burst(20000) as node:
            node.finish()
        wait_until(lambda: account.count["mempool.removed"] == 20000, 10, "all events")
        run = sub.streams["low"].run
        bridge.kill()
        self.start()
        with CompleteSubscriber(self.port) as other:
            runs = {r["run"]: r for r in other.replay.ask(op="hello")[0]["runs"]}
        if run in runs:  # else its end is unknown, and that is true
            self.assertIn(runs[run]["topics"].get("mempool.removed"), (None, 20000))

    def test_journal_deleted(self):
        account = Account()
        bridge = self.start()
        sub = self.subscribe(account)
        with self.burst(5000) as node:
            node.finish()
        wait_until(lambda: account.count["mempool.removed"] == 5000, 10, "events")
        ids = bridge.bpf_ids()
        bridge.kill()
        self.assertTrue(bpf_alive(ids))
        shutil.rmtree(f"/run/coretap/{self.label}/journal")
        run = sub.streams["low"].run
        bridge = self.start()
        self.assertFalse(self.resumed(bridge))
        wait_until(lambda: all(s.run > run for s in sub.streams.values()), 10, "a new run")
        wait_until(lambda: not bpf_alive(ids), 10, "the old links gone")
        self.assertEqual({run for run, _ in sub.unknown}, {run})  # nobody has it any more
        with self.burst(5000) as node:
            node.finish()
        wait_until(lambda: account.count["mempool.removed"] == 10000, 10, "events")
        self.assertEqual(sub.errors, [])
        self.assertEqual(account.wrong, [])

    def test_other_events_selected(self):
        account = Account()
        bridge = self.start("--only", "mempool.*")
        sub = self.subscribe(account)
        with self.burst(5000) as node:
            node.finish()
        wait_until(lambda: account.count["mempool.removed"] == 5000, 10, "events")
        bridge.kill()
        run = sub.streams["low"].run
        bridge = self.start("--only", "mempool.removed")
        self.assertFalse(self.resumed(bridge))
        self.assertIn("a new run begins", bridge.log())
        wait_until(lambda: sub.streams["low"].run > run, 10, "a new run")
        with self.burst(5000) as node:
            node.finish()
        wait_until(lambda: account.count["mempool.removed"] == 10000, 10, "events")
        self.assertEqual(account.wrong, [])
        self.assertEqual(sub.gone, [])

    def test_other_features_wanted(self):
        for args, resumed in (((), False), (("--without", "tai"), False), (("--without", "tai"), True), ((), False)):
            bridge = self.start(*args)
            self.assertEqual(self.resumed(bridge), resumed, bridge.log())
            self.assertIn("boot clock" if args else "TAI clock", bridge.log())
            bridge.kill()

    def test_sigterm_and_start_go_on(self):
        account = Account()
        bridge = self.start()
        sub = self.subscribe(account)
        with self.burst(100000000) as node:
            for _ in range(5):
                time.sleep(0.2)
                self.assertEqual(bridge.stop(), 0)
                self.assertIn("left attached", bridge.log())
                time.sleep(0.1)
                bridge = self.start()
                self.assertTrue(self.resumed(bridge), bridge.log())
            fired = node.stop()
        self.check_whole(sub, account, fired)

    def test_killed_for_longer_than_the_ring_holds(self):
        """What the ring has no room for is counted, and told where it happened."""
        account = Account()
        bridge = self.start("--ring-low", "1M")
        sub = self.subscribe(account)
        bridge.kill()
        with FakeNode("burst", 50000, "--wait", binary=self.binary) as node:
            fired = node.finish()["mempool.removed"]
        bridge = self.start("--ring-low", "1M")
        self.assertTrue(self.resumed(bridge), bridge.log())
        wait_until(lambda: account.count["mempool.removed"] + account.lost["mempool.removed"] == fired,
                   10, "fired = received + lost")
        self.assertGreater(account.lost["mempool.removed"], 1000)
        self.assertEqual(sub.gone, [])


class Detaching(ResumeCase):
    def test_what_cannot_be_pinned_later(self):
        """A node that comes later is traced all the same, and nothing is said to stay."""
        account, pid_file, pins = Account(), os.path.join(self.directory, "bitcoind.pid"), f"{PINS}/{self.label}"
        bridge = self.start("--datadir", self.directory)
        self.subscribe(account)
        os.makedirs(pins)
        self.addCleanup(os.rmdir, pins)
        held = os.open(pins, os.O_RDONLY)
        self.addCleanup(os.close, held)
        fcntl.flock(held, fcntl.LOCK_EX)
        with FakeNode("burst", 1000, "--wait", "--hold", binary=self.binary) as node:
            with open(pid_file, "w") as f:
                f.write(f"{node.pid}\n")
            self.until(lambda: account.count["mempool.removed"] == 1000, bridge, 10, "events")
            self.assertIn(f"another coretapd runs under the label {self.label}", bridge.log())
            bridge.stop()
            self.assertNotIn("left attached", bridge.log())
            self.assertFalse(any(semaphores(node.pid, self.binary).values()))

    def test_nothing_is_left_without_keep_attached(self):
        """Killed twenty times: no program, link, map or raised semaphore stays; a new run each time."""
        runs = []
        with FakeNode("burst", 100000000, "--rate", 1000, binary=self.binary) as node:
            sub = CompleteSubscriber(self.port)
            self.addCleanup(sub.close)
            for _ in range(20):
                bridge = self.start(keep=False)
                wait_until(lambda: all(s.run and s.run not in runs for s in sub.streams.values()), 10,
                           "a new run")
                runs.append(sub.streams["low"].run)
                ids = bridge.bpf_ids()
                self.assertTrue({"prog", "link", "map"} <= {kind for kind, _ in ids}, ids)
                self.assertTrue(any(semaphores(node.pid, self.binary).values()))
                bridge.kill()
                wait_until(lambda: not bpf_alive(ids), 10, "no program, link or map")
                wait_until(lambda: not any(semaphores(node.pid, self.binary).values()), 10,
                           "semaphores at 0")
            self.assertFalse(os.path.exists(f"{PINS}/{self.label}"))
        self.assertEqual(sorted(set(runs)), runs)
        self.assertEqual(sub.errors, [])

    def test_another_takes_the_root_of_pins_away(self):
        """As one does that ends and leaves nothing attached: between the making of the root and of what is in
        it. In a BPF file system of its own, where nobody else has pins."""
        shim = compile_text(self.directory, """
#include <dlfcn.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
int mkdir(const char *path, mode_t mode)
{
	static int gone;
	int (*real)(const char *, mode_t) = dlsym(RTLD_NEXT, "mkdir");

	if (!gone && !strncmp(path, "%s/", %d))
		gone = !rmdir("%s");
	return real(path, mode);
}
""" % (PINS, len(PINS) + 1, PINS), "root.so", "-D_GNU_SOURCE", "-shared", "-fPIC")
        bridge = self.start(prefix=("unshare", "--mount", "sh", "-c", "mount -t bpf bpf /sys/fs/bpf && "
                                    f'LD_PRELOAD={shim} ASAN_OPTIONS=verify_asan_link_order=0 exec "$0" "$@"'))
        self.assertTrue(os.listdir(f"/proc/{bridge.pid}/root{PINS}/{self.label}"))
        bridge.kill()

    def test_detach(self):
        with FakeNode("burst", 100000000, "--rate", 1000, binary=self.binary) as node:
            for number in (signal.SIGKILL, signal.SIGTERM):
                bridge = self.start()
                ids = bridge.bpf_ids()
                if number == signal.SIGKILL:
                    bridge.kill()
                else:
                    bridge.stop()
                time.sleep(0.2)
                self.assertTrue(bpf_alive(ids))
                self.assertTrue(any(semaphores(node.pid, self.binary).values()))
                done = subprocess.run([tool("coretapd"), "--detach", "--name", self.label],
                                      capture_output=True, text=True)
                self.assertEqual((done.returncode, "detached" in done.stderr), (0, True), done)
                wait_until(lambda: not bpf_alive(ids), 10, "no program, link or map")
                wait_until(lambda: not any(semaphores(node.pid, self.binary).values()), 10,
                           "semaphores at 0")
                self.assertFalse(os.path.exists(f"{PINS}/{self.label}"))
                # The lock remembers the last run; the journal is memory that nobody will read.
                self.assertEqual(os.listdir(f"/run/coretap/{self.label}"), ["lock"])
        done = subprocess.run([tool("coretapd"), "--detach", "--name", self.label],
                              capture_output=True, text=True)
        self.assertEqual((done.returncode, "nothing was left" in done.stderr), (0, True), done)

    def test_detach_while_it_runs(self):
        """The label is in use: refused, and nothing is taken from under it."""
        self.start()
        done = subprocess.run([tool("coretapd"), "--detach", "--name", self.label],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 5, done)
        self.assertTrue(os.listdir(f"{PINS}/{self.label}"))

    def test_one_coretapd_for_each_label(self):
        first = self.start()
        with Bridge(name=self.label, binary=self.binary, ready=False, keep=True) as second:
            self.assertEqual(second.process.wait(40), 5)
            self.assertIn(self.label, second.log())
        # The first is untouched.
        account = Account()
        self.subscribe(account)
        with FakeNode("burst", 1000, "--wait", binary=self.binary) as node:
            node.finish()
        wait_until(lambda: account.count["mempool.removed"] == 1000, 10, "events")
        first.kill()
        third = self.start()
        self.assertTrue(self.resumed(third))

    def test_one_coretapd_for_each_label_without_its_directory(self):
        """Its directory in /run/coretap removed under it, and with it that lock: its pins stay its own."""
        for user in ((), ("--user", "nobody")):
            first = self.start(*user)
            shutil.rmtree(f"/run/coretap/{self.label}")
            pins = sorted(os.listdir(f"{PINS}/{self.label}"))
            for args in (("--keep-attached",), (), ("--detach",)):
                done = subprocess.run([tool("coretapd"), "--binary", self.binary, "--name", self.label, "--port",
                                       str(free_port()), "--journal-low", "8M", "--journal-high", "8M", *args],
                                      stderr=subprocess.PIPE, text=True, timeout=240)
                self.assertEqual((done.returncode, done.stderr.count(": error: ")), (5, 1), done.stderr)
                self.assertIn(f"another coretapd runs under the label {self.label}", done.stderr)
                self.assertEqual(sorted(os.listdir(f"{PINS}/{self.label}")), pins)
            # The first is untouched, and makes room when it ends.
            account = Account()
            self.subscribe(account)
            with FakeNode("burst", 1000, "--wait", "--start-delay", 300, binary=self.binary) as node:
                node.finish()
            wait_until(lambda: account.count["mempool.removed"] == 1000, 10, "events")
            first.kill()
            done = subprocess.run([tool("coretapd"), "--detach", "--name", self.label], stderr=subprocess.PIPE,
                                  text=True, timeout=240)
            self.assertEqual((done.returncode, "detached" in done.stderr), (0, True), done)
            self.assertFalse(os.path.exists(f"{PINS}/{self.label}"))

    def test_start_without_keep_attached_ends_what_was_left(self):
        bridge = self.start()
        ids = bridge.bpf_ids()
        bridge.kill()
        bridge = self.start(keep=False)
        self.assertFalse(self.resumed(bridge))
        wait_until(lambda: not bpf_alive(ids), 10, "the old program gone")
        self.assertFalse(os.path.exists(f"{PINS}/{self.label}"))
        self.assertEqual(bridge.stop(), 0)


if __name__ == "__main__":
    main()
