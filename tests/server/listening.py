"""A server that has something to tell of, and a client of it, message by message, that listens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import trio
from tests.interaction.conversation import META_PREFIX, MODERN, is_same
from tests.interaction.memory_peer import MemoryPeer

from trio_mcp import Server
from trio_mcp.server.connection import ServerConnection
from trio_mcp.transports.lines import memory_transport_pair

SUBSCRIPTION_ID = META_PREFIX + "subscriptionId"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
UPDATED = "notifications/resources/updated"
TOOLS = "notifications/tools/list_changed"
PROMPTS = "notifications/prompts/list_changed"
EVERYTHING = {
    "toolsListChanged": True,
    "promptsListChanged": True,
    "resourcesListChanged": True,
    "resourceSubscriptions": ["note://a", "note://b"],
}


def noted() -> Server:
    """A server with one of each, and any number of notes."""
    server = Server("noted")

    @server.tool
    async def hang() -> None:
        await trio.sleep_forever()

    @server.tool
    async def echo(text: str) -> str:
        return text

    @server.resource("note://{name}")
    async def note(name: str) -> str:
        return name

    @server.prompt
    async def greet() -> str:
        return "hello"

    return server


class Peer(MemoryPeer):
    """A modern client of one connection to ``server``."""

    def __init__(self, connection: ServerConnection, channel: Any) -> None:
        super().__init__(channel)
        self.connection = connection

    async def listen(self, request_id: Any = 1, **notifications: Any) -> dict[str, Any]:
        """Open a stream; the parameters of its first message."""
        message = self.message("subscriptions/listen", {"notifications": notifications}, id=request_id)
        await self.send(message)
        first = await self.take(lambda m: is_same(subscription_of(m), request_id))
        assert first["method"] == ACKNOWLEDGED
        return first["params"]

    async def next(self, request_id: Any = 1) -> str:
        """What the stream tells next: a method, with the URI of a resource."""
        message = await self.take(lambda m: is_same(subscription_of(m), request_id))
        return told(message)

    async def rest(self) -> list[dict[str, Any]]:
        """All that comes until the server closes the connection and that nobody took yet."""
        came: list[dict[str, Any]] = []
        with suppress(trio.EndOfChannel):
            while True:
                came.append(await self.take(lambda _: True))
        return came


def subscription_of(message: dict[str, Any]) -> Any:
    inside: dict[str, Any] = message.get("params") or message.get("result") or {}
    return inside.get("_meta", {}).get(SUBSCRIPTION_ID)


def told(message: dict[str, Any]) -> str:
    if "method" not in message:
        return "result"
    return " ".join([message["method"], *([message["params"]["uri"]] if "uri" in message["params"] else [])])


@asynccontextmanager
async def peer_of(
    server: Server, revision: str = MODERN, *, capacity: int = 65536, stateless: bool = False
) -> AsyncIterator[Peer]:
    """A raw client; ``capacity`` in bytes is what fits on the wire to it."""
    ours, theirs = memory_transport_pair(capacity)
    async with server._running(stateless=stateless) as running, trio.open_nursery() as nursery:
        connection = ServerConnection(running, theirs)
        await nursery.start(connection.run)
        peer = Peer(connection, ours)
        await peer.open(revision)
        yield peer
        nursery.cancel_scope.cancel()
