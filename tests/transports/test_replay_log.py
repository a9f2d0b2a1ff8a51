"""A cursor is good for what followed in its own stream, and for nothing else."""

from __future__ import annotations

import gc
import re
import tracemalloc

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from trio_mcp.concurrency.fair_share import Caller, SharedBytes
from trio_mcp.transports.sse import BadCursor, ReplayLog

KIB = 1024


def log(*, stream: int = 64 * KIB, session: int = 256 * KIB) -> ReplayLog:
    return ReplayLog(stream, session)


def extended(kept: ReplayLog, stream: str, lines: list[bytes], *, awaited: bool = False) -> str:
    """Extend a stream, and return the id of the first of the events."""
    return f"{stream}-{kept.extend(stream, lines, awaited=awaited)}"


def lines(kept: ReplayLog, cursor: str) -> list[bytes]:
    return [line for _, line in kept.after(cursor).events]


def test_replay_after_an_event_id_returns_only_later_events_of_the_same_stream() -> None:
    kept = log()
    one, two = kept.open(), kept.open()
    first = extended(kept, one, [b"a\n"])
    other = extended(kept, two, [b"x\n"])
    second = extended(kept, one, [b"b\n"])
    kept.extend(two, [b"y\n"])
    assert kept.after(first).events == [(second, b"b\n")]
    assert lines(kept, other) == [b"y\n"]
    assert lines(kept, second) == []
    assert (kept.after(first).stream, kept.after(other).stream) == (one, two)


def test_sse_event_ids_are_visible_ascii_and_unique_in_the_session() -> None:
    kept = log()
    streams = [kept.open() for _ in range(20)]
    ids = [extended(kept, stream, [b"a\n"]) for stream in streams for _ in range(20)]
    assert len({*ids, *(kept.cursor(kept.open()) for _ in range(20))}) == 420
    assert all(re.fullmatch(r"[!-~]+", each) for each in ids)


def test_replay_can_start_before_the_first_event_of_a_stream() -> None:
    kept = log()
    stream = kept.open()
    primed = kept.cursor(stream)
    assert lines(kept, primed) == []
    kept.extend(stream, [b"a\n"])
    kept.extend(stream, [b"b\n"])
    assert lines(kept, primed) == [b"a\n", b"b\n"]


def test_replay_after_the_same_event_id_can_be_requested_twice() -> None:
    kept = log()
    stream = kept.open()
    cursor = extended(kept, stream, [b"a\n"])
    assert kept.cursor(stream) == cursor
    kept.extend(stream, [b"b\n"])
    assert kept.after(cursor) == kept.after(cursor)


def test_event_id_of_another_session_is_reported_as_unknown_at_replay() -> None:
    one, two = log(), log()
    cursor = extended(one, one.open(), [b"a\n"])
    two.extend(two.open(), [b"x\n"])
    with pytest.raises(BadCursor, match="this session has no stream"):
        two.after(cursor)


@pytest.mark.parametrize(
    "change", ["{}0", "{}-", "-{}", "{} ", " {}", "", "-", "1", "{}-1", "{}\u0661", "{}" + "1" * 5000]
)
def test_event_id_that_no_stream_issued_is_reported_as_unknown_at_replay(change: str) -> None:
    kept = log()
    cursor = extended(kept, kept.open(), [b"a\n"])
    with pytest.raises(BadCursor, match=r"this session has no (stream|event) with this"):
        kept.after(change.format(cursor))


@pytest.mark.parametrize("digits", ["2", "01", "+1", "1.0", "-1", "\u0661"])
def test_event_id_with_a_number_that_the_stream_never_used_is_reported_as_unknown_at_replay(digits: str) -> None:
    kept = log()
    stream = kept.open()
    kept.extend(stream, [b"a\n"])
    with pytest.raises(BadCursor):
        kept.after(f"{stream}-{digits}")


