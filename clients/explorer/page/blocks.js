// Blocks: cards, the list of them, and the page of one.
import { h, keyed, setAttribute, setText, wide } from "./dom.js";
import { abbreviated, ago, amount, count, dateOf, duration, feeRate, rateOf, several, vsize } from "./format.js";

const STATES = { connecting: ["plain", "connecting"], early: ["warn", "so far"], complete: ["good", "complete"], incomplete: ["bad", "may lack some"] };
const WAIT_NAMES = ["10\u202fs", "1\u202fmin", "10\u202fmin", "1\u202fh", "6\u202fh", "1\u202fd"];

function waitName(i) {
  return i < WAIT_NAMES.length ? `under ${WAIT_NAMES[i]}` : `over ${WAIT_NAMES.at(-1)}`;
}

function badges(block) {
  const [tone, text] = STATES[block.state] ?? STATES.incomplete;
  const list = [[tone, text]];
  if (block.superseded) list.unshift(["bad", "no longer in the chain"]);
  if (block.reorg) list.push(["warn", `reorganised ${block.reorg}`]);
  if (block.repeat) list.push(["warn", "connected before"]);
  return list;
}

function badgeList() {
  const element = h("span", { class: "badges" });
  element.update = (block) => keyed(element, badges(block), ([, text]) => text, ([tone, text]) => h("span", { class: "badge", "data-tone": tone }, text));
  return element;
}

/** How much of the block the mempool had. */
function composition() {
  const known = h("i", { class: "known" });
  const unseen = h("i", { class: "not-known" });
  const element = h("div", { class: "composition", role: "img" }, known, unseen);
  element.update = ({ confirmed, unseen: missing, n_tx }) => {
    const all = Math.max(1, (n_tx ?? 1) - 1);
    known.style.setProperty("width", `${(100 * confirmed / all).toFixed(2)}%`);
    unseen.style.setProperty("width", `${(100 * (missing ?? 0) / all).toFixed(2)}%`);
    setAttribute(element, "aria-label", `${count(confirmed)} of ${count(all)} transactions were in the mempool`);
  };
  return element;
}

/** How long its transactions had waited, in classes. */
export function waiting() {
  const bars = h("div", { class: "bars" });
  const words = h("p", {});
  const element = h("div", { class: "waiting" }, words, bars);
  element.update = ({ waits, classes }) => {
    const most = classes ? Math.max(...classes) : 0;
    element.hidden = !most;
    if (!most) return;
    setText(words, `half waited up to ${duration(waits[2])}, one in ten over ${duration(waits[3])}`);
    keyed(bars, classes.map((n, i) => ({ n, i })), ({ i }) => i, ({ i }) => {
      const bar = h("i");
      const column = h("span", { class: "column" }, h("span", { class: "well" }, bar), h("small", {}, i < WAIT_NAMES.length ? `<${WAIT_NAMES[i]}` : `${WAIT_NAMES.at(-1)}+`));
      column.update = ({ n }) => {
        bar.style.setProperty("height", `${n ? Math.max(4, 100 * n / most).toFixed(1) : 0}%`);
        setAttribute(column, "title", `${count(n)} waited ${waitName(i)}`);
      };
      return column;
    });
  };
  return element;
}

const cell = (name, className) => {
  const value = h("dd");
  const element = h("div", { class: className }, h("dt", {}, name), value);
  element.set = (text) => setText(value, text);
  return element;
};

export function blockCard(store) {
  const title = h("a", { class: "height" });
  const age = h("time", { class: "age" });
  const hash = h("p", { class: "id" });
  const [confirmed, conflicts, unseen] = [cell("confirmed", "confirmed"), cell("conflicting", "conflicts"), cell("unseen", "not-seen")];
  const [fees, rates, took] = [cell("fees"), cell("sat/vB"), cell("connected in")];
  const parts = [badgeList(), composition(), waiting()];
  const element = h("article", { class: "card block" }, h("header", {}, title, parts[0], age), hash, parts[1],
    h("dl", { class: "counts" }, confirmed, conflicts, unseen), parts[2], h("dl", { class: "facts" }, fees, rates, took));
  element.update = (block) => {
    setText(title, block.height === null ? "height unreadable" : count(block.height));
    setAttribute(title, "href", `#/block/${block.hash ?? block.height}`);
    setText(age, ago(store.now - block.time_us / 1e6));
    setText(hash, abbreviated(block.hash && block.hash.replace(/^0{8,}/, "…"), 16));
    setAttribute(hash, "title", block.hash ?? "");
    confirmed.set(count(block.confirmed));
    conflicts.set(count(block.conflicts));
    unseen.set(block.unseen === null ? "…" : count(block.unseen));
    for (const part of parts) part.update(block);
    fees.set(amount(block.fees));
    rates.set(block.rates ? `${feeRate(block.rates[1])}–${feeRate(block.rates[3])}` : "–");
    took.set(block.duration_us === null ? "–" : duration(block.duration_us / 1e6));
    setAttribute(element, "data-superseded", block.superseded);
  };
  return element;
}

