// The mirror of the mempool, against the scripted publisher and a node's RPC made of a Map.
import assert from "node:assert/strict";
import { fork } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { Mempool, RPC } from "../index.js";
import { Publisher, txid } from "./publisher.js";

const id = (i) => txid(i).toString("hex");

class Scripted {
  listed = new Map(); // what getrawmempool says
  calls = 0;
  notices = [];
  answer = (listed) => listed;

  static async open(options) {
    const self = new Scripted();
    self.publisher = await Publisher.open();
    self.pool = new Mempool({ rpc: self, address: self.publisher.address, ...options });
    self.pool.on("notice", (notice) => self.notices.push(notice.kind));
    await self.publisher.join();
    self.timer = setInterval(() => self.publisher.status(), 100);
    return self;
  }

  async call(method, verbose) {
    assert.equal(method, "getrawmempool");
    this.calls++;
    const entries = [...this.listed].map(([key, [vsize, fee]]) => [key, { vsize, fees: { base: fee / 1e8 }, time: 1600000000 }]);
    return this.answer(verbose ? Object.fromEntries(entries) : [...this.listed.keys()]);
  }

  async event(topic, fields) {
    await this.publisher.send(`mempool.${topic}`, { events: [{ time_us: 1700000000000000, ...fields }] });
  }

  add(i, vsize = 100, fee = 1000) {
    this.listed.set(id(i), [vsize, fee]);
    return this.event("added", { txid: txid(i), vsize, fee });
  }

  remove(i, reason = "expiry", more = {}) {
    const [vsize, fee] = this.listed.get(id(i)) ?? [100, 1000];
    this.listed.delete(id(i));
    return this.event("removed", { txid: txid(i), reason, vsize, fee, entry_time: 1699999990, ...more });
  }

  async same(message) {
    await sleep(30);
    assert.deepEqual(await this.pool.verify(), { missing: [], surplus: [] }, message);
    assert.deepEqual([...this.pool.transactions.keys()].sort(), [...this.listed.keys()].sort());
    assert.equal(this.pool.vsize, [...this.listed.values()].reduce((sum, [vsize]) => sum + vsize, 0));
  }

  close() {
    clearInterval(this.timer);
    this.pool.close();
    this.publisher.close();
  }
}

function scripted(name, body, options) {
  test(name, { timeout: 240_000 }, async () => {
    const s = await Scripted.open(options);
    try {
      await body(s);
    } finally {
      s.close();
    }
  });
}

test("begins in the past, and tells each status", { timeout: 240_000 }, async () => {
  const publisher = await Publisher.open();
  for (const i of [1, 2, 3]) await publisher.send("mempool.added", { events: [{ time_us: 1700000000000000, txid: txid(i), vsize: 100, fee: 1000 }] });
  const pool = new Mempool({ rpc: { call: async () => ({}) }, address: publisher.address, since: "oldest" });
  const statuses = [];
  pool.on("status", (status) => status && statuses.push([status.socket, status.n]));
  await publisher.join();
  const timer = setInterval(() => publisher.status(), 100);
  try {
    await pool.ready();
    assert.deepEqual([[...pool.transactions.keys()], pool.replayed], [[1, 2, 3].map(id), 3]);
    assert.deepEqual(statuses[0], ["low", 3]);
  } finally {
    clearInterval(timer);
    pool.close();
    publisher.close();
  }
});

scripted("snapshot, then the stream", async (s) => {
  s.listed.set(id(1), [200, 2099999999999999]).set(id(2), [50, 51]);
  await s.pool.ready();
  assert.deepEqual(s.notices, ["synced"]);
  assert.equal(s.pool.get(id(1)).fee, 2099999999999999);
  assert.equal(s.pool.get(id(1)).entry_time, 1600000000);
  await s.add(3, 141, 282);
  await s.remove(2);
  await s.same();
  assert.deepEqual(s.pool.histogram([0, 1.5, 3]), [{ fee_rate: 0, count: 0, vsize: 0 }, { fee_rate: 1.5, count: 1, vsize: 141 }, { fee_rate: 3, count: 1, vsize: 200 }]);
  s.listed.set(id(9), [1, 1]);
  s.listed.delete(id(3));
  assert.deepEqual(await s.pool.verify(), { missing: [id(9)], surplus: [id(3)] });
});

