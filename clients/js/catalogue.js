// The events of the catalogue. Written by generate.js from protocol/events.json.
import { Event } from "./src/events.js";

/** A message from a peer is about to be processed. */
export class NetInboundMessage extends Event {
  get peer_id() { return this.fields.peer_id; }
  get addr() { return this.fields.addr; }
  get connection_type() { return this.fields.connection_type; }
  get msg_type() { return this.fields.msg_type; }
  get size() { return this.fields.size; }
  get data() { return this.fields.data; }
  get truncated() { return this.fields.truncated; }
}

/** A message to a peer was queued. */
export class NetOutboundMessage extends Event {
  get peer_id() { return this.fields.peer_id; }
  get addr() { return this.fields.addr; }
  get connection_type() { return this.fields.connection_type; }
  get msg_type() { return this.fields.msg_type; }
  get size() { return this.fields.size; }
  get data() { return this.fields.data; }
  get truncated() { return this.fields.truncated; }
}

/** A peer connected to the node. */
export class NetInboundConnection extends Event {
  get peer_id() { return this.fields.peer_id; }
  get addr() { return this.fields.addr; }
  get connection_type() { return this.fields.connection_type; }
  get network() { return this.fields.network; }
  get count() { return this.fields.count; }
}

/** The node connected to a peer. */
export class NetOutboundConnection extends Event {
  get peer_id() { return this.fields.peer_id; }
  get addr() { return this.fields.addr; }
  get connection_type() { return this.fields.connection_type; }
  get network() { return this.fields.network; }
  get count() { return this.fields.count; }
}

/** An inbound peer was told to go, to make room. */
export class NetEvictedInboundConnection extends Event {
  get peer_id() { return this.fields.peer_id; }
  get addr() { return this.fields.addr; }
  get connection_type() { return this.fields.connection_type; }
  get network() { return this.fields.network; }
  get established() { return this.fields.established; }
}

/** A connection was closed. */
export class NetClosedConnection extends Event {
  get peer_id() { return this.fields.peer_id; }
  get addr() { return this.fields.addr; }
  get connection_type() { return this.fields.connection_type; }
  get network() { return this.fields.network; }
  get established() { return this.fields.established; }
}

/** A peer broke the protocol. */
export class NetMisbehavingConnection extends Event {
  get peer_id() { return this.fields.peer_id; }
  get reason() { return this.fields.reason; }
}

/** A block was connected to the chain. */
export class ValidationBlockConnected extends Event {
  get hash() { return this.fields.hash; }
  get height() { return this.fields.height; }
  get n_tx() { return this.fields.n_tx; }
  get n_inputs() { return this.fields.n_inputs; }
  get sigops() { return this.fields.sigops; }
  get duration_ns() { return this.fields.duration_ns; }
}

/** The coins cache was written to disk. */
export class UtxocacheFlush extends Event {
  get duration_ns() { return this.fields.duration_ns; }
  get mode() { return this.fields.mode; }
  get coins() { return this.fields.coins; }
  get memory() { return this.fields.memory; }
  get prune() { return this.fields.prune; }
}

/** A coin was added to a coins cache, a temporary one included. */
export class UtxocacheAdd extends Event {
  get txid() { return this.fields.txid; }
  get vout() { return this.fields.vout; }
  get height() { return this.fields.height; }
  get value() { return this.fields.value; }
  get coinbase() { return this.fields.coinbase; }
}

/** A coin was spent in a coins cache, a temporary one included. */
export class UtxocacheSpent extends Event {
  get txid() { return this.fields.txid; }
  get vout() { return this.fields.vout; }
  get height() { return this.fields.height; }
  get value() { return this.fields.value; }
  get coinbase() { return this.fields.coinbase; }
}

/** An unmodified coin was dropped from the coins cache. */
export class UtxocacheUncache extends Event {
  get txid() { return this.fields.txid; }
  get vout() { return this.fields.vout; }
  get height() { return this.fields.height; }
  get value() { return this.fields.value; }
  get coinbase() { return this.fields.coinbase; }
}

/** The wallet selected coins for a payment. */
export class CoinSelectionSelectedCoins extends Event {
  get wallet() { return this.fields.wallet; }
  get algorithm() { return this.fields.algorithm; }
  get target() { return this.fields.target; }
  get waste() { return this.fields.waste; }
  get selected() { return this.fields.selected; }
}

