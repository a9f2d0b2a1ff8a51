"""A RAW client in memory: lines to and from a server in the same process, under trio's virtual clock."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio
import trio.testing

from trio_mcp import Server
from trio_mcp.runtime.peer import Peer, PrincipalId
from trio_mcp.runtime.transport import Transport
from trio_mcp.server.servable import Servable, connection_to
from trio_mcp.transports.lines import memory_transport_pair

from .conversation import LATEST_LEGACY, LEGACY, MODERN, REVISIONS, Conversation

__all__ = ["LATEST_LEGACY", "LEGACY", "MODERN", "REVISIONS", "MemoryPeer", "connected", "connected_twice", "put_before"]

NEVER = 100.0
"""Virtual seconds after which what has not come never will."""


def put_before(server: Server) -> Servable:
    """What stands before a server: nothing. Tests that hold for a proxy, too, replace this."""
    return server


class MemoryPeer(Conversation):
    """The client's end of one connection."""

    def __init__(self, channel: Transport) -> None:
        super().__init__()
        self._channel = channel

    # Writing

    async def send(self, message: Any) -> None:
        """One message or batch; bytes go out as they are."""
        line = message if isinstance(message, bytes) else json.dumps(message).encode()
        await self._channel.send(line + b"\n")

    async def request(self, method: str, params: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
        """Send a request and return its reply."""
        message = self.message(method, params, **options)
        await self.send(message)
        return await self.reply(message["id"])

    async def start(self, tool: str, arguments: dict[str, Any] | None = None, **options: Any) -> Any:
        """Call a tool and let it run until it waits for something; the call's id."""
        message = self.call_message(tool, arguments, **options)
        await self.send(message)
        await trio.testing.wait_all_tasks_blocked()
        return message["id"]

    async def call(self, tool: str, arguments: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
        """Call a tool and return its result, which may have failed, but must not be an error."""
        message = self.call_message(tool, arguments, **options)
        await self.send(message)
        reply = await self.reply(message["id"])
        assert "result" in reply, reply
        return reply["result"]

    async def text(self, tool: str, arguments: dict[str, Any] | None = None, **options: Any) -> str:
        """Call a tool and return its text, which must not tell of a failure."""
        result = await self.call(tool, arguments, **options)
        assert not result.get("isError"), result
        return "".join(block["text"] for block in result["content"])

    async def error(self, tool: str, arguments: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
        """Call a tool and return the error it gets."""
        message = self.call_message(tool, arguments, **options)
        await self.send(message)
        reply = await self.reply(message["id"])
        assert "error" in reply, reply
        return reply["error"]

    async def retry(
        self, first: dict[str, Any], asked: dict[str, Any], responses: dict[str, Any] | None = None, **options: Any
    ) -> dict[str, Any]:
        """Come back with answers and return the reply."""
        message = self.retry_message(first, asked, responses, **options)
        await self.send(message)
        return await self.reply(message["id"])

    async def notify(self, method: str, params: Any = None) -> None:
        """Send a notification."""
        await self.send({"jsonrpc": "2.0", "method": method, **({} if params is None else {"params": params})})

    async def cancel(self, request_id: Any, reason: str | None = None) -> None:
        """Cancel a request and let the server act on it."""
        more = {} if reason is None else {"reason": reason}
        await self.notify("notifications/cancelled", {"requestId": request_id, **more})
        await trio.testing.wait_all_tasks_blocked()

    async def answer(self, question: dict[str, Any], result: Any) -> None:
        """Answer a request of the server."""
        await self.send({"jsonrpc": "2.0", "id": question["id"], "result": result})

    async def refuse(self, question: dict[str, Any], code: int, message: str, data: Any = None) -> None:
        """Answer a request of the server with an error."""
        error = {"code": code, "message": message, **({} if data is None else {"data": data})}
        await self.send({"jsonrpc": "2.0", "id": question["id"], "error": error})

    # Reading

    async def take(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The oldest message that nobody took yet and that is ``wanted``."""
        with trio.fail_after(NEVER):
            while (message := self.claim(wanted)) is None:
                self.keep(json.loads(await self._channel.receive()))
        return message

    async def reply(self, request_id: Any) -> dict[str, Any]:
        """The reply to a request."""
        return await self.take(
            lambda m: "method" not in m and m.get("id") == request_id and type(m["id"]) is type(request_id)
        )

    async def question(self, method: str) -> dict[str, Any]:
        """The next request of the server."""
        return await self.take(lambda m: m.get("method") == method and "id" in m)

    async def notification(self, method: str) -> dict[str, Any]:
        """The parameters of the next notification."""
        return (await self.take(lambda m: m.get("method") == method and "id" not in m)).get("params", {})

    async def everything(self, seconds: float = NEVER) -> list[dict[str, Any]]:
        """Wait that long, reading, and return all messages nobody took yet."""
        with trio.move_on_after(seconds):
            while True:
                self.keep(json.loads(await self._channel.receive()))
        untaken = list(self._unclaimed)
        self._unclaimed.clear()
        return untaken

    # Opening and closing

    async def open(self, revision: str, capabilities: dict[str, Any] | None = None) -> dict[str, Any]:
        """The handshake in legacy revisions, none in modern ones; the result of ``initialize``."""
        self.revision, self.capabilities = revision, capabilities or {}
        if self.is_modern:
            return {}
        reply = await self.request("initialize", self.opening(revision))
        await self.notify("notifications/initialized")
        return reply["result"]

    async def close(self) -> None:
        """Close both directions."""
        await self._channel.aclose()


@asynccontextmanager
async def connected(
    server: Server,
    revision: str | None = LATEST_LEGACY,
    capabilities: dict[str, Any] | None = None,
    *,
    stateless: bool = False,
) -> AsyncIterator[MemoryPeer]:
    """A peer of ``server``, opened unless ``revision`` is `None`."""
    async with connected_twice(server, stateless=stateless) as (peer, _):
        if revision is not None:
            await peer.open(revision, capabilities)
        yield peer


def principal_id(name: str | None) -> PrincipalId | None:
    """Return the identity of a user whom no issuer vouches for; `None` for nobody."""
    return None if name is None else PrincipalId(None, name)


@asynccontextmanager
async def connected_twice(
    server: Server, *, stateless: bool = False, principals: tuple[str | None, str | None] = (None, None)
) -> AsyncIterator[tuple[MemoryPeer, MemoryPeer]]:
    """Two connections to one running server, neither opened; or to what is `put_before` it."""
    served = server if stateless else put_before(server)  # no proxy is stateless
    async with served._running(stateless=stateless) as running, trio.open_nursery() as nursery:
        peers: list[MemoryPeer] = []
        for principal in principals:
            ours, theirs = memory_transport_pair()
            await nursery.start(connection_to(running, theirs, Peer(principal=principal_id(principal))).run)
            peers.append(MemoryPeer(ours))
        yield peers[0], peers[1]
        nursery.cancel_scope.cancel()
