"""Incomplete messages use no more memory of a server, over all connections, than the limit of their client."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.interaction.websocket.raw_peer import RawPeer, connected, masked_frame, port_of, serving
from tests.patience import PATIENCE
from trio.testing import wait_all_tasks_blocked

from trio_mcp import Limits, Server, serve_http, serve_tcp, serve_unix, serve_websocket

from .conversation import MODERN, Conversation

MIB = 1024 * 1024
LIMITS = Limits(max_unread_bytes=12 * MIB, max_message_bytes=2 * MIB, handshake_timeout=10_000)
NO_ROOM = "incomplete messages take too many bytes; try again later"


def server() -> Server:
    made = Server("s", limits=LIMITS)

    @made.tool
    async def measure(text: str) -> str:
        return str(len(text))

    return made


def measuring(size: int) -> bytes:
    """A call that takes ``size`` bytes, and some more."""
    talk = Conversation()
    talk.revision = MODERN
    return json.dumps(talk.call_message("measure", {"text": "x" * size})).encode()


class Lines:
    """A client over lines that ``call`` of `measuring` is sent through, wholly or in part."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream

    async def send_half(self, size: int) -> None:
        await send(self.stream, measuring(size)[:-20])

    async def send_rest(self, size: int) -> None:
        await self.stream.send_all(measuring(size)[-20:] + b"\n")

    async def answer(self) -> str:
        received = b""
        with trio.fail_after(PATIENCE):
            while not received.endswith(b"\n"):
                data = await self.stream.receive_some(65536)
                assert data, "the connection has ended"
                received += data
        return json.loads(received)["result"]["content"][0]["text"]

    async def was_ended(self) -> None:
        # It may have sent more than was read, so that the system resets the connection.
        with trio.fail_after(PATIENCE), suppress(trio.BrokenResourceError):
            assert await self.stream.receive_some(65536) == b""


class Frames(Lines):
    """A client over WebSocket."""

    def __init__(self, peer: RawPeer, *, fragments: bool) -> None:
        super().__init__(peer.stream)
        self.peer = peer
        self.fragments = fragments

    async def send_half(self, size: int) -> None:
        data = measuring(size)
        if self.fragments:
            await send(self.stream, masked_frame(1, data[:-20], fin=False))
        else:
            await send(self.stream, masked_frame(1, data)[:-20])

    async def send_rest(self, size: int) -> None:
        rest = measuring(size)[-20:]
        await self.stream.send_all(masked_frame(0, rest) if self.fragments else rest)

    async def answer(self) -> str:
        return (await self.peer.message())["result"]["content"][0]["text"]

    async def was_ended(self) -> None:
        closed = await self.peer.closed()
        assert closed is not None
        assert (closed.code, closed.reason) == (1013, NO_ROOM)


async def send(stream: trio.SocketStream, data: bytes) -> None:
    """Send ``data`` and wait until it was read. The connection may end meanwhile."""
    with suppress(trio.BrokenResourceError):
        await stream.send_all(data)
    await wait_all_tasks_blocked()


@asynccontextmanager
async def client(wire: str, port: int, address: str) -> AsyncIterator[Lines]:
    if wire == "tcp":
        async with await trio.open_tcp_stream("127.0.0.1", port, local_address=address) as stream:
            yield Lines(stream)
    else:
        async with connected(port, address=address) as peer:
            yield Frames(peer, fragments=wire == "fragments")


async def measured(client: Lines, size: int) -> str:
    await client.send_half(size)
    await client.send_rest(size)
    return await client.answer()


@pytest.mark.parametrize("has_spoken", [True, False])
@pytest.mark.parametrize("wire", ["tcp", "frame", "fragments", "beside http"])
async def test_bpl_08_server_limits_bytes_of_incomplete_messages_per_client_address(
    wire: str, has_spoken: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "trio_mcp")
    serve: Any = {"tcp": serve_tcp, "beside http": partial(serve_http, websocket=True)}.get(wire, serve_websocket)
    size = 7 * MIB // 4
    async with serving(serve, server(), port=0) as listeners, AsyncExitStack() as stack:
        port = port_of(listeners)

        async def enter(address: str) -> Lines:
            entered = await stack.enter_async_context(client(wire, port, address))
            if has_spoken:
                assert await measured(entered, 1) == "1"
            return entered

        clients = [await enter("127.0.0.1") for _ in range(5)]
        for each in clients:
            await each.send_half(size)
        for each in clients[2:]:
            await each.was_ended()
        assert await measured(await enter("127.0.0.1"), 10_000) == "10000"
        assert await measured(await enter("127.0.0.2"), 1_900_000) == "1900000"
        for each in clients[:2]:
            await each.send_rest(size)
            assert await each.answer() == str(size)
        again = [await enter("127.0.0.1") for _ in range(2)]
        for each in again:
            await each.send_half(size)
            await trio.aclose_forcefully(each.stream)
        await wait_all_tasks_blocked()
        assert await measured(await enter("127.0.0.1"), 1_900_000) == "1900000"
        assert await measured(clients[0], 1_900_000) == "1900000"
    told = [record.getMessage() for record in caplog.records if NO_ROOM in record.getMessage()]
    assert told == [f"a connection ends: {NO_ROOM}"] * 3


async def test_bpl_08_server_limits_bytes_of_incomplete_messages_over_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with serving(serve_unix, server(), path), AsyncExitStack() as stack:

        async def enter() -> Lines:
            return Lines(await stack.enter_async_context(await trio.open_unix_socket(str(path))))

        clients = [await enter() for _ in range(6)]  # all are of this process, which is one caller
        for each in clients:
            await each.send_half(1_900_000)
        for each in clients[2:]:
            await each.was_ended()
        assert await measured(await enter(), 10_000) == "10000"
        for each in clients[:2]:
            await each.send_rest(1_900_000)
            assert await each.answer() == "1900000"


async def test_bpl_08_skipped_rest_of_a_too_long_line_does_not_count_towards_the_byte_limit() -> None:
    async with serving(serve_tcp, server(), port=0) as listeners:
        streams = [await trio.open_tcp_stream("127.0.0.1", port_of(listeners)) for _ in range(5)]
        for stream in streams:
            await send(stream, b'{"text": "' + bytes(3 * MIB))
        one = Lines(await trio.open_tcp_stream("127.0.0.1", port_of(listeners)))
        assert await measured(one, 1_900_000) == "1900000"
        for stream in (*streams, one.stream):
            await trio.aclose_forcefully(stream)
