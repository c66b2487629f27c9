"""Least privilege, closed doors, and what the service manager is told."""
import grp
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
import time

import msgpack
import zmq

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import (FAKE_NODE, Bridge, FakeNode, Subscriber, TestCase, bpf_alive, free_port, main, need_root, tool,
                     wait_until)

USAGE, PRIVILEGE, ADDRESS = 2, 4, 5
CAP_SYS_PTRACE, CAP_LEASE, CAP_PERFMON, CAP_BPF = 19, 28, 38, 39
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

    def test_refusals(self):
        self.refused(USAGE, "--user", "no-such-user-here", says=("no-such-user-here",))
        program = shutil.copy(tool("coretapd", sanitized=False), self.path("coretapd"))
        done = subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", program, "--user",
                               "root", "--binary", self.binary], stderr=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, PRIVILEGE, done.stderr)


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

    def hello(self, s):
        s.send(msgpack.packb({"v": 1, "id": 1, "op": "hello"}))
        return msgpack.unpackb(s.recv_multipart()[0])["node"] if s.poll(3000) else None

    def test_only_known_keys(self):
        with Bridge(*self.options(), binary=self.binary) as bridge:
            ipc = [self.connect(0, address=f"ipc:///run/coretap/{bridge.name}/{n}.sock") for n in ("low", "high")]
            good = [self.connect(bridge.port + i, client="alice") for i in range(2)]
            bad = [self.connect(bridge.port + i, **how) for i in range(2)
                   for how in ({}, {"client": "eve"}, {"client": "alice", "server": "eve"})]
            for s in (*good, *ipc):
                self.assertTrue(s.poll(5000))
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
            self.assertIsNone(self.hello(self.connect(bridge.port + 2, zmq.REQ, client="eve")))
            self.assertIsNone(self.hello(self.connect(bridge.port + 2, zmq.REQ)))
            # Let in without a restart.
            with open(self.path("clients"), "a") as f:
                f.write(self.key("eve.pub").decode() + " eve, who was all right after all\n")
            bridge.send(signal.SIGHUP)
            wait_until(lambda: "2 keys" in bridge.log(), 5, "read again")
            self.assertTrue(self.connect(bridge.port, client="eve").poll(5000))
            # A list that cannot be read changes nothing.
            with open(self.path("clients"), "a") as f:
                f.write("rubbish\n")
            bridge.send(signal.SIGHUP)
            wait_until(lambda: f"{self.path('clients')}:4" in bridge.log(), 5, "told")
            self.assertTrue(self.connect(bridge.port, client="eve").poll(5000))

    def test_nothing_without_curve(self):
        """The status says nothing of keys where none are demanded."""
        with Bridge(binary=self.binary) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            self.assertNotIn("rejected", sub.status("low"))

    def test_many_strangers(self):
        """Connections without a key, many at once: counted, and no event waits."""
        with Bridge(*self.options(), binary=self.binary, sanitized=False) as bridge:
            s = self.connect(0, address=f"ipc:///run/coretap/{bridge.name}/low.sock")
            s.rcvhwm = 0
            self.assertTrue(s.poll(5000))
            strangers = [socket.create_connection(("127.0.0.1", bridge.port + i % 3)) for i in range(300)]
            for i, stranger in enumerate(strangers):
                stranger.send(os.urandom(64) if i % 2 else b"\xff" + b"\0" * 8 + b"\x7f\3\1NULL" + b"\0" * 48)
            with FakeNode("burst", 5000, "--wait", binary=self.binary) as node:
                node.finish()
            got = 0
            end = time.monotonic() + 10
            while got < 5000 and time.monotonic() < end:
                if s.poll(100):
                    topic, body = s.recv_multipart()
                    if topic == b"mempool.removed":
                        got += len(msgpack.unpackb(body)["events"])
            self.assertEqual(got, 5000)
            for stranger in strangers:
                stranger.close()

    def test_command(self):
        with Bridge(*self.options(), binary=self.binary) as bridge, \
                FakeNode("run", "--seconds", 20, binary=self.binary):
            def tail(*args, seconds=10):
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

    def test_keygen(self):
        self.assertEqual(os.stat(self.path("server.key")).st_mode & 0o777, 0o600)
        self.assertEqual(zmq.curve_public(self.key("server.key")), self.key("server.pub"))
        self.assertNotEqual(self.key("server.key"), self.key("alice.key"))
        before = self.key("server.key")
        done = subprocess.run([tool("coretap"), "keygen", self.path("server")], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("exists", done.stderr)
        self.assertEqual(self.key("server.key"), before)

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
