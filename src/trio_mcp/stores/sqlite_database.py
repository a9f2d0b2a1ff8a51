"""`Database`: runs functions on an SQLite file in threads. It has two connections to the file, one for writing and one
for reading.

This module also has the schema of the file, how a connection is opened, the transaction in which a function writes, and
the write-ahead log, which is kept short however many processes read and write.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, TypeAlias, TypeVar, cast

import trio

from ..classes import define, frozen
from ..concurrency.contexts import contextmanager
from .task_store import StoreDown, Uncertain, UnreadableRecord

T = TypeVar("T")

_UNREADABLE: Final = (AttributeError, OverflowError, TypeError, UnicodeError)
"""Exceptions of functions that read a value from the file whose type no replica writes."""
_CLOSING: Final = 10.0
"""Seconds that calls in progress may take when the file is closed."""
_BATCH_LIMIT: Final = 100
"""Maximum number of functions in one batch. Other functions, in particular lease renewals, wait for the end of the
batch."""


class Database:
    """An SQLite file, which is opened on first use.

    Once a function has begun, it is completed even if its task is cancelled; a cancelled call has not begun, and
    changes nothing. `sqlite3.Error` becomes `StoreDown`, as does a file that was deleted or replaced while in use.
    """

    def __init__(self, location: Location) -> None:
        self.path = location.path
        self.now = Clock(location.schema)
        """The clock of the file, which functions passed to `write` and `read` use."""
        self._writing = _ThreadedConnection(location, self.now)
        self._reading = _ThreadedConnection(location, self.now)
        self._log = WriteAheadLog(location.path)
        self._writes = _Batcher(self._writing, self._write_all)
        self._reads = _Batcher(self._reading, _read_all)

    async def write(self, change: Callable[[sqlite3.Connection], T], *, first: bool = False) -> T:
        """Run the function ``change`` in a transaction, commit the transaction, and return the result.

        If ``change`` raises, nothing is stored. Changes that wait at the same time share a transaction. With ``first``,
        ``change`` runs before this process's other waiting writes.
        """
        if first:
            alone = _QueuedCall(change)
            await self._writing.run(partial(self._write_all, lambda: [alone]))
            return alone.value()
        return await self._writes.run(change)

    def _write_all(self, take: _TakeBatch, connection: sqlite3.Connection) -> None:
        with transaction(connection):
            calls = take()
            for call in calls:
                if len(calls) == 1:
                    call.call(connection)
                else:
                    _call_in_savepoint(call, connection)
                if call.error is not None and (len(calls) == 1 or not connection.in_transaction):
                    # After some failures, SQLite ends the transaction. Then no more functions can be called in it.
                    raise call.error
        self._log.keep_short(connection)

    async def read(self, look: Callable[[sqlite3.Connection], T]) -> T:
        """Call the function ``look`` with a connection to the SQLite file, and return its result. ``look`` must not
        write."""
        return await self._reads.run(look)

    def state(self) -> tuple[int, int]:
        """Return numbers that show whether any process has written to the file. See `WriteAheadLog.state`."""
        return self._log.state()

    async def aclose(self) -> None:
        """Close the file. The next use opens it again."""
        with trio.move_on_after(_CLOSING, shield=True):
            await self._reading.aclose()
            # Close the writing connection last, because SQLite then empties the write-ahead log.
            await self._writing.aclose()


@define(eq=False)
class _QueuedCall(Generic[T]):
    """A function that waits in a queue until it may use the database connection. After the function has ended, this
    object contains its result or error."""

    work: Callable[[sqlite3.Connection], T]
    task: trio.lowlevel.Task | None = None
    """The trio task that sleeps until the function has ended, or until this task must call all waiting functions."""
    result: T | None = None
    error: Exception | None = None
    is_over: bool = False

    def call(self, connection: sqlite3.Connection) -> None:
        """Call the waiting function with ``connection``, and store its result or error for its caller."""
        try:
            self.result = self.work(connection)
        except Exception as error:
            self.error = error

    def value(self) -> T:
        """Return the stored result of the function that was called, or raise its stored error."""
        if self.error is not None:
            raise self.error
        return cast("T", self.result)


_TakeBatch: TypeAlias = Callable[[], Sequence[_QueuedCall[Any]]]


def _call_in_savepoint(call: _QueuedCall[Any], connection: sqlite3.Connection) -> None:
    """Call the waiting function inside a savepoint. If the function raises, roll back only its own changes."""
    connection.execute("SAVEPOINT call")
    call.call(connection)
    if connection.in_transaction:
        if call.error is not None:
            connection.execute("ROLLBACK TO call")
        connection.execute("RELEASE call")


def _read_all(take: _TakeBatch, connection: sqlite3.Connection) -> None:
    for call in take():
        call.call(connection)


class _Batcher:
    """Collects functions that wait for the connection ``access``, and runs them in batches.

    ``call_all`` calls all functions of a batch, in a thread.

    Each caller waits. The first caller leads: it makes the thread call all waiting functions, including its own, wakes
    their callers, and passes the lead to the next. A caller can be cancelled until its function has begun.
    """

    def __init__(self, access: _ThreadedConnection, call_all: Callable[[_TakeBatch, sqlite3.Connection], None]) -> None:
        self._access = access
        self._call_all = call_all
        self._waiting = deque[_QueuedCall[Any]]()
        """Functions that haven't begun, in order of arrival. The thread removes them."""
        self._batch = list[_QueuedCall[Any]]()
        self._is_running = False

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Wait until the next batch of functions runs, run ``work`` in this batch, and return its result."""
        call = _QueuedCall(work)
        self._waiting.append(call)
        if self._is_running:
            await self._sleep(call)
        if not call.is_over:
            await self._run_batch(call)
        return call.value()

    async def _sleep(self, call: _QueuedCall[Any]) -> None:
        def abort(_: Any) -> trio.lowlevel.Abort:
            return trio.lowlevel.Abort.SUCCEEDED if self._remove(call) else trio.lowlevel.Abort.FAILED

        call.task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(abort)

    def _remove(self, call: _QueuedCall[Any]) -> bool:
        """Remove a waiting function from the queue. If the function has already started, return false."""
        try:
            self._waiting.remove(call)
        except ValueError:
            return False
        return True

    async def _run_batch(self, call: _QueuedCall[Any]) -> None:
        self._is_running = True
        try:
            await self._access.run(partial(self._call_all, self._start_batch))
        except Exception as error:
            # All queued functions use the same database file. If the file is locked or was removed, they all fail.
            if not self._batch:
                self._batch.extend(self._waiting)
                self._waiting.clear()
            for each in self._batch:
                # Raise a copy for each caller, because raising adds frames to an exception's traceback.
                if each.error is not error:
                    each.error = type(error)(*error.args) if isinstance(error, OSError) else error
                    each.error.__cause__ = error.__cause__
        finally:
            # If this task was cancelled while it waited, its call may still be in the queue, so remove the call.
            self._remove(call)
            self._finish_batch()
            for each in self._batch:
                if each is not call and each.task is not None:
                    trio.lowlevel.reschedule(each.task)
            self._batch = []
            self._is_running = bool(self._waiting)
            if self._waiting:
                following = self._waiting[0].task
                assert following is not None, "it sleeps, like all callers that arrive while another one leads"
                trio.lowlevel.reschedule(following)

    def _finish_batch(self) -> None:
        for each in self._batch:
            each.is_over = True
            if isinstance(error := each.error, (sqlite3.Error, *_UNREADABLE)):
                each.error = self._access.failure(error)
                each.error.__cause__ = error

    def _start_batch(self) -> Sequence[_QueuedCall[Any]]:
        while self._waiting and len(self._batch) < _BATCH_LIMIT:
            self._batch.append(self._waiting.popleft())
        return self._batch


class _ThreadedConnection:
    """A connection to the SQLite file, used by one thread at a time.

    It doesn't use the threads of handlers, because handlers may wait for tasks.
    """

    def __init__(self, location: Location, clock: Clock) -> None:
        self._location = location
        self._clock = clock
        self._limiter = trio.CapacityLimiter(1)
        self._opened = list[sqlite3.Connection]()
        self._file: tuple[int, int] | None = None
        """Numbers that identify the open file."""
        weakref.finalize(self, _close, self._opened)  # close the opened connections also when the process exits

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await trio.to_thread.run_sync(self._work, work, limiter=self._limiter)

    def _work(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return work(self._connection())
        except (sqlite3.Error, *_UNREADABLE) as error:
            raise self.failure(error) from error

    def failure(self, error: Exception) -> Exception:
        """Return the exception that is raised to callers when SQLite has raised ``error``."""
        title = f"the {self._location.schema.title} in {self._location.path}"
        if isinstance(error, sqlite3.Error):
            is_database = getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_NOTADB
            return StoreDown(errno.EIO if is_database else errno.EINVAL, f"{title} failed: {error}")
        # SQLite stores any type in any column, so the file may contain a value of a wrong type.
        return UnreadableRecord(f"{title} contains a value that no replica writes: {error}")

    def _connection(self) -> sqlite3.Connection:
        path = self._location.path
        if not self._opened:
            try:
                self._opened.append(self._location.connect())
                self._file = _identity(path)
                self._clock.start(self._opened[0])
            except OSError as error:
                _close(self._opened)
                raise StoreDown(error.errno, error.strerror, error.filename) from error
            except sqlite3.Error:
                _close(self._opened)
                raise
        elif _identity(path) != self._file:
            _close(self._opened)
            raise StoreDown(errno.ESTALE, f"{path} was deleted or replaced while it was in use; its contents are lost")
        return self._opened[0]

    async def aclose(self) -> None:
        await trio.to_thread.run_sync(_close, self._opened, limiter=self._limiter)


def _close(opened: list[sqlite3.Connection]) -> None:
    while opened:
        opened.pop().close()


def _identity(path: Path) -> tuple[int, int] | None:
    """Return the device and inode numbers of the file at ``path``, or `None` if there is no file."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


