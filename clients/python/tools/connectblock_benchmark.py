#!/usr/bin/python3
"""Measures how blocks connect: rates each second, slow blocks, and a histogram at the end."""
import time

from common import follow, hexed, parser, subscribe


class Benchmark:
    def __init__(self, options):
        self.options = options
        self.durations = []
        self.second = []  # events since the last line
        self.told_at = time.monotonic()
        self.began = None

    def handle(self, event):
        """True when the benchmark is over."""
        options = self.options
        height, duration_ms = event.height, (event.get("duration_ns") or 0) / 1e6
        if height is None or height < options.start or options.end and height > options.end:
            return False
        if options.threshold and duration_ms > options.threshold:
            print(f"Block {height} ({hexed(event.get('hash'))})  {event.n_tx!s:>4} tx  "
                  f"{event.n_inputs!s:>5} ins  {event.sigops!s:>5} sigops  took {duration_ms:4.0f} ms")
        if self.began is None:
            self.began = event.time_us
        self.durations.append(duration_ms)
        self.second.append(event)
        if options.end and height >= options.end:
            print(f"\nTook {(event.time_us - self.began) / 1000:.0f} ms to connect the blocks "
                  f"between height {options.start} and {options.end}.")
            return True
        self.tell()
        return False

    def tell(self):
        if time.monotonic() - self.told_at < 1:
            return
        self.told_at = time.monotonic()
        if self.second:
            total = {k: sum(e.get(k) or 0 for e in self.second) for k in ("n_tx", "n_inputs", "sigops")}
            print(f"BENCH {len(self.second):4} blk/s {total['n_tx']:6} tx/s {total['n_inputs']:7} "
                  f"inputs/s {total['sigops']:8} sigops/s (height {self.second[-1].height})",
                  flush=True)
        self.second = []

    def histogram(self):
        print("\nHistogram of block connection times in milliseconds (ms).")
        buckets = {}
        for duration in self.durations:
            low = 1 << int(duration).bit_length() >> 1
            buckets[low] = buckets.get(low, 0) + 1
        for low in sorted(buckets):
            print(f"[{low}, {max(1, 2 * low)})".ljust(20), f"{buckets[low]:8}",
                  "@" * (50 * buckets[low] // max(buckets.values())))


def main():
    arguments = parser(__doc__)
    arguments.add_argument("start", type=int, help="first height, 0 = from now on")
    arguments.add_argument("end", type=int, help="last height, 0 = until Ctrl-C")
    arguments.add_argument("threshold", type=int, help="log blocks that take longer, ms; 0 = none")
    options = arguments.parse_args()
    if options.end and options.end < options.start:
        arguments.error("the last height is below the first one")
    benchmark = Benchmark(options)
    with subscribe(options, "validation.block_connected") as stream:
        follow(stream, benchmark.handle, benchmark.tell, 1)
    benchmark.histogram()


if __name__ == "__main__":
    main()
