"""Concurrent writes are committed in one transaction and don't affect each other."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio._core._run as scheduler
import trio.testing
from tests.patience import PATIENCE

from trio_mcp.stores.sqlite_database import Database, Location, Schema
from trio_mcp.stores.task_store import StoreDown

NOTES = Schema(
    "notebook",
    7,
    1,
    lambda: "CREATE TABLE notes (text TEXT UNIQUE NOT NULL, CHECK (text <> 'refused'));",
    "DELETE FROM notes",
)
INSERT = "INSERT INTO notes VALUES (?)"


class Refused(Exception):
    """Raised by a function that has changed something before."""


class Notebook:
    """A file of notes, whose writer can be held up."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.path = path
        self.database = Database(Location(path, "normal", options.get("busy_timeout", 10.0), NOTES))
        self.statements = list[str]()
        self.held = threading.Event()
        self.release = threading.Event()

    async def open(self) -> None:
        await self.database.write(lambda connection: connection.set_trace_callback(self.statements.append))

    async def note(self, text: str | None, *, fails: bool = False) -> str | None:
        def note(connection: sqlite3.Connection) -> str | None:
            connection.execute(INSERT, (text,))
            if fails:
                raise Refused(text)
            return text

        return await self.database.write(note)

    async def hold(self) -> None:
        """Keep the writer busy until released."""

        def hold(_: sqlite3.Connection) -> None:
            self.held.set()
            assert self.release.wait(PATIENCE)

        await self.database.write(hold)

    @asynccontextmanager
    async def holding(self) -> AsyncGenerator[trio.Nursery]:
        """Hold the writer up while inside: what is started waits together."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.hold)
            await trio.to_thread.run_sync(self.held.wait, PATIENCE)
            yield nursery
            await trio.testing.wait_all_tasks_blocked()
            self.statements.clear()
            self.release.set()

    def notes(self) -> set[str]:
        connection = sqlite3.connect(self.path)
        try:
            return {text for (text,) in connection.execute("SELECT text FROM notes")}
        finally:
            connection.close()


@pytest.fixture
async def notebook(tmp_path: Path) -> Notebook:
    notebook = Notebook(tmp_path / "notes.db")
    await notebook.open()
    return notebook


async def test_queued_sqlite_writes_are_committed_in_one_transaction(notebook: Notebook):
    async with notebook.holding() as nursery:
        for number in range(90):
            nursery.start_soon(notebook.note, str(number))
    assert notebook.notes() == set(map(str, range(90)))
    assert notebook.statements.count("BEGIN IMMEDIATE") == 1


async def test_number_of_writes_in_one_sqlite_transaction_is_limited(notebook: Notebook):
    async with notebook.holding() as nursery:
        for number in range(1000):
            nursery.start_soon(notebook.note, str(number))
    assert len(notebook.notes()) == 1000
    assert notebook.statements.count("BEGIN IMMEDIATE") == 10


@pytest.mark.parametrize("text", ["refused", None, "0"])
async def test_write_that_fails_does_not_affect_other_writes_in_the_same_sqlite_transaction(
    notebook: Notebook, text: str | None
):
    errors = list[BaseException]()

    async def fail(text: str | None, **options: Any) -> None:
        with pytest.raises((Refused, StoreDown)) as caught:
            await notebook.note(text, **options)
        errors.append(caught.value)

    async with notebook.holding() as nursery:
        for number in range(10):
            nursery.start_soon(notebook.note, str(number))
            nursery.start_soon(lambda number=number: fail(f"fails {number}", fails=True))
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(fail, text)
    assert notebook.notes() == set(map(str, range(10)))
    assert sorted(type(error).__name__ for error in errors) == ["Refused"] * 10 + ["StoreDown"]
    assert len(set(map(id, errors))) == 11


async def test_queued_sqlite_write_that_is_cancelled_is_not_executed(notebook: Notebook):
    async with notebook.holding() as nursery:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as left:
                for number in range(5):
                    nursery.start_soon(notebook.note, f"kept {number}")
                    left.start_soon(notebook.note, f"left {number}")
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
    assert notebook.notes() == {f"kept {number}" for number in range(5)}


async def test_sqlite_write_that_is_already_being_executed_is_completed_despite_a_cancel(notebook: Notebook):
    begun, go_on = threading.Event(), threading.Event()
    returned = list[str | None]()
    scope = trio.CancelScope()

    def wait(_: sqlite3.Connection) -> None:
        begun.set()
        assert go_on.wait(PATIENCE)

    async def note() -> None:
        with scope:
            returned.append(await notebook.note("in the same transaction"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(notebook.hold)
        await trio.to_thread.run_sync(notebook.held.wait, PATIENCE)
        nursery.start_soon(notebook.database.write, wait)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(note)
        await trio.testing.wait_all_tasks_blocked()
        notebook.release.set()
        await trio.to_thread.run_sync(begun.wait, PATIENCE)
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert returned == []
        go_on.set()
    assert returned == ["in the same transaction"]
    assert notebook.notes() == set(returned)


async def test_all_queued_writes_fail_together_if_the_sqlite_file_is_locked(tmp_path: Path):
    notebook = Notebook(tmp_path / "notes.db", busy_timeout=0.2)
    await notebook.open()
    lock = sqlite3.connect(notebook.path, isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    failed = list[str]()

    async def fail(text: str) -> None:
        with pytest.raises(StoreDown, match="locked"):
            await notebook.note(text)
        failed.append(text)

    with trio.fail_after(PATIENCE):  # one after the other would take 60 s
        async with trio.open_nursery() as nursery:
            for number in range(300):
                nursery.start_soon(fail, str(number))
    assert len(failed) == 300
    lock.execute("ROLLBACK")
    lock.close()
    assert await notebook.note("later") == "later"
    assert notebook.notes() == {"later"}


@pytest.mark.parametrize("seed", range(20))
async def test_each_concurrent_sqlite_writer_gets_its_own_result_in_any_task_order(notebook: Notebook, seed: int):
    scheduler._r.seed(seed)
    chance = scheduler._r

    async def use(number: int) -> None:
        with trio.CancelScope() as scope:
            if chance.random() < 0.2:
                scope.cancel()
            elif chance.random() < 0.2:
                scope.deadline = trio.current_time() + 0.001
            match number % 4:
                case 0:
                    with pytest.raises(Refused, match=str(number)):
                        await notebook.note(str(number), fails=True)
                    await trio.lowlevel.checkpoint()
                case 1:
                    assert await notebook.database.read(lambda _: number) == number
                case _:
                    kept.add(number) if await notebook.note(str(number)) == str(number) else None
        if scope.cancelled_caught:
            cancelled.add(number)

    kept, cancelled = set[int](), set[int]()
    async with trio.open_nursery() as nursery:
        for number in range(60):
            nursery.start_soon(use, number)
    assert notebook.notes() == set(map(str, kept))
