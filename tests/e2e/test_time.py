"""time_us is the wall clock at the firing."""
import os
import signal
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import Bridge, FakeNode, Subscriber, TestCase, compile_inject, inject_env, main, wait_until

ACCURACY_US = 5000


def now_us():
    return time.time_ns() // 1000


class Time(TestCase):
    def check_between(self, *args):
        """Not before the test let the node fire, and not after it had."""
        with Bridge(*args) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            with FakeNode("burst", 1000, "--probe", "utxo", "--wait-signal", "--hold") as node:
                time.sleep(1)
                before = now_us()
                node.go()
                sub.wait_count("utxocache.add", 500)
                after = now_us()
                node.stop()
            times = [e["time_us"] for e in sorted(sub.of("utxocache.add") + sub.of("utxocache.spent"),
                                                  key=lambda e: e.n)]
            self.assertEqual(len(times), 1000)
            self.assertEqual(times, sorted(times))
            self.assertGreater(times[0], before - ACCURACY_US)
            self.assertLess(times[-1], after + ACCURACY_US)
            return before, times

    def test_tai_clock(self):
        self.check_between()

    def test_boot_clock(self):
        self.check_between("--without", "tai")

    def check_at_the_firing(self, *args):
        """Events that wait in the ring keep the time at which they fired."""
        with Bridge(*args) as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            bridge.send(signal.SIGSTOP)
            before = now_us()
            with FakeNode("burst", 100, "--wait") as node:
                node.finish()
            after = now_us()
            time.sleep(1.5)
            bridge.send(signal.SIGCONT)
            sub.wait_count("mempool.removed", 100)
            for event in sub.of("mempool.removed"):
                self.assertGreater(event["time_us"], before - ACCURACY_US)
                self.assertLess(event["time_us"], after + ACCURACY_US)
                self.assertGreater(event.received * 1e6 - event["time_us"], 1_400_000)

    def test_time_of_the_firing_not_of_the_sending(self):
        self.check_at_the_firing()

    def test_time_of_the_firing_boot_clock(self):
        self.check_at_the_firing("--without", "tai")

    def test_pace(self):
        """100 events at 100 a second: their times are 10 ms apart."""
        for args in ([], ["--without", "tai"]):
            with self.subTest(args=args), Bridge(*args) as bridge, Subscriber(bridge) as sub:
                sub.wait_status()
                before = now_us()
                with FakeNode("burst", 101, "--rate", 100, "--wait") as node:
                    node.finish()
                after = now_us()
                sub.wait_count("mempool.removed", 101)
                times = [e["time_us"] for e in sub.of("mempool.removed")]
                self.assertGreater(times[-1] - times[0], 1_000_000 - ACCURACY_US)
                self.assertLess(times[-1] - times[0], after - before)
                self.assertEqual(times, sorted(times))

    def test_derived_events(self):
        """node.started and node.exited too; a list has the time of its last record."""
        with Bridge() as bridge, Subscriber(bridge) as sub:
            sub.wait_status()
            before = now_us()
            with FakeNode("blocks", 1, 50, "--wait", "--linger", 300) as node:
                node.finish()
            after = now_us()
            wait_until(lambda: sub.of("node.exited"), what="node.exited")
            started, exited = sub.of("node.started")[0], sub.of("node.exited")[0]
            self.assertTrue(before - ACCURACY_US < started["time_us"] < after)
            self.assertLess(abs(exited["time_us"] - after), 5_000_000)
            self.assertEqual(sub.of("block.evictions")[-1]["time_us"],
                             sub.of("mempool.removed")[-1]["time_us"])

    def test_clock_is_stepped(self):
        """By an hour, both ways: times follow within a second or two, numbers never go back."""
        with tempfile.TemporaryDirectory() as directory:
            clock, shim = os.path.join(directory, "clock"), compile_inject(directory)
            with open(clock, "w") as f:
                f.write("0    ")
            with Bridge("--without", "tai", env=inject_env(shim, INJECT_CLOCK=clock)) as bridge, \
                    Subscriber(bridge) as sub:
                sub.wait_status()
                with FakeNode("burst", 10 ** 9, "--rate", 1000, "--wait") as node:
                    for step in (0, 3600, -3600, 0):
                        with open(clock, "r+") as f:
                            f.write(f"{step:<5}")

                        def follows():
                            events = sub.of("mempool.removed")
                            return events and abs(events[-1]["time_us"] - now_us() - step * 1e6) < 2e6
                        wait_until(follows, 20, f"{step} s")
                    fired = node.stop()
                sub.wait_ledger(fired)
                bridge.stop()
                wait_until(lambda: len(sub.stopped) == 2, what="bridge.stopping")
            self.check_account(sub, fired)
            self.check_stream(sub)
            self.assertEqual(len(sub.runs), 1)

    def test_status(self):
        """Every second, and with the time at which it was made."""
        with Bridge() as bridge, Subscriber(bridge, sockets=("low",)) as sub:
            sub.wait_status()
            count = len(sub.statuses)
            wait_until(lambda: len(sub.statuses) >= count + 4, 6, "four more statuses")
            times = [s["time_us"] for s in sub.statuses[-4:]]
            for earlier, later in zip(times, times[1:]):
                self.assertAlmostEqual(later - earlier, 1_000_000, delta=900_000)
            self.assertLess(abs(times[-1] - now_us()), 5_000_000)


if __name__ == "__main__":
    main()
