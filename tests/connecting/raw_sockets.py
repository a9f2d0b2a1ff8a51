"""Servers on sockets that write exact lines: over TCP, over a Unix socket, and over WebSocket."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias

import trio
from tests.patience import PATIENCE

from trio_mcp import Client, open_tcp, open_unix, open_websocket

__all__ = ["WAYS", "Lines", "Script", "lines", "served"]

_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455 section 1.3


def lines(*messages: dict[str, Any]) -> bytes:
    """The messages as JSON-RPC, a line each."""
    return b"".join(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n" for message in messages)


class Lines:
    """The client's messages on a stream, one after another, and lines for the client."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._buffer = b""

    async def open(self) -> None:
        """Take the connection over."""

    async def read(self) -> dict[str, Any]:
        """The next message."""
        return json.loads(await self._up_to(b"\n"))

    async def write(self, text: bytes) -> None:
        """Send these lines together."""
        await self.stream.send_all(text)

    async def _up_to(self, mark: bytes) -> bytes:
        while mark not in self._buffer:
            self._buffer += await self._more()
        found, _, self._buffer = self._buffer.partition(mark)
        return found

    async def _exactly(self, count: int) -> bytes:
        while len(self._buffer) < count:
            self._buffer += await self._more()
        found, self._buffer = self._buffer[:count], self._buffer[count:]
        return found

    async def _more(self) -> bytes:
        more = await self.stream.receive_some()
        if not more:
            raise trio.EndOfChannel
        return bytes(more)


class Frames(Lines):
    """As `Lines`, over a WebSocket."""

    async def open(self) -> None:
        head = await self._up_to(b"\r\n\r\n")
        [key] = [line[18:].strip() for line in head.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key:")]
        await self.stream.send_all(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Protocol: mcp\r\nSec-WebSocket-Accept: "
            + base64.b64encode(hashlib.sha1(key + _GUID).digest())
            + b"\r\n\r\n"
        )

    async def read(self) -> dict[str, Any]:
        opcode, length = await self._exactly(2)
        length &= 0x7F
        if length == 126:
            length = int.from_bytes(await self._exactly(2), "big")
        key, masked = await self._exactly(4), await self._exactly(length)
        if opcode & 0x0F == 8:
            raise trio.EndOfChannel
        return json.loads(bytes(each ^ key[at % 4] for at, each in enumerate(masked)))

    async def write(self, text: bytes) -> None:
        await self.stream.send_all(b"".join(_framed(line) for line in text.splitlines()))


def _framed(text: bytes) -> bytes:
    length = bytes([len(text)]) if len(text) < 126 else b"\x7e" + len(text).to_bytes(2, "big")
    return b"\x81" + length + text


Script: TypeAlias = Callable[[Lines], Awaitable[None]]


@asynccontextmanager
async def served(way: str, script: Script, folder: Path, **options: Any) -> AsyncIterator[Client]:
    """A client of a server that does what ``script`` says, over ``way``. Afterwards the server reads to the end."""
    path = folder / "socket"
    path.unlink(missing_ok=True)
    family, address = (socket.AF_UNIX, str(path)) if way == "unix" else (socket.AF_INET, ("127.0.0.1", 0))
    with trio.fail_after(PATIENCE), trio.socket.socket(family) as listening:
        await listening.bind(address)
        listening.listen()

        async def accept() -> None:
            connection, _ = await listening.accept()
            async with trio.SocketStream(connection) as stream:
                end = Frames(stream) if way == "websocket" else Lines(stream)
                try:
                    await end.open()
                    await script(end)
                    while True:
                        await end.read()
                except trio.EndOfChannel:
                    pass

        async with trio.open_nursery() as nursery:
            nursery.start_soon(accept)
            async with _connected(way, listening, path, options) as client:
                yield client


def _connected(
    way: str, listening: trio.socket.SocketType, path: Path, options: dict[str, Any]
) -> AbstractAsyncContextManager[Client]:
    if way == "unix":
        return open_unix(path, **options)
    port = listening.getsockname()[1]
    if way == "tcp":
        return open_tcp("127.0.0.1", port, **options)
    return open_websocket(f"ws://127.0.0.1:{port}/mcp", **options)


WAYS: Final = ("tcp", "unix", "websocket")
