"""MemoryStorage: a storage for replicas that run in one trio program, mainly for tests."""

from __future__ import annotations

import math
import secrets as randomness
from collections import OrderedDict, defaultdict, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
from itertools import islice, takewhile
from typing import Final

import attrs

from ...classes import define
from ...concurrency.contexts import asynccontextmanager
from ...stores.memory import Expiring, MemorySessionDirectory, MemoryTaskStore, TrioClock
from ...stores.shared import (
    CHANGES_LIMIT,
    FINISHED_STREAMS_LIMIT,
    MAX_MESSAGE_BYTES,
    SECRET_BYTES,
    ChangeCursor,
    ChangeHint,
    ChangesSince,
    Replica,
    StoredEvents,
    StoredStream,
    WatchedByHints,
    new_replica_id,
)
from ...stores.task_store import HintQueue, HintQueues, HintsLost
from ..fleet import FleetStorage

_LOG_ID_BYTES: Final = 6
_ROUNDING: Final = 1e-3
"""Milliseconds below which a difference is a rounding error."""


@define(eq=False)
class _MemoryStream:
    name: str
    holder: str
    request_id: bytes
    events: deque[tuple[int, bytes]] = attrs.Factory(deque[tuple[int, bytes]])
    """The stored events, each with its sequence number in the session."""
    last: int = 0
    note: bytes = b""
    kept_until: int | None = None
    """Time at which the finished stream is deleted; `None` before it is finished."""

    @property
    def dropped(self) -> int:
        return self.last - len(self.events)

    def stored(self) -> StoredStream:
        is_finished = self.kept_until is not None
        return StoredStream(self.name, self.holder, self.request_id, self.last, self.dropped, self.note, is_finished)


class _SessionStreams:
    """The SSE streams of one MCP session, with their events."""

    def __init__(self) -> None:
        self._streams: dict[str, _MemoryStream] = {}
        self._finished: dict[str, int] = {}
        """Times at which finished streams are deleted, in the order in which they were finished."""
        self._order: OrderedDict[int, _MemoryStream] = OrderedDict()
        """The streams of all stored events, by the sequence numbers of the events, oldest first."""
        self._next_sequence = 0
        self._size = 0
        """Bytes of all stored lines."""

    def find(self, name: str, now: int) -> _MemoryStream | None:
        for finished in [name for name, until in self._finished.items() if until <= now]:
            self._delete(finished)
        return self._streams.get(name)

    def open(self, name: str, holder: str, request_id: bytes) -> _MemoryStream:
        self._streams[name] = stream = _MemoryStream(name, holder, request_id)
        return stream

    def append(self, stream: _MemoryStream, lines: Sequence[bytes], limit: int) -> None:
        for line in lines:
            stream.events.append((self._next_sequence, line))
            self._order[self._next_sequence] = stream
            self._next_sequence += 1
            self._size += len(line)
        stream.last += len(lines)
        self._drop_oldest(limit, 1)
        self._drop_oldest(limit, 0)

    def _drop_oldest(self, limit: int, spared: int) -> None:
        """Drop the session's oldest events until the remaining events fit into ``limit`` bytes.

        The newest ``spared`` events of each SSE stream are never dropped.
        """
        dropped = list[int]()
        for place, stream in self._order.items():
            if self._size <= limit:
                break
            if len(stream.events) > spared:
                self._size -= len(stream.events.popleft()[1])
                dropped.append(place)
        for place in dropped:
            del self._order[place]

    def finish(self, stream: _MemoryStream, until: int) -> None:
        stream.kept_until = self._finished[stream.name] = until
        if len(self._finished) > FINISHED_STREAMS_LIMIT:
            self._delete(next(iter(self._finished)))

    def _delete(self, name: str) -> None:
        del self._finished[name]
        for place, line in self._streams.pop(name).events:
            del self._order[place]
            self._size -= len(line)


