// Fuzz targets for what is JavaScript, as targets.py. `node targets.mjs NAME FILE...` runs inputs alone,
// without files it takes them from js.c.
import assert from "node:assert";
import { mkdtempSync, readFileSync, readSync, readdirSync, rmSync, writeFileSync, writeSync } from "node:fs";
import { Session } from "node:inspector";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Position } from "../../clients/js/src/position.js";
import { Replay } from "../../clients/js/src/replay.js";
import { Batch, Filter, Stream } from "../../clients/js/src/stream.js";
import { STATUS, STOPPING, topicName } from "../../clients/js/src/wire.js";
import { told } from "../conformance/verdict.mjs";

const PROTOCOL = new URL("../../protocol/", import.meta.url);
const TOPICS = [...JSON.parse(readFileSync(new URL("events.json", PROTOCOL))).events.map(({ topic }) => topic),
  STATUS, STOPPING, "mine.own", "", "a b"];
const FILTERS = [["mempool.removed"], ["mempool.", STATUS, "block.evictions"], [""]].map((names) => new Filter(names));
const WORK = mkdtempSync(join(tmpdir(), "coretap-fuzz-"));
process.on("exit", () => rmSync(WORK, { recursive: true }));

// ---- the process whose pipes are our standard input and output: it asks, and is asked the C decoder ----

function read(length) {
  const data = Buffer.alloc(length);
  for (let at = 0, got; at < length; at += got)
    if (!(got = readSync(0, data, at, length - at))) process.exit(0);
  return data;
}

const part = Buffer.alloc(1 << 16);

function cTold(topic, body) {
  writeSync(1, `${topic} ${body.toString("hex")}\n`);
  let line = "";
  while (!line.endsWith("\n")) {
    const length = readSync(0, part);
    assert(length, "the C decoder is gone");
    line += part.latin1Slice(0, length);
  }
  return Buffer.from(line.slice(0, -1), "latin1").toString();
}

/** Answers inputs with how often which ranges of the client's code ran. */
async function serve(run) {
  const session = new Session();
  session.connect();
  session.post("Profiler.enable");
  session.post("Profiler.startPreciseCoverage", { callCount: true, detailed: true });
  for (;;) {
    await run(read(read(4).readUInt32LE()));
    let line = "=";
    session.post("Profiler.takePreciseCoverage", (error, { result }) => {
      for (const { url, functions } of result)
        if (url.includes("/clients/js/"))
          for (const { ranges } of functions)
            for (const { startOffset, endOffset, count } of ranges)
              if (count) line += `${hash(url.slice(-20), startOffset, endOffset)} ${count} `;
    });
    writeSync(1, `${line.trimEnd()}\n`);
  }
}

const hash = (...parts) => [...parts.join(" ")].reduce((sum, c) => Math.imul(sum ^ c.charCodeAt(), 0x1000193), 7) >>> 16;

const refused = (text) => text.startsWith("refused: ");

/** A number holds less than 64 bits, and what one message may build is bounded. */
const mayDiffer = (js) => /^refused: .*(2\^53|too many values)/.test(js);

// ---- what is put in the place of a coretapd ----

/** What is left of the input. At its end every number is 0. */
class Input {
  constructor(data) {
    this.left = data;
  }

  number(size) {
    const block = this.block(size);
    return block.length ? block.readUIntLE(0, block.length) : 0;
  }

  block(size) {
    const data = this.left.subarray(0, size);
    this.left = this.left.subarray(size);
    return Buffer.from(data);
  }
}

let now = 0;
globalThis.performance = { now: () => now };

/** A replay of which the answers are in the input. Two bytes before a frame: its length; the highest bits:
 * others follow, nothing yet, the connection broke. */
class Answers extends Replay {
  constructor(input) {
    super("", {});
    this.input = input;
  }

  connect() {
    const { input } = this;
    return {
      close() {},
      async send(request) {
        assert(request.length <= 4096);
      },
      async receive() {
        const frames = [];
        for (;;) {
          const head = input.number(2);
          if (!frames.length && (head & 0x6000 || !input.left.length)) {
            now += this.receiveTimeout;
            throw new Error("nothing came");
          }
          frames.push(input.block(head & 0x1fff));
          if (!(head & 0x8000)) return frames;
        }
      },
    };
  }
}

/** Each firing of a topic is told once, as an event, a loss or a gap, in order. */
class Account {
  next = new Map();

