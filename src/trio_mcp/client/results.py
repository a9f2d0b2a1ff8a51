"""Results of a server: asked for in as many rounds as the server wants, checked, structured, listed page by page.

InputRounds are multi round-trip requests, the client's side (2026-07-28 basic, Multi Round-Trip Requests): a modern
server answers by asking, and is called again with the answers. `prepared` checks the questions of a result, or of a
task, before any handler runs.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextvars import ContextVar
from math import inf
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeAlias, TypeVar, cast

from ..classes import frozen
from ..concurrency.bounded_dict import BoundedDict
from ..concurrency.nurseries import run_together
from ..jsonrpc.errors import INVALID_PARAMS, CodedError, PeerError, ProtocolViolation
from ..protocol.converters import log_faults, structure, structure_result, unstructure
from ..protocol.fields import JSONObject
from ..protocol.revisions import Revision
from ..protocol.types.input_required import InputRequest, InputRequiredResult
from ..protocol.types.prompts import ListPromptsResult
from ..protocol.types.resources import ListResourcesResult, ListResourceTemplatesResult, PageParams
from ..protocol.types.tools import ListTasksResult, ListToolsResult, created_id
from ..runtime.calls import OnProgress, RoundTrips
from ..runtime.outbound import Outbound, answering
from ..tasks.task_state import state_of
from .answers import Answers, NobodyAnswersHere
from .options import ClientSettings

T = TypeVar("T")

logger = logging.getLogger("trio_mcp")

_MOST_IDLE: Final = 100
"""Empty pages in a row: a server that filters its pages may have some."""

_MOST_FAULTS: Final = 100


class Faults:
    """The parts of a server's results that the client left out or replaced because it can't read them."""

    def __init__(self) -> None:
        self._logged = BoundedDict[tuple[str, str], None](_MOST_FAULTS)

    def __call__(self, method: str, faults: str) -> None:
        """Report ``faults`` of a result to the list that is read, and log each text once."""
        pages = _read_now.get()
        is_logged = pages is None or pages.take_faults(method, faults)
        if is_logged and (method, faults) not in self._logged:
            self._logged[method, faults] = None
            log_faults(method, faults)


def structured(method: str, result: Any, result_type: type[T], faults: Faults) -> T:
    """Return ``result`` as a ``result_type``, without the parts that can't be read, which go to ``faults``. Raises
    `ProtocolViolation` if nothing can be made of ``result``."""
    return result if result_type is dict else structure_result(method, result, result_type, faults)


def check_result_type(method: str, result: Any) -> None:
    """Raise `ProtocolViolation` for a plain result of a modern revision that is not complete (2026-07-28 basic,
    ResultType: absent means complete, anything unrecognised is invalid)."""
    kind = cast("JSONObject", result).get("resultType", "complete") if isinstance(result, dict) else "complete"
    if kind == "input_required":
        raise ProtocolViolation(f"{method}: the server asks for input, which this method has no place for")
    if kind != "complete":
        raise ProtocolViolation(f"{method}: the server answered with the unknown result type {str(kind)[:100]!r}")


@frozen
class Listing:
    """A list of a server, in pages."""

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
    "tools/list": Listing(ListToolsResult, "tools", "name", "tool async for tool in client.list_tools()"),
    "prompts/list": Listing(ListPromptsResult, "prompts", "name", "prompt async for prompt in client.list_prompts()"),
    "resources/list": Listing(
        ListResourcesResult, "resources", "uri", "resource async for resource in client.list_resources()"
    ),
    "tasks/list": Listing(ListTasksResult, "tasks", "task_id", "task async for task in client.list_tasks()", state_of),
    "resources/templates/list": Listing(
        ListResourceTemplatesResult,
        "resource_templates",
        "uri_template",
        "template async for template in client.list_resource_templates()",
    ),
}


class Pages(AsyncIterator[T], Generic[T]):
    """The items of all pages of the list of ``method``, up to ``max_pages`` pages, each requested when needed.

    ``request`` is the method of a client, and gets ``refresh``; ``listing`` describes the list of an extension. When
    the server refuses the cursor of a page from the cache, all pages are fetched anew, once. An item of an earlier page
    isn't returned again. A list whose cursors lead nowhere ends with a warning: see `problem`. The class is no async
    generator, so an iteration may stop at any item without a close. A cancelled step can be repeated.
    """

    def __init__(
        self,
        request: Callable[..., Awaitable[Any]],
        method: str,
        max_pages: int,
        *,
        refresh: bool,
        listing: Listing | None = None,
    ) -> None:
        self._request = request
        self._method = method
        self._list = listing or _LISTS[method]
        self._max_pages = max_pages
        self._refresh = refresh
        self._items: deque[T] = deque()
        self._passed_over: set[int] = set()
        self._given: set[int] = set()
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
        raise TypeError(f"a listing comes page by page, so it is iterated over, not awaited: [{self._list.said}]")

    if not TYPE_CHECKING:  # type checkers know what there is

        def __iter__(self) -> NoReturn:
            raise TypeError(f"a listing comes page by page from the server, by async for: [{self._list.said}]")

    async def __anext__(self) -> T:
        while not self._items:
            if self._complete:
                raise StopAsyncIteration
            await self._turn()
        return self._items.popleft()

    async def _turn(self) -> None:
        token = _read_now.set(self)
        try:
            page = await self._request(self._method, PageParams(self._cursor), self._list.page, refresh=self._refresh)
        except PeerError as error:
            if self._cursor == "":
                self._end("the server refuses its own empty cursor")
                return
            if self._refresh or self._cursor is None or error.code != INVALID_PARAMS:
                raise
            # 2026-07-28 caching, Interaction with Pagination: SHOULD re-fetch from the beginning.
            self._refresh, self._cursor = True, None
            self._seen.clear()
            self._passed_over, self._given = self._given, set()
            return
        finally:
            _read_now.reset(token)
        items, cursor = getattr(page, self._list.items), page.next_cursor
        is_new = self._take(items)
        self._idle = 0 if is_new else self._idle + 1
        self._seen.add(hash(self._cursor))
        self._cursor = cursor
        if cursor is None:
            self._complete = True
        elif hash(cursor) in self._seen:
            self._end("the server repeats a cursor, so the list never ends")
        elif (items and not is_new) or self._idle >= _MOST_IDLE:
            self._end("the server's pages bring nothing new, so the list never ends")
        elif len(self._seen) >= self._max_pages:
            self._end(f"the list has more than {self._max_pages} pages")

    def take_faults(self, method: str, faults: str) -> bool:
        """Take what can't be read of a page. Return whether it is to be logged."""
        if method != self._method:
            return True
        self.problem = self.problem or f"left out or replaced: {faults}"
        return self.logs_problem

    def _end(self, problem: str) -> None:
        self._complete = True
        self.problem = problem if self.problem is None else f"{problem}; {self.problem}"
        if self.logs_problem:
            logger.warning("%s: %s", self._method, problem)

    def _take(self, items: list[T]) -> bool:
        """Return whether any of ``items`` is new."""
        identities = [hash(getattr(item, self._list.identity)) for item in items]
        new = [(item, each) for item, each in zip(items, identities, strict=True) if each not in self._given]
        self._given.update(identities)
        wanted = [item for item, each in new if each not in self._passed_over]
        self._items += wanted if self._list.shown is None else map(self._list.shown, wanted)
        return bool(new)


