"""Which process is followed: among several of one binary, by number, by PID file, in a container,
behind symbolic links, through upgrades and restarts; and never one that only has the number."""
import ctypes
import glob
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import (FAKE_NODE, ROOT, Bridge, FakeNode, Subscriber, TestCase, compile_text, free_port, go,
                     inject_env, main, need_root, semaphores, tool, wait_until)

NO_TRACEPOINTS = 3

# A kernel that takes a process for its first thread, as far as that can be seen from here: up to Linux 6.9
# a negative number was not refused as such, and a link with any other did not do what it should.
THREADS_ONLY = r"""
#include <dlfcn.h>
#include <errno.h>
#include <linux/types.h>
#include <sys/syscall.h>
struct link_create { __u32 program, target, type, flags; __u64 path, offsets, semaphores, cookies; __u32 n, multi; __s32 pid; };
long syscall(long number, long a, long b, long c, long d, long e, long f)
{
	long (*real)(long, ...) = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
	const struct link_create *link = (const struct link_create *)b;
	if (number == SYS_bpf && a == 28 && c >= (long)sizeof(*link) && link->type == 48 && link->pid) {
		errno = link->pid < 0 ? EBADF : ESRCH;
		return -1;
	}
	return real(number, a, b, c, d, e, f);
}
"""
# A lease, and so an executable, that takes a while to be had.
SLOW_LEASE = r"""
#include <dlfcn.h>
#include <stdarg.h>
#include <unistd.h>
#define F_SETLEASE 1024
#define F_RDLCK 0
int fcntl64(int fd, int command, ...)
{
	int (*real)(int, int, ...) = (int (*)(int, int, ...))dlsym(RTLD_NEXT, "fcntl64");
	va_list args;
	va_start(args, command);
	long argument = va_arg(args, long);
	va_end(args);
	if (command == F_SETLEASE && argument == F_RDLCK)
		sleep(3);
	return real(fd, command, argument);
}
int fcntl(int fd, int command, ...) __attribute__((alias("fcntl64")));
"""
SYS_CLONE3 = 435


def spawn_as(pid, *argv):
    """Starts a program under a process number of our choice, which nobody has."""
    libc = ctypes.PyDLL(None, use_errno=True)  # holds the interpreter's lock across the clone
    numbers = (ctypes.c_int32 * 1)(pid)
    args = struct.pack("<11Q", 0, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, ctypes.addressof(numbers), 1, 0)
    buffer = ctypes.create_string_buffer(args, len(args))
    got = libc.syscall(SYS_CLONE3, buffer, ctypes.c_size_t(len(args)))
    if got == 0:
        try:
            os.execv(argv[0], argv)
        finally:
            os._exit(127)
    if got != pid:
        raise OSError(ctypes.get_errno(), f"process number {pid}: {got}")
    return got


