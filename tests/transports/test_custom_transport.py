"""A transport of a user: three methods over something of their own, here a pair of trio's memory channels."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from trio_mcp import (
    Client,
    ConnectionLost,
    Progress,
    RequestContext,
    Server,
    Transport,
    open_client,
    open_memory,
    serve_transport,
)
from trio_mcp.types import ElicitResult

ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])


class ChannelTransport(Transport):
    """Messages over two memory channels."""

    def __init__(self, to_peer: trio.MemorySendChannel[bytes], from_peer: trio.MemoryReceiveChannel[bytes]) -> None:
        self.to_peer = to_peer
        self.from_peer = from_peer
        self.closed = 0

    async def receive(self) -> bytes:
        return await self.from_peer.receive()

    async def send(self, messages: bytes | bytearray) -> None:
        for line in bytes(messages).splitlines():
            await self.to_peer.send(line)

    async def aclose(self) -> None:
        self.closed += 1
        self.to_peer.close()
        self.from_peer.close()
        await trio.lowlevel.checkpoint()


def pair(capacity: float = math.inf) -> tuple[ChannelTransport, ChannelTransport]:
    to_server, from_client = trio.open_memory_channel[bytes](capacity)
    to_client, from_server = trio.open_memory_channel[bytes](capacity)
    return ChannelTransport(to_server, from_server), ChannelTransport(to_client, from_client)


def shop() -> tuple[Server, list[str]]:
    server, seen = Server("shop"), list[str]()

    @server.tool
    async def count(ctx: RequestContext) -> str:
        ctx.progress(1, 2)
        return "two"

    @server.tool
    async def ask(ctx: RequestContext) -> str:
        answer = await ctx.elicit("Which size?", ["small", "large"])
        return str(answer.content)

    @server.tool
    async def wait() -> None:
        seen.append("begun")
        try:
            await trio.sleep_forever()
        finally:
            seen.append("ended")

    return server, seen


@asynccontextmanager
async def opened(server: Server, capacity: float = math.inf, **options: Any) -> AsyncIterator[tuple[Client, Any, Any]]:
    ours, theirs = pair(capacity)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_transport, server, theirs)
        async with open_client(ours, **options) as client:
            yield client, ours, theirs


@ERAS
@pytest.mark.parametrize("capacity", [0, math.inf], ids=["that blocks", "that buffers"])
async def test_client_and_server_exchange_calls_progress_and_elicitations_over_a_custom_transport(
    era: Any, capacity: float
) -> None:
    async def answer(_: Any) -> ElicitResult:
        return ElicitResult("accept", {"value": "small"})

    steps = list[Progress]()
    async with opened(shop()[0], capacity, era=era, elicitation=answer) as (client, ours, theirs):
        result = await client.call_tool("count", on_progress=steps.append)
        assert result.text == "two"
        assert [step.progress for step in steps] == [1]
        assert "small" in (await client.call_tool("ask")).text
    assert ours.closed
    assert theirs.closed


@ERAS
async def test_cancelled_call_over_a_custom_transport_cancels_its_handler(
    era: Any, autojump_clock: trio.abc.Clock
) -> None:
    server, seen = shop()
    async with opened(server, era=era) as (client, _, _):
        with trio.move_on_after(1):
            await client.call_tool("wait")
        await trio.sleep(1)
        assert seen == ["begun", "ended"]
        assert (await client.call_tool("count")).text == "two"


@ERAS
async def test_loss_of_a_custom_transport_fails_client_calls_and_cancels_their_handlers(era: Any) -> None:
    server, seen = shop()
    async with opened(server, era=era) as (client, _, theirs):
        async with trio.open_nursery() as nursery:

            async def call() -> None:
                with pytest.raises(ConnectionLost):
                    await client.call_tool("wait")

            nursery.start_soon(call)
            await trio.testing.wait_all_tasks_blocked(0.01)
            await theirs.aclose()
        assert client.lost is not None
    assert seen == ["begun", "ended"]


async def test_os_error_of_a_custom_transport_raises_connection_lost() -> None:
    class Broken(ChannelTransport):
        async def send(self, messages: bytes | bytearray) -> None:
            raise BrokenPipeError("gone")

    ours, _ = pair()
    broken = Broken(ours.to_peer, ours.from_peer)
    with pytest.raises(ConnectionLost, match="the transport failed: BrokenPipeError"):
        async with open_client(broken):
            pass
    assert broken.closed


async def test_custom_transport_is_closed_if_the_server_does_not_start() -> None:
    @asynccontextmanager
    async def lifespan(_: Server) -> AsyncIterator[None]:
        raise ValueError("no database")
        yield

    _, theirs = pair()
    with pytest.raises(ValueError, match="no database"):
        await serve_transport(Server("s", lifespan=lifespan), theirs)
    assert theirs.closed


async def test_recording_of_a_custom_transport_contains_its_messages(tmp_path: Path) -> None:
    ours, theirs = pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: serve_transport(shop()[0], theirs, record=tmp_path / "messages"))
        async with open_client(ours) as client:
            await client.call_tool("count")
    assert "count" in (tmp_path / "messages").read_text()


async def test_object_passed_instead_of_a_transport_raises_type_error() -> None:
    with pytest.raises(
        TypeError, match=r"a transport must be an instance of a subclass of trio_mcp.Transport, not <object"
    ):
        async with open_client(object()):  # type: ignore[arg-type]
            raise AssertionError("it isn't opened")
    async with open_memory(Server("s")) as client:
        assert client.lost is None
