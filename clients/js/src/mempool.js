// An exact mirror of the node's mempool.
//
// The rule: the state of a transaction is the last event since the stream was joined, else what
// getrawmempool said after that. A snapshot is taken when the stream runs; what the stream tells from then
// on is laid over it, in order. When continuity is lost, a new snapshot is taken.
import { EventEmitter, once } from "node:events";

import { Notice, hex } from "./events.js";
import { satoshi } from "./rpc.js";
import { Filter } from "./stream.js";
import { Subscriber } from "./subscriber.js";
import { STATUS } from "./wire.js";

const RETRY = 1000; // ms between attempts to get a snapshot
const MAX_TOUCHED = 500_000; // transactions that are laid over it
const TOPICS = ["mempool.", "validation.block_connected", "node."];
// What fired before a call was sent before the second status after it.
const STATUSES = 2;

/** Lower bounds of the histogram's classes, satoshi per vbyte. */
export const FEE_RATES = [0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30, 40, 50, 60, 80, 100, 150, 200, 300, 500, 1000];

/** A transaction that is in the mempool or was there. What is not known is null. */
export class Transaction {
  left_us = null;
  reason = null; // why it left
  height = null; // of the block with which it left
  block = null; // that block's hash
  replaced_by = null; // id of the transaction that replaced it
  replaced_by_package = null; // or the hash of the package: never a txid

  constructor(txid, { vsize = null, fee = null, entry_time = null, added_us = null } = {}) {
    this.txid = txid;
    this.vsize = vsize;
    this.fee = fee; // satoshi
    this.entry_time = entry_time; // Unix seconds, the node's
    this.added_us = added_us; // when it was added, if that was seen
  }

  /** Satoshi per vbyte. */
  get fee_rate() {
    return this.fee !== null && this.vsize ? this.fee / this.vsize : null;
  }

  /** Seconds in the mempool, until it left. */
  get waited() {
    if (this.left_us === null) return null;
    if (this.added_us !== null) return (this.left_us - this.added_us) / 1e6;
    return this.entry_time === null ? null : this.left_us / 1e6 - this.entry_time;
  }
}

/** Emits "event", "notice" and "status", each when it has been applied; notices of its own are synced and resyncing.
 * An exception of a listener is thrown to the process; the mirror goes on. */
export class Mempool extends EventEmitter {
  transactions = new Map(); // by txid as RPC prints it
  left = new Map(); // those that left, oldest first
  vsize = 0; // of all together, as far as known
  synced = false;
  syncs = 0; // snapshots taken

  #rpc;
  #stream;
  #verbose;
  #keep;
  #block = {}; // the last one connected
  #touched = new Set(); // since the stream was joined
  #witness = null; // the same, while verify() runs
  #epoch = 0; // grows when continuity is lost: a snapshot from before is worth nothing
  #statuses = 0;
  #asking = false;
  #exactAt = Infinity; // the status that makes it synced
  #failure = ""; // why the last snapshot failed
  #closed = false;

  /** rpc: new RPC(...), or anything with call(method, ...parameters). */
  constructor({ rpc, address, topics = [], verbose = true, history = 100_000, since, memory, replay, curveServer, curveSecret } = {}) {
    super();
    if (typeof rpc?.call !== "function") throw new TypeError("rpc: give new RPC(...), or anything with call(method, ...parameters)");
    this.#rpc = rpc;
    this.#verbose = verbose;
    this.#keep = history;
    const sockets = new Filter([...TOPICS, ...topics]).sockets();
    this.#stream = new Subscriber([...TOPICS, ...topics, STATUS], { address, since, memory, replay, sockets, curveServer, curveSecret });
    this.#follow().catch((error) => this.#throw(error));
  }

  // ---- what it knows ----

  get size() {
    return this.transactions.size;
  }

  /** Events so far that replay gave. */
  get replayed() {
    return this.#stream.replayed;
  }

  has(txid) {
    return this.transactions.has(txid);
  }

