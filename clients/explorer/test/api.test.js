// The server: what it serves and to whom, the API, and those who do not keep to it.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { readdirSync } from "node:fs";
import { createServer } from "node:http";
import { connect } from "node:net";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import { Publisher, txid } from "../../js/test/publisher.js";
import { UsageError, readOptions } from "../src/options.js";
import { Listener, Server, beat, until } from "./server.js";

const T = 1_700_000_000_000_000;
const ALL = ["mempool", "blocks", "replacements", "peers", "health"];

/** A scripted coretapd, and a server that listens to it. */
function scene(name, body, ...args) {
  test(name, { timeout: 400_000 }, async (t) => {
    const publisher = await Publisher.open();
    const server = await Server.start("--address", publisher.address, ...args);
    try {
      await publisher.join();
      await publisher.status("high");
      const timer = beat(publisher);
      try {
        await body({ publisher, server, t });
      } finally {
        clearInterval(timer);
      }
      assert.equal(await server.end(), 0, server.log);
      assert.equal(server.log, "");
    } finally {
      await server.end("SIGKILL");
      publisher.close();
    }
  });
}

const id = (i) => txid(i).toString("hex");
const added = (i, more = {}) => ({ time_us: T + i, txid: txid(i), vsize: 100, fee: 1000, ...more });

