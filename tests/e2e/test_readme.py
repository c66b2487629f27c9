"""What README.md shows works as it stands there: the subscriber, every command, the demo."""
# Runs alone: the demo taps whatever node runs.
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import PLAIN, ROOT, Bridge, FakeNode, TestCase, bpf_objects, main, need_root, wait_connected, wait_until

with open(os.path.join(ROOT, "README.md")) as readme:
    TEXT = readme.read()
COMMANDS = [line.split("#")[0].strip() for line in re.findall(r"^    (\S.*)$", TEXT, re.M)]
DEFAULT_PORT = 28370


def other_node_runs():
    """A node beside ours, which the commands that name none would find too."""
    result = subprocess.run([os.path.join(PLAIN, "coretapd"), "--check"], capture_output=True, text=True)
    return result.returncode != 6 or "several" in result.stderr


class Readme(TestCase):
    def test_subscriber(self):
        code = re.search(r"```python\n(.*?)```", TEXT, re.S).group(1)
        self.assertEqual(len(code.splitlines()), 10)
        with tempfile.TemporaryDirectory() as d, \
                Bridge(port=DEFAULT_PORT), \
                subprocess.Popen(["/usr/bin/python3", "-u", "-c", code], stdout=subprocess.PIPE,
                                 text=True) as subscriber:
            wait_connected(subscriber, DEFAULT_PORT)
            with FakeNode("blocks", 2, 50, "--start-height", 700, "--truth", f"{d}/truth", "--wait",
                          "--start-delay", 300) as node:
                node.finish()
            printed = [subscriber.stdout.readline().rstrip("\n") for _ in range(102)]
            subscriber.terminate()
            with open(f"{d}/truth") as truth:
                blocks = [json.loads(line) for line in truth]
        expected = []
        for block in blocks:
            expected.append(f"block {block['height']}: 50 transactions left the mempool")
            expected += ["  " + txid for txid in block["txids"]]
        self.assertEqual(printed, expected)

    def test_commands(self):
        """Each command line is one that the program takes; as it stands there, so the plain one."""
        ours = [c for c in COMMANDS if "build/coretap" in c]
        self.assertGreater(len(ours), 8)
        with FakeNode("run", "--seconds", 60) as node:
            for command in ours:
                words = shlex.split(command.replace("sudo ", "").replace("build/", PLAIN + "/", 1))
                words = [w.replace("/usr/local/bin/bitcoind", f"/proc/{node.pid}/exe")
                         .replace("TXID", "00" * 32) for w in words]
                with self.subTest(command), tempfile.TemporaryDirectory() as d:
                    words = [os.path.join(d, "file") if w == "FILE" else w for w in words]
                    if words[-1] == "top":
                        words.append("--once")  # there is no terminal here
                    if words[0].endswith("coretapd"):
                        if "--binary" not in words:
                            words += ["--pid", str(node.pid)]
                        result = subprocess.run([*words, "--check"], capture_output=True, text=True,
                                                timeout=80)
                        self.assertEqual(result.returncode, 0, result.stderr)
                        continue
                    try:
                        result = subprocess.run(words, capture_output=True, text=True, timeout=2)
                        self.assertNotEqual(result.returncode, 2, result.stderr)
                    except subprocess.TimeoutExpired:
                        pass  # it waits for events, as it should

    def test_demo(self):
        need_root()
        if other_node_runs():
            raise unittest.SkipTest("a node runs here: the demo would tap that one")
        before = bpf_objects()
        result = subprocess.run([os.path.join(ROOT, "tests", "demo")], capture_output=True, text=True,
                                timeout=480, env={**os.environ, "BUILD": PLAIN})
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("starting the simulated one", result.stdout)
        blocks = [line for line in result.stdout.splitlines() if '"topic":"block.evictions"' in line]
        self.assertEqual(len(blocks), 3, result.stdout[-2000:])
        wait_until(lambda: bpf_objects() <= before, 10, "nothing left attached")


if __name__ == "__main__":
    main()
