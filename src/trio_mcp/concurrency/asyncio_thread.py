"""`AsyncioThread` runs an asyncio event loop in a thread, so that trio tasks can call asyncio functions and wait for
their results. A `LoopTask` is one such call."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Final, Generic, TypeVar, cast

import outcome
import trio

from ..jsonrpc.errors import TOO_BUSY, CodedError
from .contexts import asynccontextmanager
from .nurseries import sole_exception
from .threads import TrioRun, loop_calls
from .time_limits import Graces

T = TypeVar("T")

logger = logging.getLogger("trio_mcp")

_PATIENCE: Final = 5.0
"""Seconds that the asyncio tasks have to finish when their event loop ends. After that, the loop's worker threads have
the same time."""


class AsyncioThread:
    """A thread that runs an asyncio event loop.

    Create the object in the trio run that uses it, and call `aclose` at the end. While ``max_abandoned`` tasks that
    ignore their cancellation still run, new calls are refused.
    """

    def __init__(self, max_abandoned: int) -> None:
        self._max_abandoned = max_abandoned
        self._abandoned: list[LoopTask[Any]] = []
        self._trio_run = TrioRun()
        self._running: set[LoopTask[Any]] = set()
        """The asyncio tasks that run now, and for whose end a call of `run` waits."""
        self._ended = trio.Event()
        self._is_ending = False
        self._loop = asyncio.new_event_loop()
        # Use a daemon thread, so that a handler that blocks the event loop forever doesn't keep Python from exiting.
        self._thread = threading.Thread(target=self._run_loop, name="trio-mcp asyncio", daemon=True)
        self._thread.start()

    @property
    def has_ended(self) -> bool:
        """True if the event loop no longer runs, because `aclose` was called or the loop has failed."""
        return self._ended.is_set()

    @property
    def is_here(self) -> bool:
        """True if the current code runs in the thread of the asyncio event loop."""
        return threading.get_ident() == self._thread.ident

    async def run(
        self, function: Callable[[], Awaitable[T]], graces: Graces, abandoned: Callable[[], object] = bool
    ) -> T:
        """Run ``function`` in an asyncio task of the event loop, and return its result.

        Cancellation cancels the task, with the reason as its message, and is raised when the task has ended. A task
        that does not end within the grace is abandoned and logged, and ``abandoned`` is called. Raises `CodedError`
        while too many abandoned tasks run.
        """
        self._abandoned = [task for task in self._abandoned if not task.over.is_set()]  # frees their arguments
        if len(self._abandoned) >= self._max_abandoned:
            raise CodedError(TOO_BUSY, "Too busy: too many cancelled calls are still running; try again later")
        async with trio.open_nursery() as nursery:
            calls, context = LoopCalls(self, self._loop, self._trio_run, nursery), copy_context()
            context.run(loop_calls.set, calls)
            task = LoopTask[T](self._loop, partial(_contained, function), context)
            self._running.add(task)
            try:
                await task.over.wait()
            except trio.Cancelled as cancelled:
                task.cancel(cancelled.reason)
                with graces.grace():
                    await task.over.wait()
                if not task.over.is_set() and await calls.end_waiting():
                    with graces.grace():  # allow a second grace period: the trio call has used up the first one
                        await task.over.wait()
                if not task.over.is_set():
                    self._abandoned.append(task)
                    # Log only the function, because its arguments may be private.
                    called: Any = getattr(function, "func", function)
                    logger.warning(
                        "a handler on asyncio did not end within %g s of its cancel, and is abandoned: %s swallows "
                        "asyncio.CancelledError, or blocks the event loop",
                        graces.seconds,
                        getattr(called, "__qualname__", type(called).__qualname__),
                    )
                    abandoned()
                raise
            finally:
                self._running.discard(task)
                calls.end()
        if self.has_ended:
            raise RuntimeError("the asyncio event loop ended before the handler that ran in it had finished")
        return task.result()

    @asynccontextmanager
    async def opened(self, manager: AbstractAsyncContextManager[T], graces: Graces) -> AsyncGenerator[T]:
        """Enter the asyncio context manager ``manager`` in the event loop, and yield its value.

        One asyncio task enters and exits the context manager.
        """
        values: list[T] = []
        opened, closing = trio.Event(), asyncio.Event()

        async def hold() -> None:
            async with manager as value:
                values.append(value)
                self._trio_run.call_soon(opened.set)
                await closing.wait()

        async def run() -> None:
            try:
                await self.run(hold, graces)
            finally:
                opened.set()

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run)
                await opened.wait()
                if values:
                    yield values[0]
                    self._loop.call_soon_threadsafe(closing.set)
        except BaseExceptionGroup as group:
            raise sole_exception(group) from None

    async def aclose(self) -> None:
        """Cancel the tasks that still run in the event loop, and end its thread.

        Returns after about ten seconds at the latest. If the thread is blocked longer, the thread is left running, and
        a warning is logged.
        """
        with suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._begin_end)
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 2 * _PATIENCE + 1):
            await self._ended.wait()
        if self._ended.is_set():
            self._thread.join()
        else:
            logger.warning("the event loop of asyncio is blocked, and its thread is left behind: a handler blocks it")

    def _tell_ended(self) -> None:
        self._ended.set()
        for task in self._running:
            task.over.set()

    # The methods below run in the thread of the asyncio event loop

    def _run_loop(self) -> None:
        try:
            self._run_until(lambda: self._is_ending)
            # Don't use asyncio.Runner, which waits without a time limit.
            ending = self._loop.create_task(self._end_tasks())
            ending.add_done_callback(lambda _: self._loop.stop())
            self._run_until(ending.done)
        except Exception:
            logger.exception("the event loop of asyncio has failed; the next call starts another one")
        finally:
            self._trio_run.call_soon(self._tell_ended)
            self._loop.close()

    def _run_until(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            try:
                self._loop.run_forever()
            # Log a SystemExit or KeyboardInterrupt, and continue: it would end the event loop and all its calls.
            except (SystemExit, KeyboardInterrupt) as error:
                logger.exception("a task of asyncio raised %s, which would end the server", type(error).__name__)

    def _begin_end(self) -> None:
        self._is_ending = True
        self._loop.stop()

    async def _end_tasks(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel("the server has ended")
        if tasks:
            _, pending = await asyncio.wait(tasks, timeout=_PATIENCE)
            for task in pending:
                logger.warning("a task of asyncio swallows asyncio.CancelledError, and is dropped: %s", task)
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                await self._loop.shutdown_asyncgens()
                await self._loop.shutdown_default_executor()


async def _contained(function: Callable[[], Awaitable[T]]) -> T:
    try:
        return await function()
    except (SystemExit, KeyboardInterrupt) as error:  # SystemExit and KeyboardInterrupt would end the event loop
        raise RuntimeError(f"the handler must not raise {type(error).__name__}, which would end the server") from error


class LoopTask(Generic[T]):
    """An asyncio task in the event loop ``loop`` that runs ``function`` in ``context``.

    Create this object in the trio run that waits for the asyncio task.

    Raises `RuntimeError` if the loop is closed.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, function: Callable[[], T | Awaitable[T]], context: Context
    ) -> None:
        self._loop = loop
        self._function = function
        self._trio_run = TrioRun()
        self.task: asyncio.Task[T] | None = None
        """The asyncio task that runs the function. `None` before it starts."""
        self.over = trio.Event()
        """Event that is set when the task has ended."""
        loop.call_soon_threadsafe(self._start, context)

    # The methods below run in the thread of the asyncio event loop

    def _start(self, context: Context) -> None:
        self.task = self._loop.create_task(self._run(), context=context)
        self.task.add_done_callback(self._tell)

    async def _run(self) -> T:
        answer = self._function()
        return await cast("Awaitable[T]", answer) if inspect.isawaitable(answer) else cast("T", answer)

    def _tell(self, _: object) -> None:
        self._trio_run.call_soon(self.over.set)

    # In trio's thread

    def cancel(self, reason: str | None) -> None:
        """Cancel the asyncio task. ``reason`` is the message of the cancellation.

        Does nothing if the loop is closed.
        """
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._cancel, reason)

    def _cancel(self, reason: str | None) -> None:
        if self.task is not None:
            self.task.cancel(reason)

    @property
    def was_cancelled(self) -> bool:
        """True if the asyncio task ended because it was cancelled."""
        return self.task is not None and self.task.cancelled()

    def result(self) -> T:
        """Return the result of the task, or raise the task's exception.

        Exceptions that would end the whole trio run, such as asyncio's cancellation, are replaced by `RuntimeError`.
        """
        task: Any = self.task
        try:
            return task.result()
        except Exception:
            raise
        except BaseException as error:
            raise RuntimeError(f"the handler raised {type(error).__name__} in the asyncio event loop") from None


