// A listener that throws at the first event. Tells its parent what reached the process, and what came after.
import { Mempool } from "../index.js";

process.on("uncaughtException", ({ message }) => process.send(message));
const pool = new Mempool({ address: process.argv[2], rpc: { call: async () => ({}) } });
pool.on("event", () => {
  if (pool.size === 1) throw new Error("of a listener");
  process.send(pool.size);
});
