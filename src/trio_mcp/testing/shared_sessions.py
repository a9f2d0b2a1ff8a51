"""SessionDirectorySuite: each session has its facts, which one at a time changes, until the end."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import trio

from ..stores.shared import SessionDirectory, StoredSession
from ..stores.task_store import StoreFull, new_mark
from .shared_storage import (
    ALL_BYTES,
    HOSTILE,
    LENGTHS,
    TestedStorage,
    at_once,
    cancel_one_wait,
    told,
    told_or_gap,
    until,
)
from .store_records import HOUR, expect_error, interrupt


class SessionDirectorySuite(TestedStorage):
    """The tests that every `SessionDirectory` has to pass, for each sentence of its docstrings. See `SharedSuite`."""

    async def test_session_is_read_as_it_was_opened(self) -> None:
        """By every replica, with any bytes."""
        async with self.open_replica() as one, self.open_replica() as two:
            for number, facts in enumerate((b"", ALL_BYTES, bytes(2**20))):
                mark = await opened(one.sessions, f"session {number}", facts)
                for each in (one, two):
                    assert await read(each.sessions, f"session {number}") == StoredSession(facts, mark)

    async def test_unknown_session_is_none_for_any_text(self) -> None:
        """A peer may ask for, change and end anything."""
        async with self.open_replica() as one:
            await opened(one.sessions, "known")
            for text in HOSTILE:
                assert await read(one.sessions, text) is None
                assert not await changed(one.sessions, text, b"facts", b"")
                assert await one.sessions.end(text) is False
                assert await read(one.sessions, text) is None

    async def test_session_may_have_any_text_as_its_id(self) -> None:
        """None stands for another."""
        async with self.open_replica() as one, self.open_replica() as two:
            marks = [await opened(one.sessions, text, str(number).encode()) for number, text in enumerate(HOSTILE)]
            for number, text in enumerate(HOSTILE):
                assert await read(two.sessions, text) == StoredSession(str(number).encode(), marks[number])
                assert await two.sessions.end(text)
            assert [await read(one.sessions, text) for text in HOSTILE] == [None] * len(HOSTILE)

    async def test_session_with_a_taken_id_is_refused(self) -> None:
        """The first one stays, and the other does not count."""
        async with self.open_replica() as one, self.open_replica() as two:
            mark = await opened(one.sessions, "same", b"first")
            for most in (5, 1):
                await expect_error(ValueError, opened(two.sessions, "same", b"second", most=most))
            assert await read(one.sessions, "same") == StoredSession(b"first", mark)
            await opened(one.sessions, "other", most=2)

    async def test_full_directory_opens_no_other_session(self) -> None:
        """Raises `StoreFull` with ``most`` sessions; one that has ended leaves room."""
        async with self.open_replica() as one, self.open_replica() as two:
            await opened(one.sessions, "one", most=2)
            await opened(two.sessions, "two", most=2)
            await expect_error(StoreFull, opened(two.sessions, "three", most=2))
            assert await read(one.sessions, "three") is None
            await one.sessions.end("one")
            await opened(two.sessions, "three", most=2)

    async def test_bound_on_sessions_holds_while_many_open(self) -> None:
        """Of twenty at the same time, at two replicas, as many succeed as there is room for."""
        async with self.open_replica() as one, self.open_replica() as two:
            calls = [partial(opened, (one, two)[n % 2].sessions, f"session {n}", most=7) for n in range(20)]
            results = await at_once(calls)
            assert sum(isinstance(each, bytes) for each in results) == 7
            assert sum(isinstance(each, StoreFull) for each in results) == 13
            there = [await read(one.sessions, f"session {number}") is not None for number in range(20)]
            assert there == [isinstance(each, bytes) for each in results]

    async def test_one_of_many_opens_the_same_session(self) -> None:
        """The facts are by the first one."""
        async with self.open_replica() as one, self.open_replica() as two:
            facts = [str(number).encode() for number in range(20)]
            results = await at_once([partial(opened, (one, two)[int(f) % 2].sessions, "same", f) for f in facts])
            won = [StoredSession(f, mark) for f, mark in zip(facts, results, strict=True) if isinstance(mark, bytes)]
            assert sum(isinstance(each, ValueError) for each in results) == 19
            assert [await read(two.sessions, "same")] == won

    async def test_session_that_nobody_uses_ends(self) -> None:
        """The session is unknown then, counts no more, and its id is free."""
        async with self.open_replica() as one, self.open_replica() as two:
            mark = await opened(one.sessions, "one", idle=1)
            await until(partial(has_room, two.sessions, 1))
            assert await read(two.sessions, "one") is None
            assert not await changed(two.sessions, "one", b"late", mark)
            assert await two.sessions.end("one") is False
            again = await opened(two.sessions, "one", b"again", most=1)
            assert await read(one.sessions, "one") == StoredSession(b"again", again)

    async def test_session_does_not_end_before_its_time(self) -> None:
        """The time by which it ends is none that another session has."""
        async with self.open_replica() as one:
            await opened(one.sessions, "lasts")
            assert await until_over(one.sessions, 100) > 0.09
            assert await read(one.sessions, "lasts") is not None

    async def test_session_lasts_from_its_last_reading(self) -> None:
        """Or change: by whichever replica."""
        async with self.open_replica() as one, self.open_replica() as two:

            async def look(session_id: str, _: bytes) -> bool:
                return await two.sessions.read(session_id, idle=HOUR) is not None

            async def change(session_id: str, mark: bytes) -> bool:
                return await two.sessions.change(session_id, b"new", was=mark, mark=new_mark(), idle=HOUR)

            for use in (look, change):
                await _lengthens(one.sessions, use)

    async def test_change_of_a_session_replaces_its_facts(self) -> None:
        """And its mark, for every replica."""
        async with self.open_replica() as one, self.open_replica() as two:
            mark = await opened(one.sessions, "one", b"old")
            for facts in (ALL_BYTES, b"", bytes(2**20)):
                was, mark = mark, new_mark()
                assert await two.sessions.change("one", facts, was=was, mark=mark, idle=HOUR) is True
                for each in (one, two):
                    assert await read(each.sessions, "one") == StoredSession(facts, mark)

    async def test_change_of_a_session_with_another_mark_is_refused(self) -> None:
        """Nothing is changed: neither facts nor mark."""
        async with self.open_replica() as one, self.open_replica() as two:
            old = await opened(one.sessions, "one")
            mark = new_mark()
            assert await one.sessions.change("one", b"new", was=old, mark=mark, idle=HOUR)
            for was in (old, b"", new_mark(), mark + b"\0", mark[:-1]):
                assert await two.sessions.change("one", b"late", was=was, mark=new_mark(), idle=1) is False
            assert await read(two.sessions, "one") == StoredSession(b"new", mark)

    async def test_session_that_has_ended_is_not_changed(self) -> None:
        """A change opens nothing."""
        async with self.open_replica() as one, self.open_replica() as two:
            mark = await opened(one.sessions, "one")
            assert await two.sessions.end("one") is True
            assert await two.sessions.end("one") is False
            assert not await changed(one.sessions, "one", b"late", mark)
            assert await read(one.sessions, "one") is None

    async def test_first_of_many_changes_of_a_session_wins(self) -> None:
        """Of twenty at the same time, at two replicas, one succeeds."""
        async with self.open_replica() as one, self.open_replica() as two:
            mark = await opened(one.sessions, "one")
            facts = [str(number).encode() for number in range(20)]
            results = await at_once([partial(changed, (one, two)[int(f) % 2].sessions, "one", f, mark) for f in facts])
            won = [StoredSession(f, new) for f, new in zip(facts, results, strict=True) if isinstance(new, bytes)]
            assert [await read(one.sessions, "one")] == won
            assert results.count(None) == 19

    async def test_one_of_many_ends_a_session(self) -> None:
        """The others are told that there was none."""
        async with self.open_replica() as one, self.open_replica() as two:
            await opened(one.sessions, "one")
            results = await at_once([partial((one, two)[number % 2].sessions.end, "one") for number in range(10)])
            assert sorted(map(str, results)) == ["False"] * 9 + ["True"]

    async def test_cancelled_open_of_a_session_is_whole_or_nothing(self) -> None:
        """An open that returned has opened the session, and one that was cancelled has not."""
        async with self.open_replica() as one:
            step, waits = 1, True
            while waits:
                waits, returned = await interrupt(step, opened, one.sessions, f"session {step}")
                assert (await read(one.sessions, f"session {step}") is not None) == bool(returned)
                step += 1

    async def test_cancelled_change_of_a_session_is_whole_or_nothing(self) -> None:
        """Likewise."""
        async with self.open_replica() as one:
            mark, facts = await opened(one.sessions, "one"), b"facts"
            step, waits = 1, True
            while waits:
                waits, returned = await interrupt(step, changed, one.sessions, "one", str(step).encode(), mark)
                mark, facts = (returned[0], str(step).encode()) if returned else (mark, facts)
                assert await read(one.sessions, "one") == StoredSession(facts, mark or b"")
                step += 1

    async def test_cancelled_end_of_a_session_is_whole_or_nothing(self) -> None:
        """Likewise."""
        async with self.open_replica() as one:
            step, waits = 1, True
            while waits:
                await opened(one.sessions, f"session {step}")
                waits, returned = await interrupt(step, one.sessions.end, f"session {step}")
                assert (await read(one.sessions, f"session {step}") is None) == bool(returned)
                step += 1

    async def test_watcher_of_sessions_is_told_of_changes_and_ends(self) -> None:
        """By this replica and by others; a refused change is none."""
        async with self.open_replica() as one, self.open_replica() as two:
            for each in (one, two):
                marks = [await opened(two.sessions, text) for text in HOSTILE]
                async with one.sessions.watch() as hints:
                    for text, mark in zip(HOSTILE, marks, strict=True):
                        assert await changed(each.sessions, text, b"new", mark)
                        await told(hints, text)
                    for text in HOSTILE:
                        assert await each.sessions.end(text)
                        await told(hints, text)

    async def test_watcher_of_sessions_is_not_told_of_the_past(self) -> None:
        """Nor of a session that has ended because its time is over."""
        async with self.open_replica() as one, self.open_replica() as two:
            marks = {name: await opened(one.sessions, name) for name in ("before", "before, elsewhere", "after")}
            async with one.sessions.watch() as earlier:
                await changed(one.sessions, "before", b"new", marks["before"])
                await changed(two.sessions, "before, elsewhere", b"new", marks["before, elsewhere"])
                await told(earlier, "before", "before, elsewhere")
            async with one.sessions.watch() as hints:
                await until_over(one.sessions, 1)
                await changed(two.sessions, "after", b"new", marks["after"])
                assert not {"before", "before, elsewhere", "control"} & set(await told(hints, "after"))

    async def test_all_watchers_of_sessions_are_told(self) -> None:
        """A watcher that leaves takes no hint from another; waiting for a hint can be cancelled."""
        async with self.open_replica() as one, one.sessions.watch() as hints:
            mark = await opened(one.sessions, "one")
            await opened(one.sessions, "two")
            async with one.sessions.watch() as others:
                await cancel_one_wait(others)
                await changed(one.sessions, "one", b"new", mark)
                await told(others, "one")
                await told(hints, "one")
            await one.sessions.end("two")
            await told(hints, "two")

    async def test_watcher_of_sessions_that_does_not_read_holds_up_nobody(self) -> None:
        """Where hints are lost in the end, a gap tells; later hints are not."""
        async with self.open_replica() as one, self.open_replica() as two, one.sessions.watch() as hints:
            mark: bytes | None = await opened(one.sessions, "one")
            for name in ("last", "later"):
                await opened(one.sessions, name)
            for _ in range(1500):
                mark = await changed(two.sessions, "one", b"new", mark or b"")
                assert mark is not None
            await two.sessions.end("last")
            await told_or_gap(hints, "last")
            await two.sessions.end("later")
            await told(hints, "later")


async def opened(
    sessions: SessionDirectory, session_id: str, facts: bytes = b"facts", *, idle: int = HOUR, most: int = 1_000_000
) -> bytes:
    """Open a session, by default without a bound that matters, and return its mark."""
    mark = new_mark()
    await sessions.open(session_id, facts, mark=mark, idle=idle, most=most)
    return mark


async def read(sessions: SessionDirectory, session_id: str) -> StoredSession | None:
    """Return the session, which lasts then."""
    return await sessions.read(session_id, idle=HOUR)


async def changed(sessions: SessionDirectory, session_id: str, facts: bytes, was: bytes) -> bytes | None:
    """Change the session, and return its new mark; `None` where the change is refused."""
    mark = new_mark()
    return mark if await sessions.change(session_id, facts, was=was, mark=mark, idle=HOUR) else None


async def has_room(sessions: SessionDirectory, most: int) -> bool:
    """Return whether there are less than ``most`` sessions, none of which lasts longer by this."""
    try:
        await opened(sessions, "probe", most=most)
    except StoreFull:
        return False
    return await sessions.end("probe")


async def until_over(sessions: SessionDirectory, idle: int) -> float:
    """Open a session, wait until the end by the time ``idle``, and return the seconds that this took."""
    most = 1
    while not await has_room(sessions, most):
        most += 1
    begun = trio.current_time()
    await opened(sessions, "control", idle=idle)
    return await until(partial(has_room, sessions, most)) - begun


async def _lengthens(sessions: SessionDirectory, use: Callable[[str, bytes], Coroutine[Any, Any, bool]]) -> None:
    """Check that a session which is in ``use`` once outlives its first time."""
    for idle in LENGTHS:
        session_id = f"{use.__name__} {idle}"
        mark = await opened(sessions, session_id, idle=idle)
        if await use(session_id, mark):
            await until_over(sessions, idle)
            assert await read(sessions, session_id) is not None
            return
    raise AssertionError("no session could be used before it was over")
