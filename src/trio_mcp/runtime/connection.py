"""`Connection` runs one MCP connection in trio tasks.

Two tasks run if there is a transport, and two on demand::

    reader   transport.receive -> decode -> ConnectionState.receive -> Dispatch   never waits for a handler
    writer   Outbox.take -> transport.send                                        sends lines not written at once
    logs     NotificationQueue: callbacks for logs, one after another             on demand
    changes  NotificationQueue: callbacks for all else, one after another         on demand

Requests of the peer belong to the `Exchange` of the connection. Each runs in its own task and nursery, in the nursery
of the `RequestHost` (RequestRunner, RequestScope). `ConnectionState` changes the state of all requests in flight,
synchronously; the tasks only carry the changes out. `Dispatch` passes each received message to the object that handles
it. It is synchronous too, so that the reader task never waits.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Any, Final, TypeAlias

import trio

from ..concurrency.time_limits import Graces
from ..diagnostics.log import peer_log_share
from ..jsonrpc.codec import decode, pack_value, skipped
from ..jsonrpc.errors import PeerError
from ..jsonrpc.messages import ErrorResponse, RequestId
from ..protocol.converters import structure_notification
from ..protocol.revisions import Revision
from ..protocol.types.notifications import ProgressParams
from ..state import events
from ..state.connection import ConnectionState
from .calls import DetachedCall, OnProgress, Progress
from .cancellation import CancelCause
from .exchange import BatchExchange, Exchange
from .notifications import Announcements, NotificationQueue, notification_queue
from .outbound import CallSettings, Outbound, quoted
from .outbox import LEAST_FLUSH, LastFlush, Outbox
from .peer import SOLE_CLIENT, Peer
from .replies import Replies, error_line
from .requests.host import RequestHandler, RequestHost
from .requests.runner import RequestRunner
from .transport import ConnectionLost, Frame, FramedTransport, QuestionsLost, Received, ReplyLost, UnreadableFrame

logger = logging.getLogger("trio_mcp")

_READING_MARKS: Final = 64
_HURRIED_GRACE: Final = 0.3
_QUOTED: Final = 200
"""Maximum number of bytes of an unreadable line that the log shows."""

OnUnreadable: TypeAlias = Callable[[str, bytes | bytearray], None]
"""Callback for a line that isn't a message. The reader task calls it with the reason and the first bytes of the line.
The callback must be quick, and must not raise."""


class Connection:
    """One MCP connection of a client or a server. It handles messages while `run` is running.

    ``host``, the `RequestHost` that runs the handlers, must be running for the whole time. If messages arrive through
    `process_event` instead of a transport, pass an outbox as ``transport``, and take the lines from it.

    ``graces`` limits how long cancelled handlers in threads can clean up; it's shortened when the connection ends.
    ``replies`` writes the replies of this side. ``on_unreadable`` is called with lines that aren't messages.
    """

    def __init__(
        self,
        transport: FramedTransport | Outbox,
        state: ConnectionState,
        handler: RequestHandler,
        host: RequestHost,
        *,
        peer: Peer = SOLE_CLIENT,
        graces: Graces | None = None,
        replies: Replies | None = None,
        calls: CallSettings = CallSettings(),  # noqa: B008 frozen
        on_unreadable: OnUnreadable | None = None,
    ) -> None:
        limits = host.limits
        self.state = state
        self.limits = limits
        self.host = host
        self._transport, network = (None, "tcp") if isinstance(transport, Outbox) else (transport, transport.network)
        self.outbox = transport if isinstance(transport, Outbox) else transport.make_outbox(limits.high_water)
        self.exchange = Exchange(state, self.outbox, peer)
        """The `Exchange` that requests of the peer belong to by default."""
        self.lost: ConnectionLost | None = None
        """Reason why messages from this side no longer reach the peer. `None` while the connection is up."""
        self.related_request_id: RequestId | None = None
        """Id of the outgoing request whose HTTP response carried the current message: see
        `Frame.related_request_id`."""
        self.is_only = False
        """True if this is the server's only connection, so that the server ends with the connection."""
        self._request_notifications = notification_queue(limits, handler.notified, limits.callback_grace)
        self._changes = notification_queue(limits, handler.notified)
        tracing = host.tracing if self._transport is None else self._transport.observed_by(host.tracing)
        self._tracer = tracer = None if tracing is None else tracing._tracer_of(network)
        self.outbound = Outbound(state, self.outbox, self._request_notifications, limits, tracer, calls)
        """Sends requests from this side to the peer. To send a single request, call `request`."""
        graces, replies = graces or Graces(limits.cleanup_grace), replies or Replies({})
        ask, post = self.outbound.request, self.outbound.send_detached
        self._runner = RequestRunner(host, handler, graces, replies, ask, tracer, peer=peer, post=post)
        self._announcements = Announcements(self.outbox)
        queues = self._request_notifications, self._changes
        self._dispatch = Dispatch(self._runner, self.exchange, self.outbound, *queues, handler, on_unreadable)
        self._drain_timeout = limits.drain_timeout
        self._last_flush = LastFlush()
        self._ended = trio.Event()
        self._sleeper: trio.lowlevel.Task | None = None
        self._service: trio.Nursery | None = None
        """Nursery of the connection's own tasks, such as the reader. `None` before the nursery opens, and as soon as it
        may close."""

    @property
    def peer(self) -> Peer:
        """The peer: the client or server at the other end of the connection."""
        return self.exchange.peer

    @property
    def stateless(self) -> bool:
        """True if the connection keeps no state between requests, as over stateless HTTP."""
        return self.host.stateless

    # Life

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve the connection until it ends, and then close the transport.

        Returns normally however the connection ends. If the connection is lost, only the calls that wait for replies
        raise (ruling 17). At the end of input, or after `shut_down`, accepted requests continue for up to
        ``drain_timeout`` seconds, and are then cancelled (ruling 14). If this task is cancelled, all requests are
        cancelled at once.
        """
        with peer_log_share(self._runner.caller):
            await self._run(task_status)

    async def _run(self, task_status: trio.TaskStatus[None]) -> None:
        try:
            async with trio.open_nursery() as service:
                if self._transport is not None:
                    service.start_soon(self._write, self._transport)
                context = copy_context()
                self._request_notifications.task.start_in(service, context)
                self._changes.task.start_in(service, context)
                self._service = service
                if self._transport is not None:
                    service.start_soon(self._read, self._transport)
                if self.is_ending:
                    service.start_soon(self._drain)
                task_status.started()
                try:
                    await self._wait_until_drained()
                except BaseException:
                    # If a KeyboardInterrupt ended the wait, the requests haven't been cancelled yet: cancel them.
                    self._cancel_all(CancelCause.PARENT, None)
                    raise
                finally:
                    self._service = None
                    self._runner.refuse_new("the connection has ended")
                    # Even if this task was cancelled, wait until the last handler has cleaned up.
                    with trio.CancelScope(shield=True):
                        await self.exchange.idle()
                # Send the last replies, if the peer may still read them.
                if self.lost is None and self._transport is not None:
                    await self._last_flush.run(self.outbox.flushed)
                service.cancel_scope.cancel(reason="the connection has ended")
        finally:
            self.outbound.fail_all(ConnectionLost("the connection was closed"))
            try:
                if self._transport is not None:
                    await self._transport.aclose()
            finally:
                self._drop_references()
                self._ended.set()
                if self._tracer is not None and not self.peer.everybody:
                    self._tracer.close(
                        self.state.role, None if self.state.revision is None else self.state.revision.name
                    )

    def _drop_references(self) -> None:
        """Break the reference cycles among the objects of an ended connection, so that Python frees them without the
        garbage collector."""
        self._runner.detach()
        self._request_notifications.detach()
        self._changes.detach()
        if self._transport is not None:
            self.outbox.close()
        del self._dispatch

    async def _wait_until_drained(self) -> None:
        """Wait until the connection is ending and the last of its accepted requests has ended.

        If this task is cancelled first, record the cause for all requests before any handler sees the cancellation.
        trio makes this possible: it calls ``abort`` functions at once, and wakes the tasks afterwards.
        """

        def abort(_: Any) -> trio.lowlevel.Abort:
            self._sleeper = None
            # Refuse new requests, because the reader task may receive another request before it's cancelled.
            self._runner.refuse_new("the connection has ended")
            self._cancel_all(CancelCause.PARENT, None)
            return trio.lowlevel.Abort.SUCCEEDED

        self._sleeper = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(abort)

    def _start_drain(self, reason: str) -> None:
        self._runner.refuse_new(reason)
        if not self.is_ending:
            self.exchange.ending.set()
            # From now on, only the writer task writes replies, so that the last reply is written just before the close.
            # If other tasks also wrote replies, the connection could be closed before a late request gets its reply.
            self.outbox.write_nothing_now()
            if self._service is not None:
                self._service.start_soon(self._drain)

    def _wake(self) -> None:
        if self._sleeper is not None:
            trio.lowlevel.reschedule(self._sleeper)
            self._sleeper = None

    def shut_down(self, reason: str, *, drain_timeout: float | None = None, hurry: bool = False) -> None:
        """Refuse new requests from now on, and end the connection when the accepted requests have ended.

        ``drain_timeout`` in seconds replaces `Limits.drain_timeout`. If the connection is already ending, the remaining
        requests are cancelled at once instead. ``hurry``: less than a second is left for everything.
        """
        if hurry:
            self._runner.graces.shorten(_HURRIED_GRACE)
            self._last_flush.hurry()
            drain_timeout = 0.0
        if self.is_ending:
            self._cancel_all(CancelCause.SHUTDOWN, reason)
            return
        if drain_timeout is not None:
            self._drain_timeout = drain_timeout
        self._start_drain(reason)

    async def close(self, reason: str) -> None:
        """Cancel all requests, end the connection, and wait until `run` has returned."""
        self.shut_down(reason, drain_timeout=0.0)
        await self._ended.wait()

    @property
    def is_ending(self) -> bool:
        """True if the connection is ending, and therefore accepts no more requests."""
        return self.exchange.ending.is_set()

    async def until_ending(self) -> None:
        """Wait until the connection stops accepting requests.

        Subscription streams end then, while other requests continue.
        """
        await self.exchange.ending.wait()

    async def _drain(self) -> None:
        reason = self._runner.refuse_reason
        if self.lost is None:
            # Cancel the handlers that wait for a client's retry, because the server now refuses retries too.
            self._runner.cancel_parked(self.exchange, CancelCause.SHUTDOWN, reason)
            deadline = trio.current_time() + self._drain_timeout
            self._last_flush.end_at(deadline)
            # Give subscription streams a moment to end normally, even if the drain timeout is 0.
            with trio.move_on_after(LEAST_FLUSH):
                await self.exchange.streams_idle()
            with trio.CancelScope(deadline=deadline):
                await self.exchange.idle()
        cause = CancelCause.SHUTDOWN if self.lost is None else CancelCause.DISCONNECT
        self._cancel_all(cause, reason)
        self._wake()

    def _cancel_all(self, cause: CancelCause, reason: str | None) -> None:
        """Cancel all requests of the connection, because the connection is being closed by this side or by the peer."""
        if cause is not CancelCause.DISCONNECT or self.is_only:
            self._runner.graces.shorten(self.limits.shutdown_grace)
        self.exchange.cancel_all(cause, reason)
        self._runner.cancel_parked(self.exchange, cause, reason)

    def lose(self, error: ConnectionLost) -> None:
        """End the connection, because messages can be neither sent nor received any more.

        All requests are cancelled, because no reply can be sent or arrive. Idempotent.
        """
        # Remove the error's traceback and causes, because their frames would keep this connection object alive.
        # Each waiting call raises its own copy of the error, with its own traceback.
        error.__traceback__ = error.__context__ = error.__cause__ = None
        if self.lost is None:
            self.lost = error
            self.outbound.fail_all(error)
            self._cancel_all(CancelCause.DISCONNECT, error.reason)
            self._start_drain(error.reason)
            if self._transport is not None:
                self.outbox.close()

    # Writing

    async def _write(self, transport: FramedTransport) -> None:
        try:
            while True:
                await transport.send(await self.outbox.take())
        except ConnectionLost as error:
            self.lose(error)

    async def room(self) -> None:
        """Wait until the outbox, in which messages to the peer wait, has room for another message: see
        `Outbox.room`."""
        await self.outbox.room()

    def notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        """Send the peer a notification that doesn't belong to a request: see `Announcements.put`."""
        self._announcements.put(method, params)

    def request(
        self, method: str, params: dict[str, Any] | None, revision: Revision, *, on_progress: OnProgress | None = None
    ) -> Awaitable[Any]:
        """Send a request to the peer, wait for its result, and return the result as plain data.

        If the caller leaves the call early, because of cancellation or an exception of ``on_progress``, an unsent
        request is withdrawn. Otherwise exactly one ``notifications/cancelled`` with the reason is sent. When the call
        returns, the callbacks for the logs that arrived since the request was sent have finished; see
        `NotificationQueue.wait_until_finished`.

        Raises `PeerError` for an error reply; `ConnectionLost`; `MethodUnavailable` if this side can't send ``method``
        in the revision; and `NotSerializable` if ``params`` can't be encoded as JSON. The last two send nothing.
        """
        return self.outbound.request(method, params, revision, on_progress)

    # Reading

    async def _read(self, transport: FramedTransport) -> None:
        receive, at_hand = transport.receive, transport.buffered
        state, act, max_batch, outbox = self.state, self._dispatch.handle, self.limits.max_batch, self.outbox
        most_unread = _READING_MARKS * outbox.high_water
        try:
            while True:
                if outbox.size > most_unread:
                    # The peer sends requests without reading the replies, so stop reading until it reads replies.
                    # Count only replies that this task itself has put into the outbox (the queue of messages).
                    # If all queued messages counted, two peers that send a lot could both stop reading forever.
                    await outbox.room_of(self.exchange.at_once, _READING_MARKS)
                try:
                    received = at_hand.pop() if at_hand else await receive()
                except UnreadableFrame as error:
                    act(state.receive(skipped(error.head, error.tail, error.reason)), error.head)
                    continue
                if type(received) is bytes:  # the common case is checked first: nearly all messages are bytes
                    act(state.receive(decode(received, max_batch=max_batch)), received)
                else:
                    self._process_received(received)
                del received  # free this message, which can be large, before the next message arrives
        except trio.EndOfChannel:
            # The peer has closed its direction, so no more replies arrive: fail this side's outgoing calls.
            # The requests that the peer sent before closing can still finish.
            self.outbound.fail_all(ConnectionLost("the peer closed the connection"))
            self._start_drain("the connection has ended")
        except ConnectionLost as error:
            self.lose(error)

    def _process_received(self, received: Received) -> None:
        state, act = self.state, self._dispatch.handle
        match received:
            case Frame():
                self.related_request_id = received.related_request_id
                act(state.receive(received.message), received.data)
            case ReplyLost():
                act(state.reply_lost(received.request_id, received.error), b"")
            case QuestionsLost():
                for request_id in received.request_ids:
                    act(state.question_lost(request_id, received.reason), b"")
            case _:
                act(state.receive(decode(received, max_batch=self.limits.max_batch)), received)

    def process_event(self, event: events.Event, line: bytes, exchange: Exchange) -> None:
        """Handle ``event``, a message that was decoded from the bytes ``line``. A request in ``event`` is registered in
        ``exchange``.

        Synchronous. Call it only while `run` is running.
        """
        self._dispatch.handle(event, line, exchange=exchange)

    async def until_notified(self) -> None:
        """Wait until all change notifications that have arrived so far were passed to `RequestHandler.notified`."""
        await self._changes.wait_until_handled(self._changes.received)

    def notified(self, event: events.NotificationReceived, size: int) -> None:
        """Queue a received change notification until it is passed to `RequestHandler.notified`. ``size`` is the
        notification's length in bytes."""
        self._changes.put(event, size)


