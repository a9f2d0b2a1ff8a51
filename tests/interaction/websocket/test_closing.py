"""How connections end: by close, by loss, by shutdown, and that others are unaffected (WSK-07, WSK-08, SHD-01,
SHD-02).
"""

from __future__ import annotations

import json
import logging
import math
import os
import signal
from contextlib import AsyncExitStack
from functools import partial

import pytest
import trio
from tests.interaction.websocket.raw_peer import RawPeer, connected, masked_frame, port_of, serving
from tests.interaction.websocket.servers import Watched, watched_server
from tests.patience import LONG, PATIENCE
from trio.testing import MockClock, lockstep_stream_pair
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection

from trio_mcp import CancelCause, ConnectionLost, Limits, open_websocket, serve_websocket
from trio_mcp.client.opening import open_client
from trio_mcp.transports.websocket.stream import CLOSE_FRAME, CoalescingStream
from trio_mcp.transports.websocket.transport import WebSocketTransport
from trio_mcp.types import LogLevel, LogParams

served = partial(serving, serve_websocket)


async def cause_after(watched: Watched) -> tuple[CancelCause | None, str]:
    """Why the one call of `hang` was cancelled."""
    with trio.fail_after(PATIENCE):
        await watched.ended.wait()
    ((cause, reason),) = watched.causes
    return cause, reason or ""


@pytest.mark.parametrize(
    ("code", "words", "meaning"),
    [
        (1000, "", "the peer closed the connection (close code 1000)"),
        (1001, "page left", "the peer is going away (close code 1001): page left"),
        (1009, "", "the peer reported a message that is too long (close code 1009)"),
        (1011, "oh dear", "the peer reported an internal error (close code 1011): oh dear"),
        (4001, "mine", "the peer closed the connection (close code 4001): mine"),
    ],
)
async def test_handler_sees_the_websocket_close_code_of_the_client_as_cancel_reason(
    code: int, words: str, meaning: str
) -> None:
    watched = watched_server()
    async with served(watched.server, port=0) as listeners, connected(port_of(listeners)) as peer:
        await peer.open_legacy()
        await peer.ask(1, "tools/call", {"name": "hang"})
        await watched.started.wait()
        await peer.send(CloseConnection(code=code, reason=words))
        assert await cause_after(watched) == (CancelCause.DISCONNECT, meaning)
        close = await peer.closed()
        assert close is not None
        assert close.code == code


@pytest.mark.parametrize("middle", [b"", masked_frame(1, b"x" * 100)[:50]])
async def test_websocket_connection_reset_cancels_only_the_handlers_of_that_client(middle: bytes) -> None:
    watched = watched_server()
    async with served(watched.server, port=0) as listeners, connected(port_of(listeners)) as bystander:
        await bystander.open_legacy()
        async with connected(port_of(listeners)) as peer:
            await peer.open_legacy()
            await peer.ask(1, "tools/call", {"name": "hang"})
            await watched.started.wait()
            if middle:
                await peer.stream.send_all(middle)
            await peer.reset()
        cause, reason = await cause_after(watched)
        assert cause is CancelCause.DISCONNECT
        assert "1006" in reason
        await bystander.ask(1, "tools/call", {"name": "echo", "arguments": {"text": "here"}})
        assert "result" in await bystander.reply(1)
        async with connected(port_of(listeners)) as newcomer:
            await newcomer.open_legacy()


async def test_handler_that_sends_messages_stops_when_its_websocket_closes() -> None:
    watched = watched_server()
    async with served(watched.server, port=0) as listeners, connected(port_of(listeners)) as peer:
        await peer.open_legacy()
        await peer.ask(1, "logging/setLevel", {"level": "debug"})
        await peer.ask(2, "tools/call", {"name": "flood", "arguments": {"count": 10_000_000}})
        await watched.started.wait()
        await peer.send(CloseConnection(code=1000))
        with trio.fail_after(PATIENCE):
            await watched.ended.wait()
            close = await peer.closed()
        assert close is not None
        assert close.code == 1000


async def test_websocket_client_can_close_before_it_reads_all_messages() -> None:
    watched = watched_server()
    flooded = trio.Event()

    async def never_done(_: LogParams) -> None:
        flooded.set()
        await trio.sleep_forever()

    async with served(watched.server, port=0) as listeners:
        with trio.fail_after(PATIENCE):
            async with open_websocket(
                f"ws://127.0.0.1:{port_of(listeners)}/mcp", era="legacy", on_log=never_done
            ) as client:
                await client.set_log_level(LogLevel.DEBUG)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(client.call_tool, "flood", {"count": 10_000_000})
                    await flooded.wait()
                    nursery.cancel_scope.cancel()
            await watched.ended.wait()


