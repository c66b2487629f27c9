// The stream's health in one line.
import { h, keyed, setAttribute, setText } from "./dom.js";
import { ago, count, duration, timeOf } from "./format.js";

function chip() {
  const label = h("span", { class: "label" });
  const value = h("b");
  const element = h("span", { class: "chip" }, value, label);
  element.update = ({ tone, text, name, title }) => {
    setAttribute(element, "data-tone", tone ?? "plain");
    setText(value, text);
    setText(label, name);
    setAttribute(element, "title", title ?? "");
  };
  return element;
}

function beat(store) {
  const { health } = store;
  if (!store.connected) return { tone: "bad", text: "offline", name: "the explorer's server is out of reach; trying again" };
  if (!health.node) return { tone: "warn", text: "waiting", name: "no coretapd yet" };
  const quiet = health.beat_us === null ? Infinity : store.now - health.beat_us / 1e6;
  if (health.silent.low || quiet > 4) return { tone: "bad", text: "silent", name: `coretapd of ${health.node}, last heard ${ago(quiet)}` };
  if (health.catching_up) return { tone: "warn", text: "catching up", name: `${count(health.backlog)} events of the past` };
  return { tone: "good", text: "live", name: `${health.node}${health.core ? `, Core ${health.core}` : ""}${health.recorded ? ", a recording" : ""}` };
}

function pool({ mempool, now_us, lost, gone }) {
  if (mempool.exact && mempool.synced) return { tone: "good", text: "exact", name: "mempool", title: "compared with the node's own list, then every change" };
  if (mempool.exact) return { tone: "warn", text: "resyncing", name: mempool.resyncing ?? "asking the node for its mempool" };
  const since = mempool.since_us === null ? null : mempool.since_us / 1e6;
  const long = since !== null && now_us / 1e6 - since > 86400 ? `${duration(now_us / 1e6 - since)} ago` : since !== null && timeOf(since);
  return { tone: lost || gone ? "warn" : "plain", text: "as seen", name: since === null ? "mempool: nothing yet" : `mempool since ${long}`,
    title: "Without the node's RPC the mempool is what was seen enter; what was there before is missing, and what left while events were lost is still counted" };
}

function chips(store) {
  const { health } = store;
  const all = [{ id: "beat", ...beat(store) }];
  if (!health) return all;
  all.push({ id: "pool", ...pool(health) });
  all.push({ id: "lost", tone: health.lost ? "bad" : "good", text: count(health.lost), name: "lost", title: "firings that coretapd itself could not get" });
  all.push({ id: "gone", tone: health.gone ? "bad" : "good", text: count(health.gone), name: "missed", title: "firings that did not arrive here, and replay has them no more" });
  all.push({ id: "replayed", text: count(health.replayed), name: "replayed",
    title: `did not arrive at first and were fetched; ${count(health.backlog)} more were read at the start` });
  if (health.silent.high && !health.silent.low) all.push({ id: "high", tone: "warn", text: "silent", name: "messages", title: "nothing comes from coretapd's socket for frequent events" });
  if (health.replay && health.replay !== "ok") all.push({ id: "journal", tone: "warn", text: health.replay, name: "journal" });
  if (health.runs) all.push({ id: "runs", tone: "warn", text: count(health.runs), name: health.runs === 1 ? "break" : "breaks", title: "the numbering began anew: what happened between is unknown" });
  if (health.malformed) all.push({ id: "malformed", tone: "bad", text: count(health.malformed), name: "malformed" });
  return all;
}

export function strip(store, container) {
  const line = h("div", { class: "chips", role: "status" });
  const list = h("ol", { class: "notices" });
  const details = h("details", {}, h("summary", {}, "Notices"), list);
  container.append(line, details);
  return () => {
    keyed(line, chips(store), ({ id }) => id, chip);
    const notices = store.health?.notices ?? [];
    details.hidden = !notices.length;
    if (!details.open) return;
    keyed(list, notices, ({ t, kind, text }) => `${t} ${kind} ${text}`, ({ t, text }) =>
      h("li", {}, h("time", {}, timeOf(t / 1e6)), " ", text));
  };
}
