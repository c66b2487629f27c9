"""A node that nobody names: coretapd looks for the one that runs."""
# Runs alone: other tests' nodes would be found too.
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import Bridge, FakeNode, Subscriber, go, main, tool, wait_until

import test_following
from test_following import links, of_pid


class Unnamed(test_following.Container):
    def alone(self):
        """Without an option there must be one node on the whole machine."""
        def one():
            return subprocess.run([tool("coretapd"), "--check"],
                                  stderr=subprocess.DEVNULL).returncode == 0
        try:
            wait_until(one, 20)
        except AssertionError:
            self.skipTest("other nodes run on this machine")

    def test_without_an_option(self):
        """Found, and found again in its next container, whose file is another one."""
        node, pid = self.start(self.root("one"), "burst", 500, "--wait-signal", "--hold")
        with node:
            self.alone()
            with Bridge(binary=None) as bridge, Subscriber(bridge) as sub:
                sub.wait_status()
                go(pid)
                sub.wait_count("mempool.removed", 500)
                node.kill()
                pids = [pid]
                wait_until(lambda: sub.of("node.exited"), 5, "node.exited")
                for name, k in (("two", 2), ("three", 3)):
                    following, pid = self.start(self.root(name), "burst", 500, "--wait", "--hold")
                    pids.append(pid)
                    with following:
                        sub.wait_count("mempool.removed", 500 * k)
                        following.kill()
                    wait_until(lambda: of_pid(sub, pid, "node.exited"), 5, "node.exited")
                self.assertEqual(sub.lost, {})
                self.check_lives(sub, *pids)

    def test_upgraded_elsewhere_without_an_option(self):
        old, new = self.binary("old", "bitcoind"), self.binary("new", "bitcoind")
        with FakeNode("burst", 300, "--wait-signal", "--hold", binary=old) as node:
            self.alone()
            with Bridge(binary=None) as bridge, Subscriber(bridge) as sub:
                sub.wait_status()
                alone = len(links(bridge))
                node.go()
                sub.wait_count("mempool.removed", 300)
                node.kill()
                with FakeNode("burst", 300, "--wait", "--hold", binary=new) as late:
                    sub.wait_count("mempool.removed", 600)
                    self.assertEqual(len(links(bridge)), alone, "the old file is still attached")
                    late.kill()
                wait_until(lambda: len(sub.of("node.exited")) == 2, 5, "node.exited")
                self.check_lives(sub, node.pid, late.pid)
                self.assertEqual([e["binary"] for e in sub.of("node.exited")], [old, new])


if __name__ == "__main__":
    main()
