"""Tasks through ``trio-mcp bridge``: a task can be resumed through another bridge."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from tests.cli.commands import quick
from tests.patience import PATIENCE

from trio_mcp import RequestContext, Server, TaskSettings, open_stdio, serve_tcp

FORM = {"type": "object", "properties": {"name": {"type": "string"}}}


def bridged(address: str, era: Any) -> Any:
    """Return the way of a host to the server at ``address``."""
    return open_stdio(quick("bridge", address), era=era, elicitation=lambda _: {"name": "Ada"})


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_task_started_through_a_bridge_can_be_resumed_through_another_bridge(
    nursery: trio.Nursery, era: Any
) -> None:
    server, done = Server("kitchen", tasks=TaskSettings(poll_interval=0.02)), trio.Event()

    @server.tool(task="required")
    async def roast(ctx: RequestContext) -> str:
        assert ctx.task is not None
        await ctx.task.start()
        await done.wait()
        return f"roasted for {(await ctx.elicit('whom?', FORM)).content}"

    listeners: Any = await nursery.start(serve_tcp, server, "127.0.0.1", 0)
    address = f"tcp://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
    with trio.fail_after(PATIENCE):
        async with bridged(address, era) as client:
            task = await client.start_task("roast")
            assert task.id is not None
            assert (await task.get()).status == "working"
        done.set()
        async with bridged(address, era) as client:
            assert (await client.resume_task(task.id).result()).text == "roasted for {'name': 'Ada'}"
