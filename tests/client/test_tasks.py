"""Calls that become tasks of the server, as callers see them, in both eras."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal

import pytest
import trio

from trio_mcp import (
    CancelCause,
    CodedError,
    MethodUnavailable,
    PeerError,
    Progress,
    RequestContext,
    Server,
    TaskCancelled,
    TaskSettings,
    ToolError,
    fail_after_silence,
    open_memory,
)
from trio_mcp.stores import MemoryTaskStore
from trio_mcp.types import CallToolResult, TextContent

Era = Literal["modern", "legacy"]
ERAS = pytest.mark.parametrize("era", ["modern", "legacy"])


def text_of(result: CallToolResult) -> str:
    block = result.content[0]
    assert isinstance(block, TextContent)
    return block.text


class Worker:
    """A server with tools that are called as tasks, and what became of their handlers."""

    def __init__(self, store: MemoryTaskStore | None = None) -> None:
        self.ended: list[CancelCause | None] = []
        self.server = server = Server("worker", tasks=TaskSettings(store=store))

        @server.tool(task="required")
        async def work(seconds: float, ctx: RequestContext) -> str:
            """Work for a while."""
            try:
                for step in range(3):
                    if ctx.task is not None:
                        ctx.task.status(f"step {step}")
                    await trio.sleep(seconds / 3)
            finally:
                self.ended.append(None if ctx.cancellation is None else ctx.cancellation.cause)
            return f"worked for {seconds:g} s"

        @server.tool(task="required")
        async def fail(how: str) -> str:
            """Fail after a while."""
            await trio.sleep(5)
            raise CodedError(-31050, "no") if how == "error" else ToolError("no")

        @server.tool(task="required")
        async def report(ctx: RequestContext) -> str:
            """Report progress for a while."""
            for step in range(5):
                ctx.progress(step + 1, 5, f"step {step}")
                await trio.sleep(4)
            return "done"

        @server.tool
        async def quick() -> str:
            """Return at once."""
            return "done"

        self.tools: dict[str, Any] = {"work": work, "fail": fail, "report": report, "quick": quick}


@ERAS
async def test_call_of_a_tool_that_runs_as_a_task_returns_the_result_of_the_task(
    autojump_clock: object, era: Era
) -> None:
    async with open_memory(Worker().server, era=era) as client:
        assert text_of(await client.call_tool("work", {"seconds": 30})) == "worked for 30 s"


@ERAS
async def test_task_status_messages_arrive_as_progress_with_increasing_values(autojump_clock: object, era: Era) -> None:
    seen: list[Progress] = []
    async with open_memory(Worker().server, era=era) as client:
        await client.call_tool("work", {"seconds": 30}, on_progress=seen.append)
    assert [each.message for each in seen] == ["step 0", "step 1", "step 2"]
    assert [each.progress for each in seen] == [1, 2, 3]


@ERAS
async def test_progress_of_a_task_handler_arrives_as_progress_of_the_call(autojump_clock: object, era: Era) -> None:
    seen: list[Progress] = []
    async with open_memory(Worker().server, era=era) as client:
        with fail_after_silence(10, maximum=100):  # less than the whole takes
            assert text_of(await client.call_tool("report", on_progress=seen.append)) == "done"
        with fail_after_silence(10, maximum=100):
            assert text_of(await client.call_tool("report")) == "done"
    assert [each.message for each in seen] == [f"step {step}" for step in range(5)]
    assert all(before.progress < after.progress for before, after in pairwise(seen))


@ERAS
async def test_cancelled_call_cancels_its_task(autojump_clock: object, era: Era) -> None:
    worker = Worker()
    async with open_memory(worker.server, era=era) as client:
        with trio.move_on_after(5):
            await client.call_tool("work", {"seconds": 30})
        await trio.sleep(1)
        assert worker.ended == [CancelCause.TASK]


@ERAS
async def test_client_that_closes_cancels_the_tasks_of_its_calls(autojump_clock: object, era: Era) -> None:
    worker = Worker()

    async def call() -> None:
        with pytest.raises(Exception, match="closed"):
            await client.call_tool("work", {"seconds": 30})

    async with trio.open_nursery() as nursery, open_memory(worker.server, era=era) as client:
        nursery.start_soon(call)
        await trio.sleep(5)
    assert worker.ended == [CancelCause.TASK]


@ERAS
async def test_call_raises_the_error_of_its_failed_task(autojump_clock: object, era: Era) -> None:
    async with open_memory(Worker().server, era=era) as client:
        with pytest.raises(PeerError) as caught:
            await client.call_tool("fail", {"how": "error"})
        assert caught.value.code == -31050
        assert (await client.call_tool("fail", {"how": "tool"})).is_error


@ERAS
async def test_started_task_keeps_running_if_the_wait_for_it_is_cancelled(autojump_clock: object, era: Era) -> None:
    async with open_memory(Worker().server, era=era) as client:
        task = await client.start_task("work", {"seconds": 30})
        with trio.move_on_after(5):
            await task.result()
        assert (await task.get()).status == "working"
        assert text_of(await task.result()) == "worked for 30 s"
        assert (await task.get()).status == "completed"


@ERAS
async def test_task_continues_after_the_deadline_around_start_task_expires(autojump_clock: object, era: Era) -> None:
    async with open_memory(Worker().server, era=era) as client:
        with trio.fail_after(5):
            task = await client.start_task("work", {"seconds": 60})
        assert text_of(await task.result()) == "worked for 60 s"


@ERAS
async def test_task_cancelled_by_another_client_raises_task_cancelled(autojump_clock: object, era: Era) -> None:
    async with open_memory(Worker().server, era=era) as client:
        task = await client.start_task("work", {"seconds": 30})
        assert task.id is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.resume_task(task.id).cancel)
            with pytest.raises(TaskCancelled) as caught:
                await task.result()
        assert caught.value.task_id == task.id


@ERAS
async def test_finished_task_does_not_change_if_it_is_cancelled(autojump_clock: object, era: Era) -> None:
    async with open_memory(Worker().server, era=era) as client:
        task = await client.start_task("work", {"seconds": 3})
        await task.result()
        await task.cancel()
        assert (await task.get()).status == "completed"


@ERAS
async def test_start_task_of_a_tool_without_tasks_returns_the_result_without_a_task(
    autojump_clock: object, era: Era
) -> None:
    async with open_memory(Worker().server, era=era) as client:
        task = await client.start_task("quick")
        assert task.id is None
        assert text_of(await task.result()) == "done"
        with pytest.raises(RuntimeError, match="no task"):
            await task.get()
        with pytest.raises(RuntimeError, match="no task"):
            await task.cancel()


@ERAS
async def test_unknown_task_id_raises_invalid_params_when_it_is_first_used(autojump_clock: object, era: Era) -> None:
    async with open_memory(Worker().server, era=era) as client:
        task = client.resume_task("nobody knows")
        for use in (task.get, task.result, task.cancel):
            with pytest.raises(PeerError) as caught:
                await use()
            assert caught.value.code == -32602


@ERAS
async def test_another_client_resumes_a_task_by_its_id(autojump_clock: object, era: Era) -> None:
    store = MemoryTaskStore()
    running, beside = Worker(store).server, Worker(store).server
    async with open_memory(running, era=era) as first, open_memory(beside, era=era) as second:
        task = await first.start_task("work", {"seconds": 30})
        assert task.id is not None
        assert text_of(await second.resume_task(task.id).result()) == "worked for 30 s"


async def test_client_with_tasks_disabled_raises_peer_error_if_it_calls_a_tool_that_requires_a_task(
    autojump_clock: object,
) -> None:
    async with open_memory(Worker().server, era="modern", tasks=False) as client:
        with pytest.raises(PeerError) as caught:
            await client.call_tool("work", {"seconds": 3})
        assert caught.value.code == -32021
    async with open_memory(Worker().server, era="legacy", tasks=False) as client:
        with pytest.raises(PeerError) as caught:
            await client.call_tool("work", {"seconds": 3})
        assert caught.value.code == -32601


async def test_client_can_list_tasks_only_in_the_legacy_revision(autojump_clock: object) -> None:
    async with open_memory(Worker().server, era="legacy") as client:
        ids = {(await client.start_task("work", {"seconds": 30}, ttl=60)).id for _ in range(3)}
        tasks = [task async for task in client.list_tasks()]
        assert {task.id for task in tasks} == ids
        assert [(task.status, task.ttl) for task in tasks] == [("working", 60)] * 3
    async with open_memory(Worker().server, era="modern") as client:
        with pytest.raises(MethodUnavailable):
            _ = [task async for task in client.list_tasks()]
