"""A cancel before opening or serving still closes the channel."""

from __future__ import annotations

import pytest
import trio
from tests.patience import PATIENCE

from trio_mcp import ConnectionLost, Server
from trio_mcp.client.opening import open_client
from trio_mcp.connecting.memory import open_server
from trio_mcp.transports.lines import memory_transport_pair


async def test_client_cancelled_before_it_opens_closes_its_transport() -> None:
    ours, theirs = memory_transport_pair()
    with trio.CancelScope() as scope:
        scope.cancel()
        async with open_client(ours):
            pytest.fail("it was cancelled")
    assert scope.cancelled_caught
    with trio.fail_after(PATIENCE), pytest.raises((trio.EndOfChannel, ConnectionLost)):
        await theirs.receive()


async def test_server_cancelled_before_it_serves_closes_its_transport() -> None:
    ours, theirs = memory_transport_pair()
    with trio.CancelScope() as scope:
        scope.cancel()
        async with open_server(Server("s"), theirs):
            pytest.fail("it was cancelled")
    assert scope.cancelled_caught
    with trio.fail_after(PATIENCE), pytest.raises((trio.EndOfChannel, ConnectionLost)):
        await ours.receive()
