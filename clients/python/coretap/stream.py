"""One socket's stream: what is expected next of each topic, and how what is missing is fetched.

Knows neither sockets nor clocks. Stream.take() gives the events and notices of a message one by one;
in between it yields None while it waits for an answer from replay. What it keeps in its nodes is at
any moment what the application has taken: an event is counted when the next one is asked for.
"""
from typing import Any, Dict, Generator, List, Optional, Sequence, Tuple

from . import events as ev
from .catalogue import CATALOGUE
from .replay import Replay
from .wire import (STATUS, STOPPING, Message, StatusBody, WireError, decode_message, decode_status,
                   topic_name)

# A publisher that invents labels or topics must not make this process grow.
MAX_NODES = 16
MAX_TOPICS = 1024

Steps = Generator[Optional[ev.Item], None, Any]


class Filter:
    """Topics, and prefixes that end with a dot or are empty."""

    def __init__(self, names: Sequence[str]) -> None:
        for name in names:
            if name and (not topic_name(name.encode("ascii", "replace")) or name[0] == "." or
                         "." not in name):
                raise ValueError(f'{name}: not a topic; give "mempool.removed", "mempool." or ""')
        self.names = tuple(dict.fromkeys(names))
        self._exact = {n for n in names if n and not n.endswith(".")}
        self._prefixes = tuple(n for n in names if not n or n.endswith("."))
        self.wants_status = STATUS in self._exact or "bridge." in self._prefixes

    def matches(self, topic: str) -> bool:
        return topic in self._exact or any(len(topic) > len(p) and topic.startswith(p)
                                           for p in self._prefixes)

    def sockets(self) -> List[str]:
        """Those that can carry what is asked for; both for a topic that the catalogue lacks."""
        needed = set()
        for name in self.names:
            known = {cls.socket for topic, (cls, _) in CATALOGUE.items()
                     if topic == name or (not name or name.endswith(".")) and topic.startswith(name)}
            needed |= known or {"low", "high"}
        return [socket for socket in ("low", "high") if socket in needed]


