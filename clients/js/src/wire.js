// Message bodies: decoded and checked in one walk, so that the rest of the client need not doubt them.
//
// An own decoder, because the general ones give up what matters here: they round integers beyond 2^53
// or change their type with their value, keep the last of two equal keys, take a float for an integer,
// and build whatever a hostile count asks for.
import { CATALOGUE } from "../catalogue.js";
import { Extension, PAIRS } from "./values.js";

export const VERSION = 1;
export const STATUS = "bridge.status";
export const STOPPING = "bridge.stopping";
export const MAX_LENGTH = 64 << 20; // bytes of a body

const MAX_DEPTH = 16; // containers inside each other
// What one body may make this process build. A number costs 1; what takes an object of its own 8. The list
// of the largest block is worth about a tenth.
const MAX_COST = 1 << 21;
const OBJECT = 8;
const MAX_TOPIC = 96;

/** A frame breaks the wire contract. */
export class WireError extends Error {
  name = "WireError";
}

const fail = (reason) => {
  throw new WireError(reason);
};

// ---- what is being read; nothing in here is entered twice ----

let bytes = Buffer.alloc(0);
let at = 0;
let end = 0;
let left = 0; // of MAX_COST
let wide = false; // integers as BigInt

// What the value read last was. Numbers alone do not tell an integer from a float.
let kind = 0;
const [NIL, BOOL, UINT, NEGATIVE, FLOAT, TEXT, BYTES, EXT, ARRAY, MAP] = Array(10).keys();

function start(frame, bigint) {
  if (frame.length > MAX_LENGTH) fail(`longer than ${MAX_LENGTH} bytes`);
  bytes = frame;
  at = 0;
  end = frame.length;
  left = MAX_COST;
  wide = bigint;
}

/** The bytes that follow must be there before they are looked at. */
function need(count) {
  if (count > end - at) fail("truncated");
}

function pay(cost) {
  left -= cost;
  if (left < 0) fail("too many values");
}

function big(count) {
  need(count);
  let number = 0;
  for (const stop = at + count; at < stop; at++) number = number * 256 + bytes[at];
  return number;
}

const scratch = new DataView(new ArrayBuffer(8));

function eight() {
  need(8);
  for (let i = 0; i < 8; i++) scratch.setUint8(i, bytes[at + i]);
  at += 8;
}

function tooLarge() {
  return fail("an integer beyond 2^53");
}

function uint64() {
  need(8);
  const high = bytes[at] * 0x1000000 + (bytes[at + 1] << 16 | bytes[at + 2] << 8 | bytes[at + 3]);
  kind = UINT;
  if (high >= 0x200000) {
    if (!wide) tooLarge();
    eight();
    return scratch.getBigUint64(0);
  }
  const low = bytes[at + 4] * 0x1000000 + (bytes[at + 5] << 16 | bytes[at + 6] << 8 | bytes[at + 7]);
  at += 8;
  return high * 0x100000000 + low;
}

function signed(number) {
  kind = number < 0 ? NEGATIVE : UINT;
  return number;
}

function int64() {
  eight();
  const number = scratch.getBigInt64(0);
  kind = number < 0n ? NEGATIVE : UINT;
  const narrow = Number(number);
  if (Number.isSafeInteger(narrow)) return narrow;
  return wide ? number : tooLarge();
}

const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

// Names and short texts come again and again. A slot keeps the last text that fell into it.
const SLOTS = 4096;
const SHORT = 24; // bytes
const texts = new Array(SLOTS).fill(undefined);

function text(length) {
  need(length);
  const from = at;
  at += length;
  kind = TEXT;
  if (length > SHORT) return longText(from, length);
  let hash = length;
  for (let i = from; i < at; i++) hash = Math.imul(hash, 31) + bytes[i] | 0;
  const slot = (hash ^ hash >>> 12) & SLOTS - 1;
  const known = texts[slot];
  if (known !== undefined && known.bytes.length === length) {
    const same = known.bytes;
    let i = 0;
    while (i < length && same[i] === bytes[from + i]) i++;
    if (i === length) return known.text;
  }
  const fresh = longText(from, length);
  texts[slot] = { bytes: Uint8Array.from(bytes.subarray(from, at)), text: fresh };
  return fresh;
}