def end(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def links(bridge):
    return [i for i in bridge.bpf_ids() if i[0] == "link"]


def watched(bridge):
    """Inodes, by inotify."""
    found = []
    for path in glob.glob(f"/proc/{bridge.process.pid}/fdinfo/*"):
        with open(path) as f:
            found += [int(line.split("ino:")[1].split()[0], 16) for line in f if line.startswith("inotify")]
    return found


def of_pid(sub, pid, topic="mempool.removed"):
    return [e for e in sub.of(topic) if e.pid == pid]


class Case(TestCase):
    def setUp(self):
        need_root()
        directory = tempfile.TemporaryDirectory(prefix="coretap following ")
        self.addCleanup(directory.cleanup)
        self.directory = os.path.realpath(directory.name)

    def path(self, *names):
        return os.path.join(self.directory, *names)

    def binary(self, *names):
        path = self.path(*(names or ("node",)))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return shutil.copy(FAKE_NODE, path)

    def check_lives(self, sub, *pids):
        """Each told as started before its first event and as exited after its last; nobody else."""
        told = [(e.topic, e.pid) for e in sub.events if e.topic.startswith("node.")]
        expected = [(topic, pid) for pid in pids for topic in ("node.started", "node.exited")]
        alive = None
        if told[0][0] == "node.exited":  # started before there was a subscriber
            del expected[0]
            alive = pids[0]
        self.assertEqual(told, expected)
        for event in sub.events:
            if event.topic == "node.started":
                alive = event.pid
            elif event.topic != "node.exited":
                self.assertIn(event.pid, pids)
                # The other socket's events come on their own way.
                if event.topic.startswith(("mempool", "validation", "block")):
                    self.assertEqual(event.pid, alive)
        self.check_stream(sub)

    def run_one(self, sub, binary, count=200, **keywords):
        """A node from its start to its end; everything that it fires arrives."""
        before = sub.count.get("mempool.removed", 0)
        with FakeNode("burst", count, "--wait", "--linger", 100, binary=binary, **keywords) as node:
            fired = node.finish(20)
        self.assertEqual(fired, {"mempool.removed": count})
        sub.wait_count("mempool.removed", before + count, 10)
        wait_until(lambda: of_pid(sub, node.pid, "node.exited"), 5, "node.exited")
        self.assertEqual(len(of_pid(sub, node.pid)), count)
        return node.pid


class TwoNodes(Case):
    """Two nodes of one binary, a coretapd each."""

    def check(self, selector, *options):
        binary = self.binary()
        args = ("burst", 3000, "--rate", 6000, "--wait-signal", "--hold")
        with FakeNode(*args, binary=binary) as one, FakeNode(*args, binary=binary) as two:
            with Bridge(*selector(one, "one"), *options, binary=None) as first:
                self.assertEqual({k for k, v in semaphores(two.pid, binary).items() if v}, set())
                self.assertGreater(semaphores(one.pid, binary)["mempool.removed"], 0)
                with Bridge(*selector(two, "two"), *options, binary=None) as second, \
                        Subscriber(first) as sub_one, Subscriber(second) as sub_two:
                    raised = semaphores(one.pid, binary)
                    self.assertEqual(semaphores(two.pid, binary), raised)
                    sub_one.wait_status()
                    sub_two.wait_status()
                    one.go()
                    two.go()
                    for sub, node in ((sub_one, one), (sub_two, two)):
                        sub.wait_count("mempool.removed", 3000)
                        wait_until(lambda: sub.status("low")["counters"]["mempool.removed"]["fired"]
                                   == 3000, 5, "its own firings in the counters")
                        self.assertEqual(sub.status("low")["pid"], node.pid)
                        self.assertEqual({e.pid for e in sub.of("mempool.removed")}, {node.pid})
                        self.check_stream(sub)
                        self.assertEqual(sub.lost, {})
                    # One that ends leaves the other as it is.
                    first.stop()
                    wait_until(lambda: not any(semaphores(one.pid, binary).values()), 10,
                               "semaphores of the first at 0")
                    self.assertEqual(semaphores(two.pid, binary), raised)
            for node in (one, two):
                self.assertEqual(node.stop(), {"mempool.removed": 3000})

    def by_pid(self, node, _):
        return "--pid", node.pid

    def by_file(self, node, name):
        path = self.path(name + ".pid")
        with open(path, "w") as f:
            f.write(f"{node.pid}\n")
        return "--pid-file", path

    def by_datadir(self, node, name):
        os.makedirs(self.path(name, "regtest"), exist_ok=True)
        with open(self.path(name, "regtest", "bitcoind.pid"), "w") as f:
            f.write(f"{node.pid}\n")
        return "--datadir", self.path(name)

    def test_by_pid(self):
        self.check(self.by_pid)

    def test_by_pid_file(self):
        self.check(self.by_file)

    def test_by_datadir(self):
        self.check(self.by_datadir)

    def test_with_perf_links(self):
        self.check(self.by_pid, "--without", "multi")

    def test_kernel_that_takes_a_process_for_its_first_thread(self):
        """Its links are not limited to the process: all threads are heard, and no other process."""
        directory = tempfile.TemporaryDirectory(prefix="coretap-test-")  # a blank would part what is preloaded
        self.addCleanup(directory.cleanup)
        shim = compile_text(directory.name, THREADS_ONLY, "threads", "-shared", "-fPIC", "-D_GNU_SOURCE")
        args = ("burst", 400, "--threads", 4, "--wait-signal", "--hold")
        binary = self.binary()
        with FakeNode(*args, binary=binary) as one, FakeNode(*args, binary=binary) as two, \
                Bridge("--pid", one.pid, binary=None, env=inject_env(shim)) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            two.go()
            one.go()
            sub.wait_count("mempool.removed", 400)
            self.assertEqual({e.pid for e in sub.of("mempool.removed")}, {one.pid})
            self.assertEqual(sub.status("low")["ignored"], [])
            self.assertEqual(two.stop(), {"mempool.removed": 400})
            self.assertEqual(one.stop(), {"mempool.removed": 400})
            sub.wait_ledger({"mempool.removed": 400})
            self.check_stream(sub)


class Files(Case):
    """--pid-file and --datadir follow whatever process the file names."""

    def write(self, path, pid):
        """As a node does: the file is there only with its content."""
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path + ".tmp", "w") as f:
            f.write(f"{pid}\n")
        os.rename(path + ".tmp", path)

    def restarts(self, option, value, pid_file, binaries):
        pids, count = [], 0
        with FakeNode("burst", 1, "--wait", "--hold", binary=binaries[0]) as bystander:
            node = FakeNode("burst", 500, "--wait-signal", "--hold", binary=binaries[0])
            self.write(pid_file, node.pid)
            with Bridge(option, value, binary=None) as bridge, Subscriber(bridge) as sub:
                sub.wait_status()
                node.go()
                for k in range(len(binaries)):
                    with node:
                        count += 500
                        sub.wait_count("mempool.removed", count)
                        pids.append(node.pid)
                        self.assertEqual(len(of_pid(sub, node.pid)), 500)
                        node.kill()
                    wait_until(lambda: of_pid(sub, node.pid, "node.exited"), 5, "node.exited")
                    if k % 2:
                        os.unlink(pid_file)  # an orderly end
                        time.sleep(1.2)
                    if k + 1 < len(binaries):
                        node = FakeNode("burst", 500, "--wait", "--hold", binary=binaries[k + 1])
                        self.write(pid_file, node.pid)
                self.check_account(sub, {"mempool.removed": count})
                self.check_lives(sub, *pids)
                self.assertEqual(sub.lost, {})
            self.assertFalse(any(semaphores(bystander.pid, binaries[0]).values()))
            self.assertEqual(bystander.stop(), {})

    def test_pid_file(self):
        self.restarts("--pid-file", self.path("node.pid"), self.path("node.pid"),
                      [self.binary()] * 4)

    def test_datadir(self):
        self.restarts("--datadir", self.path("data"), self.path("data", "regtest", "bitcoind.pid"),
                      [self.binary()] * 3)

    def test_datadir_before_the_node_starts(self):
        """With --binary: a directory that has no PID file, or one that a killed node left."""
        binary, pid_file = self.binary(), self.path("data", "regtest", "bitcoind.pid")
        for stale in (False, True):
            with FakeNode("burst", 1, "--wait", "--hold", binary=binary) as bystander:
                if stale:
                    self.write(pid_file, 2 ** 22 - 1)
                with Bridge("--datadir", self.path("data"), binary=binary) as bridge, \
                        Subscriber(bridge) as sub:
                    self.assertIn("waiting for the node", bridge.log())
                    self.assertIsNone(sub.wait_status().status("low")["pid"])
                    self.assertFalse(any(semaphores(bystander.pid, binary).values()))
                    with FakeNode("burst", 500, "--wait", "--hold", binary=binary) as node:
                        self.write(pid_file, node.pid)
                        sub.wait_count("mempool.removed", 500)
                        node.stop()
                    wait_until(lambda: sub.of("node.exited"), 5, "node.exited")
                    self.check_lives(sub, node.pid)
                    self.check_account(sub, {"mempool.removed": 500})
                self.assertEqual(bystander.stop(), {})

    def test_upgrade_elsewhere(self):
        """The next node runs from another file: its own notes are used."""
        self.restarts("--pid-file", self.path("node.pid"), self.path("node.pid"),
                      [self.binary("29", "node"), self.binary("30", "node"),
                       self.binary("31", "node")])

    def test_stale_file(self):
        """After kill -9 the file stays, and its number may come back as another program's."""
        binary, pid_file = self.binary(), self.path("node.pid")
        with FakeNode("burst", 100, "--wait-signal", "--hold", binary=binary) as node:
            self.write(pid_file, node.pid)
            with Bridge("--pid-file", pid_file, binary=None) as bridge, Subscriber(bridge) as sub:
                sub.wait_status()
                node.go()
                sub.wait_count("mempool.removed", 100)
                node.kill()
                wait_until(lambda: sub.of("node.exited"), 5, "node.exited")
                stranger = spawn_as(node.pid, "/bin/sleep", "60")
                try:
                    time.sleep(2.5)
                    self.assertIsNone(sub.status("low")["pid"])
                finally:
                    end(stranger)
                self.check_lives(sub, node.pid)
                lines = bridge.log().count("error")
                with FakeNode("burst", 100, "--wait", "--hold", binary=binary) as late:
                    self.write(pid_file, late.pid)
                    sub.wait_count("mempool.removed", 200)
                    late.stop()
                wait_until(lambda: len(sub.of("node.exited")) == 2, 5, "node.exited")
                self.check_lives(sub, node.pid, late.pid)
                self.assertLessEqual(lines, 1, "the log is filled")


