// A subscriber against the scripted publisher.
import assert from "node:assert/strict";
import { fork } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { encode } from "@msgpack/msgpack";

import { Mempool, hex, subscribe } from "../index.js";
import { Publisher, RUN, exit, txid, words } from "./publisher.js";

const ADDED = "mempool.added";

/** With a publisher and a subscriber that has joined it. */
function scripted(name, topics, options, body, sockets = ["low"]) {
  test(name, { timeout: 240_000 }, async () => {
    const publisher = await Publisher.open();
    const tap = subscribe(topics, { address: publisher.address, ...options });
    try {
      for (const socket of sockets) await publisher.join(socket);
      await body(publisher, tap);
    } finally {
      tap.close();
      publisher.close();
    }
  });
}

scripted("events have their fields as properties", ["mempool."], {}, async (publisher, tap) => {
  await publisher.send(ADDED, { seq: 1 });
  const event = await tap.next();
  assert.equal(event.txid.toString("hex"), txid(1).toString("hex"));
  assert.deepEqual([event.kind, event.vsize, event.fee, event.fields.vsize, event.reason], ["event", 141, 1000, 141, undefined]);
  assert.equal(event.time.getTime(), RUN / 1000);
  assert.deepEqual(Object.keys(JSON.parse(event.json())), ["topic", "node", "run", "seq", "n", "pid", "time_us", "txid", "vsize", "fee"]);
});

scripted("joining is no loss, a gap is filled in order, losses are told", ["mempool."], {}, async (publisher, tap) => {
  publisher.heads[ADDED] = 99;
  publisher.n.low = 49;
  await publisher.send(ADDED, { events: 2 });
  publisher.drop(ADDED, { events: 3 });
  publisher.drop("mempool.removed", { events: [{ time_us: 1, reason: "expiry" }] });
  await publisher.send(ADDED, { lost: 5 });
  assert.deepEqual(await words(tap, 8), ["mempool.added 100", "mempool.added 101", "mempool.added 102", "mempool.added 103",
    "mempool.added 104", "mempool.removed 1", "lost mempool.added 105-109", "mempool.added 110"]);
  publisher.vanish(ADDED, { events: 2 });
  await publisher.status();
  assert.deepEqual(await words(tap, 1), ["gap mempool.added 111-112"]);
});

scripted("what the status reveals is fetched, with or without all of the socket", ["utxocache.add"], {}, async (publisher, tap) => {
  await publisher.send("utxocache.add", { socket: "high" });
  await publisher.send("utxocache.spent", { socket: "high", events: 3 });
  publisher.drop("utxocache.add", { socket: "high", events: 2 });
  await publisher.status("high");
  assert.deepEqual(await words(tap, 3), ["utxocache.add 1", "utxocache.add 2", "utxocache.add 3"]);
  assert.deepEqual(publisher.requests.map(({ topics }) => topics), [["utxocache.add"]]);
}, ["high"]);

scripted("a new run: first the tail of the old one", ["mempool."], {}, async (publisher, tap) => {
  await publisher.send(ADDED);
  publisher.drop(ADDED);
  Object.assign(publisher, { run: RUN + 5, heads: {}, n: { low: 0, high: 0 } });
  await publisher.send(ADDED);
  await publisher.raw("low", ADDED, publisher.body(ADDED, { run: RUN, seq: 3, n: 3 }).body);
  assert.deepEqual(await words(tap, 5), ["mempool.added 1", "mempool.added 2", "new_run", "mempool.added 1", "old_run"]);
});

scripted("without replay gaps are told at once", ["mempool."], { replay: false }, async (publisher, tap) => {
  await publisher.send(ADDED);
  publisher.drop(ADDED, { events: 2 });
  await publisher.send(ADDED);
  assert.deepEqual(await words(tap, 3), ["mempool.added 1", "gap mempool.added 2-3", "mempool.added 4"]);
  assert.equal(publisher.requests.length, 0);
});

for (const [what, mode] of [["a bomb", Buffer.from([0xdd, 255, 255, 255, 255])], ["garbage", Buffer.from("ffffff")]])
  scripted(`a replay peer that answers with ${what} costs a gap`, ["mempool."], {}, async (publisher, tap) => {
    publisher.mode = mode;
    await publisher.send(ADDED);
    publisher.drop(ADDED);
    await publisher.send(ADDED);
    assert.deepEqual(await words(tap, 4), ["mempool.added 1", "malformed", "gap mempool.added 2-2", "mempool.added 3"]);
    publisher.mode = "on";
    publisher.drop(ADDED);
    await publisher.send(ADDED);
    assert.deepEqual(await words(tap, 2), ["mempool.added 4", "mempool.added 5"]);
  });

scripted("malformed frames are told, and the stream goes on", ["mempool."], {}, async (publisher, tap) => {
  await publisher.send(ADDED);
  await publisher.raw("low", ADDED, Buffer.from([0xc1]));
  await publisher.raw("low", ADDED);
  await publisher.raw("low", "utxocache.add", Buffer.from([0xc1])); // not asked for
  await publisher.send(ADDED);
  assert.deepEqual(await words(tap, 4), ["mempool.added 1", "malformed", "malformed", "mempool.added 2"]);
});

