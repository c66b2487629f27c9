"""What enters, leaves, replaces and is refused in a real node's mempool."""
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import main
from regtest import (COIN, SCRIPT, WITNESS, Coin, Node, RPCError, Tx, need_version, package_hash,
                     satoshi, sha256, spend, version)
from tap import NodeTestCase, Tap

DAY = 24 * 3600


class Mempool(NodeTestCase):
    def entry(self, node, tx):
        """What RPC says about a transaction of the pool, in the units of the events."""
        entry = node.rpc.getmempoolentry(tx.txid)
        return {"vsize": entry["vsize"], "fee": satoshi(entry["fees"]["base"]),
                "entry_time": entry["time"]}

    def check_added(self, event, node, tx):
        entry = self.entry(node, tx)
        self.assertEqual(event.topic, "mempool.added")
        self.check_event(event, txid=tx.txid, vsize=entry["vsize"], fee=entry["fee"])

    def check_removed(self, event, tx, reason, entry, **more):
        self.assertEqual(event.topic, "mempool.removed")
        self.check_event(event, txid=tx.txid, reason=reason, **entry, **more)

    def test_added(self):
        """Fee without the operator's delta, vsize adjusted for sigops: as getmempoolentry says."""
        with Node() as node:
            wallet = node.wallet()
            address = wallet.getnewaddress()
            node.rpc.generatetoaddress(1, address)
            c = node.make_coins(3)
            # Each bare 1-of-3 counts as 20 signature operations, so vsize is more than the bytes.
            sigops = Tx([(c[0].txid, c[0].vout, 0, WITNESS)],
                        [(c[0].value - 30000 - 20 * 1000, SCRIPT)] +
                        [(1000, b"\x51" + 3 * (b"\x21" + b"\x02" * 33) + b"\x53\xae")] * 20)
            with Tap(node) as tap:
                node.rpc.prioritisetransaction(c[1].txid, 0, 0)
                plain = spend(c[1], 1234, outputs=3)
                node.rpc.prioritisetransaction(plain.txid, 0, 5000)
                node.send_all([plain, sigops])
                paid = wallet.sendtoaddress(address, "1.5")
                events = tap.take("mempool")
                self.assertEqual(len(events), 3)
                self.check_added(events[0], node, plain)
                self.assertEqual(events[0]["fee"], 1234)
                self.check_added(events[1], node, sigops)
                self.assertGreater(events[1]["vsize"], sigops.vsize)
                self.assertEqual(events[2]["txid"].hex(), paid)
                self.assertEqual(events[2]["fee"], -satoshi(wallet.gettransaction(paid)["fee"]))
                self.assertEqual(events[2]["vsize"],
                                 node.rpc.getrawtransaction(paid, 1)["vsize"])

    def test_replaced_by_a_transaction(self):
        """Two chains go for one transaction: two events for each victim, then the newcomer."""
        with Node() as node:
            c = node.make_coins(3)
            a = spend(c[0], 1000)
            b = spend(a.coins[0], 1100)
            d = spend(c[1], 1200, outputs=2)
            e = spend(d.coins[1], 1300)
            victims = {t.txid: t for t in (a, b, d, e)}
            with Tap(node) as tap:
                node.send_all([a, b, d, e])
                entries = {t.txid: self.entry(node, t) for t in (a, b, d, e)}
                node.rpc.prioritisetransaction(a.txid, 0, 700)
                newcomer = spend(c, 20000)
                node.rpc.prioritisetransaction(newcomer.txid, 0, 3000)
                tap.take()
                node.send(newcomer)
                events = tap.take("mempool")
                self.assertEqual([e.topic for e in events], ["mempool.replaced"] * 4 +
                                 ["mempool.removed"] * 4 + ["mempool.added"])
                order = [e["txid"].hex() for e in events[:4]]
                self.assertEqual(set(order), set(victims))
                self.assertEqual([e["txid"].hex() for e in events[4:8]], order)
                for txid, replaced, removed in zip(order, events[:4], events[4:8]):
                    # The fee of the replacement counts the operator's delta since v29, the victim's
                    # does not.
                    fee = 23000 if version() >= 29 else 20000
                    self.check_event(replaced, txid=txid, **entries[txid],
                                     replacement_txid=newcomer.txid,
                                     replacement_vsize=newcomer.vsize, replacement_fee=fee)
                    self.check_removed(removed, victims[txid], "replaced", entries[txid])
                self.check_added(events[8], node, newcomer)

    def test_replaced_by_a_package(self):
        """A parent that pays too little by itself comes with a child that pays for both."""
        need_version(29, "mempool:replaced names no package")
        with Node() as node:
            c = node.make_coins(2)
            victim = spend(c[0], 1000)
            with Tap(node) as tap:
                node.send(victim)
                entry = self.entry(node, victim)
                parent = spend(c[0], 1000, outputs=1, padding=100)
                child = spend(parent.coins[0], 9000)
                tap.take()
                answer = node.rpc.submitpackage([parent.hex, child.hex])
                self.assertEqual(answer["package_msg"], "success")
                self.assertEqual(answer["replaced-transactions"], [victim.txid])
                events = tap.take("mempool")
                self.assertEqual([e.topic for e in events],
                                 ["mempool.replaced", "mempool.removed"] + ["mempool.added"] * 2)
                self.check_event(events[0], txid=victim.txid, **entry,
                                 replacement_package=package_hash([parent, child]),
                                 replacement_vsize=parent.vsize + child.vsize,
                                 replacement_fee=10000)
                self.check_removed(events[1], victim, "replaced", entry)
                self.check_added(events[2], node, parent)
                self.check_added(events[3], node, child)

    def test_expiry(self):
        """Two weeks later the next arrival sweeps out what waited, descendants included."""
        with Node() as node:
            c = node.make_coins(2)
            now = int(time.time())
            node.rpc.setmocktime(now)
            old = spend(c[0], 1000)
            child = spend(old.coins[0], 1000)
            with Tap(node) as tap:
                node.send(old)
                node.rpc.setmocktime(now + 5)
                node.send(child)
                entries = {t.txid: self.entry(node, t) for t in (old, child)}
                self.assertEqual(entries[child.txid]["entry_time"], now + 5)
                node.rpc.setmocktime(now + 14 * DAY + 2)
                tap.take()
                late = spend(c[1], 1000)
                node.send(late)
                events = tap.take("mempool")
                self.check_added(events[0], node, late)
                self.assertEqual({e["txid"].hex() for e in events[1:]}, set(entries))
                for event in events[1:]:
                    tx = old if event["txid"].hex() == old.txid else child
                    self.check_removed(event, tx, "expiry", entries[tx.txid])
                self.assertEqual(node.mempool(), {late.txid})

    def test_sizelimit(self):
        """A full pool drops what pays least; a newcomer that pays least is told three times."""
        with Node("-maxmempool=5") as node:
            coins = node.make_coins(90, value=2_000_000)
            with Tap(node) as tap:
                entries, fee = {}, 30_000
                while True:
                    tx = spend(coins.pop(), fee, padding=90_000)
                    fee += 20_000
                    node.send(tx)
                    events = tap.take("mempool")
                    self.check_added(events[0], node, tx)
                    entries[tx.txid] = (tx, self.entry(node, tx))
                    if len(events) > 1:
                        break
                for event in events[1:]:
                    gone, entry = entries[event["txid"].hex()]
                    self.check_removed(event, gone, "sizelimit", entry)
                    self.assertNotIn(gone.txid, node.mempool())
                self.assertEqual(gone, next(iter(entries.values()))[0])  # it paid least
                # Just above what the pool demands now, yet below everything in it.
                minimum = satoshi(node.rpc.getmempoolinfo()["mempoolminfee"])
                coin = coins.pop()
                size = spend(coin, 1000, padding=90_000).vsize
                late = spend(coin, minimum * size // 1000 + 2, padding=90_000)
                with self.assertRaisesRegex(RPCError, "mempool full"):
                    node.send(late)
                events = tap.take("mempool")
                self.assertEqual([(e.topic, e["txid"].hex(), e.get("reason")) for e in events],
                                 [("mempool.added", late.txid, None),
                                  ("mempool.removed", late.txid, "sizelimit"),
                                  ("mempool.rejected", late.txid, "mempool full")])

    def test_reorg(self):
        """Spends of a coinbase that is immature again leave, and no height is claimed."""
        with Node() as node:
            node.mine(101)
            block = node.rpc.getblock(node.rpc.getblockhash(1), 2)
            coinbase = Coin(block["tx"][0]["txid"], 0, 50 * COIN)
            tx = spend(coinbase, 1000)
            child = spend(tx.coins[0], 1000)
            with Tap(node) as tap:
                node.send_all([tx, child])
                entries = {t.txid: self.entry(node, t) for t in (tx, child)}
                tap.take()
                node.rpc.invalidateblock(node.rpc.getblockhash(100))
                events = tap.take("mempool")
                self.assertEqual({e["txid"].hex() for e in events}, set(entries))
                for event in events:
                    txid = event["txid"].hex()
                    self.check_event(event, txid=txid, reason="reorg", **entries[txid])
                self.assertEqual(node.mempool(), set())

    def test_block_and_conflict(self):
        with Node() as node:
            c = node.make_coins(2)
            seen, victim = spend(c[0], 1000), spend(c[1], 1100)
            node.send_all([seen, victim])
            with Tap(node) as tap:
                entries = [self.entry(node, t) for t in (seen, victim)]
                block = node.block_on(txs=[seen, spend(c[1], 2000)])
                self.assertIsNone(node.submit(block))
                events = tap.take("mempool")
                self.check_removed(events[0], seen, "block", entries[0], height=block.height)
                self.check_removed(events[1], victim, "conflict", entries[1], height=block.height)
                self.assertEqual(len(events), 2)

    def test_rejected(self):
        """Reasons as RPC tells them, for a submission and for a mere test."""
        with Node() as node:
            c = node.make_coins(6)
            sitting = spend(c[0], 1000)
            node.send(sitting)
            def other(value, script=SCRIPT, witness=WITNESS, **more):
                return Tx([(c[1].txid, c[1].vout, 0, witness)], [(value, script)], **more)
            value = c[1].value
            false = b"\x00\x20" + sha256(b"\x00")
            unspendable = spend(c[2], 1000, script=false)
            node.mine_exactly([unspendable.hex])
            bad = {
                "dust": other(1),
                "no fee": other(value),
                "version": other(value - 1000, version=9),
                "non-final": other(value - 1000, lock_time=10_000),
                "sequence": Tx([(c[1].txid, c[1].vout, 100, WITNESS)], [(value - 1000, SCRIPT)]),
                "script": other(value - 1000, script=b"\x6e"),
                "witness": other(value - 1000, witness=(b"\x52",)),
                "false": Tx([(unspendable.txid, 0, 0, (b"\x00",))],
                            [(unspendable.outputs[0][0] - 1000, SCRIPT)]),
                "replacement": spend(c[0], 1001),
                "known": sitting,
                "more than there is": other(value + 1),
                "no outputs": Tx([(c[1].txid, c[1].vout, 0, WITNESS)], []),
                "too large": spend(c[1], 50_000, padding=110_000),
                "missing": spend(Coin("ab" * 32, 0, 10_000), 1000),
            }
            with Tap(node) as tap:
                told = {}
                for what, tx in bad.items():
                    with self.subTest(what):
                        result, = node.rpc.testmempoolaccept([tx.hex], 0)
                        self.assertFalse(result["allowed"])
                        event, = tap.take("mempool")
                        self.assertEqual(event.topic, "mempool.rejected")
                        reason = result["reject-reason"]
                        told[what] = event["reason"]
                        # The one reason that RPC words differently.
                        if reason == "missing-inputs":
                            reason = "bad-txns-inputs-missingorspent"
                        self.check_event(event, txid=tx.txid, reason=reason)
                        if what != "known":
                            with self.assertRaises(RPCError):
                                node.send(tx)
                            again, = tap.take("mempool")
                            self.check_event(again, txid=tx.txid, reason=reason)
                self.assertEqual(len(set(told.values())), len(told), told)


if __name__ == "__main__":
    main()
