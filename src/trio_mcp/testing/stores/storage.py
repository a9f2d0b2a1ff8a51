"""SharedStorageSuite: all tests of a storage that the replicas of a server share.

ReplayGuardSuite and RateLimitsSuite test what is counted for all replicas together, so that a client gains nothing by
using another replica.
"""

from __future__ import annotations

from functools import partial
from hashlib import sha256

import trio

from ...stores.shared import Replica, StoredSession
from .change_log import ChangeLogSuite, changes_since, current_cursor
from .courier import CourierSuite, is_dead
from .event_log import EventLogSuite
from .event_log_limits import StreamUnderTest, open_stream
from .session_directory import SessionDirectorySuite, open_session, read
from .task_store_records import HOUR, create, interruptions, read_record, record
from .tested_storage import (
    ALL_BYTES,
    HOSTILE,
    LENGTHS,
    PATIENCE,
    TestedStorage,
    expect_hints,
    run_concurrently,
    wait_until,
)


class ReplayGuardSuite(TestedStorage):
    """Tests for each guarantee in the docstrings of `ReplayGuard`. Every implementation must pass them. See
    `SharedStorageSuite`."""

    async def test_replay_guard_accepts_a_value_only_once(self) -> None:
        """The replay guard accepts a one-time value only once, on whichever replica it is used first."""
        async with self.open_replica() as one, self.open_replica() as two:
            digests = [bytes(32), bytes([0] * 31 + [1]), ALL_BYTES[:32], ALL_BYTES[-32:], b"*" * 32, sha256().digest()]
            for number, digest in enumerate(digests):
                assert await use((one, two)[number % 2], digest) is True
            for each in (one, two):
                assert [await use(each, digest) for digest in digests] == [False] * len(digests)

    async def test_replay_guard_accepts_only_one_of_many_concurrent_uses_of_a_value(self) -> None:
        """If a one-time value is used twenty times concurrently on two replicas, the replay guard accepts it once."""
        async with self.open_replica() as one, self.open_replica() as two:
            for number in range(10):
                calls = [partial(use, (one, two)[n % 2], digest(f"{number}")) for n in range(20)]
                assert sorted(map(str, await run_concurrently(calls))) == ["False"] * 19 + ["True"]

    async def test_replay_guard_accepts_a_value_again_after_its_time_to_live(self) -> None:
        """A one-time value is remembered exactly for its time to live. Further attempts to use the value don't extend
        this time."""
        async with self.open_replica() as one, self.open_replica() as two:
            for ttl in LENGTHS:
                start = trio.current_time()
                assert await use(one, digest(f"{ttl}"), ttl_ms=ttl)
                if not await use(two, digest(f"{ttl}")):
                    assert await wait_until(partial(use, two, digest(f"{ttl}"))) - start > 0.9 * ttl / 1000
                    assert await use(one, digest(f"{ttl}")) is False
                    return
        raise AssertionError("each value expired before it could be used again; the storage is too slow")

    async def test_cancelled_add_to_the_replay_guard_is_atomic(self) -> None:
        """`ReplayGuard.add` either stores a one-time value and returns, or raises `trio.Cancelled` and stores none."""
        async with self.open_replica() as one:
            for at in interruptions():
                returned = await at.call(use, one, digest(f"{at.step}"))
                assert await use(one, digest(f"{at.step}")) == (not returned)


