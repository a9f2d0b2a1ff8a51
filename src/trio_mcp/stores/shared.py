"""Protocols for the storage that the replicas of one server share: one protocol for each kind of data.

A *replica* is one running server process. `SharedStorage` is a storage that several replicas use; `Replica` is one
replica's view of it while the replica runs. Implementations are `MemoryStorage`, `SQLiteStorage` and `RedisStorage`.

The protocols follow the rules of `TaskStore`. Durations are in milliseconds, at least 1, and the storage has one clock.
Ids, names, holders and things are arbitrary strings. An empty string means that there is no holder. A call ends in one
of three ways:

- It **returns**: the whole change is stored, as durably as the storage can.
- It raises `StoreDown`: nothing has changed, or will change.
- It raises `Uncertain`: the change may have happened, or may happen later.

`StoreFull` and `ValueError` mean that nothing has changed. If a call is cancelled before it is sent, nothing happens. A
call that was sent is completed first, within the storage's time limit.

Change notifications (hints) are best-effort: they may arrive late, twice or not at all, so readers must also poll.
`HINTS_LOST` means that notifications may have been lost.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

import attrs

from ..classes import frozen
from ..concurrency.contexts import asynccontextmanager
from .task_store import HintQueues, HintsLost, TaskStore

T = TypeVar("T")

_ID_BYTES: Final = 6

SECRET_BYTES: Final = 32
"""Length of `Replica.secret` in bytes."""
FINISHED_STREAMS_LIMIT: Final = 1000
"""Number of finished streams of a session that are kept."""
CHANGES_LIMIT: Final = 10_000
"""Maximum number of things that a change log can track."""
MAX_MESSAGE_BYTES: Final = 64 * 2**20
"""Maximum size in bytes of a message between replicas."""


def new_replica_id() -> str:
    """Return an id for a new replica.

    The id has eight characters, is never used twice, and reveals nothing to clients.
    """
    return secrets.token_urlsafe(_ID_BYTES)


@frozen
class StoredSession:
    """A session of a legacy protocol revision, as it is stored for all replicas."""

    state: bytes = attrs.field(repr=False)
    """The data that replicas need about the session, in the replicas' own encoding."""
    mark: bytes
    """The mark of the last write to the session. No two writes have the same mark."""


class SessionDirectory(Protocol):
    """Stores sessions of legacy protocol revisions, so that every replica can serve them.

    A session is changed only if it hasn't changed since it was read (compare-and-set).
    """

    async def open(
        self, session_id: str, state: bytes, *, caller: bytes, mark: bytes, idle_ms: int, limit: int
    ) -> str | None:
        """Store a new session. The bytes ``caller`` identify the caller that owns the session.

        The session expires when it is neither read nor changed for ``idle_ms``. Raises `ValueError` if a session with
        this id exists, even if the directory is full.

        All callers together have at most ``limit`` sessions. One caller gets at most half of the sessions that other
        callers leave free. Beyond that, another session is evicted for the new one, and its id is returned. A session
        that was never read or changed is evicted first, then the session with the least time left. The candidates are:

        - the caller's own sessions that were never read or changed, if the caller has any session;
        - otherwise the sessions of the caller that has the most, if it has two or more;
        - otherwise all sessions that were never read or changed.

        Raises `StoreFull`, with nothing changed, if there is no candidate, or if there are already more than ``limit``
        sessions. Sessions that have ended don't count.
        """
        ...

    async def read(self, session_id: str, *, idle_ms: int) -> StoredSession | None:
        """Return a session, and restart its idle timeout of ``idle_ms`` milliseconds. Returns `None` if the session
        doesn't exist.

        ``session_id`` may be any string.
        """
        ...

    async def exists(self, session_id: str) -> bool:
        """Return whether a session with this id exists. Unlike `read`, this call doesn't extend the session's lifetime.

        The id may be any string.
        """
        ...

    async def change(self, session_id: str, state: bytes, *, expected_mark: bytes, mark: bytes, idle_ms: int) -> bool:
        """Replace a session's data with ``state``, unless the stored session has changed since it was read.

        A mark identifies each version of a session: ``expected_mark`` is the mark that was read, and ``mark`` is the
        new one.

        If the session has another mark, or has ended, change nothing and return false.
        """
        ...

    async def delete(self, session_id: str) -> bool:
        """Delete the session. Return true if the session existed."""
        ...

    def watch(self) -> AbstractAsyncContextManager[AsyncIterator[str | HintsLost]]:
        """Open a stream with the ids of all sessions that any replica changes or deletes from now on.

        Expired sessions aren't reported. The stream never ends or raises: see `Hint` and `TaskStore.watch`.
        """
        ...


