// What the page knows: snapshots, and the deltas laid over them. Bounded as the server's own state is.

const SECONDS = 300;
const MINUTES = 360;
const BLOCKS = 60;
const TREES = 60;
const PEERS = 1000;

function extend(list, points, limit) {
  // Where the clock was set back, what is still to come goes.
  while (points.length && list.at(-1)?.t >= points[0].t) list.pop();
  list.push(...points);
  if (list.length > limit) list.splice(0, list.length - limit);
}

/** Emits "change", with the topic as detail. */
export class Store extends EventTarget {
  connected = false;
  health = null;
  mempool = null; // { bounds, reasons, now, seconds, minutes }
  waits = [];
  blocks = new Map(); // by key
  trees = new Map();
  peers = new Map(); // by id
  traffic = { seconds: [], types: [], gone: [] };
  loaded = new Set(); // topics whose snapshot came

  #received = 0; // when health came, by the page's clock

  /** Seconds since the epoch, as the stream counts. */
  get now() {
    return this.health ? this.health.now_us / 1e6 + (performance.now() - this.#received) / 1000 : Date.now() / 1000;
  }

  disconnected() {
    if (!this.connected) return;
    this.connected = false;
    this.#changed("health");
  }

  apply({ type, topic, data }) {
    this.connected = true;
    const whole = type === "snapshot";
    if (whole) this.loaded.add(topic);
    this[`_${topic}`]?.(data, whole);
    this.#changed(topic);
  }

  /** Newest first. */
  get blockList() {
    return [...this.blocks.values()].sort((a, b) => b.time_us - a.time_us || (a.key < b.key ? 1 : -1));
  }

  get treeList() {
    return [...this.trees.values()].sort((a, b) => b.t - a.t || b.key - a.key);
  }

  _health(data) {
    this.health = data;
    this.#received = performance.now();
  }

  _mempool(data, whole) {
    if (whole) {
      this.mempool = data;
      return;
    }
    this.mempool.now = data.now;
    if (data.whole) Object.assign(this.mempool, { seconds: [], minutes: [] }); // the clock was set back
    extend(this.mempool.seconds, data.seconds, SECONDS);
    extend(this.mempool.minutes, data.minutes, MINUTES);
  }

  _blocks({ blocks, waits }, whole) {
    if (whole) this.blocks.clear();
    if (waits) this.waits = waits;
    for (const block of blocks) this.blocks.set(block.key, block);
    for (const { key } of this.blockList.slice(BLOCKS)) this.blocks.delete(key);
  }

  _replacements({ trees, gone = [] }, whole) {
    if (whole) this.trees.clear();
    for (const key of gone) this.trees.delete(key);
    for (const tree of trees) this.trees.set(tree.key, tree);
    for (const { key } of this.treeList.slice(TREES)) this.trees.delete(key);
  }

  _peers({ peers, closed = [], seconds, types, gone }, whole) {
    if (whole) {
      this.peers.clear();
      this.traffic.seconds = [];
    }
    for (const id of closed) this.peers.delete(id);
    for (const peer of peers) this.peers.set(peer.id, peer);
    for (const id of [...this.peers.keys()].slice(0, Math.max(0, this.peers.size - PEERS))) this.peers.delete(id);
    extend(this.traffic.seconds, seconds, SECONDS);
    this.traffic.types = types;
    if (gone) this.traffic.gone = gone;
  }

  #changed(topic) {
    this.dispatchEvent(new CustomEvent("change", { detail: topic }));
  }
}
