// The node's RPC, as little of it as a mirror of the mempool needs.
import { readFileSync } from "node:fs";
import { homedir } from "node:os";

const TIMEOUT = 120_000; // ms; a full mempool takes its time

/** The node could not be asked, or answered with an error. */
export class RPCError extends Error {
  name = "RPCError";
}

/** rpc.call("getrawmempool", true). Either a cookie file (read again for each call: it is new when the
 * node has restarted), or user and password. */
export class RPC {
  #url;
  #cookie;
  #credentials;

  constructor({ url = "http://127.0.0.1:8332", cookie, user, password } = {}) {
    const parts = new URL(url);
    if (parts.protocol !== "http:" && parts.protocol !== "https:")
      throw new TypeError(`${url}: not an address; give http://HOST:PORT`);
    user ??= decodeURIComponent(parts.username);
    password ??= decodeURIComponent(parts.password);
    parts.username = parts.password = "";
    this.#url = parts.href;
    this.#cookie = cookie?.replace(/^~(?=\/)/, homedir());
    this.#credentials = `${user}:${password}`;
  }

  async call(method, ...params) {
    const authorization = `Basic ${Buffer.from(this.#secret()).toString("base64")}`;
    let response, text;
    try {
      response = await fetch(this.#url, {
        method: "POST", headers: { authorization, "content-type": "application/json" },
        body: JSON.stringify({ jsonrpc: "1.0", id: 1, method, params }), signal: AbortSignal.timeout(TIMEOUT),
      });
      text = await response.text();
    } catch (error) {
      throw new RPCError(`${this.#url}: ${error.cause?.message || error.message}`);
    }
    if (response.status === 401) throw new RPCError(`${this.#url}: wrong user, password or cookie`);
    let answer;
    try {
      answer = JSON.parse(text);
    } catch {
      throw new RPCError(`${this.#url}: HTTP ${response.status}`);
    }
    if (answer?.error) throw new RPCError(`${method}: ${answer.error.message ?? JSON.stringify(answer.error)}`);
    return answer?.result;
  }

  #secret() {
    if (!this.#cookie) return this.#credentials;
    try {
      return readFileSync(this.#cookie, "utf8").trim();
    } catch (error) {
      throw new RPCError(`${this.#cookie}: ${error.code}; is the node running?`);
    }
  }
}

/** An amount in BTC as RPC prints it. A double holds every amount that can exist to far less than half a
 * satoshi of what was printed. */
export function satoshi(amount) {
  return Math.round(amount * 1e8);
}
