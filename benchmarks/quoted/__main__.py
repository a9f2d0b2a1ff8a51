"""``python -m benchmarks.quoted [--only NAME] [--users N] [--seconds S] [--warmup S] [--rounds N]``: measure the shop
with each SDK, and print the tables of the README. Needs ``redis-server``."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from statistics import median

from ..driver.cores import DRIVER_CORES, on_cores
from ..driver.http_session import Era, open_sessionless
from ..environments import compile_checkout
from ..machine import described
from ..replicas.redis import RedisProcess, redis
from .api import api
from .seeding import seed
from .subjects import SUBJECTS, ShopServer
from .users import Load, measured

__all__ = ["shop"]

_ERAS: dict[Era, str] = {
    "legacy": "Initialized for each call, as quoted",
    "modern": "One request per call (2026-07-28)",
}
Figures = dict[str, float]


@contextmanager
def shop(tell: Callable[[str, str], None] = os.environ.__setitem__) -> Iterator[RedisProcess]:
    """Start Redis and the API on the driver's core, and ``tell`` the servers that are started inside where they are."""
    with ExitStack() as stack:
        stack.enter_context(on_cores(DRIVER_CORES))
        store, address = stack.enter_context(redis()), stack.enter_context(api())
        tell("REDIS_URL", store.url)
        tell("API_URL", address)
        yield store


def _commands(names: list[str] | None) -> Iterator[tuple[ShopServer, list[str]]]:
    for subject in SUBJECTS:
        if names is None or subject.name in names:
            try:
                yield subject, subject.command()
            except subprocess.CalledProcessError as error:
                reason = (error.stderr or "").strip().splitlines()
                print(f"- {subject.name} is left out: {reason[-1].strip() if reason else error}", flush=True)


def _cell(values: list[float]) -> str:
    def shown(value: float) -> str:
        return f"{value:,.0f}" if value >= 100 or not value else f"{value:.3g}"

    return (
        f"{shown(median(values))} ({shown(min(values))}–{shown(max(values))})" if len(values) > 1 else shown(values[0])
    )


def _table(title: str, found: dict[str, list[Figures]]) -> None:
    columns = list(next(iter(found.values()))[0])
    print(f"\n{title}\n")
    for cells in (["server", *columns], ["---"] * (len(columns) + 1)):
        print("|", " | ".join(cells), "|")
    for name, rounds in found.items():
        print(
            "|",
            " | ".join([name, *(_cell([figures[column] for figures in rounds]) for column in columns)]),
            "|",
            flush=True,
        )


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quoted")
    parser.add_argument("--only", action="append", metavar="NAME", choices=[each.name for each in SUBJECTS])
    parser.add_argument("--users", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--warmup", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    load = Load(asked.users, asked.warmup, asked.seconds)
    compile_checkout()
    for name, value in described().items():
        print(f"- {name}: {value}", flush=True)
    commands = list(_commands(asked.only))
    taken: dict[Era, dict[str, list[Figures]]] = {era: {} for era in _ERAS}
    with shop() as store:
        for number in range(asked.rounds):
            for era, found in taken.items():
                for subject, command in commands[number % len(commands) :] + commands[: number % len(commands)]:
                    seed(store)
                    with open_sessionless(command, era) as session:
                        found.setdefault(subject.name, []).append(measured(session, load))
                    print(f"{number + 1}/{asked.rounds} {era} {subject.name}", file=sys.stderr, flush=True)
    for era, title in _ERAS.items():
        _table(title, taken[era])


if __name__ == "__main__":
    main()
