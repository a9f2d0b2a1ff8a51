"""Members of views: each is made of the member that trio's own class has, by one line that says how a thread that
waits comes to the member. Docstrings, parameters and types are those of the original."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from ..bridging.calls import CALL_HANDLERS, run_blocking
from ..bridging.portal import TrioPortal
from ..bridging.wrappers import Wrapper
from ..concurrency.misuse import check_keywords
from .waiting import BridgedContext, BridgedIterator, with_threaded_handlers

P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V", bound=Wrapper)


def blocking_method(
    method: Callable[Concatenate[Any, P], Awaitable[T]],
) -> Callable[Concatenate[Any, P], T]:
    """Return a method that runs the async original in the trio thread, and blocks until the return."""

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        original = getattr(self._original, method.__name__)
        if not CALL_HANDLERS.isdisjoint(kwargs):
            kwargs = with_threaded_handlers(kwargs)
        return run_blocking(self._begin, lambda call: original(*args, **call.with_callbacks(kwargs)))

    return cast("Any", call)


def wrapped_method(
    method: Callable[Concatenate[Any, P], Awaitable[Any]], view: type[V]
) -> Callable[Concatenate[Any, P], V]:
    """Return a method as of `blocked`, with a ``view`` of the result."""
    call = blocking_method(method)

    @wraps(method)
    def call_for_view(self: Any, *args: Any, **kwargs: Any) -> V:
        return view(cast("Any", call)(self, *args, **kwargs), self._begin)

    return cast("Any", call_for_view)


def iterator_method(
    method: Callable[Concatenate[Any, P], AsyncIterator[T]],
) -> Callable[Concatenate[Any, P], Iterator[T]]:
    """Return a method that iterates as the original does, which begins with the first step."""

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return BridgedIterator(self._begin, partial(getattr(self._original, method.__name__), *args, **kwargs))

    return cast("Any", call)


def context_method(
    method: Callable[Concatenate[Any, P], AbstractAsyncContextManager[Any]], view: type[V]
) -> Callable[Concatenate[Any, P], AbstractContextManager[V]]:
    """Return a method whose context manager has a ``view`` of the value of the original's."""

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        manager = getattr(self._original, method.__name__)(*args, **kwargs)
        return BridgedContext(lambda: manager, view, self._begin)

    return cast("Any", call)


def open_function(
    function: Callable[P, AbstractAsyncContextManager[Any]], view: type[V]
) -> Callable[P, AbstractContextManager[V]]:
    """Return a function that opens as the original, an ``open_*``, does, and gives a ``view`` of what it opens."""

    @wraps(function)
    def opened(*args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[V]:
        check_keywords(function, kwargs)
        open_in_trio = cast("Callable[..., AbstractAsyncContextManager[Any]]", function)
        return BridgedContext(lambda: open_in_trio(*args, **with_threaded_handlers(kwargs)), view, TrioPortal.start)

    return opened
