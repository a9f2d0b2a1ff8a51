"""Limits of a whole server are shared among its clients: none can take all of it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio
from tests.patience import PATIENCE
from tests.server.listening import Peer, noted
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import Limits, serve_tcp
from trio_mcp.runtime.peer import SOLE_CLIENT, UNKNOWN_PEER
from trio_mcp.server.connection import ServerConnection
from trio_mcp.transports.lines import memory_transport_pair

from .conversation import MODERN, Conversation

Connect = Callable[[], Awaitable[Peer]]


@asynccontextmanager
async def shared(*, alone: bool = False, **limits: Any) -> AsyncIterator[Connect]:
    """A server, to which clients connect."""
    server = noted()
    server.limits = Limits(**limits)
    async with server._running() as running, trio.open_nursery() as nursery:

        async def connect() -> Peer:
            ours, theirs = memory_transport_pair()
            connection = ServerConnection(running, theirs, SOLE_CLIENT if alone else UNKNOWN_PEER)
            await nursery.start(connection.run)
            peer = Peer(connection, ours)
            await peer.open(MODERN)
            return peer

        yield connect
        nursery.cancel_scope.cancel()


async def all_it_gets(peer: Peer, method: str, params: dict[str, Any]) -> int:
    """How many of many requests that do not end by themselves are taken."""
    for _ in range(50):
        await peer.send(peer.message(method, params))
    refused = [message for message in await peer.everything() if "error" in message]
    assert {message["error"]["code"] for message in refused} <= {-31000}
    return 50 - len(refused)


async def hang(peer: Peer) -> int:
    return await all_it_gets(peer, "tools/call", {"name": "hang", "arguments": {}})


async def listen(peer: Peer) -> int:
    return await all_it_gets(peer, "subscriptions/listen", {"notifications": {"toolsListChanged": True}})


async def test_idle_streams_of_many_clients_leave_request_slots_and_streams_free_for_another_client(
    autojump_clock: MockClock,
) -> None:
    async with shared(max_server_requests=10, max_server_streams=64) as connect:
        took = [await listen(await connect()) for _ in range(5)]
        assert took == [32, 16, 8, 4, 2]
        peer = await connect()
        assert await peer.text("echo", {"text": "hi"}) == "hi"
        await peer.listen("one more", toolsListChanged=True)


async def test_client_with_many_calls_leaves_request_slots_for_the_next_clients(autojump_clock: MockClock) -> None:
    async with shared(max_server_requests=16) as connect:
        greedy = await connect()
        assert await hang(greedy) == 8
        assert await hang(await connect()) == 4
        assert await hang(greedy) == 0
        peer = await connect()
        assert await peer.text("echo", {"text": "hi"}) == "hi"


async def test_client_that_is_alone_on_a_server_can_use_all_request_slots_and_listen_streams(
    autojump_clock: MockClock,
) -> None:
    async with shared(alone=True, max_server_requests=16, max_server_streams=16) as connect:
        peer = await connect()
        assert (await hang(peer), await listen(peer)) == (16, 16)


async def test_connections_from_one_address_share_the_request_limit_of_the_address() -> None:
    server = noted()
    server.limits = Limits(max_server_requests=8)
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(serve_tcp, server, "127.0.0.1", 0)
        port: int = listeners[0].socket.getsockname()[1]
        one, again, other = [
            await trio.open_tcp_stream("127.0.0.1", port, local_address=each)
            for each in ("127.0.0.1", "127.0.0.1", "127.0.0.2")
        ]
        with trio.fail_after(PATIENCE):
            assert await refused_on(one, 5) == [-31000] * 5
            assert await refused_on(again, 7) == [-31000] * 7
            assert await refused_on(other, 6) == [-31000] * 6
        for stream in (one, again, other):
            await trio.aclose_forcefully(stream)
        nursery.cancel_scope.cancel()


async def test_many_connections_from_one_address_leave_a_connection_for_another_address() -> None:
    limits = Limits(max_connections=4, handshake_timeout=10_000)
    async with trio.open_nursery() as nursery:
        start = partial(serve_tcp, noted(), "127.0.0.1", 0, limits=limits)
        listeners = await nursery.start(start)
        port: int = listeners[0].socket.getsockname()[1]
        with trio.fail_after(PATIENCE):
            mine = [await spoken_from("127.0.0.1", port) for _ in range(3)]
            other = await spoken_from("127.0.0.2", port)
            assert [each is not None for each in (*mine, other)] == [True, True, False, True]
        for stream in (*mine, other):
            if stream is not None:
                await trio.aclose_forcefully(stream)
        nursery.cancel_scope.cancel()


async def test_new_tcp_connection_replaces_a_silent_connection_of_the_address_with_the_most_connections() -> None:
    limits = Limits(max_connections=4, handshake_timeout=10_000)
    async with trio.open_nursery() as nursery:
        start = partial(serve_tcp, noted(), "127.0.0.1", 0, limits=limits)
        listeners = await nursery.start(start)
        port: int = listeners[0].socket.getsockname()[1]
        silent: list[trio.SocketStream] = []
        for address in ("127.0.0.1", "127.0.0.2", "127.0.0.2", "127.0.0.3"):
            silent.append(await trio.open_tcp_stream("127.0.0.1", port, local_address=address))
            await wait_all_tasks_blocked(0.01)  # it has been accepted
        with trio.fail_after(PATIENCE):
            newcomer = await spoken_from("127.0.0.4", port)
            assert newcomer is not None
            assert await silent[1].receive_some() == b"", "the older one of those that have two"
        for stream in (*silent, newcomer):
            await trio.aclose_forcefully(stream)
        nursery.cancel_scope.cancel()


async def spoken_from(address: str, port: int) -> trio.SocketStream | None:
    """A connection from an address on which the server has answered; `None`: it was turned away."""
    stream = await trio.open_tcp_stream("127.0.0.1", port, local_address=address)
    talk = Conversation()
    talk.revision = MODERN
    try:
        await stream.send_all(json.dumps(talk.message("server/discover")).encode() + b"\n")
        if b'"result"' in await stream.receive_some(65536):
            return stream
    except trio.BrokenResourceError:
        pass
    await trio.aclose_forcefully(stream)
    return None


async def refused_on(stream: trio.abc.Stream, count: int) -> list[int]:
    """The codes of the first ``count`` replies, where eight calls are made that do not end by themselves."""
    talk = Conversation()
    talk.revision = MODERN
    calls = [talk.message("tools/call", {"name": "hang", "arguments": {}}) for _ in range(8)]
    await stream.send_all(b"".join(json.dumps(each).encode() + b"\n" for each in calls))
    received = b""
    while received.count(b"\n") < count:
        received += await stream.receive_some(65536)
    return [json.loads(line)["error"]["code"] for line in received.splitlines()]
