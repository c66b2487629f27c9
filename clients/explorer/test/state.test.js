// The state, from scripted events: what it counts, forgets and bounds.
import assert from "node:assert/strict";
import { test } from "node:test";

import { rateOf } from "../page/format.js";
import { Store } from "../page/store.js";
import { BOUNDS } from "../src/bands.js";
import { Peers } from "../src/peers.js";
import { Replacements } from "../src/replacements.js";
import { REASONS, SECONDS } from "../src/series.js";
import { State } from "../src/state.js";

const T = 1_700_000_000; // seconds
const us = (seconds) => Math.round(1e6 * (T + seconds));
const bytes = (i) => Buffer.from(i.toString(16).padStart(64, "0"), "hex");
const id = (i) => bytes(i).toString("hex");

/** As little of a mirror as the state asks for, by the same rules. */
class Pool {
  transactions = new Map();
  left = new Map();
  vsize = 0;
  synced = true;
  syncs = 1;
  replayed = 0;

  get size() {
    return this.transactions.size;
  }

  has(txid) {
    return this.transactions.has(txid);
  }

  get(txid) {
    return this.transactions.get(txid) ?? this.left.get(txid);
  }
}

class Scene {
  pool = new Pool();
  state = new State(this.pool, { exact: true, history: 1000 });
  n = 0;

  event(topic, seconds, fields) {
    this.state.event({ topic, node: "test", run: 1, n: ++this.n, time_us: us(seconds), ...fields });
    return this.n;
  }

  add(i, seconds = 0, { fee = 1000, vsize = 100 } = {}) {
    const tx = { txid: id(i), fee, vsize, added_us: us(seconds), entry_time: T, left_us: null, reason: null, height: null, block: null, waited: null,
      replaced_by: null, replaced_by_package: null };
    this.pool.transactions.set(tx.txid, tx);
    this.pool.vsize += vsize;
    this.event("mempool.added", seconds, { txid: bytes(i), fee, vsize });
  }

  remove(i, reason, seconds = 0, height) {
    const tx = this.pool.transactions.get(id(i)) ?? { txid: id(i), fee: 1, vsize: 1, waited: null };
    if (this.pool.transactions.delete(id(i))) this.pool.vsize -= tx.vsize;
    Object.assign(tx, { reason, height: height ?? null, left_us: us(seconds), waited: seconds });
    this.pool.left.set(tx.txid, tx);
    this.event("mempool.removed", seconds, { txid: bytes(i), reason, fee: tx.fee, vsize: tx.vsize, entry_time: T, height });
  }

  replace(victim, by, seconds = 0, isPackage = false) {
    this.event("mempool.replaced", seconds, { txid: bytes(victim), vsize: 100, fee: 1000, entry_time: T, replacement_vsize: 100, replacement_fee: 5000,
      [isPackage ? "replacement_package" : "replacement_txid"]: bytes(by) });
  }

  block(height, list, seconds, more = {}) {
    const hash = bytes(1e6 + height);
    const n_block = this.event("validation.block_connected", seconds, { hash, height, n_tx: list.length + 1, n_inputs: 1, sigops: 1, duration_ns: 5000 });
    for (const i of list) this.remove(i, "block", seconds, height);
    this.event("block.evictions", seconds, { hash, height, n_tx: list.length + 1, n_block, txids: list.map(bytes), fees: list.map(() => 1000), vsizes: list.map(() => 100),
      entry_times: list.map((_, i) => T - 10 * i), conflicts: { txids: [], fees: [], vsizes: [], entry_times: [], after: [] }, unseen: 0, reorg: 0, repeat: false,
      complete: true, final: true, ...more });
    return n_block;
  }

  level() {
    return this.state.snapshot("mempool").now;
  }
}

test("bands add up to the mempool, and a removal takes away what was added", () => {
  const s = new Scene();
  BOUNDS.forEach((bound, i) => s.add(i, 0, { fee: Math.ceil(bound * 1000) + 1, vsize: 1000 }));
  s.add(100, 0, { fee: null });
  assert.deepEqual(s.level().counts, BOUNDS.map(() => 1));
  assert.deepEqual([s.level().unknown, s.level().count], [1, 13]);
  for (let i = 0; i < 12; i++) s.remove(i, "expiry");
  s.remove(100, "expiry");
  s.remove(999, "expiry"); // never seen
  assert.deepEqual(s.level(), { count: 0, vsize: 0, fees: 0, bands: BOUNDS.map(() => 0), counts: BOUNDS.map(() => 0), unknown: 0 });
});

