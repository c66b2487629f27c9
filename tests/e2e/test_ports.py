"""Strangers at the ports, and signals at the process: coretapd lives on, serves, and keeps nothing."""
import contextlib
import os
import random
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
from harness import Bridge, FakeNode, Subscriber, TestCase, main, wait_until
from replay import Replay

CONNECTS = 5000
GREETING = b"\xff" + bytes(7) + b"\x01\x7f" + b"\x03\x00" + b"NULL" + bytes(16) + b"\x00" + bytes(31)


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


class Ports(TestCase):
    def setUp(self):
        self.bridge = Bridge()
        self.addCleanup(self.bridge.__exit__, None, None, None)
        with Subscriber(self.bridge) as sub:
            sub.wait_status()
        wait_until(lambda: self.settled(), 10, "no connection left")
        self.before = descriptors(self.bridge.pid)

    def settled(self):
        count = descriptors(self.bridge.pid)
        time.sleep(0.3)
        return count == descriptors(self.bridge.pid)

    def ports(self):
        return range(self.bridge.port, self.bridge.port + 3)

    def connect(self, port):
        s = socket.create_connection(("127.0.0.1", port), 5)
        s.settimeout(5)
        return s

    def check(self):
        """It lives, serves everything, and has closed what strangers opened."""
        self.assertIsNone(self.bridge.process.poll(), self.bridge.log())
        with Subscriber(self.bridge) as sub:
            sub.wait_status()
            with FakeNode("burst", 2000, "--wait") as node:
                fired = node.finish()
            with FakeNode("burst", 2000, "--probe", "utxo", "--wait") as node:
                fired.update(node.finish())
            sub.wait_ledger(fired)
            self.check_account(sub, fired)
            context = zmq.Context()
            replay = Replay(context, f"tcp://127.0.0.1:{self.bridge.port + 2}")
            self.assertEqual(replay.ask(op="hello")[0]["run"], sub.runs[0])
            replay.close()
            context.term()
        wait_until(lambda: descriptors(self.bridge.pid) <= self.before, 40,
                   f"descriptors back to {self.before}")
        self.assertEqual(self.bridge.stop(), 0)

    def test_connect_and_close(self):
        for port in self.ports():
            for i in range(CONNECTS):
                s = self.connect(port)
                if i % 3 == 0:  # reset instead of an orderly end
                    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                s.close()
        self.check()

    def test_http(self):
        for port in self.ports():
            for _ in range(50):
                with self.connect(port) as s:
                    s.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n")
                    s.settimeout(0.02)  # a dialect of long ago, to libzmq: it waits for more
                    try:
                        while s.recv(4096):
                            pass
                    except OSError:
                        pass
        self.check()

    def test_random_bytes(self):
        chance = random.Random(10)
        for port in self.ports():
            for i in range(300):
                with self.connect(port) as s:
                    try:
                        if i % 2:
                            s.sendall(GREETING)
                        if i % 4 == 3:
                            s.sendall(b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB")
                        s.sendall(chance.randbytes(chance.randrange(1, 3000)))
                        s.settimeout(0.002)
                        s.recv(4096)
                    except OSError:
                        pass
        self.check()

    def test_half_greetings(self):
        """Left half way, at every byte; and held open for a while."""
        held = []
        for port in self.ports():
            for length in range(len(GREETING) + 1):
                s = self.connect(port)
                s.sendall(GREETING[:length])
                if length % 8 == 0:
                    held.append(s)
                else:
                    s.close()
        time.sleep(1)
        for s in held:
            s.close()
        self.check()

    def test_oversized_frames(self):
        """A frame that claims to be of 2^63 bytes is not waited for with memory."""
        ready = b"\x04\x1a\x05READY\x0bSocket-Type\x00\x00\x00\x04%s"
        for port, kind in zip(self.ports(), (b"XSUB", b"XSUB", b"REQ\0")):
            for size in (2 ** 63 - 1, 2 ** 40, 2 ** 31):
                with self.connect(port) as s:
                    try:
                        s.sendall(GREETING + ready % kind)
                        time.sleep(0.02)
                        s.sendall(b"\x02" + struct.pack(">Q", size) + bytes(1000))
                        time.sleep(0.02)
                    except OSError:
                        pass
        self.assertIsNone(self.bridge.process.poll(), self.bridge.log())
        with open(f"/proc/{self.bridge.pid}/status") as f:
            rss = next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))
        self.assertLess(rss, 1 << 20)
        self.check()


class Signals(TestCase):
    def load(self, bridge, sub, disturb, seconds=60):
        with FakeNode("burst", 100000000, "--rate", 50000, "--wait") as node:
            disturb(bridge)
            self.assertIsNone(bridge.process.poll(), bridge.log())
            fired = node.stop()
        sub.wait_ledger(fired, seconds)
        self.check_account(sub, fired)
        self.check_stream(sub)
        self.assertEqual(sub.lost, {})

    def test_stop_and_continue(self):
        def disturb(bridge):
            chance = random.Random(11)
            for _ in range(200):
                bridge.send(signal.SIGSTOP)
                time.sleep(chance.uniform(0, 0.02))
                bridge.send(signal.SIGCONT)
                time.sleep(chance.uniform(0, 0.02))
        with Bridge() as bridge, Subscriber(bridge, keep=False) as sub:
            sub.wait_status()
            self.load(bridge, sub, disturb)

    def test_hangup(self):
        def disturb(bridge):
            for _ in range(200):
                bridge.send(signal.SIGHUP)
                time.sleep(0.005)
        with Bridge() as bridge, Subscriber(bridge, keep=False) as sub:
            sub.wait_status()
            self.load(bridge, sub, disturb)

    def test_strace(self):
        """Attached and detached under load: every system call may return early."""
        strace = shutil.which("strace")
        if not strace:
            self.skipTest("no strace here")

        def disturb(bridge):
            for _ in range(10):
                with tempfile.TemporaryFile() as errors:
                    tracer = subprocess.Popen([strace, "-f", "-qq", "-o", "/dev/null", "-p", str(bridge.pid)],
                                              stderr=errors, start_new_session=True)
                    time.sleep(0.15)
                    tracer.terminate()
                    tracer.wait()
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(tracer.pid, signal.SIGKILL)  # it may have left a process of its own
                    errors.seek(0)
                    if b"Operation not permitted" in errors.read():
                        self.skipTest("strace may not attach here")
                time.sleep(0.05)
        with Bridge() as bridge, Subscriber(bridge, keep=False) as sub:
            sub.wait_status()
            self.load(bridge, sub, disturb)


if __name__ == "__main__":
    main()
