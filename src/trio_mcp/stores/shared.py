"""The storage that the replicas of one server share, each part behind a small protocol of its own.

A *replica* is one running server process. `SharedStorage` is the storage that several replicas use, and `Replica` is
the part that one replica has of the storage while running. `MemoryStorage`, `SQLiteStorage` and `RedisStorage` are such
storages.

The protocols keep the rules of `TaskStore`. Lengths of time are given in milliseconds, 1 at least, and the storage has
one clock. Ids, names, holders and things are any text; no holder is the empty one. A call ends in one of three ways:
the call **returns**, and all of the change is kept, as safely as the storage can; or raises `StoreDown`, and nothing
has changed, nor will; or raises `Uncertain`, and the change may have happened, or may happen later. `StoreFull` and
`ValueError` mean that nothing has changed. A cancel before a call is sent leaves everything alone; a call that was sent
is waited for, within the limit of the storage, and the cancel goes on then.

Hints say "look again". Hints may come late, twice or not at all, and never decide. `HINTS_LOST` says that hints may
have been lost.
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
"""Length of `Replica.secret`."""
FINISHED_STREAMS_LIMIT: Final = 1000
"""Number of the finished streams of a session that are kept."""
CHANGES_LIMIT: Final = 10_000
"""Number of the things of which a log of changes knows the last change."""
MAX_MESSAGE_BYTES: Final = 64 * 2**20
"""Bytes of the longest message."""


def new_replica_id() -> str:
    """Return the id of a replica that starts: eight characters, which never come back and tell clients nothing."""
    return secrets.token_urlsafe(_ID_BYTES)


@frozen
class StoredSession:
    """A legacy session, as kept."""

    state: bytes = attrs.field(repr=False)
    """The facts that replicas have to know of the session, in the form that replicas write."""
    mark: bytes
    """The mark of the last write, which no other write has."""


class SessionDirectory(Protocol):
    """The legacy sessions of all replicas, each with its facts, as compare-and-set."""

    async def open(
        self, session_id: str, state: bytes, *, caller: bytes, mark: bytes, idle_ms: int, limit: int
    ) -> str | None:
        """Store a new session of ``caller``, any bytes. The session ends when it is neither read nor changed for
        ``idle_ms``. Raises `ValueError` if the id exists, even if the directory is full.

        All callers together have at most ``limit`` sessions, and one caller gets at most as many as it leaves for
        others. Beyond that, another session is ended for the new one, and its id is returned. A session that was never
        read or changed ends first, then the session with the least time left. The candidates are:

        - the caller's own sessions that were never read or changed, if the caller has any session;
        - otherwise the sessions of the caller that has the most, if it has two or more;
        - otherwise all sessions that were never read or changed.

        Raises `StoreFull`, with nothing changed, if there is no candidate, or if there are already more than ``limit``
        sessions. Sessions that have ended don't count."""
        ...

    async def read(self, session_id: str, *, idle_ms: int) -> StoredSession | None:
        """Return the session, which lasts for ``idle_ms`` from now; `None` where there is none, for any text."""
        ...

    async def exists(self, session_id: str) -> bool:
        """Return whether there is a session with this id, for any text. The session lasts no longer by this, and
        doesn't count as read."""
        ...

    async def change(self, session_id: str, state: bytes, *, expected_mark: bytes, mark: bytes, idle_ms: int) -> bool:
        """Keep ``state`` under a new ``mark`` in place of the facts under the mark ``expected_mark``. Return false,
        with nothing changed, where the session has another mark or has ended."""
        ...

    async def delete(self, session_id: str) -> bool:
        """Forget the session. Return whether there was one."""
        ...

    def watch(self) -> AbstractAsyncContextManager[AsyncIterator[str | HintsLost]]:
        """Open a stream of the ids of sessions that are changed or ended from then on, by any replica. Nobody is told
        of a session that ends because its time is over. See `Hint` and `TaskStore.watch`: the stream has no end, and
        raises nothing."""
        ...


@frozen
class StoredStream:
    """One stream of server-sent events of a session, as kept."""

    name: str
    """Name of the stream, among those of the session."""
    holder: str
    """The holder that may append. `EventLog.take_over` names another one; empty after `EventLog.finish_dead`: nobody
    may."""
    request_id: bytes
    """JSON text of the id of the request that the stream answers; empty for the session's own stream."""
    last: int
    """Number of the last event; 0 before the first."""
    dropped: int
    """Number of the last event that is not kept any more; 0 while all are."""
    note: bytes
    """The note of the last append that had one; empty before."""
    is_finished: bool
    """True when no event follows."""


