"""Fuzz targets for what is Python: each function takes an input and raises what must never happen.
python.c calls them under the fuzzer; `targets.py NAME FILE...` runs inputs alone."""
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.join(ROOT, *path) for path in (
    ("clients", "python"), ("clients", "alerts"), ("tests", "conformance"))]
import msgpack
import verdict
import zmq
from coretap import ReplacementHistory, keys, mempool, replay
from coretap.events import Gap, Lost, NewRun
from coretap.p2p import Origins
from coretap.position import Position
from coretap.recording import recorded
from coretap.stream import Filter, Stream
from coretap.wire import STATUS, STOPPING, topic_name
from coretap_alerts import rules as alert_rules
from coretap_alerts.alerter import Alerter
from coretap_alerts.document import RuleError
from coretap_alerts.state import State

TOPICS = [e["topic"] for e in json.load(open(os.path.join(ROOT, "protocol", "events.json")))["events"]] + \
    [STATUS, STOPPING, "mine.own", "", "a b"]
FILTERS = [Filter(names) for names in (["mempool.removed"], ["mempool.", STATUS, "block.evictions"], [""])]

try:
    from c_decoder import told as c_told  # of the program that embeds us
except ImportError:
    def c_told(topic, body):
        """Asks the process whose pipes are our standard input and output."""
        print(topic, body.hex(), flush=True)
        return sys.stdin.readline()[:-1]


class Input:
    """What is left of the input. At its end every number is 0."""

    def __init__(self, data):
        self.left = data

    def number(self, size):
        return int.from_bytes(self.block(size), "little")

    def block(self, size):
        data, self.left = self.left[:size], self.left[size:]
        return data


mempool.Subscriber = lambda *_, **__: None  # what comes is handed to the mirror here
RULES = alert_rules.load(os.path.join(HERE, "corpus", "python_rules", "seed-watch"))
STATE = State(":memory:")


class Account:
    """Each firing of a topic is told once, as an event, a loss or a gap, in order. What the package makes
    of them bears everything as well."""

    def __init__(self):
        self.next = {}
        self.mirror = mempool.Mempool(lambda *_: [])
        for table in STATE.tables.values():
            table.clear()
        STATE.alerts.clear()
        self.fed = [self.mirror._apply, ReplacementHistory().feed, Origins().feed, Alerter(RULES, STATE).feed]

    def tell(self, item):
        json.loads(item.json())
        for feed in self.fed:
            feed(item)
        self.mirror.histogram()
        for _, alert in STATE.alerts:
            json.loads(alert)
        STATE.alerts.clear()
        if isinstance(item, NewRun):
            assert item.old_run < item.run
            self.next = {place: n for place, n in self.next.items() if place[0] != item.node}
        elif item.kind == "event" or isinstance(item, (Gap, Lost)):
            first, last = (item.seq, item.seq) if item.kind == "event" else (item.first, item.last)
            place = item.node, item.topic
            assert 0 < first <= last and self.next.get(place, first) == first, (place, first, last, self.next)
            self.next[place] = last + 1


class Clock:
    now = 0.0

    def monotonic(self):
        return self.now


class Answers:
    """In the place of replay's ROUTER, and of the DEALER that is connected to it. Two bytes before a
    frame: its length; the highest bits: others follow, nothing yet, the connection broke."""

    def __init__(self, input):
        self.input = input

    def send(self, request, flags):
        assert len(request) <= 4096 and type(msgpack.unpackb(request)) is dict

    def recv_multipart(self, flags):
        frames = []
        while True:
            head = self.input.number(2)
            if not frames and (head & 0x6000 or not self.input.left):
                raise zmq.Again
            frames.append(self.input.block(head & 0x1fff))
            if not head & 0x8000:
                return frames

    def close(self):
        pass


class Replay(replay.Replay):
    def __init__(self, input):
        super().__init__(None, "")
        self.answers = Answers(input)

    def _open(self):
        self.socket = self.answers
        return self.socket


def saved(name, nodes):
    """The nodes as one finds them who was killed and began again."""
    position = Position()
    position.save(name, nodes)
    return Position(position.dump()).nodes(name)


