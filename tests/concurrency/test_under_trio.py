"""Errors with advice for those who run trio-mcp with asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

import trio_mcp
import trio_mcp.hosting
from trio_mcp import (
    Address,
    Command,
    Server,
    open_client,
    open_http,
    open_memory,
    open_stdio,
    open_tcp,
    open_unix,
    open_websocket,
    serve_http,
    serve_stdio,
    serve_tcp,
    serve_transport,
    serve_unix,
    serve_websocket,
)
from trio_mcp.hosting import open_group
from trio_mcp.testing import memory_transport_pair

SERVING: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    (serve_stdio, ()),
    (serve_http, ()),
    (serve_websocket, ()),
    (serve_tcp, ()),
    (serve_unix, ("socket",)),
    (serve_transport, (memory_transport_pair()[0],)),
]
OPENING: list[tuple[str, Callable[[], AbstractAsyncContextManager[Any]]]] = [
    ("open_stdio", lambda: open_stdio(["server"])),
    ("open_stdio", lambda: Command(["server"]).open()),
    ("open_http", lambda: open_http("http://127.0.0.1:9/mcp")),
    ("open_websocket", lambda: open_websocket("ws://127.0.0.1:9/mcp")),
    ("open_tcp", lambda: open_tcp("127.0.0.1", 9)),
    ("open_unix", lambda: open_unix("socket")),
    ("open_unix", lambda: Address("unix:///socket").open()),
    ("open_memory", lambda: open_memory(Server("s"))),
    ("open_client", lambda: open_client(memory_transport_pair()[0])),
    ("open_group", open_group),
]


@pytest.mark.parametrize(("serve", "args"), SERVING)
def test_serve_function_under_asyncio_raises_runtime_error_with_advice(
    serve: Callable[..., Any], args: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuntimeError) as raised:
        asyncio.run(serve(Server("s"), *args))
    name = serve.__name__
    assert f"    wrong:  asyncio.run({name}(server))\n    right:  trio.run({name}, server)" in str(raised.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "opening"), OPENING)
def test_open_function_under_asyncio_raises_runtime_error_with_advice(
    name: str, opening: Callable[[], AbstractAsyncContextManager[Any]]
) -> None:
    async def main() -> None:
        async with opening():
            raise AssertionError("it cannot be entered")

    with pytest.raises(RuntimeError, match=rf"{name} runs only under trio") as raised:
        asyncio.run(main())
    assert "right:  trio.run(main)" in str(raised.value)


def test_each_public_serve_and_open_function_is_tested_under_asyncio() -> None:
    names = {serve.__name__ for serve, _ in SERVING} | {name for name, _ in OPENING}
    public = {*trio_mcp.__all__, *trio_mcp.hosting.__all__}
    assert names == {name for name in public if name.startswith(("serve_", "open_"))}