@frozen
class StoredEvents:
    """Events of a stream behind a number, in order: the first has the next number, or the one behind
    `StoredStream.dropped`, whichever is greater."""

    stream: StoredStream
    """The stream, as kept."""
    first: int
    """Number of the first of ``lines``."""
    lines: Sequence[bytes] = attrs.field(repr=False)
    """The events, in order."""


class EventLog(Protocol):
    """The events of all legacy sessions, for clients that come back to any replica. Of a session at most ``limit``
    bytes of lines are kept: its oldest go first, of whatever stream, but the newest event of each stream, which goes
    when nothing else is left to go. A finished stream is forgotten ``retention_ms`` after its end, or when 1,000 others
    have been finished since. A session is forgotten ``retention_ms`` after its last `open`, `take_over`, `append`,
    `finish_dead` or `read_after` that returned something else than false or `None`; numbers begin anew then."""

    async def open(self, session_id: str, stream: str, *, holder: str, request_id: bytes, retention_ms: int) -> None:
        """Begin a stream, for ``holder`` to append to. Raises `ValueError` where there is one with this name, unless
        that is as this call would make one: a call that ended with `Uncertain` can be made again."""
        ...

    async def take_over(self, session_id: str, stream: str, *, holder: str, retention_ms: int) -> StoredStream:
        """Make ``holder`` the one who may append to the stream, in place of another, and return the stream. A stream
        that is not there is begun, with an empty ``request_id``; one that is finished is returned unchanged."""
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
        """Append ``lines``, of which the first has the number ``first``, and put ``note`` on the stream; `None` leaves
        the note. With ``finish``, no event follows. Without lines, ``first`` is the number of the event that would be
        next.

        Return false, with nothing changed, where the stream has another holder, is finished or gone. Raises
        `ValueError`, otherwise, for a number that is too high: events between would be missing.

        A call that ended with `Uncertain` can be made again: lines with numbers that are there already are dropped; a
        call with numbers that others follow already changes nothing, whatever its note, and returns true; and so does
        one with ``finish`` for a stream which the same holder has finished with the same last number."""
        ...

    async def finish_dead(
        self, session_id: str, stream: str, *, dead_holder: str, line: bytes, limit: int, retention_ms: int
    ) -> bool:
        """Append ``line`` and finish the stream, if ``dead_holder`` is its holder still and the stream is not finished.
        Nobody is its holder then. Return whether that was so: of several who try, one succeeds."""
        ...

    async def read_after(self, session_id: str, stream: str, number: int, *, retention_ms: int) -> StoredEvents | None:
        """Return the stream, with the events behind ``number`` that are kept; `None` where there is no such stream. A
        number beyond the last is behind all events. Numbers are less than 10**18."""
        ...

    async def delete(self, session_id: str) -> None:
        """Forget all streams of the session, if there are any."""
        ...

    def watch(self) -> AbstractAsyncContextManager[AsyncIterator[tuple[str, str] | HintsLost]]:
        """Open a stream of sessions and streams that were appended to, taken or finished from then on, by any
        replica. Nobody is told of forgotten ones."""
        ...


class WatchedByHints(Generic[T]):
    """A part of a storage whose hints are in ``hint_queues``."""

    def __init__(self, hint_queues: HintQueues[T]) -> None:
        self._hint_queues = hint_queues

    @asynccontextmanager
    async def watch(self) -> AsyncGenerator[AsyncIterator[T | HintsLost]]:
        """Watch for hints: see `SessionDirectory.watch`."""
        with self._hint_queues.watch() as hints:
            yield hints


ChangeCursor: TypeAlias = str
"""A reader's position in the log of changes. Its text means something to the log alone."""


@frozen
class ChangesSince:
    """Changes recorded after a given position in the log."""

    cursor: ChangeCursor
    """The position after these changes."""
    changed: Collection[str]
    """The things that have changed, each once; none where everything may have."""
    everything: bool = False
    """True where the log cannot tell: everything may have changed."""


@frozen
class ChangeHint:
    """A hint with its contents: between the positions ``previous`` and ``cursor`` nothing else than ``changed`` has
    changed, so a reader at ``previous`` need not ask."""

    previous: ChangeCursor
    cursor: ChangeCursor
    changed: Collection[str]


class ChangeLog(Protocol):
    """The changes of the offers of a server, which happen on any replica. Things have names, such as ``tools`` or
    ``resource:<uri>``. Beyond 10,000 things, the ones that were changed longest ago are forgotten, and readers behind
    these are told that everything may have changed."""

    async def record(self, changed: Collection[str]) -> None:
        """Note that things have changed. Each reader is told at least once. Nothing happens without things."""
        ...

    async def read_since(self, cursor: ChangeCursor | None) -> ChangesSince:
        """Return the changes behind ``cursor``; for `None`, the present position and no changes.
        `ChangesSince.everything` is true for a position that is too long ago, is ahead, or was in a log that was lost
        since, and for any other text."""
        ...

    def watch(self) -> AbstractAsyncContextManager[AsyncIterator[ChangeHint | HintsLost]]:
        """Open a stream of all notes from then on, by any replica. In place of a hint that would be long there may
        be a gap."""
        ...


