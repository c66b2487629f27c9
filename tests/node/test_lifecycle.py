"""Starts, restarts and deaths: of the node under coretapd, and of coretapd beside the node."""
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import Bridge, Subscriber, main, semaphore, wait_until
from regtest import Node, bitcoind, need_tracepoints, spend, version
from tap import NodeTestCase, Tap

WALLET = ["selected_coins", "normal_create_tx_internal", "attempting_aps_create_tx",
          "aps_create_tx_internal"]


def notes(binary):
    return subprocess.run(["readelf", "-n", binary], capture_output=True, text=True).stdout


def tracepoints(binary):
    return sorted(set(re.findall(r"Provider: (\S+)\s+Name: (\S+)", notes(binary))))


def semaphores(node):
    """None before v29."""
    without = set(re.findall(r"Provider: (\S+)\s+Name: (\S+)\s+Location: \S+, Base: \S+, "
                             r"Semaphore: 0x0+\s", notes(node.binary)))
    return {f"{provider}.{name}": semaphore(node.pid, node.binary, provider, name)
            for provider, name in tracepoints(node.binary) if (provider, name) not in without}


class Lifecycle(NodeTestCase):
    def setUp(self):
        # A copy has an inode of its own, so that other nodes here are other binaries.
        original = bitcoind()
        directory = tempfile.mkdtemp(prefix="coretap-binary-")
        self.addCleanup(shutil.rmtree, directory)
        self.binary = os.path.join(directory, "bitcoind")
        shutil.copy(original, self.binary)

    def build_id(self):
        match = re.search(r"Build ID: ([0-9a-f]+)", notes(self.binary))
        return match[1] if match else ""

    def core(self):
        return "v29 or later" if version() >= 29 else "v26-v28" if version() >= 26 else \
            f"v{version()}"

    def check_life(self, event, topic, node, at):
        self.assertEqual((event.topic, event.pid), (topic, node.pid))
        self.assertAlmostEqual(event["started_at"], at, delta=2)
        self.check_event(event, binary=self.binary, build_id=self.build_id(),
                         started_at=event["started_at"], core=self.core())

    # ---- the node ----

    def test_restarts(self):
        """Ended, killed, started again: each process is told, and events belong to theirs."""
        with Bridge(binary=self.binary) as bridge, Subscriber(bridge) as sub, \
                Node(binary=self.binary, start=False) as node:
            sub.wait_status()
            lives = []
            tx = None
            for death in (node.stop, node.kill, node.stop):
                at = time.time()
                node.start()
                lives.append((node.pid, at))
                if tx is None:
                    tx = spend(node.make_coins(1)[0], 1000)
                    node.send(tx)
                    node.rpc.savemempool()
                wait_until(lambda: any(e["txid"].hex() == tx.txid and e.pid == node.pid
                                       for e in sub.of("mempool.added")), 10, "the transaction")
                raised = semaphores(node)
                self.assertEqual({n for n, v in raised.items() if not v},
                                 {n for n in raised if n.startswith("coin_selection.")})
                pid = node.pid
                death()
                exited = wait_until(lambda: next((e for e in sub.of("node.exited")
                                                  if e.pid == pid), None), 10, "node.exited")
                started = next(e for e in sub.of("node.started") if e.pid == pid)
                for event, topic in (started, "node.started"), (exited, "node.exited"):
                    self.check_life(event, topic, node, at)
            self.check_frames(sub, [pid for pid, _ in lives])

    def check_frames(self, sub, pids):
        """node.started is the first event of its process and node.exited the last."""
        self.assertEqual((sub.errors, sub.gaps, sub.n_gaps, sub.lost), ([], [], [], {}))
        low = sorted((e for e in sub.events if e.topic.split(".")[0] in
                      ("mempool", "validation", "node", "block") or "connection" in e.topic or
                      e.topic == "utxocache.flush"), key=lambda e: e.n)
        lives = [e for e in low if e.topic.startswith("node.")]
        self.assertEqual([(e.topic, e.pid) for e in lives],
                         [(t, pid) for pid in pids for t in ("node.started", "node.exited")])
        for pid in pids:
            own = [e.topic for e in low if e.pid == pid]
            self.assertEqual((own[0], own[-1]), ("node.started", "node.exited"))
            self.assertEqual(own.count("node.started"), 1)
        self.assertEqual({e.pid for e in sub.events}, set(pids))

    def test_daemon(self):
        """The node goes on in a child of the process that was started."""
        for how in ("-daemon", "-daemonwait"):
            with self.subTest(how), Node(binary=self.binary, start=False) as node:
                with Bridge(binary=self.binary) as bridge, Subscriber(bridge) as sub:
                    sub.wait_status()
                    self.run_daemon(how, node, sub)
                    # What the child has inherited goes with coretapd, too.
                    node.start_daemon(how)
                    self.assertNotEqual(semaphores(node).get("mempool.added"), 0)
                self.assertLessEqual(set(semaphores(node).values()), {0})
                node.stop()

    def run_daemon(self, how, node, sub):
        at = time.time()
        node.start_daemon(how)
        hashes = node.mine(3)
        wait_until(lambda: {e["hash"].hex() for e in sub.of("validation.block_connected")} >=
                   set(hashes), 10, "blocks")
        self.assertEqual({e.pid for e in sub.of("validation.block_connected")}, {node.pid})
        pid = node.pid
        node.stop()
        exited = wait_until(lambda: next((e for e in sub.of("node.exited") if e.pid == pid),
                                         None), 10, "node.exited")
        self.check_life(exited, "node.exited", node, at)
        lives = sorted(sub.of("node.started") + sub.of("node.exited"), key=lambda e: e.n)
        pids = list(dict.fromkeys(e.pid for e in lives))
        self.assertEqual(pids[-1], pid)
        self.check_frames(sub, pids)

    def test_kill_9_and_a_shorter_chain(self):
        """What a killed node had not written connects again, under the next process."""
        with Bridge(binary=self.binary) as bridge, Subscriber(bridge) as sub, \
                Node(binary=self.binary) as node:
            sub.wait_status()
            node.mine(3)
            node.rpc.gettxoutsetinfo()  # writes everything
            lost = node.mine(2)
            height = node.rpc.getblockcount()
            node.kill()
            node.start()
            self.assertLess(node.rpc.getblockcount(), height)
            new = node.block_on()
            self.assertIsNone(node.submit(new))
            event = wait_until(lambda: next((e for e in sub.of("validation.block_connected")
                                             if e["hash"].hex() == new.hash), None), 10, "block")
            self.assertEqual(event["height"], height - 1)
            told = [e["hash"].hex() for e in sub.of("validation.block_connected")]
            self.assertEqual(told[-3:], [*lost, new.hash])
            final = wait_until(lambda: [e for e in sub.of("block.evictions")
                                        if e["hash"].hex() == new.hash], 10, "list")[0]
            self.assertEqual((final["reorg"], final["repeat"]), (2, False))

    def test_ways_to_name_the_node(self):
        with Node(binary=self.binary) as node:
            pid_file = os.path.join(node.chain_directory, "bitcoind.pid")
            for options in (["--datadir", node.datadir], ["--pid-file", pid_file]):
                with self.subTest(options), Bridge(*options, binary=None) as bridge, \
                        Subscriber(bridge) as sub:
                    sub.wait_status()
                    block = node.block_on()
                    node.submit(block)
                    event = wait_until(lambda: sub.of("validation.block_connected"), 10, "block")[0]
                    self.assertEqual((event["hash"].hex(), event.pid), (block.hash, node.pid))

    def test_only_the_named_node(self):
        """A second node of the same binary: none of its events are published."""
        with Node(binary=self.binary) as node, Node(binary=self.binary) as other, Tap(node) as tap:
            other.mine(5)
            mine = node.mine(2)
            other.mine(5)
            told = [e["hash"].hex() for e in tap.take("validation")]
            self.assertEqual(told, mine)
            self.assertEqual({e.pid for e in tap.sub.events}, {node.pid})
            self.assertLessEqual(set(semaphores(other).values()), {0})

    # ---- coretapd ----

    def test_everything_attached_and_nothing_left(self):
        need_tracepoints("net.misbehaving_connection", *(f"coin_selection.{n}" for n in WALLET))
        with Node(binary=self.binary) as node:
            names = [f"{provider}.{name}" for provider, name in tracepoints(self.binary)]
            self.assertEqual(len(names), 20)
            self.assertEqual(set(semaphores(node).values()), {0})
            with Tap(node, "--only", "*"):
                self.assertEqual([n for n, v in semaphores(node).items() if not v], [])
            self.assertEqual(set(semaphores(node).values()), {0})
            with Tap(node, "--only", "block.evictions"):
                # What the list follows from is traced, too, and nothing else.
                raised = {n for n, v in semaphores(node).items() if v}
                self.assertEqual(raised, {n for n in names
                                          if n.startswith(("mempool.", "validation."))})
            self.assertEqual(set(semaphores(node).values()), {0})

    def busy(self, node, coins):
        """Sends and mines until told to end."""
        self.ending, self.failure, self.rounds = False, None, 0

        def work():
            try:
                while not self.ending:
                    chain = [spend(coins[self.rounds % len(coins)], 300)]
                    for _ in range(10):
                        chain.append(spend(chain[-1].coins[0], 300))
                    node.send_all(chain)
                    node.mine()
                    coins[self.rounds % len(coins)] = chain[-1].coins[0]
                    self.rounds += 1
            except Exception as error:  # told by the test
                self.failure = error
        thread = threading.Thread(target=work)
        thread.start()
        return thread

    def test_coretapd_ends_while_the_node_works(self):
        """TERM and KILL, in turn, at moments that fall anywhere: the node does not notice."""
        with Node(binary=self.binary) as node:
            thread = self.busy(node, node.make_coins(20, value=1_000_000))
            try:
                for i in range(8):
                    number = (signal.SIGTERM, signal.SIGKILL)[i % 2]
                    bridge = Bridge("--pid", node.pid, "--only", "*", binary=None)
                    with Subscriber(bridge) as sub:
                        sub.wait_status()
                        wait_until(lambda: sub.count.get("mempool.removed", 0) > 20, 10, "events")
                        if number == signal.SIGTERM:
                            self.assertEqual(bridge.stop(), 0)
                            self.assertEqual((sub.errors, sub.gaps, sub.lost), ([], [], {}))
                        else:
                            bridge.kill()
                    bridge.errors.close()
                    wait_until(lambda: set(semaphores(node).values()) <= {0}, 10, "semaphores")
                    before = self.rounds
                    wait_until(lambda: self.rounds > before + 1 or self.failure, 10, "work")
            finally:
                self.ending = True
                thread.join()
            self.assertIsNone(self.failure)
            self.assertEqual(node.rpc.getblockcount(), 102 + self.rounds)
            self.assertEqual(node.rpc.verifychain(3, 20), True)
            node.stop()


if __name__ == "__main__":
    main()
