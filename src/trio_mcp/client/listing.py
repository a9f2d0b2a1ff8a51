"""Iterates over paginated lists of a server, such as its tools.

`Pages` iterates over a list page by page. `collect` returns the items that could be read and what is wrong with the
list; `collect_each` collects several lists.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar

import trio

from ..classes import frozen
from ..concurrency.time_limits import fail_after_work
from ..jsonrpc.errors import INVALID_PARAMS, METHOD_NOT_FOUND, MCPError, PeerError, clean
from ..protocol.converters import structure_result
from ..protocol.types.offers import ListPromptsResult, ListResourcesResult, ListResourceTemplatesResult, PageParams
from ..protocol.types.tools import ListTasksResult, ListToolsResult
from ..tasks.task_state import state_of
from .requests import Requests

T = TypeVar("T")
K = TypeVar("K", bound=str)

logger = logging.getLogger("trio_mcp")

_MOST_IDLE: Final = 100
"""How many empty pages in a row a list may have. A server that filters its pages may send some empty ones."""
_MOST_BYTES: Final = 16 * 1024 * 1024
_LONGEST_PROBLEM: Final = 300
PATIENCE: Final = 2.0
"""How many seconds `collect_each` waits for each remaining list after one list wasn't complete in time."""


@frozen
class ListMethod:
    """A method that requests one of the server's lists, page by page."""

    page: type[Any]
    items: str
    """The key under which a page of the list holds its items."""
    identity: str
    """The key of an item that identifies the item within the list."""
    convert: Callable[[Any], Any] | None = None
    """A function that converts an item from its wire form to the object that callers get; `None` if there is no
    conversion."""
    call: str = ""
    """The code with which users iterate over the list. By default, it calls the client's method ``list_`` followed by
    the key of the items."""

    @property
    def usage(self) -> str:
        """Python code that reads all items of the server's list, for error messages."""
        word = self.items.rpartition("_")[2].removesuffix("s")
        return f"[{self.call or f'{word} async for {word} in client.list_' + self.items + '()'}]"


_LISTS: Final = {
    "tools/list": ListMethod(ListToolsResult, "tools", "name"),
    "prompts/list": ListMethod(ListPromptsResult, "prompts", "name"),
    "resources/list": ListMethod(ListResourcesResult, "resources", "uri"),
    "resources/templates/list": ListMethod(ListResourceTemplatesResult, "resource_templates", "uri_template"),
    "tasks/list": ListMethod(ListTasksResult, "tasks", "task_id", state_of),
}


class Pages(AsyncIterator[T], Generic[T]):
    """Iterates over the items of all pages of a list, up to ``max_pages`` pages. Each page is requested when needed.

    ``request`` replaces `Requests.request` of the ``client``; ``listing`` describes a list of an extension. If the
    server refuses the cursor of a cached page, all pages are fetched again, once. An item of an earlier page isn't
    returned again. A list with useless cursors ends with a warning: see `problem`. This isn't an async generator, so an
    iteration may stop at any item without being closed. A cancelled step can be repeated.
    """

    def __init__(
        self,
        client: Requests,
        method: str,
        *,
        refresh: bool,
        request: Callable[..., Awaitable[Any]] | None = None,
        listing: ListMethod | None = None,
    ) -> None:
        self._client = client
        self._request: Callable[..., Awaitable[Any]] = request or client.request
        self._method = method
        self._list = listing or _LISTS[method]
        self._refresh = refresh
        self.is_undeclared = method == "tools/list" and client.server_capabilities.tools is None
        """True if the server lists tools although it doesn't declare the capability ``tools``."""
        self.is_optional = self.is_undeclared or method == "resources/templates/list"
        """True for a list that the server may not support. For example, no capability shows whether a server has
        resource templates."""
        self._items: deque[T] = deque()
        self._skipped: set[int] = set()
        self._yielded: set[int] = set()
        """Hashes of the names or URIs of all items so far. They are hashed because names and URIs may have any
        length."""
        self._cursor: str | None = None
        self._seen: set[int] = set()
        """Hashes of all cursors so far. They are hashed because cursors may have any length."""
        self._idle = 0
        self._complete = False
        self.logs_problem = True
        """True if problems of the list are logged here. False if the calling code reports them itself."""
        self.problem: str | None = None
        """A description of what is wrong with the list: unreadable items, or why the iteration stopped before the
        server ended the list. `None` if everything read so far is valid."""

    def __await__(self) -> NoReturn:
        raise TypeError(f"listings arrive page by page, so iterate over them instead of awaiting: {self._list.usage}")

    if not TYPE_CHECKING:  # hide `__iter__` from type checkers, which report an unsuitable loop themselves

        def __iter__(self) -> NoReturn:
            raise TypeError(f"listings arrive page by page, so iterate over them with async for: {self._list.usage}")

    async def __anext__(self) -> T:
        while not self._items:
            if self._complete:
                raise StopAsyncIteration
            await self._fetch_page()
        return self._items.popleft()

    async def _fetch_page(self) -> None:
        try:
            result = await self._request(self._method, PageParams(self._cursor), dict, refresh=self._refresh)
        except PeerError as error:
            if self._cursor == "":
                self._stop("the server refuses its own empty cursor")
                return
            if self._refresh or self._cursor is None or error.code != INVALID_PARAMS:
                raise
            # By MCP 2026-07-28 (caching page), clients SHOULD fetch the whole list again after an invalid cursor.
            self._refresh, self._cursor = True, None
            self._seen.clear()
            self._skipped, self._yielded = self._yielded, set()
            return
        page = structure_result(self._method, result, self._list.page, self._report_faults)
        items, cursor = getattr(page, self._list.items), page.next_cursor
        is_new = self._add_items(items)
        self._idle = 0 if is_new else self._idle + 1
        self._seen.add(hash(self._cursor))
        self._cursor = cursor
        if cursor is None:
            self._complete = True
        elif hash(cursor) in self._seen:
            self._stop("the server repeats a cursor, so the list never ends")
        elif (items and not is_new) or self._idle >= _MOST_IDLE:
            self._stop("the server's pages bring nothing new, so the list never ends")
        elif len(self._seen) >= self._client.settings.max_pages:
            self._stop(f"the list has more than {self._client.settings.max_pages} pages")

    def _report_faults(self, method: str, faults: str) -> None:
        self.problem = self.problem or f"left out or replaced: {faults}"
        if self.logs_problem:
            self._client._faults(method, faults)

    def _stop(self, problem: str) -> None:
        self._complete = True
        self.problem = problem if self.problem is None else f"{problem}; {self.problem}"
        if self.logs_problem:
            logger.warning("%s: %s", self._method, problem)

    def _add_items(self, items: list[T]) -> bool:
        """Add ``items`` to the items of the current page, and return whether any of the items is new."""
        identities = [hash(getattr(item, self._list.identity)) for item in items]
        new = [(item, each) for item, each in zip(items, identities, strict=True) if each not in self._yielded]
        self._yielded.update(identities)
        wanted = [item for item, each in new if each not in self._skipped]
        self._items += wanted if self._list.convert is None else map(self._list.convert, wanted)
        return bool(new)


