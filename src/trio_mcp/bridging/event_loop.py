"""The side of asyncio: calls that tasks wait for, and context managers of trio's that tasks enter and leave.

trio's side never waits for the event loop but under a scope that the end of the context manager, or of a request,
cancels.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import trio

from .calls import ENTERED_TWICE, BridgedCall, Callback, OpenContext, StartWork, reason_of, start_call
from .portal import ThreadWork, TrioPortal

T = TypeVar("T")


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of the present task. Raises `RuntimeError` if asyncio doesn't run the task."""
    if trio.lowlevel.in_trio_task():
        raise RuntimeError(
            "trio_mcp.aio is for asyncio, and trio runs this task: use trio_mcp itself, for example"
            " trio_mcp.open_stdio in place of trio_mcp.aio.open_stdio"
        )
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "trio_mcp.aio needs a running event loop of asyncio, and there is none: call it in a coroutine that"
            " asyncio.run runs, after a fork too, or use trio_mcp.blocking"
        ) from None


async def run_in_trio(start: StartWork, make: Callable[[BridgedCall[Any]], Awaitable[T]]) -> T:
    """Run the coroutine that ``make`` returns in the trio thread, and return the result. This task waits, and runs the
    errands of the call. A cancel of this task cancels the call, and is raised when the call has ended."""
    inbox: asyncio.Queue[Callback | None] = asyncio.Queue()
    loop = running_loop()
    call: BridgedCall[T] = BridgedCall(lambda: make(call), partial(loop.call_soon_threadsafe, inbox.put_nowait))
    start_call(call, start)
    failure: BaseException | None = None
    while True:
        try:
            errand = await inbox.get()
            if errand is None:
                break
            if failure is None:
                await _run_callback(errand)
            else:
                errand.on_done()
        except GeneratorExit:  # nobody runs this task any more
            call.cancel("the caller is gone")
            raise
        except BaseException as error:
            if loop.is_closed():  # likewise, and the queue has replaced that exception by one of its own
                call.cancel("the caller is gone")
                raise GeneratorExit from None
            if failure is None:
                failure = error
                call.cancel(_reason_of(error))
    if failure is not None:
        try:
            raise failure
        finally:
            del failure
    return call.result()


async def _run_callback(errand: Callback) -> None:
    try:
        pending = errand.function()
        if inspect.isawaitable(pending):
            await pending
    finally:
        errand.on_done()


def _reason_of(failure: BaseException) -> str:
    if isinstance(failure, asyncio.CancelledError):
        given = failure.args[0] if failure.args else None
        return given if isinstance(given, str) and given else "the asyncio task was cancelled"
    return reason_of(failure)


class AsyncBridgedContext(AbstractAsyncContextManager[T]):
    """A context manager of trio's that any tasks of asyncio enter and leave, with a ``view`` of its value.

    ``manager`` makes the trio one, in the task that enters; ``start`` begins its life in the trio thread. The end of
    the loop closes all that is open.
    """

    _call: BridgedCall[None]
    _context: OpenContext[Any]
    _loop_closer: AsyncGenerator[None]
    _was_entered = False

    def __init__(
        self,
        manager: Callable[[], AbstractAsyncContextManager[Any]],
        view: Callable[[Any, StartWork], T],
        start: StartWork,
    ) -> None:
        self._manager = manager
        self._view = view
        self._start = start
        self._finished = _uncancellable_future()

    async def __aenter__(self) -> T:
        loop = running_loop()
        if self._was_entered:  # the end of the first time would be taken for that of the second
            raise RuntimeError(ENTERED_TWICE)
        self._was_entered = True
        opened, ended = _uncancellable_future(), self._finished

        def tell(_: Callback | None) -> None:  # without this object, which is closed when nobody else refers to it
            ended.set_result(None)
            if not opened.done():
                opened.set_result(None)

        self._context = hold = OpenContext(self._manager(), partial(opened.set_result, None), loop.is_closed)
        self._call = call = BridgedCall(hold.run, tell)
        hold.portal = start_call(call, self._start)
        try:
            await asyncio.wrap_future(opened)
        except BaseException as error:
            call.cancel(_reason_of(error))
            await self._close()
            raise
        if ended.done():
            hold.portal.join()
            call.result()
        self._loop_closer = self._close_with_loop()
        await anext(self._loop_closer)
        return self._view(hold.value, self.start)

    def start(self, work: ThreadWork) -> TrioPortal:
        """Begin ``work`` in the trio thread; at the latest the end of this context manager ends it."""
        return self._context.start(work)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._close()
        finally:
            await self._loop_closer.aclose()
        self._call.raise_failure()

    async def _close_with_loop(self) -> AsyncGenerator[None]:
        """Wait to be closed, as each loop does at its end with the generators that began there."""
        try:
            yield
        finally:
            await self._close()

    async def _close(self) -> None:
        """Close, and return when nothing is left; a cancel is raised then."""
        self._context.close()
        if self._context.portal.is_inherited:
            return
        cancelled: BaseException | None = None
        while not self._finished.done():
            try:
                await asyncio.wrap_future(self._finished)
            except asyncio.CancelledError as error:
                cancelled = error
        self._context.portal.join()
        if cancelled is not None:
            try:
                raise cancelled
            finally:
                del cancelled


def _uncancellable_future() -> Future[None]:
    """Return a future for any number of tasks, of any loops, that no cancel of a task cancels."""
    future: Future[None] = Future()
    future.set_running_or_notify_cancel()
    return future
