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

# Bytes of the topics in one request, which may have 4,096. Without them everything is asked for.
MAX_NAMES = 3500

Steps = Generator[Optional[ev.Item], None, Any]


class Filter:
    """Topics, and prefixes that end with a dot or are empty."""

    def __init__(self, names: Sequence[str]) -> None:
        for name in names:
            if not isinstance(name, str) or name and (
                    not topic_name(name.encode("ascii", "replace")) or name[0] == "." or "." not in name):
                raise ValueError(f'{name}: not a topic; give "mempool.removed", "mempool." or ""')
        self.names = tuple(dict.fromkeys(names))
        self._exact = {n for n in names if n and not n.endswith(".")}
        self._prefixes = tuple(n for n in names if not n or n.endswith("."))
        self.single = len({*self.names} - {STATUS}) == 1 and not self._prefixes
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


class Topic:
    __slots__ = ("next", "at")

    def __init__(self, following: int = 0, at: int = 0) -> None:
        self.next = following  # number of the next firing; 0: not known, the first message tells
        self.at = at  # position up to which this topic was accounted for


class Node:
    """What is known of one label: the cursor of a subscriber."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.run = 0
        self.n = -1  # everything up to this position was taken or told as missing; -1: not known
        self.topics: Dict[str, Topic] = {}
        # What was asked for when the run started, if that was seen: of these every topic begins at 1.
        self.whole: Optional[Filter] = None
        self.told_old_run = 0
        self.heard = False  # else it comes from a saved position only
        # Position of a status, or of a saved place: of topics not known yet nothing was taken beyond it.
        self.settled = -1
        self.resumed = False  # from a position: a message may have been taken in part

    def begin(self, run: int, asked: Filter) -> None:
        self.run, self.n, self.topics, self.whole = run, 0, {}, asked
        self.resumed, self.settled = False, -1

    def topic(self, name: str) -> Topic:
        topic = self.topics.get(name)
        if topic is None:
            if len(self.topics) >= MAX_TOPICS:
                raise WireError("topic: too many topics")
            fresh = self.whole is not None and self.whole.matches(name)
            topic = Topic(1, 0) if fresh else Topic(0, max(0, self.n if self.settled < 0 else self.settled))
            self.topics[name] = topic
        return topic


class Stream:
    """entire: all of the socket is received, so that every position counts on and what is missing
    shows at once. Else it shows at the next message of its topic or the next status, and order
    between topics is not kept where something had to be fetched."""

    def __init__(self, socket: str, topics: Filter, replay: Optional[Replay],
                 since_us: Optional[int] = None, entire: bool = True) -> None:
        self.socket = socket
        self.filter = topics
        self.replay = replay
        self.since_us = since_us
        self.entire = entire
        self.nodes: Dict[str, Node] = {}
        self.last: Optional[Node] = None  # of the last good message

    # ---- what comes from the socket ----

    def take(self, frames: Sequence[bytes]) -> Steps:
        topic = topic_name(frames[0])
        wanted = not topic or topic in (STATUS, STOPPING) or self.filter.matches(topic)
        try:
            if not topic:
                raise WireError("topic: not a topic")
            if len(frames) < 2:
                raise WireError("message of one frame")
            if topic in (STATUS, STOPPING):
                yield from self._status(topic, decode_status(frames[1]))
            elif wanted or self.entire:
                yield from self._message(topic, decode_message(topic, frames[1]), wanted)
        except WireError as error:
            if wanted:
                yield ev.Malformed(self.socket, topic=topic, reason=str(error))

    def _message(self, topic: str, message: Message, wanted: bool) -> Steps:
        node = self._node(message.node)
        if self.replay and message.run > node.run > 0:
            self.replay.off = False  # so it was in the run before
        if not (yield from self._enter_run(node, message.run)):
            return
        known = node.topic(topic) if wanted else None
        late = known is not None and 0 < known.next < message.seq
        first = known is not None and not known.next and node.settled >= 0 and message.seq > 1
        if self.entire and (late or 0 <= node.n < message.n - 1):
            # A topic may have been left out for a while, of a position that was kept.
            yield from self._fill(node, max(0, min(node.n, known.at) if known and late else node.n),
                                  message.n - 1)
        elif (late or first) and not self.entire:
            yield from self._fill(node, self._oldest(node), message.n - 1)
        if wanted:
            yield from self._account(node, topic, message)
        node.n = max(node.n, message.n + len(message.events) - 1)

    def _status(self, topic: str, status: StatusBody) -> Steps:
        if status.socket != self.socket:
            raise WireError(f"socket: this address is not that of the {self.socket} socket")
        node = self._node(status.node)
        if self.replay:
            self.replay.off = status.replay == "off"
        if not (yield from self._enter_run(node, status.run)):
            return
        heads = {name: head for name, head in status.heads.items() if self.filter.matches(name)}
        missing = [known.at for known, head in ((node.topic(name), head) for name, head in heads.items())
                   if 0 < known.next <= head or not known.next and head and 0 <= node.settled < status.n]
        if missing:
            after = min(node.n, *missing) if self.entire else min(missing)
            yield from self._fill(node, max(0, after), status.n)
        yield from self._close_tail(node, heads, status.n)
        node.n = node.settled = max(node.n, status.n)
        if topic == STOPPING:
            yield ev.Stopping(self.socket, topic, node.label, run=node.run, time_us=status.time_us)
        elif self.filter.wants_status:
            yield ev.Status(topic, node.label, node.run, 0, status.n, 0, status.time_us, status.body)

    def _node(self, label: str) -> Node:
        node = self.nodes.get(label)
        if not node:
            if len(self.nodes) >= MAX_NODES:
                # Nobody heard of it since its position was saved.
                unheard = next((name for name, known in self.nodes.items() if not known.heard), None)
                if unheard is None:
                    raise WireError("node: too many labels")
                del self.nodes[unheard]
            node = self.nodes[label] = Node(label)
        node.heard, self.last = True, node
        return node

    # ---- the one rule ----

    def _account(self, node: Node, topic: str, message: Message) -> Steps:
        """next = seq + lost + number of events. What is missing here is gone."""
        known, seq, n = node.topic(topic), message.seq, message.n
        skip, told = 0, False
        if seq < known.next:
            if not (node.resumed and message.end > known.next):
                return  # a duplicate
            skip, told = max(0, known.next - seq - message.lost), True
        if 0 < known.next < seq:
            yield self._range(ev.Gap, node, topic, known.next, seq - 1)
            known.next = seq
        if message.lost and not told:
            yield self._range(ev.Lost, node, topic, seq, seq + message.lost - 1)
        seq += message.lost
        known.next = seq + skip
        make = CATALOGUE[topic][0] if topic in CATALOGUE else ev.Event
        label, run, pid = node.label, node.run, message.pid
        for i, fields in enumerate(message.events[skip:] if skip else message.events, skip):
            yield make(topic, label, run, seq + i, n + i, pid, fields.pop("time_us"), fields)
            known.next = seq + i + 1
            if n + i > node.n:
                node.n = n + i
        known.at = n + len(message.events) - 1

    def _close_tail(self, node: Node, heads: Dict[str, int], n: int) -> Steps:
        """What was sent up to position n and is still missing is gone."""
        for topic, head in heads.items():
            known = node.topic(topic)
            if 0 < known.next <= head:
                yield self._range(ev.Gap, node, topic, known.next, head)
            known.next = max(known.next, head + 1)
            known.at = max(known.at, n)

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
        held = _runs(answer[0], node.run) if answer else {}
        for between in (*sorted(r for r in held if node.run < r < run), run):
            if node.run in held:
                yield from self._fill(node, self._oldest(node), None)
                tail = {t: h for t, h in held[node.run].items()
                        if self.filter.matches(t) and self._is_ours(node, t)}
                yield from self._close_tail(node, tail, node.n)
            yield ev.NewRun(self.socket, node=node.label, run=between, old_run=node.run)
            node.begin(between, self.filter)

    def _is_ours(self, node: Node, topic: str) -> bool:
        """Hello tells the heads of both sockets together."""
        known = CATALOGUE.get(topic)
        return topic in node.topics or known is not None and known[0].socket == self.socket

    # ---- replay ----

    def _ask(self, request: Dict[str, Any]) -> Steps:
        """Returns (header, frames), or None when there is no answer that can be used."""
        if not self.replay:
            return None
        answer = yield from self.replay.ask(request)
        if self.replay.malformed:
            yield ev.Malformed(self.socket, reason=f"replay: {self.replay.error}")
        return answer

    def _oldest(self, node: Node) -> int:
        """The position after which something may be missing."""
        known = [t.at for name, t in node.topics.items() if self.filter.matches(name)]
        return max(0, node.n) if self.entire or not known else min(known)

    def _request(self, **place: int) -> Dict[str, Any]:
        request: Dict[str, Any] = {"op": "replay", "socket": self.socket, **place}
        names = self.filter.names
        if len(names) <= 64 and "" not in names and sum(len(n) + 2 for n in names) <= MAX_NAMES:
            request["topics"] = list(names)
        return request

    def _fill(self, node: Node, after: int, until: Optional[int]) -> Steps:
        """Takes what replay has after a position, up to another one, or to the end of the run."""
        while True:
            answer = yield from self._ask(self._request(run=node.run, after=after))
            if not answer or not (yield from self._take_answer(node, answer)):
                return
            following = answer[0].get("next")
            if type(following) is not int or following <= after:
                return
            if until is not None and following >= until:
                return
            after = following

    def _take_answer(self, node: Node, answer: Tuple[Dict[str, Any], Sequence[bytes]]) -> Steps:
        """Returns whether the answer was as it must be."""
        header, frames = answer
        for topic, body in zip(map(topic_name, frames[::2]), frames[1::2]):
            if not self.filter.matches(topic):
                continue
            try:
                message = decode_message(topic, body)
            except WireError as error:
                yield ev.Malformed(self.socket, topic=topic, reason=f"replay: {error}")
                continue  # what follows is good all the same
            if message.run != node.run or message.node != node.label:
                yield ev.Malformed(self.socket, topic=topic,
                                   reason="replay: of another node or run than asked for")
                return False
            try:
                yield from self._account(node, topic, message)
            except WireError as error:
                yield ev.Malformed(self.socket, topic=topic, reason=f"replay: {error}")
        end = header.get("head") if header.get("next") is None else header["next"]
        if type(end) is int and end >= 0:
            node.n = max(node.n, end)
        return True

    def _begin_since(self, node: Node) -> Steps:
        """Starts in the past instead of now."""
        since_us, self.since_us = self.since_us, None
        answer = yield from self._ask(self._request(since=since_us or 0))
        if not answer or type(answer[0].get("run")) is not int or answer[0]["run"] <= 0:
            reason = self.replay.error if self.replay else ""
            yield ev.NoReplay(self.socket, node=node.label, reason=reason or "not asked")
            return
        node.run = answer[0]["run"]
        if (yield from self._take_answer(node, answer)) and answer[0].get("next") is not None:
            yield from self._fill(node, answer[0]["next"], None)


def _runs(hello: Dict[str, Any], oldest: int) -> Dict[int, Dict[str, int]]:
    """The heads of the runs that replay holds, from one on; nothing of what is not as it should be."""
    runs: Dict[int, Dict[str, int]] = {}
    entries = hello.get("runs")
    for entry in entries if type(entries) is list else ():
        if type(entry) is dict and type(entry.get("run")) is int and \
                entry["run"] >= oldest and len(runs) < 1000:
            topics = entry.get("topics")
            runs[entry["run"]] = {t: h for t, h in topics.items()
                                  if type(h) is int and 0 <= h < (1 << 64) - 1} \
                if type(topics) is dict else {}
    return runs
