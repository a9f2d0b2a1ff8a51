"""RecordedTransport: wraps the transport of a connection, and records each message.

`RecordedRequests` records what happens to the requests of that connection.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio

from ..classes import define
from ..concurrency.contexts import ResumptionObserver
from ..runtime.outbox import Outbox
from ..runtime.transport import Frame, FramedTransport, Received, SendRecorder, UnreadableFrame
from .entries import Reference

if TYPE_CHECKING:
    from ..jsonrpc.messages import RequestId
    from ..protocol.meta import TraceContext
    from ..runtime.limits import Load
    from ..runtime.transport import CallSpan, HandlerSpan, Tracer, Tracing
    from ..state.requests import InboundRequest, OutboundRequest
    from .entries import EventName, ExchangeReference, Recording

_working_for: Final[ContextVar[Reference | None]] = ContextVar("trio_mcp.recording.working_for", default=None)
"""The request whose handler runs in the current task, if its connection is recorded."""


class RecordedTransport(FramedTransport):
    """A transport that wraps ``transport``, and records each message in ``recording``.

    Messages of this side are recorded when they are sent, and those of the peer when they are received.
    """

    def __init__(self, transport: FramedTransport, recording: Recording) -> None:
        self._transport = transport
        self._recording = recording
        self._rest = 0
        """The rest of a message that `send_nowait` has begun to send. `send` sends these bytes first."""
        self.network = transport.network
        self.child = transport.child
        self.names_calls = transport.names_calls

    async def receive(self) -> Received:
        """Receive a message from the wrapped transport, and record it. See `FramedTransport.receive`."""
        try:
            received = await self._transport.receive()
        except UnreadableFrame as error:
            self._recording.event("unreadable", reason=error.reason)
            raise
        if isinstance(received, Frame):
            self._recording.frame("in", received.data)
        elif isinstance(received, bytes | bytearray):
            self._recording.frame("in", received)
        return received

    async def send(self, messages: bytes | bytearray) -> None:
        """Record messages, and send them over the wrapped transport. See `FramedTransport.send`."""
        begin, self._rest = self._rest, 0
        for line in bytes(messages[begin:]).split(b"\n"):
            if line:
                self._recording.frame("out", line)
        await self._transport.send(messages)

    def send_nowait(self, message: bytes) -> int:
        """Record a message, and send it over the wrapped transport without waiting. See
        `FramedTransport.send_nowait`."""
        at = trio.current_time()  # take the time before sending, because the peer may receive the message at once
        count = self._transport.send_nowait(message)
        if count:
            self._recording.frame("out", message[:-1], at)
            self._rest = len(message) - count
        return count

    def make_outbox(self, high_water: int, recorded: SendRecorder | None = None) -> Outbox:
        """Return an outbox (a queue of outgoing messages) that records each message, and sends it over the wrapped
        transport. See `FramedTransport.make_outbox`."""
        return self._transport.make_outbox(high_water, recorded or SendRecorder(self.send_nowait, self._record))

    def _record(self, message: bytes) -> None:
        self._recording.frame("out", message)

    def observed_by(self, tracing: Tracing | None) -> Tracing | None:
        """Return a `Tracing` that records the events of requests, and also passes them on to ``tracing``. See
        `FramedTransport.observed_by`."""
        place = self._recording, 0
        return RecordedRequests(lambda _: place, self._transport.observed_by(tracing))

    async def aclose(self) -> None:
        """Close the wrapped transport, and end the recording."""
        try:
            await self._transport.aclose()
        finally:
            await self._recording.aclose()


@define(eq=False)
class RecordedRequests:
    """Records the events of the requests on one connection, and passes them on to ``tracing``.

    ``find`` returns the recording of a request. See `Tracing` and `Tracer`.
    """

    _find: Callable[[InboundRequest | OutboundRequest], ExchangeReference | None]
    _tracing: Tracing | None
    _tracer: Tracer | None = None

    def _watch_load(self, load: Load) -> None:
        """Pass the server's load on to the `Tracing` that this object wraps. See `Tracing._watch_load`."""
        if self._tracing is not None:
            self._tracing._watch_load(load)

    def _tracer_of(self, network: str | None) -> Tracer:
        """Return the tracer for the connection, which is this object. See `Tracing._tracer_of`."""
        self._tracer = None if self._tracing is None else self._tracing._tracer_of(network)
        return self

    def close(self, role: str, revision: str | None) -> None:
        """Notify the wrapped `Tracer` that the connection has ended. See `Tracer.close`."""
        if self._tracer is not None:
            self._tracer.close(role, revision)

    def calling(
        self, request: OutboundRequest, params: dict[str, Any] | None, present: TraceContext | None
    ) -> CallSpan | None:
        """Return a span that records the events of a request that this side sends. See `Tracer.calling`."""
        span = None if self._tracer is None else self._tracer.calling(request, params, present)
        place = self._find(request)
        if place is None:
            return span
        place[0].event("call.began", request.id, work_for=_working_for.get(), post=place[1])
        return _RecordedCall(place, request.id, params if span is None else span.params, span)

    def handling(self, request: InboundRequest, queued: float = 0.0) -> HandlerSpan | None:
        """Return a span that records the handling of a request that the peer has sent. See `Tracer.handling`."""
        span = None if self._tracer is None else self._tracer.handling(request, queued)
        place = self._find(request)
        if place is None:
            return span
        recording, post = place
        recording.event("handler.began", request.id, post=post)
        _working_for.set(Reference(recording.header.id, request.id, post))
        return _RecordedHandler(place, request.id, span)


@define(eq=False)
class _RecordedCall:
    """Records the events of a request that this side has sent. See `CallSpan`."""

    _place: ExchangeReference
    _id: RequestId
    params: dict[str, Any] | None
    _span: CallSpan | None

    def end(self, result: Any, error: BaseException | None) -> None:
        if isinstance(error, trio.Cancelled):
            recording, post = self._place
            reason = "deadline" if error.source == "deadline" else None
            recording.event("call.left", self._id, reason=reason, post=post)
        if self._span is not None:
            self._span.end(result, error)


@define(eq=False)
class _RecordedHandler:
    """Records the events of a request that the peer has sent. See `HandlerSpan`."""

    _place: ExchangeReference
    _id: RequestId
    _span: HandlerSpan | None

    def _record(self, name: EventName, **more: Any) -> None:
        recording, post = self._place
        recording.event(name, self._id, post=post, **more)

    def follow(self, answer: Awaitable[Any], scope: trio.CancelScope) -> Awaitable[Any]:
        inner = answer if self._span is None else self._span.follow(answer, scope)
        delivered, returned = (partial(self._record, name) for name in ("cancel.delivered", "handler.returned"))
        return ResumptionObserver(inner, scope, delivered, returned)

    def end(self, result: Any, request: InboundRequest, cause: str | None, at: float | None = None) -> None:
        if cause is not None:
            self._record("cancel.received", at=at, cause=cause)
        self._record("cleanup.done")
        if self._span is not None:
            self._span.end(result, request, cause, at)
