#!/usr/bin/env node
// Makes the pictures in screenshots/ of a server that runs: test/screenshots.js ADDRESS
import { fileURLToPath } from "node:url";

import { openBrowser, openPage } from "./browser.js";

const [address = "http://127.0.0.1:28380/"] = process.argv.slice(2);
const place = (name) => fileURLToPath(new URL(`../screenshots/${name}.png`, import.meta.url));
const WIDE = { viewport: { width: 1360, height: 1150 } };
const PHONE = { viewport: { width: 390, height: 1500 }, deviceScaleFactor: 1, isMobile: true, hasTouch: true };

const browser = await openBrowser();
for (const [name, options, hash] of [
  ["light", { ...WIDE, colorScheme: "light" }, "#/"],
  ["dark", { ...WIDE, colorScheme: "dark" }, "#/"],
  ["phone", { ...PHONE, colorScheme: "dark" }, "#/"],
  ["replacements", { viewport: { width: 1200, height: 800 }, colorScheme: "light" }, "#/replacements"],
  ["peers", { viewport: { width: 1200, height: 900 }, colorScheme: "dark" }, "#/peers"],
]) {
  const page = await openPage(browser, `${address}${hash}`, options);
  await page.waitForSelector(".chip[data-tone=good]");
  await page.waitForTimeout(1500);
  await page.screenshot({ path: place(name) });
  for (const text of page.complaints) process.stderr.write(`${name}: ${text}\n`);
  await page.context().close();
}
await browser.close();
