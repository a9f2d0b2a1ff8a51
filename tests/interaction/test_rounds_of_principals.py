"""A handler awaiting input belongs to its principal, and not to the connection of the call."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import CancelCause, Limits, RequestContext, Server
from trio_mcp.runtime.peer import Headers, Peer
from trio_mcp.server.servable import connection_to
from trio_mcp.transports.lines import memory_transport_pair

from .memory_peer import MODERN, MemoryPeer, principal_id
from .rounds import ALL, ask, asked, text


class Desk:
    """A server with a tool that asks twice, and what became of its calls."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.server = Server("desk", limits=limits or Limits())
        self.steps: list[str] = []
        self.ended: list[tuple[CancelCause, str | None]] = []

        @self.server.tool
        async def twice(ctx: RequestContext) -> str:
            try:
                for number in (1, 2):
                    self.steps.append(f"asks {number} of {(ctx.headers or {}).get('via')}")
                    await ctx.list_roots()
                ctx.progress(1)
                await ctx.log.info("nearly done")
                return "done"
            except trio.Cancelled:
                assert ctx.cancellation is not None
                self.ended.append((ctx.cancellation.cause, ctx.cancellation.reason))
                raise

        @self.server.tool
        async def once_and_wait(ctx: RequestContext) -> str:
            await ctx.list_roots()
            try:
                await trio.sleep_forever()
            except trio.Cancelled:
                assert ctx.cancellation is not None
                self.ended.append((ctx.cancellation.cause, ctx.cancellation.reason))
                raise
            return ""


class Wires:
    """Connections to one running server, each of a principal."""

    def __init__(self, running: object, nursery: trio.Nursery) -> None:
        self._running = running
        self._nursery = nursery

    async def open(self, principal: str | None, via: str = "") -> MemoryPeer:
        ours, theirs = memory_transport_pair()
        peer = Peer(principal=principal_id(principal), headers=Headers({"via": via}))
        await self._nursery.start(connection_to(self._running, theirs, peer).run)  # type: ignore[arg-type]
        wire = MemoryPeer(ours)
        await wire.open(MODERN, ALL)
        return wire


@asynccontextmanager
async def wires(server: Server) -> AsyncGenerator[Wires]:
    async with server._running() as running, trio.open_nursery() as nursery:
        yield Wires(running, nursery)
        nursery.cancel_scope.cancel()


async def test_principal_can_retry_an_input_required_call_over_another_connection(autojump_clock: MockClock) -> None:
    desk = Desk()
    async with wires(desk.server) as opened:
        first, second = await opened.open("ada", "one"), await opened.open("ada", "two")
        call, result = await ask(first, "twice", log_level="info")
        retry = second.call_message("twice", token="t", log_level="info")
        result = asked(await second.retry(retry, result))
        assert desk.steps == ["asks 1 of one", "asks 2 of two"], "headers are those of the request that goes on"
        assert text(await first.retry(call, result, meta={"io.modelcontextprotocol/logLevel": "info"})) == "done"
        assert [message["method"] for message in await first.everything(1)] == ["notifications/message"]
        assert await second.everything(1) == [], "what is sent goes where the request belongs now"
    load = desk.server._load
    assert (load.parked, load.in_flight, load.inbound_bytes) == (0, 0, 0)


async def test_handler_that_awaits_input_continues_after_the_connection_of_its_principal_closes(
    autojump_clock: MockClock,
) -> None:
    desk = Desk()
    async with wires(desk.server) as opened:
        first = await opened.open("ada")
        call, result = await ask(first, "twice")
        await first.close()
        await wait_all_tasks_blocked()
        assert (desk.server.statistics().connections, desk.server.statistics().parked, desk.ended) == (0, 1, [])
        second = await opened.open("ada")
        result = asked(await second.retry(call, result))
        assert text(await second.retry(call, result)) == "done"
    load = desk.server._load
    assert (load.parked, load.in_flight, load.inbound_bytes, load.cancelled) == (0, 0, 0, 0)


