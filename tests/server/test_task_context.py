"""`ctx.task`, `ctx.caller_tasks` and `server.tasks`: tasks as authors see them."""

from __future__ import annotations

import gc
import math
import threading
import weakref
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import pytest
import trio
from tests.interaction.memory_peer import LATEST_LEGACY, MODERN, MemoryPeer, connected, connected_twice
from tests.patience import PATIENCE
from tests.server.extension import KNOWS, NAME, about, knowing, state_of, task_of
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import CodedError, RequestContext, Server, TaskSettings, WorkerContext, open_memory
from trio_mcp.stores import MemoryTaskStore, TaskRecord
from trio_mcp.types import CallToolResult, TaskContext, TaskState, TextContent


@asynccontextmanager
async def old(server: Server) -> AsyncGenerator[MemoryPeer]:
    """A peer of 2025-11-25."""
    async with connected(server, LATEST_LEGACY) as peer:
        yield peer


async def core_task_of(peer: MemoryPeer, tool: str, task: dict[str, Any] | None = None, **arguments: Any) -> str:
    """Call a tool as a task of 2025-11-25; the id of the task."""
    reply = await peer.request("tools/call", {"name": tool, "arguments": arguments, "task": task or {}})
    return reply["result"]["task"]["taskId"]


# The task of the call


async def test_tk_01_handler_can_read_its_task_id(autojump_clock: MockClock) -> None:
    server = Server("s")
    seen: list[Any] = []

    @server.tool(task="optional")
    async def look(ctx: RequestContext) -> None:
        seen.append(ctx.task and ctx.task.id)
        if ctx.task is not None:
            await ctx.task.start()

    async with knowing(server) as peer:
        assert await task_of(peer, "look") == seen[-1]
        peer.capabilities = {}
        await peer.call("look")
        assert seen[-1] is None
    async with old(server) as peer:
        task = await core_task_of(peer, "look")
        await wait_all_tasks_blocked()
        assert task == seen[-1]


@pytest.mark.parametrize(
    ("wish", "seen", "held"),
    [({}, None, 3600), ({"ttl": 5000}, 5, 5), ({"ttl": None}, math.inf, 86_400), ({"ttl": 10**9}, 10**6, 86_400)],
)
async def test_tk_03_handler_can_read_the_requested_ttl(
    wish: dict[str, Any], seen: float | None, held: float, autojump_clock: MockClock
) -> None:
    server = Server("s")
    told: list[Any] = []

    @server.tool(task="optional")
    async def look(ctx: RequestContext) -> None:
        assert ctx.task is not None
        told.append((ctx.task.requested_ttl, ctx.task.ttl))

    async with old(server) as peer:
        await core_task_of(peer, "look", wish)
        await wait_all_tasks_blocked()
    assert told == [(seen, held)]


async def test_tk_03_handler_reads_requested_ttl_none_in_a_modern_task(autojump_clock: MockClock) -> None:
    server = Server("s")

    @server.tool(task="required")
    async def look(ctx: RequestContext) -> str:
        assert ctx.task is not None
        return f"{ctx.task.requested_ttl} {ctx.task.ttl}"

    async with knowing(server) as peer:
        reply = await peer.request("tools/call", {"name": "look", "task": {"ttl": 5}})
        state = await state_of(peer, reply["result"]["taskId"])
    assert state["result"]["content"][0]["text"] == "None 3600.0"


# Work that is done elsewhere


def rendering(**settings: Any) -> tuple[Server, list[str]]:
    """Return a server that hands work on, and the ids of the tasks that were handed on."""
    server, jobs = Server("rendering", tasks=TaskSettings(**settings)), list[str]()

    @server.tool(task="required")
    async def render(scene: str, ctx: RequestContext) -> TaskState:
        assert ctx.caller_tasks is not None
        task = await ctx.caller_tasks.create_task(message="queued")
        if scene == "bad":
            raise CodedError(-32050, "no such scene")
        jobs.append(task.id)
        return task

    @server.tool
    async def tidy(ctx: RequestContext) -> str:
        assert ctx.caller_tasks is not None
        return (await ctx.caller_tasks.create_task(ttl=60)).id

    return server, jobs


