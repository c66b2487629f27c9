"""libcoretap against the real bridge: what it tells the application is complete, in order and without
duplicates, whatever happens in between."""
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import (FAKE_NODE, PLAIN, ROOT, Bridge, FakeNode, TestCase, free_port, library, main, need_root,
                     tool, wait_until)

HERE = os.path.dirname(os.path.abspath(__file__))
TOPIC = "mempool.removed"


class Client:
    """client_c.c as a process."""

    def __init__(self, program, port, *args, topics=(TOPIC,), wait=True):
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [program, f"tcp://127.0.0.1:{port}", *map(str, args), *topics], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=self.errors, text=True)
        if wait and self.process.stdout.readline() != "joined\n":
            raise AssertionError(f"client ended: {self.log()}")

    def log(self):
        return os.pread(self.errors.fileno(), 1 << 20, 0).decode()

    def notices(self, kind):
        return [n for n in (json.loads(line) for line in self.log().splitlines()
                            if line.startswith("{")) if n["notice"] == kind]

    def result(self, seconds=240):
        out = self.process.communicate(timeout=seconds)[0]
        if self.process.returncode:
            raise AssertionError(f"client ended with {self.process.returncode}: {self.log()}")
        return json.loads(out.splitlines()[-1])

    def end(self, firings=0):
        """After so many firings, or at once."""
        self.process.stdin.write(f"{firings}\n")
        self.process.stdin.flush()
        self.process.terminate()

    def stop(self, firings):
        self.end(firings)
        return self.result()

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
        self.errors.close()