scripted("stale, alive, stopping and back again", ["mempool."], {}, async (publisher, tap) => {
  const begin = performance.now();
  assert.deepEqual(await words(tap, 1), ["stale"]);
  assert(performance.now() - begin > 2500); // not before its time; a busy machine may be late
  await publisher.join(); // a connection that is silent is given up for a new one
  await publisher.send(ADDED);
  assert.deepEqual(await words(tap, 2), ["alive", "mempool.added 1"]);
  await publisher.status("low", "bridge.stopping");
  assert.deepEqual(await words(tap, 1), ["stopping"]);
  publisher.unbind();
  assert.equal(await tap.next(3500), null); // no stale after a stopping
  await publisher.bind();
  await publisher.join();
  await publisher.send(ADDED);
  assert.deepEqual(await words(tap, 2), ["alive", "mempool.added 2"]);
});

scripted("whoever was busy finds what came meanwhile, and no silence", ["mempool."], {}, async (publisher, tap) => {
  await publisher.send(ADDED);
  assert.deepEqual(await words(tap, 1), ["mempool.added 1"]);
  await sleep(3500);
  await publisher.send(ADDED);
  assert.deepEqual(await words(tap, 1), ["mempool.added 2"]);
});

scripted("timeouts and calls at once cost no event", ["mempool."], {}, async (publisher, tap) => {
  assert.equal(await tap.next(0), null);
  const waiting = tap.next();
  await assert.rejects(tap.next(0), /while another call still waits/);
  await publisher.send(ADDED, { events: 3 });
  assert.equal((await waiting).seq, 1);
  assert.deepEqual(await words(tap, 2), ["mempool.added 2", "mempool.added 3"]);
  let seen = 3;
  for (let i = 0; i < 300; i++) {
    if (i % 3 === 0) await publisher.send(ADDED);
    const item = await tap.next(1);
    if (item) assert.equal(item.seq, ++seen);
  }
  while (seen < 103) assert.equal((await tap.next(20_000))?.seq, ++seen);
  assert.equal(await tap.next(200), null);
});

scripted("close ends a wait, and a loop", ["mempool."], {}, async (publisher, tap) => {
  setTimeout(() => tap.close(), 50);
  for await (const item of tap) assert.fail(item.kind);
  assert.equal(await tap.next(), null);
});

scripted("others have the event loop too", ["mempool."], {}, async (publisher, tap) => {
  let ticks = 0;
  const timer = setInterval(() => ticks++, 5);
  for (let i = 0; i < 2000; i++) await publisher.send(ADDED, { events: 20 });
  let seen = 0;
  for await (const item of tap) {
    assert.equal(item.seq, ++seen);
    if (seen === 40_000) break;
  }
  clearInterval(timer);
  assert(ticks > 1);
});

scripted("the rest of a status", ["mempool.", "bridge.status"], { bigint: true }, async (publisher, tap) => {
  await publisher.status();
  const status = await tap.next();
  assert.deepEqual([status.kind, status.n, status.fields.v], ["status", 0, 1n]);
}, ["low", "high"]);

test("a position: nothing twice, nothing missed, also after kill -9", { timeout: 240_000 }, async () => {
  const publisher = await Publisher.open();
  const child = new URL("position-child.js", import.meta.url);
  const taken = [];
  const file = `${publisher.directory}/position`;
  let sent = 0;
  const noted = () => readFileSync(file, "utf8").includes(ADDED);
  for (let round = 0; round < 5; round++) {
    const process = fork(child, [publisher.address, file]);
    const first = once(process, "message");
    process.on("message", (seq) => taken.push(seq));
    await publisher.join();
    for (let i = 0; i < 40; i++) {
      await publisher.send(ADDED, { events: 3 });
      sent += 3;
      await sleep(1);
    }
    await first; // on a busy machine it may come late
    while (!noted()) await sleep(1);
    process.kill("SIGKILL"); // in the middle
    await exit(process);
    publisher.drop(ADDED, { events: 2 }); // while nobody listens
    sent += 2;
    const { version, sockets } = JSON.parse(readFileSync(file, "utf8"));
    assert.equal(version, 1);
    assert.equal(sockets.low.test.topics[ADDED].length, 2);
  }
  const last = fork(child, [publisher.address, file]);
  last.on("message", (seq) => taken.push(seq));
  await publisher.join();
  while (taken.at(-1) !== sent) await once(last, "message");
  last.kill();
  publisher.close();
  // A kill may fall between taking an event and saying so: that one is repeated to this test's list.
  const unique = taken.filter((seq, i) => seq !== taken[i - 1]);
  assert.deepEqual(unique, Array.from({ length: sent }, (_, i) => i + 1));
  assert(taken.length - unique.length <= 5);
});

