// One socket's stream: what is expected next of each topic, and how what is missing is fetched.
//
// Knows neither sockets nor clocks. Stream.take() yields what a message has to tell: notices, batches of
// events, and in between a promise when it waits for replay, whose value is to be handed back to it. What
// it keeps in its nodes is at any moment what the application has taken.
import { CATALOGUE } from "../catalogue.js";
import { Event, Notice, Status } from "./events.js";
import { STATUS, STOPPING, WireError, decodeMessage, decodeStatus, topicName } from "./wire.js";

// A publisher that invents labels or topics must not make this process grow.
const MAX_NODES = 16;
const MAX_TOPICS = 1024;
const MAX_RUNS = 1000;
// Bytes of the topics in one request, which may have 4,096. Without them everything is asked for.
const MAX_NAMES = 3500;

/** Topics, and prefixes that end with a dot or are empty. */
export class Filter {
  #exact;
  #prefixes;
  #known = new Map(); // topic: whether it matches, of those asked about

  constructor(names) {
    for (const name of names)
      if (typeof name !== "string" || (name && (!topicName(Buffer.from(name)) || name[0] === "." || !name.includes("."))))
        throw new TypeError(`${name}: not a topic; give "mempool.removed", "mempool." or ""`);
    this.names = [...new Set(names)];
    this.#exact = new Set(this.names.filter((name) => name && !name.endsWith(".")));
    this.#prefixes = this.names.filter((name) => !name || name.endsWith("."));
    this.wantsStatus = this.#exact.has(STATUS) || this.#prefixes.includes("bridge.");
  }

  matches(topic) {
    let known = this.#known.get(topic);
    if (known === undefined) {
      known = this.#exact.has(topic) ||
        this.#prefixes.some((prefix) => topic.length > prefix.length && topic.startsWith(prefix));
      if (this.#known.size < MAX_TOPICS) this.#known.set(topic, known);
    }
    return known;
  }

  /** Those that can carry what is asked for; both for a topic that the catalogue lacks. */
  sockets() {
    const needed = new Set();
    for (const name of this.names) {
      const prefix = !name || name.endsWith(".");
      const known = [...CATALOGUE].filter(([topic]) => topic === name || (prefix && topic.startsWith(name)));
      for (const [, { socket }] of known) needed.add(socket);
      if (!known.length) needed.add("low").add("high");
    }
    return ["low", "high"].filter((socket) => needed.has(socket));
  }
}

class Topic {
  constructor(next, at) {
    this.next = next; // number of the next firing; 0: not known, the first message tells
    this.at = at; // position up to which this topic was accounted for
  }
}

/** What is known of one label: the cursor of a subscriber. */
export class Node {
  run = 0;
  n = -1; // everything up to this position was taken or told as missing; -1: not known
  topics = new Map();
  whole = null; // what was asked for when the run started, if that was seen: of these every topic begins at 1
  toldOldRun = 0;
  heard = false; // else it comes from a saved position only
  settled = -1; // position of a status, or of a saved place: of topics not known yet nothing was taken beyond it
  resumed = false; // from a position: a message may have been taken in part

  constructor(label) {
    this.label = label;
  }

  /** As a position keeps it. */
  save() {
    const topics = Object.fromEntries([...this.topics].map(([name, { next, at }]) => [name, [next, at]]));
    return { run: this.run, n: this.n, whole: this.whole !== null, asked: this.whole?.names, topics };
  }

  /** A position of an earlier version does not say what was asked for. */
  static restore(label, { run, n, whole, asked = [""], topics }) {
    const node = Object.assign(new Node(label), { run, n, whole: whole ? new Filter(asked) : null, settled: n, resumed: true });
    for (const [name, [next, at]] of Object.entries(topics)) node.topics.set(name, new Topic(next, at));
    return node;
  }

