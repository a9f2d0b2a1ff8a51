"""Channels over each wire: to a server of trio-mcp, and between a client of trio-mcp and a scripted server."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Final, TypeAlias

import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, WebSocketRequest
from trio_websocket import serve_websocket as serve_frames

from trio_mcp import Server, serve_tcp, serve_websocket
from trio_mcp.concurrency.nurseries import open_service_nursery
from trio_mcp.runtime.limits import DEFAULT_LIMITS
from trio_mcp.runtime.transport import Transport
from trio_mcp.testing import memory_transport_pair, open_server
from trio_mcp.transports.lines import LineTransport
from trio_mcp.transports.websocket.transport import WebSocketTransport

__all__ = ["CHANNELS", "PAIRS", "OpenChannel", "OpenPair"]

MOST: Final = DEFAULT_LIMITS.max_message_bytes
OpenChannel: TypeAlias = "Callable[[Server], AbstractAsyncContextManager[Transport]]"
"""Opens the client's end of a connection to a server."""
OpenPair: TypeAlias = "Callable[[], AbstractAsyncContextManager[tuple[Transport, Transport]]]"
"""Opens both ends of a connection: the client's and the server's."""


def _ends() -> tuple[LineTransport, LineTransport]:
    (read_ours, write_theirs), (read_theirs, write_ours) = os.pipe(), os.pipe()
    ours = trio.StapledStream(trio.lowlevel.FdStream(write_ours), trio.lowlevel.FdStream(read_ours))
    theirs = trio.StapledStream(trio.lowlevel.FdStream(write_theirs), trio.lowlevel.FdStream(read_theirs))
    return LineTransport(ours, MOST), LineTransport(theirs, MOST)


@asynccontextmanager
async def memory(server: Server) -> AsyncGenerator[Transport]:
    ours, theirs = memory_transport_pair()
    async with open_server(server, theirs):
        yield ours


@asynccontextmanager
async def pipes(server: Server) -> AsyncGenerator[Transport]:
    """Lines over two pipes, as over the standard streams of a process."""
    ours, theirs = _ends()
    async with open_server(server, theirs):
        yield ours


@asynccontextmanager
async def tcp(server: Server) -> AsyncGenerator[Transport]:
    async with open_service_nursery("the replay is over") as nursery:
        [listener] = await nursery.start(partial(serve_tcp, server, "127.0.0.1", 0, handle_signals=False))
        async with await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1]) as stream:
            yield LineTransport(stream, MOST)


@asynccontextmanager
async def websocket(server: Server) -> AsyncGenerator[Transport]:
    async with open_service_nursery("the replay is over") as nursery:
        [listener] = await nursery.start(partial(serve_websocket, server, "127.0.0.1", 0, handle_signals=False))
        async with _websocket_to(listener.socket.getsockname()[1]) as transport:
            yield transport


@asynccontextmanager
async def _websocket_to(port: int) -> AsyncGenerator[Transport]:
    async with open_service_nursery("the replay is over") as nursery:
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        transport = WebSocketTransport(stream, MOST, ping_interval=60, ping_timeout=60, close_code=1000)
        await nursery.start(transport.connect, f"127.0.0.1:{port}", "/mcp", [])
        yield transport


CHANNELS: Final[dict[str, OpenChannel]] = {"memory": memory, "pipes": pipes, "tcp": tcp, "websocket": websocket}


@asynccontextmanager
async def memory_pair() -> AsyncGenerator[tuple[Transport, Transport]]:
    yield memory_transport_pair()


@asynccontextmanager
async def pipe_pair() -> AsyncGenerator[tuple[Transport, Transport]]:
    yield _ends()


@asynccontextmanager
async def tcp_pair() -> AsyncGenerator[tuple[Transport, Transport]]:
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        ours = await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1])
        async with ours, await listener.accept() as theirs:
            yield LineTransport(ours, MOST), LineTransport(theirs, MOST)


class _Frames(Transport):
    """The server's end of a WebSocket, by ``trio_websocket``: one frame for each message."""

    def __init__(self, connection: WebSocketConnection) -> None:
        self._connection = connection

    async def receive(self) -> bytes:
        try:
            return (await self._connection.get_message()).encode()
        except ConnectionClosed:
            raise trio.EndOfChannel from None

    async def send(self, messages: bytes | bytearray) -> None:
        for line in bytes(messages).splitlines():
            await self._connection.send_message(line.decode())

    async def aclose(self) -> None:
        await self._connection.aclose()


@asynccontextmanager
async def websocket_pair() -> AsyncGenerator[tuple[Transport, Transport]]:
    accepted, over = trio.open_memory_channel[WebSocketConnection](1), trio.Event()

    async def serve(request: WebSocketRequest) -> None:
        subprotocol = request.proposed_subprotocols[0] if request.proposed_subprotocols else None
        accepted[0].send_nowait(await request.accept(subprotocol=subprotocol))
        await over.wait()

    async with open_service_nursery("the replay is over") as nursery:
        served = await nursery.start(partial(serve_frames, serve, "127.0.0.1", 0, ssl_context=None))
        async with _websocket_to(served.port) as ours:
            yield ours, _Frames(await accepted[1].receive())
            over.set()


PAIRS: Final[dict[str, OpenPair]] = {
    "memory": memory_pair,
    "pipes": pipe_pair,
    "tcp": tcp_pair,
    "websocket": websocket_pair,
}
