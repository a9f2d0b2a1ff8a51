"""A timeline as trace events for Perfetto: async nestable events, one row a request.

The events follow the Trace Event Format: ``b`` and ``e`` begin and end a slice of the row that ``id2`` names within its
process, and ``n`` is a moment in the row; ``ts`` are microseconds. The rows of the callers, one process of the trace,
have the calls; the rows of the other side have the handlers, with their cleanup.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from .timed_requests import TimedRequest
from .timeline import Timeline

_CALLERS: Final = 1
_HANDLERS: Final = 2


def perfetto(timeline: Timeline) -> bytes:
    """Return ``timeline`` as JSON."""
    begin = min((each.started_at for each in timeline.requests), default=0.0)
    events = [*_names(_CALLERS, "calls"), *_names(_HANDLERS, "handlers")]
    for number, request in enumerate(timeline.requests):
        events += _RequestRows(request, number, begin).events()
    return msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ms"})


def _names(pid: int, name: str) -> Iterator[dict[str, Any]]:
    for kind in ("process_name", "thread_name"):
        yield {"ph": "M", "pid": pid, "tid": pid, "name": kind, "args": {"name": name}}


class _RequestRows:
    """The rows of one request, which is the one with this ``number``."""

    def __init__(self, request: TimedRequest, number: int, begin: float) -> None:
        self._request = request
        self._number = number
        self._begin = begin

    def _event(self, phase: str, pid: int, name: str, at: float, **args: Any) -> dict[str, Any]:
        # A plain id would be one row in all processes, which Perfetto shows under none of them.
        row = {"local": f"{self._number:#x}"}
        event: dict[str, Any] = {"ph": phase, "cat": "mcp", "id2": row, "pid": pid, "tid": pid, "name": name}
        event["ts"] = round((at - self._begin) * 1e6, 3)
        return {**event, "args": args} if args else event

    def _slice(
        self, pid: int, name: str, begin: float, end: float, *inside: dict[str, Any], **args: Any
    ) -> Iterator[Any]:
        first, last = self._event("b", pid, name, begin, **args), self._event("e", pid, name, max(begin, end))
        for each in inside:
            each["ts"] = min(max(each["ts"], first["ts"]), last["ts"])
        yield first
        yield from sorted(inside, key=lambda each: each["ts"])
        yield last

    def events(self) -> Iterator[dict[str, Any]]:
        """Return the events of both processes."""
        request = self._request
        name = f"{request.method} {request.name}".strip()
        args = {"id": request.id, "from": request.origin, "cause": request.cause, "failed": request.failed}
        if request.parent is not None:
            args["made for"] = request.parent.id
        has_handler = request.began is not None or request.received is not None
        ticks = [
            self._event("n", _HANDLERS if has_handler else _CALLERS, tick.kind, tick.at, words=tick.text)
            for tick in request.ticks
        ]
        if request.sent is not None:
            end = request.answered or request.left or request.cancel_sent or request.ended_at
            cancels = [("caller left", request.left), ("cancel sent", request.cancel_sent)]
            inside = [self._event("n", _CALLERS, word, at) for word, at in cancels if at is not None]
            yield from self._slice(_CALLERS, name, request.sent, end, *inside, *([] if has_handler else ticks), **args)
        began = request.began or request.received
        if began is not None:
            over = request.done or request.returned or request.replied or request.ended_at
            inside = list(ticks)
            if request.cancel_read is not None:
                inside.append(self._event("n", _HANDLERS, "cancel read", request.cancel_read))
            if request.finally_began is not None:
                inside += self._slice(_HANDLERS, "finally and cleanup", request.finally_began, over)
            yield from self._slice(_HANDLERS, name, began, over, *inside, **args)
