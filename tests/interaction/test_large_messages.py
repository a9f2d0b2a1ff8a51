"""Peak memory of a large message, as a multiple of its size: in both directions, for client and server, over lines and
over HTTP.
"""

from __future__ import annotations

import contextlib
import gc
import json
import tracemalloc
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio

from trio_mcp import Server, open_http, serve_http
from trio_mcp.client.client import Client
from trio_mcp.client.opening import open_client
from trio_mcp.connecting.memory import open_server
from trio_mcp.transports.lines import LineTransport

SIZE = 2 * 1024 * 1024
LIMIT = 2 * SIZE
READ = 65536
TEXT = "x" * SIZE
INFO = {"name": "scripted", "version": "1"}
OPENED = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": INFO}
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": INFO,
    "io.modelcontextprotocol/clientCapabilities": {},
}

IN, OUT = 2.3, 1.7
"""Reading holds the message and the decoded value, writing the message in a buffer that has grown by half."""


def _server() -> Server:
    server = Server("large")

    @server.tool
    async def take(text: str) -> None:
        assert len(text) == SIZE

    @server.tool
    async def give() -> str:
        return TEXT

    return server


def _message(**members: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **members}, separators=(",", ":")).encode()


def _call(request_id: int, tool: str, arguments: dict[str, Any]) -> bytes:
    return _message(id=request_id, method="tools/call", params={"name": tool, "arguments": arguments, "_meta": META})


async def _peak(run: Callable[[], Awaitable[Any]]) -> float:
    """What ``run`` takes at most beside what is there before, as a multiple of `SIZE`."""
    await run()  # what is made once is made
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        await run()
        return (tracemalloc.get_traced_memory()[1] - before) / SIZE
    finally:
        tracemalloc.stop()


class Wire:
    """The stream of a connection whose other end keeps nothing of what it reads but the ends of lines."""

    def __init__(self) -> None:
        self._given: list[memoryview] = []
        self._moved = trio.lowlevel.ParkingLot()
        self._line = b""
        """The beginning of the line that is being written."""
        self._lines: list[bytes] = []

    def give(self, *pieces: bytes) -> None:
        for view in map(memoryview, (*pieces, b"\n")):
            self._given += [view[start : start + READ] for start in range(0, len(view), READ)]
        self._moved.unpark_all()

    async def line(self) -> bytes:
        """The beginning of the next line."""
        while not self._lines:
            await self._moved.park()
        return self._lines.pop(0)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        while not self._given:
            await self._moved.park()
        return bytes(self._given.pop(0))

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        for start in range(0, len(data), READ):
            await trio.lowlevel.checkpoint()
            *lines, last = bytes(data[start : start + READ]).split(b"\n")
            for line in lines:
                self._lines.append((self._line + line)[:100])
                self._line = b""
            self._line = (self._line + last)[:100]
        self._moved.unpark_all()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


def _id_of(beginning: bytes) -> int:
    return int(beginning.partition(b'"id":')[2].partition(b",")[0])


@asynccontextmanager
async def _line_server() -> AsyncGenerator[Callable[[bytes], Awaitable[None]]]:
    wire = Wire()

    async def ask(request: bytes) -> None:
        wire.give(request)
        assert b'"result":' in await wire.line()

    async with open_server(_server(), LineTransport(wire, LIMIT)):
        yield ask


def _http_post(message: bytes, tool: str) -> bytes:
    head = (
        f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\n"
        f"Mcp-Method: tools/call\r\nMcp-Name: {tool}\r\nContent-Length: {len(message)}\r\n\r\n"
    )
    return head.encode() + message


async def _read_http(stream: trio.SocketStream) -> tuple[bytes, bytes]:
    """The head, and the beginning of the body, of which all is read."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = await stream.receive_some(READ)
        if not more:
            raise EOFError
        data += more
    head, _, beginning = data.partition(b"\r\n\r\n")
    left = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or b"0") - len(beginning)
    while left > 0:
        more = await stream.receive_some(READ)
        beginning = (beginning + more)[:100]
        left -= len(more)
    return head, beginning


@asynccontextmanager
async def _http_server() -> AsyncGenerator[Callable[[bytes], Awaitable[None]]]:
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(serve_http, _server(), port=0, handle_signals=False))
        async with await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1]) as stream:

            async def ask(request: bytes) -> None:
                await stream.send_all(request)
                assert (await _read_http(stream))[0].startswith(b"HTTP/1.1 200 ")

            yield ask
        nursery.cancel_scope.cancel()


RESULTS = {
    tool: json.dumps({"content": [{"type": "text", "text": text}]}).encode()
    for tool, text in (("give", TEXT), ("take", ""))
}


def _reply(beginning: bytes) -> tuple[bytes, ...]:
    """The pieces of the reply to a request of the client; none for a notification."""
    if b'"id":' not in beginning:
        return ()
    tool = next((tool for tool in RESULTS if f'"name":"{tool}"'.encode() in beginning), None)
    result = json.dumps(OPENED).encode() if tool is None else RESULTS[tool]
    return b'{"jsonrpc":"2.0","id":%d,"result":' % _id_of(beginning), result, b"}"


@asynccontextmanager
async def _line_client() -> AsyncGenerator[Client]:
    wire = Wire()

    async def serve() -> None:
        while True:
            if reply := _reply(await wire.line()):
                wire.give(*reply)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        async with open_client(LineTransport(wire, LIMIT), era="legacy") as client:
            yield client
        nursery.cancel_scope.cancel()


async def _serve_http(stream: trio.SocketStream) -> None:
    while True:
        head, beginning = await _read_http(stream)
        reply = _reply(beginning)
        status = b"405 No" if head.startswith(b"GET") else b"200 OK" if reply else b"202 Accepted"
        length = sum(map(len, reply))
        await stream.send_all(
            b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (status, length)
        )
        for piece in reply:
            await stream.send_all(piece)


@asynccontextmanager
async def _http_client() -> AsyncGenerator[Client]:
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, _quietly, 0, host="127.0.0.1"))
        url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/mcp"
        async with open_http(url, era="legacy") as client:
            yield client
        nursery.cancel_scope.cancel()


async def _quietly(stream: trio.SocketStream) -> None:
    with contextlib.suppress(trio.BrokenResourceError, EOFError):
        await _serve_http(stream)


WIRES = ["lines", "http"]


@pytest.mark.parametrize("wire", WIRES)
async def test_server_memory_for_a_large_message_is_a_small_multiple_of_its_size(wire: str) -> None:
    large = _call(1, "take", {"text": TEXT})
    small = _call(1, "give", {})
    if wire == "http":
        large, small = _http_post(large, "take"), _http_post(small, "give")
    async with (_http_server if wire == "http" else _line_server)() as ask:
        assert await _peak(partial(ask, large)) < IN
        assert await _peak(partial(ask, small)) < OUT


@pytest.mark.parametrize("wire", WIRES)
async def test_client_memory_for_a_large_message_is_a_small_multiple_of_its_size(wire: str) -> None:
    async with (_http_client if wire == "http" else _line_client)() as client:
        assert await _peak(partial(client.call_tool, "take", {"text": TEXT})) < OUT
        assert await _peak(partial(client.call_tool, "give")) < IN
