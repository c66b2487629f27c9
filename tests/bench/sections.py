"""What is measured. Each section is a function of (report, scale); its first line of doc is its title."""
import os
import subprocess
import time

import plot
import processes
from bench_nats import nats
from harness import ROOT, tool
from processes import Receiver, coretapd, fire, load, missed, unaccounted
from report import median, number

REMOVED, SPENT, ADD = "mempool:removed", "utxocache:spent", "utxocache:add"
MESSAGE = "net:inbound_message"


class Scale:
    """How much is done: everything, or a smoke test of a minute."""

    def __init__(self, quick, rounds=None):
        self.quick = quick
        self.rounds = rounds or (1 if quick else 7)
        self.firings = 30_000 if quick else 500_000
        self.load = 100_000 if quick else 2_000_000
        self.long = 300_000 if quick else 10_000_000
        self.seconds = 2 if quick else 20
        self.bursts = 2 if quick else 20


def interleave(rounds, measurements):
    """{name: function} → {name: [result of each round]}, as A B C A B C …"""
    results = {name: [] for name in measurements}
    for _ in range(rounds):
        for name, measure in measurements.items():
            results[name].append(measure())
    return results


def ratio(results, name, key, reference):
    return median([a[key] / b[key] for a, b in zip(results[name], results[reference])])


# ---- 1 ----

def fire_under(tracer, probes, count, args, receive=False):
    """Node cost of one tracer: what fire() says, and what the tracer lost."""
    with tracer(probes) as attached:
        receiver = Receiver(attached, count).wait_ready() if receive else None
        fired = fire(count, *args, wait=tracer is not processes.detached)
        if receiver:
            attached = receiver.finish()
    if isinstance(attached, dict) and "received" in attached:
        attached["lost"] = max(attached["lost"], count - attached["received"])
    # An empty program collects nothing that could be lost.
    collects = isinstance(attached, dict) and (receiver or "received" in attached)
    fired["lost"] = attached["lost"] if collects else None
    return fired


