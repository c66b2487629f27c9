"""Message bodies: decoded, and checked so that the rest of the client need not doubt them."""
import re
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import msgpack

from .catalogue import CATALOGUE

VERSION = 1
MAX_LENGTH = 64 << 20  # bytes of a body
MAX_DEPTH = 16  # containers inside each other
STATUS, STOPPING = "bridge.status", "bridge.stopping"

_TOPIC = re.compile(rb"[A-Za-z0-9_.-]{1,96}")
_LABEL = re.compile(r"[A-Za-z0-9_-]{1,32}")


class WireError(ValueError):
    """A frame breaks the wire contract."""


class Extension(NamedTuple):
    """Of msgpack's extension types; the contract has none. msgpack's own class knows half of them."""
    type: int
    data: bytes


class Message(NamedTuple):
    node: str
    run: int
    pid: int
    n: int
    seq: int
    lost: int
    events: List[Dict[str, Any]]
    end: int  # seq + lost + number of events: what the topic continues with


class StatusBody(NamedTuple):
    node: str
    run: int
    socket: str
    time_us: int
    n: int
    heads: Dict[str, int]
    replay: str
    body: Dict[str, Any]


def topic_name(frame: bytes) -> str:
    """The topic in a frame, "" when it is none."""
    return frame.decode("ascii") if _TOPIC.fullmatch(frame) else ""


def unpack(body: bytes) -> Any:
    """Decodes one msgpack value. A walk that allocates nothing comes first, so that a count which
    lies costs nothing."""
    if len(body) > MAX_LENGTH:
        raise WireError(f"longer than {MAX_LENGTH} bytes")
    try:
        walker = msgpack.Unpacker(max_buffer_size=MAX_LENGTH, read_size=1024)
        walker.feed(body)
        walker.skip()
        if walker.tell() != len(body):
            raise WireError("bytes after its end")
        return msgpack.unpackb(body, strict_map_key=True, ext_hook=Extension)
    except WireError:
        raise
    except msgpack.OutOfData:
        raise WireError("truncated") from None
    except msgpack.StackError:
        raise WireError("nested too deep") from None
    except UnicodeDecodeError:
        raise WireError("a text is not UTF-8") from None
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
        raise WireError(f"not msgpack: {error}") from None


def _check_depth(value: Any, depth: int) -> None:
    if isinstance(value, (dict, list)):
        if depth >= MAX_DEPTH:
            raise WireError(f"nested deeper than {MAX_DEPTH}")
        if isinstance(value, dict):
            for key in value:
                if type(key) is not str:
                    raise WireError("a key is not a text")
        for inner in value.values() if isinstance(value, dict) else value:
            _check_depth(inner, depth + 1)


def unpack_map(body: bytes) -> Dict[str, Any]:
    """The same for a map, of which every key is a text."""
    value = unpack(body)
    if type(value) is not dict:
        raise WireError("not a map")
    _check_depth(value, 0)
    return value


def _uint(body: Dict[str, Any], key: str, default: Optional[int] = None) -> int:
    value = body.get(key, default)
    if type(value) is not int or value < 0:
        raise WireError(f"{key}: {'missing' if value is None else 'not an unsigned integer'}")
    return value


def _map(body: bytes, contents: str) -> Dict[str, Any]:
    """The body with what every body has. The value under contents is left for the caller to check."""
    value = unpack(body)
    if type(value) is not dict:
        raise WireError("not a map")
    version = _uint(value, "v")
    if version != VERSION:
        raise WireError(f"v: version {version} is not understood")
    for key, inner in value.items():
        if type(key) is not str:
            raise WireError("a key is not a text")
        if key != contents:
            _check_depth(inner, 1)
    node = value.get("node")
    if type(node) is not str or not _LABEL.fullmatch(node):
        raise WireError("node: not a label")
    return value


# ---- events ----

_PYTHON: Dict[str, Any] = {"uint": int, "int": int, "bool": bool, "hash": bytes, "bin": bytes, "text": str,
           "hashes": list, "uints": list, "ints": list, "conflicts": dict}
_CONFLICTS = {"txids": "hash", "fees": "int", "vsizes": "uint", "entry_times": "uint",
              "after": "uint"}
_ELEMENT = {"hashes": "hash", "uints": "uint", "ints": "int"}
_MAX_SHAPES = 4096


