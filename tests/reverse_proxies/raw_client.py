"""A client of Streamable HTTP that reads a response piece by piece, over a connection of its own."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import h11
import trio

__all__ = ["Answer", "call", "initialize", "posted", "requested"]

HOST = "mcp.example.com"
REVISION = "2026-07-28"


@attrs.define
class Answer:
    """A response that is being read. Its connection is closed with its block."""

    stream: trio.SocketStream
    protocol: h11.Connection
    status: int = 0
    headers: dict[str, str] = attrs.field(factory=dict[str, str])
    comments: int = 0
    """Comments that came so far, between events."""
    _text: bytes = b""

    async def next(self) -> Any:
        while (event := self.protocol.next_event()) is h11.NEED_DATA:
            self.protocol.receive_data(await self.stream.receive_some(65536))
        return event

    async def until_answered(self) -> None:
        """Wait for status and headers."""
        while not isinstance(response := await self.next(), h11.Response):
            pass
        self.status = response.status_code
        self.headers = {name.decode(): value.decode() for name, value in response.headers}

    async def line(self) -> str | None:
        """The next line of the body; `None` at its end."""
        while b"\n" not in self._text:
            event = await self.next()
            if isinstance(event, h11.EndOfMessage):
                return None
            self._text += event.data
        line, _, self._text = self._text.partition(b"\n")
        return line.decode().rstrip("\r")

    async def message(self) -> dict[str, Any]:
        """The next message of a stream, or the message that is the body. Comments before it are counted."""
        if not self.headers["content-type"].startswith("text/event-stream"):
            return json.loads(await self.body())
        while (line := await self.line()) is not None:
            self.comments += line.startswith(":")
            if line.startswith("data:") and (data := line.removeprefix("data:").strip()):
                return json.loads(data)
        raise AssertionError("the stream ended without another message")

    async def body(self) -> bytes:
        """The rest of the body."""
        body, self._text = self._text, b""
        while not isinstance(event := await self.next(), h11.EndOfMessage):
            body += event.data
        return body


@asynccontextmanager
async def requested(port: int, method: str, headers: dict[str, str], body: bytes = b"") -> AsyncIterator[Answer]:
    """Send a request; the connection is closed with the block, whether the answer was read or not."""
    protocol = h11.Connection(h11.CLIENT)
    head = {"Host": HOST, "Accept": "application/json, text/event-stream", "Content-Length": str(len(body)), **headers}
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(protocol.send(h11.Request(method=method, target="/mcp", headers=list(head.items()))))
        await stream.send_all(protocol.send(h11.Data(data=body)) + protocol.send(h11.EndOfMessage()))
        yield Answer(stream, protocol)


@asynccontextmanager
async def posted(port: int, message: dict[str, Any], headers: dict[str, str] | None = None) -> AsyncIterator[Answer]:
    """Send a message by POST."""
    json_headers = {"Content-Type": "application/json", **(headers or {})}
    async with requested(port, "POST", json_headers, json.dumps(message).encode()) as answer:
        yield answer


@asynccontextmanager
async def call(port: int, tool: str, headers: dict[str, str] | None = None, **arguments: Any) -> AsyncIterator[Answer]:
    """Call a tool in the modern revision."""
    envelope = {
        "io.modelcontextprotocol/protocolVersion": REVISION,
        "io.modelcontextprotocol/clientCapabilities": {},
        "progressToken": 1,
    }
    params = {"name": tool, "arguments": arguments, "_meta": envelope}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    routing = {"MCP-Protocol-Version": REVISION, "Mcp-Method": "tools/call", "Mcp-Name": tool}
    async with posted(port, message, {**routing, **(headers or {})}) as answer:
        yield answer


async def initialize(port: int) -> str:
    """Begin a legacy session. Its id."""
    info = {"name": "raw", "version": "1"}
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info}
    async with posted(port, {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}) as answer:
        await answer.until_answered()
        assert answer.status == 200, await answer.body()
    return answer.headers["mcp-session-id"]
