"""Streams of ``subscriptions/listen`` through a proxy, to clients that read slowly."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from tests.interaction.conversation import MODERN
from tests.proxying.conftest import Proxied
from tests.server.listening import TOOLS, UPDATED, Peer, noted, told
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import Limits
from trio_mcp.server.servable import connection_to
from trio_mcp.transports.lines import memory_transport_pair
from trio_mcp.types import Proxy

A, B = f"{UPDATED} note://a", f"{UPDATED} note://b"


@asynccontextmanager
async def slow_peer_of(proxy: Proxy) -> AsyncIterator[Peer]:
    """A raw client, to which next to nothing is on its way at a time."""
    ours, theirs = memory_transport_pair(1)
    async with proxy._running(Limits(high_water=1)) as running, trio.open_nursery() as nursery:
        connection = connection_to(running, theirs)
        await nursery.start(connection.run)
        peer = Peer(connection, ours)
        await peer.open(MODERN)
        yield peer
        nursery.cancel_scope.cancel()


async def test_proxy_merges_repeated_changes_that_a_slow_listen_stream_has_not_read(
    autojump_clock: MockClock, proxied: Proxied
) -> None:
    server = noted()
    async with proxied(server) as proxy, slow_peer_of(proxy) as peer:
        await peer.listen(toolsListChanged=True, resourceSubscriptions=["note://a", "note://b"])
        for _ in range(50):
            for uri in ("note://a", "note://b"):
                server.resource_updated(uri)
                await wait_all_tasks_blocked()
        server.remove_tool("hang")
        await wait_all_tasks_blocked()
        peer.connection.connection.shut_down("over")
        *news, cancelled, result = [told(message) for message in await peer.rest()]
    assert (cancelled, result) == ("notifications/cancelled", "result")
    assert set(news) == {A, B, TOOLS}
    assert len(news) < 10


async def test_slow_listen_stream_through_a_proxy_receives_new_changes_when_it_is_read_again(
    autojump_clock: MockClock, proxied: Proxied
) -> None:
    server = noted()
    async with proxied(server) as proxy, slow_peer_of(proxy) as peer:
        await peer.listen(resourceSubscriptions=["note://a"])
        for _ in range(50):
            server.resource_updated("note://a")
            await wait_all_tasks_blocked()
        came = [told(message) for message in await peer.everything()]
        assert set(came) == {A}
        assert len(came) < 10
        server.resource_updated("note://a")
        assert await peer.next() == A