@frozen
class StoredStream:
    """A stream of server-sent events (SSE) in a legacy session, as it is stored for all replicas."""

    name: str
    """Name of the stream, which is unique in the session."""
    holder: str
    """The only holder that may append events. `EventLog.take_over` sets another holder. Empty after
    `EventLog.finish_dead`, when no holder may append."""
    request_id: bytes
    """JSON text of the id of the request whose response is this stream. Empty for the session's stream outside of
    requests."""
    last: int
    """Number of the last event. 0 if the stream has no event yet."""
    dropped: int
    """Number of the last event that was dropped. 0 if no event was dropped."""
    note: bytes
    """The note that was last set by an append. Empty if no append set a note."""
    is_finished: bool
    """True if no more events will follow in the stream."""


@frozen
class StoredEvents:
    """The stored events of an SSE stream that follow a given event number, in order.

    ``first`` is the number of the first of these events.

    If events were dropped, ``first`` is higher than the next number.
    """

    stream: StoredStream
    """The stream of the events, as stored."""
    first: int
    """Number of the first event in ``lines``."""
    lines: Sequence[bytes] = attrs.field(repr=False)
    """The events as lines, in order."""


class EventLog(Protocol):
    """Stores the server-sent events (SSE) of all legacy sessions, so that clients can reconnect to any replica.

    At most ``limit`` bytes of events are kept for a session. Beyond that, its oldest events are dropped, whatever their
    stream; the newest event of each stream is dropped last. A finished stream is deleted ``retention_ms`` after its
    end, or when 1,000 other streams have finished after it.

    A session's streams are deleted ``retention_ms`` after its last use: an `open`, `take_over`, `append`, `finish_dead`
    or `read_after` that returned something other than false or `None`. After that, event numbers start again at 1.
    """

    async def open(self, session_id: str, stream: str, *, holder: str, request_id: bytes, retention_ms: int) -> None:
        """Create an SSE stream. Only ``holder`` may append events to it.

        Raises `ValueError` if a stream with this name exists, unless it is equal to the one that this call would
        create: so a call that ended with `Uncertain` can be repeated.
        """
        ...

    async def take_over(self, session_id: str, stream: str, *, holder: str, retention_ms: int) -> StoredStream:
        """Make ``holder`` the only writer that may append events to the SSE stream, and return the stream.

        If it doesn't exist, create it with an empty ``request_id``. If it is finished, return it unchanged.
        """
        ...

    async def append(
        self,
        session_id: str,
        stream: str,
        *,
        holder: str,
        first: int,
        lines: Sequence[bytes],
        limit: int,
        retention_ms: int,
        note: bytes | None = None,
        finish: bool = False,
    ) -> bool:
        """Append ``lines`` to an SSE stream as events.

        They get numbers from ``first`` on. Also set the stream's ``note`` unless it is `None`. With ``finish``, no more
        events can follow. Without lines, ``first`` is the number of the next event.

        Returns false, with nothing changed, if the stream has another holder, is finished or doesn't exist. Otherwise
        raises `ValueError` if ``first`` is too high, so that events would be missing.

        A call that ended with `Uncertain` can be repeated:

        - Lines whose numbers are already stored are ignored.
        - If later numbers are already stored, the call changes nothing, not even the note, and returns true.
        - The same applies to a call with ``finish`` if the same holder has already finished the stream with that last
          number.
        """
        ...

    async def finish_dead(
        self, session_id: str, stream: str, *, dead_holder: str, line: bytes, limit: int, retention_ms: int
    ) -> bool:
        """Append ``line`` to an SSE stream as its last event, because the replica that wrote the stream is dead.

        Only an unfinished stream of the holder ``dead_holder`` is finished. Afterwards the stream has no holder.

        Returns whether this call has finished it: if several replicas try, only one succeeds.
        """
        ...

    async def read_after(self, session_id: str, stream: str, number: int, *, retention_ms: int) -> StoredEvents | None:
        """Return an SSE stream, and its stored events that follow the event number ``number``.

        Returns `None` if the stream doesn't exist.

        After a number beyond the last event, there are no events. Numbers are less than 10**18.
        """
        ...

    async def delete(self, session_id: str) -> None:
        """Delete all SSE streams of a session."""
        ...

    def watch(self) -> AbstractAsyncContextManager[AsyncIterator[tuple[str, str] | HintsLost]]:
        """Open a stream of notifications. From now on, it reports each SSE stream that any replica appends to, takes
        over or finishes.

        Deletions aren't reported.
        """
        ...