class LoopCalls:
    """Lets asyncio tasks call trio functions, which run in ``nursery``.

    The tasks belong to one call of `AsyncioThread.run`.
    """

    def __init__(
        self, thread: AsyncioThread, loop: asyncio.AbstractEventLoop, trio_run: TrioRun, nursery: trio.Nursery
    ) -> None:
        self._thread = thread
        self._loop = loop
        self._trio_run = trio_run
        self._nursery = nursery
        self._scopes: dict[trio.CancelScope, None] | None = {}
        """The cancel scopes of the calls into trio. `None` once the function has returned."""
        self._call_ended: trio.Event | None = None

    def end(self) -> None:
        """Cancel the calls of trio functions that leftover asyncio tasks have made: tasks that still run after the
        function that started them has returned.

        The function of this `AsyncioThread.run` call started these tasks, and did not wait for them. Called in trio's
        thread.
        """
        scopes, self._scopes = self._scopes or {}, None
        for scope in scopes:
            scope.cancel(reason="the handler has returned")

    async def end_waiting(self) -> bool:
        """Cancel all calls of trio functions for which asyncio tasks are waiting at the moment.

        Like a nursery, wait until these calls have ended, even if this task is cancelled. Return true if there were any
        such calls. Called in trio's thread.
        """
        scopes = list(self._scopes or ())
        for scope in scopes:
            scope.cancel(reason="the task of asyncio was cancelled")
        with trio.CancelScope(shield=True):
            while any(scope in (self._scopes or ()) for scope in scopes):
                self._call_ended = trio.Event()
                await self._call_ended.wait()
        return bool(scopes)

    @property
    def is_here(self) -> bool:
        """True if the current code runs in the thread of the asyncio event loop."""
        return self._thread.is_here

    async def checkpoint(self) -> None:
        """Raise `asyncio.CancelledError` if the current asyncio task is cancelled."""
        await asyncio.sleep(0)

    async def call(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run ``function`` in trio for an asyncio task, and return its result.

        Cancelling the asyncio task cancels the call, and `asyncio.CancelledError` is raised when the call has ended.
        """
        ended: asyncio.Future[outcome.Outcome[T] | None] = self._loop.create_future()
        scope = trio.CancelScope()

        def tell(end: outcome.Outcome[T] | None) -> None:
            with suppress(RuntimeError):  # if the event loop is closed, asyncio raises RuntimeError
                self._loop.call_soon_threadsafe(ended.set_result, end)

        async def run() -> None:
            end: outcome.Outcome[T] | None = None
            # If the MCP request is cancelled, its asyncio task is cancelled, which cancels this trio call.
            # Without the shield, trio would cancel this call as well, and the asyncio task would be cancelled twice.
            scope.shield = trio.current_effective_deadline() > trio.current_time()
            try:
                with scope:
                    try:
                        end = outcome.Value(await function())
                    except Exception as error:
                        end = outcome.Error(error)
            finally:
                if self._scopes is not None:
                    del self._scopes[scope]
                if self._call_ended is not None:
                    self._call_ended.set()
                tell(end)
                del end  # break the reference cycle: an exception's traceback refers to this frame

        def start() -> None:
            if self._scopes is None:
                tell(outcome.Error(RuntimeError("the request is over: its handler returned before this task ended")))
            else:
                self._scopes[scope] = None
                self._nursery.start_soon(run)

        if not self._trio_run.call_soon(copy_context().run, start):
            raise RuntimeError("the trio function was not called, because the server has ended")
        return await self._wait(ended, scope)

    async def _wait(self, ended: asyncio.Future[outcome.Outcome[T] | None], scope: trio.CancelScope) -> T:
        """Wait in the asyncio event loop for a trio call that runs in ``scope``, and return its result.

        If this task is cancelled, cancel ``scope``, and raise the cancellation after the call has ended.
        """
        cancelled: BaseException | None = None
        while not ended.done():
            try:
                await asyncio.shield(ended)
            except asyncio.CancelledError as error:
                cancelled = error
                self._trio_run.call_soon(partial(scope.cancel, reason="the task of asyncio was cancelled"))
        end: Any = ended.result()
        try:
            if cancelled is not None:
                raise cancelled
            if end is None:
                raise asyncio.CancelledError("the request was cancelled")
            return end.unwrap()
        finally:
            del cancelled, end
