"""Random cancels of asyncio handlers leave no task, no thread and no late answer."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Any

import pytest
import trio

from trio_mcp import RequestContext, Server, open_memory

CANCELS = 1000


@pytest.mark.parametrize("seed", [1, 2])
async def test_no_task_or_thread_remains_after_a_thousand_random_cancels_of_asyncio_handlers(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(seed)
    server = Server("s")
    begun, ended, left = 0, 0, list[Any]()

    @server.tool(asyncio=True)
    async def work(steps: int, ctx: RequestContext) -> str:
        nonlocal begun, ended
        begun += 1
        try:
            for step in range(steps):
                match step % 4:
                    case 0:
                        ctx.progress(step)
                    case 1:
                        await ctx.log.info("step")
                    case 2:
                        await asyncio.sleep(0)
                    case _:
                        await ctx.elicit("Go on?", {"type": "object", "properties": {}})
        except asyncio.CancelledError:
            await asyncio.sleep(0)  # a second cancel would come here
            ended += 1
            raise
        ended += 1
        return "done"

    @server.tool(asyncio=True)
    async def others() -> int:
        left.extend(asyncio.all_tasks() - {asyncio.current_task()})
        return len(left)

    answered = 0

    async def call_and_leave(client: Any) -> None:
        nonlocal answered
        with trio.move_on_after(chance.random() ** 2 * 0.2):
            await client.call_tool("work", {"steps": chance.randrange(12)})
            answered += 1

    async with open_memory(server, elicitation=lambda _: {}, era="legacy") as client:
        for _ in range(CANCELS // 20):
            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(call_and_leave, client)
        while server.statistics().in_flight:  # noqa: ASYNC110, of handlers that clean up
            await trio.sleep(0.001)
        assert (await client.call_tool("others")).structured_content == {"result": 0}, left
        assert begun == ended
        assert 0 < answered < CANCELS
    assert not [thread for thread in threading.enumerate() if thread.name == "trio-mcp asyncio"]
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "WARNING")]