class WatchedByHints(Generic[T]):
    """Base class for the parts of a storage that notify readers in this process when stored data changes.

    ``hint_queues`` has one queue for each reader.
    """

    def __init__(self, hint_queues: HintQueues[T]) -> None:
        self._hint_queues = hint_queues

    @asynccontextmanager
    async def watch(self) -> AsyncGenerator[AsyncIterator[T | HintsLost]]:
        """Open a stream of change notifications. See `SessionDirectory.watch`."""
        with self._hint_queues.watch() as hints:
            yield hints


ChangeCursor: TypeAlias = str
"""A reader's position in the change log. Only the change log can interpret it."""


@frozen
class ChangesSince:
    """The changes that were recorded in the change log after a given position."""

    cursor: ChangeCursor
    """The position in the log after these changes."""
    changed: Collection[str]
    """The things that have changed, each listed once. Empty if ``everything`` may have changed."""
    everything: bool = False
    """True if the log no longer contains these changes, so that everything may have changed."""


@frozen
class ChangeHint:
    """A change notification with all changes between the positions ``previous`` and ``cursor`` of the change log.

    A reader whose position is ``previous`` needn't read the change log.
    """

    previous: ChangeCursor
    """Position in the change log before the changes."""
    cursor: ChangeCursor
    """Position in the change log after the changes."""
    changed: Collection[str]
    """The entries of the change log between the two positions."""


class ChangeLog(Protocol):
    """A log of the changes that replicas make to a server's lists of tools, resources and prompts, and to the resources
    themselves.

    The names of changed things are, for example, ``tools`` or ``resource:<uri>``. Beyond 10,000 names, those that
    changed longest ago are dropped. Readers that haven't read these changes yet learn that everything may have changed.
    """

    async def record(self, changed: Collection[str]) -> None:
        """Record in the log that the things named ``changed`` have changed. If ``changed`` is empty, do nothing.

        Each reader of the log gets each change at least once.
        """
        ...

    async def read_since(self, cursor: ChangeCursor | None) -> ChangesSince:
        """Return the changes after the position ``cursor`` of the log. If ``cursor`` is `None`, return only the current
        position.

        `ChangesSince.everything` is true if the position is too old, is ahead of the log, belongs to a log that was
        lost, or isn't a position at all.
        """
        ...

    def watch(self) -> AbstractAsyncContextManager[AsyncIterator[ChangeHint | HintsLost]]:
        """Open a stream of all changes that any replica records from now on.

        In place of a long notification, the stream may contain `HINTS_LOST`.
        """
        ...


