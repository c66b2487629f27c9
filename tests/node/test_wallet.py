"""Coin selection of a real node's wallet, published only when asked for."""
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import main, wait_until
from regtest import (COIN, WITNESS, Node, RPCError, Tx, need_version, new_script, satoshi,
                     version)
from tap import NodeTestCase, Tap

# Sizes in vbytes of what a P2WPKH wallet adds, Bitcoin Core's src/wallet/spend.cpp.
OVERHEAD, OUTPUT, CHANGE_SPEND = 11, 31, 68


class Wallet(NodeTestCase):
    def fund(self, node, wallet, *amounts, script=None):
        """Confirmed coins of these amounts, from coins of ours."""
        coin = node.make_coins(1, value=sum(amounts) + 10_000)[0]
        scripts = [script or new_script(wallet) for _ in amounts]
        node.send(Tx([(coin.txid, 0, 0, WITNESS)], list(zip(amounts, scripts))))
        node.mine()

    def names(self, events):
        return [e.topic.split(".")[1] for e in events]

    def inputs(self, node, tx):
        spent = ((node.rpc.getrawtransaction(vin["txid"], True), vin["vout"]) for vin in tx["vin"])
        return sum(satoshi(made["vout"][n]["value"]) for made, n in spent)

    def test_payment(self):
        """Plain and grouped selection of one payment, against the transaction that came of it."""
        name = 'a "wallet" called Müller\\' + "x" * 150
        with Node("-txindex") as node:
            wallet = node.wallet(name)
            self.fund(node, wallet, COIN, 3 * COIN)
            with Tap(node, "--only", "*") as tap:
                target = wallet.getnewaddress()
                txid = wallet.sendtoaddress(address=target, amount="2.5", fee_rate=10)
                events = tap.take("coin_selection")
                self.assertEqual(self.names(events),
                                 ["selected_coins", "normal_create_tx_internal",
                                  "attempting_aps_create_tx", "selected_coins",
                                  "aps_create_tx_internal"])
                self.assertEqual({e["wallet"] for e in events}, {name})
                told = wallet.gettransaction(txid)
                fee = -satoshi(told["fee"])
                tx = node.rpc.decoderawtransaction(told["hex"])
                change = next(i for i, out in enumerate(tx["vout"]) if out["value"] != "2.50000000")
                plain, normal, attempt, grouped, aps = events
                for event in plain, grouped:
                    # At the wallet's long-term rate of 10, only the change is a waste.
                    self.check_event(event, wallet=name, algorithm=event["algorithm"],
                                     target=250_000_000 + 10 * (OVERHEAD + OUTPUT),
                                     waste=10 * (OUTPUT + CHANGE_SPEND), selected=event["selected"])
                self.check_event(attempt, wallet=name)
                # Selection draws lots: the log tells which of the two became the transaction.
                self.check_log(node, plain, normal, grouped, aps)
                selection, made = (grouped, aps) if aps["use_aps"] else (plain, normal)
                self.assertEqual(selection["selected"], self.inputs(node, tx))
                self.assertEqual((made["fee"], made["change_pos"]), (fee, change))
                self.check_event(normal, wallet=name, success=True, fee=normal["fee"],
                                 change_pos=normal["change_pos"])
                self.check_event(aps, wallet=name, use_aps=aps["use_aps"], success=True,
                                 fee=aps["fee"], change_pos=aps["change_pos"])

    def check_log(self, node, plain, normal, grouped, aps):
        log = node.log()
        if version() >= 26:  # before, the log did not say
            told = re.findall(r"Coin Selection: Algorithm:(\S+), Waste Metric Score:(-?\d+)",
                              log)[-2:]
            self.assertEqual([(e["algorithm"], str(e["waste"])) for e in (plain, grouped)], told)
        fees = re.findall(r"Fee non-grouped = (\d+), grouped = (\d+), using (\S+)", log)[-1]
        self.assertEqual((str(normal["fee"]), str(aps["fee"])), fees[:2])
        self.assertEqual(aps["use_aps"], fees[2] == "grouped")

    def test_grouping_that_costs_more(self):
        """Two coins at one address: spending both is dearer, so the plain transaction is used."""
        with Node("-txindex") as node:
            wallet = node.wallet()
            self.fund(node, wallet, COIN, COIN, script=new_script(wallet))
            with Tap(node, "--only", "coin_selection.*") as tap:
                txid = wallet.sendtoaddress(address=wallet.getnewaddress(), amount="0.5",
                                            fee_rate=10)
                # No mark: what would show it is not published here.
                wait_until(lambda: sum(tap.sub.count.values()) >= 5, 10, "five events")
                events = tap.take(mark=False)
                self.assertEqual({e.topic.split(".")[0] for e in events}, {"coin_selection"})
                first, normal, _, second, aps = events
                self.check_log(node, first, normal, second, aps)
                told = wallet.gettransaction(txid)
                tx = node.rpc.decoderawtransaction(told["hex"])
                self.assertEqual((first["wallet"], first["selected"], second["selected"]),
                                 ("w", COIN, 2 * COIN))
                self.assertEqual((normal["success"], normal["fee"]), (True, -satoshi(told["fee"])))
                self.assertEqual((aps["use_aps"], aps["success"]), (False, True))
                self.assertGreater(aps["fee"], normal["fee"])
                self.assertNotEqual(tx["vout"][normal["change_pos"]]["value"], "0.50000000")

    def test_no_change_and_chosen_coins(self):
        need_version(26, "send takes no named inputs")
        with Node("-txindex") as node:
            wallet = node.wallet()
            self.fund(node, wallet, COIN, 2 * COIN)
            coins = sorted(wallet.listunspent(), key=lambda c: satoshi(c["amount"]))
            with Tap(node, "--only", "*") as tap:
                # The coin that is named pays for it alone.
                sent = wallet.send(outputs={wallet.getnewaddress(): "1.9"}, fee_rate=10,
                                   inputs=[{"txid": coins[1]["txid"], "vout": coins[1]["vout"]}])
                events = tap.take("coin_selection")
                fee = -satoshi(wallet.gettransaction(sent["txid"])["fee"])
                self.assertEqual(events[0]["algorithm"], "manual")
                self.assertEqual(events[0]["selected"], 2 * COIN)
                self.assertEqual(events[0]["target"], 190_000_000 + 10 * (OVERHEAD + OUTPUT))
                self.assertEqual({e["fee"] for e in events if "fee" in e}, {fee})
                # Everything goes: no change, and nothing wasted.
                balance = wallet.getbalance()
                txid = wallet.sendtoaddress(address=wallet.getnewaddress(), amount=balance,
                                            subtractfeefromamount=True, fee_rate=10)
                events = tap.take("coin_selection")
                told = wallet.gettransaction(txid)
                for event in events:
                    self.assertEqual(event.get("change_pos", -1), -1)
                self.assertEqual(events[0]["selected"], satoshi(balance))
                self.assertEqual((events[0]["target"], events[0]["waste"]), (satoshi(balance), 0))
                self.assertEqual(events[-1]["fee"], -satoshi(told["fee"]))

    def test_failure(self):
        with Node() as node:
            wallet = node.wallet()
            self.fund(node, wallet, COIN)
            with Tap(node, "--only", "*") as tap:
                with self.assertRaisesRegex(RPCError, "Insufficient funds"):
                    wallet.sendtoaddress(wallet.getnewaddress(), "1.5")
                event, = tap.take("coin_selection")
                self.assertEqual(event.topic, "coin_selection.normal_create_tx_internal")
                self.check_event(event, wallet="w", success=False, fee=0,
                                 change_pos=-1 if version() >= 27 else 0)

    def test_private_unless_asked_for(self):
        """Wallet names and amounts stay in the node."""
        with Node() as node:
            wallet = node.wallet()
            self.fund(node, wallet, COIN)
            with Tap(node) as tap:
                wallet.sendtoaddress(wallet.getnewaddress(), "0.5")
                self.assertEqual([e.topic for e in tap.take() if e.topic.startswith("coin_")], [])
                self.assertEqual(tap.sub.count.get("coin_selection.selected_coins", 0), 0)
                self.assertNotIn("coin_selection.selected_coins", tap.sub.status("low")["heads"])


if __name__ == "__main__":
    main()
