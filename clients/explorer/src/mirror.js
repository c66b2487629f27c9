// The mempool: the node's own where RPC is there to ask, else what was seen.
import { Mempool, RPC } from "coretap";

const MAX_SEEN = 600_000; // transactions, where nobody says which ones the node has dropped unseen

/** A mirror of the mempool. Without rpc its snapshots are what it has itself: it begins with nothing, and
 * keeps what it knows when continuity is lost. */
export function openMirror({ address, curveServer, curveSecret, rpc, since, history }) {
  const common = { address, curveServer, curveSecret, since, history, topics: ["net.", "block.evictions"] };
  if (rpc) return new Mempool({ ...common, rpc: new RPC(rpc) });
  const seen = new Mempool({ ...common, verbose: false, rpc: { call: async () => [...seen.transactions.keys()] } });
  return seen;
}

/** The oldest go where there are too many; returns them. */
export function boundMirror(pool) {
  const dropped = [];
  for (const tx of pool.transactions.values()) {
    if (pool.transactions.size - dropped.length <= MAX_SEEN) break;
    dropped.push(tx);
  }
  for (const tx of dropped) {
    pool.transactions.delete(tx.txid);
    pool.vsize -= tx.vsize ?? 0;
  }
  return dropped;
}