  begin(run, asked) {
    this.run = run;
    this.n = 0;
    this.topics = new Map();
    this.whole = asked;
    this.settled = -1;
    this.resumed = false;
  }

  topic(name) {
    let topic = this.topics.get(name);
    if (!topic) {
      if (this.topics.size >= MAX_TOPICS) throw new WireError("topic: too many topics");
      topic = this.whole?.matches(name) ? new Topic(1, 0) : new Topic(0, Math.max(0, this.settled < 0 ? this.n : this.settled));
      this.topics.set(name, topic);
    }
    return topic;
  }
}

/** Events of one message. Each counts as taken when the next one is asked for. */
export class Batch {
  #node;
  #known;
  #topic;
  #message;
  #make;
  #first; // number of the message's first event
  #index;

  constructor(node, known, topic, message, skip) {
    this.#node = node;
    this.#known = known;
    this.#topic = topic;
    this.#message = message;
    this.#make = CATALOGUE.get(topic)?.make ?? Event;
    this.#first = message.seq + message.lost;
    this.#index = skip;
  }

  get size() {
    return this.#message.events.length - this.#index;
  }

  next() {
    const { run, pid, n, events, times } = this.#message;
    const i = this.#index;
    this.#known.next = this.#first + i;
    if (n + i - 1 > this.#node.n) this.#node.n = n + i - 1;
    if (i === events.length) return null;
    this.#index = i + 1;
    return new this.#make(this.#topic, this.#node.label, run, this.#first + i, n + i, pid, times[i], events[i]);
  }
}

const isUint = (value) => Number.isSafeInteger(value) && value >= 0;

/** The heads of the runs that replay holds, from one on; nothing of what is not as it should be. */
function heldRuns(hello, oldest) {
  const runs = new Map();
  for (const entry of Array.isArray(hello?.runs) ? hello.runs : [])
    if (isUint(entry?.run) && entry.run >= oldest && runs.size < MAX_RUNS)
      runs.set(entry.run, Object.entries(entry.topics ?? {}).filter(([, head]) => isUint(head) && isUint(head + 1)));
  return runs;
}

export class Stream {
  nodes = new Map();
  last = null; // node of the last good message
  replayed = 0; // events that replay gave

  /** entire: all of the socket is received, so that every position counts on and what is missing shows
   * at once. Else it shows at the next message of its topic or the next status, and order between topics
   * is not kept where something had to be fetched. */
  constructor({ socket, filter, replay, since, entire, bigint }) {
    this.socket = socket;
    this.filter = filter;
    this.replay = replay;
    this.since = since; // Unix microseconds; undefined: the present
    this.entire = entire;
    this.bigint = bigint;
  }

  #notice(kind, node, parts) {
    return new Notice(kind, this.socket, { node: node.label, run: node.run, ...parts });
  }

  // ---- what comes from the socket ----

  *take(frames) {
    const topic = topicName(frames[0]);
    const own = topic === STATUS || topic === STOPPING;
    const wanted = !topic || own || this.filter.matches(topic);
    try {
      if (!topic) throw new WireError("topic: not a topic");
      if (frames.length < 2) throw new WireError("message of one frame");
      if (own) yield* this.#status(topic, decodeStatus(frames[1], this.bigint));
      else if (wanted || this.entire)
        yield* this.#message(topic, decodeMessage(topic, frames[1], this.bigint || !wanted), wanted);
    } catch (error) {
      if (!(error instanceof WireError)) throw error;
      if (wanted) yield new Notice("malformed", this.socket, { topic, reason: error.message });
    }
  }

