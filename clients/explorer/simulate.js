#!/usr/bin/env node
// Makes a recording for `coretap play` of a node that there never was: a lively mempool, for looking at the
// explorer without a node and without root. The same seed gives the same events.
import { createHash } from "node:crypto";
import { writeFileSync } from "node:fs";

import { encode } from "@msgpack/msgpack";

const [file, minutes = "20", seed = "1"] = process.argv.slice(2);
if (!file || !(Number(minutes) > 0) || Number(minutes) > 600) {
  process.stderr.write("usage: simulate.js FILE [MINUTES [SEED]]\n");
  process.exit(2);
}

// ---- chance ----

let state = 0x9e3779b9 ^ Number(seed);
function random() {
  state = (state + 0x6d2b79f5) | 0;
  let t = Math.imul(state ^ (state >>> 15), 1 | state);
  t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
  return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
}
const below = (n) => Math.floor(random() * n);
const pick = (list) => list[below(list.length)];
const waitFor = (mean) => -Math.log(1 - random()) * mean;
let serial = 0;
const hash = (kind) => createHash("sha256").update(`${seed} ${kind} ${serial++}`).digest();

// ---- the file ----

const START = Date.now() * 1000;
const parts = [Buffer.from("coretap recording 1\n")];
const heads = new Map();
const positions = { low: 0, high: 0 };
let now = START; // microseconds

function tell(topic, fields, socket = "low") {
  const seq = (heads.get(topic) ?? 0) + 1;
  heads.set(topic, seq);
  const body = encode({ v: 1, node: "simulated", run: START, pid: 4242, n: ++positions[socket], seq,
    events: [{ time_us: Math.floor(now), ...fields }] });
  const head = Buffer.alloc(14);
  head.writeUInt32LE(10 + topic.length + body.length, 0);
  head.writeBigUInt64LE(BigInt(Math.floor(now)), 4);
  head[12] = socket === "low" ? 0 : 1;
  head[13] = topic.length;
  parts.push(head, Buffer.from(topic), body);
  return positions[socket];
}

// ---- the mempool ----

const pool = new Map(); // by hex: { txid, vsize, fee, entry_time }
let height = 903_117;
const seconds = () => Math.floor(now / 1e6);

function enter({ entry_time = seconds(), rate = Math.max(0.2, Math.exp(1.3 + 2.2 * (random() + random() + random() - 1.5))) } = {}) {
  const vsize = pick([110, 141, 141, 154, 208, 222, 222, 312, 371, 674, 1420]) + below(40);
  const tx = { txid: hash("tx"), vsize, fee: Math.ceil(rate * vsize), entry_time };
  pool.set(tx.txid.toString("hex"), tx);
  tell("mempool.added", { txid: tx.txid, vsize, fee: tx.fee });
  return tx;
}

function leave(tx, reason, more = {}) {
  pool.delete(tx.txid.toString("hex"));
  tell("mempool.removed", { txid: tx.txid, reason, vsize: tx.vsize, fee: tx.fee, entry_time: tx.entry_time, ...more });
}

const any = () => {
  const ids = [...pool.keys()];
  return pool.get(pick(ids));
};

let bidder = null; // the last replacement: chains grow

function replace() {
  const first = bidder && pool.has(bidder.txid.toString("hex")) && random() < 0.55 ? bidder : any();
  const victims = [first, ...(random() < 0.3 ? [any()] : [])].filter((tx, i, all) => tx && all.indexOf(tx) === i);
  const vsize = victims[0].vsize;
  const fee = victims.reduce((sum, tx) => sum + tx.fee, 0) + Math.ceil(vsize * (1 + 4 * random()));
  const txid = hash("tx");
  for (const tx of victims)
    tell("mempool.replaced", { txid: tx.txid, vsize: tx.vsize, fee: tx.fee, entry_time: tx.entry_time, replacement_txid: txid, replacement_vsize: vsize, replacement_fee: fee });
  for (const tx of victims) leave(tx, "replaced");
  bidder = { txid, vsize, fee, entry_time: seconds() };
  pool.set(txid.toString("hex"), bidder);
  tell("mempool.added", { txid, vsize, fee });
}

const column = (list) => ({ txids: list.map((tx) => tx.txid), fees: list.map((tx) => tx.fee), vsizes: list.map((tx) => tx.vsize), entry_times: list.map((tx) => tx.entry_time) });

