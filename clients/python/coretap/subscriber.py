"""Subscribing: a synchronous iterator over the events and notices of one coretapd."""
import datetime
import math
import os
import re
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Union

import zmq

from . import events as ev
from .keys import Keys, keys_of
from .position import Position, PositionFile
from .replay import Replay
from .stream import Filter, Steps, Stream
from .wire import MAX_LENGTH, STATUS, STOPPING

DEFAULT_ADDRESS = "tcp://127.0.0.1:28370"
STALE = 3.0  # seconds, three status periods
# Silence counts only while someone listens. After this process itself was stopped or busy, what came
# meanwhile gets this long to be handed over.
GRACE = 0.25
_MESSAGE_BYTES = 16 << 10  # no message is larger, unless one event is
_MAX_DIRECTORY = 107 - len("/replay.sock")  # so long an address of a socket may be


def endpoints(address: str) -> Dict[str, str]:
    """tcp://HOST:PORT (PORT is the base port) or ipc:///run/coretap/NAME."""
    tcp = re.fullmatch(r"tcp://(\[[0-9A-Za-z.:%_-]+\]|[0-9A-Za-z][0-9A-Za-z.%_-]*):([0-9]{1,5})", address)
    if tcp and 0 < int(tcp[2]) <= 65533:
        return {name: f"tcp://{tcp[1]}:{int(tcp[2]) + i}"
                for i, name in enumerate(("low", "high", "replay"))}
    if address.startswith("ipc:///"):
        directory = address.rstrip("/")
        if len(os.fsencode(directory[6:])) > _MAX_DIRECTORY:
            raise ValueError(f"{address}: too long for the address of a socket")
        return {name: f"{directory}/{name}.sock" for name in ("low", "high", "replay")}
    raise ValueError(f"{address}: not an address; give tcp://HOST:PORT or ipc:///run/coretap/NAME")


Since = Union[None, float, str, datetime.datetime]
_END: Any = object()


class _Link:
    """One SUB socket with its stream, and whether it is alive."""

    def __init__(self, context: "zmq.Context[Any]", name: str, stream: Stream, endpoint: str,
                 backlog: int, keys: Optional[Keys]) -> None:
        self.name = name
        self.stream = stream
        self.work: Optional[Steps] = None  # what the message in hand still has to tell
        self.stale_at = time.monotonic() + STALE
        self.quiet = False  # Stale or Stopping was the last that was told
        self.graced = False  # this silence was given its grace
        self.context, self.endpoint = context, endpoint
        self.backlog, self.keys = backlog, keys
        self.socket = self._connect()

    def _connect(self) -> "zmq.Socket[Any]":
        socket: "zmq.Socket[Any]" = self.context.socket(zmq.SUB)
        for option, value in (
                (zmq.RCVHWM, self.backlog), (zmq.LINGER, 0), (zmq.IPV6, 1),
                # A restarted coretapd waits 250 ms before its first event: be back by then.
                (zmq.RECONNECT_IVL, 50), (zmq.HANDSHAKE_IVL, 3000),
                # No heartbeats: with them libzmq (4.3.4) may abort the process once the high-water
                # mark was reached (zeromq/libzmq#3937). The status tells silence as well.
                (zmq.TCP_KEEPALIVE, 1), (zmq.TCP_KEEPALIVE_IDLE, 10),
                (zmq.TCP_KEEPALIVE_INTVL, 5), (zmq.TCP_KEEPALIVE_CNT, 3),
                (zmq.MAXMSGSIZE, MAX_LENGTH)):
            socket.setsockopt(option, value)
        if self.keys:
            self.keys.apply(socket, self.endpoint)
        socket.connect(self.endpoint)
        # The status last: a publisher takes subscriptions in order, so when the first status comes,
        # everything after it comes too, and its heads are the place to count from.
        for topic in (*(("",) if self.stream.entire else self.stream.filter.names), STATUS,
                      STOPPING):
            socket.subscribe(topic.encode())
        return socket

    def reconnect(self) -> None:
        """A connection may be dead without an error: after silence, begin with a new one."""
        self.socket.close()
        self.socket = self._connect()

    def receive(self) -> Optional[Steps]:
        try:
            frames: List[bytes] = self.socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None
        self.stale_at = time.monotonic() + STALE
        self.graced = False
        return self._alive_again(frames) if self.quiet else self.stream.take(frames)

    def _alive_again(self, frames: List[bytes]) -> Steps:
        self.quiet = False
        yield ev.Alive(self.name)
        yield from self.stream.take(frames)


