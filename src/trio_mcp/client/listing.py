"""Lists of a server: `Pages` iterates over a list page by page, `collect` returns its items, as far as they can be had,
and what is wrong with the list, and `collect_each` collects several lists.
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
from ..protocol.types.prompts import ListPromptsResult
from ..protocol.types.resources import ListResourcesResult, ListResourceTemplatesResult, PageParams
from ..protocol.types.tools import ListTasksResult, ListToolsResult
from ..tasks.task_state import state_of
from .requests import Requests

T = TypeVar("T")
K = TypeVar("K", bound=str)

logger = logging.getLogger("trio_mcp")

_MOST_IDLE: Final = 100
"""Empty pages in a row: a server that filters its pages may have some."""
_MOST_BYTES: Final = 16 * 1024 * 1024
_LONGEST_PROBLEM: Final = 300
PATIENCE: Final = 2.0
"""Seconds for which the other lists wait for a list."""


@frozen
class ListMethod:
    """A list of a server, in pages."""

    page: type[Any]
    items: str
    """The member of a page that holds the items."""
    identity: str
    """The member of an item that identifies the item."""
    convert: Callable[[Any], Any] | None = None
    """Makes of an item on the wire the item that callers get; `None`: the same."""
    call: str = ""
    """Code that iterates over the list, if it isn't a method ``list_`` of the client and the member of a page."""

    @property
    def usage(self) -> str:
        """Code that makes a Python list of the items."""
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
    """The items of all pages of the list of ``method``, up to ``max_pages`` pages, each requested when needed.

    ``request`` is a method of the ``client`` in place of its `Requests.request`; ``listing`` describes the list of an
    extension. When the server refuses the cursor of a page from the cache, all pages are fetched anew, once. An item of
    an earlier page isn't returned again. A list whose cursors lead nowhere ends with a warning: see `problem`. The
    class is no async generator, so an iteration may stop at any item without a close. A cancelled step can be repeated.
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
        """True for the tools of a server that doesn't declare any: some have tools nevertheless."""
        self.is_optional = self.is_undeclared or method == "resources/templates/list"
        """True for a list that the server may not know. No capability says whether a server has templates."""
        self._items: deque[T] = deque()
        self._skipped: set[int] = set()
        self._yielded: set[int] = set()
        """Hashes of the identities of all items so far, which may be of any length, as cursors may."""
        self._cursor: str | None = None
        self._seen: set[int] = set()
        """Hashes of the cursors so far."""
        self._idle = 0
        self._complete = False
        self.logs_problem = True
        """False if the caller reports the problem."""
        self.problem: str | None = None
        """What is wrong with the list: items that can't be read, or why it was ended although the server didn't end it;
        `None` for a list that is whole as far as it was read."""

    def __await__(self) -> NoReturn:
        raise TypeError(f"a listing comes page by page, so it is iterated over, not awaited: {self._list.usage}")

    if not TYPE_CHECKING:  # type checkers know what there is

        def __iter__(self) -> NoReturn:
            raise TypeError(f"a listing comes page by page from the server, by async for: {self._list.usage}")

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
            # 2026-07-28 caching, Interaction with Pagination: SHOULD re-fetch from the beginning.
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
        """Return whether any of ``items`` is new."""
        identities = [hash(getattr(item, self._list.identity)) for item in items]
        new = [(item, each) for item, each in zip(items, identities, strict=True) if each not in self._yielded]
        self._yielded.update(identities)
        wanted = [item for item, each in new if each not in self._skipped]
        self._items += wanted if self._list.convert is None else map(self._list.convert, wanted)
        return bool(new)


@frozen
class Collected(Generic[T]):
    """The items of a list, up to the first problem."""

    items: list[T]
    problem: str | None = None
    """What is wrong with the list, in one printable line; `None` if the list is whole."""
    error: Exception | None = None
    """The exception that ended the list, if any."""
    is_undeclared: bool = False
    """See `Pages`."""

    @property
    def remark(self) -> str | None:
        """The problem, if any; or that the items are undeclared, for the people who look at the server."""
        is_odd = self.is_undeclared and self.items
        return self.problem or ("the server lists them without declaring the capability" if is_odd else None)


SILENT: Final = Collected[Any]([], "the server has not answered", trio.TooSlowError())
"""What is known of a list while the server doesn't answer."""


async def collect(pages: AsyncIterator[T], seconds: float = math.inf, limit: int = 10_000) -> Collected[T]:
    """Return the items of ``pages`` that come within ``seconds``, up to ``limit`` items and 16 MiB. Lists that the
    server may not know have 10 seconds at most, since some servers ignore methods that they don't know. Raises nothing
    that a server causes, and logs nothing."""
    assert isinstance(pages, Pages), "the method of a client returns it"
    pages.logs_problem = False
    seconds = min(seconds, 10) if pages.is_optional else seconds
    items: list[T] = []
    problem, error, size = None, None, 0
    try:
        with fail_after_work(seconds):  # not counting the time in which the user signs in
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
        del error  # whose traceback leads to this frame


async def collect_each(
    lists: Mapping[K, AsyncIterator[Any]], seconds: float, on_collected: Callable[[K, Collected[Any]], None]
) -> None:
    """Collect each of ``lists`` within so many ``seconds``, and call ``on_collected`` with its name and the result. A
    list that isn't complete after `PATIENCE` doesn't delay the next one: ``on_collected`` gets `SILENT` for it
    first."""

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
