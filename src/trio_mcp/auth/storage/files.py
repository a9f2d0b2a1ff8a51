"""FileTokenStorage: stores token records as files in a folder that only this user can access.

PrivateFolder: files that only their owner can read, each replaced atomically; for worker threads. `file_lock` holds a
lock that spans processes; waiting for it can be cancelled at any time.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import stat
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Final, TypeAlias, TypeVar
from weakref import WeakValueDictionary

import attrs
import msgspec
import trio

from ...classes import frozen
from ...concurrency.contexts import asynccontextmanager, contextmanager
from ...transports.streams import IS_POSIX
from .records import BINDING, StoredAuthorization, TokenStorage, TokenStorageFailed, UnreadableTokens, name_of_record

logger = logging.getLogger("trio_mcp")

_FILE: Final = 0o600
_FOLDER: Final = 0o700
_OTHERS: Final = 0o077
_OTHERS_WRITE: Final = 0o022
_LEFTOVER_SECONDS: Final = 3600.0
"""The age in seconds from which a partial file must come from a dead process, since no write takes that long."""


def state_folder() -> Path:
    """Return the folder in which trio-mcp stores its state on this platform. Raises `TokenStorageFailed` if the user
    has no home folder."""
    try:
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Application Support" / "trio-mcp"
        # XDG base directory specification: ignore a relative path in XDG_STATE_HOME.
        told = Path(os.environ.get("XDG_STATE_HOME", ""))
        return (told if told.is_absolute() else Path.home() / ".local" / "state") / "trio-mcp"
    except RuntimeError:
        raise TokenStorageFailed("this user has no home folder: pass a folder for the tokens") from None


@frozen
class PrivateFolder:
    """A folder of files that only this user can access. The folder is created when the first file is written.

    Other users can never read a file, nor replace it: a folder that belongs to another user, or that others can write
    to, is refused. If others can read a file, their permission is removed, with a warning. Symbolic links are never
    followed, neither for the folder nor for a file. All methods raise `TokenStorageFailed`.
    """

    path: Path

    def read(self, name: str, limit: int) -> bytes | None:
        """Return the contents of a file in the folder; `None` if there is no such file. Raises `TokenStorageFailed` if
        the file is longer than ``limit`` bytes."""
        with self._opened("read") as folder:
            if folder is None:
                return None
            try:
                descriptor = self._opened_file(folder, name, os.O_RDONLY)
            except FileNotFoundError:
                return None
            with os.fdopen(descriptor, "rb") as file:
                data = file.read(limit + 1)
        if len(data) > limit:
            raise TokenStorageFailed(
                f"{self.path / name} is longer than {limit} bytes: trio-mcp never writes files of this size"
            )
        return data

    def replace(self, name: str, data: bytes) -> None:
        """Replace the contents of a file in the folder with ``data``, atomically and durably."""
        with self._opened("written", made=True) as folder:
            assert folder is not None
            self._sweep(folder, name, _LEFTOVER_SECONDS)
            beginning = f".{name}.{secrets.token_hex(8)}"
            descriptor = os.open(beginning, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, _FILE, dir_fd=folder)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(descriptor)
                os.replace(beginning, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(beginning, dir_fd=folder)
                raise
            os.fsync(folder)

    def remove(self, name: str) -> bool:
        """Remove a file from the folder, and return whether it existed."""
        with self._opened("removed") as folder:
            if folder is None:
                return False
            self._sweep(folder, name, 0)
            try:
                os.unlink(name, dir_fd=folder)
            except FileNotFoundError:
                return False
            os.fsync(folder)
            return True

    def names(self) -> list[str]:
        """Return the names of all files in the folder, without temporary files that are still being written."""
        with self._opened("listed") as folder:
            return [] if folder is None else sorted(one for one in os.listdir(folder) if not one.startswith("."))

    def locked(self, name: str) -> int:
        """Wait until this process holds the lock on the lock file ``name``. Returns the file descriptor that holds the
        lock.

        Release the lock with `unlock`. The lock file is never deleted.
        """
        with self._opened("locked", made=True) as folder:
            from fcntl import LOCK_EX, flock  # Windows has none

            assert folder is not None
            descriptor = self._opened_file(folder, name, os.O_RDWR | os.O_CREAT)
            try:
                flock(descriptor, LOCK_EX)
            except BaseException:
                os.close(descriptor)
                raise
            return descriptor

    @contextmanager
    def _opened(self, what: str, *, made: bool = False) -> Generator[int | None]:
        """Open the folder, and yield its file descriptor, or `None` if the folder doesn't exist and ``made`` is false.

        Converts OS errors in the block to `TokenStorageFailed`. The error's message says that the files "cannot be
        ``what``".
        """
        if not IS_POSIX:
            raise TokenStorageFailed("token files are supported on POSIX systems only: use KeyringTokenStorage")
        try:
            if made:
                _make(self.path)
            try:
                folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            except FileNotFoundError:
                folder = None
            if folder is None:
                yield None
                return
            try:
                self._check_folder(os.fstat(folder))
                yield folder
            finally:
                os.close(folder)
        except OSError as error:
            if self.path.is_symlink() or error.errno == errno.ELOOP:
                raise TokenStorageFailed(f"refusing to follow a symbolic link at or in {self.path}") from None
            raise TokenStorageFailed(f"the files in {self.path} cannot be {what}: {error.strerror}") from None

    def _check_folder(self, status: os.stat_result) -> None:
        if status.st_uid != os.geteuid():
            raise TokenStorageFailed(f"refusing to keep tokens in {self.path}: the folder belongs to another user")
        if status.st_mode & _OTHERS_WRITE:
            raise TokenStorageFailed(
                f"refusing to keep tokens in {self.path}: other users may write to it (run chmod 700)"
            )

    def _check_file(self, name: str, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise TokenStorageFailed(f"{self.path / name} must be a regular file of this user")

    def _opened_file(self, folder: int, name: str, flags: int) -> int:
        # O_NONBLOCK: don't wait for a writer if the file is a named pipe, which is refused below.
        descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, _FILE, dir_fd=folder)
        try:
            status = os.fstat(descriptor)
            self._check_file(name, status)
            if status.st_mode & _OTHERS:
                os.fchmod(descriptor, _FILE)
                logger.warning("other users could read %s until now, and may know its tokens", self.path / name)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _sweep(self, folder: int, name: str, age: float) -> None:
        """Remove temporary files that are older than ``age`` seconds, because the process that wrote them no longer
        runs."""
        for one in os.listdir(folder):
            if one.startswith(f".{name}."):
                with suppress(FileNotFoundError):
                    if os.stat(one, dir_fd=folder, follow_symlinks=False).st_mtime <= time.time() - age:
                        os.unlink(one, dir_fd=folder)


def unlock(descriptor: int) -> None:
    """Release the file lock that ``descriptor`` holds, and close the descriptor."""
    from fcntl import LOCK_UN, flock

    try:
        # Unlock first: closing the descriptor doesn't unlock the file if a child process has a copy.
        flock(descriptor, LOCK_UN)
    finally:
        os.close(descriptor)


def _make(path: Path) -> None:
    """Create the folder and its missing parents, with permissions for this user only."""
    if not path.parent.exists():
        _make(path.parent)
    with suppress(FileExistsError):
        os.mkdir(path, _FOLDER)


_Turns: TypeAlias = WeakValueDictionary[tuple[PrivateFolder, str], trio.CapacityLimiter]

_turns: trio.lowlevel.RunVar[_Turns] = trio.lowlevel.RunVar("trio_mcp.file_lock_turns")


@asynccontextmanager
async def file_lock(folder: PrivateFolder, name: str) -> AsyncGenerator[None]:
    """Hold the lock on the lock file ``name`` inside the block, so that no other task or process holds it.

    Raises `TokenStorageFailed` if the file can't be locked.

    If a wait is cancelled, its thread is abandoned: it continues to wait, releases the lock as soon as it gets it, and
    ends. The system offers no better way. At most one thread waits for a lock, however many tasks are cancelled.
    """
    claim = _Claim(folder, name)
    try:
        await trio.to_thread.run_sync(claim.wait, abandon_on_cancel=True, limiter=_turn(folder, name))
        yield
    finally:
        claim.give_up()


def _turn(folder: PrivateFolder, name: str) -> trio.CapacityLimiter:
    """Return the limiter for the threads that wait for one file lock. An abandoned thread counts against the limit
    until it ends."""
    try:
        turns = _turns.get()
    except LookupError:
        turns = _Turns()
        _turns.set(turns)
    return turns.setdefault((folder, name), trio.CapacityLimiter(1))


class _Claim:
    """A file lock that a thread acquires for a task. The task may be cancelled while the thread is waiting."""

    def __init__(self, folder: PrivateFolder, name: str) -> None:
        self._folder = folder
        self._name = name
        self._mutex = threading.Lock()
        self._descriptor: int | None = None
        self._given_up = False

    def wait(self) -> None:
        """Block until this thread holds the file lock. Call this in a worker thread."""
        with self._mutex:
            if self._given_up:
                return
        descriptor = self._folder.locked(self._name)
        with self._mutex:
            if not self._given_up:
                self._descriptor = descriptor
                return
        unlock(descriptor)

    def give_up(self) -> None:
        """Release the file lock. If a thread is still waiting for the lock, that thread acquires the lock and releases
        it at once."""
        with self._mutex:
            self._given_up = True
            descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            unlock(descriptor)


T = TypeVar("T")


_MAX_RECORD_BYTES: Final = 1 << 20
"""The maximum size of a token record, in bytes."""
_ENDING: Final = ".json"


def _folder(path: str | os.PathLike[str] | None) -> PrivateFolder:
    return PrivateFolder(state_folder() / "tokens" if path is None else Path(path).absolute())


@frozen
class _StoredFile:
    server_url: str
    record: msgspec.Raw = attrs.field(repr=False)


# Create the decoder at import: two threads that create a decoder for the same class concurrently crash (msgspec 0.22).
_stored_files: Final = msgspec.json.Decoder(_StoredFile)


@frozen
class FileTokenStorage(TokenStorage):
    """Stores token records in a folder that several processes may use. There is one file per server, which only this
    user can read.

    The default ``folder`` is ``$XDG_STATE_HOME/trio-mcp/tokens`` (``~/.local/state``), on macOS ``~/Library/Application
    Support/trio-mcp/tokens``. A record is replaced atomically: when `save` returns, the new one is on the disk, and
    even if the process is killed, readers see the old or the new one. If a file contains anything else,
    `TokenStorageFailed` is raised and the file isn't changed. Secrets aren't encrypted: see `KeyringTokenStorage`.
    """

    _folder: PrivateFolder = attrs.field(default=None, converter=_folder, alias="folder")

    @property
    def folder(self) -> Path:
        """The folder in which the token records are stored."""
        return self._folder.path

    async def load(self, server_url: str) -> StoredAuthorization | None:
        """Return the token record of a server: see `TokenStorage.load`."""

        def load() -> StoredAuthorization | None:
            name = _name(server_url)
            content = self._content(name)
            if content is None:
                return None
            if content.server_url != server_url:
                raise TokenStorageFailed(
                    f"{self.folder / name} contains the record of another server; the file was not changed"
                )
            try:
                return StoredAuthorization.from_json(bytes(content.record))
            except UnreadableTokens as error:
                raise self._unreadable(name, error) from None

        return await _in_thread(load)

    async def save(self, server_url: str, stored: StoredAuthorization) -> None:
        """Replace the token record of a server with ``stored``: see `TokenStorage.save`."""
        data = msgspec.json.encode(_StoredFile(server_url, msgspec.Raw(stored.to_json())))
        if len(data) > _MAX_RECORD_BYTES:
            raise TokenStorageFailed(f"a token record must have at most {_MAX_RECORD_BYTES} bytes, not {len(data)}")
        await _in_thread(lambda: self._folder.replace(_name(server_url), data))

    async def remove(self, server_url: str) -> bool:
        """Delete the token record of a server, even if it is unreadable: see `TokenStorage.remove`."""
        return await _in_thread(lambda: self._folder.remove(_name(server_url)))

    def lock(self, server_url: str) -> AbstractAsyncContextManager[None]:
        """Lock the token record of a server for this task: see `TokenStorage.lock`."""
        return file_lock(self._folder, f"{name_of_record(server_url)}.lock")

    async def server_urls(self) -> list[str]:
        """Return the URLs of all servers that have a stored record, sorted. Files that aren't token records are logged
        and skipped."""

        def urls() -> list[str]:
            found: list[str] = []
            for name in self._folder.names():
                try:
                    content = self._content(name) if name.endswith(_ENDING) else None
                except TokenStorageFailed as error:
                    logger.warning("%s", error)
                else:
                    is_of_server = content is not None and not content.server_url.startswith(BINDING)
                    found += [content.server_url] if content is not None and is_of_server else []
            return sorted(found)

        return await _in_thread(urls)

    def _content(self, name: str) -> _StoredFile | None:
        data = self._folder.read(name, _MAX_RECORD_BYTES)
        try:
            return None if data is None else _stored_files.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise self._unreadable(name, error) from None

    def _unreadable(self, name: str, error: Exception) -> TokenStorageFailed:
        """Return the error to raise for an unreadable record file. The message names the file, and reveals nothing of
        its contents."""
        return TokenStorageFailed(
            f"{self.folder / name} is not a record that this version can read ({type(error).__name__}); "
            "remove it to sign in again"
        )


def _name(server_url: str) -> str:
    return name_of_record(server_url) + _ENDING


async def _in_thread(call: Callable[[], T]) -> T:
    """Run ``call`` in a thread, and return its result.

    A call that has begun isn't abandoned: a record would change after its lock was released. The thread isn't counted
    among those of handlers, since handlers may wait for tokens.
    """
    return await trio.to_thread.run_sync(call, limiter=trio.CapacityLimiter(1))
