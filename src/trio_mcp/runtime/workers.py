"""Plain ``def`` handlers, in worker threads that can be given up."""

from __future__ import annotations

import contextlib
import logging
import queue
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar, cast

import outcome
import trio

from ..jsonrpc.errors import CodedError
from ..spec.errors import TOO_BUSY

__all__ = ["Workers", "await_in_worker", "run_in_worker"]

T = TypeVar("T")

logger = logging.getLogger("trio_mcp")


class Workers:
    """The threads of plain handlers: up to ``running`` that work, and up to ``asking`` more that wait for an answer of
    their peer. So nobody who waits for a thread waits for somebody's user."""

    def __init__(self, running: int, asking: int) -> None:
        self.running = trio.CapacityLimiter(running)
        self.asking = 0
        """How many wait for an answer now."""
        self._most_asking = asking

    def admit_asking(self) -> None:
        """One more waits for an answer. Raises `CodedError` when it is one too many."""
        if self.asking >= self._most_asking:
            raise CodedError(TOO_BUSY, "Too busy: too many handlers in threads wait for answers; try again later")
        self.asking += 1


class _Place:
    """That of one thread, from its start to its end, whoever has given it up meanwhile. It takes the limiter's place in
    `trio.to_thread.run_sync`."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._asks = False

    async def acquire_on_behalf_of(self, _: object) -> None:
        await self._workers.running.acquire_on_behalf_of(self)

    def release_on_behalf_of(self, _: object) -> None:
        if self._asks:
            self._workers.asking -= 1
        else:
            self._workers.running.release_on_behalf_of(self)

    async def while_asking(self, call: Callable[[], Awaitable[T]]) -> T:
        """Let somebody else run until ``call`` has ended. When that is cancelled, the thread is to end, and does not
        wait for its turn."""
        workers = self._workers
        workers.admit_asking()
        self._asks = True
        workers.running.release_on_behalf_of(self)
        try:
            return await call()
        finally:
            await workers.running.acquire_on_behalf_of(self)
            self._asks = False
            workers.asking -= 1


_here: ContextVar[tuple[trio.Nursery, _Place]] = ContextVar("trio_mcp.worker")
"""Where what a worker thread waits for runs, so that it is cancelled with the thread's call; and its place."""


async def run_in_worker(call: Callable[[], T], workers: Workers, grace: float) -> T:
    """Run ``call`` in one of the threads of ``workers`` and return what it returns.

    Cancelled, the thread learns it at its next `trio.from_thread.check_cancelled` or `await_in_worker` and has
    ``grace`` seconds to end; then it is abandoned: it runs on, keeps its place in ``workers``, and nobody looks at
    its result (DESIGN ruling 8). A call that has not started by then never does.
    """
    place = _Place(workers)
    async with trio.open_nursery() as nursery:
        token = _here.set((nursery, place))
        end = await outcome.acapture(_run_in_thread, call, place, grace)
        _here.reset(token)  # the nursery knows this task, and its context is not to know the nursery
        nursery.cancel_scope.cancel(reason="the thread has ended")
    try:
        return end.unwrap()  # outside of the nursery, which would put an exception into a group
    finally:
        del end  # the traceback of an exception knows this frame, and only the garbage collector could part them


def await_in_worker(call: Callable[[], Awaitable[T]], *, asks: bool = False) -> T:
    """From a thread that `run_in_worker` started: run ``call`` in trio and return what it returns.

    ``asks``: it waits for the peer, so somebody else may run meanwhile. Raises what ``call`` raises, `trio.Cancelled`
    when the thread's call is cancelled meanwhile or was before, and `CodedError` when too many ask.
    In any other thread of trio's it is `trio.from_thread.run`.
    """
    here = _here.get(None)
    if here is None:
        return trio.from_thread.run(_awaiting, call)
    nursery, place = here
    wait = place.while_asking if asks else _awaiting
    # trio would run it in a system task, which nothing cancels, since the thread may be abandoned.
    ends = queue.SimpleQueue[outcome.Outcome[T]]()

    async def run() -> None:
        end = await outcome.acapture(wait, call)
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


async def _run_in_thread(call: Callable[[], T], place: _Place, grace: float) -> T:
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
        await trio.to_thread.run_sync(body, limiter=cast("Any", place), abandon_on_cancel=True)
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
