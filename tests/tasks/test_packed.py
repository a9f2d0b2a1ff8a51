"""The request of a task is kept as text while the task waits, and its handler sees no difference."""

from __future__ import annotations

from typing import Any

import trio
from tests.tasks.callers import calling, settings
from trio.testing import MockClock

from trio_mcp import RequestContext, Server
from trio_mcp.stores.memory import MemoryTaskStore


async def test_handler_reads_the_same_meta_and_trace_context_before_and_after_its_task_starts(
    autojump_clock: MockClock,
) -> None:
    server = Server("packing", tasks=settings(MemoryTaskStore()))
    seen: list[Any] = []
    done = trio.Event()

    @server.tool(task="required")
    async def look(ctx: RequestContext) -> None:
        assert ctx.task is not None
        before = (dict(ctx.meta), ctx.trace)
        await ctx.task.start()
        seen.extend((before, (dict(ctx.meta), ctx.trace)))
        done.set()

    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    async with calling(server) as caller:
        await caller.call("look", trace)
        await done.wait()
    assert seen[0] == seen[1]
    meta, context = seen[0]
    assert (meta["traceparent"], context.traceparent) == (trace["traceparent"],) * 2


async def test_internal_error_of_a_tool_that_runs_as_a_task_names_the_tool(autojump_clock: MockClock) -> None:
    server = Server("packing", tasks=settings(MemoryTaskStore()))

    @server.tool(task="required")
    async def fail(ctx: RequestContext) -> None:
        assert ctx.task is not None
        await ctx.task.start()
        raise ZeroDivisionError

    async with calling(server) as caller:
        task = await caller.final(await caller.start("fail"))
    assert task["result"]["content"][0]["text"] == "internal error in tool fail"
