"""Requests of a legacy server to its client, and a script that sends them."""

from __future__ import annotations

from typing import Any

import trio
from tests.interaction.client.raw import RawPeer, scripted

from trio_mcp.client.opening import open_client
from trio_mcp.types import CreateMessageResult, TextContent

SAMPLE = {"messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}], "maxTokens": 10}
FORM = {"message": "who?", "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}}
URL = {"mode": "url", "message": "go", "url": "https://example.com", "elicitationId": "e1"}
SAMPLED = CreateMessageResult("assistant", TextContent("hello"), "model")


def asks(*questions: tuple[str, Any]) -> Any:
    """A script that sends these requests, one after another, and awaits the reply to each."""

    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        for number, (method, params) in enumerate(questions):
            await peer.request(f"q{number}", method, params)
            await peer.read()

    return script


async def replies(*questions: tuple[str, Any], **options: Any) -> list[dict[str, Any]]:
    """What a client opened with these options replies."""
    async with scripted(asks(*questions)) as (channel, peer), open_client(channel, **options):
        await trio.sleep(10)
    return [message for message in peer.wire if "method" not in message]
