"""Least privilege, closed doors, and what the service manager is told."""
import asyncio
import grp
import json
import os
import pwd
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import msgpack
import zmq

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import (FAKE_NODE, PATIENCE, ROOT, Bridge, FakeNode, Subscriber, TestCase, bpf_alive, compile_text, free_port, inject_env,
                     main, need_node, need_root, not_under_tsan, tool, wait_until)

TSAN = "its own thread keeps the user and the capabilities that coretapd gives up"
PYTHON_CLIENT, JAVASCRIPT_CLIENT = (os.path.join(ROOT, "clients", name) for name in ("python", "js"))
sys.path.insert(0, PYTHON_CLIENT)
import coretap

USAGE, PRIVILEGE, ADDRESS, NO_NODE = 2, 4, 5, 6
CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE, CAP_LEASE, CAP_PERFMON, CAP_BPF = 2, 19, 28, 38, 39
KEPT = 1 << CAP_LEASE | 1 << CAP_PERFMON | 1 << CAP_BPF
USER = "nobody"


class Case(TestCase):
    def setUp(self):
        need_root()
        directory = tempfile.TemporaryDirectory(prefix="coretap security ")
        self.addCleanup(directory.cleanup)
        os.chmod(directory.name, 0o755)
        self.directory = directory.name
        self.binary = shutil.copy(FAKE_NODE, self.path("node"))

    def path(self, name):
        return os.path.join(self.directory, name)

    def refused(self, code, *args, says=()):
        name = f"t{os.getpid()}-r"
        done = subprocess.run([tool("coretapd"), "--binary", self.binary, "--journal", "none", "--name", name,
                               "--port", str(free_port()), *map(str, args)],
                              stderr=subprocess.PIPE, text=True, timeout=80)
        shutil.rmtree(f"/run/coretap/{name}", ignore_errors=True)
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        for word in says:
            self.assertIn(word, done.stderr)
        return done.stderr


