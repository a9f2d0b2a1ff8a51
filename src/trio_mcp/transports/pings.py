"""Pings: how a WebSocket peer that is frozen is found out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import attrs
import trio

from .coalescing import CoalescingStream

__all__ = ["Pings"]

_LATE: Final = 0.1


@attrs.frozen
class Pings:
    """A peer that has been silent for ``interval`` seconds is sent a ping, and has ``timeout`` seconds to stir."""

    interval: float
    timeout: float

    async def until_frozen(self, stream: CoalescingStream, ping: Callable[[], Awaitable[None]]) -> None:
        """Return when the peer at the other end of ``stream`` does not stir."""
        while True:
            while (due := stream.heard_at + self.interval) > trio.current_time():  # noqa: ASYNC110 - it moves
                await trio.sleep_until(due)
            if not await self._stirs(stream, ping):
                return

    async def _stirs(self, stream: CoalescingStream, ping: Callable[[], Awaitable[None]]) -> bool:
        """Whether anything at all arrives within the timeout. The time starts when the ping is on its way, and
        anew when our own tasks were kept from running: then nobody has looked for the answer."""
        asked = trio.current_time()
        deadline = asked + self.timeout
        with trio.move_on_at(deadline):
            await ping()
            return True
        now = trio.current_time()
        if stream.heard_at >= asked or now > deadline + _LATE:
            return True
        return not stream.is_flushed and stream.moved_at > deadline - self.timeout
