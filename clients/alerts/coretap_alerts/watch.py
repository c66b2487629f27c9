"""What becomes of watched transactions: the same states as `coretap watch` tells.

A transaction that a block confirms although this pool did not have it then fires no removal: where a
block has such ones, RPC is asked whether it is among them.
"""
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

from coretap import RPCError

from .rules import Rule
from .state import Table

WAITING, POOL = "waiting", "pool"
MAX_TXIDS = 1000  # in one alert
UNDECIDED = (WAITING, POOL)
_REASONS = {"block": "confirmed", "conflict": "conflict", "replaced": "replaced"}  # else: evicted
_CHANGES = ("mempool.added", "mempool.removed", "mempool.replaced", "mempool.rejected")
WATCHED = (*_CHANGES, "block.evictions", "node.exited")
# Loss of these makes uncertain what became of a transaction.
_TELLING = ("mempool.added", "mempool.removed", "mempool.replaced", "node.exited", "block.evictions")


class News(NamedTuple):
    what: str  # one of rules.FATES
    txid: Optional[bytes]  # None: of several
    details: Dict[str, Any]


def _hex(value: Optional[bytes]) -> Optional[str]:
    return value.hex() if value else None


class Watch:
    """The transactions of one rule. Each has [fate, origins]: the fate that was told last, and, when
    it is not listed itself but came in the place of others, the listed ones."""

    def __init__(self, rule: Rule, table: Table, pending: Table,
                 block: Optional[Callable[[str], Set[str]]]) -> None:
        self.rule = rule
        self.known = table  # (rule, txid in hex): [fate, origins]
        # (rule, ""): [package, vbytes left, origins] of a package about to be added
        self.pending = pending
        self.block = block  # the txids of a block
        self.listed: Set[str] = set()

    def reload(self) -> None:
        """Takes the list as it is now. Raises RuleError."""
        listed = self.rule.watch.changed() if self.rule.watch else None
        if listed is None:
            return
        self.listed = {txid.hex() for txid in listed}
        for txid in self.listed - set(self._all()):
            self._set(txid, WAITING, [])
        for txid, (fate, origins) in self._all().items():
            still = [o for o in origins if o in self.listed and self.rule.follow]
            if txid not in self.listed and not still:
                del self.known[self.rule.name, txid]
            elif still != origins:
                self._set(txid, fate, still)

    def _all(self) -> Dict[str, List[Any]]:
        return {txid: value for (rule, txid), value in self.known.items() if rule == self.rule.name}

    def _get(self, txid: str) -> Optional[List[Any]]:
        value: Optional[List[Any]] = self.known.get((self.rule.name, txid))
        return value

    def _set(self, txid: str, fate: str, origins: List[str]) -> None:
        self.known[self.rule.name, txid] = [fate, origins]

    def _become(self, txid: bytes, fate: str, what: str, **details: Any) -> Iterator[News]:
        origins = (self._get(txid.hex()) or [None, []])[1]
        self._set(txid.hex(), fate, origins)
        if origins:
            details["in_place_of"] = list(map(bytes.fromhex, origins))
        yield News(what, txid, details)

    def _lose(self, why: str, fates: Tuple[str, ...] = UNDECIDED) -> Iterator[News]:
        """What was not decided is unknown: one alert for all."""
        lost = [txid for txid, (fate, _) in self._all().items() if fate in fates]
        for txid in lost:
            self._set(txid, "unknown", self.known[self.rule.name, txid][1])
        self.pending.pop((self.rule.name, ""), None)
        if lost:
            yield News("unknown", None, {"why": why, "count": len(lost),
                                         "txids": list(map(bytes.fromhex, sorted(lost)[:MAX_TXIDS]))})

    def notice(self, notice: Any) -> Iterator[News]:
        if notice.kind == "new_run" and notice.socket == "low":
            yield from self._lose("coretapd began anew")
        elif notice.kind in ("gap", "lost") and notice.topic in _TELLING:
            yield from self._lose("events are missing" if notice.kind == "gap" else "events were lost")

    def event(self, event: Any) -> Iterator[News]:
        topic, txid = event.topic, event.get("txid")
        if topic == "node.exited":
            yield from self._lose("the node ended")
        elif topic == "block.evictions":
            yield from self._unseen(event)
        elif txid is None:
            if topic != "mempool.rejected":
                yield from self._lose("the txid of an event could not be read")
        elif topic == "mempool.added":
            self._arrived(event)
            if self._get(txid.hex()):
                yield from self._become(txid, POOL, "added")
        elif topic in ("mempool.replaced", "mempool.removed"):
            pending = self.pending.get((self.rule.name, ""))
            if pending and event.get("reason") != "replaced" and \
                    pending[0] != _hex(event.get("replacement_package")):
                self.pending.pop((self.rule.name, ""))
            known = self._get(txid.hex())
            if known and topic == "mempool.replaced":
                yield from self._replaced(event, known[1])
            elif known and not known[0] == event.get("reason") == "replaced":  # told already
                if event.get("reason") is None:
                    yield from self._become(txid, "unknown", "unknown", why="it left; the reason could not be read")
                    return
                what = _REASONS.get(event.reason, "evicted")
                yield from self._become(txid, what, what)
        elif topic == "mempool.rejected":
            known = self._get(txid.hex())
            if known:
                yield from self._become(txid, known[0], "rejected")

    def _replaced(self, event: Any, origins: List[str]) -> Iterator[News]:
        by, package = event.get("replacement_txid"), event.get("replacement_package")
        yield from self._become(event.txid, "replaced", "replaced")
        if self.rule.follow and by:
            self._follow(by.hex(), origins or [event.txid.hex()])
        elif self.rule.follow and package:
            others = (self.pending.get((self.rule.name, "")) or [None, 0, []])[2]
            self.pending[self.rule.name, ""] = [
                package.hex(), event.get("replacement_vsize") or 0,
                sorted({*others, *(origins or [event.txid.hex()])})]

    def _follow(self, txid: str, origins: List[str]) -> None:
        fate, already = self._get(txid) or [WAITING, []]
        self._set(txid, fate, sorted({*already, *origins} - {txid}))

    def _arrived(self, event: Any) -> None:
        """A package has a hash of its own; its transactions are those added next, up to its size."""
        pending = self.pending.pop((self.rule.name, ""), None)
        if not pending:
            return
        package, left, origins = pending
        self._follow(event.txid.hex(), origins)
        left -= event.get("vsize") or 0
        if left > 0:
            self.pending[self.rule.name, ""] = [package, left, origins]

    def _unseen(self, event: Any) -> Iterator[News]:
        if not event.get("final") or not event.get("unseen") and event.get("complete"):
            return
        # One that is in the pool would have been removed, unless that was lost.
        certain = ("confirmed", POOL) if event.get("complete") else ("confirmed",)
        asked = [txid for txid, (fate, _) in self._all().items() if fate not in certain]
        if not asked:
            return
        why = "a block has transactions that this pool did not have, and no rpc is configured"
        if self.block and event.get("hash"):
            try:
                inside = self.block(event.hash.hex())
            except RPCError as error:
                why = f"a block has transactions that this pool did not have, and RPC: {error}"
            else:
                for txid in sorted(inside.intersection(asked)):
                    yield from self._become(bytes.fromhex(txid), "confirmed", "confirmed", unseen=True)
                return
        yield from self._lose(why, (WAITING,))