async def test_handler_can_use_ctx_caller_tasks_in_any_thread_even_if_not_used_before() -> None:
    def plain(ctx: WorkerContext) -> str:
        assert ctx.caller_tasks is not None
        return f"{len(ctx.caller_tasks.list_tasks().tasks)} {ctx.caller_tasks.create_task().status}"

    async def read_in_thread(ctx: RequestContext) -> str:
        tasks = await trio.to_thread.run_sync(lambda: ctx.caller_tasks)
        assert tasks is not None
        return f"{len((await tasks.list_tasks()).tasks)} {(await tasks.create_task()).status}"

    async def on_asyncio(ctx: RequestContext) -> str:
        assert ctx.caller_tasks is not None
        return f"{len((await ctx.caller_tasks.list_tasks()).tasks)} {(await ctx.caller_tasks.create_task()).status}"

    for tool in (plain, read_in_thread, on_asyncio):
        server, _ = rendering()
        server.tool(name="tool", asyncio=tool is on_asyncio)(tool)
        async with open_memory(server) as client:
            assert (await client.call_tool("tool")).text == "0 working"


async def test_tk_04_handler_can_return_a_task_that_another_process_completes(autojump_clock: MockClock) -> None:
    server, jobs = rendering()
    async with knowing(server) as peer:
        task = await task_of(peer, "render", {"scene": "a"})
        state = await state_of(peer, task)
        assert (state["status"], state["statusMessage"]) == ("working", "queued")
        assert jobs == [task]
        assert await server.tasks.store_task_result(task, "completed", "rendered")
        state = await state_of(peer, task)
    assert (state["status"], state["result"]["content"][0]["text"]) == ("completed", "rendered")


async def test_tk_04_handler_can_return_a_task_in_the_legacy_and_the_modern_task_protocol(
    autojump_clock: MockClock,
) -> None:
    server, jobs = rendering()
    async with old(server) as peer:
        task = await core_task_of(peer, "render", scene="a")
        await wait_all_tasks_blocked()
        assert jobs == [task]
        message = peer.message("tasks/result", {"taskId": task})
        await peer.send(message)
        await server.tasks.store_task_result(task, "completed", CallToolResult([TextContent("rendered")]))
        result = (await peer.reply(message["id"]))["result"]
    assert result["content"] == [{"type": "text", "text": "rendered"}]


async def test_tk_04_exception_in_the_handler_fails_the_task_it_created(autojump_clock: MockClock) -> None:
    server, jobs = rendering()
    async with knowing(server) as peer:
        state = await state_of(peer, await task_of(peer, "render", {"scene": "bad"}))
    assert (state["status"], state["error"]["message"]) == ("failed", "no such scene")
    assert jobs == []


async def test_status_message_of_an_external_worker_is_not_overwritten_by_the_handler(
    autojump_clock: MockClock,
) -> None:
    server = Server("s")

    @server.tool(task="optional")
    async def render(ctx: RequestContext) -> TaskState:
        assert ctx.task is not None
        assert ctx.caller_tasks is not None
        ctx.task.status("asking around")
        task = await ctx.caller_tasks.create_task(message="queued")
        await ctx.caller_tasks.update_task_status(task.id, "working", "rendering")
        return task

    async with old(server) as peer:
        task = await core_task_of(peer, "render")
        await trio.sleep(5)
        assert (await about(peer, "tasks/get", task))["statusMessage"] == "rendering"
    async with knowing(server) as peer:
        task = await task_of(peer, "render")
        await trio.sleep(5)
        assert (await about(peer, "tasks/get", task))["statusMessage"] == "rendering"


async def test_task_that_another_process_will_complete_stays_working_after_its_server_stopped(
    autojump_clock: MockClock,
) -> None:
    store = MemoryTaskStore()
    server, _ = rendering(store=store)
    async with knowing(server) as peer:
        task = await task_of(peer, "render", {"scene": "a"})
    other, _ = rendering(store=store)
    assert await other.tasks.update_task_status(task, "working", "half done")
    async with knowing(server) as peer:
        assert (await state_of(peer, task))["statusMessage"] == "half done"
        await trio.sleep(100)
        assert (await state_of(peer, task))["status"] == "working", "no lease runs out"
        await other.tasks.store_task_result(task, "completed", "rendered")
        assert (await state_of(peer, task))["status"] == "completed"


async def test_task_fails_if_no_result_is_stored_before_its_ttl_expires(autojump_clock: MockClock) -> None:
    server, _ = rendering(ttl=60)
    async with knowing(server) as peer:
        task = await task_of(peer, "render", {"scene": "a"})
        await trio.sleep(59)
        assert (await state_of(peer, task))["status"] == "working"
        await trio.sleep(2)
        assert (await state_of(peer, task))["error"]["code"] == -31002
        assert not await server.tasks.store_task_result(task, "completed", "late")