test("what is added again although its removal was not seen counts once", () => {
  const s = new Scene();
  s.add(1);
  s.add(1, 5, { fee: 2000 }); // as a node does that was restarted while nobody looked
  assert.deepEqual([s.level().count, s.level().vsize, s.level().fees], [1, 100, 2000]);
  s.remove(1, "expiry");
  assert.deepEqual([s.level().count, s.level().vsize, s.level().fees], [0, 0, 0]);
});

test("what the mirror has learned of a transaction since it was counted leaves no rest", () => {
  const s = new Scene();
  s.add(1, 0, { vsize: null });
  assert.deepEqual([s.level().unknown, s.level().vsize], [1, 0]);
  s.pool.get(id(1)).vsize = 100; // as its removal tells
  s.remove(1, "expiry");
  s.add(2);
  s.pool.transactions.delete(id(2)); // not in a snapshot
  s.remove(2, "expiry");
  assert.deepEqual(s.level(), { count: 0, vsize: 0, fees: 0, bands: BOUNDS.map(() => 0), counts: BOUNDS.map(() => 0), unknown: 0 });
});

test("a second's point has what happened in it, silence has points too, and the series are bounded", () => {
  const s = new Scene();
  s.add(1, 0.2);
  s.add(2, 0.9);
  s.remove(1, "expiry", 1.5);
  s.remove(2, "a new reason", 4.1);
  s.add(3, 5);
  const { seconds } = s.state.snapshot("mempool");
  assert.deepEqual(seconds.map(({ t, count }) => [t - T, count]), [[0, 2], [1, 1], [2, 1], [3, 1], [4, 0]]);
  const kind = (name) => 2 + REASONS.indexOf(name);
  assert.deepEqual([seconds[0].flow[0], seconds[1].flow[kind("expiry")], seconds[4].flow[kind("other")]], [2, 1, 1]);
  s.add(4, 100_000);
  s.add(5, 200_000);
  assert.equal(s.state.snapshot("mempool").seconds.length, SECONDS);
  assert.ok(s.state.snapshot("mempool").minutes.length <= 360);
});

test("a clock that is set back does not stop the chart", () => {
  const s = new Scene();
  for (const [i, second] of [0, 200, 201].entries()) s.add(i, second);
  s.state.changes();
  s.add(4, 10);
  s.add(5, 13);
  const { whole, seconds } = s.state.changes().find(([topic]) => topic === "mempool")[1];
  assert.deepEqual([whole, seconds.map(({ t }) => t - T)], [true, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]]);
  assert.deepEqual([seconds[0].flow[0], seconds[10].flow[0]], [1, 2]); // with that of the second that was cut off
  assert.ok(s.state.snapshot("health").now_us > us(13));
});

test("the page's chart of messages goes on when the clock is set back", () => {
  const store = new Store();
  const told = (...seconds) => ({ peers: [], seconds: seconds.map((t) => ({ t })), types: [] });
  store.apply({ type: "snapshot", topic: "peers", data: told(1000, 1001) });
  store.apply({ type: "delta", topic: "peers", data: told(1002) });
  store.apply({ type: "delta", topic: "peers", data: told(500, 501) });
  assert.deepEqual(store.traffic.seconds.map(({ t }) => t), [500, 501]);
});

test("a block whose last word never comes is forgotten as the others", () => {
  const s = new Scene();
  s.event("validation.block_connected", 0, { hash: bytes(1), height: 1, n_tx: 1 });
  for (let i = 0; i < 60; i++)
    s.event("block.evictions", i, { hash: bytes(100 + i), height: 100 + i, n_tx: 1, n_block: 1000 + i, txids: [], fees: [], vsizes: [], entry_times: [], final: true });
  s.remove(7, "block", 61);
  const { blocks } = s.state.changes().find(([topic]) => topic === "blocks")[1];
  assert.deepEqual([blocks.length, blocks.some(({ height }) => height === 1)], [60, false]);
});

