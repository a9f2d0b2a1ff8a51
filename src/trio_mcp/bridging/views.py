"""View: an object of trio's as another world sees it; Same: an attribute that is the same there; and `at_once`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast, overload

from .calls import Begin, run_at_once

P = ParamSpec("P")
T = TypeVar("T")


class View:
    """A view of ``original``, whose methods ``begin`` their calls in the trio thread."""

    def __init__(self, original: Any, begin: Begin) -> None:
        self._original = original
        self._begin = begin


class Same(Generic[T]):
    """An attribute of a `View` that is the attribute of the original. A plain value, which any thread may read."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, view: None, owner: type) -> Same[T]: ...

    @overload
    def __get__(self, view: View, owner: type) -> T: ...

    def __get__(self, view: View | None, owner: type) -> T | Same[T]:
        return self if view is None else getattr(view._original, self._name)  # pyright: ignore[reportPrivateUsage]


def at_once(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Return a method that calls the original, which waits for nothing, in the trio thread."""

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> T:
        return run_at_once(self._begin, partial(getattr(self._original, method.__name__), *args, **kwargs))

    return cast("Any", call)
