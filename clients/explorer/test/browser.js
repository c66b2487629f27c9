// A real browser, headless.
import assert from "node:assert/strict";
import { existsSync } from "node:fs";

export const CHROMIUM = "/usr/bin/chromium";
const FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync"];

/** Why there is no browser here; false if there is one. */
export async function cannot() {
  if (!existsSync(CHROMIUM)) return "wants chromium: run make deps-tests";
  return import("playwright-core").then(() => false, () => "wants playwright-core: run make deps-tests");
}

export async function openBrowser() {
  const { chromium } = await import("playwright-core");
  return chromium.launch({ executablePath: CHROMIUM, args: FLAGS });
}

/** A page, with what it complained about in page.complaints and what it asked of whom in page.requested. */
export async function openPage(browser, address, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1440, height: 1000 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(90_000); // only ends what would wait for ever
  page.complaints = [];
  page.requested = new Set();
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && page.complaints.push(message.text()));
  page.on("pageerror", (error) => page.complaints.push(`${error}`));
  page.on("request", (request) => page.requested.add(new URL(request.url()).origin));
  await page.goto(address);
  return page;
}

/** Waits until it says that the stream is alive. */
export const live = (page) => page.waitForSelector(".chip[data-tone=good] >> text=live");

/** No complaint but those that are allowed, no request to anybody else. */
export function clean(page, server, ...allowed) {
  assert.deepEqual(page.complaints.filter((text) => !allowed.some((pattern) => pattern.test(text))), []);
  assert.deepEqual([...page.requested], [server.address.slice(0, -1)]);
}
