"""Transactions are atomic, and raise the error that ended them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest

from trio_mcp.stores.sqlite_database import transaction
from trio_mcp.stores.task_store import Uncertain


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute("CREATE TABLE numbers (number UNIQUE)")
    yield connection
    connection.close()


def numbers(connection: sqlite3.Connection) -> list[int]:
    return [number for (number,) in connection.execute("SELECT number FROM numbers")]


def test_sqlite_transaction_is_committed_at_the_end_of_its_with_block(connection: sqlite3.Connection):
    with transaction(connection):
        connection.execute("INSERT INTO numbers VALUES (1)")
        assert connection.in_transaction
    assert not connection.in_transaction
    assert numbers(connection) == [1]


def test_sqlite_transaction_is_rolled_back_if_its_with_block_raises(connection: sqlite3.Connection):
    with pytest.raises(KeyError), transaction(connection):
        connection.execute("INSERT INTO numbers VALUES (1)")
        raise KeyError
    assert not connection.in_transaction
    assert numbers(connection) == []


def test_sqlite_transaction_is_rolled_back_if_its_commit_fails(connection: sqlite3.Connection):
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("CREATE TABLE others (number REFERENCES numbers (number) DEFERRABLE INITIALLY DEFERRED)")
    with pytest.raises(sqlite3.IntegrityError), transaction(connection):
        connection.execute("INSERT INTO others VALUES (7)")
    assert not connection.in_transaction
    assert connection.execute("SELECT * FROM others").fetchall() == []


@pytest.mark.parametrize(
    ("code", "expected"),
    [(sqlite3.SQLITE_IOERR_FSYNC, Uncertain), (sqlite3.SQLITE_FULL, sqlite3.OperationalError)],
)
def test_io_error_during_an_sqlite_commit_raises_an_uncertain_outcome_error(code: int, expected: type[Exception]):
    class Failing(sqlite3.Connection):
        def execute(self, statement: str, *values: object) -> sqlite3.Cursor:
            if statement == "COMMIT":
                error = sqlite3.OperationalError("disk I/O error")
                error.sqlite_errorcode = code
                raise error
            return super().execute(statement, *values)

    connection = sqlite3.connect(":memory:", isolation_level=None, factory=Failing)
    connection.execute("CREATE TABLE numbers (number UNIQUE)")
    with pytest.raises(expected), transaction(connection):
        connection.execute("INSERT INTO numbers VALUES (1)")
    assert not connection.in_transaction
    assert numbers(connection) == []
    connection.close()


def test_sqlite_error_that_rolls_back_its_transaction_is_raised_unchanged(
    connection: sqlite3.Connection,
):
    connection.execute("INSERT INTO numbers VALUES (1)")
    with pytest.raises(sqlite3.IntegrityError), transaction(connection):
        connection.execute("INSERT OR ROLLBACK INTO numbers VALUES (1)")
    assert numbers(connection) == [1]
