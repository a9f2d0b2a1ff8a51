"""Gates at which threads wait, so that a test knows where the threads are."""

from __future__ import annotations

import threading

import trio
from tests.patience import PATIENCE


class Gate:
    """What threads wait at, and tell that they are there."""

    def __init__(self) -> None:
        self._arrived = 0
        self._arrival = trio.Event()
        self._token = trio.lowlevel.current_trio_token()
        self._changed = threading.Condition()
        self._is_open = False

    def wait(self) -> None:
        """Wait, as a thread that never looks whether it was cancelled."""
        with self._changed:
            self._token.run_sync_soon(self._arrive)
            assert self._changed.wait_for(lambda: self._is_open, PATIENCE)

    def _arrive(self) -> None:
        self._arrived += 1
        self._arrival.set()
        self._arrival = trio.Event()

    async def until_waiting(self, count: int = 1) -> None:
        """Wait until ``count`` threads have told that they are there, and do nothing but wait any more."""
        while self._arrived < count:
            await self._arrival.wait()
        with self._changed:  # which a thread has until it waits
            pass

    def open(self) -> None:
        """Let the threads go on, and all that come later."""
        with self._changed:
            self._is_open = True
            self._changed.notify_all()
