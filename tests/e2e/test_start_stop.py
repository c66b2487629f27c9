"""Starting, refusing to start, following the node, and ending without leaving anything behind."""
import ctypes
import json
import os
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

import zmq

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import (FAKE_NODE, Bridge, FakeNode, Subscriber, TestCase, bpf_alive, free_port, main,
                     need_root, semaphores, tool, wait_until)

USAGE, NO_TRACEPOINTS, PRIVILEGE, ADDRESS, NO_NODE = 2, 3, 4, 5, 6
CAP_SYS_ADMIN, CAP_PERFMON, CAP_BPF = 21, 38, 39

TRACED = {"net.inbound_message", "net.outbound_message", "net.inbound_connection",
          "net.outbound_connection", "net.evicted_inbound_connection", "net.closed_connection",
          "net.misbehaving_connection", "validation.block_connected", "utxocache.flush",
          "utxocache.add", "utxocache.spent", "utxocache.uncache", "mempool.added",
          "mempool.removed", "mempool.replaced", "mempool.rejected"}
WALLET = {"coin_selection.selected_coins", "coin_selection.normal_create_tx_internal",
          "coin_selection.attempting_aps_create_tx", "coin_selection.aps_create_tx_internal"}


def run(*args, seconds=80):
    """coretapd with exactly these arguments, to its end: exit code and lines of stderr."""
    done = subprocess.run([tool("coretapd"), *map(str, args)], stderr=subprocess.PIPE, text=True,
                          timeout=seconds, stdout=subprocess.DEVNULL)
    return done.returncode, done.stderr.splitlines()


def own_label():
    """A label that nobody else uses."""
    return f"t{os.getpid()}-{free_port()}"


def forget(label):
    shutil.rmtree(f"/run/coretap/{label}", ignore_errors=True)


class Case(TestCase):
    def setUp(self):
        need_root()
        directory = tempfile.TemporaryDirectory(prefix="coretap test ")
        self.addCleanup(directory.cleanup)
        os.chmod(directory.name, 0o755)
        self.directory = directory.name

    def path(self, name):
        return os.path.join(self.directory, name)

    def binary(self, name="node"):
        """A node's executable of our own: an inode that nobody else traces or runs."""
        return shutil.copy(FAKE_NODE, self.path(name))

    def traced(self, pid, binary, expected):
        values = semaphores(pid, binary)
        self.assertTrue(expected <= set(values))
        return all((values[name] > 0) == (name in expected) for name in values)

    def wait_untraced(self, pid, binary):
        wait_until(lambda: not any(semaphores(pid, binary).values()), 10, "semaphores at 0")

    def wait_no_bpf(self, ids):
        self.assertTrue({"prog", "link"} <= {kind for kind, _ in ids})
        wait_until(lambda: not bpf_alive(ids), 10, "BPF objects gone")


