"""A store that fails, is full, or does not say what it has kept: no end is lost, and nobody goes on in vain (TK-13)."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from tests.tasks.callers import LEASE, Caller, calling, settings
from tests.tasks.touchy_store import TouchyStore, record_in
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import CancelCause, CodedError, PeerError, RequestContext, Server
from trio_mcp.client.opening import open_client
from trio_mcp.server.servable import connection_to
from trio_mcp.stores import StoreDown, Uncertain
from trio_mcp.stores.memory import MemoryTaskStore
from trio_mcp.stores.task_store import TaskPhase, TaskStore
from trio_mcp.transports.lines import memory_transport_pair


class Effects:
    """What a tool has done, and how it was cancelled."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.causes: list[CancelCause] = []
        self.raised: list[BaseException] = []

    def server(self, store: TaskStore, *, shields: bool = False, **options: Any) -> Server:
        """A server with a tool that makes steps, each noted after its checkpoint was kept."""
        server = Server("effects", tasks=settings(store, **options))

        @server.tool(task="required", on_restart="resume")
        async def step(count: int, pause: float, ctx: RequestContext) -> str:
            assert ctx.task is not None
            await ctx.task.start()
            try:
                for number in range(ctx.task.restored or 0, count):
                    with trio.CancelScope(shield=shields):
                        await trio.sleep(pause)
                        await ctx.task.checkpoint(number + 1)
                        self.steps.append(number)
            except BaseException as error:
                self.raised.append(error)
                raise
            finally:
                if ctx.cancellation is not None:
                    self.causes.append(ctx.cancellation.cause)
            return "done"

        @server.tool(task="required")
        async def sleep(seconds: float, ctx: RequestContext) -> str:
            assert ctx.task is not None
            await ctx.task.start()
            try:
                await trio.sleep(seconds)
            finally:
                if ctx.cancellation is not None:
                    self.causes.append(ctx.cancellation.cause)
            return "slept"

        return server


# Ends


async def test_task_outcome_is_stored_after_a_store_failure_of_any_length(
    autojump_clock: MockClock,
) -> None:
    store = TouchyStore()
    async with calling(Effects().server(store)) as caller:
        task_id = await caller.start("sleep", seconds=5)
        store.die()
        await trio.sleep(300)
        store.fails.clear()
        await trio.sleep(1)
        assert await caller.text(task_id) == "slept"


async def test_task_outcome_is_discarded_if_another_process_took_over_the_task(autojump_clock: MockClock) -> None:
    store, others = TouchyStore(), Effects()
    async with calling(Effects().server(store)) as caller, calling(others.server(store.store)) as other:
        task_id = await caller.start("step", count=1, pause=5)
        store.die()
        await trio.sleep(3 * LEASE)
        assert await other.text(task_id) == "done"
        record = await record_in(store.store, task_id)
        store.fails.clear()
        await trio.sleep(5)
        assert await record_in(store.store, task_id) == record


