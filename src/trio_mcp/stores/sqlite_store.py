"""`SQLiteTaskStore`: stores task records in an SQLite file, which processes on one machine share.

Each change of a task adds a row to the file, and the watchers of other processes poll for new rows.
"""

from __future__ import annotations

import json
import os
import secrets as randomness
import sqlite3
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import attrs
import trio

from ..concurrency.contexts import asynccontextmanager
from .record_codec import RecordCodec, StoredRecord, decode_readable, decoded, encoded
from .sqlite_database import Database, Location
from .task_store import (
    HINTS_LOST,
    Hint,
    HintQueue,
    HintQueues,
    StoredTask,
    StoreFull,
    TaskCursor,
    TaskRecord,
    created_record,
)

_FIELDS: Final = [field.name for field in attrs.fields(StoredRecord)]
_OF_LEASE: Final = {
    "name": "coalesce(leases.name, '')",
    "is_open": "leases.number IS NOT NULL",
    "holder": "leases.holder",
    "leased_until": "CASE WHEN leases.holder IS NULL THEN 0 ELSE leases.leased_until END",
}
_COLUMNS: Final = ", ".join(_OF_LEASE.get(name, f"tasks.{name}") for name in _FIELDS)
_SELECT: Final = f"SELECT {_COLUMNS} FROM tasks LEFT JOIN leases ON leases.number = tasks.number"  # noqa: S608 - the names are our own, here and below
_ROOM: Final = """
SELECT (SELECT records FROM total), coalesce(sum(records), 0), coalesce(max(
    (SELECT max(place) FROM tasks WHERE tasks.scope = scopes.scope)
), 0), EXISTS (SELECT 1 FROM void WHERE id = ? AND until > ?)
FROM scopes WHERE scope IN ({scopes})
"""
_INSERT: Final = """
INSERT INTO tasks (id, scope, place, kept_until, epoch, version, mark, form, body)
VALUES (:id, :scope, :place, :kept_until, :epoch, :version, :mark, :form, :body)
"""
_OPEN: Final = """
INSERT INTO leases (number, id, name, form, holder, leased_until)
VALUES (:number, :id, :name, :form, :holder, CASE WHEN :holder IS NULL THEN :free_since ELSE :leased_until END)
"""
_CHANGE: Final = """
UPDATE tasks SET scope = :scope, kept_until = :kept_until, version = :version, mark = :mark, form = :form, body = :body
WHERE id = :id AND mark = :was AND (
    :by IS NULL OR EXISTS (SELECT 1 FROM leases WHERE leases.number = tasks.number AND leases.holder = :by)
)
RETURNING number
"""
_CLOSE: Final = "DELETE FROM leases WHERE number = :number"
_KEEP_OPEN: Final = """
UPDATE leases SET name = :name, form = :form, holder = CASE WHEN :give_up THEN NULL ELSE holder END,
    leased_until = CASE WHEN :give_up THEN :free_since ELSE leased_until END
WHERE number = :number AND (:give_up OR form <> :form)
"""
_BEFORE_ALL_LEASES: Final = 2**50
"""For a task without a holder, ``leased_until`` is the time at which the task became free, minus this number. So the
task that has been free for longest is claimed first, before any task whose lease has expired."""
_MARKS: Final = """
SELECT group_concat(hex(tasks.id) || ' ' || hex(tasks.mark)) FROM json_each(?) AS asked
JOIN tasks ON tasks.id = CAST(asked.value AS BLOB)
"""
_PAGE: Final = f"""
{_SELECT} WHERE scope IN ({{scopes}}) AND (place, tasks.id) > (?, ?) AND (kept_until IS NULL OR kept_until >= ?)
ORDER BY place, tasks.id LIMIT ?
"""
_FREE: Final = """
SELECT number FROM leases WHERE name IN (SELECT value FROM json_each(?)) AND form IN ({forms}) AND leased_until < ?
ORDER BY leased_until LIMIT ?
"""
_LEASE: Final = "UPDATE leases SET holder = ?, leased_until = ? WHERE number IN ({numbers})"
_COUNT_CLAIM: Final = "UPDATE tasks SET epoch = epoch + 1, version = version + 1, mark = ? WHERE number IN ({numbers})"
_CLAIMED: Final = f"{_SELECT} WHERE tasks.number IN ({{numbers}})"
# Each SQL statement below changes thousands of tasks, and returns at most one row.
# If a statement returned many rows, the database thread would wait for trio's thread once per row.
_RENEW: Final = """
UPDATE leases SET leased_until = ? WHERE holder = ? AND hex(id) IN (SELECT value FROM json_each(?))
"""
_HELD: Final = "SELECT group_concat(hex(id)) FROM leases WHERE holder = ?"
_EXPIRE: Final = """
DELETE FROM tasks WHERE number IN (SELECT number FROM tasks WHERE kept_until < ? LIMIT ?) RETURNING id
"""

