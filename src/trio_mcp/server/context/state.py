"""`CallerState`: values that a server keeps for one caller between requests, ``ctx.state``.

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
from ...stores.memory import MemorySessionDirectory, TrioClock
from ...stores.sealing import BadSeal, KeyRing
from ...stores.shared import SessionDirectory
from ...stores.task_store import StoreFull, UnreadableRecord, new_mark
from .client_data import typed
from .worker_calls import WorkerAdapter, blocking

T = TypeVar("T")

_VERSION_BYTES: Final = 9

_ANONYMOUS: Final = (
    "there is no state for a client without a token and a session; "
    'the server can keep state under a secret handle: ctx.state.at(handle).set("key", value)'
)
_FORGOTTEN: Final = (
    "there is no state for this task, which runs again: its client had no token, so it is unknown now; "
    "use ctx.task.checkpoint to keep a value for a further run"
)
_STATELESS: Final = "this server keeps nothing between requests; it needs a storage (shared=) to have state"

_Values: TypeAlias = dict[str, tuple[str, msgspec.Raw]]
"""The values of one caller: the version and the JSON text of each value, by key."""
_decoder: Final = msgspec.json.Decoder(_Values)


class StateValue(NamedTuple):
    """A value that `CallerState.read` returned, and its version."""

    value: Any
    """The value as JSON data. `None` if the key has no value."""
    version: str
    """The version of the value. Pass it as ``expected`` to `CallerState.set`. A version is never reused. Empty if the
    key has no value."""

    def as_(self, kind: type[T]) -> T:
        """Return the value as an instance of ``kind``, for example an attrs class, dataclass, TypedDict or msgspec
        Struct.

        Raises `ValueError` if the value doesn't fit.
        """
        return typed(self.value, kind)


class CallerState:
    """The state of one caller, ``ctx.state``: values by key, which the server keeps between requests.

    Callers never see each other's state. A caller is identified by:

    - the principal of its token;
    - without a token: the legacy session, the WebSocket, or the connection over stdio, TCP or a Unix socket;
    - in a task: the caller of the task's first request.

    A modern HTTP client without a token cannot be identified: each method raises `CodedError` (-32600), except on a
    state from `at`. If a task runs again, and its client had no token, each method raises the same error, even on a
    state from `at`.

    Values are JSON data, or attrs objects, dataclasses and msgspec Structs. The state is kept in memory and lost with
    the server, unless the server has a shared storage (``shared=``). It is limited by ``max_state_bytes``,
    ``max_state_keys``, ``max_server_states`` and ``state_timeout`` in `Limits`.

    All methods raise `OSError` if the storage fails.
    """

    def __init__(self, scope: RequestScope | None, handle: str = "", passive: HostState | None = None) -> None:
        self._scope = scope
        self._handle = handle
        self._passive = passive
        """Storage of the values in a passive context, which tests create."""

    def at(self, handle: str) -> CallerState:
        """Return a separate state of the same caller, named ``handle``. It shares no values with this state.

        For a client without a token and session, the state belongs to every client that has ``handle``. So let the
        server generate the handle, for example with `secrets.token_urlsafe`, and send it to one client only. Raises
        `ValueError` for an empty string.
        """
        if not handle:
            raise ValueError("the argument of ctx.state.at() must not be empty: pass a text that names the other state")
        return CallerState(self._scope, handle, self._passive)

    async def get(self, key: str, default: Any = None) -> Any:
        """Return the caller's value of ``key``, or ``default`` if the key has no value."""
        found = await self.read(key)
        return found.value if found.version else default

    async def read(self, key: str) -> StateValue:
        """Return the caller's value of ``key`` with its version, which you can pass to `set`."""
        version, text = (await self._entry.read()).get(key, ("", b"null"))
        return StateValue(decode_value(bytes(text)), version)

    async def set(self, key: str, value: Any, *, expected: str | None = None) -> str | None:
        """Store ``value`` for the caller under ``key``, and return the new version.

        For a compare-and-set, pass the version of an earlier `read` as ``expected``. If the value has changed or was
        deleted since, nothing changes, and the method returns `None`. An empty string expects that the key has no
        value.

        If the server already keeps `Limits.max_server_states` states, a new state replaces another, which is lost:

        - if this caller has states: one of them that was written once and never used;
        - otherwise, if a caller has at least two states: one of the caller with the most;
        - otherwise, any state that was written once and never used.

        Raises:
            StoreFull: With nothing changed, if no state can be replaced, or this state would exceed another of the
                `Limits`.
            NotSerializable: With nothing changed, if the value has no JSON form.
        """
        text, version = msgspec.Raw(encode_value(value)), secrets.token_urlsafe(_VERSION_BYTES)

        def change(values: _Values) -> bool:
            values[key] = version, text
            return True

        return version if await self._entry.change(key, expected, change) else None

    async def delete(self, key: str, *, expected: str | None = None) -> bool:
        """Delete the caller's value of ``key``, and return whether the key had a value. See `set` for ``expected``."""
        return await self._entry.change(key, expected, lambda values: values.pop(key, None) is not None)

    @property
    def _entry(self) -> _Entry:
        if self._scope is not None:
            return _entry_of(self._scope, self._handle)
        return _Entry(self._passive or HostState(None), handle=self._handle)


