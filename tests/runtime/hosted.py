"""A connection that runs its own host, for tests of one connection."""

from __future__ import annotations

import trio

from trio_mcp.concurrency.nurseries import open_service_nursery
from trio_mcp.runtime.duplex import DuplexChannel

__all__ = ["HostedChannel"]


class HostedChannel(DuplexChannel):
    """A `DuplexChannel` whose host runs as long as the connection does."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with open_service_nursery("the connection has ended") as services:
            await services.start(self.host.run)
            await super().run(task_status=task_status)
