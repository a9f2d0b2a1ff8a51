"""Turns: the number of questions of a server that a client answers at the same time."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar

import trio

from ...concurrency.contexts import asynccontextmanager

__all__ = ["Turn", "Turns", "current_turn"]


class Turn:
    """The turn of one question. The handler of the question counts while running, except while waiting for a server."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._counts = True
        self._calls = 0
        self._over = False

    def step_aside(self) -> None:
        """Let another question have the turn: the handler calls a server, which may ask before its answer. Each call is
        undone by one call of `step_back`."""
        self._calls += 1
        self._leave()

    async def step_back(self) -> None:
        """Wait until the handler may go on, ahead of the questions that have not begun. After a cancel, the handler has
        no turn."""
        self._calls -= 1
        if self._counts or self._calls or self._over:
            return
        await self._turns.take(first=True)
        if self._counts or self._calls or self._over:  # another task of the handler has come back or called meanwhile
            self._turns.give_back()
        else:
            self._counts = True

    def end(self) -> None:
        """Give the turn up, since the handler has ended. Tasks that the handler started elsewhere may still call."""
        self._over = True
        self._leave()

    def _leave(self) -> None:
        if self._counts:
            self._counts = False
            self._turns.give_back()


current_turn: ContextVar[Turn | None] = ContextVar("trio_mcp.current_turn", default=None)
"""The turn of the question that is answered here, the child tasks and worker threads of its handler included."""


class Turns:
    """The turns of one kind of question: ``most`` at the same time; further questions wait, first come, first served.

    ``standing_still`` gives the context in which a question waits.
    """

    def __init__(self, most: int, standing_still: Callable[[], AbstractContextManager[None]]) -> None:
        self._free = most
        self._standing_still = standing_still
        self._begun = trio.lowlevel.ParkingLot()
        self._new = trio.lowlevel.ParkingLot()

    @asynccontextmanager
    async def turn(self) -> AsyncGenerator[None]:
        """Wait for a turn, and hold the turn inside. No checkpoint when a turn is free."""
        await self.take(first=False)
        turn = Turn(self)
        token = current_turn.set(turn)
        try:
            yield
        finally:
            current_turn.reset(token)
            turn.end()

    async def take(self, *, first: bool) -> None:
        """Wait for a turn. If cancelled, take none."""
        if self._free:
            self._free -= 1
            return
        with self._standing_still():
            await (self._begun if first else self._new).park()

    def give_back(self) -> None:
        """Let the next question have the turn."""
        lot = self._begun or self._new
        if lot:
            lot.unpark()
        else:
            self._free += 1
