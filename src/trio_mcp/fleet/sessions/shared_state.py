"""SharedSessionState: reads the state of a legacy session from the shared storage, and writes the changes that one
replica makes.

The known state is at most `FRESH_SECONDS` old while requests arrive, and is read again after a notification that it has
changed. `SessionServices` is shared by all sessions of a replica.
"""

from __future__ import annotations

import hmac
import logging
import math
import secrets
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from itertools import count
from typing import Any, Final
from weakref import WeakKeyDictionary

import trio

from ...classes import define
from ...concurrency.fair_share import Caller
from ...concurrency.wakeups import ChangeSignal
from ...runtime.peer import PrincipalId
from ...server.server import RunningServer
from ...serving.http.responses import invalid, unavailable
from ...stores.record_codec import encoded
from ...stores.sealing import BadSeal
from ...stores.task_store import HintsLost, Uncertain, new_mark
from ...transports.http.application import Answer
from ..change_replicator import ChangeReplicator
from ..messenger import Messenger, SealedMessenger, logged_failure
from .state import Change, SessionState, SessionStateTooLong, decode_state, encode_state, initialize_params

logger = logging.getLogger("trio_mcp")

FRESH_SECONDS: Final = 5.0
"""Seconds for which the session state counts as current after it was read."""
_WRITE_ATTEMPTS: Final = 20
"""Maximum number of attempts to write, if other replicas write at the same time."""
_SEND_TIMEOUT: Final = 5.0
_UNUSED_LIFETIME: Final = 60.0
"""Seconds after which a session ends if its client never uses it."""
_REPLICA_ID: Final = 8
"""Number of characters of a replica's id. See `new_replica_id`."""
_MOST_DIGITS: Final = 18
_CALLER_BYTES: Final = 16
_POLL_INTERVAL: Final = 1.0
"""The maximum number of seconds between two reads of an SSE stream that another replica writes, if no notification
arrives."""


def unreachable(extra: bytes) -> Answer:
    """Return the response to a request that needs the shared storage, while the storage is unavailable."""
    return unavailable("the sessions of this server cannot be reached; try again later", extra)


def session_ended(extra: bytes) -> Answer:
    """Return the response to a request in a session that has ended."""
    return invalid(HTTPStatus.NOT_FOUND, "there is no such session: it has ended; send initialize", extra)


class SessionEnded(Exception):
    """The MCP session has ended, on this replica or on another one."""


