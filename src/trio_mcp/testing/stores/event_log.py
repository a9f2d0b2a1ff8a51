"""EventLogSuite: the events of a stream are appended by its holder alone, in order, and read by everybody."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product

from .event_log_holders import HolderTests
from .event_log_limits import EventLimitTests, StreamUnderTest
from .task_store_records import HOUR, expect_error
from .tested_storage import (
    ALL_BYTES,
    HOSTILE,
    TestedStorage,
    cancel_one_wait,
    expect_hint_or_loss,
    expect_hints,
    run_concurrently,
)

_NUMBERS = (1, 2, 3)


class _AppendTests(TestedStorage):
    """The tests of `append` and `after`."""

    async def test_events_are_read_as_they_were_appended(self) -> None:
        """In their order, by every replica, with any bytes."""
        async with self.open_replica() as one, self.open_replica() as two:
            log = await StreamUnderTest(one.events, "stream").open()
            assert await log.append(1, [b"a", b"", ALL_BYTES]) is True
            assert await log.append(4, [bytes(2**20), b"a"]) is True
            for each in (one, two):
                found = await each.events.read_after("session", "stream", 0, retention_ms=HOUR)
                assert found is not None
                assert (found.first, [*found.lines]) == (1, [b"a", b"", ALL_BYTES, bytes(2**20), b"a"])
                assert (found.stream.last, found.stream.dropped, found.stream.is_finished) == (5, 0, False)

    async def test_thousands_of_events_are_appended_in_one_call(self) -> None:
        """There is no bound but that of the bytes."""
        async with self.open_replica() as one:
            log, lines = (
                await StreamUnderTest(one.events, "stream").open(),
                [str(number).encode() for number in range(5000)],
            )
            assert await log.append(1, lines)
            assert await log.lines() == lines

    async def test_events_behind_a_number_are_read(self) -> None:
        """Behind the last there are none, nor beyond."""
        async with self.open_replica() as one:
            log, lines = (
                await StreamUnderTest(one.events, "stream").open(),
                [str(number).encode() for number in range(1, 10)],
            )
            assert await log.append(1, lines)
            for number in (0, 1, 5, 9, 10, 2**53, 10**18 - 1):
                found = await one.events.read_after("session", "stream", number, retention_ms=HOUR)
                assert found is not None
                assert (found.first, [*found.lines], found.stream.last) == (number + 1, lines[number:], 9)

    async def test_unknown_stream_is_none_for_any_text(self) -> None:
        """A peer may come back with any text."""
        async with self.open_replica() as one:
            log = await StreamUnderTest(one.events, "stream").open()
            assert await log.append(1, [b"a"])
            for text in HOSTILE:
                assert await one.events.read_after("session", text, 0, retention_ms=HOUR) is None
                assert await one.events.read_after(text, "stream", 0, retention_ms=HOUR) is None
                assert not await StreamUnderTest(one.events, text).append(1, [b"a"])
                assert not await StreamUnderTest(one.events, "stream", text).append(1, [b"a"])
                assert await one.events.read_after(text, "stream", 0, retention_ms=HOUR) is None

    async def test_sessions_streams_and_holders_may_have_any_text(self) -> None:
        """None stands for another, nor do two together."""
        async with self.open_replica() as one, self.open_replica() as two:
            names = [*product(HOSTILE, ("s",)), *product(("s",), HOSTILE), ("a:b", "c"), ("a", "b:c"), ("a\0", "b")]
            for session_id, name in names:
                log = await StreamUnderTest(one.events, name, session_id).open(holder=f"{name}!")
                assert await log.append(1, [repr((session_id, name)).encode()], holder=f"{name}!")
            for session_id, name in names:
                log = StreamUnderTest(two.events, name, session_id)
                assert (await log.stream()).holder == f"{name}!"
                assert await log.lines() == [repr((session_id, name)).encode()]

    async def test_append_by_another_than_the_holder_is_refused(self) -> None:
        """Nothing is changed, not even the note, and no number is too high."""
        async with self.open_replica() as one:
            log = await StreamUnderTest(one.events, "stream").open()
            before = await log.stream()
            for holder, first in product(("you", "", "ME", "me\0"), _NUMBERS):
                assert await log.append(first, [b"a"], holder=holder, note=b"note", finish=True) is False
            assert await log.stream() == before
            assert await log.lines() == []

    async def test_note_is_that_of_the_last_append_with_one(self) -> None:
        """With lines or without; `None` is none, and an empty one is one."""
        async with self.open_replica() as one, self.open_replica() as two:
            log = await StreamUnderTest(one.events, "stream").open()
            said: Sequence[tuple[int, bytes | None, bytes]] = [
                (1, ALL_BYTES, ALL_BYTES),
                (0, None, ALL_BYTES),
                (1, None, ALL_BYTES),
                (0, b"new", b"new"),
                (1, b"", b""),
            ]
            for count, note, expected in said:
                first = (await log.stream()).last + 1
                assert await log.append(first, [b"line"] * count, note=note)
                assert (await StreamUnderTest(two.events, "stream").stream()).note == expected
            assert await log.lines() == [b"line"] * 3

    async def test_number_that_is_too_high_is_refused(self) -> None:
        """Events between would be missing. Nothing is changed."""
        async with self.open_replica() as one:
            log = await StreamUnderTest(one.events, "stream").open()
            assert await log.append(1, [b"a"])
            before = await log.stream()
            for lines in ([], [b"late"]):
                await expect_error(ValueError, log.append(3, lines, note=b"note", finish=True))
            assert await log.stream() == before

    async def test_append_can_be_made_again(self) -> None:
        """Lines with known numbers are dropped, and the others appended."""
        async with self.open_replica() as one:
            log = await StreamUnderTest(one.events, "stream").open()
            for _ in range(2):
                assert await log.append(1, [b"a", b"b"], note=b"one") is True
            assert await log.append(2, [b"other", b"c"]) is True
            assert await log.append(1, [b"other", b"other", b"other", b"d", b"e"], note=b"two") is True
            assert await log.lines() == [b"a", b"b", b"c", b"d", b"e"]
            assert (await log.stream()).note == b"two"

    async def test_append_that_comes_late_changes_nothing(self) -> None:
        """Its note is of the past; the call returns true, since its lines are there."""
        async with self.open_replica() as one:
            log = await StreamUnderTest(one.events, "stream").open()
            assert await log.append(1, [b"a"], note=b"old")
            assert await log.append(2, [b"b"], note=b"new")
            before = await log.stream()
            assert await log.append(1, [b"a"], note=b"old") is True
            assert await log.append(2, [], note=b"old") is True
            assert await log.stream() == before

    async def test_nothing_follows_the_end_of_a_stream(self) -> None:
        """An end with lines or without."""
        async with self.open_replica() as one, self.open_replica() as two:
            for count in (0, 1, 2):
                log = await StreamUnderTest(one.events, f"stream {count}").open()
                assert await log.append(1, [b"a"])
                assert await log.append(2, [b"end"] * count, note=b"end", finish=True) is True
                finished = await StreamUnderTest(two.events, log.name).stream()
                assert (finished.is_finished, finished.last, finished.note) == (True, 1 + count, b"end")
                for first in range(1, 5):
                    assert await log.append(first, [b"late"], note=b"late") is False
                assert await log.append(2 + count, [b"late"], finish=True) is False
                assert await log.stream() == finished
                assert await log.lines() == [b"a"] + [b"end"] * count

    async def test_end_of_a_stream_can_be_made_again(self) -> None:
        """The call returns true for the holder that has finished the stream so."""
        async with self.open_replica() as one:
            for lines in ([], [b"a"], [b"a", b"b"]):
                log = await StreamUnderTest(one.events, f"stream {len(lines)}").open()
                for _ in range(3):
                    assert await log.append(1, lines, note=b"end", finish=True) is True
                assert await log.append(1, lines, holder="you", finish=True) is False
                assert await log.lines() == lines

    async def test_one_of_many_appends_with_the_same_number_is_kept(self) -> None:
        """The others are dropped, as if made again."""
        async with self.open_replica() as one, self.open_replica() as two:
            logs = (await StreamUnderTest(one.events, "stream").open(), StreamUnderTest(two.events, "stream"))
            lines = [str(number).encode() for number in range(20)]
            results = await run_concurrently([partial(logs[int(line) % 2].append, 1, [line]) for line in lines])
            assert results == [True] * 20
            (kept,) = await logs[0].lines()
            assert kept in lines

    async def test_watcher_of_events_is_told(self) -> None:
        """Of all that is appended, taken or finished, by this replica and by others."""
        async with self.open_replica() as one, self.open_replica() as two:
            for number, other in enumerate((one, two)):
                log = await StreamUnderTest(other.events, f"stream {number}").open()
                lost = await StreamUnderTest(other.events, f"lost {number}").open()
                async with one.events.watch() as hints:
                    await log.append(1, [b"a"])
                    await expect_hints(hints, ("session", log.name))
                    await log.append(2, [], note=b"note")
                    await expect_hints(hints, ("session", log.name))
                    await log.append(2, [], finish=True)
                    await expect_hints(hints, ("session", log.name))
                    await other.events.take_over("session", lost.name, holder="you", retention_ms=HOUR)
                    await expect_hints(hints, ("session", lost.name))
                    await lost.finish_dead("you", b"dead")
                    await expect_hints(hints, ("session", lost.name))

    async def test_watcher_of_events_is_told_of_any_text(self) -> None:
        """The names come unchanged."""
        async with self.open_replica() as one, self.open_replica() as two, one.events.watch() as hints:
            names = [*product(HOSTILE, ("s",)), *product(("s",), HOSTILE), ("a:b", "c"), ("a", "b:c")]
            for session_id, name in names:
                await two.events.take_over(session_id, name, holder="me", retention_ms=HOUR)
                await expect_hints(hints, (session_id, name))

    async def test_watcher_of_events_is_not_told_of_the_past(self) -> None:
        """A watcher that leaves takes no hint from another; waiting for a hint can be cancelled."""
        async with self.open_replica() as one, self.open_replica() as two:
            before, after = (
                await StreamUnderTest(two.events, "before").open(),
                await StreamUnderTest(two.events, "after").open(),
            )
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

    async def test_watcher_of_events_that_does_not_read_holds_up_nobody(self) -> None:
        """Where hints are lost in the end, a gap tells; later hints are not."""
        async with self.open_replica() as one, self.open_replica() as two, one.events.watch() as hints:
            log = await StreamUnderTest(two.events, "stream").open()
            for number in range(1, 1501):
                await log.append(number, [b"a"])
            for name in ("last", "later"):
                await two.events.take_over("session", name, holder="me", retention_ms=HOUR)
                await (expect_hint_or_loss if name == "last" else expect_hints)(hints, ("session", name))


class EventLogSuite(HolderTests, _AppendTests, EventLimitTests):
    """The tests that every `EventLog` has to pass, for each sentence of its docstrings. See `SharedStorageSuite`."""