scripted("what happens while the snapshot is taken", async (s) => {
  s.listed.set(id(1), [100, 1]).set(id(2), [100, 1]);
  let first;
  s.answer = async (listed) => { // the node has listed, the stream goes on, and then comes the answer
    s.answer = (other) => other;
    await s.remove(1);
    await s.add(3);
    await s.add(4);
    await s.remove(4);
    await sleep(50);
    first = s.pool.synced;
    return listed;
  };
  await s.pool.ready();
  assert.equal(first, false);
  await s.same();
});

scripted("a chain of replacements, and one that replaces two with their children", async (s) => {
  await s.pool.ready();
  for (const [i, j] of [[1, 2], [2, 3]]) { // A, B, C
    if (i === 1) await s.add(1);
    await s.event("replaced", { txid: txid(i), vsize: 100, fee: 1000, entry_time: 1, replacement_txid: txid(j), replacement_vsize: 100, replacement_fee: 2000 });
    await s.remove(i, "replaced");
    await s.add(j);
  }
  for (const i of [10, 11, 12, 13]) await s.add(i);
  for (const i of [10, 11, 12, 13])
    await s.event("replaced", { txid: txid(i), vsize: 100, fee: 1000, entry_time: 1, replacement_package: txid(99), replacement_vsize: 300, replacement_fee: 9000 });
  for (const i of [10, 11, 12, 13]) await s.remove(i, "replaced");
  await s.add(20);
  await s.same();
  assert.equal(s.pool.size, 2);
  assert.deepEqual([s.pool.get(id(1)).replaced_by, s.pool.get(id(2)).replaced_by, s.pool.get(id(3)).replaced_by], [id(2), id(3), null]);
  const victim = s.pool.get(id(10));
  assert.deepEqual([victim.replaced_by, victim.replaced_by_package, victim.reason], [null, id(99), "replaced"]);
});

scripted("left with which block, after how long", async (s) => {
  await s.pool.ready();
  await s.add(1);
  await s.publisher.send("validation.block_connected", { events: [{ time_us: 1, hash: txid(77), height: 800000, n_tx: 2, n_inputs: 1, sigops: 1, duration_ns: 1 }] });
  await s.remove(1, "block", { height: 800000, time_us: 1700000012500000 });
  await s.remove(5, "block", { height: null });
  await s.same();
  const { reason, height, block, waited } = s.pool.get(id(1));
  assert.deepEqual([reason, height, block, waited], ["block", 800000, id(77), 12.5]);
  assert.deepEqual([s.pool.get(id(5)).height, s.pool.get(id(5)).block, s.pool.get(id(5)).waited], [null, null, 10]);
});

scripted("continuity lost: it says so, and mends itself", async (s) => {
  await s.pool.ready();
  await s.add(1);
  for (const break_ of [
    () => s.publisher.send("mempool.removed", { lost: 2, events: [] }),
    () => s.event("added", { txid: null, vsize: 1, fee: 1 }),
    () => s.publisher.vanish("mempool.removed", { events: [{ time_us: 1 }] }),
    () => Object.assign(s.publisher, { run: s.publisher.run + 1, heads: {}, n: { low: 0, high: 0 } }),
  ]) {
    const { syncs } = s.pool;
    s.listed.delete(id(1)); // what the stream did not tell
    s.listed.set(id(50 + syncs), [77, 7]);
    await break_();
    while (s.pool.synced) await once(s.pool, "notice");
    await s.pool.ready();
    await s.same();
    assert.equal(s.pool.syncs, syncs + 1);
    s.listed.set(id(1), [100, 1000]);
    await s.add(1);
  }
  assert.equal(s.notices.filter((kind) => kind === "resyncing").length, 4);
  assert.equal(s.calls, 5 + 4);
});

