"""HolderTests: each stream of an `EventLog` has one holder, who alone appends, until another takes its place."""

from __future__ import annotations

from functools import partial

from ...stores.shared import StoredEvents, StoredStream
from .event_log_limits import StreamUnderTest
from .task_store_records import HOUR, expect_error, interrupt
from .tested_storage import ALL_BYTES, HOSTILE, TestedStorage, run_concurrently


class HolderTests(TestedStorage):
    """The tests of `open`, `take` and `finish_dead`."""

    async def test_stream_begins_without_events(self) -> None:
        """Every replica sees so, with any bytes as the request's id."""
        async with self.open_replica() as one, self.open_replica() as two:
            for number, request_id in enumerate((b"7", b"", ALL_BYTES, bytes(2**20))):
                name = f"stream {number}"
                await one.events.open("session", name, holder="me", request_id=request_id, retention_ms=HOUR)
                for each in (one, two):
                    stream = StoredStream(name, "me", request_id, last=0, dropped=0, note=b"", is_finished=False)
                    assert await each.events.read_after("session", name, 0, retention_ms=HOUR) == StoredEvents(
                        stream, 1, []
                    )

    async def test_stream_with_a_taken_name_is_refused(self) -> None:
        """The first one stays; another session may have a stream of the same name."""
        async with self.open_replica() as one, self.open_replica() as two:
            await one.events.open("session", "stream", holder="me", request_id=b"1", retention_ms=HOUR)
            for holder, request_id in (("you", b"1"), ("me", b"2"), ("me", b"")):
                call = two.events.open("session", "stream", holder=holder, request_id=request_id, retention_ms=HOUR)
                await expect_error(ValueError, call)
            stream = await StreamUnderTest(one.events, "stream").stream()
            assert (stream.holder, stream.request_id) == ("me", b"1")
            await two.events.open("other", "stream", holder="you", request_id=b"2", retention_ms=HOUR)

    async def test_open_of_a_stream_can_be_made_again(self) -> None:
        """Until something has happened to the stream."""
        async with self.open_replica() as one:
            log = await StreamUnderTest(one.events, "stream").open()
            await log.open()
            assert await log.append(1, [b"a"])
            await expect_error(ValueError, log.open())
            assert await log.lines() == [b"a"]

    async def test_take_begins_a_stream(self) -> None:
        """One that answers no request."""
        async with self.open_replica() as one, self.open_replica() as two:
            begun = StoredStream("own", "me", b"", last=0, dropped=0, note=b"", is_finished=False)
            assert await one.events.take_over("session", "own", holder="me", retention_ms=HOUR) == begun
            assert await StreamUnderTest(two.events, "own").stream() == begun

    async def test_take_names_another_holder(self) -> None:
        """The former one appends nothing more; events, note and numbers stay."""
        async with self.open_replica() as one, self.open_replica() as two:
            log = await StreamUnderTest(one.events, "stream").open()
            assert await log.append(1, [b"a"], note=b"note")
            taken = await two.events.take_over("session", "stream", holder="you", retention_ms=HOUR)
            assert taken == StoredStream("stream", "you", b"1", last=1, dropped=0, note=b"note", is_finished=False)
            assert not await log.append(2, [b"late"])
            assert not await log.append(2, [], note=b"late", finish=True)
            assert await log.append(2, [b"b"], holder="you")
            assert await log.lines() == [b"a", b"b"]
            again = await one.events.take_over("session", "stream", holder="you", retention_ms=HOUR)
            assert again == await log.stream()

    async def test_take_leaves_a_finished_stream_alone(self) -> None:
        """The finished stream is returned unchanged."""
        async with self.open_replica() as one:
            log = await StreamUnderTest(one.events, "stream").open()
            assert await log.append(1, [b"a"], finish=True)
            finished = await log.stream()
            assert finished.is_finished
            assert await one.events.take_over("session", "stream", holder="you", retention_ms=HOUR) == finished
            assert await log.stream() == finished

    async def test_last_of_many_who_take_a_stream_appends(self) -> None:
        """And no other, of twenty at the same time."""
        async with self.open_replica() as one, self.open_replica() as two:
            holders = [f"holder {number}" for number in range(20)]
            await run_concurrently(
                [
                    partial(
                        (one, two)[number % 2].events.take_over, "session", "stream", holder=holder, retention_ms=HOUR
                    )
                    for number, holder in enumerate(holders)
                ]
            )
            log = StreamUnderTest(one.events, "stream")
            last = (await log.stream()).holder
            can_append = [holder for holder in holders if await log.append(1, [b"a"], holder=holder)]
            assert can_append == [last]

    async def test_stream_of_the_dead_is_finished(self) -> None:
        """With a last line, and for good: nobody is its holder then."""
        async with self.open_replica() as one, self.open_replica() as two:
            log = await StreamUnderTest(one.events, "stream").open()
            assert await log.append(1, [b"a"], note=b"note")
            assert await StreamUnderTest(two.events, "stream").finish_dead("me", ALL_BYTES) is True
            finished = StoredStream("stream", "", b"1", last=2, dropped=0, note=b"note", is_finished=True)
            for each in (one, two):
                found = await each.events.read_after("session", "stream", 0, retention_ms=HOUR)
                assert found == StoredEvents(finished, 1, [b"a", ALL_BYTES])
            for first in (1, 2, 3):
                assert not await log.append(first, [b"late"])
                assert not await log.append(first, [b"late"], finish=True)
            assert await log.finish_dead("me", b"late") is False
            assert await log.lines() == [b"a", ALL_BYTES]

    async def test_stream_of_a_living_holder_is_not_finished(self) -> None:
        """Only where the dead one is its holder still; nor one that is finished, or is not there."""
        async with self.open_replica() as one:
            log = await StreamUnderTest(one.events, "stream").open()
            for dead in ("you", "", "ME", "me\0"):
                assert await log.finish_dead(dead, b"dead") is False
            await one.events.take_over("session", "stream", holder="you", retention_ms=HOUR)
            assert await log.finish_dead("me", b"dead") is False
            assert await log.append(1, [b"a"], holder="you", finish=True)
            assert await log.finish_dead("you", b"dead") is False
            assert await log.lines() == [b"a"]
            for name in HOSTILE:
                assert await StreamUnderTest(one.events, name).finish_dead("you", b"dead") is False
                assert await StreamUnderTest(one.events, "stream", name).finish_dead("you", b"dead") is False
                assert await one.events.read_after(name, "stream", 0, retention_ms=HOUR) is None

    async def test_one_of_many_finishes_the_stream_of_the_dead(self) -> None:
        """Its line is the last one, of twenty at the same time."""
        async with self.open_replica() as one, self.open_replica() as two:
            log = await StreamUnderTest(one.events, "stream").open()
            lines = [str(number).encode() for number in range(20)]
            logs = (log, StreamUnderTest(two.events, "stream"))
            results = await run_concurrently([partial(logs[int(line) % 2].finish_dead, "me", line) for line in lines])
            assert results.count(False) == 19
            assert await log.lines() == [lines[results.index(True)]]

    async def test_holder_or_the_one_who_takes_it_for_dead_finishes_a_stream(self) -> None:
        """Never both: of an end and the end of the dead at the same time, one is kept, and the other is told."""
        async with self.open_replica() as one, self.open_replica() as two:
            for number in range(10):
                ours = await StreamUnderTest(one.events, f"stream {number}").open()
                theirs = StreamUnderTest(two.events, f"stream {number}")
                calls = [partial(ours.append, 1, [b"end"], finish=True), partial(theirs.finish_dead, "me", b"dead")]
                results = await run_concurrently(calls if number % 2 else calls[::-1])
                ended, finished = results if number % 2 else results[::-1]
                assert [ended, finished] in ([True, False], [False, True])
                assert await ours.lines() == [b"end" if ended else b"dead"]

    async def test_cancelled_call_to_an_event_log_is_whole_or_nothing(self) -> None:
        """A call that returned has changed the stream, and one that was cancelled has not."""
        async with self.open_replica() as one:
            events = one.events
            step, waits = 1, True
            while waits:
                new, old = StreamUnderTest(events, f"new {step}"), await StreamUnderTest(events, f"old {step}").open()
                end, took = (
                    await StreamUnderTest(events, f"end {step}").open(),
                    await StreamUnderTest(events, f"took {step}").open(),
                )
                opens, opened = await interrupt(step, new.open)
                appends, appended = await interrupt(step, old.append, 1, [b"a", b"b"])
                ends, ended = await interrupt(step, end.finish_dead, "me", b"dead")
                takes, taken = await interrupt(
                    step, partial(events.take_over, "session", took.name, holder="you", retention_ms=HOUR)
                )
                found = await events.read_after("session", new.name, 0, retention_ms=HOUR)
                assert (found is not None) == bool(opened)
                assert await old.lines() == ([b"a", b"b"] if appended else [])
                assert ((await end.stream()).is_finished, await end.lines()) == (
                    (True, [b"dead"]) if ended else (False, [])
                )
                assert (await took.stream()).holder == ("you" if taken else "me")
                waits = opens or appends or ends or takes
                step += 1