_read_now: ContextVar[Pages[Any] | None] = ContextVar("trio_mcp.read_now", default=None)
"""The list of which a page is requested."""


@frozen
class Completed:
    """The last result of a call."""

    result: Any
    """Plain data."""
    rounds: int
    """Number of requests sent. After more than one request the result depends on the answers given in between, so the
    result is not kept for other calls."""
    received: float = -inf
    """Time on trio's clock when the result was read, which may be long before the end of the callbacks that the call
    waited for; given for cacheable methods in modern revisions."""


class InputRounds:
    """Sends requests, and answers the questions that the server asks before the result of each.

    All state of a call lives in its own `request`: answers and ``requestState`` of a call never meet another call.
    """

    def __init__(self, outbound: Outbound, answers: Answers, settings: ClientSettings) -> None:
        self._outbound = outbound
        self._answers = answers
        self._settings = settings

    async def result(
        self,
        method: str,
        params: JSONObject,
        revision: Revision,
        on_progress: OnProgress | None,
        *,
        of_any_type: bool = False,
    ) -> Any:
        """Send a request as `request` does, and return its result alone."""
        return (await self.request(method, params, revision, on_progress, of_any_type=of_any_type)).result

    async def request(
        self,
        method: str,
        params: JSONObject,
        revision: Revision,
        on_progress: OnProgress | None,
        cancel_task: Callable[[str], None] | None = None,
        *,
        tells_deadline: bool = True,
        of_any_type: bool = False,
    ) -> Completed:
        """Send a request of a modern revision as `Connection.request`, in as many rounds as the server wants, up to
        ``max_rounds``.

        Each round has an id and a progress token of its own and is otherwise the same request, with the answers and the
        exact ``requestState`` of the round before. The handlers for the questions run in tasks of this call, all at
        once. The first handler that fails cancels the others and ends the call: the exception leaves unchanged, since
        ``inputResponses`` have no place for an error and a missing answer would be asked for again.

        Leaving the call between two rounds, for any reason, tells the server once: see `Outbound.round_trips`, and
        `Outbound.request` for ``cancel_task`` and ``tells_deadline``. With ``cancel_task`` the last result may be that
        of a task; ``of_any_type``: extensions have results of other types. Raises `ProtocolViolation` when the server
        asks a question that is not allowed, too many questions at once, or too often.
        """
        settled = {name: value for name, value in params.items() if name not in ("inputResponses", "requestState")}
        with self._outbound.round_trips() as trips:
            rounds = 1
            while True:
                result = await self._outbound.request(
                    method,
                    params or None,
                    revision,
                    on_progress,
                    trips=trips,
                    cancel_task=cancel_task,
                    tells_deadline=tells_deadline,
                )
                if trips.asked is None:
                    if not of_any_type and (cancel_task is None or created_id(result, is_flat=True) is None):
                        check_result_type(method, result)
                    return Completed(result, rounds, trips.received)
                if rounds > self._settings.max_rounds:
                    raise ProtocolViolation(f"{method}: the server asked more than {rounds - 1} times for input")
                with answering(params.get("_meta") or {}):
                    params = {**settled, **await self._answered(method, result, revision, trips)}
                rounds += 1

    async def _answered(self, method: str, result: Any, revision: Revision, trips: RoundTrips) -> JSONObject:
        """Return the members that the next request has beside the parameters of the first."""
        try:
            asked = structure(result, InputRequiredResult)
        except ValueError as error:
            raise ProtocolViolation(
                f"{method}: the server asks for input in a way that makes no sense: {error}"
            ) from None
        more: JSONObject = {}
        if asked.request_state is not None:
            more["requestState"] = asked.request_state
        if asked.input_requests is not None:
            most = self._settings.max_input_requests
            answers = prepared(self._answers, method, asked.input_requests, revision, most)
            with self._outbound.while_connected():
                # Leaving the call tells the server at once, instead of after the cleanup of the last handler.
                given = await run_together(list(answers.values()), trips.leave)
                more["inputResponses"] = dict(zip(answers, given, strict=True))
        if not more:
            # mrtr, Server Requirements: MUST include at least one of the two.
            raise ProtocolViolation(f"{method}: the server asks for input, but neither names any nor has any state")
        return more


