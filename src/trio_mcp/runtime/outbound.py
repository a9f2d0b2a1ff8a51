"""`Outbound` sends requests to the peer, and manages each request until it ends.

`present_trace` returns the trace context of the request that is being handled now.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextvars import Context, ContextVar
from math import inf
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

import trio

from ..classes import frozen
from ..concurrency.bounded import Backlog
from ..concurrency.contexts import contextmanager
from ..concurrency.threads import current_run
from ..concurrency.time_limits import call_limits, latest_deadline
from ..jsonrpc.errors import MCPError, NotSerializable, ProtocolViolation, UnreadableAnswer, clean
from ..protocol.errors import NoBackChannel
from ..protocol.meta import PROGRESS_TOKEN, TraceContext
from ..protocol.types.input_required import asks_for_input
from ..protocol.types.tools import created_id
from .calls import (
    Call,
    CallOutcome,
    CallOwner,
    DetachedCall,
    OnNotification,
    OnProgress,
    Progress,
    RoundTrips,
    send_ignoring_reply,
)
from .cancellation import CancelCause, reason_of, with_remaining
from .outbox import REQUEST_MARKS, Outbox
from .requests.scope import RequestScope, current_request
from .transport import ConnectionLost, Tracer

if TYPE_CHECKING:
    from ..jsonrpc.messages import RequestId
    from ..protocol.revisions import Revision
    from ..state.connection import ConnectionState
    from ..state.requests import OutboundRequest
    from .limits import Limits
    from .notifications import NotificationQueue


_ANSWER_ONLY: Final = (
    "the client accepts nothing but the answer to its request: it has gone, or its Accept header has no "
    "text/event-stream"
)


@frozen
class CallSettings:
    """Default settings for the outgoing requests of a connection.

    ``tell_deadlines``: send the remaining time with each request. ``send_cancels``: send a cancellation when a request
    is abandoned.
    """

    tell_deadlines: bool = True
    send_cancels: bool = True


class Outbound:
    """Sends requests to the peer and waits for their replies."""

    def __init__(
        self,
        state: ConnectionState,
        outbox: Outbox,
        request_notifications: NotificationQueue,
        limits: Limits,
        tracer: Tracer | None,
        calls: CallSettings = CallSettings(),  # noqa: B008 frozen
    ) -> None:
        self._state = state
        self._outbox = outbox
        self._request_notifications = request_notifications
        self._limits = limits
        self._tracer = tracer
        self._tell_deadlines = calls.tell_deadlines
        self._send_cancels = calls.send_cancels
        self._run, self._thread = current_run(), get_ident()
        self.answer_timeout = inf
        """Seconds after which an unanswered request fails, for transports that can lose an answer without an error."""
        self.on_request: Callable[[RequestId], None] | None = None
        """Callback that gets the id of each request that `request` sends. It's called in the caller's task before
        sending. The callback must be quick, and must not raise."""
        self.closed_error: ConnectionLost | None = None
        """Reason why no more replies can arrive. `None` while replies can arrive."""
        self._calls: dict[RequestId, Call | DetachedCall] = {}
        """Calls whose requests are in flight, by request id."""
        self.only: Call | None = None
        """The only call that is in progress, as last found by `only_caller`. `None` after another call has begun or a
        call was abandoned."""
        self._left = 0
        """Id of the last request that was sent before a cancellation that the peer may not have read yet. 0 if the peer
        has read all cancellations. If cancellations aren't sent, the peer may continue abandoned requests indefinitely,
        so this number is larger than every id."""
        self._strays = 0
        self._last_stray = b""
        self._waiting: set[trio.CancelScope] = set()

    def check_run(self) -> None:
        """Raise `RuntimeError` if the current task belongs to another `trio.run` than the connection.

        The connection couldn't wake such a task.
        """
        self._run.check("a connection")

    async def request(
        self,
        method: str,
        params: dict[str, Any] | None,
        revision: Revision,
        on_progress: OnProgress | None = None,
        /,
        trips: RoundTrips | None = None,
        on_notification: OnNotification | None = None,
        outbox: Outbox | None = None,
        cancel_task: Callable[[str], None] | None = None,
        *,
        tells_deadline: bool = True,
    ) -> Any:
        """Send a request to the peer, wait for its result, and return the result as plain data. See
        `Connection.request`.

        Args:
            trips: The call that the request belongs to.
            on_notification: Called with each notification on the stream that the request opens. The stream ends with
                the result, or with `None` if the peer cancels it.
            outbox: Used for the request and its cancellation, instead of the connection's outbox. If a handler sends
                the request, it's the outbox of the handler's exchange.
            cancel_task: Called with the id of the task that the answer creates, if the caller leaves after the answer
                has arrived and before it's returned.
            tells_deadline: Set to false if the peer's work outlives the request: the remaining time isn't sent.
        """
        outbox = outbox or self._outbox
        if get_ident() != self._thread:
            self.check_run()
        await trio.lowlevel.checkpoint_if_cancelled()
        if self.closed_error is not None:
            raise _again(self.closed_error)
        if outbox.over and outbox is not self._outbox:
            raise NoBackChannel(_ANSWER_ONLY)
        if outbox.is_full(REQUEST_MARKS):
            with self.while_connected():
                await outbox.room(REQUEST_MARKS)
        deadline = latest_deadline()
        if deadline < inf and self._tell_deadlines and tells_deadline:
            params = with_remaining(method, params, deadline)
        request, strays = self._state.open_request(method, revision), self._strays
        if self.on_request is not None:
            self.on_request(request.id)
        span = None if self._tracer is None else self._tracer.calling(request, params, present_trace())
        backlog = None if on_progress is None else self._backlog()
        call = self._calls[request.id] = Call(request, on_progress, backlog, on_notification, deadline)
        self.only = None
        try:
            if span is not None:
                params = span.params
            elif (trace := present_trace()) is not None:
                params = _carrying(trace, params)
            # In MCP 2025-11-25, a request that creates a background task is answered before the task's work begins.
            # A request that creates a background task needs no progress token: the work begins after the reply.
            # The caller gets the background task's progress from notifications about the task.
            if call.wants_progress and (cancel_task is None or revision.result_type):
                params = dict(params or {})
                params["_meta"] = {**params.get("_meta", {}), PROGRESS_TOKEN: request.id}
            outbox.put_request(request.id, method, params, call)
            told = self._request_notifications
            seen, running = told.received, told.running
            end = await (call.outcome() if self.answer_timeout == inf else self._outcome_in_time(call, strays))
            if told.handled < end.notifications_before:
                await told.wait_until_finished(seen, end.notifications_before, running)
        except BaseException as error:
            if self._strays != strays:
                for limit in call_limits():
                    limit.hint = self.strays_since(strays)
            if self._abandon(call, outbox, error) and trips is not None:
                trips.asked = None
            # The caller gave up and won't get the reply, so cancel the background task that the request has created.
            if cancel_task is not None and call.end is not None:
                task_id = created_id(call.end.result, is_flat=revision.result_type)
                if task_id is not None:
                    cancel_task(task_id)
            if span is not None:
                span.end(None, error)
            raise
        finally:
            del self._calls[request.id]
            call.context = None  # free the call's context variables, which may refer to large objects
            if trips is not None and call.end is not None:
                asks = request.method.may_ask and asks_for_input(call.end.result)
                trips.asked = request.id if asks else None
                trips.received = call.ended_at
        if span is not None:
            span.end(end.result, end.error)
        if end.error is not None:
            raise self._raised(end.error, strays)
        return end.result

    def _raised(self, error: MCPError, strays: int) -> MCPError:
        fresh = _again(error)
        if self._strays != strays and isinstance(fresh, ConnectionLost):
            fresh.reason += self.strays_since(strays)
            fresh.args = (fresh.reason,)
        return fresh

    async def _outcome_in_time(self, call: Call, strays: int) -> CallOutcome:
        """Wait for the outcome of a call, like `Call.outcome`. Raise `trio.TooSlowError` if the wait takes more than
        ``answer_timeout`` seconds."""
        with trio.move_on_after(self.answer_timeout):
            return await call.outcome()
        method, waited = call.request.method.name, f"{self.answer_timeout:g} s (answer_timeout)"
        raise trio.TooSlowError(f"{method}: no answer within {waited}{self.strays_since(strays)}")

    def record_stray(self, line: bytes | bytearray) -> None:
        """Remember the beginning of a line from the server that isn't a reply to any call.

        If a call times out later, its error quotes the line, because the line may be what the call was waiting for.
        """
        self._strays += 1
        self._last_stray = bytes(line[:_QUOTED])

    def strays_since(self, strays: int) -> str:
        """Return text for an error message: a quote of the server's last line that wasn't a reply to any call.

        Return an empty string if no such line has arrived since the number of such lines was ``strays``.
        """
        if self._strays == strays:
            return ""
        return f"; the last line of the server that belongs to no call: {quoted(self._last_stray)}"

    def send_detached(
        self,
        method: str,
        params: dict[str, Any] | None,
        revision: Revision,
        owner: CallOwner,
        name: str,
        outbox: Outbox,
    ) -> DetachedCall:
        """Send a request through ``outbox`` without waiting for its reply.

        ``owner`` gets the outcome later: see `CallOwner`. Synchronous. Raises the exceptions of `request`, except for
        errors of the peer.
        """
        if self.closed_error is not None:
            raise _again(self.closed_error)
        request = self._state.open_request(method, revision)
        span = None if self._tracer is None else self._tracer.calling(request, params, present_trace())
        if span is not None:
            params = span.params
        elif (trace := present_trace()) is not None:
            params = _carrying(trace, params)
        posted = DetachedCall(
            request, self._calls, outbox, owner, name, self.abandon_detached, None if span is None else span.end
        )
        self._calls[request.id] = posted
        outbox.put_request(request.id, method, params, posted)
        return posted

    def abandon_detached(self, call: DetachedCall, reason: str | BaseException) -> None:
        """Withdraw a request that `send_detached` sent, if it hasn't been written yet.

        If the request was already written, send a cancellation instead. The request's owner isn't notified. Does
        nothing if the request has ended.
        """
        error = None if isinstance(reason, str) else reason
        if call.finish(None, error) and self._state.abandon(call.request) and not call.outbox.withdraw(call):
            if error is not None:
                self._send_cancel(call.request.id, error, call.outbox)
            elif self._send_cancels:
                call.outbox.put_cancel(call.request.id, str(reason))

    def _backlog(self) -> Backlog[Progress]:
        return Backlog(self._limits.max_pending_notifications, self._limits.max_inbound_bytes)

    async def request_ahead(self, method: str, params: dict[str, Any], revision: Revision) -> Any:
        """Send a request before all queued messages, wait for its reply, and return the result.

        The request is queued even if the outbox is full. If the calling task is cancelled, the request is cancelled
        too. Raises the exceptions of `request`.
        """
        if self.closed_error is not None:
            raise _again(self.closed_error)
        request = self._state.open_request(method, revision)
        span = None if self._tracer is None else self._tracer.calling(request, params, present_trace())
        call = self._calls[request.id] = Call(request, None, None)
        self.only = None
        try:
            self._outbox.put_request(request.id, method, params if span is None else span.params, None)
            end = await call.outcome()
        except BaseException as error:
            self._abandon(call, self._outbox, error)
            if span is not None:
                span.end(None, error)
            raise
        finally:
            del self._calls[request.id]
            call.context = None
        if span is not None:
            span.end(end.result, end.error)
        if end.error is not None:
            raise _again(end.error)
        return end.result

    def _abandon(self, call: Call, outbox: Outbox, error: BaseException) -> bool:
        """Withdraw or cancel the request of ``call``, which was put into ``outbox``, because the caller no longer
        waits.

        Return true if the request had already been written. Then the peer gets a cancellation, unless cancellations are
        switched off.
        """
        request, self.only = call.request, None
        if call.end is not None and (noted := on_leaving.get()) is not None:
            noted(self, call.end)
        if not self._state.abandon(request) or outbox.withdraw(call) or isinstance(error, NotSerializable):
            return False
        newest = next(reversed(self._calls))
        if type(newest) is int and not request.method.streams and request.method.name not in _ASK_NOTHING:
            self._left = newest if self._send_cancels else sys.maxsize
        self._send_cancel(request.id, error, outbox)
        return True

    def _send_cancel(self, request_id: RequestId, error: BaseException, outbox: Outbox | None = None) -> None:
        if (noted := on_leaving.get()) is not None:
            noted(self, None)
        if self._send_cancels:
            (outbox or self._outbox).put_cancel(request_id, cancel_reason(error))

    def send_ignoring_reply(self, method: str, params: dict[str, Any], revision: Revision) -> None:
        """Send a request, and ignore its reply when it arrives: see the function `send_ignoring_reply` in
        `runtime.calls`.

        Do nothing if the connection is lost.
        """
        if self.closed_error is None:
            send_ignoring_reply(self._state, self._outbox, method, params, revision)

    @contextmanager
    def round_trips(self) -> Generator[RoundTrips]:
        """Open a call that may need several requests: a server can request input before it returns the result.

        The context manager's value is a `RoundTrips`: pass it to `request` as ``trips``. If the block raises while the
        server waits for the next request, exactly one ``notifications/cancelled`` is sent. It names the last request
        that the server answered. `RoundTrips.cancel` sends it earlier. In 2026-07-28 a server can ignore it; a server
        that keeps the call's handler waiting can stop the handler.
        """
        trips = RoundTrips(self._send_cancel)
        try:
            yield trips
        except BaseException as error:
            trips.cancel(error)
            raise

    @contextmanager
    def while_connected(self) -> Generator[None]:
        """Run a ``with`` block. If the connection is lost, cancel the block and raise `ConnectionLost`."""
        self.check_run()
        if self.closed_error is not None:
            raise _again(self.closed_error)
        with trio.CancelScope() as scope:
            self._waiting.add(scope)
            try:
                yield
            finally:
                self._waiting.discard(scope)
        if self.closed_error is not None:
            raise _again(self.closed_error)

    def call_of(self, request: OutboundRequest) -> Call | DetachedCall:
        """Return the call that sent ``request``. The call is still pending, or the peer has just ended it."""
        return self._calls[request.id]

    def settle(self, request: OutboundRequest, result: Any, error: MCPError | None) -> None:
        """Set the outcome of the call that sent ``request``, because the peer has replied."""
        if self._left and type(request.id) is int and request.id > self._left:
            self._left = 0  # the peer has answered a later request, so the peer has also read the last cancellation
        self._calls[request.id].settle(CallOutcome(result, error, self._request_notifications.received))

    def caller_of(self, request_id: RequestId | None) -> Context | None:
        """Return the context variables of the task that waits for the outgoing request with this id.

        Return `None` if no caller waits for it. Don't change the returned context.
        """
        call = None if request_id is None else self._calls.get(request_id)
        return call.context if isinstance(call, Call) else None

    def only_caller(self) -> Context | None:
        """If only one pending call can be the reason for a request from the peer, return the context variables of this
        call.

        For example, a server may send a sampling request while it handles a tool call.

        Return `None` if there is no such call, or more than one, or if the peer may still send requests for a
        cancelled call.
        """
        self.only = None
        if self._left:
            return None
        found = None
        for call in self._calls.values():
            method = call.request.method
            if not isinstance(call, Call) or call.end is not None or method.streams or method.name in _ASK_NOTHING:
                continue
            if found is not None:
                return None
            found = call
        self.only = found
        return None if found is None else found.context

    def unreadable_answer(self, request: OutboundRequest, reason: str) -> None:
        """End the call that sent ``request`` with an error, because its reply can't be read."""
        self._violated(request, f"the answer cannot be read: {reason}")

    def answer_lost(self, requests: Sequence[OutboundRequest], reason: str) -> None:
        """Handle the loss of a reply to one of ``requests``. The reply can't be read, and its id is unknown.

        Fail every call that could be waiting for this reply, because the call would wait forever.

        If only one of the requests was sent, that one fails. Otherwise every call without a time limit fails, and the
        peer gets a cancellation for it. Calls with a time limit continue.
        """
        sent = [request for request in requests if not self._calls[request.id].segments]
        if len(sent) == 1:
            self._state.abandon(sent[0])
            self.unreadable_answer(sent[0], reason)
            return
        for request in sent:
            if not self._calls[request.id].limited:
                told = self._state.abandon(request)
                error = self._violated(request, f"an answer, maybe to this, cannot be read: {reason}")
                if told:
                    self._send_cancel(request.id, error)

    def _violated(self, request: OutboundRequest, what: str) -> ProtocolViolation:
        violation = UnreadableAnswer(f"{request.method.name}: {what}")
        self.settle(request, None, violation)
        return violation

    def fail_all(self, error: ConnectionLost) -> None:
        """End all current and all later calls with the exception ``error``, because no more replies can arrive."""
        self.closed_error = self.closed_error or error
        for request in self._state.abandon_all():
            self._calls[request.id].settle(CallOutcome(None, error))
        for scope in tuple(self._waiting):
            scope.cancel(reason=error.reason)


