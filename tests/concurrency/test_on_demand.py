from __future__ import annotations

from contextvars import ContextVar, copy_context

import trio
from trio.testing import wait_all_tasks_blocked

from trio_mcp.concurrency.wakeups import OnDemandTask

caller: ContextVar[str] = ContextVar("caller", default="nobody")


class Worker:
    def __init__(self) -> None:
        self.task = OnDemandTask()
        self.work: list[str] = []
        self.done: list[str] = []

    async def run(self) -> None:
        while True:
            while not self.work:
                await self.task.sleep()
            self.done.append(f"{self.work.pop(0)} for {caller.get()}")


async def test_on_demand_trio_task_is_not_started_before_there_is_work() -> None:
    worker = Worker()
    async with trio.open_nursery() as nursery:
        worker.task.start_in(nursery, copy_context())
        await wait_all_tasks_blocked()
        assert not nursery.child_tasks


async def test_on_demand_trio_task_waits_for_more_work_after_it_has_done_all_work() -> None:
    worker = Worker()
    async with trio.open_nursery() as nursery:
        worker.task.start_in(nursery, copy_context())
        for item in ("one", "two", "three"):
            worker.work.append(item)
            worker.task.wake(worker.run)
            if item != "one":
                await wait_all_tasks_blocked()
        assert worker.done == ["one for nobody", "two for nobody", "three for nobody"]
        assert len(nursery.child_tasks) == 1
        nursery.cancel_scope.cancel()


async def test_on_demand_trio_task_does_not_inherit_context_variables_of_the_task_that_wakes_it() -> None:
    worker = Worker()
    async with trio.open_nursery() as nursery:
        worker.task.start_in(nursery, copy_context())
        caller.set("a handler")
        worker.work.append("one")
        worker.task.wake(worker.run)
        await wait_all_tasks_blocked()
        assert worker.done == ["one for nobody"]
        nursery.cancel_scope.cancel()