  *#message(topic, message, wanted) {
    const node = this.#node(message.node);
    if (this.replay && node.run && message.run > node.run) this.replay.off = false; // so it was in the run before
    if (message.run !== node.run && !(yield* this.#enterRun(node, message.run))) return;
    const known = wanted ? node.topic(topic) : null;
    const late = known !== null && known.next > 0 && known.next < message.seq;
    const first = known !== null && !known.next && node.settled >= 0 && message.seq > 1;
    if (this.entire && (late || (node.n >= 0 && node.n < message.n - 1)))
      // A topic may have been left out for a while, of a position that was kept.
      yield* this.#fill(node, Math.max(0, late ? Math.min(node.n, known.at) : node.n), message.n - 1);
    else if ((late || first) && !this.entire) yield* this.#fill(node, this.#oldest(node), message.n - 1);
    if (wanted) yield* this.#account(node, topic, message);
    node.n = Math.max(node.n, message.n + message.events.length - 1);
  }

  *#status(topic, status) {
    if (status.socket !== this.socket)
      throw new WireError(`socket: this address is not that of the ${this.socket} socket`);
    const node = this.#node(status.node);
    if (this.replay) this.replay.off = status.replay === "off";
    if (status.run !== node.run && !(yield* this.#enterRun(node, status.run))) return;
    const heads = Object.entries(status.heads).filter(([name]) => this.filter.matches(name));
    const missing = heads.map(([name, head]) => [node.topic(name), head])
      .filter(([known, head]) => (known.next > 0 ? known.next <= head : head && node.settled >= 0 && node.settled < status.n)).map(([known]) => known.at);
    if (missing.length)
      yield* this.#fill(node, Math.max(0, Math.min(...missing, this.entire ? node.n : Infinity)), status.n);
    yield* this.#closeTail(node, heads, status.n);
    node.n = node.settled = Math.max(node.n, status.n);
    if (topic === STOPPING) yield this.#notice("stopping", node, { topic, time_us: status.time_us });
    else if (this.filter.wantsStatus) yield new Status(this.socket, topic, status);
  }

  #node(label) {
    let node = this.nodes.get(label);
    if (!node) {
      if (this.nodes.size >= MAX_NODES) {
        // Nobody heard of it since its position was saved.
        const unheard = [...this.nodes.values()].find((known) => !known.heard);
        if (!unheard) throw new WireError("node: too many labels");
        this.nodes.delete(unheard.label);
      }
      node = new Node(label);
      this.nodes.set(label, node);
    }
    node.heard = true;
    this.last = node;
    return node;
  }

  // ---- the one rule ----

  /** next = seq + lost + number of events. What is missing here is gone. */
  *#account(node, topic, message) {
    const known = node.topic(topic);
    const { seq, lost } = message;
    let skip = 0;
    let told = false;
    if (seq < known.next) {
      if (!(node.resumed && message.end > known.next)) return; // a duplicate
      skip = Math.max(0, known.next - seq - lost);
      told = true;
    }
    if (known.next > 0 && known.next < seq) {
      yield this.#notice("gap", node, { topic, first: known.next, last: seq - 1 });
      known.next = seq;
    }
    if (lost && !told) yield this.#notice("lost", node, { topic, first: seq, last: seq + lost - 1 });
    yield new Batch(node, known, topic, message, skip);
    known.at = message.n + message.events.length - 1;
  }

  /** What was sent up to position n and is still missing is gone. */
  *#closeTail(node, heads, n) {
    for (const [topic, head] of heads) {
      const known = node.topic(topic);
      if (known.next > 0 && known.next <= head)
        yield this.#notice("gap", node, { topic, first: known.next, last: head });
      known.next = Math.max(known.next, head + 1);
      known.at = Math.max(known.at, n);
    }
  }

  // ---- runs ----

