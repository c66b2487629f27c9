"""Recordings of `coretap record`, read without a coretapd.

The file begins with RECORDING_HEADING. Then come records, numbers little endian: 4 bytes length of
what follows, 8 bytes when it was received (Unix microseconds), 1 byte socket (0 low, 1 high), 1 byte
length of the topic, the topic, and the body as it was published.
"""
import os
from typing import Generator, Iterator, List, Tuple, Union

from . import events as ev
from .stream import Filter, Stream
from .wire import MAX_LENGTH

RECORDING_HEADING = b"coretap recording 1\n"
_SOCKETS = ("low", "high")
_LONGEST = 10 + 255 + MAX_LENGTH  # bytes of a record


def messages(path: "Union[str, os.PathLike[str]]") -> Generator[Tuple[int, str, List[bytes]], None, bool]:
    """What was recorded: when it was received, the socket, and its frames. Returns whether the file ends
    with a whole record. Raises ValueError when it is no recording."""
    with open(path, "rb") as file:
        if file.read(len(RECORDING_HEADING)) != RECORDING_HEADING:
            raise ValueError(f"{os.fspath(path)}: not a recording of `coretap record`")
        while True:
            head = file.read(4)
            if not head:
                return True
            length = int.from_bytes(head, "little")
            record = file.read(length) if length <= _LONGEST else b""  # a lie must cost nothing
            if length < 10 or len(record) < length or record[8] >= len(_SOCKETS) or \
                    length < 10 + record[9]:
                return False
            body = 10 + record[9]
            yield (int.from_bytes(record[:8], "little"), _SOCKETS[record[8]],
                   [record[10:body], record[body:]])


def recorded(path: "Union[str, os.PathLike[str]]", *topics: str) -> Iterator[Tuple[int, ev.Item]]:
    """The events and notices of a recording as a subscriber to these topics would have got them, each
    with the time at which it was received, Unix microseconds. A record that is cut off or damaged is the
    last one: Malformed."""
    wanted = Filter(topics or ("",))
    streams = {name: Stream(name, wanted, None) for name in _SOCKETS}
    reader, received_us = messages(path), 0
    while True:
        try:
            received_us, socket, frames = next(reader)
        except StopIteration as end:
            if not end.value:
                yield received_us, ev.Malformed("low", reason="recording: ends in the middle of a record")
            return
        for item in streams[socket].take(frames):
            if item is not None:
                yield received_us, item
