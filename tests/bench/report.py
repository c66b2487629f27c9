"""Tables for the terminal and for RESULTS.md, and the machine they were measured on."""
import os
import platform
import re
import statistics
import subprocess
import time

import zmq

import processes  # noqa: F401 # it makes harness found
from harness import tool


def median(values):
    values = [v for v in values if v is not None]
    return statistics.median(values) if values else None


def number(value, digits=0):
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    return f"{value:,.{digits}f}"


class Report:
    """Collects Markdown, which is legible on a terminal too, and prints it as it comes."""

    def __init__(self, path):
        """path: where save() writes, with plots beside it; None = nowhere."""
        self.path, self.lines, self.checks, self.faults = path, [], [], []

    def write(self, *lines):
        self.lines += lines
        print(*lines, sep="\n", flush=True)

    def section(self, title, *about):
        self.write("", f"## {title}", "", *about, *([""] if about else []))

    def table(self, head, rows):
        """The first column is text, the others are numbers."""
        widths = [max(len(str(row[i])) for row in (head, *rows)) for i in range(len(head))]

        def cells(row):
            padded = [str(c).ljust(w) if i == 0 else str(c).rjust(w)
                      for i, (c, w) in enumerate(zip(row, widths))]
            return "| " + " | ".join(padded) + " |"
        rule = "|" + "|".join("-" * (w + 1) + ("-" if i == 0 else ":")
                              for i, w in enumerate(widths)) + "|"
        self.write(cells(head), rule, *(cells(row) for row in rows), "")

    def check(self, what, value, bound, unit="", digits=2):
        """A figure that has a bound."""
        if value is not None:
            self.checks.append((what, f"{number(value, digits)}{unit}", f"≤ {bound:,g}{unit}",
                                "yes" if value <= bound else "no"))

    def fault(self, what, why):
        """An account that does not close is no matter of speed: the run fails."""
        if why:
            self.faults.append(f"{what}: {why}")
            self.write(f"**{what}: {why}**", "")

    def bounds(self):
        if self.checks:
            self.section("Bounds", "What coretap means to keep, on two quiet cores.")
            self.table(("figure", "measured", "bound", "kept"), self.checks)

    def plot(self, name, title, svg):
        """A picture, which only the file has."""
        if not self.path:
            return
        directory = os.path.join(os.path.dirname(os.path.abspath(self.path)), "plots")
        os.makedirs(directory, exist_ok=True)
        with open(os.path.join(directory, f"{name}.svg"), "w") as f:
            f.write(svg)
        self.write(f"![{title}](plots/{name}.svg)", "")

    def save(self):
        if self.path:
            with open(self.path, "w") as f:
                f.write("\n".join(self.lines).rstrip() + "\n")


def first_line(*command):
    try:
        out = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return (out.stdout or out.stderr).strip().split("\n")[0]


def machine(command):
    """The head of RESULTS.md."""
    with open("/proc/cpuinfo") as f:
        model = re.search(r"^(?:model name|CPU part)\s*:\s*(.*)", f.read(), re.M)
    with open("/proc/meminfo") as f:
        memory = int(f.read().split()[1]) >> 20
    with open("/sys/devices/system/cpu/vulnerabilities/spec_rstack_overflow") if os.path.exists(
            "/sys/devices/system/cpu/vulnerabilities/spec_rstack_overflow") else open(
            os.devnull) as f:
        srso = f.read().strip()
    versions = [first_line(tool("coretapd", False), "--version"),
                first_line("clang", "--version"), first_line("gcc", "--version"),
                f"libzmq {zmq.zmq_version()}",
                first_line("bpftrace", "--version") or "bpftrace is not installed"]
    load = os.getloadavg()
    return ["# Results of the benchmarks", "",
            f"Written by `{command}` on {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}.", "",
            f"- {model.group(1).strip() if model else platform.machine()}, {os.cpu_count()} cores, "
            f"{memory} GiB; load at the start {load[0]:.1f}",
            f"- Linux {platform.release()}" + (f"; return stacks: {srso}" if srso else ""),
            *(f"- {v}" for v in versions if v), "",
            "Figures are medians over interleaved rounds; ratios are medians of the ratios within "
            "each round, so",
            "what the machine does meanwhile falls out of them. All processes share the cores."]
