"""Plain ``def`` handlers, in worker threads that can be given up."""

from __future__ import annotations

import contextlib
import logging
import queue
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from typing import TypeVar

import outcome
import trio

__all__ = ["await_in_worker", "run_in_worker"]

T = TypeVar("T")

logger = logging.getLogger("trio_mcp")

_nursery: ContextVar[trio.Nursery] = ContextVar("trio_mcp.worker_nursery")
"""Where what a worker thread waits for runs, so that it is cancelled with the thread's call."""


async def run_in_worker(call: Callable[[], T], limiter: trio.CapacityLimiter, grace: float) -> T:
    """Run ``call`` in a thread under ``limiter`` and return what it returns.

    Cancelled, the thread learns it at its next `trio.from_thread.check_cancelled` or `await_in_worker` and has
    ``grace`` seconds to end; then it is abandoned: it runs on, keeps its place in ``limiter``, and nobody looks at
    its result (DESIGN ruling 8). A call that has not started by then never does.
    """
    async with trio.open_nursery() as nursery:
        token = _nursery.set(nursery)
        end = await outcome.acapture(_run_in_thread, call, limiter, grace)
        _nursery.reset(token)  # the nursery knows this task, and its context is not to know the nursery
        nursery.cancel_scope.cancel(reason="the thread has ended")
    try:
        return end.unwrap()  # outside of the nursery, which would put an exception into a group
    finally:
        del end  # the traceback of an exception knows this frame, and only the garbage collector could part them


def await_in_worker(call: Callable[[], Awaitable[T]]) -> T:
    """From a thread that `run_in_worker` started: run ``call`` in trio and return what it returns.

    Raises what it raises, and `trio.Cancelled` when the thread's call is cancelled meanwhile or was before.
    In any other thread of trio's it is `trio.from_thread.run`.
    """
    nursery = _nursery.get(None)
    if nursery is None:
        return trio.from_thread.run(_awaiting, call)
    # trio would run it in a system task, which nothing cancels, since the thread may be abandoned.
    ends = queue.SimpleQueue[outcome.Outcome[T]]()

    async def run() -> None:
        end = await outcome.acapture(_awaiting, call)
        ends.put(end)
        try:
            if isinstance(end, outcome.Error) and isinstance(end.error, trio.Cancelled):
                end.unwrap()
        finally:
            del end

    trio.from_thread.check_cancelled()
    try:
        trio.from_thread.run_sync(nursery.start_soon, run)
    except RuntimeError:  # the nursery is closed: the thread was abandoned
        trio.from_thread.check_cancelled()
        raise
    end = ends.get()
    try:
        if isinstance(end, outcome.Error) and isinstance(end.error, trio.Cancelled):
            trio.from_thread.check_cancelled()  # raises one of this thread's own
        return end.unwrap()
    finally:
        del end


async def _awaiting(call: Callable[[], Awaitable[T]]) -> T:
    return await call()


def _name(call: Callable[[], object]) -> str:
    function = call.func if isinstance(call, partial) else call
    return str(getattr(function, "__qualname__", type(function).__qualname__))


async def _run_in_thread(call: Callable[[], T], limiter: trio.CapacityLimiter, grace: float) -> T:
    token = trio.lowlevel.current_trio_token()
    ended = trio.Event()
    started = given_up = False
    ends: list[outcome.Outcome[T]] = []
    """How the call ended. Not what ``body`` returns or raises: the traceback of an exception knows the frames of the
    thread, and what they hold in their turn only the garbage collector could free."""

    def body() -> None:
        nonlocal started
        # Each side raises its own flag before it looks at the other's, so one of them always sees.
        started = True
        if given_up:
            return
        try:
            ends.append(outcome.capture(call))
            if given_up:
                ends.clear()
        finally:
            with contextlib.suppress(trio.RunFinishedError):  # abandoned, and nobody is left to tell
                token.run_sync_soon(ended.set)

    try:
        await trio.to_thread.run_sync(body, limiter=limiter, abandon_on_cancel=True)
    except trio.Cancelled:
        given_up = True
        ends.clear()
        if started:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + grace):
                await ended.wait()
            if not ended.is_set():
                # Its name only: what it was called with is nobody's business, and may be of any length.
                told = "a thread that did not end within %g s of its cancel is abandoned: %s"
                logger.warning(told, grace, _name(call))
        raise
    return ends.pop().unwrap()