async def test_server_refuses_a_retry_by_another_principal_or_without_a_principal(autojump_clock: MockClock) -> None:
    desk = Desk()
    async with wires(desk.server) as opened:
        ada, eve, nobody = await opened.open("ada"), await opened.open("eve"), await opened.open(None)
        call, result = await ask(ada, "twice")
        refusals = [(await other.retry(call, result))["error"] for other in (eve, nobody)]
        assert [error["code"] for error in refusals] == [-32602, -32602]
        asked(await ada.retry(call, result))


async def test_handler_retried_on_a_second_connection_continues_when_the_first_connection_closes(
    autojump_clock: MockClock,
) -> None:
    desk = Desk()
    async with wires(desk.server) as opened:
        first, second = await opened.open("ada"), await opened.open("ada")
        call, result = await ask(first, "once_and_wait")
        await second.send(second.retry_message(call, result))
        await wait_all_tasks_blocked()
        await first.close()
        await wait_all_tasks_blocked()
        assert desk.ended == []
        await second.close()
        await trio.sleep(60)
        assert [cause for cause, _ in desk.ended] == [CancelCause.SHUTDOWN], "it ends with the one it belongs to"
    assert desk.server._load.inbound_bytes == 0


async def test_handler_of_a_principal_that_awaits_input_is_cancelled_at_server_shutdown(
    autojump_clock: MockClock,
) -> None:
    desk = Desk()
    async with wires(desk.server) as opened:
        await ask(await opened.open("ada"), "twice")
    assert desk.ended == [(CancelCause.SHUTDOWN, "the server has ended")]
    assert desk.server.statistics().parked == desk.server.statistics().in_flight == 0


async def test_handler_of_a_principal_that_awaits_input_expires_even_without_a_connection(
    autojump_clock: MockClock,
) -> None:
    desk = Desk(Limits(retry_timeout=30))
    async with wires(desk.server) as opened:
        first = await opened.open("ada")
        await ask(first, "twice")
        await first.close()
        await trio.sleep(31)
        assert [cause for cause, _ in desk.ended] == [CancelCause.EXPIRED]


async def test_max_parked_limits_the_handlers_that_await_input_over_all_connections_of_a_principal(
    autojump_clock: MockClock,
) -> None:
    desk = Desk(Limits(max_parked=2))
    async with wires(desk.server) as opened:
        other = await opened.open("eve")
        await ask(other, "twice")
        for _ in range(3):
            await ask(await opened.open("ada"), "twice")
        await wait_all_tasks_blocked()
        assert (desk.server.statistics().parked, len(desk.ended)) == (3, 1)


@pytest.mark.parametrize("principal", [None, "ada"])
async def test_cancel_stops_a_handler_of_a_principal_that_awaits_input(
    principal: str | None, autojump_clock: MockClock
) -> None:
    desk = Desk()
    async with wires(desk.server) as opened:
        wire = await opened.open(principal)
        call, _ = await ask(wire, "twice")
        await wire.notify("notifications/cancelled", {"requestId": call["id"], "reason": "enough"})
        await wait_all_tasks_blocked()
        assert desk.ended == [(CancelCause.PEER, "enough")]


async def test_in_flight_limit_of_a_connection_counts_only_retries_received_on_that_connection(
    autojump_clock: MockClock,
) -> None:
    desk = Desk(Limits(max_in_flight=1))
    async with wires(desk.server) as opened:
        first, second = await opened.open("ada"), await opened.open("ada")
        call, result = await ask(first, "twice")
        result = asked(await second.retry(call, result))
        assert text(await first.retry(call, result)) == "done"
        for wire in (first, second):
            await wire.start("once_and_wait")
            call, result = await ask(wire, "twice")
            asked(await wire.retry(call, result))
            await wire.send(wire.call_message("twice"))
    load = desk.server._load
    assert (load.parked, load.in_flight, load.queued, load.inbound_bytes) == (0, 0, 0, 0)
