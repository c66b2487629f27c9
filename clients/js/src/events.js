// What a subscriber gets: events, and notices about what it did not get.
import { Extension, PAIRS } from "./values.js";

// Control characters, line and paragraph separators, and marks that reorder text on a screen: a
// terminal that shows the JSON never acts on what a peer chose.
const UNSAFE = /["\\\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;
const SHORT = { '"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t" };

function escaped(character) {
  return SHORT[character] ?? `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`;
}

function text(value) {
  return `"${value.replace(UNSAFE, escaped)}"`;
}

/** As "%.17g" prints it, exact ties to even; the contract has no floats. */
function real(value) {
  if (!Number.isFinite(value)) return "null";
  const sign = value < 0 || Object.is(value, -0) ? "-" : "";
  const exact = Math.abs(value).toExponential(40);
  const tie = /^.{17}[02468]50*e/.test(exact); // the last of 17 digits is even: it stays
  const [mantissa, power] = (tie ? exact : Math.abs(value).toExponential(16)).split("e");
  const digits = mantissa.slice(0, 18).replace(".", "");
  const shift = Number(power);
  const trim = (text) => text.replace(/\.?0*$/, "");
  if (shift < -4 || shift > 16) {
    const exponent = `${Math.abs(shift)}`.padStart(2, "0");
    return `${sign}${trim(`${digits[0]}.${digits.slice(1)}`)}e${shift < 0 ? "-" : "+"}${exponent}`;
  }
  if (shift < 0) return `${sign}${trim(`0.${"0".repeat(-shift - 1)}${digits}`)}`;
  return `${sign}${trim(`${digits.slice(0, shift + 1)}.${digits.slice(shift + 1)}`)}`;
}

function pairs(map) {
  const list = map[PAIRS];
  if (!list) return Object.entries(map);
  return Array.from({ length: list.length / 2 }, (_, i) => [list[2 * i], list[2 * i + 1]]);
}

/** A value as every client of coretap prints it: bytes as lowercase hex, nil as null, integers exact. */
export function toJson(value) {
  switch (typeof value) {
    case "number": return Number.isSafeInteger(value) && !Object.is(value, -0) ? `${value}` : real(value);
    case "bigint": return `${value}`;
    case "string": return text(value);
    case "boolean": return value ? "true" : "false";
  }
  if (value === null || value === undefined) return "null";
  if (value instanceof Uint8Array) return `"${hex(value)}"`;
  if (Array.isArray(value)) return `[${value.map(toJson).join(",")}]`;
  if (value instanceof Extension) return `"${hex(value.data)}"`;
  return `{${pairs(value).map(([name, inner]) => `${text(name)}:${toJson(inner)}`).join(",")}}`;
}

/** Lowercase hex of bytes: of a hash what RPC prints. Null of what could not be read. */
export function hex(bytes) {
  if (bytes === null || bytes === undefined) return null;
  if (!(bytes instanceof Uint8Array)) throw new TypeError(`hex: ${typeof bytes} is not bytes`);
  return bytes.hexSlice ? bytes.hexSlice(0, bytes.length) : Buffer.from(bytes).toString("hex");
}

const MAX_NAMES = 1000;
const names = new Map(); // as they stand in JSON

function member(name) {
  let known = names.get(name);
  if (known === undefined) {
    known = `,${text(name)}:`;
    if (names.size < MAX_NAMES) names.set(name, known);
  }
  return known;
}

function members(fields) {
  if (fields[PAIRS]) return pairs(fields).map(([name, value]) => member(name) + toJson(value)).join("");
  let all = "";
  for (const name in fields) all += member(name) + toJson(fields[name]);
  return all;
}

/** Something the node did. The fields of a topic that the catalogue knows are properties too. */
export class Event {
  constructor(topic, node, run, seq, n, pid, time_us, fields) {
    this.topic = topic;
    this.node = node;
    this.run = run;
    this.seq = seq;
    this.n = n;
    this.pid = pid;
    this.time_us = time_us;
    this.fields = fields;
  }

  get kind() {
    return "event";
  }

  /** When it happened, in milliseconds. */
  get time() {
    return new Date(this.time_us / 1000);
  }

  /** One flat object: topic, node, run, seq, n, pid, time_us, then the fields. */
  json() {
    return `{"topic":"${this.topic}","node":"${this.node}","run":${this.run},"seq":${this.seq}` +
      `,"n":${this.n},"pid":${this.pid},"time_us":${this.time_us}${members(this.fields)}}`;
  }
}

/** The bridge's own account, once a second; only for those who name bridge.status. */
export class Status {
  constructor(socket, topic, status) {
    this.socket = socket;
    this.topic = topic;
    this.node = status.node;
    this.run = status.run;
    this.n = status.n;
    this.time_us = status.time_us;
    this.fields = status.fields;
  }

  get kind() {
    return "status";
  }

  json() {
    return `{"topic":"${this.topic}"${members(this.fields)}}`;
  }
}

const PARTS = ["socket", "topic", "node", "reason", "run", "old_run", "time_us", "first", "last"];

/** Told in the place of what is missing. Without gap, lost and new_run a stream is complete. */
export class Notice {
  constructor(kind, socket, parts) {
    this.kind = kind;
    this.socket = socket;
    Object.assign(this, parts);
  }

  /** How many firings a gap or loss is about. */
  get count() {
    return this.first === undefined ? 0 : this.last - this.first + 1;
  }

  json() {
    const parts = PARTS.filter((name) => this[name]).map((name) => `,"${name}":${toJson(this[name])}`);
    return `{"notice":"${this.kind}"${parts.join("")}}`;
  }

  toString() {
    const { kind, socket, topic, node, reason, run, old_run, first, last, count } = this;
    switch (kind) {
      case "gap":
        return `${topic}: ${count} did not arrive, numbers ${first} to ${last}`;
      case "lost":
        return `${topic}: ${count} lost in the kernel, its ring was full, numbers ${first} to ${last}`;
      case "new_run":
        return `${socket} socket: coretapd of ${node} began a new run ${run} (was ${old_run}); ` +
          "what happened between is unknown";
      case "old_run":
        return `${socket} socket: dropped messages of the old run ${old_run} of ${node}`;
      case "stale":
        return run ? `${socket} socket: nothing from coretapd of ${node} for 3 s; waiting`
          : `${socket} socket: no coretapd yet, or it knows no key of ours; waiting`;
      case "no_replay":
        return `${socket} socket: ${node} has no replay: ${text(reason).slice(1, -1)}`;
      case "alive":
        return `${socket} socket: connected`;
      case "stopping":
        return `${socket} socket: coretapd of ${node} stopped; waiting for it to come back`;
      case "synced":
        return "mempool: synced";
      case "resyncing":
        return `mempool: resyncing: ${reason}`;
      default:
        return `${socket} socket: dropped a malformed message${topic ? ` of ${topic}` : ""}: ${reason}`;
    }
  }
}
