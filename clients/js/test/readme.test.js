// The example of the README runs as it stands, but for the address.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

import { Publisher, txid } from "./publisher.js";

test("the example", { timeout: 240_000 }, async () => {
  const readme = readFileSync(new URL("../README.md", import.meta.url), "utf8");
  const [, example] = /```js\n([^`]*position[^]*?)```/.exec(readme);
  assert.equal(example.trimEnd().split("\n").length, 8);
  const publisher = await Publisher.open();
  const file = join(publisher.directory, "example.mjs");
  writeFileSync(file, example.replace('"coretap"', JSON.stringify(new URL("../index.js", import.meta.url)))
    .replace("{ position: ", `{ address: "${publisher.address}", position: `));
  const child = spawn(process.execPath, [file], { cwd: publisher.directory, stdio: ["ignore", "pipe", "inherit"] });
  try {
    await publisher.join();
    const fields = { time_us: 1, txid: txid(1), reason: "block", vsize: 1, fee: 1, entry_time: 1, height: 800000 };
    await publisher.send("mempool.removed", { events: [{ ...fields, reason: "expiry" }, fields, { ...fields, txid: null }] });
    publisher.vanish("mempool.removed", { events: 3 });
    await publisher.status();
    let text = "";
    while (text.split("\n").length < 4) text += (await once(child.stdout, "data"))[0];
    assert.equal(text, `${txid(1).toString("hex")} left with block 800000\nnull left with block 800000\n3 of mempool.removed are gone for good\n`);
  } finally {
    child.kill();
    publisher.close();
  }
});

test("the generated catalogue is current", async () => {
  const child = spawn(process.execPath, [new URL("../generate.js", import.meta.url).pathname, "--check"], { stdio: "inherit" });
  assert.deepEqual(await once(child, "exit"), [0, null]);
});