class Upgrades(Case):
    def test_again_at_once(self):
        """Upgraded, restarted and upgraded again while the bridge could not look: the node that runs by then is
        traced on, in the file whose name is another's already."""
        binary = self.binary()

        def replace():
            os.rename(shutil.copy(FAKE_NODE, self.path("fresh")), binary)
        # What is pending when it goes on comes in no fixed order.
        for _ in range(3):
            with Bridge(binary=binary) as bridge, Subscriber(bridge) as sub:
                sub.wait_status()
                # Busy, so that it does not wait for what happens when it is stopped.
                with FakeNode("burst", 10000000, "--rate", 100000, "--wait", binary=binary) as first:
                    wait_until(lambda: of_pid(sub, first.pid), 10, "events")
                    replace()
                    wait_until(lambda: ": attached\n" in bridge.log(), 10, "the second file")
                    bridge.send(signal.SIGSTOP)
                    first.kill()
                with FakeNode("burst", 300, "--rate", 150, "--wait", "--hold", binary=binary) as second:
                    time.sleep(0.3)
                    replace()
                    bridge.send(signal.SIGCONT)
                    wait_until(lambda: len(of_pid(sub, second.pid)) == 300, 10, "all of the second node")
                    self.assertEqual(sub.status("low")["pid"], second.pid)
                    self.assertEqual(of_pid(sub, second.pid, "node.exited"), [])
                    second.kill()
                wait_until(lambda: of_pid(sub, second.pid, "node.exited"), 5, "node.exited")
                self.check_lives(sub, first.pid, second.pid)


    def test_started_from_the_old_file_while_the_new_one_is_read(self):
        """By another name: it is traced, and not only told."""
        directory = tempfile.TemporaryDirectory(prefix="coretap-test-")
        self.addCleanup(directory.cleanup)
        shim = compile_text(directory.name, SLOW_LEASE, "slow", "-shared", "-fPIC", "-D_GNU_SOURCE")
        binary = self.binary()
        old = self.path("old")
        os.link(binary, old)
        with Bridge(binary=binary, env=inject_env(shim)) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            os.rename(shutil.copy(FAKE_NODE, self.path("fresh")), binary)
            time.sleep(0.4)
            with FakeNode("burst", 300, "--wait-signal", "--hold", binary=old) as node:
                wait_until(lambda: ": attached\n" in bridge.log(), 10, "the new file")
                node.go()
                sub.wait_count("mempool.removed", 300)
                node.stop()