Give: TypeAlias = Callable[[], Awaitable[Any]]
"""Runs the handler for one question, and gives its answer, plain data."""


def prepared(
    answers: Answers,
    method: str,
    questions: Mapping[str, InputRequest],
    revision: Revision,
    most: int,
    *,
    of_task: bool = False,
) -> dict[str, Give]:
    """Return what answers each of the ``questions``, which came in a result of ``method``, from a task if ``of_task``.
    All are checked before any handler runs, so that no user is asked for nothing: raises `ProtocolViolation` for a
    question that is not allowed, and for more than ``most``, and `NobodyAnswersHere`."""
    if len(questions) > most:
        raise ProtocolViolation(f"{method}: the server asks {len(questions)} questions at once")
    try:
        return {
            key: _giving(answers.prepare(each.method, each.params, revision, key, of_task=of_task), revision)
            for key, each in questions.items()
        }
    except NobodyAnswersHere:
        raise  # the server may ask, and we are the ones who cannot answer
    except CodedError as error:
        # mrtr, Server Requirements: MUST NOT send requests that the client did not declare.
        raise ProtocolViolation(f"{method}: the server asks for input that we cannot give: {error}") from None


def _giving(answer: Callable[[], Awaitable[Any]], revision: Revision) -> Give:
    async def give() -> Any:
        return unstructure(await answer(), revision)

    return give
