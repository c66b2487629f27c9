"""A reference subscriber that is complete: what the live stream lacks it fetches from replay.

Written from protocol/README.md alone, with plain pyzmq and msgpack, for two readers: the tests, as
an independent witness, and whoever writes a client. The whole logic stands in Stream:

* each topic has a next number; a message below it is a duplicate, one above it shows a gap;
* who subscribes to all topics also looks at positions: one that is skipped shows a gap in a topic
  whose next message is still to come, and filling it now keeps the order between topics. Who does not
  finds such a gap only with that topic's next message or status. Then the position up to which all is
  known to be there lies further back: it only moves with status and replay, never with a message;
* before a message beyond a gap is taken, everything after that position is fetched from replay, page
  by page. Live messages wait in the socket's queue meanwhile; those that replay brought as well are
  duplicates by then;
* bridge.status tells the numbers that were sent before it: a lost tail needs no further message;
* a greater run ends the old one: first its tail is fetched, then the new run from its beginning;
* what replay no longer has is told as exact ranges, never skipped silently.
"""
import argparse
import json
import signal
import sys
import threading
import time

import msgpack
import zmq


class Refused(Exception):
    """The bridge answered, and said why it cannot serve this."""


class Ended(Exception):
    """The subscriber was told to stop while it waited for an answer."""


class Replay:
    """The replay socket. A question without an answer is asked again from a new socket: the bridge
    may have been killed with the question, or be starting just now."""

    def __init__(self, context, address, timeout_ms=200):
        self.context, self.address, self.timeout_ms = context, address, timeout_ms
        self.socket, self.id, self.ending = None, 0, False

    def ask(self, **request):
        """Returns the answer's map and its messages as (topic, body)."""
        self.id += 1
        question = msgpack.packb({"v": 1, "id": self.id, **request})
        while not self.ending:
            if not self.socket:
                self.socket = self.context.socket(zmq.REQ)
                self.socket.setsockopt(zmq.LINGER, 0)
                self.socket.connect(self.address)
            self.socket.send(question)
            if self.socket.poll(self.timeout_ms):
                header, *parts = self.socket.recv_multipart()
                header = msgpack.unpackb(header)
                if "error" in header:
                    raise Refused(header["error"])
                return header, [(topic.decode(), body)
                                for topic, body in zip(parts[::2], parts[1::2])]
            self.close()
        raise Ended

    def close(self):
        if self.socket:
            self.socket.close()
        self.socket = None


