"""LeaseTests: each task has one holder at a time, as long as the holder renews the lease."""

from __future__ import annotations

import attrs
import trio

from ...stores.task_store import TaskPhase
from .task_store_records import (
    HOUR,
    TestedTaskStorage,
    change,
    claim,
    create,
    interrupt,
    read_record,
    read_stored,
    record,
    wait_past,
)


class LeaseTests(TestedTaskStorage):
    """The tests of `claim` and `renew`, and of the lease after a `change`."""

    async def test_task_without_a_holder_is_claimed(self) -> None:
        """The record has the holder, the lease, and the next epoch and version, and is kept so."""
        async with self.open_store() as store, self.open_store() as other:
            one = await create(store, record("one", epoch=2, version=5))
            claimed = (await claim(store, "me:1", lease_ms=1000))["one"]
            changes = {"holder": "me:1", "epoch": 3, "version": 6, "mark": b"me:1"}
            assert claimed == attrs.evolve(one, leased_until=claimed.leased_until, **changes)
            assert one.created_at + 1000 <= claimed.leased_until <= (await read_stored(store, "one")).now + 1000
            assert await read_record(other, "one") == claimed

    async def test_task_is_claimed_when_its_lease_is_over(self) -> None:
        """A lease lasts until its time has passed; a task that waits for an answer is claimed like any other."""
        async with self.open_store() as store:
            await create(store, record("alive", holder="alive"))
            late = await create(store, record("over", holder="dead"), lease_ms=1)
            asking = record("asking", holder="dead", phase=TaskPhase.INPUT_REQUIRED)
            await wait_past(store, late, (await create(store, asking, lease_ms=1)).leased_until)
            assert set(await claim(store, "me")) == {"over", "asking"}
            assert await claim(store, "you") == {}

    async def test_lease_lasts_until_its_time_has_passed(self) -> None:
        """A task is not taken in the last moment of its lease."""
        async with self.open_store() as store:
            for number in range(20):
                one = await create(store, record(f"task {number}", holder="me"), lease_ms=2)
                while not await claim(store, f"you {number}"):
                    await trio.lowlevel.checkpoint()
                assert (await read_stored(store, one.id)).now > one.leased_until

    async def test_task_that_nobody_may_run_is_not_claimed(self) -> None:
        """Ended, cancelled and external tasks are left alone."""
        async with self.open_store() as store:
            await create(store, record("ended", phase=TaskPhase.ENDED))
            await create(store, record("cancelled", phase=TaskPhase.CANCELLED))
            await create(store, record("external", is_external=True))
            for name, phase in (("ends later", TaskPhase.ENDED), ("given away", TaskPhase.WORKING)):
                one = await create(store, record(name, holder="one"), lease_ms=1)
                assert await change(store, one, phase=phase, is_external=name == "given away") is not None
                await wait_past(store, one, one.leased_until)
            assert await claim(store, "me") == {}

    async def test_only_tasks_of_the_named_tools_are_claimed(self) -> None:
        """The others are left to who has their tools, however long they wait."""
        async with self.open_store() as store, self.open_store() as other:
            for number in range(5):
                await create(store, record(f"old {number}", name="other"))
            await create(store, record("one"))
            await create(store, record("two", name="\N{SNOWMAN} too"))
            assert await claim(store, "me", names=()) == {}
            assert await claim(store, "me", names=("Report", "repor", "")) == {}
            assert set(await claim(store, "me", limit=3, names=("report", "\N{SNOWMAN} too", "third"))) == {
                "one",
                "two",
            }
            assert len(await claim(other, "you", names=("other",))) == 5

    async def test_claim_takes_no_more_than_it_asks_for(self) -> None:
        """Those that have waited longest come first, and the others are there for the next."""
        async with self.open_store() as store:
            leases = [await create(store, record(f"over {number}", holder="dead"), lease_ms=1) for number in range(2)]
            await wait_past(store, leases[-1], leases[-1].leased_until)
            for number in range(3):
                await create(store, record(f"free {number}"))
            for most in (0, -1):
                assert await claim(store, "me", limit=most) == {}
            first = await claim(store, "me", limit=3)
            second = await claim(store, "you", limit=3)
            assert set(first) == {"free 0", "free 1", "free 2"}
            assert set(second) == {"over 0", "over 1"}

    async def test_no_task_is_claimed_twice(self) -> None:
        """Ten claim at the same time, in two stores, and each task has one holder."""
        async with self.open_store() as store, self.open_store() as other:
            for number in range(50):
                await create(store, record(str(number)))
            claimed: list[tuple[str, str | None, int]] = []

            async def take(number: int) -> None:
                taken = await claim((store, other)[number % 2], f"owner {number}", limit=7)
                claimed.extend((each.id, each.holder, each.epoch) for each in taken.values())

            async with trio.open_nursery() as nursery:
                for number in range(10):
                    nursery.start_soon(take, number)
            assert len(claimed) == 50
            assert sorted(claimed) == sorted([(each.id, each.holder, 1) for each in await store.page("ann", None, 99)])

    async def test_task_that_was_given_up_is_claimed_at_once(self) -> None:
        """The change that gives up the lease may change the record, too."""
        async with self.open_store() as store:
            await create(store, record("one"))
            claimed = (await claim(store, "me"))["one"]
            assert await change(store, claimed, holder="me", give_up=True, attempt=0) is not None
            left = await read_record(store, "one")
            assert (left.holder, left.leased_until, left.attempt) == (None, 0, 0)
            again = (await claim(store, "you"))["one"]
            assert (again.holder, again.epoch) == ("you", 2)
            assert await change(store, again, holder="me") is None

    async def test_renewed_lease_is_longer(self) -> None:
        """The mark stays, so that the holder's next change succeeds."""
        async with self.open_store() as store, self.open_store() as other:
            await create(store, record("one"))
            await create(store, record("two"))
            claimed = await claim(store, "me", lease_ms=1)
            assert set(await store.renew({"one": "me"}, lease_ms=HOUR)) == set()
            renewed = await read_record(other, "one")
            assert renewed.leased_until > claimed["one"].leased_until + HOUR - 1000
            assert attrs.evolve(renewed, leased_until=claimed["one"].leased_until) == claimed["one"]
            assert await read_record(other, "two") == claimed["two"]
            await wait_past(store, claimed["two"], claimed["two"].leased_until)
            assert set(await claim(other, "you")) == {"two"}
            assert await change(store, claimed["one"], holder="me") is not None

    async def test_renewal_tells_which_tasks_are_lost(self) -> None:
        """Lost are the tasks of a successor, and tasks that have ended, were given up or given away, or are gone."""
        async with self.open_store() as store:
            names = ("mine", "taken", "ended", "cancelled", "given up", "given away", "gone")
            for name in names:
                await create(store, record(name))
            mine = await claim(store, "me")
            assert await change(store, mine["ended"], phase=TaskPhase.ENDED) is not None
            assert await change(store, mine["cancelled"], phase=TaskPhase.CANCELLED) is not None
            assert await change(store, mine["given away"], is_external=True) is not None
            assert await store.discard("gone", retention_ms=1)
            assert await change(store, mine["taken"], holder="me", give_up=True) is not None
            assert set(await claim(store, "you")) == {"taken"}
            assert await change(store, mine["given up"], holder="me", give_up=True) is not None
            lost = await store.renew(dict.fromkeys((*names, "never"), "me"), lease_ms=HOUR)
            assert set(lost) == {*names, "never"} - {"mine"}

    async def test_renewal_names_the_holder_of_each_task(self) -> None:
        """A process has several: one for each of its claims."""
        async with self.open_store() as store:
            for number in range(2):
                await create(store, record(f"task {number}"))
                assert set(await claim(store, f"me:{number}")) == {f"task {number}"}
            assert set(await store.renew({"task 0": "me:0", "task 1": "me:0"}, lease_ms=HOUR)) == {"task 1"}
            assert set(await store.renew({"task 0": "me:0", "task 1": "me:1"}, lease_ms=HOUR)) == set()
            assert await claim(store, "you") == {}

    async def test_thousands_of_leases_are_renewed_at_once(self) -> None:
        """There is no bound on how many there are."""
        async with self.open_store() as store:
            for number in range(40):
                await create(store, record(f"task {number}", holder="me"))
            held = dict.fromkeys([f"task {number}" for number in range(40_000)], "me")
            lost = await store.renew(held, lease_ms=HOUR)
            assert set(lost) == {f"task {number}" for number in range(40, 40_000)}

    async def test_lease_that_is_over_and_not_claimed_is_renewed(self) -> None:
        """The task is still the holder's until another claims the task."""
        async with self.open_store() as store:
            one = await create(store, record("one", holder="me"), lease_ms=1)
            await wait_past(store, one, one.leased_until)
            assert set(await store.renew({"one": "me"}, lease_ms=HOUR)) == set()
            assert await claim(store, "you") == {}

    async def test_renewal_of_nothing_loses_nothing(self) -> None:
        """A process without tasks may renew."""
        async with self.open_store() as store:
            assert set(await store.renew({}, lease_ms=HOUR)) == set()

    async def test_cancelled_claim_is_whole_or_nothing(self) -> None:
        """A claim that was cancelled leaves each task to the next claim."""
        async with self.open_store() as store:
            step, waits = 1, True
            while waits:
                for number in range(3):
                    await create(store, record(f"task {step} {number}"))
                waits, returned = await interrupt(step, claim, store, f"me {step}")
                assert len(await claim(store, f"you {step}")) == (0 if returned else 3)
                step += 1

    async def test_cancelled_renewal_is_whole_or_nothing(self) -> None:
        """A renewal that was cancelled leaves each lease alone."""
        async with self.open_store() as store:
            step, waits = 1, True
            held = {"one": "me", "two": "me"}
            for name in held:
                await create(store, record(name, holder="me"))

            async def renew(lease: int) -> None:
                assert set(await store.renew(held, lease_ms=lease)) == set()

            while waits:
                leases = [(await read_record(store, name)).leased_until for name in held]
                waits, returned = await interrupt(step, renew, (step + 1) * HOUR)
                changed = [
                    (await read_record(store, name)).leased_until > lease
                    for name, lease in zip(held, leases, strict=True)
                ]
                assert changed == [bool(returned)] * 2
                step += 1
