// The WebSocket API: who subscribed to what, and what happens to those who do not read.
import { WebSocketServer } from "ws";

import { TOPICS } from "./state.js";

const FLUSH = 100; // ms between two deltas
const BATCH = 500; // events that wait for the next flush
const HEARTBEAT = 15_000; // ms; who has not answered by the next one is gone
const MAX_REQUEST = 4096; // bytes
const MAX_TOPICS = 64;
const PER_SECOND = 20; // requests, and three times as many at once
const SEARCH = 5; // requests' worth: it looks through everything
const PAGE = 200; // transactions of a block in one answer
// A client with this much unread gets nothing more until it has read, then all of it anew. With twice that,
// or after so many seconds, it is dropped.
const UNREAD = 1 << 20;
const PATIENCE = 20_000; // ms

/** mempool.removed, or mempool. for all that begin so. */
const EVENTS = /^(mempool|validation|block|net|node)\.[a-z_]*$/;

class Client {
  topics = new Set();
  names = []; // topics and prefixes of events, sorted
  skipped = 0; // events that it did not get
  behind = 0; // since when it does not read; 0: it does
  alive = true;
  #tokens = 3 * PER_SECOND;
  #refilled = performance.now();

  constructor(socket) {
    this.socket = socket;
  }

  /** Whether it may ask once more, for so much. */
  allowed(cost) {
    const now = performance.now();
    this.#tokens = Math.min(3 * PER_SECOND, this.#tokens + (now - this.#refilled) * PER_SECOND / 1000);
    this.#refilled = now;
    this.#tokens -= cost;
    return this.#tokens >= 0;
  }

  wants(topic) {
    return this.names.some((name) => (name.endsWith(".") ? topic.startsWith(name) : topic === name));
  }

  send(text) {
    this.socket.send(text, { binary: false });
    if (!this.behind && this.socket.bufferedAmount > UNREAD) this.behind = performance.now();
  }

  tell(message) {
    this.send(JSON.stringify(message));
  }
}

export class Api {
  #state;
  #server;
  #clients = new Set();
  #limit;
  #events = []; // { topic, text } until the next flush
  #wanted = new Map(); // whether anybody subscribed to a topic of events, of those that came
  #timers;

  constructor(state, { clients }) {
    this.#state = state;
    this.#limit = clients;
    this.#server = new WebSocketServer({ noServer: true, maxPayload: MAX_REQUEST, perMessageDeflate: false, clientTracking: false });
    this.#timers = [setInterval(() => this.flush(), FLUSH), setInterval(() => this.#heartbeat(), HEARTBEAT)];
  }

  get clients() {
    return this.#clients.size;
  }