class Stream:
    """One of the two sockets: its run, its position, and the next number of each topic."""

    def __init__(self, subscriber, name):
        self.subscriber, self.name = subscriber, name
        self.run, self.next, self.from_start = None, {}, False
        self.n = 0  # up to here nothing is missing: the position to save
        self.topics = set()  # that this socket carries, as status names them

    def wanted(self, topic):
        return not self.subscriber.topics or topic.startswith(self.subscriber.topics)

    def begin(self, run, n=0, heads=None, from_start=False):
        """from_start: topics without a number yet begin with 1, else with what comes first."""
        self.run, self.n, self.from_start = run, n, from_start
        self.next = {topic: head + 1 for topic, head in (heads or {}).items()}

    def take(self, topic, message):
        """One message of this run, live or from replay, that no known gap precedes."""
        seq, lost, events = message["seq"], message.get("lost", 0), message["events"]
        expected = self.next.get(topic, 1 if self.from_start else seq)
        if seq < expected:
            if seq + lost + len(events) > expected:
                self.subscriber.errors.append(f"{topic}: {seq} was cut anew, next is {expected}")
            return
        self.gone(topic, expected, seq - 1)
        self.next[topic] = seq + lost + len(events)
        if not self.subscriber.topics:
            if message["n"] != self.n + 1:
                self.subscriber.skipped.append((self.run, self.name, self.n + 1, message["n"] - 1))
            self.n = message["n"] + len(events) - 1
        self.subscriber.deliver(self.name, topic, message)

    def gone(self, topic, first, last):
        if first <= last:
            self.next[topic] = last + 1
            self.subscriber.gone.append((self.run, topic, first, last))

    def fill(self, **since):
        """Everything that replay has of this run after the last position (or since a time)."""
        where = since or {"run": self.run, "after": self.n}
        while where:
            try:
                header, messages = self.subscriber.replay.ask(
                    op="replay", socket=self.name, topics=list(self.subscriber.topics), **where)
            except Refused as why:
                self.subscriber.refused.append(str(why))
                return
            self.subscriber.pages += 1
            if since:
                self.begin(header["run"])
                since = None
            for topic, body in messages:
                self.take(topic, msgpack.unpackb(body))
            self.n = max(self.n, header["head"] if header["next"] is None else header["next"])
            where = header["next"] and {"run": self.run, "after": self.n}

    def tell(self, heads):
        """All that replay has was taken: what is missing up to these numbers is gone."""
        for topic, head in heads.items():
            if self.wanted(topic) and topic in self.topics:
                self.gone(topic, self.next.get(topic, 1 if self.from_start else head + 1), head)

    def change(self, run):
        """The rest of the old run, then each run that came and went meanwhile, whole."""
        self.fill()
        runs = {entry["run"]: entry for entry in self.subscriber.replay.ask(op="hello")[0]["runs"]}
        if self.run not in runs:
            self.subscriber.unknown.append((self.run, self.name))
        for number in sorted(r for r in runs if self.run <= r < run):
            if number > self.run:
                self.begin(number, from_start=True)
                self.fill()
            self.tell(runs[number]["topics"])
        self.begin(run, from_start=True)

    def message(self, topic, message):
        """A live message."""
        if self.run is None or message["run"] < self.run:
            return  # not joined yet; or of the past
        if message["run"] > self.run:
            self.change(message["run"])
        expected = self.next.get(topic, 1 if self.from_start else message["seq"])
        if message["seq"] > expected or (not self.subscriber.topics and message["n"] > self.n + 1):
            self.fill()
        self.take(topic, message)

    def status(self, status):
        self.topics = set(status["heads"])
        heads = {topic: head for topic, head in status["heads"].items() if self.wanted(topic)}
        if self.run is None:
            self.begin(status["run"], status["n"], heads)
        if status["run"] < self.run:
            return
        if status["run"] > self.run:
            self.change(status["run"])
        if any(self.next.get(topic, 1 if self.from_start else head + 1) <= head
               for topic, head in heads.items()):
            self.fill()
            self.tell(heads)
        self.n = max(self.n, status["n"])


