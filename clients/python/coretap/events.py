"""What a subscriber gets: events, and notices about what it did not get."""
import re
from typing import Any, Dict, Iterator, List, Optional, Tuple, Union

# Control characters, line and paragraph separators, and marks that reorder text on a screen: a
# terminal that shows the JSON never acts on what a peer chose.
_UNSAFE = re.compile('["\\\\\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]')
_SHORT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _escape(match: "re.Match[str]") -> str:
    character = match.group()
    return _SHORT.get(character) or f"\\u{ord(character):04x}"


def to_json(value: Any) -> str:
    """A value as every client prints it: bytes as lowercase hex, None as null, integers exact."""
    if value is None:
        return "null"
    kind = type(value)
    if kind is int:
        return str(value)
    if kind is bytes:
        return f'"{value.hex()}"'
    if kind is str:
        return f'"{_UNSAFE.sub(_escape, value)}"'
    if kind is bool:
        return "true" if value else "false"
    if kind is list:
        return f"[{','.join(map(to_json, value))}]"
    if kind is dict:
        return "{" + ",".join(f"{to_json(k)}:{to_json(v)}" for k, v in value.items()) + "}"
    if kind is float:
        # Not in this version of the contract; what JSON cannot say is null.
        if value != value or value in (float("inf"), float("-inf")):
            return "null"
        return f"{value:.17g}"
    # An extension type of msgpack, or its timestamp.
    return f'"{(value.data if hasattr(value, "data") else value.to_bytes()).hex()}"'


class Event:
    """Something the node did. The fields of its topic are attributes: event.txid, event.vsize.

    A field that could not be read is None. So is one that this event does not have, because the node
    does not pass it or it does not apply: only `"height" in event.fields` tells them apart. Hashes
    are bytes in the order in which RPC prints them: event.txid.hex().
    """

    __slots__ = ("topic", "node", "run", "seq", "n", "pid", "time_us", "fields")

    kind = "event"
    socket = ""  # "low" or "high", set by the class of each topic

    topic: str
    node: str
    run: int
    seq: int
    n: int
    pid: int
    time_us: int
    fields: Dict[str, Any]  # by name, in the order of the catalogue

    def __init__(self, topic: str, node: str, run: int, seq: int, n: int, pid: int, time_us: int,
                 fields: Dict[str, Any]) -> None:
        self.topic = topic
        self.node = node
        self.run = run
        self.seq = seq
        self.n = n
        self.pid = pid
        self.time_us = time_us
        self.fields = fields

    def __getattr__(self, name: str) -> Any:
        if name not in Event.__slots__:  # else copying an empty event would recurse
            try:
                return self.fields[name]
            except KeyError:
                if name in type(self).__annotations__:  # the fields of its topic
                    return None
        raise AttributeError(f"{type(self).__name__} has no {name}")

    def get(self, name: str, default: Any = None) -> Any:
        return self.fields.get(name, default)

    @property
    def time(self) -> float:
        """Unix time of the firing in seconds."""
        return self.time_us / 1e6

    def json(self) -> str:
        """One flat object: topic, node, run, seq, n, pid, time_us, then the fields."""
        text = "".join(f",{to_json(k)}:{to_json(v)}" for k, v in self.fields.items())
        return (f'{{"topic":"{self.topic}","node":"{self.node}","run":{self.run},"seq":{self.seq},'
                f'"n":{self.n},"pid":{self.pid},"time_us":{self.time_us}{text}}}')

    def __repr__(self) -> str:
        fields = ", ".join(f"{k}={v.hex() if isinstance(v, bytes) else v!r:.200}"
                           for k, v in self.fields.items())
        return f"<{self.topic} #{self.seq} {fields}>"


class Status(Event):
    """bridge.status, the bridge's own account once a second; only for those who name the topic."""

    __slots__ = ()
    kind = "status"

    def json(self) -> str:
        text = "".join(f",{to_json(k)}:{to_json(v)}" for k, v in self.fields.items())
        return f'{{"topic":"{self.topic}"{text}}}'


