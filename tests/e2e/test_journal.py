"""The journal's own troubles: full, read-only and foreign disks, garbage, other boots, bounds. Whatever
happens to it, publishing goes on and status says what replay is worth."""
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile

import msgpack
import zmq

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import (FAKE_NODE, Bridge, FakeNode, Subscriber, TestCase, compile_text, free_port,
                     inject_env, main, need_root, tool, wait_until)
from replay import CompleteSubscriber, Refused, Replay

EVENTS = 20000
# Lets a program see another boot's id.
OTHER_BOOT = ("unshare", "-m", "sh", "-c",
              'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"')

# A place that has no room for one more directory. A sanitizer calls it before it can call its own strrchr.
NO_DIRECTORY = r"""
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
int mkdir(const char *path, mode_t mode)
{
	const char *name = "/journal", *at = path, *like = name;
	for (; *at && *like; at++)
		like = *at == *like ? like + 1 : *at == *name ? name + 1 : name;
	if (*at || *like)
		return syscall(SYS_mkdirat, AT_FDCWD, path, mode);
	errno = ENOSPC;
	return -1;
}
"""


def noise_of(chance, size):
    return (chance.randbytes(1 << 20) * (size // (1 << 20) + 1))[:size]


class JournalCase(TestCase):
    def setUp(self):
        need_root()
        self.directory = tempfile.mkdtemp(prefix="coretap-test-")
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        self.journal = os.path.join(self.directory, "journal")
        self.context = zmq.Context()
        self.addCleanup(self.context.destroy, 0)
        self.port = free_port()
        self.label = f"j{os.getpid()}-{self.port}"
        self.addCleanup(shutil.rmtree, f"/run/coretap/{self.label}", ignore_errors=True)

    def tmpfs(self, options):
        os.mkdir(self.journal)
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", self.journal], check=True)
        self.addCleanup(subprocess.run, ["umount", "-l", self.journal])

    def start(self, *args, **keywords):
        if not args:
            args = ("--journal-low", "16M", "--journal-high", "16M")
        return Bridge("--journal", self.journal, *args, port=self.port, name=self.label, keep=True,
                      **keywords)

    def replay(self):
        return Replay(self.context, f"tcp://127.0.0.1:{self.port + 2}", 8000)

    def burst(self, sub, count=EVENTS, *args):
        with FakeNode("burst", count, "--wait", *args) as node:
            fired = node.finish()
        for topic in fired:
            expected = sum(sub.seen.setdefault(topic, [])) + fired[topic]
            sub.wait_count(topic, expected)
            sub.seen[topic].append(fired[topic])
        return fired

    def subscribe(self, bridge):
        sub = Subscriber(bridge, keep=False)
        sub.seen = {}
        self.addCleanup(sub.close)
        return sub.wait_status()

    def held(self, replay, run, name="low"):
        """Positions that replay has, read from it."""
        after, positions = 0, []
        while after is not None:
            header, messages = replay.ask(op="replay", socket=name, run=run, after=after)
            for _, raw in messages:
                body = msgpack.unpackb(raw)
                positions += range(body["n"], body["n"] + len(body["events"]))
            after = header["next"]
        return positions

    def check_publishing(self, args=(), state="degraded", said=None, **keywords):
        """Nothing of the stream is missing; status says state. Returns what replay has."""
        with self.start(*args, **keywords) as bridge:
            sub = self.subscribe(bridge)
            self.burst(sub)
            self.check_stream(sub)
            self.assertEqual(sub.lost, {})
            wait_until(lambda: sub.status("low")["n"] >= EVENTS + 2, 5)
            status = sub.status("low")
            self.assertEqual({s["replay"] for s in sub.statuses}, {state})
            if said:
                self.assertIn(said, bridge.log())
            try:
                held = self.held(self.replay(), sub.runs[0])
            except Refused:
                held = []
            # Replay has what status says it has, up to the end.
            self.assertEqual(held, list(range(status["held"], status["n"] + 1)))
            self.assertEqual(bridge.stop(), 0)
            return held


class Disk(JournalCase):
    def test_own_directory_cannot_be_made(self):
        shim = compile_text(self.directory, NO_DIRECTORY, "no_directory", "-shared", "-fPIC", "-D_GNU_SOURCE")
        with Bridge(port=self.port, name=self.label, env=inject_env(shim)) as bridge:
            self.assertIn("No space left on device: going on without one", bridge.log())
            self.assertEqual(self.subscribe(bridge).status("low")["replay"], "degraded")

    def test_full(self):
        self.tmpfs("size=1m")
        with open(os.path.join(self.journal, "full"), "wb") as f:
            f.write(bytes(1000 * 1024))
        self.assertEqual(self.check_publishing(said="No space left"), [])

    def test_one_mib(self):
        """The smallest there is: made smaller than asked for, said so, and useful."""
        self.tmpfs("size=1m")
        held = self.check_publishing(said="no room for the sizes asked for")
        self.assertGreater(len(held), 500)

    def test_halved(self):
        self.tmpfs("size=10m")
        held = self.check_publishing(("--journal-low", "24M", "--journal-high", "8M"),
                                     said="6 MiB for low and 2 MiB for high")
        self.assertEqual(len(held), EVENTS + 2)

    def test_limit_of_file_sizes(self):
        self.assertEqual(self.check_publishing(said="File too large", prefix=("prlimit", "--fsize=1048576")), [])

    def test_kept_whatever_its_size(self):
        """Made smaller for want of room, of which there is even less at the next start; asked for
        smaller; asked for larger: what it holds stays, and numbers go on."""
        self.tmpfs("size=10m")
        self.addCleanup(subprocess.run, [tool("coretapd"), "--detach", "--name", self.label],
                        stderr=subprocess.DEVNULL)
        events = 0
        for low, high, state in (("24M", "8M", "degraded"), ("24M", "8M", "degraded"),
                                 ("2M", "2M", "ok"), ("4M", "2M", "ok")):
            with self.start("--journal-low", low, "--journal-high", high,
                            "--keep-attached") as bridge:
                sub = self.subscribe(bridge)
                self.assertEqual(sub.status("low")["replay"], state)
                self.assertEqual("going on where" in bridge.log(), events > 0)
                self.assertEqual("6 MiB for low and 2 MiB for high" in bridge.log(), state == "degraded")
                self.burst(sub, 1000)
                events += 1002
                wait_until(lambda: sub.status("low")["n"] == events, 5)
                self.assertEqual(self.held(self.replay(), sub.runs[0]),
                                 list(range(1, events + 1)))
                self.assertEqual(bridge.stop(), 0)
            with open(os.path.join(self.journal, "others"), "wb") as f:
                f.write(bytes(1 << 20))

    def test_of_another_coretapd(self):
        with self.start() as bridge:
            sub = self.subscribe(bridge)
            other = subprocess.run(
                [tool("coretapd"), "--binary", FAKE_NODE, "--name", f"{self.label}-b", "--port",
                 "none", "--journal", self.journal], stderr=subprocess.PIPE, text=True)
            self.addCleanup(shutil.rmtree, f"/run/coretap/{self.label}-b", ignore_errors=True)
            self.assertEqual(other.returncode, 5)
            self.assertIn("another coretapd uses it", other.stderr)
            self.burst(sub)
            self.assertEqual(len(self.held(self.replay(), sub.runs[0])), EVENTS + 2)

    def test_fills_up_while_it_runs(self):
        """The journal's room is taken at the start: a disk that fills up later is no matter."""
        self.tmpfs("size=40m")
        with self.start("--journal-low", "8M", "--journal-high", "8M") as bridge:
            sub = self.subscribe(bridge)
            try:
                with open(os.path.join(self.journal, "full"), "wb") as f:
                    while True:
                        f.write(bytes(1 << 20))
            except OSError:
                pass
            self.burst(sub, 200000)
            self.burst(sub, 200000, "--probe", "utxo")
            self.check_stream(sub)
            self.assertEqual(sub.status("low")["replay"], "ok")
            self.assertEqual(bridge.stop(), 0)

    def test_read_only(self):
        self.tmpfs("size=64m")
        subprocess.run(["mount", "-o", "remount,ro", self.journal], check=True)
        self.assertEqual(self.check_publishing(said="Read-only"), [])

    def test_a_file_in_its_place(self):
        with open(self.journal, "w") as f:
            f.write("precious")
        self.assertEqual(self.check_publishing(said="Not a directory"), [])
        with open(self.journal) as f:
            self.assertEqual(f.read(), "precious")

    def test_a_directory_in_place_of_the_file(self):
        os.makedirs(os.path.join(self.journal, "data.mdb", "precious"))
        with self.start() as bridge:
            sub = self.subscribe(bridge)
            self.burst(sub)
            self.check_stream(sub)
        self.assertTrue(os.path.isdir(os.path.join(self.journal, "data.mdb", "precious")))

    def test_no_parent(self):
        self.journal = os.path.join(self.directory, "none", "journal")
        self.assertEqual(self.check_publishing(said="No such file"), [])


class Content(JournalCase):
    def files(self):
        """The journal's data, whatever its name is."""
        return [os.path.join(self.journal, f) for f in os.listdir(self.journal)
                if os.lstat(os.path.join(self.journal, f)).st_size > 4096]

    def fill(self):
        with self.start() as bridge:
            sub = self.subscribe(bridge)
            self.burst(sub)
            bridge.stop()
            return sub.runs[0]

    def damage(self, how):
        for path in self.files():
            with open(path, "r+b") as f:
                how(f, os.path.getsize(path))

    def test_garbage(self):
        chance = random.Random(8)

        def noise(f, size):
            f.write(noise_of(chance, size))

        def cut(f, size):
            f.truncate(size // 3)

        def empty(f, _size):
            f.truncate(0)

        def zeros(f, size):
            f.write(bytes(size))
        for how in (noise, cut, empty, zeros):
            self.fill()
            self.damage(how)
            self.assertEqual(len(self.check_publishing(state="ok")), EVENTS + 2)

    def test_another_format(self):
        """Of a coretapd that wrote it otherwise: not looked at either."""
        run, boot = self.fill(), os.path.join(self.journal, "boot")
        origin = os.readlink(boot)
        with open("/proc/sys/kernel/random/boot_id") as f:
            self.assertRegex(origin, rf"^{f.read().strip()} \d+$")
        os.unlink(boot)
        os.symlink(origin.split(" ")[0], boot)
        with self.start() as bridge:
            self.assertNotIn("warning", bridge.log())
            self.assertNotIn(run, [r["run"] for r in self.replay().ask(op="hello")[0]["runs"]])
            self.assertEqual(os.readlink(boot), origin)

    def test_another_boot(self):
        """What another boot left is not even looked at: after a power cut it may be anything."""
        chance = random.Random(9)
        other = os.path.join(self.directory, "boot_id")
        with open(other, "w") as f:
            f.write("01234567-89ab-cdef-0123-456789abcdef\n")

        def noise_behind_the_head(f, size):
            f.seek(8192)
            f.write(noise_of(chance, size - 8192))

        def pages_that_lead_astray(f, size):
            """Each a leaf with one entry, which as a list of free pages goes far beyond the file."""
            page = struct.pack("<QHHHHH46xHHHHQQ", 0, 0, 2, 18, 64, 64, 8, 0, 0, 8, 1, 1 << 24).ljust(4096, b"\0")
            f.seek(8192)
            f.write(page * (size // 4096 - 2))
        for damage in (None, noise_behind_the_head, pages_that_lead_astray):
            run = self.fill()
            if damage:
                self.damage(damage)
            with self.start(prefix=(*OTHER_BOOT, other)) as bridge:
                sub = self.subscribe(bridge)
                runs = self.replay().ask(op="hello")[0]["runs"]
                self.assertNotIn(run, [r["run"] for r in runs])
                self.burst(sub)
                self.check_stream(sub)
                self.assertEqual(sub.status("low")["replay"], "ok")
            shutil.rmtree(self.journal)

    def test_old_runs(self):
        """Restarted without --keep-attached: the old run's rest is there, with the numbers where it
        ended, until it ages out."""
        ended = {}
        for i in range(3):
            with self.start("--journal-low", "8M", "--journal-high", "1M") as bridge:
                sub = self.subscribe(bridge)
                self.burst(sub, 10000 + i)
                wait_until(lambda: sub.count.get("node.exited"), 5)
                replay = self.replay()
                runs = {r["run"]: r for r in replay.ask(op="hello")[0]["runs"]}
                for run, events in ended.items():
                    self.assertTrue(runs[run]["ended"])
                    self.assertEqual(runs[run]["topics"]["mempool.removed"], events)
                    self.assertEqual(self.held(replay, run), list(range(1, events + 3)))
                self.assertEqual([r for r in runs if not runs[r]["ended"]], [sub.runs[0]])
                self.assertEqual(sorted(runs), list(runs))
                ended[sub.runs[0]] = 10000 + i
                if i % 2:
                    bridge.stop()
                else:
                    bridge.kill()
        with self.start("--journal-low", "8M", "--journal-high", "1M") as bridge:
            sub = self.subscribe(bridge)
            self.burst(sub, 200000)
            runs = [r["run"] for r in self.replay().ask(op="hello")[0]["runs"]]
            self.assertEqual(runs, [sub.runs[0]])
            with self.assertRaisesRegex(Refused, "not held"):
                self.replay().ask(op="replay", socket="low", run=max(ended), after=0)

    def test_another_label_whose_clock_was_ahead(self):
        """A run is greater than every one that the journal has, whoever wrote it."""
        ahead = 2 ** 52
        os.makedirs(f"/run/coretap/{self.label}", exist_ok=True)
        with open(f"/run/coretap/{self.label}/lock", "w") as f:
            f.write(f"{ahead}\n")
        self.assertEqual(self.fill(), ahead + 1)
        self.label += "-other"
        self.addCleanup(shutil.rmtree, f"/run/coretap/{self.label}", ignore_errors=True)
        with self.start() as bridge:
            sub = self.subscribe(bridge)
            self.burst(sub, 1000)
            self.assertEqual(sub.runs, [ahead + 2])
            wait_until(lambda: sub.count.get("node.exited"), 5, "the end")
            replay = self.replay()
            self.assertEqual(self.held(replay, ahead + 1), list(range(1, EVENTS + 3)))
            self.assertEqual(self.held(replay, ahead + 2), list(range(1, 1003)))

    def test_a_subscriber_that_was_away_gets_the_old_runs(self):
        """From a saved position, through two runs that came and went meanwhile."""
        got = []
        with self.start() as bridge:
            sub = self.subscribe(bridge)
            self.burst(sub, 1000)
            run = sub.runs[0]
        for _ in range(2):
            with self.start() as bridge:
                self.burst(self.subscribe(bridge), 1000)
        with self.start() as bridge:
            with CompleteSubscriber(self.port, start={"low": (run, 501), "high": (run, 0)},
                                    deliver=lambda _s, t, m: got.append((t, m))) as late:
                wait_until(lambda: late.joined() and late.streams["low"].run > run, 10, "the newest run")
                with FakeNode("burst", 1000, "--wait") as node:
                    node.finish()
                wait_until(lambda: sum(len(m["events"]) for t, m in got if t == "mempool.removed") >=
                           3500, 10, "all")
            self.assertEqual((late.errors, late.gone, late.unknown), ([], [], []))
        runs = [m["run"] for _, m in got]
        self.assertEqual(runs, sorted(runs))
        self.assertEqual(len(set(runs)), 4)
        first = next(m for _, m in got)
        self.assertTrue(first["n"] <= 502 < first["n"] + len(first["events"]))


class Bounds(JournalCase):
    def test_a_flood_in_high_does_not_age_low(self):
        with self.start("--journal-low", "4M", "--journal-high", "2M") as bridge:
            sub = self.subscribe(bridge)
            self.burst(sub, 10000)
            self.burst(sub, 300000, "--probe", "utxo")
            wait_until(lambda: sub.status("high")["held"] > 100000 and sub.status("high")["n"] == 300000, 5, "high ages")
            self.assertEqual(sub.status("low")["held"], 1)
            replay, run = self.replay(), sub.runs[0]
            self.assertEqual(self.held(replay, run)[:10000], list(range(1, 10001)))
            high = self.held(replay, run, "high")
            self.assertEqual((high[0], high[-1]), (sub.status("high")["held"], 300000))
            self.assertEqual(high, list(range(high[0], 300001)))
            size = sum(os.lstat(os.path.join(self.journal, f)).st_blocks * 512
                       for f in os.listdir(self.journal))
            self.assertLessEqual(size, (6 << 20) + (64 << 10))

    def test_lists_larger_than_they_should_be(self):
        """block.evictions of large blocks in a small journal: whatever fits is kept, nothing stops."""
        with self.start("--journal-low", "3M", "--journal-high", "1M") as bridge:
            sub = self.subscribe(bridge)
            for i, txs in enumerate((100, 8000, 300, 25000, 100, 8000)):
                with FakeNode("blocks", 1, txs, "--wait", "--seed", i + 1) as node:
                    node.finish()
                wait_until(lambda: sub.count.get("block.evictions", 0) >= i + 1, 20, "the list")
            wait_until(lambda: sub.count.get("node.exited") == 6, 5)
            self.check_stream(sub)
            wait_until(lambda: sub.status("low")["heads"]["node.exited"] == 6, 3)
            status = sub.status("low")
            self.assertEqual(status["replay"], "ok", bridge.log())
            held = self.held(self.replay(), sub.runs[0])
            self.assertEqual(held, list(range(status["held"], status["n"] + 1)))
            self.assertEqual(bridge.stop(), 0)

    def test_more_at_once_than_it_holds(self):
        """What came at once is larger than the journal: history begins after it, nothing stops."""
        with self.start("--journal-low", "1M", "--journal-high", "1M") as bridge:
            sub = self.subscribe(bridge)
            self.burst(sub, 1000)
            for _ in range(3):
                bridge.send(signal.SIGSTOP)
                with FakeNode("blocks", 1, 30000, "--wait") as node:
                    fired = node.finish()
                bridge.send(signal.SIGCONT)
                self.burst(sub, 1000)
            wait_until(lambda: sub.count.get("block.evictions") == 3 and sub.count.get("node.exited") == 7, 10,
                       "the lists")
            self.burst(sub, 1000)
            wait_until(lambda: sub.count.get("node.exited") == 8, 10, "node.exited")
            self.check_stream(sub)
            self.assertEqual(sub.count["mempool.removed"], 5000 + 3 * fired["mempool.removed"])
            n = sub.next_n[sub.runs[0], "low"] - 1
            wait_until(lambda: sub.status("low")["n"] == n, 5, "a status")
            status = sub.status("low")
            self.assertEqual(status["replay"], "ok", bridge.log())
            held = self.held(self.replay(), sub.runs[0])
            self.assertEqual(held, list(range(status["held"], n + 1)))
            self.assertGreaterEqual(len(held), 1000)
            self.assertEqual(bridge.stop(), 0)

    def test_in_run_at_most_a_quarter_of_what_is_free(self):
        free = os.statvfs("/run")
        wanted = free.f_bavail * free.f_frsize // 3 >> 20
        if wanted > 4096:
            self.skipTest(f"/run has {wanted * 3} MiB free: too much to fill for a test")
        self.journal = f"/run/coretap/{self.label}/journal"
        with Bridge("--journal-low", f"{wanted}M", "--journal-high", f"{wanted}M", port=self.port,
                    name=self.label, keep=True) as bridge:
            self.assertIn("no room for the sizes asked for", bridge.log())


if __name__ == "__main__":
    main()
