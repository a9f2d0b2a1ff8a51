"""RecordingReader: reads the requests in one recording, with their times, using a limited amount of memory.

A `TimedRequest` is a request with its times, from one recording or from both sides of a connection.

A reader keeps at most `MOST_REQUESTS` requests, `MOST_TICKS` ticks of a request and `MOST_TICKS_IN_ALL` ticks in total.
The rest is only counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final, Literal, TypeAlias

import attrs

from ..classes import define
from ..jsonrpc.messages import RequestId
from ..jsonrpc.sizes import is_small
from ..protocol.fields import as_object
from .entries import Recorded, RecordedEntry, Reference, plain_id

Origin: TypeAlias = Literal["client", "server"]
OPPOSITE: Final[dict[str, Origin]] = {"client": "server", "server": "client"}
TIMES: Final = (
    *("sent", "answered", "left", "cancel_sent"),
    *("received", "began", "cancel_read", "finally_began", "returned", "replied", "done"),
)
"""The fields of `TimedRequest` that are times."""


@define(eq=False)
class Tick:
    """A message that a handler has sent while it ran (progress, log or input request), with its time on the
    timeline."""

    at: float
    kind: Literal["progress", "log", "asks"]
    text: str = ""


@define(eq=False)
class ProcessStart:
    """The time span in which a client started its server process."""

    pid: int
    started_at: float
    ready_at: float | None = None
    """When the server began to serve; if only the client has recorded, when its first message arrived. `None` if
    there was no message."""

    @property
    def ended_at(self) -> float:
        """The end of the time span in which the client started the server process.

        This is ``ready_at``, or ``started_at`` if ``ready_at`` is unknown or, in a damaged recording, earlier than
        ``started_at``.
        """
        return self.started_at if self.ready_at is None else max(self.ready_at, self.started_at)


@define(eq=False)
class TimedRequest:
    """A request with its times, in seconds on the common time axis. A time that wasn't recorded is `None`.

    The first times come from the caller's recording, the others (from ``received`` on) from the recording of the other
    side.
    """

    id: RequestId
    origin: Origin
    """The side that sent the request."""
    method: str
    name: str = ""
    """Name of the tool or prompt, or URI of the resource."""
    sent: float | None = None
    answered: float | None = None
    """When the caller received the reply."""
    left: float | None = None
    """When the caller stopped waiting for the reply."""
    cancel_sent: float | None = None
    received: float | None = None
    began: float | None = None
    cancel_read: float | None = None
    cause: str | None = None
    finally_began: float | None = None
    """When the handler resumed because of its cancellation."""
    returned: float | None = None
    replied: float | None = None
    """When the reply was sent."""
    done: float | None = None
    """When the handler and all its tasks had ended."""
    failed: bool = False
    ticks: list[Tick] = attrs.field(factory=list[Tick])
    more_ticks: int = 0
    parent: TimedRequest | None = None
    """The request whose handler made this request, or the previous attempt of the same call, which returned input
    requests."""
    depth: int = 0
    asked: Reference | None = None
    """The reference to the parent request, as recorded."""
    state_brought: str | None = None
    """The masked `requestState` that a retry sends."""
    state_given: str | None = None
    """The masked `requestState` in the reply, which a retry sends back."""
    token: RequestId | None = None
    """The progress token of the call."""
    post: int = 0
    """See `RecordedEntry.post`."""

    @property
    def started_at(self) -> float:
        """The earliest recorded time of the request."""
        return min(self._times())

    @property
    def ended_at(self) -> float:
        """The latest recorded time of the request."""
        return max(self._times())

    def _times(self) -> list[float]:
        times = (getattr(self, field) for field in TIMES)
        return [each for each in times if each is not None] + [tick.at for tick in self.ticks]

    def shift(self, seconds: float) -> None:
        """Add ``seconds`` to all times of the request."""
        for field in TIMES:
            at = getattr(self, field)
            if at is not None:
                setattr(self, field, at + seconds)
        for tick in self.ticks:
            tick.at += seconds

    def complete(self, other: TimedRequest) -> None:
        """Fill in the missing times of this request from ``other``, the same request in the recording of the
        connection's other side."""
        for field in TIMES:
            if getattr(self, field) is None:
                setattr(self, field, getattr(other, field))
        self.cause = self.cause or other.cause
        self.asked = self.asked or other.asked
        self.failed |= other.failed
        # Prefer the times of the side that sent the messages, because its times are exact.
        if not self.ticks or (other.ticks and other.received is not None):
            self.ticks, self.more_ticks = other.ticks, other.more_ticks