class User(Case):
    def status(self, pid, task=None):
        path = f"/proc/{pid}/task/{task}/status" if task else f"/proc/{pid}/status"
        with open(path) as f:
            return dict(line.rstrip("\n").split(":\t", 1) for line in f if ":\t" in line)

    def test_what_is_left(self):
        not_under_tsan(TSAN)
        uid = str(pwd.getpwnam(USER).pw_uid)
        with Bridge("--user", USER, binary=self.binary) as bridge:
            for task in os.listdir(f"/proc/{bridge.pid}/task"):
                s = self.status(bridge.pid, task)
                mine = int(task) == bridge.pid
                self.assertEqual(s["Uid"].split(), [uid] * 4)
                self.assertEqual(s["NoNewPrivs"], "1")
                for kind in ("CapPrm", "CapEff"):
                    self.assertEqual(int(s[kind], 16), KEPT | 1 << CAP_SYS_PTRACE if mine else 0, task)
                self.assertEqual(int(s["CapInh"], 16) | int(s["CapAmb"], 16), 0)
            self.assertEqual(int(self.status(bridge.pid)["CapBnd"], 16), KEPT | 1 << CAP_SYS_PTRACE)
            for name in ("", "/lock", "/low.sock", "/replay.sock", "/journal", "/journal/data.mdb"):
                self.assertEqual(os.stat(f"/run/coretap/{bridge.name}{name}").st_uid, int(uid), name)
            bridge.stop()
            # The sockets are its own to remove.
            self.assertEqual(set(os.listdir(f"/run/coretap/{bridge.name}")), {"lock", "journal"})

    def test_no_ptrace_for_a_node_of_the_same_user(self):
        entry = pwd.getpwnam(USER)
        prefix = ("setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups")
        with FakeNode("burst", 1, "--hold", binary=self.binary, prefix=prefix) as node:
            wait_until(lambda: os.stat(f"/proc/{node.pid}").st_uid == entry.pw_uid, 5, "setpriv")
            with Bridge("--user", USER, binary=self.binary) as bridge:
                self.assertEqual(int(self.status(bridge.pid)["CapEff"], 16), KEPT)

    def test_goes_on_following(self):
        """Restart and upgrade of another user's node, without root."""
        with Bridge("--user", USER, binary=self.binary) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            total = {}
            for turn in range(3):
                with FakeNode("burst", 200, "--wait", binary=self.binary) as node:
                    for topic, n in node.finish().items():
                        total[topic] = total.get(topic, 0) + n
                sub.wait_ledger(total)
                wait_until(lambda: sub.count.get("node.exited", 0) > turn, 10, "node.exited")
                fresh = shutil.copy(FAKE_NODE, self.path("fresh"))
                os.rename(fresh, self.binary)
                wait_until(lambda: bridge.log().count("attached\n") > turn, 10, "attached again")
            self.check_account(sub, total)
            self.assertNotIn("lease", bridge.log())
            # Written in place: the lease holds the writer until it has let go.
            with open(self.binary, "ab") as f:
                f.write(b"\0")
            wait_until(lambda: "written in place" in bridge.log(), 10, "detached")

    def test_stays_attached(self):
        """Pins belong to the user, a successor goes on, nothing is left in the end."""
        entry = pwd.getpwnam(USER)
        args = ("--user", USER, "--keep-attached")
        with Bridge(*args, binary=self.binary, keep=True) as first, Subscriber(first) as sub:
            sub.wait_status()
            pins = f"/sys/fs/bpf/coretap/{first.name}"
            for name in os.listdir(pins):
                self.assertEqual(os.stat(f"{pins}/{name}").st_uid, entry.pw_uid)
            ids = first.bpf_ids()
            with FakeNode("burst", 300, "--wait", "--hold", binary=self.binary) as node:
                wait_until(lambda: sub.count.get("mempool.removed") == 300, 10, "300")
                first.kill()
                with Bridge(*args, binary=self.binary, name=first.name, port=first.port) as second:
                    self.assertIn("going on where", second.log())
                    self.assertEqual(int(self.status(second.pid)["Uid"].split()[0]), entry.pw_uid)
                    # Upgraded meanwhile: pinned by the user.
                    os.rename(shutil.copy(FAKE_NODE, self.path("fresh")), self.binary)
                    wait_until(lambda: second.log().count(": attached\n") == 1, 10, "attached again")
                    self.assertNotIn("cannot pin", second.log())
                    second.stop()
                node.stop()
            self.assertTrue(os.path.exists(pins))
            done = subprocess.run([tool("coretapd"), "--detach", "--binary", self.binary, "--name", first.name],
                                  stderr=subprocess.PIPE, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertFalse(os.path.exists(pins))
            wait_until(lambda: not bpf_alive(ids), 10, "BPF objects gone")
            shutil.rmtree(f"/run/coretap/{first.name}", ignore_errors=True)

    def test_what_is_its_users_stays_so(self):
        """A second one that is refused takes nothing from the first, and --detach by root leaves it to its user."""
        entry = pwd.getpwnam(USER)

        def root(*args):
            return subprocess.run([tool("coretapd"), "--binary", self.binary, *args], stderr=subprocess.PIPE, text=True,
                                  timeout=80).returncode

        def owners(*names):
            return {os.lstat(f"/run/coretap/{bridge.name}/{name}").st_uid for name in names}
        with Bridge("--user", USER, binary=self.binary, keep=True) as bridge:
            label = ("--name", bridge.name, "--port", str(free_port()))
            for args in (("--detach",), (), ("--user", "nobody")):
                self.assertEqual(root(*label, *args), ADDRESS)
                self.assertEqual(owners(".", "lock", "low.sock"), {entry.pw_uid}, args)
            bridge.stop()
            self.assertNotIn("warning", bridge.log())
        self.assertEqual(root(*label, "--detach"), 0)
        self.assertEqual(owners(".", "lock"), {entry.pw_uid})
        shutil.rmtree(f"/run/coretap/{bridge.name}")
        self.assertEqual(root(*label, "--detach"), 0)
        self.assertFalse(os.path.exists(f"/run/coretap/{bridge.name}"))

    def test_after_a_start_as_root(self):
        """Files of an earlier start as root are taken over; links that somebody laid are not followed."""
        with Bridge(binary=self.binary, keep=True) as first:
            first.stop()
        with Bridge("--user", USER, binary=self.binary, name=first.name, keep=True) as second:
            self.assertNotIn("warning", second.log())
            second.stop()
        target = self.path("precious")
        with open(target, "w") as f:
            f.write("x" * 100)
        os.chmod(target, 0o600)
        run = f"/run/coretap/{first.name}"
        for name in ("lock", "journal/data.mdb"):
            os.unlink(f"{run}/{name}")
            os.symlink(target, f"{run}/{name}")
        done = subprocess.run([tool("coretapd"), "--binary", self.binary, "--name", first.name, "--user", USER,
                               "--port", str(free_port())], stderr=subprocess.PIPE, text=True, timeout=80)
        self.assertNotEqual(done.returncode, 0)
        os.unlink(f"{run}/lock")
        with Bridge("--user", USER, binary=self.binary, name=first.name):
            pass
        self.assertEqual((os.stat(target).st_uid, os.stat(target).st_size, os.stat(target).st_mode & 0o777),
                         (0, 100, 0o600))

    def test_root_gives_up_the_rest(self):
        """Started as root without --user: in every thread nothing is left but what is argued for, and everything
        works: journal, pins, restart and upgrade of the node, keys that only root may read, metrics."""
        for name in ("server", "alice", "eve"):
            subprocess.run([tool("coretap"), "keygen", self.path(name)], check=True, stdout=subprocess.DEVNULL)
        clients = shutil.copy(self.path("alice.pub"), self.path("clients"))
        os.chmod(clients, 0o600)
        not_under_tsan(TSAN)
        metrics = free_port()
        args = ("--keep-attached", "--metrics", f"127.0.0.1:{metrics}", "--curve-secret", self.path("server.key"),
                "--curve-clients", clients)
        with Bridge(*args, binary=self.binary, keep=True) as first:
            ipc = f"ipc:///run/coretap/{first.name}"
            for task in os.listdir(f"/proc/{first.pid}/task"):
                s = self.status(first.pid, task)
                kept = KEPT | 1 << CAP_SYS_PTRACE if int(task) == first.pid else 0
                self.assertEqual([int(s[f"Cap{kind}"], 16) for kind in ("Prm", "Eff", "Bnd", "Inh", "Amb")],
                                 [kept, kept, kept, 0, 0], (task, s["Name"]))
                self.assertEqual((s["Uid"].split(), s["NoNewPrivs"]), (["0"] * 4, "1"))
            with coretap.subscribe("mempool.removed", "node.", address=ipc) as stream:
                def take(n):
                    end = time.monotonic() + 20 * PATIENCE
                    while n and time.monotonic() < end:
                        item = stream.next(1)
                        self.assertNotIn(getattr(item, "kind", ""), ("gap", "lost", "new_run"))
                        n -= getattr(item, "topic", "") == "mempool.removed"
                    self.assertEqual(n, 0)
                for turn in range(2):
                    with FakeNode("burst", 100, "--wait", "--start-delay", 300, binary=self.binary) as node:
                        take(100)
                        node.finish()
                    os.rename(shutil.copy(FAKE_NODE, self.path("fresh")), self.binary)
                    wait_until(lambda: first.log().count(" attached\n") > turn, 10, "attached again")
                # Its end is that of the old file, which a successor could not know.
                with FakeNode("burst", 100, "--wait", "--start-delay", 300, binary=self.binary) as node:
                    take(100)
                    node.finish()
                wait_until(lambda: first.log().count(" is gone\n") == 3, 10, "the node's end")
                with open(clients, "a") as f, open(self.path("eve.pub")) as key:
                    f.write(key.read())
                first.send(signal.SIGHUP)
                wait_until(lambda: "2 keys" in first.log(), 5, "keys read again")
                with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=80) as page:
                    self.assertIn(b'coretap_probe_fired_total{topic="mempool.removed"} 300', page.read())
                self.assertNotIn("warning", first.log())
                first.kill()
                with Bridge(*args, binary=self.binary, name=first.name, port=first.port, keep=True) as second:
                    self.assertIn("going on where", second.log())
                    with FakeNode("burst", 100, "--wait", "--start-delay", 300, binary=self.binary) as node:
                        take(100)
                        node.finish()
                    second.stop()
            with coretap.subscribe("mempool.removed", address=ipc, since="oldest") as stream, \
                    Bridge(*args[1:], binary=self.binary, name=first.name, port=first.port):
                # Without --keep-attached nothing stays, not even an empty directory, and not if it is killed.
                self.assertFalse(os.path.exists(f"/sys/fs/bpf/coretap/{first.name}"))
                seqs = [stream.next(80).seq for _ in range(300)]
                self.assertEqual(seqs, [*range(1, 301)])

    def test_no_pins_for_nobody(self):
        """What is not attached any more does not stay pinned; the next start clears what the user could not."""
        with FakeNode("burst", 1, "--hold", binary=self.binary) as node, \
                Bridge("--user", USER, "--keep-attached", "--pid", node.pid, binary=None, keep=True) as first:
            pins = f"/sys/fs/bpf/coretap/{first.name}"
            ids = first.bpf_ids()
            self.assertGreater(len(os.listdir(pins)), 5)
            node.kill()
            wait_until(lambda: "detached" in first.log() or not any("link" in n for n in os.listdir(pins)), 10,
                       "the end of the process")
            first.stop()
        wait_until(lambda: not bpf_alive(ids), 10, "BPF objects gone")
        with Bridge("--user", USER, binary=self.binary, name=first.name):
            self.assertFalse(os.path.exists(pins))

    def test_links_in_the_place_of_its_directory(self):
        """/run/coretap is the service's user's: root makes nothing where he lets a link lead."""
        run, elsewhere = f"/run/coretap/t{os.getpid()}-link", self.path("elsewhere")
        self.addCleanup(shutil.rmtree, run, ignore_errors=True)
        os.mkdir(elsewhere)
        os.makedirs("/run/coretap", exist_ok=True)
        for link in (run, f"{run}/journal"):
            os.symlink(elsewhere, link)
            for options in ((), ("--user", USER)):
                done = subprocess.run([tool("coretapd"), "--binary", self.binary, "--name", os.path.basename(run),
                                       "--port", str(free_port()), *options], stderr=subprocess.PIPE, text=True,
                                      timeout=80)
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn(f"{link}: is no directory", done.stderr)
            os.unlink(link)
            os.makedirs(run, exist_ok=True)
        self.assertEqual(os.listdir(elsewhere), [])

    def test_group_of_the_node(self):
        """A data directory that the user may read as a member of a group, and one that only root's group may."""
        groups, pid_file = self.path("group"), self.path("data/bitcoind.pid")
        with open("/etc/group") as f, open(groups, "w") as own:
            own.write(f"{f.read()}ofthenode:x:54321:{USER}\n")
        os.mkdir(self.path("data"))
        prefix = ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/group && exec "$@"', groups)
        for gid, may in ((54321, True), (0, False)):
            with FakeNode("burst", 1, "--hold", binary=self.binary) as node:
                with open(pid_file, "w") as f:
                    f.write(f"{node.pid}\n")
                for path, mode in ((pid_file, 0o640), (self.path("data"), 0o750)):
                    os.chown(path, 1, gid)
                    os.chmod(path, mode)
                with Bridge("--datadir", self.path("data"), "--user", USER, binary=None, prefix=prefix) as bridge:
                    self.assertEqual("will not be found again" not in bridge.log(), may, bridge.log())

    def test_what_only_the_node_may_read(self):
        """A data directory that is closed, as bitcoind makes it: root goes on following, another user says that he
        cannot. Keys that only root may read are read again all the same, as long as it is the same file."""
        entry = pwd.getpwnam("daemon")
        datadir = self.path("data")
        os.makedirs(datadir)
        as_owner = ("setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups")

        def node():
            started = FakeNode("burst", 100, "--wait", "--start-delay", 2000, "--hold", binary=self.binary,
                               prefix=as_owner)
            wait_until(lambda: os.stat(f"/proc/{started.pid}").st_uid == entry.pw_uid, 5, "setpriv")
            with open(f"{datadir}/bitcoind.pid", "w") as f:
                f.write(f"{started.pid}\n")
            os.chmod(f.name, 0o600)
            for path in (datadir, f.name):
                os.chown(path, entry.pw_uid, entry.pw_gid)
            os.chmod(datadir, 0o700)
            return started
        with node() as one, Bridge("--datadir", datadir, binary=None) as bridge, Subscriber(bridge) as sub:
            kept = KEPT | 1 << CAP_SYS_PTRACE | 1 << CAP_DAC_READ_SEARCH
            self.assertEqual(int(self.status(bridge.pid)["CapEff"], 16), kept)
            sub.wait_count("mempool.removed", 100)
            one.kill()
            with node():
                sub.wait_count("mempool.removed", 200)
        for name in ("server", "alice", "eve"):
            subprocess.run([tool("coretap"), "keygen", self.path(name)], check=True, stdout=subprocess.DEVNULL)
        clients = shutil.copy(self.path("alice.pub"), self.path("clients"))
        os.chmod(clients, 0o600)
        with node(), Bridge("--datadir", datadir, "--user", USER, "--curve-secret", self.path("server.key"),
                            "--curve-clients", clients, binary=None) as bridge:
            self.assertEqual(int(self.status(bridge.pid)["CapEff"], 16), KEPT | 1 << CAP_SYS_PTRACE)
            self.assertIn(f"{datadir}: cannot be read by this user: the node will not be found again", bridge.log())
            with open(clients, "a") as f, open(self.path("eve.pub")) as key:
                f.write(key.read())
            bridge.send(signal.SIGHUP)
            wait_until(lambda: "2 keys" in bridge.log(), 5, "keys read again")
            os.rename(shutil.copy(clients, self.path("other")), clients)
            os.chmod(clients, 0o600)
            bridge.send(signal.SIGHUP)
            wait_until(lambda: f"{clients}: Permission denied" in bridge.log(), 5, "told")

    def test_refusals(self):
        self.refused(USAGE, "--user", "no-such-user-here", says=("no-such-user-here",))
        program = shutil.copy(tool("coretapd"), self.path("coretapd"))
        done = subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", program, "--user",
                               "root", "--binary", self.binary], stderr=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, PRIVILEGE, done.stderr)