/** The wallet tried to create a transaction. */
export class CoinSelectionNormalCreateTxInternal extends Event {
  get wallet() { return this.fields.wallet; }
  get success() { return this.fields.success; }
  get fee() { return this.fields.fee; }
  get change_pos() { return this.fields.change_pos; }
}

/** The wallet tries once more, avoiding partial spends. */
export class CoinSelectionAttemptingApsCreateTx extends Event {
  get wallet() { return this.fields.wallet; }
}

/** The wallet created a transaction that avoids partial spends. */
export class CoinSelectionApsCreateTxInternal extends Event {
  get wallet() { return this.fields.wallet; }
  get use_aps() { return this.fields.use_aps; }
  get success() { return this.fields.success; }
  get fee() { return this.fields.fee; }
  get change_pos() { return this.fields.change_pos; }
}

/** A transaction was added to the mempool. */
export class MempoolAdded extends Event {
  get txid() { return this.fields.txid; }
  get vsize() { return this.fields.vsize; }
  get fee() { return this.fields.fee; }
}

/** A transaction left the mempool. */
export class MempoolRemoved extends Event {
  get txid() { return this.fields.txid; }
  get reason() { return this.fields.reason; }
  get vsize() { return this.fields.vsize; }
  get fee() { return this.fields.fee; }
  get entry_time() { return this.fields.entry_time; }
  get height() { return this.fields.height; }
}

/** A transaction is about to be replaced; its removal follows. */
export class MempoolReplaced extends Event {
  get txid() { return this.fields.txid; }
  get vsize() { return this.fields.vsize; }
  get fee() { return this.fields.fee; }
  get entry_time() { return this.fields.entry_time; }
  get replacement_txid() { return this.fields.replacement_txid; }
  get replacement_package() { return this.fields.replacement_package; }
  get replacement_vsize() { return this.fields.replacement_vsize; }
  get replacement_fee() { return this.fields.replacement_fee; }
}

/** A transaction was not accepted. */
export class MempoolRejected extends Event {
  get txid() { return this.fields.txid; }
  get reason() { return this.fields.reason; }
}

/** The complete list of transactions that left the mempool with one block. */
export class BlockEvictions extends Event {
  get hash() { return this.fields.hash; }
  get height() { return this.fields.height; }
  get n_tx() { return this.fields.n_tx; }
  get n_block() { return this.fields.n_block; }
  get txids() { return this.fields.txids; }
  get fees() { return this.fields.fees; }
  get vsizes() { return this.fields.vsizes; }
  get entry_times() { return this.fields.entry_times; }
  get conflicts() { return this.fields.conflicts; }
  get unseen() { return this.fields.unseen; }
  get reorg() { return this.fields.reorg; }
  get repeat() { return this.fields.repeat; }
  get complete() { return this.fields.complete; }
  get final() { return this.fields.final; }
}

/** A node process is traced from here on. */
export class NodeStarted extends Event {
  get binary() { return this.fields.binary; }
  get build_id() { return this.fields.build_id; }
  get started_at() { return this.fields.started_at; }
  get core() { return this.fields.core; }
}

/** The node process is gone; its mempool is empty from here on. */
export class NodeExited extends Event {
  get binary() { return this.fields.binary; }
  get build_id() { return this.fields.build_id; }
  get started_at() { return this.fields.started_at; }
  get core() { return this.fields.core; }
}

