"""An author's wrong value is an error of the request that meets it, and of nothing else."""

from __future__ import annotations

from typing import Any, cast

import pytest

from trio_mcp import PeerError, Server, open_memory


async def test_a_listing_with_a_wrong_value_fails_alone(caplog: pytest.LogCaptureFixture) -> None:
    server = Server("s")

    @server.tool(annotations=cast("Any", {"readOnlyHint": True}))
    async def tool() -> str:
        return "fine"

    async with open_memory(server) as client:
        with pytest.raises(PeerError) as caught:
            [tool async for tool in client.list_tools()]
        assert (await client.call_tool("tool")).text == "fine"
    assert (caught.value.code, caught.value.message) == (-32603, "Internal error")
    assert "tools/list" in caplog.text


async def test_an_opening_with_a_wrong_value_is_answered_too() -> None:
    server = Server("s", instructions=cast("Any", object()))
    async with open_memory(Server("other")) as other:
        with pytest.raises(PeerError, match="Internal error"):
            async with open_memory(server, era="legacy"):
                pass
        await other.ping()