_LOCKED: Final = 3
"""Divisor of a lease's length. If a claim waits longer than the result, no process could write to the file
meanwhile."""
_CLOCK_STEP: Final = 1.0
"""If a clock has gained more than this number of seconds between two claims, the clock was set."""
_BEFORE_ALL: Final = (-(2**63), b"")


class DatabaseTaskStore:
    """A `TaskStore` that keeps its task records in ``database``, an SQLite file.

    ``hint_queues`` are notified of this process's own changes at once. ``writer`` marks these in the table of changes,
    so that they aren't reported twice.
    """

    def __init__(
        self, database: Database, secrets: Sequence[bytes], writer: bytes, hint_queues: HintQueues[str]
    ) -> None:
        self._codec = RecordCodec(secrets)
        self._database = database
        self._is_sealed = bool(secrets)
        self._hint_queues = hint_queues
        self._now: Callable[[], int] = database.now
        self._ahead: float | None = None
        """Seconds by which the machine's clock was ahead of the steady clock at the last claim."""
        self._claims_suspended_until = 0.0
        """Time on the steady clock until which tasks with expired leases aren't claimed."""
        self._writer = writer

    async def create(
        self, new: TaskRecord, *, lease_ms: int, ttl_ms: int | None, retention_ms: int, limit: int, scope_limit: int
    ) -> TaskRecord:
        """Store a new task record. See `TaskStore.create`."""

        def create(connection: sqlite3.Connection) -> TaskRecord:
            now, scopes = self._now(), self._codec.scope_keys(new.scope)
            asked = (encoded(new.id), now, *scopes)
            total, of_scope, last, is_void = connection.execute(_ROOM.format(scopes=_marks(scopes)), asked).fetchone()
            if total >= limit or of_scope >= scope_limit:
                raise StoreFull
            if is_void:
                raise ValueError("cannot create this task record: discard() was called with its id before")
            record = created_record(new, now, last, lease_ms=lease_ms, ttl_ms=ttl_ms, retention_ms=retention_ms)
            row = self._codec.encode(record)
            try:
                number = connection.execute(_INSERT, values := attrs.asdict(row)).lastrowid
            except sqlite3.IntegrityError:
                raise ValueError("a task record with this id already exists") from None
            if row.is_open:
                connection.execute(_OPEN, values | {"number": number, "free_since": now - _BEFORE_ALL_LEASES})
            record_changes(connection, self._writer, [row.id])
            return record

        record = await self._database.write(create)
        self._hint_queues.notify([record.id])
        return record

    async def discard(self, task_id: str, *, retention_ms: int) -> bool:
        """Delete a task record, or prevent the creation of a record that doesn't exist yet. See `TaskStore.discard`."""

        def void(connection: sqlite3.Connection) -> bool:
            now, name = self._now(), encoded(task_id)
            if connection.execute("DELETE FROM tasks WHERE id = ?", (name,)).rowcount:
                record_changes(connection, self._writer, [name])
                return True
            connection.execute("DELETE FROM void WHERE until <= ?", (now,))
            connection.execute("INSERT OR REPLACE INTO void VALUES (?, ?)", (name, now + retention_ms))
            return False

        was_there = await self._database.write(void)
        if was_there:
            self._hint_queues.notify([task_id])
        return was_there

    async def read(self, scope: str | None, task_id: str) -> StoredTask | None:
        """Return the record of a task; `None` if it doesn't exist. See `TaskStore.read`."""

        def read(connection: sqlite3.Connection) -> StoredTask | None:
            found = connection.execute(f"{_SELECT} WHERE tasks.id = ?", (encoded(task_id),)).fetchone()
            if found is None:
                return None
            record = self._decode(found)
            return StoredTask(record, self._now()) if scope in (None, record.scope) else None

        return await self._database.read(read)

    async def marks(self, task_ids: Collection[str]) -> Mapping[str, bytes]:
        """Return the mark of each task record: random bytes that identify its current version. See
        `TaskStore.marks`."""

        def marks(connection: sqlite3.Connection) -> Mapping[str, bytes]:
            (found,) = connection.execute(_MARKS, (json.dumps(list(task_ids)),)).fetchone()
            pairs = (each.split(" ") for each in found.split(",")) if found else ()
            return {decoded(bytes.fromhex(name)): bytes.fromhex(mark) for name, mark in pairs}

        return await self._database.read(marks)

    async def change(
        self, record: TaskRecord, *, expected_mark: bytes, holder: str | None, give_up: bool = False
    ) -> bool:
        """Replace a stored task record with ``record``, its next version. See `TaskStore.change`."""

        def change(connection: sqlite3.Connection) -> bool:
            row = self._codec.encode(record)
            values = attrs.asdict(row) | {"was": expected_mark, "by": holder, "give_up": give_up}
            values["free_since"] = self._now() - _BEFORE_ALL_LEASES
            changed = connection.execute(_CHANGE, values).fetchone()
            if changed is None:
                return False
            values["number"] = changed[0]
            if not row.is_open:
                connection.execute(_CLOSE, values)
            elif give_up or self._is_sealed:
                connection.execute(_KEEP_OPEN, values)
            record_changes(connection, self._writer, [row.id])
            return True

        changed = await self._database.write(change)
        if changed:
            self._hint_queues.notify([record.id])
        return changed

    async def page(self, scope: str, cursor: TaskCursor | None, limit: int) -> Sequence[TaskRecord]:
        """Return some task records of ``scope`` (the owner's scope), in order of creation. See `TaskStore.page`."""

        def page(connection: sqlite3.Connection) -> list[TaskRecord]:
            scopes = self._codec.scope_keys(scope)
            last = _BEFORE_ALL if cursor is None else (cursor[0], encoded(cursor[1]))
            rows = connection.execute(_PAGE.format(scopes=_marks(scopes)), (*scopes, *last, self._now(), max(limit, 0)))
            return list(map(self._decode, rows))

        return await self._database.read(page)

    async def claim(self, holder: str, *, lease_ms: int, limit: int, names: Collection[str]) -> Sequence[TaskRecord]:
        """Claim unfinished tasks that have no lease, or whose lease has expired. See `TaskStore.claim`."""
        asked = self._database.now.steady

        def take(connection: sqlite3.Connection) -> list[TaskRecord]:
            now, forms = self._now(), self._codec.forms
            over_before = self._expired_before(now, lease_ms, asked)
            keys = json.dumps([key for name in names for key in self._codec.name_keys(name)])
            free = connection.execute(
                _FREE.format(forms=_marks(forms)),
                (keys, *forms, over_before, max(limit, 0)),  # for SQLite, a negative limit would mean no limit
            ).fetchall()
            numbers = [number for (number,) in free]
            if not numbers:
                return []
            marks = _marks(numbers)
            connection.execute(_LEASE.format(numbers=marks), (holder, now + lease_ms, *numbers))
            connection.execute(_COUNT_CLAIM.format(numbers=marks), (holder.encode(), *numbers))
            rows = connection.execute(_CLAIMED.format(numbers=marks), numbers).fetchall()
            record_changes(connection, self._writer, [row[0] for row in rows])
            return list(decode_readable(self._decode, rows))

        try:
            claimed = await self._database.write(take)
        except OSError:
            self._suspend_claims(lease_ms)
            raise
        self._hint_queues.notify(record.id for record in claimed)
        return claimed

    def _suspend_claims(self, lease_ms: int) -> None:
        """Claim no tasks during the next ``lease_ms``. In that time, processes that still run their tasks can renew
        their leases."""
        self._claims_suspended_until = self._database.now.steady + lease_ms / 1000

    def _expired_before(self, now: int, lease_ms: int, asked: float) -> int:
        """Return the time before which a lease must have ended, so that another process may claim the task.

        It is 1, which excludes all leases, if holders couldn't renew: because the file was locked for long since
        ``asked``, or the machine's clock was set forward.
        """
        steady = self._database.now.steady
        ahead, before = now / 1000 - steady, self._ahead
        self._ahead = ahead
        was_set = before is not None and ahead - before > _CLOCK_STEP
        if was_set or steady - asked > lease_ms / 1000 / _LOCKED:
            self._suspend_claims(lease_ms)
        # A task that no process runs can always be claimed: its `leased_until` is negative (see `_BEFORE_ALL_LEASES`).
        return 1 if steady < self._claims_suspended_until else now

    def _decode(self, row: tuple[Any, ...]) -> TaskRecord:
        return self._codec.decode(StoredRecord(*row))

    async def renew(self, held: Mapping[str, str], *, lease_ms: int) -> Collection[str]:
        """Extend the leases of tasks that one process runs. See `TaskStore.renew`."""
        of_holders = defaultdict[str, list[str]](list)
        for task_id, holder in held.items():
            of_holders[holder].append(task_id)

        def renew(connection: sqlite3.Connection) -> list[str]:
            until, lost = self._now() + lease_ms, list[str]()
            for holder, task_ids in of_holders.items():
                names = {encoded(task_id).hex().upper(): task_id for task_id in task_ids}
                renewed = connection.execute(_RENEW, (until, holder, json.dumps(list(names)))).rowcount
                if renewed < len(names):
                    (found,) = connection.execute(_HELD, (holder,)).fetchone()
                    left = frozenset((found or "").split(","))
                    lost += [task_id for name, task_id in names.items() if name not in left]
            return lost

        return await self._database.write(renew, first=True)

    async def expire(self, *, limit: int) -> int:
        """Delete expired task records. See `TaskStore.expire`."""

        def expire(connection: sqlite3.Connection) -> list[bytes]:
            rows = connection.execute(_EXPIRE, (self._now(), max(limit, 0))).fetchall()
            deleted = [row[0] for row in rows]
            record_changes(connection, self._writer, deleted)
            return deleted

        deleted = await self._database.write(expire)
        self._hint_queues.notify(map(decoded, deleted))
        return len(deleted)


