"""SessionDirectorySuite: tests that a `SessionDirectory` stores sessions, and changes them by compare-and-set."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import trio

from ...stores.shared import SessionDirectory, StoredSession
from ...stores.task_store import StoreFull, new_mark
from .task_store_records import HOUR, expect_error, interruptions
from .tested_storage import (
    ALL_BYTES,
    HOSTILE,
    LENGTHS,
    TestedStorage,
    cancel_one_wait,
    expect_hint_or_loss,
    expect_hints,
    run_concurrently,
    wait_until,
)


class SessionDirectorySuite(TestedStorage):
    """Tests for each guarantee in the docstrings of `SessionDirectory`. Every implementation must pass them. See
    `SharedStorageSuite`."""

    async def test_every_replica_reads_a_session_as_it_was_opened(self) -> None:
        """Every replica reads the data of a session as it was opened, whatever bytes it contains."""
        async with self.open_replica() as one, self.open_replica() as two:
            for number, state in enumerate((b"", ALL_BYTES, bytes(2**20))):
                mark = await open_session(one.sessions, f"session {number}", state)
                for each in (one, two):
                    assert await read(each.sessions, f"session {number}") == StoredSession(state, mark)

    async def test_session_with_an_unknown_id_is_not_found_whatever_the_string(self) -> None:
        """For an unknown session id, `read` returns `None`, and `change` and `delete` return false, whatever string a
        client sends."""
        async with self.open_replica() as one:
            await open_session(one.sessions, "known")
            for text in HOSTILE:
                assert await read(one.sessions, text) is None
                assert not await change_session(one.sessions, text, b"state", b"")
                assert await one.sessions.delete(text) is False
                assert await read(one.sessions, text) is None

    async def test_session_exists_until_it_is_deleted_or_expires(self) -> None:
        """While a session is open, `exists` returns true on every replica. The call doesn't extend the session's
        lifetime."""
        async with self.open_replica() as one, self.open_replica() as two:
            for text in HOSTILE:
                assert await two.sessions.exists(text) is False
                await open_session(one.sessions, text)
                assert await two.sessions.exists(text) is True
                assert await one.sessions.delete(text)
                assert await two.sessions.exists(text) is False
            await open_session(one.sessions, "short", idle_ms=500)
            await wait_until_gone(two.sessions, "short")
            assert await read(one.sessions, "short") is None

    async def test_session_id_can_be_any_string(self) -> None:
        """A session id can be any string, and no id is mistaken for another."""
        async with self.open_replica() as one, self.open_replica() as two:
            marks = [await open_session(one.sessions, text, b"%d" % number) for number, text in enumerate(HOSTILE)]
            for number, text in enumerate(HOSTILE):
                assert await read(two.sessions, text) == StoredSession(str(number).encode(), marks[number])
                assert await two.sessions.delete(text)
            assert [await read(one.sessions, text) for text in HOSTILE] == [None] * len(HOSTILE)

    async def test_opening_a_session_with_an_id_that_exists_raises_value_error(self) -> None:
        """Opening a second session with the same id raises an error. The first session is unchanged, and the failed
        call doesn't count towards the limit."""
        async with self.open_replica() as one, self.open_replica() as two:
            mark = await open_session(one.sessions, "same", b"first")
            for limit in (5, 1):
                await expect_error(ValueError, open_session(two.sessions, "same", b"second", limit=limit))
            assert await read(one.sessions, "same") == StoredSession(b"first", mark)
            await open_session(one.sessions, "other", limit=2)

    async def test_opening_a_session_raises_store_full_if_no_session_may_be_evicted(self) -> None:
        """`open` raises `StoreFull` if ``limit`` sessions exist and none may be evicted. Here none may, because each
        session was used and each has a different caller."""
        async with self.open_replica() as one, self.open_replica() as two:
            await open_session(one.sessions, "one", limit=2, is_used=True)
            await open_session(two.sessions, "two", limit=2, is_used=True)
            for _ in range(2):
                await expect_error(StoreFull, open_session(two.sessions, "three", limit=2))
            assert await existing_sessions(one.sessions, "one", "two", "three") == ["one", "two"]
            await one.sessions.delete("one")
            await open_session(two.sessions, "three", limit=2)

    async def test_caller_can_open_at_most_half_of_the_sessions_that_others_leave_free(self) -> None:
        """If other callers have n of ``limit`` sessions, a caller can open at most half of the remaining ``limit - n``
        sessions, rounded up."""
        async with self.open_replica() as one, self.open_replica() as two:
            for caller, allowed in ((b"ann", 4), (b"bob", 2), (ALL_BYTES, 1), (b"", 1)):
                names = [f"{number} of {caller!r}" for number in range(allowed)]
                for number, name in enumerate(names):
                    each = (one, two)[number % 2]
                    assert await try_open_session(each.sessions, name, caller, limit=8, is_used=True) is None
                await expect_error(StoreFull, try_open_session(one.sessions, "more", caller, limit=8))
                assert await existing_sessions(two.sessions, *names, "more") == names

    async def test_new_caller_evicts_a_session_of_the_caller_that_has_the_most_sessions(self) -> None:
        """If the directory is full and a new caller opens a session, a session of the caller that has the most sessions
        is evicted.

        The session with the least time left is evicted. `open` returns its id, and watchers are notified.
        """
        async with self.open_replica() as one, self.open_replica() as two, one.sessions.watch() as hints:
            left = {"a": 3, "b": 2, "\ud800": 5, "d": 4}
            for name, hours in left.items():
                await try_open_session(one.sessions, name, b"ann", limit=8)
                await two.sessions.read(name, idle_ms=hours * HOUR)
            for name, caller in (("e", b"bob"), ("f", b"bob"), ("g", b"carol"), ("h", b"dave")):
                await try_open_session(two.sessions, name, caller, limit=8, is_used=True)
            for name, first in (("i", "b"), ("j", "a")):
                assert await try_open_session(two.sessions, name, name.encode(), limit=8, is_used=True) == first
                await expect_hints(hints, first)
            # Now the caller Ann has two sessions, and so has the caller Bob.
            last = await try_open_session(one.sessions, "k", b"k", limit=8)
            assert last in ("d", "e", "f")
            rest = {"\ud800", *"defghijk"} - {last}
            assert set(await existing_sessions(one.sessions, *left, *"efghijk")) == rest

    async def test_unused_session_is_evicted_before_used_sessions(self) -> None:
        """A session that was never read or changed is evicted before used sessions, however much time it has left."""
        async with self.open_replica() as one, self.open_replica() as two:
            mark = await open_session(one.sessions, "changed", caller=b"ann", limit=8)
            assert await change_session(two.sessions, "changed", b"state", mark)
            await try_open_session(one.sessions, "unused", b"ann", limit=8, idle_ms=5 * HOUR)
            await try_open_session(two.sessions, "older", b"ann", limit=8, idle_ms=4 * HOUR)
            await try_open_session(one.sessions, "read", b"ann", limit=8, is_used=True)
            for name, caller in (("a", b"bob"), ("b", b"bob"), ("c", b"carol"), ("d", b"dave")):
                await try_open_session(one.sessions, name, caller, limit=8, is_used=True)
            assert await try_open_session(one.sessions, "e", b"eve", limit=8, is_used=True) == "older"
            assert await try_open_session(one.sessions, "f", b"fay", limit=8, is_used=True) == "unused"

    async def test_caller_at_its_session_limit_evicts_an_unused_session_of_its_own(self) -> None:
        """If a caller already has its maximum number of sessions, a new session replaces the caller's unused session
        with the least time left.

        A used session of the caller is never evicted.
        """
        async with self.open_replica() as one, self.open_replica() as two:
            await try_open_session(one.sessions, "bobs", b"bob", limit=7, idle_ms=1000_000)
            await try_open_session(one.sessions, "used", b"ann", limit=7, is_used=True, idle_ms=2000_000)
            await try_open_session(two.sessions, "second", b"ann", limit=7, idle_ms=4000_000)
            await try_open_session(one.sessions, "first", b"ann", limit=7, idle_ms=3000_000)
            assert await try_open_session(two.sessions, "third", b"ann", limit=7, is_used=True) == "first"
            assert await try_open_session(two.sessions, "fourth", b"ann", limit=7, is_used=True) == "second"
            await expect_error(StoreFull, try_open_session(one.sessions, "fifth", b"ann", limit=7))

    async def test_new_caller_evicts_an_unused_session_if_every_other_caller_has_only_one(self) -> None:
        """If the session directory is full and each caller has one session, a new caller's session replaces an unused
        session. It is the unused session with the least time left.

        It doesn't matter which caller opened the unused session.
        """
        async with self.open_replica() as one, self.open_replica() as two:
            await try_open_session(one.sessions, "ann", b"ann", limit=3, idle_ms=2 * HOUR)
            await try_open_session(two.sessions, "bob", b"bob", limit=3)
            await try_open_session(one.sessions, "carol", b"carol", limit=3, is_used=True)
            assert await try_open_session(two.sessions, "dave", b"dave", limit=3, is_used=True) == "bob"
            assert await try_open_session(one.sessions, "eve", b"eve", limit=3, is_used=True) == "ann"
            await expect_error(StoreFull, try_open_session(one.sessions, "fay", b"fay", limit=3))

    async def test_no_session_is_evicted_if_more_sessions_than_the_limit_exist(self) -> None:
        """If more than ``limit`` sessions exist already, `open` raises `StoreFull` and evicts no session, because
        evicting one wouldn't be enough."""
        async with self.open_replica() as one:
            for number in range(3):
                await try_open_session(one.sessions, f"{number}", b"ann")
            for limit in (2, 0):
                for caller in (b"ann", b"bob"):
                    await expect_error(StoreFull, try_open_session(one.sessions, "more", caller, limit=limit))
            assert await existing_sessions(one.sessions, "0", "1", "2") == ["0", "1", "2"]

    async def test_session_limit_of_each_caller_applies_to_concurrent_openings(self) -> None:
        """No caller gets more sessions than its maximum, even if two replicas open many sessions concurrently.

        One caller opens twenty, and keeps as many as its limit allows. Then each of twenty other callers opens its
        first session, which evicts one existing session, once.
        """
        async with self.open_replica() as one, self.open_replica() as two:
            directories = (one.sessions, two.sessions)

            async def try_all(callers: Sequence[bytes], kind: str) -> tuple[set[str], list[str]]:
                """Try to open one session for each of the ``callers``. Return the names of the opened sessions, and
                those of the evicted sessions."""
                names = [f"{kind} {number}" for number in range(len(callers))]
                calls = [
                    partial(try_open_session, directories[number % 2], name, callers[number], limit=9)
                    for number, name in enumerate(names)
                ]
                results = await run_concurrently(calls)
                new = {name for name, each in zip(names, results, strict=True) if not isinstance(each, Exception)}
                return new, [each for each in results if isinstance(each, str)]

            opened_here, ended = await try_all([b"ann"] * 20, "ann's")
            assert (len(opened_here), len(ended)) == (20, 15)
            there = await existing_sessions(two.sessions, *opened_here)
            assert set(there) == opened_here - set(ended)
            for name in there:
                assert await read(one.sessions, name) is not None
            opened_here |= (more := await try_all([str(number).encode() for number in range(20)], "other"))[0]
            ended += more[1]
            assert len(set(ended)) == len(ended)
            assert set(await existing_sessions(one.sessions, *opened_here)) == opened_here - set(ended)
            assert len(opened_here) - len(ended) == 9

    async def test_ended_sessions_do_not_count_towards_the_session_limits(self) -> None:
        """Expired, deleted and evicted sessions no longer count towards the maximum number of sessions of a caller, or
        of all callers."""
        async with self.open_replica() as one, self.open_replica() as two:
            for number in range(4):
                await open_session(one.sessions, f"ann {number}", caller=b"ann", limit=8, is_used=True, idle_ms=1)
            await open_session(one.sessions, "bob", caller=b"bob", limit=8, is_used=True)
            for number in range(4):
                await wait_until_gone(two.sessions, f"ann {number}")
            for number in range(4):
                name = f"again {number}"
                assert await try_open_session(two.sessions, name, b"ann", limit=8, is_used=True) is None
            await expect_error(StoreFull, try_open_session(one.sessions, "too many", b"ann", limit=8))
            assert await two.sessions.delete("again 1")
            assert await try_open_session(one.sessions, "fits", b"ann", limit=8, is_used=True) is None
            for name, caller in (("c", b"carol"), ("C", b"carol"), ("d", b"dave")):
                assert await try_open_session(two.sessions, name, caller, limit=8, is_used=True) is None
            assert await try_open_session(two.sessions, "f", b"fay", limit=8) == "again 0"

    async def test_ended_sessions_do_not_affect_which_caller_loses_a_session(self) -> None:
        """To evict a session, a full session directory chooses the caller that has the most sessions now. Sessions that
        have ended don't count, however many there are."""
        async with self.open_replica() as one, self.open_replica() as two:
            for number in range(250):
                each = (one, two)[number % 2]
                await try_open_session(each.sessions, f"{number}", b"ann", idle_ms=1, is_used=number % 3 == 0)
            await try_open_session(one.sessions, "b", b"bob", is_used=True)
            await try_open_session(two.sessions, "c", b"bob", is_used=True, idle_ms=HOUR // 2)
            for number in range(250):
                await wait_until_gone(one.sessions, f"{number}")
            assert await try_open_session(two.sessions, "d", b"carol", limit=2, is_used=True) == "c"
            await expect_error(StoreFull, try_open_session(one.sessions, "e", b"dave", limit=2))
            assert await existing_sessions(two.sessions, *"bcde") == ["b", "d"]

    async def test_only_one_of_many_concurrent_openings_of_the_same_session_id_succeeds(self) -> None:
        """If many calls open a session with the same id concurrently, one succeeds, and its data is stored."""
        async with self.open_replica() as one, self.open_replica() as two:
            states = [str(number).encode() for number in range(20)]
            calls = [partial(open_session, (one, two)[int(each) % 2].sessions, "same", each) for each in states]
            results = await run_concurrently(calls)
            opened = zip(states, results, strict=True)
            won = [StoredSession(state, mark) for state, mark in opened if isinstance(mark, bytes)]
            assert sum(isinstance(each, ValueError) for each in results) == 19
            assert [await read(two.sessions, "same")] == won

    async def test_unused_session_expires_and_its_id_can_be_used_again(self) -> None:
        """A session that isn't used expires. It no longer counts towards the limit, and its id can be used again."""
        async with self.open_replica() as one, self.open_replica() as two:
            mark = await open_session(one.sessions, "one", idle_ms=1)
            await wait_until_gone(two.sessions, "one")
            assert await read(two.sessions, "one") is None
            assert not await change_session(two.sessions, "one", b"late", mark)
            assert await two.sessions.delete("one") is False
            again = await open_session(two.sessions, "one", b"again", limit=1)
            assert await read(one.sessions, "one") == StoredSession(b"again", again)

    async def test_session_does_not_expire_before_its_own_idle_timeout(self) -> None:
        """A session doesn't expire before its own idle timeout, even if other sessions have shorter idle timeouts."""
        async with self.open_replica() as one:
            await open_session(one.sessions, "lasts")
            assert await measure_lifetime(one.sessions, 100) > 0.09
            assert await read(one.sessions, "lasts") is not None

    async def test_each_read_or_change_of_a_session_restarts_its_idle_timeout(self) -> None:
        """The lifetime of a session starts again with each read or change, on any replica."""
        async with self.open_replica() as one, self.open_replica() as two:

            async def read_session(session_id: str, _: bytes) -> bool:
                return await two.sessions.read(session_id, idle_ms=HOUR) is not None

            async def change(session_id: str, mark: bytes) -> bool:
                return await two.sessions.change(session_id, b"new", expected_mark=mark, mark=new_mark(), idle_ms=HOUR)

            for use in (read_session, change):
                await _check_that_use_extends_lifetime(one.sessions, use)

    async def test_change_of_a_session_replaces_its_state_and_mark(self) -> None:
        """`change` replaces the data of a session and its mark (a random value for compare-and-set), on all
        replicas."""
        async with self.open_replica() as one, self.open_replica() as two:
            mark = await open_session(one.sessions, "one", b"old")
            for state in (ALL_BYTES, b"", bytes(2**20)):
                old, mark = mark, new_mark()
                assert await two.sessions.change("one", state, expected_mark=old, mark=mark, idle_ms=HOUR) is True
                for each in (one, two):
                    assert await read(each.sessions, "one") == StoredSession(state, mark)

    async def test_change_of_a_session_with_a_wrong_expected_mark_is_refused(self) -> None:
        """`change` does nothing if ``expected_mark`` isn't the session's mark, a random value that each write
        replaces."""
        async with self.open_replica() as one, self.open_replica() as two:
            old = await open_session(one.sessions, "one")
            mark = new_mark()
            assert await one.sessions.change("one", b"new", expected_mark=old, mark=mark, idle_ms=HOUR)
            for bad in (old, b"", new_mark(), mark + b"\0", mark[:-1]):
                assert await two.sessions.change("one", b"late", expected_mark=bad, mark=new_mark(), idle_ms=1) is False
            assert await read(two.sessions, "one") == StoredSession(b"new", mark)

    async def test_change_does_not_reopen_a_session_that_has_ended(self) -> None:
        """`change` doesn't reopen a session that has ended."""
        async with self.open_replica() as one, self.open_replica() as two:
            mark = await open_session(one.sessions, "one")
            assert await two.sessions.delete("one") is True
            assert await two.sessions.delete("one") is False
            assert not await change_session(one.sessions, "one", b"late", mark)
            assert await read(one.sessions, "one") is None

    async def test_only_one_of_many_concurrent_changes_of_a_session_succeeds(self) -> None:
        """Of twenty concurrent `change` calls with the same expected mark, on two replicas, one succeeds."""
        async with self.open_replica() as one, self.open_replica() as two:
            mark = await open_session(one.sessions, "one")
            states = [str(number).encode() for number in range(20)]
            calls = [partial(change_session, (one, two)[int(each) % 2].sessions, "one", each, mark) for each in states]
            results = await run_concurrently(calls)
            changed = zip(states, results, strict=True)
            won = [StoredSession(state, new) for state, new in changed if isinstance(new, bytes)]
            assert [await read(one.sessions, "one")] == won
            assert results.count(None) == 19

    async def test_only_one_of_many_concurrent_deletions_of_a_session_returns_true(self) -> None:
        """Of many concurrent `delete` calls for a session, one returns true, and the others return false."""
        async with self.open_replica() as one, self.open_replica() as two:
            await open_session(one.sessions, "one")
            results = await run_concurrently([partial((one, two)[n % 2].sessions.delete, "one") for n in range(10)])
            assert sorted(map(str, results)) == ["False"] * 9 + ["True"]

    async def test_cancelled_open_of_a_session_is_atomic(self) -> None:
        """If `open` is cancelled, the session isn't stored."""
        async with self.open_replica() as one:
            for at in interruptions():
                returned = await at.call(open_session, one.sessions, f"session {at.step}")
                assert (await read(one.sessions, f"session {at.step}") is not None) == bool(returned)

    async def test_cancelled_change_of_a_session_is_atomic(self) -> None:
        """If `change` is cancelled, the session is unchanged."""
        async with self.open_replica() as one:
            mark, state = await open_session(one.sessions, "one"), b"state"
            for at in interruptions():
                new = str(at.step).encode()
                returned = await at.call(change_session, one.sessions, "one", new, mark)
                mark, state = (returned[0], new) if returned else (mark, state)
                assert await read(one.sessions, "one") == StoredSession(state, mark or b"")

    async def test_cancelled_delete_of_a_session_is_atomic(self) -> None:
        """If `delete` is cancelled, the session still exists."""
        async with self.open_replica() as one:
            for at in interruptions():
                await open_session(one.sessions, f"session {at.step}")
                returned = await at.call(one.sessions.delete, f"session {at.step}")
                assert (await read(one.sessions, f"session {at.step}") is None) == bool(returned)

    async def test_session_watcher_is_notified_of_changed_and_deleted_sessions(self) -> None:
        """A watcher gets the id of each session that any replica changes or deletes."""
        async with self.open_replica() as one, self.open_replica() as two:
            for each in (one, two):
                marks = [await open_session(two.sessions, text) for text in HOSTILE]
                async with one.sessions.watch() as hints:
                    for text, mark in zip(HOSTILE, marks, strict=True):
                        assert await change_session(each.sessions, text, b"new", mark)
                        await expect_hints(hints, text)
                    for text in HOSTILE:
                        assert await each.sessions.delete(text)
                        await expect_hints(hints, text)

    async def test_session_watcher_is_not_notified_of_earlier_changes_or_expired_sessions(self) -> None:
        """A watcher of sessions isn't notified of changes before its start, or of sessions that expire."""
        async with self.open_replica() as one, self.open_replica() as two:
            marks = {name: await open_session(one.sessions, name) for name in ("before", "before, elsewhere", "after")}
            async with one.sessions.watch() as earlier:
                await change_session(one.sessions, "before", b"new", marks["before"])
                await change_session(two.sessions, "before, elsewhere", b"new", marks["before, elsewhere"])
                await expect_hints(earlier, "before", "before, elsewhere")
            async with one.sessions.watch() as hints:
                await measure_lifetime(one.sessions, 1)
                await change_session(two.sessions, "after", b"new", marks["after"])
                assert not {"before", "before, elsewhere", "control"} & set(await expect_hints(hints, "after"))

    async def test_every_session_watcher_is_notified_even_if_another_watcher_stops(self) -> None:
        """Each watcher is notified of all changed sessions, even if another watcher stops or is cancelled while it
        waits."""
        async with self.open_replica() as one, one.sessions.watch() as hints:
            mark = await open_session(one.sessions, "one")
            await open_session(one.sessions, "two")
            async with one.sessions.watch() as others:
                await cancel_one_wait(others)
                await change_session(one.sessions, "one", b"new", mark)
                await expect_hints(others, "one")
                await expect_hints(hints, "one")
            await one.sessions.delete("two")
            await expect_hints(hints, "two")

    async def test_slow_session_watcher_does_not_block_writers(self) -> None:
        """A watcher that doesn't read its notifications blocks no writer. If notifications are lost, the watcher gets
        `HINTS_LOST` when it reads again.

        The watcher gets all later notifications.
        """
        async with self.open_replica() as one, self.open_replica() as two, one.sessions.watch() as hints:
            mark: bytes | None = await open_session(one.sessions, "one")
            for name in ("last", "later"):
                await open_session(one.sessions, name)
            for _ in range(1500):
                mark = await change_session(two.sessions, "one", b"new", mark or b"")
                assert mark is not None
            await two.sessions.delete("last")
            await expect_hint_or_loss(hints, "last")
            await two.sessions.delete("later")
            await expect_hints(hints, "later")


async def open_session(
    sessions: SessionDirectory, session_id: str, state: bytes = b"state", *, caller: bytes | None = None, **options: Any
) -> bytes:
    """Open a session, by default for a new caller, and return the session's mark: random bytes that identify the
    version of its data.

    ``options`` are passed to `try_open_session`.
    """
    mark = new_mark()
    caller = session_id.encode(errors="surrogatepass") if caller is None else caller
    await try_open_session(sessions, session_id, caller, state=state, mark=mark, **options)
    return mark


async def try_open_session(
    sessions: SessionDirectory,
    session_id: str,
    caller: bytes,
    *,
    state: bytes = b"state",
    mark: bytes | None = None,
    idle_ms: int = HOUR,
    limit: int = 1_000_000,
    is_used: bool = False,
) -> str | None:
    """Open a session for ``caller``. Return the id of the session that was evicted for it, if any.

    The default limit is too high to be reached.
    """
    mark = new_mark() if mark is None else mark
    ended = await sessions.open(session_id, state, caller=caller, mark=mark, idle_ms=idle_ms, limit=limit)
    if is_used:
        await sessions.read(session_id, idle_ms=idle_ms)
    return ended


async def existing_sessions(sessions: SessionDirectory, *names: str) -> list[str]:
    """Return those of the given session ids that exist. The check isn't a use of the sessions: it doesn't extend their
    lifetimes."""
    return [name for name in names if await sessions.exists(name)]


async def read(sessions: SessionDirectory, session_id: str) -> StoredSession | None:
    """Return the session, and extend its lifetime as `SessionDirectory.read` does."""
    return await sessions.read(session_id, idle_ms=HOUR)


async def change_session(
    sessions: SessionDirectory, session_id: str, state: bytes, expected_mark: bytes
) -> bytes | None:
    """Change the stored data of the session, and return the random mark of its new version. If the directory refuses
    the change, return `None`."""
    mark = new_mark()
    is_changed = await sessions.change(session_id, state, expected_mark=expected_mark, mark=mark, idle_ms=HOUR)
    return mark if is_changed else None


async def wait_until_gone(sessions: SessionDirectory, session_id: str) -> float:
    """Wait until the session has ended, without extending its lifetime. Return the time of its end."""

    async def is_gone() -> bool:
        return not await existing_sessions(sessions, session_id)

    return await wait_until(is_gone)


async def measure_lifetime(sessions: SessionDirectory, idle_ms: int) -> float:
    """Open a session that expires after ``idle_ms``, wait until it has expired, and return the seconds this took."""
    start = trio.current_time()
    await open_session(sessions, "control", idle_ms=idle_ms)
    return await wait_until_gone(sessions, "control") - start


async def _check_that_use_extends_lifetime(
    sessions: SessionDirectory, use: Callable[[str, bytes], Coroutine[Any, Any, bool]]
) -> None:
    """Check that a session that is used once, by calling ``use``, lives longer than a session that isn't used."""
    for idle in LENGTHS:
        session_id = f"{use.__name__} {idle}"
        mark = await open_session(sessions, session_id, idle_ms=idle)
        if await use(session_id, mark):
            await measure_lifetime(sessions, idle)
            assert await read(sessions, session_id) is not None
            return
    raise AssertionError("each session expired before it could be used; the storage is too slow")