function longText(from, length) {
  try {
    return utf8.decode(bytes.subarray(from, from + length));
  } catch {
    return fail("a text is not UTF-8");
  }
}

function bin(length) {
  need(length);
  pay(OBJECT);
  at += length;
  kind = BYTES;
  return bytes.subarray(at - length, at);
}

function extension(length) {
  need(length + 1);
  const type = bytes[at++] << 24 >> 24;
  const value = new Extension(type, bin(length));
  kind = EXT;
  return value;
}

function array(count, depth) {
  const values = [];
  enter(count, depth);
  for (; count; count--) values.push(value(depth + 1));
  kind = ARRAY;
  return values;
}

function enter(count, depth) {
  if (depth >= MAX_DEPTH) fail(`nested deeper than ${MAX_DEPTH}`);
  if (count > end - at) fail("a count exceeds the bytes that remain");
  pay(OBJECT);
}

function key() {
  if (at === end) fail("truncated");
  const type = bytes[at++];
  if (type >= 0xa0 && type < 0xc0) return text(type & 31);
  if (type === 0xd9) return text(big(1));
  if (type === 0xda) return text(big(2));
  if (type === 0xdb) return text(big(4));
  return fail("a key is not a text");
}

function map(count, depth) {
  const values = {};
  enter(2 * count, depth);
  for (; count; count--) {
    const name = key();
    put(values, name, value(depth + 1));
  }
  kind = MAP;
  return values;
}

/** Keys that come twice, or that a plain object would sort to its front or act upon. */
function put(values, name, inner) {
  if (Object.hasOwn(values, name) || name === "__proto__" || isIndex(name) || values[PAIRS]) {
    if (!values[PAIRS])
      Object.defineProperty(values, PAIRS, { value: Object.entries(values).flat() });
    values[PAIRS].push(name, inner);
    Object.defineProperty(values, name, { value: inner, configurable: true, enumerable: true, writable: true });
  } else {
    values[name] = inner;
  }
}

function isIndex(name) {
  const first = name.charCodeAt(0);
  return first >= 48 && first < 58;
}

/** An integer as the caller wants all of them. */
function integer(number) {
  return wide && typeof number === "number" ? BigInt(number) : number;
}

function value(depth) {
  if (at === end) fail("truncated");
  pay(1);
  const type = bytes[at++];
  if (type < 0x80) {
    kind = UINT;
    return integer(type);
  }
  if (type < 0x90) return map(type & 15, depth);
  if (type < 0xa0) return array(type & 15, depth);
  if (type < 0xc0) return text(type & 31);
  if (type >= 0xe0) return integer(signed(type - 256));
  switch (type) {
    case 0xc0: kind = NIL; return null;
    case 0xc2: kind = BOOL; return false;
    case 0xc3: kind = BOOL; return true;
    case 0xc4: return bin(big(1));
    case 0xc5: return bin(big(2));
    case 0xc6: return bin(big(4));
    case 0xc7: return extension(big(1));
    case 0xc8: return extension(big(2));
    case 0xc9: return extension(big(4));
    case 0xca: scratch.setUint32(0, big(4)); kind = FLOAT; return scratch.getFloat32(0);
    case 0xcb: eight(); kind = FLOAT; return scratch.getFloat64(0);
    case 0xcc: kind = UINT; return integer(big(1));
    case 0xcd: kind = UINT; return integer(big(2));
    case 0xce: kind = UINT; return integer(big(4));
    case 0xcf: return integer(uint64());
    case 0xd0: return integer(signed(big(1) << 24 >> 24));
    case 0xd1: return integer(signed(big(2) << 16 >> 16));
    case 0xd2: return integer(signed(big(4) | 0));
    case 0xd3: return integer(int64());
    case 0xd4: case 0xd5: case 0xd6: case 0xd7: case 0xd8: return extension(1 << type - 0xd4);
    case 0xd9: return text(big(1));
    case 0xda: return text(big(2));
    case 0xdb: return text(big(4));
    case 0xdc: return array(big(2), depth);
    case 0xdd: return array(big(4), depth);
    case 0xde: return map(big(2), depth);
    case 0xdf: return map(big(4), depth);
    default: return fail("byte c1 is no msgpack type");
  }
}