test("a fee that could not be read is no rate", () => {
  const s = new Scene();
  s.block(7, [1, 2], 1, { fees: [null, 1000] });
  assert.deepEqual(s.state.snapshot("blocks").blocks[0].rates, [10, 10, 10, 10, 10]);
  assert.ok(Number.isNaN(rateOf({ fee: null, vsize: 100 })));
});

test("deltas laid over a snapshot are the next snapshot", () => {
  const s = new Scene();
  s.add(1, 0);
  s.state.changes();
  const before = s.state.snapshot("mempool").seconds.length;
  for (let i = 2; i < 40; i++) s.add(i, i / 4);
  const points = s.state.changes().find(([topic]) => topic === "mempool")[1].seconds;
  assert.deepEqual(s.state.snapshot("mempool").seconds.slice(before), points);
  assert.deepEqual(s.state.changes().map(([topic]) => topic), []);
});

test("what left with a block is confirmed, and how long it waited", () => {
  const s = new Scene();
  for (let i = 1; i <= 10; i++) s.add(i);
  s.block(800_000, [1, 2, 3, 4, 5, 6, 7, 8, 9], 5);
  const [block] = s.state.snapshot("blocks").blocks;
  assert.deepEqual([block.height, block.confirmed, block.conflicts, block.unseen, block.state, block.fees, block.vsize], [800_000, 9, 0, 0, "complete", 9000, 900]);
  assert.deepEqual(block.waits, [5, 15, 45, 75, 85]);
  assert.deepEqual(block.classes, [1, 5, 3, 0, 0, 0, 0]);
  assert.equal(s.state.transaction(id(1)).state, "confirmed");
  assert.equal(s.state.transaction(id(10)).state, "mempool");
  assert.equal(s.state.transaction(id(11)), null);
  const page = s.state.block("800000", "confirmed", 7, 200);
  assert.deepEqual([page.total, page.transactions.map(({ txid }) => txid)], [9, [id(8), id(9)]]);
  assert.equal(s.state.search("800000").block.height, 800_000);
});

test("a block told early counts on, and its last word stands", () => {
  const s = new Scene();
  const n_block = s.block(7, [1, 2], 1, { final: false, complete: false, unseen: 2, n_tx: 5 });
  s.remove(3, "block", 2, 7);
  const told = () => s.state.snapshot("blocks").blocks[0];
  assert.deepEqual([told().state, told().confirmed], ["early", 3]);
  s.event("block.evictions", 3, { hash: bytes(1e6 + 7), height: 7, n_tx: 5, n_block, txids: [1, 2, 3, 4].map(bytes), fees: [1, 1, 1, 1], vsizes: [1, 1, 1, 1],
    entry_times: [T, T, T, null], conflicts: null, unseen: 0, reorg: 0, repeat: false, complete: true, final: true });
  assert.deepEqual([told().state, told().confirmed, told().waits[4], s.state.snapshot("blocks").blocks.length], ["complete", 4, 1, 1]);
});

test("blocks of a coretapd that publishes lists alone", () => {
  const s = new Scene();
  for (const height of [1, 2, 2])
    s.event("block.evictions", height, { hash: bytes(height), height, n_tx: 1, n_block: 0, txids: [], fees: [], vsizes: [], entry_times: [], final: true });
  assert.deepEqual(s.state.snapshot("blocks").blocks.map(({ height }) => height), [2, 1]);
});

test("a reorganisation marks what it supersedes; old blocks go", () => {
  const s = new Scene();
  for (let height = 1; height <= 3; height++) s.block(height, [], height);
  s.block(2, [], 9, { hash: bytes(5), reorg: 2 });
  const { blocks } = s.state.snapshot("blocks");
  assert.deepEqual(blocks.map(({ height, superseded }) => [height, superseded]), [[2, false], [3, true], [2, true], [1, false]]);
  for (let height = 10; height < 200; height++) s.block(height, [], height);
  assert.equal(s.state.snapshot("blocks").blocks.length, 60);
  assert.equal(s.state.changes().find(([topic]) => topic === "blocks")[1].blocks.length, 60);
});

