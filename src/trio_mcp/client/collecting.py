"""collect: the items of a list of a server, as far as they can be had, and what is wrong with the list.

`collect_each` collects several lists.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Container, Mapping
from typing import Any, Final, Generic, TypeVar

import trio

from ..classes import frozen
from ..concurrency.time_limits import fail_after_work
from ..jsonrpc.errors import METHOD_NOT_FOUND, MCPError, PeerError, clean
from .results import Pages

T = TypeVar("T")
K = TypeVar("K", bound=str)

_MOST_BYTES: Final = 16 * 1024 * 1024
_LONGEST_PROBLEM: Final = 300
PATIENCE: Final = 2.0
"""Seconds for which the other lists wait for a list."""


@frozen
class Collected(Generic[T]):
    """The items of a list, up to the first problem."""

    items: list[T]
    problem: str | None = None
    """What is wrong with the list, in one printable line; `None` if the list is whole."""
    error: Exception | None = None
    """The exception that ended the list, if any."""


SILENT: Final = Collected[Any]([], "the server has not answered", trio.TooSlowError())
"""What is known of a list while the server doesn't answer."""


async def collect(
    pages: AsyncIterator[T], seconds: float = math.inf, most: int = 10_000, *, optional: bool = False
) -> Collected[T]:
    """Return the items of ``pages`` that come within ``seconds``, up to ``most`` items and 16 MiB. ``optional``: a
    server that doesn't know the list has no items. Raises nothing that a server causes, and logs nothing."""
    assert isinstance(pages, Pages), "the method of a client returns it"
    pages.logs_problem = False
    items: list[T] = []
    size = 0
    try:
        with fail_after_work(seconds):  # not counting the time in which the user signs in
            async for item in pages:
                size += len(repr(item))
                if len(items) == most or size > _MOST_BYTES:
                    return Collected(items, f"only the first {len(items)} are listed")
                items.append(item)
    except trio.TooSlowError as error:
        return Collected(items, f"the server did not answer within {seconds:g} s", error)
    except MCPError as error:
        if optional and isinstance(error, PeerError) and error.code == METHOD_NOT_FOUND:
            return Collected(items)
        return Collected(items, clean(str(error)[:_LONGEST_PROBLEM]), error)
    return Collected(items, pages.problem and clean(pages.problem[:_LONGEST_PROBLEM]))


async def collect_each(
    lists: Mapping[K, AsyncIterator[Any]],
    optional: Container[K],
    seconds: float,
    take: Callable[[K, Collected[Any]], None],
) -> None:
    """Collect each of ``lists`` within so many ``seconds``, and call ``take`` with its name and the result. A list that
    isn't complete after `PATIENCE` doesn't delay the next one: ``take`` gets `SILENT` for it first. ``optional``: see
    `collect`; these lists have 10 seconds at most, since some servers ignore methods that they don't know."""

    async def collected(name: K, pages: AsyncIterator[Any], done: trio.Event) -> None:
        is_optional = name in optional
        take(name, await collect(pages, min(seconds, 10) if is_optional else seconds, optional=is_optional))
        done.set()

    async with trio.open_nursery() as nursery:
        for name, pages in lists.items():
            done = trio.Event()
            nursery.start_soon(collected, name, pages, done)
            with trio.move_on_after(PATIENCE):
                await done.wait()
            if not done.is_set():
                take(name, SILENT)
