// What happened to each transaction, as far as it was seen: the latest ones, to look up.

const MAX_ENTRIES = 40; // of one transaction
const MAX_FOUND = 20;
const MIN_PREFIX = 4; // digits

export class Ledger {
  #entries = new Map(); // by txid, longest untouched first

  constructor(limit) {
    this.limit = limit;
  }

  get size() {
    return this.#entries.size;
  }

  /** entry: { t, what, … }, t in microseconds. */
  note(txid, entry) {
    const list = this.#entries.get(txid) ?? [];
    list.push(entry);
    if (list.length > MAX_ENTRIES) list.splice(1, 1); // the first one stays: when it was seen
    this.#entries.delete(txid);
    this.#entries.set(txid, list);
    if (this.#entries.size > this.limit) this.#entries.delete(this.#entries.keys().next().value);
  }

  get(txid) {
    return this.#entries.get(txid) ?? [];
  }

  has(txid) {
    return this.#entries.has(txid);
  }

  /** Ids that begin so, at most MAX_FOUND; more: maps to look in as well. */
  find(prefix, ...more) {
    const found = new Set();
    if (prefix.length < MIN_PREFIX) return [];
    for (const map of [this.#entries, ...more])
      for (const txid of map.keys()) {
        if (!txid.startsWith(prefix)) continue;
        found.add(txid);
        if (found.size === MAX_FOUND) return [...found];
      }
    return [...found];
  }
}
