"""A transaction that writes, from its beginning to its commit."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Generator
from typing import Final

from ...concurrency.contexts import contextmanager
from ..task_store import Uncertain

_KIND: Final = 0xFF
"""The part of a result code of SQLite that says the kind of an error."""


@contextmanager
def transaction(connection: sqlite3.Connection) -> Generator[None]:
    """Keep all that the block changes, or nothing where the block or the commit fails. The only one that writes
    meanwhile, of all processes. Raises `Uncertain` where the disk fails during the commit: the log may have all of
    the change, and be read when the file is opened again."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        try:
            connection.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & _KIND == sqlite3.SQLITE_IOERR:
                raise Uncertain(errno.EIO, f"the disk failed while a change of tasks was written: {error}") from error
            raise
    except BaseException:
        if connection.in_transaction:  # some failures have ended the transaction already
            connection.execute("ROLLBACK")
        raise
