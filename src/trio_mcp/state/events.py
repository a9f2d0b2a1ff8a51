"""What a received message turns out to be."""

from __future__ import annotations

from typing import Any, TypeAlias

from ..jsonrpc.codec import decode_value, pack_value
from ..jsonrpc.messages import ErrorResponse
from ..jsonrpc.values import value
from ..spec.methods import Method
from ..spec.revisions import Revision
from .requests import InboundRequest, OutboundRequest

__all__ = [
    "AnswerLost",
    "BatchReceived",
    "CancelReceived",
    "ErrorReceived",
    "Event",
    "Ignored",
    "NotificationReceived",
    "PackedNotification",
    "ProgressReceived",
    "Refused",
    "ReplyUnreadable",
    "RequestReceived",
    "ResultReceived",
    "StreamCancelled",
    "StreamReceived",
    "Unread",
]


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

    def packed(self) -> PackedNotification:
        """Return it with its parameters as text, to be kept: as objects they take up to thirty times as much."""
        return PackedNotification(self.method, pack_value(self.params), self.revision)


@value
class PackedNotification:
    """A `NotificationReceived` that waits."""

    method: Method
    text: bytes
    revision: Revision

    def unpacked(self) -> NotificationReceived:
        """Return what it was."""
        return NotificationReceived(self.method, decode_value(self.text), self.revision)


@value
class CancelReceived:
    """The peer gave up on ``request``, whose id is free again from here on."""

    request: InboundRequest
    reason: str | None


@value
class ProgressReceived:
    """Progress of a request of ours, parameters unchecked."""

    request: OutboundRequest
    params: dict[str, Any]


@value
class StreamReceived:
    """A notification on a stream of ours: ``request`` is the one that opened it, and it is still open."""

    request: OutboundRequest
    notification: NotificationReceived


@value
class StreamCancelled:
    """The peer ended a stream of ours, which is answered no more from here on."""

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
    """A request of ours was answered with what cannot be read."""

    request: OutboundRequest
    reason: str


@value
class AnswerLost:
    """An answer to one of ``requests``, which are ours, cannot be read, and nobody knows to which of them."""

    requests: tuple[OutboundRequest, ...]
    reason: str


@value
class Unread:
    """The line was no message, and is owed no reply."""

    reason: str


@value
class Refused:
    """The message broke a rule, and the peer is owed ``reply``. Nothing else happened."""

    reply: ErrorResponse


@value
class Ignored:
    """The message means nothing here and now. ``noteworthy``: the peer broke a rule; else it is a late or
    needless message, as every race brings them."""

    reason: str
    noteworthy: bool = False


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
    | AnswerLost
    | Unread
    | Refused
    | Ignored
    | BatchReceived
)
