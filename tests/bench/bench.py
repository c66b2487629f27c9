"""`make bench`: what coretap costs, next to what others cost, in one run.

Prints tables and writes them to tests/bench/RESULTS.md, plots to tests/bench/plots/."""
import argparse
import inspect
import os
import sys
import time

import report
import sections
from harness import need_root


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true",
                        help="a smoke test of a minute or two: the figures mean little")
    parser.add_argument("--rounds", type=int, help="of each comparison (default 7)")
    parser.add_argument("--only", action="append", choices=sections.SECTIONS, metavar="SECTION",
                        help=f"one of {', '.join(sections.SECTIONS)}; may be repeated")
    parser.add_argument("--output", metavar="FILE",
                        help="where to write, plots beside it (default: RESULTS.md, for a whole run)")
    options = parser.parse_args()
    need_root()

    path = options.output
    if not path and not options.quick and not options.only:
        path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "RESULTS.md")
    result = report.Report(path)
    arguments = " ".join(sys.argv[1:])
    result.write(*report.machine("make bench" + (f' BENCH_ARGS="{arguments}"' if arguments else "")))
    start = time.monotonic()
    for name in options.only or sections.SECTIONS:
        section = sections.SECTIONS[name]
        title, _, about = inspect.getdoc(section).partition("\n\n")
        result.section(title, *about.splitlines())
        section(result, sections.Scale(options.quick, options.rounds))
    result.bounds()
    result.write("", f"The run took {(time.monotonic() - start) / 60:.0f} minutes.")

    result.save()
    for fault in result.faults:
        print(f"bench: {fault}", file=sys.stderr)
    return 1 if result.faults else 0


if __name__ == "__main__":
    sys.exit(main())