def test_replay_after_an_event_id_fails_if_the_following_event_was_dropped() -> None:
    kept = log(stream=3 * KIB)
    stream = kept.open()
    cursors = [kept.cursor(stream), *(extended(kept, stream, [b"x" * 500 + b"\n"]) for _ in range(10))]
    good = [cursor for cursor in cursors if is_good(kept, cursor)]
    assert good == cursors[-5:]
    assert [len(lines(kept, cursor)) for cursor in good] == [4, 3, 2, 1, 0]
    with pytest.raises(BadCursor, match="no longer stored"):
        kept.after(cursors[-6])


def is_good(kept: ReplayLog, cursor: str) -> bool:
    try:
        kept.after(cursor)
    except BadCursor:
        return False
    return True


def test_stream_that_exceeds_its_replay_limit_does_not_affect_other_streams() -> None:
    kept = log(stream=3 * KIB)
    one, two = kept.open(), kept.open()
    primed = kept.cursor(one)
    kept.extend(one, [b"a\n"])
    for _ in range(100):
        kept.extend(two, [b"x" * 500])
    assert lines(kept, primed) == [b"a\n"]


def test_replay_log_drops_the_oldest_events_of_a_session_beyond_the_limit() -> None:
    kept = log(session=8 * KIB)
    streams = [kept.open() for _ in range(3)]
    cursors = [extended(kept, streams[at % 3], [b"x" * 700]) for at in range(30)]
    behind = [is_good(kept, cursor) for cursor in cursors]
    assert behind == sorted(behind), "those that are gone came before those that are kept"
    assert 9 <= sum(behind) < 12


def test_oversized_sse_event_is_not_kept_for_replay_but_gets_an_id() -> None:
    kept = log(session=4 * KIB)
    stream = kept.open()
    before = extended(kept, stream, [b"a\n"])
    after = extended(kept, stream, [b"x" * 5 * KIB])
    with pytest.raises(BadCursor, match="no longer stored"):
        kept.after(before)
    assert lines(kept, after) == []


def test_finished_sse_stream_is_kept_for_replay_until_it_expires() -> None:
    kept = log()
    stream = kept.open()
    primed = kept.cursor(stream)
    kept.extend(stream, [b"a\n"])
    assert not kept.after(primed).finished
    kept.finish(stream, 60.0)
    kept.drop_finished(59.9)
    assert kept.after(primed).finished
    assert lines(kept, primed) == [b"a\n"]
    kept.drop_finished(60.0)
    with pytest.raises(BadCursor):
        kept.after(primed)


def test_sse_stream_that_finished_without_events_is_kept_until_it_expires() -> None:
    kept = log()
    stream = kept.open()
    kept.finish(stream, 60.0)
    assert kept.after(kept.cursor(stream)).finished


def test_finished_sse_streams_kept_for_replay_can_expire_in_any_order() -> None:
    kept = log()
    late, soon = kept.open(), kept.open()
    kept.finish(late, 9.0)
    kept.finish(soon, 1.0)
    kept.drop_finished(5.0)
    assert is_good(kept, f"{late}-0")
    assert not is_good(kept, f"{soon}-0")


def test_replay_log_whose_events_expired_uses_no_more_memory_than_a_new_one() -> None:
    kept = log(stream=2 * KIB, session=16 * KIB)
    for at in range(50):
        stream = kept.open()
        for _ in range(at):
            kept.extend(stream, [b"x" * at])
        kept.finish(stream, at)
    kept.drop_finished(50)
    assert kept.size == log().size == 0


def test_memory_of_many_finished_sse_streams_stays_within_the_replay_limit() -> None:
    kept = log(session=64 * KIB)
    tracemalloc.start()
    try:
        for at in range(5_000):
            stream = kept.open()
            if at % 2:
                kept.extend(stream, [b"%05d\n" % at])
            kept.finish(stream, 60.0)
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept.size <= 64 * KIB
    assert taken < 4 * 64 * KIB


@pytest.mark.parametrize("events", [0, 1])
def test_finished_sse_streams_without_events_evict_no_events_of_other_streams(events: int) -> None:
    kept = log(session=16 * KIB)
    for _ in range(1000):
        stream = kept.open()
        for _ in range(events):
            kept.extend(stream, [b"x\n"])
        kept.finish(stream, 60.0)
    stream = kept.open()
    primed = kept.cursor(stream)
    for _ in range(10):
        kept.extend(stream, [b"x" * 500 + b"\n"])
    kept.finish(stream, 60.0)
    assert len(lines(kept, primed)) == 10
    assert kept.size > 15 * KIB, "no more is given up than has to be"