class SessionServices:
    """The objects that all MCP sessions on a replica use, such as the messenger and the keys.

    Tasks of the sessions run in ``nursery``.

    Clients reconnect ``retry_interval`` seconds after a response broke. ``changes`` notifies the clients of this
    replica of changes on other replicas.
    """

    def __init__(
        self,
        running: RunningServer,
        messenger: Messenger,
        changes: ChangeReplicator,
        nursery: trio.Nursery,
        retry_interval: float,
    ) -> None:
        self.running = running
        self.messenger = messenger
        self.replica = messenger.replica
        self.changes = changes
        self.retry_interval = retry_interval
        self.nursery = nursery
        cipher = running.cipher
        # Encrypt only with secrets from the server's author: a secret that is stored beside the data protects nothing.
        has_secrets = cipher is running.server._state_cipher
        self.sealed_messenger = SealedMessenger(messenger, cipher if has_secrets else None)
        self.keys = cipher.keys_for(b"trio-mcp session events 2 ") if has_secrets else None
        """The keys that encrypt the events of sessions; `None` if the server has no secrets."""
        self._state_keys = cipher.keys_for(b"trio-mcp session facts 1 ") if has_secrets else None
        self._caller_secret = cipher.secret_for(b"trio-mcp callers 1 ")
        self._caller_keys = WeakKeyDictionary[Caller, bytes]()
        self._numbers = count(1)
        self._signals: dict[tuple[str, str], set[ChangeSignal]] = {}
        """The signals for responses that follow SSE streams, by session and stream."""

    # Ids and keys

    def new_id(self) -> str:
        """Return a new id for a server-to-client request.

        The id contains this replica's id, so that any replica can forward the client's response here.
        """
        return f"{self.replica.id}.{next(self._numbers)}"

    def owning_replica(self, value: object) -> str:
        """Return the id of the replica that made ``value``, a request id or progress token.

        Returns an empty string if this replica made ``value``, or if `new_id` on no replica made it.
        """
        if not isinstance(value, str):
            return ""
        replica, _, digits = value.rpartition(".")
        is_ours = len(replica) == _REPLICA_ID and digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS
        return replica if is_ours and replica != self.replica.id else ""

    def caller_key(self, caller: Caller) -> bytes:
        """Return the key of ``caller`` in the shared storage. Under this key, the storage counts the caller's sessions
        on all replicas."""
        caller = caller.whole
        key = self._caller_keys.get(caller)
        if key is None:
            match caller.key:
                case ("principal", PrincipalId() as principal):
                    text = b"principal " + principal.to_json().encode()
                case ("address", str(address)):
                    text = b"address " + address.encode()
                case ("process", str(machine), int(process)):
                    text = f"process {process} {machine}".encode(errors="surrogateescape")
                case _:  # a caller without a principal, address or process shares no limit with other callers
                    text = secrets.token_bytes(_CALLER_BYTES)
            key = self._caller_keys[caller] = hmac.digest(self._caller_secret, text, "sha256")
        return key

    # Changes of streams

    def watch_stream(self, session_id: str, stream: str) -> ChangeSignal:
        """Create a signal that is set whenever any replica changes the SSE stream. `unwatch_stream` removes the
        signal."""
        signal = ChangeSignal(_POLL_INTERVAL)
        self._signals.setdefault((session_id, stream), set()).add(signal)
        return signal

    def unwatch_stream(self, session_id: str, stream: str, signal: ChangeSignal) -> None:
        """Remove ``signal``, which `watch_stream` has created for the SSE stream."""
        signals = self._signals.get((session_id, stream), set())
        signals.discard(signal)
        if not signals:
            self._signals.pop((session_id, stream), None)

    async def notify_watchers(self) -> None:
        """Receive notifications about changed SSE streams until cancelled. For each changed stream, set the signals
        that `watch_stream` has created for it."""
        async with self.replica.events.watch() as hints:
            async for hint in hints:
                found = [*self._signals.values()] if isinstance(hint, HintsLost) else [self._signals.get(hint, ())]
                for signals in found:
                    for signal in signals:
                        signal.notify()

    # Messages and stored state

    def send(self, replica: str, kind: str, content: tuple[object, ...]) -> Awaitable[bytes]:
        """Send ``content`` to another replica, to its handler for messages of ``kind``. See `Messenger.send`."""
        return self.sealed_messenger.send(replica, kind, content, patience=_SEND_TIMEOUT)

    def seal_state(self, session_id: str, text: bytes) -> bytes:
        """Return the encoded session state ``text`` in the form in which it is stored. If the server is configured with
        secrets, the stored form is encrypted for this session."""
        return text if self._state_keys is None else self._state_keys.seal(text, encoded(session_id))

    def read_state(self, session_id: str, stored: bytes) -> SessionState | None:
        """Return the decoded session state ``stored``. Return `None` if this replica's secrets can't decrypt it.

        The client then has to open another session. Raises `SessionStateUnreadable`.
        """
        if self._state_keys is None:
            return decode_state(stored)
        try:
            return decode_state(self._state_keys.open(stored, encoded(session_id)))
        except BadSeal:
            logger.warning(
                "the data of a session was modified, or encrypted with a secret that this replica doesn't have"
            )
            return None

    def start_soon(self, function: Callable[..., Awaitable[None]], *args: Any) -> None:
        """Run ``function`` in a new task. If the function raises an exception, log it.

        Such an exception is a bug, and must affect only one request.
        """

        async def run() -> None:
            try:
                await function(*args)
            except Exception:
                logger.exception("a part of an HTTP request failed")

        self.nursery.start_soon(run)


