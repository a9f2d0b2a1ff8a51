"""Legacy sessions in a SQLite file: `SQLiteSessionDirectory` stores their state, `SQLiteEventLog` stores the events of
their streams."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

import attrs

from ....classes import frozen
from ....concurrency.fair_share import leaves_enough
from ....stores.record_codec import LINES, SESSION, STREAM, decode_columns, decoded, encoded
from ....stores.shared import FINISHED_STREAMS_LIMIT, StoredEvents, StoredSession, StoredStream
from ....stores.sqlite_database import has_row
from ....stores.task_store import StoreFull
from .hints import WatchedSQLitePart, sweep

_COUNT: Final = """
SELECT (SELECT sessions FROM session_total) - (SELECT count(*) FROM sessions WHERE until <= :now),
    coalesce((SELECT sessions FROM callers WHERE caller = :caller), 0)
    - (SELECT count(*) FROM sessions WHERE caller = :caller AND is_used IN (0, 1) AND until <= :now)
"""
_FIRST_OF: Final = """
SELECT number, id FROM sessions WHERE caller = ? AND until > ? ORDER BY is_used, until LIMIT 1
"""
_FIRST_UNUSED_OF: Final = """
SELECT number, id FROM sessions WHERE caller = ? AND is_used = 0 AND until > ? ORDER BY until LIMIT 1
"""
_FIRST_UNUSED: Final = "SELECT number, id FROM sessions WHERE NOT is_used AND until > ? ORDER BY until LIMIT 1"
_BIGGEST: Final = "SELECT caller, sessions FROM callers ORDER BY sessions DESC LIMIT 1"
_SWEEP_OF: Final = """
DELETE FROM sessions WHERE number IN (
    SELECT number FROM sessions WHERE caller = ? AND is_used IN (0, 1) AND until <= ? LIMIT 100
)
"""
_SWEEP_LIMIT: Final = 100


def _make_room(connection: sqlite3.Connection, caller: bytes, limit: int, now: int) -> bytes | None:
    """Delete a session if the limits on sessions are reached, so that ``caller`` can open a new session.

    Returns the id of the deleted session, or `None`.

    Raises `StoreFull`. See `SessionDirectory.open`.
    """
    count, held = connection.execute(_COUNT, {"now": now, "caller": caller}).fetchone()
    if leaves_enough(held, limit - count):
        return None
    found = None
    if count > limit:
        pass
    elif held:
        found = connection.execute(_FIRST_UNUSED_OF, (caller, now)).fetchone()
    elif (biggest := _largest_caller(connection, now)) is not None:
        found = connection.execute(_FIRST_OF, (biggest, now)).fetchone()
    else:
        found = connection.execute(_FIRST_UNUSED, (now,)).fetchone()
    if found is None:
        raise StoreFull
    connection.execute("DELETE FROM sessions WHERE number = ?", (found[0],))
    return found[1]


def _largest_caller(connection: sqlite3.Connection, now: int) -> bytes | None:
    """Return the caller that has the most sessions. Return `None` if no caller has more than one."""
    for _ in range(_SWEEP_LIMIT):
        caller, held = connection.execute(_BIGGEST).fetchone() or (None, 0)
        if held < 2 or not connection.execute(_SWEEP_OF, (caller, now)).rowcount:
            return caller if held >= 2 else None
    return None


class SQLiteSessionDirectory(WatchedSQLitePart[str]):
    """Stores MCP sessions in a SQLite file. See `SessionDirectory`."""

    async def open(
        self, session_id: str, state: bytes, *, caller: bytes, mark: bytes, idle_ms: int, limit: int
    ) -> str | None:
        """Store a new session. See `SessionDirectory.open`."""

        def open_session(connection: sqlite3.Connection) -> bytes | None:
            now, name = self._now(), encoded(session_id)
            sweep(connection, now, ["sessions"])
            connection.execute("DELETE FROM sessions WHERE id = ? AND until <= ?", (name, now))
            if has_row(connection, "SELECT 1 FROM sessions WHERE id = ?", name):
                raise ValueError("a session with this id already exists")
            ended = _make_room(connection, caller, limit, now)
            if ended is not None:
                self._insert_hint(connection, ended)
            connection.execute(
                "INSERT INTO sessions (id, caller, facts, mark, until) VALUES (?, ?, ?, ?, ?)",
                (name, caller, state, mark, now + idle_ms),
            )
            return ended

        ended = await self._database.write(open_session)
        if ended is None:
            return None
        self._notify_if_changed(decoded(ended), has_changed=True)
        return decoded(ended)

    async def read(self, session_id: str, *, idle_ms: int) -> StoredSession | None:
        """Return a stored session, and restart its idle timeout. See `SessionDirectory.read`."""

        def read(connection: sqlite3.Connection) -> StoredSession | None:
            now = self._now()
            found = connection.execute(
                "UPDATE sessions SET until = ?, is_used = 1 WHERE id = ? AND until > ? RETURNING facts, mark",
                (now + idle_ms, encoded(session_id), now),
            ).fetchone()
            return None if found is None else StoredSession(*decode_columns("a session", found, SESSION))

        return await self._database.write(read)

    async def exists(self, session_id: str) -> bool:
        """Return whether a session with this id exists. See `SessionDirectory.exists`."""

        def exists(connection: sqlite3.Connection) -> bool:
            find, name = "SELECT 1 FROM sessions WHERE id = ? AND until > ?", encoded(session_id)
            return has_row(connection, find, name, self._now())

        return await self._database.read(exists)

    async def change(self, session_id: str, state: bytes, *, expected_mark: bytes, mark: bytes, idle_ms: int) -> bool:
        """Replace the stored data of a session. See `SessionDirectory.change`."""

        def change(connection: sqlite3.Connection) -> bool:
            now, name = self._now(), encoded(session_id)
            changed = connection.execute(
                "UPDATE sessions SET facts = ?, mark = ?, until = ?, is_used = 1"
                " WHERE id = ? AND mark = ? AND until > ?",
                (state, mark, now + idle_ms, name, expected_mark, now),
            ).rowcount
            if changed:
                self._insert_hint(connection, name)
            return bool(changed)

        return self._notify_if_changed(session_id, await self._database.write(change))

    async def delete(self, session_id: str) -> bool:
        """Delete a stored session. See `SessionDirectory.delete`."""

        def end(connection: sqlite3.Connection) -> bool:
            name = encoded(session_id)
            ended = connection.execute("DELETE FROM sessions WHERE id = ? AND until > ?", (name, self._now())).rowcount
            if ended:
                self._insert_hint(connection, name)
            return bool(ended)

        return self._notify_if_changed(session_id, await self._database.write(end))


_BEGIN: Final = "INSERT INTO streams (log, name, holder, request_id) VALUES (?, ?, ?, ?)"
_OLDEST: Final = """
SELECT events.number, length(events.line) FROM events CROSS JOIN streams ON streams.number = events.stream
WHERE events.log = ? AND events.place <= streams.last - ? ORDER BY events.number
"""
_FINISH: Final = """
UPDATE streams SET kept_until = ?, finished = 1 + coalesce((
    SELECT max(finished) FROM streams AS others WHERE others.log = streams.log AND others.finished IS NOT NULL
), 0) WHERE number = ? RETURNING finished
"""


@frozen
class _StreamRow:
    """An SSE stream of a session, and the number of its row in the SQLite file."""

    number: int
    stored: StoredStream


class _SessionLog:
    """The event log of one MCP session, accessed in a transaction of ``connection``."""

    def __init__(self, connection: sqlite3.Connection, session: bytes, now: int) -> None:
        self._connection = connection
        self._session = session
        self._now = now
        found = self._execute("SELECT number, until FROM logs WHERE session = ?", session).fetchone()
        if found is not None and found[1] <= now:
            self._execute("DELETE FROM logs WHERE number = ?", found[0])
            found = None
        self._number: int | None = None if found is None else found[0]
        if self._number is not None:
            self._execute("DELETE FROM streams WHERE log = ? AND kept_until <= ?", self._number, now)

    def _execute(self, statement: str, *values: object) -> sqlite3.Cursor:
        return self._connection.execute(statement, values)

    def extend_retention(self, length: int) -> None:
        """Keep the session's event log for ``length`` milliseconds from now. Create the log if it doesn't exist."""
        until = self._now + length
        if self._number is None:
            sweep(self._connection, self._now, ["logs"])
            inserted = self._execute("INSERT INTO logs (session, until) VALUES (?, ?)", self._session, until)
            self._number = inserted.lastrowid
        else:
            self._execute("UPDATE logs SET until = ? WHERE number = ?", until, self._number)

    def find(self, name: str) -> _StreamRow | None:
        """Return the SSE stream ``name`` of the session. Return `None` if it doesn't exist."""
        found = self._execute(
            "SELECT number, holder, request_id, last, dropped, note, finished IS NOT NULL"
            " FROM streams WHERE log = ? AND name = ?",
            self._number,
            encoded(name),
        ).fetchone()
        if found is None:
            return None
        number, *state = found
        holder, request_id, last, dropped, note, is_finished = decode_columns("a stream", state, STREAM)
        return _StreamRow(
            number, StoredStream(name, decoded(holder), request_id, last, dropped, note, bool(is_finished))
        )

    def open_stream(self, new: StoredStream) -> None:
        """Create the SSE stream ``new`` in the session's event log. The log must exist."""
        self._execute(_BEGIN, self._number, encoded(new.name), encoded(new.holder), new.request_id)

    def set_holder(self, stream: _StreamRow, holder: str) -> None:
        """Set the holder of the SSE stream. From now on, only this holder may append events."""
        self._execute("UPDATE streams SET holder = ? WHERE number = ?", encoded(holder), stream.number)

    def append(self, stream: _StreamRow, lines: Sequence[bytes], limit: int, note: bytes | None = None) -> None:
        """Append the JSON-RPC messages ``lines`` to the SSE stream, as events. If the session's events exceed ``limit``
        bytes, the oldest are dropped."""
        last = stream.stored.last + len(lines)
        self._connection.executemany(
            "INSERT INTO events (log, stream, place, line) VALUES (?, ?, ?, ?)",
            [(self._number, stream.number, place, line) for place, line in enumerate(lines, stream.stored.last + 1)],
        )
        self._execute(
            "UPDATE streams SET last = ?, note = coalesce(?, note) WHERE number = ?", last, note, stream.number
        )
        self._drop_oldest(limit, 1)
        self._drop_oldest(limit, 0)

    def _drop_oldest(self, limit: int, spared: int) -> None:
        """Drop the session's oldest events until the remaining events fit into ``limit`` bytes.

        The newest ``spared`` events of each SSE stream are never dropped.
        """
        (size,) = self._execute("SELECT size FROM logs WHERE number = ?", self._number).fetchone()
        if size <= limit:
            return
        dropped = list[tuple[int]]()
        for number, length in (rows := self._execute(_OLDEST, self._number, spared)):
            dropped.append((number,))
            size -= length
            if size <= limit:
                break
        rows.close()
        self._connection.executemany("DELETE FROM events WHERE number = ?", dropped)

    def finish(self, stream: _StreamRow, length: int) -> None:
        """Finish the SSE stream, and keep it for ``length`` milliseconds from now."""
        (finished,) = self._execute(_FINISH, self._now + length, stream.number).fetchone()
        self._execute(
            "DELETE FROM streams WHERE log = ? AND finished <= ?", self._number, finished - FINISHED_STREAMS_LIMIT
        )

    def lines_after(self, stream: _StreamRow, number: int) -> list[bytes]:
        """Return the JSON-RPC messages in the events of the SSE stream after the event ``number``."""
        rows = self._execute(
            "SELECT line FROM events WHERE stream = ? AND place > ? ORDER BY place", stream.number, number
        )
        return decode_columns("events", [line for (line,) in rows], LINES)


