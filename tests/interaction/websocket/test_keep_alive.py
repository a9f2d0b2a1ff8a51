"""Pings detect a frozen peer and keep all others (WSK-05)."""

from __future__ import annotations

import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from textwrap import dedent

import pytest
import trio
from tests.interaction.harness import is_stopped
from tests.interaction.websocket.raw_peer import connected, port_of, serving
from tests.interaction.websocket.servers import Watched, watched_server
from tests.patience import PATIENCE
from trio.testing import MockClock, wait_all_tasks_blocked
from trio_websocket import WebSocketRequest
from trio_websocket import serve_websocket as serve_anything
from wsproto.events import Ping

from trio_mcp import CancelCause, ConnectionLost, Limits, open_websocket, serve_websocket

served = partial(serving, serve_websocket)
QUICK = Limits(ping_interval=0.05, ping_timeout=0.1)
PINGS = Limits(ping_interval=10, ping_timeout=20)


async def silence_is_noticed(clock: MockClock, watched: Watched) -> None:
    """Pass the time from the last that the peer sent to the moment when it is found to be silent."""
    clock.jump(10)
    await wait_all_tasks_blocked()
    assert not watched.ended.is_set()
    for _ in range(1000):  # one jump is enough, unless something is still on its way or our own tasks are late
        clock.jump(20)
        await trio.sleep(0.01)
        if watched.ended.is_set():
            return
    pytest.fail("nobody noticed")


async def test_websocket_server_drops_a_silent_peer_and_cancels_its_handlers(jump_clock: MockClock) -> None:
    watched = watched_server()
    async with served(watched.server, port=0, limits=PINGS) as listeners, connected(port_of(listeners)) as peer:
        await peer.open_legacy(sampling={})
        await peer.ask(1, "tools/call", {"name": "hang"})
        await watched.started.wait()
        await silence_is_noticed(jump_clock, watched)
    ((cause, reason),) = watched.causes
    assert cause is CancelCause.DISCONNECT
    assert reason == "the peer is frozen: it sent nothing for 20 s after a ping"


async def test_request_of_the_server_to_a_silent_websocket_client_raises_connection_lost(jump_clock: MockClock) -> None:
    watched = watched_server()
    async with served(watched.server, port=0, limits=PINGS) as listeners, connected(port_of(listeners)) as peer:
        await peer.open_legacy(sampling={})
        await peer.ask(1, "tools/call", {"name": "ask"})
        await watched.started.wait()
        await silence_is_noticed(jump_clock, watched)
    assert all(isinstance(error, ConnectionLost) for error in watched.asked)  # or it was cancelled


async def test_handler_that_sends_many_messages_to_a_silent_websocket_peer_is_cancelled(jump_clock: MockClock) -> None:
    watched = watched_server()
    async with served(watched.server, port=0, limits=PINGS) as listeners, connected(port_of(listeners)) as peer:
        await peer.open_legacy()
        await peer.ask(1, "logging/setLevel", {"level": "debug"})
        await peer.ask(2, "tools/call", {"name": "flood", "arguments": {"count": 10_000_000}})
        await watched.started.wait()
        await silence_is_noticed(jump_clock, watched)


async def test_websocket_connection_whose_peer_answers_pings_stays_open_during_long_calls(
    jump_clock: MockClock,
) -> None:
    watched = watched_server()
    async with served(watched.server, port=0, limits=PINGS) as listeners, connected(port_of(listeners)) as peer:
        await peer.open_legacy()
        await peer.ask(1, "tools/call", {"name": "hang"})
        await watched.started.wait()
        for _ in range(5):
            jump_clock.jump(10)
            event = await peer.next()
            assert isinstance(event, Ping)
            await peer.send(event.response())
            await wait_all_tasks_blocked()
        assert not watched.ended.is_set()


async def test_websocket_connection_whose_peer_sends_messages_but_no_pongs_stays_open(jump_clock: MockClock) -> None:
    watched = watched_server()
    async with served(watched.server, port=0, limits=PINGS) as listeners, connected(port_of(listeners)) as peer:
        await peer.open_legacy()
        await peer.ask(1, "tools/call", {"name": "hang"})
        await watched.started.wait()
        jump_clock.jump(10)
        for number in range(5):
            assert isinstance(await peer.next(), Ping)
            await peer.notify("notifications/nothing", {"number": number})
            await wait_all_tasks_blocked()
            jump_clock.jump(20)  # the time of that ping is over, and that of the next one has come
        assert not watched.ended.is_set()


async def test_websocket_client_detects_a_frozen_server() -> None:
    async def freeze(request: WebSocketRequest) -> None:
        await request.accept(subprotocol="mcp")
        await trio.sleep_forever()  # and with a second message in its queue, it answers no ping

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            other = await nursery.start(serve_anything, freeze, "127.0.0.1", 0, None)
            with pytest.raises(ConnectionLost, match="frozen"):
                async with open_websocket(f"ws://127.0.0.1:{other.port}/", limits=QUICK, probe_timeout=0.01):
                    pytest.fail("it answers nothing")
            nursery.cancel_scope.cancel()


@pytest.mark.commands
async def test_websocket_of_a_stopped_client_process_is_dropped(tmp_path: Path, jump_clock: MockClock) -> None:
    """The scenario as it is told: a client is stopped in the middle of a call, and nobody closes anything."""
    script = tmp_path / "client.py"
    script.write_text(
        dedent(
            """
            import sys, trio
            from trio_mcp import open_websocket

            async def main():
                async with open_websocket(sys.argv[1]) as client:
                    await client.call_tool("hang")

            trio.run(main)
            """
        )
    )
    watched = watched_server()
    async with served(watched.server, port=0, limits=PINGS) as listeners:
        url = f"ws://127.0.0.1:{port_of(listeners)}/mcp"
        client = await trio.lowlevel.open_process([sys.executable, str(script), url], stderr=subprocess.DEVNULL)
        try:
            with trio.fail_after(PATIENCE):
                await watched.started.wait()
            client.send_signal(signal.SIGSTOP)
            with trio.fail_after(PATIENCE):
                while not is_stopped(client.pid):  # noqa: ASYNC110 - the event is in another process
                    await trio.sleep(0.005)
            await silence_is_noticed(jump_clock, watched)
            with trio.fail_after(PATIENCE):
                while watched.server.statistics().connections:
                    await wait_all_tasks_blocked()
            assert watched.server.statistics().in_flight == 0
        finally:
            client.kill()
            await client.wait()
    assert watched.causes[0][0] is CancelCause.DISCONNECT
