#!/usr/bin/python3
"""Shows mempool events: counts, rates and a log. Prints the log only when output is no terminal."""
import collections
import curses
import datetime
import sys
import time

from common import coretap, follow, hexed, parser, plain, put, rate, screen, subscribe

KINDS = ("added", "removed", "replaced", "rejected")


def line(event):
    """One event in words."""
    kind = event.topic.split(".")[1]
    when = datetime.datetime.fromtimestamp(event.time, datetime.timezone.utc).strftime("%H:%M:%SZ")
    text = f"{when} {kind} {hexed(event.get('txid'))}"
    if kind == "rejected":
        return f"{text}: {plain(event.get('reason'))}"
    fee, vsize = event.get("fee"), event.get("vsize")
    text += f" with feerate {rate(fee, vsize)} sat/vB ({fee} sat, {vsize} vbytes)"
    if event.get("entry_time") is not None:
        text += f" received {event.time - event.entry_time:.1f} seconds ago"
    if kind == "removed":
        return f"{text}: {plain(event.get('reason'))}"
    if kind == "replaced":
        package = event.get("replacement_package")
        by = f"package {package.hex()}" if package else hexed(event.get("replacement_txid"))
        fee, vsize = event.get("replacement_fee"), event.get("replacement_vsize")
        text += f" with {by} with feerate {rate(fee, vsize)} sat/vB ({fee} sat, {vsize} vbytes)"
    return text


class Dashboard:
    def __init__(self):
        self.began = time.monotonic()
        self.total = dict.fromkeys(KINDS, 0)
        self.seconds = {kind: collections.Counter() for kind in KINDS}  # events by second
        self.log = collections.deque(maxlen=500)

    def handle(self, item):
        if isinstance(item, coretap.Notice):
            self.log.append(f"! {item}")
            return
        kind = item.topic.split(".")[1]
        self.total[kind] += 1
        self.seconds[kind][item.time_us // 1_000_000] += 1
        self.log.append(line(item))

    def counts(self, kind):
        """In all, in the last minute, in the last ten."""
        now, seconds = int(time.time()), self.seconds[kind]
        for second in [s for s in seconds if s <= now - 600]:
            del seconds[second]
        return (self.total[kind], sum(n for s, n in seconds.items() if s > now - 60),
                sum(seconds.values()))

    def draw(self, window):
        runtime = max(1.0, time.monotonic() - self.began)
        put(window, 0, 1, "Mempool Monitor", curses.A_REVERSE)
        put(window, 1, 1, "Press q or CTRL-C to stop.")
        put(window, 3, 1, f" {'Event':<8} {'total':>9} {'1 min':>8} {'10 min':>8}   "
                          f"{'total':>9} {'1 min':>9} {'10 min':>9} ")
        for row, kind in enumerate(KINDS, 4):
            total, one, ten = self.counts(kind)
            put(window, row, 1, f" {kind:<8} {total:>7}tx {one:>6}tx {ten:>6}tx   "
                                f"{total / runtime:>5.1f}tx/s {one / min(60, runtime):>5.1f}tx/s "
                                f"{ten / min(600, runtime):>5.1f}tx/s ")
        room = window.getmaxyx()[0] - 9
        for row, text in enumerate(list(self.log)[-room:] if room > 0 else (), 9):
            put(window, row, 1, text)



def main():
    options = parser(__doc__).parse_args()
    topics = [f"mempool.{kind}" for kind in KINDS]
    with subscribe(options, *topics) as stream:
        if sys.stdout.isatty():
            dashboard = Dashboard()
            screen(stream, dashboard.handle, dashboard.draw)
        else:
            follow(stream, lambda event: print(line(event)))


if __name__ == "__main__":
    main()
