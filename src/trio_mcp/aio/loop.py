"""The side of asyncio: calls that tasks wait for, context managers that tasks enter and leave, and handlers.

The members of wrappers are each made of the member of trio's own class, by one line that says how a task of asyncio
comes to the member. Docstrings, parameters and types are those of the original.

trio's side never waits for the event loop but under a scope that the end of a client, or of a request, cancels.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import Context, copy_context
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast

import trio

from ..bridging.calls import (
    CALL_HANDLERS,
    CALLBACKS,
    METHOD_TABLES,
    BridgedCall,
    BridgedItems,
    Callback,
    OpenContext,
    StartWork,
    Wrapper,
    call_contained,
    is_async,
    reason_of,
    start_call,
    with_contained,
)
from ..bridging.portal import ThreadWork, TrioPortal
from ..concurrency.misuse import async_with_only

P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V", bound=Wrapper)


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
    call: BridgedCall[T] = BridgedCall(
        lambda: make(call), partial(running_loop().call_soon_threadsafe, inbox.put_nowait)
    )
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


class AsyncBridgedContext(AbstractAsyncContextManager[V]):
    """A context manager of trio's that any tasks of asyncio enter and leave, with a ``view`` of its value.

    ``manager`` makes the trio one, for handlers in the given loop; ``start`` begins its life in the trio thread. The
    end of the loop closes all that is open.
    """

    _call: BridgedCall[None]
    _context: OpenContext[Any]
    _loop_closer: AsyncGenerator[None]

    def __init__(
        self, manager: Callable[[HandlerLoop], AbstractAsyncContextManager[Any]], view: type[V], start: StartWork
    ) -> None:
        self._manager = manager
        self._view = view
        self._start = start
        self._finished = _uncancellable_future()

    async def __aenter__(self) -> V:
        loop = running_loop()
        opened, ended = _uncancellable_future(), self._finished

        def tell(_: Callback | None) -> None:  # without this object, which is closed when nobody else refers to it
            ended.set_result(None)
            if not opened.done():
                opened.set_result(None)

        manager = self._manager(HandlerLoop(loop))
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


class AsyncBridgedIterator(BridgedItems[T], AsyncIterator[T]):
    """An iterator of trio's as an iterator of asyncio's. One task at a time; a cancelled step loses nothing."""

    async def __anext__(self) -> T:
        if not self.items:
            await run_in_trio(self.start, self.fetch)
        return self.items.popleft()


_HANDLERS: Final = frozenset({"sampling", "elicitation", "elicitation_url", "roots"})
_MOST_POSTED: Final = 100
_PATIENCE: Final = 5.0


class HandlerLoop:
    """An event loop, in which the handlers and callbacks of a client run."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._room = threading.BoundedSemaphore(_MOST_POSTED)

    def adapt(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return ``options`` of a client, with handlers and callbacks that trio can call."""
        return {key: self._adapted(key, value) for key, value in options.items()}

    def _adapted(self, key: str, value: Any) -> Any:
        if key in METHOD_TABLES and value is not None:
            return with_contained(value)
        if not callable(value):
            return value
        if key in CALLBACKS or (key in _HANDLERS and is_async(value)):
            return partial(self._run, value)
        if key in _HANDLERS:
            return partial(self._in_worker, value)
        if key == "on_unreadable" and not is_async(value):
            return partial(self._call_soon, value)
        return value

    def _in_worker(self, handler: Callable[..., Any], *args: Any) -> Any:
        answer = call_contained(handler, *args)
        return self._run(lambda: answer) if inspect.isawaitable(answer) else answer

    def _call_soon(self, callback: Callable[..., Any], *args: Any) -> None:
        """Have a plain callback called soon; not at all while a hundred calls wait for a loop that is busy."""
        if self._room.acquire(blocking=False):
            self._loop.call_soon_threadsafe(self._run_posted, callback, args)

    def _run_posted(self, callback: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._room.release()
        callback(*args)

    async def _run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run a function in a task of the loop, and return its result. A cancel cancels the task, and is raised when
        the task has ended, or has not ended in five seconds."""
        over = trio.Event()
        running = _LoopTask(
            partial(function, *args), partial(trio.lowlevel.current_trio_token().run_sync_soon, over.set)
        )
        self._loop.call_soon_threadsafe(running.start, copy_context())
        try:
            await over.wait()
        except trio.Cancelled as cancelled:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(running.cancel, cancelled.reason)
            with trio.CancelScope(shield=True, deadline=trio.current_time() + _PATIENCE):
                await over.wait()
            raise
        return running.result()


class _LoopTask:
    """A task of asyncio's that runs ``function``; ``over`` is called at its end."""

    _task: asyncio.Task[Any]

    def __init__(self, function: Callable[[], Any], over: Callable[[], object]) -> None:
        self._function = function
        self._over = over

    def start(self, context: Context) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), context=context)
        self._task.add_done_callback(lambda _: self._over())

    async def _run(self) -> Any:
        answer = self._function()
        return await answer if inspect.isawaitable(answer) else answer

    def cancel(self, reason: str | None) -> None:
        self._task.cancel(reason)

    def result(self) -> Any:
        try:
            return self._task.result()
        except Exception:
            raise
        except BaseException as error:  # in trio's thread, it would be an end of all clients
            raise RuntimeError(f"the handler ended in its event loop by {type(error).__name__}") from None


def async_method(
    method: Callable[Concatenate[Any, P], Awaitable[T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return a method that runs the async original in the trio thread."""

    @wraps(method)
    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        original = getattr(self._original, method.__name__)
        if not CALL_HANDLERS.isdisjoint(kwargs):
            kwargs = HandlerLoop(running_loop()).adapt(kwargs)
        return await run_in_trio(self._begin, lambda call: original(*args, **call.with_callbacks(kwargs)))

    return cast("Any", call)


def wrapped_method(
    method: Callable[Concatenate[Any, P], Awaitable[Any]], view: type[V]
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, V]]:
    """Return a method as of `awaited`, with a ``view`` of the result."""
    call = async_method(method)

    @wraps(method)
    async def call_for_view(self: Any, *args: Any, **kwargs: Any) -> V:
        return view(await cast("Any", call)(self, *args, **kwargs), self._begin)

    return cast("Any", call_for_view)


def iterator_method(
    method: Callable[Concatenate[Any, P], AsyncIterator[T]],
) -> Callable[Concatenate[Any, P], AsyncIterator[T]]:
    """Return a method that iterates as the original does, which begins with the first step."""

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return AsyncBridgedIterator(self._begin, partial(getattr(self._original, method.__name__), *args, **kwargs))

    return cast("Any", call)


def context_method(
    method: Callable[Concatenate[Any, P], AbstractAsyncContextManager[Any]], view: type[V]
) -> Callable[Concatenate[Any, P], AbstractAsyncContextManager[V]]:
    """Return a method whose context manager has a ``view`` of the value of the original's."""

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        manager = getattr(self._original, method.__name__)(*args, **kwargs)
        return AsyncBridgedContext(lambda _: manager, view, self._begin)

    return cast("Any", call)


def open_function(
    function: Callable[P, AbstractAsyncContextManager[Any]], view: type[V], name: str
) -> Callable[P, AbstractAsyncContextManager[V]]:
    """Return a function that opens as the original, an ``open_*``, does, and gives a ``view`` of what it opens."""

    @async_with_only(name)
    @wraps(function)
    def opened(*args: P.args, **kwargs: P.kwargs) -> AbstractAsyncContextManager[V]:
        manager = function
        return AsyncBridgedContext(lambda loop: manager(*args, **loop.adapt(kwargs)), view, TrioPortal.start)

    return opened
