"""From the node's firing to a replicated log, exactly once: coretap-nats with real nats-servers, whatever
is killed. The consumer is the plain NATS client of clients/nats/examples.

NATS_SECONDS (24) is how long the nodes fire while everything is killed in turn, NATS_OUTAGE (8) how long
all servers are away."""
import os
import random
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import Bridge, FakeNode, TestCase, main, need_root, tool, wait_until
from nats import Cluster, Forwarder, need_nats, read, setup, wait_forwarded

SECONDS = float(os.environ.get("NATS_SECONDS", 24))
OUTAGE = float(os.environ.get("NATS_OUTAGE", 8))
RATE = 20000


class Nats(TestCase):
    def setUp(self):
        need_root()
        need_nats()

    def enter(self, context):
        context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)
        return context

    def check_whole(self, cluster, ledgers):
        """Each firing of each node is in the stream, once, in order, and nothing else."""
        account = read(cluster)
        self.assertEqual(account.wrong[:5], [])
        for node, fired in ledgers.items():
            self.assertEqual(account.of(node), fired, node)
        self.assertEqual(account.lost, {})
        self.assertEqual(account.told, [])
        return account

    def test_everything_is_killed(self):
        """Three servers, three replicas, two nodes; kill -9 of each server, of the forwarder, and of
        a bridge, over and over."""
        from harness import private_copy
        args = ("--keep-attached", "--journal-low", "256M", "--journal-high", "16M")
        binaries = [private_copy(), private_copy()]
        cluster = self.enter(Cluster(3))
        setup(cluster, "--replicas", "3", "--max-age", "1h")
        bridges = [Bridge(*args, binary=b, name=f"nats{os.getpid()}-{i}", sanitized=False, keep=True)
                   for i, b in enumerate(binaries)]
        for bridge, binary in zip(bridges, binaries):
            self.addCleanup(subprocess.run, [tool("coretapd", False), "--detach", "--name", bridge.name,
                                             "--binary", binary], stderr=subprocess.DEVNULL)
        nodes = [self.enter(FakeNode("burst", 10**9, "--rate", RATE, "--wait", "--start-delay", 300,
                                     binary=b)) for b in binaries]
        forwarder = Forwarder(cluster, *bridges, sanitized=False)
        chance, end, kills = random.Random(1), time.monotonic() + SECONDS, 0
        while time.monotonic() < end:
            victim = kills % 6
            time.sleep(chance.uniform(0.5, 2))
            if victim in (0, 2, 4):
                cluster.kill(victim // 2)
                time.sleep(chance.uniform(0.2, 1.5))
                cluster.start(victim // 2)
                time.sleep(1.5)  # one at a time: a majority must be there again
            elif victim == 3:
                bridges[0].kill()
                time.sleep(chance.uniform(0, 0.5))
                bridges[0] = Bridge(*args, binary=binaries[0], name=bridges[0].name, port=bridges[0].port,
                                    sanitized=False, keep=True)
            else:
                forwarder.kill()
                time.sleep(chance.uniform(0, 0.5))
                forwarder = Forwarder(cluster, *bridges, sanitized=False)
            kills += 1
        self.enter(forwarder)
        ledgers = {b.name: n.stop() for b, n in zip(bridges, nodes)}
        begin = time.monotonic()
        for node, fired in ledgers.items():
            wait_forwarded(cluster, node, fired, 240)
        caught_up = time.monotonic() - begin
        self.assertEqual(forwarder.stop(), 0)
        account = self.check_whole(cluster, ledgers)
        self.assertGreaterEqual(kills, 6)
        wait_until(lambda: len(set(cluster.stream().values())) == 1 and len(cluster.stream()) == 3, 60,
                   "all replicas alike")
        for bridge in bridges:
            self.enter(bridge)
            bridge.keep = False
        total = sum(sum(f.values()) for f in ledgers.values())
        print(f"# {kills} kills, {total} firings in {account.sequence} messages, caught up after "
              f"{caught_up:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
