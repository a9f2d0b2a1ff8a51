"""SQLiteStorage: a storage in a SQLite file that processes on one machine share, with one file for each server."""

from __future__ import annotations

import errno
import logging
import math
import os
import secrets as randomness
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final, Literal, TypeVar

import attrs
import trio

from ....concurrency.contexts import asynccontextmanager
from ....concurrency.nurseries import open_service_nursery
from ....stores.record_codec import encoded
from ....stores.sealing import check_secrets
from ....stores.shared import SECRET_BYTES, Replica, new_replica_id
from ....stores.sqlite_database import TASKS, Database, Location
from ....stores.task_store import UnreadableRecord
from ...fleet import FleetStorage
from .hints import HintPoller, SQLiteTasks, sweep
from .messages import SQLiteChangeLog, SQLiteCourier
from .sessions import SQLiteEventLog, SQLiteSessionDirectory

logger = logging.getLogger("trio_mcp")

T = TypeVar("T")

SHARED: Final = attrs.evolve(
    TASKS,
    title="shared store",
    boot_script=f"{TASKS.boot_script}\nDELETE FROM replicas;",
    added_table="servers",
    added_script=Path(__file__).with_name("storage.sql").read_text,
)

# This statement stores a new secret, unless the file already contains a secret of the correct length.
_PUT_ONCE: Final = """
INSERT INTO secret VALUES (1, :new) ON CONFLICT (number) DO UPDATE SET secret = excluded.secret
WHERE typeof(secret.secret) <> 'blob' OR length(secret.secret) <> length(:new)
"""

_HOPELESS: Final = frozenset((errno.EINVAL, errno.ENOSYS, errno.ENOTSUP))
"""Errors that waiting can't fix, because the file isn't a storage."""
_RETRY_DELAY: Final = 0.5
"""Seconds between two attempts to open a file that isn't available yet."""