  /** Takes over a connection that asked for it. Returns false when there are too many. */
  accept(request, socket, head) {
    if (this.#clients.size >= this.#limit) return false;
    this.#server.handleUpgrade(request, socket, head, (connection) => this.#open(connection));
    return true;
  }

  /** An event for those who subscribed to it. */
  event(event) {
    const { topic } = event;
    if (!this.#wanted.has(topic)) this.#wanted.set(topic, [...this.#clients].some((client) => client.wants(topic)));
    if (!this.#wanted.get(topic)) return;
    this.#events.push({ topic, text: event.json() });
    if (this.#events.length >= BATCH) this.flush();
  }

  /** What changed goes out now. */
  flush() {
    this.#state.tick();
    for (const client of this.#clients) this.#catchUp(client);
    for (const [topic, data] of this.#state.changes()) {
      const interested = [...this.#clients].filter((client) => client.topics.has(topic) && !client.behind);
      if (!interested.length) continue;
      const text = Buffer.from(JSON.stringify({ type: "delta", topic, data }));
      for (const client of interested) client.send(text);
    }
    this.#flushEvents();
  }

  close() {
    for (const timer of this.#timers) clearInterval(timer);
    for (const { socket } of this.#clients) socket.close(1001, "the explorer ends");
    this.#server.close();
    // Who does not read does not answer either.
    setTimeout(() => this.#clients.forEach(({ socket }) => socket.terminate()), 200).unref();
  }

  /** The same text for all who chose the same topics. */
  #flushEvents() {
    if (!this.#events.length) return;
    const events = this.#events;
    this.#events = [];
    const texts = new Map();
    for (const client of this.#clients) {
      if (!client.names.length) continue;
      const key = client.names.join();
      if (!texts.has(key)) {
        const chosen = events.filter(({ topic }) => client.wants(topic));
        const text = chosen.length && Buffer.from(`{"type":"events","events":[${chosen.map((event) => event.text).join()}]}`);
        texts.set(key, { text, count: chosen.length });
      }
      const { text, count } = texts.get(key);
      if (!count) continue;
      if (client.behind) client.skipped += count;
      else client.send(text);
    }
  }

  /** A client that has read everything gets what it missed: the state anew, and how many events are not told. */
  #catchUp(client) {
    if (!client.behind) return;
    if (client.socket.bufferedAmount > 2 * UNREAD || performance.now() - client.behind > PATIENCE) {
      client.socket.terminate();
      return;
    }
    if (client.socket.bufferedAmount) return;
    client.behind = 0;
    if (client.skipped) client.tell({ type: "skipped", events: client.skipped });
    client.skipped = 0;
    for (const topic of client.topics) this.#snapshot(client, topic);
  }

  #snapshot(client, topic) {
    client.send(Buffer.from(JSON.stringify({ type: "snapshot", topic, data: this.#state.snapshot(topic) })));
  }

  #open(socket) {
    const client = new Client(socket);
    this.#clients.add(client);
    socket.on("message", (data, binary) => this.#request(client, data, binary));
    socket.on("pong", () => (client.alive = true));
    socket.on("error", () => socket.terminate()); // garbage, or more than a request may have
    socket.on("close", () => {
      this.#clients.delete(client);
      this.#wanted.clear();
    });
    client.tell({ type: "hello", version: 1, topics: TOPICS });
  }

  #heartbeat() {
    for (const client of this.#clients) {
      if (!client.alive) {
        client.socket.terminate();
        continue;
      }
      client.alive = false;
      client.socket.ping();
    }
  }

  #request(client, data, binary) {
    if (client.socket.readyState !== client.socket.OPEN) return;
    if (!client.allowed(1)) {
      client.socket.close(1008, "too many requests");
      return;
    }
    let request;
    try {
      if (binary) throw new SyntaxError("a request is text");
      request = JSON.parse(data.toString());
    } catch (error) {
      client.tell({ type: "error", error: `not JSON: ${error.message}` });
      return;
    }
    const id = ["string", "number"].includes(typeof request?.id) ? request.id : undefined;
    try {
      const answer = this.#answer(client, request ?? {});
      if (answer !== undefined) client.tell({ type: "answer", id, ...answer });
    } catch (error) {
      if (!(error instanceof TypeError)) throw error;
      client.tell({ type: "error", id, error: error.message });
    }
  }

  #answer(client, { op, topics, text, txid, block, list = "confirmed", from = 0 }) {
    switch (op) {
      case "subscribe": return this.#subscribe(client, checkTopics(topics));
      case "unsubscribe": return this.#unsubscribe(client, checkTopics(topics));
      case "transaction": return { transaction: this.#state.transaction(checkText("txid", txid)) };
      case "search":
        if (!client.allowed(SEARCH - 1)) throw new TypeError("too many searches, ask again in a second");
        return { search: this.#state.search(checkText("text", text)) };
      case "block":
        if (!Number.isInteger(from) || from < 0) throw new TypeError("from: not a number from 0");
        if (list !== "confirmed" && list !== "conflicts") throw new TypeError("list: neither confirmed nor conflicts");
        return { block: this.#state.block(checkText("block", block), list, from, PAGE) };
      default:
        throw new TypeError("op: none of subscribe, unsubscribe, transaction, search, block");
    }
  }

  /** What came before the snapshot is not told again. */
  #subscribe(client, topics) {
    this.flush();
    const names = new Set(client.names);
    for (const topic of topics) {
      if (!TOPICS.includes(topic)) names.add(topic);
      else if (!client.topics.has(topic)) {
        client.topics.add(topic);
        if (!client.behind) this.#snapshot(client, topic);
      }
    }
    client.names = [...names].sort().slice(0, MAX_TOPICS);
    this.#wanted.clear();
  }

  #unsubscribe(client, topics) {
    for (const topic of topics) client.topics.delete(topic);
    client.names = client.names.filter((name) => !topics.includes(name));
    this.#wanted.clear();
  }
}

function checkText(name, value) {
  if (typeof value !== "string" || !value || value.length > 200) throw new TypeError(`${name}: not a text of 1 to 200 characters`);
  return value;
}

function checkTopics(topics) {
  if (!Array.isArray(topics) || !topics.length || topics.length > MAX_TOPICS)
    throw new TypeError(`topics: not a list of 1 to ${MAX_TOPICS}`);
  const wrong = topics.find((topic) => typeof topic !== "string" || topic.length > 64 || !(TOPICS.includes(topic) || EVENTS.test(topic)));
  if (wrong !== undefined)
    throw new TypeError(`topics: ${JSON.stringify(wrong).slice(0, 80)} is none of ${TOPICS.join(", ")}, nor an event's like mempool.removed or mempool.`);
  return topics;
}
