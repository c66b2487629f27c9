// Replacement chains as trees: the oldest at the left, what stands in their place at the right.
import { h, keyed, s, setAttribute, wide } from "./dom.js";
import { STATES, STATE_OF_REASON, abbreviated, ago, amount, count, feeRate, rateOf } from "./format.js";

const NODE = { width: 148, height: 40, across: 44, down: 12 };
const MAX_DEPTH = 40;

function stateOf(node) {
  return node.left ? STATE_OF_REASON[node.left.reason] ?? "gone" : "mempool";
}

/** Places each node: leaves under each other, everything else beside the middle of what it drove out. */
function layout(tree) {
  const victims = Map.groupBy?.(tree.nodes, ({ by }) => by) ?? group(tree.nodes);
  const placed = [];
  let line = 0;
  let deepest = 0;
  function place(node, depth) {
    deepest = Math.max(deepest, depth);
    const below = depth < MAX_DEPTH ? (victims.get(node.id) ?? []).map((victim) => place(victim, depth + 1)) : [];
    const y = below.length ? (below[0].y + below.at(-1).y) / 2 : line++;
    const spot = { node, depth, y, below };
    placed.push(spot);
    return spot;
  }
  place(tree.nodes.find(({ id }) => id === tree.root) ?? tree.nodes[0], 0);
  for (const spot of placed) {
    spot.x = (deepest - spot.depth) * (NODE.width + NODE.across);
    spot.top = spot.y * (NODE.height + NODE.down);
  }
  return { placed, width: (deepest + 1) * (NODE.width + NODE.across) - NODE.across, height: line * (NODE.height + NODE.down) - NODE.down };
}

function group(nodes) {
  const all = new Map();
  for (const node of nodes) all.set(node.by, [...(all.get(node.by) ?? []), node]);
  return all;
}

function draw(tree, here) {
  const { placed, width, height } = layout(tree);
  const links = placed.flatMap(({ below, x, top }) => below.map((from) => {
    const [x1, y1, x2, y2] = [from.x + NODE.width, from.top + NODE.height / 2, x, top + NODE.height / 2];
    return s("path", { class: "link", d: `M${x1} ${y1}C${(x1 + x2) / 2} ${y1} ${(x1 + x2) / 2} ${y2} ${x2} ${y2}` });
  }));
  const nodes = placed.map(({ node, x, top }) => {
    const state = stateOf(node);
    const name = abbreviated(node.id, 8);
    const rate = `${feeRate(rateOf(node))} sat/vB${node.package ? ", package" : ""}`;
    const box = [s("title", {}, `${node.id}: ${STATES[state]}`), s("rect", { width: NODE.width, height: NODE.height, rx: 8 }),
      s("text", {}, s("tspan", { x: 12, y: 17, class: "id" }, name), " ", s("tspan", { x: 12, y: 32, class: "rate" }, rate))];
    const attributes = { class: `node${node.id === here ? " here" : ""}`, "data-state": state, transform: `translate(${x} ${top})` };
    return node.package ? s("g", attributes, ...box) : s("a", { ...attributes, href: `#/tx/${node.id}`, "aria-label": `${name} ${rate}, ${STATES[state]}` }, ...box);
  });
  return s("svg", { class: "tree", width: width + 4, height: height + 4, viewBox: `-2 -2 ${width + 4} ${height + 4}`, role: "group", "aria-label": "Which replaced which" }, ...links, ...nodes);
}

function summary(tree) {
  const root = tree.nodes.find(({ id }) => id === tree.root);
  const victims = tree.nodes.length - 1 + tree.trimmed;
  const rates = tree.nodes.map(rateOf).filter(Number.isFinite);
  const what = root?.package ? "a package" : "one transaction";
  return { root, text: `${count(victims)} replaced by ${what}`,
    rates: rates.length ? `${feeRate(Math.min(...rates))} → ${feeRate(rateOf(root))} sat/vB` : "", fee: amount(root?.fee) };
}

/** here: the transaction whose page it is on. */
export function treeCard(store, here) {
  const title = h("h2");
  const facts = h("p", { class: "hint" });
  const badge = h("span", { class: "badge" });
  const age = h("time", { class: "age" });
  const space = wide("Replacement tree");
  const trimmed = h("p", { class: "hint" });
  const element = h("section", { class: "card replacement" }, h("header", {}, title, badge, age), facts, space, trimmed);
  let drawn = "";
  element.update = (tree) => {
    const { root, text, rates, fee } = summary(tree);
    const state = stateOf(root ?? { left: { reason: "" } });
    age.textContent = ago(store.now - tree.t / 1e6);
    const version = JSON.stringify(tree);
    if (version === drawn) return;
    drawn = version;
    title.textContent = text;
    setAttribute(space, "aria-label", `Tree of ${abbreviated(tree.root)}`);
    facts.textContent = [rates, fee].filter(Boolean).join("  ·  ");
    badge.textContent = STATES[state];
    setAttribute(badge, "data-tone", { mempool: "info", confirmed: "good" }[state] ?? "plain");
    const focused = space.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    space.replaceChildren(draw(tree, here));
    if (focused) [...space.querySelectorAll("a")].find((link) => link.getAttribute("href") === focused)?.focus();
    requestAnimationFrame(() => (space.scrollLeft = space.scrollWidth)); // once it has a width
    trimmed.hidden = !tree.trimmed;
    trimmed.textContent = `${count(tree.trimmed)} earlier ones are not shown.`;
  };
  return element;
}

export function replacementsView(store) {
  const list = h("div", { class: "stack" });
  const none = h("p", { class: "empty" }, "No replacement seen yet. When a transaction drives others out, the whole chain is drawn here.");
  const element = h("div", {}, h("h1", {}, "Replacements"),
    h("p", { class: "lead" }, "Which transaction drove out which: the oldest at the left, the one that stands at the right."), none, list);
  element.update = () => {
    none.hidden = store.trees.size > 0;
    keyed(list, store.treeList.slice(0, 30), ({ key }) => key, () => treeCard(store));
  };
  return element;
}