class MemoryEventLog(WatchedByHints[tuple[str, str]]):
    """Stores SSE events in memory, for replicas in one process. Its methods never wait. See `EventLog`."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._logs = Expiring[str, _SessionStreams](now)
        super().__init__(HintQueues[tuple[str, str]]())

    async def open(self, session_id: str, stream: str, *, holder: str, request_id: bytes, retention_ms: int) -> None:
        """Create an SSE stream in a session's event log. See `EventLog.open`."""
        log = self._logs.get(session_id) or _SessionStreams()
        found = log.find(stream, self._now())
        if found is None:
            log.open(stream, holder, request_id)
        elif found.stored() != _MemoryStream(stream, holder, request_id).stored():
            raise ValueError("the session already has an SSE stream with this name")
        self._logs.put(session_id, log, retention_ms)

    async def take_over(self, session_id: str, stream: str, *, holder: str, retention_ms: int) -> StoredStream:
        """Make ``holder`` the only writer that may append events to the SSE stream. See `EventLog.take_over`.

        If the stream doesn't exist, create it.
        """
        log = self._logs.get(session_id) or _SessionStreams()
        found = log.find(stream, self._now()) or log.open(stream, holder, b"")
        if found.kept_until is None:
            found.holder = holder
        self._logs.put(session_id, log, retention_ms)
        self._hint_queues.notify([(session_id, stream)])
        return found.stored()

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
        """Append events to an SSE stream of a session. See `EventLog.append`."""
        log, found = self._find(session_id, stream)
        if log is None or found is None or found.holder != holder:
            return False
        last = first + len(lines) - 1
        if found.kept_until is not None and not (finish and last == found.last):
            return False
        if first > found.last + 1:
            raise ValueError(f"the next event of this SSE stream must have the number {found.last + 1}, not {first}")
        if last >= found.last and found.kept_until is None:
            log.append(found, lines[found.last + 1 - first :], limit)
            if note is not None:
                found.note = note
            if finish:
                log.finish(found, self._now() + retention_ms)
            self._hint_queues.notify([(session_id, stream)])
        self._logs.put(session_id, log, retention_ms)
        return True

    def _find(self, session_id: str, stream: str) -> tuple[_SessionStreams | None, _MemoryStream | None]:
        log = self._logs.get(session_id)
        return log, None if log is None else log.find(stream, self._now())

    async def finish_dead(
        self, session_id: str, stream: str, *, dead_holder: str, line: bytes, limit: int, retention_ms: int
    ) -> bool:
        """Finish an SSE stream that only a dead replica could continue. See `EventLog.finish_dead`."""
        log, found = self._find(session_id, stream)
        if log is None or found is None or found.holder != dead_holder or found.kept_until is not None:
            return False
        found.holder = ""
        log.append(found, [line], limit)
        log.finish(found, self._now() + retention_ms)
        self._logs.put(session_id, log, retention_ms)
        self._hint_queues.notify([(session_id, stream)])
        return True

    async def read_after(self, session_id: str, stream: str, number: int, *, retention_ms: int) -> StoredEvents | None:
        """Return an SSE stream with its stored events after the event ``number``. See `EventLog.read_after`."""
        log, found = self._find(session_id, stream)
        if log is None or found is None:
            return None
        self._logs.put(session_id, log, retention_ms)
        before = max(number, found.dropped)
        lines = [line for _, line in islice(found.events, min(before, found.last) - found.dropped, None)]
        return StoredEvents(found.stored(), before + 1, lines)

    async def delete(self, session_id: str) -> None:
        """Delete all SSE streams of a session. See `EventLog.delete`."""
        self._logs.pop(session_id)


class _MemoryChangeLog(WatchedByHints[ChangeHint]):
    """Stores changes of tools, resources and prompts in memory, for replicas in one process. See `ChangeLog`.

    A position in the log consists of the log's id and a record's number.
    """

    def __init__(self) -> None:
        self._id = randomness.token_hex(_LOG_ID_BYTES)
        self._last = 0
        self._changed: dict[str, int] = {}
        """The number of the last record for each changed thing, in the order of these numbers."""
        self._forgotten = 0
        """The number of the last record from which an entry was dropped."""
        super().__init__(HintQueues[ChangeHint]())

    def _cursor(self) -> ChangeCursor:
        return f"{self._id}.{self._last}"

    async def record(self, changed: Collection[str]) -> None:
        if not changed:
            return
        was, things = self._cursor(), frozenset(changed)
        self._last += 1
        for thing in things:
            self._changed.pop(thing, None)
            self._changed[thing] = self._last
        while len(self._changed) > CHANGES_LIMIT:
            self._forgotten = self._changed.pop(next(iter(self._changed)))
        self._hint_queues.notify([ChangeHint(was, self._cursor(), things)])

    async def read_since(self, cursor: ChangeCursor | None) -> ChangesSince:
        here = self._cursor()
        if cursor is None or cursor == here:
            return ChangesSince(here, ())
        log, _, digits = cursor.partition(".")
        is_ours = log == self._id and digits.isascii() and digits.isdigit() and len(digits) <= len(str(self._last))
        if not is_ours or not self._forgotten <= int(digits) <= self._last:
            return ChangesSince(here, (), everything=True)
        newest_first, number = reversed(self._changed.items()), int(digits)
        return ChangesSince(here, [thing for thing, _ in takewhile(lambda noted: noted[1] > number, newest_first)])


