"""Tasks whose process died, or has given them up: they fail, or run once more, as their tools are declared (TK-11)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
import trio
from tests.tasks.callers import LEASE, Caller, calling, settings
from tests.tasks.touchy_store import TouchyStore, record_in
from trio.testing import MockClock

from trio_mcp import RequestContext, Server
from trio_mcp.client.opening import open_client
from trio_mcp.concurrency.contexts import asynccontextmanager
from trio_mcp.runtime.peer import Peer, PrincipalId
from trio_mcp.runtime.requests.scope import current_request
from trio_mcp.server.servable import connection_to
from trio_mcp.stores.memory import MemoryTaskStore
from trio_mcp.stores.task_store import TaskPhase, TaskStore
from trio_mcp.testing.stores.task_store_records import change
from trio_mcp.transports.lines import memory_transport_pair

NAME = {"type": "object", "properties": {"name": {"type": "string"}}}


def server_of(store: TaskStore, runs: list[Any], **options: Any) -> Server:
    """A server whose tools note their runs."""
    server = Server("restarting", tasks=settings(store, **options))

    def note(ctx: RequestContext) -> None:
        assert ctx.task is not None
        runs.append((ctx.task.id, ctx.task.attempt))

    @server.tool(task="required")
    async def once(seconds: float, ctx: RequestContext) -> str:
        note(ctx)
        assert ctx.task is not None
        await ctx.task.start()
        await trio.sleep(seconds)
        return "done"

    @server.tool(task="required", on_restart="again")
    async def again(seconds: float, ctx: RequestContext) -> str:
        note(ctx)
        assert ctx.task is not None
        await ctx.task.start()
        await trio.sleep(seconds)
        return f"done in run {ctx.task.attempt}, with {ctx.task.restored}"

    @server.tool(task="required", on_restart="resume")
    async def resume(steps: int, ctx: RequestContext) -> str:
        note(ctx)
        assert ctx.task is not None
        await ctx.task.start()
        done = ctx.task.restored or 0
        for step in range(done, steps):
            await trio.sleep(1)
            await ctx.task.checkpoint(step + 1)
        return f"{steps - done} of {steps} steps"

    @server.tool(task="required", on_restart="again")
    async def ask(seconds: float, ctx: RequestContext) -> str:
        note(ctx)
        assert ctx.task is not None
        await ctx.task.start()
        first = await ctx.elicit("Who?", NAME)
        await trio.sleep(seconds)
        second = await ctx.elicit("And who else?", NAME)
        return f"{first.content} and {second.content}"

    return server


@asynccontextmanager
async def dying(store: TaskStore, runs: list[Any], **options: Any) -> AsyncGenerator[Caller]:
    """A process that dies at the end of the block: nothing is written any more."""
    way = TouchyStore(store)
    async with trio.open_nursery() as nursery, calling(server_of(way, runs, **options)) as caller:
        yield caller
        way.die()
        nursery.cancel_scope.cancel()


async def test_non_restartable_task_fails_if_its_lease_expires(autojump_clock: MockClock) -> None:
    store, runs = MemoryTaskStore(), list[Any]()
    async with dying(store, runs) as caller:
        task_id = await caller.start("once", seconds=1000)
    async with calling(server_of(store, runs)) as caller:
        await trio.sleep(LEASE / 2)
        assert (await caller.get(task_id))["status"] == "working"
        await trio.sleep(LEASE)
        task = await caller.get(task_id)
    assert task["status"] == "failed"
    assert task["error"] == {"code": -31002, "message": "the server was restarted while the task was running"}
    assert runs == [(task_id, 1)]


async def test_restartable_task_runs_again_from_the_start_after_its_process_died(autojump_clock: MockClock) -> None:
    store, runs = MemoryTaskStore(), list[Any]()
    async with dying(store, runs) as caller:
        task_id = await caller.start("again", seconds=60)
    async with calling(server_of(store, runs)) as caller:
        await caller.final(task_id)
        assert await caller.text(task_id) == "done in run 2, with None"
    assert runs == [(task_id, 1), (task_id, 2)]


async def test_resumable_task_continues_from_its_last_checkpoint_after_its_process_died(
    autojump_clock: MockClock,
) -> None:
    store, runs = MemoryTaskStore(), list[Any]()
    async with dying(store, runs) as caller:
        task_id = await caller.start("resume", steps=10)
        await trio.sleep(6.5)
    async with calling(server_of(store, runs)) as caller:
        await caller.final(task_id)
        assert await caller.text(task_id) == "4 of 10 steps"


async def test_task_fails_if_it_is_restarted_too_often(autojump_clock: MockClock) -> None:
    store, runs = MemoryTaskStore(), list[Any]()
    async with dying(store, runs) as caller:
        task_id = await caller.start("again", seconds=900)
    for _ in range(2):
        async with dying(store, runs):
            await trio.sleep(2 * LEASE)
    async with calling(server_of(store, runs)) as caller:
        task = await caller.final(task_id)
    assert task["status"] == "failed"
    assert "maximum number of runs" in task["error"]["message"]
    assert runs == [(task_id, 1), (task_id, 2), (task_id, 3)]


async def test_elicitation_keeps_its_key_and_answers_after_a_restart(autojump_clock: MockClock) -> None:
    store, runs = MemoryTaskStore(), list[Any]()
    async with dying(store, runs) as caller:
        task_id = await caller.start("ask", seconds=0)
        await trio.sleep(1)
        await caller.answer(task_id, {"name": "Ada"})
        await trio.sleep(1)
        before = (await caller.get(task_id))["inputRequests"]
    async with calling(server_of(store, runs)) as caller:
        await trio.sleep(2 * LEASE)
        assert (await caller.get(task_id))["inputRequests"] == before
        await caller.answer(task_id, {"name": "Bob"})
        await caller.final(task_id)
        assert await caller.text(task_id) == "{'name': 'Ada'} and {'name': 'Bob'}"


async def test_elicitation_answer_given_while_no_process_runs_the_task_is_used_after_a_restart(
    autojump_clock: MockClock,
) -> None:
    store, runs = MemoryTaskStore(), list[Any]()
    async with dying(store, runs) as caller:
        task_id = await caller.start("ask", seconds=0)
        await trio.sleep(1)
    async with calling(server_of(store, runs, max_running=1)) as caller:
        await caller.answer(task_id, {"name": "Ada"})  # the lease of the dead has not run out
        assert runs == [(task_id, 1)]
        await trio.sleep(2 * LEASE)
        await caller.answer(task_id, {"name": "Bob"})
        await caller.final(task_id)
        assert await caller.text(task_id) == "{'name': 'Ada'} and {'name': 'Bob'}"


async def test_task_cancelled_between_the_death_and_restart_of_its_process_stays_cancelled(
    autojump_clock: MockClock,
) -> None:
    store, runs = MemoryTaskStore(), list[Any]()
    async with dying(store, runs) as caller:
        task_id = await caller.start("again", seconds=60)
    async with calling(server_of(store, runs)) as caller:
        await caller.cancel(task_id)
        await trio.sleep(2 * LEASE)
        assert (await caller.get(task_id))["status"] == "cancelled"
    assert runs == [(task_id, 1)]


async def test_task_ttl_counts_from_the_creation_of_the_task_despite_restarts(autojump_clock: MockClock) -> None:
    store, runs = MemoryTaskStore(), list[Any]()
    async with dying(store, runs, ttl=100.0) as caller:
        begun = trio.current_time()
        task_id = await caller.start("again", seconds=1000)
    async with calling(server_of(store, runs)) as caller:
        task = await caller.final(task_id)
        assert trio.current_time() - begun == pytest.approx(100, abs=1)
    assert (task["status"], task["error"]["message"]) == ("failed", "the time to live of the task was over")
    assert runs == [(task_id, 1), (task_id, 2)]


@pytest.mark.parametrize("kind", ["again", "once"])
async def test_process_without_the_tool_of_a_task_leaves_the_task_to_a_process_that_has_the_tool(
    autojump_clock: MockClock, kind: str
) -> None:
    store, runs = MemoryTaskStore(), list[Any]()
    async with dying(store, runs) as caller:
        task_id = await caller.start(kind, seconds=60)
    server = server_of(store, runs)
    server.remove_tool(kind)
    async with calling(server) as caller:
        await trio.sleep(5 * LEASE)
        assert (await caller.get(task_id))["status"] == "working"
        async with calling(server_of(store, runs)):
            task = await caller.final(task_id)
    assert task["status"] == ("completed" if kind == "again" else "failed")
    assert runs == [(task_id, attempt) for attempt in range(1, 3 if kind == "again" else 2)]


async def test_task_whose_tool_no_process_has_fails_when_its_ttl_expires(autojump_clock: MockClock) -> None:
    store, runs = MemoryTaskStore(), list[Any]()
    async with dying(store, runs, ttl=500.0) as caller:
        begun = trio.current_time()
        task_id = await caller.start("again", seconds=60)
    server = server_of(store, runs)
    server.remove_tool("again")
    async with calling(server) as caller:
        task = await caller.final(task_id)
    assert trio.current_time() - begun == pytest.approx(500, abs=1)
    assert (task["status"], task["error"]["message"]) == ("failed", "the time to live of the task was over")


async def test_server_takes_over_at_most_max_running_tasks(autojump_clock: MockClock) -> None:
    store, runs = MemoryTaskStore(), list[Any]()
    async with dying(store, runs) as caller:
        for _ in range(5):
            await caller.start("again", seconds=50)
        runs.clear()
    async with calling(server_of(store, runs, max_running=2)):
        await trio.sleep(2 * LEASE - 15)
        assert len(runs) == 2
        async with calling(server_of(store, runs, max_running=3)):
            await trio.sleep(LEASE)
            assert len(runs) == 5


async def test_restarted_task_whose_arguments_no_longer_match_the_tool_fails(autojump_clock: MockClock) -> None:
    store, runs = MemoryTaskStore(), list[Any]()
    async with dying(store, runs) as caller:
        task_id = await caller.start("again", seconds=60)
    server = server_of(store, runs)
    server.remove_tool("again")

    @server.tool(task="required", on_restart="again")
    async def again(minutes: int) -> str:
        return "never"

    async with calling(server) as caller:
        task = await caller.final(task_id)
    assert task["result"]["isError"]
    assert "Invalid arguments for again" in task["result"]["content"][0]["text"]


async def test_unreadable_task_record_is_skipped_and_logged(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    store, runs = MemoryTaskStore(), list[Any]()
    async with dying(store, runs) as caller:
        first = await caller.start("again", seconds=60)
        second = await caller.start("again", seconds=60)
    record = await record_in(store, first)
    assert record is not None
    assert await change(store, record, revision="2099-01-01") is not None
    caplog.clear()
    async with calling(server_of(store, runs)) as caller:
        await caller.final(second)
        assert await caller.text(second) == "done in run 2, with None"
        await trio.sleep(5 * LEASE)
        left = await record_in(store, first)
    assert left is not None
    assert (left.phase, left.attempt) == (TaskPhase.WORKING, 1)
    assert f"task {first} has lost its process, and cannot be run again" in caplog.text
    assert f"task {second}" not in caplog.text


async def test_handler_of_a_restarted_task_sees_the_context_values_of_its_first_run(autojump_clock: MockClock) -> None:
    store, seen = MemoryTaskStore(), list[Any]()

    def server_that_sees(way: TaskStore) -> Server:
        server = Server("seeing", tasks=settings(way))

        @server.tool(task="required", on_restart="again")
        async def look(word: str, ctx: RequestContext) -> str:
            assert ctx.task is not None
            await ctx.task.start()
            principal = current_request.get().exchange.peer.principal
            seen.append((word, ctx.client_supports("elicitation"), principal, ctx.task.id, ctx.task.ttl))
            await trio.sleep(60)
            return "seen"

        return server

    way = TouchyStore(store)
    async with trio.open_nursery() as nursery, server_that_sees(way)._running() as running:
        ours, theirs = memory_transport_pair()
        nursery.start_soon(
            connection_to(running, theirs, Peer(principal=PrincipalId("https://login.example.com", "ada|eve"))).run
        )
        async with open_client(ours, era="modern") as client:
            await Caller(client).start("look", word="hello")
            way.die()
            nursery.cancel_scope.cancel()
    async with calling(server_that_sees(store)):
        await trio.sleep(2 * LEASE)
    first, again = seen
    assert first == again


async def test_deadline_of_the_caller_counts_from_the_first_run(autojump_clock: MockClock) -> None:
    store, runs = MemoryTaskStore(), list[Any]()
    async with dying(store, runs) as caller:
        begun = trio.current_time()
        task_id = (await caller.call("again", {"trio-mcp/remainingMs": 60_000}, seconds=1000))["taskId"]
        await trio.sleep(10)
    async with calling(server_of(store, runs)) as caller:
        task = await caller.final(task_id)
        assert trio.current_time() - begun == pytest.approx(61, abs=1)
    assert "deadline" in task["error"]["message"]
