"""Servers behind a proxy whose own code fails: that ends the connection of one client, and nothing else."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any

import pytest
import trio
from tests.interaction.websocket.raw_peer import port_of, serving
from tests.patience import PATIENCE

from trio_mcp import (
    Address,
    BadTarget,
    Client,
    Command,
    InMemory,
    Server,
    open_memory,
    open_websocket,
    proxy,
    serve_websocket,
)
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
async def test_backend_server_that_crashes_ends_only_the_connection_of_its_client(
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


@pytest.mark.parametrize("wrong", [3, None, {"url": "http://127.0.0.1:1/mcp"}, "python server.py", []])
def test_proxy_raises_immediately_for_an_invalid_backend(wrong: Any) -> None:
    with pytest.raises(
        (TypeError, BadTarget), match=r"upstream must be a URL|not a valid URL|a URL must be like|command"
    ):
        proxy(wrong)


async def test_proxy_accepts_a_server_a_transport_a_url_or_an_address_as_backend() -> None:
    server = Server("s")

    @server.tool
    async def act() -> str:
        return "acted"

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(serve_websocket, server, "127.0.0.1", 0)
        url = f"ws://127.0.0.1:{listener.socket.getsockname()[1]}/mcp"
        for behind in (server, InMemory(server), url, Address(url)):
            async with open_memory(proxy(behind)) as client:
                assert (await client.call_tool("act")).text == "acted"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("kind", [Command, list, tuple])
async def test_proxy_accepts_a_command_as_backend(kind: Any) -> None:
    code = """if True:
        import trio
        from trio_mcp import Server, serve_stdio
        server = Server("s")
        @server.tool
        async def act() -> str:
            return "acted"
        trio.run(serve_stdio, server)
    """
    async with open_memory(proxy(kind([sys.executable, "-c", code]))) as client:
        assert (await client.call_tool("act")).text == "acted"