async def test_websocket_client_closes_within_a_second_if_server_does_not_read(autojump_clock: MockClock) -> None:
    ours, theirs = lockstep_stream_pair()
    deaf = RawPeer(theirs, WSConnection(ConnectionType.SERVER))

    async def open_and_read_no_more() -> None:
        await deaf.next()
        await deaf.send(AcceptConnection(subprotocol="mcp"))
        version, info = "2025-11-25", {"name": "deaf", "version": "1"}
        result = {"protocolVersion": version, "capabilities": {}, "serverInfo": info}
        await deaf.say(json.dumps({"jsonrpc": "2.0", "id": (await deaf.message())["id"], "result": result}))
        await deaf.message()

    channel = WebSocketTransport(ours, 65536, ping_interval=math.inf, ping_timeout=math.inf, close_code=1000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(open_and_read_no_more)
        await nursery.start(channel.connect, "deaf", "/mcp", [])
        async with open_client(channel, era="legacy") as client:
            with trio.move_on_after(1):
                await client.ping()
            left = trio.current_time()
        assert trio.current_time() - left < 1


async def test_websocket_client_sees_the_close_reason_of_the_server() -> None:
    with trio.fail_after(PATIENCE):
        watched = watched_server(Limits(drain_timeout=0))
        async with trio.open_nursery() as nursery:
            start = partial(serve_websocket, watched.server, port=0)
            listeners = await nursery.start(start)
            async with open_websocket(f"ws://127.0.0.1:{port_of(listeners)}/mcp") as client:
                nursery.start_soon(signal_after, watched.started)
                with pytest.raises(
                    ConnectionLost, match=r"going away \(close code 1001\): the server is shutting down"
                ):
                    await client.call_tool("hang")
    assert watched.causes == [(CancelCause.SHUTDOWN, "the server got SIGTERM")]


async def signal_after(event: trio.Event) -> None:
    """Ask ourselves to end, as a supervisor would, when ``event`` has happened."""
    await event.wait()
    os.kill(os.getpid(), signal.SIGTERM)


async def test_websocket_server_that_gets_a_signal_drains_and_frees_the_port(jump_clock: MockClock) -> None:
    watched = watched_server(Limits(drain_timeout=LONG))
    with trio.fail_after(LONG + PATIENCE):
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(partial(serve_websocket, watched.server, port=0))
            port = port_of(listeners)
            async with connected(port) as short, connected(port) as long, connected(port) as idle:
                for peer in (short, long, idle):
                    await peer.open_legacy()
                await long.ask(1, "tools/call", {"name": "hang"})
                await watched.started.wait()
                for id in (1, 2, 3):
                    await short.ask(id, "tools/call", {"name": "nap", "arguments": {"milliseconds": 100}})
                await short.ask("started", "ping")
                await short.reply("started")
                os.kill(os.getpid(), signal.SIGTERM)
                close = await idle.closed()  # at once: the others still work
                assert not watched.ended.is_set()
                assert close is not None
                assert (close.code, close.reason) == (1001, "the server is shutting down")
                await short.ask(4, "tools/call", {"name": "echo", "arguments": {"text": "new"}})
                replies = {reply["id"]: reply for reply in [await short.message() for _ in range(4)]}
                assert replies[4]["error"]["message"].startswith("Shutting down")
                assert all("result" in replies[id] for id in (1, 2, 3))
                jump_clock.jump(LONG)
                for peer in (short, long):
                    close = await peer.closed()
                    assert close is not None
                    assert close.code == 1001
                with pytest.raises(OSError, match="connect"):
                    await trio.open_tcp_stream("127.0.0.1", port)
        assert watched.causes == [(CancelCause.SHUTDOWN, "the server got SIGTERM")]
        async with served(watched.server, port=port), connected(port):
            pass  # it is free at once


async def test_websocket_server_that_gets_a_second_signal_ends_before_drain_timeout() -> None:
    watched = watched_server(Limits(drain_timeout=1000))
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(partial(serve_websocket, watched.server, port=0))
            async with connected(port_of(listeners)) as peer, connected(port_of(listeners)) as idle:
                await peer.open_legacy()
                await peer.ask(1, "tools/call", {"name": "hang"})
                await watched.started.wait()
                os.kill(os.getpid(), signal.SIGTERM)
                assert await idle.closed() is not None  # so the first was acted on
                os.kill(os.getpid(), signal.SIGTERM)
                assert await peer.closed() is not None
    assert watched.causes == [(CancelCause.SHUTDOWN, "the server got SIGTERM")]


async def test_server_shutdown_closes_ten_idle_websockets_with_code_1001_and_logs_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    closes: list[CloseConnection | None] = []
    ready = trio.Event()

    async def idle(port: int) -> None:
        async with connected(port) as peer:
            await peer.open_legacy()
            idlers.append(peer)
            if len(idlers) == 10:
                ready.set()
            closes.append(await peer.closed())

    idlers: list[object] = []
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(partial(serve_websocket, watched_server().server, port=0))
            for _ in range(10):
                nursery.start_soon(idle, port_of(listeners))
            await ready.wait()
            os.kill(os.getpid(), signal.SIGTERM)
    assert [close.code for close in closes if close is not None] == [1001] * 10
    assert not caplog.records


async def test_websocket_server_sends_close_to_all_clients_even_if_its_tasks_are_delayed(
    mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So does a machine that has something else to do just then, for longer than the peer's answer is waited for."""
    put = CoalescingStream.put

    def put_and_be_late(stream: CoalescingStream, frames: bytes | bytearray) -> None:
        put(stream, frames)
        if frames[0] == CLOSE_FRAME:
            mock_clock.jump(1)

    monkeypatch.setattr(CoalescingStream, "put", put_and_be_late)
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(serve_websocket, watched_server().server, port=0))
        async with AsyncExitStack() as peers:
            clients = [await peers.enter_async_context(connected(port_of(listeners))) for _ in range(10)]
            for client in clients:
                await client.open_legacy()
            with trio.CancelScope(shield=True):
                nursery.cancel_scope.cancel(reason="enough")
                closes = [await client.closed() for client in clients]
    assert [close and close.code for close in closes] == [1001] * 10


async def test_websocket_server_cancelled_from_outside_sends_close_1001() -> None:
    watched = watched_server()
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(partial(serve_websocket, watched.server, port=0))
            async with connected(port_of(listeners)) as peer:
                await peer.open_legacy()
                await peer.ask(1, "tools/call", {"name": "hang"})
                await watched.started.wait()
                with trio.CancelScope(shield=True):
                    nursery.cancel_scope.cancel(reason="enough")
                    close = await peer.closed()
    assert close is not None
    assert close.code == 1001
    ((cause, _),) = watched.causes
    assert cause is CancelCause.PARENT
