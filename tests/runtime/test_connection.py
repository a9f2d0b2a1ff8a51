"""The shell of one connection: what goes on, and what must not hold up what."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from tests.patience import PATIENCE
from tests.runtime.hosted import HostedConnection
from trio.testing import wait_all_tasks_blocked

from trio_mcp import CancelCause, ConnectionLost, Limits
from trio_mcp.concurrency.nurseries import open_service_nursery
from trio_mcp.jsonrpc.errors import MCPError
from trio_mcp.protocol.revisions import LATEST_LEGACY
from trio_mcp.runtime.connection import Connection
from trio_mcp.runtime.exchange import Exchange
from trio_mcp.runtime.requests.host import LATER, Decision, Now, RequestHost
from trio_mcp.runtime.requests.scope import RequestScope
from trio_mcp.runtime.transport import FramedTransport, ReplyLost
from trio_mcp.state.connection import ConnectionState
from trio_mcp.state.events import NotificationReceived
from trio_mcp.state.requests import InboundRequest
from trio_mcp.transports.lines import LineTransport, MemoryTransport, memory_transport_pair
from trio_mcp.transports.stdio import DescriptorStream


class Echo:
    """Answers pings at once, and whatever else with its own parameters."""

    seal = None

    def __init__(self) -> None:
        self.started: list[Any] = []

    def answer_now(self, request: InboundRequest, exchange: Exchange) -> Decision:
        return Now({}) if request.method.name == "ping" else LATER

    async def answer(self, scope: RequestScope) -> Any:
        self.started.append(scope.request.id)
        await trio.sleep(scope.request.params.get("seconds", 0))
        return scope.request.params

    def wants(self, event: NotificationReceived) -> bool:
        return False

    async def notified(self, event: NotificationReceived) -> None:
        raise AssertionError


def side(role: Any, channel: FramedTransport, limits: Limits, handler: Echo | None = None) -> Connection:
    state = ConnectionState(role)
    state.revision, state.initialized = LATEST_LEGACY, True
    return HostedConnection(channel, state, handler or Echo(), RequestHost(limits))


@asynccontextmanager
async def server_alone(limits: Limits, handler: Echo, capacity: int = 65536) -> AsyncGenerator[MemoryTransport]:
    """A server, and the bare wire to it."""
    ours, theirs = memory_transport_pair(capacity)
    async with open_service_nursery("over") as nursery:
        nursery.start_soon(side("server", theirs, limits, handler).run)
        await wait_all_tasks_blocked()
        with trio.fail_after(1000):
            yield ours


def ping(number: int, padding: int = 0) -> bytes:
    return (
        json.dumps({"jsonrpc": "2.0", "id": number, "method": "ping", "params": {"x": "x" * padding}}).encode() + b"\n"
    )


def call(number: int, **params: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}).encode() + b"\n"


async def test_large_messages_in_both_directions_do_not_block_each_other(autojump_clock: object) -> None:
    ours, theirs = memory_transport_pair()
    client, server = side("client", ours, Limits()), side("server", theirs, Limits())
    params = {"text": "x" * 2_000_000}
    with trio.fail_after(60):
        async with open_service_nursery("over") as services:
            services.start_soon(client.run)
            services.start_soon(server.run)
            async with trio.open_nursery() as nursery:
                for _ in range(12):
                    nursery.start_soon(client.request, "tools/call", params, LATEST_LEGACY)
                    nursery.start_soon(server.request, "sampling/createMessage", params, LATEST_LEGACY)


async def test_connection_stops_reading_from_a_peer_that_does_not_read_responses(autojump_clock: object) -> None:
    sent = 0
    async with server_alone(Limits(high_water=100), Echo(), capacity=1000) as wire:
        with trio.move_on_after(100) as stuck:
            for number in range(10_000):
                await wire.send(ping(number))
                sent += 1
        assert stuck.cancelled_caught
    # 64 high-water marks, what fits on the wire both ways, and a message in each hand.
    assert sent < 400


async def test_connection_resumes_reading_when_the_peer_reads_responses(autojump_clock: object) -> None:
    async with server_alone(Limits(high_water=100), Echo(), capacity=1000) as wire, trio.open_nursery() as nursery:

        async def ask() -> None:
            for number in range(2000):
                await wire.send(ping(number))

        nursery.start_soon(ask)
        await trio.sleep(10)
        with trio.fail_after(10):
            answers = [json.loads(await wire.receive())["id"] for _ in range(2000)]
    assert answers == list(range(2000))


async def test_cancel_is_read_while_the_outbox_is_full(autojump_clock: object) -> None:
    handler = Echo()
    async with server_alone(Limits(high_water=100), handler, capacity=100) as wire:
        await wire.send(call(0, seconds=10_000))
        for number in range(1, 5):
            await wire.send(call(number, text="x" * 100_000))
        await trio.sleep(1)
        await wire.send(b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":0}}\n')
        await wire.send(ping(9))
        answered = {json.loads(await wire.receive())["id"] for _ in range(5)}
    assert answered == {1, 2, 3, 4, 9}


# Writing at once


class Seen(FramedTransport):
    """A wire whose peer sends ``lines``. It takes ``room`` bytes of a line without waiting, and the writer waits for
    ``reads``."""

    def __init__(self, *lines: bytes, room: int = 65536) -> None:
        self._lines = list(lines)
        self._room = room
        self.bytes = bytearray()
        self.reads = trio.Event()
        self.sends = 0

    async def receive(self) -> bytes:
        await trio.lowlevel.checkpoint()
        if not self._lines:
            await trio.sleep_forever()
        return self._lines.pop(0)

    async def send(self, messages: bytes | bytearray) -> None:
        self.sends += 1
        await self.reads.wait()
        self.bytes += messages

    def send_nowait(self, message: bytes) -> int:
        self.bytes += message[: self._room]
        return min(self._room, len(message))

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()

    @property
    def messages(self) -> list[Any]:
        return [json.loads(line) for line in self.bytes.splitlines()]


@pytest.mark.parametrize("line", [ping(1), call(1), b"{}\n"], ids=["answered at once", "answered", "refused"])
async def test_connection_writes_a_response_directly_without_the_writer_task(
    line: bytes, nursery: trio.Nursery
) -> None:
    wire = Seen(line)
    nursery.start_soon(side("server", wire, Limits()).run)
    await wait_all_tasks_blocked()
    assert len(wire.messages) == 1
    assert wire.sends == 0


async def test_cancel_of_a_directly_written_request_is_written_by_the_writer_task(
    nursery: trio.Nursery,
) -> None:
    wire = Seen()
    client = side("client", wire, Limits())
    nursery.start_soon(client.run)
    await wait_all_tasks_blocked()
    async with trio.open_nursery() as calling:
        calling.start_soon(client.request, "tools/call", {}, LATEST_LEGACY)
        await wait_all_tasks_blocked()
        assert [message["method"] for message in wire.messages] == ["tools/call"]
        assert wire.sends == 0
        calling.cancel_scope.cancel()
    wire.reads.set()
    await wait_all_tasks_blocked()
    assert [message["method"] for message in wire.messages] == ["tools/call", "notifications/cancelled"]
    assert wire.sends == 1


async def test_cancel_of_a_partly_written_request_is_sent_after_the_complete_request(nursery: trio.Nursery) -> None:
    wire = Seen(room=20)
    client = side("client", wire, Limits())
    nursery.start_soon(client.run)
    await wait_all_tasks_blocked()
    async with trio.open_nursery() as calling:
        calling.start_soon(client.request, "tools/call", {}, LATEST_LEGACY)
        await wait_all_tasks_blocked()
        assert len(wire.bytes) == 20
        calling.cancel_scope.cancel()
    wire.reads.set()
    await client.outbox.flushed()
    assert [message["method"] for message in wire.messages] == ["tools/call", "notifications/cancelled"]


async def test_partly_written_response_is_completed_before_the_connection_closes(nursery: trio.Nursery) -> None:
    wire = Seen(call(1, text="x" * 100), room=20)
    server = side("server", wire, Limits())
    nursery.start_soon(server.run)
    await wait_all_tasks_blocked()
    assert len(wire.bytes) == 20
    wire.reads.set()
    await server.close("over")
    assert [message["id"] for message in wire.messages] == [1]


async def test_writer_task_writes_the_last_responses_of_a_connection_that_closes(autojump_clock: object) -> None:
    wire = Seen(call(1, seconds=1))
    wire.reads.set()
    server = side("server", wire, Limits())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run)
        await wait_all_tasks_blocked()
        server.shut_down("over", drain_timeout=2)
    assert [message["id"] for message in wire.messages] == [1]
    assert wire.sends == 1


async def test_closed_pipe_raises_connection_lost_only_in_calls() -> None:
    (read_fd, peer_write), (peer_read, write_fd) = os.pipe(), os.pipe()
    channel = LineTransport(DescriptorStream(read_fd, write_fd), 1000)
    os.close(peer_read)
    os.close(write_fd)
    client = side("client", channel, Limits())
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.run)
            await wait_all_tasks_blocked()
            with pytest.raises(ConnectionLost, match="stopped reading"):
                await client.request("tools/call", {}, LATEST_LEGACY)
    assert client.lost is not None
    os.close(peer_write)
    os.close(read_fd)


class HalfDead(FramedTransport):
    """A peer that reads nothing any more, but has much to ask: one request per tick."""

    def __init__(self) -> None:
        self.asked = 0
        self.broken = trio.Event()

    async def receive(self) -> bytes:
        await trio.lowlevel.checkpoint()
        self.asked += 1
        if self.asked > 1:
            await self.broken.wait()
        return ping(0) if self.asked == 1 else call(self.asked, seconds=50)

    async def send(self, messages: bytes | bytearray) -> None:
        self.broken.set()
        raise ConnectionLost("broken pipe")

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


async def test_connection_that_is_lost_runs_no_requests_that_it_receives_while_closing(autojump_clock: object) -> None:
    for _ in range(20):  # the order of tasks within a tick is anybody's guess
        channel, handler = HalfDead(), Echo()
        server = side("server", channel, Limits(), handler)
        with trio.fail_after(100):
            await server.run()
        assert handler.started == []
        assert server.state.inbound == ()


@pytest.mark.parametrize("ending", ["cancelled", "shut down"])
async def test_connection_that_closes_forgets_its_buffered_requests(autojump_clock: object, ending: str) -> None:
    ours, theirs = memory_transport_pair()
    handler = Echo()
    server = side("server", theirs, Limits(), handler)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.run)
            await wait_all_tasks_blocked()
            await ours.send(b"".join(call(number) for number in range(100)))
            if ending == "cancelled":
                scope.cancel()
            else:
                server.shut_down("over", drain_timeout=0)
    assert server.state.inbound == ()


class Patient(Echo):
    """Keeps why its request was cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.causes: list[Any] = []

    async def answer(self, scope: RequestScope) -> Any:
        try:
            await trio.sleep_forever()
        finally:
            self.causes.append(scope.cancellation and scope.cancellation.cause)


