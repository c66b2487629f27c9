// What a program in TypeScript relies on. It is compiled by test_javascript.py, and never run.
import { Mempool, RPC, hex, subscribe, type Item } from "coretap";

function tell(item: Item): string | null {
  switch (item.kind) {
    case "event":
      if (item.topic === "mempool.removed") {
        const rate: number | undefined = item.fee && item.vsize ? item.fee / item.vsize : undefined;
        return item.height ? hex(item.txid) : `${item.reason} ${rate}`;
      }
      return item.topic === "block.evictions" ? `${item.txids?.length} ${item.conflicts?.after[0]}` : null;
    case "gap":
    case "lost":
      return `${item.count} of ${item.topic} from ${item.first}`;
    case "no_replay":
      return item.reason;
    case "status":
      return item.topic;
    default:
      return item.json();
  }
}

export async function main() {
  const tap = subscribe("mempool.", { since: new Date(0), memory: 1 << 20 });
  const item = await tap.next(1000);
  if (item) console.log(tell(item));
  for await (const { kind } of subscribe(["utxocache.add"], { bigint: true })) console.log(kind);
  const text: string = hex(Buffer.alloc(32));
  const pool = await new Mempool({ rpc: new RPC({ cookie: "cookie" }) }).ready();
  pool.on("notice", (notice) => console.log(notice.kind, text, pool.get(text)?.fee_rate, pool.histogram()[0].count));
  // @ts-expect-error: no such topic's field
  if (item?.kind === "event" && item.topic === "mempool.added") console.log(item.reason);
  // @ts-expect-error: no such option
  subscribe("mempool.", { adress: "tcp://127.0.0.1:1" });
}
