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
    """A legal request arrived, and is now in flight under its id."""

    request: InboundRequest


@value
class NotificationReceived:
    """A notification arrived whose method the revision has. Its parameters aren't validated yet."""

    method: Method
    params: dict[str, Any]
    revision: Revision
    served: Any = attrs.field(default=None, eq=False)
    """The call that the notification belongs to, in a form that the receiver chooses."""

    def note_call(self, served: Any) -> None:
        """Set `served`. Called by the receiver before it passes the notification on."""
        cast("Any", self).served = served

    def packed(self) -> PackedNotification:
        """Return the notification with its parameters as text, for waiting: objects take up to thirty times as much
        memory."""
        return PackedNotification(self.method, pack_value(self.params), self.revision, self.served)


@value
class PackedNotification:
    """A waiting `NotificationReceived` that is kept as text."""

    method: Method
    text: bytes
    revision: Revision
    served: Any = attrs.field(default=None, eq=False)

    def unpacked(self) -> NotificationReceived:
        """Return the original notification: the inverse of `NotificationReceived.packed`."""
        return NotificationReceived(self.method, decode_value(self.text), self.revision, self.served)


@value
class CancelReceived:
    """The peer cancelled ``request``. The id of the request is free from now on."""

    request: InboundRequest
    reason: str | None


@value
class ProgressReceived:
    """Progress of our request arrived. Its parameters aren't validated yet."""

    request: OutboundRequest
    params: dict[str, Any]


@value
class StreamReceived:
    """A notification arrived on our open stream, which ``request`` opened."""

    request: OutboundRequest
    notification: NotificationReceived


@value
class StreamCancelled:
    """The peer ended our stream. ``request``, which opened the stream, won't get a reply."""

    request: OutboundRequest
    reason: str | None


@value
class ResultReceived:
    """Our request succeeded."""

    request: OutboundRequest
    result: Any


@value
class ErrorReceived:
    """Our request failed."""

    request: OutboundRequest
    error: ErrorResponse


@value
class ReplyUnreadable:
    """The peer answered our request with a message that can't be read."""

    request: OutboundRequest
    reason: str
    is_odd: bool = False
    """True for JSON that is an answer only because of its id. Errors should then quote it in addition to the reason."""


@value
class RequestFailed:
    """Our request won't get a reply; ``error`` says why."""

    request: OutboundRequest
    error: MCPError


@value
class AnswerLost:
    """An answer to one of our ``requests`` can't be read, and it's unknown which request was answered."""

    requests: tuple[OutboundRequest, ...]
    reason: str


@value
class Unread:
    """The line wasn't a message, and gets no reply."""

    reason: str


@value
class Refused:
    """The message broke a rule, and ``reply`` must be sent. Nothing else changed."""

    reply: ErrorResponse


@value
class Ignored:
    """The message has no effect. ``noteworthy``: the peer broke a rule. Otherwise the message is late or redundant,
    which can happen in any race."""

    reason: str
    noteworthy: bool = False
    is_reply: bool = False
    """True for a reply that belongs to no request in flight."""


@value
class BatchReceived:
    """Several events whose replies are sent together, in one array."""

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
