"""Blocks of a real node: which transactions left with each one, reorganisations, conflicts."""
import concurrent.futures
import json
import os
import random
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import main, tool, wait_until
from regtest import Node, satoshi, spend
from tap import NodeTestCase, Tap, plain


def hexes(hashes):
    return [h.hex() for h in hashes]


def is_final(event):
    return event.topic == "block.evictions" and event["final"]


class Command:
    """`coretap evictions` beside the subscriber: JSON lines, as on any pipe."""

    def __init__(self, bridge):
        self.process = subprocess.Popen(
            [tool("coretap"), "evictions", "--address", f"tcp://127.0.0.1:{bridge.port}"],
            stdout=subprocess.PIPE, text=True)

    def finish(self):
        self.process.terminate()
        return [json.loads(line) for line in self.process.communicate(timeout=40)[0].splitlines()]


class Blocks(NodeTestCase):
    def check_list(self, event, block, entries, seen=None):
        """A list of evictions against getblock and what getrawmempool said before the block."""
        seen = block["tx"][1:] if seen is None else seen
        self.assertEqual(event["hash"].hex(), block["hash"])
        self.assertEqual(event["height"], block["height"])
        self.assertEqual(event["n_tx"], len(block["tx"]))
        self.assertEqual(hexes(event["txids"]), seen)
        self.assertEqual(event["fees"], [satoshi(entries[t]["fees"]["base"]) for t in seen])
        self.assertEqual(event["vsizes"], [entries[t]["vsize"] for t in seen])
        self.assertEqual(event["entry_times"], [entries[t]["time"] for t in seen])
        self.assertEqual(event["unseen"], len(block["tx"]) - 1 - len(seen))
        self.assertIs(event["complete"], True)
        self.assertIs(event["final"], True)

    def test_4000_transactions_in_one_block(self):
        with Node() as node:
            coins = node.make_coins(4000)
            order = random.Random(1).sample(range(4000), 4000)
            node.send_all([spend(coin, 1000 + fee) for coin, fee in zip(coins, order)])
            with Tap(node) as tap:
                command = Command(tap.bridge) if os.path.exists(tool("coretap")) else None
                entries = node.rpc.getrawmempool(True)
                self.assertEqual(len(entries), 4000)
                block = node.rpc.getblock(node.mine()[0])
                evictions = tap.wait(is_final)
                self.check_list(evictions, block, entries)
                self.assertEqual(evictions["unseen"], 0)
                self.assertEqual(evictions["reorg"], 0)
                self.assertIs(evictions["repeat"], False)
                self.assertEqual(set(map(len, evictions["conflicts"].values())), {0})

                events = tap.take("validation", "mempool", "block", mark=False)
                self.assertEqual([plain(e) for e in events],
                                 [("block", block["hash"])] +
                                 [("block", txid) for txid in block["tx"][1:]] +
                                 [("evictions", block["hash"])])
                first = events[0].n
                self.assertEqual([e.n for e in events], list(range(first, first + 4002)))
                self.assertEqual(evictions["n_block"], events[0].n)
                for event in events[1:-1]:
                    entry = entries[event["txid"].hex()]
                    self.check_event(event, txid=event["txid"].hex(), reason="block",
                                     vsize=entry["vsize"], fee=satoshi(entry["fees"]["base"]),
                                     entry_time=entry["time"], height=block["height"])
                if command:
                    self.check_command(command, block, entries)

    def check_command(self, command, block, entries):
        wait_until(lambda: command.process.poll() is None, 1, "coretap running")
        lists = [e for e in command.finish() if e.get("final")]
        self.assertEqual(len(lists), 1)
        told = lists[0]
        self.assertEqual(told["hash"], block["hash"])
        self.assertEqual(told["height"], block["height"])
        self.assertEqual(told["txids"], block["tx"][1:])
        self.assertEqual(told["fees"],
                         [satoshi(entries[t]["fees"]["base"]) for t in block["tx"][1:]])
        self.assertEqual((told["complete"], told["unseen"]), (True, 0))

    def test_blocks_while_transactions_pour_in(self):
        """Arrivals from several threads before, between and after blocks: every list is exact."""
        with Node() as node:
            coins = node.make_coins(2000)
            with Tap(node) as tap, concurrent.futures.ThreadPoolExecutor(3) as pool:
                sends = [pool.submit(node.send_all, [spend(c, 1000) for c in coins[i:i + 50]])
                         for i in range(0, 2000, 50)]
                hashes = []
                while not all(s.done() for s in sends):
                    hashes += node.mine()
                for send in sends:
                    send.result()
                hashes += node.mine()
                self.assertEqual(node.mempool(), set())
                events = tap.take("validation", "mempool", "block")
                lists = {e["hash"].hex(): e for e in events if is_final(e)}
                self.assertEqual(list(lists), hashes)
                for block in node.rpc.batch("getblock", [(h,) for h in hashes]):
                    told = lists[block["hash"]]
                    self.assertEqual(hexes(told["txids"]), block["tx"][1:])
                    self.assertEqual((told["unseen"], told["complete"]), (0, True))
                self.assertEqual(sum(len(e["txids"]) for e in lists.values()), 2000)
                self.assertEqual({e["height"] is None for e in events
                                  if e.topic == "mempool.removed"}, {False})

    def test_transaction_that_was_never_submitted(self):
        """Mined but never seen: nothing is told to have left, and the list says so."""
        with Node() as node:
            coins = node.make_coins(4)
            seen = [spend(c, 1000) for c in coins[:2]]
            hidden = spend(coins[2], 1000)
            node.send_all(seen)
            entries = node.rpc.getrawmempool(True)
            with Tap(node) as tap:
                made = node.mine_exactly([seen[0].txid, hidden.hex, seen[1].txid])
                block = node.rpc.getblock(made["hash"])
                self.assertIn(hidden.txid, block["tx"])
                # Not proven to be over: told early at most, until something else fires.
                early = tap.wait(lambda e: e.topic == "block.evictions")
                self.assertEqual((early["final"], early["complete"]), (False, False))
                self.assertEqual(hexes(early["txids"]), [t.txid for t in seen])
                tap.mark()
                final = tap.wait(is_final)
                self.check_list(final, block, entries, [t.txid for t in seen])
                self.assertEqual(final["unseen"], 1)
                self.assertEqual(final["n_block"], early["n_block"])
                removed = [e["txid"].hex() for e in tap.take("mempool.removed")]
                self.assertEqual(removed, [t.txid for t in seen])

    def test_conflicts_with_descendants(self):
        """Block transactions that spend what the pool had spent otherwise."""
        with Node() as node:
            c = node.make_coins(6)
            a = spend(c[0], 1000, outputs=2)
            b = spend(a.coins[0], 2000)
            b2 = spend(a.coins[1], 1500)
            d = spend(c[1], 3000)
            seen = [spend(coin, 1000 + i) for i, coin in enumerate(c[2:4])]
            node.send_all([a, b, b2, d, *seen])
            hidden = [spend([c[0], c[1]], 5000), spend(c[4], 1000)]
            entries = node.rpc.getrawmempool(True)
            block = node.block_on(txs=[seen[0], *hidden, seen[1]])
            with Tap(node) as tap:
                self.assertIsNone(node.submit(block))
                events = tap.take("validation", "mempool", "block")
                final = next(e for e in events if is_final(e))
                self.check_list(final, node.rpc.getblock(block.hash), entries,
                                [t.txid for t in seen])
                conflicts = final["conflicts"]
                told = hexes(conflicts["txids"])
                self.assertEqual(sorted(told), sorted(t.txid for t in (a, b, b2, d)))
                self.assertEqual(conflicts["after"], [1, 1, 1, 1])
                self.assertEqual(conflicts["fees"],
                                 [satoshi(entries[t]["fees"]["base"]) for t in told])
                self.assertEqual(conflicts["vsizes"], [entries[t]["vsize"] for t in told])
                self.assertEqual(conflicts["entry_times"], [entries[t]["time"] for t in told])
                listed = [plain(e) for e in events if e.topic != "block.evictions"]
                self.assertEqual(listed,
                                 [("block", block.hash), ("block", seen[0].txid)] +
                                 [("conflict", txid) for txid in told] +
                                 [("block", seen[1].txid)])
                heights = {e["height"] for e in events if e.topic == "mempool.removed"}
                self.assertEqual(heights, {block.height})

    def test_one_block_replaced_by_three(self):
        """The node changes branch in one step; each new block is told, in order."""
        with Node() as node:
            c = node.make_coins(6)
            only_old = spend(c[0], 1000)
            both = spend(c[1], 1100)
            waiting = spend(c[2], 1200)
            also_waiting = spend(c[3], 1300)
            respent = spend(c[4], 1400)
            node.send_all([only_old, both, waiting, also_waiting, respent])
            old = node.block_on(txs=[only_old, both, respent])
            new = [node.block_on(txs=[both, spend(c[4], 2000)])]
            new.append(node.block_on(new[-1], [waiting]))
            new.append(node.block_on(new[-1], [also_waiting]))
            with Tap(node) as tap:
                self.assertIsNone(node.submit(old))
                self.assertEqual(tap.chain(),
                                 [("block", old.hash)] +
                                 [("block", t.txid) for t in (only_old, both, respent)] +
                                 [("evictions", old.hash)])
                for block in new:
                    node.rpc.submitheader(block.header.hex())
                # The oldest comes last: only then can the node go over, and it does so at once.
                for block in reversed(new):
                    self.assertIn(node.submit(block), (None, "inconclusive"))
                self.assertEqual(node.rpc.getbestblockhash(), new[2].hash)
                events = tap.take("validation", "mempool", "block")
                blocks = [e for e in events if e.topic == "validation.block_connected"]
                self.assertEqual(hexes(e["hash"] for e in blocks), [b.hash for b in new])
                self.assertEqual([e["height"] for e in blocks], [b.height for b in new])
                lists = [e for e in events if is_final(e)]
                self.assertEqual(hexes(e["hash"] for e in lists), [b.hash for b in new])
                self.assertEqual([e["reorg"] for e in lists], [1, 0, 0])
                self.assertEqual([e["repeat"] for e in lists], [False] * 3)
                self.assertEqual([e["complete"] for e in lists], [True] * 3)
                self.assertEqual([e["unseen"] for e in lists], [2, 0, 0])
                # In both branches: no event. Only in the old one: added again, or rejected when
                # the new branch spends the same coin; as soon as the new branch is the better one.
                self.assertEqual(
                    [plain(e) for e in events],
                    [("block", new[0].hash), ("evictions", new[0].hash),
                     ("block", new[1].hash), ("block", waiting.txid), ("evictions", new[1].hash),
                     ("added", only_old.txid), ("rejected", respent.txid),
                     ("block", new[2].hash), ("block", also_waiting.txid),
                     ("evictions", new[2].hash)])
                self.assertEqual(node.mempool(), {only_old.txid})

    def test_same_transaction_twice(self):
        """Added, mined, block invalidated, added again, mined: each time with its reason."""
        with Node() as node:
            tx = spend(node.make_coins(1)[0], 1000)
            with Tap(node) as tap:
                node.send(tx)
                first = node.block_on(txs=[tx])
                second = node.block_on(txs=[tx])
                self.assertIsNone(node.submit(first))
                node.rpc.invalidateblock(first.hash)
                self.assertEqual(node.mempool(), {tx.txid})
                self.assertIsNone(node.submit(second))
                events = tap.take("validation", "mempool", "block")
                self.assertEqual([plain(e) for e in events],
                                 [("added", tx.txid),
                                  ("block", first.hash), ("block", tx.txid),
                                  ("evictions", first.hash),
                                  ("added", tx.txid),
                                  ("block", second.hash), ("block", tx.txid),
                                  ("evictions", second.hash)])
                lists = [e for e in events if e.topic == "block.evictions"]
                self.assertEqual([e["reorg"] for e in lists], [0, 1])
                self.assertEqual([e["repeat"] for e in lists], [False, False])
                node.rpc.invalidateblock(second.hash)
                node.rpc.reconsiderblock(first.hash)
                self.assertEqual(node.rpc.getbestblockhash(), first.hash)
                again = [e for e in tap.take() if e.topic == "block.evictions"]
                self.assertEqual([(e["hash"].hex(), e["repeat"]) for e in again],
                                 [(first.hash, True)])

    def test_blocks_that_are_only_verified(self):
        """verifychain connects blocks again that the chain already has: told, and told as such."""
        with Node() as node:
            coins = node.make_coins(3)
            with Tap(node) as tap:
                for coin in coins:
                    node.send(spend(coin, 1000))
                    node.mine()
                first = [e for e in tap.take("block.evictions") if e["final"]]
                waiting = spend(spend(coins[0], 1000).coins[0], 1000)
                node.send(waiting)
                tap.take()
                self.assertIs(node.rpc.verifychain(4, 3), True)
                again = [e for e in tap.take("block.evictions") if e["final"]]
                self.assertEqual([e["hash"] for e in again], [e["hash"] for e in first])
                self.assertEqual([(e["repeat"], e["reorg"], e["unseen"]) for e in again],
                                 [(True, 0, 1)] * 3)
                self.assertEqual([(e["complete"], e["txids"]) for e in again], [(True, [])] * 3)


if __name__ == "__main__":
    main()
