"""A connection breaks at any byte of an answer: what was read and what is replayed are the whole, and nothing twice."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from tests.patience import PATIENCE
from tests.serving.http.raw_http import Wire, open_endpoint

from trio_mcp import RequestContext, Server
from trio_mcp.transports.sse import Event, EventReader

server = Server("telling")


@server.tool
async def tell(ctx: RequestContext) -> str:
    for number in range(3):
        await ctx.log.info(f"number {number}")
    return "told"


async def read_bytes(wire: Wire, count: int) -> bytes:
    """The first bytes of an answer, as many as asked for, or all until the end of the connection."""
    read = b""
    with trio.fail_after(PATIENCE):
        while len(read) < count and (some := await wire.stream.receive_some(count - len(read))):
            read += some
    return read


@pytest.mark.parametrize("revision", ["2025-06-18", "2025-11-25"])
async def test_sse_client_that_reconnects_after_a_break_receives_every_event_once(revision: str) -> None:
    async with open_endpoint(server) as endpoint:
        session = await endpoint.session(revision)
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "tell", "arguments": {}}}
        wire = await endpoint.wire()
        request = wire.request(body, {**session, "Connection": "close"})
        await wire.send(request)
        whole = await read_bytes(wire, 1 << 20)
        said = said_in(EventReader(1 << 20).feed(without_chunks(whole)))
        assert len(said) == 4
        resumed = 0
        for cut in range(len(whole)):
            wire = await endpoint.wire()
            await wire.send(request)
            read = await read_bytes(wire, cut)
            await wire.close()
            reader = EventReader(1 << 20)
            events = reader.feed(without_chunks(read))
            if reader.last_event_id:
                resumed += 1
                again = await endpoint.ask(
                    None,
                    {**session, "Accept": "text/event-stream", "Last-Event-ID": reader.last_event_id},
                    method="GET",
                )
                assert again.status in (200, 204), again  # 204: nothing is left
                events += EventReader(1 << 20).feed(again.body)
                assert said_in(events) == said, cut
        assert resumed > 50


def said_in(events: list[Event]) -> list[Any]:
    messages = [json.loads(event.data) for event in events if event.data]
    return [message.get("params", message.get("result")) for message in messages]


def without_chunks(read: bytes) -> bytes:
    """The part of a body that a cut answer in chunks has brought."""
    _, _, rest = read.partition(b"\r\n\r\n")
    body = b""
    while rest:
        size, end, rest = rest.partition(b"\r\n")
        if not end or not (length := int(size, 16)):
            break
        body, rest = body + rest[:length], rest[length + 2 :]
    return body
