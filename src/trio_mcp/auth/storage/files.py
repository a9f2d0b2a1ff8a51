"""FileTokenStorage: records in files of this user alone, in a PrivateFolder.

PrivateFolder: files that only their owner can read, each replaced as a whole, for worker threads. `file_lock` holds a
lock that spans processes, and that a task can stop waiting for at any time.
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
"""Age at which the beginning of a file was left by a process that is gone: no write takes that long."""


def state_folder() -> Path:
    """Return the folder in which the platform has programs keep their records. Raises `TokenStorageFailed`."""
    try:
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Application Support" / "trio-mcp"
        # A relative path there is to be ignored (XDG base directory specification).
        told = Path(os.environ.get("XDG_STATE_HOME", ""))
        return (told if told.is_absolute() else Path.home() / ".local" / "state") / "trio-mcp"
    except RuntimeError:
        raise TokenStorageFailed("this user has no home folder to keep tokens in; name another folder") from None


@frozen
class PrivateFolder:
    """A folder of ours alone, made when the first file is written, and the files in it, by their names.

    Nobody else can read a file at any time, nor put another in its place: a folder that belongs to somebody else, or
    that others may write to, is refused; a file that others may read is taken away from them, with a warning. No
    symbolic link is followed, neither for the folder nor for a file. All methods raise `TokenStorageFailed`.
    """

    path: Path

    def read(self, name: str, limit: int) -> bytes | None:
        """Return the contents; `None` where there is no such file. Longer ones than ``limit`` are refused."""
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
            raise TokenStorageFailed(f"{self.path / name} is longer than {limit} bytes: no file of ours is")
        return data

    def replace(self, name: str, data: bytes) -> None:
        """Put ``data`` in place of the contents, all at once, and on the disk."""
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
        """Remove the file, and return whether there was one."""
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
        """Return the names of all whole files."""
        with self._opened("listed") as folder:
            return [] if folder is None else sorted(one for one in os.listdir(folder) if not one.startswith("."))

    def locked(self, name: str) -> int:
        """Wait for the lock that a file stands for, among all processes, and return the descriptor that holds it: see
        `unlock`. The file stays, and has no contents."""
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
        """Open the folder; `None` where it does not exist and is not ``made``. Errors of the block say ``what`` cannot
        be done to the files."""
        if not IS_POSIX:
            raise TokenStorageFailed("tokens are kept in files on POSIX systems alone: use KeyringTokenStorage")
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
                raise TokenStorageFailed(f"a symbolic link in {self.path}, or in its place, is not followed") from None
            raise TokenStorageFailed(f"the files in {self.path} cannot be {what}: {error.strerror}") from None

    def _check_folder(self, status: os.stat_result) -> None:
        if status.st_uid != os.geteuid():
            raise TokenStorageFailed(f"{self.path} belongs to another user: no place for tokens")
        if status.st_mode & _OTHERS_WRITE:
            raise TokenStorageFailed(
                f"others may write to {self.path}: no place for tokens (chmod 700 would make it one)"
            )

    def _check_file(self, name: str, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise TokenStorageFailed(f"{self.path / name} is no regular file of this user")

    def _opened_file(self, folder: int, name: str, flags: int) -> int:
        # A pipe is opened without waiting for who writes to it, and then refused.
        descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, _FILE, dir_fd=folder)
        try:
            status = os.fstat(descriptor)
            self._check_file(name, status)
            if status.st_mode & _OTHERS:
                os.fchmod(descriptor, _FILE)
                logger.warning("others could read %s until now, and may know its tokens", self.path / name)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _sweep(self, folder: int, name: str, age: float) -> None:
        """Remove the beginnings of the file that are older than ``age`` seconds: their process is gone."""
        for one in os.listdir(folder):
            if one.startswith(f".{name}."):
                with suppress(FileNotFoundError):
                    if os.stat(one, dir_fd=folder, follow_symlinks=False).st_mtime <= time.time() - age:
                        os.unlink(one, dir_fd=folder)


def unlock(descriptor: int) -> None:
    """Give the lock back that ``descriptor`` holds, and close the descriptor."""
    from fcntl import LOCK_UN, flock

    try:
        flock(descriptor, LOCK_UN)  # closing would not do while a forked process has a copy
    finally:
        os.close(descriptor)


def _make(path: Path) -> None:
    """Make the folder and its parents, for this user alone, where there are none."""
    if not path.parent.exists():
        _make(path.parent)
    with suppress(FileExistsError):
        os.mkdir(path, _FOLDER)


_Turns: TypeAlias = WeakValueDictionary[tuple[PrivateFolder, str], trio.CapacityLimiter]

_turns: trio.lowlevel.RunVar[_Turns] = trio.lowlevel.RunVar("trio_mcp.file_lock_turns")


@asynccontextmanager
async def file_lock(folder: PrivateFolder, name: str) -> AsyncGenerator[None]:
    """Hold the lock that the file ``name`` stands for, alone among all tasks and processes. Raises
    `TokenStorageFailed`.

    A cancelled wait leaves a thread behind, which waits on, gives the lock back as soon as it has got the lock, and
    ends: nothing else can be done about a lock of the system. One thread waits for a lock at most, however many tasks
    come and go.
    """
    claim = _Claim(folder, name)
    try:
        await trio.to_thread.run_sync(claim.wait, abandon_on_cancel=True, limiter=_turn(folder, name))
        yield
    finally:
        claim.give_up()


def _turn(folder: PrivateFolder, name: str) -> trio.CapacityLimiter:
    """Return who may have a thread wait for the lock: an abandoned thread keeps the turn until the end."""
    try:
        turns = _turns.get()
    except LookupError:
        turns = _Turns()
        _turns.set(turns)
    return turns.setdefault((folder, name), trio.CapacityLimiter(1))


class _Claim:
    """A claim to a lock, by a thread that waits for the lock and a task that may give up."""

    def __init__(self, folder: PrivateFolder, name: str) -> None:
        self._folder = folder
        self._name = name
        self._mutex = threading.Lock()
        self._descriptor: int | None = None
        self._given_up = False

    def wait(self) -> None:
        """Wait for the lock, in a thread."""
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
        """Give the lock back, or see to it that the thread does."""
        with self._mutex:
            self._given_up = True
            descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            unlock(descriptor)


T = TypeVar("T")


_MAX_RECORD_BYTES: Final = 1 << 20
"""Bytes of a record."""
_ENDING: Final = ".json"


def _folder(path: str | os.PathLike[str] | None) -> PrivateFolder:
    return PrivateFolder(state_folder() / "tokens" if path is None else Path(path).absolute())


@frozen
class _StoredFile:
    server_url: str
    record: msgspec.Raw = attrs.field(repr=False)


# Made here: two threads that prepare the reading of a class at the same moment end the process (msgspec 0.22).
_stored_files: Final = msgspec.json.Decoder(_StoredFile)


@frozen
class FileTokenStorage(TokenStorage):
    """Records in a folder, a file for each server, readable by this user alone: safe for many processes at once.

    The default ``folder`` is the ``tokens`` of ``$XDG_STATE_HOME/trio-mcp`` (``~/.local/state``), on macOS of
    ``~/Library/Application Support/trio-mcp``. A record is on the disk when `save` returns, or the old one is: nothing
    but a whole record is ever seen, even where the process is killed. A file that holds something else raises
    `TokenStorageFailed`, and stays. Secrets are not encrypted: see `KeyringTokenStorage`.
    """

    _folder: PrivateFolder = attrs.field(default=None, converter=_folder, alias="folder")

    @property
    def folder(self) -> Path:
        """The folder of the files."""
        return self._folder.path

    async def load(self, server_url: str) -> StoredAuthorization | None:
        """Return the record: see `TokenStorage.load`."""

        def load() -> StoredAuthorization | None:
            name = _name(server_url)
            content = self._content(name)
            if content is None:
                return None
            if content.server_url != server_url:
                raise TokenStorageFailed(f"{self.folder / name} is about another server; nothing was changed")
            try:
                return StoredAuthorization.from_json(bytes(content.record))
            except UnreadableTokens as error:
                raise self._unreadable(name, error) from None

        return await _in_thread(load)

    async def save(self, server_url: str, stored: StoredAuthorization) -> None:
        """Keep ``stored`` in place of the record there was: see `TokenStorage.save`."""
        data = msgspec.json.encode(_StoredFile(server_url, msgspec.Raw(stored.to_json())))
        if len(data) > _MAX_RECORD_BYTES:
            raise TokenStorageFailed(f"a record of {len(data)} bytes is not kept: {_MAX_RECORD_BYTES} are the most")
        await _in_thread(lambda: self._folder.replace(_name(server_url), data))

    async def remove(self, server_url: str) -> bool:
        """Forget the record, readable or not: see `TokenStorage.remove`."""
        return await _in_thread(lambda: self._folder.remove(_name(server_url)))

    def lock(self, server_url: str) -> AbstractAsyncContextManager[None]:
        """Hold the record for this task alone: see `TokenStorage.lock`."""
        return file_lock(self._folder, f"{name_of_record(server_url)}.lock")

    async def server_urls(self) -> list[str]:
        """Return the URLs of all servers with a record, sorted. Files that hold something else are logged."""

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
        """Return the failure that names the file, and tells nothing of its contents."""
        return TokenStorageFailed(
            f"{self.folder / name} holds no record that this version can read ({type(error).__name__}); "
            "remove it to sign in anew"
        )


def _name(server_url: str) -> str:
    return name_of_record(server_url) + _ENDING


async def _in_thread(call: Callable[[], T]) -> T:
    """Return the result of ``call`` in a thread. A call that has begun is not left: a record would change after the
    lock was given back. No place of the threads of handlers is taken, since handlers may wait for tokens."""
    return await trio.to_thread.run_sync(call, limiter=trio.CapacityLimiter(1))
