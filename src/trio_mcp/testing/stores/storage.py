"""SharedStorageSuite has all tests of a storage that replicas share."""

from __future__ import annotations

from .change_log import ChangeLogSuite, changes_since, current_cursor
from .courier import CourierSuite, is_dead
from .event_log import EventLogSuite
from .event_log_limits import StreamUnderTest, open_stream
from .rate_limits import RateLimitsSuite, ReplayGuardSuite, acquire, digest, use
from .session_directory import SessionDirectorySuite, open_session, read
from .task_store_records import HOUR, create, read_record, record
from .tested_storage import TestedStorage, expect_hints, run_concurrently


class _JoinTests(TestedStorage):
    """The tests of `join`."""

    async def test_each_replica_has_an_id_of_its_own(self) -> None:
        """That comes never back."""
        ids = list[str]()
        for _ in range(3):
            async with self.open_replica() as one, self.open_replica() as two:
                ids += [one.id, two.id]
        assert len(set(ids)) == 6

    async def test_replicas_have_one_secret(self) -> None:
        """Of 32 bytes, from the first replica to the last."""
        secrets = list[bytes]()

        async def join() -> None:
            async with self.open_replica() as one, self.open_replica() as two:
                secrets.extend((one.secret, two.secret))

        await run_concurrently([join] * 5)
        await join()
        assert [len(each) for each in secrets] == [32] * 12
        assert len(set(secrets)) == 1

    async def test_secret_is_not_shown(self) -> None:
        """Not where somebody prints a replica."""
        async with self.open_replica() as one:
            assert str(one.secret)[2:-1] not in repr(one)

    async def test_replicas_share_tasks(self) -> None:
        """One reads the records of the other, and is told of these."""
        async with self.open_replica() as one, self.open_replica() as two, two.tasks.watch() as hints:
            created = await create(one.tasks, record("task"))
            assert await read_record(two.tasks, "task") == created
            await expect_hints(hints, "task")

    async def test_what_is_shared_outlives_its_replicas(self) -> None:
        """A replica that comes when all others have ended finds all as before."""
        async with self.open_replica() as one:
            created = await create(one.tasks, record("task"))
            await open_session(one.sessions, "session", b"facts")
            log = await open_stream(one.events)
            assert await log.append(1, [b"a"])
            place = await current_cursor(one.changes)
            await one.changes.record(["tools"])
            assert await use(one, digest("proof"))
            assert await acquire(one, b"key") == 0
        async with self.open_replica() as two:
            assert await read_record(two.tasks, "task") == created
            session = await read(two.sessions, "session")
            assert session is not None
            assert session.state == b"facts"
            assert await StreamUnderTest(two.events).lines() == [b"a"]
            assert await changes_since(two.changes, place) == {"tools"}
            assert await use(two, digest("proof")) is False
            assert await acquire(two, b"key") > 0

    async def test_servers_with_different_names_share_nothing(self) -> None:
        """However much their names resemble each other."""
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
                place = await current_cursor(one.changes)
                await other.changes.record(["tools"])
                assert await changes_since(one.changes, place) == set()
                assert await use(one, digest("proof"))
                assert await acquire(one, b"key") == 0
        assert len(secrets) == len(names)


class SharedStorageSuite(
    _JoinTests, SessionDirectorySuite, EventLogSuite, ChangeLogSuite, CourierSuite, ReplayGuardSuite, RateLimitsSuite
):
    """The tests that every `SharedStorage` has to pass, for each sentence of the docstrings of its parts, besides
    `TaskStoreSuite`.

    A test class inherits the tests, and opens replicas; pytest needs ``pytest-trio`` and ``trio_mode = true``::

        class TestMyStorage(SharedStorageSuite):
            @pytest.fixture(autouse=True)
            def storage(self, tmp_path):
                self.path = tmp_path / "shared"

            def open_replica(self, name="tested"):
                return MyStorage(self.path).join(name)

    Several replicas are open at the same time, as if in several processes. Who has written one part, and takes the
    others from elsewhere, inherits the suite of this part alone: they are `SessionDirectorySuite`, `EventLogSuite`,
    `ChangeLogSuite`, `CourierSuite`, `ReplayGuardSuite` and `RateLimitsSuite`, and use no other parts of a replica.

    Real time passes in some tests: the clock of trio may not jump.
    """
