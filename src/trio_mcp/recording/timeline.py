"""Timeline puts recordings on one axis: the requests of a connection as seen by both sides.

A request is found in the recording of the other side by its direction, its id, and how often the id was used before.
The clocks of two processes are compared by round trips, as NTP does (RFC 5905, section 8): of all calls that both sides
recorded, the one with the least delay says how far the clocks are apart, and half of that delay is the uncertainty.
Memory is bounded: of more requests than `MOST_REQUESTS`, and of more ticks of one than `MOST_TICKS`, the rest is
counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Literal, cast

import attrs

from ..classes import define, frozen
from ..jsonrpc.messages import RequestId
from .entries import Entry, Recorded, Reference, plain_id

MOST_REQUESTS: Final = 20_000
MOST_TICKS: Final = 200

Origin = Literal["client", "server"]
_OPPOSITE: Final[dict[str, Origin]] = {"client": "server", "server": "client"}


@define(eq=False)
class Tick:
    """Progress, a log message or a question of a round, at a time on the common axis."""

    at: float
    kind: Literal["progress", "log", "asks"]
    words: str = ""


@define(eq=False)
class TimedRequest:
    """A request with its times in seconds on the common axis; `None`: not recorded. The times of the caller's recording
    come first, then the times of the other side's."""

    id: RequestId
    origin: Origin
    """The side of the connection that has sent the request."""
    method: str
    name: str = ""
    """Name of the tool or prompt, or the URI."""
    sent: float | None = None
    answered: float | None = None
    """The answer was received."""
    left: float | None = None
    """The caller left the call."""
    cancel_sent: float | None = None
    received: float | None = None
    began: float | None = None
    cancel_read: float | None = None
    cause: str | None = None
    finally_began: float | None = None
    """The handler was resumed by its cancel."""
    returned: float | None = None
    replied: float | None = None
    """The answer was sent."""
    done: float | None = None
    """The handler and its tasks have ended."""
    failed: bool = False
    ticks: list[Tick] = attrs.field(factory=list[Tick])
    more_ticks: int = 0
    parent: TimedRequest | None = None
    """The request that this one was made for, or the round before."""
    depth: int = 0
    asked: Reference | None = None
    """The name of the parent."""
    state_brought: str | None = None
    """The `requestState` that a retry brings, masked."""
    state_given: str | None = None
    """The `requestState` of the answer, which a retry brings back."""
    token: RequestId | None = None
    """The progress token of the call."""

    @property
    def begin(self) -> float:
        """The first time."""
        return min(self._times())

    @property
    def end(self) -> float:
        """The last time."""
        return max(self._times())

    def _times(self) -> list[float]:
        times = (self.sent, self.answered, self.left, self.cancel_sent, self.received, self.began, self.cancel_read)
        more = (self.finally_began, self.returned, self.replied, self.done)
        return [each for each in (*times, *more) if each is not None] + [tick.at for tick in self.ticks]


@frozen
class Timeline:
    """The requests of all recordings, parents before the requests that were made for them."""

    requests: Sequence[TimedRequest]
    left_out: int
    """Number of requests beyond `MOST_REQUESTS`."""
    offset: float | None
    """Seconds that the clock of the second process is ahead of the first, by round trips; `None` where no call is
    in both recordings."""
    uncertainty: float
    """Seconds by which ``offset`` may be wrong."""
    sides: Sequence[str]
    """Words for each recording."""


def timeline(recordings: Sequence[Recorded]) -> Timeline:
    """Return the requests of ``recordings``: of the two sides of one connection, or of several connections, by a proxy
    for example. Raises `OSError` and `BadRecording`."""
    readings = [_Reading(each, number) for number, each in enumerate(recordings)]
    for reading in readings:
        reading.read()
    merged: list[tuple[_Reading, _Reading | None]] = []
    rest = list(readings)
    offset, uncertainty = None, 0.0
    while rest:
        first = rest.pop(0)
        other = next((each for each in rest if first.is_other_side_of(each)), None)
        if other is not None:
            rest.remove(other)
            found = _offset(first, other)
            if found is not None:
                offset, uncertainty = found
                other.shift(-offset)
        merged.append((first, other))
    requests: list[TimedRequest] = []
    by_reference: dict[tuple[str, RequestId], list[TimedRequest]] = {}
    for first, other in merged:
        whole = first.merge(other)
        requests += whole
        for reading in (first, other):
            for each in whole if reading is not None else ():
                by_reference.setdefault((reading.recorded.header.id, each.id), []).append(each)  # type: ignore[union-attr]
    left_out = sum(reading.left_out for reading in readings)
    sides = [f"{each.header.role} (process {each.header.pid})" for each in recordings]
    return Timeline(_nested(requests, by_reference), left_out, offset, uncertainty, sides)


