// The mempool and its flow over time: a point for each second, and one for each minute.
//
// Time is that of the events, not of the clock here: what is read from replay after a restart gives the
// points that were there before.

/** Why a transaction leaves, in the order of the columns. */
export const REASONS = ["block", "conflict", "replaced", "expiry", "sizelimit", "reorg", "other"];
export const SECONDS = 300;
export const MINUTES = 360;

const KINDS = ["added", "rejected", ...REASONS];

export class Series {
  seconds = []; // { t, count, vsize, fees, bands: [vsize], flow: [added, rejected, ...REASONS] }
  minutes = [];
  now = 0; // the second that runs

  #level; // () => { count, vsize, fees, bands }
  #flow = KINDS.map(() => 0);
  #minute = KINDS.map(() => 0);
  #peak = 0; // points closed since changes() was asked
  #minutePeak = 0;

  constructor(level) {
    this.#level = level;
  }

  count(kind) {
    const i = KINDS.indexOf(kind);
    this.#flow[i < 0 ? KINDS.length - 1 : i]++;
  }

  /** Ends every second before this one. To be called before what happens in it is applied. */
  advance(second) {
    if (!this.now) this.now = second;
    if (second <= this.now) return;
    if (second - this.now > SECONDS + 1) {
      // Nothing happened for long: the level stands, and the chart begins anew.
      this.#close();
      this.now = second - SECONDS;
    }
    while (this.now < second) this.#close();
  }

  #close() {
    const t = this.now++;
    const point = { t, ...this.#level(), flow: this.#flow };
    push(this.seconds, point, SECONDS);
    this.#peak++;
    this.#flow.forEach((n, i) => (this.#minute[i] += n));
    this.#flow = KINDS.map(() => 0);
    if (this.now % 60) return;
    push(this.minutes, { ...point, t: this.now - 60, flow: this.#minute }, MINUTES);
    this.#minutePeak++;
    this.#minute = KINDS.map(() => 0);
  }

  /** Points since the last call. */
  changes() {
    if (!this.#peak) return null;
    const seconds = this.seconds.slice(-this.#peak);
    const minutes = this.#minutePeak ? this.minutes.slice(-this.#minutePeak) : [];
    this.#peak = this.#minutePeak = 0;
    return { seconds, minutes };
  }
}

function push(list, point, limit) {
  list.push(point);
  if (list.length > limit) list.shift();
}