class Refusals(Case):
    """Exit codes, and one clear line."""

    def refused(self, code, *args, says=(), **keywords):
        label = own_label()
        got, lines = run("--name", label, "--port", free_port(), "--journal", "none", *args, **keywords)
        forget(label)
        text = "\n".join(lines)
        self.assertEqual(got, code, text)
        self.assertEqual(len([line for line in lines if line.startswith("coretapd: ")]), 1, text)
        self.assertEqual(len(lines), 1, text)
        for word in says:
            self.assertIn(word, text)
        return lines[0]

    def test_binary_without_tracepoints(self):
        bare = self.path("bare")
        subprocess.run(["objcopy", "--remove-section=.note.stapsdt", FAKE_NODE, bare], check=True)
        self.refused(NO_TRACEPOINTS, "--binary", bare, says=(bare, "WITH_USDT", "coretap probes"))

    def test_files_that_are_no_node(self):
        script, text, empty = self.path("script"), self.path("text"), self.path("empty")
        with open(script, "w") as f:
            f.write("#!/bin/sh\nexec true\n")
        os.chmod(script, 0o755)
        with open(text, "w") as f:
            f.write("just text\n" * 100)
        open(empty, "w").close()
        short = self.path("short")
        with open(FAKE_NODE, "rb") as f, open(short, "wb") as out:
            out.write(f.read(500))
        for path in (script, text, empty, short, self.directory, "/dev/null"):
            with self.subTest(path=path):
                self.refused(NO_TRACEPOINTS, "--binary", path, says=(path,))

    def test_fifo(self):
        fifo = self.path("fifo")
        os.mkfifo(fifo)
        self.refused(NO_TRACEPOINTS, "--binary", fifo, says=(fifo,), seconds=20)

    def test_being_written(self):
        """Not as if it had none: a service manager tries again."""
        path = self.binary()
        with open(path, "r+b"):
            self.refused(NO_NODE, "--binary", path, says=(path, "writing"))

    def test_missing_file(self):
        line = self.refused(NO_NODE, "--binary", self.path("missing"), says=("missing",))
        self.assertIn("No such file", line)

    def test_wrong_architecture(self):
        path = self.binary("other")
        with open(path, "r+b") as f:
            f.seek(18)  # e_machine
            machine = struct.unpack("<H", f.read(2))[0]
            f.seek(18)
            f.write(struct.pack("<H", 183 if machine == 62 else 62))
        self.refused(NO_TRACEPOINTS, "--binary", path, says=(path, "machine"))

    def test_truncated_elf(self):
        for part in (0.3, 0.6, 0.9):
            path = self.path(f"cut{part}")
            with open(FAKE_NODE, "rb") as f, open(path, "wb") as out:
                out.write(f.read(int(os.path.getsize(FAKE_NODE) * part)))
            self.refused(NO_TRACEPOINTS, "--binary", path)

    def test_only_tracepoints_that_it_lacks(self):
        path = self.binary()
        subprocess.run(["objcopy", "--remove-section=.note.stapsdt", path], check=True)
        self.refused(NO_TRACEPOINTS, "--binary", path, "--only", "mempool.*")

    def test_stripped_works(self):
        path = self.binary()
        subprocess.run(["strip", path], check=True)
        with Bridge(binary=path) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            with FakeNode("burst", 100, "--wait", binary=path) as node:
                fired = node.finish()
            sub.wait_ledger(fired)
            self.check_account(sub, fired)

    def test_two_nodes_of_one_binary(self):
        path = self.binary()
        with FakeNode("burst", 1, "--wait", "--hold", binary=path) as one, \
                FakeNode("burst", 1, "--wait", "--hold", binary=path) as two:
            self.refused(NO_NODE, "--binary", path, says=(str(one.pid), str(two.pid), "--datadir"))

    def test_no_such_process(self):
        with subprocess.Popen(["true"]) as process:
            process.wait()
        self.refused(NO_NODE, "--pid", process.pid, says=(str(process.pid),))
        self.refused(NO_NODE, "--pid-file", self.path("none"), says=("none",))
        self.refused(NO_NODE, "--datadir", self.directory, says=(self.directory,))
        with open(self.path("pid"), "w") as f:
            f.write("not a number\n")
        self.refused(NO_NODE, "--pid-file", self.path("pid"), says=(self.path("pid"),))

    def test_nothing_left_to_publish(self):
        self.refused(USAGE, "--only", "mempool.*", "--exclude", "*", says=("--exclude", "no topic"))

    def test_usage(self):
        for args in (["--no-such-option"], ["--port", "x"], ["--port", "0"], ["--port", "65535"],
                     ["--port"], ["--name", "a b"], ["--name", "x" * 33], ["--name", ""],
                     ["--only", "mempol.*"], ["--exclude", "nothing"], ["surplus"], ["--pid", "0"],
                     ["--pid", "-1"], ["--subscriber-memory", "0"], ["--without", "x"],
                     ["--pid", "1", "--datadir", "/"]):
            with self.subTest(args=args):
                code, lines = run(*args)
                self.assertEqual(code, USAGE, lines)
                self.assertEqual(len(lines), 1, lines)

    def test_options_are_named(self):
        for args, *words in ((["-xv"], "-x: unknown"), (["--check=yes"], "--check=yes: takes no value"),
                             (["--port"], "--port: wants a value"), (["--ring", "1M"], "--ring: unknown"),
                             (["--nonsense=1"], "--nonsense=1: unknown")):
            with self.subTest(args=args):
                code, lines = run(*args)
                self.assertEqual((code, len(lines)), (USAGE, 1), lines)
                for word in words:
                    self.assertIn(word, lines[0])

    def test_ring_sizes(self):
        """Refused, or rounded up to a power of two of whole pages and told."""
        for option in ("--ring-low", "--ring-high"):
            for size in ("0", str(1 << 31), str(1 << 32), "-1", "-4096", "many", "", "6X", "64MB",
                         "1e6", "18446744073709551616", "17179869184G"):
                with self.subTest(option=option, size=size):
                    self.refused(USAGE, option, size, "--binary", FAKE_NODE, says=(option, size))
        for size, real in (("1", 4096), ("4095", 4096), ("4097", 8192), ("6M", 8 << 20),
                           ("64M", None), ("4K", None)):
            with self.subTest(size=size), Bridge("--ring-low", size) as bridge:
                told = [line for line in bridge.log().splitlines() if "rounded" in line]
                self.assertEqual(len(told), real is not None)
                for line in told:
                    self.assertIn(str(real), line)


