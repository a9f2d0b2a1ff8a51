"""A server that does to each connection what a test says, byte by byte."""

from __future__ import annotations

import re
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import attrs
import trio

__all__ = ["OK", "Script", "Scripted", "Visitor", "answering", "scripted"]

OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"

Script = Callable[["Visitor"], Awaitable[None]]


@attrs.define
class Visitor:
    """One connection of a client."""

    stream: trio.abc.Stream
    number: int
    """How many came before."""
    received: bytes = b""

    async def request(self) -> bytes:
        """The next request, head and body; empty at the end."""
        while True:
            head, end, rest = self.received.partition(b"\r\n\r\n")
            length = int(found[1]) if (found := re.search(rb"\r\ncontent-length: (\d+)", head, re.IGNORECASE)) else 0
            if end and len(rest) >= length:
                self.received = rest[length:]
                return head + end + rest[:length]
            data = await self.stream.receive_some(65536)
            if not data:
                return b""
            self.received += data

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    def reset(self) -> None:
        """Close so that the client is told of a failure, and not of an end."""
        assert isinstance(self.stream, trio.SocketStream)
        self.stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.stream.socket.close()

    async def gone(self) -> None:
        """Wait until the client has closed the connection."""
        try:
            while await self.stream.receive_some(65536):
                pass
        except trio.BrokenResourceError:
            pass


@attrs.define
class Scripted:
    port: int
    visitors: list[Visitor] = attrs.Factory(list)
    open: int = 0
    """Connections whose script runs."""
    scheme: str = "http"

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/mcp"


@asynccontextmanager
async def scripted(
    script: Script, *, ssl_context: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> AsyncGenerator[Scripted]:
    """A server whose every connection is given to ``script``, and closed when that returns."""
    listeners = await trio.open_tcp_listeners(0, host=host)
    server = Scripted(listeners[0].socket.getsockname()[1], scheme="https" if ssl_context else "http")

    async def visit(stream: trio.SocketStream) -> None:
        visited: trio.abc.Stream = stream
        if ssl_context is not None:
            visited = trio.SSLStream(stream, ssl_context, server_side=True)
        visitor = Visitor(visited, len(server.visitors))
        server.visitors.append(visitor)
        server.open += 1
        try:
            await script(visitor)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            server.open -= 1
            stream.socket.close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, visit, listeners)
        yield server
        nursery.cancel_scope.cancel()


def answering(*answers: bytes) -> Script:
    """Answer the requests of each connection with ``answers`` in turn, the last one for ever."""

    async def script(visitor: Visitor) -> None:
        left = list(answers)
        while await visitor.request():
            await visitor.send(left.pop(0) if len(left) > 1 else left[0])

    return script
