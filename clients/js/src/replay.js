// The client's end of the replay socket.
import { Dealer } from "zeromq";

import { MAX_LENGTH, VERSION, WireError, decode, encode } from "./wire.js";

const ATTEMPT = 2000; // ms until a request is sent again
const PATIENCE = 10000; // until the answer is given up: a coretapd that restarts is back by then
// Bytes of messages in one answer. Over a slow way it must be in time all the same: after an attempt less
// is asked for, and after each answer more again.
const MOST = 1 << 20;
const LEAST = 16 << 10;

export class Replay {
  off = false; // said so by the last status
  error = ""; // of the last request
  malformed = false; // that error: the answer breaks the contract
  #endpoint;
  #keys;
  #socket = null;
  #id = 0;
  #max = MOST;
  #closed = false;

  constructor(endpoint, keys) {
    this.#endpoint = endpoint;
    this.#keys = keys;
  }

  connect() {
    const socket = new Dealer({ linger: 0, ipv6: true, receiveHighWaterMark: 4, maxMessageSize: MAX_LENGTH,
      reconnectInterval: 50, sendTimeout: ATTEMPT, ...this.#keys });
    socket.connect(this.#endpoint);
    return socket;
  }

  #drop() {
    this.#socket?.close();
    this.#socket = null;
  }

  close() {
    this.#closed = true;
    this.#drop();
  }

  /** Resolves with the header and the frames after it, or null. Never rejects. */
  async ask(request) {
    const giveUp = performance.now() + PATIENCE;
    this.malformed = false;
    while (!this.off && !this.#closed) {
      const again = Math.min(performance.now() + ATTEMPT, giveUp);
      try {
        const answer = await this.#attempt(request, again);
        this.#max = Math.min(MOST, 2 * this.#max);
        this.error = answer.header.error === undefined ? "" : `${answer.header.error}`;
        return this.error ? null : answer;
      } catch (error) {
        // Whoever has not answered by now shall not answer this one later.
        this.#drop();
        this.#max = Math.max(LEAST, this.#max / 16);
        this.malformed = error instanceof WireError;
        this.error = this.malformed ? error.message : "no answer";
        if (this.malformed || performance.now() >= giveUp) return null;
      }
    }
    this.error = "replay is off";
    return null;
  }

  async #attempt(request, deadline) {
    const socket = this.#socket ??= this.connect();
    const id = ++this.#id;
    const max = this.#max < MOST && request.op === "replay" ? this.#max : undefined;
    await socket.send(encode({ v: VERSION, id, ...request, max }));
    for (;;) {
      socket.receiveTimeout = Math.max(1, Math.ceil(deadline - performance.now()));
      const [first, ...frames] = await socket.receive();
      const header = decode(first);
      if (header === null || typeof header !== "object" || Array.isArray(header)) throw new WireError("not a map");
      if (header.id === id) return { header, frames }; // else late, of a request that was given up
    }
  }
}
