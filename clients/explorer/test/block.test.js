// The page in a real browser, with the simulated node: it shows what the node counted, whatever breaks in
// between.
import assert from "node:assert/strict";
import { test } from "node:test";
import { isDeepStrictEqual } from "node:util";

import { Bridge, FakeNode, cannot as cannotTrace } from "../../js/test/bridge.js";
import { cannot as cannotBrowse, clean, live, openBrowser, openPage } from "./browser.js";
import { Server, until } from "./server.js";

const noBrowser = await cannotBrowse();
const EVICTIONS = 4000;

/** What the page knows, without what time alone changes. */
const known = (page) => page.evaluate(() => {
  const { mempool, blockList, treeList, peers, health } = globalThis.explorer;
  return { now: mempool.now, blocks: blockList, trees: treeList.map(({ root, nodes }) => ({ root, nodes })), peers: [...peers.values()],
    missing: [health.lost, health.gone], run: health.run };
});

/** Waits until it knows the same as before; deltas may still come. */
async function same(page, before, what) {
  await until(async () => isDeepStrictEqual(await known(page), before), what, 20).catch(() => {});
  assert.deepEqual(await known(page), before, what);
}

test("a block of 4,000 evictions, searched, reloaded, and after every kind of break", { skip: noBrowser || cannotTrace, timeout: 400_000 }, async (t) => {
  const bridge = await Bridge.start();
  let server = await Server.start("--address", bridge.address);
  const browser = await openBrowser();
  let node;
  try {
    const page = await openPage(browser, server.address);
    let sockets = [];
    await page.routeWebSocket(/\/api$/, (socket) => {
      sockets.push(socket);
      socket.connectToServer();
    });
    await page.reload();
    await live(page);
    const late = page.evaluate((all) => new Promise((resolve) => globalThis.explorer.addEventListener("change", () => {
      const [block] = globalThis.explorer.blockList;
      if (block?.confirmed === all) requestAnimationFrame(() => setTimeout(() => resolve(1000 * Date.now() - block.time_us)));
    })), EVICTIONS - 7);
    node = new FakeNode("blocks", 1, EVICTIONS, "--unseen", 7, "--conflicts", 3, "--replacements", 5, "--wait", "--start-delay", 300, "--hold");
    // With unseen ones in it only what follows proves that the list is whole: the first word is an early one.
    t.diagnostic(`the block was on the page ${Math.round(await late / 1000)} ms after it was connected`);
    const fired = await node.stop();
    await page.waitForFunction(() => globalThis.explorer.blockList[0].state === "complete");
    const shown = await page.$eval(".block .counts", (list) => [...list.querySelectorAll("dd")].map((dd) => Number(dd.textContent.replace(/,/g, ""))));
    const [block] = (await known(page)).blocks;
    assert.deepEqual(shown, [EVICTIONS - 7, 3, 7]);
    await page.waitForFunction((added) => globalThis.explorer.mempool.seconds.reduce((sum, { flow }) => sum + flow[0], 0) === added, fired["mempool:added"]);
    const flow = await page.evaluate(() => globalThis.explorer.mempool.seconds.reduce((sum, point) => sum.map((n, i) => n + point.flow[i]), Array(9).fill(0)));
    assert.equal(flow.slice(2).reduce((a, b) => a + b), fired["mempool:removed"]);
    assert.deepEqual([flow[2], flow[3]], [block.confirmed, block.conflicts]);

    await page.click(".block .height");
    const link = page.locator("td a.id").first();
    await link.waitFor();
    const evicted = (await link.getAttribute("href")).slice("#/tx/".length);
    await page.keyboard.press("/");
    await page.keyboard.type(evicted);
    await page.keyboard.press("Enter");
    await page.waitForSelector(`.badge.large >> text=Confirmed in block`);
    assert.equal(await page.textContent("h1 + .whole"), evicted);
    assert.doesNotMatch(await page.textContent("main"), /evicted/i);

    await page.waitForFunction(() => globalThis.explorer.mempool.now.count === 0); // the node has ended
    const before = await known(page);
    assert.deepEqual(before.missing, [0, 0]);
    await page.reload();
    await live(page);
    await same(page, before, "after a reload");

    sockets.at(-1).close();
    sockets = [];
    await until(() => sockets.length, "a connection anew");
    await live(page);
    await same(page, before, "after its connection was lost");

    await server.end("SIGKILL");
    await page.waitForSelector(".chip[data-tone=bad] >> text=offline");
    server = await Server.start("--address", bridge.address, "--listen", `127.0.0.1:${server.port}`);
    await live(page);
    await page.waitForFunction((run) => globalThis.explorer.health.run === run && globalThis.explorer.blockList.length === 1, before.run);
    await same(page, before, "after its server was killed");
    clean(page, server, /ERR_CONNECTION_REFUSED|WebSocket connection to/);
    assert.equal(server.log, "");
  } finally {
    node?.child.kill();
    await browser.close();
    await server.end();
    await bridge.close();
  }
});
