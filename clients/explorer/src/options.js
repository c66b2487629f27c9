// The command line.
import { readFileSync } from "node:fs";
import { isIP } from "node:net";
import { parseArgs } from "node:util";

import { DEFAULT_ADDRESS } from "coretap";

export const DEFAULT_LISTEN = "127.0.0.1:28380";
const HISTORY = 100_000;
const CLIENTS = 500;

export const HELP = `usage: coretap-explorer [OPTIONS]

Shows a node's mempool live, in a browser: serves a page and a WebSocket API.

  --address A         coretapd: tcp://HOST:PORT or ipc:///run/coretap/NAME
                      (${DEFAULT_ADDRESS})
  --curve-server FILE, --curve-secret FILE
                      public key of coretapd, secret key of the explorer: see coretap keygen
  --listen HOST:PORT  where to serve; PORT 0: any free one (${DEFAULT_LISTEN})
  --since T           begin with what coretapd's journal holds: oldest, 10m, 2h, a time,
                      or now (oldest)
  --rpc URL           the node's RPC, for its exact mempool: http://HOST:PORT, or
                      http://USER:PASSWORD@HOST:PORT. Without it the mempool is what was seen
  --rpc-cookie FILE   the node's cookie file; alone it means http://127.0.0.1:8332
  --history N         transactions to remember after they left (${HISTORY})
  --clients N         browsers and others at the same time (${CLIENTS})
  --allow-host NAME   a host name that browsers may use for this server, besides localhost
                      and addresses; may be repeated
  --allow-origin URL  another site whose pages may use the API; may be repeated
  --help, --version

Whoever can connect sees what the node's log would show him. Ends on Ctrl-C.
`;

export class UsageError extends Error {}

const { version } = JSON.parse(readFileSync(new URL("../package.json", import.meta.url)));

function number(name, value, least, most) {
  const known = /^\d{1,9}$/.test(value) ? Number(value) : -1;
  if (known < least || known > most) throw new UsageError(`--${name} ${value}: not a number from ${least} to ${most}`);
  return known;
}

function endpoint(value) {
  const parts = /^(?:\[([^\]]+)\]|([^:\s]+)):(\d{1,5})$/.exec(value);
  const port = parts ? Number(parts[3]) : 65536;
  const host = parts?.[1] ?? parts?.[2];
  if (port > 65535 || (parts[1] && isIP(parts[1]) !== 6)) throw new UsageError(`--listen ${value}: give HOST:PORT`);
  return { host, port };
}

function site(value) {
  let url;
  try {
    url = new URL(value);
  } catch {
    throw new UsageError(`--allow-origin ${value}: give https://NAME`);
  }
  if (url.origin !== value.replace(/\/$/, "") || !/^https?:$/.test(url.protocol))
    throw new UsageError(`--allow-origin ${value}: give https://NAME, without a path`);
  return url.origin;
}

function rpc(url, cookie) {
  if (url === undefined && cookie === undefined) return null;
  const given = url ?? "http://127.0.0.1:8332";
  let parts;
  try {
    parts = new URL(given);
  } catch {
    throw new UsageError(`--rpc ${given}: give http://HOST:PORT`);
  }
  if (!/^https?:$/.test(parts.protocol)) throw new UsageError(`--rpc ${given}: give http://HOST:PORT`);
  if (cookie === undefined && !parts.username) throw new UsageError("--rpc: give --rpc-cookie as well, or http://USER:PASSWORD@HOST:PORT");
  return { url: given, cookie };
}

/** Throws UsageError. */
export function readOptions(args) {
  const text = { type: "string" };
  const flag = { type: "boolean" };
  const options = { address: text, "curve-server": text, "curve-secret": text, listen: text, since: text, rpc: text, "rpc-cookie": text, history: text, clients: text,
    "allow-host": { ...text, multiple: true }, "allow-origin": { ...text, multiple: true }, help: { ...flag, short: "h" }, version: flag };
  let values;
  try {
    ({ values } = parseArgs({ args, options }));
  } catch (error) {
    throw new UsageError(error.message.split(". ")[0]);
  }
  const since = values.since ?? "oldest";
  return {
    help: values.help, version: values.version && `coretap-explorer ${version}`,
    address: values.address ?? DEFAULT_ADDRESS,
    curveServer: values["curve-server"], curveSecret: values["curve-secret"],
    listen: endpoint(values.listen ?? DEFAULT_LISTEN),
    since: since === "now" ? undefined : since,
    rpc: rpc(values.rpc, values["rpc-cookie"]),
    history: number("history", values.history ?? `${HISTORY}`, 100, 10_000_000),
    clients: number("clients", values.clients ?? `${CLIENTS}`, 1, 1500),
    hosts: (values["allow-host"] ?? []).map((name) => name.toLowerCase()),
    origins: (values["allow-origin"] ?? []).map(site),
  };
}
