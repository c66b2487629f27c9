"""coretap top: the numbers of one picture, and the live view in a terminal of 80 by 24."""
import os
import re
import shutil
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import Bridge, FakeNode, Subscriber, TestCase, main, need_root, tool, wait_until


def address(bridge):
    return f"tcp://127.0.0.1:{bridge.port}"


def table(text):
    """The topics of a picture: name -> (per second, fired, lost, faults)."""
    rows = re.findall(r"^([a-z_]+\.[a-z_]+) +([\d,.]+) +([\d,]+) +([\d,]+) +([\d,]+)$", text, re.MULTILINE)
    return {name: tuple(float(n.replace(",", "")) for n in numbers) for name, *numbers in rows}


class Once(TestCase):
    def once(self, where, *args):
        return subprocess.run([tool("coretap"), "top", "--once", "--address", where, *args], capture_output=True,
                              text=True, timeout=240)

    def test_counters(self):
        """What the node counted itself is what stands there."""
        with Bridge("--exclude", "utxocache.*") as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            with FakeNode("blocks", 3, 200, "--unseen", 5, "--conflicts", 2, "--wait") as node:
                fired = node.finish()
            fired = {t: n for t, n in fired.items() if not t.startswith("utxocache")}
            sub.wait_ledger(fired)
            wait_until(lambda: sub.status("low")["n"] >= sum(1 for e in sub.events), 5, "a status")
            time.sleep(1.1)
            done = self.once(address(bridge))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        shown = table(done.stdout)
        self.assertEqual({t: n for t, (_, n, _, _) in shown.items() if not t.startswith(("block.", "node."))}, fired)
        self.assertEqual(shown["block.evictions"][1], 3)
        self.assertTrue(all(lost == 0 for _, _, lost, _ in shown.values()))
        self.assertTrue(all(per_second == 0 for per_second, *_ in shown.values()), shown)
        self.assertIn("no node", done.stdout)

    def test_rates(self):
        with Bridge() as bridge, FakeNode("burst", 100000, "--rate", 2000, "--wait"):
            time.sleep(2)
            done = self.once(address(bridge))
        per_second = table(done.stdout)["mempool.removed"][0]
        self.assertGreater(per_second, 500)
        self.assertLess(per_second, 4000)

    def test_losses_show(self):
        with Bridge("--ring-low", "4K") as bridge, Subscriber(bridge) as sub:
            with FakeNode("burst", 20000, "--wait") as node:
                fired = node.finish()
            sub.wait_ledger(fired)
            time.sleep(1.1)
            lost = sub.lost["mempool.removed"]
            done = self.once(address(bridge))
        self.assertGreater(lost, 0)
        self.assertEqual(table(done.stdout)["mempool.removed"][2], lost)
        self.assertIn(f"lost {lost:,}", done.stdout)

    def test_nobody_there(self):
        done = self.once("tcp://127.0.0.1:9")
        self.assertEqual(done.returncode, 1)
        self.assertIn("no coretapd at tcp://127.0.0.1:9", done.stdout)

    def test_errors(self):
        self.assertEqual(self.once("nonsense").returncode, 2)
        self.assertEqual(self.once("tcp://127.0.0.1:9", "more").returncode, 2)
        done = subprocess.run([tool("coretap"), "top"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        self.assertEqual((done.returncode, done.stderr), (2, "coretap: no terminal; --once prints a single picture\n"))


class Terminal(TestCase):
    def setUp(self):
        need_root()
        if not shutil.which("tmux"):
            raise unittest.SkipTest("not installed: tmux (apt-get install tmux)")
        self.server = f"coretap-{os.getpid()}"
        self.addCleanup(self.tmux, "kill-server", check=False)

    def tmux(self, *args, check=True):
        return subprocess.run(["tmux", "-L", self.server, "-f", "/dev/null", *args], check=check, capture_output=True,
                              text=True).stdout

    def open(self, bridge, term="screen", rows=24, columns=80):
        self.tmux("new-session", "-d", "-x", str(columns), "-y", str(rows), "env", f"TERM={term}", "sh", "-c",
                  f"trap : INT; {tool('coretap')} top --address {address(bridge)}; echo ended $?; sleep 60")

    def screen(self):
        return self.tmux("capture-pane", "-p")

    def wait_screen(self, pattern, seconds=10):
        return wait_until(lambda: re.search(pattern, self.screen()) and self.screen(), seconds, f"{pattern} in the view")

    def fits(self, rows, columns):
        lines = self.screen().rstrip("\n").split("\n")
        self.assertLessEqual(len(lines), rows)
        self.assertLessEqual(max(map(len, lines)), columns)

    def test_live(self):
        with Bridge() as bridge, FakeNode("run", "--rate", 300, "--block-interval", 2, "--seconds", 40):
            self.open(bridge)
            text = self.wait_screen(r"85\d{4} +\d+ tx  out \d+", 20)
            self.fits(24, 80)
            for word in ("coretap top", bridge.name, "PER SECOND", "MEMPOOL", "BLOCKS", "PEERS", "and "):
                self.assertIn(word, text)
            shown = table(text)
            self.assertGreater(shown["mempool.added"][1], 0)
            # It moves, and stands still when held.
            self.wait_screen(r"mempool.removed +[1-9]")
            first = table(self.screen())["mempool.added"][1]
            wait_until(lambda: table(self.screen()).get("mempool.added", (0, 0))[1] > first, 10, "the view to move")
            self.tmux("send-keys", " ")
            time.sleep(1.5)
            held = self.screen()
            time.sleep(1.5)
            self.assertEqual(self.screen(), held)
            self.tmux("send-keys", " ")
            # Larger: everything is there. Smaller: what matters most.
            self.tmux("resize-window", "-x", "120", "-y", "50")
            text = self.wait_screen("utxocache.flush")
            self.assertNotIn(" more", text)
            self.fits(50, 120)
            for columns, rows in ((60, 15), (20, 5), (1, 1), (80, 24)):
                self.tmux("resize-window", "-x", str(columns), "-y", str(rows))
                time.sleep(0.7)
                self.fits(rows, columns)
            self.wait_screen("PEERS")
            self.tmux("send-keys", "q")
            self.wait_screen("ended 0")

    def test_bridge_ends_and_comes_back(self):
        with Bridge() as bridge:
            self.open(bridge)
            self.wait_screen("replay ok")
            bridge.stop()
            self.wait_screen("SILENT")
            with Bridge(port=bridge.port):
                self.wait_screen("replay ok")
                wait_until(lambda: "SILENT" not in self.screen(), 10, "the new one to be seen")
            self.tmux("send-keys", "C-c")
            self.wait_screen("ended 0")

    def test_terminals(self):
        """Plain ones too; and one that nobody knows is said to be so."""
        with Bridge() as bridge:
            for term in ("vt100", "xterm", "linux"):
                self.server = f"coretap-{os.getpid()}-{term}"
                self.addCleanup(self.tmux, "-L", self.server, "kill-server", check=False)
                self.open(bridge, term=term)
                self.wait_screen("replay ok")
                self.tmux("send-keys", "q")
                self.wait_screen("ended 0")
            self.server = f"coretap-{os.getpid()}-none"
            self.addCleanup(self.tmux, "-L", self.server, "kill-server", check=False)
            self.open(bridge, term="no-such")
            self.wait_screen(r"the terminal no-such is not known(.|\n)*ended 1")


if __name__ == "__main__":
    main()
