"""Comebacks: the pauses before a client comes back for the rest of a stream of events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import trio

from ...concurrency.delays import growing_delay
from .retry_after import seconds_until_retry

_FIRST: Final = 1.0
_LONGEST: Final = 30.0
_JITTER: Final = 0.5
_PATIENCE: Final = 5
"""Times in a row that the server's own word is enough, though no message came."""
_FLOOR: Final = 0.1
"""Least number of seconds that a client waits, at any word of the server."""
_LONGEST_AFTER_REFUSAL: Final = 300.0
_LIVED: Final = 10.0
"""Seconds that a stream without a message must have lasted for its end to count as the first again."""


class Comebacks:
    """Counts the times in a row that a client has come back in vain."""

    def __init__(self) -> None:
        self.in_vain = 0
        self._least = 0.0
        """Seconds that the next pause takes at least."""

    async def pause(self, retry: int | None) -> None:
        """Wait until the next comeback is due: ``retry`` milliseconds where the server has said so (2025-11-25
        transports: MUST respect), a tenth of a second at least, else a growing delay. A server for whose word the
        client has come back in vain again and again is asked more and more seldom."""
        self.in_vain += 1
        least, self._least = self._least, 0.0
        await trio.sleep(max(self._delay(retry), least))

    def _delay(self, retry: int | None) -> float:
        if retry is None:
            return self._growing(self.in_vain)
        asked = max(retry / 1000, _FLOOR)
        if self.in_vain > _PATIENCE:
            asked = max(asked, self._growing(self.in_vain - _PATIENCE))
        return asked

    def _growing(self, attempt: int) -> float:
        return growing_delay(attempt, first=_FIRST, longest=_LONGEST, jitter=_JITTER)

    def refused(self, headers: Mapping[str, str]) -> None:
        """Note a refusal with ``headers``: the next pause takes as long as the server asks for with ``Retry-After``,
        within five minutes."""
        self._least = min(seconds_until_retry(headers) or 0.0, _LONGEST_AFTER_REFUSAL)

    def ended(self, began: float, *, has_brought: bool) -> None:
        """Note the end of a stream that ``began`` at a time on trio's clock. Where the stream has brought a message, or
        has lasted, counting begins anew; the id of an event is no message."""
        if has_brought or trio.current_time() - began >= _LIVED:
            self.was_worth_it()

    def was_worth_it(self) -> None:
        """Begin to count anew."""
        self.in_vain = 0
