"""The configuration file: every option, errors with file and line, and who counts more."""
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import FAKE_NODE, Bridge, FakeNode, Subscriber, TestCase, free_port, main, need_root, tool

USAGE = 2
COMMANDS = {"config", "check", "detach", "version", "help"}


def run(*args):
    done = subprocess.run([tool("coretapd"), *map(str, args)], capture_output=True, text=True, timeout=80)
    return done.returncode, done.stderr.splitlines(), done.stdout


def options():
    """{name: placeholder of its value or None} as --help has them."""
    lines = re.findall(r"^  --([a-z-]+)(?: ([A-Z:]+))?  ", run("--help")[2], re.MULTILINE)
    return {name: value or None for name, value in lines}


class Config(TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="coretap config ")
        self.addCleanup(directory.cleanup)
        self.directory = directory.name
        self.path = os.path.join(self.directory, "coretap.conf")

    def write(self, text):
        with open(self.path, "w") as f:
            f.write(text)
        return self.path

    def refused(self, text, line, *words, args=()):
        self.write(text)
        code, lines, _ = run("--config", self.path, *args)
        self.assertEqual(code, USAGE, (text, lines))
        self.assertEqual(len(lines), 1, (text, lines))
        self.assertIn(f"error: {self.path}:{line}: ", lines[0], text)
        for word in words:
            self.assertIn(word, lines[0], text)

    def test_mistakes(self):
        for text, line, *words in (
                ("port: 28370\nprot: 1\n", 2, "prot", "unknown option"),
                ("\n\n# comment\nname: a b\n", 4, "name", "a b"),
                ("name:\n", 1, "name", "wants a value"),
                ("name: ''\n", 1, "name", "wants a value"),
                ("name: {a: b}\n", 1, "name"),
                ("name: [a, b]\n", 1, "name", "not a list"),
                ("only:\n  - mempool.*\n  - [x]\n", 3, "only"),
                ("only:\n  - 'mempool.*'\n  - 'mempol.*'\n", 3, "mempol.*", "no topic"),
                ("exclude: nothing.at.all\n", 1, "nothing.at.all"),
                ("port: 1\nname: x\nport: 2\n", 3, "port", "line 1"),
                ("ring-low: 6X\n", 1, "6X"),
                ("keep-attached: perhaps\n", 1, "perhaps"),
                ("port: x\n", 1, "port"),
                ("port: 70000\n", 1, "70000"),
                ("- port: 1\n", 1, "OPTION: VALUE"),
                ("just text\n", 1, "OPTION: VALUE"),
                ("port: 1\n  name: x\n", 2),
                ("name: \"x\nport: 1\n", 3),
                ("only: *x\n", 1, "quotes"),
                ("\tport: 1\n", 1),
                ("port: [1\n", 2),
                ("[a]: b\n", 1),
                ("low:\n  - tcp://127.0.0.1:1\n  - udp://1.2.3.4:5\n", 3, "udp"),
                ("name: x\nlow: tcp://0.0.0.0:1\n", 2, "--allow-public"),
                ("metrics: 0.0.0.0:9000\n", 1, "--allow-public"),
                ("log-level: loud\n", 1, "loud"),
                ("ipc-mode: 0999\n", 1, "0999"),
                ("ipc-group: no-such-group-here\n", 1, "no-such-group-here"),
                ("name: x\nmessage-types: abcdefghijklmnop\n", 2, "abcdefghijklmnop"),
                ("message-types: ','\n", 1, "no message type"),
                ("pid-file: /x\ndatadir: /y\n", 2, "exclude each other"),
                ("name: x\ncurve-secret: /x\n", 2, "belong together"),
        ):
            with self.subTest(text=text):
                self.refused(text, line, *words)
        for command in COMMANDS - {"help", "version"}:
            self.refused(f"\n{command}: yes\n", 2, command, "command line")

    def test_lists_with_blanks(self):
        self.write("message-types: inv, tx\npayload: tx=full, block=0\nwithout: multi, tai\n")
        self.assertEqual(run("--config", self.path, "--binary", FAKE_NODE, "--check")[0], 0)
        code, lines, _ = run("--message-types", "inv, abcdefghijklmnop")
        self.assertIn('"abcdefghijklmnop"', lines[0])

    def test_files_that_are_none(self):
        for path in ("/nonexistent/file", self.directory, "/dev/zero", "/dev/null"):
            code, lines, _ = run("--config", path)
            self.assertEqual(code, USAGE, lines)
            self.assertEqual(len(lines), 1, lines)
            self.assertIn(path, lines[0])
        with open(self.path, "wb") as f:
            f.write(b"# x\n" * 500000)
        self.assertEqual(run("--config", self.path)[0], USAGE)
        for junk in (b"\0\0\0", b"\xff\xfe\xfd", b"name: a\0b\n", b"name: \xff\n", b"%", b"--- a\n--- b\n", b"&a *a",
                     b"a: &a [*a]\n", b"!!binary x: y"):
            with open(self.path, "wb") as f:
                f.write(junk)
            code, lines, _ = run("--config", self.path)
            self.assertEqual((code, len(lines)), (USAGE, 1), (junk, lines))
            self.assertIn(self.path, lines[0])

    def test_help_comes_first(self):
        code, lines, out = run("--config", "/nonexistent", "--help")
        self.assertEqual((code, lines), (0, []))
        self.assertIn("Usage", out)

    def test_every_option(self):
        """Each that --help lists can stand in the file, and is checked there as on the command line."""
        values = {"binary": FAKE_NODE, "pid": "1", "pid-file": "/x", "datadir": "/x", "name": "n",
                  "only": "mempool.*", "exclude": "mempool.*", "message-types": "inv,tx", "payload": "tx=full",
                  "port": "28370", "low": "tcp://127.0.0.1:1", "high": "tcp://127.0.0.1:1",
                  "replay": "tcp://127.0.0.1:1", "subscriber-memory": "1M", "ring-low": "4K", "ring-high": "4K",
                  "journal": "none", "journal-low": "1M", "journal-high": "1M", "without": "multi",
                  "metrics": "127.0.0.1:1", "user": "root", "curve-secret": "/x", "curve-clients": "/x",
                  "ipc-mode": "0600", "ipc-group": "root", "log-level": "error", "tracepoints": "/x"}
        known = options()
        self.assertGreater(len(known), 30)
        for name, placeholder in known.items():
            if name in COMMANDS:
                continue
            value = values[name] if placeholder else "yes"
            # The mistake in the last line is found after all others were taken.
            with self.subTest(name=name):
                self.write(f"{name}: '{value}'\nno-such-option: 1\n")
                _, lines, _ = run("--config", self.path)
                self.assertEqual(len(lines), 1, lines)
                self.assertIn(f"{self.path}:2: no-such-option", lines[0])

    def test_works(self):
        need_root()
        binary = shutil.copy(FAKE_NODE, os.path.join(self.directory, "a node"))
        self.write(f"""
# As an operator writes it.
binary: {binary}
only:
  - mempool.*
  - "block.evictions"
exclude: [mempool.rejected]
journal-low: 16M
journal-high: 16M
ring-low: 1M
ring-high: 64K
keep-attached: no
log-level: debug
""")
        with Bridge("--config", self.path, binary=None) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            self.assertEqual(set(sub.status("low")["heads"]), {"mempool.added", "mempool.removed", "mempool.replaced",
                                                          "block.evictions"})
            with FakeNode("burst", 100, "--wait", binary=binary) as node:
                fired = node.finish()
            sub.wait_ledger(fired)
            self.check_account(sub, fired)

    def test_command_line_counts_more(self):
        need_root()
        binary = shutil.copy(FAKE_NODE, os.path.join(self.directory, "node"))
        port, name = free_port(), f"t{os.getpid()}-c"
        self.write("""
pid-file: /nonexistent
binary: /nonexistent
name: from-the-file
port: 1
only: [net.*, utxocache.*]
low: tcp://127.0.0.1:2
keep-attached: yes
journal: /nonexistent/x
journal-low: 16M
""")
        with FakeNode("burst", 1, "--hold", binary=binary) as node, \
                Bridge("--config", self.path, "--pid", node.pid, "--only", "mempool.added", "--keep-attached=no",
                       "--low", f"tcp://127.0.0.1:{port}", "--journal", f"{self.directory}/j", binary=None,
                       name=name, port=port) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            self.assertEqual(set(sub.status("low")["heads"]), {"mempool.added"})
            self.assertEqual(sub.status("low")["node"], name)
            self.assertEqual(sub.status("low")["replay"], "ok")
            self.assertTrue(os.path.exists(f"{self.directory}/j/data.mdb"))
            self.assertNotIn("/nonexistent", bridge.log())
            bridge.stop()
            self.assertFalse(os.path.exists(f"/sys/fs/bpf/coretap/{name}"))

    def test_check(self):
        self.write("only: 'mempool.*'\n")
        code, lines, _ = run("--check", "--binary", FAKE_NODE, "--config", self.path)
        self.assertEqual(code, 0, lines)
        self.assertIn("nothing wrong", lines[0])
        self.assertIn("5 tracepoints", "\n".join(lines))
        for text, word in (("user: nobody-of-this-name\n", "no such user"), ("curve-secret: /x\n", "curve-clients"),
                           ("curve-secret: /nonexistent\ncurve-clients: /x\n", "/nonexistent")):
            self.write(text)
            code, lines, _ = run("--check", "--binary", FAKE_NODE, "--config", self.path)
            self.assertEqual(code, USAGE, lines)
            self.assertEqual(len(lines), 1, lines)
            self.assertIn(word, lines[0])


if __name__ == "__main__":
    main()
