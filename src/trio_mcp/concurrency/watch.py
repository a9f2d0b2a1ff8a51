"""Watch notices the changes of something that one task reads again and again."""

from __future__ import annotations

import trio

from .sleeper import Sleeper


class Watch:
    """The changes of one thing, for one reader, who looks after ``seconds`` at the latest: hints may be lost."""

    __slots__ = ("_has_changed", "_seconds", "_sleeper")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._has_changed = False
        self._sleeper = Sleeper()

    def notice(self, *_: object) -> None:
        """Note a change. Synchronous."""
        self._has_changed = True
        self._sleeper.wake()

    async def next_look(self) -> None:
        """Wait until it is time to read again. A change during the last reading counts, too."""
        if self._has_changed:
            await trio.lowlevel.checkpoint()
        else:
            with trio.move_on_after(self._seconds):
                await self._sleeper.sleep()
        self._has_changed = False
