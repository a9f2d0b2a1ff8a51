"""Several processes use one file, and each can be killed at any time."""

from __future__ import annotations

import os
import random
import sqlite3
from pathlib import Path

import pytest
import trio
from tests.forked import Forked
from tests.patience import PATIENCE

from trio_mcp.stores.sqlite_store import SQLiteTaskStore
from trio_mcp.testing.stores.task_store_records import create, record

WRITER = str(Path(__file__).with_name("writer.py"))
CLAIMER = str(Path(__file__).with_name("claimer.py"))

ROUNDS = 3


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


class Writer:
    """A process that writes, and the versions that the store has accepted from it."""

    def __init__(self, path: Path, name: str) -> None:
        ours, theirs = os.pipe()
        self._said = os.fdopen(ours, "rb")
        self._process = Forked([WRITER, str(path), name], stdin=theirs, stdout=theirs, stderr=2)
        os.close(theirs)
        self.accepted = dict[str, int]()

    def wait_for(self, changes: int) -> None:
        """Wait until the store has accepted that many more."""
        for _ in range(changes):
            line = self._said.readline()
            assert line, "the process goes on"
            self._take(line)

    def kill(self) -> None:
        self._process.kill()
        for line in self._said:
            self._take(line)
        self._said.close()

    def _take(self, line: bytes) -> None:
        task_id, version = line.decode().split()
        self.accepted[task_id] = int(version)


async def test_sqlite_task_store_loses_no_committed_change_when_processes_are_killed(path: Path):
    chance, accepted = random.Random(8), dict[str, int]()
    for turn in range(ROUNDS):
        writers = [Writer(path, f"{turn}{letter}") for letter in "ab"]
        for writer in writers:
            writer.wait_for(chance.randint(1, 60))
            writer.kill()
            accepted |= writer.accepted
        async with SQLiteTaskStore(path) as store:
            await create(store, record(f"{turn} afterwards"))
            kept = {each.id: each.version for each in await store.page("ann", None, 1_000_000)}
        missing = {task_id for task_id, version in accepted.items() if kept.get(task_id, -1) < version}
        assert missing == set()
        untold = {task_id for task_id, version in kept.items() if version > accepted.get(task_id, -1)}
        assert len(untold) <= 1 + len(writers), "the one afterwards, and those that were under way"
        accepted = kept
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert connection.execute("SELECT records FROM total").fetchall() == [(len(accepted),)]
    connection.close()


async def test_processes_that_concurrently_create_an_sqlite_task_store_use_the_same_file(path: Path):
    writers = [Writer(path, str(number)) for number in range(5)]
    try:
        for writer in writers:
            writer.wait_for(1)
    finally:
        for writer in writers:
            writer.kill()
    async with SQLiteTaskStore(path) as store:
        kept = await store.page("ann", None, 1_000_000)
    assert {each.id.partition("-")[0] for each in kept} == set("01234")


async def test_two_processes_never_claim_the_same_task(path: Path):
    async with SQLiteTaskStore(path) as store:
        for number in range(60):
            await create(store, record(str(number)))
    ours, theirs = os.pipe()
    processes = [
        Forked([CLAIMER, str(path), f"owner {number}"], stdin=theirs, stdout=theirs, stderr=2) for number in range(4)
    ]
    os.close(theirs)
    with os.fdopen(ours) as said:
        claimed = [line.split() for line in said]
    assert [process.wait() for process in processes] == [0, 0, 0, 0]
    assert sorted(claimed) == sorted([str(number), "1"] for number in range(60))


async def test_watcher_of_an_sqlite_task_store_is_notified_of_changes_by_another_process(path: Path):
    async with SQLiteTaskStore(path, poll_interval=0.01) as store, store.watch() as hints:
        writer = Writer(path, "other")
        try:
            with trio.fail_after(PATIENCE):
                assert (await anext(hints)).startswith("other-")
        finally:
            writer.kill()
