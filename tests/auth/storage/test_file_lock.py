"""Locks that span processes, and can be left."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from tests.auth.storage.places import URL, record

from trio_mcp.auth import FileTokenStorage
from trio_mcp.auth.storage.persistent import PrivateFolder, file_lock, unlock

COUNTING = """
import sys, trio
from tests.auth.storage.places import URL, record
from trio_mcp.auth import FileTokenStorage

async def main():
    storage = FileTokenStorage(sys.argv[1])
    for _ in range(20):
        async with storage.lock(URL):
            count = int((await storage.load(URL)).tokens.access_token)
            await storage.save(URL, record(str(count + 1)))

trio.run(main)
"""


async def test_processes_that_share_a_token_folder_lose_no_updates(tmp_path: Path):
    storage = FileTokenStorage(tmp_path / "tokens")
    await storage.save(URL, record("0"))
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(trio.run_process, [sys.executable, "-c", COUNTING, str(storage.folder)])
    assert await storage.load(URL) == record("60")


HOLDING = """
import sys, trio
from trio_mcp.auth import FileTokenStorage

async def main():
    async with FileTokenStorage(sys.argv[1]).lock(sys.argv[2]):
        print("held", end="", flush=True)
        await trio.sleep_forever()

trio.run(main)
"""


async def test_killed_process_releases_its_file_lock(tmp_path: Path):
    storage = FileTokenStorage(tmp_path / "tokens")
    command = [sys.executable, "-c", HOLDING, str(storage.folder), URL]
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert await process.stdout.receive_some() == b"held"
    with trio.move_on_after(0.05) as patience:
        async with storage.lock(URL):
            pass
    assert patience.cancelled_caught
    process.kill()
    await process.wait()
    await process.stdout.aclose()
    async with storage.lock(URL):
        pass


@contextmanager
def held(folder: PrivateFolder) -> Iterator[None]:
    """Hold the lock as another process would."""
    descriptor = folder.locked("lock")
    try:
        yield
    finally:
        unlock(descriptor)


def descriptors() -> int:
    return len(os.listdir("/dev/fd"))


async def test_cancelled_wait_for_a_file_lock_leaves_no_lock_and_no_open_descriptor(tmp_path: Path):
    folder = PrivateFolder(tmp_path / "locks")
    with held(folder):
        pass
    before = descriptors()
    with held(folder):
        with trio.move_on_after(0.01) as patience:
            async with file_lock(folder, "lock"):
                pass
        assert patience.cancelled_caught
    async with file_lock(folder, "lock"):  # a thread of its own, once that of the wait has ended
        pass
    assert descriptors() == before


async def test_at_most_one_thread_remains_after_many_cancelled_waits_for_a_file_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    begun: list[str] = []

    def locked(folder: PrivateFolder, name: str) -> int:
        begun.append(name)
        return lock(folder, name)

    folder, lock = PrivateFolder(tmp_path / "locks"), PrivateFolder.locked
    with held(folder):
        monkeypatch.setattr(PrivateFolder, "locked", locked)
        for _ in range(5):
            with trio.move_on_after(0.01):
                async with file_lock(folder, "lock"):
                    pass
        assert len(begun) == 1
    async with file_lock(folder, "lock"):
        pass


def test_file_lock_can_be_taken_after_a_trio_run_gave_up_waiting_for_the_lock(tmp_path: Path):
    folder = PrivateFolder(tmp_path / "locks")

    async def give_up() -> None:
        with trio.move_on_after(0.01):
            async with file_lock(folder, "lock"):
                pass

    async def take() -> None:
        async with file_lock(folder, "lock"):
            pass

    with held(folder):
        trio.run(give_up)
    trio.run(take)


async def test_forked_process_does_not_keep_the_file_lock(tmp_path: Path):
    folder = PrivateFolder(tmp_path / "locks")
    async with file_lock(folder, "lock"):
        (descriptor,) = (number for number in map(int, os.listdir("/dev/fd")) if is_lock(number, folder))
        copy = os.dup(descriptor)  # as a fork makes one
    try:
        async with file_lock(folder, "lock"):
            pass
    finally:
        os.close(copy)


def is_lock(descriptor: int, folder: PrivateFolder) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), (folder.path / "lock").stat())
    except OSError:
        return False
