"""Changes of tasks, for other processes: each change leaves a row, and watchers look for new rows."""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import AsyncIterator, Iterable
from typing import Final

import trio

from ..record_codec import decoded
from ..task_store import GAP, Hint
from ..watchers import Hints
from .database import Database

_KEPT: Final = 1000
_SWEEP: Final = 64
"""Changes between two deletions of old rows."""


def note_changes(connection: sqlite3.Connection, writer: bytes, task_ids: Iterable[bytes]) -> None:
    """Leave a row for each task, in the transaction of the change. Rows of long ago are deleted."""
    for task_id in task_ids:
        number = connection.execute("INSERT INTO changes (id, writer) VALUES (?, ?)", (task_id, writer)).lastrowid
        assert number is not None
        if number % _SWEEP == 0:
            connection.execute("DELETE FROM changes WHERE number <= ?", (number - _KEPT,))


def last_change(connection: sqlite3.Connection) -> int:
    """Return the number of the last change."""
    (number,) = connection.execute("SELECT coalesce(max(number), 0) FROM changes").fetchone()
    return number


class Changes(AsyncIterator[Hint]):
    """The tasks that this process changes, at once, and the tasks of others, when the next look finds their rows."""

    def __init__(self, own: Hints, database: Database, writer: bytes, last: int, interval: float) -> None:
        self._own = own
        self._database = database
        self._writer = writer
        self._last = last
        self._interval = interval
        self._next_look = trio.current_time() + interval
        self._found = deque[Hint]()
        self._state: tuple[int, int] | None = None
        self._is_quiet = False

    async def __anext__(self) -> Hint:
        while not self._found:
            with trio.move_on_at(self._next_look):
                return await anext(self._own)
            # A look takes a thread, five times a second, for nothing where nobody writes. One more look than there were
            # changes, since two writes may come so close to each other that the file does not show the second.
            was, self._state = self._state, self._database.state()
            was_quiet, self._is_quiet = self._is_quiet, was == self._state
            if not (was_quiet and self._is_quiet):
                try:
                    self._found.extend(await self._database.read(self._look))
                except OSError:  # hints may be lost, and every other method tells
                    self._state = None
            if (own := self._own.take_now()) is not None:  # however short the interval is
                self._found.append(own)
            self._next_look = trio.current_time() + self._interval
        await trio.lowlevel.checkpoint()
        return self._found.popleft()

    def _look(self, connection: sqlite3.Connection) -> list[Hint]:
        before, self._last = self._last, last_change(connection)
        rows = connection.execute(
            "SELECT id FROM changes WHERE number > ? AND number <= ? AND writer <> ? ORDER BY number",
            (before, self._last, self._writer),
        ).fetchall()
        (first,) = connection.execute("SELECT coalesce(min(number), 0) FROM changes").fetchone()
        found: list[Hint] = [decoded(task_id) for (task_id,) in rows]
        # Rows of long ago are deleted; and the file may be another one by now.
        return found if first <= before + 1 and before <= self._last else [GAP, *found]
