// Subscribing: an asynchronous iterator over the events and notices of one coretapd.
import { Subscriber as SubSocket } from "zeromq";

import { Notice } from "./events.js";
import { curveOptions } from "./keys.js";
import { Position } from "./position.js";
import { Replay } from "./replay.js";
import { Batch, Filter, Stream } from "./stream.js";
import { MAX_LENGTH, STATUS, STOPPING } from "./wire.js";

export const DEFAULT_ADDRESS = "tcp://127.0.0.1:28370";

const STALE = 3000; // ms, three status periods
// Silence counts only while someone listens. After this process itself was stopped or busy, what came
// meanwhile gets this long to be handed over.
const GRACE = 250;
const DEFAULT_MEMORY = 256 << 20;
const MESSAGE_BYTES = 16 << 10; // no message is larger, unless one event is
const MAX_DIRECTORY = 107 - "/replay.sock".length; // so long an address of a socket may be
const BREATH = 256; // items, until others may have the event loop

/** tcp://HOST:PORT (PORT is the base port) or ipc:///run/coretap/NAME. */
function endpoints(address) {
  const tcp = /^tcp:\/\/(\[[\dA-Za-z.:%_-]+\]|[\dA-Za-z][\dA-Za-z.%_-]*):(\d{1,5})$/.exec(address);
  const port = tcp ? Number(tcp[2]) : 0;
  if (port > 0 && port <= 65533)
    return { low: `tcp://${tcp[1]}:${port}`, high: `tcp://${tcp[1]}:${port + 1}`, replay: `tcp://${tcp[1]}:${port + 2}` };
  if (`${address}`.startsWith("ipc:///")) {
    const directory = address.replace(/\/+$/, "");
    if (Buffer.byteLength(directory) > "ipc://".length + MAX_DIRECTORY)
      throw new TypeError(`${address}: too long for the address of a socket`);
    return { low: `${directory}/low.sock`, high: `${directory}/high.sock`, replay: `${directory}/replay.sock` };
  }
  throw new TypeError(`${address}: not an address; give tcp://HOST:PORT or ipc:///run/coretap/NAME`);
}

/** Unix microseconds of "10m", "oldest", "2009-01-03T18:15:05Z", a Date, or a Unix time in seconds. */
function parseSince(since) {
  if (since === undefined || since === null) return undefined;
  const ago = /^(\d{1,15})([smhd])$/.exec(since);
  let us = NaN;
  if (since instanceof Date) us = since.getTime() * 1000;
  else if (typeof since === "number") us = since * 1e6;
  else if (since === "oldest") us = 0;
  else if (ago) us = Math.max(0, Date.now() * 1000 - Number(ago[1]) * { s: 1, m: 60, h: 3600, d: 86400 }[ago[2]] * 1e6);
  else if (/^\d{4}-\d\d-\d\dT/.test(since)) us = Date.parse(since) * 1000;
  us = Math.round(us);
  if (!Number.isSafeInteger(us) || us < 0)
    throw new TypeError(`${since}: give 30s, 10m, 2h, 1d, oldest, or a time like 2009-01-03T18:15:05Z`);
  return us;
}

/** One SUB socket with its stream, and whether it is alive. */
class Link {
  quiet = false; // stale or stopping was the last that was told
  graced = false; // this silence was given its grace
  staleAt = performance.now() + STALE;
  #work = null; // what the message in hand still has to tell
  #batch = null; // its events
  #waiting = false; // for replay
  #answer;
  #frames = null; // the next message: one is fetched ahead
  #receiving = false;
  #closed = false;
  #connect;
  #socket;
  #wake;