/** One value that takes exactly these bytes. */
export function decode(frame) {
  start(frame, false);
  const whole = value(0);
  if (at !== end) fail("bytes after its end");
  return whole;
}

// ---- events ----

const ELEMENT = { hashes: "hash", uints: "uint", ints: "int" };
const CONFLICTS = { txids: "hash", fees: "int", vsizes: "uint", entry_times: "uint", after: "uint" };

/** Whether the value just read has a scalar type of the catalogue; nil has every type. */
function isOf(type, read) {
  switch (type) {
    case "uint": return kind === UINT || kind === NIL;
    case "int":
      return kind === NEGATIVE || kind === NIL ||
        kind === UINT && (typeof read === "number" || read <= 0x7fffffffffffffffn);
    case "bool": return kind === BOOL || kind === NIL;
    case "hash": return kind === BYTES && read.length === 32 || kind === NIL;
    case "text": return kind === TEXT || kind === NIL;
    case "bin": return kind === BYTES || kind === NIL;
    default: return true;
  }
}

function field(name, type) {
  const from = at;
  const read = value(3);
  const element = ELEMENT[type];
  if (element === undefined && type !== "conflicts") {
    if (!isOf(type, read)) fail(`${name}: not of type ${type}`);
    return read;
  }
  if (kind === NIL) return read;
  const after = at;
  at = from;
  if (!(element ? elementsAre(element) : conflictsAre())) fail(`${name}: not of type ${type}`);
  at = after;
  return read;
}

// What follows reads a value a second time, that was found to be whole, for the types inside.

function head(small, mask, wide16, wide32) {
  const type = bytes[at++];
  if ((type & 0xf0) === small) return type & mask;
  return type === wide16 ? big(2) : type === wide32 ? big(4) : -1;
}

function elementsAre(type) {
  if (bytes[at] === 0xc0) return ++at > 0;
  const count = head(0x90, 15, 0xdc, 0xdd);
  for (let i = 0; i < count; i++) if (!isOf(type, value(4))) return false;
  return count >= 0;
}

function conflictsAre() {
  const count = head(0x80, 15, 0xde, 0xdf);
  for (let i = 0; i < count; i++) {
    const name = key();
    if (!Object.hasOwn(CONFLICTS, name)) value(4);
    else if (!elementsAre(CONFLICTS[name])) return false;
  }
  return count >= 0;
}

/** The fields of an event, without time_us, which is left in `time`. The plan's names stand in the order of
 * the wire, so the next one expected is looked for first. */
function event(plan) {
  if (at === end) fail("truncated");
  const from = at;
  const count = head(0x80, 15, 0xde, 0xdf);
  if (count < 0) fail("events: an element is not a map");
  if (2 * count > end - at) fail("a count exceeds the bytes that remain");
  const { names, types, keys } = plan;
  // Most events have the fields of the last one that had as many. To begin with a copy of those is three
  // times as fast as to add them one by one.
  const like = plan.likes[count];
  const fields = like ? { ...like.fields } : {};
  let expected = 0;
  let seen = 0;
  let odd = false;
  time = -1;
  for (let i = 0; i < count; i++) {
    let place = -1;
    if (time < 0 && isKey(TIME_KEY)) {
      readTime();
      continue;
    } else if (expected < names.length && isKey(keys[expected])) {
      place = expected;
    } else {
      const name = key();
      if (name === "time_us") {
        readTime();
        continue;
      }
      place = names.indexOf(name);
      if (place < expected) odd = true;
      if (place < 0) {
        const read = value(3);
        if (!like) put(fields, name, read);
        continue;
      }
    }
    const read = field(names[place], types[place]);
    if (seen & 1 << place) fail(`${names[place]}: told twice`);
    seen |= 1 << place;
    expected = place + 1;
    if (odd && !like) put(fields, names[place], read);
    else fields[names[place]] = read;
  }
  if (time < 0) fail("time_us: missing");
  if (like && (odd || seen !== like.seen)) {
    plan.likes[count] = undefined;
    at = from;
    return event(plan);
  }
  if (!like && !odd && count <= names.length + 1)
    plan.likes[count] = { seen, fields: Object.fromEntries(Object.keys(fields).map((name) => [name, null])) };
  return fields;
}

