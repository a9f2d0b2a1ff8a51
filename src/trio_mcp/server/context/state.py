"""CallerState: the values that a server keeps for one caller between requests, ``ctx.state``.

The state of a caller is one entry of a `SessionDirectory`: a JSON object, changed by compare-and-set.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import cached_property
from hashlib import sha256
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import msgspec
import trio

from ...classes import frozen
from ...jsonrpc.codec import decode_value, encode_value
from ...jsonrpc.errors import INVALID_REQUEST, CodedError
from ...runtime.limits import DEFAULT_LIMITS, Limits
from ...runtime.requests.host import RequestHost
from ...runtime.requests.scope import RequestScope
from ...stores.memory import TrioClock
from ...stores.memory_sessions import MemorySessionDirectory
from ...stores.sealing import BadSeal, KeyRing
from ...stores.shared import SessionDirectory
from ...stores.task_store import StoreFull, UnreadableRecord, new_mark
from .client_data import typed

T = TypeVar("T")

_VERSION_BYTES: Final = 9

_ANONYMOUS: Final = (
    "there is no state for a client that is anonymous and has no session; "
    'the server can keep state for those who know a secret handle: ctx.state.at(handle).set("key", value)'
)
_FORGOTTEN: Final = (
    "there is no state for this task, which runs once more: its client had no token, and is known no longer; "
    "ctx.task.checkpoint keeps a value for a further run"
)
_STATELESS: Final = "this server keeps nothing between requests; it needs a storage (shared=) to have state"

_Values: TypeAlias = dict[str, tuple[str, msgspec.Raw]]
"""The version and the JSON text of each value."""
_decoder: Final = msgspec.json.Decoder(_Values)


class StateValue(NamedTuple):
    """A value of `CallerState.read`, with its version."""

    value: Any
    """The value, JSON data; `None` where there is none."""
    version: str
    """The version, which no other value ever has, for ``expected`` of `CallerState.set`; empty where there is no
    value."""

    def as_(self, kind: type[T]) -> T:
        """Return the value as a ``kind``, of attrs, a dataclass, TypedDict or msgspec Struct for example. Raises
        `ValueError` for a value that does not fit."""
        return typed(self.value, kind)


class CallerState:
    """The values that a server keeps for one caller between requests, by key: ``ctx.state``.

    The caller is the principal of the token; without a token, the legacy session, the WebSocket, or the connection over
    stdio, TCP or a Unix socket; for a task, that of its first request. No caller sees the state of another. A modern
    HTTP client without a token is nobody in particular: each method raises `CodedError` (-32600) then. See `at`. A task
    that runs once more, of a client without a token, has no state: each method raises the same error, with `at`, too.

    Values are JSON data, or objects of attrs, dataclasses and msgspec. The state is in memory, and gone with the
    server, unless the server shares a storage (``shared=``). `Limits` bounds it: ``max_state_bytes``,
    ``max_state_keys``, ``max_server_states``, ``state_timeout``.

    All methods raise `OSError` if the storage fails.
    """

    def __init__(self, scope: RequestScope | None, handle: str = "", passive: HostState | None = None) -> None:
        self._scope = scope
        self._handle = handle
        self._passive = passive
        """Where the context of a test keeps the state."""

    def at(self, handle: str) -> CallerState:
        """Return another state of the caller, with its own values. Without a token and a session, the state belongs to
        all who know ``handle``: let the server make it, by `secrets.token_urlsafe` for example, and hand it to one
        client. Raises `ValueError` for an empty text."""
        if not handle:
            raise ValueError("a handle must not be empty")
        return CallerState(self._scope, handle, self._passive)

    async def get(self, key: str, default: Any = None) -> Any:
        """Return the value of ``key``, or ``default``."""
        found = await self.read(key)
        return found.value if found.version else default

    async def read(self, key: str) -> StateValue:
        """Return the value of ``key`` with its version, for `set`."""
        version, text = (await self._entry.read()).get(key, ("", b"null"))
        return StateValue(decode_value(bytes(text)), version)

    async def set(self, key: str, value: Any, *, expected: str | None = None) -> str | None:
        """Keep ``value`` under ``key``, and return its version.

        With ``expected``, the version of an earlier `read`, return `None`, with nothing changed, if the value was
        changed or deleted since; an empty text expects that there is no value.

        Where the server keeps `Limits.max_server_states` already, a new state takes the place of another, which is
        forgotten: one of this caller, if it has any, that was written once and never used; otherwise one of the caller
        that has the most, if it has two or more; otherwise any that was written once and never used.

        Raises `StoreFull`, with nothing changed, if there is no such state, or if the state would exceed another of the
        `Limits`; and `NotSerializable` for a value without a JSON form.
        """
        text, version = msgspec.Raw(encode_value(value)), secrets.token_urlsafe(_VERSION_BYTES)

        def change(values: _Values) -> bool:
            values[key] = version, text
            return True

        return version if await self._entry.change(key, expected, change) else None

    async def delete(self, key: str, *, expected: str | None = None) -> bool:
        """Forget the value of ``key``, and return whether there was one. ``expected``: see `set`."""
        return await self._entry.change(key, expected, lambda values: values.pop(key, None) is not None)

    @property
    def _entry(self) -> _Entry:
        if self._scope is not None:
            return _entry_of(self._scope, self._handle)
        return _Entry(self._passive or HostState(None), handle=self._handle)


def _entry_of(scope: RequestScope, handle: str) -> _Entry:
    """Return the state of the caller of a request. Raises `CodedError` where nothing tells this caller from others."""
    host = scope.runner.host
    state = _states.get(host)
    if state is None:
        state = _states[host] = HostState(host)
    owner = owner_of(scope)
    if owner is None and scope.exchange.forgot_client:
        # A handle that was one connection's would be everybody's.
        raise CodedError(INVALID_REQUEST, _FORGOTTEN)
    if owner is None and not handle:
        raise CodedError(INVALID_REQUEST, _ANONYMOUS)
    caller = scope.ticket.caller.whole.key
    name = owner or b"" if caller is None else repr(caller).encode(errors="backslashreplace")
    return _Entry(state, scope.runner.limits, owner or b"", handle, sha256(name).digest())


class HostState:
    """Where one running server keeps the state of its callers."""

    def __init__(self, host: RequestHost | None) -> None:
        replica = None if host is None else host.replica
        if replica is not None and replica.state is None:
            raise RuntimeError("the storage that this server shares keeps no state: its Replica has no state=")
        if host is not None and replica is None and host.stateless:
            raise RuntimeError(_STATELESS)
        memory = None if replica is None else replica.state
        self.directory: SessionDirectory = MemorySessionDirectory(TrioClock()) if memory is None else memory
        self._keys = None if host is None or replica is None else host.state_keys

    @cached_property
    def keys(self) -> KeyRing | None:
        """The keys that seal the state in a storage."""
        return None if self._keys is None else self._keys()


def owner_of(scope: RequestScope) -> bytes | None:
    """Return what tells the caller of a request from all others; `None` where nothing does."""
    exchange = scope.exchange
    peer = exchange.peer
    if peer.principal is not None:
        return b"principal " + peer.principal.to_json().encode()
    if peer.session_id is not None:
        return b"session " + peer.session_id.encode(errors="surrogatepass")
    if exchange.connection is None:
        return None
    return b"connection " + _connections.setdefault(exchange.connection, secrets.token_bytes(16))


_connections: Final = WeakKeyDictionary[trio.Event, bytes]()
_states: Final = WeakKeyDictionary[RequestHost, HostState]()


@frozen
class _Entry:
    """The state of one caller in a directory."""

    state: HostState
    limits: Limits = DEFAULT_LIMITS
    owner: bytes = b""
    handle: str = ""
    caller: bytes = b""
    """The party whose share of the directory the entry takes."""

    @property
    def _id(self) -> str:
        handle = self.handle.encode(errors="surrogatepass")
        return sha256(b"%d %b%b" % (len(self.owner), self.owner, handle)).hexdigest()

    @property
    def _idle(self) -> int:
        return max(1, round(min(self.limits.state_timeout, 10.0**11) * 1000))

    async def read(self) -> _Values:
        """Return the values of the caller."""
        await trio.lowlevel.checkpoint()
        stored = await self.state.directory.read(self._id, idle_ms=self._idle)
        return {} if stored is None else self._opened(stored.state)

    async def change(self, key: str, expected: str | None, change: Callable[[_Values], bool]) -> bool:
        """Apply ``change``, which returns whether it has changed anything, unless the value of ``key`` has another
        version than ``expected``. Return whether anything was changed."""
        directory, name = self.state.directory, self._id
        while True:  # each turn but the last means that another task has changed the state
            await trio.lowlevel.checkpoint()
            stored = await directory.read(name, idle_ms=self._idle)
            values = {} if stored is None else self._opened(stored.state)
            version = values[key][0] if key in values else ""
            if (expected is not None and expected != version) or not change(values):
                return False
            data, mark = self._sealed(values), new_mark()
            if stored is not None:
                if await directory.change(name, data, expected_mark=stored.mark, mark=mark, idle_ms=self._idle):
                    return True
                continue
            try:
                await directory.open(
                    name,
                    data,
                    caller=self.caller,
                    mark=mark,
                    idle_ms=self._idle,
                    limit=self.limits.max_server_states,
                )
            except ValueError:  # another task was quicker
                continue
            except StoreFull:
                raise StoreFull("the server keeps the state of as many callers as Limits.max_server_states") from None
            return True

    def _sealed(self, values: _Values) -> bytes:
        text = encode_value(values)
        if len(values) > self.limits.max_state_keys:
            raise StoreFull(f"the state of a caller has {self.limits.max_state_keys} values at most (max_state_keys)")
        if len(text) > self.limits.max_state_bytes:
            most = f"{self.limits.max_state_bytes:,} at most (Limits.max_state_bytes)"
            raise StoreFull(f"the state of the caller would have {len(text):,} bytes, and has {most}")
        keys = self.state.keys
        return text if keys is None else keys.seal(text, self._id.encode())

    def _opened(self, data: bytes) -> _Values:
        try:
            keys = self.state.keys
            return _decoder.decode(data if keys is None else keys.open(data, self._id.encode()))
        except (BadSeal, msgspec.MsgspecError):
            raise UnreadableRecord("the state of a caller was changed, or not written with a secret of ours") from None