  constructor(name, stream, endpoint, backlog, keys, wake) {
    this.name = name;
    this.stream = stream;
    this.#wake = wake;
    this.#connect = () => {
      const socket = new SubSocket({
        receiveHighWaterMark: backlog, linger: 0, ipv6: true, maxMessageSize: MAX_LENGTH,
        // A restarted coretapd waits 250 ms before its first event: be back by then.
        reconnectInterval: 50, handshakeInterval: 3000,
        // No heartbeats: with them libzmq (4.3.5) may abort the process once the high-water mark was
        // reached (zeromq/libzmq#3937). The status tells silence as well.
        tcpKeepalive: 1, tcpKeepaliveIdle: 10, tcpKeepaliveInterval: 5, tcpKeepaliveCount: 3, ...keys,
      });
      socket.connect(endpoint);
      // The status last: a publisher takes subscriptions in order, so when the first status comes,
      // everything after it comes too, and its heads are the place to count from.
      for (const topic of stream.entire ? [""] : stream.filter.names) socket.subscribe(topic);
      socket.subscribe(STATUS, STOPPING);
      return socket;
    };
    this.#socket = this.#connect();
  }

  /** A connection may be dead without an error: after silence, begin with a new one. */
  reconnect() {
    this.#socket.close();
    this.#socket = this.#connect();
    this.#receiving = false;
  }

  /** Whether a message is in hand. */
  get busy() {
    return this.#work !== null || this.#frames !== null;
  }

  #listen() {
    if (this.#receiving || this.#closed) return;
    this.#receiving = true;
    const socket = this.#socket;
    socket.receive().then((frames) => {
      if (socket !== this.#socket) return;
      this.#receiving = false;
      this.#frames = frames;
      this.#wake();
    }, (error) => {
      if (socket !== this.#socket || this.#closed) return;
      this.#receiving = false;
      this.#wake(error);
    });
  }

  *#begin(frames) {
    if (this.quiet) {
      this.quiet = false;
      yield new Notice("alive", this.name, {});
    }
    yield* this.stream.take(frames);
  }

  /** The next item; null: nothing at hand; undefined: that was the end of a message. */
  step() {
    if (this.#batch) {
      const event = this.#batch.next();
      if (event) return event;
      this.#batch = null;
    }
    if (this.#waiting) return null;
    if (!this.#work) {
      const frames = this.#frames;
      this.#frames = null;
      this.#listen();
      if (!frames) return null;
      this.staleAt = performance.now() + STALE;
      this.graced = false;
      this.#work = this.#begin(frames);
    }
    const { value, done } = this.#work.next(this.#answer);
    this.#answer = undefined;
    if (done) {
      this.#work = null;
      return undefined;
    }
    if (value instanceof Batch) {
      this.#batch = value;
      return this.step();
    }
    if (value instanceof Promise) {
      this.#waiting = true;
      value.then((answer) => {
        this.#waiting = false;
        this.#answer = answer;
        this.#wake();
      });
      return null;
    }
    if (value.kind === "stopping") this.quiet = true;
    return value;
  }

  close() {
    this.#closed = true;
    this.#socket.close();
    this.stream.replay?.close();
  }
}

export class Subscriber {
  #links = [];
  #position = null;
  #turn = 0; // index of the link whose message is in hand
  #ahead = null;
  #lookedAt = performance.now();
  #error = null;
  #wakeUp = null; // resolves the wait
  #asked = false; // next() has not returned yet
  #taken = 0;
  #closed = false;

  constructor(topics, { address = DEFAULT_ADDRESS, position, since, memory = DEFAULT_MEMORY, replay = true,
    bigint = false, sockets, curveServer, curveSecret, ...others } = {}) {
    const [unknown] = Object.keys(others);
    if (unknown !== undefined) throw new TypeError(`${unknown}: no such option`);
    if (!Number.isFinite(memory) || memory < 0)
      throw new TypeError(`memory: ${memory}: give a number of bytes, or 0 for no bound`);
    const where = endpoints(address);
    const filter = new Filter(topics.length ? topics : [""]);
    const keys = curveOptions(curveServer, curveSecret, address);
    const sinceUs = parseSince(since);
    if (position !== undefined && position !== null) this.#position = new Position(position);
    const backlog = memory ? Math.max(1, Math.floor(memory / MESSAGE_BYTES)) : 0;
    for (const name of sockets ?? filter.sockets()) {
      const stream = new Stream({
        socket: name, filter, since: sinceUs, bigint,
        replay: replay ? new Replay(where.replay, keys) : null,
        // All of the low socket is little, and shows at once where something is missing.
        entire: name === "low" || filter.names.includes(""),
      });
      if (this.#position) stream.nodes = this.#position.nodes(name);
      this.#links.push(new Link(name, stream, where[name], backlog, keys, (error) => this.#wake(error)));
    }
  }

  /** Events so far that replay gave: those from `since` or a position on, and those that did not arrive. */
  get replayed() {
    return this.#links.reduce((sum, { stream }) => sum + stream.replayed, 0);
  }

  /** The next event or notice; null when nothing came within timeout milliseconds, or after close().
   * Asking for the next one says that the one before is done: that is when a position is written. */
  async next(timeout = Infinity) {
    if (!(timeout >= 0 || timeout < 0)) throw new TypeError(`timeout: ${timeout}: give milliseconds`);
    if (this.#asked) throw new Error("next() was called while another call still waits; use its timeout instead of a race");
    this.#asked = true;
    try {
      if (++this.#taken % BREATH === 0) await new Promise(setImmediate);
      let item = this.take();
      if (item) return item;
      let now = performance.now();
      const deadline = now + timeout;
      while (!this.#closed) {
        item = this.take() ?? this.#stale(now);
        if (item) return item;
        if (now >= deadline) return null;
        const wait = Math.min(deadline, ...this.#links.filter((link) => !link.quiet).map((link) => link.staleAt)) - now;
        await this.#sleep(wait);
        const after = performance.now();
        // Time that was spent waiting as long as asked for was spent looking.
        this.#lookedAt += Math.min(wait, after - now);
        now = after;
      }
      return null;
    } finally {
      this.#asked = false;
    }
  }

  /** The next item at hand, without waiting; null when there is none. */
  take() {
    if (this.#error) throw this.#error;
    if (this.#ahead) {
      const item = this.#ahead;
      this.#ahead = null;
      return item;
    }
    const links = this.#links;
    for (let idle = 0; idle < links.length;) {
      const link = links[this.#turn];
      const item = link.step();
      if (item) this.#ahead = item; // it comes next, also when its position cannot be written now
      this.#position?.save(link.name, link.stream.nodes);
      if (item) {
        this.#ahead = null;
        return item;
      }
      idle = item === null ? idle + 1 : 0;
      this.#turn = (this.#turn + 1) % links.length;
    }
    return null;
  }

  /** Says that the item in hand is done, without asking for the next one. */
  commit() {
    if (this.#closed) return;
    // The last attempt to write it may have failed.
    if (this.#ahead) for (const { name, stream } of this.#links) this.#position?.save(name, stream.nodes);
    else this.#ahead = this.take();
  }

  close() {
    if (this.#closed) return;
    this.#closed = true;
    for (const link of this.#links) link.close();
    this.#links = [];
    this.#ahead = null;
    this.#position?.close();
    this.#position = null;
    this.#wakeUp?.();
  }

  /** Leaving the loop closes the subscriber. Whether it was left by a break or by an exception cannot be
   * told, so the item in hand counts as not done, unless commit() was called. */
  [Symbol.asyncIterator]() {
    return {
      next: async () => {
        const item = await this.next();
        return item === null ? { done: true, value: undefined } : { done: false, value: item };
      },
      return: async () => {
        this.close();
        return { done: true, value: undefined };
      },
    };
  }

  #stale(now) {
    const listened = now - this.#lookedAt <= GRACE;
    this.#lookedAt = now;
    for (const link of this.#links) {
      if (link.quiet || now < link.staleAt) continue;
      if (link.busy || !(listened || link.graced)) {
        link.graced = true;
        link.staleAt = now + GRACE;
        continue;
      }
      link.quiet = true;
      link.reconnect();
      const { last } = link.stream;
      return new Notice("stale", link.name, { node: last?.label, run: last?.run });
    }
    return null;
  }

  #wake(error) {
    if (error) this.#error ??= error;
    this.#wakeUp?.();
  }

  #sleep(ms) {
    return new Promise((resolve) => {
      const timer = ms < 0x7fffffff ? setTimeout(done, Math.max(0, ms) + 1) : null;
      const self = this;
      this.#wakeUp = done;
      function done() {
        self.#wakeUp = null;
        clearTimeout(timer);
        resolve();
      }
    });
  }
}

/** subscribe("mempool.", "block.evictions", { address, position, since, memory, replay, bigint, curveServer, curveSecret }) */
export function subscribe(...topics) {
  const last = topics.at(-1);
  const options = typeof last === "object" && last !== null && !Array.isArray(last) ? topics.pop() : {};
  return new Subscriber(topics.flat(), options);
}
