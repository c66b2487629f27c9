// The mempool by fee rate.

/** Lower bounds of the bands, satoshi per vbyte. */
export const BOUNDS = [0, 0.5, 1, 2, 4, 6, 10, 20, 40, 80, 200, 500];

function bandOf({ fee, vsize }) {
  if (fee === null || !vsize) return -1;
  const rate = fee / vsize;
  let i = BOUNDS.length - 1;
  while (i > 0 && rate < BOUNDS[i]) i--;
  return i;
}

/** Counts what it was told, not what the mirror has: that is ahead, by the event in hand.
 * Each transaction carries its band while it is counted, so that what is counted once leaves once. */
export class Bands {
  #counted = new Map(); // by txid: one that is added again, as its removal was not seen, is another object

  counts = BOUNDS.map(() => 0);
  vsizes = BOUNDS.map(() => 0);
  count = 0; // of all, as are these
  vsize = 0;
  fees = 0; // satoshi
  unknown = 0; // transactions whose fee or size is not known

  add(tx) {
    const before = this.#counted.get(tx.txid);
    if (before === tx) return;
    if (before) this.remove(before);
    this.#counted.set(tx.txid, tx);
    tx.band = bandOf(tx);
    this.#count(tx, 1);
  }

  remove(tx) {
    if (this.#counted.get(tx.txid) !== tx) return;
    this.#counted.delete(tx.txid);
    this.#count(tx, -1);
    tx.band = undefined;
  }

  /** Anew, when the mempool was. */
  recount(transactions) {
    this.counts.fill(0);
    this.vsizes.fill(0);
    this.count = this.vsize = this.fees = this.unknown = 0;
    this.#counted.clear();
    for (const tx of transactions.values()) this.add(tx);
  }

  #count({ band, vsize, fee }, sign) {
    this.count += sign;
    this.vsize += sign * (vsize ?? 0);
    this.fees += sign * (fee ?? 0);
    if (band < 0) {
      this.unknown += sign;
      return;
    }
    this.counts[band] += sign;
    this.vsizes[band] += sign * vsize;
  }
}