MOST_REQUESTS: Final = 20_000
MOST_TICKS: Final = 200
MOST_TICKS_IN_ALL: Final = 100_000
_LONGEST: Final = 200
"""Maximum number of characters that are kept of a text."""
_MOST_PARTS: Final = 20
"""Maximum number of items, members and levels of a value that is shown."""
_COMPARED: Final = 20
"""Number of requests that are compared to find out whether two recordings are the two sides of one connection."""


class _OpenRequests:
    """The requests that have no response yet, by the side that sent them (`Origin`) and by the HTTP POST that contained
    them (`RecordedEntry.post`). Each method takes constant time."""

    def __init__(self) -> None:
        self._open = set[TimedRequest]()
        self._counts: dict[Origin | int, int] = {}
        self._stacks: dict[Origin | int, list[TimedRequest]] = {}
        """Requests in the order of their start. The lists may still contain requests that have a reply."""

    def add(self, request: TimedRequest) -> None:
        self._open.add(request)
        for key in _keys(request):
            self._counts[key] = self.count(key) + 1
            self._stacks.setdefault(key, []).append(request)

    def discard(self, request: TimedRequest) -> None:
        if request in self._open:
            self._open.discard(request)
            for key in _keys(request):
                self._counts[key] -= 1

    def count(self, key: Origin | int) -> int:
        return self._counts.get(key, 0)

    def last(self, key: Origin | int) -> TimedRequest | None:
        stack = self._stacks.get(key, [])
        while stack and stack[-1] not in self._open:
            stack.pop()
        return stack[-1] if stack else None


def _keys(request: TimedRequest) -> list[Origin | int]:
    """Return the keys under which ``request`` is stored. These are its HTTP exchange, if there is one, and its origin
    (client or server), unless its method is ``subscriptions/listen``."""
    keys: list[Origin | int] = [] if request.method == "subscriptions/listen" else [request.origin]
    return [*keys, request.post] if request.post else keys


