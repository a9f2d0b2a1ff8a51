"""One claim starts one run, in whatever order trio runs its tasks, and however slow the store and the process are.

Each seed shuffles the scheduler, draws how long each call of the store takes, and when the event loop stands still.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Literal, TypeVar

import attrs
import pytest
import trio
import trio._core._run as scheduler
from tests.tasks.callers import calling, settings
from tests.tasks.touchy_store import TouchyStore
from trio.testing import MockClock

from trio_mcp import RequestContext, Server
from trio_mcp.stores.memory import MemoryTaskStore
from trio_mcp.stores.task_store import StoredTask, TaskRecord, TaskStore

T = TypeVar("T")

LEASE = 3.0
TASKS = 40
WORK = 8.0
"""Seconds that each run takes: longer than two leases."""


class BusyStore(TouchyStore):
    """The way of one busy process to ``store``: one call after another reads, and one writes, as with a file. Each call
    takes ``mean`` seconds as a rule, of which a part passes before the change and a part after."""

    def __init__(self, store: TaskStore, chance: random.Random, mean: float) -> None:
        super().__init__(store)
        self._chance = chance
        self._mean = mean
        self._threads = {"r": trio.Lock(), "w": trio.Lock()}
        self._turn = trio.Lock()

    async def _run(self, thread: str, call: Callable[[], Awaitable[T]]) -> T:
        async with self._threads[thread]:
            with trio.CancelScope(shield=True):
                await self._pause()
                result = await call()
                await self._pause()
        with trio.CancelScope(shield=True):
            if self._chance.random() < 0.5:  # answers do not come in the order of the changes
                await self._pause()
        return result

    async def _pause(self) -> None:
        await trio.sleep(self._chance.expovariate(2 / self._mean))

    async def create(self, new: TaskRecord, **options: Any) -> TaskRecord:
        async with self._turn:
            return await self._run("w", lambda: self.store.create(new, **options))

    async def read(self, scope: str | None, task_id: str) -> StoredTask | None:
        return await self._run("r", lambda: self.store.read(scope, task_id))

    async def marks(self, task_ids: Collection[str]) -> Mapping[str, bytes]:
        return await self._run("r", lambda: self.store.marks(task_ids))

    async def change(self, record: TaskRecord, **options: Any) -> bool:
        async with self._turn:
            return await self._run("w", lambda: self.store.change(record, **options))

    async def claim(self, holder: str, **options: Any) -> Sequence[TaskRecord]:
        async with self._turn:
            return await self._run("w", lambda: self.store.claim(holder, **options))

    async def renew(self, held: Mapping[str, str], *, lease_ms: int) -> Collection[str]:
        return await self._run("w", lambda: self.store.renew(held, lease_ms=lease_ms))


@attrs.define
class Life:
    """The runs of all tasks, and what must not happen."""

    seed: int
    clock: MockClock = attrs.Factory(lambda: MockClock(autojump_threshold=0))
    store: MemoryTaskStore = attrs.Factory(MemoryTaskStore)
    runs: dict[str, list[tuple[str, int]]] = attrs.Factory(lambda: defaultdict(list))
    """Process and claim of each run, by its task."""
    running: Counter[str] = attrs.Factory(Counter)
    causes: Counter[str] = attrs.Factory(Counter)
    faults: list[str] = attrs.Factory(list)
    chance: random.Random = attrs.Factory(lambda self: random.Random(self.seed), takes_self=True)

    def server(self, process: str, store: TaskStore, on_restart: Literal["fail", "again"]) -> Server:
        options = {"lease": LEASE, "look_interval": 1.0, "ttl": 10_000.0, "max_running_of_caller": 9999}
        server = Server("busy", tasks=settings(store, **options))

        @server.tool(task="required", on_restart=on_restart)
        async def work(ctx: RequestContext) -> str:
            assert ctx.task is not None
            task: Any = ctx.task
            await task.start()
            task_id, run = task.id, (process, task._task.epoch)
            if run in self.runs[task_id]:
                self.faults.append(f"{task_id} ran twice under one claim")
            self.runs[task_id].append(run)
            self.running[task_id] += 1
            if self.running[task_id] > 1:
                self.faults.append(f"{task_id} ran twice at the same time")
            try:
                await trio.sleep(WORK)
            except trio.Cancelled:
                assert ctx.cancellation is not None
                self.causes[ctx.cancellation.text] += 1
                raise
            finally:
                self.running[task_id] -= 1
            return "done"

        return server

    def run(self, life: Callable[[], Awaitable[None]]) -> None:
        scheduler._r.seed(self.seed)
        trio.run(life, clock=self.clock)

    async def leave_tasks(self) -> None:
        """Start tasks in a process that dies."""
        way = TouchyStore(self.store)
        async with calling(self.server("dead", way, "again")) as caller:
            for _ in range(TASKS):
                await caller.start("work")
            way.die()
        self.runs.clear()
        self.causes.clear()

    async def stand_still(self, longest: float = 3 * LEASE) -> None:
        """Let the event loop stand still from time to time."""
        while True:
            await trio.sleep(self.chance.uniform(0, 3.0))
            # Where it stands still for nearly a lease, a run is given up in time, and begins anew.
            self.clock.jump(self.chance.choice([self.chance.uniform(0, 0.5), self.chance.uniform(LEASE, longest)]))

    async def all_ended(self) -> None:
        while self.store._open:  # noqa: ASYNC110 - of several processes
            await trio.sleep(0.5)

    def check(self) -> None:
        assert self.faults == []
        assert self.causes == {}
        assert {task_id: len(runs) for task_id, runs in self.runs.items()} == dict.fromkeys(self.runs, 1)
        assert len(self.runs) == TASKS


SEEDS = range(12)


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_task_of_a_dead_process_that_several_busy_processes_claim_runs_once(processes: int) -> None:
    for seed in SEEDS:
        life = Life(seed)

        async def live(life: Life = life) -> None:
            await life.leave_tasks()
            async with AsyncExitStack() as stack:
                for each in range(processes):
                    way = BusyStore(life.store, life.chance, life.chance.choice([0.005, 0.03, 0.1]))
                    await stack.enter_async_context(calling(life.server(f"process {each}", way, "again")))
                await life.all_ended()

        life.run(live)
        life.check()


@pytest.mark.parametrize("is_taken_over", [False, True])
def test_process_that_uses_a_store_alone_runs_each_task_once_even_if_its_event_loop_blocks(is_taken_over: bool) -> None:
    for seed in SEEDS:
        life = Life(seed)

        async def live(life: Life = life) -> None:
            if is_taken_over:
                await life.leave_tasks()
            way = BusyStore(life.store, life.chance, 0.005)
            async with calling(life.server("alone", way, "again")) as caller, trio.open_nursery() as nursery:
                nursery.start_soon(life.stand_still)
                if not is_taken_over:
                    async with trio.open_nursery() as calls:
                        for _ in range(TASKS):
                            calls.start_soon(caller.start, "work")
                await life.all_ended()
                nursery.cancel_scope.cancel()

        life.run(live)
        life.check()
