"""A modern server that tells of changes, spoken line by line, and one that has something to tell of."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from trio_mcp import Client, Server
from trio_mcp.client.opening import open_client
from trio_mcp.protocol.meta import SUBSCRIPTION_ID
from trio_mcp.transports.lines import MemoryTransport, memory_transport_pair
from trio_mcp.types import Changes

ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
UPDATED = "notifications/resources/updated"


def noted() -> Server:
    """A server with one of each, and any number of notes."""
    server = Server("noted")

    @server.tool
    async def change(uri: str) -> None:
        server.resource_updated(uri)

    @server.tool
    async def spare() -> None: ...

    @server.resource("note://{name}")
    async def note(name: str) -> str:
        return name

    @server.prompt
    async def greet() -> str:
        return "hello"

    return server


class Scripted:
    """A modern server, spoken by the test line by line."""

    def __init__(self, channel: MemoryTransport) -> None:
        self.channel = channel
        self.seen: list[dict[str, Any]] = []

    async def receive(self, method: str) -> dict[str, Any]:
        """The next message, which must be this request or notification."""
        message = json.loads(await self.channel.receive())
        self.seen.append(message)
        assert message["method"] == method, message
        return message

    async def send(self, message: dict[str, Any]) -> None:
        await self.channel.send(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def discover(self, **capabilities: Any) -> None:
        """Answer ``server/discover``."""
        request = await self.receive("server/discover")
        result = {
            "resultType": "complete",
            "supportedVersions": ["2026-07-28"],
            "capabilities": capabilities,
            "ttlMs": 0,
            "cacheScope": "private",
        }
        await self.send({"id": request["id"], "result": result})

    async def tell(self, subscription_id: Any, method: str, **params: Any) -> None:
        """One notification on a stream."""
        await self.send({"method": method, "params": {"_meta": {SUBSCRIPTION_ID: subscription_id}, **params}})

    async def acknowledge(self, **honoured: Any) -> Any:
        """Take a request to listen and acknowledge it, by default as asked; its id."""
        request = await self.receive("subscriptions/listen")
        await self.tell(request["id"], ACKNOWLEDGED, notifications=honoured or request["params"]["notifications"])
        return request["id"]


@asynccontextmanager
async def scripted(**options: Any) -> AsyncIterator[tuple[Client, Scripted]]:
    """A modern client and the server that the test speaks for."""
    ours, theirs = memory_transport_pair()
    server = Scripted(theirs)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.discover)
        async with open_client(ours, era="modern", **options) as client:
            yield client, server


@asynccontextmanager
async def listening(client: Client, server: Scripted, **asked: Any) -> AsyncIterator[tuple[Changes, Any]]:
    """A stream that the scripted server has acknowledged as it was asked for, and its id."""
    ids: list[Any] = []

    async def acknowledge() -> None:
        ids.append(await server.acknowledge())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(acknowledge)
        async with client.listen(**asked) as changes:
            yield changes, ids[0]
