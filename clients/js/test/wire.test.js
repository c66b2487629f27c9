// Frames: what is in them, exactly, and what is refused.
import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { test } from "node:test";

import { decode as general, encode } from "@msgpack/msgpack";

import { CATALOGUE } from "../catalogue.js";
import { Event, Status, toJson } from "../src/events.js";
import { WireError, decode, decodeMessage, decodeStatus, encode as encodeRequest, topicName } from "../src/wire.js";

const GOLDEN = new URL("../../../protocol/golden/", import.meta.url);
const golden = readdirSync(GOLDEN).filter((name) => name.endsWith(".hex")).map((name) => ({
  topic: name.slice(0, -4),
  frame: Buffer.from(readFileSync(new URL(name, GOLDEN), "utf8").replace(/\s/g, ""), "hex"),
  json: readFileSync(new URL(name.replace(/hex$/, "json"), GOLDEN), "utf8"),
}));

function lines(topic, frame, bigint) {
  if (topic.startsWith("bridge.")) return `${new Status("low", topic, decodeStatus(frame, bigint)).json()}\n`;
  const message = decodeMessage(topic, frame, bigint);
  return message.events.map((fields, i) => `${new Event(topic, message.node, message.run,
    message.seq + message.lost + i, message.n + i, message.pid, message.times[i], fields).json()}\n`).join("");
}

test("golden frames", () => {
  assert.equal(golden.length, CATALOGUE.size + 2);
  for (const { topic, frame, json } of golden)
    for (const bigint of [false, true]) assert.equal(lines(topic, frame, bigint), json, topic);
});

test("a general decoder reads them too", () => {
  for (const { frame } of golden) assert.equal(general(frame).node, "golden-regtest");
});

const event = { time_us: 1, txid: new Uint8Array(32), vsize: 141, fee: 1000 };
const message = { v: 1, node: "a", run: 1, pid: 2, n: 3, seq: 4, events: [event] };
const pack = (value) => Buffer.from(encode(value, { useBigInt64: true }));
const added = (parts) => decodeMessage("mempool.added", pack({ ...message, ...parts }), false);
const reason = (body) => {
  try {
    decodeMessage("mempool.added", Buffer.isBuffer(body) ? body : pack(body), false);
  } catch (error) {
    assert(error instanceof WireError, error.stack);
    return error.message;
  }
  return null;
};

test("what breaks the contract is refused with a reason", () => {
  assert.equal(reason(message), null);
  for (const [parts, expected] of [
    [{ v: 2 }, "v: version 2 is not understood"], [{ v: "1" }, "v: not an unsigned integer"],
    [{ node: "a b" }, "node: not a label"], [{ node: 1 }, "node: not a text"], [{ run: -1 }, "run: not an unsigned integer"],
    [{ run: 1.5 }, "run: not an unsigned integer"], [{ seq: 0 }, "seq: 0, the first number is 1"],
    [{ run: 0 }, "run: 0 names none"],
    [{ n: 0 }, "n: 0, the first position is 1"], [{ lost: null }, "lost: not an unsigned integer"],
    [{ events: [] }, "neither events nor a loss"], [{ events: {} }, "events: not an array"],
    [{ events: [1] }, "events: an element is not a map"], [{ events: [{}] }, "time_us: missing"],
    [{ events: [{ time_us: -1 }] }, "time_us: not one unsigned integer"],
    [{ events: [{ ...event, txid: new Uint8Array(31) }] }, "txid: not of type hash"],
    [{ events: [{ ...event, txid: "aa" }] }, "txid: not of type hash"],
    [{ events: [{ ...event, vsize: -1 }] }, "vsize: not of type uint"],
    [{ events: [{ ...event, fee: 1.5 }] }, "fee: not of type int"],
    [{ events: [{ ...event, fee: true }] }, "fee: not of type int"],
    [{ events: [{ ...event, fee: 2n ** 53n }] }, "an integer beyond 2^53"],
    [{ seq: 9007199254740991n }, "seq: numbers end beyond 2^53"], [{ n: 9007199254740991n }, "n: positions end beyond 2^53"],
    [{ run: 2n ** 63n }, "an integer beyond 2^53"],
  ]) assert.equal(reason({ ...message, ...parts }), expected);
  for (const key of Object.keys(message)) assert.equal(reason({ ...message, [key]: undefined, later: 1 }) === null, false, key);
  assert.equal(reason(Buffer.concat([pack(message), Buffer.of(0)])), "bytes after its end");
  assert.equal(reason(Buffer.of(0xc1)), "byte c1 is no msgpack type");
  assert.equal(reason(Buffer.alloc(0)), "truncated");
  assert.equal(reason(Buffer.from([0x82, 0xa1, 0x76, 1, 0xa1, 0x76, 1])), "v: told twice");
  assert.equal(reason(Buffer.from([0x81, 0xa1, 0xff, 1])), "a text is not UTF-8");
  assert.equal(reason(Buffer.from([0x81, 1, 1])), "a key is not a text");
  const whole = pack(message);
  for (let length = 0; length < whole.length; length++) assert.notEqual(reason(whole.subarray(0, length)), null);
});

test("what is unknown or unreadable is no error", () => {
  const { events: [fields] } = added({ later: [2n ** 64n - 1n, new Uint8Array(3)], events: [{ time_us: 1, txid: null, vsize: null, later: { a: [1] } }] });
  assert.deepEqual(fields, { txid: null, vsize: null, later: { a: [1] } });
});

