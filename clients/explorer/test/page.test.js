// The page in a real browser: what strangers say stays text, and everybody can use it.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import { Publisher, txid } from "../../js/test/publisher.js";
import { cannot as cannotBrowse, clean, live, openBrowser, openPage } from "./browser.js";
import { Server, beat, until } from "./server.js";

const noBrowser = await cannotBrowse();
const T = Date.now() * 1000;
const EVIL = `<img src=x onerror="document.title='owned'">"'&\u202e${"<script>document.title='owned'</script>"}`;

/** A scripted coretapd, its explorer, and a browser. */
function scene(name, body) {
  test(name, { skip: noBrowser, timeout: 400_000 }, async () => {
    const publisher = await Publisher.open();
    const server = await Server.start("--address", publisher.address);
    const browser = await openBrowser();
    const timer = beat(publisher);
    try {
      await publisher.join();
      await body({ server, browser, say: (topic, fields, more = {}) => publisher.send(topic, { events: [{ time_us: T, ...fields }], ...more }), publisher });
    } finally {
      clearInterval(timer);
      await browser.close();
      await server.end("SIGKILL");
      publisher.close();
    }
  });
}

scene("strings of strangers show as text, in every view", async ({ server, browser, say }) => {
  await say("node.started", { binary: EVIL, build_id: EVIL, started_at: 1, core: EVIL });
  const peer = { peer_id: 1, addr: EVIL, connection_type: EVIL, network: EVIL };
  await say("net.inbound_connection", { ...peer, count: 1 });
  await say("net.misbehaving_connection", { peer_id: 1, reason: EVIL });
  await say("net.outbound_connection", { ...peer, peer_id: 2, count: 1 });
  await say("net.closed_connection", { ...peer, peer_id: 2, established: 1 });
  await say("net.inbound_message", { ...peer, msg_type: EVIL.slice(0, 23), size: 5 }, { socket: "high" });
  await say("mempool.added", { txid: txid(1), vsize: 100, fee: 1000 });
  await say("mempool.rejected", { txid: txid(2), reason: EVIL });
  await say("mempool.removed", { txid: txid(3), reason: EVIL, vsize: 100, fee: 1000, entry_time: 1 });
  await say("mempool.replaced", { txid: txid(4), vsize: 1, fee: 1, entry_time: 1, replacement_package: txid(5), replacement_vsize: 1, replacement_fee: 1 });
  const page = await openPage(browser, server.address);
  await live(page);
  const text = () => page.textContent("body");
  assert.ok((await text()).includes("<img src=x"), "the node's version");
  await page.keyboard.press("4");
  await page.waitForSelector("text=1 peer");
  const cells = await page.$$eval("td code, .departures code, tbody th code", (all) => all.map((code) => code.textContent));
  assert.deepEqual(cells.filter((cell) => cell.startsWith("<img")).map((cell) => cell.slice(0, 10)), Array(3).fill("<img src=x"));
  for (const [hash, shown] of [[`#/tx/${txid(2).toString("hex")}`, "Rejected: <img src=x"], [`#/tx/${txid(3).toString("hex")}`, "Left: <img src=x"],
    ["#/replacements", "1 replaced by a package"], [`#/search/${encodeURIComponent(EVIL)}`, "Nothing that begins with “<img src=x"], ["#/search/%", "Nothing that begins"],
    ["#/tx/<img src=x onerror=alert(1)>", "Mempool over time"]]) {
    await page.goto(`${server.address}${hash}`);
    await page.waitForFunction((words) => document.body.textContent.includes(words), shown);
  }
  assert.equal(await page.$$eval("main img, #strip img, body script", (all) => all.length), 0);
  assert.doesNotMatch(await page.title(), /owned/);
  assert.doesNotMatch(await text(), /\u202e/); // what reorders text is shown, not done
  clean(page, server);
});

