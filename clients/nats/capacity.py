#!/usr/bin/python3
"""Measures what a node publishes in a day, through coretapd and coretap-nats into a stream, and works out what
10, 1,000 and 100,000 of them need. Writes the tables of CAPACITY.md. As root, after `make`:

    clients/nats/capacity.py [--scale N] [--rate PER_SECOND] [--p2p-seconds S]

The day: 500,000 transactions arrive one by one and go into 144 blocks, each with its coins. Transactions come
--rate a second, which is faster than in reality and still slow enough for each to be a message of its own, as
it would be; blocks come as they do, at full speed. --scale 10 simulates a tenth of a day. P2P messages are
measured in real time, from the simulated node's peers, and their number in a day follows from PEERS below."""
import argparse
import math
import os
import re
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "tests", "lib"))
from harness import Bridge, FakeNode, need_root, private_copy  # noqa: E402
from nats import Cluster, Forwarder, Pull, setup, wait_forwarded  # noqa: E402

TRANSACTIONS, BLOCKS, DAY = 500_000, 144, 86400

# P2P messages of a listening node in a day, in and out. Announcements are flushed to each peer every 2 s on
# average where the connection is outbound, every 5 s where it is inbound, and come in at the same pace.
PEERS = {"outbound": 10, "inbound": 60}
ANNOUNCEMENTS = 2 * DAY * (PEERS["outbound"] / 2 + PEERS["inbound"] / 5)
# A transaction is asked for and had once, and passed on to one peer in ten or so; pings every two minutes and
# their pongs; a block is announced to each peer and had once.
TRANSFERS = TRANSACTIONS * 2 * (1 + sum(PEERS.values()) / 10)
PINGS = 4 * sum(PEERS.values()) * DAY / 120
P2P = round(ANNOUNCEMENTS + TRANSFERS + PINGS + BLOCKS * 2 * sum(PEERS.values()))

# What a server takes. Messages: `make bench BENCH_ARGS="--only nats"` measured 20,000 small ones a second with
# three replicas where three servers, publisher and bridge share two cores; a server of its own has more.
SERVER_MESSAGES, SERVER_BYTES, SERVER_DISK = 20_000, 100e6, 8e12
CLUSTER_STREAMS = 1000
REPLICAS, DAYS = 3, 7
NODES_PER_FORWARDER = 50
BLOCK_SECONDS = 10  # within which all nodes connect a block

CLASSES = (
    ("mempool", r"mempool\."),
    ("blocks and evictions", r"(validation|block|node)\.|utxocache\.flush"),
    ("connections", r"net\.(inbound|outbound|evicted|closed|misbehaving).*connection"),
    ("status, each second", r"bridge\.status"),
    ("P2P messages, no payloads", r"net\..*_message"),
    ("coins", r"utxocache\.(add|spent|uncache)"),
)
PROFILES = (
    ("everything", [c for c, _ in CLASSES], 1),
    ("without coins and P2P, status each minute",
     ["mempool", "blocks and evictions", "connections", "status, each second"], 60),
    ("blocks and evictions, status each minute", ["blocks and evictions", "status, each second"], 60),
)


class Tally:
    def __init__(self):
        self.messages = self.events = self.body = self.stored = 0.0

    def add(self, message, events):
        self.messages += 1
        self.events += events
        self.body += len(message.data)
        # What JetStream's file store writes: a record of 22 bytes, subject, headers with their own length,
        # body, checksum of 8.
        headers = 12 + 4 + sum(len(k) + len(v) + 4 for k, v in message.headers.items())
        self.stored += 22 + len(message.subject) + headers + len(message.data) + 8

    def scaled(self, factor):
        result = Tally()
        for key, value in vars(self).items():
            setattr(result, key, value * factor)
        return result


def class_of(topic):
    return next((name for name, pattern in CLASSES if re.match(pattern, topic)), None)


def simulate(arguments, seconds=None):
    """{class: Tally} of one simulated node, read out of the stream; and the bytes that the server says it has
    stored."""
    import msgpack
    binary = private_copy()
    with Cluster() as cluster, Bridge("--journal-low", "256M", "--journal-high", "256M", binary=binary,
                                      sanitized=False) as bridge:
        setup(cluster)
        with Forwarder(cluster, bridge, sanitized=False) as forwarder:
            time.sleep(2)
            with FakeNode(*arguments, "--wait", "--start-delay", 300, binary=binary) as node:
                fired = node.finish(7200)
            wait_forwarded(cluster, bridge.name, fired, 600)
            forwarder.stop()
        tallies, connection = {name: Tally() for name, _ in CLASSES}, cluster.connect()
        state = connection.request("$JS.API.STREAM.INFO.coretap")["state"]
        consumer, left = Pull(connection, "coretap", "capacity"), state["messages"]
        while left:
            for message in consumer.fetch(min(left, 2000), 5):
                left -= 1
                message.ack()
                topic = message.subject.split(".", 2)[2]
                if class_of(topic):
                    tallies[class_of(topic)].add(message, len(msgpack.unpackb(message.data).get("events", ())))
        connection.close()
    return tallies, state["bytes"]