/** Of each topic: its class, its socket, and the types of its fields. */
export const CATALOGUE = new Map(Object.entries({
  "net.inbound_message": {
    make: NetInboundMessage,
    socket: "high",
    fields: { peer_id: "int", addr: "text", connection_type: "text", msg_type: "text", size: "uint", data: "bin", truncated: "bool" },
  },
  "net.outbound_message": {
    make: NetOutboundMessage,
    socket: "high",
    fields: { peer_id: "int", addr: "text", connection_type: "text", msg_type: "text", size: "uint", data: "bin", truncated: "bool" },
  },
  "net.inbound_connection": {
    make: NetInboundConnection,
    socket: "low",
    fields: { peer_id: "int", addr: "text", connection_type: "text", network: "text", count: "uint" },
  },
  "net.outbound_connection": {
    make: NetOutboundConnection,
    socket: "low",
    fields: { peer_id: "int", addr: "text", connection_type: "text", network: "text", count: "uint" },
  },
  "net.evicted_inbound_connection": {
    make: NetEvictedInboundConnection,
    socket: "low",
    fields: { peer_id: "int", addr: "text", connection_type: "text", network: "text", established: "int" },
  },
  "net.closed_connection": {
    make: NetClosedConnection,
    socket: "low",
    fields: { peer_id: "int", addr: "text", connection_type: "text", network: "text", established: "int" },
  },
  "net.misbehaving_connection": {
    make: NetMisbehavingConnection,
    socket: "low",
    fields: { peer_id: "int", reason: "text" },
  },
  "validation.block_connected": {
    make: ValidationBlockConnected,
    socket: "low",
    fields: { hash: "hash", height: "uint", n_tx: "uint", n_inputs: "uint", sigops: "uint", duration_ns: "int" },
  },
  "utxocache.flush": {
    make: UtxocacheFlush,
    socket: "low",
    fields: { duration_ns: "int", mode: "uint", coins: "uint", memory: "uint", prune: "bool" },
  },
  "utxocache.add": {
    make: UtxocacheAdd,
    socket: "high",
    fields: { txid: "hash", vout: "uint", height: "uint", value: "int", coinbase: "bool" },
  },
  "utxocache.spent": {
    make: UtxocacheSpent,
    socket: "high",
    fields: { txid: "hash", vout: "uint", height: "uint", value: "int", coinbase: "bool" },
  },
  "utxocache.uncache": {
    make: UtxocacheUncache,
    socket: "high",
    fields: { txid: "hash", vout: "uint", height: "uint", value: "int", coinbase: "bool" },
  },
  "coin_selection.selected_coins": {
    make: CoinSelectionSelectedCoins,
    socket: "low",
    fields: { wallet: "text", algorithm: "text", target: "int", waste: "int", selected: "int" },
  },
  "coin_selection.normal_create_tx_internal": {
    make: CoinSelectionNormalCreateTxInternal,
    socket: "low",
    fields: { wallet: "text", success: "bool", fee: "int", change_pos: "int" },
  },
  "coin_selection.attempting_aps_create_tx": {
    make: CoinSelectionAttemptingApsCreateTx,
    socket: "low",
    fields: { wallet: "text" },
  },
  "coin_selection.aps_create_tx_internal": {
    make: CoinSelectionApsCreateTxInternal,
    socket: "low",
    fields: { wallet: "text", use_aps: "bool", success: "bool", fee: "int", change_pos: "int" },
  },
  "mempool.added": {
    make: MempoolAdded,
    socket: "low",
    fields: { txid: "hash", vsize: "uint", fee: "int" },
  },
  "mempool.removed": {
    make: MempoolRemoved,
    socket: "low",
    fields: { txid: "hash", reason: "text", vsize: "uint", fee: "int", entry_time: "uint", height: "uint" },
  },
  "mempool.replaced": {
    make: MempoolReplaced,
    socket: "low",
    fields: { txid: "hash", vsize: "uint", fee: "int", entry_time: "uint", replacement_txid: "hash", replacement_package: "hash", replacement_vsize: "uint", replacement_fee: "int" },
  },
  "mempool.rejected": {
    make: MempoolRejected,
    socket: "low",
    fields: { txid: "hash", reason: "text" },
  },
  "block.evictions": {
    make: BlockEvictions,
    socket: "low",
    fields: { hash: "hash", height: "uint", n_tx: "uint", n_block: "uint", txids: "hashes", fees: "ints", vsizes: "uints", entry_times: "uints", conflicts: "conflicts", unseen: "uint", reorg: "uint", repeat: "bool", complete: "bool", final: "bool" },
  },
  "node.started": {
    make: NodeStarted,
    socket: "low",
    fields: { binary: "text", build_id: "text", started_at: "uint", core: "text" },
  },
  "node.exited": {
    make: NodeExited,
    socket: "low",
    fields: { binary: "text", build_id: "text", started_at: "uint", core: "text" },
  },
}));