function mine() {
  let room = 180_000 + below(60_000);
  const chosen = [];
  for (const tx of [...pool.values()].sort((a, b) => b.fee / b.vsize - a.fee / a.vsize)) {
    if (random() < 0.02 || tx.vsize > room) continue;
    room -= tx.vsize;
    chosen.push(tx);
  }
  const unseen = below(9);
  const conflicting = unseen && random() < 0.5 ? [any()].filter((tx) => !chosen.includes(tx)) : [];
  const block = { hash: Buffer.concat([Buffer.alloc(8), hash("block").subarray(8)]), height: ++height, n_tx: chosen.length + unseen + 1 };
  const n_block = tell("validation.block_connected", { ...block, n_inputs: 2 * block.n_tx + 1, sigops: 4 * block.n_tx, duration_ns: 40_000_000 + below(160_000_000) });
  for (const tx of chosen) {
    now += 4;
    leave(tx, "block", { height });
  }
  for (const tx of conflicting) leave(tx, "conflict", { height });
  tell("block.evictions", { ...block, n_block, ...column(chosen), conflicts: { ...column(conflicting), after: conflicting.map(() => chosen.length) },
    unseen, reorg: 0, repeat: false, complete: true, final: true });
}

const REASONS = ["min relay fee not met", "insufficient fee", "txn-mempool-conflict", "bad-txns-inputs-missingorspent", "non-mandatory-script-verify-flag"];

function poolAction() {
  const dice = random();
  if (dice < 0.87) enter();
  else if (dice < 0.94) replace();
  else if (dice < 0.985) tell("mempool.rejected", { txid: hash("tx"), reason: pick(REASONS) });
  else leave(any(), pick(["expiry", "sizelimit"]));
}

// ---- the peers ----

const peers = [];
let lastPeer = 0;
const ADDRESSES = { ipv4: () => `203.0.113.${below(250)}:8333`, ipv6: () => `[2001:db8:${below(9999)}::${below(99)}]:8333`,
  onion: () => `${createHash("sha256").update(`${random()}`).digest("hex").replace(/[0189]/g, "q").slice(0, 56)}.onion:8333` };

function connect() {
  const network = pick(Object.keys(ADDRESSES));
  const inbound = random() < 0.6;
  const peer = { peer_id: lastPeer++, addr: ADDRESSES[network](), connection_type: inbound ? "inbound" : pick(["outbound-full-relay", "block-relay-only"]), network, established: seconds() };
  peers.push(peer);
  const { established, ...told } = peer;
  tell(`net.${inbound ? "in" : "out"}bound_connection`, { ...told, count: peers.length });
}

function disconnect() {
  const [peer] = peers.splice(below(peers.length), 1);
  if (random() < 0.3) tell("net.misbehaving_connection", { peer_id: peer.peer_id, reason: pick(["addr message size = 1001", "header with invalid proof of work"]) });
  tell("net.closed_connection", peer);
}

const MESSAGES = [["inv", 37, 1300], ["inv", 37, 1300], ["inv", 37, 700], ["tx", 190, 900], ["tx", 190, 700], ["getdata", 37, 300], ["ping", 8, 8], ["pong", 8, 8], ["addrv2", 30, 600], ["headers", 82, 82], ["feefilter", 8, 8]];

function message() {
  const { peer_id, addr, connection_type } = pick(peers);
  const [msg_type, least, most] = pick(MESSAGES);
  tell(random() < 0.55 ? "net.inbound_message" : "net.outbound_message", { peer_id, addr, connection_type, msg_type, size: least + below(most - least + 1) }, "high");
}

// ---- what happens when ----

tell("node.started", { binary: "/usr/bin/bitcoind", build_id: "00", started_at: seconds(), core: "v29 or later" });
for (let i = 0; i < 34; i++) connect();
// What mempool.dat held had entered before.
for (let i = 0; i < 2600; i++) {
  now += 150;
  enter({ entry_time: seconds() - Math.floor(waitFor(2400)) });
}

const WAVE = 240e6; // quiet and busy times take turns
const happenings = [
  { mean: () => 0.06 * (1.3 + Math.sin((2 * Math.PI * (now - START)) / WAVE)), what: poolAction },
  { mean: () => 0.03, what: message },
  { mean: () => 6, what: () => (peers.length < 60 && random() < 0.5 ? connect() : peers.length > 8 && disconnect()) },
  { mean: () => 40, what: mine },
];
for (const happening of happenings) happening.at = now + 1e6 * waitFor(happening.mean());
happenings.at(-1).at = now + 12e6; // nobody should wait for the first block
const end = START + Number(minutes) * 60e6;
while (now < end) {
  const next = happenings.reduce((a, b) => (a.at <= b.at ? a : b));
  now = Math.max(now, next.at);
  next.what();
  next.at = now + 1e6 * waitFor(next.mean());
}
writeFileSync(file, Buffer.concat(parts));
