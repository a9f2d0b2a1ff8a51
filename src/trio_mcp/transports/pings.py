"""Pings, which detect a WebSocket peer that is frozen."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import attrs
import trio

from .coalescing import CoalescingStream

_LATE: Final = 0.1


@attrs.frozen
class Pings:
    """Ping a peer that has been silent for ``interval`` seconds, and give it ``timeout`` seconds to send anything."""

    interval: float
    timeout: float

    async def until_frozen(self, stream: CoalescingStream, ping: Callable[[], Awaitable[None]]) -> None:
        """Wait until the peer at the other end of ``stream`` sends nothing after a ping."""
        while True:
            while (due := stream.heard_at + self.interval) > trio.current_time():  # noqa: ASYNC110 - it moves
                await trio.sleep_until(due)
            if not await self._stirs(stream, ping):
                return

    async def _stirs(self, stream: CoalescingStream, ping: Callable[[], Awaitable[None]]) -> bool:
        """Return whether anything at all arrives within the timeout. The time starts when the ping has been written,
        and starts anew after a period in which our own tasks could not run, since nobody has looked for the answer
        then."""
        asked = trio.current_time()
        deadline = asked + self.timeout
        with trio.move_on_at(deadline):
            await ping()
            return True
        now = trio.current_time()
        if stream.heard_at >= asked or now > deadline + _LATE:
            return True
        return not stream.is_flushed and stream.moved_at > deadline - self.timeout
