"""EventLogSuite: tests that only the current writer of an event stream can append to it, in order, and that every
replica can read it.

Each stream has one holder. Only the holder can append, until another takes the stream over.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product

from ...stores.shared import StoredEvents, StoredStream
from .event_log_limits import EventLimitTests, StreamUnderTest, open_stream
from .task_store_records import HOUR, expect_error, interruptions
from .tested_storage import (
    ALL_BYTES,
    HOSTILE,
    TestedStorage,
    cancel_one_wait,
    expect_hint_or_loss,
    expect_hints,
    run_concurrently,
)


class _HolderTests(TestedStorage):
    """Tests of `EventLog.open`, `EventLog.take_over` and `EventLog.finish_dead`."""

    async def test_new_event_stream_has_no_events(self) -> None:
        """A new event stream has no events on any replica. Its request id can be any bytes."""
        async with self.open_replica() as one, self.open_replica() as two:
            for number, request_id in enumerate((b"7", b"", ALL_BYTES, bytes(2**20))):
                name = f"stream {number}"
                await one.events.open("session", name, holder="me", request_id=request_id, retention_ms=HOUR)
                for each in (one, two):
                    stream = StoredStream(name, "me", request_id, last=0, dropped=0, note=b"", is_finished=False)
                    assert await StreamUnderTest(each.events, name).read_after(0) == StoredEvents(stream, 1, [])

    async def test_opening_an_event_stream_with_a_name_that_exists_raises_value_error(self) -> None:
        """Opening a second event stream with the same name in a session raises an error, and changes nothing.

        Another session can use the name.
        """
        async with self.open_replica() as one, self.open_replica() as two:
            await one.events.open("session", "stream", holder="me", request_id=b"1", retention_ms=HOUR)
            for holder, request_id in (("you", b"1"), ("me", b"2"), ("me", b"")):
                call = two.events.open("session", "stream", holder=holder, request_id=request_id, retention_ms=HOUR)
                await expect_error(ValueError, call)
            stream = await StreamUnderTest(one.events).stream()
            assert (stream.holder, stream.request_id) == ("me", b"1")
            await two.events.open("other", "stream", holder="you", request_id=b"2", retention_ms=HOUR)

    async def test_open_of_an_event_stream_can_be_repeated_until_the_stream_changes(self) -> None:
        """`EventLog.open` can be repeated with the same arguments until the stream has changed."""
        async with self.open_replica() as one:
            log = await open_stream(one.events)
            await log.open()
            assert await log.append(1, [b"a"])
            await expect_error(ValueError, log.open())
            assert await log.lines() == [b"a"]

    async def test_take_over_creates_an_event_stream_that_does_not_exist(self) -> None:
        """If the event stream doesn't exist, `take_over` creates it. Such a stream belongs to no JSON-RPC request, so
        its request id is empty."""
        async with self.open_replica() as one, self.open_replica() as two:
            created = StoredStream("own", "me", b"", last=0, dropped=0, note=b"", is_finished=False)
            assert await StreamUnderTest(one.events, "own").take_over("me") == created
            assert await StreamUnderTest(two.events, "own").stream() == created

    async def test_only_the_new_holder_of_an_event_stream_can_append_after_take_over(self) -> None:
        """After `take_over`, the former writer of an event stream can't append events. The stream keeps its events,
        their numbers, and the note that `append` has stored with the stream."""
        async with self.open_replica() as one, self.open_replica() as two:
            log = await open_stream(one.events)
            assert await log.append(1, [b"a"], note=b"note")
            taken = await StreamUnderTest(two.events).take_over("you")
            assert taken == StoredStream("stream", "you", b"1", last=1, dropped=0, note=b"note", is_finished=False)
            assert not await log.append(2, [b"late"])
            assert not await log.append(2, [], note=b"late", finish=True)
            assert await log.append(2, [b"b"], holder="you")
            assert await log.lines() == [b"a", b"b"]
            again = await StreamUnderTest(one.events).take_over("you")
            assert again == await log.stream()

    async def test_take_over_does_not_change_a_finished_event_stream(self) -> None:
        """For a finished event stream, `take_over` changes nothing, and returns the stream."""
        async with self.open_replica() as one:
            log = await open_stream(one.events)
            assert await log.append(1, [b"a"], finish=True)
            finished = await log.stream()
            assert finished.is_finished
            assert await StreamUnderTest(one.events).take_over("you") == finished
            assert await log.stream() == finished

    async def test_only_the_last_holder_can_append_after_concurrent_take_over_calls(self) -> None:
        """If twenty writers take over a stream concurrently, only the last of them can append events."""
        async with self.open_replica() as one, self.open_replica() as two:
            holders = [f"holder {number}" for number in range(20)]
            logs = (StreamUnderTest(one.events), StreamUnderTest(two.events))
            await run_concurrently([partial(logs[n % 2].take_over, holder) for n, holder in enumerate(holders)])
            log = logs[0]
            last = (await log.stream()).holder
            can_append = [holder for holder in holders if await log.append(1, [b"a"], holder=holder)]
            assert can_append == [last]

    async def test_finish_dead_appends_a_last_line_and_finishes_the_event_stream(self) -> None:
        """`finish_dead` appends a last line and finishes the stream. After that, no replica may write to the stream."""
        async with self.open_replica() as one, self.open_replica() as two:
            log = await open_stream(one.events)
            assert await log.append(1, [b"a"], note=b"note")
            assert await StreamUnderTest(two.events).finish_dead("me", ALL_BYTES) is True
            finished = StoredStream("stream", "", b"1", last=2, dropped=0, note=b"note", is_finished=True)
            for each in (one, two):
                found = await each.events.read_after("session", "stream", 0, retention_ms=HOUR)
                assert found == StoredEvents(finished, 1, [b"a", ALL_BYTES])
            for first in (1, 2, 3):
                assert not await log.append(first, [b"late"])
                assert not await log.append(first, [b"late"], finish=True)
            assert await log.finish_dead("me", b"late") is False
            assert await log.lines() == [b"a", ALL_BYTES]

    async def test_finish_dead_does_not_finish_the_event_stream_of_another_holder(self) -> None:
        """`finish_dead` changes nothing if the stream is finished, or if the stream's only writer isn't the dead
        replica."""
        async with self.open_replica() as one:
            log = await open_stream(one.events)
            for dead in ("you", "", "ME", "me\0"):
                assert await log.finish_dead(dead, b"dead") is False
            await StreamUnderTest(one.events).take_over("you")
            assert await log.finish_dead("me", b"dead") is False
            assert await log.append(1, [b"a"], holder="you", finish=True)
            assert await log.finish_dead("you", b"dead") is False
            assert await log.lines() == [b"a"]
            for name in HOSTILE:
                assert await StreamUnderTest(one.events, name).finish_dead("you", b"dead") is False
                assert await StreamUnderTest(one.events, session_id=name).finish_dead("you", b"dead") is False
                assert await one.events.read_after(name, "stream", 0, retention_ms=HOUR) is None

    async def test_only_one_of_many_concurrent_finish_dead_calls_succeeds(self) -> None:
        """Of twenty concurrent `finish_dead` calls that try to finish one stream, only one succeeds. The line that this
        call passes becomes the last line of the stream."""
        async with self.open_replica() as one, self.open_replica() as two:
            log = await open_stream(one.events)
            lines = [str(number).encode() for number in range(20)]
            logs = (log, StreamUnderTest(two.events))
            results = await run_concurrently([partial(logs[int(line) % 2].finish_dead, "me", line) for line in lines])
            assert results.count(False) == 19
            assert await log.lines() == [lines[results.index(True)]]

    async def test_either_the_holder_or_a_concurrent_finish_dead_call_finishes_the_event_stream(self) -> None:
        """If a stream's writer finishes the stream while another replica calls `finish_dead`, only one of the two calls
        succeeds."""
        async with self.open_replica() as one, self.open_replica() as two:
            for number in range(10):
                ours = await open_stream(one.events, f"stream {number}")
                theirs = StreamUnderTest(two.events, f"stream {number}")
                calls = [partial(ours.append, 1, [b"end"], finish=True), partial(theirs.finish_dead, "me", b"dead")]
                results = await run_concurrently(calls if number % 2 else calls[::-1])
                ended, finished = results if number % 2 else results[::-1]
                assert [ended, finished] in ([True, False], [False, True])
                assert await ours.lines() == [b"end" if ended else b"dead"]

    async def test_cancelled_change_of_an_event_stream_is_atomic(self) -> None:
        """If a call that changes an event stream is cancelled, the stream is unchanged."""
        async with self.open_replica() as one:
            events = one.events
            for at in interruptions():
                new, old = StreamUnderTest(events, f"new {at.step}"), await open_stream(events, f"old {at.step}")
                end = await open_stream(events, f"end {at.step}")
                other = await open_stream(events, f"other {at.step}")
                opened = await at.call(new.open)
                appended = await at.call(old.append, 1, [b"a", b"b"])
                ended = await at.call(end.finish_dead, "me", b"dead")
                taken = await at.call(other.take_over, "you")
                assert await new.is_there() == bool(opened)
                assert await old.lines() == ([b"a", b"b"] if appended else [])
                assert (await end.stream()).is_finished == bool(ended)
                assert await end.lines() == ([b"dead"] if ended else [])
                assert (await other.stream()).holder == ("you" if taken else "me")


class _AppendTests(TestedStorage):
    """Tests of `EventLog.append` and `EventLog.read_after`."""

    async def test_every_replica_reads_appended_events_unchanged_and_in_order(self) -> None:
        """Every replica reads the events of a stream unchanged and in order, whatever bytes they contain."""
        async with self.open_replica() as one, self.open_replica() as two:
            log = await open_stream(one.events)
            assert await log.append(1, [b"a", b"", ALL_BYTES]) is True
            assert await log.append(4, [bytes(2**20), b"a"]) is True
            for each in (one, two):
                found = await StreamUnderTest(each.events).read_after(0)
                assert (found.first, [*found.lines]) == (1, [b"a", b"", ALL_BYTES, bytes(2**20), b"a"])
                assert (found.stream.last, found.stream.dropped, found.stream.is_finished) == (5, 0, False)

    async def test_one_append_call_can_add_thousands_of_events(self) -> None:
        """A single `append` call can add any number of events, up to the session's limit of bytes."""
        async with self.open_replica() as one:
            log, lines = await open_stream(one.events), [str(number).encode() for number in range(5000)]
            assert await log.append(1, lines)
            assert await log.lines() == lines

    async def test_read_after_returns_all_events_after_the_given_number(self) -> None:
        """`read_after` returns all events whose number is higher than the given number."""
        async with self.open_replica() as one:
            log, lines = await open_stream(one.events), [str(number).encode() for number in range(1, 10)]
            assert await log.append(1, lines)
            for number in (0, 1, 5, 9, 10, 2**53, 10**18 - 1):
                found = await log.read_after(number)
                assert (found.first, [*found.lines], found.stream.last) == (number + 1, lines[number:], 9)

    async def test_reading_an_unknown_event_stream_returns_none_whatever_its_name(self) -> None:
        """`read_after` returns `None` for an unknown session or stream, whatever strings a client sends as their
        names."""
        async with self.open_replica() as one:
            log = await open_stream(one.events)
            assert await log.append(1, [b"a"])
            for text in HOSTILE:
                assert await one.events.read_after("session", text, 0, retention_ms=HOUR) is None
                assert await one.events.read_after(text, "stream", 0, retention_ms=HOUR) is None
                assert not await StreamUnderTest(one.events, text).append(1, [b"a"])
                assert not await StreamUnderTest(one.events, session_id=text).append(1, [b"a"])
                assert await one.events.read_after(text, "stream", 0, retention_ms=HOUR) is None

    async def test_names_of_sessions_event_streams_and_holders_can_be_any_strings(self) -> None:
        """The names of sessions, streams and writers can be any strings, and no name is mistaken for another."""
        async with self.open_replica() as one, self.open_replica() as two:
            names = [*product(HOSTILE, ("s",)), *product(("s",), HOSTILE), ("a:b", "c"), ("a", "b:c"), ("a\0", "b")]
            for session_id, name in names:
                log = await open_stream(one.events, name, session_id, holder=f"{name}!")
                assert await log.append(1, [repr((session_id, name)).encode()], holder=f"{name}!")
            for session_id, name in names:
                log = StreamUnderTest(two.events, name, session_id)
                assert (await log.stream()).holder == f"{name}!"
                assert await log.lines() == [repr((session_id, name)).encode()]

    async def test_append_by_a_caller_other_than_the_holder_returns_false(self) -> None:
        """Only the stream's writer can append events. An `append` call of another caller returns false, whatever event
        number it passes.

        The call changes nothing.
        """
        async with self.open_replica() as one:
            log = await open_stream(one.events)
            before = await log.stream()
            for holder, first in product(("you", "", "ME", "me\0"), (1, 2, 3)):
                assert await log.append(first, [b"a"], holder=holder, note=b"note", finish=True) is False
            assert await log.stream() == before
            assert await log.lines() == []

    async def test_append_replaces_the_note_of_the_event_stream_unless_the_new_note_is_none(self) -> None:
        """The argument ``note`` of an `append` call replaces the note (bytes stored with the event stream), even if it
        is empty. If it is `None`, the note stays."""
        async with self.open_replica() as one, self.open_replica() as two:
            log = await open_stream(one.events)
            appends: Sequence[tuple[int, bytes | None, bytes]] = [
                (1, ALL_BYTES, ALL_BYTES),
                (0, None, ALL_BYTES),
                (1, None, ALL_BYTES),
                (0, b"new", b"new"),
                (1, b"", b""),
            ]
            for count, note, expected in appends:
                first = (await log.stream()).last + 1
                assert await log.append(first, [b"line"] * count, note=note)
                assert (await StreamUnderTest(two.events).stream()).note == expected
            assert await log.lines() == [b"line"] * 3

    async def test_append_that_would_leave_a_gap_in_the_event_numbers_raises_value_error(self) -> None:
        """An `append` call that would leave a gap before its first event number raises `ValueError`, and changes
        nothing."""
        async with self.open_replica() as one:
            log = await open_stream(one.events)
            assert await log.append(1, [b"a"])
            before = await log.stream()
            for lines in ([], [b"late"]):
                await expect_error(ValueError, log.append(3, lines, note=b"note", finish=True))
            assert await log.stream() == before

    async def test_repeated_append_skips_events_that_are_already_stored(self) -> None:
        """A repeated `append` skips the lines whose numbers are already stored, and appends the rest."""
        async with self.open_replica() as one:
            log = await open_stream(one.events)
            for _ in range(2):
                assert await log.append(1, [b"a", b"b"], note=b"one") is True
            assert await log.append(2, [b"other", b"c"]) is True
            assert await log.append(1, [b"other", b"other", b"other", b"d", b"e"], note=b"two") is True
            assert await log.lines() == [b"a", b"b", b"c", b"d", b"e"]
            assert (await log.stream()).note == b"two"

    async def test_append_repeated_after_later_events_were_stored_changes_nothing(self) -> None:
        """If an `append` call is repeated after later events were stored, it returns true and changes nothing.

        The note that `append` stores with the stream also stays unchanged.
        """
        async with self.open_replica() as one:
            log = await open_stream(one.events)
            assert await log.append(1, [b"a"], note=b"old")
            assert await log.append(2, [b"b"], note=b"new")
            before = await log.stream()
            assert await log.append(1, [b"a"], note=b"old") is True
            assert await log.append(2, [], note=b"old") is True
            assert await log.stream() == before

    async def test_nothing_can_be_appended_to_a_finished_event_stream(self) -> None:
        """Nothing can be appended to a finished event stream. A stream can be finished with or without a last event."""
        async with self.open_replica() as one, self.open_replica() as two:
            for count in (0, 1, 2):
                log = await open_stream(one.events, f"stream {count}")
                assert await log.append(1, [b"a"])
                assert await log.append(2, [b"end"] * count, note=b"end", finish=True) is True
                finished = await StreamUnderTest(two.events, log.name).stream()
                assert (finished.is_finished, finished.last, finished.note) == (True, 1 + count, b"end")
                for first in range(1, 5):
                    assert await log.append(first, [b"late"], note=b"late") is False
                assert await log.append(2 + count, [b"late"], finish=True) is False
                assert await log.stream() == finished
                assert await log.lines() == [b"a"] + [b"end"] * count

    async def test_append_call_that_finished_an_event_stream_can_be_repeated_by_the_holder(self) -> None:
        """If the stream's only writer repeats the call that finished the stream, the repeated call also returns
        true."""
        async with self.open_replica() as one:
            for lines in ([], [b"a"], [b"a", b"b"]):
                log = await open_stream(one.events, f"stream {len(lines)}")
                for _ in range(3):
                    assert await log.append(1, lines, note=b"end", finish=True) is True
                assert await log.append(1, lines, holder="you", finish=True) is False
                assert await log.lines() == lines

    async def test_only_one_of_many_concurrent_events_with_the_same_number_is_stored(self) -> None:
        """If several concurrent calls append an event with the same number, only one event is stored. All calls return
        true, because `append` can't distinguish the other calls from repetitions of the first call."""
        async with self.open_replica() as one, self.open_replica() as two:
            logs = (await open_stream(one.events), StreamUnderTest(two.events))
            lines = [str(number).encode() for number in range(20)]
            results = await run_concurrently([partial(logs[int(line) % 2].append, 1, [line]) for line in lines])
            assert results == [True] * 20
            (stored,) = await logs[0].lines()
            assert stored in lines

    async def test_event_log_watcher_is_notified_of_each_change_of_an_event_stream(self) -> None:
        """A watcher is notified when any replica appends to an event stream, takes a stream over, or finishes it."""
        async with self.open_replica() as one, self.open_replica() as two:
            for number, other in enumerate((one, two)):
                log = await open_stream(other.events, f"stream {number}")
                lost = await open_stream(other.events, f"lost {number}")
                async with one.events.watch() as hints:
                    await log.append(1, [b"a"])
                    await expect_hints(hints, ("session", log.name))
                    await log.append(2, [], note=b"note")
                    await expect_hints(hints, ("session", log.name))
                    await log.append(2, [], finish=True)
                    await expect_hints(hints, ("session", log.name))
                    await StreamUnderTest(other.events, lost.name).take_over("you")
                    await expect_hints(hints, ("session", lost.name))
                    await lost.finish_dead("you", b"dead")
                    await expect_hints(hints, ("session", lost.name))

    async def test_event_log_notification_contains_the_exact_names_of_session_and_stream(self) -> None:
        """A notification of a change in an event stream contains the names of the session and the stream, whatever
        strings they are."""
        async with self.open_replica() as one, self.open_replica() as two, one.events.watch() as hints:
            names = [*product(HOSTILE, ("s",)), *product(("s",), HOSTILE), ("a:b", "c"), ("a", "b:c")]
            for session_id, name in names:
                await two.events.take_over(session_id, name, holder="me", retention_ms=HOUR)
                await expect_hints(hints, (session_id, name))

    async def test_event_log_watcher_is_not_notified_of_changes_before_its_start(self) -> None:
        """A watcher of event streams isn't notified of changes before its start. Other watchers that stop or are
        cancelled don't affect it."""
        async with self.open_replica() as one, self.open_replica() as two:
            before, after = await open_stream(two.events, "before"), await open_stream(two.events, "after")
            async with one.events.watch() as earlier:
                await before.append(1, [b"a"])
                await expect_hints(earlier, ("session", "before"))
            async with one.events.watch() as hints:
                async with one.events.watch() as others:
                    await cancel_one_wait(others)
                    await after.append(1, [b"a"])
                    assert set(await expect_hints(others, ("session", "after"))) == {("session", "after")}
                await expect_hints(hints, ("session", "after"))
                await before.append(2, [b"b"])
                await expect_hints(hints, ("session", "before"))

    async def test_slow_event_log_watcher_does_not_block_writers(self) -> None:
        """A watcher that doesn't read its notifications blocks no writer. If notifications are lost, the watcher gets
        `HINTS_LOST` when it reads again.

        The watcher gets all later notifications.
        """
        async with self.open_replica() as one, self.open_replica() as two, one.events.watch() as hints:
            log = await open_stream(two.events)
            for number in range(1, 1501):
                await log.append(number, [b"a"])
            for name in ("last", "later"):
                await StreamUnderTest(two.events, name).take_over("me")
                await (expect_hint_or_loss if name == "last" else expect_hints)(hints, ("session", name))


class EventLogSuite(_HolderTests, _AppendTests, EventLimitTests):
    """Tests for each guarantee in the docstrings of `EventLog`. Every implementation must pass them. See
    `SharedStorageSuite`."""
