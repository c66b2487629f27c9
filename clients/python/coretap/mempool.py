"""An exact mirror of the node's mempool.

The rule: the state of a transaction is the last event since the stream was joined, else what
getrawmempool said after that. A snapshot is taken when the stream runs; what the stream tells from
then on is laid over it, in order. When continuity is lost, a new snapshot is taken.
"""
import bisect
import time
from collections import OrderedDict
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple, Union

from . import events as ev
from .rpc import RPCError, satoshi
from .stream import Filter
from .subscriber import Subscriber
from .wire import STATUS

RETRY = 1.0  # seconds between attempts to get a snapshot
MAX_TOUCHED = 500_000  # transactions that are laid over it
_CHANGES = ("mempool.added", "mempool.removed")
# Lower bounds of the histogram's classes, satoshi per vbyte.
FEE_RATES = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30, 40, 50, 60, 80, 100, 150, 200, 300, 500, 1000)


class Synced(ev.Notice):
    """The mirror is exact from here on."""

    kind = "synced"

    def __str__(self) -> str:
        return "mempool: synced"


class Resyncing(ev.Notice):
    """Continuity was lost: the mirror is not exact until Synced. reason says why."""

    kind = "resyncing"

    def __str__(self) -> str:
        return f"mempool: resyncing: {self.reason}"


class Transaction:
    """A transaction that is in the mempool or was there. What is not known is None."""

    __slots__ = ("txid", "vsize", "fee", "entry_time", "added_us", "left_us", "reason", "height",
                 "block", "replaced_by", "replaced_by_package")

    def __init__(self, txid: bytes, vsize: Optional[int] = None, fee: Optional[int] = None,
                 entry_time: Optional[int] = None, added_us: Optional[int] = None) -> None:
        self.txid = txid
        self.vsize = vsize
        self.fee = fee  # satoshi
        self.entry_time = entry_time  # Unix seconds, the node's
        self.added_us = added_us  # when it was added, if that was seen
        self.left_us: Optional[int] = None
        self.reason: Optional[str] = None  # why it left
        self.height: Optional[int] = None  # of the block with which it left
        self.block: Optional[bytes] = None  # that block's hash
        self.replaced_by: Optional[bytes] = None  # the transaction that replaced it
        self.replaced_by_package: Optional[bytes] = None  # or the hash of the package; never a txid

    @property
    def fee_rate(self) -> Optional[float]:
        """Satoshi per vbyte."""
        return self.fee / self.vsize if self.fee is not None and self.vsize else None

    @property
    def waited(self) -> Optional[float]:
        """Seconds in the mempool, until it left."""
        if self.left_us is None:
            return None
        if self.added_us is not None:
            return (self.left_us - self.added_us) / 1e6
        return self.left_us / 1e6 - self.entry_time if self.entry_time is not None else None

    def __repr__(self) -> str:
        values = {name: getattr(self, name) for name in self.__slots__}
        told = (f"{name}={value.hex() if isinstance(value, bytes) else value}"
                for name, value in values.items() if value is not None)
        return f"<Transaction {' '.join(told)}>"


class Bucket(NamedTuple):
    fee_rate: float  # satoshi per vbyte, lower bound
    transactions: int
    vsize: int


class Difference(NamedTuple):
    """What verify() found. Empty and therefore false when the mirror is right."""
    missing: Set[bytes]  # in the node's mempool, not here
    surplus: Set[bytes]  # the other way round

    def __bool__(self) -> bool:
        return bool(self.missing or self.surplus)


