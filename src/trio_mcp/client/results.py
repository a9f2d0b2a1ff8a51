"""Results of a server as objects: checked and structured, or the error for a malformed answer; and listings,
item after item over all pages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, Generic, NoReturn, TypeVar, cast

from ..classes import frozen
from ..jsonrpc.errors import INVALID_PARAMS, PeerError, ProtocolViolation
from ..protocol.converters import structure_result
from ..protocol.fields import JSONObject
from ..protocol.types.prompts import ListPromptsResult
from ..protocol.types.resources import ListResourcesResult, ListResourceTemplatesResult, PageParams
from ..protocol.types.tasks import ListTasksResult
from ..protocol.types.tools import ListToolsResult
from ..tasks.task_state import state_of

T = TypeVar("T")


def structured(method: str, result: Any, result_type: type[T]) -> T:
    """Return ``result`` as a ``result_type``. Raises `ProtocolViolation` when ``result`` does not fit."""
    return result if result_type is dict else structure_result(method, result, result_type)


def check_result_type(method: str, result: Any) -> None:
    """Raise `ProtocolViolation` for a plain result of a modern revision that is not complete (2026-07-28 basic,
    ResultType: absent means complete, anything unrecognised is invalid)."""
    kind = cast("JSONObject", result).get("resultType", "complete") if isinstance(result, dict) else "complete"
    if kind == "input_required":
        raise ProtocolViolation(f"{method}: the server asks for input, which this method has no place for")
    if kind != "complete":
        raise ProtocolViolation(f"{method}: the server answered with the unknown result type {str(kind)[:100]!r}")


@frozen
class _List:
    page: type[Any]
    items: str
    """The member of a page that holds the items."""
    identity: str
    """The member of an item that identifies the item."""
    said: str
    """Code that iterates over the list."""
    shown: Callable[[Any], Any] | None = None
    """Makes of an item on the wire the item that callers get; `None`: the same."""


_LISTS: Final = {
    "tools/list": _List(ListToolsResult, "tools", "name", "tool async for tool in client.list_tools()"),
    "prompts/list": _List(ListPromptsResult, "prompts", "name", "prompt async for prompt in client.list_prompts()"),
    "resources/list": _List(
        ListResourcesResult, "resources", "uri", "resource async for resource in client.list_resources()"
    ),
    "tasks/list": _List(ListTasksResult, "tasks", "task_id", "task async for task in client.list_tasks()", state_of),
    "resources/templates/list": _List(
        ListResourceTemplatesResult,
        "resource_templates",
        "uri_template",
        "template async for template in client.list_resource_templates()",
    ),
}


class Pages(AsyncIterator[T], Generic[T]):
    """The items of all pages of the list of ``method``, up to ``max_pages`` pages, each requested when needed.

    ``request`` is the method of a client, and gets ``refresh``. When the server refuses the cursor of a page from the
    cache, all pages are fetched anew, once, without the items given already. The class is no async generator, so an
    iteration may stop at any item without a close. A cancelled step can be repeated.
    """

    def __init__(self, request: Callable[..., Awaitable[Any]], method: str, max_pages: int, *, refresh: bool) -> None:
        self._request = request
        self._method = method
        self._list = _LISTS[method]
        self._max_pages = max_pages
        self._refresh = refresh
        self._items: deque[T] = deque()
        self._given: set[str] = set()
        self._passed_over: set[str] = set()
        self._cursor: str | None = None
        self._seen: set[int] = set()
        """Hashes of the cursors so far: a server may make cursors of any length."""
        self._complete = False

    def __await__(self) -> NoReturn:
        raise TypeError(f"a listing comes page by page, so it is iterated over, not awaited: [{self._list.said}]")

    async def __anext__(self) -> T:
        while not self._items:
            if self._complete:
                raise StopAsyncIteration
            await self._turn()
        return self._items.popleft()

    async def _turn(self) -> None:
        if hash(self._cursor) in self._seen:
            self._complete = True
            raise ProtocolViolation(f"{self._method}: the server gave the same cursor twice")
        if len(self._seen) >= self._max_pages:
            self._complete = True
            raise ProtocolViolation(f"{self._method}: the list has more than {self._max_pages} pages")
        try:
            page = await self._request(self._method, PageParams(self._cursor), self._list.page, refresh=self._refresh)
        except PeerError as error:
            if self._refresh or self._cursor is None or error.code != INVALID_PARAMS:
                raise
            # 2026-07-28 caching, Interaction with Pagination: SHOULD re-fetch from the beginning.
            self._refresh, self._cursor = True, None
            self._seen.clear()
            self._passed_over |= self._given
            return
        self._seen.add(hash(self._cursor))
        self._take(getattr(page, self._list.items))
        self._cursor = page.next_cursor
        self._complete = self._cursor is None

    def _take(self, items: list[T]) -> None:
        for item in items:
            identity = getattr(item, self._list.identity)
            if not self._refresh:  # without `refresh` the list may begin anew
                self._given.add(identity)
            if identity not in self._passed_over:
                self._items.append(item if self._list.shown is None else self._list.shown(item))