class _Reading:
    """One recording, on its way into memory."""

    def __init__(self, recorded: Recorded, number: int) -> None:
        self.recorded = recorded
        self.number = number
        self.role: Origin = "server" if recorded.header.role == "server" else "client"
        self.requests: dict[tuple[Origin, RequestId], list[TimedRequest]] = {}
        self.count = self.left_out = 0
        self._tokens: dict[tuple[Origin, RequestId], TimedRequest] = {}
        self._asked: dict[RequestId, Reference] = {}

    def read(self) -> None:
        for entry in self.recorded:
            at = self.recorded.header.wall + entry.t / 1e6
            if entry.event is not None:
                self._event(entry, at)
            for message in entry.messages:
                self._message(message, entry.dir, at)

    def _message(self, message: dict[str, Any], direction: str | None, at: float) -> None:
        from_us = direction == "out"
        origin: Origin = self.role if from_us else _OPPOSITE[self.role]
        method, request_id = message.get("method"), plain_id(message.get("id"))
        params: Any = message.get("params")
        params = cast("dict[str, Any]", params) if isinstance(params, dict) else {}
        if isinstance(method, str) and request_id is not None:
            self._request(origin, request_id, method, params, at, from_us=from_us)
        elif isinstance(method, str):
            self._notification(origin, method, params, at, from_us=from_us)
        elif request_id is not None:
            self._reply(_OPPOSITE[origin], request_id, message, at, from_us=from_us)

    def _request(
        self, origin: Origin, request_id: RequestId, method: str, params: dict[str, Any], at: float, *, from_us: bool
    ) -> None:
        if self.count >= MOST_REQUESTS:
            self.left_out += 1
            return
        self.count += 1
        name = params.get("name", params.get("uri", ""))
        request = TimedRequest(request_id, origin, method[:200], name[:200] if isinstance(name, str) else "")
        if from_us:
            request.sent = at
            request.asked = self._asked.pop(request_id, None)
        else:
            request.received = at
        state = params.get("requestState")
        request.state_brought = state if isinstance(state, str) else None
        self.requests.setdefault((origin, request_id), []).append(request)
        meta: Any = params.get("_meta")
        token = plain_id(cast("dict[str, Any]", meta).get("progressToken")) if isinstance(meta, dict) else None
        if token is not None:
            request.token = token
            self._tokens[origin, token] = request

    def _last(self, origin: Origin, request_id: RequestId | None) -> TimedRequest | None:
        found = None if request_id is None else self.requests.get((origin, request_id))
        return found[-1] if found else None

    def _notification(self, origin: Origin, method: str, params: dict[str, Any], at: float, *, from_us: bool) -> None:
        if method == "notifications/cancelled":
            request = self._last(origin, plain_id(params.get("requestId")))
            if request is not None and from_us:
                request.cancel_sent = at
            elif request is not None:
                request.cancel_read = at
            if request is not None:
                self._forget_token(request)
        elif method == "notifications/progress":
            token = plain_id(params.get("progressToken"))
            request = None if token is None else self._tokens.get((_OPPOSITE[origin], token))
            _tick(request, Tick(at, "progress", f"{params.get('progress')} of {params.get('total')}"[:80]))
        elif method == "notifications/message":
            # A log message names no request, so it is shown where only one can be meant.
            request = next(iter(self._tokens.values())) if len(self._tokens) == 1 else None
            _tick(request, Tick(at, "log", str(params.get("data"))[:80]))

    def _reply(
        self, origin: Origin, request_id: RequestId, message: dict[str, Any], at: float, *, from_us: bool
    ) -> None:
        request = self._last(origin, request_id)
        if request is None:
            return
        if from_us:
            request.replied = at
        else:
            request.answered = at
        result: Any = message.get("result")
        result = cast("dict[str, Any]", result) if isinstance(result, dict) else {}
        request.failed = "error" in message or result.get("isError") is True
        if isinstance(state := result.get("requestState"), str):
            questions: Any = result.get("inputRequests")
            words = (
                f"asks {len(cast('dict[str, Any]', questions))} questions" if isinstance(questions, dict) else "asks"
            )
            _tick(request, Tick(at, "asks", words))
            request.state_given = state
        self._forget_token(request)

    def _forget_token(self, request: TimedRequest) -> None:
        if request.token is not None and self._tokens.get((request.origin, request.token)) is request:
            del self._tokens[request.origin, request.token]

    def _event(self, entry: Entry, at: float) -> None:
        if entry.event == "call.began" and entry.id is not None:
            if entry.work_for is not None and len(self._asked) < MOST_REQUESTS:
                self._asked[entry.id] = entry.work_for
            return
        ours = entry.event == "call.left"
        request = self._last(self.role if ours else _OPPOSITE[self.role], entry.id)
        if request is None:
            return
        match entry.event:
            case "call.left":
                request.left = at
            case "handler.began":
                request.began = at
            case "cancel.received":
                request.cancel_read, request.cause = at, entry.cause
            case "cancel.delivered":
                request.finally_began = at
            case "handler.returned":
                request.returned = at
            case "cleanup.done":
                request.done = at
            case _:
                pass

    # Both sides

    def is_other_side_of(self, other: _Reading) -> bool:
        """Return whether both recordings are of one connection: opposite roles, and the same first requests."""
        if self.role == other.role:
            return False
        mine = [(key, each[0].method) for key, each in self.requests.items()][:20]
        theirs = {key: each[0].method for key, each in other.requests.items()}
        common = sum(theirs.get(key) == method for key, method in mine)
        return common > 0 and 2 * common >= min(len(mine), len(theirs))

    def all(self) -> Iterator[TimedRequest]:
        for each in self.requests.values():
            yield from each

    def pairs(self, other: _Reading) -> Iterator[tuple[TimedRequest, TimedRequest]]:
        for key, mine in self.requests.items():
            yield from zip(mine, other.requests.get(key, ()), strict=False)

    def shift(self, seconds: float) -> None:
        """Move all times by ``seconds``."""
        for request in self.all():
            for field in _TIMES:
                at = getattr(request, field)
                if at is not None:
                    setattr(request, field, at + seconds)
            for tick in request.ticks:
                tick.at += seconds

    def merge(self, other: _Reading | None) -> list[TimedRequest]:
        """Return all requests, with the times of the ``other`` side."""
        if other is None:
            return list(self.all())
        seen = set[TimedRequest]()
        for mine, theirs in self.pairs(other):
            seen.add(theirs)
            for field in _TIMES:
                if getattr(mine, field) is None:
                    setattr(mine, field, getattr(theirs, field))
            mine.cause = mine.cause or theirs.cause
            mine.asked = mine.asked or theirs.asked
            mine.failed |= theirs.failed
            if not mine.ticks:
                mine.ticks, mine.more_ticks = theirs.ticks, theirs.more_ticks
        return [*self.all(), *(each for each in other.all() if each not in seen)]