let time = 0;

function isKey(bytesOfKey) {
  const { length } = bytesOfKey;
  if (length > end - at) return false;
  for (let i = 0; i < length; i++) if (bytes[at + i] !== bytesOfKey[i]) return false;
  at += length;
  return true;
}

function readTime() {
  const was = wide;
  wide = false;
  const read = value(3);
  wide = was;
  if (kind !== UINT || time >= 0) fail("time_us: not one unsigned integer");
  time = read;
}

const keyBytes = (name) => Uint8Array.from([0xa0 | name.length, ...Buffer.from(name)]);
const TIME_KEY = keyBytes("time_us");

/** The catalogue's fields of a topic, as the decoder reads them. */
function plan(fields) {
  const names = Object.keys(fields);
  return { names, types: Object.values(fields), keys: names.map(keyBytes), likes: new Array(names.length + 2).fill(undefined) };
}

const PLANS = new Map([...CATALOGUE].map(([topic, { fields }]) => [topic, plan(fields)]));
const NO_PLAN = plan({});

// ---- bodies ----

const LABEL = /^[A-Za-z0-9_-]{1,32}$/;

function known(body, name, wanted, words) {
  if (body[name] !== undefined) fail(`${name}: told twice`);
  const was = wide;
  wide = false;
  const read = value(1);
  wide = was;
  if (kind !== wanted) fail(`${name}: not ${words}`);
  body[name] = read;
  if (name === "v" && read !== VERSION) fail(`v: version ${read} is not understood`);
}

function enterBody(frame, bigint) {
  start(frame, bigint);
  if (at === end) fail("truncated");
  const count = head(0x80, 15, 0xde, 0xdf);
  if (count < 0) {
    at = 0;
    value(0);
    fail("not a map");
  }
  if (2 * count > end - at) fail("a count exceeds the bytes that remain");
  return count;
}

function leaveBody(body, required) {
  if (at !== end) fail("bytes after its end");
  for (const name of required) if (body[name] === undefined) fail(`${name}: missing`);
  if (!LABEL.test(body.node)) fail("node: not a label");
}

const REQUIRED = ["v", "node", "run", "pid", "n", "seq", "events"];

/** A message of events: { node, run, pid, n, seq, lost, times, fields, end }, end being the number that
 * its topic continues with. Throws WireError. bigint: integers in fields are BigInt, all of them. */
export function decodeMessage(topic, frame, bigint) {
  const plan = PLANS.get(topic) ?? NO_PLAN;
  const body = { v: undefined, node: undefined, run: undefined, pid: undefined, n: undefined,
    seq: undefined, lost: undefined, events: undefined, times: undefined, end: 0 };
  for (let keys = enterBody(frame, bigint); keys; keys--) {
    const name = key();
    switch (name) {
      case "node":
        known(body, name, TEXT, "a text");
        break;
      case "v": case "run": case "pid": case "n": case "seq": case "lost":
        known(body, name, UINT, "an unsigned integer");
        break;
      case "events":
        if (body.events !== undefined) fail("events: told twice");
        events(body, plan);
        break;
      default: {
        const was = wide;
        wide = true; // whatever it is, it is not ours to refuse
        value(1);
        wide = was;
      }
    }
  }
  leaveBody(body, REQUIRED);
  body.lost ??= 0;
  if (!body.run) fail("run: 0 names none");
  if (!body.seq) fail("seq: 0, the first number is 1");
  if (!body.n) fail("n: 0, the first position is 1");
  if (!body.lost && !body.events.length) fail("neither events nor a loss");
  body.end = body.seq + body.lost + body.events.length;
  if (body.end > Number.MAX_SAFE_INTEGER) fail("seq: numbers end beyond 2^53");
  if (body.n + body.events.length > Number.MAX_SAFE_INTEGER) fail("n: positions end beyond 2^53");
  return body;
}

