"""Requests go on in the order in which they came."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from tests.proxying.conftest import Proxied
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import RequestContext, Server
from trio_mcp.testing import open_scripted_client


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_proxy_forwards_requests_in_the_order_of_arrival(
    autojump_clock: MockClock, revision: str, proxied: Proxied
) -> None:
    server = Server("s")
    ids: list[tuple[Any, int]] = []

    @server.tool
    async def note(n: int, ctx: RequestContext) -> None:
        ids.append((ctx.request_id, n))

    async with proxied(server) as proxy, open_scripted_client(proxy, revision) as client:
        for n in range(100):
            await client.call_tool("note", {"n": n})
        for _ in range(100):
            await client.receive()
    # The ids behind are given in the order in which the requests were sent there.
    assert [n for _, n in sorted(ids)] == list(range(100))


async def test_request_cancelled_while_queued_in_a_proxy_does_not_block_other_requests(
    autojump_clock: MockClock, back: str, proxied: Proxied
) -> None:
    server = Server("s")

    @server.tool
    async def note(n: int) -> str:
        return str(n)

    async with proxied(server) as proxy, open_scripted_client(proxy) as client:
        calls = [await client.call_tool("note", {"n": n}) for n in range(10)]
        for call in calls[::2]:
            await client.cancel(call)
        answered: set[Any] = set()
        with trio.move_on_after(5):
            while True:
                answered.add((await client.receive())["id"])
        await wait_all_tasks_blocked()
        assert set(calls[1::2]) <= answered
        await client.expect_text(await client.call_tool("note", {"n": 11}), "11")
