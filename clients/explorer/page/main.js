// Puts the page together: what is shown, and when it is drawn.
import { blockView, blocksView } from "./blocks.js";
import { Feed } from "./feed.js";
import { mempoolView } from "./mempool.js";
import { peersView } from "./peers.js";
import { replacementsView } from "./replacements.js";
import { Store } from "./store.js";
import { strip } from "./strip.js";
import { searchView, transactionView } from "./transaction.js";

const store = new Store();
const feed = new Feed(store);
const main = document.getElementById("main");
const drawStrip = strip(store, document.getElementById("strip"));

// ---- what is shown ----

const VIEWS = [
  [/^#?\/?$/, "Mempool", () => mempoolView(store)],
  [/^#\/blocks$/, "Blocks", () => blocksView(store)],
  [/^#\/block\/([0-9a-f]{1,64})$/, "Block", (name) => blockView(store, feed, name)],
  [/^#\/replacements$/, "Replacements", () => replacementsView(store)],
  [/^#\/peers$/, "Peers", () => peersView(store)],
  [/^#\/tx\/([0-9a-f]{64})$/, "Transaction", (txid) => transactionView(store, feed, txid)],
  [/^#\/search\/(.{1,192})$/, "Search", (text) => searchView(store, feed, decoded(text))],
];

let view = null;

function decoded(text) {
  try {
    return decodeURIComponent(text).slice(0, 64);
  } catch {
    return text.slice(0, 64);
  }
}

function route(moved) {
  const [pattern, title, make] = VIEWS.find(([known]) => known.test(location.hash)) ?? VIEWS[0];
  view = make(...(pattern.exec(location.hash)?.slice(1) ?? []));
  main.replaceChildren(view);
  document.title = `${title} – coretap explorer`;
  for (const link of document.querySelectorAll("nav a")) {
    if (pattern.test(link.hash || "#/")) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (moved) {
    main.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
  for (const topic of TOPICS) changed.add(topic);
  draw();
}

// ---- when it is drawn: what changed, once a frame, and all of it each second for what ages ----

const TOPICS = ["mempool", "blocks", "replacements", "peers", "health"];
const changed = new Set();
let asked = false;

function draw() {
  asked = false;
  const topics = new Set(changed);
  changed.clear();
  if (store.health || !store.connected) drawStrip();
  view.update(topics);
}

function schedule() {
  if (asked || document.hidden) return;
  asked = true;
  requestAnimationFrame(draw);
}

store.addEventListener("change", ({ detail }) => {
  changed.add(detail);
  schedule();
});
setInterval(schedule, 1000);
document.addEventListener("visibilitychange", schedule);
addEventListener("hashchange", () => route(true));
// The link to the content is no view of its own.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});

// ---- search and keys ----

const query = document.getElementById("query");
document.getElementById("find").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = query.value.trim().toLowerCase();
  if (!text) return;
  location.hash = /^[0-9a-f]{64}$/.test(text) && !text.startsWith("00000000") ? `#/tx/${text}` : `#/search/${encodeURIComponent(text)}`;
  query.value = "";
});
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target instanceof HTMLInputElement && event.target.type === "search";
  if (event.key === "Escape" && typing) query.blur();
  if (typing) return;
  const link = { 1: 0, 2: 1, 3: 2, 4: 3 }[event.key];
  if (event.key === "/") {
    event.preventDefault();
    query.focus();
  } else if (link !== undefined) {
    document.querySelectorAll("nav a")[link].click();
  }
});

// ---- light and dark ----

const THEMES = ["auto", "light", "dark"];
const theme = document.getElementById("theme");

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  theme.textContent = { auto: "◐", light: "☀", dark: "☾" }[name];
  theme.setAttribute("aria-label", `Colours: ${name}. Press for ${THEMES[(THEMES.indexOf(name) + 1) % 3]}.`);
  theme.title = `Colours: ${name}`;
}

function stored() {
  try {
    return localStorage.getItem("theme");
  } catch {
    return null;
  }
}

theme.addEventListener("click", () => {
  const name = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % 3];
  setTheme(name);
  try {
    localStorage.setItem("theme", name);
  } catch {
    // it lasts until the page is closed
  }
});
setTheme(THEMES.includes(stored()) ? stored() : "auto");
route(false);

// For the curious: what the page knows.
globalThis.explorer = store;
