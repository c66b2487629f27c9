"""The events of the catalogue as classes. Written by generate.py from protocol/events.json.

The fields are those that any node may pass: one that an older node lacks is absent from its events.
"""
from typing import Dict, Optional, Tuple, Type, Union

from .events import Event, Hashes, Numbers


class NetInboundMessage(Event):
    """A message from a peer is about to be processed"""

    __slots__ = ()
    socket = "high"
    peer_id: Optional[int]  # the node's number for the peer
    addr: Optional[str]  # address and port, or a host name given by the operator
    connection_type: Optional[str]  # inbound, outbound-full-relay, manual, ...
    msg_type: Optional[str]  # message type; the peer's choice, may be empty
    size: Optional[int]  # byte: size of the whole payload
    data: Optional[bytes]  # the payload; absent unless --payload asks for it
    truncated: Optional[bool]  # present and true when data is shorter than size


class NetOutboundMessage(Event):
    """A message to a peer was queued"""

    __slots__ = ()
    socket = "high"
    peer_id: Optional[int]  # the node's number for the peer
    addr: Optional[str]  # address and port, or a host name given by the operator
    connection_type: Optional[str]  # inbound, outbound-full-relay, manual, ...
    msg_type: Optional[str]  # message type; the peer's choice, may be empty
    size: Optional[int]  # byte: size of the whole payload
    data: Optional[bytes]  # the payload; absent unless --payload asks for it
    truncated: Optional[bool]  # present and true when data is shorter than size


class NetInboundConnection(Event):
    """A peer connected to the node"""

    __slots__ = ()
    socket = "low"
    peer_id: Optional[int]  # the node's number for the peer
    addr: Optional[str]  # address and port, or a host name given by the operator
    connection_type: Optional[str]  # inbound, outbound-full-relay, manual, ...
    network: Optional[str]  # ipv4, ipv6, onion, i2p, cjdns, as RPC prints it
    count: Optional[int]  # inbound connections, this one included


class NetOutboundConnection(Event):
    """The node connected to a peer"""

    __slots__ = ()
    socket = "low"
    peer_id: Optional[int]  # the node's number for the peer
    addr: Optional[str]  # address and port, or a host name given by the operator
    connection_type: Optional[str]  # inbound, outbound-full-relay, manual, ...
    network: Optional[str]  # ipv4, ipv6, onion, i2p, cjdns, as RPC prints it
    count: Optional[int]  # outbound connections, this one included


class NetEvictedInboundConnection(Event):
    """An inbound peer was told to go, to make room"""

    __slots__ = ()
    socket = "low"
    peer_id: Optional[int]  # the node's number for the peer
    addr: Optional[str]  # address and port, or a host name given by the operator
    connection_type: Optional[str]  # inbound, outbound-full-relay, manual, ...
    network: Optional[str]  # ipv4, ipv6, onion, i2p, cjdns, as RPC prints it
    established: Optional[int]  # s: Unix time at which the connection was made


class NetClosedConnection(Event):
    """A connection was closed"""

    __slots__ = ()
    socket = "low"
    peer_id: Optional[int]  # the node's number for the peer
    addr: Optional[str]  # address and port, or a host name given by the operator
    connection_type: Optional[str]  # inbound, outbound-full-relay, manual, ...
    network: Optional[str]  # ipv4, ipv6, onion, i2p, cjdns, as RPC prints it
    established: Optional[int]  # s: Unix time at which the connection was made


class NetMisbehavingConnection(Event):
    """A peer broke the protocol"""

    __slots__ = ()
    socket = "low"
    peer_id: Optional[int]  # the node's number for the peer
    reason: Optional[str]  # what it did; may be empty


class ValidationBlockConnected(Event):
    """A block was connected to the chain"""

    __slots__ = ()
    socket = "low"
    hash: Optional[bytes]  # block hash
    height: Optional[int]  # block height
    n_tx: Optional[int]  # transactions in the block, the coinbase included
    n_inputs: Optional[int]  # inputs, the coinbase's included
    sigops: Optional[int]  # signature operation cost
    duration_ns: Optional[int]  # ns: time taken; Core v23 and v24 measure in microseconds


class UtxocacheFlush(Event):
    """The coins cache was written to disk"""

    __slots__ = ()
    socket = "low"
    duration_ns: Optional[int]  # ns: time taken, measured in microseconds; may be 0 or less
    mode: Optional[int]  # the node's flush mode: 0 none, 1 if needed, 2 periodic, 3 always (v31: forced flush), 4 forced sync
    coins: Optional[int]  # coins in the cache before the flush
    memory: Optional[int]  # byte: memory of the cache before the flush
    prune: Optional[bool]  # whether pruning asked for it


class UtxocacheAdd(Event):
    """A coin was added to a coins cache, a temporary one included"""

    __slots__ = ()
    socket = "high"
    txid: Optional[bytes]  # transaction that made the coin
    vout: Optional[int]  # output index
    height: Optional[int]  # block height; 2147483647 for a coin of the mempool
    value: Optional[int]  # satoshi: amount
    coinbase: Optional[bool]  # whether a coinbase made it


