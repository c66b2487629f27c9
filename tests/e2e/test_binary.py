"""Breakpoints belong to an inode: whoever writes new code into a traced file finds it free of them,
and what starts from it next runs as it was built."""
import errno
import glob
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import (FAKE_NODE, ROOT, Bridge, FakeNode, Subscriber, TestCase, bpf_alive, compile_text,
                     inject_env, main, need_root, tool, wait_until)

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from test_faults import expectations

LEASE_BREAK_S = 45  # the kernel's patience with a holder that does not let go


def places(path):
    """Where its tracepoints are."""
    notes = subprocess.run(["readelf", "-n", path], capture_output=True, text=True).stdout
    return set(re.findall(r"Location: (0x[0-9a-f]+)", notes))


def digest(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


def links(bridge):
    return [i for i in bridge.bpf_ids() if i[0] == "link"]


class Binary(TestCase):
    @classmethod
    def setUpClass(cls):
        need_root()
        cls.kept = tempfile.TemporaryDirectory()
        cls.one, cls.two = os.path.join(cls.kept.name, "one"), os.path.join(cls.kept.name, "two")
        shutil.copy(FAKE_NODE, cls.one)
        # The same node from another compilation: other code at every place.
        sources = glob.glob(os.path.join(ROOT, "tests", "fake_node", "*.c"))
        subprocess.run([os.environ.get("CC", "gcc"), "-std=gnu11", "-O1", "-DFAKE_NODE_ABI=29",
                        *sources, "-o", cls.two, "-lpthread", "-lm"], check=True)

    @classmethod
    def tearDownClass(cls):
        cls.kept.cleanup()

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name
        self.path = os.path.join(self.directory, "node")
        shutil.copy(self.one, self.path)
        self.assertNotEqual(places(self.one), places(self.two))

    def cp(self, source, seconds=40):
        subprocess.run(["cp", source, self.path], check=True, timeout=seconds)
        self.assertEqual(digest(self.path), digest(source))

    def runs_right(self):
        """What starts from the file at once, traced or not, ends well and says what it should."""
        for args in (("walk", 3000), ("blocks", 2, 100, "--coins"), ("operands",), ("sites", 20)):
            with FakeNode(*args, binary=self.path) as node:
                node.finish(20)

    def traced_right(self, sub):
        """What starts from the file is traced by its own notes: every value as the node says."""
        with FakeNode("sites", 100, "--wait", "--linger", 100, binary=self.path) as node:
            fired = node.finish(20)
            self.assertEqual(fired, {"mempool.removed": 300})
            expected = [fields for _, fields, _ in expectations(node)]

        def got():
            return [e for e in sub.of("mempool.removed") if e.pid == node.pid]
        wait_until(lambda: len(got()) >= 300, 10, "300 removals")
        for event, fields in zip(got(), expected):
            del event["time_us"]
            self.assertEqual(event, fields)
        self.assertEqual(len(got()), 300)

    def test_cp_over_it(self):
        """Time and again, the bridge idle."""
        for args in ([], ["--without", "multi"]):
            with self.subTest(args=args), Bridge(*args, binary=self.path) as bridge, \
                    Subscriber(bridge) as sub:
                sub.wait_status()
                for source in (self.two, self.one, self.two):
                    self.cp(source)
                    self.runs_right()
                    wait_until(lambda: links(bridge), 5, "attached again")
                    self.traced_right(sub)
                self.assertEqual(bridge.log().count("written in place"), 3)
                self.check_stream(sub)
                self.assertEqual(sub.lost, {})

    def test_cp_while_no_coretapd_runs(self):
        """Nobody holds the writer then. The next start lets go of what stayed attached before it attaches anew."""
        with Bridge("--keep-attached", binary=self.path, keep=True) as first:
            self.addCleanup(subprocess.run, [tool("coretapd"), "--detach", "--name", first.name],
                            stderr=subprocess.DEVNULL)
            ids = first.bpf_ids()
            first.kill()
        self.assertTrue(bpf_alive(ids))
        self.cp(self.two)
        with Bridge("--keep-attached", binary=self.path, name=first.name, port=first.port) as second, \
                Subscriber(second) as sub:
            sub.wait_status()
            self.assertIn("the binary is another one now", second.log())
            wait_until(lambda: not bpf_alive(ids), 10, "the old program gone")
            self.runs_right()
            self.traced_right(sub)
            self.check_stream(sub)

    def test_writer_waits_until_detached(self):
        """The open for writing returns when no breakpoint is left, and not before."""
        for args in ([], ["--without", "multi"]):
            with self.subTest(args=args), Bridge(*args, binary=self.path) as bridge, \
                    Subscriber(bridge) as sub:
                sub.wait_status()
                self.assertTrue(links(bridge))
                start = time.monotonic()
                fd = os.open(self.path, os.O_WRONLY)
                left = links(bridge)
                self.assertLess(time.monotonic() - start, 40)  # not the kernel's 45 s
                self.assertEqual(left, [])
                time.sleep(0.5)
                self.assertEqual(links(bridge), [], "attached while the file is being written")
                os.close(fd)
                wait_until(lambda: links(bridge), 5, "attached again")
                self.traced_right(sub)

    def test_bridge_stopped(self):
        """One that cannot react holds the writer back, not the other way round."""
        with Bridge(binary=self.path) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            bridge.send(signal.SIGSTOP)
            with subprocess.Popen(["cp", self.two, self.path]) as writer:
                time.sleep(1)
                self.assertIsNone(writer.poll())
                self.assertEqual(digest(self.path), digest(self.one))
                bridge.send(signal.SIGCONT)
                self.assertEqual(writer.wait(40), 0)
            self.assertEqual(digest(self.path), digest(self.two))
            self.runs_right()
            wait_until(lambda: links(bridge), 5, "attached again")
            self.traced_right(sub)

    def test_under_load(self):
        """A full ring to work through: the writer does not wait for that, and nothing is lost."""
        with Bridge(binary=self.path) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            bridge.send(signal.SIGSTOP)
            with FakeNode("burst", 200000, "--wait", binary=self.path) as node:
                fired = node.finish()
            with subprocess.Popen(["cp", self.two, self.path]) as writer:
                time.sleep(0.1)
                start = time.monotonic()
                bridge.send(signal.SIGCONT)
                self.assertEqual(writer.wait(40), 0)
                self.assertLess(time.monotonic() - start, 40)
            self.runs_right()
            sub.wait_ledger(fired)
            self.assertEqual(sub.lost, {})
            wait_until(lambda: links(bridge), 5, "attached again")
            wait_until(lambda: sub.status("low")["pid"] is None, 5, "no node in status")
            self.traced_right(sub)
            self.check_stream(sub)

    def test_many_writers(self):
        """Writers one after the other and at the same time; the last one's content runs."""
        with Bridge(binary=self.path) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            for k in range(15):
                self.cp(self.two if k % 2 else self.one)
            threads = [threading.Thread(target=shutil.copyfile, args=(self.two, self.path))
                       for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(LEASE_BREAK_S)
            self.assertEqual(digest(self.path), digest(self.two))
            self.runs_right()
            wait_until(lambda: links(bridge), 5, "attached again")
            self.traced_right(sub)

    def test_running_node_is_not_disturbed(self):
        """The kernel refuses to write to what runs; tracing goes on without a pause."""
        with Bridge(binary=self.path) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            with FakeNode("burst", 10000, "--rate", 5000, "--wait", binary=self.path) as node:
                wait_until(lambda: sub.count.get("mempool.removed"), what="events")
                try:
                    os.close(os.open(self.path, os.O_WRONLY))
                    self.skipTest("this kernel lets one write to a running binary")
                except OSError as error:
                    self.assertEqual(error.errno, errno.ETXTBSY)
                fired = node.finish()
            sub.wait_ledger(fired)
            self.check_account(sub, fired)
            self.assertEqual(sub.lost, {})
            self.assertNotIn("written in place", bridge.log())

    def test_rename_over_a_running_node(self):
        """The right way to replace it: the old process is traced to its end."""
        with Bridge(binary=self.path) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            with FakeNode("burst", 5000, "--rate", 5000, "--wait", binary=self.path) as node:
                wait_until(lambda: sub.count.get("mempool.removed"), what="events")
                shutil.copy(self.two, self.path + ".new")
                os.rename(self.path + ".new", self.path)
                fired = node.finish()
            sub.wait_ledger(fired)
            self.check_account(sub, fired)
            self.check_stream(sub)
            self.assertEqual(sub.lost, {})
            self.assertNotIn("written in place", bridge.log())
            self.runs_right()

    def test_upgrade_by_rename(self):
        """A file renamed onto the path is attached: restarting from it needs no operator."""
        with Bridge(binary=self.path) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            self.traced_right(sub)
            shutil.copy(self.two, self.path + ".new")
            os.rename(self.path + ".new", self.path)
            time.sleep(1)
            self.traced_right(sub)
            self.check_stream(sub)

    def test_new_file_written_under_the_name(self):
        """As install does it: the name is there before the content. It is attached once, when it is whole, and
        nobody is told off."""
        with open(self.two, "rb") as file:
            content = file.read()
        with Bridge(binary=self.path) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            for k, pause in enumerate((0, 0.005, 0.005, 0.1, 0.1), 1):
                os.unlink(self.path)
                fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o755)
                os.write(fd, content[:1000])
                time.sleep(pause)
                os.write(fd, content[1000:])
                os.close(fd)
                wait_until(lambda: bridge.log().count(": attached\n") == k, 5, "attached again")
                time.sleep(0.3)
                self.assertEqual(bridge.log().count(": attached\n"), k)
            self.assertNotIn("written in place", bridge.log())
            self.assertNotIn("error", bridge.log())
            self.traced_right(sub)
            self.check_stream(sub)

    def test_renamed_over_by_one_without_tracepoints(self):
        """Of the node that still runs everything goes on, what derives from its events too."""
        with Bridge(binary=self.path) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            with FakeNode("blocks", 8, 50, "--rate", 400, "--wait", binary=self.path) as node:
                wait_until(lambda: sub.of("block.evictions"), what="a list")
                shutil.copy("/bin/true", self.path + ".new")
                os.rename(self.path + ".new", self.path)
                wait_until(lambda: "has none of the tracepoints" in bridge.log(), 5, "a line about it")
                fired = node.finish()
            sub.wait_ledger(fired)
            wait_until(lambda: sub.of("node.exited"), 5, "node.exited")
            self.assertEqual([e["complete"] for e in sub.of("block.evictions") if e["final"]], [True] * 8)
            self.check_stream(sub)

    def test_content_without_tracepoints(self):
        """Told, and survived; what has them again is traced again."""
        with Bridge(binary=self.path) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            self.cp("/bin/true")
            subprocess.run([self.path], check=True, timeout=80)
            wait_until(lambda: "error" in bridge.log(), 5, "a line about it")
            start = time.monotonic()
            with open(self.path, "w") as f:
                f.write("no program at all\n")
            self.assertLess(time.monotonic() - start, 40, "a writer was held up")
            time.sleep(0.3)
            self.assertEqual(links(bridge), [])
            self.cp(self.two)
            os.chmod(self.path, 0o755)
            wait_until(lambda: links(bridge), 5, "attached again")
            self.traced_right(sub)

    def elsewhere(self, directory, leased=True, **keywords):
        """The same on another file system, or under other circumstances."""
        self.path = os.path.join(directory, "node")
        shutil.copy(self.one, self.path)
        with Bridge(binary=self.path, **keywords) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            self.traced_right(sub)
            self.cp(self.two)
            if not leased:
                wait_until(lambda: bridge.log().count(" tracepoints") == 2, 5, "attached again")
            self.runs_right()
            wait_until(lambda: links(bridge), 5, "attached again")
            self.traced_right(sub)
            self.assertIn("written in place", bridge.log())

    def mount(self, *args):
        target = os.path.join(self.directory, "mount")
        os.makedirs(target, exist_ok=True)
        if subprocess.run(["mount", *args, target], capture_output=True).returncode:
            raise unittest.SkipTest("cannot mount here")
        self.addCleanup(subprocess.run, ["umount", "-l", target])
        return target

    def test_on_tmpfs(self):
        self.elsewhere(self.mount("-t", "tmpfs", "none"))

    def test_on_overlay(self):
        for name in ("lower", "upper", "work"):
            os.mkdir(os.path.join(self.directory, name))
        d = self.directory
        self.elsewhere(self.mount("-t", "overlay", "overlay", "-o",
                                  f"lowerdir={d}/lower,upperdir={d}/upper,workdir={d}/work"))

    def test_without_a_lease(self):
        """Another's file, and no CAP_LEASE: only the notice of the write is left, and nobody waits
        for it to be heard; what starts some milliseconds later is right."""
        if not shutil.which("setpriv"):
            self.skipTest("no setpriv")
        os.chown(self.directory, 65534, 65534)
        directory = os.path.join(self.directory, "of nobody")
        os.mkdir(directory)
        shutil.copy(self.one, os.path.join(directory, "node"))
        os.chown(os.path.join(directory, "node"), 65534, 65534)
        self.elsewhere(directory, leased=False,
                       prefix=("setpriv", "--bounding-set", "-lease"))

    def test_without_a_watch(self):
        """This user's inotify instances are used up: the writer is held back all the same, and the file
        attached again once a node runs from it."""
        shim = compile_text(self.directory, "#include <errno.h>\nint inotify_init1(int flags)\n"
                            "{ errno = EMFILE; return -1 + 0 * flags; }\n", "watch", "-shared", "-fPIC")
        with Bridge(binary=self.path, env=inject_env(shim)) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            self.assertIn("cannot be watched for writes", bridge.log())
            self.assertTrue(links(bridge))
            self.cp(self.two)
            self.assertIn("written in place: detached", bridge.log())
            self.assertFalse(links(bridge))
            self.runs_right()
            with FakeNode("burst", 100, "--wait", "--hold", binary=self.path) as node:
                sub.wait_count("mempool.removed", 100)
                self.assertEqual({e.pid for e in sub.of("mempool.removed")}, {node.pid})
            self.check_stream(sub)


if __name__ == "__main__":
    main()
