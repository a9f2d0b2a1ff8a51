"""Random cancels of asyncio tasks lose no call and leave nothing."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
import trio
import trio.lowlevel
from tests.bridging.seen import run

from trio_mcp import RequestContext, Server, aio
from trio_mcp.types import ElicitResult

CANCELS = 1000
AT_ONCE = 25
LONGEST = 0.06
"""Seconds until a cancel; most calls take half as long where nothing else runs."""


class Host:
    """Calls a server until so many calls were cancelled, and counts what runs on both sides."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.cancelled = self.answered = 0
        self.running = self.asked = 0
        self.server = Server("random")
        self.server.tool(self.work)

    async def work(self, number: int, asks: bool, ctx: RequestContext) -> int:
        """A handler that takes a moment, tells of its progress and asks the user."""
        self.running += 1
        try:
            for step in range(3):
                ctx.progress(step, 3)
                await trio.sleep(0.001)
            if asks:
                await ctx.elicit("Sure?", {"type": "object", "properties": {"sure": {"type": "boolean"}}})
            return number
        finally:
            with trio.CancelScope(shield=True):
                await trio.lowlevel.checkpoint()
            self.running -= 1

    async def answer(self, _: object) -> ElicitResult:
        self.asked += 1
        try:
            await asyncio.sleep(0.002)
            return ElicitResult("accept", {"sure": True})
        finally:
            self.asked -= 1

    async def caller(self, client: aio.Client) -> None:
        while self.cancelled < CANCELS:
            number = self.random.randrange(1000)
            arguments: dict[str, Any] = {"number": number, "asks": self.random.random() < 0.2}
            call = client.call_tool("work", arguments, on_progress=self.slowly if number % 3 else None)
            try:
                if number % 5 == 0:  # which is never cancelled: how many others are answered is a matter of speed
                    result = await call
                elif number % 2:
                    async with asyncio.timeout(self.random.random() * LONGEST):
                        result = await call
                else:
                    result = await self.cancelled_soon(asyncio.create_task(call))
            except (TimeoutError, asyncio.CancelledError):
                self.cancelled += 1
            else:
                assert result.structured_content == {"result": number}
                self.answered += 1

    async def slowly(self, _: object) -> None:
        await asyncio.sleep(0)

    async def cancelled_soon(self, task: asyncio.Task[Any]) -> Any:
        handle = asyncio.get_running_loop().call_later(self.random.random() * LONGEST, task.cancel)
        try:
            return await task
        finally:
            handle.cancel()


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_asyncio_client_answers_every_call_and_leaves_no_task_during_a_thousand_cancels(era: Any) -> None:
    host = Host(seed=24)

    async def main() -> None:
        before = asyncio.all_tasks()
        async with aio.open_memory(host.server, era=era, elicitation=host.answer) as client:
            async with asyncio.TaskGroup() as group:
                for _ in range(AT_ONCE):
                    group.create_task(host.caller(client))
            await client.ping()
            assert (await client.call_tool("work", {"number": 7, "asks": True})).structured_content == {"result": 7}
            assert (host.running, host.asked) == (0, 0)
            assert asyncio.all_tasks() == before
        assert host.cancelled >= CANCELS
        assert host.answered > 50, "those that were not cancelled"

    run(main)