class RecycledNumber(Case):
    def test_another_program(self):
        """Not told as started, though it has the node's number."""
        binary = self.binary()
        with Bridge(binary=binary) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            with FakeNode("burst", 200, "--wait", "--hold", binary=binary) as node:
                sub.wait_count("mempool.removed", 200)
                node.kill()
            stranger = spawn_as(node.pid, "/bin/sleep", "60")
            try:
                wait_until(lambda: sub.of("node.exited"), 5, "node.exited")
                time.sleep(2.2)
                self.assertIsNone(sub.status("low")["pid"])
                self.check_lives(sub, node.pid)
                late = self.run_one(sub, binary)
            finally:
                end(stranger)
            self.check_lives(sub, node.pid, late)

    def test_unnoticed(self):
        """While the bridge could not look, the node died and its number was taken."""
        binary = self.binary()
        with Bridge(binary=binary) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            with FakeNode("burst", 200, "--wait", "--hold", binary=binary) as node:
                sub.wait_count("mempool.removed", 200)
                bridge.send(signal.SIGSTOP)
                node.kill()
            stranger = spawn_as(node.pid, "/bin/sleep", "60")
            try:
                bridge.send(signal.SIGCONT)
                wait_until(lambda: sub.of("node.exited"), 5, "node.exited")
                time.sleep(1.2)
                self.check_lives(sub, node.pid)
            finally:
                end(stranger)

    def test_the_next_node(self):
        """The node itself again, under the same number: two lives."""
        binary = self.binary()
        with Bridge(binary=binary) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            with FakeNode("burst", 200, "--wait", "--hold", binary=binary) as node:
                sub.wait_count("mempool.removed", 200)
                node.kill()
            again = spawn_as(node.pid, binary, "burst", "300", "--wait", "--hold")
            try:
                sub.wait_count("mempool.removed", 500)
            finally:
                end(again)
            wait_until(lambda: len(sub.of("node.exited")) == 2, 5, "two node.exited")
            self.check_lives(sub, node.pid, node.pid)
            self.check_account(sub, {"mempool.removed": 500})

    def test_while_no_bridge_runs(self):
        """What stays attached went on without a coretapd, the node died, and another program has its
        number; and again, with the node itself: the successor follows no stranger, and tells of
        each life."""
        binary, label, port = self.binary(), f"n{os.getpid()}-{free_port()}", free_port()
        args = {"binary": binary, "name": label, "port": port}
        self.addCleanup(shutil.rmtree, f"/run/coretap/{label}", True)
        self.addCleanup(subprocess.run, [tool("coretapd"), "--detach", "--name", label],
                        stderr=subprocess.DEVNULL)
        lives = []
        with Bridge("--keep-attached", keep=True, **args) as first, Subscriber(first) as sub:
            sub.wait_status()
            for other in (["/bin/sleep", "60"], [binary, "burst", "300", "--wait", "--hold"]):
                with FakeNode("burst", 200, "--wait", "--hold", binary=binary) as node:
                    before = sub.count.get("mempool.removed", 0)
                    sub.wait_count("mempool.removed", before + 200)
                    first.kill()
                    node.kill()
                again = spawn_as(node.pid, *other)
                try:
                    first = Bridge("--keep-attached", keep=True, **args)
                    self.addCleanup(first.__exit__, None)
                    if other[0] == binary:
                        sub.wait_count("mempool.removed", before + 500)
                    wait_until(lambda: len(of_pid(sub, node.pid, "node.exited")) == 1, 5, "node.exited")
                    wait_until(lambda: "pid" in sub.status("low") and sub.status("low")["pid"] ==
                               (again if other[0] == binary else None), 5, "what is followed")
                finally:
                    end(again)
                lives += [node.pid]
            wait_until(lambda: len(of_pid(sub, node.pid, "node.exited")) == 2, 5, "the second one's end")
            self.check_lives(sub, *lives, lives[-1])
            self.check_account(sub, {"mempool.removed": 700})

    def test_by_number(self):
        """--pid means one process, not its number."""
        binary = self.binary()
        with FakeNode("burst", 200, "--wait-signal", "--hold", binary=binary) as node:
            with Bridge("--pid", node.pid, binary=None) as bridge, Subscriber(bridge) as sub:
                sub.wait_status()
                node.go()
                sub.wait_count("mempool.removed", 200)
                bridge.send(signal.SIGSTOP)
                node.kill()
                again = spawn_as(node.pid, binary, "burst", "300", "--wait", "--hold")
                try:
                    bridge.send(signal.SIGCONT)
                    self.assertEqual(bridge.process.wait(40), 0)
                finally:
                    end(again)
                self.assertLessEqual(len(sub.of("node.started")), 1)


