// The events of the catalogue. Written by generate.js from protocol/events.json.
//
// A field is null when it could not be read, and undefined when this node does not pass it (an older
// version), or when a payload was not asked for. Int is number, or bigint where that was asked for.
import type { Conflicts, EventOf } from "./index.js";

/** A message from a peer is about to be processed. */
export interface NetInboundMessageFields<Int = number> {
  /** the node's number for the peer */
  peer_id?: Int | null;
  /** address and port, or a host name given by the operator */
  addr?: string | null;
  /** inbound, outbound-full-relay, manual, ... */
  connection_type?: string | null;
  /** message type; the peer's choice, may be empty */
  msg_type?: string | null;
  /** byte: size of the whole payload */
  size?: Int | null;
  /** the payload; absent unless --payload asks for it */
  data?: Buffer | null;
  /** present and true when data is shorter than size */
  truncated?: boolean | null;
}
export type NetInboundMessage<Int = number> = EventOf<"net.inbound_message", NetInboundMessageFields<Int>>;

/** A message to a peer was queued. */
export interface NetOutboundMessageFields<Int = number> {
  /** the node's number for the peer */
  peer_id?: Int | null;
  /** address and port, or a host name given by the operator */
  addr?: string | null;
  /** inbound, outbound-full-relay, manual, ... */
  connection_type?: string | null;
  /** message type; the peer's choice, may be empty */
  msg_type?: string | null;
  /** byte: size of the whole payload */
  size?: Int | null;
  /** the payload; absent unless --payload asks for it */
  data?: Buffer | null;
  /** present and true when data is shorter than size */
  truncated?: boolean | null;
}
export type NetOutboundMessage<Int = number> = EventOf<"net.outbound_message", NetOutboundMessageFields<Int>>;

/** A peer connected to the node. */
export interface NetInboundConnectionFields<Int = number> {
  /** the node's number for the peer */
  peer_id?: Int | null;
  /** address and port, or a host name given by the operator */
  addr?: string | null;
  /** inbound, outbound-full-relay, manual, ... */
  connection_type?: string | null;
  /** ipv4, ipv6, onion, i2p, cjdns, as RPC prints it */
  network?: string | null;
  /** inbound connections, this one included */
  count?: Int | null;
}
export type NetInboundConnection<Int = number> = EventOf<"net.inbound_connection", NetInboundConnectionFields<Int>>;

/** The node connected to a peer. */
export interface NetOutboundConnectionFields<Int = number> {
  /** the node's number for the peer */
  peer_id?: Int | null;
  /** address and port, or a host name given by the operator */
  addr?: string | null;
  /** inbound, outbound-full-relay, manual, ... */
  connection_type?: string | null;
  /** ipv4, ipv6, onion, i2p, cjdns, as RPC prints it */
  network?: string | null;
  /** outbound connections, this one included */
  count?: Int | null;
}
export type NetOutboundConnection<Int = number> = EventOf<"net.outbound_connection", NetOutboundConnectionFields<Int>>;

/** An inbound peer was told to go, to make room. */
export interface NetEvictedInboundConnectionFields<Int = number> {
  /** the node's number for the peer */
  peer_id?: Int | null;
  /** address and port, or a host name given by the operator */
  addr?: string | null;
  /** inbound, outbound-full-relay, manual, ... */
  connection_type?: string | null;
  /** ipv4, ipv6, onion, i2p, cjdns, as RPC prints it */
  network?: string | null;
  /** s: Unix time at which the connection was made */
  established?: Int | null;
}
export type NetEvictedInboundConnection<Int = number> = EventOf<"net.evicted_inbound_connection", NetEvictedInboundConnectionFields<Int>>;

/** A connection was closed. */
export interface NetClosedConnectionFields<Int = number> {
  /** the node's number for the peer */
  peer_id?: Int | null;
  /** address and port, or a host name given by the operator */
  addr?: string | null;
  /** inbound, outbound-full-relay, manual, ... */
  connection_type?: string | null;
  /** ipv4, ipv6, onion, i2p, cjdns, as RPC prints it */
  network?: string | null;
  /** s: Unix time at which the connection was made */
  established?: Int | null;
}
export type NetClosedConnection<Int = number> = EventOf<"net.closed_connection", NetClosedConnectionFields<Int>>;