def test_sse_events_that_exactly_fill_the_replay_limits_are_kept() -> None:
    kept = ReplayLog(2 * 300, 256 + 2 * 300)
    stream = kept.open()
    primed = kept.cursor(stream)
    kept.extend(stream, [b"x" * 43 + b"\n"])
    kept.extend(stream, [b"y" * 43 + b"\n"])
    assert len(lines(kept, primed)) == 2


def test_last_event_id_of_an_unfinished_sse_stream_stays_valid_for_replay() -> None:
    kept = log(session=KIB)
    streams = [kept.open() for _ in range(10)]
    cursors = [extended(kept, stream, [b"a\n"]) for stream in streams]
    assert all(is_good(kept, cursor) for cursor in cursors)


def test_newest_undelivered_sse_event_is_kept_for_replay_whatever_its_size() -> None:
    kept = log(stream=2 * KIB, session=4 * KIB)
    stream = kept.open()
    primed = kept.cursor(stream)
    kept.extend(stream, [b"log\n"], awaited=True)
    kept.extend(stream, [b"x" * 50 * KIB], awaited=True)
    kept.finish(stream, 60.0)
    for _ in range(20):
        kept.extend(kept.open(), [b"y" * 200])  # there is no room for any more
    assert [len(line) for line in lines(kept, f"{stream}-1")] == [50 * KIB]
    with pytest.raises(BadCursor, match="no longer stored"):
        kept.after(primed)
    assert kept.size <= 256 * 21
    kept.drop_finished(60.0)
    with pytest.raises(BadCursor):
        kept.after(primed)


def test_oversized_undelivered_sse_event_is_dropped_from_replay_when_newer_events_follow() -> None:
    kept = log(stream=2 * KIB, session=4 * KIB)
    stream = kept.open()
    primed = kept.cursor(stream)
    large = extended(kept, stream, [b"x" * 50 * KIB], awaited=True)
    assert len(lines(kept, primed)) == 1
    kept.extend(stream, [b"a\n", b"b\n"], awaited=True)
    assert not is_good(kept, primed)
    assert lines(kept, large) == [b"a\n", b"b\n"]
    kept.extend(stream, [b"c\n"])  # a client takes it
    assert lines(kept, large) == [b"a\n", b"b\n", b"c\n"]


def test_replay_of_a_stream_with_dropped_events_returns_the_remaining_events_and_reports_the_loss() -> None:
    kept = log(stream=3 * KIB)
    stream = kept.open()
    primed = kept.cursor(stream)
    said = [extended(kept, stream, [b"%500d\n" % number], awaited=True) for number in range(10)]
    replay, is_gap = kept.retained_after(primed)
    assert is_gap
    assert [each for each, _ in replay.events] == said[-5:]
    replay, is_gap = kept.retained_after(said[-2])
    assert ([each for each, _ in replay.events], is_gap) == (said[-1:], False)


def test_all_replay_logs_of_a_caller_stay_within_its_memory_limit() -> None:
    shared = SharedBytes(100 * KIB)
    hoarder, other = Caller("hoarder"), Caller("other")
    logs = [ReplayLog(64 * KIB, 256 * KIB, shared.held_for(hoarder)) for _ in range(10)]
    cursors: list[str] = []
    for kept in logs:
        stream = kept.open()
        cursors.append(kept.cursor(stream))
        kept.extend(stream, [b"x" * 9 * KIB], awaited=True)
        kept.finish(stream, 60.0)
    assert [is_good(kept, cursor) for kept, cursor in zip(logs, cursors, strict=True)] == [True] * 5 + [False] * 5
    assert shared.size <= 50 * KIB
    theirs = ReplayLog(64 * KIB, 256 * KIB, shared.held_for(other))
    stream = theirs.open()
    primed = theirs.cursor(stream)
    theirs.extend(stream, [b"y" * 9 * KIB], awaited=True)
    assert is_good(theirs, primed)
    logs[0].close()
    logs[1].close()
    again = logs[9].open()
    primed = logs[9].cursor(again)
    logs[9].extend(again, [b"x" * 9 * KIB])
    assert is_good(logs[9], primed)
    for kept in (*logs, theirs):
        kept.close()
        kept.close()
    assert shared.size == 0


