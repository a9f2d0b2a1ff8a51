"""``python -m benchmarks.budget``: fails when a hot path executes more than its budget. ``--record`` renews that;
``--where`` shows instead in which parts the bytecode of each path runs."""

from __future__ import annotations

import gc
import json
import sys
import tracemalloc
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import trio
from trio.testing import MockClock

from .counting import counting, kept_bytes
from .paths import (
    CLIENT_PATHS,
    HTTP_PATHS,
    SERVER_PATHS,
    protected_over_http,
    served,
    served_over_http,
    start_listening,
    start_sessions,
    start_waiting,
    used,
)
from .places import placing, shares

__all__ = ["faults", "main"]

_FILE = Path(__file__).parent / "budget.json"
_COUNT = 200
_TOLERANCE = 0.05
"""What a path may execute beyond its budget: a share. trio runs ready tasks in either order, which is worth 0.005."""


async def _counted(run: Callable[[int], Awaitable[None]]) -> dict[str, float]:
    """What one passage executes, once all that is done once has been done."""
    for _ in range(4):  # the fourth instance of a class has its `__init__` compiled
        await run(10)
    with counting() as count:
        await run(_COUNT)
    return {"instructions": round(count.instructions / _COUNT, 1), "calls": round(count.calls / _COUNT, 1)}


async def _bytes_of(start: Callable[[int], Awaitable[object]]) -> dict[str, float]:
    """What each keeps of the many that ``start`` starts."""
    await start(10)
    gc.collect()
    tracemalloc.start()
    before = kept_bytes()
    await start(_COUNT)
    kept = kept_bytes() - before
    tracemalloc.stop()
    return {"bytes": round(kept / _COUNT)}


async def _walk(each: Callable[[str, Callable[[int], Awaitable[None]]], Awaitable[None]]) -> None:
    """Call ``each`` with the name of every path, and with what goes through it so many times."""
    for name, path in SERVER_PATHS.items():
        async with served() as stream:
            await each(name, partial(path, stream))
    async with served_over_http() as (modern, legacy):
        for name, path in HTTP_PATHS.items():
            await each(f"http: {name}", partial(path, modern))
            await each(f"http session: {name}", partial(path, legacy))
    async with protected_over_http() as client:
        await each("http: echo, protected", partial(HTTP_PATHS["echo"], client))
    for name, path in CLIENT_PATHS.items():
        rows: list[str] = []
        async with used(rows) as (stream, client):
            await each(name, partial(path, stream, client, rows))


async def _measure() -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}

    async def measure(name: str, run: Callable[[int], Awaitable[None]]) -> None:
        found[name] = await _counted(run)

    await _walk(measure)
    async with served() as stream:
        found["request in flight"] = await _bytes_of(partial(start_waiting, stream))
    async with served_over_http() as (modern, legacy), AsyncExitStack() as streams:
        found["http: listen stream"] = await _bytes_of(partial(start_listening, modern, streams))
        found["http session: idle"] = await _bytes_of(partial(start_sessions, legacy))
    return found


async def _show_places() -> None:
    async def show(name: str, run: Callable[[int], Awaitable[None]]) -> None:
        await run(10)
        with placing() as counts:
            await run(_COUNT)
        print(name, *shares(counts, _COUNT), sep="\n")

    await _walk(show)


def _comparable(unit: str, recorded: dict[str, Any]) -> bool:
    """Bytecode and the size of objects differ between versions of Python, calls hardly do."""
    return unit == "calls" or recorded["python"] == _python()


def _python() -> str:
    return "{}.{}".format(*sys.version_info)


def faults(found: dict[str, dict[str, float]], recorded: dict[str, Any]) -> list[str]:
    """What is over its budget, one line each."""
    return [
        f"{path}: {value:g} {unit}, budget {budget:g} ({value / budget - 1:+.1%})"
        for path, budgets in recorded["paths"].items()
        for unit, budget in budgets.items()
        if _comparable(unit, recorded) and (value := found[path][unit]) > budget * (1 + _TOLERANCE)
    ]


def main(arguments: list[str]) -> int:
    """See the module."""
    if arguments == ["--where"]:
        trio.run(_show_places, clock=MockClock())
        return 0
    found = trio.run(_measure, clock=MockClock())
    for path, values in found.items():
        print(f"{path:32}" + "".join(f"{value:>10,.1f} {unit}" for unit, value in values.items()))
    if arguments == ["--record"]:
        _FILE.write_text(json.dumps({"python": _python(), "paths": found}, indent=1) + "\n")
        return 0
    over = faults(found, json.loads(_FILE.read_text()))
    if over:
        print("\nover budget, per passage:\n  " + "\n  ".join(over))
        print("If it is worth it, say why in the commit, and renew the budget: python -m benchmarks.budget --record")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
