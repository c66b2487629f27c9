// Fifty clients, one of them a real browser and one that never reads, while thousands of events a second flow.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { Bridge, FakeNode, cannot } from "../../js/test/bridge.js";
import { cannot as cannotBrowse, openBrowser, openPage } from "./browser.js";
import { Listener, Server, until } from "./server.js";

const STATE = ["mempool", "blocks", "replacements", "peers", "health"];
const EVENTS = ["mempool.", "validation.", "block.", "net.", "node."];
const VIEWERS = 44; // as the page is
const READERS = 4; // of every event
const SECONDS = 6;

const memory = (pid) => Number(/VmHWM:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, "utf8"))[1]) >> 10;

/** Watches the page's own frames. */
function watch() {
  const frames = (globalThis.frames_ = []);
  const tasks = (globalThis.tasks_ = []);
  new PerformanceObserver((list) => tasks.push(...list.getEntries().map(({ duration }) => duration))).observe({ type: "longtask" });
  let last = performance.now();
  requestAnimationFrame(function next(now) {
    frames.push(now - last);
    last = now;
    requestAnimationFrame(next);
  });
}

test("none of fifty clients stalls another", { skip: cannot, timeout: 400_000 }, async (t) => {
  const bridge = await Bridge.start();
  const server = await Server.start("--address", bridge.address);
  const browser = await cannotBrowse() ? null : await openBrowser();
  const open = [];
  let node;
  try {
    const page = browser && await openPage(browser, server.address);
    await page?.waitForSelector(".chip >> text=live");
    await page?.evaluate(watch);
    for (let i = 0; i < VIEWERS + READERS + 1; i++) open.push(await Listener.open(server));
    const [lazy, ...others] = open;
    const [readers, viewers] = [others.slice(0, READERS), others.slice(READERS)];
    for (const reader of readers) {
      reader.count = 0;
      reader.gaps = 0;
      reader.skipped = 0;
      reader.next = {};
      reader.socket.removeAllListeners("message");
      reader.socket.on("message", (data) => {
        const { type, events } = JSON.parse(data);
        if (type === "skipped") {
          // Told, where this machine is too busy for its own test to read; never silent.
          reader.skipped += events;
          reader.next = {};
        }
        if (type !== "events") return;
        for (const { topic, seq } of events) {
          if (reader.next[topic] !== undefined && reader.next[topic] !== seq) reader.gaps++;
          reader.next[topic] = seq + 1;
          if (!/^(block|node)\./.test(topic)) reader.count++; // derived: nobody fired them
        }
      });
      reader.ask({ op: "subscribe", topics: EVENTS });
    }
    for (const viewer of viewers) viewer.ask({ op: "subscribe", topics: STATE });
    lazy.ask({ op: "subscribe", topics: [...STATE, ...EVENTS] });
    for (const viewer of viewers) await viewer.wait(({ topic }) => topic === "health", "a snapshot");
    lazy.socket.pause();
    const before = memory(server.child.pid);

    node = new FakeNode("run", "--rate", 2200, "--block-interval", 3, "--seconds", SECONDS, "--wait", "--start-delay", 300);
    const fired = Object.entries(await node.finish()).filter(([name]) => /^(mempool|validation|net):/.test(name)).reduce((sum, [, n]) => sum + n, 0);
    await until(() => readers.every(({ count, skipped }) => count + skipped >= fired), "all events");
    for (const { count, skipped, gaps } of readers) {
      assert.equal(gaps, 0);
      if (!skipped) assert.equal(count, fired);
    }
    assert.ok(readers.some(({ skipped }) => !skipped), "one at least got everything");
    await until(() => viewers.every((viewer) => viewer.of("delta", "mempool").at(-1)?.data.now.count === 0), "the empty mempool");
    for (const viewer of viewers) assert.equal(viewer.of("snapshot").length, STATE.length, "nobody else was behind");
    const after = memory(server.child.pid);
    t.diagnostic(`${Math.round(fired / SECONDS)} events a second to ${open.length + 1} clients; the server took ${after} MiB (${before} before)`);
    assert.ok(after < 700, `${after} MiB`);
    if (!page) return;
    const [frames, tasks] = await page.evaluate(() => [globalThis.frames_, globalThis.tasks_]);
    frames.sort((a, b) => a - b);
    const at = (part) => frames[Math.floor(part * (frames.length - 1))].toFixed(1);
    t.diagnostic(`the page's frames: half within ${at(0.5)} ms, 99 of 100 within ${at(0.99)} ms, the longest ${at(1)} ms; ` +
      `tasks over 50 ms: ${tasks.length}${tasks.length ? `, the longest ${Math.max(...tasks).toFixed(0)} ms` : ""}`);
    assert.deepEqual(page.complaints, []);
  } finally {
    node?.child.kill();
    for (const listener of open) listener.close();
    await browser?.close();
    await server.end();
    await bridge.close();
  }
});
