"""``python -m tests.exhaustive`` explores every order of events in small worlds of the real protocol state, prints what
was visited, and ends with 1 and the shortest trace if an invariant is broken.

    python -m tests.exhaustive
    python -m tests.exhaustive --part questions --size 3
"""

from __future__ import annotations

import argparse
import logging
import sys

from tests.exhaustive.parts import PARTS


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.exhaustive", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=tuple(PARTS), action="append", help="part to explore, all by default")
    parser.add_argument("--size", type=int, help="size of each part, by default what CI explores")
    parser.add_argument("--most-states", type=int, default=10_000_000, help="states after which a part is given up")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)  # of a store that fails
    faults = 0
    for name in options.part or PARTS:
        part = PARTS[name]
        report = part.explore(options.size, most_states=options.most_states)
        size = part.size if options.size is None else options.size
        end = "complete" if report.is_complete else "not complete"
        print(
            f"{name} ({size} {part.size_is}): {report.states} states, {report.steps} steps, {report.ends} ends, "
            f"depth {report.depth}, {report.seconds:.1f} s, {end}",
            flush=True,
        )
        if report.fault is not None:
            faults += 1
            print(f"  FAULT: {report.fault.words}")
            for action in report.fault.trace:
                print("    ", *action)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
