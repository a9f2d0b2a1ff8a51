"""Watchers are told which tasks have changed, as far as there is room for the hints."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Generator, Iterable
from typing import Final

import trio

from ..concurrency.contexts import contextmanager
from ..concurrency.sleeper import Sleeper
from .task_store import GAP, Hint

_MOST_HINTS: Final = 1000


class Hints(AsyncIterator[Hint]):
    """A stream of hints for one reader. Hints for which there is no room are lost, and a gap is told in their place."""

    def __init__(self) -> None:
        self._waiting = deque[Hint]()
        self._sleeper = Sleeper()

    def tell(self, hint: Hint) -> None:
        """Add a hint. Never waits."""
        if len(self._waiting) < _MOST_HINTS:
            self._waiting.append(hint)
        elif self._waiting[-1] is not GAP:
            self._waiting.append(GAP)
        self._sleeper.wake()

    def take_now(self) -> Hint | None:
        """Return the next hint; `None` where there is none."""
        return self._waiting.popleft() if self._waiting else None

    async def __anext__(self) -> Hint:
        if self._waiting:
            await trio.lowlevel.checkpoint()
        while not self._waiting:
            await self._sleeper.sleep()
        return self._waiting.popleft()


class Watchers:
    """The streams of hints in this process, each to one who watches the store."""

    def __init__(self) -> None:
        self._all: set[Hints] = set()

    @contextmanager
    def watch(self) -> Generator[Hints]:
        """Open a stream of the ids of `tell`, from now on."""
        hints = Hints()
        self._all.add(hints)
        try:
            yield hints
        finally:
            self._all.discard(hints)

    def tell(self, task_ids: Iterable[str]) -> None:
        """Tell all watchers that tasks have changed. Never waits."""
        for task_id in task_ids:
            for hints in self._all:
                hints.tell(task_id)
