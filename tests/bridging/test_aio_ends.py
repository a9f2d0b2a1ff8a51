"""How asyncio clients end: closed, cancelled, abandoned, or with their loop."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from tests.bridging.seen import Seen, run, threads
from tests.patience import PATIENCE

from trio_mcp import BadTarget, ConnectionLost, Server, aio


def test_unclosed_asyncio_client_ends_when_its_event_loop_ends(seen: Seen) -> None:
    kept: list[object] = []

    async def main() -> None:
        opened = aio.open_memory(seen.server)
        kept.append(opened)
        kept.append(await opened.__aenter__())
        kept.append(asyncio.create_task(kept[-1].call_tool("wait")))  # pyright: ignore
        await asyncio.to_thread(seen.began.wait)

    run(main)
    assert seen.running == 0


def test_asyncio_client_ends_soon_after_its_event_loop_is_closed(seen: Seen) -> None:
    loop = asyncio.new_event_loop()
    opened = aio.open_memory(seen.server)
    loop.run_until_complete(opened.__aenter__())
    loop.close()
    (thread,) = threads()
    thread.join(PATIENCE)
    assert threads() == []


def test_unreferenced_asyncio_client_is_closed(seen: Seen) -> None:
    async def main() -> None:
        await aio.open_memory(seen.server).__aenter__()
        (thread,) = threads()
        gc.collect()
        await asyncio.to_thread(thread.join, PATIENCE)
        assert threads() == []

    run(main)


def test_call_after_closing_an_asyncio_client_raises_connection_lost(seen: Seen) -> None:
    async def main() -> None:
        async with aio.open_memory(seen.server) as client:
            waiting = asyncio.create_task(client.call_tool("wait"))
            await asyncio.to_thread(seen.began.wait)
        with pytest.raises(ConnectionLost, match="closed"):
            await waiting
        with pytest.raises(ConnectionLost, match="closed"):
            await client.call_tool("echo", {"text": "late"})

    run(main)


def test_entering_an_asyncio_client_twice_raises_runtime_error(seen: Seen) -> None:
    async def main() -> None:
        async with aio.open_memory(seen.server) as other:
            again = aio.open_memory(seen.server)
            async with again as client:
                with pytest.raises(RuntimeError, match="entered once"):
                    await again.__aenter__()
                assert (await client.call_tool("echo", {"text": "here"})).text == "here"
            with pytest.raises(RuntimeError, match="entered once"):
                await again.__aenter__()
            assert (await other.call_tool("echo", {"text": "here"})).text == "here"

    run(main)


def test_error_while_opening_an_asyncio_client_is_raised_in_the_asyncio_task(seen: Seen, tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(ConnectionLost):
            await aio.open_unix(tmp_path / "nobody").__aenter__()
        with pytest.raises(BadTarget):
            await aio.open_tcp("", 0).__aenter__()
        with pytest.raises(TypeError, match="async with open_stdio"):
            await aio.open_stdio(["python"])  # pyright: ignore

    run(main)


def test_opening_of_an_asyncio_client_can_be_cancelled() -> None:
    began = threading.Event()
    left = threading.Event()

    @asynccontextmanager
    async def lifespan(_: Server) -> AsyncGenerator[None]:
        began.set()
        try:
            await trio.sleep_forever()
            yield
        finally:
            left.set()

    server = Server("slow", lifespan=lifespan)

    async def main() -> None:
        opening = asyncio.create_task(aio.open_memory(server).__aenter__())
        await asyncio.to_thread(began.wait)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert left.is_set()

    run(main)


_SERVER = """
import trio
from trio_mcp import Server, serve_stdio
server = Server("child")

@server.tool
async def echo(text: str) -> str:
    return text

trio.run(serve_stdio, server)
"""


def test_asyncio_stdio_client_uses_a_child_process(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(_SERVER)

    async def main() -> None:
        async with aio.open_stdio([sys.executable, tmp_path / "server.py"]) as client:
            async for tool in client.list_tools():
                assert tool.name == "echo"
            result = await client.call_tool("echo", {"text": "hi"})
            assert result.content[0].text == "hi"  # pyright: ignore

    run(main)
