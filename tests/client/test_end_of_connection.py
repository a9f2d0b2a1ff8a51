"""What is left of a client when its connection ends."""

from __future__ import annotations

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import RequestContext, Server, open_memory
from trio_mcp.types import LogParams


async def test_result_delayed_by_a_slow_callback_is_returned_when_the_connection_closes(
    autojump_clock: MockClock,
) -> None:
    server, results = Server("s"), list[str]()

    @server.tool
    async def work(ctx: RequestContext) -> str:
        await ctx.log.error("something for the callback")
        return "done"

    async def slow(_: LogParams) -> None:
        await trio.sleep_forever()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery, open_memory(server, era="legacy", on_log=slow) as client:

            async def call() -> None:
                results.append((await client.call_tool("work")).text)

            nursery.start_soon(call)
            await wait_all_tasks_blocked()
            assert results == []
    assert results == ["done"]
