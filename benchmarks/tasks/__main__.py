"""``python -m benchmarks.tasks [N]``: measure what tasks cost, and print the tables of the README. ``N``: tasks that
wait at once (10,000), of which a tenth is polled."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from .beside import noticed
from .polling import WAYS, lived, looked_at
from .waiting import KINDS
from .ways import over_http

_LOOKS = 3000
_LIVES = 1500
_SECONDS = 18.0


def _row(*cells: str) -> None:
    print("|", " | ".join(cells), "|", flush=True)


def _head(*cells: str) -> None:
    print()
    _row(*cells)
    _row(*["---"] * len(cells))


def _waiting(count: int) -> None:
    _head(f"{count:,} tasks that wait", "memory each, KiB", "at most")
    for title in KINDS:
        command = [sys.executable, "-m", "benchmarks.tasks.waiting", title, str(count)]
        found = float(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
        _row(title, f"{found / 1024:.1f}", "12")


def _polling() -> None:
    _head("beside an ordinary call", "store", "call, µs", "median, µs", "ratio", "processor time, µs", "ratio")
    for title, opened in WAYS.items():
        for store in ("memory", "SQLite"):
            with tempfile.TemporaryDirectory() as folder:
                path = str(Path(folder, "tasks.db")) if store == "SQLite" else None
                with opened(path) as server:
                    for measure, count in ((looked_at, _LOOKS), (lived, _LIVES)):
                        figures = measure(server, count)
                        wall, cpu = figures.pop("call")
                        for what, (its_wall, its_cpu) in figures.items():
                            cells = (f"{wall:.0f}", f"{its_wall:.0f}", f"{its_wall / wall:.2f}")
                            _row(f"{title}: {what}", store, *cells, f"{its_cpu:.0f}", f"{its_cpu / cpu:.2f}")


def _beside(count: int) -> None:
    _head("echoes on another connection, beside", "median, µs", "99th percentile, µs")
    with over_http() as server:
        for what, (middle, tail) in noticed(server, count, _SECONDS).items():
            title = what if what == "nothing" else f"{count:,} {what} a second"
            _row(title, f"{middle:.0f}", f"{tail:.0f}")


def main(count: str = "10000") -> None:
    """See the module."""
    _waiting(int(count))
    _polling()
    _beside(int(count) // 10)


if __name__ == "__main__":
    main(*sys.argv[1:])
