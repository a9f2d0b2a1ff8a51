"""Alarms call functions at given times, all from one task."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from itertools import count
from typing import Final

import trio

from .sleeper import Sleeper

_SPARE: Final = 64


class Alarm:
    """A function that is called at the time ``due`` (`trio.current_time`), unless `stop` comes first."""

    __slots__ = ("_alarms", "_ring", "due")

    def __init__(self, alarms: Alarms, due: float, ring: Callable[[], object]) -> None:
        self.due = due
        self._alarms: Alarms | None = alarms
        self._ring: Callable[[], object] | None = ring

    @property
    def is_set(self) -> bool:
        """True until the function was called or `stop` was."""
        return self._ring is not None

    def stop(self) -> None:
        """Forget the function, and all that it refers to, at once. Idempotent."""
        alarms, self._alarms, self._ring = self._alarms, None, None
        if alarms is not None:
            alarms.stopped()

    def ring(self) -> None:
        """Call the function, once."""
        ring = self._ring
        self.stop()
        if ring is not None:
            ring()


class Alarms:
    """A heap of alarms, and one task, `run`, which calls their functions.

    Functions are called in the order of their times, never early, in the context of that task; they must be quick, and
    must not raise. Setting and stopping cost a few comparisons, however many alarms there are.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Alarm]] = []
        """Alarms by time. Those that were stopped stay for a while, without what they referred to."""
        self._numbers = count()
        self._set = 0
        """Number of alarms in the heap that are set."""
        self._sleeper = Sleeper()

    def __len__(self) -> int:
        """Return the length of the heap, stopped alarms included."""
        return len(self._heap)

    def set(self, due: float, ring: Callable[[], object]) -> Alarm:
        """Have ``ring`` called at ``due`` (`trio.current_time`); `math.inf` is never. Synchronous."""
        alarm = Alarm(self, due, ring)
        if due < math.inf:
            self._set += 1
            entry = (due, next(self._numbers), alarm)
            heapq.heappush(self._heap, entry)
            if self._heap[0] is entry:
                self._sleeper.wake()
        return alarm

    def stopped(self) -> None:
        """Note that one of the alarms was stopped; for `Alarm`."""
        self._set = max(self._set - 1, 0)
        if len(self._heap) > 2 * self._set + _SPARE:
            self._heap = [entry for entry in self._heap if entry[2].is_set]
            heapq.heapify(self._heap)

    async def run(self) -> None:
        """Call the functions that are due, until cancelled."""
        while True:
            due = self._next_due()
            if due is None:
                await self._sleeper.sleep()
            elif due > trio.current_time():
                with trio.move_on_at(due):
                    await self._sleeper.sleep()  # until an earlier one is set
            else:
                self._ring_first()

    def _next_due(self) -> float | None:
        heap = self._heap
        while heap and not heap[0][2].is_set:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def _ring_first(self) -> None:
        """Ring the first, outside of `run`, which sleeps next and would keep alive what the alarm refers to."""
        heapq.heappop(self._heap)[2].ring()