class _Mailboxes:
    """The mailboxes and leases that the `_MemoryCourier` objects of all replicas share."""

    def __init__(self, now: Callable[[], int]) -> None:
        self.mailboxes: dict[str, HintQueue[bytes]] = {}
        self.alive = Expiring[str, bool](now)


class _MemoryCourier:
    """Sends messages between replicas in one process. See `Courier`.

    A message is lost only if the receiver's mailbox is full or closed.
    """

    def __init__(self, replica: str, mailboxes: _Mailboxes) -> None:
        self._replica = replica
        self._mailboxes = mailboxes

    async def send(self, replica: str, content: bytes, *, number: int | None = None) -> None:
        if len(content) > MAX_MESSAGE_BYTES:
            raise ValueError(f"a message must have at most {MAX_MESSAGE_BYTES} bytes, not {len(content)}")
        mailbox = self._mailboxes.mailboxes.get(replica)
        if mailbox is not None:
            mailbox.put(content)

    @asynccontextmanager
    async def mailbox(self) -> AsyncGenerator[AsyncIterator[bytes | HintsLost]]:
        mailboxes = self._mailboxes.mailboxes
        if self._replica in mailboxes:
            raise RuntimeError("mailbox() was called twice: the mailbox of this replica is already open")
        mailboxes[self._replica] = mailbox = HintQueue[bytes]()
        try:
            yield mailbox
        finally:
            del mailboxes[self._replica]

    async def heartbeat(self, *, lease_ms: int) -> bool:
        was_alive = self._mailboxes.alive.get(self._replica) is not None
        self._mailboxes.alive.put(self._replica, True, lease_ms)
        return was_alive

    async def leave(self) -> None:
        self._mailboxes.alive.pop(self._replica)

    async def find_dead(self, replicas: Collection[str]) -> Collection[str]:
        return {replica for replica in replicas if self._mailboxes.alive.get(replica) is None}


class _MemoryReplayGuard:
    """Stores, in memory, values that may be used only once, for replicas in one process. See `ReplayGuard`."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._digests = Expiring[bytes, bool](now)

    async def add(self, digest: bytes, *, ttl_ms: int) -> bool:
        if self._digests.get(digest) is not None:
            return False
        self._digests.put(digest, True, ttl_ms)
        return True


class _MemoryRateLimits:
    """Stores the token buckets of rate limits in memory, for replicas in one process. See `RateLimits`."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._started_at: int | None = None
        """Time of the first call, from which times are counted: a float can't hold times since 1970 with enough
        precision."""
        self._full_at = Expiring[bytes, float](now)

    async def acquire(self, key: bytes, *, limit: int, period_ms: int, burst: int) -> int:
        present = self._now()
        if self._started_at is None:
            self._started_at = present
        now, interval = present - self._started_at, period_ms / limit
        full_at = max(self._full_at.get(key) or now, now) + interval
        wait = full_at - now - interval * burst
        if wait > _ROUNDING:
            return math.ceil(wait - _ROUNDING)
        self._full_at.put(key, full_at, math.ceil(full_at - now))
        return 0


class _ServerStorage:
    """The stores that all replicas of one server share, in memory."""

    def __init__(self, now: Callable[[], int]) -> None:
        self.secret = randomness.token_bytes(SECRET_BYTES)
        self.tasks = MemoryTaskStore()
        self.sessions = MemorySessionDirectory(now)
        self.state = MemorySessionDirectory(now)
        self.events = MemoryEventLog(now)
        self.changes = _MemoryChangeLog()
        self.mailboxes = _Mailboxes(now)
        self.replay_guard = _MemoryReplayGuard(now)
        self.rate_limits = _MemoryRateLimits(now)


class MemoryStorage(FleetStorage):
    """A storage for replicas that run in one trio program, for example in tests.

    Everything is stored in this object. The clock is trio's. No method waits, and the storage is always available. Task
    records never leave the process, so they aren't encrypted with ``secrets``.
    """

    def __init__(self) -> None:
        now = TrioClock()
        self._servers = defaultdict[str, _ServerStorage](lambda: _ServerStorage(now))

    @asynccontextmanager
    async def join(self, name: str, secrets: Sequence[bytes] = ()) -> AsyncGenerator[Replica]:
        """Register a new replica of the server ``name``. See `SharedStorage.join`."""
        server, replica = self._servers[name], new_replica_id()
        yield Replica(
            id=replica,
            secret=server.secret,
            tasks=server.tasks,
            sessions=server.sessions,
            state=server.state,
            events=server.events,
            changes=server.changes,
            courier=_MemoryCourier(replica, server.mailboxes),
            replay_guard=server.replay_guard,
            rate_limits=server.rate_limits,
        )
