"""Servers behind a proxy whose own code fails: that ends the connection of one client, and nothing else."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any

import pytest
import trio
from tests.interaction.websocket.raw_peer import port_of, serving
from tests.patience import PATIENCE

from trio_mcp import Address, Client, Server, open_memory, open_websocket, proxy, serve_websocket
from trio_mcp.jsonrpc.errors import MCPError


def server(*, fails: str) -> Server:
    """One whose lifespan raises: at its start, at its end, or not at all."""

    @asynccontextmanager
    async def lifespan(_: Server) -> AsyncIterator[None]:
        if fails == "start":
            raise KeyError("secret")
        try:
            yield
        finally:
            if fails == "end":
                raise KeyError("secret")

    made = Server("s", lifespan=lifespan)

    @made.tool
    async def act() -> str:
        return "acted"

    return made


@pytest.mark.parametrize("fails", ["start", "end"])
async def test_a_server_whose_code_fails_ends_the_connection_of_its_own_client(
    fails: str, front: Any, caplog: pytest.LogCaptureFixture
) -> None:
    servers = [server(fails="never"), server(fails=fails), server(fails="never")]

    def opening(**options: Any) -> AbstractAsyncContextManager[Client]:
        return open_memory(servers.pop(0), **options)

    with trio.fail_after(PATIENCE):
        async with serving(serve_websocket, proxy(opening), port=0) as listeners:
            url = f"ws://127.0.0.1:{port_of(listeners)}/mcp"
            async with open_websocket(url, era=front) as bystander:
                assert (await bystander.call_tool("act")).text == "acted"
                with nullcontext() if fails == "end" else pytest.raises(MCPError, match=r"^(?!.*secret)"):
                    async with open_websocket(url, era=front) as unlucky:
                        assert (await unlucky.call_tool("act")).text == "acted"
                async with open_websocket(url, era=front) as newcomer:
                    assert (await newcomer.call_tool("act")).text == "acted"
                assert (await bystander.call_tool("act")).text == "acted"
    assert "KeyError: 'secret'" in caplog.text


@pytest.mark.parametrize(
    ("wrong", "instead"),
    [
        ("http://127.0.0.1:1/mcp", "Address(url).open"),
        ("python server.py", "Command([...]).open"),
        (Address("http://127.0.0.1:1/mcp"), "target.open"),
        (Server("s"), "InMemory(server).open"),
        (3, "Command([...]).open"),
    ],
)
def test_what_is_no_way_to_a_server_is_refused_where_it_is_given(wrong: Any, instead: str) -> None:
    with pytest.raises(TypeError, match=re.escape(f"a function that opens one, {instead} for example, not ")):
        proxy(wrong)
