"""A connection that runs its own host, for tests of one connection."""

from __future__ import annotations

import trio

from trio_mcp.runtime.connection import Connection

__all__ = ["HostedConnection"]


class HostedConnection(Connection):
    """A `Connection` whose host runs as long as the connection does."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        await self.host.run_while(super().run, task_status=task_status)
