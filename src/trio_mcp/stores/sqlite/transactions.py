"""A transaction that writes, from its beginning to its commit."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator

from ...concurrency.contexts import contextmanager

__all__ = ["transaction"]


@contextmanager
def transaction(connection: sqlite3.Connection) -> Generator[None]:
    """Keep all that the block changes, or nothing where the block or the commit fails. The only one that writes
    meanwhile, of all processes."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # some failures have ended the transaction already
            connection.execute("ROLLBACK")
        raise