@pytest.mark.parametrize("draining", [False, True])
async def test_handlers_see_cancel_cause_parent_if_the_application_cancels_the_connection(
    autojump_clock: object, draining: bool
) -> None:
    ours, theirs = memory_transport_pair()
    handler = Patient()
    server = side("server", theirs, Limits(), handler)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run)
        await ours.send(call(1) + call(2))
        await wait_all_tasks_blocked()
        if draining:
            server.shut_down("enough", drain_timeout=60)
            await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert handler.causes == [CancelCause.PARENT, CancelCause.PARENT]


class Losing(FramedTransport):
    """A channel that loses the reply to each request, and lives on."""

    def __init__(self) -> None:
        self._lost, self._losses = trio.open_memory_channel[ReplyLost](10)

    async def receive(self) -> ReplyLost:
        return await self._losses.receive()

    async def send(self, messages: bytes | bytearray) -> None:
        for line in messages.splitlines():
            await self._lost.send(ReplyLost(json.loads(line)["id"], MCPError("no reply")))

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


async def test_response_lost_in_the_transport_fails_only_its_own_call() -> None:
    client = side("client", Losing(), Limits())
    with trio.fail_after(PATIENCE):
        async with open_service_nursery("over") as services:
            services.start_soon(client.run)
            for _ in range(2):
                with pytest.raises(MCPError, match="no reply"):
                    await client.request("tools/call", {}, LATEST_LEGACY)
            assert client.lost is None
