"""Block connections and the coins cache of a real node, field by field."""
import datetime
import os
import re
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import main, wait_until
from regtest import Node, Peer, RPCError, need_version, new_script, satoshi, spend, version
from tap import NodeTestCase, Tap

P2PKH = b"\x76\xa9\x14" + bytes(20) + b"\x88\xac"
MEMPOOL_HEIGHT = 0x7fffffff
NONE, FORCE_FLUSH, FORCE_SYNC = 0, 3, 4


class Coins(NodeTestCase):
    def test_block_connected(self):
        with Node() as node:
            wallet = node.wallet()
            node.mine(1, new_script(wallet))
            c = node.make_coins(5)
            with Tap(node) as tap:
                wallet.sendtoaddress(wallet.getnewaddress(), 1)
                node.send_all([spend(c[:3], 1000), spend(c[3], 1000, script=P2PKH)])
                template = node.rpc.getblocktemplate({"rules": ["segwit"]})
                sigops = sum(tx["sigops"] for tx in template["transactions"])
                self.assertGreater(sigops, 1)
                tap.take()
                at = len(node.log())
                block_hash, = node.mine(1, P2PKH)
                block = node.rpc.getblock(block_hash, 2)
                event = next(e for e in tap.take("validation"))
                duration = event.pop("duration_ns")
                self.check_event(event, hash=block_hash, height=block["height"], n_tx=4,
                                 # The coinbase's only input counts too, unlike in getblockstats.
                                 n_inputs=sum(len(tx["vin"]) for tx in block["tx"]),
                                 sigops=sigops + 4)
                self.assertEqual(event["n_inputs"], node.rpc.getblockstats(block_hash)["ins"] + 1)
                # What the log says of the steps that the duration covers, to a hundredth of a ms.
                log = node.log()[at:]
                steps = [float(re.findall(rf"{step}.*?: ([0-9.]+)ms", log)[-1])
                         for step in ("Sanity checks", "Fork checks", r"Verify \d+ txins",
                                      "Write undo data")]
                self.assertAlmostEqual(duration / 1e6, sum(steps), delta=0.03)
                # It fires between these two lines, and is stamped with the same clock.
                self.assertGreater(event["time_us"], self.stamp(log, "Index writing") - 2000)
                self.assertLess(event["time_us"], self.stamp(log, "Connect total") + 2000)

    def stamp(self, log, words):
        """Unix microseconds of the last line in the log with these words."""
        line = [line for line in log.splitlines() if words in line][-1]
        at = datetime.datetime.strptime(line.split()[0], "%Y-%m-%dT%H:%M:%S.%fZ")
        return (at - datetime.datetime(1970, 1, 1)) // datetime.timedelta(microseconds=1)

    def test_flush(self):
        """Modes, counts and sizes as the log has them; RPC is silent about them."""
        need_version(31, "the log does not tell the mode of a flush")
        with Node("-prune=1", "-fastprune") as node:
            large = spend(node.make_coins(50)[0], 50_000, padding=90_000)
            node.send(large)  # fills the first block file, so that there is one to prune
            node.mine()
            with Tap(node) as tap:
                node.rpc.gettxoutsetinfo()
                event, = tap.take("utxocache.flush")
                self.check_flush(event, node.log(), "FORCE_SYNC", FORCE_SYNC, False)

                node.mine(400)
                tap.take()
                node.rpc.pruneblockchain(node.rpc.getblockcount() - 300)
                event, = tap.take("utxocache.flush")
                self.check_flush(event, node.log(), "NONE", NONE, True)

                # A mocked clock stands still, so the flush takes no time at all.
                node.rpc.setmocktime(int(time.time()))
                node.rpc.gettxoutsetinfo()
                event, = tap.take("utxocache.flush")
                self.assertEqual(event["duration_ns"], 0)
                node.rpc.setmocktime(0)

                # A node that ends flushes twice; the second time there is nothing left.
                node.stop()
                tap.wait(lambda e: e.topic == "node.exited")
                events = tap.take("utxocache.flush", mark=False)
                self.assertEqual(len(events), 2)
                first = node.log().rpartition("Writing chainstate")[0]
                self.check_flush(events[0], first, "FORCE_FLUSH", FORCE_FLUSH, False)
                self.assertEqual((events[1]["mode"], events[1]["coins"]), (FORCE_FLUSH, 0))

    def check_flush(self, event, log, name, mode, prune):
        """The last flush in the log, and the cache as the last block before left it."""
        before, at, flush = log.rpartition("flush mode=")
        self.assertTrue(flush.startswith(f"{name}, prune={int(prune)}"), flush[:200])
        self.assertEqual(list(event),
                         ["time_us", "duration_ns", "mode", "coins", "memory", "prune"])
        self.assertEqual((event["mode"], event["prune"]), (mode, prune))
        coins = int(re.search(r"coins cache to disk \(\d+ out of (\d+) cached coins", flush)[1])
        self.assertEqual(event["coins"], coins)
        mib, count = re.findall(r"cache=([0-9.]+)MiB\((\d+)txo\)", before)[-1]
        self.assertEqual(event["coins"], int(count))
        self.assertAlmostEqual(event["memory"] / 2**20, float(mib), delta=0.051)
        # From before the first of the log's steps until after the last one.
        took = sum(map(float, re.findall(r"completed \(([0-9.]+)ms\)", flush)))
        self.assertEqual(event["duration_ns"] % 1000, 0)
        self.assertGreater(event["duration_ns"] / 1e6, took - 0.1)
        self.assertLess(event["duration_ns"] / 1e6, took + 500)

    def check_coin(self, event, topic, vout, txid, n, height, coinbase):
        self.assertEqual(event.topic, topic)
        self.check_event(event, txid=txid, vout=n, height=height, value=satoshi(vout["value"]),
                         coinbase=coinbase)

    def test_add_and_spent(self):
        """A block that comes from outside touches each coin once, in block order."""
        with Node() as node:
            c = node.make_coins(4)
            a = spend(c[:2], 1000, outputs=3)
            b = spend([a.coins[2], c[2]], 1000, padding=50)
            from_coinbase = spend(node.coinbase(2), 1000)
            block = node.block_on(txs=[a, b, from_coinbase])
            with Tap(node) as tap, Peer.connect(node):
                tap.take()
                self.assertIsNone(node.submit(block))
                expected = self.coin_events(node, block.hash)
                wait_until(lambda: tap.sub.count.get("utxocache.add", 0) >= 6 and
                           tap.sub.count.get("utxocache.spent", 0) >= 5, 10, "coins")
                events = tap.take("utxocache.add", "utxocache.spent")
                self.assertEqual(len(events), len(expected))
                for event, (topic, vout, *rest) in zip(events, expected):
                    self.check_coin(event, topic, vout, *rest)
                self.assertTrue(any(e["coinbase"] for e in events if e.topic == "utxocache.spent"))

    def coin_events(self, node, block_hash):
        """What connecting this block does to the coins, from getblock."""
        block = node.rpc.getblock(block_hash, 3)
        heights = {tx["txid"]: block["height"] for tx in block["tx"]}
        expected = []
        for i, tx in enumerate(block["tx"]):
            for vin in tx["vin"] if i else ():
                prevout = vin["prevout"]
                expected.append(("utxocache.spent", prevout, vin["txid"], vin["vout"],
                                 heights.get(vin["txid"], prevout["height"]), prevout["generated"]))
            for vout in tx["vout"]:
                if vout["scriptPubKey"]["type"] != "nulldata":
                    expected.append(("utxocache.add", vout, tx["txid"], vout["n"], block["height"],
                                     i == 0))
        return expected

    def test_uncache(self):
        """A refused transaction must not leave in the cache what only it wanted."""
        with Node() as node:
            c = node.make_coins(3)
            coinbase = node.coinbase(2)
            node.stop()  # the next process begins with an empty cache
            node.start()
            unconfirmed = spend(c[2], 1000)
            node.send(unconfirmed)
            with Tap(node) as tap:
                refused = spend([c[0], unconfirmed.coins[0], coinbase], 0)
                with self.assertRaisesRegex(RPCError, "min relay fee not met"):
                    node.send(refused)
                tap.wait(lambda e: e.topic == "utxocache.uncache" and e["coinbase"])
                events = {e["txid"].hex(): e for e in tap.take("utxocache.uncache")}
                # Coins of the pool did not enter the cache in older versions.
                wanted = [c[0], coinbase] + [unconfirmed.coins[0]] * (
                    version() >= 31 or unconfirmed.txid in events)
                self.assertEqual(len(events), len(wanted))
                tip = node.rpc.getblockcount()
                for coin in wanted:
                    out = node.rpc.gettxout(coin.txid, coin.vout)
                    confirmations = out["confirmations"]
                    height = tip - confirmations + 1 if confirmations else MEMPOOL_HEIGHT
                    self.check_coin(events[coin.txid], "utxocache.uncache", out, coin.txid,
                                    coin.vout, height, out["coinbase"])


if __name__ == "__main__":
    main()
