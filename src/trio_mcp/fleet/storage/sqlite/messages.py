"""Messages between replicas through a SQLite file: `SQLiteChangeLog` records changes, and `SQLiteCourier` sends
messages."""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from typing import Final

import trio

from ....concurrency.contexts import asynccontextmanager
from ....concurrency.wakeups import Sleeper
from ....stores.record_codec import decode_columns, encoded
from ....stores.shared import CHANGES_LIMIT, MAX_MESSAGE_BYTES, ChangeCursor, ChangeHint, ChangesSince
from ....stores.sqlite_database import Database, has_row, snapshot
from ....stores.task_store import HINTS_LOST, HintsLost
from .hints import EXPIRING, HintPoller, SQLitePart, WatchedSQLitePart, changed_since, cursor_of, sweep

_MOST_DIGITS: Final = 18


class SQLiteChangeLog(WatchedSQLitePart[ChangeHint]):
    """Stores changes of tools, resources and prompts in a SQLite file. A position in this log is the file's id and a
    record's number. See `ChangeLog`."""

    async def record(self, changed: Collection[str]) -> None:
        """Record changes of tools, resources and prompts in the log. See `ChangeLog.record`."""
        if not changed:
            await trio.lowlevel.checkpoint()
            return
        things = frozenset(changed)

        def note(connection: sqlite3.Connection) -> tuple[bytes, int]:
            file, number = connection.execute("UPDATE change_log SET last = last + 1 RETURNING file, last").fetchone()
            connection.executemany(
                "INSERT INTO things VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET note = excluded.note",
                [(encoded(thing), number) for thing in things],
            )
            (count,) = connection.execute("SELECT things FROM change_log").fetchone()
            if count > CHANGES_LIMIT:
                forgotten = connection.execute(
                    "DELETE FROM things WHERE name IN (SELECT name FROM things ORDER BY note LIMIT ?) RETURNING note",
                    (count - CHANGES_LIMIT,),
                ).fetchall()
                connection.execute("UPDATE change_log SET forgotten = ?", max(forgotten))
            return decode_columns("the change log", (file, number), tuple[bytes, int])

        self._hints.notify_change(*await self._database.write(note), things)

    async def read_since(self, cursor: ChangeCursor | None) -> ChangesSince:
        """Return the changes that were recorded after the position ``cursor``. See `ChangeLog.read_since`."""

        def since(connection: sqlite3.Connection) -> ChangesSince:
            with snapshot(connection):
                file, last = connection.execute("SELECT file, last FROM change_log").fetchone()
                here = cursor_of(file, last)
                if cursor is None:
                    return ChangesSince(here, ())
                number = _number_of(cursor, file)
                changed = None if number is None else changed_since(connection, number)
                if changed is None:
                    return ChangesSince(here, (), everything=True)
                return ChangesSince(here, list(changed))

        return await self._database.read(since)


def _number_of(cursor: ChangeCursor, file: bytes) -> int | None:
    """Return the record number in ``cursor``. Return `None` if the cursor isn't a position in this file's change
    log."""
    mark, _, digits = cursor.partition(".")
    is_number = digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS
    return int(digits) if mark == file.hex() and is_number else None


_MAILBOX_LIMIT: Final = 1000
_MAILBOX_BYTES_LIMIT: Final = 4 * MAX_MESSAGE_BYTES
"""Maximum number of messages that wait for a replica, and of their bytes. Further messages are lost."""
_MESSAGE_RETENTION_MS: Final = 30_000
"""Milliseconds for which a message waits for its reader."""
_BATCH: Final = 64
_BATCH_BYTES: Final = 4 * 2**20
"""Maximum number of messages that are read from the file together, and of their bytes, except for a single longer
message."""

_WAITING: Final = """
SELECT count(*), total(length(letter)), (
    SELECT letter IS NULL FROM letters WHERE replica = :replica ORDER BY number DESC LIMIT 1
) FROM letters WHERE replica = :replica AND until > :now
"""


