"""SessionState: the data of a legacy session that all replicas need, and its stored format.

Changes are functions that take a state and return a state. Each change, applied to its own result, changes nothing, so
a write with an unknown outcome can be repeated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias, TypeVar

import attrs
import msgspec

from ...classes import frozen
from ...jsonrpc.codec import decode_value, encode_value
from ...jsonrpc.messages import RequestId, is_request_id
from ...protocol.converters import structure_params
from ...protocol.revisions import REVISIONS
from ...protocol.types.lifecycle import InitializeParams
from ...protocol.types.notifications import DEFAULT_LOG_LEVEL
from ...stores.record_codec import decode_stored
from ...stores.task_store import UnreadableRecord

T = TypeVar("T")
D = TypeVar("D")

_STREAM_NAME: Final = re.compile(r"[0-9A-Za-z]{1,40}", re.ASCII)
MAX_STATE_BYTES: Final = 64 * 1024
"""Maximum bytes of a session state as stored."""
CANCELS_LIMIT: Final = 100
"""The maximum number of stored cancellations. The newest ones are kept."""
_MAX_CANCELS: Final = 8 * 1024
"""The approximate maximum size of all stored cancellations, in bytes."""
_MAX_REASON: Final = 200
MAX_CANCELLED_ID: Final = 1000
"""The maximum size, in bytes of JSON text, of a request id that can be cancelled through another replica."""
_FORM: Final = 1
"""The version of the stored format. Unknown fields are preserved, so a new field needs no new version. A change that
older replicas would misread needs one."""


class SessionStateUnreadable(UnreadableRecord):
    """The stored state of an MCP session can't be read.

    A later version wrote it, in a format or for a protocol revision that this replica doesn't know, or something other
    than a replica has changed it.
    """


class SessionStateTooLong(Exception):
    """The change would make the stored state of the session longer than its maximum size."""


class Cancel(msgspec.Struct, frozen=True, array_like=True):
    """The cancellation of a request that may run on another replica.

    The cancellation is stored in the session state, so that the other replica sees it.
    """

    mark: str
    """A unique string: the id of the replica that received the cancellation, a dot and a number."""
    request_id: bytes
    """The id of the request, as JSON text."""
    reason: str | None


class _KnownFields(msgspec.Struct, frozen=True, rename={"standalone_stream": "own_stream", "cursor": "place"}):
    """The stored format of `SessionState`. Some fields have other names in this format than in `SessionState`."""

    form: int
    opening: bytes
    revision: str
    principal: str
    standalone_stream: str
    log_level: str
    is_initialized: bool
    listener: str
    subscriptions: tuple[str, ...]
    cancels: tuple[Cancel, ...]
    cursor: str = ""


@frozen
class SessionState:
    """The state of an MCP session, which all replicas share."""

    opening: bytes = attrs.field(repr=False)
    """The parameters of ``initialize``, as JSON text."""
    revision: str
    """Name of the negotiated protocol revision."""
    principal: str
    """The principal that owns the session, as JSON text; empty for an anonymous caller."""
    standalone_stream: str
    """The name of the standalone GET stream, the SSE stream that clients open with GET."""
    log_level: str = DEFAULT_LOG_LEVEL.value
    is_initialized: bool = False
    """True once ``notifications/initialized`` has arrived."""
    listener: str = ""
    """The holder of the standalone GET stream, which alone sends change notifications; empty at first."""
    subscriptions: tuple[str, ...] = ()
    """URIs of the resources that the client has subscribed to."""
    cancels: tuple[Cancel, ...] = ()
    """The newest cancellations that arrived at a replica where their request doesn't run, oldest first."""
    cursor: str = ""
    """Position in the change log when the session was opened; empty if unknown."""
    unknown_fields: tuple[tuple[str, bytes], ...] = attrs.field(default=(), repr=False)
    """Fields that a later version has written, each with its encoded value."""


_, *_FIELDS = _KnownFields.__struct_fields__
_KNOWN: Final = frozenset(_KnownFields.__struct_encode_fields__)
_decode_known: Final = msgspec.msgpack.Decoder(_KnownFields)
_decode_fields: Final = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])