async def test_storing_a_result_for_a_cancelled_task_returns_false_and_changes_nothing(
    autojump_clock: MockClock,
) -> None:
    server, _ = rendering()
    async with knowing(server) as peer:
        task = await task_of(peer, "render", {"scene": "a"})
        await about(peer, "tasks/cancel", task)
        assert (await server.tasks.get_task(task)).status == "cancelled"
        assert not await server.tasks.store_task_result(task, "completed", "late")
        assert (await state_of(peer, task))["status"] == "cancelled"


async def test_call_that_runs_without_a_task_can_create_a_task_and_return_its_id(autojump_clock: MockClock) -> None:
    server, _ = rendering()
    async with knowing(server) as peer:
        task = await peer.text("tidy")
        state = await state_of(peer, task)
        assert (state["status"], state["ttlMs"]) == ("working", 60_000)


async def test_create_task_fails_for_a_client_without_tasks(autojump_clock: MockClock) -> None:
    server = Server("s")

    @server.tool(task="optional")
    async def render(ctx: RequestContext) -> str | TaskState:
        assert ctx.caller_tasks is not None
        return await ctx.caller_tasks.create_task()

    async with knowing(server, {}) as peer:
        assert (await peer.error("render"))["code"] == -32021
    async with old(server) as peer:
        assert (await peer.error("render"))["code"] == -32601


async def test_handler_that_returns_the_task_of_another_call_causes_an_error(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server("s")

    @server.tool(task="required")
    async def render(ctx: RequestContext) -> TaskState:
        assert ctx.caller_tasks is not None
        await ctx.caller_tasks.create_task()
        return await ctx.caller_tasks.create_task()

    async with knowing(server) as peer:
        state = await state_of(peer, await task_of(peer, "render"))
    assert state["result"]["isError"]
    assert "returned the TaskState of another task" in caplog.text


async def test_tool_annotated_with_task_state_as_result_has_the_output_schema_of_the_task_result() -> None:
    server = Server("s")

    @server.tool(task="required")
    async def count() -> int | TaskState:
        return 1

    async with knowing(server) as peer:
        (tool,) = (await peer.request("tools/list"))["result"]["tools"]
    assert tool["outputSchema"]["properties"]["result"] == {"type": "integer"}


# The tasks of a caller


@asynccontextmanager
async def kept() -> AsyncGenerator[tuple[Server, MemoryPeer, str]]:
    """A server, a client, and a task that is done elsewhere."""
    server, _ = rendering()
    async with knowing(server) as peer:
        yield server, peer, await task_of(peer, "render", {"scene": "a"})


async def test_tk_05_server_can_read_the_state_of_a_task(autojump_clock: MockClock) -> None:
    async with kept() as (server, _, task):
        state = await server.tasks.get_task(task)
        assert (state.id, state.status, state.message, state.ttl) == (task, "working", "queued", 3600)
        with pytest.raises(CodedError) as caught:
            await server.tasks.get_task("unknown")
        assert caught.value.code == -32602


async def test_tk_06_storing_a_result_or_failure_ends_the_task(autojump_clock: MockClock) -> None:
    async with kept() as (server, peer, task):
        with pytest.raises(ValueError, match="must be 'completed' or 'failed'"):
            await server.tasks.store_task_result(task, "cancelled", "x")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="not an error"):
            await server.tasks.store_task_result(task, "completed", CodedError(1, "x"))
        assert await server.tasks.store_task_result(task, "failed", "out of memory")
        state = await state_of(peer, task)
        assert (state["status"], state["result"]["isError"]) == ("completed", True)
        assert (await server.tasks.get_task(task)).status == "failed"


async def test_tk_06_storing_an_error_fails_the_task(autojump_clock: MockClock) -> None:
    async with kept() as (server, peer, task):
        await server.tasks.store_task_result(task, "failed", CodedError(-32050, "broken", {"why": "age"}))
        state = await state_of(peer, task)
    assert (state["status"], state["statusMessage"]) == ("failed", "broken")
    assert state["error"] == {"code": -32050, "message": "broken", "data": {"why": "age"}}