  /** A transaction that is in the mempool, or was there last. */
  get(txid) {
    return this.transactions.get(txid) ?? this.left.get(txid);
  }

  /** Transactions by fee rate; those without a known fee are left out. */
  histogram(bounds = FEE_RATES) {
    const buckets = bounds.map((fee_rate) => ({ fee_rate, count: 0, vsize: 0 }));
    for (const { fee_rate, vsize } of this.transactions.values()) {
      if (fee_rate === null) continue;
      const bucket = buckets[Math.max(0, bounds.findLastIndex((bound) => bound <= fee_rate))];
      bucket.count++;
      bucket.vsize += vsize ?? 0;
    }
    return buckets;
  }

  /** Resolves when the mirror is exact. */
  async ready() {
    while (!this.synced) {
      if (this.#closed) throw new Error("mempool: closed");
      await once(this, "status");
    }
    return this;
  }

  /** Compares with the node: { missing, surplus }, the ids that only the node has and that only this mirror
   * has. What changes while that is done is no difference. */
  async verify() {
    if (!this.synced) throw new Error("mempool: not synced");
    if (this.#witness) throw new Error("mempool: verify is running already");
    const epoch = this.#epoch;
    const witness = this.#witness = new Set();
    try {
      const listed = new Set(await this.#rpc.call("getrawmempool", false));
      const end = this.#statuses + STATUSES;
      while (this.#statuses < end && !this.#closed) await once(this, "status");
      if (epoch !== this.#epoch || this.#closed) throw new Error("mempool: continuity was lost, or the node ended, meanwhile");
      return {
        missing: [...listed].filter((txid) => !this.transactions.has(txid) && !witness.has(txid)),
        surplus: [...this.transactions.keys()].filter((txid) => !listed.has(txid) && !witness.has(txid)),
      };
    } finally {
      this.#witness = null;
    }
  }

  close() {
    if (this.#closed) return;
    this.#closed = true;
    this.synced = false;
    this.#stream.close();
    this.emit("status");
  }

  // ---- inside ----

  async #follow() {
    for await (const item of this.#stream) {
      if (item.kind === "event") {
        this.#apply(item);
        this.#tell("event", item);
      } else if (item.kind === "status") {
        if (item.socket === "low") this.#status();
        this.#tell("status", item);
      } else {
        this.#tell("notice", item);
        this.#lookAt(item);
      }
    }
  }

  #tell(name, item) {
    try {
      this.emit(name, item);
    } catch (error) {
      this.#throw(error);
    }
  }

  #throw(error) {
    process.nextTick(() => {
      throw error;
    });
  }

  #status() {
    this.#statuses++;
    // The first one: nothing is missed from here on.
    if (!this.synced && this.#exactAt === Infinity) this.#snapshot();
    else if (this.#statuses >= this.#exactAt) this.#becomeSynced();
  }

  async #snapshot() {
    if (this.#asking) return;
    this.#asking = true;
    const epoch = this.#epoch;
    try {
      const listed = await this.#rpc.call("getrawmempool", this.#verbose);
      if (epoch === this.#epoch && !this.#closed) this.#lay(listed);
    } catch (error) {
      if (!this.#closed && error.message !== this.#failure) {
        this.#failure = error.message;
        this.#tell("notice", new Notice("resyncing", "low", { reason: error.message }));
      }
      // Where RPC is away for days: what was applied before the node is asked is in its answer, too.
      if (this.#touched.size > MAX_TOUCHED) this.#touched.clear();
      await new Promise((resolve) => setTimeout(resolve, RETRY).unref());
    } finally {
      this.#asking = false; // the next status asks again
    }
  }

  /** The events since the stream was joined, over the snapshot. */
  #lay(listed) {
    const before = this.transactions;
    const pool = new Map();
    for (const txid of this.#verbose ? Object.keys(listed) : listed) {
      if (this.#touched.has(txid)) continue;
      const tx = before.get(txid) ?? new Transaction(txid);
      if (this.#verbose) {
        const { vsize, fees, fee, time } = listed[txid];
        Object.assign(tx, { vsize, fee: satoshi(fees?.base ?? fee), entry_time: time });
      }
      pool.set(txid, tx);
    }
    for (const txid of this.#touched) if (before.has(txid)) pool.set(txid, before.get(txid));
    this.transactions = pool;
    this.vsize = 0;
    for (const { vsize } of pool.values()) this.vsize += vsize ?? 0;
    this.#exactAt = this.#statuses + STATUSES;
  }

  #becomeSynced() {
    this.synced = true;
    this.#exactAt = Infinity;
    this.#touched.clear();
    this.#failure = "";
    this.syncs++;
    this.#tell("notice", new Notice("synced", "low", {}));
  }

  /** From here on only what the stream tells is certain. */
  #lose(reason) {
    const was = this.synced || !this.syncs;
    this.#epoch++;
    this.#touched.clear();
    this.#exactAt = Infinity;
    this.synced = false;
    if (was) this.#tell("notice", new Notice("resyncing", "low", { reason }));
  }

  #lookAt(notice) {
    const { kind, topic } = notice;
    if (kind === "new_run" && notice.socket === "low") this.#lose(`${notice}`);
    if (kind !== "gap" && kind !== "lost") return;
    if (topic === "validation.block_connected") this.#block = {};
    else if (["mempool.added", "mempool.removed", "node.exited"].includes(topic)) this.#lose(`${notice}`);
  }

  #apply(event) {
    switch (event.topic) {
      case "mempool.added": return this.#change(event, this.#add);
      case "mempool.removed": return this.#change(event, this.#remove);
      case "mempool.replaced": return this.#replace(event);
      case "validation.block_connected":
        this.#block = { height: event.height, hash: event.hash && hex(event.hash) };
        return;
      case "node.exited": this.#empty();
    }
  }

  #change(event, how) {
    const { txid } = event;
    if (!txid) return this.#lose("a txid could not be read");
    const id = hex(txid);
    if (!this.synced) this.#touched.add(id);
    this.#witness?.add(id);
    how.call(this, id, event);
  }

  #add(id, { vsize, fee, time_us }) {
    const tx = new Transaction(id, { vsize, fee, entry_time: Math.floor(time_us / 1e6), added_us: time_us });
    this.vsize += (tx.vsize ?? 0) - (this.transactions.get(id)?.vsize ?? 0);
    this.transactions.set(id, tx);
    this.left.delete(id);
  }

  #remove(id, { vsize, fee, entry_time, reason, height, time_us }) {
    const tx = this.transactions.get(id) ?? new Transaction(id);
    if (this.transactions.delete(id)) this.vsize -= tx.vsize ?? 0;
    tx.vsize ??= vsize ?? null;
    tx.fee ??= fee ?? null;
    tx.entry_time = entry_time ?? tx.entry_time;
    tx.left_us = time_us;
    tx.reason = reason ?? null;
    tx.height = height ?? null;
    if (tx.height !== null && tx.height === this.#block.height) tx.block = this.#block.hash ?? null;
    this.left.delete(id);
    this.left.set(id, tx);
    if (this.left.size > this.#keep) this.left.delete(this.left.keys().next().value);
  }

  /** The removal follows: what replaces it is noted on the transaction until then. */
  #replace({ txid, replacement_txid, replacement_package }) {
    const tx = txid && this.transactions.get(hex(txid));
    if (!tx) return;
    tx.replaced_by = replacement_txid ? hex(replacement_txid) : null;
    tx.replaced_by_package = replacement_package ? hex(replacement_package) : null;
  }

  /** The node is gone, and its mempool with it: exact again, whatever was before. */
  #empty() {
    this.transactions.clear();
    this.vsize = 0;
    this.#epoch++;
    if (!this.synced && this.#statuses) this.#becomeSynced();
  }
}