def _has_type(value: Any, kind: str) -> bool:
    if value is None or kind not in _PYTHON:
        return True
    exact: bool = type(value) is _PYTHON[kind]  # a bool is no integer
    if not exact:
        return False
    if kind == "hash":
        return len(value) == 32
    if kind == "uint":
        return bool(value >= 0)
    if kind == "int":
        return bool(value < 1 << 63)
    if kind in _ELEMENT:
        return all(_has_type(element, _ELEMENT[kind]) for element in value)
    if kind == "conflicts":
        return all(name not in value or value[name] is None or
                   type(value[name]) is list and all(_has_type(e, inner) for e in value[name])
                   for name, inner in _CONFLICTS.items())
    return True


class _Shape(NamedTuple):
    """What the names and Python types of an event leave to be checked of its values."""
    hashes: Tuple[str, ...]
    uints: Tuple[str, ...]
    others: Tuple[Tuple[str, str], ...]
    unknown: Tuple[str, ...]


# Few shapes occur, so the types of an event are looked at once for all events that are like it.
_shapes: Dict[Tuple[Any, ...], _Shape] = {}


def _shape(event: Dict[str, Any], fields: Dict[str, str]) -> _Shape:
    hashes, uints, others, unknown = [], ["time_us"], [], []
    if type(event.get("time_us")) is not int:
        raise WireError("time_us: missing or not an unsigned integer")
    for name, value in event.items():
        if type(name) is not str:
            raise WireError("a key is not a text")
        kind = fields.get(name)
        if name == "time_us" or value is None:
            continue
        if kind is None:
            unknown.append(name)
        elif type(value) is not _PYTHON.get(kind, type(value)):
            raise WireError(f"{name}: not of type {kind}")
        elif kind == "hash":
            hashes.append(name)
        elif kind == "uint":
            uints.append(name)
        elif kind in ("int", "conflicts", *_ELEMENT):
            others.append((name, kind))
    return _Shape(tuple(hashes), tuple(uints), tuple(others), tuple(unknown))


def _check_event(topic: str, event: Any, fields: Dict[str, str]) -> None:
    if type(event) is not dict:
        raise WireError("events: an element is not a map")
    key = (topic, *event, *map(type, event.values()))
    shape = _shapes.get(key)
    if shape is None:
        shape = _shape(event, fields)
        if len(_shapes) >= _MAX_SHAPES:
            _shapes.clear()
        _shapes[key] = shape
    for name in shape.hashes:
        if len(event[name]) != 32:
            raise WireError(f"{name}: not of type hash")
    for name in shape.uints:
        if event[name] < 0:
            raise WireError(f"{name}: not an unsigned integer")
    for name, kind in shape.others:
        if not _has_type(event[name], kind):
            raise WireError(f"{name}: not of type {kind}")
    for name in shape.unknown:
        _check_depth(event[name], 3)


def decode_message(topic: str, body: bytes) -> Message:
    """Raises WireError. Unknown keys are allowed, known ones have their type."""
    value = _map(body, "events")
    run, pid, n, seq = (_uint(value, key) for key in ("run", "pid", "n", "seq"))
    lost = _uint(value, "lost", 0)
    events = value.get("events")
    if type(events) is not list:
        raise WireError("events: missing or not an array")
    known = CATALOGUE.get(topic)
    fields = known[1] if known else {}
    for event in events:
        _check_event(topic, event, fields)
    if not run:
        raise WireError("run: 0 names none")
    if not seq:
        raise WireError("seq: 0, the first number is 1")
    if not n:
        raise WireError("n: 0, the first position is 1")
    if not lost and not events:
        raise WireError("neither events nor a loss")
    end = seq + lost + len(events)
    if max(end, n + len(events)) >> 64:
        raise WireError("numbers end beyond 64 bits")
    return Message(value["node"], run, pid, n, seq, lost, events, end)


def decode_status(body: bytes) -> StatusBody:
    """bridge.status and bridge.stopping. Raises WireError."""
    value = _map(body, "")
    run, time_us, n = (_uint(value, key) for key in ("run", "time_us", "n"))
    if not run:
        raise WireError("run: 0 names none")
    socket, heads = value.get("socket"), value.get("heads")
    if socket not in ("low", "high"):
        raise WireError("socket: neither low nor high")
    if type(heads) is not dict:
        raise WireError("heads: missing or not a map")
    for head in heads.values():
        if type(head) is not int or not 0 <= head < (1 << 64) - 1:
            raise WireError("heads: not all are unsigned integers")
    _uint(value, "held", 0)
    for key, kind in (("counters", dict), ("replay", str)):
        if key in value and type(value[key]) is not kind:
            raise WireError(f"{key}: of another type")
    return StatusBody(value["node"], run, socket, time_us, n, heads, value.get("replay", "ok"), value)