class Courier(Protocol):
    """Carries messages between replicas, and knows which replicas are alive. A message may be lost, come late or come
    twice: `Messenger` makes of that a service to rely on."""

    async def send(self, replica: str, content: bytes, *, number: int | None = None) -> None:
        """Send ``content``, of any length up to 64 MiB, to a replica: any text, for replicas that never were. Nothing
        is told about an arrival; `ValueError` for a longer one. What this replica sends with one ``number`` is one
        message, sent again: of its copies, the storage needs to keep one."""
        ...

    def mailbox(self) -> AbstractAsyncContextManager[AsyncIterator[bytes | HintsLost]]:
        """Open the stream of the messages that are sent to this replica from then on. Unread ones are lost beyond
        1,000 messages, and `HINTS_LOST` is in their place. Raises `RuntimeError` while another such stream is open."""
        ...

    async def heartbeat(self, *, lease_ms: int) -> bool:
        """Count as alive for ``lease_ms`` from now. Return false where this replica was not alive until now, so that
        others may have acted on its death: at first, after `leave`, or because the lease was over."""
        ...

    async def leave(self) -> None:
        """Count as dead from now on: the end of a replica in good order. The end of `SharedStorage.join` does not do
        that, as the death of a process does not: then the lease has to end."""
        ...

    async def find_dead(self, replicas: Collection[str]) -> Collection[str]:
        """Return the ``replicas`` that are not alive: with leases that are over, or which have left, or never were."""
        ...


class ReplayGuard(Protocol):
    """Values that may be used once, on whichever replica: proofs of possession, for example."""

    async def add(self, digest: bytes, *, ttl_ms: int) -> bool:
        """Remember ``digest``, of 32 bytes, for ``ttl_ms``. Return false, with nothing changed, where the digest is
        remembered already: of several who try, one succeeds. After `Uncertain`, the value counts as used."""
        ...


class RateLimits(Protocol):
    """Token buckets that all replicas take from. All that is kept of a bucket is the time at which the bucket is
    full again."""

    async def acquire(self, key: bytes, *, limit: int, period_ms: int, burst: int) -> int:
        """Take a token of the bucket ``key``, and return 0; or take none, and return the milliseconds until there is
        one, rounded up. A bucket has ``burst`` tokens at most and at first, and gets ``limit`` in the time
        ``period_ms``, one after the other. One that is full is forgotten."""
        ...


class StorageCounters(Protocol):
    """The counts of a way to a storage that is reached over the network: of all events so far, and of this moment."""

    @property
    def is_up(self) -> bool:
        """True while the storage can be used, as far as is known."""
        ...

    @property
    def round_trips(self) -> int:
        """Number of questions to the storage, of which several may have gone out together as one."""
        ...

    @property
    def reconnects(self) -> int:
        """Number of times that the storage could be used again, after a time in which that was not so."""
        ...

    @property
    def hints_lost(self) -> int:
        """Number of times that readers got `HINTS_LOST` in place of hints or messages."""
        ...

    @property
    def uncertain(self) -> int:
        """Number of calls that ended with `Uncertain`."""
        ...


@frozen(eq=False)
class Replica:
    """One running server process, among others that share a storage with it."""

    id: str
    """A name of the process that is new with each start, and that clients may see."""
    secret: bytes = attrs.field(repr=False)
    """A secret of 32 bytes that all replicas have, for all that clients carry from one to another. Who can read the
    storage can read the secret: records of tasks are sealed by secrets of the author's alone."""
    tasks: TaskStore
    """The records of tasks."""
    sessions: SessionDirectory
    """The legacy sessions."""
    events: EventLog
    """The events of legacy sessions."""
    changes: ChangeLog
    """The changes of offers."""
    courier: Courier
    """Carries messages to other replicas."""
    replay_guard: ReplayGuard
    """The values that were used."""
    rate_limits: RateLimits
    """The limits of rates that hold for all replicas together."""
    state: SessionDirectory | None = None
    """The state of callers (`RequestContext.state`), one entry for each: a directory that has nothing in common with
    ``sessions``. `None`: the storage keeps no state."""
    counts: StorageCounters | None = None
    """The counts of the way to the storage; `None` where there is no way, since the storage is on this machine."""