/** A peer broke the protocol. */
export interface NetMisbehavingConnectionFields<Int = number> {
  /** the node's number for the peer */
  peer_id?: Int | null;
  /** what it did; may be empty */
  reason?: string | null;
}
export type NetMisbehavingConnection<Int = number> = EventOf<"net.misbehaving_connection", NetMisbehavingConnectionFields<Int>>;

/** A block was connected to the chain. */
export interface ValidationBlockConnectedFields<Int = number> {
  /** block hash */
  hash?: Buffer | null;
  /** block height */
  height?: Int | null;
  /** transactions in the block, the coinbase included */
  n_tx?: Int | null;
  /** inputs, the coinbase's included */
  n_inputs?: Int | null;
  /** signature operation cost */
  sigops?: Int | null;
  /** ns: time taken; Core v23 and v24 measure in microseconds */
  duration_ns?: Int | null;
}
export type ValidationBlockConnected<Int = number> = EventOf<"validation.block_connected", ValidationBlockConnectedFields<Int>>;

/** The coins cache was written to disk. */
export interface UtxocacheFlushFields<Int = number> {
  /** ns: time taken, measured in microseconds; may be 0 or less */
  duration_ns?: Int | null;
  /** the node's flush mode: 0 none, 1 if needed, 2 periodic, 3 always (v31: forced flush), 4 forced sync */
  mode?: Int | null;
  /** coins in the cache before the flush */
  coins?: Int | null;
  /** byte: memory of the cache before the flush */
  memory?: Int | null;
  /** whether pruning asked for it */
  prune?: boolean | null;
}
export type UtxocacheFlush<Int = number> = EventOf<"utxocache.flush", UtxocacheFlushFields<Int>>;

/** A coin was added to a coins cache, a temporary one included. */
export interface UtxocacheAddFields<Int = number> {
  /** transaction that made the coin */
  txid?: Buffer | null;
  /** output index */
  vout?: Int | null;
  /** block height; 2147483647 for a coin of the mempool */
  height?: Int | null;
  /** satoshi: amount */
  value?: Int | null;
  /** whether a coinbase made it */
  coinbase?: boolean | null;
}
export type UtxocacheAdd<Int = number> = EventOf<"utxocache.add", UtxocacheAddFields<Int>>;

/** A coin was spent in a coins cache, a temporary one included. */
export interface UtxocacheSpentFields<Int = number> {
  /** transaction that made the coin */
  txid?: Buffer | null;
  /** output index */
  vout?: Int | null;
  /** block height; 2147483647 for a coin of the mempool */
  height?: Int | null;
  /** satoshi: amount */
  value?: Int | null;
  /** whether a coinbase made it */
  coinbase?: boolean | null;
}
export type UtxocacheSpent<Int = number> = EventOf<"utxocache.spent", UtxocacheSpentFields<Int>>;

/** An unmodified coin was dropped from the coins cache. */
export interface UtxocacheUncacheFields<Int = number> {
  /** transaction that made the coin */
  txid?: Buffer | null;
  /** output index */
  vout?: Int | null;
  /** block height; 2147483647 for a coin of the mempool */
  height?: Int | null;
  /** satoshi: amount */
  value?: Int | null;
  /** whether a coinbase made it */
  coinbase?: boolean | null;
}
export type UtxocacheUncache<Int = number> = EventOf<"utxocache.uncache", UtxocacheUncacheFields<Int>>;

/** The wallet selected coins for a payment. */
export interface CoinSelectionSelectedCoinsFields<Int = number> {
  /** wallet name */
  wallet?: string | null;
  /** bnb, knapsack, srd, cg, manual */
  algorithm?: string | null;
  /** satoshi: amount to reach */
  target?: Int | null;
  /** satoshi: waste metric of the selection */
  waste?: Int | null;
  /** satoshi: amount selected */
  selected?: Int | null;
}
export type CoinSelectionSelectedCoins<Int = number> = EventOf<"coin_selection.selected_coins", CoinSelectionSelectedCoinsFields<Int>>;

