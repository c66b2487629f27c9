"""P2P messages: what stands in the field data of net.inbound_message and net.outbound_message when
coretapd runs with --payload.

    message = p2p.decode(event.msg_type, event.data)

Transactions and blocks are read by python-bitcoinlib (Debian: python3-bitcoinlib). Hashes are bytes
in the order in which RPC prints them, like everywhere in this package.
"""
import base64
import hashlib
import io
import ipaddress
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple, TypeVar

T = TypeVar("T")
_MAX_LIST = 50_000  # of inv and getdata; nothing else in the protocol is longer


class DecodeError(ValueError):
    """The payload is not what its message type says, or was cut."""


class Inventory(NamedTuple):
    type: int  # 1 transaction, 2 block, 4 compact block, 5 transaction by wtxid; 0x40000000 witness
    hash: bytes


class Header(NamedTuple):
    hash: bytes
    version: int
    previous: bytes
    merkle_root: bytes
    time: int
    bits: int
    nonce: int


class Address(NamedTuple):
    time: Optional[int]
    services: int
    network: str  # ipv4, ipv6, onion, i2p, cjdns, or the number of one that is not known here
    host: str
    port: int


class Input(NamedTuple):
    txid: bytes
    vout: int
    sequence: int


class Output(NamedTuple):
    value: int  # satoshi
    script: bytes


class Tx(NamedTuple):
    txid: bytes
    wtxid: bytes
    version: int
    inputs: Tuple[Input, ...]
    outputs: Tuple[Output, ...]
    lock_time: int
    size: int
    vsize: int  # by weight, not adjusted for sigops


class Block(NamedTuple):
    header: Header
    transactions: Tuple[Tx, ...]


class CompactBlock(NamedTuple):
    header: Header
    nonce: int
    short_ids: Tuple[bytes, ...]
    prefilled: Tuple[Tuple[int, Tx], ...]  # index in the block


class Version(NamedTuple):
    version: int
    services: int
    time: int
    user_agent: str
    height: int
    relay: bool


class Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise DecodeError("truncated")
        self.at += count
        return self.data[self.at - count:self.at]

    def uint(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def sint(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little", signed=True)

    def hash(self) -> bytes:
        return self.take(32)[::-1]

    def compact(self) -> int:
        first = self.uint(1)
        return first if first < 0xfd else self.uint({0xfd: 2, 0xfe: 4, 0xff: 8}[first])

    def list(self, read: Callable[["Reader"], T]) -> Tuple[T, ...]:
        count = self.compact()
        if count > _MAX_LIST:
            raise DecodeError(f"a list of {count}")
        return tuple(read(self) for _ in range(count))

    def end(self) -> None:
        if self.at != len(self.data):
            raise DecodeError("bytes after its end")


# ---- by ourselves ----

def _inventory(r: Reader) -> Inventory:
    return Inventory(r.uint(4), r.hash())


def _header(r: Reader) -> Header:
    start = r.at
    version, previous, root, time, bits, nonce = r.sint(4), r.hash(), r.hash(), r.uint(4), \
        r.uint(4), r.uint(4)
    digest = hashlib.sha256(hashlib.sha256(r.data[start:r.at]).digest()).digest()
    return Header(digest[::-1], version, previous, root, time, bits, nonce)


def _header_in_list(r: Reader) -> Header:
    header = _header(r)
    r.compact()  # number of transactions, always 0
    return header


def _ip(raw: bytes) -> Tuple[str, str]:
    address = ipaddress.IPv6Address(raw)
    if address.ipv4_mapped:
        return "ipv4", str(address.ipv4_mapped)
    return "ipv6", str(address)


def _addr(r: Reader) -> Address:
    time, services, raw, port = r.uint(4), r.uint(8), r.take(16), int.from_bytes(r.take(2), "big")
    return Address(time, services, *_ip(raw), port)


def _onion(key: bytes) -> str:
    checksum = hashlib.sha3_256(b".onion checksum" + key + b"\3").digest()[:2]
    return base64.b32encode(key + checksum + b"\3").decode().lower() + ".onion"


def _host(network: int, raw: bytes) -> Tuple[str, str]:
    """BIP 155."""
    if (network, len(raw)) == (1, 4):
        return "ipv4", str(ipaddress.IPv4Address(raw))
    if (network, len(raw)) == (2, 16):
        return "ipv6", str(ipaddress.IPv6Address(raw))
    if (network, len(raw)) == (4, 32):
        return "onion", _onion(raw)
    if (network, len(raw)) == (5, 32):
        return "i2p", base64.b32encode(raw).decode().lower().rstrip("=") + ".b32.i2p"
    if (network, len(raw)) == (6, 16):
        return "cjdns", str(ipaddress.IPv6Address(raw))
    return str(network), raw.hex()


def _addrv2(r: Reader) -> Address:
    time, services, network = r.uint(4), r.compact(), r.uint(1)
    raw = r.take(min(r.compact(), 513))
    if len(raw) > 512:
        raise DecodeError("an address of more than 512 bytes")
    return Address(time, services, *_host(network, raw), int.from_bytes(r.take(2), "big"))


def _version(r: Reader) -> Version:
    version, services, time = r.sint(4), r.uint(8), r.sint(8)
    r.take(26 + 26 + 8)  # both addresses, nonce
    agent = r.take(r.compact()).decode(errors="replace")
    height = r.sint(4)
    relay = r.uint(1) != 0 if r.at < len(r.data) else True
    return Version(version, services, time, agent, height, relay)


# ---- by python-bitcoinlib ----

def _core() -> Any:
    try:
        import bitcoin.core
    except ImportError:
        raise ImportError("decoding transactions wants python-bitcoinlib "
                          "(apt install python3-bitcoinlib)") from None
    return bitcoin.core


def _from_library(tx: Any) -> Tx:
    whole, stripped = tx.serialize(), None
    wtxid = hashlib.sha256(hashlib.sha256(whole).digest()).digest()[::-1]
    if tx.has_witness():
        stripped = tx.__class__(tx.vin, tx.vout, tx.nLockTime, tx.nVersion).serialize()
    weight = 3 * len(stripped or whole) + len(whole)
    return Tx(tx.GetTxid()[::-1], wtxid, tx.nVersion,
              tuple(Input(i.prevout.hash[::-1], i.prevout.n, i.nSequence) for i in tx.vin),
              tuple(Output(o.nValue, bytes(o.scriptPubKey)) for o in tx.vout),
              tx.nLockTime, len(whole), (weight + 3) // 4)


def _tx(r: Reader) -> Tx:
    stream = io.BytesIO(r.data)  # shares the bytes, copies nothing
    stream.seek(r.at)
    tx = _core().CTransaction.stream_deserialize(stream)
    r.at = stream.tell()
    return _from_library(tx)


def _block(r: Reader) -> Block:
    return Block(_header(r), r.list(_tx))


def _cmpctblock(r: Reader) -> CompactBlock:
    header, nonce = _header(r), r.uint(8)
    short_ids = r.list(lambda r: r.take(6))
    prefilled: List[Tuple[int, Tx]] = []
    index = -1
    for _ in range(r.compact()):
        index += r.compact() + 1  # differentially encoded
        prefilled.append((index, _tx(r)))
    return CompactBlock(header, nonce, short_ids, tuple(prefilled))


def _nonce(r: Reader) -> Optional[int]:
    return r.uint(8) if r.data else None  # peers before BIP 31 send none


DECODERS: Dict[str, Callable[[Reader], Any]] = {
    "version": _version,
    "inv": lambda r: r.list(_inventory),
    "getdata": lambda r: r.list(_inventory),
    "notfound": lambda r: r.list(_inventory),
    "headers": lambda r: r.list(_header_in_list),
    "addr": lambda r: r.list(_addr),
    "addrv2": lambda r: r.list(_addrv2),
    "feefilter": lambda r: r.sint(8),
    "ping": _nonce,
    "pong": _nonce,
    "tx": _tx,
    "block": _block,
    "cmpctblock": _cmpctblock,
}


def decode(msg_type: str, data: bytes) -> Any:
    """The payload of a message. KeyError for a type that is not known here (see DECODERS),
    DecodeError for a payload that is not of its type."""
    read = DECODERS[msg_type]
    reader = Reader(data)
    try:
        value = read(reader)
    except (DecodeError, ImportError):
        raise
    except Exception as error:  # python-bitcoinlib raises many kinds on hostile input
        raise DecodeError(f"{msg_type}: {error}") from None
    if msg_type != "version":
        reader.end()
    return value


# ---- who sent it first ----

class Origin(NamedTuple):
    """A transaction that was accepted: who sent it first, and what it spends."""
    txid: bytes
    time_us: int  # of the message
    peer_id: int
    addr: str
    delay_us: int  # from the message to the acceptance
    inputs: Tuple[Input, ...]
    parents: Tuple[bytes, ...]  # those of its inputs' transactions that were in the pool: its package


class Origins:
    """Joins net.inbound_message of type tx with mempool.added. Feed it both topics, and
    mempool.removed; the two sockets have no common order, so either may come first."""

    def __init__(self, limit: int = 50_000) -> None:
        self.limit = limit
        self._seen: Dict[bytes, Tuple[Any, Tx]] = {}
        self._added: Dict[bytes, Any] = {}
        self._pool: Dict[bytes, None] = {}

    def feed(self, item: Any) -> Optional[Origin]:
        if item.kind != "event":
            return None
        if item.topic == "mempool.removed" and item.get("txid"):
            self._pool.pop(item.txid, None)
        elif item.topic == "mempool.added" and item.get("txid"):
            self._keep(self._pool, item.txid, None)
            self._keep(self._added, item.txid, item)
            return self._join(item.txid)
        elif item.topic == "net.inbound_message" and item.get("msg_type") == "tx" and \
                item.get("data") and not item.get("truncated"):
            try:
                tx = decode("tx", item.data)
            except DecodeError:
                return None
            if tx.txid not in self._seen:
                self._keep(self._seen, tx.txid, (item, tx))
                return self._join(tx.txid)
        return None

    def _keep(self, table: Dict[bytes, Any], key: bytes, value: Any) -> None:
        table[key] = value
        if len(table) > self.limit:
            table.pop(next(iter(table)))

    def _join(self, txid: bytes) -> Optional[Origin]:
        if txid not in self._seen or txid not in self._added:
            return None
        added, (message, tx) = self._added.pop(txid), self._seen[txid]
        if message.time_us > added.time_us:
            return None  # it was accepted before: from the node's own wallet or RPC, or out of its file
        parents = tuple(dict.fromkeys(i.txid for i in tx.inputs if i.txid in self._pool))
        return Origin(txid, message.time_us, message.get("peer_id"), message.get("addr"),
                      added.time_us - message.time_us, tx.inputs, parents)
