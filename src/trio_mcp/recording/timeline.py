"""Timeline: the requests of several recordings on a common time axis, as both sides of each connection have recorded
them.

A request is matched with the recording of the other side by its direction, its id, and how often the id was used
before. If a server over HTTP recorded many clients that use the same ids, the request that is nearest in time is taken.

The clocks of two processes are compared by round trips, as NTP does (RFC 5905, section 8). No message arrives before it
was sent, so the fastest message in each direction limits the offset between the clocks. The middle of this range is
taken as the offset, and half of its width is the uncertainty. If the range contains 0, the clocks aren't corrected.

`perfetto` writes a timeline as trace events: async nestable events, one row for each request, in the Trace Event
Format. ``b`` and ``e`` begin and end a slice of the row that ``id2`` names within its process, ``n`` is a moment in the
row, and ``ts`` is in microseconds. The trace has two processes: the rows of the callers contain the calls, and the rows
of the other side contain the handlers with their cleanup.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from ..classes import frozen
from ..jsonrpc.messages import RequestId
from .entries import Recorded
from .reading import ProcessStart, RecordingReader, TimedRequest


@frozen
class Timeline:
    """The requests of several recordings on a common time axis. Each request comes before the requests that its handler
    made."""

    requests: Sequence[TimedRequest]
    left_out: int
    """Number of requests that were left out because there were more than `MOST_REQUESTS`."""
    offset: float | None
    """How many seconds the clock of the second process is ahead of the first, in the first two recordings of one
    connection.

    It is estimated from round trips: 0 if no message contradicts equal clocks, and `None` if no call is in both
    recordings.
    """
    uncertainty: float
    """The possible error of ``offset``, in seconds."""
    sides: Sequence[str]
    """A description of each recording."""
    starts: Sequence[ProcessStart] = ()
    """The starts of server processes by their clients."""


def timeline(recordings: Sequence[Recorded]) -> Timeline:
    """Return the requests of ``recordings`` on a common time axis.

    The recordings can be the two sides of one connection, or belong to several connections, for example of a proxy.
    Raises `OSError` and `BadRecording`.
    """
    readings = [RecordingReader(each) for each in recordings]
    for reading in readings:
        reading.read()
    merged: list[tuple[RecordingReader, RecordingReader | None]] = []
    rest = list(readings)
    offset, uncertainty = None, 0.0
    ahead: dict[int, float] = {}
    """How many seconds the clock of each process is ahead of the first process."""
    while rest:
        first = rest.pop(0)
        other = next((each for each in rest if first.is_other_side_of(each)), None)
        found = None if other is None else _offset(first, other)
        if found is not None and offset is None:
            offset, uncertainty = found
        apart = 0.0 if found is None else found[0]
        pids = [each.recorded.header.pid for each in (first, other) if each is not None]
        base = ahead.get(pids[0], ahead.get(pids[-1], apart) - apart)
        for reading, pid, seconds in zip((first, other), pids, (base, base + apart), strict=False):
            ahead.setdefault(pid, seconds)
            if reading is not None and seconds:
                reading.shift(-seconds)
        if other is not None:
            rest.remove(other)
        merged.append((first, other))
    requests: list[TimedRequest] = []
    of_recordings: list[tuple[str, TimedRequest]] = []
    for first, other in merged:
        whole = first.merge(other)
        requests += whole
        for reading in (first, other):
            if reading is not None:
                of_recordings += ((reading.recorded.header.id, each) for each in whole)
    left_out = sum(reading.left_out for reading in readings)
    sides = [f"{each.header.role} (process {each.header.pid})" for each in recordings]
    starts = [each.process for each in readings if each.process is not None]
    return Timeline(_nested(requests, _StartedRequests(of_recordings)), left_out, offset, uncertainty, sides, starts)


def _offset(first: RecordingReader, other: RecordingReader) -> tuple[float, float] | None:
    """Return by how many seconds the clock of ``other`` is ahead of the clock of ``first``, and how uncertain this
    offset is.

    Return `None` if there is no complete round trip.
    """
    least, most = -math.inf, math.inf
    for mine, theirs in first.pairs(other):
        if mine.sent is not None:
            # A message can't arrive before it was sent, which limits the difference between the clocks.
            most = min(most, _passed(mine.sent, theirs.received), _passed(mine.cancel_sent, theirs.cancel_read))
            least = max(least, -_passed(theirs.replied, mine.answered))
        else:
            most = min(most, _passed(mine.replied, theirs.answered))
            least = max(least, -_passed(theirs.sent, mine.received), -_passed(theirs.cancel_sent, mine.cancel_read))
    if math.isinf(least) or math.isinf(most):
        return None
    if least <= 0 <= most:
        return 0.0, max(-least, most)
    return (least + most) / 2, abs(most - least) / 2


def _passed(sent: float | None, received: float | None) -> float:
    """Return the time from sending a message to receiving it, measured with two clocks. Return infinity if either time
    is unknown."""
    return math.inf if sent is None or received is None else received - sent


class _StartedRequests:
    """The requests whose handlers have started, keyed by recording, id and HTTP exchange (the fields of a
    `Reference`)."""

    def __init__(self, requests: Iterable[tuple[str, TimedRequest]]) -> None:
        """Store ``requests``, pairs of a recording's id and a request in that recording."""
        self._found: dict[tuple[str, RequestId, int], tuple[list[float], list[TimedRequest]]] = {}
        handled = [(each.started_at, recording, each) for recording, each in requests if each.began is not None]
        for begin, recording, each in sorted(handled, key=lambda found: found[0]):
            begins, found = self._found.setdefault((recording, each.id, each.post), ([], []))
            begins.append(begin)
            found.append(each)

    def last(self, name: tuple[str, RequestId, int], request: TimedRequest) -> TimedRequest | None:
        """Of the requests that are stored under the key ``name``, return the latest one that started before
        ``request``."""
        begins, found = self._found.get(name, ([], []))
        before = bisect_right(begins, request.started_at)
        return next((each for each in reversed(found[max(0, before - 2) : before]) if each is not request), None)