  tell(item) {
    const { kind, topic = "", node } = item;
    JSON.parse(item.json());
    if (kind === "new_run") {
      assert(item.old_run < item.run);
      for (const place of this.next.keys()) if (place.startsWith(`${node} `)) this.next.delete(place);
    } else if (kind === "event" || kind === "gap" || kind === "lost") {
      const [first, last] = kind === "event" ? [item.seq, item.seq] : [item.first, item.last];
      const place = `${node} ${topic}`;
      assert(first > 0 && first <= last, `${place}: ${first} to ${last}`);
      assert.equal(this.next.get(place) ?? first, first, place);
      this.next.set(place, last + 1);
    }
  }
}

/** The nodes as one finds them who was killed and began again. */
function saved(socket, nodes) {
  const path = join(WORK, "saved");
  rmSync(path, { force: true });
  const position = new Position(path);
  position.save(socket, nodes);
  position.close();
  return new Position(path).nodes(socket);
}

async function* items(stream, frames) {
  const steps = stream.take(frames);
  for (let step = steps.next(); !step.done;) {
    const { value } = step;
    if (value instanceof Promise) {
      step = steps.next(await value);
      continue;
    }
    if (value instanceof Batch) for (let event; (event = value.next());) yield event;
    else yield value;
    step = steps.next();
  }
}

/** What is in hand when it ends after so many items was not taken yet, and is told again. Whether it did
 * so. */
async function take(stream, frames, account, most) {
  let hand;
  for await (const item of items(stream, frames)) {
    if (hand) account.tell(hand);
    hand = item;
    if (!most--) return true;
  }
  if (hand) account.tell(hand);
  return false;
}

// ---- targets ----

async function subscriber(data) {
  const input = new Input(data);
  const account = new Account();
  const flags = input.number(1);
  const bigint = Boolean(flags & 64);
  const stream = new Stream({ socket: flags & 4 ? "high" : "low", filter: FILTERS[flags % 3], bigint,
    replay: flags & 16 ? null : new Answers(input), since: flags & 8 ? 5 : undefined, entire: flags % 3 === 2 });
  while (input.left.length) {
    const topic = TOPICS[input.number(1) % TOPICS.length];
    const body = input.block(input.number(2));
    if (topicName(Buffer.from(topic))) {
      const [ours, theirs] = [cTold(topic, body), told(topic, body, bigint)];
      assert(ours === theirs || (refused(ours) && refused(theirs)) || mayDiffer(theirs),
        `${topic} ${body.toString("hex")}\n  C:    ${ours}\n  this: ${theirs}`);
    }
    const frames = [Buffer.from(topic), body];
    if (await take(stream, frames, account, flags & 128 ? flags >> 5 & 3 : Infinity)) {
      stream.nodes = saved(stream.socket, stream.nodes);
      await take(stream, frames, account, Infinity);
    }
  }
  saved(stream.socket, stream.nodes);
  for (const [place, following] of account.next) {
    const [label, topic] = place.split(" ");
    assert.equal(stream.nodes.get(label).topics.get(topic).next, following);
  }
}

const GOLDEN = readdirSync(new URL("golden/", PROTOCOL)).filter((name) => name.endsWith(".hex")).sort()
  .map((name) => [Buffer.from(name.slice(0, -4)),
    Buffer.from(`${readFileSync(new URL(`golden/${name}`, PROTOCOL))}`.replace(/\s/g, ""), "hex")]);

/** Whatever is taken as a position must be one with which a stream can go on, and be saved. */
async function position(data) {
  const path = join(WORK, "position");
  writeFileSync(path, data);
  let place;
  try {
    place = new Position(path);
  } catch (error) {
    assert.match(error.message, /not a position/);
    return;
  }
  for (const socket of ["low", "high"]) {
    const stream = new Stream({ socket, filter: FILTERS[2], replay: new Answers(new Input(Buffer.alloc(0))), entire: true });
    stream.nodes = place.nodes(socket);
    for (const frames of GOLDEN) for await (const item of items(stream, frames)) JSON.parse(item.json());
    place.save(socket, stream.nodes);
    assert.deepEqual(new Position(path).nodes(socket), saved(socket, stream.nodes));
  }
  place.close();
}

const [name, ...files] = process.argv.slice(2);
const run = { subscriber, position }[name];
for (const file of files) {
  console.error(file);
  await run(readFileSync(file));
}
if (!files.length) await serve(run);
