"""SingleFlight: a question that many ask at once is asked once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import trio

K = TypeVar("K")
T = TypeVar("T")


class _Open(Generic[T]):
    """A question that one task asks for all."""

    __slots__ = ("answers", "over")

    def __init__(self) -> None:
        self.answers: list[T] = []
        """The answer; empty where the task that asked has left without one."""
        self.over = trio.Event()


class SingleFlight(Generic[K, T]):
    """Questions by key, each of which one task asks for all that want to know, at most ``most`` at once."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: dict[K, _Open[T]] = {}

    async def ask(self, key: K, question: Callable[[], Awaitable[T]], too_many: T) -> T:
        """Return the answer to the ``question`` with this ``key``, the answer that another task waits for already if
        one does. When that task leaves, by a cancel or an exception, one of those that still wait asks anew.
        Returns ``too_many`` at once when the question would be one too many."""
        while (waiting := self._open.get(key)) is not None:
            await waiting.over.wait()
            if waiting.answers:
                return waiting.answers[0]
        if len(self._open) >= self._most:
            return too_many
        mine = self._open[key] = _Open[T]()
        try:
            answer = await question()
            mine.answers.append(answer)
            return answer
        finally:
            del self._open[key]
            mine.over.set()