/** The wallet tried to create a transaction. */
export interface CoinSelectionNormalCreateTxInternalFields<Int = number> {
  /** wallet name */
  wallet?: string | null;
  /** whether it succeeded */
  success?: boolean | null;
  /** satoshi: fee of the transaction */
  fee?: Int | null;
  /** index of the change output, -1 for none */
  change_pos?: Int | null;
}
export type CoinSelectionNormalCreateTxInternal<Int = number> = EventOf<"coin_selection.normal_create_tx_internal", CoinSelectionNormalCreateTxInternalFields<Int>>;

/** The wallet tries once more, avoiding partial spends. */
export interface CoinSelectionAttemptingApsCreateTxFields<Int = number> {
  /** wallet name */
  wallet?: string | null;
}
export type CoinSelectionAttemptingApsCreateTx<Int = number> = EventOf<"coin_selection.attempting_aps_create_tx", CoinSelectionAttemptingApsCreateTxFields<Int>>;

/** The wallet created a transaction that avoids partial spends. */
export interface CoinSelectionApsCreateTxInternalFields<Int = number> {
  /** wallet name */
  wallet?: string | null;
  /** whether this transaction will be used */
  use_aps?: boolean | null;
  /** whether it succeeded */
  success?: boolean | null;
  /** satoshi: fee of the transaction */
  fee?: Int | null;
  /** index of the change output, -1 for none */
  change_pos?: Int | null;
}
export type CoinSelectionApsCreateTxInternal<Int = number> = EventOf<"coin_selection.aps_create_tx_internal", CoinSelectionApsCreateTxInternalFields<Int>>;

/** A transaction was added to the mempool. */
export interface MempoolAddedFields<Int = number> {
  /** transaction */
  txid?: Buffer | null;
  /** vbyte: virtual size, adjusted for sigops */
  vsize?: Int | null;
  /** satoshi: fee */
  fee?: Int | null;
}
export type MempoolAdded<Int = number> = EventOf<"mempool.added", MempoolAddedFields<Int>>;

/** A transaction left the mempool. */
export interface MempoolRemovedFields<Int = number> {
  /** transaction */
  txid?: Buffer | null;
  /** expiry, sizelimit, reorg, block, conflict or replaced */
  reason?: string | null;
  /** vbyte: virtual size, adjusted for sigops */
  vsize?: Int | null;
  /** satoshi: fee */
  fee?: Int | null;
  /** s: Unix time at which it had entered */
  entry_time?: Int | null;
  /** for reasons block and conflict: height of the block, nil when not proven */
  height?: Int | null;
}
export type MempoolRemoved<Int = number> = EventOf<"mempool.removed", MempoolRemovedFields<Int>>;

/** A transaction is about to be replaced; its removal follows. */
export interface MempoolReplacedFields<Int = number> {
  /** transaction that goes */
  txid?: Buffer | null;
  /** vbyte: its virtual size */
  vsize?: Int | null;
  /** satoshi: its fee */
  fee?: Int | null;
  /** s: Unix time at which it had entered */
  entry_time?: Int | null;
  /** transaction that replaces it */
  replacement_txid?: Buffer | null;
  /** in place of replacement_txid: hash of the package that replaces it */
  replacement_package?: Buffer | null;
  /** vbyte: virtual size of the replacement (of all of it, from v29) */
  replacement_vsize?: Int | null;
  /** satoshi: fee of the replacement (of all of it, from v29) */
  replacement_fee?: Int | null;
}
export type MempoolReplaced<Int = number> = EventOf<"mempool.replaced", MempoolReplacedFields<Int>>;

/** A transaction was not accepted. */
export interface MempoolRejectedFields<Int = number> {
  /** transaction */
  txid?: Buffer | null;
  /** why; the wording is the node's and changes between versions */
  reason?: string | null;
}
export type MempoolRejected<Int = number> = EventOf<"mempool.rejected", MempoolRejectedFields<Int>>;

