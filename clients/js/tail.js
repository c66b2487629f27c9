#!/usr/bin/env node
// coretap-tail: events as they happen, the twin of `coretap tail`.
import { parseArgs } from "node:util";

import { CATALOGUE, DEFAULT_ADDRESS, hex, subscribe } from "./index.js";

const HELP = `usage: coretap-tail [TOPIC...] [--json] [--address A] [--count N] [--since T] [--position FILE]
                    [--curve-server FILE --curve-secret FILE]

Shows events as they happen.

TOPIC is mempool.removed, or mempool for all of a provider; none means everything.
bridge.status shows the bridge's own account, once a second.

  --json           JSON lines; so it is anyway when standard output is no terminal
  --text           text for people, also when it is no terminal
  --address A      tcp://HOST:PORT or ipc:///run/coretap/NAME (${DEFAULT_ADDRESS})
  --count N        end after N events
  --since T        begin earlier: 10m, 2h or 1d ago, oldest, or a time like 2009-01-03T18:15:05Z
  --position FILE  keep the place there and go on from it
  --curve-server FILE, --curve-secret FILE
                   coretapd's public key and one's own secret key, where coretapd demands keys

What did not arrive, a new run, silence and the like are told on standard error, and in JSON also as
objects with the key "notice", at their place in the stream. Ends on Ctrl-C.
`;

function usageError(text) {
  process.stderr.write(`coretap: ${text}\n`);
  process.exit(2);
}

function readOptions() {
  const options = {
    json: { type: "boolean" }, text: { type: "boolean" }, help: { type: "boolean", short: "h" },
    address: { type: "string", short: "a", default: DEFAULT_ADDRESS },
    count: { type: "string", short: "n" }, since: { type: "string" }, position: { type: "string" },
    "curve-server": { type: "string" }, "curve-secret": { type: "string" },
  };
  let parsed;
  try {
    parsed = parseArgs({ options, allowPositionals: true });
  } catch (error) {
    usageError(error.message);
  }
  const { values, positionals } = parsed;
  if (values.count !== undefined && !/^[1-9]\d{0,14}$/.test(values.count))
    usageError(`--count ${values.count}: not a number above 0`);
  return { ...values, topics: positionals.map(topicOf) };
}

/** mempool, mempool.*, * */
function topicOf(word) {
  const name = word.endsWith("*") ? word.slice(0, -1) : word;
  return !name || name.includes(".") ? name : `${name}.`;
}

function inWords(event) {
  const fields = Object.entries(event.fields).map(([name, value]) =>
    `${name}=${value === null ? "?" : value instanceof Uint8Array ? hex(value) : JSON.stringify(value)}`);
  return `${event.time.toISOString().slice(11, 23)} ${event.topic.padEnd(26)} ${fields.join(" ")}`;
}

function fail(text) {
  process.stderr.write(`coretap: ${text}\n`);
  process.exit(1);
}

let pending = "";

async function flush() {
  const text = pending;
  pending = "";
  // Where that fails it is told below, and this never comes back.
  if (text) await new Promise((resolve) => process.stdout.write(text, (error) => error || resolve()));
}

async function main() {
  const options = readOptions();
  if (options.help) {
    process.stdout.write(HELP);
    return;
  }
  const json = options.json || (!options.text && !process.stdout.isTTY);
  let left = options.count === undefined ? Infinity : Number(options.count);
  let tap;
  try {
    const { address, position, since, "curve-server": curveServer, "curve-secret": curveSecret } = options;
    tap = subscribe(options.topics, { address, position, since, bigint: true, curveServer, curveSecret });
  } catch (error) {
    usageError(error.message);
  }
  for (const name of options.topics)
    if (!name.startsWith("bridge.") &&
        ![...CATALOGUE.keys()].some((known) => known === name || ((!name || name.endsWith(".")) && known.startsWith(name))))
      process.stderr.write(`coretap: ${name}: no topic of Bitcoin Core's: nothing comes unless coretapd declares it\n`);
  const stop = () => tap.close();
  process.on("SIGINT", stop).on("SIGTERM", stop);
  process.stdout.on("error", (error) => {
    if (error.code === "EPIPE") process.exit(0); // whoever read has gone
    fail(`standard output: ${error.message}`);
  });

  while (left > 0) {
    let item = tap.take();
    if (!item) {
      await flush(); // nothing more at hand: readers see the lines now
      item = await tap.next();
      if (!item) break;
    }
    const notice = item.kind !== "event" && item.kind !== "status";
    if (notice) process.stderr.write(`coretap: ${item}\n`);
    else left--;
    if (json) pending += `${item.json()}\n`;
    else if (!notice) pending += `${inWords(item)}\n`;
    // With a position a line must be out before its event counts as taken.
    if (options.position || pending.length > 1 << 16) await flush();
  }
  await flush();
  tap.commit();
  tap.close();
}

await main().catch((error) => fail(error.path || !error.code ? error.message : `--position: ${error.message}`));
