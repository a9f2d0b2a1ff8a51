"""View: an object of trio's as another world sees it; Same: an attribute that is the same there."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from .calls import Begin

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

    def __get__(self, view: View, owner: type) -> T:
        return getattr(view._original, self._name)  # pyright: ignore[reportPrivateUsage]
