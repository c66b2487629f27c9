"""The coretap command: what people and scripts see of it."""
import glob
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

import msgpack
import zmq

sys.path[:0] = [os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", name) for name in ("lib", "conformance")]
from harness import (FAKE_NODE, PATIENCE, ROOT, Bridge, FakeNode, Subscriber, TestCase, free_port, library, main,
                     compile_text, need_root, tool, wait_connected, wait_until)
from publisher import RUN, Publisher
from replay import Refused, Replay

COMMANDS = ["tail", "evictions", "watch", "record", "play", "topics", "probes", "doctor"]
README = os.path.join(ROOT, "clients", "c", "README.md")
NOBODY = 65534


def coretap(*args, timeout=120, **keywords):
    return subprocess.run([tool("coretap"), *map(str, args)], capture_output=True, text=True,
                          timeout=timeout, **keywords)


def json_lines(text):
    return [json.loads(line) for line in text.splitlines()]


class Running:
    """The command as a process; lines() is what it has printed so far."""

    def __init__(self, *args):
        self.out, self.errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        self.process = subprocess.Popen([tool("coretap"), *map(str, args)], stdout=self.out,
                                        stderr=self.errors)

    @staticmethod
    def read(file):
        return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode()

    def lines(self):
        text = self.read(self.out)
        return text[:text.rfind("\n") + 1].splitlines()

    def events(self):
        return [e for e in map(json.loads, self.lines()) if "topic" in e and "notice" not in e]

    def log(self):
        return self.read(self.errors)

    def waits_for_signals(self):
        """An interrupt ends it in order from now on."""
        directory = f"/proc/{self.process.pid}/fd"
        try:
            return any("signalfd" in os.readlink(f"{directory}/{fd}") for fd in os.listdir(directory))
        except FileNotFoundError:  # closed in between
            return False

    def stop(self, number=signal.SIGINT, seconds=40):
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(seconds)

    def close(self):
        """In order, so that leaks are seen; or else by force."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.out.close()
        self.errors.close()


class CommandCase(TestCase):
    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="coretap-test-")
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)

    def path(self, name):
        return os.path.join(self.directory, name)

    def run_command(self, *args):
        running = Running(*args)
        self.addCleanup(running.close)
        return running

    def bridge(self, *args, **keywords):
        bridge = Bridge(*args, **keywords)
        self.addCleanup(bridge.__exit__, None, None, None)
        self.address = ("--address", f"tcp://127.0.0.1:{bridge.port}")
        return bridge

    def tail(self, *args):
        """A tail that has joined."""
        running = self.run_command("tail", "--json", *(args or ("*",)), "bridge.status", *self.address)
        wait_until(lambda: {e["socket"] for e in running.events() if e["topic"] == "bridge.status"}
                   == {"low", "high"}, 10, "a status of both sockets")
        return running


def without_numbers(events):
    return [{k: v for k, v in e.items() if k not in ("node", "run", "n", "seq", "n_block")}
            for e in events]


class Usage(CommandCase):
    def test_help(self):
        top = coretap("--help")
        self.assertEqual((top.returncode, top.stderr), (0, ""))
        for name in COMMANDS:
            self.assertRegex(top.stdout, rf"(?m)^  {name} ")
            help_ = coretap(name, "--help")
            self.assertEqual((help_.returncode, help_.stderr), (0, ""), name)
            self.assertTrue(help_.stdout.startswith(f"usage: coretap {name} "), help_.stdout)
            for line in help_.stdout.splitlines()[1:]:
                self.assertLess(len(line), 101, line)
            for option in re.findall(r"--[a-z]+", help_.stdout.splitlines()[0]):
                self.assertIn(f"  {option}", help_.stdout, f"{name}: {option} is not explained")
        self.assertRegex(coretap("--version").stdout, r"^coretap \d+\.\d+\.\d+\n$")

    def test_errors(self):
        only_public = self.path("only")
        with open(only_public + ".pub", "w"):
            pass
        pipe = self.path("pipe")
        os.mkfifo(pipe)
        cases = [((), 2, "usage:"), (("nothing",), 2, "no command nothing"),
                 (("tail", "--count", "0"), 2, "not a number above 0"),
                 (("tail", "--count", "x"), 2, "not a number above 0"),
                 (("tail", "--nothing"), 2, "Try `coretap tail --help`"),
                 (("tail", "a b"), 2, "not a topic"),
                 (("tail", "--since", "yesterday"), 2, "neither a duration"),
                 (("tail", "--since", "-5m"), 2, "neither a duration"),
                 (("tail", "--since", "2009-13-41"), 2, "neither a duration"),
                 (("tail", "--address", "nowhere"), 2, "not an address"),
                 (("tail", "--position", "/"), 1, "/: "),
                 (("tail", "--position", pipe), 1, f"{pipe}: not a position file"),
                 (("tail", "--position", "/dev/zero"), 1, "/dev/zero: not a position file"),
                 (("tail", "--position", "/nowhere/file"), 1, "/nowhere/file: No such file"),
                 (("tail", "mempol", "--position", "/"), 1, "mempol: no topic"),
                 (("evictions", "x"), 2, "takes no arguments"),
                 (("watch",), 2, "name the txids"), (("watch", "12"), 2, "not a txid"),
                 (("watch", "0" * 63 + "g"), 2, "not a txid"),
                 (("watch", "0" * 64, "--timeout", "x"), 2, "not a duration"),
                 (("record",), 2, "name a file"), (("record", "/dev/null"), 1, "not overwritten"),
                 (("record", "/nowhere/file"), 1, "No such file"),
                 (("record", "x", "--for", "0"), 2, "not a duration"),
                 (("play",), 2, "name the recording"), (("play", "/nowhere"), 1, "No such file"),
                 (("play", "/"), 1, "directory"), (("play", README), 1, "not a recording"),
                 (("play", README, "--port", "65534"), 2, "not a port"),
                 (("play", README, "--speed", "-1"), 2, "not a factor"),
                 (("topics", "--json", "x"), 2, "all topics"),
                 (("topics", "mempool", "mempol"), 2, "mempol: no such topic"),
                 (("probes",), 2, ""), (("probes", "/nowhere"), 1, "No such file"),
                 (("keygen",), 2, "wants one name"), (("keygen", "a", "b"), 2, "wants one name"),
                 (("keygen", "--force"), 2, "Try `coretap keygen --help`"),
                 (("keygen", "/nowhere/key"), 1, "/nowhere/key.key: No such file"),
                 (("keygen", only_public), 1, "only.pub: exists already"),
                 (("tail", "--curve-server", README, "--curve-secret", README), 2, "has no key of 40"),
                 (("tail", "--curve-server", "/nowhere", "--curve-secret", README), 2, "/nowhere: No such file")]
        for args, code, text in cases:
            with self.subTest(args=args):
                result = coretap(*args)
                self.assertEqual(result.returncode, code, result.stderr)
                self.assertIn(text, result.stderr)

    def test_since_forms(self):
        """Nobody listens there: what counts is that the time is taken."""
        for when in ("90s", "10m", "2h", "1d", "1.5h", "500ms", "15", "oldest", "2024-02-29",
                     "2024-02-29T12:30", "2024-02-29T12:30:15Z", "2024-02-29 12:30:15+01:00"):
            running = self.run_command("tail", "--since", when, "--address", "ipc:///nowhere")
            wait_until(lambda: running.waits_for_signals() or running.process.poll() is not None, 20, when)
            self.assertEqual(running.stop(), 0, running.log())

    def test_probes(self):
        result = coretap("probes", FAKE_NODE, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("mempool", result.stdout)
        text = coretap("probes", FAKE_NODE)
        self.assertIn("mempool", text.stdout)
        without = coretap("probes", "/bin/ls")
        self.assertEqual(without.returncode, 3, without.stderr)
        self.assertRegex(without.stderr + without.stdout, "tracepoint")
        for path, code in (("/", 1), (README, 1)):
            self.assertNotEqual(coretap("probes", path).returncode, 0, path)

    def test_doctor_as_nobody(self):
        need_root()
        shutil.copy(tool("coretap"), self.path("coretap"))
        os.chmod(self.directory, 0o755)
        result = subprocess.run([self.path("coretap"), "doctor"], capture_output=True, text=True,
                                user=NOBODY, group=NOBODY, extra_groups=[])
        self.assertEqual(result.returncode, 4, result.stdout + result.stderr)
        self.assertRegex(result.stdout, r"CAP_BPF|root|sudo")
        as_json = subprocess.run([self.path("coretap"), "doctor", "--json"], capture_output=True,
                                 text=True, user=NOBODY, group=NOBODY, extra_groups=[])
        checks = json_lines(as_json.stdout)
        self.assertTrue(any(c["privilege"] and c["remedy"] for c in checks), checks)

    def test_doctor_as_root(self):
        need_root()
        result = coretap("doctor")
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertNotIn("fail", result.stdout)

    def test_topics_are_fresh(self):
        for option, name in (("--json", "events.json"), ("--markdown", "EVENTS.md")):
            with open(os.path.join(ROOT, "protocol", name)) as file:
                self.assertEqual(coretap("topics", option).stdout, file.read(),
                                 f"protocol/{name} is stale: run make docs")

    def test_nobody_there(self):
        running = self.run_command("tail", "--address", f"tcp://127.0.0.1:{free_port()}")
        wait_until(lambda: "no coretapd at" in running.log(), 5, "the message")
        self.assertEqual(running.log().count("no coretapd at"), 1)
        self.assertEqual(running.stop(signal.SIGTERM), 0)


class Streams(CommandCase):
    def test_evictions_as_text(self):
        """What a person reads: each list, its conflicts where they happened, in the numbers of the wire."""
        bridge = self.bridge()
        shown = self.run_command("evictions", "--text", "--early", *self.address)
        with Subscriber(bridge, topics=("block.", "node."), sockets=("low",)) as sub:
            sub.wait_status()
            wait_connected(shown.process, bridge.port)
            with FakeNode("blocks", 4, 1200, "--unseen", 2, "--conflicts", 3, "--reorg", 2, "--repeat", "--wait") as node:
                node.finish()
            wait_until(lambda: sub.of("node.exited"), 20, "the lists")
            lists = sub.of("block.evictions")
        expected = []
        for block in lists:
            conflicts = block["conflicts"]
            words = [f"{len(block['txids']):,} evicted"]
            words += [f"{len(conflicts['txids'])} in conflict"] if conflicts["txids"] else []
            words += [f"{block['unseen']:,} unseen"]
            words += [f"reorg of {block['reorg']}"] if block["reorg"] else []
            words += ["connected before"] if block["repeat"] else []
            words += ["complete" if block["complete"] else "not complete" if block["final"] else "not final yet"]
            expected.append(f"block {block['height']} {block['hash'].hex()}  {', '.join(words)}")
            lines = [f"  {t.hex()}  {v:9d} vB  {f:9d} sat" for t, f, v in
                     zip(block["txids"], block["fees"], block["vsizes"])]
            for i, (after, t, f, v) in enumerate(zip(conflicts["after"], conflicts["txids"], conflicts["fees"],
                                                     conflicts["vsizes"])):
                lines.insert(after + i, f"  {t.hex()}  {v:9d} vB  {f:9d} sat  conflict")
            expected += lines
        self.assertTrue(any(b["repeat"] for b in lists) and any(b["reorg"] for b in lists))
        wait_until(lambda: len(shown.lines()) >= len(expected), 10, "all lines")
        self.assertEqual(shown.stop(), 0, shown.log())
        self.assertEqual(shown.lines(), expected, shown.log())

    def test_tail_evictions_terminal_and_pipe(self):
        bridge = self.bridge()
        txs = 200
        tail = self.tail("mempool", "validation")
        evictions = self.run_command("evictions", "--count", 2, "--json", *self.address)
        head = subprocess.Popen([tool("coretap"), "tail", *self.address], stdout=subprocess.PIPE)
        terminal, end = pty.openpty()
        shown = subprocess.Popen([tool("coretap"), "tail", "validation", *self.address], stdout=end,
                                 stderr=subprocess.DEVNULL,
                                 env={**os.environ, "TERM": "xterm", "NO_COLOR": ""})
        os.close(end)
        for process, *ports in ((evictions.process, 0), (head, 0, 1), (shown, 0)):
            wait_connected(process, *(bridge.port + port for port in ports))
        with FakeNode("blocks", 2, txs, "--unseen", 2, "--wait", "--start-delay", 300) as node:
            # Who reads one line and goes away ends it, without a word.
            self.assertTrue(head.stdout.readline().startswith(b"{"))
            head.stdout.close()
            fired = node.finish()
        self.assertEqual(head.wait(40), 0)
        self.assertEqual(evictions.process.wait(40), 0)
        lists = json_lines("\n".join(evictions.lines()))
        self.assertEqual([len(e["txids"]) for e in lists], [txs - 2] * 2)
        wait_until(lambda: sum(e["topic"] != "bridge.status" for e in tail.events()) >=
                   fired["mempool.removed"] + fired["mempool.added"] + 2, 10, "the events")
        self.assertEqual(tail.stop(), 0, tail.log())
        removed = [e for e in tail.events() if e["topic"] == "mempool.removed"]
        self.assertEqual([e["txid"] for e in removed],
                         [txid for e in lists for txid in e["txids"]])
        self.assertEqual([e["seq"] for e in removed], list(range(1, len(removed) + 1)))

        text = b""
        while text.count(b"\n") < 2 and select.select([terminal], [], [], 5 * PATIENCE)[0]:
            text += os.read(terminal, 65536)
        shown.send_signal(signal.SIGINT)
        self.assertEqual(shown.wait(80), 0)
        os.close(terminal)
        self.assertEqual(text.count(b"validation.block_connected"), 2)
        self.assertIn(b"\x1b[", text)
        self.assertIn(b"height=", re.sub(rb"\x1b\[\d+m", b"", text))

    def test_full_standard_output(self):
        self.bridge()
        with FakeNode("burst", 10, "--wait", "--start-delay", 300) as node, \
                open("/dev/full", "w") as full:
            node.finish()
            time.sleep(0.3)
            result = subprocess.run([tool("coretap"), "tail", "--since", "oldest", *self.address],
                                    stdout=full, stderr=subprocess.PIPE, text=True, timeout=80)
        self.assertEqual(result.returncode, 1)
        self.assertIn("standard output: No space left", result.stderr)

    def test_help_to_a_full_disk(self):
        for command in (("coretap", "topics", "--json"), ("coretap", "--version"), ("coretap", "--help"), ("coretap", "tail", "--help"),
                        ("coretapd", "--help"), ("coretapd", "--version")):
            with self.subTest(command=command), open("/dev/full", "w") as full:
                result = subprocess.run([tool(command[0]), *command[1:]], stdout=full,
                                        stderr=subprocess.PIPE, text=True)
                self.assertEqual(result.returncode, 1)
                self.assertIn("standard output: No space left", result.stderr)

    def test_since_and_position(self):
        bridge = self.bridge()
        position = self.path("position")
        # The later ones take six seconds, of which the command below may lose some before it reckons.
        for count, rate in ((400, 1000), (600, 100)):
            with FakeNode("burst", count, "--rate", rate, "--wait", "--start-delay", 300) as node:
                node.finish()
        everything = coretap("tail", "mempool", "--since", "oldest", "--count", 1000, *self.address)
        self.assertEqual([e["seq"] for e in json_lines(everything.stdout)], list(range(1, 1001)))
        before = json_lines(everything.stdout)[402]["time_us"]
        later = coretap("tail", "mempool", "--since", f"{(time.time() * 1e6 - before) / 1e6:.6f}",
                        "--count", 1, *self.address)
        self.assertIn(json_lines(later.stdout)[0]["seq"], range(402, 1001))

        parts = []
        for count in (1, 1, 331, 333):
            result = coretap("tail", "mempool", "--since", "oldest", "--position", position, "--count",
                             count, *self.address)
            self.assertEqual(result.returncode, 0, result.stderr)
            parts += [e["seq"] for e in json_lines(result.stdout)]
        self.assertEqual(parts, list(range(1, 667)))
        with open(position, "w") as file:
            file.write("something else\n")
        result = coretap("tail", "--position", position, *self.address)
        self.assertEqual(result.returncode, 1)
        self.assertIn(f"{position}: not a position file", result.stderr)
        bridge.stop()

    def test_bridge_ends_and_comes_back(self):
        bridge = self.bridge()
        tail = self.tail()
        bridge.stop()
        wait_until(lambda: "stopped; waiting" in tail.log(), 5, "the end")
        again = self.bridge(port=bridge.port, name=bridge.name)

        def kinds():
            """The other socket may be first."""
            return [n["notice"] for n in json_lines("\n".join(tail.lines()))
                    if n.get("notice") and n["socket"] == "low"]
        wait_until(lambda: len(kinds()) >= 3, 20, "the return")
        self.assertEqual(tail.stop(), 0)
        self.assertEqual(kinds(), ["stopping", "alive", "new_run"])
        for words in ("connected to coretapd", "began a new run"):
            self.assertIn(words, tail.log())
        again.stop()

    def test_hostile_answers(self):
        """What replay says does not act on the terminal."""
        publisher = Publisher(free_port())
        self.addCleanup(publisher.close)
        publisher.mode = "hostile"
        address = ("--address", f"tcp://127.0.0.1:{publisher.port}")
        tail = self.run_command("tail", "mempool.removed", "--since", "oldest", *address)
        publisher.play([{"status": "low"}], ["low"])
        wait_until(lambda: "nothing from before now" in tail.log(), 10, "the answer")
        topics = coretap("topics", *address)
        self.assertEqual(topics.returncode, 1)
        for text in (tail.log(), topics.stderr):
            self.assertIn("gone", text)
            self.assertNotRegex(text, "[\0-\x09\x0b-\x1f\x7f-\x9f\u202e]")
            self.assertEqual(text.count("\n"), 1)


class Watch(CommandCase):
    def watch(self, txid, *args):
        result = coretap("watch", *([txid] if isinstance(txid, str) else txid), "--since", "oldest",
                         "--json", *args, *self.address)
        return result.returncode, [(e["what"], e) for e in json_lines(result.stdout)], result.stderr

    def test_fates(self):
        self.bridge()
        live = self.tail()
        with FakeNode("blocks", 3, 300, "--unseen", 3, "--conflicts", 3, "--replacements", 3,
                      "--wait", "--start-delay", 300) as node:
            fired = node.finish()
        wait_until(lambda: sum(e["topic"] == "node.exited" for e in live.events()), 10, "the end")
        events = live.events()
        live.stop()
        removed = [e for e in events if e["topic"] == "mempool.removed"]

        def one(reason):
            return next(e for e in removed if e["reason"] == reason)

        confirmed, conflict, replaced = one("block"), one("conflict"), one("replaced")
        code, lines, errors = self.watch(confirmed["txid"])
        self.assertEqual((code, [what for what, _ in lines]), (0, ["added", "confirmed"]), errors)
        self.assertEqual(lines[1][1]["height"], confirmed["height"])
        self.assertEqual(lines[1][1]["time_us"], confirmed["time_us"])
        code, lines, _ = self.watch(conflict["txid"])
        self.assertEqual((code, lines[-1][0]), (11, "conflict"))
        self.assertEqual(lines[-1][1]["height"], conflict["height"])
        code, lines, _ = self.watch(replaced["txid"])
        by = next(e for e in events if e["topic"] == "mempool.replaced" and
                  e["txid"] == replaced["txid"])
        self.assertEqual((code, [what for what, _ in lines]), (10, ["added", "replaced"]))
        key = "replacement_txid" if "replacement_txid" in by else "replacement_package"
        self.assertEqual(lines[-1][1][key], by[key])
        # Several at once: the largest code, and the end only when all have left.
        code, lines, _ = self.watch([confirmed["txid"].upper(), conflict["txid"], replaced["txid"]])
        self.assertEqual((code, {what for what, _ in lines}),
                         (11, {"added", "confirmed", "conflict", "replaced"}))
        # Never seen: a node that ended before cannot have had it.
        code, lines, _ = self.watch("00" * 32, "--timeout", "2s")
        self.assertEqual((code, lines[0][0], lines[0][1]["seen"]), (14, "undecided", False))
        self.assertGreater(fired["mempool.removed"], 500)

    def test_evicted_and_undecided(self):
        """By a node whose predecessor ended before."""
        self.bridge()
        with FakeNode("burst", 1, "--wait", "--start-delay", 300) as node:
            node.finish()
        with FakeNode("burst", 10, "--reason", "expiry", "--wait", "--start-delay", 300,
                      "--hold"):
            txid = "1f1e1d1c1b1a191817161514131211100f0e0d0c" + f"{0:08x}{7:016x}"
            time.sleep(1)
            code, lines, errors = self.watch(txid)
            self.assertEqual((code, lines[0][0], lines[0][1].get("reason")), (12, "evicted", "expiry"),
                             errors)
            code, lines, _ = self.watch("00" * 32, "--timeout", "1500ms")
            self.assertEqual((code, lines), (14, [("undecided", {"txid": "00" * 32,
                                                                 "what": "undecided",
                                                                 "seen": False})]))
            text = coretap("watch", txid, "--since", "oldest", "--text", *self.address).stdout
            self.assertIn(f"{txid} evicted: expiry\n", text)
            follow = self.run_command("watch", txid, "--since", "oldest", "--follow", *self.address)
            wait_until(follow.lines, 5, "the line")
            self.assertIsNone(follow.process.poll())
            self.assertEqual(follow.stop(), 12)

    def test_reason_that_could_not_be_read(self):
        """It may have been a block. A txid that is named twice is watched once."""
        txid = "11" * 32
        for reason, code, what in ((None, 13, "unknown"), ("block", 0, "confirmed")):
            with self.subTest(reason), Publisher(free_port()) as publisher:
                watch = self.run_command("watch", txid, txid, "--json", "--address",
                                         f"tcp://127.0.0.1:{publisher.port}")
                event = {"time_us": RUN, "txid": {"hex": txid}, "reason": reason}
                publisher.play([{"status": "low"}, {"send": "mempool.removed", "seq": 1, "n": 1, "events": [event]}],
                               ["low", "high"])
                self.assertEqual(watch.process.wait(40), code, watch.log())
                self.assertEqual([json.loads(line)["what"] for line in watch.lines()], [what])

    def test_loss_makes_unknown(self):
        bridge = self.bridge("--ring-low", "64K")
        watch = self.run_command("watch", "00" * 32, "--json", "--since", "oldest", *self.address)
        time.sleep(2)
        bridge.send(signal.SIGSTOP)
        with FakeNode("burst", 20000, "--wait", "--start-delay", 300) as node:
            node.finish()
        bridge.send(signal.SIGCONT)
        self.assertEqual(watch.process.wait(120), 13, watch.log())
        self.assertEqual(json_lines(watch.lines()[-1])[0]["why"], "events were lost")


class Recordings(CommandCase):
    def record(self, *args):
        """A recording of a walk, and the events that a tail saw meanwhile."""
        bridge = self.bridge("--journal-low", "64M", "--journal-high", "64M")
        recording = self.path("recording")
        recorder = self.run_command("record", recording, "--since", "oldest", *args, *self.address)
        tail = self.tail()
        with FakeNode("blocks", 3, 300, "--unseen", 2, "--conflicts", 2, "--replacements", 3,
                      "--coins", "--wait", "--start-delay", 300) as node:
            fired = node.finish()
        wait_until(lambda: any(e["topic"] == "node.exited" for e in tail.events()), 10, "the end")
        bridge.stop()  # the last that either socket says
        for both in (recorder, tail):
            wait_until(lambda: both.log().count("stopped; waiting") == (1 if args and both is recorder else 2), 10,
                       "the end of each socket")
        self.assertEqual(recorder.stop(), 0, recorder.log())
        self.assertRegex(recorder.log(), r"[\d,]+ events in [\d,]+ messages")
        tail.stop()
        events = [e for e in tail.events() if e["topic"] != "bridge.status"]
        self.assertGreaterEqual(len(events), sum(fired.values()))
        return recording, events

    def play(self, recording, events, *args):
        port = free_port()
        self.address = ("--address", f"tcp://127.0.0.1:{port}")
        tail = self.run_command("tail", "--json", *self.address)
        # Its sockets are there, and connect as soon as there is somebody: the player does not wait for long.
        wait_until(lambda: len(os.listdir(f"/proc/{tail.process.pid}/task")) >= 3, 20, "libzmq's threads")
        player = self.run_command("play", recording, "--port", port, *args)
        self.assertEqual(player.process.wait(240), 0, player.log())
        wait_until(lambda: tail.log().count("stopped; waiting") == 2, 5, "the end of both sockets")
        tail.stop()
        played = tail.events()
        notices = [n for n in json_lines("\n".join(tail.lines())) if "notice" in n]
        self.assertEqual({n["notice"] for n in notices}, {"stopping"}, notices)
        return played

    def check_same(self, played, events):
        for prefix in (("mempool.", "validation.", "block.", "node."), ("utxocache.",)):
            ours, theirs = (without_numbers(e for e in list_ if e["topic"].startswith(prefix))
                            for list_ in (played, events))
            self.assertEqual(len(ours), len(theirs))
            self.assertTrue(ours == theirs, prefix)
        self.assertEqual(len({(e["run"], e["node"]) for e in played}), 1)
        self.assertTrue(played[0]["node"].endswith("-play"))
        blocks = {e["n"]: e["hash"] for e in played if e["topic"] == "validation.block_connected"}
        lists = [e for e in played if e["topic"] == "block.evictions"]
        self.assertGreater(len(lists), 2)
        for e in lists:
            self.assertEqual(blocks[e["n_block"]], e["hash"])

    def test_record_and_play(self):
        recording, events = self.record()
        played = self.play(recording, events, "--fast")
        self.check_same(played, events)
        begin = time.monotonic()
        self.check_same(self.play(recording, events, "--speed", "2"), events)
        lasted = (max(e["time_us"] for e in events) - min(e["time_us"] for e in events)) / 2e6
        self.assertGreater(time.monotonic() - begin, lasted)

        # Played into a busy port; looked back at; cut off in the middle of the last record.
        with socket.socket() as busy:
            busy.bind(("127.0.0.1", 0))
            busy.listen()
            result = coretap("play", recording, "--port", busy.getsockname()[1])
            self.assertEqual(result.returncode, 5, result.stderr)
        port = free_port()
        player = self.run_command("play", recording, "--fast", "--stay", "--port", port)
        address = ("--address", f"tcp://127.0.0.1:{port}")
        time.sleep(1)
        late = coretap("tail", "mempool.removed", "--since", "oldest", "--count",
                       sum(e["topic"] == "mempool.removed" for e in events), "--json", *address)
        self.assertEqual(without_numbers(json_lines(late.stdout)),
                         without_numbers(e for e in events if e["topic"] == "mempool.removed"))
        self.assertEqual(player.stop(), 0)
        with open(recording, "rb+") as file:
            file.truncate(os.path.getsize(recording) - 7)
        result = coretap("play", recording, "--fast", "--port", port)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("ends in the middle of a record", result.stderr)
        with open(recording, "rb+") as file:
            file.truncate(20)
        result = coretap("play", recording, "--fast", "--port", port)
        self.assertEqual((result.returncode, "no messages in it" in result.stderr), (1, True))

    def test_played_history(self):
        """Replay of what was played answers as coretapd's does."""
        recording, events = self.record()
        port = free_port()
        player = self.run_command("play", recording, "--fast", "--stay", "--port", port)
        context = zmq.Context()
        self.addCleanup(context.destroy, 0)
        replay = Replay(context, f"tcp://127.0.0.1:{port + 2}", 5000)
        self.addCleanup(replay.close)
        wait_until(lambda: sum(replay.ask(op="hello")[0]["runs"][0]["topics"].values()) >= len(events), 20, "all is played")
        hello, _ = replay.ask(op="hello")
        run, (ranges,) = hello["run"], hello["runs"]
        self.assertEqual((ranges["run"], hello["node"][-5:], hello["endpoints"]["replay"]),
                         (run, "-play", [f"tcp://127.0.0.1:{port + 2}"]))
        topics = {e["topic"] for e in replay.ask(op="catalogue")[0]["events"]}
        self.assertLessEqual(set(ranges["topics"]), topics)
        told = {}
        for name in ("low", "high"):
            after, n, seq = 0, 0, {}
            while after is not None:
                header, messages = replay.ask(op="replay", socket=name, run=run, after=after)
                for topic, body in messages:
                    body = msgpack.unpackb(body)
                    self.assertEqual(body["n"], n + 1)
                    self.assertEqual(body["seq"], seq.get(topic, 0) + 1)
                    n += len(body["events"])
                    seq[topic] = body["seq"] + body.get("lost", 0) + len(body["events"]) - 1
                after = header["next"]
            self.assertEqual((ranges[name]["first"], ranges[name]["last"]), (1, n))
            told.update(seq)
        self.assertEqual(told, ranges["topics"])
        _, some = replay.ask(op="replay", socket="low", run=run, after=ranges["low"]["last"] - 1)
        self.assertEqual(len(some), 1)
        for why, request in (("v must be 1", {"op": "hello", "v": 2}), ("unknown op", {"op": "none"}),
                             ("socket", {"op": "replay", "socket": "middle", "run": run, "after": 0}),
                             ("run", {"op": "replay", "socket": "low", "run": run + 1, "after": 0})):
            with self.assertRaisesRegex(Refused, why):
                replay.ask(**request)
        self.assertEqual(player.stop(), 0, player.log())

    def test_frames_as_they_were(self):
        """Byte for byte, by the format's own words."""
        self.bridge()
        recording = self.path("recording")
        from harness import Subscriber
        bridge = type("At", (), {"port": int(self.address[1].rsplit(":", 1)[1])})
        bodies = []
        with Subscriber(bridge) as sub:
            take = sub.take

            def keep(parts, name):
                if not parts[0].startswith(b"bridge."):
                    bodies.append((name, parts[0], parts[1]))
                take(parts, name)

            sub.take = keep
            sub.wait_status()
            recorder = self.run_command("record", recording, "--since", "oldest", *self.address)
            with FakeNode("walk", 5000, "--coins", "--wait", "--start-delay", 300) as node:
                node.finish()
            wait_until(lambda: sub.count.get("node.exited"), 20, "the end")
            time.sleep(2)
            self.assertEqual(recorder.stop(), 0, recorder.log())
        with open(recording, "rb") as file:
            data = file.read()
        self.assertEqual(data[:20], b"coretap recording 1\n")
        found, at = [], 20
        while at < len(data):
            length = int.from_bytes(data[at:at + 4], "little")
            record, at = data[at + 4:at + 4 + length], at + 4 + length
            self.assertLess(abs(int.from_bytes(record[:8], "little") / 1e6 - time.time()), 60)
            topic = record[10:10 + record[9]]
            found.append((("low", "high")[record[8]], topic, record[10 + record[9]:]))
        for name in ("low", "high"):
            ours = [f for f in found if f[0] == name]
            self.assertGreater(len(ours), 0)
            self.assertTrue(ours == [b for b in bodies if b[0] == name][:len(ours)], name)

    def test_clock_set_back(self):
        """An hour, while a recording is played and another one made: neither takes an hour."""
        shim = compile_text(self.directory, '''
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *time)
{
    static time_t begun;
    struct timespec now;

    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    begun = begun ? begun : now.tv_sec;
    syscall(SYS_clock_gettime, clock, time);
    if (clock == CLOCK_REALTIME && now.tv_sec > begun)
        time->tv_sec -= 3600;
    return 0;
}
''', "clock", "-shared", "-fPIC")
        topic, port = b"mempool.rejected", free_port()
        with open(self.path("recording"), "wb") as file:
            file.write(b"coretap recording 1\n")
            for i in range(1, 7):
                body = msgpack.packb({"v": 1, "node": "n", "run": RUN, "pid": 1, "n": i, "seq": i,
                                      "events": [{"time_us": RUN + i * 500000}]})
                file.write(struct.pack("<IQBB", 10 + len(topic) + len(body), RUN, 0, len(topic)) + topic + body)
        for words in (("play", self.path("recording"), "--port", port),
                      ("record", self.path("other"), "--for", "3s", "--address", f"tcp://127.0.0.1:{port}")):
            # The shim comes before a sanitizer's library, and would be called by it.
            done = subprocess.run([tool("coretap", False), *map(str, words)], env={**os.environ, "LD_PRELOAD": shim},
                                  timeout=120, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_full_disk(self):
        need_root()
        disk = self.path("disk")
        os.mkdir(disk)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], check=True)
        self.addCleanup(subprocess.run, ["umount", disk])
        recording = os.path.join(disk, "recording")
        self.bridge()
        recorder = self.run_command("record", recording, "--since", "oldest", *self.address)
        with FakeNode("burst", 50000, "--wait", "--start-delay", 300) as node:
            node.finish()
        self.assertEqual(recorder.process.wait(120), 1)
        errors = recorder.log().splitlines()
        self.assertEqual(len(errors), 1, errors)
        self.assertIn("No space left", errors[0])
        port = free_port()
        result = coretap("play", recording, "--fast", "--port", port)
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_progress_on_a_terminal(self):
        recording, _ = self.record("mempool", "block")
        terminal, end = pty.openpty()
        player = subprocess.Popen([tool("coretap"), "play", recording, "--fast", "--port",
                                   str(free_port())], stderr=end)
        os.close(end)
        self.assertEqual(player.wait(80), 0)
        text = b""
        try:
            while True:
                text += os.read(terminal, 65536)
        except OSError:  # all was read
            pass
        self.assertIn(b"100 %", text)
        os.close(terminal)