class Privileges(Case):
    def refused(self, words, *prefix, preexec=None):
        """Told as one line that names what is missing."""
        binary, label = self.binary(), own_label()
        program = shutil.copy(tool("coretapd"), self.path("coretapd"))
        done = subprocess.run([*prefix, program, "--binary", binary, "--port", str(free_port()),
                               "--journal", "none", "--name", label], text=True, timeout=80,
                              stderr=subprocess.PIPE, preexec_fn=preexec)
        forget(label)
        lines = [line for line in done.stderr.splitlines() if "error" in line]
        self.assertEqual(done.returncode, PRIVILEGE, done.stderr)
        self.assertEqual(len(lines), 1, done.stderr)
        for word in words:
            self.assertIn(word, lines[0])
        return lines[0]

    def need(self, name):
        if not shutil.which(name):
            self.skipTest(f"no {name}")

    def test_as_nobody(self):
        self.need("setpriv")
        self.refused(("CAP_BPF", "CAP_PERFMON"), "setpriv", "--reuid=65534", "--regid=65534",
                     "--clear-groups")

    def without(self, *caps):
        """Drops capabilities for good, in the child, before it becomes coretapd."""
        libc = ctypes.CDLL(None, use_errno=True)

        def drop():
            for cap in caps:
                if libc.prctl(24, cap, 0, 0, 0):  # PR_CAPBSET_DROP
                    os._exit(99)
        return drop

    def test_without_cap_bpf(self):
        line = self.refused(("CAP_BPF",), preexec=self.without(CAP_BPF, CAP_SYS_ADMIN))
        self.assertNotIn("missing CAP_PERFMON", line)
        self.assertNotIn("CAP_BPF and CAP_PERFMON:", line)

    def test_without_cap_perfmon(self):
        line = self.refused(("CAP_PERFMON",), preexec=self.without(CAP_PERFMON, CAP_SYS_ADMIN))
        self.assertIn("missing CAP_PERFMON:", line)

    def test_with_these_two_capabilities_only(self):
        """As root without CAP_SYS_ADMIN: all that the message asks for is enough."""
        binary = self.binary()
        self.need("setpriv")
        with Bridge(binary=binary, prefix=("setpriv", "--bounding-set", "-sys_admin")) as bridge, \
                Subscriber(bridge) as sub:
            sub.wait_status()
            with FakeNode("burst", 100, "--wait", binary=binary) as node:
                fired = node.finish()
            sub.wait_ledger(fired)
            self.check_account(sub, fired)

    def test_little_locked_memory(self):
        """Since Linux 5.11 BPF memory is not counted against RLIMIT_MEMLOCK."""
        release = tuple(int(x) for x in os.uname().release.split(".")[:2])
        if release < (5, 11):
            self.skipTest("Linux before 5.11")
        self.need("prlimit")
        with Bridge(prefix=("prlimit", "--memlock=65536:65536")) as bridge, \
                Subscriber(bridge) as sub:
            limits = resource.prlimit(bridge.pid, resource.RLIMIT_MEMLOCK)
            self.assertEqual(limits, (65536, 65536))
            sub.wait_status()
            with FakeNode("burst", 100, "--wait") as node:
                fired = node.finish()
            sub.wait_ledger(fired)
            self.check_account(sub, fired)


