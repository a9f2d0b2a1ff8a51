"""Explores every order of the events of a small world, breadth first, so that the first trace of a fault is a shortest
one.

A `World` says which events can happen now, and makes one of them happen. Two orders that lead to the same `World.key`
are the same state from then on, and are followed once. So a key must have all that any later event depends on.

From each state, some order of events must lead to an end, where nothing can happen any more: what goes round for ever
is a fault, too.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, Protocol, TypeAlias

import attrs

__all__ = ["Action", "Fault", "Found", "Report", "World", "explore"]

Action: TypeAlias = tuple[Any, ...]
"""An event: its name, and what it happens to."""


class Fault(Exception):
    """Raised by a world for a broken invariant, which the text states."""


class World(Protocol):
    """A small world whose events are explored."""

    def actions(self) -> Sequence[Action]:
        """Return the events that can happen now."""
        ...

    def fork(self) -> World:
        """Return a world in the same state, which changes independently."""
        ...

    def do(self, action: Action) -> None:
        """Make ``action`` happen. Raises `Fault` for a broken invariant; any other exception is a fault, too."""
        ...

    def check_end(self) -> None:
        """Check a state in which nothing can happen any more. Raises `Fault`."""
        ...

    def key(self) -> Hashable:
        """Return all that later events depend on."""
        ...


@attrs.frozen
class Found:
    """A broken invariant, and the shortest trace that leads to it."""

    words: str
    trace: tuple[Action, ...]


@attrs.frozen
class Report:
    """What was explored: the figures of one part."""

    states: int
    steps: int
    ends: int
    """States in which nothing can happen any more."""
    depth: int
    """Events of the longest trace, counting the shortest way to each state."""
    seconds: float
    is_complete: bool
    """False if a limit or a fault ended the exploration before all states were visited."""
    fault: Found | None


_ROOT: Final = -1


_COLLECT_AFTER: Final = 500_000, 50, 1000
"""Thresholds of the garbage collector. With the usual ones, it would visit all worlds of a level again and again."""


def explore(make: Callable[[], World], *, most_states: int = 10_000_000) -> Report:
    """Visit every state that can be reached, and stop at the first fault."""
    before = gc.get_threshold()
    gc.set_threshold(*_COLLECT_AFTER)
    try:
        return _explore(make, most_states)
    finally:
        gc.set_threshold(*before)


def _explore(make: Callable[[], World], most_states: int) -> Report:
    begun = time.perf_counter()
    first = make()
    parents: list[tuple[int, Action]] = [(_ROOT, ())]
    seen = {first.key(): 0}
    before: list[list[int]] = [[]]
    """The states before each state."""
    over: list[int] = []
    level: list[tuple[int, World]] = [(0, first)]
    steps = depth = 0
    fault: Found | None = None
    is_complete = True
    while level and fault is None:
        following: list[tuple[int, World]] = []
        for index, world in level:
            happened: tuple[Action, ...] = ()
            try:
                actions = world.actions()
                if not actions:
                    over.append(index)
                    world.check_end()
                for number, action in enumerate(actions, 1):
                    happened = (action,)
                    steps += 1
                    after = world.fork() if number < len(actions) else world  # nothing else needs this world
                    after.do(action)
                    key = after.key()
                    reached = seen.setdefault(key, len(parents))
                    if reached == len(parents):
                        parents.append((index, action))
                        before.append([])
                        following.append((reached, after))
                    before[reached].append(index)
            except Exception as error:
                words = str(error) if isinstance(error, Fault) else repr(error)
                fault = Found(words, (*_trace(parents, index), *happened))
                break
        if fault is None and len(seen) > most_states:
            is_complete = False
            break
        depth += bool(following)
        level = following
    if is_complete and fault is None and (stuck := _first_stuck(before, over)) is not None:
        fault = Found("nothing that can happen leads to an end", _trace(parents, stuck))
    return Report(len(seen), steps, len(over), depth, time.perf_counter() - begun, is_complete and fault is None, fault)


def _first_stuck(before: Sequence[Sequence[int]], over: Sequence[int]) -> int | None:
    """Return the first state from which no end can be reached."""
    leads_to_end = [False] * len(before)
    waiting = list(over)
    while waiting:
        index = waiting.pop()
        if not leads_to_end[index]:
            leads_to_end[index] = True
            waiting += before[index]
    return next((index for index, leads in enumerate(leads_to_end) if not leads), None)


def _trace(parents: Sequence[tuple[int, Action]], index: int) -> tuple[Action, ...]:
    """Return the events on the way to the state with this ``index``."""
    trace: list[Action] = []
    while index > 0:
        index, action = parents[index]
        trace.append(action)
    return tuple(reversed(trace))
