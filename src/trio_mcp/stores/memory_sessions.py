"""`MemorySessionDirectory`: stores legacy sessions, or the state of callers, in the memory of this process. `Expiring`:
a mapping whose entries expire."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import attrs

from ..classes import frozen
from ..concurrency.fair_share import leaves_enough
from .shared import StoredSession, WatchedByHints
from .task_store import HintQueues, StoreFull

K = TypeVar("K", str, bytes)
V = TypeVar("V")

_FEW: Final = 64


class Expiring(Generic[K, V]):
    """A mapping in which each entry expires at its own time. The function ``now`` returns the current time in
    milliseconds."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._entries: dict[K, tuple[int, V]] = {}
        self._ends: list[tuple[int, K]] = []
        """Heap of the entries' expiry times. Times of removed entries, and earlier times of extended entries, are
        skipped."""

    def __len__(self) -> int:
        self._drop_past()
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """Return the value of ``key``; `None` if ``key`` has no entry, or the entry has expired."""
        self._drop_past()
        entry = self._entries.get(key)
        return None if entry is None else entry[1]

    def put(self, key: K, value: V, length: int) -> None:
        """Set the value of ``key``. The entry expires after ``length`` milliseconds."""
        self._drop_past()
        until = self._now() + length
        self._entries[key] = until, value
        heapq.heappush(self._ends, (until, key))
        if len(self._ends) > 2 * len(self._entries) + _FEW:
            self._ends = [(until, key) for key, (until, _) in self._entries.items()]
            heapq.heapify(self._ends)

    def pop(self, key: K) -> V | None:
        """Remove the entry of ``key`` and return its value. If ``key`` has no entry, or the entry has expired, return
        `None`."""
        self._drop_past()
        return self._drop(key) if key in self._entries else None

    def _drop(self, key: K) -> V:
        """Remove the entry of ``key``, which must exist, and return its value. Subclasses extend this method."""
        return self._entries.pop(key)[1]

    def _drop_past(self) -> None:
        now = self._now()
        while self._ends and self._ends[0][0] <= now:
            until, key = heapq.heappop(self._ends)
            entry = self._entries.get(key)
            if entry is not None and entry[0] == until:
                self._drop(key)


@frozen
class _MemorySession:
    stored: StoredSession
    caller: bytes
    until: int = 0
    is_used: bool = False


class _SessionsByCaller(Expiring[str, _MemorySession]):
    """A mapping from ids to legacy sessions, which can also be looked up by caller."""

    def __init__(self, now: Callable[[], int]) -> None:
        super().__init__(now)
        self.held: dict[bytes, dict[str, _MemorySession]] = {}
        """The sessions of each caller that has any sessions."""

    def put(self, key: str, value: _MemorySession, length: int) -> None:
        value = attrs.evolve(value, until=self._now() + length)
        super().put(key, value, length)
        self.held.setdefault(value.caller, {})[key] = value

    def _drop(self, key: str) -> _MemorySession:
        session = super()._drop(key)
        held = self.held[session.caller]
        del held[key]
        if not held:
            del self.held[session.caller]
        return session


class MemorySessionDirectory(WatchedByHints[str]):
    """Stores legacy sessions (MCP 2025-11-25 or earlier) in the memory of one process. See `SessionDirectory`."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._sessions = _SessionsByCaller(now)
        super().__init__(HintQueues[str]())

    async def open(
        self, session_id: str, state: bytes, *, caller: bytes, mark: bytes, idle_ms: int, limit: int
    ) -> str | None:
        if self._sessions.get(session_id) is not None:
            raise ValueError("a session with this id already exists")
        count, ended = len(self._sessions), None
        if not leaves_enough(len(self._sessions.held.get(caller, ())), limit - count):
            ended = self._session_to_evict(caller) if count <= limit else None
            if ended is None:
                raise StoreFull
            await self.delete(ended)
        self._sessions.put(session_id, _MemorySession(StoredSession(state, mark), caller), idle_ms)
        return ended

    def _session_to_evict(self, caller: bytes) -> str | None:
        """Return the id of the session to delete, so that ``caller`` can open a new session. See
        `SessionDirectory.open`."""
        biggest = max(self._sessions.held.values(), key=len, default=dict[str, _MemorySession]())
        if caller in self._sessions.held or len(biggest) < 2:
            held = [self._sessions.held[caller]] if caller in self._sessions.held else self._sessions.held.values()
            found = {name: each for sessions in held for name, each in sessions.items() if not each.is_used}
        else:
            found = biggest
        return min(found, key=lambda name: (found[name].is_used, found[name].until), default=None)

    async def read(self, session_id: str, *, idle_ms: int) -> StoredSession | None:
        session = self._sessions.get(session_id)
        if session is None:
            return None
        self._sessions.put(session_id, attrs.evolve(session, is_used=True), idle_ms)
        return session.stored

    async def exists(self, session_id: str) -> bool:
        return self._sessions.get(session_id) is not None

    async def change(self, session_id: str, state: bytes, *, expected_mark: bytes, mark: bytes, idle_ms: int) -> bool:
        session = self._sessions.get(session_id)
        if session is None or session.stored.mark != expected_mark:
            return False
        self._sessions.put(session_id, attrs.evolve(session, stored=StoredSession(state, mark), is_used=True), idle_ms)
        self._hint_queues.notify([session_id])
        return True

    async def delete(self, session_id: str) -> bool:
        if self._sessions.pop(session_id) is None:
            return False
        self._hint_queues.notify([session_id])
        return True
