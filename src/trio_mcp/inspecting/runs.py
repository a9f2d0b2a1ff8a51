"""Runs are the requests that the user has started in the page, each in a task and a cancel scope of its own.

A `PageFeed` sends all events to the pages, as server-sent events. The unread part of a page is bounded: a later state
of the same thing replaces the earlier one, and a page that is far behind is shown everything again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Generator, Hashable, Iterable, Sequence
from contextvars import ContextVar
from itertools import count
from typing import Any, Final, Literal

import attrs
import trio

from ..classes import define
from ..concurrency.contexts import contextmanager
from ..concurrency.nurseries import ServiceNursery
from ..concurrency.wakeups import Sleeper
from ..jsonrpc.codec import encode_value
from ..jsonrpc.errors import CodedError, MCPError, PeerError
from ..protocol.fields import JSONObject
from ..runtime.calls import OnProgress, Progress
from ..transports.sse import KEEP_ALIVE, events

MOST_PAGES: Final = 8
"""Pages that are open at the same time."""
_MOST_WAITING: Final = 2000
"""Unread things of a page; with more, the page is shown everything anew."""
_AT_ONCE: Final = 200
"""Things that are written in one piece."""
_PAUSE: Final = 0.03
"""Seconds between two pieces, in which several changes of one thing are told once."""
_KEEP_ALIVE: Final = 15.0

Snapshot = Callable[[], Iterable[tuple[Hashable, JSONObject]]]


class PageFeed:
    """The news for all pages. ``snapshot`` returns all that a page has to know at its beginning, each thing under the
    key under which its changes are told."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._pages: set[PageStream] = set()

    def publish(self, key: Hashable, thing: JSONObject) -> None:
        """Tell all pages of ``thing``, which replaces an unread thing of the same ``key``."""
        for page in self._pages:
            page.put(key, thing)

    @property
    def is_full(self) -> bool:
        """True while no more pages may be opened."""
        return len(self._pages) >= MOST_PAGES

    @contextmanager
    def opened(self) -> Generator[PageStream]:
        """Open the stream of one more page, which begins with everything."""
        page = PageStream(self._snapshot)
        self._pages.add(page)
        try:
            yield page
        finally:
            self._pages.discard(page)


class PageStream:
    """The unread news of one page."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._waiting: dict[Hashable, JSONObject] = {}
        self._wakeup = Sleeper()
        self._restart()

    def _restart(self) -> None:
        self._waiting = {None: {"what": "everything"}}
        self._waiting.update(self._snapshot())

    def put(self, key: Hashable, thing: JSONObject) -> None:
        """Let ``thing`` be told. Synchronous."""
        self._waiting[key] = thing
        if len(self._waiting) > _MOST_WAITING:
            self._restart()
        self._wakeup.wake()

    async def next_events(self) -> bytes:
        """Wait for news, and return the news as events; a comment after a while without any."""
        with trio.move_on_after(_KEEP_ALIVE):
            while not self._waiting:
                await self._wakeup.sleep()
            await trio.sleep(_PAUSE)  # a handler that reports each step is no reason to draw the page for each
        if not self._waiting:
            return KEEP_ALIVE
        keys = list(self._waiting)[:_AT_ONCE]
        things: list[Any] = [self._waiting.pop(key) for key in keys]
        return bytes(events(b"".join(encode_value(thing) + b"\n" for thing in things)))


logger = logging.getLogger("trio_mcp")

MOST_RUNNING: Final = 64
MOST_KEPT: Final = 100
"""Requests that are shown, the running ones included."""
_MOST_BYTES: Final = 64 * 1024 * 1024
"""Bytes of all kept results."""
_MOST_WORDS: Final = 4000

Outcome = tuple[Any, bool]
"""A result as plain data, and true where the result tells of a failure."""
Work = Callable[["Run", OnProgress], Awaitable[Outcome]]


run_number: Final = ContextVar[int | None]("run_number", default=None)
"""The number of the run that the current task makes, and of the run whose question a handler answers."""


class TooManyRuns(Exception):
    """The bound on running requests is reached."""


def cut(text: str, limit: int = _MOST_WORDS) -> str:
    """Return ``text``, cut to ``limit`` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def error_text(error: BaseException) -> str:
    """Return ``error`` in words for the user."""
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
    """A request. Times are on trio's clock, but for ``since``, in milliseconds since the epoch."""

    number: int
    kind: str
    name: str
    given: str
    """The arguments as JSON, cut."""
    since: float
    started_at: float
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    status: Literal["running", "done", "failed", "cancelled", "lost"] = "running"
    ended: float | None = None
    progress: Progress | None = None
    reports: int = 0
    task: str | None = None
    """Id of the task that the server has made of the request."""
    error: str = ""
    """The error, in words."""
    result: bytes | None = attrs.field(default=None, repr=False)
    """The result as JSON."""
    is_error: bool = False
    """True for a result that tells of a failure."""
    warning: str | None = None
    """What is wrong with the result, in words."""

    def as_json(self) -> JSONObject:
        """Return the form for pages."""
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
    """The last requests, each change told to ``feed``."""

    def __init__(self, feed: PageFeed) -> None:
        self._feed = feed
        self._numbers = count(1)
        self._runs: dict[int, Run] = {}
        self._bytes = 0

    def snapshot(self) -> Sequence[JSONObject]:
        """Return the kept requests in the form for pages."""
        return [run.as_json() for run in self._runs.values()]

    def __getitem__(self, number: int) -> Run:
        """Return a request by its number. Raises `KeyError`."""
        return self._runs[number]

    def start(self, nursery: ServiceNursery, kind: str, name: str, arguments: Any, work: Work) -> Run:
        """Start a request in ``nursery``. Raises `TooManyRuns`."""
        if sum(run.ended is None for run in self._runs.values()) >= MOST_RUNNING:
            raise TooManyRuns(f"{MOST_RUNNING} requests run already: cancel one, or wait")
        given = "" if arguments is None else cut(encode_value(arguments).decode(), 500)
        run = Run(next(self._numbers), kind, cut(name, 500), given, time.time() * 1000, trio.current_time())
        self._runs[run.number] = run
        self._discard_old()
        self.publish(run)
        nursery.start_soon(self._run, run, work)
        return run

    def cancel(self, number: int) -> None:
        """Leave a request, which stops its handler in the server. A request that has ended stays as it is. Raises
        `KeyError`."""
        run = self._runs[number]
        run.scope.cancel(reason="cancelled in the page")
        self.publish(run)

    def publish(self, run: Run) -> None:
        """Tell the pages how ``run`` is."""
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
            logger.exception("a request of the page failed")
            run.status, run.error = "failed", error_text(error)
        finally:
            if run.status == "running":
                run.status = "lost"  # nobody has ended the request but the end of the connection
            run.ended = trio.current_time()
            self._bytes += len(run.result or b"")
            self._discard_old()
            self.publish(run)

    def _discard_old(self) -> None:
        """Forget the oldest requests that have ended, where there are too many."""
        for run in [run for run in self._runs.values() if run.ended is not None]:
            if len(self._runs) <= MOST_KEPT and self._bytes <= _MOST_BYTES:
                return
            del self._runs[run.number]
            self._bytes -= len(run.result or b"")
            self._feed.publish(("run", run.number), {"what": "run.forgotten", "id": run.number})
