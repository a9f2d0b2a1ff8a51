"""TestedStorage: the base class of the storage test suites, which opens replicas of the storage under test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, TypeVar

import trio

from ...stores.shared import Replica
from ...stores.task_store import HintsLost

T = TypeVar("T")

PATIENCE: Final = 60.0
"""Seconds after which a test gives up waiting."""

HOSTILE: Final = (
    *("", "\0", "a\0b", "*", "?", "[a-z]", "%", "a", "A", "a:b", "a.b", "{a}", "../a", "'", "\n"),
    *("\N{SNOWMAN}", "\ud800", "\udcff", "x" * 100_000),
)
"""Strings that have a special meaning in some storage, such as wildcards."""

ALL_BYTES: Final = bytes(range(256))

LENGTHS: Final = (100, 1000, 10_000, 100_000)
"""Time limits in milliseconds that a test tries one after another, until the machine is fast enough for the limit."""


class TestedStorage:
    """Base class of the storage test suites: opens replicas of the storage under test, which is empty when a test
    begins."""

    def open_replica(self, name: str = "tested") -> AbstractAsyncContextManager[Replica]:
        """Open the shared storage as one more replica of the server ``name``. All replicas of a test share one
        storage."""
        raise NotImplementedError("a test class that inherits this suite must define open_replica()")


async def run_concurrently(calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T | Exception]:
    """Run ``calls`` concurrently, and return a list with the result or the exception of each call."""
    results = dict[int, T | Exception]()

    async def make(number: int, call: Callable[[], Awaitable[T]]) -> None:
        try:
            results[number] = await call()
        except Exception as error:
            results[number] = error

    async with trio.open_nursery() as nursery:
        for number, call in enumerate(calls):
            nursery.start_soon(make, number, call)
    return [results[number] for number in range(len(calls))]


async def wait_until(holds: Callable[[], Awaitable[bool]]) -> float:
    """Call ``holds`` repeatedly until it returns true, and return trio's time at that moment."""
    with trio.fail_after(PATIENCE):
        while not await holds():  # noqa: ASYNC110 - the storage has its own clock
            await trio.sleep(0.005)
    return trio.current_time()


async def expect_hints(hints: AsyncIterator[T | HintsLost], *wanted: T) -> list[T]:
    """Wait until all notifications in ``wanted`` have arrived. Return all notifications that arrived."""
    seen = list[T]()
    with trio.fail_after(PATIENCE):
        while not all(each in seen for each in wanted):
            hint = await anext(hints)
            if not isinstance(hint, HintsLost):
                seen.append(hint)
    return seen


async def expect_hint_or_loss(hints: AsyncIterator[T | HintsLost], last: T) -> None:
    """Wait until the notification ``last`` arrives, or `HINTS_LOST`, which means that notifications were lost."""
    with trio.fail_after(PATIENCE):
        async for hint in hints:
            if isinstance(hint, HintsLost) or hint == last:
                return


async def cancel_one_wait(hints: AsyncIterator[object]) -> None:
    """Wait until a notification arrives, but cancel that wait after 10 milliseconds."""
    with trio.move_on_after(0.01) as scope:
        while True:
            await anext(hints)
    assert scope.cancelled_caught