class Surroundings(Case):
    def test_standard_files_closed(self):
        """What is written there ends nowhere, and in no file of ours."""
        binary, label = self.binary(), own_label()
        self.addCleanup(forget, label)
        process = subprocess.Popen(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", tool("coretapd"), "--binary", binary,
                                    "--name", label, "--port", str(free_port()),
                                    "--journal-low", "4M", "--journal-high", "4M"])
        try:
            wait_until(lambda: os.path.exists(f"/run/coretap/{label}/replay.sock"), 20)
            self.assertEqual([os.readlink(f"/proc/{process.pid}/fd/{i}") for i in range(3)], ["/dev/null"] * 3)
        finally:
            process.terminate()
        self.assertEqual(process.wait(80), 0)


class Addresses(Case):
    def other(self, *args, label=None):
        """A second coretapd, which must not get far."""
        name = label or own_label()
        code, lines = run("--binary", self.binary(), "--journal", "none", "--name", name, *args)
        if not label:
            forget(name)
        return code, "\n".join(lines)

    def test_address_in_use(self):
        for offset in (0, 1, 2):
            with self.subTest(offset=offset), socket.socket() as listener:
                port = free_port()
                listener.bind(("127.0.0.1", port + offset))
                listener.listen()
                code, text = self.other("--port", port)
                self.assertEqual(code, ADDRESS, text)
                self.assertIn(str(port + offset), text)

    def test_address_of_another_coretapd_is_not_taken(self):
        with Bridge() as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            code, text = self.other("--port", bridge.port)
            self.assertEqual(code, ADDRESS, text)
            code, text = self.other("--port", free_port(), "--low",
                                    f"ipc:///run/coretap/{bridge.name}/low.sock")
            self.assertEqual(code, ADDRESS, text)
            with FakeNode("burst", 10, "--wait") as node:
                fired = node.finish()
            sub.wait_ledger(fired)
            self.check_account(sub, fired)
            self.ipc_works(bridge.name)

    def test_address_of_one_that_accepts_nothing(self):
        """Stopped, with all the connections that may wait: in use, and no reason to wait for it."""
        with tempfile.TemporaryDirectory(prefix="coretap ") as directory, \
                socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as waiting:
            path = os.path.join(directory, "low.sock")
            listener.bind(path)
            listener.listen(0)
            waiting.connect(path)
            code, text = self.other("--port", free_port(), "--low", f"ipc://{path}")
            self.assertEqual(code, ADDRESS, text)
            self.assertIn("in use by another process", text)

    def test_same_label(self):
        with Bridge() as bridge:
            code, text = self.other("--port", free_port(), label=bridge.name)
            self.assertEqual(code, ADDRESS, text)
            self.assertIn(bridge.name, text)

    def test_directory_removed(self):
        """It goes on over tcp, and says what is gone, once."""
        with Bridge() as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            shutil.rmtree(f"/run/coretap/{bridge.name}")
            with FakeNode("burst", 10, "--wait") as node:
                node.finish()
            sub.wait_count("mempool.removed", 10)
            wait_until(lambda: "was removed" in bridge.log(), 5)
            time.sleep(1.5)
            self.assertEqual(bridge.log().count("was removed"), 1)

    def ipc_works(self, name):
        context = zmq.Context()
        for side in ("low", "high"):
            subscriber = context.socket(zmq.SUB)
            subscriber.setsockopt(zmq.LINGER, 0)
            subscriber.subscribe(b"bridge.status")
            subscriber.connect(f"ipc:///run/coretap/{name}/{side}.sock")
            self.assertTrue(subscriber.poll(12000), side)
            subscriber.close()
        context.term()

    def test_stale_ipc_socket_is_replaced(self):
        first = Bridge()
        name = first.name
        self.ipc_works(name)
        first.kill()
        first.errors.close()
        self.assertTrue(os.path.exists(f"/run/coretap/{name}/low.sock"))
        with Bridge(name=name):
            self.ipc_works(name)
        self.assertFalse(os.path.exists(f"/run/coretap/{name}/low.sock"))

    def test_file_at_an_ipc_path_is_left_alone(self):
        path = self.path("file")
        with open(path, "w") as f:
            f.write("precious\n")
        for side in ("--low", "--high"):
            code, text = self.other(side, f"ipc://{path}", "--port", free_port())
            self.assertEqual(code, ADDRESS, text)
            self.assertIn(path, text)
            with open(path) as f:
                self.assertEqual(f.read(), "precious\n")

    def test_other_things_at_an_ipc_path(self):
        target = self.path("target")
        with open(target, "w") as f:
            f.write("precious\n")
        link, directory, fifo = self.path("link"), self.path("dir"), self.path("fifo")
        os.symlink(target, link)
        os.mkdir(directory)
        os.mkfifo(fifo)
        for path in (link, directory, fifo):
            code, text = self.other("--low", f"ipc://{path}", "--port", free_port())
            self.assertEqual(code, ADDRESS, text)
            self.assertTrue(os.path.lexists(path))
        self.assertTrue(os.path.islink(link))
        with open(target) as f:
            self.assertEqual(f.read(), "precious\n")

    def test_impossible_ipc_path(self):
        code, text = self.other("--low", "ipc://" + self.path("x" * 120), "--port", free_port())
        self.assertNotEqual(code, 0)
        self.assertIn("longer", text)


