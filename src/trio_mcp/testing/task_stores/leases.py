"""LeaseTests: each task has one owner at a time, as long as the owner renews the lease."""

from __future__ import annotations

import attrs
import trio

from ...stores.task_record import TaskPhase
from .storage import NOW, TestedStorage, claim_of, create, ended, interrupt, next_of, record

__all__ = ["LeaseTests"]


class LeaseTests(TestedStorage):
    """The tests of `claim` and `renew`, and of the lease after a `change`."""

    async def test_task_without_an_owner_is_claimed(self) -> None:
        """The record has the owner, the lease, and the next epoch and version, and is kept so."""
        async with self.open_store() as store, self.open_store() as other:
            await create(store, record("one", epoch=2, version=5))
            expected = record("one", owner="me", leased_until=NOW + 1000, epoch=3, version=6)
            assert list(await store.claim(claim_of("me"))) == [expected]
            assert await other.read("ann", "one") == expected

    async def test_task_is_claimed_when_its_lease_is_over(self) -> None:
        """A lease lasts until its time has passed; a task that waits for an answer is claimed like any other."""
        async with self.open_store() as store:
            await create(
                store,
                record("over", owner="dead", leased_until=NOW - 1),
                record("asking", owner="dead", leased_until=NOW - 1, phase=TaskPhase.INPUT_REQUIRED),
                record("not yet", owner="alive", leased_until=NOW),
            )
            assert {each.id for each in await store.claim(claim_of("me"))} == {"over", "asking"}
            assert list(await store.claim(claim_of("me"))) == []

    async def test_task_that_nobody_may_run_is_not_claimed(self) -> None:
        """Ended, cancelled and external tasks are left alone."""
        async with self.open_store() as store:
            cancelled = record("cancelled", phase=TaskPhase.CANCELLED)
            await create(store, ended(record("ended")), cancelled, record("external", is_external=True))
            await create(store, record("ends later", owner="one", leased_until=NOW - 1))
            assert await store.change(ended(record("ends later", owner="one")))
            assert list(await store.claim(claim_of("me"))) == []

    async def test_claim_takes_no_more_than_it_asks_for(self) -> None:
        """The others are there for the next."""
        async with self.open_store() as store:
            await create(store, *(record(str(number)) for number in range(5)))
            for most in (0, -1):
                assert list(await store.claim(claim_of("me", most=most))) == []
            first = await store.claim(claim_of("me", most=3))
            second = await store.claim(claim_of("you", most=3))
            assert (len(first), len(second)) == (3, 2)
            assert {each.id for each in (*first, *second)} == set("01234")

    async def test_no_task_is_claimed_twice(self) -> None:
        """Ten owners claim at the same time, in two stores, and each task has one owner."""
        async with self.open_store() as store, self.open_store() as other:
            await create(store, *(record(str(number), owner="dead") for number in range(50)))
            claimed: list[tuple[str, str | None, int]] = []

            async def claim(number: int) -> None:
                got = await (store, other)[number % 2].claim(claim_of(f"owner {number}", most=7))
                claimed.extend((each.id, each.owner, each.epoch) for each in got)

            async with trio.open_nursery() as nursery:
                for number in range(10):
                    nursery.start_soon(claim, number)
            assert len(claimed) == 50
            assert sorted(claimed) == sorted([(each.id, each.owner, 1) for each in await store.page("ann", None, 99)])

    async def test_former_owner_changes_nothing(self) -> None:
        """A process that was taken for dead cannot overwrite the work of its successor."""
        async with self.open_store() as store:
            await create(store, record("one"))
            (old,) = await store.claim(claim_of("slow", now=NOW - 5000))
            (new,) = await store.claim(claim_of("quick"))
            assert not await store.change(ended(old))
            assert not await store.change(ended(attrs.evolve(old, version=new.version)))
            assert await store.read("ann", "one") == new

    async def test_released_task_is_claimed_at_once(self) -> None:
        """A change without an owner gives up the lease."""
        async with self.open_store() as store:
            await create(store, record("one"))
            (claimed,) = await store.claim(claim_of("me"))
            assert await store.change(next_of(claimed, owner=None, leased_until=0))
            (again,) = await store.claim(claim_of("you"))
            assert (again.owner, again.epoch, again.version) == ("you", 2, 3)

    async def test_renewed_lease_is_longer(self) -> None:
        """The version stays, so that the owner's next change succeeds."""
        async with self.open_store() as store, self.open_store() as other:
            await create(store, record("one"), record("two"))
            claimed = {each.id: each for each in await store.claim(claim_of("me"))}
            assert await store.renew("me", ["one"], NOW + 9000) == set()
            assert await other.read("ann", "one") == attrs.evolve(claimed["one"], leased_until=NOW + 9000)
            assert await other.read("ann", "two") == claimed["two"]
            assert [each.id for each in await other.claim(claim_of("you", now=NOW + 5000))] == ["two"]
            assert await store.change(next_of(claimed["one"]))

    async def test_change_leaves_the_lease_as_it_is_kept(self) -> None:
        """A process that is not the owner may change a task, and knows an earlier lease, or a later one."""
        async with self.open_store() as store:
            await create(store, record("one"))
            (claimed,) = await store.claim(claim_of("me"))
            await store.renew("me", ["one"], NOW + 9000)
            for lease in (0, NOW + 1000, NOW + 99_000):
                claimed = next_of(claimed, leased_until=lease)
                assert await store.change(claimed)
                assert await store.read("ann", "one") == attrs.evolve(claimed, leased_until=NOW + 9000)

    async def test_renewal_tells_which_tasks_are_lost(self) -> None:
        """Lost are the tasks of a successor, and tasks that have ended, were released, or are gone."""
        async with self.open_store() as store:
            names = ("mine", "taken", "ended", "cancelled", "released", "gone")
            await create(store, *(record(name) for name in names))
            mine = {each.id: each for each in await store.claim(claim_of("me"))}
            assert await store.change(ended(mine["ended"]))
            assert await store.change(next_of(mine["cancelled"], phase=TaskPhase.CANCELLED, owner=None, leased_until=0))
            assert await store.change(next_of(mine["gone"], kept_until=NOW))
            assert await store.expire(NOW + 1) == 1
            assert await store.renew("me", ["mine"], NOW + 5000) == set()
            for name in ("taken", "released"):
                assert await store.change(next_of(mine[name], owner=None, leased_until=0))
            assert [each.id for each in await store.claim(claim_of("you", most=1))] in (["taken"], ["released"])
            assert await store.renew("me", [*names, "never"], NOW + 9000) == {*names, "never"} - {"mine"}
            found = await store.read("ann", "mine")
            assert found is not None
            assert found.leased_until == NOW + 9000

    async def test_lease_that_is_over_and_not_claimed_is_renewed(self) -> None:
        """The task is still the owner's until another claims the task."""
        async with self.open_store() as store:
            await create(store, record("one", owner="me", leased_until=NOW - 1))
            assert await store.renew("me", ["one"], NOW + 1) == set()
            assert list(await store.claim(claim_of("you"))) == []

    async def test_renewal_of_nothing_loses_nothing(self) -> None:
        """A process without tasks may renew."""
        async with self.open_store() as store:
            assert await store.renew("me", [], NOW) == set()

    async def test_cancelled_claim_is_whole_or_nothing(self) -> None:
        """A claim that was cancelled leaves each task to the next claim."""
        async with self.open_store() as store:
            step, waits = 1, True
            while waits:
                await create(store, *(record(f"task {step} {number}") for number in range(3)))
                waits, returned = await interrupt(step, store.claim, claim_of("me", lease=10**6))
                assert len(await store.claim(claim_of("you", lease=10**6))) == (0 if returned else 3)
                step += 1

    async def test_cancelled_renewal_is_whole_or_nothing(self) -> None:
        """A renewal that was cancelled leaves each lease alone."""
        async with self.open_store() as store:
            step, waits = 1, True
            await create(store, record("one"), record("two"))
            await store.claim(claim_of("me"))
            lease = NOW + 1000
            while waits:
                longer = NOW + 1000 + step
                waits, returned = await interrupt(step, store.renew, "me", ["one", "two"], longer)
                lease = longer if returned else lease
                assert [each.leased_until for each in await store.page("ann", None, 9)] == [lease, lease]
                step += 1
