"""Requests of clients that break the specification in harmless ways."""

from typing import Any

import pytest

from trio_mcp import Client, PeerError, Server, open_memory, proxy

server = Server("counter")


@server.tool
def count(step: int = 1) -> str:
    return f"by {step}"


@server.prompt
def greet(name: str = "nobody") -> str:
    return f"Hello, {name}!"


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("is_proxied", [False, True])
async def test_call_whose_arguments_are_an_empty_list_runs_as_a_call_without_arguments(
    era: Any, is_proxied: bool
) -> None:
    async def use(client: Client) -> None:
        called = await client.request("tools/call", {"name": "count", "arguments": []}, dict[str, Any])
        assert called["content"][0]["text"] == "by 1"
        filled = await client.request("prompts/get", {"name": "greet", "arguments": []}, dict[str, Any])
        assert filled["messages"][0]["content"]["text"] == "Hello, nobody!"
        for wrong in ({"arguments": [1]}, {"arguments": "{}"}, {"arguments": [], "name": []}):
            with pytest.raises(PeerError, match="Invalid params"):
                await client.request("tools/call", {"name": "count", **wrong}, dict[str, Any])

    async with open_memory(server, era=era) as client:
        if not is_proxied:
            await use(client)
            return
        async with open_memory(proxy(client), era=era) as behind:
            await use(behind)