  /** Returns whether a message of this run is to be taken. */
  *#enterRun(node, run) {
    if (!node.run) {
      if (this.since !== undefined) yield* this.#beginSince(node);
      node.run ||= run;
    }
    if (run < node.run) {
      if (node.toldOldRun !== run) {
        node.toldOldRun = run;
        yield this.#notice("old_run", node, { old_run: run });
      }
      return false;
    }
    if (run > node.run) yield* this.#changeRun(node, run);
    return true;
  }

  /** First the tail of the old run, and what replay holds of runs between. */
  *#changeRun(node, run) {
    const answer = yield* this.#ask({ op: "hello" });
    const held = heldRuns(answer?.header, node.run);
    const between = [...held.keys()].filter((other) => node.run < other && other < run).sort((a, b) => a - b);
    for (const next of [...between, run]) {
      if (held.has(node.run)) {
        yield* this.#fill(node, this.#oldest(node), Infinity);
        const tail = held.get(node.run).filter(([topic]) => this.filter.matches(topic) && this.#isOurs(node, topic));
        yield* this.#closeTail(node, tail, node.n);
      }
      yield new Notice("new_run", this.socket, { node: node.label, run: next, old_run: node.run });
      node.begin(next, this.filter);
    }
  }

  /** Hello tells the heads of both sockets together. */
  #isOurs(node, topic) {
    return node.topics.has(topic) || CATALOGUE.get(topic)?.socket === this.socket;
  }

  // ---- replay ----

  /** Returns { header, frames }, or null when there is no answer that can be used. */
  *#ask(request) {
    if (!this.replay) return null;
    const answer = yield this.replay.ask(request);
    if (this.replay.malformed)
      yield new Notice("malformed", this.socket, { reason: `replay: ${this.replay.error}` });
    return answer;
  }

  /** The position after which something may be missing. */
  #oldest(node) {
    const known = [...node.topics].filter(([name]) => this.filter.matches(name)).map(([, { at }]) => at);
    return this.entire || !known.length ? Math.max(0, node.n) : Math.min(...known);
  }

  #request(place) {
    const { names } = this.filter;
    const length = names.reduce((sum, name) => sum + name.length + 2, 0);
    const topics = names.length <= 64 && !names.includes("") && length <= MAX_NAMES ? names : undefined;
    return { op: "replay", socket: this.socket, ...place, topics };
  }

  /** Takes what replay has after a position, up to another one, or to the end of the run. */
  *#fill(node, after, until) {
    for (;;) {
      const answer = yield* this.#ask(this.#request({ run: node.run, after }));
      if (!answer || !(yield* this.#takeAnswer(node, answer))) return;
      const { next } = answer.header;
      if (!isUint(next) || next <= after || next >= until) return;
      after = next;
    }
  }

  /** Returns whether the answer was as it must be. */
  *#takeAnswer(node, { header, frames }) {
    for (let i = 0; i + 1 < frames.length; i += 2) {
      const topic = topicName(frames[i]);
      if (!this.filter.matches(topic)) continue;
      try {
        const message = decodeMessage(topic, frames[i + 1], this.bigint);
        if (message.run !== node.run || message.node !== node.label) {
          const reason = "replay: of another node or run than asked for";
          yield new Notice("malformed", this.socket, { topic, reason });
          return false;
        }
        for (const part of this.#account(node, topic, message)) {
          if (part instanceof Batch) this.replayed += part.size;
          yield part;
        }
      } catch (error) {
        if (!(error instanceof WireError)) throw error;
        // What follows is good all the same.
        yield new Notice("malformed", this.socket, { topic, reason: `replay: ${error.message}` });
      }
    }
    const end = header.next ?? header.head;
    if (isUint(end)) node.n = Math.max(node.n, end);
    return true;
  }

  /** Starts in the past instead of now. */
  *#beginSince(node) {
    const { since } = this;
    this.since = undefined;
    const answer = yield* this.#ask(this.#request({ since }));
    if (!answer || !isUint(answer.header.run) || !answer.header.run) {
      yield new Notice("no_replay", this.socket, { node: node.label, reason: this.replay?.error || "not asked" });
      return;
    }
    node.run = answer.header.run;
    if ((yield* this.#takeAnswer(node, answer)) && isUint(answer.header.next))
      yield* this.#fill(node, answer.header.next, Infinity);
  }
}