async def test_server_that_shuts_down_stops_retrying_to_store_a_task_outcome_after_a_limit(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    store = TouchyStore()
    begun = 0.0
    async with calling(Effects().server(store)) as caller:
        task_id = await caller.start("sleep", seconds=5)
        store.die()
        await trio.sleep(50)
        begun = trio.current_time()
    assert trio.current_time() - begun < 10
    assert f"the outcome of task {task_id} was not stored in time" in caplog.text


# Writes that are refused


@pytest.mark.parametrize("shields", [False, True])
async def test_task_handler_does_not_continue_after_a_checkpoint_if_another_process_took_over_the_task(
    autojump_clock: MockClock, shields: bool
) -> None:
    store, effects, others = TouchyStore(), Effects(), Effects()
    async with calling(effects.server(store, shields=shields)) as caller, calling(others.server(store.store)):
        task_id = await caller.start("step", count=3, pause=LEASE)
        await trio.sleep(1)
        record = await record_in(store, task_id)
        store.store._records[task_id] = _taken(record)  # type: ignore[attr-defined]
        await trio.sleep(2 * LEASE)
        assert effects.steps == []
        if shields:
            (error,) = effects.raised
            assert isinstance(error, CodedError)
            assert error.code == -31002
        else:
            assert effects.causes == [CancelCause.LEASE]


def _taken(record: Any) -> Any:
    """The record, as another process has claimed it."""
    import attrs

    changes = {"holder": "another:1", "epoch": record.epoch + 1, "version": record.version + 1, "mark": b"another:1"}
    return attrs.evolve(record, leased_until=record.leased_until + 1_000_000, **changes)


async def test_task_handler_does_not_continue_after_a_checkpoint_if_the_task_was_cancelled(
    autojump_clock: MockClock,
) -> None:
    class Deaf(TouchyStore):
        def watch(self) -> Any:
            return MemoryTaskStore().watch()

    store, effects = MemoryTaskStore(), Effects()
    async with calling(effects.server(Deaf(store))) as caller, calling(Effects().server(store)) as other:
        task_id = await caller.start("step", count=3, pause=1)
        await trio.sleep(0.5)
        await other.cancel(task_id)
        await trio.sleep(10)
        assert (effects.steps, effects.causes) == ([], [CancelCause.TASK])


# A full disk


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_running_task_can_be_cancelled_while_the_store_rejects_writes(
    autojump_clock: MockClock, era: Any
) -> None:
    store, effects = TouchyStore(), Effects()
    server = effects.server(store)
    async with server._running() as running, trio.open_nursery() as nursery:
        ours, theirs = memory_transport_pair()
        nursery.start_soon(connection_to(running, theirs).run)
        async with open_client(ours, era=era) as client:
            task = await client.start_task("sleep", {"seconds": 1000})
            store.fill_up()
            with pytest.raises(PeerError, match="task store is unavailable") as refused:
                await task.cancel()
            assert refused.value.code == -31000
            await wait_all_tasks_blocked()
            assert effects.causes == [CancelCause.TASK]
            assert (await task.get()).status == "working"
            store.fails.clear()
            await trio.sleep(1)
            assert (await task.get()).status == "cancelled"
        nursery.cancel_scope.cancel()


# Answers that are lost


async def test_task_whose_creation_has_an_uncertain_outcome_is_deleted(autojump_clock: MockClock) -> None:
    store = TouchyStore()
    async with calling(Effects().server(store)) as caller:
        store.loses["create"] = Uncertain("no answer")
        store.fails.add("void")
        with pytest.raises(PeerError, match="task store is unavailable"):
            await caller.start("sleep", seconds=5)
        assert len(await store.page("", None, 9)) == 1
        await trio.sleep(5)
        store.fails.clear()
        store.loses.clear()
        await trio.sleep(1)
        assert list(await store.page("", None, 9)) == []


async def test_task_change_with_an_uncertain_outcome_is_checked_in_the_store_and_not_repeated(
    autojump_clock: MockClock,
) -> None:
    store, effects = TouchyStore(), Effects()
    async with calling(effects.server(store)) as caller:
        task_id = await caller.start("step", count=3, pause=1)
        store.loses["change"] = Uncertain("no answer")
        await trio.sleep(3.5)
        store.loses.clear()
        await caller.final(task_id)
        assert await caller.text(task_id) == "done"
        assert effects.steps == [0, 1, 2]
        record = await record_in(store, task_id)
        assert record.version == 4  # three checkpoints and the end, each written once


async def test_task_change_whose_outcome_stays_unknown_raises_an_uncertain_outcome_error(
    autojump_clock: MockClock,
) -> None:
    store = TouchyStore()
    server = Effects().server(store)

    class Silent(TouchyStore):
        async def change(self, *_: Any, **__: Any) -> bool:
            raise Uncertain("no answer")

    async with calling(server) as caller:
        task_id = await caller.start("sleep", seconds=1000)
        silent = Server("silent", tasks=settings(Silent(store.store)))
        with pytest.raises(Uncertain):
            await silent.tasks.update_task_status(task_id, "cancelled")
        assert (await record_in(store, task_id)).phase is TaskPhase.WORKING


# Words


async def test_task_store_outage_is_reported_to_clients_as_an_error_and_logged_once(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    store = TouchyStore(failure=StoreDown("no disk"))
    async with calling(Effects().server(store)) as caller:
        task_id = await caller.start("step", count=1000, pause=0.5)
        await caller.start("sleep", seconds=1)
        store.die()
        with caplog.at_level(logging.WARNING, "trio_mcp"):
            for _ in range(5):
                for ask in (caller.get, caller.cancel, _start):
                    with pytest.raises(PeerError, match="task store is unavailable") as refused:
                        await (ask(caller) if ask is _start else ask(task_id))
                    assert refused.value.code == -31000
                await trio.sleep(3)
            store.fails.clear()
            await trio.sleep(60)
    told = [line.getMessage() for line in caplog.records]
    assert told == [
        "the task store cannot be read; waiting calls are retried: no disk",
        "the task store works again",
    ]
    assert not any(line.exc_info for line in caplog.records)


async def _start(caller: Caller) -> None:
    await caller.start("sleep", seconds=1)


@pytest.mark.parametrize(
    "failure", [StoreDown("away"), Uncertain("no answer"), OSError("no disk"), RuntimeError("defect")]
)
async def test_task_store_outage_causes_at_most_one_traceback_however_many_tasks_wait(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, failure: Exception
) -> None:
    """Of the code that waits there is nothing to learn. A failure of an unknown kind has one traceback for all."""
    caplog.set_level(logging.WARNING)
    store = TouchyStore(failure=failure)
    async with calling(Effects().server(store)) as caller:
        tasks = [await caller.start("sleep", seconds=5 * number) for number in range(1, 30)]
        for _ in range(3):
            await caller.start("step", count=1, pause=1000)  # given up when its lease is over
        store.die()
        await trio.sleep(200)
        store.fails.clear()
        await trio.sleep(LEASE)
        assert all([(await caller.get(task))["status"] != "working" for task in tasks])
    assert sum(bool(record.exc_info or record.exc_text) for record in caplog.records) <= 1
    lines = [record.getMessage() for record in caplog.records]
    assert not [line for line in lines if "\n" in line]
    assert len(lines) < 80, lines
    assert [line for line in lines if line.endswith("its result is not stored yet; it no longer counts as in flight")]
