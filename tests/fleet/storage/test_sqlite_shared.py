"""The processes of one machine share files, which are safe in their hands, whatever happens to any of them."""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio
from tests.forked import Forked
from tests.patience import PATIENCE

from trio_mcp.fleet.storage.sqlite.hints import EXPIRING
from trio_mcp.fleet.storage.sqlite.storage import SQLiteStorage
from trio_mcp.stores import sqlite_database, sqlite_store
from trio_mcp.stores.shared import MAX_MESSAGE_BYTES, ChangeHint, Replica, StoredSession
from trio_mcp.stores.sqlite_store import SQLiteTaskStore
from trio_mcp.stores.task_store import HINTS_LOST, StoreDown, Uncertain, UnreadableRecord, new_mark
from trio_mcp.testing.stores.task_store_records import HOUR, create, record

T = TypeVar("T")

REPLICA = str(Path(__file__).with_name("replica.py"))
NEVER = 1e6
"""Seconds between two looks of a replica that would hear of others too late."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shared.db"


def execute(path: Path, *statements: str) -> list[Any]:
    """Execute statements in a connection of our own, and return the rows of the last."""
    connection = sqlite3.connect(path)
    try:
        for statement in statements:
            rows = connection.execute(statement).fetchall()
        connection.commit()
        return rows
    finally:
        connection.close()


def modes(path: Path) -> dict[str, int]:
    """The files in the folder of the storage, and their modes."""
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}


def use_clock(monkeypatch: pytest.MonkeyPatch, now: Callable[[], int]) -> None:
    """Let the files follow ``now``, as on a system without a name for its start."""
    monkeypatch.setattr(sqlite_database, "boot_id", lambda: b"")
    monkeypatch.setattr(sqlite_database, "time_of_day", now)


async def soon(awaitable: Awaitable[T]) -> T:
    with trio.fail_after(PATIENCE):
        return await awaitable


async def told(hints: AsyncIterator[T], wanted: Callable[[T], bool]) -> T:
    """Return the first hint that is wanted."""
    with trio.fail_after(PATIENCE):
        async for hint in hints:
            if wanted(hint):
                return hint
    raise AssertionError("hints have no end")


async def opened(replica: Replica, name: str) -> None:
    await replica.sessions.open(name, b"facts", caller=b"ann", mark=b"first", idle_ms=HOUR, limit=1000)


async def changed(replica: Replica, name: str) -> bool:
    return await replica.sessions.change(name, b"new", expected_mark=b"first", mark=b"second", idle_ms=HOUR)


class Running:
    """A process that is a replica."""

    def __init__(self, path: Path) -> None:
        ours, theirs = os.pipe()
        self._said = os.fdopen(ours, "rb")
        self._process = Forked([REPLICA, str(path)], stdin=theirs, stdout=theirs, stderr=2)
        os.close(theirs)
        self.accepted = 0

    def begin(self) -> None:
        """Wait until it takes part."""
        self.id, self.secret = self._said.readline().decode().split()

    def wait_for(self, number: int) -> None:
        """Wait until the file has accepted that many sessions."""
        while self.accepted < number:
            self._take(self._said.readline())

    def kill(self) -> None:
        self._process.kill()
        for line in self._said:
            self._take(line)
        self._said.close()

    def _take(self, line: bytes) -> None:
        assert line, "the process goes on"
        self.accepted = int(line)


# Other processes


async def test_replicas_in_different_processes_exchange_messages_through_sqlite(path: Path):
    process = Running(path)
    try:
        process.begin()
        async with SQLiteStorage(path).join("weather") as replica, replica.courier.mailbox() as letters:
            for text in ("one", "two"):
                letter = f"{replica.id} {text}".encode()
                await replica.courier.send(process.id, letter)
                assert await soon(anext(letters)) == letter.upper()
            assert set(await replica.courier.find_dead([process.id, replica.id])) == {replica.id}
    finally:
        process.kill()


async def test_replica_is_notified_of_changes_by_another_process_through_sqlite(path: Path):
    async with (
        SQLiteStorage(path, poll_interval=0.01).join("weather") as replica,
        replica.sessions.watch() as sessions,
        replica.events.watch() as events,
        replica.changes.watch() as changes,
    ):
        process = Running(path)
        try:
            process.begin()
            session = await told(sessions, lambda hint: isinstance(hint, str))
            assert session.startswith(process.id)
            await told(events, lambda hint: isinstance(hint, tuple) and hint[0].startswith(process.id))
            noted = await told(changes, lambda hint: isinstance(hint, ChangeHint))
            assert {each.partition(":")[0] for each in noted.changed} == {"resource"}
        finally:
            process.kill()


async def test_processes_started_concurrently_share_one_secret(path: Path):
    processes = [Running(path) for _ in range(4)]
    try:
        for process in processes:
            process.begin()
        async with SQLiteStorage(path).join("weather") as replica:
            assert {process.secret for process in processes} == {replica.secret.hex()}
        assert len({process.id for process in processes}) == 4
    finally:
        for process in processes:
            process.kill()


async def test_sqlite_data_is_still_there_after_the_process_that_wrote_it_is_killed(path: Path):
    for number in (3, 20, 45):
        processes = [Running(path), Running(path)]
        for process in processes:
            process.begin()
            process.wait_for(number)
        for process in processes:
            process.kill()
        async with SQLiteStorage(path).join("weather") as replica:
            for process in processes:
                for each in range(1, process.accepted + 1):
                    name = f"{process.id} {each}"
                    assert await replica.sessions.read(name, idle_ms=HOUR) == StoredSession(b"new facts", b"second")
                    kept = await replica.events.read_after(name, "calls", 0, retention_ms=HOUR)
                    assert kept is not None
                    assert (kept.stream.last, len(kept.lines)) == (each % 10, min(each % 10, 5))
    assert execute(path, "PRAGMA integrity_check") == [("ok",)]
    sizes = execute(path, "SELECT number, size FROM logs ORDER BY number")
    lengths = "SELECT logs.number, coalesce(sum(length(line)), 0) FROM logs LEFT JOIN events ON log = logs.number"
    assert sizes == execute(path, f"{lengths} GROUP BY logs.number ORDER BY logs.number")


# The files


async def test_sqlite_storage_opens_an_existing_task_store_file(path: Path):
    async with SQLiteTaskStore(path) as store:
        await create(store, record("one"))
    assert execute(path, "PRAGMA user_version") == [(2,)]
    async with SQLiteStorage(path).join("weather") as replica:
        assert [each.id for each in await replica.tasks.page("ann", None, 9)] == ["one"]
        await create(replica.tasks, record("two"))
    async with SQLiteTaskStore(path) as store:
        assert [each.id for each in await store.page("ann", None, 9)] == ["one", "two"]


async def test_sqlite_storage_and_sqlite_task_store_on_one_file_share_tasks(path: Path):
    async with (
        SQLiteStorage(path, poll_interval=0.01).join("weather") as replica,
        SQLiteTaskStore(path, poll_interval=0.01) as store,
        replica.tasks.watch() as here,
        store.watch() as there,
    ):
        await create(store, record("one"))
        await told(here, lambda hint: hint == "one")
        await create(replica.tasks, record("two"))
        await told(there, lambda hint: hint == "two")


async def test_servers_with_different_names_use_separate_sqlite_files(path: Path):
    storage = SQLiteStorage(path)
    async with storage.join("weather") as weather, storage.join("news") as news, storage.join("news") as other:
        await create(weather.tasks, record("sunny"))
        await create(news.tasks, record("flash"))
        assert await news.tasks.read(None, "sunny") is None
        assert await weather.tasks.read(None, "flash") is None
        assert await other.tasks.read(None, "flash") is not None
        assert weather.secret != news.secret == other.secret
        await weather.courier.heartbeat(lease_ms=HOUR)
        assert set(await news.courier.find_dead([weather.id])) == {weather.id}
    assert set(modes(path)) == {"shared.db", "shared.db-2"}
    async with storage.join("news") as news, storage.join("weather") as weather:
        assert [each.id for each in await news.tasks.page("ann", None, 9)] == ["flash"]
        assert [each.id for each in await weather.tasks.page("ann", None, 9)] == ["sunny"]


async def test_new_sqlite_files_are_readable_by_the_owner_only(path: Path):
    async with SQLiteStorage(path).join("weather") as replica:
        await create(replica.tasks, record("one"))
        await opened(replica, "one")
        files = modes(path)
    endings = ("", "-wal", "-shm")
    assert files == {f"shared.db{ending}": 0o600 for ending in endings}
    assert set(modes(path)) == {"shared.db"}


async def test_sqlite_storage_waits_until_its_missing_folder_is_created_and_logs_the_wait(
    path: Path, caplog: pytest.LogCaptureFixture
):
    path = path.parent / "later" / "shared.db"
    ids = list[str]()

    async def join() -> None:
        async with SQLiteStorage(path).join("weather") as replica:
            ids.append(replica.id)

    with caplog.at_level(logging.WARNING, "trio_mcp"), trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(join)
            while not caplog.messages:  # noqa: ASYNC110 - the log tells nobody
                await trio.sleep(0.01)
            assert ids == []
            path.parent.mkdir()
    assert len(ids) == 1
    one, two = caplog.messages
    assert one.startswith("waiting until the shared storage ")
    assert "later/shared.db is available: " in one
    assert "No such file or directory" in one
    assert two.endswith("is available now")


@pytest.mark.parametrize(
    ("statement", "words"),
    [("CREATE TABLE notes (text)", "another kind of database"), ("PRAGMA user_version = 9", "another kind")],
)
async def test_sqlite_storage_raises_immediately_for_a_database_of_another_program(
    path: Path, statement: str, words: str
):
    execute(path, statement)
    with trio.fail_after(PATIENCE), pytest.raises(StoreDown, match=words):
        async with SQLiteStorage(path).join("weather"):
            pass


async def test_sqlite_storage_raises_immediately_for_a_file_that_is_not_a_database(path: Path):
    path.write_bytes(b"notes " * 1000)  # noqa: ASYNC240 - nothing is served yet
    with trio.fail_after(PATIENCE), pytest.raises(StoreDown, match="is not a database"):
        async with SQLiteStorage(path).join("weather"):
            pass


async def test_sqlite_storage_raises_immediately_for_a_file_of_a_newer_version(path: Path):
    async with SQLiteStorage(path).join("weather"):
        pass
    execute(path, "PRAGMA user_version = 3")
    with trio.fail_after(PATIENCE), pytest.raises(StoreDown, match="written by a newer trio-mcp"):
        async with SQLiteStorage(path).join("weather"):
            pass


async def test_sqlite_tasks_are_encrypted_with_the_configured_secrets(path: Path):
    async with SQLiteStorage(path).join("weather", [bytes(32)]) as replica:
        await create(replica.tasks, record("one"))
    async with SQLiteTaskStore(path) as store:
        with pytest.raises(UnreadableRecord):
            await store.read("ann", "one")
    with pytest.raises(ValueError, match="at least 32 bytes"):
        async with SQLiteStorage(path).join("weather", [b"short"]):
            pass


@pytest.mark.parametrize(("synchronous", "level"), [("normal", 1), ("full", 2)])
async def test_synchronous_option_applies_to_all_sqlite_files(path: Path, synchronous: Any, level: int):
    async with SQLiteStorage(path, synchronous=synchronous).join("weather") as replica:
        databases: list[Any] = [vars(replica.tasks)["_database"], vars(replica.sessions)["_database"]]
        for database in databases:
            rows = await database.write(lambda connection: connection.execute("PRAGMA synchronous").fetchall())
            assert rows == [(level,)]
    with pytest.raises(ValueError, match='"normal" or "full"'):
        SQLiteStorage(path, synchronous="off")  # type: ignore[arg-type]


async def test_replaced_sqlite_file_is_treated_as_a_new_storage(path: Path):
    async with (
        SQLiteStorage(path, poll_interval=0.01).join("weather") as replica,
        replica.sessions.watch() as sessions,
        replica.changes.watch() as changes,
    ):
        await replica.changes.record(["tools"])
        place = (await replica.changes.read_since(None)).cursor
        await opened(replica, "one")
        for ending in ("", "-wal", "-shm"):
            path.with_name(f"{path.name}{ending}").unlink()
        with pytest.raises(StoreDown, match="was deleted or replaced"):
            await opened(replica, "two")
        await opened(replica, "three")
        assert await replica.sessions.read("one", idle_ms=HOUR) is None
        await told(sessions, lambda hint: hint is HINTS_LOST)
        await told(changes, lambda hint: hint is HINTS_LOST)
        assert (await replica.changes.read_since(place)).everything


# Failures


def fail_commits(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
    """Let commits of connections that are opened from now on fail with an error, as long as one is set."""
    code: int | None = None

    class Failing(sqlite3.Connection):
        def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
            if statement == "COMMIT" and code is not None:
                error = sqlite3.OperationalError("disk I/O error")
                error.sqlite_errorcode = code
                raise error
            return super().execute(statement, *values)

    def fail(with_code: int | None) -> None:
        nonlocal code
        code = with_code

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **options: connect(*args, **options, factory=Failing))
    return fail


async def test_every_sqlite_write_raises_an_uncertain_outcome_error_if_the_disk_fails(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    fail = fail_commits(monkeypatch)
    async with SQLiteStorage(path).join("weather") as replica:
        await opened(replica, "one")
        fail(sqlite3.SQLITE_IOERR_FSYNC)
        for call in (
            partial(opened, replica, "two"),
            partial(changed, replica, "one"),
            partial(replica.events.take_over, "one", "own", holder="me", retention_ms=HOUR),
            partial(replica.changes.record, ["tools"]),
            partial(replica.courier.send, "other", b"letter"),
            partial(replica.courier.heartbeat, lease_ms=HOUR),
            partial(replica.replay_guard.add, bytes(32), ttl_ms=HOUR),
            partial(replica.rate_limits.acquire, b"key", limit=1, period_ms=HOUR, burst=1),
        ):
            with pytest.raises(Uncertain):
                await call()
        fail(None)
        assert await replica.sessions.read("one", idle_ms=HOUR) == StoredSession(b"facts", b"first")
        assert await replica.replay_guard.add(bytes(32), ttl_ms=HOUR)


async def test_sqlite_outage_is_logged_once_and_its_end_is_logged_once(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    fail = fail_commits(monkeypatch)
    async with SQLiteStorage(path, poll_interval=0.01).join("weather") as replica:
        fail(sqlite3.SQLITE_IOERR_FSYNC)
        with caplog.at_level(logging.WARNING, "trio_mcp"):
            for _ in range(3):
                with pytest.raises(Uncertain):
                    await replica.changes.record(["tools"])
                await replica.changes.read_since(None)
            fail(None)
            await replica.changes.record(["tools"])
            await replica.changes.record(["tools"])
    one, two = caplog.messages
    assert "shared.db cannot be written: " in one
    assert "disk I/O error" in one
    assert two.endswith("shared.db works again")


async def test_task_that_the_secrets_of_the_storage_cannot_decrypt_is_not_logged_as_an_outage(
    path: Path, caplog: pytest.LogCaptureFixture
):
    async with SQLiteStorage(path).join("weather", [b"the first secret" * 2]) as replica:
        await create(replica.tasks, record("sealed"))
    async with SQLiteStorage(path).join("weather", [b"another secret" * 3]) as replica:
        with pytest.raises(UnreadableRecord):
            await replica.tasks.read(None, "sealed")
        await replica.changes.record(["tools"])
    assert not [text for text in caplog.messages if "the shared storage" in text]


async def test_session_notification_is_delivered_while_many_expired_tasks_are_deleted_from_sqlite(path: Path):
    async with SQLiteStorage(path, poll_interval=0.01).join("weather") as one, one.sessions.watch() as hints:
        async with SQLiteStorage(path).join("weather") as two:
            await two.sessions.open("a", b"", caller=b"", mark=new_mark(), idle_ms=HOUR, limit=9)
            async with trio.open_nursery() as nursery:  # together, in a few commits
                for number in range(1200):
                    nursery.start_soon(partial(create, two.tasks, record(str(number)), ttl_ms=0, retention_ms=0))
            while await two.tasks.expire(limit=1000):
                pass
            await two.sessions.delete("a")
        with trio.fail_after(PATIENCE):
            while (hint := await anext(hints)) != "a":
                assert hint is not HINTS_LOST


async def test_replica_reports_lost_messages_after_sqlite_had_a_disk_failure(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    fail = fail_commits(monkeypatch)
    got = list[object]()
    async with SQLiteStorage(path, poll_interval=0.01).join("weather") as replica, replica.courier.mailbox() as letters:

        async def read() -> None:
            got.extend([await anext(letters), await anext(letters)])

        await replica.courier.send(replica.id, b"letter")
        fail(sqlite3.SQLITE_IOERR_FSYNC)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.sleep(0.05)
            assert got == []
            fail(None)
    assert got == [HINTS_LOST, b"letter"]


async def test_replica_can_start_to_receive_messages_while_sqlite_has_a_disk_failure(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    fail = fail_commits(monkeypatch)
    async with SQLiteStorage(path, poll_interval=0.01).join("weather") as replica:
        fail(sqlite3.SQLITE_IOERR_FSYNC)
        async with replica.courier.mailbox() as letters:
            fail(None)
            assert await soon(anext(letters)) is HINTS_LOST
            await replica.courier.send(replica.id, b"letter")
            assert await soon(anext(letters)) == b"letter"


async def test_sqlite_data_is_unchanged_after_writes_fail_because_the_disk_is_full(path: Path):
    async with SQLiteStorage(path).join("weather") as replica:
        database: Any = vars(replica.courier)["_database"]
        await database.write(lambda connection: connection.execute("PRAGMA max_page_count = 80"))
        with pytest.raises(StoreDown, match="database or disk is full"):
            await replica.courier.send("other", bytes(1_000_000))
        await replica.courier.send("other", b"short")
    assert execute(path, "SELECT letter FROM letters") == [(b"short",)]


# Looking


async def test_replica_that_has_just_sent_a_message_polls_sqlite_more_often(path: Path):
    """For a while after it has sent something."""
    async with (
        SQLiteStorage(path, poll_interval=0.01).join("weather") as other,
        SQLiteStorage(path, poll_interval=NEVER).join("weather") as replica,
        other.courier.mailbox() as questions,
        replica.courier.mailbox() as answers,
    ):
        await replica.courier.send(other.id, b"question")
        assert await soon(anext(questions)) == b"question"
        await other.courier.send(replica.id, b"answer")
        assert await soon(anext(answers)) == b"answer"


async def test_replica_that_has_just_read_events_polls_sqlite_for_new_events_more_often(path: Path):
    async with (
        SQLiteStorage(path).join("weather") as other,
        SQLiteStorage(path, poll_interval=NEVER).join("weather") as replica,
        replica.events.watch() as hints,
    ):
        await other.events.open("one", "calls", holder="other", request_id=b"1", retention_ms=HOUR)
        for number in (1, 2):
            await other.events.append(
                "one", "calls", holder="other", first=number, lines=[b"line"], limit=1000, retention_ms=HOUR
            )
            if number == 2:
                assert await soon(anext(hints)) == ("one", "calls")
            assert await replica.events.read_after("one", "calls", number - 1, retention_ms=HOUR) is not None


async def test_idle_replica_polls_sqlite_once_per_interval(path: Path):
    async with (
        SQLiteStorage(path).join("weather") as other,
        SQLiteStorage(path, poll_interval=NEVER).join("weather") as replica,
        replica.courier.mailbox() as letters,
    ):
        await other.courier.send(replica.id, b"letter")
        with trio.move_on_after(0.2):
            assert await anext(letters) is None


async def test_replica_does_not_read_an_sqlite_file_that_has_not_changed(path: Path):
    statements = list[str]()
    async with SQLiteStorage(path, poll_interval=0.001).join("weather") as replica:
        database: Any = vars(replica.courier)["_database"]
        await database.read(lambda connection: connection.set_trace_callback(statements.append))
        await trio.sleep(0.2)
    looks = [each for each in statements if "FROM change_log" in each and "changes" in each]
    assert len(looks) <= 3


async def test_replica_gets_a_report_of_lost_notifications_if_sqlite_change_rows_are_deleted_too_early(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sqlite_store, "_CHANGES_KEPT", 1000)
    async with (
        SQLiteStorage(path, poll_interval=NEVER).join("weather") as replica,
        SQLiteStorage(path).join("weather") as other,
        replica.sessions.watch() as sessions,
        replica.events.watch() as events,
    ):
        for number in range(1200):
            await other.events.take_over("one", str(number), holder="other", retention_ms=HOUR)
        (kept,) = execute(path, "SELECT count(*) FROM changes")[0]
        assert 1000 <= kept < 1064
        await replica.courier.send("nobody", b"look, now")
        assert await soon(anext(sessions)) is HINTS_LOST
        assert await soon(anext(events)) is HINTS_LOST


async def test_notifications_of_changes_recorded_by_two_replicas_arrive_in_order(path: Path):
    """So that a reader of all hints, in the end, need not ask."""
    async with (
        SQLiteStorage(path, poll_interval=0.001).join("weather") as one,
        SQLiteStorage(path, poll_interval=0.001).join("weather") as two,
        one.changes.watch() as hints,
    ):
        here = (await one.changes.read_since(None)).cursor
        for number in range(20):
            await (one, two)[number % 2].changes.record([f"resource:{number}"])
            noted = await soon(anext(hints))
            assert isinstance(noted, ChangeHint)
            assert (noted.previous, set(noted.changed)) == (here, {f"resource:{number}"})
            here = noted.cursor


# Bounds


async def test_expired_sqlite_rows_are_deleted_with_each_heartbeat(path: Path, monkeypatch: pytest.MonkeyPatch):
    """A few rows with each sign of life."""
    ahead = 0
    storage = SQLiteStorage(path)
    use_clock(monkeypatch, lambda: int(time.time() * 1000) + ahead)
    tables = sorted(EXPIRING)
    count = " UNION ALL ".join(f"SELECT '{table}', count(*) FROM {table}" for table in [*tables, "streams", "events"])
    async with storage.join("weather") as gone, storage.join("weather") as replica:
        await gone.courier.heartbeat(lease_ms=1000)
        for number in range(30):
            await opened(replica, str(number))
            await replica.events.take_over(str(number), "own", holder="me", retention_ms=HOUR)
            await replica.events.append(
                str(number), "own", holder="me", first=1, lines=[b"a", b"b"], limit=100, retention_ms=HOUR
            )
            await replica.courier.send(f"nobody {number}", b"letter")
            await replica.replay_guard.add(bytes([number]) * 32, ttl_ms=HOUR)
            await replica.rate_limits.acquire(bytes([number]), limit=1, period_ms=HOUR, burst=1)
        counts = dict(execute(path, count))
        assert counts == dict.fromkeys(tables, 30) | {"replicas": 1, "streams": 30, "events": 60}
        ahead = 2 * HOUR
        await replica.courier.heartbeat(lease_ms=3 * HOUR)
        counts = dict(execute(path, count))
        assert (counts["logs"], counts["letters"]) == (20, 10), "the turn of others comes soon"
        for _ in range(3):
            await replica.courier.heartbeat(lease_ms=3 * HOUR)
        counts = dict(execute(path, count))
        assert counts == dict.fromkeys(tables, 0) | {"replicas": 1, "streams": 0, "events": 0}


async def test_expired_message_between_replicas_is_not_delivered(path: Path, monkeypatch: pytest.MonkeyPatch):
    ahead = 0
    storage = SQLiteStorage(path)
    use_clock(monkeypatch, lambda: int(time.time() * 1000) + ahead)
    async with storage.join("weather") as replica, replica.courier.mailbox() as letters:
        await replica.courier.send(replica.id, b"old")
        ahead = 30_001
        later = int(time.time() * 1000) + HOUR
        execute(path, f"INSERT INTO letters SELECT 9, replica, x'6e6577', {later} FROM letters")
        assert await soon(anext(letters)) == b"new"


async def test_cancelled_read_of_messages_for_a_replica_from_sqlite_loses_no_messages(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Also where no look would find them."""
    monkeypatch.setattr("trio_mcp.fleet.storage.sqlite.hints._FAST_FOR", 0.0)
    entered, release = threading.Event(), threading.Event()

    def hold(_: sqlite3.Connection) -> None:
        entered.set()
        release.wait(PATIENCE)

    async with (
        SQLiteStorage(path, poll_interval=NEVER).join("weather") as replica,
        replica.courier.mailbox() as letters,
    ):
        database: Any = vars(replica.courier)["_database"]
        await replica.courier.send(replica.id, b"letter")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(database.write, hold)
            await trio.to_thread.run_sync(entered.wait, PATIENCE)
            with trio.move_on_after(0.05) as scope:
                await anext(letters)
            assert scope.cancelled_caught
            release.set()
        assert await soon(anext(letters)) == b"letter"