class RecordingReader:
    """Reads the requests of one recording into memory."""

    def __init__(self, recorded: Recorded) -> None:
        self.recorded = recorded
        self.role: Origin = "server" if recorded.header.role == "server" else "client"
        self.requests: dict[tuple[Origin, RequestId], list[TimedRequest]] = {}
        """The requests by origin and id, oldest first, because an id can be reused."""
        self.count = self.left_out = 0
        self._ticks = 0
        self._has_posts = False
        self._posted: dict[tuple[int, RequestId], TimedRequest] = {}
        """The requests of many clients, by HTTP exchange and id."""
        self._open = _OpenRequests()
        self._tokens: dict[tuple[Origin, RequestId], TimedRequest] = {}
        self._asked: dict[RequestId, Reference] = {}
        self.begin = recorded.header.wall
        """The time of the recording's header on the time axis."""
        self.process: ProcessStart | None = None
        """The start of the server process, if this client started it."""

    def read(self) -> None:
        """Read the file of the recording. Raises `OSError` and `BadRecording`."""
        for entry in self.recorded:
            at = self.recorded.header.wall + entry.t / 1e6
            if entry.event is not None:
                self._event(entry, at)
            for message in entry.messages:
                if entry.dir == "in" and self.process is not None and self.process.ready_at is None:
                    self.process.ready_at = at
                self._message(message, entry, at)

    def _message(self, message: dict[str, Any], entry: RecordedEntry, at: float) -> None:
        from_us = entry.dir == "out"
        origin: Origin = self.role if from_us else OPPOSITE[self.role]
        method, request_id = message.get("method"), plain_id(message.get("id"))
        params = as_object(message.get("params"))
        if isinstance(method, str) and request_id is not None:
            self._request(TimedRequest(request_id, origin, method[:_LONGEST], post=entry.post), params, at, from_us)
        elif isinstance(method, str):
            self._notification(origin, method, params, entry.post, at, from_us)
        elif request_id is not None:
            request = self._find(OPPOSITE[origin], request_id, entry.post)
            if request is not None:
                self._reply(request, message, at, from_us)

    def _request(self, request: TimedRequest, params: dict[str, Any], at: float, from_us: bool) -> None:
        if self.count >= MOST_REQUESTS:
            self.left_out += 1
            return
        self.count += 1
        name = params.get("name", params.get("uri", ""))
        request.name = name[:_LONGEST] if isinstance(name, str) else ""
        if from_us:
            request.sent = at
            request.asked = self._asked.pop(request.id, None)
        else:
            request.received = at
        request.state_brought = _state(params)
        self.requests.setdefault((request.origin, request.id), []).append(request)
        self._open.add(request)
        if request.post:
            self._has_posts = True
            self._posted[request.post, request.id] = request
        token = plain_id(as_object(params.get("_meta")).get("progressToken"))
        if token is not None:
            request.token = token
            self._tokens[request.origin, token] = request

    def _find(self, origin: Origin, request_id: RequestId | None, post: int = 0) -> TimedRequest | None:
        if request_id is None:
            return None
        posted = self._posted.get((post, request_id)) if post else None
        if posted is not None:
            return posted
        found = self.requests.get((origin, request_id))
        return found[-1] if found else None

    def _notification(
        self, origin: Origin, method: str, params: dict[str, Any], post: int, at: float, from_us: bool
    ) -> None:
        if method == "notifications/cancelled":
            request = self._find(origin, plain_id(params.get("requestId")), post)
            if request is None:
                return
            if from_us:
                request.cancel_sent = at
            else:
                request.cancel_read = at
            self._over(request)
        elif method == "notifications/progress":
            token = plain_id(params.get("progressToken"))
            request = None if token is None else self._tokens.get((OPPOSITE[origin], token))
            if post and token is not None:
                request = self._with_post(post) or request
            words = f"{_shown(params.get('progress'))} of {_shown(params.get('total'))}"
            self._tick(request, at, "progress", words)
        elif method == "notifications/message":
            self._tick(self._with_post(post) or self._only_one(OPPOSITE[origin]), at, "log", _shown(params.get("data")))

    def _with_post(self, post: int) -> TimedRequest | None:
        """Return the latest unanswered request that was sent in the HTTP exchange ``post``."""
        return self._open.last(post) if post else None

    def _only_one(self, origin: Origin) -> TimedRequest | None:
        """Return the only request without a response, to which a log message must then belong. Return `None` if there
        are several."""
        return self._open.last(origin) if self._open.count(origin) == 1 else None

    def _tick(self, request: TimedRequest | None, at: float, kind: Any, words: str) -> None:
        if request is None:
            return
        if len(request.ticks) < MOST_TICKS and self._ticks < MOST_TICKS_IN_ALL:
            self._ticks += 1
            request.ticks.append(Tick(at, kind, words[:80]))
        else:
            request.more_ticks += 1

    def _reply(self, request: TimedRequest, message: dict[str, Any], at: float, from_us: bool) -> None:
        if from_us:
            request.replied = at
        else:
            request.answered = at
        result = as_object(message.get("result"))
        request.failed = "error" in message or result.get("isError") is True
        request.state_given = _state(result)
        if request.state_given is not None:
            count = len(as_object(result.get("inputRequests")))
            self._tick(request, at, "asks", f"asks {count} questions" if count else "asks")
        self._over(request)

    def _over(self, request: TimedRequest) -> None:
        self._open.discard(request)
        if request.token is not None and self._tokens.get((request.origin, request.token)) is request:
            del self._tokens[request.origin, request.token]

    def _event(self, entry: RecordedEntry, at: float) -> None:
        if entry.event == "process.started" and self.process is None:
            self.process = ProcessStart(entry.pid, at)
        if entry.event == "call.began" and entry.id is not None:
            if entry.work_for is not None and len(self._asked) < MOST_REQUESTS:
                self._asked[entry.id] = entry.work_for
            return
        ours = entry.event == "call.left"
        request = self._find(self.role if ours else OPPOSITE[self.role], entry.id, entry.post)
        if request is None:
            return
        match entry.event:
            case "call.left":
                request.left = at
            case "handler.began":
                request.began = at
            case "cancel.received":
                request.cancel_read, request.cause = at, entry.cause
                self._over(request)
            case "cancel.delivered":
                request.finally_began = at
            case "handler.returned":
                request.returned = at
            case "cleanup.done":
                request.done = at
            case _:
                pass

    # Both sides

    def is_other_side_of(self, other: RecordingReader) -> bool:
        """Return whether ``other`` is the other side's recording of the same connection: the roles differ, and the
        first requests are equal."""
        if self.role == other.role:
            return False
        mine = [(key, each[0].method) for key, each in islice(self.requests.items(), _COMPARED)]
        common = sum(
            any(each.method == method for each in other.requests.get(key, ())[:_COMPARED]) for key, method in mine
        )
        return common > 0 and 2 * common >= min(len(mine), len(other.requests))

    def all(self) -> Iterator[TimedRequest]:
        """Yield all requests of the recording, grouped by sender and id."""
        for each in self.requests.values():
            yield from each

    def pairs(self, other: RecordingReader) -> Iterator[tuple[TimedRequest, TimedRequest]]:
        """Yield each request that is in this recording and in ``other``, as a pair of both versions."""
        for key, mine in self.requests.items():
            theirs = other.requests.get(key, [])
            if self._has_posts or other._has_posts:
                yield from _nearest(mine, theirs)
            else:
                yield from zip(mine, theirs, strict=False)

    def shift(self, seconds: float) -> None:
        """Add ``seconds`` to all times of the recording."""
        self.begin += seconds
        if self.process is not None:
            self.process.started_at += seconds
            if self.process.ready_at is not None:
                self.process.ready_at += seconds
        for request in self.all():
            request.shift(seconds)

    def merge(self, other: RecordingReader | None) -> list[TimedRequest]:
        """Return the requests of this recording and of ``other``, the recording of the connection's other side. A
        request in both recordings is returned once, with the times that either side has recorded."""
        if other is None:
            return list(self.all())
        for client, server in ((self, other), (other, self)):
            if client.process is not None:
                client.process.ready_at = server.begin
        seen = set[TimedRequest]()
        for mine, theirs in list(self.pairs(other)):
            seen.add(theirs)
            mine.complete(theirs)
        return [*self.all(), *(each for each in other.all() if each not in seen)]


def _nearest(mine: list[TimedRequest], theirs: list[TimedRequest]) -> Iterator[tuple[TimedRequest, TimedRequest]]:
    """Pair the requests of both sides that have the same id and are nearest in time. Ids repeat in recordings of many
    clients."""
    left = theirs[:_COMPARED]
    for each in mine[:_COMPARED]:
        fitting = [other for other in left if (other.method, other.name) == (each.method, each.name)]
        if fitting:
            found = min(fitting, key=lambda other: abs(other.started_at - each.started_at))
            left.remove(found)
            yield each, found


def _shown(data: Any) -> str:
    """Return a value of a message as a short text."""
    if isinstance(data, str):
        return data[:_LONGEST]
    return str(data) if is_small(data, _MOST_PARTS, _LONGEST, _MOST_PARTS) else "(large)"


def _state(data: dict[str, Any]) -> str | None:
    state = data.get("requestState")
    return state[:_LONGEST] if isinstance(state, str) else None