test("fields that could not be read do no harm", () => {
  const s = new Scene();
  s.event("mempool.added", 0, { txid: null, vsize: null, fee: null });
  s.event("mempool.removed", 0, { txid: null, reason: null, height: null });
  s.event("mempool.replaced", 0, { txid: null });
  s.event("mempool.rejected", 0, { txid: null, reason: null });
  s.event("validation.block_connected", 0, { hash: null, height: null, n_tx: null, duration_ns: null });
  s.event("block.evictions", 0, { hash: null, height: null, n_tx: null, n_block: 5, txids: [null, bytes(1)], fees: [null, 5], vsizes: [null, 0], entry_times: [null, null],
    conflicts: null, unseen: null, complete: false, final: true });
  for (const kind of ["inbound_message", "inbound_connection", "closed_connection", "misbehaving_connection", "evicted_inbound_connection"])
    s.event(`net.${kind}`, 0, { peer_id: null, addr: null, connection_type: null, msg_type: null, size: null, network: null, reason: null });
  assert.deepEqual([s.state.peers.all().peers, s.state.peers.all().gone.length], [[], 1]);
  const page = s.state.block(`${null}`, "confirmed", 0, 10);
  assert.deepEqual(page.transactions.map(({ txid }) => txid), [null, id(1)]);
  assert.ok(JSON.stringify(["mempool", "blocks", "replacements", "peers", "health"].map((topic) => s.state.snapshot(topic))));
});

test("the history of a transaction: rejected, added, replaced", () => {
  const s = new Scene();
  s.event("mempool.rejected", 0, { txid: bytes(1), reason: "x".repeat(1000) });
  assert.equal(s.state.transaction(id(1)).state, "rejected");
  s.add(1, 1);
  s.replace(1, 2, 2);
  s.remove(1, "replaced", 2);
  s.add(2, 2, { fee: 5000 });
  const tx = s.state.transaction(id(1));
  assert.deepEqual([tx.state, tx.history.map(({ what }) => what)], ["replaced", ["rejected", "added", "replaced", "removed"]]);
  assert.equal(tx.history[0].reason.length, 201);
  assert.deepEqual(s.state.transaction(id(2)).replaces, [id(1)]);
  assert.deepEqual(tx.tree.nodes.map(({ id: node, by }) => [node, by]), [[id(2), null], [id(1), id(2)]]);
  assert.deepEqual(s.state.search(id(1).slice(0, 60)).transactions.map(({ txid, state }) => [txid, state]), [[id(1), "replaced"], [id(2), "mempool"]]);
  assert.deepEqual(s.state.search("000").transactions, []);
  for (let i = 0; i < 100; i++) s.event("mempool.rejected", 3, { txid: bytes(2), reason: `${i}` });
  assert.equal(s.state.transaction(id(2)).history.length, 40);
  for (let i = 100; i < 3000; i++) s.event("mempool.rejected", 3, { txid: bytes(i), reason: "no" });
  assert.equal(s.state.ledger.size, 1000);
});

test("replacement trees grow, join, are trimmed and forgotten", () => {
  const trees = new Replacements();
  const add = (victim, by, t = 0) => trees.add({ victim: id(victim), fee: 1, vsize: 1, by: id(by), package: false, by_fee: 2, by_vsize: 1, t });
  add(1, 2);
  add(3, 4);
  trees.changes();
  add(2, 5); // 1 → 2 → 5
  add(4, 5); // 3 → 4 → 5
  let [tree] = trees.all();
  assert.equal(trees.all().length, 1);
  assert.deepEqual([tree.root, tree.nodes.length], [id(5), 5]);
  const { gone, trees: changed } = trees.changes();
  assert.deepEqual([gone.length, changed.length], [2, 1]);
  add(5, 1); // a circle: not drawn
  assert.equal(trees.all()[0].root, id(5));
  trees.mark(id(5), { reason: "block", height: 9, t: 1 });
  assert.equal(trees.changes().trees[0].nodes.find(({ id: node }) => node === id(5)).left.height, 9);
  for (let i = 0; i < 5000; i++) add(i, i + 1, i); // one long chain
  [tree] = trees.all();
  assert.ok(tree.nodes.length <= 40);
  assert.equal(tree.root, id(5000));
  for (let i = 0; i < 5000; i++) add(1e6 + i, 2e6 + i);
  assert.equal(trees.all().length, 60);
  assert.equal(trees.treeOf(id(5000)), null);
});

