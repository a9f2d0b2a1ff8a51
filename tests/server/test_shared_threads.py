"""Threads of a server with many clients: each has its share, and none can take what others need."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
from tests.interaction.memory_peer import LATEST_LEGACY, MODERN, MemoryPeer, connected_twice
from tests.patience import PATIENCE
from trio.testing import wait_all_tasks_blocked

from trio_mcp import Limits, Server, WorkerContext


class Shared:
    """A server with two clients, and a tool whose threads end when the test says so."""

    def __init__(self, **limits: int) -> None:
        self.server = Server("s", limits=Limits(**limits))
        self.release = threading.Event()
        self.held = list[Any]()
        token = trio.lowlevel.current_trio_token()

        @self.server.tool
        def hold(ctx: WorkerContext) -> str:
            token.run_sync_soon(self.held.append, ctx.request_id)
            self.release.wait()
            return "let go"

        @self.server.tool
        def order(ctx: WorkerContext) -> str:
            return ctx.elicit("Really?", {"type": "object", "properties": {}}).action

        @self.server.tool
        def echo(text: str) -> str:
            return text

    async def until_held(self, count: int) -> None:
        """Return when so many hold a thread."""
        with trio.fail_after(PATIENCE):
            while len(self.held) < count:
                await wait_all_tasks_blocked(0.001)


@pytest.fixture
async def shared() -> AsyncIterator[list[Shared]]:
    """Where servers are put whose threads are to end with the test, whatever happens."""
    made = list[Shared]()
    yield made
    for one in made:
        one.release.set()


async def hold(peer: MemoryPeer, count: int) -> list[Any]:
    """Make so many calls that hold a thread; their ids."""
    calls = [peer.call_message("hold") for _ in range(count)]
    for call in calls:
        await peer.send(call)
    await wait_all_tasks_blocked()
    return [call["id"] for call in calls]


@pytest.mark.parametrize("revision", [LATEST_LEGACY, MODERN])
async def test_client_that_floods_the_server_can_use_at_most_half_of_the_worker_threads(
    shared: list[Shared], revision: str
) -> None:
    this = Shared(worker_threads=6)
    shared.append(this)
    async with connected_twice(this.server) as (greedy, other):
        await greedy.open(revision)
        await other.open(revision)
        ids = await hold(greedy, 10)
        await this.until_held(3)
        with trio.fail_after(PATIENCE):
            assert await other.text("echo", {"text": "hi"}) == "hi"
        await hold(other, 1)
        await this.until_held(4)
        assert sorted(this.held[:3]) == ids[:3], "the first of those that came have threads"
        this.release.set()
        for number in ids:
            assert (await greedy.reply(number))["result"]["content"][0]["text"] == "let go"


async def test_threads_that_wait_for_elicitations_of_one_client_leave_worker_threads_for_other_clients(
    shared: list[Shared],
) -> None:
    this = Shared(max_asking_threads=2)
    shared.append(this)
    form = {"elicitation": {"form": {}}}
    async with connected_twice(this.server) as (greedy, other):
        await greedy.open(LATEST_LEGACY, form)
        await other.open(LATEST_LEGACY, form)
        await greedy.send(greedy.call_message("order"))
        await greedy.question("elicitation/create")
        assert "too many handlers in threads wait for answers" in str(await refused(greedy))
        call = other.call_message("order")
        await other.send(call)
        question = await other.question("elicitation/create")
        await other.answer(question, {"action": "decline"})
        assert (await other.reply(call["id"]))["result"]["content"][0]["text"] == "decline"


async def refused(peer: MemoryPeer) -> dict[str, Any]:
    call = peer.call_message("order")
    await peer.send(call)
    return await peer.reply(call["id"])
