"""A host, a server that forwards its calls, and a backend server: elicitation and cancellation pass through both, in
each combination of legacy and modern.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import CancelCause, Client, CodedError, RequestContext, Server, ToolError, open_memory
from trio_mcp.types import ElicitFormParams, ElicitResult

NAME = {"type": "object", "properties": {"name": {"type": "string"}}}
ERAS = ("legacy", "modern")


class Chain:
    """Who did what, in order; and why handlers were cancelled."""

    def __init__(self) -> None:
        self.story: list[str] = []
        self.cancelled: dict[str, tuple[CancelCause, str | None]] = {}

    @asynccontextmanager
    async def told(self, who: str, ctx: RequestContext) -> AsyncIterator[None]:
        self.story.append(f"{who} begins")
        try:
            yield
        finally:
            if ctx.cancellation is not None:
                self.cancelled[who] = (ctx.cancellation.cause, ctx.cancellation.reason)
            self.story.append(f"{who} ends")

    def behind(self) -> Server:
        """It asks."""
        server = Server("behind")

        @server.tool
        async def greet(ctx: RequestContext) -> str:
            async with self.told("behind", ctx):
                answer = await ctx.elicit("name?", NAME)
                return f"hello {answer.content['name']}" if answer.content else answer.action

        return server

    def middle(self, behind: Server, era: Any) -> Server:
        """It calls the one behind, and hands on what that asks."""
        server = Server("middle")

        @server.tool
        async def greet(ctx: RequestContext) -> str:
            async def hand_on(params: ElicitFormParams) -> ElicitResult:
                answer = await ctx.elicit(params.message, params.requested_schema)
                return ElicitResult(answer.action, answer.content)

            async with self.told("middle", ctx), open_memory(behind, era=era, elicitation=hand_on) as client:
                try:
                    return (await client.call_tool("greet")).text
                except CodedError as error:
                    raise ToolError(str(error)) from None

        return server


@pytest.fixture(params=ERAS)
def front_era(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=ERAS)
def back_era(request: pytest.FixtureRequest) -> str:
    return request.param


async def test_server_forwards_an_elicitation_of_its_backend_to_the_user_and_returns_the_answer(
    autojump_clock: MockClock, front_era: Any, back_era: Any
) -> None:
    chain = Chain()

    async def user(params: ElicitFormParams) -> dict[str, Any]:
        chain.story.append(f"user is asked {params.message}")
        return {"name": "Ada"}

    server = chain.middle(chain.behind(), back_era)
    async with open_memory(server, era=front_era, elicitation=user) as client:
        assert (await client.call_tool("greet")).text == "hello Ada"
    assert chain.story == ["middle begins", "behind begins", "user is asked name?", "behind ends", "middle ends"]
    assert chain.cancelled == {}


async def test_cancel_of_a_call_stops_frontend_handler_backend_handler_and_elicitation_with_its_reason(
    autojump_clock: MockClock, front_era: Any, back_era: Any
) -> None:
    chain = Chain()

    async def user(_: ElicitFormParams) -> dict[str, Any]:
        asked.set()
        try:
            await trio.sleep_forever()
        finally:
            chain.story.append("user is left alone")

    asked = trio.Event()
    server = chain.middle(chain.behind(), back_era)
    async with open_memory(server, era=front_era, elicitation=user) as client:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.call_tool, "greet")
                await asked.wait()
                scope.cancel(reason="the user pressed stop")
        await wait_all_tasks_blocked()
        assert chain.cancelled == {
            "middle": (CancelCause.PEER, "the user pressed stop"),
            "behind": (CancelCause.PEER, "the user pressed stop"),
        }
        assert sorted(chain.story[2:]) == ["behind ends", "middle ends", "user is left alone"]
        assert client.server_info is not None


async def test_each_of_a_hundred_concurrent_calls_gets_the_answer_to_its_own_elicitation(
    autojump_clock: MockClock, front_era: Any
) -> None:
    server = Server("s")

    @server.tool
    async def add_up(name: str, ctx: RequestContext) -> str:
        async def ask(number: int, place: int) -> None:
            answer = await ctx.elicit(f"{name} {number} {place}", NAME)
            assert answer.content is not None
            said.append(str(answer.content["name"]))

        said: list[str] = []
        for number in range(3):
            async with trio.open_nursery() as nursery:
                for place in range(2):
                    nursery.start_soon(ask, number, place)
        return " | ".join(sorted(said))

    async def user(params: ElicitFormParams) -> dict[str, Any]:
        await trio.sleep(sum(params.message.encode()) % 7)
        return {"name": f"answer to {params.message}"}

    async def call(client: Client, name: str) -> None:
        wanted = [f"answer to {name} {number} {place}" for number in range(3) for place in range(2)]
        assert (await client.call_tool("add_up", {"name": name})).text == " | ".join(wanted)

    async with open_memory(server, era=front_era, elicitation=user) as client, trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(call, client, f"call {number}")
    assert server.statistics().parked == 0
