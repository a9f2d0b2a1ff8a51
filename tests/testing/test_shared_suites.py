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


class HidesLostHints(Defective):
    @asynccontextmanager
    async def watch(self) -> AsyncGenerator[AsyncIterator[Any]]:
        async with self.part.watch() as hints:
            yield WithoutLostHints(hints)

    @asynccontextmanager
    async def mailbox(self) -> AsyncGenerator[AsyncIterator[Any]]:
        async with self.part.mailbox() as messages:
            yield WithoutLostHints(messages)


class WithoutLostHints:
    def __init__(self, hints: AsyncIterator[Any]) -> None:
        self.hints = hints

    async def __anext__(self) -> Any:
        while (hint := await anext(self.hints)) is HINTS_LOST:
            pass
        return hint

    def __aiter__(self) -> WithoutLostHints:
        return self


class ReplacesOpenSession(Defective):
    async def open(self, session_id: str, state: bytes, **options: Any) -> None:
        await self.part.delete(session_id)
        await self.part.open(session_id, state, **options)


class ChecksLimitBeforeCheckpoint(Defective):
    async def open(self, session_id: str, state: bytes, *, limit: int, **options: Any) -> None:
        has_room = len(self.part._sessions) < limit
        await trio.lowlevel.checkpoint()
        await self.part.open(session_id, state, limit=10**6 if has_room else 0, **options)


class ReadsWithoutExtendingLifetime(Defective):
    async def read(self, session_id: str, *, idle_ms: int) -> Any:
        return self.part._sessions.get(session_id)


class ComparesMarkBeforeCheckpoint(Defective):
    async def change(
        self, session_id: str, state: bytes, *, expected_mark: bytes, idle_ms: int, **options: Any
    ) -> bool:
        session = await self.part.read(session_id, idle_ms=idle_ms)
        if session is None or session.mark != expected_mark:
            return False
        await trio.lowlevel.checkpoint()
        session = await self.part.read(session_id, idle_ms=idle_ms)
        return await self.part.change(session_id, state, expected_mark=session.mark, idle_ms=idle_ms, **options)


class DeleteAlwaysReturnsTrue(Defective):
    async def delete(self, session_id: str) -> bool:
        await self.part.delete(session_id)
        return True


class ChangesBeforeCheckpoint(Defective):
    async def change(self, *args: Any, **options: Any) -> bool:
        is_changed = await self.part.change(*args, **options)
        await trio.lowlevel.checkpoint()
        return is_changed


class AppendsForAnyHolder(Defective):
    async def append(self, session_id: str, stream: str, **options: Any) -> bool:
        found = await self.part.read_after(session_id, stream, 0, retention_ms=options["retention_ms"])
        return await self.part.append(
            session_id, stream, **options | ({"holder": found.stream.holder} if found else {})
        )


class RefusesRepeatedFinish(Defective):
    async def append(self, session_id: str, stream: str, **options: Any) -> bool:
        found = await self.part.read_after(session_id, stream, 0, retention_ms=options["retention_ms"])
        return not (found and found.stream.is_finished) and await self.part.append(session_id, stream, **options)


class RepeatedFinishExtendsNoLifetime(Defective):
    async def append(self, session_id: str, stream: str, **options: Any) -> bool:
        log = self.part._logs.get(session_id)
        found = None if log is None else log.find(stream, 0)
        is_ended = found is not None and found.kept_until is not None
        return is_ended or await self.part.append(session_id, stream, **options)


class AppendsBeforeCheckpoint(Defective):
    async def append(self, *args: Any, **options: Any) -> bool:
        is_appended = await self.part.append(*args, **options)
        await trio.lowlevel.checkpoint()
        return is_appended


class StoresNoteOfLateAppend(Defective):
    async def append(self, session_id: str, stream: str, **options: Any) -> bool:
        is_appended = await self.part.append(session_id, stream, **options)
        if is_appended and options["note"] is not None:
            self.part._logs.get(session_id).find(stream, 0).note = options["note"]
        return is_appended


class IgnoresByteLimit(Defective):
    async def append(self, *args: Any, **options: Any) -> bool:
        return await self.part.append(*args, **options | {"limit": 10**9})


