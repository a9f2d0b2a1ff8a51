"""When a call becomes a task, and what becomes of its questions, its cancel and its bounds."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from tests.interaction.memory_peer import MODERN, MemoryPeer, connected
from tests.server.extension import KNOWS, NAME, about, knowing, state_of, task_of
from tests.tasks.touchy_store import TouchyStore
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import InputRequired, Limits, RequestContext, Server, TaskSettings, WorkerContext
from trio_mcp.stores import MemoryTaskStore, TaskRecord
from trio_mcp.types import ElicitFormParams

ANN = {"action": "accept", "content": {"name": "Ann"}}


def answers(state: dict[str, Any]) -> dict[str, Any]:
    return dict.fromkeys(state["inputRequests"], ANN)


# Grace


async def test_call_of_an_optional_task_tool_that_ends_within_the_task_grace_returns_a_plain_result(
    autojump_clock: MockClock,
) -> None:
    store = MemoryTaskStore()
    server = Server("s", tasks=TaskSettings(grace=2, store=store))

    @server.tool(task="optional")
    async def sleep(seconds: float) -> str:
        await trio.sleep(seconds)
        return "slept"

    async with knowing(server) as peer:
        before = trio.current_time()
        assert await peer.text("sleep", {"seconds": 1.9}) == "slept"
        assert len(store) == 0
        await task_of(peer, "sleep", {"seconds": 1000})
        assert trio.current_time() - before == pytest.approx(3.9)


async def test_handler_can_turn_its_call_into_a_task_before_the_task_grace_ends(autojump_clock: MockClock) -> None:
    server = Server("s")

    @server.tool(task="optional")
    async def work(ctx: RequestContext) -> str:
        assert ctx.task is not None
        before = ctx.task.has_started
        await ctx.task.start()
        await ctx.task.start()
        return f"{before} {ctx.task.has_started}"

    async with knowing(server) as peer:
        before = trio.current_time()
        state = await state_of(peer, await task_of(peer, "work"))
        assert trio.current_time() == before
    assert state["result"]["content"][0]["text"] == "False True"


async def test_tool_with_task_required_creates_a_task_even_if_it_ends_immediately(autojump_clock: MockClock) -> None:
    server = Server("s")

    @server.tool(task="required")
    async def work() -> str:
        return "done"

    async with knowing(server) as peer:
        assert (await state_of(peer, await task_of(peer, "work")))["status"] == "completed"


async def test_tool_with_task_required_creates_a_task_even_for_invalid_arguments(autojump_clock: MockClock) -> None:
    server = Server("s")

    @server.tool(task="required")
    async def work(seconds: float) -> str:
        return "done"

    async with knowing(server) as peer:
        state = await state_of(peer, await task_of(peer, "work", {"seconds": "x"}))
    assert state["result"]["isError"]


# Questions before the start, and after


def asking_server(**options: Any) -> Server:
    server = Server("s")

    @server.tool(task="required", **options)
    async def ask(ctx: RequestContext) -> str:
        assert ctx.task is not None
        first = await ctx.elicit("before?", NAME)
        await ctx.task.start()
        second = await ctx.elicit("after?", NAME)
        return f"{first.content} {second.content}"

    return server


@pytest.mark.parametrize("replay", [False, True])
async def test_elicitation_is_an_input_required_result_before_the_task_starts_and_part_of_the_task_later(
    replay: bool, autojump_clock: MockClock
) -> None:
    async with knowing(asking_server(replay=replay)) as peer:
        first = peer.call_message("ask")
        await peer.send(first)
        asked = (await peer.reply(first["id"]))["result"]
        assert asked["resultType"] == "input_required"
        assert "taskId" not in asked
        created = (await peer.retry(first, asked, answers(asked)))["result"]
        assert created["resultType"] == "task"
        assert not created.keys() & {"requestState", "inputRequests"}
        state = await state_of(peer, created["taskId"])
        (question,) = state["inputRequests"].values()
        assert question["params"]["message"] == "after?"
        assert not state["inputRequests"].keys() & asked["inputRequests"].keys()
        await about(peer, "tasks/update", created["taskId"], inputResponses=answers(state))
        state = await state_of(peer, created["taskId"])
    assert state["result"]["content"][0]["text"] == "{'name': 'Ann'} {'name': 'Ann'}"


async def test_task_grace_restarts_with_each_retry_after_input_required(autojump_clock: MockClock) -> None:
    server = Server("s", tasks=TaskSettings(grace=10))

    @server.tool(task="optional")
    async def ask(ctx: RequestContext) -> str:
        await ctx.elicit("name?", NAME)
        await trio.sleep(9)
        return "done"

    async with knowing(server) as peer:
        first = peer.call_message("ask")
        await peer.send(first)
        asked = (await peer.reply(first["id"]))["result"]
        await trio.sleep(39.5)
        result = (await peer.retry(first, asked, answers(asked)))["result"]
    assert result["resultType"] == "complete"


async def test_task_started_during_an_open_elicitation_begins_after_the_retry(autojump_clock: MockClock) -> None:
    server = Server("s")
    started: list[float] = []

    @server.tool(task="optional")
    async def ask(ctx: RequestContext) -> str:
        assert ctx.task is not None

        async def start(task: Any = ctx.task) -> None:
            await trio.sleep(1)
            await task.start()
            started.append(trio.current_time())

        ctx.nursery.start_soon(start)
        await ctx.elicit("name?", NAME)
        await trio.sleep(100)
        return "done"

    async with knowing(server) as peer:
        first = peer.call_message("ask")
        await peer.send(first)
        asked = (await peer.reply(first["id"]))["result"]
        await trio.sleep(50)
        assert started == []
        back = trio.current_time()
        created = (await peer.retry(first, asked, answers(asked)))["result"]
        assert created["resultType"] == "task"
        assert started == [back]


def returning_server(*, starts: bool) -> Server:
    server = Server("s")

    @server.tool(task="required")
    async def ask(ctx: RequestContext) -> str | InputRequired:
        assert ctx.task is not None
        if starts:
            await ctx.task.start()
        if not ctx.is_resubmit:
            return InputRequired({"who": ElicitFormParams("name?", NAME)}, state="x")
        return f"{ctx.input_responses['who']['content']['name']} {ctx.request_state}"

    return server


async def test_input_required_returned_before_the_task_starts_becomes_the_result_of_the_call(
    autojump_clock: MockClock,
) -> None:
    async with knowing(returning_server(starts=False)) as peer:
        first = peer.call_message("ask")
        await peer.send(first)
        asked = (await peer.reply(first["id"]))["result"]
        assert (asked["resultType"], list(asked["inputRequests"])) == ("input_required", ["who"])
        created = (await peer.retry(first, asked, {"who": ANN}))["result"]
        state = await state_of(peer, created["taskId"])
    assert state["result"]["content"][0]["text"] == "Ann x"


async def test_input_required_returned_after_the_task_starts_becomes_an_input_request_of_the_task(
    autojump_clock: MockClock,
) -> None:
    async with knowing(returning_server(starts=True)) as peer:
        task = await task_of(peer, "ask")
        state = await state_of(peer, task)
        await about(peer, "tasks/update", task, inputResponses=answers(state))
        state = await state_of(peer, task)
    assert state["result"]["content"][0]["text"] == "Ann x"


async def test_elicitation_before_the_task_starts_fails_the_call_if_the_client_lacks_the_capability(
    autojump_clock: MockClock,
) -> None:
    async with knowing(asking_server(), {"extensions": KNOWS["extensions"]}) as peer:
        error = await peer.error("ask")
    assert (error["code"], list(error["data"]["requiredCapabilities"])) == (-32021, ["elicitation"])


# The end of the call before its answer


class SlowStore(MemoryTaskStore):
    """A store that takes its time to keep a new record."""

    def __init__(self) -> None:
        super().__init__()
        self.creating = trio.Event()
        self.go_on = trio.Event()

    async def create(self, new: TaskRecord, **options: Any) -> TaskRecord:
        record = await super().create(new, **options)
        self.creating.set()
        with trio.CancelScope(shield=True):
            await self.go_on.wait()
        return record


def watched(store: MemoryTaskStore, ended: trio.Event) -> Server:
    server = Server("s", tasks=TaskSettings(store=store))

    @server.tool(task="required")
    async def work() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    return server


async def test_call_is_answered_with_a_task_only_after_the_task_is_stored(autojump_clock: MockClock) -> None:
    store, ended = SlowStore(), trio.Event()
    async with knowing(watched(store, ended)) as peer:
        message = peer.call_message("work")
        await peer.send(message)
        await store.creating.wait()
        assert await peer.everything(5) == []
        store.go_on.set()
        task = (await peer.reply(message["id"]))["result"]["taskId"]
        assert (await about(peer, "tasks/get", task))["status"] == "working"


async def test_call_cancelled_while_its_task_is_stored_leaves_no_running_task(autojump_clock: MockClock) -> None:
    store, ended = SlowStore(), trio.Event()
    async with knowing(watched(store, ended)) as peer:
        message = peer.call_message("work")
        await peer.send(message)
        await store.creating.wait()
        await peer.cancel(message["id"], "changed my mind")
        store.go_on.set()
        await ended.wait()
        assert await peer.everything(5) == []
    assert len(store) == 0


async def test_connection_closed_while_a_task_is_stored_leaves_no_running_task(autojump_clock: MockClock) -> None:
    store, ended = SlowStore(), trio.Event()
    async with connected(watched(store, ended), MODERN, KNOWS) as peer:
        await peer.send(peer.call_message("work"))
        await store.creating.wait()
        await peer.close()
        await wait_all_tasks_blocked()
        store.go_on.set()
    await ended.wait()
    assert len(store) == 0


async def test_connection_closed_after_a_task_is_returned_does_not_cancel_the_task(autojump_clock: MockClock) -> None:
    store, ended = MemoryTaskStore(), trio.Event()
    async with connected(watched(store, ended), MODERN, KNOWS) as peer:
        await task_of(peer, "work")
        await peer.close()
        await wait_all_tasks_blocked()
        assert not ended.is_set()


# Bounds


async def full(peer: MemoryPeer) -> None:
    await task_of(peer, "work", {"seconds": 50})


def bounded(**settings: Any) -> Server:
    server = Server("s", tasks=TaskSettings(**settings))

    @server.tool(task="required")
    async def work(seconds: float) -> str:
        await trio.sleep(seconds)
        return "done"

    @server.tool(task="optional")
    async def sleep(ctx: RequestContext) -> str:
        await trio.sleep(10)
        assert ctx.task is not None
        return f"{ctx.task.has_started}"

    return server


@pytest.mark.parametrize("bound", ["max_running", "max_running_of_caller", "max_kept", "max_kept_of_caller"])
async def test_call_beyond_the_task_limit_runs_without_a_task_or_is_rejected(
    bound: str, autojump_clock: MockClock
) -> None:
    async with knowing(bounded(**{bound: 1})) as peer:
        await full(peer)
        assert await peer.text("sleep") == "False"
        assert (await peer.error("work", {"seconds": 5}))["code"] == -31000


async def test_finished_task_does_not_count_towards_max_running(autojump_clock: MockClock) -> None:
    async with knowing(bounded(max_running=1)) as peer:
        await full(peer)
        await trio.sleep(60)
        await full(peer)


async def test_started_task_does_not_count_as_a_request_in_flight(autojump_clock: MockClock) -> None:
    server = bounded()
    server.limits = Limits(max_in_flight=1, max_queued=0)
    async with knowing(server) as peer:
        await full(peer)
        await full(peer)


# Other options of a tool


async def test_tool_timeout_applies_to_calls_that_run_as_a_task(autojump_clock: MockClock) -> None:
    server = Server("s")

    @server.tool(task="optional", timeout=5)
    async def work() -> None:
        await trio.sleep(10)

    async with knowing(server) as peer:
        task = await task_of(peer, "work")
        await trio.sleep(5)
        state = await state_of(peer, task)
    assert (state["status"], state["result"]["isError"]) == ("completed", True)
    assert "limit of 5 seconds" in state["result"]["content"][0]["text"]


async def test_tool_max_concurrency_limits_calls_that_run_as_tasks(autojump_clock: MockClock) -> None:
    server = Server("s")
    running: list[int] = []

    @server.tool(task="optional", max_concurrency=1)
    async def work(number: int) -> None:
        running.append(number)
        await trio.sleep(10)

    async with knowing(server) as peer:
        tasks = [await task_of(peer, "work", {"number": number}) for number in range(2)]
        assert running == [0]
        await trio.sleep(30)
        assert running == [0, 1]
        assert {(await about(peer, "tasks/get", task))["status"] for task in tasks} == {"completed"}


async def test_sync_function_can_run_as_a_task() -> None:
    server = Server("s", tasks=TaskSettings(grace=0))

    @server.tool(task="required")
    def work(ctx: WorkerContext) -> str:
        assert ctx.task is not None
        ctx.task.start()
        ctx.task.status("asking")
        ctx.task.checkpoint({"row": 1})
        name = (ctx.elicit("name?", NAME).content or {})["name"]
        return f"{name} {ctx.task.has_started} {ctx.task.attempt} {ctx.task.ttl:g} {ctx.task.restored}"

    async with knowing(server) as peer:
        task = await task_of(peer, "work")
        while "inputRequests" not in (state := await about(peer, "tasks/get", task)):
            await wait_all_tasks_blocked(0.01)
        await about(peer, "tasks/update", task, inputResponses=answers(state))
        while (state := await about(peer, "tasks/get", task))["status"] == "working":
            await wait_all_tasks_blocked(0.01)
    assert state["result"]["content"][0]["text"] == "Ann True 1 3600 None"


class FirstFails(TouchyStore):
    """A slow store that cannot keep the first record that it is given."""

    async def create(self, *args: Any, **options: Any) -> TaskRecord:
        self.fails = set() if "create" in self.calls else {"create"}
        return await super().create(*args, **options)


@pytest.mark.parametrize("first", ["the handler", "the time limit"])
@pytest.mark.parametrize("task", ["optional", "required"])
async def test_task_that_failed_to_start_is_not_started_again(autojump_clock: MockClock, first: str, task: Any) -> None:
    """A second attempt would make a task of a call that has failed, or is about to."""
    store = FirstFails(slowness=3)
    server = Server("s", tasks=TaskSettings(grace=1, store=store))

    @server.tool(task=task)
    async def work(ctx: RequestContext) -> None:
        assert ctx.task is not None
        await trio.sleep(0 if first == "the handler" else 2)
        await ctx.task.start()

    async with knowing(server) as peer:
        error = await peer.error("work")
        assert (error["code"], "task store is unavailable" in error["message"]) == (-31000, True)
        await trio.sleep(10)
    assert store.calls.count("create") == 1