class Paths(Case):
    def test_spaces_and_signs(self):
        binary = self.binary("a b", "node (deleted)", "bitcoin \"qt\" — 1")
        with Bridge(binary=binary) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            pids = [self.run_one(sub, binary) for _ in range(2)]
            self.check_lives(sub, *pids)
            self.assertEqual({e["binary"] for e in sub.of("node.started")}, {binary})

    def link(self, name, target):
        os.symlink(target, self.path("new"))
        os.rename(self.path("new"), self.path(name))

    def switched(self, link, starts, *, running):
        """The operator's path leads elsewhere from now on."""
        first, second, third = (self.binary(v, "bin", "node") for v in ("29", "30", "31"))
        pids = []

        def switch(version):
            self.link(link, starts.format(version))
        switch("29")
        named = self.path(link, "bin", "node") if link == "current" else self.path(link)
        old = FakeNode("burst", 1000, "--rate", 1000, "--wait-signal", "--hold", binary=named) \
            if running else None
        with Bridge(binary=named) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            if old:
                with old:
                    old.go()
                    wait_until(lambda: sub.count.get("mempool.removed"), what="events")
                    switch("30")
                    sub.wait_count("mempool.removed", 1000)
                    pids.append(old.pid)
                    self.assertEqual(old.stop(), {"mempool.removed": 1000})
                wait_until(lambda: sub.of("node.exited"), 5, "node.exited")
            else:
                pids.append(self.run_one(sub, named))
                switch("30")
            time.sleep(1.5)
            pids.append(self.run_one(sub, named))
            switch("31")
            time.sleep(1.5)
            pids.append(self.run_one(sub, named))
            # What is now named is also watched where it lies.
            self.assertIn(os.stat(os.path.dirname(third)).st_ino, watched(bridge))
            shutil.copy(FAKE_NODE, third + ".new")
            os.rename(third + ".new", third)
            time.sleep(1.5)
            pids.append(self.run_one(sub, named))
            self.check_lives(sub, *pids)
            self.assertEqual([e["binary"] for e in sub.of("node.exited")],
                             [first, second, third, third])

    def test_symlink_to_the_binary(self):
        self.switched("node", "{}/bin/node", running=False)

    def test_symlink_to_the_binary_of_a_running_node(self):
        self.switched("node", "{}/bin/node", running=True)

    def test_symlink_to_the_directory(self):
        self.switched("current", "{}", running=False)

    def test_symlink_to_the_directory_of_a_running_node(self):
        self.switched("current", "{}", running=True)

    def test_symlink_to_what_is_still_written(self):
        """In a directory where nobody looked before: attached when the writer is done, as the log says."""
        self.binary("29", "bin", "node")
        second = self.binary("30", "bin", "node")
        for link, starts, rest in (("node", "{}/bin/node", ()), ("current", "{}", ("bin", "node"))):
            self.link(link, starts.format("29"))
            named = self.path(link, *rest)
            with self.subTest(link), Bridge(binary=named) as bridge, Subscriber(bridge) as sub:
                sub.wait_status()
                pids = [self.run_one(sub, named)]
                with open(second, "ab"):
                    self.link(link, starts.format("30"))
                    wait_until(lambda: "is being written: attached when" in bridge.log(), 5, "a line about it")
                    time.sleep(1.5)
                wait_until(lambda: ": attached\n" in bridge.log(), 5, "attached")
                pids.append(self.run_one(sub, named))
                self.check_lives(sub, *pids)

    def test_rolled_back_while_it_runs(self):
        """The name leads to a new file and back to the one that runs: attached twice, everything would
        be told twice."""
        binary, other = self.binary(), self.path("other")
        shutil.copy(binary, other)
        with FakeNode("burst", 1000, "--wait-signal", "--hold", binary=binary) as node, \
                Bridge(binary=binary) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            os.rename(binary, self.path("kept"))
            os.rename(other, binary)
            wait_until(lambda: ": attached\n" in bridge.log(), 10, "the new file")
            os.rename(self.path("kept"), binary)
            wait_until(lambda: bridge.log().count(": attached\n") == 2, 10, "the old file again")
            node.go()
            sub.wait_count("mempool.removed", 1000)
            fired = node.stop()
            wait_until(lambda: sub.of("node.exited"), 5, "node.exited")
            self.check_account(sub, fired)
            pids = [node.pid, self.run_one(sub, binary)]
            self.check_lives(sub, *pids)

    def test_deleted_binary(self):
        """What runs goes on; the file that comes in its place is attached."""
        binary = self.binary()
        with FakeNode("burst", 2000, "--rate", 1000, "--wait-signal", "--hold",
                      binary=binary) as node, \
                Bridge(binary=binary) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            node.go()
            wait_until(lambda: sub.count.get("mempool.removed"), what="events")
            os.unlink(binary)
            sub.wait_count("mempool.removed", 2000)
            fired = node.stop()
            self.check_account(sub, fired)
            wait_until(lambda: sub.of("node.exited"), 5, "node.exited")
            self.binary()
            time.sleep(1.5)
            pids = [node.pid, self.run_one(sub, binary)]
            self.check_lives(sub, *pids)

    def test_wrapper(self):
        """A program that becomes the node, as `bitcoin -m node` does: one life, one number."""
        node, wrapper = self.binary("libexec", "bitcoin-node"), self.path("bitcoin")
        with open(wrapper, "w") as f:
            f.write(f'#!/bin/sh\nsleep 0.3\nexec "{node}" "$@"\n')
        os.chmod(wrapper, 0o755)
        code = subprocess.run([tool("coretapd"), "--check", "--binary", wrapper],
                              stderr=subprocess.DEVNULL).returncode
        self.assertEqual(code, NO_TRACEPOINTS)
        with Bridge(binary=node) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            pids = [self.run_one(sub, wrapper) for _ in range(2)]
            self.check_lives(sub, *pids)
            self.assertEqual({e["binary"] for e in sub.of("node.started")}, {node})


