"""run_until_interrupted: Ctrl-C as a cancel, so that everything opened is closed and no code is interrupted in a
step."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from ...concurrency.nurseries import open_service_nursery
from ..statuses import SIGNALLED
from .signals import Signals

T = TypeVar("T")


def run_until_interrupted(work: Callable[[], Awaitable[T]], timeout: float | None = None) -> T:
    """Run ``work`` by `trio.run` and return its result.

    Raises `KeyboardInterrupt` after Ctrl-C, when the work has cleaned up, `SystemExit` after another signal that asks
    for the end, and `trio.TooSlowError` after ``timeout`` seconds. See `Signals` for stuck work.
    """
    results: list[T] = []
    ended_by: list[int] = []

    async def run() -> None:
        with Signals() as signals:
            async with open_service_nursery("the command is over") as nursery:
                with trio.CancelScope() as scope:

                    async def leave_at_signals() -> None:
                        async for number in signals.numbers:
                            ended_by.append(number)
                            scope.cancel(reason=signal.Signals(number).name)

                    nursery.start_soon(leave_at_signals)
                    with signals.limited(timeout):
                        results.append(await work())

    trio.run(run)
    if results:
        return results[0]
    if ended_by[0] == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(SIGNALLED + ended_by[0])
