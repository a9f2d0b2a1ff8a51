"""The parts that `python -m tests.exhaustive` explores, each with the size that CI explores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs
import trio
from tests.exhaustive.connections import ConnectionWorld
from tests.exhaustive.exchanges import ExchangeWorld
from tests.exhaustive.explorer import Report, World, explore
from tests.exhaustive.hostile import HostileClientWorld, HostileServerWorld
from tests.exhaustive.parties import Plan
from tests.exhaustive.proxies import ProxyWorld
from tests.exhaustive.proxy_parties import ProxyPlan
from tests.exhaustive.task_parties import TaskPlan
from tests.exhaustive.tasks import TaskWorld
from trio.testing import MockClock

from trio_mcp.protocol.revisions import LATEST_LEGACY, LATEST_MODERN, REVISIONS

__all__ = ["PARTS", "Part"]

_ARRAYS: Final = REVISIONS["2025-03-26"]
"""The last revision with batches."""


@attrs.frozen
class Part:
    """A world, by its ``size``."""

    name: str
    size_is: str
    make: Callable[[int], World]
    size: int
    """The size that CI explores."""

    def row(self, report: Report) -> str:
        """Return the row of docs/proof.md for a report of the size that CI explores."""
        return f"| `{self.name}` | {self.size} {self.size_is} | {report.states:,} | {report.steps:,} |"

    def explore(self, size: int | None = None, *, most_states: int = 10_000_000) -> Report:
        chosen = self.size if size is None else size

        async def in_trio() -> Report:  # the records of tasks and the endings of calls look at trio's clock
            return explore(lambda: self.make(chosen), most_states=most_states)

        return trio.run(in_trio, clock=MockClock())


def _of(plan: Callable[[int], Plan]) -> Callable[[int], World]:
    return lambda size: ConnectionWorld(plan(size))


def _by_proxy(plan: Callable[[int], ProxyPlan]) -> Callable[[int], World]:
    return lambda size: ProxyWorld(plan(size))


PARTS: Final = {
    part.name: part
    for part in (
        Part("calls", "calls, legacy", _of(lambda n: Plan(LATEST_LEGACY, n)), 3),
        Part("questions", "calls, legacy, with 1 question", _of(lambda n: Plan(LATEST_LEGACY, n, questions=1)), 2),
        Part(
            "loss",
            "calls, legacy, with 1 question, and the loss of the connection",
            _of(lambda n: Plan(LATEST_LEGACY, n, questions=1, losses=1)),
            2,
        ),
        Part("rounds", "calls, modern, with 2 rounds in all", _of(lambda n: Plan(LATEST_MODERN, n, rounds=2)), 2),
        Part(
            "connections",
            "rounds of 1 call, modern, retried over any of 2 connections that are lost",
            _of(lambda n: Plan(LATEST_MODERN, 1, rounds=n, links=2, losses=2)),
            2,
        ),
        Part(
            "batches",
            "calls in one array, 2025-03-26, and the loss of the connection",
            _of(lambda n: Plan(_ARRAYS, n, batched=True, losses=1)),
            3,
        ),
        Part("exchanges", "exchanges without a session, modern, with parking", ExchangeWorld, 6),
        Part("hostile-client", "messages, legacy", lambda n: HostileClientWorld(LATEST_LEGACY, n), 8),
        Part("hostile-client-modern", "messages, with parking", lambda n: HostileClientWorld(LATEST_MODERN, n), 6),
        Part("hostile-client-arrays", "messages, 2025-03-26", lambda n: HostileClientWorld(_ARRAYS, n), 6),
        Part("hostile-server", "messages to 2 calls, legacy", lambda n: HostileServerWorld(LATEST_LEGACY, 2, n), 5),
        Part("hostile-server-modern", "messages to 2 calls", lambda n: HostileServerWorld(LATEST_MODERN, 2, n), 5),
        Part(
            "hostile-server-batches", "messages to 2 calls, 2025-03-26", lambda n: HostileServerWorld(_ARRAYS, 2, n), 5
        ),
        Part(
            "proxy-calls",
            "calls through a proxy, legacy, with 1 confirmed cancel",
            _by_proxy(lambda n: ProxyPlan(LATEST_LEGACY, n, errors=False, has_room=True)),
            2,
        ),
        Part(
            "proxy-loss",
            "lost connection(s), legacy, with 1 confirmed cancel",
            _by_proxy(lambda n: ProxyPlan(LATEST_LEGACY, losses=n)),
            1,
        ),
        Part(
            "proxy-waits",
            "wait(s) that end early, modern, with 1 confirmed cancel and 1 abandoned thread",
            _by_proxy(lambda n: ProxyPlan(LATEST_MODERN, short_waits=n, threads=1, overtakes=True)),
            1,
        ),
        Part(
            "proxy-forgetting",
            "removal(s) of stored endings, modern, with 1 confirmed cancel",
            _by_proxy(lambda n: ProxyPlan(LATEST_MODERN, forgets=n, overtakes=True)),
            2,
        ),
        Part("task-store", "failed store call(s)", lambda n: TaskWorld(TaskPlan(n, expiries=0, renewals=0)), 3),
        Part(
            "task-questions",
            "failed store call(s), with 1 question of the task",
            lambda n: TaskWorld(TaskPlan(n, expiries=0, renewals=0, questions=1)),
            1,
        ),
        Part("task-leases", "failed store call(s), 1 expiry, 1 renewal", lambda n: TaskWorld(TaskPlan(n)), 1),
        Part("task-deaths", "death(s), 1 expiry, 1 renewal", lambda n: TaskWorld(TaskPlan(0, deaths=n)), 1),
    )
}