class Courier(Protocol):
    """Sends messages between replicas, and tracks which replicas are alive.

    A message may be lost, delayed or duplicated. `Messenger` adds reliability.
    """

    async def send(self, replica: str, content: bytes, *, number: int | None = None) -> None:
        """Send ``content`` (at most 64 MiB) to another replica. The call doesn't confirm that the message arrives.

        The replica's id may be any string. Raises `ValueError` if ``content`` is longer. If a message is sent again
        with the same ``number``, the storage needs to store only one copy.
        """
        ...

    def mailbox(self) -> AbstractAsyncContextManager[AsyncIterator[bytes | HintsLost]]:
        """Open a stream of the messages that other replicas send to this replica from now on.

        If more than 1,000 are unread, messages are lost, and the stream has `HINTS_LOST` in their place. Raises
        `RuntimeError` if such a stream is already open.
        """
        ...

    async def heartbeat(self, *, lease_ms: int) -> bool:
        """Mark this replica as alive for ``lease_ms`` milliseconds from now.

        Returns false if the replica was dead before (at the first call, after `leave`, or because the lease had
        expired): other replicas may have acted on the replica's death.
        """
        ...

    async def leave(self) -> None:
        """Mark this replica as dead now, after a graceful shutdown.

        Leaving the block of `SharedStorage.join` doesn't mark the replica as dead. If a process dies, its replica
        counts as dead once the lease has expired.
        """
        ...

    async def find_dead(self, replicas: Collection[str]) -> Collection[str]:
        """Return which of the ``replicas`` are dead.

        A replica is dead if its lease has expired, it has called `leave`, or it has never existed.
        """
        ...


class ReplayGuard(Protocol):
    """Stores values that may be used only once among all replicas, for example DPoP proofs."""

    async def add(self, digest: bytes, *, ttl_ms: int) -> bool:
        """Store ``digest``, a value of 32 bytes, for ``ttl_ms`` milliseconds. Return true if ``digest`` wasn't stored
        already.

        If several replicas store the same value, only one of them gets true. A stored value isn't changed. After
        `Uncertain`, treat the value as used.
        """
        ...


class RateLimits(Protocol):
    """Token buckets for rate limits that all replicas share.

    A bucket is stored as the time at which it will be full.
    """

    async def acquire(self, key: bytes, *, limit: int, period_ms: int, burst: int) -> int:
        """Take a token from the bucket ``key``. Return the milliseconds to wait if the bucket is empty, otherwise 0.

        The wait ends when the bucket gets its next token. It is rounded up.

        A bucket starts full, with ``burst`` tokens, and gets ``limit`` tokens per ``period_ms``, evenly spaced, up to
        ``burst``. A full bucket isn't stored.
        """
        ...


class StorageCounters(Protocol):
    """Metrics of the connection to a storage on the network."""

    @property
    def is_up(self) -> bool:
        """True while the storage seems to be reachable."""
        ...

    @property
    def round_trips(self) -> int:
        """The number of round trips to the storage. Several commands may share one round trip."""
        ...

    @property
    def reconnects(self) -> int:
        """The number of times that the storage became available again after an outage."""
        ...

    @property
    def hints_lost(self) -> int:
        """How often readers got `HINTS_LOST` in place of lost change notifications or messages between replicas."""
        ...

    @property
    def uncertain(self) -> int:
        """The number of calls that raised `Uncertain`, because the storage didn't respond in time."""
        ...


@frozen(eq=False)
class Replica:
    """A running server process that is one of several replicas, with access to the replicas' shared storage."""

    id: str
    """The id of the process, which is new at each start. Clients may see it."""
    secret: bytes = attrs.field(repr=False)
    """A secret of 32 bytes that all replicas share, for encrypting the state that clients send back to any replica.
    Anyone who can read the storage can read this secret. Task records are encrypted only with the author's own
    secrets."""
    tasks: TaskStore
    """The task records of all replicas."""
    sessions: SessionDirectory
    """The legacy sessions of all replicas."""
    events: EventLog
    """The events of legacy sessions, for clients that reconnect."""
    changes: ChangeLog
    """The log of changes to the server's tools, resources and prompts."""
    courier: Courier
    """Sends messages to other replicas, and receives their messages."""
    replay_guard: ReplayGuard
    """The values that were already used, and may not be used again."""
    rate_limits: RateLimits
    """The rate limits of all replicas together."""
    state: SessionDirectory | None = None
    """The state of callers (`RequestContext.state`), with one entry for each caller, separate from ``sessions``. `None`
    if the storage keeps no state."""
    counts: StorageCounters | None = None
    """Metrics of the connection to the storage. `None` if the storage is on this machine."""