_MIN_SQLITE_VERSION: Final = (3, 35, 0)
"""The first SQLite version that supports ``RETURNING``."""

_making: Final = threading.Lock()
"""Lock held while a new file is opened and closed. Closing any descriptor of a file releases all locks that the process
has on it, even those of a connection in another thread."""


@frozen
class Schema:
    """The tables of one kind of SQLite file, and the number that identifies files of this kind."""

    title: str
    """Description of the file for people."""
    application: int
    """Number by which files of this kind are recognized (SQLite's ``application_id``)."""
    version: int
    script: Callable[[], str]
    """Function that returns the statements that create the tables of this version."""
    boot_script: str
    """Statements to run on a file that was last used before the machine booted, so that all its processes are dead."""
    added_script: Callable[[], str] = str
    """Function that returns statements that add tables to a file that was created without them."""
    added_table: str = ""
    """Name of one of the added tables. A file that has this table has all added tables."""


TASKS: Final = Schema(
    "task store",
    0x74_6D_63_70,  # "tmcp"
    2,
    Path(__file__).with_name("tasks.sql").read_text,
    "UPDATE leases SET leased_until = 0;",
)


@frozen
class Location:
    """The path of the SQLite file, and the settings of each connection to it."""

    path: Path
    synchronous: str
    busy_timeout: float
    """Seconds to wait while other processes write."""
    schema: Schema = TASKS

    def __attrs_post_init__(self) -> None:
        if self.synchronous not in ("normal", "full"):
            raise ValueError(f'synchronous must be "normal" or "full", not {self.synchronous!r}')

    def connect(self) -> sqlite3.Connection:
        """Return a new connection to the SQLite file. Only one thread at a time may use the connection.

        If the file doesn't exist, create it, with access only for this user. Raises `OSError` if the file isn't a
        database of this package.
        """
        if sqlite3.sqlite_version_info < _MIN_SQLITE_VERSION:
            raise OSError(errno.ENOSYS, f"SQLite must be 3.35 or newer, not {sqlite3.sqlite_version}")
        with _making, suppress(FileExistsError):
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        connection = sqlite3.connect(
            self.path, timeout=self.busy_timeout, isolation_level=None, check_same_thread=False
        )
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        self._check(connection)
        self._use_log(connection)
        connection.execute(f"PRAGMA synchronous = {self.synchronous}")
        if self._check(connection) == 0 or not self._has_added(connection):
            with transaction(connection):
                self._make(connection)

    def _make(self, connection: sqlite3.Connection) -> None:
        """Create the tables of the schema, unless another process has done so."""
        if self._check(connection) == 0:
            for statement in _statements(self.schema.script()):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {self.schema.application}")
            connection.execute(f"PRAGMA user_version = {self.schema.version}")
        if not self._has_added(connection):
            for statement in _statements(self.schema.added_script()):
                connection.execute(statement)

    def _has_added(self, connection: sqlite3.Connection) -> bool:
        """Return true if the file has the tables that `Schema.added_script` creates. Also return true if the schema has
        no added script."""
        name = self.schema.added_table
        return not name or has_row(connection, "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", name)

    def _check(self, connection: sqlite3.Connection) -> int:
        """Return the version of the file's schema; 0 for a new file.

        Raises `OSError` if the file is another kind of database, or has an unsupported version.
        """
        # Read all values in one statement, because another process may be creating the tables now.
        application, version, tables = connection.execute(
            "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_master)"
            " FROM pragma_application_id, pragma_user_version"
        ).fetchone()
        schema = self.schema
        if application != schema.application and (application or version or tables):
            raise OSError(errno.EINVAL, f"{self.path} is not a {schema.title}: it is another kind of database")
        if version > schema.version:
            raise OSError(
                errno.EINVAL,
                f"{self.path} has schema version {version}, written by a newer trio-mcp; this one supports version"
                f" {schema.version}",
            )
        if 0 < version < schema.version:
            raise OSError(
                errno.EINVAL,
                f"{self.path} has schema version {version}, from before the first release; this trio-mcp supports"
                f" version {schema.version}: move the file away, and a new one is created",
            )
        return version

    def _use_log(self, connection: sqlite3.Connection) -> None:
        """Switch the file to a write-ahead log, so that readers and the writer don't block each other."""
        end = time.monotonic() + self.busy_timeout
        while True:
            try:
                (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
                break
            except sqlite3.OperationalError as error:
                # SQLite doesn't wait while another process opens the new file, so try several times.
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                    raise
                time.sleep(0.01)
        if mode != "wal":
            raise OSError(errno.ENOTSUP, f"{self.path} cannot have a write-ahead log: the file must be on a local disk")


def has_row(connection: sqlite3.Connection, statement: str, *values: object) -> bool:
    """Return whether the SQL ``statement`` finds a row."""
    return connection.execute(statement, values).fetchone() is not None


def _statements(script: str) -> list[str]:
    """Split an SQL script into its statements. (`executescript` would end the transaction.)"""
    statements, begun = list[str](), ""
    for line in script.splitlines(keepends=True):
        begun += line
        if sqlite3.complete_statement(begun):
            statements.append(begun)
            begun = ""
    return statements


def time_of_day() -> int:
    """Return the machine's time of day in milliseconds since the epoch. This clock may be changed at any time."""
    return int(time.time() * 1000)


def steady_time() -> int:
    """Return the time in milliseconds on a monotonic clock that all processes of the machine share."""
    return int(time.monotonic() * 1000)


def boot_id() -> bytes:
    """Return an id that changes with each boot of the machine; an empty string if the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    except OSError:
        return b""


_FIND_CLOCK: Final = "SELECT ahead FROM clock WHERE boot = ?"
_MAKE_CLOCK: Final = """
CREATE TABLE IF NOT EXISTS clock (number INTEGER PRIMARY KEY CHECK (number = 1), boot BLOB NOT NULL, ahead INTEGER)
"""


class Clock:
    """The clock for the times in an SQLite file, in milliseconds since the epoch.

    After each boot, it begins with the time of day at the file's first use, and then follows the monotonic clock. So
    setting the machine's clock doesn't affect it.

    The file stores the boot id, and how far its clock is ahead of the steady clock, so that all processes agree. If the
    system has no boot id, the clock is the time of day. If an earlier version created the file, the table is added.
    """

    def __init__(self, schema: Schema) -> None:
        self._at_boot = schema.boot_script
        self._ahead: int | None = None

    def __call__(self) -> int:
        return time_of_day() if self._ahead is None else steady_time() + self._ahead

    @property
    def steady(self) -> float:
        """The current time in seconds on a monotonic clock that all processes of the machine share."""
        return steady_time() / 1000

    def start(self, connection: sqlite3.Connection) -> None:
        """Read from the opened SQLite file how far the file's clock is ahead of the machine's monotonic clock. If the
        file doesn't contain this for the current boot, start the clock now and store it."""
        boot = boot_id()
        self._ahead = self._find(connection, boot) if boot else None
        if boot and self._ahead is None:
            with transaction(connection):
                # Read the file's clock again, because another process may have stored it before this transaction began.
                self._ahead = self._find(connection, boot)
                if self._ahead is None:
                    self._ahead = self._set(connection, boot)

    def _find(self, connection: sqlite3.Connection, boot: bytes) -> int | None:
        if not has_row(connection, "SELECT 1 FROM sqlite_master WHERE name = 'clock'"):
            return None
        found = connection.execute(_FIND_CLOCK, (boot,)).fetchone()
        return None if found is None else found[0]

    def _set(self, connection: sqlite3.Connection, boot: bytes) -> int:
        connection.execute(_MAKE_CLOCK)
        if connection.execute("DELETE FROM clock").rowcount:
            for statement in _statements(self._at_boot):
                connection.execute(statement)
        ahead = time_of_day() - steady_time()
        connection.execute("INSERT INTO clock VALUES (1, ?, ?)", (boot, ahead))
        return ahead


_KIND_OF_ERROR: Final = 0xFF
"""Bit mask for the lowest bits of an SQLite result code. They contain the kind of error."""


@contextmanager
def transaction(connection: sqlite3.Connection) -> Generator[None]:
    """Run the body of the ``with`` statement in a database transaction.

    Its changes are all committed, or all rolled back if the block or the commit fails. No other process can write in
    the meantime.

    Raises `Uncertain` if the disk fails during the commit: the log may contain the whole change, and be read when the
    file is opened again.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        try:
            connection.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & _KIND_OF_ERROR == sqlite3.SQLITE_IOERR:
                raise Uncertain(errno.EIO, f"the disk failed while a change was written: {error}") from error
            raise
    except BaseException:
        if connection.in_transaction:  # after some failures, SQLite has already rolled back the transaction
            connection.execute("ROLLBACK")
        raise


@contextmanager
def snapshot(connection: sqlite3.Connection) -> Generator[None]:
    """Inside the ``with`` block, let all reads see the same state of the database."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


_LONG_LOG: Final = 16 * 1024 * 1024
"""Length in bytes above which the write-ahead log is emptied. It is four times the length at which SQLite itself begins
to empty the log."""
_PATIENCE_MS: Final = 100


class WriteAheadLog:
    """The write-ahead log of the SQLite file ``path``.

    SQLite can empty the log only while no process reads. If several processes read constantly, there may be no such
    moment for a long time, and the log grows. So a writer occasionally blocks the readers for a few milliseconds.
    """

    def __init__(self, path: Path) -> None:
        self._path = f"{path}-wal"
        self._long = _LONG_LOG

    def state(self) -> tuple[int, int]:
        """Return the size and the modification time of the log, which change when any process writes. A second write
        within milliseconds may leave them unchanged.

        This is fast enough to call in trio's thread.
        """
        try:
            found = os.stat(self._path)
        except OSError:
            return 0, 0
        return found.st_size, found.st_mtime_ns

    def keep_short(self, connection: sqlite3.Connection) -> None:
        """If the write-ahead log is long, empty it. Never raises.

        If a reader, for example a backup, prevents this, try again after the log has grown further.
        """
        try:
            length = os.stat(self._path).st_size
            if length < self._long:
                return
            (patience,) = connection.execute("PRAGMA busy_timeout").fetchone()
            connection.execute(f"PRAGMA busy_timeout = {_PATIENCE_MS}")
            try:
                (is_busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            finally:
                connection.execute(f"PRAGMA busy_timeout = {patience}")
        except (OSError, sqlite3.Error):
            return  # The change is already stored, and the next write reports the error.
        self._long = length + _LONG_LOG if is_busy else _LONG_LOG
