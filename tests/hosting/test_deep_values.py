"""What a member nests deep is in the catalogue and in results, and what it nests too deep is an error that says so."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from tests.hosting.members import describe, in_memory
from tests.interaction.client.deep import MOST_BELOW, deep
from tests.proxying.test_deep_values import TOO_DEEP, assert_calm, depth_of, nested

from trio_mcp import NotSerializable, ProtocolViolation
from trio_mcp.hosting import Group, open_group

ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])


@asynccontextmanager
async def grouped(levels: int, era: Any, *, objects: bool = True) -> AsyncGenerator[Group]:
    """A group of a server with values so deep, and of one that greets."""
    script = deep(levels, modern=era == "modern", objects=objects)
    async with open_group({"deep": describe(script, era=era), "other": in_memory()}) as group:
        with trio.fail_after(300):
            await group.settled()
            yield group


@ERAS
@pytest.mark.parametrize("objects", [True, False])
async def test_group_lists_and_returns_values_nested_up_to_the_depth_limit(
    autojump_clock: object, era: Any, objects: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with grouped(MOST_BELOW - 1, era, objects=objects) as group:
        schema = group.catalogue.tools["deep__deep"].renamed.input_schema
        assert depth_of(schema["properties"]["x"]["default"]) == MOST_BELOW - 1
        result = await group.call_tool("deep__deep")
        assert depth_of(result.structured_content) == MOST_BELOW
        client = await group.client("deep")
        counted = await client.call_tool("count", {"value": nested(MOST_BELOW - 1, objects=objects)})
        assert counted.text == str(MOST_BELOW - 1)
    assert_calm(caplog)


@ERAS
@pytest.mark.parametrize("levels", TOO_DEEP)
async def test_group_reports_a_tool_list_nested_too_deeply_and_other_servers_still_answer(
    autojump_clock: object, era: Any, levels: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with grouped(levels, era) as group:
        assert set(group.catalogue.tools) == {"other__greet", "other__sleep"}
        assert "the tools of member deep are incomplete" in caplog.text
        assert "the message has more than 256 levels of nesting" in caplog.text
        with pytest.raises(ProtocolViolation, match="the message has more than 256 levels of nesting"):
            await (await group.client("deep")).call_tool("deep")
        assert (await group.call_tool("other__greet")).text == "hello from greeter"
    assert_calm(caplog)


@ERAS
@pytest.mark.parametrize("levels", TOO_DEEP)
@pytest.mark.parametrize("objects", [True, False])
async def test_arguments_nested_too_deeply_raise_not_serializable(
    autojump_clock: object, era: Any, levels: int, objects: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with grouped(1, era) as group:
        with pytest.raises(NotSerializable, match="256 levels"):
            await group.call_tool("deep__deep", {"value": nested(levels, objects=objects)})
        assert (await group.call_tool("deep__deep")).text == "0"
    assert_calm(caplog)