class Missing(Case):
    """As nobody, with all capabilities of the unit but one."""
    ALL = ("bpf", "perfmon", "sys_ptrace", "lease")

    def start(self, without=(), *args, more=()):
        """Exit code (None: it has attached, and .left are its capabilities then) and what it said."""
        entry, name = pwd.getpwnam(USER), f"t{os.getpid()}-m"
        program = shutil.copy(tool("coretapd"), self.path("coretapd"))
        os.makedirs(f"/run/coretap/{name}", exist_ok=True)
        self.addCleanup(shutil.rmtree, f"/run/coretap/{name}", True)
        os.chown(f"/run/coretap/{name}", entry.pw_uid, entry.pw_gid)
        capabilities = "-all" + "".join(f",+{c}" for c in (*self.ALL, *more) if c not in without)
        with open(self.path("log"), "w+") as log:
            process = subprocess.Popen(
                ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups", "--inh-caps",
                 capabilities, "--ambient-caps", capabilities, "--bounding-set", capabilities, program, "--name", name,
                 "--port", str(free_port()), "--journal", "none", *map(str, args)], stderr=log)

            def text():
                return os.pread(log.fileno(), 10000, 0).decode()
            wait_until(lambda: process.poll() is not None or "attached (" in text(), 20, "an answer")
            code = process.poll()
            if code is None:
                with open(f"/proc/{process.pid}/status") as f:
                    self.left = next(int(line.split()[1], 16) for line in f if line.startswith("CapPrm"))
                process.terminate()
                self.assertEqual(process.wait(80), 0)
            return code, text()

    def test_each(self):
        binary = ("--binary", self.binary)
        code, text = self.start((), *binary)
        self.assertIsNone(code, text)
        self.assertNotIn("warning", text)
        for needed in ("bpf", "perfmon"):
            code, text = self.start((needed,), *binary)
            errors = [line for line in text.splitlines() if "error" in line]
            self.assertEqual((code, len(errors)), (PRIVILEGE, 1), text)
            self.assertIn(f"missing CAP_{needed.upper()}:", errors[0])
        for wanted in ("sys_ptrace", "lease"):
            code, text = self.start((wanted,), *binary)
            warnings = [line for line in text.splitlines() if "warning" in line]
            self.assertEqual((code, len(warnings)), (None, 1), text)
            self.assertIn(f"missing CAP_{wanted.upper()}", warnings[0])

    def test_without_ptrace(self):
        """Another user's node that is to be found, not named."""
        with FakeNode("burst", 1, "--hold", binary=self.binary) as node:
            for selector in ((), ("--pid", node.pid)):
                code, text = self.start(("sys_ptrace",), *selector)
                self.assertEqual((code, len(text.splitlines())), (PRIVILEGE, 1), text)
                self.assertIn("missing CAP_SYS_PTRACE" if not selector else "CAP_SYS_PTRACE is missing", text)

    def test_perf_links(self):
        """As before Linux 6.6: attaching takes one more, which a user does not keep."""
        args = ("--binary", self.binary, "--without", "multi")
        code, text = self.start((), *args)
        errors = [line for line in text.splitlines() if "error" in line]
        self.assertEqual((code, len(errors)), (PRIVILEGE, 1), text)
        self.assertIn("CAP_SYS_ADMIN", errors[0])
        code, text = self.start((), *args, more=("sys_admin",))
        self.assertEqual((code, self.left), (None, KEPT | 1 << CAP_SYS_PTRACE), text)