test("peers come and go, messages are counted, and inventions are bounded", () => {
  const peers = new Peers();
  const say = (topic, t, fields) => {
    peers.advance(Math.floor(T + t));
    peers.apply({ topic: `net.${topic}`, time_us: us(t), ...fields });
  };
  const one = { peer_id: 1, addr: "<img src=x>", connection_type: "inbound", network: "ipv4" };
  say("inbound_connection", 0, one);
  say("inbound_message", 0, { ...one, msg_type: "inv", size: 37 });
  say("outbound_message", 1, { ...one, msg_type: "tx", size: 200 });
  say("misbehaving_connection", 1, { peer_id: 1, reason: "" });
  peers.advance(T + 2);
  assert.deepEqual(peers.seconds.map((point) => [point.t - T, point.in, point.in_bytes, point.out, point.out_bytes]), [[0, 1, 37, 0, 0], [1, 0, 0, 1, 200]]);
  assert.deepEqual(peers.types().map((type) => [type.type, type.in, type.out]), [["inv", 1, 0], ["tx", 0, 1]]);
  const [peer] = peers.changes().peers;
  assert.deepEqual([peer.addr, peer.in, peer.out_bytes, peer.note], ["<img src=x>", 1, 200, "misbehaving: no reason given"]);
  assert.equal(peers.changes(), null);
  say("closed_connection", 3, { ...one, established: T });
  const told = peers.changes();
  assert.deepEqual([told.closed, told.gone[0].addr, told.peers], [[1], "<img src=x>", []]);
  for (let i = 0; i < 3000; i++) say("inbound_message", 4, { peer_id: i, addr: "a".repeat(500), connection_type: "inbound", msg_type: `t${i}`, size: 1 });
  peers.advance(T + 5);
  assert.deepEqual([peers.all().peers.length, peers.types().length], [1000, 40]);
  assert.ok(peers.all().peers[0].addr.length < 130);
  say("inbound_message", 500, { ...one, msg_type: "late", size: 1 });
  assert.deepEqual(peers.types().map(({ type }) => type), ["late"]);
  peers.clear();
  assert.equal(peers.all().peers.length, 0);
});

test("health counts what is missing, once each", (t) => {
  const s = new Scene();
  const notice = (kind, more = {}) => s.state.notice({ kind, socket: "low", count: 0, toString: () => kind, ...more });
  const status = (more = {}) => s.state.status({ socket: "low", node: "test", run: 1, fields: { pid: 5, replay: "ok" }, ...more });
  s.pool.replayed = 70;
  assert.equal(s.state.snapshot("health").catching_up, true);
  status();
  status({ socket: "high" });
  s.pool.replayed = 75;
  notice("lost", { count: 3 });
  notice("gap", { count: 4 });
  notice("new_run");
  notice("new_run", { socket: "high" });
  notice("malformed");
  notice("stale");
  const health = s.state.snapshot("health");
  assert.deepEqual([health.lost, health.gone, health.runs, health.malformed, health.replayed, health.backlog, health.silent.low, health.catching_up],
    [3, 4, 1, 1, 5, 70, true, false]);
  status();
  assert.equal(s.state.snapshot("health").silent.low, false);
  const told = () => s.state.changes().some(([topic]) => topic === "health");
  assert.deepEqual([told(), told()], [true, false]);
  t.mock.method(performance, "now", () => Number.MAX_SAFE_INTEGER);
  assert.equal(told(), true); // without a status too: the page waits for it
  t.mock.restoreAll();
  for (let i = 0; i < 100; i++) notice("stale");
  assert.equal(s.state.snapshot("health").notices.length, 20);
});

test("a recording from long ago has its own present", () => {
  const s = new Scene();
  s.state.event({ topic: "mempool.rejected", node: "test-play", run: 1, n: 1, time_us: us(0), txid: bytes(1), reason: "" });
  const { now_us, recorded } = s.state.snapshot("health");
  assert.ok(recorded && now_us - us(0) < 5e6);
});
