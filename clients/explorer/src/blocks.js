// The latest blocks, and what left the mempool with each.
import { hex } from "coretap";

const LIMIT = 60;
const HASH = 32;

/** Upper bounds in seconds of the classes of waiting; the last one has none. */
export const WAITS = [10, 60, 600, 3600, 6 * 3600, 86400];

/** [lowest, a tenth below, the middle, a tenth above, highest] of sorted numbers; null of none. */
function spread(sorted) {
  if (!sorted.length) return null;
  return [0, 0.1, 0.5, 0.9, 1].map((part) => sorted[Math.round(part * (sorted.length - 1))]);
}

const sum = (list) => list.reduce((total, value) => total + (value ?? 0), 0);
const ascending = (list) => Float64Array.from(list).sort();

/** Lists as they came, in as little memory as they need. */
class List {
  constructor({ txids, fees, vsizes, entry_times }) {
    this.size = txids?.length ?? 0;
    this.hashes = Buffer.alloc(HASH * this.size);
    this.unreadable = new Set(); // places of ids that were nil
    txids?.forEach((txid, i) => (txid ? txid.copy(this.hashes, HASH * i) : this.unreadable.add(i)));
    this.fees = fees ?? [];
    this.vsizes = vsizes ?? [];
    this.entry_times = entry_times ?? [];
  }

  /** The waited seconds of entry i; null where the entry time is not known. */
  waited(i, now) {
    const entered = this.entry_times[i];
    return entered ? Math.max(0, now - entered) : null;
  }

  row(i, now) {
    const txid = this.unreadable.has(i) ? null : hex(this.hashes.subarray(HASH * i, HASH * (i + 1)));
    return { txid, fee: this.fees[i] ?? null, vsize: this.vsizes[i] ?? null, waited: this.waited(i, now) };
  }

  rows(from, count, now) {
    const to = Math.min(this.size, from + count);
    return Array.from({ length: Math.max(0, to - from) }, (_, i) => this.row(from + i, now));
  }
}

const NONE = new List({});

export class Blocks {
  #blocks = new Map(); // by key, oldest first: { told, confirmed, conflicts }
  #changed = new Set();
  #open = null; // the block whose transactions leave now

  /** A block was connected; what left with it is told later. */
  connect(event) {
    const { hash, height, n_tx, duration_ns, time_us } = event;
    const told = { key: `${event.run}-${event.n}`, hash: hash ? hex(hash) : null, height, n_tx,
      duration_us: duration_ns === null || duration_ns === undefined ? null : Math.round(duration_ns / 1000), time_us,
      confirmed: 0, conflicts: 0, unseen: null, state: "connecting", superseded: false };
    if (this.#open) {
      this.#open.state = "incomplete"; // its last word was lost
      this.#changed.add(this.#open.key);
    }
    this.#set({ told, confirmed: NONE, conflicts: NONE });
    this.#open = told;
  }

  /** A removal on the way to block.evictions. */
  leave(reason, height) {
    const block = this.#open;
    if (!block || (height ?? block.height) !== block.height) return;
    if (reason === "block") block.confirmed++;
    else if (reason === "conflict") block.conflicts++;
    else return;
    this.#changed.add(block.key);
  }

  /** block.evictions: perhaps early, and then once more. */
  tell(event) {
    // Without validation.block_connected it has no position.
    const key = `${event.run}-${event.n_block || (event.hash && hex(event.hash))}`;
    const confirmed = new List(event);
    const conflicts = new List(event.conflicts ?? {});
    const before = this.#blocks.get(key)?.told;
    const time_us = before?.time_us ?? event.time_us;
    const now = time_us / 1e6;
    const waits = ascending(confirmed.entry_times.filter(Boolean).map((entered) => Math.max(0, now - entered)));
    const rates = ascending(confirmed.fees.map((fee, i) => (fee ?? NaN) / confirmed.vsizes[i]).filter(Number.isFinite));
    const classes = new Array(WAITS.length + 1).fill(0);
    for (const wait of waits) classes[(WAITS.findIndex((bound) => wait < bound) + classes.length) % classes.length]++;
    const told = {
      key, hash: event.hash ? hex(event.hash) : null, height: event.height, n_tx: event.n_tx, time_us,
      duration_us: before?.duration_us ?? null, confirmed: confirmed.size, conflicts: conflicts.size,
      unseen: event.unseen ?? null, reorg: event.reorg ?? 0, repeat: Boolean(event.repeat), superseded: false,
      state: !event.final ? "early" : event.complete ? "complete" : "incomplete",
      fees: sum(confirmed.fees), vsize: sum(confirmed.vsizes), rates: spread(rates), waits: spread(waits), classes,
    };
    if (this.#open?.key === key) this.#open = event.final ? null : told;
    this.#set({ told, confirmed, conflicts });
    if (event.reorg) this.#supersede(told);
  }

  #supersede({ key, height }) {
    for (const { told } of this.#blocks.values()) {
      if (told.key === key || told.superseded || !(told.height >= height)) continue;
      told.superseded = true;
      this.#changed.add(told.key);
    }
  }

  #set(block) {
    const { key } = block.told;
    this.#blocks.set(key, block);
    this.#changed.add(key);
    if (this.#blocks.size <= LIMIT) return;
    const oldest = this.#blocks.keys().next().value;
    this.#blocks.delete(oldest);
    this.#changed.delete(oldest);
    if (this.#open?.key === oldest) this.#open = null;
  }

  /** Newest first. */
  all() {
    return [...this.#blocks.values()].map(({ told }) => told).reverse();
  }

  changes() {
    if (!this.#changed.size) return null;
    const told = [...this.#changed].map((key) => this.#blocks.get(key).told);
    this.#changed.clear();
    return told;
  }

  /** By hash or height, the newest that matches. */
  find(text) {
    return this.all().find(({ hash, height }) => hash === text || `${height}` === text) ?? null;
  }

  /** A page of the transactions of a block. */
  page(text, list, from, count) {
    const told = this.find(text);
    if (!told) return null;
    const block = this.#blocks.get(told.key);
    const rows = list === "conflicts" ? block.conflicts : block.confirmed;
    return { block: told, list, from, total: rows.size, transactions: rows.rows(from, count, told.time_us / 1e6) };
  }
}
