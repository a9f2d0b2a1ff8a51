"""SqliteTaskStore keeps the records of tasks in a file, for several processes on one machine."""

from __future__ import annotations

import logging
import os
import secrets as randomness
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal

import attrs

from ...concurrency.contexts import asynccontextmanager
from ..record_codec import RecordCodec, StoredRecord, UnreadableRecord, decoded, encoded
from ..task_record import TaskRecord
from ..task_store import Claim, StoreFull
from ..watchers import Watchers
from .changes import Changes, last_change, note_changes
from .database import Database
from .schema import Location

__all__ = ["SqliteTaskStore"]

logger = logging.getLogger("trio_mcp")

_COLUMNS: Final = ", ".join(field.name for field in attrs.fields(StoredRecord))
_VALUES: Final = ", ".join(f":{field.name}" for field in attrs.fields(StoredRecord))
_SELECT: Final = f"SELECT {_COLUMNS} FROM tasks"  # noqa: S608 - the names are our own, here and below
_INSERT: Final = f"INSERT INTO tasks ({_COLUMNS}) VALUES ({_VALUES})"  # noqa: S608
_COUNT: Final = "SELECT coalesce(sum(records), 0) FROM scopes WHERE scope IN ({scopes})"
_CHANGE: Final = """
UPDATE tasks SET scope = :scope, kept_until = :kept_until, is_open = :is_open, owner = :owner,
    leased_until = CASE WHEN :owner IS NULL THEN 0 ELSE leased_until END,
    version = :version, form = :form, body = :body
WHERE id = :id AND version = :version - 1 AND epoch = :epoch
"""
_BEFORE_ALL: Final = (-(2**63), b"")
_PLACE: Final = "SELECT created_at, id FROM tasks WHERE scope IN ({scopes}) AND id = ?"
_PAGE: Final = f"""
{_SELECT} WHERE scope IN ({{scopes}}) AND (created_at, id) > (?, ?) ORDER BY created_at, id LIMIT ?
"""
_CLAIM: Final = f"""
UPDATE tasks SET owner = ?, leased_until = ?, epoch = epoch + 1, version = version + 1
WHERE number IN (
    SELECT number FROM tasks WHERE is_open AND leased_until < ? AND form IN ({{forms}}) ORDER BY leased_until LIMIT ?
)
RETURNING {_COLUMNS}
"""  # noqa: S608
_RENEW: Final = "UPDATE tasks SET leased_until = ? WHERE id = ? AND owner = ? AND is_open"


