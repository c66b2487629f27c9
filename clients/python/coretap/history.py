"""How transactions came to be: what was offered and replaced before one was confirmed."""
from collections import OrderedDict
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple, Union

from . import events as ev


class Offer(NamedTuple):
    """A transaction that was in the mempool."""
    txid: bytes
    vsize: Optional[int]
    fee: Optional[int]  # satoshi

    @property
    def fee_rate(self) -> Optional[float]:
        return self.fee / self.vsize if self.fee is not None and self.vsize else None


class Replacement(NamedTuple):
    """One step: what went, descendants included, and what came in its place."""
    time_us: int
    victims: Tuple[Offer, ...]
    txids: Tuple[bytes, ...]  # what came: one transaction, or those of a package
    package: Optional[bytes]  # hash of the package; never a txid
    vsize: Optional[int]  # of what came
    fee: Optional[int]


class Confirmed(NamedTuple):
    """A transaction that left with a block, and all that was offered on the way to it."""
    txid: bytes
    vsize: Optional[int]
    fee: Optional[int]
    height: Optional[int]
    steps: Tuple[Replacement, ...]  # oldest first
    vsize_replaced: int  # relayed in vain: all victims together

    @property
    def replacements(self) -> int:
        return len(self.steps)

    @property
    def vsize_relayed(self) -> int:
        return self.vsize_replaced + (self.vsize or 0)

    def json(self) -> str:
        def offer(o: Offer) -> Dict[str, Any]:
            return {"txid": o.txid, "vsize": o.vsize, "fee": o.fee}
        return ev.to_json({
            "txid": self.txid, "vsize": self.vsize, "fee": self.fee, "height": self.height,
            "replacements": self.replacements, "vsize_relayed": self.vsize_relayed,
            "steps": [{"time_us": s.time_us, "victims": [offer(o) for o in s.victims],
                       "txids": list(s.txids), "package": s.package, "vsize": s.vsize, "fee": s.fee}
                      for s in self.steps]})


class _Step:
    def __init__(self, event: Any) -> None:
        self.time_us: int = event.time_us
        self.package = event.get("replacement_package")
        self.txid = event.get("replacement_txid")
        self.vsize = event.get("replacement_vsize")
        self.fee = event.get("replacement_fee")
        self.victims: "Dict[bytes, Offer]" = {}
        self.txids: List[bytes] = [self.txid] if self.txid else []
        self.arrived = 0  # vbytes of the package that were added so far

    def freeze(self) -> Replacement:
        return Replacement(self.time_us, tuple(self.victims.values()), tuple(self.txids),
                           self.package, self.vsize, self.fee)


class ReplacementHistory:
    """Feed it the stream of "mempool."; feed() returns a Confirmed when a transaction left with a
    block, None otherwise. Bounded: the oldest steps are forgotten first."""

    def __init__(self, limit: int = 200_000) -> None:
        self.limit = limit
        self.confirmed: "OrderedDict[bytes, Confirmed]" = OrderedDict()
        self.incomplete = False  # something was lost: histories may lack a step
        self._made: "OrderedDict[bytes, _Step]" = OrderedDict()  # by what came: the step that made it
        self._open: Optional[_Step] = None  # its victims are being told
        self._arriving: Optional[_Step] = None  # a package whose transactions are being added

    def feed(self, item: ev.Item) -> Optional[Confirmed]:
        if item.kind in ("gap", "lost", "new_run"):
            self.incomplete = True
            self._open = self._arriving = None  # what is added next need not be what came in their place
        if item.kind != "event" or not item.topic.startswith("mempool."):
            return None
        event: Any = item
        if event.topic == "mempool.replaced":
            self._replaced(event)
        elif event.topic == "mempool.added":
            self._added(event)
        elif event.topic == "mempool.removed":
            reason = event.get("reason")
            if reason != "replaced":
                self._open = self._arriving = None
            if reason == "block" and event.get("txid") is not None:
                return self._confirm(event)
        return None

    def of(self, txid: Union[str, bytes]) -> Optional[Confirmed]:
        """A transaction that was confirmed while this was fed."""
        return self.confirmed.get(bytes.fromhex(txid) if isinstance(txid, str) else txid)

    def _replaced(self, event: Any) -> None:
        step = self._open
        same = step and step.package == event.get("replacement_package") and \
            step.txid == event.get("replacement_txid")
        if not step or not same:
            step = self._open = _Step(event)
            self._arriving = step if step.package else None
            if step.txid:
                self._remember(step.txid, step)
        if event.get("txid") is not None:
            step.victims[event.txid] = Offer(event.txid, event.get("vsize"), event.get("fee"))

    def _added(self, event: Any) -> None:
        """A package is resolved by what is added right after it, up to its size."""
        self._open = None
        step = self._arriving
        if not step or event.get("txid") is None:
            return
        step.txids.append(event.txid)
        step.arrived += event.get("vsize") or 0
        self._remember(event.txid, step)
        if step.arrived >= (step.vsize or 0):
            self._arriving = None

    def _remember(self, txid: bytes, step: _Step) -> None:
        self._made[txid] = step
        if len(self._made) > self.limit:
            self._made.popitem(last=False)

    def _steps(self, txid: bytes) -> Iterator[_Step]:
        """All steps that led to a transaction, each once."""
        seen: Set[int] = set()
        ahead = [txid]
        while ahead:
            step = self._made.get(ahead.pop())
            if step and id(step) not in seen:
                seen.add(id(step))
                yield step
                ahead += step.victims

    def _confirm(self, event: Any) -> Confirmed:
        steps = sorted(self._steps(event.txid), key=lambda step: step.time_us)
        victims = {v.txid: v for step in steps for v in step.victims.values()}
        confirmed = Confirmed(event.txid, event.get("vsize"), event.get("fee"), event.get("height"),
                              tuple(step.freeze() for step in steps),
                              sum(v.vsize or 0 for v in victims.values()))
        self.confirmed[event.txid] = confirmed
        if len(self.confirmed) > self.limit:
            self.confirmed.popitem(last=False)
        return confirmed
