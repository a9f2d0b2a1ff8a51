"""Comebacks: the pauses before a client comes back for the rest of a stream of events."""

from __future__ import annotations

from typing import Final

import trio

from ...concurrency.delays import growing_delay

__all__ = ["Comebacks"]

_FIRST: Final = 1.0
_LONGEST: Final = 30.0
_JITTER: Final = 0.5
_PATIENCE: Final = 5
"""Times in a row that the server's own word is enough, though nothing came."""


class Comebacks:
    """Counts the times in a row that a client has come back in vain."""

    def __init__(self) -> None:
        self.in_vain = 0

    async def pause(self, retry: int | None) -> None:
        """Wait until it is time to come back: ``retry`` milliseconds where the server has said so (2025-11-25
        transports: MUST respect), else a growing delay. A server for whose word the client has come back in vain again
        and again is asked more and more seldom."""
        self.in_vain += 1
        if retry is None:
            await trio.sleep(self._growing(self.in_vain))
        elif self.in_vain <= _PATIENCE:
            await trio.sleep(retry / 1000)
        else:
            await trio.sleep(max(retry / 1000, self._growing(self.in_vain - _PATIENCE)))

    def _growing(self, attempt: int) -> float:
        return growing_delay(attempt, first=_FIRST, longest=_LONGEST, jitter=_JITTER)

    def was_worth_it(self) -> None:
        """Begin to count anew, since the stream went on."""
        self.in_vain = 0
