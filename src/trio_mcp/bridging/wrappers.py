"""View: an object of trio's as another world sees it; Same: an attribute that is the same there; and `sync_method`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast, overload

from .calls import StartWork, run_sync

P = ParamSpec("P")
T = TypeVar("T")


class Wrapper:
    """A view of ``original``, whose methods ``begin`` their calls in the trio thread."""

    def __init__(self, original: Any, begin: StartWork) -> None:
        self._original = original
        self._begin = begin


class PassThrough(Generic[T]):
    """An attribute of a `Wrapper` that is the attribute of the original. A plain value, which any thread may read."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, view: None, owner: type) -> PassThrough[T]: ...

    @overload
    def __get__(self, view: Wrapper, owner: type) -> T: ...

    def __get__(self, view: Wrapper | None, owner: type) -> T | PassThrough[T]:
        return self if view is None else getattr(view._original, self._name)  # pyright: ignore[reportPrivateUsage]


def sync_method(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Return a method that calls the original, which waits for nothing, in the trio thread."""

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> T:
        return run_sync(self._begin, partial(getattr(self._original, method.__name__), *args, **kwargs))

    return cast("Any", call)