async def test_tk_07_task_result_can_be_read_only_after_completion(autojump_clock: MockClock) -> None:
    async with kept() as (server, _, task):
        with pytest.raises(CodedError, match="working"):
            await server.tasks.get_task_result(task)
        await server.tasks.store_task_result(task, "completed", "rendered")
        assert (await server.tasks.get_task_result(task)).text == "rendered"
    async with kept() as (server, _, task):
        await server.tasks.store_task_result(task, "failed", CodedError(-32050, "broken"))
        with pytest.raises(CodedError, match="broken"):
            await server.tasks.get_task_result(task)


async def test_tk_08_first_outcome_of_a_task_is_final(autojump_clock: MockClock) -> None:
    async with kept() as (server, peer, task):
        assert await server.tasks.update_task_status(task, "working", "half done")
        assert (await state_of(peer, task))["statusMessage"] == "half done"
        with pytest.raises(ValueError, match="store_task_result"):
            await server.tasks.update_task_status(task, "completed")
        assert await server.tasks.update_task_status(task, "failed", "the farm burnt down")
        for status in ("working", "failed", "cancelled"):
            assert not await server.tasks.update_task_status(task, status, "late")
        state = await state_of(peer, task)
        assert (state["status"], state["error"]["message"]) == ("failed", "the farm burnt down")


async def test_tk_08_task_can_be_cancelled_with_a_status_message(autojump_clock: MockClock) -> None:
    async with kept() as (server, peer, task):
        assert await server.tasks.update_task_status(task, "cancelled", "no budget")
        state = await state_of(peer, task)
        assert (state["status"], state["statusMessage"]) == ("cancelled", "no budget")


async def test_storing_a_result_for_a_running_task_cancels_the_handler_of_the_task(autojump_clock: MockClock) -> None:
    server = Server("s")
    ended = trio.Event()

    @server.tool(task="required")
    async def work() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    async with knowing(server) as peer:
        task = await task_of(peer, "work")
        assert await server.tasks.store_task_result(task, "completed", "enough")
        await ended.wait()
        assert (await state_of(peer, task))["result"]["content"][0]["text"] == "enough"


async def test_tk_02_and_tk_09_handler_can_list_the_tasks_of_its_caller(autojump_clock: MockClock) -> None:
    server = Server("s")

    @server.tool(task="optional")
    async def mine(ctx: RequestContext) -> set[str]:
        assert ctx.caller_tasks is not None
        page = await ctx.caller_tasks.list_tasks()
        ids = {task.id for task in page.tasks}
        while page.next_cursor is not None:
            page = await ctx.caller_tasks.list_tasks(page.next_cursor)
            ids |= {task.id for task in page.tasks}
        return ids

    @server.tool
    async def peek(task: str, ctx: RequestContext) -> str:
        assert ctx.caller_tasks is not None
        return (await ctx.caller_tasks.get_task(task)).status

    @server.tool(task="required")
    async def work() -> None:
        await trio.sleep(1)

    async with connected_twice(server, principals=("ann", "bob")) as (ann, bob):
        for peer in (ann, bob):
            await peer.open(MODERN, KNOWS)
        tasks = [await task_of(ann, "work") for _ in range(120)]
        assert sorted((await ann.call("mine"))["structuredContent"]["result"]) == sorted(tasks)
        assert (await bob.call("mine"))["structuredContent"]["result"] == []
        assert await ann.text("peek", {"task": tasks[0]}) == "completed"
        assert (await bob.error("peek", {"task": tasks[0]}))["code"] == -32602


async def test_tk_09_invalid_task_list_cursor_gets_error_invalid_params(autojump_clock: MockClock) -> None:
    server = Server("s")

    @server.tool(task="optional")
    async def mine(ctx: RequestContext) -> None:
        assert ctx.caller_tasks is not None
        await ctx.caller_tasks.list_tasks("nowhere")

    async with knowing(server) as peer:
        assert (await peer.error("mine"))["code"] == -32602


def in_threads() -> Server:
    server = Server("s")

    @server.tool(task="required")
    def hand_on(ctx: WorkerContext) -> TaskState:
        assert ctx.caller_tasks is not None
        assert ctx.task is not None
        task = ctx.caller_tasks.create_task(message="queued")
        assert task.id == ctx.task.id
        assert ctx.task.requested_ttl is None
        assert ctx.caller_tasks.get_task(task.id) == task
        assert ctx.caller_tasks.list_tasks().tasks == [task]
        assert ctx.caller_tasks.update_task_status(task.id, "working", "half done")
        return task

    @server.tool
    def finish(task: str, ctx: WorkerContext) -> str:
        assert ctx.caller_tasks is not None
        assert ctx.task is None
        assert ctx.caller_tasks.store_task_result(task, "completed", "done")
        return ctx.caller_tasks.get_task_result(task).text

    return server


