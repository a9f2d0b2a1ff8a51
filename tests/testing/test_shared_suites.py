"""The test suite for shared storages detects each deliberate defect."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from trio_mcp.fleet.storage.memory import MemoryStorage
from trio_mcp.stores.shared import ChangesSince, Replica
from trio_mcp.stores.task_store import HINTS_LOST
from trio_mcp.testing import SharedStorageSuite


class Defective:
    """A part of a replica that is as it should be, but for what a class below does otherwise."""

    def __init__(self, part: Any) -> None:
        self.part = part

    def __getattr__(self, name: str) -> Any:
        return getattr(self.part, name)


class HidesGaps(Defective):
    @asynccontextmanager
    async def watch(self) -> AsyncGenerator[AsyncIterator[Any]]:
        async with self.part.watch() as hints:
            yield WithoutGaps(hints)

    @asynccontextmanager
    async def mailbox(self) -> AsyncGenerator[AsyncIterator[Any]]:
        async with self.part.mailbox() as letters:
            yield WithoutGaps(letters)


class WithoutGaps:
    def __init__(self, hints: AsyncIterator[Any]) -> None:
        self.hints = hints

    async def __anext__(self) -> Any:
        while (hint := await anext(self.hints)) is HINTS_LOST:
            pass
        return hint

    def __aiter__(self) -> WithoutGaps:
        return self


class OpensAnew(Defective):
    async def open(self, session_id: str, state: bytes, **options: Any) -> None:
        await self.part.delete(session_id)
        await self.part.open(session_id, state, **options)


class CountsSessionsFirst(Defective):
    async def open(self, session_id: str, state: bytes, *, limit: int, **options: Any) -> None:
        has_room = len(self.part._sessions) < limit
        await trio.lowlevel.checkpoint()
        await self.part.open(session_id, state, limit=10**6 if has_room else 0, **options)


class ReadsWithoutUse(Defective):
    async def read(self, session_id: str, *, idle_ms: int) -> Any:
        return self.part._sessions.get(session_id)


class ComparesMarksFirst(Defective):
    async def change(
        self, session_id: str, state: bytes, *, expected_mark: bytes, idle_ms: int, **options: Any
    ) -> bool:
        session = await self.part.read(session_id, idle_ms=idle_ms)
        if session is None or session.mark != expected_mark:
            return False
        await trio.lowlevel.checkpoint()
        session = await self.part.read(session_id, idle_ms=idle_ms)
        return await self.part.change(session_id, state, expected_mark=session.mark, idle_ms=idle_ms, **options)


class EndsWhatIsNotThere(Defective):
    async def delete(self, session_id: str) -> bool:
        await self.part.delete(session_id)
        return True


class ChangesHalfway(Defective):
    async def change(self, *args: Any, **options: Any) -> bool:
        is_changed = await self.part.change(*args, **options)
        await trio.lowlevel.checkpoint()
        return is_changed


class AppendsForAnybody(Defective):
    async def append(self, session_id: str, stream: str, **options: Any) -> bool:
        found = await self.part.read_after(session_id, stream, 0, retention_ms=options["retention_ms"])
        return await self.part.append(
            session_id, stream, **options | ({"holder": found.stream.holder} if found else {})
        )


class RefusesToEndAgain(Defective):
    async def append(self, session_id: str, stream: str, **options: Any) -> bool:
        found = await self.part.read_after(session_id, stream, 0, retention_ms=options["retention_ms"])
        return not (found and found.stream.is_finished) and await self.part.append(session_id, stream, **options)


class EndsAgainWithoutUse(Defective):
    async def append(self, session_id: str, stream: str, **options: Any) -> bool:
        log = self.part._logs.get(session_id)
        found = None if log is None else log.find(stream, 0)
        is_ended = found is not None and found.kept_until is not None
        return is_ended or await self.part.append(session_id, stream, **options)


class AppendsHalfway(Defective):
    async def append(self, *args: Any, **options: Any) -> bool:
        is_appended = await self.part.append(*args, **options)
        await trio.lowlevel.checkpoint()
        return is_appended


class BelievesLateNotes(Defective):
    async def append(self, session_id: str, stream: str, **options: Any) -> bool:
        is_appended = await self.part.append(session_id, stream, **options)
        if is_appended and options["note"] is not None:
            self.part._logs.get(session_id).find(stream, 0).note = options["note"]
        return is_appended


class KeepsEverything(Defective):
    async def append(self, *args: Any, **options: Any) -> bool:
        return await self.part.append(*args, **options | {"limit": 10**9})


class FinishesTheLiving(Defective):
    async def finish_dead(self, session_id: str, stream: str, **options: Any) -> bool:
        found = await self.part.read_after(session_id, stream, 0, retention_ms=options["retention_ms"])
        holder = found.stream.holder if found and not found.stream.is_finished else options["dead_holder"]
        return await self.part.finish_dead(session_id, stream, **options | {"dead_holder": holder})


class LeavesTheDeadTheirStream(Defective):
    async def finish_dead(self, session_id: str, stream: str, **options: Any) -> bool:
        is_finished = await self.part.finish_dead(session_id, stream, **options)
        if is_finished:
            self.part._logs.get(session_id).find(stream, 0).holder = options["dead_holder"]
        return is_finished


class CountsFromTheFirstThatIsKept(Defective):
    async def read_after(self, *args: Any, **options: Any) -> Any:
        found = await self.part.read_after(*args, **options)
        return None if found is None else attrs.evolve(found, first=found.stream.dropped + 1)


class NotesOneAfterTheOther(Defective):
    async def record(self, changed: Collection[str]) -> None:
        for thing in changed:
            await self.part.record([thing])
            await trio.lowlevel.checkpoint()


class ForgetsQuietly(Defective):
    async def read_since(self, cursor: str | None) -> ChangesSince:
        return attrs.evolve(await self.part.read_since(cursor), everything=False)


class TellsAll(Defective):
    async def read_since(self, cursor: str | None) -> ChangesSince:
        return attrs.evolve(await self.part.read_since(cursor), changed=[*self.part._changed])


class PostsToOthers(Defective):
    async def send(self, replica: str, content: bytes, **_: Any) -> None:
        for each in self.part._mailboxes.mailboxes:
            await self.part.send(each, content)


class TakesNumbersForItsOwn(Defective):
    async def send(self, replica: str, content: bytes, *, number: int | None = None) -> None:
        first = vars(self.part._mailboxes).setdefault("first", {}).setdefault(number, content)
        await self.part.send(replica, content if number is None else first)


class HasManyMailboxes(Defective):
    @asynccontextmanager
    async def mailbox(self) -> AsyncGenerator[AsyncIterator[Any]]:
        first = self.part._mailboxes.mailboxes.pop(self.part._replica, None)
        async with self.part.mailbox() as letters:
            yield letters
        if first is not None:
            self.part._mailboxes.mailboxes[self.part._replica] = first


class NeverDies(Defective):
    async def heartbeat(self, *, lease_ms: int) -> bool:
        return await self.part.heartbeat(lease_ms=10**9)


class LivesQuietly(Defective):
    async def heartbeat(self, *, lease_ms: int) -> bool:
        await self.part.heartbeat(lease_ms=lease_ms)
        return True


class ForgetsToLeave(Defective):
    async def leave(self) -> None:
        pass


class LooksFirst(Defective):
    async def add(self, digest: bytes, *, ttl_ms: int) -> bool:
        is_new = self.part._digests.get(digest) is None
        await trio.lowlevel.checkpoint()
        self.part._digests.put(digest, True, ttl_ms)
        return is_new


class RemembersRefusedUses(Defective):
    async def add(self, digest: bytes, *, ttl_ms: int) -> bool:
        is_new = await self.part.add(digest, ttl_ms=ttl_ms)
        self.part._digests.put(digest, True, ttl_ms)
        return is_new


class HasBucketsOfItsOwn(Defective):
    def __init__(self, part: Any) -> None:
        super().__init__(type(part)(part._now))


class CountsRefusedTakes(Defective):
    async def acquire(self, key: bytes, *, limit: int, period_ms: int, burst: int) -> int:
        wait = await self.part.acquire(key, limit=limit, period_ms=period_ms, burst=burst)
        if wait:
            await self.part.acquire(key, limit=limit, period_ms=period_ms, burst=10**6)
        return wait


class RoundsDown(Defective):
    async def acquire(self, key: bytes, *, limit: int, period_ms: int, burst: int) -> int:
        return max(await self.part.acquire(key, limit=limit, period_ms=period_ms, burst=burst) - 1, 0)


DEFECTS: list[tuple[str, Callable[[Any], Defective], str]] = [
    ("sessions", OpensAnew, "test_session_with_a_taken_id_is_refused"),
    ("sessions", CountsSessionsFirst, "test_shares_of_sessions_hold_while_many_open"),
    ("sessions", ReadsWithoutUse, "test_session_lasts_from_its_last_reading"),
    ("sessions", ComparesMarksFirst, "test_first_of_many_changes_of_a_session_wins"),
    ("sessions", EndsWhatIsNotThere, "test_one_of_many_ends_a_session"),
    ("sessions", ChangesHalfway, "test_cancelled_change_of_a_session_is_whole_or_nothing"),
    ("sessions", HidesGaps, "test_watcher_of_sessions_that_does_not_read_holds_up_nobody"),
    ("events", AppendsForAnybody, "test_append_by_another_than_the_holder_is_refused"),
    ("events", RefusesToEndAgain, "test_end_of_a_stream_can_be_made_again"),
    ("events", EndsAgainWithoutUse, "test_session_lasts_by_an_end_that_is_told_again"),
    ("events", AppendsHalfway, "test_cancelled_call_to_an_event_log_is_whole_or_nothing"),
    ("events", BelievesLateNotes, "test_append_that_comes_late_changes_nothing"),
    ("events", KeepsEverything, "test_oldest_events_of_a_session_go_first"),
    ("events", FinishesTheLiving, "test_stream_of_a_living_holder_is_not_finished"),
    ("events", LeavesTheDeadTheirStream, "test_stream_of_the_dead_is_finished"),
    ("events", CountsFromTheFirstThatIsKept, "test_events_behind_a_number_are_read"),
    ("events", HidesGaps, "test_watcher_of_events_that_does_not_read_holds_up_nobody"),
    ("changes", NotesOneAfterTheOther, "test_cancelled_note_is_whole_or_nothing"),
    ("changes", ForgetsQuietly, "test_things_that_were_changed_longest_ago_are_forgotten"),
    ("changes", TellsAll, "test_each_place_is_behind_what_was_noted_before_it"),
    ("changes", HidesGaps, "test_watcher_of_changes_that_does_not_read_holds_up_nobody"),
    ("courier", PostsToOthers, "test_letter_may_be_sent_to_nobody"),
    ("courier", TakesNumbersForItsOwn, "test_copies_of_a_letter_have_its_number"),
    ("courier", HasManyMailboxes, "test_replica_has_one_mailbox_at_a_time"),
    ("courier", HidesGaps, "test_mailbox_that_nobody_reads_holds_up_nobody"),
    ("courier", NeverDies, "test_replica_is_dead_when_its_lease_is_over"),
    ("courier", LivesQuietly, "test_replica_is_not_alive_before_its_first_sign_of_life"),
    ("courier", ForgetsToLeave, "test_replica_that_has_left_is_dead"),
    ("replay_guard", LooksFirst, "test_one_of_many_who_use_a_value_succeeds"),
    ("replay_guard", RemembersRefusedUses, "test_value_is_forgotten_after_its_time"),
    ("rate_limits", HasBucketsOfItsOwn, "test_bucket_has_its_burst_at_first"),
    ("rate_limits", CountsRefusedTakes, "test_bucket_has_its_burst_at_first"),
    ("rate_limits", RoundsDown, "test_tokens_come_at_their_rate"),
]


def run(test: str, part: str, make: Callable[[Any], Any]) -> None:
    """Run a test of the suite on a storage whose replicas have what ``make`` makes of one part. No time passes: the
    clock of this storage is trio's."""
    storage = MemoryStorage()

    class Suite(SharedStorageSuite):
        @asynccontextmanager
        async def open_replica(self, name: str = "tested") -> AsyncGenerator[Replica]:
            async with storage.join(name) as replica:
                yield attrs.evolve(replica, **{part: make(getattr(replica, part))})

    trio.run(getattr(Suite(), test), clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize(("part", "make", "test"), DEFECTS, ids=lambda each: getattr(each, "__name__", None))
def test_shared_storage_with_a_defect_fails_the_suite_test_for_that_defect(
    part: str, make: Callable[[Any], Defective], test: str
):
    run(test, part, Defective)
    with pytest.raises((AssertionError, trio.TooSlowError, BaseExceptionGroup)):
        run(test, part, make)


async def test_shared_storage_suite_without_open_replica_raises_not_implemented():
    with pytest.raises(NotImplementedError, match=r"must define open_replica\(\)"):
        await SharedStorageSuite().test_note_of_nothing_changes_nothing()
