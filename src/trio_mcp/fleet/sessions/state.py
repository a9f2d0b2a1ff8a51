"""SessionState are all that the replicas of a server have to know of a legacy session, in a form that is kept.

Changes of facts are functions from facts to facts. Each change, applied to its own result, changes nothing: a write
with an unknown outcome may be made again.
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
"""Bytes of the facts of a session, in the form that is kept."""
CANCELS_LIMIT: Final = 100
"""Number of the cancels that are kept, the newest ones."""
_MAX_CANCELS: Final = 8 * 1024
"""Bytes of all cancels that are kept, about."""
_MAX_REASON: Final = 200
MAX_CANCELLED_ID: Final = 1000
"""Bytes of the longest id, as JSON text, of a request that is cancelled through another replica."""
_FORM: Final = 1
"""Version of the form. A field that a replica does not know is kept, and needs no other version; each change that older
replicas would misread does."""


class SessionStateUnreadable(UnreadableRecord):
    """The facts of a session have a form or a revision of a later version, which this replica doesn't know, or
    something other than a replica has changed them."""


class Cancel(msgspec.Struct, frozen=True, array_like=True):
    """The cancel of a request, wherever the request runs."""

    mark: str
    """Text that no other cancel has: the id of the replica that took the cancel, a dot and a number."""
    request_id: bytes
    """The id of the request, as JSON text."""
    reason: str | None


class _KnownFields(msgspec.Struct, frozen=True, rename={"standalone_stream": "own_stream", "cursor": "place"}):
    """The form that is kept: the fields of `SessionState`, some under other names."""

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
    """A legacy session, as known to all replicas."""

    opening: bytes = attrs.field(repr=False)
    """The parameters of ``initialize``, as JSON text."""
    revision: str
    """Name of the revision that was settled."""
    principal: str
    """The principal to whom the session belongs, as JSON text; empty where nobody knows principals."""
    standalone_stream: str
    """Name of the stream that clients ask for with GET."""
    log_level: str = DEFAULT_LOG_LEVEL.value
    is_initialized: bool = False
    """True once ``notifications/initialized`` has come."""
    listener: str = ""
    """Holder of the session's own stream, who alone makes lines of changes; empty before the first."""
    subscriptions: tuple[str, ...] = ()
    """URIs of the resources whose changes the client is told."""
    cancels: tuple[Cancel, ...] = ()
    """The newest cancels for which their takers had no request, oldest first."""
    cursor: str = ""
    """Place in the log of changes at which the session was opened; empty where nobody knew."""
    unknown_fields: tuple[tuple[str, bytes], ...] = attrs.field(default=(), repr=False)
    """Fields that a later version writes, each with its packed value."""


_, *_FIELDS = _KnownFields.__struct_fields__
_KNOWN: Final = frozenset(_KnownFields.__struct_encode_fields__)
_decode_known: Final = msgspec.msgpack.Decoder(_KnownFields)
_decode_fields: Final = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])


def encode_state(state: SessionState) -> bytes:
    """Return ``state`` in the form that is kept."""
    known = _KnownFields(_FORM, *(getattr(state, name) for name in _FIELDS))
    unknown = {name: msgspec.Raw(value) for name, value in state.unknown_fields}
    return msgspec.msgpack.encode({**unknown, **_decode_fields.decode(msgspec.msgpack.encode(known))})


def decode_state(text: bytes) -> SessionState:
    """Return the facts that `encode_state` has written, with the fields of later versions. Raises
    `SessionStateUnreadable`."""
    known, fields = _decode(_parts, text)
    if known.form != _FORM:
        raise SessionStateUnreadable(
            f"the facts of a session have the form {known.form}, which this replica does not know"
        )
    if known.revision not in REVISIONS:
        raise SessionStateUnreadable("a session has a revision of the protocol that this replica does not know")
    _decode(_check, known)
    unknown = tuple((name, bytes(value)) for name, value in fields.items() if name not in _KNOWN)
    return SessionState(**{name: getattr(known, name) for name in _FIELDS}, unknown_fields=unknown)


def _parts(text: bytes) -> tuple[_KnownFields, dict[str, msgspec.Raw]]:
    return _decode_known.decode(text), _decode_fields.decode(text)


def _check(known: _KnownFields) -> None:
    if not _STREAM_NAME.fullmatch(known.standalone_stream):  # the name is part of the ids of events
        raise ValueError("a stream name must have only letters and digits")
    if not all(is_request_id(decode_value(cancel.request_id)) for cancel in known.cancels):
        raise ValueError("a cancel must name a request")


def initialize_params(state: SessionState) -> InitializeParams:
    """Return the parameters of ``initialize``. Raises `SessionStateUnreadable`."""
    return _decode(_decode_initialize_params, state)


def _decode_initialize_params(state: SessionState) -> InitializeParams:
    return structure_params(decode_value(state.opening), InitializeParams, REVISIONS[state.revision])


def _decode(decode: Callable[[D], T], data: D) -> T:
    try:
        return decode_stored("the facts of a session", decode, data)
    except UnreadableRecord as error:
        raise SessionStateUnreadable(f"the data of a session is invalid: {error}") from None


Change: TypeAlias = Callable[[SessionState], SessionState]


def mark_initialized(state: SessionState) -> SessionState:
    """Note that ``notifications/initialized`` has come."""
    return state if state.is_initialized else attrs.evolve(state, is_initialized=True)


def change_log_level(level: str) -> Change:
    """Return the change by which logs are sent from ``level`` on."""
    return lambda facts: facts if facts.log_level == level else attrs.evolve(facts, log_level=level)


def change_subscriptions(added: Iterable[str], removed: Iterable[str]) -> Change:
    """Return the change by which the client is subscribed to ``added`` resources, and to ``removed`` not."""
    added, removed = tuple(added), frozenset(removed)

    def change(facts: SessionState) -> SessionState:
        after = dict.fromkeys(uri for uri in (*facts.subscriptions, *added) if uri not in removed)
        return attrs.evolve(facts, subscriptions=tuple(after))

    return change


def change_listener(holder: str) -> Change:
    """Return the change by which ``holder`` has the session's own stream."""
    return lambda facts: attrs.evolve(facts, listener=holder)


def add_cancel(mark: str, request_id: RequestId, reason: str | None) -> Change:
    """Return the change by which a request is cancelled, on any replica."""
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
