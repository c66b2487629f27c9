"""Subscribers that stall, stop, or are hostile: memory stays within the formula, others lose nothing,
and who was away completes what it missed or learns its exact number."""
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import msgpack
import zmq

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import PATIENCE, ROOT, Bridge, FakeNode, Subscriber, TestCase, main, need_root, wait_until

STOP_SECONDS = float(os.environ.get("STOP_SECONDS", "10"))
EVENTS = int(os.environ.get("STOP_EVENTS", "2000000"))
MIB = 1 << 20
BASE = 64 * MIB  # what the process needs itself


def anonymous(pid):
    """Memory of its own, in bytes. The rings and the journal are mapped files and count apart."""
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("RssAnon")) * 1024


class Watch:
    """The most memory of a process, looked at all the time."""

    def __init__(self, pid):
        self.pid, self.most, self.ending = pid, 0, threading.Event()
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()

    def work(self):
        while not self.ending.wait(0.02):
            try:
                self.most = max(self.most, anonymous(self.pid))
            except (OSError, StopIteration):
                return

    def stop(self):
        self.ending.set()
        self.thread.join()
        return self.most


class Process:
    """A complete subscriber of its own."""

    def __init__(self, bridge, *args):
        self.process = subprocess.Popen(
            [sys.executable, os.path.join(ROOT, "tests", "lib", "replay.py"), str(bridge.port),
             *map(str, args)], stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != "joined\n":
            raise AssertionError("subscriber did not join")

    def send(self, number):
        self.process.send_signal(number)

    def result(self, seconds=240):
        """Its account, once it has everything it was told to wait for."""
        try:
            out, _ = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            out, _ = self.process.communicate(timeout=80)
        return json.loads(out)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


class Stopped(TestCase):
    def setUp(self):
        need_root()

    def check_complete(self, result, count, topic="mempool.removed"):
        self.assertEqual(result["errors"], [])
        self.assertEqual(result["wrong"], [])
        self.assertEqual(result["gone"], [])
        self.assertEqual(result["skipped"], [])
        self.assertEqual(result["count"][topic], count)
        self.assertEqual(sum(result["lost"].values()), 0)

    def test_one_of_two_for_a_long_burst(self):
        """Both end complete; the bridge's memory is bounded by --subscriber-memory for each."""
        memory = 64 * MIB
        # Its memory is measured: the plain one.
        with Bridge("--journal-low", "512M", "--journal-high", "1M", "--subscriber-memory", "64M",
                    sanitized=False) as bridge:
            count = EVENTS + 2  # with the node's start and exit
            with Process(bridge, "--burst", "--until", count) as running, \
                    Process(bridge, "--burst", "--until", count) as stopped:
                watch = Watch(bridge.pid)
                stopped.send(signal.SIGSTOP)
                begin = time.monotonic()
                with FakeNode("burst", EVENTS, "--wait") as node:
                    self.assertEqual(node.finish()["mempool.removed"], EVENTS)
                whole = running.result()
                rest = begin + STOP_SECONDS - time.monotonic()
                time.sleep(max(0, rest))
                stopped.send(signal.SIGCONT)
                late = stopped.result()
                most = watch.stop()
            self.check_complete(whole, EVENTS)
            self.check_complete(late, EVENTS)
            self.assertGreater(late["pages"], 10)
            print(f"# {late['pages']} pages for the stopped one, {whole['pages']} for the other, "
                  f"bridge at most {most / MIB:.0f} MiB", file=sys.stderr)
            self.assertLess(most, 2 * memory + BASE)

    def test_without_replay_the_exact_number(self):
        """No event follows: within two status periods the stopped one knows what it missed."""
        count = 300000
        with Bridge("--journal", "none", "--subscriber-memory", "1M") as bridge:
            with Process(bridge, "mempool.", "--hwm", 10, "--until", count) as stopped, \
                    Subscriber(bridge, keep=False) as other:
                other.wait_status()
                stopped.send(signal.SIGSTOP)
                with FakeNode("burst", count, "--wait") as node:
                    node.finish()
                wait_until(lambda: other.status("low")["heads"]["mempool.removed"] == count, 10)
                time.sleep(1)
                stopped.send(signal.SIGCONT)
                begin = time.monotonic()
                result = stopped.result()
                self.assertLess(time.monotonic() - begin, 2 * PATIENCE)
            self.assertEqual(result["errors"], [])
            missed = sum(last - first + 1 for _, _, first, last in result["gone"])
            self.assertGreater(missed, 1000)
            self.assertEqual(missed + result["count"].get("mempool.removed", 0), count)
            self.assertEqual({topic for _, topic, _, _ in result["gone"]}, {"mempool.removed"})
            print(f"# {missed} missed, in {len(result['gone'])} ranges", file=sys.stderr)

    def test_a_large_block(self):
        """Stopped for three seconds when a block of 5,000 transactions connects."""
        for journal in (True, False):
            args = ["--journal-low", "64M"] if journal else ["--journal", "none"]
            with Bridge("--subscriber-memory", "16K", *args) as bridge, \
                    Subscriber(bridge, keep=False) as other, \
                    Process(bridge, "mempool.", "block.", "validation.", "--hwm", 1) as stopped:
                other.wait_status()
                with FakeNode("blocks", 1, 5000, "--rate", 20000, "--wait", "--hold") as node:
                    wait_until(lambda: other.status("low")["heads"]["mempool.added"] > 3000, 10)
                    stopped.send(signal.SIGSTOP)
                    time.sleep(3)
                    node.process.terminate()
                    fired = node.finish()
                    # The other one's queue is as small: only what a status repeats reaches it for certain.
                    wait_until(lambda: other.status("low")["heads"]["node.exited"], 10, "all that the node fired")
                    stopped.send(signal.SIGCONT)
                stopped.send(signal.SIGTERM)
                result = stopped.result()
                self.assertEqual(result["errors"], [])
                count, gone = result["count"], {}
                for _, topic, first, last in result["gone"]:
                    gone[topic] = gone.get(topic, 0) + last - first + 1
                for topic in ("mempool.added", "mempool.removed", "validation.block_connected"):
                    self.assertEqual(count.get(topic, 0) + gone.get(topic, 0), fired[topic], topic)
                if journal:
                    self.assertEqual(result["gone"], [])
                    self.assertGreaterEqual(count["block.evictions"], 1)
                else:
                    self.assertTrue(gone)

    def test_two_frames_always(self):
        """Stalled subscribers and a million messages: a message that is dropped is dropped whole."""
        messages = 1000000
        with Bridge("--subscriber-memory", "1M", "--ring-high", "512M", "--journal-high", "1M") as bridge:
            context = zmq.Context()
            subs = []
            for hwm in (1, 100, 1000):
                s = context.socket(zmq.SUB)
                s.setsockopt(zmq.RCVHWM, hwm)
                s.setsockopt(zmq.LINGER, 0)
                s.subscribe(b"")
                s.connect(f"tcp://127.0.0.1:{bridge.port + 1}")
                subs.append(s)
            for s in subs:
                self.assertEqual(s.recv_multipart()[0], b"bridge.status")
            received, n = [0] * 3, [0] * 3
            # Two spent, two added, and so on: two events to a message.
            with FakeNode("burst", 2 * messages, "--probe", "utxo", "--wait") as node:
                end = None
                while end is None or time.monotonic() < end:
                    for i, s in enumerate(subs):
                        for _ in range(200 * (i + 1)):
                            if not s.poll(0):
                                break
                            parts = s.recv_multipart()
                            self.assertEqual(len(parts), 2)
                            self.assertRegex(parts[0], rb"^(utxocache\.(spent|add)|bridge\.status)$")
                            received[i] += 1
                            if received[i] % 50 == 0:
                                body = msgpack.unpackb(parts[1])
                                self.assertEqual(body["v"], 1)
                                self.assertGreaterEqual(body["n"], n[i])
                                n[i] = body["n"]
                    time.sleep(0.01)  # far too slow
                    if end is None and node.process.poll() is not None:
                        end = time.monotonic() + 3
                node.finish()
            for s in subs:
                s.close()
            context.term()
            print(f"# received {received} of {messages}", file=sys.stderr)
            self.assertLess(received[0], messages)
            self.assertIsNone(bridge.process.poll())


class Connections(TestCase):
    def test_more_than_there_are_files(self):
        """From any user of the machine: those who are there lose nothing, files for the node are left."""
        with Bridge(prefix=("prlimit", "--nofile=256:256")) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            many = []
            for _ in range(300):
                for kind, address in ((socket.AF_UNIX, f"/run/coretap/{bridge.name}/low.sock"),
                                      (socket.AF_UNIX, f"/run/coretap/{bridge.name}/replay.sock"),
                                      (socket.AF_INET, ("127.0.0.1", bridge.port))):
                    many.append(socket.socket(kind))
                    wait_until(lambda: many[-1].connect_ex(address) != errno.EAGAIN)
            wait_until(lambda: "connections refused" in bridge.log(), 5)
            self.assertLess(len(os.listdir(f"/proc/{bridge.pid}/fd")), 200)
            with FakeNode("burst", 1000, "--wait") as node:
                fired = node.finish()
            sub.wait_ledger(fired)
            self.check_account(sub, fired)
            for s in many:
                s.close()
            wait_until(lambda: len(os.listdir(f"/proc/{bridge.pid}/fd")) < 100, 5)
            with Subscriber(bridge) as late:
                late.wait_status()
            self.assertEqual(bridge.stop(), 0)


class Subscriptions(TestCase):
    def test_5000_filters_across_a_restart(self):
        port = name = None
        with Bridge(keep=True) as bridge:
            port, name = bridge.port, bridge.name
            context = zmq.Context()
            s = context.socket(zmq.SUB)
            s.setsockopt(zmq.RCVHWM, 0)
            s.setsockopt(zmq.RECONNECT_IVL, 20)
            for i in range(5000):
                s.subscribe(f"nothing.{i}.")
            s.subscribe(b"mempool.removed")
            s.subscribe(b"bridge.status")
            s.connect(f"tcp://127.0.0.1:{port}")
            self.assertEqual(s.recv_multipart()[0], b"bridge.status")
        # Reads all the time: a SUB socket subscribes anew only while it is used.
        got, ending = [], threading.Event()

        def read():
            while not ending.is_set():
                if s.poll(10):
                    topic, body = s.recv_multipart()
                    got.append((topic, msgpack.unpackb(body)))
        reader = threading.Thread(target=read)
        reader.start()
        try:
            with Bridge(port=port, name=name) as bridge:
                # At once: what the ring holds is published when subscribers have had time to return.
                with FakeNode("burst", 5000, "--wait") as node:
                    node.finish()
                wait_until(lambda: any(t == b"bridge.status" and
                                       b["heads"].get("mempool.removed") == 5000 for t, b in got), 5)
        finally:
            ending.set()
            reader.join()
            s.close(0)
            context.term()
        self.assertEqual(sum(len(b["events"]) for t, b in got if t == b"mempool.removed"), 5000)

    def test_200000_subscriptions_and_their_end(self):
        """From a hostile peer: alive, bounded, and forgotten when it leaves."""
        # Its memory is measured: the plain one.
        with Bridge(sanitized=False) as bridge, Subscriber(bridge, keep=False) as sub:
            sub.wait_status()
            watch = Watch(bridge.pid)
            context = zmq.Context()
            for offset in (0, 1):
                s = context.socket(zmq.XSUB)  # sends subscriptions as they are
                s.setsockopt(zmq.SNDHWM, 0)
                s.setsockopt(zmq.LINGER, 0)
                s.connect(f"tcp://127.0.0.1:{bridge.port + offset}")
                for i in range(50000):
                    s.send(b"\x01topic-%08d" % i)
                for i in range(50000):
                    s.send(b"\x00topic-%08d" % i)
                s.send(b"\x01bridge.status")
                self.assertTrue(s.poll(60000), "status after all that")
                s.close()
            with FakeNode("burst", 10000, "--wait") as node:
                fired = node.finish()
            sub.wait_ledger(fired)
            self.check_account(sub, fired)
            self.check_stream(sub)
            context.term()
            most = watch.stop()
            print(f"# at most {most / MIB:.0f} MiB", file=sys.stderr)
            self.assertLess(most, 256 * MIB)


if __name__ == "__main__":
    main()