def test_closed_replay_log_stores_no_events_but_still_issues_event_ids() -> None:
    shared = SharedBytes(100 * KIB)
    kept = ReplayLog(64 * KIB, 256 * KIB, shared.held_for(Caller()))
    stream = kept.open()
    kept.extend(stream, [b"a\n"], awaited=True)
    kept.close()
    assert extended(kept, stream, [b"b\n"], awaited=True) == f"{stream}-2"
    kept.finish(stream, 0)
    assert shared.size == 0


def test_undelivered_result_stays_in_the_replay_log_when_many_empty_streams_finish() -> None:
    kept = log(session=16 * KIB)
    first = kept.open()
    kept.extend(first, [b"r\n"], awaited=True)
    kept.finish(first, 60.0)
    for _ in range(1000):
        kept.finish(kept.open(), 60.0)
    stream = kept.open()
    primed = kept.cursor(stream)
    for _ in range(10):
        kept.extend(stream, [b"x" * 500 + b"\n"])
    assert len(lines(kept, primed)) == 10
    assert lines(kept, f"{first}-0") == [b"r\n"]


class Log(RuleBasedStateMachine):
    """A log beside lists of all that was ever said."""

    def __init__(self) -> None:
        super().__init__()
        self.log = ReplayLog(2 * KIB, 5 * KIB)
        self.said: dict[str, list[tuple[str, bytes]]] = {}
        self.finished: set[str] = set()
        self.awaited: set[str] = set()
        """Streams whose newest event is awaited."""

    @rule()
    def open(self) -> None:
        stream = self.log.open()
        self.said[stream] = [(self.log.cursor(stream), b"")]

    @precondition(lambda self: self.said.keys() - self.finished)
    @rule(data=st.data(), lengths=st.lists(st.integers(0, 1500), max_size=4), awaited=st.booleans())
    def extend(self, data: st.DataObject, lengths: list[int], awaited: bool) -> None:
        stream = data.draw(st.sampled_from(sorted(self.said.keys() - self.finished)))
        said = [bytes(length) for length in lengths]
        first = self.log.extend(stream, said, awaited=awaited)
        self.said[stream] += [(f"{stream}-{number}", line) for number, line in enumerate(said, first)]
        if awaited and said:
            self.awaited.add(stream)
        elif said:
            self.awaited.discard(stream)
        assert self.log.cursor(stream) == self.said[stream][-1][0]

    @precondition(lambda self: self.said.keys() - self.finished)
    @rule(data=st.data(), time=st.integers(0, 5))
    def finish(self, data: st.DataObject, time: int) -> None:
        stream = data.draw(st.sampled_from(sorted(self.said.keys() - self.finished)))
        self.finished.add(stream)
        self.log.finish(stream, time)

    @rule(now=st.integers(0, 5))
    def forget(self, now: int) -> None:
        self.log.drop_finished(now)

    @invariant()
    def what_is_replayed_is_all_that_followed(self) -> None:
        for stream, said in self.said.items():
            for at, (cursor, _) in enumerate(said):
                try:
                    replay = self.log.after(cursor)
                except BadCursor:
                    assert stream in self.finished or at < len(said) - 1 - (stream in self.awaited)
                else:
                    assert self.log.retained_after(cursor) == (replay, False)
                    assert (replay.stream, replay.events) == (stream, said[at + 1 :])
                    assert replay.finished == (stream in self.finished)

    @invariant()
    def bounds_hold(self) -> None:
        kept_anyway = len(self.said.keys() - self.finished | self.awaited)
        assert self.log.size <= max(5 * KIB, 256 * kept_anyway)


TestLog = Log.TestCase