class UtxocacheSpent(Event):
    """A coin was spent in a coins cache, a temporary one included"""

    __slots__ = ()
    socket = "high"
    txid: Optional[bytes]  # transaction that made the coin
    vout: Optional[int]  # output index
    height: Optional[int]  # block height; 2147483647 for a coin of the mempool
    value: Optional[int]  # satoshi: amount
    coinbase: Optional[bool]  # whether a coinbase made it


class UtxocacheUncache(Event):
    """An unmodified coin was dropped from the coins cache"""

    __slots__ = ()
    socket = "high"
    txid: Optional[bytes]  # transaction that made the coin
    vout: Optional[int]  # output index
    height: Optional[int]  # block height; 2147483647 for a coin of the mempool
    value: Optional[int]  # satoshi: amount
    coinbase: Optional[bool]  # whether a coinbase made it


class CoinSelectionSelectedCoins(Event):
    """The wallet selected coins for a payment"""

    __slots__ = ()
    socket = "low"
    wallet: Optional[str]  # wallet name
    algorithm: Optional[str]  # bnb, knapsack, srd, cg, manual
    target: Optional[int]  # satoshi: amount to reach
    waste: Optional[int]  # satoshi: waste metric of the selection
    selected: Optional[int]  # satoshi: amount selected


class CoinSelectionNormalCreateTxInternal(Event):
    """The wallet tried to create a transaction"""

    __slots__ = ()
    socket = "low"
    wallet: Optional[str]  # wallet name
    success: Optional[bool]  # whether it succeeded
    fee: Optional[int]  # satoshi: fee of the transaction
    change_pos: Optional[int]  # index of the change output, -1 for none


class CoinSelectionAttemptingApsCreateTx(Event):
    """The wallet tries once more, avoiding partial spends"""

    __slots__ = ()
    socket = "low"
    wallet: Optional[str]  # wallet name


class CoinSelectionApsCreateTxInternal(Event):
    """The wallet created a transaction that avoids partial spends"""

    __slots__ = ()
    socket = "low"
    wallet: Optional[str]  # wallet name
    use_aps: Optional[bool]  # whether this transaction will be used
    success: Optional[bool]  # whether it succeeded
    fee: Optional[int]  # satoshi: fee of the transaction
    change_pos: Optional[int]  # index of the change output, -1 for none


class MempoolAdded(Event):
    """A transaction was added to the mempool"""

    __slots__ = ()
    socket = "low"
    txid: Optional[bytes]  # transaction
    vsize: Optional[int]  # vbyte: virtual size, adjusted for sigops
    fee: Optional[int]  # satoshi: fee


class MempoolRemoved(Event):
    """A transaction left the mempool"""

    __slots__ = ()
    socket = "low"
    txid: Optional[bytes]  # transaction
    reason: Optional[str]  # expiry, sizelimit, reorg, block, conflict or replaced
    vsize: Optional[int]  # vbyte: virtual size, adjusted for sigops
    fee: Optional[int]  # satoshi: fee
    entry_time: Optional[int]  # s: Unix time at which it had entered
    height: Optional[int]  # for reasons block and conflict: height of the block, nil when not proven


class MempoolReplaced(Event):
    """A transaction is about to be replaced; its removal follows"""

    __slots__ = ()
    socket = "low"
    txid: Optional[bytes]  # transaction that goes
    vsize: Optional[int]  # vbyte: its virtual size
    fee: Optional[int]  # satoshi: its fee
    entry_time: Optional[int]  # s: Unix time at which it had entered
    replacement_txid: Optional[bytes]  # transaction that replaces it
    replacement_package: Optional[bytes]  # in place of replacement_txid: hash of the package that replaces it
    replacement_vsize: Optional[int]  # vbyte: virtual size of the replacement (of all of it, from v29)
    replacement_fee: Optional[int]  # satoshi: fee of the replacement (of all of it, from v29)


class MempoolRejected(Event):
    """A transaction was not accepted"""

    __slots__ = ()
    socket = "low"
    txid: Optional[bytes]  # transaction
    reason: Optional[str]  # why; the wording is the node's and changes between versions


class BlockEvictions(Event):
    """The complete list of transactions that left the mempool with one block"""

    __slots__ = ()
    socket = "low"
    hash: Optional[bytes]  # block hash
    height: Optional[int]  # block height
    n_tx: Optional[int]  # transactions in the block, the coinbase included
    n_block: Optional[int]  # position n of its validation.block_connected
    txids: Optional[Hashes]  # transactions removed for reason block, in block order
    fees: Optional[Numbers]  # satoshi: their fees
    vsizes: Optional[Numbers]  # vbyte: their virtual sizes
    entry_times: Optional[Numbers]  # s: Unix times at which they had entered
    conflicts: Optional[Dict[str, Union[Hashes, Numbers]]]  # transactions removed for reason conflict: a map of equally long arrays txids, fees, vsizes, entry_times, and after: evictions told before each
    unseen: Optional[int]  # n_tx - 1 - evictions: block transactions that were not in the mempool then
    reorg: Optional[int]  # earlier blocks that this one supersedes
    repeat: Optional[bool]  # this hash is among the last 1,000 connected
    complete: Optional[bool]  # proven to lack nothing; only ever true together with final
    final: Optional[bool]  # false: told early, the whole list follows again; true: the last word