scripted("a node that has ended has an empty mempool", async (s) => {
  s.listed.set(id(1), [100, 1]);
  await s.pool.ready();
  s.listed.clear();
  await s.publisher.send("node.exited", { events: [{ time_us: 1, binary: "b", build_id: "", started_at: 1, core: "v31" }] });
  while (s.pool.size) await sleep(10);
  assert.deepEqual([s.pool.size, s.pool.vsize, s.pool.synced], [0, 0, true]);
  await s.add(2);
  await s.same();
});

scripted("an RPC that fails is told once, and asked again", async (s) => {
  s.answer = () => {
    throw new Error("out of reach");
  };
  while (s.calls < 2) await sleep(50);
  assert.deepEqual(s.notices, ["resyncing"]);
  s.answer = (listed) => listed;
  await s.pool.ready();
});

scripted("only the ids; history is bounded", async (s) => {
  s.listed.set(id(1), [0, 0]);
  await s.pool.ready();
  assert.equal(s.pool.get(id(1)).fee, null);
  for (let i = 2; i < 10; i++) await s.add(i, 0, 0);
  for (let i = 1; i < 10; i++) await s.remove(i);
  await s.same();
  assert.deepEqual([...s.pool.left.keys()], [7, 8, 9].map(id));
}, { verbose: false, history: 3 });

test("an exception of a listener reaches the process, and the mirror goes on", { timeout: 240_000 }, async () => {
  const publisher = await Publisher.open();
  const child = fork(new URL("listener-child.js", import.meta.url), [publisher.address]);
  await publisher.join();
  await publisher.send("mempool.added");
  assert.deepEqual(await once(child, "message"), ["of a listener", undefined]);
  await publisher.send("mempool.added");
  assert.deepEqual(await once(child, "message"), [2, undefined]);
  child.kill();
  publisher.close();
});

test("RPC: cookie, user, errors", async () => {
  const directory = mkdtempSync(join(tmpdir(), "coretap-js-"));
  const cookie = join(directory, ".cookie");
  const server = createServer((request, response) => {
    let body = "";
    request.on("data", (data) => (body += data)).on("end", () => {
      const secret = Buffer.from(request.headers.authorization.split(" ")[1], "base64").toString();
      const { method, params } = JSON.parse(body);
      if (secret !== "user:pass word") response.writeHead(401).end();
      else if (method === "html") response.writeHead(503).end("<html>");
      else if (method === "wrong") response.writeHead(500).end('{"result":null,"error":{"code":-1,"message":"no such method"},"id":1}');
      else response.end(JSON.stringify({ result: { method, params }, error: null, id: 1 }));
    });
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  const url = `http://127.0.0.1:${server.address().port}`;
  await assert.rejects(new RPC({ url, cookie }).call("x"), /is the node running/);
  writeFileSync(cookie, "user:pass word\n");
  for (const rpc of [new RPC({ url, cookie }), new RPC({ url, user: "user", password: "pass word" }), new RPC({ url: url.replace("//", "//user:pass%20word@") })])
    assert.deepEqual(await rpc.call("getrawmempool", true), { method: "getrawmempool", params: [true] });
  const rpc = new RPC({ url, cookie });
  await assert.rejects(rpc.call("wrong"), { name: "RPCError", message: "wrong: no such method" });
  await assert.rejects(rpc.call("html"), /HTTP 503/);
  await assert.rejects(new RPC({ url, user: "a", password: "b" }).call("x"), /wrong user, password or cookie/);
  server.close();
  server.closeAllConnections();
  await assert.rejects(rpc.call("x"), { name: "RPCError" });
  rmSync(directory, { recursive: true });
});