class SQLiteStorage(FleetStorage):
    """A storage in the SQLite file ``path``, which replicas on one machine share.

    The file can be one that `SQLiteTaskStore` has created. It belongs to the server that joins first. A server with
    another name gets its own file, with a number at the end of its name: ``path-2``. So if you rename a server, it
    doesn't find its earlier data. The state of callers (`RequestContext.state`) is stored in ``path-state``, which is
    created at first use.

    The folder must exist, and be on a local disk, because SQLite's write-ahead log doesn't work over a network. New
    files can only be read by their user. The clock is that of `SQLiteTaskStore`.

    If the file is deleted or replaced while in use, the next call raises `StoreDown`, and later calls use the new file.
    Replicas that join after that have another secret.

    Args:
        path: The file.
        synchronous: With ``"normal"``, a crash of the machine may lose the latest changes, but a crash of a process
            loses nothing. With ``"full"``, each change waits for the disk.
        poll_interval: Seconds between two polls for changes of other replicas. While messages or events are being
            exchanged, polls are 0.02 s apart.
        busy_timeout: Seconds for which a change waits for other processes.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        synchronous: Literal["normal", "full"] = "normal",
        poll_interval: float = 0.2,
        busy_timeout: float = 10.0,
    ) -> None:
        self._location = Location(Path(path).absolute(), synchronous, busy_timeout, SHARED)
        self._poll_interval = poll_interval

    @asynccontextmanager
    async def join(self, name: str, secrets: Sequence[bytes] = ()) -> AsyncGenerator[Replica]:
        """Register a new replica of the server ``name``. See `SharedStorage.join`.

        Raises `StoreDown` at once if the file isn't a storage, or belongs to a newer version.
        """
        check_secrets(secrets)
        location, secret = await self._enter(name)
        database = _LoggedDatabase(location)
        # The callers' state has its own `SQLiteSessionDirectory` in a second file, because a file can contain only one
        # directory.
        states = _LoggedDatabase(_beside(location, "state"))
        async with AsyncExitStack() as opened:
            opened.push_async_callback(database.aclose)
            opened.push_async_callback(states.aclose)
            replica = new_replica_id()
            hints, of_state = HintPoller(database, replica, self._poll_interval), HintPoller(states, replica, math.inf)
            await _retry_until_available(location.path, hints.start)
            services = await opened.enter_async_context(open_service_nursery("the replica has left what it shares"))
            services.start_soon(hints.run)
            yield Replica(
                id=replica,
                secret=secret,
                tasks=SQLiteTasks(database, secrets, hints),
                sessions=SQLiteSessionDirectory(database, hints, hints.sessions),
                events=SQLiteEventLog(database, hints, hints.events),
                changes=SQLiteChangeLog(database, hints, hints.changes),
                courier=SQLiteCourier(database, hints, replica),
                replay_guard=SQLiteReplayGuard(database),
                rate_limits=SQLiteRateLimits(database),
                state=SQLiteSessionDirectory(states, of_state, of_state.sessions),
            )

    async def _enter(self, name: str) -> tuple[Location, bytes]:
        """Return the location of the SQLite file of the server ``name``, and the secret that its replicas share."""
        location = self._location
        number, secret = await _read_entry(location, name)
        if number > 1:
            location = _beside(location, number)
            _, secret = await _read_entry(location, name)
        return location, secret


def _beside(location: Location, ending: object) -> Location:
    return attrs.evolve(location, path=Path(f"{location.path}-{ending}"))


async def _read_entry(location: Location, name: str) -> tuple[int, bytes]:
    database = Database(location)
    try:
        return await _retry_until_available(database.path, partial(database.write, partial(_entry, name)))
    finally:
        await database.aclose()


def _entry(name: str, connection: sqlite3.Connection) -> tuple[int, bytes]:
    """Return the number that identifies the server ``name`` in the SQLite file, and the file's secret.

    The first replica stores the number and the secret.
    """
    secret = randomness.token_bytes(SECRET_BYTES)
    connection.execute("INSERT INTO servers (name) VALUES (?) ON CONFLICT DO NOTHING", (encoded(name),))
    connection.execute(_PUT_ONCE, {"new": secret})
    return connection.execute(
        "SELECT number, (SELECT secret FROM secret) FROM servers WHERE name = ?", (encoded(name),)
    ).fetchone()


async def _retry_until_available(path: Path, work: Callable[[], Awaitable[T]]) -> T:
    """Call ``work`` again and again until the SQLite file is available, and return its result.

    Raises `StoreDown` if the file isn't a storage.
    """
    is_waiting = False
    while True:
        try:
            result = await work()
        except OSError as error:
            if error.errno in _HOPELESS:
                raise
            if not is_waiting:
                logger.warning("waiting until the shared storage %s is available: %s", path, error)
                is_waiting = True
            await trio.sleep(_RETRY_DELAY)
        else:
            if is_waiting:
                logger.warning("the shared storage %s is available now", path)
            return result


class _LoggedDatabase(Database):
    """A `Database` that logs outages of the SQLite file: one line when an outage begins, and one when it ends.

    All errors are raised to the caller as well.

    Reads and writes are counted separately, since a file on a full disk can still be read.
    """

    def __init__(self, location: Location) -> None:
        super().__init__(location)
        self._failing = set[str]()

    async def write(self, change: Callable[[sqlite3.Connection], T], *, first: bool = False) -> T:
        return await self._logged("written", partial(super().write, change, first=first))

    async def read(self, look: Callable[[sqlite3.Connection], T]) -> T:
        return await self._logged("read", partial(super().read, look))

    async def _logged(self, kind: str, call: Callable[[], Awaitable[T]]) -> T:
        try:
            result = await call()
        except UnreadableRecord:
            raise  # no outage: only one record is unreadable, and the file is available
        except OSError as error:
            if not self._failing:
                logger.warning("the shared storage %s cannot be %s: %s", self.path, kind, error)
            self._failing.add(kind)
            raise
        if kind in self._failing:
            self._failing.discard(kind)
            if not self._failing:
                logger.warning("the shared storage %s works again", self.path)
        return result


class SQLiteReplayGuard:
    """Stores, in a SQLite file, values that may be used only once. See `ReplayGuard`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, digest: bytes, *, ttl_ms: int) -> bool:
        """Store ``digest`` as used, and return whether it is new. See `ReplayGuard.add`."""

        def add(connection: sqlite3.Connection) -> bool:
            now = self._database.now()
            sweep(connection, now, ["seen"])
            added = connection.execute(
                "INSERT INTO seen VALUES (?, ?)"
                " ON CONFLICT (digest) DO UPDATE SET until = excluded.until WHERE until <= ?",
                (digest, now + ttl_ms, now),
            )
            return added.rowcount == 1

        return await self._database.write(add)


_ROUNDING: Final = 0.01
"""Milliseconds below which a difference is a rounding error."""


class SQLiteRateLimits:
    """Stores the token buckets of rate limits in a SQLite file. See `RateLimits`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def acquire(self, key: bytes, *, limit: int, period_ms: int, burst: int) -> int:
        """Take a token from the rate limit bucket ``key``, and return 0. If the bucket is empty, return the
        milliseconds to wait.

        See `RateLimits.acquire`.
        """

        def take(connection: sqlite3.Connection) -> int:
            now, interval = self._database.now(), period_ms / limit
            sweep(connection, now, ["buckets"])
            found = connection.execute("SELECT until FROM buckets WHERE key = ?", (key,)).fetchone()
            # Limit the stored time: if the clock was set back, the stored time lies too far in the future.
            full_at = now if found is None else min(max(found[0], now), now + burst * interval)
            wait = full_at + interval - now - burst * interval
            if wait > _ROUNDING:
                return math.ceil(wait - _ROUNDING)
            connection.execute("INSERT OR REPLACE INTO buckets VALUES (?, ?)", (key, full_at + interval))
            return 0

        return await self._database.write(take)
