"""Doing nothing costs nothing, and the first event after silence is not late for it. Time is
measured here, so everything runs plain, not sanitized."""
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import Bridge, FakeNode, Subscriber, TestCase, main, wait_until

TICKS = os.sysconf("SC_CLK_TCK")


def switches(pid):
    """How often all threads of a process went to sleep so far."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/status") as f:
            for line in f:
                if line.startswith("voluntary_ctxt_switches"):
                    total += int(line.split()[1])
    return total


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


class Idle(TestCase):
    def measure(self, bridge, seconds=5):
        time.sleep(1)
        woken, cpu = switches(bridge.pid), cpu_seconds(bridge.pid)
        time.sleep(seconds)
        return (switches(bridge.pid) - woken) / seconds, (cpu_seconds(bridge.pid) - cpu) / seconds

    def check_idle(self, bridge):
        woken, cpu = self.measure(bridge)
        self.assertLess(woken, 20, "wakeups a second")
        self.assertLessEqual(cpu, 0.02, "CPU seconds a second")

    def test_no_node(self):
        with Bridge(sanitized=False) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            self.check_idle(bridge)

    def test_open_list(self):
        """A list that may go on for ever does not keep the bridge awake once it was told early."""
        with Bridge(sanitized=False) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            with FakeNode("blocks", 1, 10, "--unseen", 1, "--wait", "--hold") as node:
                wait_until(lambda: sub.of("block.evictions"), what="the early list")
                self.check_idle(bridge)
                node.stop()

    def test_after_node_exited(self):
        with Bridge(sanitized=False) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            with FakeNode("burst", 1000, "--wait", "--linger", 300) as node:
                node.finish()
            wait_until(lambda: sub.of("node.exited"), what="node.exited")
            self.check_idle(bridge)


class Wakeups(TestCase):
    def test_of_a_burst(self):
        """The traced thread pays for each time that the reader is woken: in a burst that is seldom."""
        count = 200000
        with Bridge(sanitized=False) as bridge, Subscriber(bridge, keep=False) as sub:
            sub.wait_status()
            before = switches(bridge.pid)
            with FakeNode("burst", count, "--wait") as node:
                self.assertEqual(node.finish(), {"mempool.removed": count})
            sub.wait_count("mempool.removed", count)
            self.assertEqual(sub.lost, {})
            self.assertLess(switches(bridge.pid) - before, count // 10)


class Latency(TestCase):
    def delays(self, sub, topic, first):
        """From the firing to the subscriber, in ms; the first message after silence only."""
        return [(e.received * 1e6 - e["time_us"]) / 1000 for e in sub.of(topic)[first:]]

    def check_first_after_silence(self, probe, topic):
        """Single events, each after 3 s of silence."""
        tries = 3
        with Bridge(sanitized=False) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            delays = []
            for _ in range(tries):
                before = sub.count.get(topic, 0)
                with FakeNode("burst", 1, "--probe", probe, "--wait", "--start-delay", 3000,
                              "--linger", 200) as node:
                    node.finish()
                sub.wait_count(topic, before + 1)
                delays += self.delays(sub, topic, before)
            self.assertEqual(len(delays), tries)
            self.assertLess(statistics.median(delays), 500, "it waits for the next second")
            self.assertGreater(min(delays), -1, delays)

    def test_first_on_low(self):
        self.check_first_after_silence("removed", "mempool.removed")

    def test_first_on_high(self):
        self.check_first_after_silence("message", "net.inbound_message")

    def test_low_while_high_is_saturated(self):
        with Bridge(sanitized=False) as bridge, \
                Subscriber(bridge, topics=("mempool.",), sockets=("low",)) as sub, \
                Subscriber(bridge, topics=("utxocache.",), sockets=("high",), keep=False) as flood:
            sub.wait_status()
            flood.wait_status()
            with FakeNode("burst", 300, "--rate", 100, "--flood", 1, "--wait") as node:
                fired = node.finish()
            sub.wait_count("mempool.removed", 300)
            self.assertGreater(fired["utxocache.add"], 100_000)  # a quiet machine's are 1,700,000
            delays = self.delays(sub, "mempool.removed", 0)
            self.assertEqual(len(delays), 300)
            self.assertLess(statistics.median(delays), 1000, "it waits for the flood")


if __name__ == "__main__":
    main()