@frozen
class Collected(Generic[T]):
    """The items that could be read from one of a server's lists. If something was wrong with the list, ``problem``
    describes it."""

    items: list[T]
    problem: str | None = None
    """A description of what is wrong with the list, in one printable line; `None` if the list is complete and valid."""
    error: Exception | None = None
    """The exception with which reading the list ended; `None` if there was no exception."""
    is_undeclared: bool = False
    """True if the server lists tools although it doesn't declare the capability: see `Pages`."""

    @property
    def remark(self) -> str | None:
        """A remark for users that describes what is wrong with the list. `None` if nothing is wrong."""
        is_odd = self.is_undeclared and self.items
        return self.problem or ("the server lists them without declaring the capability" if is_odd else None)


SILENT: Final = Collected[Any]([], "the server has not answered", trio.TooSlowError())
"""The `Collected` of a list while the server has not answered."""


async def collect(pages: AsyncIterator[T], seconds: float = math.inf, limit: int = 10_000) -> Collected[T]:
    """Return the items of ``pages`` that arrive within ``seconds``, up to ``limit`` items and 16 MiB.

    Lists that the server may not support get at most 10 seconds, since some servers don't answer unknown methods.
    Raises no error that a server causes, and logs nothing.
    """
    assert isinstance(pages, Pages), "the method of a client returns it"
    pages.logs_problem = False
    seconds = min(seconds, 10) if pages.is_optional else seconds
    items: list[T] = []
    problem, error, size = None, None, 0
    try:
        with fail_after_work(seconds):  # don't count the time in which the user signs in
            async for item in pages:
                size += len(repr(item))
                if len(items) == limit or size > _MOST_BYTES:
                    problem = f"only the first {len(items)} are listed"
                    break
                items.append(item)
    except trio.TooSlowError as late:
        problem, error = f"the server did not answer within {seconds:g} s", late
    except MCPError as refusal:
        if not (pages.is_optional and isinstance(refusal, PeerError) and refusal.code == METHOD_NOT_FOUND):
            problem, error = str(refusal), refusal
    problem = problem or pages.problem
    try:
        return Collected(items, problem and clean(problem[:_LONGEST_PROBLEM]), error, pages.is_undeclared)
    finally:
        del error  # break the reference cycle: the traceback refers to this frame


async def collect_each(
    lists: Mapping[K, AsyncIterator[Any]], seconds: float, on_collected: Callable[[K, Collected[Any]], None]
) -> None:
    """Collect the items of each of the ``lists`` within ``seconds``. For each list, call ``on_collected`` with the
    list's name and the result.

    A list that isn't complete after `PATIENCE` seconds doesn't delay the next one: ``on_collected`` gets `SILENT` for
    it first.
    """

    async def collected(name: K, pages: AsyncIterator[Any], done: trio.Event) -> None:
        on_collected(name, await collect(pages, seconds))
        done.set()

    async with trio.open_nursery() as nursery:
        for name, pages in lists.items():
            done = trio.Event()
            nursery.start_soon(collected, name, pages, done)
            with trio.move_on_after(PATIENCE):
                await done.wait()
            if not done.is_set():
                on_collected(name, SILENT)
