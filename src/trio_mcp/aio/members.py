"""Members of views: each is made of the member that trio's own class has, by one line that says how a task of asyncio
comes to the member. Docstrings, parameters and types are those of the original."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from ..bridging.calls import CALL_HANDLERS
from ..bridging.portal import TrioPortal
from ..bridging.wrappers import Wrapper
from ..concurrency.misuse import async_with_only
from .loop import AsyncBridgedContext, AsyncBridgedIterator, HandlerLoop, run_in_trio, running_loop

P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V", bound=Wrapper)


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
