"""A WebSocket client that sends exact frames and receives every frame."""

from __future__ import annotations

import json
import socket
import struct
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio
from tests.patience import PATIENCE
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    CloseConnection,
    Event,
    Ping,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)

__all__ = ["RawPeer", "call", "connected", "initialize", "masked_frame", "port_of", "refusal", "serving"]


def masked_frame(opcode: int, payload: bytes, *, fin: bool = True) -> bytes:
    """A frame as clients send it, under a mask of zeros."""
    first, length = opcode | (0x80 if fin else 0), len(payload)
    if length < 126:
        head = struct.pack("!BB", first, 0x80 | length)
    elif length < 65536:
        head = struct.pack("!BBH", first, 0x80 | 126, length)
    else:
        head = struct.pack("!BBQ", first, 0x80 | 127, length)
    return head + bytes(4) + payload


def call(id: Any, method: str, params: dict[str, Any] | None = None) -> str:
    """A request as text."""
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}})


def initialize(**capabilities: Any) -> str:
    """The request that opens a legacy connection, under id 0."""
    info = {"name": "raw", "version": "1"}
    params = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": info}
    return call(0, "initialize", params)


@attrs.define
class RawPeer:
    """One connection. It answers no ping unless told to."""

    stream: trio.SocketStream
    protocol: WSConnection = attrs.field(factory=lambda: WSConnection(ConnectionType.CLIENT))
    pending: deque[Event] = attrs.field(factory=deque[Event])

    async def send(self, event: Event) -> None:
        await self.stream.send_all(self.protocol.send(event))

    async def say(self, text: str) -> None:
        await self.send(TextMessage(data=text))

    async def ask(self, id: Any, method: str, params: dict[str, Any] | None = None) -> None:
        await self.say(call(id, method, params))

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        await self.say(json.dumps({"jsonrpc": "2.0", "method": method, "params": params}))

    async def next(self) -> Event | None:
        """What comes next; `None` when the stream has ended."""
        with trio.fail_after(PATIENCE):
            while not self.pending:
                data = await self.stream.receive_some(65536)
                if not data:
                    return None
                self.protocol.receive_data(data)
                self.pending.extend(self.protocol.events())
        return self.pending.popleft()

    async def message(self) -> dict[str, Any]:
        """The next message."""
        text = ""
        while isinstance(event := await self.next(), TextMessage | Ping):
            if isinstance(event, TextMessage):
                text += event.data
                if event.message_finished:
                    return json.loads(text)
        raise AssertionError(f"{event} instead of a message")

    async def reply(self, id: Any) -> dict[str, Any]:
        """The reply to ``id``; what comes before it is passed over."""
        while (message := await self.message()).get("id") != id or "method" in message:
            pass
        return message

    async def open_legacy(self, **capabilities: Any) -> None:
        """The legacy handshake."""
        await self.say(initialize(**capabilities))
        await self.reply(0)
        await self.notify("notifications/initialized", {})

    async def closed(self) -> CloseConnection | None:
        """The server's close frame, passing over all before it; `None` when the stream ends without one."""
        while (event := await self.next()) is not None:
            if isinstance(event, CloseConnection):
                return event
        return None

    async def reset(self) -> None:
        """Vanish with a RST."""
        self.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await trio.aclose_forcefully(self.stream)


def port_of(listeners: Any) -> int:
    return listeners[0].socket.getsockname()[1]


async def _handshake(port: int, address: str = "127.0.0.1", **request: Any) -> tuple[RawPeer, Event | None]:
    peer = RawPeer(await trio.open_tcp_stream("127.0.0.1", port, local_address=address))
    given = {"host": f"127.0.0.1:{port}", "target": "/mcp", "subprotocols": ["mcp"], **request}
    headers = [(name.encode(), value.encode()) for name, value in given.pop("headers", {}).items()]
    await peer.send(Request(**given, extra_headers=headers))
    return peer, await peer.next()


@asynccontextmanager
async def connected(port: int, **request: Any) -> AsyncIterator[RawPeer]:
    """A peer whose upgrade was accepted; it vanishes without a close frame when the block is left. ``address``: where
    it connects from."""
    peer, answer = await _handshake(port, **request)
    async with peer.stream:
        assert isinstance(answer, AcceptConnection), answer
        assert answer.subprotocol == "mcp"
        yield peer


async def refusal(port: int, **request: Any) -> tuple[int, str]:
    """Status and body of an upgrade that is refused."""
    peer, answer = await _handshake(port, **request)
    async with peer.stream:
        assert isinstance(answer, RejectConnection), answer
        body = b""
        while isinstance(event := await peer.next(), RejectData) and not event.body_finished:
            body += event.data
        return answer.status_code, body.decode()


@asynccontextmanager
async def serving(serve: Any, *args: Any, **options: Any) -> AsyncIterator[Any]:
    """``serve`` in the background, its listeners inside, and its end at the end."""

    async def start(*, task_status: trio.TaskStatus[Any]) -> None:
        await serve(*args, **options, task_status=task_status)

    async with trio.open_nursery() as nursery:
        yield await nursery.start(start)
        nursery.cancel_scope.cancel(reason="the test is over")
