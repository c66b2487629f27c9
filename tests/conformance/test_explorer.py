"""The explorer: its own tests, the figures that they tell, and that it serves a recording without root."""
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "lib"), HERE]
from harness import PLAIN, ROOT, TestCase, free_port, main, need_node, wait_until
from test_javascript import own

EXPLORER = os.path.join(ROOT, "clients", "explorer")


class Explorer(TestCase):
    def setUp(self):
        need_node()
        need_node("explorer", "ws")

    def own(self, name):
        for line in own(self, EXPLORER, name).splitlines():
            if line.startswith("# the ") or re.match(r"# \d.* (second|missed)", line):
                print(line, flush=True)

    def test_state(self):
        self.own("state")

    def test_api(self):
        self.own("api")

    def test_page(self):
        self.own("page")

    def test_block_in_the_browser(self):
        self.own("block")

    def test_bridge(self):
        self.own("bridge")

    def test_load(self):
        self.own("load")

    def test_recording(self):
        """Made up or given, played and served; nothing is left of it."""
        for arguments in ([], [os.path.join(tempfile.gettempdir(), "none such")]):
            port = free_port()
            with tempfile.TemporaryDirectory() as directory, subprocess.Popen(
                    [os.path.join(EXPLORER, "play"), *arguments], stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE, text=True,
                    env={**os.environ, "BUILD": PLAIN, "PORT": str(port), "TMPDIR": directory,
                         "LISTEN": "127.0.0.1:0"}) as play:
                if arguments:
                    self.assertEqual(play.wait(80), 1)
                    self.assertRegex(play.stderr.read(), "none such: No such file")
                else:
                    address = re.search(r"http:\S+", play.stdout.readline()).group()
                    with urllib.request.urlopen(address) as page:
                        self.assertIn(b"coretap explorer", page.read())
                    play.send_signal(signal.SIGTERM)
                    self.assertEqual(play.wait(80), 130)
                self.assertEqual(os.listdir(directory), [])
            wait_until(lambda: free_ports(port), 10, "the recording's ports")

    def test_locks_name_no_registry(self):
        with open(os.path.join(EXPLORER, "package-lock.json")) as file:
            packages = json.load(file)["packages"]
        self.assertEqual([p["resolved"] for p in packages.values() if "resolved" in p], ["../js"])


def free_ports(port):
    lines = subprocess.run(["ss", "-Hltn"], capture_output=True, text=True).stdout
    return not any(f":{port + i} " in lines for i in range(3))


if __name__ == "__main__":
    main()
