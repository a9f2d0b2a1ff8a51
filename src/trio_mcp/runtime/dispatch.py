"""`Dispatch` passes each received message to the object that handles it. `Dispatch` is synchronous, so that the reader
task never waits."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ..jsonrpc.codec import pack_value
from ..jsonrpc.errors import PeerError
from ..protocol.converters import structure_notification
from ..protocol.types.notifications import ProgressParams
from ..state import events
from .calls import DetachedCall, Progress
from .exchange import BatchExchange, Exchange
from .outbound import quoted
from .replies import error_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..jsonrpc.messages import ErrorResponse
    from .notifications import NotificationQueue
    from .outbound import Outbound
    from .requests.host import RequestHandler
    from .requests.runner import RequestRunner

logger = logging.getLogger("trio_mcp")

_QUOTED: Final = 200
"""Maximum number of bytes of an unreadable line that the log shows."""


OnUnreadable: TypeAlias = "Callable[[str, bytes | bytearray], None]"
"""Callback for a line that isn't a message. The reader task calls it with the reason and the first bytes of the line.
The callback must be quick, and must not raise."""


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
