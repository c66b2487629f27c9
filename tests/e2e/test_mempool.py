"""A subscriber of 25 lines (mirror.py) that keeps the set of transactions in the mempool, from the
low socket alone, has it exactly."""
import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "lib"))
from harness import Bridge, FakeNode, TestCase, main, wait_until

MIRROR = os.path.join(HERE, "mirror.py")


class Mirror:
    """The subscriber, as a process of its own."""

    def __init__(self, port):
        self.out = tempfile.TemporaryFile()
        self.process = subprocess.Popen([sys.executable, MIRROR, f"tcp://127.0.0.1:{port}"],
                                        stdout=self.out, stderr=subprocess.STDOUT)

    def lines(self):
        size = os.fstat(self.out.fileno()).st_size
        return os.pread(self.out.fileno(), size, 0).decode().split("\n")

    def wait_statuses(self, more):
        count = self.lines().count("ready") + more
        wait_until(lambda: self.lines().count("ready") >= count, 60, "a status at the mirror")

    def finish(self):
        code = self.process.wait(80)
        if code:
            raise AssertionError(f"mirror ended with {code}: {self.lines()[-1]}")
        return [line for line in self.lines() if line and line != "ready"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.out.close()


class Mempool(TestCase):
    def walk(self, *args, nodes=1, seed=1, steps=20000):
        """The pool after a random walk; nodes before it must have left nothing behind."""
        with Bridge(*args) as bridge, Mirror(bridge.port) as mirror, \
                tempfile.TemporaryDirectory() as d:
            mirror.wait_statuses(1)
            for k in range(nodes - 1):
                with FakeNode("walk", 500, "--seed", 100 + k, "--wait") as node:
                    node.finish()
            path = f"{d}/pool"
            with FakeNode("walk", steps, "--seed", seed, "--mempool-out", path, "--wait",
                          "--hold") as node:
                # The node writes it at the end of the walk and then holds, so it is whole soon.
                wait_until(lambda: os.path.exists(path), 60, "the end of the walk")
                time.sleep(0.1)
                # The second status from here was made after the last event, and comes after it.
                mirror.wait_statuses(2)
                self.assertEqual(bridge.stop(), 0)
                got = mirror.finish()
                with open(path) as f:
                    expected = f.read().split()
                node.stop()
            self.assertGreater(len(expected), 50)
            self.assertEqual(got, expected)

    def test_subscriber_is_small(self):
        with open(MIRROR) as f:
            self.assertLessEqual(len(f.readlines()), 25)

    def test_exact_after_a_walk(self):
        for seed in (1, 2, 3):
            with self.subTest(seed=seed):
                self.walk(seed=seed)

    def test_exact_after_a_long_walk_at_full_speed(self):
        self.walk(seed=4, steps=200000)

    def test_exact_after_restarts(self):
        self.walk(nodes=4, seed=5)

    def test_exact_from_few_topics(self):
        """Only the two topics that it needs."""
        self.walk("--only", "mempool.*", "--only", "node.exited", seed=6)


if __name__ == "__main__":
    main()
