"""HandlerLimit bounds how long a handler may take, not counting the time that the user of the client takes."""

from __future__ import annotations

import math
from collections.abc import Generator

import trio

from ...concurrency.contexts import contextmanager
from ...concurrency.time_limits import TimeLimit


class HandlerLimit:
    """A limit of ``seconds`` for the code that runs in ``scope``. The limit stands still while the user of the client
    is asked, as a client's own limits do (`fail_after_work`)."""

    def __init__(self, seconds: float) -> None:
        self.scope = trio.CancelScope()
        self._limit = TimeLimit(self.scope, seconds, math.inf, math.inf, renewed=False)
        self._moved = trio.Event()

    @property
    def deadline(self) -> float:
        """Time of `trio.current_time` at which the limit is over, unless the user is asked before."""
        return self._limit.deadline

    @contextmanager
    def standing_still(self) -> Generator[None]:
        """Stop the clock of the limit while the block runs."""
        self._limit.pause()
        try:
            yield
        finally:
            self._limit.resume()
            self._moved.set()

    async def passed(self) -> None:
        """Wait until the limit is over."""
        while trio.current_time() < self.deadline:
            self._moved = trio.Event()
            with trio.move_on_at(self.deadline):
                await self._moved.wait()
