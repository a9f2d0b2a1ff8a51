"""Handlers and callbacks that all members share know which of them asks or tells."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest
import trio
import trio.lowlevel

from trio_mcp import RequestContext, Server, aio
from trio_mcp.hosting import MemberDescription, current_member, open_group
from trio_mcp.types import ElicitResult, LogParams

ERAS: list[Literal["legacy", "modern"]] = ["legacy", "modern"]
FORM = {"type": "object", "properties": {"name": {"type": "string"}}}


def asker(name: str) -> Server:
    server = Server(name)

    @server.tool
    async def ask(ctx: RequestContext) -> str:
        await ctx.log.warning(f"from {name}")
        return str((await ctx.elicit("Name?", FORM)).content)

    return server


MEMBERS = {name: MemberDescription(asker(name)) for name in ("a", "b")}


async def in_trio(_: object) -> ElicitResult:
    await trio.lowlevel.checkpoint()
    return ElicitResult("accept", {"name": str(current_member())})


def in_thread(_: object) -> ElicitResult:
    return ElicitResult("accept", {"name": str(current_member())})


def returns_awaitable(question: object) -> Any:
    async def answer() -> ElicitResult:
        return await in_trio(question)

    return answer()


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("handler", [in_trio, in_thread, returns_awaitable])
async def test_handlers_and_callbacks_of_a_group_can_read_which_server_they_run_for(
    era: Literal["legacy", "modern"], handler: Any
) -> None:
    logged: list[tuple[str | None, Any]] = []

    def on_log(message: LogParams) -> None:
        logged.append((current_member(), message.data))

    async with open_group(MEMBERS, elicitation=handler, on_log=on_log, era=era) as group:
        await group.settled()
        for name in MEMBERS:
            await (await group.client(name)).set_log_level("warning")
            assert f"'{name}'" in str(await group.call_tool(f"{name}__ask"))
    assert set(logged) == {("a", "from a"), ("b", "from b")}
    assert current_member() is None


async def test_group_created_with_an_async_on_unreadable_callback_raises_value_error() -> None:
    async def on_unreadable(_: object) -> None:
        raise AssertionError

    async with open_group(on_unreadable=on_unreadable) as group:  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="write it with def, not with async def"):
            group.add("a", MEMBERS["a"])


def test_asyncio_handlers_of_a_group_can_read_which_server_they_run_for() -> None:
    async def answer(_: object) -> ElicitResult:
        await asyncio.sleep(0)
        return ElicitResult("accept", {"name": str(current_member())})

    async def main() -> None:
        async with aio.open_group(MEMBERS, elicitation=answer) as group:
            assert "'b'" in str(await group.call_tool("b__ask"))

    asyncio.run(main())
