"""Ctrl-C as a cancel like any other: what was opened is closed, and no code is hit in the middle of a step."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from ...runtime.nurseries import open_service_nursery

__all__ = ["run_until_interrupted"]

T = TypeVar("T")


def run_until_interrupted(work: Callable[[], Awaitable[T]]) -> T:
    """`trio.run` it. Raises `KeyboardInterrupt` after Ctrl-C, when the work has cleaned up."""
    results: list[T] = []

    async def run() -> None:
        with trio.open_signal_receiver(signal.SIGINT) as interrupts:
            async with open_service_nursery("the command is over") as nursery:
                with trio.CancelScope() as scope:

                    async def leave_at_interrupt() -> None:
                        async for _ in interrupts:
                            scope.cancel(reason="Ctrl-C")

                    nursery.start_soon(leave_at_interrupt)
                    results.append(await work())

    trio.run(run)
    if not results:
        raise KeyboardInterrupt
    return results[0]