class SQLiteCourier(SQLitePart):
    """Sends messages between replicas in a SQLite file. Each message is a row, which the receiver deletes. See
    `Courier`.

    A row without content means that messages were lost.
    """

    def __init__(self, database: Database, hints: HintPoller, replica: str) -> None:
        super().__init__(database, hints)
        self._replica = replica
        self._mailbox: _SQLiteMailbox | None = None

    async def send(self, replica: str, content: bytes, *, number: int | None = None) -> None:
        """Send a message to another replica. See `Courier.send`."""
        if len(content) > MAX_MESSAGE_BYTES:
            raise ValueError(f"a message must have at most {MAX_MESSAGE_BYTES} bytes, not {len(content)}")

        def post(connection: sqlite3.Connection) -> None:
            now, name = self._now(), encoded(replica)
            sweep(connection, now, ["letters"])
            count, size, is_gap = connection.execute(_WAITING, {"replica": name, "now": now}).fetchone()
            has_room = count < _MAILBOX_LIMIT and size + len(content) <= _MAILBOX_BYTES_LIMIT
            if has_room or not is_gap:
                connection.execute(
                    "INSERT INTO letters (replica, letter, until) VALUES (?, ?, ?)",
                    (name, content if has_room else None, now + _MESSAGE_RETENTION_MS),
                )

        await self._database.write(post)
        if replica == self._replica and self._mailbox is not None:
            self._mailbox.notice()
        self._hints.poll_fast()  # a reply may follow

    @asynccontextmanager
    async def mailbox(self) -> AsyncGenerator[AsyncIterator[bytes | HintsLost]]:
        """Open the stream of messages that are sent to this replica. See `Courier.mailbox`."""
        if self._mailbox is not None:
            raise RuntimeError("mailbox() was called twice: the mailbox of this replica is already open")
        self._mailbox = mailbox = _SQLiteMailbox(self._database, self._hints, encoded(self._replica))
        self._hints.on_messages = mailbox.notice
        try:
            await mailbox.clear()
            yield mailbox
        finally:
            self._mailbox = self._hints.on_messages = None

    async def heartbeat(self, *, lease_ms: int) -> bool:
        """Mark this replica as alive for ``lease_ms`` milliseconds. See `Courier.heartbeat`.

        This write goes before other waiting writes, and also deletes expired rows.
        """

        def live(connection: sqlite3.Connection) -> bool:
            now, name = self._now(), encoded(self._replica)
            was_alive = _is_alive(connection, name, now)
            connection.execute(
                "INSERT INTO replicas VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET until = excluded.until",
                (name, now + lease_ms),
            )
            sweep(connection, now, EXPIRING)
            return was_alive

        return await self._database.write(live, first=True)

    async def leave(self) -> None:
        """Mark this replica as dead. See `Courier.leave`."""

        def leave(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM replicas WHERE id = ?", (encoded(self._replica),))

        await self._database.write(leave)

    async def find_dead(self, replicas: Collection[str]) -> Collection[str]:
        """Return the dead replicas among ``replicas``. See `Courier.find_dead`."""

        def dead(connection: sqlite3.Connection) -> Collection[str]:
            now = self._now()
            return {replica for replica in replicas if not _is_alive(connection, encoded(replica), now)}

        return await self._database.read(dead)


def _is_alive(connection: sqlite3.Connection, replica: bytes, now: int) -> bool:
    return has_row(connection, "SELECT 1 FROM replicas WHERE id = ? AND until > ?", replica, now)


class _SQLiteMailbox(SQLitePart, AsyncIterator[bytes | HintsLost]):
    """The stream of messages to one replica. Messages stay in the SQLite file until the reader needs more of them."""

    def __init__(self, database: Database, hints: HintPoller, replica: bytes) -> None:
        super().__init__(database, hints)
        self._replica = replica
        self._batch = deque[bytes | HintsLost]()
        self._may_have_more = False
        self._has_failed = False
        """True from a failure until the file is available again. Messages may be lost meanwhile."""
        self._sleeper = Sleeper()

    def notice(self) -> None:
        """Wake the task that reads the mailbox, because new messages have arrived. Synchronous."""
        self._may_have_more = True
        self._sleeper.wake()

    async def clear(self) -> None:
        """Delete the messages that were sent before the mailbox was opened.

        If the file is unavailable, the reader gets `HINTS_LOST` later.
        """

        def clear(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM letters WHERE replica = ?", (self._replica,))

        try:
            await self._database.write(clear)
        except OSError:
            self._may_have_more = self._has_failed = True

    async def __anext__(self) -> bytes | HintsLost:
        if self._batch:
            await trio.lowlevel.checkpoint()
        while not self._batch:
            if self._may_have_more:
                await self._read_batch()
            else:
                await self._sleeper.sleep()
        return self._batch.popleft()

    async def _read_batch(self) -> None:
        self._may_have_more = False
        try:
            letters, has_more = await self._database.write(self._delete_batch)
        except OSError:
            self._may_have_more = self._has_failed = True
            await trio.sleep(self._hints.interval)
            return
        except BaseException:  # a cancelled read has deleted no messages, so read them again
            self._may_have_more = True
            raise
        self._may_have_more |= has_more
        if self._has_failed:
            self._batch.append(HINTS_LOST)
            self._has_failed = False
        self._batch.extend(letters)
        if letters:
            self._hints.poll_fast()

    def _delete_batch(self, connection: sqlite3.Connection) -> tuple[list[bytes | HintsLost], bool]:
        now, last, size = self._now(), 0, 0
        waiting = connection.execute(
            "SELECT number, coalesce(length(letter), 0) FROM letters WHERE replica = ? ORDER BY number LIMIT ?",
            (self._replica, _BATCH),
        ).fetchall()
        for number, length in waiting:
            size += length
            if last and size > _BATCH_BYTES:
                break
            last = number
        taken = connection.execute(
            "DELETE FROM letters WHERE replica = ? AND number <= ? RETURNING number, letter, until",
            (self._replica, last),
        ).fetchall()
        has_more = has_row(connection, "SELECT 1 FROM letters WHERE replica = ?", self._replica)
        letters = [HINTS_LOST if letter is None else letter for _, letter, until in sorted(taken) if until > now]
        return letters, has_more