scene("serves its own files, with a strict policy, and nothing else", async ({ server }) => {
  const page = await server.get("/");
  assert.match(page, /^HTTP\/1\.1 200 /);
  const policy = /content-security-policy: (.*)\r/.exec(page)[1];
  assert.match(policy, /^default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';/);
  assert.doesNotMatch(policy, /unsafe|\*|https?:/);
  for (const header of ["x-content-type-options: nosniff", "referrer-policy: no-referrer", "cross-origin-opener-policy: same-origin"])
    assert.ok(page.includes(header), header);
  for (const name of readdirSync(fileURLToPath(new URL("../page/", import.meta.url)))) {
    const answer = await server.get(`/${name}?x`);
    assert.match(answer, /^HTTP\/1\.1 200 /);
    assert.match(answer, /content-type: (text\/(html|css|javascript); charset=utf-8|image\/svg\+xml)\r/);
    const etag = /etag: (.*)\r/.exec(answer)[1];
    assert.match(await server.get(`/${name}`, undefined, `If-None-Match: ${etag}\r\n`), /^HTTP\/1\.1 304 /);
  }
  for (const path of ["/../server.js", "/%2e%2e/server.js", "/..%2fserver.js", "/page/../server.js", "//etc/passwd", "/..\\server.js", "/server.js", "/__proto__",
    "/constructor", "/src/api.js", "/%00", "/api", "http://x/../server.js", "*"])
    assert.match(await server.get(path), /^HTTP\/1\.1 (404|400) /, path);
  assert.match(await server.raw(`POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello`), /^HTTP\/1\.1 405 /);
  assert.match(await server.raw("GET / HTTP/1.1\r\nHost: localhost\r\nX: " + "y".repeat(20_000) + "\r\n\r\n"), /^HTTP\/1\.1 (400|431) /);
  assert.match(await server.raw("\x16\x03\x01\0\0garbage\r\n\r\n"), /^HTTP\/1\.1 400 /);
});

scene("a name or a site that is not its own is refused", async ({ server }) => {
  const upgrade = (host, origin) => server.get("/api", host,
    `${origin ? `Origin: ${origin}\r\n` : ""}Upgrade: websocket\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n`).then((answer) => Number(answer.slice(9, 12)));
  const connection = (host, origin) => server.raw(`GET /api HTTP/1.1\r\nHost: ${host}\r\n${origin ? `Origin: ${origin}\r\n` : ""}Connection: Upgrade\r\nUpgrade: websocket\r\n` +
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n").then((answer) => Number(answer.slice(9, 12)));
  assert.match(await server.get("/", "evil.example"), /^HTTP\/1\.1 421 /);
  assert.match(await server.get("/", "localhost:99"), /^HTTP\/1\.1 200 /);
  assert.match(await server.get("/", "[::1]"), /^HTTP\/1\.1 200 /);
  assert.match(await server.get("/", "Mempool.Example:80"), /^HTTP\/1\.1 200 /);
  assert.match(await server.get("/", "a b"), /^HTTP\/1\.1 4\d\d /);
  assert.deepEqual([await connection("localhost"), await connection("localhost:1", "http://localhost:1"), await connection("localhost", "https://friend.example")], [101, 101, 101]);
  assert.deepEqual([await connection("evil.example", "http://evil.example"), await connection("localhost", "http://evil.example"), await connection("localhost", "null")], [421, 403, 403]);
  assert.notEqual(await upgrade("localhost"), 101);
}, "--allow-host", "mempool.example", "--allow-origin", "https://friend.example");

scene("a snapshot, then deltas; events by topic", async ({ publisher, server }) => {
  await publisher.send("mempool.added", { events: [added(1), added(2)] });
  const all = await Listener.open(server, ["mempool.", "block.evictions"]);
  const some = await Listener.open(server, ["mempool.removed"]);
  const state = await Listener.open(server, ALL);
  await state.wait(({ type, topic }) => type === "snapshot" && topic === "health", "health");
  assert.deepEqual(state.messages.slice(0, 6).map(({ type, topic }) => topic ?? type), ["hello", ...ALL]);
  state.ask({ op: "transaction", txid: id(1), id: "a" });
  assert.equal((await state.wait(({ id }) => id === "a", "an answer")).transaction.state, "mempool");
  await publisher.send("mempool.added", { events: [added(3)] });
  await publisher.send("mempool.removed", { events: [{ time_us: T + 5, txid: txid(1), reason: "expiry", vsize: 100, fee: 1000, entry_time: 1 }] });
  await until(() => all.events.length === 2 && some.events.length === 1, "events");
  assert.deepEqual(all.events.map(({ topic, txid: told }) => [topic, told]), [["mempool.added", id(3)], ["mempool.removed", id(1)]]);
  assert.deepEqual(some.events.map(({ topic, seq }) => [topic, seq]), [["mempool.removed", 1]]);
  all.ask({ op: "unsubscribe", topics: ["mempool."] });
  all.ask({ op: "search", text: "abab", id: 2 });
  await all.wait(({ id }) => id === 2, "an answer");
  await publisher.send("mempool.added", { events: [added(4)] });
  await publisher.send("mempool.removed", { events: [{ time_us: T + 6, txid: txid(2), reason: "expiry", vsize: 100, fee: 1000, entry_time: 1 }] });
  await until(() => some.events.length === 2, "an event");
  assert.equal(all.events.length, 2);
  for (const listener of [all, some, state]) listener.close();
});

scene("a request that is wrong is told so in one line", async ({ server }) => {
  const listener = await Listener.open(server);
  const wrong = ["{", "[]", "null", "5", '""', "{}", '{"op":"toString"}', '{"op":"subscribe"}', '{"op":"subscribe","topics":[]}', '{"op":"subscribe","topics":["utxocache.add"]}',
    '{"op":"subscribe","topics":["__proto__"]}', '{"op":"subscribe","topics":[null]}', '{"op":"transaction"}', '{"op":"transaction","txid":7}', '{"op":"block","block":"7","from":-1}',
    '{"op":"block","block":"7","list":"__proto__"}', '{"op":"search","text":""}', Buffer.from([0xff, 0xfe])];
  for (const text of wrong) listener.ask(text);
  await until(() => listener.of("error").length === wrong.length, "errors");
  for (const { error } of listener.of("error")) assert.ok(error.length > 5 && !error.includes("\n"), error);
  for (const [op, more] of [["transaction", { txid: "../../etc/passwd" }], ["transaction", { txid: "f".repeat(64) }], ["block", { block: "7" }]])
    listener.ask({ op, ...more, id: op });
  await until(() => listener.of("answer").length === 3, "answers");
  for (const answer of listener.of("answer")) assert.equal(answer[answer.id], null);
  listener.close();
});

scene("garbage, floods and giants end their own connection only", async ({ server }) => {
  const good = await Listener.open(server, ["health"]);
  const giant = await Listener.open(server);
  giant.ask("x".repeat(5000));
  await giant.closed;
  const flood = await Listener.open(server);
  const begin = performance.now();
  for (let i = 0; i < 1000; i++) flood.ask('{"op":"search","text":"abcd"}');
  const [code] = await flood.closed;
  assert.equal(code, 1008);
  assert.ok(flood.of("answer").length <= 70 + (performance.now() - begin) / 50); // it may ask 20 times a second
  const handshake = "GET /api HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n";
  for (const tail of ["\xff\xff\xff\xff\xff\xff\xff\xff", "\x81\x05hello", "\x81\xff\x7f\xff\xff\xff\xff\xff\xff\xff", "\x0f".repeat(100), "GET / HTTP/1.1\r\n\r\n"])
    await server.raw(Buffer.from(handshake + tail, "latin1"));
  await server.raw(handshake.slice(0));
  await server.raw(handshake.replace("13", "7"));
  await server.raw(handshake.replace("Key: AAAA", "Key: !"));
  const before = good.of("delta").length;
  await until(() => good.of("delta").length > before, "a delta");
  good.close();
});

scene("one that does not read is skipped, then has the state anew; the others get everything", async ({ publisher, server, t }) => {
  const good = await Listener.open(server, ["mempool.", "mempool"]);
  const slow = await Listener.open(server, ["mempool.", "mempool"]);
  await slow.wait(({ type }) => type === "snapshot", "a snapshot");
  slow.socket.pause();
  const events = 50_000; // more than a socket holds
  for (let sent = 0; sent < events; sent += 250) {
    await publisher.send("mempool.added", { events: Array.from({ length: 250 }, (_, i) => added(sent + i)) });
    await until(() => good.count >= sent - 1500, "events"); // never so many ahead that it would be skipped too
  }
  await until(() => good.count === events, "all events");
  const numbers = good.events.map(({ seq }) => seq);
  assert.deepEqual(numbers, Array.from({ length: events }, (_, i) => i + 1));
  slow.socket.resume();
  let dropped = false; // where all this took longer than its patience
  slow.closed.then(() => (dropped = true));
  await until(() => dropped || slow.of("skipped").length, "what was skipped");
  const skipped = slow.of("skipped")[0]?.events;
  t.diagnostic(`one that did not read for ${events} events missed ${skipped ?? "the rest"} of them`);
  if (!dropped) {
    assert.equal(slow.count + skipped, events);
    await until(() => slow.of("snapshot", "mempool").length === 2, "the state anew");
  }
  good.close();
  slow.close();
});

scene("one that asks and does not read is dropped, also where it says that it is alive", async ({ publisher, server }) => {
  const block = { hash: txid(77), height: 7, n_tx: 301 };
  const list = Array.from({ length: 300 }, (_, i) => i);
  await publisher.send("validation.block_connected", { events: [{ time_us: T, ...block, n_inputs: 1, sigops: 1, duration_ns: 1 }] });
  await publisher.send("block.evictions", { events: [{ time_us: T, ...block, n_block: publisher.n.low, txids: list.map(txid), fees: list, vsizes: list, entry_times: list,
    conflicts: { txids: [], fees: [], vsizes: [], entry_times: [], after: [] }, unseen: 0, reorg: 0, repeat: false, complete: true, final: true }] });
  const socket = connect(server.port, "127.0.0.1");
  let [gone, asked] = [false, 0];
  socket.on("error", () => {}).on("close", () => (gone = true)).pause();
  socket.write(`GET /api HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: ${"A".repeat(22)}==\r\nSec-WebSocket-Version: 13\r\n\r\n`);
  const frame = (opcode, text) => Buffer.concat([Buffer.of(0x80 | opcode, 0x80 | text.length, 0, 0, 0, 0), Buffer.from(text)]);
  const [request, pong] = [frame(1, '{"op":"block","block":"7"}'), frame(10, "")];
  await until(() => {
    if (performance.now() - asked > 60) {
      asked = performance.now();
      socket.write(Buffer.concat([request, pong]));
    }
    return gone;
  }, "its end");
});

scene("as many as there may be, and no more", async ({ server }) => {
  const three = await Promise.all([1, 2, 3].map(() => Listener.open(server)));
  await assert.rejects(Listener.open(server), /503/);
  three[0].close();
  await until(() => Listener.open(server).then((listener) => three.push(listener), () => false), "a free place");
  for (const listener of three) listener.close();
}, "--clients", "3");

test("a server that was killed comes back with the same state", { timeout: 400_000 }, async () => {
  const publisher = await Publisher.open();
  let server;
  const timer = beat(publisher);
  try {
    const read = async () => {
      server = await Server.start("--address", publisher.address);
      const listener = await Listener.open(server, ALL);
      await listener.wait(({ type, topic, data }) => type === "delta" && topic === "health" && !data.catching_up && data.mempool.synced, "synced");
      await publisher.send("mempool.rejected", { events: [{ time_us: T + 9e6, txid: txid(9), reason: "x" }] });
      await listener.wait(({ type, topic }) => type === "delta" && topic === "mempool", "points");
      listener.ask({ op: "subscribe", topics: ALL });
      const fresh = await Listener.open(server, ALL);
      await fresh.wait(({ topic }) => topic === "health", "a snapshot");
      const [mempool, blocks, replacements, peers] = ALL.map((topic) => fresh.of("snapshot", topic)[0].data);
      listener.close();
      fresh.close();
      await server.end("SIGKILL");
      return { now: mempool.now, blocks, trees: replacements.trees, peers: peers.peers };
    };
    const block = { hash: txid(77), height: 7, n_tx: 3 };
    await publisher.send("mempool.added", { events: [1, 2, 3, 4].map((i) => added(i)) });
    await publisher.send("mempool.replaced", { events: [{ time_us: T + 10, txid: txid(3), vsize: 100, fee: 1000, entry_time: 1, replacement_txid: txid(4), replacement_vsize: 100, replacement_fee: 9 }] });
    await publisher.send("mempool.removed", { events: [{ time_us: T + 11, txid: txid(3), reason: "replaced", vsize: 100, fee: 1000, entry_time: 1 }] });
    await publisher.send("validation.block_connected", { events: [{ time_us: T + 5e6, ...block, n_inputs: 1, sigops: 1, duration_ns: 1 }] });
    const n_block = publisher.n.low;
    await publisher.send("mempool.removed", { events: [1, 2].map((i) => ({ time_us: T + 5e6, txid: txid(i), reason: "block", vsize: 100, fee: 1000, entry_time: 1700000000, height: 7 })) });
    await publisher.send("block.evictions", { events: [{ time_us: T + 5e6, ...block, n_block, txids: [txid(1), txid(2)], fees: [1000, 1000], vsizes: [100, 100], entry_times: [1700000000, 1700000000],
      conflicts: { txids: [], fees: [], vsizes: [], entry_times: [], after: [] }, unseen: 0, reorg: 0, repeat: false, complete: true, final: true }] });
    await publisher.send("net.inbound_connection", { events: [{ time_us: T, peer_id: 5, addr: "x", connection_type: "inbound", network: "ipv4", count: 1 }] });
    const first = await read();
    assert.deepEqual([first.now.count, first.blocks.blocks.length, first.blocks.blocks[0].confirmed, first.trees.length, first.peers.length], [1, 1, 2, 1, 1]);
    assert.deepEqual(await read(), first);
  } finally {
    clearInterval(timer);
    await server?.end("SIGKILL");
    publisher.close();
  }
});

test("with the node's RPC the mempool is the node's own, and says when it is not", { timeout: 400_000 }, async () => {
  const publisher = await Publisher.open();
  const listed = new Map([[id(1), { vsize: 200, fees: { base: 0.00001 }, time: 1600000000 }], [id(2), { vsize: 300, fees: { base: 0.00003 }, time: 1600000000 }]]);
  let broken = true;
  const rpc = createServer((request, response) => {
    assert.equal(request.headers.authorization, `Basic ${btoa("user:secret")}`);
    response.writeHead(broken ? 500 : 200).end(JSON.stringify({ id: 1, result: Object.fromEntries(listed), error: broken ? { message: "Loading <b>block</b> index" } : null }));
  });
  await new Promise((resolve) => rpc.listen(0, "127.0.0.1", resolve));
  const server = await Server.start("--address", publisher.address, "--rpc", `http://user:secret@127.0.0.1:${rpc.address().port}`);
  const timer = beat(publisher, 100);
  try {
    await publisher.join();
    const listener = await Listener.open(server, ["health", "mempool"]);
    const mempool = (condition, what) => listener.wait(({ topic, data }) => topic === "health" && data.mempool.exact && condition(data.mempool), what);
    await mempool(({ resyncing }) => resyncing?.includes("Loading <b>block</b> index"), "the reason");
    broken = false;
    await mempool(({ synced }) => synced, "synced");
    await publisher.send("mempool.removed", { events: [{ time_us: T, txid: txid(1), reason: "expiry", vsize: 200, fee: 1000, entry_time: 1 }] });
    await publisher.send("mempool.added", { events: [added(5e6)] });
    await listener.wait(({ type, topic, data }) => type === "delta" && topic === "mempool" && data.now.count === 2 && data.now.fees === 4000 && data.now.vsize === 400, "the mempool");
    listener.messages.length = 0;
    publisher.vanish("mempool.removed");
    await mempool(({ synced }) => !synced, "resyncing");
    await mempool(({ synced, syncs }) => synced && syncs === 2, "synced once more");
    assert.ok(listener.messages.some(({ topic, data }) => topic === "health" && data.gone === 1));
    assert.ok(!server.out.includes("secret"));
    listener.close();
    assert.equal(await server.end(), 0);
    assert.equal(server.log, "");
  } finally {
    clearInterval(timer);
    await server.end("SIGKILL");
    publisher.close();
    rpc.close();
    rpc.closeAllConnections();
  }
});

test("the command line", () => {
  for (const args of ["--nonsense", "surplus", "--listen 8080", "--listen x:99999", "--listen [x]:1", "--history 1", "--clients many", "--rpc nowhere", "--rpc http://127.0.0.1:1",
    "--rpc ftp://u:p@x", "--allow-origin http://x/path", "--allow-origin x"])
    assert.throws(() => readOptions(args.split(" ")), (error) => error instanceof UsageError && !error.message.includes("\n"), args);
  assert.deepEqual(readOptions(["--listen", "[::1]:80"]).listen, { host: "::1", port: 80 });
  assert.deepEqual(readOptions(["--rpc-cookie", "c"]).rpc, { url: "http://127.0.0.1:8332", cookie: "c" });
  const path = fileURLToPath(new URL("../server.js", import.meta.url));
  for (const [args, code] of [["--help", 0], ["--nonsense", 2], ["--address nowhere", 2], ["--since soon", 2], ["--listen 192.0.2.1:1", 1]]) {
    const done = spawnSync("node", [path, ...args.split(" ")], { encoding: "utf8", timeout: 80_000 });
    assert.equal(done.status, code, `${args}: ${done.stderr}`);
    assert.equal(done.stderr.split("\n").length - 1, code ? 1 : 0, done.stderr);
  }
});
