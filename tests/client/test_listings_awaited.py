"""Listings that are awaited, as people do who come from elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from trio_mcp import Server, open_memory


@pytest.mark.parametrize(
    ("method", "item"),
    [
        ("list_tools", "tool"),
        ("list_prompts", "prompt"),
        ("list_resources", "resource"),
        ("list_resource_templates", "template"),
    ],
)
async def test_listing_that_is_awaited_raises_an_error_with_instructions(
    autojump_clock: object, method: str, item: str
) -> None:
    async with open_memory(Server("s")) as client:
        with pytest.raises(TypeError, match="instead of awaiting") as caught:
            await getattr(client, method)()
        advice = str(caught.value).partition(": ")[2]
        assert advice == f"[{item} async for {item} in client.{method}()]"
        names: dict[str, Any] = {}
        exec(f"async def listed(client): return {advice}", names)
        assert await names["listed"](client) == []