class FinishesStreamOfAnyHolder(Defective):
    async def finish_dead(self, session_id: str, stream: str, **options: Any) -> bool:
        found = await self.part.read_after(session_id, stream, 0, retention_ms=options["retention_ms"])
        holder = found.stream.holder if found and not found.stream.is_finished else options["dead_holder"]
        return await self.part.finish_dead(session_id, stream, **options | {"dead_holder": holder})


class KeepsHolderOfFinishedStream(Defective):
    async def finish_dead(self, session_id: str, stream: str, **options: Any) -> bool:
        is_finished = await self.part.finish_dead(session_id, stream, **options)
        if is_finished:
            self.part._logs.get(session_id).find(stream, 0).holder = options["dead_holder"]
        return is_finished


class CountsFromOldestStoredEvent(Defective):
    async def read_after(self, *args: Any, **options: Any) -> Any:
        found = await self.part.read_after(*args, **options)
        return None if found is None else attrs.evolve(found, first=found.stream.dropped + 1)


class RecordsChangesOneByOne(Defective):
    async def record(self, changed: Collection[str]) -> None:
        for name in changed:
            await self.part.record([name])
            await trio.lowlevel.checkpoint()


class HidesDroppedChanges(Defective):
    async def read_since(self, cursor: str | None) -> ChangesSince:
        return attrs.evolve(await self.part.read_since(cursor), everything=False)


class ReturnsAllChanges(Defective):
    async def read_since(self, cursor: str | None) -> ChangesSince:
        return attrs.evolve(await self.part.read_since(cursor), changed=[*self.part._changed])


class SendsToEveryReplica(Defective):
    async def send(self, replica: str, content: bytes, **_: Any) -> None:
        for each in self.part._mailboxes.mailboxes:
            await self.part.send(each, content)


class IgnoresSenderOfNumber(Defective):
    async def send(self, replica: str, content: bytes, *, number: int | None = None) -> None:
        first = vars(self.part._mailboxes).setdefault("first", {}).setdefault(number, content)
        await self.part.send(replica, content if number is None else first)


class AllowsSecondMailbox(Defective):
    @asynccontextmanager
    async def mailbox(self) -> AsyncGenerator[AsyncIterator[Any]]:
        first = self.part._mailboxes.mailboxes.pop(self.part._replica, None)
        async with self.part.mailbox() as messages:
            yield messages
        if first is not None:
            self.part._mailboxes.mailboxes[self.part._replica] = first


class IgnoresLease(Defective):
    async def heartbeat(self, *, lease_ms: int) -> bool:
        return await self.part.heartbeat(lease_ms=10**9)


class HeartbeatAlwaysReturnsTrue(Defective):
    async def heartbeat(self, *, lease_ms: int) -> bool:
        await self.part.heartbeat(lease_ms=lease_ms)
        return True


class IgnoresLeave(Defective):
    async def leave(self) -> None:
        pass


class LooksUpBeforeCheckpoint(Defective):
    async def add(self, digest: bytes, *, ttl_ms: int) -> bool:
        is_new = self.part._digests.get(digest) is None
        await trio.lowlevel.checkpoint()
        self.part._digests.put(digest, True, ttl_ms)
        return is_new


class ExtendsRefusedValues(Defective):
    async def add(self, digest: bytes, *, ttl_ms: int) -> bool:
        is_new = await self.part.add(digest, ttl_ms=ttl_ms)
        self.part._digests.put(digest, True, ttl_ms)
        return is_new


class HasOwnBuckets(Defective):
    def __init__(self, part: Any) -> None:
        super().__init__(type(part)(part._now))


class CountsRefusedTokens(Defective):
    async def acquire(self, key: bytes, *, limit: int, period_ms: int, burst: int) -> int:
        wait = await self.part.acquire(key, limit=limit, period_ms=period_ms, burst=burst)
        if wait:
            await self.part.acquire(key, limit=limit, period_ms=period_ms, burst=10**6)
        return wait


class RoundsWaitDown(Defective):
    async def acquire(self, key: bytes, *, limit: int, period_ms: int, burst: int) -> int:
        return max(await self.part.acquire(key, limit=limit, period_ms=period_ms, burst=burst) - 1, 0)


