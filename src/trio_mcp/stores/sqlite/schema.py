"""The schema of the file, and how a connection to the file is opened."""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import attrs

from .transactions import transaction

_APPLICATION: Final = 0x74_6D_63_70
"""Mark of our files: "tmcp"."""
_VERSION: Final = 2
_OLDEST_SQLITE: Final = (3, 35, 0)
"""The first that has ``RETURNING``."""

_making: Final = threading.Lock()
"""Lock held until a new file is closed again: to close any descriptor of a file ends all locks that the process has on
the file, also for a connection in another thread."""

_SCHEMA: Final = """
CREATE TABLE tasks (
    number INTEGER PRIMARY KEY,
    id BLOB NOT NULL UNIQUE,
    scope BLOB NOT NULL,
    place INTEGER NOT NULL,
    kept_until INTEGER,
    epoch INTEGER NOT NULL,
    version INTEGER NOT NULL,
    mark BLOB NOT NULL,
    form BLOB NOT NULL,
    body BLOB NOT NULL
);
CREATE INDEX by_age ON tasks (scope, place, id);
CREATE INDEX by_end ON tasks (kept_until) WHERE kept_until IS NOT NULL;

-- One narrow row for each task that some process has to run: all leases of a process are renewed in one statement. No
-- index has the end of a lease, or each renewal would cost twice as much; a claim looks at the leases of its tools.
CREATE TABLE leases (
    number INTEGER PRIMARY KEY,
    id BLOB NOT NULL,
    name TEXT NOT NULL,
    form BLOB NOT NULL,
    holder TEXT,
    leased_until INTEGER NOT NULL
);
CREATE INDEX by_name ON leases (name, form);
CREATE INDEX by_holder ON leases (holder) WHERE holder IS NOT NULL;

-- Ids that no record may have.
CREATE TABLE void (id BLOB PRIMARY KEY, until INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX void_by_end ON void (until);

-- How many records there are, for the bounds of `create`.
CREATE TABLE total (records INTEGER NOT NULL);
INSERT INTO total VALUES (0);
CREATE TABLE scopes (scope BLOB PRIMARY KEY, records INTEGER NOT NULL) WITHOUT ROWID;
CREATE TRIGGER count_in AFTER INSERT ON tasks BEGIN
    UPDATE total SET records = records + 1;
    INSERT INTO scopes VALUES (new.scope, 1) ON CONFLICT (scope) DO UPDATE SET records = records + 1;
END;
CREATE TRIGGER count_out AFTER DELETE ON tasks BEGIN
    DELETE FROM leases WHERE number = old.number;
    UPDATE total SET records = records - 1;
    UPDATE scopes SET records = records - 1 WHERE scope = old.scope;
    DELETE FROM scopes WHERE scope = old.scope AND records = 0;
END;
CREATE TRIGGER count_over AFTER UPDATE OF scope ON tasks WHEN new.scope <> old.scope BEGIN
    INSERT INTO scopes VALUES (new.scope, 1) ON CONFLICT (scope) DO UPDATE SET records = records + 1;
    UPDATE scopes SET records = records - 1 WHERE scope = old.scope;
    DELETE FROM scopes WHERE scope = old.scope AND records = 0;
END;

-- The latest changes, for other processes that watch. Numbers only grow, since the last row is never deleted.
CREATE TABLE changes (number INTEGER PRIMARY KEY, id BLOB NOT NULL, writer BLOB NOT NULL);
"""


@attrs.frozen
class Location:
    """The file, and the demands on each connection to the file."""

    path: Path
    synchronous: str
    busy_timeout: float
    """Seconds to wait for other processes that write."""

    def connect(self) -> sqlite3.Connection:
        """Return a connection, for one thread at a time. Makes the file where there is none, for this user alone.
        Raises `OSError` for a file that is not ours to use."""
        if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
            raise OSError(errno.ENOSYS, f"SQLite is {sqlite3.sqlite_version}: 3.35 or newer is needed")
        with _making, suppress(FileExistsError):
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        connection = sqlite3.connect(
            self.path, timeout=self.busy_timeout, isolation_level=None, check_same_thread=False
        )
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        self._check(connection)
        self._use_log(connection)
        connection.execute(f"PRAGMA synchronous = {self.synchronous}")
        if self._check(connection) == 0:
            with transaction(connection):
                self._make(connection)

    def _make(self, connection: sqlite3.Connection) -> None:
        """Make the tables, unless another process was first."""
        if self._check(connection) == 0:
            for statement in _statements(_SCHEMA):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {_APPLICATION}")
            connection.execute(f"PRAGMA user_version = {_VERSION}")

    def _check(self, connection: sqlite3.Connection) -> int:
        """Return the version of the schema; 0 for a new file."""
        # In one statement: another process may be making the tables.
        application, version, tables = connection.execute(
            "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_master)"
            " FROM pragma_application_id, pragma_user_version"
        ).fetchone()
        if application != _APPLICATION and (application or version or tables):
            raise OSError(errno.EINVAL, f"{self.path} is no store of tasks, but a database of something else")
        if version > _VERSION:
            raise OSError(
                errno.EINVAL,
                f"{self.path} is of version {version}: a newer trio-mcp has made it, and this one knows {_VERSION}",
            )
        if 0 < version < _VERSION:
            raise OSError(
                errno.EINVAL,
                f"{self.path} is of version {version}, of before the first release, and this trio-mcp reads {_VERSION}:"
                " move the file away, and a new one is made",
            )
        return version

    def _use_log(self, connection: sqlite3.Connection) -> None:
        """Switch to the write-ahead log, with which readers and the writer do not wait for each other."""
        end = time.monotonic() + self.busy_timeout
        while True:
            try:
                (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
                break
            except sqlite3.OperationalError as error:
                # SQLite does not wait here for another process that opens the new file at the same time.
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                    raise
                time.sleep(0.01)
        if mode != "wal":
            raise OSError(errno.ENOTSUP, f"{self.path} cannot have a write-ahead log: is it on a disk of this machine?")


def _statements(script: str) -> list[str]:
    """Return the statements of a script, for a transaction, which `executescript` would end."""
    statements, begun = list[str](), ""
    for line in script.splitlines(keepends=True):
        begun += line
        if sqlite3.complete_statement(begun):
            statements.append(begun)
            begun = ""
    return statements
