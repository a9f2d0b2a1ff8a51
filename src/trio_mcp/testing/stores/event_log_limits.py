"""EventLimitTests: tests of how many bytes of events an `EventLog` stores for a session, and for how long.

All tests of event logs use `StreamUnderTest` for their calls about one stream.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeAlias

import trio

from ...classes import frozen
from ...stores.shared import FINISHED_STREAMS_LIMIT, EventLog, StoredEvents, StoredStream
from .task_store_records import HOUR
from .tested_storage import HOSTILE, LENGTHS, TestedStorage, wait_until

_NO_LIMIT = 2**30


@frozen
class StreamUnderTest:
    """An event stream for tests. Each method calls the method of the event log ``events`` that has the same name.

    The default limits are too high to be reached.
    """

    events: EventLog
    name: str = "stream"
    session_id: str = "session"

    async def open(self, holder: str = "me", retention_ms: int = HOUR) -> None:
        """Create the stream in the event log."""
        await self.events.open(self.session_id, self.name, holder=holder, request_id=b"1", retention_ms=retention_ms)

    async def append(self, first: int, lines: Sequence[bytes], **changes: Any) -> bool:
        """Append ``lines`` to the stream. ``changes`` override the default arguments of `EventLog.append`."""
        usual: dict[str, Any] = {
            "holder": "me",
            "limit": _NO_LIMIT,
            "retention_ms": HOUR,
            "note": None,
            "finish": False,
        }
        return await self.events.append(self.session_id, self.name, first=first, lines=lines, **usual | changes)

    async def take_over(self, holder: str, retention_ms: int = HOUR) -> StoredStream:
        """Let only ``holder`` write to the stream. If the stream doesn't exist, create it."""
        return await self.events.take_over(self.session_id, self.name, holder=holder, retention_ms=retention_ms)

    async def finish_dead(self, dead: str, line: bytes, *, limit: int = _NO_LIMIT, retention_ms: int = HOUR) -> bool:
        """Finish the stream because its only writer is dead. Changes nothing if ``dead`` isn't the writer's id."""
        return await self.events.finish_dead(
            self.session_id, self.name, dead_holder=dead, line=line, limit=limit, retention_ms=retention_ms
        )

    async def read_after(self, number: int) -> StoredEvents:
        """Return the stream and its events whose numbers are higher than ``number``."""
        found = await self.events.read_after(self.session_id, self.name, number, retention_ms=HOUR)
        assert found is not None, f"there is no stream {self.name}"
        return found

    async def stream(self) -> StoredStream:
        """Return the stream as the event log stores it."""
        return (await self.read_after(0)).stream

    async def lines(self) -> list[bytes]:
        """Return the stored lines of the stream, after checking that their numbers are consecutive."""
        found = await self.read_after(0)
        assert found.first == found.stream.dropped + 1
        assert found.stream.last == found.stream.dropped + len(found.lines)
        return list(found.lines)

    async def is_there(self) -> bool:
        """Return whether the stream exists."""
        return await self.events.read_after(self.session_id, self.name, 0, retention_ms=HOUR) is not None

    async def is_gone(self) -> bool:
        """Return true if the stream doesn't exist. This method tries to create the stream, because reading the stream
        would extend the lifetime of its session.

        An attempt to create a stream doesn't extend the lifetime of an existing session.
        """
        try:
            await self.open("another holder")
        except ValueError:
            return False
        return True


async def open_stream(
    events: EventLog, name: str = "stream", session_id: str = "session", *, holder: str = "me", retention_ms: int = HOUR
) -> StreamUnderTest:
    """Create an event stream in ``events``, and return an object with which a test uses the stream."""
    stream = StreamUnderTest(events, name, session_id)
    await stream.open(holder, retention_ms)
    return stream


