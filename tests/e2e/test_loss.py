"""Losses in the kernel's rings: fired = received + lost, exactly, and told in the stream where they
happened."""
import os
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import Bridge, FakeNode, Subscriber, TestCase, main, wait_until

PAGE = os.sysconf("SC_PAGESIZE")
BURST = 20000


def thread_of(event):
    return int.from_bytes(event["txid"][20:24], "big")


def index_of(event):
    return int.from_bytes(event["txid"][24:], "big")


class Loss(TestCase):
    def check_counters(self, sub, fired):
        """Once all is told, status says the same as the ledger and the stream."""
        def told():
            for name in ("low", "high"):
                for topic, counters in sub.status(name)["counters"].items():
                    if not topic.startswith(("block.", "node.")) and \
                            counters["fired"] != fired.get(topic, 0):
                        return False
            return True
        wait_until(told, 5, "the ledger's numbers in status")
        for name in ("low", "high"):
            status = sub.status(name)
            for topic, counters in status["counters"].items():
                if topic.startswith(("block.", "node.")):
                    continue
                self.assertEqual(counters["submitted"], sub.count.get(topic, 0), topic)
                self.assertEqual(counters["lost"], sub.lost.get(topic, 0), topic)
                self.assertEqual(counters["submitted"] + counters["lost"], counters["fired"], topic)
                self.assertEqual(status["heads"][topic], counters["fired"], topic)

    def check_places(self, sub):
        """The first thread's firings are numbered; with one thread, number = place in the topic."""
        for event in sub.of("mempool.removed"):
            self.assertEqual(index_of(event), event.seq - 1)

    def stopped_burst(self, sub, bridge, *args, count=BURST):
        """The bridge is stopped for the whole burst. Returns the ledger and how many statuses there
        were."""
        bridge.send(signal.SIGSTOP)
        with FakeNode("burst", count, *args, "--wait") as node:
            fired = node.finish()
        told = len(sub.statuses)
        bridge.send(signal.SIGCONT)
        return fired, told

    def test_bridge_stopped_for_the_burst(self):
        """Tail loss: no further event comes, and it is told within two status periods."""
        for threads in (1, 4):
            with self.subTest(threads=threads), Bridge("--ring-low", PAGE) as bridge, \
                    Subscriber(bridge, raw=True) as sub:
                sub.wait_status()
                fired, told = self.stopped_burst(sub, bridge, "--threads", threads)
                self.assertEqual(fired, {"mempool.removed": BURST})
                sub.wait_ledger(fired, 10)
                order = [topic for _, topic, _ in sub.messages]
                loss = max(i for i, topic in enumerate(order) if topic == "mempool.removed")
                self.assertLessEqual(order[:loss].count("bridge.status") - told, 2 * 2 + 1)
                self.assertGreater(sub.lost["mempool.removed"], BURST - 100)
                self.check_account(sub, fired)
                self.check_stream(sub)
                self.check_counters(sub, fired)
                notices = [body for _, topic, body in sub.messages
                           if topic == "mempool.removed" and not body["events"]]
                self.assertEqual(len(notices), 1)
                self.assertEqual(list(notices[0]),
                                 ["v", "node", "run", "pid", "n", "seq", "lost", "events"])
                if threads == 1:
                    self.check_places(sub)
                # All that is lost lies after all that was received, for every thread.
                for thread in range(threads):
                    got = [index_of(e) for e in sub.of("mempool.removed") if thread_of(e) == thread]
                    self.assertEqual(got, list(range(len(got))))

    def test_told_in_the_stream(self):
        """Events go on after the loss: the message after it says so, and every event keeps its
        number."""
        with Bridge("--ring-low", PAGE) as bridge, Subscriber(bridge, raw=True) as sub:
            sub.wait_status()
            with FakeNode("burst", BURST, "--rate", 20000, "--wait") as node:
                while node.process.poll() is None:
                    bridge.send(signal.SIGSTOP)
                    time.sleep(0.02)
                    bridge.send(signal.SIGCONT)
                    time.sleep(0.03)
                fired = node.finish()
            sub.wait_ledger(fired)
            self.check_account(sub, fired)
            self.check_stream(sub)
            self.check_counters(sub, fired)
            self.check_places(sub)
            inside = [body for _, topic, body in sub.messages
                      if topic == "mempool.removed" and body.get("lost") and body["events"]]
            self.assertGreater(len(inside), 3)
            for body in inside:
                first = int.from_bytes(body["events"][0]["txid"][24:], "big")
                self.assertEqual(first + 1, body["seq"] + body["lost"])

    def test_four_threads_with_losses_between(self):
        with Bridge("--ring-low", PAGE) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            with FakeNode("burst", 200000, "--threads", 4, "--wait") as node:
                fired = node.finish()
            sub.wait_ledger(fired)
            self.check_account(sub, fired)
            self.check_stream(sub)
            self.check_counters(sub, fired)
            self.assertGreater(sub.lost["mempool.removed"], 0)
            last = [-1] * 4
            for event in sub.of("mempool.removed"):
                thread, i = thread_of(event), index_of(event)
                self.assertGreater(i, last[thread])
                last[thread] = i

    def test_two_topics_of_one_ring(self):
        """On the high socket: each topic tells its own loss."""
        with Bridge("--ring-high", PAGE) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            fired, _ = self.stopped_burst(sub, bridge, "--probe", "utxo")
            self.assertEqual(fired, {"utxocache.spent": BURST // 2, "utxocache.add": BURST // 2})
            sub.wait_ledger(fired, 10)
            self.check_account(sub, fired)
            self.check_stream(sub)
            self.check_counters(sub, fired)
            self.assertEqual(set(sub.lost), set(fired))
            self.assertEqual({name for name, *_ in sub.losses}, {"high"})

    def test_a_flood_costs_the_other_socket_nothing(self):
        with Bridge("--ring-high", PAGE) as bridge, \
                Subscriber(bridge, keep=False) as sub:
            sub.wait_status()
            with FakeNode("burst", 50000, "--flood", 2, "--wait") as node:
                fired = node.finish()
            sub.wait_ledger(fired, 60)
            self.check_account(sub, fired)
            self.check_stream(sub)
            self.assertGreater(sub.lost["utxocache.add"], 0)
            self.assertNotIn("mempool.removed", sub.lost)

    def test_ring_space(self):
        """A removal takes at most 160 bytes of the ring."""
        size = 1 << 20
        with Bridge("--ring-low", size) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            fired, _ = self.stopped_burst(sub, bridge)
            sub.wait_ledger(fired, 10)
            self.check_account(sub, fired)
            received = sub.count["mempool.removed"]
            self.assertGreater(sub.lost["mempool.removed"], 0)
            self.assertLessEqual(size / received, 160)

    def test_loss_told_at_the_end(self):
        """A loss that no status has told yet is told by the orderly end."""
        with Bridge("--ring-low", PAGE) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            fired, _ = self.stopped_burst(sub, bridge)
            self.assertEqual(bridge.stop(), 0)
            wait_until(lambda: len(sub.stopped) == 2, what="bridge.stopping")
            self.check_account(sub, fired)
            self.check_stream(sub)
            low = next(s for s in sub.stopped if s["socket"] == "low")
            self.assertEqual(low["counters"]["mempool.removed"]["lost"],
                             sub.lost["mempool.removed"])

    def test_nothing_is_lost_without_need(self):
        """The default ring holds what arrives while the bridge is stopped."""
        with Bridge() as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            fired, _ = self.stopped_burst(sub, bridge, count=300000)
            sub.wait_ledger(fired, 30)
            self.check_account(sub, fired)
            self.check_stream(sub)
            self.assertEqual(sub.lost, {})
            self.check_places(sub)


if __name__ == "__main__":
    main()
