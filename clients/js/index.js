// Subscribe to coretapd, the tap on the tracepoints of a Bitcoin Core node.
export { CATALOGUE } from "./catalogue.js";
export { Event, Notice, Status, hex, toJson } from "./src/events.js";
export { FEE_RATES, Mempool, Transaction } from "./src/mempool.js";
export { RPC, RPCError } from "./src/rpc.js";
export { DEFAULT_ADDRESS, Subscriber, subscribe } from "./src/subscriber.js";
export { WireError } from "./src/wire.js";