class Namespaces(Case):
    OWN = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")

    def test_bridge_in_its_own(self):
        with Bridge(binary=self.binary, prefix=self.OWN) as bridge:
            self.assertIn("runs in a pid namespace of its own", bridge.log())
            self.assertIn("--pid=host", bridge.log())
            bridge.kill()
        with Bridge(binary=self.binary) as bridge:
            self.assertNotIn("warning", bridge.log())
        done = subprocess.run([*self.OWN, tool("coretap"), "doctor", "--json"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1, done.stdout)
        checks = {c["check"]: c for c in map(json.loads, done.stdout.splitlines())}
        self.assertEqual(checks["processes"]["state"], "fail")

    def test_number_of_a_container(self):
        """A PID file in a volume holds the number that the node has in there, which another process has here."""
        pid_file = self.path("bitcoind.pid")
        stranger = subprocess.Popen(["sleep", "1000"])
        self.addCleanup(stranger.wait)
        self.addCleanup(stranger.kill)
        counted = ("sh", "-c", 'echo $(($0 - 1)) > /proc/sys/kernel/ns_last_pid; "$@" & wait', str(stranger.pid))

        def node():
            return FakeNode("burst", 100, "--wait", "--start-delay", 2000, "--hold", binary=self.binary,
                            prefix=(*self.OWN, *counted))

        def children(pid):
            with open(f"/proc/{pid}/task/{pid}/children") as f:
                return f.read().split()

        def inner(started):
            """Its number here, once it runs."""
            for shell in children(started.pid):
                for pid in children(shell):
                    if os.readlink(f"/proc/{pid}/exe") == self.binary:
                        return int(pid)
            return None

        def write(when=None):
            with open(pid_file, "w") as f:
                f.write(f"{stranger.pid}\n")
            if when:
                os.utime(pid_file, (when, when))
        with node() as one:
            pid = wait_until(lambda: inner(one), 5, "the node")
            write()
            with Bridge("--pid-file", pid_file, binary=None) as bridge, Subscriber(bridge) as sub:
                sub.wait_count("mempool.removed", 100)
                self.assertEqual({e.pid for e in sub.of("mempool.removed")}, {pid})
                one.kill()
                wait_until(lambda: sub.count.get("node.exited"), 10, "its end")
                with node() as two:
                    wait_until(lambda: inner(two), 5, "the next one")
                    write()
                    sub.wait_count("mempool.removed", 200)
                    # Older, or younger, than the node: it is another one's, and the number is no node's.
                    for when in (1e9, time.time() + 1000):
                        write(when)
                        self.assertIn("did not write it", self.refused_file(pid_file))

    def refused_file(self, path):
        name = f"t{os.getpid()}-n"
        done = subprocess.run([tool("coretapd"), "--pid-file", path, "--journal", "none", "--name", name, "--port",
                               str(free_port())], stderr=subprocess.PIPE, text=True, timeout=80)
        self.assertEqual((done.returncode, len(done.stderr.splitlines())), (NO_NODE, 1), done.stderr)
        return done.stderr


class Doctor(Case):
    def doctor(self, *args, prefix=(), env=None):
        done = subprocess.run([*prefix, tool("coretap"), "doctor", "--json", *map(str, args)], capture_output=True,
                              text=True, timeout=240, env={**os.environ, **(env or {})})
        return done.returncode, {c["check"]: (c["state"], c["text"], c["remedy"])
                                 for c in map(json.loads, done.stdout.splitlines())}

    def test_service(self):
        code, checks = self.doctor("--user", USER)
        self.assertEqual(code, 0, checks)
        self.assertEqual(checks["service"][0], "ok")
        self.assertEqual(checks["sockets"][0], "warn")
        self.assertIn(f"{USER} may not write it", checks["sockets"][1])
        self.assertIn(f"install -d -o {USER}", checks["pins"][2])
        for capability, code in (("lease", 0), ("sys_ptrace", 0), ("bpf", PRIVILEGE), ("perfmon", PRIVILEGE)):
            got, checks = self.doctor("--user", USER, prefix=("setpriv", "--bounding-set", f"-{capability}"))
            self.assertEqual(got, code, checks)
            self.assertIn(f"cannot be given CAP_{capability.upper()}", checks["service"][1])
        code, checks = self.doctor("--user", "no-such-user-here")
        self.assertEqual((code, checks["user"][0]), (1, "fail"))

    def test_older_kernels(self):
        """What each lacks is named; below 5.15 coretapd does not even begin."""
        directory = tempfile.TemporaryDirectory(prefix="coretap-test-")  # a blank would part what is preloaded
        self.addCleanup(directory.cleanup)
        shim = compile_text(directory.name, """
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
int uname(struct utsname *name)
{
	memset(name, 0, sizeof(*name));
	strcpy(name->release, getenv("RELEASE"));
	return 0;
}
""", "uname.so", "-shared", "-fPIC")
        for release, kernel, lacks, service in (
                ("5.14.21", "fail", "cannot carry a cookie", "warn"), ("5.15.0-91-generic", "warn", "no sleepable uprobes", "warn"),
                ("6.0.19", "warn", "no TAI clock", "warn"), ("6.1.0-13-amd64", "ok", "no uprobe_multi", "warn"),
                ("6.6.0", "ok", "TAI clock, uprobe_multi", "ok")):
            with self.subTest(release):
                env = inject_env(shim, RELEASE=release)
                code, checks = self.doctor("--user", USER, env=env)
                self.assertEqual((code, checks["kernel"][0], checks["service"][0]), (kernel == "fail", kernel, service))
                self.assertIn(lacks, checks["kernel"][1])
                self.assertEqual("CAP_SYS_ADMIN" in checks["service"][1], service == "warn")
                _, checks = self.doctor(env=env, prefix=("setpriv", "--bounding-set", "-sys_admin"))
                self.assertEqual("CAP_SYS_ADMIN" in checks["privileges"][1], service == "warn")
        done = subprocess.run([tool("coretapd"), "--binary", self.binary, "--name", "too-old", "--port", "none"],
                              stderr=subprocess.PIPE, text=True, timeout=240,
                              env={**os.environ, **inject_env(shim, RELEASE="5.14.21")})
        self.assertEqual((done.returncode, done.stderr.splitlines()[1:]),
                         (PRIVILEGE, ["coretapd: error: Linux 5.14.21: too old, coretap needs 5.15 or later"]), done.stderr)

    def test_keys_and_doors(self):
        for name in ("server", "alice", "eve"):
            subprocess.run([tool("coretap"), "keygen", self.path(name)], check=True, stdout=subprocess.DEVNULL)
        secret = ("--curve-secret", self.path("server.key"))

        def keys(*args):
            code, checks = self.doctor(*args)
            return code, *checks["keys"][:2]
        self.assertEqual(keys(*secret), (0, "ok", f"--curve-secret {secret[1]}: 1 key"))
        self.assertEqual(keys(*secret, "--user", USER)[:2], (0, "warn"))
        os.chmod(secret[1], 0o644)
        self.assertIn("mode 0644, others may read", keys(*secret)[2])
        os.chmod(secret[1], 0o600)
        self.assertEqual(keys("--curve-clients", "/dev/null")[:2], (1, "fail"))
        self.assertEqual(keys("--curve-clients", "/nonexistent")[:2], (1, "fail"))
        # What coretapd refuses is not called good.
        for line in ("bob: to be asked for", '"' * 40):
            with open(self.path("clients"), "w") as f, open(self.path("alice.pub")) as alice:
                f.write(f"{alice.read()}\n  # a comment\n{line}\n")
            code, state, text = keys("--curve-clients", self.path("clients"))
            self.assertEqual((code, state), (1, "fail"))
            self.assertIn("line 5 ", text)
            done = subprocess.run([tool("coretapd"), "--binary", self.binary, "--check", *secret, "--curve-clients",
                                   self.path("clients")], capture_output=True, text=True, timeout=80)
            self.assertEqual(done.returncode, USAGE)
            self.assertIn("clients:5: ", done.stderr)

        def door(port, *args, address=None):
            code, checks = self.doctor("--address", address or f"tcp://127.0.0.1:{port}", *args)
            self.assertEqual(code, {"ok": 0, "fail": 1}[checks["endpoint"][0]], checks)
            return checks["endpoint"][:2]
        mine = [("--curve-server", self.path("server.pub"), "--curve-secret", self.path(f"{who}.key"))
                for who in ("alice", "eve")]
        with Bridge(*secret, "--curve-clients", self.path("alice.pub"), binary=self.binary) as bridge:
            address = f"tcp://127.0.0.1:{bridge.port}"
            self.assertEqual(door(bridge.port), ("ok", f"{address}: demands keys: --curve-server and --curve-secret"))
            self.assertEqual(door(bridge.port, *mine[0]), ("ok", f"{address}: lets this key in"))
            self.assertEqual(door(bridge.port, *mine[1]),
                             ("fail", f"{address}: refuses this key, or has another one itself"))
            ipc = f"ipc:///run/coretap/{bridge.name}"
            self.assertEqual(door(0, address=ipc), ("ok", f"{ipc}: lets this user in"))
            # A secret key in the place of a public one is not tried.
            code, checks = self.doctor("--address", address, "--curve-server", self.path("server.key"), *mine[0][2:])
            self.assertEqual((code, checks["endpoint"][:2]),
                             (1, ("warn", f"{address}: demands keys; these were not tried")))
        self.assertEqual(door(bridge.port), ("fail", f"{address}: Connection refused"))
        self.assertEqual(door(0, address=ipc), ("fail", f"{ipc}: nobody answers"))
        self.assertEqual(door(0, address="127.0.0.1:1"), ("fail", "127.0.0.1:1: not an address"))
        with Bridge(binary=self.binary) as bridge:
            self.assertEqual(door(bridge.port), ("ok", f"tcp://127.0.0.1:{bridge.port}: open, without keys"))
        with socket.create_server(("127.0.0.1", 0)) as other:
            def answer():
                connection, _ = other.accept()
                connection.recv(64)
                connection.send(b"HTTP/1.1 400 Bad Request\r\n" + b"x" * 64)
                connection.close()
            thread = threading.Thread(target=answer)
            thread.start()
            self.assertIn("no coretapd", door(other.getsockname()[1])[1])
            thread.join()


class Curve(Case):
    def setUp(self):
        super().setUp()
        for name in ("server", "alice", "eve"):
            subprocess.run([tool("coretap"), "keygen", self.path(name)], check=True, stdout=subprocess.DEVNULL)
        shutil.copy(self.path("alice.pub"), self.path("clients"))
        self.context = zmq.Context()
        self.addCleanup(self.context.destroy, 0)

    def key(self, name):
        with open(self.path(name)) as f:
            return next(line.strip() for line in f if not line.startswith("# ")).encode()

    def options(self):
        return "--curve-secret", self.path("server.key"), "--curve-clients", self.path("clients")

    def connect(self, port, kind=zmq.SUB, client=None, server="server", address=None):
        s = self.context.socket(kind)
        s.linger = 0
        if client:
            s.curve_serverkey = self.key(server + ".pub")
            s.curve_secretkey = self.key(client + ".key")
            s.curve_publickey = self.key(client + ".pub")
        if kind == zmq.SUB:
            s.subscribe(b"")
        s.connect(address or f"tcp://127.0.0.1:{port}")
        return s

    def hello(self, s, wait=20000):
        s.send(msgpack.packb({"v": 1, "id": 1, "op": "hello"}))
        return msgpack.unpackb(s.recv_multipart()[0])["node"] if s.poll(wait) else None

    def test_only_known_keys(self):
        with Bridge(*self.options(), binary=self.binary) as bridge:
            ipc = [self.connect(0, address=f"ipc:///run/coretap/{bridge.name}/{n}.sock") for n in ("low", "high")]
            good = [self.connect(bridge.port + i, client="alice") for i in range(2)]
            bad = [self.connect(bridge.port + i, **how) for i in range(2)
                   for how in ({}, {"client": "eve"}, {"client": "alice", "server": "eve"})]
            for s in (*good, *ipc):
                self.assertTrue(s.poll(20000))
            with FakeNode("run", "--seconds", 2, "--wait", binary=self.binary) as node:
                node.finish()
            for s in bad:
                self.assertFalse(s.poll(50))
            status = None

            def refused():
                nonlocal status
                while ipc[0].poll(0):
                    topic, body = ipc[0].recv_multipart()
                    if topic == b"bridge.status":
                        status = msgpack.unpackb(body)
                return status and status["rejected"] >= 6
            wait_until(refused, 5, "refusals are counted")
            self.assertIn("its key is not in", bridge.log())
            self.assertEqual(self.hello(self.connect(bridge.port + 2, zmq.REQ, client="alice")), bridge.name)
            self.assertIsNone(self.hello(self.connect(bridge.port + 2, zmq.REQ, client="eve"), 3000))
            self.assertIsNone(self.hello(self.connect(bridge.port + 2, zmq.REQ), 3000))
            # Let in without a restart.
            with open(self.path("clients"), "a") as f:
                f.write(self.key("eve.pub").decode() + " eve, who was all right after all\n")
            bridge.send(signal.SIGHUP)
            wait_until(lambda: "2 keys" in bridge.log(), 5, "read again")
            self.assertTrue(self.connect(bridge.port, client="eve").poll(20000))
            # A list that cannot be read changes nothing.
            with open(self.path("clients"), "a") as f:
                f.write("rubbish\n")
            bridge.send(signal.SIGHUP)
            wait_until(lambda: f"{self.path('clients')}:4" in bridge.log(), 5, "told")
            self.assertTrue(self.connect(bridge.port, client="eve").poll(20000))

    def test_a_key_that_is_taken_back(self):
        """Who is connected with it gets nothing more; others connect again."""
        shutil.copy(self.path("alice.pub"), self.path("alice only"))
        with open(self.path("clients"), "a") as f:
            f.write(self.key("eve.pub").decode() + "\n")
        with Bridge(*self.options(), binary=self.binary) as bridge:
            alice, eve = (self.connect(bridge.port, client=name) for name in ("alice", "eve"))
            for s in (alice, eve):
                self.assertTrue(s.poll(20000))
            os.rename(self.path("alice only"), self.path("clients"))
            bridge.send(signal.SIGHUP)
            wait_until(lambda: "1 of before not in it any more: 2 connections" in bridge.log(), 5,
                       "read again")
            self.assertIn("clients: 1 key\n", bridge.log())
            while eve.poll(0) or alice.poll(0):  # what was under way
                for s in (alice, eve):
                    if s.poll(0):
                        s.recv_multipart()
            self.assertTrue(alice.poll(10000))
            self.assertFalse(eve.poll(2500))

    def test_a_key_that_is_taken_back_behind_a_hole(self):
        """Files are given the lowest free number: who came after many that have left has a high one."""
        with open(self.path("clients"), "a") as f:
            f.write(self.key("eve.pub").decode() + "\n")
        with Bridge(*self.options(), binary=self.binary) as bridge:
            def files():
                return len(os.listdir(f"/proc/{bridge.pid}/fd"))
            few = files()
            strangers = [socket.create_connection(("127.0.0.1", bridge.port)) for _ in range(1200)]
            wait_until(lambda: files() >= few + 1200, 10, "strangers are connected")
            eve = self.connect(bridge.port, client="eve")
            self.assertTrue(eve.poll(20000))
            for stranger in strangers:
                stranger.close()
            wait_until(lambda: files() < few + 10, 10, "strangers are gone")
            shutil.copy(self.path("alice.pub"), self.path("clients"))
            bridge.send(signal.SIGHUP)
            wait_until(lambda: "1 of before not in it any more: 1 connections" in bridge.log(), 5, "cut off")
            while eve.poll(0):  # what was under way
                eve.recv_multipart()
            self.assertFalse(eve.poll(2500))

    def test_the_longest_request(self):
        """4,096 bytes are answered over CURVE as well; one more costs the connection."""
        with Bridge(*self.options(), binary=self.binary) as bridge:
            question = {"v": 1, "op": "hello", "id": ""}
            room = 4096 - len(msgpack.packb(question)) - 2  # of a text16's length
            for length in (room, room + 1):
                request = msgpack.packb({**question, "id": "x" * length})
                s = self.connect(bridge.port + 2, zmq.DEALER, client="alice")
                s.send(request)
                self.assertEqual(bool(s.poll(5000 if length == room else 1000)), length == room, len(request))

    def test_a_list_that_is_mended_in_place(self):
        """By a user who may not open it any more, too: what a broken list was read of is not read again from memory."""
        clients = self.path("clients")
        os.chmod(clients, 0o600)
        with Bridge(*self.options(), "--user", USER, binary=self.binary) as bridge:
            with open(clients) as f:
                good = f.read()
            for text, says in ((good + "rubbish\n" + good, "clients:3: wants a key"), (good, ": 1 key\n"),
                               (good + "rubbish\n" + good, "clients:3: wants a key"),
                               (self.key("alice.pub").decode() + "\n" + self.key("eve.pub").decode() + "\n", ": 2 keys\n")):
                before = bridge.log().count(says)
                with open(clients, "w") as f:
                    f.write(text)
                bridge.send(signal.SIGHUP)
                wait_until(lambda: bridge.log().count(says) > before, 5, f"read again: {says}")
            self.assertTrue(self.connect(bridge.port, client="eve").poll(20000))

    def test_nothing_without_curve(self):
        """The status says nothing of keys where none are demanded."""
        with Bridge(binary=self.binary) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            self.assertNotIn("rejected", sub.status("low"))

    def test_many_strangers(self):
        """Connections without a key, many at once: counted, and no event waits."""
        with Bridge(*self.options(), binary=self.binary) as bridge:
            s = self.connect(0, address=f"ipc:///run/coretap/{bridge.name}/low.sock")
            s.rcvhwm = 0
            self.assertTrue(s.poll(20000))
            strangers = [socket.create_connection(("127.0.0.1", bridge.port + i % 3)) for i in range(300)]
            for i, stranger in enumerate(strangers):
                stranger.send(os.urandom(64) if i % 2 else b"\xff" + b"\0" * 8 + b"\x7f\3\1NULL" + b"\0" * 48)
            with FakeNode("burst", 5000, "--wait", binary=self.binary) as node:
                node.finish()
            got = 0
            end = time.monotonic() + 10 * PATIENCE
            while got < 5000 and time.monotonic() < end:
                if s.poll(100):
                    topic, body = s.recv_multipart()
                    if topic == b"mempool.removed":
                        got += len(msgpack.unpackb(body)["events"])
            self.assertEqual(got, 5000)
            wait_until(lambda: self.rejected(bridge) >= 150, 5, "who spoke so far as to have no key is counted")
            for stranger in strangers:
                stranger.close()

    def test_command(self):
        with Bridge(*self.options(), binary=self.binary) as bridge, \
                FakeNode("run", "--seconds", 20, binary=self.binary):
            def tail(*args, seconds=80):
                return subprocess.run([tool("coretap"), "tail", "--json", "--count", "3", "mempool.", "--address",
                                       f"tcp://127.0.0.1:{bridge.port}", *args], timeout=seconds, text=True,
                                      capture_output=True)
            server = ("--curve-server", self.path("server.pub"))
            done = tail(*server, "--curve-secret", self.path("alice.key"))
            self.assertEqual(len(re.findall('"topic":"mempool', done.stdout)), 3, done)
            for args in ((), (*server, "--curve-secret", self.path("eve.key"))):
                with self.assertRaises(subprocess.TimeoutExpired):
                    tail(*args, seconds=2)
            done = tail(*server)
            self.assertEqual(done.returncode, USAGE)
            done = tail("--curve-server", "/dev/null", "--curve-secret", self.path("alice.key"))
            self.assertEqual(done.returncode, USAGE)
            self.assertIn("/dev/null", done.stderr)

    def rejected(self, bridge):
        s = self.connect(0, address=f"ipc:///run/coretap/{bridge.name}/low.sock")
        while True:
            self.assertTrue(s.poll(20000))
            topic, body = s.recv_multipart()
            if topic == b"bridge.status":
                return msgpack.unpackb(body)["rejected"]

    def test_python_client(self):
        """Stream, replay, asyncio, mirror and tools, with keys; a stranger hears nothing, is told so, and is
        counted."""
        with Bridge(*self.options(), "--journal-low", "16M", binary=self.binary) as bridge:
            address = f"tcp://127.0.0.1:{bridge.port}"
            keys = {"curve_server": self.path("server.pub"), "curve_secret": self.path("alice.key")}
            strangers = [coretap.subscribe("mempool.", address=address, **how) for how in (
                {}, {**keys, "curve_secret": self.path("eve.key")}, {**keys, "curve_server": self.path("eve.pub")})]
            with coretap.subscribe("mempool.removed", address=address, **keys) as stream:
                with FakeNode("burst", 300, "--wait", "--start-delay", 300, binary=self.binary) as node:
                    self.assertEqual([next(stream).seq for _ in range(300)], [*range(1, 301)])
                    node.finish()
            # All of it once more, through the replay socket.
            with coretap.subscribe("mempool.removed", address=address, since="oldest", **keys) as stream:
                self.assertEqual([next(stream).seq for _ in range(300)], [*range(1, 301)])

            async def asynchronous():
                async with coretap.asubscribe("mempool.removed", address=address, since="oldest", **keys) as stream:
                    return [(await stream.next(20)).seq for _ in range(300)]
            self.assertEqual(asyncio.run(asynchronous()), [*range(1, 301)])
            pool = coretap.Mempool(lambda *_: {}, address=address, **keys)
            wait_until(lambda: pool.update() or pool.synced, 20, "a mirror")
            pool.close()
            over_ipc = coretap.subscribe("bridge.status", address=f"ipc:///run/coretap/{bridge.name}", **keys)
            self.assertEqual(over_ipc.next(20).topic, "bridge.status")
            over_ipc.close()
            for stranger in strangers:
                notice = stranger.next(40)
                self.assertEqual((notice.kind, notice.run), ("stale", 0))
                self.assertIn("knows no key of ours", str(notice))
                self.assertIsNone(stranger.next(0.2))
                stranger.close()
            self.assertGreaterEqual(self.rejected(bridge), 3)
            options = [f"--{name.replace('_', '-')}={path}" for name, path in keys.items()]
            for command in ([os.path.join(PYTHON_CLIENT, "tools", "mempool_monitor.py")],
                            ["-m", "coretap", "tail", "mempool.removed", "--count", "300"]):
                with subprocess.Popen(["/usr/bin/python3", "-u", *command, "--address", address, "--since", "oldest",
                                       *options], stdout=subprocess.PIPE, text=True,
                                      env={**os.environ, "PYTHONPATH": PYTHON_CLIENT}) as running:
                    lines = [running.stdout.readline() for _ in range(300)]
                    self.assertIn("removed", lines[-1])
                    running.terminate()
        for wrong in ({"curve_server": self.path("server.pub")}, {"curve_secret": self.path("alice.key")},
                      {**keys, "curve_secret": "/nonexistent"}, {**keys, "curve_secret": "/dev/null"},
                      {**keys, "curve_server": self.write("~" * 40)}):
            with self.assertRaises(ValueError):
                coretap.subscribe(address=address, **wrong)

    def write(self, text):
        with open(self.path("text"), "w") as f:
            f.write(text + "\n")
        return self.path("text")

    def test_javascript_client(self):
        """The same in JavaScript."""
        need_node()
        with Bridge(*self.options(), "--journal-low", "16M", binary=self.binary) as bridge:
            address = f"tcp://127.0.0.1:{bridge.port}"
            keys = {"curveServer": self.path("server.pub"), "curveSecret": self.path("alice.key")}
            with FakeNode("burst", 300, "--wait", "--start-delay", 300, binary=self.binary) as node:
                node.finish()
            script = """
                import { Mempool, subscribe } from "%s/index.js";
                const [address, keys, eve] = JSON.parse(process.argv[1]);
                const strangers = [{}, { ...keys, curveSecret: eve + ".key" }, { ...keys, curveServer: eve + ".pub" }]
                  .map((how) => subscribe("mempool.", { address, ...how }));
                const tap = subscribe("mempool.removed", { address, since: "oldest", ...keys });
                const seqs = [];
                while (seqs.length < 300) seqs.push((await tap.next(20000)).seq);
                tap.close();
                const pool = new Mempool({ rpc: { call: async () => ({}) }, address, ...keys });
                await pool.ready();
                pool.close();
                const ipc = subscribe("bridge.status", { address: process.argv[2], ...keys });
                const status = (await ipc.next(5000)).kind;
                ipc.close();
                const heard = [];
                for (const stranger of strangers) {
                  const notice = await stranger.next(10000);
                  heard.push([notice.kind, `${notice}`.includes("knows no key of ours"), await stranger.next(200)]);
                  stranger.close();
                }
                const wrong = [{ curveServer: keys.curveServer }, { curveSecret: keys.curveSecret },
                  { ...keys, curveSecret: "/nonexistent" }, { ...keys, curveSecret: "/dev/null" },
                  { ...keys, curveServer: process.argv[3] }].filter((how) => {
                  try { subscribe({ address, ...how }).close(); } catch (error) { return error instanceof TypeError; }
                });
                console.log(JSON.stringify({ seqs, status, heard, wrong: wrong.length }));
            """ % JAVASCRIPT_CLIENT
            done = subprocess.run(["node", "--input-type=module", "-e", script, json.dumps(
                                      [address, keys, self.path("eve")]), f"ipc:///run/coretap/{bridge.name}",
                                   self.write("~" * 40)], capture_output=True, text=True, timeout=120)
            self.assertEqual(done.returncode, 0, done.stderr)
            told = json.loads(done.stdout)
            self.assertEqual(told, {"seqs": [*range(1, 301)], "status": "status", "heard": [["stale", True, None]] * 3,
                                    "wrong": 5})
            self.assertGreaterEqual(self.rejected(bridge), 3)

            def tail(*args):
                return subprocess.run(["node", os.path.join(JAVASCRIPT_CLIENT, "tail.js"), "mempool.removed", "--json",
                                       "--count", "300", "--since", "oldest", "--address", address, *args],
                                      capture_output=True, text=True, timeout=240)
            done = tail("--curve-server", keys["curveServer"], "--curve-secret", keys["curveSecret"])
            self.assertEqual((done.returncode, done.stdout.count('"topic":"mempool.removed"')), (0, 300), done.stderr)
            done = tail("--curve-server", keys["curveServer"])
            self.assertEqual(done.returncode, USAGE)
            self.assertIn("belong together", done.stderr)
            for files, says in ((("eve.key", "eve.key"), "holds a secret key, a public one is wanted"),
                                (("eve.pub", "eve.pub"), "holds a public key, a secret one is wanted")):
                done = tail("--curve-server", self.path(files[0]), "--curve-secret", self.path(files[1]))
                self.assertEqual(done.returncode, USAGE)
                self.assertIn(f"{self.path(files[0])}: {says}", done.stderr)

    def test_keygen(self):
        self.assertEqual(os.stat(self.path("server.key")).st_mode & 0o777, 0o600)
        self.assertEqual(zmq.curve_public(self.key("server.key")), self.key("server.pub"))
        self.assertNotEqual(self.key("server.key"), self.key("alice.key"))
        before = self.key("server.key")
        done = subprocess.run([tool("coretap"), "keygen", self.path("server")], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("exists", done.stderr)
        self.assertEqual(self.key("server.key"), before)

    def test_mixed_up_key_files(self):
        """Whoever reads a key says that it is the other one of the pair, and no more."""
        key, pub = self.path("alice.key"), self.path("alice.pub")
        public, secret = "holds a public key, a secret one is wanted", "holds a secret key, a public one is wanted"
        self.refused(USAGE, "--curve-secret", pub, "--curve-clients", pub, says=(f"{pub}:1: {public}",))
        with open(self.path("clients"), "a") as clients, open(key) as f:
            clients.write(f.read())
        self.refused(USAGE, *self.options(), says=(f"{self.path('clients')}:3: {secret}",))
        for command in ([tool("coretap"), "tail"], [tool("coretap-nats"), "forward"]):
            for files, says in (((key, key), f"{key}: {secret}"), ((pub, pub), f"{pub}: {public}")):
                done = subprocess.run([*command, "--curve-server", files[0], "--curve-secret", files[1]],
                                      capture_output=True, text=True, timeout=80)
                self.assertEqual(done.returncode, USAGE, done.stderr)
                self.assertIn(says, done.stderr)
        for option, path, says in (("server", key, secret), ("secret", pub, public), ("clients", key, secret)):
            done = subprocess.run([tool("coretap"), "doctor", f"--curve-{option}", path], capture_output=True, text=True,
                                  timeout=80)
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertIn(f"fail keys        --curve-{option} {path}: {says}\n", done.stdout)
            self.assertNotIn("chmod", done.stdout)
        # Where one key is wanted, what stands behind it does not matter, and to nobody.
        with open(key, "a") as pair, open(pub) as f:
            pair.write(f.read())
        done = subprocess.run([tool("coretap"), "doctor", "--curve-secret", key], capture_output=True, text=True, timeout=80)
        self.assertIn(f"ok   keys        --curve-secret {key}: 1 key\n", done.stdout)
        for files, says in (((key, key), f"{key}: {secret}"), ((pub, pub), f"{pub}: {public}")):
            with self.assertRaises(ValueError) as caught:
                coretap.subscribe(curve_server=files[0], curve_secret=files[1])
            self.assertEqual(str(caught.exception), says)

    def test_key_files(self):
        secret, clients = ("--curve-secret", self.path("server.key")), ("--curve-clients", self.path("clients"))
        self.refused(USAGE, *secret, says=("belong together",))
        self.refused(USAGE, *clients, says=("belong together",))
        self.refused(USAGE, "--curve-secret", "/nonexistent", *clients, says=("/nonexistent",))
        self.refused(USAGE, *secret, "--curve-clients", "/nonexistent", says=("/nonexistent",))
        self.refused(USAGE, "--curve-secret", "/dev/null", *clients, says=("no key",))
        with open(self.path("bad"), "w") as f:
            f.write("# x\n\n" + "~" * 40 + "\n")
        self.refused(USAGE, *secret, "--curve-clients", self.path("bad"), says=(self.path("bad") + ":3",))
        os.chmod(self.path("server.key"), 0o644)
        self.refused(USAGE, *secret, *clients, says=("chmod 600",))


class Doors(Case):
    def test_beyond_loopback(self):
        for option in ("--low", "--high", "--replay"):
            for host in ("0.0.0.0", "*", "[::]", "10.1.2.3", "eth0", "127.0.0.1.example.com", "[::1%eth0]",
                         "localhost.evil"):
                self.refused(USAGE, option, f"tcp://{host}:{free_port()}", says=("--allow-public", option))
        for endpoint in ("udp://127.0.0.1:1", "inproc://x", "tcp://", "127.0.0.1:1", "ws://127.0.0.1:1", "ipc://"):
            self.refused(USAGE, "--low", endpoint, says=(endpoint,))
        with Bridge("--low", f"tcp://0.0.0.0:{free_port()}", "--allow-public", binary=self.binary) as bridge:
            self.assertIn("warning: --low tcp://0.0.0.0", bridge.log())
        for name in ("server", "alice"):
            subprocess.run([tool("coretap"), "keygen", self.path(name)], check=True, stdout=subprocess.DEVNULL)
        with Bridge("--low", f"tcp://0.0.0.0:{free_port()}", "--curve-secret", self.path("server.key"),
                    "--curve-clients", self.path("alice.pub"), binary=self.binary) as bridge:
            self.assertNotIn("warning", bridge.log())

    def test_ipc_mode_and_group(self):
        group = grp.getgrnam("daemon").gr_gid
        with Bridge("--ipc-mode", "0660", "--ipc-group", "daemon", "--user", USER, "--port", "none",
                    binary=self.binary) as bridge:
            for name in ("low", "high", "replay"):
                st = os.stat(f"/run/coretap/{bridge.name}/{name}.sock")
                self.assertTrue(stat.S_ISSOCK(st.st_mode))
                self.assertEqual((st.st_mode & 0o777, st.st_uid, st.st_gid),
                                 (0o660, pwd.getpwnam(USER).pw_uid, group))
            listening = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True).stdout
            self.assertNotIn(f"pid={bridge.pid},", listening)
            self.assertNotIn("warning", bridge.log())
        with Bridge("--ipc-mode", "0600", binary=self.binary) as bridge:
            self.assertIn("open to every user", bridge.log())
        check = (tool("coretapd"), "--binary", self.binary, "--check", "--ipc-mode", "0660")
        ipc = [word for name in ("low", "high", "replay") for word in (f"--{name}", f"ipc://{self.path(name)}")]
        for args, warned in (((), True), (("--port", "none"), False), (ipc, False), (ipc[:4], True),
                             (("--port", "none", "--low", "tcp://127.0.0.1:1"), True)):
            done = subprocess.run([*check, *args], capture_output=True, text=True, timeout=80)
            self.assertEqual((done.returncode, "open to every user" in done.stderr), (0, warned), (args, done.stderr))
        with Bridge(binary=self.binary) as bridge:
            self.assertEqual(os.stat(f"/run/coretap/{bridge.name}/low.sock").st_mode & 0o777, 0o666)


class Manager(Case):
    def messages(self, s, seconds):
        end, got = time.monotonic() + seconds, []
        while time.monotonic() < end:
            try:
                got += s.recv(4096).decode().split("\n")
            except socket.timeout:
                pass
        return got

    def test_notify(self):
        for abstract in (False, True):
            name = f"\0coretap-{os.getpid()}" if abstract else self.path("notify")
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
                s.bind(name)
                s.settimeout(0.1)
                if not abstract:
                    os.chmod(name, 0o666)
                env = {"NOTIFY_SOCKET": name.replace("\0", "@"), "WATCHDOG_USEC": "3000000"}
                with Bridge("--user", USER, binary=self.binary, env=env) as bridge:
                    got = self.messages(s, 2.6)
                    self.assertEqual(got.count("READY=1"), 1, got)
                    self.assertIn(got.count("WATCHDOG=1"), (2, 3, 4), got)
                    self.assertIn(f"STATUS={bridge.name}: waiting for the node", got)
                    with FakeNode("burst", 1, "--hold", binary=self.binary) as node:
                        got = self.messages(s, 1.5)
                        self.assertIn(f"STATUS={bridge.name}: publishing process {node.pid}", got)
                        self.assertNotIn("READY=1", got)
                    bridge.stop()
                    self.assertIn("STOPPING=1", self.messages(s, 0.2))

    def test_not_ready_when_not_attached(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.bind(self.path("notify"))
            s.settimeout(0.1)
            bare = self.path("bare")
            subprocess.run(["objcopy", "--remove-section=.note.stapsdt", FAKE_NODE, bare], check=True)
            subprocess.run([tool("coretapd"), "--binary", bare], stderr=subprocess.DEVNULL,
                           env={**os.environ, "NOTIFY_SOCKET": self.path("notify")})
            self.assertEqual(self.messages(s, 0.3), [])

    def test_without_a_manager(self):
        for path in ("/nonexistent", "@nobody-listens-here", "relative", "", "x" * 300, "/" + "x" * 300):
            with Bridge(binary=self.binary, env={"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "1000"}) as bridge:
                self.assertEqual(bridge.stop(), 0)


if __name__ == "__main__":
    main()