class CompleteSubscriber:
    """Reads both sockets in a thread. deliver(socket, topic, message) may be replaced; it is called
    once for each message, in order. Where to begin: the first status, or since (Unix microseconds),
    or start = {socket: (run, n)}."""

    def __init__(self, port, topics=(), sockets=("low", "high"), deliver=None, since=None, start=None,
                 hwm=0, address="tcp://127.0.0.1:{}", reconnect_ms=20):
        self.topics = tuple(topics)
        self.count, self.lost = {}, {}
        self.gone = []       # (run, topic, first, last): numbers that nobody has any more
        self.skipped = []    # (run, socket, first, last): positions, where all topics are wanted
        self.unknown = []    # (run, socket): nobody knows where that run ended
        self.refused, self.errors, self.pages, self.statuses = [], [], 0, []
        self.deliver = deliver or self.tally
        self.context = zmq.Context()
        self.replay = Replay(self.context, address.format(port + 2))
        self.streams = {name: Stream(self, name) for name in sockets}
        self.sockets, self.since = {}, since
        for name, (run, n) in (start or {}).items():
            self.streams[name].begin(run, n)
        for offset, name in enumerate(("low", "high")):
            if name in sockets:
                s = self.context.socket(zmq.SUB)
                s.setsockopt(zmq.RCVHWM, hwm)
                s.setsockopt(zmq.LINGER, 0)
                s.setsockopt(zmq.RECONNECT_IVL, reconnect_ms)
                for topic in (*(topics or ("",)), "bridge."):
                    s.subscribe(topic.encode())
                s.connect(address.format(port + offset))
                self.sockets[s] = self.streams[name]
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()

    def tally(self, _socket, topic, message):
        self.count[topic] = self.count.get(topic, 0) + len(message["events"])
        self.lost[topic] = self.lost.get(topic, 0) + message.get("lost", 0)

    def work(self):
        poller = zmq.Poller()
        for s in self.sockets:
            poller.register(s, zmq.POLLIN)
        try:
            for stream in self.streams.values():
                if self.since is not None:
                    stream.fill(since=self.since)
            while not self.replay.ending:
                for s, _ in poller.poll(50):
                    for _ in range(100):  # then the other socket
                        if not s.poll(0):
                            break
                        topic, body = s.recv_multipart()[:2]
                        self.read(self.sockets[s], topic.decode(), msgpack.unpackb(body))
        except Ended:
            pass
        except Exception as error:  # a thread's exception would go unseen
            self.errors.append(repr(error))
        for s in (*self.sockets, self.replay):
            s.close()
        self.context.term()

    def read(self, stream, topic, body):
        if topic in ("bridge.status", "bridge.stopping"):
            stream.status(body)
            self.statuses.append((time.monotonic(), body))
        else:
            stream.message(topic, body)

    def joined(self):
        return all(stream.run is not None for stream in self.streams.values()) or bool(self.errors)

    def close(self):
        self.replay.ending = True
        self.thread.join()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def main():
    """A subscriber as a process: a line "joined", then a JSON account of all that statuses vouch for which were
    made after SIGTERM, or once --until firings of the topics are accounted for. --burst: fake_node's burst, whose hashes carry
    the index of the firing; each must be the one that its number says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("topics", nargs="*")
    parser.add_argument("--hwm", type=int, default=0)
    parser.add_argument("--until", type=int)
    parser.add_argument("--burst", action="store_true")
    args = parser.parse_args()
    stop, wrong = [], []
    # No Event: its lock may be held by what the signal interrupts.
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))

    def deliver(socket_name, topic, message):
        subscriber.tally(socket_name, topic, message)
        if args.burst and "txid" in (message["events"] or [{}])[0]:
            first = message["seq"] + message.get("lost", 0) - 1
            indices = [int.from_bytes(e["txid"][24:], "big") for e in message["events"]]
            if indices != list(range(first, first + len(indices))):
                wrong.append((topic, first, indices[0]))

    subscriber = CompleteSubscriber(args.port, args.topics, deliver=deliver, hwm=args.hwm)
    told = False
    while not stop and not subscriber.errors:
        if not told and subscriber.joined():
            print("joined", flush=True)
            told = True
        have = sum(subscriber.count.values()) + sum(subscriber.lost.values()) + \
            sum(last - first + 1 for _, _, first, last in subscriber.gone)
        if args.until and have >= args.until:
            break
        time.sleep(0.05)
    asked, end = time.time() * 1e6, time.monotonic() + 60
    while stop and not subscriber.errors and time.monotonic() < end and \
            {s["socket"] for _, s in list(subscriber.statuses) if s["time_us"] > asked} < set(subscriber.streams):
        time.sleep(0.05)
    subscriber.close()
    print(json.dumps({"count": subscriber.count, "lost": subscriber.lost, "gone": subscriber.gone,
                      "skipped": subscriber.skipped, "unknown": subscriber.unknown,
                      "errors": subscriber.errors, "wrong": wrong, "pages": subscriber.pages}))
    sys.exit(0)


if __name__ == "__main__":
    main()
