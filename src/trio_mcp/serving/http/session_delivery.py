"""Makes up for the separate HTTP connections of a legacy session: a client can resume a `SessionStream`, and
`EarlyCancels` stores the cancellations that arrive before their requests."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from ...concurrency.bounded import BoundedDict
from ...jsonrpc.messages import Notification, RequestId
from ...protocol.fields import as_object
from ...runtime.outbox import Outbox
from ...transports.http.application import ResponseHandle
from ...transports.sse import (
    KEEP_ALIVE,
    STREAM_HEADERS,
    Replay,
    ReplayLog,
    identified_events,
    numbered_events,
    priming_event,
    retry_line,
)

_MILLISECONDS: Final = 1000


class SessionStream:
    """An event stream of a session. It sends the messages in ``outbox`` as events with ids, in one HTTP response at a
    time.

    The events are stored in ``log``, for a client that reconnects.

    Another response may take over. While there is no response, lines are only kept, so that handlers don't wait for a
    disconnected client. ``primes``: each response begins with an event that gives the client an id. ``on_finished`` is
    called with the stream when its last line is in the log.
    """

    def __init__(
        self, log: ReplayLog, outbox: Outbox, on_finished: Callable[[SessionStream], None], *, primes: bool
    ) -> None:
        self._log = log
        self.name = log.open()
        """Name of the stream in the log."""
        self.outbox = outbox
        """Lines of the stream that haven't been converted to events yet."""
        self._on_finished = on_finished
        self._primes = primes
        self._response: _ResponseSource | None = None
        self._is_finished = False
        self._sent = log.cursor(self.name)
        """The id of the last event that a response has sent."""
        self._keep_until: float | None = None
        """Time until which the log should keep the stream. `None` before `finish` is called, and after this time was
        passed to the log."""
        outbox.call_writer(self.detach)

    @property
    def is_open(self) -> bool:
        """Whether a response is currently sending the stream."""
        return self._response is not None

    def attach(
        self,
        response: ResponseHandle,
        extra: bytes,
        replay: Replay | None = None,
        retry: float | None = None,
        until: float = math.inf,
    ) -> bool:
        """Send the event stream as the body of ``response``. If another response sends the stream, that response ends.

        First send the events of ``replay`` or, without it, the stored events that no response has sent. Return whether
        any unsent events were lost.

        Args:
          retry: seconds after which the client should reconnect if this response ends early.
          until: time at which this response ends, but not the stream.
        """
        self._close_source()
        first, is_gap = bytearray(), False
        if retry is not None:
            first += retry_line(round(retry * _MILLISECONDS))
        if replay is None:
            if self._primes:
                first += priming_event(self._sent)
            replay, is_gap = self._log.retained_after(self._sent)
        first += identified_events(replay.events)
        self._sent = self._log.cursor(self.name)
        self.outbox.call_writer(None)
        source = self._response = _ResponseSource(self, first, until)
        response.on_gone = lambda: self._detach_source(source)
        response.stream(200, STREAM_HEADERS + extra, source)
        return is_gap

    def expire(self, now: float) -> None:
        """End the current response if its time limit has passed at the time ``now``. The client may reconnect."""
        source = self._response
        if source is not None and now >= source.until:
            source.is_over = True
            self._detach_source(source)
            self.outbox.nudge()

    def close_response(self, retry: float) -> bool:
        """End the response that sends the event stream. The stream itself continues.

        The client reconnects to the stream after ``retry`` seconds.

        Return false, and do nothing, if no response is open, or the client has no event id with which it could resume.
        """
        source = self._response
        if source is None or not self._primes or self._is_finished:
            return False
        text = self._append_to_log(self.outbox.take_nowait())
        self._sent = self._log.cursor(self.name)
        text += retry_line(round(retry * _MILLISECONDS)) + priming_event(self._sent)
        source.add(text)
        self._close_source()
        self.outbox.call_writer(self.detach)
        return True

    def finish(self, keep_until: float) -> None:
        """End the stream after its last message. Its events are kept until the time ``keep_until``. Idempotent."""
        if self._is_finished:
            return
        self._is_finished = True
        self._keep_until = keep_until
        if self._response is None:
            self.detach()
        self._finish_if_empty()
        self.outbox.nudge()

    def _finish_if_empty(self) -> None:
        if self._keep_until is not None and not self.outbox.size:
            self._log.finish(self.name, self._keep_until)
            self._keep_until = None
            self._on_finished(self)

    def _close_source(self) -> None:
        source, self._response = self._response, None
        if source is not None:
            source.is_over = True
            self.outbox.nudge()

    def _detach_source(self, source: _ResponseSource) -> None:
        if self._response is source:
            self._response = None
            if not (self._is_finished and self._keep_until is None):
                self.outbox.call_writer(self.detach)
                self.detach()

    def remove_source(self, source: _ResponseSource) -> None:
        """From now on, send no events in the response body ``source``."""
        if self._response is source:
            self._response = None

    def detach(self) -> None:
        """Store the stream's queued messages as events that the client can fetch later, because no HTTP response is
        sending them now."""
        while lines := self.outbox.take_nowait():
            self._append_to_log(lines)
        self._finish_if_empty()

    def _append_to_log(self, lines: bytes | bytearray) -> bytes:
        each = bytes(lines).splitlines(keepends=True)
        first = self._log.extend(self.name, each, awaited=self._response is None)
        return numbered_events(self.name, first, each)

    async def next_events(self, source: _ResponseSource) -> bytes | bytearray:
        """Wait for the stream's next events, and return them for the response body ``source``.

        See `ResponseBody.next_chunk`.
        """
        lines = await self.outbox.take()
        if lines:
            text = self._append_to_log(lines)
            cursor = self._log.cursor(self.name)
            # First read the stream's position in the event log: the log may delete the stream once it is finished.
            self._finish_if_empty()
            if not source.is_over:
                self._sent = cursor
                return text
            if self._response is not None:  # the client has reconnected, so the new response sends the messages
                self._sent = cursor
                self._response.add(text)
                self.outbox.nudge()
            return b""
        return b"" if source.is_over or self._is_finished else KEEP_ALIVE

    @property
    def is_finished(self) -> bool:
        """Whether the stream has ended, and all its messages were taken from the outbox."""
        return self._is_finished and not self.outbox.size

    def send_keep_alive(self) -> None:
        """Send a keep-alive comment on the stream, if nothing was sent since the last call."""
        if self._response is not None and self._response.was_silent():
            self.outbox.nudge()