class Readme(CommandCase):
    """Every command and the example of clients/c/README.md, as they stand there."""

    def test_commands(self):
        need_root()
        with open(README) as file:
            blocks = re.findall(r"```sh\n(.*?)```", file.read(), re.S)
        commands = [line.split("#")[0].split() for block in blocks for line in block.splitlines()
                    if line]
        self.assertGreater(len(commands), 10)
        self.assertEqual({c[1] for c in commands}, set(COMMANDS))
        for path in glob.glob("/tmp/hour.coretap") + glob.glob("/tmp/place"):
            os.unlink(path)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", 28370)) == 0:
                self.skipTest("a coretapd listens at the default address")
        self.bridge(port=28370)
        with FakeNode("run", "--rate", 200, "--block-interval", 1, "--seconds", 600, "--wait",
                      "--start-delay", 300):
            time.sleep(1.5)
            silent = ("record", "play", "probes", "watch")
            for command in commands:
                with self.subTest(command=" ".join(command)):
                    running = Running(*command[1:])
                    try:
                        code = running.process.wait(4)
                    except subprocess.TimeoutExpired:
                        if command[1] not in silent:
                            wait_until(running.lines, 20, "a line")
                        code = running.stop()
                    allowed = {"watch": (0, 10, 11, 12, 13, 14), "probes": (3,)}
                    self.assertIn(code, allowed.get(command[1], (0,)), running.log())
                    if command[1] not in silent:
                        self.assertTrue(running.lines(), running.log())
                    running.close()
        for path in ("/tmp/hour.coretap", "/tmp/place"):
            self.assertTrue(os.path.exists(path))
            os.unlink(path)

    def test_example(self):
        with open(README) as file:
            example = re.search(r"```c\n(.*?)```", file.read(), re.S).group(1)
        with open(self.path("evictions.c"), "w") as file:
            file.write(example)
        subprocess.run([os.environ.get("CC", "gcc"), "-Wall", "-Wextra", "-Werror",
                        f"-I{ROOT}/clients/c", self.path("evictions.c"),
                        *library(), "-o", self.path("evictions")],
                       check=True)
        self.assertLess(len(example.splitlines()), 30)


if __name__ == "__main__":
    main()