export function blocksView(store) {
  const cards = h("div", { class: "blocks" });
  const none = h("p", { class: "empty" }, "No block yet. One appears here as soon as its transactions leave the mempool.");
  const element = h("div", {}, h("h1", {}, "Blocks"),
    h("p", { class: "lead" }, "What left the mempool with each block. ", h("b", {}, "Confirmed"), " were in the mempool; ", h("b", {}, "unseen"),
      " were not when the block came; ", h("b", {}, "conflicting"), " left because a transaction of the block spends the same coins."), none, cards);
  element.update = () => {
    none.hidden = store.blocks.size > 0;
    keyed(cards, store.blockList, ({ key }) => key, () => blockCard(store));
  };
  return element;
}

function transactionRows(rows, from) {
  return rows.map(({ txid, fee, vsize: size, waited }, i) => h("tr", {}, h("td", { class: "number" }, count(from + i + 1)),
    h("td", {}, txid ? h("a", { class: "id", href: `#/tx/${txid}` }, abbreviated(txid, 16)) : "unreadable"),
    h("td", { class: "number" }, feeRate(rateOf({ fee, vsize: size }))), h("td", { class: "number" }, vsize(size)),
    h("td", { class: "number" }, amount(fee)), h("td", { class: "number" }, waited === null ? "–" : duration(waited))));
}

/** A list of the block's, a page at a time. */
function transactionList(feed, name, list, title, empty) {
  const body = h("tbody");
  const more = h("button", { type: "button" }, "Show more");
  const state = h("p", { class: "hint", role: "status" });
  const table = wide(title, h("table", { class: "list" }, h("thead", {}, h("tr", {}, ...["#", "transaction", "sat/vB", "size", "fee", "waited"].map((word, i) =>
    h("th", { scope: "col", class: i === 1 ? "" : "number" }, word)))), body));
  let shown = 0;
  async function load() {
    more.disabled = true;
    try {
      const { block } = await feed.ask({ op: "block", block: name, list, from: shown });
      if (!block) return;
      body.append(...transactionRows(block.transactions, shown));
      shown += block.transactions.length;
      more.hidden = shown >= block.total;
      table.hidden = !block.total;
      setText(state, block.total ? `${count(shown)} of ${count(block.total)}` : empty);
    } catch (error) {
      setText(state, error.message);
    }
    more.disabled = false;
  }
  more.addEventListener("click", load);
  load();
  return h("section", { class: "card" }, h("header", {}, h("h2", {}, title)), table, state, more);
}

export function blockView(store, feed, name) {
  const card = blockCard(store);
  const when = h("p", { class: "lead" });
  const hash = h("p", { class: "id whole" });
  const lists = h("div", { class: "stack" });
  const none = h("p", { class: "empty" }, `No block ${name} was seen here. The explorer keeps the latest 60.`);
  const title = h("h1", {}, "Block");
  const element = h("div", { class: "detail" }, title, hash, when, none, card, lists);
  let listed = null;
  element.update = () => {
    const block = store.blockList.find((one) => one.hash === name || `${one.height}` === name);
    none.hidden = Boolean(block) || !store.loaded.has("blocks");
    card.hidden = !block;
    if (!block) return;
    card.update(block);
    setText(title, block.height === null ? "Block" : `Block ${count(block.height)}`);
    setText(hash, block.hash ?? "hash unreadable");
    setText(when, `${dateOf(block.time_us)}, ${several(block.n_tx, "transaction")}, the coinbase included${block.vsize ? `; ${vsize(block.vsize)} of them were in the mempool` : ""}`);
    const version = `${block.key} ${block.state}`;
    if (block.state === "connecting" || version === listed) return;
    listed = version;
    lists.replaceChildren(transactionList(feed, block.hash ?? `${block.height}`, "confirmed", "Confirmed", "None of its transactions were in the mempool."),
      transactionList(feed, block.hash ?? `${block.height}`, "conflicts", "Conflicting", "Nothing conflicted with it."));
  };
  return element;
}
