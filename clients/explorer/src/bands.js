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

/** Counts what it was told, not what the mirror has: that is ahead, by the event in hand. */
export class Bands {
  #counted = new Map(); // as what by txid: so it leaves, whatever the mirror has learned of it since

  counts = BOUNDS.map(() => 0);
  vsizes = BOUNDS.map(() => 0);
  count = 0; // of all, as are these
  vsize = 0;
  fees = 0; // satoshi
  unknown = 0; // transactions whose fee or size is not known

  add(tx) {
    this.remove(tx); // its removal was perhaps not seen
    const { txid, vsize, fee } = tx;
    const counted = { vsize, fee, band: bandOf(tx) };
    this.#counted.set(txid, counted);
    this.#count(counted, 1);
  }

  remove({ txid }) {
    const counted = this.#counted.get(txid);
    if (!counted) return;
    this.#counted.delete(txid);
    this.#count(counted, -1);
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
