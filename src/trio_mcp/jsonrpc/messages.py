"""The four messages of JSON-RPC 2.0, as plain values.

``params`` and ``result`` are plain JSON data here; `trio_mcp.protocol` knows what they mean.
"""

from __future__ import annotations

from typing import Any, TypeAlias, TypeGuard

import attrs

from ..classes import value

RequestId: TypeAlias = int | str
"""The id of a request: a string or an integer, in MCP never null (2026-07-28 basic, Requests). ``1`` and ``"1"``
differ."""


def is_request_id(value: object) -> TypeGuard[RequestId]:
    """Return whether ``value`` may be the id of a request: a string or an integer, and `bool` is not an integer."""
    kind = type(value)
    return kind is int or kind is str


@value
class Request:
    """A call to be answered exactly once, under ``id``."""

    id: RequestId
    method: str
    params: Any = None
    size: int = attrs.field(default=0, eq=False)
    """Bytes of the decoded request, as estimated by `decode` and counted by bounds; 0 when unknown."""


@value
class Notification:
    """A one-way message, never answered, not even with an error."""

    method: str
    params: Any = None


@value
class Response:
    """The successful end of the request ``id``."""

    id: RequestId
    result: Any


@value
class ErrorResponse:
    """The failed end of the request ``id``, which is `None` when the request's id could not be read."""

    id: RequestId | None
    code: int
    message: str
    data: Any = None


@value
class Unreadable:
    """A line that is not a message.

    ``reply`` is the error reply for the peer, or `None` where the line was a reply itself, since answers to answers
    could go on for ever. ``is_answer``: the line was certainly the only answer to a request; ``settles`` is the id of
    the request, where readable.
    """

    reason: str
    reply: ErrorResponse | None
    settles: RequestId | None = None
    is_answer: bool = False
    too_long: bool = False
    """True when only the length kept the line from being read, and its beginning may belong to a valid message."""
    may_be_answer: bool = False
    """True for an object that was too long, too deep or too slow to be read, and whose known parts tell no more of its
    kind: its peer has sent a message, and more of the messages of such size are answers than anything else."""
    named: Any = attrs.field(default=None, eq=False)
    """The member ``id`` of a complete object, unchanged: any JSON value. `None` without an id."""
    asks: str | None = attrs.field(default=None, eq=False)
    """Method of a complete object with neither a result nor an error, which may be a request."""
    also: tuple[RequestId, ...] = attrs.field(default=(), eq=False)
    """Ids of further objects on the line that aren't requests."""


Message: TypeAlias = Request | Notification | Response | ErrorResponse


@value
class Batch:
    """Several messages in one JSON array, in their order (JSON-RPC 2.0, section 6)."""

    members: tuple[Message | Unreadable, ...]