def measure(scale, rate, p2p_seconds):
    blocks = round(BLOCKS / scale)
    day, day_bytes = simulate(("blocks", blocks, TRANSACTIONS // BLOCKS, "--coins", "--unseen", 60, "--conflicts", 2,
                               "--replacements", TRANSACTIONS // BLOCKS // 30, "--rate", rate))
    computed = sum(t.stored for t in day.values())
    if not 0.97 < computed / day_bytes < 1.03:
        sys.exit(f"capacity: computed {computed:.0f} bytes, the server has {day_bytes}")
    day = {name: tally.scaled(BLOCKS / blocks) for name, tally in day.items()}
    real, _ = simulate(("run", "--seconds", p2p_seconds))
    name = "P2P messages, no payloads"
    day[name] = real[name].scaled(P2P / real[name].events)
    day["connections"] = real["connections"].scaled(20_000 / real["connections"].events)
    status = real["status, each second"]
    day["status, each second"] = status.scaled(2 * DAY / status.messages)
    return day


def size(n):
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if n < 1000:
            return f"{n:.3g} {unit}"
        n /= 1000
    return f"{n:.3g} PB"


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    return lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows]


def count(n):
    return f"{n:,.0f}" if n < 1e6 else f"{n / 1e6:,.3g} M"


def plan(day):
    lines = ["One node and day:", ""]
    total = Tally()
    rows = []
    for name, _ in CLASSES:
        tally = day[name]
        for key in vars(total):
            setattr(total, key, getattr(total, key) + getattr(tally, key))
        rows.append((name, count(tally.messages), count(tally.events), size(tally.body), size(tally.stored),
                     f"{tally.stored / max(1, tally.messages):.0f}"))
    rows.append(("all", count(total.messages), count(total.events), size(total.body), size(total.stored),
                 f"{total.stored / total.messages:.0f}"))
    lines += table(("", "messages", "events", "bodies", "stored", "bytes each"), rows)
    for title, names, status in PROFILES:
        lines += ["", f"**{title[0].upper() + title[1:]}**, {REPLICAS} replicas, {DAYS} days:", ""]
        rows = []
        messages = sum(day[n].messages / (status if n.startswith("status") else 1) for n in names)
        stored = sum(day[n].stored / (status if n.startswith("status") else 1) for n in names)
        block = sum(day[n].stored for n in names if n in ("blocks and evictions", "coins")) / BLOCKS
        if "mempool" in names:
            block += day["mempool"].stored / BLOCKS / 4  # removals come as full messages
        for nodes in (10, 1_000, 100_000):
            rate, flow, disk = messages * nodes / DAY, stored * nodes / DAY, stored * nodes * DAYS * REPLICAS
            peak = max(flow, block * nodes / BLOCK_SECONDS)
            streams = math.ceil(nodes / NODES_PER_FORWARDER)
            servers = max(3, math.ceil(disk / SERVER_DISK), 3 * math.ceil(rate / SERVER_MESSAGES),
                          3 * math.ceil(peak / SERVER_BYTES), 3 * math.ceil(streams / CLUSTER_STREAMS))
            rows.append((f"{nodes:,}", count(rate), f"{size(flow)}/s", f"{size(peak)}/s", size(disk), streams,
                         f"{servers:,}"))
        lines += table(("nodes", "messages/s", "into the cluster", "when a block comes", "disk, all servers",
                        "forwarders", "servers"), rows)
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1)
    parser.add_argument("--rate", type=int, default=1500)
    parser.add_argument("--p2p-seconds", type=int, default=60)
    arguments = parser.parse_args()
    need_root()
    lines = plan(measure(arguments.scale, arguments.rate, arguments.p2p_seconds))
    command = "clients/nats/capacity.py" + (f" --scale {arguments.scale:g}" if arguments.scale != 1 else "")
    lines = [f"Written by `{command}` on {time.strftime('%Y-%m-%d', time.gmtime())}.", "", *lines]
    path = os.path.join(HERE, "CAPACITY.md")
    with open(path) as file:
        text = file.read()
    text = re.sub(r"(<!-- tables -->\n).*?(\n<!-- end -->)", lambda m: m[1] + "\n".join(lines) + m[2], text, flags=re.S)
    with open(path, "w") as file:
        file.write(text)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