class Subscriber:
    """Iterate over it, or call next() with a timeout. Belongs to one thread at a time."""

    def __init__(self, *topics: str, address: Optional[str] = None,
                 position: Union[None, str, Position] = None, since: Since = None,
                 memory: int = 256 << 20, replay: bool = True,
                 sockets: Optional[Sequence[str]] = None, curve_server: Optional[str] = None,
                 curve_secret: Optional[str] = None) -> None:
        where = endpoints(DEFAULT_ADDRESS if address is None else address)
        wanted = Filter(topics or ("",))
        since_us = parse_since(since)
        keys = keys_of(curve_server, curve_secret)
        if type(memory) is not int or memory < 0:
            raise ValueError(f"memory: {memory!r}: give a number of bytes, or 0 for no bound")
        self._position = position if isinstance(position, Position) else \
            None if position is None else PositionFile(position)
        self._context: "zmq.Context[Any]" = zmq.Context()
        self._links: List[_Link] = []
        for name in sockets or wanted.sockets():
            channel = Replay(self._context, where["replay"], keys) if replay else None
            # All of the low socket is little, and shows at once where something is missing. One topic
            # alone has no order with others to keep.
            entire = "" in wanted.names or name == "low" and not wanted.single
            stream = Stream(name, wanted, channel, since_us, entire)
            if self._position:
                stream.nodes = self._position.nodes(name)
            backlog = max(1, memory // _MESSAGE_BYTES) if memory else 0
            self._links.append(_Link(self._context, name, stream, where[name], backlog, keys))
        self._turn = 0  # index of the link whose message is in hand
        self._ahead: Optional[ev.Item] = None
        self._looked_at = time.monotonic()

    # ---- for the application ----

    def next(self, timeout: Optional[float] = None) -> Optional[ev.Item]:
        """The next event or notice; None when nothing came within timeout seconds. Asking for the
        next one says that the one before is done: that is when a position is written."""
        item = self._take()
        if item is not None:
            return item
        if not self._links:
            raise ValueError("subscriber is closed")
        now = time.monotonic()
        deadline = None if timeout is None else now + timeout
        while True:
            item = self._take() or self._stale(now)
            if item is not None:
                return item
            if deadline is not None and now >= deadline:
                return None
            wait = self.wait_seconds()
            if deadline is not None:
                wait = min(wait, deadline - now)
            self._wait(wait)
            after = time.monotonic()
            # Time that was spent waiting as long as asked for was spent looking.
            self._looked_at += min(wait, after - now)
            now = after

    def __iter__(self) -> Iterator[ev.Item]:
        return self

    def __next__(self) -> ev.Item:
        if not self._links:
            raise StopIteration
        item = self.next()
        assert item is not None
        return item

    def run(self, callback: Callable[[ev.Item], Any]) -> None:
        """Calls callback with each event and notice, for ever. Its exceptions end this call and
        reach the caller; calling again goes on with the item after the one that failed."""
        for item in self:
            callback(item)

    def commit(self) -> None:
        """Says that the item in hand is done, without asking for the next one."""
        if self._ahead is None:
            self._ahead = self._take()
        elif self._position:  # the last attempt to write it may have failed
            for link in self._links:
                self._position.save(link.name, link.stream.nodes)

    def close(self) -> None:
        for link in self._links:
            if link.stream.replay:
                link.stream.replay.close()
            link.socket.close()
        self._links = []
        self._context.term()
        if self._position:
            self._position.close()

    def __enter__(self) -> "Subscriber":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        """Leaving the block in good order says that the item in hand is done."""
        if kind is None and self._links:
            self.commit()
        self.close()

    # ---- for event loops ----

    def filenos(self) -> List[int]:
        """Descriptors that become readable when next(0) may have something; call it until it has
        nothing before waiting for them. They change between calls."""
        return [int(socket.getsockopt(zmq.FD)) for socket in self._sockets()]

    def wait_seconds(self) -> float:
        """When to call next(0) although nothing became readable."""
        now = time.monotonic()
        times = [link.stale_at for link in self._links if not link.quiet]
        times += [link.stream.replay.wake_at for link in self._links
                  if link.work is not None and link.stream.replay]
        return max(0.0, min(times, default=now + 3600) - now)

    # ---- inside ----

    def _sockets(self) -> "Iterator[zmq.Socket[Any]]":
        for link in self._links:
            if link.work is None:
                yield link.socket
            elif link.stream.replay and link.stream.replay.socket:
                yield link.stream.replay.socket

    def _take(self) -> Optional[ev.Item]:
        """The next item at hand, without waiting."""
        if self._ahead is not None:
            item, self._ahead = self._ahead, None
            return item
        links, idle = self._links, 0
        while idle < len(links):
            link = links[self._turn]
            if link.work is None:
                link.work = link.receive()
            if link.work is None:
                idle += 1
                self._turn = (self._turn + 1) % len(links)
                continue
            step: Any = next(link.work, _END)
            if step is not None and step is not _END:
                link.quiet = type(step) is ev.Stopping
                self._ahead = step  # it comes next, also when its position cannot be written now
            if self._position:
                self._position.save(link.name, link.stream.nodes)
            if self._ahead is not None:
                taken, self._ahead = self._ahead, None
                return taken
            if step is _END:
                link.work = None
                idle = 0
            else:  # waits for replay
                idle += 1
            self._turn = (self._turn + 1) % len(links)
        return None

    def _stale(self, now: float) -> Optional[ev.Item]:
        listened = now - self._looked_at <= GRACE
        self._looked_at = now
        for link in self._links:
            if link.quiet or now < link.stale_at:
                continue
            if link.work is not None or not (listened or link.graced):
                link.graced = True
                link.stale_at = now + GRACE
                continue
            link.quiet = True
            link.reconnect()
            last = link.stream.last
            return ev.Stale(link.name, node=last.label if last else "", run=last.run if last else 0)
        return None

    def _wait(self, seconds: float) -> None:
        poller = zmq.Poller()
        for socket in self._sockets():
            poller.register(socket, zmq.POLLIN)
        poller.poll(int(seconds * 1000) + 1)


def parse_since(since: Since) -> Optional[int]:
    """Unix microseconds of "10m", "2h", "oldest", a datetime or a Unix time in seconds."""
    if since is None:
        return None
    seconds: float = -1
    if isinstance(since, str):
        ago = re.fullmatch(r"([0-9]{1,15})([smhd])", since)
        if ago:
            seconds = max(0, time.time() - int(ago[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[ago[2]])
        elif since == "oldest":
            seconds = 0
    elif isinstance(since, datetime.datetime):
        seconds = since.timestamp()
    elif isinstance(since, (int, float)) and not isinstance(since, bool) and math.isfinite(since):
        seconds = since
    if not 0 <= seconds < 1 << 43:
        raise ValueError(f'{since}: give 30s, 10m, 2h, 1d, "oldest", a datetime or a Unix time')
    return int(seconds * 1e6)


def subscribe(*topics: str, address: Optional[str] = None, position: Union[None, str, Position] = None,
              since: Since = None, memory: int = 256 << 20,
              replay: bool = True, curve_server: Optional[str] = None,
              curve_secret: Optional[str] = None) -> Subscriber:
    """An iterator over events and notices.

    topics: "mempool.removed", "mempool." for all that begin so, none for everything.
    address: tcp://HOST:PORT (the base port) or ipc:///run/coretap/NAME.
    position: a file that keeps the place, so that a later call goes on there; or a Position, which
    the application stores itself.
    since: without a position, where to begin: "10m", "oldest", a datetime, a Unix time in seconds;
    else at the present.
    memory: bound in bytes, per socket, for messages that wait here; the publisher's bound is next,
    and what does not fit there is fetched from replay.
    replay: False never asks for what is missing: gaps are told at once.
    curve_server, curve_secret: files, as `coretap keygen` writes them: coretapd's public key and
    one's own secret one, for a coretapd that demands keys over tcp.
    """
    return Subscriber(*topics, address=address, position=position, since=since, memory=memory,
                      replay=replay, curve_server=curve_server, curve_secret=curve_secret)


def run(callback: Callable[[ev.Item], Any], *topics: str, **options: Any) -> None:
    """Calls callback with each event and notice. Its exceptions reach the caller."""
    with subscribe(*topics, **options) as subscriber:
        subscriber.run(callback)
