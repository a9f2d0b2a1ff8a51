"""The four messages of JSON-RPC 2.0, as plain values, and `value`, which makes their classes.

``params`` and ``result`` are plain JSON data here; `trio_mcp.protocol` knows what they mean. The classes of the
specification are made by `value`, too: the methods that attrs would write and compile for each class take half of the
import time of this package, while comparing, hashing, showing and pickling are rare here.
"""

from __future__ import annotations

from typing import Any, TypeAlias, TypeGuard, TypeVar, cast, dataclass_transform

import attrs

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(attrs.field,))
def value(kind: type[T]) -> type[T]:
    """Make ``kind`` a class whose instances are compared and hashed by their contents, and never changed.

    Only the type checker prevents changes. `attrs.frozen` would prevent changes at run time, too, and would take five
    times as long to make an instance: 0.5 µs for a request, with each message of the peer, and 1.3 µs more for a
    question and its answer.
    """
    made = attrs.define(kind, eq=False, repr=False, getstate_setstate=False)
    shared = cast("Any", made)
    shared.__eq__, shared.__hash__, shared.__repr__ = _equal, _hash, _represent
    shared.__getstate__, shared.__setstate__ = _contents, _restore
    return made


def _fields_of(self: Any) -> tuple[attrs.Attribute[Any], ...]:
    return attrs.fields(cast("Any", type(self)))


def _contents(self: Any) -> tuple[Any, ...]:
    return tuple(getattr(self, field.name) for field in _fields_of(self))


def _compared(self: Any) -> tuple[Any, ...]:
    return tuple(getattr(self, field.name) for field in _fields_of(self) if field.eq)


def _restore(self: Any, values: tuple[Any, ...]) -> None:
    for field, item in zip(_fields_of(self), values, strict=True):
        object.__setattr__(self, field.name, item)


def _equal(self: Any, other: object) -> Any:
    return _compared(self) == _compared(other) if type(other) is type(self) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_compared(self))


def _represent(self: Any) -> str:
    """Return the ``repr``, without the members that are `None`: most members of most objects are."""
    told = [
        f"{field.name}={getattr(self, field.name)!r}"
        for field in _fields_of(self)
        if getattr(self, field.name) is not None
    ]
    return f"{type(self).__name__}({', '.join(told)})"


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
    """Bytes of the decoded request, estimated by `weight_of` and counted by bounds; 0 when unknown."""


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


Message: TypeAlias = Request | Notification | Response | ErrorResponse


@value
class Batch:
    """Several messages in one JSON array, in their order (JSON-RPC 2.0, section 6)."""

    members: tuple[Message | Unreadable, ...]