/** The complete list of transactions that left the mempool with one block. */
export interface BlockEvictionsFields<Int = number> {
  /** block hash */
  hash?: Buffer | null;
  /** block height */
  height?: Int | null;
  /** transactions in the block, the coinbase included */
  n_tx?: Int | null;
  /** position n of its validation.block_connected */
  n_block?: Int | null;
  /** transactions removed for reason block, in block order */
  txids?: (Buffer | null)[] | null;
  /** satoshi: their fees */
  fees?: (Int | null)[] | null;
  /** vbyte: their virtual sizes */
  vsizes?: (Int | null)[] | null;
  /** s: Unix times at which they had entered */
  entry_times?: (Int | null)[] | null;
  /** transactions removed for reason conflict: a map of equally long arrays txids, fees, vsizes, entry_times, and after: evictions told before each */
  conflicts?: Conflicts<Int> | null;
  /** n_tx - 1 - evictions: block transactions that were not in the mempool then */
  unseen?: Int | null;
  /** earlier blocks that this one supersedes */
  reorg?: Int | null;
  /** this hash is among the last 1,000 connected */
  repeat?: boolean | null;
  /** proven to lack nothing; only ever true together with final */
  complete?: boolean | null;
  /** false: told early, the whole list follows again; true: the last word */
  final?: boolean | null;
}
export type BlockEvictions<Int = number> = EventOf<"block.evictions", BlockEvictionsFields<Int>>;

/** A node process is traced from here on. */
export interface NodeStartedFields<Int = number> {
  /** path of the executable */
  binary?: string | null;
  /** its ELF build id, hexadecimal */
  build_id?: string | null;
  /** s: Unix time at which the process started */
  started_at?: Int | null;
  /** range of Bitcoin Core versions that its tracepoints fit */
  core?: string | null;
}
export type NodeStarted<Int = number> = EventOf<"node.started", NodeStartedFields<Int>>;

/** The node process is gone; its mempool is empty from here on. */
export interface NodeExitedFields<Int = number> {
  /** path of the executable */
  binary?: string | null;
  /** its ELF build id, hexadecimal */
  build_id?: string | null;
  /** s: Unix time at which the process had started */
  started_at?: Int | null;
  /** range of Bitcoin Core versions that its tracepoints fit */
  core?: string | null;
}
export type NodeExited<Int = number> = EventOf<"node.exited", NodeExitedFields<Int>>;

export interface Topics<Int = number> {
  "net.inbound_message": NetInboundMessage<Int>;
  "net.outbound_message": NetOutboundMessage<Int>;
  "net.inbound_connection": NetInboundConnection<Int>;
  "net.outbound_connection": NetOutboundConnection<Int>;
  "net.evicted_inbound_connection": NetEvictedInboundConnection<Int>;
  "net.closed_connection": NetClosedConnection<Int>;
  "net.misbehaving_connection": NetMisbehavingConnection<Int>;
  "validation.block_connected": ValidationBlockConnected<Int>;
  "utxocache.flush": UtxocacheFlush<Int>;
  "utxocache.add": UtxocacheAdd<Int>;
  "utxocache.spent": UtxocacheSpent<Int>;
  "utxocache.uncache": UtxocacheUncache<Int>;
  "coin_selection.selected_coins": CoinSelectionSelectedCoins<Int>;
  "coin_selection.normal_create_tx_internal": CoinSelectionNormalCreateTxInternal<Int>;
  "coin_selection.attempting_aps_create_tx": CoinSelectionAttemptingApsCreateTx<Int>;
  "coin_selection.aps_create_tx_internal": CoinSelectionApsCreateTxInternal<Int>;
  "mempool.added": MempoolAdded<Int>;
  "mempool.removed": MempoolRemoved<Int>;
  "mempool.replaced": MempoolReplaced<Int>;
  "mempool.rejected": MempoolRejected<Int>;
  "block.evictions": BlockEvictions<Int>;
  "node.started": NodeStarted<Int>;
  "node.exited": NodeExited<Int>;
}
