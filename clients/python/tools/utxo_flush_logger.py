#!/usr/bin/python3
"""Logs each time the coins cache is written to disk."""
from common import follow, parser, subscribe

# Up to Core v30 mode 3 was ALWAYS.
MODES = ("NONE", "IF_NEEDED", "PERIODIC", "FORCE_FLUSH", "FORCE_SYNC")
ROW = "{:<15} {:<12} {:<15} {:<15} {:<8}"


def handle(event):
    mode = event.get("mode")
    memory = event.get("memory")
    print(ROW.format(event.duration_ns // 1000 if event.get("duration_ns") is not None else "?",
                     MODES[mode] if mode is not None and mode < len(MODES) else str(mode),
                     str(event.get("coins")), "?" if memory is None else f"{memory / 1000:.2f} kB",
                     str(event.get("prune"))))


def main():
    options = parser(__doc__).parse_args()
    print("Logging utxocache flushes. Ctrl-C to end...")
    print(ROW.format("Duration (µs)", "Mode", "Coins Count", "Memory Usage", "Flush for Prune"))
    with subscribe(options, "utxocache.flush") as stream:
        follow(stream, handle)


if __name__ == "__main__":
    main()
