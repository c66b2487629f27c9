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
                        help="a minute's smoke test: figures mean little; writes no RESULTS.md")
    parser.add_argument("--only", action="append", choices=sections.SECTIONS, metavar="SECTION",
                        help=f"one of {', '.join(sections.SECTIONS)}; may be repeated")
    parser.add_argument("--output", metavar="FILE", help="where to write instead of RESULTS.md")
    options = parser.parse_args()
    need_root()

    result = report.Report()
    arguments = " ".join(sys.argv[1:])
    result.write(*report.machine("make bench" + (f' BENCH_ARGS="{arguments}"' if arguments else "")))
    start = time.monotonic()
    for name in options.only or sections.SECTIONS:
        section = sections.SECTIONS[name]
        title, _, about = inspect.getdoc(section).partition("\n\n")
        result.section(title, *about.splitlines())
        section(result, sections.Scale(options.quick))
    result.bounds()
    result.write("", f"The run took {(time.monotonic() - start) / 60:.0f} minutes.")

    path = options.output or os.path.join(sections.HERE, "RESULTS.md")
    if options.output or not (options.quick or options.only):
        result.save(path)
    for fault in result.faults:
        print(f"bench: {fault}", file=sys.stderr)
    return 1 if result.faults else 0


if __name__ == "__main__":
    sys.exit(main())
