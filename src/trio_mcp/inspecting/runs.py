"""Runs: the requests that the user has started in the web inspector's page, each in its own trio task and cancel scope.
PageQuestions: the server's input requests (elicitation, sampling, roots), which wait until the user responds.

A `PageFeed` sends all events to the pages, as server-sent events. The unread events of a page are limited: a newer
state of the same item replaces the older one, and a page that falls too far behind gets everything again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Generator, Hashable, Iterable, Sequence
from contextvars import ContextVar
from itertools import count
from typing import Any, Final, Literal, cast

import attrs
import trio

from ..classes import define
from ..client.options import ClientOptions
from ..concurrency.contexts import contextmanager
from ..concurrency.nurseries import ServiceNursery
from ..concurrency.wakeups import Sleeper
from ..jsonrpc.codec import encode_value
from ..jsonrpc.errors import INTERNAL_ERROR, CodedError, MCPError, PeerError
from ..protocol.converters import structure, unstructure
from ..protocol.fields import JSONObject
from ..protocol.form_defaults import CHECKS_FORMATS, with_fitting_defaults
from ..protocol.revisions import LATEST_LEGACY, Revision
from ..protocol.schema_validator import SchemaValidator
from ..protocol.types.content import TextContent
from ..protocol.types.elicitation import ElicitFormParams, ElicitResult, ElicitURLParams, check_form_size, check_url
from ..protocol.types.sampling import CreateMessageParams, CreateMessageResult, Root
from ..runtime.calls import OnProgress, Progress
from ..transports.sse import KEEP_ALIVE, events

MOST_PAGES: Final = 8
"""Maximum number of pages that are open at the same time."""
_MOST_WAITING: Final = 2000
"""The maximum number of events that a page hasn't read. If there are more, the page gets the complete state again."""
_AT_ONCE: Final = 200
"""The maximum number of events that are written to a page together."""
_PAUSE: Final = 0.03
"""Seconds between two writes to a page. If an event is replaced several times in this time, only the last one is
sent."""
_KEEP_ALIVE: Final = 15.0

Snapshot = Callable[[], Iterable[tuple[Hashable, JSONObject]]]


class PageFeed:
    """Sends events to all open pages of the web inspector.

    ``snapshot`` returns everything that a new page needs: each item, with the key that its later changes have.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._pages: set[PageStream] = set()

    def publish(self, key: Hashable, thing: JSONObject) -> None:
        """Send the event ``thing`` to all open pages. If a page hasn't read an earlier event with the same ``key``,
        this event replaces it."""
        for page in self._pages:
            page.put(key, thing)

    @property
    def is_full(self) -> bool:
        """True if the maximum number of inspector pages is open. Another page is then refused."""
        return len(self._pages) >= MOST_PAGES

    @contextmanager
    def opened(self) -> Generator[PageStream]:
        """Open the SSE stream of a browser that has opened the inspector's page. The first events contain the complete
        current state."""
        page = PageStream(self._snapshot)
        self._pages.add(page)
        try:
            yield page
        finally:
            self._pages.discard(page)


class PageStream:
    """The SSE stream of events for one inspector page. It stores the events that the page hasn't read yet."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._waiting: dict[Hashable, JSONObject] = {}
        self._wakeup = Sleeper()
        self._restart()

    def _restart(self) -> None:
        self._waiting = {None: {"what": "everything"}}
        self._waiting.update(self._snapshot())

    def put(self, key: Hashable, thing: JSONObject) -> None:
        """Store the event ``thing`` until the inspector page reads it. The event replaces an earlier event with the
        same ``key`` that the page hasn't read yet."""
        self._waiting[key] = thing
        if len(self._waiting) > _MOST_WAITING:
            self._restart()
        self._wakeup.wake()

    async def next_events(self) -> bytes:
        """Wait for events that the page hasn't read, and return them in SSE format. If there are none for a while,
        return a keep-alive comment."""
        with trio.move_on_after(_KEEP_ALIVE):
            while not self._waiting:
                await self._wakeup.sleep()
            await trio.sleep(_PAUSE)  # wait for more events, so that the page isn't redrawn for every progress report
        if not self._waiting:
            return KEEP_ALIVE
        keys = list(self._waiting)[:_AT_ONCE]
        things: list[Any] = [self._waiting.pop(key) for key in keys]
        return bytes(events(b"".join(encode_value(thing) + b"\n" for thing in things)))


