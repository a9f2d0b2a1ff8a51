"""The events that `ConnectionState.receive` returns for received messages."""

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
    """A legal request, now in flight under its id."""

    request: InboundRequest


@value
class NotificationReceived:
    """A notification that the revision knows, parameters unchecked."""

    method: Method
    params: dict[str, Any]
    revision: Revision
    served: Any = attrs.field(default=None, eq=False)
    """Our call that the notification belongs to, in a form that the receiver chooses."""

    def note_call(self, served: Any) -> None:
        """Set `served`. The receiver calls this before it passes the notification on."""
        cast("Any", self).served = served

    def packed(self) -> PackedNotification:
        """Return the notification with its parameters as text, to be kept: objects take up to thirty times as much
        memory."""
        return PackedNotification(self.method, pack_value(self.params), self.revision, self.served)


@value
class PackedNotification:
    """A `NotificationReceived` that is kept as text while waiting."""

    method: Method
    text: bytes
    revision: Revision
    served: Any = attrs.field(default=None, eq=False)

    def unpacked(self) -> NotificationReceived:
        """Return the notification in the form before `NotificationReceived.packed`."""
        return NotificationReceived(self.method, decode_value(self.text), self.revision, self.served)


@value
class CancelReceived:
    """The peer gave up on ``request``. The id of the request is free again from now on."""

    request: InboundRequest
    reason: str | None


@value
class ProgressReceived:
    """Progress of a request of ours, parameters unchecked."""

    request: OutboundRequest
    params: dict[str, Any]


@value
class StreamReceived:
    """A notification on a stream of ours, which ``request`` opened and which is still open."""

    request: OutboundRequest
    notification: NotificationReceived


@value
class StreamCancelled:
    """The peer ended a stream of ours: ``request``, which opened the stream, gets no reply any more."""

    request: OutboundRequest
    reason: str | None


@value
class ResultReceived:
    """A request of ours succeeded."""

    request: OutboundRequest
    result: Any


@value
class ErrorReceived:
    """A request of ours failed."""

    request: OutboundRequest
    error: ErrorResponse


@value
class ReplyUnreadable:
    """The peer answered a request of ours with a message that cannot be read."""

    request: OutboundRequest
    reason: str
    is_odd: bool = False
    """True for JSON that is an answer only by its id, so that errors should quote it in addition to the reason."""


@value
class RequestFailed:
    """A request of ours gets no reply any more, for the reason that ``error`` says."""

    request: OutboundRequest
    error: MCPError


@value
class AnswerLost:
    """An answer to one of our ``requests`` cannot be read, and which request was answered is unknown."""

    requests: tuple[OutboundRequest, ...]
    reason: str


@value
class Unread:
    """The line was no message, and gets no reply."""

    reason: str


@value
class Refused:
    """The message broke a rule, and ``reply`` is to be sent. Nothing else happened."""

    reply: ErrorResponse


@value
class Ignored:
    """The message has no effect here and now. ``noteworthy``: the peer broke a rule; otherwise the message is only
    late or needless, which any race can cause."""

    reason: str
    noteworthy: bool = False
    is_reply: bool = False
    """True for a reply that belongs to no request in flight."""


@value
class BatchReceived:
    """Several events whose replies go out together, in one array."""

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