class NodeStarted(Event):
    """A node process is traced from here on"""

    __slots__ = ()
    socket = "low"
    binary: Optional[str]  # path of the executable
    build_id: Optional[str]  # its ELF build id, hexadecimal
    started_at: Optional[int]  # s: Unix time at which the process started
    core: Optional[str]  # range of Bitcoin Core versions that its tracepoints fit


class NodeExited(Event):
    """The node process is gone; its mempool is empty from here on"""

    __slots__ = ()
    socket = "low"
    binary: Optional[str]  # path of the executable
    build_id: Optional[str]  # its ELF build id, hexadecimal
    started_at: Optional[int]  # s: Unix time at which the process had started
    core: Optional[str]  # range of Bitcoin Core versions that its tracepoints fit


# Of each topic: its class, and the types of its fields.
CATALOGUE: Dict[str, Tuple[Type[Event], Dict[str, str]]] = {
    "net.inbound_message": (NetInboundMessage, {"peer_id": "int", "addr": "text", "connection_type": "text", "msg_type": "text", "size": "uint", "data": "bin", "truncated": "bool"}),
    "net.outbound_message": (NetOutboundMessage, {"peer_id": "int", "addr": "text", "connection_type": "text", "msg_type": "text", "size": "uint", "data": "bin", "truncated": "bool"}),
    "net.inbound_connection": (NetInboundConnection, {"peer_id": "int", "addr": "text", "connection_type": "text", "network": "text", "count": "uint"}),
    "net.outbound_connection": (NetOutboundConnection, {"peer_id": "int", "addr": "text", "connection_type": "text", "network": "text", "count": "uint"}),
    "net.evicted_inbound_connection": (NetEvictedInboundConnection, {"peer_id": "int", "addr": "text", "connection_type": "text", "network": "text", "established": "int"}),
    "net.closed_connection": (NetClosedConnection, {"peer_id": "int", "addr": "text", "connection_type": "text", "network": "text", "established": "int"}),
    "net.misbehaving_connection": (NetMisbehavingConnection, {"peer_id": "int", "reason": "text"}),
    "validation.block_connected": (ValidationBlockConnected, {"hash": "hash", "height": "uint", "n_tx": "uint", "n_inputs": "uint", "sigops": "uint", "duration_ns": "int"}),
    "utxocache.flush": (UtxocacheFlush, {"duration_ns": "int", "mode": "uint", "coins": "uint", "memory": "uint", "prune": "bool"}),
    "utxocache.add": (UtxocacheAdd, {"txid": "hash", "vout": "uint", "height": "uint", "value": "int", "coinbase": "bool"}),
    "utxocache.spent": (UtxocacheSpent, {"txid": "hash", "vout": "uint", "height": "uint", "value": "int", "coinbase": "bool"}),
    "utxocache.uncache": (UtxocacheUncache, {"txid": "hash", "vout": "uint", "height": "uint", "value": "int", "coinbase": "bool"}),
    "coin_selection.selected_coins": (CoinSelectionSelectedCoins, {"wallet": "text", "algorithm": "text", "target": "int", "waste": "int", "selected": "int"}),
    "coin_selection.normal_create_tx_internal": (CoinSelectionNormalCreateTxInternal, {"wallet": "text", "success": "bool", "fee": "int", "change_pos": "int"}),
    "coin_selection.attempting_aps_create_tx": (CoinSelectionAttemptingApsCreateTx, {"wallet": "text"}),
    "coin_selection.aps_create_tx_internal": (CoinSelectionApsCreateTxInternal, {"wallet": "text", "use_aps": "bool", "success": "bool", "fee": "int", "change_pos": "int"}),
    "mempool.added": (MempoolAdded, {"txid": "hash", "vsize": "uint", "fee": "int"}),
    "mempool.removed": (MempoolRemoved, {"txid": "hash", "reason": "text", "vsize": "uint", "fee": "int", "entry_time": "uint", "height": "uint"}),
    "mempool.replaced": (MempoolReplaced, {"txid": "hash", "vsize": "uint", "fee": "int", "entry_time": "uint", "replacement_txid": "hash", "replacement_package": "hash", "replacement_vsize": "uint", "replacement_fee": "int"}),
    "mempool.rejected": (MempoolRejected, {"txid": "hash", "reason": "text"}),
    "block.evictions": (BlockEvictions, {"hash": "hash", "height": "uint", "n_tx": "uint", "n_block": "uint", "txids": "hashes", "fees": "ints", "vsizes": "uints", "entry_times": "uints", "conflicts": "conflicts", "unseen": "uint", "reorg": "uint", "repeat": "bool", "complete": "bool", "final": "bool"}),
    "node.started": (NodeStarted, {"binary": "text", "build_id": "text", "started_at": "uint", "core": "text"}),
    "node.exited": (NodeExited, {"binary": "text", "build_id": "text", "started_at": "uint", "core": "text"}),
}
