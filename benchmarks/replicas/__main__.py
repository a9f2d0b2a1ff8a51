"""``python -m benchmarks.replicas [--only NAME] [--rounds N] [--many N]``: measure what it costs to share, and print
the tables of the README. ``NAME``: ``costs``, ``throughputs``, ``crossings``, ``sessions`` or ``tasks``. ``--many``:
how many sessions and tasks (10,000)."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable
from statistics import median

from ..machine import described
from .crossing import crossings
from .echoing import Figures, costs, throughputs
from .holding import sessions, tasks

_ECHOES = 1600
_CROSSINGS = 100
_WATCHED = 25.0


def _row(*cells: str) -> None:
    print("|", " | ".join(cells), "|", flush=True)


def _head(*cells: str) -> None:
    print(f"\nload: {os.getloadavg()[0]:.1f}\n")
    _row(*cells)
    _row(*["---"] * len(cells))


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _table(title: str, rounds: Iterable[Figures], first: str | None = None) -> None:
    """Print medians, with the least and the greatest of all rounds. ``first``: the column of which the ratio to the
    first row of a group is shown, taken within a round; groups are rows with the same words before the last colon."""
    found = list(rounds)
    columns = list(dict.fromkeys(column for figures in found[0].values() for column in figures))
    _head(title, *columns, *([] if first is None else [f"{first}, ratio"]))
    for row in found[0]:
        cells: list[str] = []
        for column in columns:
            values = [figures[row][column] for figures in found if column in figures[row]]
            cells.append(_cell(values, _shown))
        if first is not None:
            base = next(each for each in found[0] if _group(each) == _group(row))
            ratios = [figures[row][first] / figures[base][first] for figures in found]
            cells.append(_cell(ratios, "{:.2f}".format))
        _row(row, *cells)


def _cell(values: list[float], shown: Callable[[float], str]) -> str:
    if len(values) < 2:
        return "".join(map(shown, values))
    return f"{shown(median(values))} ({shown(min(values))}–{shown(max(values))})"


def _group(row: str) -> str:
    return row.rpartition(": ")[0]


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replicas")
    parser.add_argument("--only", action="append")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--many", type=int, default=10_000)
    asked = parser.parse_args()
    measures = {
        "costs": lambda: _table("an echo", costs(4 * asked.rounds, _ECHOES // 4), "cpu"),
        "throughputs": lambda: _table("replicas", throughputs(asked.rounds, _ECHOES)),
        "crossings": lambda: _table("µs", crossings(asked.rounds, _CROSSINGS), "p50"),
        "sessions": lambda: _table(f"{asked.many:,} sessions", [{"2 replicas": sessions(asked.many)}]),
        "tasks": lambda: _table(f"{asked.many:,} tasks that wait", [tasks(asked.many, _WATCHED)]),
    }
    for name, value in described().items():
        print(f"- {name}: {value}")
    for name, measure in measures.items():
        if asked.only is None or name in asked.only:
            measure()


if __name__ == "__main__":
    main()
