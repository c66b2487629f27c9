// Takes events from a position, and tells its parent the number of each.
import { subscribe } from "../index.js";

const [address, position] = process.argv.slice(2);
for await (const item of subscribe("mempool.", { address, position }))
  if (item.kind === "event") process.send(item.seq);