_ASK_NOTHING: Final = frozenset(("initialize", "server/discover", "ping", "logging/setLevel")) | frozenset(
    ("resources/subscribe", "resources/unsubscribe", "tasks/get", "tasks/cancel")
)
"""Methods during which servers don't send requests to the client."""
_QUOTED: Final = 200
"""Maximum bytes of a line that an error message quotes."""


def quoted(line: bytes | bytearray) -> str:
    """Return the beginning of ``line`` in quotes, as printable text for an error or log message."""
    return repr(clean(line[:_QUOTED].decode("utf-8", "replace")))


def _carrying(trace: TraceContext, params: dict[str, Any] | None) -> dict[str, Any]:
    """Return a copy of the request parameters ``params`` whose ``_meta`` contains the trace context ``trace``."""
    params = params or {}
    return {**params, "_meta": trace.inject_into(params.get("_meta") or {})}


def cancel_reason(error: BaseException) -> str | None:
    """Return the reason to send in the cancellation of an outgoing request that its caller has abandoned.

    If the inbound request that is being handled was cancelled, return the reason of that cancellation, or `None` if the
    peer gave no reason. Otherwise return `reason_of` the error.
    """
    scope = current_request.get(None)
    cancellation = scope.cancellation if scope is not None else None
    if cancellation is not None and (cancellation.reason is not None or cancellation.cause is CancelCause.PEER):
        return cancellation.reason
    return reason_of(error)


