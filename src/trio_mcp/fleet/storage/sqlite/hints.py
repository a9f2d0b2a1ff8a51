"""HintPoller polls the SQLite file for changes that other replicas have made, and notifies this replica's watchers.

Each change of a task, a session or its events adds a row to a table. The file also stores the numbers of changed
things, and messages are rows, too. One poll finds all of these.
"""

from __future__ import annotations

import logging
import secrets as randomness
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final, Generic, TypeVar

import trio

from ....classes import frozen
from ....concurrency.contexts import asynccontextmanager
from ....concurrency.wakeups import Sleeper
from ....stores.record_codec import decode_columns, decoded, encoded
from ....stores.shared import ChangeCursor, ChangeHint
from ....stores.sqlite_database import Database, has_row, snapshot
from ....stores.sqlite_store import DatabaseTaskStore, insert_change
from ....stores.task_store import HINTS_LOST, Hint, HintQueue, HintQueues, HintsLost, UnreadableRecord

logger = logging.getLogger("trio_mcp")

T = TypeVar("T")

_FAST: Final = 0.02
"""Seconds between two polls while replicas exchange messages or events."""
_FAST_FOR: Final = 2.0
"""Seconds of fast polling after the latest message or event."""
TASK: Final = "task"
SESSION: Final = "session"
STREAM: Final = "stream"
"""Kinds of rows in the table of changes."""
_SWEPT: Final = {"sessions": 100, "logs": 10, "letters": 20, "replicas": 100, "seen": 100, "buckets": 100}
"""For each table, how many expired rows one write deletes at most.

That is more than a write adds, and little enough for other processes that wait for their turn. A log has many events,
and a message may be long.
"""
EXPIRING: Final = tuple(_SWEPT)
"""The tables whose rows expire, at the time in ``until``."""


def sweep(connection: sqlite3.Connection, now: int, tables: Iterable[str]) -> None:
    """Delete expired rows from ``tables``, at most a few per table.

    Call this in a transaction that is already open for another change.
    """
    for table in tables:
        connection.execute(
            f"DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} WHERE until <= ? LIMIT ?)",  # noqa: S608 - the names are our own
            (now, _SWEPT[table]),
        )


def cursor_of(file: bytes, number: int) -> ChangeCursor:
    """Return the position in the change log after the record ``number``. ``file`` is the id of the SQLite file."""
    return f"{file.hex()}.{number}"


@frozen
class _FilePosition:
    """A position in the SQLite file's tables of notifications and changes. All rows up to this position were
    reported."""

    file: bytes
    """The unique mark of the file. If another file replaces it, that file has another mark."""
    hint: int
    """Number of the last notification row."""
    note: int
    """Number of the last record in the change log."""


_PLACE: Final = tuple[bytes, int, int]
_NOWHERE: Final = _FilePosition(b"", 0, 0)


@frozen
class _PollResult:
    """The changes and messages after a position that one poll of the SQLite file has found."""

    position: _FilePosition
    """The position at the time of the poll."""
    hints: list[tuple[str, bytes, bytes | None]]
    """The tasks, sessions and streams that other replicas have changed, with their kinds."""
    are_missing: bool
    """True if notification rows after the position were already deleted."""
    changed: Mapping[str, int] | None
    """The changed things, with the numbers of their last records; `None` if the log no longer contains all changes."""
    has_messages: bool


