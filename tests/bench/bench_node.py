"""What coretap costs a real node when a block confirms 5,000 transactions of its mempool, and what
Core's own ZMQ tells of that block. `make bench-node` with BITCOIND set writes NODE.md.

Blocks are connected in turn with coretapd detached, attached with its defaults, and attached with
everything that it has; the node's own log (-debug=bench) says how long each took."""
import argparse
import os
import re
import statistics
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "lib"), os.path.join(HERE, "..", "node"), HERE]

import zmq
from harness import Bridge, Subscriber, wait_until
from regtest import Node, free_ports, spend
from report import Report

MODES = {
    "detached": None,
    "attached, defaults": [],
    "attached, everything": ["--only", "*", "--payload", "full"],
}
CONNECT = re.compile(r"- Connect block: ([\d.]+)ms")


class Sequence:
    """Core's `sequence` notifications with the time of their arrival."""

    def __init__(self, port):
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.SUB)
        self.socket.setsockopt(zmq.RCVHWM, 0)
        self.socket.subscribe(b"sequence")
        self.socket.connect(f"tcp://127.0.0.1:{port}")

    def take(self, seconds):
        """{label: [hashes]} and the arrival of the block."""
        told, arrived, end = {}, None, time.monotonic() + seconds
        while time.monotonic() < end:
            if not self.socket.poll(100):
                continue
            body = self.socket.recv_multipart()[1]
            label = chr(body[32])
            told.setdefault(label, []).append(body[:32].hex())
            if label == "C":
                arrived = time.time()
        return told, arrived

    def close(self):
        self.socket.close(0)
        self.context.term()


def connect_block(node, transactions):
    """Confirms what the mempool holds in one block; returns the milliseconds that it took."""
    coins = node.make_coins(transactions, value=20_000)  # all rounds live on few coinbases
    node.send_all([spend(coin, 1000 + i) for i, coin in enumerate(coins)])
    entries = node.rpc.getrawmempool()
    before = len(CONNECT.findall(node.log()))
    block = node.mine_exactly(entries, submit=False)
    node.rpc.submitblock(block["hex"])
    times = wait_until(lambda: CONNECT.findall(node.log())[before:], 30, "the block")
    return float(times[-1]), entries


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--transactions", type=int, default=5000)
    parser.add_argument("--output", default=os.path.join(HERE, "NODE.md"))
    options = parser.parse_args()
    count = options.transactions
    report = Report(options.output)
    port = free_ports(1)[0]
    costs = {mode: [] for mode in MODES}
    rows, latencies = [], []
    with Node("-nodebug", "-debug=bench", f"-zmqpubsequence=tcp://127.0.0.1:{port}",
              "-zmqpubsequencehwm=0") as node:
        connect_block(node, count)  # warm
        for _ in range(options.rounds):
            for mode, arguments in MODES.items():
                if arguments is None:
                    costs[mode].append(connect_block(node, count)[0])
                    continue
                with Bridge("--pid", node.pid, *arguments, "--journal-low", "384M",
                            "--journal-high", "128M", binary="", sanitized=False) as bridge, \
                        Subscriber(bridge, sockets=("low", "high")) as sub:
                    sub.wait_status()
                    cost, entries = connect_block(node, count)
                    costs[mode].append(cost)
                    wait_until(lambda: any(e["final"] for e in sub.of("block.evictions")[-1:]) and
                               len(sub.of("block.evictions")[-1]["txids"]) == count, 10, "the list")
                    last = sub.of("block.evictions")[-1]
                    assert sorted(t.hex() for t in last["txids"]) == sorted(entries)
                    assert not sub.lost and not sub.gaps
        sequence = Sequence(port)
        with Bridge("--pid", node.pid, binary="", sanitized=False) as bridge, \
                Subscriber(bridge) as sub:
            sub.wait_status()
            for _ in range(options.rounds):
                connected = len(sub.of("validation.block_connected"))
                sequence.take(0.3)
                _, entries = connect_block(node, count)
                told, arrived = sequence.take(1)
                event = sub.of("validation.block_connected")[-1]
                removed = [e for e in sub.of("mempool.removed") if e["reason"] == "block" and
                           e["height"] == event["height"]]
                lists = [e for e in sub.of("block.evictions") if e["height"] == event["height"]]
                assert len(sub.of("validation.block_connected")) > connected
                fired = event["time_us"] / 1e6
                latencies.append((arrived - fired, event.received - fired,
                                  lists[-1].received - removed[-1]["time_us"] / 1e6))
                rows.append((len(set(told.get("R", [])) & set(entries)), len(removed),
                             len(lists[-1]["txids"])))
        sequence.close()
    base = statistics.median(costs["detached"])
    report.write("# A real node", "",
                 f"`make bench-node`: blocks that confirm {count:,} transactions of the mempool, "
                 f"regtest, {options.rounds} rounds in turn, medians. {time.strftime('%Y-%m-%d')}.")
    report.section("Connecting the block")
    report.table(("", "ms", "ratio"),
                 [(mode, f"{statistics.median(times):.1f}",
                   f"{statistics.median(times) / base:.2f}") for mode, times in costs.items()])
    added = statistics.median(costs["attached, defaults"]) - base
    report.write(f"The transactions are as small as can be, without a signature, so such a block connects in a "
                 f"fraction of the time that one of the main network takes. Each fires three events at least, a "
                 f"coin spent, a coin added and its removal: coretap adds {added / count / 3 * 1000:.1f} µs for "
                 "each, with node, coretapd and the test's subscribers on the same cores.")
    report.section("What is told of it", "Latencies from the firing of `block_connected`, and, for the "
                   "list, from the last removal.")

    def milliseconds(i):
        return f"{statistics.median(x[i] for x in latencies) * 1e3:.1f}"
    report.table(("", f"of {count:,} removals", "median ms"), [
        ("Core's ZMQ sequence, R", f"{statistics.median(r[0] for r in rows):.0f}", "–"),
        ("Core's ZMQ sequence, block connected", "", milliseconds(0)),
        ("coretap validation.block_connected", "", milliseconds(1)),
        ("coretap mempool.removed", f"{statistics.median(r[1] for r in rows):.0f}", ""),
        ("coretap block.evictions", f"{statistics.median(r[2] for r in rows):.0f}",
         milliseconds(2)),
    ])
    report.save()


if __name__ == "__main__":
    if not os.environ.get("BITCOIND"):
        sys.exit("bench-node wants BITCOIND=/path/to/bitcoind")
    main()