def _again(error: MCPError) -> MCPError:
    """Return a copy of ``error``, to be raised in one waiting call.

    With one shared exception, the tracebacks of all calls would accumulate on it.
    """
    fresh = error.__class__.__new__(error.__class__)
    fresh.__dict__.update(error.__dict__)
    fresh.args = error.args
    return fresh


on_leaving: ContextVar[Callable[[Outbound, CallOutcome | None], None] | None] = ContextVar(
    "trio_mcp.on_leaving", default=None
)
"""Callback that is called in the task of a call when the call abandons its request. It gets the outcome if that has
arrived, or `None` if the peer still has the request."""

_answering: ContextVar[tuple[TraceContext, RequestScope | None] | None] = ContextVar("trio_mcp.answering", default=None)


def present_trace() -> TraceContext | None:
    """Return the trace context of the incoming request that this task handles.

    It is the trace context that the request's ``_meta`` contains now. While a client answers the input requests that a
    server returned for a call, return the trace context of that call. Return `None` if there is no trace.
    """
    scope = current_request.get(None)
    answered = _answering.get()
    # Use a trace context that `answering` has set only if it was set for the request that this task handles now.
    if answered is not None and answered[1] is scope:
        return answered[0]
    return None if scope is None else scope.request.trace


@contextmanager
def answering(meta: Mapping[str, Any]) -> Generator[None]:
    """In the ``with`` block, and in tasks started in it, add the trace context from ``meta`` to outgoing requests.

    The block answers input requests that the server returned for a request with this ``meta``. Requests that a server
    sends itself have their own trace context, and don't need this.
    """
    present = present_trace()
    trace = TraceContext.of(meta if present is None else present.inject_into(meta))
    token = _answering.set(None if trace is None else (trace, current_request.get(None)))
    try:
        yield
    finally:
        _answering.reset(token)