class RateLimitsSuite(TestedStorage):
    """Tests for each guarantee in the docstrings of `RateLimits`. Every implementation must pass them. See
    `SharedStorageSuite`."""

    async def test_new_token_bucket_has_burst_tokens_for_all_replicas_together(self) -> None:
        """A new token bucket holds ``burst`` tokens, which all replicas share. When it is empty, `acquire` returns the
        time until the next token."""
        async with self.open_replica() as one, self.open_replica() as two:
            for burst in (1, 2, 5):
                key = b"burst %d" % burst
                waits = [await acquire((one, two)[n % 2], key, burst=burst) for n in range(burst)]
                assert waits == [0] * burst
                for each in (one, two, one):
                    assert HOUR - 60_000 < await acquire(each, key, burst=burst) <= HOUR

    async def test_all_tokens_of_a_large_burst_can_be_acquired_at_once(self) -> None:
        """All tokens of a large burst can be taken at once, even if the time between two tokens isn't a whole number of
        milliseconds."""
        async with self.open_replica() as one:
            for limit in (7, 700_000):
                waits = [await acquire(one, b"%d" % limit, limit=limit, burst=300) for _ in range(300)]
                assert waits == [0] * 300

    async def test_acquire_from_an_empty_token_bucket_returns_the_time_between_two_tokens(self) -> None:
        """An empty token bucket gets its next token after ``period_ms / limit`` milliseconds, rounded up."""
        async with self.open_replica() as one:
            for limit, longest in ((2, HOUR // 2), (7, HOUR // 7 + 1), (1000, HOUR // 1000)):
                key = b"limit %d" % limit
                assert await acquire(one, key, limit=limit) == 0
                assert longest * 0.5 < await acquire(one, key, limit=limit) <= longest

    async def test_key_of_a_token_bucket_can_be_any_bytes(self) -> None:
        """The key of a token bucket can be any bytes, and no key is mistaken for another."""
        async with self.open_replica() as one, self.open_replica() as two:
            texts = [text.encode(errors="surrogatepass") for text in HOSTILE]
            keys = [*texts, b"\0\0", ALL_BYTES, bytes(2**16)]
            for each, is_free in ((one, True), (two, False)):
                for key in keys:
                    assert (await acquire(each, key) == 0) == is_free

    async def test_token_is_available_after_the_time_that_acquire_returned(self) -> None:
        """When `acquire` returns a time to wait, the next token is available after that time, and not earlier."""
        async with self.open_replica() as one, self.open_replica() as two:
            start = trio.current_time()
            assert await acquire(one, b"key", period_ms=200) == 0
            await _acquire_in_time(two, "key", 1, limit=1, period_ms=200, burst=1)
            assert trio.current_time() - start > 0.19

    async def test_token_bucket_gets_limit_tokens_per_period(self) -> None:
        """A token bucket gets ``limit`` tokens per ``period_ms``, even if that is more than one token per
        millisecond."""
        async with self.open_replica() as one:
            for limit, count in ((100, 30), (2000, 200)):
                start = trio.current_time()
                await _acquire_in_time(one, f"limit {limit}", 3 + count, limit=limit, period_ms=1000, burst=3)
                assert trio.current_time() - start > count / limit - 0.01

    async def test_token_bucket_never_has_more_than_burst_tokens(self) -> None:
        """A token bucket never holds more than ``burst`` tokens, however long it isn't used."""
        async with self.open_replica() as one:
            for _ in range(3):
                assert await acquire(one, b"key", period_ms=1, burst=3) == 0
            await trio.sleep(0.1)
            waits = [await acquire(one, b"key", burst=3) for _ in range(4)]
            assert [wait == 0 for wait in waits] == [True, True, True, False]

    async def test_concurrent_acquire_calls_get_no_more_tokens_than_the_bucket_has(self) -> None:
        """Of thirty concurrent `acquire` calls on two replicas, exactly as many get a token as the bucket contains."""
        async with self.open_replica() as one, self.open_replica() as two:
            calls = [partial(acquire, (one, two)[n % 2], b"key", burst=7) for n in range(30)]
            assert (await run_concurrently(calls)).count(0) == 7

    async def test_cancelled_acquire_of_a_token_is_atomic(self) -> None:
        """If the bucket has a token, `RateLimits.acquire` either takes it and returns, or raises `trio.Cancelled` and
        leaves it."""
        async with self.open_replica() as one:
            for at in interruptions():
                key = b"key %d" % at.step
                returned = await at.call(acquire, one, key)
                assert (await acquire(one, key) == 0) == (not returned)


class _JoinTests(TestedStorage):
    """Tests of `SharedStorage.join`."""

    async def test_each_replica_that_joins_gets_a_unique_id(self) -> None:
        """Each replica that joins gets a new id, which is never reused."""
        ids = list[str]()
        for _ in range(3):
            async with self.open_replica() as one, self.open_replica() as two:
                ids += [one.id, two.id]
        assert len(set(ids)) == 6

    async def test_all_replicas_have_the_same_secret(self) -> None:
        """All replicas that join have the same secret of 32 bytes."""
        secrets = list[bytes]()

        async def join() -> None:
            async with self.open_replica() as one, self.open_replica() as two:
                secrets.extend((one.secret, two.secret))

        await run_concurrently([join] * 5)
        await join()
        assert [len(each) for each in secrets] == [32] * 12
        assert len(set(secrets)) == 1

    async def test_repr_of_a_replica_does_not_contain_its_secret(self) -> None:
        """The ``repr`` of a `Replica` doesn't contain its secret."""
        async with self.open_replica() as one:
            assert str(one.secret)[2:-1] not in repr(one)

    async def test_replica_reads_task_records_of_other_replicas_and_is_notified_of_changes(self) -> None:
        """A replica can read the task records of other replicas, and is notified when they change."""
        async with self.open_replica() as one, self.open_replica() as two, two.tasks.watch() as hints:
            created = await create(one.tasks, record("task"))
            assert await read_record(two.tasks, "task") == created
            await expect_hints(hints, "task")

    async def test_shared_data_is_unchanged_after_all_replicas_have_ended(self) -> None:
        """After all replicas have ended, a replica that starts later finds the shared data unchanged."""
        async with self.open_replica() as one:
            created = await create(one.tasks, record("task"))
            await open_session(one.sessions, "session", b"data")
            log = await open_stream(one.events)
            assert await log.append(1, [b"a"])
            cursor = await current_cursor(one.changes)
            await one.changes.record(["tools"])
            assert await use(one, digest("proof"))
            assert await acquire(one, b"key") == 0
        async with self.open_replica() as two:
            assert await read_record(two.tasks, "task") == created
            session = await read(two.sessions, "session")
            assert session is not None
            assert session.state == b"data"
            assert await StreamUnderTest(two.events).lines() == [b"a"]
            assert await changes_since(two.changes, cursor) == {"tools"}
            assert await use(two, digest("proof")) is False
            assert await acquire(two, b"key") > 0

    async def test_caller_state_is_stored_separately_from_sessions(self) -> None:
        """If the storage keeps a state for each caller, `Replica.state` works like `Replica.sessions`, but stores its
        data separately."""
        async with self.open_replica() as one, self.open_replica() as two:
            if one.state is None or two.state is None:
                return
            mark = await open_session(one.state, "name", b"state", limit=1)
            await open_session(one.sessions, "name", b"session", limit=1)
            assert await read(two.state, "name") == StoredSession(b"state", mark)
            assert not await two.state.change("name", b"late", expected_mark=b"other", mark=b"m", idle_ms=HOUR)
            assert await two.state.change("name", b"changed", expected_mark=mark, mark=b"m", idle_ms=HOUR)
            assert await one.sessions.delete("name")
            assert await read(one.state, "name") == StoredSession(b"changed", b"m")
        async with self.open_replica() as three, self.open_replica("other") as other:
            assert three.state is not None
            assert other.state is not None
            assert await read(other.state, "name") is None
            assert await three.state.delete("name")

    async def test_servers_with_different_names_share_no_data(self) -> None:
        """Servers with different names share no data, however similar the names are."""
        names = (
            *("tested", "tested:2", "tested.2", "Tested", "*", "{tested}", "tested 2", "te", "\N{SNOWMAN}"),
            "../tested",
        )
        secrets = set[bytes]()
        for number, name in enumerate(names):
            async with self.open_replica(name) as one, self.open_replica(names[number - 1]) as other:
                secrets.add(one.secret)
                await create(one.tasks, record("task"), limit=1)
                await open_session(one.sessions, "session", limit=1)
                await open_stream(one.events, "stream", holder=name)
                await one.courier.heartbeat(lease_ms=HOUR)
                assert await is_dead(other.courier, one.id)
                cursor = await current_cursor(one.changes)
                await other.changes.record(["tools"])
                assert await changes_since(one.changes, cursor) == set()
                assert await use(one, digest("proof"))
                assert await acquire(one, b"key") == 0
        assert len(secrets) == len(names)


class SharedStorageSuite(
    _JoinTests, SessionDirectorySuite, EventLogSuite, ChangeLogSuite, CourierSuite, ReplayGuardSuite, RateLimitsSuite
):
    """Tests for each guarantee in the docstrings of `SharedStorage`. Every implementation must pass these tests and
    `TaskStoreSuite`.

    Inherit the suite in a test class that opens replicas. pytest needs ``pytest-trio`` and ``trio_mode = true``::

        class TestMyStorage(SharedStorageSuite):
            @pytest.fixture(autouse=True)
            def storage(self, tmp_path):
                self.path = tmp_path / "shared"

            def open_replica(self, name="tested"):
                return MyStorage(self.path).join(name)

    Each test opens several replicas concurrently, as if they were several processes. If you implement only one part of
    the storage, inherit the suite of that part: `SessionDirectorySuite`, `EventLogSuite`, `ChangeLogSuite`,
    `CourierSuite`, `ReplayGuardSuite` or `RateLimitsSuite`. Each of these uses no other part of a replica.

    Some tests wait in real time, so don't use a virtual clock.
    """


def digest(text: str) -> bytes:
    """Return a hash digest with a length of 32 bytes, as a `ReplayGuard` stores it."""
    return sha256(text.encode()).digest()


async def use(replica: Replica, value: bytes, *, ttl_ms: int = HOUR) -> bool:
    """Add a one-time value to the replay guard, and return whether the value was new."""
    return await replica.replay_guard.add(value, ttl_ms=ttl_ms)


async def acquire(replica: Replica, key: bytes, *, limit: int = 1, period_ms: int = HOUR, burst: int = 1) -> int:
    """Take a token from a token bucket, and return 0. If the bucket is empty, return the milliseconds until its next
    token."""
    wait = await replica.rate_limits.acquire(key, limit=limit, period_ms=period_ms, burst=burst)
    assert isinstance(wait, int)
    assert wait >= 0
    return wait


async def _acquire_in_time(replica: Replica, key: str, count: int, *, limit: int, period_ms: int, burst: int) -> None:
    """Take ``count`` tokens from a token bucket. While the bucket is empty, wait for the time that `acquire`
    returns."""
    with trio.fail_after(PATIENCE):
        for _ in range(count):
            while wait := await acquire(replica, key.encode(), limit=limit, period_ms=period_ms, burst=burst):
                assert wait <= -(-period_ms // limit)
                await trio.sleep(wait / 1000)