_TIMES: Final = (
    *("sent", "answered", "left", "cancel_sent"),
    *("received", "began", "cancel_read", "finally_began", "returned", "replied", "done"),
)


def _tick(request: TimedRequest | None, tick: Tick) -> None:
    if request is None:
        return
    if len(request.ticks) < MOST_TICKS:
        request.ticks.append(tick)
    else:
        request.more_ticks += 1


def _offset(first: _Reading, other: _Reading) -> tuple[float, float] | None:
    """Return how far the clock of ``other`` is ahead, and the uncertainty; `None` without a whole round trip."""
    best: tuple[float, float] | None = None
    for mine, theirs in first.pairs(other):
        # The side that has asked has both outer times.
        asked, answering, sign = (mine, theirs, 1) if mine.sent is not None else (theirs, mine, -1)
        if asked.sent is None or asked.answered is None or answering.received is None or answering.replied is None:
            continue
        there, back = answering.received - asked.sent, answering.replied - asked.answered
        delay = there - back
        if best is None or delay < best[1]:
            best = (sign * (there + back) / 2, delay)
    return None if best is None else (best[0], max(best[1], 0.0) / 2)


def _nested(
    requests: Iterable[TimedRequest], by_reference: dict[tuple[str, RequestId], list[TimedRequest]]
) -> list[TimedRequest]:
    """Return ``requests`` by their times, each behind the request that it was made for."""
    ordered = sorted(requests, key=lambda each: each.begin)
    states: dict[tuple[str, str], TimedRequest] = {}
    children: dict[TimedRequest | None, list[TimedRequest]] = {None: []}
    for each in ordered:
        each.parent = _parent(each, by_reference)
        if each.parent is None and each.state_brought is not None:
            each.parent = states.get((each.method, each.state_brought))
        if each.state_given is not None:
            states[each.method, each.state_given] = each
        children.setdefault(each.parent, []).append(each)
    found: list[TimedRequest] = []
    waiting = children[None][::-1]
    while waiting:
        each = waiting.pop()
        each.depth = 0 if each.parent is None else each.parent.depth + 1
        found.append(each)
        waiting += children.get(each, [])[::-1]
    return found


def _parent(
    request: TimedRequest, by_reference: dict[tuple[str, RequestId], list[TimedRequest]]
) -> TimedRequest | None:
    """Return the request that ``request`` was made for: the last of its id that had begun by then."""
    asked = request.asked
    if asked is None:
        return None
    named = by_reference.get((asked.recording, asked.id), [])
    fitting = [each for each in named if each is not request and each.began is not None and each.begin <= request.begin]
    return max(fitting, key=lambda each: each.begin, default=None)
