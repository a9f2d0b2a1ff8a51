"""Tasks keep nothing alive that they do not need, and leave nothing to the garbage collector."""

from __future__ import annotations

import gc
import weakref

import pytest
import trio
from tests.interaction.test_connections_released import garbage_of
from tests.tasks.callers import Caller, calling, settings
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import RequestContext, Server
from trio_mcp.client.opening import open_client
from trio_mcp.runtime.peer import UNKNOWN_PEER
from trio_mcp.server.connection import ServerConnection
from trio_mcp.transports.lines import memory_transport_pair


def waiting_server() -> Server:
    """A server with a task that waits."""
    server = Server("waiting", tasks=settings())

    @server.tool(task="required")
    async def wait(seconds: float, ctx: RequestContext) -> str:
        assert ctx.task is not None
        await ctx.task.start()
        await trio.sleep(seconds)
        return "done"

    @server.tool(task="optional")
    async def grow(seconds: float) -> str:
        await trio.sleep(seconds)
        return "done"

    return server


@pytest.mark.parametrize("tool", ["wait", "grow"])
async def test_running_task_does_not_keep_its_closed_connection_in_memory(autojump_clock: MockClock, tool: str) -> None:
    server = waiting_server()
    async with server._running() as running, trio.open_nursery() as nursery:
        ours, theirs = memory_transport_pair()
        connection = ServerConnection(running, theirs, UNKNOWN_PEER)
        served = connection.connection
        parts = [connection, served, served.exchange, served.outbound, served.state, served.outbox, served._runner]
        kept = {type(part).__name__: weakref.ref(part) for part in parts if hasattr(type(part), "__weakref__")}
        assert "Connection" in kept
        assert "RequestRunner" in kept
        nursery.start_soon(connection.run)
        async with open_client(ours, era="modern") as client:
            await Caller(client).start(tool, seconds=2000)
        del connection, served, parts, client, ours, theirs
        await wait_all_tasks_blocked()
        assert len(running.tasks.host()) == 1
        gc.collect()
        assert {name for name, part in kept.items() if part() is not None} == set()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("end", ["done", "cancelled", "cut off"])
async def test_ended_task_leaves_no_reference_cycles(autojump_clock: MockClock, end: str) -> None:
    async def scenario() -> None:
        async with calling(waiting_server()) as caller:
            task_id = await caller.start("wait", seconds=1 if end == "done" else 1000)
            if end == "done":
                await trio.sleep(2)
            elif end == "cancelled":
                await caller.cancel(task_id)
                await trio.sleep(1)

    assert await garbage_of(scenario) == []
