"""OnDemand is a task of a connection, started only when first needed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import Context

import trio

from .sleeper import Sleeper


class OnDemand:
    """A task that is started for its first work, and sleeps when there is no more work.

    Most connections never need most of these tasks, and each task would add some 3 KiB to an idle connection.
    """

    def __init__(self) -> None:
        self._sleeper = Sleeper()
        self._started = False
        self._where: tuple[trio.Nursery, Context] | None = None

    def start_in(self, nursery: trio.Nursery, context: Context) -> None:
        """Set the nursery and the context variables of the task, which are not those of its first caller."""
        self._where = nursery, context

    def wake(self, run: Callable[[], Awaitable[None]]) -> None:
        """Start or wake ``run``, always the same function: there is something to do. Synchronous; after `start_in`."""
        if self._started:
            self._sleeper.wake()
            return
        assert self._where is not None, "nothing is needed before the connection runs"
        nursery, context = self._where
        self._started = True
        context.run(nursery.start_soon, run)

    async def sleep(self) -> None:
        """Wait for the next `wake`. Called in ``run`` when there is nothing to do."""
        await self._sleeper.sleep()
