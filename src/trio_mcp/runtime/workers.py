"""Plain ``def`` handlers, in worker threads that can be given up."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import TypeVar

import trio

__all__ = ["run_in_worker"]

T = TypeVar("T")

logger = logging.getLogger("trio_mcp")


async def run_in_worker(call: Callable[[], T], limiter: trio.CapacityLimiter, grace: float) -> T:
    """Run ``call`` in a thread under ``limiter`` and return what it returns.

    Cancelled, the thread learns it at its next `trio.from_thread.check_cancelled` and has ``grace`` seconds
    to end; then it is abandoned: it runs on, keeps its place in ``limiter``, and nobody looks at its result
    (DESIGN ruling 8). A call that has not started by then never does.
    """
    token = trio.lowlevel.current_trio_token()
    ended = trio.Event()
    started = given_up = False

    def body() -> T | None:
        nonlocal started
        # Each side raises its own flag before it looks at the other's, so one of them always sees.
        started = True
        if given_up:
            return None
        try:
            return call()
        finally:
            with contextlib.suppress(trio.RunFinishedError):  # abandoned, and nobody is left to tell
                token.run_sync_soon(ended.set)

    try:
        return await trio.to_thread.run_sync(body, limiter=limiter, abandon_on_cancel=True)  # type: ignore[return-value]
    except trio.Cancelled:
        given_up = True
        if started:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + grace):
                await ended.wait()
            if not ended.is_set():
                logger.warning("a thread that did not end within %g s of its cancel is abandoned: %r", grace, call)
        raise
