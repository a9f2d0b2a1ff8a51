"""Leases: who runs a task, and what becomes of the one who has lost it (TK-12)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

import attrs
import pytest
import trio
from tests.tasks.callers import LEASE, Caller, calling, settings
from tests.tasks.touchy_store import ALL, TouchyStore, record_in
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import CancelCause, RequestContext, Server
from trio_mcp.stores.memory import MemoryTaskStore
from trio_mcp.stores.task_store import StoreDown, StoredTask, TaskRecord, TaskStore, UnreadableRecord

NAME = {"type": "object", "properties": {"name": {"type": "string"}}}


class DeafStore(TouchyStore):
    """A way to the store on which no hint comes."""

    def watch(self) -> Any:
        return MemoryTaskStore().watch()


class LateStore(DeafStore):
    """A way to the store of a process that sleeps: no renewal gets through, and the process does not notice."""

    sleeps = True

    async def renew(self, held: Mapping[str, str], *, lease_ms: int) -> Collection[str]:
        return () if self.sleeps else await super().renew(held, lease_ms=lease_ms)

    async def marks(self, task_ids: Collection[str]) -> Mapping[str, bytes]:
        if self.sleeps:
            raise StoreDown("the process sleeps")
        return await super().marks(task_ids)

    async def claim(self, holder: str, *, lease_ms: int, limit: int, names: Collection[str]) -> Sequence[TaskRecord]:
        return () if self.sleeps else await super().claim(holder, lease_ms=lease_ms, limit=limit, names=names)


class SpoiledStore(DeafStore):
    """A way to the store in which a stranger has written over the records of some tasks."""

    def __init__(self, store: TaskStore) -> None:
        super().__init__(store)
        self.spoiled: set[str] = set()

    async def read(self, scope: str | None, task_id: str) -> StoredTask | None:
        if task_id in self.spoiled:
            raise UnreadableRecord("a record cannot be read")
        return await super().read(scope, task_id)

    async def marks(self, task_ids: Collection[str]) -> Mapping[str, bytes]:
        spoiled = dict.fromkeys(self.spoiled.intersection(task_ids), b"another")
        return {**await super().marks(task_ids), **spoiled}

    async def renew(self, held: Mapping[str, str], *, lease_ms: int) -> Collection[str]:
        return {*await super().renew(held, lease_ms=lease_ms), *self.spoiled.intersection(held)}


class Work:
    """What the runs of a tool come to."""

    def __init__(self) -> None:
        self.causes: list[tuple[CancelCause, float]] = []
        self.ends: list[int] = []
        self.children = 0

    def server(self, store: TaskStore, *, shields: bool = False, **options: Any) -> Server:
        """A server with a tool that runs for 100 seconds, also after a cancel if it ``shields`` itself."""
        server = Server("leasing", tasks=settings(store, **options))

        @server.tool(task="required", on_restart="again")
        async def work(ctx: RequestContext) -> str:
            assert ctx.task is not None
            await ctx.task.start()
            over = trio.Event()
            ctx.nursery.start_soon(self.child, over)
            try:
                with trio.CancelScope(shield=shields):
                    await trio.sleep(100)
            except trio.Cancelled:
                assert ctx.cancellation is not None
                self.causes.append((ctx.cancellation.cause, trio.current_time()))
                raise
            over.set()
            self.ends.append(ctx.task.attempt)
            return f"run {ctx.task.attempt}"

        @server.tool(task="required", on_restart="again")
        async def ask(ctx: RequestContext) -> str:
            assert ctx.task is not None
            await ctx.task.start()
            answer = await ctx.elicit("Who?", NAME)
            return f"{answer.content} at {trio.current_time():g}"

        return server

    async def child(self, over: trio.Event) -> None:
        """A task that the tool starts."""
        self.children += 1
        try:
            await over.wait()
        finally:
            self.children -= 1


async def test_lease_of_a_task_is_renewed_while_the_task_runs(autojump_clock: MockClock) -> None:
    store, work = MemoryTaskStore(), Work()
    async with calling(work.server(store)) as caller, calling(work.server(store)):
        task_id = await caller.start("work")
        await caller.final(task_id)
        assert await caller.text(task_id) == "run 1"
    assert work.causes == []


async def test_all_task_leases_of_a_process_are_renewed_in_one_call(autojump_clock: MockClock) -> None:
    store = TouchyStore()
    async with calling(Work().server(store, look_interval=1000.0)) as caller:
        for _ in range(20):
            await caller.start("work")
        store.calls.clear()
        await trio.sleep(LEASE + 1)
        assert store.calls.count("renew") == 3
        assert store.calls.count("claim") == 3


async def test_process_that_cannot_renew_the_lease_of_its_task_cancels_the_task_before_the_lease_ends(
    autojump_clock: MockClock,
) -> None:
    store, work, others = TouchyStore(), Work(), Work()
    async with calling(work.server(store)) as caller, calling(others.server(store.store)) as other:
        task_id = await caller.start("work")
        begun = trio.current_time()
        store.die()
        await trio.sleep(1.5 * LEASE)
        assert [cause for cause, _ in work.causes] == [CancelCause.LEASE]
        assert work.causes[0][1] < begun + LEASE
        assert work.children == 0
        assert others.children == 1
        assert (await other.final(task_id))["status"] == "completed"
        assert await other.text(task_id) == "run 2"


async def test_tasks_are_cancelled_when_their_lease_ends_even_if_the_store_hangs(autojump_clock: MockClock) -> None:
    store, work = TouchyStore(), Work()
    async with calling(work.server(store)) as caller:
        await caller.start("work")
        begun = trio.current_time()
        store.slowness = 1000.0
        await trio.sleep(LEASE)
        assert [cause for cause, _ in work.causes] == [CancelCause.LEASE]
        assert work.causes[0][1] < begun + LEASE


async def test_tasks_continue_during_a_short_store_failure(autojump_clock: MockClock) -> None:
    store, work = TouchyStore(), Work()
    async with calling(work.server(store)) as caller:
        task_id = await caller.start("work")
        await trio.sleep(9)
        store.die()
        await trio.sleep(15)
        store.fails.clear()
        await caller.final(task_id)
        assert await caller.text(task_id) == "run 1"


async def test_process_suspended_beyond_the_lease_of_its_task_cancels_the_task_when_it_resumes(
    autojump_clock: MockClock,
) -> None:
    store, work, others = MemoryTaskStore(), Work(), Work()
    way = LateStore(store)
    async with calling(work.server(way)) as caller, calling(others.server(store)) as other:
        task_id = await caller.start("work")
        await trio.sleep(2 * LEASE)
        assert (work.children, others.children) == (1, 1)  # it sleeps still
        way.sleeps = False
        await trio.sleep(LEASE / 3)
        assert [cause for cause, _ in work.causes] == [CancelCause.LEASE]
        assert work.children == 0
        await other.final(task_id)
        assert await other.text(task_id) == "run 2"


@pytest.mark.parametrize("shields", [False, True])
async def test_task_outcome_is_discarded_if_a_process_stores_it_after_losing_the_task_lease(
    autojump_clock: MockClock, shields: bool
) -> None:
    store, work, others = MemoryTaskStore(), Work(), Work()
    async with (
        calling(work.server(LateStore(store), shields=shields)) as caller,
        calling(others.server(store)) as other,
    ):
        task_id = await caller.start("work")
        await trio.sleep(110)
        assert work.ends == [1]
        assert (await other.get(task_id))["status"] == "working"
        await other.final(task_id)
        assert await other.text(task_id) == "run 2"


async def test_server_statistics_count_tasks_taken_over_from_other_processes_and_refused_writes(
    autojump_clock: MockClock,
) -> None:
    store = MemoryTaskStore()
    first, second = Work().server(LateStore(store), shields=True), Work().server(store)
    async with calling(first) as caller, calling(second) as other:
        task_id = await caller.start("work")
        await other.final(task_id)
        assert (first.statistics().takeovers, first.statistics().refused_writes) == (0, 1)
        assert (second.statistics().takeovers, second.statistics().refused_writes) == (1, 0)


async def test_task_that_is_cancelled_through_another_process_stops_at_the_next_poll_of_the_store(
    autojump_clock: MockClock,
) -> None:
    store, work = MemoryTaskStore(), Work()
    async with calling(work.server(DeafStore(store))) as caller, calling(work.server(store)) as other:
        task_id = await caller.start("work")
        await other.cancel(task_id)
        assert work.causes == []
        await trio.sleep(5.1)
        assert [cause for cause, _ in work.causes] == [CancelCause.TASK]


async def test_elicitation_answer_sent_to_another_process_reaches_the_task_at_the_next_poll_of_the_store(
    autojump_clock: MockClock,
) -> None:
    store, work = MemoryTaskStore(), Work()
    async with calling(work.server(DeafStore(store))) as caller, calling(work.server(store)) as other:
        task_id = await caller.start("ask")
        await trio.sleep(1)
        await other.answer(task_id, {"name": "Ada"})
        await trio.sleep(5.1)
        assert (await other.text(task_id)).startswith("{'name': 'Ada'}")


async def test_unreadable_task_record_does_not_block_a_cancel_sent_to_another_process(
    autojump_clock: MockClock,
) -> None:
    store, work = MemoryTaskStore(), Work()
    spoiled = SpoiledStore(store)
    async with calling(work.server(spoiled)) as caller, calling(work.server(store)) as other:
        spoiled.spoiled.add(await caller.start("work"))
        task_id = await caller.start("work")
        await other.cancel(task_id)
        assert work.causes == []
        await trio.sleep(5.1)
        assert [cause for cause, _ in work.causes] == [CancelCause.TASK]


async def test_process_with_an_unreadable_task_record_still_takes_over_tasks_of_dead_processes(
    autojump_clock: MockClock,
) -> None:
    store, work, others = MemoryTaskStore(), Work(), Work()
    spoiled, dead = SpoiledStore(store), TouchyStore(store)
    server = work.server(spoiled)

    @server.tool(task="required", on_restart="fail")
    async def once(ctx: RequestContext) -> None:
        assert ctx.task is not None
        await ctx.task.start()
        await trio.sleep_forever()

    async with calling(server) as caller, calling(others.server(dead)) as other:
        spoiled.spoiled.add(await caller.start("once"))
        await other.start("work")
        dead.die()
        await trio.sleep(2.5 * LEASE)
        assert (work.children, others.children) == (1, 0)


async def test_cancel_sent_to_another_process_is_applied_immediately_if_the_store_sends_notifications(
    autojump_clock: MockClock,
) -> None:
    store, work = MemoryTaskStore(), Work()
    async with calling(work.server(store)) as caller, calling(work.server(store)) as other:
        task_id = await caller.start("work")
        await other.cancel(task_id)
        await trio.sleep(0.01)
        assert [cause for cause, _ in work.causes] == [CancelCause.TASK]


async def test_other_processes_never_take_over_the_task_of_a_live_process(autojump_clock: MockClock) -> None:
    store, work = MemoryTaskStore(), Work()
    async with calling(work.server(store)) as caller, calling(work.server(store)), calling(work.server(store)):
        for _ in range(10):
            await caller.start("work")
        await trio.sleep(99)
        assert work.children == 10
        await trio.sleep(2)
        assert work.ends == [1] * 10
    assert work.causes == []


async def test_process_never_runs_the_same_task_twice_concurrently(autojump_clock: MockClock) -> None:
    """The store comes back to a process that has given a task up, whose handler still cleans up."""
    store, work = TouchyStore(), Work()
    async with calling(work.server(store, shields=True)) as caller:
        task_id = await caller.start("work")
        store.die()
        await trio.sleep(35)
        store.fails.clear()
        await trio.sleep(60)
        assert work.children == 0  # the cancel has ended the child, and nobody has begun anew
        record = await record_in(store, task_id)
        assert record is not None
        assert record.attempt == 1
        await trio.sleep(20)
        assert work.ends == [1]
        assert work.children == 1
        await caller.final(task_id)
        assert await caller.text(task_id) == "run 1"  # a lease that was given up without a restart is no attempt


# Many tasks, and a process that is late


class CountingStore(TouchyStore):
    """A way to the store that says which calls were made, of what size."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.renewed: list[tuple[float, int]] = []

    async def renew(self, held: Mapping[str, str], *, lease_ms: int) -> Collection[str]:
        self.renewed.append((trio.current_time(), len(held)))
        return await super().renew(held, lease_ms=lease_ms)


