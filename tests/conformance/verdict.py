"""What the Python decoder says of a frame, as verdict.h does, and where it may say something else."""
import json
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "clients", "python"))
from coretap import wire
from coretap.events import Event, Status


def told(topic, frame):
    try:
        if topic.startswith("bridge."):
            status = wire.decode_status(frame)
            return Status(topic, status.node, status.run, 0, status.n, 0, status.time_us, status.body).json()
        m = wire.decode_message(topic, frame)
        return "".join(Event(topic, m.node, m.run, m.seq + m.lost + i, m.n + i, m.pid, fields.pop("time_us"),
                             fields).json() for i, fields in enumerate(m.events))
    except wire.WireError as error:
        return f"refused: {error}"


def may_differ(c, python, frame):
    """Python's msgpack keeps the last of two equal keys, and takes one extension type for a timestamp."""
    def unique(pairs):
        if len(dict(pairs)) < len(pairs):
            raise KeyError
    if re.search(rb"(?s)[\xd6-\xd8]\xff|\xc7.\xff|\xc8..\xff|\xc9....\xff", frame):
        return True
    if c.startswith("refused: "):
        return re.search("told twice|not one unsigned", c) is not None
    try:
        while c:
            _, end = json.JSONDecoder(object_pairs_hook=unique).raw_decode(c)
            c = c[end:]
        return False
    except KeyError:
        return True


def agree(c, other, frame, excused=may_differ):
    return c == other or c.startswith("refused: ") and other.startswith("refused: ") or \
        bool(excused(c, other, frame))
