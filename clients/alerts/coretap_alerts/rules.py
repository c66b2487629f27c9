"""The rules file: which events and notices are alerts, and where those go."""
import os
import re
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, FrozenSet, List, Optional, Set, Tuple
from urllib.parse import urlsplit

from coretap import CATALOGUE, RPC
from coretap.keys import keys_of
from coretap.subscriber import endpoints

from .document import Field, RuleError, read
from .pattern import Pattern

NAME = r"[A-Za-z0-9_.-]{1,64}"
NOTICES = ("lost", "gap", "new_run")
FATES = ("added", "rejected", "replaced", "evicted", "conflict", "confirmed", "unknown")
_QUIET = ("added", "rejected")  # of FATES: told only when asked for
_OURS = ("content-length", "transfer-encoding", "connection")
_SECRET = re.compile(r"\$\{(env|file):([^}]+)\}")


@dataclass
class Webhook:
    name: str
    url: str  # with ${env:NAME} and ${file:PATH}, as the headers
    directory: str  # of the rules, to which paths are relative
    headers: Dict[str, str] = field(default_factory=dict)
    timeout: float = 10  # seconds for a whole attempt
    retry: float = 1  # seconds until the second attempt; doubled after each
    retry_most: float = 60
    give_up: float = 86400  # seconds of failing after which older alerts are dropped
    queue: int = 64 << 20  # bytes of alerts that may wait

    def expand(self, text: str) -> str:
        """With its secrets, as they are now. Raises ValueError."""
        def secret(match: "re.Match[str]") -> str:
            if match[1] == "env":
                if match[2] not in os.environ:
                    raise ValueError(f"{match[2]} is not in the environment")
                return os.environ[match[2]]
            try:
                with open(os.path.join(self.directory, match[2])) as file:
                    return file.read().strip()
            except (OSError, UnicodeDecodeError) as error:
                raise ValueError(f"{match[2]}: {getattr(error, 'strerror', None) or 'not UTF-8'}") \
                    from None
        value = _SECRET.sub(secret, text)
        if not value.isascii() or not value.isprintable():
            raise ValueError("holds what no header may: it must be one line of ASCII")
        return value

    def target(self) -> Tuple[str, str, int, str]:
        """Scheme, host, port and path of its url. Raises ValueError."""
        parts = urlsplit(self.expand(self.url))
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or \
                " " in parts.netloc + parts.path + parts.query:
            raise ValueError("not an address; give https://HOST/PATH, and passwords in headers")
        port = parts.port or (443 if parts.scheme == "https" else 80)
        return parts.scheme, parts.hostname, port, (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


class WatchList:
    """Transactions to watch: those in the rules, and those in a file, one in a line."""

    def __init__(self, listed: Set[bytes], path: str = "") -> None:
        self._listed = listed
        self._path = path
        self._seen: Any = None  # what the file looked like last time
        self._taken: Any = None  # and when it was read

    def changed(self) -> Optional[Set[bytes]]:
        """All of them, at first and when the file has changed. What cannot be read raises RuleError
        once, and the list stays as it was."""
        try:
            status = os.stat(self._path) if self._path else None
            looks: Any = (status.st_mtime_ns, status.st_size, status.st_ino) if status else ()
        except OSError as error:
            looks = error.strerror
        # A file that somebody is writing is read when it has come to rest.
        rests, self._seen = looks == self._seen or self._taken is None, looks
        if looks == self._taken or not rests:
            return None
        self._taken = looks
        if isinstance(looks, str):
            raise RuleError(f"{self._path}: {looks}")
        return self._listed | set(_lines(self._path)) if self._path else self._listed


def _lines(path: str) -> List[bytes]:
    txids = []
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                text = line.split(b"#")[0].strip()
                if text and not re.fullmatch(rb"[0-9A-Fa-f]{64}", text):
                    raise RuleError(f"{path}:{number}: not a txid, which is 64 hex digits")
                if text:
                    txids.append(bytes.fromhex(text.decode()))
    except OSError as error:
        raise RuleError(f"{path}: {error.strerror}") from None
    return txids


@dataclass
class Rule:
    name: str
    webhooks: Tuple[str, ...]
    topics: Tuple[str, ...] = ()  # of an event rule; of a notice rule: beyond those of other rules
    where: Dict[str, Optional[Callable[[Any], bool]]] = field(default_factory=dict)
    notices: FrozenSet[str] = frozenset()
    watch: Optional[WatchList] = None
    on: FrozenSet[str] = frozenset(set(FATES) - set(_QUIET))
    follow: bool = False
    every_us: Optional[int] = None  # 0: once
    key: Tuple[str, ...] = ()
    fields: Optional[Tuple[str, ...]] = None  # what of the event is sent; None: all

    def wants(self, topic: str) -> bool:
        return any(topic == t or (not t or t[-1] == ".") and topic.startswith(t) for t in self.topics)

    def matches(self, event: Any) -> bool:
        """A field that is absent, or nil, matches no condition but null, which nil matches."""
        for name, test in self.where.items():
            value = event.node if name == "node" else event.fields.get(name, self)
            if value is self or (value is None) != (test is None) or test and not test(value):
                return False
        return True


@dataclass
class Rules:
    rules: List[Rule]
    webhooks: Dict[str, Webhook]
    address: Optional[str] = None
    curve_server: Optional[str] = None
    curve_secret: Optional[str] = None
    state: Optional[str] = None
    rpc: Optional[RPC] = None

    def topics(self) -> List[str]:
        """What to subscribe to. With node. it is always more than one topic of the low socket: the
        client then keeps the order of the whole socket."""
        topics = {t for rule in self.rules for t in rule.topics} | {"node."}
        if any(rule.watch for rule in self.rules):
            topics |= {"mempool.", "block.evictions"}
        return sorted(topics)


def load(path: str) -> Rules:
    """Raises RuleError."""
    directory = os.path.dirname(os.path.abspath(path))
    document = read(path)
    top = document.map("address", "curve_server", "curve_secret", "state", "rpc", "webhooks", "rules",
                       required="rules")
    webhooks = {name: _webhook(name, value, directory)
                for name, value in (top["webhooks"].map() if "webhooks" in top else {}).items()}
    if not webhooks:
        raise document.error("webhooks is missing")
    rules: List[Rule] = []
    for value in top["rules"].items():
        rule = _rule(value, webhooks, directory)
        if any(rule.name == other.name for other in rules):
            raise value.error(f"there is another rule {rule.name}")
        rules.append(rule)
    if not rules:
        raise top["rules"].error("no rules")
    if "address" in top:
        _checked(top["address"], lambda: endpoints(top["address"].text()))
    server, secret, state = (os.path.join(directory, top[name].text()) if name in top else None
                             for name in ("curve_server", "curve_secret", "state"))
    if server or secret:
        _checked(top["curve_server" if server else "curve_secret"], lambda: keys_of(server, secret))
    return Rules(rules, webhooks, top["address"].text() if "address" in top else None, server, secret, state,
                 _rpc(top["rpc"], directory) if "rpc" in top else None)


def _webhook(name: str, value: Field, directory: str) -> Webhook:
    if not re.fullmatch(NAME, name):
        raise value.error("a name is made of letters, digits, _ . -")
    fields = value.map("url", "headers", "timeout", "retry", "retry_most", "give_up", "queue_mib", required="url")
    webhook = Webhook(name, fields["url"].text(), directory)
    for setting in ("timeout", "retry", "retry_most", "give_up"):
        if setting in fields:
            setattr(webhook, setting, fields[setting].seconds())
    if "queue_mib" in fields:
        webhook.queue = int(fields["queue_mib"].text("[1-9][0-9]{0,5}", "a number of MiB")) << 20
    for header, text in (fields["headers"].map() if "headers" in fields else {}).items():
        if not re.fullmatch(r"[A-Za-z0-9-]+", header) or header.lower() in _OURS:
            raise text.error("not the name of a header that may be set")
        webhook.headers[header] = text.text()
        _checked(text, lambda: webhook.expand(text.text()))
    _checked(fields["url"], webhook.target)
    return webhook


def _checked(value: Field, function: Callable[[], Any]) -> Any:
    try:
        return function()
    except ValueError as error:
        raise value.error(str(error)) from None


def _rpc(value: Field, directory: str) -> RPC:
    fields = value.map("url", "cookie", "user", "password")
    secrets = Webhook("", "", directory)
    texts = {name: _checked(f, lambda: secrets.expand(f.text())) for name, f in fields.items()}
    rpc: RPC = _checked(value, lambda: RPC(**texts, timeout=10))
    return rpc


def _rule(value: Field, webhooks: Dict[str, Webhook], directory: str) -> Rule:
    fields = value.map("name", "topic", "declared", "where", "notice", "watch", "on", "follow", "once",
                       "every", "key", "fields", "webhooks", required="name")
    rule = Rule(fields["name"].text(NAME, "a name of letters, digits, _ . -"),
                tuple(_choice(f, webhooks) for f in fields["webhooks"].items())
                if "webhooks" in fields else tuple(webhooks))
    if not rule.webhooks:
        raise fields["webhooks"].error("names none")
    kinds = [kind for kind in ("notice", "watch", "topic") if kind in fields]
    if kinds not in (["topic"], ["watch"], ["notice"], ["notice", "topic"]):
        raise value.error("wants one of topic (events), watch (transactions), notice (losses, new runs)")
    kind = kinds[0]
    for name in {"topic": ("on", "follow"), "watch": ("declared", "where", "once", "every", "key"),
                 "notice": ("where", "on", "follow", "key", "fields")}[kind]:
        if name in fields:
            raise fields[name].error(f"makes no sense with {kind}")
    if kind == "watch":
        rule.watch = _watch_list(fields["watch"], directory)
        if "on" in fields:
            rule.on = frozenset(_choice(f, FATES) for f in fields["on"].items())
        rule.follow = "follow" in fields and fields["follow"].boolean()
    else:
        declared = "declared" in fields and fields["declared"].boolean()
        rule.topics = tuple(_topic(f, declared) for f in fields["topic"].items()) if "topic" in fields else ()
    if kind == "notice":
        rule.notices = frozenset(_choice(f, NOTICES) for f in fields["notice"].items())
    known = _fields_of(rule.topics) if kind == "topic" else \
        _fields_of(("mempool.", "block.evictions", "node.")) if kind == "watch" else None
    if "where" in fields:
        for name, condition in fields["where"].map().items():
            rule.where[name] = _condition(condition, _kind(condition, name, known))
    if "every" in fields and "once" in fields:
        raise fields["once"].error("either once or every")
    if "every" in fields:
        rule.every_us = int(fields["every"].seconds() * 1e6)
    elif "once" in fields and fields["once"].boolean():
        rule.every_us = 0
    if "key" in fields:
        if rule.every_us is None:
            raise fields["key"].error("makes sense only with once or every")
        rule.key = tuple(_field(f, known) for f in fields["key"].items())
    if "fields" in fields:
        rule.fields = tuple(_field(f, known) for f in fields["fields"].items())
    return rule


def _choice(value: Field, among: Any) -> str:
    text = value.text()
    if text not in among:
        raise value.error(f"there is no {text}; there are {', '.join(among)}")
    return text


def _topic(value: Field, declared: bool) -> str:
    word = value.text(r"[A-Za-z0-9_.*-]{1,96}", "a topic")
    topic = word[:-1] if word.endswith("*") else word
    if topic and ("." not in topic or topic[0] == "." or "*" in topic):
        raise value.error('not a topic; give "mempool.removed", "mempool.*" or "*"')
    if not declared and not _catalogued((topic,)):
        raise value.error("not in the catalogue; if coretapd --tracepoints declares it, say "
                          "declared: true")
    return topic


def _catalogued(topics: Tuple[str, ...]) -> List[str]:
    rule = Rule("", (), topics)
    return [name for name in CATALOGUE if rule.wants(name)]


def _fields_of(topics: Tuple[str, ...]) -> Optional[Dict[str, str]]:
    """Name and kind of what their events have; None where anything may be."""
    if any(not _catalogued((topic,)) for topic in topics):
        return None
    return {name: kind for topic in _catalogued(topics) for name, kind in CATALOGUE[topic][1].items()}


def _kind(value: Field, name: str, known: Optional[Dict[str, str]]) -> str:
    if name == "node":
        return "text"
    if known is not None and name not in known:
        raise value.error(f"there is no {name}; there are {', '.join(known)}")
    return known[name] if known is not None else "any"


def _field(value: Field, known: Optional[Dict[str, str]]) -> str:
    name = value.text()
    _kind(value, name, known)
    return name


def _watch_list(value: Field, directory: str) -> WatchList:
    fields = value.map("txids", "file")
    if not fields:
        raise value.error("wants txids, or a file of them")
    listed = {bytes.fromhex(f.text("[0-9A-Fa-f]{64}", "a txid, which is 64 hex digits"))
              for f in (fields["txids"].items() if "txids" in fields else ())}
    path = os.path.join(directory, fields["file"].text()) if "file" in fields else ""
    if path:
        _checked(fields["file"], lambda: _lines(path))
    return WatchList(listed, path)


# ---- conditions ----

_ELEMENT = {"hashes": "hash", "uints": "int", "ints": "int"}
Test = Callable[[Any], bool]


def _literal(value: Field, kind: str) -> Any:
    """A value as events have it; of bytes, their hex."""
    if kind in ("uint", "int"):
        return value.number()
    if kind == "bool":
        return value.boolean()
    if kind == "hash":
        return value.text("[0-9A-Fa-f]{64}", "a hash, which is 64 hex digits").lower()
    if kind == "bin":
        return value.text("([0-9A-Fa-f]{2})*", "bytes in hex").lower()
    if kind == "any" and value.has_type("int"):
        return value.number()
    if kind == "any" and value.has_type("bool"):
        return value.boolean()
    if kind not in ("any", "text"):
        raise value.error(f"a field of kind {kind} has no such condition")
    return value.text(r"[\s\S]*")


def _plain(value: Any) -> Any:
    return value.hex() if type(value) is bytes else value


def _equal(wanted: Any) -> Test:
    return lambda value: type(_plain(value)) is type(wanted) and _plain(value) == wanted


def _among(values: Field, kind: str) -> Test:
    tests = [_equal(_literal(value, kind)) for value in values.items()]
    if not tests:
        raise values.error("names none")
    return lambda value: any(test(value) for test in tests)


def _compared(compare: Callable[[int, int], bool], bound: int) -> Test:
    return lambda value: type(value) is int and compare(value, bound)


_COMPARISONS: Dict[str, Callable[[int, int], bool]] = {
    "above": int.__gt__, "below": int.__lt__, "at_least": int.__ge__, "at_most": int.__le__}


def _condition(value: Field, kind: str) -> Optional[Test]:
    """None: matches what could not be read."""
    if value.has_type("null"):
        return None
    if not value.is_map():
        return _among(value, kind)
    tests = [_operation(name, operand, kind) for name, operand in value.map(
        "not", "prefix", "regex", "contains", *_COMPARISONS).items()]
    if not tests:
        raise value.error("no condition")
    return lambda found: all(test(found) for test in tests)


def _operation(name: str, operand: Field, kind: str) -> Test:
    fits = {"prefix": ("text", "hash", "bin"), "regex": ("text",), "contains": tuple(_ELEMENT),
            "not": ("uint", "int", "bool", "text", "hash", "bin")}.get(name, ("uint", "int"))
    if kind not in (*fits, "any"):
        raise operand.error(f"a field of kind {kind} has no {name}")
    if name == "not":
        test = _among(operand, kind)
        return lambda value: not test(value)
    if name == "contains":
        inner = _among(operand, _ELEMENT.get(kind, "any"))
        return lambda value: type(value) is list and any(inner(element) for element in value)
    if name == "prefix":
        prefix = operand.text() if kind in ("text", "any") else \
            operand.text("[0-9A-Fa-f]+", "hex digits").lower()
        return lambda value: type(_plain(value)) is str and _plain(value).startswith(prefix)
    if name == "regex":
        pattern = _checked(operand, lambda: Pattern(operand.text()))
        return lambda value: type(value) is str and pattern.search(value)
    return _compared(_COMPARISONS[name], operand.number())