class Notice:
    """Told in the place of what is missing. Without Gap, Lost and NewRun a stream is complete."""

    kind = ""

    def __init__(self, socket: str, topic: str = "", node: str = "", reason: str = "", run: int = 0,
                 old_run: int = 0, time_us: int = 0, first: int = 0, last: int = 0) -> None:
        self.socket = socket
        self.topic = topic
        self.node = node
        self.reason = reason
        self.run = run
        self.old_run = old_run
        self.time_us = time_us
        self.first = first
        self.last = last

    def _parts(self) -> Iterator[Tuple[str, Union[str, int]]]:
        for name, value in vars(self).items():
            if value or name == "socket":
                yield name, value

    def json(self) -> str:
        return "{" + ",".join(f'"{k}":{to_json(v)}' for k, v in
                              (("notice", self.kind), *self._parts())) + "}"

    def __str__(self) -> str:
        return f"{self.socket} socket: {self.kind}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {' '.join(f'{k}={v}' for k, v in self._parts())}>"


class _Range(Notice):
    @property
    def count(self) -> int:
        return self.last - self.first + 1

    def _words(self, what: str) -> str:
        return f"{self.topic}: {self.count} {what}, numbers {self.first} to {self.last}"


class Gap(_Range):
    """Firings first to last of a topic did not arrive, and replay does not have them: gone."""

    kind = "gap"

    def __str__(self) -> str:
        return self._words("did not arrive")


class Lost(_Range):
    """Firings first to last that coretapd itself could not get: the kernel's ring was full."""

    kind = "lost"

    def __str__(self) -> str:
        return self._words("lost in the kernel, its ring was full")


class NewRun(Notice):
    """The numbering began anew: what happened between old_run and run is unknown. All that could be
    had of the old run came before this. Each socket tells its own."""

    kind = "new_run"

    def __str__(self) -> str:
        return (f"{self.socket} socket: coretapd of {self.node} began a new run {self.run} "
                f"(was {self.old_run}); what happened between is unknown")


class OldRun(Notice):
    """A message of a run that has ended was dropped; told once for each old run."""

    kind = "old_run"

    def __str__(self) -> str:
        return f"{self.socket} socket: dropped messages of the old run {self.old_run} of {self.node}"


class Stale(Notice):
    """Nothing came for three seconds: the publisher is dead, stopped, out of reach, or (run = 0)
    never was there. Reconnecting goes on by itself."""

    kind = "stale"

    def __str__(self) -> str:
        if not self.run:
            return f"{self.socket} socket: no coretapd yet, or it knows no key of ours; waiting"
        return f"{self.socket} socket: nothing from coretapd of {self.node} for 3 s; waiting"


class Alive(Notice):
    """Messages come again after Stale or Stopping."""

    kind = "alive"

    def __str__(self) -> str:
        return f"{self.socket} socket: connected"


class Stopping(Notice):
    """coretapd ended in good order."""

    kind = "stopping"

    def __str__(self) -> str:
        return f"{self.socket} socket: coretapd of {self.node} stopped; waiting for it to come back"


class Malformed(Notice):
    """A message that breaks the wire contract was dropped; what it held is told as a gap later."""

    kind = "malformed"

    def __str__(self) -> str:
        of = f" of {self.topic}" if self.topic else ""
        return f"{self.socket} socket: dropped a malformed message{of}: {self.reason}"


class NoReplay(Notice):
    """What `since` asked for could not be had: the stream begins with what comes next."""

    kind = "no_replay"

    def __str__(self) -> str:
        return f"{self.socket} socket: {self.node} has no replay: {to_json(self.reason)[1:-1]}"


Item = Union[Event, Notice]
Hashes = List[Optional[bytes]]
Numbers = List[Optional[int]]
