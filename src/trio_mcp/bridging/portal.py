"""`TrioPortal`: the thread in which trio runs for callers in other threads.

A process has only one, from the first of its calls to the last: clients may share a server in memory, a cache or a
token storage, and none of these supports two trio runs at once.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, ClassVar, Final, Protocol

import trio

_PATIENCE: Final = 10.0
"""How many seconds the interpreter waits at its exit for clients that weren't closed."""


class ThreadWork(Protocol):
    """Interface of the work that the trio thread does for a caller."""

    async def run(self) -> None:
        """Do the work in the trio thread. Raises no exception except `trio.Cancelled`, if the work is cancelled from
        outside."""

    def finish(self) -> None:
        """Report to the caller that the work has ended completely. Raises nothing."""


class TrioPortal:
    """A thread that runs trio while there is work to do."""

    _current: ClassVar[TrioPortal | None] = None
    _lock: ClassVar = threading.Lock()
    _nursery: trio.Nursery
    _token: trio.lowlevel.TrioToken

    def __init__(self) -> None:
        self._process = os.getpid()
        self._running_count = 0
        self._idle = trio.Event()
        self._ready = threading.Event()
        # Use a daemon thread: at exit, Python would wait for any other thread before it calls `_finish`.
        self._thread = threading.Thread(target=trio.run, args=(self._main,), name="trio-mcp", daemon=True)
        atexit.register(self._finish)
        self._thread.start()
        self._ready.wait()

    @classmethod
    def start(cls, work: ThreadWork) -> TrioPortal:
        """Start ``work`` in the trio thread of this process, and return the `TrioPortal` of the thread."""
        with cls._lock:
            thread = cls._current
            if thread is None or thread.is_inherited or not thread._thread.is_alive():
                thread = cls._current = TrioPortal()
            thread._running_count += 1
        thread.run_soon(copy_context().run, thread._nursery.start_soon, thread._run_work, work)
        return thread

    @property
    def is_inherited(self) -> bool:
        """True in a fork of the process that started this trio thread. The thread doesn't exist in the fork."""
        return os.getpid() != self._process

    def check_process(self) -> None:
        """Raise `RuntimeError` in a fork of the process, where a call would wait forever for the trio thread."""
        if self.is_inherited:
            raise RuntimeError(
                f"this client was opened in process {self._process} and cannot be used in process"
                f" {os.getpid()}, a fork of it: open a client in the new process, or use the start method"
                ' "spawn" or "forkserver" of multiprocessing'
            )

    def run_soon(self, function: Callable[..., Any], *args: Any) -> bool:
        """Call ``function`` soon in the trio thread, as the function `run_soon` of this module does."""
        return run_soon(self._token, function, *args)

    async def _main(self) -> None:
        async with trio.open_nursery() as self._nursery:
            self._token = trio.lowlevel.current_trio_token()
            self._ready.set()
            await self._idle.wait()

    async def _run_work(self, work: ThreadWork) -> None:
        try:
            await work.run()
        finally:
            with self._lock:
                self._running_count -= 1
                if not self._running_count:
                    self._idle.set()
                    atexit.unregister(self._finish)
                    if TrioPortal._current is self:
                        TrioPortal._current = None
            work.finish()

    def join(self) -> None:
        """If the trio thread has no more work, wait for its end, which takes only a moment."""
        if not (self._running_count or self.is_inherited):
            self._thread.join()

    def _finish(self) -> None:
        if not self.is_inherited and self.run_soon(self._cancel_all):
            self._thread.join(_PATIENCE)

    def _cancel_all(self) -> None:
        self._nursery.cancel_scope.cancel(reason="the interpreter ends")


def _forget_lock() -> None:
    """Replace the lock in a fork of the process, because a thread that doesn't exist in the fork may hold the old
    lock."""
    TrioPortal._lock = threading.Lock()


if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(after_in_child=_forget_lock)


def run_soon(token: trio.lowlevel.TrioToken, function: Callable[..., Any], *args: Any) -> bool:
    """Call ``function``, which must not raise, soon in the trio run that ``token`` belongs to. Returns false if the
    trio run has ended."""
    try:
        token.run_sync_soon(function, *args)
    except trio.RunFinishedError:
        return False
    return True
