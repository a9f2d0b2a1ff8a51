"""A proxy that is served over WebSocket: what ends one connection ends what it had begun behind, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
from tests.interaction.websocket.raw_peer import RawPeer, connected, port_of, serving
from tests.interaction.websocket.servers import Watched, watched_server
from tests.patience import PATIENCE
from wsproto.events import BytesMessage, CloseConnection

from trio_mcp import CancelCause, Limits, open_memory, proxy, serve_websocket

LIMITS = Limits(max_message_bytes=65536, ping_interval=0.5, ping_timeout=0.5)


async def too_much(peer: RawPeer) -> int | None:
    await peer.say("x" * 70_000)
    end = await peer.closed()
    return None if end is None else end.code


async def bytes_not_text(peer: RawPeer) -> int | None:
    await peer.send(BytesMessage(data=b"{}"))
    end = await peer.closed()
    return None if end is None else end.code


async def goodbye(peer: RawPeer) -> int | None:
    await peer.send(CloseConnection(1000))
    end = await peer.closed()
    return None if end is None else end.code


async def silence(peer: RawPeer) -> int | None:
    await trio.lowlevel.checkpoint()  # it answers no pings from now on
    return 0


async def reset(peer: RawPeer) -> int | None:
    await peer.reset()
    return 0


@asynccontextmanager
async def proxied() -> AsyncIterator[tuple[Watched, int]]:
    """A server, and the port of a proxy before it."""
    watched = watched_server()
    bridge = proxy(partial(open_memory, watched.server))
    with trio.fail_after(PATIENCE):
        async with serving(serve_websocket, bridge, port=0, limits=LIMITS) as listeners:
            yield watched, port_of(listeners)


@pytest.mark.parametrize(
    ("end", "code"), [(too_much, 1009), (bytes_not_text, 1003), (goodbye, 1000), (silence, 0), (reset, 0)]
)
async def test_wsk_03_wsk_05_wsk_07_closed_websocket_cancels_only_its_handlers_behind_a_proxy(
    end: Any, code: int
) -> None:
    async with proxied() as (watched, port), connected(port) as peer:
        async with trio.open_nursery() as nursery:
            await nursery.start(keep_calling, port)
            await peer.open_legacy()
            await peer.ask(1, "tools/call", {"name": "hang", "arguments": {}})
            await watched.started.wait()
            assert await end(peer) == code
            await watched.ended.wait()
            nursery.cancel_scope.cancel()
        assert [cause for cause, _ in watched.causes] == [CancelCause.PEER], "the proxy cancels it"


async def keep_calling(port: int, *, task_status: trio.TaskStatus[None]) -> None:
    """Another client, that must notice nothing."""
    async with connected(port) as other:
        await other.open_legacy()
        task_status.started()
        number = 0
        while True:
            number += 1
            await other.ask(number, "tools/call", {"name": "echo", "arguments": {"text": "still here"}})
            assert (await other.reply(number))["result"]["content"][0]["text"] == "still here"
            await trio.sleep(0.05)


async def test_wsk_03_proxy_forwards_large_websocket_messages_within_the_limit_in_both_directions() -> None:
    async with proxied() as (_, port), connected(port) as peer:
        await peer.open_legacy()
        await peer.ask(1, "tools/call", {"name": "echo", "arguments": {"text": "x" * 60_000}})
        assert (await peer.reply(1))["result"]["content"][0]["text"] == "x" * 60_000