logger = logging.getLogger("trio_mcp")

MOST_RUNNING: Final = 64
MOST_KEPT: Final = 100
"""Maximum number of requests that are shown, including the running ones."""
_MOST_BYTES: Final = 64 * 1024 * 1024
"""Maximum bytes of all stored results."""
_MOST_WORDS: Final = 4000

Outcome = tuple[Any, bool]
"""A result as plain data, and whether the result reports a failure."""
Work = Callable[["Run", OnProgress], Awaitable[Outcome]]


run_number: Final = ContextVar[int | None]("run_number", default=None)
"""The number of the run that the current trio task carries out, or whose input request the task answers."""


class InvalidPageRequest(ValueError):
    """A page of the web inspector sent a request or an answer that is invalid, or impossible at this moment. The
    message is shown to the user."""


def cut(text: str, limit: int = _MOST_WORDS) -> str:
    """Return ``text``, truncated to ``limit`` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def error_text(error: BaseException) -> str:
    """Return a description of ``error`` to show to the user in the inspector's page."""
    match error:
        case trio.TooSlowError():
            return cut("the server did not answer in time" + (f": {error}" if str(error) else ""))
        case PeerError() if error.data is not None:
            return cut(f"{error.message} (code {error.code}): {encode_value(error.data).decode()}")
        case PeerError():
            return cut(f"{error.message} (code {error.code})")
        case CodedError():
            return cut(error.message)
        case _:
            return cut(str(error) or type(error).__name__)


@define(eq=False)
class Run:
    """A request that the user has started in the inspector's page.

    Times are on trio's clock, except ``since``, which is in milliseconds since the epoch.
    """

    number: int
    kind: str
    name: str
    given: str
    """The arguments of the run as JSON, truncated."""
    since: float
    started_at: float
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    status: Literal["running", "done", "failed", "cancelled", "lost"] = "running"
    ended: float | None = None
    progress: Progress | None = None
    reports: int = 0
    task: str | None = None
    """Id of the task that the server created for the request."""
    error: str = ""
    """The error of the run as text; empty if there was no error."""
    result: bytes | None = attrs.field(default=None, repr=False)
    """The result of the run as JSON."""
    is_error: bool = False
    """True if the result reports a failure."""
    warning: str | None = None
    """The problem with the result as text; empty if the result is valid."""

    def as_json(self) -> JSONObject:
        """Return the state of the run (a request that the user has started) as JSON data for pages."""
        progress = self.progress
        return {
            "what": "run",
            "id": self.number,
            "kind": self.kind,
            "name": self.name,
            "given": self.given,
            "since": self.since,
            "seconds": None if self.ended is None else self.ended - self.started_at,
            "status": self.status,
            "cancelling": self.scope.cancel_called and self.ended is None,
            "task": self.task,
            "error": self.error,
            "isError": self.is_error,
            "warning": self.warning,
            "bytes": None if self.result is None else len(self.result),
            "reports": self.reports,
            "progress": None
            if progress is None
            else {
                "progress": progress.progress,
                "total": progress.total,
                "message": None if progress.message is None else cut(progress.message, 500),
            },
        }