class Container(Case):
    """A node with its own mounts and process numbers, on an overlay."""

    def root(self, name):
        """What the container's layers hold: the node, and the libraries that it wants."""
        lower = self.path(name, "lower")
        for directory in ("lower/opt/bitcoin core", "lower/proc", "upper", "work", "merged"):
            os.makedirs(self.path(name, directory))
        shutil.copy(FAKE_NODE, os.path.join(lower, "opt/bitcoin core/node"))
        out = subprocess.run(["ldd", FAKE_NODE], capture_output=True, text=True).stdout
        for word in out.split():
            if word.startswith("/"):
                os.makedirs(lower + os.path.dirname(word), exist_ok=True)
                shutil.copy(word, lower + word)
        return self.path(name)

    def start(self, root, *args):
        script = ('cd "$1" && shift && mount -t overlay overlay merged '
                  '-o lowerdir=lower,upperdir=upper,workdir=work && '
                  'exec chroot merged "/opt/bitcoin core/node" "$@"')
        node = FakeNode("-c", script, "sh", root, *args, binary="sh",
                        prefix=("unshare", "-mpf", "--kill-child"))

        def inside():
            if node.process.poll() is not None:
                self.skipTest("no overlay in a mount namespace here")
            with open(f"/proc/{node.pid}/task/{node.pid}/children") as f:
                children = f.read().split()
            if children and os.readlink(f"/proc/{children[0]}/exe").endswith("core/node"):
                return int(children[0])
            return None
        try:
            pid = wait_until(inside, 5, "the node in its container")
        except BaseException:
            node.kill()
            raise
        return node, pid