class Dispatch:
    """Passes each message that a connection receives to the object that handles it.

    - Requests, which belong to ``exchange``, and cancellations go to ``runner``.
    - Replies and progress go to their call.
    - Notifications that ``handler`` wants go to ``request_notifications`` if they belong to a request, and otherwise to
      ``changes``.
    - Lines that aren't messages go to the log and to ``on_unreadable``.
    """

    def __init__(
        self,
        runner: RequestRunner,
        exchange: Exchange,
        outbound: Outbound,
        request_notifications: NotificationQueue,
        changes: NotificationQueue,
        handler: RequestHandler,
        on_unreadable: OnUnreadable | None,
    ) -> None:
        self._runner = runner
        self._exchange = exchange
        self._outbound = outbound
        self._request_notifications = request_notifications
        self._changes = changes
        self._wants = handler.wants
        self._on_unreadable = on_unreadable

    def handle(
        self,
        event: events.Event,
        line: bytes | bytearray,
        batch: BatchExchange | None = None,
        exchange: Exchange | None = None,
    ) -> None:
        """Handle ``event``, a received message that was decoded from the bytes ``line``.

        A request in a JSON-RPC batch belongs to ``batch``, which collects the replies. Any other request belongs to
        ``exchange`` or, if ``exchange`` is `None`, to the connection's own exchange.
        """
        match event:  # frequent events first
            case events.RequestReceived():
                self._runner.accept(event.request, batch or exchange or self._exchange)
                return
            case events.NotificationReceived():
                if self._wants(event):
                    queue = self._request_notifications if event.method.of_request else self._changes
                    queue.put(event, _size(line, batch, event.params))
            case events.ResultReceived():
                self._outbound.settle(event.request, event.result, None)
            case events.Refused():
                (batch or exchange or self._exchange).refuse(event.reply.code, error_line(event.reply))
                return
            case events.BatchReceived():
                self._act_on_batch(event, line, exchange)
                return
            case events.ErrorReceived():
                self._outbound.settle(event.request, None, _peer_error(event.error))
            case events.RequestFailed():
                self._outbound.settle(event.request, None, event.error)
            case events.ReplyUnreadable():
                self._reply_unreadable(event, line)
            case events.StreamReceived():
                if (on_notification := self._outbound.call_of(event.request).on_notification) is not None:
                    on_notification(event.notification, _size(line, batch, event.notification.params))
            case events.StreamCancelled():
                logger.debug("the peer ended stream %.100r: %.200r", event.request.id, event.reason)
                self._outbound.settle(event.request, None, None)
            case events.ProgressReceived():
                self._progressed(event, _size(line, batch, event.params))
            case events.CancelReceived():
                self._runner.cancel_received(event, self._exchange)
            case events.AnswerLost() | events.Unread():
                self._unread(event, line)
            case events.Ignored():
                self._ignored(event, line)
        if batch is not None:
            batch.reply(None)  # tell the JSON-RPC batch that this message gets no reply

    def _reply_unreadable(self, event: events.ReplyUnreadable, line: bytes | bytearray) -> None:
        shown = f": {quoted(line)}" if event.is_odd else ""
        self._outbound.unreadable_answer(event.request, event.reason + shown)

    def _ignored(self, event: events.Ignored, line: bytes | bytearray) -> None:
        logger.log(logging.WARNING if event.noteworthy else logging.DEBUG, "ignored: %s", event.reason)
        if event.is_reply:
            self._outbound.record_stray(line)

    def _act_on_batch(self, event: events.BatchReceived, line: bytes | bytearray, exchange: Exchange | None) -> None:
        replies = BatchExchange(exchange or self._exchange, len(event.events))
        for member in event.events:
            self.handle(member, line, replies, exchange)

    def _unread(self, event: events.AnswerLost | events.Unread, line: bytes | bytearray) -> None:
        logger.warning("received a line that isn't a message (%s): %r", event.reason, bytes(line[:_QUOTED]))
        if self._on_unreadable is not None:
            self._on_unreadable(event.reason, line)
        if isinstance(event, events.AnswerLost):
            self._outbound.answer_lost(event.requests, event.reason)

    def _progressed(self, event: events.ProgressReceived, size: int) -> None:
        call = self._outbound.call_of(event.request)
        if isinstance(call, DetachedCall) or not call.wants_progress:
            return
        try:
            params = structure_notification(event.params, ProgressParams)
        except ValueError as error:
            logger.debug("ignored an invalid progress notification: %s", error)
            return
        call.receive_progress(Progress(params.progress, params.total, params.message), size)


def _peer_error(error: ErrorResponse) -> PeerError:
    return PeerError(error.code, error.message, error.data)


def _size(line: bytes | bytearray, batch: BatchExchange | None, params: dict[str, Any]) -> int:
    """Return the approximate length in bytes of a received notification with ``params``."""
    return len(line) if batch is None else len(pack_value(params))
