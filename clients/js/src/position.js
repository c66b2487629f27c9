// Where a subscriber stands, in a file: one cursor for each socket.
import { closeSync, openSync, readFileSync, renameSync, statSync, writeSync } from "node:fs";

import { Filter, Node } from "./stream.js";

const PAGE = 4096;
const LARGEST = 1 << 24; // of a file that is read; far more than any position has

/** A file that says at any moment what the application has taken, also after kill -9.
 *
 * It is rewritten in place by one write within one page, which a kill cannot divide; when it grows beyond
 * that, by a new file that is renamed over it. The Python client reads and writes the same. */
export class Position {
  #path;
  #sockets = {};
  #fd = -1;
  #written = ""; // labels and topics are ASCII, and so is this
  #page = Buffer.alloc(PAGE);

  constructor(path) {
    if (typeof path !== "string" || !path) throw new TypeError(`position: ${path}: give the path of a file`);
    this.#path = path;
    const file = statSync(path, { throwIfNoEntry: false });
    if (!file) return;
    // A device or a pipe may have no end, or never open.
    if (!file.isFile()) throw new Error(`${path}: not a regular file, as a position is`);
    const text = file.size <= LARGEST ? readFileSync(path, "utf8") : "";
    try {
      const { version, sockets } = JSON.parse(text);
      if (version !== 1 || Object.getPrototypeOf(sockets) !== Object.prototype ||
        !Object.values(sockets).every(isValid)) throw new Error();
      this.#sockets = sockets;
    } catch {
      throw new Error(`${path}: not a position; remove it to join at the present`);
    }
  }

  /** The cursors with which a stream goes on. */
  nodes(socket) {
    return new Map(Object.entries(this.#sockets[socket] ?? {})
      .map(([label, saved]) => [label, Node.restore(label, saved)]));
  }

  save(socket, nodes) {
    this.#sockets[socket] = Object.fromEntries([...nodes].map(([label, node]) => [label, node.save()]));
    const text = JSON.stringify({ version: 1, sockets: this.#sockets });
    if (text === this.#written) return;
    // A page leaves the end of a longer one as it was.
    if (this.#fd < 0 || Math.max(Buffer.byteLength(text), Buffer.byteLength(this.#written)) > PAGE) {
      this.#replace(Buffer.from(text.padEnd(PAGE)));
    } else {
      this.#page.fill(" ", this.#page.utf8Write(text));
      writeSync(this.#fd, this.#page, 0, PAGE, 0);
    }
    this.#written = text;
  }

  #replace(data) {
    this.close();
    const fd = openSync(`${this.#path}.new`, "w+", 0o644);
    try {
      for (let at = 0; at < data.length;) at += writeSync(fd, data, at, data.length - at, at);
      renameSync(`${this.#path}.new`, this.#path);
    } catch (error) {
      closeSync(fd);
      throw error;
    }
    this.#fd = fd;
  }

  close() {
    if (this.#fd >= 0) closeSync(this.#fd);
    this.#fd = -1;
  }
}

/** Requests have no room for others. */
const isNumber = (value) => Number.isSafeInteger(value) && value >= 0;

function isValid(nodes) {
  return Object.values(nodes).every(({ run, n, whole, asked = [], topics }) =>
    isNumber(run) && (n === -1 || isNumber(n)) && typeof whole === "boolean" && new Filter(asked) &&
    Object.values(topics).every((pair) => pair.length === 2 && pair.every(isNumber)));
}
