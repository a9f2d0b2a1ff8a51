"""Awaiting an async context manager raises a TypeError with advice."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import pytest
import trio

import trio_mcp
import trio_mcp.testing
from trio_mcp import Server
from trio_mcp.testing import memory_transport_pair

SERVER = Server("s")
OPENED = {name for module in (trio_mcp, trio_mcp.testing) for name in module.__all__ if name.startswith("open_")}
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "open_stdio": (["server"],),
    "open_tcp": ("127.0.0.1", 1),
    "open_unix": ("/run/server.sock",),
    "open_http": ("http://127.0.0.1:1/mcp",),
    "open_websocket": ("ws://127.0.0.1:1/mcp",),
    "open_memory": (SERVER,),
    "open_group": ({},),
    "open_client": (memory_transport_pair()[0],),
    "open_server": (SERVER, None),
    "open_scripted_client": (SERVER,),
    "open_scripted_process": (["server"],),
    "open_scripted_server": (None,),
}


@pytest.mark.parametrize("name", sorted(OPENED))
async def test_open_function_that_is_awaited_raises_type_error_with_advice(name: str) -> None:
    module = trio_mcp if name in trio_mcp.__all__ else trio_mcp.testing
    opening: Awaitable[Any] = getattr(module, name)(*ARGUMENTS[name])
    with pytest.raises(
        TypeError, match=rf"{name}\(\.\.\.\) is an async context manager and can't be awaited"
    ) as caught:
        await opening
    advice = str(caught.value).partition("awaited: write ")[2]
    assert advice.startswith(f"async with {name}(...)")
    compile(f"async def main():\n    {advice}\n        pass", "advice", "exec")


async def test_async_with_statement_on_an_open_function_opens_a_client(autojump_clock: object) -> None:
    async with trio_mcp.open_memory(SERVER) as client:
        await client.ping()
    with pytest.raises(trio.TooSlowError):
        async with trio_mcp.open_memory(SERVER):
            raise trio.TooSlowError
