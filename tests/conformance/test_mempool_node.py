"""The mirror of the mempool on a real node: equal to getrawmempool at 50 checkpoints of a random walk,
with sizes and fees, and again after coretapd was killed in the middle. Wants BITCOIND."""
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "lib"), os.path.join(HERE, "..", "node"),
                os.path.join(HERE, "..", "..", "clients", "python")]
import coretap
from harness import Bridge, TestCase, main, need_root
from regtest import Node, bitcoind
from tap import marker
from test_walk import Walker

ACTIONS, CHECKPOINTS = 2000, 50


class MempoolOfANode(TestCase):
    def test_walk(self):
        need_root()
        bitcoind()
        with Node("-maxmempool=5") as node:
            walker = Walker(node, seed=int(os.environ.get("SEED", "41")))
            for _ in range(30):
                walker.step()
            bridge = Bridge("--pid", node.pid, binary=None, keep=True)
            rpc = coretap.RPC(f"http://127.0.0.1:{node.rpc_port}",
                              cookie=os.path.join(node.chain_directory, ".cookie"))
            try:
                with coretap.Mempool(rpc, address=f"tcp://127.0.0.1:{bridge.port}") as pool:
                    pool.wait_synced()
                    for action in range(1, ACTIONS + 1):
                        walker.step(action)
                        if action == ACTIONS // 2:
                            name, port = bridge.name, bridge.port
                            bridge.kill()
                            walker.step()  # nobody sees this one
                            bridge = Bridge("--pid", node.pid, binary=None, name=name, port=port,
                                            keep=True)
                        if action % (ACTIONS // CHECKPOINTS) == 0:
                            self.compare(pool, node)
                    self.assertEqual(pool.syncs, 2)
                    found = pool.verify()
                    self.assertEqual((found.missing, found.surplus), (set(), set()))
                    reasons = {tx.reason for tx in pool.left.values()}
                    self.assertGreaterEqual(reasons, {"block", "conflict", "replaced", "expiry"})
            finally:
                bridge.stop()

    def compare(self, pool, node):
        """Once everything that was fired so far has been applied."""
        end = time.monotonic() + 30
        seen = False
        while not (seen and pool.synced):
            self.assertLess(time.monotonic(), end, "not synced")
            tx = marker()
            node.rpc.testmempoolaccept([tx.hex])
            until = time.monotonic() + 2
            while time.monotonic() < until and not (seen and pool.synced):
                item = pool.next(0.1)
                if item is not None and item.topic == "mempool.rejected" and \
                        item.kind == "event" and item.txid.hex() == tx.txid:
                    seen = True
        listed = node.rpc.getrawmempool(True)
        self.assertEqual({t.hex() for t in pool.transactions}, set(listed))
        for txid, entry in listed.items():
            mine = pool.get(txid)
            self.assertEqual((mine.vsize, mine.fee), (int(entry["vsize"]), coretap.mempool.satoshi(
                entry["fees"]["base"])), txid)


if __name__ == "__main__":
    main()