class Runs:
    """The latest requests that the user has started. Each change of a request is published to ``feed``."""

    def __init__(self, feed: PageFeed) -> None:
        self._feed = feed
        self._numbers = count(1)
        self._runs: dict[int, Run] = {}
        self._bytes = 0

    def snapshot(self) -> Sequence[JSONObject]:
        """Return the stored runs (requests that the user has started) as JSON data for pages."""
        return [run.as_json() for run in self._runs.values()]

    def __getitem__(self, number: int) -> Run:
        """Return the stored run with this number. Raises `KeyError` if there is none."""
        return self._runs[number]

    def start(self, nursery: ServiceNursery, kind: str, name: str, arguments: Any, work: Work) -> Run:
        """Start a run (a request for the user) as a trio task in ``nursery``. Raises `InvalidPageRequest` if the
        maximum number is running."""
        if sum(run.ended is None for run in self._runs.values()) >= MOST_RUNNING:
            raise InvalidPageRequest(f"{MOST_RUNNING} requests are running already: cancel one, or wait")
        given = "" if arguments is None else cut(encode_value(arguments).decode(), 500)
        run = Run(next(self._numbers), kind, cut(name, 500), given, time.time() * 1000, trio.current_time())
        self._runs[run.number] = run
        self._discard_old()
        self.publish(run)
        nursery.start_soon(self._run, run, work)
        return run

    def cancel(self, run: Run) -> None:
        """Cancel a run (a request that the user has started), so that the server cancels its handler. Do nothing if the
        run has ended."""
        run.scope.cancel(reason="cancelled in the page")
        self.publish(run)

    def publish(self, run: Run) -> None:
        """Send the current state of ``run``, a request that the user has started, to all open pages of the web
        inspector."""
        if run.number in self._runs:
            self._feed.publish(("run", run.number), run.as_json())

    async def _run(self, run: Run, work: Work) -> None:
        def progressed(progress: Progress) -> None:
            run.progress = progress
            run.reports += 1
            self.publish(run)

        run_number.set(run.number)
        try:
            with run.scope:
                result, run.is_error = await work(run, progressed)
                run.result = encode_value(result)
                run.status = "done"
            if run.scope.cancelled_caught:
                run.status = "cancelled"
        except (MCPError, trio.TooSlowError, ValueError) as error:
            run.status, run.error = "failed", error_text(error)
        except Exception as error:
            logger.exception("a request from the inspector's page failed")
            run.status, run.error = "failed", error_text(error)
        finally:
            if run.status == "running":
                run.status = "lost"  # the request was still running when the connection ended
            run.ended = trio.current_time()
            self._bytes += len(run.result or b"")
            self._discard_old()
            self.publish(run)

    def _discard_old(self) -> None:
        """If too many runs are stored, drop the oldest ones that have ended."""
        for run in [run for run in self._runs.values() if run.ended is not None]:
            if len(self._runs) <= MOST_KEPT and self._bytes <= _MOST_BYTES:
                return
            del self._runs[run.number]
            self._bytes -= len(run.result or b"")
            self._feed.publish(("run", run.number), {"what": "run.forgotten", "id": run.number})


MOST_QUESTIONS: Final = 32
"""The maximum number of input requests of one kind that wait for the user at the same time."""
_REFUSED: Final = -1
"""Error code for a request that the user rejected (2025-11-25 sampling, Error Handling)."""
_MOST_ROOTS: Final = 100


@define(eq=False)
class _Question:
    number: int
    kind: str
    data: JSONObject
    """The parameters of the input request, as the specification defines them."""
    run: int | None
    """The number of the run that the input request belongs to; `None` if unknown."""
    answered: trio.Event = attrs.field(factory=trio.Event)
    answer: JSONObject = attrs.field(factory=dict[str, Any])

    def as_json(self) -> JSONObject:
        return {"what": "question", "id": self.number, "kind": self.kind, "data": self.data, "run": self.run}


