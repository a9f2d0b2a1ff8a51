"""Grace periods for cleanup after a cancel."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from trio_mcp import Client, ConnectionLost, Limits, RequestContext, Server, open_memory
from trio_mcp.client.opening import open_client
from trio_mcp.concurrency.time_limits import Graces
from trio_mcp.runtime.connection import Connection
from trio_mcp.server.servable import connection_to
from trio_mcp.transports.lines import memory_transport_pair
from trio_mcp.types import CreateMessageParams, CreateMessageResult


async def test_cleanup_block_is_shielded_from_cancellation_until_the_grace_period_expires(
    autojump_clock: MockClock,
) -> None:
    graces = Graces(5)
    with trio.move_on_after(1):
        with graces.grace():
            await trio.sleep(4)
        assert trio.current_time() == 4
        with graces.grace():
            await trio.sleep(1000)
        assert trio.current_time() == 9
        await trio.sleep(1000)
    assert trio.current_time() == 9


async def test_grace_period_of_a_cleanup_block_can_be_shortened_after_it_has_started(autojump_clock: MockClock) -> None:
    graces = Graces(1000)

    async def shorten() -> None:
        await trio.sleep(10)
        graces.shorten(5)
        graces.shorten(20)  # never lengthens

    async with trio.open_nursery() as nursery:
        nursery.start_soon(shorten)
        with graces.grace():
            await trio.sleep(2000)
    assert trio.current_time() == 15
    assert graces.seconds == 5


async def test_cleanup_block_that_has_ended_leaves_no_cancel_scope(autojump_clock: MockClock) -> None:
    graces = Graces(5)
    with graces.grace():
        assert len(graces._scopes) == 1
    with pytest.raises(LookupError), graces.grace():
        raise LookupError
    assert not graces._scopes


LIMITS = Limits()
PATIENT = Limits(drain_timeout=1000, shutdown_grace=1000, cleanup_grace=1000)


def signalled(connection: Connection) -> None:
    connection.shut_down("the server got SIGTERM")


def signalled_twice(connection: Connection) -> None:
    connection.shut_down("the server got SIGTERM")
    connection.shut_down("the server got SIGTERM", hurry=True)


def lost(connection: Connection) -> None:
    connection.is_only = True
    connection.lose(ConnectionLost("broken pipe"))


@pytest.mark.parametrize(
    ("limits", "end", "seconds"),
    [(LIMITS, signalled, 3.0), (LIMITS, lost, 1.0), (LIMITS, signalled_twice, 0.3), (PATIENT, signalled_twice, 0.3)],
)
def test_server_that_shuts_down_waits_for_a_blocked_thread_only_for_the_grace_period(
    limits: Limits, end: Callable[[Connection], None], seconds: float
) -> None:
    """Hosts kill a server after about four seconds, of which the lifespan needs some."""
    server, release, clock = Server("s", limits=limits), threading.Event(), MockClock()

    async def main() -> float:
        started, token = trio.Event(), trio.lowlevel.current_trio_token()

        @server.tool
        def deaf() -> None:
            token.run_sync_soon(started.set)
            release.wait()

        async def call(client: Client) -> None:
            with suppress(ConnectionLost):
                await client.call_tool("deaf")

        ours, theirs = memory_transport_pair()
        async with server._running() as running, trio.open_nursery() as nursery:
            connection = connection_to(running, theirs)
            ended = trio.Event()

            async def serve() -> None:
                await connection.run()
                ended.set()

            nursery.start_soon(serve)
            async with open_client(ours) as client, trio.open_nursery() as calls:
                calls.start_soon(call, client)
                await started.wait()
                clock.autojump_threshold = 0
                begun = trio.current_time()
                end(connection.connection)
                await ended.wait()
                return trio.current_time() - begun

    try:
        assert trio.run(main, clock=clock) == pytest.approx(seconds)
    finally:
        release.set()


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_client_that_closes_waits_for_a_blocked_handler_thread_only_for_the_grace_period(era: Any) -> None:
    server, release, clock = Server("s"), threading.Event(), MockClock()

    @server.tool
    async def ask(ctx: RequestContext) -> None:
        await ctx.sample("well?", max_tokens=5)

    async def main() -> float:
        started, token = trio.Event(), trio.lowlevel.current_trio_token()

        def deaf(_: CreateMessageParams) -> CreateMessageResult:
            token.run_sync_soon(started.set)
            release.wait()
            raise AssertionError("nobody waits for it")

        async def call(client: Client) -> None:
            with suppress(ConnectionLost):
                await client.call_tool("ask")

        async with trio.open_nursery() as calls, open_memory(server, era=era, sampling=deaf) as client:
            calls.start_soon(call, client)
            await started.wait()
            clock.autojump_threshold = 0
            begun = trio.current_time()
        return trio.current_time() - begun

    try:
        assert trio.run(main, clock=clock) == pytest.approx(LIMITS.shutdown_grace)
    finally:
        release.set()
