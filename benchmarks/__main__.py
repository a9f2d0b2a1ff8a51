"""``python -m benchmarks``: thirteen rounds, about 25 minutes; ``--full``: how cost grows, too."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from .chart import chart
from .environments import compile_checkout, versions_of
from .machine import described
from .report import comparison, report
from .results import Results
from .rounds import run_suite, steps
from .suites import ENOUGH_ROUNDS, SUITES, Suite
from .written import write

__all__ = ["main"]


def _arguments(argv: list[str] | None = None) -> argparse.Namespace:
    names = [suite.name for suite in SUITES]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--full", action="store_true", help="also how cost grows")
    parser.add_argument(
        "--suite", action="append", metavar="NAME", choices=names, help=f"only this one: {_named(names)}"
    )
    parser.add_argument(
        "--rounds", type=int, help=f"so many of each; medians of fewer than {ENOUGH_ROUNDS} vary by more than 3 %%"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the raw results")
    parser.add_argument("--from", type=Path, metavar="FILE", dest="taken", help="show results kept before; no run")
    parser.add_argument("--compare", type=Path, metavar="OLD", help="show what changed since")
    parser.add_argument("--chart", type=Path, metavar="FILE", help="draw the chart of stdio there (SVG)")
    parser.add_argument("--write", action="store_true", help="put tables and charts into benchmarks/README.md")
    arguments = parser.parse_args(argv)
    named = arguments.suite or ()
    if empty := [suite.name for suite in SUITES if suite.name in named and suite.only_full and not arguments.full]:
        parser.error(f"nothing is measured of {_named(empty)} without --full")
    return arguments


def _named(names: list[str]) -> str:
    return ", ".join(names)


class _Progress:
    """One line on standard error, where somebody looks at it; one line per step where nobody does."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._began = time.monotonic()

    def __call__(self, what: str) -> None:
        seconds = time.monotonic() - self._began
        line = f"[{self._done:4}/{self._total}] {seconds // 60:2.0f}:{seconds % 60:02.0f}  {what}"
        self._done += 1
        if sys.stderr.isatty():
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)

    def end(self) -> None:
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _run(plan: list[tuple[Suite, int]]) -> Results:
    compile_checkout()
    machine = described()
    subjects = {subject.name: subject for suite, _ in plan for subject in suite.subjects}
    versions = {name: versions_of(subject.requirements) for name, subject in subjects.items()}
    results = Results(datetime.now(UTC).isoformat(timespec="minutes"), machine, versions)
    progress = _Progress(sum(steps(suite, rounds) for suite, rounds in plan))
    for suite, rounds in plan:
        run_suite(suite, rounds, results.samples, progress)
    progress.end()
    return results


def main() -> None:
    """See `_arguments`."""
    arguments = _arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # else the measured processes would outlive this one
    plan = [
        (suite, arguments.rounds or suite.rounds)
        for suite in SUITES
        if (arguments.full or not suite.only_full) and (not arguments.suite or suite.name in arguments.suite)
    ]
    results = Results.load(arguments.taken) if arguments.taken else _run(plan)
    if arguments.json:
        results.save(arguments.json)
    print(report(results))
    if arguments.compare:
        print("### Changed\n\n" + comparison(Results.load(arguments.compare).samples, results.samples))
    if arguments.chart:
        arguments.chart.write_text(chart(results.samples, "stdio"))
    if arguments.write:
        write(results)


if __name__ == "__main__":
    main()