scene("every view is accessible, in light and dark, on a desk and on a phone", async ({ server, browser, say, publisher }) => {
  const axe = readFileSync(fileURLToPath(import.meta.resolve("axe-core/axe.min.js")), "utf8");
  const block = { hash: txid(77), height: 840_000, n_tx: 3 };
  const list = { txids: [txid(1)], fees: [1000], vsizes: [100], entry_times: [1] };
  await say("net.inbound_connection", { peer_id: 1, addr: "203.0.113.7:8333", connection_type: "inbound", network: "ipv4", count: 1 });
  await say("net.inbound_message", { peer_id: 1, addr: "203.0.113.7:8333", connection_type: "inbound", msg_type: "inv", size: 5 }, { socket: "high" });
  for (const i of [1, 2, 3]) await say("mempool.added", { txid: txid(i), vsize: 100, fee: 1000 * i });
  await say("mempool.replaced", { txid: txid(2), vsize: 100, fee: 2000, entry_time: 1, replacement_txid: txid(4), replacement_vsize: 100, replacement_fee: 9000 });
  await say("validation.block_connected", { ...block, n_inputs: 1, sigops: 1, duration_ns: 1e7 });
  await say("block.evictions", { ...block, n_block: publisher.n.low, ...list, conflicts: { txids: [], fees: [], vsizes: [], entry_times: [], after: [] }, unseen: 1, reorg: 0, repeat: false,
    complete: true, final: true });
  for (const options of [{ colorScheme: "light" }, { colorScheme: "dark", viewport: { width: 360, height: 700 } }]) {
    const page = await openPage(browser, server.address, options);
    for (const view of ["", "blocks", "replacements", "peers", "block/840000", `tx/${txid(2).toString("hex")}`, "search/nothing"]) {
      await page.goto(`${server.address}#/${view}`);
      await live(page);
      await page.waitForTimeout(100); // a frame, and the answer to what the view asks
      await page.evaluate(axe);
      const found = await page.evaluate(async () => (await globalThis.axe.run()).violations.map(({ id, nodes }) => [id, nodes[0].html]));
      assert.deepEqual(found, [], view);
      assert.equal(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth), 0, `${view} is wider than the screen`);
    }
    clean(page, server);
  }
});

scene("the keyboard does all: views, search, charts, theme", async ({ server, browser, say }) => {
  await say("mempool.added", { txid: txid(1), vsize: 100, fee: 1000 });
  const page = await openPage(browser, server.address, { colorScheme: "light" });
  await live(page);
  const ground = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const light = await ground();
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Skip to the content");
  await page.keyboard.press("Enter");
  assert.equal(await page.evaluate(() => document.activeElement.id), "main");
  await page.focus("#theme");
  await page.keyboard.press("Enter"); // light
  await page.keyboard.press("Enter"); // dark
  assert.notEqual(await ground(), light);
  await page.reload();
  await live(page);
  assert.notEqual(await ground(), light, "the choice lasts");
  await page.waitForFunction(() => globalThis.explorer.mempool.seconds.length > 3);
  await page.focus(".plot");
  await page.keyboard.press("Home");
  assert.match(await page.textContent(".readout"), / 1 transaction /);
  assert.equal(await page.getAttribute(".cursor", "visibility"), "visible");
  for (const [key, title] of [["2", "Blocks"], ["3", "Replacements"], ["4", "Peers"], ["1", "Mempool"]]) {
    await page.keyboard.press(key);
    await page.waitForFunction((word) => document.title.startsWith(word), title);
    assert.equal(await page.textContent("nav [aria-current]"), title);
  }
  await page.keyboard.press("/");
  await page.keyboard.type(txid(1).toString("hex").slice(0, 50));
  await page.keyboard.press("Enter");
  await page.waitForSelector("text=In the mempool");
  clean(page, server);
});

scene("the README's example", async ({ server, browser, say }) => {
  const readme = readFileSync(new URL("../README.md", import.meta.url), "utf8");
  const example = /```js\n([^]*?)```/.exec(readme)[1].replace("127.0.0.1:28380", new URL(server.address).host);
  const page = await openPage(browser, server.address);
  await live(page);
  const logged = [];
  page.on("console", async (message) => logged.push(await message.args()[0].jsonValue()));
  await page.evaluate(example);
  await until(() => logged.some(({ topic }) => topic === "blocks"), "a snapshot");
  await say("mempool.removed", { txid: txid(1), reason: "expiry", vsize: 100, fee: 1000, entry_time: 1 });
  const { events } = await until(() => logged.find(({ type }) => type === "events"), "an event");
  assert.deepEqual(events.map(({ topic, reason }) => [topic, reason]), [["mempool.removed", "expiry"]]);
  clean(page, server);
});
