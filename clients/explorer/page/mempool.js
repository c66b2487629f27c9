// The first view: the mempool now and over time, by fee rate, and what comes and goes.
import { areaChart } from "./area.js";
import { blockCard } from "./blocks.js";
import { choice, h, keyed, s, setAttribute, setText } from "./dom.js";
import { ago, amount, count, duration, feeRate, perSecond, several, vsize } from "./format.js";

const SHOWN_BLOCKS = 8;
const BLOCK_VSIZE = 1_000_000;

const bandColor = (i) => `var(--band-${i})`;

function bandName(bounds, i) {
  const upper = bounds[i + 1];
  return upper === undefined ? `${bounds[i]}+` : `${bounds[i]}–${upper}`;
}

function figure(name) {
  const value = h("dd", {}, "–");
  const more = h("dd", { class: "more" });
  const element = h("div", { class: "figure" }, h("dt", {}, name), value, more);
  element.update = (text, small = "") => {
    setText(value, text);
    setText(more, small);
  };
  return element;
}

function figures(store) {
  const [size, bytes, fees, flow, block] = ["Transactions", "Size", "Fees", "Arriving", "Last block"].map(figure);
  const element = h("dl", { class: "figures" }, size, bytes, fees, flow, block);
  element.update = () => {
    const { now, seconds } = store.mempool;
    const latest = seconds.slice(-10);
    const latestBlock = store.blockList[0];
    size.update(count(now.count), now.unknown ? `${count(now.unknown)} of unknown fee` : "");
    bytes.update(vsize(now.vsize), now.vsize ? `${feeRate(now.vsize / BLOCK_VSIZE)} blocks' worth` : "");
    fees.update(amount(now.fees), now.vsize ? `${feeRate(now.fees / now.vsize)} sat/vB on average` : "");
    flow.update(perSecond(latest.reduce((sum, point) => sum + point.flow[0], 0) / (latest.length || 1)), "over ten seconds");
    if (latestBlock) block.update(count(latestBlock.height), ago(store.now - latestBlock.time_us / 1e6));
    else block.update("–", "none seen yet");
  };
  return element;
}

const METRICS = {
  size: { name: "Size by fee rate", format: vsize, of: (point) => point.vsize },
  count: { name: "Transactions", format: count, of: (point) => point.count },
  fees: { name: "Fees", format: amount, of: (point) => point.fees },
};
const RANGES = { seconds: ["5 minutes", 300, 1], minutes: ["6 hours", 360 * 60, 60] };

function chart(store) {
  let metric = "size";
  let range = "seconds";
  const area = areaChart();
  const legend = h("ul", { class: "legend", "aria-hidden": "true" });
  const element = h("section", { class: "card chart", "aria-labelledby": "chart-title" },
    h("header", {}, h("h2", { id: "chart-title" }, "Mempool over time"),
      choice("metric", "What is drawn", Object.entries(METRICS).map(([key, { name }]) => [key, name]), metric, (value) => {
        metric = value;
        element.update();
      }),
      choice("range", "How far back", Object.entries(RANGES).map(([key, [name]]) => [key, name]), range, (value) => {
        range = value;
        element.update();
      })),
    area, legend);
  element.update = () => {
    const { bounds, now, [range]: kept } = store.mempool;
    const [, long, step] = RANGES[range];
    const to = Math.max(store.mempool.seconds.at(-1)?.t ?? store.now, kept.at(-1)?.t ?? 0);
    const points = kept.filter(({ t }) => t >= to - long);
    // A young chart takes the whole width, but not a few seconds.
    const from = Math.max(to - long, Math.min(points[0]?.t ?? to, to - 60 * step));
    const last = store.mempool.seconds.at(-1);
    if (step > 1 && last) points.push({ ...last, flow: [] });
    const { format, of, name } = METRICS[metric];
    const layers = metric === "size"
      ? bounds.map((_, i) => ({ color: bandColor(i), value: (point) => point.bands[i] }))
      : [{ color: "var(--accent)", value: of }];
    area.update({ points, from, to, layers, format,
      label: `${name}, ${RANGES[range][0]}: now ${several(now.count, "transaction")}, ${vsize(now.vsize)}, ${amount(now.fees)}. Arrow keys move through time.`,
      describe: (point) => `${several(point.count, "transaction")}  ${vsize(point.vsize)}  ${amount(point.fees)}`,
      marks: [...store.blocks.values()].map(({ time_us }) => ({ t: time_us / 1e6 })) });
    legend.hidden = metric !== "size";
    keyed(legend, bounds.map((_, i) => i), (i) => i, (i) =>
      h("li", {}, h("i", { style: { background: bandColor(i) } }), bandName(bounds, i)));
  };
  return element;
}