class SQLiteEventLog(WatchedSQLitePart[tuple[str, str]]):
    """Stores SSE events in a SQLite file. See `EventLog`."""

    async def open(self, session_id: str, stream: str, *, holder: str, request_id: bytes, retention_ms: int) -> None:
        """Create an SSE stream in a session's event log. See `EventLog.open`."""
        new = _new_stream(stream, holder, request_id)

        def open_stream(connection: sqlite3.Connection) -> None:
            log, found = self._find(connection, session_id, stream)
            log.extend_retention(retention_ms)
            if found is None:
                log.open_stream(new)
            elif found.stored != new:
                raise ValueError("the session already has an SSE stream with this name")

        await self._database.write(open_stream)

    async def take_over(self, session_id: str, stream: str, *, holder: str, retention_ms: int) -> StoredStream:
        """Make ``holder`` the only writer that may append events to the SSE stream. See `EventLog.take_over`.

        If the stream doesn't exist, create it.
        """

        def take(connection: sqlite3.Connection) -> StoredStream:
            log, found = self._find(connection, session_id, stream)
            log.extend_retention(retention_ms)
            self._insert_hint(connection, encoded(session_id), encoded(stream))
            if found is None:
                log.open_stream(new := _new_stream(stream, holder, b""))
                return new
            if found.stored.is_finished:
                return found.stored
            log.set_holder(found, holder)
            return attrs.evolve(found.stored, holder=holder)

        taken = await self._database.write(take)
        self._queues.notify([(session_id, stream)])
        return taken

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
        last = first + len(lines) - 1

        def append(connection: sqlite3.Connection) -> bool:
            log, found = self._find(connection, session_id, stream)
            if found is None or found.stored.holder != holder:
                return False
            was = found.stored
            if was.is_finished and not (finish and last == was.last):
                return False
            if first > was.last + 1:
                raise ValueError(f"the next event of this SSE stream must have the number {was.last + 1}, not {first}")
            log.extend_retention(retention_ms)
            if last >= was.last and not was.is_finished:
                log.append(found, lines[was.last + 1 - first :], limit, note)
                if finish:
                    log.finish(found, retention_ms)
                self._insert_hint(connection, encoded(session_id), encoded(stream))
            return True

        return self._notify_if_changed((session_id, stream), await self._database.write(append))

    async def finish_dead(
        self, session_id: str, stream: str, *, dead_holder: str, line: bytes, limit: int, retention_ms: int
    ) -> bool:
        """Finish an SSE stream that only a dead replica could continue. See `EventLog.finish_dead`."""

        def finish(connection: sqlite3.Connection) -> bool:
            log, found = self._find(connection, session_id, stream)
            if found is None or found.stored.holder != dead_holder or found.stored.is_finished:
                return False
            log.extend_retention(retention_ms)
            log.set_holder(found, "")
            log.append(found, [line], limit)
            log.finish(found, retention_ms)
            self._insert_hint(connection, encoded(session_id), encoded(stream))
            return True

        return self._notify_if_changed((session_id, stream), await self._database.write(finish))

    async def read_after(self, session_id: str, stream: str, number: int, *, retention_ms: int) -> StoredEvents | None:
        """Return an SSE stream with its stored events after the event ``number``. See `EventLog.read_after`."""

        def after(connection: sqlite3.Connection) -> StoredEvents | None:
            log, found = self._find(connection, session_id, stream)
            if found is None:
                return None
            log.extend_retention(retention_ms)
            before = max(number, found.stored.dropped)
            return StoredEvents(found.stored, before + 1, log.lines_after(found, before))

        events = await self._database.write(after)
        if events is not None and events.lines and not events.stream.is_finished:
            self._hints.poll_fast()  # the caller waits for more events of this SSE stream, so poll for them soon
        return events

    async def delete(self, session_id: str) -> None:
        """Delete all SSE streams of a session. See `EventLog.delete`."""

        def forget(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM logs WHERE session = ?", (encoded(session_id),))

        await self._database.write(forget)

    def _find(
        self, connection: sqlite3.Connection, session_id: str, stream: str
    ) -> tuple[_SessionLog, _StreamRow | None]:
        log = _SessionLog(connection, encoded(session_id), self._now())
        return log, log.find(stream)


def _new_stream(name: str, holder: str, request_id: bytes) -> StoredStream:
    return StoredStream(name, holder, request_id, last=0, dropped=0, note=b"", is_finished=False)
