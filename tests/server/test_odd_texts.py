"""Texts that UTF-8 cannot carry, such as names of files in Latin-1: the rest of the result reaches the client."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import attrs
import pytest

from trio_mcp import RequestContext, Server, ToolError, open_memory
from trio_mcp.types import LogParams, PromptMessage, TextContent

NAME = os.fsdecode(b"caf\xe9.txt")
OTHER = os.fsdecode(b"caf\xe8.txt")
SHOWN, OTHER_SHOWN = "caf\\udce9.txt", "caf\\udce8.txt"


@attrs.frozen
class Found:
    name: str
    size: int


@pytest.mark.parametrize("era", ["legacy", "auto"])
@pytest.mark.parametrize(
    ("annotation", "value", "structured"),
    [
        (str, f"found {NAME}", None),
        (list[str], ["a.txt", NAME], {"result": ["a.txt", SHOWN]}),
        (dict[str, int], {NAME: 1, OTHER: 2}, {SHOWN: 1, OTHER_SHOWN: 2}),
        (list[Found], [Found(NAME, 1)], {"result": [{"name": SHOWN, "size": 1}]}),
        (Path, Path(NAME), {"result": SHOWN}),
        (TextContent, TextContent(NAME), None),
        (dict[str, Any], {"deep": [[{"name": NAME}]]}, {"deep": [[{"name": SHOWN}]]}),
    ],
    ids=str,
)
async def test_result_with_a_lone_unicode_surrogate_is_sent_with_an_escape(
    annotation: Any, value: Any, structured: Any, era: Any
) -> None:
    server = Server("odd")

    async def files() -> Any:
        return value

    files.__annotations__["return"] = annotation
    server.tool(files)
    async with open_memory(server, era=era) as client:
        result = await client.call_tool("files")
    assert not result.is_error
    assert "caf\\udce9.txt" in result.text.replace("\\\\", "\\")
    assert result.structured_content == structured


async def test_lone_unicode_surrogates_in_resources_prompts_logs_and_errors_are_sent_as_escapes() -> None:
    server = Server("odd")

    @server.resource("x://names")
    async def names() -> Any:
        return [NAME]

    @server.resource("x://name")
    async def name() -> str:
        return NAME

    @server.prompt
    async def praise() -> list[PromptMessage]:
        return [PromptMessage("user", TextContent(NAME))]

    @server.tool
    async def loud(ctx: RequestContext) -> str:
        await ctx.log.info({"file": NAME}, logger=NAME)
        ctx.log.log_nowait("warning", NAME)
        return "done"

    @server.tool
    async def fails() -> str:
        raise ToolError(f"there is no {NAME}")

    logs = list[LogParams]()
    async with open_memory(server, on_log=logs.append, era="legacy") as client:
        assert (await client.read_resource("x://names")).text == '["caf\\\\udce9.txt"]'
        assert (await client.read_resource("x://name")).text == SHOWN
        assert (await client.get_prompt("praise")).messages[0].content == TextContent(SHOWN)
        assert (await client.call_tool("loud")).text == "done"
        assert (await client.call_tool("fails")).text == f"there is no {SHOWN}"
    assert [(log.data, log.logger) for log in logs] == [({"file": SHOWN}, SHOWN), (SHOWN, None)]
