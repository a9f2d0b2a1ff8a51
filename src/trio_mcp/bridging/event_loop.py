"""Calls into the trio thread that asyncio tasks wait for, and trio context managers that asyncio tasks enter and exit.

The trio side waits for the event loop only inside a scope that is cancelled when the context manager exits or the
request ends.
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

from .calls import BridgedCall, Callback, EnteredContext, OpenContext, StartWork, reason_of, start_call

T = TypeVar("T")


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the running asyncio event loop. Raises `RuntimeError` if the caller doesn't run in an asyncio task."""
    if trio.lowlevel.in_trio_task():
        raise RuntimeError(
            "trio_mcp.aio is for asyncio, but trio runs this task: use trio_mcp itself, for example"
            " trio_mcp.open_stdio instead of trio_mcp.aio.open_stdio"
        )
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "trio_mcp.aio needs a running asyncio event loop: call it in a coroutine that asyncio.run runs, or use"
            " trio_mcp.blocking. In a forked process, call asyncio.run again"
        ) from None


async def run_in_trio(start: StartWork, make: Callable[[BridgedCall[Any]], Awaitable[T]]) -> T:
    """Run a coroutine in the trio thread, and return its result.

    ``make`` returns the coroutine. The asyncio task waits, and runs the callbacks of the call. Cancelling the task
    cancels the call; `CancelledError` is raised when the call has ended.
    """
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
        except GeneratorExit:  # the event loop no longer runs this task
            call.cancel("the caller is gone")
            raise
        except BaseException as error:
            # If the event loop is closed, `inbox.get` replaces the GeneratorExit by an exception of its own.
            if loop.is_closed():
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


class AsyncBridgedContext(EnteredContext[T], AbstractAsyncContextManager[T]):
    """A trio context manager that one asyncio task can enter and another task can exit.

    The end of the event loop closes everything that is open.
    """

    _loop_closer: AsyncGenerator[None]
    _finished: Future[None]

    async def __aenter__(self) -> T:
        loop = running_loop()
        manager, opened = self._begin(), _uncancellable_future()
        self._finished = ended = _uncancellable_future()

        # This function must not refer to the context manager, so that garbage collection can close the manager.
        def tell(_: Callback | None) -> None:
            ended.set_result(None)
            if not opened.done():
                opened.set_result(None)

        self._context = hold = OpenContext(manager, partial(opened.set_result, None), loop.is_closed)
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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._close()
        finally:
            await self._loop_closer.aclose()
        self._call.raise_failure()

    async def _close_with_loop(self) -> AsyncGenerator[None]:
        """Close this context manager at the end of the event loop. This works because the event loop closes its async
        generators when it ends."""
        try:
            yield
        finally:
            await self._close()

    async def _close(self) -> None:
        """Close the trio context manager, and return when it has exited. If this method is cancelled, the cancellation
        is raised only after the exit."""
        hold = self._context
        assert hold is not None, "it was entered"
        hold.close()
        if hold.portal.is_inherited:
            return
        cancelled: BaseException | None = None
        while not self._finished.done():
            try:
                await asyncio.wrap_future(self._finished)
            except asyncio.CancelledError as error:
                cancelled = error
        hold.portal.join()
        if cancelled is not None:
            try:
                raise cancelled
            finally:
                del cancelled


def _uncancellable_future() -> Future[None]:
    """Return a future that any number of tasks, in any event loops, can wait for. The future isn't cancelled if a
    waiting task is cancelled."""
    future: Future[None] = Future()
    future.set_running_or_notify_cancel()
    return future