class HintPoller:
    """Polls the SQLite file for changes of other replicas every ``interval`` seconds.

    It polls more often while replicas exchange messages or events.

    If a poll fails, nothing is lost: the next poll finds the same. ``replica`` is the reader of messages.
    ``on_messages`` is called if there are any.
    """

    def __init__(self, database: Database, replica: str, interval: float) -> None:
        self.tasks = HintQueues[str]()
        self.sessions = HintQueues[str]()
        self.events = HintQueues[tuple[str, str]]()
        self.changes = HintQueues[ChangeHint]()
        self.on_messages: Callable[[], None] | None = None
        self.interval = interval
        self.writer = randomness.token_bytes(8)
        """This id marks the rows of this replica. The replica's own watchers are notified at once, so polls skip these
        rows."""
        self._database = database
        self._replica = encoded(replica)
        self._position: _FilePosition = _NOWHERE
        self._poll_lock = trio.Lock()
        self._fast_until = 0.0
        self._sleeper = Sleeper()
        self._state: tuple[int, int] | None = None
        self._is_quiet = False

    async def start(self) -> None:
        """Read the current position in the SQLite file. Only later changes are reported.

        Raises `OSError` if the file can't be read.
        """
        self._position = await self._database.read(_current_position)

    async def run(self) -> None:
        """Poll the SQLite file and notify watchers, until cancelled."""
        while True:
            await self._next_poll()
            # Poll only if the file has changed, because a poll uses a thread.
            # Poll once more after the last change, because the file's size and time don't always show this change.
            was, self._state = self._state, self._database.state()
            was_quiet, self._is_quiet = self._is_quiet, was == self._state
            if not (was_quiet and self._is_quiet):
                await self.poll()

    async def poll(self) -> None:
        """Poll the SQLite file now, and notify all watchers of the changes found."""
        async with self._poll_lock:  # the lock prevents two simultaneous polls, which would report the same changes
            try:
                found = await self._database.read(partial(_poll, self._position, self.writer, self._replica))
            except OSError:  # ignore the error, because calls that read or write the file raise it, too
                self._state = None
            else:
                self._notify(found)

    @asynccontextmanager
    async def watch(self, queues: HintQueues[T]) -> AsyncGenerator[HintQueue[T]]:
        """Open a stream of notifications about the changes that are stored in the SQLite file after this call. If the
        file can't be read now, earlier changes may be reported later."""
        await self.poll()
        with queues.watch() as hints:
            yield hints

    async def _next_poll(self) -> None:
        now = begun = trio.current_time()
        while now < (due := begun + (min(_FAST, self.interval) if now < self._fast_until else self.interval)):
            with trio.move_on_at(due):
                await self._sleeper.sleep()
            now = trio.current_time()
        await trio.lowlevel.checkpoint()  # let other tasks run, even if the interval is 0

    def poll_fast(self) -> None:
        """Poll the file more often for a while, because replicas have just exchanged a message or an event."""
        now = trio.current_time()
        if now >= self._fast_until:
            self._sleeper.wake()
        self._fast_until = now + _FAST_FOR

    def notify_change(self, file: bytes, number: int, changed: Iterable[str]) -> None:
        """Notify watchers at once of a change that this replica has recorded. Do nothing if a poll has already found
        this change."""
        at = self._position
        if file == at.file and number <= at.note:
            return
        if file == at.file and number == at.note + 1:
            self._position = _FilePosition(file, at.hint, number)
        self.changes.notify([ChangeHint(cursor_of(file, number - 1), cursor_of(file, number), frozenset(changed))])

    def _notify(self, found: _PollResult) -> None:
        was, now = self._position, found.position
        if found.are_missing:
            self._notify_hints_lost()
        for kind, name, stream in dict.fromkeys(found.hints):
            try:
                self._notify_hint(kind, name, stream)
            except UnreadableRecord as error:  # no replica writes an invalid row
                logger.warning("ignored an invalid hint: %s", error)
                self._notify_hints_lost()
        if was.file == now.file and now.note <= was.note:
            # This replica may have reported a later change during the poll, so keep its position in the change log.
            self._position = _FilePosition(now.file, now.hint, was.note)
        else:
            self.changes.notify([self._change_hint(found)])
            self._position = now
        if found.has_messages and self.on_messages is not None:
            self.on_messages()

    def _notify_hint(self, kind: str, name: bytes, stream: bytes | None) -> None:
        if kind == TASK:
            self.tasks.notify([decoded(name)])
        elif stream is None:
            self.sessions.notify([decoded(name)])
        else:
            self.events.notify([(decoded(name), decoded(stream))])

    def _notify_hints_lost(self) -> None:
        for queues in (self.tasks, self.sessions, self.events):
            queues.notify([HINTS_LOST])

    def _change_hint(self, found: _PollResult) -> ChangeHint | HintsLost:
        was, now = self._position, found.position
        if found.changed is None or was.file != now.file:
            return HINTS_LOST
        # Skip the changes that this replica has reported while the poll ran.
        changed = frozenset(thing for thing, note in found.changed.items() if note > was.note)
        return ChangeHint(cursor_of(was.file, was.note), cursor_of(now.file, now.note), changed)