@define(eq=False)
class _QueuedChange:
    """A change of the session state that waits to be written to the shared storage."""

    change: Change
    is_over: bool = False
    error: Exception | None = None


class SharedSessionState:
    """Reads the state of the MCP session ``session_id`` from the shared storage, and writes changes of the state.

    When the known state changes, ``on_changed`` is called with the state known before, or `None` the first time. When
    the session has ended, ``on_ended`` is called with the reason.
    """

    def __init__(
        self,
        services: SessionServices,
        session_id: str,
        state: SessionState,
        on_changed: Callable[[SessionState | None], None],
        on_ended: Callable[[str], None],
    ) -> None:
        limits = services.running.limits
        self.current = state
        """The session state that was last read or written."""
        self._sessions = services.replica.sessions
        self._services = services
        self.id = session_id
        self._on_changed = on_changed
        self._on_ended = on_ended
        self._timeout = limits.session_timeout
        self._limit = limits.max_sessions
        self.idle_ms = to_milliseconds(limits.session_timeout)
        self._mark: bytes | None = None
        self.read_at = -math.inf
        """The time at which the session state was last read or written."""
        self.is_hinted = False
        """True if the state may have changed since the last read began."""
        self._own_hints = 0
        """Number of this replica's own writes whose notifications haven't arrived yet."""
        self._own_hints_until = -math.inf
        """The time after which the missing notifications of own writes count as lost."""
        self._is_reading = False
        self._lock = trio.Lock()
        """Held while the state is read or written, so that an older state never replaces a newer one."""
        self._queued: list[_QueuedChange] = []
        """The changes that wait to be written, in order. The caller of each change waits as well."""

    @property
    def is_open(self) -> bool:
        """True once the session is open, and its state is in the shared storage."""
        return self._mark is not None

    @property
    def is_fresh(self) -> bool:
        """True while the last read of the session state is recent enough to serve a request without another read."""
        return not self.is_hinted and trio.current_time() - self.read_at < min(FRESH_SECONDS, self._timeout / 4)

    # Reading

    def read_soon(self) -> None:
        """Start a task that reads the session state. Do nothing if such a task was started and hasn't begun to read."""
        if not self._is_reading:
            self._is_reading = True
            self._services.start_soon(self._read_now)

    def is_own_hint(self) -> bool:
        """Return whether a write by this replica can be the cause of a change notification for this session.

        If so, the notification can be ignored.

        If another replica has written meanwhile, another notification follows.
        """
        if trio.current_time() > self._own_hints_until:
            self._own_hints = 0
        if not self._own_hints:
            return False
        self._own_hints -= 1
        return True

    def forget_hints(self) -> None:
        """Stop waiting for the notifications that this replica's own writes cause, because some notifications were
        lost.

        The replica ignores one notification for each own write. So it could otherwise ignore the notification of
        another replica's write.
        """
        self._own_hints = 0

    async def _read_now(self) -> None:
        self._is_reading = False
        with logged_failure("a session could not be read"):  # the session is read again later
            await self.read()

    async def read(self) -> bool:
        """Read the session state from the shared storage.

        This extends the session's lifetime. Returns false if the session has ended. Raises `OSError` if the storage is
        unavailable.
        """
        async with self._lock:
            return await self._read()

    async def _read(self) -> bool:
        self.is_hinted = False
        try:
            stored = await self._sessions.read(self.id, idle_ms=self.idle_ms)
            facts = None if stored is None else self._services.read_state(self.id, stored.state)
        except BaseException:
            self.is_hinted = True
            raise
        if stored is None or facts is None:
            self._on_ended("the session has ended")
            return False
        self.adopt(facts, stored.mark)
        return True

    def adopt(self, state: SessionState, mark: bytes) -> None:
        """Use ``state``, which was just read or written, as the current state of the session.

        ``mark`` identifies this version of the state.
        """
        before = None if self._mark is None else self.current
        if before is None:
            initialize_params(state)  # check the stored parameters: this raises an error if they are invalid
        self.current, self._mark, self.read_at = state, mark, trio.current_time()
        self._on_changed(before)

    async def check_exists(self) -> None:
        """If the session has ended, close it on this replica. Unlike `read`, this doesn't extend the session's
        lifetime."""
        with logged_failure("could not check whether a session exists"):
            if not await self._sessions.exists(self.id):
                self._on_ended(f"the client has not come back for {self._timeout:g} seconds")

    # Writing

    async def open(self, state: SessionState, caller: Caller) -> str | None:
        """Open a new session of ``caller`` for all replicas.

        If another session was evicted to make room, return its id.

        Until its client uses it, the session is evicted before others. See `SessionDirectory.open`. Raises `StoreFull`,
        `SessionStateTooLong`, and `OSError` if the storage is unavailable.
        """
        text, mark, name = encode_state(state, is_new=True), new_mark(), self._services.caller_key(caller)
        idle, text = min(self.idle_ms, to_milliseconds(_UNUSED_LIFETIME)), self._services.seal_state(self.id, text)
        try:
            ended = await self._sessions.open(self.id, text, caller=name, mark=mark, idle_ms=idle, limit=self._limit)
        except Uncertain:
            await self._sessions.delete(self.id)
            raise
        self.adopt(state, mark)
        return ended

    async def change(self, change: Change) -> None:
        """Apply ``change`` to the session state, and write the changed state to the shared storage.

        Changes that arrive during a write are written together afterwards. So a client that sends many changes costs
        the storage no more than one that sends few, and doesn't delay other clients.

        Raises:
            SessionEnded: The session has ended.
            SessionStateTooLong: The state would exceed its maximum size.
            OSError: The storage is unavailable, or other replicas write all the time. The change may be stored.
        """
        waiting = _QueuedChange(change)
        self._queued.append(waiting)
        try:
            async with self._lock:
                if not waiting.is_over:
                    await self._write([each for each in self._queued if not each.is_over])
        finally:
            self._queued.remove(waiting)
        if waiting.error is not None:
            # Raise a new exception for each waiting caller, because several callers may wait for one write.
            raise type(waiting.error)(*waiting.error.args)

    async def _write(self, changes: list[_QueuedChange]) -> None:
        error: Exception | None = None
        try:
            await self._write_all(changes)
        except (OSError, SessionEnded) as failed:
            error = failed
        for each in changes:
            each.is_over, each.error = True, each.error or error

    async def _write_all(self, changes: list[_QueuedChange]) -> None:
        for _ in range(_WRITE_ATTEMPTS):
            facts, text, mark = self.current, b"", new_mark()
            for each in changes:
                following = facts if each.error is not None else each.change(facts)
                if following == facts:
                    continue
                try:
                    text = encode_state(following)
                except SessionStateTooLong as error:
                    each.error = error
                else:
                    facts = following
            if facts == self.current:
                return
            # Count the expected notification before the write, because it may arrive before the write returns.
            self._own_hints += 1
            self._own_hints_until = trio.current_time() + FRESH_SECONDS
            is_done = False
            try:
                was, sealed = self._mark or b"", self._services.seal_state(self.id, text)
                is_done = await self._sessions.change(
                    self.id, sealed, expected_mark=was, mark=mark, idle_ms=self.idle_ms
                )
            except Uncertain:
                pass  # the next read of the session shows whether the change was stored
            finally:
                if not is_done:
                    self.is_own_hint()
            if is_done:
                self.adopt(facts, mark)
                return
            if not await self._read():
                raise SessionEnded
        raise Uncertain(
            f"could not store a change of the session: other replicas changed it during {_WRITE_ATTEMPTS} attempts"
        )

    async def delete(self) -> None:
        """End the session for all replicas. Raises `OSError` if the storage is unavailable."""
        await self._sessions.delete(self.id)
        self._on_ended("the client has ended the session")


def to_milliseconds(seconds: float) -> int:
    """Convert a duration from seconds to milliseconds, the unit of the shared storage."""
    return max(1, min(round(seconds * 1000), 10**12))