test("a position that is none", async () => {
  assert.throws(() => subscribe("mempool.", { position: new URL(import.meta.url).pathname }), /not a position/);
  for (const position of ["/dev/zero", "/"]) assert.throws(() => subscribe("mempool.", { position }), /: not a regular file/);
});

/** The items that a subscriber with a position takes while body runs, as short texts. */
async function taken(publisher, topics, position, count, body) {
  const tap = subscribe(topics, { address: publisher.address, position });
  try {
    await publisher.join();
    await body();
    const got = await words(tap, count);
    tap.commit();
    return got;
  } finally {
    tap.close();
  }
}

test("a position that outgrows a page, and is small again; topics that are asked for later", { timeout: 240_000 }, async () => {
  const publisher = await Publisher.open();
  const position = `${publisher.directory}/position`;
  const many = Array.from({ length: 200 }, (_, i) => `node.${"long_name_".repeat(4)}${i}`);
  try {
    await taken(publisher, ["node.", "mempool.removed"], position, 200, async () => {
      for (const topic of many) await publisher.send(topic, { events: [{ time_us: 1 }] });
    });
    assert.equal(Object.keys(JSON.parse(readFileSync(position, "utf8")).sockets.low.test.topics).length, 200);
    assert.deepEqual(await taken(publisher, ["node.", "mempool.removed"], position, 2, async () => {
      Object.assign(publisher, { run: RUN + 5, heads: {}, n: { low: 0, high: 0 } });
      await publisher.send(many[0], { events: [{ time_us: 1 }] });
      await publisher.send(ADDED);
    }), ["new_run", `${many[0]} 1`]);
    assert.equal(Object.keys(JSON.parse(readFileSync(position, "utf8")).sockets.low.test.topics).length, 1);
    // What came of it before was not missed.
    assert.deepEqual(await taken(publisher, ["node.", "mempool."], position, 1, () => publisher.send(ADDED)), [`${ADDED} 2`]);
  } finally {
    publisher.close();
  }
});

test("a position that cannot be written costs no event", { timeout: 240_000 }, async () => {
  const publisher = await Publisher.open();
  const directory = `${publisher.directory}/later`;
  const tap = subscribe("mempool.", { address: publisher.address, position: `${directory}/position` });
  try {
    await publisher.join();
    await publisher.send(ADDED, { events: 3 });
    const got = [];
    let failures = 0;
    while (!failures || got.length < 3) {
      try {
        const item = await tap.next(5000);
        if (item) got.push(item.seq);
      } catch (error) {
        assert.match(error.message, /ENOENT/);
        failures++;
      }
    }
    assert.deepEqual(got, [1, 2, 3]);
    mkdirSync(directory);
    tap.commit();
    assert.equal(JSON.parse(readFileSync(`${directory}/position`, "utf8")).sockets.low.test.n, 3);
  } finally {
    tap.close();
    publisher.close();
  }
});

test("addresses, topics and options", () => {
  for (const address of ["tcp://node", "tcp://:1", "tcp://a:65534", "tcp://a b:1", "ipc://run", "inproc://x", "", "tcp://*:1", "tcp://é:1",
    "tcp://eth0;10.0.0.1:1"])
    assert.throws(() => subscribe("mempool.", { address }), /not an address/, address);
  for (const topic of ["mempool", ".x", "a b.c", "x".repeat(97), null, undefined]) assert.throws(() => subscribe(topic), /not a topic/, topic);
  assert.throws(() => subscribe("mempool.", { address: `ipc:///${"a".repeat(95)}` }), /too long/);
  for (const since of ["soon", -1, NaN, Infinity, true, new Date(NaN), new Date(8.64e15)])
    assert.throws(() => subscribe("mempool.", { since }), /give 30s/, `${since}`);
  for (const [name, value] of [["memory", "256M"], ["memory", NaN], ["memory", -1], ["position", ""], ["position", 5], ["adress", "x"]])
    assert.throws(() => subscribe("mempool.", { [name]: value }), new RegExp(`^TypeError: ${name}: `), `${name} ${value}`);
  assert.throws(() => new Mempool(), /rpc: give/);
  assert.throws(() => hex("ab"), /string is not bytes/);
  subscribe("mempool.", { address: "tcp://[::1]:1" }).close();
});

scripted("a timeout that is none", ["mempool."], {}, async (publisher, tap) => {
  for (const timeout of ["a", NaN, {}]) await assert.rejects(tap.next(timeout), /timeout: .*give milliseconds/);
  assert.equal(await tap.next(-1), null);
});

test("since without replay is told", { timeout: 240_000 }, async () => {
  const publisher = await Publisher.open();
  publisher.mode = encode({ v: 1, id: 1, error: "replay is off" });
  const tap = subscribe("mempool.", { address: publisher.address, since: "1h" });
  try {
    await publisher.join();
    assert.equal((await tap.next()).json(), '{"notice":"no_replay","socket":"low","node":"test","reason":"replay is off"}');
  } finally {
    tap.close();
    publisher.close();
  }
});
