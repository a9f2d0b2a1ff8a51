"""A modern server in the hands of a script, which answers by asking."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio
from tests.interaction.client.raw import RawPeer, scripted

from trio_mcp import Client, CodedError
from trio_mcp.client.opening import open_client
from trio_mcp.types import CreateMessageParams, CreateMessageResult, ElicitFormParams, Root, TextContent

__all__ = [
    "ANSWERS",
    "FORM",
    "ROOTS",
    "SAMPLE",
    "URL",
    "RoundsPeer",
    "asking",
    "calls_in",
    "cancels_of",
    "elicit",
    "refuse",
    "rounds_of",
    "sample",
]

FORM = {
    "method": "elicitation/create",
    "params": {"message": "who?", "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}},
}
URL = {"method": "elicitation/create", "params": {"mode": "url", "message": "go", "url": "https://example.com"}}
SAMPLE = {
    "method": "sampling/createMessage",
    "params": {"messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}], "maxTokens": 10},
}
ROOTS = {"method": "roots/list"}


async def elicit(params: ElicitFormParams) -> dict[str, Any]:
    """Answer a form."""
    return {"name": "Ann"}


async def sample(params: CreateMessageParams) -> CreateMessageResult:
    """Answer a sampling."""
    return CreateMessageResult("assistant", TextContent("hello"), "model")


async def refuse(params: Any) -> Any:
    """Be a user who says no."""
    raise CodedError(-1, "the user said no")


ANSWERS: dict[str, Any] = {"elicitation": elicit, "sampling": sample, "roots": [Root("file:///a", "a")]}
"""The options of a client that answers everything."""


class RoundsPeer(RawPeer):
    """A `RawPeer` that knows how to ask."""

    async def ask(self, request: dict[str, Any], state: Any = "s1", **questions: Any) -> None:
        """Answer by asking; ``state`` `None` is none."""
        more = {} if state is None else {"requestState": state}
        more |= {"inputRequests": questions} if questions else {}
        await self.result(request, {"resultType": "input_required", **more})

    async def call(self) -> dict[str, Any]:
        """Read up to the next tool call."""
        return await self.until("tools/call")


@asynccontextmanager
async def asking(
    script: Callable[[RoundsPeer], Awaitable[None]], **options: Any
) -> AsyncIterator[tuple[Client, RoundsPeer]]:
    """A client of a modern server that does what ``script`` says once it is discovered."""

    async def play(peer: RawPeer) -> None:
        await peer.discovered()
        assert isinstance(peer, RoundsPeer)
        await script(peer)

    async with (
        scripted(play, RoundsPeer) as (channel, peer),
        open_client(channel, **(ANSWERS | options)) as client,
    ):
        assert isinstance(peer, RoundsPeer)
        yield client, peer
        await trio.testing.wait_all_tasks_blocked()


def calls_in(peer: RawPeer) -> list[dict[str, Any]]:
    """The tool calls that were read, in order."""
    return [message for message in peer.wire if message.get("method") == "tools/call"]


def rounds_of(peer: RawPeer) -> list[dict[str, Any]]:
    """What each of them brought beside its name, its arguments and its ``_meta``."""
    brought: list[dict[str, Any]] = []
    for call in calls_in(peer):
        brought.append({k: v for k, v in call["params"].items() if k not in ("name", "arguments", "_meta")})
    return brought


def cancels_of(peer: RawPeer) -> list[tuple[Any, Any]]:
    """Id and reason of each cancel that was read, in order."""
    params = [m["params"] for m in peer.wire if m.get("method") == "notifications/cancelled"]
    return [(each["requestId"], each["reason"]) for each in params]
