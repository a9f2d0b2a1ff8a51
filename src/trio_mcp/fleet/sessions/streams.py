"""The SSE streams of a legacy session to which this replica writes.

`SharedStream` answers a POST, and `StandaloneStream` has the lines that belong to no request. Lines are first stored in
the event log that all replicas share, and then sent to the client by an `SSEResponse`.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

import attrs
import msgspec
import trio

from ...classes import define
from ...concurrency.wakeups import Sleeper
from ...runtime.outbox import Outbox
from ...serving.http.responses import unavailable
from ...stores.record_codec import decode_stored
from ...stores.shared import StoredStream
from ...transports.http.application import ResponseHandle, do_nothing
from ...transports.sse import KEEP_ALIVE, STREAM_HEADERS, numbered_events, priming_event, retry_line
from .event_log import StreamLog, new_stream_name, retry_while_unavailable

_MILLISECONDS: Final = 1000


class SSEResponse:
    """The body of an HTTP response that sends the events of an SSE stream. See `ResponseBody`.

    The response ends at ``until`` at the latest, and ``on_closed`` is called when it has ended.
    """

    def __init__(self, high_water: int, until: float = math.inf, on_closed: Callable[[], None] = do_nothing) -> None:
        self.until = until
        self._on_closed = on_closed
        self._high_water = high_water
        self._waiting = bytearray()
        self._reader = Sleeper()
        self._writers = trio.lowlevel.ParkingLot()
        self._was_silent = False
        self._sends_keep_alive = False
        self.is_open = True
        """True while new events are sent to the client."""

    def put(self, events: bytes) -> None:
        """Add ``events`` to the SSE response, unless it has ended."""
        if self.is_open:
            self._waiting += events
            self._reader.wake()

    def close(self) -> None:
        """End the SSE response after the events that are already added. Idempotent."""
        if not self.is_open:
            return
        self.is_open = False
        self._on_closed()
        self._reader.wake()
        self._writers.unpark_all()

    async def wait_for_room(self) -> None:
        """Wait until the SSE response can buffer more events, or has ended."""
        while self.is_open and len(self._waiting) >= self._high_water:
            await self._writers.park()

    def send_keep_alive(self) -> None:
        """Send a keep-alive comment in the SSE response, unless something was sent since the last call."""
        if self._was_silent:
            self._sends_keep_alive = True
            self._reader.wake()
        self._was_silent = True

    async def next_chunk(self) -> bytes | bytearray:
        """Wait for the next events of the response, and return them. See `ResponseBody.next_chunk`.

        If a keep-alive is due, return a comment.
        """
        while not self._waiting:
            if not self.is_open:
                return b""
            if self._sends_keep_alive:
                self._sends_keep_alive = False
                return KEEP_ALIVE
            await self._reader.sleep()
        events, self._waiting = self._waiting, bytearray()
        self._was_silent = self._sends_keep_alive = False
        self._writers.unpark_all()
        return events


def respond(response: ResponseHandle, extra: bytes, sse_response: SSEResponse) -> None:
    """Send the HTTP response ``response`` with the events of ``sse_response`` as its body."""
    response.on_gone = sse_response.close
    response.stream(200, STREAM_HEADERS + extra, sse_response)
    if response.is_gone:
        sse_response.close()


@define(eq=False)
class _AttachedResponse:
    """The HTTP response that will send an SSE stream, once the stream is created in the event log."""

    response: ResponseHandle
    extra: bytes
    retry: float | None


@define(eq=False)
class SharedStream:
    """The SSE stream in the response to a POST. A client can resume it on any replica. See `ResumableStream`.

    It stores the messages in ``outbox`` in the event log, and then sends them to the client.

    ``request_id`` names the requests that these lines answer. ``on_lost`` is called if another replica has ended the
    stream, or the stream couldn't be created. ``on_finished`` is called when later lines no longer belong to the
    stream.

    While the log is unavailable, nothing is sent to the client. After `STORAGE_TIMEOUT` the response ends, and lines
    wait in the outbox; if it is full, the handler waits as well. If the stream wasn't created by then, the client gets
    an error that advises it to try again later.
    """

    _log: StreamLog
    _outbox: Outbox
    _holder: str
    _request_id: bytes
    _on_lost: Callable[[], Awaitable[None]]
    _on_finished: Callable[[], None]
    _max_line: int
    _primes: bool = attrs.field(kw_only=True, alias="primes")
    name: str = attrs.field(factory=new_stream_name, init=False)
    _sse_response: SSEResponse = attrs.field(init=False)
    _attached: _AttachedResponse | None = attrs.field(default=None, init=False)
    _last: int = attrs.field(default=0, init=False)
    _is_finished: bool = attrs.field(default=False, init=False)
    _closing: float | None = attrs.field(default=None, init=False)
    """Seconds after which the client shall reconnect, once the response has all lines in ``_ahead``; `None` if the
    response stays open."""
    _ahead: bytearray = attrs.field(factory=bytearray, init=False)
    """Lines that are sent before the lines in the outbox."""
    _rest: bytearray = attrs.field(factory=bytearray, init=False)
    """The last lines of a finished stream."""
    response_at: str = attrs.field(default="", init=False)
    """The id of the replica whose response sends this stream to the client, as far as is known; empty for this
    replica."""
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    """The cancel scope of `run`."""

    def __attrs_post_init__(self) -> None:
        self._sse_response = SSEResponse(self._outbox.high_water)
        self._outbox.call_writer(None)

    @property
    def is_open(self) -> bool:
        """True while an HTTP response sends this SSE stream to the client."""
        return self._sse_response.is_open and self._attached is not None

    def attach(self, response: ResponseHandle, extra: bytes, *, retry: float | None = None) -> None:
        """Send the SSE stream with ``response``, once the stream is created in the event log. See
        `ResumableStream.attach`."""
        self._attached = _AttachedResponse(response, extra, retry)
        response.on_gone = self._sse_response.close

    def detach(self) -> None:
        """End the response. All later messages of this SSE stream are only stored in the event log."""
        self._sse_response.close()

    def close_response(self, retry: float) -> bool:
        """End the response once all messages that wait now are sent. The client reconnects after ``retry`` seconds. See
        `ResumableStream.close_response`."""
        if not self.is_open or not self._primes or self._is_finished:
            return False
        self._closing = retry
        self._ahead += self._take_pending()
        self._outbox.nudge()
        return True

    def _take_pending(self) -> bytearray:
        """Remove all messages from the outbox, and return them as lines."""
        waiting = bytearray()
        while lines := self._outbox.take_nowait():
            waiting += lines
        return waiting

    def finish(self, keep_until: float) -> None:
        """Finish the SSE stream after its last message. The event log then deletes the events after a while.
        Idempotent."""
        if not self._is_finished:
            self._is_finished = True
            self._rest = self._take_pending()
            self._outbox.nudge()
            self._on_finished()

    def send_keep_alive(self) -> None:
        """Send a keep-alive comment on the SSE stream, unless something was sent since the last call."""
        self._sse_response.send_keep_alive()

    async def run(self) -> None:
        """Store and send the messages of the SSE stream, until it is finished or another replica has ended it."""
        begun = self._attached
        with self.scope:
            try:
                if await self._open():
                    if begun is not None:
                        self._respond(begun)
                    if await self._forward_lines():
                        return
                await self._on_lost()
            finally:
                self._sse_response.close()
                if begun is not None:  # if the response hasn't started yet, send an error
                    begun.response.answer(unavailable("the events cannot be stored now; try again later", begun.extra))

    async def _open(self) -> bool:
        try:
            await retry_while_unavailable(partial(self._log.open, self.name, self._holder, self._request_id), _raise)
        except OSError:
            return False
        return True

    def _respond(self, attached: _AttachedResponse) -> None:
        first = b"" if attached.retry is None else retry_line(round(attached.retry * _MILLISECONDS))
        if self._primes:
            self._sse_response.put(first + priming_event(f"{self.name}-0"))
        respond(attached.response, attached.extra, self._sse_response)

    async def _forward_lines(self) -> bool:
        """Store and send the messages of the SSE stream.

        Returns true after the last message, and false if another replica has ended the stream.
        """
        outbox, pipe = self._outbox, self._sse_response
        while True:
            if not (self._ahead or self._is_finished or self._closing is not None):
                self._ahead += await outbox.take()
            finish = self._is_finished and self._closing is None
            lines, self._ahead = bytes(self._ahead + self._rest if finish else self._ahead), bytearray()
            if (lines or finish) and not await self._append(lines.splitlines(keepends=True), finish=finish):
                outbox.close()
                return False
            if finish:
                return True
            if self._closing is not None and not self._ahead:
                retry, self._closing = retry_line(round(self._closing * _MILLISECONDS)), None
                pipe.put(retry + priming_event(f"{self.name}-{self._last}"))
                pipe.close()
            await pipe.wait_for_room()

    async def _append(self, lines: Sequence[bytes], *, finish: bool) -> bool:
        """Store the JSON-RPC messages ``lines`` in the event log, then send them to the client. Returns the result of
        `EventLog.append`."""
        pipe, first = self._sse_response, self._last + 1
        # While the client is disconnected, store its whole response, even beyond the size limit of the event log.
        more = 0 if pipe.is_open else min(sum(map(len, lines)), self._max_line)
        append = partial(self._log.append, self.name, self._holder, first, lines, finish=finish, more=more)
        if not await retry_while_unavailable(append, lambda _: pipe.close()):
            return False
        self._last += len(lines)
        pipe.put(numbered_events(self.name, first, lines))
        return True


def _raise(error: OSError) -> None:
    raise error


class _StreamPosition(msgspec.Struct, frozen=True):
    """A record in the event log about a session's standalone GET stream.

    It tells up to which event the stream was sent, and which changes the stream contains.
    """

    sent: int = 0
    """The number of the last event that a response has sent."""
    place: str = ""
    """The position in the change log up to which the events contain all changes; empty if unknown."""


_decode_position: Final = msgspec.json.Decoder(_StreamPosition)


class StandaloneStream:
    """The standalone GET stream of an MCP session. It sends messages that don't relate to a client's request.

    Only this replica may write to it, under the name ``holder``.
    """

    def __init__(self, log: StreamLog, name: str, holder: str, stream: StoredStream) -> None:
        self.holder = holder
        self.pipe: SSEResponse | None = None
        """The response that sends the stream; `None` without a response."""
        self._log = log
        self._name = name
        self.last = stream.last
        """The number of the last event in the event log."""
        note = (
            decode_stored("the note of a stream", _decode_position.decode, stream.note)
            if stream.note
            else _StreamPosition()
        )
        self._sent = note.sent
        self.cursor = note.place
        """See `_StreamPosition`."""

    @property
    def is_open(self) -> bool:
        """True while a response sends the standalone GET stream to the client."""
        return self.pipe is not None and self.pipe.is_open

    async def unsent(self, after: int | None) -> tuple[bytes, bool] | None:
        """Return the events after the number ``after``. If ``after`` is `None`, return the events that no response has
        sent.

        Also returns whether earlier events are missing.

        Returns `None` if the client can't continue after that number.
        """
        number = self._sent if after is None else after
        if number >= self.last:
            return (b"", False) if number == self.last or after is None else None
        read = await self._log.read_after(self._name, number)
        if read is None:
            return (b"", True) if after is None else None
        is_gap = read.stream.dropped > number
        if is_gap and after is not None:
            return None
        return numbered_events(self._name, read.first, read.lines), is_gap

    @property
    def sent_cursor(self) -> str:
        """The id of the last event on the standalone GET stream that was sent to the client."""
        return f"{self._name}-{self._sent}"

    async def write(self, lines: Sequence[bytes], cursor: str) -> bool:
        """Store the JSON-RPC messages ``lines`` in the standalone GET stream, then send them to the client.

        ``cursor`` is a position in the change log, or empty if unknown: the lines contain all changes up to this
        position.

        Returns false, with nothing changed, if another replica holds the stream.
        """
        first, last = self.last + 1, self.last + len(lines)
        sent, cursor = last if self.is_open else self._sent, cursor or self.cursor
        note = msgspec.json.encode(_StreamPosition(sent, cursor))
        append = partial(self._log.append, self._name, self.holder, first, lines, note)
        if not await retry_while_unavailable(append, lambda _: self.close()):
            return False
        self.last, self._sent, self.cursor = last, sent, cursor
        if self.pipe is not None:
            self.pipe.put(numbered_events(self._name, first, lines))
        return True

    def close(self) -> None:
        """End the response that sends the standalone GET stream. Idempotent."""
        if self.pipe is not None:
            self.pipe.close()

    def touch(self) -> Awaitable[None]:
        """Extend the lifetime of the events that are stored for the standalone GET stream."""
        return self._log.touch(self._name)
