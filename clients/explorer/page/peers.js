// Peers and messages.
import { areaChart } from "./area.js";
import { h, keyed, setText, wide } from "./dom.js";
import { ago, bytes, count, duration, perSecond, several } from "./format.js";

const SHOWN = 150;
const SPAN = 300;

function traffic(store) {
  const area = areaChart();
  const element = h("section", { class: "card", "aria-labelledby": "traffic-title" },
    h("header", {}, h("h2", { id: "traffic-title" }, "Messages per second"), h("ul", { class: "legend" },
      h("li", {}, h("i", { class: "in" }), "received"), h("li", {}, h("i", { class: "out" }), "sent"))), area);
  element.update = () => {
    const { seconds } = store.traffic;
    const to = seconds.at(-1)?.t ?? store.now;
    const latest = seconds.at(-1);
    area.update({ points: seconds, from: to - SPAN, to, format: perSecond, marks: [],
      layers: [{ color: "var(--in)", value: (point) => point.in }, { color: "var(--out)", value: (point) => point.out }],
      label: `Messages per second, 5 minutes: now ${count(latest?.in ?? 0)} received, ${count(latest?.out ?? 0)} sent. Arrow keys move through time.`,
      describe: (point) => `received ${count(point.in)}, ${bytes(point.in_bytes)}  sent ${count(point.out)}, ${bytes(point.out_bytes)}` });
  };
  return element;
}

function types(store) {
  const body = h("tbody");
  const element = h("section", { class: "card", "aria-labelledby": "types-title" },
    h("header", {}, h("h2", { id: "types-title" }, "By type"), h("p", { class: "hint" }, "the last minute")),
    wide("Messages by type", h("table", { class: "list" }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "type"), h("th", { scope: "col", class: "number" }, "received"),
      h("th", { scope: "col", class: "number" }, "sent"), h("th", { scope: "col", class: "number" }, "bytes"), h("th", { scope: "col" }, h("span", { class: "unseen" }, "share")))), body)));
  element.update = () => {
    const most = Math.max(1, ...store.traffic.types.map((type) => type.in + type.out));
    keyed(body, store.traffic.types.slice(0, 20).map((type) => ({ ...type, most })), ({ type }) => type, ({ type }) => {
      const cells = ["in", "out"].map(() => h("td", { class: "number" }));
      const size = h("td", { class: "number" });
      const bar = h("i", { class: "bar" });
      const row = h("tr", {}, h("th", { scope: "row" }, h("code", {}, type || "(empty)")), ...cells, size, h("td", { class: "track" }, bar));
      row.update = (now) => {
        setText(cells[0], count(now.in));
        setText(cells[1], count(now.out));
        setText(size, bytes(now.in_bytes + now.out_bytes));
        bar.style.setProperty("width", `${(100 * (now.in + now.out) / now.most).toFixed(1)}%`);
      };
      return row;
    });
  };
  return element;
}

function peerRow(store) {
  const cells = Array.from({ length: 7 }, (_, i) => h("td", { class: i === 0 || i > 3 ? "number" : "" }));
  const address = h("code");
  const note = h("small", { class: "note" });
  cells[1].append(address, note);
  const row = h("tr", {}, ...cells);
  row.update = (peer) => {
    setText(cells[0], count(peer.id));
    setText(address, peer.addr ?? "unreadable");
    setText(note, peer.note ?? "");
    setText(cells[2], peer.type ?? "–");
    setText(cells[3], peer.network ?? "–");
    setText(cells[4], peer.since_us ? duration(store.now - peer.since_us / 1e6) : "before");
    setText(cells[5], `${count(peer.in)} · ${bytes(peer.in_bytes)}`);
    setText(cells[6], `${count(peer.out)} · ${bytes(peer.out_bytes)}`);
  };
  return row;
}

function connections(store) {
  const body = h("tbody");
  const rest = h("p", { class: "hint" });
  const none = h("p", { class: "empty" }, "No peer yet. They appear as they connect (Core v29 or later) or send messages.");
  const title = h("h2", { id: "peers-title" });
  const table = wide("Peers", h("table", { class: "list" }, h("thead", {}, h("tr", {}, ...["id", "address", "kind", "network", "connected", "received", "sent"].map((word, i) =>
    h("th", { scope: "col", class: i === 0 || i > 3 ? "number" : "" }, word)))), body));
  const element = h("section", { class: "card span", "aria-labelledby": "peers-title" }, h("header", {}, title), none, table, rest);
  element.update = () => {
    const all = [...store.peers.values()].sort((a, b) => a.id - b.id);
    none.hidden = all.length > 0 || !store.loaded.has("peers");
    table.hidden = !all.length;
    setText(title, all.length ? several(all.length, "peer") : "Peers");
    keyed(body, all.slice(0, SHOWN), ({ id }) => id, () => peerRow(store));
    rest.hidden = all.length <= SHOWN;
    setText(rest, `and ${count(all.length - SHOWN)} more`);
  };
  return element;
}

function departures(store) {
  const list = h("ol", { class: "departures" });
  const none = h("p", { class: "hint" }, "None so far.");
  const element = h("section", { class: "card span", "aria-labelledby": "gone-title" }, h("header", {}, h("h2", { id: "gone-title" }, "Connections that ended")), none, list);
  element.update = () => {
    const { gone } = store.traffic;
    none.hidden = gone.length > 0;
    keyed(list, gone, ({ id, t }) => `${id} ${t}`, ({ id, addr, type, network, established, note, t }) => {
      const age = h("time");
      const row = h("li", {}, age, h("code", {}, addr ?? "unreadable"), h("span", {}, `peer ${count(id)}, ${type ?? "?"}, ${network ?? "?"}${established ? `, after ${duration(t / 1e6 - established)}` : ""}`),
        note ? h("small", { class: "note" }, note) : null);
      row.update = () => setText(age, ago(store.now - t / 1e6));
      return row;
    });
  };
  return element;
}

export function peersView(store) {
  const parts = [traffic(store), types(store), connections(store), departures(store)];
  const element = h("div", { class: "peers" }, h("h1", {}, "Peers"), ...parts);
  element.update = () => parts.forEach((part) => part.update());
  return element;
}