def _nested(requests: Iterable[TimedRequest], begun: _StartedRequests) -> list[TimedRequest]:
    """Sort ``requests`` by time, with each request placed after the request whose handler made it."""
    ordered = sorted(requests, key=lambda each: each.started_at)
    states: dict[tuple[str, str], TimedRequest] = {}
    children: dict[TimedRequest | None, list[TimedRequest]] = {None: []}
    for each in ordered:
        each.parent = _parent(each, begun)
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


def _parent(request: TimedRequest, begun: _StartedRequests) -> TimedRequest | None:
    """Return the request whose handler sent ``request``, by the id that was recorded for it. Of several requests with
    this id, it is the latest that started before ``request``."""
    asked = request.asked
    if asked is None:
        return None
    found = [begun.last((asked.recording, asked.id, post), request) for post in {0, asked.post}]
    return max((each for each in found if each is not None), key=lambda each: each.started_at, default=None)


_CALLERS: Final = 1
_HANDLERS: Final = 2


def perfetto(timeline: Timeline) -> bytes:
    """Return ``timeline`` as trace data in JSON, for the Perfetto viewer."""
    begin = min((each.started_at for each in (*timeline.starts, *timeline.requests)), default=0.0)
    events = [*_names(_CALLERS, "calls"), *_names(_HANDLERS, "handlers")]
    for number, start in enumerate(timeline.starts):
        row = _TraceRow(number, begin)
        events += row.slice(_HANDLERS, f"start of process {start.pid}", start.started_at, start.ended_at)
    for number, request in enumerate(timeline.requests, len(timeline.starts)):
        events += _TraceRow(number, begin).events_of(request)
    return msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ms"})


def _names(pid: int, name: str) -> Iterator[dict[str, Any]]:
    for kind in ("process_name", "thread_name"):
        yield {"ph": "M", "pid": pid, "tid": pid, "name": kind, "args": {"name": name}}


class _TraceRow:
    """Creates the trace events of one row in Perfetto. ``begin`` is the time 0 of the trace."""

    def __init__(self, number: int, begin: float) -> None:
        self._name = f"{number:#x}"
        self._begin = begin

    def event(self, phase: str, pid: int, name: str, at: float, **args: Any) -> dict[str, Any]:
        # Use a local id, because Perfetto shows rows with other ids outside of any process.
        row = {"local": self._name}
        event: dict[str, Any] = {"ph": phase, "cat": "mcp", "id2": row, "pid": pid, "tid": pid, "name": name}
        event["ts"] = round((at - self._begin) * 1e6, 3)
        return {**event, "args": args} if args else event

    def slice(
        self, pid: int, name: str, begin: float, end: float, *inside: dict[str, Any], **args: Any
    ) -> Iterator[Any]:
        first, last = self.event("b", pid, name, begin, **args), self.event("e", pid, name, max(begin, end))
        for each in inside:
            each["ts"] = min(max(each["ts"], first["ts"]), last["ts"])
        yield first
        yield from sorted(inside, key=lambda each: each["ts"])
        yield last

    def events_of(self, request: TimedRequest) -> Iterator[dict[str, Any]]:
        """Yield the trace events of a request: those of the caller's side, and those of its handler."""
        name = f"{request.method} {request.name}".strip()
        args = {"id": request.id, "from": request.origin, "cause": request.cause, "failed": request.failed}
        if request.parent is not None:
            args["made for"] = request.parent.id
        has_handler = request.began is not None or request.received is not None
        ticks = [
            self.event("n", _HANDLERS if has_handler else _CALLERS, tick.kind, tick.at, words=tick.text)
            for tick in request.ticks
        ]
        if request.sent is not None:
            end = request.answered or request.left or request.cancel_sent or request.ended_at
            cancels = [("caller left", request.left), ("cancel sent", request.cancel_sent)]
            inside = [self.event("n", _CALLERS, word, at) for word, at in cancels if at is not None]
            yield from self.slice(_CALLERS, name, request.sent, end, *inside, *([] if has_handler else ticks), **args)
        began = request.began or request.received
        if began is not None:
            over = request.done or request.returned or request.replied or request.ended_at
            inside = list(ticks)
            if request.cancel_read is not None:
                inside.append(self.event("n", _HANDLERS, "cancel read", request.cancel_read))
            if request.finally_began is not None:
                inside += self.slice(_HANDLERS, "finally and cleanup", request.finally_began, over)
            yield from self.slice(_HANDLERS, name, began, over, *inside, **args)
