"""The host of tasks: bounds, failures of tasks and of the store, cancels and times."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from tests.tasks.callers import Caller, calling, settings
from tests.tasks.touchy_store import TouchyStore, record_in
from trio.testing import MockClock

from trio_mcp import CancelCause, ConnectionLost, PeerError, RequestContext, Server, TaskSettings
from trio_mcp.client.opening import open_client
from trio_mcp.runtime.limits import Limits
from trio_mcp.runtime.peer import Peer, PrincipalId
from trio_mcp.server.servable import connection_to, end_tasks
from trio_mcp.stores.task_store import TaskStore
from trio_mcp.transports.lines import memory_transport_pair

NAME = {"type": "object", "properties": {"name": {"type": "string"}}}


class Seen:
    """What a tool saw of its end."""

    def __init__(self) -> None:
        self.causes: list[tuple[CancelCause, str | None, float]] = []
        self.children = 0

    async def child(self) -> None:
        self.children += 1
        try:
            await trio.sleep_forever()
        finally:
            self.children -= 1


def server_of(store: TaskStore | None = None, seen: Seen | None = None, **options: Any) -> Server:
    """A server with a tool for each of these tests."""
    limits = options.pop("limits", Limits())
    server = Server("host", tasks=settings(store, **options), limits=limits)
    notes = seen or Seen()

    @server.tool(task="required")
    async def wait(ctx: RequestContext) -> str:
        assert ctx.task is not None
        await ctx.task.start()
        ctx.nursery.start_soon(notes.child)
        try:
            await trio.sleep_forever()
        finally:
            if ctx.cancellation is not None:
                notes.causes.append((ctx.cancellation.cause, ctx.cancellation.reason, trio.current_time()))
        return ""

    @server.tool(task="required")
    async def sleep(seconds: float, ctx: RequestContext) -> str:
        assert ctx.task is not None
        await ctx.task.start()
        await trio.sleep(seconds)
        return "done"

    @server.tool(task="optional")
    async def grow(seconds: float) -> str:
        await trio.sleep(seconds)
        return "done"

    @server.tool(task="required")
    async def shield(ctx: RequestContext) -> str:
        assert ctx.task is not None
        await ctx.task.start()
        with trio.CancelScope(shield=True):
            await trio.sleep(8)
        return "done all the same"

    @server.tool(task="required")
    async def fail(ctx: RequestContext) -> str:
        assert ctx.task is not None
        await ctx.task.start()
        await trio.sleep(1)
        raise SystemExit("a task ends the process")

    @server.tool(task="required")
    async def tell(count: int, ctx: RequestContext) -> str:
        assert ctx.task is not None
        await ctx.task.start()
        for number in range(count):
            ctx.task.status(f"step {number}")
            await trio.sleep(0.01)
        return "told"

    @server.tool(task="required")
    async def ask(patience: float, ctx: RequestContext) -> str:
        assert ctx.task is not None
        await ctx.task.start()
        with trio.move_on_after(patience):
            answer = await ctx.elicit("Who?", NAME)
            return f"hello {answer.content}"
        await trio.sleep(10)
        return "nobody"

    @server.tool(task="required")
    async def ask_and_leave(ctx: RequestContext) -> str:
        assert ctx.task is not None
        await ctx.task.start()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ctx.elicit, "Who?", NAME)
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
        return "left"

    @server.tool(task="required", on_restart="resume")
    async def check(ctx: RequestContext) -> str:
        assert ctx.task is not None
        await ctx.task.checkpoint({"before": True})
        await ctx.task.start()
        await trio.sleep(1)
        await ctx.task.checkpoint({"after": True})
        return "kept"

    return server


# Failures


async def test_mcp_task_that_fails_does_not_affect_other_mcp_tasks(autojump_clock: MockClock) -> None:
    async with calling(server_of()) as caller:
        other = await caller.start("sleep", seconds=5)
        failed = await caller.final(await caller.start("fail"))
        assert failed["result"]["isError"]
        await caller.final(other)
        assert await caller.text(other) == "done"


@pytest.mark.parametrize("tool", ["sleep", "grow"])
async def test_call_fails_only_if_its_tool_requires_a_task_and_the_store_cannot_create_the_task(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, tool: str
) -> None:
    store = TouchyStore()
    async with calling(server_of(store, grace=1.0)) as caller:
        store.fails.add("create")
        if tool == "sleep":
            with pytest.raises(PeerError, match="task store is unavailable") as refused:
                await caller.call("sleep", seconds=5)
            assert refused.value.code == -31000
        else:  # it need not be a task
            answer = await caller.call("grow", seconds=5)
            assert answer["content"][0]["text"] == "done"
        store.fails.clear()
        assert await caller.start("sleep", seconds=5)
    assert [record.message for record in caplog.records] == [
        "the task store cannot be written; waiting calls are retried: the store fails",
        "the task store works again",
    ]


async def test_task_outcome_is_stored_after_a_temporary_store_failure(autojump_clock: MockClock) -> None:
    store = TouchyStore()
    async with calling(server_of(store)) as caller:
        task_id = await caller.start("sleep", seconds=5)
        store.die()
        await trio.sleep(9)
        store.fails.clear()
        await trio.sleep(1)
        assert await caller.text(task_id) == "done"


@pytest.mark.parametrize("failure", [RuntimeError("a defect"), OSError("no disk")])
@pytest.mark.parametrize("method", ["read", "change"])
async def test_server_does_not_crash_if_the_task_store_fails(
    autojump_clock: MockClock, failure: Exception, method: str
) -> None:
    store = TouchyStore(failure=failure)
    async with calling(server_of(store)) as caller:
        await caller.start("tell", count=100)
        await caller.start("ask", patience=100)
        await caller.start("check")
        store.fails.add(method)
        await trio.sleep(100)
        store.fails.clear()
        task_id = await caller.start("sleep", seconds=1)
        await trio.sleep(2)
        assert await caller.text(task_id) == "done"


async def test_elicitation_of_a_task_is_sent_when_the_store_is_available_again(autojump_clock: MockClock) -> None:
    store = TouchyStore()
    async with calling(server_of(store)) as caller:
        task_id = await caller.start("ask", patience=1000)
        store.fails.add("change")
        await trio.sleep(10)
        assert (await caller.get(task_id))["status"] == "working"
        store.fails.clear()
        await trio.sleep(1)
        assert (await caller.get(task_id))["status"] == "input_required"


# Bounds


async def test_number_of_running_tasks_of_one_connection_is_limited(autojump_clock: MockClock) -> None:
    server = server_of(max_running=5, max_running_of_caller=2)
    async with server._running() as running, trio.open_nursery() as nursery:
        callers: list[Caller] = []
        for _ in range(2):
            ours, theirs = memory_transport_pair()
            nursery.start_soon(connection_to(running, theirs).run)
            callers.append(Caller(await _opened(nursery, ours)))
        for caller in callers:
            for _ in range(2):
                await caller.start("wait")
            with pytest.raises(PeerError, match="too many tasks") as refused:
                await caller.call("wait")
            assert refused.value.code == -31000
        nursery.cancel_scope.cancel()


async def _opened(nursery: trio.Nursery, channel: Any) -> Any:
    async def open_it(*, task_status: trio.TaskStatus[Any]) -> None:
        async with open_client(channel, era="modern") as client:
            task_status.started(client)
            await trio.sleep_forever()

    return await nursery.start(open_it)


async def test_tasks_started_concurrently_do_not_exceed_the_task_limit(autojump_clock: MockClock) -> None:
    store, refused = TouchyStore(slowness=1.0), list[str]()
    async with calling(server_of(store, max_running=3)) as caller:

        async def one() -> None:
            try:
                await caller.start("wait")
            except PeerError as error:
                refused.append(error.message)

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(one)
    assert len(refused) == 7


async def test_task_that_has_ended_no_longer_counts_towards_the_task_limit(autojump_clock: MockClock) -> None:
    async with calling(server_of(max_running=1)) as caller:
        for _ in range(5):
            task_id = await caller.start("wait")
            await caller.cancel(task_id)
            await trio.sleep(0.01)


async def test_number_of_stored_tasks_is_limited_until_tasks_expire(autojump_clock: MockClock) -> None:
    async with calling(server_of(max_kept=3, ttl=20.0, retention=1.0)) as caller:
        for _ in range(3):
            await caller.start("sleep", seconds=0)
        with pytest.raises(PeerError, match="too many tasks are stored"):
            await caller.call("sleep", seconds=0)
        await trio.sleep(21.5)
        for _ in range(3):
            await caller.start("sleep", seconds=0)


async def test_call_with_arguments_too_long_for_a_task_record_is_refused(autojump_clock: MockClock) -> None:
    async with calling(server_of(max_record_bytes=1000)) as caller:
        with pytest.raises(PeerError, match="arguments of a task may have at most"):
            await caller.call("sleep", {"filler": "x" * 1000}, seconds=0)


async def test_elicitation_answers_too_long_for_a_task_record_get_error_invalid_params(
    autojump_clock: MockClock,
) -> None:
    async with calling(server_of(max_record_bytes=1000)) as caller:
        task_id = await caller.start("ask", patience=100)
        await trio.sleep(1)
        with pytest.raises(PeerError, match="at most 1000 bytes") as refused:
            await caller.answer(task_id, {"name": "x" * 1000})
        assert refused.value.code == -32602
        assert (await caller.get(task_id))["status"] == "input_required"


async def test_task_fails_if_its_outcome_is_too_long_for_the_task_record(autojump_clock: MockClock) -> None:
    server = server_of(max_record_bytes=1000)

    @server.tool(task="required")
    async def much() -> str:
        return "x" * 1000

    async with calling(server) as caller:
        task = await caller.get(await caller.start("much"))
    assert (task["status"], task["error"]["code"]) == ("failed", -32603)


async def test_record_of_an_ended_task_keeps_only_the_outcome(autojump_clock: MockClock) -> None:
    store = TouchyStore()
    async with calling(server_of(store)) as caller:
        done, cancelled = await caller.start("sleep", seconds=1), await caller.start("wait")
        await caller.cancel(cancelled)
        await trio.sleep(2)
        for task_id in (done, cancelled):
            record = await record_in(store, task_id)
            assert record is not None
            assert (record.params, record.capabilities, record.answers) == (b"{}", b"{}", {})


async def test_task_records_are_deleted_after_their_ttl_and_retention_time(autojump_clock: MockClock) -> None:
    store = TouchyStore()
    async with calling(server_of(store, ttl=20.0, retention=5.0)) as caller:
        await caller.start("sleep", seconds=0)
        await trio.sleep(24)
        assert len(await store.page("", None, 10)) == 1
        await trio.sleep(12)
        assert await store.page("", None, 10) == []


async def test_task_record_is_readable_for_a_minute_after_its_ttl_by_default(autojump_clock: MockClock) -> None:
    server = Server("default", tasks=TaskSettings(store=(store := TouchyStore()), ttl=20.0))

    @server.tool(task="required")
    async def work() -> None:
        pass

    async with calling(server) as caller:
        task_id = await caller.start("work")
        record = await record_in(store, task_id)
        assert record is not None
        assert (record.expires_at, record.kept_until) == (record.created_at + 20_000, record.created_at + 80_000)


# Cancels and times


async def test_cancelled_task_cancels_its_child_trio_tasks(autojump_clock: MockClock) -> None:
    seen = Seen()
    async with calling(server_of(seen=seen)) as caller:
        task_id = await caller.start("wait")
        await trio.sleep(1)
        assert seen.children == 1
        await caller.cancel(task_id)
        assert (await caller.get(task_id))["status"] == "cancelled"
        await trio.sleep(0.01)
        assert seen.children == 0
    assert [cause for cause, _, _ in seen.causes] == [CancelCause.TASK]


async def test_cancelled_task_stays_cancelled_even_if_its_handler_returns(autojump_clock: MockClock) -> None:
    async with calling(server_of()) as caller:
        task_id = await caller.start("shield")
        await caller.cancel(task_id)
        await trio.sleep(10)
        assert (await caller.get(task_id))["status"] == "cancelled"


async def test_task_that_continues_to_run_after_its_cancel_is_logged_and_counted(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "trio_mcp")
    server = server_of()
    async with calling(server) as caller:
        task_id = await caller.start("shield")
        await caller.cancel(task_id)
        await trio.sleep(6)
        assert server.statistics().overrun == 1
    assert any("still runs 5 s after its cancel" in record.getMessage() for record in caplog.records)


async def test_task_is_cancelled_when_its_ttl_expires_and_deleted_after_the_retention_time(
    autojump_clock: MockClock,
) -> None:
    seen = Seen()
    async with calling(server_of(seen=seen, ttl=20.0, retention=5.0)) as caller:
        begun = trio.current_time()
        task_id = await caller.start("wait")
        await trio.sleep(20.5)
        assert [(cause, round(at - begun)) for cause, _, at in seen.causes] == [(CancelCause.DEADLINE, 20)]
        task = await caller.get(task_id)
        assert (task["status"], task["error"]["code"]) == ("failed", -31002)
        await trio.sleep(5)
        with pytest.raises(PeerError, match="unknown task"):
            await caller.get(task_id)


async def test_deadline_of_the_caller_applies_to_the_task(autojump_clock: MockClock) -> None:
    seen = Seen()
    async with calling(server_of(seen=seen)) as caller:
        begun = trio.current_time()
        answer = await caller.call("wait", {"trio-mcp/remainingMs": 9000})
        task = await caller.final(answer["taskId"])
    assert [(cause, round(at - begun)) for cause, _, at in seen.causes] == [(CancelCause.DEADLINE, 10)]  # and a grace
    assert "the caller's deadline passed" in task["error"]["message"]


async def test_task_that_blocks_the_event_loop_past_its_deadline_fails(
    autojump_clock: MockClock,
) -> None:
    server = Server("deadlines", tasks=settings())

    @server.tool(task="required")
    async def block(ctx: RequestContext) -> str:
        assert ctx.task is not None
        await ctx.task.start()
        autojump_clock.jump(20)
        return "too late"

    async with calling(server) as caller:
        for _ in range(20):  # trio runs tasks that are ready in any order
            answer = await caller.call("block", {"trio-mcp/remainingMs": 9000})
            task = await caller.final(answer["taskId"])
            assert "the caller's deadline passed" in task["error"]["message"]


async def test_modern_task_continues_after_its_connection_closes(autojump_clock: MockClock) -> None:
    store = TouchyStore()
    server = server_of(store)
    async with server._running() as running:
        async with trio.open_nursery() as nursery:
            ours, theirs = memory_transport_pair()
            nursery.start_soon(connection_to(running, theirs).run)
            async with open_client(ours, era="modern") as client:
                task_id = await Caller(client).start("sleep", seconds=5)
        assert len(running.tasks.host()) == 1
        await trio.sleep(6)
        record = await record_in(store, task_id)
    assert record is not None
    assert record.outcome is not None


async def test_legacy_task_continues_after_its_connection_closes(autojump_clock: MockClock) -> None:
    store = TouchyStore()
    server = server_of(store)
    async with server._running() as running:
        async with trio.open_nursery() as nursery:
            ours, theirs = memory_transport_pair()
            nursery.start_soon(connection_to(running, theirs).run)
            async with open_client(ours, era="legacy") as client:
                params = {"name": "sleep", "arguments": {"seconds": 5}, "task": {}}
                created = await client._connection.outbound.request("tools/call", params, client.revision)
        await trio.sleep(6)
        record = await record_in(store, created["task"]["taskId"])
    assert record is not None
    assert record.outcome is not None


async def test_first_task_requested_during_shutdown_is_refused(autojump_clock: MockClock) -> None:
    server = server_of()
    async with server._running() as running, trio.open_nursery() as nursery:
        ours, theirs = memory_transport_pair()
        nursery.start_soon(connection_to(running, theirs).run)
        async with open_client(ours, era="legacy") as client:
            end_tasks(running, hurry=False)
            params = {"name": "sleep", "arguments": {"seconds": 5}, "task": {}}
            with pytest.raises(PeerError, match="Shutting down: new tasks are refused"):
                await client._connection.outbound.request("tools/call", params, client.revision)


async def test_task_support_that_is_initialized_during_shutdown_does_not_delay_the_shutdown(
    autojump_clock: MockClock,
) -> None:
    with trio.fail_after(1):
        async with server_of()._running() as running:
            assert len(running.tasks.host()) == 0


@pytest.mark.parametrize("after", [0.5, 1.5])
async def test_client_that_disconnects_before_its_task_starts_leaves_no_task_record(
    autojump_clock: MockClock, after: float
) -> None:
    store, seen = TouchyStore(slowness=1.0), Seen()
    server = server_of(store, seen, grace=1.0)
    async with server._running() as running, trio.open_nursery() as nursery:
        ours, theirs = memory_transport_pair()
        connection = connection_to(running, theirs)
        nursery.start_soon(connection.run)
        async with open_client(ours, era="modern") as client:
            nursery.start_soon(_call_in_vain, client)
            await trio.sleep(after)
            connection.connection.lose(ConnectionLost("the client is gone"))
            await trio.sleep(5)
            assert len(running.tasks.host()) == 0
            assert running.tasks.host().live.room == 10_000
    records = await store.page("", None, 10)
    assert list(records) == []


async def _call_in_vain(client: Any) -> None:
    with pytest.raises(ConnectionLost):
        await Caller(client).call("grow", seconds=100)


# Words and questions


async def test_status_messages_of_a_task_are_stored_at_most_ten_times_a_second_but_always_the_latest(
    autojump_clock: MockClock,
) -> None:
    store = TouchyStore()
    async with calling(server_of(store)) as caller:
        task_id = await caller.start("tell", count=100)
        store.calls.clear()
        await trio.sleep(2)
        assert store.calls.count("change") <= 12
        assert (await caller.get(task_id))["statusMessage"] == "step 99"


async def test_elicitation_is_withdrawn_if_the_task_handler_stops_awaiting_its_answer(
    autojump_clock: MockClock,
) -> None:
    async with calling(server_of()) as caller:
        task_id = await caller.start("ask", patience=1)
        await trio.sleep(0.5)
        assert (await caller.get(task_id))["status"] == "input_required"
        await trio.sleep(1)
        task = await caller.get(task_id)
        assert task["status"] == "working"
        assert "inputRequests" not in task


async def test_elicitation_that_the_task_handler_abandons_while_the_store_saves_it_is_withdrawn(
    autojump_clock: MockClock,
) -> None:
    store = TouchyStore(slowness=0.7)
    async with calling(server_of(store)) as caller:
        task_id = await caller.start("ask", patience=1)
        await trio.sleep(6)
        store.slowness = 0.0
        assert (await caller.get(task_id))["status"] == "working"


async def test_elicitation_pending_when_the_task_ends_is_withdrawn(autojump_clock: MockClock) -> None:
    async with calling(server_of()) as caller:
        task_id = await caller.start("ask_and_leave")
        task = await caller.final(task_id)
        assert task["status"] == "completed"
        assert "inputRequests" not in task


async def test_checkpoint_saved_before_the_task_starts_is_stored_with_the_task(autojump_clock: MockClock) -> None:
    store = TouchyStore()
    async with calling(server_of(store)) as caller:
        task_id = await caller.start("check")
        record = await record_in(store, task_id)
        assert record is not None
        assert record.checkpoint == b'{"before":true}'
        await caller.final(task_id)
        assert await caller.text(task_id) == "kept"


# Starts, cancelled anywhere


@pytest.mark.parametrize("eighths", range(24))
async def test_task_start_that_is_cancelled_creates_either_a_complete_task_or_no_task(
    autojump_clock: MockClock, eighths: int
) -> None:
    """The store takes a second for each step, and the wait for the start is left after so many eighths of a second."""
    store = TouchyStore(slowness=1.0)
    server = Server("starts", tasks=settings(store))
    started: list[bool] = []

    @server.tool(task="optional")
    async def work(ctx: RequestContext) -> str:
        assert ctx.task is not None
        task = ctx.task

        async def start() -> None:
            with trio.move_on_after(eighths / 8):
                await task.start()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(start)
            nursery.start_soon(start)
        started.append(task.has_started)
        return "done"

    async with calling(server) as caller:
        answer = await caller.call("work")
        is_task = answer["resultType"] == "task"
        await trio.sleep(10)
        assert started == [is_task]
        records = await store.page("", None, 10)
        assert [str(record.phase) for record in records] == (["ended"] if is_task else [])


ADA = PrincipalId("https://login.example.com", "ada")


async def test_task_record_contains_the_principal_of_the_task(autojump_clock: MockClock) -> None:
    store = TouchyStore()
    server = server_of(store)
    async with server._running() as running, trio.open_nursery() as nursery:
        ours, theirs = memory_transport_pair()
        nursery.start_soon(connection_to(running, theirs, Peer(principal=ADA)).run)
        async with open_client(ours, era="modern") as client:
            task_id = await Caller(client).start("sleep", seconds=1)
            assert await store.read(ADA.to_json(), task_id) is not None
            assert await store.read(PrincipalId(ADA.issuer, "bob").to_json(), task_id) is None
        nursery.cancel_scope.cancel()
