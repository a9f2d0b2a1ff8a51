"""Replaying a recording as a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from trio_mcp import (
    RequestContext,
    Server,
    open_memory,
)
from trio_mcp.testing import assert_replays

ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])


def made(greeting: str = "hello") -> Server:
    server = Server("s")

    @server.tool
    async def greet(name: str) -> str:
        return f"{greeting} {name}"

    @server.tool
    async def ask(ctx: RequestContext) -> str:
        return str((await ctx.elicit("sure?", bool)).content)

    @server.tool
    async def slow(ctx: RequestContext) -> None:
        ctx.progress(1, 2)
        await trio.sleep_forever()

    return server


def yes(_: object) -> dict[str, Any]:
    return {"value": True}


@ERAS
async def test_replay_reports_a_different_response_with_the_path_of_the_difference(tmp_path: Path, era: Any) -> None:
    path = tmp_path / "calls.jsonl"
    async with open_memory(made(), record=path, era=era, elicitation=yes) as client:
        await client.call_tool("greet", {"name": "Ann"})
    with pytest.raises(AssertionError) as caught:
        await assert_replays(path, made("goodbye"))
    (line,) = str(caught.value).splitlines()
    assert line == (
        'tools/call greet (id 2): result.content[0].text: "hello Ann" was recorded, and now there is "goodbye Ann"'
    )


@ERAS
async def test_replay_fails_if_the_server_no_longer_elicits(tmp_path: Path, era: Any) -> None:
    path = tmp_path / "calls.jsonl"
    async with open_memory(made(), record=path, era=era, elicitation=yes) as client:
        await client.call_tool("ask")
    changed = Server("s")

    @changed.tool
    async def ask(ctx: RequestContext) -> str:
        return "no question"

    with pytest.raises(AssertionError, match=r"elicitation/create|resultType"):
        await assert_replays(path, changed, patience=1)


async def test_replay_fails_if_a_cancelled_call_is_answered(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    async with open_memory(made(), record=path, era="legacy") as client:
        with trio.CancelScope() as scope:
            await client.call_tool("slow", on_progress=lambda _: scope.cancel(reason="slow has begun"))
        await client.call_tool("greet", {"name": "Ann"})
    changed = Server("s")

    @changed.tool
    async def greet(name: str) -> str:
        return f"hello {name}"

    @changed.tool
    async def slow() -> str:
        return "done"

    with pytest.raises(AssertionError, match="no answer, since it was cancelled was recorded"):
        await assert_replays(path, changed)