async def test_sync_handlers_can_use_the_task_context() -> None:
    async with knowing(in_threads()) as peer:
        task = await task_of(peer, "hand_on")
        assert (await about(peer, "tasks/get", task))["statusMessage"] in ("queued", "half done")
        assert await peer.text("finish", {"task": task}) == "done"
        assert (await about(peer, "tasks/get", task))["status"] == "completed"


# Servers that keep nothing


async def test_stateless_server_without_a_task_store_has_no_tasks(autojump_clock: MockClock) -> None:
    server, _ = rendering()

    @server.tool(task="optional")
    async def sleep(ctx: RequestContext) -> str:
        await trio.sleep(5)
        return f"{ctx.task} {ctx.caller_tasks}"

    async with knowing(server, stateless=True) as peer:
        declared = (await peer.request("server/discover"))["result"]["capabilities"]
        assert "extensions" not in declared
        assert await peer.text("sleep") == "None None"
        error = await peer.error("render", {"scene": "a"})
        assert error["code"] == -32603
        assert "tasks=TaskSettings(store=...)" in error["message"]
        assert (await peer.request("tasks/get", {"taskId": "t"}))["error"]["code"] == -32601
    async with connected(server, LATEST_LEGACY, stateless=True) as peer:
        assert (await peer.request("tasks/list"))["error"]["code"] == -32601


async def test_stateless_server_with_a_task_store_has_tasks(autojump_clock: MockClock) -> None:
    server, _ = rendering(store=MemoryTaskStore())
    async with knowing(server, stateless=True) as peer:
        declared = (await peer.request("server/discover"))["result"]["capabilities"]
        assert "extensions" in declared
        task = await task_of(peer, "render", {"scene": "a"})
        assert (await about(peer, "tasks/get", task))["status"] == "working"


async def test_task_of_a_stateless_server_can_elicit_and_clients_can_subscribe_to_its_state(
    autojump_clock: MockClock,
) -> None:
    server = Server("s", tasks=TaskSettings(store=MemoryTaskStore()))

    @server.tool(task="required")
    async def ask(ctx: RequestContext) -> str:
        assert ctx.task is not None
        await ctx.task.start()
        answer = await ctx.elicit("name?", NAME)
        return str(answer.content)

    async with knowing(server, stateless=True) as peer:
        task = await task_of(peer, "ask")
        state = await state_of(peer, task)
        message = peer.message("subscriptions/listen", {"notifications": {"taskIds": [task]}}, id="listen")
        await peer.send(message)
        assert (await peer.notification("notifications/tasks"))["status"] == "input_required"
        answers = {key: {"action": "accept", "content": {"name": "Ann"}} for key in state["inputRequests"]}
        await about(peer, "tasks/update", task, inputResponses=answers)
        while (state := await peer.notification("notifications/tasks"))["status"] != "completed":
            pass
    assert state["result"]["content"][0]["text"] == "{'name': 'Ann'}"


async def test_ctx_task_and_ctx_caller_tasks_are_none_on_a_server_without_task_tools(autojump_clock: MockClock) -> None:
    server = Server("s")

    @server.tool
    async def look(ctx: RequestContext) -> str:
        return f"{ctx.task} {ctx.caller_tasks}"

    async with knowing(server) as peer:
        assert await peer.text("look") == "None None"


async def test_task_can_be_read_after_its_tool_is_removed(autojump_clock: MockClock) -> None:
    server, _ = rendering()
    async with knowing(server) as peer:
        task = await task_of(peer, "render", {"scene": "a"})
        server.remove_tool("render")
        await server.tasks.store_task_result(task, "completed", "rendered")
        assert (await state_of(peer, task))["status"] == "completed"


async def test_stored_result_above_the_size_limit_fails_the_task(autojump_clock: MockClock) -> None:
    server, _ = rendering(max_record_bytes=1000)
    async with knowing(server) as peer:
        task = await task_of(peer, "render", {"scene": "a"})
        assert await server.tasks.store_task_result(task, "completed", "x" * 1000)
        state = await state_of(peer, task)
    assert (state["status"], state["error"]["code"]) == ("failed", -32603)