class Containers(Container):
    def test_by_number(self):
        for selector in ("--pid", "--pid-file"):
            with self.subTest(selector=selector):
                node, pid = self.start(self.root(selector), "burst", 1000, "--wait-signal",
                                       "--hold")
                path = self.path("pid")
                with open(path, "w") as f:
                    f.write(str(pid))
                with node, Bridge(selector, pid if selector == "--pid" else path,
                                  binary=None) as bridge, Subscriber(bridge) as sub:
                    sub.wait_status()
                    go(pid)
                    sub.wait_count("mempool.removed", 1000)
                    self.assertEqual({e.pid for e in sub.events}, {pid})
                    node.kill()
                    wait_until(lambda: sub.of("node.exited"), 5, "node.exited")
                    self.assertTrue(sub.of("node.exited")[0]["binary"].endswith(
                        "/opt/bitcoin core/node"))
                    self.check_lives(sub, pid)

    def test_from_outside(self):
        """The layer's file as the host sees it: what an overlay runs is that file."""
        root = self.root("c")
        binary = os.path.join(root, "lower/opt/bitcoin core/node")
        with Bridge(binary=binary) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            pids = []
            for k in range(2):
                node, pid = self.start(root, "burst", 500, "--wait", "--hold")
                with node:
                    pids.append(pid)
                    sub.wait_count("mempool.removed", 500 * (k + 1))
                    node.kill()
                wait_until(lambda: of_pid(sub, pid, "node.exited"), 5, "node.exited")
            self.check_lives(sub, *pids)


class Rounds(Case):
    """Killed and restarted under load on both sockets, as fast as a node can fire, so with the plain
    one: every firing accounted for, and credited to the process that fired it."""

    def ledger(self, book):
        """The program that wrote it can read it."""
        for program in (FAKE_NODE, self.path("reader")):
            done = subprocess.run([program, "ledger", book], capture_output=True, text=True)
            if done.returncode == 0:
                fired = json.loads(done.stdout.splitlines()[-1])["fired"]
                return {k.replace(":", "."): v for k, v in fired.items() if v}
        raise AssertionError(done.stderr)

    def rounds(self, sub, gaps, replace=None):
        lives = []
        for k, gap in enumerate(gaps):
            book = self.path(f"ledger{k}")
            with FakeNode("run", "--coins", "--rate", 3000, "--block-interval", 1, "--seed", k,
                          "--ledger", book, binary=self.path("node")) as node:
                wait_until(lambda: len(of_pid(sub, node.pid)) > 200, 20, "removals")
                if k == 2 and replace:
                    replace()
                time.sleep(0.7)
                node.kill()
            lives.append((node.pid, self.ledger(book)))
            time.sleep(gap)
        return lives

    def check_rounds(self, sub, lives):
        wait_until(lambda: len(sub.of("node.exited")) == len(lives), 10, "node.exited")
        time.sleep(1.2)
        self.check_lives(sub, *[pid for pid, _ in lives])
        self.assertEqual(sub.lost, {})
        for pid, fired in lives:
            self.assertGreater(sum(fired.values()), 1000)
            # The ledger counts after the firing: the one that the kill fell into may lack.
            got = {}
            for event in sub.events:
                if event.pid == pid and not event.topic.startswith(("node.", "block.")):
                    got[event.topic] = got.get(event.topic, 0) + 1
            surplus = {t: got.get(t, 0) - fired.get(t, 0) for t in {*got, *fired}}
            self.assertTrue(all(v in (0, 1) for v in surplus.values()), surplus)
            self.assertLessEqual(sum(surplus.values()), 1, surplus)

    def other_build(self, path):
        """The same node from another compilation: other code at every place."""
        sources = glob.glob(os.path.join(ROOT, "tests", "fake_node", "*.c"))
        subprocess.run([os.environ.get("CC", "gcc"), "-std=gnu11", "-O1", "-DFAKE_NODE_ABI=29",
                        *sources, "-o", path, "-lpthread", "-lm"], check=True)

    def test_five_kills_and_a_replacement(self):
        binary = self.binary()
        self.other_build(self.path("next"))
        shutil.copy(self.path("next"), self.path("reader"))
        with Bridge(binary=binary, sanitized=False) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            lives = self.rounds(sub, (0, 0.3, 0, 1, 5, 0),
                                lambda: os.rename(self.path("next"), binary))
            self.check_rounds(sub, lives)

    def test_five_kills_with_perf_links(self):
        binary = self.binary()
        with Bridge("--without", "multi", binary=binary, sanitized=False) as bridge, \
                Subscriber(bridge) as sub:
            sub.wait_status()
            self.check_rounds(sub, self.rounds(sub, (0, 0.2, 0, 0.5, 0)))


    def test_replaced_after_a_resume_with_perf_links(self):
        """A successor has only what was pinned of the programs: it can attach them all the same."""
        binary = self.binary()
        args = ("--keep-attached", "--without", "multi")
        with Bridge(*args, binary=binary, keep=True) as first:
            self.addCleanup(subprocess.run, [tool("coretapd"), "--detach", "--name", first.name],
                            stderr=subprocess.DEVNULL)
            first.kill()
        with Bridge(*args, binary=binary, name=first.name, port=first.port) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            self.assertIn("going on where the last coretapd stopped", bridge.log())
            self.run_one(sub, binary)
            shutil.copy(binary, self.path("next"))
            os.rename(self.path("next"), binary)
            wait_until(lambda: bridge.log().count("attached (") + bridge.log().count(": attached\n") == 2, 10,
                       "attached again")
            self.run_one(sub, binary)
            self.check_stream(sub)


