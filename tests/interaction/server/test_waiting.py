"""Queued requests are kept as bytes, because decoded objects take thirty times as much memory."""

from __future__ import annotations

import tracemalloc
from typing import Any

import trio
import trio.testing
from tests.interaction.memory_peer import MODERN, connected

from trio_mcp import Limits, Server

LISTS = [[0]] * 25_000
"""100 KB on the wire, 2.4 MB as objects."""


class Desk:
    """A server that sees to one call at a time."""

    def __init__(self, **limits: Any) -> None:
        self.server = Server("desk", limits=Limits(max_in_flight=1, **limits))
        self.free = trio.Event()
        self.seen: list[int] = []

        @self.server.tool
        async def wait() -> None:
            await self.free.wait()

        @self.server.tool
        async def count(items: list[list[int]], number: int) -> int:
            self.seen.append(number)
            return len(items)


async def test_queued_calls_use_no_more_memory_than_the_bytes_received(autojump_clock: object) -> None:
    desk = Desk()
    async with connected(desk.server, MODERN) as peer:
        await peer.start("wait")
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            ids = [await peer.start("count", {"items": LISTS, "number": number}) for number in range(10)]
            kept = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        assert desk.seen == []
        assert kept < 2_000_000
        desk.free.set()
        for request_id in ids:
            assert (await peer.reply(request_id))["result"]["structuredContent"] == {"result": 25_000}
    assert desk.seen == list(range(10))


async def test_max_inbound_bytes_counts_decoded_size_of_queued_calls(autojump_clock: object) -> None:
    desk = Desk(max_inbound_bytes=10_000_000)
    async with connected(desk.server, MODERN) as peer:
        await peer.start("wait")
        first = await peer.start("count", {"items": LISTS, "number": 1})
        second = await peer.start("count", {"items": LISTS, "number": 2})
        assert (await peer.error("count", {"items": LISTS, "number": 3}))["code"] == -31000
        desk.free.set()
        for request_id in (first, second):
            assert "result" in await peer.reply(request_id)


async def test_large_call_inside_a_batch_counts_with_its_size_towards_the_inbound_limit(autojump_clock: object) -> None:
    desk = Desk(max_inbound_bytes=10_000_000)
    async with connected(desk.server, "2025-03-26") as peer:
        await peer.start("wait")
        ids: list[int] = []
        for number in range(3):
            call = peer.call_message("count", {"items": LISTS, "number": number})
            ids.append(call["id"])
            await peer.send([call, *[{"jsonrpc": "2.0", "method": "notifications/nothing"}] * 99])
        assert (await peer.reply(ids[2]))["error"]["code"] == -31000
        desk.free.set()
        for request_id in ids[:2]:
            assert "result" in await peer.reply(request_id)
