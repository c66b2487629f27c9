// A running coretapd, and simulated nodes.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { copyFileSync, existsSync, mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { setTimeout as sleep } from "node:timers/promises";

import { exit } from "./publisher.js";

export const BUILD = fileURLToPath(new URL(`../../../${process.env.BUILD ?? "build"}/`, import.meta.url));
// A node of our own: a bridge follows any process of its binary, also that of another test.
const directory = mkdtempSync(join(tmpdir(), "coretap-js-"));
const NODE = join(directory, "fake_node");
const journals = new Set();
process.on("exit", () => {
  for (const place of [directory, ...journals]) rmSync(place, { recursive: true, force: true });
});

/** Why tests with the simulated node cannot run here; false if they can. */
export const cannot = process.platform !== "linux" || process.getuid() !== 0 ? "wants root on Linux"
  : !existsSync(`${BUILD}coretapd`) || !existsSync(`${BUILD}fake_node`) ? "wants coretapd and fake_node: run make" : false;

if (!cannot) copyFileSync(`${BUILD}fake_node`, NODE);

async function isFree(port) {
  const server = createServer();
  const free = await new Promise((resolve) => {
    server.once("error", () => resolve(false)).listen(port, "127.0.0.1", () => resolve(true));
  });
  if (free) await new Promise((resolve) => server.close(resolve));
  return free;
}

async function freePort() {
  for (;;) {
    const port = 10000 + Math.floor(Math.random() * 20000);
    if ((await isFree(port)) && (await isFree(port + 1)) && (await isFree(port + 2))) return port;
  }
}

export async function until(condition, seconds = 80) {
  for (const end = performance.now() + 1000 * seconds; ; await sleep(10)) {
    const value = await condition();
    if (value) return value;
    if (performance.now() > end) throw new Error(`not within ${seconds} s: ${condition}`);
  }
}

export class Bridge {
  log = "";

  static async start(args = [], port) {
    const self = new Bridge();
    self.port = port ?? await freePort();
    self.name = `js${process.pid}-${self.port}`;
    self.address = `tcp://127.0.0.1:${self.port}`;
    journals.add(`/run/coretap/${self.name}`);
    self.child = spawn(`${BUILD}coretapd`, ["--name", self.name, "--port", self.port, "--binary", NODE,
      "--journal-low", "64M", "--journal-high", "16M", ...args], { stdio: ["ignore", "ignore", "pipe"] });
    self.child.stderr.on("data", (data) => (self.log += data));
    await until(() => {
      if (self.child.exitCode !== null) throw new Error(self.log);
      return self.log.includes("attached (");
    });
    return self;
  }

  async stop() {
    this.child.kill();
    if (await exit(this.child)) throw new Error(this.log);
  }

  async close() {
    await this.stop();
  }
}

/** A simulated node; finish() gives what it counted itself. */
export class FakeNode {
  constructor(...args) {
    this.out = "";
    this.child = spawn(NODE, args.map(String), { stdio: ["ignore", "pipe", "inherit"] });
    this.child.stdout.on("data", (data) => (this.out += data));
    this.closed = once(this.child, "close");
  }

  async finish() {
    await this.closed;
    return JSON.parse(this.out.trimEnd().split("\n").at(-1)).fired;
  }

  stop() {
    this.child.kill();
    return this.finish();
  }
}
