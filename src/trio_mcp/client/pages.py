"""Pages: a listing of the server, item after item."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Generic, TypeVar

from ..jsonrpc.errors import ProtocolViolation

__all__ = ["Pages"]

T = TypeVar("T")


class Pages(AsyncIterator[T], Generic[T]):
    """The items of all pages, each page asked for when its first item is.

    ``ask`` takes a cursor, `None` for the first page, and gives the items and the cursor of the next page. No
    async generator, so it may be left at any item without being closed. A cancelled step can be repeated.
    """

    def __init__(self, method: str, ask: Callable[[str | None], Awaitable[tuple[list[T], str | None]]]) -> None:
        self._method = method
        self._ask = ask
        self._items: deque[T] = deque()
        self._cursor: str | None = None
        self._seen: set[str] = set()
        self._complete = False

    async def __anext__(self) -> T:
        while not self._items:
            if self._complete:
                raise StopAsyncIteration
            await self._turn()
        return self._items.popleft()

    async def _turn(self) -> None:
        if self._cursor in self._seen:
            self._complete = True
            raise ProtocolViolation(f"{self._method}: the server gave the same cursor twice")
        items, cursor = await self._ask(self._cursor)
        if self._cursor is not None:
            self._seen.add(self._cursor)
        self._items.extend(items)
        self._cursor = cursor
        self._complete = cursor is None