class PageQuestions:
    """The server's input requests (elicitation, sampling, roots) that are waiting for the user.

    Each is published to ``feed``, and withdrawn when the user responds or its call ends.
    """

    def __init__(self, feed: PageFeed) -> None:
        self._feed = feed
        self._numbers = count(1)
        self._open: dict[int, _Question] = {}
        self._roots: list[JSONObject] = []
        self.revision: Revision = LATEST_LEGACY
        """The protocol revision that determines the form of input requests. A server that sends one before the
        connection is open is legacy."""

    def options(self) -> ClientOptions:
        """Return the options for the client that inspects the server.

        Their handlers show the server's input requests in the inspector's page, where the user responds.
        """
        return {
            "elicitation": self.form,
            "elicitation_url": self.url,
            "sampling": self.sample,
            "sampling_asks_user": True,
            "roots": self.roots,
            "max_questions": MOST_QUESTIONS,
        }

    def snapshot(self) -> Sequence[JSONObject]:
        """Return the input requests that are waiting for the user, as JSON data for pages."""
        return [question.as_json() for question in self._open.values()]

    # Questions of the server

    async def form(self, question: ElicitFormParams) -> ElicitResult:
        """Show an elicitation form in the inspector's page, and return what the user has entered. Raises `CodedError`
        if the form is too large to be shown."""
        check_form_size(question.requested_schema)
        shown = attrs.evolve(question, requested_schema=with_fitting_defaults(question.requested_schema))
        answer = await self._answer_to("form", self._plain(shown))
        return ElicitResult(answer["action"], answer.get("content"))

    async def url(self, question: ElicitURLParams) -> ElicitResult:
        """Show the URL that the server wants the user to visit, and return whether the user has agreed. The inspector
        itself doesn't open or fetch the URL."""
        check_url(question.url)
        return ElicitResult((await self._answer_to("url", self._plain(question)))["action"])

    async def sample(self, request: CreateMessageParams) -> CreateMessageResult:
        """Show a sampling request in the inspector's page. The user writes the response in place of a model. Raises
        `CodedError` if the user refuses."""
        answer = await self._answer_to("sampling", self._plain(request))
        if "text" not in answer:
            raise CodedError(_REFUSED, "the user refused the sampling request")
        return CreateMessageResult("assistant", TextContent(answer["text"]), "a person at a page", "endTurn")

    async def roots(self) -> list[Root]:
        """Let the user choose in the inspector's page which roots are sent to the server. The page suggests the user's
        last choice."""
        answer = await self._answer_to("roots", {"roots": self._roots})
        self._roots = answer["roots"]
        return [structure(root, Root) for root in self._roots]

    def _plain(self, params: Any) -> JSONObject:
        return cast("JSONObject", unstructure(params, self.revision))

    async def _answer_to(self, kind: str, data: JSONObject) -> JSONObject:
        if len(self._open) >= 3 * MOST_QUESTIONS:
            raise CodedError(INTERNAL_ERROR, "too many input requests are waiting for the user")
        question = _Question(next(self._numbers), kind, data, run_number.get())
        self._open[question.number] = question
        self._feed.publish(("question", question.number), question.as_json())
        try:
            await question.answered.wait()
        finally:
            del self._open[question.number]
            self._feed.publish(("question", question.number), {"what": "question.over", "id": question.number})
        return question.answer

    # Answers of the page

    def answer(self, number: int, answer: JSONObject) -> None:
        """Answer the input request with the number ``number`` with the data that the user has entered in the
        inspector's page.

        Raises `InvalidPageRequest` if the answer doesn't match the question, or the question is no longer open.
        """
        question = self._open.get(number)
        if question is None or question.answered.is_set():
            raise InvalidPageRequest("this input request is no longer open")
        question.answer = _CHECKS[question.kind](question.data, answer)
        question.answered.set()


def _elicited(data: JSONObject, answer: JSONObject) -> JSONObject:
    action = answer.get("action")
    if action not in ("accept", "decline", "cancel"):
        raise InvalidPageRequest("an answer must be 'accept', 'decline' or 'cancel'")
    if action != "accept" or "requestedSchema" not in data:
        return {"action": action}
    content: Any = answer.get("content")
    if not isinstance(content, dict):
        raise InvalidPageRequest("the content of a form must be an object")
    try:
        faults = SchemaValidator({"$schema": CHECKS_FORMATS} | data["requestedSchema"]).faults(content)
    except ValueError as error:
        raise InvalidPageRequest(f"the server's form has an invalid schema: {error}") from None
    if faults is not None:
        raise InvalidPageRequest(faults)
    return {"action": action, "content": content}


def _sampled(_: JSONObject, answer: JSONObject) -> JSONObject:
    if answer.get("action") == "decline":
        return {}
    text: Any = answer.get("text")
    if not isinstance(text, str):
        raise InvalidPageRequest("the model's answer must be text")
    return {"text": text}


def _rooted(_: JSONObject, answer: JSONObject) -> JSONObject:
    roots: Any = answer.get("roots")
    if not isinstance(roots, list) or len(cast("list[Any]", roots)) > _MOST_ROOTS:
        raise InvalidPageRequest(f"roots must be a list of at most {_MOST_ROOTS} roots")
    try:
        found = [structure(root, Root) for root in cast("list[Any]", roots)]
    except ValueError as error:
        raise InvalidPageRequest(str(error)) from None
    if not all(root.uri.startswith("file://") for root in found):
        raise InvalidPageRequest("the URI of a root must begin with file://")
    return {"roots": [{"uri": root.uri, "name": root.name} for root in found]}


_CHECKS: Final = {"form": _elicited, "url": _elicited, "sampling": _sampled, "roots": _rooted}
