"""The clock of an endpoint: one task looks at all times, so that no request sets a timer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import trio

_LOOK: Final = 1.0
"""Longest time in seconds between two looks at the clock."""


class Watched(Protocol):
    """An endpoint, as the clock sees it."""

    def look_at_clock(self, now: float) -> None:
        """End what has idled for too long."""
        ...

    def break_silence(self) -> None:
        """Have streams that were silent since the last call send comments."""
        ...


async def watch_clock(endpoint: Watched, interval: float, tick: Callable[[float], None]) -> None:
    """Look at the clock about every second, for ``endpoint`` and by ``tick``, until cancelled. No stream is silent for
    longer than ``interval`` seconds."""
    pause = min(_LOOK, interval / 2)
    spoken = trio.current_time()
    while True:
        await trio.sleep(pause)
        now = trio.current_time()
        tick(now)
        endpoint.look_at_clock(now)
        if now - spoken >= interval / 2:
            spoken = now
            endpoint.break_silence()
