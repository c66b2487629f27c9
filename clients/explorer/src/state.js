// All that the explorer knows, from the items of one mirror. Knows neither sockets nor pages.
import { hex } from "coretap";

import { Bands, BOUNDS } from "./bands.js";
import { Blocks, WAITS } from "./blocks.js";
import { Health } from "./health.js";
import { Ledger } from "./ledger.js";
import { boundMirror } from "./mirror.js";
import { Peers } from "./peers.js";
import { Replacements } from "./replacements.js";
import { REASONS, Series } from "./series.js";

/** What can be subscribed to besides the events themselves. */
export const TOPICS = ["mempool", "blocks", "replacements", "peers", "health"];

const MAX_TEXT = 200;
const TXID = /^[0-9a-f]{64}$/;
const PREFIX = /^[0-9a-f]{1,64}$/;

export class State {
  bands = new Bands();
  blocks = new Blocks();
  replacements = new Replacements();
  peers = new Peers();

  #pool;
  #since_us = null; // when the mempool began to be seen

  /** pool: a mirror as openMirror gives it. history: how many transactions are remembered. */
  constructor(pool, { exact, history }) {
    this.#pool = pool;
    this.ledger = new Ledger(history);
    this.health = new Health({ exact });
    this.series = new Series(() => this.#level());
  }

  /** Time passes, whether something happens or not. */
  tick() {
    const { caughtUp } = this.health;
    const second = Math.floor(this.health.now_us / 1e6) - 1; // events on their way may be that old
    if (caughtUp.low) this.series.advance(second);
    if (caughtUp.high) this.peers.advance(second);
  }

  // ---- what the mirror tells ----

  event(event) {
    const { topic, time_us } = event;
    if (topic.startsWith("net.")) {
      this.peers.advance(Math.floor(time_us / 1e6));
      this.peers.apply(event);
      return;
    }
    this.health.event(event);
    this.#since_us ??= time_us;
    this.series.advance(Math.floor(time_us / 1e6));
    switch (topic) {
      case "mempool.added": return this.#added(event);
      case "mempool.removed": return this.#removed(event);
      case "mempool.replaced": return this.#replaced(event);
      case "mempool.rejected": return this.#rejected(event);
      case "validation.block_connected": return this.blocks.connect(event);
      case "block.evictions": return this.blocks.tell(event);
      case "node.started":
      case "node.exited":
        this.health.process(event);
        this.peers.clear();
        this.bands.recount(this.#pool.transactions);
    }
  }

  notice(notice) {
    this.health.notice(notice);
    if (notice.kind === "synced") this.bands.recount(this.#pool.transactions);
  }

  status(status) {
    this.health.status(status, this.#pool.replayed);
  }

  #added({ txid, vsize, fee, time_us }) {
    this.series.count("added");
    if (!txid) return;
    const tx = this.#pool.get(hex(txid));
    this.bands.add(tx);
    this.ledger.note(tx.txid, { t: time_us, what: "added", vsize: vsize ?? null, fee: fee ?? null });
    this.replacements.mark(tx.txid, null);
    if (!this.health.exact) for (const old of boundMirror(this.#pool)) this.bands.remove(old);
  }

  #removed({ txid, reason, height, time_us }) {
    this.series.count(REASONS.includes(reason) ? reason : "other");
    this.blocks.leave(reason, height);
    if (!txid) return;
    const tx = this.#pool.get(hex(txid));
    this.bands.remove(tx);
    const left = { reason: cut(reason), height: height ?? null, t: time_us };
    this.ledger.note(tx.txid, { t: time_us, what: "removed", reason: left.reason, height: left.height, waited: tx.waited });
    this.replacements.mark(tx.txid, left);
  }

  #replaced({ txid, vsize, fee, replacement_txid, replacement_package, replacement_vsize, replacement_fee, time_us }) {
    const by = replacement_txid ?? replacement_package;
    if (!txid || !by) return;
    const victim = hex(txid);
    const winner = hex(by);
    const isPackage = !replacement_txid;
    this.ledger.note(victim, { t: time_us, what: "replaced", by: winner, package: isPackage });
    if (!isPackage) this.ledger.note(winner, { t: time_us, what: "replaces", txid: victim });
    this.replacements.add({ victim, fee: fee ?? null, vsize: vsize ?? null, by: winner, package: isPackage,
      by_fee: replacement_fee ?? null, by_vsize: replacement_vsize ?? null, t: time_us });
  }

  #rejected({ txid, reason, time_us }) {
    this.series.count("rejected");
    if (txid) this.ledger.note(hex(txid), { t: time_us, what: "rejected", reason: cut(reason) });
  }

  #level() {
    const { count, vsize, fees, vsizes } = this.bands;
    return { count, vsize, fees, bands: [...vsizes] };
  }

  // ---- what it tells ----

  #mempool() {
    return { ...this.#level(), counts: [...this.bands.counts], unknown: this.bands.unknown };
  }

  /** All of a topic. */
  snapshot(topic) {
    switch (topic) {
      case "mempool":
        return { bounds: BOUNDS, reasons: REASONS, now: this.#mempool(), seconds: this.series.seconds, minutes: this.series.minutes };
      case "blocks": return { waits: WAITS, blocks: this.blocks.all() };
      case "replacements": return { trees: this.replacements.all() };
      case "peers": return this.peers.all();
      case "health": return this.health.all(this.#pool, this.#since_us);
    }
  }

  /** What changed since the last call, by topic. */
  changes() {
    const points = this.series.changes();
    const blocks = this.blocks.changes();
    return Object.entries({
      mempool: points && { now: this.#mempool(), ...points },
      blocks: blocks && { blocks },
      replacements: points && this.replacements.changes(), // once a second: a flood of them is not worth more
      peers: this.peers.changes(),
      health: this.health.changes(this.#pool, this.#since_us),
    }).filter(([, data]) => data);
  }

  /** A transaction by its whole id; null when it is not known. */
  transaction(txid) {
    if (!TXID.test(txid)) return null;
    const tx = this.#pool.get(txid);
    const history = this.ledger.get(txid);
    if (!tx && !history.length) return null;
    const added = history.findLast(({ what }) => what === "added");
    const key = this.replacements.treeOf(txid);
    return {
      txid, state: this.#stateOf(txid, history), vsize: tx?.vsize ?? added?.vsize ?? null, fee: tx?.fee ?? added?.fee ?? null,
      entry_time: tx?.entry_time ?? null, added_us: tx?.added_us ?? added?.t ?? null, left_us: tx?.left_us ?? null,
      reason: tx?.reason ?? null, height: tx?.height ?? null, block: tx?.block ?? null, waited: tx?.waited ?? null,
      replaced_by: tx?.replaced_by ?? null, replaced_by_package: tx?.replaced_by_package ?? null,
      replaces: history.filter(({ what }) => what === "replaces").map((entry) => entry.txid),
      history, tree: key === null ? null : this.replacements.tree(key),
    };
  }

  #stateOf(txid, history) {
    if (this.#pool.has(txid)) return "mempool";
    const tx = this.#pool.get(txid);
    if (!tx) return history.at(-1).what === "rejected" ? "rejected" : "gone";
    return { block: "confirmed", conflict: "conflicted", expiry: "expired", sizelimit: "dropped", reorg: "reorged" }[tx.reason] ??
      (tx.reason === "replaced" ? "replaced" : "gone");
  }

  /** Transactions and a block for what somebody typed. */
  search(text) {
    const word = text.trim().toLowerCase();
    const block = this.blocks.find(word);
    const found = PREFIX.test(word) ? this.ledger.find(word, this.#pool.transactions, this.#pool.left) : [];
    return { text: word, block, transactions: found.map((txid) => ({ txid, state: this.#stateOf(txid, this.ledger.get(txid)) })) };
  }

  block(text, list, from, count) {
    return this.blocks.page(text, list, from, count);
  }
}

function cut(text) {
  return text && text.length > MAX_TEXT ? `${text.slice(0, MAX_TEXT)}…` : text ?? null;
}
