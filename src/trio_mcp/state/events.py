"""The events that `ConnectionState.receive` returns."""

from __future__ import annotations

from typing import Any, TypeAlias, cast

import attrs

from ..classes import value
from ..jsonrpc.codec import decode_value, pack_value
from ..jsonrpc.errors import MCPError
from ..jsonrpc.messages import ErrorResponse
from ..protocol.methods import Method
from ..protocol.revisions import Revision
from .requests import InboundRequest, OutboundRequest


@value
class RequestReceived:
    """Event: a legal request arrived, and is now in flight under its id."""

    request: InboundRequest


@value
class NotificationReceived:
    """Event: the peer sent a notification that its protocol revision defines. The notification's parameters aren't
    validated yet."""

    method: Method
    params: dict[str, Any]
    revision: Revision
    served: Any = attrs.field(default=None, eq=False)
    """The call that the notification belongs to, as an object that the receiver chooses."""

    def note_call(self, served: Any) -> None:
        """Set `served` to the client's call to which the notification belongs. Called before the notification is
        handled."""
        cast("Any", self).served = served

    def packed(self) -> PackedNotification:
        """Return a copy of the notification whose parameters are stored as text.

        This saves memory while the notification waits: objects take up to thirty times as much memory as text.
        """
        return PackedNotification(self.method, pack_value(self.params), self.revision, self.served)


@value
class PackedNotification:
    """A waiting `NotificationReceived` whose parameters are stored as text."""

    method: Method
    text: bytes
    revision: Revision
    served: Any = attrs.field(default=None, eq=False)

    def unpacked(self) -> NotificationReceived:
        """Return the original notification: the inverse of `NotificationReceived.packed`."""
        return NotificationReceived(self.method, decode_value(self.text), self.revision, self.served)


@value
class CancelReceived:
    """Event: the peer cancelled ``request``. The id of the request is free from now on."""

    request: InboundRequest
    reason: str | None


@value
class ProgressReceived:
    """Event: a progress notification for an outgoing request arrived. The notification's parameters aren't validated
    yet."""

    request: OutboundRequest
    params: dict[str, Any]


@value
class StreamReceived:
    """Event: a notification arrived on the subscription stream that the outgoing ``request`` opened."""

    request: OutboundRequest
    notification: NotificationReceived


@value
class StreamCancelled:
    """Event: the peer ended a subscription stream. The outgoing ``request`` that opened the stream won't get a
    reply."""

    request: OutboundRequest
    reason: str | None


@value
class ResultReceived:
    """Event: the result of an outgoing request arrived."""

    request: OutboundRequest
    result: Any


@value
class ErrorReceived:
    """Event: an error reply to an outgoing request arrived."""

    request: OutboundRequest
    error: ErrorResponse


@value
class ReplyUnreadable:
    """Event: the reply to an outgoing request arrived, but can't be read."""

    request: OutboundRequest
    reason: str
    is_odd: bool = False
    """True for JSON that counts as an answer only because of its id. Errors should quote it in addition to the
    reason."""


@value
class RequestFailed:
    """Event: an outgoing request won't get a reply. Its caller gets ``error``."""

    request: OutboundRequest
    error: MCPError


@value
class AnswerLost:
    """Event: the reply to one of the outgoing ``requests`` can't be read. It's unknown to which of them."""

    requests: tuple[OutboundRequest, ...]
    reason: str


@value
class Unread:
    """Event: the received line isn't a message, and gets no reply."""

    reason: str


@value
class Refused:
    """Event: the received message is illegal, and the error ``reply`` must be sent. The state of the connection is
    unchanged."""

    reply: ErrorResponse


@value
class Ignored:
    """Event: the received message has no effect. ``noteworthy`` is true if the peer broke a rule of the protocol.

    Otherwise the message is only late or redundant.
    """

    reason: str
    noteworthy: bool = False
    is_reply: bool = False
    """True for a reply that belongs to no request in flight."""


@value
class BatchReceived:
    """Event: a JSON-RPC batch arrived. It contains the events of the messages in the batch."""

    events: tuple[Event, ...]


Event: TypeAlias = (
    RequestReceived
    | NotificationReceived
    | CancelReceived
    | ProgressReceived
    | StreamReceived
    | StreamCancelled
    | ResultReceived
    | ErrorReceived
    | ReplyUnreadable
    | RequestFailed
    | AnswerLost
    | Unread
    | Refused
    | Ignored
    | BatchReceived
)
