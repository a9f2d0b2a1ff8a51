"""Pings of an idle server, and the end of one that does not answer them."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from os import kill
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.interaction.client.raw import RawPeer, RawServer, cancels_in, methods_in, scripted
from tests.patience import PATIENCE
from trio.testing import MockClock

from trio_mcp import Client, ConnectionLost, KeepAlive, Server, open_memory, open_stdio
from trio_mcp.client.opening import open_client

EVERY_TEN = KeepAlive(interval=10, timeout=3)

Answer = Callable[[RawPeer, dict[str, Any]], Awaitable[None]]


async def answer(peer: RawPeer, ping: dict[str, Any]) -> None:
    await peer.result(ping, {})


async def refuse(peer: RawPeer, ping: dict[str, Any]) -> None:
    await peer.error(ping, -32601, "Method not found")


async def fail(peer: RawPeer, ping: dict[str, Any]) -> None:
    await peer.error(ping, -32603, "Internal error")


async def answer_nonsense(peer: RawPeer, ping: dict[str, Any]) -> None:
    await peer.result(ping, [])


async def be_silent(_: RawPeer, __: dict[str, Any]) -> None:
    pass


async def answer_too_late(peer: RawPeer, ping: dict[str, Any]) -> None:
    await trio.sleep(3.5)
    await peer.result(ping, {})


@asynccontextmanager
async def pinged(*answers: Answer, keep_alive: KeepAlive = EVERY_TEN) -> AsyncIterator[tuple[Client, RawPeer]]:
    """A server that answers its pings so, the last of them for ever, and each call when it says."""

    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        waiting = list(answers)
        async with trio.open_nursery() as nursery:
            with suppress(trio.EndOfChannel):
                while True:
                    message = await peer.read()
                    if message["method"] == "ping":
                        nursery.start_soon(while_open, waiting[0], peer, message)
                        del waiting[: len(waiting) > 1]
                    elif message["method"] == "tools/call":
                        nursery.start_soon(while_open, do_work, peer, message)

    async def do_work(peer: RawPeer, call: dict[str, Any]) -> None:
        await trio.sleep(call["params"]["arguments"].get("after", 0))
        await peer.text(call)

    async def while_open(reply: Answer, peer: RawPeer, message: dict[str, Any]) -> None:
        with suppress(ConnectionLost):
            await reply(peer, message)

    async with scripted(script) as (channel, peer), open_client(channel, era="legacy", keep_alive=keep_alive) as client:
        yield client, peer


def pings_in(peer: RawPeer) -> int:
    return methods_in(peer.wire).count("ping")


async def test_client_with_keep_alive_sends_pings_at_the_interval(autojump_clock: MockClock) -> None:
    async with pinged(answer) as (_, peer):
        await trio.sleep(9)
        assert pings_in(peer) == 0
        await trio.sleep(46)
    assert pings_in(peer) == 5


async def test_client_without_keep_alive_sends_no_pings(autojump_clock: MockClock) -> None:
    async with scripted(RawPeer.handshake) as (channel, peer), open_client(channel):
        await trio.sleep(1000)
    assert pings_in(peer) == 0


@pytest.mark.parametrize("reply", [refuse, fail, answer_nonsense])
async def test_shd_04_client_with_keep_alive_stays_connected_to_a_server_without_ping_support(
    reply: Answer, autojump_clock: MockClock
) -> None:
    async with pinged(reply) as (client, peer):
        await trio.sleep(55)
        assert (await client.call_tool("any")).text == "done"
    assert pings_in(peer) == 5


async def test_shd_04_client_with_keep_alive_sends_no_ping_during_a_request(autojump_clock: MockClock) -> None:
    async with pinged(be_silent) as (client, peer):
        assert (await client.call_tool("any", {"after": 100})).text == "done"
        assert pings_in(peer) == 0


async def test_shd_04_client_with_keep_alive_stays_connected_to_a_server_that_is_busy_after_a_ping(
    autojump_clock: MockClock,
) -> None:
    async with pinged(be_silent, keep_alive=KeepAlive(interval=10, timeout=3, misses=1)) as (client, peer):
        await trio.sleep(11)
        assert pings_in(peer) == 1
        assert (await client.call_tool("any", {"after": 100})).text == "done"


@pytest.mark.parametrize("first", [be_silent, answer_too_late])
async def test_shd_04_calls_succeed_after_the_server_missed_one_ping(first: Answer, autojump_clock: MockClock) -> None:
    async with pinged(first, answer) as (client, peer):
        await trio.sleep(60)
        assert (await client.call_tool("any")).text == "done"
    assert len(cancels_in(peer.wire)) == 1


async def test_client_closes_the_connection_only_after_consecutive_missed_pings(autojump_clock: MockClock) -> None:
    async with pinged(be_silent, answer, be_silent, answer) as (client, _):
        await trio.sleep(100)
        assert (await client.call_tool("any")).text == "done"


async def test_client_raises_connection_lost_if_the_server_misses_two_pings(autojump_clock: MockClock) -> None:
    async with pinged(be_silent) as (client, _):
        with pytest.raises(ConnectionLost, match=r"did not answer 2 pings of 3 s each"):
            await client.until_lost()
        assert trio.current_time() == pytest.approx(10 + 3 + 3)
        with pytest.raises(ConnectionLost, match=r"did not answer 2 pings"):
            await client.call_tool("any")
        await trio.sleep(100)


async def test_keep_alive_ping_can_take_longer_than_the_call_timeout(autojump_clock: MockClock) -> None:
    async def answer_after_two(peer: RawPeer, ping: dict[str, Any]) -> None:
        await trio.sleep(2)
        await peer.result(ping, {})

    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        while True:
            await answer_after_two(peer, await peer.until("ping"))

    async with scripted(script) as (channel, peer), open_client(channel, call_timeout=1, keep_alive=EVERY_TEN):
        await trio.sleep(50)
    assert cancels_in(peer.wire) == []


async def test_client_with_keep_alive_sends_discover_requests_to_a_modern_server(autojump_clock: MockClock) -> None:
    async def script(peer: RawPeer) -> None:
        for _ in range(4):
            await peer.discovered()

    async with scripted(script) as (channel, peer), open_client(channel, keep_alive=EVERY_TEN):
        await trio.sleep(35)
    assert methods_in(peer.wire) == ["server/discover"] * 4


async def test_keep_alive_task_ends_when_the_connection_closes(autojump_clock: MockClock) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        await peer.close()

    async with scripted(script) as (channel, _), open_client(channel, keep_alive=EVERY_TEN) as client:
        with pytest.raises(ConnectionLost, match="closed the connection"):
            await client.until_lost()
        await trio.sleep(100)


async def test_client_with_keep_alive_stays_connected_to_a_legacy_or_modern_trio_mcp_server(
    autojump_clock: MockClock,
) -> None:
    for era in ("legacy", "modern"):
        async with open_memory(Server("s"), era=era, keep_alive=EVERY_TEN) as client:  # type: ignore[arg-type]
            await trio.sleep(100)
            await client.ping()


async def test_client_with_keep_alive_detects_a_stopped_server_process(tmp_path: Path) -> None:
    raw = RawServer(tmp_path, 'handshake(); note("pid", pid=os.getpid()); text(until("tools/call"))')
    keep_alive = KeepAlive(interval=0.05, timeout=0.1)
    with trio.fail_after(PATIENCE):
        async with open_stdio(raw.command, era="legacy", keep_alive=keep_alive, close_grace=0.1) as client:
            (entry,) = await raw.has("pid")
            kill(entry["pid"], signal.SIGSTOP)
            with pytest.raises(ConnectionLost, match="did not answer"):
                await client.until_lost()


@pytest.mark.parametrize("wrong", [{"interval": 0}, {"timeout": -1}, {"misses": 0}])
def test_invalid_keep_alive_setting_raises_value_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be greater than 0"):
        KeepAlive(**wrong)
