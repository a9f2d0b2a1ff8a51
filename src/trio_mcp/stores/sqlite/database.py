"""Database runs functions in threads, on two connections to one file: one that writes, and one that reads."""

from __future__ import annotations

import errno
import os
import sqlite3
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import trio

from ..task_store import StoreDown
from .log import WriteAheadLog
from .schema import Location
from .transactions import transaction

T = TypeVar("T")

_CLOSING: Final = 10.0
"""Seconds for calls that have begun."""


class Database:
    """A file of SQLite, opened at the first use.

    A function that has begun is waited for, however the task is cancelled: a cancelled call has not begun, and changes
    nothing. `sqlite3.Error`, and a file that was deleted or replaced under our hands, become `StoreDown`.
    """

    def __init__(self, location: Location) -> None:
        self._writing = _Access(location)
        self._reading = _Access(location)
        self._log = WriteAheadLog(location.path)
        self._turn = trio.Lock()

    async def write(self, change: Callable[[sqlite3.Connection], T], *, first: bool = False) -> T:
        """Return the result of ``change``, all of which is kept; nothing where ``change`` raises. ``first``: before all
        other writes of this process that have not begun."""

        def changed(connection: sqlite3.Connection) -> T:
            with transaction(connection):
                result = change(connection)
            self._log.keep_short(connection)
            return result

        if first:
            return await self._writing.run(changed)
        async with self._turn:  # so that one at most is ahead of a write that comes first
            return await self._writing.run(changed)

    async def read(self, look: Callable[[sqlite3.Connection], T]) -> T:
        """Return the result of ``look``, which changes nothing."""
        return await self._reading.run(look)

    def state(self) -> tuple[int, int]:
        """Return numbers that change with the file: see `WriteAheadLog.state`."""
        return self._log.state()

    async def aclose(self) -> None:
        """Close the file, which the next use opens again."""
        with trio.move_on_after(_CLOSING, shield=True):
            await self._reading.aclose()
            await self._writing.aclose()  # the last one tidies the log up


class _Access:
    """One connection, used by one thread at a time. The threads are no handlers', which may wait for tasks."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._limiter = trio.CapacityLimiter(1)
        self._opened = list[sqlite3.Connection]()
        self._file: tuple[int, int] | None = None
        """Numbers of the file that is open, which no other file has."""
        weakref.finalize(self, _close, self._opened)  # where nobody closes, the end of the process included

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await trio.to_thread.run_sync(self._work, work, limiter=self._limiter)

    def _work(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return work(self._connection())
        except sqlite3.Error as error:
            raise StoreDown(errno.EIO, f"the store of tasks in {self._location.path} failed: {error}") from error

    def _connection(self) -> sqlite3.Connection:
        path = self._location.path
        if not self._opened:
            try:
                self._opened.append(self._location.connect())
                self._file = _identity(path)
            except OSError as error:
                raise StoreDown(error.errno, error.strerror, error.filename) from error
        elif _identity(path) != self._file:
            _close(self._opened)
            raise StoreDown(
                errno.ESTALE, f"{path} was deleted or replaced while it was in use: its tasks are not known any more"
            )
        return self._opened[0]

    async def aclose(self) -> None:
        await trio.to_thread.run_sync(_close, self._opened, limiter=self._limiter)


def _close(opened: list[sqlite3.Connection]) -> None:
    while opened:
        opened.pop().close()


def _identity(path: Path) -> tuple[int, int] | None:
    """Return the numbers of the file at ``path``, which no other file has; `None` where there is none."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