class Attaching(Case):
    def test_before_the_node_starts(self):
        """Semaphores of what is traced are raised in a node that starts later, others are not."""
        for args, expected in (([], TRACED), (["--only", "*"], TRACED | WALLET),
                               (["--exclude", "net.*", "--exclude", "utxocache.*"],
                                {t for t in TRACED if t.split(".")[0] in ("mempool", "validation")}),
                               (["--only", "net.inbound_message"], {"net.inbound_message"}),
                               (["--without", "multi"], TRACED)):
            with self.subTest(args=args):
                binary = self.binary()
                with Bridge(*args, binary=binary), \
                        FakeNode("burst", 5, "--wait-signal", "--hold", binary=binary) as node:
                    wait_until(lambda: self.traced(node.pid, binary, expected), 5,
                               f"semaphores {semaphores(node.pid, binary)}")
                    time.sleep(0.2)
                    self.assertTrue(self.traced(node.pid, binary, expected))

    def test_running_node(self):
        binary = self.binary()
        with FakeNode("burst", 100, "--wait", "--hold", binary=binary) as node:
            with Bridge(binary=binary) as bridge:
                self.assertTrue(self.traced(node.pid, binary, TRACED))
                ids = bridge.bpf_ids()
            self.wait_untraced(node.pid, binary)
            self.wait_no_bpf(ids)

    def test_without_naming_it(self):
        """The one running process that has the tracepoints; by its number, by its file."""
        binary = self.binary("renamed node (1)")
        with FakeNode("burst", 10, "--wait-signal", "--hold", binary=binary) as node:
            os.unlink(binary)
            with open(self.path("pid"), "w") as f:
                f.write(f"{node.pid}\n")
            for k, args in enumerate((["--pid", node.pid], ["--pid-file", self.path("pid")])):
                with Bridge(*args, binary=None) as bridge, Subscriber(bridge) as sub:
                    sub.wait_status()
                    self.assertEqual(sub.status("low")["pid"], node.pid)
                    if k:
                        node.go()
                        sub.wait_count("mempool.removed", 10)
                        self.assertEqual(sub.events[-1].pid, node.pid)

    def test_by_number_ends_with_it(self):
        with FakeNode("burst", 10, "--wait-signal", "--hold") as node:
            with Bridge("--pid", node.pid, binary=None) as bridge, Subscriber(bridge) as sub:
                sub.wait_status()
                node.go()
                sub.wait_count("mempool.removed", 10)
                node.kill()
                self.assertEqual(bridge.process.wait(40), 0)
                wait_until(lambda: len(sub.stopped) == 2, what="bridge.stopping")
                self.assertEqual(sub.of("node.exited")[0].pid, node.pid)
                self.assertIn("--pid names no other: ends", bridge.log())