class ClientC(TestCase):
    def setUp(self):
        need_root()
        self.directory = tempfile.mkdtemp(prefix="coretap-test-")
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        self.program = os.path.join(self.directory, "client")
        self.build()
        self.node = os.path.join(self.directory, "node")
        shutil.copy(FAKE_NODE, self.node)
        self.port = free_port()
        self.name = f"c{os.getpid()}-{self.port}"
        self.addCleanup(self.detach)

    def build(self, **keywords):
        subprocess.run([os.environ.get("CC", "gcc"), "-O2", "-Wall", "-Wextra", "-Werror",
                        os.path.join(HERE, "client_c.c"), *library(**keywords), "-o", self.program], check=True)

    def detach(self):
        subprocess.run([tool("coretapd"), "--detach", "--name", self.name,
                        "--binary", self.node], stderr=subprocess.DEVNULL)
        shutil.rmtree(f"/run/coretap/{self.name}", ignore_errors=True)

    def bridge(self, *args, **keywords):
        return Bridge(*args, port=self.port, name=self.name, binary=self.node, keep=True, **keywords)

    def client(self, *args, **keywords):
        client = Client(self.program, self.port, *args, **keywords)
        self.addCleanup(client.close)
        return client

    def burst(self, count, *args):
        return FakeNode("burst", count, "--wait", "--start-delay", 300, *args, binary=self.node)

    def check_whole(self, result, fired):
        self.assertEqual({k: result[k] for k in ("count", "gap", "lost", "wrong", "first", "runs")},
                         {"count": fired, "gap": 0, "lost": 0, "wrong": 0, "first": 1, "runs": 0})

    def test_stopped_for_ten_seconds(self):
        """500,000 events pass while the subscriber stands still; little of it fits into its queue."""
        count = 500000
        with self.bridge("--subscriber-memory", "1M", "--journal-low", "256M",
                         "--journal-high", "16M"):
            client = self.client("--until", count)
            client.process.send_signal(signal.SIGSTOP)
            begin = time.monotonic()
            with self.burst(count) as node:
                fired = node.finish()[TOPIC]
            time.sleep(max(0, 10 - (time.monotonic() - begin)))
            client.process.send_signal(signal.SIGCONT)
            result = client.result()
        self.check_whole(result, fired)
        self.assertGreater(result["replayed"], count // 2)
        print(f"# {result['replayed']} of {count} events from replay, {result['cpu']:.0f} ns of CPU "
              "each", file=sys.stderr)

    def test_stopped_without_a_journal(self):
        """Then the exact range is told, although no further event comes."""
        with self.bridge("--subscriber-memory", "1M", "--journal", "none"):
            client = self.client("--until", 500000, "--memory", 1 << 20)
            client.process.send_signal(signal.SIGSTOP)
            with self.burst(500000) as node:
                fired = node.finish()[TOPIC]
            client.process.send_signal(signal.SIGCONT)
            result = client.result(10)
            gaps = client.notices("gap")
        self.assertEqual(result["count"] + result["gap"], fired)
        self.assertGreater(result["gap"], 100000)
        self.assertEqual(sum(g["last"] - g["first"] + 1 for g in gaps), result["gap"])
        self.assertTrue(all(a["last"] < b["first"] for a, b in zip(gaps, gaps[1:])), gaps)

    def test_bridge_killed_ten_times(self):
        bridge, chance = self.bridge("--keep-attached"), random.Random(5)
        client = self.client()
        with self.burst(100000000, "--rate", 20000) as node:
            for _ in range(10):
                time.sleep(chance.uniform(0.1, 0.6))
                bridge.kill()
                time.sleep(chance.uniform(0, 0.3))
                bridge = self.bridge("--keep-attached")
            time.sleep(0.3)
            fired = node.stop()[TOPIC]
        result = client.stop(fired)
        bridge.stop()
        self.check_whole(result, fired)
        self.assertGreater(fired, 60000)
        print(f"# {fired} events, {result['replayed']} from replay", file=sys.stderr)

    def test_mirror(self):
        """Two sockets, several topics, a queue that always overflows, a subscriber that stands still
        now and then, a bridge that is killed fifteen times: the mempool built from `coretap tail` is
        the node's, and nothing is missing or comes twice. Plain ones: the journal must outlast the tail."""
        args = ("--keep-attached", "--subscriber-memory", "256K", "--journal-low", "128M",
                "--journal-high", "256M")
        pool, chance = os.path.join(self.directory, "pool"), random.Random(9)
        bridge = self.bridge(*args, sanitized=False)
        with open(os.path.join(self.directory, "out"), "w+") as out, \
                open(os.path.join(self.directory, "errors"), "w+") as errors:
            tail = subprocess.Popen([tool("coretap", False), "tail", "mempool", "utxocache", "--json",
                                     "--address", f"tcp://127.0.0.1:{self.port}"], stdout=out,
                                    stderr=errors)
            self.addCleanup(tail.kill)
            time.sleep(2.5)
            with FakeNode("walk", 100000000, "--rate", 20000, "--coins", "--mempool-out", pool,
                          "--wait", "--start-delay", 300, binary=self.node) as node:
                for i in range(15):
                    time.sleep(chance.uniform(0.05, 0.5))
                    if i % 3 == 0:
                        tail.send_signal(signal.SIGSTOP)
                        time.sleep(0.7)
                        tail.send_signal(signal.SIGCONT)
                    bridge.kill()
                    bridge = self.bridge(*args, sanitized=False)
                fired = {t: n for t, n in node.stop().items()
                         if t.startswith(("mempool.", "utxocache."))}

            def printed():
                time.sleep(0.5)
                with open(out.name) as lines:
                    return sum(line.startswith('{"topic"') for line in lines)
            wait_until(lambda: printed() >= sum(fired.values()), 120, "all of them")
            time.sleep(1)  # and no more
            tail.send_signal(signal.SIGINT)
            self.assertEqual(tail.wait(80), 0)
            bridge.stop()
            errors.seek(0)
            self.assertNotRegex(errors.read(), "gone|lost|run")  # a slow machine's coretapd may be missed
            count, mirror, misfits = {}, set(), 0
            out.seek(0)
            for event in map(json.loads, out):
                if event.get("notice") in ("stale", "alive"):
                    continue  # a slow machine's coretapd was missed
                topic, txid = event["topic"], event.get("txid")
                count[topic] = count.get(topic, 0) + 1
                self.assertEqual(event["seq"], count[topic], topic)
                if topic == "mempool.added":
                    misfits += txid in mirror
                    mirror.add(txid)
                elif topic == "mempool.removed":
                    misfits += txid not in mirror
                    mirror.discard(txid)
        self.assertEqual(count, fired)
        self.assertEqual(misfits, 0)
        with open(pool) as file:
            self.assertTrue(mirror == {line.split()[0] for line in file}, "another mempool")

    def test_new_runs(self):
        """Without --keep-attached each start is a new run; the old one's tail comes before it."""
        bridge = self.bridge()
        out = os.path.join(self.directory, "out")
        client = self.client("--out", out)
        with self.burst(100000000, "--rate", 20000) as node:
            for run in range(3):
                time.sleep(0.5)
                bridge.kill()
                bridge = self.bridge()
                wait_until(lambda: len(client.notices("new_run")) == 2 * (run + 1), 20, "both sockets' new run")
            time.sleep(0.5)
            fired = node.stop()[TOPIC]
        result = client.stop(fired)
        # What each run published is there to the last message: its end is known from the journal.
        self.assertEqual((result["gap"], result["lost"]), (0, 0))
        runs = [n["run"] for n in client.notices("new_run") if n["socket"] == "low"]
        self.assertEqual(len(runs), 3)
        self.assertEqual(runs, sorted(runs))
        with open(out) as file:
            indices = [int(line) for line in file]
        self.assertEqual(len(indices), result["count"])
        self.assertTrue(all(a < b for a, b in zip(indices, indices[1:])), "repeated or out of order")
        self.assertEqual(sum(a + 1 != b for a, b in zip(indices, indices[1:])), 3)
        self.assertLess(result["count"], fired)
        bridge.stop()

    def test_position(self):
        """Killed again and again: the next one goes on from the position. What was flushed after
        the last commit may come twice, nothing is missing."""
        out, position = (os.path.join(self.directory, name) for name in ("out", "position"))
        chance = random.Random(6)
        with self.bridge("--journal-low", "64M", "--journal-high", "16M"), \
                self.burst(100000000, "--rate", 20000) as node:
            client = self.client("--out", out, "--position", position)
            for i in range(10):
                time.sleep(chance.uniform(0.1, 0.5))
                client.end() if i % 2 else client.process.kill()
                client.process.wait(40)
                with open(out, "rb+") as file:  # a line that kill -9 divided
                    data = file.read()
                    file.truncate(data.rfind(b"\n") + 1)
                client = self.client("--out", out, "--position", position, wait=False)
            time.sleep(0.5)
            fired = node.stop()[TOPIC]
            result = client.stop(fired)
        self.assertEqual((result["gap"], result["lost"]), (0, 0))
        with open(out) as file:
            indices = [int(line) for line in file]
        self.assertTrue(sorted(set(indices)) == list(range(indices[0], fired)), "some are missing")
        back = [(a, b) for a, b in zip(indices, indices[1:]) if b != a + 1]
        self.assertEqual(indices[0], 0)
        self.assertTrue(all(b <= a for a, b in back), back)  # only ever a repetition
        self.assertLessEqual(len(back), 5)  # and none after an orderly end

    def test_since_and_both_sockets(self):
        with self.bridge(), FakeNode("walk", 20000, "--coins", "--wait", "--start-delay", 300,
                                     binary=self.node) as node:
            fired = node.finish()
            time.sleep(0.5)
            wanted = sum(n for t, n in fired.items() if t.startswith(("mempool.", "utxocache.")))
            result = self.client("--since", 0, "--until", wanted, topics=("mempool.", "utxocache.")).result()
        self.assertEqual((result["count"], result["gap"], result["lost"]), (wanted, 0, 0))

    def test_cpu(self):
        """What an event costs the application, at full batches; not sanitized, as it is measured."""
        count = 1000000
        self.build(sanitized=False)
        with self.bridge("--journal-low", "384M", "--journal-high", "16M", sanitized=False):
            client = self.client("--until", count)
            with self.burst(count) as node:
                fired = node.finish()[TOPIC]
            result = client.result()
        self.check_whole(result, fired)
        print(f"# {result['cpu']:.0f} ns of CPU for each event, libzmq's thread included",
              file=sys.stderr)

    def test_shared_library(self):
        """An application of others: pkg-config, the shared library, C++, and only our names in it.
        What is installed is plain."""
        prefix = os.path.join(self.directory, "prefix")
        for source, target in (("libcoretap.so", "lib/libcoretap.so.1"), ("libcoretap.a", "lib/libcoretap.a")):
            os.makedirs(os.path.dirname(os.path.join(prefix, target)), exist_ok=True)
            shutil.copy(os.path.join(PLAIN, source), os.path.join(prefix, target))
        os.makedirs(os.path.join(prefix, "include"))
        shutil.copy(os.path.join(ROOT, "clients/c/coretap.h"), os.path.join(prefix, "include"))
        os.symlink("libcoretap.so.1", os.path.join(prefix, "lib/libcoretap.so"))
        with open(os.path.join(ROOT, "clients/c/coretap.pc.in")) as file:
            text = file.read().replace("@PREFIX@", prefix).replace("@LIBDIR@", f"{prefix}/lib").replace("@VERSION@", "0")
        with open(os.path.join(prefix, "lib/coretap.pc"), "w") as file:
            file.write(text)
        flags = subprocess.run(["pkg-config", "--cflags", "--libs", "coretap"], check=True, text=True,
                               capture_output=True,
                               env={**os.environ, "PKG_CONFIG_PATH": f"{prefix}/lib"}).stdout.split()
        source = os.path.join(self.directory, "a.cc")
        with open(source, "w") as file:
            file.write('#include <coretap.h>\n#include <cstdio>\n'
                       'int main() { std::puts(coretap_version()); coretap *t;\n'
                       'return coretap_open(nullptr, &t) || (coretap_close(t), 0); }\n')
        program = os.path.join(self.directory, "a")
        subprocess.run(["g++", "-Wall", "-Wextra", "-Werror", source, "-o", program, *flags], check=True)
        out = subprocess.run([program], capture_output=True, text=True, check=True,
                             env={**os.environ, "LD_LIBRARY_PATH": f"{prefix}/lib"}).stdout
        self.assertRegex(out, r"^\d+\.\d+\.\d+\n$")
        for options in (["-D", "libcoretap.so.1"], ["libcoretap.a"]):
            if "--coverage" in library():
                continue  # there are names of gcov in it
            names = subprocess.run(["nm", "--defined-only", "-g", *options[:-1],
                                    os.path.join(prefix, "lib", options[-1])], capture_output=True,
                                   text=True, check=True).stdout.splitlines()
            names = [line.split()[-1] for line in names if line.count(" ") >= 2]
            self.assertEqual([n for n in names if not n.startswith("coretap_")], [])
            self.assertGreater(len(names), 30)


if __name__ == "__main__":
    main()