class WorkerState(WorkerAdapter[CallerState]):
    """`CallerState` for worker threads. Methods that are async in `CallerState` block in this class."""

    def at(self, handle: str) -> WorkerState:
        """Return another state of the same caller, named ``handle``. See `CallerState.at`."""
        return WorkerState(self._original.at(handle), self._scope)

    get = blocking(CallerState.get)
    read = blocking(CallerState.read)
    set = blocking(CallerState.set)
    delete = blocking(CallerState.delete)


def _entry_of(scope: RequestScope, handle: str) -> _Entry:
    """Return the entry with the stored state of a request's caller. Raises `CodedError` if the caller cannot be
    identified."""
    host = scope.runner.host
    state = _states.get(host)
    if state is None:
        state = _states[host] = HostState(host)
    owner = owner_of(scope)
    if owner is None and scope.exchange.forgot_client:
        # A task that runs again can't use state: its client is unknown, so all clients would share the state.
        raise CodedError(INVALID_REQUEST, _FORGOTTEN)
    if owner is None and not handle:
        raise CodedError(INVALID_REQUEST, _ANONYMOUS)
    caller = scope.ticket.caller.whole.key
    name = owner or b"" if caller is None else repr(caller).encode(errors="backslashreplace")
    return _Entry(state, scope.runner.limits, owner or b"", handle, sha256(name).digest())


class HostState:
    """The storage in which a running server keeps values for each of its callers between requests."""

    def __init__(self, host: RequestHost | None) -> None:
        replica = None if host is None else host.replica
        if replica is not None and replica.state is None:
            raise RuntimeError(
                "the shared storage of this server cannot store ctx.state: pass state= when you create its Replica"
            )
        if host is not None and replica is None and host.stateless:
            raise RuntimeError(_STATELESS)
        memory = None if replica is None else replica.state
        self.directory: SessionDirectory = MemorySessionDirectory(TrioClock()) if memory is None else memory
        self._keys = None if host is None or replica is None else host.state_keys

    @cached_property
    def keys(self) -> KeyRing | None:
        """The keys that encrypt the callers' state before it is stored."""
        return None if self._keys is None else self._keys()


def owner_of(scope: RequestScope) -> bytes | None:
    """Return a key that identifies the caller of a request. Return `None` if the caller cannot be identified."""
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
    """The stored values of one caller. They are one entry in the server's storage."""

    state: HostState
    limits: Limits = DEFAULT_LIMITS
    owner: bytes = b""
    handle: str = ""
    caller: bytes = b""
    """The caller that the entry counts for, when the directory's space is divided among callers."""

    @property
    def _id(self) -> str:
        handle = self.handle.encode(errors="surrogatepass")
        return sha256(b"%d %b%b" % (len(self.owner), self.owner, handle)).hexdigest()

    @property
    def _idle(self) -> int:
        return max(1, round(min(self.limits.state_timeout, 10.0**11) * 1000))

    async def read(self) -> _Values:
        """Return all stored values of the caller, by key."""
        await trio.lowlevel.checkpoint()
        stored = await self.state.directory.read(self._id, idle_ms=self._idle)
        return {} if stored is None else self._opened(stored.state)

    async def change(self, key: str, expected: str | None, change: Callable[[_Values], bool]) -> bool:
        """Change the caller's stored values: call the function ``change`` with a dict of the values.

        ``change`` returns whether it has changed any value. Do nothing if ``expected`` is given and isn't the version
        of ``key``. Return whether anything was changed.
        """
        directory, name = self.state.directory, self._id
        while True:  # try again if another task has changed the state meanwhile
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
                    name, data, caller=self.caller, mark=mark, idle_ms=self._idle, limit=self.limits.max_server_states
                )
            except ValueError:  # another task created the entry first
                continue
            except StoreFull:
                raise StoreFull("the server already stores too many caller states (Limits.max_server_states)") from None
            return True

    def _sealed(self, values: _Values) -> bytes:
        text = encode_value(values)
        if len(values) > self.limits.max_state_keys:
            raise StoreFull(f"a caller may store at most {self.limits.max_state_keys} values (Limits.max_state_keys)")
        if len(text) > self.limits.max_state_bytes:
            most = f"{self.limits.max_state_bytes:,} bytes (Limits.max_state_bytes)"
            raise StoreFull(f"a caller's state may have at most {most}, but would have {len(text):,}")
        keys = self.state.keys
        return text if keys is None else keys.seal(text, self._id.encode())

    def _opened(self, data: bytes) -> _Values:
        try:
            keys = self.state.keys
            return _decoder.decode(data if keys is None else keys.open(data, self._id.encode()))
        except (BadSeal, msgspec.MsgspecError):
            raise UnreadableRecord("a caller's state was modified, or encrypted with an unknown secret") from None
