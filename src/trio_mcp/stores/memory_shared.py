"""Memory is the storage that replicas share which run in one trio program: servers in tests, above all."""

from __future__ import annotations

import math
import secrets as randomness
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
from itertools import takewhile
from typing import Final

import attrs

from ..classes import frozen
from ..concurrency.contexts import asynccontextmanager
from ..concurrency.fair_share import leaves_enough
from .expiring import Expiring
from .memory import MemoryTaskStore, TrioClock
from .memory_events import MemoryEventLog
from .shared import (
    MAX_LETTER,
    MOST_CHANGES,
    SECRET_BYTES,
    ChangesSince,
    Noted,
    Place,
    Replica,
    StoredSession,
    new_replica_id,
)
from .task_store import Gap, Hints, StoreFull, Watchers

_LOG_ID_BYTES: Final = 6
_SLIGHT: Final = 1e-3
"""Milliseconds that say nothing in a sum of intervals."""


@frozen
class _Session:
    stored: StoredSession
    caller: bytes
    until: int = 0
    is_used: bool = False


class _ByCaller(Expiring[str, _Session]):
    """Sessions by id and by caller."""

    def __init__(self, now: Callable[[], int]) -> None:
        super().__init__(now)
        self.held: dict[bytes, dict[str, _Session]] = {}
        """The sessions of each caller that has any."""

    def put(self, key: str, value: _Session, length: int) -> None:
        value = attrs.evolve(value, until=self._now() + length)
        super().put(key, value, length)
        self.held.setdefault(value.caller, {})[key] = value

    def _drop(self, key: str) -> _Session:
        session = super()._drop(key)
        held = self.held[session.caller]
        del held[key]
        if not held:
            del self.held[session.caller]
        return session


class _Sessions:
    """A `SessionDirectory` for one process."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._sessions = _ByCaller(now)
        self._watchers = Watchers[str]()

    async def open(
        self, session_id: str, facts: bytes, *, caller: bytes, mark: bytes, idle: int, most: int
    ) -> str | None:
        if self._sessions.get(session_id) is not None:
            raise ValueError("there is a session with this id")
        count, ended = len(self._sessions), None
        if not leaves_enough(len(self._sessions.held.get(caller, ())), most - count):
            ended = self._place_for(caller) if count <= most else None
            if ended is None:
                raise StoreFull
            await self.end(ended)
        self._sessions.put(session_id, _Session(StoredSession(facts, mark), caller), idle)
        return ended

    def _place_for(self, caller: bytes) -> str | None:
        """Return the session to end for a new session of ``caller``. See `SessionDirectory.open`."""
        biggest = max(self._sessions.held.values(), key=len, default=dict[str, _Session]())
        if caller in self._sessions.held or len(biggest) < 2:
            held = [self._sessions.held[caller]] if caller in self._sessions.held else self._sessions.held.values()
            found = {name: each for sessions in held for name, each in sessions.items() if not each.is_used}
        else:
            found = biggest
        return min(found, key=lambda name: (found[name].is_used, found[name].until), default=None)

    async def read(self, session_id: str, *, idle: int) -> StoredSession | None:
        session = self._sessions.get(session_id)
        if session is None:
            return None
        self._sessions.put(session_id, attrs.evolve(session, is_used=True), idle)
        return session.stored

    async def change(self, session_id: str, facts: bytes, *, was: bytes, mark: bytes, idle: int) -> bool:
        session = self._sessions.get(session_id)
        if session is None or session.stored.mark != was:
            return False
        self._sessions.put(session_id, attrs.evolve(session, stored=StoredSession(facts, mark), is_used=True), idle)
        self._watchers.tell([session_id])
        return True

    async def end(self, session_id: str) -> bool:
        if self._sessions.pop(session_id) is None:
            return False
        self._watchers.tell([session_id])
        return True

    @asynccontextmanager
    async def watch(self) -> AsyncGenerator[AsyncIterator[str | Gap]]:
        with self._watchers.watch() as hints:
            yield hints


class _Changes:
    """A `ChangeLog` for one process. Each note has a number, and a place is the name of the log and a number."""

    def __init__(self) -> None:
        self._id = randomness.token_hex(_LOG_ID_BYTES)
        self._last = 0
        self._changed: dict[str, int] = {}
        """The numbers of the last notes of things, in their order."""
        self._forgotten = 0
        """Number of the last note that is not kept whole."""
        self._watchers = Watchers[Noted]()

    def _place(self) -> Place:
        return f"{self._id}.{self._last}"

    async def note(self, changed: Collection[str]) -> None:
        if not changed:
            return
        was, things = self._place(), frozenset(changed)
        self._last += 1
        for thing in things:
            self._changed.pop(thing, None)
            self._changed[thing] = self._last
        while len(self._changed) > MOST_CHANGES:
            self._forgotten = self._changed.pop(next(iter(self._changed)))
        self._watchers.tell([Noted(was, self._place(), things)])

    async def since(self, place: Place | None) -> ChangesSince:
        here = self._place()
        if place is None or place == here:
            return ChangesSince(here, ())
        log, _, digits = place.partition(".")
        is_ours = log == self._id and digits.isascii() and digits.isdigit() and len(digits) <= len(str(self._last))
        if not is_ours or not self._forgotten <= int(digits) <= self._last:
            return ChangesSince(here, (), everything=True)
        newest_first, number = reversed(self._changed.items()), int(digits)
        return ChangesSince(here, [thing for thing, _ in takewhile(lambda noted: noted[1] > number, newest_first)])

    @asynccontextmanager
    async def watch(self) -> AsyncGenerator[AsyncIterator[Noted | Gap]]:
        with self._watchers.watch() as hints:
            yield hints


class _Post:
    """The part that the couriers of all replicas share."""

    def __init__(self, now: Callable[[], int]) -> None:
        self.mailboxes: dict[str, Hints[bytes]] = {}
        self.alive = Expiring[str, bool](now)


class _Courier:
    """A `Courier` between replicas in one process. No letter is lost but for want of room, or of a mailbox."""

    def __init__(self, replica: str, post: _Post) -> None:
        self._replica = replica
        self._post = post

    async def post(self, replica: str, letter: bytes, *, number: int | None = None) -> None:
        if len(letter) > MAX_LETTER:
            raise ValueError(f"a letter has {MAX_LETTER} bytes at most, not {len(letter)}")
        mailbox = self._post.mailboxes.get(replica)
        if mailbox is not None:
            mailbox.tell(letter)

    @asynccontextmanager
    async def mailbox(self) -> AsyncGenerator[AsyncIterator[bytes | Gap]]:
        mailboxes = self._post.mailboxes
        if self._replica in mailboxes:
            raise RuntimeError("the mailbox of this replica is open already")
        mailboxes[self._replica] = mailbox = Hints[bytes]()
        try:
            yield mailbox
        finally:
            del mailboxes[self._replica]

    async def live(self, *, lease: int) -> bool:
        was_alive = self._post.alive.get(self._replica) is not None
        self._post.alive.put(self._replica, True, lease)
        return was_alive

    async def leave(self) -> None:
        self._post.alive.pop(self._replica)

    async def dead(self, replicas: Collection[str]) -> Collection[str]:
        return {replica for replica in replicas if self._post.alive.get(replica) is None}


class _Seen:
    """A `SeenOnce` for one process."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._seen = Expiring[bytes, bool](now)

    async def add(self, digest: bytes, *, ttl: int) -> bool:
        if self._seen.get(digest) is not None:
            return False
        self._seen.put(digest, True, ttl)
        return True