class _ResponseSource:
    """The body of one HTTP response. It consists of the bytes ``first``, and then of the events of ``stream``.

    For ``until``, see `SessionStream.attach`.
    """

    __slots__ = ("_first", "_stream", "_was_silent", "is_over", "until")

    def __init__(self, stream: SessionStream, first: bytearray, until: float) -> None:
        self._stream = stream
        self.until = until
        self._first = first
        self._was_silent = False
        self.is_over = False

    def add(self, text: bytes | bytearray) -> None:
        self._first += text

    def was_silent(self) -> bool:
        silent, self._was_silent = self._was_silent, True
        return silent

    async def next_chunk(self) -> bytes | bytearray:
        self._was_silent = False
        if not self._first:
            if self.is_over or self._stream.is_finished:
                self._stream.remove_source(self)
                return b""
            text = await self._stream.next_events(self)
            if not self._first:
                return text
            self._first = bytearray(text) + self._first if text != KEEP_ALIVE else self._first
        first, self._first = self._first, bytearray()
        return first


WAIT: Final = 2.0
"""Seconds for which a cancellation waits for its request."""
MAX_WAITING: Final = 64
"""Maximum number of waiting cancellations. If there are more, the oldest is dropped."""
WINDOW: Final = 256
"""Number of recent integer ids, and of recent string ids, that are known as used."""
_MASK: Final = (1 << WINDOW) - 1
_LONGEST_ID: Final = 200
"""Maximum number of characters of a string id, or bits of an integer id, whose cancellation can wait."""
_LONGEST_REASON: Final = 1000
"""Number of characters that are stored of a cancellation's reason."""


class EarlyCancels:
    """Stores the cancellations of one session that arrive before the requests that they cancel.

    A client sends a request and its cancellation in separate POSTs, so the server can read the cancellation first. The
    cancellation then waits for two seconds. If the request arrives by then, it's cancelled at once (ruling 20).

    A cancellation waits only if its id is unused. Otherwise a late cancellation of an answered request could stop a
    later request with the same id. The specification forbids clients to use an id twice, but some clients do.
    An integer counts as used if a request had it, or if it's 256 or more below the highest id. A string counts as used
    if one of the last 256 requests with string ids had it.
    """

    __slots__ = ("_highest", "_strings", "_used", "_waiting")

    def __init__(self) -> None:
        self._highest = 0
        """The highest integer id so far, at least 0."""
        self._used = 0
        """Bit field of the used integers: bit ``n`` is set if the id ``_highest - n`` was used."""
        self._strings: BoundedDict[int, None] | None = None
        """Hashes of the last string ids. `None` before the first one."""
        self._waiting: BoundedDict[RequestId, tuple[float, Notification]] | None = None
        """Cancellations by request id, each with the time until which it waits. `None` before the first one."""

    def cancel_arrived(self, cancel: Notification, now: float) -> None:
        """Handle a ``notifications/cancelled``: store it if its request hasn't arrived yet, and ignore it otherwise."""
        params = as_object(cancel.params)
        request_id, reason = params.get("requestId"), params.get("reason")
        if type(request_id) is int:
            behind = self._highest - request_id
            is_used = behind >= WINDOW or (behind >= 0 and self._used >> behind & 1 == 1)
            if is_used or request_id.bit_length() > _LONGEST_ID:
                return
        elif type(request_id) is str:
            is_used = self._strings is not None and hash(request_id) in self._strings
            if is_used or len(request_id) > _LONGEST_ID:
                return
        else:
            return
        if self._waiting is None:
            self._waiting = BoundedDict(MAX_WAITING)
        stored = {"requestId": request_id, "reason": reason[:_LONGEST_REASON] if type(reason) is str else None}
        self._waiting[request_id] = now + WAIT, Notification(cancel.method, stored)

    def request_arrived(self, request_id: RequestId, now: float) -> Notification | None:
        """Record that a request with ``request_id`` has arrived.

        Return the cancellation of this request if it arrived earlier, otherwise `None`. Call this for each request,
        even if the request is refused.
        """
        if type(request_id) is int:
            ahead = request_id - self._highest
            if ahead > 0:
                self._used = (self._used << ahead | 1) & _MASK if ahead < WINDOW else 1
                self._highest = request_id
            elif ahead > -WINDOW:
                self._used |= 1 << -ahead
        else:
            if self._strings is None:
                self._strings = BoundedDict(WINDOW)
            self._strings[hash(request_id)] = None
        if not self._waiting:
            return None
        until, cancel = self._waiting.pop(request_id, (now, None))
        return cancel if now < until else None
