"""WriteAheadLog keeps the log of a file short, however many processes read and write."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Final

_LONG: Final = 16 * 1024 * 1024
"""Bytes, four times the length at which SQLite itself begins to empty the log."""
_PATIENCE_MS: Final = 100


class WriteAheadLog:
    """The write-ahead log of the file ``path``.

    SQLite empties the log between two readers. Where several processes read all the time, there is no such moment for
    long, and the log grows: some writer has to hold off the readers for a few milliseconds.
    """

    def __init__(self, path: Path) -> None:
        self._path = f"{path}-wal"
        self._long = _LONG

    def state(self) -> tuple[int, int]:
        """Return numbers that are others after each write of any process, unless several come within milliseconds.
        Cheap enough for trio's thread."""
        try:
            found = os.stat(self._path)
        except OSError:
            return 0, 0
        return found.st_size, found.st_mtime_ns

    def keep_short(self, connection: sqlite3.Connection) -> None:
        """Empty a log that is long. Raises nothing: where a reader stays, a backup for example, the next try is made
        when the log has grown further."""
        try:
            length = os.stat(self._path).st_size
            if length < self._long:
                return
            (patience,) = connection.execute("PRAGMA busy_timeout").fetchone()
            connection.execute(f"PRAGMA busy_timeout = {_PATIENCE_MS}")
            try:
                (is_busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            finally:
                connection.execute(f"PRAGMA busy_timeout = {patience}")
        except (OSError, sqlite3.Error):
            return  # the change is kept, and the next write tells what is wrong
        self._long = length + _LONG if is_busy else _LONG