async def start(caller: Caller, count: int) -> None:
    for _ in range(count):
        await caller.start("ask")


async def test_one_store_call_per_interval_renews_the_leases_of_any_number_of_tasks(
    autojump_clock: MockClock,
) -> None:
    store, many = CountingStore(slowness=0.001), 300
    options = {"lease": 5.0, "look_interval": 2.0, "max_running_of_caller": many, "ttl": 10_000.0}
    async with calling(Work().server(store, **options)) as caller:
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(start, caller, many // 50)
        assert store.calls.count("read") <= many, "what was written here is not read again"
        await trio.sleep(20)
        store.calls.clear()
        store.renewed.clear()
        begun = trio.current_time()
        await trio.sleep(100)
        counts = Counter(store.calls)
        moments = [begun, *(moment for moment, _ in store.renewed)]
        assert {held for _, held in store.renewed} == {many}
        assert max(after - before for before, after in pairwise(moments)) < 5 / 3 + 0.1
        assert counts["renew"] <= 100 / (5 / 3) + 2
        assert counts["marks"] <= 100 / 2 + 1
        assert counts.keys() <= {"renew", "marks", "claim", "expire"}, "no call is for one task"
        assert counts["claim"] <= counts["renew"]


async def test_lease_renewal_does_not_wait_for_other_store_calls(autojump_clock: MockClock) -> None:
    """Reads, writes and claims hang; leases are renewed."""
    store, others = TouchyStore(), Work()
    hanging = frozenset(ALL - {"renew"})

    class Hanging(TouchyStore):
        hangs = False

        async def _touch(self, method: str) -> None:
            if self.hangs and method in hanging:
                await trio.sleep_forever()

    way, work = Hanging(store), Work()
    async with calling(work.server(way)) as caller, calling(others.server(store)):
        for _ in range(3):
            await caller.start("work")
        way.hangs = True
        await trio.sleep(95)
        assert (work.causes, work.children, others.children) == ([], 3, 0)
        way.hangs = False


@pytest.mark.parametrize("asks", [False, True])
async def test_process_that_uses_a_store_alone_keeps_its_task_after_a_suspension_beyond_the_lease(
    mock_clock: MockClock, asks: bool
) -> None:
    store, work = MemoryTaskStore(), Work()
    async with calling(work.server(store)) as caller:
        task_id = await caller.start("ask" if asks else "work")
        for seconds in (60, 29, 31, 1000 - 900):
            await wait_all_tasks_blocked()
            mock_clock.jump(seconds)
        await wait_all_tasks_blocked()
        record = await record_in(store, task_id)
        assert (record.attempt, record.epoch) == (1, 0)
        assert work.causes == []


@pytest.mark.parametrize("step", [60, 3600, -3600])
async def test_process_that_uses_a_store_alone_keeps_its_task_when_the_store_clock_changes(
    autojump_clock: MockClock, step: int
) -> None:
    store, work = MemoryTaskStore(), Work()
    async with calling(work.server(store, ttl=1e6, max_ttl=1e6)) as caller:
        task_id = await caller.start("work")
        clock = store._now
        await trio.sleep(3)
        store._now = lambda: clock() + 1000 * step  # type: ignore[assignment]
        await caller.final(task_id)
        assert await caller.text(task_id) == "run 1"
    assert work.causes == []


async def let_leases_run_out(store: MemoryTaskStore) -> None:
    for record in await store.page("", None, 9):
        store._records[record.id] = attrs.evolve(record, leased_until=1)
    store._leases.clear()


def lose_one_renewal(store: Any) -> None:
    """Let the next renewal do nothing, unnoticed."""

    async def lose(held: Mapping[str, str], *, lease_ms: int) -> Collection[str]:
        del store.renew
        return ()

    store.renew = lose


async def test_process_that_claims_its_own_task_after_the_lease_expired_continues_the_run(
    autojump_clock: MockClock,
) -> None:
    """Its lease was over, and renewals were late."""
    store, work = MemoryTaskStore(), Work()
    async with calling(work.server(store)) as caller:
        task_id = await caller.start("work")
        await let_leases_run_out(store)
        lose_one_renewal(store)
        await caller.final(task_id)
        assert await caller.text(task_id) == "run 1"
        assert (await record_in(store, task_id)).epoch == 1
    assert work.causes == []


@pytest.mark.parametrize("already", [0, 99.7])
@pytest.mark.parametrize("is_lost", [False, True])
async def test_process_that_gets_a_late_reply_to_the_claim_of_its_own_task_continues_the_run(
    autojump_clock: MockClock, is_lost: bool, already: float
) -> None:
    """The record is read, or the outcome written, before the store has answered the claim, whose answer may be lost."""

    class SlowToAnswer(DeafStore):
        claims = 0

        async def claim(
            self, holder: str, *, lease_ms: int, limit: int, names: Collection[str]
        ) -> Sequence[TaskRecord]:
            claimed = await super().claim(holder, lease_ms=lease_ms, limit=limit, names=names)
            if claimed:
                self.claims += 1
                await trio.sleep(2)
                if is_lost:
                    raise StoreDown("no answer")
            return claimed

    memory, work = MemoryTaskStore(), Work()
    store = SlowToAnswer(memory)
    async with calling(work.server(store, look_interval=0.5)) as caller:
        task_id = await caller.start("work")
        await trio.sleep(already)
        await let_leases_run_out(memory)
        lose_one_renewal(store)
        await caller.final(task_id)
        assert await caller.text(task_id) == "run 1"
        assert store.claims == 1
    assert work.causes == []


class StoppedInClaim(TouchyStore):
    """A store whose process is stopped, for two leases, in the middle of a claim, once the first lease is over."""

    def __init__(self, clock: MockClock) -> None:
        super().__init__()
        self._clock = clock
        self._is_stopped = False

    async def claim(self, holder: str, *, lease_ms: int, limit: int, names: Collection[str]) -> Sequence[TaskRecord]:
        if not self._is_stopped and trio.current_time() > LEASE:
            self._is_stopped = True
            self._clock.jump(2 * LEASE)
        claimed = await super().claim(holder, lease_ms=lease_ms, limit=limit, names=names)
        if claimed:
            await self.pass_claim()
        return claimed

    async def pass_claim(self) -> None:
        """Let time pass before the answer to a claim comes."""
        await trio.sleep(LEASE / 2)


async def test_process_suspended_during_the_claim_of_its_own_task_continues_the_task_after_resuming(
    autojump_clock: MockClock,
) -> None:
    """The lease runs out meanwhile, so that the claim takes the task, and the guard hears nothing of that in time."""

    store, work = StoppedInClaim(autojump_clock), Work()
    async with calling(work.server(store)) as caller:
        task_id = await caller.start("work")
        await caller.final(task_id)
        assert await caller.text(task_id) == "run 1"
        assert (await record_in(store, task_id)).epoch == 1
    assert work.causes == []


async def test_process_that_renews_a_lease_while_its_claim_of_the_same_task_is_pending_continues_the_task(
    autojump_clock: MockClock,
) -> None:
    """The process was stopped in the middle of the claim. The renewal finds the new holder, and its answer comes after
    the one to the claim, which was asked for long ago."""

    class RenewedInBetween(StoppedInClaim):
        renewed = trio.Event()

        async def pass_claim(self) -> None:
            await self.renewed.wait()

        async def renew(self, held: Mapping[str, str], *, lease_ms: int) -> Collection[str]:
            lost = await super().renew(held, lease_ms=lease_ms)
            if lost:
                self.renewed.set()
                await wait_all_tasks_blocked()
            return lost

    store, work = RenewedInBetween(autojump_clock), Work()
    async with calling(work.server(store)) as caller:
        task_id = await caller.start("work")
        await caller.final(task_id)
        assert await caller.text(task_id) == "run 1"
        assert (await record_in(store, task_id)).epoch == 1
    assert work.causes == []


async def test_process_that_claims_its_own_task_back_from_a_dead_process_restarts_the_task(
    autojump_clock: MockClock,
) -> None:
    """What the other one did is not for a run that began before."""
    store, work, others = MemoryTaskStore(), Work(), Work()
    way, other_way = LateStore(store), LateStore(store)
    async with calling(work.server(way)) as caller:
        task_id = await caller.start("work")
        async with calling(others.server(other_way)):
            other_way.sleeps = False
            await trio.sleep(2 * LEASE)
            assert (work.children, others.children) == (1, 1)
            other_way.die()
        await trio.sleep(LEASE + 1)
        way.sleeps = False
        await caller.final(task_id)
        assert [cause for cause, _ in work.causes] == [CancelCause.LEASE]
        assert await caller.text(task_id) == "run 3"


async def test_run_of_a_task_that_lost_its_lease_in_a_store_outage_does_not_count_as_an_attempt(
    autojump_clock: MockClock,
) -> None:
    store, work = TouchyStore(), Work()
    async with calling(work.server(store, max_attempts=1)) as caller:
        task_id = await caller.start("work")
        for _ in range(3):
            store.die()
            await trio.sleep(2 * LEASE)
            store.fails.clear()
            await trio.sleep(LEASE)
        assert [cause for cause, _ in work.causes] == [CancelCause.LEASE] * 3
        await caller.final(task_id)
        assert await caller.text(task_id) == "run 1"


async def test_tasks_are_claimed_in_small_groups_and_lease_renewals_go_before_each_claim(
    autojump_clock: MockClock,
) -> None:
    store = CountingStore()
    work, first = Work(), Work()
    async with trio.open_nursery() as nursery:
        way = TouchyStore(store.store)
        async with calling(first.server(way, max_running_of_caller=9999)) as caller:
            for _ in range(350):
                await caller.start("work")
            way.die()
            nursery.cancel_scope.cancel()
    sizes: list[int] = []

    class Noting(CountingStore):
        async def claim(self, holder: str, **options: Any) -> Sequence[TaskRecord]:
            assert self.calls[-1] != "claim"
            claimed = await super().claim(holder, **options)
            sizes.append(len(claimed))
            return claimed

    async with calling(work.server(Noting(store.store), max_running_of_caller=9999)):
        await trio.sleep(2 * LEASE)
        assert work.children == 350
        assert [size for size in sizes if size] == [100, 100, 100, 50]
