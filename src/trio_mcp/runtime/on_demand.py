"""OnDemand: a task of a connection that is there only if it was ever needed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import Context

import trio

from .sleeper import Sleeper

__all__ = ["OnDemand"]


class OnDemand:
    """Started when there is first something to do, it sleeps when there is nothing more.

    Most connections never need most of these tasks, and each would take some 3 KiB of an idle one.
    """

    def __init__(self) -> None:
        self._sleeper = Sleeper()
        self._started = False
        self._where: tuple[trio.Nursery, Context] | None = None

    def start_in(self, nursery: trio.Nursery, context: Context) -> None:
        """Where it is started, and the context variables that it sees: not those of whoever needs it first."""
        self._where = nursery, context

    def wake(self, run: Callable[[], Awaitable[None]]) -> None:
        """There is something to do for ``run``, which is always the same. Synchronous; after `start_in`."""
        if self._started:
            self._sleeper.wake()
            return
        assert self._where is not None, "nothing is needed before the connection runs"
        nursery, context = self._where
        self._started = True
        context.run(nursery.start_soon, run)

    async def sleep(self) -> None:
        """In ``run``: there is nothing to do now."""
        await self._sleeper.sleep()
