// The mempool and its flow over time: a point for each second, and one for each minute.
//
// Time is that of the events, not of the clock here: what is read from replay after a restart gives the
// points that were there before.

/** Why a transaction leaves, in the order of the columns. */
export const REASONS = ["block", "conflict", "replaced", "expiry", "sizelimit", "reorg", "other"];
export const SECONDS = 300;
export const MINUTES = 360;

const BACK = 120; // seconds: a clock that goes back by more was set

const KINDS = ["added", "rejected", ...REASONS];

export class Series {
  seconds = []; // { t, count, vsize, fees, bands: [vsize], flow: [added, rejected, ...REASONS] }
  minutes = [];
  now = 0; // the second that runs

  #level; // () => { count, vsize, fees, bands }
  #flow = KINDS.map(() => 0);
  #minute = KINDS.map(() => 0);
  #fresh = 0; // points closed since changes() was asked
  #freshMinutes = 0;
  #whole = false; // the points told so far do not hold any more

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
    if (second < this.now - BACK) this.#goBack(second);
    if (second <= this.now) return;
    if (second - this.now > SECONDS + 1) {
      // Nothing happened for long: the level stands, and the chart begins anew.
      this.#close();
      this.now = second - SECONDS;
    }
    while (this.now < second) this.#close();
  }

  /** Points of a time that is still to come go. */
  #goBack(second) {
    this.seconds = this.seconds.filter(({ t }) => t < second);
    this.minutes = this.minutes.filter(({ t }) => t < second);
    this.now = second;
    this.#whole = true;
  }

  #close() {
    const t = this.now++;
    const point = { t, ...this.#level(), flow: this.#flow };
    push(this.seconds, point, SECONDS);
    this.#fresh++;
    this.#flow.forEach((n, i) => (this.#minute[i] += n));
    this.#flow = KINDS.map(() => 0);
    if (this.now % 60) return;
    push(this.minutes, { ...point, t: this.now - 60, flow: this.#minute }, MINUTES);
    this.#freshMinutes++;
    this.#minute = KINDS.map(() => 0);
  }

  /** Points since the last call, or with `whole` all there are. */
  changes() {
    if (!this.#fresh) return null;
    const [n, m] = this.#whole ? [SECONDS, MINUTES] : [this.#fresh, this.#freshMinutes];
    const told = { whole: this.#whole, seconds: this.seconds.slice(-n), minutes: m ? this.minutes.slice(-m) : [] };
    this.#fresh = this.#freshMinutes = 0;
    this.#whole = false;
    return told;
  }
}

function push(list, point, limit) {
  list.push(point);
  if (list.length > limit) list.shift();
}
