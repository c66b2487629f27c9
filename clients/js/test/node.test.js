// With coretapd on the simulated node.
import assert from "node:assert/strict";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { Mempool, hex, subscribe } from "../index.js";
import { Bridge, FakeNode, cannot, until } from "./bridge.js";

const options = { skip: cannot, timeout: 400_000 };

async function joined(tap) {
  while ((await tap.next(30_000)).kind !== "status");
}

test("a slow subscriber with little memory: the burst is complete, through replay", options, async () => {
  const bridge = await Bridge.start(["--subscriber-memory", "64K"]);
  const tap = subscribe("mempool.", "bridge.status", { address: bridge.address, memory: 65536 });
  await joined(tap);
  const before = process.memoryUsage().rss;
  const node = new FakeNode("burst", 200_000, "--wait");
  await sleep(3000); // nothing is taken meanwhile
  assert(process.memoryUsage().rss - before < 100 << 20);
  let seen = 0;
  for await (const item of tap) {
    if (item.kind !== "event") {
      assert(["status", "stale", "alive"].includes(item.kind), item.kind);
      continue;
    }
    assert.equal(item.seq, ++seen);
    assert.equal(Number(BigInt(`0x${hex(item.txid.subarray(24))}`)), seen - 1);
    if (seen === 200_000) break;
  }
  assert.equal((await node.finish())["mempool:removed"], 200_000);
  await bridge.close();
});

test("a subscriber that was there before the bridge misses nothing", options, async () => {
  const place = await Bridge.start();
  const { port, address } = place;
  await place.close();
  const tap = subscribe("mempool.", "node.", { address });
  assert.equal(await tap.next(300), null);
  const node = new FakeNode("burst", 5000, "--rate", 5000, "--wait", "--hold");
  const bridge = await Bridge.start([], port);
  let seen = 0;
  for await (const item of tap) {
    if (item.kind === "stale" || item.kind === "alive") continue;
    assert.equal(item.kind, "event", `${item}`);
    if (item.topic === "node.started") assert.equal(item.n, 1);
    else assert.equal(item.seq, ++seen);
    if (seen === 5000) break;
  }
  await node.stop();
  await bridge.close();
});

test("a slow subscriber without replay: the exact numbers of what is missing", options, async () => {
  const bridge = await Bridge.start(["--subscriber-memory", "64K", "--journal", "none"]);
  const tap = subscribe("mempool.", "bridge.status", { address: bridge.address, memory: 65536 });
  await joined(tap);
  const node = new FakeNode("burst", 200_000, "--wait");
  await node.finish();
  let seen = 0, missing = 0;
  await sleep(2000);
  while (seen + missing < 200_000) {
    const item = await tap.next(30_000);
    if (item.kind === "gap") {
      assert.equal(item.first, seen + missing + 1);
      missing += item.count;
    } else if (item.kind === "event") {
      seen++;
      assert.equal(item.seq, seen + missing);
      assert.equal(Number(BigInt(`0x${hex(item.txid.subarray(24))}`)), item.seq - 1);
    }
  }
  assert(missing > 0);
  tap.close();
  await bridge.close();
});

test("the bridge restarts, again and again: nothing is missed that it saw", options, async () => {
  let bridge = await Bridge.start(["--keep-attached"]);
  const { port, address } = bridge;
  const tap = subscribe("mempool.", "bridge.status", { address });
  await joined(tap);
  const node = new FakeNode("burst", 30_000, "--rate", 5000, "--wait");
  let seen = 0;
  const all = (async () => {
    while (seen < 30_000) {
      const item = await tap.next(60_000);
      assert(item, `nothing after ${seen}`);
      if (item.kind === "event") assert.equal(item.seq, ++seen);
      else assert(["status", "stale", "alive", "stopping"].includes(item.kind), `${item}`);
    }
  })();
  for (let i = 0; i < 3; i++) {
    await sleep(1200);
    await bridge.stop();
    bridge = await Bridge.start(["--keep-attached"], port);
  }
  await all;
  await node.finish();
  tap.close();
  await bridge.stop();
  bridge = await Bridge.start([], port); // takes the pins over, and leaves none
  await bridge.close();
});

test("Mempool is exact after a walk, a restart of the bridge, and the node's end", options, async () => {
  const directory = mkdtempSync(join(tmpdir(), "coretap-js-"));
  const file = join(directory, "pool");
  const listed = () => existsSync(file) ? readFileSync(file, "utf8").split("\n").filter(Boolean) : [];
  let bridge = await Bridge.start();
  const pool = new Mempool({ address: bridge.address, rpc: { call: async () => listed() }, verbose: false });
  const notices = [];
  pool.on("notice", (notice) => notices.push(notice.kind));
  await pool.ready();
  const node = new FakeNode("walk", 20_000, "--seed", 11, "--mempool-out", file, "--wait", "--hold");
  await until(() => listed().length, 240);
  const same = async () => {
    assert.deepEqual(await pool.verify(), { missing: [], surplus: [] });
    assert.deepEqual([...pool.transactions.keys()].sort(), listed().sort());
  };
  await same();
  assert(pool.size > 50);
  const gone = [...pool.left.values()];
  assert(gone.length > 1000);
  assert.deepEqual(new Set(gone.map(({ reason }) => reason)).has("block"), true);
  for (const { reason, height, block, replaced_by, replaced_by_package } of gone) {
    if (reason === "block") assert(height > 0 && block.length === 64);
    assert.equal(reason === "replaced", replaced_by !== null || replaced_by_package !== null);
  }
  assert.deepEqual(notices, ["synced"]);

  await bridge.stop();
  bridge = await Bridge.start([], bridge.port);
  await until(() => notices.includes("resyncing"));
  await pool.ready();
  await same();

  await node.stop();
  await until(() => pool.size === 0);
  assert(pool.synced);
  pool.close();
  await bridge.close();
  rmSync(directory, { recursive: true });
});
