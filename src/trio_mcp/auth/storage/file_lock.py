"""file_lock: hold a lock that spans processes, and can be left at any time."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator
from typing import TypeAlias
from weakref import WeakValueDictionary

import trio

from ...concurrency.contexts import asynccontextmanager
from .private_folder import PrivateFolder, unlock

_Turns: TypeAlias = WeakValueDictionary[tuple[PrivateFolder, str], trio.CapacityLimiter]

_turns: trio.lowlevel.RunVar[_Turns] = trio.lowlevel.RunVar("trio_mcp.file_lock_turns")


@asynccontextmanager
async def file_lock(folder: PrivateFolder, name: str) -> AsyncGenerator[None]:
    """Hold the lock that the file ``name`` stands for, alone among all tasks and processes. Raises `StorageFailed`.

    A cancelled wait leaves a thread behind, which waits on, gives the lock back as soon as it has got the lock, and
    ends: nothing else can be done about a lock of the system. One thread waits for a lock at most, however many tasks
    come and go.
    """
    claim = _Claim(folder, name)
    try:
        await trio.to_thread.run_sync(claim.wait, abandon_on_cancel=True, limiter=_turn(folder, name))
        yield
    finally:
        claim.give_up()


def _turn(folder: PrivateFolder, name: str) -> trio.CapacityLimiter:
    """Return who may have a thread wait for the lock: an abandoned thread keeps the turn until the end."""
    try:
        turns = _turns.get()
    except LookupError:
        turns = _Turns()
        _turns.set(turns)
    return turns.setdefault((folder, name), trio.CapacityLimiter(1))


class _Claim:
    """A claim to a lock, by a thread that waits for the lock and a task that may give up."""

    def __init__(self, folder: PrivateFolder, name: str) -> None:
        self._folder = folder
        self._name = name
        self._mutex = threading.Lock()
        self._descriptor: int | None = None
        self._given_up = False

    def wait(self) -> None:
        """Wait for the lock, in a thread."""
        with self._mutex:
            if self._given_up:
                return
        descriptor = self._folder.locked(self._name)
        with self._mutex:
            if not self._given_up:
                self._descriptor = descriptor
                return
        unlock(descriptor)

    def give_up(self) -> None:
        """Give the lock back, or see to it that the thread does."""
        with self._mutex:
            self._given_up = True
            descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            unlock(descriptor)