class Mempool:
    """Iterate over it: each event and notice comes out when it has been applied. Or call update().

    rpc: RPC(...), or anything that is called with a method and its parameters.
    verbose: False fetches only the ids: quick, but what was there before has no size and fee.
    history: how many transactions that left are remembered.
    curve_server, curve_secret: files of keys, as for subscribe().
    """

    def __init__(self, rpc: Callable[..., Any], address: Optional[str] = None,
                 topics: Sequence[str] = (), verbose: bool = True, history: int = 100_000,
                 curve_server: Optional[str] = None, curve_secret: Optional[str] = None) -> None:
        self.rpc = rpc
        self.verbose = verbose
        self.transactions: Dict[bytes, Transaction] = {}
        self.left: "OrderedDict[bytes, Transaction]" = OrderedDict()  # oldest first
        self.vsize = 0  # of all together, as far as known
        self.synced = False
        self.syncs = 0  # snapshots taken
        self._keep = history
        self._block: Tuple[Optional[int], Optional[bytes]] = (None, None)
        self._touched: Optional[Set[bytes]] = set()  # since the stream was joined, or verify() began
        self._joined = False  # a status came: nothing is missed from there on
        self._retry_at = 0.0
        self._statuses = 0
        self._breaks = 0  # times that continuity was lost, or the node ended
        self._failure = ""  # why the last snapshot failed
        self._told: List[ev.Item] = []
        wanted = ("mempool.", "validation.block_connected", "node.", STATUS, *topics)
        sockets = Filter([topic for topic in wanted if topic != STATUS]).sockets()
        self.stream = Subscriber(*wanted, address=address, sockets=sockets,
                                 curve_server=curve_server, curve_secret=curve_secret)

    # ---- what it knows ----

    def __len__(self) -> int:
        return len(self.transactions)

    def __contains__(self, txid: Union[str, bytes]) -> bool:
        return _bytes(txid) in self.transactions

    def get(self, txid: Union[str, bytes]) -> Optional[Transaction]:
        """A transaction that is in the mempool, or was there last."""
        key = _bytes(txid)
        return self.transactions.get(key) or self.left.get(key)

    def histogram(self, bounds: Sequence[float] = FEE_RATES) -> List[Bucket]:
        """Transactions by fee rate; those without a known fee are left out."""
        counts, sizes = [0] * len(bounds), [0] * len(bounds)
        for tx in self.transactions.values():
            rate = tx.fee_rate
            if rate is not None:
                i = max(0, bisect.bisect_right(bounds, rate) - 1)
                counts[i] += 1
                sizes[i] += tx.vsize or 0
        return [Bucket(*bucket) for bucket in zip(bounds, counts, sizes)]

    def verify(self, seconds: float = 10) -> Difference:
        """Compares with the node. What changes while that is done is no difference. Items that
        arrive meanwhile are applied and come out of the iterator later."""
        if not self.synced:
            raise RuntimeError("mempool: not synced")
        self._touched, breaks = set(), self._breaks
        try:
            listed = {bytes.fromhex(txid) for txid in self.rpc("getrawmempool", False)}
            self._await_statuses(seconds)
            if breaks != self._breaks:
                raise RuntimeError("mempool: continuity was lost, or the node ended, meanwhile")
            here, touched = set(self.transactions), self._touched or set()
            return Difference(listed - here - touched, here - listed - touched)
        finally:
            if self.synced:
                self._touched = None  # else it grows with each transaction

    def _await_statuses(self, seconds: float) -> None:
        # First what waits here already. Then a status has the node's events up to a moment after the
        # call, and the next one has those that were still on their way to coretapd.
        end, statuses = time.monotonic() + seconds, None
        while statuses is None or self._statuses < statuses + 2:
            if time.monotonic() > end:
                raise TimeoutError("mempool: no status")
            item = self.stream.next(0 if statuses is None else 0.1)
            if item is not None:
                self._told += self._apply(item)
            elif statuses is None:
                statuses = self._statuses

    # ---- following ----

    def update(self, timeout: float = 0) -> int:
        """Applies what has come, waiting at most timeout seconds for the first. Returns how much."""
        done = 0
        while self.next(0 if done else timeout) is not None:
            done += 1
        return done

    def wait_synced(self, timeout: float = 30) -> None:
        end = time.monotonic() + timeout
        while not self.synced:
            if time.monotonic() > end:
                raise TimeoutError("mempool: not synced")
            self.next(max(0.0, min(0.1, end - time.monotonic())))

    def next(self, timeout: Optional[float] = None) -> Optional[ev.Item]:
        """The next event or notice, applied; None when nothing came within timeout seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        while not self._told:
            if self._joined and not self.synced and time.monotonic() >= self._retry_at:
                self._snapshot()
                continue
            wait = None if end is None else max(0.0, end - time.monotonic())
            if self._joined and not self.synced:
                wait = min(RETRY, RETRY if wait is None else wait)
            item = self.stream.next(wait)
            if item is not None:
                self._told += self._apply(item)
            elif end is not None and time.monotonic() >= end:
                return None
        return self._told.pop(0)

    def __iter__(self) -> Iterator[ev.Item]:
        while True:
            item = self.next()
            assert item is not None
            yield item

    def close(self) -> None:
        self.stream.close()

    def __enter__(self) -> "Mempool":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    # ---- inside ----

    def _snapshot(self) -> None:
        self._retry_at = time.monotonic() + RETRY
        try:
            listed = self.rpc("getrawmempool", self.verbose)
        except (RPCError, OSError) as error:
            if str(error) != self._failure:
                self._failure = str(error)
                self._told.append(Resyncing("low", reason=self._failure))
            # Where RPC is away for days: what was applied before the node is asked is in its answer, too.
            if self._touched and len(self._touched) > MAX_TOUCHED:
                self._touched.clear()
            return
        overlay = {txid: self.transactions.get(txid) for txid in self._touched or ()}
        self.transactions = {tx.txid: tx for tx in self._listed(listed) if tx.txid not in overlay}
        self.transactions.update((txid, tx) for txid, tx in overlay.items() if tx)
        self.vsize = sum(tx.vsize or 0 for tx in self.transactions.values())
        self._become_synced()

    def _listed(self, listed: Any) -> Iterator[Transaction]:
        known = self.transactions
        for txid in listed:
            key = bytes.fromhex(txid)
            tx = known.get(key) or Transaction(key)
            if isinstance(listed, dict):
                entry = listed[txid]
                fee = entry["fees"]["base"] if "fees" in entry else entry["fee"]
                tx.vsize, tx.fee, tx.entry_time = entry["vsize"], satoshi(fee), entry["time"]
            yield tx

    def _become_synced(self) -> None:
        self.synced, self._touched, self._failure = True, None, ""
        self.syncs += 1
        self._told.append(Synced("low"))

    def _lose(self, reason: str) -> Iterator[ev.Item]:
        """From here on only what the stream tells is certain."""
        self._touched, self._retry_at = set(), 0.0
        self._breaks += 1
        if self.synced or not self.syncs:
            self.synced = False
            yield Resyncing("low", reason=reason)

    def _apply(self, item: Any) -> List[ev.Item]:
        told = [item] if item.kind != "status" else []
        kind, topic = item.kind, item.topic
        if kind == "event":
            if topic == "mempool.added":
                told += self._add(item)
            elif topic == "mempool.removed":
                told += self._remove(item)
            elif topic == "mempool.replaced":
                self._replace(item)
            elif topic == "validation.block_connected":
                self._block = (item.get("height"), item.get("hash"))
            elif topic == "node.exited":
                self._empty()
        elif kind == "status" and item.get("socket") == "low":
            self._statuses += 1
            self._joined = True
        elif kind in ("gap", "lost") and topic == "validation.block_connected":
            self._block = (None, None)
        elif kind in ("gap", "lost") and topic in (*_CHANGES, "node.exited"):
            told += self._lose(str(item))
        elif kind == "new_run" and item.socket == "low":  # both sockets tell it
            told += self._lose(str(item))
        return told

    def _add(self, event: Any) -> Iterator[ev.Item]:
        if event.get("txid") is None:
            yield from self._lose("a txid could not be read")
            return
        if self._touched is not None:
            self._touched.add(event.txid)
        tx = Transaction(event.txid, event.get("vsize"), event.get("fee"), event.time_us // 1_000_000,
                         event.time_us)
        old = self.transactions.get(event.txid)
        self.vsize += (tx.vsize or 0) - (old.vsize or 0 if old else 0)
        self.transactions[event.txid] = tx
        self.left.pop(event.txid, None)

    def _remove(self, event: Any) -> Iterator[ev.Item]:
        if event.get("txid") is None:
            yield from self._lose("a txid could not be read")
            return
        if self._touched is not None:
            self._touched.add(event.txid)
        tx = self.transactions.pop(event.txid, None)
        if tx:
            self.vsize -= tx.vsize or 0
        else:
            tx = Transaction(event.txid)
        if tx.vsize is None:
            tx.vsize, tx.fee = event.get("vsize"), event.get("fee")
        if event.get("entry_time") is not None:
            tx.entry_time = event.entry_time
        tx.left_us, tx.reason, tx.height = event.time_us, event.get("reason"), event.get("height")
        if tx.height is not None and tx.height == self._block[0]:
            tx.block = self._block[1]
        self.left[tx.txid] = tx
        self.left.move_to_end(tx.txid)
        if len(self.left) > self._keep:
            self.left.popitem(last=False)

    def _replace(self, event: Any) -> None:
        """The removal follows: what replaces it is noted on the transaction until then."""
        tx = self.transactions.get(event.get("txid"))
        if tx:
            tx.replaced_by = event.get("replacement_txid")
            tx.replaced_by_package = event.get("replacement_package")

    def _empty(self) -> None:
        """The node is gone, and its mempool with it: exact again, whatever was before."""
        self.transactions.clear()
        self.vsize = 0
        self._breaks += 1
        if not self.synced and self._joined:
            self._become_synced()


def _bytes(txid: Union[str, bytes]) -> bytes:
    return bytes.fromhex(txid) if isinstance(txid, str) else txid