class SQLiteTaskStore(DatabaseTaskStore):
    """A `TaskStore` in the SQLite file ``path``, for any number of processes on one machine.

        store = SQLiteTaskStore("tasks.sqlite")
        server = Server("demo", tasks=TaskSettings(store=store))

    Args:
        path: The file. Its folder must exist, and be on a local disk: SQLite's write-ahead log doesn't work over a
            network. A new file can be read only by its user.
        secrets: If given, records are encrypted as described in `RecordCodec`. To rotate, first append the new secret
            in every process, then put it first. A record is encrypted with the first secret at its next change.
        synchronous: With ``"normal"``, a crash of the machine may lose the changes of the last moments; a crash of the
            process loses nothing. With ``"full"``, each change waits for the disk.
        poll_interval: Seconds between two checks for changes of other processes, while something watches.
        busy_timeout: Seconds for which a change waits for other processes.

    The file is opened when first used and need not be closed; `aclose`, or the end of ``async with``, closes it. Each
    method runs in one of two threads.

    After each boot, the store's clock starts with the machine's time at the first use, and then doesn't follow changes
    of the machine's clock until the next boot. On systems without a boot id (all except Linux), the store uses the
    machine's clock. If that clock is set forward, no task is taken over for the length of one lease.

    If the file is deleted or replaced while in use, the next call raises `StoreDown`, and then the new file is used. A
    record that can't be read raises `UnreadableRecord`, an `OSError`. `claim` skips records with other secrets or
    versions, which another process may be able to read.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        secrets: Sequence[bytes] = (),
        synchronous: Literal["normal", "full"] = "normal",
        poll_interval: float = 0.2,
        busy_timeout: float = 10.0,
    ) -> None:
        database = Database(Location(Path(path).absolute(), synchronous, busy_timeout))
        super().__init__(database, secrets, randomness.token_bytes(8), HintQueues[str]())
        self._poll_interval = poll_interval

    async def __aenter__(self) -> SQLiteTaskStore:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the file. The next use opens it again."""
        await self._database.aclose()

    @asynccontextmanager
    async def watch(self) -> AsyncGenerator[AsyncIterator[Hint]]:
        """Open a stream of the ids of tasks that change from now on. See `TaskStore.watch`."""
        with self._hint_queues.watch() as own:
            last = await self._database.read(last_change)
            yield DatabaseHints(own, self._database, self._writer, last, self._poll_interval)


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