class SQLitePart:
    """A part of the storage in the SQLite file ``database``. ``hints`` reports the changes of other replicas."""

    def __init__(self, database: Database, hints: HintPoller) -> None:
        self._database = database
        self._hints = hints
        self._now = database.now

    def _insert_hint(self, connection: sqlite3.Connection, session: bytes, stream: bytes | None = None) -> None:
        """Insert a row that notifies other replicas of a change, within the transaction that makes the change."""
        kind, writer = SESSION if stream is None else STREAM, self._hints.writer
        insert = "INSERT INTO changes (id, writer, kind, stream) VALUES (?, ?, ?, ?)"
        insert_change(connection, insert, session, writer, kind, stream)


class WatchedSQLitePart(SQLitePart, Generic[T]):
    """A part of the storage whose changes are reported to the readers of ``queues``."""

    def __init__(self, database: Database, hints: HintPoller, queues: HintQueues[T]) -> None:
        super().__init__(database, hints)
        self._queues = queues

    def watch(self) -> AbstractAsyncContextManager[AsyncIterator[T | HintsLost]]:
        """Open a stream of notifications about changes. See `SessionDirectory.watch`."""
        return self._hints.watch(self._queues)

    def _notify_if_changed(self, hint: T, has_changed: bool) -> bool:
        if has_changed:
            self._queues.notify([hint])
        return has_changed


class SQLiteTasks(DatabaseTaskStore):
    """The task records in a SQLite file that replicas share. ``hints`` reports the changes of other replicas."""

    def __init__(self, database: Database, secrets: Sequence[bytes], hints: HintPoller) -> None:
        super().__init__(database, secrets, hints.writer, hints.tasks)
        self._hints = hints

    def watch(self) -> AbstractAsyncContextManager[AsyncIterator[Hint]]:
        """Open a stream of notifications about changed tasks. See `TaskStore.watch`."""
        return self._hints.watch(self._hints.tasks)


def _current_position(connection: sqlite3.Connection) -> _FilePosition:
    found = connection.execute(
        "SELECT file, (SELECT coalesce(max(number), 0) FROM changes), last FROM change_log"
    ).fetchone()
    return _FilePosition(*decode_columns("the change log", found, _PLACE))


def _poll(was: _FilePosition, writer: bytes, replica: bytes, connection: sqlite3.Connection) -> _PollResult:
    with snapshot(connection):
        now = _current_position(connection)
        hints = connection.execute(
            "SELECT kind, id, stream FROM changes WHERE number > ? AND writer <> ? ORDER BY number", (was.hint, writer)
        ).fetchall()
        (first,) = connection.execute("SELECT coalesce(min(number), 0) FROM changes").fetchone()
        return _PollResult(
            position=now,
            hints=hints,
            are_missing=now.file != was.file or first > was.hint + 1,
            changed=changed_since(connection, was.note),
            has_messages=has_row(connection, "SELECT 1 FROM letters WHERE replica = ?", replica),
        )


def changed_since(connection: sqlite3.Connection, number: int) -> Mapping[str, int] | None:
    """Return what has changed after record ``number`` of the change log.

    The result maps the name of each changed list or resource to the number of its last record.

    Returns `None` if the log no longer contains all these changes.
    """
    (is_known,) = connection.execute("SELECT ? BETWEEN forgotten AND last FROM change_log", (number,)).fetchone()
    if not is_known:
        return None
    rows = connection.execute("SELECT name, note FROM things WHERE note > ? ORDER BY note", (number,))
    try:
        return {decoded(name): note for name, note in rows}
    except UnreadableRecord:  # report the log as unreadable, because readers could never get past this record
        return None