async def test_messages_for_a_replica_beyond_the_byte_limit_in_sqlite_are_reported_as_lost(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("trio_mcp.fleet.storage.sqlite.messages._MAILBOX_BYTES_LIMIT", 1000)
    async with SQLiteStorage(path).join("weather") as replica, replica.courier.mailbox() as letters:
        for letter in (b"a" * 600, b"b" * 600, b"c" * 600):
            await replica.courier.send(replica.id, letter)
        assert [await soon(anext(letters)) for _ in range(2)] == [b"a" * 600, HINTS_LOST]
        await replica.courier.send(replica.id, b"later")
        assert await soon(anext(letters)) == b"later"


async def test_large_messages_for_a_replica_are_read_from_sqlite_one_at_a_time(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("trio_mcp.fleet.storage.sqlite.messages._BATCH_BYTES", 1000)
    sent = [b"a" * 5000, b"b" * 400, b"c" * 400, b"d" * 400, b"e" * 5000]
    async with SQLiteStorage(path).join("weather") as replica, replica.courier.mailbox() as letters:
        for letter in sent:
            await replica.courier.send(replica.id, letter)
        left = list[int]()
        for letter in sent:
            assert await soon(anext(letters)) == letter
            left.append(execute(path, "SELECT count(*) FROM letters")[0][0])
    assert left == [4, 2, 2, 1, 0]


async def test_message_between_replicas_raises_only_if_it_exceeds_the_maximum_size(path: Path):
    letter = b"x" * MAX_MESSAGE_BYTES
    async with SQLiteStorage(path).join("weather") as replica, replica.courier.mailbox() as letters:
        await replica.courier.send(replica.id, letter)
        assert await soon(anext(letters)) == letter
        with pytest.raises(ValueError, match="a message must have at most 67108864 bytes, not 67108865"):
            await replica.courier.send(replica.id, letter + b"x")


async def test_rate_limit_bucket_recovers_after_the_clock_is_set_back(path: Path, monkeypatch: pytest.MonkeyPatch):
    ahead = HOUR
    storage = SQLiteStorage(path)
    use_clock(monkeypatch, lambda: int(time.time() * 1000) + ahead)
    async with storage.join("weather") as replica:
        assert await replica.rate_limits.acquire(b"key", limit=1, period_ms=60_000, burst=1) == 0
        ahead = 0
        assert 0 < await replica.rate_limits.acquire(b"key", limit=1, period_ms=60_000, burst=1) <= 60_000


async def test_sql_statements_never_scan_a_whole_table(path: Path):
    statements = list[str]()

    def trace(connection: sqlite3.Connection) -> None:
        connection.set_trace_callback(statements.append)

    async with (
        SQLiteStorage(path, poll_interval=0.001).join("weather") as replica,
        replica.courier.mailbox() as letters,
    ):
        database: Any = vars(replica.courier)["_database"]
        await database.write(trace)
        await database.read(trace)
        await opened(replica, "one")
        await changed(replica, "one")
        await replica.sessions.read("one", idle_ms=HOUR)
        await replica.events.open("one", "calls", holder="me", request_id=b"1", retention_ms=HOUR)
        for first in (1, 3):
            await replica.events.append(
                "one",
                "calls",
                holder="me",
                first=first,
                lines=[b"a", b"b"],
                limit=2,
                retention_ms=HOUR,
                finish=first == 3,
            )
        await replica.events.take_over("one", "own", holder="me", retention_ms=HOUR)
        await replica.events.finish_dead("one", "own", dead_holder="me", line=b"x", limit=9, retention_ms=HOUR)
        await replica.events.read_after("one", "calls", 0, retention_ms=HOUR)
        await replica.events.delete("one")
        await replica.sessions.delete("one")
        await replica.changes.record(["tools"])
        await replica.changes.read_since((await replica.changes.read_since(None)).cursor)
        await replica.courier.send(replica.id, b"letter")
        await soon(anext(letters))
        await replica.courier.heartbeat(lease_ms=1)
        await replica.courier.find_dead(["other"])
        await replica.courier.leave()
        await replica.replay_guard.add(bytes(32), ttl_ms=1)
        await replica.rate_limits.acquire(b"key", limit=1, period_ms=1, burst=1)
    plans = [
        row[3]
        for statement in statements
        if not statement.startswith(("BEGIN", "COMMIT", "ROLLBACK", "PRAGMA", "--"))
        for row in execute(path, f"EXPLAIN QUERY PLAN {statement}")
    ]
    assert len(plans) > 50
    ours = ("SCAN change_log", "SCAN session_total", "SCAN CONSTANT ROW")  # of one row each
    assert {plan for plan in plans if plan.startswith("SCAN") and plan not in ours} == set()
    assert {plan for plan in plans if "ORDER BY" in plan} == set()


@pytest.mark.parametrize("value", [b"", b"x", bytes(31), "a" * 32, 7])
async def test_sec_secret_of_an_invalid_length_or_type_in_sqlite_is_replaced(path: Path, value: object):
    async with SQLiteStorage(path).join("server"):
        pass
    connection = sqlite3.connect(path)
    connection.execute("UPDATE secret SET secret = ?", (value,))
    connection.commit()
    connection.close()
    async with SQLiteStorage(path).join("server") as one, SQLiteStorage(path).join("server") as two:
        assert one.secret == two.secret
        assert len(one.secret) == 32
