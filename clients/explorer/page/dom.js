// Elements. Whatever comes from the stream becomes text, never markup.

// What would reorder or hide the text beside it is shown as it is written in JSON.
const UNSEEN = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

function plain(text) {
  return text.replace(UNSEEN, (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [property, inner] of Object.entries(value)) element.style.setProperty(property, inner);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined).map((child) => (typeof child === "string" ? plain(child) : child)));
  return element;
}

export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Sets a text only where it is another one: a selection and a screen reader are left alone. */
export function setText(element, text) {
  const words = plain(`${text}`);
  if (element.textContent !== words) element.textContent = words;
}

export function setAttribute(element, name, value) {
  if (element.getAttribute(name) !== `${value}`) element.setAttribute(name, value);
}

/** Gives a container one child for each item, in order, and keeps those that it has. make(item) returns an
 * element with a method update(item). */
export function keyed(container, items, keyOf, make) {
  const known = (container.known ??= new Map());
  const wanted = new Set();
  let place = container.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    wanted.add(key);
    let child = known.get(key);
    if (!child) known.set(key, (child = make(item)));
    child.update?.(item);
    if (child === place) place = place.nextElementSibling;
    else container.insertBefore(child, place);
  }
  for (const [key, child] of known) {
    if (wanted.has(key)) continue;
    known.delete(key);
    child.remove();
  }
}

/** A choice of few, as radio buttons. options: [[value, label], …] */
export function choice(name, legend, options, chosen, changed) {
  return h("fieldset", { class: "choice" }, h("legend", { class: "unseen" }, legend), ...options.map(([value, label]) =>
    h("label", {}, h("input", { type: "radio", name, value, checked: value === chosen, onchange: () => changed(value) }), h("span", {}, label))));
}

/** Something that may be wider than the screen: it scrolls, from the keyboard too. */
export function wide(label, ...children) {
  return h("div", { class: "wide", role: "region", "aria-label": label, tabindex: "0" }, ...children);
}
