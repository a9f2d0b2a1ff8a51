"""MemoryStorage: a storage for replicas that run in one trio program, mainly for tests."""

from __future__ import annotations

import math
import secrets as randomness
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
from itertools import takewhile
from typing import Final

from ...concurrency.contexts import asynccontextmanager
from ...stores.memory import MemoryTaskStore, TrioClock
from ...stores.memory_sessions import Expiring, MemorySessionDirectory
from ...stores.shared import (
    CHANGES_LIMIT,
    MAX_MESSAGE_BYTES,
    SECRET_BYTES,
    ChangeCursor,
    ChangeHint,
    ChangesSince,
    Replica,
    WatchedByHints,
    new_replica_id,
)
from ...stores.task_store import HintQueue, HintQueues, HintsLost
from ..fleet import FleetStorage
from .memory_events import MemoryEventLog

_LOG_ID_BYTES: Final = 6
_ROUNDING: Final = 1e-3
"""Milliseconds below which a difference is a rounding error."""


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
