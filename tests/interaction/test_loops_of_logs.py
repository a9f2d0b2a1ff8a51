"""A handler that only logs in a loop lets other tasks run, whether its messages are sent or not."""

from __future__ import annotations

from typing import Literal

import pytest
import trio

from trio_mcp import Limits, RequestContext, Server, open_memory
from trio_mcp.types import LogLevel

MORE_THAN_A_TURN = 300_000
"""Messages that take much longer than a handler may go on by itself."""

LEVELS: list[Literal["debug", "error"]] = ["debug", "error"]


@pytest.mark.parametrize("level", LEVELS, ids=["below the level", "above it"])
async def test_handler_that_logs_in_a_loop_lets_other_trio_tasks_run(level: Literal["debug", "error"]) -> None:
    server, ran = Server("s", limits=Limits(high_water=1 << 30)), trio.Event()

    @server.tool
    async def work(ctx: RequestContext) -> bool:
        async def other() -> None:
            ran.set()

        ctx.nursery.start_soon(other)
        for _ in range(MORE_THAN_A_TURN):
            await getattr(ctx.log, level)(None)
            if ran.is_set():
                break
        return ran.is_set()

    async with open_memory(server, era="legacy") as client:
        await client.set_log_level(LogLevel.ERROR)
        assert (await client.call_tool("work")).text == "true"


async def test_cancel_stops_a_handler_that_logs_in_a_loop() -> None:
    server, started, rounds = Server("s"), trio.Event(), 0

    @server.tool
    async def work(ctx: RequestContext) -> None:
        nonlocal rounds
        started.set()
        for _ in range(10 * MORE_THAN_A_TURN):
            rounds += 1
            await ctx.log.debug(None)

    async with open_memory(server) as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.call_tool, "work")
        await started.wait()
        nursery.cancel_scope.cancel()
    assert 0 < rounds < 10 * MORE_THAN_A_TURN
