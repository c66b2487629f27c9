// How the stream is: whether it beats, what it lacks, and what was said about it.

const MAX_NOTICES = 20;
const PLAYED = "-play"; // ends the label of a recording that is played
const LONG_AGO_US = 60e6;
const QUIET = 1500; // ms: more than a second between two statuses; then it is told without one
const BACK_US = 120e6; // a clock that goes back by more was set

export class Health {
  node = null; // label
  run = null;
  pid = null;
  core = null; // range of Bitcoin Core versions
  replay = null; // what the bridge says of its journal
  lost = 0; // firings that the bridge could not get
  gone = 0; // firings that did not arrive here and nobody has any more
  malformed = 0;
  runs = 0; // times that the numbering began anew
  caughtUp = { low: false, high: false }; // the past that replay holds was read
  backlog = 0; // events of that past
  notices = []; // { t, kind, text }, latest first

  #silent = { low: true, high: true };
  #beat_us = null; // the last status of the low socket, by this machine's clock
  #resyncing = null; // reason
  #event_us = 0; // time of the latest event of the low socket
  #shift_us = 0; // by how much a played recording is in the past
  #changed = true;
  #told = 0; // when it was, monotonic

  /** exact: the mempool is compared with the node's, else it is what was seen. */
  constructor({ exact }) {
    this.exact = exact;
  }

  /** Now, as the stream counts: a recording that is played has its own time. */
  get now_us() {
    return Math.max(this.#event_us, Date.now() * 1000 - this.#shift_us);
  }

  event({ time_us, node }) {
    if (time_us > this.#event_us || time_us < this.#event_us - BACK_US) this.#event_us = time_us;
    const behind = Date.now() * 1000 - time_us;
    this.#shift_us = node.endsWith(PLAYED) ? behind : 0;
  }

  status({ socket, node, run, fields }, replayed) {
    this.#silent[socket] = false;
    if (!this.caughtUp[socket]) {
      this.caughtUp[socket] = true;
      this.backlog = replayed;
    }
    if (socket !== "low") return;
    this.#beat_us = Date.now() * 1000;
    Object.assign(this, { node, run, pid: fields.pid ?? null, replay: fields.replay ?? null });
    this.#changed = true;
  }

  process({ topic, core }) {
    this.core = topic === "node.started" ? core ?? null : null;
    this.say(topic, topic === "node.started" ? "the node is traced" : "the node has ended; its mempool is empty");
  }

  notice(notice) {
    const { kind, socket, count } = notice;
    if (kind === "lost") this.lost += count;
    else if (kind === "gap") this.gone += count;
    else if (kind === "malformed") this.malformed++;
    else if (kind === "new_run" && socket === "low") this.runs++;
    else if (kind === "stale" || kind === "stopping") this.#silent[socket] = true;
    else if (kind === "alive") this.#silent[socket] = false;
    else if (kind === "resyncing") this.#resyncing = notice.reason;
    else if (kind === "synced") this.#resyncing = null;
    this.say(kind, `${notice}`);
  }

  say(kind, text) {
    this.notices.unshift({ t: this.now_us, kind, text: text.slice(0, 300) });
    if (this.notices.length > MAX_NOTICES) this.notices.pop();
    this.#changed = true;
  }

  /** pool: the mirror. */
  all(pool, since_us) {
    const { node, run, pid, core, replay, lost, gone, malformed, runs, caughtUp, backlog, notices, exact } = this;
    const all = caughtUp.low && caughtUp.high;
    return {
      node, run, pid, core, replay, lost, gone, malformed, runs, notices,
      silent: { ...this.#silent }, beat_us: this.#beat_us && this.#beat_us - this.#shift_us, now_us: this.now_us, recorded: this.#shift_us > LONG_AGO_US,
      catching_up: !caughtUp.low, replayed: all ? pool.replayed - backlog : 0, backlog: all ? backlog : pool.replayed,
      mempool: { exact, synced: pool.synced, resyncing: this.#resyncing, since_us, syncs: pool.syncs },
    };
  }

  changes(pool, since_us) {
    const now = performance.now();
    if (!this.#changed && now - this.#told < QUIET) return null;
    this.#changed = false;
    this.#told = now;
    return this.all(pool, since_us);
  }
}