class Following(Case):
    def test_started_and_exited(self):
        binary = self.binary()
        build_id = self.build_id(binary)
        with Bridge(binary=binary) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            self.assertIsNone(sub.status("low")["pid"])
            before = time.time()
            with FakeNode("burst", 100, "--wait", "--linger", 300, binary=binary) as node:
                fired = node.finish()
            wait_until(lambda: sub.of("node.exited"), what="node.exited")
            for topic, n in (("node.started", 1), ("node.exited", 102)):
                event = sub.of(topic)[0]
                self.assertEqual((event.n, event.pid), (n, node.pid))
                self.assertEqual(list(event), ["time_us", "binary", "build_id", "started_at", "core"])
                self.assertEqual((event["binary"], event["build_id"]), (binary, build_id))
                self.assertLess(abs(event["started_at"] - before), 3)
                self.assertIn("29", event["core"])
            self.check_account(sub, fired)
            self.check_stream(sub)
            wait_until(lambda: sub.status("low")["pid"] is None, 3, "no node in status")

    def build_id(self, binary):
        out = subprocess.run(["readelf", "-n", binary], capture_output=True, text=True).stdout
        return next(line.split()[-1] for line in out.splitlines() if "Build ID" in line)

    def test_node_that_runs_already(self):
        binary = self.binary()
        with FakeNode("burst", 5000, "--rate", 2000, "--wait", "--hold", binary=binary) as node, \
                Bridge(binary=binary) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            self.assertEqual(sub.status("low")["pid"], node.pid)
            self.assertEqual(sub.status("low")["heads"]["node.started"], 1)

    def test_five_restarts(self):
        """Events flow after each, of the right process, between its start and its end."""
        binary = self.binary()
        with Bridge(binary=binary) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            pids, count = [], 0
            for gap in (0, 0.3, 0, 1, 0):
                with FakeNode("burst", 200, "--rate", 2000, "--wait", "--hold",
                              binary=binary) as node:
                    count += 200
                    sub.wait_count("mempool.removed", count)
                    pids.append(node.pid)
                    node.kill()
                time.sleep(gap)
            wait_until(lambda: len(sub.of("node.exited")) == 5, what="five node.exited")
            expected = []
            for pid in pids:
                expected += [("node.started", pid), *[("mempool.removed", pid)] * 200,
                             ("node.exited", pid)]
            self.assertEqual([(e.topic, e.pid) for e in sub.events], expected)
            self.check_stream(sub)

    def test_short_lives(self):
        """A node that is gone before anybody looks: told as started and exited all the same."""
        binary = self.binary()
        with Bridge(binary=binary) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            pids = []
            for _ in range(3):
                bridge.send(signal.SIGSTOP)
                with FakeNode("burst", 5, "--wait", binary=binary) as node:
                    node.finish()
                pids.append(node.pid)
                bridge.send(signal.SIGCONT)
                sub.wait_count("mempool.removed", 5 * len(pids))
            wait_until(lambda: len(sub.of("node.exited")) == 3, 5, "three node.exited")
            expected = []
            for pid in pids:
                expected += [("node.started", pid), *[("mempool.removed", pid)] * 5,
                             ("node.exited", pid)]
            self.assertEqual([(e.topic, e.pid) for e in sub.events], expected)
            wait_until(lambda: sub.status("low")["pid"] is None, 3, "no node in status")
            self.check_stream(sub)

    def test_restart_while_the_bridge_is_stopped(self):
        """Two nodes one after the other, both rings full of both, before anybody looks: each event
        of each arrives, and each node starts and ends once."""
        for alive in (False, True):
            with self.subTest(alive=alive):
                binary = self.binary()
                with Bridge(binary=binary) as bridge, Subscriber(bridge) as sub:
                    sub.wait_status()
                    bridge.send(signal.SIGSTOP)
                    with FakeNode("blocks", 2, 500, "--coins", "--wait", binary=binary) as one:
                        fired = one.finish()
                    with FakeNode("blocks", 2, 500, "--coins", "--wait", "--hold", "--seed", 9,
                                  binary=binary) as two:
                        time.sleep(0.5)
                        if not alive:
                            second = two.stop()
                        bridge.send(signal.SIGCONT)
                        if alive:
                            time.sleep(1)
                            second = two.stop()
                    wait_until(lambda: [e for e in sub.of("node.exited") if e.pid == two.pid],
                               what="the second node.exited")
                    time.sleep(1.2)
                    self.check_stream(sub)
                    told = [(e.topic, e.pid) for e in sub.events if e.topic.startswith("node.")]
                    self.assertEqual(told, [("node.started", one.pid), ("node.exited", one.pid),
                                            ("node.started", two.pid), ("node.exited", two.pid)])
                    self.check_account(sub, {t: fired.get(t, 0) + second.get(t, 0)
                                             for t in {*fired, *second}})
                    for pid, ledger in ((one.pid, fired), (two.pid, second)):
                        for topic, count in ledger.items():
                            self.assertEqual(sum(e.pid == pid for e in sub.of(topic)), count, topic)

    def test_daemon(self):
        """The node goes on in a child of the process that was started."""
        binary = self.binary()
        with Bridge(binary=binary) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            with FakeNode("burst", 300, "--wait", "--daemon", binary=binary) as node:
                self.assertEqual(node.process.wait(40), 0)
                # The child may have ended, and said its own, before its parent said this.
                child = next(json.loads(line)["daemon"] for line in node.lines() if '"daemon"' in line)
                sub.wait_count("mempool.removed", 300)
                wait_until(lambda: child in [e.pid for e in sub.of("node.exited")],
                           what="the child's node.exited")
            self.assertEqual({e.pid for e in sub.of("mempool.removed")}, {child})
            started = [e.pid for e in sub.of("node.started")]
            self.assertEqual(started, [node.pid, child])
            self.check_stream(sub)
            self.assertEqual(sub.status("low")["ignored"], [])

    def test_another_process_of_the_binary(self):
        """Ignored, named in status, and none of its events published."""
        binary = self.binary()
        with Bridge(binary=binary) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            with FakeNode("burst", 3000, "--rate", 2000, "--wait", "--hold", binary=binary) as node:
                wait_until(lambda: sub.count.get("mempool.removed"), what="events of the node")
                with FakeNode("burst", 500, "--wait", binary=binary) as other:
                    self.assertEqual(other.finish(), {"mempool.removed": 500})
                    wait_until(lambda: [other.pid] in [s["ignored"] for s in list(sub.statuses)], 3,
                               "the other process in status")
                sub.wait_count("mempool.removed", 3000)
                fired = node.stop()
            wait_until(lambda: sub.of("node.exited"), what="node.exited")
            self.check_account(sub, fired)
            self.check_stream(sub)
            self.assertEqual({e.pid for e in sub.events}, {node.pid})
            wait_until(lambda: sub.status("low")["counters"]["mempool.removed"]["fired"] == 3000, 3,
                       "fired without the other's")
            self.assertIn(str(other.pid), bridge.log())

    def test_another_process_becomes_the_node(self):
        """Once the first has ended: it is named as the process that is traced, and ignored no more."""
        binary = self.binary()
        with Bridge(binary=binary) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            with FakeNode("burst", 1, "--wait", "--hold", binary=binary) as node:
                sub.wait_count("mempool.removed", 1)
                with FakeNode("burst", 100_000_000, "--rate", 1000, "--wait", binary=binary) as other:
                    wait_until(lambda: sub.status("low")["ignored"] == [other.pid], 5, "the other one in status")
                    node.stop()
                    wait_until(lambda: sub.status("low")["pid"] == other.pid, 10, "it is followed")
                    self.assertEqual(sub.status("low")["ignored"], [])
                    other.stop()
            self.check_stream(sub)


