"""Functions that build the asyncio wrappers of trio objects, and run the client's handlers in the asyncio event loop.

Each member of a wrapper is created from the member of trio's own class, by one line that defines how an asyncio task
calls it. Docstrings, parameters and types are those of the original.

The trio side waits for the event loop only inside a scope that is cancelled when the client is closed or the request
ends.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from contextvars import copy_context
from functools import partial, wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast

import trio

from ..bridging.calls import (
    CALL_HANDLERS,
    CALLBACKS,
    METHOD_TABLES,
    BridgedItems,
    Wrapper,
    call_contained,
    is_async,
    with_contained,
)
from ..bridging.event_loop import AsyncBridgedContext, run_in_trio, running_loop
from ..bridging.portal import TrioPortal
from ..concurrency.loop_tasks import LoopTask
from ..concurrency.misuse import async_with_only

P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V", bound=Wrapper)


class AsyncBridgedIterator(BridgedItems[T], AsyncIterator[T]):
    """An asyncio iterator over the items of a trio iterator.

    Only one task may use the iterator at a time. If fetching an item is cancelled, the item isn't lost.
    """

    async def __anext__(self) -> T:
        if not self.items:
            await run_in_trio(self.start, self.fetch)
        return self.items.popleft()


_HANDLERS: Final = frozenset({"sampling", "elicitation", "elicitation_url", "roots"})
_MOST_POSTED: Final = 100
_PATIENCE: Final = 5.0


class HandlerLoop:
    """The asyncio event loop in which the handlers and callbacks of a client run."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._room = threading.BoundedSemaphore(_MOST_POSTED)

    def adapt(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the ``options`` of a client, with the handlers and callbacks wrapped so that trio can call them."""
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
        """Schedule a synchronous callback in the event loop. If the event loop is so busy that a hundred callbacks are
        waiting, drop the callback."""
        if self._room.acquire(blocking=False):
            self._loop.call_soon_threadsafe(self._run_posted, callback, args)

    def _run_posted(self, callback: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._room.release()
        callback(*args)

    async def _run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run a function in an asyncio task of the event loop, and return its result.

        Cancelling this method cancels the task. The cancellation is raised when the task has ended, or after five
        seconds.
        """
        running = LoopTask[Any](self._loop, partial(function, *args), copy_context())
        try:
            await running.over.wait()
        except trio.Cancelled as cancelled:
            running.cancel(cancelled.reason)
            with trio.CancelScope(shield=True, deadline=trio.current_time() + _PATIENCE):
                await running.over.wait()
            raise
        return running.result()


def async_method(
    method: Callable[Concatenate[Any, P], Awaitable[T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return an asyncio version of an async trio method. The asyncio version runs the trio method in the trio
    thread."""

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
    """Return an asyncio version of an async trio method, like `async_method`. In addition, the result is wrapped in the
    class ``view``."""
    call = async_method(method)

    @wraps(method)
    async def call_for_view(self: Any, *args: Any, **kwargs: Any) -> V:
        return view(await cast("Any", call)(self, *args, **kwargs), self._begin)

    return cast("Any", call_for_view)


def iterator_method(
    method: Callable[Concatenate[Any, P], AsyncIterator[T]],
) -> Callable[Concatenate[Any, P], AsyncIterator[T]]:
    """Return an asyncio version of a trio method that returns an async iterator.

    The original is called when the first item is requested.
    """

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return AsyncBridgedIterator(self._begin, partial(getattr(self._original, method.__name__), *args, **kwargs))

    return cast("Any", call)


def context_method(
    method: Callable[Concatenate[Any, P], AbstractAsyncContextManager[Any]], view: type[V]
) -> Callable[Concatenate[Any, P], AbstractAsyncContextManager[V]]:
    """Return an asyncio version of a trio method that returns an async context manager.

    It enters the trio context manager that the original method returns, and wraps its value with ``view``.
    """

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        manager = getattr(self._original, method.__name__)(*args, **kwargs)
        return AsyncBridgedContext(lambda: manager, view, self._begin)

    return cast("Any", call)


def open_function(
    function: Callable[P, AbstractAsyncContextManager[Any]], view: type[V], name: str
) -> Callable[P, AbstractAsyncContextManager[V]]:
    """Return an asyncio version of ``function``, which opens a client or a group. The asyncio version yields the client
    or group wrapped in the class ``view``."""

    @async_with_only(name)
    @wraps(function)
    def opened(*args: P.args, **kwargs: P.kwargs) -> AbstractAsyncContextManager[V]:
        def manager() -> AbstractAsyncContextManager[Any]:
            return function(*args, **HandlerLoop(running_loop()).adapt(kwargs))

        return AsyncBridgedContext(manager, view, TrioPortal.start)

    return opened