def take(stream, frames, account, clock, most=-1):
    """What is in hand when it ends after so many items was not taken yet, and told again. Returns
    whether it did so."""
    hand = None
    for item in stream.take(frames):
        if item is None:
            clock.now = max(clock.now, stream.replay.wake_at)
            continue
        if hand:
            account.tell(hand)
        hand = item
        if not most:
            return True
        most -= 1
    if hand:
        account.tell(hand)
    return False


def subscriber(data):
    """Messages on a PUB socket and answers of replay; the input is that of fuzz_subscriber.c. Of each
    message the C decoder must say the same."""
    input, account, clock = Input(data), Account(), Clock()
    replay.time = clock
    flags = input.number(1)
    name, wanted = "high" if flags & 4 else "low", FILTERS[flags % 3]
    stream = Stream(name, wanted, None if flags & 16 else Replay(input), 5 if flags & 8 else None, flags % 3 == 2)
    while input.left:
        topic = TOPICS[input.number(1) % len(TOPICS)]
        body = input.block(input.number(2))
        if topic_name(topic.encode()):
            c, python = c_told(topic, body), verdict.told(topic, body)
            assert verdict.agree(c, python, body), f"{topic} {body.hex()}\n  C:    {c}\n  this: {python}"
        frames = [topic.encode(), body]
        if take(stream, frames, account, clock, flags >> 5 & 3 if flags & 128 else -1):
            stream.nodes = saved(name, stream.nodes)
            take(stream, frames, account, clock)
    again = saved(name, stream.nodes)
    for label, node in stream.nodes.items():
        assert {t: (k.next, k.at) for t, k in node.topics.items()} == \
            {t: (k.next, k.at) for t, k in again[label].topics.items()}
    for (label, topic), following in account.next.items():
        assert stream.nodes[label].topics[topic].next == following


def file_of(data):
    """The input as a file that has a path."""
    fd = os.memfd_create("fuzz")
    os.write(fd, data)
    return fd, f"/proc/self/fd/{fd}"


def recording(data):
    fd, path = file_of(data)
    try:
        for received_us, item in recorded(path):
            assert received_us >= 0
            json.loads(item.json())
    except ValueError as error:
        assert str(error).endswith("not a recording of `coretap record`"), error
    finally:
        os.close(fd)


def position(data):
    """Whatever is taken as a position must be one with which a stream can go on."""
    try:
        place = Position(data.decode())
    except ValueError:
        return
    assert Position(place.dump()).dump() == place.dump()
    for name in ("low", "high"):
        stream = Stream(name, FILTERS[2], Replay(Input(b"")))
        stream.nodes = place.nodes(name)
        replay.time = clock = Clock()
        for topic, body in GOLDEN:
            for item in stream.take([topic.encode(), body]):
                if item is None:
                    clock.now = max(clock.now, stream.replay.wake_at)
                else:
                    json.loads(item.json())
        saved(name, stream.nodes)


def golden():
    directory = os.path.join(ROOT, "protocol", "golden")
    for name in sorted(os.listdir(directory)):
        if name.endswith(".hex"):
            yield name[:-4], bytes.fromhex("".join(open(os.path.join(directory, name)).read().split()))


GOLDEN = list(golden())


def no_file(path, *mode):
    raise FileNotFoundError(2, "No such file or directory", path)


def rules(data):
    """A rules file; what is told of golden events then are alerts that a program can read."""
    alert_rules.open = keys.open = no_file  # what a rules file names is not to be touched here
    fd, path = file_of(data)
    try:
        loaded = alert_rules.load(path)
    except RuleError as error:
        assert str(error).startswith(path)
        return
    finally:
        os.close(fd)
    state = State(":memory:")
    alerter = Alerter(loaded, state, clock=lambda: 1700000000)
    alerter.reload()
    stream = Stream("low", Filter(loaded.topics()), None)
    for topic, body in GOLDEN:
        for item in stream.take([topic.encode(), body]):
            # Golden events share their position, so it is those of one event that must differ.
            before = len(state.alerts)
            alerter.feed(item)
            ids = [(webhook, json.loads(alert)["id"]) for webhook, alert in state.alerts[before:]]
            assert len(ids) == len(set(ids)), ids
    state.close()


if __name__ == "__main__":
    for file in sys.argv[2:]:
        print(file, file=sys.stderr)
        globals()[sys.argv[1]](open(file, "rb").read())
