"""What coretap-nats takes, beside libnats' own asynchronous publishing of as many messages of the same size."""
import datetime
import os
import subprocess
import time

import processes
from harness import Bridge, FakeNode, private_copy
from nats import SERVER, Cluster, Forwarder, setup, wait_forwarded
from report import median, number

PENDING = 4096  # coretap-nats forward's own default


def stored(cluster, stream):
    """Messages, and seconds from the first one stored to the last."""
    connection = cluster.connect()
    state = connection.request(f"$JS.API.STREAM.INFO.{stream}")["state"]
    connection.close()
    first, last = (datetime.datetime.fromisoformat(state[key][:26].rstrip("Z")) for key in ("first_ts", "last_ts"))
    return state["messages"], (last - first).total_seconds()


def forward(cluster, bridge, fired, stream):
    setup(cluster, "--stream", stream, "--node", bridge.name, "--replicas", str(len(cluster.processes)), stream=stream)
    with Forwarder(cluster, bridge, args=("--stream", stream, "--status", "1h"), sanitized=False) as forwarder:
        before = processes.cpu_ns(forwarder.process.pid)
        wait_forwarded(cluster, bridge.name, fired, 300, stream)
        cpu = processes.cpu_ns(forwarder.process.pid) - before
        forwarder.stop()
    messages, seconds = stored(cluster, stream)
    connection = cluster.connect()
    connection.request(f"$JS.API.STREAM.DELETE.{stream}")
    connection.close()
    return {"messages": messages, "seconds": seconds, "cpu_ns": cpu / messages}


def baseline(cluster, messages, size, stream):
    setup(cluster, "--stream", stream, "--node", "baseline", "--replicas", str(len(cluster.processes)), stream=stream)
    out = subprocess.run([processes.program("nats"), cluster.url.split(",")[0], "coretap.baseline.mempool.removed",
                          str(messages), str(size), str(PENDING)], check=True, capture_output=True, text=True).stdout
    connection = cluster.connect()
    connection.request(f"$JS.API.STREAM.DELETE.{stream}")
    connection.close()
    return float(out)


def size_of_bodies(bridge):
    """Bytes and number of the messages that the journal has, from replay itself."""
    import msgpack
    import zmq
    context = zmq.Context()
    asker = context.socket(zmq.REQ)
    asker.connect(f"tcp://127.0.0.1:{bridge.port + 2}")

    def ask(**question):
        asker.send(msgpack.packb({"v": 1, "id": 1, **question}))
        return asker.recv_multipart()
    total = messages = 0
    for run in msgpack.unpackb(ask(op="hello")[0])["runs"]:
        for socket in ("low", "high"):
            after = 0
            while after is not None:
                header, *parts = ask(op="replay", socket=socket, run=run["run"], after=after)
                total += sum(map(len, parts[1::2]))
                messages += len(parts) // 2
                after = msgpack.unpackb(header)["next"]
    context.destroy(0)
    return total, messages


def nats(report, scale):
    """NATS

    `coretap-nats forward` draining a journal into a stream, and the same number of messages of the same size
    published by libnats' own asynchronous loop (no headers, nothing that depends on the message before), which
    is what NATS' bench tool does too; servers, publisher and coretapd share the cores. CPU is that of the
    forwarder for a message."""
    if not SERVER or not os.path.exists(processes.program("nats")):
        report.write("No nats-server or no libnats here.")
        return
    mixes = {"full": ("burst", scale.firings * 4), "small": ("walk", scale.firings // 4)}
    rows = []
    for servers in (1, 3):
        for mix, (mode, count) in mixes.items():
            binary = private_copy()
            with Cluster(servers) as cluster, Bridge(
                    "--journal-low", "384M", "--journal-high", "64M", binary=binary, sanitized=False) as bridge:
                with FakeNode(mode, count, "--wait", "--start-delay", 300, binary=binary) as node:
                    fired = node.finish()
                time.sleep(0.5)
                size, messages = size_of_bodies(bridge)
                events = sum(fired.values())
                samples = []
                for i in range(min(3, scale.rounds)):
                    ours = forward(cluster, bridge, fired, f"a{i}")
                    ours["baseline"] = baseline(cluster, messages, round(size / messages), f"b{i}")
                    samples.append(ours)
            rows.append((f"{mix} frames, {servers} server{'s, 3 replicas' if servers > 1 else ''}",
                         number(size / messages), number(median([events / s["seconds"] for s in samples])),
                         number(median([messages / s["seconds"] for s in samples])),
                         number(median([messages / s["baseline"] for s in samples])),
                         number(median([s["baseline"] / s["seconds"] for s in samples]), 2),
                         number(median([s["cpu_ns"] for s in samples]))))
    report.table(("", "bytes", "events/s", "messages/s", "libnats messages/s", "ratio", "CPU ns"), rows)