@pytest.mark.parametrize("ttl", [0, -1, math.nan])
async def test_tk_04_create_task_with_a_ttl_that_is_not_positive_raises(ttl: float, autojump_clock: MockClock) -> None:
    server = Server("s")
    seen: list[str] = []

    @server.tool(task="required")
    async def render(ctx: RequestContext) -> None:
        assert ctx.caller_tasks is not None
        with pytest.raises(ValueError, match="greater than 0") as caught:
            await ctx.caller_tasks.create_task(ttl=ttl)
        seen.append(str(caught.value))

    async with knowing(server) as peer:
        await task_of(peer, "render")
    assert len(seen) == 1


@pytest.mark.parametrize(("asked", "told"), [(5, 5000), (10**9, 20_000), (math.inf, 20_000)])
@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_tk_04_handler_can_set_the_ttl_of_its_task(
    asked: float, told: int, era: str, autojump_clock: MockClock
) -> None:
    server = Server("s", tasks=TaskSettings(max_ttl=20))

    @server.tool(task="required")
    async def render(ctx: RequestContext) -> TaskState:
        assert ctx.caller_tasks is not None
        task = await ctx.caller_tasks.create_task(ttl=asked, message="first")
        other = await ctx.caller_tasks.create_task(ttl=asked, message="second")
        assert (other.ttl, other.message) == (told / 1000, "second")
        return task

    if era == "modern":
        async with knowing(server) as peer:
            state = await state_of(peer, await task_of(peer, "render"))
            assert (state["ttlMs"], state["statusMessage"]) == (told, "first")
    else:
        async with old(server) as peer:
            task = await core_task_of(peer, "render")
            await wait_all_tasks_blocked()
            state = await about(peer, "tasks/get", task)
            assert (state["ttl"], state["statusMessage"]) == (told, "first")


async def test_tk_04_call_becomes_a_task_although_its_server_also_runs_in_another_thread_without_tasks() -> None:
    server, _ = rendering()
    runs, over = threading.Event(), threading.Event()
    said = list[str]()

    async def run_elsewhere() -> None:
        async with open_memory(server) as client:
            runs.set()
            await trio.to_thread.run_sync(over.wait, PATIENCE)
            said.append((await client.call_tool("tidy")).text)

    thread = threading.Thread(target=trio.run, args=(run_elsewhere,), daemon=True)
    thread.start()
    try:
        assert await trio.to_thread.run_sync(runs.wait, PATIENCE)
        with trio.fail_after(PATIENCE):
            async with open_memory(server) as client:  # the other run is the first that is asked
                with pytest.raises(CodedError, match="unknown task"):
                    await server.tasks.get_task("none")
                task = (await client.call_tool("tidy")).text
                assert (await server.tasks.get_task(task)).status == "working"
    finally:
        over.set()
        await trio.to_thread.run_sync(thread.join, PATIENCE)
    assert not thread.is_alive()
    assert len(said) == 1


async def test_values_of_context_variables_in_the_first_call_that_uses_tasks_are_freed_after_the_call() -> None:
    class Trace:
        pass

    current, left = ContextVar[Trace]("current"), list[weakref.ref[Trace]]()
    server, _ = rendering()

    @server.tool
    async def first(ctx: RequestContext) -> int:
        current.set(trace := Trace())
        left.append(weakref.ref(trace))
        assert ctx.caller_tasks is not None
        return len((await ctx.caller_tasks.list_tasks()).tasks)

    async with open_memory(server) as client:
        assert (await client.call_tool("first")).text == "0"
        await wait_all_tasks_blocked()
        gc.collect()
        assert left[0]() is None


async def test_storing_a_result_for_an_expired_task_raises_the_error_unknown_task(autojump_clock: MockClock) -> None:
    class Forgetful(MemoryTaskStore):
        async def change(self, record: TaskRecord, **_: Any) -> bool:
            self._records.pop(record.id)
            return False

    server, _ = rendering(store=Forgetful())
    async with knowing(server) as peer:
        task = await peer.text("tidy")
        with pytest.raises(CodedError, match="unknown task"):
            await server.tasks.store_task_result(task, "completed", "late")


async def test_task_context_that_a_test_creates_without_a_request_stores_and_sends_nothing() -> None:
    task = TaskContext()
    task.status("fine")
    await task.start()
    await task.checkpoint(5)
    assert (task.id, task.ttl, task.requested_ttl, task.has_started) == ("", None, None, False)
    assert (task.attempt, task.restored, task.restored_as(int)) == (1, None, None)
