// A chart over time: stacked areas or one line, with a cursor for the pointer and the arrow keys.
import { h, s, setAttribute, setText } from "./dom.js";
import { timeOf } from "./format.js";

const WIDTH = 1000;
const HEIGHT = 300;

/** A round number at or above n. */
export function ceiling(n) {
  if (!(n > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(n));
  return [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].find((step) => step * power >= n) * power;
}

/** { update({ points, from, to, layers, format, label, describe, marks }) }: points have t; layers are
 * [{ color, value(point) }], stacked from the bottom; describe(point) is read out under the cursor. */
export function areaChart() {
  const layers = s("g");
  const marks = s("g", { class: "marks" });
  const grid = s("g", { class: "grid" });
  const cursor = s("line", { class: "cursor", y1: 0, y2: HEIGHT, visibility: "hidden" });
  const svg = s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" }, layers, grid, marks, cursor);
  const yLabels = h("div", { class: "y" });
  const xLabels = h("div", { class: "x" });
  const readout = h("output", { class: "readout" });
  const plot = h("div", { class: "plot", tabindex: "0", role: "img" }, svg, yLabels);
  const element = h("figure", { class: "area" }, readout, plot, xLabels);
  let data = null;
  let at = null; // time under the cursor

  const place = (t) => ((t - data.from) / (data.to - data.from)) * WIDTH;

  function nearest(t) {
    return data.points.reduce((best, point) => (!best || Math.abs(point.t - t) < Math.abs(best.t - t) ? point : best), null);
  }

  function point() {
    const chosen = data?.points.length ? (at === null ? data.points.at(-1) : nearest(at)) : null;
    setAttribute(cursor, "visibility", at === null || !chosen ? "hidden" : "visible");
    if (!chosen) {
      setText(readout, "");
      return;
    }
    for (const name of ["x1", "x2"]) setAttribute(cursor, name, place(chosen.t).toFixed(1));
    setText(readout, `${timeOf(chosen.t)}  ${data.describe(chosen)}`);
  }

  plot.addEventListener("pointermove", ({ clientX }) => {
    if (!data) return;
    const { left, width } = plot.getBoundingClientRect();
    at = data.from + ((clientX - left) / width) * (data.to - data.from);
    point();
  });
  plot.addEventListener("pointerleave", () => {
    at = null;
    point();
  });
  plot.addEventListener("blur", () => {
    at = null;
    point();
  });
  plot.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity }[event.key];
    if (!step || !data?.points.length) return;
    event.preventDefault();
    const here = data.points.indexOf(at === null ? data.points.at(-1) : nearest(at));
    at = data.points[Math.min(data.points.length - 1, Math.max(0, here + step))].t;
    point();
  });

  function draw() {
    const { points, layers: kinds } = data;
    const totals = points.map((one) => kinds.reduce((sum, { value }) => sum + value(one), 0));
    const top = ceiling(Math.max(0, ...totals));
    const y = (n) => (HEIGHT - (n / top) * HEIGHT).toFixed(1);
    const xs = points.map(({ t }) => place(t).toFixed(1));
    while (layers.childElementCount > kinds.length) layers.lastElementChild.remove();
    while (layers.childElementCount < kinds.length) layers.append(s("path"));
    const below = points.map(() => 0);
    kinds.forEach((kind, i) => {
      const path = layers.children[i];
      const upper = points.map((one, j) => below[j] + kind.value(one));
      const line = upper.map((n, j) => `${xs[j]} ${y(n)}`);
      const back = below.map((n, j) => `${xs[j]} ${y(n)}`).reverse();
      path.setAttribute("d", points.length ? `M${[...line, ...back].join("L")}Z` : "");
      path.style.setProperty("fill", kind.color);
      upper.forEach((n, j) => (below[j] = n));
    });
    return top;
  }

  function axes(top) {
    const steps = [0.25, 0.5, 0.75, 1];
    grid.replaceChildren(...steps.slice(0, 3).map((part) => s("line", { x1: 0, x2: WIDTH, y1: HEIGHT * (1 - part), y2: HEIGHT * (1 - part) })));
    yLabels.replaceChildren(...steps.map((part) => h("span", { style: { top: `${100 * (1 - part)}%` } }, data.format(top * part))));
    const between = [0, 0.25, 0.5, 0.75, 1];
    xLabels.replaceChildren(...between.map((part) => h("span", {}, timeOf(data.from + part * (data.to - data.from)))));
    marks.replaceChildren(...data.marks.filter(({ t }) => t >= data.from && t <= data.to)
      .map(({ t }) => s("line", { x1: place(t), x2: place(t), y1: 0, y2: HEIGHT })));
  }

  element.update = (next) => {
    data = next;
    axes(draw());
    setAttribute(plot, "aria-label", data.label);
    point();
  };
  return element;
}