class _Rates:
    """A `RateLimits` for one process."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._begun: int | None = None
        """Time of the first call, from which all are counted: floats of times since 1970 are too coarse."""
        self._full_at = Expiring[bytes, float](now)

    async def take(self, key: bytes, *, most: int, per: int, burst: int) -> int:
        present = self._now()
        if self._begun is None:
            self._begun = present
        now, interval = present - self._begun, per / most
        full_at = max(self._full_at.get(key) or now, now) + interval
        wait = full_at - now - interval * burst
        if wait > _SLIGHT:
            return math.ceil(wait - _SLIGHT)
        self._full_at.put(key, full_at, math.ceil(full_at - now))
        return 0


class _Server:
    """The part that the replicas of one server share."""

    def __init__(self, now: Callable[[], int]) -> None:
        self.secret = randomness.token_bytes(SECRET_BYTES)
        self.tasks = MemoryTaskStore()
        self.sessions = _Sessions(now)
        self.events = MemoryEventLog(now)
        self.changes = _Changes()
        self.post = _Post(now)
        self.seen = _Seen(now)
        self.rates = _Rates(now)


class Memory:
    """A storage that replicas share which run in one trio program. All of the storage is gone with this object. The
    clock is trio's. No method waits, and none fails for want of the storage. Records of tasks leave the process
    nowhere, so ``secrets`` seal none."""

    def __init__(self) -> None:
        now = TrioClock()
        self._servers = defaultdict[str, _Server](lambda: _Server(now))

    @asynccontextmanager
    async def join(self, name: str, secrets: Sequence[bytes] = ()) -> AsyncGenerator[Replica]:
        """Take part as a new replica. See `Shared.join`."""
        server, replica = self._servers[name], new_replica_id()
        yield Replica(
            id=replica,
            secret=server.secret,
            tasks=server.tasks,
            sessions=server.sessions,
            events=server.events,
            changes=server.changes,
            courier=_Courier(replica, server.post),
            seen=server.seen,
            rates=server.rates,
        )