test("a type does not change with its value", () => {
  const values = [0, 127, 255, 65536, 4294967296, 9007199254740991, -1, -129, -9007199254740991];
  for (const fee of values) {
    const body = pack({ ...message, events: [{ ...event, fee: BigInt(fee) }] });
    assert.equal(decodeMessage("mempool.added", body, false).events[0].fee, fee);
    const wide = decodeMessage("mempool.added", body, true).events[0];
    assert.equal(wide.fee, BigInt(fee));
    assert.equal(typeof wide.vsize, "bigint");
  }
  const body = pack({ ...message, events: [{ ...event, vsize: 2n ** 64n - 1n, fee: -(2n ** 63n) }] });
  assert.match(lines("mempool.added", body, true), /"vsize":18446744073709551615,"fee":-9223372036854775808}/);
  // The same number in every width that msgpack has.
  for (const width of [[5], [0xcc, 5], [0xcd, 0, 5], [0xce, 0, 0, 0, 5], [0xcf, 0, 0, 0, 0, 0, 0, 0, 5],
    [0xd0, 5], [0xd1, 0, 5], [0xd2, 0, 0, 0, 5], [0xd3, 0, 0, 0, 0, 0, 0, 0, 5]])
    assert.equal(decode(Buffer.from(width)), 5);
});

test("JSON is valid and exact, and calm on a terminal", () => {
  for (const [value, text] of [
    [[1, 2n ** 64n, -1, null, true, Buffer.from([0, 255])], '[1,18446744073709551616,-1,null,true,"00ff"]'],
    ['"\\/\n\r\t\b\0\x7f\x9f\u2028\u202e\u2066é😀\ufeff', '"\\"\\\\/\\n\\r\\t\\u0008\\u0000\\u007f\\u009f\\u2028\\u202e\\u2066é😀\ufeff"'],
    [[0.1, 1.5, -0, 1e300, 1e-7, NaN, Infinity], "[0.10000000000000001,1.5,-0,1.0000000000000001e+300,9.9999999999999995e-08,null,null]"],
    [{ b: 1, a: { c: [] } }, '{"b":1,"a":{"c":[]}}'],
  ]) {
    assert.equal(toJson(value), text);
    JSON.parse(text);
  }
  const odd = decode(Buffer.from([0x84, 0xa1, 0x62, 1, 0xa1, 0x31, 2, 0xa9, ...Buffer.from("__proto__"), 3, 0xa1, 0x31, 4]));
  assert.equal(toJson(odd), '{"b":1,"1":2,"__proto__":3,"1":4}'); // as they came, whatever an object makes of them
  assert.equal(Object.getPrototypeOf(odd), Object.prototype);
});

test("bombs cost no memory", () => {
  const deep = (byte) => Buffer.alloc(1_000_000, byte);
  const bombs = [[0xdd, 255, 255, 255, 255], [0xdf, 255, 255, 255, 255], [0xdb, 255, 255, 255, 255],
    [0xc6, 255, 255, 255, 255], [0xc9, 255, 255, 255, 255], [0xdc, 255, 255]].map((bomb) => Buffer.from(bomb));
  const inside = bombs.flatMap((bomb) => [
    Buffer.concat([pack(message).subarray(0, -1), bomb]), Buffer.concat([Buffer.from([0x81, 0xa1, 0x7a]), bomb]),
    Buffer.concat([Buffer.from([0x81, 0xa6]), Buffer.from("events"), bomb])]);
  // As many small containers as 64 MiB can have, each of which would take its forty bytes.
  const wide = Buffer.alloc(64 << 20, 0x80);
  Buffer.from([0x81, 0xa1, 0x7a, 0xdd, 0x03, 0xff, 0xff, 0xf0]).copy(wide);
  const before = process.memoryUsage().rss;
  for (const bomb of [...bombs, ...inside, deep(0x91), deep(0x81), deep(0xdd), deep(0xdf), wide, Buffer.alloc((64 << 20) + 1)]) {
    assert.notEqual(reason(bomb), null);
  }
  assert(process.memoryUsage().rss - before < 200 << 20);
});

test("whatever comes, it is an event or a WireError", () => {
  let seed = 1;
  const random = (n) => Math.floor((seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0) / 2 ** 32 * n);
  for (let i = 0; i < 20_000; i++) {
    const { topic, frame } = golden[random(golden.length)];
    const changed = Buffer.from(frame);
    for (let k = random(4); k >= 0; k--) changed[random(changed.length)] = random(256);
    try {
      for (const line of lines(topic, changed, i % 2 === 0).trimEnd().split("\n")) JSON.parse(line);
    } catch (error) {
      assert(error instanceof WireError, `${changed.toString("hex")}: ${error.stack}`);
    }
  }
});

test("topics and requests", () => {
  assert.equal(topicName(Buffer.from("mempool.added")), "mempool.added");
  for (const wrong of ["", "a b", "mempool.added\n", "x".repeat(97), "é"]) assert.equal(topicName(Buffer.from(wrong)), "");
  const request = { v: 1, id: 7, op: "replay", socket: "low", run: 1790000000000000, after: 0, topics: Array(64).fill("mempool.") };
  assert.deepEqual(general(encodeRequest({ ...request, none: undefined })), request);
});
