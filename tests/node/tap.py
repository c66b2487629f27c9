"""A node with coretapd on it and a subscriber that misses nothing from then on."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import Bridge, Subscriber, TestCase, wait_until
from regtest import SCRIPT, Tx


def marker():
    """A transaction that every node rejects, with an id that no other has."""
    return Tx([(os.urandom(32).hex(), 0, 0, ())], [(1000, SCRIPT)])


class Tap:
    def __init__(self, node, *options, **subscription):
        self.node = node
        self.bridge = Bridge("--pid", node.pid, *options, binary=None)
        self.sub = Subscriber(self.bridge, **subscription).wait_status()
        self.marks, self.taken = set(), 0
        self.take(mark=False)

    def mark(self):
        """Returns once every event of the low socket that fired before has arrived. The rejection
        that it causes shows in no list, but it ends an open list of evictions."""
        tx = marker()
        self.marks.add(bytes.fromhex(tx.txid))
        self.node.rpc.testmempoolaccept([tx.hex])
        self.wait(lambda e: e.topic == "mempool.rejected" and e["txid"].hex() == tx.txid)

    def wait(self, condition, seconds=10):
        """Waits for an event after those taken, and returns it."""
        at = self.taken

        def found():
            nonlocal at
            with self.sub.lock:
                new = self.sub.events[at:]
            at += len(new)
            return next((e for e in new if condition(e)), None)
        return wait_until(found, seconds, "event")

    def take(self, *topics, mark=True):
        """Events that arrived since the last call, those of mark() left out."""
        if mark:
            self.mark()
        with self.sub.lock:
            new = self.sub.events[self.taken:]
        self.taken += len(new)
        return [e for e in new if e.get("txid") not in self.marks and
                (not topics or any(e.topic.startswith(t) for t in topics))]

    def chain(self):
        """Events of the mempool and of blocks since the last call, as plain() tells them."""
        return [plain(e) for e in self.take("validation", "mempool", "block")]

    def check(self):
        """Nothing was lost, and the account of the wire is in order."""
        for what in (self.sub.errors, self.sub.gaps, self.sub.n_gaps, self.sub.lost):
            if what:
                raise AssertionError(what)

    def close(self):
        self.check()
        code = self.bridge.stop()
        self.sub.close()
        self.bridge.errors.close()
        if code:
            raise AssertionError(f"coretapd ended with {code}")

    def __enter__(self):
        return self

    def __exit__(self, kind, *rest):
        if kind:
            self.sub.close()
            self.bridge.__exit__(kind, *rest)
        else:
            self.close()


def plain(event):
    """An event as (topic, what identifies it), for exact lists."""
    if event.topic == "validation.block_connected":
        return "block", event["hash"].hex()
    if event.topic == "mempool.removed":
        return event["reason"], event["txid"].hex()
    if event.topic == "block.evictions":
        return "evictions" if event["final"] else "evictions (open)", event["hash"].hex()
    return event.topic.split(".")[-1], event["txid"].hex()


class NodeTestCase(TestCase):
    def check_event(self, event, **expected):
        """All fields of the event, hashes as hexadecimal text, in order; time_us left out."""
        fields = {k: v.hex() if isinstance(v, bytes) else v for k, v in event.items()}
        self.assertEqual(next(iter(fields)), "time_us")
        del fields["time_us"]
        self.assertEqual(fields, expected)
        self.assertEqual(list(fields), list(expected))
