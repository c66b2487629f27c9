// A scripted publisher: both PUB sockets and replay, encoded by a general msgpack library, which knows
// nothing of ours.
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { decode, encode } from "@msgpack/msgpack";
import { Router, XPublisher } from "zeromq";

export const RUN = 1700000000000000;
export const txid = (i) => Buffer.concat([Buffer.alloc(24, 0xab), Buffer.from(i.toString(16).padStart(16, "0"), "hex")]);

export class Publisher {
  journal = []; // what replay has: { socket, run, n, count, topic, body }
  requests = [];
  run = RUN;
  mode = "on";
  n = { low: 0, high: 0 };
  heads = {};
  #sockets = {};

  static async open() {
    const publisher = new Publisher();
    publisher.directory = mkdtempSync(join(tmpdir(), "coretap-js-"));
    publisher.address = `ipc://${publisher.directory}`;
    await publisher.bind();
    return publisher;
  }

  async bind() {
    for (const name of ["low", "high"]) {
      // All subscriptions are passed on here, so that join() sees each.
      this.#sockets[name] = new XPublisher({ linger: 0, verbosity: "allSubs", sendHighWaterMark: 100_000 });
      await this.#sockets[name].bind(`${this.address}/${name}.sock`);
    }
    this.#sockets.replay = new Router({ linger: 0 });
    await this.#sockets.replay.bind(`${this.address}/replay.sock`);
    this.#serve(this.#sockets.replay);
  }

  unbind() {
    for (const socket of Object.values(this.#sockets)) socket.close();
  }

  close() {
    this.unbind();
    rmSync(this.directory, { recursive: true, force: true });
  }

  /** Waits for a subscriber; its last subscription is that to bridge.stopping. Then tells the status. */
  async join(socket = "low") {
    for await (const [frame] of this.#sockets[socket]) if (frame.toString() === "\x01bridge.stopping") break;
    await this.status(socket);
  }

  body(topic, { events = 1, lost, seq, n, run = this.run, socket = "low", node = "test", pid = 42 }) {
    const list = Array.isArray(events) ? events : Array.from({ length: events }, (_, i) => ({
      time_us: RUN + i, txid: txid((seq ?? this.next(topic)) + i), vsize: 141, fee: 1000 }));
    seq ??= this.next(topic);
    n ??= this.n[socket] + 1;
    this.heads[topic] = seq + (lost ?? 0) + list.length - 1;
    this.n[socket] = n + list.length - 1;
    const body = encode({ v: 1, node, run, pid, n, seq, ...(lost && { lost }), events: list });
    return { socket, run, n, count: list.length, topic, body };
  }

  next(topic) {
    return (this.heads[topic] ?? 0) + 1;
  }

  /** Publishes, and keeps it for replay. */
  send(topic, options = {}) {
    const message = this.body(topic, options);
    this.journal.push(message);
    return this.raw(message.socket, topic, message.body);
  }

  /** Keeps it for replay only. */
  drop(topic, options = {}) {
    this.journal.push(this.body(topic, options));
  }

  /** Nobody ever sees it. */
  vanish(topic, options = {}) {
    this.body(topic, options);
  }

  raw(socket, ...frames) {
    return this.#sockets[socket].send(frames);
  }

  status(socket = "low", topic = "bridge.status") {
    const heads = Object.fromEntries(Object.entries(this.heads).filter(([name]) => (name.startsWith("utxo") ? "high" : "low") === socket));
    return this.raw(socket, topic, encode({ v: 1, node: "test", run: this.run, socket, time_us: RUN, n: this.n[socket],
      heads, held: 1, counters: {}, replay: "ok", pid: null, ignored: [] }));
  }

  async #serve(router) {
    for await (const [client, frame] of router) {
      const request = decode(frame);
      this.requests.push(request);
      if (this.mode === "silent") continue;
      await router.send([client, ...this.#answer(request)]);
    }
  }

  #answer({ id, op, run, socket, after = 0, topics }) {
    if (this.mode !== "on") return [this.mode];
    if (op === "hello") {
      const runs = [...new Set(this.journal.map((m) => m.run))].map((r) => ({ run: r, ended: r !== this.run, topics: {} }));
      return [encode({ v: 1, id, run: this.run, runs })];
    }
    run ??= this.run;
    const held = this.journal.filter((m) => m.run === run && m.socket === socket && m.n + m.count - 1 > after);
    const page = held.slice(0, 50);
    const last = page.at(-1);
    const next = held.length > page.length ? last.n + last.count - 1 : null;
    const frames = page.filter(({ topic }) => !topics || topics.some((t) => topic.startsWith(t))).flatMap(({ topic, body }) => [topic, body]);
    return [encode({ v: 1, id, run, next, head: this.n[socket], gone: 0 }), ...frames];
  }
}

/** The next items, as short texts. */
export async function words(tap, count, timeout = 20_000) {
  const got = [];
  while (got.length < count) {
    const item = await tap.next(timeout);
    if (!item) break;
    got.push(item.kind === "event" ? `${item.topic} ${item.seq}` :
      item.first ? `${item.kind} ${item.topic} ${item.first}-${item.last}` : item.kind);
  }
  return got;
}

export async function exit(child) {
  if (child.exitCode === null && child.signalCode === null) await once(child, "exit");
  return child.exitCode;
}