DEFECTS: list[tuple[str, Callable[[Any], Defective], str]] = [
    ("sessions", ReplacesOpenSession, "test_opening_a_session_with_an_id_that_exists_raises_value_error"),
    ("sessions", ChecksLimitBeforeCheckpoint, "test_session_limit_of_each_caller_applies_to_concurrent_openings"),
    ("sessions", ReadsWithoutExtendingLifetime, "test_each_read_or_change_of_a_session_restarts_its_idle_timeout"),
    ("sessions", ComparesMarkBeforeCheckpoint, "test_only_one_of_many_concurrent_changes_of_a_session_succeeds"),
    ("sessions", DeleteAlwaysReturnsTrue, "test_only_one_of_many_concurrent_deletions_of_a_session_returns_true"),
    ("sessions", ChangesBeforeCheckpoint, "test_cancelled_change_of_a_session_is_atomic"),
    ("sessions", HidesLostHints, "test_slow_session_watcher_does_not_block_writers"),
    ("events", AppendsForAnyHolder, "test_append_by_a_caller_other_than_the_holder_returns_false"),
    ("events", RefusesRepeatedFinish, "test_append_call_that_finished_an_event_stream_can_be_repeated_by_the_holder"),
    (
        "events",
        RepeatedFinishExtendsNoLifetime,
        "test_repeated_call_that_finished_an_event_stream_extends_the_session_lifetime",
    ),
    ("events", AppendsBeforeCheckpoint, "test_cancelled_change_of_an_event_stream_is_atomic"),
    ("events", StoresNoteOfLateAppend, "test_append_repeated_after_later_events_were_stored_changes_nothing"),
    ("events", IgnoresByteLimit, "test_oldest_events_of_a_session_are_dropped_if_its_byte_limit_is_exceeded"),
    ("events", FinishesStreamOfAnyHolder, "test_finish_dead_does_not_finish_the_event_stream_of_another_holder"),
    ("events", KeepsHolderOfFinishedStream, "test_finish_dead_appends_a_last_line_and_finishes_the_event_stream"),
    ("events", CountsFromOldestStoredEvent, "test_read_after_returns_all_events_after_the_given_number"),
    ("events", HidesLostHints, "test_slow_event_log_watcher_does_not_block_writers"),
    ("changes", RecordsChangesOneByOne, "test_cancelled_recording_of_changes_is_atomic"),
    (
        "changes",
        HidesDroppedChanges,
        "test_change_log_reports_everything_as_changed_if_it_dropped_changes_after_the_cursor",
    ),
    ("changes", ReturnsAllChanges, "test_change_that_is_recorded_again_is_returned_to_readers_of_the_first_record"),
    ("changes", HidesLostHints, "test_slow_change_log_watcher_does_not_block_writers_and_gets_all_changes"),
    ("courier", SendsToEveryReplica, "test_message_to_an_unknown_replica_is_dropped_without_an_error"),
    ("courier", IgnoresSenderOfNumber, "test_message_with_another_sender_or_number_is_not_treated_as_a_copy"),
    ("courier", AllowsSecondMailbox, "test_opening_a_second_mailbox_of_a_replica_raises_runtime_error"),
    ("courier", HidesLostHints, "test_unread_mailbox_does_not_block_senders_and_reports_lost_messages"),
    ("courier", IgnoresLease, "test_replica_is_dead_after_its_lease_has_expired"),
    ("courier", HeartbeatAlwaysReturnsTrue, "test_replica_is_dead_until_its_first_heartbeat"),
    ("courier", IgnoresLeave, "test_replica_is_dead_immediately_after_it_calls_leave"),
    ("replay_guard", LooksUpBeforeCheckpoint, "test_replay_guard_accepts_only_one_of_many_concurrent_uses_of_a_value"),
    ("replay_guard", ExtendsRefusedValues, "test_replay_guard_accepts_a_value_again_after_its_time_to_live"),
    ("rate_limits", HasOwnBuckets, "test_new_token_bucket_has_burst_tokens_for_all_replicas_together"),
    ("rate_limits", CountsRefusedTokens, "test_new_token_bucket_has_burst_tokens_for_all_replicas_together"),
    ("rate_limits", RoundsWaitDown, "test_token_bucket_gets_limit_tokens_per_period"),
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
        await SharedStorageSuite().test_recording_an_empty_list_of_changes_does_not_move_the_cursor()