def encode_state(state: SessionState, *, is_new: bool = False) -> bytes:
    """Return the session state encoded in the stored format.

    Raises `SessionStateTooLong` if it exceeds `MAX_STATE_BYTES`. A new session has half of this, so that its state can
    grow.
    """
    known = _KnownFields(_FORM, *(getattr(state, name) for name in _FIELDS))
    unknown = {name: msgspec.Raw(value) for name, value in state.unknown_fields}
    text = msgspec.msgpack.encode({**unknown, **_decode_fields.decode(msgspec.msgpack.encode(known))})
    if len(text) > (MAX_STATE_BYTES // 2 if is_new else MAX_STATE_BYTES):
        raise SessionStateTooLong
    return text


def decode_state(text: bytes) -> SessionState:
    """Return the session state in ``text``, which `encode_state` has written. Fields that only later versions know are
    preserved.

    Raises `SessionStateUnreadable`.
    """
    known, fields = _decode(_parts, text)
    if known.form != _FORM:
        raise SessionStateUnreadable(
            f"unknown format {known.form} of a stored session: another version of trio-mcp wrote it"
        )
    if known.revision not in REVISIONS:
        raise SessionStateUnreadable(
            "unknown protocol revision in a stored session: another version of trio-mcp wrote it"
        )
    _decode(_check, known)
    unknown = tuple((name, bytes(value)) for name, value in fields.items() if name not in _KNOWN)
    return SessionState(**{name: getattr(known, name) for name in _FIELDS}, unknown_fields=unknown)


def _parts(text: bytes) -> tuple[_KnownFields, dict[str, msgspec.Raw]]:
    return _decode_known.decode(text), _decode_fields.decode(text)


def _check(known: _KnownFields) -> None:
    # The name becomes a part of event ids, so check its characters.
    if not _STREAM_NAME.fullmatch(known.standalone_stream):
        raise ValueError("the name of the standalone GET stream must contain only letters and digits")
    if not all(is_request_id(decode_value(cancel.request_id)) for cancel in known.cancels):
        raise ValueError("the request id of a stored cancellation must be a string or an integer")


def initialize_params(state: SessionState) -> InitializeParams:
    """Return the parameters of the request ``initialize`` that opened the session. Raises `SessionStateUnreadable` if
    they are invalid."""
    return _decode(_decode_initialize_params, state)


def _decode_initialize_params(state: SessionState) -> InitializeParams:
    return structure_params(decode_value(state.opening), InitializeParams, REVISIONS[state.revision])


def _decode(decode: Callable[[D], T], data: D) -> T:
    try:
        return decode_stored("the data of a session", decode, data)
    except UnreadableRecord as error:
        raise SessionStateUnreadable(f"the stored data of the session is invalid: {error}") from None


Change: TypeAlias = Callable[[SessionState], SessionState]


def mark_initialized(state: SessionState) -> SessionState:
    """Return a copy of the session state that records that the client has sent ``notifications/initialized``."""
    return state if state.is_initialized else attrs.evolve(state, is_initialized=True)


def change_log_level(level: str) -> Change:
    """Return a function that sets the session's minimum log level to ``level``."""
    return lambda facts: facts if facts.log_level == level else attrs.evolve(facts, log_level=level)


def change_subscriptions(added: Iterable[str], removed: Iterable[str]) -> Change:
    """Return a function that changes a session's resource subscriptions: it adds the URIs ``added``, and removes the
    URIs ``removed``."""
    added, removed = tuple(added), frozenset(removed)

    def change(facts: SessionState) -> SessionState:
        after = dict.fromkeys(uri for uri in (*facts.subscriptions, *added) if uri not in removed)
        return attrs.evolve(facts, subscriptions=tuple(after))

    return change


def change_listener(holder: str) -> Change:
    """Return a function that records ``holder`` in the session state as the only writer of the standalone GET stream.

    This is the SSE stream that a client opens with GET.
    """
    return lambda facts: attrs.evolve(facts, listener=holder)


def add_cancel(mark: str, request_id: RequestId, reason: str | None) -> Change:
    """Return a function that adds the cancellation of a request to the session state.

    The replica that runs the request then sees the cancellation.
    """
    told = None if reason is None else reason[:_MAX_REASON].encode(errors="replace").decode()
    cancel = Cancel(mark, encode_value(request_id), told)

    def change(facts: SessionState) -> SessionState:
        if any(each.mark == mark for each in facts.cancels):
            return facts
        cancels, size = [cancel], _size(cancel)
        for each in reversed(facts.cancels):
            size += _size(each)
            if size > _MAX_CANCELS or len(cancels) == CANCELS_LIMIT:
                break
            cancels.append(each)
        return attrs.evolve(facts, cancels=tuple(reversed(cancels)))

    return change


def _size(cancel: Cancel) -> int:
    return len(cancel.mark) + len(cancel.request_id) + len(cancel.reason or "")