function histogram(store) {
  const body = h("tbody");
  const element = h("section", { class: "card bands", "aria-labelledby": "bands-title" },
    h("header", {}, h("h2", { id: "bands-title" }, "By fee rate")),
    h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "sat/vB"), h("th", { scope: "col", class: "unseen-cell" }, h("span", { class: "unseen" }, "share")),
      h("th", { scope: "col", class: "number" }, "size"), h("th", { scope: "col", class: "number" }, "count"))), body));
  element.update = () => {
    const { bounds, now } = store.mempool;
    const most = Math.max(1, ...now.bands);
    keyed(body, bounds.map((_, i) => i).reverse(), (i) => i, (i) => {
      const bar = h("i", { class: "bar", style: { background: bandColor(i) } });
      const size = h("td", { class: "number" });
      const number = h("td", { class: "number" });
      const row = h("tr", {}, h("th", { scope: "row" }, bandName(bounds, i)), h("td", { class: "track" }, bar), size, number);
      row.update = () => {
        const { bands, counts } = store.mempool.now;
        bar.style.setProperty("width", `${(100 * bands[i] / row.most).toFixed(2)}%`);
        setText(size, bands[i] ? vsize(bands[i]) : "–");
        setText(number, counts[i] ? count(counts[i]) : "–");
      };
      row.most = most;
      return row;
    });
    for (const row of body.children) {
      row.most = most;
      row.update();
    }
  };
  return element;
}

const LANES = [["Arrived", 0, "in"], ["Confirmed", "block", "good"], ["Conflicted", "conflict", "bad"], ["Replaced", "replaced", "warn"],
  ["Expired", "expiry", "out"], ["Dropped (full)", "sizelimit", "out"], ["Reorganised", "reorg", "out"], ["Rejected", 1, "out"]];
const LANE_SECONDS = 150;
const LANE_HEIGHT = 26;

/** A thousand is to be seen beside one: heights grow with the logarithm. */
const laneHeight = (n, most) => (n ? Math.max(2, LANE_HEIGHT * Math.log2(1 + n) / Math.log2(1 + Math.max(most, 15))) : 0);

function lane([name, kind, tone], indexOf) {
  const path = s("path", { class: `lane-${tone}` });
  const latest = h("td", { class: "number last-second" });
  const total = h("td", { class: "number" });
  const row = h("tr", {}, h("th", { scope: "row" }, name),
    h("td", { class: "track" }, s("svg", { viewBox: `0 0 ${LANE_SECONDS} ${LANE_HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" }, path)), latest, total);
  row.draw = (seconds, most) => {
    const i = indexOf(kind);
    const shown = seconds.slice(-LANE_SECONDS);
    const end = shown.at(-1)?.t ?? 0;
    setAttribute(path, "d", shown.filter(({ flow }) => flow[i]).map(({ t, flow }) =>
      `M${LANE_SECONDS - 1 - (end - t)} ${LANE_HEIGHT}v-${laneHeight(flow[i], most).toFixed(1)}h0.8V${LANE_HEIGHT}z`).join(""));
    setText(latest, count(shown.at(-1)?.flow[i] ?? 0));
    setText(total, count(seconds.reduce((sum, { flow }) => sum + flow[i], 0)));
  };
  return row;
}

function flow(store) {
  const body = h("tbody");
  const element = h("section", { class: "card flow", "aria-labelledby": "flow-title" },
    h("header", {}, h("h2", { id: "flow-title" }, "Arrivals and departures"), h("p", { class: "hint" }, `per second, the last ${duration(LANE_SECONDS)}; heights are logarithmic`)),
    h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "what"), h("th", { scope: "col" }, h("span", { class: "unseen" }, "over time")),
      h("th", { scope: "col", class: "number last-second" }, "last second"), h("th", { scope: "col", class: "number" }, "5 minutes"))), body));
  const lanes = LANES.map((parts) => lane(parts, (kind) => (typeof kind === "number" ? kind : 2 + store.mempool.reasons.indexOf(kind))));
  body.append(...lanes);
  element.update = () => {
    const { seconds } = store.mempool;
    const most = Math.max(0, ...seconds.map(({ flow: kinds }) => Math.max(...kinds)));
    for (const row of lanes) row.draw(seconds, most);
  };
  return element;
}

export function mempoolView(store) {
  const parts = [figures(store), chart(store), histogram(store), flow(store)];
  const cards = h("div", { class: "blocks" });
  const none = h("p", { class: "empty" }, "No block since this began. The next one appears here as its transactions leave the mempool.");
  const latest = h("section", { class: "latest", "aria-labelledby": "latest-title" },
    h("header", { class: "plain" }, h("h2", { id: "latest-title" }, "Latest blocks"), h("a", { href: "#/blocks" }, "All blocks")), none, cards);
  const waiting = h("p", { class: "empty" }, "Waiting for the explorer's server…");
  const element = h("div", { class: "overview" }, h("h1", { class: "unseen" }, "Mempool"), waiting, ...parts.slice(0, 3), latest, parts[3]);
  element.update = (topics) => {
    const ready = store.mempool !== null;
    waiting.hidden = ready;
    for (const part of [...parts, latest]) part.hidden = !ready;
    if (!ready) return;
    if (topics.has("mempool") || topics.has("blocks")) for (const part of parts) part.update();
    const blocks = store.blockList.slice(0, SHOWN_BLOCKS);
    none.hidden = blocks.length > 0;
    keyed(cards, blocks, ({ key }) => key, () => blockCard(store));
  };
  return element;
}