function events(body, plan) {
  if (at === end) fail("truncated");
  const count = head(0x90, 15, 0xdc, 0xdd);
  if (count < 0) fail("events: not an array");
  if (count > end - at) fail("a count exceeds the bytes that remain");
  body.events = [];
  body.times = [];
  for (let i = 0; i < count; i++) {
    pay(OBJECT);
    body.events.push(event(plan));
    body.times.push(time);
  }
}

const STATUS_KINDS = { v: [UINT, "an unsigned integer"], node: [TEXT, "a text"],
  run: [UINT, "an unsigned integer"], socket: [TEXT, "a text"], time_us: [UINT, "an unsigned integer"],
  n: [UINT, "an unsigned integer"], heads: [MAP, "a map"], held: [UINT, "an unsigned integer"],
  counters: [MAP, "a map"], replay: [TEXT, "a text"] };
const STATUS_REQUIRED = ["v", "node", "run", "socket", "time_us", "n", "heads"];

/** bridge.status and bridge.stopping: { node, run, socket, time_us, n, heads, replay, fields }, fields
 * being all keys as they came. Throws WireError. */
export function decodeStatus(frame, bigint) {
  const body = {};
  const fields = {};
  for (let keys = enterBody(frame, bigint); keys; keys--) {
    const name = key();
    const kinds = Object.hasOwn(STATUS_KINDS, name) ? STATUS_KINDS[name] : undefined;
    if (kinds && (kinds[0] !== MAP || name === "heads")) {
      const from = at;
      known(body, name, kinds[0], kinds[1]);
      const after = at;
      at = from;
      put(fields, name, value(1));
      at = after;
    } else {
      const read = value(1);
      if (kinds && kind !== kinds[0]) fail(`${name}: not ${kinds[1]}`);
      if (kinds && Object.hasOwn(fields, name)) fail(`${name}: told twice`);
      put(fields, name, read);
    }
  }
  leaveBody(body, STATUS_REQUIRED);
  if (!body.run) fail("run: 0 names none");
  if (body.socket !== "low" && body.socket !== "high") fail("socket: neither low nor high");
  for (const head of Object.values(body.heads))
    if (!Number.isSafeInteger(head) || head < 0) fail("heads: not all are unsigned integers");
    else if (head === Number.MAX_SAFE_INTEGER) fail("heads: numbers end beyond 2^53");
  return { ...body, fields };
}

/** The topic in a frame, "" when it is none. */
export function topicName(frame) {
  if (!frame.length || frame.length > MAX_TOPIC) return "";
  const name = frame.latin1Slice(0, frame.length);
  return TOPIC.test(name) ? name : "";
}

const TOPIC = /^[A-Za-z0-9_.-]+$/;

// ---- requests ----

/** Encodes what a request consists of: maps, arrays, texts and whole numbers. */
export function encode(root) {
  const parts = [];
  const header = (small, limit, type16, length) => {
    if (length <= limit) parts.push(Buffer.of(small | length));
    else parts.push(Buffer.of(type16, length >> 8, length & 255));
  };
  const add = (part) => {
    if (typeof part === "number") {
      const eight = Buffer.alloc(9, 0xcf);
      eight.writeBigUInt64BE(BigInt(part), 1);
      parts.push(eight);
    } else if (typeof part === "string") {
      const content = Buffer.from(part);
      header(0xa0, 31, 0xda, content.length);
      parts.push(content);
    } else if (Array.isArray(part)) {
      header(0x90, 15, 0xdc, part.length);
      part.forEach(add);
    } else {
      const entries = Object.entries(part).filter(([, inner]) => inner !== undefined);
      header(0x80, 15, 0xde, entries.length);
      entries.flat().forEach(add);
    }
  };
  add(root);
  return Buffer.concat(parts);
}