class Ending(Case):
    def test_under_load(self):
        """SIGTERM with a healthy subscriber: what fired before it has arrived."""
        for number, extra in ((signal.SIGTERM, []), (signal.SIGINT, []),
                              (signal.SIGTERM, ["--without", "multi"])):
            with self.subTest(number=number, extra=extra):
                # The node fires every 50 us: the last event that arrived is not older than the signal. But where
                # the node had no processor at that moment.
                self.once_in_three(lambda: self.under_load(number, extra), 200_000)

    def once_in_three(self, microseconds, most):
        """A busy machine may have stopped the node when it counted."""
        told = []
        while len(told) < 3 and not (told and told[-1] < most):
            told.append(microseconds())
        self.assertLess(told[-1], most, told)

    def under_load(self, number, extra):
        binary = self.binary()
        with Bridge(*extra, binary=binary) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            with FakeNode("burst", 100_000_000, "--rate", 20000, "--flood", 1, "--wait",
                          binary=binary) as node:
                wait_until(lambda: len(sub.of("mempool.removed")) > 1000, 20, "events")
                ids = bridge.bpf_ids()
                before = time.time()
                self.assertEqual(bridge.stop(number), 0)
                wait_until(lambda: len(sub.stopped) == 2, what="bridge.stopping")
                self.wait_untraced(node.pid, binary)
                node.stop()
            self.wait_no_bpf(ids)
            return self.check_ended(sub, before)

    def check_ended(self, sub, before):
        self.check_stream(sub)
        for status in sub.stopped:
            for topic, counters in status["counters"].items():
                if topic.startswith(("block.", "node.")):
                    continue
                self.assertEqual(counters["fired"],
                                 sub.count.get(topic, 0) + sub.lost.get(topic, 0), topic)
                self.assertEqual(status["heads"][topic], counters["fired"], topic)
        self.assertEqual(sub.lost.get("mempool.removed", 0), 0)
        indexes = [int.from_bytes(e["txid"][24:], "big") for e in sub.of("mempool.removed")]
        self.assertEqual(indexes, list(range(indexes[0], indexes[0] + len(indexes))))
        return before * 1e6 - sub.of("mempool.removed")[-1]["time_us"]

    def test_with_a_stopped_subscriber(self):
        """One that does not read does not hold up the end."""
        script = ("import sys, time, zmq; s = zmq.Context().socket(zmq.SUB); s.subscribe(b'');"
                  "s.connect(sys.argv[1]); s.connect(sys.argv[2])\n"
                  "s.recv(); print('ready', flush=True)\n"
                  "while True: s.recv()")
        binary = self.binary()
        with Bridge(binary=binary) as bridge:
            urls = [f"tcp://127.0.0.1:{bridge.port + k}" for k in (0, 1)]
            with subprocess.Popen([sys.executable, "-c", script, *urls],
                                  stdout=subprocess.PIPE) as reader:
                self.addCleanup(reader.kill)
                self.assertEqual(reader.stdout.readline(), b"ready\n")
                reader.send_signal(signal.SIGSTOP)
                with FakeNode("burst", 100_000_000, "--rate", 100000, "--flood", 1, "--wait",
                              binary=binary) as node:
                    time.sleep(2)
                    ids = bridge.bpf_ids()
                    self.assertEqual(bridge.stop(), 0)
                    self.wait_untraced(node.pid, binary)
                    node.stop()
                reader.send_signal(signal.SIGCONT)
                reader.kill()
            self.wait_no_bpf(ids)

    def test_during_the_settling(self):
        """A signal right after the start ends it just so."""
        binary = self.binary()
        with FakeNode("burst", 1, "--wait-signal", "--hold", binary=binary) as node:
            for _ in range(5):
                with Bridge(binary=binary) as bridge:
                    ids = bridge.bpf_ids()
                    self.assertEqual(bridge.stop(), 0)
                self.wait_untraced(node.pid, binary)
                self.wait_no_bpf(ids)

    def killed(self, times, *args):
        binary = self.binary()
        with FakeNode("burst", 100_000_000, "--rate", 20000, "--wait", binary=binary) as node:
            for k in range(times):
                with Bridge(*args, binary=binary) as bridge:
                    self.assertTrue(self.traced(node.pid, binary, TRACED))
                    ids = bridge.bpf_ids()
                    time.sleep(0.02 * (k % 5))
                    bridge.kill()
                self.wait_untraced(node.pid, binary)
                self.wait_no_bpf(ids)
            node.stop()

    def test_killed_twenty_times(self):
        """kill -9 under load: no program, link, map or raised semaphore stays."""
        self.killed(20)

    def test_killed_with_perf_links(self):
        self.killed(3, "--without", "multi")

    def test_all_tracepoints_end_at_one_instant(self):
        """Perf links go one after the other, about 100 ms each; the gate closes before the first."""
        self.once_in_three(self.apart, 200_000)

    def apart(self):
        binary = self.binary()
        with Bridge("--without", "multi", binary=binary) as bridge, \
                Subscriber(bridge) as sub:
            self.assertGreater(len([i for i in bridge.bpf_ids() if i[0] == "link"]), 15)
            sub.wait_status()
            with FakeNode("burst", 100_000_000, "--rate", 10000, "--flood", 1, "--wait",
                          binary=binary) as node:
                time.sleep(0.3)
                self.assertEqual(bridge.stop(), 0)
                node.stop()
            wait_until(lambda: len(sub.stopped) == 2, what="bridge.stopping")
            low, high = sub.of("mempool.removed")[-1], sub.of("utxocache.add")[-1]
            return abs(low["time_us"] - high["time_us"])


if __name__ == "__main__":
    main()
