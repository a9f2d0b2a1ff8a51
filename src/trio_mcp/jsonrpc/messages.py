"""The four message types of JSON-RPC 2.0, as plain values.

``params`` and ``result`` are plain JSON data here. `trio_mcp.protocol` knows their meaning.
"""

from __future__ import annotations

from typing import Any, TypeAlias, TypeGuard

import attrs

from ..classes import value

RequestId: TypeAlias = int | str
"""The id of a request: a string or an integer. MCP doesn't allow null (2026-07-28 basic, Requests). ``1`` and ``"1"``
are different ids."""


def is_request_id(value: object) -> TypeGuard[RequestId]:
    """Return true if ``value`` can be the id of a request, which is a string or an integer.

    A `bool` doesn't count as an integer here.
    """
    kind = type(value)
    return kind is int or kind is str


@value
class Request:
    """A JSON-RPC request, which gets exactly one response with the same ``id``."""

    id: RequestId
    method: str
    params: Any = None
    size: int = attrs.field(default=0, eq=False)
    """Estimated memory of the decoded request in bytes, which counts towards the limits. 0 if unknown."""


@value
class Notification:
    """A JSON-RPC notification, which never gets a response, not even an error."""

    method: str
    params: Any = None


@value
class Response:
    """A JSON-RPC reply with the result of the request whose id is ``id``."""

    id: RequestId
    result: Any


@value
class ErrorResponse:
    """A JSON-RPC error reply to the request whose id is ``id``.

    The id is `None` if the request's id couldn't be read.
    """

    id: RequestId | None
    code: int
    message: str
    data: Any = None


@value
class Unreadable:
    """A received line that isn't a JSON-RPC message.

    ``reply`` is the error reply for the peer, or `None` if the line itself was a reply, because answers to answers
    could continue for ever. ``is_answer``: the line was certainly the only answer to a request. ``settles`` is the id
    of that request, if it is readable.
    """

    reason: str
    reply: ErrorResponse | None
    settles: RequestId | None = None
    is_answer: bool = False
    too_long: bool = False
    """True if the line couldn't be read only because it is too long. Its beginning may belong to a valid message."""
    may_be_answer: bool = False
    """True for an object that was too long, too deep or too slow to be read, if its known parts don't show whether it's
    a request or a reply. Most messages of this size are replies."""
    named: Any = attrs.field(default=None, eq=False)
    """The member ``id`` of a complete object, unchanged, which may be any JSON value. `None` if there is no id."""
    asks: str | None = attrs.field(default=None, eq=False)
    """The method in a complete object without a result and an error, which may be a request."""
    also: tuple[RequestId, ...] = attrs.field(default=(), eq=False)
    """Ids of the other objects on the same line that aren't requests."""


Message: TypeAlias = Request | Notification | Response | ErrorResponse


@value
class Batch:
    """Several messages in one JSON array, in their order (JSON-RPC 2.0, section 6)."""

    members: tuple[Message | Unreadable, ...]
