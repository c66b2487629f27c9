// A mirror as a process. Reads the ids of rejected transactions, one a line, and answers with the mempool as
// it was when that one was rejected; an empty line: with what verify() says.
import { once } from "node:events";
import { createInterface } from "node:readline";

import { Mempool, RPC, hex } from "../index.js";

const [address, url, cookie] = process.argv.slice(2);
const pool = new Mempool({ address, rpc: new RPC({ url, cookie }) });
const rejected = new Map(); // by id: the mempool then
pool.on("event", ({ topic, txid }) => {
  if (topic === "mempool.rejected")
    rejected.set(hex(txid), [...pool.transactions.values()].map((tx) => [tx.txid, tx.vsize, tx.fee]));
});
pool.on("notice", (notice) => process.stderr.write(`${notice}\n`));
await pool.ready();
console.log("ready");
for await (const line of createInterface({ input: process.stdin })) {
  if (!line) {
    console.log(JSON.stringify({ ...await pool.verify(), syncs: pool.syncs, left: pool.left.size }));
    continue;
  }
  while (!rejected.has(line)) await once(pool, "event");
  console.log(JSON.stringify(rejected.get(line)));
  rejected.clear();
}
pool.close();
