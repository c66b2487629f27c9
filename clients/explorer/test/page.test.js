// The page in a real browser: what strangers say stays text.
import assert from "node:assert/strict";
import { test } from "node:test";

import { Publisher, txid } from "../../js/test/publisher.js";
import { cannot as cannotBrowse, clean, live, openBrowser, openPage } from "./browser.js";
import { Server } from "./server.js";

const noBrowser = await cannotBrowse();
const T = Date.now() * 1000;
const EVIL = `<img src=x onerror="document.title='owned'">"'&\u202e${"<script>document.title='owned'</script>"}`;

test("strings of strangers show as text, in every view", { skip: noBrowser, timeout: 120_000 }, async () => {
  const publisher = await Publisher.open();
  const server = await Server.start("--address", publisher.address);
  const browser = await openBrowser();
  const timer = setInterval(() => ["low", "high"].map((socket) => publisher.status(socket)), 200);
  try {
    await publisher.join();
    const say = (topic, fields, more = {}) => publisher.send(topic, { events: [{ time_us: T, ...fields }], ...more });
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
    clean(page, server);
  } finally {
    clearInterval(timer);
    await browser.close();
    await server.end("SIGKILL");
    publisher.close();
  }
});