_CHANGES_KEPT: Final = 10_000
"""Number of newest rows in the table of changes that are kept. It is more than several deletions of expired tasks add
between two polls. Session notifications are in the same table."""
_SWEEP_EVERY: Final = 64
"""Number of changes between two deletions of old rows in the table of changes."""


def record_changes(connection: sqlite3.Connection, writer: bytes, task_ids: Iterable[bytes]) -> None:
    """Add a row for each changed task to the table of changes, in the transaction that changes the tasks."""
    for task_id in task_ids:
        insert_change(connection, "INSERT INTO changes (id, writer) VALUES (?, ?)", task_id, writer)


def insert_change(connection: sqlite3.Connection, statement: str, *values: object) -> None:
    """Insert a row into the table of changes with the SQL ``statement``. Once in a while, delete old rows."""
    number = connection.execute(statement, values).lastrowid
    assert number is not None
    if number % _SWEEP_EVERY == 0:
        connection.execute("DELETE FROM changes WHERE number <= ?", (number - _CHANGES_KEPT,))


def last_change(connection: sqlite3.Connection) -> int:
    """Return the number of the newest row in the table of changes."""
    (number,) = connection.execute("SELECT coalesce(max(number), 0) FROM changes").fetchone()
    return number


class DatabaseHints(AsyncIterator[Hint]):
    """A stream of the ids of tasks that change in an SQLite file.

    This process's changes are reported at once, and those of other processes when a poll finds them.
    """

    def __init__(self, own: HintQueue[str], database: Database, writer: bytes, last: int, interval: float) -> None:
        self._own = own
        self._database = database
        self._writer = writer
        self._last = last
        self._interval = interval
        self._next_poll = trio.current_time() + interval
        self._found = deque[Hint]()
        self._state: tuple[int, int] | None = None
        self._is_quiet = False

    async def __anext__(self) -> Hint:
        while not self._found:
            with trio.move_on_at(self._next_poll):
                return await anext(self._own)
            # Poll only while a process changes the file, because a poll uses a thread.
            # The file's size and time may not show the last change, so poll once more after it.
            was, self._state = self._state, self._database.state()
            was_quiet, self._is_quiet = self._is_quiet, was == self._state
            if not (was_quiet and self._is_quiet):
                try:
                    self._found.extend(await self._database.read(self._poll))
                except OSError:
                    # The storage failed. Notifications may be lost, but calls of the store's methods raise the error.
                    self._state = None
            # Report this process's own changes first, even if the poll interval is very short.
            if (own := self._own.get_nowait()) is not None:
                self._found.append(own)
            self._next_poll = trio.current_time() + self._interval
        await trio.lowlevel.checkpoint()
        return self._found.popleft()

    def _poll(self, connection: sqlite3.Connection) -> list[Hint]:
        before, self._last = self._last, last_change(connection)
        rows = connection.execute(
            "SELECT id FROM changes WHERE number > ? AND number <= ? AND writer <> ? ORDER BY number",
            (before, self._last, self._writer),
        ).fetchall()
        (first,) = connection.execute("SELECT coalesce(min(number), 0) FROM changes").fetchone()
        found: list[Hint] = [decoded(task_id) for (task_id,) in rows]
        # If old rows were deleted or the file was replaced, notifications may be missing.
        return found if first <= before + 1 and before <= self._last else [HINTS_LOST, *found]