class EventLimitTests(TestedStorage):
    """Tests of the limits of an `EventLog`: how many bytes of events it stores, and for how long."""

    async def test_oldest_events_of_a_session_are_dropped_if_its_byte_limit_is_exceeded(self) -> None:
        """If the events of a session exceed its limit of bytes, the oldest events of all its streams are dropped first.

        The event numbers show the gap.
        """
        async with self.open_replica() as one, self.open_replica() as two:
            a, b = await open_stream(one.events, "a"), await open_stream(two.events, "b")
            for number in range(1, 6):
                for log in (a, b):
                    assert await log.append(number, [f"{log.name}{number}".encode()], limit=12)
            assert await a.lines() == [b"a3", b"a4", b"a5"]
            assert await b.lines() == [b"b3", b"b4", b"b5"]
            assert await a.append(6, [b"a6", b"a7"], limit=12)
            assert await a.lines() == [b"a4", b"a5", b"a6", b"a7"]
            assert await b.lines() == [b"b4", b"b5"]
            for log, number, first, count in ((a, 0, 4, 4), (a, 3, 4, 4), (a, 4, 5, 3), (b, 1, 4, 2), (b, 5, 6, 0)):
                found = await StreamUnderTest(two.events, log.name).read_after(number)
                assert (found.first, len(found.lines), found.stream.dropped) == (first, count, 3)

    async def test_newest_event_of_each_stream_is_dropped_last(self) -> None:
        """The newest event of each stream is dropped last, even if the stream is finished."""
        async with self.open_replica() as one:
            ended, open_, busy = [await open_stream(one.events, name) for name in ("ended", "open", "busy")]
            assert await ended.append(1, [b"e1", b"e2"], finish=True)
            assert await open_.append(1, [b"o1", b"o2"])
            for number in range(1, 20):
                assert await busy.append(number, [b"b"], limit=8)
            assert await ended.lines() == [b"e2"]
            assert await open_.lines() == [b"o2"]
            assert await busy.lines() == [b"b"] * 4

    async def test_oldest_event_is_dropped_first_if_each_stream_has_only_one_event_left(self) -> None:
        """If each stream of a session has only one event left, the oldest of these events is dropped first."""
        async with self.open_replica() as one:
            logs = [await open_stream(one.events, f"stream {number}") for number in range(4)]
            for log in logs:
                assert await log.append(1, [b"old", b"new"], limit=9)
            assert [await log.lines() for log in logs] == [[], [b"new"], [b"new"], [b"new"]]
            assert [(await log.stream()).last for log in logs] == [2, 2, 2, 2]

    async def test_event_larger_than_the_byte_limit_is_not_stored_but_uses_up_an_event_number(self) -> None:
        """An event that is larger than the session's limit of bytes isn't stored, but uses up an event number. All
        older events are dropped."""
        async with self.open_replica() as one:
            small, large = await open_stream(one.events, "small"), await open_stream(one.events, "large")
            assert await small.append(1, [b"a"])
            assert await large.append(1, [bytes(100)], limit=99, note=b"note")
            assert (await small.lines(), await large.lines()) == ([], [])
            stream = await large.stream()
            assert (stream.last, stream.dropped, stream.note) == (1, 1, b"note")
            assert await large.append(2, [b"b"], limit=99)
            assert await large.lines() == [b"b"]

    async def test_byte_limit_of_events_applies_to_each_session_separately(self) -> None:
        """The total size of each session's events is limited separately. The last line that `finish_dead` adds to the
        stream of a dead replica also counts."""
        async with self.open_replica() as one:
            theirs, ours = await open_stream(one.events, session_id="theirs"), await open_stream(one.events)
            assert await theirs.append(1, [bytes(100)] * 5, limit=500)
            assert await ours.append(1, [bytes(100)] * 6, limit=500)
            assert await ours.finish_dead("me", b"dead", limit=204)
            assert await ours.lines() == [bytes(100)] * 2 + [b"dead"]
            assert await theirs.lines() == [bytes(100)] * 5

    async def test_repeated_and_dropped_events_do_not_count_towards_the_byte_limit(self) -> None:
        """Events that are appended again, and events that were dropped, don't count towards the session's limit of
        bytes."""
        async with self.open_replica() as one:
            log = await open_stream(one.events)
            for number in range(1, 30):
                for _ in range(2):
                    assert await log.append(number, [b"12345"], limit=25)
            assert await log.lines() == [b"12345"] * 5

    async def test_finished_event_stream_is_deleted_after_its_retention_time(self) -> None:
        """A finished event stream is deleted after its retention time, and then no longer counts towards the limit.
        Unfinished streams stay."""
        async with self.open_replica() as one, self.open_replica() as two:
            for retention_ms in LENGTHS:
                stays, ended, dead = [
                    await open_stream(one.events, name, f"{retention_ms}") for name in ("stays", "ended", "dead")
                ]
                assert await stays.append(1, [b"12345"])
                assert await ended.append(1, [b"12345"], finish=True, retention_ms=retention_ms)
                if not await dead.finish_dead("me", b"12345", retention_ms=retention_ms) or not await stays.is_there():
                    # try again with a longer time: this machine was too slow, so the session expired before its use
                    continue
                for log in (ended, dead):
                    await wait_until(partial(_is_deleted, StreamUnderTest(two.events, log.name, log.session_id)))
                    assert not await log.append(1, [b"12345"], finish=True)
                assert await stays.append(2, [b"67890"], limit=10)
                assert await stays.lines() == [b"12345", b"67890"]
                await ended.open()
                assert (await ended.stream()).last == 0
                return
        raise AssertionError("each session expired before it could be used again; the storage is too slow")

    async def test_repeated_call_that_finished_an_event_stream_extends_the_session_lifetime(self) -> None:
        """If the call that finished an event stream is repeated, the repeated call also extends the lifetime of the
        session to which the stream belongs.

        Each call that uses a session extends the session's lifetime.
        """
        async with self.open_replica() as one:
            for retention_ms in LENGTHS:
                log = await open_stream(one.events, session_id=f"{retention_ms}")
                other = StreamUnderTest(one.events, session_id=f"other {retention_ms}")
                assert await log.append(1, [b"a"], finish=True)
                await StreamUnderTest(one.events, "more", log.session_id).take_over("me", retention_ms)
                if not await log.append(1, [b"a"], finish=True):
                    # try again with a longer time: this machine was too slow, so the session expired too early
                    continue
                await other.open(retention_ms=retention_ms)
                await wait_until(other.is_gone)
                assert await log.is_there()
                return
        raise AssertionError("each session expired before it could be used again; the storage is too slow")

    async def test_reading_a_finished_event_stream_does_not_delay_its_deletion(self) -> None:
        """Reading a finished event stream doesn't delay its deletion."""
        async with self.open_replica() as one:
            log = await open_stream(one.events)
            start = trio.current_time()
            assert await log.append(1, [b"a"], finish=True, retention_ms=100)
            await StreamUnderTest(one.events, "other").take_over("me")
            assert await wait_until(partial(_is_deleted, log)) - start > 0.09

    async def test_event_streams_that_finished_first_are_deleted_beyond_their_maximum_number(self) -> None:
        """If a session has more finished streams than its limit, those that were finished first are deleted, whenever
        they were opened."""
        async with self.open_replica() as one:
            open_ = await open_stream(one.events, "open")
            assert await open_.append(1, [b"a"])
            logs = [await open_stream(one.events, f"stream {n}") for n in range(FINISHED_STREAMS_LIMIT + 2)]
            for log in reversed(logs):
                assert await log.append(1, [b"a"], finish=True)
            assert [await log.is_there() for log in logs[-4:]] == [True, True, False, False]
            assert await logs[0].lines() == [b"a"]
            assert await open_.lines() == [b"a"]

    async def test_event_streams_of_an_unused_session_are_deleted(self) -> None:
        """All event streams of an unused session are deleted. A new stream with the same name begins at number 1."""
        async with self.open_replica() as one, self.open_replica() as two:
            log = await open_stream(one.events)
            start = trio.current_time()
            assert await log.append(1, [b"a", b"b"], note=b"note", retention_ms=100)
            assert await wait_until(StreamUnderTest(two.events).is_gone) - start > 0.09
            stream = await log.stream()
            assert (stream.last, stream.note, stream.holder) == (0, b"", "another holder")
            assert await log.append(1, [b"c"], holder="another holder")
            assert await log.lines() == [b"c"]

    async def test_each_use_of_an_event_stream_extends_the_lifetime_of_its_session(self) -> None:
        """Each use of an event stream, on any replica, extends the lifetime of all streams of its session.

        A use is to open, take over, append to, finish or read the stream.
        """
        async with self.open_replica() as one, self.open_replica() as two:

            async def opens(other: StreamUnderTest) -> bool:
                await open_stream(two.events, "further", other.session_id)
                return not await other.is_gone()

            async def takes_over(other: StreamUnderTest) -> bool:
                stream = await StreamUnderTest(two.events, other.name, other.session_id).take_over("me")
                return stream.request_id != b""

            async def appends(other: StreamUnderTest) -> bool:
                return await other.append(1, [b"a"])

            async def finishes(other: StreamUnderTest) -> bool:
                return await other.finish_dead("me", b"dead")

            async def reads(other: StreamUnderTest) -> bool:
                return await other.is_there()

            for use in (opens, takes_over, appends, finishes, reads):
                await _check_that_use_extends_lifetime(one.events, two.events, use)

    async def test_event_log_delete_removes_all_event_streams_of_one_session(self) -> None:
        """`EventLog.delete` removes all event streams of one session. Deleting an unknown session raises no error."""
        async with self.open_replica() as one, self.open_replica() as two:
            logs = [await open_stream(one.events, f"stream {number}") for number in range(3)]
            other = await open_stream(one.events, "stream 0", "other")
            for log in (*logs, other):
                assert await log.append(1, [b"12345"])
            await two.events.delete("session")
            assert [await log.is_there() for log in (*logs, other)] == [False, False, False, True]
            for text in ("session", *HOSTILE):
                await one.events.delete(text)
            assert await other.lines() == [b"12345"]
            await logs[0].open()
            assert await logs[0].append(1, [b"67890"], limit=5)
            assert await logs[0].lines() == [b"67890"]


_Use: TypeAlias = Callable[[StreamUnderTest], Coroutine[Any, Any, bool]]


async def _check_that_use_extends_lifetime(events: EventLog, others: EventLog, use: _Use) -> None:
    """Check that a session that is used once, by calling ``use``, lives longer than a session that isn't used."""
    for retention_ms in LENGTHS:
        log = await open_stream(events, session_id=f"{use.__name__} {retention_ms}", retention_ms=retention_ms)
        unused = f"{use.__name__} {retention_ms}, without use"
        control = await open_stream(events, session_id=unused, retention_ms=retention_ms)
        if await use(StreamUnderTest(others, log.name, log.session_id)):
            await wait_until(control.is_gone)
            assert await log.is_there()
            return
    raise AssertionError("each session expired before it could be used again; the storage is too slow")


async def _is_deleted(log: StreamUnderTest) -> bool:
    return not await log.is_there()
