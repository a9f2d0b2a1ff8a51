"""Audit reads along what both ends of a connection say, and knows what they may not say.

- an id names one request at a time, and has one reply at most
- nobody answers a request whose cancel has arrived, nor tells anything of it; nor after the reply
- a request is cancelled at most once, and not when its answer has arrived, unless that answer asks
"""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any, Final

import attrs
import trio

_OTHER: Final = {"client": "server", "server": "client"}


@attrs.define
class _Request:
    method: str
    has_arrived: bool = False
    is_cancelled: bool = False
    cancel_arrived: float = math.inf
    """The time of the arrival of its cancel."""
    replied: bool = False
    answer_arrived: float = math.inf
    """The time of the arrival of its answer."""
    asks: bool = False
    """True where the answer is a question."""


@attrs.define
class _Lines:
    """Cuts bytes into lines, and notes when the first byte of each came."""

    rest: bytearray = attrs.field(factory=bytearray)
    begun: float = 0.0

    def take(self, data: bytes) -> list[tuple[float, dict[str, Any]]]:
        found, now = list[tuple[float, dict[str, Any]]](), trio.current_time()
        if not self.rest:
            self.begun = now
        self.rest += data
        *lines, rest = self.rest.split(b"\n")
        for line in lines:
            if line:
                found.append((self.begun, json.loads(line)))
            self.begun = now
        self.rest = rest
        return found


class Audit:
    """The requests of one connection, called ``name``. What may not be said is added to ``faults``."""

    def __init__(self, name: str, faults: list[str]) -> None:
        self._name = name
        self._faults = faults
        self.is_over = False
        """True once the connection is cut, and nothing is looked at any more."""
        self.said = Counter[str]()
        self._requests: dict[tuple[str, Any], _Request] = {}
        self._written = {"client": _Lines(), "server": _Lines()}
        self._delivered = {"client": _Lines(), "server": _Lines()}

    def written(self, side: str, data: bytes) -> None:
        """Read what ``side`` has written."""
        if self.is_over:
            return
        for begun, message in self._written[side].take(data):
            try:
                self._write(side, message, begun)
            except KeyError as unknown:
                self._fault(f"the {side} speaks of {unknown}, which nobody knows: {message}")

    def delivered(self, side: str, data: bytes) -> None:
        """Read what ``side`` has written, and has arrived."""
        if self.is_over:
            return
        for _, message in self._delivered[side].take(data):
            self._arrive(side, message)

    def _fault(self, what: str) -> None:
        self._faults.append(f"{self._name}: {what}")

    def _write(self, side: str, message: dict[str, Any], begun: float) -> None:
        method = message.get("method")
        if method is None:
            self._reply(side, message, begun)
        elif "id" in message:
            self.said[method] += 1
            before = self._requests.get((side, message["id"]))
            if before is not None and not (before.answer_arrived < math.inf or before.is_cancelled):
                self._fault(f"the {side} uses the id of a request in flight: {message}")
            self._requests[side, message["id"]] = _Request(method)
        elif method == "notifications/cancelled":
            self._cancel(side, message["params"]["requestId"], message)
        elif method == "notifications/progress":
            request = self._requests[_OTHER[side], message["params"]["progressToken"]]
            if not request.has_arrived or request.replied or self._is_left(request, begun):
                self._fault(f"the {side} tells of a request that is over: {message}, {request}")

    def _is_left(self, request: _Request, begun: float) -> bool:
        # What was put before the cancel came, at the same moment, goes out all the same: it was finished.
        return request.cancel_arrived < begun

    def _reply(self, side: str, message: dict[str, Any], begun: float) -> None:
        request = self._requests[_OTHER[side], message["id"]]
        if not request.has_arrived or request.replied:
            self._fault(f"the {side} answers twice, or too early: {message}, {request}")
        if self._is_left(request, begun):
            self._fault(f"the {side} answers what was cancelled: {message}, {request}")
        request.replied = True
        request.asks = message.get("result", {}).get("resultType") == "input_required"

    def _cancel(self, side: str, request_id: Any, message: dict[str, Any]) -> None:
        self.said["cancels"] += 1
        request = self._requests.get((side, request_id))
        if request is None:
            stream = self._requests[_OTHER[side], request_id]
            if stream.method != "subscriptions/listen":
                self._fault(f"the {side} cancels a request of the other: {message}, {stream}")
            return
        # A cancel that was put before the answer came, at the same moment, goes out all the same.
        if request.is_cancelled or (request.answer_arrived < trio.current_time() and not request.asks):
            self._fault(f"the {side} cancels twice, or what was answered: {message}, {request}")
        request.is_cancelled = True

    def _arrive(self, side: str, message: dict[str, Any]) -> None:
        method = message.get("method")
        if method is None:
            self._requests[_OTHER[side], message["id"]].answer_arrived = trio.current_time()
        elif "id" in message:
            self._requests[side, message["id"]].has_arrived = True
        elif method == "notifications/cancelled":
            request = self._requests.get((side, message["params"]["requestId"]))
            if request is not None:
                request.cancel_arrived = trio.current_time()