class Node:
    """What is known of one label: the cursor of a subscriber."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.run = 0
        self.n = 0  # everything up to this position was taken or told as missing
        self.next: Dict[str, int] = {}  # by topic: number of the next firing
        self.whole = False  # seen from the run's start: what is not in next begins at 1
        self.told_old_run = 0
        self.resumed = False  # from a position: a message may have been taken in part

    def begin(self, run: int) -> None:
        self.run, self.n, self.next, self.whole = run, 0, {}, True
        self.resumed = False

    def expected(self, topic: str) -> int:
        """0: not known, the first message tells."""
        return self.next.get(topic, 1 if self.whole else 0)


class Stream:
    def __init__(self, socket: str, topics: Filter, replay: Optional[Replay],
                 since_us: Optional[int] = None) -> None:
        self.socket = socket
        self.filter = topics
        self.replay = replay
        self.since_us = since_us
        self.nodes: Dict[str, Node] = {}
        self.last: Optional[Node] = None  # of the last good message

    # ---- what comes from the socket ----

    def take(self, frames: Sequence[bytes]) -> Steps:
        topic = topic_name(frames[0])
        try:
            if not topic:
                raise WireError("topic: not a topic")
            if len(frames) < 2:
                raise WireError("message of one frame")
            if topic in (STATUS, STOPPING):
                yield from self._status(topic, decode_status(frames[1]))
            elif self.filter.matches(topic):  # libzmq compares prefixes only
                yield from self._message(topic, decode_message(topic, frames[1]))
        except WireError as error:
            yield ev.Malformed(self.socket, topic=topic, reason=str(error))

    def _message(self, topic: str, message: Message) -> Steps:
        node = self._node(message.node)
        if not (yield from self._enter_run(node, message.run)):
            return
        if 0 < node.expected(topic) < message.seq:
            yield from self._fill(node, message.n - 1)
        yield from self._account(node, topic, message)

    def _status(self, topic: str, status: StatusBody) -> Steps:
        if status.socket != self.socket:
            raise WireError(f"socket: this address is not that of the {self.socket} socket")
        node = self._node(status.node)
        if self.replay:
            self.replay.off = status.replay == "off"
        if not (yield from self._enter_run(node, status.run)):
            return
        heads = {name: head for name, head in status.heads.items() if self.filter.matches(name)}
        if len({*heads, *node.next}) > MAX_TOPICS:
            raise WireError("heads: too many topics")
        if any(0 < node.expected(name) <= head for name, head in heads.items()):
            yield from self._fill(node, status.n)
        yield from self._close_tail(node, heads)
        node.n = max(node.n, status.n)
        if topic == STOPPING:
            yield ev.Stopping(self.socket, topic, node.label, run=node.run, time_us=status.time_us)
        elif self.filter.wants_status:
            yield ev.Status(topic, node.label, node.run, 0, status.n, 0, status.time_us, status.body)

    def _node(self, label: str) -> Node:
        node = self.nodes.get(label)
        if not node:
            if len(self.nodes) >= MAX_NODES:
                raise WireError("node: too many labels")
            node = self.nodes[label] = Node(label)
        self.last = node
        return node

    # ---- the one rule ----

    def _account(self, node: Node, topic: str, message: Message) -> Steps:
        """next = seq + lost + number of events. What is missing here is gone."""
        expected, following = node.expected(topic), node.next
        seq, n, skip, told = message.seq, message.n, 0, False
        if seq < expected:
            if not (node.resumed and message.end > expected):
                return  # a duplicate
            skip, told = max(0, expected - seq - message.lost), True
        if topic not in following and len(following) >= MAX_TOPICS:
            raise WireError("topic: too many topics")
        if 0 < expected < seq:
            yield self._range(ev.Gap, node, topic, expected, seq - 1)
            following[topic] = seq
        if message.lost and not told:
            yield self._range(ev.Lost, node, topic, seq, seq + message.lost - 1)
        seq += message.lost
        make = CATALOGUE[topic][0] if topic in CATALOGUE else ev.Event
        label, run, pid = node.label, node.run, message.pid
        following[topic] = seq + skip
        for i, fields in enumerate(message.events[skip:] if skip else message.events, skip):
            yield make(topic, label, run, seq + i, n + i, pid, fields.pop("time_us"), fields)
            following[topic] = seq + i + 1
            node.n = n + i

    def _close_tail(self, node: Node, heads: Dict[str, int]) -> Steps:
        """What was sent and is still missing is gone."""
        for topic, head in heads.items():
            expected = node.expected(topic)
            if 0 < expected <= head:
                yield self._range(ev.Gap, node, topic, expected, head)
            node.next[topic] = max(expected, head + 1)

    def _range(self, kind: Any, node: Node, topic: str, first: int, last: int) -> ev.Notice:
        notice: ev.Notice = kind(self.socket, topic, node.label, run=node.run, first=first, last=last)
        return notice

    # ---- runs ----

    def _enter_run(self, node: Node, run: int) -> Steps:
        """Returns whether a message of this run is to be taken."""
        if not node.run:
            if self.since_us is not None:
                yield from self._begin_since(node)
            node.run = node.run or run
        if run < node.run:
            if node.told_old_run != run:
                node.told_old_run = run
                yield ev.OldRun(self.socket, node=node.label, run=node.run, old_run=run)
            return False
        if run > node.run:
            yield from self._change_run(node, run)
        return True

    def _change_run(self, node: Node, run: int) -> Steps:
        """First the tail of the old run, and what replay holds of runs between."""
        answer = yield from self._ask({"op": "hello"})
        held = _runs(answer[0]) if answer else {}
        for between in (*sorted(r for r in held if node.run < r < run), run):
            if node.run in held:
                yield from self._fill(node, None)
                tail = {t: h for t, h in held[node.run].items() if self.filter.matches(t)}
                yield from self._close_tail(node, tail)
            yield ev.NewRun(self.socket, node=node.label, run=between, old_run=node.run)
            node.begin(between)

    # ---- replay ----

    def _ask(self, request: Dict[str, Any]) -> Generator[None, None, Any]:
        """Returns (header, messages), or None when there is no answer."""
        return (yield from self.replay.ask(request)) if self.replay else None

    def _request(self, **place: int) -> Dict[str, Any]:
        request: Dict[str, Any] = {"op": "replay", "socket": self.socket, **place}
        if len(self.filter.names) <= 64 and "" not in self.filter.names:
            request["topics"] = list(self.filter.names)
        return request

    def _fill(self, node: Node, until: Optional[int]) -> Steps:
        """Takes what replay has after the cursor, up to a position, or to the end of the run."""
        while True:
            after = node.n
            answer = yield from self._ask(self._request(run=node.run, after=after))
            if not answer or not (yield from self._take_answer(node, answer)):
                return
            if answer[0].get("next") is None or node.n == after:
                return
            if until is not None and node.n >= until:
                return

    def _take_answer(self, node: Node, answer: Tuple[Dict[str, Any], Sequence[bytes]]) -> Steps:
        """Returns whether the answer was as it must be."""
        header, frames = answer
        for topic, body in zip(map(topic_name, frames[::2]), frames[1::2]):
            if not self.filter.matches(topic):
                continue
            try:
                message = decode_message(topic, body)
                if message.run != node.run or message.node != node.label:
                    raise WireError("of another node or run than asked for")
                yield from self._account(node, topic, message)
            except WireError as error:
                yield ev.Malformed(self.socket, topic=topic, reason=f"replay: {error}")
                return False
        end = header.get("head") if header.get("next") is None else header["next"]
        if type(end) is int and end >= 0:
            node.n = max(node.n, end)
        return True

    def _begin_since(self, node: Node) -> Steps:
        """Starts in the past instead of now."""
        since_us, self.since_us = self.since_us, None
        answer = yield from self._ask(self._request(since=since_us or 0))
        if not answer or type(answer[0].get("run")) is not int or answer[0]["run"] <= 0:
            return
        node.run = answer[0]["run"]
        if (yield from self._take_answer(node, answer)) and answer[0].get("next") is not None:
            yield from self._fill(node, None)


def _runs(hello: Dict[str, Any]) -> Dict[int, Dict[str, int]]:
    """The heads of the runs that replay holds; nothing of what is not as it should be."""
    runs: Dict[int, Dict[str, int]] = {}
    for entry in hello.get("runs") or ():
        if type(entry) is dict and type(entry.get("run")) is int and len(runs) < 1000:
            topics = entry.get("topics")
            runs[entry["run"]] = {t: h for t, h in topics.items() if type(h) is int and h >= 0} \
                if type(topics) is dict else {}
    return runs