class OneProcessor(Case):
    """Many at work on one processor, each preempted in the middle of its events: what one wrote is
    never in another's."""

    def check_payloads(self, sub, pid, threads, count, size):
        seen = set()
        pattern = bytes((7 * k + pid) & 255 for k in range(size))
        for event in of_pid(sub, pid, "net.inbound_message"):
            index, thread = struct.unpack("<QI", event["data"][:12])
            self.assertEqual((event["peer_id"], event["size"], len(event["data"])),
                             (index, size, size))
            self.assertEqual(event["data"][12:], pattern[12:], f"{pid}: {thread}, {index}")
            seen.add((thread, index))
        self.assertEqual(seen, {(t, i) for t in range(threads) for i in range(count // threads)})

    def prefix(self):
        return "taskset", "-c", str(min(os.sched_getaffinity(0)))

    def test_four_threads(self):
        for without in ("", "multi", "sleepable", "dynptr"):
            args = ["--without", without] if without else []
            with self.subTest(without=without), \
                    Bridge("--payload", "full", *args, binary=self.binary()) \
                    as bridge, Subscriber(bridge) as sub:
                sub.wait_status()
                with FakeNode("burst", 8000, "--probe", "message", "--size", 4000, "--threads", 4,
                              "--wait", binary=self.path("node"), prefix=self.prefix()) as node:
                    fired = node.finish()
                sub.wait_ledger(fired)
                self.check_account(sub, fired)
                self.assertEqual(sub.lost, {})
                self.check_payloads(sub, node.pid, 4, 8000, 4000)

    def test_four_processes(self):
        """A bridge for each; all fire at the same time."""
        binary = self.binary()
        args = ("burst", 1500, "--probe", "message", "--size", 5000, "--wait-signal", "--hold")
        nodes = [FakeNode(*args, binary=binary, prefix=self.prefix()) for _ in range(4)]
        bridges, subs = [], []
        try:
            for node in nodes:
                wait_until(lambda: os.stat(f"/proc/{node.pid}/exe").st_ino ==
                           os.stat(binary).st_ino, 5, "the node")
                bridges.append(Bridge("--payload", "full", "--pid", node.pid, binary=None))
                subs.append(Subscriber(bridges[-1]).wait_status())
            for node in nodes:
                node.go()
            for sub, node in zip(subs, nodes):
                sub.wait_count("net.inbound_message", 1500)
                self.assertEqual({e.pid for e in sub.events}, {node.pid})
                self.check_payloads(sub, node.pid, 1, 1500, 5000)
                self.check_stream(sub)
                self.assertEqual(sub.lost, {})
                self.assertEqual(node.stop(), {"net.inbound_message": 1500})
        finally:
            for thing in (*subs, *bridges, *nodes):
                thing.__exit__(None) if isinstance(thing, Bridge) else thing.__exit__()


if __name__ == "__main__":
    main()
