"""Random calls of plain ``def`` tools and random disconnects: all worker thread counters return to zero."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
import trio
from tests.patience import PATIENCE

from trio_mcp import CodedError, Limits, RequestContext, Server
from trio_mcp.concurrency.workers import SlotState, WorkerShare, WorkerSlot
from trio_mcp.server.server import RunningServer

from .conversation import ANSWERS
from .test_load_random import GAUGES, Client

LIMITS = Limits(
    max_in_flight=4,
    max_queued=3,
    max_parked=2,
    worker_threads=3,
    max_asking_threads=3,
    max_abandoned_threads=2,
    max_inbound_bytes=4000,
    max_server_bytes=9000,
    max_server_requests=14,
    cleanup_grace=0.02,
    shutdown_grace=0.01,
    drain_timeout=0.01,
    retry_timeout=0.05,
)
TOOLS = ["looks", "deaf", "asks", "asks", "insists", "waits"]


def make_server() -> Server:
    server = Server("s", limits=LIMITS)

    @server.tool
    def looks(number: int, ctx: RequestContext) -> None:
        end = time.monotonic() + number / 500
        while time.monotonic() < end:
            ctx.check_cancelled()
            time.sleep(0.001)

    @server.tool
    def deaf(number: int) -> None:
        time.sleep(number / 200)

    @server.tool
    def asks(number: int, ctx: RequestContext) -> None:
        for _ in range(1 + number % 3):
            ctx.list_roots()
            time.sleep(number % 2 / 500)

    @server.tool
    def insists(number: int, ctx: RequestContext) -> None:
        for _ in range(3):
            try:
                ctx.list_roots()
            except (CodedError, trio.Cancelled):
                time.sleep(number / 1000)

    @server.tool
    async def waits(number: int) -> None:
        await trio.sleep(number / 400)

    return server


class Crowd:
    """Clients that come, ask for much, and go in any way."""

    def __init__(self, running: RunningServer, nursery: trio.Nursery, dice: random.Random) -> None:
        self.running, self.nursery, self.dice = running, nursery, dice
        self.clients: list[Client] = []
        self.scopes: dict[Client, trio.CancelScope] = {}

    async def come(self) -> None:
        client, scope = Client(self.running), trio.CancelScope()
        self.clients.append(client)
        self.scopes[client] = scope

        async def run(task_status: trio.TaskStatus[None]) -> None:
            with scope:
                await client.connection.run(task_status=task_status)

        await self.nursery.start(run)
        self.nursery.start_soon(client.read)

    async def step(self) -> None:
        dice = self.dice
        client, number = dice.choice(self.clients), dice.randrange(16)
        if client.over:
            await self.come()
            return
        match dice.choices(["call", "retry", "cancel", "leave", "hang up", "shut down"], [55, 20, 12, 2, 2, 2])[0]:
            case "call":
                late: dict[str, Any] = {} if number else {"trio-mcp/remainingMs": 5}
                padding = {"padding": "x" * 600} if number % 5 == 0 else {}
                await client.request(client.call(dice.choice(TOOLS), number, **late, **padding))
            case "retry":
                await client.come_back(number, ANSWERS["roots/list"] if number % 5 else None)
            case "cancel" if client.sent:
                params = {"requestId": client.sent[-1 - number % len(client.sent)]["id"]}
                await client.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
            case "leave":
                self.scopes[client].cancel()
            case "hang up":
                await client.channel.aclose()
            case _:
                client.connection.connection.shut_down("enough", drain_timeout=number / 1000, hurry=number % 3 == 0)
        await trio.sleep(dice.choice([0, 0, 0, 0.001, 0.01]))


@pytest.mark.parametrize("seed", range(12))
async def test_all_worker_thread_slots_are_free_after_random_calls_and_cancels_of_sync_tools(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: list[WorkerSlot] = []
    made = WorkerSlot.__init__

    def make(place: WorkerSlot, share: WorkerShare) -> None:
        made(place, share)
        places.append(place)

    monkeypatch.setattr(WorkerSlot, "__init__", make)
    dice = random.Random(seed)
    server = make_server()
    with trio.fail_after(PATIENCE):
        async with server._running() as running:
            async with trio.open_nursery() as nursery:
                crowd = Crowd(running, nursery, dice)
                for _ in range(3):
                    await crowd.come()
                for _ in range(dice.randint(20, 60)):
                    await crowd.step()
                for client in crowd.clients:
                    await client.channel.aclose()
            workers = running.host.workers
            for place in places:
                if place._state is not SlotState.OUTSIDE:  # its handler is deaf, and was abandoned
                    await place.released.wait()
            assert {gauge: getattr(server._load, gauge) for gauge in GAUGES} == dict.fromkeys(GAUGES, 0)
            assert (workers._counts, list(workers.queue), workers._abandoned_calls) == ([0] * len(SlotState), [], {})
            for share in {place._share for place in places}:
                assert (share._counts, share.queue) == ([0] * len(SlotState), {})