def tracers(scale, probes, args, slow=False, payload=None):
    """What the node's cost is compared between, for one kind of firing."""
    count = scale.firings
    extra = ("--payload", payload) if payload else ()

    def ours(_probes):
        return coretapd(*extra)
    result = {"empty probe": lambda: fire_under(processes.baseline("empty"), probes, count, args),
              "empty probe, sleepable":
                  lambda: fire_under(processes.baseline("empty-sleepable"), probes, count, args)}
    if slow:
        result = {"not attached": lambda: fire_under(processes.detached, probes, count, args),
                  **result,
                  "textbook (libbpf)":
                      lambda: fire_under(processes.baseline("textbook"), probes, count // 4, args)}
        if processes.BPFTRACE:
            result["bpftrace, printing"] = lambda: fire_under(processes.bpftrace, probes, count // 4,
                                                              args)
    result["coretapd, no subscriber"] = lambda: fire_under(ours, probes, count, args)
    result["coretapd, one subscriber"] = lambda: fire_under(ours, probes, count, args, receive=True)
    return result


FLOOR = "empty probe, sleepable"  # the kind of program that coretapd uses


def cost_table(report, results):
    rows = []
    for name, samples in results.items():
        lost = sum(s["lost"] or 0 for s in samples)
        rows.append((name, number(median([s["ns"] for s in samples]), 1),
                     number(ratio(results, name, "ns", FLOOR), 2),
                     number(median([s["cpu_ns"] for s in samples]), 0),
                     number(ratio(results, name, "cpu_ns", FLOOR), 2),
                     number(lost) if any(s["lost"] is not None for s in samples) else "–"))
    report.table(("tracer", "ns", "× empty", "CPU ns", "× empty", "lost"), rows)


def messages(report, scale):
    small = min(scale.firings, 200_000)
    rows = []
    for size, label, full in ((100, "100 B", small), (10_000, "10 kB", small // 10),
                              (1_000_000, "1 MB", 50 if scale.quick else 300)):
        args = ("--probe", "message", "--size", size)
        kinds = {"empty": lambda: fire_under(processes.baseline("empty-sleepable"), [MESSAGE], small,
                                             args),
                 "off": lambda: fire_under(lambda _: coretapd(), [MESSAGE], small, args)}
        # In a ring that holds them all: what is lost costs less.
        kinds["full"] = lambda: fire_under(
            lambda _: coretapd("--payload", "full", "--ring-high", "512M"), [MESSAGE], full, args)
        results = interleave(scale.rounds, kinds)
        for name in [n for n in kinds if n != "empty"]:
            rows.append((f"{label}, payload {name}",
                         number(median([s["ns"] for s in results[name]]), 0),
                         number(ratio(results, name, "ns", "empty"), 2),
                         number(median([s["cpu_ns"] for s in results[name]]), 0),
                         number(ratio(results, name, "cpu_ns", "empty"), 2)))
    report.write("`net:inbound_message`, one thread:", "")
    report.table(("message", "ns", "× empty", "CPU ns", "× empty"), rows)


def node_cost(report, scale):
    """What a firing costs the node

    ns: wall time of one firing in the firing thread. CPU ns: processor time of the node's process for
    one firing, without the time that other processes take from it. × empty: against the empty
    sleepable program."""
    for threads in (1, 4):
        args = ("--threads", threads)
        results = interleave(scale.rounds, tracers(scale, [REMOVED], args, slow=True))
        report.write(f"`{REMOVED}`, {threads} firing thread{'s' if threads > 1 else ''}:", "")
        cost_table(report, results)
        if threads == 1:
            report.check("node cost of a removal / empty probe",
                         ratio(results, "coretapd, no subscriber", "cpu_ns", FLOOR), 1.6)
    for threads in (1, 4):
        args = ("--threads", threads, "--probe", "spent")
        results = interleave(scale.rounds, tracers(scale, [SPENT], args))
        report.write(f"`{SPENT}`, {threads} firing thread{'s' if threads > 1 else ''}:", "")
        cost_table(report, results)
        if threads == 1:
            report.check("node cost of a spent coin / empty probe",
                         ratio(results, "coretapd, no subscriber", "cpu_ns", FLOOR), 1.6)
    messages(report, scale)


def floor(report, scale):
    """The least that a removal can cost

    Sleepable programs, a step more in each, written for this one tracepoint alone: no operands to decode,
    no other tracepoints to tell apart, nothing to count. Each step is what the kernel takes for
    it, and no program that publishes a removal can do with fewer. What is left to coretapd is what its own
    program, which serves every tracepoint of every node, takes beyond that."""
    steps = {FLOOR: "empty-sleepable", "+ the time of the firing": "clock",
             "+ a record through the ring": "record", "+ 32 bytes of the node's memory (txid)": "hash",
             "+ 16 bytes elsewhere (reason)": "text"}
    measurements = {name: lambda mode=mode: fire_under(processes.baseline(mode), [REMOVED],
                                                       scale.firings, ())
                    for name, mode in steps.items()}
    measurements["coretapd"] = lambda: fire_under(lambda _: coretapd(), [REMOVED], scale.firings, ())
    results = interleave(scale.rounds, measurements)
    rows, before = [], 0
    for name, samples in results.items():
        ns = median([s["cpu_ns"] for s in samples])
        rows.append((name, number(ns), number(ns - before), number(ratio(results, name, "cpu_ns", FLOOR), 2)))
        before = ns
    report.table(("step", "CPU ns", "more", "× empty"), rows)
    report.check("node cost of a removal / the least it can cost",
                 ratio(results, "coretapd", "cpu_ns", "+ 16 bytes elsewhere (reason)"), 1.15)


# ---- 2 ----

def duration_s(result):
    """First firing to last receipt, of the slowest receiver."""
    return max(r["last_us"] - r["first_time_us"] for r in result["receivers"]) / 1e6


def rate_row(label, samples):
    return (label,
            number(median([s["node"]["firings"] / duration_s(s) for s in samples])),
            number(median([duration_s(s) / s["node"]["elapsed_s"] for s in samples]), 3),
            number(max(r["lost"] for s in samples for r in s["receivers"])),
            number(max(missed(s) for s in samples)))


def journals():
    """Variants of coretapd by journal."""
    return {"journal": (), "no journal": ("--journal", "none")}


def rates(report, scale):
    """Sustained rate

    The node fires back to back; every receiver takes everything. × firing: time from the first firing
    to the last receipt, as a multiple of the time that the firing took. Lost: told by coretapd, for want
    of ring. Dropped: not sent to the slowest subscriber, whose queue (--subscriber-memory) was full; it
    sees the gap and may ask for a replay, which is not part of this."""
    loads = {"removals": (), "coins, spent spent add add": ("--probe", "utxo"),
             "coins, spent only": ("--probe", "spent")}
    measurements = {}
    for name, args in loads.items():
        for receivers in (1, 4):
            for journal, daemon in journals().items():
                label = f"{name}; {receivers} subscriber{'s' * (receivers > 1)}, {journal}"
                measurements[label] = lambda args=args, receivers=receivers, daemon=daemon: load(
                    args, daemon, receivers, count=scale.load)
    measurements["removals; 1 subscriber over tcp"] = lambda: load((), count=scale.load, tcp=True)
    results = interleave(max(1, scale.rounds // 2), measurements)
    rows = [rate_row(name, samples) for name, samples in results.items()]

    long = load((), count=scale.long)
    rows.append(rate_row(f"{scale.long:,} removals; 1 subscriber", [long]))
    crowd = load(("--threads", 4), count=scale.load)
    rows.append(rate_row("removals from 4 threads; 1 subscriber", [crowd]))
    report.table(("load", "events/s", "× firing", "lost", "dropped"), rows)
    for name, samples in results.items():
        for sample in samples:
            report.fault(name, unaccounted(sample, losses=scale.quick, drops="add" in name))
    report.fault(f"{scale.long:,} removals", unaccounted(long, losses=scale.quick))
    report.fault("4 threads", unaccounted(crowd, losses=True))
    report.check(f"{scale.long:,} removals, time to the last receipt / firing time",
                 duration_s(long) / long["node"]["elapsed_s"], 1.1)


# ---- 3 ----

def burst_ms(bridge):
    """5,000 removals: last firing to last receipt."""
    receiver = Receiver(bridge, 5000, latency=True, sockets=("low",)).wait_ready()
    time.sleep(0.2)
    fire(5000)
    result = receiver.finish()
    return (result["last_us"] - result["last_time_us"]) / 1000


def latencies(report, scale):
    """Latency

    From the firing (the event's time_us) to the receipt of its message over ipc, in µs. libzmq alone:
    a process that sends messages of one event and does nothing else; of the four times that a
    sleeping thread is woken on the way from the node to the subscriber it has three."""
    rows = []
    for rate in (100, 10_000):
        for socket, probe in (("low", "removed"), ("high", "spent")):
            result = load(("--probe", probe, "--rate", rate), count=rate * scale.seconds,
                          latency=True)
            us = result["receivers"][0]["latency_us"]
            rows.append((f"{rate:,} events/s, {socket}",
                         *(number(us[k]) for k in ("50", "99", "99.9", "max"))))
            report.fault(f"{rate} events/s", unaccounted(result))
            if rate == 100 and socket == "low":
                report.check("median latency at 100 events/s", us["50"], 150, " µs", 0)
                report.check("99 % latency at 100 events/s", us["99"], 2000, " µs", 0)
                alone = processes.bare(rate, rate * scale.seconds)["latency_us"]
                report.check("median latency at 100 events/s / libzmq alone",
                             us["50"] / alone["50"], 1.5)
                rows.append((f"{rate:,} events/s, libzmq alone",
                             *(number(alone[k]) for k in ("50", "99", "99.9", "max"))))
    report.table(("load", "median", "99 %", "99.9 %", "max"), rows)
    with coretapd() as bridge:
        bursts = sorted(burst_ms(bridge) for _ in range(scale.bursts))
    report.write(f"A burst of 5,000 removals is complete at the subscriber {median(bursts):.2f} ms "
                 f"after its last firing (median of {len(bursts)}; worst {bursts[-1]:.2f} ms).")
    report.check("5,000 removals complete after", median(bursts), 10, " ms")


# ---- 4 ----

def idle(bridge, seconds):
    """Sleeps ended, and CPU time used, a second."""
    switches, cpu = processes.switches(bridge.pid), processes.cpu_ns(bridge.pid)
    time.sleep(seconds)
    return ((processes.switches(bridge.pid) - switches) / seconds,
            (processes.cpu_ns(bridge.pid) - cpu) / seconds / 1000)


def resources(report, scale):
    """Processor and memory

    Processor time of one event in each process, all threads, libzmq's too, at full rate."""
    loads = {"removals": ("mempool.removed", ()),
             "coins, spent spent add add": ("utxocache.", ("--probe", "utxo"))}
    measurements = {}
    for name, (topic, args) in loads.items():
        for journal, daemon in journals().items():
            measurements[f"{name}, {journal}"] = lambda args=args, daemon=daemon: load(
                args, daemon, count=scale.load)
        if processes.RUN_IS_A_DISK:
            measurements[f"{name}, journal on a disk"] = lambda args=args: load(
                args, processes.JOURNAL, count=scale.load)
        measurements[f"{name}, client"] = lambda args=args, topic=topic: load(
            args, receivers=0, clients=(topic,), count=scale.load)
    results = interleave(min(5, scale.rounds), measurements)
    rows = []
    for name, samples in results.items():
        own = [r["cpu_ns"] / s["node"]["firings"] for s in samples
               for r in (*s["receivers"], *s["clients"])]
        rows.append((name.replace("client", "libcoretap client"),
                     number(median([s["daemon_ns"] for s in samples])), number(median(own)),
                     number(median([s["memory"]["VmHWM"] / 2**20 for s in samples]))))
        for sample in samples:
            report.fault(name, unaccounted(sample, losses=scale.quick, drops="add" in name))
    report.table(("load", "coretapd ns", "subscriber ns", "coretapd peak MiB"), rows)
    first = next(iter(results.values()))
    report.check("coretapd's CPU of a removal",
                 median([s["daemon_ns"] for s in first]), 350, " ns", 0)
    report.check("the C client's CPU of a removal",
                 median([s["clients"][0]["cpu_ns"] / s["node"]["firings"]
                         for s in results["removals, client"]]), 300, " ns", 0)

    rows = []
    with coretapd() as bridge:
        memory = processes.resident(bridge.pid)
        rows.append(("no subscriber", *(number(v, 1) for v in idle(bridge, scale.seconds / 2))))
        receiver = Receiver(bridge, 0).wait_ready()
        try:
            rows.append(("one subscriber", *(number(v, 1) for v in idle(bridge, scale.seconds / 2))))
        finally:
            receiver.kill()
    report.write("Attached, while the node does nothing (status every second):", "")
    report.table(("idle", "wakeups/s", "CPU µs/s"), rows)
    report.write("Resident before the first event: " +
                 ", ".join(f"{k} {v / 2**20:.0f} MiB" for k, v in memory.items()) + ".")


# ---- 5 ----

def growth_plot(report, name, title, axis, points, rounds):
    """points: {label: function that gives a load}. A plot and a table. The node's cost is
    left out of a load that is "busy": with other work than firing, such as keeping a pace."""
    results = interleave(rounds, points)
    daemon = [median([s["daemon_ns"] for s in results[label]]) for label in points]
    node = [median([None if s.get("busy") else s["node"]["cpu_ns"] for s in results[label]])
            for label in points]
    series = {"coretapd, CPU": daemon}
    if any(n is not None for n in node):
        series["node, CPU"] = node
    report.plot(name, title, plot.plot(title, axis, "ns per event", list(points), series))
    lost = [max((s["node"]["firings"] - r["count"] for s in results[label]
                 for r in s["receivers"]), default=0) for label in points]
    report.table((axis, "coretapd CPU ns", "node CPU ns", "lost or dropped"),
                 [(label, number(d), number(n), number(x))
                  for label, d, n, x in zip(points, daemon, node, lost)])


def paced(rate, scale):
    result = load(("--rate", rate), count=max(200, rate * (1 if scale.quick else 5)))
    result["busy"] = True
    return result


def topics(mode, numbers, args):
    result = load(args, mode=mode, numbers=numbers)
    result["busy"] = True
    return result


def growth(report, scale):
    """Growth

    Processor time per event against what may make it grow."""
    rounds = max(1, scale.rounds // 3)
    rates = (100, 10_000) if scale.quick else (100, 1_000, 10_000, 100_000)
    points = {f"{r:,}": lambda r=r: paced(r, scale) for r in rates}
    points["full"] = lambda: load((), count=scale.load)
    growth_plot(report, "rate", "Cost of an event against the rate", "events/s", points, rounds)

    counts = (0, 1, 4) if scale.quick else (0, 1, 2, 4, 8)
    growth_plot(report, "subscribers", "Cost of an event against the number of subscribers",
                "subscribers", {str(n): lambda n=n: load((), receivers=n, count=scale.load)
                                for n in counts}, rounds)

    n = scale.load // 20
    mixes = {"burst": ("burst", (scale.load,), ("--probe", "spent")),
             "runs of two": ("burst", (scale.load,), ("--probe", "utxo")),
             "walk": ("walk", (n,), ()),
             "blocks": ("blocks", (max(2, n // 2000), 1000), ("--coins", "--flush"))}
    points = {}
    for mix, (mode, numbers, args) in mixes.items():
        topics_fired = len(load(args, mode=mode, numbers=(*numbers[:-1], min(numbers[-1], 1000)))
                           ["node"]["fired"])
        points[f"{topics_fired} ({mix})"] = lambda m=mode, k=numbers, a=args: topics(m, k, a)
    growth_plot(report, "topics", "Cost of an event against the number of topics", "topics", points,
                rounds)

    sizes = ("4M", "64M") if scale.quick else ("1M", "4M", "16M", "64M", "256M")
    growth_plot(report, "ring", "Cost of an event against the size of the ring", "ring",
                {size: lambda size=size: load((), ("--ring-low", size), count=scale.load)
                 for size in sizes}, rounds)


# ---- 6 ----

def client_run(command, environment, count):
    """Seconds from the node's first firing until the client has printed that many events, and its CPU."""
    with coretapd() as bridge:
        with subprocess.Popen([*command, "mempool.removed", "--json", "--count", str(count), "--address",
                               f"tcp://127.0.0.1:{bridge.port}"], stdout=subprocess.DEVNULL,
                              env={**os.environ, **environment}) as client:
            time.sleep(2)
            start = time.monotonic()
            fire(count)
            _, _, usage = os.wait4(client.pid, 0)
            client.returncode = 0
            return {"seconds": time.monotonic() - start,
                    "cpu_ns": (usage.ru_utime + usage.ru_stime) * 1e9 / count}


def clients(report, scale):
    """Clients

    `tail --json` of each client into nothing, of a burst that is larger than what it can take: events a
    second until the last one is printed, and processor time of one event, start of the program included."""
    commands = {
        "C": ([tool("coretap", sanitized=False), "tail"], {}),
        "Python": (["/usr/bin/python3", "-m", "coretap", "tail"],
                   {"PYTHONPATH": os.path.join(ROOT, "clients", "python")}),
    }
    if os.path.isdir(os.path.join(ROOT, "clients", "js", "node_modules")):
        commands["JavaScript"] = (["node", os.path.join(ROOT, "clients", "js", "tail.js")], {})
    count = scale.firings // 2
    results = interleave(min(3, scale.rounds), {
        name: lambda command=command, environment=environment: client_run(command, environment, count)
        for name, (command, environment) in commands.items()})
    report.table(("client", "events/s", "× C", "CPU ns"),
                 [(name, number(median([count / s["seconds"] for s in samples])),
                   number(median([c["seconds"] / s["seconds"]
                                  for c, s in zip(results["C"], samples)]), 2),
                   number(median([s["cpu_ns"] for s in samples]))) for name, samples in results.items()])


SECTIONS = {"node": node_cost, "floor": floor, "rate": rates, "latency": latencies, "resources": resources,
            "growth": growth, "clients": clients, "nats": nats}