class SqliteTaskStore:
    """A `TaskStore` in the file ``path``, which any number of processes on one machine may use at the same time.

    The file is opened at the first use and need not be closed; ``async with`` closes it at the end of the block, and so
    does `aclose`. A new file can be read by its user alone. The folder must exist, and be on a disk of this machine:
    the write-ahead log of SQLite works over no network.

    ``secrets``: with any, the records are sealed as `RecordCodec` says. A new secret is first added behind the old one
    in every process, then put in front; a record moves to the first secret with its next change. ``synchronous``: with
    ``"normal"``, a crash of the machine may lose the changes of the last moments, and a crash of the process loses
    nothing; with ``"full"``, each change waits for the disk. ``poll_interval``: seconds between two looks for changes
    of other processes, as long as somebody watches. ``busy_timeout``: seconds for which a change waits for other
    processes.

    A record that cannot be read raises `UnreadableRecord`, an `OSError`; `claim` passes over records of other secrets
    or versions, which another process may read. Each method is done in one of two threads.
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
        if synchronous not in ("normal", "full"):
            raise ValueError(f'synchronous is "normal" or "full", not {synchronous!r}')
        self._codec = RecordCodec(secrets)
        self._database = Database(Location(Path(path).absolute(), synchronous, busy_timeout))
        self._poll_interval = poll_interval
        self._watchers = Watchers()
        self._writer = randomness.token_bytes(8)
        """Our name in the list of changes: our own watchers are told at once."""

    async def __aenter__(self) -> SqliteTaskStore:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the file, which a later use opens again."""
        await self._database.aclose()

    async def create(self, record: TaskRecord, *, most: int, most_of_scope: int) -> None:
        """Keep a new record. See `TaskStore.create`."""

        def create(connection: sqlite3.Connection) -> None:
            row = self._codec.encode(record)
            scopes = self._codec.scope_keys(record.scope)
            (total,) = connection.execute("SELECT records FROM total").fetchone()
            (of_scope,) = connection.execute(_of_scopes(_COUNT, scopes), scopes).fetchone()
            if total >= most or of_scope >= most_of_scope:
                raise StoreFull
            try:
                connection.execute(_INSERT, attrs.asdict(row))
            except sqlite3.IntegrityError:
                raise ValueError("there is a record with this id") from None
            note_changes(connection, self._writer, [row.id])

        await self._database.write(create)
        self._watchers.tell([record.id])

    async def read(self, scope: str | None, task_id: str) -> TaskRecord | None:
        """Return the record. See `TaskStore.read`."""

        def read(connection: sqlite3.Connection) -> TaskRecord | None:
            found = connection.execute(f"{_SELECT} WHERE id = ?", (encoded(task_id),)).fetchone()
            if found is None:
                return None
            record = self._codec.decode(StoredRecord(*found))
            return record if scope in (None, record.scope) else None

        return await self._database.read(read)

    async def change(self, record: TaskRecord) -> bool:
        """Keep the next version of a record. See `TaskStore.change`."""

        def change(connection: sqlite3.Connection) -> bool:
            row = self._codec.encode(record)
            if connection.execute(_CHANGE, attrs.asdict(row)).rowcount == 0:
                return False
            note_changes(connection, self._writer, [row.id])
            return True

        changed = await self._database.write(change)
        if changed:
            self._watchers.tell([record.id])
        return changed

    async def page(self, scope: str, after: str | None, most: int) -> Sequence[TaskRecord]:
        """Return a page of the records of ``scope``. See `TaskStore.page`."""

        def page(connection: sqlite3.Connection) -> list[TaskRecord]:
            scopes = self._codec.scope_keys(scope)
            last = _BEFORE_ALL
            if after is not None:
                last = connection.execute(_of_scopes(_PLACE, scopes), (*scopes, encoded(after))).fetchone()
                if last is None:
                    raise KeyError(after)
            rows = connection.execute(_of_scopes(_PAGE, scopes), (*scopes, *last, max(most, 0)))
            return [self._codec.decode(StoredRecord(*row)) for row in rows]

        return await self._database.read(page)

    async def claim(self, claim: Claim) -> Sequence[TaskRecord]:
        """Give tasks without a living owner to another. See `TaskStore.claim`."""

        def take(connection: sqlite3.Connection) -> list[TaskRecord]:
            forms = self._codec.forms
            rows = connection.execute(
                _CLAIM.format(forms=_marks(forms)),
                (claim.owner, claim.leased_until, claim.now, *forms, max(claim.most, 0)),  # -1 would be all
            ).fetchall()
            note_changes(connection, self._writer, [row[0] for row in rows])
            return list(self._readable(rows))

        claimed = await self._database.write(take)
        self._watchers.tell(record.id for record in claimed)
        return claimed

    def _readable(self, rows: Iterable[tuple[Any, ...]]) -> Iterator[TaskRecord]:
        for row in rows:
            try:
                yield self._codec.decode(StoredRecord(*row))
            except UnreadableRecord:
                # The others are claimed all the same. This one has an owner now, so that the next line is written when
                # the lease is over.
                logger.exception("A task that has lost its owner cannot be read, and nobody runs it")

    async def renew(self, owner: str, task_ids: Collection[str], leased_until: int) -> set[str]:
        """Lengthen the lease of tasks. See `TaskStore.renew`."""

        def renew(connection: sqlite3.Connection) -> set[str]:
            return {
                task_id
                for task_id in task_ids
                if connection.execute(_RENEW, (leased_until, encoded(task_id), owner)).rowcount == 0
            }

        return await self._database.write(renew)

    async def expire(self, now: int) -> int:
        """Delete records that need be kept no longer. See `TaskStore.expire`."""

        def expire(connection: sqlite3.Connection) -> list[bytes]:
            rows = connection.execute("DELETE FROM tasks WHERE kept_until < ? RETURNING id", (now,)).fetchall()
            deleted = [row[0] for row in rows]
            note_changes(connection, self._writer, deleted)
            return deleted

        deleted = await self._database.write(expire)
        self._watchers.tell(map(decoded, deleted))
        return len(deleted)

    @asynccontextmanager
    async def watch(self) -> AsyncGenerator[AsyncIterator[str]]:
        """Open a stream of hints. See `TaskStore.watch`."""
        with self._watchers.watch() as own:
            last = await self._database.read(last_change)
            yield Changes(own, self._database, self._writer, last, self._poll_interval)


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


def _of_scopes(statement: str, scopes: Sequence[bytes]) -> str:
    return statement.format(scopes=_marks(scopes))
