// The page of one transaction.
import { h, setText } from "./dom.js";
import { STATES, STATE_OF_REASON, abbreviated, amount, count, dateOf, duration, feeRate, rateOf, vsize } from "./format.js";
import { treeCard } from "./replacements.js";

const TONES = { mempool: "info", confirmed: "good", rejected: "bad", conflicted: "bad", replaced: "warn" };
const AGAIN = 2000; // ms

const link = (txid) => h("a", { class: "id", href: `#/tx/${txid}` }, abbreviated(txid, 12));

function blockLink(height, hash) {
  return h("a", { href: `#/block/${hash ?? height}` }, `block ${count(height)}`);
}

function fact(name, ...value) {
  return h("div", {}, h("dt", {}, name), h("dd", {}, ...value));
}

function facts(tx) {
  const rows = [fact("fee rate", `${feeRate(rateOf(tx))} sat/vB`), fact("fee", amount(tx.fee)), fact("size", vsize(tx.vsize))];
  if (tx.state !== "rejected")
    rows.push(fact("entered", tx.added_us ? dateOf(tx.added_us) : tx.entry_time ? `${dateOf(1e6 * tx.entry_time)}, by the node's word` : "before this began"));
  if (tx.left_us) rows.push(fact("left", dateOf(tx.left_us)));
  if (tx.waited !== null) rows.push(fact("waited", duration(tx.waited)));
  if (tx.height !== null) rows.push(fact(tx.state === "confirmed" ? "confirmed in" : "left with", blockLink(tx.height, tx.block)));
  if (tx.replaced_by) rows.push(fact("replaced by", link(tx.replaced_by)));
  if (tx.replaced_by_package) rows.push(fact("replaced by package", h("span", { class: "id" }, abbreviated(tx.replaced_by_package, 12))));
  if (tx.replaces.length) rows.push(fact("replaces", ...tx.replaces.slice(0, 10).flatMap((txid, i) => [i ? ", " : "", link(txid)]),
    tx.replaces.length > 10 ? ` and ${count(tx.replaces.length - 10)} more` : ""));
  return h("dl", { class: "facts" }, ...rows);
}

function entry({ t, what, ...more }) {
  const words = {
    added: () => ["Seen: entered the mempool with ", amount(more.fee), ` for ${vsize(more.vsize)}`],
    replaced: () => ["Replaced by ", more.package ? h("span", { class: "id" }, `the package ${abbreviated(more.by, 12)}`) : link(more.by)],
    replaces: () => ["Drove out ", link(more.txid)],
    rejected: () => ["Rejected: ", more.reason || "no reason given"],
    removed: () => {
      const state = STATE_OF_REASON[more.reason];
      if (state === "confirmed") return [more.height === null ? "Confirmed in a block" : ["Confirmed in ", blockLink(more.height)], more.waited !== null ? ` after ${duration(more.waited)}` : ""].flat();
      if (state === "conflicted") return ["Left: a block has a transaction that conflicts with it"];
      return [`Left: ${state ? STATES[state] : more.reason ?? "reason unreadable"}`];
    },
  }[what]?.() ?? [what];
  return h("li", {}, h("time", {}, dateOf(t)), h("p", {}, ...words));
}

function headline(tx) {
  if (tx.state === "confirmed") return tx.height === null ? "Confirmed" : `Confirmed in block ${count(tx.height)}`;
  const words = STATES[tx.state];
  return words[0].toUpperCase() + words.slice(1);
}

export function transactionView(store, feed, txid) {
  const badge = h("span", { class: "badge large", role: "status" }, "Looking…");
  const copied = h("span", { class: "hint", role: "status" });
  const copy = h("button", { type: "button", class: "quiet", onclick: async () => {
    try {
      await navigator.clipboard.writeText(txid);
      copied.textContent = "copied";
    } catch {
      copied.textContent = "select it instead";
    }
  } }, "Copy");
  const rest = h("div", { class: "stack" });
  const element = h("div", { class: "detail" }, h("h1", {}, "Transaction"), h("p", { class: "id whole" }, txid), h("p", {}, badge, " ", copy, " ", copied), rest);
  const tree = treeCard(store, txid);
  let shown = "";
  let asked = 0;
  let told = false;

  function show(tx) {
    const version = JSON.stringify(tx);
    if (version === shown) return;
    shown = version;
    if (!tx) {
      setText(badge, "Not known here");
      badge.dataset.tone = "plain";
      rest.replaceChildren(h("p", { class: "empty" }, "This transaction was not seen since the explorer's memory begins, or it was forgotten since."));
      return;
    }
    setText(badge, headline(tx));
    badge.dataset.tone = TONES[tx.state] ?? "plain";
    if (tx.tree) tree.update(tx.tree);
    rest.replaceChildren(h("section", { class: "card" }, facts(tx)),
      h("section", { class: "card" }, h("header", {}, h("h2", {}, "History")),
        tx.history.length ? h("ol", { class: "history" }, ...tx.history.map(entry)) : h("p", { class: "hint" }, "It was there before the explorer began.")),
      ...(tx.tree ? [tree] : []));
  }

  element.update = async () => {
    if (performance.now() - asked < AGAIN && told) return;
    asked = performance.now();
    try {
      told = true;
      show((await feed.ask({ op: "transaction", txid })).transaction);
    } catch (error) {
      told = false;
      if (!shown) setText(badge, error.message);
    }
  };
  return element;
}

export function searchView(store, feed, text) {
  const list = h("div", { class: "stack" });
  const state = h("p", { class: "lead", role: "status" }, "Looking…");
  const element = h("div", { class: "detail" }, h("h1", {}, "Search"), state, list);
  let done = false;
  element.update = async () => {
    if (done) return;
    done = true;
    try {
      const { search } = await feed.ask({ op: "search", text });
      const only = search.transactions.length === 1 && !search.block ? search.transactions[0].txid : null;
      if (search.block && !search.transactions.length) location.replace(`#/block/${search.block.hash ?? search.block.height}`);
      else if (only) location.replace(`#/tx/${only}`);
      setText(state, search.transactions.length || search.block ? `What begins with ${text}` : `Nothing that begins with “${text}” was seen here. Give at least four digits of a transaction id, or a block's height or hash.`);
      list.replaceChildren(h("ul", { class: "results" }, ...(search.block ? [h("li", {}, blockLink(search.block.height, search.block.hash))] : []),
        ...search.transactions.map(({ txid, state: word }) => h("li", {}, h("a", { class: "id", href: `#/tx/${txid}` }, txid), " ", h("span", { class: "badge", "data-tone": TONES[word] ?? "plain" }, STATES[word])))));
    } catch (error) {
      done = false;
      setText(state, error.message);
    }
  };
  return element;
}
