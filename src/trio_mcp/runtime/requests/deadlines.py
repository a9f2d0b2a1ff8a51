"""Deadlines ends handlers when the deadlines of their callers have passed, where no cancel gets through."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Final

import trio

from ...concurrency.on_demand import OnDemand
from .request_scope import RequestScope

__all__ = ["Deadlines"]

_SPARE: Final = 64


class Deadlines:
    """The deadlines of one connection's requests; ``expire`` is called for each request whose deadline has passed."""

    def __init__(self, expire: Callable[[RequestScope], None]) -> None:
        self._expire = expire
        self._due: list[tuple[float, int]] = []
        """A heap. Requests that ended before their time stay in it for a while, by their number only."""
        self._scopes: dict[int, RequestScope] = {}
        self._numbers = count()
        self.task = OnDemand()

    def __len__(self) -> int:
        """Return how many deadlines are kept, those of ended requests included."""
        return len(self._due)

    def add(self, scope: RequestScope) -> None:
        """Let ``scope`` expire when it is ``due``, unless `forget` comes first."""
        scope.deadline_number = number = next(self._numbers)
        self._scopes[number] = scope
        heapq.heappush(self._due, (scope.due, number))
        if self._due[0][1] == number:
            self.task.wake(self._run)

    def forget(self, scope: RequestScope) -> None:
        """Forget the deadline of ``scope``, which has ended or has another deadline now. Idempotent."""
        if (
            self._scopes.pop(scope.deadline_number, None) is not None
            and len(self._due) > 2 * len(self._scopes) + _SPARE
        ):
            self._due = [entry for entry in self._due if entry[1] in self._scopes]
            heapq.heapify(self._due)

    def let_go(self) -> None:
        """Let nothing expire any more, since the connection is over."""
        del self._expire

    async def _run(self) -> None:
        while True:
            while not self._due:
                await self.task.sleep()
            due, number = self._due[0]
            if due > trio.current_time() and number in self._scopes:
                with trio.move_on_at(due):
                    await self.task.sleep()  # until something earlier comes
                continue
            heapq.heappop(self._due)
            self._passed(number)

    def _passed(self, number: int) -> None:
        """Expire the request of ``number``, outside of `_run`, which sleeps next and would keep the request alive."""
        scope = self._scopes.pop(number, None)
        if scope is not None:
            self._expire(scope)
